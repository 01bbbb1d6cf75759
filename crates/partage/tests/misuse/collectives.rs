//! What a collective reads and writes is said by its types; a buffer of one that is under way belongs to it.
#![allow(unused)]

use partage::prelude::*;

fn no_destination(job: &Job) {
    let mine = vec![1u64];
    job.gather(&mine).run();
}

fn no_destination_of_a_slice(job: &Job, a: &SharedArray<u64>) {
    job.broadcast(a.slice(..)).run();
}

fn started_without_destination(job: &Job, a: &SharedArray<u64>) {
    job.scope(|s| job.exchange(a).start(s).wait());
}

fn a_destination_that_is_only_read(job: &Job) {
    let (mine, all) = (vec![1u64], vec![0u64; 9]);
    job.gather(&mine).to(&all).run();
}

fn a_root_that_is_a_rank_of_the_job(job: &Job) {
    let mut mine = vec![1u64];
    job.broadcast(&mut mine).root(Rank(0)).run();
}

fn a_permutation_to_a_rank_of_the_job(job: &Job) {
    let mut mine = [1u64];
    job.permute(&mut mine, job.neighbor(1)).run();
}

fn types_that_differ(job: &Job) {
    let (mine, mut all) = (vec![1u64], vec![0u32; 9]);
    job.gather(&mine).to(&mut all).run();
}

fn types_of_arrays_that_differ(job: &Job, a: &SharedArray<u64>, b: &mut SharedArray<i64>) {
    job.permute(a, TeamRank(0)).to(b).run();
}

fn what_is_no_plain_data(job: &Job) {
    job.gather_all(&[true]).to(&mut vec![]).run();
}

fn a_value_that_is_no_plain_data(job: &Job) {
    job.value("words").gather_all();
}

fn a_plan_of_another_type(job: &Job) {
    let plan = job.broadcast(&mut [1u64]).plan();
    plan.on(&mut [1.0f64]).run();
}

fn main() {}
