//! Active messages as handlers see them, whichever conduit brought them: [`Handler`], [`Arrival`], and the table that
//! numbers handlers.
//!
//! A message is a handler's number, up to 64 bytes of arguments and a payload. The arguments of a handler have one type,
//! so their length is not sent; [`Arrival::open`] reads both.

use crate::answers::Answers;
use crate::contract::At;
use crate::credits::Cost;
use crate::pool::Buffer;
use crate::reference;
use crate::ring::{Head, Message, WORDS};
use crate::shm::Node;
use crate::shm::lane::Ends;
use crate::shm::rma::Reach;
use crate::shm::team::Heard;
use crate::signal::{Notice, Sequence};
use bytemuck::{Pod, Zeroable, bytes_of};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most bytes of arguments.
pub const ARGS: usize = 64;
/// Bytes of a slot that arguments and payload share.
pub(crate) const INLINE: usize = 8 * WORDS;
/// The length that says: the payload is in a buffer, whose place and length are the slot's last word.
pub(crate) const IN_BUFFER: usize = Head::LENGTHS - 1;
/// Arguments that fit beside that word.
pub(crate) const BESIDE: usize = INLINE - 8;

/// What runs when a message arrives: on any thread of the target's process, concurrently, without any lock held. It must
/// not block. The address is the identity: the same static in every process of the same image.
pub trait Handler: Sync {
    /// Runs.
    fn run(&self, arrival: &Arrival<'_>);
}

/// A message that has arrived, for the length of its handler.
pub struct Arrival<'h> {
    node: &'h Node,
    target: usize,
    source: usize,
    body: Body<'h>,
    way: Way,
    replied: Cell<bool>,
}

/// Where arguments and payload are.
pub(crate) enum Body<'h> {
    /// In a slot that was taken, and perhaps a buffer.
    Taken(&'h Message, Option<(Buffer, usize)>),
    /// Where the sender, a thread of this process, has them.
    Here(&'h [u8], &'h [u8]),
}

/// How a reply goes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// This is a reply.
    None,
    /// It runs at once.
    InLine,
    /// Through the source's queue.
    Queue,
    /// To another node, from which a request of this cost came.
    Far(Cost),
}

impl fmt::Debug for Arrival<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message from rank {} to rank {}", self.source, self.target)
    }
}

impl<'h> Arrival<'h> {
    pub(crate) fn new(node: &'h Node, target: usize, source: usize, body: Body<'h>, way: Way) -> Arrival<'h> {
        Arrival { node, target, source, body, way, replied: Cell::new(false) }
    }

    /// The rank for which it is.
    #[inline(always)]
    pub fn target(&self) -> usize {
        self.target
    }

    /// The rank that sent it.
    #[inline(always)]
    pub fn source(&self) -> usize {
        self.source
    }

    /// Where it runs.
    pub(crate) fn node(&self) -> &'h Node {
        self.node
    }

    /// The serial number of the job in this process.
    #[inline(always)]
    pub fn job(&self) -> u64 {
        self.node.serial()
    }

    /// The memory of the target, and of all ranks that are mapped here.
    #[inline(always)]
    pub fn reach(&self) -> &'h Reach {
        self.node.reach()
    }

    /// The half of the target's memory to which this offset belongs, and the place there.
    pub(crate) fn half(&self, offset: u64) -> (&'h Reach, At) {
        self.node.half(At { rank: self.target as u32, offset })
    }

    /// Arguments and payload. The payload begins at a multiple of eight.
    #[inline(always)]
    pub fn open<A: Pod>(&self) -> (A, &'h [u8]) {
        const { assert!(size_of::<A>() <= ARGS) };
        let (args, payload) = self.open_bytes(size_of::<A>());
        (bytemuck::pod_read_unaligned(args), payload)
    }

    /// The same for arguments of so many bytes.
    #[inline(always)]
    pub fn open_bytes(&self, len: usize) -> (&[u8], &'h [u8]) {
        match self.body {
            Body::Here(args, payload) if args.len() == len => (args, payload),
            Body::Taken(message, None) => {
                let (bytes, front) = (bytemuck::bytes_of(&message.words), len.next_multiple_of(8));
                match bytes.get(..len).zip(bytes.get(front..front + message.head.length())) {
                    Some(both) => both,
                    None => self.bad(&"its length does not fit its handler"),
                }
            }
            Body::Taken(message, Some((buffer, payload))) => {
                // SAFETY: between the taking of the message and its end the buffer is ours alone, and `find` has seen
                // that it has so many bytes; the sender has written them (and the arguments) before it sent the message.
                let (args, payload) = unsafe {
                    let args = std::slice::from_raw_parts::<'h, u8>(buffer.args(), ARGS);
                    (args, std::slice::from_raw_parts::<'h, u8>(buffer.payload(), payload))
                };
                (&(if len <= BESIDE { bytemuck::bytes_of(&message.words) } else { args })[..len], payload)
            }
            Body::Here(..) => self.bad(&"its arguments are not those of its handler"),
        }
    }

    /// Replies to the source; once, and not to a reply.
    #[inline(always)]
    pub fn reply<A: Pod>(&self, handler: u16, args: &A, payload: &[u8]) {
        assert!(self.way != Way::None && !self.replied.replace(true), "{self:?} is answered once");
        match self.way {
            Way::InLine => self.node.run_in_line(self.source, self.target, handler, bytes_of(args), payload, Way::None),
            Way::Far(cost) => self.node.reply_far(self.target, (self.source, cost), handler, bytes_of(args), payload),
            _ => self.node.reply_by_queue(self.target, self.source, handler, bytes_of(args), payload),
        }
    }

    /// Has a reply been sent?
    #[inline(always)]
    pub(crate) fn is_answered(&self) -> bool {
        self.replied.get()
    }

    /// Where the target's answers land.
    pub fn landing(&self) -> &'h Landing {
        self.node.landing(self.target)
    }

    /// A message that none of our senders makes.
    #[cold]
    pub fn bad(&self, why: &dyn fmt::Display) -> ! {
        panic!("rank {}: a message from rank {} cannot be understood: {why}", self.target, self.source)
    }
}

/// Where answers to a rank arrive, and what comes to it in pieces.
#[derive(Debug, Default)]
pub struct Landing {
    /// What it has asked others.
    pub answers: Answers,
    /// What it was told of the other ends of its lanes.
    pub lanes: Ends,
    /// What it was told of teams that are being made.
    pub teams: Heard,
    pieces: Mutex<HashMap<(usize, u64), Pieces>>,
    /// How many bytes have been written of what is written in parts, by source and number.
    parts: Mutex<HashMap<(usize, u64), u64>>,
    /// The number of the next that this rank sends in parts.
    keys: AtomicU64,
    /// How many signals this rank has sent, by rank.
    signals: OnceLock<Box<[AtomicU32]>>,
    /// Those that have come, by source.
    sequences: Mutex<HashMap<usize, Sequence>>,
}

/// Something that comes in pieces: the bytes, and how many of them have come.
#[derive(Debug)]
struct Pieces {
    bytes: Vec<u8>,
    come: u64,
    total: u64,
}

/// No two ranks have more bytes of pieces under way.
const UNDER_WAY: u64 = 256 << 20;

/// One piece of something that is too long for a message; the arguments of [`reference::PIECE`]. Pieces may arrive in
/// any order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Piece {
    /// What it is a piece of, as source and target agree.
    pub key: u64,
    /// Where it begins.
    pub offset: u64,
    /// How long the whole is.
    pub total: u64,
}

impl Landing {
    /// Takes what came in pieces from `source`, if it is whole.
    pub fn take_whole(&self, source: usize, key: u64) -> Option<Vec<u8>> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.get(&(source, key)).is_some_and(|p| p.come == p.total).then_some(())?;
        pieces.remove(&(source, key)).map(|p| p.bytes)
    }

    /// A number for a signal of this rank to another.
    pub(crate) fn next_signal(&self, ranks: usize, to: u32) -> u32 {
        let numbers = self.signals.get_or_init(|| (0..ranks).map(|_| AtomicU32::new(0)).collect());
        numbers[to as usize].fetch_add(1, Relaxed)
    }

    /// A signal has come, with so many bits of its number: whatever is due now takes effect, in order.
    pub(crate) fn signal_came(&self, source: usize, low: u32, bits: u32, notice: Notice, then: impl FnMut(Notice)) {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        sequences.entry(source).or_default().come(low, bits, notice, then);
    }

    /// A number for what this rank sends in parts.
    pub(crate) fn next_key(&self) -> u64 {
        self.keys.fetch_add(1, Relaxed)
    }

    /// So many bytes more have been written of something of `total`: are these all? `None` if they are too many.
    pub(crate) fn add_part(&self, source: usize, key: u64, bytes: u64, total: u64) -> Option<bool> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let come = parts.entry((source, key)).or_default();
        *come += bytes;
        let come = *come;
        if come < total {
            return Some(false);
        }
        parts.remove(&(source, key));
        (come == total).then_some(true)
    }

    /// False if the piece does not fit the others.
    pub(crate) fn add_piece(&self, source: usize, piece: Piece, bytes: &[u8]) -> bool {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = pieces.entry((source, piece.key)).or_insert(Pieces { bytes: vec![], come: 0, total: piece.total });
        let end = piece.offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|&e| e <= whole.total && piece.total == whole.total) else { return false };
        // Pieces overtake each other by no more than what can be under way.
        if piece.offset > whole.bytes.len() as u64 + UNDER_WAY {
            return false;
        }
        if end > whole.bytes.len() as u64 {
            whole.bytes.resize(end as usize, 0);
        }
        whole.bytes[piece.offset as usize..end as usize].copy_from_slice(bytes);
        whole.come += bytes.len() as u64;
        true
    }
}

/// The handlers of a process, by number. They are only added, each before any message for it can come.
pub(crate) struct Table {
    entries: Box<[OnceLock<&'static dyn Handler>]>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Table")
    }
}

impl Table {
    pub fn new() -> Table {
        let table = Table { entries: (0..Head::HANDLERS).map(|_| OnceLock::new()).collect() };
        for (number, handler) in reference::handlers() {
            assert!(number < reference::HANDLERS && table.set(number, handler));
        }
        table
    }

    /// Gives a handler its number; false if another has it, or there are no such numbers.
    pub fn set(&self, number: u16, handler: &'static dyn Handler) -> bool {
        let Some(entry) = self.entries.get(number as usize) else { return false };
        std::ptr::addr_eq(*entry.get_or_init(|| handler), handler)
    }

    #[inline(always)]
    pub fn get(&self, number: u16) -> Option<&'static dyn Handler> {
        self.entries.get(number as usize)?.get().copied()
    }
}
