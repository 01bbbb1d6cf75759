//! Work that nobody can divide beforehand: tasks of very different lengths, some of which make new ones. Once from a stack under
//! a lock, once from a counter that is an atomic, where all tasks are known.
//!
//! `cargo run --release -p partage-examples --bin work_queue`

use partage::prelude::*;

/// Numbers from 0 to this are added up, by halving ranges until they are short.
const NUMBERS: u64 = 100_000;
const SHORT: u64 = 1000;
/// Ranges that wait: halving leaves one behind for each level, and each rank is at one.
const ROOM: usize = 256;

/// What the lock guards.
#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Stack {
    waiting: [[u64; 2]; ROOM],
    len: u64,
    /// Ranges that are being worked on, and may leave new ones.
    busy: u64,
}

fn main() {
    partage::run(|job| -> partage::Result {
        let sum = job.array::<u64>(2)?;
        sum.at(0).fetch_add(by_lock(job)?);
        sum.at(1).fetch_add(by_atomics(job)?);
        job.barrier();
        assert_eq!(sum.fetch(..).wait(), [NUMBERS * (NUMBERS - 1) / 2; 2]);
        job.barrier();
        Ok(())
    });
}

/// Takes a range from the stack, halves it if it is long, adds it up if not, until nothing waits and nobody is busy.
fn by_lock(job: &Job) -> partage::Result<u64> {
    let stack = job.mutexes::<Stack>(1)?;
    if job.rank().0 == 0 {
        let mut s = stack.lock(0);
        (s.waiting[0], s.len) = ([0, NUMBERS], 1);
    }
    job.barrier();
    let mut sum = 0;
    loop {
        let mut s = stack.lock(0);
        if s.len == 0 && s.busy == 0 {
            return Ok(sum);
        }
        if s.len == 0 {
            continue; // Somebody may leave some.
        }
        s.len -= 1;
        s.busy += 1;
        let [start, end] = s.waiting[s.len as usize];
        drop(s);
        let halves =
            if end - start > SHORT { vec![[start, (start + end) / 2], [(start + end) / 2, end]] } else { vec![] };
        if halves.is_empty() {
            sum += (start..end).sum::<u64>();
        }
        let mut s = stack.lock(0);
        for half in halves {
            let top = s.len as usize;
            (s.waiting[top], s.len) = (half, s.len + 1);
        }
        s.busy -= 1;
    }
}

/// The ranges are known: a counter deals them out.
fn by_atomics(job: &Job) -> partage::Result<u64> {
    let next = job.array::<u64>(1)?;
    let deal = || next.at(0).fetch_add(SHORT);
    let ranges = std::iter::from_fn(|| Some(deal()).filter(|&start| start < NUMBERS));
    Ok(ranges.map(|start| (start..NUMBERS.min(start + SHORT)).sum::<u64>()).sum())
}
