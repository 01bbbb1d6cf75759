//! Active messages: a registered function runs in another rank's process, with plain arguments and a payload.
//!
//! Handlers are statics. [`Job::register_handlers`] makes them known, on all ranks alike; [`Job::am`] sends.
//! * A **short** message has arguments only, a **medium** one a payload of up to [`MEDIUM`] bytes besides, which the
//!   handler sees as a slice; a **long** one ([`Job::am_long`]) has any number of values, which lie in open memory of
//!   the target when its handler runs.
//! * A request handler may reply once, through its [`Token`]: a second reply, or one from a reply handler, does not
//!   compile.
//! * **Where a handler runs.** On any thread of the target's process, and at the same time as other handlers of the same
//!   rank: a message to a rank of the sender's process runs at once, on the sender's thread; any other when
//!   some thread of the target's process waits or [polls](Job::poll). So a handler sees no [`Job`], only the
//!   [`Target`]: whose memory it acts on, by values and atomics. It must not block; a panic in it ends the job.
//!   For code that belongs on the rank's own thread there are [remote calls](crate::rpc).
//! * **Order.** Messages from one rank to another are taken in the order in which they were sent; their handlers may
//!   still overlap.
//! * **Memory is bounded.** Who sends faster than the target serves waits in [`Job::am`], and serves others meanwhile.
//! * **Completion.** [`Job::am`] returns when the payload may be reused. [`Job::quiet`] waits until the handlers of all
//!   my messages have run (as far as their replies, where they reply), and those of the replies; a barrier alone does not.
//!
//! ```
//! use partage::am::{Reply, Request};
//! use partage::prelude::*;
//!
//! #[derive(Clone, Copy, Pod, Zeroable)]
//! #[bytemuck(crate = "partage::bytemuck")]
//! #[repr(C)]
//! struct Add { to: GlobalPtr<u64>, n: u64, answer: GlobalPtr<u64> }
//!
//! // Adds to a counter of the target, and answers with what it was.
//! static ADD: Request<Add> = Request::new(|token, target, add, _payload| {
//!     let old = target.at(add.to).fetch_add(add.n);
//!     token.reply(&WAS, Add { n: old, ..add }, &[]);
//! });
//! static WAS: Reply<Add> = Reply::new(|target, _from, add, _payload| target.put(add.answer, add.n));
//!
//! partage::test(3, |job| {
//!     job.register_handlers(&[&ADD, &WAS]);
//!     let (counter, answer) = (job.alloc_all(1).unwrap(), job.alloc(u64::MAX).unwrap());
//!     job.am(Rank(0), &ADD, Add { to: counter.on(Rank(0)), n: 1, answer }, &[]);
//!     job.quiet();                                     // my handler has run there, and its reply's here
//!     assert!(answer.get(job) < 3);
//!     job.barrier();
//!     assert_eq!(counter.on(Rank(0)).get(job), 3);
//!     # job.barrier();
//! });
//! ```

use crate::atomic::{Place, Word};
use crate::fail;
use crate::job::Job;
use crate::ptr::GlobalPtr;
use crate::register::Registrations;
use crate::team::Rank;
use bytemuck::{Pod, Zeroable};
use partage_conduit::am::{self as conduit, Arrival};
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::At;
use partage_conduit::pool::LARGE;
use partage_conduit::record::Site;
use partage_conduit::reference;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The most bytes of a medium message's payload.
pub const MEDIUM: usize = LARGE;

/// What runs on the target of a request, with arguments `A` of at most 64 bytes. A `static`; see the [module](self).
pub struct Request<A> {
    run: fn(Token<'_>, &Target<'_>, A, &[u8]),
    name: Name,
}

/// What runs on the target of a [long](Job::am_long) request, when its values have been put there.
pub struct LongRequest<A, T> {
    run: fn(Token<'_>, &Target<'_>, A, Landed<'_, T>),
    name: Name,
}

/// What runs on the source of a request when the target replies; the rank is the one that replied.
pub struct Reply<A> {
    run: fn(&Target<'_>, Rank, A, &[u8]),
    name: Name,
}

/// Where a handler is written, and its number in the current job.
struct Name {
    at: &'static Location<'static>,
    /// The job's serial number and, in the low 16 bits, the handler's.
    number: AtomicU64,
}

impl Name {
    #[track_caller]
    const fn here() -> Name {
        Name { at: Location::caller(), number: AtomicU64::new(0) }
    }
}

impl<A: Pod> Request<A> {
    /// A handler; a closure without captures or a `fn`.
    #[track_caller]
    pub const fn new(run: fn(Token<'_>, &Target<'_>, A, &[u8])) -> Self {
        const { assert!(size_of::<A>() <= conduit::ARGS, "the arguments of a message have at most 64 bytes") };
        Request { run, name: Name::here() }
    }

    /// Its number in that job of this process, if it is registered.
    pub(crate) fn number_in(&self, job: u64) -> Option<u16> {
        let number = self.name.number.load(Relaxed);
        (number >> 16 == job).then_some(number as u16)
    }
}

impl<A: Pod, T: Pod> LongRequest<A, T> {
    /// A handler; a closure without captures or a `fn`. The arguments have at most 48 bytes here.
    #[track_caller]
    pub const fn new(run: fn(Token<'_>, &Target<'_>, A, Landed<'_, T>)) -> Self {
        const { assert!(size_of::<A>() <= LONG_ARGS, "the arguments of a long message have at most 48 bytes") };
        LongRequest { run, name: Name::here() }
    }
}

impl<A: Pod> Reply<A> {
    /// A handler; a closure without captures or a `fn`.
    #[track_caller]
    pub const fn new(run: fn(&Target<'_>, Rank, A, &[u8])) -> Self {
        const { assert!(size_of::<A>() <= conduit::ARGS, "the arguments of a message have at most 64 bytes") };
        Reply { run, name: Name::here() }
    }
}

/// Bytes of arguments of a long message: the place and the length travel with them.
const LONG_ARGS: usize = conduit::ARGS - size_of::<Laid>();

/// What goes before the arguments of a long message.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Laid {
    offset: u64,
    len: u64,
}

/// A [`Request`], [`LongRequest`] or [`Reply`]: what can be [registered](Job::register_handlers).
pub trait Handler: sealed::Sealed {}

mod sealed {
    /// What a job needs of a handler.
    pub trait Sealed: Sync {
        fn entry(&'static self) -> &'static dyn partage_conduit::am::Handler;
        fn number(&self) -> &std::sync::atomic::AtomicU64;
    }
}

macro_rules! handler {
    ($($t:ident: <$($p:ident),*>),*) => {$(
        impl<$($p: Pod),*> Handler for $t<$($p),*> {}
        impl<$($p: Pod),*> sealed::Sealed for $t<$($p),*> {
            fn entry(&'static self) -> &'static dyn conduit::Handler {
                self
            }
            fn number(&self) -> &AtomicU64 {
                &self.name.number
            }
        }
        impl<$($p),*> fmt::Debug for $t<$($p),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "the handler at {}", self.name.at)
            }
        }
    )*};
}
handler!(Request: <A>, LongRequest: <A, T>, Reply: <A>);

impl<A: Pod> conduit::Handler for Request<A> {
    fn run(&self, arrival: &Arrival<'_>) {
        let (args, payload) = arrival.open::<A>();
        guard(arrival, &self.name, || (self.run)(Token(arrival), &Target(arrival), args, payload));
    }
}

impl<A: Pod, T: Pod> conduit::Handler for LongRequest<A, T> {
    fn run(&self, arrival: &Arrival<'_>) {
        let (bytes, payload) = arrival.open_bytes(size_of::<Laid>() + size_of::<A>());
        let (laid, args) = bytes.split_at(size_of::<Laid>());
        let (Laid { offset, len }, args) = (bytemuck::pod_read_unaligned(laid), bytemuck::pod_read_unaligned(args));
        let target = Target(arrival);
        // From another node they may have come along.
        if !payload.is_empty() {
            let there = At { rank: target.rank().0, offset };
            arrival.reach().write(there, payload).unwrap_or_else(|outside| arrival.bad(&outside));
        }
        let landed = Landed { ptr: GlobalPtr::new(target.rank(), offset), len: len as usize, target };
        guard(arrival, &self.name, || (self.run)(Token(arrival), &Target(arrival), args, landed));
    }
}

impl<A: Pod> conduit::Handler for Reply<A> {
    fn run(&self, arrival: &Arrival<'_>) {
        let (args, payload) = arrival.open::<A>();
        let from = Rank(arrival.source() as u32);
        guard(arrival, &self.name, || (self.run)(&Target(arrival), from, args, payload));
    }
}

/// A panic in a handler ends the job, whichever rank's thread ran it, and says whose message it was.
#[inline(always)]
fn guard(arrival: &Arrival<'_>, name: &Name, run: impl FnOnce()) {
    let _running = Inside(INSIDE.replace(HANDLER));
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        fail::handler_panicked(arrival.target(), arrival.source(), name.at, payload);
    }
}

/// Runs the operation of a reduction that its user has given. One that was started runs in the middle of any call of its rank that waits.
#[inline(always)]
pub(crate) fn in_operation<R>(run: impl FnOnce() -> R) -> R {
    let _running = Inside(INSIDE.replace(OPERATION));
    run()
}

/// What it was before.
struct Inside(u8);

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// In [`INSIDE`], if it is not zero.
const HANDLER: u8 = 1;
const OPERATION: u8 = 2;

thread_local! {
    /// Does this thread run a handler, or the operation of a reduction? It may do so in the middle of any call of its rank that waits.
    static INSIDE: Cell<u8> = const { Cell::new(0) };
}

/// Does this thread run a handler, or the operation of a reduction? Then its rank, of which something can be reached by a thread-local, does not wait.
#[inline(always)]
pub(crate) fn in_handler() -> bool {
    INSIDE.get() != 0
}

/// What it runs, and what that may do.
pub(crate) fn inside_what() -> &'static str {
    match INSIDE.get() {
        OPERATION => "in the operation of a reduction, which may run while its rank waits, and does not wait itself",
        _ => "in a handler, which reaches open memory of its target and does not wait",
    }
}

/// The right to reply to a request, once. Dropping it sends nothing.
#[derive(Debug)]
pub struct Token<'h>(&'h Arrival<'h>);

impl Token<'_> {
    /// The rank that sent the request.
    pub fn source(&self) -> Rank {
        Rank(self.0.source() as u32)
    }

    /// Runs `handler` in the source's process; never waits. What the request handler does after it is not covered by the
    /// source's [`quiet`](Job::quiet).
    #[inline]
    #[track_caller]
    pub fn reply<A: Pod>(self, handler: &'static Reply<A>, args: A, payload: &[u8]) {
        let me = self.0.target();
        let number = handler.name.number.load(Relaxed);
        if number >> 16 != self.0.job() {
            panic!("rank {me}: reply: {handler:?} is not registered; pass it to `register_handlers` on every rank");
        }
        check_payload(me, "reply", payload.len());
        self.0.reply(number as u16, &args, payload);
    }
}

#[inline(always)]
#[track_caller]
pub(crate) fn check_payload(me: usize, call: &str, len: usize) {
    if len > MEDIUM {
        too_large(me, call, len);
    }
}

#[cold]
#[track_caller]
fn too_large(me: usize, call: &str, len: usize) -> ! {
    panic!("rank {me}: {call}: a payload of {len} bytes; at most {MEDIUM} are possible, am_long takes any number")
}

/// What a handler sees of the rank for which it runs: who it is, and its open memory. Other handlers, and the rank
/// itself, may use that memory at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Target<'h>(&'h Arrival<'h>);

impl<'h> Target<'h> {
    /// The rank for which the handler runs.
    pub fn rank(&self) -> Rank {
        Rank(self.0.target() as u32)
    }

    /// Reads a value of this rank's memory.
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Pod>(&self, p: GlobalPtr<T>) -> T {
        match self.0.reach().get(self.own(p, "get")) {
            Some(value) => value,
            None => self.refuse(p, "get", 1),
        }
    }

    /// Writes a value to this rank's memory.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Pod>(&self, p: GlobalPtr<T>, value: T) {
        if self.0.reach().put(self.own(p, "put"), value).is_none() {
            self.refuse(p, "put", 1)
        }
    }

    /// Reads `dst.len()` values of this rank's memory.
    #[track_caller]
    pub fn get_slice<T: Pod>(&self, p: GlobalPtr<T>, dst: &mut [T]) {
        let (n, at) = (dst.len(), self.own(p, "get_slice"));
        if !p.is_aligned() || self.0.reach().read(at, bytemuck::cast_slice_mut(dst)).is_err() {
            self.refuse(p, "get_slice", n)
        }
    }

    /// Writes all of `src` to this rank's memory.
    #[track_caller]
    pub fn put_slice<T: Pod>(&self, p: GlobalPtr<T>, src: &[T]) {
        let at = self.own(p, "put_slice");
        if !p.is_aligned() || self.0.reach().write(at, bytemuck::cast_slice(src)).is_err() {
            self.refuse(p, "put_slice", src.len())
        }
    }

    /// A word of this rank's memory, for atomics.
    #[track_caller]
    pub fn at<T: Word>(&self, p: GlobalPtr<T>) -> Place<'h, T> {
        self.own(p, "at");
        Place::of_target(self.0, p)
    }

    #[track_caller]
    fn own<T: Pod>(&self, p: GlobalPtr<T>, call: &str) -> At {
        let me = self.rank();
        assert!(
            p.rank() == me,
            "{me}: {call} in a handler: {p:?} is memory of {}; a handler reaches its target's only",
            p.rank()
        );
        p.place()
    }

    #[cold]
    #[track_caller]
    fn refuse<T: Pod>(&self, p: GlobalPtr<T>, call: &str, n: usize) -> ! {
        p.refuse_by(self.0.reach(), format_args!("{}: {call} in a handler", self.rank()), n)
    }
}

/// Where the values of a long message lie: in open memory of the target.
#[derive(Clone, Copy, Debug)]
pub struct Landed<'h, T> {
    ptr: GlobalPtr<T>,
    len: usize,
    target: Target<'h>,
}

impl<T: Pod> Landed<'_, T> {
    /// Where they begin.
    pub fn ptr(&self) -> GlobalPtr<T> {
        self.ptr
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The i-th, by value.
    #[track_caller]
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "{}: value {i} of {} that landed", self.target.rank(), self.len);
        self.target.get(self.ptr.add(i))
    }

    /// All of them.
    #[track_caller]
    pub fn to_vec(&self) -> Vec<T> {
        let mut all = vec![T::zeroed(); self.len];
        self.target.get_slice(self.ptr, &mut all);
        all
    }
}

/// What a rank has done so far, by its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that ran in line: to ranks of this process.
    pub in_line: u64,
    /// Requests and remote calls through queues.
    pub queued: u64,
    /// Remote calls that this rank has run for others.
    pub served: u64,
    /// Requests and remote calls to other nodes.
    pub far: u64,
    /// Puts to other nodes by the network itself.
    pub far_puts: u64,
    /// Gets from other nodes by the network itself.
    pub far_gets: u64,
    /// How often a message to another node found too few credits.
    pub far_stalls: u64,
    /// How often credits were asked for, because a message could not go with all that this rank had.
    pub far_loans: u64,
    /// Signals to other nodes that were messages.
    pub far_signals: u64,
    /// Signals to other nodes that were puts of the network itself, which brought the notice.
    pub far_signals_data: u64,
    /// Signals to other nodes that were puts into a FIFO there.
    pub far_signals_fifo: u64,
    /// Bytes that messages of other nodes may take in this process (`PARTAGE_AM_MEMORY`).
    pub far_memory: u64,
    /// The most that they have taken.
    pub far_memory_most: u64,
    /// Messages that have come to this process and are not of this job; they were dropped.
    pub far_strays: u64,
    /// Puts over active messages.
    pub reference_puts: u64,
    /// Gets over active messages.
    pub reference_gets: u64,
    /// Atomics over active messages.
    pub reference_atomics: u64,
    /// Signals, with or without data, over active messages.
    pub reference_signals: u64,
    /// Messages with the runs of a [region](crate::region).
    pub packed: u64,
    /// What a network that wants memory registered has made of private memory; of all ranks of this process.
    pub registrations: Registrations,
}

impl Job {
    /// Collective: makes handlers known, once and before they are used, all ranks the same ones in the same order; ranks
    /// that differ all get the same message. May be called again with more.
    ///
    /// ```
    /// use partage::am::Request;
    /// static HELLO: Request<()> = Request::new(|token, target, (), words| {
    ///     println!("{} to {}: {}", token.source(), target.rank(), String::from_utf8_lossy(words));
    /// });
    /// partage::test(2, |job| {
    ///     job.register_handlers(&[&HELLO]);
    ///     job.am(job.neighbor(1), &HELLO, (), b"good morning");
    /// });
    /// ```
    #[track_caller]
    pub fn register_handlers(&self, handlers: &[&'static dyn Handler]) {
        let site = Site::here("register_handlers");
        let inner = &self.all().inner;
        let (me, node) = (self.rank(), inner.seat.node());
        // Their places in the image are the same in all processes.
        let places = handlers.iter().map(|h| inner.image.offset(std::ptr::from_ref(*h).addr()));
        let hash = places.fold(0xcbf2_9ce4_8422_2325u64, |hash, at| (hash ^ at).wrapping_mul(0x0100_0000_01b3));
        let what = (handlers.len() as u64) << 48 | hash >> 16;
        self.all().meet(Tag::Call(Call::Register, what), u64::MAX, move || site);
        for handler in handlers {
            let number = inner.registered.get() + reference::HANDLERS;
            let set = number < partage_conduit::ring::Head::HANDLERS && node.set_handler(number, handler.entry());
            assert!(set, "{me}: register: {number} handlers are too many");
            inner.registered.set(inner.registered.get() + 1);
            handler.number().store(node.serial() << 16 | u64::from(number), Relaxed);
        }
        // Nobody sends before all know them.
        self.all().meet(Tag::Plain, u64::MAX, move || site);
    }

    /// Sends a short message (empty payload) or a medium one to `to`. Waits, and serves others, while there is no room.
    #[inline]
    #[track_caller]
    pub fn am<A: Pod>(&self, to: Rank, handler: &'static Request<A>, args: A, payload: &[u8]) {
        let number = self.number("am", to, handler, &handler.name);
        check_payload(self.rank().index(), "am", payload.len());
        self.all().inner.request(Site::here("am"), to, number, bytemuck::bytes_of(&args), payload);
    }

    /// Puts all of `src` at `to`, then runs the handler on `to.rank()`, which finds it there. The arguments have at most 48
    /// bytes.
    ///
    /// ```
    /// use partage::am::LongRequest;
    /// use partage::prelude::*;
    /// // Leaves the sum before the values.
    /// static SUM: LongRequest<GlobalPtr<f64>, f64> =
    ///     LongRequest::new(|_token, target, sum, landed| target.put(sum, landed.to_vec().iter().sum()));
    /// partage::test(2, |job| {
    ///     job.register_handlers(&[&SUM]);
    ///     let there = job.alloc_all::<f64>(101).unwrap().on(job.neighbor(1));
    ///     job.am_long(there.add(1), &[0.5; 100], &SUM, there);
    ///     job.quiet();
    ///     assert_eq!(there.get(job), 50.0);
    ///     # job.barrier();
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn am_long<A: Pod, T: Pod>(&self, to: GlobalPtr<T>, src: &[T], handler: &'static LongRequest<A, T>, args: A) {
        let number = self.number("am_long", to.rank(), handler, &handler.name);
        let inner = &self.all().inner;
        // To another node one message is sooner there than a put and a message.
        let along = to.is_aligned() && inner.goes_along(Site::here("am_long"), to.place(), size_of_val(src));
        if !along {
            to.put_slice_for(self, "am_long", src);
        }
        let laid = Laid { offset: to.place().offset, len: src.len() as u64 };
        let mut both = [0; conduit::ARGS];
        let (front, rest) = both.split_at_mut(size_of::<Laid>());
        front.copy_from_slice(bytemuck::bytes_of(&laid));
        rest[..size_of::<A>()].copy_from_slice(bytemuck::bytes_of(&args));
        let both = &both[..size_of::<Laid>() + size_of::<A>()];
        let payload = if along { bytemuck::cast_slice(src) } else { &[] };
        inner.request(Site::here("am_long"), to.rank(), number, both, payload);
    }

    /// One round of progress: runs what has arrived for me. For long computations; every call that waits does this too.
    #[inline]
    pub fn poll(&self) {
        self.all().inner.look();
    }

    /// What I have done so far, by its way.
    pub fn counters(&self) -> Counters {
        let inner = &self.all().inner;
        let sent = inner.seat.sent();
        let (far_puts, far_gets) = inner.seat.far_transfers();
        let (far_stalls, far_loans) = inner.seat.far_stalls();
        let (far_memory, far_memory_most, far_strays) = inner.seat.node().far_memory();
        let signals = inner.seat.far_signals();
        Counters {
            in_line: sent.in_line,
            queued: sent.queued,
            far: sent.far,
            far_puts,
            far_gets,
            far_stalls,
            far_loans,
            far_memory,
            far_memory_most,
            far_strays,
            far_signals: signals.message,
            far_signals_data: signals.data,
            far_signals_fifo: signals.fifo,
            served: inner.calls.served(),
            registrations: inner.seat.node().net().map(|net| net.registrations()).unwrap_or_default(),
            ..inner.reference.counters()
        }
    }

    #[inline(always)]
    #[track_caller]
    fn number(&self, call: &str, to: Rank, handler: &dyn fmt::Debug, name: &Name) -> u16 {
        self.all().inner.check_rank(call, to);
        let number = name.number.load(Relaxed);
        if number >> 16 != self.all().inner.serial {
            self.not_registered(call, handler);
        }
        number as u16
    }

    #[cold]
    #[track_caller]
    fn not_registered(&self, call: &str, handler: &dyn fmt::Debug) -> ! {
        panic!("{}: {call}: {handler:?} is not registered; pass it to `register_handlers` on every rank", self.rank())
    }
}
