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
use std::marker::PhantomData;
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

    /// Where a value is; `None` if it does not lie in a segment or is not aligned.
    #[inline(always)]
    pub fn word<T: Pod>(&self, at: At) -> Option<Mapped<'_, T>> {
        let p = self.locate_value::<T>(at)?;
        // SAFETY: aligned, inside a segment that is mapped as long as this table, and segments have no references into
        // them (`Reach::new`).
        Some(unsafe { Mapped::new(p.cast()) })
    }

    /// Reads a value; `None` if it does not lie in a segment or is not aligned.
    #[inline(always)]
    pub fn get<T: Pod>(&self, at: At) -> Option<T> {
        Some(self.word(at)?.get())
    }

    /// Writes a value; `None` if the place does not lie in a segment or is not aligned.
    #[inline(always)]
    #[must_use]
    pub fn put<T: Pod>(&self, at: At, value: T) -> Option<()> {
        self.word(at)?.put(value);
        Some(())
    }

    /// The table of the parts of an array: `count` values at this offset of the segments of these ranks, its members, or of the only one's that
    /// has some. `None` if they do not lie in segments, or are not aligned.
    pub fn parts<T: Pod>(&self, offset: u64, count: usize, members: &[u32], only: Option<usize>) -> Option<Parts<T>> {
        let len = count.checked_mul(size_of::<T>())?;
        let part = |(member, &rank): (usize, &u32)| match self.bases.get(rank as usize)? {
            Some(_) if only.is_none_or(|only| only == member) => {
                let p = self.locate(At { rank, offset }, len)?.cast::<T>();
                p.is_aligned().then(|| NonNull::new(p))
            }
            _ => Some(None),
        };
        let bases = members.iter().enumerate().map(part).collect::<Option<_>>()?;
        Some(Parts { reachable: 0, bases, count, row: [].into(), reciprocal: 0, _maps: self._maps.clone() })
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
///
/// # Arrays in a row
/// Where every rank has one block, of `count` elements, element `i` is in the block `⌊i / count⌋`, and the address of the
/// array's element 0 as seen from that block is known beforehand: a multiplication, a load and an addition find it, for
/// any number of ranks. Why the multiplication is exact: with `m = ⌈2^64 / count⌉` and `e = m·count - 2^64`,
/// `i·m / 2^64 = i/count + i·e / (count·2^64)`; the second term is below `1/count`, too little to reach the next integer,
/// if `i·e < 2^64`. A quotient below the number of ranks means `i < ranks·count`, for which
/// [`in_a_row`](Parts::in_a_row) has found that to hold.
#[derive(Debug)]
pub struct Parts<T> {
    /// By member; none where it is not to be reached this way.
    bases: Box<[Option<NonNull<T>>]>,
    /// Values of each.
    count: usize,
    /// By block, for arrays in a row of which all blocks are mapped: where element 0 would be if all were here. Empty for others.
    row: Box<[NonNull<T>]>,
    /// `⌈2^64 / count⌉`.
    reciprocal: u64,
    /// How many elements of the row can be reached now; never more than `row.len() * count`, for which `reciprocal` is exact.
    reachable: usize,
    /// What the bases point into.
    _maps: Arc<[Arc<Mapping>]>,
}

impl<T: Pod> Parts<T> {
    /// The same for an array in a row of `len` elements whose first block is this rank's. (If it is too long for the
    /// multiplication, has blocks of one element, or lies on other nodes too, nothing changes.)
    pub fn in_a_row(mut self, first: usize, len: usize) -> Parts<T> {
        let ranks = self.bases.len();
        if let Some(reciprocal) = reciprocal(self.count, ranks) {
            let block = |turn: usize| {
                let base = self.bases[(first + turn) % ranks]?.as_ptr();
                NonNull::new(base.wrapping_sub(turn * self.count))
            };
            let blocks = len.div_ceil(self.count).min(ranks);
            self.row = (0..blocks).map(block).collect::<Option<_>>().unwrap_or_default();
            self.reciprocal = reciprocal;
            self.reach(len);
        }
        self
    }

    /// From now on so many elements can be reached by [`locate`](Self::locate), at most; of other arrays none.
    pub fn reach(&mut self, len: usize) {
        self.reachable = len.min(self.row.len() * self.count);
    }

    /// Where element `i` of an array in a row is; `None` if it cannot be reached, and for other arrays.
    #[inline(always)]
    pub fn locate(&self, i: usize) -> Option<Mapped<'_, T>> {
        // SAFETY: `reach` sees to it.
        (i < self.reachable).then(|| unsafe { self.locate_inside(i) })
    }

    /// The same among so many, whether or not they can be reached otherwise.
    #[inline(always)]
    pub fn locate_among(&self, i: usize, len: usize) -> Option<Mapped<'_, T>> {
        // SAFETY: tested.
        (i < len && len <= self.row.len() * self.count).then(|| unsafe { self.locate_inside(i) })
    }

    /// # Safety
    /// `i < row.len() * count`.
    #[inline(always)]
    unsafe fn locate_inside(&self, i: usize) -> Mapped<'_, T> {
        let block = quotient(i, self.reciprocal);
        debug_assert_eq!(block, i / self.count);
        // SAFETY: the quotient is exact there, so it is below the number of blocks; this is inside the block, which is mapped as
        // long as this lives; parts are aligned (`Reach::parts`).
        unsafe { Mapped::new(self.row.get_unchecked(block).as_ptr().wrapping_add(i)) }
    }

    /// Where the k-th value of a member's part is; `None` if it cannot be reached.
    #[inline(always)]
    pub fn locate_part(&self, rank: usize, k: usize) -> Option<Mapped<'_, T>> {
        let base = (*self.bases.get(rank)?)?;
        // SAFETY: inside the part, which is mapped as long as this lives and aligned.
        (k < self.count).then(|| unsafe { Mapped::new(base.as_ptr().add(k)) })
    }
}

/// `⌈2^64 / count⌉`, if a [`quotient`] by it is exact wherever it is below `ranks`.
fn reciprocal(count: usize, ranks: usize) -> Option<u64> {
    let (count, ranks) = (count as u128, ranks as u128);
    let reciprocal = (1u128 << 64).div_ceil(count.max(1));
    let excess = (reciprocal * count).wrapping_sub(1 << 64);
    let exact = (ranks * count).checked_mul(excess).is_some_and(|most| most < 1 << 64);
    u64::try_from(reciprocal).ok().filter(|_| exact && count > 0)
}

#[inline(always)]
fn quotient(i: usize, reciprocal: u64) -> usize {
    ((i as u128 * u128::from(reciprocal)) >> 64) as usize
}

/// A value that is mapped here, found to be inside a segment and aligned. As long as the table from which it comes.
#[derive(Debug)]
pub struct Mapped<'m, T> {
    // Not a `NonNull`: whether there is one would be told from its bits, which have to be computed first.
    at: *mut T,
    _table: PhantomData<&'m Reach>,
}

impl<T> Clone for Mapped<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Mapped<'_, T> {}

impl<T: Pod> Mapped<'_, T> {
    /// # Safety
    /// Aligned, mapped as long as `'m`, and in a segment: no reference to it exists whenever this is used.
    #[inline(always)]
    unsafe fn new(p: *mut T) -> Self {
        Mapped { at: p, _table: PhantomData }
    }

    /// Its address.
    #[inline(always)]
    pub fn as_ptr(self) -> *mut T {
        self.at
    }

    /// Reads it.
    #[inline(always)]
    pub fn get(self) -> T {
        // SAFETY: aligned and mapped, without references (`new`).
        unsafe { copy::load(self.as_ptr().cast()) }
    }

    /// Writes it.
    #[inline(always)]
    pub fn put(self, value: T) {
        // SAFETY: as for `get`.
        unsafe { copy::store(self.as_ptr().cast(), value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below the number of ranks a quotient is exact; there is none below it for anything that is not in the array.
    #[test]
    fn quotients_are_exact() {
        let sizes = (1..300).chain((4..34).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1]));
        for (count, ranks) in sizes.flat_map(|count| [1, 2, 3, 7, 16, 1000].map(|ranks| (count, ranks))) {
            let Some(reciprocal) = reciprocal(count, ranks) else {
                assert!(count == 1 || (ranks as u128 * count as u128) * count as u128 > 1 << 64, "{count}, {ranks}");
                continue;
            };
            let all = ranks * count;
            let edges = (0..=ranks + 1).flat_map(|block| [-1, 0, 1].map(|by| (block * count).checked_add_signed(by)));
            for i in edges.flatten().chain([all / 2, all / 3, 2 * all, usize::MAX / count, usize::MAX]) {
                let (found, exact) = (quotient(i, reciprocal), i / count);
                assert!(found == exact || found.min(exact) >= ranks, "{i} / {count} on {ranks}");
            }
        }
        assert_eq!([reciprocal(0, 2), reciprocal(1, 2), reciprocal((1 << 60) - 1, 1 << 10)], [None; 3]);
        assert_eq!(reciprocal(1 << 43, 1 << 16), Some(1 << 21));
    }

    #[test]
    fn elements_of_a_row_are_where_they_are() {
        const RANKS: usize = 3;
        const LEN: usize = FIRST as usize + SMALL;
        let memory = vec![0u64; (RANKS * LEN + 4096) / 8];
        let start = memory.as_ptr().cast::<u8>().wrapping_add(memory.as_ptr().cast::<u8>().align_offset(4096));
        let base = |rank: usize| start.wrapping_add(rank * LEN).cast_mut();
        // SAFETY: pages of `memory`, which outlives the tables and to which nobody has a reference that is used.
        let reach = unsafe { Reach::new((0..RANKS).map(base).collect(), LEN as u64, vec![]) };
        for (count, first) in [(1, 0), (2, 1), (7, 0), (8, 2), (100, 1)] {
            let parts = reach.parts::<u32>(FIRST, count, &[0, 1, 2], None).unwrap();
            assert!(parts.locate(0).is_none(), "not in a row");
            let mut parts = parts.in_a_row(first, RANKS * count);
            for i in 0..RANKS * count {
                let (rank, k) = ((first + i / count) % RANKS, i % count);
                let there = parts.locate_part(rank, k).unwrap().as_ptr();
                assert_eq!(there, base(rank).wrapping_add(FIRST as usize + 4 * k).cast());
                assert_eq!(parts.locate(i).map(Mapped::as_ptr), (count > 1).then_some(there), "{i} of {count}");
            }
            let outside = [RANKS * count, RANKS * count + 1, usize::MAX / 2, usize::MAX];
            assert!(outside.iter().all(|&i| parts.locate(i).is_none()));
            assert!(parts.locate_part(0, count).is_none() && parts.locate_part(RANKS, 0).is_none());
            // What is out of reach is, but for who asks among so many.
            parts.reach(count);
            assert_eq!(parts.locate(count - 1).is_some(), count > 1);
            assert!(parts.locate(count).is_none() && parts.locate_among(count, count).is_none());
            assert_eq!(parts.locate_among(count, RANKS * count).is_some(), count > 1);
            assert!(parts.locate_among(0, RANKS * count + 1).is_none());
            parts.reach(0);
            assert!(parts.locate(0).is_none());
            parts.reach(usize::MAX);
            assert!(parts.locate(RANKS * count).is_none());
        }
        let only = reach.parts::<u32>(FIRST, 10, &[0, 1, 2], Some(1)).unwrap().in_a_row(1, 10);
        assert!((0..10).all(|i| only.locate(i).is_some()) && only.locate(10).is_none());
        let none = reach.nothing().parts::<u32>(FIRST, 10, &[0, 1, 2], None).unwrap().in_a_row(0, 30);
        assert!((0..30).all(|i| none.locate(i).is_none()));
        // Of some ranks, in another order.
        let two = reach.parts::<u32>(FIRST, 10, &[2, 0], None).unwrap().in_a_row(0, 20);
        for (i, rank) in [(0, 2), (9, 2), (10, 0), (19, 0)] {
            let there = base(rank).wrapping_add(FIRST as usize + 4 * (i % 10)).cast();
            assert_eq!(two.locate(i).map(Mapped::as_ptr), Some(there));
        }
        assert!(two.locate(20).is_none() && reach.parts::<u32>(FIRST, 10, &[3], None).is_none());
    }
}
