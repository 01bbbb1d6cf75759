//! Put, get and atomics written over active messages: the provided part of every conduit, and what a conduit that does
//! better is measured against. `PARTAGE_REFERENCE=1` forces it.
//!
//! A put is requests with pieces of the bytes, each answered when its piece has been written; a get asks piece by piece.
//! Both return when all answers have come, so local and remote completion are one here.
//! What is too long for a message, and is not for a segment, goes in pieces ([`PIECE`]).
//! Answers arrive in the rank's [`Answers`], which outlive every operation: an answer that comes after its
//! operation was given up (the job was aborted) touches nothing else.

use crate::am::{Arrival, Handler, Piece};
use crate::answers::{self, Answers};
use crate::contract::{At, Conduit, Failure, GUARDED, Half, Outside};
use crate::copy::Runs;
use crate::heap::FIRST;
use crate::ofi;
use crate::pool::LARGE;
use crate::record::Site;
use crate::runs::{self, Group, NotRuns, Packet};
use crate::shm;
use crate::signal::{Notice, encode_numbered};
use crate::wait::Aborted;
use crate::word::Atomic;
use bytemuck::{Pod, Zeroable};

#[cfg(doc)]
use crate::am::Landing;

/// Handlers below this number are ours.
pub const HANDLERS: u16 = 32;
const PUT: u16 = 1;
/// An answer.
pub(crate) const DONE: u16 = 2;
const GET: u16 = 3;
/// An answer that brings bytes.
pub(crate) const DATA: u16 = 4;
const ATOMIC: u16 = 5;
/// Brings a [`Piece`] of something too long for a message to the target's [`Landing`].
pub const PIECE: u16 = 7;
/// How much of a segment its network knows, and the answer.
pub(crate) const EXTENT: u16 = 8;
pub(crate) const EXTENT_IS: u16 = 9;
/// Where a rank was last seen waiting.
pub(crate) const SITE: u16 = 10;
/// Takes or gives blocks of the window, and commits them.
pub(crate) const BLOCKS: u16 = 12;
pub(crate) const COMMIT: u16 = 13;
/// Writes and reads runs, as [`Packet`]s list them.
pub(crate) const PUT_RUNS: u16 = 17;
pub(crate) const GET_RUNS: u16 = 18;
const ATOMICS: u16 = 19;
/// Writes bytes, then notifies; and the same in parts.
pub(crate) const SIGNAL: u16 = 20;
const SIGNAL_PART: u16 = 21;
/// Brings a value to a mailbox; see [`shm::mailbox`].
pub const MAIL: u16 = 22;
/// Where a process's endpoint for atomics is.
pub(crate) const NATIVE: u16 = 24;
/// What a number in a signal stands for, and a place for signals: see [`ofi::signal`].
pub(crate) const TICKET: u16 = 28;
pub(crate) const FIFO: u16 = 29;
/// Where that place is.
pub(crate) const FIFO_IS: u16 = 31;

/// Tells a node that ranks of another have arrived; see [`shm::coll`].
pub const ARRIVED: u16 = 23;

/// Tells a rank of a team that is being made; see [`shm::team`].
pub const TEAM: u16 = 27;

/// Tells a rank of an end of a lane; see [`shm::lane`].
pub const LANE: u16 = 25;
/// Tells it that the end was dropped.
pub const LANE_ENDED: u16 = 26;

/// Asks for a lock; see [`shm::lock`].
pub const LOCK: u16 = 14;
/// Hands a lock on.
pub const UNLOCK: u16 = 15;
/// Tells a rank that it has a lock, and what it asked for.
pub const GRANT: u16 = 16;

/// Our handlers, for the table of every conduit.
pub fn handlers() -> impl Iterator<Item = (u16, &'static dyn Handler)> {
    let all: [(u16, &'static dyn Handler); 28] = [
        (PUT, &OnPut),
        (DONE, &OnDone),
        (GET, &OnGet),
        (DATA, &OnData),
        (ATOMIC, &OnAtomic),
        (ATOMICS, &OnAtomics),
        (PUT_RUNS, &OnPutRuns),
        (GET_RUNS, &OnGetRuns),
        (PIECE, &OnPiece),
        (EXTENT, &ofi::segment::OnExtent),
        (EXTENT_IS, &ofi::segment::OnExtentIs),
        (SITE, &OnSite),
        (BLOCKS, &shm::memory::OnBlocks),
        (COMMIT, &shm::memory::OnCommit),
        (LOCK, &shm::lock::OnLock),
        (UNLOCK, &shm::lock::OnUnlock),
        (GRANT, &shm::lock::OnTold),
        (NATIVE, &ofi::atomic::OnNative),
        (TICKET, &ofi::signal::OnTicket),
        (FIFO, &ofi::signal::OnFifo),
        (FIFO_IS, &ofi::signal::OnFifoIs),
        (SIGNAL, &shm::signal::OnSignal),
        (SIGNAL_PART, &shm::signal::OnSignalPart),
        (LANE, &shm::lane::OnLane),
        (LANE_ENDED, &shm::lane::OnLaneEnded),
        (MAIL, &shm::mailbox::OnMail),
        (ARRIVED, &shm::coll::OnArrived),
        (TEAM, &shm::team::OnTeam),
    ];
    all.into_iter()
}

/// A slot for answers, which is given back at the end.
#[derive(Debug)]
pub(crate) struct Question<'c> {
    answers: &'c Answers,
    pub slot: u32,
}

impl<'c> Question<'c> {
    /// One to which so many answers will come.
    pub fn new<C: Conduit + ?Sized>(c: &'c C, answers: u32) -> Question<'c> {
        let all = &c.landing().answers;
        Question { answers: all, slot: all.take(answers) }
    }

    /// The same, whose answers bring bytes.
    ///
    /// # Safety
    /// The memory can be written, and is not used, until this value is dropped.
    pub unsafe fn with_bytes<C: Conduit + ?Sized>(c: &'c C, answers: u32, dst: *mut [u8]) -> Question<'c> {
        let this = Question::new(c, answers);
        // SAFETY: dropping takes the sink away.
        this.answers.set_sink(this.slot, unsafe { answers::sink_to(dst) });
        this
    }

    pub fn is_done(&self) -> bool {
        self.answers.is_done(self.slot)
    }

    pub fn value(&self) -> u64 {
        self.answers.value(self.slot)
    }

    /// Waits for all of them.
    pub fn wait<C: Conduit + ?Sized>(&self, c: &C, site: Site) -> Result<(), Aborted> {
        c.progress();
        c.wait(site, || self.is_done())
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.answers.give(self.slot);
    }
}

/// Pieces of a get that are under way at a time.
const AT_A_TIME: usize = 16;

/// Puts by messages.
pub fn put<C: Conduit + ?Sized>(c: &C, site: Site, at: At, src: &[u8]) -> Result<(), Failure> {
    check(c, at, src.len())?;
    let asked = Question::new(c, src.len().div_ceil(LARGE) as u32);
    for (i, piece) in src.chunks(LARGE).enumerate() {
        let there = ToPut { offset: at.offset + (i * LARGE) as u64, slot: asked.slot.into() };
        c.request(site, at.rank, PUT, &there, piece)?;
    }
    Ok(asked.wait(c, site)?)
}

/// Gets by messages.
pub fn get<C: Conduit + ?Sized>(c: &C, site: Site, at: At, dst: &mut [u8]) -> Result<(), Failure> {
    check(c, at, dst.len())?;
    for (i, some) in dst.chunks_mut(AT_A_TIME * LARGE).enumerate() {
        let begin = at.offset + (i * AT_A_TIME * LARGE) as u64;
        // SAFETY: borrowed for longer than the question lives.
        let asked = unsafe { Question::with_bytes(c, some.len().div_ceil(LARGE) as u32, &raw mut *some) };
        for to in (0..some.len()).step_by(LARGE) {
            let len = LARGE.min(some.len() - to) as u64;
            let wanted = ToGet { offset: begin + to as u64, len, slot: asked.slot.into(), to: to as u64 };
            c.request(site, at.rank, GET, &wanted, &[])?;
        }
        asked.wait(c, site)?;
    }
    Ok(())
}

/// An atomic by a message.
pub fn atomic<C: Conduit + ?Sized>(c: &C, site: Site, at: At, what: Atomic) -> Result<u64, Failure> {
    let asked = Question { answers: &c.landing().answers, slot: start_atomic(c, site, at, what)? };
    asked.wait(c, site)?;
    Ok(asked.value())
}

/// Starts one: the slot to which its value comes, which is the caller's to give back.
pub fn start_atomic<C: Conduit + ?Sized>(c: &C, site: Site, at: At, what: Atomic) -> Result<u32, Failure> {
    check(c, at, what.width.into())?;
    if !is_word(c, at, what) {
        return Err(Failure::NotAWord);
    }
    let slot = c.landing().answers.take(1);
    let [head, operand, expected] = what.encode();
    c.request(site, at.rank, ATOMIC, &[at.offset, slot.into(), head, operand, expected], &[])?;
    Ok(slot)
}

/// Is there such a word?
pub fn is_word<C: Conduit + ?Sized>(c: &C, at: At, what: Atomic) -> bool {
    at.offset.is_multiple_of(what.width.into()) && check(c, at, what.width.into()).is_ok()
}

/// Sends atomics of one kind, as offsets and operands, to one rank; an answer comes to the slot.
pub fn send_atomics<C>(c: &C, site: Site, to: u32, slot: u32, head: u64, pairs: &[u8]) -> Result<(), Aborted>
where
    C: Conduit + ?Sized,
{
    c.request(site, to, ATOMICS, &[slot.into(), head], pairs)
}

/// Sends bytes to a place, and a notice that is given there when they are written, after those of this rank's earlier signals. They
/// may be reused when this returns.
pub fn signal<C: Conduit + ?Sized>(c: &C, site: Site, at: At, src: &[u8], notice: Notice) -> Result<(), Failure> {
    if !src.is_empty() {
        check(c, at, src.len())?;
    }
    let number = next_signal(c, site, at.rank)?;
    Ok(send_signal(c, site, at, src, notice, number)?)
}

/// A number for a signal to this rank, which must be sent then: others wait for it.
pub(crate) fn next_signal<C: Conduit + ?Sized>(c: &C, site: Site, to: u32) -> Result<u32, Aborted> {
    let most = 1 << (c.signal_bits() - 1);
    let number = c.landing().next_signal(c.ranks(), to);
    // What travels of a number must be enough to tell apart all that are under way.
    if number > 0 && number.is_multiple_of(most) {
        c.quiet_to(site, to)?;
    }
    Ok(number)
}

/// Sends a signal, whose bytes lie there, by messages.
pub(crate) fn send_signal<C: Conduit + ?Sized>(
    c: &C,
    site: Site,
    at: At,
    src: &[u8],
    notice: Notice,
    number: u32,
) -> Result<(), Aborted> {
    let [what, n] = encode_numbered(notice, number);
    if src.len() <= LARGE {
        return c.request(site, at.rank, SIGNAL, &[at.offset, what, n], src);
    }
    let (key, total) = (c.landing().next_key(), src.len() as u64);
    for (i, part) in src.chunks(LARGE).enumerate() {
        let offset = at.offset + (i * LARGE) as u64;
        c.request(site, at.rank, SIGNAL_PART, &[offset, what, n, key, total], part)?;
    }
    Ok(())
}

/// Sends runs to be written to a half of a rank's memory, all of which lie there; an answer comes to the slot.
pub fn send_put_runs<C>(c: &C, site: Site, to: u32, half: Half, slot: u32, packet: Packet) -> Result<(), Aborted>
where
    C: Conduit + ?Sized,
{
    let (bytes, data) = packet.finish_put();
    c.request(site, to, PUT_RUNS, &[half.mark(), slot.into(), data as u64], &bytes)
}

/// Asks ranks for runs of a half of their memory, all of which lie there: the slot to which they come, which is the
/// caller's to give back. Each packet gets an answer.
///
/// # Safety
/// `dst`, to which they are written, can be written, and is not used, until that slot is given back or has another sink.
pub unsafe fn start_get_runs<C>(
    c: &C,
    site: Site,
    half: Half,
    packets: Vec<(u32, Packet)>,
    dst: *mut [u8],
) -> Result<u32, Aborted>
where
    C: Conduit + ?Sized,
{
    let (asked, lists): (Vec<_>, Vec<_>) = packets
        .into_iter()
        .map(|(to, packet)| {
            let (there, here) = packet.finish_get();
            ((to, there), here)
        })
        .unzip();
    let answers = &c.landing().answers;
    let slot = answers.take(asked.len() as u32);
    // SAFETY: passed on to the caller.
    answers.set_sink(slot, unsafe { runs::sink_to(dst, lists) });
    for (number, (to, there)) in asked.iter().enumerate() {
        if let Err(aborted) = c.request(site, *to, GET_RUNS, &[half.mark(), slot.into(), number as u64], there) {
            answers.give(slot);
            return Err(aborted);
        }
    }
    Ok(slot)
}

/// Where a rank was last seen waiting; asked of its process.
pub fn last_site<C: Conduit + ?Sized>(c: &C, site: Site, rank: u32) -> Result<String, Failure> {
    let mut text = [0; 512];
    // SAFETY: dropped before the text is read.
    let asked = unsafe { Question::with_bytes(c, 1, &raw mut text[..]) };
    c.request(site, rank, SITE, &u64::from(asked.slot), &[])?;
    asked.wait(c, site)?;
    let len = asked.value() as usize;
    drop(asked);
    Ok(String::from_utf8_lossy(&text[..len.min(512)]).into_owned())
}

pub(crate) fn check<C: Conduit + ?Sized>(c: &C, at: At, len: usize) -> Result<(), Outside> {
    let (ranks, segment, offset) = (c.ranks(), c.half_len(at.half()), at.in_half().offset);
    let end = offset.checked_add(len as u64);
    let inside = (at.rank as usize) < ranks && offset >= FIRST && end.is_some_and(|end| end <= segment);
    if inside { Ok(()) } else { Err(Outside { at, len, ranks, segment }) }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ToPut {
    offset: u64,
    slot: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ToGet {
    offset: u64,
    len: u64,
    slot: u64,
    /// Where it belongs in what was asked for.
    to: u64,
}

struct OnPut;
impl Handler for OnPut {
    fn run(&self, arrival: &Arrival<'_>) {
        let (ToPut { offset, slot }, bytes) = arrival.open::<ToPut>();
        let (reach, at) = arrival.half(offset);
        let written = reach.write(at, bytes);
        written.unwrap_or_else(|e| arrival.bad(&e));
        arrival.reply(DONE, &[slot, 0], &[]);
    }
}

struct OnGet;
impl Handler for OnGet {
    fn run(&self, arrival: &Arrival<'_>) {
        let (ToGet { offset, len, slot, to }, _) = arrival.open::<ToGet>();
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
        arrival.reply(DATA, &[slot, to], bytes);
    }
}

/// An answer: the slot, and a value.
struct OnDone;
impl Handler for OnDone {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, value], _) = arrival.open::<[u64; 2]>();
        if !slot.try_into().is_ok_and(|slot| arrival.landing().answers.answer(slot, value)) {
            arrival.bad(&"an answer to nothing");
        }
    }
}

/// An answer that brings bytes: the slot, and where they belong.
struct OnData;
impl Handler for OnData {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, to], bytes) = arrival.open::<[u64; 2]>();
        if !slot.try_into().is_ok_and(|slot| arrival.landing().answers.answer_with(slot, to, bytes)) {
            arrival.bad(&"an answer to nothing");
        }
    }
}

struct OnSite;
impl Handler for OnSite {
    fn run(&self, arrival: &Arrival<'_>) {
        let (slot, _) = arrival.open::<u64>();
        let site = arrival.node().record(arrival.target()).last_site().unwrap_or_default();
        arrival.reply(DATA, &[slot, 0], site.as_bytes());
    }
}

struct OnAtomic;
impl Handler for OnAtomic {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([offset, slot, head, operand, expected], _) = arrival.open::<[u64; 5]>();
        let (reach, at) = arrival.half(offset);
        let old = Atomic::decode([head, operand, expected]).and_then(|what| reach.atomic(at, what));
        let old = old.unwrap_or_else(|| arrival.bad(&"an atomic outside, or not aligned, or of no kind"));
        arrival.reply(DONE, &[slot, old], &[]);
    }
}

struct OnAtomics;
impl Handler for OnAtomics {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, head], pairs) = arrival.open::<[u64; 2]>();
        for pair in pairs.chunks(16) {
            let done = bytemuck::try_pod_read_unaligned::<[u64; 2]>(pair).ok().and_then(|[offset, operand]| {
                let (reach, at) = arrival.half(offset);
                Atomic::decode([head, operand, 0]).and_then(|what| reach.atomic(at, what))
            });
            if done.is_none() {
                arrival.bad(&"an atomic outside, or not aligned, or of no kind");
            }
        }
        arrival.reply(DONE, &[slot, 0], &[]);
    }
}

struct OnPutRuns;
impl Handler for OnPutRuns {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([half, slot, data], bytes) = arrival.open::<[u64; 3]>();
        let Some((mut data, list)) = usize::try_from(data).ok().and_then(|data| bytes.split_at_checked(data)) else {
            arrival.bad(&NotRuns)
        };
        // All of them are checked before the first is written.
        let groups = checked(arrival, half, list, data.len());
        let Some((_, groups)) = groups.filter(|&(total, _)| total == data.len()) else { arrival.bad(&NotRuns) };
        for Group { offset, len, count, stride } in groups {
            let (reach, at) = arrival.half(half | offset);
            let (these, rest) = data.split_at(len * count);
            let written = reach.write_runs(at, these, Runs { len, count, there: stride, here: len });
            written.unwrap_or_else(|e| arrival.bad(&e));
            data = rest;
        }
        arrival.reply(DONE, &[slot, 0], &[]);
    }
}

struct OnGetRuns;
impl Handler for OnGetRuns {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([half, slot, number], list) = arrival.open::<[u64; 3]>();
        let Some((total, groups)) = checked(arrival, half, list, LARGE) else { arrival.bad(&NotRuns) };
        let mut bytes = vec![0; total];
        let mut rest = &mut bytes[..];
        for Group { offset, len, count, stride } in groups {
            let (reach, at) = arrival.half(half | offset);
            let (these, more) = rest.split_at_mut(len * count);
            let read = reach.read_runs(at, these, Runs { len, count, there: stride, here: len });
            read.unwrap_or_else(|e| arrival.bad(&e));
            rest = more;
        }
        arrival.reply(DATA, &[slot, number], &bytes);
    }
}

/// The groups of a list if all of them lie in a half of the target's memory, and how many bytes they have, which is at most so
/// many.
fn checked<'a>(
    arrival: &Arrival<'_>,
    half: u64,
    list: &'a [u8],
    most: usize,
) -> Option<(usize, impl Iterator<Item = Group> + use<'a>)> {
    let (total, groups) = runs::groups(list, most).ok()?;
    let lies = |group: Group| {
        let (reach, at) = arrival.half(half | group.offset);
        (half | group.offset) & !GUARDED == group.offset && reach.check(at, group.span()).is_ok()
    };
    (half & !GUARDED == 0 && groups.clone().all(lies)).then_some((total, groups))
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
