//! Keeps some elements of an array and moves them together, in their order: how many ranks before this one keep says where its own begin.
//!
//! `cargo run --release -p partage-examples --bin compaction`

use partage::prelude::*;

fn main() {
    partage::run(|job| -> partage::Result {
        let n = 1000 * job.size();
        let a = job.array::<u64>(n)?;
        a.my_indices().for_each(|i| a.put(i, (i * i % 1009) as u64));

        let kept: Vec<u64> = a.my_indices().map(|i| a.get(i)).filter(|x| x % 3 == 0).collect();
        let begin = job.value(kept.len()).prefix_before(Sum).unwrap_or(0);
        let all = job.value(kept.len()).sum();
        let b = job.array::<u64>(all)?;
        b.put_slice(begin, &kept);
        job.barrier();

        let expected: Vec<u64> = (0..n).map(|i| (i * i % 1009) as u64).filter(|x| x % 3 == 0).collect();
        b.my_indices().for_each(|i| assert_eq!(b.get(i), expected[i]));
        // The same of all: where each element of a sequence would go.
        let ones: Vec<usize> = a.my_indices().map(|i| usize::from(a.get(i) % 3 == 0)).collect();
        let mut places = vec![0; ones.len()];
        job.prefix_fold(&ones, Sum).exclusive().to(&mut places).run();
        let mut at = begin;
        for (one, place) in ones.iter().zip(&places) {
            assert_eq!(*place, at);
            at += one;
        }
        if job.rank().0 == 0 {
            println!("{all} of {n} elements kept by {} ranks", job.size());
        }
        Ok(())
    });
}
