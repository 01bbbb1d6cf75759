//! Calls: functions that run on another rank, and objects that every rank has. Each case is a plain program over the public
//! API that asserts what it expects. A function runs on its rank's own thread, so what a rank has heard is kept in
//! thread-locals here.

use crate::am::{ADD, Add, compute};
use crate::{Blob, Case, Random, are, bytes, mixed, plenty, refusal, some_ranks};
use partage::prelude::*;
use partage::rpc::Dist;
use partage::serde::de::DeserializeOwned;
use partage::serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// All of them.
pub const CASES: [Case; 21] = [
    ("values of many types come back as they went", types),
    ("arguments and results of every size arrive", sizes),
    ("thousands of calls may be under way", outstanding),
    ("a call whose event is dropped is made", dropped),
    ("a panic comes back to who waits", panics),
    ("a function may send, call, put, get and allocate", nested),
    ("functions run while their rank puts and gets", interleaved),
    ("a function may send more than there is room for", floods_from_functions),
    ("a function may not wait", no_waiting),
    ("quiet waits for what was told", tells),
    ("fences and signals do not wait for calls", fences),
    ("all flood one rank with calls", floods),
    ("all flood with calls a rank that computes", floods_against_computation),
    ("chains of calls go around", chains),
    ("memory may be freed from anywhere", frees),
    ("every rank has its part of an object", dist),
    ("calls for an object wait while it is in use", deferred),
    ("a table of strings over all ranks", table),
    ("objects call objects", objects_call_objects),
    ("a panic in a call to an object comes back", dist_panics),
    ("wrong calls are refused on the rank that makes them", misuse),
];

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(crate = "partage::serde")]
struct Item {
    name: String,
    parts: Vec<Part>,
    table: BTreeMap<String, (u8, i64)>,
    inner: Option<Box<Item>>,
    letter: char,
    flags: [bool; 3],
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(crate = "partage::serde")]
enum Part {
    Nothing,
    Pair(u16, String),
    Named { x: f64, y: Option<f32> },
}

fn item(n: usize) -> Item {
    Item {
        name: "ü".repeat(n),
        parts: vec![Part::Nothing, Part::Pair(n as u16, n.to_string()), Part::Named { x: n as f64 / 7.0, y: None }],
        table: (0..n).map(|i| (format!("key {i}"), (i as u8, -(i as i64)))).collect(),
        inner: (n > 0).then(|| Box::new(item(n / 2))),
        letter: char::from_u32(0x1f600 + n as u32).unwrap(),
        flags: [n.is_multiple_of(2), true, false],
    }
}

fn echo<T>(_: &Job, value: T) -> T {
    value
}

/// There and back.
fn round<T>(job: &Job, value: T)
where
    T: Serialize + DeserializeOwned + Clone + PartialEq + Debug + 'static,
{
    for r in some_ranks(job) {
        assert_eq!(job.rpc(r, echo::<T>, value.clone()).wait(), value);
    }
}

fn types(job: &Job) {
    round(job, ());
    round(job, true);
    round(job, -7i8);
    round(job, u64::MAX);
    round(job, i64::MIN);
    round(job, u128::MAX - 5);
    round(job, [1.5f64, f64::INFINITY, -0.0]);
    round(job, 'ß');
    round(job, String::new());
    round(job, "words".to_string());
    round(job, "many words ".repeat(1000));
    round(job, Vec::<u64>::new());
    round(job, vec![7u64; 5]);
    round(job, (1u8, "two".to_string(), Some(3u32), [4u16; 4]));
    round(job, None::<String>);
    round(job, Some(Some(vec![None, Some(1u8)])));
    round(job, Ok::<u64, String>(5));
    round(job, Err::<u64, String>("no".into()));
    round(job, job.rank());
    round(job, job.all().rank());
    let p = job.alloc(1u64).unwrap();
    round(job, p);
    job.free(p);
    round(job, GlobalPtr::<[u8; 3]>::NULL.add(9).on(Rank(3)));
    [0, 1, 9, 300].into_iter().for_each(|n| round(job, item(n)));
    round(job, HashMap::from([("a".to_string(), vec![1u8]), ("b".to_string(), vec![])]));
    // A closure without captures is a function too, and results are of other types than arguments.
    for r in job.ranks() {
        let event =
            job.rpc(r, |job, words: Vec<String>| (job.rank(), words.concat().len()), vec!["ab".into(), "c".into()]);
        assert_eq!(event.wait(), (r, 3));
        let event = job.rpc(r, |_, n: i32| if n > 0 { Ok(n) } else { Err(format!("{n} is too small")) }, -3);
        assert_eq!(event.wait(), Err("-3 is too small".to_string()));
    }
}

/// Around words, cache lines, pages, the largest message; and far more.
const LENGTHS: [usize; 38] = [
    0, 1, 2, 6, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 39, 40, 41, 46, 47, 48, 49, 54, 55, 56, 57, 63, 64, 65,
    4070, 4087, 4096, 4097, 65_500, 65_535, 65_536, 65_537,
];

fn make(_: &Job, (seed, len): (u64, usize)) -> Blob {
    Blob(bytes(seed, len))
}

fn check(job: &Job, (seed, text): (u64, Blob)) -> (usize, Rank) {
    assert!(are(seed, &text.0), "{} bytes of an argument", text.0.len());
    (text.0.len(), job.rank())
}

fn sizes(job: &Job) {
    let me = job.rank();
    for r in some_ranks(job) {
        // The long ones, on many ranks, to one of them.
        for len in LENGTHS.into_iter().filter(|&len| len < 10_000 || job.size() <= 3 || r == job.neighbor(1)) {
            let seed = mixed([me.0.into(), r.0.into(), len as u64]);
            assert_eq!(job.rpc(r, check, (seed, Blob(bytes(seed, len)))).wait(), (len, r));
            let made = job.rpc(r, make, (seed, len)).wait();
            assert!(made.0.len() == len && are(seed, &made.0), "{len} bytes of a result");
        }
    }
    // Some megabytes, there and back, all at once; by some of the ranks.
    if !me.0.is_multiple_of(4) {
        return;
    }
    let long = bytes(7, 3 << 20);
    let there = job.rpc(job.neighbor(1), echo::<Blob>, Blob(long.clone()));
    let made = job.rpc(job.neighbor(-1), make, (5, (1 << 20) + 1));
    assert!(are(5, &made.wait().0));
    assert!(there.wait().0 == long);
    // Values one by one: 40 bytes, 64 KiB, and, by one rank, megabytes.
    for n in [0, 1, 5, 8 << 10, if me.0 == 0 { 3 << 17 } else { 9 }] {
        let numbers: Vec<u64> = (0..n).map(|i| mixed([i, me.0.into()])).collect();
        assert!(job.rpc(job.neighbor(1), echo::<Vec<u64>>, numbers.clone()).wait() == numbers);
    }
}

fn outstanding(job: &Job) {
    let me = u64::from(job.rank().0);
    let n = job.size();
    // Thousands, of all ranks together where they are many.
    let count = plenty(job, 40_000).max(300);
    let f = |job: &Job, n: u64| mixed([n, job.rank().0.into()]);
    let expected = |i: usize| mixed([me << 32 | i as u64, ((me as usize + i) % n) as u64]);
    let call = |i: usize| job.rpc(job.neighbor(i as i64), f, me << 32 | i as u64);
    // In reverse order.
    let events: Vec<_> = (0..count).map(call).collect();
    for (i, event) in events.into_iter().enumerate().rev() {
        assert_eq!(event.wait(), expected(i), "call {i}");
    }
    // In any order.
    let mut events: Vec<_> = (0..count).map(|i| (i, call(i))).collect();
    let mut random = Random::new(me);
    while !events.is_empty() {
        let (i, event) = events.swap_remove(random.below(events.len()));
        assert_eq!(event.wait(), expected(i), "call {i}");
    }
    // By asking, which makes progress.
    let mut events: Vec<_> = (0..100).map(call).collect();
    while !events.iter_mut().all(|event| event.test()) {
        std::thread::yield_now();
    }
    for (i, mut event) in events.into_iter().enumerate() {
        assert!(event.test());
        assert_eq!(event.wait(), expected(i), "call {i}");
    }
    // As futures.
    for i in 0..100 {
        let mut event = pin!(call(i));
        let value = loop {
            if let Poll::Ready(value) = event.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break value;
            }
            std::thread::yield_now();
        };
        assert_eq!(value, expected(i), "call {i}");
    }
    // With results that are too large for any queue.
    let many = 4 + 40 / n as i64;
    let events: Vec<_> = (0..many).map(|i| job.rpc(job.neighbor(i), make, (i as u64, 100_000 + i as usize))).collect();
    for (i, event) in events.into_iter().enumerate().rev() {
        let made = event.wait();
        assert!(made.0.len() == 100_000 + i && are(i as u64, &made.0));
    }
    job.barrier();
}

fn add_one(job: &Job, to: GlobalPtr<u64>) {
    to.at(job).fetch_add(1);
}

/// Waits until the word has this value; it never has a larger one.
fn until(job: &Job, word: GlobalPtr<u64>, value: u64) {
    job.wait_until(|| {
        let now = word.at(job).load();
        assert!(now <= value, "{now} where {value} were to come");
        now == value
    });
}

fn dropped(job: &Job) {
    let cells = job.alloc_all::<u64>(2).unwrap();
    let rounds = 8 + 100 / job.size() as u64;
    for i in 0..rounds {
        for r in job.ranks() {
            drop(job.rpc(r, add_one, cells.on(r)));
            // Even if it comes back with much.
            let much = if i == 7 { 100_000 } else { 100 };
            drop(job.rpc(r, |job, (to, n)| (add_one(job, to), Blob(vec![1; n])).1, (cells.on(r).add(1), much)));
            let mut tested = job.rpc(r, echo::<u64>, i);
            tested.test();
            drop(tested);
        }
    }
    job.quiet();
    job.barrier();
    assert_eq!([cells.get(job), cells.add(1).get(job)], [rounds * job.size() as u64; 2]);
    job.barrier();
    job.free_all(cells);
}

fn panics(job: &Job) {
    let me = job.rank();
    for r in some_ranks(job) {
        let back = |text: String, words: &str| {
            assert!(text.starts_with(&format!("{me}: ")), "{text:?}");
            assert!(text.contains(&r.to_string()) && text.contains(words), "{words:?} of {r} is not in {text:?}");
        };
        let event = job.rpc(r, |_, n: u32| -> u64 { panic!("seven words and {n}") }, 12);
        back(refusal("panic", || event.wait()), "seven words and 12");
        let event = job.rpc(r, |_, ()| -> () { panic!("without a number") }, ());
        back(refusal("panic", || event.wait()), "without a number");
        let event = job.rpc(r, |_, at: usize| [1u8, 2][at], 2);
        back(refusal("panic", || event.wait()), "index out of bounds");
        let event = job.rpc(r, |_, text: String| text.parse::<u64>().unwrap(), "x".repeat(5000));
        back(refusal("panic", || event.wait()), "InvalidDigit");
        // Long words.
        let event = job.rpc(
            r,
            |_, n: usize| {
                if n > 0 {
                    panic!("{}", "long ".repeat(n))
                }
            },
            3000,
        );
        back(refusal("panic", || event.wait()), "long long");
        // Between others that go well.
        let events: Vec<_> = (0..10u64)
            .map(|i| job.rpc(r, |_, i: u64| if i.is_multiple_of(2) { i } else { panic!("odd {i}") }, i))
            .collect();
        for (i, event) in events.into_iter().enumerate() {
            match i % 2 {
                0 => assert_eq!(event.wait(), i as u64),
                _ => back(refusal("panic", || event.wait()), &format!("odd {i}")),
            }
        }
    }
    job.barrier();
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(crate = "partage::serde")]
struct Errand {
    /// Six words of the one who asks, and six everywhere.
    home: GlobalPtr<u64>,
    everywhere: GlobalPtr<u64>,
    next: Rank,
}

fn run_errand(job: &Job, errand: Errand) -> GlobalPtr<u64> {
    let Errand { home, everywhere, next } = errand;
    let kept = job.alloc(40u64).unwrap();
    kept.put(job, kept.get(job) + 1);
    home.put(job, 7);
    home.add(1).at(job).fetch_add(1);
    everywhere.on(next).add(2).at(job).fetch_add(1);
    job.tell(next, |job, home: GlobalPtr<u64>| add_one(job, home.add(2)), home);
    drop(job.rpc(next, |job, home: GlobalPtr<u64>| add_one(job, home.add(3)), home));
    job.am(next, &ADD, Add { to: everywhere.on(next), n: 1 }, &[]);
    job.am(next, &ADD, Add { to: everywhere.on(next).add(1), n: 1 }, &[9; 5000]);
    job.tell(job.rank(), |job, home: GlobalPtr<u64>| add_one(job, home.add(4)), home);
    let some = job.alloc_slice::<u8>(100).unwrap();
    let mut got = [1; 100];
    some.get_slice(job, &mut got);
    assert_eq!(got, [0; 100]);
    job.free(some);
    job.poll();
    kept
}

fn nested(job: &Job) {
    let n = job.size() as u64;
    let before = job.allocated();
    let home = job.alloc_slice::<u64>(6).unwrap();
    let everywhere = job.alloc_all::<u64>(3).unwrap();
    let rounds = 20;
    for _ in 0..rounds {
        let call = |r: Rank| {
            let next = Rank((r.0 + 1) % n as u32);
            job.rpc(r, run_errand, Errand { home, everywhere: everywhere.on(r), next })
        };
        let events: Vec<_> = job.ranks().map(call).collect();
        for (r, event) in job.ranks().zip(events) {
            let kept = event.wait();
            assert_eq!((kept.rank(), kept.get(job)), (r, 41));
            job.free(kept);
        }
    }
    assert_eq!(home.get(job), 7);
    assert_eq!(home.add(1).get(job), rounds * n);
    (2..5).for_each(|i| until(job, home.add(i), rounds * n));
    job.quiet();
    job.barrier();
    (0..3).for_each(|i| until(job, everywhere.add(i), rounds * n));
    job.barrier();
    job.free_all(everywhere);
    job.free(home);
    assert_eq!(job.allocated(), before);
}

/// Reads and writes here and there, what is known to be there; `row` is the reader's own on every rank.
fn look_around(job: &Job, (known, seed): (GlobalPtr<u64>, u64)) {
    let mut random = Random::new(seed);
    for _ in 0..3 {
        let (r, i) = (random.below(job.size()), random.below(900));
        let there = known.on(Rank(r as u32));
        assert_eq!(there.add(i).get(job), mixed([r as u64, i as u64]), "{}: word {i} of rank {r}", job.rank());
        let mut some = vec![0; random.below(100)];
        there.add(i).get_slice(job, &mut some);
        let right = some.iter().enumerate().all(|(k, v)| *v == mixed([r as u64, (i + k) as u64]));
        assert!(right, "{}: {} words from {i} on of rank {r}", job.rank(), some.len());
        assert_eq!(there.add(i).at(job).load(), mixed([r as u64, i as u64]), "{}: word {i} of rank {r}", job.rank());
        there.add(1000).at(job).fetch_add(1);
    }
}

fn interleaved(job: &Job) {
    let me = u64::from(job.rank().0);
    let known = job.alloc_all::<u64>(1001).unwrap();
    known.put_slice(job, &(0..1000).map(|i| mixed([me, i])).collect::<Vec<_>>());
    job.barrier();
    let rounds = plenty(job, 20_000) as u64;
    let mut random = Random::new(me);
    for i in 0..rounds {
        let to = Rank(random.below(job.size()) as u32);
        job.tell(to, look_around, (known, random.draw()));
        look_around(job, (known, me << 40 | i));
    }
    job.quiet();
    job.barrier();
    let all: u64 = job.ranks().map(|r| known.on(r).add(1000).get(job)).sum();
    assert_eq!(all, 2 * 3 * rounds * job.size() as u64);
    job.barrier();
    job.free_all(known);
}

/// Sends everything at once.
fn send_much(job: &Job, (to, cell, count): (Rank, GlobalPtr<u64>, u64)) {
    for i in 0..count {
        job.am(to, &ADD, Add { to: cell, n: 1 }, &[7; 100][..i as usize % 100]);
        job.tell(to, add_one, cell.add(1));
        let text = Blob(vec![1; i as usize % 300]);
        drop(job.rpc(to, |job, (cell, text): (_, Blob)| (add_one(job, cell), text).1, (cell.add(2), text)));
    }
    job.am(to, &ADD, Add { to: cell, n: 1 }, &[7; 60_000]);
    let add = |job: &Job, (cell, text): (_, Blob)| {
        assert!(text.0 == [7; 200_000]);
        add_one(job, cell);
    };
    job.tell(to, add, (cell.add(1), Blob(vec![7; 200_000])));
}

fn floods_from_functions(job: &Job) {
    let cells = job.alloc_all::<u64>(3).unwrap();
    let count = plenty(job, 50_000) as u64;
    // Everybody is told to flood the one after the next, and rank 0 is told by all to flood itself.
    job.tell(job.neighbor(1), send_much, (job.neighbor(2), cells.on(job.neighbor(2)), count));
    job.tell(Rank(0), send_much, (Rank(0), cells.on(Rank(0)), 10));
    job.quiet();
    job.barrier();
    let (times, more) = if job.rank().0 == 0 { (1, job.size() as u64) } else { (1, 0) };
    until(job, cells, times * (count + 1) + more * 11);
    until(job, cells.add(1), times * (count + 1) + more * 11);
    until(job, cells.add(2), times * count + more * 10);
    job.barrier();
    job.free_all(cells);
}

fn no_waiting(job: &Job) {
    let me = job.rank();
    for r in some_ranks(job) {
        let refused = |call: &str, event: Event<'_, ()>| {
            let text = refusal(call, || event.wait());
            let here = text.starts_with(&format!("{me}: ")) && text.contains(&r.to_string());
            assert!(here && text.contains(call), "{call} on {r}: {text:?}");
        };
        refused("barrier", job.rpc(r, |job, ()| job.barrier(), ()));
        refused("barrier_with", job.rpc(r, |job, ()| job.barrier_with(1), ()));
        refused("notify", job.rpc(r, |job, ()| drop(job.notify(None)), ()));
        refused("alloc_all", job.rpc(r, |job, ()| drop(job.alloc_all::<u64>(1)), ()));
        refused("free_all", job.rpc(r, |job, ()| job.free_all(GlobalPtr::<u64>::NULL), ()));
        refused("quiet", job.rpc(r, |job, ()| job.quiet(), ()));
        refused("wait_until", job.rpc(r, |job, ()| job.wait_until(|| true), ()));
        refused("register_handlers", job.rpc(r, |job, ()| job.register_handlers(&[]), ()));
        refused("dist", job.rpc(r, |job, ()| _ = job.dist(1).into_inner(), ()));
        refused("wait", job.rpc(r, |job, ()| _ = job.rpc(job.neighbor(1), echo::<u8>, 1).wait(), ()));
        refused("wait", job.rpc(r, |job, ()| _ = job.rpc(job.rank(), make, (1, 100_000)).wait(), ()));
    }
    // Nobody has come to any of those barriers.
    job.barrier_with(5);
    job.barrier();
}

thread_local! {
    /// How many have come from every rank, and the sum of their numbers.
    static HEARD: RefCell<Vec<(u64, u64)>> = const { RefCell::new(vec![]) };
    /// How many have come from every rank, in order.
    static CAME: RefCell<Vec<u64>> = const { RefCell::new(vec![]) };
}

/// Only a rank that waits with all its heart runs calls, and takes their results; who orders its signals does not.
fn fences(job: &Job) {
    // More than there are numbers for signals under way.
    const POSTS: u32 = 9000;
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    for to in [job.neighbor(1), job.neighbor(-1)] {
        let signal = signals[to.index()];
        job.barrier();
        job.post(signal);
        let event = job.rpc(to, echo::<u64>, 7);
        job.fence();
        (1..POSTS).for_each(|_| job.post(signal));
        assert_eq!(event.wait(), 7);
        come.wait_n(POSTS);
    }
    job.barrier();
}

fn hear(job: &Job, (from, number): (Rank, u64)) {
    HEARD.with_borrow_mut(|heard| {
        heard.resize(job.size(), (0, 0));
        let (count, sum) = &mut heard[from.index()];
        (*count, *sum) = (*count + 1, *sum + number);
    });
}

fn tells(job: &Job) {
    let me = job.rank();
    HEARD.set(vec![(0, 0); job.size()]);
    job.barrier();
    let mut random = Random::new(me.0.into());
    let mut sent = vec![(0, 0); job.size()];
    for _ in 0..plenty(job, 20_000) {
        for _ in 0..random.below(20) {
            let (r, number) = (random.below(job.size()), random.below(1000) as u64);
            job.tell(Rank(r as u32), hear, (me, number));
            sent[r] = (sent[r].0 + 1, sent[r].1 + number);
        }
        job.quiet();
        // All mine have been heard.
        let r = random.below(job.size());
        let heard = job.rpc(Rank(r as u32), |_, from: Rank| HEARD.with_borrow(|heard| heard[from.index()]), me).wait();
        assert_eq!(heard, sent[r], "what {me} told rank {r}");
    }
    job.barrier();
    job.barrier();
}

/// A message that is whole, and the next one of its sender.
fn mark(job: &Job, from: Rank, number: u64, text: &[u8]) {
    let check = mixed([from.0.into(), job.rank().0.into(), number]);
    assert!(are(check, text), "{} bytes of message {number} of {from}", text.len());
    CAME.with_borrow_mut(|came| {
        assert_eq!(came[from.index()], number, "{}: the next message of {from}", job.rank());
        came[from.index()] += 1;
    });
}

fn told(job: &Job, (from, number, text): (Rank, u64, Blob)) {
    mark(job, from, number, &text.0);
}

fn called(job: &Job, (from, number, text): (Rank, u64, Blob)) -> u64 {
    mark(job, from, number, &text.0);
    number + 1
}

/// Sends so many to one rank: told, called, or called without waiting.
fn flood(job: &Job, to: Rank, count: usize) {
    let me = job.rank();
    let mut random = Random::new(mixed([me.0.into(), to.0.into()]));
    let mut events = vec![];
    for number in 0..count as u64 {
        let len = match random.below(100) {
            0 => random.below(100_000),
            1..10 => random.below(5_000),
            10..50 => random.below(100),
            _ => 0,
        };
        let message = (me, number, Blob(bytes(mixed([me.0.into(), to.0.into(), number]), len)));
        match random.below(3) {
            0 => events.push((number, job.rpc(to, called, message))),
            1 => drop(job.rpc(to, called, message)),
            _ => job.tell(to, told, message),
        }
    }
    for (number, event) in events {
        assert_eq!(event.wait(), number + 1);
    }
}

/// So many have come.
fn came(from: Rank, count: usize) {
    CAME.with_borrow(|came| assert_eq!(came[from.index()], count as u64, "messages of {from}"));
}

fn floods(job: &Job) {
    let me = job.rank();
    let each = plenty(job, 60_000);
    for victim in [Rank(0), job.neighbor(-1 - i64::from(me.0))] {
        CAME.set(vec![0; job.size()]);
        job.barrier();
        flood(job, victim, each);
        job.quiet();
        job.barrier();
        if me == victim {
            job.ranks().for_each(|r| came(r, each));
        }
        job.barrier();
    }
    // All against all.
    let each = each.div_ceil(job.size());
    CAME.set(vec![0; job.size()]);
    job.barrier();
    job.ranks().for_each(|r| flood(job, r, each));
    job.quiet();
    job.barrier();
    job.ranks().for_each(|r| came(r, each));
    job.barrier();
}

fn floods_against_computation(job: &Job) {
    let me = job.rank();
    let victim = Rank(job.size() as u32 / 2);
    let each = plenty(job, 60_000);
    CAME.set(vec![0; job.size()]);
    job.barrier();
    match me == victim {
        true => compute(Duration::from_millis(200)),
        false => flood(job, victim, each),
    }
    job.quiet();
    job.barrier();
    if me == victim {
        job.ranks().for_each(|r| came(r, if r == me { 0 } else { each }));
    }
    job.barrier();
}

fn hop(job: &Job, (left, home): (u32, GlobalPtr<u64>)) {
    match left {
        0 => job.tell(home.rank(), add_one, home),
        _ => job.tell(job.neighbor(1), hop, (left - 1, home)),
    }
}

/// The same as calls, which bring some bytes with them.
fn jump(job: &Job, (left, home, text): (u32, GlobalPtr<u64>, Blob)) {
    assert!(are(left.into(), &text.0));
    match left {
        0 => job.tell(home.rank(), add_one, home),
        _ => {
            let left = left - 1;
            drop(job.rpc(job.neighbor(i64::from(left)), jump, (left, home, Blob(bytes(left.into(), text.0.len())))));
        }
    }
}

/// Two for every one, in all directions, until all has been split.
fn split(job: &Job, (left, home): (u32, GlobalPtr<u64>)) {
    match left {
        0 => job.tell(home.rank(), add_one, home),
        _ => [1, 2].into_iter().for_each(|k| job.tell(job.neighbor(k), split, (left - 1, home))),
    }
}

fn chains(job: &Job) {
    let home = job.alloc(0u64).unwrap();
    let count = plenty(job, 10_000) as u64;
    // One long one.
    job.tell(job.rank(), hop, (50, home));
    until(job, home, 1);
    // Many at once, from all ranks.
    for _ in 0..count {
        job.tell(job.neighbor(1), hop, (10, home));
    }
    until(job, home, 1 + count);
    for i in 0..count / 4 {
        let text = Blob(bytes(9, (i as usize * 37) % 3000));
        drop(job.rpc(job.neighbor(2), jump, (9, home, text)));
    }
    until(job, home, 1 + count + count / 4);
    let depth = (plenty(job, 50_000) as u64).ilog2();
    job.tell(job.rank(), split, (depth, home));
    until(job, home, 1 + count + count / 4 + (1 << depth));
    job.barrier();
    job.free(home);
}

fn frees(job: &Job) {
    let before = job.allocated();
    let post = job.alloc_all::<GlobalPtr<u64>>(100).unwrap();
    let held = job.allocated();
    for (len, count) in [(1, 100), (7, 100), (1000, 100), (100_000, 10)] {
        for i in 0..count {
            let p = job.alloc_slice::<u64>(len).unwrap();
            post.on(job.neighbor(1)).add(i).put(job, p);
        }
        assert!(job.allocated() >= held + (count * 8 * len) as u64);
        job.barrier();
        for i in 0..count {
            let p = post.add(i).get(job);
            assert_eq!(p.rank(), job.neighbor(-1));
            job.free(p);
        }
        job.quiet();
        job.barrier();
        assert_eq!(job.allocated(), held, "{}: {len} words", job.rank());
        job.barrier();
    }
    // Allocated here by somebody else, freed here or there.
    for r in job.ranks() {
        let [p, q] = [5u64, 6].map(|v| job.rpc(r, |job, v: u64| job.alloc(v).unwrap(), v).wait());
        assert_eq!((p.rank(), p.get(job), q.get(job)), (r, 5, 6));
        job.free(p);
        job.rpc(r, |job, q: GlobalPtr<u64>| job.free(q), q).wait();
    }
    job.quiet();
    job.barrier();
    assert_eq!(job.allocated(), held);
    job.barrier();
    job.free_all(post);
    assert_eq!(job.allocated(), before);
}

fn dist(job: &Job) {
    let (me, n) = (job.rank(), job.size());
    let numbers = job.dist(vec![u64::from(me.0)]);
    let names = job.dist(format!("of {me}"));
    // What each has is its own.
    assert_eq!(numbers.with(|v| v.clone()), [u64::from(me.0)]);
    for r in job.ranks() {
        assert_eq!(numbers.rpc(r, |v, i: usize| v[i], 0).wait(), u64::from(r.0));
        assert_eq!(names.rpc(r, |name, ()| name.clone(), ()).wait(), format!("of {r}"));
    }
    job.barrier();
    for r in job.ranks() {
        names.tell(r, |name, more: String| *name += &more, format!(", told by {me}"));
        for i in 0..100u64 {
            numbers.tell(r, |v, n: u64| v.push(n), u64::from(me.0) << 32 | i);
        }
    }
    job.quiet();
    // All mine are there.
    for r in job.ranks() {
        let mine = numbers.rpc(r, |v, from: u64| v[1..].iter().filter(|&&n| n >> 32 == from).count(), me.0.into());
        assert_eq!(mine.wait(), 100);
        assert!(names.rpc(r, |name, ()| name.clone(), ()).wait().contains(&format!(", told by {me}")));
    }
    job.barrier();
    // Mine from everybody, each once; `with` is for one rank alone.
    let mut all = numbers.with(std::mem::take);
    assert_eq!(all.remove(0), u64::from(me.0));
    all.sort();
    let expected = job.ranks().flat_map(|r| (0..100).map(move |i| u64::from(r.0) << 32 | i));
    assert_eq!(all, expected.collect::<Vec<_>>());
    job.barrier();
    assert_eq!(numbers.into_inner(), [0; 0]);
    let name = names.into_inner();
    let length: usize = job.ranks().map(|r| format!(", told by {r}").len()).sum();
    assert_eq!(name.len(), format!("of {me}").len() + length);
    assert!(job.ranks().all(|r| name.contains(&format!(", told by {r}"))), "{name}");
    // More of them, some dropped, of every kind.
    for i in 0..5u8 {
        let nothing = job.dist(());
        let cell = job.dist(Cell::new(i));
        let optional = job.dist(None::<Box<u64>>);
        let right = job.neighbor(1);
        nothing.rpc(right, |(), ()| (), ()).wait();
        assert_eq!(cell.rpc(right, |cell, n: u8| cell.replace(n), 9).wait(), i);
        optional.rpc(right, |o, n: u64| *o = Some(Box::new(n)), me.0.into()).wait();
        job.barrier();
        assert_eq!(cell.into_inner().get(), 9);
        assert_eq!(optional.with(|o| o.take()), Some(Box::new(job.neighbor(-1).0.into())));
    }
    assert_eq!(n, job.size());
    job.barrier();
}

fn deferred(job: &Job) {
    let me = job.rank();
    let flags = job.alloc_all::<u64>(2).unwrap();
    let list = job.dist(vec![0u64]);
    for victim in [Rank(0), job.neighbor(-1 - i64::from(me.0))] {
        let others = job.size() as u64 - 1;
        if me == victim {
            list.with(|v| {
                // Now they may call.
                job.ranks().for_each(|r| job.am(r, &ADD, Add { to: flags.on(r), n: 1 }, &[]));
                // All have called, and a function that has nothing to do with the object has run here meanwhile.
                until(job, flags.add(1), others);
                (0..100).for_each(|_| job.poll());
                assert_eq!(v.len(), 1, "a call was made while the object was in use");
                v.push(1);
            });
        } else {
            until(job, flags, 1);
            list.tell(victim, |v, n: u64| v.push(n), 10 + u64::from(me.0));
            let event = list.rpc(victim, |v, ()| v.len(), ());
            assert_eq!(job.rpc(victim, echo::<u64>, 5).wait(), 5);
            job.tell(victim, add_one, flags.on(victim).add(1));
            job.quiet();
            let len = event.wait();
            assert!(len >= 2, "the call was made before the object was free: {len}");
        }
        job.quiet();
        job.barrier();
        if me == victim {
            let all = list.with(|v| std::mem::replace(v, vec![0]));
            assert_eq!(all[..2], [0, 1], "what came while the object was in use came after it");
            let mut came = all[2..].to_vec();
            came.sort();
            let expected: Vec<u64> = job.ranks().filter(|r| *r != me).map(|r| 10 + u64::from(r.0)).collect();
            assert_eq!(came, expected);
        }
        flags.put(job, 0);
        flags.add(1).put(job, 0);
        job.barrier();
    }
    // All are inside their own and wait for each other's functions.
    let sum = list.with(|v| {
        let events: Vec<_> = job.ranks().map(|r| job.rpc(r, echo::<u32>, r.0)).collect();
        v.len() + events.into_iter().map(|event| event.wait() as usize).sum::<usize>()
    });
    assert_eq!(sum, 1 + job.size() * (job.size() - 1) / 2);
    // Objects are apart: one in use does not hold up another.
    let other = job.dist(me.0);
    list.with(|_| assert_eq!(other.rpc(job.neighbor(1), |r, ()| *r, ()).wait(), job.neighbor(1).0));
    job.barrier();
    job.free_all(flags);
}

type Table = HashMap<String, u64>;

fn table(job: &Job) {
    let table = job.dist(Table::new());
    let owner = |key: &str| {
        let sum = key.bytes().fold(7u64, |sum, byte| mixed([sum, byte.into()]));
        Rank((sum % job.size() as u64) as u32)
    };
    let count = plenty(job, 20_000);
    let key = |from: Rank, i: usize| format!("{}word {i} of {from}", "x".repeat(i % 90));
    for i in 0..count {
        let (mine, common) = (key(job.rank(), i), format!("common {}", i % 50));
        table.tell(owner(&mine), |table, (key, v): (String, u64)| _ = table.insert(key, v), (mine, i as u64));
        table.tell(owner(&common), |table, key: String| *table.entry(key).or_default() += 1, common);
    }
    job.quiet();
    // My own words at once.
    let find = |key: &str| table.rpc(owner(key), |table, key: String| table.get(&key).copied(), key.to_string());
    for i in (0..count).step_by(7) {
        assert_eq!(find(&key(job.rank(), i)).wait(), Some(i as u64));
    }
    assert_eq!(find("there is no such word").wait(), None);
    job.barrier();
    // Those of others, and what all have counted.
    let other = job.neighbor(1);
    let events: Vec<_> = (0..count).map(|i| find(&key(other, i))).collect();
    for (i, event) in events.into_iter().enumerate() {
        assert_eq!(event.wait(), Some(i as u64));
    }
    let each = |word: usize| (count / 50 + usize::from(word < count % 50)) * job.size();
    for word in 0..50 {
        let found = find(&format!("common {word}")).wait().unwrap_or(0);
        assert_eq!(found, each(word) as u64);
    }
    job.barrier();
    let mine = table.into_inner();
    assert!(mine.keys().all(|key| owner(key) == job.rank()));
    let sizes = job.alloc_all::<u64>(1).unwrap();
    sizes.put(job, mine.len() as u64);
    job.barrier();
    let all: u64 = job.ranks().map(|r| sizes.on(r).get(job)).sum();
    assert_eq!(all, (count * job.size() + 50.min(count)) as u64);
    job.barrier();
    job.free_all(sizes);
}

/// An object that has another.
struct Counter {
    me: Rank,
    seen: u64,
    log: Dist<Vec<(Rank, u64)>>,
}

impl Counter {
    /// Counts, and writes into another rank's log: by telling, and by a call that nobody waits for.
    fn count(&mut self, (next, n): (Rank, u64)) -> u64 {
        self.seen += 1;
        self.write((next, n));
        drop(self.log.rpc(next, |log, entry| (log.push(entry), log.len()).1, (self.me, n + 1)));
        self.seen
    }

    fn write(&mut self, (next, n): (Rank, u64)) {
        self.log.tell(next, Vec::push, (self.me, n));
    }
}

fn objects_call_objects(job: &Job) {
    let me = job.rank();
    let counter = job.dist(Counter { me, seen: 0, log: job.dist(vec![]) });
    let rounds = 50;
    for i in 0..rounds {
        for r in job.ranks() {
            // The counter of r writes into the log of its right neighbour.
            let next = Rank((r.0 + 1) % job.size() as u32);
            match i % 2 {
                0 => assert!(counter.rpc(r, Counter::count, (next, i)).wait() > 0),
                _ => counter.tell(r, Counter::write, (next, i)),
            }
        }
    }
    job.quiet();
    job.barrier();
    // What the objects have told each other is nobody's to wait for.
    let (counted, written) = (rounds / 2 * job.size() as u64, rounds as usize / 2 * 3 * job.size());
    job.wait_until(|| counter.with(|counter| counter.log.with(|log| log.len())) == written);
    job.barrier();
    let counter = counter.into_inner();
    assert_eq!((counter.seen, counter.me), (counted, me));
    let log = counter.log.into_inner();
    assert_eq!(log.len(), written);
    assert!(log.iter().all(|(from, _)| *from == job.neighbor(-1)));
    job.barrier();
}

fn dist_panics(job: &Job) {
    let me = job.rank();
    let list = job.dist(vec![1u64, 2]);
    for r in job.ranks() {
        let text = refusal("dist panic", || list.rpc(r, |v, at: usize| v[at], 10).wait());
        let named = text.starts_with(&format!("{me}: ")) && text.contains(&r.to_string());
        assert!(named && text.contains("index out of bounds"), "{text:?}");
        // It is still there.
        assert_eq!(list.rpc(r, |v, at: usize| v[at], 1).wait(), 2);
    }
    job.barrier();
    assert_eq!(list.into_inner(), [1, 2]);
    job.barrier();
}

fn misuse(job: &Job) {
    let me = job.rank();
    let beyond = Rank(job.size() as u32);
    let list = job.dist(vec![0u64]);
    let refused = |what: &str, f: &dyn Fn()| {
        let text = refusal(what, f);
        let expect = format!("{me}: {what}: there is no ");
        assert!(text.starts_with(&expect) && text.contains("in a job of"), "{what}: {text:?}");
    };
    for nobody in [beyond, Rank(u32::MAX)] {
        refused("rpc", &|| drop(job.rpc(nobody, echo::<u8>, 1)));
        refused("tell", &|| job.tell(nobody, |_, ()| (), ()));
        refused("rpc", &|| drop(list.rpc(nobody, |v, ()| v.len(), ())));
        refused("tell", &|| list.tell(nobody, |v, ()| v.push(1), ()));
    }
    // Inside itself an object is not free.
    let text = refusal("with in with", || list.with(|_| list.with(|_| ())));
    assert!(text.starts_with(&format!("{me}: ")) && text.contains("with"), "{text:?}");
    // Nothing was harmed.
    assert_eq!(list.with(|v| v.len()), 1);
    assert_eq!(list.rpc(job.neighbor(1), |v, ()| v.len(), ()).wait(), 1);
    job.barrier();
}
