//! Rank 0 deals out work by counting semaphores; each rank and two threads beside it take it, whoever is free. Threads add up
//! what they found through a remote.
//!
//! `cargo run --release -p partage-examples --bin consumers`

use partage::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pieces of work for each rank, and numbers in each of them.
const PIECES: u64 = 40;
const NUMBERS: u64 = 100;
const THREADS: u32 = 2;

fn main() {
    partage::run(|job| -> partage::Result {
        let (work, ended) = (job.semaphore()?, job.semaphore()?);
        let primes = job.alloc_all::<u64>(1)?.on(Rank(0));
        if let Some(signals) = job.value(work.signal()).gather(TeamRank(0)) {
            signals.into_iter().for_each(|signal| job.post_n(signal, PIECES as u32));
        }

        // As many are claimed as there are; each is then waited for.
        let (claimed, first) = (AtomicU64::new(0), PIECES * u64::from(job.rank().0));
        let claim = || Some(claimed.fetch_add(1, Relaxed)).filter(|&k| k < PIECES).map(|k| first + k);
        std::thread::scope(|s| {
            for _ in 0..THREADS {
                let (work, remote, ended, claim) = (work.share(), job.remote(), ended.signal(), &claim);
                s.spawn(move || {
                    while let Some(piece) = claim() {
                        work.wait();
                        remote.fetch_add(primes, count(piece));
                    }
                    remote.post(ended);
                });
            }
            while let Some(piece) = claim() {
                work.wait();
                primes.at(job).add(count(piece));
            }
            // Not by joining: what my threads do elsewhere, I do for them while I wait.
            ended.wait_n(THREADS);
        });
        job.barrier();
        let all: u64 = (0..PIECES * job.size() as u64).map(count).sum();
        assert_eq!((primes.get(job), work.value()), (all, 0));
        job.barrier();
        job.free_all(primes.on(job.rank()));
        Ok(())
    });
}

/// How many primes a piece has.
fn count(piece: u64) -> u64 {
    let is_prime = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    (piece * NUMBERS..(piece + 1) * NUMBERS).filter(|&n| is_prime(n)).count() as u64
}
