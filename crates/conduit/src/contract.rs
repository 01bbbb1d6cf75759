//! What every conduit must do.
//!
//! [`Conduit`] is one rank's access to the others. Its required methods are the *Core*: requests with at most one reply,
//! and progress. Its provided methods are the *Extended* part (put, get, atomics) written over the Core, in
//! [`mod@reference`]: a conduit overrides what it can do better.
//!
//! # Memory: promises
//! 1. A segment is bytes `4096..len` of each rank (the first page is never handed out), and a second, *guarded* half
//!    ([`GUARDED`]); an access with any byte outside its half is refused whole and touches nothing.
//! 2. `put` returns when `src` may be reused (local completion) **and** the bytes are where any rank's later `get`
//!    finds them (remote completion), where "later" is decided by a barrier, a signal or a fence-ordered flag.
//!    A conduit that can separate the two adds operations for it; it does not weaken this one.
//! 3. A rank's own `get` sees its own earlier `put` to the same bytes.
//! 4. Between ranks, puts are unordered until a fence of the putting rank: puts before it are seen before puts after it.
//! 5. When all of a rank's calls have returned, everything that it has put, everywhere, is complete.
//! 6. Aligned transfers of 1, 2, 4 and 8 bytes between ranks of a node, and by the reference path, are one access: they never
//!    tear. Larger ones, and those that a network copies, may be seen partly old, partly new, and a part of them may be
//!    written twice.
//! 7. Where memory is mapped, nothing here waits for the target rank to do anything. On the reference path an operation is
//!    complete when some thread of the target's process has made progress; every operation makes some itself, local
//!    ones too, so ranks that only read and write serve each other.
//! 8. Atomics on one word have one arbiter, a CPU of the node that has the word; [`crate::word`] says what they order. Only
//!    for words of a domain it may be the network: [`crate::ofi::atomic`].
//! 9. `signal` returns when `src` may be reused. The bytes are there for whoever has seen the notice, and otherwise when
//!    the message has ended. Notices of one rank to another are given in the order in which they were sent.
//!
//! # Messages: promises
//! 1. A request runs its handler exactly once, in a process that hosts the target rank, by any of its threads, possibly at
//!    the same time as other handlers of that rank. Requests from one rank to another are *taken* in the order
//!    in which they were sent.
//! 2. A handler may reply once, to the source; a reply handler sends nothing. Replying never waits, so handlers always
//!    come to their end; a reply's payload may be delayed by ranks that do not read theirs.
//! 3. Memory is bounded: a rank that sends faster than its target serves waits, and serves others meanwhile.
//! 4. The sender's buffer may be reused when the call returns.

use crate::am::Landing;
use crate::record::Site;
use crate::reference;
use crate::signal::{NUMBER_BITS, Notice};
use crate::wait::Aborted;
use crate::word::Atomic;
use bytemuck::Pod;

/// A place in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Rank of the job.
    pub rank: u32,
    /// Bytes from the start of its segment; in the guarded half with [`GUARDED`].
    pub offset: u64,
}

/// Set in the offset of a place in the *guarded* half of a segment: memory that pointers cannot name, whatever their bits,
/// because their offsets are shorter. A half's offsets begin at 0.
pub const GUARDED: u64 = 1 << 44;

/// A half of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// What any pointer reaches. No reference into it exists.
    Open,
    /// What is reached by its handle only, so that there can be references into it while no handle can be used.
    Guarded,
}

impl Half {
    /// What offsets in it have set.
    pub fn mark(self) -> u64 {
        match self {
            Half::Open => 0,
            Half::Guarded => GUARDED,
        }
    }
}

impl At {
    /// A place in the guarded half.
    pub fn guarded(rank: u32, offset: u64) -> At {
        At { rank, offset: offset | GUARDED }
    }

    /// Which half it is in.
    #[inline(always)]
    pub fn half(self) -> Half {
        if self.offset & GUARDED == 0 { Half::Open } else { Half::Guarded }
    }

    /// The same place, counted from the start of its half.
    #[inline(always)]
    pub fn in_half(self) -> At {
        At { offset: self.offset & !GUARDED, ..self }
    }
}

/// The access does not lie in a segment that this conduit reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outside {
    /// Its start.
    pub at: At,
    /// Its length in bytes.
    pub len: usize,
    /// Ranks of the job.
    pub ranks: usize,
    /// Length of a segment.
    pub segment: u64,
}

impl std::fmt::Display for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outside { at, len, ranks, segment } = self;
        if at.rank as usize >= *ranks {
            return write!(f, "there is no rank {} in a job of {ranks}", at.rank);
        }
        if at.rank == 0 && at.offset == 0 {
            return write!(f, "the pointer is null");
        }
        write!(f, "{len} bytes at offset {:#x} of rank {} ", at.offset, at.rank)?;
        match self.is_inside() {
            true => write!(f, "are not allocated there"),
            false => write!(f, "lie outside its segment ({:#x}..{segment:#x})", crate::heap::FIRST),
        }
    }
}

impl Outside {
    /// Does it lie in a segment, but not where there is memory?
    pub fn is_inside(&self) -> bool {
        let end = self.at.offset.checked_add(self.len as u64);
        let bounds = self.at.offset >= crate::heap::FIRST && end.is_some_and(|end| end <= self.segment);
        (self.at.rank as usize) < self.ranks && bounds
    }
}

/// How processes tell each other bytes before any conduit works: handed to a conduit when it attaches.
pub trait Exchange {
    /// This process's number and the number of processes.
    fn place(&self) -> (usize, usize);
    /// Collective: everybody's bytes, by process.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String>;
    /// Where this process's memory can be looked into by a supervisor; not collective.
    fn announce(&mut self, path: &str);
}

/// Why an operation did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It lies outside.
    Outside(Outside),
    /// An atomic on a word that is not aligned.
    NotAWord,
    /// The job was aborted meanwhile.
    Aborted,
}

impl From<Aborted> for Failure {
    fn from(_: Aborted) -> Failure {
        Failure::Aborted
    }
}

impl From<Outside> for Failure {
    fn from(outside: Outside) -> Failure {
        Failure::Outside(outside)
    }
}

/// One rank's access to all ranks.
pub trait Conduit {
    /// How many ranks there are.
    fn ranks(&self) -> usize;
    /// How long this half of a segment is.
    fn half_len(&self, half: Half) -> u64;
    /// Sends a request, when there is room for it. At most 64 bytes of arguments and
    /// [`LARGE`](crate::pool::LARGE) of payload.
    fn request<A: Pod>(&self, site: Site, to: u32, handler: u16, args: &A, payload: &[u8]) -> Result<(), Aborted>;
    /// Serves messages; says whether there were any.
    fn progress(&self) -> bool;
    /// Waits until `done`, making progress.
    fn wait(&self, site: Site, done: impl Fn() -> bool + Copy) -> Result<(), Aborted>;
    /// Waits until all requests that this rank has sent to that one have ended.
    fn quiet_to(&self, site: Site, rank: u32) -> Result<(), Aborted>;
    /// How many bits of a signal's number travel with it, by whichever way.
    fn signal_bits(&self) -> u32 {
        NUMBER_BITS
    }
    /// Where answers to this rank's requests of the provided part arrive.
    fn landing(&self) -> &Landing;

    /// Copies `src` to the place.
    fn put(&self, site: Site, at: At, src: &[u8]) -> Result<(), Failure> {
        reference::put(self, site, at, src)
    }

    /// Copies from the place to `dst`.
    fn get(&self, site: Site, at: At, dst: &mut [u8]) -> Result<(), Failure> {
        reference::get(self, site, at, dst)
    }

    /// Does this to the word there, which must be aligned; its old value.
    fn atomic(&self, site: Site, at: At, what: Atomic) -> Result<u64, Failure> {
        reference::atomic(self, site, at, what)
    }

    /// Copies `src`, which may be empty, to the place, then notifies its rank. Returns when `src` may be reused.
    fn signal(&self, site: Site, at: At, src: &[u8], notice: Notice) -> Result<(), Failure> {
        reference::signal(self, site, at, src, notice)
    }
}
