//! Waiting: one policy for the whole system. No rank spins, yields or parks in any other place.
//!
//! # Policy
//! * [`Cores::Own`], every rank has a core: spin for 50 µs, never yield, park.
//! * [`Cores::Shared`], ranks share cores: yield for 200 µs, which is several turns of all ranks of a core, and park. A yield that lasts longer than half a millisecond means
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
//! Whoever wakes many looks at one word first, the node's count of sleepers ([`Sleepers`]), and at the bells only if there
//! are some: sixteen bells lie in sixteen pages.
//!
//! # Memory ordering
//! The bell and the count carry no data: their accesses are relaxed and the two full fences order them. Each is right by
//! itself: whoever reads an old value of either after its fence has published before the sleeper's fence, and the
//! sleeper's last look sees it. What the condition guards is ordered by the condition's own release store and acquire
//! load.
//!
//! # Hang reports
//! A wait that reaches its park publishes where it waits in the rank's [`Record`], anew whenever it looks up from its
//! sleep, and takes it back when it ends. A wait that ends earlier writes nothing.

use crate::record::Record;
use crate::sync::{AtomicU32, Futex, Ordering::*, full_fence, ticks, ticks_per_us};
use std::cell::Cell;
use std::fmt::Display;

/// How long a rank spins before it parks.
const PATIENCE_US: u64 = 50;
/// How long it yields. With 50 µs, three turns of eight ranks, one late turn lets some of them park, whose wake-ups make
/// others late: traffic between sixteen ranks on two cores fell into that now and then and became three times slower.
const PATIENCE_SHARED_US: u64 = 200;
/// A single yield that takes longer met a foreign load.
const FOREIGN_US: u64 = 500;
/// How long a rank that met a foreign load does not yield.
const FOREIGN_HOLD_US: u64 = 50_000;
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

/// How many ranks of a node are parked, or about to be.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Sleepers(AtomicU32);

impl Default for Sleepers {
    fn default() -> Self {
        Sleepers(AtomicU32::new(0))
    }
}

impl Sleepers {
    /// Are there any? After a [`full_fence`] that follows the publication.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// Where a thread that makes progress for others dozes while they make it themselves.
///
/// It dozes for a bounded time, and not when somebody has asked it to take over since it last woke: the asking is a store
/// before a look at the bell, the dozing a store to the bell before a look for who asked, with a full fence in each.
#[derive(Debug, Default)]
pub struct Relief {
    asked: AtomicU32,
    bell: Bell,
}

impl Relief {
    /// A rank is going to sleep: whoever relieves it does not doze any longer.
    #[inline]
    pub fn take_over(&self) {
        self.asked.store(1, Relaxed);
        self.bell.ring();
    }

    /// Dozes for `ns` at most; true if somebody has asked.
    pub fn doze(&self, ns: u64) -> bool {
        let word = self.bell.0.word();
        word.store(1, Relaxed);
        full_fence();
        if self.asked.load(Relaxed) == 0 {
            self.bell.0.wait(1, ns);
        }
        word.store(0, Relaxed);
        self.asked.load(Relaxed) != 0 && self.asked.compare_exchange(1, 0, Relaxed, Relaxed).is_ok()
    }
}

/// Where threads that are no ranks sleep, any number of them, until somebody rings: what a bell is to its one owner.
///
/// Each sleeper stores 1, fences, looks, and sleeps while the word is 1. Only who rings stores 0: a sleeper that leaves does
/// not know of others. So the word may say 1 when nobody sleeps, which costs a ringer a system call once.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Crowd(Bell);

impl Crowd {
    /// Call after publishing what they may be waiting for, and a [`full_fence`].
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        self.0.ring_after_fence();
    }

    /// Sleeps until a look says yes; looks up every tenth of a second.
    pub fn until(&self, look: impl Fn() -> bool) {
        while !look() {
            self.0.0.word().store(1, Relaxed);
            full_fence();
            if look() {
                return;
            }
            self.0.0.wait(1, PARK_NS);
        }
    }
}

/// What a waiting rank uses: its bell, the count of sleepers, its record and the job's abort word, all in shared memory,
/// and its policy.
#[derive(Debug)]
pub struct Waiter<'m> {
    bell: &'m Bell,
    sleepers: &'m Sleepers,
    record: &'m Record,
    abort: &'m AtomicU32,
    cores: Cores,
    park_ns: u64,
    relief: Option<&'m Relief>,
    ticks_per_us: u64,
    no_yield_before: Cell<u64>,
}

impl<'m> Waiter<'m> {
    /// A waiter for the owner of `bell` and `record`.
    pub fn new(bell: &'m Bell, sleepers: &'m Sleepers, record: &'m Record, abort: &'m AtomicU32, cores: Cores) -> Self {
        let (park_ns, ticks_per_us) = (PARK_NS, ticks_per_us());
        Waiter {
            bell,
            sleepers,
            record,
            abort,
            cores,
            park_ns,
            relief: None,
            ticks_per_us,
            no_yield_before: Cell::new(0),
        }
    }

    /// The same, looking up from its sleep this often: a rank that has others to look after.
    pub fn looking_up(self, every_ns: u64) -> Self {
        Waiter { park_ns: every_ns.min(self.park_ns), ..self }
    }

    /// The same, waking a thread that does its work while it sleeps.
    pub fn relieved_by(self, relief: &'m Relief) -> Self {
        Waiter { relief: Some(relief), ..self }
    }

    /// The policy in force.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Has the job been aborted?
    pub fn aborted(&self) -> bool {
        self.abort.load(Acquire) != 0
    }

    /// Waits until `look` says [`Step::Done`]. Whoever makes that happen must ring this rank's bell. `site` says where it
    /// waits: a [`Site`](crate::record::Site), and what else there is to be said.
    #[inline(always)]
    pub fn until<S: Display>(
        &self,
        site: impl Fn() -> S + Copy,
        look: impl Fn() -> Step + Copy,
    ) -> Result<(), Aborted> {
        // The first looks are made here, where what comes after them is near.
        let looks = if self.cores == Cores::Own && !cfg!(loom) { ROUND } else { 1 };
        for _ in 0..looks {
            match look() {
                Step::Done => return Ok(()),
                Step::Busy => break,
                Step::Idle => pause(),
            }
        }
        // A copy goes there, so that the one used here can stay in registers.
        self.slow(&{ site }, &{ look })
    }

    #[inline(never)]
    fn slow<S: Display>(&self, site: &impl Fn() -> S, look: &impl Fn() -> Step) -> Result<(), Aborted> {
        // Set when something was served: that may be what this rank waits for.
        let mut served = false;
        'again: loop {
            let patience = match self.cores {
                _ if cfg!(loom) => Step::Idle,
                Cores::Own => self.spin(look),
                // To yield first would cost a turn of all others.
                Cores::Shared => match served.then(look) {
                    None | Some(Step::Idle) => self.yielding(look),
                    Some(found) => found,
                },
            };
            served = true;
            match patience {
                Step::Done => return Ok(()),
                // Also who always has something to serve hears that the job is over.
                Step::Busy if self.aborted() => return Err(Aborted),
                Step::Busy => continue 'again,
                Step::Idle => {}
            }
            self.record.waiting(&site());
            let found = self.park(site, look);
            self.record.running();
            match found? {
                Step::Done => return Ok(()),
                _ => continue 'again,
            }
        }
    }

    #[inline(always)]
    fn spin(&self, look: &impl Fn() -> Step) -> Step {
        let mut start = None;
        loop {
            for _ in 0..ROUND {
                match look() {
                    Step::Idle => pause(),
                    found => return found,
                }
            }
            let now = ticks();
            if now.wrapping_sub(*start.get_or_insert(now)) > PATIENCE_US * self.ticks_per_us {
                return Step::Idle;
            }
        }
    }

    #[inline(always)]
    fn yielding(&self, look: &impl Fn() -> Step) -> Step {
        let start = ticks();
        if start < self.no_yield_before.get() {
            return Step::Idle;
        }
        let mut before = start;
        loop {
            std::thread::yield_now();
            let after = ticks();
            // Also when the wait ends here: the next one shall not meet the same neighbour.
            let foreign = after.wrapping_sub(before) > FOREIGN_US * self.ticks_per_us;
            if foreign {
                self.no_yield_before.set(after + FOREIGN_HOLD_US * self.ticks_per_us);
            }
            let found = look();
            if found != Step::Idle {
                return found;
            }
            if foreign || after.wrapping_sub(start) > PATIENCE_SHARED_US * self.ticks_per_us {
                return Step::Idle;
            }
            before = after;
        }
    }

    /// Sleeps until a look finds something; never returns `Idle`.
    fn park<S: Display>(&self, site: &impl Fn() -> S, look: &impl Fn() -> Step) -> Result<Step, Aborted> {
        let word = self.bell.0.word();
        loop {
            word.store(1, Relaxed);
            self.sleepers.0.fetch_add(1, Relaxed);
            full_fence();
            let mut found = look();
            let sleep = found == Step::Idle && !self.aborted();
            if sleep {
                if let Some(relief) = self.relief {
                    relief.take_over();
                }
                self.bell.0.wait(1, self.park_ns);
            }
            word.store(0, Relaxed);
            self.sleepers.0.fetch_sub(1, Relaxed);
            if sleep {
                found = look();
            }
            if found != Step::Idle {
                return Ok(found);
            }
            if self.aborted() {
                return Err(Aborted);
            }
            self.record.still_waiting(&site());
        }
    }
}

/// Between two looks: lets whoever writes the line keep it until it is done with it. One is too short for that by a
/// little, four measured no better than two.
#[inline(always)]
fn pause() {
    std::hint::spin_loop();
    std::hint::spin_loop();
}

/// A thread that sleeps on a bell, for the models of other protocols.
#[cfg(all(test, loom))]
pub(crate) mod testing {
    use super::*;
    use crate::record::Site;

    #[derive(Debug)]
    pub(crate) struct Sleeper {
        pub bell: Bell,
        sleepers: Sleepers,
        record: Record,
        abort: AtomicU32,
    }

    impl Default for Sleeper {
        fn default() -> Self {
            let (bell, sleepers, record) = Default::default();
            Sleeper { bell, sleepers, record, abort: AtomicU32::new(0) }
        }
    }

    impl Sleeper {
        /// Sleeps until the condition holds.
        pub fn until(&self, done: impl Fn() -> bool + Copy) {
            let waiter = Waiter::new(&self.bell, &self.sleepers, &self.record, &self.abort, Cores::Own);
            waiter.until(|| Site::here("model"), || Step::done(done())).unwrap();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// In a model nobody wakes up by himself: a thread that dozes on after it was asked is a deadlock.
    #[test]
    fn loom_whoever_is_asked_takes_over() {
        loom::model(|| {
            let relief = Arc::new(Relief::default());
            let dozing = relief.clone();
            let thread = loom::thread::spawn(move || while !dozing.doze(1) {});
            relief.take_over();
            thread.join().unwrap();
        });
    }
}
