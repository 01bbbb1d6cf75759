//! A semaphore that several threads take from: the rank that owns it, and other threads of its process.

use super::{Flavor, Semaphore, Signal, check_count};
use crate::fail;
use crate::remote::Desk;
use partage_conduit::shm::Seat;
use partage_conduit::shm::signal::Reached;
use partage_conduit::signal::Name;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A semaphore for threads of its rank's process that are no ranks: what [`Semaphore::share`] gives. Each post is taken once, by
/// the rank or by one of them.
///
/// A thread that waits here sleeps, and serves nobody. Posts that come by messages are served by others: those of
/// other nodes by the process's own thread for that, and those of the reference path (`PARTAGE_REFERENCE=1`) by its ranks, when
/// they wait or [poll](crate::Job::poll). So a rank that has nothing else to do waits by a call of ours, for a semaphore that its
/// threads post last, not by joining them.
///
/// ```
/// use partage::prelude::*;
/// partage::test(2, |job| {
///     let (work, done) = (job.semaphore().unwrap(), job.semaphore().unwrap());
///     let signals = job.alloc_all::<Signal>(1).unwrap();
///     signals.put(job, work.signal());
///     job.barrier();
///     std::thread::scope(|s| {
///         for _ in 0..2 {
///             let (work, remote, done) = (work.share(), job.remote(), done.signal());
///             s.spawn(move || {
///                 work.wait();                                     // one post each
///                 remote.post(done);
///             });
///         }
///         job.post_n(signals.on(job.neighbor(1)).get(job), 3);
///         work.wait();                                             // the third is mine
///         done.wait_n(2);
///     });
/// });
/// ```
#[derive(Clone, Debug)]
pub struct SharedSemaphore(Arc<Share>);

#[derive(Debug)]
struct Share {
    desk: Arc<Desk>,
    name: Name,
    flavor: Flavor,
}

impl Semaphore {
    /// The same semaphore for other threads of this process. Refused for one that has a
    /// [single consumer](Flavor::single_consumer).
    ///
    /// It is still this value that is the semaphore: when it is dropped, whoever waits for a share of it panics.
    #[track_caller]
    pub fn share(&self) -> SharedSemaphore {
        let me = self.inner.rank;
        if self.flavor.single_consumer {
            panic!("{me}: share: this semaphore has a single consumer, its rank; make one with several");
        }
        let share = || Share { desk: self.inner.desk.clone(), name: self.name, flavor: self.flavor };
        self.shared.get_or_init(|| SharedSemaphore(Arc::new(share()))).clone()
    }
}

impl SharedSemaphore {
    /// What it is signaled by.
    pub fn signal(&self) -> Signal {
        Signal(self.0.name.0)
    }

    /// Waits for a post and takes it.
    #[track_caller]
    pub fn wait(&self) {
        self.wait_for("wait", 1);
    }

    /// Waits for `n` posts and takes all of them at once. Of a boolean semaphore there is one.
    #[track_caller]
    pub fn wait_n(&self, n: u32) {
        self.wait_for("wait_n", n);
    }

    /// Takes a post if there is one.
    #[track_caller]
    pub fn try_wait(&self) -> bool {
        self.try_for("try_wait", 1)
    }

    /// Takes `n` posts if there are so many, else none.
    #[track_caller]
    pub fn try_wait_n(&self, n: u32) -> bool {
        self.try_for("try_wait_n", n)
    }

    fn reached(&self) -> Reached<'_> {
        self.0.desk.node().semaphores().find(self.0.name).expect("semaphores of this process are mapped")
    }

    /// Takes `n` of a semaphore that was not freed. Its place gets no other one before all shares are gone.
    fn take(&self, n: u32) -> bool {
        let (Reached { cell, taken, .. }, flavor) = (self.reached(), self.0.flavor);
        let took = cell.is(self.0.name) && cell.try_take(taken, flavor.boolean, n, false);
        if took && flavor.strict {
            partage_conduit::sync::full_fence();
        }
        took
    }

    fn is_freed(&self) -> bool {
        !self.reached().cell.is(self.0.name)
    }

    #[track_caller]
    fn try_for(&self, call: &str, n: u32) -> bool {
        let desk = &self.0.desk;
        check_count(desk.rank(), self.0.flavor, call, n);
        desk.check(call);
        if self.is_freed() {
            panic!("{}: {call}: the semaphore was freed; keep it until its threads are done", desk.rank());
        }
        self.take(n)
    }

    #[track_caller]
    fn wait_for(&self, call: &str, n: u32) {
        let desk = &self.0.desk;
        if let Some(who) = fail::this_rank() {
            panic!("rank {who}: {call}: a rank serves others while it waits; on its thread use the Semaphore itself");
        }
        if self.try_for(call, n) {
            return;
        }
        let took = Cell::new(false);
        self.reached().cell.crowd.until(|| {
            took.set(self.take(n));
            took.get() || self.is_freed() || desk.is_over()
        });
        if !took.get() {
            desk.check(call);
            let me = desk.rank();
            panic!("{me}: {call}: the semaphore was freed while this thread waits; keep it until its threads are done");
        }
    }
}

/// Semaphores of a rank that were dropped while there were shares of them: their places are used again when the last of
/// those is gone.
#[derive(Debug, Default)]
pub(crate) struct Shares(RefCell<Vec<SharedSemaphore>>);

impl Shares {
    /// Ends a semaphore.
    pub fn end(&self, seat: &Seat, shared: SharedSemaphore) {
        seat.end_semaphore(shared.0.name);
        self.0.borrow_mut().push(shared);
        self.sweep(seat);
    }

    /// Gives back the places of those that no thread has any more.
    pub fn sweep(&self, seat: &Seat) {
        // That nobody else has it is seen with acquire: what threads did with the place is over.
        self.0.borrow_mut().retain_mut(|shared| match Arc::get_mut(&mut shared.0) {
            Some(share) => {
                seat.reuse_semaphore(share.name);
                false
            }
            None => true,
        });
    }
}
