//! [`Job`]: the rank's own handle.

use crate::error::{Error, Result};
use crate::fail;
use crate::ptr::GlobalPtr;
use crate::team::{Rank, Team};
use bytemuck::Pod;
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::Memory;
use partage_conduit::heap::Side;
use partage_conduit::record::Site;
use partage_conduit::shm::rma::Reach;
use partage_conduit::shm::segment::Exhausted;
use partage_conduit::shm::{Seat, bytes};
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

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

/// What all handles of a rank share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub rank: Rank,
    pub size: usize,
    pub reach: Reach,
    pub seat: Seat,
    /// The notify of a split barrier whose wait has not come yet.
    pub notified: Cell<Option<Site>>,
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
    pub(crate) fn new(seat: Seat, rank: usize) -> Job {
        let node = seat.node();
        let (size, reach) = (node.ranks(), node.reach().clone());
        let inner = Inner { rank: Rank(rank as u32), size, reach, seat, notified: Cell::new(None) };
        Job { all: Team { inner: Rc::new(inner) } }
    }

    #[inline(always)]
    pub(crate) fn reach(&self) -> &Reach {
        &self.all.inner.reach
    }

    /// The last barrier, which only ranks pass that have all come to their end.
    pub(crate) fn end(&self, site: Site) {
        self.all.meet(Tag::Exit, u64::MAX, move || site);
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
        Rank((i64::from(self.rank().0) + k).rem_euclid(self.size() as i64) as u32)
    }

    /// How far away `r` is.
    #[track_caller]
    pub fn distance(&self, r: Rank) -> Distance {
        let node = self.all.inner.seat.node();
        assert!(r.index() < self.size(), "{}: distance: there is no {r} in a job of {}", self.rank(), self.size());
        match r {
            _ if r == self.rank() => Distance::Me,
            _ if node.process_of(r.index()) == node.process_of(self.rank().index()) => Distance::Process,
            _ => Distance::Node,
        }
    }

    /// Is the memory of `r` mapped here?
    #[track_caller]
    pub fn same_node(&self, r: Rank) -> bool {
        self.distance(r) < Distance::Far
    }

    /// Orders my earlier puts before my later ones, as others see them.
    pub fn fence(&self) {
        self.reach().fence();
    }

    /// Completes all my puts, everywhere.
    pub fn quiet(&self) {
        self.reach().quiet();
    }

    /// Allocates one value in my segment. Not collective: no lock and no other rank is involved.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, value: T) -> Result<GlobalPtr<T>> {
        let p = self.alloc_slice(1)?;
        p.put(self, value);
        Ok(p)
    }

    /// Allocates `n` zeroed values in my segment. Not collective. The pointer for `n` = 0 is one that nobody else has.
    #[track_caller]
    pub fn alloc_slice<T: Pod>(&self, n: usize) -> Result<GlobalPtr<T>> {
        let (len, align) = self.room::<T>("alloc_slice", n)?;
        let offset = self.all.inner.seat.take(Side::Local, len, align);
        let offset = offset.map_err(|e| self.exhausted("alloc_slice", len, e))?;
        Ok(GlobalPtr::new(self.rank(), offset))
    }

    /// Frees what [`alloc`](Self::alloc) or [`alloc_slice`](Self::alloc_slice) gave to this rank; null is ignored.
    /// A pointer that is kept reads old or new plain data, never anything that a reference covers.
    #[track_caller]
    pub fn free<T: Pod>(&self, p: GlobalPtr<T>) {
        if p.is_null() {
            return;
        }
        let me = self.rank();
        if p.rank() != me {
            panic!("{me}: free: {p:?} belongs to {}; its owner frees it", p.rank());
        }
        if !self.all.inner.seat.give(Side::Local, p.place().offset) {
            match self.all.inner.seat.side_of(p.place().offset) {
                Some(_) => panic!("{me}: free: {p:?} was allocated by alloc_all; free it by free_all, on all ranks"),
                None => panic!("{me}: free: no allocation starts at {p:?} (freed twice, or not what alloc returned)"),
            }
        }
    }

    /// Collective: allocates `n` zeroed values on every rank, at the same offset. Returns my part; `p.on(rank)` is that
    /// of another. All ranks ask for the same; if one of them has no room, all get the error.
    #[track_caller]
    pub fn alloc_all<T: Pod>(&self, n: usize) -> Result<GlobalPtr<T>> {
        let site = Site::here("alloc_all");
        let (len, align) = self.room::<T>("alloc_all", n)?;
        let mine = self.all.inner.seat.take(Side::Symmetric, len, align);
        // The smallest of what ranks found: 0 where one found nothing. Equal calls give equal offsets.
        let vote = mine.as_ref().map_or(0, |&offset| offset);
        let what = len << Call::ALIGN_BITS | u64::from(align.ilog2());
        let agreed = self.all.meet(Tag::Call(Call::AllocAll, what), vote, move || site);
        match mine {
            Ok(offset) if agreed == offset => Ok(GlobalPtr::new(self.rank(), offset)),
            Ok(offset) => {
                self.all.inner.seat.give(Side::Symmetric, offset);
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
        let offset = p.place().offset;
        if !p.is_null() && self.all.inner.seat.side_of(offset) != Some(Side::Symmetric) {
            panic!("{}: free_all: no allocation of alloc_all starts at {p:?}", self.rank());
        }
        self.all.meet(Tag::Call(Call::FreeAll, offset), u64::MAX, move || site);
        if !p.is_null() {
            self.all.inner.seat.give(Side::Symmetric, offset);
        }
    }

    /// Bytes of my segment that are allocated.
    pub fn allocated(&self) -> u64 {
        self.all.inner.seat.in_use()
    }

    /// Ends every rank of the job with this exit code, at once. Zero is a clean end too.
    pub fn exit(&self, code: i32) -> ! {
        use std::io::Write;
        let _ = std::io::stdout().flush();
        fail::die(code, None)
    }

    /// Prints a line that begins with my rank, in one piece.
    pub fn println(&self, line: impl fmt::Display) {
        use std::io::Write;
        let text = format!("[{}] {line}\n", self.rank().0);
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    fn room<T>(&self, call: &str, n: usize) -> Result<(u64, u64)> {
        let me = self.rank();
        if align_of::<T>() > 4096 {
            return Err(Error::config(format!("{me}: {call}: values aligned to more than a page")));
        }
        let len = n.checked_mul(size_of::<T>()).filter(|&l| l < 1 << 56);
        let len = len.ok_or_else(|| {
            Error::out_of_memory(format!("{me}: {call} of {n} values of {} bytes: too large", size_of::<T>()))
        })?;
        // Blocks of a cache line and more start at one.
        Ok((len as u64, (align_of::<T>() as u64).max(if len >= 64 { 64 } else { 16 })))
    }

    #[cold]
    fn exhausted(&self, call: &str, len: u64, e: Exhausted) -> Error {
        let why = match e {
            Exhausted::Segment { largest } => {
                format!("the largest free block of the segment has {}; PARTAGE_SEGMENT sets its size", bytes(largest))
            }
            Exhausted::Memory { left } => format!("{} of memory are left", bytes(left)),
        };
        Error::out_of_memory(format!("{}: {call} of {}: {why}", self.rank(), bytes(len)))
    }
}
