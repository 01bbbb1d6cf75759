//! Small blocks: pages of a heap cut into cells of one size, so that taking and giving one is a few instructions.
//!
//! Pure book-keeping like [`heap`](crate::heap), which the pages come from and go back to. Every page has a size and says
//! which of its cells are in use; the pages of a size that have room are a stack, and cells are taken from its top.
//! A page that is empty goes back, but for the last one of its size.
//!
//! Does not contain: the memory itself, nor blocks of more than [`MOST`] bytes.

use std::num::NonZeroU16;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the largest small block.
pub const MOST: u64 = 512;
/// Bytes from which on blocks start at a cache line.
const LINE: u64 = 64;
const GRAIN: u64 = 16;
/// 16, 32, 48, then by lines.
const SIZES: usize = 3 + (MOST / LINE) as usize;
/// The same, so that a mask is a check.
const TABLE: usize = 16;
/// Bytes of a cell, by size.
const BYTES: [u64; TABLE] = {
    let (mut all, mut i) = ([MOST; TABLE], 0);
    while i < SIZES {
        all[i] = if i < 3 { (i as u64 + 1) * GRAIN } else { (i as u64 - 2) * LINE };
        i += 1;
    }
    all
};
/// 2^20 divided by that, rounded up.
const RECIPROCALS: [u64; TABLE] = {
    let (mut all, mut i) = ([0; TABLE], 0);
    while i < TABLE {
        all[i] = (1u64 << 20).div_ceil(BYTES[i]);
        i += 1;
    }
    all
};
const _: () = assert!(SIZES <= TABLE);

/// Pages of one leaf of the table of pages.
const LEAF: usize = 1024;

/// The small blocks of one heap.
#[derive(Debug, Default)]
pub struct Small {
    pages: Vec<Page>,
    /// Where in `pages` the page of this number is, plus one; in leaves, of which a heap that is large but for a few pages has few.
    by_number: Vec<Option<Box<[u32; LEAF]>>>,
    /// Where unused entries of `pages` are.
    unused: Vec<u32>,
    /// By size: the pages that have room.
    with_room: [Vec<u32>; TABLE],
}

#[derive(Debug, Clone, Copy)]
struct Page {
    number: u64,
    size: u8,
    cells: u16,
    in_use: u16,
    /// Where it is in the stack of those that have room.
    at: u32,
    /// The cell that was given back last, plus one: the next to be taken, since it is in the cache.
    last: Option<NonZeroU16>,
    used: [u64; 4],
    /// Which were used before.
    stale: [u64; 4],
}

impl Page {
    #[inline(always)]
    fn give(&mut self, word: usize, bit: u32) {
        self.used[word] &= !(1 << bit);
        self.last = NonZeroU16::new((64 * word as u32 + bit + 1) as u16);
        self.in_use -= 1;
    }

    fn first_unused(&self) -> Option<u16> {
        let word = self.used.iter().position(|&w| w != u64::MAX)?;
        Some(64 * word as u16 + self.used[word].trailing_ones() as u16)
    }
}

/// What came of giving something back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// It lies in no page of ours.
    NotOurs,
    /// It lies in one, but no cell in use starts there.
    NotInUse,
    /// Done.
    Done,
    /// Done, and the page at this offset is not needed any more.
    Emptied(u64),
}

/// A size of cells; none for blocks that are not small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(u8);

impl Size {
    /// For blocks of so many bytes, aligned to a power of two.
    #[inline]
    pub fn of(len: u64, align: u64) -> Option<Size> {
        debug_assert!(align.is_power_of_two());
        let align = align.max(GRAIN);
        if len > MOST {
            return None;
        }
        let n = (len.max(1) + align - 1) & !(align - 1);
        match n {
            _ if n > MOST || align > LINE => None,
            _ if n < LINE => Some(Size((n / GRAIN - 1) as u8)),
            _ => Some(Size((n.div_ceil(LINE) + 2) as u8)),
        }
    }

    /// Bytes of a cell.
    #[inline]
    pub fn bytes(self) -> u64 {
        BYTES[self.0 as usize % TABLE]
    }

    /// In which cell this byte of a page is: a division, exact below a page.
    #[inline]
    fn cell(self, byte: u64) -> u64 {
        (byte * RECIPROCALS[self.0 as usize % TABLE]) >> 20
    }
}

impl Small {
    /// Takes a cell of this size: its offset, and whether it was used before. `None`: there must be one more page.
    #[inline(always)]
    pub fn take(&mut self, size: Size) -> Option<(u64, bool)> {
        let stack = &mut self.with_room[size.0 as usize % TABLE];
        let page = &mut self.pages[*stack.last()? as usize];
        let cell = match page.last {
            Some(cell) => cell.get() - 1,
            None => page.first_unused()?,
        };
        page.last = None;
        let (word, bit) = (cell as usize / 64 % 4, cell % 64);
        let stale = page.stale[word] >> bit & 1 == 1;
        page.used[word] |= 1 << bit;
        page.stale[word] |= 1 << bit;
        page.in_use += 1;
        if page.in_use == page.cells {
            stack.pop();
        }
        Some((page.number * PAGE + u64::from(cell) * size.bytes(), stale))
    }

    /// Adds a zeroed page, by its offset, for cells of this size.
    pub fn add(&mut self, size: Size, offset: u64) {
        debug_assert!(offset.is_multiple_of(PAGE));
        let (number, cells) = (offset / PAGE, (PAGE / size.bytes()) as u16);
        let stack = &mut self.with_room[size.0 as usize % TABLE];
        // Cells that there are not count as used.
        let used = [0, 1, 2, 3].map(|w| match cells.saturating_sub(64 * w) {
            0 => u64::MAX,
            n if n < 64 => u64::MAX << n,
            _ => 0,
        });
        let page =
            Page { number, size: size.0, cells, in_use: 0, at: stack.len() as u32, last: None, used, stale: [0; 4] };
        let i = match self.unused.pop() {
            Some(i) => {
                self.pages[i as usize] = page;
                i
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        stack.push(i);
        self.set_place(number, i + 1);
    }

    fn set_place(&mut self, number: u64, place: u32) {
        let (leaf, at) = (number as usize / LEAF, number as usize % LEAF);
        if self.by_number.len() <= leaf {
            self.by_number.resize(leaf + 1, None);
        }
        self.by_number[leaf].get_or_insert_with(|| Box::new([0; LEAF]))[at] = place;
    }

    /// Gives a cell back by its offset if that changes nothing but its page; else false, and nothing is done.
    #[inline(always)]
    pub fn give_only(&mut self, offset: u64) -> bool {
        let Some((i, word, bit)) = self.find(offset) else { return false };
        let page = &mut self.pages[i as usize];
        let stays = page.in_use > 1 || self.with_room[page.size as usize % TABLE].len() == 1;
        if page.in_use == page.cells || !stays || !is_used(page, offset, Size(page.size), word, bit) {
            return false;
        }
        page.give(word, bit);
        true
    }

    /// Gives a cell back by its offset.
    pub fn give(&mut self, offset: u64) -> Given {
        let Some((i, word, bit)) = self.find(offset) else { return Given::NotOurs };
        let page = &mut self.pages[i as usize];
        let size = Size(page.size);
        if !is_used(page, offset, size, word, bit) {
            return Given::NotInUse;
        }
        let was_full = page.in_use == page.cells;
        page.give(word, bit);
        let stack = &mut self.with_room[page.size as usize % TABLE];
        if was_full {
            page.at = stack.len() as u32;
            stack.push(i);
        }
        if page.in_use > 0 || stack.len() == 1 {
            return Given::Done;
        }
        let (number, at) = (page.number, page.at as usize);
        stack.swap_remove(at);
        if let Some(&moved) = stack.get(at) {
            self.pages[moved as usize].at = at as u32;
        }
        self.set_place(number, 0);
        self.unused.push(i);
        Given::Emptied(number * PAGE)
    }

    /// Does a cell in use start there? `None`: it lies in no page of ours.
    pub fn is_in_use(&self, offset: u64) -> Option<bool> {
        self.find(offset).map(|(i, word, bit)| {
            let page = &self.pages[i as usize];
            is_used(page, offset, Size(page.size), word, bit)
        })
    }

    /// Bytes of cells in use.
    pub fn in_use(&self) -> u64 {
        self.pages.iter().map(|page| u64::from(page.in_use) * Size(page.size).bytes()).sum()
    }

    /// Bytes of all pages.
    pub fn held(&self) -> u64 {
        (self.pages.len() - self.unused.len()) as u64 * PAGE
    }

    /// The page of an offset, and which of its cells it would be.
    #[inline]
    fn find(&self, offset: u64) -> Option<(u32, usize, u32)> {
        let number = (offset / PAGE) as usize;
        let i = self.by_number.get(number / LEAF)?.as_ref()?[number % LEAF].checked_sub(1)?;
        let cell = Size(self.pages[i as usize].size).cell(offset % PAGE);
        Some((i, cell as usize / 64, cell as u32 % 64))
    }
}

#[inline]
fn is_used(page: &Page, offset: u64, size: Size, word: usize, bit: u32) -> bool {
    let cell = 64 * word as u64 + u64::from(bit);
    offset % PAGE == cell * size.bytes() && cell < u64::from(page.cells) && page.used[word] >> bit & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn cells_are_found_without_division() {
        for size in (0..SIZES as u8).map(Size) {
            assert!((0..PAGE).all(|byte| size.cell(byte) == byte / size.bytes()), "{} bytes", size.bytes());
        }
    }

    #[test]
    fn every_length_and_alignment_has_a_size_that_fits() {
        for align in (0..=12).map(|i| 1 << i) {
            for len in 0..=600 {
                match Size::of(len, align) {
                    None => assert!(align > LINE || len > MOST - align, "{len} {align}"),
                    Some(size) => {
                        let n = size.bytes();
                        assert!(n >= len.max(1) && n % align.max(GRAIN) == 0 && n <= MOST, "{len} {align}: {n}");
                        assert!(n < len.max(1) + align.max(LINE), "{len} {align}: {n}");
                    }
                }
            }
        }
    }

    #[test]
    fn cells_are_disjoint_and_come_back_whatever_the_order() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let (mut small, mut next, mut free) = (Small::default(), 1, vec![]);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..60_000 {
            // Grows, then shrinks, again and again.
            if below(10) < if step / 5000 % 2 == 0 { 7 } else { 3 } {
                let size = Size::of(below(MOST + 1), [1, 16, 32, 64][below(4) as usize]).unwrap_or(Size(0));
                let (at, _) = small.take(size).unwrap_or_else(|| {
                    small.add(size, free.pop().unwrap_or_else(|| (next, next += 1).0 * PAGE));
                    small.take(size).unwrap()
                });
                assert!(held.range(..=at).next_back().is_none_or(|(a, n)| a + n <= at));
                assert!(held.range(at..).next().is_none_or(|(a, _)| at + size.bytes() <= *a));
                held.insert(at, size.bytes());
            } else if let Some((&at, &n)) = held.range(below(next * PAGE)..).next() {
                for wrong in [at + 1, at + n / 2, at + PAGE * 100_000] {
                    assert!(matches!(small.give(wrong), Given::NotInUse | Given::NotOurs) || held.contains_key(&wrong));
                }
                held.remove(&at);
                assert_eq!(small.is_in_use(at), Some(true));
                if below(2) == 0 && small.give_only(at) {
                    continue;
                }
                match small.give(at) {
                    Given::Emptied(page) => free.push(page),
                    given => assert_eq!(given, Given::Done),
                }
                assert!(
                    small.is_in_use(at) != Some(true) && matches!(small.give(at), Given::NotInUse | Given::NotOurs)
                );
            }
            if step % 100 == 0 {
                assert_eq!(small.in_use(), held.values().sum::<u64>());
            }
        }
        for at in held.into_keys() {
            small.give(at);
        }
        assert!(small.in_use() == 0 && small.held() <= SIZES as u64 * PAGE, "{} bytes are held", small.held());
    }

    #[test]
    fn what_was_used_is_stale() {
        let (mut small, size) = (Small::default(), Size::of(500, 8).unwrap());
        assert_eq!(small.take(size), None);
        small.add(size, PAGE);
        let all: Vec<_> = std::iter::from_fn(|| small.take(size)).collect();
        assert_eq!(all.len(), 8);
        assert!(all.iter().all(|&(_, stale)| !stale));
        assert_eq!(small.give(all[3].0), Given::Done);
        assert_eq!(small.take(size), Some((all[3].0, true)));
    }
}
