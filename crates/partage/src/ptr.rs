//! [`GlobalPtr`]: 64 plain bits that name a place in the open memory of any rank.
//!
//! # What it promises
//! A pointer is checked at every use: rank, bounds, alignment. It may be copied, stored in shared memory, sent and
//! forged; one that points outside every segment panics on the rank that uses it and touches nothing; one that points to
//! memory that is not allocated reads and writes plain bytes there. Open memory is never referred to by safe
//! references, so whatever a pointer reaches is plain data ([`Pod`]), possibly old, possibly mixed, never invalid.
//!
//! Puts and gets are *relaxed*: they copy, and nothing orders them but barriers and fences (see
//! [`partage_conduit::contract`]).
//!
//! ```
//! partage::test(4, |job| {
//!     let mine = job.alloc_all::<u64>(1).unwrap();      // one u64 on every rank, at the same offset
//!     let right = job.neighbor(1);
//!     mine.on(right).put(job, 100 + job.rank().0 as u64);
//!     job.barrier();
//!     assert_eq!(mine.get(job), 100 + job.neighbor(-1).0 as u64);
//!     job.barrier();                                     // nobody frees what a neighbour still reads
//!     job.free_all(mine);
//! });
//! ```

use crate::job::{Inner, Job};
use crate::scope::{Event, Transfer};
use crate::team::Rank;
use bytemuck::{Pod, Zeroable};
use partage_conduit::contract::At;
use partage_conduit::ofi::rma::Started;
use partage_conduit::record::Site;
use partage_conduit::shm::rma::Reach;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::rc::Rc;
use std::{fmt, hash};

/// Bytes of a fill or a copy that travel at a time.
const AT_A_TIME: usize = 64 << 10;
const OFFSET_BITS: u32 = 44;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;

/// A pointer to a `T` in the open memory of some rank: 20 bits of rank, 44 bits of offset. All zeros is null.
#[repr(transparent)]
pub struct GlobalPtr<T> {
    bits: u64,
    _t: PhantomData<fn() -> T>,
}

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for GlobalPtr<T> {}
impl<T> PartialEq for GlobalPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}
impl<T> Eq for GlobalPtr<T> {}
impl<T> PartialOrd for GlobalPtr<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
/// By rank, then by place.
impl<T> Ord for GlobalPtr<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bits.cmp(&other.bits)
    }
}
impl<T> hash::Hash for GlobalPtr<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}
impl<T> Default for GlobalPtr<T> {
    fn default() -> Self {
        Self::from_bits(0)
    }
}
// SAFETY: transparent over u64, and all zeros is the null pointer.
unsafe impl<T: 'static> Zeroable for GlobalPtr<T> {}
// SAFETY: transparent over u64 without padding; every bit pattern is a value, because every use is checked.
unsafe impl<T: 'static> Pod for GlobalPtr<T> {}

impl<T> fmt::Debug for GlobalPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            0 => write!(f, "null"),
            _ => write!(f, "{:#x}@{}", self.bits & OFFSET, self.bits >> OFFSET_BITS),
        }
    }
}

impl<T> GlobalPtr<T> {
    pub(crate) const fn from_bits(bits: u64) -> Self {
        GlobalPtr { bits, _t: PhantomData }
    }

    pub(crate) fn bits(self) -> u64 {
        self.bits
    }

    pub(crate) fn new(rank: Rank, offset: u64) -> Self {
        debug_assert!(offset <= OFFSET && rank.0 < 1 << 20);
        Self::from_bits(u64::from(rank.0) << OFFSET_BITS | offset)
    }

    #[inline(always)]
    pub(crate) fn place(self) -> At {
        At { rank: (self.bits >> OFFSET_BITS) as u32, offset: self.bits & OFFSET }
    }
}

impl<T: Pod> GlobalPtr<T> {
    /// The pointer that points nowhere.
    pub const NULL: Self = Self::from_bits(0);

    /// Is this the null pointer?
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    /// The rank in whose segment it points (its affinity).
    pub fn rank(self) -> Rank {
        Rank(self.place().rank)
    }

    /// The same offset on another rank: where that rank's part of a symmetric allocation is.
    pub fn on(self, rank: Rank) -> Self {
        let rank = u64::from(rank.0).min((1 << 20) - 1);
        Self::from_bits(rank << OFFSET_BITS | self.bits & OFFSET)
    }

    /// `n` elements further. Checked when it is used, like any pointer. What lies outside of all segments stays there: it does not
    /// come back by further steps.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, n: usize) -> Self {
        self.moved(n, u64::checked_add)
    }

    /// `n` elements before this one. Checked when it is used.
    #[allow(clippy::should_implement_trait)]
    pub fn sub(self, n: usize) -> Self {
        self.moved(n, u64::checked_sub)
    }

    /// By so many elements. The last offset is that of what lies outside: no segment has it.
    #[inline(always)]
    fn moved(self, n: usize, step: impl Fn(u64, u64) -> Option<u64>) -> Self {
        let by = (n as u64).checked_mul(size_of::<T>() as u64);
        let inside = Some(self.bits & OFFSET).filter(|&offset| offset != OFFSET);
        let offset = inside.zip(by).and_then(|(offset, by)| step(offset, by)).unwrap_or(OFFSET);
        Self::from_bits(self.bits & !OFFSET | offset.min(OFFSET))
    }

    /// How many elements this lies after `origin`; both on the same rank.
    #[track_caller]
    pub fn offset_from(self, origin: Self) -> isize {
        assert_eq!(self.rank(), origin.rank(), "offset_from: {self:?} and {origin:?} are on different ranks");
        assert!(size_of::<T>() > 0, "offset_from: elements without size");
        (self.place().offset as i64 - origin.place().offset as i64) as isize / size_of::<T>() as isize
    }

    /// The same place seen as another type; alignment is checked when it is used.
    pub fn cast<U: Pod>(self) -> GlobalPtr<U> {
        GlobalPtr::from_bits(self.bits)
    }

    /// A field by its byte offset (`core::mem::offset_of!`).
    #[track_caller]
    pub fn field<U: Pod>(self, offset: usize) -> GlobalPtr<U> {
        let fits = offset.checked_add(size_of::<U>()).is_some_and(|end| end <= size_of::<T>());
        assert!(fits, "field: {} bytes at {offset} do not lie in {} bytes", size_of::<U>(), size_of::<T>());
        self.cast::<u8>().add(offset).cast()
    }

    /// Reads the value.
    #[inline(always)]
    #[track_caller]
    pub fn get(self, job: &Job) -> T {
        match job.reach().get(self.place()) {
            Some(value) => value,
            None => self.get_far(job),
        }
    }

    /// Writes the value; it has arrived when this returns.
    #[inline(always)]
    #[track_caller]
    pub fn put(self, job: &Job, value: T) {
        if job.reach().put(self.place(), value).is_none() {
            self.put_slice_far(job, "put", &[value]);
        }
    }

    /// Reads `dst.len()` values from here on.
    #[inline(always)]
    #[track_caller]
    pub fn get_slice(self, job: &Job, dst: &mut [T]) {
        if !self.is_aligned() || job.reach().read(self.place(), bytemuck::cast_slice_mut(dst)).is_err() {
            self.get_slice_far(job, "get_slice", dst);
        }
    }

    /// Writes all of `src` from here on; it has arrived when this returns.
    #[inline(always)]
    #[track_caller]
    pub fn put_slice(self, job: &Job, src: &[T]) {
        self.put_slice_for(job, "put_slice", src);
    }

    /// The same for another call.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn put_slice_for(self, job: &Job, call: &'static str, src: &[T]) {
        if !self.is_aligned() || job.reach().write(self.place(), bytemuck::cast_slice(src)).is_err() {
            self.put_slice_far(job, call, src);
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_far(self, job: &Job) -> T {
        let mut value = T::zeroed();
        self.get_slice_far(job, "get", std::slice::from_mut(&mut value));
        value
    }

    /// Where memory is not mapped, or the pointer is wrong.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_slice_far(self, job: &Job, call: &'static str, dst: &mut [T]) {
        let (n, site) = (dst.len(), Site::here(call));
        let mut far = || job.all().inner.get_far(site, self.place(), bytemuck::cast_slice_mut(dst));
        if !self.is_aligned() || far().is_none() {
            self.refuse(job, call, n)
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_slice_far(self, job: &Job, call: &'static str, src: &[T]) {
        let site = Site::here(call);
        let far = || job.all().inner.put_far(site, self.place(), bytemuck::cast_slice(src));
        if !self.is_aligned() || far().is_none() {
            self.refuse(job, call, src.len())
        }
    }

    /// Writes `value` to `n` places from here on (`upc_memset`); they have arrived when this returns.
    #[track_caller]
    pub fn fill(self, job: &Job, n: usize, value: T) {
        self.check_all(job, "fill", n);
        let some = vec![value; (AT_A_TIME / size_of::<T>().max(1)).clamp(1, n.max(1))];
        (0..n).step_by(some.len()).for_each(|i| self.add(i).put_slice_for(job, "fill", &some[..some.len().min(n - i)]));
    }

    /// Copies `n` values from here to another place (`upc_memcpy`), through memory of this rank; they have arrived when
    /// this returns. The two must not overlap.
    #[track_caller]
    pub fn copy_to(self, job: &Job, dst: Self, n: usize) {
        let (from, to, len) = (self.place(), dst.place(), n.saturating_mul(size_of::<T>()) as u64);
        if from.rank == to.rank && from.offset.abs_diff(to.offset) < len {
            panic!("{}: copy_to: {n} values at {self:?} and at {dst:?} overlap", job.rank());
        }
        self.check_all(job, "copy_to", n);
        dst.check_all(job, "copy_to", n);
        let mut some = vec![T::zeroed(); (AT_A_TIME / size_of::<T>().max(1)).clamp(1, n.max(1))];
        let each = some.len();
        for i in (0..n).step_by(each) {
            let some = &mut some[..each.min(n - i)];
            self.add(i).get_slice(job, some);
            dst.add(i).put_slice_for(job, "copy_to", some);
        }
    }

    /// Starts reading `n` values into memory of the runtime's; waiting for the event gives it. It may be dropped or forgotten.
    #[track_caller]
    pub fn fetch(self, job: &Job, n: usize) -> Event<'static, Vec<T>> {
        self.check_all(job, "fetch", n);
        let mut values = vec![T::zeroed(); n];
        let started = self.start_get(job, "fetch", &mut values);
        Event::owned(started, values)
    }

    /// Starts writing all of `values`. Returns when the program may go on, not when they have arrived: local and remote
    /// completion are two things here. The runtime has the buffer meanwhile and waiting for the event gives it back; an
    /// event that is dropped or forgotten is completed by [`quiet`](Job::quiet), as are all.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let there = job.alloc_all::<u64>(4).unwrap().on(job.neighbor(1));
    ///     for i in 0..4 {
    ///         drop(there.add(i).store(job, vec![i as u64]));          // many under way
    ///     }
    ///     job.quiet();                                                // all have arrived
    ///     assert_eq!(there.fetch(job, 4).wait(), [0, 1, 2, 3]);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn store(self, job: &Job, values: Vec<T>) -> Event<'static, Vec<T>> {
        let started = self.start_put(job, "store", &values);
        Event::owned(started, values)
    }

    /// Refuses what does not lie in a segment as a whole, before any of it is touched.
    #[track_caller]
    fn check_all(self, job: &Job, call: &str, n: usize) {
        let len = n.checked_mul(size_of::<T>());
        if !self.is_aligned() || !len.is_some_and(|len| job.all().inner.may_lie(self.place(), len)) {
            self.refuse(job, call, n);
        }
    }

    /// Starts writing all of `src`: what is not complete then, which `src` must live longer than.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_put(self, job: &Job, call: &'static str, src: &[T]) -> Option<Transfer> {
        if self.is_aligned() && job.reach().write(self.place(), bytemuck::cast_slice(src)).is_ok() {
            return None;
        }
        self.start_far(job, call, src.len(), |inner, site| {
            inner.start_put(site, self.place(), bytemuck::cast_slice(src))
        })
        .or_else(|| {
            self.put_slice_far(job, call, src);
            None
        })
    }

    /// Starts reading `dst.len()` values: what is not complete then, which `dst` must live longer than.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_get(self, job: &Job, call: &'static str, dst: &mut [T]) -> Option<Transfer> {
        if self.is_aligned() && job.reach().read(self.place(), bytemuck::cast_slice_mut(dst)).is_ok() {
            return None;
        }
        let n = dst.len();
        let started = self
            .start_far(job, call, n, |inner, site| inner.start_get(site, self.place(), bytemuck::cast_slice_mut(dst)));
        if started.is_none() {
            self.get_slice_far(job, call, dst);
        }
        started
    }

    /// Starts a transfer with another node; `None` if this is not one.
    #[inline(never)]
    #[track_caller]
    fn start_far(
        self,
        job: &Job,
        call: &'static str,
        n: usize,
        start: impl FnOnce(&Rc<Inner>, Site) -> Option<Started>,
    ) -> Option<Transfer> {
        let (inner, site) = (&job.all().inner, Site::here(call));
        if !inner.is_network(self.place()) || !self.is_aligned() {
            return None;
        }
        match start(inner, site) {
            Some(started) => Some(Transfer::new(inner.clone(), site, started)),
            None => self.refuse(job, call, n),
        }
    }

    /// Where the value lies in this process's memory; `None` where it cannot be mapped. For code that does its own
    /// synchronization, such as a benchmark's floor.
    ///
    /// # Safety
    /// Whoever dereferences it keeps the rules of Rust's memory model against every other access to these bytes, by
    /// this rank and by all others, and does not use it after the job.
    #[track_caller]
    pub unsafe fn as_raw(self, job: &Job) -> Option<*mut T> {
        let p = job.mapped().locate(self.place(), size_of::<T>())?.cast::<T>();
        p.is_aligned().then_some(p)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    pub(crate) fn refuse(self, job: &Job, call: &str, n: usize) -> ! {
        self.refuse_by(job.mapped(), format_args!("{}: {call}", job.rank()), n)
    }

    /// Panics, saying what is wrong with this pointer to `n` values.
    #[cold]
    #[track_caller]
    pub(crate) fn refuse_by(self, reach: &Reach, who: fmt::Arguments<'_>, n: usize) -> ! {
        if let Err(outside) = reach.check(self.place(), n.saturating_mul(size_of::<T>()))
            && (self.is_aligned() || !outside.is_inside())
        {
            panic!("{who}: {outside}");
        }
        let (name, align) = (std::any::type_name::<T>(), align_of::<T>());
        panic!("{who}: {self:?} is not aligned for {name}, which needs a multiple of {align}");
    }

    #[inline(always)]
    pub(crate) fn is_aligned(self) -> bool {
        self.place().offset & (align_of::<T>() as u64 - 1) == 0
    }
}
