//! Who has which bytes of a segment: pure book-keeping, kept in private memory where no stray put can reach it.
//!
//! A segment holds two heaps that grow towards each other: the *local* one from the bottom (its owner allocates, without
//! a lock and without a peer) and the *symmetric* one from the top (all ranks allocate alike, so that a block has the
//! same offset everywhere). The same calls in the same order give the same symmetric offsets: nothing is negotiated.
//! Where only some ranks allocate alike, they say which places are free ([`Heaps::find`]) and take one that all have ([`Heaps::take_at`]).
//!
//! Does not contain: the memory itself. [`Heaps`] says which bytes must be committed and which must be zeroed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The lowest offset that is handed out: offset 0 of rank 0 is the null pointer, and its page stays empty.
pub const FIRST: u64 = 4096;
const GRAIN: u64 = 16;

/// Which heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// From the bottom, this rank's own.
    Local,
    /// From the top, alike on all ranks.
    Symmetric,
}

/// The two heaps of one segment.
#[derive(Debug)]
pub struct Heaps {
    size: u64,
    local: Ranges,
    symmetric: Ranges,
}

/// A block that was found, and how much of it has been handed out before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Where it lies in the segment.
    pub range: Range<u64>,
    /// The part that may hold old bytes.
    pub stale: Range<u64>,
}

impl Heaps {
    /// For a segment of `size` bytes (a multiple of the page size).
    pub fn new(size: u64) -> Heaps {
        Heaps { size, local: Ranges::default(), symmetric: Ranges::default() }
    }

    /// Takes `len` bytes (at least one grain) aligned to `align`, a power of two up to the page size.
    /// `None`: the heaps would meet.
    pub fn take(&mut self, side: Side, len: u64, align: u64) -> Option<Block> {
        let (align, len) = Self::rounded(len, align)?;
        let room = self.size - FIRST - self.other(side).end;
        let at = self.side(side).take(len, align, room)?;
        Some(self.taken(side, at..at + len))
    }

    /// The lowest place from `from` on where a local block of `len` bytes could be taken; nothing is.
    pub fn find(&self, len: u64, align: u64, from: u64) -> Option<u64> {
        let (align, len) = Self::rounded(len, align)?;
        let room = self.size - FIRST - self.symmetric.end;
        Some(FIRST + self.local.find(len, align, from.saturating_sub(FIRST), room)?)
    }

    /// Takes the local block of `len` bytes that begins there; `None` if not all of it is free.
    pub fn take_at(&mut self, offset: u64, len: u64, align: u64) -> Option<Block> {
        let (align, len) = Self::rounded(len, align)?;
        let at = offset.checked_sub(FIRST).filter(|at| at.is_multiple_of(align))?;
        let room = self.size - FIRST - self.symmetric.end;
        self.local.take_at(at, len, room)?;
        Some(self.taken(Side::Local, at..at + len))
    }

    fn rounded(len: u64, align: u64) -> Option<(u64, u64)> {
        debug_assert!(align.is_power_of_two() && align <= 4096);
        let align = align.max(GRAIN);
        Some((align, len.max(1).checked_next_multiple_of(align)?))
    }

    /// What was taken, counted from this side's end.
    fn taken(&mut self, side: Side, at: Range<u64>) -> Block {
        let range = self.offsets(side, at.clone());
        // Either heap may have had these bytes before: the part from the bottom to the local heap's highest mark, and the
        // part from the symmetric heap's to the top.
        let below = range.start..range.end.min(FIRST + self.local.high);
        let above = range.start.max(self.size - self.symmetric.high)..range.end;
        let stale = match (below.is_empty(), above.is_empty()) {
            (true, true) => range.start..range.start,
            (false, true) => below,
            (true, false) => above,
            (false, false) => range.clone(),
        };
        let ranges = self.side(side);
        ranges.high = ranges.high.max(at.end);
        Block { range, stale }
    }

    /// Gives a block back by its offset; its range, or `None` if no block in use starts there.
    pub fn give(&mut self, side: Side, offset: u64) -> Option<Range<u64>> {
        let at = match side {
            Side::Local => offset.checked_sub(FIRST)?,
            Side::Symmetric => self.symmetric.ending_at(self.size.checked_sub(offset)?)?,
        };
        let len = self.side(side).give(at)?;
        Some(self.offsets(side, at..at + len))
    }

    /// The side whose block starts at this offset.
    pub fn side_of(&self, offset: u64) -> Option<Side> {
        if offset.checked_sub(FIRST).is_some_and(|at| self.local.used.contains_key(&at)) {
            return Some(Side::Local);
        }
        self.symmetric.ending_at(self.size.checked_sub(offset)?).map(|_| Side::Symmetric)
    }

    /// How far this side reaches from its end of the segment, page 0 included.
    pub fn extent(&self, side: Side) -> u64 {
        match side {
            Side::Local => FIRST + self.local.end,
            Side::Symmetric => self.symmetric.end,
        }
    }

    /// Everything from `from` to `to`, counted from this side's end of the segment, is zero again.
    pub fn forget(&mut self, side: Side, from: u64, to: u64) {
        let first = if side == Side::Local { FIRST } else { 0 };
        let ranges = self.side(side);
        // Only if nothing beyond may hold old bytes.
        if ranges.high + first <= to {
            ranges.high = ranges.high.min(from.saturating_sub(first));
        }
    }

    /// Bytes in use on both sides.
    pub fn in_use(&self) -> u64 {
        self.local.used.values().sum::<u64>() + self.symmetric.used.values().sum::<u64>()
    }

    /// The largest block that could still be taken on this side.
    pub fn largest(&self, side: Side) -> u64 {
        let ranges = if side == Side::Local { &self.local } else { &self.symmetric };
        let top = self.size - FIRST - self.local.end - self.symmetric.end;
        ranges.by_len.last().map_or(top, |&(len, _)| len.max(top))
    }

    fn offsets(&self, side: Side, at: Range<u64>) -> Range<u64> {
        match side {
            Side::Local => at.start + FIRST..at.end + FIRST,
            Side::Symmetric => self.size - at.end..self.size - at.start,
        }
    }

    fn side(&mut self, side: Side) -> &mut Ranges {
        if side == Side::Local { &mut self.local } else { &mut self.symmetric }
    }

    fn other(&self, side: Side) -> &Ranges {
        if side == Side::Local { &self.symmetric } else { &self.local }
    }
}

/// Best fit over free ranges, merged as they are given back.
#[derive(Debug, Default)]
struct Ranges {
    free: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    used: BTreeMap<u64, u64>,
    /// Everything beyond is untouched by blocks in use or free ranges.
    end: u64,
    /// The highest end that ever was.
    high: u64,
}

impl Ranges {
    fn take(&mut self, len: u64, align: u64, room: u64) -> Option<u64> {
        let fits = |&&(free, start): &&(u64, u64)| start.next_multiple_of(align) - start + len <= free;
        let at = match self.by_len.range((len, 0)..).find(fits) {
            Some(&(free, start)) => {
                let at = start.next_multiple_of(align);
                self.remove_free(start, free);
                self.insert_free(start, at - start);
                self.insert_free(at + len, start + free - at - len);
                at
            }
            None => {
                let at = self.end.next_multiple_of(align);
                let end = at.checked_add(len).filter(|&e| e <= room)?;
                self.insert_free(self.end, at - self.end);
                self.end = end;
                at
            }
        };
        self.used.insert(at, len);
        Some(at)
    }

    fn find(&self, len: u64, align: u64, from: u64, room: u64) -> Option<u64> {
        let lowest = |start: u64, end: u64| {
            let at = start.max(from).checked_next_multiple_of(align)?;
            at.checked_add(len).is_some_and(|e| e <= end).then_some(at)
        };
        // The one in which `from` may lie, and those after it.
        let first = self.free.range(..=from).next_back().map_or(0, |(&start, _)| start);
        let mut free = self.free.range(first..);
        free.find_map(|(&start, &len)| lowest(start, start + len)).or_else(|| lowest(self.end, room))
    }

    fn take_at(&mut self, at: u64, len: u64, room: u64) -> Option<()> {
        let end = at.checked_add(len)?;
        if at >= self.end {
            (end <= room).then_some(())?;
            self.insert_free(self.end, at - self.end);
            self.end = end;
        } else {
            let (&start, &free) = self.free.range(..=at).next_back().filter(|(s, l)| *s + *l >= end)?;
            self.remove_free(start, free);
            self.insert_free(start, at - start);
            self.insert_free(end, start + free - end);
        }
        self.used.insert(at, len);
        Some(())
    }

    fn give(&mut self, at: u64) -> Option<u64> {
        let len = self.used.remove(&at)?;
        let (mut start, mut end) = (at, at + len);
        if let Some((&s, &l)) = self.free.range(..at).next_back().filter(|(s, l)| *s + *l == at) {
            self.remove_free(s, l);
            start = s;
        }
        if let Some(&l) = self.free.get(&end) {
            self.remove_free(end, l);
            end += l;
        }
        if end == self.end {
            self.end = start;
        } else {
            self.insert_free(start, end - start);
        }
        Some(len)
    }

    /// The start of the block in use that ends there.
    fn ending_at(&self, end: u64) -> Option<u64> {
        let (&start, &len) = self.used.range(..end).next_back()?;
        (start + len == end).then_some(start)
    }

    fn insert_free(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.free.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove_free(&mut self, start: u64, len: u64) {
        self.free.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 22;

    #[test]
    fn blocks_are_aligned_disjoint_and_inside_whatever_the_order() {
        let mut random = 0x9e3779b97f4a7c15u64;
        let mut next = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for _ in 0..20 {
            let mut heaps = Heaps::new(SIZE);
            let mut held: Vec<(Side, Range<u64>)> = vec![];
            for _ in 0..2000 {
                let side = if next(2) == 0 { Side::Local } else { Side::Symmetric };
                if next(5) < 3 {
                    let (len, align) = (next(20_000), 1 << next(13));
                    let Some(b) = heaps.take(side, len, align) else { continue };
                    assert!(b.range.start % align == 0 && b.range.start >= FIRST && b.range.end <= SIZE, "{b:?}");
                    assert!(b.range.end - b.range.start >= len.max(1));
                    assert!(b.stale.is_empty() || b.stale.start >= b.range.start && b.stale.end <= b.range.end);
                    for (_, h) in &held {
                        assert!(b.range.end <= h.start || h.end <= b.range.start, "{b:?} over {h:?}");
                    }
                    held.push((side, b.range));
                } else if !held.is_empty() {
                    let (side, r) = held.swap_remove(next(held.len() as u64) as usize);
                    assert_eq!(heaps.side_of(r.start), Some(side));
                    assert_eq!(heaps.give(side, r.start), Some(r.clone()));
                    assert_eq!(heaps.give(side, r.start), None, "given back twice");
                }
            }
            for (side, r) in held.drain(..) {
                assert!(heaps.give(side, r.start).is_some());
            }
            assert_eq!((heaps.in_use(), heaps.local.end, heaps.symmetric.end), (0, 0, 0), "all merged");
        }
    }

    #[test]
    fn the_heaps_never_meet() {
        let mut heaps = Heaps::new(SIZE);
        let mut last = SIZE;
        while let Some(b) = heaps.take(Side::Symmetric, 100_000, 64) {
            assert!(b.range.end <= last);
            last = b.range.start;
        }
        let rest = heaps.largest(Side::Local);
        assert!(heaps.take(Side::Local, rest + 4096, 16).is_none());
        let b = heaps.take(Side::Local, rest, 16).unwrap();
        assert!(b.range.end <= last, "{b:?} {last}");
        assert!(heaps.take(Side::Local, 1, 1).is_none());
        assert!(heaps.take(Side::Local, u64::MAX, 16).is_none());
    }

    /// Heaps that differ agree on a place: each says its lowest from the highest that was said, until nobody says a higher one.
    #[test]
    fn places_that_are_free_everywhere_are_found_and_taken() {
        let mut random = 0x1234_5678_9abc_def1u64;
        let mut next = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let mut all = std::array::from_fn::<_, 3, _>(|_| Heaps::new(SIZE));
        let mut alone: Vec<Vec<u64>> = vec![vec![]; 3];
        let mut together: Vec<(u64, u64)> = vec![];
        for _ in 0..3000 {
            let (i, len, align) = (next(3) as usize, 1 + next(9000), 1 << next(13));
            match next(6) {
                0 => alone[i].extend(all[i].take(Side::Local, len, align).map(|b| b.range.start)),
                1 if !alone[i].is_empty() => {
                    let n = alone[i].len() as u64;
                    let at = alone[i].swap_remove(next(n) as usize);
                    assert!(all[i].give(Side::Local, at).is_some());
                }
                2 | 3 if !together.is_empty() => {
                    let (at, _) = together.swap_remove(next(together.len() as u64) as usize);
                    assert!(all.iter_mut().all(|heaps| heaps.give(Side::Local, at).is_some()));
                }
                _ => {
                    let (mut at, mut rounds) = (0, 0);
                    let agreed = loop {
                        let said = all.iter().map(|heaps| heaps.find(len, align, at)).collect::<Option<Vec<_>>>();
                        let Some(said) = said else { break None };
                        assert!(said.iter().all(|&s| s >= at && s % align == 0));
                        let highest = said.into_iter().max().unwrap();
                        if highest == at {
                            break Some(at);
                        }
                        (at, rounds) = (highest, rounds + 1);
                        assert!(rounds < 1000);
                    };
                    let Some(at) = agreed else { continue };
                    for heaps in &mut all {
                        let block = heaps.take_at(at, len, align).unwrap();
                        assert!(block.range.start == at && block.range.end >= at + len && block.range.end <= SIZE);
                        assert!(heaps.take_at(at, len, align).is_none(), "taken twice");
                    }
                    assert!(together.iter().all(|&(t, l)| at + len <= t || t + l <= at));
                    together.push((at, len));
                }
            }
        }
        for (i, heaps) in all.iter_mut().enumerate() {
            let rest = alone[i].iter().chain(together.iter().map(|(at, _)| at));
            rest.for_each(|&at| assert!(heaps.give(Side::Local, at).is_some()));
            assert_eq!((heaps.in_use(), heaps.local.end), (0, 0));
            assert!(heaps.find(SIZE, 16, 0).is_none() && heaps.find(1, 1, SIZE).is_none());
            assert!(heaps.take_at(FIRST + 8, 64, 64).is_none() && heaps.take_at(0, 1, 1).is_none());
        }
    }

    #[test]
    fn reused_bytes_are_stale_and_fresh_ones_are_not() {
        for side in [Side::Local, Side::Symmetric] {
            let mut heaps = Heaps::new(SIZE);
            let a = heaps.take(side, 1000, 16).unwrap();
            assert!(a.stale.is_empty());
            heaps.give(side, a.range.start).unwrap();
            let b = heaps.take(side, 5000, 16).unwrap();
            assert_eq!(b.stale, a.range, "{side:?}");
        }
    }

    #[test]
    fn what_the_other_side_had_is_stale_too() {
        for (first, then) in [(Side::Local, Side::Symmetric), (Side::Symmetric, Side::Local)] {
            let mut heaps = Heaps::new(SIZE);
            let a = heaps.take(first, 3 << 20, 16).unwrap();
            heaps.give(first, a.range.start).unwrap();
            let b = heaps.take(then, 3 << 20, 16).unwrap();
            let both = a.range.start.max(b.range.start)..a.range.end.min(b.range.end);
            assert!(!both.is_empty() && b.stale.start <= both.start && b.stale.end >= both.end, "{a:?} {b:?}");
            // Until the pages were given back.
            heaps.give(then, b.range.start).unwrap();
            // Half of it is not enough.
            let kept = heaps.extent(first);
            heaps.forget(first, kept, kept + (1 << 20));
            let kept = heaps.extent(then);
            heaps.forget(then, kept, SIZE);
            let c = heaps.take(then, 3 << 20, 16).unwrap();
            assert_eq!(c.stale, both, "{c:?}");
            heaps.give(then, c.range.start).unwrap();
            for side in [first, then] {
                let kept = heaps.extent(side);
                heaps.forget(side, kept, SIZE);
            }
            assert!(heaps.take(then, 3 << 20, 16).unwrap().stale.is_empty());
        }
    }

    #[test]
    fn what_was_never_taken_cannot_be_given() {
        let mut heaps = Heaps::new(SIZE);
        let b = heaps.take(Side::Symmetric, 100, 16).unwrap();
        for bad in [0, 1, FIRST - 1, FIRST, b.range.start + 16, SIZE, SIZE + 1, u64::MAX] {
            assert_eq!(heaps.give(Side::Local, bad), None);
            assert_eq!(heaps.give(Side::Symmetric, bad), None);
            assert_eq!(heaps.side_of(bad), None);
        }
    }
}
