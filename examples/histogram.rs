//! How many of many numbers fall into each of 256 bins? Counted three times: by atomics on the bins, by atomics that
//! travel together, and without any, by the owners of the bins.
//!
//! `cargo run --release -p partage-examples --bin histogram`

use partage::prelude::*;

const NUMBERS: usize = 20_000;
const BINS: usize = 256;

fn main() {
    let mut wanted = vec![0; BINS];
    (0..NUMBERS).for_each(|i| wanted[bin(number(i))] += 1);
    partage::run(|job| -> partage::Result {
        let mut numbers = job.array::<u64>(NUMBERS)?;
        let mine = numbers.my_indices();
        numbers.own(|numbers| numbers.iter_mut().zip(mine).for_each(|(x, i)| *x = number(i)));

        assert_eq!(by_atomics(job, &mut numbers)?.fetch(..).wait(), wanted);
        assert_eq!(by_batches(job, &mut numbers)?.fetch(..).wait(), wanted);
        assert_eq!(by_owners(job, &mut numbers)?.fetch(..).wait(), wanted);
        Ok(())
    });
}

/// Everyone adds to the bins, wherever they are.
fn by_atomics(job: &Job, numbers: &mut SharedArray<u64>) -> partage::Result<SharedArray<u64>> {
    let bins = job.array::<u64>(Layout::cyclic(BINS))?;
    numbers.freeze(|numbers| {
        for &x in numbers.mine() {
            bins.at(bin(x)).relaxed().add(1);
        }
    });
    Ok(bins)
}

/// The same; additions for ranks of other nodes go there by the thousand.
fn by_batches(job: &Job, numbers: &mut SharedArray<u64>) -> partage::Result<SharedArray<u64>> {
    let bins = job.array::<u64>(Layout::cyclic(BINS))?;
    numbers.freeze(|numbers| {
        let mut batch = job.batch();
        for &x in numbers.mine() {
            batch.add(bins.at(bin(x)), 1);
        }
    });
    Ok(bins)
}

/// Everyone counts for itself; then the owner of a bin sums up what all have counted for it.
fn by_owners(job: &Job, numbers: &mut SharedArray<u64>) -> partage::Result<SharedArray<u64>> {
    let mut counts = job.array::<u64>(Layout::per_rank(BINS))?;
    job.phase((numbers.frozen(), counts.owned()), |(numbers, counts)| {
        for &x in numbers.mine() {
            counts[bin(x)] += 1;
        }
    });
    let mut bins = job.array::<u64>(Layout::cyclic(BINS))?;
    let mine = bins.my_indices();
    job.phase((counts.frozen(), bins.owned()), |(counts, bins)| {
        for (sum, b) in bins.iter_mut().zip(mine) {
            *sum = job.ranks().map(|r| counts.get(r.index() * BINS + b)).sum();
        }
    });
    Ok(bins)
}

/// The i-th number: not random, but scattered.
fn number(i: usize) -> u64 {
    let x = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(x | 1)
}

fn bin(x: u64) -> usize {
    (x >> 56) as usize
}
