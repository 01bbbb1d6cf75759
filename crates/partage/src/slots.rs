//! Lanes of slots: one rank sends, one receives what was sent as a slice, without a copy and without a barrier.
//!
//! A *lane* is one way: [`Job::outbox`] is its sending end, [`Job::inbox`] on the other rank its receiving one. It has some slots of
//! some elements each, in the receiver's memory. [`Outbox::put_signal`] fills the next slot and signals it, one message;
//! [`Inbox::wait`] gives the slot itself, as a slice; dropping that gives the slot back, and the sender may fill it again.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(3, |job| {
//!     let mut right = job.outbox::<f64>(job.neighbor(1), 4, 2).unwrap();    // two slots of four elements
//!     let mut left = job.inbox::<f64>(job.neighbor(-1), 4, 2).unwrap();
//!     for step in 0..10 {
//!         right.put_signal(&[f64::from(step); 4]);                          // waits only if both slots are full
//!         let row = left.wait();                                            // what my left neighbour put
//!         assert_eq!(*row, [f64::from(step); 4]);
//!     }
//! });
//! ```
//!
//! # What is promised
//! * The k-th outbox to a rank and that rank's k-th inbox from me are the ends of one lane. Neither call waits for the other
//!   rank; what is put first waits until the inbox has been made. Ends that do not fit each other are a mistake, which whoever finds out
//!   says with both lines.
//! * Messages arrive in order, each once, with as many elements as were put: up to the slot's, or none, which is a signal.
//! * `put_signal` returns when the source may be used again. It waits only while all slots are full.
//! * What the sender wrote anywhere before is there for who has what it put, as for a [semaphore](crate::signal).
//! * A slot that is forgotten is not lost: it goes back with the next one that is dropped, or when the next message is asked for
//!   and has not come.
//! * An end may be dropped at any time. What was sent before is received; a sender that then finds no slot free, and a receiver that
//!   waits for more than was sent, panic. The memory is given back when both ends are gone.
//!
//! # Why slices into shared memory are sound here
//! Nobody writes a slot while there is a slice of it. It lies in guarded memory, which pointers cannot name and arrays do not overlap. Only the lane's outbox writes it: there is
//! one, which stays on its rank's thread; it was told where the slots are, and has found that it has the same depth, length and type.
//! It writes with a credit only, which says that the slice that was there has been dropped: there is
//! one [`Arrived`] at a time, since it borrows its inbox, and the credit never counts beyond it. What was forgotten cannot be read any more when
//! the next is asked for. Memory is used otherwise when the inbox is gone and the outbox has said how much it has sent in all, and that has arrived.

use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use crate::team::Rank;
use bytemuck::{Pod, bytes_of};
use partage_conduit::contract::{At, Conduit, Half};
use partage_conduit::heap::Side;
use partage_conduit::lane::{Credit, Shape};
use partage_conduit::record::Site;
use partage_conduit::reference::{LANE, LANE_ENDED};
use partage_conduit::shm::lane::{self, Ends, Made, Receiver, Remains, Sender, Told};
use partage_conduit::signal::Notice;
use std::any::type_name;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The sending end of a lane: what [`Job::outbox`] gives.
pub struct Outbox<T: Pod> {
    end: End,
    sender: Sender<T>,
    /// What flags that are not mapped here were made to say.
    flags: Vec<u64>,
}

/// The receiving end of a lane: what [`Job::inbox`] gives.
pub struct Inbox<T: Pod> {
    end: End,
    receiver: Receiver<T>,
}

/// What was received, in its slot: what [`Inbox::wait`] gives. Dropping it gives the slot back to the sender.
pub struct Arrived<'a, T: Pod> {
    inbox: &'a mut Inbox<T>,
    first: *const T,
    len: usize,
}

impl Job {
    /// Makes the sending end of a lane to a rank: `depth` slots of `len` elements. Neither collective nor does it wait for that
    /// rank, whose [`inbox`](Self::inbox) must have as many of both, and the same type.
    ///
    /// ```
    /// use partage::prelude::*;
    /// // A token goes round once; every rank adds its number.
    /// partage::test(4, |job| {
    ///     let mut to = job.outbox::<u64>(job.neighbor(1), 1, 1).unwrap();
    ///     let mut from = job.inbox::<u64>(job.neighbor(-1), 1, 1).unwrap();
    ///     let me = u64::from(job.rank().0);
    ///     if me == 0 {
    ///         to.put_signal(&[0]);
    ///     }
    ///     let token = from.wait()[0];
    ///     match me {
    ///         0 => assert_eq!(token, 1 + 2 + 3),
    ///         _ => to.put_signal(&[token + me]),
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn outbox<T: Pod>(&self, to: Rank, len: usize, depth: usize) -> Result<Outbox<T>> {
        let site = Site::here("outbox");
        let shape = self.lane_shape::<T>(site, to, len, depth)?;
        let (inner, bytes) = (&self.all().inner, size_of::<Credit>() as u64);
        let credit = inner.seat.take(Half::Guarded, Side::Local, bytes, bytes);
        let credit = credit.map_err(|e| self.exhausted(site.call, bytes, e))?;
        let sender = Sender::new(inner.seat.node(), &shape, inner.rank.0, credit);
        let k = inner.lanes.next(&inner.lanes.outboxes, to);
        let mut end = End::new(inner, to, (lane::outbox(k), lane::inbox(k)), site, shape, credit);
        end.tell::<T>();
        Ok(Outbox { end, sender, flags: vec![] })
    }

    /// Makes the receiving end of a lane from a rank: `depth` slots of `len` elements, in my memory.
    #[track_caller]
    pub fn inbox<T: Pod>(&self, from: Rank, len: usize, depth: usize) -> Result<Inbox<T>> {
        let site = Site::here("inbox");
        let shape = self.lane_shape::<T>(site, from, len, depth)?;
        let (inner, bytes) = (&self.all().inner, shape.bytes() as u64);
        let slots = inner.seat.take(Half::Guarded, Side::Local, bytes, shape.align as u64);
        let slots = slots.map_err(|e| self.exhausted(site.call, bytes, e))?;
        // SAFETY: a zeroed block of this shape, just taken; only the outbox that is told of it below writes it. It is given back
        // when this is gone and everything of the outbox has arrived (`Inner::sweep_lanes`).
        let receiver = unsafe { Receiver::new(inner.seat.node(), &shape, inner.rank.0, slots) };
        let k = inner.lanes.next(&inner.lanes.inboxes, from);
        let mut end = End::new(inner, from, (lane::inbox(k), lane::outbox(k)), site, shape, slots);
        end.tell::<T>();
        Ok(Inbox { end, receiver })
    }

    #[track_caller]
    fn lane_shape<T>(&self, site: Site, peer: Rank, len: usize, depth: usize) -> Result<Shape> {
        let (inner, me, Site { call, .. }) = (&self.all().inner, self.rank(), site);
        inner.is_not_over(site);
        inner.check_rank(call, peer);
        if depth == 0 {
            panic!("{me}: {call}: a lane without slots; its depth is 1 at least");
        }
        inner.sweep_lanes();
        match Shape::of(size_of::<T>(), align_of::<T>(), len, depth) {
            Some(shape) if align_of::<T>() <= 4096 => Ok(shape),
            Some(_) => Err(Error::config(format!("{me}: {call}: values aligned to more than a page"))),
            None => {
                let size = size_of::<T>();
                Err(Error::out_of_memory(format!(
                    "{me}: {call} of {depth} slots of {len} values of {size} bytes: too large"
                )))
            }
        }
    }
}

/// What both ends have.
struct End {
    inner: Rc<Inner>,
    peer: Rank,
    /// The names of mine and of the other.
    mine: u64,
    other: u64,
    /// Where it was made.
    site: Site,
    shape: Shape,
    /// My memory of it.
    offset: u64,
    /// The type of its elements.
    name: &'static str,
    size: usize,
    align: usize,
    /// The other end, once it is known.
    there: Option<Box<Made>>,
}

impl End {
    fn new(inner: &Rc<Inner>, peer: Rank, (mine, other): (u64, u64), site: Site, shape: Shape, offset: u64) -> End {
        let (inner, name, size, align) = (inner.clone(), "", 0, 1);
        End { inner, peer, mine, other, site, shape, offset, name, size, align, there: None }
    }

    /// Tells the other rank of this end.
    fn tell<T>(&mut self) {
        (self.name, self.size, self.align) = (type_name::<T>(), size_of::<T>(), align_of::<T>());
        let what = Told {
            key: self.mine,
            offset: self.offset,
            len: self.shape.len as u64,
            depth: self.shape.depth as u64,
            size: self.size as u64,
            align: self.align as u64,
        };
        let words = format!("{}\n{}", self.site, self.name);
        self.inner.request(self.site, self.peer, LANE, bytes_of(&what), words.as_bytes());
    }

    fn ends(&self) -> &Ends {
        &self.inner.seat.landing().lanes
    }

    fn k(&self) -> u64 {
        self.mine / 2
    }

    /// Finds the other end, if its rank has told of it.
    #[track_caller]
    fn meet(&mut self) -> bool {
        if self.there.is_none() {
            let Some(made) = self.ends().find(self.peer.index(), self.other).made else { return false };
            let (what, here) = (&made.what, (self.shape.len as u64, self.shape.depth as u64));
            let same = (what.len, what.depth) == here && made.words[1] == self.name;
            if !same || (what.size, what.align) != (self.size as u64, self.align as u64) {
                self.does_not_fit(&made);
            }
            self.there = Some(Box::new(made));
        }
        true
    }

    #[cold]
    #[track_caller]
    fn does_not_fit(&self, made: &Made) -> ! {
        let (me, peer, k, Shape { depth, len, .. }) = (self.inner.rank, self.peer, self.k(), self.shape);
        let [site, name] = &made.words;
        panic!(
            "{me}: {} has {depth} slots of {len} {}, but lane {k} ends on {peer} in {site} with {} slots of {} {name}",
            self.site, self.name, made.what.depth, made.what.len
        )
    }

    /// How much the other end has done in all, if it is gone.
    fn ended(&self) -> Option<u64> {
        let end = self.ends().find(self.peer.index(), self.other);
        end.ended.filter(|_| end.made.is_some())
    }

    /// Where the other end was made.
    fn other_site(&self) -> String {
        let made = self.ends().find(self.peer.index(), self.other).made;
        made.map_or(String::new(), |made| made.words[0].clone())
    }

    /// Waits until `done`, or until news of lanes make `over` true.
    fn wait(&self, site: Site, what: What, done: impl Fn() -> bool + Copy, over: impl Fn() -> bool + Copy) {
        let seen = Cell::new(None);
        let look = || done() || seen.replace(Some(self.ends().news())) != seen.get() && over();
        let waited = self.inner.wait_saying(|| Waiting { site, end: self, what }, look);
        self.inner.unless_over(waited);
    }

    /// This end is dropped, after so many; what is left of it is to be swept.
    fn end(&self, count: u64, left: Left) {
        if self.inner.calls.is_over() || self.inner.is_ending() {
            return;
        }
        let site =
            Site { call: if self.mine.is_multiple_of(2) { "drop of outbox" } else { "drop of inbox" }, ..self.site };
        self.inner.request(site, self.peer, LANE_ENDED, bytes_of(&[self.mine, count]), &[]);
        let dead = Dead { peer: self.peer, other: self.other, offset: self.offset, left };
        self.inner.lanes.dead.borrow_mut().push(dead);
    }
}

impl<T: Pod> Outbox<T> {
    /// Fills the next slot with all of `src`, which has as many elements as a slot at most, and signals it: one message. Waits while all
    /// slots are full, and until the inbox has been made. `src` may be used again when this returns.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal(&mut self, src: &[T]) {
        if self.sender.is_ready() && src.len() <= self.sender.len() {
            return self.sender.put(src);
        }
        self.put_slowly("put_signal", src);
    }

    /// The same if a slot is free; false if none is. Makes progress then.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let mut to = job.outbox::<u8>(job.neighbor(1), 1, 2).unwrap();
    ///     let mut from = job.inbox::<u8>(job.neighbor(1), 1, 2).unwrap();
    ///     job.barrier();
    ///     let mut sent = 0;
    ///     while to.try_put_signal(&[sent]) {
    ///         sent += 1;
    ///     }
    ///     assert_eq!(sent, 2);
    ///     # job.barrier();
    ///     (0..2).for_each(|n| assert_eq!(from.wait()[0], n));
    ///     # job.barrier();
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn try_put_signal(&mut self, src: &[T]) -> bool {
        if self.sender.is_ready() && src.len() <= self.sender.len() {
            self.sender.put(src);
            return true;
        }
        self.try_slowly(src)
    }

    /// A future that is ready when a slot is free: the next `put_signal` does not wait.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let mut to = job.outbox::<u64>(job.neighbor(1), 1, 1).unwrap();
    ///     let mut from = job.inbox::<u64>(job.neighbor(1), 1, 1).unwrap();
    ///     let sends = async {
    ///         for i in 0..10 {
    ///             to.ready().await;
    ///             to.put_signal(&[i]);
    ///         }
    ///     };
    ///     let receives = async {
    ///         for i in 0..10 {
    ///             assert_eq!(*from.arrived().await, [i]);
    ///         }
    ///     };
    ///     let both: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(sends), Box::pin(receives)];
    ///     job.block_on(partage::wait::join_all(both));
    /// });
    /// ```
    pub fn ready(&mut self) -> Ready<'_, T> {
        Ready { outbox: self }
    }

    /// The rank that receives.
    pub fn rank(&self) -> Rank {
        self.end.peer
    }

    /// How many elements a slot has room for.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.end.shape.len
    }

    /// How many slots there are.
    pub fn depth(&self) -> usize {
        self.end.shape.depth
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_slowly(&mut self, call: &'static str, src: &[T]) {
        let site = Site::here(call);
        self.end.inner.is_not_over(site);
        self.check(call, src.len());
        if !self.may_put(call) {
            self.end.inner.may_wait(|| site);
            if self.end.there.is_none() {
                let made = || self.end.ends().find(self.end.peer.index(), self.end.other).made.is_some();
                self.end.wait(site, What::Inbox, || false, made);
            }
            if !self.may_put(call) {
                let (has_room, is_over) = (|| self.sender.has_room(), || self.is_over());
                self.end.wait(site, What::Room, has_room, is_over);
            }
        }
        // Not if the job has ended meanwhile, while this rank unwinds.
        if self.may_put(call) {
            self.put_now(site, src);
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn try_slowly(&mut self, src: &[T]) -> bool {
        let call = "try_put_signal";
        self.end.inner.is_not_over(Site::here(call));
        self.check(call, src.len());
        let may = self.may_put(call) || (self.end.inner.look() && self.may_put(call));
        if may {
            self.put_now(Site::here(call), src);
        }
        may
    }

    #[track_caller]
    fn check(&self, call: &str, len: usize) {
        let (me, Shape { len: most, .. }) = (self.end.inner.rank, self.end.shape);
        if len > most {
            panic!("{me}: {call}: {len} elements for a slot of {most}; make the lane with longer ones");
        }
    }

    /// Is the inbox known, and a slot free?
    #[track_caller]
    fn may_put(&mut self, call: &str) -> bool {
        if self.end.there.is_none() && !self.connect() {
            return false;
        }
        let may = self.sender.refill();
        if !may && self.is_over() {
            let (me, peer, depth) = (self.end.inner.rank, self.end.peer, self.end.shape.depth);
            panic!("{me}: {call}: {peer} has dropped its {}, and all {depth} slots are full", self.end.other_site());
        }
        may
    }

    /// Is the inbox gone, and will no slot be given back any more?
    fn is_over(&self) -> bool {
        !self.sender.has_room() && self.end.ended().is_some_and(|given| self.sender.given() == given)
    }

    #[track_caller]
    fn connect(&mut self) -> bool {
        self.end.meet() && {
            let (end, there) = (&self.end, self.end.there.as_ref().expect("met"));
            // SAFETY: its rank has told where the slots of this lane are; they have the same shape and type (`meet`), and stay until
            // this end has said that it is gone. The k-th inbox is told to one outbox, the k-th.
            unsafe { self.sender.connect(&end.inner.guarded, &end.shape, end.peer.0, there.what.offset) };
            true
        }
    }

    fn put_now(&mut self, site: Site, src: &[T]) {
        if self.sender.is_ready() {
            return self.sender.put(src);
        }
        let (end, bytes) = (&self.end, bytemuck::cast_slice(src));
        let slots = end.there.as_ref().expect("it was met").what.offset;
        let (slot, value) = self.sender.put_far(src.len());
        let offset = slots + (slot * end.shape.stride) as u64;
        let at = At::guarded(end.peer.0, offset + end.shape.payload as u64);
        // Added, since what is added is the same in each turn, for elements as many as in the last: a network has a number for that.
        self.flags.resize(end.shape.depth, 0);
        let more = value.wrapping_sub(std::mem::replace(&mut self.flags[slot], value));
        end.inner.send_notice(site, at, bytes, Notice::Add { offset, value: more });
    }
}

impl<T: Pod> Inbox<T> {
    /// Waits for the next message: its slot, with the elements that were put. Serves others meanwhile.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&mut self) -> Arrived<'_, T> {
        self.end.inner.may_wait(|| Site::here("wait"));
        if self.end.there.is_some()
            && let Some((first, len)) = self.receiver.take()
        {
            // Who always finds a message serves others all the same.
            self.end.inner.progress_at_times();
            return Arrived { inbox: self, first, len };
        }
        self.wait_slowly("wait")
    }

    /// The next message if it has come. Makes progress if it has not.
    #[inline]
    #[track_caller]
    pub fn try_wait(&mut self) -> Option<Arrived<'_, T>> {
        self.end.inner.may_wait(|| Site::here("try_wait"));
        let mut taken = self.try_take();
        if taken.is_none() {
            self.give_forgotten();
            self.end.inner.look();
            taken = self.try_take();
        }
        let (first, len) = taken?;
        Some(Arrived { inbox: self, first, len })
    }

    /// A future of the next message; see [`Outbox::ready`]. Dropping it takes nothing.
    pub fn arrived(&mut self) -> Arriving<'_, T> {
        Arriving { inbox: Some(self) }
    }

    /// The rank that sends.
    pub fn rank(&self) -> Rank {
        self.end.peer
    }

    /// How many elements a slot has room for.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.end.shape.len
    }

    /// How many slots there are.
    pub fn depth(&self) -> usize {
        self.end.shape.depth
    }

    #[inline]
    #[track_caller]
    fn try_take(&mut self) -> Option<(*const T, usize)> {
        if self.end.there.is_none() && !self.connect() {
            return None;
        }
        self.receiver.take()
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn connect(&mut self) -> bool {
        self.end.meet() && {
            let (end, there) = (&self.end, self.end.there.as_ref().expect("met"));
            // SAFETY: its rank has told where the credit of this lane is, which stays until this end has said that it is gone.
            unsafe { self.receiver.connect(&end.inner.guarded, end.peer.0, there.what.offset) };
            true
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait_slowly(&mut self, call: &'static str) -> Arrived<'_, T> {
        let site = Site::here(call);
        if self.end.there.is_none() && !self.connect() {
            let made = || self.end.ends().find(self.end.peer.index(), self.end.other).made.is_some();
            self.end.wait(site, What::Outbox, || false, made);
            self.connect();
        }
        self.give_forgotten();
        let (has_come, is_over) = (|| self.receiver.look().is_some(), || self.is_over());
        self.end.wait(site, What::Message(self.receiver.taken()), has_come, is_over);
        match self.try_take() {
            Some((first, len)) => Arrived { inbox: self, first, len },
            None if self.is_over() => self.will_not_come(call),
            None => self.end.inner.no_result(site),
        }
    }

    /// Gives back slots that were forgotten, and that nobody can read any more: what has not come may wait for one of them.
    fn give_forgotten(&mut self) {
        if self.receiver.taken() > self.receiver.given()
            && let Some(more) = self.receiver.give()
        {
            self.give_far(more);
        }
    }

    /// Is the outbox gone, and has everything been taken?
    fn is_over(&self) -> bool {
        self.end.ended() == Some(self.receiver.taken())
    }

    #[cold]
    #[track_caller]
    fn will_not_come(&self, call: &str) -> ! {
        let (me, peer, sent) = (self.end.inner.rank, self.end.peer, self.receiver.taken());
        let messages = if sent == 1 { "message" } else { "messages" };
        panic!(
            "{me}: {call}: {peer} has dropped its {} after {sent} {messages}, all of which were taken",
            self.end.other_site()
        )
    }

    /// Gives slots back by a message.
    #[cold]
    #[inline(never)]
    fn give_far(&mut self, value: u64) {
        let end = &self.end;
        let Some(there) = &end.there else { return };
        if value == 0 || end.inner.calls.is_over() || end.inner.is_ending() {
            return;
        }
        let (site, offset) = (Site { call: "drop of arrived", ..end.site }, there.what.offset);
        end.inner.send_notice(site, At { rank: end.peer.0, offset: 0 }, &[], Notice::Add { offset, value });
    }
}

impl<T: Pod> Deref for Arrived<'_, T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the elements that the sender has put, aligned and whole, any bits of which are values. Nobody writes them until
        // the slot is given back, when this is dropped; see the module's docs.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T: Pod> Drop for Arrived<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(more) = self.inbox.receiver.give() {
            self.inbox.give_far(more);
        }
    }
}

impl<T: Pod> Drop for Outbox<T> {
    fn drop(&mut self) {
        self.end.end(self.sender.sent(), Left::Credit);
    }
}

impl<T: Pod> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.end.end(self.receiver.given(), Left::Slots(self.receiver.remains()));
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Arrived<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Pod> fmt::Debug for Outbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outbox {} to {}, {} sent", self.end.k(), self.end.peer, self.sender.sent())
    }
}

impl<T: Pod> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inbox {} from {}, {} taken", self.end.k(), self.end.peer, self.receiver.taken())
    }
}

/// A free slot to come: what [`Outbox::ready`] gives.
#[must_use = "a future does nothing until it is awaited"]
#[derive(Debug)]
pub struct Ready<'a, T: Pod> {
    outbox: &'a mut Outbox<T>,
}

impl<T: Pod> Future for Ready<'_, T> {
    type Output = ();
    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let outbox = &mut *self.outbox;
        if outbox.may_put("ready") || (outbox.end.inner.progress_at_times() && outbox.may_put("ready")) {
            return Poll::Ready(());
        }
        // Whoever gives a slot back wakes the rank, and it looks at all of its future.
        crate::wait::ask_again(cx);
        Poll::Pending
    }
}

/// A message to come: what [`Inbox::arrived`] gives.
#[must_use = "a future does nothing until it is awaited"]
#[derive(Debug)]
pub struct Arriving<'a, T: Pod> {
    inbox: Option<&'a mut Inbox<T>>,
}

impl<'a, T: Pod> Future for Arriving<'a, T> {
    type Output = Arrived<'a, T>;
    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Arrived<'a, T>> {
        let Some(inbox) = self.inbox.as_mut() else { panic!("a future that was ready is polled again") };
        let mut taken = inbox.try_take();
        if taken.is_none() {
            inbox.give_forgotten();
            inbox.end.inner.progress_at_times();
            taken = inbox.try_take();
        }
        match taken.zip(self.inbox.take_if(|_| taken.is_some())) {
            Some(((first, len), inbox)) => return Poll::Ready(Arrived { inbox, first, len }),
            None => {
                let inbox = self.inbox.as_ref().expect("not taken");
                if inbox.is_over() {
                    inbox.will_not_come("arrived");
                }
            }
        }
        crate::wait::ask_again(cx);
        Poll::Pending
    }
}

/// What an end waits for.
#[derive(Clone, Copy)]
enum What {
    Inbox,
    Outbox,
    Room,
    Message(u64),
}

/// Where a rank waits, for what of which lane.
struct Waiting<'a> {
    site: Site,
    end: &'a End,
    what: What,
}

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (k, peer, made, depth) = (self.end.k(), self.end.peer, self.end.site, self.end.shape.depth);
        match self.what {
            What::Inbox => write!(f, "{}, for {peer} to make its inbox of lane {k} ({made})", self.site),
            What::Outbox => write!(f, "{}, for {peer} to make its outbox of lane {k} ({made})", self.site),
            What::Room => write!(f, "{}, for one of the {depth} slots of lane {k} to {peer} ({made})", self.site),
            What::Message(n) => write!(f, "{}, for message {n} of lane {k} from {peer} ({made})", self.site),
        }
    }
}

/// The lanes of one rank.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// How many have been made, by rank at their other end.
    outboxes: RefCell<HashMap<Rank, u64>>,
    inboxes: RefCell<HashMap<Rank, u64>>,
    /// Ends that were dropped, whose memory is not given back yet.
    dead: RefCell<Vec<Dead>>,
}

#[derive(Debug)]
struct Dead {
    peer: Rank,
    /// The name of the other end.
    other: u64,
    offset: u64,
    left: Left,
}

#[derive(Debug)]
enum Left {
    Credit,
    Slots(Remains),
}

impl Lanes {
    fn next(&self, book: &RefCell<HashMap<Rank, u64>>, peer: Rank) -> u64 {
        let mut book = book.borrow_mut();
        let made = book.entry(peer).or_default();
        *made += 1;
        *made - 1
    }
}

impl Inner {
    /// Gives back the memory of lanes whose ends are both gone, and to which nothing is under way any more.
    pub(crate) fn sweep_lanes(&self) {
        if self.lanes.dead.borrow().is_empty() {
            return;
        }
        let ends = &self.seat.landing().lanes;
        self.lanes.dead.borrow_mut().retain(|dead| {
            let Some(count) = ends.find(dead.peer.index(), dead.other).ended else { return true };
            let at = At { rank: self.rank.0, offset: dead.offset };
            let all = match &dead.left {
                Left::Credit => self.own_table().get::<u64>(at) == Some(count),
                Left::Slots(remains) => remains.has_all(count),
            };
            if all {
                ends.forget(dead.peer.index(), dead.other);
                self.seat.give(Half::Guarded, Side::Local, dead.offset);
            }
            !all
        });
    }
}
