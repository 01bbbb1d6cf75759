//! The control area at the head of each process's file: what ranks share besides data.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`Header`]: cookie, the abort word, bytes being committed |
//! | 4 KiB | the barrier's pair and release lines and its meeting with other nodes, then its counters, a line each |
//! | 16 MiB | one [`Seat`] per rank of the process: bell, barrier slot, record, turn at a lock, gate of its locks |
//! | 96 MiB | texts of the sites where locks were taken, 128 bytes each |
//! | 100 MiB | one [`Place`] per rank of the job, in the lines of those who wait for locks of the node from elsewhere |
//!
//! Of all but the cookie and the seats only those of the node's first process are used. Everything is an atomic;
//! zeroed memory is a valid state of all of it; only touched pages exist.

use crate::barrier::{Counter, Pair, Places, Release, Slot};
use crate::far::{Gate, Place};
use crate::lock::Turn;
use crate::meeting::Meeting;
use crate::record::Record;
use crate::shm::segment::Mapping;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use crate::wait::{Bell, Sleepers, Toil};
use std::sync::Arc;

/// Bytes of the control area (virtual; a few pages of it exist).
pub const LEN: usize = 128 << 20;
/// Ranks of a node, at most: what a barrier counts.
pub const MOST_RANKS: usize = (1 << 16) - 1;
const BARRIER: usize = 4096;
const COUNTERS: usize = BARRIER + size_of::<BarrierLines>();
const SEATS: usize = 16 << 20;
const SEAT: usize = 1024;
const SITES: usize = 96 << 20;
/// Sites that a process can name.
pub const MOST_SITES: usize = 4096;
const PLACES: usize = 100 << 20;
/// Ranks of a job, at most: what a pointer counts.
const MOST_IN_ALL: usize = 1 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"partage1");

/// Of one process.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    cookie: [AtomicU64; 2],
    abort: Line<AtomicU32>,
    pending: Line<AtomicU64>,
    toil: Line<Toil>,
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Line<T>(T);

/// Of one rank.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Seat {
    bell: BellLine,
    slot: Slot,
    record: Record,
    turn: TurnLine,
    gate: GateLine,
}

/// The text of a site, ended by a zero byte; written once.
pub type Text = [AtomicU64; 16];

#[repr(C, align(64))]
#[derive(Debug)]
struct BellLine(Bell);

#[repr(C, align(64))]
#[derive(Debug)]
struct TurnLine(Turn);

#[repr(C, align(64))]
#[derive(Debug)]
struct GateLine(Gate);

#[repr(C)]
struct BarrierLines {
    pair: Pair,
    release: Release,
    meeting: Meeting,
}

const _: () = assert!(size_of::<Seat>() <= SEAT && size_of::<Header>() <= BARRIER);
const _: () = assert!(SEATS + MOST_RANKS * SEAT <= SITES && SITES + MOST_SITES * size_of::<Text>() <= PLACES);
const _: () = assert!(PLACES + MOST_IN_ALL * size_of::<Place>() <= LEN);
const _: () = assert!(COUNTERS + 2 * MOST_RANKS * size_of::<Counter>() <= SEATS);

/// The control area of one mapped file.
#[derive(Debug, Clone)]
pub struct Control(Arc<Mapping>);

impl Control {
    /// Of this mapping, which must be at least [`LEN`] long.
    pub fn new(mapping: Arc<Mapping>) -> Control {
        assert!(mapping.len() >= LEN);
        Control(mapping)
    }

    /// Marks a new area as belonging to the job that made this cookie.
    pub fn sign(&self, cookie: [u64; 2]) {
        let header = self.header();
        header.cookie[0].store(cookie[0], Relaxed);
        header.cookie[1].store(cookie[1], Relaxed);
        header.magic.store(MAGIC, Release);
    }

    /// Is this the area that was signed with this cookie?
    pub fn is_signed(&self, cookie: [u64; 2]) -> bool {
        let header = self.header();
        header.magic.load(Acquire) == MAGIC && [0, 1].map(|i| header.cookie[i].load(Relaxed)) == cookie
    }

    /// Not zero once the job has been aborted.
    pub fn abort(&self) -> &AtomicU32 {
        &self.header().abort.0
    }

    /// Bytes that ranks of the node are about to commit; see [`Mapping::commit`].
    pub fn pending(&self) -> &AtomicU64 {
        &self.header().pending.0
    }

    /// What the node's ranks do for long.
    pub fn toil(&self) -> &Toil {
        &self.header().toil.0
    }

    /// The node's count of sleeping ranks.
    pub fn sleepers(&self) -> &Sleepers {
        // SAFETY: the barrier's lines are inside and aligned, see the table above; all fields are atomics.
        unsafe { (*self.0.base().add(BARRIER).cast::<BarrierLines>()).release.sleepers() }
    }

    /// The node's side of barriers with other nodes.
    pub fn meeting(&self) -> &Meeting {
        // SAFETY: as above.
        unsafe { &(*self.0.base().add(BARRIER).cast::<BarrierLines>()).meeting }
    }

    /// The bell of the process's i-th rank.
    #[inline(always)]
    pub fn bell(&self, i: usize) -> &Bell {
        &self.seat(i).bell.0
    }

    /// The record of the process's i-th rank.
    pub fn record(&self, i: usize) -> &Record {
        &self.seat(i).record
    }

    /// The turn of the process's i-th rank at a lock.
    #[inline(always)]
    pub fn turn(&self, i: usize) -> &Turn {
        &self.seat(i).turn.0
    }

    /// The gate to those who wait for locks of the process's i-th rank.
    pub fn gate(&self, i: usize) -> &Gate {
        &self.seat(i).gate.0
    }

    /// The places of so many ranks of the job.
    pub fn places(&self, ranks: usize) -> &[Place] {
        assert!(ranks <= MOST_IN_ALL);
        // SAFETY: inside, see the table above, and on a line; atomics.
        unsafe { std::slice::from_raw_parts(self.0.base().add(PLACES).cast(), ranks) }
    }

    /// Where the text of a site is; `None` if there are no such.
    pub fn site(&self, number: usize) -> Option<&Text> {
        // SAFETY: inside the texts, see the table above, and on a line; atomics.
        (number < MOST_SITES).then(|| unsafe { &*self.0.base().add(SITES).cast::<Text>().add(number) })
    }

    fn header(&self) -> &Header {
        // SAFETY: offset 0 is aligned and inside; all fields are atomics for which zeroed memory is valid.
        unsafe { &*self.0.base().cast() }
    }

    #[inline(always)]
    fn seat(&self, i: usize) -> &Seat {
        assert!(i < MOST_RANKS);
        // SAFETY: aligned and inside; all fields are atomics.
        unsafe { &*self.0.base().add(SEATS + i * SEAT).cast() }
    }
}

/// The barrier's places for one node: the lines in its first process's area, the slots and bells of all its ranks.
#[derive(Debug)]
pub struct NodePlaces {
    lines: *const BarrierLines,
    counters: *const Counter,
    seats: Vec<*const Seat>,
    /// Keeps the memory behind the pointers mapped.
    _areas: Vec<Control>,
}

impl NodePlaces {
    /// `seats`: for each rank of the node its process's area and its index there.
    pub fn new(areas: &[Control], seats: impl Iterator<Item = (usize, usize)>) -> NodePlaces {
        let base = areas[0].0.base();
        NodePlaces {
            // SAFETY: inside the area, see the table above.
            lines: unsafe { base.add(BARRIER).cast() },
            // SAFETY: as above.
            counters: unsafe { base.add(COUNTERS).cast() },
            seats: seats.map(|(area, i)| areas[area].seat(i) as *const Seat).collect(),
            _areas: areas.to_vec(),
        }
    }

    #[inline(always)]
    fn lines(&self) -> &BarrierLines {
        // SAFETY: points into an area that `_areas` keeps mapped; all fields are atomics.
        unsafe { &*self.lines }
    }

    #[inline(always)]
    fn seat(&self, r: usize) -> &Seat {
        // SAFETY: as for `lines`.
        unsafe { &*self.seats[r] }
    }
}

// SAFETY: all of them are addresses in mapped files that `_areas` keeps mapped.
unsafe impl Places for NodePlaces {
    #[inline(always)]
    fn pair(&self) -> &Pair {
        &self.lines().pair
    }
    #[inline(always)]
    fn slot(&self, r: usize) -> &Slot {
        &self.seat(r).slot
    }
    #[inline(always)]
    fn counter(&self, i: usize) -> &Counter {
        assert!(i < 2 * MOST_RANKS);
        // SAFETY: inside the counters, which lie in an area that `_areas` keeps mapped.
        unsafe { &*self.counters.add(i) }
    }
    #[inline(always)]
    fn release(&self) -> &Release {
        &self.lines().release
    }
    #[inline(always)]
    fn bell(&self, r: usize) -> &Bell {
        &self.seat(r).bell.0
    }
}
