//! Copies of elements that are not neighbours: vector, indexed and strided, on either side.
//!
//! A [`Shape`] says which elements, in which order: a range, a list of ranges, [`Indexed`] starts with one length, or a
//! [`Region`] of runs at strides on up to eight levels. The two sides of a copy are described independently: the k-th element
//! of one becomes the k-th of the other. Where only the shared side is described, the private one is dense.
//! Elements of one call may lie on any ranks.
//!
//! # What it promises
//! * Nothing is written before everything has been checked: that all elements are there, that both sides have as many, that the
//!   destination names none twice. (A source may.)
//! * Completion is as for [`put_slice`](SharedArray::put_slice) and [`get_slice`](SharedArray::get_slice): blocking calls return
//!   when all has arrived; what a [`Scope`] starts is complete after its event. Elements arrive in any order; one of 1, 2, 4 or
//!   8 bytes that is a run by itself does not tear.
//! * On the node runs are copied one by one, without packing: one check for all that lie at one stride.
//! * To and from other nodes, and on the reference path, the runs of each rank are packed: one message for each rank, as long as
//!   they and what says where they lie are not more than 64 KiB, else as few as that takes. Runs of 4 KiB and more go by the
//!   network itself. ([`Counters::packed`](crate::am::Counters::packed) counts such messages.)
//!
//! ```
//! use partage::prelude::*;
//! partage::test(3, |job| {
//!     let a = job.array::<u32>(Layout::rows(6, 10)).unwrap();       // a matrix of 6 x 10, two rows on each rank
//!     if job.rank().0 == 0 {
//!         a.put_region(Region::at(4).times(6, 10), &[1, 2, 3, 4, 5, 6]);              // its column 4
//!     }
//!     job.barrier();
//!     let mut tile = [0; 6];
//!     a.get_region(Region::at(33).run(3).times(2, 10), &mut tile);  // rows 3 and 4, columns 3, 4 and 5
//!     assert_eq!(tile, [0, 4, 0, 0, 5, 0]);
//! });
//! ```

use crate::array::SharedArray;
use crate::coll::Engine;
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::scope::{Event, Given, Scope, Transfer};
use bytemuck::Pod;
use partage_conduit::contract::{At, Conduit, Half};
use partage_conduit::copy::Runs;
use partage_conduit::ofi::rma::Started;
use partage_conduit::record::Site;
use partage_conduit::reference;
use partage_conduit::runs::{Group, Packet};
use partage_conduit::shm::rma::Reach;
use partage_plan::layout::Spread;
use partage_plan::region::{Cursor, Extent, Pair, meet};
use std::ops::Range;
use std::rc::Rc;

pub use partage_plan::region::{Indexed, LEVELS, Region, Shape, ShapeError};

/// Bytes of a copy from shared to shared memory that travel at a time.
const AT_A_TIME: usize = 64 << 10;

impl<T: Pod> SharedArray<T> {
    /// Reads the elements of a shape, wherever they lie, one after the other into `dst`.
    #[track_caller]
    pub fn get_region(&self, there: impl Shape, dst: &mut [T]) {
        let to = 0..dst.len();
        complete(self.start_get_region(Site::here("get_region"), &there, dst, &to));
    }

    /// Writes all of `src` to the elements of a shape, wherever they lie; it has arrived when this returns.
    #[track_caller]
    pub fn put_region(&self, there: impl Shape, src: &[T]) {
        let from = 0..src.len();
        complete(self.start_put_region(Site::here("put_region"), &there, src, &from));
    }

    /// Reads the elements of a shape to those of another in `dst`. The rest of `dst` stays as it is.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let a = job.array::<u16>(20).unwrap();
    ///     if job.rank().0 == 1 {
    ///         a.put_region_from(Indexed { starts: &[15, 3], len: 2 }, &[1, 0, 2, 0, 3, 0, 4], Region::at(0).times(4, 2));
    ///     }
    ///     job.barrier();
    ///     let mut back = [9; 6];
    ///     a.get_region_to(&[3..5, 15..17], &mut back, Region::at(0).run(2).times(2, 4));
    ///     assert_eq!(back, [3, 4, 9, 9, 1, 2]);
    /// });
    /// ```
    #[track_caller]
    pub fn get_region_to(&self, there: impl Shape, dst: &mut [T], to: impl Shape) {
        complete(self.start_get_region(Site::here("get_region_to"), &there, dst, &to));
    }

    /// Writes those elements of `src` that a shape names to those of another, wherever they lie; they have arrived when this
    /// returns.
    #[track_caller]
    pub fn put_region_from(&self, there: impl Shape, src: &[T], from: impl Shape) {
        complete(self.start_put_region(Site::here("put_region_from"), &there, src, &from));
    }

    /// Copies the elements of a shape to those of another in `dst`, which may be this array; both may lie anywhere. One rank
    /// does it alone, through memory of its own.
    #[track_caller]
    pub fn copy_region_to(&self, from: impl Shape, dst: &SharedArray<T>, to: impl Shape) {
        let site = Site::here("copy_region_to");
        let (total, there) = (self.check_region(site, &from).total, dst.check_region(site, &to).total);
        let me = self.inner.rank;
        check_destination(me, site.call, total, there, &to);
        if self.is(dst) && meet(&from, 0, &to, 0) {
            overlap(me, site.call);
        }
        copy(site, (&self.side(), &mut Cursor::new(&from)), (&dst.side(), &mut Cursor::new(&to)), total);
    }

    #[track_caller]
    fn start_get_region(&self, site: Site, there: &impl Shape, dst: &mut [T], to: &impl Shape) -> Option<Transfer> {
        let total = self.check_region(site, there).total;
        let here = check_private(self.inner.rank, site.call, to, dst.len());
        check_destination(self.inner.rank, site.call, total, here, to);
        start_gets(&self.side(), site, &mut Cursor::new(there), bytemuck::cast_slice_mut(dst), &mut Cursor::new(to))
    }

    #[track_caller]
    fn start_put_region(&self, site: Site, there: &impl Shape, src: &[T], from: &impl Shape) -> Option<Transfer> {
        let total = self.check_region(site, there).total;
        let here = check_private(self.inner.rank, site.call, from, src.len());
        check_destination(self.inner.rank, site.call, here, total, there);
        start_puts(&self.side(), site, &mut Cursor::new(there), bytemuck::cast_slice(src), &mut Cursor::new(from))
    }

    /// Refuses a shape that does not lie in the array.
    #[inline]
    #[track_caller]
    fn check_region(&self, site: Site, shape: &impl Shape) -> Extent {
        self.inner.is_not_over(site);
        match shape.extent() {
            Ok(extent) if extent.bounds.end <= self.len() => extent,
            other => self.refuse_region(site.call, other),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse_region(&self, call: &str, extent: Result<Extent, ShapeError>) -> ! {
        let (me, len) = (self.inner.rank, self.len());
        self.check_usable(call);
        match extent {
            Ok(extent) => {
                panic!("{me}: {call}: the region's elements {:?} do not lie in an array of {len}", extent.bounds)
            }
            Err(why) => panic!("{me}: {call}: the region does not lie in an array of {len}: {why}"),
        }
    }
}

impl<T: Pod> GlobalPtr<T> {
    /// Reads the values of a shape, counted from here, one after the other into `dst`.
    #[track_caller]
    pub fn get_region(self, job: &Job, there: impl Shape, dst: &mut [T]) {
        let to = 0..dst.len();
        complete(self.start_get_region(job, Site::here("get_region"), &there, dst, &to));
    }

    /// Writes all of `src` to the values of a shape, counted from here; it has arrived when this returns.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let mine = job.alloc_all::<u64>(30).unwrap();
    ///     let column = Region::at(2).times(3, 10);
    ///     mine.on(job.neighbor(1)).put_region(job, column, &[1, 2, 3]);
    ///     job.barrier();
    ///     assert_eq!([2, 12, 22].map(|i| mine.add(i).get(job)), [1, 2, 3]);
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn put_region(self, job: &Job, there: impl Shape, src: &[T]) {
        let from = 0..src.len();
        complete(self.start_put_region(job, Site::here("put_region"), &there, src, &from));
    }

    /// Reads the values of a shape, counted from here, to those of another in `dst`.
    #[track_caller]
    pub fn get_region_to(self, job: &Job, there: impl Shape, dst: &mut [T], to: impl Shape) {
        complete(self.start_get_region(job, Site::here("get_region_to"), &there, dst, &to));
    }

    /// Writes those values of `src` that a shape names to those of another, counted from here; they have arrived when this
    /// returns.
    #[track_caller]
    pub fn put_region_from(self, job: &Job, there: impl Shape, src: &[T], from: impl Shape) {
        complete(self.start_put_region(job, Site::here("put_region_from"), &there, src, &from));
    }

    /// Copies the values of a shape, counted from here, to those of another, counted from `dst`, through memory of this rank;
    /// they have arrived when this returns.
    #[track_caller]
    pub fn copy_region_to(self, job: &Job, from: impl Shape, dst: Self, to: impl Shape) {
        let (site, me) = (Site::here("copy_region_to"), job.rank());
        let (here, there) = (self.check_region(job, site, &from), dst.check_region(job, site, &to));
        check_destination(me, site.call, here.total, there.total, &to);
        if self.rank() == dst.rank() && self.may_meet(&from, &here.bounds, dst, &to, &there.bounds) {
            overlap(me, site.call);
        }
        copy(site, (&self.side(job), &mut Cursor::new(&from)), (&dst.side(job), &mut Cursor::new(&to)), here.total);
    }

    /// Have two shapes values in common, counted from two pointers to one rank? Sure only if these are some number of values
    /// apart; else the bounds decide.
    fn may_meet(self, a: &impl Shape, within: &Range<usize>, to: Self, b: &impl Shape, there: &Range<usize>) -> bool {
        let (x, y, size) = (self.place().offset as usize, to.place().offset as usize, size_of::<T>());
        let first = x.min(y);
        match (x - first, y - first) {
            _ if size == 0 => false,
            (p, q) if p.is_multiple_of(size) && q.is_multiple_of(size) => meet(a, p / size, b, q / size),
            (p, q) => {
                let ends = |range: &Range<usize>, from| range.start * size + from..range.end * size + from;
                let (x, y) = (ends(within, p), ends(there, q));
                x.start < y.end && y.start < x.end
            }
        }
    }

    #[track_caller]
    fn start_get_region(
        self,
        job: &Job,
        site: Site,
        there: &impl Shape,
        dst: &mut [T],
        to: &impl Shape,
    ) -> Option<Transfer> {
        let total = self.check_region(job, site, there).total;
        let here = check_private(job.rank(), site.call, to, dst.len());
        check_destination(job.rank(), site.call, total, here, to);
        start_gets(&self.side(job), site, &mut Cursor::new(there), bytemuck::cast_slice_mut(dst), &mut Cursor::new(to))
    }

    #[inline]
    #[track_caller]
    fn start_put_region(
        self,
        job: &Job,
        site: Site,
        there: &impl Shape,
        src: &[T],
        from: &impl Shape,
    ) -> Option<Transfer> {
        let total = self.check_region(job, site, there).total;
        let here = check_private(job.rank(), site.call, from, src.len());
        check_destination(job.rank(), site.call, here, total, there);
        start_puts(&self.side(job), site, &mut Cursor::new(there), bytemuck::cast_slice(src), &mut Cursor::new(from))
    }

    /// Refuses a shape that does not lie in a segment.
    #[inline]
    #[track_caller]
    fn check_region(self, job: &Job, site: Site, shape: &impl Shape) -> Extent {
        let inner = &job.all().inner;
        inner.is_not_over(site);
        let extent = match shape.extent() {
            Ok(extent) => extent,
            Err(why) => panic!("{}: {}: the region does not lie in a segment: {why}", job.rank(), site.call),
        };
        let (bounds, size) = (&extent.bounds, size_of::<T>() as u64);
        let first = (bounds.start as u64).checked_mul(size).and_then(|start| start.checked_add(self.place().offset));
        let inside = first.zip(bounds.len().checked_mul(size_of::<T>())).is_some_and(|(offset, len)| {
            let at = At { offset, ..self.place() };
            inner.may_lie(at, len) && inner.may_be_known(site, at, len)
        });
        if extent.total > 0 && !(inside && self.is_aligned()) {
            self.add(bounds.start).refuse(job, site.call, bounds.len());
        }
        extent
    }
}

impl<'s> Scope<'s, '_> {
    /// Starts reading the elements of a shape, wherever they lie, one after the other into `dst`.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let a = job.array::<u32>(Layout::rows(8, 8)).unwrap();
    ///     let (left, right) = ([1; 8], [2; 8]);
    ///     let mut middle = [0; 8];
    ///     job.scope(|s| {
    ///         let column = |c| Region::at(c).times(8, 8);
    ///         drop((s.put_region(&a, column(0), &left), s.put_region(&a, column(7), &right)));      // both under way
    ///         let middle = s.get_region(&a, column(3), &mut middle).wait();
    ///         assert_eq!(middle, &[0; 8]);
    ///     });
    ///     assert_eq!((a.get(8), a.get(15)), (1, 2));
    /// });
    /// ```
    #[track_caller]
    pub fn get_region<T: Pod>(
        &'s self,
        array: &'s SharedArray<T>,
        there: impl Shape,
        dst: &'s mut [T],
    ) -> Event<'s, &'s mut [T]> {
        let to = 0..dst.len();
        let started = array.start_get_region(Site::here("get_region"), &there, dst, &to);
        Event::borrowed(started.map(Transfer::into_scope), dst)
    }

    /// Starts writing all of `src` to the elements of a shape, wherever they lie.
    #[track_caller]
    pub fn put_region<T: Pod>(&'s self, array: &'s SharedArray<T>, there: impl Shape, src: &'s [T]) -> Event<'s, ()> {
        let from = 0..src.len();
        Event::borrowed(array.start_put_region(Site::here("put_region"), &there, src, &from), ())
    }

    /// Starts reading the elements of a shape to those of another in `dst`.
    #[track_caller]
    pub fn get_region_to<T: Pod>(
        &'s self,
        array: &'s SharedArray<T>,
        there: impl Shape,
        dst: &'s mut [T],
        to: impl Shape,
    ) -> Event<'s, &'s mut [T]> {
        let started = array.start_get_region(Site::here("get_region_to"), &there, dst, &to);
        Event::borrowed(started.map(Transfer::into_scope), dst)
    }

    /// Starts writing those elements of `src` that a shape names to those of another.
    #[track_caller]
    pub fn put_region_from<T: Pod>(
        &'s self,
        array: &'s SharedArray<T>,
        there: impl Shape,
        src: &'s [T],
        from: impl Shape,
    ) -> Event<'s, ()> {
        Event::borrowed(array.start_put_region(Site::here("put_region_from"), &there, src, &from), ())
    }

    /// Starts reading the values of a shape, counted from a pointer, to those of another in `dst`: all of it in order by
    /// `0..dst.len()`.
    #[track_caller]
    pub fn get_region_ptr<T: Pod>(
        &'s self,
        from: GlobalPtr<T>,
        there: impl Shape,
        dst: &'s mut [T],
        to: impl Shape,
    ) -> Event<'s, &'s mut [T]> {
        let started = from.start_get_region(self.job, Site::here("get_region_ptr"), &there, dst, &to);
        Event::borrowed(started.map(Transfer::into_scope), dst)
    }

    /// Starts writing those values of `src` that a shape names to those of another, counted from a pointer.
    #[track_caller]
    pub fn put_region_ptr<T: Pod>(
        &'s self,
        to: GlobalPtr<T>,
        there: impl Shape,
        src: &'s [T],
        from: impl Shape,
    ) -> Event<'s, ()> {
        Event::borrowed(to.start_put_region(self.job, Site::here("put_region_ptr"), &there, src, &from), ())
    }
}

#[inline(always)]
fn complete(transfer: Option<Transfer>) {
    if let Some(transfer) = transfer {
        transfer.complete();
    }
}

/// Refuses a shape that does not lie in a buffer; how many elements it has.
#[inline]
#[track_caller]
fn check_private(me: crate::team::Rank, call: &str, shape: &impl Shape, len: usize) -> usize {
    match shape.extent() {
        Ok(extent) if extent.bounds.end <= len => extent.total,
        Ok(extent) => panic!("{me}: {call}: elements {:?} do not lie in a buffer of {len}", extent.bounds),
        Err(why) => panic!("{me}: {call}: what is named of a buffer of {len} does not lie in it: {why}"),
    }
}

/// Refuses sides of different lengths, and a destination that names an element twice.
#[inline]
#[track_caller]
fn check_destination(me: crate::team::Rank, call: &str, source: usize, destination: usize, to: &impl Shape) {
    if source != destination {
        panic!("{me}: {call}: the source has {source} elements, the destination {destination}; both have as many");
    }
    if to.repeats() {
        panic!("{me}: {call}: the destination names an element twice; only a source may");
    }
}

#[cold]
#[track_caller]
fn overlap(me: crate::team::Rank, call: &str) -> ! {
    panic!("{me}: {call}: source and destination have elements in common; copy them through a buffer")
}

/// Shared elements by their numbers: an array's, or those after a pointer. Nothing here knows their type, so that all of
/// this is compiled once.
struct Side<'a> {
    inner: &'a Rc<Inner>,
    /// What can be reached of it by a copy.
    mapped: &'a Reach,
    half: Half,
    /// Bytes of an element.
    size: usize,
    lies: Lies<'a>,
}

/// Where they lie in their half.
enum Lies<'a> {
    /// In parts of these members that begin there.
    Spread(&'a Spread, &'a Engine, u64),
    /// One after the other.
    From(At),
}

impl<T: Pod> SharedArray<T> {
    #[inline(always)]
    fn side(&self) -> Side<'_> {
        let lies = Lies::Spread(&self.spread, &self.group.engine, self.start);
        Side { inner: &self.inner, mapped: &self.inner.guarded, half: Half::Guarded, size: size_of::<T>(), lies }
    }
}

impl<T: Pod> GlobalPtr<T> {
    #[inline(always)]
    fn side(self, job: &Job) -> Side<'_> {
        let (inner, lies) = (&job.all().inner, Lies::From(self.place()));
        Side { inner, mapped: &inner.reach, half: Half::Open, size: size_of::<T>(), lies }
    }
}

impl Side<'_> {
    /// Where element `i` lies in its half, and how many from it on follow each other there.
    #[inline(always)]
    fn stretch(&self, i: usize) -> (At, usize) {
        match self.lies {
            Lies::Spread(spread, engine, start) => {
                let (member, k, together) = spread.stretch(i);
                (At { rank: engine.rank_of(member).0, offset: start + (k * self.size) as u64 }, together)
            }
            Lies::From(At { rank, offset }) => (At { rank, offset: offset + (i * self.size) as u64 }, usize::MAX),
        }
    }
}

/// Walks both sides, which were checked, and hands over the runs that lie at one stride: where the first is there, and in
/// bytes here.
#[inline(always)]
fn walk(side: &Side<'_>, there: &mut Cursor<'_>, here: &mut Cursor<'_>, mut each: impl FnMut(At, usize, Runs)) {
    let size = side.size;
    if size == 0 {
        return;
    }
    while let Some(Pair { starts: [mut i, mut k], len, mut count, strides: [far, near] }) = there.pair(here) {
        while count > 0 {
            let (at, together) = side.stretch(i);
            // As many runs as follow each other there, whole; else the parts of one.
            let whole = match together.checked_sub(len) {
                None => 0,
                // They lie in the array, so this is a number.
                Some(rest) if (count - 1) * far <= rest => count,
                Some(rest) => rest / far + 1,
            };
            if whole == 0 {
                let (mut at, mut together, mut done) = (at, together, 0);
                while done < len {
                    let part = together.min(len - done);
                    let runs = Runs { len: part * size, count: 1, there: 0, here: 0 };
                    each(at, (k + done) * size, runs);
                    done += part;
                    if done < len {
                        (at, together) = side.stretch(i + done);
                    }
                }
            } else {
                each(at, k * size, Runs { len: len * size, count: whole, there: far * size, here: near * size });
            }
            let taken = whole.max(1);
            count -= taken;
            // After the last one these are no elements, and perhaps no numbers.
            (i, k) = (i.wrapping_add(taken.wrapping_mul(far)), k.wrapping_add(taken.wrapping_mul(near)));
        }
    }
}

/// Starts writing; both sides were checked.
fn start_puts(
    side: &Side<'_>,
    site: Site,
    there: &mut Cursor<'_>,
    src: &[u8],
    here: &mut Cursor<'_>,
) -> Option<Transfer> {
    let mut far = None;
    walk(side, there, here, |at, from, runs| {
        if side.mapped.write_runs(at, &src[from..], runs).is_err() {
            Far::of(&mut far, side, site).put(at, &src[from..], runs);
        }
    });
    far.and_then(|far| far.put_all())
}

/// Starts reading; both sides were checked.
fn start_gets(
    side: &Side<'_>,
    site: Site,
    there: &mut Cursor<'_>,
    dst: &mut [u8],
    here: &mut Cursor<'_>,
) -> Option<Transfer> {
    let mut far = None;
    walk(side, there, here, |at, to, runs| {
        if side.mapped.read_runs(at, &mut dst[to..], runs).is_err() {
            Far::of(&mut far, side, site).get(at, dst, to, runs);
        }
    });
    far.and_then(|far| far.get_all(dst))
}

/// Copies `total` elements from shared to shared memory, some at a time; both sides were checked.
fn copy(site: Site, from: (&Side<'_>, &mut Cursor<'_>), to: (&Side<'_>, &mut Cursor<'_>), total: usize) {
    let size = from.0.size;
    let most = (AT_A_TIME / size.max(1)).clamp(1, total.max(1));
    let mut bytes = vec![0; most * size];
    for begun in (0..total).step_by(most) {
        let dense = 0..most.min(total - begun);
        let some = &mut bytes[..dense.len() * size];
        complete(start_gets(from.0, site, from.1, some, &mut Cursor::new(&dense)));
        complete(start_puts(to.0, site, to.1, some, &mut Cursor::new(&dense)));
    }
}

/// Runs that are this long go by the network itself, where there is one.
const BY_NETWORK: usize = 4 << 10;

/// The part of a copy that is not reached by copying: runs of one rank are packed into one message, as far as they fit.
struct Far<'i> {
    inner: &'i Rc<Inner>,
    site: Site,
    half: Half,
    started: Option<Started>,
    /// By rank.
    packets: Vec<Option<Box<Packet>>>,
    /// Packets of a get that are full.
    full: Vec<(u32, Packet)>,
    /// Where the answers to those of a put come.
    slot: Option<Given>,
}

impl<'i> Far<'i> {
    /// That of this copy, which is made when the first run needs it.
    fn of<'f>(this: &'f mut Option<Box<Self>>, side: &Side<'i>, site: Site) -> &'f mut Self {
        this.get_or_insert_with(|| {
            let (packets, full) = ((0..side.inner.size).map(|_| None).collect(), Vec::new());
            Box::new(Far { inner: side.inner, site, half: side.half, started: None, packets, full, slot: None })
        })
    }

    #[cold]
    #[inline(never)]
    fn put(&mut self, at: At, src: &[u8], runs: Runs) {
        if self.is_by_network(at, runs) {
            for i in 0..runs.count {
                let src = &src[i * runs.here..][..runs.len];
                let started = self.inner.start_put(self.site, self.place(at, i * runs.there), src);
                self.add(started.expect("memory that the network knows"));
            }
            return;
        }
        self.pack(
            at,
            runs,
            |packet, group, from| packet.put(group, &src[from..], runs.here),
            |this, full| this.send(at.rank, full),
        );
    }

    /// `dst` is all of it, and the first run belongs at `to`.
    #[cold]
    #[inline(never)]
    fn get(&mut self, at: At, dst: &mut [u8], to: usize, runs: Runs) {
        if self.is_by_network(at, runs) {
            for i in 0..runs.count {
                let dst = &mut dst[to + i * runs.here..][..runs.len];
                let started = self.inner.start_get(self.site, self.place(at, i * runs.there), dst);
                self.add(started.expect("memory that the network knows"));
            }
            return;
        }
        self.pack(
            at,
            runs,
            |packet, group, from| packet.get(group, (to + from) as u64, runs.here),
            |this, full| this.full.push((at.rank, full)),
        );
    }

    /// Adds runs to the packets of their rank: as many as fit, and a part of one where it is longer than a packet.
    fn pack(
        &mut self,
        at: At,
        runs: Runs,
        add: impl Fn(&mut Packet, Group, usize) -> (usize, usize),
        full: impl Fn(&mut Self, Packet),
    ) {
        let (mut run, mut inside) = (0, 0);
        while run < runs.count {
            let group = Group {
                offset: at.offset + (run * runs.there + inside) as u64,
                len: runs.len - inside,
                count: if inside == 0 { runs.count - run } else { 1 },
                stride: runs.there,
            };
            let packet = self.packets[at.rank as usize].get_or_insert_default();
            match add(packet, group, run * runs.here + inside) {
                (0, 0) => {
                    let packet = std::mem::take(&mut **packet);
                    full(self, packet);
                }
                (0, part) => inside += part,
                (whole, _) => (run, inside) = (run + whole, 0),
            }
        }
    }

    fn is_by_network(&self, at: At, runs: Runs) -> bool {
        runs.len >= BY_NETWORK && self.inner.is_network(at)
    }

    fn place(&self, at: At, further: usize) -> At {
        At { offset: (at.offset + further as u64) | self.half.mark(), ..at }
    }

    fn add(&mut self, started: Started) {
        self.started = Some(match self.started.take() {
            Some(before) => before.and(started),
            None => started,
        });
    }

    /// Sends a packet of a put.
    fn send(&mut self, to: u32, packet: Packet) {
        let (inner, site) = (self.inner, self.site);
        let answers = &inner.seat.landing().answers;
        let slot = self.slot.get_or_insert_with(|| Given::new(inner.clone(), site, answers.take(0))).slot;
        answers.one_more(slot);
        inner.reference.count(|c| c.packed += 1);
        inner.unless_over(reference::send_put_runs(&inner.seat, site, to, self.half, slot, packet));
    }

    /// Sends what is left of a put: what is under way then.
    #[cold]
    #[inline(never)]
    fn put_all(mut self) -> Option<Transfer> {
        for (rank, packet) in std::mem::take(&mut self.packets).into_iter().enumerate() {
            if let Some(packet) = packet {
                self.send(rank as u32, *packet);
            }
        }
        Transfer::of_both(self.inner, self.site, self.started, self.slot)
    }

    /// Asks for all that a get needs: what is under way then.
    #[cold]
    #[inline(never)]
    fn get_all(mut self, dst: &mut [u8]) -> Option<Transfer> {
        let open = self.packets.into_iter().enumerate();
        self.full.extend(open.filter_map(|(rank, packet)| packet.map(|packet| (rank as u32, *packet))));
        let (inner, site) = (self.inner, self.site);
        let asked = if self.full.is_empty() {
            None
        } else {
            inner.reference.count(|c| c.packed += self.full.len() as u64);
            inner.start_get_runs(site, self.half, self.full, dst)
        };
        Transfer::of_both(inner, site, self.started, asked)
    }
}
