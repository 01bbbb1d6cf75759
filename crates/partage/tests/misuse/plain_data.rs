//! Shared memory holds plain data only: any bytes must be a value.
#![allow(unused)]

use partage::prelude::*;

fn arrays(job: &Job) {
    job.array::<bool>(8).unwrap();
    job.array::<char>(8).unwrap();
    job.array::<&'static str>(8).unwrap();
    job.array::<Option<u64>>(8).unwrap();
    job.array::<String>(8).unwrap();
    job.array::<Box<u64>>(8).unwrap();
    job.array::<*const u64>(8).unwrap();
    job.array::<std::num::NonZeroU64>(8).unwrap();
    job.array::<std::sync::atomic::AtomicU64>(8).unwrap();
    job.array::<std::cell::Cell<u64>>(8).unwrap();
    job.array::<fn()>(8).unwrap();
    job.array::<(u8, u64)>(8).unwrap();
    job.array::<SharedArray<u64>>(8).unwrap();
}

fn blocks(job: &Job) {
    job.alloc(true).unwrap();
    job.alloc_slice::<Vec<u8>>(4).unwrap();
    job.alloc_all::<&'static str>(4).unwrap();
}

struct Unmarked {
    x: u64,
}

fn a_type_that_does_not_say_so(job: &Job) {
    job.array::<Unmarked>(8).unwrap();
}

fn a_handle_is_no_data() -> SharedArray<u64> {
    Zeroable::zeroed()
}

fn main() {}
