//! Atomics on words of open memory and on elements of arrays: [`Place`].
//!
//! Every word has one arbiter, a CPU of the node on which it lies, whichever rank acts. All operations are acquire and
//! release: what a rank put before it published something by an atomic is seen by whoever has read it by one.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let tickets = job.alloc_all::<u64>(1).unwrap().on(Rank(0));
//!     let mine = tickets.at(job).fetch_add(1);
//!     assert!(mine < 4);
//!     job.barrier();
//!     assert_eq!(tickets.at(job).load(), 4);
//!     # job.barrier();
//! });
//! ```

use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::team::Rank;
use bytemuck::Pod;
use partage_conduit::am::Arrival;
use partage_conduit::contract::{At, Atomic, Op};
use partage_conduit::record::Site;
use std::marker::PhantomData;

/// A type on which atomics work: `u32`, `u64`, `i32`, `i64`.
pub trait Word: Pod + PartialEq + sealed::Sealed {}

mod sealed {
    pub trait Sealed: Copy {
        /// Is the order of its values that of signed numbers?
        const SIGNED: bool;
        fn to_bits(self) -> u64;
        fn from_bits(bits: u64) -> Self;
        fn negated(self) -> Self;
    }
}

macro_rules! word {
    ($($t:ty: $unsigned:ty),*) => {$(
        impl Word for $t {}
        impl sealed::Sealed for $t {
            const SIGNED: bool = <$t>::MIN != 0;
            #[inline(always)]
            fn to_bits(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
        }
    )*};
}
word!(u32: u32, u64: u64, i32: u32, i64: u64);

/// A word in some rank's memory, on which operations are atomic: what [`GlobalPtr::at`] and
/// [`SharedArray::at`](crate::array::SharedArray::at) give.
#[derive(Debug, Clone, Copy)]
pub struct Place<'j, T> {
    by: By<'j>,
    at: At,
    _t: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, Copy)]
enum By<'j> {
    Rank(&'j Job),
    Handler(&'j Arrival<'j>),
    /// An element, which was found to be one.
    Array(&'j Inner),
}

impl<T: Word> GlobalPtr<T> {
    /// This word, for atomics.
    #[inline(always)]
    pub fn at(self, job: &Job) -> Place<'_, T> {
        Place { by: By::Rank(job), at: self.place(), _t: PhantomData }
    }
}

impl<'j, T: Word> Place<'j, T> {
    pub(crate) fn of_target(target: &'j Arrival<'j>, ptr: GlobalPtr<T>) -> Self {
        Place { by: By::Handler(target), at: ptr.place(), _t: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn of_array(inner: &'j Inner, at: At) -> Self {
        Place { by: By::Array(inner), at, _t: PhantomData }
    }

    /// Reads it.
    #[inline]
    #[track_caller]
    pub fn load(self) -> T {
        self.apply("load", Op::Load, T::zeroed(), T::zeroed())
    }

    /// Writes it.
    #[inline]
    #[track_caller]
    pub fn store(self, value: T) {
        self.apply("store", Op::Swap, value, T::zeroed());
    }

    /// Writes it; what it was.
    #[inline]
    #[track_caller]
    pub fn swap(self, value: T) -> T {
        self.apply("swap", Op::Swap, value, T::zeroed())
    }

    /// Writes `new` if it is `expected`; what it was, as `Err` if that was something else.
    #[inline]
    #[track_caller]
    pub fn compare_exchange(self, expected: T, new: T) -> Result<T, T> {
        let old = self.apply("compare_exchange", Op::CompareExchange, new, expected);
        if old == expected { Ok(old) } else { Err(old) }
    }

    /// Adds, wrapping around; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_add(self, value: T) -> T {
        self.apply("fetch_add", Op::Add, value, T::zeroed())
    }

    /// Subtracts, wrapping around; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_sub(self, value: T) -> T {
        self.apply("fetch_sub", Op::Add, value.negated(), T::zeroed())
    }

    /// Bitwise and; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_and(self, value: T) -> T {
        self.apply("fetch_and", Op::And, value, T::zeroed())
    }

    /// Bitwise or; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_or(self, value: T) -> T {
        self.apply("fetch_or", Op::Or, value, T::zeroed())
    }

    /// Bitwise exclusive or; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_xor(self, value: T) -> T {
        self.apply("fetch_xor", Op::Xor, value, T::zeroed())
    }

    /// The smaller of it and `value`; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_min(self, value: T) -> T {
        self.apply("fetch_min", if T::SIGNED { Op::MinSigned } else { Op::Min }, value, T::zeroed())
    }

    /// The larger of it and `value`; what it was.
    #[inline]
    #[track_caller]
    pub fn fetch_max(self, value: T) -> T {
        self.apply("fetch_max", if T::SIGNED { Op::MaxSigned } else { Op::Max }, value, T::zeroed())
    }

    #[inline(always)]
    #[track_caller]
    fn apply(self, call: &'static str, op: Op, operand: T, expected: T) -> T {
        let what = Atomic::new(op, size_of::<T>(), operand.to_bits(), expected.to_bits());
        let reach = match self.by {
            By::Rank(job) => job.reach(),
            By::Handler(arrival) => arrival.reach(),
            By::Array(inner) => &inner.guarded,
        };
        // No closure: it would not know the caller's place.
        T::from_bits(match reach.atomic(self.at, what) {
            Some(old) => old,
            None => self.far(call, what),
        })
    }

    #[cold]
    #[track_caller]
    fn far(self, call: &'static str, what: Atomic) -> u64 {
        let ptr = || GlobalPtr::<T>::new(Rank(self.at.rank), self.at.offset);
        match self.by {
            By::Rank(job) if ptr().is_aligned() => match job.all().inner.atomic_far(Site::here(call), self.at, what) {
                Some(old) => old,
                None => ptr().refuse(job, call, 1),
            },
            By::Rank(job) => ptr().refuse(job, call, 1),
            By::Handler(arrival) => {
                let who = format_args!("rank {}: {call} in a handler", arrival.target());
                ptr().refuse_by(arrival.reach(), who, 1)
            }
            By::Array(inner) => {
                let (at, site) = (At::guarded(self.at.rank, self.at.offset), Site::here(call));
                inner.is_not_over(site);
                inner.atomic_far(site, at, what).expect("an element of an array")
            }
        }
    }
}
