//! Decisions about images: access to images that are already present ([`access`]), and the
//! deadline of a pull.

pub mod access;
pub mod download;

use std::time::Duration;

use crate::time::go_duration;

/// After this long a pull is assumed to hang. Runtimes end pulls without progress within minutes;
/// this bounds those of a runtime or registry that does not.
pub const PULL_DEADLINE: Duration = Duration::from_secs(2 * 3600);

/// Error of a pull that exceeded its deadline.
pub fn pull_deadline_exceeded(image: &str) -> String {
    let limit = go_duration(PULL_DEADLINE);
    format!("pull of image {image:?} did not end within {limit} and was cancelled")
}
