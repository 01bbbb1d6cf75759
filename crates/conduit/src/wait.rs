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
//! # Parking: one bell per rank
//! The sleeper writes 1 to its bell, fences, looks at its condition once more and sleeps in the kernel while the bell
//! is 1. Whoever makes a condition true publishes it, fences, and looks at the bell ([`Bell::ring`]); only if it says
//! *parked* does it enter the kernel. With these fences at least one of the two sees the other's store
//! (store buffering), so either the sleeper does not sleep or the waker wakes it. Without either fence wakes are lost;
//! an ordinary stress test does not notice, the loom models of the barrier do. The timed park is only a belt.
//!
//! The two are not alike: signals are many, so the waker's fence is light, and the sleeper's is heavy ([`crate::sync`] says
//! why that is enough, and when both are full ones). Somebody who does not sleep is never the heavy side; where two who
//! look at each other's stores both go on, as in [`Relief`], both fences are full.
//!
//! A bell that says `LOOKS` is one that is not parked: its owner is awake and looks, or will before it sleeps.
//!
//! A sleeper that looks up and was not rung sleeps on without another fence: its bell has said so since the last one.
//!
//! Whoever wakes many looks at one word first, the node's count of sleepers ([`Sleepers`]), and at the bells only if there
//! are some: sixteen bells lie in sixteen pages.
//!
//! # Memory ordering
//! The bell and the count carry no data: their accesses are relaxed and the two fences order them. Each is right by
//! itself: whoever reads an old value of either after its fence has published before the sleeper's fence, and the
//! sleeper's last look sees it. What the condition guards is ordered by the condition's own release store and acquire
//! load.
//!
//! # Hang reports
//! A wait that reaches its park publishes where it waits in the rank's [`Record`], anew whenever it looks up from its
//! sleep, and takes it back when it ends. A wait that ends earlier writes nothing.

use crate::record::Record;
use crate::sync::{
    AtomicU32, AtomicU64, Futex, Ordering::*, full_fence, heavy_fence, light_fence, ticks, ticks_per_us,
};
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
/// What ranks themselves do for longer than this is none.
const TOIL_US: u64 = 20;
/// How long ranks that met a foreign load do not yield, at first and at most. A short one is met once, and parking is three times slower than yielding.
const FOREIGN_FIRST_US: u64 = 2_000;
const FOREIGN_MOST_US: u64 = 50_000;
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
/// The longest time that a rank sleeps without looking at its condition and at the abort word.
const PARK_NS: u64 = 100_000_000;
/// Times that a rank serves others between two looks at the abort word.
const SERVED: u32 = 16;
/// Of so many waits one serves others before its first turn; all of so many do after a turn that met a foreign load.
const TURNS: i32 = 7;
const TURNS_AFTER_FOREIGN: i32 = 32;
/// Looks before anything else is looked after: some hundred nanoseconds.
const SOON: u32 = 64;
const SOON_CALMLY: u32 = 12;
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

/// What a bell says of its owner, who is awake else: it is parked or about to be; it does not yield before it has looked.
const PARKED: u32 = 1;
const LOOKS: u32 = 2;

thread_local! {
    /// Did the rank of this thread send something to one that looks, since it last asked?
    static MET: Cell<bool> = const { Cell::new(false) };
}

/// A rank's bell: 0 while it is awake, `PARKED`, or `LOOKS`.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Bell(Futex);

impl Bell {
    /// Call after publishing what the owner may be waiting for.
    #[inline(always)]
    pub fn ring(&self) {
        light_fence();
        self.ring_after_fence();
    }

    /// The same when a [`light_fence`] lies between the publication and this call already: one fence for many bells.
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        if self.0.word().load(Relaxed) != 0 {
            self.wake();
        }
    }

    /// The same for a message: if the owner runs, this thread may wait for what it says to it, and not yield.
    #[inline(always)]
    pub fn speak_after_fence(&self) {
        let word = self.0.word().load(Relaxed);
        if word != 0 {
            MET.set(word == LOOKS);
            self.wake();
        }
    }

    /// Is its owner parked, or about to be? A guess, for who would do something in its place.
    pub fn is_parked(&self) -> bool {
        self.0.word().load(Relaxed) == PARKED
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let word = self.0.word();
        // One of several ringers enters the kernel.
        if word.load(Relaxed) == PARKED && word.compare_exchange(PARKED, 0, Relaxed, Relaxed).is_ok() {
            self.0.wake();
        }
    }
}

/// What a node's ranks know of each other's waits.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C))]
pub struct Sleepers {
    /// How many are parked, or about to be.
    count: AtomicU32,
    /// For how long those who met a foreign load last did not yield, in microseconds.
    hold: AtomicU32,
    /// When they yield again, in ticks.
    no_yield_before: AtomicU64,
}

impl Default for Sleepers {
    fn default() -> Self {
        Sleepers { count: AtomicU32::new(0), hold: AtomicU32::new(0), no_yield_before: AtomicU64::new(0) }
    }
}

impl Sleepers {
    /// Are there any? After a [`light_fence`] that follows the publication.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// A rank has met a foreign load: until when does it not yield? The same time for all who meet one before that, and
    /// twice as long if it is met again soon.
    #[cold]
    #[inline(never)]
    fn met_foreign_load(&self, now: u64, ticks_per_us: u64) -> u64 {
        let (told, last) = (self.no_yield_before.load(Relaxed), u64::from(self.hold.load(Relaxed)));
        // Nobody means more than the longest, unless the counter has gone back.
        if told.wrapping_sub(now) <= FOREIGN_MOST_US * ticks_per_us {
            return told;
        }
        let again = now.wrapping_sub(told) <= last * ticks_per_us;
        let hold = if again { (2 * last).min(FOREIGN_MOST_US) } else { FOREIGN_FIRST_US };
        let until = now + hold * ticks_per_us;
        match self.no_yield_before.compare_exchange(told, until, Relaxed, Relaxed) {
            Ok(_) => {
                self.hold.store(hold as u32, Relaxed);
                until
            }
            Err(other) => other.min(until),
        }
    }
}

/// How long the ranks of a node, and the threads that relieve them, have been busy with long copies and with the network, in ticks. Who yields to one that
/// copies, posts or receives a megabyte is away for long, but has met no foreign load.
#[derive(Debug, Default)]
pub struct Toil(AtomicU64);

impl Toil {
    /// So many ticks of it. Short ones do not count: others look at that line.
    #[inline(always)]
    pub fn add(&self, time: u64) {
        if time > TOIL_US * ticks_per_us() {
            self.0.fetch_add(time, Relaxed);
        }
    }
}

/// Where a thread that makes progress for others dozes while they make it themselves.
///
/// It dozes for a bounded time, and not when somebody has asked it to take over since it last woke: the asking is a store
/// before a look at the bell, the dozing a store to the bell before a look for who asked, with a full fence in each: both are seldom, and
/// a heavy one at every doze would disturb those who make progress.
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
        full_fence();
        self.bell.ring_after_fence();
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
/// Each sleeper makes the word odd, makes a heavy fence, looks, and sleeps while the word is what it was. Only who rings makes it even, by
/// adding one: a sleeper that leaves does not know of others, and one that had not fallen asleep yet when it was rung finds
/// another word, also when somebody has come since. So the word may be odd when nobody sleeps, which costs a ringer a system
/// call once.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Crowd(Futex);

impl Crowd {
    /// Call after publishing what they may be waiting for, and a [`light_fence`].
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        if self.0.word().load(Relaxed) & 1 != 0 {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let word = self.0.word().load(Relaxed);
        // One of several ringers enters the kernel.
        if word & 1 != 0 && self.0.word().compare_exchange(word, word.wrapping_add(1), Relaxed, Relaxed).is_ok() {
            self.0.wake();
        }
    }

    /// Sleeps until a look says yes; looks up every tenth of a second.
    pub fn until(&self, look: impl Fn() -> bool) {
        while !look() {
            let word = self.0.word().fetch_or(1, Relaxed) | 1;
            heavy_fence();
            if look() {
                return;
            }
            self.0.wait(word, PARK_NS);
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
        self.cores == Cores::Own && !cfg!(loom) && (0..SOON).any(|_| ready())
    }

    /// The same with pauses in between, where others write to the line until then.
    #[inline(always)]
    pub fn soon_calmly(&self, ready: impl Fn() -> bool + Copy) -> bool {
        let look = |_| {
            pause();
            ready()
        };
        self.cores == Cores::Own && !cfg!(loom) && (0..SOON_CALMLY).any(look)
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
            pause();
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
            // Without the C library's page in between.
            rustix::thread::sched_yield();
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
                Step::Idle => pause(),
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
            let found = self.park(site, look);
            self.record.running();
            match found? {
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
                    Step::Idle => pause(),
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
            // Without the C library's page in between.
            rustix::thread::sched_yield();
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
            pause();
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
        self.meeting.since.set(0);
        word.store(PARKED, Relaxed);
        heavy_fence();
        let ended = loop {
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
        };
        word.store(0, Relaxed);
        self.sleepers.count.fetch_sub(1, Relaxed);
        ended
    }
}

/// How long nobody toiled between two moments, of each of which the time and the [`Toil`] until then are given.
#[inline(always)]
fn idle((now, toiled): (u64, u64), (then, before): (u64, u64)) -> u64 {
    now.wrapping_sub(then).saturating_sub(toiled.wrapping_sub(before))
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
            self.until_with(Cores::Own, done);
        }

        /// The same; with shared cores it looks on first.
        pub fn until_with(&self, cores: Cores, done: impl Fn() -> bool + Copy) {
            let waiter = Waiter::new(&self.bell, &self.sleepers, &self.record, &self.abort, cores);
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

    /// Two in a crowd want one each of what comes for both: who takes the first does not hide the second from the other.
    #[test]
    fn loom_a_crowd_of_two_is_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            let heap = Arc::new((Crowd::default(), AtomicU32::new(0)));
            let threads = [(); 2].map(|()| {
                let heap = heap.clone();
                loom::thread::spawn(move || {
                    let take = |n: u32| n.checked_sub(1);
                    heap.0.until(|| heap.1.fetch_update(AcqRel, Acquire, take).is_ok());
                })
            });
            heap.1.store(2, Release);
            light_fence();
            heap.0.ring_after_fence();
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// Nor does who says that it looks, and then sleeps, miss what is said to it at any moment.
    #[test]
    fn loom_whoever_looks_on_is_woken() {
        loom::model(|| {
            let heap = Arc::new((testing::Sleeper::default(), AtomicU32::new(0)));
            let speaker = heap.clone();
            let thread = loom::thread::spawn(move || {
                speaker.1.store(1, Release);
                light_fence();
                speaker.0.bell.speak_after_fence();
            });
            heap.0.until_with(Cores::Shared, || heap.1.load(Acquire) == 1);
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::Site;
    use crate::shm::segment::{self, Mapping};
    use crate::sync::{AtomicU64, be_light, can_be_light, publish};
    use crate::topology;
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    #[derive(Default)]
    #[repr(align(128))]
    struct Apart<T>(T);

    /// What a sleeper and who wakes it share; zeros at first.
    #[derive(Default)]
    #[repr(C)]
    struct Both {
        bell: Apart<Bell>,
        /// The round that has begun.
        round: Apart<AtomicU64>,
        /// What the sleeper waits for: the round.
        made: Apart<AtomicU64>,
        /// The round in which who wakes it has done so, or has seen that it need not.
        rung: Apart<AtomicU64>,
        /// Of who wakes it: 1, it can be light; 2, it cannot. Then of both, the same.
        light: Apart<AtomicU64>,
        sleepers: Apart<Sleepers>,
        record: Apart<Record>,
        abort: Apart<AtomicU32>,
    }

    /// Where cores are shared most waits begin with a turn; one of eight does not, and none where somebody may answer at once, or a foreign load was met.
    #[test]
    fn turns_are_taken_where_cores_are_shared() {
        let (bell, sleepers, record, abort) = Default::default();
        let waiter = |cores| Waiter::new(&bell, &sleepers, &record, &abort, cores);
        let taken = |waiter: &Waiter<'_>| (0..64).filter(|_| waiter.after_a_turn(|| true)).count();
        assert_eq!(taken(&waiter(Cores::Own)), 0);
        let shared = waiter(Cores::Shared);
        // Fewer if something else ran for long.
        let some = taken(&shared);
        assert!((1..=56).contains(&some), "{some}");
        assert!((0..64).all(|_| !shared.after_a_turn(|| false)));
        let speaks = waiter(Cores::Shared);
        speaks.spoke();
        assert_eq!(taken(&speaks), 0);
        let beside_a_load = waiter(Cores::Shared);
        beside_a_load.no_yield_before.set(u64::MAX);
        assert_eq!(taken(&beside_a_load), 0);
    }

    const OVER: u64 = u64::MAX;
    const ROUNDS: u64 = 50_000;
    /// How long a sleeper hesitates at most.
    const LONGEST: u64 = 400;

    impl Both {
        /// Goes to sleep in each round without patience. How many wakes were lost: the waker has come and gone, without ringing, and
        /// this one slept nevertheless.
        fn sleeps(&self) -> u64 {
            on_core(0);
            let waiter = Waiter::new(&self.bell.0, &self.sleepers.0, &self.record.0, &self.abort.0, Cores::Own);
            let waiter = waiter.looking_up(20_000_000);
            let (lost, end) = (Cell::new(0), Instant::now() + Duration::from_secs(3));
            // How long it hesitates: a little longer if it came too early to meet the waker, a little less if too late.
            let mut hesitates = 0u64;
            for n in (1..=ROUNDS).take_while(|_| Instant::now() < end) {
                self.round.0.store(n, Release);
                hesitate(hesitates);
                let looks = Cell::new(0);
                let look = || {
                    // Each second look is the one after a sleep.
                    looks.set(looks.get() + 1);
                    let (came, rings) = (self.rung.0.load(Acquire) >= n, self.bell.0.0.word().load(Relaxed) == 0);
                    if looks.get() % 2 == 0 && came && !rings {
                        lost.set(lost.get() + 1);
                    }
                    Step::done(self.made.0.load(Acquire) >= n)
                };
                assert_eq!(waiter.park(&|say| say(&Site::here("test")), &look), Ok(Step::Done));
                let by = n % 3;
                hesitates = if looks.get() > 1 { (hesitates + by).min(LONGEST) } else { hesitates.saturating_sub(by) };
                wait_for(|| self.rung.0.load(Acquire) >= n);
            }
            self.round.0.store(OVER, Release);
            assert_eq!(self.sleepers.0.count.load(Relaxed), 0);
            lost.get()
        }

        fn wakes(&self) {
            on_core(1);
            for n in 1.. {
                // The bell's line is here before it matters: a look at it takes no time.
                wait_for(|| self.bell.0.0.word().load(Relaxed) <= 1 && self.round.0.load(Acquire) >= n);
                if self.round.0.load(Acquire) == OVER {
                    return;
                }
                hesitate(LONGEST / 4);
                publish(&self.made.0, n);
                self.bell.0.ring_after_fence();
                self.rung.0.store(n, Release);
            }
        }

        /// Both say whether they can be light, and are if both can.
        fn agree(&self, decides: bool) {
            let can = can_be_light();
            if decides {
                wait_for(|| self.light.0.load(Acquire) != 0);
                self.light.0.store(if can && self.light.0.load(Relaxed) == 1 { 3 } else { 4 }, Release);
            } else {
                self.light.0.store(if can { 1 } else { 2 }, Release);
                wait_for(|| self.light.0.load(Acquire) > 2);
            }
            be_light(self.light.0.load(Relaxed) == 3);
        }
    }

    /// Each has a core, where there are two: who is woken comes to its waker's else, and they never meet.
    fn on_core(i: usize) {
        let cores = topology::allowed_cores();
        topology::allow(&cores[i.min(cores.len() - 1)..][..1]);
    }

    fn hesitate(n: u64) {
        (0..n).for_each(|i| _ = std::hint::black_box(i));
    }

    /// Spins, and yields at times: the other may need this core.
    fn wait_for(done: impl Fn() -> bool) {
        while !(0..1000).any(|_| done()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_is_next_stays_where_that_has_not_been_in_vain() {
        let (bell, sleepers, record, abort) = Default::default();
        let waiter = |cores| Waiter::new(&bell, &sleepers, &record, &abort, cores);
        let turn = |waiter: &Waiter<'_>| waiter.staying.turn.set(STAY_MOST_US * waiter.ticks_per_us);
        let [own, shared] = [Cores::Own, Cores::Shared].map(waiter);
        [&own, &shared].into_iter().for_each(turn);
        let looks = Cell::new(0);
        let after = |many| {
            looks.set(0);
            let looks = &looks;
            move || looks.replace(looks.get() + 1) == many
        };
        assert!(!own.stays(after(0)) && looks.get() == 0);
        assert!(shared.stays(after(0)) && shared.stays(after(0)) && looks.get() == 1);
        // In vain: so many are left out until the next.
        let gaps = [2, 3, 5, 9, 17, 33, 65, 65];
        for gap in gaps {
            shared.turns.set(TURNS);
            assert!(!shared.stays(after(u32::MAX)) && looks.get() > 0);
            assert!((1..gap).all(|_| !shared.stays(after(0)) && looks.get() == 0));
        }
        // Not so any more when it was right once.
        shared.turns.set(TURNS);
        assert!(shared.stays(after(0)) && shared.stays(after(0)));
        // As long as the last turn took.
        shared.staying.turn.set(0);
        assert!(!shared.stays(after(1)) && looks.get() == 1);
        // One of eight serves others, and none looks on beside a foreign load.
        turn(&shared);
        shared.staying.left.set(0);
        shared.turns.set(TURNS);
        assert_eq!((0..8).filter(|_| shared.stays(after(0))).count(), 7);
        shared.no_yield_before.set(u64::MAX);
        assert!((0..8).all(|_| !shared.stays(after(0)) && looks.get() == 0));
    }

    #[test]
    fn no_wake_of_a_thread_is_lost() {
        let both = Both::default();
        let lost = std::thread::scope(|s| {
            let waker = s.spawn(|| {
                both.agree(false);
                both.wakes();
            });
            both.agree(true);
            let sleeper = s.spawn(|| both.sleeps());
            waker.join().unwrap();
            sleeper.join().unwrap()
        });
        assert_eq!(lost, 0, "wakes were lost");
    }

    #[test]
    fn those_who_met_a_foreign_load_yield_again_together() {
        let (node, now) = (Sleepers::default(), 1_000_000);
        let first = node.met_foreign_load(now, 1);
        assert_eq!(first, now + FOREIGN_FIRST_US);
        assert_eq!(node.met_foreign_load(now + FOREIGN_FIRST_US / 2, 1), first);
        // Again and again: twice as long each time, up to the most.
        let (mut until, mut hold) = (first, FOREIGN_FIRST_US);
        for _ in 0..8 {
            let (now, next) = (until + hold / 2, (2 * hold).min(FOREIGN_MOST_US));
            (until, hold) = (node.met_foreign_load(now, 1), next);
            assert_eq!(until, now + hold);
        }
        // After a while it is another one, also for a counter that has gone back.
        let later = until + FOREIGN_MOST_US + 1;
        assert_eq!(node.met_foreign_load(later, 1), later + FOREIGN_FIRST_US);
        assert_eq!(node.met_foreign_load(7, 1), 7 + FOREIGN_FIRST_US);
    }

    #[test]
    fn what_ranks_do_themselves_is_no_foreign_load() {
        let toil = Toil::default();
        let at = |now: u64| (now, toil.0.load(Relaxed));
        let begun = at(100);
        toil.add(TOIL_US * ticks_per_us());
        assert_eq!(idle(at(150), begun), 50, "that was short");
        let long = TOIL_US * ticks_per_us() + 1;
        toil.add(long);
        assert_eq!(idle(at(100 + long + 7), begun), 7);
        // On two cores at once.
        toil.add(long);
        assert_eq!(idle(at(100 + long + 7), begun), 0);
    }

    #[test]
    fn who_speaks_looks_on_now_and_then_and_with_who_looks() {
        let (me, other) = (Both::default(), Bell::default());
        let waiter = Waiter::new(&me.bell.0, &me.sleepers.0, &me.record.0, &me.abort.0, Cores::Shared);
        let says = |bell: &Bell| bell.0.word().load(Relaxed);
        assert!(!(0..1000).any(|_| waiter.meets(1)), "nothing was said");
        let waits = || {
            let meets = |_: &u32| {
                waiter.spoke();
                waiter.meets(ticks())
            };
            (1..1000).find(meets)
        };
        // In vain: half as often each time.
        for every in [MEET_OFTEN, 2 * MEET_OFTEN, 4 * MEET_OFTEN, MEET_SELDOM, MEET_SELDOM] {
            assert_eq!(waits(), Some(every));
            assert_eq!(waiter.meet(&|| Step::Idle), Step::Idle);
            assert_eq!(says(&me.bell.0), 0);
        }
        // What is said to who does not look changes nothing.
        other.speak_after_fence();
        assert!(!waiter.meets(1));
        // With who looks at once, and as long as that goes well.
        other.0.word().store(LOOKS, Relaxed);
        for _ in 0..3 {
            other.speak_after_fence();
            assert!(waiter.meets(ticks()));
            assert_eq!(waiter.meet(&|| Step::Busy), Step::Busy);
            assert_eq!(says(&me.bell.0), LOOKS);
        }
        // Not for ever.
        other.speak_after_fence();
        assert!(!waiter.meets(ticks() + (TOGETHER_US + 1) * waiter.ticks_per_us));
        assert_eq!(says(&me.bell.0), 0);
        assert_eq!(waits(), Some(MEET_OFTEN - 1));
        // Who sleeps does not look.
        assert_eq!(waiter.meet(&|| Step::Busy), Step::Busy);
        assert_eq!(waiter.park(&|say| say(&Site::here("test")), &|| Step::Done), Ok(Step::Done));
        assert_eq!((says(&me.bell.0), waiter.meeting.since.get()), (0, 0));
        assert!(!other.is_parked());
    }

    const MEMORY: &str = "WAIT_TESTS_MEMORY";

    fn map(file: impl AsFd) -> Mapping {
        Mapping::new(file.as_fd(), size_of::<Both>().next_multiple_of(4096), true).unwrap()
    }

    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn no_wake_of_a_process_is_lost() {
        let (file, _) = segment::create(size_of::<Both>().next_multiple_of(4096) as u64, false).unwrap();
        let map = map(&file);
        // SAFETY: zeroed memory of that size, on pages; all of it is atomics.
        let both: &Both = unsafe { &*map.base().cast() };
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "wait::tests::another_process_wakes", "--nocapture"]);
        other.env(MEMORY, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let mut other = Killed(other.stdout(std::process::Stdio::null()).spawn().unwrap());
        while both.light.0.load(Acquire) == 0 {
            assert!(other.0.try_wait().unwrap().is_none(), "the other process has ended");
            std::thread::yield_now();
        }
        both.agree(true);
        let lost = std::thread::scope(|s| s.spawn(|| both.sleeps()).join().unwrap());
        assert_eq!(lost, 0, "wakes were lost");
        assert!(other.0.wait().unwrap().success());
    }

    /// What the other process of the test above does; nothing otherwise.
    #[test]
    fn another_process_wakes() {
        let Ok(path) = std::env::var(MEMORY) else { return };
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        let map = map(std::fs::File::options().read(true).write(true).open(path).unwrap());
        // SAFETY: as above.
        let both: &Both = unsafe { &*map.base().cast() };
        both.agree(false);
        both.wakes();
    }
}
