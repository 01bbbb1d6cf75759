//! Random traffic with checked contents.

use crate::Random;
use partage::prelude::*;
use std::time::{Duration, Instant};

/// Rounds of random puts and gets of random lengths to random places, each checked by its owner after a barrier, until
/// the time is over. Each rank writes only into its own stripe of every segment, so that what must arrive is known.
pub fn traffic(job: &Job, time: Duration, seed: u64) {
    const STRIPE: usize = 16 << 10;
    let (me, n) = (job.rank().index(), job.size());
    let block = job.alloc_all::<u8>(STRIPE * n).expect("16 KiB per pair");
    let go_on = job.alloc_all::<u8>(1).expect("a byte");
    let begun = Instant::now();
    // What each rank has written into each segment is known to all: the same generator runs everywhere.
    let mut image = vec![vec![0u8; STRIPE]; n];
    for round in 0u64.. {
        if me == 0 {
            let more = u8::from(begun.elapsed() < time);
            job.ranks().for_each(|r| go_on.on(r).put(job, more));
        }
        job.barrier_with(round);
        if go_on.get(job) == 0 {
            break;
        }
        for (from, image) in image.iter_mut().enumerate() {
            let mut random = Random::new(seed ^ round << 20 ^ from as u64);
            for _ in 0..8 {
                let (to, start) = (random.below(n), random.below(STRIPE));
                let long = if random.below(4) == 0 { STRIPE } else { 64 };
                let len = random.below(long.min(STRIPE - start) + 1);
                let bytes: Vec<u8> = (0..len).map(|i| (random.0 >> (i % 57)) as u8 ^ i as u8).collect();
                random.draw();
                if from == me {
                    block.on(Rank(to as u32)).add(me * STRIPE + start).put_slice(job, &bytes);
                }
                if to == me {
                    image[start..start + len].copy_from_slice(&bytes);
                }
            }
        }
        job.barrier();
        let mut got = vec![0; STRIPE];
        for (from, want) in image.iter().enumerate() {
            block.add(from * STRIPE).get_slice(job, &mut got);
            assert!(got == *want, "{}: round {round}: what {from} wrote did not arrive whole", job.rank());
        }
        // And from afar: my own writes in somebody else's segment, as that rank sees them.
        let other = job.neighbor(1 + (round as i64 % n as i64));
        let at = (round as usize * 97) % (STRIPE - 8);
        block.on(other).add(me * STRIPE + at).get_slice(job, &mut got[..8]);
        if other == job.rank() {
            assert_eq!(got[..8], image[me][at..at + 8]);
        }
        job.barrier();
    }
    job.barrier();
    job.free_all(go_on);
    job.free_all(block);
}
