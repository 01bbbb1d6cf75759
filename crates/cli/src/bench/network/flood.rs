//! A flood of messages: the ranks of eight processes send to one of a ninth as fast as they can, on nodes of their own.
//!
//! What counts is how much slower that is with the memory for messages that a process has by default
//! (`PARTAGE_AM_MEMORY`) than with so much that nobody ever waits for credits.

use crate::bench::{Figure, Limit, driver, launch, this_program};
use crate::scratch::Scratch;
use partage::am::Request;
use partage::prelude::*;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Instant;

/// Those of this kind.
pub static FIGURES: [Figure; 1] =
    [Figure { unit: "×", ..driver("net_am_flood", Limit::Value(1.25), slowdown) }.most(3)];

/// What a rank of it is called.
pub const RANK: &str = "flood";
const PROCESSES: usize = 9;
const RANKS: usize = 8 * PROCESSES;
/// Messages of each sender, and their lengths in turn.
const TIMES: usize = 600;
const LENGTHS: [usize; 8] = [8, 32, 8, 200, 8, 32, 2000, 8];

static ARRIVED: AtomicU64 = AtomicU64::new(0);
static ARRIVE: Request<()> = Request::new(|_, _, (), _| _ = ARRIVED.fetch_add(1, Relaxed));

/// How often the time with a setting at its largest the time by default is.
fn slowdown(out: &Scratch) -> Result<f64, String> {
    let time = |memory: Option<&str>| {
        let mut spec = this_program(RANKS, &[RANK, "1"])?;
        spec.args.push(out.path().into());
        spec.procs = PROCESSES;
        spec.env.push(("PARTAGE_NODE".into(), "process".into()));
        spec.env.extend(memory.map(|bytes| ("PARTAGE_AM_MEMORY".into(), bytes.into())));
        launch(&spec)?;
        out.take_text()?.trim().parse::<f64>().map_err(|e| e.to_string())
    };
    const LARGEST: Option<&str> = Some("4G");
    // In turns that are the same both ways.
    let times = [LARGEST, None, None, LARGEST].map(time);
    let [a, b, c, d] = times;
    Ok((b? + c?) / (a? + d?))
}

/// What a process of it does.
pub fn rank(out: &Path) {
    partage::run(|job| -> Result<(), String> {
        job.register_handlers(&[&ARRIVE]);
        let target = Rank(job.size() as u32 - 1);
        let sends = !job.same_node(target);
        job.barrier();
        let start = Instant::now();
        if sends {
            let bytes = [1; 2000];
            (0..TIMES).for_each(|i| job.am(target, &ARRIVE, (), &bytes[..LENGTHS[i % LENGTHS.len()]]));
        }
        job.quiet();
        job.barrier();
        let time = start.elapsed().as_secs_f64();
        if !sends {
            assert_eq!(ARRIVED.load(Relaxed), (TIMES * (RANKS - RANKS / PROCESSES)) as u64);
        }
        match job.rank() {
            Rank(0) => std::fs::write(out, time.to_string()).map_err(|e| format!("{}: {e}", out.display())),
            _ => Ok(()),
        }
    });
}
