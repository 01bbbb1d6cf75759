//! Put and get between ranks of a node: an address, a check, a copy.
//!
//! # Ordering
//! A put has reached memory when it returns: local and remote completion are one. Puts and gets of one rank to one
//! place are in program order; to different places they may be seen in any order by others until a barrier, a fence or
//! a signal lies between (on x86-64 they happen to be seen in order; nothing may rely on it).

use crate::contract::{At, Outside};
use crate::copy::{self, Runs};
use crate::heap::FIRST;
use crate::shm::segment::Mapping;
use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use std::ptr::NonNull;
use std::sync::Arc;

/// Where every rank's segment (one half of it) is mapped here. Plain data behind one pointer: the first thing that a put looks at.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Segment base by rank of the job; none where it is not to be reached this way.
    bases: Box<[Option<NonNull<u8>>]>,
    /// Bytes from FIRST to the end of a segment; at least [`SMALL`].
    room: u64,
    /// For values of 1, 2, 4 and 8 bytes: how many of them after FIRST the last one is that fits.
    last: [u64; 4],
    /// What the bases point into.
    _maps: Arc<[Arc<Mapping>]>,
}

/// Values up to this size fit into any segment.
const SMALL: usize = 4096;

// SAFETY: addresses; every access through them goes through the copy routine, which any thread may use.
unsafe impl Send for Reach {}
// SAFETY: as above.
unsafe impl Sync for Reach {}

impl Reach {
    /// # Safety
    /// Each base is a page's address and the start of `len` bytes of mapped shared memory into which no reference exists,
    /// and they stay mapped as long as `maps` live.
    pub unsafe fn new(bases: Vec<*mut u8>, len: u64, maps: Vec<Arc<Mapping>>) -> Reach {
        assert!(len >= FIRST + SMALL as u64);
        let room = len - FIRST;
        let last = [0, 1, 2, 3].map(|shift| (room - (1 << shift)) >> shift);
        Reach { bases: bases.into_iter().map(NonNull::new).collect(), room, last, _maps: maps.into() }
    }

    /// The same table with nothing in it: every access takes another way.
    pub fn nothing(&self) -> Reach {
        Reach { bases: self.bases.iter().map(|_| None).collect(), ..self.clone() }
    }

    /// The length of every segment (of this half).
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.room + FIRST
    }

    /// The address of `len` bytes there, if all of them lie in the segment of a rank that is mapped here.
    #[inline(always)]
    pub fn locate(&self, at: At, len: usize) -> Option<*mut u8> {
        let base = (*self.bases.get(at.rank as usize)?)?.as_ptr();
        // One comparison for both ends: offsets below FIRST wrap around.
        if at.offset.wrapping_sub(FIRST) > self.room.checked_sub(len as u64)? {
            return None;
        }
        // SAFETY: offset + len <= segment length, so the address is inside the mapping.
        Some(unsafe { base.add(at.offset as usize) })
    }

    /// The same for a value, which must also be aligned.
    #[inline(always)]
    pub(super) fn locate_value<T>(&self, at: At) -> Option<*mut u8> {
        let base = (*self.bases.get(at.rank as usize)?)?.as_ptr();
        // One comparison for both ends and for the alignment: bits that must be zero are rotated to the top. FIRST is a
        // page and segments start at one, so what is aligned from there is aligned in memory.
        let (size, shift) = (size_of::<T>(), align_of::<T>().ilog2());
        const { assert!(align_of::<T>() <= FIRST as usize) };
        let last = match size {
            1 | 2 | 4 | 8 if size == align_of::<T>() => self.last[shift as usize],
            0..=SMALL => (self.room - size as u64) >> shift,
            _ => self.room.checked_sub(size as u64)? >> shift,
        };
        if at.offset.wrapping_sub(FIRST).rotate_right(shift) > last {
            return None;
        }
        // SAFETY: offset + size <= segment length, so the address is inside the mapping.
        Some(unsafe { base.add(at.offset as usize) })
    }

    /// Reads a value; `None` if it does not lie in a segment or is not aligned.
    #[inline(always)]
    pub fn get<T: Pod>(&self, at: At) -> Option<T> {
        let p = self.locate_value::<T>(at)?;
        // SAFETY: aligned, inside a segment, and segments have no references into them (`Reach::new`).
        Some(unsafe { copy::load(p) })
    }

    /// Writes a value; `None` if the place does not lie in a segment or is not aligned.
    #[inline(always)]
    #[must_use]
    pub fn put<T: Pod>(&self, at: At, value: T) -> Option<()> {
        let p = self.locate_value::<T>(at)?;
        // SAFETY: as for `get`.
        unsafe { copy::store(p, value) };
        Some(())
    }

    /// The table of the parts of an array: `count` values at this offset of every rank's segment, or of the only one's that
    /// has some. `None` if they do not lie in segments, or are not aligned.
    pub fn parts<T: Pod>(&self, offset: u64, count: usize, only: Option<usize>) -> Option<Parts<T>> {
        let len = count.checked_mul(size_of::<T>())?;
        let part = |(rank, base): (usize, &Option<NonNull<u8>>)| match base {
            Some(_) if only.is_none_or(|only| only == rank) => {
                let p = self.locate(At { rank: rank as u32, offset }, len)?.cast::<T>();
                p.is_aligned().then(|| NonNull::new(p))
            }
            _ => Some(None),
        };
        let bases = self.bases.iter().enumerate().map(part).collect::<Option<_>>()?;
        Some(Parts { bases, count, _maps: self._maps.clone() })
    }

    /// Says what is wrong with an access that [`locate`](Self::locate) refuses.
    pub fn check(&self, at: At, len: usize) -> Result<(), Outside> {
        self.locate(at, len).map(|_| ()).ok_or_else(|| self.outside(at, len))
    }

    fn outside(&self, at: At, len: usize) -> Outside {
        Outside { at, len, ranks: self.bases.len(), segment: self.len() }
    }

    /// Copies `src` to the place.
    #[inline(always)]
    pub fn write(&self, at: At, src: &[u8]) -> Result<(), Outside> {
        let Some(p) = self.locate(at, src.len()) else { return Err(self.outside(at, src.len())) };
        let word = |n: usize| src.len() == n && p.addr().is_multiple_of(n);
        // SAFETY: inside a segment, to which no reference exists; `src` is a reference, so it is not that memory. A word
        // is one store, which the C library's copy would not promise, and has the length that was tested.
        unsafe {
            match () {
                () if word(8) => copy::store(p, pod_read_unaligned::<u64>(src)),
                () if word(4) => copy::store(p, pod_read_unaligned::<u32>(src)),
                () if word(2) => copy::store(p, pod_read_unaligned::<u16>(src)),
                () => copy::write(p, src.as_ptr(), src.len()),
            }
        }
        Ok(())
    }

    /// Copies from the place to `dst`.
    #[inline(always)]
    pub fn read(&self, at: At, dst: &mut [u8]) -> Result<(), Outside> {
        let Some(p) = self.locate(at, dst.len()) else { return Err(self.outside(at, dst.len())) };
        let n = dst.len();
        let word = |len: usize| n == len && p.addr().is_multiple_of(len);
        // SAFETY: as for `write`.
        unsafe {
            match () {
                () if word(8) => dst.copy_from_slice(bytes_of(&copy::load::<u64>(p))),
                () if word(4) => dst.copy_from_slice(bytes_of(&copy::load::<u32>(p))),
                () if word(2) => dst.copy_from_slice(bytes_of(&copy::load::<u16>(p))),
                () => copy::read(dst.as_mut_ptr(), p, n),
            }
        }
        Ok(())
    }
}

impl Reach {
    /// Copies runs of `src` to others, the first of which begins at the place: one check for all. Words among them are one
    /// store each, as by [`write`](Self::write).
    ///
    /// # Panics
    /// If they do not lie in `src`.
    #[inline]
    pub fn write_runs(&self, at: At, src: &[u8], runs: Runs) -> Result<(), Outside> {
        assert!(runs.span_here().is_some_and(|span| span <= src.len()), "runs inside their memory");
        let Some(p) = runs.span_there().and_then(|span| self.locate(at, span)) else {
            return Err(self.none_of(at, runs));
        };
        // SAFETY: all of them lie inside a segment, to which no reference exists, and inside `src`, which is a reference, so
        // that it is not that memory.
        unsafe { copy::write_runs(p, src.as_ptr(), runs) };
        Ok(())
    }

    /// Copies runs, the first of which begins at the place, to those of `dst`.
    ///
    /// # Panics
    /// If they do not lie in `dst`.
    #[inline]
    pub fn read_runs(&self, at: At, dst: &mut [u8], runs: Runs) -> Result<(), Outside> {
        assert!(runs.span_here().is_some_and(|span| span <= dst.len()), "runs inside their memory");
        let Some(p) = runs.span_there().and_then(|span| self.locate(at, span)) else {
            return Err(self.none_of(at, runs));
        };
        // SAFETY: as for `write_runs`.
        unsafe { copy::read_runs(dst.as_mut_ptr(), p, runs) };
        Ok(())
    }

    fn none_of(&self, at: At, runs: Runs) -> Outside {
        self.outside(at, runs.span_there().unwrap_or(usize::MAX))
    }
}

/// Where the parts of an array are mapped here: what a get or put of one element looks at. Every use is checked.
#[derive(Debug)]
pub struct Parts<T> {
    /// By rank; none where it is not to be reached this way.
    bases: Box<[Option<NonNull<T>>]>,
    /// Values of each.
    count: usize,
    /// What the bases point into.
    _maps: Arc<[Arc<Mapping>]>,
}

impl<T: Pod> Parts<T> {
    #[inline(always)]
    fn locate(&self, rank: usize, k: usize) -> Option<*mut u8> {
        let base = (*self.bases.get(rank)?)?;
        // SAFETY: inside the part, which lies in the mapping.
        (k < self.count).then(|| unsafe { base.as_ptr().add(k).cast() })
    }

    /// Reads the k-th value of a rank's part; `None` if it cannot be reached.
    #[inline(always)]
    pub fn get(&self, rank: usize, k: usize) -> Option<T> {
        let p = self.locate(rank, k)?;
        // SAFETY: aligned and mapped, and whoever has this table is not used while there are references (`Reach::new`).
        Some(unsafe { copy::load(p) })
    }

    /// Writes it.
    #[inline(always)]
    #[must_use]
    pub fn put(&self, rank: usize, k: usize, value: T) -> Option<()> {
        let p = self.locate(rank, k)?;
        // SAFETY: as for `get`.
        unsafe { copy::store(p, value) };
        Some(())
    }
}
