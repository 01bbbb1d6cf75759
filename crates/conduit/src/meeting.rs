//! Barriers between nodes: what the last rank to arrive on a node sets off.
//!
//! Dissemination (Hensgen, Finkel, Manber 1988): in round k of ⌈log₂ N⌉ a node tells the one 2ᵏ places further what it
//! knows, and waits for what the one 2ᵏ places before it tells. What is known is a [`Digest`]: merging one twice changes
//! nothing, so N need not be a power of two.
//!
//! # Who does it
//! A [`Meeting`] lies in memory that all processes of the node share. Whoever makes an event (the node has arrived; a
//! message of some round has come) calls [`arrive`](Meeting::arrive) or [`receive`](Meeting::receive) and then carries on
//! with all steps that have become possible, sending from its own process: no rank and no process is needed for it.
//!
//! # Memory ordering
//! `step` is a lock with a state: its low bit says that somebody carries on. Only that one touches `known`; the next one
//! acquires what it released. An event is published by a release store of its epoch after its digest, and acquired before
//! the digest is read. Whoever has heard something publishes it, fences and then looks at `step`; whoever lets `step` go
//! fences and then looks for events: one of the two sees the other (store buffering), so no event is left lying. (Nobody
//! can be at the first step but who has arrived, so an arrival needs no fence.)
//! Two slots per round, for even and odd epochs, are enough: a node that is two epochs ahead has heard, directly or not,
//! that this one has come to the epoch between, so this one has done with the first.

use crate::barrier::Tag;
use crate::sync::{AtomicU64, Ordering::*, Plain, full_fence};

/// The most rounds: of a million nodes.
pub const ROUNDS: usize = 20;

/// What ranks that meet have said, as much as it takes to judge them: merging is associative, commutative and idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// The smallest.
    pub aux: u64,
    /// The lowest rank that came without a tag.
    pub plain: Option<u32>,
    /// The lowest rank that came with one.
    pub first: Option<(u32, Tag)>,
    /// The lowest rank whose tag is another than that.
    pub odd: Option<(u32, Tag)>,
}

/// What became of a meeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Tags agreed.
    Agreed {
        /// The smallest `aux`.
        aux: u64,
        /// What all said who did not come [`Plain`](Tag::Plain).
        tag: Tag,
    },
    /// The tags of these two ranks did not agree: the first that came with one, and the lowest that does not agree with it.
    Disagreed([(u32, Tag); 2]),
}

impl Digest {
    /// Of one rank.
    pub fn of(rank: u32, tag: Tag, aux: u64) -> Digest {
        match tag {
            Tag::Plain => Digest { aux, plain: Some(rank), first: None, odd: None },
            _ => Digest { aux, plain: None, first: Some((rank, tag)), odd: None },
        }
    }

    /// Of all of both.
    pub fn merge(self, other: Digest) -> Digest {
        let lower = |a: Option<(u32, Tag)>, b: Option<(u32, Tag)>| match (a, b) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        };
        let first = lower(self.first, other.first);
        let differs = |who: Option<(u32, Tag)>| who.filter(|w| first.is_some_and(|f| f.1 != w.1));
        let odd = [self.first, self.odd, other.first, other.odd].into_iter().map(differs).fold(None, lower);
        let plain = [self.plain, other.plain].into_iter().flatten().min();
        Digest { aux: self.aux.min(other.aux), plain, first, odd }
    }

    /// Has nobody come with anything?
    pub fn is_bare(&self) -> bool {
        self.first.is_none() && self.aux == u64::MAX
    }

    /// The same for all who have the same digest.
    pub fn verdict(&self) -> Verdict {
        let Some(first) = self.first else { return Verdict::Agreed { aux: self.aux, tag: Tag::Plain } };
        let plain = self.plain.filter(|_| !first.1.agrees(Tag::Plain)).map(|rank| (rank, Tag::Plain));
        match [self.odd, plain].into_iter().flatten().min_by_key(|w| w.0) {
            None => Verdict::Agreed { aux: self.aux, tag: first.1 },
            Some(odd) if odd.0 < first.0 => Verdict::Disagreed([odd, first]),
            Some(odd) => Verdict::Disagreed([first, odd]),
        }
    }

    /// As it travels.
    pub fn to_words(self) -> [u64; 6] {
        let rank = |who: Option<u32>, kind: u64| who.map_or(0, |r| (u64::from(r) + 1) << 8 | kind);
        let both = |who: Option<(u32, Tag)>| {
            let (kind, value) = who.map_or((0, 0), |w| w.1.encode());
            [rank(who.map(|w| w.0), kind), value]
        };
        let ([a, b], [c, d]) = (both(self.first), both(self.odd));
        [self.aux, rank(self.plain, 0), a, b, c, d]
    }

    /// Out of any words.
    pub fn from_words([aux, plain, a, b, c, d]: [u64; 6]) -> Digest {
        let rank = |word: u64| (word >> 8).checked_sub(1).map(|r| r as u32);
        let both = |word: u64, value| rank(word).map(|r| (r, Tag::decode(word & 0xff, value)));
        Digest { aux, plain: rank(plain), first: both(a, b), odd: both(c, d) }
    }
}

#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
struct Words([Plain; 6]);

impl Words {
    fn set(&self, digest: Digest) {
        self.0.iter().zip(digest.to_words()).for_each(|(place, word)| place.set(word));
    }

    fn get(&self) -> Digest {
        Digest::from_words(std::array::from_fn(|i| self.0[i].get()))
    }
}

/// What was heard in one round.
#[cfg_attr(not(loom), repr(C, align(64)))]
#[derive(Debug, Default)]
struct Heard {
    epoch: AtomicU64,
    digest: Words,
}

/// One node's side. Zeroed memory is one before the first epoch, which is 1.
#[cfg_attr(not(loom), repr(C, align(64)))]
#[derive(Debug, Default)]
pub struct Meeting {
    /// Epochs that are over, then the round that comes next, then whether somebody is at it.
    step: AtomicU64,
    /// The epoch to which this node has come.
    arrived: AtomicU64,
    /// What this node knows of the present epoch.
    known: Words,
    heard: [[Heard; 2]; ROUNDS],
}

const EPOCH: u32 = 16;

/// What carrying on needs.
pub trait Carrier {
    /// How many rounds there are: ⌈log₂⌉ of the nodes.
    fn rounds(&self) -> usize;
    /// Tells the node 2^round places further; does not wait.
    fn tell(&self, epoch: u64, round: usize, known: Digest);
    /// All nodes have come.
    fn release(&self, epoch: u64, known: Digest);
}

impl Meeting {
    /// All ranks of this node have come to this epoch.
    pub fn arrive(&self, epoch: u64, all: Digest, carrier: &impl Carrier) {
        self.known.set(all);
        self.arrived.store(epoch, Release);
        self.carry_on(carrier);
    }

    /// A message has come.
    pub fn receive(&self, epoch: u64, round: usize, digest: Digest, carrier: &impl Carrier) {
        let heard = &self.heard[round][epoch as usize % 2];
        heard.digest.set(digest);
        heard.epoch.store(epoch, Release);
        full_fence();
        self.carry_on(carrier);
    }

    fn carry_on(&self, carrier: &impl Carrier) {
        loop {
            let step = self.step.load(Acquire);
            let (epoch, round) = ((step >> EPOCH) + 1, (step >> 1 & ((1 << (EPOCH - 1)) - 1)) as usize);
            let last = || &self.heard[round - 1][epoch as usize % 2];
            let event = if round == 0 { &self.arrived } else { &last().epoch };
            // Whoever is at it looks again when it is done.
            if step & 1 == 1 || event.load(Acquire) != epoch {
                return;
            }
            if self.step.compare_exchange(step, step | 1, Acquire, Relaxed).is_err() {
                continue;
            }
            let mut known = self.known.get();
            if round > 0 {
                known = known.merge(last().digest.get());
                self.known.set(known);
            }
            if round < carrier.rounds() {
                carrier.tell(epoch, round, known);
                self.step.store(step + 2, Release);
            } else {
                self.step.store(epoch << EPOCH, Release);
                carrier.release(epoch, known);
            }
            full_fence();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::barrier::Call;

    /// What comparing all with all would find.
    fn judged(all: &[(u32, Tag, u64)]) -> Verdict {
        let aux = all.iter().map(|a| a.2).min().unwrap();
        let first = all.iter().find(|a| a.1 != Tag::Plain);
        let tag = first.map_or(Tag::Plain, |f| f.1);
        match all.iter().find(|a| !a.1.agrees(tag)) {
            None => Verdict::Agreed { aux, tag },
            Some(odd) => {
                let mut two = [(odd.0, odd.1), first.map(|f| (f.0, f.1)).unwrap()];
                two.sort_by_key(|w| w.0);
                Verdict::Disagreed(two)
            }
        }
    }

    #[test]
    fn digests_judge_as_comparing_all_does() {
        let tags = [Tag::Plain, Tag::Value(1), Tag::Value(2), Tag::Call(Call::AllocAll, 1), Tag::Exit];
        let n = tags.len();
        for case in 0..n.pow(5) {
            let all: Vec<_> = (0..5u32).map(|r| (r, tags[case / n.pow(r) % n], 100 - u64::from(r) % 3)).collect();
            let digests: Vec<_> = all.iter().map(|a| Digest::of(a.0, a.1, a.2)).collect();
            let words = |d: Digest| Digest::from_words(d.to_words());
            let forth = digests.iter().copied().reduce(|a, b| words(a.merge(b))).unwrap();
            let back = digests.iter().rev().copied().reduce(Digest::merge).unwrap();
            // As dissemination does it: some twice.
            let twice = forth.merge(digests[case % 5]).merge(digests[case % 3].merge(digests[4]));
            assert_eq!((forth, forth), (back, twice));
            assert_eq!(forth.verdict(), judged(&all), "{all:?}");
        }
    }

    /// Nodes whose messages arrive in any order.
    #[test]
    fn all_wait_for_all() {
        use std::cell::RefCell;
        use std::collections::VecDeque;
        struct Nodes {
            meetings: Vec<Meeting>,
            posted: RefCell<VecDeque<(usize, u64, usize, Digest)>>,
            released: RefCell<Vec<Vec<(u64, Digest)>>>,
        }
        struct At<'n>(&'n Nodes, usize);
        impl Carrier for At<'_> {
            fn rounds(&self) -> usize {
                self.0.meetings.len().next_power_of_two().ilog2() as usize
            }
            fn tell(&self, epoch: u64, round: usize, known: Digest) {
                let to = (self.1 + (1 << round)) % self.0.meetings.len();
                self.0.posted.borrow_mut().push_back((to, epoch, round, known));
            }
            fn release(&self, epoch: u64, known: Digest) {
                self.0.released.borrow_mut()[self.1].push((epoch, known));
            }
        }
        let mut seed = 12345u64;
        let mut random = move |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for n in 1..=9 {
            let (posted, released) = (RefCell::default(), RefCell::new(vec![vec![]; n]));
            let nodes = Nodes { meetings: (0..n).map(|_| Meeting::default()).collect(), posted, released };
            let mut come = vec![0u64; n];
            while nodes.released.borrow().iter().any(|r| r.len() < 30) {
                let waiting = nodes.posted.borrow().len();
                if waiting > 0 && random(3) > 0 {
                    let message = nodes.posted.borrow_mut().remove(random(waiting)).unwrap();
                    nodes.meetings[message.0].receive(message.1, message.2, message.3, &At(&nodes, message.0));
                } else {
                    let i = random(n);
                    if come[i] == nodes.released.borrow()[i].len() as u64 && come[i] < 30 {
                        come[i] += 1;
                        let digest = Digest::of(i as u32, Tag::Value(come[i]), 1000 - i as u64);
                        nodes.meetings[i].arrive(come[i], digest, &At(&nodes, i));
                    }
                }
                // Nobody is let go before all have come.
                let least = come.iter().min().unwrap();
                assert!(nodes.released.borrow().iter().all(|r| r.len() as u64 <= *least));
            }
            for (i, digest) in nodes.released.borrow().iter().flatten() {
                let agreed = Verdict::Agreed { aux: 1001 - n as u64, tag: Tag::Value(*i) };
                assert_eq!(digest.verdict(), agreed);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::wait::models::Sleeper;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Node {
        meeting: Meeting,
        released: AtomicU64,
        verdict: Words,
        sleeper: Sleeper,
    }

    #[derive(Clone)]
    struct At(Arc<Vec<Node>>, usize);

    impl Carrier for At {
        fn rounds(&self) -> usize {
            self.0.len().next_power_of_two().ilog2() as usize
        }
        /// The message is received at once, by the thread that sends it. Its fence hides what the release of `step` is for.
        fn tell(&self, epoch: u64, round: usize, known: Digest) {
            let to = (self.1 + (1 << round)) % self.0.len();
            self.0[to].meeting.receive(epoch, round, known, &At(self.0.clone(), to));
        }
        fn release(&self, epoch: u64, known: Digest) {
            let node = &self.0[self.1];
            node.verdict.set(known);
            node.released.store(epoch, Release);
            node.sleeper.bell.ring();
        }
    }

    fn meet(nodes: &Arc<Vec<Node>>, i: usize, epochs: u64) {
        for epoch in 1..=epochs {
            let node = &nodes[i];
            node.meeting.arrive(epoch, Digest::of(i as u32, Tag::Value(epoch), i as u64), &At(nodes.clone(), i));
            node.sleeper.until(|| node.released.load(Acquire) >= epoch);
            assert_eq!(node.verdict.get().verdict(), Verdict::Agreed { aux: 0, tag: Tag::Value(epoch) });
        }
    }

    fn model(n: usize, epochs: u64, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        if builder.preemption_bound.is_none() {
            builder.preemption_bound = Some(preemptions);
        }
        builder.check(move || {
            let nodes: Arc<Vec<Node>> = Arc::new((0..n).map(|_| Node::default()).collect());
            let others: Vec<_> = (1..n)
                .map(|i| {
                    let nodes = nodes.clone();
                    thread::spawn(move || meet(&nodes, i, epochs))
                })
                .collect();
            meet(&nodes, 0, epochs);
            others.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    #[test]
    fn loom_two_nodes_two_epochs() {
        model(2, 2, 3);
    }

    #[test]
    fn loom_three_nodes() {
        model(3, 1, 2);
    }
}
