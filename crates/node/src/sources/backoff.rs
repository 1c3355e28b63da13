//! Back-off of broken watches.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use podwright_core::backoff::{Doubling, Retry, spread};

const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);

/// Doubles with each attempt and is reset by a success.
#[derive(Clone, Debug)]
pub struct WatchBackoff(Retry);

impl WatchBackoff {
    pub fn new(delays: Doubling) -> Self {
        Self(Retry::new(delays))
    }

    /// The first delay depends on the node name, so that not all nodes reconnect at the same time
    /// after an outage of the API server.
    pub fn of(node: &str) -> Self {
        let seed =
            node.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        Self::new(Doubling::new(spread(FIRST, seed), MAX))
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.next_delay())
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_to_a_limit_and_is_reset() {
        let mut backoff = WatchBackoff::of("node-a");
        let waits: Vec<Duration> = backoff.by_ref().take(8).collect();
        assert!(waits[0] >= FIRST && waits[0] < FIRST * 3 / 2);
        assert_eq!((waits[1], waits[7]), (waits[0] * 2, MAX));
        backoff.reset();
        assert_eq!(backoff.next(), Some(waits[0]));
    }
}
