//! Progress: who runs what has arrived, and when it looks.
//!
//! A rank serves its own queues whenever it waits. If it has nothing to do it looks at the other ranks of its process
//! too, and serves those whose owners have not come for a while: two threads that really compete for one queue are ten
//! times slower than one. Nobody wakes it for that; where ranks have others to look after, they look up from their sleep
//! every [`LOOK_UP_NS`]. No lock is held while a handler runs.

use crate::am::{Arrival, Body, IN_BUFFER, Way};
use crate::ring::{BATCH, Batch, Message, WORDS};
use crate::shm::mail::{AM, CALL, Lent, Mail, OF_REPLIES};
use crate::shm::{Node, Seat};
use crate::sync::{full_fence, ticks};
use crate::wait::Cores;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::*;

/// A rank that keeps so many replies takes no more requests.
pub(super) const MOST_KEPT: usize = 64;
/// Requests that one visit serves, so that whoever waits also looks at what it waits for.
pub(super) const DRAIN: usize = 32;
/// Messages with fewer looks in vain between them are a stream.
const STREAM_LOOKS: u32 = 8;
/// How long the owner of a queue rests when it has served some of one. 100 are too few, with 300 round trips suffer.
const REST_NS: u64 = 180;
/// A rank that has not served its queue for this long is helped.
const HELP_AFTER_US: u64 = 10;
/// Every so many idle looks a rank looks at the others of its process; also if it has not looked for this long.
const HELP_EVERY: u32 = 16;
const HELP_AT_LEAST_US: u64 = 1000;
/// How often a rank that sleeps looks after the others of its process.
pub const LOOK_UP_NS: u64 = 10_000_000;

/// What has ended without a reply in one visit, counted when the source changes or the visit ends, however it ends.
struct Ended<'n> {
    mail: &'n Mail,
    target: usize,
    source: usize,
    n: u32,
}

impl Ended<'_> {
    #[inline(always)]
    fn one_more(&mut self, source: usize) {
        if source != self.source {
            self.count();
            self.source = source;
        }
        self.n += 1;
    }

    #[inline(always)]
    fn count(&mut self) {
        if self.n > 0 {
            self.mail.ended(AM, self.target, self.source, std::mem::take(&mut self.n));
        }
    }
}

impl Drop for Ended<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.count();
    }
}

impl Node {
    /// Serves the handlers' messages of the near rank `r`, of this process; `owner` says whether this is its own thread.
    #[inline(always)]
    pub(super) fn serve(&self, r: usize, owner: bool) -> usize {
        let letterbox = self.mail.letterbox(r);
        let mut served = 0;
        if !letterbox.replies[AM].is_empty() {
            served += self.serve_replies(r, owner);
        }
        for net in [AM, CALL] {
            if letterbox.kept_count[net].load(Relaxed) != 0 {
                served += usize::from(self.send_kept(net, r));
            }
        }
        if letterbox.kept_count[AM].load(Relaxed) < MOST_KEPT && !letterbox.requests[AM].is_empty() {
            served += self.serve_requests(r, owner);
        }
        served
    }

    #[inline]
    fn serve_requests(&self, r: usize, owner: bool) -> usize {
        let mut batch: Batch = [MaybeUninit::uninit(); BATCH];
        let mut served = 0;
        while served < DRAIN {
            // The first one by itself: to see whether there are more takes as long as a message takes from core to core,
            // and a reply would wait for that.
            let most = if served == 0 { 1 } else { BATCH };
            let taken = self.mail.letterbox(r).requests[AM].take(&mut batch, most);
            if taken.is_empty() {
                break;
            }
            let caught_up = taken.len() < most;
            served += taken.len();
            let mut ended = Ended { mail: &self.mail, target: r, source: 0, n: 0 };
            for message in taken {
                if !self.run_taken(r, message, Way::Queue) {
                    ended.one_more(message.head.source());
                }
            }
            if caught_up {
                break;
            }
        }
        if !owner && served > 0 {
            self.ring(r);
        }
        served
    }

    #[inline]
    fn serve_replies(&self, r: usize, owner: bool) -> usize {
        let mut batch: Batch = [MaybeUninit::uninit(); BATCH];
        let letterbox = self.mail.letterbox(r);
        // One by itself, as for requests; with the next look comes the next.
        let taken = letterbox.replies[AM].take(&mut batch, 1);
        for message in taken {
            self.run_taken(r, message, Way::None);
            letterbox.got[AM][message.head.source()].one_more(self.mail.solo);
        }
        if !owner && !taken.is_empty() {
            self.ring(r);
        }
        taken.len()
    }

    /// Runs the handler of a message that was taken; true if it has replied.
    #[inline(always)]
    fn run_taken(&self, r: usize, message: &Message, way: Way) -> bool {
        let head = message.head;
        let source = head.source();
        assert!(source < self.mail.peers.len(), "rank {r}: a message from rank {source}, which does not exist");
        // By their numbers in the job.
        let (target, from) = (self.ranks.member(r), self.ranks.member(source));
        let mut body = Body::Taken(message, None);
        let _lent;
        if head.length() == IN_BUFFER {
            let found =
                self.mail.find(source, if way == Way::None { OF_REPLIES + AM } else { AM }, message.words[WORDS - 1]);
            if let Some((buffer, len)) = found {
                buffer.prefetch(len);
                _lent = Lent { mail: &self.mail, owner: source, buffer };
            }
            body = match found {
                Some(found) => Body::Taken(message, Some(found)),
                None => {
                    Arrival::new(self, target, from, body, Way::None).bad(&"its payload is in no buffer");
                }
            };
        }
        let arrival = Arrival::new(self, target, from, body, way);
        match self.mail.table.get(head.handler()) {
            Some(handler) => handler.run(&arrival),
            None => arrival.bad(&format_args!("there is no handler {}", head.handler())),
        }
        arrival.is_answered()
    }

    /// Serves another rank of this process whose owner has not come for a while.
    #[cold]
    fn help(&self, me: usize, helper: &Helper, ticks_per_us: u64) -> bool {
        let now = ticks();
        // Who comes from its sleep does not wait to see whether an owner comes.
        let slept = now.wrapping_sub(helper.looked.replace(now)) > HELP_AT_LEAST_US * ticks_per_us;
        let mine = self.mail.first..self.mail.first + self.mail.boxes.len();
        for _ in 0..mine.len() {
            let r = mine.start + helper.next.get() % mine.len();
            if r == me || !self.has_mail(r) {
                helper.next.set(helper.next.get() + 1);
                continue;
            }
            let letterbox = self.mail.letterbox(r);
            let taken = letterbox.requests[AM].taken().wrapping_add(letterbox.replies[AM].taken());
            let (whose, seen, since) = helper.seen.get();
            if whose != r && !slept {
                // Seen for the first time: look again soon.
                helper.seen.set((r, taken, now));
                return false;
            }
            if !slept && seen == taken && now.wrapping_sub(since) < HELP_AFTER_US * ticks_per_us {
                return false;
            }
            helper.next.set(helper.next.get() + 1);
            helper.seen.set((usize::MAX, 0, 0));
            if !slept && seen != taken {
                // Its owner is there.
                continue;
            }
            let served = self.serve(r, false) > 0;
            // Its owner may have come meanwhile, found the queue locked and gone to sleep.
            full_fence();
            if self.has_mail(r) {
                self.mail.peers[r].bell().ring_after_fence();
            }
            return served;
        }
        false
    }

    /// Is there anything for rank `r` of this process that any thread may do?
    fn has_mail(&self, r: usize) -> bool {
        let letterbox = self.mail.letterbox(r);
        !letterbox.requests[AM].is_empty()
            || !letterbox.replies[AM].is_empty()
            || letterbox.kept_count.iter().any(|n| n.load(Relaxed) != 0)
    }
}

impl Seat {
    /// Looks whether there is anything to serve for this rank, and now and then for others of its process. If so, `some` calls
    /// [`serve_some`](Self::serve_some) with what it is given: out of line, so that the code is the same wherever a rank waits. `more` says that
    /// it has something to do besides what has arrived.
    #[inline(always)]
    pub fn serve(&self, more: bool, some: impl FnOnce(bool) -> bool) -> bool {
        let letters = self.far.as_ref().is_some_and(|far| far.has_letters(&self.node));
        let near = self.serve_near(more || letters, some);
        match &self.far {
            None => near,
            Some(far) => far.look(&self.node) | near,
        }
    }

    /// The same for handlers' messages only.
    #[inline(always)]
    pub fn serve_messages(&self) -> bool {
        self.serve(false, |more| self.serve_some_messages(more))
    }

    #[inline(never)]
    fn serve_some_messages(&self, more: bool) -> bool {
        self.serve_some(more, || false)
    }

    #[inline(always)]
    fn serve_near(&self, more: bool, some: impl FnOnce(bool) -> bool) -> bool {
        // What a waiting rank does most of the time, so it is short.
        match !more && self.outlet.rest.is_over() && self.own_letterbox().is_idle() {
            true => {
                self.outlet.rest.in_vain();
                self.outlet.can_help && self.help()
            }
            // What lies there may be what this wait does not take, as calls: then others' can be.
            false => some(more) || (self.outlet.can_help && self.help()),
        }
    }

    /// Serves this rank's handlers' messages; `also` serves its calls.
    #[inline(always)]
    pub fn serve_some(&self, more: bool, also: impl FnOnce() -> bool) -> bool {
        let rest = &self.outlet.rest;
        if !rest.is_over() {
            // Not idle: who is about to sleep looks again first.
            return true;
        }
        if !more && rest.is_long() && self.serve_one() {
            rest.served(self.outlet.ticks_per_us, self.node.cores);
            return true;
        }
        // Both, always: neither may starve the other.
        let mut served = self.node.serve(self.near, true);
        if more || self.own_letterbox().has_for_owner() {
            served += usize::from(also());
        }
        match served {
            0 => rest.in_vain(),
            // There may be more than one visit serves.
            DRAIN.. => {}
            _ => rest.served(self.outlet.ticks_per_us, self.node.cores),
        }
        served > 0
    }

    /// The first message after a while: somebody may wait for what follows from it, so nothing else is looked at. There was nothing else a
    /// look ago, and what came with it is seen by the next.
    #[inline(always)]
    fn serve_one(&self) -> bool {
        let (letterbox, mut batch) = (self.own_letterbox(), [MaybeUninit::uninit(); BATCH]);
        if let [message] = letterbox.replies[AM].take(&mut batch, 1) {
            self.node.run_taken(self.near, message, Way::None);
            letterbox.got[AM][message.head.source()].one_more(self.node.mail.solo);
            return true;
        }
        if letterbox.kept_count[AM].load(Relaxed) == 0
            && let [message] = letterbox.requests[AM].take(&mut batch, 1)
        {
            let mut ended = Ended { mail: &self.node.mail, target: self.near, source: 0, n: 0 };
            if !self.node.run_taken(self.near, message, Way::Queue) {
                ended.one_more(message.head.source());
            }
            return true;
        }
        false
    }

    #[inline]
    fn help(&self) -> bool {
        let (helper, ticks_per_us) = (&self.outlet.helper, self.outlet.ticks_per_us);
        helper.looks.set(helper.looks.get().wrapping_add(1));
        let due = || ticks().wrapping_sub(helper.looked.get()) > HELP_AT_LEAST_US * ticks_per_us;
        (helper.looks.get().is_multiple_of(HELP_EVERY) || due()) && self.node.help(self.near, helper, ticks_per_us)
    }
}

/// When the owner of queues looks at them again after it has served a stream. A look at a slot that a sender is about to
/// fill takes the line away from it: a receiver that always catches up makes a stream of messages several times slower.
/// So messages that come in quick succession, with few looks in vain between them, are let gather for a moment. Whoever
/// answers a message, or waits for an answer, does not see its next one sooner than that anyway.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// In ticks; 0: it looks now.
    until: Cell<u64>,
    /// Looks in vain since something was served.
    in_vain: Cell<u32>,
}

impl Rest {
    #[inline(always)]
    fn is_over(&self) -> bool {
        self.until.get() == 0 || self.look()
    }

    #[inline]
    fn look(&self) -> bool {
        // Also if the counter has gone back, as when a machine was moved.
        let over = self.until.get().wrapping_sub(ticks()) > u64::from(u32::MAX);
        if over {
            self.until.set(0);
        }
        over
    }

    /// Nothing was there.
    #[inline(always)]
    fn in_vain(&self) {
        self.in_vain.set(self.in_vain.get().saturating_add(1));
    }

    /// Has nothing come for longer than in a stream?
    #[inline(always)]
    fn is_long(&self) -> bool {
        self.in_vain.get() >= STREAM_LOOKS
    }

    /// Something was served. Ranks that share cores come back late enough.
    #[inline(always)]
    fn served(&self, ticks_per_us: u64, cores: Cores) {
        if self.in_vain.replace(0) < STREAM_LOOKS && cores == Cores::Own {
            self.until.set((ticks() + REST_NS * ticks_per_us / 1000).max(1));
        }
    }
}

/// What a rank remembers of those that it might help.
#[derive(Debug)]
pub(super) struct Helper {
    looks: Cell<u32>,
    /// When it looked last.
    looked: Cell<u64>,
    next: Cell<usize>,
    /// Whose queue was not empty, how far it had been taken, since when.
    seen: Cell<(usize, u64, u64)>,
}

impl Helper {
    pub fn new() -> Helper {
        let seen = Cell::new((usize::MAX, 0, 0));
        Helper { looks: Cell::new(0), looked: Cell::new(ticks()), next: Cell::new(0), seen }
    }
}
