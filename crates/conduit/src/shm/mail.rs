//! The memory of a node's messages: each rank's queues and buffers, and how the others find them.
//!
//! # Nets
//! There are two, each with a queue for requests and one for replies, so that a reply never stands behind requests:
//! * [`AM`]: handlers of the table, served by any thread of the target's process;
//! * [`CALL`]: taken by the target rank's own thread only, also from ranks of the same process, for whoever is above this
//!   crate to make sense of.
//!
//! # Memory
//! Each rank has an *area* after the control area of its process's file: four rings, what it counts for each source, and
//! four pools, one per ring: calls and results are not always taken, so requests and replies must not wait for their
//! buffers. Only touched pages exist. Rings have as many slots as all sources' windows need together, at least
//! 1024; what grows with the square of the ranks of a node is some 50 bytes for each pair, half of them shared (and, with
//! hundreds of ranks, slots).

use crate::am::{Landing, Table};
use crate::pool::{self, Buffer, Pool};
use crate::ring::{Account, Got, Inlet, Ring, Shown, Slot, Tail};
use crate::shm::control::MOST_RANKS;
use crate::wait::Bell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Requests and replies of handlers.
pub const AM: usize = 0;
/// Calls and results, for the target's own thread.
pub const CALL: usize = 1;
pub(super) const NETS: usize = 2;

/// Slots of a ring, at least and at most.
const FEWEST: usize = 1024;
const MOST: usize = 2 << 16;

// The area of a rank.
const SHOWN: usize = 4096;
const ACCOUNTS: usize = SHOWN + NETS * (MOST_RANKS + 1) * size_of::<Shown>();
const RINGS: usize = ACCOUNTS + NETS * (MOST_RANKS + 1) * size_of::<Account>();
const POOLS: usize = RINGS + 2 * NETS * MOST * size_of::<Slot>();
/// Which pool: those of the nets' requests come first, then those of their replies.
pub(super) const OF_REPLIES: usize = NETS;
/// A kilobyte more than pages: a payload that is copied from one pool to another does not meet itself at the same place of
/// a page.
const POOL_STRIDE: usize = pool::LEN.next_multiple_of(4096) + 1024;
/// Bytes of a rank's area: a multiple of a huge page, with room for the skew.
pub const AREA: usize = (POOLS + 2 * NETS * POOL_STRIDE + 4096).next_multiple_of(2 << 20);

/// Where in its area a rank's things begin, so that those of all ranks do not fall into the same sets of a cache.
pub fn skew(rank: usize) -> usize {
    rank % 64 * 64
}

const _: () = assert!(SHOWN.is_multiple_of(64) && ACCOUNTS.is_multiple_of(64) && RINGS.is_multiple_of(64));
const _: () = assert!(2 * NETS * size_of::<Tail>() <= SHOWN);

/// The messages of one process: where all ranks of the node are reached, and the queues of its own.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) peers: Box<[Peer]>,
    pub(super) boxes: Box<[Letterbox]>,
    pub(super) first: usize,
    pub(super) window: u32,
    /// Has this process one rank only?
    pub(super) solo: bool,
    pub(super) table: Table,
}

/// A rank of the node as others reach it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) requests: [Ring; NETS],
    pub(super) replies: [Ring; NETS],
    pub(super) area: *mut u8,
    pub(super) bell: *const Bell,
    /// Is it of this process?
    pub(super) here: bool,
}

/// A rank of this process as its messages find it.
#[derive(Debug)]
pub(super) struct Letterbox {
    pub(super) requests: [Inlet; NETS],
    pub(super) replies: [Inlet; NETS],
    /// Replies that have come, by who replied.
    pub(super) got: [Box<[Got]>; NETS],
    /// Buffers of its replies.
    pub(super) pools: [Pool; NETS],
    /// Replies for which there was no buffer, and how many.
    pub(super) kept: [Mutex<VecDeque<Kept>>; NETS],
    pub(super) kept_count: [AtomicUsize; NETS],
    /// What other threads of the rank have for it to do: how many errands.
    pub(super) errands: AtomicUsize,
    pub(super) landing: Landing,
    pub(super) locks: super::lock::Answers,
    /// Has its thread taken its seat?
    pub(super) seated: AtomicBool,
}

impl Letterbox {
    /// Has nothing arrived, and is nothing kept?
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        // All of them, without asking one after the other.
        let [a, b] = [&self.replies, &self.requests].map(|i| i[AM].is_empty() & i[CALL].is_empty());
        let kept = self.kept_count[AM].load(Relaxed) | self.kept_count[CALL].load(Relaxed);
        a & b & (kept | self.errands.load(Relaxed) == 0)
    }

    /// Has anything arrived that only the rank's own thread deals with?
    #[inline(always)]
    pub(super) fn has_for_owner(&self) -> bool {
        let calls = self.replies[CALL].is_empty() & self.requests[CALL].is_empty();
        !calls | (self.errands.load(Relaxed) != 0)
    }
}

/// A reply that waits for a buffer.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) to: usize,
    pub(super) handler: u16,
    pub(super) args: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

// SAFETY: addresses of shared memory that the node keeps mapped; everything reached through them is an atomic, or a
// buffer with one user at a time.
unsafe impl Send for Mail {}
// SAFETY: as above.
unsafe impl Sync for Mail {}

impl Mail {
    /// # Safety
    /// For each rank of the node its area, zeroed at first, its bell, and whether it is of this process; those of this
    /// process begin at rank `first`. All stay mapped as long as this value.
    pub unsafe fn new(ranks: Vec<(*mut u8, *const Bell, bool)>, first: usize) -> Mail {
        let n = ranks.len();
        let slots = (16 * n).next_power_of_two().clamp(FEWEST, MOST);
        let window = (slots / n) as u32;
        // Two processes of one rank: each has one thread to send to the other.
        let two_processes = n == 2 && ranks.iter().filter(|r| r.2).count() == 1;
        let peer = |(area, bell, here): (*mut u8, *const Bell, bool)| {
            // SAFETY: inside the area, by the constants above; tails and slots are on lines.
            let ring = |i: usize| unsafe {
                let tail = area.add(i * size_of::<Tail>()).cast();
                Ring::new(tail, area.add(RINGS + i * MOST * size_of::<Slot>()).cast(), slots)
            };
            // A rank calls itself through its queue too, but sends it no messages.
            let of_am = |i: usize| ring(i).with_one_sender(two_processes);
            Peer { requests: [of_am(0), ring(1)], replies: [of_am(2), ring(3)], area, bell, here }
        };
        let peers: Box<[Peer]> = ranks.into_iter().map(peer).collect();
        // Calls are taken by their rank's own thread, handlers' messages by all of the process.
        let solo = peers.iter().filter(|p| p.here).count() == 1;
        let inlets = |rings: [Ring; NETS]| [Inlet::new(rings[AM], solo), Inlet::new(rings[CALL], true)];
        let letterbox = |peer: &Peer| Letterbox {
            requests: inlets(peer.requests),
            replies: inlets(peer.replies),
            got: [0, 1].map(|_| (0..n).map(|_| Got::default()).collect()),
            // SAFETY: inside the area, which is zeroed at first and stays.
            pools: [AM, CALL].map(|net| unsafe { Pool::new(peer.pool(OF_REPLIES + net), n) }),
            kept: Default::default(),
            kept_count: Default::default(),
            errands: AtomicUsize::new(0),
            landing: Landing::default(),
            locks: Default::default(),
            seated: AtomicBool::new(false),
        };
        let boxes = peers.iter().filter(|p| p.here).map(letterbox).collect();
        Mail { peers, boxes, first, window, solo, table: Table::new() }
    }

    /// Has this process several ranks, and messages from other processes?
    pub fn can_help(&self) -> bool {
        !self.solo && self.boxes.len() < self.peers.len()
    }

    #[inline(always)]
    pub(super) fn letterbox(&self, rank: usize) -> &Letterbox {
        &self.boxes[rank - self.first]
    }

    /// The buffer of a message from `owner`.
    #[inline(always)]
    pub(super) fn find(&self, owner: usize, which: usize, word: u64) -> Option<(Buffer, usize)> {
        let (place, len) = ((word >> 32) as u32, word as u32 as usize);
        // SAFETY: a pool of an area (`new`).
        unsafe { Buffer::find(self.peers[owner].pool(which), place, len) }.map(|b| (b, len))
    }

    /// Gives a buffer back, for which its owner may wait.
    #[inline(always)]
    fn give(&self, owner: usize, buffer: Buffer) {
        buffer.give();
        self.peers[owner].bell().ring();
    }

    /// Counts requests of `source` to `target` that have ended without a reply.
    #[inline(always)]
    pub(super) fn ended(&self, net: usize, target: usize, source: usize, n: u32) {
        let peer = &self.peers[target];
        if peer.account(net, source).ended(n, peer.shown(net, source), self.window) {
            self.peers[source].bell().ring_after_fence();
        }
    }
}

impl Peer {
    /// What this rank shows to `source`.
    #[inline(always)]
    pub(super) fn shown(&self, net: usize, source: usize) -> &Shown {
        debug_assert!(source <= MOST_RANKS);
        // SAFETY: inside the area; atomics.
        unsafe { &*self.area.add(SHOWN).cast::<Shown>().add(net * (MOST_RANKS + 1) + source) }
    }

    /// What this rank counts for `source`.
    #[inline(always)]
    pub(super) fn account(&self, net: usize, source: usize) -> &Account {
        debug_assert!(source <= MOST_RANKS);
        // SAFETY: as above.
        unsafe { &*self.area.add(ACCOUNTS).cast::<Account>().add(net * (MOST_RANKS + 1) + source) }
    }

    /// The start of one of this rank's pools.
    #[inline(always)]
    pub(super) fn pool(&self, which: usize) -> *mut u8 {
        // SAFETY: inside the area.
        unsafe { self.area.add(POOLS + which * POOL_STRIDE) }
    }

    #[inline(always)]
    pub(super) fn bell(&self) -> &Bell {
        // SAFETY: stays mapped (`Mail::new`).
        unsafe { &*self.bell }
    }
}

/// Gives a buffer back when its message has ended, however it ends.
pub(super) struct Lent<'n> {
    pub(super) mail: &'n Mail,
    pub(super) owner: usize,
    pub(super) buffer: Buffer,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.mail.give(self.owner, self.buffer);
    }
}
