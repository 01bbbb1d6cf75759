//! What of a rank's segment the network knows, and by what names: a list in memory of the node.
//!
//! The rank's process writes it, one thread at a time, and it only grows. Processes of the node read it without disturbing
//! anybody: atomics of the network go to neighbours, too, who may compute. Processes of other nodes are told what it says.
//!
//! # Memory ordering
//! A name is written before the count that has it, and that before the extent that has its chunk; both are stored with
//! release. Who reads takes the extent first and then the count, both with acquire: the names of all that the extent has are
//! among those. What was allocated was registered before anybody was told where it is. So who was told, and does not find it here, asks
//! for what is not there.

use crate::sync::{AtomicU64, Ordering::*};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// A chunk and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Named {
    /// Twice its number, and the half.
    pub chunk: u64,
    /// Its address for the network, or 0.
    pub addr: u64,
    /// Its key.
    pub key: u64,
}

/// How much of a segment is registered: bytes from the start and from the end of the heaps of either half, and from the
/// start of its window. Halves are numbered as in [`contract::Half`](crate::contract::Half).
#[derive(Debug, Default)]
#[repr(C)]
pub struct Extent([AtomicU64; 6]);

/// The list of one rank.
#[derive(Debug)]
pub struct Ledger {
    head: *const Head,
    names: *const [Entry],
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Head {
    extent: Extent,
    /// So many of the names are there.
    count: AtomicU64,
}

type Entry = [AtomicU64; 3];

// SAFETY: both point to atomics, which `new` was promised stay mapped.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Extent {
    /// The two of a half's heaps.
    fn heaps(&self, half: usize) -> [&AtomicU64; 2] {
        [&self.0[2 * half], &self.0[2 * half + 1]]
    }

    fn window(&self, half: usize) -> &AtomicU64 {
        &self.0[4 + half]
    }

    /// This much is; it begins or ends where heaps of `segment` bytes or the window do.
    pub fn grow(&self, half: usize, range: &Range<u64>, segment: u64) {
        let [low, high] = self.heaps(half);
        match range.start {
            0 => low.fetch_max(range.end, Release),
            start if start >= segment => self.window(half).fetch_max(range.end - segment, Release),
            start => high.fetch_max(segment - start, Release),
        };
    }

    /// Are these bytes of a half registered?
    #[inline]
    pub fn has(&self, half: usize, Range { start, end }: Range<u64>, segment: u64) -> bool {
        let [low, high] = self.heaps(half).map(|e| e.load(Acquire));
        match start >= segment {
            true => end <= segment + self.window(half).load(Acquire),
            false => end <= low || start >= segment - high && end <= segment,
        }
    }

    /// What it is now.
    pub fn read(&self) -> [u64; 6] {
        [0, 1, 2, 3, 4, 5].map(|i| self.0[i].load(Acquire))
    }

    /// It is at least this.
    pub fn raise(&self, to: [u64; 6]) {
        self.0.iter().zip(to).for_each(|(e, n)| _ = e.fetch_max(n, Release));
    }
}

/// Bytes of the list of a segment of so many chunks.
pub const fn len(chunks: usize) -> usize {
    size_of::<Head>() + chunks * size_of::<Entry>()
}

impl Ledger {
    /// The one in this area, which is [so long](len).
    ///
    /// # Safety
    /// The area begins on a line of 64 bytes, was zero at first, stays mapped as long as this, and is used by such lists only.
    pub unsafe fn new(area: *mut u8, chunks: usize) -> Ledger {
        // SAFETY: inside the area.
        let names = unsafe { area.add(size_of::<Head>()) };
        Ledger { head: area.cast(), names: std::ptr::slice_from_raw_parts(names.cast(), chunks) }
    }

    fn head(&self) -> &Head {
        // SAFETY: `new` was promised that it is there; atomics, for which zeroed memory is valid.
        unsafe { &*self.head }
    }

    fn names(&self) -> &[Entry] {
        // SAFETY: as above.
        unsafe { &*self.names }
    }

    /// The bytes of the area that the next [`push`](Self::push) writes to.
    pub fn next(&self) -> Range<usize> {
        let count = self.head().count.load(Relaxed) as usize;
        if count == 0 { 0..len(1) } else { len(count)..len(count + 1) }
    }

    /// Adds a name. Only one thread at a time does so.
    pub fn push(&self, named: Named) {
        let count = self.head().count.load(Relaxed);
        let entry = &self.names()[count as usize];
        for (word, value) in entry.iter().zip([named.chunk, named.addr, named.key]) {
            word.store(value, Relaxed);
        }
        self.head().count.store(count + 1, Release);
    }

    /// All chunks of this part have been [added](Self::push).
    pub fn grow(&self, half: usize, range: &Range<u64>, segment: u64) {
        self.head().extent.grow(half, range, segment);
    }

    /// How much is registered, and names from this one on, at most so many.
    pub fn read(&self, from: u64, most: usize) -> ([u64; 6], Vec<Named>) {
        let extent = self.head().extent.read();
        let count = self.head().count.load(Acquire) as usize;
        let names = self.names()[..count].iter().skip(from as usize).take(most);
        let named = |[chunk, addr, key]: [u64; 3]| Named { chunk, addr, key };
        (extent, names.map(|entry| named([0, 1, 2].map(|i| entry[i].load(Relaxed)))).collect())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_and_are_read_from_anywhere() {
        let mut area = vec![[0u64; 8]; len(3).div_ceil(64) + 1];
        let start = area.as_mut_ptr().cast::<u8>();
        // SAFETY: on a line, zero, and longer than it must be.
        let ledger = unsafe { Ledger::new(start.add(start.align_offset(64)), 3) };
        let named = |n: u64| Named { chunk: 2 * n, addr: 100 + n, key: 7 * n };
        assert_eq!((ledger.next(), ledger.read(0, 9)), (0..len(1), ([0; 6], vec![])));
        for n in 1..4 {
            ledger.push(named(n));
        }
        ledger.grow(1, &(0..500), 1 << 30);
        let (extent, all) = ledger.read(0, 9);
        assert_eq!((extent, all), ([0, 0, 500, 0, 0, 0], vec![named(1), named(2), named(3)]));
        assert_eq!(ledger.read(1, 1).1, [named(2)]);
        assert_eq!((ledger.read(3, 9).1, ledger.read(u64::MAX, 9).1), (vec![], vec![]));
        assert_eq!(ledger.next(), len(3)..len(4), "what is not there is not written to");
    }

    #[test]
    fn extents_grow_from_both_ends() {
        let (extent, segment) = (Extent::default(), 1 << 30);
        for half in [0, 1] {
            let has = |offset, len| extent.has(half, offset..offset + len, segment);
            assert!(!has(4096, 8) && !has(segment - 8, 8) && !has(segment, 8));
            extent.grow(half, &(0..1 << 20), segment);
            extent.grow(half, &(segment - (1 << 16)..segment), segment);
            assert!(has(4096, 8) && has((1 << 20) - 8, 8));
            assert!(!has((1 << 20) - 7, 8) && !has(segment - (1 << 16) - 1, 8));
            assert!(has(segment - (1 << 16), 1 << 16) && !has(segment - (1 << 16), (1 << 16) + 1));
        }
        for half in [0, 1] {
            let has = |offset, len| extent.has(half, offset..offset + len, segment);
            assert!(!has(segment, 8));
            extent.grow(half, &(segment..segment + (1 << 12)), segment);
            assert!(has(segment, 1 << 12) && !has(segment, (1 << 12) + 1) && !has(segment - 8, 16));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Who reads while it grows finds the names of all that the extent has.
    #[test]
    fn loom_extents_have_their_names() {
        loom::model(|| {
            let memory = Arc::new((Head::default(), [Entry::default(), Entry::default()]));
            let open = |memory: &Arc<(Head, [Entry; 2])>| Ledger { head: &memory.0, names: &memory.1[..] };
            let reader = memory.clone();
            let read = loom::thread::spawn(move || {
                let (extent, named) = open(&reader).read(0, 9);
                assert!(named.len() as u64 >= extent[0], "{extent:?}, {named:?}");
                for (n, named) in (1..).zip(named) {
                    assert_eq!(named, Named { chunk: n, addr: n, key: n });
                }
            });
            let ledger = open(&memory);
            for n in 1..3 {
                ledger.push(Named { chunk: n, addr: n, key: n });
                ledger.grow(0, &(0..n), 100);
            }
            read.join().unwrap();
        });
    }
}
