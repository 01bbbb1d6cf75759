//! [`SharedArray`]: an array over all ranks, in blocks as its [`Layout`] says.
//!
//! # What it promises
//! A handle is its rank's only one: not `Clone`, not `Send`, not sendable. Elements are reached by index, by value, at any
//! time ([`get`](SharedArray::get), [`put`](SharedArray::put)): such accesses may race, and then give old or new bytes of plain
//! data. For the length of a [phase](crate::phase) the same memory is plain Rust: `&mut [T]` of the own part, or `&[T]`
//! of all parts of the node.
//!
//! Arrays lie in guarded memory, which no [`GlobalPtr`](crate::ptr::GlobalPtr) can name. An element that is to be told to
//! another rank is told by its index. Dropping a handle is local; the memory is used again when all ranks have dropped
//! theirs and have come to another collective allocation, so nothing that is still under way can land in it.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let mut a = job.array::<u64>(Layout::block_cyclic(100, 8)).unwrap();   // zeroed; the same call on all ranks
//!     for i in a.my_indices() {
//!         a.put(i, i as u64);                                               // UPC's forall by affinity
//!     }
//!     job.barrier();
//!     assert_eq!(a.get(99), 99);                                            // wherever it lies
//!     let mine: u64 = a.own(|mine| mine.iter_mut().map(|x| { *x *= 2; *x }).sum());
//!     assert_eq!(mine, a.my_indices().map(|i| 2 * i as u64).sum());
//! });
//! ```

mod book;

use crate::am::Request;
use crate::atomic::{Place, Word};
use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use crate::scope::{Event, Scope, Transfer};
use crate::team::{Group, Rank, Team};
pub(crate) use book::{Arrays, MOST_ARRAYS, Wanted};
use bytemuck::Pod;
use partage_conduit::contract::At;
use partage_conduit::ofi::rma::Started;
use partage_conduit::record::Site;
use partage_conduit::shm::rma::{Mapped, Parts};
use partage_plan::layout::{Layout, Piece, Run, Spread};
use std::any::type_name;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a fill or a copy that travel at a time.
const AT_A_TIME: usize = 64 << 10;

/// This rank's handle to an array over all ranks: what [`Team::array`] gives.
pub struct SharedArray<T> {
    pub(crate) inner: Rc<Inner>,
    /// The team that it is of: members have its parts.
    pub(crate) group: Rc<Group>,
    /// How many elements can be reached; none while a phase runs, nor after one that ended by a panic.
    len: usize,
    /// Where every rank's part begins in its guarded half.
    pub(crate) start: u64,
    pub(crate) spread: Spread,
    /// What can be reached of it by a copy.
    parts: Parts<T>,
    /// How many elements are mine, and where; some place if there are none.
    pub(crate) mine: usize,
    own: NonNull<T>,
    pub(crate) slot: u16,
    /// Which of all arrays of this process it is: no two have the same number, also one after the other.
    pub(crate) number: u64,
}

/// How many arrays this process has had.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Team {
    /// Collective: a zeroed array over all members. A bare length means blocked. All give the same layout and type; if one
    /// of them has no room, all get the error.
    #[track_caller]
    pub fn array<T: Pod>(&self, layout: impl Into<Layout>) -> Result<SharedArray<T>> {
        self.array_at(Site::here("array"), layout.into(), true)
    }

    /// Collective: the same without zeroing memory that was used before. Elements have some value, nobody says which: for
    /// large arrays that are written as a whole at once.
    #[track_caller]
    pub fn array_unset<T: Pod>(&self, layout: impl Into<Layout>) -> Result<SharedArray<T>> {
        self.array_at(Site::here("array_unset"), layout.into(), false)
    }

    #[track_caller]
    fn array_at<T: Pod>(&self, site: Site, layout: Layout, zeroed: bool) -> Result<SharedArray<T>> {
        self.may_meet(|| site);
        let me = self.inner.rank;
        let spread = layout.over(self.size()).map_err(|why| Error::config(format!("{me}: array: {why}")))?;
        let room = spread.largest_part().checked_mul(size_of::<T>()).filter(|&n| n < 1 << 43);
        if align_of::<T>() > 4096 {
            return Err(Error::config(format!("{me}: array: values aligned to more than a page")));
        }
        let Some(room) = room.filter(|_| spread.len() < 1 << 60) else {
            let (n, name) = (spread.len(), type_name::<T>());
            return Err(Error::out_of_memory(format!("{me}: array of {n} elements of type {name}: too large")));
        };
        let wanted = Wanted::new::<T>(&spread, room as u64, zeroed);
        let (slot, start) = self.agree_on_array(site, &wanted)?;
        let (inner, len) = (self.inner.clone(), spread.len());
        let group = self.group.clone();
        let (members, only) = (group.engine.members(), spread.only_member());
        let mut parts = inner.guarded.parts(start, spread.largest_part(), members, only).expect("agreed");
        if spread.is_in_a_row() {
            parts = parts.in_a_row(spread.layout().first(), len);
        }
        let mine = spread.part_len(self.rank().index());
        let own = match mine * size_of::<T>() {
            0 => NonNull::dangling(),
            bytes => {
                let at = inner.own_table().locate(At { rank: me.0, offset: start }, bytes).expect("agreed");
                NonNull::new(at.cast()).expect("memory")
            }
        };
        let number = NUMBER.fetch_add(1, Relaxed);
        Ok(SharedArray { inner, group, len, start, spread, parts, mine, own, slot, number })
    }
}

impl<T: Pod> SharedArray<T> {
    /// How many elements it has, on all ranks together. (None in its own phase, and none for good after a panic there.)
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has it no elements?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How it is laid out.
    pub fn layout(&self) -> Layout {
        self.spread.layout()
    }

    /// The rank that has element `i`.
    #[track_caller]
    pub fn affinity(&self, i: usize) -> Rank {
        self.check("affinity", i, 1);
        self.group.engine.rank_of(self.spread.affinity(i))
    }

    /// How many elements are mine.
    pub fn local_len(&self) -> usize {
        if self.len == 0 { 0 } else { self.mine }
    }

    /// How many elements are that rank's (UPC's affinity size); none of a rank that is not there.
    pub fn part_len(&self, rank: Rank) -> usize {
        if self.len == 0 { 0 } else { self.part_len_of(rank) }
    }

    /// The same, whether or not it can be reached now.
    pub(crate) fn part_len_of(&self, rank: Rank) -> usize {
        self.group.engine.member(rank).map_or(0, |member| self.spread.part_len(member))
    }

    /// The indices of my elements, in the order of my part: UPC's forall by affinity, without a test for each element.
    pub fn my_indices(&self) -> impl ExactSizeIterator<Item = usize> + Clone + use<T> {
        self.spread.indices(self.reachable())
    }

    /// My elements as stretches that are contiguous in the array and in my part.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let mut a = job.array::<u32>(Layout::block_cyclic(10, 3)).unwrap();
    ///     let runs: Vec<_> = a.my_runs().collect();
    ///     a.own(|mine| {
    ///         for run in &runs {
    ///             mine[run.local.clone()].iter_mut().zip(run.global.clone()).for_each(|(x, i)| *x = i as u32);
    ///         }
    ///     });
    ///     assert_eq!(a.get(7), 7);
    /// });
    /// ```
    pub fn my_runs(&self) -> impl Iterator<Item = Run> + Clone + use<T> {
        self.spread.runs(self.reachable())
    }

    /// My elements as one range of indices, where they are one: of layouts that give each rank one block. Empty if I have
    /// none.
    #[track_caller]
    pub fn my_range(&self) -> Range<usize> {
        let mut runs = self.my_runs();
        let first = runs.next().map_or(0..0, |run| run.global);
        if runs.next().is_some() {
            panic!("{}: my_range: my elements are not one range in this layout; my_runs gives all", self.inner.rank);
        }
        first
    }

    /// The index of the k-th element of my part.
    #[track_caller]
    pub fn global(&self, k: usize) -> usize {
        match self.spread.global(self.reachable(), k) {
            Some(i) => i,
            None => panic!("{}: global: my part has {} elements, there is no {k}", self.inner.rank, self.local_len()),
        }
    }

    /// Reads element `i`.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: usize) -> T {
        match self.locate(i) {
            Some(element) => element.get(),
            None => self.get_far(i),
        }
    }

    /// Writes element `i`. Others see it after a barrier, a phase or a fence-ordered flag.
    #[inline(always)]
    #[track_caller]
    pub fn put(&self, i: usize, value: T) {
        match self.locate(i) {
            Some(element) => element.put(value),
            None => self.put_far(i, value),
        }
    }

    /// Reads `dst.len()` elements from `i` on, wherever they lie.
    #[track_caller]
    pub fn get_slice(&self, i: usize, dst: &mut [T]) {
        let site = Site::here("get_slice");
        let range = self.check("get_slice", i, dst.len());
        self.complete(self.start_gets(site, range, dst));
    }

    /// Writes all of `src` from element `i` on, wherever they lie; it has arrived when this returns.
    #[track_caller]
    pub fn put_slice(&self, i: usize, src: &[T]) {
        let site = Site::here("put_slice");
        let range = self.check("put_slice", i, src.len());
        self.complete(self.start_puts(site, range, src));
    }

    /// Writes `value` to all elements of the range (`upc_memset`).
    #[track_caller]
    pub fn fill(&self, range: impl RangeBounds<usize>, value: T) {
        let site = Site::here("fill");
        let range = self.check_bounds("fill", &range);
        let some = vec![value; (AT_A_TIME / size_of::<T>().max(1)).clamp(1, range.len().max(1))];
        for start in range.clone().step_by(some.len()) {
            let piece = start..range.end.min(start + some.len());
            let n = piece.len();
            self.complete(self.start_puts(site, piece, &some[..n]));
        }
    }

    /// Copies elements of this array to another, from `to` on (`upc_memcpy`); both sides may lie anywhere. One rank does it
    /// alone, through memory of its own.
    #[track_caller]
    pub fn copy_to(&self, range: impl RangeBounds<usize>, dst: &SharedArray<T>, to: usize) {
        let site = Site::here("copy_to");
        let range = self.check_bounds("copy_to", &range);
        let there = dst.check("copy_to", to, range.len());
        if self.is(dst) && range.start < there.end && there.start < range.end {
            panic!("{}: copy_to: elements {range:?} and {there:?} of one array overlap", self.inner.rank);
        }
        let mut some = vec![T::zeroed(); (AT_A_TIME / size_of::<T>().max(1)).clamp(1, range.len().max(1))];
        for start in range.clone().step_by(some.len()) {
            let piece = start..range.end.min(start + some.len());
            let (some, target) = (&mut some[..piece.len()], to + (start - range.start));
            self.complete(self.start_gets(site, piece.clone(), some));
            dst.complete(dst.start_puts(site, target..target + piece.len(), some));
        }
    }

    /// Is it the same array?
    pub(crate) fn is(&self, other: &SharedArray<T>) -> bool {
        self.slot == other.slot && Rc::ptr_eq(&self.group, &other.group)
    }

    /// Starts reading a range into memory of the runtime's; waiting for the event gives it. It may be dropped or forgotten.
    ///
    /// ```
    /// partage::test(3, |job| {
    ///     let a = job.array::<u16>(1000).unwrap();
    ///     a.put(job.rank().index() * 400, 7);
    ///     job.barrier();
    ///     let coming = a.fetch(300..500);                     // over two ranks
    ///     let busy: u64 = (0..10).sum();                      // meanwhile
    ///     assert_eq!((coming.wait()[100], busy), (7, 45));
    /// });
    /// ```
    #[track_caller]
    pub fn fetch(&self, range: impl RangeBounds<usize>) -> Event<'_, Vec<T>> {
        let site = Site::here("fetch");
        let range = self.check_bounds("fetch", &range);
        let mut values = vec![T::zeroed(); range.len()];
        let started = self.start_gets(site, range, &mut values);
        Event::owned(started, values)
    }

    /// Starts writing all of `values` from element `i` on. The runtime has the buffer until then and waiting gives it back; the
    /// event may be dropped or forgotten: [`quiet`](crate::Job::quiet), a phase and the job's end complete it too.
    #[track_caller]
    pub fn store(&self, i: usize, values: Vec<T>) -> Event<'_, Vec<T>> {
        let site = Site::here("store");
        let range = self.check("store", i, values.len());
        let started = self.start_puts(site, range, &values);
        Event::owned(started, values)
    }

    /// Writes all of `src` from element `i` on, which must lie on one rank, then runs the handler there: a long message into an
    /// array. The elements are there when the handler runs; it is told which by its arguments. (It cannot reach the array,
    /// which may be in a phase by then, and nothing lands in one.)
    ///
    /// ```
    /// use partage::am::Request;
    /// use partage::prelude::*;
    /// // Counts what has come, in open memory.
    /// static COME: Request<GlobalPtr<u64>> = Request::new(|_, target, count, _| _ = target.at(count).fetch_add(1));
    /// partage::test(3, |job| {
    ///     job.register_handlers(&[&COME]);
    ///     let (halos, come) = (job.array::<f64>(Layout::per_rank(8)).unwrap(), job.alloc_all::<u64>(1).unwrap());
    ///     let right = job.neighbor(1);
    ///     halos.put_am(8 * right.index(), &[1.5; 4], &COME, come.on(right));
    ///     job.wait_until(|| come.at(job).load() == 1);           // which acquires; a get would not
    ///     assert_eq!(halos.cells().get(3), 1.5);
    ///     # job.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn put_am<A: Pod>(&self, i: usize, src: &[T], handler: &'static Request<A>, args: A) {
        let (site, me) = (Site::here("put_am"), self.inner.rank);
        self.inner.is_not_over(site);
        let range = self.check("put_am", i, src.len());
        if i == self.len() {
            panic!("{me}: put_am: element {i} of {i}: no rank has it, so the message has no target");
        }
        let to = self.affinity(i);
        if self.spread.pieces(range.clone()).any(|piece| piece.member != self.spread.affinity(i)) {
            panic!("{me}: put_am: elements {range:?} lie on several ranks; one message goes to one");
        }
        self.complete(self.start_puts(site, range, src));
        Job::of(self.inner.clone()).am(to, handler, args, &[]);
    }

    /// A part of the array, which can be passed on and taken apart like a slice.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let a = job.array::<u16>(100).unwrap();
    ///     let middle = a.slice(40..60);
    ///     if job.rank().0 == 0 {
    ///         middle.slice(5..).put(0, 7);
    ///     }
    ///     job.barrier();
    ///     assert_eq!((middle.len(), middle.get(5), a.get(45)), (20, 7, 7));
    /// });
    /// ```
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SharedSlice<'_, T> {
        let range = self.check_bounds("slice", &range);
        SharedSlice { array: self, start: range.start, len: range.len() }
    }

    /// How many blocks the array has, where it has blocks of one size.
    pub fn blocks(&self) -> Option<usize> {
        self.spread.block().map(|block| self.len.div_ceil(block))
    }

    /// The indices of the b-th block: `a.fetch(a.block(3))`.
    #[track_caller]
    pub fn block(&self, b: usize) -> Range<usize> {
        let (me, size) = (self.inner.rank, self.spread.block());
        match self.blocks().zip(size) {
            Some((blocks, size)) if b < blocks => b * size..self.len.min((b + 1).saturating_mul(size)),
            Some((blocks, _)) => panic!("{me}: block: there is no block {b}, the array has {blocks}"),
            None => {
                panic!("{me}: block: an array in this layout has no blocks of one size; my_runs gives what is mine")
            }
        }
    }

    /// My part, by value and without any synchronization.
    pub fn cells(&self) -> Cells<'_, T> {
        Cells { array: self, len: self.local_len() }
    }

    /// Where my part is; null if there is nothing in it.
    #[inline(always)]
    pub(crate) fn own_place(&self) -> *mut u8 {
        if self.mine * size_of::<T>() == 0 { std::ptr::null_mut() } else { self.own.as_ptr().cast() }
    }

    /// Where element `i` is, if there is one that can be reached by a copy: not in a phase.
    #[inline(always)]
    pub(crate) fn locate(&self, i: usize) -> Option<Mapped<'_, T>> {
        match self.parts.locate(i) {
            None if i < self.len => self.locate_by_turns(i),
            element => element,
        }
    }

    /// The same of a frozen array, of so many elements.
    #[inline(always)]
    pub(crate) fn locate_frozen(&self, i: usize, len: usize) -> Option<Mapped<'_, T>> {
        match self.parts.locate_among(i, len) {
            None if i < len => self.locate_by_turns(i),
            element => element,
        }
    }

    /// From now on so many elements can be reached.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len;
        self.parts.reach(len);
    }

    /// Of arrays that are not in a row, an element that there is.
    #[inline(always)]
    fn locate_by_turns(&self, i: usize) -> Option<Mapped<'_, T>> {
        let (member, k) = self.spread.locate(i);
        self.parts.locate_part(member, k)
    }

    /// Which member's part can be reached by this handle; one that has none if there is nothing to be reached.
    fn reachable(&self) -> usize {
        if self.len == 0 { usize::MAX } else { self.group.engine.desk.rank() }
    }

    #[inline(always)]
    fn offset(&self, k: usize) -> u64 {
        self.start + (k * size_of::<T>()) as u64
    }

    #[inline(always)]
    fn place(&self, member: usize, k: usize) -> At {
        At::guarded(self.group.engine.rank_of(member).0, self.offset(k))
    }

    /// The same in its half.
    fn place_in_half(&self, member: usize, k: usize) -> At {
        At { rank: self.group.engine.rank_of(member).0, offset: self.offset(k) }
    }

    /// Where element `i` is, which there is.
    #[inline(always)]
    pub(crate) fn place_of(&self, i: usize) -> At {
        let (member, k) = self.spread.locate(i);
        self.place(member, k)
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check(&self, call: &str, i: usize, n: usize) -> Range<usize> {
        if i > self.len || n > self.len - i {
            self.refuse(call, i, n);
        }
        i..i + n
    }

    #[track_caller]
    fn check_bounds(&self, call: &str, range: &impl RangeBounds<usize>) -> Range<usize> {
        let Range { start, end } = bounds(range, self.len);
        if start > end {
            self.check_usable(call);
            panic!("{}: {call}: elements {start}..{end} are no range", self.inner.rank);
        }
        self.check(call, start, end - start)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse(&self, call: &str, i: usize, n: usize) -> ! {
        let (me, len) = (self.inner.rank, self.len);
        self.check_usable(call);
        match n {
            1 => panic!("{me}: {call}: there is no element {i} in an array of {len}"),
            _ => panic!("{me}: {call}: {n} elements from {i} on do not lie in an array of {len}"),
        }
    }

    /// Panics if a phase runs or was left by a panic.
    #[track_caller]
    pub(crate) fn check_usable(&self, call: &str) {
        let (len, me) = (self.spread.len(), self.inner.rank);
        if self.len < len {
            panic!(
                "{me}: {call}: this array of {len} elements is in a phase, or was left by a panic in one; such a handle \
                 reaches nothing"
            );
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_far(&self, i: usize) -> T {
        let (site, mut value) = (Site::here("get"), T::zeroed());
        let range = self.check("get", i, 1);
        self.complete(self.start_gets(site, range, std::slice::from_mut(&mut value)));
        value
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_far(&self, i: usize, value: T) {
        let site = Site::here("put");
        let range = self.check("put", i, 1);
        self.complete(self.start_puts(site, range, &[value]));
    }

    /// Starts reading: what is under way then, which `dst` must live longer than.
    pub(crate) fn start_gets(&self, site: Site, range: Range<usize>, dst: &mut [T]) -> Option<Transfer> {
        let first = range.start;
        self.start_all(site, range, |Piece { member, local, global }| {
            let dst = bytemuck::cast_slice_mut(&mut dst[global.start - first..global.end - first]);
            match self.inner.guarded.read(self.place_in_half(member, local.start), dst) {
                Ok(()) => None,
                Err(_) => self.inner.get_guarded(site, self.place(member, local.start), dst),
            }
        })
    }

    /// Starts writing: what is under way then, which `src` must live longer than.
    pub(crate) fn start_puts(&self, site: Site, range: Range<usize>, src: &[T]) -> Option<Transfer> {
        let first = range.start;
        self.start_all(site, range, |Piece { member, local, global }| {
            let src = bytemuck::cast_slice(&src[global.start - first..global.end - first]);
            match self.inner.guarded.write(self.place_in_half(member, local.start), src) {
                Ok(()) => None,
                Err(_) => self.inner.put_guarded(site, self.place(member, local.start), src),
            }
        })
    }

    fn start_all(
        &self,
        site: Site,
        range: Range<usize>,
        mut start: impl FnMut(Piece) -> Option<Started>,
    ) -> Option<Transfer> {
        let mut all: Option<Started> = None;
        for piece in self.spread.pieces(range) {
            if let Some(started) = start(piece) {
                all = Some(match all {
                    Some(before) => before.and(started),
                    None => started,
                });
            }
        }
        all.map(|started| Transfer::new(self.inner.clone(), site, started))
    }

    fn complete(&self, transfer: Option<Transfer>) {
        if let Some(transfer) = transfer {
            transfer.complete();
        }
    }
}

impl<T: Word> SharedArray<T> {
    /// Element `i` as a word, for [atomics](crate::atomic).
    ///
    /// ```
    /// partage::test(4, |job| {
    ///     let hits = job.array::<u64>(10).unwrap();
    ///     (0..100).for_each(|k| _ = hits.at(k % 10).fetch_add(1));
    ///     job.barrier();
    ///     assert_eq!(hits.at(3).load(), 40);
    ///     # job.barrier();
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn at(&self, i: usize) -> Place<'_, T> {
        let near = self.locate(i);
        if near.is_none() {
            self.check("at", i, 1);
        }
        Place::of_array(self, i, near)
    }
}

impl<'s> Scope<'s, '_> {
    /// Starts reading `dst.len()` elements from `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Pod>(&'s self, array: &'s SharedArray<T>, i: usize, dst: &'s mut [T]) -> Event<'s, &'s mut [T]> {
        if let [one] = dst
            && let Some(element) = array.locate(i)
        {
            *one = element.get();
            return Event::ready(dst);
        }
        self.get_otherwise(array, i, dst)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_otherwise<T: Pod>(
        &'s self,
        array: &'s SharedArray<T>,
        i: usize,
        dst: &'s mut [T],
    ) -> Event<'s, &'s mut [T]> {
        let site = Site::here("get");
        let range = array.check("get", i, dst.len());
        Event::borrowed(array.start_gets(site, range, dst), dst)
    }

    /// Starts writing all of `src` from element `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Pod>(&'s self, array: &'s SharedArray<T>, i: usize, src: &'s [T]) -> Event<'s, ()> {
        if let [value] = src
            && let Some(element) = array.locate(i)
        {
            element.put(*value);
            return Event::ready(());
        }
        self.put_otherwise(array, i, src)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_otherwise<T: Pod>(&'s self, array: &'s SharedArray<T>, i: usize, src: &'s [T]) -> Event<'s, ()> {
        let site = Site::here("put");
        let range = array.check("put", i, src.len());
        Event::borrowed(array.start_puts(site, range, src), ())
    }
}

impl<T> Drop for SharedArray<T> {
    fn drop(&mut self) {
        self.group.arrays.dropped(self.slot);
    }
}

impl<T> fmt::Debug for SharedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, name, layout) = (self.spread.len(), type_name::<T>(), self.spread.layout());
        write!(f, "array {} of {n} {name}, {layout:?}", self.slot)
    }
}

/// A part of an array: what [`SharedArray::slice`] gives. Like a pair of pointers; indices count from its start.
#[derive(Debug)]
pub struct SharedSlice<'a, T> {
    array: &'a SharedArray<T>,
    start: usize,
    len: usize,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedSlice<'_, T> {}

impl<'a, T: Pod> SharedSlice<'a, T> {
    /// How many elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Are there none?
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// What it is a part of.
    pub(crate) fn array(self) -> &'a SharedArray<T> {
        self.array
    }

    /// The indices of its elements in the array.
    pub fn indices(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// A part of it.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> SharedSlice<'a, T> {
        let Range { start, end } = bounds(&range, self.len);
        if start > end {
            panic!("{}: slice: elements {start}..{end} are no range", self.array.inner.rank);
        }
        let len = end - start;
        SharedSlice { start: self.check("slice", start, len), len, ..self }
    }

    /// The rank that has element `i`.
    #[track_caller]
    pub fn affinity(self, i: usize) -> Rank {
        self.array.affinity(self.check("affinity", i, 1))
    }

    /// Reads element `i`.
    #[inline]
    #[track_caller]
    pub fn get(self, i: usize) -> T {
        self.array.get(self.check("get", i, 1))
    }

    /// Writes element `i`.
    #[inline]
    #[track_caller]
    pub fn put(self, i: usize, value: T) {
        self.array.put(self.check("put", i, 1), value);
    }

    /// Reads `dst.len()` elements from `i` on.
    #[track_caller]
    pub fn get_slice(self, i: usize, dst: &mut [T]) {
        self.array.get_slice(self.check("get_slice", i, dst.len()), dst);
    }

    /// Writes all of `src` from element `i` on.
    #[track_caller]
    pub fn put_slice(self, i: usize, src: &[T]) {
        self.array.put_slice(self.check("put_slice", i, src.len()), src);
    }

    /// Writes `value` to all elements.
    #[track_caller]
    pub fn fill(self, value: T) {
        self.array.fill(self.indices(), value);
    }

    /// Starts reading all elements.
    #[track_caller]
    pub fn fetch(self) -> Event<'a, Vec<T>> {
        self.array.fetch(self.indices())
    }

    /// The index in the array.
    #[inline]
    #[track_caller]
    fn check(self, call: &str, i: usize, n: usize) -> usize {
        if i.checked_add(n).is_none_or(|end| end > self.len) {
            let (me, len) = (self.array.inner.rank, self.len);
            panic!("{me}: {call}: {n} elements from {i} on do not lie in a slice of {len}");
        }
        self.start + i
    }
}

/// Where a range of something of this length starts and ends.
fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.saturating_add(1),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    start..end
}

/// A rank's own part of an array, read and written by value: what [`SharedArray::cells`] gives.
#[derive(Debug, Clone, Copy)]
pub struct Cells<'a, T> {
    array: &'a SharedArray<T>,
    len: usize,
}

impl<T: Pod> Cells<'_, T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the k-th.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, k: usize) -> T {
        let at = self.place("get", k, 1);
        self.array.inner.own_table().get(at).expect("a part of mine")
    }

    /// Writes the k-th.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, k: usize, value: T) {
        let at = self.place("set", k, 1);
        self.array.inner.own_table().put(at, value).expect("a part of mine");
    }

    /// Reads from the k-th on.
    #[track_caller]
    pub fn read(&self, k: usize, dst: &mut [T]) {
        let at = self.place("read", k, dst.len());
        self.array.inner.own_table().read(at, bytemuck::cast_slice_mut(dst)).expect("a part of mine");
    }

    /// Writes from the k-th on.
    #[track_caller]
    pub fn write(&self, k: usize, src: &[T]) {
        let at = self.place("write", k, src.len());
        self.array.inner.own_table().write(at, bytemuck::cast_slice(src)).expect("a part of mine");
    }

    #[inline(always)]
    #[track_caller]
    fn place(&self, call: &str, k: usize, n: usize) -> At {
        let me = self.array.inner.rank;
        if k.checked_add(n).is_none_or(|end| end > self.len) {
            panic!("{me}: {call}: {n} elements from {k} on do not lie in my part of {}", self.len);
        }
        At { rank: me.0, offset: self.array.offset(k) }
    }
}
