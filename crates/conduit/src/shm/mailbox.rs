//! Mailboxes of the ranks of a node: [queues](crate::queue) in guarded memory of their owners, and the messages by which other
//! nodes, and the reference path, reach them.
//!
//! A mailbox is found by 64 bits ([`Name`]): its rank, its number there, and its generation. Each rank has an area for what is
//! to be known of [`MOST`] of them (`Entry`) in its process's file; only its owner writes where slots are, so a name, whatever its bits
//! are, finds a mailbox or nothing. Slots lie in guarded memory, which is given back when all ranks have met since the mailbox
//! was dropped: whoever was sending then has ended. Numbers are used again at the same time.
//!
//! | message | to | says | answered by |
//! |---|---|---|---|
//! | `MAIL` | the home | a value, and whether its sender waits | it is in, at once or when there was room; there is none; there is no such mailbox |
//!
//! A value for which there is no room is kept in the home's process, at most one of each sender, since that waits. The owner
//! puts it in when it makes room, and answers the sender itself, by a request: a handler that has ended cannot reply.
//! Kept values and near senders get room in turn.

use super::rma::Reach;
use super::segment::Exhausted;
use super::signal::MEETINGS;
use super::{Node, Seat};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Half};
use crate::copy;
use crate::heap::Side;
use crate::queue::{self, Slots, Waiting};
use crate::record::Site;
use crate::reference::{DONE, MAIL};
use crate::sync::{AtomicU32, AtomicU64, Ordering::*, full_fence, light_fence};
use crate::wait::{Aborted, Bell};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mailboxes that a rank can have.
pub const MOST: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
const GENERATION_BITS: u32 = 30;
const RANK_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;
/// Set in the generation of one that was dropped.
const DROPPED: u32 = 1 << 31;

/// Bytes of the largest value.
pub const LARGEST: usize = 4096;
/// What goes before the value in a slot: its turn, and who sent it.
const HEAD: usize = 16;

/// What a mailbox is named by. Zero names none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u64);

impl Name {
    fn new(rank: usize, index: usize, generation: u32) -> Name {
        Name((rank as u64) << RANK_SHIFT | (index as u64) << GENERATION_BITS | u64::from(generation))
    }

    /// Whose it is.
    #[inline(always)]
    pub fn rank(self) -> u32 {
        (self.0 >> RANK_SHIFT) as u32
    }

    /// Which of its rank's it is.
    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize % MOST
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        self.0 as u32 & LAST_GENERATION
    }
}

/// What all know of a mailbox: a line that is read, one for tickets, one for who waits.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    /// Zero: there was none yet. Written last, with release.
    generation: AtomicU32,
    /// Slots, as a power of two.
    bits: AtomicU32,
    /// Bytes of a value.
    size: AtomicU64,
    /// Where slots begin in the guarded half.
    offset: AtomicU64,
    tickets: Line<AtomicU64>,
    waiting: Line<Waiters>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Line<T>(T);

#[derive(Debug)]
struct Waiters {
    /// Near ranks.
    near: AtomicU32,
    /// Values that are kept for others.
    kept: AtomicU32,
}

const _: () = assert!(size_of::<Entry>() == 192);

/// Bytes of a rank's area, with room for the skew.
pub(super) const AREA: usize = (MOST * size_of::<Entry>() + 4096).next_multiple_of(super::HUGE);
/// Entries whose pages are committed at a time.
const STEP: usize = 64;

/// Where every rank's mailboxes are mapped here.
#[derive(Debug, Clone)]
pub struct Mailboxes {
    /// By rank of the job; none where they are not to be reached this way.
    peers: Box<[Option<Peer>]>,
    /// Where slots are; keeps all that is pointed to.
    guarded: Reach,
    /// Ranks of this node.
    near: usize,
    kept: std::sync::Arc<Mutex<HashMap<Name, VecDeque<Kept>>>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    entries: *const Entry,
    bell: *const Bell,
}

// SAFETY: addresses in mappings that `guarded` keeps; everything there is an atomic.
unsafe impl Send for Mailboxes {}
// SAFETY: as above.
unsafe impl Sync for Mailboxes {}

impl Peer {
    /// # Safety
    /// `area` is the start of a rank's area, and mapped, as the bell is, as long as this is used.
    pub unsafe fn new(area: *mut u8, skew: usize, bell: *const Bell) -> Peer {
        // SAFETY: inside the area.
        Peer { entries: unsafe { area.add(skew).cast() }, bell }
    }
}

/// A value that waits at the home of its mailbox.
#[derive(Debug)]
struct Kept {
    source: u32,
    /// Where its sender waits for the answer.
    slot: u64,
    bytes: Vec<u8>,
}

/// Why nothing can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There never was such a mailbox.
    NoSuch,
    /// Its owner has dropped it.
    Dropped,
    /// Its values have another size: so many bytes.
    Size(u64),
}

/// What came of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in.
    In,
    /// There is no room.
    Full,
    /// It was refused.
    Refused(Refused),
}

const IN: u64 = 1;
const FULL: u64 = 2;
const NO_SUCH: u64 = 3;
const WAS_DROPPED: u64 = 4;
const OF_SIZE: u64 = 5;

impl Sent {
    fn encode(self) -> u64 {
        match self {
            Sent::In => IN,
            Sent::Full => FULL,
            Sent::Refused(Refused::NoSuch) => NO_SUCH,
            Sent::Refused(Refused::Dropped) => WAS_DROPPED,
            Sent::Refused(Refused::Size(size)) => OF_SIZE | size << 8,
        }
    }

    /// What an answer says; a job that ends answers nothing.
    pub fn decode(answer: u64) -> Sent {
        match answer & 0xff {
            FULL => Sent::Full,
            NO_SUCH => Sent::Refused(Refused::NoSuch),
            WAS_DROPPED => Sent::Refused(Refused::Dropped),
            OF_SIZE => Sent::Refused(Refused::Size(answer >> 8)),
            _ => Sent::In,
        }
    }
}

/// A mailbox that is mapped here.
#[derive(Debug, Clone, Copy)]
pub struct Reached<'m> {
    name: Name,
    entry: &'m Entry,
    bell: &'m Bell,
    slots: Memory<'m>,
    waiting: Waiting<'m>,
    size: usize,
}

#[derive(Debug, Clone, Copy)]
struct Memory<'m> {
    base: *mut u8,
    stride: usize,
    bits: u32,
    _table: std::marker::PhantomData<&'m Reach>,
}

impl Slots for Memory<'_> {
    #[inline(always)]
    fn bits(&self) -> u32 {
        self.bits
    }

    #[inline(always)]
    fn turn(&self, i: usize) -> &AtomicU64 {
        debug_assert!(i < 1 << self.bits);
        // SAFETY: of a slot, which is aligned and mapped (`Mailboxes::open`); only atomics are used on it.
        unsafe { &*self.base.add(i * self.stride).cast() }
    }
}

/// Bytes of a slot.
fn stride(size: usize) -> usize {
    (HEAD + size).next_multiple_of(64)
}

impl Mailboxes {
    pub(super) fn new(peers: Vec<Option<Peer>>, guarded: Reach, near: usize) -> Mailboxes {
        Mailboxes { peers: peers.into(), guarded, near, kept: Default::default() }
    }

    /// The same table with nothing in it.
    pub fn nothing(&self) -> Mailboxes {
        Mailboxes { peers: self.peers.iter().map(|_| None).collect(), ..self.clone() }
    }

    #[inline(always)]
    fn entry(&self, name: Name) -> Option<(&Entry, &Bell)> {
        let peer = (*self.peers.get(name.rank() as usize)?)?;
        // SAFETY: indices are below MOST, so inside the area, which stays mapped as long as this table; all of it is
        // atomics, and zeroed memory is a valid state of them.
        unsafe { Some((&*peer.entries.add(name.index()), &*peer.bell)) }
    }

    /// This mailbox, for values of so many bytes; `None` if its rank's are not reached this way.
    #[inline(always)]
    pub fn open(&self, name: Name, size: usize) -> Option<Result<Reached<'_>, Refused>> {
        let (entry, bell) = self.entry(name)?;
        if entry.generation.load(Acquire) != name.generation() || name.generation() == 0 {
            return Some(Err(entry.refused(name)));
        }
        let has = entry.size.load(Relaxed);
        if has != size as u64 {
            return Some(Err(Refused::Size(has)));
        }
        let (bits, stride) = (entry.bits.load(Relaxed), stride(size));
        let words = self.near.div_ceil(64);
        let at = At { rank: name.rank(), offset: entry.offset.load(Relaxed) };
        let base =
            self.guarded.locate(at, (stride << bits) + 8 * words).expect("slots of a mailbox lie in its segment");
        // SAFETY: inside the segment, after the slots and aligned as they are. Its owner has zeroed them, and they stay a
        // mailbox's until whoever has found it has done with it (see the module); only atomics are used on them.
        let bits_of = unsafe { std::slice::from_raw_parts(base.add(stride << bits).cast::<AtomicU64>(), words) };
        let waiting = Waiting { count: &entry.waiting.0.near, bits: bits_of };
        let slots = Memory { base, stride, bits, _table: std::marker::PhantomData };
        Some(Ok(Reached { name, entry, bell, slots, waiting, size }))
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Name, VecDeque<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    #[cold]
    fn refused(&self, name: Name) -> Refused {
        let last = self.generation.load(Relaxed) & !DROPPED;
        if name.generation() != 0 && name.generation() <= last { Refused::Dropped } else { Refused::NoSuch }
    }
}

impl Reached<'_> {
    /// Was it dropped since it was found?
    pub fn is_dropped(&self) -> bool {
        self.entry.generation.load(Relaxed) != self.name.generation()
    }

    /// Puts a value in, if there is room, and wakes the owner.
    #[inline]
    pub fn try_send(&self, source: u32, value: &[u8]) -> bool {
        assert!(value.len() == self.size, "a value of the mailbox's size");
        let sent = queue::try_send(&self.entry.tickets.0, &self.slots, |i| {
            // SAFETY: the slot is this sender's until its turn is the receiver's; it has room for the value, and nobody makes
            // references to what lies after its turn.
            unsafe {
                let slot = self.slots.base.add(i * self.slots.stride);
                copy::store(slot.add(8), source);
                copy::write(slot.add(HEAD), value.as_ptr(), value.len());
            }
        });
        if sent {
            light_fence();
            self.bell.ring_after_fence();
        }
        sent
    }

    /// Takes the next value, if there is one: whose it was. `taken`: how many its owner has taken, who alone calls this.
    #[inline]
    pub fn try_receive(&self, taken: &Cell<u64>, value: &mut [u8]) -> Option<u32> {
        assert!(value.len() == self.size, "a value of the mailbox's size");
        queue::try_receive(taken, &self.slots, |i| {
            // SAFETY: as above; the slot is the receiver's.
            unsafe {
                let slot = self.slots.base.add(i * self.slots.stride);
                copy::read(value.as_mut_ptr(), slot.add(HEAD), value.len());
                copy::load::<u32>(slot.add(8))
            }
        })
    }

    /// How many values were sent and not taken.
    pub fn len(&self, taken: u64) -> usize {
        self.entry.tickets.0.load(Relaxed).saturating_sub(taken) as usize
    }

    /// Is it empty?
    pub fn is_empty(&self, taken: u64) -> bool {
        self.len(taken) == 0
    }

    /// Does anybody wait for room? After a full fence that follows the making of it.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        let Waiters { near, kept } = &self.entry.waiting.0;
        near.load(Relaxed) | kept.load(Relaxed) != 0
    }

    /// Are values kept for it?
    #[inline(always)]
    pub fn has_kept(&self) -> bool {
        self.entry.waiting.0.kept.load(Relaxed) != 0
    }
}

/// Which mailboxes a rank has.
#[derive(Debug, Default)]
pub(super) struct Book(RefCell<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// The last generation of each that was ever made, and where its slots are.
    all: Vec<(u32, u64)>,
    /// Numbers that may be used again.
    free: Vec<usize>,
    /// Dropped ones, and since when: how often this rank had come to a barrier.
    dropped: VecDeque<(usize, u64)>,
    committed: usize,
}

impl Seat {
    /// Makes a mailbox of mine for values of so many bytes, with `2^bits` slots.
    pub fn make_mailbox(&self, size: usize, bits: u32) -> Result<Name, Exhausted> {
        self.sweep_mailboxes();
        let mut book = self.mailboxes.0.borrow_mut();
        let index = book.free.last().copied().unwrap_or(book.all.len());
        if index == MOST {
            return Err(Exhausted::Mailboxes { most: MOST });
        }
        if index == book.committed {
            self.commit_mailboxes(index)?;
            book.committed += STEP;
        }
        let len = ((stride(size) as u64) << bits) + 8 * self.node.mailboxes.near.div_ceil(64) as u64;
        let offset = self.take_with(Half::Guarded, Side::Local, len, 64, true)?;
        match book.free.pop() {
            Some(_) => {}
            None => book.all.push((0, 0)),
        }
        let generation = book.all[index].0 + 1;
        book.all[index] = (generation, offset);
        let name = Name::new(self.rank, index, generation);
        let (entry, _) = self.node.mailboxes.entry(name).expect("mine are mapped");
        entry.bits.store(bits, Relaxed);
        entry.size.store(size as u64, Relaxed);
        entry.offset.store(offset, Relaxed);
        entry.tickets.0.store(0, Relaxed);
        entry.waiting.0.near.store(0, Relaxed);
        entry.waiting.0.kept.store(0, Relaxed);
        entry.generation.store(generation, Release);
        Ok(name)
    }

    /// Drops it, and sends away who waits for room in it.
    pub fn drop_mailbox(&self, site: Site, name: Name, size: usize) {
        let Some(Ok(mailbox)) = self.node.mailboxes.open(name, size) else { unreachable!("mine, and not dropped") };
        mailbox.entry.generation.store(name.generation() | DROPPED, Release);
        full_fence();
        while let Some(near) = mailbox.waiting.next(0) {
            self.node.ring(near);
        }
        let kept = self.node.mailboxes.kept().remove(&name).unwrap_or_default();
        for Kept { source, slot, .. } in kept {
            self.answer_mail(site, source, slot, Sent::Refused(Refused::Dropped));
        }
        let mut book = self.mailboxes.0.borrow_mut();
        book.dropped.push_back((name.index(), self.barrier.come()));
    }

    /// Gives back the memory of those that nobody uses any more: ranks have met so often since it was dropped that nobody is in a
    /// call that found it. (Who sends by a message waits for the answer.)
    pub fn sweep_mailboxes(&self) {
        let mut book = self.mailboxes.0.borrow_mut();
        while let Some(&(index, since)) = book.dropped.front()
            && self.barrier.come() >= since + MEETINGS
        {
            book.dropped.pop_front();
            let (generation, offset) = book.all[index];
            assert!(self.give(Half::Guarded, Side::Local, offset), "slots of a mailbox");
            if generation < LAST_GENERATION {
                book.free.push(index);
            }
        }
    }

    fn commit_mailboxes(&self, first: usize) -> Result<(), Exhausted> {
        let i = self.rank - self.node.mine().start;
        let area = super::mailboxes_at(self.node.mine().len(), i);
        // The skew may reach into the page after.
        let len = (STEP * size_of::<Entry>() + 4096).next_multiple_of(4096);
        self.node.populate(area + first * size_of::<Entry>() / 4096 * 4096, len as u64)
    }

    /// This rank is about to sleep until there is room: true if it is to look once more, because nobody knew of it yet.
    pub fn waits_for_room(&self, mailbox: &Reached<'_>) -> bool {
        mailbox.waiting.join(self.near)
    }

    /// It does not wait any more. If it was to be woken for room that it did not need, another one is.
    pub fn found_room(&self, mailbox: &Reached<'_>) {
        if mailbox.waiting.leave(self.near) && queue::has_room(&mailbox.entry.tickets.0, &mailbox.slots) {
            self.wake_sender(mailbox, self.near + 1);
        }
    }

    /// The owner has made room, and somebody waits for it: those of other nodes and near ones in turn.
    #[cold]
    #[inline(never)]
    pub fn give_room(&self, site: Site, mailbox: &Reached<'_>, taken: u64) {
        if taken.is_multiple_of(2) && self.wake_sender(mailbox, taken as usize) {
            return;
        }
        if !(mailbox.has_kept() && self.put_kept(site, mailbox)) {
            self.wake_sender(mailbox, taken as usize);
        }
    }

    fn wake_sender(&self, mailbox: &Reached<'_>, from: usize) -> bool {
        let next = mailbox.waiting.next(from);
        next.into_iter().for_each(|near| self.node.ring(near));
        next.is_some()
    }

    /// Puts in what was kept as far as there is room, and answers; true if that was something.
    pub fn put_kept(&self, site: Site, mailbox: &Reached<'_>) -> bool {
        let mut told = vec![];
        let mut all = self.node.mailboxes.kept();
        if let Some(line) = all.get_mut(&mailbox.name) {
            while let Some(next) = line.front()
                && mailbox.try_send(next.source, &next.bytes)
            {
                told.push((next.source, next.slot));
                line.pop_front();
                mailbox.entry.waiting.0.kept.fetch_sub(1, Relaxed);
            }
        }
        drop(all);
        told.iter().for_each(|&(source, slot)| self.answer_mail(site, source, slot, Sent::In));
        !told.is_empty()
    }

    /// Answers a sender, which waits for it, so that there is soon room for the message. A job that ends needs no answers.
    fn answer_mail(&self, site: Site, source: u32, slot: u64, sent: Sent) {
        let _ = self.request(site, source, DONE, &[slot, sent.encode()], &[]);
    }

    /// Sends a value by a message: the slot to which the answer comes, which is the caller's to give back. `waits`: it comes when
    /// there was room.
    pub fn start_mail(&self, site: Site, name: Name, value: &[u8], waits: bool) -> Result<u32, Aborted> {
        let answers = &self.landing().answers;
        // Room comes when others like, who may need this rank to serve them first; and what it serves may wait for its own answers.
        let slot = if waits { answers.take_apart(1) } else { answers.take(1) };
        self.request(site, name.rank(), MAIL, &[name.0, slot.into(), waits.into()], value)?;
        Ok(slot)
    }
}

impl Node {
    /// The mailboxes of all ranks of this node.
    pub fn mailboxes(&self) -> &Mailboxes {
        &self.mailboxes
    }
}

/// Puts a value into a mailbox of the target, or keeps it.
pub(crate) struct OnMail;
impl Handler for OnMail {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([name, slot, waits], bytes) = arrival.open::<[u64; 3]>();
        let (name, boxes) = (Name(name), &arrival.node().mailboxes);
        if name.rank() as usize != arrival.target() {
            arrival.bad(&"a mailbox of another rank");
        }
        if let Some(sent) = deliver(boxes, name, arrival.source() as u32, slot, bytes, waits != 0) {
            arrival.reply(DONE, &[slot, sent.encode()], &[]);
        }
    }
}

/// What is to be answered; nothing if the value is kept.
fn deliver(boxes: &Mailboxes, name: Name, source: u32, slot: u64, bytes: &[u8], waits: bool) -> Option<Sent> {
    let find = || match boxes.open(name, bytes.len()) {
        None => Err(Sent::Refused(Refused::NoSuch)),
        Some(found) => found.map_err(Sent::Refused),
    };
    let mailbox = match find() {
        Ok(mailbox) => mailbox,
        Err(refused) => return Some(refused),
    };
    // One that waits goes before: so none is kept, or its owner takes care of it.
    let goes_in = |mailbox: &Reached<'_>| !mailbox.has_kept() && mailbox.try_send(source, bytes);
    if goes_in(&mailbox) {
        return Some(Sent::In);
    }
    if !waits {
        return Some(Sent::Full);
    }
    let mut all = boxes.kept();
    // The owner marks a mailbox that it drops before it takes what is kept for it.
    if let Err(refused) = find() {
        return Some(refused);
    }
    let line = all.entry(name).or_default();
    let (kept, alone) = (&mailbox.entry.waiting.0.kept, line.is_empty());
    line.push_back(Kept { source, slot, bytes: bytes.to_vec() });
    kept.fetch_add(1, Relaxed);
    full_fence();
    // Its owner may have made room before it could know of this one. If others wait it knows of them.
    if alone && mailbox.try_send(source, bytes) {
        line.pop_back();
        kept.fetch_sub(1, Relaxed);
        return Some(Sent::In);
    }
    drop(all);
    mailbox.bell.ring();
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::tests::{Alone, config};
    use std::sync::Arc;

    #[test]
    fn names_find_mailboxes_or_nothing() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let (seat, all) = (node.seat(1), node.mailboxes());
        let names: Vec<Name> = (0..200).map(|i| seat.make_mailbox(8 + i % 3, 2).unwrap()).collect();
        for (i, &name) in names.iter().enumerate() {
            assert_eq!((name.rank(), name.index(), name.generation()), (1, i, 1));
            let size = 8 + i % 3;
            let found = all.open(name, size).unwrap().unwrap();
            let value = |k: usize| vec![(i + k) as u8; size];
            (0..4).for_each(|k| assert!(found.try_send(k as u32, &value(k))));
            assert!(!found.try_send(9, &value(9)) && found.len(0) == 4);
            assert_eq!(all.open(name, 7).unwrap().unwrap_err(), Refused::Size(size as u64));
            let (taken, mut got) = (Cell::new(0), vec![0; size]);
            for k in 0..4 {
                assert_eq!((found.try_receive(&taken, &mut got), &got), (Some(k as u32), &value(k)));
            }
            assert_eq!(found.try_receive(&taken, &mut got), None);
        }
        for bits in [0, 1, u64::MAX, u64::MAX >> 20, 1 << 44, 1 << 44 | 2, 2 << 44 | 1] {
            let found = all.open(Name(bits), 8);
            assert!(found.is_none_or(|f| f.unwrap_err() == Refused::NoSuch), "{bits:#x}");
        }
        let site = Site::here("test");
        seat.drop_mailbox(site, names[3], 8);
        assert_eq!(all.open(names[3], 8).unwrap().unwrap_err(), Refused::Dropped);
        assert_eq!(seat.make_mailbox(8, 0).unwrap().index(), 200, "nobody has met since");
        let before = seat.in_use();
        let other = node.seat(0);
        for _ in 0..3 {
            let come = [&seat, &other].map(|s| s.barrier().arrive(crate::barrier::Tag::Plain, 0));
            for (seat, come) in [&seat, &other].into_iter().zip(come) {
                seat.barrier().wait(come, seat.waiter(), || site, || false).unwrap();
            }
        }
        seat.sweep_mailboxes();
        assert!(seat.in_use() < before);
        let again = seat.make_mailbox(8, 0).unwrap();
        assert_eq!((again.index(), again.generation()), (3, 2));
        assert_eq!(all.open(names[3], 8).unwrap().unwrap_err(), Refused::Dropped);
        assert!(all.nothing().open(again, 8).is_none());
        for sent in [Sent::In, Sent::Full, Sent::Refused(Refused::Size(4096)), Sent::Refused(Refused::NoSuch)] {
            assert_eq!(Sent::decode(sent.encode()), sent);
        }
    }

    #[test]
    fn values_without_room_are_kept_and_put_in() {
        let node = Arc::new(Node::attach(&config(1), &mut Alone).unwrap());
        let (seat, all) = (node.seat(0), node.mailboxes());
        let name = seat.make_mailbox(1, 0).unwrap();
        let mailbox = all.open(name, 1).unwrap().unwrap();
        let slots: Vec<u64> = (0..3).map(|_| seat.landing().answers.take(1).into()).collect();
        let send = |k: usize, waits| deliver(all, name, 0, slots[k], &[k as u8], waits);
        assert_eq!(
            (send(0, true), send(1, false), send(1, true), send(2, true)),
            (Some(Sent::In), Some(Sent::Full), None, None)
        );
        let (taken, mut got, site) = (Cell::new(0), [9], Site::here("test"));
        for k in 0..3 {
            assert_eq!((mailbox.try_receive(&taken, &mut got), got), (Some(0), [k]));
            assert_eq!(seat.put_kept(site, &mailbox), k < 2);
            // The answer came in line.
            assert_eq!(seat.landing().answers.is_done(slots[2] as u32), k >= 1);
        }
        let last = seat.landing().answers.take(1);
        assert_eq!((send(0, true), deliver(all, name, 0, last.into(), &[1], true)), (Some(Sent::In), None));
        seat.drop_mailbox(site, name, 1);
        assert_eq!(Sent::decode(seat.landing().answers.value(last)), Sent::Refused(Refused::Dropped));
        assert_eq!(send(2, true), Some(Sent::Refused(Refused::Dropped)));
    }
}
