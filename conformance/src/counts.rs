//! Blocks of different lengths: what every mapping must do.

use crate::{Case, Random, mixed, plenty, refusal};
use partage::prelude::*;

/// The cases.
pub const CASES: [Case; 3] = [
    ("exchanges of different lengths", exchanges),
    ("gathers and scatters of different lengths", gathers),
    ("wrong lengths", wrong),
];

/// How many elements go from one rank to another: often none, sometimes many.
fn count(key: u64, from: usize, to: usize) -> usize {
    let seed = mixed([key, from as u64, to as u64]) as usize;
    [0, 1, 3 + seed / 8 % 20, seed / 8 % 9000][seed % 4]
}

fn element(key: u64, from: usize, to: usize, i: usize) -> u32 {
    mixed([key, from as u64, to as u64, i as u64]) as u32
}

fn block(key: u64, from: usize, to: usize, n: usize) -> impl Iterator<Item = u32> {
    (0..n).map(move |i| element(key, from, to, i))
}

fn exchanges(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut random = Random::new(61);
    for k in 0..plenty(job, 300).min(12) {
        let key = random.draw();
        let counts: Vec<usize> = (0..size).map(|to| count(key, me, to)).collect();
        let expected_counts: Vec<usize> = (0..size).map(|from| count(key, from, me)).collect();
        let mine: Vec<u32> = (0..size).flat_map(|to| block(key, me, to, counts[to])).collect();
        let expected: Vec<u32> = (0..size).flat_map(|from| block(key, from, me, expected_counts[from])).collect();
        let mut come = vec![7; k];
        let came = job.exchange(&mine).counts(&counts).to(&mut come).run();
        assert_eq!(came, expected_counts, "{}", job.rank());
        assert!(come == expected, "{}: {counts:?}", job.rank());
        // A part of an array has room for more than comes; what it does not need stays as it is.
        let room = job.value(expected.len()).max() + 1;
        let array = job.array::<u32>(Layout::per_rank(room)).expect("a little memory");
        array.cells().write(0, &vec![77; room]);
        let sync = [(In::My, Out::My), (In::All, Out::All), (In::No, Out::No)][k % 3];
        let came = job.exchange(&mine).counts(&counts).to(array.slice(..)).sync(sync.0, sync.1).run();
        let mut found = vec![0; room];
        array.cells().read(0, &mut found);
        assert_eq!(came, expected_counts);
        assert!(found[..expected.len()] == expected && found[expected.len()..].iter().all(|&x| x == 77));
        // Nobody's memory goes before all have come.
        job.barrier();
    }
}

fn gathers(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut random = Random::new(67);
    for _ in 0..plenty(job, 300).min(12) {
        let (key, root) = (random.draw(), random.below(size));
        let counts: Vec<usize> = (0..size).map(|r| count(key, r, 0)).collect();
        let blocks: Vec<u32> = (0..size).flat_map(|r| block(key, r, 0, counts[r])).collect();
        let mine: Vec<u32> = block(key, me, 0, counts[me]).collect();
        let team_root = TeamRank(root as u32);

        let mut all = vec![];
        assert_eq!(job.gather_all(&mine).varying().to(&mut all).run(), counts);
        assert!(all == blocks, "{}: {counts:?}", job.rank());
        all.clear();
        job.gather_all(&mine).counts(&counts).to(&mut all).run();
        assert!(all == blocks);
        all.clear();
        let came = job.gather(&mine).root(team_root).varying().to(&mut all).run();
        assert_eq!(came, if me == root { counts.clone() } else { vec![0; size] });
        assert!(all == if me == root { &blocks[..] } else { &[] });

        let (source, sent): (&[u32], &[usize]) = if me == root { (&blocks, &counts) } else { (&[], &[]) };
        let mut come = vec![];
        let came = job.scatter(source).root(team_root).counts(sent).to(&mut come).run();
        assert_eq!(came.iter().sum::<usize>(), counts[me]);
        assert!(come == mine, "{}: {counts:?}", job.rank());
    }
}

fn wrong(job: &Job) {
    let size = job.size();
    let says = |said: String, what: &str| {
        assert!(said.contains(&format!("{}: ", job.rank())) && said.contains(what), "{said}")
    };
    let of = |counts: &[usize]| {
        let counts = counts.to_vec();
        refusal("wrong counts", move || job.exchange(&[1, 2, 3]).counts(&counts).to(&mut vec![]).run())
    };
    says(of(&vec![0; size + 1]), "one count for each rank");
    says(of(&vec![4; size]), "the counts make");
    if size > 1 {
        // Their sum would be that of the source, if it wrapped.
        let mut counts = vec![0; size];
        (counts[0], counts[1]) = (usize::MAX, 4);
        says(of(&counts), "more than any memory has");
    }
    says(refusal("no counts", || job.exchange(&[1]).varying().to(&mut vec![]).run()), "say what goes to each");
    says(refusal("a broadcast", || job.broadcast(&[1]).varying().to(&mut [0]).run()), "there are exchange");
    let in_place = || job.gather_all(&mut vec![1; 3]).varying().run();
    says(refusal("in place", in_place), "give a destination");
    job.barrier();
    if size > 1 {
        // A destination that is too short is found out before anything passes.
        let mut short = [0; 1];
        let said = refusal("no room", || job.gather_all(&[1, 2]).varying().to(&mut short).run());
        says(said, "room for 1");
    }
    job.barrier();
}
