//! A message is read in its slot, by its receiver, one at a time.
#![allow(unused)]

use partage::prelude::*;

fn two_messages_at_once(job: &Job) {
    let mut from = job.inbox::<u64>(Rank(0), 1, 1).unwrap();
    let a = from.wait();
    let b = from.wait();
    println!("{}", a[0]);
}

fn a_slot_that_is_written(job: &Job) {
    let mut from = job.inbox::<u64>(Rank(0), 1, 1).unwrap();
    let mut a = from.wait();
    a[0] = 1;
}

fn an_element_that_outlives_its_slot(job: &Job) {
    let mut from = job.inbox::<u64>(Rank(0), 1, 1).unwrap();
    let a = from.wait();
    let first = &a[0];
    drop(a);
    println!("{first}");
}

fn an_inbox_that_goes_before_its_message(job: &Job) {
    let mut from = job.inbox::<u64>(Rank(0), 1, 1).unwrap();
    let a = from.wait();
    drop(from);
    println!("{}", a[0]);
}

fn main() {}
