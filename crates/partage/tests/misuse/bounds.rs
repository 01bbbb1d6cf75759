//! What a type must be.
#![allow(unused)]

use partage::phase::Phase;
use partage::prelude::*;

fn a_layout_is_over_members(job: &Job) {
    job.array::<u64>(Layout::on(Rank(1), 8)).unwrap();
    job.array::<u64>(8i32).unwrap();
}

fn a_phase_is_of_arrays(job: &Job, a: &mut SharedArray<f64>) {
    job.phase(a, |_| ());
    job.phase([1, 2, 3], |_| ());
}

fn an_array_is_not_sent(job: &Job, a: SharedArray<f64>) {
    job.rpc(Rank(0), |_: &Job, a: SharedArray<f64>| (), a).wait();
}

fn main() {}
