//! Trees of ranks: a broadcast and an all-reduce of doubles, by put + strict flag and by `put_signal`.
//!
//! # The trees
//! * [`Broadcast`] from rank 0, by a tree of a *radix* r: with rank numbers written to the base r, a rank's parent has a zero
//!   for its last digit that is none. Radix 2 is the binomial tree, of ⌈log₂ P⌉ rounds; one of P or more is flat: rank 0 sends
//!   to all. A rank sends to the largest subtrees first.
//! * [`AllReduce`], a sum, by recursive doubling: in round s ranks exchange with the one whose number differs in bit s, and
//!   both add. Where the number of ranks is no power of two, those beyond the largest one in it *fold*: each first gives its
//!   values to a rank below and in the end gets the sum: ⌊log₂ P⌋ rounds, or two more. Two partners add the same two
//!   numbers, so all ranks have the same sum to the last bit, and the same in every run.
//!
//! # When values may be overwritten
//! [Lanes](crate::lanes) have room for two rounds. In an all-reduce that is enough: partners give to each other in every
//! sum, and so do a rank that folds and the one it folds to. In a broadcast nobody answers: before every second one, all
//! ranks must have met since the one before, by a barrier or a sum.
//!
//! ```
//! use partage_kernels::trees::{AllReduce, Broadcast, Way};
//! partage::test(5, |job| {
//!     let (mut tree, mut sums) = (Broadcast::new(job, 2, 3).unwrap(), AllReduce::new(job, 3).unwrap());
//!     for way in Way::ALL {
//!         let mut values = [1.0, 2.0, job.rank().index() as f64];
//!         sums.sum(way, &mut values);
//!         assert_eq!(values, [5.0, 10.0, 10.0]);
//!         values = [job.rank().index() as f64; 3];
//!         tree.send(way, &mut values);
//!         assert_eq!(values, [0.0; 3]);
//!     }
//!     tree.free();
//!     sums.free();
//! });
//! ```

use crate::lanes::{Inlet, Lanes, Outlet};
use partage::prelude::*;
use std::fmt;

/// How a rank knows that values have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A put that has arrived, then a strict store to a flag, which the other loads strictly.
    Flag,
    /// A put that signals a semaphore, which the other waits for.
    Signal,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 2] = [Way::Flag, Way::Signal];

    #[inline]
    fn give(self, job: &Job, k: u64, outlet: &Outlet, values: &[f64]) {
        match self {
            Way::Flag => {
                outlet.values(k).put_slice(job, values);
                outlet.flag(k).at(job).strict().store(k);
            }
            Way::Signal => outlet.values(k).put_signal(job, values, outlet.signal(k), 1),
        }
    }

    #[inline]
    fn take(self, job: &Job, k: u64, inlet: &Inlet, values: &mut [f64]) {
        match self {
            Way::Flag => inlet.wait_for_flag(job, k),
            Way::Signal => inlet.semaphore(k).wait(),
        }
        inlet.values(k).get_slice(job, values);
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Flag => "put + strict flag",
            Way::Signal => "put_signal",
        })
    }
}

/// A tree from rank 0 to all.
#[derive(Debug)]
pub struct Broadcast<'j> {
    job: &'j Job,
    lanes: Lanes,
    most: usize,
    rounds: u64,
}

impl<'j> Broadcast<'j> {
    /// Collective: a tree of this radix, for at most so many doubles.
    #[track_caller]
    pub fn new(job: &'j Job, radix: usize, most: usize) -> partage::Result<Broadcast<'j>> {
        assert!(radix >= 2, "{}: a tree of radix {radix}; the smallest is 2", job.rank());
        let (parent, children) = family(job.rank().index(), job.size(), radix);
        let room = |ranks: Vec<usize>| ranks.into_iter().map(|rank| (rank, most)).collect::<Vec<_>>();
        let lanes = Lanes::new(job, &room(Vec::from_iter(parent)), &room(children))?;
        Ok(Broadcast { job, lanes, most, rounds: 0 })
    }

    /// All ranks come here, the same way and with as many values: all get those of rank 0. They have met since the one
    /// before the last.
    #[track_caller]
    pub fn send(&mut self, way: Way, values: &mut [f64]) {
        check(self.job, self.most, values);
        self.rounds += 1;
        if let Some(parent) = self.lanes.inlets.first() {
            way.take(self.job, self.rounds, parent, values);
        }
        for child in &self.lanes.outlets {
            way.give(self.job, self.rounds, child, values);
        }
    }

    /// Collective: frees what others put into.
    pub fn free(self) {
        self.lanes.free(self.job);
    }
}

/// Who sends to a rank, and to whom it sends, in order.
fn family(rank: usize, ranks: usize, radix: usize) -> (Option<usize>, Vec<usize>) {
    let (mut step, mut children) = (1, vec![]);
    // Of the digits before my last one that is not zero, or of all, each gives children.
    while (rank / step).is_multiple_of(radix) && step < ranks {
        children.extend((1..radix).map(|digit| rank + digit * step).take_while(|&child| child < ranks));
        step *= radix;
    }
    children.reverse();
    let parent = (rank > 0).then(|| rank - rank / step % radix * step);
    (parent, children)
}

/// Sums over all ranks.
#[derive(Debug)]
pub struct AllReduce<'j> {
    job: &'j Job,
    steps: Vec<Step>,
    /// In and out, one for each step, though some are used by two.
    lanes: Lanes,
    come: Vec<f64>,
    rounds: u64,
}

impl<'j> AllReduce<'j> {
    /// Collective: for sums of at most so many doubles.
    pub fn new(job: &'j Job, most: usize) -> partage::Result<AllReduce<'j>> {
        let steps = steps(job.rank().index(), job.size());
        let mut partners: Vec<(usize, usize)> = steps.iter().map(|step| (step.partner, most)).collect();
        // Who folds gives first and takes last, both with the same.
        partners.sort_unstable();
        partners.dedup();
        let lanes = Lanes::new(job, &partners, &partners)?;
        let place = |step: Step| Step { partner: partners.partition_point(|p| p.0 < step.partner), ..step };
        let steps = steps.into_iter().map(place).collect();
        Ok(AllReduce { job, steps, lanes, come: vec![0.0; most], rounds: 0 })
    }

    /// All ranks come here, the same way and with as many values, which become their sums.
    #[track_caller]
    pub fn sum(&mut self, way: Way, values: &mut [f64]) {
        let AllReduce { job, steps, lanes, come, rounds } = self;
        check(job, come.len(), values);
        *rounds += 1;
        let come = &mut come[..values.len()];
        for step in steps {
            let (outlet, inlet) = (&lanes.outlets[step.partner], &lanes.inlets[step.partner]);
            if step.gives {
                way.give(job, *rounds, outlet, values);
            }
            match step.takes {
                Takes::Nothing => {}
                Takes::Sum => way.take(job, *rounds, inlet, values),
                Takes::Addend => {
                    way.take(job, *rounds, inlet, come);
                    values.iter_mut().zip(&*come).for_each(|(value, come)| *value += come);
                }
            }
        }
    }

    /// Collective: frees what others put into.
    pub fn free(self) {
        self.lanes.free(self.job);
    }
}

/// What a rank does in a round of an all-reduce, with whom: gives its values, then takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    partner: usize,
    gives: bool,
    takes: Takes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// What is to be added.
    Addend,
    /// All of the sum.
    Sum,
}

fn steps(rank: usize, ranks: usize) -> Vec<Step> {
    // The largest power of two; the ranks after those fold.
    let core = 1 << ranks.ilog2();
    let step = |partner, gives, takes| Step { partner, gives, takes };
    if rank >= core {
        return vec![step(rank - core, true, Takes::Nothing), step(rank - core, false, Takes::Sum)];
    }
    let folds = (rank + core < ranks).then_some(rank + core);
    let mut steps = Vec::from_iter(folds.map(|partner| step(partner, false, Takes::Addend)));
    steps.extend((0..core.ilog2()).map(|s| step(rank ^ 1 << s, true, Takes::Addend)));
    steps.extend(folds.map(|partner| step(partner, true, Takes::Nothing)));
    steps
}

#[track_caller]
fn check(job: &Job, most: usize, values: &[f64]) {
    let n = values.len();
    assert!(n <= most, "{}: {n} doubles, where there is room for {most}", job.rank());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_agree() {
        for (ranks, radix) in (1..40).flat_map(|ranks| [2, 3, 4, 8, 64].map(|radix| (ranks, radix))) {
            let families: Vec<_> = (0..ranks).map(|rank| family(rank, ranks, radix)).collect();
            assert_eq!(families[0].0, None);
            for rank in 1..ranks {
                let parent = families[rank].0.unwrap();
                assert!(parent < rank && families[parent].1.contains(&rank), "{rank} of {ranks}, radix {radix}");
            }
            let children = families.iter().map(|family| family.1.len()).sum::<usize>();
            assert_eq!(children, ranks - 1, "each has one parent");
        }
        assert_eq!(family(0, 8, 2), (None, vec![4, 2, 1]));
        assert_eq!(family(4, 7, 2), (Some(0), vec![6, 5]));
        assert_eq!(family(0, 4, 4), (None, vec![3, 2, 1]));
    }

    #[test]
    fn steps_agree() {
        for ranks in 1..40 {
            let all: Vec<_> = (0..ranks).map(|rank| steps(rank, ranks)).collect();
            for (rank, steps) in all.iter().enumerate() {
                for partner in steps.iter().map(|step| step.partner) {
                    let gifts = |of: &[Step], to| of.iter().filter(|s| s.partner == to && s.gives).count();
                    let takes = |of: &[Step], from| {
                        of.iter().filter(|s| s.partner == from && s.takes != Takes::Nothing).count()
                    };
                    assert_eq!((gifts(steps, partner), takes(&all[partner], rank)), (1, 1), "{rank} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn sums_are_the_same_everywhere() {
        for ranks in [1, 2, 3, 4, 5, 7] {
            let sums = partage::test(ranks, |job| {
                let mut sums = AllReduce::new(job, 5).unwrap();
                let bits = Way::ALL.map(|way| {
                    (1..=5)
                        .map(|n| {
                            let mut values: Vec<f64> =
                                (0..n).map(|i| 0.1 * (job.rank().index() * n + i) as f64).collect();
                            sums.sum(way, &mut values);
                            let wanted = (0..n).map(|i| (0..ranks).map(|r| 0.1 * (r * n + i) as f64).sum::<f64>());
                            assert!(values.iter().zip(wanted).all(|(sum, wanted)| (sum - wanted).abs() < 1e-12));
                            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                        })
                        .collect::<Vec<_>>()
                });
                sums.free();
                assert!(bits.iter().all(|some| *some == bits[0]));
                bits[0].clone()
            });
            assert!(sums.iter().all(|some| *some == sums[0]));
        }
    }

    #[test]
    fn all_get_what_rank_0_sends() {
        for (ranks, radix) in [(1, 2), (3, 2), (5, 2), (5, 3), (7, 7)] {
            partage::test(ranks, |job| {
                let mut tree = Broadcast::new(job, radix, 4).unwrap();
                for (k, way) in (1..6).flat_map(|k| Way::ALL.map(|way| (k, way))) {
                    job.barrier();
                    let mut values = [if job.rank() == Rank(0) { f64::from(k) } else { 0.0 }; 4];
                    tree.send(way, &mut values[..(k as usize).min(4)]);
                    assert!(values[..(k as usize).min(4)].iter().all(|&v| v == f64::from(k)));
                }
                tree.free();
            });
        }
    }

    #[test]
    #[should_panic(expected = "rank 0: 3 doubles, where there is room for 2")]
    fn too_many_values_are_refused() {
        partage::test(1, |job| AllReduce::new(job, 2).unwrap().sum(Way::Flag, &mut [0.0; 3]));
    }
}
