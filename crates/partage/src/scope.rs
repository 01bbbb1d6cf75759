//! Non-blocking transfers. Their buffers are borrowed by a scope that cannot be forgotten; an event hands its buffer back.
//!
//! Between ranks of one node a transfer is a copy and complete when it has been started, so events are ready at once. To
//! and from other nodes it goes on while the program does; at most 256 of a rank do at a time, and one more waits for the
//! first of them. Programs are written the same way for both.
//!
//! ```
//! partage::test(2, |job| {
//!     let there = job.alloc_all::<u64>(4).unwrap().on(job.neighbor(1));
//!     let mut back = [0; 4];
//!     job.scope(|s| {
//!         s.put_ptr(there, &[1, 2, 3, 4]).wait();
//!         let event = s.get_ptr(there, &mut back);
//!         let busy: u64 = (0..10).sum();                // overlaps the transfer
//!         let back = event.wait();
//!         assert_eq!((back[3], busy), (4, 45));
//!     });
//!     assert_eq!(back, [1, 2, 3, 4]);                    // the scope has completed everything
//! });
//! ```

use crate::Job;
use crate::coll::Task;
use crate::job::Inner;
use crate::ptr::GlobalPtr;
use crate::rpc::Pend;
use crate::team::Team;
use bytemuck::Pod;
use partage_conduit::contract::{At, Conduit, Half};
use partage_conduit::ofi::rma::{self, Started};
use partage_conduit::record::Site;
use partage_conduit::reference;
use partage_conduit::runs::Packet;
use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, needs_drop};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The stretch of the program in which borrowed buffers may be in flight: what [`Job::scope`] gives its closure.
#[derive(Debug)]
pub struct Scope<'s, 'env: 's> {
    pub(crate) job: &'env Job,
    /// How many scopes there are with it, one inside the other.
    pub(crate) depth: u32,
    // Invariant in both lifetimes, as for std::thread::scope: neither may be shortened or stretched.
    _s: PhantomData<&'s mut &'s ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

/// Completion of a transfer or of a [remote call](crate::rpc); also a `Future`. Dropping it does not cancel: a transfer is
/// completed by its scope, a call is detached.
#[must_use = "the transfer is complete, or the result there, after `wait`"]
#[derive(Debug)]
pub struct Event<'s, R> {
    /// Dropped by hand: what is complete, as all is on the node, has nothing to drop, and that is seen in line.
    state: ManuallyDrop<State<R>>,
    _s: PhantomData<&'s ()>,
    _not_send: PhantomData<*mut ()>,
}

#[derive(Debug)]
enum State<R> {
    Ready(R),
    Call(Pend<R>),
    /// Something asked of another rank.
    Asked(Asked<R>),
    /// Into or out of memory that a scope borrows.
    Far(Transfer, R),
    /// Into or out of memory that comes with it.
    Owned(Owned<R>),
    /// A collective.
    /// Of a team that is borrowed for as long as the event: one that is forgotten keeps no team alive.
    Collective(*const Team, Rc<Task>, R),
    Taken,
}

/// A question to which answers come, and what makes the result of the last one's value and a word of the asker's.
#[derive(Debug)]
struct Asked<R> {
    slot: Given,
    with: u64,
    read: fn(u64, u64) -> R,
}

/// A slot for answers; given back when dropped.
#[derive(Debug)]
pub(crate) struct Given {
    inner: Rc<Inner>,
    site: Site,
    pub slot: u32,
}

impl Given {
    pub fn new(inner: Rc<Inner>, site: Site, slot: u32) -> Given {
        Given { inner, site, slot }
    }

    /// Waits for all answers.
    pub fn complete(&self) {
        self.inner.is_not_over(self.site);
        let waited = Conduit::wait(&self.inner.seat, self.site, || self.is_done());
        // Before anything unwinds, or goes on in a destructor that does: the memory is whoever's waited for it.
        self.write_nothing_more();
        self.inner.unless_over(waited);
    }

    /// Answers that still come, because the job ends, touch nothing.
    fn write_nothing_more(&self) {
        if !self.is_done() {
            self.inner.seat.landing().answers.set_sink(self.slot, Box::new(|_, _| {}));
        }
    }

    fn is_done(&self) -> bool {
        self.inner.seat.landing().answers.is_done(self.slot)
    }

    fn test(&self) -> bool {
        self.is_done() || (self.inner.look() && self.is_done())
    }

    fn value(&self) -> u64 {
        self.inner.seat.landing().answers.value(self.slot)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.inner.seat.landing().answers.give(self.slot);
    }
}

/// A transfer that has its buffer with it.
#[derive(Debug)]
struct Owned<R> {
    transfer: Transfer,
    /// There until it is handed over.
    buffer: Option<R>,
    /// How the buffer is kept if nobody waits.
    keep: fn(R) -> Box<dyn Any>,
}

impl<R> Owned<R> {
    fn take(&mut self) -> R {
        self.buffer.take().expect("taken once")
    }
}

impl<R> Drop for Owned<R> {
    fn drop(&mut self) {
        let Transfer { inner, started, .. } = &self.transfer;
        if let Some((buffer, started)) = self.buffer.take().zip(started.as_ref()) {
            inner.kept.keep(inner, started, (self.keep)(buffer));
        }
    }
}

/// What transfers have for which perhaps nobody waits, until they are complete.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    buffers: RefCell<Vec<(Started, Box<dyn Any>)>>,
    /// Slots whose answers bring bytes into memory that a scope borrows.
    into_scopes: RefCell<Vec<Rc<Given>>>,
}

impl Kept {
    fn keep(&self, inner: &Inner, started: &Started, buffer: Box<dyn Any>) {
        let mut kept = self.buffers.borrow_mut();
        kept.retain(|(started, _)| !inner.is_complete(started));
        if !inner.is_complete(started) {
            kept.push((started.clone(), buffer));
        }
    }

    fn keep_slot(&self, slot: &Rc<Given>) {
        let mut kept = self.into_scopes.borrow_mut();
        kept.retain(|slot| !slot.is_done());
        kept.push(slot.clone());
    }

    /// All transfers are complete; or the job ends, and answers that still come touch nothing.
    pub fn clear(&self) {
        self.buffers.borrow_mut().clear();
        self.into_scopes.take().iter().for_each(|slot| slot.write_nothing_more());
    }
}

impl Drop for Kept {
    /// A rank that ends without having completed its transfers leaves the memory to the network.
    fn drop(&mut self) {
        std::mem::forget(self.buffers.take());
    }
}

/// A transfer that is under way. Its scope outlives it.
#[derive(Debug)]
pub(crate) struct Transfer {
    inner: Rc<Inner>,
    site: Site,
    /// By the network itself.
    started: Option<Started>,
    /// By messages.
    asked: Option<Rc<Given>>,
}

impl Job {
    /// Runs `f` with a scope for non-blocking transfers; all of them are complete when it returns, also by unwinding.
    #[track_caller]
    pub fn scope<'env, R>(&'env self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        let depth = self.all().inner.pending.open_scope();
        let scope = Scope { job: self, depth, _s: PhantomData, _env: PhantomData };
        // Also by unwinding: what was borrowed is not given back before the network has done with it.
        let (site, unwinding) = (Site::here("the end of a scope"), std::thread::panicking());
        let _completed = Completed { job: self, site, depth, unwinding };
        f(&scope)
    }
}

struct Completed<'j> {
    job: &'j Job,
    site: Site,
    depth: u32,
    /// Did the rank unwind already when it began? Then it does not end for that.
    unwinding: bool,
}

struct Closed<'a>(&'a Inner);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.pending.close_scope();
    }
}

impl Drop for Completed<'_> {
    fn drop(&mut self) {
        let inner = &self.job.all().inner;
        let _closed = Closed(inner);
        inner.complete_started(self.site, self.depth, !self.unwinding && std::thread::panicking());
        inner.complete_far(self.site);
    }
}

impl<'s, 'env> Scope<'s, 'env> {
    /// Starts reading `dst.len()` values.
    #[inline(always)]
    #[track_caller]
    pub fn get_ptr<T: Pod>(&'s self, from: GlobalPtr<T>, dst: &'s mut [T]) -> Event<'s, &'s mut [T]> {
        if let [one] = dst
            && let Some(value) = self.job.reach().get(from.place())
        {
            *one = value;
            return Event::ready(dst);
        }
        self.get_ptr_otherwise(from, dst)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_ptr_otherwise<T: Pod>(&'s self, from: GlobalPtr<T>, dst: &'s mut [T]) -> Event<'s, &'s mut [T]> {
        Event::borrowed(from.start_get(self.job, "get_ptr", dst), dst)
    }

    /// Starts writing all of `src`.
    #[inline(always)]
    #[track_caller]
    pub fn put_ptr<T: Pod>(&'s self, to: GlobalPtr<T>, src: &'s [T]) -> Event<'s, ()> {
        if let [value] = src
            && self.job.reach().put(to.place(), *value).is_some()
        {
            return Event::ready(());
        }
        self.put_ptr_otherwise(to, src)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_ptr_otherwise<T: Pod>(&'s self, to: GlobalPtr<T>, src: &'s [T]) -> Event<'s, ()> {
        Event::borrowed(to.start_put(self.job, "put_ptr", src), ())
    }

    /// Completes everything started so far in this scope.
    #[track_caller]
    pub fn wait_all(&'s self) {
        let inner = &self.job.all().inner;
        let site = Site::here("wait_all");
        inner.complete_started(site, self.depth, false);
        inner.complete_far(site);
        self.job.fence();
    }
}

impl Transfer {
    pub fn new(inner: Rc<Inner>, site: Site, started: Started) -> Transfer {
        Transfer { inner, site, started: Some(started), asked: None }
    }

    /// One that goes by the network and by messages, if there is any of it.
    pub fn of_both(inner: &Rc<Inner>, site: Site, started: Option<Started>, asked: Option<Given>) -> Option<Transfer> {
        let (is_any, asked) = (started.is_some() || asked.is_some(), asked.map(Rc::new));
        is_any.then(|| Transfer { inner: inner.clone(), site, started, asked })
    }

    /// The same whose answers go to memory that a scope borrows: nothing is written there after the scope, not even when
    /// the event is forgotten.
    pub fn into_scope(self) -> Transfer {
        if let Some(asked) = &self.asked {
            self.inner.kept.keep_slot(asked);
        }
        self
    }

    /// Waits for it.
    pub fn complete(&self) {
        if let Some(started) = &self.started {
            self.inner.complete_transfer(self.site, started);
        }
        if let Some(asked) = &self.asked {
            // Answers from this process are there at once; others are served all the same.
            Conduit::progress(&self.inner.seat);
            asked.complete();
        }
    }

    fn is_complete(&self) -> bool {
        self.started.as_ref().is_none_or(|started| self.inner.is_complete(started))
            && self.asked.as_ref().is_none_or(|asked| asked.is_done())
    }

    fn test(&self) -> bool {
        self.is_complete() || (self.inner.look() && self.is_complete())
    }
}

impl Inner {
    /// Starts a put to another node; `None` if the place is not one.
    pub fn start_put(&self, site: Site, at: At, src: &[u8]) -> Option<Started> {
        // SAFETY: whoever started it borrows `src` for a scope, which ends by `complete_far`.
        let started = unsafe { rma::start_put(&self.seat, site, at, src.as_ptr(), src.len()) };
        self.unless_outside(started)
    }

    /// Starts a get from another node; `None` if the place is not one.
    pub fn start_get(&self, site: Site, at: At, dst: &mut [u8]) -> Option<Started> {
        // SAFETY: as above, and nobody uses `dst` until then.
        let started = unsafe { rma::start_get(&self.seat, site, at, dst.as_mut_ptr(), dst.len()) };
        self.unless_outside(started)
    }

    /// Asks ranks for runs; they come to the slot, and from there to `dst`.
    pub fn start_get_runs(
        self: &Rc<Self>,
        site: Site,
        half: Half,
        packets: Vec<(u32, Packet)>,
        dst: &mut [u8],
    ) -> Option<Given> {
        // SAFETY: nobody uses `dst` until the answers have come, or nothing comes any more: whoever started it either
        // drops the slot before its borrow of `dst` ends, or has it kept (`into_scope`) until the scope that borrows ends,
        // by `complete_far`, which takes the sink away where answers are missing.
        match unsafe { reference::start_get_runs(&self.seat, site, half, packets, dst) } {
            Ok(slot) => Some(Given::new(self.clone(), site, slot)),
            Err(aborted) => {
                self.unless_over(Err::<(), _>(aborted));
                None
            }
        }
    }
}

impl<R> Drop for Event<'_, R> {
    #[inline(always)]
    fn drop(&mut self) {
        match *self.state {
            State::Ready(_) if !needs_drop::<R>() => {}
            State::Taken => {}
            _ => self.drop_slowly(),
        }
    }
}

impl<'s, R> Event<'s, R> {
    #[inline(always)]
    fn of(state: State<R>) -> Self {
        Event { state: ManuallyDrop::new(state), _s: PhantomData, _not_send: PhantomData }
    }

    /// What it was, which it is no longer.
    #[inline(always)]
    fn take(&mut self) -> State<R> {
        std::mem::replace(&mut self.state, State::Taken)
    }

    #[inline(never)]
    fn drop_slowly(&mut self) {
        drop(self.take());
    }

    /// Of something that is complete.
    #[inline(always)]
    pub(crate) fn ready(value: R) -> Self {
        Self::of(State::Ready(value))
    }

    /// Of a question whose answers come to this slot.
    pub(crate) fn asked(slot: Given, with: u64, read: fn(u64, u64) -> R) -> Self {
        Self::of(State::Asked(Asked { slot, with, read }))
    }

    /// Of a transfer, if it is not complete, with memory that a scope borrows.
    #[inline]
    pub(crate) fn borrowed(transfer: Option<Transfer>, value: R) -> Self {
        match transfer {
            Some(transfer) => Self::of(State::Far(transfer, value)),
            None => Self::ready(value),
        }
    }

    /// The same with memory that comes along.
    pub(crate) fn owned(transfer: Option<Transfer>, buffer: R) -> Self
    where
        R: 'static,
    {
        Self::of(match transfer {
            Some(transfer) => State::Owned(Owned { transfer, buffer: Some(buffer), keep: |buffer| Box::new(buffer) }),
            None => State::Ready(buffer),
        })
    }

    /// Of a collective that was started, with memory that a scope borrows.
    pub(crate) fn collective(team: &'s Team, task: Rc<Task>, value: R) -> Self {
        Self::of(State::Collective(team, task, value))
    }

    pub(crate) fn call(pend: Pend<R>) -> Self {
        Self::of(State::Call(pend))
    }

    /// Waits, and serves others meanwhile; hands back the buffer of a transfer or the result of a call. If the called
    /// function panicked, so does this, with its words.
    #[inline]
    #[track_caller]
    pub fn wait(mut self) -> R {
        match self.take() {
            State::Ready(value) => value,
            state => Self::wait_for(state),
        }
    }

    #[inline(never)]
    #[track_caller]
    fn wait_for(state: State<R>) -> R {
        match state {
            State::Ready(value) => value,
            State::Call(pend) => pend.wait(),
            State::Asked(Asked { slot, with, read }) => {
                slot.complete();
                read(slot.value(), with)
            }
            State::Far(transfer, value) => {
                transfer.complete();
                value
            }
            State::Owned(mut owned) => {
                owned.transfer.complete();
                owned.take()
            }
            State::Collective(team, task, value) => {
                // SAFETY: borrowed.
                let team = unsafe { &*team };
                team.inner.complete_task(&team.group, &task);
                value
            }
            State::Taken => panic!("wait: this event was already polled to its end"),
        }
    }

    /// Is it complete? Makes progress if it is not.
    #[track_caller]
    pub fn test(&mut self) -> bool {
        match &*self.state {
            State::Call(pend) => pend.test(),
            State::Asked(asked) => asked.slot.test(),
            State::Far(transfer, _) | State::Owned(Owned { transfer, .. }) => transfer.test(),
            // SAFETY: borrowed.
            State::Collective(team, ..) => self.is_complete() || unsafe { (**team).inner.look() && self.is_complete() },
            _ => true,
        }
    }
}

impl<R> Event<'_, R> {
    /// Is it complete? Makes no progress.
    pub(crate) fn is_complete(&self) -> bool {
        match &*self.state {
            State::Call(pend) => pend.is_done(),
            State::Asked(asked) => asked.slot.is_done(),
            State::Far(transfer, _) | State::Owned(Owned { transfer, .. }) => transfer.is_complete(),
            State::Collective(team, task, _) => {
                // SAFETY: borrowed.
                let team = unsafe { &**team };
                // Who waits for one that a member has left finds that out.
                task.is_done() || team.group.engine.is_left(task)
            }
            State::Ready(_) | State::Taken => true,
        }
    }
}

impl<R> Unpin for Event<'_, R> {}

impl<R> Future for Event<'_, R> {
    type Output = R;
    /// Makes progress, though not at every one of many polls; an event that is not complete asks to be polled again at once,
    /// since nobody else can complete it.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let test = |inner: &Rc<Inner>| self.is_complete() || (inner.progress_at_times() && self.is_complete());
        let complete = match &*self.state {
            State::Call(pend) => pend.test(),
            State::Asked(asked) => test(&asked.slot.inner),
            State::Far(transfer, _) | State::Owned(Owned { transfer, .. }) => test(&transfer.inner),
            // SAFETY: borrowed.
            State::Collective(team, ..) => test(unsafe { &(**team).inner }),
            State::Ready(_) | State::Taken => true,
        };
        if !complete {
            crate::wait::ask_again(cx);
            return Poll::Pending;
        }
        match self.take() {
            State::Ready(value) => Poll::Ready(value),
            State::Call(pend) => Poll::Ready(pend.take()),
            State::Asked(Asked { slot, with, read }) => Poll::Ready(read(slot.value(), with)),
            State::Far(_, value) => Poll::Ready(value),
            state @ State::Collective(..) => Poll::Ready(Self::wait_for(state)),
            State::Owned(mut owned) => Poll::Ready(owned.take()),
            State::Taken => panic!("this event was already polled to its end"),
        }
    }
}
