//! Semaphores, and puts that signal one: data and its notification in one message.
//!
//! A put that has arrived is known to the rank that made it. Often it is the other one that wants to know. It makes a
//! [`Semaphore`], gives its [`Signal`] (64 plain bits) to whoever is to signal it, and waits; the other calls `put_signal`:
//! one message, half a round trip, and no rank but the one that wants to waits for anything.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(3, |job| {
//!     let a = job.array::<f64>(Layout::per_rank(4)).unwrap();
//!     let come = job.semaphore().unwrap();                          // mine, of value 0
//!     let signals = job.alloc_all::<Signal>(1).unwrap();
//!     signals.put(job, come.signal());
//!     job.barrier();
//!     let right = job.neighbor(1);
//!     let signal = signals.on(right).get(job);
//!     a.put_signal(4 * right.index(), &[1.0, 2.0, 3.0, 4.0], signal, 1);  // the source may be used again at once
//!     come.wait();                                                  // what my left neighbour put is there
//!     assert_eq!(a.cells().get(2), 3.0);
//! });
//! ```
//!
//! # What is promised
//! * A semaphore counts: a post adds, waiting takes, all or nothing. A boolean one is signaled or not, and posts merge. The
//!   largest count is 2147483647.
//! * What its rank wrote before a post or `put_signal`, its data included, is there for who has taken the post: posting
//!   releases, taking acquires. Puts that were only started are to be complete before ([`Job::fence`]). With
//!   [`Flavor::strict`] both are full fences of their ranks.
//! * `put_signal` returns when the source may be used again. When the data has arrived only the target learns, through the
//!   semaphore; [`Job::quiet`] and [`Job::fence`] wait for it too. Signals of one rank to another
//!   take effect in the order in which they were made: who has taken the first has what came with the first.
//! * It does not ask whether the target has read what was there before: that is the program's to know, by a signal in the other
//!   direction, or by [slots](crate::slots), which have such signals built in.
//! * A rank that waits serves others, as in every wait. Posts to a semaphore that its owner has freed are ignored.

mod shared;

pub use shared::SharedSemaphore;
pub(crate) use shared::Shares;

use crate::array::SharedArray;
use crate::error::{Error, Result};
use crate::fail;
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::scope::{Event, Scope, Transfer};
use crate::team::Rank;
use bytemuck::{Pod, Zeroable};
use partage_conduit::contract::{At, Conduit, Half, Outside};
use partage_conduit::copy;
use partage_conduit::ofi::{self, rma::Started};
use partage_conduit::record::Site;
use partage_conduit::shm::am::Reference;
use partage_conduit::shm::rma::Reach;
use partage_conduit::shm::signal::{Reached, Said};
use partage_conduit::signal::{MOST_POSTED, Name, Notice, Refused};
use partage_conduit::sync::full_fence;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::OnceCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

pub use partage_conduit::signal::Flavor;

/// What posts are counted by; its owner waits for them. Dropping it frees it.
///
/// ```
/// partage::test(1, |job| {
///     let s = job.semaphore().unwrap();
///     assert!(!s.try_wait());
///     job.post_n(s.signal(), 3);
///     s.wait_n(2);
///     assert!(!s.try_wait_n(2) && s.try_wait());
/// });
/// ```
#[derive(Debug)]
pub struct Semaphore {
    inner: Rc<Inner>,
    name: Name,
    flavor: Flavor,
    /// What other threads take by, once there was one.
    shared: OnceCell<SharedSemaphore>,
}

/// What a semaphore is signaled by: 64 plain bits, which can be stored in shared memory and sent. All zeros is null.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Signal(u64);

// SAFETY: transparent over u64, and all zeros is the null one.
unsafe impl Zeroable for Signal {}
// SAFETY: transparent over u64; every bit pattern is a value, because every use is checked.
unsafe impl Pod for Signal {}

impl Default for Signal {
    fn default() -> Self {
        Signal::NULL
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "null"),
            _ => write!(f, "semaphore {} of rank {}", self.name().index(), self.name().rank()),
        }
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        u64::deserialize(d).map(Signal)
    }
}

impl Signal {
    /// The signal of no semaphore.
    pub const NULL: Signal = Signal(0);

    /// Is this the null signal?
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The rank that has the semaphore.
    pub fn rank(self) -> Rank {
        Rank(self.name().rank())
    }

    #[inline(always)]
    pub(crate) fn name(self) -> Name {
        Name(self.0)
    }
}

impl Job {
    /// Makes a semaphore of mine with value 0, of the general form: it counts, and any number of ranks post. Not collective.
    #[track_caller]
    pub fn semaphore(&self) -> Result<Semaphore> {
        self.semaphore_with(Flavor::default())
    }

    /// The same of a flavor, which says what will not happen to it.
    ///
    /// ```
    /// use partage::signal::Flavor;
    /// partage::test(1, |job| {
    ///     let full = job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap();
    ///     job.post(full.signal());
    ///     job.post(full.signal());                      // merge
    ///     assert!(full.try_wait() && !full.try_wait());
    /// });
    /// ```
    #[track_caller]
    pub fn semaphore_with(&self, flavor: Flavor) -> Result<Semaphore> {
        let inner = &self.all().inner;
        inner.is_not_over(Site::here("semaphore"));
        inner.shares.sweep(&inner.seat);
        let name = inner.seat.make_semaphore(flavor);
        let name = name.map_err(|e| Error::out_of_memory(format!("{}: semaphore: {e}", self.rank())))?;
        Ok(Semaphore { inner: inner.clone(), name, flavor, shared: OnceCell::new() })
    }

    /// Signals a semaphore, without data. Never waits for its owner.
    #[inline]
    #[track_caller]
    pub fn post(&self, signal: Signal) {
        self.all().inner.signal("post", signal, 1);
    }

    /// The same `n` times at once.
    #[inline]
    #[track_caller]
    pub fn post_n(&self, signal: Signal, n: u32) {
        self.all().inner.signal("post_n", signal, n);
    }
}

impl Semaphore {
    /// What it is signaled by.
    pub fn signal(&self) -> Signal {
        Signal(self.name.0)
    }

    /// What it may be used for.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Waits for a post and takes it.
    #[inline]
    #[track_caller]
    pub fn wait(&self) {
        self.wait_for("wait", 1);
    }

    /// Waits for `n` posts and takes all of them at once. Of a boolean semaphore there is one.
    #[inline]
    #[track_caller]
    pub fn wait_n(&self, n: u32) {
        self.wait_for("wait_n", n);
    }

    /// Takes a post if there is one. Makes progress if there is none.
    #[inline]
    #[track_caller]
    pub fn try_wait(&self) -> bool {
        self.try_for("try_wait", 1)
    }

    /// Takes `n` posts if there are so many, else none.
    #[inline]
    #[track_caller]
    pub fn try_wait_n(&self, n: u32) -> bool {
        self.try_for("try_wait_n", n)
    }

    /// How many posts wait to be taken; of a boolean one whether.
    pub fn value(&self) -> u32 {
        let Reached { cell, taken, .. } = self.reached();
        cell.value(taken, self.flavor.boolean) as u32
    }

    /// A future that takes a post when there is one. Dropping it takes nothing.
    ///
    /// ```
    /// use partage::wait::join_all;
    /// partage::test(2, |job| {
    ///     let come: Vec<_> = (0..3).map(|_| job.semaphore().unwrap()).collect();
    ///     come.iter().rev().for_each(|s| job.post(s.signal()));
    ///     job.block_on(join_all(come.iter().map(|s| s.signaled())));
    ///     assert!(come.iter().all(|s| s.value() == 0));
    /// });
    /// ```
    #[track_caller]
    pub fn signaled(&self) -> Signaled<'_> {
        self.signaled_n(1)
    }

    /// The same for `n` at once.
    #[track_caller]
    pub fn signaled_n(&self, n: u32) -> Signaled<'_> {
        self.check("signaled_n", n);
        Signaled { semaphore: self, n }
    }

    #[inline(always)]
    fn reached(&self) -> Reached<'_> {
        match self.inner.seat.node().semaphores().find(self.name) {
            Some(reached) => reached,
            None => unreachable!("mine are mapped"),
        }
    }

    #[inline(always)]
    fn take(&self, n: u32) -> bool {
        let Reached { cell, taken, .. } = self.reached();
        let took = cell.try_take(taken, self.flavor.boolean, n, self.flavor.single_consumer);
        if took && self.flavor.strict {
            full_fence();
        }
        took
    }

    #[inline(always)]
    #[track_caller]
    fn wait_for(&self, call: &'static str, n: u32) {
        self.check(call, n);
        self.inner.may_wait(|| Site::here(call));
        if !self.take(n) {
            return self.wait_slowly(Site::here(call), n);
        }
        // Who always finds a post serves others all the same.
        self.inner.progress_at_times();
    }

    #[inline(never)]
    fn wait_slowly(&self, site: Site, n: u32) {
        self.inner.unless_over(self.inner.wait_saying(|| Waiting { site, semaphore: self, n }, || self.take(n)));
    }

    #[inline(always)]
    #[track_caller]
    fn try_for(&self, call: &'static str, n: u32) -> bool {
        self.check(call, n);
        self.take(n) || (self.inner.may_serve() && self.inner.look() && self.take(n))
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, call: &str, n: u32) {
        check_count(self.inner.rank, self.flavor, call, n);
    }
}

/// Panics if a semaphore of this flavor, of this rank, never has so many posts.
#[inline(always)]
#[track_caller]
fn check_count(me: Rank, flavor: Flavor, call: &str, n: u32) {
    if n > 1 && (flavor.boolean || u64::from(n) > MOST_POSTED) {
        refuse_count(me, flavor, call, n);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn refuse_count(me: Rank, flavor: Flavor, call: &str, n: u32) -> ! {
    let most = if flavor.boolean { 1 } else { MOST_POSTED };
    let which = if flavor.boolean { "a boolean semaphore" } else { "a semaphore" };
    panic!("{me}: {call}: {n} posts of {which}, which has {most} at most")
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        match self.shared.take() {
            Some(shared) => self.inner.shares.end(&self.inner.seat, shared),
            None => self.inner.seat.free_semaphore(self.name),
        }
    }
}

/// Where a rank waits, and for what.
struct Waiting<'a> {
    site: Site,
    semaphore: &'a Semaphore,
    n: u32,
}

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, has) = (self.semaphore.name.index(), self.semaphore.value());
        write!(f, "{}, for {} of semaphore {index}, which has {has}", self.site, self.n)
    }
}

/// Waits until one of these semaphores has a post, and takes it: which one. The first in the list that has one, if several
/// have.
///
/// ```
/// use partage::signal::wait_any;
/// partage::test(2, |job| {
///     let (a, b) = (job.semaphore().unwrap(), job.semaphore().unwrap());
///     job.post(b.signal());
///     assert_eq!(wait_any(&[&a, &b]), 1);
/// });
/// ```
#[track_caller]
pub fn wait_any(semaphores: &[&Semaphore]) -> usize {
    let site = Site::here("wait_any");
    let [first, ..] = semaphores else {
        panic!("{}: wait_any: no semaphore to wait for", Rank(fail::this_rank().unwrap_or_default()))
    };
    first.inner.may_wait(|| site);
    let (taken, take) = (std::cell::Cell::new(0), || semaphores.iter().position(|s| s.take(1)));
    let look = || take().map(|i| taken.set(i)).is_some();
    match look() {
        // Who always finds a post serves others all the same.
        true => _ = first.inner.progress_at_times(),
        false => first.inner.wait(site, look),
    }
    taken.get()
}

/// Waits for so many posts of each of these semaphores, in any order, and takes them.
///
/// ```
/// use partage::signal::wait_all;
/// partage::test(2, |job| {
///     let (a, b) = (job.semaphore().unwrap(), job.semaphore().unwrap());
///     job.post_n(b.signal(), 2);
///     job.post(a.signal());
///     wait_all(&[(&a, 1), (&b, 2)]);
///     assert_eq!((a.value(), b.value()), (0, 0));
/// });
/// ```
#[track_caller]
pub fn wait_all(semaphores: &[(&Semaphore, u32)]) {
    for (semaphore, n) in semaphores {
        semaphore.wait_for("wait_all", *n);
    }
}

/// A post to come: what [`Semaphore::signaled`] gives.
#[must_use = "a future takes a post when it is awaited"]
#[derive(Debug)]
pub struct Signaled<'a> {
    semaphore: &'a Semaphore,
    n: u32,
}

impl Future for Signaled<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Signaled { semaphore, n } = *self;
        if semaphore.take(n) || (semaphore.inner.progress_at_times() && semaphore.take(n)) {
            return Poll::Ready(());
        }
        // Whoever posts wakes the rank, and it looks at all of its future.
        crate::wait::ask_again(cx);
        Poll::Pending
    }
}

impl<T: Pod> SharedArray<T> {
    /// Writes all of `src` from element `i` on, which must lie on the rank that has the semaphore, and posts to it `n` times
    /// when they are there: one message. Returns when `src` may be used again. `src` may be empty.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal(&self, i: usize, src: &[T], signal: Signal, n: u32) {
        let at = self.place_on_one("put_signal", i, src.len(), signal);
        let bytes = bytemuck::cast_slice(src);
        if !self.inner.put_signal_near("put_signal", &self.inner.guarded, at.in_half(), bytes, signal, n) {
            self.inner.put_signal("put_signal", at, bytes, signal, n);
        }
    }

    /// The same without waiting until the source may be used again: the runtime has it, and waiting for the event gives it back. The
    /// event may be dropped or forgotten.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let a = job.array::<u32>(Layout::on(0, 100)).unwrap();
    ///     let come = job.semaphore().unwrap();
    ///     let signals = job.alloc_all::<Signal>(1).unwrap();
    ///     signals.put(job, come.signal());
    ///     job.barrier();
    ///     drop(a.store_signal(50 * job.rank().index(), vec![7; 50], signals.on(Rank(0)).get(job), 1));
    ///     if job.rank().0 == 0 {
    ///         come.wait_n(2);
    ///         assert!((0..100).all(|i| a.get(i) == 7));
    ///     }
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn store_signal(&self, i: usize, values: Vec<T>, signal: Signal, n: u32) -> Event<'_, Vec<T>> {
        let at = self.place_on_one("store_signal", i, values.len(), signal);
        // SAFETY: the event keeps the values until then, or whoever drops it does, and nobody writes to them.
        let started = unsafe { self.inner.start_signal("store_signal", at, bytemuck::cast_slice(&values), signal, n) };
        Event::owned(started, values)
    }

    /// Where elements are, all of which lie on the rank that has the semaphore.
    #[inline(always)]
    #[track_caller]
    fn place_on_one(&self, call: &'static str, i: usize, len: usize, signal: Signal) -> At {
        self.check(call, i, len);
        if len == 0 {
            return At::guarded(signal.rank().0, 0);
        }
        let at = self.place_of(i);
        let last = self.place_of(i + len - 1);
        let in_a_row = last.offset.wrapping_sub(at.offset) == ((len - 1) * size_of::<T>()) as u64;
        if at.rank != signal.rank().0 || last.rank != at.rank || !in_a_row {
            self.refuse_place(call, i, len, signal);
        }
        at
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse_place(&self, call: &str, i: usize, len: usize, signal: Signal) -> ! {
        let (me, end, there) = (self.inner.rank, i + len, self.affinity(i));
        self.inner.check_signal(call, signal, 0);
        if there != signal.rank() {
            panic!("{me}: {call}: element {i} is on {there}, the semaphore on {}; both must be on one", signal.rank());
        }
        panic!("{me}: {call}: elements {i}..{end} lie on several ranks, or not in a row; one message goes to one place")
    }
}

impl<T: Pod> GlobalPtr<T> {
    /// Writes all of `src` from here on, and posts `n` times to a semaphore of the same rank when it is there: one message. Returns
    /// when `src` may be used again. `src` may be empty.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let halo = job.alloc_all::<u64>(8).unwrap();
    ///     let come = job.semaphore().unwrap();
    ///     let signals = job.alloc_all::<Signal>(1).unwrap();
    ///     signals.put(job, come.signal());
    ///     job.barrier();
    ///     let there = job.neighbor(1);
    ///     halo.on(there).put_signal(job, &[3; 8], signals.on(there).get(job), 1);
    ///     come.wait();
    ///     assert_eq!(halo.add(7).get(job), 3);
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn put_signal(self, job: &Job, src: &[T], signal: Signal, n: u32) {
        let (inner, bytes) = (&job.all().inner, bytemuck::cast_slice(src));
        let near = || inner.put_signal_near("put_signal", &inner.reach, self.place(), bytes, signal, n);
        if !self.is_aligned() || !near() {
            let at = self.place_for_signal(job, "put_signal", src, signal);
            inner.put_signal("put_signal", at, bytes, signal, n);
        }
    }

    /// The same without waiting until the source may be used again; see [`SharedArray::store_signal`].
    #[track_caller]
    pub fn store_signal(self, job: &Job, values: Vec<T>, signal: Signal, n: u32) -> Event<'static, Vec<T>> {
        let at = self.place_for_signal(job, "store_signal", &values, signal);
        let (inner, bytes) = (&job.all().inner, bytemuck::cast_slice(&values));
        // SAFETY: the event keeps the values until then, or whoever drops it does, and nobody writes to them.
        let started = unsafe { inner.start_signal("store_signal", at, bytes, signal, n) };
        Event::owned(started, values)
    }

    /// Where this is, for values that lie on the rank that has the semaphore.
    #[inline(never)]
    #[track_caller]
    fn place_for_signal(self, job: &Job, call: &'static str, src: &[T], signal: Signal) -> At {
        let at = self.place();
        if !src.is_empty() {
            if at.rank != signal.rank().0 {
                self.refuse_signal(job, call, signal);
            }
            if !self.is_aligned() || !job.all().inner.may_lie(at, size_of_val(src)) {
                self.refuse(job, call, src.len());
            }
        }
        At { rank: signal.rank().0, ..at }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse_signal(self, job: &Job, call: &str, signal: Signal) -> ! {
        job.all().inner.check_signal(call, signal, 0);
        let (me, there) = (job.rank(), self.rank());
        panic!("{me}: {call}: {self:?} is on {there}, the semaphore on {}; both must be on one", signal.rank())
    }
}

impl<'s> Scope<'s, '_> {
    /// Starts writing all of `src` from element `i` on, and posts when it is there; see [`SharedArray::put_signal`]. The event
    /// says when `src` may be used again.
    #[track_caller]
    pub fn put_signal<T: Pod>(
        &'s self,
        array: &'s SharedArray<T>,
        i: usize,
        src: &'s [T],
        signal: Signal,
        n: u32,
    ) -> Event<'s, ()> {
        let at = array.place_on_one("put_signal", i, src.len(), signal);
        // SAFETY: the scope borrows `src` until its end, which completes everything that was started.
        let started = unsafe { array.inner.start_signal("put_signal", at, bytemuck::cast_slice(src), signal, n) };
        Event::borrowed(started, ())
    }

    /// The same to a pointer; see [`GlobalPtr::put_signal`].
    #[track_caller]
    pub fn put_signal_ptr<T: Pod>(&'s self, to: GlobalPtr<T>, src: &'s [T], signal: Signal, n: u32) -> Event<'s, ()> {
        let at = to.place_for_signal(self.job, "put_signal_ptr", src, signal);
        let inner = &self.job.all().inner;
        // SAFETY: as above.
        let started = unsafe { inner.start_signal("put_signal_ptr", at, bytemuck::cast_slice(src), signal, n) };
        Event::borrowed(started, ())
    }
}

impl Inner {
    #[inline(always)]
    #[track_caller]
    fn signal(self: &Rc<Self>, call: &'static str, signal: Signal, n: u32) {
        let at = At { rank: signal.rank().0, offset: 0 };
        if !self.put_signal_near(call, &self.reach, at, &[], signal, n) {
            self.put_signal(call, at, &[], signal, n);
        }
    }

    /// Writes bytes and posts if that is all there is to do; false if nothing was done.
    #[inline(always)]
    #[track_caller]
    fn put_signal_near(&self, call: &'static str, reach: &Reach, at: At, src: &[u8], signal: Signal, n: u32) -> bool {
        let name = signal.name();
        let Some(semaphore) = self.semaphores.find(name) else { return false };
        let plain = !name.is_strict() && (n <= 1 || !name.is_boolean()) && at.rank == name.rank();
        if !plain || !semaphore.cell.is(name) || (!src.is_empty() && reach.write(at, src).is_err()) {
            return false;
        }
        if let Err(why) = semaphore.post(name, n, self.rank.0, name.has_one_producer()) {
            self.refuse_signal(call, signal, why);
        }
        true
    }

    /// Writes bytes, which lie in their half, to a place of the semaphore's rank, and posts. They may be used again then.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub(crate) fn put_signal(self: &Rc<Self>, call: &'static str, at: At, src: &[u8], signal: Signal, n: u32) {
        // SAFETY: `src` is borrowed until this returns, which is when it is complete.
        if let Some(transfer) = unsafe { self.start_signal(call, at, src, signal, n) } {
            transfer.complete();
        }
    }

    /// Starts the same: what is not complete when this returns.
    ///
    /// # Safety
    /// `src` is not given back or written to before that is complete.
    #[track_caller]
    unsafe fn start_signal(
        self: &Rc<Self>,
        call: &'static str,
        at: At,
        src: &[u8],
        signal: Signal,
        n: u32,
    ) -> Option<Transfer> {
        let (name, site) = (signal.name(), Site::here(call));
        self.check_signal(call, signal, n);
        if name.is_strict() {
            self.fence_at(site);
        }
        if let Some(semaphore) = self.semaphores.find(name) {
            if !src.is_empty() {
                let reach = if at.half() == Half::Open { &self.reach } else { &self.guarded };
                reach.write(at.in_half(), src).expect("memory of a rank whose semaphores are mapped");
            }
            if let Err(why) = semaphore.post(name, n, self.rank.0, name.has_one_producer()) {
                self.refuse_signal(call, signal, why);
            }
            if name.is_strict() {
                full_fence();
            }
            return None;
        }
        // SAFETY: passed on to the caller.
        let started = unsafe { self.start_signal_far(call, site, at, src, signal, n) };
        if name.is_strict() {
            self.fence_at(site);
        }
        (!started.is_empty()).then(|| Transfer::new(self.clone(), site, started))
    }

    /// # Safety
    /// `src` is not given back or written to before what was started is complete.
    #[track_caller]
    unsafe fn start_signal_far(&self, call: &str, site: Site, at: At, src: &[u8], signal: Signal, n: u32) -> Started {
        self.is_not_over(site);
        // SAFETY: passed on to the caller.
        match unsafe { self.start_notice(site, at, src, Notice::Post(signal.name(), n)) } {
            Some(started) => started,
            None => {
                let segment = self.seat.node().table(at.half()).len();
                let outside = Outside { at: at.in_half(), len: src.len(), ranks: self.size, segment };
                panic!("{}: {call}: {outside}", self.rank)
            }
        }
    }

    /// Starts sending bytes to a place that is not reached by a copy, and a notice; `None` if there is no such place.
    ///
    /// # Safety
    /// `src` is not given back or written to before what was started is complete.
    pub(crate) unsafe fn start_notice(&self, site: Site, at: At, src: &[u8], notice: Notice) -> Option<Started> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_notice_raw(site, at, src.as_ptr(), src.len(), notice) }
    }

    /// The same of bytes that may be shared.
    ///
    /// # Safety
    /// `src..src + len` can be read until what was started is complete.
    pub(crate) unsafe fn start_notice_raw(
        &self,
        site: Site,
        at: At,
        src: *const u8,
        len: usize,
        notice: Notice,
    ) -> Option<Started> {
        self.signals_sent.set(true);
        let done = match self.reference.is_forced() {
            true => {
                self.reference.count(|c| c.reference_signals += 1);
                let mut bytes = vec![0; len];
                // SAFETY: the caller's promise, and a vector of its own.
                unsafe { copy::between(bytes.as_mut_ptr(), src, len) };
                Reference(&self.seat).signal(site, at, &bytes, notice).map(|()| Started::default())
            }
            // SAFETY: passed on to the caller.
            false => unsafe { ofi::signal::start(&self.seat, site, at, src, len, notice) },
        };
        self.unless_outside(done)
    }

    /// Sends bytes to a place that is not reached by a copy, and a notice. They may be used again when this returns.
    pub(crate) fn send_notice(&self, site: Site, at: At, src: &[u8], notice: Notice) {
        // SAFETY: `src` is borrowed until this returns, which is when it is complete.
        let started = unsafe { self.start_notice(site, at, src, notice) }.expect("memory of a lane or a desk");
        if !started.is_empty() {
            self.complete_transfer(site, &started);
        }
    }

    #[track_caller]
    fn check_signal(&self, call: &str, signal: Signal, n: u32) {
        check_signal(self.rank, self.size, call, signal, n);
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse_signal(&self, call: &str, signal: Signal, why: Refused) -> ! {
        refuse_signal(self.rank, self.size, call, signal, why)
    }
}

/// Panics if there can be no such signal in a job of so many, or none of `n` posts.
#[track_caller]
pub(crate) fn check_signal(me: Rank, size: usize, call: &str, signal: Signal, n: u32) {
    if signal.is_null() {
        panic!("{me}: {call}: the signal is null");
    }
    if signal.rank().index() >= size {
        panic!("{me}: {call}: there is no {} in a job of {size}", signal.rank());
    }
    if n > 1 && signal.name().is_boolean() {
        refuse_signal(me, size, call, signal, Refused::Boolean);
    }
    if u64::from(n) > MOST_POSTED {
        refuse_signal(me, size, call, signal, Refused::TooMany);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn refuse_signal(me: Rank, size: usize, call: &str, signal: Signal, why: Refused) -> ! {
    check_signal(me, size, call, signal, 0);
    panic!("{me}: {call}: {signal:?}: {}", Said(why))
}
