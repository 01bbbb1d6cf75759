//! Locks: one word that says who holds it, and a queue of those who wait, over atomics wherever they live.
//!
//! # What it promises
//! One holder at a time. What a holder wrote before it released is seen by the next. A rank that waits gets the lock, as
//! long as holders release it: it is passed over by others for a bounded time only. A rank that waits looks at memory of
//! its own until it is the first in the queue, and sends nothing to anybody.
//!
//! Does not contain: the value that a lock guards, which lies behind its [`Cell`]; messages; how anybody waits.
//!
//! # On a node
//! *word*: 0 is free; else the holder ([`Owner`]: its rank and where in its source it took the lock) and flags. Whoever finds 0 takes it,
//! whoever else waits: with more ranks than cores a lock that is handed over in order waits for a rank that has no core.
//! Who finds it held queues, as in the lock of Mellor-Crummey and Scott: it swaps itself into *tail*, links itself to who
//! was there ([`Turn`]), and waits for its turn. Whose turn it is is the *head*, and is written to *head*: it
//! waits for the word. When it has the word, or finds that the lock was freed, it passes the turn on. Who releases looks at *head* and rings that one bell.
//! If the head starves, [`HANDOFF`] is set, by the head or by who releases: then nobody but the head takes the word. (Who
//! holds the word and has seen a head knows that it stays one: it leaves by taking the word, or a lock that was freed.)
//!
//! # From elsewhere
//! A rank that does not reach the word asks a thread of its *home*, the process in whose memory it lies, by one message
//! ([`Cell::ask`]). If the lock is held, it is put into a [`Line`] in memory of the node, and [`FAR`] is set.
//! A holder that finds FAR does not release but hands the lock on ([`Cell::hand_on`]), which makes the word that of
//! the next in the line and says whom to tell; for a holder that does not reach the word its home does. HANDOFF goes before FAR, and the next head needs its time to starve: so
//! both sides come to their turn. FAR is set only while there is a line, and a word without holder has FAR only if it has
//! HANDOFF.
//!
//! # Memory ordering
//! * The word is changed by read-modify-writes only, so whoever takes it (acquire) has seen everything before any release of
//!   it, also when flags were set in between.
//! * Taking it is also a release: of the text that says where its holder took it (`shm::lock`), for who reads of it.
//! * Releasing and falling asleep is store buffering: the head has stored itself to *head* and its bell, fences, and looks at
//!   the word ([`crate::wait`]); who releases changes the word, fences, and looks at *head* and the bell. One
//!   sees the other. On x86-64 the locked instruction is the fence.
//! * *head* is written by who holds the lock and passes the turn on, before it releases the word; the next one writes it
//!   when it has the word, which acquires that. (So a turn would not need its release and acquire; they cost nothing, and whoever
//!   has the turn has seen what was before.) Or it is zero, by the release of the tail, which the swap of whoever finds the
//!   queue empty acquires.
//! * A link is a release: it comes after the reset of the linker's own turn, which the turn that is passed to it must not
//!   come before.

use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use crate::wait::{Aborted, Bell};

/// The head starves: only the head takes the word.
pub const HANDOFF: u64 = 1 << 63;
/// Ranks wait that do not reach the word.
pub const FAR: u64 = 1 << 62;
/// The lock is no more.
pub const FREED: u64 = 1 << 61;
/// The site is one of the home's table, not of the holder's process's.
const OF_HOME: u64 = 1 << 60;
const FLAGS: u64 = HANDOFF | FAR | FREED;
const RANK_BITS: u32 = 21;

/// A holder, as the word has it: its rank in the job, and the number of the site where it took the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u64);

impl Owner {
    /// `site` is a number of the holder's process's table, or of the home's.
    #[inline(always)]
    pub fn new(rank: u32, site: u32, of_home: bool) -> Owner {
        Owner(u64::from(rank + 1) | u64::from(site) << RANK_BITS | if of_home { OF_HOME } else { 0 })
    }

    /// The holder that a word names, if it names one.
    pub fn of(word: u64) -> Option<Owner> {
        (word & ((1 << RANK_BITS) - 1) != 0).then_some(Owner(word & !FLAGS))
    }

    /// Its rank.
    pub fn rank(self) -> u32 {
        (self.0 as u32 & ((1 << RANK_BITS) - 1)) - 1
    }

    /// The number of the site.
    pub fn site(self) -> u32 {
        (self.0 >> RANK_BITS) as u32
    }

    /// As the word has it.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Is it one of the home's table?
    pub fn is_of_home(self) -> bool {
        self.0 & OF_HOME != 0
    }
}

/// A lock: 16 bytes of shared memory. All zeros is free.
#[repr(C)]
#[derive(Debug)]
pub struct Cell {
    word: AtomicU64,
    /// The last in the queue, by its number on the node plus one; 0: nobody waits.
    tail: AtomicU32,
    /// The head, if it waits for the word.
    head: AtomicU32,
    /// In a model the right to write *head* is a cell, so that an order that is missing is reported.
    #[cfg(loom)]
    right: crate::sync::Plain,
}

/// A rank's place in the queue of the lock that it waits for. One is enough: a rank waits for one lock at a time.
#[repr(C)]
#[derive(Debug)]
pub struct Turn {
    /// Who comes after it, by its number on the node plus one.
    next: AtomicU32,
    /// Since when it is its turn; 0: it is not yet.
    come: AtomicU64,
}

impl Default for Cell {
    fn default() -> Self {
        Cell {
            word: AtomicU64::new(0),
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
            #[cfg(loom)]
            right: Default::default(),
        }
    }
}

impl Default for Turn {
    fn default() -> Self {
        Turn { next: AtomicU32::new(0), come: AtomicU64::new(0) }
    }
}

/// The ranks of a node, as those who release need them.
pub trait Neighbours {
    /// Turn and bell of one, by its number on the node; `None` if there is no such.
    fn of(&self, near: usize) -> Option<(&Turn, &Bell)>;
    /// Has one that is the head since then waited for too long?
    fn starves(&self, since: u64) -> bool;
}

/// One of them that wants a lock, and how it waits.
pub trait Waits: Neighbours {
    /// Its number on the node.
    fn me(&self) -> usize;
    /// Waits, and serves others meanwhile. The bell of this rank is rung when something has changed.
    fn until(&self, done: impl Fn() -> bool + Copy) -> Result<(), Aborted>;
    /// Which time of its wait counts: since it began to wait, or since it is the head?
    fn counts(&self, begun: u64, head: u64) -> u64;
    /// The time, by a clock that all ranks of the node have.
    fn now(&self) -> u64;
}

/// Those who wait for one lock without reaching it, first come first. Whoever has the line of a lock has it alone.
pub trait Line {
    /// Whose turn it is.
    fn first(&self) -> Option<Owner>;
    /// Does anybody come after the first?
    fn has_more(&self) -> bool;
    /// The first waits no more.
    fn take_first(&mut self);
    /// One comes; false if it waits already.
    fn add(&mut self, owner: Owner) -> bool;
}

/// Why a rank that waited does not have the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It has it already.
    Yours(Owner),
    /// It was freed.
    Freed,
    /// The memory is not that of a lock.
    NotALock,
    /// The job was aborted.
    Aborted,
}

impl From<Aborted> for Refused {
    fn from(_: Aborted) -> Refused {
        Refused::Aborted
    }
}

/// What a head saw.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Held,
    Freed,
    Taken,
}

/// What became of a lock that a rank of the node released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// It is free, and the head knows.
    Free,
    /// Nothing: it is to be handed on.
    HandOn,
    /// Nothing: it was freed, and others of the node wait for it. They know; release it again when none [`Cell::is_awaited`].
    Freeing,
    /// It was freed, and nobody waits for it: the memory is nobody's.
    Freed,
    /// This rank was not its holder: something else was written there.
    NotYours,
}

/// What the home says to who asks for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// It is yours.
    Granted,
    /// You will be told; this is who has it.
    Queued(Option<Owner>),
    /// It is held, and you did not want to wait.
    Busy,
    /// You have it already.
    Yours(Owner),
    /// You wait already.
    Waits,
    /// It was freed.
    Freed,
}

/// What became of a lock that was to be handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// It is free.
    Free,
    /// It is this one's, who is to be told.
    To(Owner),
    /// It was freed, and somebody waits for it: who is named is to be told. Then this is asked again: who asked is still its
    /// holder.
    Freeing(Option<Owner>),
    /// It was freed, and nobody waits for it: the memory is nobody's.
    Freed,
    /// Who asked was not its holder.
    NotYours,
}

impl Cell {
    /// Takes it if it is free.
    #[inline(always)]
    pub fn try_take(&self, mine: Owner) -> bool {
        self.word.compare_exchange(0, mine.0, AcqRel, Relaxed).is_ok()
    }

    /// Who holds it, for a message.
    pub fn holder(&self) -> Option<Owner> {
        Owner::of(self.word.load(Acquire))
    }

    /// Takes it when it can be had.
    pub fn take<W: Waits>(&self, mine: Owner, waits: &W) -> Result<(), Refused> {
        let seen = self.word.load(Acquire);
        match Owner::of(seen) {
            Some(there) if there.rank() == mine.rank() => return Err(Refused::Yours(there)),
            _ if seen & FREED != 0 => return Err(Refused::Freed),
            _ => {}
        }
        let (me, begun) = (waits.me() as u32 + 1, waits.now());
        let of = |near: u32| waits.of(near.wrapping_sub(1) as usize).ok_or(Refused::NotALock);
        let (turn, _) = of(me)?;
        turn.next.store(0, Relaxed);
        turn.come.store(0, Relaxed);
        let before = self.tail.swap(me, AcqRel);
        if before == 0 {
            turn.come.store(begun.max(1), Relaxed);
            self.set_head(me);
        } else {
            let (theirs, bell) = of(before)?;
            theirs.next.store(me, Release);
            // It may wait for the link.
            bell.ring();
            waits.until(|| turn.come.load(Acquire) != 0)?;
            turn.come.store(waits.counts(begun, turn.come.load(Relaxed)).max(1), Relaxed);
        }
        let seen = std::cell::Cell::new(Seen::Held);
        waits.until(|| {
            seen.set(self.look(mine, || waits.starves(turn.come.load(Relaxed))));
            seen.get() != Seen::Held
        })?;
        let result = if seen.get() == Seen::Freed { Err(Refused::Freed) } else { Ok(()) };
        let next = || turn.next.load(Acquire);
        if next() == 0 {
            self.set_head(0);
            if self.tail.compare_exchange(me, 0, Release, Relaxed).is_ok() {
                return result;
            }
            // Somebody is between its swap and its link.
            waits.until(|| next() != 0)?;
        }
        let near = next();
        let (theirs, bell) = of(near)?;
        // It may have no core to say it itself, and starve.
        self.set_head(near);
        theirs.come.store(waits.now().max(1), Release);
        bell.ring();
        result
    }

    #[inline(always)]
    fn set_head(&self, near: u32) {
        #[cfg(loom)]
        self.right.set(near.into());
        self.head.store(near, Relaxed);
    }

    /// The head looks at the word, and takes it if it can be had.
    #[inline(always)]
    fn look(&self, mine: Owner, starves: impl Fn() -> bool) -> Seen {
        loop {
            let word = self.word.load(Relaxed);
            if word & FREED != 0 {
                return Seen::Freed;
            }
            if word & !(HANDOFF | FAR) == 0 {
                if self.word.compare_exchange(word, mine.0 | word & FAR, AcqRel, Relaxed).is_ok() {
                    return Seen::Taken;
                }
                continue;
            }
            if word & HANDOFF != 0 || !starves() {
                return Seen::Held;
            }
            self.word.fetch_or(HANDOFF, Relaxed);
        }
    }

    /// Releases it.
    #[inline(always)]
    pub fn release(&self, mine: Owner, neighbours: &impl Neighbours) -> Released {
        let head = self.head.load(Relaxed);
        if head != 0 && neighbours.of(head as usize - 1).is_some_and(|h| neighbours.starves(h.0.come.load(Relaxed))) {
            self.word.fetch_or(HANDOFF, Relaxed);
        }
        match self.word.compare_exchange(mine.0, 0, Release, Relaxed) {
            Ok(_) => {
                self.ring_head(neighbours);
                Released::Free
            }
            Err(_) => self.release_slowly(mine, neighbours),
        }
    }

    #[cold]
    #[inline(never)]
    fn release_slowly(&self, mine: Owner, neighbours: &impl Neighbours) -> Released {
        loop {
            let word = self.word.load(Relaxed);
            let (new, released) = match word {
                _ if word & !FLAGS != mine.0 => return Released::NotYours,
                _ if word & FREED != 0 && word & FAR != 0 => return Released::HandOn,
                _ if word & FREED != 0 && self.is_awaited() => {
                    self.ring_head(neighbours);
                    return Released::Freeing;
                }
                _ if word & FREED != 0 => (FREED, Released::Freed),
                _ if word & HANDOFF != 0 => (word & (HANDOFF | FAR), Released::Free),
                _ if word & FAR != 0 => return Released::HandOn,
                _ => (0, Released::Free),
            };
            if self.word.compare_exchange(word, new, Release, Relaxed).is_ok() {
                self.ring_head(neighbours);
                return released;
            }
        }
    }

    /// Does anybody of the node wait for it? Once it was freed, who leaves last touches it no more.
    pub fn is_awaited(&self) -> bool {
        self.tail.load(Acquire) != 0
    }

    /// After a read-modify-write of the word: wakes the head if it sleeps.
    #[inline(always)]
    fn ring_head(&self, neighbours: &impl Neighbours) {
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        crate::sync::full_fence();
        let head = self.head.load(Relaxed);
        if head != 0
            && let Some((_, bell)) = neighbours.of(head as usize - 1)
        {
            bell.ring_after_fence();
        }
    }

    /// The home: a rank that does not reach the word wants the lock, and is put into the `line` if it is held and the rank
    /// waits.
    pub fn ask(&self, theirs: Owner, waits: bool, line: &mut impl Line) -> Asked {
        loop {
            let word = self.word.load(Acquire);
            let there = Owner::of(word);
            match there {
                _ if word == 0 => {
                    if self.try_take(theirs) {
                        return Asked::Granted;
                    }
                    continue;
                }
                _ if word & FREED != 0 => return Asked::Freed,
                Some(there) if there.rank() == theirs.rank() && waits => return Asked::Yours(there),
                _ if !waits => return Asked::Busy,
                _ => {}
            }
            if self.word.compare_exchange(word, word | FAR, Relaxed, Relaxed).is_ok() {
                return if line.add(theirs) { Asked::Queued(there) } else { Asked::Waits };
            }
        }
    }

    /// This rank, the holder, wants the lock to be released or handed on: itself, or the home for one that does not reach the word.
    pub fn hand_on(&self, rank: u32, line: &mut impl Line, neighbours: &impl Neighbours) -> Handed {
        loop {
            let word = self.word.load(Relaxed);
            if Owner::of(word).is_none_or(|there| there.rank() != rank) {
                return Handed::NotYours;
            }
            let far = |waits: bool| if waits { FAR } else { 0 };
            let (new, handed) = match line.first() {
                next if word & FREED != 0 && (next.is_some() || self.is_awaited()) => (word, Handed::Freeing(next)),
                _ if word & FREED != 0 => (FREED, Handed::Freed),
                Some(next) if word & HANDOFF == 0 => (next.0 | far(line.has_more()), Handed::To(next)),
                next => (word & HANDOFF | far(next.is_some()), Handed::Free),
            };
            if self.word.compare_exchange(word, new, AcqRel, Relaxed).is_ok() {
                if let Handed::To(_) | Handed::Freeing(Some(_)) = handed {
                    line.take_first();
                }
                self.ring_head(neighbours);
                return handed;
            }
        }
    }
}

#[cfg(test)]
mod line {
    use super::{Line, Owner};

    impl Line for std::collections::VecDeque<Owner> {
        fn first(&self) -> Option<Owner> {
            self.front().copied()
        }
        fn has_more(&self) -> bool {
            self.len() > 1
        }
        fn take_first(&mut self) {
            self.pop_front();
        }
        fn add(&mut self, owner: Owner) -> bool {
            self.push_back(owner);
            true
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct Nobody;
    impl Neighbours for Nobody {
        fn of(&self, _: usize) -> Option<(&Turn, &Bell)> {
            None
        }
        fn starves(&self, _: u64) -> bool {
            false
        }
    }

    #[test]
    fn an_owner_is_its_rank_and_site() {
        for (rank, site, home) in [(0, 0, false), (0, 7, true), ((1 << 20) - 1, u32::MAX, true), (5, 4095, false)] {
            let owner = Owner::new(rank, site, home);
            assert_eq!((owner.rank(), owner.site(), owner.is_of_home()), (rank, site, home));
            assert_eq!(Owner::of(owner.0 | FLAGS), Some(owner));
        }
        assert_eq!((Owner::of(0), Owner::of(FLAGS)), (None, None));
    }

    #[test]
    fn the_home_hands_on_in_order_and_heads_come_first() {
        let (cell, mut line) = (Cell::default(), VecDeque::new());
        let [a, b, c] = [1, 2, 3].map(|r| Owner::new(r, 0, true));
        let near = Owner::new(9, 1, false);
        assert_eq!(cell.ask(a, true, &mut line), Asked::Granted);
        assert_eq!(cell.ask(b, false, &mut line), Asked::Busy);
        assert_eq!(cell.ask(a, true, &mut line), Asked::Yours(a));
        assert_eq!(cell.ask(b, true, &mut line), Asked::Queued(Some(a)));
        assert_eq!(cell.ask(c, true, &mut line), Asked::Queued(Some(a)));
        assert_eq!(cell.hand_on(2, &mut line, &Nobody), Handed::NotYours);
        assert_eq!(cell.hand_on(1, &mut line, &Nobody), Handed::To(b));
        // A head on the node starves.
        cell.word.fetch_or(HANDOFF, Relaxed);
        assert_eq!(cell.hand_on(2, &mut line, &Nobody), Handed::Free);
        assert!(!cell.try_take(near) && cell.holder().is_none());
        assert!(cell.look(near, || false) == Seen::Taken && cell.holder() == Some(near));
        // Who waits elsewhere is not forgotten.
        assert_eq!(cell.release(near, &Nobody), Released::HandOn);
        assert_eq!(cell.hand_on(9, &mut line, &Nobody), Handed::To(c));
        assert_eq!(cell.release(near, &Nobody), Released::NotYours);
        assert_eq!(cell.hand_on(3, &mut line, &Nobody), Handed::Free);
        assert!(cell.try_take(near) && cell.release(near, &Nobody) == Released::Free && line.is_empty());
    }

    #[test]
    fn a_lock_that_was_freed_is_its_holders_until_it_releases_it() {
        let (cell, mut line) = (Cell::default(), VecDeque::new());
        let [near, far] = [Owner::new(1, 1, false), Owner::new(2, 1, true)];
        assert!(cell.try_take(near));
        cell.word.fetch_or(FREED, Relaxed);
        assert_eq!(cell.ask(far, true, &mut line), Asked::Freed);
        assert_eq!(cell.release(near, &Nobody), Released::Freed);
        assert!(!cell.try_take(near));
        // Whoever waits for it elsewhere hears of it.
        let (cell, farther) = (Cell::default(), Owner::new(3, 1, true));
        assert!(cell.try_take(near));
        for waits in [far, farther] {
            assert_eq!(cell.ask(waits, true, &mut line), Asked::Queued(Some(near)));
        }
        cell.word.fetch_or(FREED, Relaxed);
        assert_eq!(cell.release(near, &Nobody), Released::HandOn);
        assert_eq!(cell.hand_on(1, &mut line, &Nobody), Handed::Freeing(Some(far)));
        assert_eq!(cell.hand_on(1, &mut line, &Nobody), Handed::Freeing(Some(farther)));
        assert_eq!(cell.hand_on(1, &mut line, &Nobody), Handed::Freed);
        assert!(!cell.try_take(near) && cell.hand_on(1, &mut line, &Nobody) == Handed::NotYours);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Plain;
    use crate::wait::models::Sleeper;
    use loom::sync::{Arc, Mutex};
    use std::collections::VecDeque;

    struct Place {
        turn: Turn,
        sleeper: Sleeper,
        /// It was told that it has the lock.
        granted: AtomicU32,
    }

    /// One lock, what it guards, and its ranks; those that do not reach it have a line.
    struct Model {
        cell: Cell,
        value: Plain,
        line: Mutex<VecDeque<Owner>>,
        places: Vec<Place>,
    }

    #[derive(Clone)]
    struct Rank {
        model: Arc<Model>,
        me: usize,
        starves: bool,
    }

    impl Neighbours for Rank {
        fn of(&self, near: usize) -> Option<(&Turn, &Bell)> {
            self.model.places.get(near).map(|p| (&p.turn, &p.sleeper.bell))
        }
        fn starves(&self, _: u64) -> bool {
            self.starves
        }
    }

    impl Waits for Rank {
        fn me(&self) -> usize {
            self.me
        }
        fn until(&self, done: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
            self.model.places[self.me].sleeper.until(done);
            Ok(())
        }
        fn counts(&self, _: u64, head: u64) -> u64 {
            head
        }
        fn now(&self) -> u64 {
            0
        }
    }

    impl Rank {
        fn mine(&self, far: bool) -> Owner {
            Owner::new(self.me as u32, 0, far)
        }

        fn count(&self) {
            let value = &self.model.value;
            value.set(value.get() + 1);
        }

        /// What a rank of the node does.
        fn near(&self) {
            let mine = self.mine(false);
            if !self.model.cell.try_take(mine) {
                self.model.cell.take(mine, self).unwrap();
            }
            self.count();
            match self.model.cell.release(mine, self) {
                Released::Free => {}
                Released::HandOn => self.hand_on(),
                other => panic!("{other:?}"),
            }
        }

        /// What a rank of another node does, by the hands of a thread of the home.
        fn far(&self) {
            let place = &self.model.places[self.me];
            let mine = self.mine(true);
            let asked = self.model.cell.ask(mine, true, &mut *self.model.line.lock().unwrap());
            match asked {
                Asked::Granted => {}
                Asked::Queued(_) => place.sleeper.until(|| place.granted.load(Acquire) != 0),
                other => panic!("{other:?}"),
            }
            self.count();
            self.hand_on();
        }

        fn hand_on(&self) {
            let handed = self.model.cell.hand_on(self.me as u32, &mut *self.model.line.lock().unwrap(), self);
            match handed {
                Handed::Free => {}
                Handed::To(owner) => {
                    let place = &self.model.places[owner.rank() as usize];
                    place.granted.store(1, Release);
                    place.sleeper.bell.ring();
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// So many ranks of the node, each with how often it locks and whether it starves at once, and so many of others.
    fn check(preemptions: usize, near: &'static [(usize, bool)], far: usize) {
        let mut builder = loom::model::Builder::new();
        if builder.preemption_bound.is_none() {
            builder.preemption_bound = Some(preemptions);
        }
        builder.check(move || {
            let n = near.len() + far;
            let place = |_| Place { turn: Turn::default(), sleeper: Sleeper::default(), granted: AtomicU32::new(0) };
            let (places, (cell, value)) = ((0..n).map(place).collect(), Default::default());
            let model = Arc::new(Model { cell, value, line: Mutex::new(VecDeque::new()), places });
            let run = |me: usize| {
                let rank = Rank { model: model.clone(), me, starves: near.get(me).is_some_and(|n| n.1) };
                move || match near.get(me) {
                    Some((times, _)) => (0..*times).for_each(|_| rank.near()),
                    None => rank.far(),
                }
            };
            let others: Vec<_> = (1..n).map(|me| loom::thread::spawn(run(me))).collect();
            run(0)();
            others.into_iter().for_each(|t| t.join().unwrap());
            let times = near.iter().map(|n| n.0).sum::<usize>() + far;
            assert_eq!(model.value.get(), times as u64, "one at a time, and each sees the one before");
            assert_eq!(model.cell.word.load(Relaxed) | u64::from(model.cell.tail.load(Relaxed)), 0, "free in the end");
        });
    }

    /// Whoever waits for a lock when it is freed hears of it, and leaves the queue as it was.
    #[test]
    fn loom_freed() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(|| {
            let place = |_| Place { turn: Turn::default(), sleeper: Sleeper::default(), granted: AtomicU32::new(0) };
            let (cell, value) = Default::default();
            let model = Model { cell, value, line: Mutex::new(VecDeque::new()), places: (0..3).map(place).collect() };
            let model = Arc::new(model);
            let rank = |me| Rank { model: model.clone(), me, starves: false };
            let holder = rank(0);
            assert!(model.cell.try_take(holder.mine(false)));
            let others = [1, 2].map(|me| {
                let rank = rank(me);
                loom::thread::spawn(move || {
                    assert_eq!(rank.model.cell.take(rank.mine(false), &rank), Err(Refused::Freed));
                })
            });
            model.cell.word.fetch_or(FREED, Relaxed);
            let release = || model.cell.release(holder.mine(false), &holder);
            let released = release();
            others.into_iter().for_each(|t| t.join().unwrap());
            assert!(released == Released::Freed || (released == Released::Freeing && release() == Released::Freed));
            assert!(!model.cell.is_awaited(), "nobody is left in the queue");
        });
    }

    #[test]
    fn loom_two_ranks() {
        check(3, &[(2, false), (2, false)], 0);
    }

    #[test]
    fn loom_two_ranks_of_which_one_starves() {
        check(3, &[(2, true), (2, false)], 0);
    }

    #[test]
    fn loom_three_ranks() {
        check(2, &[(1, false), (1, false), (1, false)], 0);
    }

    #[test]
    fn loom_three_ranks_that_starve() {
        check(2, &[(1, true), (1, true), (1, true)], 0);
    }

    #[test]
    fn loom_one_here_and_one_elsewhere() {
        check(3, &[(2, false)], 1);
    }

    #[test]
    fn loom_two_here_and_one_elsewhere() {
        check(2, &[(1, true), (1, false)], 1);
    }

    #[test]
    fn loom_one_here_and_two_elsewhere() {
        check(2, &[(1, false)], 2);
    }
}
