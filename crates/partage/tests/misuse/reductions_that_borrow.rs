//! A function that is kept borrows nothing; a buffer of a reduction that is under way belongs to it.
#![allow(unused)]

use partage::prelude::*;

fn a_function_that_borrows(job: &Job) {
    let k = 3u64;
    let mut v = vec![1u64];
    let plan = job.all_reduce(&mut v, Commutative(|a: u64, b| a + b * *&k)).plan();
}

fn a_result_that_is_read_before_it_is_there(job: &Job) {
    let mut v = vec![1u64];
    job.scope(|s| {
        let event = job.all_reduce(&mut v, Sum).start(s);
        println!("{}", v[0]);
        event.wait();
    });
}

fn a_buffer_that_dies_first(job: &Job) {
    job.scope(|s| {
        let mut v = vec![1u64];
        let event = job.all_reduce(&mut v, Sum).start(s);
    });
}

fn main() {}
