//! One suite per contract, run under every mapping: what every job must do, however its ranks are laid out.
//!
//! [`memory`] is the suite of the memory part: identity, allocation, put, get, barriers, misuse. [`soak`] is random
//! traffic with checked contents, for as long as one likes.

pub mod memory;
pub mod soak;

/// A small generator, the same on every rank that starts it alike.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The next number below n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() >> 11) as usize % n
    }
}
