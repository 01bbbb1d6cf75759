//! Blocking puts from private memory on a network that wants memory registered: kept by `job.register`, beside the same from memory
//! that nobody keeps, which is registered for each put; in microseconds. ("Porting GASNet to Portals", figure 5: a registration cache
//! against a descriptor for each transfer.)
//!
//! tcp registers nothing, so a shim demands it and takes some time for each page.

use crate::bench::Limit::Ratio;
use crate::bench::Mapping::Registering;
use crate::bench::measure::Measured;
use crate::bench::ranks::{Bench, now_ns};
use crate::bench::{Figure, job};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::Ordering::*;

/// Those of this kind.
pub static FIGURES: [Figure; 4] = [
    job("net_put_16k_register", 2, Registering, "us", Ratio(1.0), put::<{ 16 << 10 }>),
    job("net_put_64k_register", 2, Registering, "us", Ratio(1.0), put::<{ 64 << 10 }>),
    job("net_put_256k_register", 2, Registering, "us", Ratio(1.0), put::<{ 256 << 10 }>),
    job("net_put_1m_register", 2, Registering, "us", Ratio(1.0), put::<{ 1 << 20 }>),
];

/// What the network asks for: registration, which takes a quarter of a microsecond for each page.
pub const DEMANDS: &str = "local,cost=250";
/// Bytes that a sample moves.
const VOLUME: usize = 16 << 20;

/// A put of `LEN` bytes from memory that is kept registered, beside one that is not.
fn put<const LEN: usize>(b: &Bench) -> Measured {
    let there = b.job.alloc_all::<u8>(LEN).expect("a block").on(b.job.neighbor(1));
    let (kept, plain, turn) = (vec![1u8; LEN], vec![1u8; LEN], Cell::new(0));
    let kept = b.job.register(&kept).expect("registered memory");
    let sample = |src: &[u8]| {
        let (over, times) = (&b.board.turn.0, VOLUME / LEN);
        turn.set(turn.get() + 1);
        if b.me > 0 {
            while over.load(Acquire) < turn.get() {
                b.job.poll();
            }
            return 0.0;
        }
        let start = now_ns();
        (0..times).for_each(|_| there.put_slice(b.job, black_box(src)));
        let time = now_ns() - start;
        over.store(turn.get(), Release);
        time as f64 / times as f64 / 1e3
    };
    b.compare(|| sample(&kept), || sample(&plain))
}
