//! Sums of floating-point numbers: which are added first depends on the call and the algorithm, never on who comes when.

use super::{AllReduce, Call, Kind, OPS, Prefix, Reduce};
use crate::late::falls_behind;
use crate::{Random, attempt, is_left_out, mixed};
use partage::prelude::*;

/// The table's choice, and some by name.
const NAMES: [Option<&str>; 17] = [
    None,
    Some("flat:push"),
    Some("flat:pull"),
    Some("flat:mail"),
    Some("slices:push"),
    Some("slices:pull"),
    Some("tree2:push"),
    Some("tree3:pull"),
    Some("chain/4:pull"),
    Some("ring:push"),
    Some("doubling:push"),
    Some("doubling:mail"),
    Some("leaders:pull"),
    Some("nodes2:push"),
    Some("dissemination:push"),
    Some("last"),
    Some("coop@1k"),
];

/// Elements of a call.
const LENGTHS: [usize; 3] = [1, 6, 200];

/// A number of so many bits that every order of additions rounds otherwise.
fn number(key: u64, rank: usize, i: usize) -> f64 {
    let seed = mixed([key, rank as u64, i as u64]);
    (seed >> 11) as f64 * 2f64.powi((seed % 40) as i32)
}

/// The bits of the sums of these ranks' numbers, added one after the other.
fn sums(key: u64, ranks: impl Iterator<Item = usize> + Clone, n: usize) -> Vec<u64> {
    let sum = |i: usize| ranks.clone().map(|r| number(key, r, i)).reduce(|a, b| a + b);
    (0..n).map(|i| sum(i).unwrap_or(0.0).to_bits()).collect()
}

/// Each rank is late one time in three.
fn sometimes_late(job: &Job, own: &mut Random) {
    if own.below(3) == 0 {
        falls_behind(job, 1 + own.below(3));
    }
}

pub fn same(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let (mut random, mut own) = (Random::new(89), Random::new(mixed([89, me as u64])));
    if size > 2 {
        assert_ne!(sums(1, 0..size, 200), sums(1, (0..size).rev(), 200), "the order matters");
    }
    let array = |n: usize| job.array::<f64>(Layout::per_rank(n)).expect("a little memory");
    let mut arrays = LENGTHS.map(|n| [array(n), array(n)]);
    for (op, name) in OPS.into_iter().flat_map(|op| NAMES.map(|name| (op, name))) {
        if name.is_some() && is_left_out(&mut random) {
            continue;
        }
        let which = random.below(3);
        let n = LENGTHS[which];
        // One rank touches all data in arrays only.
        let alone = name.is_some_and(|name| name == "last" || name.starts_with("coop"));
        let kind = if alone || random.below(2) == 0 { Kind::Shared } else { Kind::Private };
        let call = Call::new(job, op, n, (kind, Some(kind)), &mut random);
        let call = Call { sync: (In::All, Out::All), algorithm: name, ..call };
        let mine: Vec<f64> = (0..n).map(|i| number(call.key, me, i)).collect();
        let [from, into] = &mut arrays[which];
        let mut once = || {
            let mut come = vec![0.0; n];
            sometimes_late(job, &mut own);
            match kind {
                Kind::Private => call.of(job, &mine).to(&mut come).run(),
                Kind::Shared => {
                    from.cells().write(0, &mine);
                    into.cells().write(0, &come);
                    call.of(job, &*from).to(&mut *into).run();
                    into.cells().read(0, &mut come);
                }
            }
            come.iter().map(|x| x.to_bits()).collect::<Vec<u64>>()
        };
        let first = match attempt(&mut once) {
            Ok(first) => first,
            Err(said) => {
                assert!(name.is_some() && said.contains(" cannot be taken: "), "{call:?}: {said}");
                continue;
            }
        };
        for round in 1..4 {
            assert_eq!(once(), first, "rank {me}, round {round}: {call:?}");
        }
        if op == AllReduce {
            let all = first.iter().fold(call.key, |all, &bits| mixed([all, bits]));
            assert_eq!(job.value(all).gather_all(), vec![all; size], "all ranks have the same: {call:?}");
        }
        // These add from the first rank's on, one after the other.
        if name.is_some_and(|name| alone || name.starts_with("flat") || name.starts_with("slices")) {
            let ranks = match op {
                Reduce if me != call.root => 0..0,
                Reduce | AllReduce => 0..size,
                Prefix => 0..me + 1,
                _ => 0..me,
            };
            assert_eq!(first, sums(call.key, ranks, n), "rank {me}: {call:?}");
        }
    }
    folds(job, &mut own);
}

/// The same of sequences: of a long array, of a part of it, and of memory of the ranks' own.
fn folds(job: &Job, own: &mut Random) {
    let (me, size) = (job.rank().index(), job.size());
    let layout = Layout::block_cyclic(900 * size, 700);
    let [a, mut b] = [(); 2].map(|()| job.array::<f64>(layout).expect("a little memory"));
    a.my_indices().for_each(|i| a.put(i, number(3, i, 0)));
    let mine: Vec<f64> = (0..100 + me).map(|i| number(5, me, i)).collect();
    let mut first = None;
    for round in 0..4 {
        sometimes_late(job, own);
        let whole = job.fold(&a, Sum).run();
        let part = job.fold(a.slice(3..a.len() - 5), Sum).run();
        let all = [whole, part, job.fold(&mine, Sum).run()].map(|sum| sum.expect("some elements").to_bits());
        job.prefix_fold(&a, Sum).to(&mut b).run();
        let mut prefixes = vec![0.0; b.local_len()];
        b.cells().read(0, &mut prefixes);
        let prefixes = prefixes.iter().fold(0, |all, x| mixed([all, x.to_bits()]));
        assert_eq!(job.value(all).gather_all(), vec![all; size], "all ranks have the same");
        assert_eq!(*first.get_or_insert((all, prefixes)), (all, prefixes), "rank {me}, round {round}");
    }
}
