//! Collectives of two ranks with words as blocks, by hand: the flows that the library takes, over the same arrays.
//!
//! Under All/All the last to arrive does everything: of two ranks each knows the whole. Under My/My each word travels in the line of its number, through rings whose
//! reader says now and then how far it is.
//!
//! Memory ordering: a number or count is stored by a release after what it says is there, and loaded by an acquire before
//! that is used. Arrivals do both.

use super::super::floor::{Everywhere, Line, raw_part};
use super::cells::{Mode, Operation};
use super::stage::Sample;
use partage::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Letters that may be under way.
const SLOTS: u64 = 16;

/// What a rank is told by the other.
#[repr(C)]
struct Told {
    letters: [Line<[AtomicU64; 2]>; 2 * SLOTS as usize],
    taken: Line<AtomicU64>,
}

/// What both have.
#[repr(C)]
struct Hall {
    arrived: Line<AtomicU64>,
    _apart: Line<u64>,
    released: Line<AtomicU64>,
}

/// One of the two ranks.
pub struct Hand<'j> {
    me: usize,
    /// What the other tells this one, and what this one tells the other.
    mine: &'j Told,
    other: &'j Told,
    hall: &'j Hall,
    letters: [u64; 2],
    room: u64,
    arrivals: u64,
    released: u64,
}

/// Where both ranks' parts of the arrays are: a block, and a block for each.
pub struct Words {
    src: [*mut u64; 2],
    dst: [*mut u64; 2],
    wide_src: [*mut u64; 2],
    wide_dst: [*mut u64; 2],
}

impl Words {
    /// Collective: of arrays that outlive it, with one word, and two, on each of two ranks.
    pub fn new(job: &Job, small: [&mut SharedArray<u64>; 2], wide: [&mut SharedArray<u64>; 2]) -> Words {
        let parts = |array: &mut SharedArray<u64>| [0, 1].map(|r| raw_part(array, Rank(r)));
        assert!(job.size() == 2 && small.iter().all(|a| a.len() == 2) && wide.iter().all(|a| a.len() == 4));
        let ([src, dst], [wide_src, wide_dst]) = (small.map(parts), wide.map(parts));
        Words { src, dst, wide_src, wide_dst }
    }
}

/// A word of an array.
#[inline(always)]
fn word<'a>(parts: &[*mut u64; 2], rank: usize, i: usize) -> &'a AtomicU64 {
    assert!(rank < 2 && i < 2);
    // SAFETY: an aligned word of an array that is there (`Words::new` has seen the lengths, and nobody asks a small one for
    // its second word), outside of phases; who uses it at the same time uses it as an atomic or is ordered by the protocol.
    unsafe { AtomicU64::from_ptr(parts[rank].add(i)) }
}

#[inline(always)]
fn copy(to: &AtomicU64, from: &AtomicU64) {
    to.store(from.load(Relaxed), Relaxed);
}

impl<'j> Hand<'j> {
    /// Collective.
    pub fn new(job: &'j Job) -> partage::Result<Hand<'j>> {
        let (told, halls) = (Everywhere::<Told>::new(job)?, Everywhere::<Hall>::new(job)?);
        // SAFETY: atomics, and words that nobody uses.
        let (mine, other, hall) = unsafe { (told.on(job.rank()), told.on(job.neighbor(1)), halls.on(Rank(0))) };
        let me = job.rank().index();
        Ok(Hand { me, mine, other, hall, letters: [0; 2], room: SLOTS, arrivals: 0, released: 0 })
    }

    /// One call.
    #[inline(always)]
    pub fn call(&mut self, w: &Words, s: &Sample, root: usize) {
        use Operation::*;
        let (me, other) = (self.me, 1 - self.me);
        match (s.mode, s.operation) {
            (Mode::AllAll, operation) => self.last(|| whole(w, operation, root)),
            (_, Broadcast) => self.down(root, word(&w.src, me, 0), word(&w.src, me, 0)),
            (_, Scatter) => {
                if me == root {
                    copy(word(&w.dst, me, 0), word(&w.wide_src, me, me));
                }
                self.down(root, word(&w.wide_src, me, other), word(&w.dst, me, 0));
            }
            (_, Gather) => {
                if me == root {
                    copy(word(&w.wide_dst, me, me), word(&w.src, me, 0));
                }
                self.down(1 - root, word(&w.src, me, 0), word(&w.wide_dst, me, other));
            }
            (_, GatherAll) => {
                self.send(word(&w.src, me, 0));
                copy(word(&w.wide_dst, me, me), word(&w.src, me, 0));
                self.take(word(&w.wide_dst, me, other));
            }
            (_, Exchange) => {
                self.send(word(&w.wide_src, me, other));
                copy(word(&w.wide_dst, me, me), word(&w.wide_src, me, me));
                self.take(word(&w.wide_dst, me, other));
            }
            (_, Permute) => {
                self.send(word(&w.src, me, 0));
                self.take(word(&w.dst, me, 0));
            }
            (_, Reduce | AllReduce | Prefix | Barrier) => unreachable!("by hand there are movers only"),
        }
    }

    /// The last to arrive does it.
    #[inline(always)]
    fn last(&mut self, what: impl FnOnce()) {
        self.arrivals += 2;
        self.released += 1;
        if self.hall.arrived.0.fetch_add(1, AcqRel) + 1 == self.arrivals {
            what();
            self.hall.released.0.store(self.released, Release);
        } else {
            while self.hall.released.0.load(Acquire) < self.released {}
        }
    }

    /// A word from one to the other.
    #[inline(always)]
    fn down(&mut self, from: usize, src: &AtomicU64, dst: &AtomicU64) {
        if self.me == from { self.send(src) } else { self.take(dst) }
    }

    #[inline(always)]
    fn send(&mut self, src: &AtomicU64) {
        self.letters[0] += 1;
        let number = self.letters[0];
        while self.room < number {
            self.room = self.mine.taken.0.load(Acquire) + SLOTS;
        }
        let letter = &self.other.letters[2 * (number % SLOTS) as usize].0;
        letter[1].store(src.load(Relaxed), Relaxed);
        letter[0].store(number, Release);
    }

    #[inline(always)]
    fn take(&mut self, dst: &AtomicU64) {
        self.letters[1] += 1;
        let number = self.letters[1];
        let letter = &self.mine.letters[2 * (number % SLOTS) as usize].0;
        while letter[0].load(Acquire) != number {}
        dst.store(letter[1].load(Relaxed), Relaxed);
        if number.is_multiple_of(SLOTS / 2) {
            self.other.taken.0.store(number, Release);
        }
    }
}

/// The whole operation, by one rank.
#[inline(always)]
fn whole(w: &Words, operation: Operation, root: usize) {
    match operation {
        Operation::Broadcast => copy(word(&w.src, 1 - root, 0), word(&w.src, root, 0)),
        Operation::Scatter => (0..2).for_each(|r| copy(word(&w.dst, r, 0), word(&w.wide_src, root, r))),
        Operation::Gather => (0..2).for_each(|r| copy(word(&w.wide_dst, root, r), word(&w.src, r, 0))),
        Operation::GatherAll => {
            (0..4).for_each(|i| copy(word(&w.wide_dst, i / 2, i % 2), word(&w.src, i % 2, 0)));
        }
        Operation::Exchange => {
            (0..4).for_each(|i| copy(word(&w.wide_dst, i / 2, i % 2), word(&w.wide_src, i % 2, i / 2)));
        }
        Operation::Reduce | Operation::AllReduce | Operation::Prefix | Operation::Barrier => {
            unreachable!("by hand there are movers only")
        }
        Operation::Permute => (0..2).for_each(|r| copy(word(&w.dst, 1 - r, 0), word(&w.src, r, 0))),
    }
}
