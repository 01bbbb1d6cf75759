//! Collectives ([`crate::coll`]) in the memory of a node: where a rank's *desk* is, and what of it others reach.
//!
//! A desk is a block of guarded memory, at the same offset on every rank, zeroed at first:
//!
//! | from | what | who writes |
//! |---|---|---|
//! | 0 | a [`Hall`] for each context; those of a node's first rank are the node's | the ranks of the node, and what tells of others |
//! | [`INLETS`] | an [`Inlet`] for each rank | that rank |
//! | after them | a [`Sign`] for each rank and context | that rank |
//! | after them | scratch, a part for each context | whoever a plan says |
//!
//! What is mapped is written by stores. To other nodes, and on the reference path, the same words are added to by messages
//! ([`Notice::Add`](crate::signal::Notice)), and arrivals of a whole node at once ([`ARRIVED`]).

use super::Node;
use super::rma::Reach;
use crate::am::{Arrival, Handler};
use crate::coll::{CONTEXTS, Claims, Count, Hall, Inlet, Letter, Sign, Told};
use crate::contract::{At, Half};
#[cfg(doc)]
use crate::reference::ARRIVED;
use crate::ring::prefetch_to_write;
use crate::sync::light_fence;
use crate::wait::{Bell, Sleepers};
use std::mem::offset_of;
use std::sync::Arc;

/// How many collectives ahead lines are asked for: a store to a line that is not here holds up all that come after it.
pub const AHEAD: usize = 2;

/// Where inlets begin.
pub const INLETS: usize = CONTEXTS * size_of::<Hall>();

/// Scratch of a rank in one context: enough for pages of all, but no more than a small part of a segment.
fn scratch_len(node: &Node) -> usize {
    let wanted = (node.ranks().count() * (4 << 10)).next_power_of_two().clamp(128 << 10, 16 << 20);
    wanted.min((node.segment() / 256) as usize & !4095)
}

/// Bytes of a desk.
pub fn len(node: &Node) -> usize {
    scratch_at(node.ranks().count()) + CONTEXTS * scratch_len(node)
}

fn signs_at(ranks: usize) -> usize {
    INLETS + ranks * size_of::<Inlet>()
}

fn scratch_at(ranks: usize) -> usize {
    (signs_at(ranks) + ranks * CONTEXTS * size_of::<Sign>()).next_multiple_of(4096)
}

/// A rank's desk, and what it reaches of those of others.
#[derive(Debug)]
pub struct Desk {
    rank: usize,
    ranks: usize,
    scratch_len: usize,
    offset: u64,
    halls: *const Hall,
    inlets: *const Inlet,
    signs: *const Sign,
    peers: Box<[Peer]>,
    sleepers: *const Sleepers,
    /// What all of them point into.
    node: Arc<Node>,
}

/// What is reached of a rank's desk; null where nothing is.
#[derive(Debug)]
struct Peer {
    /// The one that is for this rank.
    inlet: *const Inlet,
    /// Those of this rank.
    signs: *const Sign,
    scratch: *mut u8,
    bell: *const Bell,
}

impl Desk {
    /// Of a rank whose block of [`len`] bytes is there, as everybody's is; others are reached by what this table has.
    ///
    /// # Safety
    /// These blocks, on all ranks, are used by desks of this job only, as long as anybody has one, and were zero at first. The table is one of
    /// this node.
    ///
    /// # Panics
    /// If there is no such memory.
    pub unsafe fn new(node: &Arc<Node>, reach: &Reach, rank: usize, offset: u64) -> Desk {
        let ranks = node.ranks().count();
        let locate = |reach: &Reach, of: usize| reach.locate(At { rank: of as u32, offset }, len(node));
        let here = |of: usize| locate(node.table(Half::Guarded), of).expect("memory of this node");
        let first = node.ranks().members()[0] as usize;
        // SAFETY: parts of the block, which is as long as all of them.
        let part = |block: *mut u8, at: usize| unsafe { block.add(at) };
        let peer = |of: usize| match locate(reach, of) {
            Some(block) => Peer {
                inlet: part(block, INLETS + rank * size_of::<Inlet>()).cast(),
                signs: part(block, signs_at(ranks) + rank * CONTEXTS * size_of::<Sign>()).cast(),
                scratch: part(block, scratch_at(ranks)),
                bell: node.bell_of(of as u32),
            },
            None => {
                let (inlet, signs) = (std::ptr::null(), std::ptr::null());
                Peer { inlet, signs, scratch: std::ptr::null_mut(), bell: std::ptr::null() }
            }
        };
        let mut peers: Box<[Peer]> = (0..ranks).map(peer).collect();
        // My own is always there.
        peers[rank].scratch = part(here(rank), scratch_at(ranks));
        Desk {
            rank,
            ranks,
            scratch_len: scratch_len(node),
            offset,
            halls: here(first).cast_const().cast(),
            inlets: part(here(rank), INLETS).cast(),
            signs: part(here(rank), signs_at(ranks)).cast(),
            peers,
            sleepers: node.sleepers(),
            node: node.clone(),
        }
    }

    /// Whose it is.
    #[inline(always)]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[inline(always)]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Are all ranks reached by stores?
    pub fn reaches_all(&self) -> bool {
        self.peers.iter().enumerate().all(|(r, p)| r == self.rank || !p.inlet.is_null())
    }

    /// The hall of this node.
    ///
    /// # Panics
    /// If there is no such context.
    #[inline(always)]
    pub fn hall(&self, context: usize) -> &Hall {
        assert!(context < CONTEXTS);
        // SAFETY: inside the block of the node's first rank; atomics.
        unsafe { &*self.halls.add(context) }
    }

    /// What this rank is told by `from`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline(always)]
    pub fn from(&self, from: usize) -> &Inlet {
        assert!(from < self.ranks);
        // SAFETY: inside the own block; atomics, and words whose users the protocol orders.
        unsafe { &*self.inlets.add(from) }
    }

    /// Where this rank tells something to `to`; nothing where that takes a message.
    #[inline(always)]
    pub fn to(&self, to: usize) -> Option<&Inlet> {
        // SAFETY: null, or inside its block; atomics, and words whose users the protocol orders.
        unsafe { self.peers[to].inlet.as_ref() }
    }

    /// What `from` has said of its collective in this context.
    ///
    /// # Panics
    /// If there is no such rank or context.
    pub fn sign_of(&self, from: usize, context: usize) -> &Sign {
        assert!(from < self.ranks && context < CONTEXTS);
        // SAFETY: inside the own block; atomics.
        unsafe { &*self.signs.add(from * CONTEXTS + context) }
    }

    /// Where this rank says it to `to`; nothing where that takes a message.
    ///
    /// # Panics
    /// If there is no such rank or context.
    pub fn sign_to(&self, to: usize, context: usize) -> Option<&Sign> {
        assert!(context < CONTEXTS);
        let signs = self.peers[to].signs;
        // SAFETY: inside its block; atomics.
        (!signs.is_null()).then(|| unsafe { &*signs.add(context) })
    }

    /// Asks for the line of the next letters to `to`, which this rank is going to write.
    #[inline(always)]
    pub fn prefetch_letter(&self, to: usize, context: usize) {
        let inlet = self.peers[to].inlet;
        let line = inlet.wrapping_byte_add(offset_of!(Inlet, told) + (context + AHEAD) % CONTEXTS * size_of::<Told>());
        prefetch_to_write(line.cast::<u8>());
    }

    /// Looks at the bell of `to`, which is reached by stores. After a light fence that follows what it is to see.
    #[inline(always)]
    pub fn ring(&self, to: usize) {
        // SAFETY: null, or in memory that the node keeps mapped.
        if let Some(bell) = unsafe { self.peers[to].bell.as_ref() } {
            bell.ring_after_fence();
        }
    }

    /// The same of all ranks of this node.
    #[inline(always)]
    pub fn ring_all(&self) {
        // SAFETY: in memory that the node keeps mapped.
        if unsafe { (*self.sleepers).any() } {
            self.node.ring_everybody();
        }
    }

    /// Bytes of scratch that each rank has in each context.
    pub fn scratch_len(&self) -> usize {
        self.scratch_len
    }

    /// Where a rank's scratch begins in this context; null if it is not mapped.
    #[inline(always)]
    pub fn scratch(&self, of: usize, context: usize) -> *mut u8 {
        assert!(context < CONTEXTS);
        let p = self.peers[of].scratch;
        // SAFETY: inside its block.
        if p.is_null() { p } else { unsafe { p.add(context * self.scratch_len) } }
    }

    /// The same as a place in guarded memory.
    pub fn scratch_offset(&self, context: usize) -> u64 {
        self.offset + (scratch_at(self.ranks) + context * self.scratch_len) as u64
    }

    /// Where the words are that this rank has at another's desk, for messages.
    pub fn words(&self, context: usize) -> Words {
        let inlet = self.offset + (INLETS + self.rank * size_of::<Inlet>()) as u64;
        let told = inlet + (offset_of!(Inlet, told) + context * size_of::<Told>()) as u64;
        let signals = told + offset_of!(Told, signals) as u64;
        let claims = [offset_of!(Claims, made), offset_of!(Claims, taken)];
        Words {
            letter: told + Letter::WORDS_AT as u64,
            number: told,
            signals: [0, 8, 16].map(|at| signals + at),
            taken: inlet + (offset_of!(Inlet, taken) + 8 * context) as u64,
            claims: claims.map(|at| signals + (3 * size_of::<Count>() + at) as u64),
            hall: self.offset + (context * size_of::<Hall>()) as u64,
            sign: self.offset + (signs_at(self.ranks) + (self.rank * CONTEXTS + context) * size_of::<Sign>()) as u64,
        }
    }
}

/// Where things are in guarded memory of another rank.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// The bytes of the letter.
    pub letter: u64,
    /// Its number.
    pub number: u64,
    /// Counts of signals.
    pub signals: [u64; 3],
    /// The count of letters that were taken.
    pub taken: u64,
    /// The claim that was made, and the one that was taken.
    pub claims: [u64; 2],
    /// Arrivals, at the first rank of a node.
    pub hall: u64,
    /// The sign.
    pub sign: u64,
}

impl Node {
    /// Where it is counted who sleeps.
    fn sleepers(&self) -> *const Sleepers {
        self.areas[0].sleepers()
    }

    /// Wakes all ranks of this node that sleep. After a light fence.
    #[cold]
    fn ring_everybody(&self) {
        self.mail.peers.iter().for_each(|peer| peer.bell().ring_after_fence());
    }
}

/// Ranks of another node have arrived: the place of the hall, and how many.
pub(crate) struct OnArrived;
impl Handler for OnArrived {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([offset, n], _) = arrival.open::<[u64; 2]>();
        let node = arrival.node();
        let at = At { rank: arrival.target() as u32, offset };
        match node.table(Half::Guarded).locate(at, size_of::<Hall>()) {
            // SAFETY: aligned memory of this node; atomics.
            Some(p) if p.addr().is_multiple_of(align_of::<Hall>()) => unsafe { (*p.cast::<Hall>()).arrive(n) },
            _ => arrival.bad(&"a hall outside"),
        };
        light_fence();
        node.ring_everybody();
    }
}
