//! Mailboxes: any rank sends values to one, its owner receives them.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let mailbox = job.mailbox::<[u64; 2]>(16).unwrap();            // mine, for 16 values
//!     let addresses = job.alloc_all::<Address<[u64; 2]>>(1).unwrap();
//!     addresses.put(job, mailbox.address());
//!     job.barrier();
//!     for to in job.ranks() {
//!         addresses.on(to).get(job).send(job, [job.rank().0.into(), to.0.into()]);
//!     }
//!     for _ in job.ranks() {
//!         let (from, [source, target]) = mailbox.receive();
//!         assert_eq!((u64::from(from.0), u64::from(job.rank().0)), (source, target));
//!     }
//!     # job.barrier();
//! });
//! ```
//!
//! # What is promised
//! * A value that was sent is received once, whole. Those of one sender come in the order in which it sent them; those of
//!   several in some order.
//! * What a rank wrote before it sent is there for who has received. Puts that were only started are to be complete before
//!   ([`Job::fence`]).
//! * A mailbox is bounded: as many values as it was made for, rounded up to a power of two. A sender that finds it full waits,
//!   and serves others; [`Address::try_send`] says no. Nothing is dropped, and nobody polls: who makes room wakes one who waits.
//! * On a node [`send`](Address::send) writes the value where its owner reads it and waits for nobody. To another node, and on the
//!   reference path, it is a message, and the call returns when the value is in.
//! * What is in a mailbox when it is dropped is lost. Who sends to it then, or waits for room in it, panics.

use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use crate::team::Rank;
use bytemuck::{Pod, Zeroable};
use partage_conduit::contract::Conduit;
use partage_conduit::record::Site;
use partage_conduit::shm::mailbox::{LARGEST, Name, Reached, Refused, Sent};
use partage_conduit::sync::full_fence;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A mailbox of this rank's, for values of type `T`; see the [module](self).
#[derive(Debug)]
pub struct Mailbox<T> {
    inner: Rc<Inner>,
    name: Name,
    capacity: usize,
    /// How many values were received.
    taken: Cell<u64>,
    _t: PhantomData<fn() -> T>,
}

/// Where values are sent: 64 plain bits, which can be stored in shared memory and sent. All zeros is null.
#[repr(transparent)]
pub struct Address<T> {
    bits: u64,
    _t: PhantomData<fn(T)>,
}

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Address<T> {}
impl<T> PartialEq for Address<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}
impl<T> Eq for Address<T> {}
impl<T> Default for Address<T> {
    fn default() -> Self {
        Address { bits: 0, _t: PhantomData }
    }
}
// SAFETY: transparent over u64, and all zeros is the null one.
unsafe impl<T: 'static> Zeroable for Address<T> {}
// SAFETY: transparent over u64; every bit pattern is a value, because every use is checked.
unsafe impl<T: 'static> Pod for Address<T> {}

impl<T> fmt::Debug for Address<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            0 => write!(f, "null"),
            _ => write!(f, "mailbox {} of rank {}", self.name().index(), self.name().rank()),
        }
    }
}

impl<T> Serialize for Address<T> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.bits.serialize(s)
    }
}

impl<'de, T> Deserialize<'de> for Address<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        u64::deserialize(d).map(|bits| Address { bits, _t: PhantomData })
    }
}

impl Job {
    /// Makes a mailbox of mine for at least `capacity` values of at most 4096 bytes each. Not collective.
    ///
    /// ```compile_fail
    /// partage::test(1, |job| drop(job.mailbox::<[u64; 513]>(4)));    // larger ones are put, and their pointers sent
    /// ```
    #[track_caller]
    pub fn mailbox<T: Pod>(&self, capacity: usize) -> Result<Mailbox<T>> {
        const { assert!(size_of::<T>() <= LARGEST, "the values of a mailbox have at most 4096 bytes") };
        let (inner, me) = (&self.all().inner, self.rank());
        inner.is_not_over(Site::here("mailbox"));
        let slots = capacity.max(1).checked_next_power_of_two().filter(|&n| n <= 1 << 32);
        let Some(slots) = slots else {
            return Err(Error::config(format!("{me}: mailbox for {capacity} values; at most 4294967296 are possible")));
        };
        let name = inner.seat.make_mailbox(size_of::<T>(), slots.ilog2());
        let name = name.map_err(|e| Error::out_of_memory(format!("{me}: mailbox for {capacity} values: {e}")))?;
        Ok(Mailbox { inner: inner.clone(), name, capacity: slots, taken: Cell::new(0), _t: PhantomData })
    }
}

impl<T> Address<T> {
    /// The address of no mailbox.
    pub const NULL: Self = Address { bits: 0, _t: PhantomData };

    /// Is this the null address?
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    /// The rank that has the mailbox.
    pub fn rank(self) -> Rank {
        Rank(self.name().rank())
    }

    #[inline(always)]
    fn name(self) -> Name {
        Name(self.bits)
    }
}

impl<T: Pod> Address<T> {
    /// Sends a value; waits, and serves others, while there is no room.
    #[inline]
    #[track_caller]
    pub fn send(self, job: &Job, value: T) {
        let (inner, bytes) = (&job.all().inner, bytemuck::bytes_of(&value));
        inner.may_wait(|| Site::here("send"));
        match inner.mailboxes.open(self.name(), size_of::<T>()) {
            Some(Ok(mailbox)) if mailbox.try_send(inner.rank.0, bytes) => _ = inner.progress_at_times(),
            found => self.send_slowly(inner, found, bytes),
        }
    }

    /// The same if there is room; false if not.
    ///
    /// ```
    /// partage::test(1, |job| {
    ///     let mailbox = job.mailbox(2).unwrap();
    ///     let sent = (0..5u32).filter(|&i| mailbox.address().try_send(job, i)).count();
    ///     assert_eq!((sent, mailbox.len()), (2, 2));
    /// });
    /// ```
    #[track_caller]
    pub fn try_send(self, job: &Job, value: T) -> bool {
        let (inner, bytes) = (&job.all().inner, bytemuck::bytes_of(&value));
        inner.is_not_over(Site::here("try_send"));
        let sent = match inner.mailboxes.open(self.name(), size_of::<T>()) {
            Some(Ok(mailbox)) => {
                let try_send = || mailbox.try_send(inner.rank.0, bytes);
                let sent = try_send() || (inner.look() && try_send());
                if sent { Sent::In } else { Sent::Full }
            }
            Some(Err(why)) => Sent::Refused(why),
            None => self.send_by_message(inner, "try_send", bytes, false),
        };
        self.unless_refused(inner, "try_send", sent) == Sent::In
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn send_slowly(self, inner: &Rc<Inner>, found: Option<std::result::Result<Reached<'_>, Refused>>, bytes: &[u8]) {
        let sent = match found {
            Some(Ok(mailbox)) => self.wait_for_room(inner, Site::here("send"), &mailbox, bytes),
            Some(Err(why)) => Sent::Refused(why),
            None => self.send_by_message(inner, "send", bytes, true),
        };
        self.unless_refused(inner, "send", sent);
    }

    fn wait_for_room(self, inner: &Rc<Inner>, site: Site, mailbox: &Reached<'_>, bytes: &[u8]) -> Sent {
        let sent = Cell::new(Sent::Full);
        let look = || {
            let found = match () {
                () if mailbox.is_dropped() => Sent::Refused(Refused::Dropped),
                () if mailbox.try_send(inner.rank.0, bytes) => Sent::In,
                () => Sent::Full,
            };
            sent.set(found);
            found != Sent::Full
        };
        let waited = inner.wait_saying(
            || Waiting { site, what: "room in", name: self.name() },
            || look() || inner.seat.waits_for_room(mailbox) && look(),
        );
        inner.seat.found_room(mailbox);
        inner.unless_over(waited);
        sent.get()
    }

    /// By a message, which is answered when the value is in, or will not be.
    #[track_caller]
    fn send_by_message(self, inner: &Rc<Inner>, call: &'static str, bytes: &[u8], waits: bool) -> Sent {
        let site = Site::here(call);
        inner.is_not_over(site);
        if self.is_null() || self.rank().index() >= inner.size {
            return Sent::Refused(Refused::NoSuch);
        }
        let started = inner.seat.start_mail(site, self.name(), bytes, waits);
        let answers = &inner.seat.landing().answers;
        let Ok(slot) = started else {
            inner.unless_over(started);
            return Sent::In;
        };
        let done = || answers.is_done(slot);
        // A call that does not wait for room is a round trip like any other, also in a called function.
        let waited = match waits {
            true => inner.wait_saying(|| Waiting { site, what: "an answer of", name: self.name() }, done),
            false => Conduit::wait(&inner.seat, site, done),
        };
        let sent = Sent::decode(answers.value(slot));
        answers.give(slot);
        inner.unless_over(waited);
        sent
    }

    #[inline(always)]
    #[track_caller]
    fn unless_refused(self, inner: &Inner, call: &str, sent: Sent) -> Sent {
        if let Sent::Refused(why) = sent {
            self.refuse(inner, call, why);
        }
        sent
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse(self, inner: &Inner, call: &str, why: Refused) -> ! {
        let me = inner.rank;
        if self.is_null() {
            panic!("{me}: {call}: the address is null");
        }
        inner.check_rank(call, self.rank());
        match why {
            Refused::NoSuch => panic!("{me}: {call}: {self:?}: there never was such a mailbox"),
            Refused::Dropped => panic!("{me}: {call}: {self:?} was dropped; its owner keeps it until all have sent"),
            Refused::Size(has) => {
                let size = size_of::<T>();
                panic!("{me}: {call}: a value of {size} bytes, and {self:?} is for values of {has}")
            }
        }
    }
}

impl<T: Pod> Mailbox<T> {
    /// Where it is sent to.
    pub fn address(&self) -> Address<T> {
        Address { bits: self.name.0, _t: PhantomData }
    }

    /// How many values it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many values are in it; some of them may not be whole yet.
    pub fn len(&self) -> usize {
        self.reached().len(self.taken.get())
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for a value, and serves others meanwhile: who sent it, and the value.
    #[inline]
    #[track_caller]
    pub fn receive(&self) -> (Rank, T) {
        self.inner.may_wait(|| Site::here("receive"));
        match self.take("receive") {
            Some(received) => {
                // Who always finds one serves others all the same.
                self.inner.progress_at_times();
                received
            }
            None => self.receive_slowly(Site::here("receive")),
        }
    }

    /// A value if there is one. Makes progress if there is none.
    #[inline]
    #[track_caller]
    pub fn try_receive(&self) -> Option<(Rank, T)> {
        self.inner.is_not_over(Site::here("try_receive"));
        self.take("try_receive").or_else(|| {
            self.inner.look();
            self.take("try_receive")
        })
    }

    /// A future that receives a value when there is one. Dropping it takes nothing.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let mailbox = job.mailbox::<f64>(4).unwrap();
    ///     let (sent, received) = (mailbox.address(), mailbox.received());
    ///     sent.send(job, 1.5);
    ///     assert_eq!(job.block_on(received), (job.rank(), 1.5));
    /// });
    /// ```
    pub fn received(&self) -> Received<'_, T> {
        Received { mailbox: self }
    }

    #[inline(always)]
    fn reached(&self) -> Reached<'_> {
        match self.inner.seat.node().mailboxes().open(self.name, size_of::<T>()) {
            Some(Ok(reached)) => reached,
            _ => unreachable!("mine is mapped, and not dropped"),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn take(&self, call: &'static str) -> Option<(Rank, T)> {
        let (mailbox, mut value) = (self.reached(), T::zeroed());
        let mut taken = mailbox.try_receive(&self.taken, bytemuck::bytes_of_mut(&mut value));
        if taken.is_none() && mailbox.has_kept() && self.inner.seat.put_kept(Site::here(call), &mailbox) {
            taken = mailbox.try_receive(&self.taken, bytemuck::bytes_of_mut(&mut value));
        }
        let source = taken?;
        full_fence();
        if mailbox.is_wanted() {
            self.inner.seat.give_room(Site::here(call), &mailbox, self.taken.get());
        }
        Some((Rank(source), value))
    }

    #[cold]
    #[inline(never)]
    fn receive_slowly(&self, site: Site) -> (Rank, T) {
        let received = Cell::new(None);
        let look = || {
            received.set(self.take("receive"));
            received.get().is_some()
        };
        let waiting = || Waiting { site, what: "a value in", name: self.name };
        self.inner.unless_over(self.inner.wait_saying(waiting, look));
        match received.get() {
            Some(received) => received,
            None => self.inner.no_result(site),
        }
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.inner.seat.drop_mailbox(Site::here("drop of a mailbox"), self.name, size_of::<T>());
    }
}

/// Where a rank waits, and for what.
struct Waiting {
    site: Site,
    what: &'static str,
    name: Name,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { site, what, name } = self;
        write!(f, "{site}, for {what} mailbox {} of rank {}", name.index(), name.rank())
    }
}

/// A value to come: what [`Mailbox::received`] gives.
#[must_use = "a future receives a value when it is awaited"]
#[derive(Debug)]
pub struct Received<'a, T> {
    mailbox: &'a Mailbox<T>,
}

impl<T: Pod> Future for Received<'_, T> {
    type Output = (Rank, T);
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Rank, T)> {
        let mailbox = self.mailbox;
        let found = mailbox.take("received").or_else(|| {
            mailbox.inner.progress_at_times();
            mailbox.take("received")
        });
        match found {
            Some(received) => Poll::Ready(received),
            None => {
                // Whoever sends wakes the rank, and it looks at all of its future.
                crate::wait::ask_again(cx);
                Poll::Pending
            }
        }
    }
}
