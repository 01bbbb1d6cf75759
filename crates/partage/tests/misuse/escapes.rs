//! A rank's handle does not leave the job.
#![allow(unused)]

use partage::prelude::*;
use std::cell::Cell;
use std::sync::Mutex;

thread_local! {
    static KEPT: Cell<Option<&'static Job>> = Cell::new(None);
}

fn in_a_thread_local() {
    partage::test(2, |job| KEPT.set(Some(job)));
}

fn as_a_result() {
    partage::test(2, |job| job);
}

fn in_what_was_captured() {
    let kept = Mutex::new(None);
    partage::run(|job| *kept.lock().unwrap() = Some(job));
}

fn as_a_result_of_a_call(job: &Job) {
    job.rpc(Rank(0), |job: &Job, _: u64| job, 1).wait();
}

fn a_called_function_with_borrowed_arguments(job: &Job) {
    let words = String::new();
    job.rpc(Rank(0), |_: &Job, words: &str| words.len(), &words[..]).wait();
}

fn main() {}
