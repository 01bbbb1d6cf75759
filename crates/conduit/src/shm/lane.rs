//! Lanes ([`crate::lane`]) in the memory of a node, and the messages by which their two ends find each other.
//!
//! Slots lie in the guarded half of the receiver's memory, the credit in that of the sender's. [`Sender`] and [`Receiver`] reach both where they are mapped. Elsewhere, and
//! on the reference path, what they would store is brought by messages
//! ([`Notice::Add`](crate::signal::Notice)).
//!
//! | message | to | says |
//! |---|---|---|
//! | [`LANE`] | the other end's rank | here is mine: where its memory is, of which shape and type, and who made it where |
//! | [`LANE_ENDED`] | the same | mine was dropped, after so many messages or slots that were given back |
//!
//! Both are kept ([`Ends`]) until that rank asks: neither end waits for the other to be made. Handlers run in any order, so the second may be there first.

use super::Node;
use super::rma::Reach;
use crate::am::{Arrival, Handler};
use crate::contract::{At, Half};
use crate::lane::{Credit, Flag, Receiving, Sending, Shape};
use crate::line::prefetch_to_write;
#[cfg(doc)]
use crate::reference::{LANE, LANE_ENDED};
use crate::wait::Bell;
use bytemuck::{Pod, Zeroable};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far ahead a sender asks for slots that it knows to be free.
const AHEAD: usize = 4;

/// What a rank is told of the other ends of its lanes.
#[derive(Debug, Default)]
pub struct Ends {
    told: Mutex<HashMap<(usize, u64), End>>,
    /// Grows with everything that is told.
    news: AtomicU64,
}

/// What was told of one.
#[derive(Debug, Clone, Default)]
pub struct End {
    /// It was made.
    pub made: Option<Made>,
    /// It was dropped, after so many.
    pub ended: Option<u64>,
}

/// Where an end is, and what it was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// All but the words.
    pub what: Told,
    /// Where it was made, and the name of its type.
    pub words: [String; 2],
}

/// The arguments of [`LANE`]; the payload is two lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Told {
    /// Which lane between these two ranks, and which of its ends ([`outbox`], [`inbox`]).
    pub key: u64,
    /// Where its memory is in the guarded half: the slots of a receiver, the credit of a sender.
    pub offset: u64,
    /// Elements of a slot.
    pub len: u64,
    /// Slots.
    pub depth: u64,
    /// Bytes of an element.
    pub size: u64,
    /// Its alignment.
    pub align: u64,
}

/// The sending end of the k-th lane from one rank to another.
pub fn outbox(k: u64) -> u64 {
    2 * k
}

/// Its receiving end.
pub fn inbox(k: u64) -> u64 {
    2 * k + 1
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, HashMap<(usize, u64), End>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that grows with everything that is told.
    #[inline(always)]
    pub fn news(&self) -> u64 {
        self.news.load(Acquire)
    }

    /// What was told of this end of that rank.
    pub fn find(&self, rank: usize, key: u64) -> End {
        let told = self.lock();
        // What the other rank did before is there by the lock; and by this, for those who do not see into locks.
        self.news();
        told.get(&(rank, key)).cloned().unwrap_or_default()
    }

    /// Nobody asks for it any more.
    pub fn forget(&self, rank: usize, key: u64) {
        self.lock().remove(&(rank, key));
    }

    fn tell(&self, rank: usize, key: u64, what: impl FnOnce(&mut End)) {
        let mut told = self.lock();
        what(told.entry((rank, key)).or_default());
        self.news.fetch_add(1, Release);
    }
}

/// Keeps what is told of an end that was made.
pub(crate) struct OnLane;
impl Handler for OnLane {
    fn run(&self, arrival: &Arrival<'_>) {
        let (what, payload) = arrival.open::<Told>();
        let text = String::from_utf8_lossy(payload);
        let Some((site, name)) = text.split_once('\n') else { arrival.bad(&"the end of a lane without words") };
        let made = Made { what, words: [site, name].map(String::from) };
        arrival.landing().lanes.tell(arrival.source(), what.key, |end| end.made = Some(made));
    }
}

/// Keeps what is told of one that was dropped.
pub(crate) struct OnLaneEnded;
impl Handler for OnLaneEnded {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([key, count], _) = arrival.open::<[u64; 2]>();
        arrival.landing().lanes.tell(arrival.source(), key, |end| end.ended = Some(count));
    }
}

impl Node {
    /// The credit there, in guarded memory; `None` if it is not reached by this table, which is one of this node.
    fn credit(&self, reach: &Reach, rank: u32, offset: u64) -> Option<*const Credit> {
        let p = reach.locate(At { rank, offset }, size_of::<Credit>())?;
        p.addr().is_multiple_of(align_of::<Credit>()).then_some(p.cast_const().cast())
    }

    fn slots(&self, reach: &Reach, rank: u32, offset: u64, shape: &Shape) -> Option<*mut u8> {
        let p = reach.locate(At { rank, offset }, shape.bytes())?;
        p.addr().is_multiple_of(shape.align).then_some(p)
    }

    pub(super) fn bell_of(&self, rank: u32) -> *const Bell {
        self.mail.peers[self.ranks.near(rank as usize)].bell()
    }
}

/// The sending end of a lane. Until it is connected to slots that are mapped here, there is no room.
#[derive(Debug)]
pub struct Sender<T> {
    sending: Sending,
    len: usize,
    /// Null until it is connected.
    slots: *mut u8,
    payload: usize,
    stride: usize,
    bell: *const Bell,
    credit: *const Credit,
    /// What all of them point into.
    node: Arc<Node>,
    _elements: PhantomData<T>,
}

impl<T: Pod> Sender<T> {
    /// For lanes of this shape, whose credit is a block of that rank's own guarded memory.
    ///
    /// # Panics
    /// If it is not.
    pub fn new(node: &Arc<Node>, shape: &Shape, rank: u32, credit: u64) -> Sender<T> {
        let credit = node.credit(node.table(Half::Guarded), rank, credit).expect("memory of this rank");
        let (len, payload, stride) = (shape.len, shape.payload, shape.stride);
        let (slots, bell) = (std::ptr::null_mut(), std::ptr::null());
        let sending = Sending::new(shape.depth);
        let (node, _elements) = (node.clone(), PhantomData);
        Sender { sending, len, slots, payload, stride, bell, credit, node, _elements }
    }

    /// Connects it to slots of that rank, if this table reaches them.
    ///
    /// # Safety
    /// A lane of the shape that [`new`](Self::new) was given, for elements of type `T`, lies there; it stays there as long as this
    /// value may be used to put, and this is its only sender. The table is one of this node.
    pub unsafe fn connect(&mut self, reach: &Reach, shape: &Shape, rank: u32, slots: u64) -> bool {
        let Some(p) = self.node.slots(reach, rank, slots, shape) else { return false };
        (self.slots, self.bell) = (p, self.node.bell_of(rank));
        true
    }

    /// How many elements a slot has room for.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there no room for elements?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Is a slot known to be free, and mapped here?
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.sending.room() > 0 && !self.slots.is_null()
    }

    /// Is there one, wherever?
    pub fn has_room(&self) -> bool {
        self.sending.room() > 0 || self.sending.may_refill(self.credit())
    }

    /// Asks the credit for more, if there is no slot that is known to be free.
    #[inline(always)]
    pub fn refill(&mut self) -> bool {
        let credit = self.credit;
        // SAFETY: as for `credit`.
        self.sending.room() > 0 || self.sending.refill(unsafe { &*credit })
    }

    fn credit(&self) -> &Credit {
        // SAFETY: memory that the node keeps mapped (`new`), of atomics.
        unsafe { &*self.credit }
    }

    /// How many slots were given back.
    pub fn given(&self) -> u64 {
        self.credit().given()
    }

    /// How many messages were put.
    pub fn sent(&self) -> u64 {
        self.sending.sent()
    }

    /// Fills the next slot, and wakes the receiver if it sleeps.
    ///
    /// # Panics
    /// If there is no room for them.
    #[inline(always)]
    pub fn put(&mut self, src: &[T]) {
        assert!(self.is_ready() && src.len() <= self.len);
        // SAFETY: it is connected, so this slot is inside the lane's memory, aligned for T, and has room for so many. The credit
        // has said that the receiver does not use it, and nobody else does (`connect`): it is this rank's until the
        // flag is raised. `src` is a reference, so it is not that memory. Flags are atomics.
        unsafe {
            let slot = self.slots.add(self.sending.slot() * self.stride);
            let elements = slot.add(self.payload).cast::<T>();
            match src {
                [one] => elements.write(*one),
                _ => elements.copy_from_nonoverlapping(src.as_ptr(), src.len()),
            }
            let flag = self.sending.filled(src.len());
            (*slot.cast::<Flag>()).raise(flag);
        }
        if self.sending.room() > AHEAD as u64 {
            prefetch_to_write(self.slots.wrapping_add(self.sending.slot_after(AHEAD) * self.stride));
        }
        // SAFETY: in memory that the node keeps mapped.
        unsafe { (*self.bell).ring_after_fence() };
    }

    /// The next slot is to be filled by a message: which one it is, and what its flag is to say then.
    ///
    /// # Panics
    /// If there is no room.
    pub fn put_far(&mut self, len: usize) -> (usize, u64) {
        assert!(self.sending.room() > 0 && len <= self.len);
        (self.sending.slot(), self.sending.filled(len))
    }
}

/// The receiving end of a lane.
#[derive(Debug)]
pub struct Receiver<T> {
    receiving: Receiving,
    slots: *mut u8,
    payload: usize,
    stride: usize,
    /// Null until it is connected to a credit that is mapped here.
    credit: *const Credit,
    bell: *const Bell,
    /// What all of them point into.
    node: Arc<Node>,
    _elements: PhantomData<T>,
}

/// What of a lane outlives its receiving end.
#[derive(Debug)]
pub struct Remains {
    receiving: Receiving,
    slots: *mut u8,
    stride: usize,
    _node: Arc<Node>,
}

impl<T: Pod> Receiver<T> {
    /// Of slots in that rank's own guarded memory.
    ///
    /// # Safety
    /// A zeroed block of this shape, made for elements of type `T`, begins there, which nobody else uses but the sender that is
    /// connected to it and messages of its kind. It stays as long as this value, and what its [`Remains`] are needed for.
    ///
    /// # Panics
    /// If there is no such memory.
    pub unsafe fn new(node: &Arc<Node>, shape: &Shape, rank: u32, slots: u64) -> Receiver<T> {
        let slots = node.slots(node.table(Half::Guarded), rank, slots, shape).expect("memory of this rank");
        let (credit, bell) = (std::ptr::null(), std::ptr::null());
        let (receiving, payload, stride) = (Receiving::new(shape.depth), shape.payload, shape.stride);
        Receiver { receiving, slots, payload, stride, credit, bell, node: node.clone(), _elements: PhantomData }
    }

    /// Connects it to the credit of that rank, if this table reaches it.
    ///
    /// # Safety
    /// The credit of this lane's sender lies there, and stays as long as this value. The table is one of this node.
    pub unsafe fn connect(&mut self, reach: &Reach, rank: u32, credit: u64) -> bool {
        let Some(p) = self.node.credit(reach, rank, credit) else { return false };
        (self.credit, self.bell) = (p, self.node.bell_of(rank));
        true
    }

    /// How many elements have come to the next slot; `None` while nothing has.
    #[inline(always)]
    pub fn look(&self) -> Option<usize> {
        self.receiving.look(self.flag())
    }

    #[inline(always)]
    fn flag(&self) -> &Flag {
        // SAFETY: a slot of the lane (`new`); flags are atomics.
        unsafe { &*self.slots.add(self.receiving.slot() * self.stride).cast() }
    }

    /// Takes what has come to the next slot, if something has: where it begins, and how many elements there are. They are this
    /// rank's, and nobody writes them, until [`give`](Self::give).
    #[inline(always)]
    pub fn take(&mut self) -> Option<(*const T, usize)> {
        let len = self.look()?;
        // SAFETY: inside the slot.
        let p = unsafe { self.slots.add(self.receiving.slot() * self.stride + self.payload) };
        self.receiving.take();
        Some((p.cast(), len))
    }

    /// How many messages were taken.
    pub fn taken(&self) -> u64 {
        self.receiving.taken()
    }

    /// How many slots were given back.
    pub fn given(&self) -> u64 {
        self.receiving.given()
    }

    /// Gives back the slots of all that was taken, and wakes the sender if it sleeps. If the credit is not reached by a store: how many
    /// they are, which is to be sent.
    #[inline(always)]
    pub fn give(&mut self) -> Option<u64> {
        if self.credit.is_null() {
            return Some(self.receiving.give());
        }
        // SAFETY: connected, and in memory that the node keeps mapped; atomics.
        unsafe {
            self.receiving.give_to(&*self.credit);
            (*self.bell).ring_after_fence();
        }
        None
    }

    /// What is needed to find out when its memory may be used otherwise.
    pub fn remains(&self) -> Remains {
        let receiving = self.receiving.copied();
        Remains { receiving, slots: self.slots, stride: self.stride, _node: self.node.clone() }
    }
}

impl Remains {
    /// Have all of so many messages arrived?
    pub fn has_all(&self, sent: u64) -> bool {
        // SAFETY: slots of the lane, whose memory is still there (`Receiver::new`); flags are atomics.
        self.receiving.has_all(sent, |slot| unsafe { &*self.slots.add(slot * self.stride).cast() })
    }
}
