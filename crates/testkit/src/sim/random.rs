//! Seeded random numbers: the same seed gives the same run.

/// SplitMix64: small, and good enough for choosing faults.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// `stream` separates draws for different purposes: one more fault changes no other choice.
    pub fn new(seed: u64, stream: u64) -> Self {
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

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// True in `percent` of all draws.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these; there must be one.
    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let place = self.below(choices.len() as u64) as usize;
        &choices[place]
    }

    /// An index by weight: the weights must not all be zero.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut draw = self.below(weights.iter().sum());
        for (place, weight) in weights.iter().enumerate() {
            if draw < *weight {
                return place;
            }
            draw -= weight;
        }
        unreachable!("the draw is below the sum")
    }
}
