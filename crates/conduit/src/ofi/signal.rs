//! Signals between nodes: bytes and the notice of them in one message, by the way that suits their length and the network.
//!
//! * *By message*: bytes and notice are copied into a message, and out of it by a handler ([`reference::signal`]). Every network
//!   has it, and for few bytes it is the fastest.
//! * *By data*: one put, which the network copies to its place, and 32 bits that the target's completion queue gives when the
//!   bytes are there (libfabric's remote CQ data). Nothing is copied by us, and there is no rendezvous. A notice has more bits than
//!   that, so it goes by a *ticket*.
//! * *By FIFO*: one put of bytes and notice to a slot at the target, which whoever looks there finds to be full
//!   ([`bounce`]): for networks that do not say at the target that a put has come.
//!
//! # Tickets
//! A rank has [`TICKETS`] numbers for each process. The first signal that would go by data takes one, tells the process what it
//! stands for, and goes by message; so do others until that has been answered. When all numbers are in use, and nothing of the
//! rank is under way to that process, it begins anew. The 32 bits are its rank, the number, and as much of the signal's own number
//! as there is room for. A semaphore that was
//! freed leaves a ticket for a stale name: what is posted by it is ignored, as by any stale name.
//!
//! # Chunks
//! What lies in several of the target's [chunks](segment::CHUNK) is as many signals, all but the last of which give no notice: that takes effect after them.
//!
//! # FIFOs
//! A rank has one at each process, of [`SLOTS`] slots, made by that process when it is first asked. A slot is filled again
//! when the put before has completed, which is when all of its bytes have arrived, and the process has said that it has taken it:
//! with what it tells of ended messages. Whoever finds no such slot sends a message. Whoever looks at the completion
//! queue looks at the FIFOs; since nothing wakes a sleeper, one that has FIFOs sleeps for a millisecond at most.
//!
//! # Ends
//! A signal by data or FIFO is counted as a message without reply is: it costs a [credit](crate::credits), and the
//! target tells when it has ended. So a rank that signals faster than its target takes waits, and a rank is quiet when all
//! notices have been given.
//!
//! # Memory ordering
//! libfabric gives the data of a put when its bytes are in the target's memory, visible to the thread that reads the
//! queue; that thread posts with release. For a FIFO see [`bounce`]; its handler writes, then posts.
//! Data and notice of one signal are ordered by that. Signals of one rank to another have numbers, and take effect in
//! their order whichever ways they go ([`Sequence`](crate::signal::Sequence)).

use super::am::run;
use super::endpoint::{Desc, Endpoint, Remote};
use super::local::Mine;
use super::rma::{self, Started, Way as Direction};
use super::{Net, Seat, segment};
use crate::am::{Arrival, Body, Handler, Way};
use crate::bounce::{self, Content, PAYLOAD, SLOT};
use crate::contract::{At, Conduit, Failure};
use crate::credits::Cost;
use crate::record::Site;
use crate::reference::{self, EXTENT_IS, FIFO, FIFO_IS, SIGNAL, TICKET};
use crate::shm::mail::AM;
use crate::shm::{self, Node};
use crate::signal::{NUMBER_BITS, Notice, encode_numbered};
use crate::wait::Aborted;
use bytemuck::bytes_of;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Tickets of a rank at a process.
pub const TICKETS: u32 = 1 << TICKET_BITS;
const TICKET_BITS: u32 = 8;
/// Slots of a FIFO.
pub const SLOTS: usize = 16;
/// From so many bytes on data is faster than messages.
pub const FROM: usize = 8 << 10;

/// How signals go to other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ways {
    /// The fastest way for their length that the network has.
    #[default]
    Auto,
    /// By message.
    Message,
    /// By data; without any by message.
    Data,
    /// By FIFO, if they fit.
    Fifo,
}

impl Ways {
    /// From how many bytes on data is used, where so many bytes of it come with a put; an error if it is asked for in vain.
    fn data_from(self, bytes: usize, provider: &str) -> Result<usize, String> {
        match self {
            Ways::Auto if bytes >= 4 => Ok(FROM),
            Ways::Data if bytes >= 4 => Ok(1),
            Ways::Data => Err(format!(
                "PARTAGE_SIGNAL=data: puts of the provider {provider} bring no data to their target; \
                 PARTAGE_SIGNAL=auto works"
            )),
            _ => Ok(usize::MAX),
        }
    }

    fn data_on(self, endpoint: &Endpoint) -> Result<usize, String> {
        self.data_from(endpoint.cq_data_size(), &endpoint.provider())
    }

    /// What they are on this network, in words.
    pub fn describe(self, endpoint: &Endpoint) -> Result<String, String> {
        Ok(match (self, self.data_on(endpoint)?) {
            (Ways::Fifo, _) => format!("by FIFO up to {PAYLOAD} bytes, longer ones by message"),
            (_, usize::MAX) => "by message".into(),
            (_, 1) => "by data, without bytes by message".into(),
            (_, from) => format!("by message, from {from} bytes on by data"),
        })
    }
}

/// What a process has of signals.
#[derive(Debug)]
pub(super) struct Signals {
    /// Signals of so many bytes go by data.
    data_from: usize,
    /// Bits of a signal's number that travel with it.
    number_bits: u32,
    by_fifo: bool,
    /// Tickets of others, by the data that they send.
    tickets: Mutex<HashMap<u32, (usize, Notice)>>,
    /// FIFOs of others.
    fifos: Mutex<Vec<Fifo>>,
    fifo_count: AtomicUsize,
    /// FIFOs of this process's ranks, by rank and process.
    filled: Box<[OnceLock<Filled>]>,
    processes: usize,
}

/// A FIFO of a rank of another node.
#[derive(Debug)]
struct Fifo {
    source: usize,
    slots: Box<[[AtomicU64; SLOT]]>,
    /// What was taken out of each last.
    contents: Box<[Content]>,
    /// How many were taken.
    taken: u64,
}

/// What a rank has of its FIFO at a process.
#[derive(Debug)]
struct Filled {
    /// What slots are filled with. Those of an operation under way are the network's, the others the rank's.
    images: Box<[UnsafeCell<Content>]>,
    /// What the network knows them by; none if they could not be registered: then there is no FIFO.
    desc: Option<Desc>,
    /// Where the FIFO is.
    there: OnceLock<Remote>,
    /// How many slots were taken, as far as was told.
    taken: AtomicU64,
}

// SAFETY: the images are used by the rank and, until an operation has completed, by the network, which only reads.
unsafe impl Sync for Filled {}

impl Signals {
    /// An error if the network cannot do what is asked for.
    pub fn check(ways: Ways, endpoint: &Endpoint) -> Result<(), String> {
        ways.data_on(endpoint).map(|_| ())
    }

    /// Of a process with so many ranks, in a job of so many.
    pub fn new(ways: Ways, endpoint: &Endpoint, ranks: usize, (processes, all): (usize, usize)) -> Signals {
        Signals {
            data_from: ways.data_on(endpoint).unwrap_or(usize::MAX),
            number_bits: bits_beside(all),
            by_fifo: ways == Ways::Fifo,
            tickets: Mutex::default(),
            fifos: Mutex::default(),
            fifo_count: AtomicUsize::new(0),
            filled: (0..ranks * processes).map(|_| OnceLock::new()).collect(),
            processes,
        }
    }
}

/// How many bits are left for numbers beside ranks, of which there are so many, and tickets.
fn bits_beside(ranks: usize) -> u32 {
    let rank_bits = ranks.next_power_of_two().ilog2();
    (32 - TICKET_BITS - rank_bits).min(NUMBER_BITS)
}

/// What only a rank's own thread has of its signals.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// By process.
    books: RefCell<HashMap<usize, Book>>,
    counts: Cell<Counts>,
}

/// Signals of a rank to other nodes, by their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// By message.
    pub message: u64,
    /// By data.
    pub data: u64,
    /// By FIFO.
    pub fifo: u64,
}

#[derive(Debug, Default)]
struct Book {
    tickets: HashMap<(u32, [u64; 2]), Asked>,
    /// Whether a FIFO was asked for; there may be none to be had.
    fifo: Option<Asked>,
    /// Slots that were filled, and the number of each one's last operation.
    filled: u64,
    ops: [u64; SLOTS],
    /// What they have there, as far as they were filled.
    contents: Vec<Content>,
}

/// Something that was asked of another process.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// The answer comes to this slot, and makes it that.
    Slot(u32, u32),
    Answered(u32),
}

impl Asked {
    /// What it is, once that has been answered.
    fn get(&mut self, seat: &shm::Seat) -> Option<u32> {
        if let Asked::Slot(slot, makes) = *self {
            let answers = &seat.landing().answers;
            if !answers.is_done(slot) {
                return None;
            }
            answers.give(slot);
            *self = Asked::Answered(makes);
        }
        match *self {
            Asked::Answered(what) => Some(what),
            Asked::Slot(..) => None,
        }
    }
}

/// Starts a signal to a rank of another node. Its source may be used again when [`rma::is_done`] says so.
///
/// # Safety
/// `src..src + len` can be read and is not written to until then.
pub unsafe fn start(
    seat: &shm::Seat,
    site: Site,
    at: At,
    src: *const u8,
    len: usize,
    notice: Notice,
) -> Result<Started, Failure> {
    let (far, net) = seat.beyond();
    let may_be_data = len >= net.signals.data_from;
    let before = if may_be_data { segment::before_last_piece(at, len, net.endpoint.max_message_size()) } else { 0 };
    if before > 0 {
        segment::check(seat, site, at, len)?;
        let (first, rest) = (far.started.get(), At { offset: at.offset + before as u64, ..at });
        // SAFETY: a part of what the caller has.
        let begun = unsafe { start(seat, site, at, src, before, notice.of_nothing())? };
        // SAFETY: the rest of it.
        return match unsafe { start(seat, site, rest, src.add(before), len - before, notice) } {
            Ok(_) => Ok(rma::started(first..far.started.get())),
            Err(why) => {
                rma::complete(seat, site, &begun);
                Err(why)
            }
        };
    }
    // Before it has a number, which others wait for.
    match len {
        0 => {}
        _ if may_be_data => segment::check(seat, site, at, len)?,
        _ => reference::check(seat, at, len)?,
    }
    let ticket = if may_be_data { far.ticket(seat, site, net, at.rank, notice)? } else { None };
    let ticket = ticket.and_then(|ticket| Some((ticket, net.describe_whole(src, len)?)));
    let number = match reference::next_signal(seat, site, at.rank) {
        Ok(number) => number,
        Err(why) => {
            ticket.into_iter().for_each(|(_, mine)| net.leave(mine));
            return Err(why.into());
        }
    };
    if let Some((ticket, mine)) = ticket {
        far.signals.count(|c| c.data += 1);
        // SAFETY: passed on to the caller.
        return Ok(unsafe { start_data(seat, site, at, src, len, mine, (ticket, number))? });
    }
    // SAFETY: the caller's promise; it is not used after this returns.
    let bytes = unsafe { std::slice::from_raw_parts(src, len) };
    if net.signals.by_fifo && len <= PAYLOAD && try_fifo(seat, site, at, bytes, encode_numbered(notice, number))? {
        far.signals.count(|c| c.fifo += 1);
        return Ok(Started::default());
    }
    far.signals.count(|c| c.message += 1);
    reference::send_signal(seat, site, at, bytes, notice, number)?;
    Ok(Started::default())
}

/// Signals a rank of another node; returns when `src` may be used again.
pub fn signal(seat: &shm::Seat, site: Site, at: At, src: &[u8], notice: Notice) -> Result<(), Failure> {
    // SAFETY: `src` is borrowed until this returns, which is when it may be used again.
    let started = unsafe { start(seat, site, at, src.as_ptr(), src.len(), notice)? };
    if !started.is_empty() {
        rma::complete(seat, site, &started);
    }
    Ok(())
}

/// # Safety
/// As for [`start`].
unsafe fn start_data(
    seat: &shm::Seat,
    site: Site,
    at: At,
    src: *const u8,
    len: usize,
    mine: Mine,
    (ticket, number): (u32, u32),
) -> Result<Started, Aborted> {
    let ((far, net), ranks) = (seat.beyond(), seat.node().ranks());
    let process = ranks.place(at.rank as usize).0;
    let (peer, remote) = (net.peers[process].expect("a process of another node"), net.remote(at).0);
    let bits = net.signals.number_bits;
    let ticket = (far.rank as u32) << TICKET_BITS | ticket;
    let data = u64::from((ticket << bits) | (number % (1 << bits)));
    let first = far.started.get();
    let mine = Cell::new(Some(mine));
    let post = || {
        let (lane, cost) = ((AM, at.rank as usize), Cost::LEAST);
        if !far.takes(net, ranks, lane, cost) {
            return false;
        }
        let posted = far.try_transfer(net, process, (Direction::Put(src), len), &mine, |local, desc, context| {
            // SAFETY: the context is ours, since the operation was not busy; the caller keeps the memory until it has
            // completed.
            unsafe { net.endpoint.write_data(peer, local, len, desc, remote, context, data) }
        });
        match posted {
            true => far.has_sent(net, ranks, lane, cost),
            false => far.gives(net, ranks, lane, cost),
        }
        posted
    };
    if !post()
        && let Err(why) = seat.wait(site, post)
    {
        mine.take().into_iter().for_each(|mine| net.leave(mine));
        return Err(why);
    }
    Ok(rma::started(first..far.started.get()))
}

/// Puts a signal into the FIFO at its process, if there is one, and a slot that may be filled.
fn try_fifo(seat: &shm::Seat, site: Site, at: At, src: &[u8], [what, n]: [u64; 2]) -> Result<bool, Aborted> {
    let ((far, net), ranks) = (seat.beyond(), seat.node().ranks());
    let process = ranks.place(at.rank as usize).0;
    let mut books = far.signals.books.borrow_mut();
    let book = books.entry(process).or_default();
    let Some(asked) = &mut book.fifo else {
        let slot = seat.landing().answers.take(1);
        book.fifo = Some(Asked::Slot(slot, 0));
        // Waiting may serve others, which may signal.
        drop(books);
        seat.request(site, at.rank, FIFO, &u64::from(slot), &[])?;
        return Ok(false);
    };
    if asked.get(seat).is_none() {
        return Ok(false);
    }
    let filled = net.filled(far.i, process);
    let (Some(&there), Some(&desc)) = (filled.there.get(), filled.desc.as_ref()) else { return Ok(false) };
    let (i, ops) = ((book.filled % SLOTS as u64) as usize, &net.ops[far.i]);
    let is_taken = book.filled - filled.taken.load(Acquire) < SLOTS as u64;
    let (lane, cost) = ((AM, at.rank as usize), Cost::LEAST);
    let is_free = is_taken && (book.filled < SLOTS as u64 || ops.is_done(book.ops[i]));
    if !is_free || !far.takes(net, ranks, lane, cost) {
        return Ok(false);
    }
    if book.contents.len() == i {
        book.contents.push(bounce::FRESH);
    }
    let (image, content) = (filled.images[i].get(), &mut book.contents[i]);
    // SAFETY: the operation that had the image has completed, and only this thread starts others.
    let len = bounce::fill(unsafe { &mut *image }, content, [at.offset, what, n], at.rank, src);
    let remote = there.offset((i * size_of::<[u64; SLOT]>()) as u64);
    let (peer, number) = (net.peers[process].expect("a process of another node"), far.started.get());
    let posted = far.try_post(net, process, len, |op| {
        // SAFETY: the context is ours, since the operation was not busy; the image stays as long as the network, and is
        // not written to until this has completed. With delivery: then all of it has arrived.
        unsafe { net.endpoint.write(peer, image.cast(), len, desc, remote, op.context(), true) }
    });
    if posted {
        // SAFETY: the network only reads it.
        bounce::sent(unsafe { &*image }, len, content);
        book.ops[i] = number;
        book.filled += 1;
        far.has_sent(net, ranks, lane, cost);
    } else {
        far.gives(net, ranks, lane, cost);
    }
    Ok(posted)
}

impl Filled {
    fn new(net: &Net) -> Filled {
        let images: Box<[_]> = (0..SLOTS).map(|_| UnsafeCell::new(bounce::FRESH)).collect();
        let (at, len) = (images.as_ptr().cast::<u8>().cast_mut(), size_of_val(&*images));
        // SAFETY: they stay as long as the network, whose registrations are closed before.
        let desc = unsafe { net.local.describe(&net.endpoint, at, len) }.ok();
        Filled { images, desc, there: OnceLock::new(), taken: AtomicU64::new(0) }
    }
}

impl Sender {
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, what: impl Fn(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }
}

impl Seat {
    /// The number of the ticket for this notice; none if it has none yet: it has been asked for then.
    fn ticket(
        &self,
        seat: &shm::Seat,
        site: Site,
        net: &Net,
        rank: u32,
        notice: Notice,
    ) -> Result<Option<u32>, Failure> {
        let process = seat.node().ranks().place(rank as usize).0;
        let [what, n] = notice.encode();
        let mut books = self.signals.books.borrow_mut();
        let tickets = &mut books.entry(process).or_default().tickets;
        if let Some(asked) = tickets.get_mut(&(rank, [what, n])) {
            return Ok(asked.get(seat));
        }
        if tickets.len() == TICKETS as usize {
            // Nothing that has a number is under way, and no number is being told.
            if !self.is_quiet_to(net, AM, process) || !tickets.values_mut().all(|asked| asked.get(seat).is_some()) {
                return Ok(None);
            }
            tickets.clear();
        }
        let (number, slot) = (tickets.len() as u32, seat.landing().answers.take(1));
        tickets.insert((rank, [what, n]), Asked::Slot(slot, number));
        // Waiting may serve others, which may signal.
        drop(books);
        seat.request(site, rank, TICKET, &[slot.into(), number.into(), what, n], &[])?;
        Ok(None)
    }
}

impl Net {
    /// What the i-th rank has of its FIFO at a process.
    fn filled(&self, i: usize, process: usize) -> &Filled {
        self.signals.filled[i * self.signals.processes + process].get_or_init(|| Filled::new(self))
    }

    /// Bits of a signal's number that travel with it.
    pub fn signal_bits(&self) -> u32 {
        self.signals.number_bits
    }

    /// A put has come with this data: what its ticket stands for happens.
    pub(super) fn take_data(&self, node: &Node, data: u32) {
        let bits = self.signals.number_bits;
        let (ticket, number) = (data >> bits, data % (1 << bits));
        let source = (ticket >> TICKET_BITS) as usize;
        let stands_for = self.signals.tickets.lock().unwrap_or_else(PoisonError::into_inner).get(&ticket).copied();
        let Some((target, notice)) = stands_for else {
            // Not of this job: a rank uses a ticket when this process has answered that it has it, and none is ever taken
            // from the list. So nobody waits for what this would have done.
            self.strays.fetch_add(1, Relaxed);
            return;
        };
        self.hold(Cost::LEAST);
        let arrival = Arrival::new(node, target, source, Body::Here(&[], &[]), Way::None);
        shm::signal::notify(&arrival, number, bits, notice);
        self.ended(AM, target, source, Cost::LEAST);
        node.ring(node.ranks().near(target));
    }

    /// Are there FIFOs to look at?
    #[inline]
    pub(super) fn has_fifos(&self) -> bool {
        self.signals.fifo_count.load(Relaxed) > 0
    }

    /// Takes what has come into FIFOs; true if there was something.
    pub(super) fn look_at_fifos(&self, node: &Node) -> bool {
        let Ok(mut fifos) = self.signals.fifos.try_lock() else { return false };
        let mut any = false;
        for Fifo { source, slots, contents, taken } in fifos.iter_mut() {
            let source = *source;
            let next = |taken: u64| (taken % SLOTS as u64) as usize;
            while let Some(said) = bounce::take(&slots[next(*taken)], &mut contents[next(*taken)]) {
                let bytes = bounce::payload(&contents[next(*taken)], said.len);
                *taken += 1;
                let target = said.more as usize;
                if !node.mine().contains(&target) {
                    self.broke(&format!("a signal of rank {source} is for rank {target}, which is not here"));
                    return true;
                }
                run(node, target, source, SIGNAL, bytes_of(&said.words), bytes, Way::None);
                self.accounts[source].taken.store(*taken, Release);
                self.hold(Cost::LEAST);
                self.ended(AM, target, source, Cost::LEAST);
                self.tell_more(source);
                node.ring(node.ranks().near(target));
                any = true;
            }
        }
        any
    }

    /// So many slots of a rank of this process have been taken by a process.
    pub(super) fn were_taken(&self, rank: usize, process: usize, slots: u64) {
        if let Some(filled) = self.signals.filled[(rank - self.first) * self.signals.processes + process].get() {
            filled.taken.fetch_max(slots, Release);
        }
    }
}

/// A rank tells what a number stands for; the answer says, too, which of the target's memory the network knows.
pub(crate) struct OnTicket;
impl Handler for OnTicket {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, number, what, n], _) = arrival.open::<[u64; 4]>();
        let notice = Notice::decode([what, n]).filter(|_| number < TICKETS.into());
        let Some((notice, net)) = notice.zip(arrival.node().net()) else { arrival.bad(&"a ticket for nothing") };
        let data = (arrival.source() as u32) << TICKET_BITS | number as u32;
        let mut tickets = net.signals.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.insert(data, (arrival.target(), notice));
        drop(tickets);
        let [a, b, c, d, e, f] = net.extents[arrival.target()].read();
        arrival.reply(EXTENT_IS, &[slot, 0, a, b, c, d, e, f], &[]);
    }
}

/// In the place of an address: none could be made.
const NO_FIFO: u64 = u64::MAX;

/// A rank asks for a FIFO.
pub(crate) struct OnFifo;
impl Handler for OnFifo {
    fn run(&self, arrival: &Arrival<'_>) {
        let (slot, _) = arrival.open::<u64>();
        let Some(net) = arrival.node().net() else { arrival.bad(&"a FIFO on a node") };
        let source = arrival.source();
        let slots: Box<[[AtomicU64; SLOT]]> = (0..SLOTS).map(|_| bounce::fresh()).collect();
        let base = slots.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: it stays as long as the network: FIFOs are not taken from their list, and regions are closed before it.
        let region = net.local.making_room(|| unsafe { net.endpoint.register_anew(base, size_of_val(&*slots)) });
        let region = match region {
            Ok(region) => region,
            // Signals of that process go by messages.
            Err(_) => return arrival.reply(FIFO_IS, &[slot, NO_FIFO, 0], &[]),
        };
        let Remote { addr, key } = region.remote();
        net.local.hold(region);
        let mut fifos = net.signals.fifos.lock().unwrap_or_else(PoisonError::into_inner);
        fifos.push(Fifo { source, slots, contents: vec![bounce::FRESH; SLOTS].into(), taken: 0 });
        net.signals.fifo_count.store(fifos.len(), Release);
        drop(fifos);
        arrival.reply(FIFO_IS, &[slot, addr, key], &[]);
    }
}

/// A process has made a FIFO.
pub(crate) struct OnFifoIs;
impl Handler for OnFifoIs {
    fn run(&self, arrival: &Arrival<'_>) {
        let ([slot, addr, key], _) = arrival.open::<[u64; 3]>();
        if let Some(net) = arrival.node().net() {
            let process = arrival.node().ranks().place(arrival.source()).0;
            let filled = net.filled(arrival.target() - net.first, process);
            if addr != NO_FIFO {
                filled.there.get_or_init(|| Remote { addr, key });
            }
        }
        if !slot.try_into().is_ok_and(|slot| arrival.landing().answers.answer(slot, 0)) {
            arrival.bad(&"an answer to nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_used_where_there_is_some() {
        for bytes in [4, 8] {
            assert_eq!(Ways::Auto.data_from(bytes, "tcp"), Ok(FROM));
            assert_eq!(Ways::Data.data_from(bytes, "tcp"), Ok(1));
        }
        for bytes in [0, 2, 8] {
            assert_eq!(Ways::Message.data_from(bytes, "tcp"), Ok(usize::MAX));
            assert_eq!(Ways::Fifo.data_from(bytes, "tcp"), Ok(usize::MAX));
        }
        assert_eq!(Ways::Auto.data_from(0, "pigeon"), Ok(usize::MAX));
        let why = Ways::Data.data_from(2, "pigeon").unwrap_err();
        assert!(why.contains("PARTAGE_SIGNAL=data") && why.contains("pigeon") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn a_rank_a_ticket_and_a_number_are_thirty_two_bits() {
        // As many ranks as the name of a semaphore has.
        for ranks in [2, 3, 1000, 1 << 16, 1 << 20] {
            let bits = bits_beside(ranks);
            let (rank, ticket) = (ranks as u32 - 1, TICKETS - 1);
            let data = (u64::from(rank) << TICKET_BITS | u64::from(ticket)) << bits | ((1 << bits) - 1);
            assert!(data <= u32::MAX.into() && bits >= 2, "{ranks} ranks: {bits} bits");
        }
        assert_eq!((bits_beside(2), bits_beside(1 << 20)), (NUMBER_BITS, 4));
    }
}
