//! Which memory the network knows: segments are registered in chunks as they grow, and stay so.
//!
//! The key of a chunk follows from its rank and number, so nobody has to be told. How far a segment has grown is asked of
//! its rank, once and again when a place lies beyond what is known: a place that is not registered would break the
//! connection, so it is refused before it is tried.

use super::Net;
use super::endpoint::{Region, Remote};
use super::fi::{FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Failure, Half, Outside};
use crate::ranks::Ranks;
use crate::record::Site;
use crate::reference::{EXTENT, EXTENT_IS, Question};
use crate::shm;
use crate::shm::segment::Exhausted;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// What providers may ask for and do not get yet.
pub(super) const NOT_DONE: i32 = FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;

/// Bytes that are registered at a time.
pub const CHUNK: u64 = 16 << 20;

/// Keys of one process are below this.
pub(super) const KEYS: u64 = 1 << 38;
/// Set in those of FIFOs, which are not of segments.
pub(super) const FIFOS: u64 = 1 << 37;

/// What is registered, by key.
pub(super) type Regions = BTreeMap<u64, Region>;

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
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            let key = self.key(i, half, chunk);
            if regions.contains_key(&key) {
                continue;
            }
            let from = chunk * CHUNK;
            // SAFETY: a part of the segment, for which the caller promises.
            let region =
                unsafe { self.endpoint.register(base.add(from as usize), CHUNK.min(len - from) as usize, key) };
            let region = region.map_err(|why| Exhausted::Network { why })?;
            regions.insert(key, region);
        }
        self.extents[self.first + i].grow(half, &range, self.segment);
        Ok(())
    }

    /// The key of the i-th rank's chunk, in any process.
    fn key(&self, i: usize, half: Half, chunk: u64) -> u64 {
        self.keys | (half as u64) << 36 | (i as u64) << 20 | chunk
    }

    /// How much of a rank's segment is registered.
    pub(super) fn extent(&self, rank: usize) -> [u64; 6] {
        [0, 1, 2, 3, 4, 5].map(|i| self.extents[rank].0[i].load(Acquire))
    }

    /// A place in a segment as the network names it, and how many bytes from there on have that name.
    pub(super) fn remote(&self, ranks: &Ranks, at: At) -> (Remote, u64) {
        let offset = at.in_half().offset;
        let (chunk, inside) = (offset / CHUNK, offset % CHUNK);
        let key = self.key(ranks.place(at.rank as usize).1, at.half(), chunk);
        (Remote { addr: inside, key }, CHUNK - inside)
    }
}

/// Makes sure that a place is one that its network knows.
pub(super) fn check(seat: &shm::Seat, site: Site, at: At, len: usize) -> Result<(), Failure> {
    crate::reference::check(seat, at, len)?;
    let (_, net) = seat.beyond();
    let known = || net.extents[at.rank as usize].has(at, len as u64, net.segment);
    if known() {
        return Ok(());
    }
    let asked = Question::new(seat, 1);
    seat.request(site, at.rank, EXTENT, &u64::from(asked.slot), &[])?;
    asked.wait(seat, site)?;
    if known() {
        return Ok(());
    }
    let (ranks, segment) = (seat.ranks(), seat.half_len(at.half()));
    Err(Failure::Outside(Outside { at, len, ranks, segment }))
}

pub(crate) struct OnExtent;
impl Handler for OnExtent {
    fn run(&self, arrival: &Arrival<'_>) {
        let all = arrival.node().net().map_or([0; 6], |net| net.extent(arrival.target()));
        let (slot, _) = arrival.open::<u64>();
        let [a, b, c, d, e, f] = all;
        arrival.reply(EXTENT_IS, &[slot, a, b, c, d, e, f], &[]);
    }
}

pub(crate) struct OnExtentIs;
impl Handler for OnExtentIs {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, all @ ..], _) = arrival.open::<[u64; 7]>();
        if let Some(net) = arrival.node().net() {
            let extent = &net.extents[arrival.source()];
            extent.0.iter().zip(all).for_each(|(e, n)| _ = e.fetch_max(n, Release));
        }
        if !slot.try_into().is_ok_and(|slot| arrival.landing().answers.answer(slot, 0)) {
            arrival.bad(&"an answer to nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
