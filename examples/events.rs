//! Everyone needs the parts of all others, in any order, and a ticket from rank 0. Everything is started at once; what comes
//! first is used first.
//!
//! `cargo run --release -p partage-examples --bin events`

use partage::prelude::*;
use partage::wait::wait_all;

const PART: usize = 1000;

fn main() {
    partage::run(|job| -> partage::Result {
        let mut parts = job.array::<u64>(Layout::per_rank(PART))?;
        let tickets = job.array::<u64>(Layout::on(0, 1))?;
        parts.own_each(|i, x| *x = i as u64);

        let ticket = tickets.at(0).start().fetch_add(1); // under way until it is needed
        let mut coming: Vec<_> = (0..job.size()).map(|b| Some(parts.fetch(parts.block(b)))).collect();
        let mut total = 0;
        while let Some((from, part)) = job.wait_any(&mut coming) {
            assert_eq!(part[0], (from * PART) as u64);
            total += part.iter().sum::<u64>();
        }
        let all = parts.len() as u64;
        assert_eq!(total, all * (all - 1) / 2);
        job.barrier(); // all have read

        // The ticket says which word of every part is mine to write. Nobody waits for one put after the other.
        let k = ticket.wait() as usize;
        let stores = (0..job.size()).map(|b| parts.store(b * PART + k, vec![total + b as u64]));
        wait_all(stores);
        job.barrier();

        // Events that nobody wants are dropped, not cancelled; `quiet` waits for all that this rank has started.
        let right = job.neighbor(1).index() * PART;
        (0..job.size()).for_each(|k| drop(parts.at(right + k).start().sub(total)));
        job.quiet();
        job.barrier();
        let written = parts.cells();
        assert!((0..job.size()).all(|k| written.get(k) == job.rank().index() as u64));
        Ok(())
    });
}
