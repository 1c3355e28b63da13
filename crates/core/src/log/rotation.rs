//! Log rotation policy.
//!
//! The current file has a fixed name; a rotated file gets the time as a suffix. The newest rotated
//! file stays uncompressed, because a client may be reading it; older ones are compressed, and the
//! oldest are removed.

use std::time::Duration;

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// `containerLogMaxSize` in bytes; `None` disables rotation.
    pub max_size: Option<u64>,
    /// `containerLogMaxFiles`: maximum number of files of one container, including the current one.
    pub max_files: usize,
    /// `containerLogMaxWorkers`: number of concurrent rotations.
    pub workers: usize,
    /// `containerLogMonitorInterval`.
    pub every: Duration,
}

impl Default for RotationPolicy {
    fn default() -> Self {
        Self { max_size: Some(10 << 20), max_files: 5, workers: 1, every: Duration::from_secs(10) }
    }
}

/// Actions on the existing rotated files before the next rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationPlan {
    pub remove: Vec<String>,
    pub compress: Vec<String>,
}

/// Suffix of a compressed file.
pub const COMPRESSED: &str = ".gz";
/// Suffix of a file that is being compressed.
pub const UNFINISHED: &str = ".tmp";

/// `names` are the files of the directory by the time of their last change, oldest first; `current`
/// is the current file.
pub fn plan_rotation(current: &str, names: &[String], max_files: usize) -> RotationPlan {
    let prefix = format!("{current}.");
    let ours = names.iter().filter(|name| name.starts_with(&prefix));
    let is_waste = |name: &String| {
        let done = || names.iter().any(|other| *other == format!("{name}{COMPRESSED}"));
        name.ends_with(UNFINISHED) || done()
    };
    let (mut remove, mut kept): (Vec<String>, Vec<String>) = ours.cloned().partition(is_waste);
    // Leave space for the current file and the one about to be rotated. Names do not sort by time:
    // upstream's are in local time, ours in UTC. Compressed files are older than others.
    kept.sort_by_key(|name| !name.ends_with(COMPRESSED));
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    remove.extend(kept.drain(..excess));
    kept.retain(|name| !name.ends_with(COMPRESSED));
    RotationPlan { remove, compress: kept }
}

/// Name of a rotated file. The time is in UTC: local time repeats an hour each autumn, so the names
/// would no longer sort by time.
pub fn rotated_name(current: &str, now: Timestamp) -> String {
    format!("{current}.{}", now.strftime("%Y%m%d-%H%M%S"))
}
