//! Collectives ([`crate::coll`]) in the memory of a node: where a rank's *desk* is, and what of it others reach.
//!
//! A team has desks: each member has one, a block of guarded memory, at the same offset on all of them, zeroed at first. Members are named by their
//! numbers in the team.
//!
//! | from | what | who writes |
//! |---|---|---|
//! | 0 | a [`Hall`] for each context and one for barriers; those of a node's first member are the node's | the members on the node, and what tells of others |
//! | after them | how many have left ([`Leavers`]) | who leaves |
//! | [`INLETS`] | an [`Inlet`] for each member | that member |
//! | after them | a [`Sign`] for each member and context | that member |
//! | after them | the [board](crate::board): in each context a line for each member; then what each says of how far it is. That of a node's first member is the node's | whoever a plan says; that member |
//! | after them, or, for the team of all, in a block of its own, whose pages come when they are touched | scratch, a part for each context | whoever a plan says |
//!
//! What is mapped is written by stores. To other nodes, and on the reference path, the same words are added to by messages
//! ([`Notice::Add`](crate::signal::Notice)), and arrivals of a whole node at once ([`ARRIVED`]).

use super::Node;
use super::rma::Reach;
use crate::am::{Arrival, Handler};
use crate::coll::{Apart, CONTEXTS, Claims, Count, HOME, Hall, Inlet, Leavers, Left, Letter, Sign, Sums, Tags, Told};
use crate::contract::{At, Half};
use crate::line::{prefetch_to_read, prefetch_to_write};
#[cfg(doc)]
use crate::reference::ARRIVED;
use crate::sync::light_fence;
use crate::wait::{Bell, Sleepers};
use std::mem::offset_of;
use std::sync::Arc;

/// The hall for barriers.
pub const BARRIERS: usize = HOME + 1;

/// Where inlets begin.
pub const INLETS: usize = LEAVERS + size_of::<Leavers>();

/// Where it is counted who has left.
const LEAVERS: usize = (BARRIERS + 1) * size_of::<Hall>();

/// Scratch of a rank in one context, for the team of all ranks: enough for pages of all, but no more than a small part of a segment. On one node what does not
/// fit passes in parts that stay in caches; between nodes each part would wait for a message of the one before.
pub fn scratch_of_all(node: &Node) -> usize {
    let least = if node.ranks().nodes() > 1 { 512 << 10 } else { 128 << 10 };
    let wanted = (node.ranks().count() * (4 << 10)).next_power_of_two().clamp(least, 16 << 20);
    wanted.min((node.segment() / 256) as usize & !4095)
}

/// Bytes of it that must be zero at first.
pub fn head_len(members: usize) -> usize {
    scratch_at(members)
}

/// Bytes of a desk, of a team of so many with so much scratch.
pub fn len(members: usize, scratch: usize) -> usize {
    scratch_at(members) + CONTEXTS * scratch
}

fn signs_at(ranks: usize) -> usize {
    INLETS + ranks * size_of::<Inlet>()
}

fn board_at(ranks: usize) -> usize {
    signs_at(ranks) + ranks * CONTEXTS * size_of::<Sign>()
}

fn said_at(ranks: usize) -> usize {
    (board_at(ranks) + ranks * CONTEXTS * size_of::<Letter>()).next_multiple_of(size_of::<Apart<Count>>())
}

fn scratch_at(ranks: usize) -> usize {
    (said_at(ranks) + ranks * size_of::<Apart<Count>>()).next_multiple_of(4096)
}

/// Where a desk is in the guarded half of each of its members: its head, and the scratch of all contexts.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where its head begins.
    pub head: u64,
    /// Where the scratch begins.
    pub scratch: u64,
    /// How long that of each context is.
    pub scratch_len: usize,
}

impl Place {
    /// One block, [`len`] bytes long, of a team of so many.
    pub fn of_block(offset: u64, members: usize, scratch_len: usize) -> Place {
        Place { head: offset, scratch: offset + head_len(members) as u64, scratch_len }
    }
}

/// A rank's desk, and what it reaches of those of others.
#[derive(Debug)]
pub struct Desk {
    rank: usize,
    ranks: usize,
    place: Place,
    halls: *const Hall,
    leavers: *const Leavers,
    /// Where it is counted for who waits in a hall, see [`leave`](Desk::leave).
    hall_leavers: *const Leavers,
    inlets: *const Inlet,
    signs: *const Sign,
    board: *const Letter,
    said: *const Apart<Count>,
    peers: Box<[Peer]>,
    /// Of the members on this node.
    bells: Box<[*const Bell]>,
    sleepers: *const Sleepers,
    /// What all of them point into.
    _node: Arc<Node>,
}

/// What is reached of a rank's desk; null where nothing is.
#[derive(Debug)]
struct Peer {
    leavers: *const Leavers,
    /// The one that is for this rank.
    inlet: *const Inlet,
    /// Those of this rank.
    signs: *const Sign,
    scratch: *mut u8,
    bell: *const Bell,
}

impl Desk {
    /// That of the `me`-th of these ranks, whose block of [`len`] bytes is there, as everybody's is; others are reached by what this table has.
    ///
    /// # Safety
    /// These blocks, on all of them, are used by desks of this team only, as long as anybody has one, and were zero at first. The table is one of
    /// this node.
    ///
    /// # Panics
    /// If there is no such memory.
    pub unsafe fn new(node: &Arc<Node>, reach: &Reach, (members, me): (&[u32], usize), place: Place) -> Desk {
        let ranks = members.len();
        let locate = |reach: &Reach, rank: u32| reach.locate(At { rank, offset: place.head }, head_len(ranks));
        let scratch = |reach: &Reach, rank: u32| {
            reach
                .locate(At { rank, offset: place.scratch }, CONTEXTS * place.scratch_len)
                .expect("memory beside that of its head")
        };
        let here = |rank: u32| locate(node.table(Half::Guarded), rank).expect("memory of this node");
        let is_near = |&rank: &u32| node.ranks().is_near(rank as usize);
        let first = members.iter().copied().find(is_near).expect("this rank is one");
        // SAFETY: parts of the block, which is as long as all of them.
        let part = |block: *mut u8, at: usize| unsafe { block.add(at) };
        let peer = |&rank: &u32| match locate(reach, rank) {
            Some(block) => Peer {
                leavers: part(block, LEAVERS).cast(),
                inlet: part(block, INLETS + me * size_of::<Inlet>()).cast(),
                signs: part(block, signs_at(ranks) + me * CONTEXTS * size_of::<Sign>()).cast(),
                scratch: scratch(reach, rank),
                bell: node.bell_of(rank),
            },
            None => {
                let (leavers, inlet, signs) = (std::ptr::null(), std::ptr::null(), std::ptr::null());
                Peer { leavers, inlet, signs, scratch: std::ptr::null_mut(), bell: std::ptr::null() }
            }
        };
        let mut peers: Box<[Peer]> = members.iter().map(peer).collect();
        // My own is always there.
        let (mine, meeting) = (here(members[me]), here(first));
        peers[me].scratch = scratch(node.table(Half::Guarded), members[me]);
        let leavers = part(mine, LEAVERS).cast_const().cast();
        let mut desk = Desk {
            rank: me,
            ranks,
            place,
            halls: meeting.cast_const().cast(),
            leavers,
            hall_leavers: leavers,
            inlets: part(mine, INLETS).cast(),
            signs: part(mine, signs_at(ranks)).cast(),
            board: part(meeting, board_at(ranks)).cast_const().cast(),
            said: part(meeting, said_at(ranks)).cast_const().cast(),
            peers,
            bells: members.iter().copied().filter(is_near).map(|rank| node.bell_of(rank)).collect(),
            sleepers: node.sleepers(),
            _node: node.clone(),
        };
        if desk.reaches_all() {
            desk.hall_leavers = part(meeting, LEAVERS).cast();
        }
        desk
    }

    /// Whose it is, by its number in the team.
    #[inline(always)]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many members there are.
    #[inline(always)]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Are all members reached by stores?
    pub fn reaches_all(&self) -> bool {
        self.peers.iter().enumerate().all(|(r, p)| r == self.rank || !p.inlet.is_null())
    }

    /// The hall of this node.
    ///
    /// # Panics
    /// If there is no such context.
    #[inline(always)]
    pub fn hall(&self, context: usize) -> &Hall {
        assert!(context <= BARRIERS);
        // SAFETY: inside the block of the node's first rank; atomics.
        unsafe { &*self.halls.add(context) }
    }

    /// A line of this node's board.
    ///
    /// # Panics
    /// If there is no such context or line.
    #[inline(always)]
    pub fn line(&self, context: usize, line: usize) -> &Letter {
        assert!(context < CONTEXTS && line < self.ranks);
        // SAFETY: inside the block of the node's first rank; atomics, and words whose users the protocol orders.
        unsafe { &*self.board.add(context * self.ranks + line) }
    }

    /// Where a member says how far it is.
    ///
    /// # Panics
    /// If there is no such member.
    #[inline(always)]
    pub fn said(&self, member: usize) -> &Count {
        assert!(member < self.ranks);
        // SAFETY: inside the block of the node's first rank; atomics.
        unsafe { &(*self.said.add(member)).0 }
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

    /// Have members left?
    #[inline(always)]
    pub fn have_some_left(&self) -> bool {
        // SAFETY: inside the own block; atomics.
        unsafe { (*self.leavers).any() }
    }

    /// The same, for who waits in a hall: beside the hall, which is the page that it looks at anyway, if all leave by stores.
    #[inline(always)]
    pub fn have_some_left_hall(&self) -> bool {
        // SAFETY: inside the own block, or that of the node's first member, as the halls are; atomics.
        unsafe { (*self.hall_leavers).any() }
    }

    /// Leaves, with so many collectives and barriers begun, as far as it is told by stores; who must be told otherwise.
    ///
    /// The first member on the node is told before the others: when their bells ring, who looks beside the hall sees that somebody has left. (Each count has
    /// a full fence after it, so who did not see the first one is seen asleep by the ring that follows the second.)
    pub fn leave(&self, epochs: u64, barriers: u64) -> Vec<usize> {
        // SAFETY: inside the own block; atomics. If the halls are here, so is what who waits there looks at.
        unsafe { (*self.leavers).add() };
        (0..self.ranks).filter(|&m| m != self.rank && !self.tell_end(m, epochs, barriers)).collect()
    }

    fn tell_end(&self, to: usize, epochs: u64, barriers: u64) -> bool {
        // SAFETY: null, or inside its block; atomics.
        let (Some(inlet), Some(leavers)) = (self.to(to), unsafe { self.peers[to].leavers.as_ref() }) else {
            return false;
        };
        let left = &inlet.told[0].signals.2;
        left.barriers.set(barriers);
        left.epochs.set(epochs);
        leavers.add();
        self.ring(to);
        // The last: the block may be another's when it has been seen.
        left.gone.set(1);
        true
    }

    /// What a member has left with.
    pub fn left(&self, member: usize) -> &Left {
        &self.from(member).told[0].signals.2
    }

    /// The hall for barriers at the first member of a node, for messages.
    pub fn barriers_offset(&self) -> u64 {
        self.place.head + (BARRIERS * size_of::<Hall>()) as u64
    }

    /// What can be seen of the others when this is gone.
    pub fn rest(&self) -> Rest {
        Rest { inlets: self.inlets, rank: self.rank, ranks: self.ranks, _node: self._node.clone() }
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

    /// Asks for the line of letters to `to` in this context, which this rank is going to write: a store to a line that is not here holds up all that come
    /// after it.
    #[inline(always)]
    pub fn prefetch_letter(&self, to: usize, context: usize) {
        let line = self.peers[to].inlet.wrapping_byte_add(offset_of!(Inlet, told) + context * size_of::<Told>());
        prefetch_to_write(line.cast::<u8>());
    }

    /// Asks for the line of letters of `from` in this context, which may have been written already.
    #[inline(always)]
    pub fn prefetch_letter_of(&self, from: usize, context: usize) {
        prefetch_to_read(&raw const self.from(from).told[context].letter);
    }

    /// Looks at the bell of `to`, which is reached by stores. After a light fence that follows what it is to see.
    #[inline(always)]
    pub fn ring(&self, to: usize) {
        // SAFETY: null, or in memory that the node keeps mapped.
        if let Some(bell) = unsafe { self.peers[to].bell.as_ref() } {
            bell.ring_after_fence();
        }
    }

    /// The same of all members on this node.
    #[inline(always)]
    pub fn ring_all(&self) {
        // SAFETY: in memory that the node keeps mapped.
        if unsafe { (*self.sleepers).any() } {
            self.ring_each();
        }
    }

    #[cold]
    fn ring_each(&self) {
        // SAFETY: in memory that the node keeps mapped.
        self.bells.iter().for_each(|&bell| unsafe { (*bell).ring_after_fence() });
    }

    /// Bytes of scratch that each rank has in each context.
    pub fn scratch_len(&self) -> usize {
        self.place.scratch_len
    }

    /// Where a rank's scratch begins in this context; null if it is not mapped.
    #[inline(always)]
    pub fn scratch(&self, of: usize, context: usize) -> *mut u8 {
        assert!(context < CONTEXTS);
        let p = self.peers[of].scratch;
        // SAFETY: inside its block.
        if p.is_null() { p } else { unsafe { p.add(context * self.place.scratch_len) } }
    }

    /// The same as a place in guarded memory.
    pub fn scratch_offset(&self, context: usize) -> u64 {
        self.place.scratch + (context * self.place.scratch_len) as u64
    }

    /// Where the words are that this rank has at another's desk, for messages.
    pub fn words(&self, context: usize) -> Words {
        let inlet = self.place.head + (INLETS + self.rank * size_of::<Inlet>()) as u64;
        let told = inlet + (offset_of!(Inlet, told) + context * size_of::<Told>()) as u64;
        let signals = told + offset_of!(Told, signals) as u64;
        let claims = [offset_of!(Claims, made), offset_of!(Claims, taken)];
        Words {
            letter: told + Letter::WORDS_AT as u64,
            number: told,
            signals: [0, 8, 16].map(|at| signals + at),
            taken: inlet + (offset_of!(Inlet, taken) + 8 * context) as u64,
            claims: claims.map(|at| signals + (3 * size_of::<Count>() + at) as u64),
            hall: self.place.head + (context * size_of::<Hall>()) as u64,
            leavers: self.place.head + LEAVERS as u64,
            left: [offset_of!(Left, epochs), offset_of!(Left, barriers), offset_of!(Left, gone)]
                .map(|at| signals + (3 * size_of::<Count>() + size_of::<Claims>() + at) as u64),
            sign: self.place.head
                + (signs_at(self.ranks) + (self.rank * CONTEXTS + context) * size_of::<Sign>()) as u64,
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
    /// Arrivals, at the first member on a node.
    pub hall: u64,
    /// Where it is counted who leaves.
    pub leavers: u64,
    /// What it leaves with.
    pub left: [u64; 3],
    /// The sign.
    pub sign: u64,
}

/// The desk of a member that has left.
#[derive(Debug)]
pub struct Rest {
    inlets: *const Inlet,
    rank: usize,
    ranks: usize,
    /// What they are in.
    _node: Arc<Node>,
}

impl Rest {
    /// Have all others left, with nothing under way? Then nobody touches the desk any more.
    pub fn is_deserted(&self) -> bool {
        let others = (0..self.ranks).filter(|&r| r != self.rank);
        // SAFETY: inside the block, which stays this team's until this has been said; atomics.
        others.map(|r| unsafe { &*self.inlets.add(r) }).all(|inlet| inlet.told[0].signals.2.gone.get() > 0)
    }
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

/// Ranks of another node have arrived: the place of the hall, how many, how many of them with tags, and whether that is at an odd barrier.
pub(crate) struct OnArrived;
impl Handler for OnArrived {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([offset, n, others, odd], values) = arrival.open::<[u64; 4]>();
        let values = match values.len() {
            0 => Sums::default(),
            len if len == size_of::<Sums>() => bytemuck::pod_read_unaligned(values),
            _ => arrival.bad(&"no sums"),
        };
        let node = arrival.node();
        let at = At { rank: arrival.target() as u32, offset };
        match node.table(Half::Guarded).locate(at, size_of::<Hall>()) {
            // SAFETY: aligned memory of this node; atomics.
            Some(p) if p.addr().is_multiple_of(align_of::<Hall>()) => unsafe {
                let hall = &*p.cast::<Hall>();
                hall.tag(odd != 0, Tags { others, values });
                // A barrier's hall is asked for the one, those of collectives for the other.
                hall.arrive_at(odd != 0, n);
                hall.arrive(n)
            },
            _ => arrival.bad(&"a hall outside"),
        };
        light_fence();
        node.ring_everybody();
    }
}
