//! Handlers and called functions: what they take, and that they capture nothing.
#![allow(unused)]

use partage::am::{Reply, Request, Token};
use partage::prelude::*;

static ADD: Request<u64> = Request::new(|_, _, _, _| ());
static DONE: Reply<u64> = Reply::new(|_, _, _, _| ());

/// A reply is not answered; its handler has no token.
static ANSWERED: Reply<u64> = Reply::new(|token: Token<'_>, _, n, _| token.reply(&DONE, n, &[]));

/// Arguments of a message are plain data.
static WORDS: Request<String> = Request::new(|_, _, _, _| ());

fn a_reply_is_not_sent_by_itself(job: &Job) {
    job.am(Rank(1), &DONE, 1, &[]);
}

fn arguments_are_those_that_the_handler_takes(job: &Job) {
    job.am(Rank(1), &ADD, 1u32, &[]);
}

fn a_handler_sees_no_job(job: &Job) {
    let handler = Request::<u64>::new(|_, _, _, _| job.barrier());
}

fn a_handler_sees_no_array(a: &SharedArray<u64>) {
    let handler = Request::<u64>::new(|_, _, _, _| a.put(0, 1));
}

fn a_called_function_captures_nothing(job: &Job, a: &SharedArray<u64>) {
    let x = 5u64;
    job.rpc(Rank(0), |_: &Job, y: u64| x + y, 1u64).wait();
    job.rpc(Rank(0), |_: &Job, i: usize| a.get(i), 1).wait();
}

#[derive(Clone, Copy)]
struct Token0;

fn not_even_what_has_no_size(job: &Job) {
    let token = Token0;
    let f = |_: &Job, y: u64| {
        let _t = token;
        y
    };
    job.rpc(Rank(0), f, 1u64).wait();
}

fn an_object_is_what_it_is(job: &Job) {
    let object = job.dist(vec![1u64]);
    object.tell(Rank(0), |v: &mut Vec<u32>, x: u32| v.push(x), 3);
}

fn main() {}
