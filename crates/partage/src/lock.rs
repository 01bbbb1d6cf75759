//! Locks that guard a value: [`Mutexes`], many of them over all ranks, and [`MutexPtr`], one that a rank makes alone.
//! Of `()` they are UPC's bare locks.
//!
//! # What they promise
//! A lock has one holder at a time, whichever ranks of whichever nodes want it. A [`Guard`] has a copy of the value, read when
//! the lock was taken; dropping it writes the copy back and releases. What the holder put anywhere before that, by plain
//! puts, is seen by the next holder. If a rank unwinds, the lock is released and the value stays as it was: nobody sees it
//! half changed, so a lock is never poisoned.
//!
//! A rank that waits gets the lock as long as holders release it: others pass it over for half a millisecond or so (less, where
//! ranks share cores, once it is the first that waits). It serves others meanwhile, as in every wait, and sends nothing: a
//! lock on another node is asked for once. A guard that is kept or forgotten keeps the lock; a report
//! of where the ranks are says who has it, and since which line.
//!
//! # Memory safety
//! Locks of [`Mutexes`] lie in guarded memory, beside arrays: no pointer names them. One of [`MutexPtr`] lies in open memory,
//! which a forged or stale pointer may write to. That can make its rank wait for nothing, or two ranks hold it: the value is
//! plain data that is copied, and everything else there is an atomic whose bits are checked before they are used as
//! anything. So it confuses a lock, and never breaks memory.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let sums = job.mutexes::<[u64; 2]>(10).unwrap();     // collective; zeroed
//!     for i in 0..10 {
//!         let mut sum = sums.lock(i);                      // waits; a copy of the value
//!         sum[0] += 1;
//!         sum[1] += job.rank().0 as u64;
//!     }                                                    // written back, released
//!     job.barrier();
//!     assert_eq!(*sums.lock(7), [4, 6]);
//!     # job.barrier();
//! });
//! ```

use crate::array::Wanted;
use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::team::{Group, Rank, Team};
use bytemuck::{Pod, Zeroable, bytes_of, bytes_of_mut};
use partage_conduit::contract::{At, Half};
use partage_conduit::heap::Side;
use partage_conduit::lock::{self, Cell, Neighbours, Owner, Refused, Released, Turn, Waits};
use partage_conduit::pool::LARGE;
use partage_conduit::record::Site;
use partage_conduit::reference::{GRANT, LOCK, UNLOCK};
use partage_conduit::shm::lock as told;
use partage_conduit::shm::rma::Reach;
use partage_conduit::sync::ticks;
use partage_conduit::wait::{Aborted, Bell, Cores};
use partage_conduit::word::{Atomic, Op};
use partage_plan::layout::{Layout, Spread};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Where a value lies after its lock, and the bytes of both.
struct Shape<T>(PhantomData<T>);

impl<T> Shape<T> {
    const ALIGN: usize = if align_of::<T>() > 64 { align_of::<T>() } else { 64 };
    const VALUE: usize = size_of::<Cell>().next_multiple_of(align_of::<T>());
    const LEN: usize = (Self::VALUE + size_of::<T>()).next_multiple_of(Self::ALIGN);
}

/// This rank's handle to locks over all ranks, each with a value: what [`Team::mutexes`] gives.
///
/// ```
/// use partage::prelude::*;
/// partage::test(3, |job| {
///     let locks = job.mutexes::<()>(Layout::cyclic(6)).unwrap();      // UPC's, without a value
///     let a = job.array::<u64>(6).unwrap();
///     for i in 0..6 {
///         let _held = locks.lock(i);
///         a.put(i, a.get(i) + 1);                                     // ordered by the lock
///     }
///     job.barrier();
///     assert_eq!(a.get(5), 3);
///     assert_eq!(locks.affinity(4), Rank(1));
///     # job.barrier();
/// });
/// ```
pub struct Mutexes<T> {
    inner: Rc<Inner>,
    /// The team whose members have them.
    group: Rc<Group>,
    spread: Spread,
    len: usize,
    /// Where every rank's part begins in its guarded half.
    start: u64,
    slot: u16,
    _t: PhantomData<fn() -> T>,
}

impl Team {
    /// Collective: free locks over all members, each with a zeroed value, laid out like an array. All give the same layout and type;
    /// if one of them has no room, all get the error. Their memory is used again as that of arrays is.
    #[track_caller]
    pub fn mutexes<T: Pod>(&self, layout: impl Into<Layout>) -> Result<Mutexes<T>> {
        let (site, me) = (Site::here("mutexes"), self.inner.rank);
        self.may_meet(|| site);
        let spread = layout.into().over(self.size()).map_err(|why| Error::config(format!("{me}: mutexes: {why}")))?;
        if align_of::<T>() > 4096 {
            return Err(Error::config(format!("{me}: mutexes: values aligned to more than a page")));
        }
        let room = spread.largest_part().checked_mul(Shape::<T>::LEN).filter(|&n| n < 1 << 43);
        let Some(room) = room.filter(|_| spread.len() < 1 << 60) else {
            let (n, name) = (spread.len(), type_name::<T>());
            return Err(Error::out_of_memory(format!("{me}: {n} mutexes with values of type {name}: too large")));
        };
        let size = (Shape::<T>::LEN as u64, Shape::<T>::ALIGN as u64);
        let wanted = Wanted::of(&spread, type_name::<Mutexes<T>>(), size, room as u64, true);
        let (slot, start) = self.agree_on_array(site, &wanted)?;
        let len = spread.len();
        let (inner, group) = (self.inner.clone(), self.group.clone());
        Ok(Mutexes { inner, group, spread, len, start, slot, _t: PhantomData })
    }
}

impl<T: Pod> Mutexes<T> {
    /// How many there are, on all ranks together.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How they are laid out.
    pub fn layout(&self) -> Layout {
        self.spread.layout()
    }

    /// The rank in whose memory lock `i` and its value are.
    #[track_caller]
    pub fn affinity(&self, i: usize) -> Rank {
        Rank(self.place("affinity", i).at.rank)
    }

    /// Takes lock `i`, when it can be had. A rank that holds it already panics, as does a call in a function that another rank
    /// called: it may wait.
    #[inline]
    #[track_caller]
    pub fn lock(&self, i: usize) -> Guard<'_, T> {
        take(&self.inner, self.place("lock", i))
    }

    /// Takes lock `i` if nobody has it.
    ///
    /// ```
    /// partage::test(2, |job| {
    ///     let counts = job.mutexes::<u32>(job.size()).unwrap();
    ///     let mine = counts.try_lock(job.rank().index()).unwrap();
    ///     job.barrier();
    ///     assert!(counts.try_lock(job.neighbor(1).index()).is_none());
    ///     job.barrier();
    ///     drop(mine);
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn try_lock(&self, i: usize) -> Option<Guard<'_, T>> {
        try_take(&self.inner, self.place("try_lock", i))
    }

    #[inline(always)]
    #[track_caller]
    fn place(&self, call: &str, i: usize) -> Place {
        if i >= self.len {
            self.refuse(call, i);
        }
        let (member, k) = self.spread.locate(i);
        let at = At::guarded(self.group.engine.rank_of(member).0, self.start + (k * Shape::<T>::LEN) as u64);
        Place { at, name: Name::Index(i) }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse(&self, call: &str, i: usize) -> ! {
        panic!("{}: {call}: there is no lock {i} among {}", self.inner.rank, self.len)
    }
}

impl<T> Drop for Mutexes<T> {
    fn drop(&mut self) {
        self.group.arrays.dropped(self.slot);
    }
}

impl<T> fmt::Debug for Mutexes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mutexes of {}, {:?}", self.len, type_name::<T>(), self.spread.layout())
    }
}

/// A lock with a value in the open memory of some rank: 64 plain bits, which can be stored in shared memory and sent. All
/// zeros is null. What [`Job::alloc_mutex`] gives.
///
/// ```
/// use partage::prelude::*;
/// partage::test(3, |job| {
///     let told = job.alloc_all::<MutexPtr<u64>>(1).unwrap();
///     if job.rank().0 == 0 {
///         told.put(job, job.alloc_mutex(40).unwrap());
///     }
///     job.barrier();
///     let count = told.on(Rank(0)).get(job);
///     *count.lock(job) += 1;
///     job.barrier();
///     if job.rank().0 == 1 {
///         assert_eq!(*count.lock(job), 43);
///         count.free(job);                                 // any rank may
///     }
///     # job.barrier();
/// });
/// ```
#[repr(transparent)]
pub struct MutexPtr<T>(GlobalPtr<T>);

impl<T> Clone for MutexPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for MutexPtr<T> {}
impl<T> PartialEq for MutexPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for MutexPtr<T> {}
impl<T> std::hash::Hash for MutexPtr<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T> Default for MutexPtr<T> {
    fn default() -> Self {
        MutexPtr(GlobalPtr::default())
    }
}
impl<T> fmt::Debug for MutexPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
// SAFETY: transparent over a pointer, and all zeros is the null one.
unsafe impl<T: 'static> Zeroable for MutexPtr<T> {}
// SAFETY: transparent over a pointer, which is plain data; every use is checked.
unsafe impl<T: 'static> Pod for MutexPtr<T> {}

impl<T> Serialize for MutexPtr<T> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T> Deserialize<'de> for MutexPtr<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        GlobalPtr::deserialize(d).map(MutexPtr)
    }
}

impl Job {
    /// Makes a free lock with this value in my segment. Not collective: no other rank is involved.
    #[track_caller]
    pub fn alloc_mutex<T: Pod>(&self, value: T) -> Result<MutexPtr<T>> {
        let (site, me, inner) = (Site::here("alloc_mutex"), self.rank(), &self.all().inner);
        let (len, align) = (Shape::<T>::LEN as u64, Shape::<T>::ALIGN as u64);
        if align > 4096 {
            return Err(Error::config(format!("{me}: alloc_mutex: values aligned to more than a page")));
        }
        let taken = inner.seat.take(Half::Open, Side::Local, len, align);
        let offset = taken.map_err(|e| self.exhausted("alloc_mutex", len, e))?;
        inner.leaks.note(offset, len, || site);
        let at = At { rank: me.0, offset: offset + Shape::<T>::VALUE as u64 };
        self.mapped().put(at, value).expect("memory of mine");
        Ok(MutexPtr(GlobalPtr::new(me, offset)))
    }

    /// The same as [`MutexPtr::free`].
    #[track_caller]
    pub fn free_mutex<T: Pod>(&self, p: MutexPtr<T>) {
        p.free(self);
    }
}

impl<T: Pod> MutexPtr<T> {
    /// The pointer that points nowhere.
    pub const NULL: Self = MutexPtr(GlobalPtr::NULL);

    /// Is this the null pointer?
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The rank in whose memory the lock and its value are.
    pub fn rank(self) -> Rank {
        self.0.rank()
    }

    /// Takes the lock, when it can be had; like [`Mutexes::lock`].
    #[inline]
    #[track_caller]
    pub fn lock(self, job: &Job) -> Guard<'_, T> {
        take(&job.all().inner, self.place())
    }

    /// Takes the lock if nobody has it.
    #[inline]
    #[track_caller]
    pub fn try_lock(self, job: &Job) -> Option<Guard<'_, T>> {
        try_take(&job.all().inner, self.place())
    }

    /// Frees the lock; any rank may, null is ignored. If somebody holds it, it keeps its guard, and the memory is given back when
    /// it drops it. A rank that waits for a lock that is freed panics. Not in a function that was called: it may wait until those know.
    #[track_caller]
    pub fn free(self, job: &Job) {
        if self.is_null() {
            return;
        }
        let (inner, at, site) = (&job.all().inner, self.0.place(), Site::here("free_mutex"));
        inner.may_wait(|| site);
        let what = Atomic::on_u64(Op::Or, lock::FREED);
        if !at.offset.is_multiple_of(Shape::<T>::ALIGN as u64) || !inner.may_lie(at, Shape::<T>::LEN) {
            refuse::<T>(inner, "free_mutex", self.place());
        }
        // No closure: it would not know the caller's place.
        let old = match inner.reach.atomic(at, what) {
            None => inner.atomic_far(site, at, what),
            old => old,
        };
        match old {
            Some(old) if old & lock::FREED != 0 => {
                panic!("{}: free_mutex: {} was freed already", inner.rank, self.place())
            }
            // Nobody holds it, and nobody can any more: this rank does, and releases it, so that whoever waits hears of it.
            Some(old) if Owner::of(old).is_none() => {
                let near = inner.reach.lock(at, Shape::<T>::LEN).is_some();
                let mine = if near { inner.seat.owner(site.at) } else { Owner::new(inner.rank.0, 0, true) };
                let take = Atomic::on_u64(Op::Or, mine.bits());
                if inner.reach.atomic(at, take).is_none() {
                    inner.atomic_far(site, at, take);
                }
                let by = if near { By::Word(mine) } else { By::Home };
                drop(Guard::new(inner, self.place(), site.at, by, T::zeroed()));
            }
            Some(_) => {}
            None => refuse::<T>(inner, "free_mutex", self.place()),
        }
    }

    #[inline(always)]
    fn place(self) -> Place {
        Place { at: self.0.place(), name: Name::Pointer }
    }
}

/// Where a lock is, and what it is called.
#[derive(Clone, Copy)]
struct Place {
    at: At,
    name: Name,
}

#[derive(Clone, Copy)]
enum Name {
    Index(usize),
    Pointer,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Name::Index(i) => write!(f, "lock {i}"),
            Name::Pointer => write!(f, "lock {:?}", GlobalPtr::<u8>::new(Rank(self.at.rank), self.at.offset)),
        }
    }
}

/// Where a rank waits, for which lock, and who has it.
struct Waiting {
    site: Site,
    place: Place,
    held: Option<(u64, String)>,
    /// Who had it when this rank asked; it hears no more until it is its turn.
    when_asked: bool,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, for {}", self.site, self.place)?;
        if let Some((rank, since)) = &self.held {
            write!(f, " held by rank {rank} since {since}{}", if self.when_asked { " when it asked" } else { "" })?;
        }
        Ok(())
    }
}

/// A lock that is held, and a copy of its value: what [`Mutexes::lock`] and [`MutexPtr::lock`] give. Dropping it writes the copy
/// back and releases the lock; if the rank unwinds, it only releases it.
#[must_use = "a lock is held as long as its guard lives"]
pub struct Guard<'a, T: Pod> {
    inner: &'a Rc<Inner>,
    place: Place,
    /// Where it was taken.
    at: &'static Location<'static>,
    by: By,
    changed: bool,
    /// Did the rank unwind already when it was taken? Then it is not dropped for that.
    unwinding: bool,
    value: T,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Its word is reached here.
    Word(Owner),
    /// Its home.
    Home,
    /// The job ended while this rank, which unwinds, waited: it is not held.
    Nothing,
}

impl<T: Pod> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Pod> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.changed = true;
        &mut self.value
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// What can be reached of this half by a copy.
#[inline(always)]
fn table(inner: &Inner, at: At) -> &Reach {
    match at.half() {
        Half::Open => &inner.reach,
        Half::Guarded => &inner.guarded,
    }
}

#[inline(always)]
fn value_of<T>(at: At) -> At {
    At { offset: at.offset + Shape::<T>::VALUE as u64, ..at }
}

#[inline(always)]
#[track_caller]
fn take<'a, T: Pod>(inner: &'a Rc<Inner>, place: Place) -> Guard<'a, T> {
    let at = Location::caller();
    inner.may_wait(|| Site { call: "lock", at });
    let (reach, there) = (table(inner, place.at), place.at.in_half());
    if let Some(cell) = reach.lock(there, Shape::<T>::LEN) {
        let mine = inner.seat.owner(at);
        if cell.try_take(mine) || take_slowly(inner, cell, mine, place, at) {
            let value = reach.get(value_of::<T>(there)).expect("behind its lock");
            return Guard::new(inner, place, at, By::Word(mine), value);
        }
        return Guard::new(inner, place, at, By::Nothing, T::zeroed());
    }
    take_far(inner, place, Site { call: "lock", at }, true).expect("it waited")
}

#[inline(always)]
#[track_caller]
fn try_take<'a, T: Pod>(inner: &'a Rc<Inner>, place: Place) -> Option<Guard<'a, T>> {
    let at = Location::caller();
    inner.may_wait(|| Site { call: "try_lock", at });
    let (reach, there) = (table(inner, place.at), place.at.in_half());
    if let Some(cell) = reach.lock(there, Shape::<T>::LEN) {
        let mine = inner.seat.owner(at);
        if !cell.try_take(mine) {
            inner.look();
            return None;
        }
        let value = reach.get(value_of::<T>(there)).expect("behind its lock");
        return Some(Guard::new(inner, place, at, By::Word(mine), value));
    }
    take_far(inner, place, Site { call: "try_lock", at }, false)
}

/// Waits for a lock whose word is reached here; false if the job ended meanwhile.
#[cold]
#[inline(never)]
#[track_caller]
fn take_slowly(inner: &Rc<Inner>, cell: &Cell, mine: Owner, place: Place, at: &'static Location<'static>) -> bool {
    let site = Site { call: "lock", at };
    let me = inner.rank;
    match cell.take(mine, &Wanting { inner, cell, site, place }) {
        Ok(()) => true,
        Err(Refused::Aborted) => {
            inner.unless_over::<()>(Err(Aborted));
            false
        }
        Err(Refused::Yours(there)) => {
            let since = inner.seat.node().site_of(place.at.rank as usize, there);
            is_mine(me, place, &since)
        }
        Err(Refused::Freed) => was_freed(me, place),
        Err(Refused::NotALock) => panic!("{me}: lock: something was written over {place}, or it never was one"),
    }
}

#[cold]
#[track_caller]
fn is_mine(me: Rank, place: Place, since: &str) -> ! {
    panic!("{me}: lock: this rank has {place} since {since}; drop that guard first")
}

#[cold]
#[track_caller]
fn was_freed(me: Rank, place: Place) -> ! {
    panic!("{me}: lock: {place} was freed")
}

/// A rank that waits for a lock whose word it reaches.
struct Wanting<'a> {
    inner: &'a Rc<Inner>,
    cell: &'a Cell,
    site: Site,
    place: Place,
}

impl Neighbours for Wanting<'_> {
    fn of(&self, near: usize) -> Option<(&Turn, &Bell)> {
        self.inner.seat.node().of(near)
    }

    fn starves(&self, since: u64) -> bool {
        self.inner.seat.node().starves(since)
    }
}

impl Waits for Wanting<'_> {
    fn me(&self) -> usize {
        self.inner.seat.node().ranks().near(self.inner.rank.index())
    }

    fn until(&self, done: impl Fn() -> bool + Copy) -> std::result::Result<(), Aborted> {
        let node = self.inner.seat.node();
        let held = || {
            let owner = self.cell.holder()?;
            Some((u64::from(owner.rank()), node.site_of(self.place.at.rank as usize, owner)))
        };
        let wait = || Waiting { site: self.site, place: self.place, held: held(), when_asked: false };
        self.inner.wait_saying(wait, done)
    }

    /// Where ranks share cores everybody waits for long, and a lock that is always handed over waits for cores.
    fn counts(&self, begun: u64, head: u64) -> u64 {
        if self.inner.seat.waiter().cores() == Cores::Own { begun } else { head }
    }

    fn now(&self) -> u64 {
        ticks()
    }
}

/// Asks the home for a lock whose word is not reached here, or says what is wrong; `None` if it is held and this does not wait.
#[cold]
#[inline(never)]
#[track_caller]
fn take_far<'a, T: Pod>(inner: &'a Rc<Inner>, place: Place, site: Site, waits: bool) -> Option<Guard<'a, T>> {
    let aligned = place.at.offset.is_multiple_of(Shape::<T>::ALIGN as u64);
    let inside = place.at.half() == Half::Guarded || inner.may_lie(place.at, Shape::<T>::LEN);
    if !aligned || !inside {
        refuse::<T>(inner, site.call, place);
    }
    let (told, me) = (inner.seat.told(), inner.rank);
    let mut guard = Guard::new(inner, place, site.at, By::Home, T::zeroed());
    told.begin_lock();
    // It may wait for room.
    inner.request(site, Rank(place.at.rank), LOCK, bytes_of(&ask::<T>(place, waits)), site.at.to_string().as_bytes());
    // An answer may be there at once, also to who asks again and again; others are served all the same.
    inner.progress();
    let wait = || Waiting { site, place, held: None, when_asked: false };
    if let Err(Aborted) = inner.wait_saying(wait, || told.lock_is_answered()) {
        return Some(over(guard));
    }
    let (answer, bytes) = told.lock_answer();
    let text = || String::from_utf8_lossy(&bytes);
    match answer.how {
        told::GRANTED if bytes.len() == size_of::<T>() => {
            bytes_of_mut(&mut guard.value).copy_from_slice(&bytes);
            return Some(guard);
        }
        told::GRANTED => {}
        told::QUEUED => {
            let held = || (answer.rank != told::NOBODY).then(|| (answer.rank, text().into_owned()));
            let wait = || Waiting { site, place, held: held(), when_asked: true };
            if let Err(Aborted) = inner.wait_saying(wait, || told.is_granted()) {
                return Some(over(guard));
            }
            if told.is_freed() {
                guard.by = By::Nothing;
                was_freed(me, place);
            }
        }
        told::BUSY => {
            guard.by = By::Nothing;
            return None;
        }
        told::YOURS => {
            guard.by = By::Nothing;
            is_mine(me, place, &text())
        }
        _ => {
            guard.by = By::Nothing;
            was_freed(me, place)
        }
    }
    let read = inner.get_far(site, value_of::<T>(place.at), bytes_of_mut(&mut guard.value));
    read.expect("behind its lock");
    Some(guard)
}

/// The job ended before this rank had the lock.
fn over<'a, T: Pod>(mut guard: Guard<'a, T>) -> Guard<'a, T> {
    guard.by = By::Nothing;
    guard.inner.unless_over::<()>(Err(Aborted));
    guard
}

fn ask<T>(place: Place, flag: bool) -> told::Ask {
    let value = [Shape::<T>::VALUE as u32, size_of::<T>() as u32];
    told::Ask { offset: place.at.offset, value, flag: flag.into() }
}

/// Panics, saying what is wrong with this pointer to a lock.
#[cold]
#[inline(never)]
#[track_caller]
fn refuse<T: Pod>(inner: &Inner, call: &str, place: Place) -> ! {
    let p = GlobalPtr::<u8>::new(Rank(place.at.rank), place.at.offset);
    if place.at.offset.is_multiple_of(Shape::<T>::ALIGN as u64) || p.is_null() {
        p.refuse_by(inner.seat.node().reach(), format_args!("{}: {call}", inner.rank), Shape::<T>::LEN);
    }
    panic!("{}: {call}: {p:?} is no lock: those begin at multiples of {}", inner.rank, Shape::<T>::ALIGN)
}

impl<T: Pod> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let (inner, place) = (self.inner, self.place);
        if let By::Word(mine) = self.by
            && inner.seat.node().net().is_none()
        {
            let (reach, there) = (table(inner, place.at), place.at.in_half());
            if self.is_to_be_written() {
                reach.put(value_of::<T>(there), self.value).expect("behind its lock");
            }
            let cell = reach.lock(there, Shape::<T>::LEN).expect("it was taken");
            let released = cell.release(mine, &**inner.seat.node());
            return if released != Released::Free {
                self.not_released(released)
            };
        }
        self.release_slowly();
    }
}

impl<'a, T: Pod> Guard<'a, T> {
    #[inline(always)]
    fn new(inner: &'a Rc<Inner>, place: Place, at: &'static Location<'static>, by: By, value: T) -> Self {
        Guard { inner, place, at, by, changed: false, unwinding: std::thread::panicking(), value }
    }

    /// Not by who unwinds with it.
    #[inline(always)]
    fn is_to_be_written(&self) -> bool {
        self.changed && (self.unwinding || !std::thread::panicking())
    }

    /// Releases it where puts may be under way, or by its home.
    #[cold]
    #[inline(never)]
    fn release_slowly(&mut self) {
        let (inner, place, site) = (self.inner, self.place, self.site());
        if self.by == By::Nothing || inner.calls.is_over() || inner.is_ending() {
            return;
        }
        inner.complete_far(site);
        let changed = self.is_to_be_written();
        let By::Word(mine) = self.by else { return self.hand_on(changed) };
        let (reach, there) = (table(inner, place.at), place.at.in_half());
        if changed {
            reach.put(value_of::<T>(there), self.value).expect("behind its lock");
        }
        let cell = reach.lock(there, Shape::<T>::LEN).expect("it was taken");
        self.not_released(cell.release(mine, &**inner.seat.node()));
        // Ranks that do nothing but lock hear those of other nodes.
        inner.progress();
    }

    #[cold]
    #[inline(never)]
    fn not_released(&self, released: Released) {
        match released {
            Released::Free => {}
            Released::HandOn => self.hand_on(false),
            Released::Freeing => self.release_when_all_know(),
            Released::Freed => self.was_freed(),
            Released::NotYours => self.is_not_mine(),
        }
    }

    /// Releases it or hands it on, by the home if the word is not reached here, with the value if that is to be written; and tells who has it then.
    fn hand_on(&self, write: bool) {
        let (inner, place, site) = (self.inner, self.place, self.site());
        let fits = size_of::<T>() <= LARGE;
        if write && !fits {
            inner.put_far(site, value_of::<T>(place.at), bytes_of(&self.value)).expect("behind its lock");
        }
        let mut value = if write && fits { bytes_of(&self.value) } else { &[] };
        let hand_on = |value: &[u8]| match self.by {
            By::Word(_) => self.hand_on_here(),
            _ => self.ask_home(value),
        };
        while let Some(answer) = hand_on(value) {
            let tell = |freed| {
                inner.request(site, Rank(answer.rank as u32), GRANT, bytes_of(&told::grant(freed)), &[]);
            };
            match answer.how {
                told::FREE => {}
                told::TELL => tell(false),
                told::FREED => self.was_freed(),
                told::FREEING => {
                    if answer.rank != told::NOBODY {
                        tell(true);
                    } else {
                        // Ranks of its node wait for it: they leave, and tell nobody.
                        let begun = Instant::now();
                        inner.wait(site, || begun.elapsed() >= Duration::from_millis(1));
                    }
                    value = &[];
                    continue;
                }
                _ => self.is_not_mine(),
            }
            return;
        }
    }

    /// Releases it or hands it on; what is to be done then, unless the job is over.
    fn hand_on_here(&self) -> Option<told::Told> {
        let (inner, at) = (self.inner, self.place.at);
        let cell = table(inner, at).lock(at.in_half(), Shape::<T>::LEN).expect("it was taken");
        inner.seat.node().hand_on(cell, at.rank as usize, at.offset, inner.rank.0)
    }

    /// Asks the home to release it, with this value if there is one; what it answers, unless the job is over.
    fn ask_home(&self, value: &[u8]) -> Option<told::Told> {
        let (inner, place, site) = (self.inner, self.place, self.site());
        let told = inner.seat.told();
        told.begin_unlock();
        inner.request(site, Rank(place.at.rank), UNLOCK, bytes_of(&ask::<T>(place, !value.is_empty())), value);
        inner.wait(site, || told.unlock_is_answered());
        told.unlock_is_answered().then(|| told.unlock_answer())
    }

    /// It was freed while this rank had it, and others of the node wait for it: they leave, and panic.
    fn release_when_all_know(&self) {
        let (inner, place) = (self.inner, self.place);
        let (By::Word(mine), reach) = (self.by, table(inner, place.at)) else { return };
        let cell = reach.lock(place.at.in_half(), Shape::<T>::LEN).expect("it was taken");
        // Nobody rings for it: it looks now and then.
        inner.wait(self.site(), || !cell.is_awaited());
        // Else the job is over.
        if !cell.is_awaited() {
            self.not_released(cell.release(mine, &**inner.seat.node()));
        }
    }

    /// It was freed while this rank had it, and nobody waits for it.
    fn was_freed(&self) {
        if self.unwinding || !std::thread::panicking() {
            let At { rank, offset } = self.place.at;
            Job::of(self.inner.clone()).free(GlobalPtr::<u8>::new(Rank(rank), offset));
        }
    }

    #[cold]
    fn is_not_mine(&self) {
        if !std::thread::panicking() {
            panic!(
                "{}: {}: something was written over {} while this rank held it",
                self.inner.rank,
                self.site(),
                self.place
            );
        }
    }

    fn site(&self) -> Site {
        Site { call: "the guard of lock", at: self.at }
    }
}
