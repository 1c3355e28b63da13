//! Seeded random choices: the same seed gives the same run.

use podwright_core::random::SplitMix64;

/// Random choices of the fake runtime.
#[derive(Clone, Debug)]
pub(super) struct Random(SplitMix64);

impl Random {
    /// `stream` separates draws for different purposes: one more fault changes no container's id.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self(SplitMix64::stream(seed, stream))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// True in a share of `p` of all draws.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        // 53 bits are what a double holds exactly.
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit < p
    }

    /// 64 hexadecimal digits, as containerd's ids and image digests are.
    pub(super) fn hex64(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.next())).collect()
    }

    /// Shuffles the items, as iterating a Go map does.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u64::try_from(last).unwrap_or(u64::MAX).saturating_add(1);
            let other = usize::try_from(self.next() % bound).unwrap_or(last);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_true_draws_is_as_requested() {
        let mut random = Random::new(1, 1);
        let hits = (0..10_000).filter(|_| random.chance(0.3)).count();
        assert!((2_800..3_200).contains(&hits), "{hits}");
        assert!(!random.chance(0.0));
        assert!(random.chance(1.0));
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..20).collect();
        Random::new(3, 0).shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
