//! [`Job`]: the rank's own handle.

use crate::am::{Counters, in_handler, inside_what};
use crate::coll::{Engine, Pending, Table};
use crate::domain::Arbiter;
use crate::error::{Error, Result};
use crate::fail;
use crate::image::Image;
use crate::leaks::Leaks;
use crate::ptr::GlobalPtr;
use crate::remote::Desk;
use crate::rpc::Calls;
use crate::scope::Kept;
use crate::signal::Shares;
use crate::slots::Lanes;
use crate::team::{Group, Rank, Team, Teams};
use bytemuck::Pod;
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::{At, Conduit, Failure, Half, Outside};
use partage_conduit::heap::Side;
use partage_conduit::ofi::rma::{self, Started};
use partage_conduit::pool::LARGE;
use partage_conduit::record::Site;
use partage_conduit::shm::am::Reference;
use partage_conduit::shm::mailbox::Mailboxes;
use partage_conduit::shm::rma::Reach;
use partage_conduit::shm::segment::Exhausted;
use partage_conduit::shm::signal::Semaphores;
use partage_conduit::shm::{Seat, bytes};
use partage_conduit::small::Size;
use partage_conduit::sync::full_fence;
use partage_conduit::wait::{Aborted, Step};
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// This rank's handle to the job. It derefs to the team of all ranks, and stays on its thread.
///
/// ```
/// partage::test(2, |job| {
///     let p = job.alloc(41u64).unwrap();
///     p.put(job, p.get(job) + 1);
///     assert_eq!(p.get(job), 42);
///     job.free(p);
/// });
/// ```
#[derive(Debug)]
pub struct Job {
    all: Team,
}

/// What a job's ranks are told by settings.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Nothing is reached by copies.
    pub reference: bool,
    pub leaks: bool,
    pub atomics: Arbiter,
    pub table: Table,
    /// Collectives are compared.
    pub check: bool,
}

/// What all handles of a rank share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub rank: Rank,
    pub size: usize,
    /// What can be reached by a copy.
    pub reach: Reach,
    pub seat: Seat,
    /// Which job of the process this is.
    pub serial: u64,
    /// How many handlers have been registered.
    pub registered: Cell<u16>,
    pub image: Image,
    pub calls: Calls,
    pub reference: ReferencePath,
    /// What can be reached of arrays by a copy.
    pub guarded: Reach,
    pub kept: Kept,
    pub leaks: Leaks,
    /// Semaphores that can be signaled by a store.
    pub semaphores: Semaphores,
    /// Mailboxes into which values are written.
    pub mailboxes: Mailboxes,
    /// Have signals been sent by messages since all were last waited for?
    pub signals_sent: Cell<bool>,
    pub lanes: Lanes,
    /// Semaphores of the past from which other threads may still try to take.
    pub shares: Shares,
    /// What this rank's other threads have for it to do.
    pub desk: Arc<Desk>,
    /// Who is to do the atomics of domains.
    pub atomics: Arbiter,
    /// How often something was served.
    pub served: Cell<u64>,
    /// Polls of events since this rank last made progress for one.
    pub polls: Cell<u32>,
    /// The team of all ranks.
    pub all: Rc<Group>,
    /// What is known of other teams.
    pub teams: Teams,
    /// Collectives that were started.
    pub pending: Pending,
    /// Bytes of the segment that the runtime has for itself.
    pub own_use: Cell<u64>,
    /// Which algorithms they take.
    pub table: Table,
    /// Are they compared?
    pub check: bool,
}

/// Where a rank waits, and which collective that it has started has not ended: others may wait for it there.
struct Besides<'a, S> {
    what: S,
    inner: &'a Inner,
}

impl<S: fmt::Display> fmt::Display for Besides<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)?;
        self.inner.pending.say(f)
    }
}

/// Puts, gets and atomics over active messages.
#[derive(Debug, Default)]
pub(crate) struct ReferencePath {
    forced: bool,
    counters: Cell<Counters>,
}

impl ReferencePath {
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    pub fn is_forced(&self) -> bool {
        self.forced
    }

    pub fn count(&self, what: impl Fn(&mut Counters)) {
        let mut counters = self.counters.get();
        what(&mut counters);
        self.counters.set(counters);
    }
}

impl Inner {
    /// Serves others: handlers' messages, remote calls, results.
    #[inline(always)]
    pub fn progress(self: &Rc<Self>) -> bool {
        let served = self.seat.serve(self.calls.has_more(), |more| self.serve_some(more));
        if served {
            self.served.set(self.served.get().wrapping_add(1));
        }
        served
    }

    #[inline(never)]
    fn serve_some(self: &Rc<Self>, more: bool) -> bool {
        self.seat.serve_some(more, || self.serve_calls() | self.serve_desk() | self.serve_collectives())
    }

    #[inline(always)]
    fn serve_collectives(self: &Rc<Self>) -> bool {
        !self.pending.is_empty() && self.serve_started()
    }

    /// A wait whose result is needed, in a destructor, while the job ends: there is none to return, and no second panic to
    /// unwind with.
    #[cold]
    pub fn no_result(&self, site: Site) -> ! {
        fail::die(fail::PANICKED, Some(&format!("{}: {site}: in a destructor, while the job ends", self.rank)))
    }

    /// One look of a call that does not wait: serves others. Whoever looks again and again unwinds when the job is over.
    #[inline]
    pub fn look(self: &Rc<Self>) -> bool {
        let over = || if self.seat.waiter().aborted() { Err(Aborted) } else { Ok(false) };
        self.progress() || self.unless_over(over())
    }

    /// The same, but not each time: for many that ask one after the other. In a handler nobody is served.
    #[inline]
    pub fn progress_at_times(self: &Rc<Self>) -> bool {
        const TIMES: u32 = 16;
        let polls = self.polls.get() + 1;
        self.polls.set(polls % TIMES);
        polls == TIMES && self.may_serve() && self.look()
    }

    /// Waits until `done`, making progress.
    pub fn wait(self: &Rc<Self>, site: Site, done: impl Fn() -> bool + Copy) {
        self.unless_over(self.wait_saying(|| site, done));
    }

    /// The same for a wait of which more is to be said than its site; it may end without what it waited for.
    pub fn wait_saying<S: fmt::Display>(
        self: &Rc<Self>,
        site: impl Fn() -> S + Copy,
        done: impl Fn() -> bool + Copy,
    ) -> std::result::Result<(), Aborted> {
        let look = || match done() {
            true => Step::Done,
            false if self.progress() => Step::Busy,
            false => Step::Idle,
        };
        let says = || {
            self.looks_up();
            Besides { what: site(), inner: self }
        };
        self.seat.waiter().until(says, look)
    }

    /// Sends a request, when there is room. (In a called function, progress runs no others meanwhile.)
    #[inline(always)]
    pub fn request(self: &Rc<Self>, site: Site, to: Rank, handler: u16, args: &[u8], payload: &[u8]) {
        if !self.seat.try_request(to.index(), handler, args, payload) {
            self.request_slowly(site, to, handler, args, payload);
        }
    }

    #[cold]
    #[inline(never)]
    fn request_slowly(self: &Rc<Self>, site: Site, to: Rank, handler: u16, args: &[u8], payload: &[u8]) {
        self.wait(site, || self.seat.try_request(to.index(), handler, args, payload));
    }

    #[inline(always)]
    pub fn unless_over<T: Default>(&self, waited: std::result::Result<T, Aborted>) -> T {
        #[cold]
        #[inline(never)]
        fn over<T: Default>() -> T {
            // In a destructor that already unwinds for that, there is nothing to wait for.
            if std::thread::panicking() { T::default() } else { fail::job_is_over() }
        }
        waited.unwrap_or_else(|Aborted| over())
    }

    /// Does this rank unwind while the job ends? Then waits in destructors end without what they waited for.
    #[inline(always)]
    pub fn is_ending(&self) -> bool {
        std::thread::panicking() && self.seat.waiter().aborted()
    }

    /// May a call that does not wait serve others? Not in a handler, inside which another would run, and another inside that; nor
    /// when the job is over.
    #[inline]
    pub fn may_serve(&self) -> bool {
        !in_handler() && !self.calls.is_over()
    }

    /// A call that waits is refused in a function that another rank called.
    #[inline(always)]
    #[track_caller]
    pub fn may_wait(&self, site: impl Fn() -> Site) {
        if self.calls.is_running() || in_handler() {
            self.may_not_wait(site().call);
        }
    }

    #[cold]
    #[track_caller]
    fn may_not_wait(&self, call: &str) -> ! {
        if self.calls.is_over() {
            panic!("{}: {call}: the job is over", self.rank);
        }
        if in_handler() {
            panic!("{}: {call} {}", self.rank, inside_what());
        }
        panic!(
            "{}: {call} in a function that was called by rpc or tell; it may put, get, send and call, but not wait",
            self.rank
        )
    }

    #[inline(always)]
    #[track_caller]
    pub fn check_rank(&self, call: &str, to: Rank) {
        if to.index() >= self.size {
            self.no_such_rank(call, to);
        }
    }

    #[cold]
    #[track_caller]
    fn no_such_rank(&self, call: &str, to: Rank) -> ! {
        panic!("{}: {call}: there is no {to} in a job of {}", self.rank, self.size)
    }

    /// What is mapped here of arrays, whether or not it is to be reached that way.
    #[inline(always)]
    pub fn own_table(&self) -> &Reach {
        self.seat.node().table(Half::Guarded)
    }

    /// Panics after the end of the job, when nobody answers any more, and in handlers, which may run while this rank waits for
    /// an answer itself. A handle of an array can be kept in a thread-local.
    #[track_caller]
    pub fn is_not_over(&self, site: Site) {
        if self.calls.is_over() {
            panic!("{}: {site}: the job is over", self.rank);
        }
        if in_handler() {
            panic!("{}: {site} {}", self.rank, inside_what());
        }
    }

    /// Could so many bytes lie there, in open memory?
    pub fn may_lie(&self, at: At, len: usize) -> bool {
        let (ranks, segment) = (self.size, self.seat.node().reach().len());
        Outside { at, len, ranks, segment }.is_inside()
    }

    /// Does the network know so many bytes there, if it is what reaches them?
    pub fn may_be_known(&self, site: Site, at: At, len: usize) -> bool {
        !self.is_network(at) || rma::may_reach(&self.seat, site, at, len)
    }

    /// Writes to a part of an array that cannot be reached by a copy; what is under way then.
    pub fn put_guarded(&self, site: Site, at: At, src: &[u8]) -> Option<Started> {
        self.is_not_over(site);
        if self.is_network(at) {
            return Some(self.start_put(site, at, src).expect("inside an array"));
        }
        self.put_far(site, at, src).expect("inside an array");
        None
    }

    /// Reads from one.
    pub fn get_guarded(&self, site: Site, at: At, dst: &mut [u8]) -> Option<Started> {
        self.is_not_over(site);
        if self.is_network(at) {
            return Some(self.start_get(site, at, dst).expect("inside an array"));
        }
        self.get_far(site, at, dst).expect("inside an array");
        None
    }

    /// Waits until everything that this rank has started is complete.
    #[inline]
    pub fn quiet_at(self: &Rc<Self>, site: Site) {
        if self.calls.is_flushed() && self.seat.is_quiet() {
            return;
        }
        self.flush(site);
        self.complete_far(site);
        self.unless_over(self.seat.quiet(site, || self.progress()));
    }

    /// Orders what this rank has written before what it will write: what is under way has arrived.
    pub fn fence_at(&self, site: Site) {
        self.complete_far(site);
        if self.signals_sent.replace(false) {
            // Signals to ranks of this node are stores, unless all goes by messages.
            self.unless_over(match self.reference.is_forced() {
                true => self.seat.quiet_messages(site),
                false => self.seat.quiet_far_messages(site),
            });
        }
        full_fence();
    }

    /// Puts where memory is not mapped; `None` if the place is not one, or needs no other way.
    pub fn put_far(&self, site: Site, at: At, src: &[u8]) -> Option<()> {
        if !self.reference.forced {
            return self.seat.is_far(at).then(|| self.seat.put(site, at, src)).and_then(|put| self.unless_outside(put));
        }
        self.reference.count(|c| c.reference_puts += 1);
        self.unless_outside(Reference(&self.seat).put(site, at, src))
    }

    /// Gets where memory is not mapped.
    pub fn get_far(&self, site: Site, at: At, dst: &mut [u8]) -> Option<()> {
        if !self.reference.forced {
            return self.seat.is_far(at).then(|| self.seat.get(site, at, dst)).and_then(|got| self.unless_outside(got));
        }
        self.reference.count(|c| c.reference_gets += 1);
        self.unless_outside(Reference(&self.seat).get(site, at, dst))
    }

    /// Does the network itself reach this place?
    pub fn is_network(&self, at: At) -> bool {
        !self.reference.forced && self.seat.is_far(at)
    }

    /// Do so many bytes for this place go along with a message, and may they?
    pub fn goes_along(&self, site: Site, at: At, len: usize) -> bool {
        len <= LARGE && self.is_network(at) && rma::may_reach(&self.seat, site, at, len)
    }

    /// Has a transfer completed?
    pub fn is_complete(&self, started: &Started) -> bool {
        rma::is_done(&self.seat, started)
    }

    /// Waits for a transfer.
    pub fn complete_transfer(&self, site: Site, started: &Started) {
        rma::complete(&self.seat, site, started);
    }

    /// Waits for all transfers with other nodes, and for all answers.
    #[inline]
    pub fn complete_far(&self, site: Site) {
        rma::complete_all(&self.seat, site);
        let answers = &self.seat.landing().answers;
        let waited = match answers.are_all_done() {
            true => Ok(()),
            false => Conduit::wait(&self.seat, site, || answers.are_all_done()),
        };
        // Before anything unwinds: what was borrowed is given back then.
        self.kept.clear();
        self.unless_over(waited);
    }

    pub fn unless_outside<T: Default>(&self, done: std::result::Result<T, Failure>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(Failure::Outside(_) | Failure::NotAWord) => None,
            Err(Failure::Aborted) => Some(self.unless_over(Err(Aborted))),
        }
    }

    /// Frees what is another rank's, or says what is wrong.
    #[cold]
    #[track_caller]
    fn free_slowly(self: &Rc<Self>, owner: Rank, offset: u64) {
        if owner == self.rank {
            // No closure: it would not know the caller's place.
            match self.free_here(offset) {
                Ok(()) => return,
                Err(why) => panic!("{owner}: free: {why}"),
            }
        }
        self.check_rank("free", owner);
        self.free_there(owner, offset);
    }

    /// Frees a block of my own.
    pub fn free_here(&self, offset: u64) -> std::result::Result<(), String> {
        if self.seat.give(Half::Open, Side::Local, offset) {
            self.leaks.forget(offset);
            return Ok(());
        }
        let p = GlobalPtr::<u8>::new(self.rank, offset);
        Err(match self.seat.side_of(offset) {
            _ if offset >= self.seat.node().segment() => {
                format!("{p:?} may be of alloc_blocks; free it by free_blocks")
            }
            Some(_) => format!("{p:?} was allocated by alloc_all; free it by free_all, on all ranks"),
            None => format!("no allocation starts at {p:?} (freed twice, or not what alloc returned)"),
        })
    }
}

/// How far away a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// It is this one.
    Me,
    /// In this process.
    Process,
    /// On this node: its memory is mapped here.
    Node,
    /// On another node.
    Far,
}

impl Deref for Job {
    type Target = Team;
    #[inline(always)]
    fn deref(&self) -> &Team {
        &self.all
    }
}

impl Job {
    pub(crate) fn new(seat: Seat, rank: usize, options: &Options) -> std::result::Result<Job, String> {
        let Options { reference, leaks, atomics, check, ref table } = *options;
        let node = seat.node();
        let (size, serial) = (node.ranks().count(), node.serial());
        let [reach, guarded] = [Half::Open, Half::Guarded].map(|half| {
            let mapped = node.table(half);
            if reference { mapped.nothing() } else { mapped.clone() }
        });
        let semaphores = if reference { node.semaphores().nothing() } else { node.semaphores().clone() };
        let mailboxes = if reference { node.mailboxes().nothing() } else { node.mailboxes().clone() };
        let desk = Arc::new(Desk::new(node.clone(), Rank(rank as u32), reference));
        let engine = Engine::of_all(&seat, &guarded, rank)?;
        let own_use = Cell::new(seat.in_use());
        let inner = Inner {
            rank: Rank(rank as u32),
            size,
            reach,
            seat,
            serial,
            registered: Cell::new(0),
            image: Image::here(),
            calls: Calls::default(),
            reference: ReferencePath { forced: reference, ..Default::default() },
            guarded,
            kept: Kept::default(),
            leaks: Leaks::new(leaks),
            semaphores,
            mailboxes,
            signals_sent: Cell::new(false),
            lanes: Lanes::default(),
            shares: Shares::default(),
            desk,
            atomics,
            served: Cell::new(0),
            polls: Cell::new(0),
            all: Rc::new(Group::new(engine, None)),
            teams: Teams::default(),
            pending: Pending::default(),
            own_use,
            table: table.clone(),
            check,
        };
        Ok(Job::of(Rc::new(inner)))
    }

    /// Another handle of the same rank, for a function that was called.
    pub(crate) fn of(inner: Rc<Inner>) -> Job {
        let group = inner.all.clone();
        Job { all: Team { inner, group } }
    }

    /// What can be reached by a copy.
    #[inline(always)]
    pub(crate) fn reach(&self) -> &Reach {
        &self.all.inner.reach
    }

    /// What is mapped here, whether or not it is to be reached that way.
    pub(crate) fn mapped(&self) -> &Reach {
        self.all.inner.seat.node().reach()
    }

    /// The first barrier: nobody is reached, and nobody takes memory, before all have what others reach.
    pub(crate) fn begin(&self, at: &'static Location<'static>) {
        let site = Site { call: "the start of the program", at };
        self.all.meet(Tag::Plain, u64::MAX, move || site);
    }

    /// The last barrier, which only ranks pass that have all come to their end, and not before all messages have run. A
    /// called function may send more while its rank is here; so it takes a round in which nobody has sent
    /// anything since its last one. A job without messages has one.
    pub(crate) fn end(&self, site: Site) {
        let seat = &self.all.inner.seat;
        // What other threads want from now on would not be waited for.
        self.all.inner.close_desk();
        let sent = || seat.sent().queued + seat.sent().far + self.all.inner.calls.kept();
        let mut before = 0;
        loop {
            // Counted first: what is sent while this waits for others may not have been waited for.
            let begun = sent();
            self.all.inner.quiet_at(site);
            if self.all.meet(Tag::Exit, u64::from(sent() == before), move || site) != 0 {
                return;
            }
            before = begun;
        }
    }

    /// The rank has left its program, however.
    pub(crate) fn is_over(&self) {
        self.all.inner.desk.close();
        self.all.inner.calls.end();
    }

    /// My rank.
    #[inline(always)]
    pub fn rank(&self) -> Rank {
        self.all.inner.rank
    }

    /// The team of all ranks (also by deref).
    pub fn all(&self) -> &Team {
        &self.all
    }

    /// All ranks, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size() as u32).map(Rank)
    }

    /// The rank `k` places to the right, wrapping around.
    pub fn neighbor(&self, k: i64) -> Rank {
        let size = self.size() as i64;
        Rank((i64::from(self.rank().0) + k.rem_euclid(size)).rem_euclid(size) as u32)
    }

    /// The indices of the range that are mine if they are dealt out one by one: UPC's forall by integer affinity.
    ///
    /// ```
    /// partage::test(3, |job| {
    ///     let mine: Vec<usize> = job.forall(1..8).collect();
    ///     assert_eq!(mine, [vec![3, 6], vec![1, 4, 7], vec![2, 5]][job.rank().index()]);
    /// });
    /// ```
    pub fn forall(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        let (me, size) = (self.rank().index(), self.size());
        let first = range.start.saturating_add((me + size - range.start % size) % size);
        (first..range.end).step_by(size)
    }

    /// How far away `r` is.
    #[track_caller]
    pub fn distance(&self, r: Rank) -> Distance {
        let node = self.all.inner.seat.node();
        assert!(r.index() < self.size(), "{}: distance: there is no {r} in a job of {}", self.rank(), self.size());
        match r {
            _ if r == self.rank() => Distance::Me,
            _ if node.mine().contains(&r.index()) => Distance::Process,
            _ if node.ranks().is_near(r.index()) => Distance::Node,
            _ => Distance::Far,
        }
    }

    /// Is the memory of `r` mapped here?
    #[track_caller]
    pub fn same_node(&self, r: Rank) -> bool {
        self.distance(r) < Distance::Far
    }

    /// Orders my earlier puts before my later ones, as others see them. (Puts that are under way to other nodes are waited
    /// for: a network orders nothing. Collectives that were started are not.)
    #[track_caller]
    pub fn fence(&self) {
        self.all.inner.fence_at(Site::here("fence"));
    }

    /// Waits until what I have started is complete, everywhere: my puts, gets and atomics; the handlers of my messages, and those
    /// of their replies here; the functions that I called or told to run. Not collectives that were started: those are completed by their
    /// event, by [`Scope::wait_all`](crate::scope::Scope::wait_all) or by the end of their scope, and this only helps them along.
    #[track_caller]
    pub fn quiet(&self) {
        let site = Site::here("quiet");
        self.all.inner.may_wait(|| site);
        self.all.inner.quiet_at(site);
        full_fence();
    }

    /// Allocates one value in my segment. Not collective: no lock and no other rank is involved.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, value: T) -> Result<GlobalPtr<T>> {
        let p = self.alloc_for("alloc", 1)?;
        p.put(self, value);
        Ok(p)
    }

    /// Allocates `n` zeroed values in my segment. Not collective. The pointer for `n` = 0 is one that nobody else has.
    #[track_caller]
    #[inline]
    pub fn alloc_slice<T: Pod>(&self, n: usize) -> Result<GlobalPtr<T>> {
        self.alloc_for("alloc_slice", n)
    }

    #[inline(always)]
    #[track_caller]
    fn alloc_for<T: Pod>(&self, call: &'static str, n: usize) -> Result<GlobalPtr<T>> {
        let (len, align) = self.room::<T>(call, n)?;
        let seat = &self.all.inner.seat;
        let offset = match Size::of(len, align).and_then(|size| seat.take_small(Half::Open, size)) {
            Some(offset) => offset,
            None => {
                let offset = seat.take(Half::Open, Side::Local, len, align);
                offset.map_err(|e| self.exhausted(call, len, e))?
            }
        };
        let at = Location::caller();
        self.all.inner.leaks.note(offset, len, || Site { call, at });
        Ok(GlobalPtr::new(self.rank(), offset))
    }

    /// Frees what [`alloc`](Self::alloc) or [`alloc_slice`](Self::alloc_slice) gave, to any rank; null is ignored. What
    /// belongs to another rank is freed when that rank makes progress ([`quiet`](Self::quiet) waits for it).
    /// A pointer that is kept reads old or new plain data, never anything that a reference covers.
    #[track_caller]
    pub fn free<T: Pod>(&self, p: GlobalPtr<T>) {
        if p.is_null() {
            return;
        }
        let (inner, owner, offset) = (&self.all.inner, p.rank(), p.place().offset);
        if owner == inner.rank && inner.seat.give_small(Half::Open, offset) {
            return inner.leaks.forget(offset);
        }
        inner.free_slowly(owner, offset);
    }

    /// Collective: allocates `n` zeroed values on every rank, at the same offset. Returns my part; `p.on(rank)` is that
    /// of another. All ranks ask for the same; if one of them has no room, all get the error.
    #[track_caller]
    pub fn alloc_all<T: Pod>(&self, n: usize) -> Result<GlobalPtr<T>> {
        let site = Site::here("alloc_all");
        self.all.may_meet(|| site);
        let (len, align) = self.room::<T>("alloc_all", n)?;
        let mine = self.all.inner.seat.take(Half::Open, Side::Symmetric, len, align);
        // The smallest of what ranks found: 0 where one found nothing. Equal calls give equal offsets.
        let vote = mine.as_ref().map_or(0, |&offset| offset);
        let what = len << Call::ALIGN_BITS | u64::from(align.ilog2());
        let agreed = self.all.meet(Tag::Call(Call::AllocAll, what), vote, move || site);
        match mine {
            Ok(offset) if agreed == offset => {
                self.all.inner.leaks.note(offset, len, || site);
                Ok(GlobalPtr::new(self.rank(), offset))
            }
            Ok(offset) => {
                self.all.inner.seat.give(Half::Open, Side::Symmetric, offset);
                let me = self.rank();
                Err(Error::out_of_memory(format!("{me}: alloc_all of {}: another rank has no room", bytes(len))))
            }
            Err(e) => Err(self.exhausted("alloc_all", len, e)),
        }
    }

    /// Collective: frees what [`alloc_all`](Self::alloc_all) gave, on every rank; any rank's pointer to it will do. It may
    /// be used until all have entered. Null is ignored, on all ranks.
    #[track_caller]
    pub fn free_all<T: Pod>(&self, p: GlobalPtr<T>) {
        let site = Site::here("free_all");
        self.all.may_meet(|| site);
        let offset = p.place().offset;
        if !p.is_null() && self.all.inner.seat.side_of(offset) != Some(Side::Symmetric) {
            panic!("{}: free_all: no allocation of alloc_all starts at {p:?}", self.rank());
        }
        self.all.meet(Tag::Call(Call::FreeAll, offset), u64::MAX, move || site);
        if !p.is_null() {
            self.all.inner.leaks.forget(offset);
            self.all.inner.seat.give(Half::Open, Side::Symmetric, offset);
        }
    }

    /// Bytes of my segment that are allocated, those of arrays too; of dropped ones until the next collective allocation. What
    /// collectives have for themselves does not count.
    pub fn allocated(&self) -> u64 {
        let inner = &self.all.inner;
        inner.sweep_lanes();
        inner.seat.in_use() - inner.own_use.get()
    }

    /// Waits until `done` says so, and serves others meanwhile: for what handlers and called functions do. It is asked again
    /// whenever something was served here; what other ranks put into memory does not wake anybody, and is seen within a
    /// tenth of a second.
    ///
    /// ```
    /// use partage::am::Request;
    /// use partage::prelude::*;
    /// static COME: Request<GlobalPtr<u64>> = Request::new(|_, target, count, _| _ = target.at(count).fetch_add(1));
    /// partage::test(3, |job| {
    ///     job.register_handlers(&[&COME]);
    ///     let count = job.alloc_all::<u64>(1).unwrap();
    ///     job.ranks().for_each(|r| job.am(r, &COME, count.on(r), &[]));
    ///     job.wait_until(|| count.get(job) == 3);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn wait_until(&self, done: impl Fn() -> bool) {
        let site = Site::here("wait_until");
        self.all.inner.may_wait(|| site);
        self.all.inner.wait(site, &done);
    }

    /// Ends every rank of the job with this exit code, at once. Zero is a clean end too.
    pub fn exit(&self, code: i32) -> ! {
        use std::io::Write;
        let _ = std::io::stdout().flush();
        fail::die(code, None)
    }

    /// Prints a line that begins with my rank, in one piece; one of more than 4 KiB, where ranks are processes and their output is a
    /// pipe, only under `partage run --label` or `--hosts`.
    pub fn println(&self, line: impl fmt::Display) {
        use std::io::Write;
        let text = format!("[{}] {line}\n", self.rank().0);
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    #[inline]
    pub(crate) fn room<T>(&self, call: &str, n: usize) -> Result<(u64, u64)> {
        match n.checked_mul(size_of::<T>()) {
            // Blocks of a cache line and more start at one.
            Some(len) if len < 1 << 56 && align_of::<T>() <= 4096 => {
                Ok((len as u64, (align_of::<T>() as u64).max(if len >= 64 { 64 } else { 16 })))
            }
            _ => Err(self.no_room(call, n, size_of::<T>(), align_of::<T>())),
        }
    }

    #[cold]
    fn no_room(&self, call: &str, n: usize, size: usize, align: usize) -> Error {
        let me = self.rank();
        match align {
            0..=4096 => Error::out_of_memory(format!("{me}: {call} of {n} values of {size} bytes: too large")),
            _ => Error::config(format!("{me}: {call}: values aligned to more than a page")),
        }
    }

    #[cold]
    pub(crate) fn exhausted(&self, call: &str, len: u64, e: Exhausted) -> Error {
        Error::out_of_memory(format!("{}: {call} of {}: {e}", self.rank(), bytes(len)))
    }
}
