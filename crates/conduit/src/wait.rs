//! Waiting: one policy for the whole system. Nothing else in the code base spins, yields or parks.
//!
//! # Policy
//! * [`Cores::Own`], every rank has a core: spin for 50 µs, never yield, park.
//! * [`Cores::Shared`], ranks share cores: yield for 50 µs, park. A yield that lasts longer than half a millisecond means
//!   that somebody who does not yield back computes on this core: park at once for the next 50 ms, since a sleeper that
//!   wakes preempts such a neighbour and a yielder does not.
//! * Work served during a wait ([`Step::Busy`]) restarts it, so that a rank that serves others does not fall asleep
//!   in the middle of their traffic.
//! * Every park is timed (a tenth of a second) and reads the job's abort word when it ends.
//!
//! # Parking: one bell per rank
//! The sleeper writes 1 to its bell, fences, looks at its condition once more and sleeps in the kernel while the bell
//! is 1. Whoever makes a condition true publishes it, fences, and looks at the bell ([`Bell::ring`]); only if it says
//! *parked* does it enter the kernel. With a full fence on both sides at least one of the two sees the other's store
//! (store buffering), so either the sleeper does not sleep or the waker wakes it. Without either fence wakes are lost;
//! an ordinary stress test does not notice, the loom models of the barrier do. The timed park is only a belt.
//!
//! # Memory ordering
//! The bell carries no data: its accesses are relaxed and the two full fences order them. What the condition guards is
//! ordered by the condition's own release store and acquire load.
//!
//! # Hang reports
//! A wait that reaches its park publishes where it waits in the rank's [`Record`](crate::record::Record), and takes it
//! back when it ends. A wait that ends earlier writes nothing.

use crate::record::{Record, Site};
use crate::sync::{AtomicU32, Futex, Ordering::*, full_fence, now_ns};
use std::cell::Cell;

/// How long a rank spins or yields before it parks.
const PATIENCE_NS: u64 = 50_000;
/// A single yield that takes longer met a foreign load.
const FOREIGN_NS: u64 = 500_000;
/// How long a rank that met a foreign load does not yield.
const FOREIGN_HOLD_NS: u64 = 50_000_000;
/// The longest time that a rank sleeps without looking at its condition and at the abort word.
const PARK_NS: u64 = 100_000_000;
/// Looks at the condition between two looks at the clock.
const ROUND: u32 = 64;

/// Do the ranks of this node have a core each?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// Every rank has a core of its own.
    Own,
    /// There are more ranks than cores.
    Shared,
}

/// What one look at a condition found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The condition holds.
    Done,
    /// It does not hold yet, but this look served somebody.
    Busy,
    /// Nothing happened.
    Idle,
}

impl Step {
    /// `Done` or `Idle`.
    #[inline(always)]
    pub fn done(yes: bool) -> Step {
        if yes { Step::Done } else { Step::Idle }
    }
}

/// The job was aborted while this rank waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aborted;

/// A rank's bell: 0 while it is awake, 1 while it is parked or about to be.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Bell(Futex);

impl Bell {
    /// Call after publishing what the owner may be waiting for.
    #[inline(always)]
    pub fn ring(&self) {
        full_fence();
        self.ring_after_fence();
    }

    /// The same when a [`full_fence`] lies between the publication and this call already: one fence for many bells.
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        if self.0.word().load(Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        // One of several ringers enters the kernel.
        if self.0.word().compare_exchange(1, 0, Relaxed, Relaxed).is_ok() {
            self.0.wake();
        }
    }
}

/// What a waiting rank uses: its bell, its record and the job's abort word, all in shared memory, and its policy.
#[derive(Debug)]
pub struct Waiter<'m> {
    bell: &'m Bell,
    record: &'m Record,
    abort: &'m AtomicU32,
    cores: Cores,
    no_yield_before: Cell<u64>,
    parks: Cell<u64>,
}

impl<'m> Waiter<'m> {
    /// A waiter for the owner of `bell` and `record`.
    pub fn new(bell: &'m Bell, record: &'m Record, abort: &'m AtomicU32, cores: Cores) -> Self {
        Waiter { bell, record, abort, cores, no_yield_before: Cell::new(0), parks: Cell::new(0) }
    }

    /// The policy in force.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// How often this waiter has gone to sleep.
    pub fn parks(&self) -> u64 {
        self.parks.get()
    }

    /// Has the job been aborted?
    pub fn aborted(&self) -> bool {
        self.abort.load(Acquire) != 0
    }

    /// Waits until `look` says [`Step::Done`]. Whoever makes that happen must ring this rank's bell.
    #[inline(always)]
    pub fn until(&self, site: impl Fn() -> Site, look: impl Fn() -> Step + Copy) -> Result<(), Aborted> {
        // The first looks are made here, where what comes after them is near; see `spin` for the pause.
        let looks = if self.cores == Cores::Own && !cfg!(loom) { ROUND } else { 1 };
        for _ in 0..looks {
            match look() {
                Step::Done => return Ok(()),
                Step::Busy => break,
                Step::Idle => std::hint::spin_loop(),
            }
        }
        // A copy goes there, so that the one used here can stay in registers.
        self.slow(&site, &{ look })
    }

    #[inline(never)]
    fn slow(&self, site: &impl Fn() -> Site, look: &impl Fn() -> Step) -> Result<(), Aborted> {
        'again: loop {
            let patience = match self.cores {
                _ if cfg!(loom) => Step::Idle,
                Cores::Own => self.spin(look),
                Cores::Shared => self.yielding(look),
            };
            match patience {
                Step::Done => return Ok(()),
                Step::Busy => continue 'again,
                Step::Idle => {}
            }
            self.record.waiting(&site());
            let found = self.park(look);
            self.record.running();
            match found? {
                Step::Done => return Ok(()),
                _ => continue 'again,
            }
        }
    }

    #[inline(always)]
    fn spin(&self, look: &impl Fn() -> Step) -> Step {
        // A pause between looks lets whoever writes the line keep it until it is done with it. The clock, which costs
        // as much as a cache line's way, is read after a round of looks.
        let mut start = None;
        loop {
            for _ in 0..ROUND {
                match look() {
                    Step::Idle => std::hint::spin_loop(),
                    found => return found,
                }
            }
            let now = now_ns();
            if now - *start.get_or_insert(now) > PATIENCE_NS {
                return Step::Idle;
            }
        }
    }

    #[inline(always)]
    fn yielding(&self, look: &impl Fn() -> Step) -> Step {
        let start = now_ns();
        if start < self.no_yield_before.get() {
            return Step::Idle;
        }
        let mut before = start;
        loop {
            std::thread::yield_now();
            let found = look();
            if found != Step::Idle {
                return found;
            }
            let after = now_ns();
            if after - before > FOREIGN_NS {
                self.no_yield_before.set(after + FOREIGN_HOLD_NS);
                return Step::Idle;
            }
            if after - start > PATIENCE_NS {
                return Step::Idle;
            }
            before = after;
        }
    }

    /// Sleeps until a look finds something; never returns `Idle`.
    fn park(&self, look: &impl Fn() -> Step) -> Result<Step, Aborted> {
        let word = self.bell.0.word();
        loop {
            self.parks.set(self.parks.get() + 1);
            word.store(1, Relaxed);
            full_fence();
            let mut found = look();
            if found == Step::Idle && !self.aborted() {
                self.bell.0.wait(1, PARK_NS);
                word.store(0, Relaxed);
                found = look();
            } else {
                word.store(0, Relaxed);
            }
            if found != Step::Idle {
                return Ok(found);
            }
            if self.aborted() {
                return Err(Aborted);
            }
        }
    }
}
