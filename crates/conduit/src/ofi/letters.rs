//! Calls and results from other nodes, from when the network has brought them until their rank takes them.
//!
//! Whoever reads the completion queue takes what comes for all ranks of the process, but calls and results are for their
//! rank's own thread. So each rank has a queue of calls and one of results, at its desk.
//!
//! # Who may do what
//! Only the thread that has read a message pushes it, while nobody else may read (see [`super::progress`]), and rings the
//! rank after that; only the rank's own thread pops. Letters travel under the lock of their queue, which is held for one push
//! or pop. The count spares a rank the locks while there is nothing: it is raised before the ring, whose fence makes the last
//! look before a sleep see it.
//!
//! # Order
//! Calls of a rank are pushed in the order in which it made them (they are numbered, see [`super::am`]), results as they
//! come.
//!
//! # Bounds
//! A call has its [credits](crate::credits) until it has ended: those to one rank take no more memory here than their lane has.
//! Results are what the rank itself has called for.

use super::{Net, Seat};
use crate::credits::Cost;
use crate::shm::Node;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// What has come for one rank and waits for it. On a line of its own: the rank looks at it whenever it waits.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct FarLetters {
    /// Of both kinds.
    count: AtomicUsize,
    calls: Mutex<VecDeque<FarLetter>>,
    results: Mutex<VecDeque<FarLetter>>,
}

/// Whether other nodes have had their turn, of calls and of results: a rank asks for both alternately, so that one turn for
/// both would always be at the same.
#[derive(Debug, Default)]
pub(super) struct Turns([Cell<bool>; 2]);

impl Turns {
    fn take(&self, result: bool) -> bool {
        let had = &self.0[usize::from(result)];
        had.set(!had.get());
        had.get()
    }
}

/// A call or a result.
#[derive(Debug)]
pub(crate) struct FarLetter {
    pub source: usize,
    /// Of the call, also in its result.
    pub cost: Cost,
    pub kind: u16,
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
}

impl FarLetters {
    fn queue(&self, result: bool) -> &Mutex<VecDeque<FarLetter>> {
        if result { &self.results } else { &self.calls }
    }

    fn push(&self, result: bool, letter: FarLetter) {
        let mut queue = self.queue(result).lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(letter);
        self.count.fetch_add(1, Release);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn pop(&self, result: bool) -> Option<FarLetter> {
        let letter = self.queue(result).lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        self.count.fetch_sub(1, Relaxed);
        Some(letter)
    }
}

impl Net {
    /// Leaves a letter for `rank`, of this process, and wakes it.
    pub(super) fn leave_letter(&self, node: &Node, rank: usize, result: bool, letter: FarLetter) {
        self.desks[rank - self.first].letters.push(result, letter);
        node.ring(node.ranks().near(rank));
    }
}

impl Seat {
    fn letters<'n>(&self, node: &'n Node) -> &'n FarLetters {
        &node.net().expect("a seat has its network").desks[self.i].letters
    }

    /// Has anything come that this rank has not taken?
    #[inline]
    pub(crate) fn has_letters(&self, node: &Node) -> bool {
        !self.letters(node).is_empty()
    }

    /// The next call, or the next result; `others` says that there are some of this node too. Then they are taken in turn:
    /// neither may starve the other. There is no next call while too many replies wait for room in the network.
    #[inline]
    pub(crate) fn next_letter(&self, node: &Node, result: bool, others: bool) -> Option<FarLetter> {
        let letters = self.letters(node);
        if letters.is_empty() || !result && node.net().is_some_and(Net::is_choked) {
            return None;
        }
        if others && !self.turns.take(result) { None } else { letters.pop(result) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_wait_apart_each_in_order() {
        let letters = FarLetters::default();
        let letter = |kind| FarLetter { source: 7, cost: Cost::LEAST, kind, args: vec![], payload: vec![] };
        assert!(letters.is_empty() && letters.pop(false).is_none());
        for kind in 0..6 {
            letters.push(kind % 2 == 1, letter(kind));
        }
        let take = |result| letters.pop(result).map(|letter| letter.kind);
        assert_eq!(
            [take(true), take(false), take(true), take(true), take(true)],
            [Some(1), Some(0), Some(3), Some(5), None]
        );
        assert!(!letters.is_empty());
        assert_eq!([take(false), take(false), take(false)], [Some(2), Some(4), None]);
        assert!(letters.is_empty());
    }

    /// As ranks look: for results until there are none, then for one call.
    #[test]
    fn every_other_call_is_from_elsewhere() {
        let turns = Turns::default();
        let taken: Vec<bool> = (0..4).map(|_| (turns.take(true), turns.take(false)).1).collect();
        assert_eq!(taken, [true, false, true, false]);
    }
}
