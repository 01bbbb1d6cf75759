//! Messages between nodes: short ones injected, longer ones sent from a bounce buffer, each received into a buffer of its
//! own. (Buffers that take many messages were tried: with libfabric 1.17 messages of several processes overwrite each other
//! in them, see docs/decisions.md.)
//!
//! # Credits and ends
//! A rank may have [`WINDOW`] requests under way to a process, and as many calls to a rank. A message ends by its reply, which the source
//! counts when it has handled it (`got`), or without one, which the target counts (`ended`) and tells: with the next reply
//! to that source, or in a message of its own when it has looked through what had come. Told is the whole count, so what is
//! told twice or overtaken does no harm. A rank is quiet when it has sent as many as have been told and got.
//!
//! # Replies never wait
//! What finds no room in the network is kept and sent later, by whoever makes progress. Sources' windows bound how much
//! that is.
//!
//! # Order
//! libfabric begins to receive what one endpoint sends another in order, but long messages may be complete later than short
//! ones that came after them. So requests and calls are numbered by their sources. They are taken by the thread that has
//! read the completion queue, before another may read it: calls go into their rank's queue, and what came too early is
//! kept until the others have come. Handlers run after that, possibly at the same time as later ones.

use super::endpoint::{Context, Desc, Posted};
use super::letters::{FarLetter, FarLetters};
use super::{Net, Seat, raise};
use crate::am::{ARGS, Arrival, Body, Way};
use crate::meeting::{Digest, ROUNDS};
use crate::pool::LARGE;
use crate::ranks::Ranks;
use crate::record::Site;
use crate::shm::mail::{AM, CALL};
use crate::shm::{self, Node};
use crate::wait::{Aborted, Step};
use bytemuck::{Pod, Zeroable, bytes_of};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Messages of one net that a rank may have under way to a process.
pub const WINDOW: u32 = 128;
/// So many messages that have ended are not kept from their sources.
pub(super) const UNTOLD: u32 = WINDOW / 8;
/// The longest message.
pub const LONGEST: usize = size_of::<Head>() + ARGS + LARGE;
/// Receive buffers. What comes when all are in use waits in the network.
pub(super) const BUFFERS: usize = 64;
/// How long a provider may take to accept them all.
pub(super) const POSTING: Duration = Duration::from_secs(10);
/// Bounce buffers.
pub(super) const BOUNCES: usize = 64;
/// Longer ones are not injected whatever the provider takes.
const INJECTED: usize = 128;

/// More messages of a source cannot be under way to a process.
const MOST_EARLY: u32 = 1 << 24;

/// What goes before a message.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Head {
    nonce: u32,
    source: u32,
    target: u32,
    /// Of a request or call: its number among those of its source and net to this process. Of an answer: so many of the
    /// target's messages to the source's process have ended without a reply.
    number: u32,
    handler: u16,
    kind: u8,
    args: u8,
    payload: u32,
}

const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const CALLED: u8 = 2;
const RESULT: u8 = 3;
const ENDED: u8 = 4;
const MEET: u8 = 5;
const HELLO: u8 = 6;
const HELLO_BACK: u8 = 7;

/// What a process keeps for one of its ranks; any of its threads may use it.
#[derive(Debug)]
pub(super) struct Desk {
    /// Messages that ended without a reply, as far as was told: requests by process, calls by rank.
    silent: [Box<[AtomicU32]>; 2],
    /// The same for those that were replied to, as soon as the reply was handled.
    got: [Box<[AtomicU32]>; 2],
    /// How often the rank has looked.
    pub polls: AtomicU64,
    /// Calls to it, and results of its own.
    pub letters: FarLetters,
}

impl Desk {
    pub fn new(processes: usize, ranks: usize) -> Desk {
        let counts = |n| (0..n).map(|_| AtomicU32::new(0)).collect();
        let both = || [counts(processes), counts(ranks)];
        Desk { silent: both(), got: both(), polls: AtomicU64::new(0), letters: FarLetters::default() }
    }

    fn over(&self, net: usize, whose: usize) -> u32 {
        self.silent[net][whose].load(Acquire).wrapping_add(self.got[net][whose].load(Acquire))
    }
}

/// Whose count of a rank's messages it is: requests are served by any thread of their process, calls by their rank only.
fn whose(ranks: &Ranks, net: usize, rank: usize) -> usize {
    if net == AM { ranks.place(rank).0 } else { rank }
}

/// What a process counts for a source on another node.
#[derive(Debug, Default)]
pub(super) struct Account {
    ended: AtomicU32,
    /// How many slots of its FIFO have been emptied.
    pub emptied: AtomicU64,
    /// Is it among those that are to be told?
    listed: AtomicBool,
    /// The number of the next message that is to be taken. Used by whoever reads the queue.
    next: [AtomicU32; 2],
}

/// Messages that have come before others that were sent earlier, by source, net and number.
pub(super) type Early = BTreeMap<(u32, usize, u32), Vec<u8>>;

/// A buffer that one message is received into.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Buffer {
    context: UnsafeCell<Context>,
    memory: UnsafeCell<Box<[u64]>>,
}

/// A buffer that one message is sent from.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bounce {
    context: UnsafeCell<Context>,
    taken: AtomicBool,
    memory: UnsafeCell<Box<[u64]>>,
}

/// What a context belongs to: the low byte of its word; the rest is an index.
pub(super) const OF_BUFFER: u64 = 1;
pub(super) const OF_BOUNCE: u64 = 2;
pub(super) const OF_OP: u64 = 3;

// SAFETY: context and memory are the network's until a message has been received, and then of the one thread that has read
// its completion, until it posts the buffer again.
unsafe impl Sync for Buffer {}
// SAFETY: used by whoever has set `taken`, then by the network until the message has been sent.
unsafe impl Sync for Bounce {}

impl Buffer {
    pub fn new(i: usize) -> Buffer {
        let context = UnsafeCell::new(Context::new(OF_BUFFER | (i as u64) << 8));
        Buffer { context, memory: UnsafeCell::new(vec![0; LONGEST.div_ceil(8)].into()) }
    }
}

impl Bounce {
    pub fn new(i: usize) -> Bounce {
        let context = UnsafeCell::new(Context::new(OF_BOUNCE | (i as u64) << 8));
        let memory = UnsafeCell::new(vec![0; LONGEST.div_ceil(8) + 2].into());
        Bounce { context, taken: AtomicBool::new(false), memory }
    }
}

impl Net {
    /// Posts all receive buffers, before anybody sends.
    pub(super) fn post_all(&self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            self.post_buffers();
            let idle = self.idle_count.load(Relaxed);
            if let Some(why) = self.why_broken() {
                return Err(why);
            }
            if idle == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "fi_recvmsg: {} took {} of {BUFFERS} receive buffers within {} s; PARTAGE_PROVIDER chooses another \
                     provider, and fi_info -e shows the variables that limit this one",
                    self.endpoint.provider(),
                    BUFFERS - idle,
                    patience.as_secs_f64()
                ));
            }
            // Some providers make room when they are looked at; nothing is under way that could complete.
            if let Err(broken) = self.endpoint.poll(&mut []) {
                self.broke(&broken.to_string());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Posts the receive buffers that nobody uses.
    pub(super) fn post_buffers(&self) {
        if self.idle_count.load(Relaxed) == 0 {
            return;
        }
        let Ok(mut idle) = self.idle_buffers.try_lock() else { return };
        while let Some(&i) = idle.last() {
            let buffer = &self.buffers[i];
            // SAFETY: nobody uses the buffer (it is idle), it stays as long as the endpoint, which is a field of the same
            // value and is closed before it, and it comes back by its completion.
            let posted = unsafe {
                let memory = (*buffer.memory.get()).as_mut_ptr().cast();
                self.endpoint.post_receive(memory, LONGEST, Desc::NONE, buffer.context.get())
            };
            match posted {
                Posted::Done => _ = idle.pop(),
                Posted::Again => break,
                Posted::Failed(why) => {
                    self.broke(&format!("a receive buffer cannot be posted: {why}"));
                    break;
                }
            }
        }
        self.idle_count.store(idle.len(), Relaxed);
    }

    /// The message of `len` bytes that was received into this buffer.
    ///
    /// # Safety
    /// This thread has read the completion of the buffer and has not left it since, nor does it before the last use.
    pub(super) unsafe fn received(&self, i: usize, len: usize) -> &[u8] {
        // SAFETY: so nobody else uses it: the network has written it before the completion, and it is posted again only
        // after it was left.
        let bytes: &[u8] = bytemuck::cast_slice(unsafe { &*self.buffers[i].memory.get() });
        &bytes[..len.min(bytes.len())]
    }

    /// Its message has been dealt with.
    pub(super) fn leave_buffer(&self, i: usize) {
        let mut idle = self.idle_buffers.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(i);
        self.idle_count.store(idle.len(), Relaxed);
    }

    /// A message has left this bounce buffer.
    pub(super) fn sent(&self, i: usize) {
        self.bounces[i].taken.store(false, Release);
    }

    fn head(&self, kind: u8, source: usize, target: usize, handler: u16) -> Head {
        let (source, target) = (source as u32, target as u32);
        Head { nonce: self.nonce, source, target, number: 0, handler, kind, args: 0, payload: 0 }
    }

    /// Sends a message if there is room.
    fn post(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) -> bool {
        assert!(args.len() <= ARGS && payload.len() <= LARGE, "{} bytes in a message", payload.len());
        let head = Head { args: args.len() as u8, payload: payload.len() as u32, ..head };
        let from = size_of::<Head>() + args.len().next_multiple_of(8);
        let len = (from + payload.len()).next_multiple_of(8);
        let fill = |bytes: &mut [u8]| {
            bytes[..size_of::<Head>()].copy_from_slice(bytes_of(&head));
            bytes[size_of::<Head>()..][..args.len()].copy_from_slice(args);
            bytes[from..][..payload.len()].copy_from_slice(payload);
        };
        let peer = self.peers[process].expect("a process of another node");
        let posted = if len <= self.endpoint.inject_size().min(INJECTED) {
            let mut bytes = [0; INJECTED];
            fill(&mut bytes);
            self.endpoint.inject(peer, &bytes[..len])
        } else {
            let Some(bounce) = self.take_bounce() else {
                self.hungry.store(true, Relaxed);
                return false;
            };
            // SAFETY: taken just now: nobody else uses it, and the network only until `sent`, or not at all if it is not
            // accepted. It stays as long as the endpoint, as receive buffers do.
            let posted = unsafe {
                let memory: &mut [u64] = &mut *bounce.memory.get();
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
                fill(bytes);
                self.endpoint.send(peer, bytes.as_ptr(), len, Desc::NONE, bounce.context.get())
            };
            if posted != Posted::Done {
                bounce.taken.store(false, Release);
            }
            posted
        };
        match posted {
            Posted::Done => true,
            Posted::Again => {
                self.hungry.store(true, Relaxed);
                false
            }
            Posted::Failed(why) => {
                self.broke(&format!("a message to {} was refused: {why}", self.addresses[process]));
                false
            }
        }
    }

    fn take_bounce(&self) -> Option<&Bounce> {
        let start = self.next_bounce.fetch_add(1, Relaxed);
        let free = |b: &&Bounce| !b.taken.load(Relaxed) && !b.taken.swap(true, Acquire);
        (0..BOUNCES).map(|i| &self.bounces[(start + i) % BOUNCES]).find(free)
    }

    /// Sends a message now or when there is room.
    fn post_or_keep(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) {
        if self.post(process, head, args, payload) {
            return;
        }
        let head = Head { args: args.len() as u8, payload: payload.len() as u32, ..head };
        let bytes = [bytes_of(&head), args, payload].concat();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((process, bytes));
        self.kept_count.store(kept.len(), Release);
    }

    /// Sends what was kept; true if any of it went.
    pub(super) fn send_kept(&self) -> bool {
        if self.kept_count.load(Acquire) == 0 {
            return false;
        }
        let Ok(mut kept) = self.kept.try_lock() else { return false };
        let (before, mut full) = (kept.len(), vec![]);
        for _ in 0..before {
            let Some((process, bytes)) = kept.pop_front() else { break };
            if full.contains(&process) {
                kept.push_back((process, bytes));
                continue;
            }
            let (head, rest) = bytes.split_at(size_of::<Head>());
            let head: Head = bytemuck::pod_read_unaligned(head);
            let (args, payload) = rest.split_at(head.args.into());
            if !self.post(process, head, args, payload) {
                full.push(process);
                kept.push_back((process, bytes));
            }
        }
        self.kept_count.store(kept.len(), Release);
        kept.len() < before
    }

    /// Replies to `to` for `from`, a rank of this process.
    #[expect(clippy::too_many_arguments, reason = "what a message consists of")]
    pub(crate) fn answer(
        &self,
        ranks: &Ranks,
        net: usize,
        from: usize,
        to: usize,
        handler: u16,
        args: &[u8],
        payload: &[u8],
    ) {
        let kind = if net == AM { REPLY } else { RESULT };
        let ended = self.accounts[self.account(net, from, to)].ended.load(Acquire);
        let head = Head { number: ended, ..self.head(kind, from, to, handler) };
        self.post_or_keep(ranks.place(to).0, head, args, payload);
    }

    /// Where messages of `source` to `target`, a rank of this process, are counted.
    fn account(&self, net: usize, target: usize, source: usize) -> usize {
        let each = self.extents.len();
        if net == AM { source } else { each * (1 + target - self.first) + source }
    }

    /// `n` messages of `source` to `target`, a rank of this process, have ended without a reply; it will be told.
    pub(crate) fn ended(&self, net: usize, target: usize, source: usize, n: u32) {
        let at = self.account(net, target, source);
        let account = &self.accounts[at];
        account.ended.fetch_add(n, AcqRel);
        self.untold.fetch_add(n, Relaxed);
        if !account.listed.swap(true, AcqRel) {
            self.owing.lock().unwrap_or_else(PoisonError::into_inner).push(at);
            self.owed.fetch_add(1, Release);
        }
    }

    /// Tells sources what has ended.
    pub(super) fn tell_ended(&self, ranks: &Ranks) {
        if self.owed.load(Acquire) == 0 {
            return;
        }
        let owing = std::mem::take(&mut *self.owing.lock().unwrap_or_else(PoisonError::into_inner));
        self.owed.fetch_sub(owing.len(), Relaxed);
        self.untold.store(0, Relaxed);
        let each = self.extents.len();
        for at in owing {
            let (account, source) = (&self.accounts[at], at % each);
            // What ends from here on is listed anew.
            account.listed.swap(false, AcqRel);
            let number = account.ended.load(Acquire);
            let (net, target) = if at < each { (AM, self.first) } else { (CALL, self.first + at / each - 1) };
            let head = Head { number, ..self.head(ENDED, target, source, net as u16) };
            let emptied = account.emptied.load(Acquire);
            let args = if emptied > 0 { bytes_of(&emptied) } else { &[] };
            self.post_or_keep(ranks.place(source).0, head, args, &[]);
        }
    }

    /// Is there anything that nobody has been able to send yet?
    pub(super) fn owes(&self) -> bool {
        self.owed.load(Relaxed) | self.kept_count.load(Relaxed) | self.idle_count.load(Relaxed) != 0
    }

    /// A reply or result from `source` to a rank of this process has been dealt with.
    pub(crate) fn got(&self, ranks: &Ranks, net: usize, rank: usize, source: usize) {
        self.desks[rank - self.first].got[net][whose(ranks, net, source)].fetch_add(1, Release);
    }

    /// Tells the first process of another node of a barrier.
    pub(crate) fn tell_of_meeting(&self, process: usize, epoch: u64, round: usize, known: Digest) {
        // A rank without a tag goes with the round: it is all there is to say of most barriers.
        let args = [epoch, (round as u64) << 32 | u64::from(known.plain.map_or(0, |rank| rank + 1))];
        let words = known.to_words();
        let payload = if known.is_bare() { &[] } else { bytes_of(&words) };
        self.post_or_keep(process, self.head(MEET, self.first, 0, 0), bytes_of(&args), payload);
    }

    /// Greets a process; false if there is no room yet.
    pub(super) fn say_hello(&self, ranks: &Ranks, process: usize) -> bool {
        self.post(process, self.head(HELLO, ranks.mine().start, 0, 0), &[], &[])
    }

    /// A message in a receive buffer, taken apart; none if it is not of this job.
    pub(super) fn read_message<'m>(&self, ranks: &Ranks, bytes: &'m [u8]) -> Option<Message<'m>> {
        let message = Message::read(bytes)?;
        let head = message.head;
        let far = |rank: u32| (rank as usize) < ranks.count() && !ranks.is_near(rank as usize);
        let for_one = head.kind <= ENDED;
        let ours = head.nonce == self.nonce && far(head.source);
        if ours {
            self.heard.from(head.source as usize);
        }
        (ours && (!for_one || ranks.mine().contains(&(head.target as usize)))).then_some(message)
    }

    /// Is it this message's turn? If not it is kept.
    pub(super) fn is_next(&self, early: &mut Early, message: &Message<'_>) -> bool {
        let Some(net) = message.net() else { return true };
        let Head { source, number, .. } = message.head;
        let next = &self.accounts[source as usize].next[net];
        if next.load(Relaxed) != number {
            if number.wrapping_sub(next.load(Relaxed)) > MOST_EARLY {
                self.broke(&format!("a message of rank {source} has the number {number}, which is not its turn"));
                return false;
            }
            early.insert((source, net, number), message.to_bytes());
            return false;
        }
        next.store(number.wrapping_add(1), Relaxed);
        true
    }

    /// The message after this one, if it came early.
    pub(super) fn next_early(&self, early: &mut Early, message: &Message<'_>) -> Option<Vec<u8>> {
        if early.is_empty() {
            return None;
        }
        let net = message.net()?;
        let next = &self.accounts[message.head.source as usize].next[net];
        let bytes = early.remove(&(message.head.source, net, next.load(Relaxed)))?;
        next.store(next.load(Relaxed).wrapping_add(1), Relaxed);
        Some(bytes)
    }

    /// What must be done with a message before others may read the queue; the rest of it, if there is more to do.
    pub(super) fn take<'m>(&self, node: &Node, message: Message<'m>) -> Option<Message<'m>> {
        let Message { head, args, payload } = message;
        let (source, target) = (head.source as usize, head.target as usize);
        match head.kind {
            CALLED | RESULT => {
                if head.kind == RESULT {
                    self.was_told(node.ranks(), CALL, target, source, head.number);
                }
                let letter = FarLetter { source, kind: head.handler, args: args.to_vec(), payload: payload.to_vec() };
                self.leave_letter(node, target, head.kind == RESULT, letter);
                None
            }
            _ => Some(message),
        }
    }

    /// Does what a message asks for.
    pub(super) fn handle(&self, node: &Node, Message { head, args, payload }: Message<'_>) {
        let ranks = node.ranks();
        let (source, target) = (head.source as usize, head.target as usize);
        match head.kind {
            REQUEST => {
                if !run(node, target, source, head.handler, args, payload, Way::Far) {
                    self.ended(AM, target, source, 1);
                }
                node.ring(ranks.near(target));
            }
            REPLY => {
                run(node, target, source, head.handler, args, payload, Way::None);
                self.was_told(ranks, AM, target, source, head.number);
                self.got(ranks, AM, target, source);
                node.ring(ranks.near(target));
            }
            ENDED => {
                self.was_told(ranks, usize::from(head.handler).min(CALL), target, source, head.number);
                if let Ok(emptied) = bytemuck::try_pod_read_unaligned::<u64>(args) {
                    self.were_emptied(target, ranks.place(source).0, emptied);
                }
                node.ring(ranks.near(target));
            }
            MEET => {
                let Ok([epoch, round]) = bytemuck::try_pod_read_unaligned::<[u64; 2]>(args) else { return };
                let (round, plain) = ((round >> 32) as usize, (round as u32).checked_sub(1));
                let bare = Digest { aux: u64::MAX, plain, first: None, odd: None };
                let digest = match bytemuck::try_pod_read_unaligned::<[u64; 6]>(payload) {
                    Ok(words) => Digest::from_words(words),
                    Err(_) => bare,
                };
                if round < ROUNDS {
                    node.heard_of_meeting(epoch, round, digest);
                }
            }
            HELLO => {
                let head = self.head(HELLO_BACK, ranks.mine().start, 0, 0);
                self.post_or_keep(ranks.place(source).0, head, &[], &[]);
            }
            HELLO_BACK => self.greeted[ranks.place(source).0].store(true, Release),
            _ => {}
        }
    }

    fn was_told(&self, ranks: &Ranks, net: usize, rank: usize, source: usize, ended: u32) {
        raise(&self.desks[rank - self.first].silent[net][whose(ranks, net, source)], ended);
    }
}

/// A message that has been received.
#[derive(Clone, Copy)]
pub(super) struct Message<'m> {
    head: Head,
    args: &'m [u8],
    payload: &'m [u8],
}

impl<'m> Message<'m> {
    /// Out of any bytes.
    fn read(bytes: &'m [u8]) -> Option<Message<'m>> {
        let (head, rest) = bytes.split_first_chunk::<{ size_of::<Head>() }>()?;
        let head: Head = bytemuck::pod_read_unaligned(head);
        let args = rest.get(..head.args.into()).filter(|args| args.len() <= ARGS)?;
        let payload = rest.get(args.len().next_multiple_of(8)..)?.get(..head.payload as usize)?;
        Some(Message { head, args, payload })
    }

    /// The net of a message that is taken in its turn.
    fn net(&self) -> Option<usize> {
        match self.head.kind {
            REQUEST => Some(AM),
            CALLED => Some(CALL),
            _ => None,
        }
    }

    /// As it was received.
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = [bytes_of(&self.head), self.args].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(self.payload);
        bytes
    }
}

/// Runs a handler; true if it has replied.
pub(super) fn run(
    node: &Node,
    target: usize,
    source: usize,
    handler: u16,
    args: &[u8],
    payload: &[u8],
    way: Way,
) -> bool {
    // Payloads begin at a multiple of eight, as far as the provider keeps to what buffers and lengths suggest.
    let mut copy = vec![];
    let payload = match payload.as_ptr().addr().is_multiple_of(8) {
        true => payload,
        false => {
            copy.resize(payload.len().div_ceil(8), 0u64);
            let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut copy)[..payload.len()];
            bytes.copy_from_slice(payload);
            bytes
        }
    };
    let arrival = Arrival::new(node, target, source, Body::Here(args, payload), way);
    match node.handler(handler) {
        Some(handler) => handler.run(&arrival),
        None => arrival.bad(&format_args!("there is no handler {handler}")),
    }
    arrival.is_answered()
}

impl Node {
    /// Replies to a rank of another node.
    pub(crate) fn reply_far(&self, from: usize, to: usize, handler: u16, args: &[u8], payload: &[u8]) {
        let net = self.net().expect("the request came by it");
        net.answer(self.ranks(), AM, from, to, handler, args, payload);
    }
}

impl Seat {
    /// Sends a request or a call to a rank of another node, if there is room.
    pub(crate) fn try_send(
        &self,
        net: &Net,
        ranks: &Ranks,
        (lane, to): (usize, usize),
        handler: u16,
        args: &[u8],
        payload: &[u8],
    ) -> bool {
        let (process, whose) = (ranks.place(to).0, whose(ranks, lane, to));
        let number = &self.numbers[lane][process];
        if !self.has_room(net, lane, whose) {
            return false;
        }
        let kind = if lane == AM { REQUEST } else { CALLED };
        let head = Head { number: number.get(), ..net.head(kind, self.rank, to, handler) };
        if !net.post(process, head, args, payload) {
            return false;
        }
        self.is_at_it(net);
        number.set(number.get().wrapping_add(1));
        self.has_sent(lane, whose);
        true
    }

    /// May one more be under way to this process, or of calls to this rank?
    #[inline]
    pub(super) fn has_room(&self, net: &Net, lane: usize, whose: usize) -> bool {
        self.sent[lane][whose].get().wrapping_sub(net.desks[self.i].over(lane, whose)) < WINDOW
    }

    /// One more is.
    #[inline]
    pub(super) fn has_sent(&self, lane: usize, whose: usize) {
        let sent = &self.sent[lane][whose];
        sent.set(sent.get().wrapping_add(1));
        self.total.set(self.total.get() + 1);
        if !self.listed[lane][whose].replace(true) {
            self.not_quiet.borrow_mut().push((lane, whose));
        }
    }

    /// Has everything of this net to this process, or of calls to this rank, ended?
    pub(crate) fn is_quiet_to(&self, net: &Net, lane: usize, whose: usize) -> bool {
        self.sent[lane][whose].get() == net.desks[self.i].over(lane, whose)
    }

    /// Does this rank wait for anything from other nodes?
    pub(super) fn awaits(&self, net: &Net) -> bool {
        !self.not_quiet.borrow().is_empty() || self.started.get() != net.ops[self.i].completed()
    }

    /// Waits until everything that this rank has sent or started has ended.
    pub(crate) fn quiet(
        &self,
        seat: &shm::Seat,
        site: Site,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        let (_, net) = seat.beyond();
        let look = || {
            self.not_quiet.borrow_mut().retain(|&(lane, whose)| {
                let quiet = self.is_quiet_to(net, lane, whose);
                self.listed[lane][whose].set(!quiet);
                !quiet
            });
            match !self.awaits(net) {
                true => Step::Done,
                false if progress() => Step::Busy,
                false => Step::Idle,
            }
        };
        seat.waiter().until(|| site, look)
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::{Asked, Endpoint};
    use super::super::{Hello, Settings};
    use super::*;

    /// What bytes say, they have; whatever they are.
    #[test]
    fn messages_of_any_bytes_are_understood_or_refused() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut words: Vec<u64> = (0..random() % 20).map(|_| random()).collect();
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            if bytes.len() >= size_of::<Head>() && random() % 4 > 0 {
                // Lengths that may fit.
                bytes[19] = random() as u8 % 80;
                bytes[20..24].copy_from_slice(&(random() as u32 % 100).to_le_bytes());
            }
            let bytes = &bytes[..bytes.len() - (random() as usize % 8).min(bytes.len())];
            match Message::read(bytes) {
                Some(message) => {
                    let again = message.to_bytes();
                    let again = Message::read(&again).expect("as it was received");
                    assert_eq!((again.args, again.payload), (message.args, message.payload));
                    assert!(message.args.len() <= ARGS && message.payload.len() <= bytes.len());
                    read += 1;
                }
                None => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} were read, {refused} refused");
    }

    /// Alone among two processes; the other is not there.
    fn alone() -> Option<Net> {
        if let Err(why) = Endpoint::version() {
            println!("SKIPPED: {why}");
            return None;
        }
        let provider = std::env::var("PARTAGE_PROVIDER").ok();
        let asked = Asked { provider, source: Some("127.0.0.1".into()), ..Asked::default() };
        let (ranks, hello) = (Ranks::new(&[1, 1], &[0, 1], 0), Hello { nonce: 1, keys: 0, serves: 1 });
        let (peers, addresses) = (vec![None; 2], vec![String::new(); 2].into());
        Some(Net::new(
            Endpoint::open(&asked).unwrap(),
            peers,
            addresses,
            &[hello; 2],
            (&ranks, 1 << 30),
            Settings::default(),
        ))
    }

    #[test]
    fn a_provider_that_takes_no_buffers_is_found_out() {
        let Some(mut net) = alone() else { return };
        net.endpoint.refuse_receives();
        let why = net.post_all(Duration::from_millis(30)).unwrap_err();
        assert!(why.contains("took 0 of 64 receive buffers within 0.03 s") && !why.contains('\n'), "{why}");
        let Some(net) = alone() else { return };
        assert_eq!(net.post_all(POSTING), Ok(()));
    }

    #[test]
    fn a_short_message_with_usual_arguments_can_be_injected() {
        assert_eq!(size_of::<Head>(), 24);
        // 64 bytes is what tcp of 1.17 injects.
        assert!(size_of::<Head>() + 40 <= 64);
    }
}
