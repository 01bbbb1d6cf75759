//! Atomics on words of open memory and on elements of arrays: [`Place`].
//!
//! Every word has one arbiter, a CPU of the node on which it lies, whichever rank acts: ranks of that node do it there
//! themselves, others ask. (The words of a [domain](crate::domain) may have the network for one.) [`Word`]s are integers, floats and pointers of 32 and 64 bits; what a type does not have ([`Number`],
//! [`Bits`]) does not compile.
//!
//! # Order
//! An operation is *acquire and release*, unless told otherwise: what a rank put before it published something by an atomic
//! is seen by whoever has read it by one. [`relaxed`](Place::relaxed) takes that away. [`strict`](Place::strict)
//! adds that the operation is ordered with every access of its rank before and after it, and that all strict operations of
//! the job have one order (UPC's strict accesses). `docs/memory-model.md` says what orders what.
//!
//! # Blocking or not
//! A call returns when the operation has been done. [`start`](Place::start) gives the same operations as
//! [events](crate::scope::Event); a [`Batch`] gathers those whose result nobody wants, by destination.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let tickets = job.alloc_all::<u64>(1).unwrap().on(Rank(0));
//!     let mine = tickets.at(job).fetch_add(1);
//!     assert!(mine < 4);
//!     let sums = job.array::<f64>(8).unwrap();
//!     sums.at(5).add(0.25);                                 // a float, and nobody wants the old one
//!     let best = sums.at(7).start().fetch_max(mine as f64); // meanwhile
//!     assert!(best.wait() <= 3.0);
//!     job.barrier();
//!     assert_eq!((tickets.at(job).load(), sums.get(5), sums.get(7)), (4, 1.0, 3.0));
//!     # job.barrier();
//! });
//! ```

use crate::array::SharedArray;
use crate::domain::Rules;
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::scope::{Event, Given};
use bytemuck::Pod;
use partage_conduit::am::Arrival;
use partage_conduit::contract::{At, Conduit};
use partage_conduit::record::Site;
use partage_conduit::reference;
use partage_conduit::shm::rma::Mapped;
use partage_conduit::sync::full_fence;
use partage_conduit::word::{Atomic, Kind, Op, Order};
use std::rc::Rc;

/// A type that atomics load, store, swap and compare: `u32`, `u64`, `usize`, `i32`, `i64`, `isize`, `f32`, `f64` and
/// [`GlobalPtr`]. What is compared are the bits: a float that is not a number equals itself, and zeros of different signs
/// differ.
pub trait Word: Pod + sealed::Word {}

/// A [`Word`] with arithmetic.
pub trait Number: Word + sealed::Number {}

/// A [`Number`] with operations on its bits.
pub trait Bits: Number {}

mod sealed {
    use partage_conduit::word::Kind;

    pub trait Word: Copy {
        const KIND: Kind;
        const IS_NUMBER: bool;
        fn to_word(self) -> u64;
        fn from_word(bits: u64) -> Self;
    }
    pub trait Number {
        fn negated(self) -> Self;
    }
}

macro_rules! words {
    ($($t:ty: $kind:ident, $to:expr, $from:expr, $negated:expr;)*) => {$(
        impl Word for $t {}
        impl Number for $t {}
        impl sealed::Word for $t {
            const KIND: Kind = Kind::$kind;
            const IS_NUMBER: bool = true;
            #[inline(always)]
            fn to_word(self) -> u64 {
                $to(self)
            }
            #[inline(always)]
            fn from_word(bits: u64) -> Self {
                $from(bits)
            }
        }
        impl sealed::Number for $t {
            #[inline(always)]
            fn negated(self) -> Self {
                $negated(self)
            }
        }
    )*};
}
macro_rules! integers {
    ($($t:ident: $kind:ident, $unsigned:ty;)*) => {
        words!($($t: $kind, |x| x as $unsigned as u64, |bits| bits as $t, $t::wrapping_neg;)*);
        $(impl Bits for $t {})*
    };
}
integers! {
    u32: Unsigned, u32;
    u64: Unsigned, u64;
    usize: Unsigned, usize;
    i32: Signed, u32;
    i64: Signed, u64;
    isize: Signed, usize;
}
words! {
    f32: Float, |x| f32::to_bits(x).into(), |bits| f32::from_bits(bits as u32), |x: f32| -x;
    f64: Float, f64::to_bits, f64::from_bits, |x: f64| -x;
}
impl<T: 'static> Word for GlobalPtr<T> {}
impl<T: 'static> sealed::Word for GlobalPtr<T> {
    const KIND: Kind = Kind::Unsigned;
    const IS_NUMBER: bool = false;
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.bits()
    }
    #[inline(always)]
    fn from_word(bits: u64) -> Self {
        GlobalPtr::from_bits(bits)
    }
}

/// A word in some rank's memory, on which operations are atomic: what [`GlobalPtr::at`] and
/// [`SharedArray::at`](crate::array::SharedArray::at) give, and [`AtomicDomain::at`](crate::domain::AtomicDomain::at).
#[derive(Debug)]
pub struct Place<'j, T> {
    by: By<'j, T>,
    /// Where it is, if it can be reached by a copy: found once, so that operations one after the other do not look again.
    near: Option<Mapped<'j, T>>,
    order: Order,
    /// By whose rules, if it is in a domain.
    domain: Option<&'j Rules>,
}

impl<T> Clone for Place<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Place<'_, T> {}

#[derive(Debug)]
enum By<'j, T> {
    Rank(&'j Job, GlobalPtr<T>),
    Handler(&'j Arrival<'j>, GlobalPtr<T>),
    /// An element, which was found to be one.
    Array(&'j SharedArray<T>, usize),
}

impl<T> Clone for By<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for By<'_, T> {}

impl<T: Word> GlobalPtr<T> {
    /// This word, for atomics.
    #[inline(always)]
    pub fn at(self, job: &Job) -> Place<'_, T> {
        Place { by: By::Rank(job, self), near: job.reach().word(self.place()), order: Order::Both, domain: None }
    }
}

/// The same word, for operations that are started and waited for later: what [`Place::start`] gives. Each gives an
/// [`Event`]; one that is dropped is not cancelled, and [`quiet`](Job::quiet) completes it.
#[derive(Debug)]
pub struct Starting<'j, T>(Place<'j, T>);

impl<T> Clone for Starting<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Starting<'_, T> {}

/// Every operation, once for those that wait and once for those that are started.
macro_rules! operations {
    ($($bound:ident { $($(#[$doc:meta])* $name:ident $(($arg:ident))? $(-> $old:ident)?: $op:expr $(, $value:expr)?;)* })*) => {
        $(#[allow(clippy::should_implement_trait)]
        impl<'j, T: $bound> Place<'j, T> {
            $($(#[$doc])*
            #[inline(always)]
            #[track_caller]
            pub fn $name(self $(, $arg: T)?) $(-> $old)? {
                operations!(@done self.apply(stringify!($name), $op, operations!(@value T $(, $arg)? $(, $value)?), T::zeroed()) $(, $old)?)
            })*
        }
        #[allow(clippy::should_implement_trait)]
        impl<'j, T: $bound> Starting<'j, T> {
            $($(#[$doc])*
            #[inline]
            #[track_caller]
            pub fn $name(self $(, $arg: T)?) -> Event<'j, operations!(@type $($old)?)> {
                let read = operations!(@read T $(, $old)?);
                self.0.begin(stringify!($name), $op, operations!(@value T $(, $arg)? $(, $value)?), T::zeroed(), read)
            })*
        })*
    };
    (@value $t:ident) => { $t::zeroed() };
    (@value $t:ident, $arg:ident) => { $arg };
    (@value $t:ident, $arg:ident, $value:expr) => { $value($arg) };
    (@done $call:expr) => { { $call; } };
    (@done $call:expr, $old:ident) => { $call };
    (@type) => { () };
    (@type $old:ident) => { $old };
    (@read $t:ident) => { |_, _| () };
    (@read $t:ident, $old:ident) => { |old, _| $t::from_word(old) };
}

operations! {
    Word {
        /// Reads it.
        load -> T: Op::Load;
        /// Writes it.
        store(value): Op::Store;
        /// Writes it; what it was.
        swap(value) -> T: Op::Swap;
    }
    Number {
        /// Adds; integers wrap around.
        add(value): Op::Add;
        /// Subtracts; integers wrap around.
        sub(value): Op::Add, T::negated;
        /// Multiplies; integers wrap around.
        mul(value): Op::Mul;
        /// Makes it the smaller of it and `value`; of floats the one that is a number.
        min(value): Op::Min;
        /// Makes it the larger of it and `value`; of floats the one that is a number.
        max(value): Op::Max;
        /// Adds; what it was.
        fetch_add(value) -> T: Op::Add;
        /// Subtracts; what it was.
        fetch_sub(value) -> T: Op::Add, T::negated;
        /// Multiplies; what it was.
        fetch_mul(value) -> T: Op::Mul;
        /// The smaller of it and `value`; what it was.
        fetch_min(value) -> T: Op::Min;
        /// The larger of it and `value`; what it was.
        fetch_max(value) -> T: Op::Max;
    }
    Bits {
        /// Bitwise and.
        and(value): Op::And;
        /// Bitwise or.
        or(value): Op::Or;
        /// Bitwise exclusive or.
        xor(value): Op::Xor;
        /// Bitwise and; what it was.
        fetch_and(value) -> T: Op::And;
        /// Bitwise or; what it was.
        fetch_or(value) -> T: Op::Or;
        /// Bitwise exclusive or; what it was.
        fetch_xor(value) -> T: Op::Xor;
    }
}

impl<'j, T: Word> Place<'j, T> {
    pub(crate) fn of_target(target: &'j Arrival<'j>, ptr: GlobalPtr<T>) -> Self {
        let near = target.reach().word(ptr.place());
        Place { by: By::Handler(target, ptr), near, order: Order::Both, domain: None }
    }

    #[inline(always)]
    pub(crate) fn of_array(array: &'j SharedArray<T>, i: usize, near: Option<Mapped<'j, T>>) -> Self {
        Place { by: By::Array(array, i), near, order: Order::Both, domain: None }
    }

    /// The same word in a domain.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn within(self, rules: &'j Rules) -> Self {
        if matches!(self.by, By::Handler(..)) {
            rules.refuse_handler();
        }
        Place { near: if rules.is_native { None } else { self.near }, domain: Some(rules), ..self }
    }

    /// The same word, for operations that order nothing else.
    #[inline(always)]
    pub fn relaxed(self) -> Self {
        Place { order: Order::Relaxed, ..self }
    }

    /// The same word, for operations that are ordered with all others of their ranks. Puts that are under way to other
    /// nodes are waited for first, as by a [fence](Job::fence).
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let flags = job.array::<u32>(2).unwrap();
    ///     let (me, other) = (job.rank().index(), 1 - job.rank().index());
    ///     flags.at(me).strict().store(1);
    ///     let first = flags.at(other).strict().load() == 0;     // not on both ranks
    ///     # let firsts = job.alloc_all::<u64>(1).unwrap().on(partage::prelude::Rank(0));
    ///     # firsts.at(job).add(first.into());
    ///     # job.barrier();
    ///     # assert!(firsts.at(job).load() < 2);
    ///     # job.barrier();
    /// });
    /// ```
    #[inline(always)]
    pub fn strict(self) -> Self {
        Place { order: Order::Strict, ..self }
    }

    /// The same word, for operations that are started and waited for later.
    #[inline(always)]
    pub fn start(self) -> Starting<'j, T> {
        Starting(self)
    }

    /// Writes `new` if it is `expected`; what it was, as `Err` if that was something else.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange(self, expected: T, new: T) -> Result<T, T> {
        exchanged(self.apply("compare_exchange", Op::CompareExchange, new, expected), expected.to_word())
    }

    #[inline(always)]
    fn what(self, op: Op, operand: T, expected: T) -> Atomic {
        let (kind, width, order) = (T::KIND, const { size_of::<T>() as u8 }, self.order);
        Atomic { op, kind, width, order, operand: operand.to_word(), expected: expected.to_word() }
    }

    /// The same for a slow path. A new value, so that on the others nothing has to be in memory.
    #[inline(always)]
    fn afar(self) -> Self {
        Place { by: self.by, near: None, order: self.order, domain: self.domain }
    }

    #[inline(always)]
    #[track_caller]
    fn apply(self, call: &'static str, op: Op, operand: T, expected: T) -> T {
        if let Some(rules) = self.domain {
            rules.check(call, op);
        }
        if self.order == Order::Strict {
            self.afar().settle(call);
        }
        // No closure: it would not know the caller's place.
        T::from_word(match self.near {
            Some(word) => word.atomic(self.what(op, operand, expected)),
            None => self.afar().far(call, self.what(op, operand, expected)),
        })
    }

    #[inline]
    #[track_caller]
    fn begin<R>(self, call: &'static str, op: Op, operand: T, expected: T, read: fn(u64, u64) -> R) -> Event<'j, R> {
        let what = self.what(op, operand, expected);
        if let Some(rules) = self.domain {
            rules.check(call, op);
        }
        if self.order == Order::Strict {
            self.afar().settle(call);
        }
        match self.near {
            Some(word) => Event::ready(read(word.atomic(what), what.expected)),
            None => self.afar().begin_far(call, what, read),
        }
    }

    /// What a strict operation comes after: what is under way to other nodes.
    #[inline]
    #[track_caller]
    fn settle(self, call: &'static str) {
        match self.by {
            By::Rank(job, _) => job.all().inner.complete_far(Site::here(call)),
            By::Array(array, _) => array.inner.complete_far(Site::here(call)),
            By::Handler(..) => {}
        }
    }

    /// Where memory is not mapped, or the pointer is wrong.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn far(self, call: &'static str, what: Atomic) -> u64 {
        let (inner, site, at) = self.question(call);
        let old = match self.is_native() {
            true => inner.atomic_native(site, at, what),
            false => inner.atomic_far(site, at, what),
        };
        match old {
            Some(old) => old,
            None => self.refuse(call),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn begin_far<R>(self, call: &'static str, what: Atomic, read: fn(u64, u64) -> R) -> Event<'j, R> {
        let (inner, site, at) = self.question(call);
        let slot = match self.is_native() {
            true => inner.start_atomic_native(site, at, what),
            false => inner.start_atomic_far(site, at, what),
        };
        let Some(slot) = slot else { self.refuse(call) };
        Event::asked(Given::new(inner.clone(), site, slot), what.expected, read)
    }

    fn is_native(self) -> bool {
        self.domain.is_some_and(|rules| rules.is_native)
    }

    /// Whom to ask, for which call, about which place; panics if that is wrong or there is nobody to ask.
    #[track_caller]
    fn question(self, call: &'static str) -> (&'j Rc<Inner>, Site, At) {
        let site = Site::here(call);
        if self.order == Order::Strict {
            full_fence();
        }
        match self.by {
            By::Rank(job, ptr) if ptr.is_aligned() => (&job.all().inner, site, ptr.place()),
            By::Array(array, i) => {
                array.inner.is_not_over(site);
                (&array.inner, site, array.place_of(i))
            }
            By::Rank(..) | By::Handler(..) => self.refuse(call),
        }
    }

    #[cold]
    #[track_caller]
    fn refuse(self, call: &str) -> ! {
        match self.by {
            By::Rank(job, ptr) => ptr.refuse(job, call, 1),
            By::Handler(arrival, ptr) => {
                let who = format_args!("rank {}: {call} in a handler", arrival.target());
                ptr.refuse_by(arrival.reach(), who, 1)
            }
            By::Array(..) => unreachable!("an element of an array"),
        }
    }
}

impl<'j, T: Word> Starting<'j, T> {
    /// Writes `new` if it is `expected`; what it was, as `Err` if that was something else.
    #[inline]
    #[track_caller]
    pub fn compare_exchange(self, expected: T, new: T) -> Event<'j, Result<T, T>> {
        self.0.begin("compare_exchange", Op::CompareExchange, new, expected, |old, expected| {
            exchanged(T::from_word(old), expected)
        })
    }
}

#[inline(always)]
fn exchanged<T: Word>(old: T, expected: u64) -> Result<T, T> {
    if old.to_word() == expected { Ok(old) } else { Err(old) }
}

/// Operations of one message.
const MOST_IN_BATCH: usize = 1024;

/// Gathers operations whose results nobody wants: what [`Job::batch`] gives. Those on words of this node are done at once; those
/// for another node travel together, up to 1024 in a message, and are under way while more are gathered. They are
/// relaxed. All have been done when the batch is dropped.
///
/// ```
/// partage::test(4, |job| {
///     let table = job.array::<u64>(1000).unwrap();
///     let mut batch = job.batch();
///     for k in 0..10_000 {
///         batch.add(table.at(k * 7919 % 1000), 1);
///     }
///     drop(batch);
///     job.barrier();
///     assert_eq!(table.get(3), 40);
///     # job.barrier();
/// });
/// ```
/// Arrays of which it has elements stay borrowed while it lives: it may not act on them when they are owned, or gone.
/// ```compile_fail,E0502
/// # use partage::prelude::*;
/// # partage::test(2, |job| {
/// let mut table = job.array::<u64>(1000).unwrap();
/// let mut batch = job.batch();
/// batch.add(table.at(3), 1);
/// table.own(|mine| mine.fill(0));
/// batch.complete();
/// # });
/// ```
#[derive(Debug)]
pub struct Batch<'j> {
    job: &'j Job,
    /// What goes to each rank: operation, and words and operands. Empty until there is something.
    to: Vec<(u64, Vec<[u64; 2]>)>,
    /// Where the answers come.
    sent: Option<Given>,
    site: Site,
}

impl Job {
    /// A batch of atomics.
    #[track_caller]
    pub fn batch(&self) -> Batch<'_> {
        Batch { job: self, to: vec![], sent: None, site: Site::here("a batch of atomics") }
    }
}

macro_rules! batched {
    ($($bound:ident { $($(#[$doc:meta])* $name:ident: $op:expr $(, $value:expr)?;)* })*) => {
        impl<'j> Batch<'j> {$($($(#[$doc])*
            #[inline]
            #[track_caller]
            pub fn $name<T: $bound>(&mut self, place: Place<'j, T>, value: T) {
                let what = place.relaxed().what($op, operations!(@value T, value $(, $value)?), T::zeroed());
                if let Some(rules) = place.domain {
                    rules.check(stringify!($name), $op);
                }
                match place.near {
                    Some(word) => _ = word.atomic(what),
                    None => self.gather(stringify!($name), place.afar(), what),
                }
            })*)*
        }
    };
}

batched! {
    Word {
        /// Writes it.
        store: Op::Store;
    }
    Number {
        /// Adds; integers wrap around.
        add: Op::Add;
        /// Subtracts; integers wrap around.
        sub: Op::Add, T::negated;
        /// Multiplies; integers wrap around.
        mul: Op::Mul;
        /// Makes it the smaller of it and `value`.
        min: Op::Min;
        /// Makes it the larger of it and `value`.
        max: Op::Max;
    }
    Bits {
        /// Bitwise and.
        and: Op::And;
        /// Bitwise or.
        or: Op::Or;
        /// Bitwise exclusive or.
        xor: Op::Xor;
    }
}

impl Batch<'_> {
    /// Does all that was gathered; the batch can be used again.
    pub fn complete(&mut self) {
        (0..self.to.len()).for_each(|rank| self.send(rank));
        if let Some(sent) = self.sent.take() {
            sent.complete();
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn gather<T: Word>(&mut self, call: &'static str, place: Place<'_, T>, what: Atomic) {
        let (inner, site, at) = place.question(call);
        if place.is_native() {
            let slot = self.one_more();
            if inner.start_native(site, at, what, slot).is_none() {
                // No answer comes.
                let answered = inner.seat.landing().answers.answer(slot, 0);
                debug_assert!(answered);
                place.refuse(call);
            }
            return;
        }
        if !inner.may_ask_for_atomic(site, at, what) {
            place.refuse(call);
        }
        if self.to.is_empty() {
            self.to.resize_with(self.job.size(), Default::default);
        }
        let (rank, [head, operand, _]) = (at.rank as usize, what.encode());
        if self.to[rank].0 != head || self.to[rank].1.len() == MOST_IN_BATCH {
            self.send(rank);
            self.to[rank].0 = head;
        }
        self.to[rank].1.push([at.offset, operand]);
    }

    fn send(&mut self, rank: usize) {
        if !self.to[rank].1.is_empty() {
            let slot = self.one_more();
            let (head, pairs) = &mut self.to[rank];
            let pairs = std::mem::take(pairs);
            self.job.all().inner.send_atomics(self.site, rank as u32, slot, *head, &pairs);
        }
    }

    /// The slot of all that is sent, to which one more answer will come.
    fn one_more(&mut self) -> u32 {
        let (inner, site) = (&self.job.all().inner, self.site);
        let answers = &inner.seat.landing().answers;
        let sent = self.sent.get_or_insert_with(|| Given::new(inner.clone(), site, answers.take(0)));
        answers.one_more(sent.slot);
        sent.slot
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.complete();
    }
}

/// The operation that adds a value, and how its result is read.
pub(crate) fn adding<T: Number>(value: T) -> (Atomic, fn(u64) -> T) {
    let (kind, width) = (T::KIND, size_of::<T>() as u8);
    let what = Atomic { op: Op::Add, kind, width, order: Order::Both, operand: value.to_word(), expected: 0 };
    (what, T::from_word)
}

impl Inner {
    /// An atomic where memory is not mapped; `None` if the place is not one, or needs no other way.
    pub fn atomic_far(&self, site: Site, at: At, what: Atomic) -> Option<u64> {
        let asks = self.asks_for_atomic(at);
        asks.then(|| reference::atomic(&self.seat, site, at, what)).and_then(|old| self.unless_outside(old))
    }

    /// Starts one: the slot to which its value comes.
    fn start_atomic_far(&self, site: Site, at: At, what: Atomic) -> Option<u32> {
        let asks = self.asks_for_atomic(at);
        asks.then(|| reference::start_atomic(&self.seat, site, at, what)).and_then(|slot| self.unless_outside(slot))
    }

    /// Is that a word on which others do atomics for us?
    fn may_ask_for_atomic(&self, site: Site, at: At, what: Atomic) -> bool {
        self.is_not_over(site);
        self.asks_for_atomic(at) && reference::is_word(&self.seat, at, what)
    }

    /// Sends a message of atomics, whose answer comes to this slot.
    fn send_atomics(&self, site: Site, rank: u32, slot: u32, head: u64, pairs: &[[u64; 2]]) {
        let sent = reference::send_atomics(&self.seat, site, rank, slot, head, bytemuck::cast_slice(pairs));
        self.unless_over(sent);
    }

    fn asks_for_atomic(&self, at: At) -> bool {
        let forced = self.reference.is_forced();
        if forced {
            self.reference.count(|c| c.reference_atomics += 1);
        }
        forced || self.seat.is_far(at)
    }
}
