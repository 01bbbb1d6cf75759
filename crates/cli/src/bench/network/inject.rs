//! What a message costs when all ranks of a node send at once, by how they are processes and threads: the measurements of
//! Blagojević, Hargrove, Iancu and Yelick, "Hybrid PGAS Runtime Support for Multicore Nodes", 2010, figures 2 to 5.
//!
//! Two nodes of four ranks: `1t4p` is one thread in each of four processes, `4t1p` four threads of one process. The ranks of
//! the first put, those of the second wait meanwhile. *Blocking*: a put at a time, until it is there. *Flood*: 1024 puts are
//! started before the first is waited for, as far as the conduit lets them. *One* partner, or *many*: the next one with each
//! message. The figure is the time of the slowest rank for each of its messages; messages of the node in a second are four by
//! that.
//!
//! All of it is on one machine, so the cores that receive are those that send: it compares mappings, not machines.

use crate::bench::Mapping::Nodes;
use crate::bench::measure::Measured;
use crate::bench::ranks::{Bench, now_ns};
use crate::bench::{Figure, Limit, job};
use partage::prelude::*;
use std::hint::black_box;
use std::sync::atomic::Ordering::*;

/// Ranks of both nodes.
const RANKS: usize = 8;
/// Processes of both, for `1t4p`, `2t2p` and `4t1p`.
const PROCS: [usize; 3] = [8, 4, 2];

/// Those of this kind.
pub static FIGURES: [Figure; 18] = [
    of("net_inject_8_blocking_one_1t4p", PROCS[0], inject::<8, 1, false>),
    of("net_inject_8_blocking_one_2t2p", PROCS[1], inject::<8, 1, false>),
    of("net_inject_8_blocking_one_4t1p", PROCS[2], inject::<8, 1, false>),
    of("net_inject_8_blocking_many_1t4p", PROCS[0], inject::<8, 1, true>),
    of("net_inject_8_blocking_many_2t2p", PROCS[1], inject::<8, 1, true>),
    of("net_inject_8_blocking_many_4t1p", PROCS[2], inject::<8, 1, true>),
    of("net_inject_8_flood_one_1t4p", PROCS[0], inject::<8, FLOOD, false>),
    of("net_inject_8_flood_one_2t2p", PROCS[1], inject::<8, FLOOD, false>),
    of("net_inject_8_flood_one_4t1p", PROCS[2], inject::<8, FLOOD, false>),
    of("net_inject_8_flood_many_1t4p", PROCS[0], inject::<8, FLOOD, true>),
    of("net_inject_8_flood_many_2t2p", PROCS[1], inject::<8, FLOOD, true>),
    of("net_inject_8_flood_many_4t1p", PROCS[2], inject::<8, FLOOD, true>),
    of("net_inject_16k_flood_one_1t4p", PROCS[0], inject::<{ 16 << 10 }, FLOOD, false>),
    of("net_inject_16k_flood_one_2t2p", PROCS[1], inject::<{ 16 << 10 }, FLOOD, false>),
    of("net_inject_16k_flood_one_4t1p", PROCS[2], inject::<{ 16 << 10 }, FLOOD, false>),
    of("net_inject_16k_flood_many_1t4p", PROCS[0], inject::<{ 16 << 10 }, FLOOD, true>),
    of("net_inject_16k_flood_many_2t2p", PROCS[1], inject::<{ 16 << 10 }, FLOOD, true>),
    of("net_inject_16k_flood_many_4t1p", PROCS[2], inject::<{ 16 << 10 }, FLOOD, true>),
];

/// Puts of a flood that are started before one is waited for.
const FLOOD: usize = 1024;
/// Blocking puts of a sample.
const TRIPS: usize = 100;

const fn of(name: &'static str, procs: usize, what: fn(&Bench) -> Measured) -> Figure {
    job(name, RANKS, Nodes { procs }, "us", Limit::None, what).most(9)
}

/// Puts of `LEN` bytes, so many at a time, to one rank of the other node or to all in turn.
fn inject<const LEN: usize, const AT_ONCE: usize, const MANY: bool>(b: &Bench) -> Measured {
    let (job, half) = (b.job, b.job.size() / 2);
    let block = job.alloc_all::<u8>(LEN * half).expect("a block");
    let src = vec![1; LEN];
    let times = if AT_ONCE == 1 { TRIPS } else { AT_ONCE };
    let to = |i: usize| {
        let partner = half + if MANY { (b.me + i) % half } else { b.me };
        block.on(Rank(partner as u32)).add(LEN * b.me)
    };
    b.alone(|| {
        if b.me < half {
            let start = now_ns();
            match AT_ONCE {
                1 => (0..times).for_each(|i| to(i).put_slice(job, black_box(&src))),
                // The scope waits for all.
                _ => job.scope(|s| (0..times).for_each(|i| drop(s.put_ptr(to(i), black_box(&src))))),
            }
            b.board.of[b.me].0.store(now_ns() - start, Relaxed);
        }
        job.barrier();
        let slowest = (0..half).map(|r| b.board.of[r].0.load(Relaxed)).max().unwrap_or(0);
        slowest as f64 / times as f64 / 1e3
    })
}
