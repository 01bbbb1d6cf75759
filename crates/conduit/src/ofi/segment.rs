//! Which memory the network knows: segments are registered in chunks as they grow, and stay so.
//!
//! What a chunk is called there (its address or 0, and its key, which nobody can guess) only its process knows. Others ask
//! the rank for that and for how far its segment has grown, at the first use, and again when a place lies beyond what
//! is known: a place that is not registered would break the connection, so it is refused before it is tried. The names of a
//! rank's chunks are a list that only grows; who asks says how much of it he has.
//!
//! # Memory ordering
//! A chunk's name is in its rank's list before the segment's extent says that it is there, and the list is read after the
//! extent: whoever is told of memory is told its name, or that there are more to be asked for. What has been told is published by
//! [`OnceLock`], and never changes.

use super::Net;
use super::endpoint::{Region, Remote};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Failure, Half, Outside};
use crate::pool::LARGE;
use crate::record::Site;
use crate::reference::{EXTENT, EXTENT_IS, Question};
use crate::shm;
use crate::shm::segment::Exhausted;
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{OnceLock, PoisonError};

/// Bytes that are registered at a time.
pub const CHUNK: u64 = 16 << 20;

/// What is registered for others: chunks by rank of the process, half and number.
pub(super) type Regions = BTreeMap<(usize, bool, u64), Region>;

/// A chunk and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Named {
    /// Twice its number, and the half.
    chunk: u64,
    addr: u64,
    key: u64,
}

/// So many go with one answer.
const MOST: usize = LARGE / size_of::<Named>();
/// Names that have their place at a time.
const GROUP: usize = 64;

/// The names of neighbouring chunks.
type Group = Box<[OnceLock<Remote>]>;

/// The names of a rank's chunks, as far as they are known.
#[derive(Debug)]
pub(super) struct Names {
    /// By half, then by groups.
    groups: [Box<[OnceLock<Group>]>; 2],
    /// So many of the rank's list are.
    known: AtomicU64,
}

impl Names {
    /// Of a segment with so many bytes in each half of its heaps.
    pub fn new(segment: u64) -> Names {
        // A half is at most twice as long: its window comes after its heaps.
        let groups = (2 * segment).div_ceil(CHUNK).div_ceil(GROUP as u64);
        Names { groups: [0, 1].map(|_| (0..groups).map(|_| OnceLock::new()).collect()), known: AtomicU64::new(0) }
    }

    #[inline]
    fn get(&self, half: Half, chunk: u64) -> Option<Remote> {
        let group = self.groups[half as usize].get(chunk as usize / GROUP)?.get()?;
        group[chunk as usize % GROUP].get().copied()
    }

    /// False if there is no such chunk.
    fn set(&self, Named { chunk, addr, key }: Named) -> bool {
        let (half, chunk) = ((chunk & 1) as usize, (chunk >> 1) as usize);
        let Some(group) = self.groups[half].get(chunk / GROUP) else { return false };
        let group = group.get_or_init(|| (0..GROUP).map(|_| OnceLock::new()).collect());
        // Two ranks may have been told the same.
        let name = Remote { addr, key };
        *group[chunk % GROUP].get_or_init(|| name) == name
    }
}

/// How much of a segment is registered: bytes from the start and from the end of the heaps of either half, and from the
/// start of its window.
#[derive(Debug, Default)]
pub(super) struct Extent([AtomicU64; 6]);

impl Extent {
    /// The two of a half's heaps.
    fn heaps(&self, half: Half) -> [&AtomicU64; 2] {
        let first = 2 * half as usize;
        [&self.0[first], &self.0[first + 1]]
    }

    fn window(&self, half: Half) -> &AtomicU64 {
        &self.0[4 + half as usize]
    }

    /// This much is; it begins or ends where heaps of `segment` bytes or the window do.
    fn grow(&self, half: Half, range: &Range<u64>, segment: u64) {
        let [low, high] = self.heaps(half);
        match range.start {
            0 => low.fetch_max(range.end, Release),
            start if start >= segment => self.window(half).fetch_max(range.end - segment, Release),
            start => high.fetch_max(segment - start, Release),
        };
    }

    fn has(&self, at: At, len: u64, segment: u64) -> bool {
        let [low, high] = self.heaps(at.half()).map(|e| e.load(Acquire));
        let (start, end) = (at.in_half().offset, at.in_half().offset + len);
        match start >= segment {
            true => end <= segment + self.window(at.half()).load(Acquire),
            false => end <= low || start >= segment - high && end <= segment,
        }
    }
}

impl Net {
    /// Registers a part of the i-th rank's segment, of whose half there are `len` bytes at `base`.
    ///
    /// # Safety
    /// They stay mapped as long as this value.
    pub(crate) unsafe fn register(
        &self,
        i: usize,
        half: Half,
        base: *mut u8,
        len: u64,
        range: Range<u64>,
    ) -> Result<(), Exhausted> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in chunks(&range) {
            let which = (i, half == Half::Guarded, chunk);
            if regions.contains_key(&which) {
                continue;
            }
            let Range { start, end } = bytes_of(chunk, len);
            let (at, bytes) = (base.wrapping_add(start as usize), (end - start) as usize);
            // SAFETY: a part of the segment, for which the caller promises.
            let register = || unsafe { self.endpoint.register_anew(at, bytes) };
            let region = self.local.making_room(register).map_err(|why| Exhausted::Network { why: why.to_string() })?;
            let Remote { addr, key } = region.remote();
            self.local.knows(at, bytes, region.desc());
            let named = Named { chunk: chunk << 1 | half as u64, addr, key };
            assert!(self.names[self.first + i].set(named), "a chunk of the segment");
            self.lists[i].lock().unwrap_or_else(PoisonError::into_inner).push(named);
            regions.insert(which, region);
        }
        self.extents[self.first + i].grow(half, &range, self.segment);
        Ok(())
    }

    /// What must have its pages before so much of a half of `len` bytes of the i-th rank can be registered: all of the chunks
    /// that are new, if the provider says so.
    pub(crate) fn with_pages(&self, i: usize, half: Half, range: &Range<u64>, len: u64) -> Option<Range<u64>> {
        if !self.endpoint.needs_pages() {
            return None;
        }
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = chunks(range).filter(|&chunk| !regions.contains_key(&(i, half == Half::Guarded, chunk)));
        let first = new.next()?;
        Some(bytes_of(first, len).start..bytes_of(new.next_back().unwrap_or(first), len).end)
    }

    /// How much of a rank's segment is registered.
    pub(super) fn extent(&self, rank: usize) -> [u64; 6] {
        [0, 1, 2, 3, 4, 5].map(|i| self.extents[rank].0[i].load(Acquire))
    }

    /// A place in a segment as the network names it, and how many bytes from there on one operation may have. It was
    /// [checked](check).
    #[inline]
    pub(super) fn remote(&self, at: At) -> (Remote, u64) {
        let offset = at.in_half().offset;
        let (chunk, inside) = (offset / CHUNK, offset % CHUNK);
        let name = self.names[at.rank as usize].get(at.half(), chunk).expect("a place that was checked");
        (name.offset(inside), (CHUNK - inside).min(self.endpoint.max_message_size() as u64))
    }

    /// Is this registered, and is it known by what name?
    fn knows(&self, at: At, len: u64) -> bool {
        let offset = at.in_half().offset;
        let names = &self.names[at.rank as usize];
        self.extents[at.rank as usize].has(at, len, self.segment)
            && chunks(&(offset..offset + len)).all(|chunk| names.get(at.half(), chunk).is_some())
    }
}

/// How many of these bytes lie before the last ones that one operation may have: those of one chunk, and `most` of them.
pub(super) fn before_last_piece(at: At, len: usize, most: usize) -> usize {
    let start = at.in_half().offset;
    let last = (start + len as u64).saturating_sub(1) / CHUNK;
    ((last * CHUNK).saturating_sub(start) as usize).max(len.saturating_sub(most))
}

/// The chunks that have these bytes.
fn chunks(range: &Range<u64>) -> Range<u64> {
    range.start / CHUNK..range.end.div_ceil(CHUNK)
}

/// The bytes of a chunk of a half that has so many.
fn bytes_of(chunk: u64, len: u64) -> Range<u64> {
    chunk * CHUNK..len.min((chunk + 1) * CHUNK)
}

/// Makes sure that a place is one that its network knows.
#[inline]
pub(super) fn check(seat: &shm::Seat, site: Site, at: At, len: usize) -> Result<(), Failure> {
    crate::reference::check(seat, at, len)?;
    match seat.beyond().1.knows(at, len as u64) {
        true => Ok(()),
        false => ask(seat, site, at, len),
    }
}

#[cold]
fn ask(seat: &shm::Seat, site: Site, at: At, len: usize) -> Result<(), Failure> {
    let (_, net) = seat.beyond();
    loop {
        let known = net.names[at.rank as usize].known.load(Acquire);
        let asked = Question::new(seat, 1);
        seat.request(site, at.rank, EXTENT, &[u64::from(asked.slot), known], &[])?;
        asked.wait(seat, site)?;
        if net.knows(at, len as u64) {
            return Ok(());
        }
        if asked.value() == 0 {
            let (ranks, segment) = (seat.ranks(), seat.half_len(at.half()));
            return Err(Failure::Outside(Outside { at, len, ranks, segment }));
        }
    }
}

pub(crate) struct OnExtent;
impl Handler for OnExtent {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, known], _) = arrival.open::<[u64; 2]>();
        let Some(net) = arrival.node().net() else {
            return arrival.reply(EXTENT_IS, &[slot, 0, 0, 0, 0, 0, 0, 0], &[]);
        };
        let [a, b, c, d, e, f] = net.extent(arrival.target());
        let list = net.lists[arrival.target() - net.first].lock().unwrap_or_else(PoisonError::into_inner);
        let more = list.get(known as usize..).unwrap_or_default();
        let more = more[..more.len().min(MOST)].to_vec();
        drop(list);
        arrival.reply(EXTENT_IS, &[slot, known, a, b, c, d, e, f], bytemuck::cast_slice(&more));
    }
}

/// The answer, by how many names it brings.
pub(crate) struct OnExtentIs;
impl Handler for OnExtentIs {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, known, all @ ..], named) = arrival.open::<[u64; 8]>();
        let named = named.to_vec();
        let named: Vec<Named> = named.chunks_exact(size_of::<Named>()).map(bytemuck::pod_read_unaligned).collect();
        if let Some(net) = arrival.node().net() {
            let (extent, names) = (&net.extents[arrival.source()], &net.names[arrival.source()]);
            if !named.iter().all(|&one| names.set(one)) {
                arrival.bad(&"a chunk that is not of its segment, or has two names");
            }
            names.known.fetch_max(known + named.len() as u64, Release);
            extent.0.iter().zip(all).for_each(|(e, n)| _ = e.fetch_max(n, Release));
        }
        let many = named.len() as u64;
        if !slot.try_into().is_ok_and(|slot| arrival.landing().answers.answer(slot, many)) {
            arrival.bad(&"an answer to nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_once_and_kept() {
        let names = Names::new(100 * CHUNK);
        let name = |chunk: u64, key| Named { chunk, addr: 4096, key };
        assert_eq!(names.get(Half::Open, 3), None);
        assert!(names.set(name(2 * 3, 7)) && names.set(name(2 * 3, 7)) && names.set(name(2 * 3 + 1, 8)));
        assert!(!names.set(name(2 * 3, 9)), "it has another");
        assert_eq!(names.get(Half::Open, 3), Some(Remote { addr: 4096, key: 7 }));
        assert_eq!(names.get(Half::Guarded, 3), Some(Remote { addr: 4096, key: 8 }));
        assert!(names.set(name(2 * 199, 1)) && !names.set(name(2 * 256, 1)) && !names.set(name(u64::MAX, 1)));
        assert_eq!((names.get(Half::Open, 200), names.get(Half::Open, u64::MAX)), (None, None));
    }

    #[test]
    fn what_lies_before_the_last_chunk() {
        let before = |offset, len| before_last_piece(At::guarded(0, offset), len, usize::MAX);
        assert_eq!([before(0, 0), before(CHUNK, 0), before(CHUNK - 8, 8), before(CHUNK, 8)], [0; 4]);
        assert_eq!([before(CHUNK - 8, 9), before(CHUNK - 8, CHUNK as usize + 8)], [8; 2]);
        assert_eq!(before(CHUNK - 8, CHUNK as usize + 9), CHUNK as usize + 8);
    }

    #[test]
    fn extents_grow_from_both_ends() {
        let (extent, segment) = (Extent::default(), 1 << 30);
        for (half, bit) in [(Half::Open, 0), (Half::Guarded, crate::contract::GUARDED)] {
            let has = |offset, len| extent.has(At { rank: 0, offset: offset | bit }, len, segment);
            assert!(!has(4096, 8) && !has(segment - 8, 8) && !has(segment, 8));
            extent.grow(half, &(0..1 << 20), segment);
            extent.grow(half, &(segment - (1 << 16)..segment), segment);
            assert!(has(4096, 8) && has((1 << 20) - 8, 8));
            assert!(!has((1 << 20) - 7, 8) && !has(segment - (1 << 16) - 1, 8));
            assert!(has(segment - (1 << 16), 1 << 16) && !has(segment - (1 << 16), (1 << 16) + 1));
        }
        for (half, bit) in [(Half::Open, 0), (Half::Guarded, crate::contract::GUARDED)] {
            let has = |offset, len| extent.has(At { rank: 0, offset: offset | bit }, len, segment);
            assert!(!has(segment, 8));
            extent.grow(half, &(segment..segment + (1 << 12)), segment);
            assert!(has(segment, 1 << 12) && !has(segment, (1 << 12) + 1) && !has(segment - 8, 16));
        }
    }
}
