//! Messages between nodes: short ones injected, longer ones sent from a bounce buffer, each received into a buffer of its
//! own. (Buffers that take many messages were tried: with libfabric 1.17 messages of several processes overwrite each other
//! in them, see docs/decisions.md.)
//!
//! # Credits and ends
//! A request to a process or a call to a rank costs [credits](crate::credits) of its length, and has them until it has ended. Everything is counted
//! in credits. A message ends by its reply, which the source
//! counts when it has handled it (`got`), or without one, which the target counts (`ended`) and tells: with the next message
//! to that source, or in one of its own when it has looked through what had come and somebody has looked again in vain a few times, or
//! when there are `UNTOLD`. Told is the whole count, so what is
//! told twice or overtaken does no harm. A rank is quiet when it has sent as many as have been told and got.
//!
//! Nobody waits for ever for what is held back. An account whose count has grown is listed; who takes it from the list reads the
//! count after that, and sends it unless a message has taken that count, or a later one, with it (`told`, which is raised only when that message is
//! the network's, or kept). A rank that waits looks again, and one that computes leaves it to the thread; without a thread
//! nothing is held back but for messages to go with.
//!
//! Loans and recalls are told together with what has ended, needs and returns in messages of their own
//! (`CREDIT`). None of these takes credits: there is one for each message that has ended, or for each change of a loan.
//!
//! # What a process has to keep for others
//! Of requests and calls, what their credits stand for: at most [`Settings::am_memory`](super::Settings::am_memory), besides the
//! receive buffers, however little the process serves them. Of replies that find no room in the network, [`KEPT`] bytes and one reply for each
//! thread: while there are more, requests are put aside (they have their credits) and calls are not taken. Replies and results to its own ranks are what these have
//! asked for. Long arguments and results of calls come in pieces, and are joined outside: one at a time of a rank.
//!
//! # Replies never wait
//! What finds no room in the network is kept and sent later, by whoever makes progress. Reading never stops meanwhile, whatever is kept:
//! replies, and what is told of ends and loans, are always taken, and taking them sends nothing that has to be waited for. So what a
//! process keeps goes as soon as its target reads, which does not depend on whether anything else goes.
//!
//! # Order
//! libfabric begins to receive what one endpoint sends another in order, but long messages may be complete later than short
//! ones that came after them. So requests and calls are numbered by their sources. They are taken by the thread that has
//! read the completion queue, before another may read it: calls go into their rank's queue, and what came too early is
//! kept until the others have come. Handlers run after that, possibly at the same time as later ones.

use super::endpoint::{Context, Desc, Posted};
use super::letters::{FarLetter, FarLetters};
use super::local::Describe;
use super::{Net, Seat, raise};
use crate::am::{ARGS, Arrival, Body, Way};
use crate::credits::{Cost, Lack, Lender, MOST, Purse, Tell, UNIT};
use crate::meeting::{Digest, ROUNDS};
use crate::pool::LARGE;
use crate::ranks::Ranks;
use crate::record::Site;
use crate::shm::mail::{AM, CALL};
use crate::shm::{self, Node};
use crate::wait::{Aborted, Step};
use bytemuck::bytes_of;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many messages that have ended are not kept from their sources.
pub(super) const UNTOLD: u32 = 16;
/// Bytes of replies that are kept before requests are put aside.
pub const KEPT: usize = 4 << 20;
/// The longest message.
pub const LONGEST: usize = size_of::<Wire>() + size_of::<u64>() + ARGS + LARGE;
const _: () = assert!(LONGEST - size_of::<u64>() <= UNIT * MOST as usize);
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

/// What goes before a message: the job's secret, and its [`Head`]; then the word of what has ended, if it has one.
type Wire = [u64; 3];

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Head {
    source: u32,
    /// Of a request or call: its source found too few credits before.
    wants: bool,
    target: u32,
    handler: u16,
    /// Of a request or call: its number among those of its source and net to this process. Of an answer: so many credits of the
    /// target's messages to the source's process have ended without a reply.
    number: u32,
    payload: u32,
    args: u8,
    kind: u8,
    /// Of a request or call, and of its answer.
    cost: Cost,
    /// Of a request or call: so many credits of the target's requests to the source's process have ended without a reply.
    ended: Option<u32>,
}

/// Ranks have numbers below this.
pub(super) const RANKS: u32 = 1 << 23;

impl Head {
    fn to_wire(self, nonce: u64) -> Wire {
        let ranks = u64::from(self.source) | u64::from(self.wants) << 23 | u64::from(self.target) << 24;
        let ranks = ranks | u64::from(self.ended.is_some()) << 47;
        let lengths = u64::from(self.payload) | u64::from(self.args) << 17;
        let what = u64::from(self.kind) << 24 | u64::from(self.cost.class()) << 28;
        [nonce, ranks | u64::from(self.handler) << 48, (lengths | what) << 32 | u64::from(self.number)]
    }

    /// Bytes before the arguments.
    fn len(&self) -> usize {
        size_of::<Wire>() + self.ended.map_or(0, |_| size_of::<u64>())
    }

    /// None if the cost is none. What has ended, if it says so, is in the next word.
    fn from_wire([_, ranks, rest]: Wire) -> Option<Head> {
        let what = (rest >> 32) as u32;
        Some(Head {
            source: ranks as u32 % RANKS,
            wants: ranks >> 23 & 1 == 1,
            target: (ranks >> 24) as u32 % RANKS,
            handler: (ranks >> 48) as u16,
            number: rest as u32,
            payload: what & 0x1_ffff,
            args: (what >> 17) as u8 & 0x7f,
            kind: (what >> 24) as u8 & 0xf,
            cost: Cost::from_class((what >> 28) as u8)?,
            ended: (ranks >> 47 & 1 == 1).then_some(0),
        })
    }
}

const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const CALLED: u8 = 2;
const RESULT: u8 = 3;
const ENDED: u8 = 4;
const MEET: u8 = 5;
const HELLO: u8 = 6;
const HELLO_BACK: u8 = 7;
/// A source tells of what it has returned, and needs.
const CREDIT: u8 = 8;

/// What a process keeps for one of its ranks; any of its threads may use it.
#[derive(Debug)]
pub(super) struct Desk {
    /// What ended without a reply, as far as was told: requests by process, calls by rank.
    silent: [Box<[AtomicU32]>; 2],
    /// The same for those that were replied to, as soon as the reply was handled.
    got: [Box<[AtomicU32]>; 2],
    /// What it may send, and what it was granted at first.
    purses: [Box<[(Purse, u32)]>; 2],
    /// How often the rank has looked.
    pub polls: AtomicU64,
    /// Calls to it, and results of its own.
    pub letters: FarLetters,
}

impl Desk {
    /// By process, and by rank: how many credits it is granted.
    pub fn new(grants: [&[u32]; 2]) -> Desk {
        let counts = || grants.map(|g| g.iter().map(|_| AtomicU32::new(0)).collect());
        let purses = grants.map(|g| g.iter().map(|&grant| (Purse::new(grant), grant)).collect());
        let (polls, letters) = Default::default();
        Desk { silent: counts(), got: counts(), purses, polls, letters }
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
    /// Credits of what has ended without a reply, and how much of that it has been told.
    ended: AtomicU32,
    told: AtomicU32,
    /// There is something else to tell it, which only a message of its own does.
    more: AtomicBool,
    /// Credits that were lent to it and recalled.
    lent: AtomicU32,
    recalled: AtomicU32,
    /// How many messages its lane had had when its last one came. Used by whoever reads the queue.
    seen: AtomicU32,
    /// How many slots of its FIFO have been taken.
    pub taken: AtomicU64,
    /// Is it among those that are to be told?
    listed: AtomicBool,
    /// The number of the next message that is to be taken. Used by whoever reads the queue.
    next: [AtomicU32; 2],
}

/// Messages that have come before others that were sent earlier, by source, net and number.
pub(super) type Early = BTreeMap<(u32, usize, u32), Vec<u8>>;

/// A message for which there was no room.
#[derive(Debug)]
pub(super) struct Kept {
    process: usize,
    head: Head,
    args: Box<[u8]>,
    payload: Box<[u8]>,
}

/// A buffer that one message is received into.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Buffer {
    context: UnsafeCell<Context>,
    memory: UnsafeCell<Box<[u64]>>,
    desc: Desc,
}

/// A buffer that one message is sent from.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bounce {
    context: UnsafeCell<Context>,
    taken: AtomicBool,
    memory: UnsafeCell<Box<[u64]>>,
    desc: Desc,
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
        Buffer { context, memory: UnsafeCell::new(vec![0; LONGEST.div_ceil(8)].into()), desc: Desc::NONE }
    }

    /// Its memory is registered.
    pub fn describe(&mut self, describe: &mut Describe) -> Result<(), String> {
        let memory = self.memory.get_mut();
        self.desc = describe(memory.as_mut_ptr().cast(), size_of_val(&**memory))?;
        Ok(())
    }
}

impl Bounce {
    pub fn new(i: usize) -> Bounce {
        let context = UnsafeCell::new(Context::new(OF_BOUNCE | (i as u64) << 8));
        let memory = UnsafeCell::new(vec![0; LONGEST.div_ceil(8) + 2].into());
        Bounce { context, taken: AtomicBool::new(false), memory, desc: Desc::NONE }
    }

    /// Its memory is registered.
    pub fn describe(&mut self, describe: &mut Describe) -> Result<(), String> {
        let memory = self.memory.get_mut();
        self.desc = describe(memory.as_mut_ptr().cast(), size_of_val(&**memory))?;
        Ok(())
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
                self.endpoint.post_receive(memory, LONGEST, buffer.desc, buffer.context.get())
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
        Head { source, target, handler, kind, ..Head::default() }
    }

    /// Sends a message if there is room.
    fn post(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) -> bool {
        assert!(args.len() <= ARGS && payload.len() <= LARGE, "{} bytes in a message", payload.len());
        let head = Head { args: args.len() as u8, payload: payload.len() as u32, ..head };
        let first = head.len();
        let from = first + args.len().next_multiple_of(8);
        let len = (from + payload.len()).next_multiple_of(8);
        let fill = |bytes: &mut [u8]| {
            bytes[..size_of::<Wire>()].copy_from_slice(bytes_of(&head.to_wire(self.nonce)));
            if let Some(ended) = head.ended {
                bytes[size_of::<Wire>()..first].copy_from_slice(bytes_of(&u64::from(ended)));
            }
            bytes[first..][..args.len()].copy_from_slice(args);
            bytes[from..][..payload.len()].copy_from_slice(payload);
        };
        let peer = self.peers[process].expect("a process of another node");
        let posted = if len <= self.endpoint.injects().min(INJECTED) {
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
                self.endpoint.send(peer, bytes.as_ptr(), len, bounce.desc, bounce.context.get())
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
        let n = self.bounces.len();
        (0..n).map(|i| &self.bounces[start.wrapping_add(i) % n]).find(free)
    }

    /// Sends a message now or when there is room.
    fn post_or_keep(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) {
        if self.post(process, head, args, payload) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.kept_bytes.fetch_add(payload.len(), Relaxed);
        kept.push_back(Kept { process, head, args: args.into(), payload: payload.into() });
        self.kept_count.store(kept.len(), Release);
    }

    /// Is so much kept that nothing may run that might reply?
    #[inline]
    pub(super) fn is_choked(&self) -> bool {
        self.kept_bytes.load(Relaxed) > KEPT
    }

    /// Sends what was kept; true if any of it went.
    pub(super) fn send_kept(&self) -> bool {
        if self.kept_count.load(Acquire) == 0 {
            return false;
        }
        let Ok(mut kept) = self.kept.try_lock() else { return false };
        let (before, mut full) = (kept.len(), vec![]);
        for _ in 0..before {
            let Some(k) = kept.pop_front() else { break };
            if full.contains(&k.process) {
                kept.push_back(k);
            } else if self.post(k.process, k.head, &k.args, &k.payload) {
                self.kept_bytes.fetch_sub(k.payload.len(), Relaxed);
            } else {
                full.push(k.process);
                kept.push_back(k);
            }
        }
        self.kept_count.store(kept.len(), Release);
        kept.len() < before
    }

    /// Puts a request aside while nothing may reply; false if it may run.
    pub(super) fn put_aside(&self, message: &Message<'_>) -> bool {
        if message.head.kind != REQUEST || !self.is_choked() {
            return false;
        }
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.push_back(message.to_bytes(self.nonce));
        self.aside_count.store(aside.len(), Release);
        true
    }

    /// One that was put aside, if it may run now.
    pub(super) fn next_aside(&self) -> Option<Vec<u8>> {
        if self.aside_count.load(Acquire) == 0 || self.is_choked() {
            return None;
        }
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let next = aside.pop_front();
        self.aside_count.store(aside.len(), Release);
        next
    }

    /// Replies to `to` for `from`, a rank of this process; that ends a message of this cost.
    #[expect(clippy::too_many_arguments, reason = "what a message consists of")]
    pub(crate) fn answer(
        &self,
        ranks: &Ranks,
        net: usize,
        from: usize,
        (to, cost): (usize, Cost),
        handler: u16,
        args: &[u8],
        payload: &[u8],
    ) {
        let kind = if net == AM { REPLY } else { RESULT };
        let account = &self.accounts[self.account(net, from, to)];
        let number = account.ended.load(Acquire);
        let head = Head { number, cost, ..self.head(kind, from, to, handler) };
        self.held.fetch_sub(cost.credits(), Relaxed);
        self.post_or_keep(ranks.place(to).0, head, args, payload);
        raise(&account.told, number);
    }

    /// Sends a request or call if there is room, and with it what `head.target` has not been told of its requests, unless that alone
    /// would make it too long to be injected.
    fn post_with_ended(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) -> bool {
        let account = &self.accounts[head.target as usize];
        let ended = account.ended.load(Acquire);
        let len = size_of::<Wire>() + args.len().next_multiple_of(8) + payload.len().next_multiple_of(8);
        let least = self.endpoint.injects().min(INJECTED);
        if ended == account.told.load(Relaxed) || (len <= least && len + size_of::<u64>() > least) {
            return self.post(process, head, args, payload);
        }
        let posted = self.post(process, Head { ended: Some(ended), ..head }, args, payload);
        if posted {
            raise(&account.told, ended);
        }
        posted
    }

    /// The lane of messages to `target`, a rank of this process.
    fn lane(&self, net: usize, target: usize) -> usize {
        if net == AM { 0 } else { 1 + target - self.first }
    }

    /// Where messages of `source` to `target`, a rank of this process, are counted.
    fn account(&self, net: usize, target: usize, source: usize) -> usize {
        self.extents.len() * self.lane(net, target) + source
    }

    /// A message that costs so much has come.
    pub(super) fn hold(&self, cost: Cost) {
        let held = self.held.fetch_add(cost.credits(), Relaxed).wrapping_add(cost.credits());
        if held > self.most_held.load(Relaxed) {
            self.most_held.fetch_max(held, Relaxed);
        }
    }

    /// A message of `source` to `target`, a rank of this process, has ended without a reply; it will be told.
    pub(crate) fn ended(&self, net: usize, target: usize, source: usize, cost: Cost) {
        let at = self.account(net, target, source);
        self.accounts[at].ended.fetch_add(cost.credits(), AcqRel);
        self.held.fetch_sub(cost.credits(), Relaxed);
        self.untold.fetch_add(1, Relaxed);
        self.list(at);
    }

    /// Who has this account is to be told of it in a message of its own.
    pub(super) fn tell_more(&self, at: usize) {
        self.accounts[at].more.store(true, Release);
        self.list(at);
    }

    /// Who has this account is to be told of it.
    fn list(&self, at: usize) {
        if !self.accounts[at].listed.swap(true, AcqRel) {
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
        self.in_vain.store(0, Relaxed);
        let each = self.extents.len();
        for at in owing {
            let (account, source) = (&self.accounts[at], at % each);
            // What ends from here on is listed anew.
            account.listed.swap(false, AcqRel);
            let (number, more) = (account.ended.load(Acquire), account.more.swap(false, AcqRel));
            if !more && number == account.told.load(Relaxed) {
                continue;
            }
            raise(&account.told, number);
            let (net, target) = if at < each { (AM, self.first) } else { (CALL, self.first + at / each - 1) };
            let head = Head { number, ..self.head(ENDED, target, source, net as u16) };
            // A loan is read before what was recalled of it.
            let (taken, lent) = (account.taken.load(Acquire), account.lent.load(Acquire));
            let loans = u64::from(lent) | u64::from(account.recalled.load(Acquire)) << 32;
            let args = [loans, taken];
            let args = if args == [0, 0] { &[] } else { bytes_of(&args) };
            self.post_or_keep(ranks.place(source).0, head, args, &[]);
        }
    }

    /// Sources of a lane are to be told of their loans.
    fn tell_of_loans(&self, lane: usize, tell: Vec<Tell>) {
        for (source, lent, recalled) in tell {
            let at = self.extents.len() * lane + source;
            // Who reads the second has read the first, or a later one.
            raise(&self.accounts[at].lent, lent);
            raise(&self.accounts[at].recalled, recalled);
            self.tell_more(at);
        }
    }

    fn lender(&self, lane: usize) -> MutexGuard<'_, Lender> {
        self.lenders[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Credits of a rank of this process, for messages to `to`, are free again.
    fn bring(&self, ranks: &Ranks, net: usize, rank: usize, to: usize, credits: u32) {
        let (purse, grant) = &self.desks[rank - self.first].purses[net][whose(ranks, net, to)];
        if let Some(returned) = purse.bring(*grant, credits) {
            self.say_returned(ranks, net, rank, to, returned);
        }
    }

    #[cold]
    fn say_returned(&self, ranks: &Ranks, net: usize, rank: usize, to: usize, returned: u32) {
        let head = self.head(CREDIT, rank, to, net as u16);
        self.post_or_keep(ranks.place(to).0, head, bytes_of(&[returned, 0]), &[]);
    }

    /// Is there anybody who has not been told?
    pub(super) fn owes_word(&self) -> bool {
        self.owed.load(Relaxed) != 0
    }

    /// Is there anything that nobody has been able to send yet?
    pub(super) fn owes(&self) -> bool {
        let kept = self.kept_count.load(Relaxed) | self.aside_count.load(Relaxed);
        self.owed.load(Relaxed) | kept | self.idle_count.load(Relaxed) != 0
    }

    /// A reply or result from `source` to a rank of this process, which answers a message of this cost, has been dealt with.
    pub(crate) fn got(&self, ranks: &Ranks, net: usize, rank: usize, (source, cost): (usize, Cost)) {
        self.desks[rank - self.first].got[net][whose(ranks, net, source)].fetch_add(cost.credits(), Release);
        self.bring(ranks, net, rank, source, cost.credits());
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
        let message = Message::read(self.nonce, bytes).filter(|Message { head, .. }| {
            let far = |rank: u32| (rank as usize) < ranks.count() && !ranks.is_near(rank as usize);
            let for_one = head.kind <= ENDED || head.kind == CREDIT;
            far(head.source) && (!for_one || ranks.mine().contains(&(head.target as usize)))
        });
        match &message {
            Some(message) => self.heard.from(message.head.source as usize),
            None => _ = self.strays.fetch_add(1, Relaxed),
        }
        message
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
            early.insert((source, net, number), message.to_bytes(self.nonce));
            return false;
        }
        next.store(number.wrapping_add(1), Relaxed);
        true
    }

    /// A request or call is taken: its lane has had one more, and its source may want a loan.
    fn was_sent(&self, net: usize, head: Head) {
        let lane = self.lane(net, head.target as usize);
        let now = self.taken[lane].load(Relaxed).wrapping_add(1);
        self.taken[lane].store(now, Relaxed);
        let accounts = &self.accounts[self.extents.len() * lane..];
        accounts[head.source as usize].seen.store(now, Relaxed);
        if head.wants {
            let mut lender = self.lender(lane);
            let patience = lender.patience();
            let is_idle = |source: usize| now.wrapping_sub(accounts[source].seen.load(Relaxed)) > patience;
            let tell = lender.wants(head.source as usize, is_idle);
            drop(lender);
            self.tell_of_loans(lane, tell);
        }
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
        if let Some(net) = message.net() {
            self.was_sent(net, head);
        }
        match head.kind {
            CALLED | RESULT => {
                if head.kind == RESULT {
                    self.was_told(node.ranks(), CALL, target, source, head.number);
                }
                let (args, payload) = (args.to_vec(), payload.to_vec());
                let letter = FarLetter { source, cost: head.cost, kind: head.handler, args, payload };
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
                if !run(node, target, source, head.handler, args, payload, Way::Far(head.cost)) {
                    self.ended(AM, target, source, head.cost);
                }
                node.ring(ranks.near(target));
            }
            REPLY => {
                run(node, target, source, head.handler, args, payload, Way::None);
                self.was_told(ranks, AM, target, source, head.number);
                self.got(ranks, AM, target, (source, head.cost));
                node.ring(ranks.near(target));
            }
            ENDED => {
                let net = usize::from(head.handler).min(CALL);
                self.was_told(ranks, net, target, source, head.number);
                if let Ok([loans, taken]) = bytemuck::try_pod_read_unaligned::<[u64; 2]>(args) {
                    self.were_taken(target, ranks.place(source).0, taken);
                    let (purse, grant) = &self.desks[target - self.first].purses[net][whose(ranks, net, source)];
                    if let Some(returned) = purse.told(*grant, loans as u32, (loans >> 32) as u32) {
                        self.say_returned(ranks, net, target, source, returned);
                    }
                }
                node.ring(ranks.near(target));
            }
            CREDIT => {
                let Ok([returned, need]) = bytemuck::try_pod_read_unaligned::<[u32; 2]>(args) else { return };
                let lane = self.lane(usize::from(head.handler).min(CALL), target);
                let mut lender = self.lender(lane);
                let mut tell = lender.returned(source, returned);
                if need > 0 {
                    tell.extend(lender.needs(source, need));
                }
                drop(lender);
                self.tell_of_loans(lane, tell);
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

    /// What a request or call says besides, which is done as soon as it has come; the message without it.
    pub(super) fn hear<'m>(&self, node: &Node, mut message: Message<'m>) -> Message<'m> {
        let said = message.head.ended.take();
        // Of other kinds it is not known that their ranks are ones.
        if let Some(ended) = said.filter(|_| message.net().is_some()) {
            let (source, target) = (message.head.source as usize, message.head.target as usize);
            self.was_told(node.ranks(), AM, target, source, ended);
            node.ring(node.ranks().near(target));
        }
        message
    }

    fn was_told(&self, ranks: &Ranks, net: usize, rank: usize, source: usize, ended: u32) {
        let more = raise(&self.desks[rank - self.first].silent[net][whose(ranks, net, source)], ended);
        if more > 0 {
            self.bring(ranks, net, rank, source, more);
        }
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
    /// Out of any bytes; none unless they begin with the secret and are as long as they say.
    fn read(nonce: u64, bytes: &'m [u8]) -> Option<Message<'m>> {
        let (wire, rest) = bytes.split_first_chunk::<{ size_of::<Wire>() }>()?;
        let wire: Wire = bytemuck::pod_read_unaligned(wire);
        let mut head = Head::from_wire(wire).filter(|_| wire[0] == nonce)?;
        let mut rest = rest;
        if let Some(ended) = &mut head.ended {
            let (word, after) = rest.split_first_chunk::<{ size_of::<u64>() }>()?;
            (*ended, rest) = (u64::from_ne_bytes(*word) as u32, after);
        }
        let args = rest.get(..head.args.into()).filter(|args| args.len() <= ARGS)?;
        let payload = rest.get(args.len().next_multiple_of(8)..)?.get(..head.payload as usize)?;
        Some(Message { head, args, payload })
    }

    /// The net of a message that is taken in its turn.
    pub(super) fn net(&self) -> Option<usize> {
        match self.head.kind {
            REQUEST => Some(AM),
            CALLED => Some(CALL),
            _ => None,
        }
    }

    /// What it costs.
    pub(super) fn cost(&self) -> Cost {
        self.head.cost
    }

    /// As it was received.
    fn to_bytes(self, nonce: u64) -> Vec<u8> {
        let ended = self.head.ended.map(u64::from);
        let mut bytes = [bytes_of(&self.head.to_wire(nonce)), ended.as_ref().map_or(&[], bytes_of), self.args].concat();
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
    pub(crate) fn reply_far(&self, from: usize, to: (usize, Cost), handler: u16, args: &[u8], payload: &[u8]) {
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
        let cost = Cost::of(size_of::<Wire>() + args.len().next_multiple_of(8) + payload.len());
        if !self.takes(net, ranks, (lane, to), cost) {
            return false;
        }
        let (kind, wants) = (if lane == AM { REQUEST } else { CALLED }, self.wants[lane][whose].get());
        let head = Head { number: number.get(), wants, cost, ..net.head(kind, self.rank, to, handler) };
        if !net.post_with_ended(process, head, args, payload) {
            self.gives(net, ranks, (lane, to), cost);
            return false;
        }
        self.is_at_it(net);
        number.set(number.get().wrapping_add(1));
        self.wants[lane][whose].set(false);
        self.has_sent(net, lane, whose, cost);
        true
    }

    /// Takes the credits for a message; if there are too few, the target hears of it.
    #[inline]
    pub(super) fn takes(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost) -> bool {
        let (purse, grant) = &net.desks[self.i].purses[lane][whose(ranks, lane, to)];
        let takes = purse.take(cost);
        if !takes {
            self.lacks(net, ranks, (lane, to), cost, (purse, *grant));
        }
        takes
    }

    /// Takes them back: it was not sent.
    pub(super) fn gives(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost) {
        net.bring(ranks, lane, self.rank, to, cost.credits());
    }

    /// The next message says that there were too few; if that would be none, another asks.
    #[cold]
    fn lacks(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost, (purse, grant): (&Purse, u32)) {
        let (process, whose) = (ranks.place(to).0, whose(ranks, lane, to));
        if !self.wants[lane][whose].replace(true) {
            self.stalls.set(self.stalls.get() + 1);
        }
        let (Some(lack), asked) = (purse.lacks(grant, cost), &self.asked[lane][whose]) else { return };
        let again = |before: Lack| before.lent != lack.lent || before.need < lack.need;
        if asked.get().is_none_or(again) {
            let head = net.head(CREDIT, self.rank, to, lane as u16);
            if net.post(process, head, bytes_of(&[lack.returned, lack.need]), &[]) {
                asked.set(Some(lack));
                self.loans.set(self.loans.get() + 1);
            }
        }
    }

    /// One more message is under way to this process, or of calls to this rank.
    #[inline]
    pub(super) fn has_sent(&self, net: &Net, lane: usize, whose: usize, cost: Cost) {
        net.desks[self.i].purses[lane][whose].0.gone(cost);
        let sent = &self.sent[lane][whose];
        sent.set(sent.get().wrapping_add(cost.credits()));
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
        let mut not_quiet = self.not_quiet.borrow_mut();
        while let Some(&(lane, whose)) = not_quiet.last() {
            if !self.is_quiet_to(net, lane, whose) {
                return true;
            }
            self.listed[lane][whose].set(false);
            not_quiet.pop();
        }
        self.started.get() != net.ops[self.i].completed()
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
        const SECRET: u64 = 0x0123_4567_89ab_cdef;
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
            if bytes.len() >= size_of::<Wire>() && random() % 4 > 0 {
                // Lengths that may fit, and mostly a cost.
                let lengths =
                    (random() % 100) | ((random() % 80) << 17) | ((random() % 16) << 24) | ((random() % 11) << 28);
                bytes[20..24].copy_from_slice(&(lengths as u32).to_le_bytes());
            }
            if bytes.len() >= size_of::<Wire>() && random() % 8 > 0 {
                bytes[..8].copy_from_slice(bytes_of(&SECRET));
            }
            let bytes = &bytes[..bytes.len() - (random() as usize % 8).min(bytes.len())];
            match Message::read(SECRET, bytes) {
                Some(message) => {
                    assert_eq!(bytes[..8], SECRET.to_ne_bytes());
                    assert!(Message::read(SECRET ^ 1 << (random() % 64), bytes).is_none(), "another's is not ours");
                    let again = message.to_bytes(SECRET);
                    let again = Message::read(SECRET, &again).expect("as it was received");
                    assert_eq!((again.head, again.args, again.payload), (message.head, message.args, message.payload));
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
        let hello = Hello { nonce: 1, serves: 1, memory: super::super::AM_MEMORY, lends: 1 };
        let ranks = Ranks::new(&[1, 1], &[0, 1], 0);
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
        assert_eq!(size_of::<Wire>(), 24);
        // 64 bytes is what tcp of 1.17 injects.
        assert!(size_of::<Wire>() + 40 <= 64);
    }

    /// Long messages may be complete after short ones that were sent later: whatever the order, each is taken in its turn, and once.
    #[test]
    fn messages_are_taken_in_the_order_in_which_they_were_sent() {
        let Some(net) = alone() else { return };
        let (ranks, mut seed) = (Ranks::new(&[1, 1], &[0, 1], 0), 99u64);
        let mut random = move |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        const EACH: u32 = 40;
        let mut early = Early::new();
        for round in 0..50 {
            let numbers = round * EACH..(round + 1) * EACH;
            let mut arriving: Vec<(u8, u32)> = numbers.clone().flat_map(|n| [(REQUEST, n), (CALLED, n)]).collect();
            let mut taken = [vec![], vec![]];
            while !arriving.is_empty() {
                let (kind, number) = arriving.swap_remove(random(arriving.len()));
                let payload = vec![number as u8; random(3000)];
                let head = Head { number, payload: payload.len() as u32, ..net.head(kind, 1, 0, 5) };
                let bytes = Message { head, args: &[], payload: &payload }.to_bytes(net.nonce);
                let message = net.read_message(&ranks, &bytes).unwrap();
                let mut take = |message: &Message<'_>| {
                    assert!(message.payload.iter().all(|&b| b == message.head.number as u8));
                    taken[message.net().unwrap()].push(message.head.number);
                };
                if net.is_next(&mut early, &message) {
                    take(&message);
                    while let Some(bytes) = net.next_early(&mut early, &message) {
                        take(&net.read_message(&ranks, &bytes).unwrap());
                    }
                }
            }
            assert!(early.is_empty());
            assert!(taken.iter().all(|t| t.iter().copied().eq(numbers.clone())), "{taken:?}");
        }
        // One that was taken before comes again.
        let bytes = Message { head: net.head(REQUEST, 1, 0, 5), args: &[], payload: &[] }.to_bytes(net.nonce);
        assert!(!net.is_next(&mut early, &net.read_message(&ranks, &bytes).unwrap()) && early.is_empty());
        assert!(net.why_broken().unwrap().contains("rank 1 has the number 0, which is not its turn"));
    }

    /// Nothing is read of what has not the secret, or is not between ranks that send each other messages.
    #[test]
    fn what_is_not_of_the_job_is_counted_and_dropped() {
        let Some(net) = alone() else { return };
        let ranks = Ranks::new(&[1, 1], &[0, 1], 0);
        let read = |nonce: u64, head: Head| {
            let bytes = Message { head, args: &[], payload: &[] }.to_bytes(nonce);
            net.read_message(&ranks, &bytes).is_some()
        };
        let good = net.head(REQUEST, 1, 0, 5);
        assert!(read(net.nonce, good) && net.strays() == 0);
        (0..64).for_each(|bit| assert!(!read(net.nonce ^ 1 << bit, good), "bit {bit}"));
        assert!(!read(net.nonce, Head { source: 0, ..good }) && !read(net.nonce, Head { source: 2, ..good }));
        assert!(!read(net.nonce, Head { target: 1, ..good }) && !read(net.nonce, Head { target: RANKS, ..good }));
        assert!(!read(net.nonce, Head { kind: CREDIT, target: 7, ..good }));
        assert_eq!(net.strays(), 69);
    }

    #[test]
    fn heads_arrive_as_they_were() {
        let most = Head {
            source: RANKS - 1,
            wants: true,
            target: RANKS - 1,
            handler: u16::MAX,
            number: u32::MAX,
            payload: LARGE as u32,
            args: ARGS as u8,
            kind: 15,
            cost: Cost::of(UNIT * MOST as usize),
            ended: None,
        };
        let told = Head { ended: Some(0), ..most };
        for head in [most, told, Head::default(), Head { wants: false, ..most }, Head { source: 0, args: 0, ..most }] {
            let wire = head.to_wire(7);
            assert_eq!((wire[0], Head::from_wire(wire)), (7, Some(head)));
        }
        assert_eq!(Head::from_wire([0, 0, 15 << 60]), None, "no message costs that");
    }
}
