//! Random access to a table over all ranks, by the rule of RandomAccess of the HPC Challenge; its score is in GUP/s, 10⁹
//! updates per second.
//!
//! # The rule
//! * The table has 2^m words, of which word `i` is `i` at first. There are 4·2^m updates.
//! * The k-th update takes the k-th number of a [stream](nth) and makes the exclusive or of it and the word of which its
//!   lowest m bits are the index. The order of updates is free; each rank has a stretch of the stream of its own.
//! * A rank looks at most [1024 numbers ahead](LOOK_AHEAD).
//! * Checked by doing all updates again, of which now none may get lost: then every word is what it was at first. At most 1 %
//!   of them may be wrong, if updates are not atomic; none, if they are.
//!
//! ```
//! use partage_kernels::gups::{self, Variant};
//! partage::test(3, |job| {
//!     let score = gups::run(job, 10, Variant::Atomic).unwrap();
//!     assert_eq!((score.updates, score.wrong), (4 << 10, 0));
//! });
//! ```

use partage::prelude::*;
use std::fmt;
use std::ops::Range;
use std::time::Instant;

/// How many numbers of the stream a rank may have before it has done the updates.
pub const LOOK_AHEAD: usize = 1024;

/// How an update is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// A get and a put: one that comes between them is lost.
    Plain,
    /// An atomic.
    Atomic,
    /// Atomics that travel together, as far as they do.
    Batched,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 3] = [Variant::Plain, Variant::Atomic, Variant::Batched];

    /// Does the rule allow wrong words?
    fn may_err(self) -> bool {
        self == Variant::Plain
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// How updates were made.
    pub variant: Variant,
    /// Words of the table.
    pub words: u64,
    /// Updates of all ranks.
    pub updates: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Words that were wrong in the end.
    pub wrong: u64,
}

impl Score {
    /// 10⁹ updates per second.
    pub fn gups(&self) -> f64 {
        self.updates as f64 / self.seconds / 1e9
    }

    /// Does the rule accept it?
    pub fn passes(&self) -> bool {
        if self.variant.may_err() { 100 * self.wrong <= self.words } else { self.wrong == 0 }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Score { variant, words, updates, seconds, wrong } = *self;
        let verdict = if self.passes() { "passes" } else { "fails" };
        write!(f, "{variant:?}: {:.5} GUP/s ({updates} updates of {words} words in {seconds:.3} s), ", self.gups())?;
        write!(f, "{wrong} words wrong: {verdict}")
    }
}

/// Collective: a run with a table of 2^`log2` words. All ranks get the number of wrong words; the time is each rank's own,
/// from one barrier to the next.
pub fn run(job: &Job, log2: u32, variant: Variant) -> partage::Result<Score> {
    assert!(log2 < 40, "a table of 2^{log2} words is not one of this program");
    let words = 1usize << log2;
    let mut table = job.array_unset::<u64>(words)?;
    table.own_each(|i, word| *word = i as u64);
    let mine = share(4 << log2, job.rank().index(), job.size());

    let start = Instant::now();
    match variant {
        Variant::Plain => by_gets_and_puts(&table, mine.clone()),
        Variant::Atomic => by_atomics(&table, mine.clone()),
        Variant::Batched => by_batches(job, &table, mine.clone()),
    }
    job.barrier();
    let seconds = start.elapsed().as_secs_f64();

    by_batches(job, &table, mine);
    let found = job.array::<u64>(1)?;
    let mut wrong = 0;
    table.own_each(|i, word| wrong += u64::from(*word != i as u64));
    found.at(0).add(wrong);
    job.barrier();
    let score = Score { variant, words: words as u64, updates: 4 << log2, seconds, wrong: found.at(0).load() };
    job.barrier();
    Ok(score)
}

fn by_gets_and_puts(table: &SharedArray<u64>, mine: Range<u64>) {
    let last = table.len() - 1;
    for x in stretch(mine) {
        let i = x as usize & last;
        table.put(i, table.get(i) ^ x);
    }
}

fn by_atomics(table: &SharedArray<u64>, mine: Range<u64>) {
    let last = table.len() - 1;
    for x in stretch(mine) {
        table.at(x as usize & last).relaxed().xor(x);
    }
}

fn by_batches(job: &Job, table: &SharedArray<u64>, mine: Range<u64>) {
    let last = table.len() - 1;
    let mut batch = job.batch();
    for from in mine.clone().step_by(LOOK_AHEAD) {
        for x in stretch(from..mine.end.min(from + LOOK_AHEAD as u64)) {
            batch.xor(table.at(x as usize & last), x);
        }
        batch.complete();
    }
}

/// The updates of a rank: as many as those of others, but for one.
fn share(updates: u64, rank: usize, ranks: usize) -> Range<u64> {
    let start = |rank: usize| (u128::from(updates) * rank as u128 / ranks as u128) as u64;
    start(rank)..start(rank + 1)
}

/// A stretch of the stream.
fn stretch(which: Range<u64>) -> impl Iterator<Item = u64> {
    let first = nth(which.start);
    which.scan(first, |x, _| {
        let this = *x;
        *x = next(this);
        Some(this)
    })
}

/// The number of the stream after `x`: shifted by one bit, and where one gets lost, exclusive or 7.
#[inline]
pub fn next(x: u64) -> u64 {
    x << 1 ^ if x >> 63 == 1 { 7 } else { 0 }
}

/// The n-th number of the stream, which begins with 1, without those before it.
///
/// Bits are coefficients: [`next`] multiplies by X in the polynomials over GF(2) modulo X⁶⁴ + X² + X + 1, and this is the n-th
/// power of X, by squaring.
///
/// ```
/// use partage_kernels::gups::{next, nth};
/// assert_eq!(nth(100), (0..100).fold(1, |x, _| next(x)));
/// ```
pub fn nth(n: u64) -> u64 {
    (0..u64::BITS).rev().fold(1, |x, bit| {
        let square = product(x, x);
        if n >> bit & 1 == 1 { next(square) } else { square }
    })
}

/// Of two polynomials.
fn product(a: u64, b: u64) -> u64 {
    // Horner's scheme, from the highest power on.
    (0..u64::BITS).rev().fold(0, |sum, bit| next(sum) ^ if b >> bit & 1 == 1 { a } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_can_be_entered_anywhere() {
        let mut x = 1;
        for n in 0..1000 {
            assert_eq!(nth(n), x);
            x = next(x);
        }
        for (a, b) in [(1 << 40, 12345), (u64::MAX / 2, 7), (3 << 33, 1 << 61)] {
            assert_eq!(product(nth(a), nth(b)), nth(a + b));
        }
        // After so many numbers the stream begins again.
        assert_eq!(nth(1_317_624_576_693_539_401), 1);
    }

    #[test]
    fn ranks_share_the_stream() {
        for (updates, ranks) in [(4, 1), (4, 3), (4, 7), (1 << 12, 5), (4 << 39, 1000)] {
            let shares: Vec<_> = (0..ranks).map(|r| share(updates, r, ranks)).collect();
            assert_eq!((shares[0].start, shares[ranks - 1].end), (0, updates));
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
            let lens = shares.iter().map(|s| s.end - s.start);
            assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
        }
        let whole: Vec<u64> = stretch(0..100).collect();
        let parts: Vec<u64> = (0..3).flat_map(|r| stretch(share(100, r, 3))).collect();
        assert_eq!((whole[..4].to_vec(), whole), (vec![1, 2, 4, 8], parts));
    }

    #[test]
    fn the_rule_allows_what_it_says() {
        let score = |variant, wrong| Score { variant, words: 1000, updates: 4000, seconds: 2.0, wrong };
        assert!(score(Variant::Plain, 10).passes() && !score(Variant::Plain, 11).passes());
        assert!(score(Variant::Atomic, 0).passes() && !score(Variant::Atomic, 1).passes());
        assert!(!score(Variant::Batched, 1).passes());
        assert_eq!(score(Variant::Plain, 0).gups(), 2e-6);
    }

    /// Updates that get lost are found: here those of the rank that makes none.
    #[test]
    fn lost_updates_are_counted() {
        partage::test(2, |job| {
            let mut table = job.array::<u64>(64).unwrap();
            table.own_each(|i, word| *word = i as u64);
            let mine = share(256, job.rank().index(), 2);
            if job.rank() == Rank(0) {
                by_atomics(&table, mine.clone());
            }
            job.barrier();
            by_batches(job, &table, mine);
            let mut wrong = 0;
            table.own_each(|i, word| wrong += usize::from(*word != i as u64));
            assert!(wrong > 0);
        });
    }

    #[test]
    fn nothing_is_lost_by_atomics() {
        for (ranks, log2) in [(1, 0), (2, 4), (3, 10), (7, 11)] {
            let scores = partage::test(ranks, |job| {
                [Variant::Atomic, Variant::Batched].map(|variant| run(job, log2, variant).unwrap())
            });
            for score in scores.into_iter().flatten() {
                assert_eq!((score.words, score.updates, score.wrong), (1 << log2, 4 << log2, 0));
                assert!(score.passes() && score.to_string().ends_with("0 words wrong: passes"));
            }
        }
    }
}
