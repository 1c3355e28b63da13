//! Seeded random numbers: the same seed gives the same run.

/// SplitMix64. Small, and good enough for choosing which call fails.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// `stream` separates draws for different purposes: one more fault changes no container's id.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed ^ stream.rotate_left(32));
        Self(mixer.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
    fn same_seed_gives_same_draws_and_another_stream_others() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next()]
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }

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
