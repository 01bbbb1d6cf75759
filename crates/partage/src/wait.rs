//! Waiting for several things: the first of some [events](Event), all of them, or a future.
//!
//! Operations run from the moment they are started; waiting decides only what the program does next. An event is a `Future`, so
//! that a program with many of them under way can be written as several tasks, each with its own order, on the one thread
//! of its rank:
//!
//! ```
//! use partage::prelude::*;
//! use partage::wait::join_all;
//! partage::test(3, |job| {
//!     let a = job.array::<u64>(Layout::per_rank(2)).unwrap();
//!     a.cells().set(0, 10 * job.rank().index() as u64);
//!     job.barrier();
//!     // One task for each rank: reads its word, then writes the next one. The reads are under way together.
//!     let tasks = job.ranks().map(|r| {
//!         let (a, i) = (&a, 2 * r.index());
//!         async move {
//!             let word = a.fetch(i..i + 1).await[0];
//!             a.at(i + 1).start().fetch_max(word + 1).await;
//!             word
//!         }
//!     });
//!     assert_eq!(job.block_on(join_all(tasks)), [0, 10, 20]);
//!     job.barrier();
//!     assert_eq!(a.cells().get(1), 10 * job.rank().index() as u64 + 1);
//! });
//! ```

use crate::job::Job;
use crate::scope::Event;
use partage_conduit::record::Site;
use partage_conduit::shm::Node;
use partage_conduit::wait::Step;
use std::cell::{Cell, RefCell};
use std::future::{self, Future};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

impl Job {
    /// Runs a future to its end on this thread, and serves others while it cannot go on. Wakers may be used by other threads:
    /// a rank that sleeps here is woken.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let there = job.alloc_all::<f64>(1000).unwrap().on(job.neighbor(1));
    ///     let sum = job.block_on(async {
    ///         let values = there.fetch(job, 1000);             // under way
    ///         let mine: f64 = (0..1000).map(f64::from).sum();   // meanwhile
    ///         mine + values.await.iter().sum::<f64>()
    ///     });
    ///     assert_eq!(sum, 499_500.0);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let (inner, site) = (&self.all().inner, Site::here("block_on"));
        inner.may_wait(|| site);
        let (node, rank) = (inner.seat.node().clone(), inner.rank.index());
        let bell = Arc::new(Bell { node, rank, thread: this_thread(), woken: AtomicBool::new(false) });
        let waker = Waker::from(bell.clone());
        // The output, or what will have it.
        let future = pin!(future);
        let state = RefCell::new((None, future));
        let look = || {
            let (output, future) = &mut *state.borrow_mut();
            let served = inner.served.get();
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => {
                    *output = Some(value);
                    Step::Done
                }
                // Polling serves too; what that brought may be what an earlier part of the future waits for.
                Poll::Pending if inner.progress() || inner.served.get() != served => Step::Busy,
                // It asks for another turn of its own.
                Poll::Pending if bell.woken.load(Relaxed) => {
                    bell.woken.store(false, Relaxed);
                    Step::Busy
                }
                Poll::Pending => Step::Idle,
            }
        };
        inner.unless_over(inner.seat.waiter().until(|| site, look));
        match state.into_inner().0 {
            Some(output) => output,
            None => inner.no_result(site),
        }
    }

    /// Waits for the first of these events that is complete: its index and its result, and takes it out. `None` if there
    /// are none.
    ///
    /// ```
    /// partage::test(3, |job| {
    ///     let a = job.array::<u32>(3).unwrap();
    ///     let mut events: Vec<_> = (0..3).map(|i| Some(a.fetch(i..=i))).collect();
    ///     let mut come = 0;
    ///     while let Some((i, values)) = job.wait_any(&mut events) {
    ///         assert!(events[i].is_none() && values == [0]);
    ///         come += 1;
    ///     }
    ///     assert_eq!(come, 3);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn wait_any<R>(&self, events: &mut [Option<Event<'_, R>>]) -> Option<(usize, R)> {
        self.wait_for_some(Site::here("wait_any"), events);
        let (i, event) =
            events.iter_mut().enumerate().find(|(_, event)| event.as_ref().is_some_and(Event::is_complete))?;
        Some((i, event.take()?.wait()))
    }

    /// Waits until at least one of these events is complete: the indices and results of all that are, which are taken out.
    /// Nothing if there are none.
    #[track_caller]
    pub fn wait_some<R>(&self, events: &mut [Option<Event<'_, R>>]) -> Vec<(usize, R)> {
        self.wait_for_some(Site::here("wait_some"), events);
        let mut complete = vec![];
        for (i, event) in events.iter_mut().enumerate() {
            if let Some(event) = event.take_if(|event| event.is_complete()) {
                complete.push((i, event.wait()));
            }
        }
        complete
    }

    #[track_caller]
    fn wait_for_some<R>(&self, site: Site, events: &[Option<Event<'_, R>>]) {
        self.all().inner.may_wait(|| site);
        if events.iter().any(Option::is_some) {
            let any = || events.iter().flatten().any(Event::is_complete);
            self.all().inner.wait(site, any);
        }
    }
}

/// Waits for all of these events: their results, in order.
///
/// ```
/// partage::test(2, |job| {
///     let a = job.array::<u32>(8).unwrap();
///     let old = partage::wait::wait_all((0..8).map(|i| a.at(i).start().fetch_add(1)));
///     assert!(old.iter().all(|&n| n < 2));
///     # job.barrier();
/// });
/// ```
#[track_caller]
pub fn wait_all<'s, R>(events: impl IntoIterator<Item = Event<'s, R>>) -> Vec<R> {
    // All are started before the first is waited for.
    let events: Vec<_> = events.into_iter().collect();
    let mut results = Vec::with_capacity(events.len());
    for event in events {
        results.push(event.wait());
    }
    results
}

/// A future that runs all of these together: their outputs, in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in running.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Wakes a rank in [`Job::block_on`].
struct Bell {
    node: Arc<Node>,
    rank: usize,
    thread: usize,
    /// Its own thread has asked for another turn. Used by that thread only.
    woken: AtomicBool,
}

thread_local! {
    /// Does one of our own futures ask to be polled again?
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// One of our own futures is not complete, and asks to be polled again, since nobody else may do so. In [`Job::block_on`] that is no reason to stay
/// awake: there, whoever completes it wakes the rank.
pub(crate) fn ask_again(cx: &Context<'_>) {
    ASKS.set(true);
    cx.waker().wake_by_ref();
    ASKS.set(false);
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The rank's own thread is awake, and looks at its future again before it sleeps.
    fn wake_by_ref(self: &Arc<Self>) {
        if this_thread() != self.thread {
            self.node.wake(self.rank);
        } else if !ASKS.get() {
            self.woken.store(true, Relaxed);
        }
    }
}

/// A number that no other thread has at the same time.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}
