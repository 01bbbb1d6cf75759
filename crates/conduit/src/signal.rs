//! Semaphores that other ranks signal: one counts what was posted, its owner what it has taken of that.
//!
//! A semaphore is a [`Cell`], which posters write, and a [`Taken`], which consumers write: a line that two ranks pass back
//! and forth is written by one of them. Its value is what was posted less what was taken; a boolean one is posted or not,
//! and taking clears it. Others name it by 64 bits ([`Name`]), which say what may be done with it, so that nothing is asked
//! before it is signaled. A name outlives its semaphore: the cell has a *generation*, by which a stale name is known. What is posted
//! by a stale name is ignored: who has freed a semaphore does not want to hear any more.
//!
//! # Memory ordering
//! * A post releases, taking acquires: what a poster wrote before is there for who has taken what it posted. Posts of
//!   several are read-modify-writes, so that taking the last of them acquires from all; a single producer stores.
//! * Several consumers agree by exchanging [`Taken`]. Each loads it (acquire) before it loads what was posted: whoever wrote it
//!   had seen at least so much posted, so the difference is never negative.
//! * Posts that come by messages take effect in the order in which their rank made them ([`Sequence`]), as those by stores do: who
//!   has taken a rank's first post has what came with the first.
//! * Whoever has posted makes a light fence and looks at who sleeps: the owner at its [`Bell`](crate::wait::Bell), other threads of its process
//!   in the [`Crowd`] of the cell. Sleepers look again after a heavy fence (see [`crate::wait`]).
//! * The generation is written by the owner. A post looks at it first. One that is under way while the semaphore is freed
//!   writes to a cell that has no semaphore; so a cell gets another one only when all ranks have met since (see
//!   [`crate::shm::signal`]): whoever posts by an old name then sees that it is old.
//! * Threads that are no ranks come to no barrier. They count themselves in the cell ([`Cell::post_as_guest`]), make a full
//!   fence, and look at the generation; who is about to use the cell again has written the generation, makes a full fence, and
//!   looks whether there are any ([`Cell::has_guests`]). Either it sees one, and takes another cell, or all that come later see
//!   that their name is old.

use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use crate::wait::Crowd;

/// Semaphores that a rank can have.
pub const MOST: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 18;
const FLAVOR_BITS: u32 = 3;
const GENERATION_BITS: u32 = 23;
const RANK_SHIFT: u32 = INDEX_BITS + FLAVOR_BITS + GENERATION_BITS;
/// The largest value of a semaphore that counts.
pub const MOST_POSTED: u64 = (1 << 31) - 1;
/// A post looks whether there are too many when the count passes a multiple of this: it reads the consumers' line then.
const LOOK: u32 = 16;

const BOOLEAN: u64 = 1 << GENERATION_BITS;
const SINGLE: u64 = 2 << GENERATION_BITS;
const STRICT: u64 = 4 << GENERATION_BITS;

/// What a semaphore is named by: its rank, which of that rank's it is, its flavor, and its generation. Zero names none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u64);

/// What a semaphore is for. Each that is set forbids something, and may make the rest cheaper.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flavor {
    /// It is posted or not, and posts merge.
    pub boolean: bool,
    /// One rank posts.
    pub single_producer: bool,
    /// One thread takes.
    pub single_consumer: bool,
    /// Posting and taking are full fences of their ranks.
    pub strict: bool,
}

impl Name {
    /// Of a rank's semaphore.
    pub fn new(rank: u32, index: usize, flavor: Flavor, generation: u32) -> Name {
        debug_assert!(rank < 1 << 20 && index < MOST && generation < 1 << GENERATION_BITS);
        let flag = |set, bit| if set { bit } else { 0 };
        let flags = flag(flavor.boolean, BOOLEAN) | flag(flavor.single_producer, SINGLE) | flag(flavor.strict, STRICT);
        let index = (index as u64) << (FLAVOR_BITS + GENERATION_BITS);
        Name(u64::from(rank) << RANK_SHIFT | index | flags | u64::from(generation))
    }

    /// Whose it is.
    #[inline(always)]
    pub fn rank(self) -> u32 {
        (self.0 >> RANK_SHIFT) as u32
    }

    /// Which of its rank's it is.
    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 >> (FLAVOR_BITS + GENERATION_BITS)) as usize % MOST
    }

    /// Are posts merged?
    #[inline(always)]
    pub fn is_boolean(self) -> bool {
        self.0 & BOOLEAN != 0
    }

    /// Does one rank post?
    #[inline(always)]
    pub fn has_one_producer(self) -> bool {
        self.0 & SINGLE != 0
    }

    /// Is posting a full fence?
    #[inline(always)]
    pub fn is_strict(self) -> bool {
        self.0 & STRICT != 0
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        self.0 as u32 % (1 << GENERATION_BITS)
    }
}

/// Why a post was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There never was such a semaphore.
    NoSuch,
    /// It would count too far.
    TooMany,
    /// That rank is its one producer.
    SecondProducer(u32),
    /// A boolean one was to be posted several times.
    Boolean,
}

/// What a message does when its bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Posts to a semaphore, so many times.
    Post(Name, u32),
    /// Adds to the word of 64 bits there, in the guarded half of the target.
    Add {
        /// Where the word is.
        offset: u64,
        /// What is added.
        value: u64,
    },
}

impl Notice {
    /// One to the same place that changes nothing there.
    pub fn of_nothing(self) -> Notice {
        match self {
            Notice::Post(name, _) => Notice::Post(name, 0),
            Notice::Add { offset, .. } => Notice::Add { offset, value: 0 },
        }
    }

    /// As it travels.
    pub fn encode(self) -> [u64; 2] {
        match self {
            Notice::Post(name, n) => [name.0, u64::from(n)],
            Notice::Add { offset, value } => [value, ADD | offset],
        }
    }

    /// What came.
    pub fn decode([what, n]: [u64; 2]) -> Option<Notice> {
        match n & ADD {
            0 => Some(Notice::Post(Name(what), u32::try_from(n).ok()?)),
            _ => Some(Notice::Add { offset: n & !ADD, value: what }).filter(|_| n & !ADD < 1 << NUMBER_AT),
        }
    }
}

/// Bits of a signal's number as a message carries it, and where they are among those of its notice.
pub const NUMBER_BITS: u32 = 14;
const NUMBER_AT: u32 = 48;

/// A notice and a number as they travel.
pub fn encode_numbered(notice: Notice, number: u32) -> [u64; 2] {
    let [what, n] = notice.encode();
    [what, n | u64::from(number % (1 << NUMBER_BITS)) << NUMBER_AT]
}

/// What came.
pub fn decode_numbered([what, n]: [u64; 2]) -> Option<(Notice, u32)> {
    let mask = ((1 << NUMBER_BITS) - 1) << NUMBER_AT;
    Some((Notice::decode([what, n & !mask])?, ((n & mask) >> NUMBER_AT) as u32))
}

/// The signals of one rank to another that come by messages, or by whatever may overtake another: they take effect in the order
/// in which they were sent. Each has a number, of which some low bits travel; fewer are under way than those can count.
#[derive(Debug, Default)]
pub struct Sequence {
    /// The number of the next that takes effect.
    next: u32,
    early: Vec<(u32, Notice)>,
}

impl Sequence {
    /// One has come, with so many bits of its number: whatever is due now takes effect.
    pub fn come(&mut self, low: u32, bits: u32, notice: Notice, mut takes_effect: impl FnMut(Notice)) {
        let ahead = low.wrapping_sub(self.next) % (1 << bits);
        if ahead > 0 {
            self.early.push((self.next.wrapping_add(ahead), notice));
            return;
        }
        self.next = self.next.wrapping_add(1);
        takes_effect(notice);
        while let Some(i) = self.early.iter().position(|&(number, _)| number == self.next) {
            let (_, notice) = self.early.swap_remove(i);
            self.next = self.next.wrapping_add(1);
            takes_effect(notice);
        }
    }
}

/// Which notice it is; offsets and numbers of posts are below.
const ADD: u64 = 1 << 63;
/// Set in the generation of a cell whose semaphore was freed.
const FREED: u32 = 1 << 31;
/// The last generation of a cell, which gets no other one then.
pub const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// What posters write.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Cell {
    posted: AtomicU64,
    /// Zero: there was no semaphore here yet.
    generation: AtomicU32,
    /// The rank that has posted, and one; of single producers, where it is looked at.
    producer: AtomicU32,
    /// Threads that are not the owner's rank and wait.
    pub crowd: Crowd,
    /// Threads that are no ranks and post at the moment.
    guests: AtomicU32,
}

/// What consumers write.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Taken(AtomicU64);

impl Cell {
    /// Begins a semaphore; its owner does.
    pub fn begin(&self, taken: &Taken, generation: u32) {
        self.posted.store(0, Relaxed);
        self.producer.store(0, Relaxed);
        taken.0.store(0, Relaxed);
        self.generation.store(generation, Release);
    }

    /// Ends it, and sends away who waits.
    pub fn end(&self) {
        self.generation.store(self.generation.load(Relaxed) | FREED, Release);
        crate::sync::light_fence();
        self.crowd.ring_after_fence();
    }

    /// Is the semaphore of this name here?
    #[inline(always)]
    pub fn is(&self, name: Name) -> bool {
        self.generation.load(Relaxed) == name.generation() && name.generation() != 0
    }

    /// Posts; whoever it may wake is to be looked for after a light fence. `alone`: no other thread posts here at the same
    /// time.
    #[inline(always)]
    pub fn post(&self, taken: &Taken, name: Name, n: u32, alone: bool) -> Result<(), Refused> {
        if !self.is(name) {
            return self.is_stale(name);
        }
        if name.is_boolean() {
            return self.post_boolean(n, alone);
        }
        let n = u64::from(n);
        let are_too_many = |before: u64| (before ^ (before + n)) >> LOOK != 0 && self.are_too_many(taken, before + n);
        if alone {
            let before = self.posted.load(Relaxed);
            if are_too_many(before) {
                return Err(Refused::TooMany);
            }
            self.posted.store(before + n, Release);
        } else if are_too_many(self.posted.fetch_add(n, AcqRel)) {
            self.posted.fetch_sub(n, Relaxed);
            return Err(Refused::TooMany);
        }
        Ok(())
    }

    /// The same from a thread that may be no rank's, at the same time as others.
    pub fn post_as_guest(&self, post: impl FnOnce() -> Result<(), Refused>) -> Result<(), Refused> {
        self.guests.fetch_add(1, Relaxed);
        crate::sync::full_fence();
        let posted = post();
        self.guests.fetch_sub(1, Release);
        posted
    }

    /// Is such a thread about to post, perhaps by the name of a semaphore that has ended? If not, what those before have posted
    /// is seen, and none posts by that name any more.
    pub fn has_guests(&self) -> bool {
        crate::sync::full_fence();
        self.guests.load(Acquire) != 0
    }

    /// It is not here: was it once?
    #[cold]
    fn is_stale(&self, name: Name) -> Result<(), Refused> {
        let last = self.generation.load(Relaxed) & !FREED;
        if name.generation() != 0 && name.generation() <= last { Ok(()) } else { Err(Refused::NoSuch) }
    }

    fn post_boolean(&self, n: u32, alone: bool) -> Result<(), Refused> {
        if n > 1 {
            return Err(Refused::Boolean);
        }
        match alone {
            _ if n == 0 => {}
            true => self.posted.store(1, Release),
            // Not a store: who takes this acquires from whom it merges with, too.
            false => _ = self.posted.fetch_or(1, AcqRel),
        }
        Ok(())
    }

    #[cold]
    fn are_too_many(&self, taken: &Taken, after: u64) -> bool {
        // More may have been taken by now than was posted then.
        after.saturating_sub(taken.0.load(Relaxed)) > MOST_POSTED
    }

    /// This rank posts: is it the one producer?
    pub fn produced_by(&self, rank: u32) -> Result<(), Refused> {
        match self.producer.compare_exchange(0, rank + 1, Relaxed, Relaxed) {
            Err(other) if other != rank + 1 => Err(Refused::SecondProducer(other - 1)),
            _ => Ok(()),
        }
    }

    /// Takes `n` if they are there. `alone`: no other thread takes from this semaphore.
    #[inline(always)]
    pub fn try_take(&self, taken: &Taken, boolean: bool, n: u32, alone: bool) -> bool {
        if boolean {
            return n == 0 || self.posted.load(Relaxed) & 1 == 1 && self.posted.fetch_and(!1, Acquire) & 1 == 1;
        }
        let mut had = taken.0.load(Acquire);
        loop {
            let has = self.posted.load(Acquire).wrapping_sub(had) as i64;
            if has < i64::from(n) {
                return false;
            }
            let takes = had + u64::from(n);
            if alone {
                taken.0.store(takes, Relaxed);
                return true;
            }
            match taken.0.compare_exchange(had, takes, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(found) => had = found,
            }
        }
    }

    /// Its value.
    pub fn value(&self, taken: &Taken, boolean: bool) -> u64 {
        let had = if boolean { 0 } else { taken.0.load(Acquire) };
        self.posted.load(Acquire).saturating_sub(had)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn made(flavor: Flavor) -> (Cell, Taken, Name) {
        let (cell, taken) = (Cell::default(), Taken::default());
        cell.begin(&taken, 7);
        (cell, taken, Name::new(3, 5, flavor, 7))
    }

    #[test]
    fn names_say_what_they_are() {
        assert_eq!(size_of::<Cell>(), 64);
        for bits in 0..8 {
            let [boolean, single_producer, strict] = [1, 2, 4].map(|bit| bits & bit != 0);
            let flavor = Flavor { boolean, single_producer, strict, single_consumer: false };
            for (rank, index, generation) in [(0, 0, 1), (0xf_ffff, MOST - 1, (1 << 23) - 1), (77, 12345, 99)] {
                let name = Name::new(rank, index, flavor, generation);
                assert_eq!((name.rank(), name.index(), name.generation()), (rank, index, generation));
                let flags = (name.is_boolean(), name.has_one_producer(), name.is_strict());
                assert_eq!(flags, (boolean, single_producer, strict));
                let (offset, value) = ((1 << 44) - 1, u64::MAX);
                let words = [Notice::Add { offset, value }];
                for notice in [Notice::Post(name, 0), Notice::Post(name, u32::MAX)].into_iter().chain(words) {
                    assert_eq!(Notice::decode(notice.encode()), Some(notice));
                }
            }
        }
        assert_eq!(Notice::decode([1, u64::MAX]), None);
        let notice = Notice::Add { offset: (1 << 45) - 1, value: u64::MAX };
        assert_eq!(decode_numbered(encode_numbered(notice, 0x1_2345)), Some((notice, 0x2345)));
    }

    /// Whatever overtakes what, they take effect in their order; with as few bits as can be, and around the end of all numbers.
    #[test]
    fn signals_take_effect_in_order() {
        let mut random = 1u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % n
        };
        for bits in [1, 4, NUMBER_BITS] {
            let window = 1 << (bits - 1);
            let mut sequence = Sequence { next: u32::MAX - 20, early: vec![] };
            let (mut sent, mut seen, mut under_way) = (0u32, 0u32, vec![]);
            while seen < 3000 {
                if sent - seen < window && below(2) == 0 {
                    under_way.push(sent);
                    sent += 1;
                } else if !under_way.is_empty() {
                    let i = under_way.swap_remove(below(under_way.len()));
                    let low = (u32::MAX - 20).wrapping_add(i) % (1 << bits);
                    sequence.come(low, bits, Notice::Post(Name(7), i), |notice| {
                        assert_eq!(notice, Notice::Post(Name(7), seen));
                        seen += 1;
                    });
                }
            }
            assert!(sequence.early.len() as u32 <= sent - seen);
        }
    }

    #[test]
    fn counts_are_taken_as_a_whole_or_not_at_all() {
        for alone in [true, false] {
            let (cell, taken, name) = made(Flavor::default());
            let take = |n| cell.try_take(&taken, false, n, alone);
            assert!(take(0) && !take(1));
            cell.post(&taken, name, 3, alone).unwrap();
            cell.post(&taken, name, 0, alone).unwrap();
            assert!(!take(4) && cell.value(&taken, false) == 3 && take(2) && take(1) && !take(1));
            // The count passes what 32 bits hold, the value does not.
            for _ in 0..10 {
                cell.post(&taken, name, MOST_POSTED as u32, alone).unwrap();
                assert_eq!(cell.post(&taken, name, 1 << LOOK, alone), Err(Refused::TooMany));
                assert!(take(MOST_POSTED as u32));
            }
            assert_eq!(cell.value(&taken, false), 0);
        }
    }

    #[test]
    fn boolean_posts_merge() {
        for alone in [true, false] {
            let (cell, taken, name) = made(Flavor { boolean: true, ..Default::default() });
            cell.post(&taken, name, 0, alone).unwrap();
            assert!(cell.try_take(&taken, true, 0, alone) && !cell.try_take(&taken, true, 1, alone));
            cell.post(&taken, name, 1, alone).unwrap();
            cell.post(&taken, name, 1, alone).unwrap();
            assert!(cell.try_take(&taken, true, 0, alone));
            assert_eq!(cell.post(&taken, name, 2, alone), Err(Refused::Boolean));
            assert!(cell.try_take(&taken, true, 1, alone) && !cell.try_take(&taken, true, 1, alone));
        }
    }

    #[test]
    fn stale_names_are_ignored_and_wrong_ones_refused() {
        for flavor in [Flavor::default(), Flavor { boolean: true, ..Default::default() }] {
            for alone in [true, false] {
                let (cell, taken, name) = made(flavor);
                let post = |name| cell.post(&taken, name, 1, alone);
                assert_eq!(post(Name::new(3, 5, flavor, 6)), Ok(()));
                assert_eq!(
                    (post(Name(0)), post(Name::new(3, 5, flavor, 8))),
                    (Err(Refused::NoSuch), Err(Refused::NoSuch))
                );
                cell.end();
                assert_eq!((post(name), post(Name(0))), (Ok(()), Err(Refused::NoSuch)));
                assert_eq!(cell.value(&taken, flavor.boolean), 0);
            }
        }
    }

    #[test]
    fn second_producers_are_refused() {
        let (cell, taken, _) = made(Flavor::default());
        assert_eq!((cell.produced_by(0), cell.produced_by(0)), (Ok(()), Ok(())));
        assert_eq!(cell.produced_by(4), Err(Refused::SecondProducer(0)));
        cell.begin(&taken, 8);
        assert_eq!(cell.produced_by(4), Ok(()));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::light_fence;
    use crate::wait::models::Sleeper;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct Shared {
        cell: Cell,
        taken: Taken,
        owner: Sleeper,
        /// What posters write, one each.
        data: [UnsafeCell<u32>; 2],
    }

    fn shared(flavor: Flavor) -> (Arc<Shared>, Name) {
        let shared = Arc::new(Shared::default());
        shared.cell.begin(&shared.taken, 1);
        (shared, Name::new(0, 0, flavor, 1))
    }

    impl Shared {
        fn post(&self, who: usize, name: Name, alone: bool) {
            self.data[who].with_mut(|p| unsafe { *p += 1 });
            self.cell.post(&self.taken, name, 1, alone).unwrap();
            light_fence();
            self.owner.bell.ring_after_fence();
            self.cell.crowd.ring_after_fence();
        }

        fn take(&self, boolean: bool, n: u32, alone: bool) -> bool {
            self.cell.try_take(&self.taken, boolean, n, alone)
        }

        fn saw(&self, who: usize, times: u32) {
            self.data[who].with(|p| assert_eq!(unsafe { *p }, times));
        }
    }

    /// One poster that stores, an owner that sleeps: nothing is lost, and the data is there.
    #[test]
    fn loom_a_single_producer_wakes_its_consumer() {
        for boolean in [false, true] {
            loom::model(move || {
                let (shared, name) = shared(Flavor { boolean, single_producer: true, ..Default::default() });
                let posting = shared.clone();
                let thread = loom::thread::spawn(move || posting.post(0, name, true));
                shared.owner.until(|| shared.take(boolean, 1, true));
                shared.saw(0, 1);
                thread.join().unwrap();
                assert!(!shared.take(boolean, 1, true));
            });
        }
    }

    /// Two posters: who has taken both has both their data.
    #[test]
    fn loom_taking_acquires_from_all_posters() {
        let mut model = loom::model::Builder::new();
        // All orders of three threads, two of which may sleep, take minutes.
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            let (shared, name) = shared(Flavor::default());
            let threads = [0, 1].map(|who| {
                let posting = shared.clone();
                loom::thread::spawn(move || posting.post(who, name, false))
            });
            shared.owner.until(|| shared.take(false, 2, true));
            shared.saw(0, 1);
            shared.saw(1, 1);
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// The same of posts that merged: one poster knows that the other has posted, by chance, since nothing orders the two; who takes
    /// has both their data.
    #[test]
    fn loom_taking_acquires_from_posts_that_merged() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            let (shared, name) = shared(Flavor { boolean: true, ..Default::default() });
            let merged = Arc::new(AtomicU32::new(0));
            let first = shared.clone();
            let first = loom::thread::spawn(move || first.post(0, name, false));
            let (second, says) = (shared.clone(), merged.clone());
            let second = loom::thread::spawn(move || {
                if second.cell.posted.load(Relaxed) == 1 {
                    second.post(1, name, false);
                    says.store(1, Relaxed);
                }
            });
            if merged.load(Relaxed) == 1 && shared.take(true, 1, true) {
                shared.saw(0, 1);
                shared.saw(1, 1);
            }
            [first, second].into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// The owner and another thread take one each, both asleep; each post goes to one of them.
    #[test]
    fn loom_two_consumers_share_posts() {
        loom::model(|| {
            let (shared, name) = shared(Flavor::default());
            let other = shared.clone();
            let consumer = loom::thread::spawn(move || {
                other.cell.crowd.until(|| other.take(false, 1, false));
            });
            shared.post(0, name, false);
            shared.post(1, name, false);
            assert!(shared.cell.value(&shared.taken, false) <= 2);
            shared.owner.until(|| shared.take(false, 1, false));
            shared.saw(0, 1);
            consumer.join().unwrap();
            assert!(!shared.take(false, 1, false));
        });
    }

    /// A thread that is no rank's posts by the name of a semaphore whose cell gets another one: that is not posted to.
    #[test]
    fn loom_guests_post_to_none_but_theirs() {
        loom::model(|| {
            let (shared, name) = shared(Flavor::default());
            let posting = shared.clone();
            let guest = loom::thread::spawn(move || {
                posting.cell.post_as_guest(|| posting.cell.post(&posting.taken, name, 1, false)).unwrap();
            });
            shared.cell.end();
            if !shared.cell.has_guests() {
                shared.cell.begin(&shared.taken, 2);
                guest.join().unwrap();
                assert_eq!(shared.cell.value(&shared.taken, false), 0);
            } else {
                guest.join().unwrap();
            }
        });
    }

    /// Threads that wait for a semaphore that is freed are sent away.
    #[test]
    fn loom_ending_wakes_the_crowd() {
        loom::model(|| {
            let (shared, name) = shared(Flavor::default());
            let other = shared.clone();
            let consumer = loom::thread::spawn(move || other.cell.crowd.until(|| !other.cell.is(name)));
            shared.cell.end();
            consumer.join().unwrap();
        });
    }
}
