//! Which memory the network knows: segments are registered in chunks as they grow, and stay so.
//!
//! The key of a chunk follows from its rank and number, so nobody has to be told. How far a segment has grown is asked of
//! its rank, once and again when a place lies beyond what is known: a place that is not registered would break the
//! connection, so it is refused before it is tried.

use super::Net;
use super::endpoint::{Region, Remote};
use super::fi::{FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Failure, Outside};
use crate::heap::Side;
use crate::ranks::Ranks;
use crate::record::Site;
use crate::reference::{EXTENT, EXTENT_IS};
use crate::shm;
use crate::shm::segment::Exhausted;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// What providers may ask for and do not get yet.
pub(super) const NOT_DONE: i32 = FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;

/// Bytes that are registered at a time.
pub const CHUNK: u64 = 16 << 20;

/// What is registered, by rank of the process and chunk.
pub(super) type Regions = BTreeMap<(usize, u64), Region>;

/// How many bytes of a segment are registered: from its start, and from its end.
#[derive(Debug, Default)]
pub(super) struct Extent([AtomicU64; 2]);

impl Extent {
    fn has(&self, offset: u64, len: u64, segment: u64) -> bool {
        let [low, high] = [0, 1].map(|i| self.0[i].load(Acquire));
        offset + len <= low || offset >= segment - high
    }
}

impl Net {
    /// Registers what a rank's heap has grown by: `want` bytes from the start or the end of its segment of `size` bytes.
    ///
    /// # Safety
    /// The segment begins at `base` and stays mapped as long as this value; nobody makes references into it.
    pub(crate) unsafe fn register(
        &self,
        i: usize,
        base: *mut u8,
        size: u64,
        side: Side,
        want: u64,
    ) -> Result<(), Exhausted> {
        let range = if side == Side::Local { 0..want } else { size - want..size };
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            if regions.contains_key(&(i, chunk)) {
                continue;
            }
            let from = chunk * CHUNK;
            let len = CHUNK.min(size - from) as usize;
            // SAFETY: a part of the segment, for which the caller promises.
            let region = unsafe { self.endpoint.register(base.add(from as usize), len, self.key(i, chunk)) };
            let region = region.map_err(|why| Exhausted::Network { why })?;
            regions.insert((i, chunk), region);
        }
        self.extents[self.first + i].0[side as usize].fetch_max(want, Release);
        Ok(())
    }

    /// The key of the i-th rank's chunk, in any process.
    fn key(&self, i: usize, chunk: u64) -> u64 {
        self.keys | (i as u64) << 20 | chunk
    }

    /// A place in a segment as the network names it, and how many bytes from there on have that name.
    pub(super) fn remote(&self, ranks: &Ranks, at: At) -> (Remote, u64) {
        let (chunk, inside) = (at.offset / CHUNK, at.offset % CHUNK);
        let key = self.key(ranks.place(at.rank as usize).1, chunk);
        (Remote { addr: inside, key }, CHUNK - inside)
    }
}

/// Makes sure that a place is one that its network knows.
pub(super) fn check(seat: &shm::Seat, site: Site, at: At, len: usize) -> Result<(), Failure> {
    crate::reference::check(seat, at, len)?;
    let (_, net) = seat.beyond();
    let known = || net.extents[at.rank as usize].has(at.offset, len as u64, seat.segment_len());
    if known() {
        return Ok(());
    }
    let begun = seat.landing().count();
    seat.request(site, at.rank, EXTENT, &(), &[])?;
    seat.wait(site, || seat.landing().count() != begun)?;
    if known() {
        return Ok(());
    }
    let (ranks, segment) = (seat.ranks(), seat.segment_len());
    Err(Failure::Outside(Outside { at, len, ranks, segment }))
}

pub(crate) struct OnExtent;
impl Handler for OnExtent {
    fn run(&self, arrival: &Arrival<'_>) {
        let extents = arrival.node().net().map(|net| &net.extents[arrival.target()]);
        let all = extents.map_or([0, 0], |e| [0, 1].map(|i| e.0[i].load(Acquire)));
        arrival.reply(EXTENT_IS, &all, &[]);
    }
}

pub(crate) struct OnExtentIs;
impl Handler for OnExtentIs {
    fn run(&self, arrival: &Arrival<'_>) {
        let (all, _) = arrival.open::<[u64; 2]>();
        if let Some(net) = arrival.node().net() {
            let extent = &net.extents[arrival.source()];
            extent.0.iter().zip(all).for_each(|(e, n)| _ = e.fetch_max(n, Release));
        }
        arrival.landing().one_more();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_grow_from_both_ends() {
        let extent = Extent::default();
        assert!(!extent.has(4096, 8, 1 << 30));
        extent.0[0].store(1 << 20, Relaxed);
        extent.0[1].store(1 << 16, Relaxed);
        assert!(extent.has(4096, 8, 1 << 30) && extent.has((1 << 20) - 8, 8, 1 << 30));
        assert!(!extent.has((1 << 20) - 7, 8, 1 << 30) && !extent.has((1 << 30) - (1 << 16) - 1, 8, 1 << 30));
        assert!(extent.has((1 << 30) - (1 << 16), 1 << 16, 1 << 30));
    }
}
