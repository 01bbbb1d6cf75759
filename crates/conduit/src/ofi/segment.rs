//! Which memory the network knows: segments are registered in chunks as they grow, and stay so.
//!
//! What a chunk is called there (its address or 0, and its key, which nobody can guess) only its process knows, and writes to
//! the rank's [ledger](crate::ledger). Processes of the node read it; others ask
//! the rank for what it says; both at the first use, and again when a place lies beyond what
//! is known: a place that is not registered would break the connection, so it is refused before it is tried. Who asks says
//! how many names he has.
//!
//! # Memory ordering
//! Whoever is told of memory is told its name, or that there are more to be asked for, since the ledger says no less. What is
//! known is published by [`OnceLock`], and never changes.

use super::Net;
use super::endpoint::{Region, Remote};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Failure, Half, Outside};
use crate::ledger::{Ledger, Named};
use crate::pool::LARGE;
use crate::record::Site;
use crate::reference::{EXTENT, EXTENT_IS, Question};
use crate::shm;
use crate::shm::segment::Exhausted;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{OnceLock, PoisonError};

/// Bytes that are registered at a time.
pub const CHUNK: u64 = 16 << 20;

/// What is registered for others: chunks by rank of the process, half and number.
pub(super) type Regions = BTreeMap<(usize, bool, u64), Region>;

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

impl Net {
    /// Registers a part of the i-th rank's segment, of whose half there are `len` bytes at `base`, and says so in its ledger, whose
    /// bytes that are written to are `prepare`d before.
    ///
    /// # Safety
    /// They stay mapped as long as this value.
    pub(crate) unsafe fn register(
        &self,
        (i, ledger): (usize, &Ledger),
        half: Half,
        base: *mut u8,
        len: u64,
        range: Range<u64>,
        prepare: impl Fn(Range<usize>) -> Result<(), Exhausted>,
    ) -> Result<(), Exhausted> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in chunks(&range) {
            let which = (i, half == Half::Guarded, chunk);
            if regions.contains_key(&which) {
                continue;
            }
            prepare(ledger.next())?;
            let Range { start, end } = bytes_of(chunk, len);
            let (at, bytes) = (base.wrapping_add(start as usize), (end - start) as usize);
            // SAFETY: a part of the segment, for which the caller promises.
            let register = || unsafe { self.endpoint.register_anew(at, bytes) };
            let region = self.local.making_room(register).map_err(|why| Exhausted::Network { why: why.to_string() })?;
            let Remote { addr, key } = region.remote();
            self.local.knows(at, bytes, region.desc());
            let named = Named { chunk: chunk << 1 | half as u64, addr, key };
            assert!(self.names[self.first + i].set(named), "a chunk of the segment");
            // One thread at a time: the regions are locked.
            ledger.push(named);
            regions.insert(which, region);
        }
        self.extents[self.first + i].grow(half as usize, &range, self.segment);
        ledger.grow(half as usize, &range, self.segment);
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

    /// What a rank's ledger says of its segment, where the names are those from `known` on; false if that cannot be.
    fn learn(&self, rank: usize, known: u64, extent: [u64; 6], named: &[Named]) -> bool {
        let names = &self.names[rank];
        let fits = named.iter().all(|&one| names.set(one));
        if fits {
            names.known.fetch_max(known + named.len() as u64, Release);
            self.extents[rank].raise(extent);
        }
        fits
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
        self.extents[at.rank as usize].has(at.half() as usize, offset..offset + len, self.segment)
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
    let (node, net, rank) = (seat.node(), seat.beyond().1, at.rank as usize);
    loop {
        let known = net.names[rank].known.load(Acquire);
        // A neighbour may compute, and would not answer.
        let more = if let Some(ledger) = node.ledger(rank) {
            let (extent, named) = ledger.read(known, usize::MAX);
            assert!(net.learn(rank, known, extent, &named), "its process writes it");
            0
        } else {
            let asked = Question::new(seat, 1);
            seat.request(site, at.rank, EXTENT, &[u64::from(asked.slot), known], &[])?;
            asked.wait(seat, site)?;
            asked.value()
        };
        if net.knows(at, len as u64) {
            return Ok(());
        }
        if more == 0 {
            let (ranks, segment) = (seat.ranks(), seat.half_len(at.half()));
            return Err(Failure::Outside(Outside { at, len, ranks, segment }));
        }
    }
}

pub(crate) struct OnExtent;
impl Handler for OnExtent {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, known], _) = arrival.open::<[u64; 2]>();
        let ledger = arrival.node().ledger(arrival.target()).expect("a rank of this process");
        let ([a, b, c, d, e, f], more) = ledger.read(known, MOST);
        arrival.reply(EXTENT_IS, &[slot, known, a, b, c, d, e, f], bytemuck::cast_slice(&more));
    }
}

/// The answer, by how many names it brings.
pub(crate) struct OnExtentIs;
impl Handler for OnExtentIs {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, known, extent @ ..], named) = arrival.open::<[u64; 8]>();
        let named = named.to_vec();
        let named: Vec<Named> = named.chunks_exact(size_of::<Named>()).map(bytemuck::pod_read_unaligned).collect();
        if arrival.node().net().is_some_and(|net| !net.learn(arrival.source(), known, extent, &named)) {
            arrival.bad(&"a chunk that is not of its segment, or has two names");
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
}
