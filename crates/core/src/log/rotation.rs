//! When a log file is put aside, and what becomes of it.
//!
//! The file in use has the container's name for it; put aside, it gets the time as a suffix. The
//! newest of those stays as it is, because somebody may be reading it; older ones are compressed,
//! and the oldest go.

use std::time::Duration;

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// `containerLogMaxSize` in bytes; `None` is never.
    pub max_size: Option<u64>,
    /// `containerLogMaxFiles`: of one container, the one in use included.
    pub max_files: usize,
    /// `containerLogMaxWorkers`: how many are rotated at a time.
    pub workers: usize,
    /// `containerLogMonitorInterval`.
    pub every: Duration,
}

impl Default for RotationPolicy {
    fn default() -> Self {
        Self { max_size: Some(10 << 20), max_files: 5, workers: 1, every: Duration::from_secs(10) }
    }
}

/// What is to be done with the files put aside earlier, before another one joins them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chores {
    pub remove: Vec<String>,
    pub compress: Vec<String>,
}

/// The ending of a file that was compressed.
pub const COMPRESSED: &str = ".gz";
/// The ending of one that is being compressed.
pub const UNFINISHED: &str = ".tmp";

/// `names` are those in the folder, `current` is the one in use.
pub fn chores(current: &str, names: &[String], max_files: usize) -> Chores {
    let prefix = format!("{current}.");
    let ours = names.iter().filter(|name| name.starts_with(&prefix));
    let is_waste = |name: &String| {
        let done = || names.iter().any(|other| *other == format!("{name}{COMPRESSED}"));
        name.ends_with(UNFINISHED) || done()
    };
    let (mut remove, mut kept): (Vec<String>, Vec<String>) = ours.cloned().partition(is_waste);
    // Room for the one in use and the one about to be put aside. Names sort by time.
    kept.sort();
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    remove.extend(kept.drain(..excess));
    kept.retain(|name| !name.ends_with(COMPRESSED));
    Chores { remove, compress: kept }
}

/// The name a file is put aside under. In UTC: local time repeats an hour each autumn, and the
/// names would not sort by time any more.
pub fn rotated_name(current: &str, now: Timestamp) -> String {
    format!("{current}.{}", now.strftime("%Y%m%d-%H%M%S"))
}
