//! Phases: for the length of a closure, the memory of arrays is plain Rust.
//!
//! [`SharedArray::own`] gives every rank its own part as `&mut [T]`; [`SharedArray::freeze`] lets everyone read everything;
//! [`Team::phase`] does so for several arrays at once, for the price of one. They are collective: all ranks enter the same
//! phase of the same arrays. Inside, a rank may do anything but touch these arrays otherwise: compute on its slices, also
//! by threads of its own; meet in barriers; put to other arrays; enter phases of others.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(3, |job| {
//!     let n = 12;
//!     let (mut old, mut new) = (job.array::<f64>(n).unwrap(), job.array::<f64>(n).unwrap());
//!     old.put(5, 6.0);                                                    // all ranks write the same
//!     let mine: Vec<usize> = new.my_indices().collect();
//!     job.phase((old.frozen(), new.owned()), |(old, new)| {
//!         for (x, &i) in new.iter_mut().zip(&mine) {
//!             *x = (old.get(i.saturating_sub(1)) + old.get(i) + old.get((i + 1).min(n - 1))) / 3.0;
//!         }
//!     });
//!     assert_eq!([3, 4, 5, 6, 7].map(|i| new.get(i)), [0.0, 2.0, 2.0, 2.0, 0.0]);
//!     # job.barrier();
//! });
//! ```
//!
//! # Why this is sound
//! A slice exists from the entry barrier to the exit barrier. What could touch its memory meanwhile, and why it does not:
//! 1. *An access by value through a handle.* Every rank has one handle ([`SharedArray`] is neither `Clone` nor `Send`,
//!    nor can it be made of bits), lends it mutably to the phase, and the phase sets its length to 0 before it meets the others;
//!    every access compares with that length. So a handle that is reached all the same (from a thread-local, say) refuses.
//! 2. *An access that a rank has started and not completed*, forgotten events included. The entry completes everything that
//!    this rank has under way before it meets the others, and the exit what it has read of frozen arrays. Owned buffers stay
//!    alive until then.
//! 3. *A pointer.* Guarded memory has offsets that no pointer has ([`GUARDED`](partage_conduit::contract::GUARDED)).
//! 4. *A rank that is not in this phase.* The entry barrier carries the exact list of arrays and modes, the ranks' lists are
//!    compared one with another, and nobody passes unless all are equal: else all ranks end with the same message, and no
//!    closure runs. Array numbers are used again only when all ranks have agreed, so equal numbers are the same array, and
//!    all have agreed on what it is when it was made. (A handle that was kept from an earlier job has a number of that one; it
//!    is not taken.)
//! 5. *Another array in the same memory.* A block is used again when all ranks have dropped their handles; a phase holds a
//!    borrow of one, so it is not over.
//! 6. *Another part of the phase.* Each array occurs once, since each is borrowed mutably; own parts of different ranks are
//!    different bytes of different segments; a frozen array is given to all as `&[T]`, and nobody has it as `&mut`.
//! 7. *A panic.* It leaves the closure, and with it the slice. The handle keeps the length 0 for good; the others wait at
//!    the exit, which this rank never comes to: an uncaught panic ends the job, and after a caught one the next meeting of
//!    this rank disagrees with theirs, and ends it too.
//!
//! 8. *A handler*, which may run on a rank's thread in the middle of one of its waits, and could find a handle in a
//!    thread-local. It may access near elements by value, which obligation 1 covers; whatever waits, phases above all, is
//!    refused there.
//! 9. *The end of the job.* A wait then ends by unwinding, and no closure runs. But in a destructor that runs while its rank
//!    unwinds already, waits just end: a phase there gives slices without elements, and handles stay as they are in it.
//!
//! Of an array of a [team](crate::team::Team) all of this is said of its members: others have no handle, and the members' meetings are the team's. Numbers of
//! arrays are a team's own, so a phase takes arrays of its team only.
//!
//! The bytes of a slice are any that were ever put there, and `T` is [`Pod`]: they are values. Rust's memory model does not
//! speak of other processes; between them this is argued at the level of the machine: barriers order memory as
//! [`partage_conduit::barrier`] says, and accesses by value are made by one opaque routine.

use crate::array::{MOST_ARRAYS, SharedArray};
use crate::scope::Event;
use crate::team::{Rank, Team};
use bytemuck::Pod;
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::At;
use partage_conduit::record::Site;
use partage_plan::layout::Run;
use sealed::List;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

const _: () = assert!(MOST_ARRAYS < 1 << 14);

impl Team {
    /// Collective: runs `f` in a phase of several arrays, each [owned](SharedArray::owned) or
    /// [frozen](SharedArray::frozen); a tuple of up to six, or a `Vec`. Two barriers, for any number up to four.
    #[track_caller]
    pub fn phase<P: Phase, R>(&self, mut arrays: P, f: impl for<'p> FnOnce(P::View<'p>) -> R) -> R {
        let at = Location::caller();
        let (entry, exit) = (move || Site { call: "phase", at }, move || Site { call: "the end of a phase", at });
        self.may_meet(entry);
        self.inner.quiet_at(entry());
        arrays.begin(self);
        let list = arrays.list(List::default());
        self.agree(&list, Call::Phase, entry);
        if self.inner.is_ending() {
            arrays.hide();
        }
        // SAFETY: this rank has nothing under way, the lengths of the handles are 0 on all ranks, and all ranks are in this
        // phase until they have passed the barrier below: see the module's obligations. The view does not outlive `arrays`,
        // nor, because of its lifetime, the call of `f`.
        let result = f(unsafe { arrays.view() });
        // Reads of frozen arrays, before somebody may write to them.
        if !self.inner.seat.is_quiet() {
            self.inner.complete_far(exit());
        }
        self.agree(&list, Call::PhaseEnd, exit);
        if !self.inner.is_ending() {
            arrays.end();
        }
        result
    }

    #[inline(always)]
    #[track_caller]
    fn agree(&self, list: &List, call: Call, site: impl Fn() -> Site + Copy) {
        if !list.before.is_empty() {
            self.agree_on_more(list, call, site());
        }
        self.meet(Tag::Call(call, list.word), u64::MAX, site);
    }

    #[cold]
    #[track_caller]
    fn agree_on_more(&self, list: &List, call: Call, site: Site) {
        list.before.iter().for_each(|&word| _ = self.meet(Tag::Call(call, word), u64::MAX, move || site));
    }
}

impl<T: Pod> SharedArray<T> {
    /// Collective: every rank gets its own part as `&mut [T]`, in the order of [`my_indices`](Self::my_indices).
    #[inline]
    #[track_caller]
    pub fn own<R>(&mut self, f: impl FnOnce(&mut [T]) -> R) -> R {
        let team = self.team();
        team.phase(self.owned(), f)
    }

    /// Collective: calls `f` with the index of each of my elements and the element itself.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut squares = job.array::<u64>(Layout::cyclic(10)).unwrap();
    ///     squares.own_each(|i, x| *x = (i * i) as u64);
    ///     assert_eq!(squares.get(7), 49);
    ///     # job.barrier();
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn own_each(&mut self, mut f: impl FnMut(usize, &mut T)) {
        let runs = self.my_runs();
        self.own(|mine| {
            for Run { global, local } in runs {
                // All of them, but for a phase at the end of the job.
                let part = mine.get_mut(local).unwrap_or_default();
                part.iter_mut().zip(global).for_each(|(x, i)| f(i, x));
            }
        });
    }

    /// Collective: everyone may read everything; nobody can write.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let mut a = job.array::<u8>(6).unwrap();
    ///     a.own(|mine| mine.fill(1 + job.rank().0 as u8));
    ///     let sum: u8 = a.freeze(|a| job.ranks().flat_map(|r| a.part(r).unwrap_or_default()).sum());
    ///     assert_eq!(sum, 9);
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn freeze<R>(&mut self, f: impl FnOnce(View<'_, T>) -> R) -> R {
        let team = self.team();
        team.phase(self.frozen(), f)
    }

    /// This array, owned, for [`Team::phase`].
    pub fn owned(&mut self) -> Owned<'_, T> {
        Owned(Held { len: self.len(), array: self })
    }

    /// This array, frozen, for [`Team::phase`].
    pub fn frozen(&mut self) -> Frozen<'_, T> {
        Frozen(Held { len: self.len(), array: self })
    }

    fn team(&self) -> Team {
        Team { inner: self.inner.clone(), group: self.group.clone() }
    }

    /// My part, without any synchronization.
    ///
    /// # Safety
    /// No rank writes to this rank's part while the slice lives.
    pub unsafe fn local_unchecked(&self) -> &[T] {
        // SAFETY: as the caller promises.
        unsafe { self.part_of(self.inner.rank, self.len()).expect("mine is mapped") }
    }

    /// My part, without any synchronization.
    ///
    /// # Safety
    /// No other access, from any rank, to this rank's part while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn local_mut_unchecked(&self) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { self.my_part(self.len()) }
    }

    /// The part of a rank, of an array of `len` elements, if it is mapped.
    ///
    /// # Safety
    /// Nobody writes to it while the slice lives.
    unsafe fn part_of<'p>(&self, rank: Rank, len: usize) -> Option<&'p [T]> {
        let n = if len == 0 { 0 } else { self.part_len_of(rank) };
        let p = self.inner.own_table().locate(At { rank: rank.0, offset: self.start }, n * size_of::<T>())?;
        // SAFETY: mapped as long as the array's `inner`, aligned as it was taken, and any bytes are values.
        Some(unsafe { std::slice::from_raw_parts(p.cast(), n) })
    }

    /// My part, of an array of `len` elements.
    ///
    /// # Safety
    /// No other access to it while the slice lives.
    unsafe fn my_part<'p>(&self, len: usize) -> &'p mut [T] {
        let (n, rank) = (if len == 0 { 0 } else { self.mine }, self.inner.rank.0);
        let p = self.inner.own_table().locate(At { rank, offset: self.start }, n * size_of::<T>());
        // SAFETY: as above, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(p.expect("mine is mapped").cast(), n) }
    }
}

/// An array in a phase, whose handle reaches nothing meanwhile.
#[derive(Debug)]
struct Held<'a, T> {
    array: &'a mut SharedArray<T>,
    /// How many elements it has.
    len: usize,
}

/// An array of which every rank has its own part in a phase: what [`SharedArray::owned`] gives.
#[derive(Debug)]
pub struct Owned<'a, T>(Held<'a, T>);

/// An array that all ranks may read in a phase: what [`SharedArray::frozen`] gives.
#[derive(Debug)]
pub struct Frozen<'a, T>(Held<'a, T>);

/// What a phase is of: an array with its mode, a tuple of them, or a `Vec`.
pub trait Phase: sealed::Held {
    /// What the closure gets.
    type View<'p>;

    /// # Safety
    /// Between [`begin`](sealed::Held::begin) and [`end`](sealed::Held::end) on all ranks, once.
    #[doc(hidden)]
    unsafe fn view<'p>(&mut self) -> Self::View<'p>;
}

mod sealed {
    use crate::team::Team;
    use partage_conduit::barrier::Call;

    /// The arrays of a phase and their modes, in the words of its tags.
    #[derive(Debug, Default)]
    pub struct List {
        /// Of arrays beyond the last four.
        pub before: Vec<u64>,
        pub word: u64,
        count: u32,
    }

    impl List {
        #[inline(always)]
        pub fn and(mut self, slot: u16, frozen: bool) -> List {
            if self.count == 4 {
                self.before.push(self.word | Call::MORE);
                (self.word, self.count) = (0, 0);
            }
            self.word |= Call::in_phase(slot, frozen, self.count);
            self.count += 1;
            self
        }
    }

    /// What every array of a phase does.
    pub trait Held {
        /// Makes the handle, which must be of this job, reach nothing.
        fn begin(&mut self, team: &Team);
        /// Adds the number and whether it is frozen.
        fn list(&self, list: List) -> List;
        /// Makes the view reach nothing either.
        fn hide(&mut self);
        /// Makes the handle reach everything again.
        fn end(&mut self);
    }
}

impl<T: Pod> Held<'_, T> {
    #[track_caller]
    fn begin(&mut self, team: &Team) {
        if !Rc::ptr_eq(&self.array.inner, &team.inner) {
            panic!("{}: phase: this array is of another job, which is over", team.inner.rank);
        }
        if !Rc::ptr_eq(&self.array.group, &team.group) {
            panic!("{}: phase: this array is of another team; call the phase of that one", team.inner.rank);
        }
        if !self.array.inner.is_ending() {
            self.array.check_usable("phase");
        }
        self.array.set_len(0);
    }

    fn hide(&mut self) {
        self.len = 0;
    }

    fn end(&mut self) {
        self.array.set_len(self.len);
    }
}

impl<T: Pod> sealed::Held for Owned<'_, T> {
    #[track_caller]
    fn begin(&mut self, team: &Team) {
        self.0.begin(team);
    }
    #[inline(always)]
    fn list(&self, list: List) -> List {
        list.and(self.0.array.slot, false)
    }
    fn hide(&mut self) {
        self.0.hide();
    }
    fn end(&mut self) {
        self.0.end();
    }
}

impl<T: Pod> Phase for Owned<'_, T> {
    type View<'p> = &'p mut [T];

    unsafe fn view<'p>(&mut self) -> &'p mut [T] {
        // SAFETY: in a phase, a rank's own part is its alone.
        unsafe { self.0.array.my_part(self.0.len) }
    }
}

impl<T: Pod> sealed::Held for Frozen<'_, T> {
    #[track_caller]
    fn begin(&mut self, team: &Team) {
        self.0.begin(team);
    }
    #[inline(always)]
    fn list(&self, list: List) -> List {
        list.and(self.0.array.slot, true)
    }
    fn hide(&mut self) {
        self.0.hide();
    }
    fn end(&mut self) {
        self.0.end();
    }
}

impl<T: Pod> Phase for Frozen<'_, T> {
    type View<'p> = View<'p, T>;

    unsafe fn view<'p>(&mut self) -> View<'p, T> {
        let array: *const SharedArray<T> = self.0.array;
        // SAFETY: it is borrowed for longer than the phase, in which nobody touches the handle.
        View { array: unsafe { &*array }, len: self.0.len }
    }
}

impl<P: Phase> sealed::Held for Vec<P> {
    #[track_caller]
    fn begin(&mut self, team: &Team) {
        for array in self {
            array.begin(team);
        }
    }
    fn list(&self, list: List) -> List {
        self.iter().fold(list, |list, array| array.list(list))
    }
    fn hide(&mut self) {
        self.iter_mut().for_each(P::hide);
    }
    fn end(&mut self) {
        self.iter_mut().for_each(P::end);
    }
}

impl<P: Phase> Phase for Vec<P> {
    type View<'p> = Vec<P::View<'p>>;

    unsafe fn view<'p>(&mut self) -> Vec<P::View<'p>> {
        // SAFETY: as for each.
        self.iter_mut().map(|array| unsafe { array.view() }).collect()
    }
}

macro_rules! tuples {
    ($(($($p:ident $i:tt)+))+) => {$(
        impl<$($p: Phase),+> sealed::Held for ($($p,)+) {
            #[inline]
            #[track_caller]
            fn begin(&mut self, team: &Team) {
                $(self.$i.begin(team);)+
            }
            #[inline(always)]
            fn list(&self, list: List) -> List {
                $(let list = self.$i.list(list);)+
                list
            }
            fn hide(&mut self) {
                $(self.$i.hide();)+
            }
            #[inline]
            fn end(&mut self) {
                $(self.$i.end();)+
            }
        }
        impl<$($p: Phase),+> Phase for ($($p,)+) {
            type View<'p> = ($($p::View<'p>,)+);
            unsafe fn view<'p>(&mut self) -> Self::View<'p> {
                // SAFETY: as for each.
                unsafe { ($(self.$i.view(),)+) }
            }
        }
    )+};
}
tuples! { (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5) }

/// A frozen array, which all ranks may read: what a phase gives for [`SharedArray::frozen`].
#[derive(Debug)]
pub struct View<'p, T> {
    array: &'p SharedArray<T>,
    len: usize,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for View<'_, T> {}

impl<'p, T: Pod> View<'p, T> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// My part.
    pub fn mine(&self) -> &'p [T] {
        self.part(self.array.inner.rank).expect("mine is mapped")
    }

    /// The part of a rank of my node; `None` where it cannot be mapped.
    pub fn part(&self, rank: Rank) -> Option<&'p [T]> {
        // SAFETY: nobody writes to a frozen array.
        unsafe { self.array.part_of(rank, self.len) }
    }

    /// Reads element `i`, wherever it lies.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: usize) -> T {
        match self.array.locate_frozen(i, self.len) {
            Some(element) => element.get(),
            None => self.get_far(i),
        }
    }

    /// Starts reading elements into memory of the runtime's, as [`SharedArray::fetch`] does: to overlap the reads of what is
    /// far with work on what is here. The end of the phase completes what nobody has waited for.
    #[track_caller]
    pub fn fetch(&self, range: Range<usize>) -> Event<'p, Vec<T>> {
        self.check("fetch", range.start, range.len());
        let (site, mut values) = (Site::here("fetch"), vec![T::zeroed(); range.len()]);
        let started = self.array.start_gets(site, range, &mut values);
        Event::owned(started, values)
    }

    /// Reads `dst.len()` elements from `i` on, wherever they lie.
    #[track_caller]
    pub fn get_slice(&self, i: usize, dst: &mut [T]) {
        self.check("get_slice", i, dst.len());
        let site = Site::here("get_slice");
        if let Some(transfer) = self.array.start_gets(site, i..i + dst.len(), dst) {
            transfer.complete();
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_far(&self, i: usize) -> T {
        self.check("get", i, 1);
        let (site, mut value) = (Site::here("get"), T::zeroed());
        if let Some(transfer) = self.array.start_gets(site, i..i + 1, std::slice::from_mut(&mut value)) {
            transfer.complete();
        }
        value
    }

    #[track_caller]
    fn check(&self, call: &str, i: usize, n: usize) {
        if i.checked_add(n).is_none_or(|end| end > self.len) {
            let (me, len) = (self.array.inner.rank, self.len);
            panic!("{me}: {call} of a frozen array: {n} elements from {i} on do not lie in an array of {len}");
        }
    }
}
