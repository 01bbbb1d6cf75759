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
