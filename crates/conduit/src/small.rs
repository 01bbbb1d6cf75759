//! Small blocks: pages of a heap cut into cells of one size, so that taking and giving one is a few instructions.
//!
//! Pure book-keeping like [`heap`](crate::heap), which the pages come from and go back to. Every page has a size and says
//! which of its cells are in use; the pages of a size that have room are a stack, and cells are taken from its top.
//! A page that is empty goes back, but for the last one of its size.
//!
//! Does not contain: the memory itself, nor blocks of more than [`MOST`] bytes.

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the largest small block.
pub const MOST: u64 = 512;
/// Bytes from which on blocks start at a cache line.
const LINE: u64 = 64;
const GRAIN: u64 = 16;
/// 16, 32, 48, then by lines.
const SIZES: usize = 3 + (MOST / LINE) as usize;

/// The small blocks of one heap.
#[derive(Debug, Default)]
pub struct Small {
    pages: Vec<Page>,
    /// Where in `pages` the page of this number is, plus one.
    by_number: Vec<u32>,
    /// Where unused entries of `pages` are.
    unused: Vec<u32>,
    /// By size: the pages that have room.
    with_room: [Vec<u32>; SIZES],
    in_use: u64,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    number: u64,
    size: u8,
    cells: u16,
    in_use: u16,
    /// Where it is in the stack of those that have room.
    at: u32,
    used: [u64; 4],
    /// Which were used before.
    stale: [u64; 4],
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
        let n = len.max(1).next_multiple_of(align.max(GRAIN));
        match n {
            _ if n > MOST || align > LINE => None,
            _ if n < LINE => Some(Size((n / GRAIN - 1) as u8)),
            _ => Some(Size((n.div_ceil(LINE) + 2) as u8)),
        }
    }

    /// Bytes of a cell.
    #[inline]
    pub fn bytes(self) -> u64 {
        let i = u64::from(self.0);
        if i < 3 { (i + 1) * GRAIN } else { (i - 2) * LINE }
    }
}

impl Small {
    /// Takes a cell of this size: its offset, and whether it was used before. `None`: there must be one more page.
    #[inline]
    pub fn take(&mut self, size: Size) -> Option<(u64, bool)> {
        let stack = &mut self.with_room[size.0 as usize];
        let page = &mut self.pages[*stack.last()? as usize];
        let word = page.used.iter().position(|&w| w != u64::MAX).expect("it has room");
        let bit = page.used[word].trailing_ones();
        let stale = page.stale[word] >> bit & 1 == 1;
        page.used[word] |= 1 << bit;
        page.stale[word] |= 1 << bit;
        page.in_use += 1;
        if page.in_use == page.cells {
            stack.pop();
        }
        self.in_use += size.bytes();
        Some((page.number * PAGE + (64 * word as u64 + u64::from(bit)) * size.bytes(), stale))
    }

    /// Adds a zeroed page, by its offset, for cells of this size.
    pub fn add(&mut self, size: Size, offset: u64) {
        debug_assert!(offset.is_multiple_of(PAGE));
        let (number, cells) = (offset / PAGE, (PAGE / size.bytes()) as u16);
        let stack = &mut self.with_room[size.0 as usize];
        // Cells that there are not count as used.
        let used = [0, 1, 2, 3].map(|w| match cells.saturating_sub(64 * w) {
            0 => u64::MAX,
            n if n < 64 => u64::MAX << n,
            _ => 0,
        });
        let page = Page { number, size: size.0, cells, in_use: 0, at: stack.len() as u32, used, stale: [0; 4] };
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
        if self.by_number.len() <= number as usize {
            self.by_number.resize(number as usize + 1, 0);
        }
        self.by_number[number as usize] = i + 1;
    }

    /// Gives a cell back by its offset.
    #[inline]
    pub fn give(&mut self, offset: u64) -> Given {
        let Some((i, word, bit)) = self.find(offset) else { return Given::NotOurs };
        let page = &mut self.pages[i as usize];
        let size = Size(page.size);
        if !is_used(page, offset, size, word, bit) {
            return Given::NotInUse;
        }
        page.used[word] &= !(1 << bit);
        self.in_use -= size.bytes();
        let stack = &mut self.with_room[page.size as usize];
        if page.in_use == page.cells {
            page.at = stack.len() as u32;
            stack.push(i);
        }
        page.in_use -= 1;
        if page.in_use > 0 || stack.len() == 1 {
            return Given::Done;
        }
        let (number, at) = (page.number, page.at as usize);
        stack.swap_remove(at);
        if let Some(&moved) = stack.get(at) {
            self.pages[moved as usize].at = at as u32;
        }
        self.by_number[number as usize] = 0;
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
        self.in_use
    }

    /// Bytes of all pages.
    pub fn held(&self) -> u64 {
        (self.pages.len() - self.unused.len()) as u64 * PAGE
    }

    /// The page of an offset, and which of its cells it would be.
    #[inline]
    fn find(&self, offset: u64) -> Option<(u32, usize, u32)> {
        let i = self.by_number.get((offset / PAGE) as usize)?.checked_sub(1)?;
        let cell = offset % PAGE / Size(self.pages[i as usize].size).bytes();
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
