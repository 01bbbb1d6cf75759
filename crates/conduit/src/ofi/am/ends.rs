//! Credits and ends: what a message costs, when it has ended, and who is told of it.
//!
//! A request to a process or a call to a rank costs [credits](crate::credits) of its length, and has them until it has ended.
//! Everything is counted in credits. A message ends by its reply, which the source counts when it has handled it (`got`), or
//! without one, which the target counts ([`Owing`](crate::owing)) and tells: with the next message to that source, or in one of its own when
//! it has looked through what had come and somebody has looked again in vain a few times, or when there are `UNTOLD`. Told is
//! the whole count, so what is told twice or overtaken does no harm. A rank is quiet when it has sent as many as have been
//! told and got.
//!
//! Nobody waits for ever for what is held back: who is owed word is on a list until it is told. A rank that waits looks again,
//! and one that computes leaves it to the thread; without a thread nothing is held back but for messages to go with.
//!
//! Loans and recalls are told together with what has ended, needs and returns in messages of their own (`CREDIT`). None of
//! these takes credits: there is one for each message that has ended, or for each change of a loan.

use super::super::letters::FarLetters;
use super::super::{Net, Seat};
use super::INJECTED;
use super::wire::{CREDIT, ENDED, Head, REPLY, RESULT, Wire};
use crate::credits::{Cost, Lack, Lender, Purse, Tell};
use crate::ranks::Ranks;
use crate::record::Site;
use crate::shm;
use crate::shm::mail::{AM, CALL};
use crate::sync::raise;
use crate::wait::{Aborted, Step};
use bytemuck::bytes_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{MutexGuard, PoisonError};

/// So many messages that have ended are not kept from their sources.
pub(in crate::ofi) const UNTOLD: u32 = 16;

/// What a process keeps for one of its ranks; any of its threads may use it.
#[derive(Debug)]
pub(in crate::ofi) struct Desk {
    /// What ended without a reply, as far as was told: requests by process, calls by rank.
    silent: [Box<[AtomicU32]>; 2],
    /// The same for those that were replied to, as soon as the reply was handled.
    got: [Box<[AtomicU32]>; 2],
    /// What it may send, and what it was granted at first.
    purses: [Box<[(Purse, u32)]>; 2],
    /// How often the rank has looked at the network, and has given it something to do.
    pub looks: AtomicU64,
    pub posts: AtomicU64,
    /// Calls to it, and results of its own.
    pub letters: FarLetters,
}

impl Desk {
    /// By process, and by rank: how many credits it is granted.
    pub fn new(grants: [&[u32]; 2]) -> Desk {
        let counts = || grants.map(|g| g.iter().map(|_| AtomicU32::new(0)).collect());
        let purses = grants.map(|g| g.iter().map(|&grant| (Purse::new(grant), grant)).collect());
        let (looks, posts, letters) = Default::default();
        Desk { silent: counts(), got: counts(), purses, looks, posts, letters }
    }

    fn over(&self, net: usize, whose: usize) -> u32 {
        self.silent[net][whose].load(Acquire).wrapping_add(self.got[net][whose].load(Acquire))
    }
}

/// Whose count of a rank's messages it is: requests are served by any thread of their process, calls by their rank only.
pub(super) fn whose(ranks: &Ranks, net: usize, rank: usize) -> usize {
    if net == AM { ranks.place(rank).0 } else { rank }
}

/// What a process counts for a source on another node.
#[derive(Debug, Default)]
pub(in crate::ofi) struct Account {
    /// Credits that were lent to it and recalled.
    lent: AtomicU32,
    recalled: AtomicU32,
    /// How many messages its lane had had when its last one came. Used by whoever reads the queue.
    seen: AtomicU32,
    /// How many slots of its FIFO have been taken.
    pub taken: AtomicU64,
    /// The number of the next message that is to be taken. Used by whoever reads the queue.
    pub(super) next: [AtomicU32; 2],
}

impl Net {
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
        let at = self.account(net, from, to);
        let number = self.owing.count(at);
        let head = Head { number, cost, ..self.head(kind, from, to, handler) };
        self.held.fetch_sub(cost.credits(), Relaxed);
        self.post_or_keep(ranks.place(to).0, head, args, payload);
        self.owing.told(at, number);
    }

    /// Sends a request or call if there is room, and with it what `head.target` has not been told of its requests, unless that alone
    /// would make it too long to be injected.
    pub(super) fn post_with_ended(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) -> bool {
        let at = head.target as usize;
        let len = size_of::<Wire>() + args.len().next_multiple_of(8) + payload.len().next_multiple_of(8);
        let least = self.endpoint.injects().min(INJECTED);
        let fits = len > least || len + size_of::<u64>() <= least;
        let ended = self.owing.news(at).filter(|_| fits);
        let posted = self.post(process, Head { ended, ..head }, args, payload);
        if let Some(ended) = ended.filter(|_| posted) {
            self.owing.told(at, ended);
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
    pub(in crate::ofi) fn hold(&self, cost: Cost) {
        let held = self.held.fetch_add(cost.credits(), Relaxed).wrapping_add(cost.credits());
        if held > self.most_held.load(Relaxed) {
            self.most_held.fetch_max(held, Relaxed);
        }
    }

    /// A message of `source` to `target`, a rank of this process, has ended without a reply; it will be told.
    pub(crate) fn ended(&self, net: usize, target: usize, source: usize, cost: Cost) {
        // Before anybody is told, who may send again.
        self.held.fetch_sub(cost.credits(), Relaxed);
        if self.owing.ended(self.account(net, target, source), cost.credits()) {
            self.rouse();
        }
    }

    /// Who has this account is to be told what was written before, in a message of its own.
    pub(in crate::ofi) fn tell_more(&self, at: usize) {
        if self.owing.more(at) {
            self.rouse();
        }
    }

    /// Tells sources what has ended.
    pub(in crate::ofi) fn tell_ended(&self, ranks: &Ranks) {
        if !self.owing.is_any() {
            return;
        }
        self.in_vain.store(0, Relaxed);
        let each = self.extents.len();
        for at in self.owing.take() {
            let Some(number) = self.owing.word(at) else { continue };
            let (account, source) = (&self.accounts[at], at % each);
            let (net, target) = if at < each { (AM, self.first) } else { (CALL, self.first + at / each - 1) };
            let head = Head { number, ..self.head(ENDED, target, source, net as u16) };
            let (taken, lent) = (account.taken.load(Acquire), account.lent.load(Acquire));
            let loans = u64::from(lent) | u64::from(account.recalled.load(Acquire)) << 32;
            let args = [loans, taken];
            let args = if args == [0, 0] { &[] } else { bytes_of(&args) };
            self.post_or_keep(ranks.place(source).0, head, args, &[]);
        }
    }

    /// What a source is told of its messages: how many have ended, and what it is lent.
    pub(super) fn hear_of_ends(&self, ranks: &Ranks, head: Head, args: &[u8]) {
        let (source, target) = (head.source as usize, head.target as usize);
        let net = usize::from(head.handler).min(CALL);
        self.was_told(ranks, net, target, source, head.number);
        let Ok([loans, taken]) = bytemuck::try_pod_read_unaligned::<[u64; 2]>(args) else { return };
        self.were_taken(target, ranks.place(source).0, taken);
        let (purse, grant) = &self.desks[target - self.first].purses[net][whose(ranks, net, source)];
        if let Some(returned) = purse.told(*grant, loans as u32, (loans >> 32) as u32) {
            self.say_returned(ranks, net, target, source, returned);
        }
    }

    /// What a source has returned, and needs.
    pub(super) fn hear_of_needs(&self, head: Head, args: &[u8]) {
        let Ok([returned, need]) = bytemuck::try_pod_read_unaligned::<[u32; 2]>(args) else { return };
        let source = head.source as usize;
        let lane = self.lane(usize::from(head.handler).min(CALL), head.target as usize);
        let mut lender = self.lender(lane);
        let mut tell = lender.returned(source, returned);
        if need > 0 {
            tell.extend(lender.needs(source, need));
        }
        drop(lender);
        self.tell_of_loans(lane, tell);
    }

    /// Sources of a lane are to be told of their loans.
    fn tell_of_loans(&self, lane: usize, tell: Vec<Tell>) {
        for (source, lent, recalled) in tell {
            let at = self.extents.len() * lane + source;
            // Who reads one of them before the other is raised tells both again: it is listed after that.
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

    /// A reply or result from `source` to a rank of this process, which answers a message of this cost, has been dealt with.
    pub(crate) fn got(&self, ranks: &Ranks, net: usize, rank: usize, (source, cost): (usize, Cost)) {
        self.desks[rank - self.first].got[net][whose(ranks, net, source)].fetch_add(cost.credits(), Release);
        self.bring(ranks, net, rank, source, cost.credits());
    }

    /// A request or call is taken: its lane has had one more, and its source may want a loan.
    pub(super) fn was_sent(&self, net: usize, head: Head) {
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

    pub(super) fn was_told(&self, ranks: &Ranks, net: usize, rank: usize, source: usize, ended: u32) {
        let more = raise(&self.desks[rank - self.first].silent[net][whose(ranks, net, source)], ended);
        if more > 0 {
            self.bring(ranks, net, rank, source, more);
        }
    }
}

impl Seat {
    /// Takes the credits for a message; if there are too few, the target hears of it.
    #[inline]
    pub(in crate::ofi) fn takes(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost) -> bool {
        let (purse, grant) = &net.desks[self.i].purses[lane][whose(ranks, lane, to)];
        let takes = purse.take(cost);
        if !takes {
            self.lacks(net, ranks, (lane, to), cost, (purse, *grant));
        }
        takes
    }

    /// Takes them back: it was not sent.
    pub(in crate::ofi) fn gives(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost) {
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

    /// One more message is under way to this rank.
    #[inline]
    pub(in crate::ofi) fn has_sent(&self, net: &Net, ranks: &Ranks, (lane, to): (usize, usize), cost: Cost) {
        let whose = whose(ranks, lane, to);
        let (purse, grant) = &net.desks[self.i].purses[lane][whose];
        if let Some(returned) = purse.gone(*grant, cost) {
            net.say_returned(ranks, lane, self.rank, to, returned);
        }
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
    pub(in crate::ofi) fn awaits(&self, net: &Net) -> bool {
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

    /// Waits until everything that this rank has started, and has sent by nets that are meant, has ended.
    pub(crate) fn quiet(
        &self,
        seat: &shm::Seat,
        site: Site,
        is_meant: impl Fn(usize) -> bool + Copy,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        let (_, net) = seat.beyond();
        let look = || {
            self.not_quiet.borrow_mut().retain(|&(lane, whose)| {
                let quiet = self.is_quiet_to(net, lane, whose);
                self.listed[lane][whose].set(!quiet);
                !quiet
            });
            let any = self.not_quiet.borrow().iter().any(|&(lane, _)| is_meant(lane));
            match any || self.started.get() != net.ops[self.i].completed() {
                false => Step::Done,
                true if progress() => Step::Busy,
                true => Step::Idle,
            }
        };
        seat.waiter().until(|| site, look)
    }
}
