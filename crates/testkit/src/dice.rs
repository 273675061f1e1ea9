//! Chance that repeats itself: the same seed gives the same throws, on every machine and for ever.

/// A seeded source of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// The throws of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// Yes, so many times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.number() % 100 < percent
    }

    /// One of these, if there are any.
    pub fn any<T: Clone>(&mut self, among: &[T]) -> Option<T> {
        if among.is_empty() { None } else { Some(self.pick(among)) }
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())].clone()
    }
}
