//! Arrays, phases, regions and allocation.

use super::floor;
use super::measure::Measured;
use super::ranks::{Bench, WINDOW_NS, now_ns};
use partage::prelude::*;
use std::hint::black_box;

/// Values of a rank's part in the local loop, and of the array that is read by index.
const VALUES: usize = 16 << 10;
/// Bytes of an array that is allocated.
const ARRAY: usize = 1 << 20;

#[inline(never)]
fn daxpy(a: f64, x: &[f64], y: &mut [f64]) {
    x.iter().zip(y).for_each(|(x, y)| *y += a * x);
}

/// `y += a x` over the own part in a phase, beside the same over vectors: nanoseconds for all of it.
pub fn local_loop(b: &Bench) -> Measured {
    const TIMES: usize = 200;
    let array = || b.job.array::<f64>(Layout::per_rank(VALUES)).expect("128 KiB");
    let (mut x, mut y) = (array(), array());
    let (u, mut v) = (vec![1.0; VALUES], vec![0.0; VALUES]);
    b.compare(
        || {
            b.job.phase((x.frozen(), y.owned()), |(x, y)| {
                b.timed(TIMES, || (0..TIMES).for_each(|_| daxpy(black_box(1e-9), black_box(x.mine()), black_box(y))))
            })
        },
        || b.timed(TIMES, || (0..TIMES).for_each(|_| daxpy(black_box(1e-9), black_box(&u), black_box(&mut v)))),
    )
}

/// An element by its index, in blocks of 8, shuffled, beside the same by hand for any number of ranks: nanoseconds each.
pub fn get_cyclic(b: &Bench) -> Measured {
    get_beside(b, floor::Cyclic::get)
}

/// The same beside what can be written for a number of ranks that is known to be a power of two.
pub fn get_cyclic_by_shifts(b: &Bench) -> Measured {
    get_beside(b, floor::Cyclic::get_by_shifts)
}

fn get_beside(b: &Bench, by_hand: impl Fn(&floor::Cyclic, &[usize]) -> u64) -> Measured {
    #[inline(never)]
    fn get(array: &SharedArray<u64>, indices: &[usize]) -> u64 {
        indices.iter().fold(0, |sum: u64, &i| sum.wrapping_add(array.get(i)))
    }
    const TIMES: usize = 100;
    let array = b.job.array::<u64>(Layout::block_cyclic(VALUES, 8)).expect("128 KiB");
    let block = b.job.alloc_all::<u64>(VALUES / b.job.size()).expect("the same");
    let cyclic = floor::Cyclic::new(b.job, block, VALUES);
    let mut indices: Vec<usize> = (0..VALUES).collect();
    let mut random = 1u64;
    for i in (1..VALUES).rev() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        indices.swap(i, (random >> 33) as usize % (i + 1));
    }
    b.compare(
        || b.timed(VALUES * TIMES, || (0..TIMES).for_each(|_| _ = black_box(get(&array, &indices)))),
        || b.timed(VALUES * TIMES, || (0..TIMES).for_each(|_| _ = black_box(by_hand(&cyclic, &indices)))),
    )
}

/// A phase in which nothing is done, beside a barrier: nanoseconds.
pub fn phase(b: &Bench) -> Measured {
    let mut array = b.job.array::<u64>(b.job.size()).expect("a few words");
    b.compare(
        || b.paced(WINDOW_NS, || array.own(|mine| _ = black_box(mine))),
        || b.paced(WINDOW_NS, || b.job.barrier()),
    )
}

/// An array of 1 MiB on all ranks together, of memory that was used before and is not zeroed, beside a barrier:
/// nanoseconds.
pub fn alloc_unset(b: &Bench) -> Measured {
    b.compare(
        || b.paced(WINDOW_NS, || _ = b.job.array_unset::<u64>(ARRAY / 8).expect("1 MiB")),
        || b.paced(WINDOW_NS, || b.job.barrier()),
    )
}

/// The same, zeroed.
pub fn alloc_zeroed(b: &Bench) -> Measured {
    b.compare(
        || b.paced(WINDOW_NS, || _ = b.job.array::<u64>(ARRAY / 8).expect("1 MiB")),
        || b.paced(WINDOW_NS, || b.job.barrier()),
    )
}

/// The same of memory that nobody had before, which the system must give.
pub fn alloc_fresh(b: &Bench) -> Measured {
    const TIMES: usize = 256;
    b.compare(
        || {
            let mut all = Vec::with_capacity(TIMES);
            let start = now_ns();
            (0..TIMES).for_each(|_| all.push(b.job.array::<u64>(ARRAY / 8).expect("1 MiB")));
            let time = now_ns() - start;
            drop(all);
            // What was dropped goes back to the system here.
            drop(b.job.array::<u64>(1).expect("a word"));
            time as f64 / TIMES as f64
        },
        || b.paced(WINDOW_NS, || b.job.barrier()),
    )
}

/// 64 zeroed bytes of the own segment, allocated and freed, beside `malloc` and `free`: nanoseconds for both.
pub fn local_alloc_free(b: &Bench) -> Measured {
    const TIMES: usize = 100_000;
    #[inline(never)]
    fn ours(job: &Job) {
        for _ in 0..TIMES {
            job.free(black_box(job.alloc_slice::<u64>(black_box(8)).expect("64 bytes")));
        }
    }
    b.compare(|| b.timed(TIMES, || ours(b.job)), || b.timed(TIMES, || floor::malloc_free(64, TIMES)))
}

/// Runs of a strided put, the values of each, and how far each begins after the one before.
const RUNS: usize = 512;
const RUN: usize = 8;
const STRIDE: usize = 16;

/// 512 runs of 64 bytes, 128 apart in the other rank's memory, beside the loop of copies by hand: nanoseconds for all.
pub fn strided_put(b: &Bench) -> Measured {
    let there = b.job.alloc_all::<u64>(RUNS * STRIDE).expect("64 KiB").on(b.job.neighbor(1));
    let region = Region::at(0).run(RUN).times(RUNS, STRIDE);
    strided_beside(b, there, |src| there.put_region(b.job, black_box(region), src))
}

/// The same into an array.
pub fn strided_put_array(b: &Bench) -> Measured {
    let there = b.job.alloc_all::<u64>(RUNS * STRIDE).expect("64 KiB").on(b.job.neighbor(1));
    let array = b.job.array::<u64>(Layout::per_rank(RUNS * STRIDE)).expect("64 KiB");
    let first = b.job.neighbor(1).index() * RUNS * STRIDE;
    let region = Region::at(first).run(RUN).times(RUNS, STRIDE);
    strided_beside(b, there, |src| array.put_region(black_box(region), src))
}

fn strided_beside(b: &Bench, there: GlobalPtr<u64>, ours: impl Fn(&[u64])) -> Measured {
    const TIMES: usize = 1000;
    let src: Vec<u64> = (0..(RUN * RUNS) as u64).collect();
    b.compare(
        || b.timed(TIMES, || (0..TIMES).for_each(|_| ours(black_box(&src)))),
        || b.timed(TIMES, || floor::copy_runs::<RUN, STRIDE>(b.job, there, &src, TIMES)),
    )
}
