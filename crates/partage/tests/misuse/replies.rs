//! A request is answered once, and handlers are statics, which every process has.
#![allow(unused)]

use partage::am::{Reply, Request};
use partage::prelude::*;

static DONE: Reply<u64> = Reply::new(|_, _, _, _| ());
static TWICE: Request<u64> = Request::new(|token, _, n, _| {
    token.reply(&DONE, n, &[]);
    token.reply(&DONE, n, &[]);
});

fn a_handler_on_the_stack(job: &Job) {
    let local = Request::<u64>::new(|_, _, _, _| ());
    job.register_handlers(&[&local]);
}

fn main() {}
