//! Puts, gets and messages between two processes that share no memory, beside libfabric by hand; in microseconds.
//!
//! As in [`ranks`](crate::bench::ranks), every function here is run by both ranks of a job; what rank 0 returns counts. Rank 0 is
//! the one that acts; rank 1 polls meanwhile, by way of the runtime or by hand.

use crate::bench::Limit::Ratio;
use crate::bench::Mapping::{Apart, Reference};
use crate::bench::am::Pair;
use crate::bench::measure::Measured;
use crate::bench::ranks::{Bench, now_ns};
use crate::bench::signal;
use crate::bench::wire::Wire;
use crate::bench::{Figure, Limit, job};
use partage::domain::Op;
use partage::prelude::*;
use partage::wait::join_all;
use std::cell::Cell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Those of this kind.
pub static FIGURES: [Figure; 16] = [
    job("net_put_8", 2, Apart, "us", Ratio(1.15), put_8),
    job("net_get_8", 2, Apart, "us", Ratio(1.15), get_8),
    job("net_am_short_rtt", 2, Apart, "us", Ratio(1.2), am_short_rtt),
    job("net_put_64k_bw", 2, Apart, "us", Ratio(1.053), put_bandwidth::<{ 64 << 10 }>),
    job("net_put_1m_bw", 2, Apart, "us", Ratio(1.053), put_bandwidth::<{ 1 << 20 }>),
    job("net_put_8_stream", 2, Apart, "us", Ratio(1.2), put_8_stream),
    job("net_put_stream_async", 2, Apart, "us", Ratio(1.2), put_stream_async),
    job("net_put_stream_tasks", 2, Apart, "us", Ratio(1.2), put_stream_tasks),
    job("net_fetch_add", 2, Apart, "us", Ratio(1.2), fetch_add),
    job("net_atomic_native", 2, Apart, "us", Limit::None, atomic_native),
    job("net_put_8_asleep", 2, Apart, "us", Limit::None, put_8_asleep),
    job("net_put_busy_target", 2, Apart, "us", Limit::Value(100.0), put_busy_target).most(9),
    job("net_sig_8_vs_put", 2, Apart, "us", Ratio(0.6), signal_beside_put),
    job("net_put_8_vs_reference", 2, Apart, "×", Ratio(0.8), put_8).against(Reference).most(9),
    job("net_put_64k_bw_vs_reference", 2, Apart, "×", Limit::None, put_bandwidth::<{ 64 << 10 }>)
        .against(Reference)
        .most(5),
    job("net_put_1m_bw_vs_reference", 2, Apart, "×", Limit::None, put_bandwidth::<{ 1 << 20 }>)
        .against(Reference)
        .most(5),
];

/// Operations of a sample, where each takes as long as a message to the other and back.
const TRIPS: usize = 500;
/// Puts of a stream that are under way by hand, or that are waited for one by one.
const WINDOW: usize = 64;
/// Bytes that a sample moves where bandwidth is measured, and how many are under way.
const VOLUME: usize = 32 << 20;
const UNDER_WAY: usize = 4 << 20;
/// A rank that has waited for so long sleeps.
const FALLS_ASLEEP: Duration = Duration::from_millis(5);
/// How long the target computes, and how much of that puts are made.
const BUSY_NS: u64 = 100_000_000;
const BUSY_PUTS_NS: u64 = 50_000_000;

/// Both ways to the other rank.
struct Link<'b> {
    b: &'b Bench<'b>,
    wire: Wire,
    /// A block of the other rank, for the runtime.
    there: GlobalPtr<u8>,
    src: Vec<u8>,
    /// Samples so far.
    turn: Cell<u64>,
}

impl<'b> Link<'b> {
    /// Collective: for transfers of at most `len` bytes.
    fn new(b: &'b Bench, len: usize, window: usize) -> Link<'b> {
        let there = b.job.alloc_all::<u8>(len).expect("a block").on(b.job.neighbor(1));
        Link { b, wire: Wire::new(b.job, len, window), there, src: vec![1; len], turn: Cell::new(0) }
    }

    /// Microseconds of each of `times` repetitions of what rank 0 does, while rank 1 does `serve` again and again.
    fn served(&self, times: usize, work: impl FnOnce(), serve: impl Fn()) -> f64 {
        let (over, turn) = (&self.b.board.turn.0, self.turn.get() + 1);
        self.turn.set(turn);
        if self.b.me > 0 {
            while over.load(Acquire) < turn {
                serve();
            }
            return 0.0;
        }
        let start = now_ns();
        work();
        let time = now_ns() - start;
        over.store(turn, Release);
        time as f64 / times as f64 / 1e3
    }

    /// The same for one thing at a time, done so many times.
    fn compare(&self, times: usize, ours: impl Fn(), by_hand: impl Fn()) -> Measured {
        self.b.compare(
            || self.served(times, || (0..times).for_each(|_| ours()), || self.b.job.poll()),
            || self.served(times, || (0..times).for_each(|_| by_hand()), || self.wire.poll()),
        )
    }
}

/// A put of 8 bytes that is complete there.
pub fn put_8(b: &Bench) -> Measured {
    let link = Link::new(b, 8, 1);
    let there = link.there.cast::<u64>();
    link.compare(TRIPS, || there.put(b.job, black_box(1)), || link.wire.put(8))
}

/// The same into memory of a rank that has slept in a barrier for a while.
fn put_8_asleep(b: &Bench) -> Measured {
    let link = Link::new(b, 8, 1);
    let there = link.there.cast::<u64>();
    let to_sleeper = || {
        if b.me > 0 {
            b.job.barrier();
            return 0.0;
        }
        std::thread::sleep(FALLS_ASLEEP);
        let start = now_ns();
        (0..TRIPS).for_each(|_| there.put(b.job, black_box(1)));
        let time = now_ns() - start;
        b.job.barrier();
        time as f64 / TRIPS as f64 / 1e3
    };
    b.compare(to_sleeper, || link.served(TRIPS, || (0..TRIPS).for_each(|_| link.wire.put(8)), || link.wire.poll()))
}

/// A get of 8 bytes.
fn get_8(b: &Bench) -> Measured {
    let link = Link::new(b, 8, 1);
    let there = link.there.cast::<u64>();
    link.compare(TRIPS, || _ = black_box(there.get(b.job)), || link.wire.get(8))
}

/// 8 bytes and their signal, one way, beside a put of 8 bytes that is complete there.
fn signal_beside_put(b: &Bench) -> Measured {
    let link = Link::new(b, 8, 1);
    let there = link.there.cast::<u64>();
    let mut signal = signal::one_way::<signal::Signaled>(b, 8, TRIPS / 2);
    let put = || link.served(TRIPS, || (0..TRIPS).for_each(|_| there.put(b.job, black_box(1))), || b.job.poll());
    b.compare(|| signal() / 1e3, put)
}

/// Request and reply of 32 bytes, beside messages of 64 bytes to and fro.
fn am_short_rtt(b: &Bench) -> Measured {
    let (link, pair) = (Link::new(b, 8, 8), Pair::apart(b));
    let answered = Cell::new(0);
    b.compare(
        || pair.short_polled(TRIPS) / 1e3,
        || {
            let ask = || {
                let before = link.wire.received();
                link.wire.send(64);
                while link.wire.received() == before {
                    link.wire.poll();
                }
            };
            let answer = || {
                link.wire.poll();
                while answered.get() < link.wire.received() {
                    link.wire.send(64);
                    answered.set(answered.get() + 1);
                }
            };
            link.served(TRIPS, || (0..TRIPS).for_each(|_| ask()), answer)
        },
    )
}

/// An atomic that gives the old value, beside request and reply of active messages.
fn fetch_add(b: &Bench) -> Measured {
    let (link, pair) = (Link::new(b, 8, 1), Pair::apart(b));
    let word = link.there.cast::<u64>();
    let ours = || (0..TRIPS).for_each(|_| _ = black_box(word.at(b.job).fetch_add(1)));
    b.compare(|| link.served(TRIPS, ours, || b.job.poll()), || pair.short_polled(TRIPS) / 1e3)
}

/// A fetch_add that the network does itself, if it does, beside one by message.
fn atomic_native(b: &Bench) -> Measured {
    let link = Link::new(b, 16, 1);
    let there = link.there.cast::<u64>();
    let domain = b.job.atomic_domain::<u64>(&[Op::Add]).expect("a domain");
    if b.me == 0 && !domain.is_native() {
        eprintln!("the network does no atomics itself: both are by message");
    }
    let sample = |add: &dyn Fn()| link.served(TRIPS, || (0..TRIPS).for_each(|_| add()), || b.job.poll());
    b.compare(
        || sample(&|| _ = black_box(domain.at(there.at(b.job)).fetch_add(1))),
        || sample(&|| _ = black_box(there.add(1).at(b.job).fetch_add(1))),
    )
}

/// One of many puts of `LEN` bytes that are under way at a time: its length over this is the bandwidth.
pub fn put_bandwidth<const LEN: usize>(b: &Bench) -> Measured {
    stream(b, LEN, VOLUME / LEN, UNDER_WAY / LEN)
}

/// One of many puts of 8 bytes that are under way at a time.
fn put_8_stream(b: &Bench) -> Measured {
    stream(b, 8, 20 * TRIPS, WINDOW)
}

fn stream(b: &Bench, len: usize, times: usize, window: usize) -> Measured {
    let link = Link::new(b, len, window);
    let ours = || {
        b.job.scope(|s| {
            for _ in 0..times {
                // The scope waits for all.
                drop(s.put_ptr(link.there, black_box(&link.src)));
            }
        })
    };
    b.compare(
        || link.served(times, ours, || b.job.poll()),
        || link.served(times, || link.wire.puts(times, len), || link.wire.poll()),
    )
}

/// One of many puts of 8 bytes of which so many as by hand are under way, each awaited as a future, beside the same by
/// events.
fn put_stream_async(b: &Bench) -> Measured {
    let ours = |link: &Link, times: usize| {
        b.job.scope(|s| {
            b.job.block_on(async {
                let mut events = VecDeque::with_capacity(WINDOW);
                for _ in 0..times {
                    if events.len() == WINDOW {
                        oldest(&mut events).await;
                    }
                    events.push_back(s.put_ptr(link.there, black_box(&link.src)));
                }
                for event in events {
                    event.await;
                }
            })
        })
    };
    stream_beside_events(b, ours)
}

/// The same by as many tasks as puts are under way, each of which awaits its own one after the other.
fn put_stream_tasks(b: &Bench) -> Measured {
    let ours = |link: &Link, times: usize| {
        b.job.scope(|s| {
            let task = |_| async {
                for _ in 0..times / WINDOW {
                    s.put_ptr(link.there, black_box(&link.src)).await;
                }
            };
            b.job.block_on(join_all((0..WINDOW).map(task)));
        })
    };
    stream_beside_events(b, ours)
}

fn stream_beside_events(b: &Bench, ours: impl Fn(&Link, usize)) -> Measured {
    const TIMES: usize = 160 * WINDOW;
    let link = Link::new(b, 8, 1);
    let by_events = || {
        b.job.scope(|s| {
            let mut events = VecDeque::with_capacity(WINDOW);
            for _ in 0..TIMES {
                if events.len() == WINDOW {
                    oldest(&mut events).wait();
                }
                events.push_back(s.put_ptr(link.there, black_box(&link.src)));
            }
            events.into_iter().for_each(Event::wait);
        })
    };
    b.compare(
        || link.served(TIMES, || ours(&link, TIMES), || b.job.poll()),
        || link.served(TIMES, by_events, || b.job.poll()),
    )
}

fn oldest<'s>(events: &mut VecDeque<Event<'s, ()>>) -> Event<'s, ()> {
    events.pop_front().expect("some are under way")
}

/// A put of 8 bytes to a process that computes for 100 ms: the mean of those that are made in half of that time, or of
/// the one that takes all of it.
fn put_busy_target(b: &Bench) -> Measured {
    let link = Link::new(b, 8, 1);
    let there = link.there.cast::<u64>();
    let busy = |put: &dyn Fn(), serve: &dyn Fn()| {
        let start = now_ns();
        if b.me > 0 {
            while now_ns() - start < BUSY_NS {}
            return link.served(1, || (), serve);
        }
        std::thread::sleep(Duration::from_millis(5));
        let puts = Cell::new(0);
        let work = || {
            let start = now_ns();
            while now_ns() - start < BUSY_PUTS_NS {
                put();
                puts.set(puts.get() + 1);
            }
        };
        link.served(1, work, serve) / f64::from(puts.get())
    };
    b.compare(
        || busy(&|| there.put(b.job, black_box(1)), &|| b.job.poll()),
        || busy(&|| link.wire.put(8), &|| link.wire.poll()),
    )
}
