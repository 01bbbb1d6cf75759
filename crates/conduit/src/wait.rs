//! Waiting: one policy for the whole system. No rank spins, yields or parks in any other place.
//!
//! # Policy
//! * [`Cores::Own`], every rank has a core: spin for 500 µs, never yield, park. That is several times what it takes to wake somebody (60 to 80 µs where cores are
//!   virtual and sleep deeply): with 50 µs those who waited for a sleeper slept, too, by when it came, and traffic between sixteen ranks that was once disturbed stayed a hundred
//!   times slower for as long as it lasted.
//! * [`Cores::Shared`], ranks share cores: yield for 200 µs, which is several turns of all ranks of a core, and park. A
//!   yield that lasts longer than half a millisecond means that somebody who does not yield back computes on this core: park at
//!   once for the next 2 ms, and twice as long if that was not enough, 50 ms at most, since a sleeper that wakes preempts such a
//!   neighbour and a yielder does not. All ranks of the node that do so end it at the same time. A rank that yields
//!   among others that park gets its turn when none of them can run, which is late enough to look like a foreign load: if each
//!   had its own time, traffic that was once disturbed would stay three times slower for as long as it lasts.
//!   What ranks of the node do in this library meanwhile, long copies and what passes by the network, is neither a foreign load nor time waited ([`Toil`]): they
//!   yield when that is done. It is counted for all cores together, so a foreign load beside it is noticed later.
//! * Ranks that share cores and talk: a turn of all ranks of a core for each message is much, if the two happen to run at the same
//!   time. So who has sent a message looks on for 2 µs, now and then, before it yields, and says so by its bell (`LOOKS`).
//!   Who sends to such a rank, as its answer, and then has to wait does the same. Both go on so, without a turn of others in between, until one of
//!   them finds nothing or 200 µs have passed: less than what looks like a foreign load. Eight pairs on two cores have 1.5 to 2
//!   times as many round trips by it. Who looks on in vain does it half as often, one wait of 64 at least. Collectives and
//!   barriers do not, where a rank waits for more than one other.
//!   In collectives and barriers of ranks that share cores most waits end after one turn of the others, and all that a rank touches in its own turn is cold by then, above all the translations of its pages. So such a
//!   wait begins with a turn after which it looks at what it waits for and at nothing else ([`Waiter::after_a_turn`]); one of eight serves others first, as each does that takes longer.
//!   Where roots change from call to call, what all wait for is said by one after the other, and each can only say it when it has heard the one before: a turn of all ranks of a core for
//!   every word or two, if those two are never awake at the same time. So whoever is next looks on for as long as its last turn took, before it yields ([`Waiter::stays`]): nobody on its core has anything better
//!   to do. Who looks on in vain leaves out one such wait the next time, then two, 64 at most. Broadcasts and scatters of sixteen ranks on two cores take two thirds of what they did.
//! * Where there is a network, a millisecond of either.
//! * Work served during a wait ([`Step::Busy`]) restarts it, so that a rank that serves others does not fall asleep
//!   in the middle of their traffic.
//! * Every park is timed (a tenth of a second) and reads the job's abort word when it ends.
//!
//! How a rank sleeps and is woken is said with its [`Bell`], what else a turn of others costs with [`crate::turn`].
//!
//! # Hang reports
//! A wait that reaches its park publishes where it waits in the rank's [`Record`], anew whenever it looks up from its
//! sleep, and takes it back when it ends. A wait that ends earlier writes nothing.

mod bell;
mod load;
#[cfg(all(test, loom))]
pub(crate) mod models;
mod pace;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::record::Record;
use crate::sync::{AtomicU32, Ordering::*, heavy_fence, ticks, ticks_per_us};
use crate::turn::turn;
pub use bell::{Bell, Crowd, Relief};
use bell::{LOOKS, MET, PARK_NS, PARKED};
use load::idle;
pub use load::{Sleepers, Toil};
use pace::Pace;
use std::cell::Cell;
use std::fmt::Display;

/// How long a rank spins before it parks: several times as long as it takes to wake one.
const PATIENCE_US: u64 = 500;
/// The same, and how long it yields, where there is a network: a long put of another node is no event until it has come, and the thread that takes
/// over from who sleeps is slower at that by several times. A megabyte by TCP takes a few hundred microseconds.
const PATIENCE_FAR_US: u64 = 1000;
/// How long it yields. With 50 µs, three turns of eight ranks, one late turn lets some of them park, whose wake-ups make
/// others late: traffic between sixteen ranks on two cores fell into that now and then and became three times slower.
const PATIENCE_SHARED_US: u64 = 200;
/// A single yield that takes longer met a foreign load.
const FOREIGN_US: u64 = 500;
/// How long a rank looks on for an answer before it yields: several times as long as one takes between two cores.
const MEET_US: u64 = 2;
/// How long two ranks may talk without yielding.
const TOGETHER_US: u64 = 200;
/// Of how many waits after a message one looks on: after it has found something, and after it has often not.
const MEET_OFTEN: u32 = 8;
const MEET_SELDOM: u32 = 64;
/// How long a rank looks on that is next to say what others wait for, at most; and of how many such waits one, after those in vain.
const STAY_MOST_US: u64 = 20;
const STAY_SELDOM: u32 = 64;
/// Times that a rank serves others between two looks at the abort word.
const SERVED: u32 = 16;
/// Of so many waits one serves others before its first turn; all of so many do after a turn that met a foreign load.
const TURNS: i32 = 7;
const TURNS_AFTER_FOREIGN: i32 = 32;
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

/// Says to somebody where a rank waits.
type Says<'s> = &'s dyn Fn(&mut dyn FnMut(&dyn Display));

/// The job was aborted while this rank waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aborted;

/// What a waiting rank uses: its bell, the count of sleepers, its record and the job's abort word, all in shared memory,
/// and its policy.
#[derive(Debug)]
pub struct Waiter<'m> {
    bell: &'m Bell,
    sleepers: &'m Sleepers,
    record: &'m Record,
    abort: &'m AtomicU32,
    cores: Cores,
    pace: Pace,
    park_ns: u64,
    relief: Option<&'m Relief>,
    toil: Option<&'m Toil>,
    ticks_per_us: u64,
    no_yield_before: Cell<u64>,
    /// How many waits may begin with a turn; below 0, how many may not.
    turns: Cell<i32>,
    staying: Staying,
    meeting: Meeting,
}

/// Does a rank look on that is next to say what others wait for?
#[derive(Debug, Default)]
struct Staying {
    /// Of such waits, those until one that does; and between two such.
    left: Cell<u32>,
    every: Cell<u32>,
    /// How long others had this core the last time, in ticks.
    turn: Cell<u64>,
}

/// What a rank that shares its core knows of those that it talks to.
#[derive(Debug)]
struct Meeting {
    /// Has it sent a message since its last wait?
    spoke: Cell<bool>,
    /// Of the waits after messages, those until one that looks on; and between two such.
    left: Cell<u32>,
    every: Cell<u32>,
    /// Since when it looks on in each wait and its bell says so, in ticks; 0 if it does not.
    since: Cell<u64>,
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
            pace: Pace::here(),
            park_ns,
            relief: None,
            toil: None,
            ticks_per_us,
            no_yield_before: Cell::new(0),
            turns: Cell::new(TURNS),
            staying: Staying::default(),
            meeting: Meeting {
                spoke: Cell::new(false),
                left: Cell::new(MEET_OFTEN),
                every: Cell::new(MEET_OFTEN),
                since: Cell::new(0),
            },
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

    /// The same, among ranks that say when they are busy.
    pub fn among(self, toil: &'m Toil) -> Self {
        Waiter { toil: Some(toil), ..self }
    }

    /// The policy in force.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// This rank has sent a message, and may wait for its answer.
    #[inline(always)]
    pub fn spoke(&self) {
        self.meeting.spoke.set(true);
    }

    /// Has the job been aborted?
    pub fn aborted(&self) -> bool {
        self.abort.load(Acquire) != 0
    }

    /// Does it hold within some looks in quick succession? No, where this rank shares its core: it would keep others from it.
    #[inline(always)]
    pub fn soon(&self, ready: impl Fn() -> bool + Copy) -> bool {
        self.cores == Cores::Own && !cfg!(loom) && (0..self.pace.soon).any(|_| ready())
    }

    /// The same with pauses in between, where others write to the line until then.
    #[inline(always)]
    pub fn soon_calmly(&self, ready: impl Fn() -> bool + Copy) -> bool {
        let look = |_| {
            self.pace.pause();
            ready()
        };
        self.cores == Cores::Own && !cfg!(loom) && (0..self.pace.soon_calmly).any(look)
    }

    /// Does it hold within about the time of a turn of the others on this core? For who says something next for which they wait, too.
    #[inline(never)]
    pub fn stays(&self, ready: impl Fn() -> bool) -> bool {
        let Staying { left, every, turn } = &self.staying;
        if self.cores != Cores::Shared || cfg!(loom) || left.get() > 0 {
            left.set(left.get().saturating_sub(1));
            return false;
        }
        // As for a turn: others are served now and then, and a foreign load is given its time.
        if !self.may_turn() || ticks() < self.no_yield_before.get() {
            return false;
        }
        let (begun, most) = (ticks(), turn.get().min(STAY_MOST_US * self.ticks_per_us));
        loop {
            if ready() {
                every.set(0);
                return true;
            }
            self.pace.pause();
            if ticks().wrapping_sub(begun) >= most {
                break;
            }
        }
        every.set((2 * every.get()).clamp(1, STAY_SELDOM));
        left.set(every.get());
        false
    }

    /// Does it hold when the others on this core have had a turn? Not asked where a rank has its own, nor where it may be sooner without.
    ///
    /// Nobody is served meanwhile, and it is not found out whether the job is over: whoever hears no waits on.
    #[inline(always)]
    pub fn after_a_turn(&self, ready: impl Fn() -> bool + Copy) -> bool {
        if self.cores != Cores::Shared || cfg!(loom) || !self.may_turn() {
            return false;
        }
        let before = ticks();
        before >= self.no_yield_before.get() && {
            turn();
            let turn = ticks().wrapping_sub(before);
            self.staying.turn.set(turn);
            if turn > FOREIGN_US * self.ticks_per_us {
                // Whether it was one is found out by those that take longer.
                self.turns.set(-TURNS_AFTER_FOREIGN);
            }
            ready()
        }
    }

    /// Nobody else looks on, who could be answered at once, and it is not the turn of those that serve.
    #[inline(always)]
    fn may_turn(&self) -> bool {
        let Meeting { spoke, since, .. } = &self.meeting;
        let left = self.turns.get();
        self.turns.set(match left {
            0 => TURNS,
            1.. => left - 1,
            _ => left + 1,
        });
        left > 0 && !spoke.get() && since.get() == 0 && !MET.get()
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
                Step::Idle => self.pace.pause(),
            }
        }
        // A copy goes there, so that the one used here can stay in registers.
        let (site, look): (Says<'_>, _) = (&|say| say(&site()), &{ look });
        match self.cores {
            Cores::Own => self.slow(site, look),
            // One for all waits, since it is cold at each turn.
            Cores::Shared => self.slow::<dyn Fn() -> Step>(site, look),
        }
    }

    #[inline(never)]
    fn slow<L: Fn() -> Step + ?Sized>(&self, site: Says<'_>, look: &L) -> Result<(), Aborted> {
        // How often something was served: that may be what this rank waits for.
        let mut served = 0u32;
        'again: loop {
            let patience = match self.cores {
                Cores::Own if cfg!(loom) => Step::Idle,
                Cores::Shared if cfg!(loom) => self.meet(look),
                Cores::Own => self.spin(look),
                // To yield first would cost a turn of all others.
                Cores::Shared => match (served > 0).then(look) {
                    None | Some(Step::Idle) => self.yielding(look),
                    Some(found) => found,
                },
            };
            served = served.wrapping_add(1);
            match patience {
                Step::Done => return Ok(()),
                // Also who always has something to serve hears that the job is over, but does not ask each time.
                Step::Busy if served.is_multiple_of(SERVED) && self.aborted() => return Err(Aborted),
                Step::Busy => continue 'again,
                Step::Idle => {}
            }
            site(&mut |site| self.record.waiting(&site));
            match self.park(site, look)? {
                Step::Done => return Ok(()),
                _ => continue 'again,
            }
        }
    }

    /// How many ticks it waits awake, where so many microseconds are enough on a node.
    #[inline(always)]
    fn patience(&self, near: u64) -> u64 {
        (if self.relief.is_some() { PATIENCE_FAR_US.max(near) } else { near }) * self.ticks_per_us
    }

    #[inline(always)]
    fn spin(&self, look: &(impl Fn() -> Step + ?Sized)) -> Step {
        let mut start = None;
        loop {
            for _ in 0..ROUND {
                match look() {
                    Step::Idle => self.pace.pause(),
                    found => return found,
                }
            }
            let now = ticks();
            if now.wrapping_sub(*start.get_or_insert(now)) > self.patience(PATIENCE_US) {
                return Step::Idle;
            }
        }
    }

    #[inline(always)]
    fn yielding(&self, look: &(impl Fn() -> Step + ?Sized)) -> Step {
        let start = ticks();
        if start < self.no_yield_before.get() {
            return Step::Idle;
        }
        let toil = || self.toil.map_or(0, |toil| toil.0.load(Relaxed));
        let first = (start, toil());
        let mut before = first;
        if self.meets(start) {
            let found = self.meet(look);
            if found != Step::Idle {
                return found;
            }
            before.0 = ticks();
        }
        loop {
            turn();
            let (after, toiled) = (ticks(), toil());
            // Also when the wait ends here: the next one shall not meet the same neighbour.
            let foreign = idle((after, toiled), before) > FOREIGN_US * self.ticks_per_us;
            if foreign {
                self.no_yield_before.set(self.sleepers.met_foreign_load(after, self.ticks_per_us));
            }
            let found = look();
            if found != Step::Idle {
                return found;
            }
            if foreign || idle((after, toiled), first) > self.patience(PATIENCE_SHARED_US) {
                return Step::Idle;
            }
            before = (after, toiled);
        }
    }

    /// Does it look on before it yields?
    #[inline(always)]
    fn meets(&self, now: u64) -> bool {
        let Meeting { spoke, left, since, .. } = &self.meeting;
        let (met, spoke) = (MET.take(), spoke.take());
        if met || spoke {
            left.set(left.get().saturating_sub(1));
            if (met || left.get() == 0)
                && (since.get() == 0 || now.wrapping_sub(since.get()) < TOGETHER_US * self.ticks_per_us)
            {
                return true;
            }
        }
        if since.take() != 0 {
            self.bell.0.word().store(0, Relaxed);
        }
        false
    }

    /// Looks on for a moment.
    #[inline(always)]
    fn meet(&self, look: &(impl Fn() -> Step + ?Sized)) -> Step {
        let (Meeting { left, every, since, .. }, word) = (&self.meeting, self.bell.0.word());
        let start = ticks();
        // Once: others look at that line.
        if since.get() == 0 {
            since.set(start);
            word.store(LOOKS, Relaxed);
        }
        let found = loop {
            let found = look();
            if found != Step::Idle || cfg!(loom) || ticks().wrapping_sub(start) > MEET_US * self.ticks_per_us {
                break found;
            }
            self.pace.pause();
        };
        every.set(if found == Step::Idle { (2 * every.get()).min(MEET_SELDOM) } else { MEET_OFTEN });
        left.set(every.get());
        if found == Step::Idle {
            since.set(0);
            word.store(0, Relaxed);
        }
        found
    }

    /// Sleeps until a look finds something; never returns `Idle`.
    fn park(&self, site: Says<'_>, look: &(impl Fn() -> Step + ?Sized)) -> Result<Step, Aborted> {
        let word = self.bell.0.word();
        self.sleepers.count.fetch_add(1, Relaxed);
        let _asleep = Asleep(self);
        self.meeting.since.set(0);
        word.store(PARKED, Relaxed);
        heavy_fence();
        loop {
            let mut found = look();
            if found == Step::Idle && !self.aborted() {
                if let Some(relief) = self.relief {
                    relief.take_over();
                }
                self.bell.0.wait(PARKED, self.park_ns);
                found = look();
            }
            if found != Step::Idle {
                break Ok(found);
            }
            if self.aborted() {
                break Err(Aborted);
            }
            site(&mut |site| self.record.still_waiting(&site));
            // Who was not rung has said that it sleeps all the time. The exchange sees the last ring, which a load need not.
            if word.swap(PARKED, AcqRel) != PARKED {
                heavy_fence();
            }
        }
    }
}

/// A rank that sleeps, until it does not, also if what it looks at has panicked.
struct Asleep<'w, 'm>(&'w Waiter<'m>);

impl Drop for Asleep<'_, '_> {
    fn drop(&mut self) {
        let Asleep(waiter) = self;
        waiter.bell.0.word().store(0, Relaxed);
        waiter.sleepers.count.fetch_sub(1, Relaxed);
        waiter.record.awake();
    }
}

/// Yields until `done`, which others hold up for some instructions only, unless they have no core; false if the job `is_over` before that.
pub fn briefly(done: impl Fn() -> bool, is_over: impl Fn() -> bool) -> bool {
    while !done() {
        if is_over() {
            return false;
        }
        #[cfg(not(loom))]
        turn();
        #[cfg(loom)]
        loom::thread::yield_now();
    }
    true
}
