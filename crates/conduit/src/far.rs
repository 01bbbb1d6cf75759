//! Those who wait for locks that they do not reach ([`crate::lock`]): lines in memory of the node, so that whoever of it holds a
//! lock hands it on by himself, whatever its home does.
//!
//! A rank waits for one lock at a time, so each rank of the job has one [`Place`] on a node. Those of ranks that wait for any lock of one rank's
//! memory are linked, first come first, from that rank's [`Gate`]; a line is those of them that wait for the same lock.
//!
//! # Memory ordering
//! The gate's word is taken with acquire and given back with release; links, first and last, and the owner in a place are touched
//! by who has the gate only. A place is free or in a line, and goes from one gate to another by its own word: whoever takes
//! it out stores zero there, with release, and whoever puts it in finds zero, with acquire.
//!
//! Does not contain: locks; how somebody is told that it is his turn.

use crate::lock::{Line, Owner};
use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use crate::wait::briefly;

/// Where the lines of all locks of one rank's memory begin. All zeros: there are none.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate {
    taken: AtomicU32,
    /// Ranks, plus one.
    first: AtomicU32,
    last: AtomicU32,
    /// In a model there is a cell beside, so that an order that is missing is reported.
    #[cfg(loom)]
    right: crate::sync::Plain,
}

/// Of one rank of the job. All zeros: it waits for nothing.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Place {
    /// For which lock it waits, plus one.
    lock: AtomicU64,
    owner: AtomicU64,
    /// Who came after it, plus one.
    next: AtomicU32,
}

/// Those who wait for one lock, while nobody else touches the lines of its rank.
pub struct Waiting<'a> {
    gate: &'a Gate,
    places: &'a [Place],
    lock: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        #[cfg(loom)]
        self.gate.right.set(0);
        self.gate.taken.store(0, Release);
    }
}

impl Gate {
    /// The line of this lock, which is an even number, among the `places` of all ranks, by rank. Others have the gate for some instructions
    /// at a time, unless they have no core or have died: `None` once the job is over.
    pub fn open<'a>(&'a self, places: &'a [Place], lock: u64, is_over: impl Fn() -> bool) -> Option<Waiting<'a>> {
        if !briefly(|| self.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok(), is_over) {
            return None;
        }
        #[cfg(loom)]
        self.right.set(1);
        Some(Waiting { gate: self, places, lock: lock + 1 })
    }
}

impl Waiting<'_> {
    /// The first of the line after a place of any line, or of all, and the place before it.
    fn after(&self, mut before: Option<usize>) -> Option<(Option<usize>, usize)> {
        loop {
            let i = self.link(before).load(Relaxed).checked_sub(1)? as usize;
            if self.places[i].lock.load(Relaxed) == self.lock {
                return Some((before, i));
            }
            before = Some(i);
        }
    }

    /// The link from a place, or to the first.
    fn link(&self, from: Option<usize>) -> &AtomicU32 {
        from.map_or(&self.gate.first, |i| &self.places[i].next)
    }
}

impl Line for Waiting<'_> {
    fn first(&self) -> Option<Owner> {
        self.after(None).and_then(|(_, i)| Owner::of(self.places[i].owner.load(Relaxed)))
    }

    fn has_more(&self) -> bool {
        self.after(None).is_some_and(|(_, i)| self.after(Some(i)).is_some())
    }

    fn take_first(&mut self) {
        let Some((before, i)) = self.after(None) else { return };
        let place = &self.places[i];
        let next = place.next.load(Relaxed);
        self.link(before).store(next, Relaxed);
        if next == 0 {
            self.gate.last.store(before.map_or(0, |i| i as u32 + 1), Relaxed);
        }
        place.lock.store(0, Release);
    }

    fn add(&mut self, owner: Owner) -> bool {
        let i = owner.rank() as usize;
        let Some(place) = self.places.get(i) else { return false };
        if place.lock.compare_exchange(0, self.lock, Acquire, Relaxed).is_err() {
            return false;
        }
        place.owner.store(owner.bits(), Relaxed);
        place.next.store(0, Relaxed);
        let last = self.gate.last.load(Relaxed).checked_sub(1);
        self.link(last.map(|i| i as usize)).store(i as u32 + 1, Relaxed);
        self.gate.last.store(i as u32 + 1, Relaxed);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn owner(rank: usize) -> Owner {
        Owner::new(rank as u32, 7 * rank as u32, true)
    }

    /// Lines of several locks and two ranks beside queues, in random order.
    #[test]
    fn lines_are_queues() {
        const RANKS: usize = 20;
        let gates = [Gate::default(), Gate::default()];
        let places: Vec<Place> = (0..RANKS).map(|_| Place::default()).collect();
        let mut queues = vec![VecDeque::new(); 6];
        let (mut waits, mut seed) = ([false; RANKS], 1_u64);
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for _ in 0..20_000 {
            let (which, rank) = (random(queues.len()), random(RANKS));
            let mut line = gates[which % 2].open(&places, 64 * (which as u64 / 2), || false).unwrap();
            let queue: &mut VecDeque<usize> = &mut queues[which];
            assert!(gates[which % 2].open(&places, 0, || true).is_none(), "one at a time");
            if random(2) == 0 {
                assert_eq!(line.add(owner(rank)), !waits[rank], "a rank waits for one lock at a time");
                if !std::mem::replace(&mut waits[rank], true) {
                    queue.push_back(rank);
                }
            } else {
                line.take_first();
                if let Some(rank) = queue.pop_front() {
                    waits[rank] = false;
                }
            }
            assert_eq!(line.first(), queue.front().map(|&r| owner(r)));
            assert_eq!(line.has_more(), queue.len() > 1);
        }
    }

    #[test]
    fn ranks_that_are_none_wait_for_nothing() {
        let (gate, places) = (Gate::default(), [Place::default()]);
        let mut line = gate.open(&places, 0, || false).unwrap();
        assert!(!line.add(owner(1)) && line.first().is_none() && line.add(owner(0)));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Each takes another out while others come, also through the gates of two ranks.
    #[test]
    fn loom_one_at_a_time_touches_lines() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(|| {
            let model = Arc::new(([Gate::default(), Gate::default()], [Place::default(), Place::default()]));
            let run = |rank: u32, model: Arc<([Gate; 2], [Place; 2])>| {
                for gate in &model.0 {
                    let open = || gate.open(&model.1, 64, || false).unwrap();
                    assert!(open().add(Owner::new(rank, rank, true)));
                    // Whoever came first is taken out, until this one was.
                    while model.1[rank as usize].lock.load(Relaxed) != 0 {
                        let mut line = open();
                        assert!(line.first().is_some() || model.1[rank as usize].lock.load(Relaxed) == 0);
                        line.take_first();
                    }
                }
            };
            let other = loom::thread::spawn({
                let model = model.clone();
                move || run(1, model)
            });
            run(0, model.clone());
            other.join().unwrap();
            for gate in &model.0 {
                assert!(gate.open(&model.1, 64, || false).unwrap().first().is_none());
                assert_eq!(gate.last.load(Relaxed), 0);
            }
        });
    }
}
