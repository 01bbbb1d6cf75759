//! Progress: who looks at the completion queue, and when.
//!
//! # The queue has one discipline
//! Whoever looks takes the lock `reading` if it is free (else somebody is looking already), reads a batch of entries, puts
//! what must stay in order where it belongs, and lets the lock go; handlers run after that, with no lock held. Completions
//! are counted for their ranks, which are rung.
//!
//! # Who looks
//! * A rank that waits or polls: once at every look, and several times while it awaits an answer of the network and nobody else needs its core;
//!   but while it awaits another rank of its node, at some looks only, and seldom at first: one at the network takes as long as many
//!   at memory, and what it awaits would be seen so much later.
//! * A thread of the process, while no rank does: it sleeps in the queue's descriptor. While ranks look, it dozes elsewhere
//!   for a millisecond at a time: a sleeper beside somebody who looks is woken for every message and makes it twice as slow.
//!   While ranks only post, it looks after each doze.
//!   A rank that goes to sleep hands over to it at once; one that begins to compute does not, so its process serves nobody
//!   for a millisecond at most. A rank that takes a message while the thread sleeps, and owes word of it, wakes it, so that this goes then, too. While all ranks sleep, and have cores of their own, the thread looks in their place for a
//!   moment whenever something has come: to sleep after each message would make the next one twice as slow.
//!
//! # Failure
//! The first operation that breaks is the end: messages may have been lost. As a rule its cause is that another process
//! died, and the launcher says so and ends this one; if it has not within a second and a half, this process ends the job
//! itself, with what the network said.

use super::am::{self, Desk, Early, Message, OF_BOUNCE, OF_BUFFER, OF_OP};
use super::endpoint::{Broken, Entry};
use super::fi::FI_ETRUNC;
use super::heartbeat::{Heart, host};
use super::{Net, Seat, one_more};
use crate::shm::Node;
use crate::sync::{ticks, ticks_per_us};
use crate::wait::Cores;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Entries that are read at a time.
const BATCH: usize = 16;
/// A rank that has a core, and awaits something, looks so often before it does anything else.
const INSISTENT: u32 = 4;
/// A rank that awaits another one of its node looks there at one of so many looks,
const NEAR_LOOKS: u32 = 256;
/// or so many, if there is a turn of others between two,
const NEAR_TURNS: u32 = 32;
/// or at one of so many, when it has waited for as many as that.
const LONG_NEAR_LOOKS: u32 = 8;
/// So many looks in vain are made before sources are told what has ended.
const IN_VAIN: u32 = 3;
/// So many looks that find something are made before the thread looks after other things.
const LONG: u32 = 1024;
/// How long the thread dozes while ranks look.
const DOZE_NS: u64 = 1_000_000;
/// How long it sleeps in the queue.
const SLEEP: Duration = Duration::from_millis(100);
/// How long it looks after something has come, while all ranks sleep, in microseconds.
const STAY_US: u64 = 100;
/// How long a launcher is given to say why the network failed.
const GRACE: Duration = Duration::from_millis(1500);

impl Net {
    /// One look at the queue; true if there was something.
    #[inline]
    pub(crate) fn poll(&self, node: &Node) -> bool {
        match node.cores() {
            Cores::Own => self.poll_once(node),
            Cores::Shared => {
                let start = ticks();
                let found = self.poll_once(node);
                node.toil().add(ticks().wrapping_sub(start));
                found
            }
        }
    }

    #[inline]
    fn poll_once(&self, node: &Node) -> bool {
        let mut entries = [Entry::EMPTY; BATCH];
        let Ok(early) = self.reading.try_lock() else { return false };
        let found = match self.endpoint.poll(&mut entries) {
            Ok(0) => {
                drop(early);
                if self.has_fifos() && self.end_if(|| self.look_at_fifos(node)) {
                    self.settle_some(node);
                    return true;
                }
                return (self.owes() || self.hungry.load(Relaxed)) && self.settle(node);
            }
            Ok(n) => &entries[..n],
            Err(broken) => {
                drop(early);
                match self.too_long(&broken) {
                    Some(buffer) => self.leave_buffer(buffer),
                    None => self.broke(&self.with_whom(node, &broken)),
                }
                return false;
            }
        };
        self.deal_with(node, found, early);
        if self.has_fifos() {
            self.end_if(|| self.look_at_fifos(node));
        }
        self.settle_some(node);
        true
    }

    /// Sorts what has been read, while nobody else may read, and does it.
    fn deal_with(&self, node: &Node, found: &[Entry], mut early: MutexGuard<'_, Early>) {
        let mut messages: [Option<(usize, Message<'_>)>; BATCH] = [None; BATCH];
        let mut late = vec![];
        for (entry, place) in found.iter().zip(&mut messages) {
            match entry.remote_data() {
                None => *place = self.sort(node, entry, &mut early, &mut late),
                Some(_) if self.endpoint.data_takes_buffers() => self.leave_taken(entry),
                Some(_) => {}
            }
        }
        drop(early);
        for data in found.iter().filter_map(Entry::remote_data) {
            self.end_if(|| self.take_data(node, data as u32));
        }
        for (buffer, message) in messages.iter_mut().filter_map(Option::take) {
            if !self.put_aside(&message) {
                self.handle_or_end(node, message);
            }
            self.leave_buffer(buffer);
        }
        for bytes in late {
            let message = self.read_message(node.ranks(), &bytes).filter(|message| !self.put_aside(message));
            message.into_iter().for_each(|message| self.handle_or_end(node, message));
        }
    }

    /// Posts and sends what could not be before; true if something was sent. Whoever waits for room tries again.
    fn settle(&self, node: &Node) -> bool {
        let sent = self.settle_some(node);
        if self.owing.is_any() && self.in_vain.fetch_add(1, Relaxed) + 1 >= IN_VAIN {
            self.tell_ended(node.ranks());
        }
        sent
    }

    /// The same, but sources are told of a few messages that have ended only after `IN_VAIN` looks that find nothing: a rank that has got
    /// what it waits for answers first, and that goes along. If it computes instead, the thread tells.
    fn settle_some(&self, node: &Node) -> bool {
        self.post_buffers();
        let sent = self.send_kept();
        while let Some(bytes) = self.next_aside() {
            self.read_message(node.ranks(), &bytes).into_iter().for_each(|message| self.handle_or_end(node, message));
        }
        if self.owing.untold() >= am::UNTOLD || !self.settings.thread {
            self.tell_ended(node.ranks());
        }
        if self.hungry.load(Relaxed) && self.hungry.swap(false, Relaxed) {
            node.mine().for_each(|rank| node.ring(node.ranks().near(rank)));
        }
        sent
    }

    fn handle_or_end(&self, node: &Node, message: Message<'_>) {
        self.end_if(|| self.handle(node, message));
    }

    /// A message that cannot be understood ends the job: unwinding might give memory back that the network has.
    fn end_if<R>(&self, panics: impl FnOnce() -> R) -> R {
        match catch_unwind(AssertUnwindSafe(panics)) {
            Ok(done) => done,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                // Without words it is the end of the job already, on its way.
                text.into_iter().for_each(|text| (self.settings.lost)(text));
                resume_unwind(panic)
            }
        }
    }

    /// What an entry is; a message that is left to do, with its buffer. `late` are those whose turn has come by it.
    fn sort<'n>(
        &'n self,
        node: &Node,
        entry: &Entry,
        early: &mut Early,
        late: &mut Vec<Vec<u8>>,
    ) -> Option<(usize, Message<'n>)> {
        let context = entry.context;
        if context.is_null() {
            return None;
        }
        // SAFETY: a context of ours, which lives as long as the endpoint, and whose word nobody changes.
        let word = unsafe { (*context).word };
        let which = (word >> 8) as usize;
        match word & 0xff {
            OF_BUFFER => {
                let buffer = which;
                // SAFETY: its completion has just been read, and it is left by whoever has dealt with the message.
                let bytes = unsafe { self.received(buffer, entry.len) };
                let message = self.read_message(node.ranks(), bytes).map(|message| self.hear(node, message));
                message.as_ref().filter(|m| m.net().is_some()).into_iter().for_each(|m| self.hold(m.cost()));
                let message = message.filter(|message| self.is_next(early, message)).and_then(|message| {
                    let left = self.take(node, message);
                    while let Some(bytes) = self.next_early(early, &message) {
                        let message = self.read_message(node.ranks(), &bytes).expect("it was read before");
                        if self.take(node, message).is_some() {
                            late.push(bytes);
                        }
                    }
                    left
                });
                match message {
                    Some(message) => Some((buffer, message)),
                    None => {
                        self.leave_buffer(buffer);
                        None
                    }
                }
            }
            OF_BOUNCE => {
                self.sent(which);
                None
            }
            OF_OP => {
                let i = self.completed(node, which);
                node.ring(node.ranks().near(self.first + i));
                None
            }
            _ => None,
        }
    }

    /// The buffer of a message that is longer than any of ours: it is a stray.
    fn too_long(&self, broken: &Broken) -> Option<usize> {
        if broken.err != FI_ETRUNC || broken.context.is_null() {
            return None;
        }
        // SAFETY: a context of ours, as in `sort`.
        let word = unsafe { (*broken.context).word };
        let buffer = (word & 0xff == OF_BUFFER).then_some((word >> 8) as usize)?;
        self.strays.fetch_add(1, Relaxed);
        Some(buffer)
    }

    /// What has failed, and with whom, if that is known.
    fn with_whom(&self, node: &Node, broken: &Broken) -> String {
        // SAFETY: null, or a context of ours, as in `sort`.
        let word = unsafe { broken.context.as_ref() }.map_or(0, |context| context.word);
        let which = (word >> 8) as usize;
        let (what, process) = match word & 0xff {
            OF_OP => ("a transfer with", self.partner(which)),
            OF_BOUNCE => ("a message to", self.bounces[which].process.load(Relaxed) as usize),
            _ => return broken.to_string(),
        };
        let (host, address) = (host(node, process), &self.addresses[process]);
        format!(
            "{what} process {process} on {host}, {address}: {broken}; that process has ended, or the link to its host is cut"
        )
    }

    /// The data of a put has taken a receive buffer.
    fn leave_taken(&self, entry: &Entry) {
        if !entry.context.is_null() {
            // SAFETY: the context of a buffer, as in `sort`.
            self.leave_buffer(unsafe { (*entry.context).word } as usize >> 8);
        }
    }

    /// Something is owed, after a full fence, and whoever owes it may go and compute: the thread does not sleep on.
    #[inline]
    pub(super) fn rouse(&self) {
        if self.nap.is_broken() {
            self.endpoint.wake();
        }
    }

    /// The network has failed.
    pub(super) fn broke(&self, why: &str) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.to_string());
        self.relief.take_over();
        self.endpoint.wake();
    }

    pub(super) fn why_broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the thread does.
    fn serve(&self, node: &Node) {
        let sum = |of: fn(&Desk) -> &AtomicU64| {
            self.desks.iter().fold(0u64, |sum, desk| sum.wrapping_add(of(desk).load(Relaxed)))
        };
        let counts = || (sum(|desk| &desk.looks), sum(|desk| &desk.posts));
        let mut last = counts();
        let mut heart = Heart::new(self, node.ranks());
        while !self.over.load(Acquire) {
            if let Some(why) = self.why_broken() {
                let end = Instant::now() + GRACE;
                while Instant::now() < end && !self.over.load(Acquire) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if !self.over.load(Acquire) {
                    (self.settings.lost)(&format!(
                        "the network between the nodes has failed: {why} ({})",
                        self.description()
                    ));
                }
                return;
            }
            if let Some(why) = heart.as_mut().and_then(|heart| self.beat(node, heart)) {
                return (self.settings.lost)(&why);
            }
            let now = counts();
            let before = std::mem::replace(&mut last, now);
            // Who only posts may not look for long.
            if now != before && !self.relief.doze(DOZE_NS) && now.0 != before.0 {
                continue;
            }
            if !self.settings.thread && !self.deserted.load(Acquire) {
                std::thread::sleep(SLEEP / 10);
                continue;
            }
            // There may always be more.
            (0..LONG).all(|_| self.poll(node));
            self.tell_ended(node.ranks());
            // What finds no room makes no event when there is some, and neither does a put into a FIFO.
            let sleeps = self.nap.begins(|| self.owes() || self.has_fifos());
            let came = self.endpoint.wait(if sleeps { SLEEP } else { SLEEP / 100 });
            self.nap.ends();
            if came && node.cores() == Cores::Own {
                self.stay(node);
            }
        }
    }

    /// Looks for a while, in the place of ranks that all sleep. Puts and gets of others are no event here, but take a look to be done.
    fn stay(&self, node: &Node) {
        let (begun, most) = (ticks(), STAY_US * ticks_per_us());
        while node.all_sleep() && ticks().wrapping_sub(begun) < most && !self.over.load(Relaxed) {
            self.poll(node);
        }
    }
}

/// The thread that makes progress; it ends when this is dropped.
#[derive(Debug)]
pub struct Serving {
    node: Arc<Node>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts it, where there are other nodes.
    pub fn start(node: &Arc<Node>) -> Result<Serving, String> {
        let thread = node.net().map(|_| {
            let node = node.clone();
            let thread = std::thread::Builder::new().name("partage-network".into());
            thread.spawn(move || {
                let net = node.net().expect("as above");
                (net.settings.enter)();
                if catch_unwind(AssertUnwindSafe(|| net.serve(&node))).is_err() {
                    (net.settings.lost)("the network's thread has panicked");
                }
            })
        });
        let thread = thread.transpose().map_err(|e| format!("cannot start the network's thread: {e}"))?;
        Ok(Serving { node: node.clone(), thread })
    }
}

impl Serving {
    /// The ranks of this process have come to their end: nobody else makes progress any more.
    pub fn alone(&self) {
        if let Some(net) = self.node.net() {
            net.deserted.store(true, Release);
            net.relief.take_over();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let (Some(net), Some(thread)) = (self.node.net(), self.thread.take()) {
            net.over.store(true, Release);
            net.relief.take_over();
            net.endpoint.wake();
            let _ = thread.join();
        }
    }
}

impl Seat {
    /// This rank is using the network, and will look soon: the thread may doze. (To post a long put takes as long as many
    /// looks.)
    #[inline]
    pub(super) fn is_at_it(&self, net: &Net) {
        one_more(&net.desks[self.i].posts);
    }

    /// One look of a rank that waits or polls.
    #[inline]
    pub(crate) fn look(&self, node: &Node) -> bool {
        let net = node.net().expect("a seat has its network");
        let times = match node.cores() {
            // Counted over all waits: there may be many short ones. Without a thread nobody looks for one that sleeps, which looks up seldom enough.
            cores if self.awaits_near.get() && net.settings.thread => {
                let (looks, waited) = (self.looks.get() + 1, self.waited.get().saturating_add(1));
                let first = if cores == Cores::Own { NEAR_LOOKS } else { NEAR_TURNS };
                self.waited.set(waited);
                if looks < if waited < first { first } else { LONG_NEAR_LOOKS } {
                    self.looks.set(looks);
                    return false;
                }
                self.looks.set(0);
                1
            }
            Cores::Own if self.awaits(net) => INSISTENT,
            _ => 1,
        };
        one_more(&net.desks[self.i].looks);
        node.toil().add(self.posting.take());
        (0..times).any(|_| net.poll(node))
    }

    /// This rank awaits another one of its node, as long as what this returns lives.
    pub(crate) fn awaits_near(&self) -> Near<'_> {
        self.waited.set(0);
        Near { flag: &self.awaits_near, before: self.awaits_near.replace(true) }
    }
}

/// Somebody awaits another rank of its node, as long as this lives.
#[derive(Debug)]
pub struct Near<'a> {
    flag: &'a Cell<bool>,
    before: bool,
}

impl Drop for Near<'_> {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}
