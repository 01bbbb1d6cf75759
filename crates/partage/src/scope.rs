//! Non-blocking transfers. Their buffers are borrowed by a scope that cannot be forgotten; an event hands its buffer back.
//!
//! Between ranks of one node a transfer is a copy and complete when it has been started, so events are ready at once;
//! programs are written the same way for conduits where they are not.
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
use crate::ptr::GlobalPtr;
use crate::rpc::Pend;
use bytemuck::Pod;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The stretch of the program in which borrowed buffers may be in flight: what [`Job::scope`] gives its closure.
#[derive(Debug)]
pub struct Scope<'s, 'env: 's> {
    job: &'env Job,
    // Invariant in both lifetimes, as for std::thread::scope: neither may be shortened or stretched.
    _s: PhantomData<&'s mut &'s ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

/// Completion of a transfer or of a [remote call](crate::rpc); also a `Future`. Dropping it does not cancel: a transfer is
/// completed by its scope, a call is detached.
#[must_use = "the transfer is complete, or the result there, after `wait`"]
#[derive(Debug)]
pub struct Event<'s, R> {
    state: State<R>,
    _s: PhantomData<&'s ()>,
    _not_send: PhantomData<*mut ()>,
}

#[derive(Debug)]
enum State<R> {
    Ready(R),
    Call(Pend<R>),
    Taken,
}

impl Job {
    /// Runs `f` with a scope for non-blocking transfers; all of them are complete when it returns, also by unwinding.
    pub fn scope<'env, R>(&'env self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        let scope = Scope { job: self, _s: PhantomData, _env: PhantomData };
        f(&scope)
    }
}

impl<'s, 'env> Scope<'s, 'env> {
    /// Starts reading `dst.len()` values.
    #[track_caller]
    pub fn get_ptr<T: Pod>(&'s self, from: GlobalPtr<T>, dst: &'s mut [T]) -> Event<'s, &'s mut [T]> {
        from.get_slice(self.job, dst);
        Event::ready(dst)
    }

    /// Starts writing all of `src`.
    #[track_caller]
    pub fn put_ptr<T: Pod>(&'s self, to: GlobalPtr<T>, src: &'s [T]) -> Event<'s, ()> {
        to.put_slice(self.job, src);
        Event::ready(())
    }

    /// Completes everything started so far in this scope.
    pub fn wait_all(&'s self) {
        // Transfers of a scope are complete when they have been started.
        self.job.fence();
    }
}

impl<R> Event<'_, R> {
    fn ready(value: R) -> Self {
        Event { state: State::Ready(value), _s: PhantomData, _not_send: PhantomData }
    }

    pub(crate) fn call(pend: Pend<R>) -> Self {
        Event { state: State::Call(pend), _s: PhantomData, _not_send: PhantomData }
    }

    /// Waits, and serves others meanwhile; hands back the buffer of a transfer or the result of a call. If the called
    /// function panicked, so does this, with its words.
    #[track_caller]
    pub fn wait(self) -> R {
        match self.state {
            State::Ready(value) => value,
            State::Call(pend) => pend.wait(),
            State::Taken => panic!("wait: this event was already polled to its end"),
        }
    }

    /// Is it complete? Makes progress if it is not.
    #[track_caller]
    pub fn test(&mut self) -> bool {
        match &self.state {
            State::Call(pend) => pend.test(),
            _ => true,
        }
    }
}

impl<R> Unpin for Event<'_, R> {}

impl<R> Future for Event<'_, R> {
    type Output = R;
    /// Makes progress; an event that is not complete asks to be polled again at once, since nobody else can complete it.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        if !self.test() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(value) => Poll::Ready(value),
            State::Call(pend) => Poll::Ready(pend.take()),
            State::Taken => panic!("this event was already polled to its end"),
        }
    }
}
