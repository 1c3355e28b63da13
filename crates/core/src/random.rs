//! Seeded random numbers: the same seed gives the same sequence. Not for secrets.

/// SplitMix64: small, and good enough for choosing faults and names in tests.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `stream` separates draws for different purposes: one more draw for one purpose changes no
    /// draw for another.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed ^ stream.rotate_left(32));
        Self(mixer.draw())
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_splitmix64() {
        // Reference output for the seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let draws = [random.draw(), random.draw(), random.draw()];
        let want: [u64; 3] =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(draws, want);
    }

    #[test]
    fn same_seed_gives_same_draws_and_another_stream_others() {
        let draw = |seed, stream| {
            let mut random = SplitMix64::stream(seed, stream);
            [random.draw(), random.draw()]
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }
}
