//! Streams of letters that are posted on a board: some members behind others, other letters between them, several under way at once.

use super::are_stores;
use super::calls::Op::*;
use super::calls::{Call, INS, Kind, OUTS, Pool, SLICES};
use crate::late::falls_behind;
use crate::{Random, attempt, mixed, plenty};
use partage::prelude::*;

/// Contexts and lines are used again and again.
pub(super) fn posted(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let (mut random, mut own) = (Random::new(51), Random::new(mixed([51, me as u64])));
    // Where there is no board, there are letters to each.
    let is_there = are_stores(job);
    let pool = Pool::<u64>::new(job, 3 * 14 * size);
    for round in 0..plenty(job, 12_000).min(1500) as u64 {
        if own.below(12) == 0 {
            falls_behind(job, 1 + own.below(4));
        }
        let mut draw = || {
            let op = [Broadcast, Scatter, Gather, GatherAll, Permute][random.below(5)];
            let (private, in_place) = ((Kind::Private, Some(Kind::Private)), (Kind::Private, None));
            let kinds = [private, private, in_place, SLICES][random.below(4)];
            let sync = (INS[1 + random.below(2)], OUTS[1 + random.below(2)]);
            // In parts, too, each of which is a collective of its own.
            let (posted, most) =
                [("flat:post", 7), ("flat:post", 7), ("flat:mail", 7), ("flat:post@24", 14)][random.below(4)];
            let name = match posted {
                name if is_there => name,
                "flat:post@24" => "flat:mail@24",
                _ => "flat:mail",
            };
            let n = 1 + random.below(most);
            Call { sync, algorithm: Some(name), ..Call::new(job, op, n, kinds, &mut random) }
        };
        match round % 4 {
            0 => together(&pool, &[draw(), draw(), draw()], &mut own),
            1 => reduced(job, round, if is_there { "flat:post" } else { "flat:mail" }),
            _ => pool.once(&draw(), 0),
        }
    }
    // What has no board says so, or that it is no letter.
    let long = Call { algorithm: Some("flat:post"), ..Call::new(job, Broadcast, 8, SLICES, &mut random) };
    let why = if is_there { "a letter has 56 bytes" } else { "ranks are on several nodes" };
    is_refused(&pool, &long, why);
    let exchange = Call { algorithm: Some("flat:post"), ..Call::new(job, Exchange, 1, SLICES, &mut random) };
    is_refused(&pool, &exchange, "it does not do that");
}

/// Several are under way; each rank waits for them in its own order.
fn together(pool: &Pool<u64>, calls: &[Call], own: &mut Random) {
    let job = pool.job;
    let mut all: Vec<_> =
        calls.iter().enumerate().map(|(i, call)| (call, pool.ends(call, 14 * job.size() * i))).collect();
    job.scope(|s| {
        let mut events: Vec<_> = all.iter_mut().map(|(call, ends)| ends.of(job, call).start(s)).collect();
        while !events.is_empty() {
            events.swap_remove(own.below(events.len())).wait();
        }
    });
    all.iter().for_each(|(call, ends)| ends.check(job, call));
}

/// Sums of all, of those up to each, and on one.
fn reduced(job: &Job, key: u64, name: &str) {
    let (me, size, n) = (job.rank().index(), job.size(), 1 + key as usize % 7);
    let of = |r: usize| (0..n).map(move |i| mixed([key, r as u64, i as u64]) >> 8).collect::<Vec<u64>>();
    let sums = |ranks: usize| {
        let add = |a: Vec<u64>, r| a.iter().zip(of(r)).map(|(a, b)| a + b).collect();
        (0..ranks).fold(vec![0; n], add)
    };
    let (mut all, mut before, mut one) = (of(me), vec![1; n], vec![2; n]);
    let root = TeamRank((key / 4 % size as u64) as u32);
    job.all_reduce(&mut all, Sum).algorithm(name).run();
    job.prefix_reduce(&of(me), Sum).to(&mut before[..]).algorithm(name).run();
    job.reduce(&of(me), Sum).to(&mut one[..]).root(root).algorithm(name).run();
    assert_eq!((all, before), (sums(size), sums(me + 1)), "round {key}");
    assert_eq!(one, if me == root.index() { sums(size) } else { vec![2; n] }, "round {key}");
}

fn is_refused(pool: &Pool<u64>, call: &Call, why: &str) {
    let said = attempt(|| pool.once(call, 0)).expect_err("it has no such letters");
    assert!(said.contains("flat:post") && said.contains(why), "{said}");
}
