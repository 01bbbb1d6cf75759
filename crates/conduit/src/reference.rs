//! Put, get and atomics written over active messages: the provided part of every conduit, and what a conduit that does
//! better is measured against. `PARTAGE_REFERENCE=1` forces it.
//!
//! A put is requests with pieces of the bytes, each answered when its piece has been written; a get asks piece by piece.
//! Both return when all answers have come, so local and remote completion are one here.
//! What is too long for a message, and is not for a segment, goes in pieces ([`PIECE`]).
//! Answers arrive in the rank's [`Landing`], which outlives every operation: an answer that comes after its
//! operation was given up (the job was aborted) touches nothing else.

use crate::am::{Arrival, Handler, Piece};
use crate::contract::{At, Atomic, Conduit, Failure, Outside};
use crate::heap::FIRST;
use crate::ofi;
use crate::pool::LARGE;
use crate::record::Site;
use crate::shm;
use bytemuck::{Pod, Zeroable};

#[cfg(doc)]
use crate::am::Landing;

/// Handlers below this number are ours.
pub const HANDLERS: u16 = 32;
const PUT: u16 = 1;
pub(crate) const PUT_DONE: u16 = 2;
const GET: u16 = 3;
pub(crate) const DATA: u16 = 4;
const ATOMIC: u16 = 5;
const VALUE: u16 = 6;
/// Brings a [`Piece`] of something too long for a message to the target's [`Landing`].
pub const PIECE: u16 = 7;
/// How much of a segment its network knows, and the answer.
pub(crate) const EXTENT: u16 = 8;
pub(crate) const EXTENT_IS: u16 = 9;
/// Where a rank was last seen waiting, and the answer.
pub(crate) const SITE: u16 = 10;
pub(crate) const SITE_IS: u16 = 11;
/// Takes or gives blocks of the window, and commits them.
pub(crate) const BLOCKS: u16 = 12;
pub(crate) const COMMIT: u16 = 13;

/// Asks for a lock; see [`shm::lock`].
pub const LOCK: u16 = 14;
/// Hands a lock on.
pub const UNLOCK: u16 = 15;
/// Tells a rank that it has a lock, and what it asked for.
pub const GRANT: u16 = 16;

/// Our handlers, for the table of every conduit.
pub fn handlers() -> [(u16, &'static dyn Handler); 16] {
    [
        (PUT, &OnPut),
        (PUT_DONE, &OnPutDone),
        (GET, &OnGet),
        (DATA, &OnData),
        (ATOMIC, &OnAtomic),
        (VALUE, &OnValue),
        (PIECE, &OnPiece),
        (EXTENT, &ofi::segment::OnExtent),
        (EXTENT_IS, &ofi::segment::OnExtentIs),
        (SITE, &OnSite),
        (SITE_IS, &OnData),
        (BLOCKS, &shm::memory::OnBlocks),
        (COMMIT, &shm::memory::OnCommit),
        (LOCK, &shm::lock::OnLock),
        (UNLOCK, &shm::lock::OnUnlock),
        (GRANT, &shm::lock::OnTold),
    ]
}

/// Puts by messages.
pub fn put<C: Conduit + ?Sized>(c: &C, site: Site, at: At, src: &[u8]) -> Result<(), Failure> {
    check(c, at, src.len())?;
    let begun = c.landing().count();
    let mut pieces = 0;
    for (i, piece) in src.chunks(LARGE).enumerate() {
        c.request(site, at.rank, PUT, &(at.offset + (i * LARGE) as u64), piece)?;
        pieces += 1;
    }
    c.progress();
    Ok(c.wait(site, || c.landing().count() == begun + pieces)?)
}

/// Gets by messages.
pub fn get<C: Conduit + ?Sized>(c: &C, site: Site, at: At, dst: &mut [u8]) -> Result<(), Failure> {
    check(c, at, dst.len())?;
    for (i, piece) in dst.chunks_mut(LARGE).enumerate() {
        let begun = c.landing().count();
        let wanted = Wanted { offset: at.offset + (i * LARGE) as u64, len: piece.len() as u64 };
        c.request(site, at.rank, GET, &wanted, &[])?;
        c.progress();
        c.wait(site, || c.landing().count() == begun + 1)?;
        c.landing().read(piece);
    }
    Ok(())
}

/// An atomic by a message.
pub fn atomic<C: Conduit + ?Sized>(c: &C, site: Site, at: At, what: Atomic) -> Result<u64, Failure> {
    check(c, at, what.width())?;
    if !at.offset.is_multiple_of(what.width() as u64) || what.op().is_none() {
        return Err(Failure::NotAWord);
    }
    let begun = c.landing().count();
    c.request(site, at.rank, ATOMIC, &OnWord { offset: at.offset, what }, &[])?;
    c.progress();
    c.wait(site, || c.landing().count() == begun + 1)?;
    Ok(c.landing().value())
}

/// Where a rank was last seen waiting; asked of its process.
pub fn last_site<C: Conduit + ?Sized>(c: &C, site: Site, rank: u32) -> Result<String, Failure> {
    let begun = c.landing().count();
    c.request(site, rank, SITE, &(), &[])?;
    c.wait(site, || c.landing().count() == begun + 1)?;
    Ok(String::from_utf8_lossy(&c.landing().all()).into_owned())
}

pub(crate) fn check<C: Conduit + ?Sized>(c: &C, at: At, len: usize) -> Result<(), Outside> {
    let (ranks, segment, offset) = (c.ranks(), c.half_len(at.half()), at.in_half().offset);
    let end = offset.checked_add(len as u64);
    let inside = (at.rank as usize) < ranks && offset >= FIRST && end.is_some_and(|end| end <= segment);
    if inside { Ok(()) } else { Err(Outside { at, len, ranks, segment }) }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Wanted {
    offset: u64,
    len: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct OnWord {
    offset: u64,
    what: Atomic,
}

struct OnPut;
impl Handler for OnPut {
    fn run(&self, arrival: &Arrival<'_>) {
        let (offset, bytes) = arrival.open::<u64>();
        let (reach, at) = arrival.half(offset);
        let written = reach.write(at, bytes);
        written.unwrap_or_else(|e| arrival.bad(&e));
        arrival.reply(PUT_DONE, &(), &[]);
    }
}

struct OnPutDone;
impl Handler for OnPutDone {
    fn run(&self, arrival: &Arrival<'_>) {
        arrival.landing().one_more();
    }
}

struct OnGet;
impl Handler for OnGet {
    fn run(&self, arrival: &Arrival<'_>) {
        let (Wanted { offset, len }, _) = arrival.open::<Wanted>();
        let mut bytes = [0; 512];
        let mut more = vec![];
        let bytes = match len as usize {
            n @ 0..=512 => &mut bytes[..n],
            n => {
                more.resize(n.min(LARGE), 0);
                &mut more[..]
            }
        };
        let (reach, at) = arrival.half(offset);
        let read = reach.read(at, bytes);
        read.unwrap_or_else(|e| arrival.bad(&e));
        arrival.reply(DATA, &(), bytes);
    }
}

struct OnData;
impl Handler for OnData {
    fn run(&self, arrival: &Arrival<'_>) {
        arrival.landing().write(arrival.open::<()>().1);
        arrival.landing().one_more();
    }
}

struct OnSite;
impl Handler for OnSite {
    fn run(&self, arrival: &Arrival<'_>) {
        let site = arrival.node().record(arrival.target()).last_site().unwrap_or_default();
        arrival.reply(SITE_IS, &(), site.as_bytes());
    }
}

struct OnAtomic;
impl Handler for OnAtomic {
    fn run(&self, arrival: &Arrival<'_>) {
        let (OnWord { offset, what }, _) = arrival.open::<OnWord>();
        let (reach, at) = arrival.half(offset);
        let old = reach.atomic(at, what).unwrap_or_else(|| arrival.bad(&"an atomic outside or not aligned"));
        arrival.reply(VALUE, &old, &[]);
    }
}

struct OnValue;
impl Handler for OnValue {
    fn run(&self, arrival: &Arrival<'_>) {
        arrival.landing().set_value(arrival.open::<u64>().0);
        arrival.landing().one_more();
    }
}

struct OnPiece;
impl Handler for OnPiece {
    fn run(&self, arrival: &Arrival<'_>) {
        let (piece, bytes) = arrival.open::<Piece>();
        if !arrival.landing().add_piece(arrival.source(), piece, bytes) {
            arrival.bad(&"a piece that does not fit the others");
        }
    }
}
