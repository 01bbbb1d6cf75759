//! Methods and types that are not there, or others.
#![allow(unused)]

use partage::prelude::*;

fn handles_are_not_copied(job: &Job, a: SharedArray<f64>) {
    let b: SharedArray<f64> = a.clone();
    let all: Team = job.all().clone();
    let other: Job = job.clone();
}

fn pointers_to_what_is_no_data(job: &Job, p: GlobalPtr<bool>, q: GlobalPtr<char>) {
    p.get(job);
    q.put(job, 'x');
}

fn what_a_word_does_not_have(a: SharedArray<f64>, b: SharedArray<u8>, c: SharedArray<GlobalPtr<u64>>) {
    a.at(0).fetch_xor(1.0);
    a.at(0).start().or(1.0);
    b.at(0).load();
    c.at(0).fetch_add(GlobalPtr::NULL);
    c.at(0).compare_exchange(GlobalPtr::NULL, 0u64);
}

fn elements_have_one_type(job: &Job, a: SharedArray<f64>, b: SharedArray<u64>) {
    a.put(0, 1u64);
    a.put_slice(0, &[1.0f32]);
    a.copy_to(.., &b, 0);
    let x: u64 = a.get(0);
}

fn kinds_of_rank_do_not_mix(job: &Job, a: SharedArray<f64>) {
    job.distance(job.all().rank());
    a.part_len(TeamRank(0));
    a.get(Rank(0));
}

fn a_frozen_array_is_no_slice(a: &mut SharedArray<f64>) {
    a.freeze(|all| all.put(0, 1.0));
}

fn main() {}
