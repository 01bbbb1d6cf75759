//! Every rank says hello. Then a token goes round, to which each adds its number: once by puts, once by calls.
//!
//! `cargo run -p partage-examples --bin hello`, or `partage run -n 8 --procs 2 target/debug/hello`.

use partage::prelude::*;

fn main() {
    partage::run(|job| -> partage::Result {
        job.println(format!("hello from one of {}", job.size()));
        by_puts(job)?;
        by_calls(job);
        Ok(())
    });
}

/// Everyone has room for the token; who has it puts it on, and barriers part the turns.
fn by_puts(job: &Job) -> partage::Result {
    let token = job.alloc_all::<u64>(1)?;
    for turn in job.ranks() {
        if turn == job.rank() {
            let sum = token.get(job) + u64::from(job.rank().0);
            token.on(job.neighbor(1)).put(job, sum);
        }
        job.barrier();
    }
    if job.rank() == Rank(0) {
        assert_eq!(token.get(job), sum_of_ranks(job));
        job.println(format!("the sum of all ranks is {}", token.get(job)));
    }
    job.free_all(token);
    Ok(())
}

/// The token is the argument of a call. The end of the job waits until the last one has run.
fn by_calls(job: &Job) {
    if job.rank() == Rank(0) {
        job.tell(job.neighbor(1), pass_on, 0);
    }
}

fn pass_on(job: &Job, token: u64) {
    match job.rank() {
        Rank(0) => assert_eq!(token, sum_of_ranks(job)),
        Rank(me) => job.tell(job.neighbor(1), pass_on, token + u64::from(me)),
    }
}

fn sum_of_ranks(job: &Job) -> u64 {
    job.ranks().map(|r| u64::from(r.0)).sum()
}

#[test]
fn on_five() {
    partage::test(5, |job| by_puts(job).unwrap());
    partage::test(5, by_calls);
}
