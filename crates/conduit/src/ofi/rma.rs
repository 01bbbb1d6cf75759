//! Puts and gets between nodes: the network copies to and from segments, without the target's rank.
//!
//! A put is started with delivery completion: it is complete when any process's get finds the bytes, which is later than
//! when its source may be reused. Each rank has [`TOKENS`] operations that can be under way; they bound what the completion
//! queue must hold. A user may want fewer ([`Settings::puts_under_way`](super::Settings::puts_under_way)). They are numbered and taken in turn. Atomics of the network ([`super::atomic`]) are such operations too.
//!
//! # Memory ordering
//! An operation's token belongs to its rank until it is posted, then to the network, until whoever reads its completion
//! stores `busy` with release; the rank loads it with acquire. The bytes of a get are written by the provider on the
//! thread that reads the completion, or before, as the provider promises.
//!
//! # Memory of this process
//! Where the network wants it registered, an operation has what [`local`](super::local) gives it, and whoever reads its
//! completion gives that back. `holds` says, with release and acquire, that there is something; a get by a copy is
//! copied to its place then, before the token is free.

use super::am::OF_OP;
use super::endpoint::{Context, Desc, Operands, Posted};
use super::local::{COPIED, Describe, Mine};
use super::segment;
use super::{Net, Seat};
use crate::contract::{At, Conduit, Failure};
use crate::record::Site;
use crate::shm::{self, LONG, Node};
use crate::sync::ticks;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Operations of one rank that can be under way.
pub const TOKENS: usize = 256;
/// Bytes of one rank that can be under way, if there is more than one operation: more measured no faster, and fill caches.
pub const UNDER_WAY: u64 = 4 << 20;

/// The operations of one rank.
#[derive(Debug)]
pub(super) struct Ops {
    ops: Box<[Op]>,
    completed: AtomicU64,
    /// Bytes of those.
    bytes: AtomicU64,
    /// Where the network wants memory registered: room for copies, as much for each operation, and what it and operands of
    /// atomics are described by.
    room: Box<[UnsafeCell<[u8; COPIED]>]>,
    descs: [Desc; 2],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Op {
    context: UnsafeCell<Context>,
    busy: AtomicBool,
    /// With which process it is.
    process: AtomicU32,
    /// The number of the one that it is, or was.
    number: AtomicU64,
    len: AtomicU64,
    /// Of an atomic: its words, and, not zero, what becomes of the old value (see [`Op::answers`]).
    words: UnsafeCell<Operands>,
    answer: AtomicU64,
    /// What it has of this process's memory, if it `holds` something that must be given back.
    held: UnsafeCell<Option<Held>>,
    holds: AtomicBool,
}

/// What becomes of memory when an operation has completed.
#[derive(Debug)]
enum Held {
    /// It is given back.
    Mine(Mine),
    /// So many bytes are copied here from the operation's room.
    Into(*mut u8, usize),
}

// SAFETY: the context, the words and what is held are the network's while `busy`, then of the one that reads the completion, else
// the rank's.
unsafe impl Sync for Op {}
// SAFETY: as above; where a get goes is memory that its caller lends until it has completed, to any thread.
unsafe impl Send for Op {}
// SAFETY: room is its operation's, as above.
unsafe impl Sync for Ops {}

impl Ops {
    /// Of the i-th rank of the process.
    pub fn new(i: usize) -> Ops {
        let op = |token: usize| Op {
            context: UnsafeCell::new(Context::new(OF_OP | ((i * TOKENS + token) as u64) << 8)),
            busy: AtomicBool::new(false),
            process: AtomicU32::new(0),
            number: AtomicU64::new(0),
            len: AtomicU64::new(0),
            words: UnsafeCell::default(),
            answer: AtomicU64::new(0),
            held: UnsafeCell::new(None),
            holds: AtomicBool::new(false),
        };
        let (completed, bytes) = Default::default();
        Ops { ops: (0..TOKENS).map(op).collect(), completed, bytes, room: [].into(), descs: [Desc::NONE; 2] }
    }

    /// They have room for copies from here on, and their memory is registered.
    pub fn describe(&mut self, describe: &mut Describe) -> Result<(), String> {
        self.room = (0..TOKENS).map(|_| UnsafeCell::new([0; COPIED])).collect();
        let (room, ops) = (&mut self.room, &mut self.ops);
        self.descs = [
            describe(room.as_mut_ptr().cast(), size_of_val(&**room))?,
            describe(ops.as_mut_ptr().cast(), size_of_val(&**ops))?,
        ];
        Ok(())
    }

    /// What operands of atomics are described by.
    pub fn words_desc(&self) -> Desc {
        self.descs[1]
    }

    /// Where the bytes of an operation are for the network, and by what they are described; what must be given back is noted.
    ///
    /// # Safety
    /// The operation is busy, and not posted yet; `way` and `len` are its own.
    unsafe fn hold(&self, op: &Op, mine: Mine, way: Way, len: usize) -> (*mut u8, Desc) {
        let at = match way {
            Way::Put(src) => src.cast_mut(),
            Way::Get(dst) => dst,
        };
        let (place, held) = match mine {
            Mine::Described(desc) => return (at, desc),
            Mine::Copied => {
                let room = self.room[op.number.load(Relaxed) as usize % TOKENS].get().cast::<u8>();
                let held = match way {
                    Way::Put(src) => {
                        // SAFETY: the source can be read, and the room is this operation's.
                        unsafe { src.copy_to_nonoverlapping(room, len) };
                        return (room, self.descs[0]);
                    }
                    Way::Get(dst) => Held::Into(dst, len),
                };
                ((room, self.descs[0]), held)
            }
            Mine::Once(ref region) => ((at, region.desc()), Held::Mine(mine)),
            Mine::Cached(_, desc) => ((at, desc), Held::Mine(mine)),
        };
        // SAFETY: nobody else has it until it is posted.
        unsafe { *op.held.get() = Some(held) };
        op.holds.store(true, Release);
        place
    }

    /// How many have completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Acquire)
    }

    /// Has this one completed?
    pub fn is_done(&self, number: u64) -> bool {
        let op = &self.ops[number as usize % TOKENS];
        op.number.load(Relaxed) != number || !op.busy.load(Acquire)
    }
}

impl Op {
    /// Its words, which the caller has; the old value of so many bytes answers this slot.
    ///
    /// # Safety
    /// The operation is busy, and not posted yet.
    pub unsafe fn answers(&self, slot: u32, width: u8, words: Operands) -> *mut Operands {
        // SAFETY: nobody else has them until they are posted.
        unsafe { *self.words.get() = words };
        self.answer.store(u64::from(slot) | u64::from(width) << 32, Relaxed);
        self.words.get()
    }

    /// The slot and the old value of an atomic that has completed.
    fn take_old(&self) -> Option<(u32, u64)> {
        let answer = self.answer.load(Relaxed);
        if answer == 0 {
            return None;
        }
        self.answer.store(0, Relaxed);
        // SAFETY: its completion has been read, and it is not the rank's again before `busy` is taken back.
        let old = unsafe { (*self.words.get()).old };
        let [a, b, c, d, ..] = old;
        let old = if answer >> 32 == 4 { u32::from_ne_bytes([a, b, c, d]).into() } else { u64::from_ne_bytes(old) };
        Some((answer as u32, old))
    }

    /// What it has, which must be given back.
    ///
    /// # Safety
    /// It has not been posted, or its completion has been read, and it is still busy.
    unsafe fn take_held(&self) -> Option<Held> {
        if !self.holds.load(Acquire) {
            return None;
        }
        self.holds.store(false, Relaxed);
        // SAFETY: so nobody else has it.
        unsafe { (*self.held.get()).take() }
    }

    /// What the network gives back with its completion.
    pub fn context(&self) -> *mut Context {
        self.context.get()
    }
}

impl Net {
    /// The process with which an operation is, by its number among all of this one.
    pub(super) fn partner(&self, which: usize) -> usize {
        self.ops[which / TOKENS].ops[which % TOKENS].process.load(Relaxed) as usize
    }

    /// An operation has completed, by its number among all of the process; its rank (of this process).
    pub(super) fn completed(&self, node: &Node, which: usize) -> usize {
        let i = which / TOKENS;
        let op = &self.ops[i].ops[which % TOKENS];
        self.ops[i].bytes.fetch_add(op.len.load(Relaxed), Relaxed);
        // SAFETY: its completion has just been read.
        match unsafe { op.take_held() } {
            None => {}
            Some(Held::Mine(mine)) => self.leave(mine),
            Some(Held::Into(dst, len)) => {
                let room = self.ops[i].room[which % TOKENS].get().cast::<u8>();
                // SAFETY: the network has written the room, and whoever started the get lends its destination until it has
                // completed.
                unsafe { room.copy_to_nonoverlapping(dst, len) };
            }
        }
        if let Some((slot, old)) = op.take_old() {
            let answered = node.landing(self.first + i).answers.answer(slot, old);
            assert!(answered, "an atomic that nobody asked for");
        }
        op.busy.store(false, Release);
        self.ops[i].completed.fetch_add(1, Release);
        i
    }
}

/// Which way bytes go, and where they are here.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Put(*const u8),
    Get(*mut u8),
}

/// Transfers that were started, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Started(Range<u64>);

/// Those with these numbers.
pub(super) fn started(numbers: Range<u64>) -> Started {
    Started(numbers)
}

impl Started {
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Both, and what was started between them.
    pub fn and(self, later: Started) -> Started {
        Started(self.0.start..later.0.end)
    }
}

impl Seat {
    /// Posts one operation of `len` bytes with a process if there is a token and room for it.
    #[inline]
    pub(super) fn try_post(&self, net: &Net, process: usize, len: usize, post: impl FnOnce(&Op) -> Posted) -> bool {
        let number = self.started.get();
        let ops = &net.ops[self.i];
        let op = &ops.ops[number as usize % TOKENS];
        let under_way = self.bytes.get() - ops.bytes.load(Relaxed);
        let too_many = number - ops.completed() >= net.settings.puts_under_way as u64;
        if op.busy.load(Acquire) || too_many || under_way > 0 && under_way + len as u64 > UNDER_WAY {
            return false;
        }
        op.busy.store(true, Relaxed);
        op.process.store(process as u32, Relaxed);
        op.number.store(number, Relaxed);
        op.len.store(len as u64, Relaxed);
        let start = (len >= LONG).then(ticks);
        let posted = post(op);
        start.into_iter().for_each(|start| self.posting.set(self.posting.get() + ticks().wrapping_sub(start)));
        if posted == Posted::Done {
            self.started.set(number + 1);
            self.is_at_it(net);
            self.bytes.set(self.bytes.get() + len as u64);
            return true;
        }
        op.answer.store(0, Relaxed);
        op.busy.store(false, Relaxed);
        match posted {
            Posted::Failed(why) => net.broke(&format!("a transfer with {} was refused: {why}", net.addresses[process])),
            _ => net.hungry.store(true, Relaxed),
        }
        false
    }

    /// Posts a transfer of memory of this process, as [`try_post`](Self::try_post) does. What it has of that memory is in `mine`
    /// until then.
    pub(super) fn try_transfer(
        &self,
        net: &Net,
        process: usize,
        (way, len): (Way, usize),
        mine: &Cell<Option<Mine>>,
        post: impl FnOnce(*mut u8, Desc, *mut Context) -> Posted,
    ) -> bool {
        self.try_post(net, process, len, |op| {
            let taken = mine.take().expect("not posted yet");
            let copied = matches!(taken, Mine::Copied);
            let desc = if let Mine::Described(desc) = taken { Some(desc) } else { None };
            // SAFETY: the operation is busy, and posted below.
            let (at, of) = unsafe { net.ops[self.i].hold(op, taken, way, len) };
            let posted = post(at, of, op.context());
            match posted == Posted::Done {
                true if copied => net.was_copied(),
                true => {}
                false => {
                    // SAFETY: it was not posted.
                    let held = unsafe { op.take_held() };
                    mine.set(Some(match held {
                        Some(Held::Mine(mine)) => mine,
                        _ => desc.map_or(Mine::Copied, Mine::Described),
                    }));
                }
            }
            posted
        })
    }

    /// Starts one transfer if there is a token and room for it.
    fn try_start(&self, net: &Net, seat: &shm::Seat, at: At, way: Way, len: usize, mine: &Cell<Option<Mine>>) -> bool {
        let process = seat.node().ranks().place(at.rank as usize).0;
        let (peer, remote) = (net.peers[process].expect("a process of another node"), net.remote(at).0);
        self.try_transfer(net, process, (way, len), mine, |local, desc, context| {
            // SAFETY: the context is ours, since the operation was not busy; whoever started the transfer keeps its memory
            // until it has completed.
            unsafe {
                match way {
                    Way::Put(_) => net.endpoint.write(peer, local, len, desc, remote, context, true),
                    Way::Get(_) => net.endpoint.read(peer, local, len, desc, remote, context),
                }
            }
        })
    }
}

/// Starts a transfer of any length; it goes by pieces where the network's names for memory end, here or there.
fn start(seat: &shm::Seat, site: Site, at: At, way: Way, len: usize) -> Result<Started, Failure> {
    segment::check(seat, site, at, len)?;
    let (far, net) = seat.beyond();
    let (first, mut done) = (far.started.get(), 0);
    while done < len {
        let there = At { offset: at.offset + done as u64, ..at };
        let piece = (len - done).min(net.remote(there).1 as usize);
        // SAFETY: inside the memory that the caller has.
        let (way, (mine, piece)) = unsafe {
            match way {
                Way::Put(src) => (Way::Put(src.add(done)), net.describe(src.add(done), piece, false)),
                Way::Get(dst) => (Way::Get(dst.add(done)), net.describe(dst.add(done), piece, true)),
            }
        };
        let mine = Cell::new(Some(mine));
        if !far.try_start(net, seat, there, way, piece, &mine) {
            in_flight(seat.wait(site, || far.try_start(net, seat, there, way, piece, &mine)));
        }
        done += piece;
    }
    Ok(Started(first..far.started.get()))
}

/// Starts a put; the bytes have arrived when [`is_done`] says so.
///
/// # Safety
/// `src..src + len` can be read and is not written to until then.
pub unsafe fn start_put(seat: &shm::Seat, site: Site, at: At, src: *const u8, len: usize) -> Result<Started, Failure> {
    let started = start(seat, site, at, Way::Put(src), len)?;
    let puts = &seat.beyond().0.puts;
    puts.set(puts.get() + 1);
    Ok(started)
}

/// Starts a get; the bytes are there when [`is_done`] says so.
///
/// # Safety
/// `dst..dst + len` can be written and is not used until then.
pub unsafe fn start_get(seat: &shm::Seat, site: Site, at: At, dst: *mut u8, len: usize) -> Result<Started, Failure> {
    let started = start(seat, site, at, Way::Get(dst), len)?;
    let gets = &seat.beyond().0.gets;
    gets.set(gets.get() + 1);
    Ok(started)
}

/// Is this memory of a rank of another node?
pub fn may_reach(seat: &shm::Seat, site: Site, at: At, len: usize) -> bool {
    segment::check(seat, site, at, len).is_ok()
}

/// Has the transfer completed?
pub fn is_done(seat: &shm::Seat, started: &Started) -> bool {
    let (far, net) = seat.beyond();
    started.0.clone().all(|number| net.ops[far.i].is_done(number))
}

/// Waits for all transfers of this rank.
#[inline]
pub fn complete_all(seat: &shm::Seat, site: Site) {
    let Some(far) = seat.far() else { return };
    let (_, net) = seat.beyond();
    let done = || far.started.get() == net.ops[far.i].completed();
    if !done() {
        in_flight(seat.wait(site, done));
    }
}

/// Waits for the transfer, and serves others meanwhile.
pub fn complete(seat: &shm::Seat, site: Site, started: &Started) {
    in_flight(seat.wait(site, || is_done(seat, started)));
}

/// Copies `src` to a place on another node; it has arrived.
pub fn put(seat: &shm::Seat, site: Site, at: At, src: &[u8]) -> Result<(), Failure> {
    // SAFETY: `src` is borrowed until this returns, which is when it has completed.
    let started = unsafe { start_put(seat, site, at, src.as_ptr(), src.len())? };
    complete(seat, site, &started);
    Ok(())
}

/// Copies from a place on another node.
pub fn get(seat: &shm::Seat, site: Site, at: At, dst: &mut [u8]) -> Result<(), Failure> {
    // SAFETY: as above.
    let started = unsafe { start_get(seat, site, at, dst.as_mut_ptr(), dst.len())? };
    complete(seat, site, &started);
    Ok(())
}

/// The network has memory of this rank while a transfer is under way, so a wait for it does not end before that, not even
/// with the job: a job of several processes ends with its processes, and so does this one.
fn in_flight(waited: Result<(), crate::wait::Aborted>) {
    if waited.is_err() {
        loop {
            std::thread::park();
        }
    }
}
