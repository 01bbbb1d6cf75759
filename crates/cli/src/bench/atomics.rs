//! Atomics, random access and many puts in a scope.

use super::floor;
use super::measure::Measured;
use super::ranks::{Bench, now_ns};
use partage::prelude::*;
use std::hint::black_box;

/// Words of the table of random access, all of 1 GiB, and updates of a rank for a sample.
const TABLE: usize = 1 << 27;
const UPDATES: usize = 1 << 19;

/// The next number of the stream of HPCC's RandomAccess.
#[inline(always)]
pub fn next(x: u64) -> u64 {
    x << 1 ^ if x >> 63 == 1 { 7 } else { 0 }
}

/// An update of a word of a table, by a get and a put, on all ranks at once, beside loads and stores: nanoseconds of a rank.
pub fn gups_plain(b: &Bench) -> Measured {
    #[inline(never)]
    fn updates(table: &SharedArray<u64>, stream: u64) -> u64 {
        (0..UPDATES).fold(stream, |x, _| {
            let x = next(x);
            let i = x as usize % TABLE;
            table.put(i, table.get(i) ^ x);
            x
        })
    }
    gups(b, updates, floor::Table::plain)
}

/// The same by atomics, beside the CPU's.
pub fn gups_atomic(b: &Bench) -> Measured {
    #[inline(never)]
    fn updates(table: &SharedArray<u64>, stream: u64) -> u64 {
        (0..UPDATES).fold(stream, |x, _| {
            let x = next(x);
            table.at(x as usize % TABLE).xor(x);
            x
        })
    }
    gups(b, updates, floor::Table::atomic)
}

fn gups(b: &Bench, ours: fn(&SharedArray<u64>, u64) -> u64, by_hand: fn(&floor::Table, u64, usize) -> u64) -> Measured {
    let mut array = b.job.array_unset::<u64>(TABLE).expect("1 GiB");
    array.own_each(|i, word| *word = i as u64);
    let table = floor::Table::new(b.job, &mut array);
    // Streams that do not meet in a measurement.
    let mut stream = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(2 * b.me as u64 + 1);
    let mut timed = |updates: &dyn Fn(u64) -> u64| {
        let start = now_ns();
        stream = updates(stream);
        b.job.barrier();
        (now_ns() - start) as f64 / UPDATES as f64
    };
    let timed = std::cell::RefCell::new(&mut timed);
    b.compare(
        || timed.borrow_mut()(&|stream| ours(&array, stream)),
        || timed.borrow_mut()(&|stream| by_hand(&table, stream, UPDATES)),
    )
}

/// Additions of a sample.
const ADDITIONS: usize = 1_000_000;

/// An addition to a word of the other rank that nobody else uses, beside the CPU's: nanoseconds.
pub fn fetch_add(b: &Bench) -> Measured {
    #[inline(never)]
    fn add(job: &Job, word: GlobalPtr<u64>) -> u64 {
        let word = word.at(job);
        (0..ADDITIONS).fold(0, |sum: u64, _| sum.wrapping_add(word.fetch_add(1)))
    }
    additions(b, add)
}

/// The same if the word is looked for each time.
pub fn find_and_add(b: &Bench) -> Measured {
    #[inline(never)]
    fn add(job: &Job, word: GlobalPtr<u64>) -> u64 {
        (0..ADDITIONS).fold(0, |sum: u64, _| sum.wrapping_add(word.at(job).fetch_add(1)))
    }
    additions(b, add)
}

fn additions(b: &Bench, add: fn(&Job, GlobalPtr<u64>) -> u64) -> Measured {
    let word = b.job.alloc_all::<u64>(8).expect("a cache line").on(b.job.neighbor(1));
    b.compare(
        || b.timed(ADDITIONS, || _ = black_box(add(b.job, black_box(word)))),
        || b.timed(ADDITIONS, || _ = black_box(floor::fetch_add(b.job, word, ADDITIONS))),
    )
}

/// Puts of a scope, and how often a sample has it.
const PUTS: usize = 1000;
const SCOPES: usize = 500;

/// One of 1000 puts of 8 bytes in a scope, to places of the other rank that lie anywhere in 1 MiB, beside one of as many
/// stores to the same: nanoseconds.
pub fn scope_puts(b: &Bench) -> Measured {
    puts_over(b, (1 << 20) / 8)
}

/// The same to places that are 8 KB together.
pub fn scope_puts_near(b: &Bench) -> Measured {
    puts_over(b, PUTS)
}

fn puts_over(b: &Bench, words: usize) -> Measured {
    #[inline(never)]
    fn puts(job: &Job, places: &[GlobalPtr<u64>], src: &[u64]) {
        job.scope(|s| {
            for (to, value) in places.iter().zip(src) {
                // The scope waits for all.
                drop(s.put_ptr(*to, std::slice::from_ref(value)));
            }
        });
    }
    let there = b.job.alloc_all::<u64>(words).expect("1 MiB").on(b.job.neighbor(1));
    let mut random = 1u64;
    let mut place = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        there.add((random >> 33) as usize % words)
    };
    let places: Vec<_> = (0..PUTS).map(|_| place()).collect();
    let by_hand = floor::Stores::new(b.job, &places);
    let src: Vec<u64> = (0..PUTS as u64).collect();
    b.compare(
        || b.timed(PUTS * SCOPES, || (0..SCOPES).for_each(|_| puts(b.job, black_box(&places), black_box(&src)))),
        || b.timed(PUTS * SCOPES, || (0..SCOPES).for_each(|_| by_hand.put(black_box(&src)))),
    )
}
