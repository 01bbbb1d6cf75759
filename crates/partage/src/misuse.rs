//! What must not compile: each a program that would be unsound or wrong if it did.
//!
//! A rank's handle stays on its thread:
//! ```compile_fail,E0277
//! partage::test(2, |job| std::thread::scope(|s| { s.spawn(|| job.barrier()); }));
//! ```
//! A rank's handle does not leave the job:
//! ```compile_fail,E0521
//! use std::cell::Cell;
//! thread_local! { static KEPT: Cell<Option<&'static partage::Job>> = Cell::new(None); }
//! partage::test(2, |job| KEPT.set(Some(job)));
//! ```
//! Shared memory holds plain data only: any bytes must be a value.
//! ```compile_fail,E0277
//! partage::test(2, |job| { job.alloc(true).unwrap(); });
//! ```
//! ```compile_fail,E0277
//! partage::test(2, |job| { job.alloc_all::<&'static str>(4).unwrap(); });
//! ```
//! ```compile_fail,E0599
//! fn read(job: &partage::Job, p: partage::ptr::GlobalPtr<char>) -> char { p.get(job) }
//! ```
//! A buffer in flight is not read before its event gives it back:
//! ```compile_fail,E0502
//! partage::test(2, |job| {
//!     let there = job.alloc_all::<u64>(4).unwrap();
//!     let mut buffer = [0; 4];
//!     job.scope(|s| {
//!         let event = s.get_ptr(there, &mut buffer);
//!         println!("{buffer:?}");
//!         event.wait();
//!     });
//! });
//! ```
//! A buffer outlives the scope in which it is in flight:
//! ```compile_fail,E0597
//! partage::test(2, |job| {
//!     let there = job.alloc_all::<u64>(4).unwrap();
//!     job.scope(|s| {
//!         let buffer = [0; 4];
//!         let _ = s.put_ptr(there, &buffer);
//!     });
//! });
//! ```
//! An event does not leave its scope:
//! ```compile_fail
//! partage::test(2, |job| {
//!     let there = job.alloc_all::<u64>(4).unwrap();
//!     let buffer = [0; 4];
//!     let event = job.scope(|s| s.put_ptr(there, &buffer));
//!     event.wait();
//! });
//! ```
//! A split barrier is waited for once:
//! ```compile_fail,E0382
//! partage::test(2, |job| {
//!     let there = job.notify(None);
//!     there.wait(None);
//!     there.wait(None);
//! });
//! ```
//! The two kinds of rank do not mix:
//! ```compile_fail,E0308
//! partage::test(2, |job| job.distance(job.all().rank()));
//! ```
//! A request is answered once:
//! ```compile_fail,E0382
//! use partage::am::{Reply, Request};
//! static TWICE: Request<u64> = Request::new(|token, _, n, _| {
//!     token.reply(&DONE, n, &[]);
//!     token.reply(&DONE, n, &[]);
//! });
//! static DONE: Reply<u64> = Reply::new(|_, _, _, _| ());
//! ```
//! A reply is not answered; its handler has no token:
//! ```compile_fail,E0308
//! use partage::am::{Reply, Token};
//! static DONE: Reply<u64> = Reply::new(|token: Token<'_>, _, n, _| token.reply(&DONE, n, &[]));
//! ```
//! A reply comes from a request that was asked; a reply handler is not sent by itself:
//! ```compile_fail,E0308
//! use partage::am::Reply;
//! use partage::prelude::*;
//! static DONE: Reply<u64> = Reply::new(|_, _, _, _| ());
//! partage::test(2, |job| job.am(Rank(1), &DONE, 1, &[]));
//! ```
//! The arguments of a message are plain data, those that its handler takes, and no more than 64 bytes:
//! ```compile_fail,E0277
//! static WORDS: partage::am::Request<String> = partage::am::Request::new(|_, _, _, _| ());
//! ```
//! ```compile_fail,E0308
//! use partage::prelude::*;
//! static ADD: partage::am::Request<u64> = partage::am::Request::new(|_, _, _, _| ());
//! partage::test(2, |job| job.am(Rank(1), &ADD, 1u32, &[]));
//! ```
//! ```compile_fail,E0080
//! static LONG: partage::am::Request<[u64; 9]> = partage::am::Request::new(|_, _, _, _| ());
//! ```
//! A handler is a static, which every process has:
//! ```compile_fail,E0597
//! use partage::am::Request;
//! partage::test(2, |job| {
//!     let local = Request::<u64>::new(|_, _, _, _| ());
//!     job.register_handlers(&[&local]);
//! });
//! ```
//! A handler sees no job, and captures nothing:
//! ```compile_fail,E0308
//! partage::test(2, |job| {
//!     let handler = partage::am::Request::<u64>::new(|_, _, _, _| job.barrier());
//! });
//! ```
//! A called function captures nothing, not even what has no size:
//! ```compile_fail,E0308
//! use partage::prelude::*;
//! partage::test(2, |job| {
//!     let x = 5u64;
//!     job.rpc(Rank(0), |_: &Job, y: u64| x + y, 1u64).wait();
//! });
//! ```
//! ```compile_fail,E0308
//! use partage::prelude::*;
//! #[derive(Clone, Copy)]
//! struct Token;
//! partage::test(2, |job| {
//!     let token = Token;
//!     job.rpc(Rank(0), |_: &Job, y: u64| { let _t = token; y }, 1u64).wait();
//! });
//! ```
//! Its arguments and its result are owned:
//! ```compile_fail
//! use partage::prelude::*;
//! partage::test(2, |job| {
//!     let words = String::new();
//!     job.rpc(Rank(0), |_: &Job, y: &str| y.len(), &words[..]).wait();
//! });
//! ```
//! ```compile_fail
//! use partage::prelude::*;
//! partage::test(2, |job| { job.rpc(Rank(0), |j: &Job, _: u64| j, 1u64).wait(); });
//! ```
//! A function of a distributed object takes what that object is:
//! ```compile_fail
//! use partage::prelude::*;
//! partage::test(2, |job| {
//!     let d = job.dist(vec![1u64]);
//!     d.tell(Rank(0), |v: &mut Vec<u32>, x: u32| v.push(x), 3);
//! });
//! ```
//! A distributed object, and the event of a call, stay on their rank's thread:
//! ```compile_fail,E0277
//! partage::test(2, |job| {
//!     let d = job.dist(1u64);
//!     std::thread::scope(|s| { s.spawn(|| d.with(|x| *x += 1)); });
//! });
//! ```
