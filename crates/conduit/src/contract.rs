//! What every conduit must do. So far: the memory part.
//!
//! # Memory: promises
//! 1. A segment is bytes `4096..len` of each rank (the first page is never handed out); an access with any byte outside
//!    is refused whole and touches nothing.
//! 2. `put` returns when `src` may be reused (local completion) **and** the bytes are where any rank's later `get`
//!    finds them (remote completion), where "later" is decided by a barrier, a signal or a fence-ordered flag.
//!    A conduit that can separate the two adds operations for it; it does not weaken this one.
//! 3. A rank's own `get` sees its own earlier `put` to the same bytes.
//! 4. Between ranks, puts are unordered until a [`fence`](Memory::fence) of the putting rank: puts before it are seen
//!    before puts after it.
//! 5. [`quiet`](Memory::quiet) returns when everything that this rank has put, everywhere, is complete.
//! 6. Aligned values of 1, 2, 4 and 8 bytes never tear. Larger transfers may be seen partly old, partly new.
//! 7. Nothing here waits for the target rank to do anything.

/// A place in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Rank of the job.
    pub rank: u32,
    /// Bytes from the start of its segment.
    pub offset: u64,
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
        write!(f, "{len} bytes at offset {:#x} of rank {} lie outside its segment ", at.offset, at.rank)?;
        write!(f, "({:#x}..{segment:#x})", crate::heap::FIRST)
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

/// The memory part of a conduit.
pub trait Memory {
    /// Copies `src` to the place.
    fn put(&self, at: At, src: &[u8]) -> Result<(), Outside>;
    /// Copies from the place to `dst`.
    fn get(&self, at: At, dst: &mut [u8]) -> Result<(), Outside>;
    /// Orders this rank's earlier puts before its later ones.
    fn fence(&self);
    /// Completes all puts of this rank.
    fn quiet(&self);
}
