//! Semaphores between ranks of a node: a poster writes the semaphore where it lies, and wakes its owner if that sleeps.
//!
//! Each rank has an area for [`MOST`] semaphores in its process's file: what posters write of all of them, then what its
//! owner writes. A place where one was freed gets another when all ranks have met since then, and no other thread is about to post
//! to it: a post that was under way is over by then. Pages are committed as semaphores are made. No pointer and no array reaches it, so a name, whatever its
//! bits are, signals a semaphore or nothing.

use super::segment::{Exhausted, Mapping};
use super::{Node, Seat};
use crate::am::{Arrival, Handler};
use crate::contract::At;
use crate::line::prefetch_to_write;
use crate::signal::{Cell, Flavor, LAST_GENERATION, MOST, NUMBER_BITS, Name, Notice, Refused, Taken, decode_numbered};
use crate::sync::light_fence;
use crate::wait::Bell;
use crate::word::{Atomic, Op};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a rank's area.
pub(super) const AREA: usize = TAKEN + (MOST * size_of::<Taken>()).next_multiple_of(HUGE);
const HUGE: usize = super::HUGE;
/// Where what owners write begins. The skew keeps the first semaphores of all ranks out of the same sets of a cache.
const TAKEN: usize = (MOST * size_of::<Cell>() + 4096).next_multiple_of(HUGE);
/// Semaphores whose pages are committed at a time.
const STEP: usize = 512;

/// Where every rank's semaphores are mapped here: what a post looks at.
#[derive(Debug, Clone)]
pub struct Semaphores {
    /// By rank of the job; none where they are not to be reached this way.
    peers: Box<[Option<Peer>]>,
    /// What they point into.
    _maps: Arc<[Arc<Mapping>]>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    cells: *const Cell,
    taken: *const Taken,
    bell: *const Bell,
}

// SAFETY: addresses in mappings that `_maps` keeps; everything there is an atomic.
unsafe impl Send for Semaphores {}
// SAFETY: as above.
unsafe impl Sync for Semaphores {}

impl Peer {
    /// # Safety
    /// `area` is the start of a rank's area, and mapped, as the bell is, as long as this is used.
    pub unsafe fn new(area: *mut u8, skew: usize, bell: *const Bell) -> Peer {
        // SAFETY: inside the area.
        unsafe { Peer { cells: area.add(skew).cast(), taken: area.add(TAKEN).cast(), bell } }
    }
}

/// A semaphore that is mapped here, and its owner's bell.
#[derive(Debug, Clone, Copy)]
pub struct Reached<'m> {
    /// What posters write.
    pub cell: &'m Cell,
    /// What consumers write.
    pub taken: &'m Taken,
    bell: &'m Bell,
}

impl Semaphores {
    pub(super) fn new(peers: Vec<Option<Peer>>, maps: Vec<Arc<Mapping>>) -> Semaphores {
        Semaphores { peers: peers.into(), _maps: maps.into() }
    }

    /// The same table with nothing in it.
    pub fn nothing(&self) -> Semaphores {
        Semaphores { peers: self.peers.iter().map(|_| None).collect(), ..self.clone() }
    }

    /// Where this semaphore is, if there is one; `None` if its rank's are not reached this way.
    #[inline(always)]
    pub fn find(&self, name: Name) -> Option<Reached<'_>> {
        let peer = (*self.peers.get(name.rank() as usize)?)?;
        let i = name.index();
        // SAFETY: indices are below MOST, so inside the area, which stays mapped as long as this table; all of it is
        // atomics, and zeroed memory is a valid state of them.
        unsafe { Some(Reached { cell: &*peer.cells.add(i), taken: &*peer.taken.add(i), bell: &*peer.bell }) }
    }
}

impl Reached<'_> {
    /// Posts, as that rank, and wakes who waits. `alone`: no other thread posts here at the same time.
    #[inline(always)]
    pub fn post(&self, name: Name, n: u32, rank: u32, alone: bool) -> Result<(), Refused> {
        if !alone {
            // What is looked at first is written to next.
            prefetch_to_write(self.cell);
        }
        if cfg!(debug_assertions) && name.has_one_producer() && n > 0 && self.cell.is(name) {
            self.cell.produced_by(rank)?;
        }
        self.cell.post(self.taken, name, n, alone)?;
        light_fence();
        self.bell.ring_after_fence();
        self.cell.crowd.ring_after_fence();
        Ok(())
    }

    /// The same from a thread that may be no rank's: one that comes to no barrier.
    pub fn post_as_guest(&self, name: Name, n: u32, rank: u32) -> Result<(), Refused> {
        self.cell.post_as_guest(|| self.post(name, n, rank, false))
    }
}

/// How often a rank comes to a barrier, since it has freed what others may be using, until none does. All have come to the
/// barrier before the last. Whoever began before it came to that one has ended; whoever begins later has met this rank at the
/// one before, to which this rank came when it had freed it.
pub(super) const MEETINGS: u64 = 3;

/// Which of its semaphores a rank has.
#[derive(Debug, Default)]
pub(super) struct Book(RefCell<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// The last generation of each that was ever made.
    generations: Vec<u32>,
    /// Places that may be used again, and since when: how often this rank had come to a barrier.
    free: VecDeque<(usize, u64)>,
    committed: usize,
    in_use: usize,
}

impl Seat {
    /// Makes a semaphore of mine with value 0.
    pub fn make_semaphore(&self, flavor: Flavor) -> Result<Name, Exhausted> {
        let mut book = self.semaphores.0.borrow_mut();
        let come = self.barrier.come();
        let index = match book.free.front() {
            Some(&(index, freed)) if come >= freed + MEETINGS && !self.has_guests(index) => {
                book.free.pop_front();
                index
            }
            _ => {
                let index = book.generations.len();
                if index == MOST {
                    return Err(Exhausted::Semaphores { most: MOST });
                }
                if index == book.committed {
                    self.commit_semaphores(index)?;
                    book.committed += STEP;
                }
                book.generations.push(0);
                index
            }
        };
        let generation = book.generations[index] + 1;
        book.generations[index] = generation;
        let name = Name::new(self.rank as u32, index, flavor, generation);
        book.in_use += 1;
        let Reached { cell, taken, .. } = self.node.semaphores.find(name).expect("mine are mapped");
        cell.begin(taken, generation);
        Ok(name)
    }

    /// Ends it; the name signals nothing from now on.
    pub fn free_semaphore(&self, name: Name) {
        self.end_semaphore(name);
        self.reuse_semaphore(name);
    }

    /// The same of one from which other threads may take: its place is not used again before
    /// [`reuse_semaphore`](Self::reuse_semaphore).
    pub fn end_semaphore(&self, name: Name) {
        let Reached { cell, .. } = self.node.semaphores.find(name).expect("mine are mapped");
        cell.end();
        self.semaphores.0.borrow_mut().in_use -= 1;
    }

    /// The place of one that has ended may get another; no thread takes from it any more.
    pub fn reuse_semaphore(&self, name: Name) {
        let mut book = self.semaphores.0.borrow_mut();
        if book.generations[name.index()] < LAST_GENERATION {
            book.free.push_back((name.index(), self.barrier.come()));
        }
    }

    fn has_guests(&self, index: usize) -> bool {
        let place = Name::new(self.rank as u32, index, Flavor::default(), 0);
        self.node.semaphores.find(place).expect("mine are mapped").cell.has_guests()
    }

    /// How many there are.
    pub fn semaphores_in_use(&self) -> usize {
        self.semaphores.0.borrow().in_use
    }

    fn commit_semaphores(&self, first: usize) -> Result<(), Exhausted> {
        let i = self.rank - self.node.mine().start;
        let area = super::semaphores_at(self.node.mine().len(), i);
        // The skew may reach into the page after.
        let cells = (first * size_of::<Cell>(), STEP * size_of::<Cell>() + 4096);
        let taken = (TAKEN + first * size_of::<Taken>(), STEP * size_of::<Taken>());
        [cells, taken].into_iter().try_for_each(|(at, len)| self.node.populate(area + at, len as u64))
    }
}

impl Node {
    /// The semaphores of all ranks of this node.
    pub fn semaphores(&self) -> &Semaphores {
        &self.semaphores
    }
}

/// Does what a message says once its bytes are written, and what was sent before it has been done. So many bits of its
/// number have come.
pub(crate) fn notify(arrival: &Arrival<'_>, low: u32, bits: u32, notice: Notice) {
    arrival.landing().signal_came(arrival.source(), low, bits, notice, |notice| takes_effect(arrival, notice));
}

fn takes_effect(arrival: &Arrival<'_>, notice: Notice) {
    let node = arrival.node();
    match notice {
        Notice::Post(name, n) => {
            let found = node.semaphores.find(name).filter(|_| name.rank() as usize == arrival.target());
            let Some(semaphore) = found else { arrival.bad(&"a semaphore of another rank") };
            if let Err(why) = semaphore.post_as_guest(name, n, arrival.source() as u32) {
                panic!("rank {}: a signal from rank {}: {}", arrival.target(), arrival.source(), Said(why));
            }
        }
        Notice::Add { offset, value } => change(arrival, offset, Atomic::on_u64(Op::Add, value)),
    }
}

/// Does this to a word of the target's guarded half, and wakes it.
fn change(arrival: &Arrival<'_>, offset: u64, what: Atomic) {
    let (reach, at) = arrival.node().half(At::guarded(arrival.target() as u32, offset));
    if reach.atomic(at, what).is_none() {
        arrival.bad(&"a word outside");
    }
    arrival.node().wake(arrival.target());
}

/// Why a post was refused, in words.
#[derive(Debug)]
pub struct Said(pub Refused);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Refused::NoSuch => write!(f, "there never was such a semaphore"),
            Refused::TooMany => write!(f, "more than {} posts wait to be taken", crate::signal::MOST_POSTED),
            Refused::SecondProducer(first) => {
                write!(f, "rank {first} is the one producer of this semaphore; make one with several")
            }
            Refused::Boolean => write!(f, "a boolean semaphore is posted once at a time, or not"),
        }
    }
}

/// Writes the bytes of a message, then notifies.
pub(crate) struct OnSignal;
impl Handler for OnSignal {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([offset, what, n], bytes) = arrival.open::<[u64; 3]>();
        write(arrival, offset, bytes);
        match decode_numbered([what, n]) {
            Some((notice, number)) => notify(arrival, number, NUMBER_BITS, notice),
            None => arrival.bad(&"a notice of nothing"),
        }
    }
}

/// The same of one of several messages: the last one that has been written notifies.
pub(crate) struct OnSignalPart;
impl Handler for OnSignalPart {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([offset, what, n, key, total], bytes) = arrival.open::<[u64; 5]>();
        write(arrival, offset, bytes);
        let Some((notice, number)) = decode_numbered([what, n]) else { arrival.bad(&"a notice of nothing") };
        match arrival.landing().add_part(arrival.source(), key, bytes.len() as u64, total) {
            Some(true) => notify(arrival, number, NUMBER_BITS, notice),
            Some(false) => {}
            None => arrival.bad(&"more bytes than there are"),
        }
    }
}

fn write(arrival: &Arrival<'_>, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        let (reach, at) = arrival.half(offset);
        reach.write(at, bytes).unwrap_or_else(|e| arrival.bad(&e));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::shm::Node;
    use crate::shm::tests::{Alone, config};
    use crate::signal::{Flavor, MOST, Name, Refused};
    use std::sync::Arc;

    /// The other rank has notified and not waited when a semaphore is freed: it may be posting until it notifies again.
    #[test]
    fn a_place_is_used_again_when_nobody_can_be_posting() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let (mine, other) = (node.seat(1), node.seat(0));
        let name = mine.make_semaphore(Flavor::default()).unwrap();
        let arrive = |seat: &crate::shm::Seat| seat.barrier().arrive(crate::barrier::Tag::Plain, 0);
        let wait = |seat: &crate::shm::Seat, come| {
            _ = seat.barrier().wait(come, seat.waiter(), || crate::record::Site::here("test"), || false).unwrap()
        };
        let there = arrive(&other);
        mine.free_semaphore(name);
        let here = arrive(&mine);
        wait(&mine, here);
        let here = arrive(&mine);
        assert_ne!(mine.make_semaphore(Flavor::default()).unwrap().index(), name.index());
        wait(&other, there);
        let there = arrive(&other);
        wait(&mine, here);
        wait(&other, there);
        let _last = arrive(&mine);
        let guest = node.semaphores().find(name).unwrap();
        guest
            .cell
            .post_as_guest(|| {
                assert_ne!(mine.make_semaphore(Flavor::default()).unwrap().index(), name.index());
                Ok(())
            })
            .unwrap();
        assert_eq!(mine.make_semaphore(Flavor::default()).unwrap().index(), name.index());
    }

    #[test]
    fn semaphores_are_made_and_freed() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let (seat, all) = (node.seat(1), node.semaphores());
        let names: Vec<Name> = (0..2000).map(|_| seat.make_semaphore(Flavor::default()).unwrap()).collect();
        assert_eq!(seat.semaphores_in_use(), 2000);
        for (i, &name) in names.iter().enumerate() {
            assert_eq!((name.rank(), name.index()), (1, i));
            all.find(name).unwrap().post(name, 1 + i as u32, 0, false).unwrap();
        }
        for (i, &name) in names.iter().enumerate() {
            let found = all.find(name).unwrap();
            assert_eq!(found.cell.value(found.taken, false), 1 + i as u64);
            assert!(
                i < 1500 || {
                    seat.free_semaphore(name);
                    true
                }
            );
        }
        assert_eq!(seat.semaphores_in_use(), 1500);
        // Nobody has met since.
        let fresh = seat.make_semaphore(Flavor::default()).unwrap();
        assert_eq!(fresh.index(), 2000);
        let meet = || {
            let other = node.seat(0);
            for _ in 0..3 {
                let come = [&seat, &other].map(|s| s.barrier().arrive(crate::barrier::Tag::Plain, 0));
                let site = || crate::record::Site::here("test");
                for (seat, come) in [&seat, &other].into_iter().zip(come) {
                    seat.barrier().wait(come, seat.waiter(), site, || false).unwrap();
                }
            }
        };
        meet();
        let again = seat.make_semaphore(Flavor::default()).unwrap();
        assert_eq!(again.index(), 1500);
        let stale = names[1500];
        assert!(again != stale && all.find(stale).unwrap().post(stale, 1, 0, false).is_ok());
        let found = all.find(again).unwrap();
        assert_eq!(found.cell.value(found.taken, false), 0);
        // Any bits signal a semaphore or nothing.
        for bits in [0, 1, u64::MAX, u64::MAX >> 20, 1 << 44, 2 << 44 | 7] {
            let found = all.find(Name(bits));
            assert!(found.is_none_or(|f| f.post(Name(bits), 1, 0, true).is_err() && f.post(Name(bits), 1, 0, false).is_err()));
        }
        let most = Name::new(1, MOST - 1, Flavor::default(), 1);
        assert_eq!(all.find(most).unwrap().post(most, 1, 0, true), Err(Refused::NoSuch));
        assert!(all.nothing().find(again).is_none());
    }
}
