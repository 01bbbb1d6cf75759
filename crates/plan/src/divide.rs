//! Division by a number that is known long before the dividends are, as a multiplication.
//!
//! Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994, theorem 4.2.

/// The dividends are below this, and the divisors at most this: half of what a `usize` counts.
pub const BOUND: usize = 1 << (usize::BITS - 1);

/// A divisor `d` in `1..=BOUND` that is exact for every dividend below [`BOUND`].
///
/// Why it is exact: let `s` be the logarithm of `d` to base 2, rounded up, and `m = ⌊2^(63+s) / d⌋ + 1`. Then
/// `m·d = 2^(63+s) + e` with `1 ≤ e ≤ d ≤ 2^s`, hence `i·m / 2^(63+s) = i/d + (i/d)·e/2^(63+s)`. For `i < 2^63` the
/// second term is below `1/d`, too little to reach the next integer: the floor is that of `i/d`. And `m` fits into 64
/// bits, since `2^s < 2·d` for integers makes `2^(63+s) / d` smaller than `2^64` by more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    pub value: usize,
    multiplier: u64,
    shift: u32,
}

impl Divisor {
    pub fn new(value: usize) -> Divisor {
        debug_assert!((1..=BOUND).contains(&value));
        let shift = (value as u64).next_power_of_two().trailing_zeros();
        Divisor { value, multiplier: ((1 << (63 + shift)) / value as u128 + 1) as u64, shift }
    }

    /// `⌊i / value⌋`, for `i` below [`BOUND`].
    #[inline(always)]
    pub fn quotient(&self, i: usize) -> usize {
        let high = ((((i as u64) << 1) as u128 * self.multiplier as u128) >> 64) as u64;
        (high >> self.shift) as usize
    }

    /// `i` divided by a divisor that is a power of two is `i` shifted by this.
    pub fn shift(&self) -> Option<u32> {
        self.value.is_power_of_two().then_some(self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(d: usize, i: usize) {
        assert_eq!(Divisor::new(d).quotient(i), i / d, "{i} / {d}");
    }

    #[test]
    fn small_divisions_are_exact() {
        for d in 1..=300 {
            (0..=1500).for_each(|i| check(d, i));
        }
    }

    /// An inexact reciprocal first errs just below a multiple of the divisor, and for large multiples.
    #[test]
    fn divisions_are_exact_at_the_edges() {
        let near = |x: usize| (x.saturating_sub(3)..=x.saturating_add(3)).filter(|x| (1..=BOUND).contains(x));
        let powers = (0..usize::BITS).flat_map(|p| near(1 << p)).chain((1..60).map(|k| BOUND / k));
        let mut random = 88172645463325252_u64;
        for d in powers.chain([3, 5, 7, 10, 641, 6700417, 1 << 20, 0x1234_5678_9abc]) {
            let last = (BOUND - 1) / d;
            for multiple in [0, 1, 2, 3, last / 3, last / 2, last.saturating_sub(1), last] {
                near(multiple.saturating_mul(d)).filter(|&i| i < BOUND).for_each(|i| check(d, i));
            }
            near(BOUND - 1).filter(|&i| i < BOUND).for_each(|i| check(d, i));
            for _ in 0..50 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let i = random as usize % BOUND;
                check(d, i);
                check(d, (i / d * d).saturating_sub(1));
                check((i >> (random % 60)).max(1), random as usize / 3);
            }
        }
    }

    #[test]
    fn powers_of_two_are_shifts() {
        assert_eq!(
            [1, 2, 3, 8, BOUND].map(|d| Divisor::new(d).shift()),
            [Some(0), Some(1), None, Some(3), Some(usize::BITS - 1)]
        );
    }
}
