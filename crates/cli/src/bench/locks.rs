//! Locks.

use super::floor;
use super::measure::Measured;
use super::ranks::{Bench, now_ns};
use partage::prelude::*;
use std::sync::atomic::Ordering::*;

/// A lock of rank 0's that nobody else wants, taken, its value changed, and released, beside a mutex over a futex: nanoseconds.
pub fn uncontended(b: &Bench) -> Measured {
    const TIMES: usize = 100_000;
    #[inline(never)]
    fn ours(lock: &Mutexes<u64>) {
        (0..TIMES).for_each(|_| *lock.lock(0) += 1);
    }
    #[inline(never)]
    fn by_hand(mutex: &floor::Mutex) {
        (0..TIMES).for_each(|_| mutex.count());
    }
    let lock = b.job.mutexes::<u64>(1).expect("a line");
    let mutex = floor::Mutex::new(b.job).expect("a line");
    b.compare(|| b.timed(TIMES, || ours(&lock)), || b.timed(TIMES, || by_hand(mutex)))
}

/// How long all ranks want one lock for a figure of all of them, and for one of each.
const CONTENDED_NS: u64 = 100_000_000;
const SHARES_NS: u64 = 1_000_000_000;

/// All ranks take and release for so long; how often each did.
fn takes(b: &Bench, window: u64, mut take: impl FnMut()) -> Vec<f64> {
    let (start, mut count) = (now_ns(), 0);
    while now_ns() - start < window {
        (0..8).for_each(|_| take());
        count += 8;
    }
    b.board.of[b.me].0.store(count, Relaxed);
    b.job.barrier();
    let all = b.board.of[..b.job.size()].iter().map(|of| of.0.load(Relaxed) as f64).collect();
    b.job.barrier();
    all
}

/// Beside the mutex over a futex: what all ranks make of the takes of a window.
fn beside_a_mutex(b: &Bench, window: u64, what: impl Fn(&[f64]) -> f64) -> Measured {
    let lock = b.job.mutexes::<u64>(1).expect("a line");
    let mutex = floor::Mutex::new(b.job).expect("a line");
    b.compare(|| what(&takes(b, window, || *lock.lock(0) += 1)), || what(&takes(b, window, || mutex.count())))
}

/// A lock that all ranks want all the time: nanoseconds for each time that one of them has it.
pub fn contended(b: &Bench) -> Measured {
    beside_a_mutex(b, CONTENDED_NS, |takes| CONTENDED_NS as f64 / takes.iter().sum::<f64>())
}

/// The same for a second: how many times more than the last rank an average one had it.
pub fn shares(b: &Bench) -> Measured {
    beside_a_mutex(b, SHARES_NS, |takes| {
        let least = takes.iter().copied().fold(f64::INFINITY, f64::min);
        takes.iter().sum::<f64>() / takes.len() as f64 / least
    })
}

/// The same: the longest time for which a rank wanted it while others, who came later, had it; in milliseconds.
pub fn bypass(b: &Bench) -> Measured {
    let lock = b.job.mutexes::<u64>(1).expect("a line");
    b.alone(|| {
        let (taken, mut longest) = (&b.board.time.0, 0);
        takes(b, SHARES_NS, || {
            let (before, start) = (taken.load(Acquire), now_ns());
            let mut count = lock.lock(0);
            let waited = now_ns() - start;
            if *count > before {
                longest = waited.max(longest);
            }
            *count += 1;
            taken.store(*count, Release);
        });
        b.board.of[b.me].0.store(longest, Relaxed);
        b.job.barrier();
        let all = b.board.of[..b.job.size()].iter().map(|of| of.0.load(Relaxed)).max();
        b.job.barrier();
        all.unwrap_or(0) as f64 / 1e6
    })
}
