//! The suite of registered memory: it changes no result, whatever the network asks for. The cases that count look at
//! `PARTAGE_TEST_DEMANDS`, by which a provider asks for what it does not need.

use crate::{Case, are, bytes, mixed};
use partage::prelude::*;
use partage::register::Registrations;

/// All of them.
pub const CASES: [Case; 4] = [
    ("registered memory is as any other", results),
    ("registered: guards overlap, nest and end in any order", guards),
    ("registered memory is registered once", counts),
    ("registered: what cannot be is an error that names the limit, and transfers go on", limit),
];

/// Does the network ask for this?
fn is_demanded(what: &str) -> bool {
    let demands = std::env::var("PARTAGE_TEST_DEMANDS").unwrap_or_default();
    demands.split([',', '=']).any(|word| word == what || word == "all" && what == "local")
}

/// Has the job another node, which puts and gets reach by a network?
fn is_far(job: &Job) -> bool {
    let reference = std::env::var_os("PARTAGE_REFERENCE").is_some_and(|value| value == "1");
    !reference && !job.same_node(job.neighbor(1))
}

/// Lengths about those at which ways change: copies, pages, pieces.
const LENGTHS: [usize; 9] = [1, 4096, 8191, 8192, 8193, 65536, 100_000, 1 << 20, (1 << 20) + 4097];

fn results(job: &Job) {
    let longest = LENGTHS[LENGTHS.len() - 1];
    let there = job.alloc_all::<u8>(longest).unwrap().on(job.neighbor(1));
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let seed = mixed([job.rank().0.into(), i as u64]);
        let (mine, mut back) = (bytes(seed, len), vec![0; len + 2]);
        let mine = job.register(&mine).unwrap();
        let mut back = job.register(&mut back).unwrap();
        for round in 0..3 {
            there.put_slice(job, &mine);
            there.get_slice(job, &mut back[1..=len]);
            assert!(are(seed, &back[1..=len]) && back[0] == 0 && back[len + 1] == 0, "{len} bytes, round {round}");
            back.fill(0);
        }
        // Some at a time, parts of them, and memory that is not registered beside them.
        let plain = bytes(seed + 1, len);
        job.scope(|s| {
            drop(s.put_ptr(there, &plain));
        });
        job.scope(|s| {
            mine.chunks(len.div_ceil(7)).enumerate().for_each(|(i, part)| {
                drop(s.put_ptr(there.add(i * len.div_ceil(7)), part));
            });
        });
        job.scope(|s| drop(s.get_ptr(there, &mut back[..len])));
        assert!(are(seed, &back[..len]), "{len} bytes in parts");
    }
    job.barrier();
    job.free_all(there);
}

fn guards(job: &Job) {
    const LEN: usize = 200_000;
    let there = job.alloc_all::<u8>(LEN).unwrap().on(job.neighbor(1));
    let seed = mixed([job.rank().0.into()]);
    let mine = bytes(seed, LEN);
    let mut back = vec![0; LEN];
    let whole = job.register(&mine).unwrap();
    let half = job.register(&mine[..LEN / 2]).unwrap();
    let again = job.register(&mine).unwrap();
    there.put_slice(job, &whole);
    drop(whole);
    there.put_slice(job, &half);
    // One that ends while a transfer is under way.
    job.scope(|s| {
        let event = s.put_ptr(there, &mine);
        drop(again);
        drop(event);
    });
    drop(half);
    there.put_slice(job, &mine);
    there.get_slice(job, &mut back);
    assert!(are(seed, &back));
    // Nothing, and arrays.
    assert!(job.register(&[0u64; 0]).unwrap().is_empty());
    let mut words = [3u64; 4];
    let mut words = job.register(&mut words).unwrap();
    words[1] = 4;
    assert_eq!(words[..], [3, 4, 3, 3]);
    job.barrier();
    job.free_all(there);
}

fn counts(job: &Job) {
    const LEN: usize = 64 << 10;
    let there = job.alloc_all::<u8>(LEN).unwrap().on(job.neighbor(1));
    let (mine, others) = (bytes(1, LEN), bytes(2, LEN));
    let registrations = || job.counters().registrations;
    job.barrier();
    let before = registrations();
    let kept = job.register(&mine).unwrap();
    for _ in 0..10 {
        there.put_slice(job, &kept);
        there.put_slice(job, &others);
        there.put_slice(job, &kept[..100]);
    }
    let now = registrations();
    drop(kept);
    job.barrier();
    job.free_all(there);
    if !is_demanded("local") || !is_far(job) {
        let none = Registrations::default();
        return assert!(is_demanded("local") || now == none, "{now:?}");
    }
    // Other ranks of the process count too.
    let (cache, earlier) = (now.cache, before.cache);
    assert!(cache.hits >= earlier.hits + 10, "{before:?} {now:?}");
    if !is_demanded("limit") {
        assert!(now.once >= before.once + 10 && now.copied >= before.copied + 10, "{before:?} {now:?}");
        assert!(cache.misses > earlier.misses && cache.bytes >= LEN as u64, "{before:?} {now:?}");
    }
}

fn limit(job: &Job) {
    const LEN: usize = 1 << 20;
    let there = job.alloc_all::<u8>(LEN).unwrap().on(job.neighbor(1));
    let large = vec![1u8; 16 << 20];
    let registered = job.register(&large);
    if is_demanded("limit") && is_demanded("local") && is_far(job) {
        let why = registered.unwrap_err().to_string();
        let begin = format!("{}: register of 16.0 MiB: fi_mr_reg of ", job.rank());
        assert!(why.starts_with(&begin) && why.contains("RLIMIT_MEMLOCK") && !why.contains('\n'), "{why}");
    }
    let (seed, mut back) = (mixed([job.rank().0.into()]), vec![0; LEN]);
    let mine = bytes(seed, LEN);
    job.scope(|s| (0..LEN).step_by(LEN / 8).for_each(|i| drop(s.put_ptr(there.add(i), &mine[i..i + LEN / 8]))));
    there.get_slice(job, &mut back);
    assert!(are(seed, &back));
    job.barrier();
    job.free_all(there);
}
