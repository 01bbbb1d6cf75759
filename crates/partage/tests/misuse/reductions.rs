//! A type has the operations that it has; a function that is kept borrows nothing.
#![allow(unused)]

use partage::prelude::*;

fn bits_of_floats(job: &Job) {
    let mut v = vec![1.0f64];
    job.all_reduce(&mut v, Xor).run();
}

fn a_sum_of_what_has_none(job: &Job) {
    job.value(Rank(3)).sum();
}

fn a_function_of_another_type(job: &Job, a: &SharedArray<u64>) {
    job.fold(a, Commutative(|x: u32, y: u32| x.max(y))).run();
}

fn a_function_that_owns<F: Fn(u64, u64) -> u64 + Clone + 'static>(job: &Job, f: F) {
    job.all_reduce(&mut [1u64], Commutative(f)).run();
}

fn no_destination(job: &Job) {
    job.prefix_reduce(&[1u64], Sum).run();
}

fn a_prefix_without_destination(job: &Job, a: &SharedArray<u64>) {
    job.prefix_fold(a, Sum).run();
}

fn a_mover_that_is_exclusive(job: &Job) {
    job.broadcast(&mut [1u64]).exclusive().run();
}

fn counts_of_a_reduction(job: &Job) {
    job.all_reduce(&mut [1u64], Sum).counts(&[1]).run();
}

fn main() {}
