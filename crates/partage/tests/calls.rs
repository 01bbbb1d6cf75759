//! Calls at the end of a job, and failures in them that somebody catches.

use partage::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// A function that runs while its rank is at the end tells another, which tells a third; the last one runs too, although
/// the ranks' waits for each other are over by then.
#[test]
fn a_job_ends_after_the_last_function_that_was_told() {
    static LAST: AtomicU32 = AtomicU32::new(0);
    fn ms(n: u64) {
        std::thread::sleep(Duration::from_millis(n));
    }
    fn first(job: &Job, (): ()) {
        job.tell(Rank(0), second, ());
    }
    fn second(job: &Job, (): ()) {
        ms(20);
        job.tell(Rank(1), last, ());
    }
    fn last(_: &Job, (): ()) {
        LAST.fetch_add(1, Relaxed);
    }
    for round in 1..=5 {
        partage::test(4, |job| {
            job.barrier();
            match job.rank().0 {
                0 => ms(150),
                1 => job.tell(Rank(3), |_, ()| ms(80), ()),
                2 => {
                    ms(40);
                    job.tell(Rank(1), first, ());
                }
                _ => {}
            }
        });
        assert_eq!(LAST.load(Relaxed), round);
    }
}

/// Whatever a rank catches, a told function that panicked ends the job, with its words.
#[test]
fn a_failure_of_a_told_function_cannot_be_caught() {
    let job = catch_unwind(|| {
        partage::test(3, |job| {
            if job.rank() == Rank(1) {
                job.tell(Rank(0), |_, ()| panic!("told to fail"), ());
            }
            let _ = catch_unwind(AssertUnwindSafe(|| job.barrier()));
            let _ = catch_unwind(AssertUnwindSafe(|| job.barrier()));
        })
    });
    let why = job.unwrap_err();
    let text = why.downcast_ref::<String>().unwrap();
    assert!(text.contains("told to fail") && text.contains("rank 0") && text.contains("rank 1"), "{text}");
}

/// A rank that always has something to serve hears of the end.
#[test]
fn a_rank_that_always_serves_is_ended_too() {
    fn again(job: &Job, (): ()) {
        job.tell(job.rank(), again, ());
    }
    let job = catch_unwind(|| {
        partage::test(2, |job| {
            if job.rank() == Rank(1) {
                std::thread::sleep(Duration::from_millis(50));
                panic!("enough");
            }
            job.tell(job.rank(), again, ());
            job.barrier();
        })
    });
    assert!(job.unwrap_err().downcast_ref::<String>().unwrap().contains("enough"));
}
