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

/// Completion of a transfer; also a `Future`. Dropping it does not cancel: its scope completes it.
#[must_use = "the transfer is complete after `wait`, or at the end of its scope"]
#[derive(Debug)]
pub struct Event<'s, R> {
    /// Taken when the event is waited for or polled to its end.
    ready: Option<R>,
    _s: PhantomData<&'s ()>,
    _not_send: PhantomData<*mut ()>,
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
        self.job.quiet();
    }
}

impl<R> Event<'_, R> {
    fn ready(value: R) -> Self {
        Event { ready: Some(value), _s: PhantomData, _not_send: PhantomData }
    }

    /// Waits for the transfer and hands its buffer back.
    #[track_caller]
    pub fn wait(mut self) -> R {
        self.ready.take().expect("wait: this event was already polled to its end")
    }

    /// Is the transfer complete?
    pub fn test(&mut self) -> bool {
        true
    }
}

impl<R> Unpin for Event<'_, R> {}

impl<R> Future for Event<'_, R> {
    type Output = R;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<R> {
        Poll::Ready(self.ready.take().expect("this event was already polled to its end"))
    }
}
