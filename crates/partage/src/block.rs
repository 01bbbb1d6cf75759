//! [`BlockPtr`]: UPC's pointer-to-shared, which steps over blocks and ranks.
//!
//! Blocks lie in open memory at one offset of all ranks. [`Job::alloc_blocks`] takes them alone, [`Job::alloc_blocks_all`]
//! together; any rank frees them. For arrays that are worked on in phases there is
//! [`SharedArray`](crate::array::SharedArray).
//!
//! ```
//! use partage::prelude::*;
//! partage::test(3, |job| {
//!     let a = job.alloc_blocks_all::<u32>(Layout::block_cyclic(20, 4)).unwrap();
//!     for i in a.mine(job, 20) {                                   // upc_forall(i = 0; i < 20; i++; &a[i])
//!         a.offset(job, i as isize).ptr().put(job, i as u32);
//!     }
//!     job.barrier();
//!     let p = a.offset(job, 13);                                   // the second element of the fourth block
//!     assert_eq!((p.rank(), p.phase(), p.distance(job, a)), (Rank(0), 1, 13));
//!     assert_eq!(p.ptr().get(job), 13);
//!     job.free_blocks_all(a);
//! });
//! ```

use crate::error::{Error, Result};
use crate::job::Job;
use crate::ptr::GlobalPtr;
use crate::team::Rank;
use bytemuck::{Pod, Zeroable};
use partage_conduit::record::Site;
use partage_conduit::shm::bytes;
use partage_plan::layout::{Layout, Spread};
use partage_plan::pointer::{self, Place};
use std::{fmt, hash};

/// A pointer to an element of a block-cyclic object in open memory: rank, offset, phase and block size. Plain bits; checked
/// when it is used. Equality does not look at the phase.
#[repr(C)]
pub struct BlockPtr<T> {
    ptr: GlobalPtr<T>,
    phase: u32,
    /// Elements of a block; 0: all on one rank.
    block: u32,
}

impl<T> Clone for BlockPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for BlockPtr<T> {}
impl<T> PartialEq for BlockPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.ptr == other.ptr
    }
}
impl<T> Eq for BlockPtr<T> {}
impl<T> hash::Hash for BlockPtr<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.ptr.hash(state);
    }
}
// SAFETY: three fields without padding of which all zeros is a value: the null pointer.
unsafe impl<T: 'static> Zeroable for BlockPtr<T> {}
// SAFETY: 8 + 4 + 4 bytes without padding; every bit pattern is a value, because every use is checked.
unsafe impl<T: 'static> Pod for BlockPtr<T> {}

impl<T> fmt::Debug for BlockPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} of [{}]", self.ptr, self.phase, self.block)
    }
}

impl<T: Pod> BlockPtr<T> {
    /// The pointer that points nowhere.
    pub const NULL: Self = BlockPtr { ptr: GlobalPtr::NULL, phase: 0, block: 0 };

    /// Is this the null pointer?
    pub fn is_null(self) -> bool {
        self.ptr.is_null()
    }

    /// The rank that has the element (`upc_threadof`).
    pub fn rank(self) -> Rank {
        self.ptr.rank()
    }

    /// How many elements of the block come before it (`upc_phaseof`).
    pub fn phase(self) -> usize {
        self.phase as usize
    }

    /// The block size in elements; 0 if all are on one rank.
    pub fn block(self) -> usize {
        self.block as usize
    }

    /// The same place as the first of a block (`upc_resetphase`).
    pub fn reset_phase(self) -> Self {
        BlockPtr { phase: 0, ..self }
    }

    /// The offset in the rank's memory (`upc_addrfield`); differences within one object on one rank are bytes.
    pub fn addrfield(self) -> u64 {
        self.ptr.place().offset
    }

    /// The element here, as a plain pointer.
    pub fn ptr(self) -> GlobalPtr<T> {
        self.ptr
    }

    /// The same place seen with another block size or as another type, at phase 0.
    pub fn with_block<U: Pod>(self, block: u32) -> BlockPtr<U> {
        BlockPtr { ptr: self.ptr.cast(), phase: 0, block }
    }

    /// The pointer `i` elements further, or before: over blocks and ranks, as UPC counts.
    #[track_caller]
    pub fn offset(self, job: &Job, i: isize) -> Self {
        let to = pointer::step(self.place(), i as i64, self.block(), size_of::<T>(), job.size());
        let Some(to) = to.filter(|to| to.addr < 1 << 44) else {
            panic!("{}: offset: {i} elements after {self:?} there is no memory", job.rank())
        };
        BlockPtr { ptr: GlobalPtr::new(Rank(to.member as u32), to.addr), phase: to.phase as u32, ..self }
    }

    /// How many elements this lies after `origin`, in the same object.
    #[track_caller]
    pub fn distance(self, job: &Job, origin: Self) -> isize {
        let alike = self.block == origin.block && size_of::<T>() > 0;
        assert!(alike, "{}: distance: {self:?} and {origin:?} have different blocks, or no size", job.rank());
        pointer::distance(self.place(), origin.place(), self.block(), size_of::<T>(), job.size()) as isize
    }

    /// Of the `n` elements from here on, those that are mine, by their distance from here: UPC's forall by pointer, without a
    /// test for each element.
    #[track_caller]
    pub fn mine(self, job: &Job, n: usize) -> impl Iterator<Item = usize> + Clone + use<T> {
        let (phase, me) = (self.phase(), job.rank().index());
        let layout = Layout::block_cyclic(n.saturating_add(phase), self.block()).starting_at(self.rank().index());
        let spread = layout.over(job.size());
        let spread = match spread {
            Ok(spread) => spread,
            Err(why) => panic!("{}: mine: {n} elements from {self:?} on: {why}", job.rank()),
        };
        spread.indices(me).skip_while(move |&i| i < phase).map(move |i| i - phase)
    }

    fn place(self) -> Place {
        let at = self.ptr.place();
        Place { member: at.rank as usize, addr: at.offset, phase: self.phase.into() }
    }
}

impl Job {
    /// Allocates zeroed blocks over all ranks (`upc_global_alloc`). Not collective: each caller gets its own. The layout is
    /// one of blocks, or all on one rank. It takes a message to rank 0 and one to every rank, and waits for their answers.
    #[track_caller]
    pub fn alloc_blocks<T: Pod>(&self, layout: impl Into<Layout>) -> Result<BlockPtr<T>> {
        let site = Site::here("alloc_blocks");
        let inner = &self.all().inner;
        inner.may_wait(|| site);
        let (spread, block, len) = self.blocks::<T>("alloc_blocks", layout.into())?;
        let align = (align_of::<T>() as u64).max(64);
        let only = spread.only_member();
        let ranks = (0..self.size()).filter(|&r| only.is_none_or(|only| only == r)).map(|r| r as u32);
        let taken = inner.unless_over(inner.seat.take_blocks(site, len, align, ranks).map(Some));
        let why = |why| Error::out_of_memory(format!("{}: alloc_blocks of {}: {why}", self.rank(), bytes(len)));
        let offset = taken.unwrap_or_else(|| Err("the job is over".into())).map_err(why)?;
        Ok(BlockPtr { ptr: GlobalPtr::new(Rank(spread.layout().first() as u32), offset), phase: 0, block })
    }

    /// Frees what [`alloc_blocks`](Self::alloc_blocks) gave to any rank, by the pointer that it gave; null is ignored.
    #[track_caller]
    pub fn free_blocks<T: Pod>(&self, p: BlockPtr<T>) {
        let (site, inner) = (Site::here("free_blocks"), &self.all().inner);
        if p.is_null() {
            return;
        }
        inner.may_wait(|| site);
        if !inner.unless_over(inner.seat.give_blocks(site, p.addrfield())) {
            panic!(
                "{}: free_blocks: no blocks start at {p:?} (freed twice, or not what alloc_blocks gave)",
                self.rank()
            );
        }
    }

    /// Collective: allocates zeroed blocks over all ranks (`upc_all_alloc`); all get the same pointer. If one of them has no
    /// room, all get the error.
    #[track_caller]
    pub fn alloc_blocks_all<T: Pod>(&self, layout: impl Into<Layout>) -> Result<BlockPtr<T>> {
        let (spread, block, len) = self.blocks::<T>("alloc_blocks_all", layout.into())?;
        let mine = self.alloc_all::<T>(len as usize / size_of::<T>().max(1))?;
        Ok(BlockPtr { ptr: mine.on(Rank(spread.layout().first() as u32)), phase: 0, block })
    }

    /// Collective: frees what [`alloc_blocks_all`](Self::alloc_blocks_all) gave; it may be used until all have entered. Null
    /// is ignored, on all ranks.
    #[track_caller]
    pub fn free_blocks_all<T: Pod>(&self, p: BlockPtr<T>) {
        self.free_all(p.ptr);
    }

    /// How blocks are spread, their size in elements, and the bytes of every rank.
    fn blocks<T: Pod>(&self, call: &str, layout: Layout) -> Result<(Spread, u32, u64)> {
        let me = self.rank();
        let config = |why: String| Error::config(format!("{me}: {call}: {why}"));
        let spread = layout.over(self.size()).map_err(|why| config(why.to_string()))?;
        let block = match spread.block() {
            None if spread.only_member().is_none() => {
                return Err(config("pointers step over blocks, not over tiles; use an array".into()));
            }
            block => block.unwrap_or(0),
        };
        let block = u32::try_from(block).map_err(|_| config(format!("a block of {block} elements is too large")))?;
        // Pointers count as if the first block of every round were on rank 0.
        let before = if spread.layout().first() > 0 { block as usize } else { 0 };
        let (len, _) = self.room::<T>(call, spread.largest_part().saturating_add(before))?;
        Ok((spread, block, len))
    }
}

const _: () = assert!(size_of::<BlockPtr<u8>>() == 16);
