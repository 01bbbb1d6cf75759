//! What other threads of a rank may do: [`Remote`].
//!
//! A rank is one thread, and its [`Job`] stays there. A program may have more: workers, threads that read files, an async
//! executor. [`Job::remote`] gives them what they need of the job: puts, gets, posts, messages, in the rank's name.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(2, |job| {
//!     let parts = job.alloc_all::<u64>(4).unwrap();
//!     let (come, done) = (job.semaphore().unwrap(), job.semaphore().unwrap());
//!     let signals = job.alloc_all::<Signal>(1).unwrap();
//!     signals.put(job, come.signal());
//!     job.barrier();
//!     let there = job.neighbor(1);
//!     let signal = signals.on(there).get(job);
//!     std::thread::scope(|s| {
//!         for i in 0..4 {
//!             let (remote, done) = (job.remote(), done.signal());
//!             s.spawn(move || {
//!                 remote.put_signal(parts.on(there).add(i), &[i as u64 + 1], signal, 1);
//!                 remote.post(done);
//!             });
//!         }
//!         done.wait_n(4);                    // makes progress, as every wait does; joining threads does not
//!     });
//!     come.wait_n(4);
//!     assert_eq!((0..4).map(|i| parts.add(i).get(job)).sum::<u64>(), 10);
//!     # job.barrier();
//! });
//! ```
//!
//! # What is promised
//! * What a call of the job's promises holds for that of a remote too: a put has arrived when it returns, a post releases. Calls
//!   of one thread are ordered for that thread; between the threads of a rank, and between them and the rank itself, only what
//!   they do about it orders anything.
//! * **Who does it.** Where memory is mapped the calling thread does it, and waits for nobody. Everything else (other nodes, the
//!   reference path, and all messages) the rank's own thread does, when it makes progress: in any call of ours
//!   that waits, or [`Job::poll`]. The calling thread sleeps until then. So a rank that waits for its threads does that by a call
//!   of ours: for a semaphore that they post last, not by joining them.
//! * **Single producers.** A semaphore of one producer is posted by reading the count and storing the next one, because
//!   nobody else writes it. A post of another thread between the two would be lost, even if it is a read-modify-write itself. The
//!   threads of a rank are several producers; so a remote refuses such a semaphore, whoever else posts to it.
//! * **The end.** When the rank has returned from its program, or the job was aborted, every call panics and says that the job is
//!   over, and so does every thread that waits in one. A rank that panics does nothing for others, and may be about to join
//!   them, as the end of a scope of threads does: a call that has waited for it for ten seconds since panics, too, and is not made.
//!   A rank's own thread is refused: it has its job.

use crate::am::{self, Request, in_handler};
use crate::atomic::{Number, adding};
use crate::fail;
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::signal::{Signal, check_signal, refuse_signal};
use crate::team::Rank;
use bytemuck::Pod;
use partage_conduit::contract::{At, Outside};
use partage_conduit::record::Site;
use partage_conduit::shm::Node;
use partage_conduit::sync::{full_fence, light_fence, now_ns};
use partage_conduit::wait::Crowd;
use partage_conduit::word::Atomic;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What a rank's other threads reach the job by. `Send`, `Sync` and cheap to clone; see the [module](self).
#[derive(Clone, Debug)]
pub struct Remote {
    desk: Arc<Desk>,
}

impl Job {
    /// For other threads of this rank; see [`Remote`].
    pub fn remote(&self) -> Remote {
        Remote { desk: self.all().inner.desk.clone() }
    }
}

impl Remote {
    /// The rank whose remote this is.
    pub fn rank(&self) -> Rank {
        self.desk.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.desk.size()
    }

    /// Signals a semaphore; see [`Job::post`].
    #[track_caller]
    pub fn post(&self, signal: Signal) {
        self.signal("remote.post", At { rank: signal.rank().0, offset: 0 }, &[], signal, 1);
    }

    /// The same `n` times at once.
    #[track_caller]
    pub fn post_n(&self, signal: Signal, n: u32) {
        self.signal("remote.post_n", At { rank: signal.rank().0, offset: 0 }, &[], signal, n);
    }

    /// Writes a value; it has arrived when this returns.
    #[track_caller]
    pub fn put<T: Pod>(&self, to: GlobalPtr<T>, value: T) {
        self.write("remote.put", to, &[value]);
    }

    /// Writes all of `src` from there on; it has arrived when this returns.
    #[track_caller]
    pub fn put_slice<T: Pod>(&self, to: GlobalPtr<T>, src: &[T]) {
        self.write("remote.put_slice", to, src);
    }

    /// Reads a value.
    #[track_caller]
    pub fn get<T: Pod>(&self, from: GlobalPtr<T>) -> T {
        let mut value = T::zeroed();
        self.read("remote.get", from, std::slice::from_mut(&mut value));
        value
    }

    /// Reads `dst.len()` values from there on.
    #[track_caller]
    pub fn get_slice<T: Pod>(&self, from: GlobalPtr<T>, dst: &mut [T]) {
        self.read("remote.get_slice", from, dst);
    }

    /// Writes all of `src` from there on, and posts `n` times to a semaphore of the same rank when it is there; see
    /// [`GlobalPtr::put_signal`].
    #[track_caller]
    pub fn put_signal<T: Pod>(&self, to: GlobalPtr<T>, src: &[T], signal: Signal, n: u32) {
        let (call, desk, at) = ("remote.put_signal", &self.desk, to.place());
        check_signal(desk.rank, desk.size(), call, signal, n);
        if !src.is_empty() {
            let (me, there) = (desk.rank, to.rank());
            if there != signal.rank() {
                panic!("{me}: {call}: {to:?} is on {there}, the semaphore on {}; both must be on one", signal.rank());
            }
            if !to.is_aligned() || !desk.may_lie(at, size_of_val(src)) {
                desk.refuse(call, to, src.len());
            }
        }
        let at = At { rank: signal.rank().0, ..at };
        self.signal(call, at, bytemuck::cast_slice(src), signal, n);
    }

    /// Adds to a word, atomically; what it was. Acquires and releases, as [`Place`](crate::atomic::Place)'s does.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let count = job.alloc_all::<u64>(1).unwrap().on(Rank(0));
    ///     let (remote, done) = (job.remote(), job.semaphore().unwrap());
    ///     let signal = done.signal();
    ///     let thread = std::thread::spawn(move || {
    ///         let before = remote.fetch_add(count, 1);
    ///         remote.post(signal);
    ///         before
    ///     });
    ///     done.wait();
    ///     assert!(thread.join().unwrap() < 2);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn fetch_add<T: Number>(&self, to: GlobalPtr<T>, value: T) -> T {
        let (call, at) = ("remote.fetch_add", to.place());
        self.begin(call);
        let (what, from_word) = adding(value);
        let near = self.desk.mapped().and_then(|node| node.reach().atomic(at, what));
        if let Some(old) = near {
            return from_word(old);
        }
        match self.desk.done(Site::here(call), at, || What::Atomic(at, what)) {
            Some(Done::Word(old)) => from_word(old),
            _ => self.desk.refuse(call, to, 1),
        }
    }

    /// Sends a message; see [`Job::am`]. The rank's own thread sends it, and [`Job::quiet`] waits for its handler.
    ///
    /// ```
    /// use partage::am::Request;
    /// use partage::prelude::*;
    /// static COUNT: Request<GlobalPtr<u64>> = Request::new(|_, target, count, _| _ = target.at(count).fetch_add(1));
    /// partage::test(2, |job| {
    ///     job.register_handlers(&[&COUNT]);
    ///     let count = job.alloc_all::<u64>(1).unwrap();
    ///     let (remote, to) = (job.remote(), job.neighbor(1));
    ///     let thread = std::thread::spawn(move || remote.am(to, &COUNT, count.on(to), &[]));
    ///     job.wait_until(|| thread.is_finished() && count.get(job) == 1);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn am<A: Pod>(&self, to: Rank, handler: &'static Request<A>, args: A, payload: &[u8]) {
        let (call, desk) = ("remote.am", &self.desk);
        let (me, size) = (desk.rank, desk.size());
        self.begin(call);
        if to.index() >= size {
            panic!("{me}: {call}: there is no {to} in a job of {size}");
        }
        let Some(handler) = handler.number_in(desk.node.serial()) else {
            panic!("{me}: {call}: {handler:?} is not registered; pass it to `register_handlers` on every rank");
        };
        am::check_payload(me.index(), call, payload.len());
        let (args, payload) = (bytemuck::bytes_of(&args).to_vec(), payload.to_vec());
        desk.send(Site::here(call), What::Message { to, handler, args, payload });
    }

    /// Panics on threads that are not to wait for a rank, whatever the call is, and when the job is over.
    #[track_caller]
    fn begin(&self, call: &str) {
        let me = self.desk.rank;
        if in_handler() {
            panic!("{me}: {call} {}", am::inside_what());
        }
        if let Some(who) = fail::this_rank() {
            panic!("rank {who}: {call}: a rank's own thread has its job; a remote is for its other threads");
        }
        self.desk.check(call);
    }

    #[track_caller]
    fn write<T: Pod>(&self, call: &'static str, to: GlobalPtr<T>, src: &[T]) {
        let (desk, at, bytes) = (&self.desk, to.place(), bytemuck::cast_slice(src));
        self.begin(call);
        if !to.is_aligned() {
            desk.refuse(call, to, src.len());
        }
        if desk.mapped().is_some_and(|node| node.reach().write(at, bytes).is_ok()) {
            return;
        }
        if desk.done(Site::here(call), at, || What::Put(at, bytes.to_vec())).is_none() {
            desk.refuse(call, to, src.len());
        }
    }

    #[track_caller]
    fn read<T: Pod>(&self, call: &'static str, from: GlobalPtr<T>, dst: &mut [T]) {
        let (desk, at, n) = (&self.desk, from.place(), dst.len());
        self.begin(call);
        if !from.is_aligned() {
            desk.refuse(call, from, n);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(dst);
        if desk.mapped().is_some_and(|node| node.reach().read(at, bytes).is_ok()) {
            return;
        }
        match desk.done(Site::here(call), at, || What::Get(at, bytes.len())) {
            Some(Done::Bytes(come)) => bytes.copy_from_slice(&come),
            _ => desk.refuse(call, from, n),
        }
    }

    /// Writes bytes, which lie in open memory of the semaphore's rank, and posts.
    #[track_caller]
    fn signal(&self, call: &'static str, at: At, src: &[u8], signal: Signal, n: u32) {
        let (desk, name) = (&self.desk, signal.name());
        self.begin(call);
        check_signal(desk.rank, desk.size(), call, signal, n);
        if name.has_one_producer() {
            let me = desk.rank;
            panic!(
                "{me}: {call}: {signal:?} has one producer, and a rank's threads are several; make one with several"
            );
        }
        let near = desk.mapped().and_then(|node| Some((node, node.semaphores().find(name)?)));
        let Some((node, semaphore)) = near else {
            let what = What::Signal { at, src: src.to_vec(), signal, n };
            desk.send(Site::here(call), what);
            return;
        };
        if name.is_strict() {
            full_fence();
        }
        if !src.is_empty() {
            node.reach().write(at, src).expect("memory of a rank whose semaphores are mapped");
        }
        if let Err(why) = semaphore.post_as_guest(name, n, desk.rank.0) {
            refuse_signal(desk.rank, desk.size(), call, signal, why);
        }
        if name.is_strict() {
            full_fence();
        }
    }
}

/// Where a rank's other threads leave what it is to do, and what they do themselves of the job.
#[derive(Debug)]
pub(crate) struct Desk {
    node: Arc<Node>,
    rank: Rank,
    /// Is nothing to be reached by copies?
    reference: bool,
    /// Has the rank come to its end?
    over: AtomicBool,
    /// How many they are the node counts, where the rank looks for its messages: written before its bell is rung, which has the
    /// fence that this needs.
    errands: Mutex<VecDeque<Arc<Errand>>>,
    /// Does the rank run one? Its own.
    runs: AtomicBool,
    /// When the rank panicked, if it has not made progress since.
    panicked_at: Arc<AtomicU64>,
}

/// How long a rank that has panicked is waited for. It may have caught that and compute; then it makes progress some time.
const UNWINDS: Duration = Duration::from_secs(10);

/// Something that a rank's own thread does for another one, which sleeps. Whoever has it owns all its bytes, so that either
/// of the two may leave.
#[derive(Debug)]
struct Errand {
    site: Site,
    what: What,
    done: OnceLock<Done>,
    /// Where the other thread sleeps.
    crowd: Crowd,
}

#[derive(Debug)]
enum What {
    Put(At, Vec<u8>),
    Get(At, usize),
    Atomic(At, Atomic),
    Signal { at: At, src: Vec<u8>, signal: Signal, n: u32 },
    Message { to: Rank, handler: u16, args: Vec<u8>, payload: Vec<u8> },
}

#[derive(Clone, Debug)]
enum Done {
    Yes,
    Bytes(Vec<u8>),
    Word(u64),
    /// There is no such place.
    No,
    /// The rank has come to its end.
    Over,
}

impl Desk {
    pub fn new(node: Arc<Node>, rank: Rank, reference: bool) -> Desk {
        let (over, errands, runs) = Default::default();
        Desk { node, rank, reference, over, errands, runs, panicked_at: fail::panicked_at() }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Is the rank at its end, or the job aborted?
    pub fn is_over(&self) -> bool {
        self.over.load(Acquire) || self.node.is_aborted()
    }

    /// Has the rank panicked, and done nothing for others since, although somebody has waited for long since `begun`?
    fn is_left_alone(&self, begun: u64) -> bool {
        let at = self.panicked_at.load(Relaxed);
        at != 0 && Duration::from_nanos(now_ns().saturating_sub(at.max(begun))) > UNWINDS
    }

    /// Panics if it is.
    #[track_caller]
    pub fn check(&self, call: &str) {
        if self.is_over() {
            panic!("{}: {call}: the job is over", self.rank);
        }
    }

    /// Is there something for the rank to do?
    #[inline(always)]
    pub fn has_errands(&self) -> bool {
        self.count().load(Relaxed) != 0
    }

    /// How many there are, where the rank finds it when it looks at its messages.
    fn count(&self) -> &AtomicUsize {
        self.node.errands(self.rank.index())
    }

    /// From now on there is nothing to be had.
    pub fn close(&self) {
        self.over.store(true, Release);
        let left = std::mem::take(&mut *self.lock());
        self.count().store(0, Relaxed);
        left.iter().for_each(|errand| errand.finish(Done::Over));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Errand>>> {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> usize {
        self.node.ranks().count()
    }

    /// What is reached by copies, if that is allowed.
    fn mapped(&self) -> Option<&Node> {
        (!self.reference).then_some(&*self.node)
    }

    fn may_lie(&self, at: At, len: usize) -> bool {
        Outside { at, len, ranks: self.size(), segment: self.node.reach().len() }.is_inside()
    }

    #[cold]
    #[track_caller]
    fn refuse<T: Pod>(&self, call: &str, p: GlobalPtr<T>, n: usize) -> ! {
        p.refuse_by(self.node.reach(), format_args!("{}: {call}", self.rank), n)
    }

    /// What came of something that the rank did with a place that is not reached by copies; `None` if there is no such place.
    #[cold]
    #[track_caller]
    fn done(&self, site: Site, at: At, what: impl FnOnce() -> What) -> Option<Done> {
        let rank = at.rank as usize;
        if rank >= self.size() || !self.reference && self.node.ranks().is_near(rank) {
            return None;
        }
        match self.send(site, what()) {
            Done::No => None,
            done => Some(done),
        }
    }

    /// Leaves an errand for the rank, and sleeps until it is done.
    #[cold]
    #[track_caller]
    fn send(&self, site: Site, what: What) -> Done {
        let errand = Arc::new(Errand { site, what, done: OnceLock::new(), crowd: Crowd::default() });
        let mut errands = self.lock();
        // Closing takes the lock after that is set.
        self.check(site.call);
        errands.push_back(errand.clone());
        self.count().store(errands.len(), Relaxed);
        drop(errands);
        self.node.wake(self.rank.index());
        let begun = now_ns();
        errand.crowd.until(|| errand.done.get().is_some() || self.is_over() || self.is_left_alone(begun));
        // Nobody does it any more, unless somebody has.
        match errand.done.get_or_init(|| Done::Over) {
            Done::Over if !self.is_over() => {
                panic!("{}: {}: the rank has panicked, and does nothing for its threads any more", self.rank, site.call)
            }
            Done::Over => panic!("{}: {}: the job is over", self.rank, site.call),
            done => done.clone(),
        }
    }

    /// The next one that somebody still waits for, for the rank.
    fn take(&self) -> Option<Arc<Errand>> {
        let mut errands = self.lock();
        let mut next = || errands.pop_front();
        let errand = std::iter::from_fn(&mut next).find(|errand| errand.done.get().is_none());
        self.count().store(errands.len(), Relaxed);
        errand
    }
}

impl Errand {
    fn finish(&self, done: Done) {
        // Who has come second has nothing to say.
        let _ = self.done.set(done);
        light_fence();
        self.crowd.ring_after_fence();
    }
}

impl Inner {
    /// Does what other threads have left, if there is something.
    #[inline(always)]
    pub fn serve_desk(self: &Rc<Self>) -> bool {
        self.desk.has_errands() && self.run_errands()
    }

    /// Does what other threads of this rank have left for it, one after the other; not where nothing may wait.
    #[cold]
    #[inline(never)]
    pub fn run_errands(self: &Rc<Self>) -> bool {
        let desk = &self.desk;
        let may = !self.calls.is_running() && !in_handler() && !self.seat.waiter().aborted();
        if !may || desk.runs.swap(true, Relaxed) {
            return false;
        }
        if !std::thread::panicking() {
            desk.panicked_at.store(0, Relaxed);
        }
        let mut ran = false;
        // As many as there are now: threads that always have more do not keep the rank from what it waits for.
        for _ in 0..desk.count().load(Relaxed) {
            let Some(errand) = desk.take() else { break };
            let done = self.run_errand(&errand);
            // Waits end without what they waited for then.
            if !self.seat.waiter().aborted() {
                errand.finish(done);
            }
            ran = true;
        }
        desk.runs.store(false, Relaxed);
        ran
    }

    fn run_errand(self: &Rc<Self>, errand: &Errand) -> Done {
        let site = errand.site;
        let found = |found: Option<Done>| found.unwrap_or(Done::No);
        match &errand.what {
            What::Put(at, bytes) => found(self.put_far(site, *at, bytes).map(|()| Done::Yes)),
            What::Get(at, len) => {
                let mut bytes = vec![0; *len];
                found(self.get_far(site, *at, &mut bytes).map(|()| Done::Bytes(bytes)))
            }
            What::Atomic(at, what) => found(self.atomic_far(site, *at, *what).map(Done::Word)),
            What::Signal { at, src, signal, n } => {
                self.put_signal(site.call, *at, src, *signal, *n);
                Done::Yes
            }
            What::Message { to, handler, args, payload } => {
                self.request(site, *to, *handler, args, payload);
                Done::Yes
            }
        }
    }

    /// Does what is left, and takes no more.
    pub fn close_desk(self: &Rc<Self>) {
        self.run_errands();
        self.desk.close();
    }
}
