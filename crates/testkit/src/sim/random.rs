//! Seeded random choices: the same seed gives the same run.

use podwright_core::random::SplitMix64;

/// Random choices of a simulation.
#[derive(Clone, Debug)]
pub struct SeededRandom(SplitMix64);

impl SeededRandom {
    /// `stream` separates draws for different purposes: one more fault changes no other choice.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(SplitMix64::stream(seed, stream))
    }

    pub fn draw(&mut self) -> u64 {
        self.0.draw()
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
