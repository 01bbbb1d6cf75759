//! A buffer in flight is not touched before its event gives it back, and outlives the scope in which it is in flight.
#![allow(unused)]

use partage::prelude::*;

fn read_before_it_is_there(job: &Job, there: GlobalPtr<u64>) {
    let mut buffer = [0; 4];
    job.scope(|s| {
        let event = s.get_ptr(there, &mut buffer);
        println!("{buffer:?}");
        event.wait();
    });
}

fn of_an_array_too(job: &Job, a: &SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        let event = s.get(a, 0, &mut buffer);
        println!("{}", buffer[0]);
        event.wait();
    });
}

fn read_in_the_scope_although_it_was_forgotten(job: &Job, a: &SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        std::mem::forget(s.get(a, 0, &mut buffer));
        println!("{}", buffer[0]);
    });
}

fn written_while_it_is_sent(job: &Job, a: &SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        let event = s.put(a, 0, &buffer);
        buffer[0] = 1.0;
        event.wait();
    });
}

fn two_gets_into_one(job: &Job, a: &SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        let first = s.get(a, 0, &mut buffer);
        let second = s.get(a, 1, &mut buffer);
        first.wait();
    });
}

fn dead_before_the_scope(job: &Job, there: GlobalPtr<u64>) {
    job.scope(|s| {
        let buffer = [0; 4];
        let _ = s.put_ptr(there, &buffer);
    });
}

fn dead_before_the_scope_of_an_array(job: &Job, a: &SharedArray<f64>) {
    job.scope(|s| {
        let mut buffer = [0.0; 8];
        let event = s.get(a, 0, &mut buffer);
    });
}

fn an_array_that_is_dead_before_the_scope(job: &Job) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        let a = job.array::<f64>(8).unwrap();
        let _ = s.get(&a, 0, &mut buffer);
    });
}

fn an_event_leaves_its_scope(job: &Job, there: GlobalPtr<u64>) {
    let buffer = [0; 4];
    let event = job.scope(|s| s.put_ptr(there, &buffer));
    event.wait();
}

fn an_event_of_an_array_leaves_its_scope(job: &Job, a: &SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    let event = job.scope(|s| s.get(a, 0, &mut buffer));
    event.wait();
}

fn an_event_is_waited_for_twice(a: &SharedArray<f64>) {
    let event = a.fetch(..);
    event.wait();
    event.wait();
}

fn what_is_stored_belongs_to_the_runtime(a: &SharedArray<f64>) {
    let values = vec![1.0; 8];
    let event = a.store(0, values);
    println!("{values:?}");
}

fn a_split_barrier_is_waited_for_twice(job: &Job) {
    let there = job.notify(None);
    there.wait(None);
    there.wait(None);
}

fn main() {}
