//! How long a broken watch rests before it is taken up again.

use std::time::Duration;

use kube::runtime::utils::Backoff;

const FIRST: Duration = Duration::from_millis(800);
const MOST: Duration = Duration::from_secs(30);

/// Doubles from try to try, and begins anew after a success. Each node waits a little longer than
/// another, by its name: when the API server comes back, not all of them are there at once.
#[derive(Clone, Debug)]
pub struct WatchBackoff {
    first: Duration,
    next: Duration,
}

impl WatchBackoff {
    pub fn of(node: &str) -> Self {
        let sum =
            node.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let first = FIRST + FIRST * (sum % 100) / 200;
        Self { first, next: first }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next;
        self.next = (wait * 2).min(MOST);
        Some(wait)
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_a_limit_and_begins_anew() {
        let mut backoff = WatchBackoff::of("node-a");
        let waits: Vec<Duration> = backoff.by_ref().take(8).collect();
        assert!(waits[0] >= FIRST && waits[0] < FIRST * 3 / 2);
        assert_eq!((waits[1], waits[7]), (waits[0] * 2, MOST));
        backoff.reset();
        assert_eq!(backoff.next(), Some(waits[0]));
    }
}
