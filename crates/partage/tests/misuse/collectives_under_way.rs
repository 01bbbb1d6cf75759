//! A buffer of a collective is its own until that is complete, and lives as long.
#![allow(unused)]

use partage::prelude::*;

fn started_on_a_buffer_that_is_dead_before_the_scope(job: &Job) {
    job.scope(|s| {
        let mut mine = vec![1u64];
        let event = job.broadcast(&mut mine).start(s);
    });
}

fn read_before_it_is_there(job: &Job) {
    let mut mine = vec![1u64];
    job.scope(|s| {
        let event = job.broadcast(&mut mine).start(s);
        println!("{}", mine[0]);
        event.wait();
    });
}

fn read_in_the_scope_although_it_was_forgotten(job: &Job) {
    let (mine, mut all) = ([1u64], vec![]);
    job.scope(|s| {
        std::mem::forget(job.gather_all(&mine).to(&mut all).start(s));
        println!("{}", all.len());
    });
}

fn written_while_it_is_sent(job: &Job) {
    let (mut mine, mut all) = ([1u64], vec![]);
    job.scope(|s| {
        let event = job.gather_all(&mine).to(&mut all).start(s);
        mine[0] = 2;
        event.wait();
    });
}

fn two_into_one(job: &Job) {
    let (mine, mut all) = ([1u64], vec![]);
    job.scope(|s| {
        let first = job.gather_all(&mine).to(&mut all).start(s);
        let second = job.exchange(&mine).to(&mut all).start(s);
        first.wait();
    });
}

fn from_an_array_into_itself(job: &Job, a: &mut SharedArray<u64>) {
    job.permute(&*a, TeamRank(0)).to(a).run();
}

fn in_a_phase_of_its_array(job: &Job, a: &mut SharedArray<u64>) {
    a.own(|mine| job.permute(&*a, TeamRank(0)).to(mine).run());
}

fn a_phase_while_it_is_under_way(job: &Job, a: &mut SharedArray<u64>) {
    let mut all = vec![];
    job.scope(|s| {
        let event = job.gather_all(&*a).to(&mut all).start(s);
        a.own(|_| ());
        event.wait();
    });
}

fn an_event_leaves_its_scope(job: &Job) {
    let mut mine = [1u64];
    let event = job.scope(|s| job.broadcast(&mut mine).start(s));
    event.wait();
}

fn main() {}
