//! Sorts numbers that are spread over all ranks, by samples: each rank then has those between two splitters.
//!
//! `cargo run --release -p partage-examples --bin sample_sort`

use partage::prelude::*;

/// Keys of each rank.
const N: u64 = 10_000;

fn main() {
    partage::run(|job| {
        let seed = u64::from(job.rank().0) * N;
        let keys: Vec<u64> = (seed..seed + N).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).collect();
        let (all, sum) = (job.value(keys.len()).sum(), job.value(keys.iter().sum::<u64>()).sum());

        let mine = sample_sort(job, keys);

        assert!(mine.is_sorted());
        assert_eq!(job.value(mine.len()).sum(), all);
        assert_eq!(job.value(mine.iter().sum::<u64>()).sum(), sum);
        // The ranks before have nothing that is larger.
        let before = job.value(mine.last().copied().unwrap_or(0)).prefix_before(Max);
        assert!(mine.first().is_none_or(|&first| before.is_none_or(|before| before <= first)));
        if job.rank().0 == 0 {
            println!("{all} keys sorted by {} ranks", job.size());
        }
    });
}

fn sample_sort(job: &Job, mut keys: Vec<u64>) -> Vec<u64> {
    let p = job.size();
    keys.sort_unstable();
    let sample: Vec<u64> = (0..p).map(|k| keys[k * keys.len() / p]).collect();
    let mut all = vec![];
    job.gather_all(&sample).to(&mut all).run();
    all.sort_unstable();
    // Keys before the first splitter are for rank 0, and so on.
    let ends = (1..p).map(|k| keys.partition_point(|&key| key < all[k * p])).chain([keys.len()]);
    let counts: Vec<usize> = ends.scan(0, |from, to| Some(to - std::mem::replace(from, to))).collect();

    let mut mine = vec![];
    job.exchange(&keys).counts(&counts).to(&mut mine).run();
    mine.sort_unstable();
    mine
}
