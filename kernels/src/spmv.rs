//! A sparse matrix times a vector, in parallel, with five ways to know that a peer's values have come.
//!
//! # The rule
//! * Matrix, vector and result are cut into [blocks of rows](crate::stencil). A rank packs the values that a peer needs and
//!   puts them into the peer's memory; multiplies its diagonal block, which needs nobody; and then, peer after peer,
//!   multiplies the block of the values that have come. [`Sync`] says how it knows that they have.
//! * Time is [split](crate::clock): computation, and *synchronous communication*, which is sending, waiting and barriers.
//! * Checked with [whole numbers](value), of which every sum is exact: each value of the result is what one rank alone gets,
//!   to the last bit, in whatever order it was added up.
//!
//! # When values may be overwritten
//! The ways share [lanes](crate::lanes), which have room for two rounds. In a round, a rank reads what has come before it
//! returns. With a barrier, nobody passes that of round `k + 1` before all have returned from round `k`, and so nobody puts
//! round `k + 2` over it. Without one, peers are each other's: who sends to me in round `k + 1` has returned from round `k`, and
//! I put round `k + 2` to it only after I have waited for that. Rounds may go by different ways.
//!
//! ```
//! use partage_kernels::clock::Clock;
//! use partage_kernels::spmv::{Spmv, Sync};
//! use partage_kernels::stencil::Grid;
//! partage::test(3, |job| {
//!     let mut a = Spmv::new(job, Grid::square(10)).unwrap();
//!     let (x, mut y) = (a.vector(1), vec![0.0; a.rows().len()]);
//!     for sync in Sync::ALL {
//!         a.multiply(sync, &x, &mut y, &mut Clock::start());
//!         assert_eq!(a.wrong(1, &y), 0);
//!     }
//!     a.free();
//! });
//! ```

use crate::clock::{Clock, Doing};
use crate::lanes::{Inlet, Lanes, Outlet};
use crate::stencil::{Grid, Part};
use partage::prelude::*;
use std::fmt;
use std::ops::Range;

/// How a rank knows that a peer's values have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// All puts have arrived before a barrier.
    Barrier,
    /// The same, with puts under way during the computation.
    StartedBarrier,
    /// A put that has arrived, then a strict store to a flag.
    Flag,
    /// The same, with puts under way during the computation, and flags, which release, during the rest of it.
    StartedFlag,
    /// A put that signals a semaphore when it has arrived.
    Signal,
}

impl Sync {
    /// All of them.
    pub const ALL: [Sync; 5] = [Sync::Barrier, Sync::StartedBarrier, Sync::Flag, Sync::StartedFlag, Sync::Signal];

    /// How many lines of this file only this way needs, without those that take the time.
    pub fn lines(self) -> usize {
        lines(include_str!("spmv.rs"), &format!("{self:?}"))
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Sync::Barrier => "barrier",
            Sync::StartedBarrier => "non-blocking put + barrier",
            Sync::Flag => "put + strict flag",
            Sync::StartedFlag => "non-blocking put + flag (release)",
            Sync::Signal => "put_signal",
        })
    }
}

/// How many lines all ways have in common: packing, and the product of a block.
pub fn common_lines() -> usize {
    [include_str!("spmv.rs"), include_str!("stencil.rs")].map(|text| lines(text, "common")).iter().sum()
}

/// Lines of code between marks of this name.
fn lines(text: &str, name: &str) -> usize {
    let (mut inside, mut count) = (false, 0);
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("// lines: ") {
            Some(mark) => inside = mark == name,
            None => {
                count += usize::from(inside && !line.is_empty() && !line.starts_with("//") && !line.contains(".lap("))
            }
        }
    }
    count
}

/// A rank's part of a matrix, and its lanes from and to its peers.
#[derive(Debug)]
pub struct Spmv<'j> {
    job: &'j Job,
    grid: Grid,
    part: Part,
    inlets: Vec<Inlet>,
    outlets: Vec<Outlet>,
    /// What goes to each peer, and what has come from each.
    packed: Vec<Vec<f64>>,
    come: Vec<Vec<f64>>,
    /// Rounds so far.
    rounds: u64,
}

impl<'j> Spmv<'j> {
    /// Collective: the matrix of a grid.
    pub fn new(job: &'j Job, grid: Grid) -> partage::Result<Spmv<'j>> {
        let part = Part::of(grid, job.rank().index(), job.size());
        let from: Vec<_> = part.incoming.iter().map(|incoming| (incoming.from, incoming.columns.len())).collect();
        let to: Vec<_> = part.outgoing.iter().map(|outgoing| (outgoing.to, outgoing.rows.len())).collect();
        let Lanes { inlets, outlets } = Lanes::new(job, &from, &to)?;
        let room = |of: &[(usize, usize)]| of.iter().map(|&(_, len)| vec![0.0; len]).collect();
        let (packed, come) = (room(&to), room(&from));
        Ok(Spmv { job, grid, part, inlets, outlets, packed, come, rounds: 0 })
    }

    /// Collective: frees what peers put into.
    pub fn free(self) {
        Lanes { inlets: self.inlets, outlets: self.outlets }.free(self.job);
    }

    /// The matrix.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The rows of this rank.
    pub fn rows(&self) -> Range<usize> {
        self.part.rows.clone()
    }

    /// This rank's part of a vector of [whole numbers](value).
    pub fn vector(&self, which: u64) -> Vec<f64> {
        self.rows().map(|i| value(i, which)).collect()
    }

    /// This rank's part of the product with that vector, as one rank alone gets it.
    pub fn product(&self, which: u64) -> Vec<f64> {
        self.rows().map(|i| self.grid.product(i, |j| value(j, which))).collect()
    }

    /// How many rows of `y` are not the product with that vector.
    pub fn wrong(&self, which: u64, y: &[f64]) -> usize {
        y.iter().zip(self.product(which)).filter(|&(&y, right)| y != right).count()
    }

    /// All ranks come here, the same way: `y` becomes the product with `x`, of which each has its part.
    pub fn multiply(&mut self, sync: Sync, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        self.rounds += 1;
        match sync {
            Sync::Barrier => self.by_barrier(self.rounds, x, y, clock),
            Sync::StartedBarrier => self.by_started_barrier(self.rounds, x, y, clock),
            Sync::Flag => self.by_flag(self.rounds, x, y, clock),
            Sync::StartedFlag => self.by_started_flag(self.rounds, x, y, clock),
            Sync::Signal => self.by_signal(self.rounds, x, y, clock),
        }
    }

    // lines: Barrier
    fn by_barrier(&mut self, k: u64, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        let Spmv { job, part, inlets, outlets, packed, come, .. } = self;
        for ((outgoing, outlet), packed) in part.outgoing.iter().zip(outlets).zip(packed) {
            pack(x, &outgoing.rows, packed);
            outlet.values(k).put_slice(job, packed);
        }
        clock.lap(Doing::Send);
        part.diagonal.multiply(x, y);
        clock.lap(Doing::Compute);
        job.barrier();
        clock.lap(Doing::Barrier);
        for ((incoming, inlet), come) in part.incoming.iter().zip(inlets).zip(come) {
            inlet.values(k).get_slice(job, come);
            clock.lap(Doing::Wait);
            incoming.block.add(come, y);
            clock.lap(Doing::Compute);
        }
    }
    // lines: end

    // lines: StartedBarrier
    fn by_started_barrier(&mut self, k: u64, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        let Spmv { job, part, inlets, outlets, packed, come, .. } = self;
        job.scope(|s| {
            for ((outgoing, outlet), packed) in part.outgoing.iter().zip(outlets).zip(packed) {
                pack(x, &outgoing.rows, packed);
                drop(s.put_ptr(outlet.values(k), packed));
            }
            clock.lap(Doing::Send);
            part.diagonal.multiply(x, y);
            clock.lap(Doing::Compute);
            s.wait_all();
            clock.lap(Doing::Send);
        });
        job.barrier();
        clock.lap(Doing::Barrier);
        for ((incoming, inlet), come) in part.incoming.iter().zip(inlets).zip(come) {
            inlet.values(k).get_slice(job, come);
            clock.lap(Doing::Wait);
            incoming.block.add(come, y);
            clock.lap(Doing::Compute);
        }
    }
    // lines: end

    // lines: Flag
    fn by_flag(&mut self, k: u64, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        let Spmv { job, part, inlets, outlets, packed, come, .. } = self;
        for ((outgoing, outlet), packed) in part.outgoing.iter().zip(outlets).zip(packed) {
            pack(x, &outgoing.rows, packed);
            outlet.values(k).put_slice(job, packed);
            outlet.flag(k).at(job).strict().store(k);
        }
        clock.lap(Doing::Send);
        part.diagonal.multiply(x, y);
        clock.lap(Doing::Compute);
        for ((incoming, inlet), come) in part.incoming.iter().zip(inlets).zip(come) {
            inlet.wait_for_flag(job, k);
            inlet.values(k).get_slice(job, come);
            clock.lap(Doing::Wait);
            incoming.block.add(come, y);
            clock.lap(Doing::Compute);
        }
    }
    // lines: end

    // lines: StartedFlag
    fn by_started_flag(&mut self, k: u64, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        let Spmv { job, part, inlets, outlets, packed, come, .. } = self;
        job.scope(|s| {
            for ((outgoing, outlet), packed) in part.outgoing.iter().zip(&*outlets).zip(packed) {
                pack(x, &outgoing.rows, packed);
                drop(s.put_ptr(outlet.values(k), packed));
            }
            clock.lap(Doing::Send);
            part.diagonal.multiply(x, y);
            clock.lap(Doing::Compute);
            // All have arrived, before any flag is started: a strict one would wait for those before it.
            s.wait_all();
            for outlet in &*outlets {
                drop(outlet.flag(k).at(job).start().store(k));
            }
            clock.lap(Doing::Send);
            for ((incoming, inlet), come) in part.incoming.iter().zip(inlets).zip(come) {
                inlet.wait_for_flag(job, k);
                inlet.values(k).get_slice(job, come);
                clock.lap(Doing::Wait);
                incoming.block.add(come, y);
                clock.lap(Doing::Compute);
            }
        });
        clock.lap(Doing::Send);
    }
    // lines: end

    // lines: Signal
    fn by_signal(&mut self, k: u64, x: &[f64], y: &mut [f64], clock: &mut Clock) {
        let Spmv { job, part, inlets, outlets, packed, come, .. } = self;
        job.scope(|s| {
            for ((outgoing, outlet), packed) in part.outgoing.iter().zip(outlets).zip(packed) {
                pack(x, &outgoing.rows, packed);
                drop(s.put_signal_ptr(outlet.values(k), packed, outlet.signal(k), 1));
            }
            clock.lap(Doing::Send);
            part.diagonal.multiply(x, y);
            clock.lap(Doing::Compute);
            for ((incoming, inlet), come) in part.incoming.iter().zip(inlets).zip(come) {
                inlet.semaphore(k).wait();
                inlet.values(k).get_slice(job, come);
                clock.lap(Doing::Wait);
                incoming.block.add(come, y);
                clock.lap(Doing::Compute);
            }
        });
        clock.lap(Doing::Send);
    }
    // lines: end
}

// lines: common
/// The values of these rows, one after the other.
fn pack(x: &[f64], rows: &[u32], packed: &mut [f64]) {
    rows.iter().zip(packed).for_each(|(&i, packed)| *packed = x[i as usize]);
}
// lines: end

/// Element `i` of a vector of whole numbers below 1000: of each number another.
pub fn value(i: usize, which: u64) -> f64 {
    let mixed = (i as u64 ^ which << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32).rem_euclid(1000) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRIDS: [Grid; 4] =
        [Grid { x: 9, y: 7, z: 1 }, Grid { x: 2, y: 1, z: 1 }, Grid { x: 4, y: 5, z: 3 }, Grid { x: 3, y: 3, z: 3 }];

    /// All ways, in turns: what one leaves in a lane does not mislead the next.
    #[test]
    fn products_are_those_of_one_rank() {
        for ranks in [1, 2, 3, 5] {
            partage::test(ranks, |job| {
                for grid in GRIDS {
                    let mut a = Spmv::new(job, grid).unwrap();
                    let mut y = vec![f64::NAN; a.rows().len()];
                    for (which, sync) in Sync::ALL.into_iter().cycle().take(15).enumerate() {
                        let x = a.vector(which as u64);
                        a.multiply(sync, &x, &mut y, &mut Clock::start());
                        assert_eq!(a.wrong(which as u64, &y), 0, "{}: {grid}, {sync}, round {which}", job.rank());
                    }
                    a.free();
                }
            });
        }
    }

    /// Values of another vector than the one that is checked, in the rows that have them.
    #[test]
    fn wrong_values_are_found() {
        partage::test(2, |job| {
            let mut a = Spmv::new(job, Grid::square(6)).unwrap();
            let (x, mut y) = (a.vector(job.rank().0.into()), vec![0.0; a.rows().len()]);
            a.multiply(Sync::Barrier, &x, &mut y, &mut Clock::start());
            assert_eq!(a.wrong(job.rank().0.into(), &y), 6);
            a.free();
        });
    }

    #[test]
    fn vectors_differ() {
        for which in 0..100 {
            assert!((0..1000).map(|i| value(i, which)).all(|v| v.fract() == 0.0 && (0.0..1000.0).contains(&v)));
            let alike = |other| (0..1000).filter(|&i| value(i, which) == value(i, other)).count();
            assert!(alike(which + 1) < 20 && alike(which + 2) < 20);
        }
    }

    #[test]
    fn lines_are_counted_between_marks() {
        let text =
            "a\n// lines: b\nb(\n\n  // why\n  clock.lap(B);\n)\n// lines: end\nc\n// lines: b\nb\n// lines: end";
        assert_eq!((lines(text, "b"), lines(text, "c")), (3, 0));
        assert!(Sync::ALL.iter().all(|sync| sync.lines() > 10) && common_lines() > 10);
        assert!(Sync::StartedFlag.lines() > Sync::Flag.lines());
    }
}
