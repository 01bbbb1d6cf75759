//! Credits: how much memory of a process the messages of other nodes may take, who may use how much of it, and how that is
//! lent to those who need more. The idea is that of GASNet's conduit for Portals (Bonachea, Hargrove, Welcome, Yelick, "Porting GASNet to Portals", 4.6 and 4.7).
//!
//! A credit stands for [`UNIT`] bytes at the target, and for one entry of its completion queue. A message costs as many as hold
//! it, rounded up to a power of two ([`Cost`]): its cost travels in four bits and comes back with its reply. From its
//! sending until it has ended it has its credits, wherever it is meanwhile: in the network, in the provider, out of turn, in a
//! rank's queue, or being handled. So what all sources together have is the most that a target can have to keep, and
//! that is what a user sets.
//!
//! # Lanes, grants, loans
//! A process's memory is divided into *lanes*: one for the requests to its handlers, which any of its threads serves, and one for the
//! calls to each of its ranks, which only that rank serves. Lanes lend each other nothing: a rank that takes no calls
//! holds up its own lane and no other. In a lane every source has a *grant* from the start, and the rest is the *reserve*
//! ([`divide`]). A source that found too few credits says so in the head of its next message, and the target
//! lends it as many as it has ([`Lender::wants`]). One whose message costs more than it has altogether asks, and waits
//! ([`Lender::needs`]). When the reserve is empty, the target recalls loans: of sources that have been idle all, of others what is above
//! an equal share; for a message that cannot go at all, whatever is needed. In static mode there is no reserve.
//!
//! # No credit is lost or made
//! Each is in one place: in a source's [`Purse`], with a message under way, in the target's reserve, or on its way as a loan or a return.
//! What is told between them are whole counts since the start (of what has ended, was lent, was recalled, was returned), so what is told
//! twice or overtaken does no harm. The target lowers its reserve before it tells of a loan, and raises it after it was told of a
//! return: what it has lent and granted is never more than the lane.
//!
//! # No deadlock
//! Who needs credits waits in the lender's queue, and is served in turn. Suppose that nobody were served any more. The reserve was at least the cost of the
//! longest message to begin with ([`divide`]), so the first in the queue lacks what others have borrowed, and all of
//! that is recalled as far as it lacks. A source returns what it does not use at once, and the rest when its messages end, which
//! they do as long as the lane's target serves it (handlers do not wait; replies take no credits). One exception: a source keeps
//! a loan that is enough for the message it was asked for until that message has gone. It goes at once, since its rank is trying again and again (but for
//! calls that called functions make, which go when their rank waits or polls: one that computes keeps its loan until then). So the
//! first is served, and by then every loan has been used at least once: nobody takes loans from each other in circles.
//! Those who want more but do not need it have no place in the queue, and get nothing while somebody is in it.
//!
//! # Memory ordering
//! A purse's `free` is only changed by atomic additions and exchanges; whoever gets credits out of it gets them alone. Who brings credits
//! home adds them and then looks whether a recall is open; who opens one says so, then exchanges `free`, at least by itself. Of the two
//! exchanges of `free` one is the later, and acquires what the other's thread did before: either the recall finds the credits, or
//! who brought them finds the recall open. What a message needs is not returned until it has gone, which its rank notes when the message may have ended
//! already; so who notes it looks itself what is to be returned. Whether credits are needed is read under the lock of the books: of the two that hold
//! it one is the later, and finds what the other has left.
//!
//! Does not contain: messages, and who sends them when (see `ofi::am`).

use crate::sync::{AtomicU32, Mutex, Ordering::*};
use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;

/// Bytes of memory that a credit stands for.
pub const UNIT: usize = 264;
/// Credits that the longest message costs.
pub const MOST: u32 = 256;
/// The most that a source is granted from the start, where there is a reserve.
const GRANT: u32 = 4 * MOST;

/// What a message costs: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost(u8);

impl Cost {
    /// Of anything of at most [`UNIT`] bytes.
    pub const LEAST: Cost = Cost(0);

    /// Of so many bytes.
    pub fn of(bytes: usize) -> Cost {
        Cost(bytes.div_ceil(UNIT).max(1).next_power_of_two().ilog2() as u8)
    }

    /// As it travels, in four bits.
    pub fn class(self) -> u8 {
        self.0
    }

    /// Out of those; none if no message costs that.
    pub fn from_class(class: u8) -> Option<Cost> {
        (1u32 << class.min(31) <= MOST).then_some(Cost(class))
    }

    /// In credits.
    #[inline]
    pub fn credits(self) -> u32 {
        1 << self.0
    }
}

/// May credits be lent?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// A grant for each source, and loans.
    #[default]
    Dynamic,
    /// Equal grants, and no loans.
    Static,
}

/// How a lane is divided among its sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Credits of each source from the start.
    pub grant: u32,
    /// The rest.
    pub reserve: u32,
}

/// The least bytes for a process with so many ranks, which so many send to.
pub fn least(ranks: usize, sources: usize, mode: Mode) -> u64 {
    let lane = match mode {
        Mode::Dynamic => sources as u64 + u64::from(MOST),
        Mode::Static => sources as u64 * u64::from(MOST),
    };
    2 * ranks as u64 * lane * UNIT as u64
}

/// How each lane of such a process is divided if it has so many bytes, at least the [`least`]: that of requests, which gets half, and those
/// of calls.
pub fn divide(bytes: u64, ranks: usize, sources: usize, mode: Mode) -> [Share; 2] {
    let half = bytes / UNIT as u64 / 2;
    let share = |lane: u64| {
        let (lane, sources) = (lane.min(1 << 30) as u32, sources.max(1) as u32);
        let grant = match mode {
            Mode::Dynamic => (lane.saturating_sub(MOST) / 2 / sources).clamp(1, GRANT),
            Mode::Static => lane / sources,
        };
        let rest = lane.saturating_sub(grant * sources);
        Share { grant, reserve: if mode == Mode::Static { 0 } else { rest } }
    };
    [share(half), share(half / ranks.max(1) as u64)]
}

/// What a source has for one lane. Its rank takes credits out; any thread of its process brings some.
#[derive(Debug)]
pub struct Purse {
    free: AtomicU32,
    /// What its grant and loans together must be for a message that waits; 0: none does. Written by the rank.
    need: AtomicU32,
    /// 1: a recall is open.
    recalled: AtomicU32,
    books: Mutex<Books>,
}

/// What a source was told of its loans, and has returned: whole counts.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    lent: u32,
    recalled: u32,
    returned: u32,
}

impl Purse {
    /// With a grant.
    pub fn new(grant: u32) -> Purse {
        let books = Mutex::new(Books::default());
        Purse { free: AtomicU32::new(grant), need: AtomicU32::new(0), recalled: AtomicU32::new(0), books }
    }

    /// Takes what a message costs, if it is there. Only the rank does.
    #[inline]
    pub fn take(&self, cost: Cost) -> bool {
        let credits = cost.credits();
        let mut free = self.free.load(Relaxed);
        while free >= credits {
            match self.free.compare_exchange_weak(free, free - credits, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(other) => free = other,
            }
        }
        false
    }

    /// The message that such credits were taken for has gone: who needed no more has what it needed. As [`bring`](Self::bring).
    #[inline]
    pub fn gone(&self, grant: u32, cost: Cost) -> Option<u32> {
        let need = self.need.load(Relaxed);
        if need == 0 || need > cost.credits() {
            return None;
        }
        self.need.store(0, Release);
        // It may have ended already, and its credits were not returned since it needed them.
        self.give_back(grant)
    }

    /// Brings credits home. Gives the whole count of returned ones if some are to be returned now.
    #[inline]
    pub fn bring(&self, grant: u32, credits: u32) -> Option<u32> {
        self.free.fetch_add(credits, AcqRel);
        if self.recalled.load(Acquire) == 0 { None } else { self.give_back(grant) }
    }

    /// The target tells how many it has lent and recalled altogether. As [`bring`](Self::bring).
    pub fn told(&self, grant: u32, lent: u32, recalled: u32) -> Option<u32> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let more = |to: u32, now: u32| Some(to.wrapping_sub(now)).filter(|&n| n as i32 > 0).unwrap_or(0);
        let loan = more(lent, books.lent);
        books.lent = books.lent.wrapping_add(loan);
        books.recalled = books.recalled.wrapping_add(more(recalled, books.recalled));
        if books.recalled != books.returned {
            self.recalled.store(1, Release);
        }
        drop(books);
        if loan > 0 {
            self.free.fetch_add(loan, AcqRel);
        }
        self.give_back(grant)
    }

    #[cold]
    fn give_back(&self, grant: u32) -> Option<u32> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let open = books.recalled.wrapping_sub(books.returned);
        let (borrowed, keeps) = (books.borrowed(), self.need.load(Acquire).saturating_sub(grant));
        // What is enough for a message that waits is kept until it has gone; what is not is of no use.
        let may = open.min(if borrowed >= keeps { borrowed - keeps } else { borrowed });
        // An exchange even if nothing is there: see the module's documentation.
        let mut free = self.free.fetch_add(0, AcqRel);
        let given = loop {
            let give = may.min(free);
            match self.free.compare_exchange_weak(free, free - give, AcqRel, Acquire) {
                Ok(_) => break give,
                Err(other) => free = other,
            }
        };
        books.returned = books.returned.wrapping_add(given);
        if books.recalled == books.returned {
            self.recalled.store(0, Release);
        }
        (given > 0).then_some(books.returned)
    }

    /// A message of this cost found too few: says whether it can go when others have ended, or what it needs, with the counts of returned and lent
    /// ones so far. Only the rank does.
    pub fn lacks(&self, grant: u32, cost: Cost) -> Option<Lack> {
        if self.need.load(Relaxed) < cost.credits() {
            self.need.store(cost.credits(), Release);
        }
        let books = *self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let need = self.need.load(Relaxed);
        (grant + books.borrowed() < need).then_some(Lack { need, returned: books.returned, lent: books.lent })
    }

    /// How many are here.
    #[cfg(test)]
    fn free(&self) -> u32 {
        self.free.load(Acquire)
    }
}

impl Books {
    fn borrowed(&self) -> u32 {
        self.lent.wrapping_sub(self.returned)
    }
}

/// What a source lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lack {
    /// What its grant and loans must be.
    pub need: u32,
    /// How many it has returned.
    pub returned: u32,
    /// How many it had been lent: it asks again if it lacks something and this has changed.
    pub lent: u32,
}

/// What a target has lent of one lane. Sources are numbers.
#[derive(Debug)]
pub struct Lender {
    share: Share,
    /// What is not lent.
    reserve: u32,
    loans: BTreeMap<usize, Loan>,
    /// Who waits, and what its grant and loans must be; one place each.
    waiting: VecDeque<(usize, u32)>,
}

/// Whole counts of one source.
#[derive(Clone, Copy, Debug, Default)]
struct Loan {
    lent: u32,
    recalled: u32,
    returned: u32,
}

impl Loan {
    fn has(&self) -> u32 {
        self.lent.wrapping_sub(self.returned)
    }

    /// What it has when it has returned what was recalled.
    fn keeps(&self) -> u32 {
        self.lent.wrapping_sub(self.recalled)
    }
}

/// Who is to be told of its loans, and how many were lent and recalled altogether.
pub type Tell = (usize, u32, u32);

impl Lender {
    /// Of a lane that is divided so.
    pub fn new(share: Share) -> Lender {
        Lender { share, reserve: share.reserve, loans: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Who has sent nothing while so many messages came is idle: the lane's credits have gone around meanwhile, and who has one
    /// would have used it.
    pub fn patience(&self) -> u32 {
        self.share.reserve
    }

    /// A source has said that it found too few credits: it is lent as many as it has, if they are there. `is_idle` says whether
    /// another has sent nothing for so [long](Self::patience).
    pub fn wants(&mut self, source: usize, is_idle: impl Fn(usize) -> bool) -> Vec<Tell> {
        // Something stays for who needs it.
        let spare = self.reserve.saturating_sub(MOST);
        let has = self.loans.entry(source).or_default().keeps();
        if !self.waiting.is_empty() || self.share.reserve <= MOST {
            return vec![];
        }
        let more = (self.share.grant + has).max(MOST);
        let mut told = vec![];
        let lent = more.min(spare);
        if lent > 0 {
            told.push(self.lend(source, lent));
        }
        if lent == more {
            return told;
        }
        let borrows = |(s, loan): &(&usize, &Loan)| **s == source || loan.keeps() > 0 && !is_idle(**s);
        let equal = (self.share.reserve - MOST) / self.loans.iter().filter(borrows).count() as u32;
        if has + lent < equal {
            for (&s, loan) in self.loans.iter_mut().filter(|(s, _)| **s != source) {
                let leave = if is_idle(s) { 0 } else { equal };
                if loan.keeps() > leave {
                    loan.recalled = loan.lent.wrapping_sub(leave);
                    told.push((s, loan.lent, loan.recalled));
                }
            }
        }
        told
    }

    /// A source cannot send before its grant and loans are so many; it is served in its turn.
    pub fn needs(&mut self, source: usize, credits: u32) -> Vec<Tell> {
        let credits = credits.min(MOST);
        match self.waiting.iter_mut().find(|w| w.0 == source) {
            Some(place) => place.1 = place.1.max(credits),
            None => self.waiting.push_back((source, credits)),
        }
        self.serve()
    }

    /// A source has returned so many altogether.
    pub fn returned(&mut self, source: usize, returned: u32) -> Vec<Tell> {
        let loan = self.loans.entry(source).or_default();
        let more = returned.wrapping_sub(loan.returned);
        // Told twice, or overtaken; or it never had so many.
        if more as i32 > 0 && more <= loan.has() {
            loan.returned = returned;
            self.reserve += more;
        }
        self.serve()
    }

    /// Serves those who wait, the first one first.
    fn serve(&mut self) -> Vec<Tell> {
        let mut told = vec![];
        while let Some(&(source, need)) = self.waiting.front() {
            let keeps = self.loans.entry(source).or_default().keeps();
            let lacks = need.saturating_sub(self.share.grant + keeps);
            if lacks > self.reserve {
                self.recall(source, lacks - self.reserve, &mut told);
                break;
            }
            self.waiting.pop_front();
            // If it lacks nothing, a loan is on its way to it.
            if lacks > 0 {
                told.push(self.lend(source, lacks));
            }
        }
        told
    }

    fn lend(&mut self, source: usize, credits: u32) -> Tell {
        self.reserve -= credits;
        let loan = self.loans.entry(source).or_default();
        loan.lent = loan.lent.wrapping_add(credits);
        (source, loan.lent, loan.recalled)
    }

    /// Sees to it that so many come back, of others than this one; from those who have most.
    fn recall(&mut self, source: usize, credits: u32, told: &mut Vec<Tell>) {
        let open = self.loans.values().map(|loan| loan.has() - loan.keeps()).sum::<u32>();
        let mut lacks = credits.saturating_sub(open);
        let mut others: Vec<_> = self.loans.iter_mut().filter(|(s, _)| **s != source).collect();
        others.sort_by_key(|(_, loan)| std::cmp::Reverse(loan.keeps()));
        for (&s, loan) in others {
            let back = lacks.min(loan.keeps());
            if back == 0 {
                break;
            }
            loan.recalled = loan.recalled.wrapping_add(back);
            lacks -= back;
            told.push((s, loan.lent, loan.recalled));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn costs_hold_what_they_are_for() {
        assert_eq!((Cost::of(0), Cost::of(UNIT)), (Cost::LEAST, Cost::LEAST));
        for bytes in (1..=UNIT * MOST as usize).step_by(131) {
            let cost = Cost::of(bytes);
            assert!(cost.credits() as usize * UNIT >= bytes && (cost.credits() as usize) < 2 * bytes.div_ceil(UNIT));
            assert_eq!(Cost::from_class(cost.class()), Some(cost));
        }
        assert_eq!(
            (Cost::of(UNIT * MOST as usize).credits(), Cost::from_class(9), Cost::from_class(15)),
            (MOST, None, None)
        );
    }

    #[test]
    fn what_is_granted_and_lent_fits_into_what_is_set() {
        for mode in [Mode::Dynamic, Mode::Static] {
            for (ranks, sources) in [(1, 1), (1, 63), (8, 56), (3, 1000), (64, 4096)] {
                let least = least(ranks, sources, mode);
                for bytes in [least, least + 1, 2 * least, least + (32 << 20), 1 << 37] {
                    let [requests, calls] = divide(bytes, ranks, sources, mode);
                    let whole = |s: Share| u64::from(s.grant) * sources as u64 + u64::from(s.reserve);
                    let all = (whole(requests) + ranks as u64 * whole(calls)) * UNIT as u64;
                    assert!(all <= bytes, "{ranks} ranks, {sources} sources, {bytes} bytes: {all}");
                    for share in [requests, calls] {
                        let (longest, granted) = (share.reserve >= MOST, share.grant >= MOST);
                        assert!(share.grant > 0 && if mode == Mode::Static { granted } else { longest }, "{share:?}");
                    }
                }
            }
        }
    }

    fn random(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A lane with its sources, and a network that brings what is told in any order, and some of it twice.
    struct World {
        share: Share,
        lender: Lender,
        purses: Vec<Purse>,
        /// What each is about to send, and has asked for.
        next: Vec<Option<Cost>>,
        /// What it has just sent, and has not noted yet: it may end before.
        gone: Vec<Option<Cost>>,
        asked: Vec<Option<Lack>>,
        wants: Vec<bool>,
        sent: Vec<u32>,
        under_way: Vec<(usize, Cost)>,
        to_target: Vec<(usize, u32, u32)>,
        to_sources: Vec<Tell>,
        now: u32,
        seen: Vec<u32>,
        seed: u64,
    }

    impl World {
        fn new(sources: usize, share: Share, seed: u64) -> World {
            World {
                share,
                lender: Lender::new(share),
                purses: (0..sources).map(|_| Purse::new(share.grant)).collect(),
                next: vec![None; sources],
                gone: vec![None; sources],
                asked: vec![None; sources],
                wants: vec![false; sources],
                sent: vec![0; sources],
                under_way: vec![],
                to_target: vec![],
                to_sources: vec![],
                now: 0,
                seen: vec![0; sources],
                seed,
            }
        }

        fn random(&mut self, n: usize) -> usize {
            random(&mut self.seed) as usize % n.max(1)
        }

        fn returns(&mut self, s: usize, returned: Option<u32>) {
            self.to_target.extend(returned.map(|returned| (s, returned, 0)));
        }

        /// A source tries to send what it is about to.
        fn try_send(&mut self, s: usize) {
            if let Some(cost) = self.gone[s].take() {
                let returned = self.purses[s].gone(self.share.grant, cost);
                return self.returns(s, returned);
            }
            let Some(cost) = self.next[s] else { return };
            let purse = &self.purses[s];
            if purse.take(cost) {
                self.gone[s] = Some(cost);
                self.under_way.push((s, cost));
                (self.next[s], self.sent[s]) = (None, self.sent[s] + 1);
                (self.now, self.seen[s]) = (self.now + 1, self.now + 1);
                if std::mem::take(&mut self.wants[s]) {
                    let (now, seen, patience) = (self.now, &self.seen, self.lender.patience());
                    self.to_sources.extend(self.lender.wants(s, |s| now - seen[s] > patience));
                }
                return;
            }
            self.wants[s] = true;
            let Some(lack) = purse.lacks(self.share.grant, cost) else { return };
            if self.asked[s].is_none_or(|before| before.lent != lack.lent || before.need < lack.need) {
                self.asked[s] = Some(lack);
                self.to_target.push((s, lack.returned, lack.need));
            }
        }

        /// Something happens.
        fn step(&mut self) {
            let (kind, again) = (self.random(4), self.random(8) == 0);
            match kind {
                0 if !self.under_way.is_empty() => {
                    let i = self.random(self.under_way.len());
                    let (s, cost) = self.under_way.swap_remove(i);
                    let returned = self.purses[s].bring(self.share.grant, cost.credits());
                    self.returns(s, returned);
                }
                1 if !self.to_target.is_empty() => {
                    let i = self.random(self.to_target.len());
                    let (s, returned, need) = self.to_target.swap_remove(i);
                    if again {
                        self.to_target.push((s, returned, 0));
                    }
                    self.to_sources.extend(self.lender.returned(s, returned));
                    if need > 0 {
                        self.to_sources.extend(self.lender.needs(s, need));
                    }
                }
                2 if !self.to_sources.is_empty() => {
                    let i = self.random(self.to_sources.len());
                    let (s, lent, recalled) = self.to_sources.swap_remove(i);
                    if again {
                        self.to_sources.push((s, lent, recalled));
                    }
                    let returned = self.purses[s].told(self.share.grant, lent, recalled);
                    self.returns(s, returned);
                }
                _ => {
                    let s = self.random(self.purses.len());
                    self.try_send(s);
                }
            }
        }

        /// No credit is lost or made, and no more are given than there are.
        fn check(&self) {
            let lent: u32 = self.lender.loans.values().map(Loan::has).sum();
            assert_eq!(self.lender.reserve + lent, self.share.reserve);
            for (s, purse) in self.purses.iter().enumerate() {
                let of = |way: &&(usize, Cost)| way.0 == s;
                let under_way: u32 = self.under_way.iter().filter(of).map(|way| way.1.credits()).sum();
                let has = purse.free() + under_way;
                let books = *purse.books.lock().unwrap();
                assert_eq!(has, self.share.grant + books.borrowed(), "source {s}");
                let loan = self.lender.loans.get(&s).copied().unwrap_or_default();
                assert!(has <= self.share.grant + loan.has(), "source {s} has more than it was given");
            }
        }
    }

    /// Any traffic of any costs: every message goes in the end, whatever order things are told in.
    #[test]
    fn whoever_needs_credits_gets_them() {
        for seed in 1..40u64 {
            let (sources, reserve) =
                ([2, 3, 9, 30][seed as usize % 4], MOST + [0, 1, 300, 5000][seed as usize / 4 % 4]);
            let share = Share { grant: [1, 2, 70][seed as usize % 3], reserve };
            let mut world = World::new(sources, share, seed * 0x9e37_79b9);
            let each = 60;
            for _ in 0..2_000_000 {
                if world.sent.iter().all(|&n| n == each) {
                    break;
                }
                let s = world.random(sources);
                if world.next[s].is_none() && world.sent[s] < each {
                    let class = if world.random(3) == 0 { 8 } else { world.random(9) as u8 };
                    world.next[s] = Cost::from_class(class);
                }
                world.step();
                world.check();
            }
            assert_eq!(world.sent, vec![each; sources], "seed {seed}: {:?}", world.lender);
        }
    }

    /// Everything that is told arrives, and everything that is under way ends.
    fn settle(world: &mut World) {
        for _ in 0..50_000 {
            world.step();
        }
        world.check();
    }

    /// One source sends much, then another; what the first has borrowed goes to the second.
    #[test]
    fn loans_follow_who_sends() {
        let share = Share { grant: 4, reserve: 8 * MOST };
        let mut world = World::new(3, share, 77);
        let has = |world: &World, s: usize| world.lender.loans.get(&s).map_or(0, Loan::has);
        let busy = |world: &mut World, who: &[usize]| {
            for i in 0..400_000 {
                if i % 1000 == 0 {
                    world.check();
                }
                for &s in who {
                    world.next[s] = world.next[s].or(Some(Cost::LEAST));
                }
                // What is under way stays so for a while, or nobody would stall.
                if world.under_way.len() < 2 * share.reserve as usize && world.random(4) > 0 {
                    who.iter().for_each(|&s| world.try_send(s));
                } else {
                    world.step();
                }
            }
        };
        busy(&mut world, &[0]);
        assert!(has(&world, 0) > 5 * MOST, "{:?}", world.lender);
        busy(&mut world, &[1]);
        assert!(has(&world, 1) > 5 * MOST && has(&world, 0) < MOST, "{:?}", world.lender);
        busy(&mut world, &[0, 1, 2]);
        let third = (share.reserve - MOST) / 3;
        (0..3).for_each(|s| assert!(has(&world, s) > third / 2 && has(&world, s) < 2 * third, "{:?}", world.lender));
        world.next.fill(None);
        settle(&mut world);
        assert!(world.under_way.is_empty() && world.lender.waiting.is_empty());
    }

    #[test]
    fn nobody_returns_what_it_never_had() {
        let mut lender = Lender::new(Share { grant: 1, reserve: 2 * MOST });
        assert_eq!(lender.needs(3, MOST), [(3, MOST - 1, 0)]);
        assert_eq!((lender.returned(3, MOST).len(), lender.returned(5, 7).len()), (0, 0));
        assert_eq!(lender.reserve, MOST + 1);
        lender.returned(3, MOST - 1);
        assert_eq!(lender.reserve, 2 * MOST);
        assert_eq!(lender.needs(4, u32::MAX), [(4, MOST - 1, 0)], "no message costs more");
    }

    #[test]
    fn in_static_mode_nothing_is_lent() {
        let mut lender = Lender::new(Share { grant: MOST, reserve: 0 });
        assert!(lender.wants(0, |_| true).is_empty() && lender.needs(0, MOST).is_empty());
    }
}

/// The real purse: its rank sends while other threads bring credits home, lend and recall.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Whichever comes first, who brings credits or who recalls them, they are returned.
    #[test]
    fn loom_a_recall_finds_what_comes_home() {
        loom::model(|| {
            let purse = Arc::new(Purse::new(1));
            assert_eq!(purse.told(1, 1, 0), None);
            assert!(purse.take(Cost::of(2 * UNIT)));
            let home = {
                let purse = purse.clone();
                thread::spawn(move || purse.bring(1, 2))
            };
            let recalled = purse.told(1, 1, 1);
            let brought = home.join().unwrap();
            assert!(recalled.is_some() != brought.is_some(), "{recalled:?} {brought:?}");
            assert_eq!((recalled.or(brought), purse.free()), (Some(1), 1));
        });
    }

    /// Two tell of the same loan and recall while the rank sends: everything happens once.
    #[test]
    fn loom_what_is_told_twice_happens_once() {
        loom::model(|| {
            let purse = Arc::new(Purse::new(1));
            let tell = |lent, recalled| {
                let purse = purse.clone();
                thread::spawn(move || purse.told(1, lent, recalled))
            };
            let told = tell(2, 1);
            let mut under_way = u32::from(purse.take(Cost::LEAST));
            let again = purse.told(1, 2, 0);
            under_way += u32::from(purse.take(Cost::LEAST));
            let returned = told.join().unwrap().or(again);
            let books = *purse.books.lock().unwrap();
            assert_eq!((books.lent, books.recalled), (2, 1));
            assert_eq!(returned.unwrap_or(0), books.returned);
            assert_eq!(purse.free() + under_way + books.returned, 3);
            // What could not be returned then is when it comes home.
            let later = purse.bring(1, under_way);
            assert_eq!(returned.or(later), Some(1));
            assert_eq!(purse.free(), 2);
        });
    }

    /// A loan that was asked for is not taken away before its message has gone.
    #[test]
    fn loom_a_recall_leaves_what_is_needed() {
        loom::model(|| {
            let purse = Arc::new(Purse::new(1));
            let cost = Cost::of(2 * UNIT);
            assert!(!purse.take(cost));
            assert_eq!(purse.lacks(1, cost), Some(Lack { need: 2, returned: 0, lent: 0 }));
            let told = {
                let purse = purse.clone();
                thread::spawn(move || (purse.told(1, 1, 0), purse.told(1, 1, 1)))
            };
            let mut gone = false;
            for _ in 0..2 {
                if !gone && purse.take(cost) {
                    assert_eq!(purse.gone(1, cost), None);
                    gone = true;
                }
            }
            let (first, second) = told.join().unwrap();
            assert_eq!((first, second), (None, None));
            if !gone {
                assert!(purse.take(cost), "it was lent for this");
                purse.gone(1, cost);
            }
            assert_eq!((purse.bring(1, 2), purse.free()), (Some(1), 1));
        });
    }

    /// A message that needed a loan ends, and the loan is recalled, before its rank has noted that it has gone: whoever is the last returns it.
    #[test]
    fn loom_what_was_needed_is_returned_when_it_has_gone() {
        loom::model(|| {
            let purse = Arc::new(Purse::new(1));
            let cost = Cost::of(2 * UNIT);
            assert!(purse.lacks(1, cost).is_some());
            assert_eq!(purse.told(1, 1, 0), None);
            assert!(purse.take(cost));
            let [brought, recalled] =
                [|purse: &Purse| purse.bring(1, 2), |purse: &Purse| purse.told(1, 1, 1)].map(|part| {
                    let purse = purse.clone();
                    thread::spawn(move || part(&purse))
                });
            let gone = purse.gone(1, cost);
            let all = [gone, brought.join().unwrap(), recalled.join().unwrap()];
            assert_eq!((all.into_iter().flatten().collect::<Vec<_>>(), purse.free()), (vec![1], 1));
        });
    }
}
