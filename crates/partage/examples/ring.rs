//! A token goes round once; every rank adds its number. Puts, barriers, nothing else.
//!
//! `cargo run --release --example ring`, or `partage run -n 8 --procs 2 target/release/examples/ring`.

use partage::prelude::*;

fn main() {
    partage::run(ring);
}

fn ring(job: &Job) -> partage::Result {
    let token = job.alloc_all::<u64>(1)?;
    for turn in job.ranks() {
        if turn == job.rank() {
            let sum = token.get(job) + u64::from(job.rank().0);
            token.on(job.neighbor(1)).put(job, sum);
        }
        job.barrier();
    }
    let n = job.size() as u64;
    if job.rank() == Rank(0) {
        let sum = token.get(job);
        job.println(format!("the sum of {n} ranks is {sum}"));
        assert_eq!(sum, n * (n - 1) / 2);
    }
    Ok(())
}

#[test]
fn ring_on_four() {
    partage::test(4, |job| ring(job).unwrap());
}
