//! Active messages and calls, beside raw rings: pairs of ranks, one of which asks and the other serves.
//!
//! As in [`ranks`](super::ranks), every function here is run by all ranks of a job; what rank 0 returns counts.

use super::floor::{self, Rings};
use super::measure::Measured;
use super::ranks::{Bench, now_ns};
use partage::am::{LongRequest, Reply, Request, Target};
use partage::prelude::*;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::atomic::Ordering::*;
use std::thread::{LocalKey, yield_now};

/// The arguments of all messages: 32 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Args {
    /// The last handler adds one here.
    count: GlobalPtr<u64>,
    more: [u64; 3],
}

/// Answers with the same payload.
static PING: Request<Args> = Request::new(|token, _, args, payload| token.reply(&PONG, args, payload));
static PONG: Reply<Args> = Reply::new(|target, _, args, payload| {
    read(payload);
    count(target, args);
});
/// The same where the sender's `quiet` says that the answer has come.
static CALL: Request<Args> = Request::new(|token, _, args, payload| token.reply(&ANSWER, args, payload));
static ANSWER: Reply<Args> = Reply::new(|_, _, _, payload| read(payload));
/// The same, each side by way of private memory.
static COPY_PING: Request<Args> = Request::new(|token, _, args, payload| {
    keep(&ASKED, payload, |mine| token.reply(&COPY_PONG, args, mine));
});
static COPY_PONG: Reply<Args> = Reply::new(|target, _, args, payload| {
    keep(&ANSWERED, payload, |_| ());
    count(target, args);
});
/// Answers to a payload that is there already.
static LONG_PING: LongRequest<Args, u8> = LongRequest::new(|token, _, args, _| token.reply(&PONG, args, &[]));
/// Does not answer.
static TICK: Request<Args> = Request::new(|_, target, args, payload| {
    read(payload);
    count(target, args);
});
static LONG_TICK: LongRequest<Args, u8> = LongRequest::new(|_, target, args, _| count(target, args));

/// One more has come. Messages of one pair come one after the other: a count needs no atomics.
fn count(target: &Target<'_>, args: Args) {
    target.put(args.count, target.get(args.count) + 1);
}

/// Looks at every line of a payload.
fn read(payload: &[u8]) {
    black_box(payload.iter().step_by(64).fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
}

thread_local! {
    // Two, since an answer may be handled while the request is: within one process.
    static ASKED: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
    static ANSWERED: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
}

/// Copies a payload into private memory.
fn keep(place: &'static LocalKey<RefCell<Vec<u8>>>, payload: &[u8], then: impl FnOnce(&[u8])) {
    place.with_borrow_mut(|mine| {
        mine.clear();
        mine.extend_from_slice(payload);
        then(black_box(mine));
    });
}

/// This rank and the other of its pair.
pub struct Pair<'b> {
    b: &'b Bench<'b>,
    peer: Rank,
    /// None of a rank that waits in a barrier meanwhile.
    part: Option<Part>,
    /// All who ask.
    asking: Vec<usize>,
    /// Handlers count here what has come to this rank.
    count: GlobalPtr<u64>,
    /// Who asks says here how much of what this rank serves is over.
    over: GlobalPtr<u64>,
    /// How much will have come, or be over, at the end of the sample.
    total: Cell<u64>,
    /// Somewhere else while a loop uses them.
    rings: Cell<Option<Rings<'b>>>,
}

#[derive(Clone, Copy)]
enum Part {
    Asks,
    Serves,
}

impl<'b> Pair<'b> {
    /// Collective: rank 0 asks the last one.
    fn one(b: &'b Bench) -> Pair<'b> {
        Pair::new(b, b.job.size() - 1, |rank| rank == 0)
    }

    /// The same for two that do not map each other's segments, and so have no rings.
    pub fn apart(b: &'b Bench) -> Pair<'b> {
        Pair::without_rings(b, 1, |rank| rank == 0)
    }

    /// Collective: ranks whose numbers differ in these bits are a pair.
    fn new(b: &'b Bench, bits: usize, asks: impl Fn(usize) -> bool) -> Pair<'b> {
        let pair = Pair::without_rings(b, bits, asks);
        pair.rings.set(Rings::new(b.job, pair.peer).ok());
        pair
    }

    fn without_rings(b: &'b Bench, bits: usize, asks: impl Fn(usize) -> bool) -> Pair<'b> {
        b.job.register_handlers(&[&PING, &PONG, &CALL, &ANSWER, &COPY_PING, &COPY_PONG, &LONG_PING, &TICK, &LONG_TICK]);
        let lines = b.job.alloc_all::<[u64; 8]>(2).expect("two lines");
        let peer = b.me ^ bits;
        Pair {
            b,
            peer: Rank(peer as u32),
            part: asks(b.me).then_some(Part::Asks).or(asks(peer).then_some(Part::Serves)),
            asking: (0..b.job.size()).filter(|&rank| asks(rank)).collect(),
            count: lines.cast(),
            over: lines.add(1).cast(),
            total: Cell::new(0),
            rings: Cell::new(None),
        }
    }

    /// Arguments of a message whose last handler runs for `rank`.
    fn args(&self, rank: Rank) -> Args {
        Args { count: self.count.on(rank), more: [1, 2, 3] }
    }

    /// Nanoseconds of each of `times` repetitions, in the mean of all who ask. Whoever is done waits in a barrier.
    fn each(&self, times: usize, work: impl FnOnce(Part)) -> f64 {
        let start = now_ns();
        if let Some(part) = self.part {
            work(part);
        }
        let took = &self.b.board.of;
        took[self.b.me].0.store(now_ns() - start, Relaxed);
        self.b.job.barrier();
        let all: u64 = self.asking.iter().map(|&rank| took[rank].0.load(Relaxed)).sum();
        all as f64 / (times * self.asking.len()) as f64
    }

    /// Round trips without a payload.
    pub fn short_polled(&self, trips: usize) -> f64 {
        self.polled(trips, |args| self.b.job.am(self.peer, &PING, args, &[]))
    }

    /// Round trips: one rank polls until its answer has been counted, the other until it is told that all is over.
    fn polled(&self, trips: usize, ask: impl Fn(Args)) -> f64 {
        let (job, args) = (self.b.job, self.args(self.b.job.rank()));
        let before = self.total.replace(self.total.get() + trips as u64);
        let total = self.total.get();
        self.each(trips, |part| match part {
            Part::Asks => {
                for answers in before..total {
                    ask(args);
                    while self.count.get(job) == answers {
                        job.poll();
                    }
                }
                self.over.on(self.peer).put(job, total);
            }
            Part::Serves => {
                while self.over.get(job) < total {
                    job.poll();
                }
            }
        })
    }

    /// Round trips in calls that wait: one rank waits for its answer, the other in a barrier.
    fn waited(&self, trips: usize, ask: impl Fn(u64)) -> f64 {
        self.each(trips, |part| match part {
            Part::Asks => (0..trips as u64).for_each(ask),
            Part::Serves => {}
        })
    }

    /// A stream: one rank sends, the other polls until it has counted all.
    fn streamed(&self, messages: usize, send: impl Fn(Args)) -> f64 {
        let (job, args) = (self.b.job, self.args(self.peer));
        let total = self.total.get() + messages as u64;
        self.total.set(total);
        self.each(messages, |part| match part {
            Part::Asks => {
                (0..messages).for_each(|_| send(args));
                job.quiet();
            }
            Part::Serves => {
                while self.count.get(job) < total {
                    job.poll();
                }
            }
        })
    }

    /// Round trips over raw rings. Before a message comes `give`, after it `take`.
    fn ringed(&self, trips: usize, wait: impl Fn() + Copy, give: impl Fn(Part), mut take: impl FnMut(Part)) -> f64 {
        self.each(trips, |part| {
            let (mut rings, mut words) = (self.rings.take().expect("64 KiB"), [1; 7]);
            for _ in 0..trips {
                match part {
                    Part::Asks => {
                        give(part);
                        rings.send(words, wait);
                        words = rings.receive(wait);
                        take(part);
                    }
                    Part::Serves => {
                        words = rings.receive(wait);
                        take(part);
                        give(part);
                        rings.send(words, wait);
                    }
                }
            }
            self.rings.set(Some(rings));
        })
    }

    /// A stream over a raw ring. Before a message comes `give`.
    fn ring_streamed(&self, messages: usize, give: impl Fn()) -> f64 {
        self.each(messages, |part| {
            let mut rings = self.rings.take().expect("64 KiB");
            match part {
                Part::Asks => {
                    for _ in 0..messages {
                        give();
                        rings.send([1; 7], spin);
                    }
                    rings.all_taken(spin);
                }
                Part::Serves => {
                    let mut sum = [0u64; 7];
                    for _ in 0..messages {
                        let words = rings.receive(spin);
                        sum.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
                    }
                    rings.report();
                    black_box(sum);
                }
            }
            self.rings.set(Some(rings));
        })
    }
}

/// Waiting, where every rank has a core.
fn spin() {}

/// How many messages with `len` bytes make a sample of a few milliseconds.
fn times(len: usize) -> usize {
    20_000_000 / (2_000 + len)
}

/// Request and reply of 32 bytes, in nanoseconds.
pub fn short_rtt(b: &Bench) -> Measured {
    medium_rtt::<0>(b)
}

/// The same with a payload of `LEN` bytes each way, beside messages without one.
pub fn medium_rtt<const LEN: usize>(b: &Bench) -> Measured {
    let (pair, payload) = (Pair::one(b), vec![1; LEN]);
    b.compare(
        || pair.polled(times(LEN), |args| b.job.am(pair.peer, &PING, args, &payload)),
        || pair.ringed(times(0), spin, |_| (), |_| ()),
    )
}

/// The same beside copies into shared memory and out of it.
pub fn medium_rtt_by_copies<const LEN: usize>(b: &Bench) -> Measured {
    let (pair, payload) = (Pair::one(b), vec![1; LEN]);
    let (inbox, mut mine) = (b.job.alloc_all::<u8>(LEN).expect("a block"), vec![0; LEN]);
    b.compare(
        || pair.polled(times(LEN), |args| b.job.am(pair.peer, &COPY_PING, args, &payload)),
        || {
            let give = |_| floor::copy_out(b.job, inbox.on(pair.peer), &payload, 1);
            let take = |_| floor::copy_in(b.job, &mut mine, inbox, 1);
            pair.ringed(times(LEN), spin, give, take)
        },
    )
}

/// `LEN` bytes into the other's open memory and a short answer, beside a copy and such messages; in nanoseconds.
pub fn long_rtt<const LEN: usize>(b: &Bench) -> Measured {
    let (pair, payload) = (Pair::one(b), vec![1; LEN]);
    let there = b.job.alloc_all::<u8>(LEN).expect("a block").on(pair.peer);
    b.compare(
        || pair.polled(times(LEN), |args| b.job.am_long(there, &payload, &LONG_PING, args)),
        || {
            let give = |part| match part {
                Part::Asks => floor::copy_out(b.job, there, &payload, 1),
                Part::Serves => {}
            };
            pair.ringed(times(LEN), spin, give, |_| ())
        },
    )
}

/// Round trips of all pairs at once, of ranks whose numbers differ in the bits `PEER`, with more ranks than cores: all wait
/// in calls of the runtime, beside rings whose ranks yield; in nanoseconds.
pub fn short_rtt_of_pairs<const PEER: usize>(b: &Bench) -> Measured {
    let pair = Pair::new(b, PEER, |rank| rank & PEER == 0);
    let (trips, args) = (times(0) / b.job.size(), pair.args(b.job.rank()));
    b.compare(
        || {
            pair.waited(trips, |_| {
                b.job.am(pair.peer, &CALL, args, &[]);
                b.job.quiet();
            })
        },
        || pair.ringed(trips, yield_now, |_| (), |_| ()),
    )
}

/// Messages one way with `LEN` bytes, beside messages without any; nanoseconds of each.
pub fn stream<const LEN: usize>(b: &Bench) -> Measured {
    let (pair, payload) = (Pair::one(b), vec![1; LEN]);
    b.compare(
        || pair.streamed(10 * times(LEN), |args| b.job.am(pair.peer, &TICK, args, &payload)),
        || pair.ring_streamed(20 * times(0), || ()),
    )
}

/// The same with `LEN` bytes into the other's open memory, beside copies and messages without any.
pub fn long_stream<const LEN: usize>(b: &Bench) -> Measured {
    let (pair, payload) = (Pair::one(b), vec![1; LEN]);
    let there = b.job.alloc_all::<u8>(LEN).expect("a block").on(pair.peer);
    b.compare(
        || pair.streamed(times(LEN), |args| b.job.am_long(there, &payload, &LONG_TICK, args)),
        || pair.ring_streamed(times(LEN), || floor::copy_out(b.job, there, &payload, 1)),
    )
}

/// A call with a number and its result, beside request and reply of 32 bytes; in nanoseconds.
pub fn rpc_rtt(b: &Bench) -> Measured {
    let pair = Pair::one(b);
    b.compare(
        || pair.waited(times(0), |n| _ = black_box(b.job.rpc(pair.peer, |_, n: u64| n + 1, n).wait())),
        || pair.polled(times(0), |args| b.job.am(pair.peer, &PING, args, &[])),
    )
}
