//! Atomics, events and waiting for several things: what every mapping must do.

use crate::{Case, Random, mixed, plenty, refusal, some_ranks};
use partage::atomic::{Bits, Number, Place, Word};
use partage::domain::{AtomicDomain, Op};
use partage::prelude::*;
use partage::wait::{join_all, wait_all};
use std::fmt::Debug;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

/// The cases.
pub const CASES: [Case; 15] = [
    ("atomics on every width do what they say", atomics),
    ("atomics of every type, in every order, started", every_type),
    ("atomics of all ranks on one word lose nothing", contended_atomics),
    ("a lock of atomics protects plain memory", lock),
    ("atomics that are started", started),
    ("atomics in batches", batches),
    ("misplaced atomics", misplaced),
    ("the first of several events", any_of_several),
    ("futures", futures),
    ("events that nobody waits for", left_alone),
    ("events after their end", twice),
    ("a domain's words of a rank that computes", domain_of_who_computes),
    ("a domain's atomics of every type", domain_of_every_type),
    ("a domain's atomics of all ranks on one word", contended_domain),
    ("a domain's rules", domain_rules),
];

/// What the three orders of a place do, and what is started, are the same operations.
fn all_ways<T: Word + PartialEq + Debug>(place: Place<'_, T>, [a, b, c]: [T; 3]) {
    for place in [place, place.relaxed(), place.strict()] {
        place.store(a);
        assert_eq!((place.load(), place.swap(b), place.load()), (a, a, b));
        assert_eq!((place.compare_exchange(a, c), place.load()), (Err(b), b));
        assert_eq!((place.compare_exchange(b, c), place.load()), (Ok(b), c));
        place.start().store(a).wait();
        assert_eq!((place.start().load().wait(), place.start().swap(b).wait()), (a, a));
        assert_eq!(place.start().compare_exchange(a, c).wait(), Err(b));
        assert_eq!((place.start().compare_exchange(b, c).wait(), place.load()), (Ok(b), c));
    }
}

fn numbers<T: Number + PartialEq + Debug>(place: Place<'_, T>, [two, three, six, nine]: [T; 4]) {
    for place in [place, place.relaxed(), place.strict()] {
        place.store(three);
        assert_eq!((place.fetch_add(six), place.fetch_sub(six), place.fetch_mul(three)), (three, nine, three));
        assert_eq!((place.fetch_min(six), place.fetch_max(two), place.load()), (nine, six, six));
        place.sub(three);
        place.add(six);
        assert_eq!(place.load(), nine);
        place.min(two);
        place.mul(three);
        place.max(three);
        assert_eq!(place.load(), six);
        assert_eq!((place.start().fetch_add(three).wait(), place.start().fetch_sub(six).wait()), (six, nine));
        assert_eq!((place.start().fetch_mul(two).wait(), place.start().fetch_min(two).wait()), (three, six));
        assert_eq!((place.start().fetch_max(nine).wait(), place.load()), (two, nine));
        wait_all([place.start().sub(three), place.start().add(three)]);
        wait_all([place.start().min(three), place.start().mul(two), place.start().max(two)]);
        assert!([two, three, six].contains(&place.load()), "in some order: {:?}", place.load());
    }
}

fn bits<T: Bits + PartialEq + Debug>(place: Place<'_, T>, [low, high, both, none]: [T; 4]) {
    for place in [place, place.relaxed(), place.strict()] {
        place.store(low);
        assert_eq!((place.fetch_or(high), place.fetch_and(high), place.fetch_xor(both)), (low, both, high));
        assert_eq!(place.load(), low);
        place.or(high);
        place.xor(low);
        assert_eq!(place.load(), high);
        place.and(low);
        assert_eq!(place.load(), none);
        assert_eq!((place.start().fetch_or(both).wait(), place.start().fetch_and(low).wait()), (none, both));
        assert_eq!(place.start().fetch_xor(low).wait(), low);
        wait_all([place.start().or(high), place.start().xor(none), place.start().and(both)]);
        assert!([none, high].contains(&place.load()));
    }
}

/// Each rank has a word of each type on some ranks for itself.
fn every_type(job: &Job) {
    // On every rank two words for every rank.
    let words = job.alloc_all::<[u64; 2]>(job.size()).unwrap();
    fn word<T: Word>(job: &Job, words: GlobalPtr<[u64; 2]>, on: Rank) -> GlobalPtr<T> {
        let mine = words.on(on).add(job.rank().index());
        mine.put(job, [0; 2]);
        mine.cast()
    }
    macro_rules! integers {
        ($on:expr, $($t:ty),*) => {$({
            let p = word::<$t>(job, words, $on);
            all_ways(p.at(job), [0, <$t>::MAX, <$t>::MIN.wrapping_add(1)]);
            numbers(p.at(job), [2, 3, 6, 9]);
            bits(p.at(job), [0x0f, 0x70, 0x7f, 0]);
            let place = p.at(job);
            place.store(<$t>::MAX);
            assert_eq!((place.fetch_add(2), place.load()), (<$t>::MAX, <$t>::MIN + 1), "wraps around");
            assert_eq!((place.fetch_min(<$t>::MAX), place.fetch_max(<$t>::MAX)), (<$t>::MIN + 1, <$t>::MIN + 1));
            // What lies beside it is not touched.
            assert_eq!(p.add(1).get(job), 0);
        })*};
    }
    macro_rules! floats {
        ($on:expr, $($t:ty),*) => {$({
            let p = word::<$t>(job, words, $on);
            all_ways(p.at(job), [0.0, <$t>::INFINITY, -1.5e-30]);
            numbers(p.at(job), [2.0, 3.0, 6.0, 9.0]);
            let place = p.at(job);
            place.store(<$t>::NAN);
            assert_eq!((place.compare_exchange(0.0, 1.0).unwrap_err().to_bits(), place.load().is_nan()), (<$t>::NAN.to_bits(), true));
            assert!(place.compare_exchange(<$t>::NAN, -0.0).is_ok(), "by their bits");
            assert_eq!(place.compare_exchange(0.0, 1.0).map_err(|zero| zero.is_sign_negative()), Err(true));
            place.max(<$t>::NAN);
            assert_eq!(place.load(), 0.0);
            assert_eq!(p.add(1).get(job), 0.0);
        })*};
    }
    for on in some_ranks(job) {
        integers!(on, u32, i32, u64, i64, usize, isize);
        floats!(on, f32, f64);
        let p = word::<GlobalPtr<u64>>(job, words, on);
        let there = |n: u64| job.alloc(n).unwrap();
        let all = [GlobalPtr::NULL, there(1), there(2)];
        all_ways(p.at(job), all);
        job.free(all[1]);
        job.free(all[2]);
    }
    // Elements of arrays too.
    let a = job.array::<f64>(3 * job.size()).unwrap();
    for i in 0..a.len() {
        a.at(i).add(0.5);
        a.at(i).start().add(0.25).wait();
    }
    job.barrier();
    assert!((0..a.len()).all(|i| a.at(i).strict().load() == 0.75 * job.size() as f64));
    job.barrier();
    job.free_all(words);
}

macro_rules! operations {
    ($($name:ident: $T:ty, $next:expr;)*) => {$(
        /// Every operation on a word that only I use, beside what plain integers do.
        fn $name(job: &Job, p: GlobalPtr<$T>, random: &mut Random) {
            let at = p.at(job);
            let mut values = vec![0, 1, <$T>::MAX, <$T>::MIN, <$T>::MAX / 3, !0];
            values.extend((0..4).map(|_| random.draw() as $T));
            let mut now: $T = values[6];
            at.store(now);
            for &v in &values {
                assert_eq!(at.fetch_add(v), now);
                now = now.wrapping_add(v);
                assert_eq!(at.load(), now);
                assert_eq!(at.fetch_sub(v ^ 5), now);
                now = now.wrapping_sub(v ^ 5);
                assert_eq!(at.fetch_xor(v), now);
                now ^= v;
                assert_eq!(at.fetch_or(v), now);
                now |= v;
                assert_eq!(at.fetch_and(!v), now);
                now &= !v;
                assert_eq!(at.fetch_min(v), now);
                now = now.min(v);
                assert_eq!(at.fetch_max(v / 2), now);
                now = now.max(v / 2);
                assert_eq!(at.compare_exchange(now.wrapping_add(1), 7), Err(now));
                assert_eq!(at.compare_exchange(now, !v), Ok(now));
                now = !v;
                assert_eq!(at.swap(v), now);
                now = v;
                assert_eq!(at.load(), now);
                // Plain gets and puts see it and are seen.
                assert_eq!(p.get(job), now);
                p.put(job, now ^ 1);
                job.quiet();
                now ^= 1;
                assert_eq!(at.load(), now);
                at.store(v);
                now = v;
            }
            // What lies beside it is as it was.
            let next: $T = $next;
            assert_eq!(p.add(1).get(job), next);
        }
    )*};
}

operations! {
    on_u32: u32, 0x1111_1111;
    on_i32: i32, 0x1111_1111;
    on_u64: u64, 0x1111_1111_1111_1111;
    on_i64: i64, 0x1111_1111_1111_1111;
}

fn atomics(job: &Job) {
    let me = job.rank().index();
    // Two words each, on every rank.
    let cells = job.alloc_all::<[u64; 2]>(job.size()).unwrap();
    let mut random = Random::new(me as u64);
    for r in some_ranks(job) {
        let mine = cells.on(r).add(me);
        mine.put(job, [0x1111_1111_1111_1111; 2]);
        on_u32(job, mine.cast(), &mut random);
        mine.put(job, [0x1111_1111_1111_1111; 2]);
        on_i32(job, mine.cast(), &mut random);
        mine.put(job, [0x1111_1111_1111_1111; 2]);
        on_u64(job, mine.cast(), &mut random);
        mine.put(job, [0x1111_1111_1111_1111; 2]);
        on_i64(job, mine.cast(), &mut random);
    }
    job.barrier();
    job.free_all(cells);
}

fn contended_atomics(job: &Job) {
    let (me, n) = (job.rank(), job.size() as u64);
    let each = plenty(job, 40_000) as u64;
    let cells = job.alloc_all::<u64>(8).unwrap();
    let small = job.alloc_all::<i32>(2).unwrap();
    // Rank 0 holds a token for everybody to swap.
    cells.add(5).put(job, 0);
    cells.add(6).put(job, u64::MAX);
    job.barrier();
    let hot = cells.on(Rank(0));
    let mut random = Random::new(me.0.into());
    let mut highest = 0;
    for i in 0..each {
        hot.at(job).fetch_add(i);
        let r = Rank(random.below(job.size()) as u32);
        cells.on(r).add(1).at(job).fetch_add(1);
        small.on(Rank(0)).at(job).fetch_sub(1);
        highest = highest.max(random.draw() >> 1);
        hot.add(4).at(job).fetch_max(highest);
        hot.add(6).at(job).fetch_min(highest);
        if i % 4 == 0 {
            // What others have done meanwhile is not lost.
            let place = hot.add(2).at(job);
            let mut old = place.load();
            while let Err(now) = place.compare_exchange(old, old + 3) {
                old = now;
            }
        }
        hot.add(3).at(job).fetch_xor(mixed([me.0.into(), i]));
    }
    // Everybody puts a number of its own in and keeps what it takes out: all of them are somewhere, once.
    let mine = cells.add(7);
    mine.put(job, hot.add(5).at(job).swap(u64::from(me.0) + 1));
    job.barrier();
    assert_eq!(hot.get(job), n * (0..each).sum::<u64>());
    assert_eq!(job.ranks().map(|r| cells.on(r).add(1).get(job)).sum::<u64>(), n * each);
    assert_eq!(hot.add(2).get(job), 3 * n * each.div_ceil(4));
    assert_eq!(small.on(Rank(0)).get(job), -((n * each) as i32));
    let all = job.ranks().flat_map(|r| (0..each).map(move |i| mixed([r.0.into(), i])));
    assert_eq!(hot.add(3).get(job), all.fold(0, |a, b| a ^ b));
    assert!(hot.add(4).get(job) >= highest && hot.add(6).get(job) <= highest);
    let mut out: Vec<u64> = job.ranks().map(|r| cells.on(r).add(7).get(job)).chain([hot.add(5).get(job)]).collect();
    out.sort();
    assert_eq!(out, (0..=n).collect::<Vec<_>>());
    job.barrier();
    job.free_all(small);
    job.free_all(cells);
}

fn lock(job: &Job) {
    // The lock is on one rank, what it protects on another.
    let (first, last) = (Rank(0), job.neighbor(-1 - i64::from(job.rank().0)));
    let cells = job.alloc_all::<u32>(1).unwrap();
    let protected = job.alloc_all::<[u64; 4]>(1).unwrap().on(last);
    let lock = cells.on(first);
    let each = 30;
    for _ in 0..each {
        while lock.at(job).compare_exchange(0, 1).is_err() {
            job.poll();
            std::thread::yield_now();
        }
        let [a, b, c, d] = protected.get(job);
        assert!(a == b && b == c && c == d, "a mixture: {a} {b} {c} {d}");
        protected.put(job, [a + 1; 4]);
        assert_eq!(lock.at(job).swap(0), 1);
    }
    job.barrier();
    assert_eq!(protected.get(job), [each * job.size() as u64; 4]);
    job.barrier();
    job.free_all(protected);
    job.free_all(cells);
}

/// Many under way at a time, more than there are slots at first.
fn started(job: &Job) {
    let n = plenty(job, 20_000);
    let a = job.array::<u64>(Layout::cyclic(job.size() * 3)).unwrap();
    // All kept at once, then waited for in another order than started.
    let events: Vec<_> = (0..n).map(|k| a.at(k % a.len()).start().fetch_add(1)).collect();
    let mut olds = vec![vec![]; a.len()];
    for (k, event) in events.into_iter().enumerate().rev() {
        olds[k % a.len()].push(event.wait());
    }
    // Mine are all different, and there are no more than all together.
    for olds in &mut olds {
        olds.sort_unstable();
        assert!(olds.windows(2).all(|w| w[0] < w[1]) && olds.iter().all(|&old| old < (n * job.size()) as u64));
    }
    job.barrier();
    let all: u64 = (0..a.len()).map(|i| a.get(i)).sum();
    assert_eq!(all, (n * job.size()) as u64);
    job.barrier();
    // Dropped and forgotten ones are done too.
    for k in 0..n {
        drop(a.at(k % a.len()).start().fetch_add(1));
        std::mem::forget(a.at(k % a.len()).start().add(1));
    }
    job.quiet();
    job.barrier();
    let all: u64 = (0..a.len()).map(|i| a.get(i)).sum();
    assert_eq!(all, 3 * (n * job.size()) as u64);
    job.barrier();
}

fn batches(job: &Job) {
    let n = plenty(job, 100_000);
    let a = job.array::<u64>(Layout::block_cyclic(job.size() * 10, 3)).unwrap();
    let b = job.array::<f32>(job.size()).unwrap();
    let p = job.alloc_all::<i64>(1).unwrap();
    let mut random = Random::new(job.rank().0.into());
    let mut batch = job.batch();
    let (mut sum, mut bits) = (0, 0);
    for k in 0..n {
        let value = random.draw() >> 32;
        sum += value;
        batch.add(a.at(random.below(a.len())), value);
        if k % 100 == 0 {
            // Another operation, another type, open memory.
            batch.xor(a.at(0), 1 << 63);
            bits ^= 1u64 << 63;
            batch.sub(b.at(random.below(b.len())), 0.5);
            batch.max(p.on(job.neighbor(k as i64)).at(job), k as i64);
        }
    }
    batch.complete();
    batch.add(a.at(0), 1);
    drop(batch);
    job.barrier();
    // Everybody's numbers, again.
    let (mut all, mut halves) = (0, 0);
    for r in job.ranks() {
        let mut random = Random::new(r.0.into());
        for k in 0..n {
            all += random.draw() >> 32;
            random.draw();
            if k % 100 == 0 {
                random.draw();
                halves += 1;
            }
        }
    }
    assert!(sum <= all);
    let flips = bits.wrapping_mul(job.size() as u64);
    let got: u64 = (0..a.len()).map(|i| a.get(i)).fold(0, u64::wrapping_add);
    assert_eq!(got, all.wrapping_add(flips).wrapping_add(job.size() as u64));
    assert_eq!((0..b.len()).map(|i| b.get(i)).sum::<f32>(), -0.5 * halves as f32);
    assert!(p.get(job) >= 0);
    job.barrier();
    job.free_all(p);
}

fn misplaced(job: &Job) {
    let (cell, to) = (job.alloc_all::<u64>(2).unwrap(), job.neighbor(1));
    let refused = |what: &str, words: &str, f: &dyn Fn()| {
        let said = refusal(what, f);
        assert!(said.starts_with(&format!("{}: ", job.rank())) && said.contains(words), "{what}: {said}");
    };
    let bad = [
        ("rank", "in a job of", cell.on(Rank(job.size() as u32))),
        ("null", "the pointer is null", GlobalPtr::NULL),
        ("far", "lie outside its segment", cell.on(to).add(1 << 41)),
        ("crooked", "is not aligned for u64", cell.on(to).cast::<u8>().add(4).cast()),
    ];
    for (what, words, p) in bad {
        refused(what, words, &|| p.at(job).add(1));
        refused(what, words, &|| p.at(job).strict().store(1));
        refused(what, words, &|| drop(p.at(job).start().fetch_add(1)));
        refused(what, words, &|| job.batch().add(p.at(job), 1));
    }
    let crooked = cell.on(to).cast::<u8>().add(2).cast::<f32>();
    refused("crooked", "is not aligned for f32", &|| crooked.at(job).add(1.0));
    let a = job.array::<u64>(3).unwrap();
    refused("outside", "there is no element 3 in an array of 3", &|| a.at(3).add(1));
    job.barrier();
    assert_eq!([cell.get(job), cell.add(1).get(job)], [0, 0], "nothing was touched");
    assert!((0..3).all(|i| a.get(i) == 0));
    job.barrier();
    job.free_all(cell);
}

fn any_of_several(job: &Job) {
    fn slow(_: &Job, n: u64) -> u64 {
        (0..n).fold(n, |sum, k| std::hint::black_box(sum ^ (k & 1) ^ ((k >> 1) & 1))).max(n) - n
    }
    assert!(job.wait_any::<u64>(&mut []).is_none() && job.wait_some::<u64>(&mut [None]).is_empty());
    let a = job.array::<u64>(job.size()).unwrap();
    let mut events: Vec<Option<Event<'_, u64>>> = vec![];
    for r in job.ranks() {
        events.push(Some(a.at(r.index()).start().fetch_add(1)));
        events.push(Some(job.rpc(r, slow, 100 * u64::from(r.0))));
        events.push(None);
    }
    let mut come = vec![false; events.len()];
    let (i, _) = job.wait_any(&mut events).expect("there are some");
    come[i] = true;
    loop {
        let some = job.wait_some(&mut events);
        if some.is_empty() {
            break;
        }
        for (i, _) in some {
            assert!(!std::mem::replace(&mut come[i], true), "twice");
        }
    }
    assert!(come.iter().enumerate().all(|(i, &come)| come == (i % 3 != 2)) && events.iter().all(Option::is_none));
    job.barrier();
    // Buffers come back with their events.
    let mut buffers = vec![[0u64; 1]; job.size()];
    job.scope(|s| {
        let mut gets: Vec<_> = buffers.iter_mut().enumerate().map(|(i, b)| Some(s.get(&a, i, b))).collect();
        let mut sum = 0;
        while let Some((_, buffer)) = job.wait_any(&mut gets) {
            sum += buffer[0];
        }
        assert_eq!(sum, (job.size() * job.size()) as u64);
    });
    job.barrier();
}

fn futures(job: &Job) {
    fn twice(_: &Job, n: u64) -> u64 {
        2 * n
    }
    let a = job.array::<u64>(Layout::per_rank(4)).unwrap();
    a.cells().write(0, &[1, 2, 3, job.rank().0.into()]);
    job.barrier();
    // Tasks that wait for each of the kinds of event, together.
    let tasks = job.ranks().map(|r| {
        let a = &a;
        async move {
            // What others write meanwhile is not read.
            let there = a.fetch(4 * r.index() + 2..4 * r.index() + 4).await;
            let doubled = job.rpc(r, twice, there[1]).await;
            let old = a.at(4 * r.index()).start().fetch_add(doubled).await;
            let back = a.store(4 * r.index() + 1, vec![2]).await;
            (there[1], doubled, old > 0, back)
        }
    });
    let all = job.block_on(join_all(tasks));
    for (r, (rank, doubled, some, back)) in all.into_iter().enumerate() {
        assert_eq!((rank, doubled, some, back), (r as u64, 2 * r as u64, true, vec![2]));
    }
    job.barrier();
    assert_eq!(a.cells().get(0), 1 + 2 * (job.rank().0 as u64) * job.size() as u64);
    assert_eq!(job.block_on(async { 7 }), 7);
    assert_eq!(job.block_on(join_all(Vec::<std::future::Ready<u8>>::new())), []);
    // Inside each other, and with a blocking call in between.
    let nested = job.block_on(async { job.block_on(async { a.get(0) }) + a.fetch(..1).await[0] });
    assert_eq!(nested, 2 * a.get(0));
    // Another thread wakes a rank that sleeps.
    let (send, receive) = mpsc::channel::<Waker>();
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let other = std::thread::spawn({
        let flag = flag.clone();
        move || {
            let waker = receive.recv().expect("a waker");
            flag.store(true, std::sync::atomic::Ordering::Release);
            waker.wake();
        }
    });
    let mut send = Some(send);
    job.block_on(poll_fn(|cx| {
        if let Some(send) = send.take() {
            send.send(cx.waker().clone()).expect("it waits");
        }
        if flag.load(std::sync::atomic::Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }));
    other.join().expect("it has woken us");
    job.barrier();
}

/// What is not waited for is complete after quiet, and what is in the way of nothing.
fn left_alone(job: &Job) {
    let a = job.array::<u64>(Layout::per_rank(64)).unwrap();
    let right = 64 * job.neighbor(1).index();
    for i in 0..64 {
        // Polled once, and left.
        let mut event = pin!(a.store(right + i, vec![i as u64 + 1]));
        let _ = event.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // A future that is dropped in the middle.
    let mut task = Box::pin(async {
        a.at(right).start().fetch_add(100).await;
        pending::<()>().await;
    });
    while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {}
    drop(task);
    job.quiet();
    job.barrier();
    let mut mine = [0; 64];
    a.cells().read(0, &mut mine);
    assert_eq!(mine[0], 101);
    assert!((1..64).all(|i| mine[i] == i as u64 + 1));
    job.barrier();
}

fn twice(job: &Job) {
    let a = job.array::<u64>(job.size()).unwrap();
    let mut event = a.at(job.neighbor(1).index()).start().fetch_add(1);
    job.block_on(&mut event);
    assert!(event.test(), "complete, and stays so");
    let said = refusal("awaited twice", || job.block_on(&mut event));
    assert!(said.contains("already polled to its end"), "{said}");
    let said = refusal("waited for after it was awaited", || event.wait());
    assert!(said.contains("already polled to its end"), "{said}");
    job.barrier();
}

/// A domain, if there may be one: where there is no network between ranks and one is asked for, that is an error.
fn domain<T: Word>(job: &Job, ops: &[Op]) -> Option<AtomicDomain<T>> {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    let never = job.ranks().all(|r| job.same_node(r)) || is("PARTAGE_REFERENCE", "1");
    let domain = match job.atomic_domain(ops) {
        Ok(domain) => domain,
        Err(why) => {
            assert!(never && is("PARTAGE_ATOMICS", "network"), "{why}");
            let begin = format!("{}: atomic_domain: PARTAGE_ATOMICS=network: ", job.rank());
            assert!(why.to_string().starts_with(&begin), "{why}");
            return None;
        }
    };
    assert!(!domain.is_native() || !never && !is("PARTAGE_ATOMICS", "cpu"));
    assert!(domain.is_native() || !is("PARTAGE_ATOMICS", "network"));
    Some(domain)
}

fn domain_of_every_type(job: &Job) {
    let me = job.rank().index();
    // On every rank two words for every rank.
    let words = job.alloc_all::<[u64; 2]>(job.size()).unwrap();
    macro_rules! each {
        ($($t:ty, $three:expr $(, $four:expr $(, $bits:expr)?)?;)*) => {$(
            let Some(d) = domain::<$t>(job, &Op::ALL) else { return job.free_all(words) };
            for on in some_ranks(job) {
                let mine = words.on(on).add(me);
                mine.put(job, [0; 2]);
                let p = mine.cast::<$t>();
                all_ways(d.at(p.at(job)), $three);
                $(numbers(d.at(p.at(job)), $four);
                $(bits(d.at(p.at(job)), $bits);)?)?
                // What lies beside it is not touched.
                assert_eq!(p.add(1).get(job), <$t>::zeroed());
            }
        )*};
    }
    const FOUR: [u8; 4] = [2, 3, 6, 9];
    const BITS: [u8; 4] = [0x0f, 0x70, 0x7f, 0];
    each! {
        u32, [0, u32::MAX, 7], FOUR.map(Into::into), BITS.map(Into::into);
        i32, [0, i32::MAX, i32::MIN], FOUR.map(Into::into), BITS.map(Into::into);
        u64, [0, u64::MAX, 7], FOUR.map(Into::into), BITS.map(Into::into);
        i64, [0, i64::MAX, i64::MIN], FOUR.map(Into::into), BITS.map(Into::into);
        usize, [0, usize::MAX, 7], FOUR.map(Into::into), BITS.map(Into::into);
        isize, [0, isize::MAX, isize::MIN], FOUR.map(Into::into), BITS.map(Into::into);
        f32, [0.0, f32::INFINITY, -1.5e-30], FOUR.map(Into::into);
        f64, [0.0, f64::INFINITY, -1.5e-300], FOUR.map(Into::into);
        GlobalPtr<u8>, [GlobalPtr::NULL, words.cast(), words.on(job.neighbor(1)).cast()];
    }
    let (signed, floats) = (domain::<i32>(job, &Op::ALL), domain::<f64>(job, &Op::ALL));
    let (signed, floats) = (signed.expect("as above"), floats.expect("as above"));
    for on in some_ranks(job) {
        let p = words.on(on).add(me);
        p.put(job, [0; 2]);
        let place = signed.at(p.cast().at(job));
        place.store(i32::MAX);
        assert_eq!((place.fetch_add(2), place.load()), (i32::MAX, i32::MIN + 1), "wraps around");
        assert_eq!((place.fetch_max(-5), place.fetch_min(3), place.load()), (i32::MIN + 1, -5, -5));
        let place = floats.at(p.cast().at(job));
        place.store(f64::NAN);
        assert!(place.compare_exchange(f64::NAN, -0.0).is_ok(), "by their bits");
        assert_eq!(place.compare_exchange(0.0, 1.0).map_err(|zero| zero.is_sign_negative()), Err(true));
        assert_eq!(p.get(job)[1], 0);
    }
    job.barrier();
    job.free_all(words);
}

fn contended_domain(job: &Job) {
    let (me, n) = (u64::from(job.rank().0), job.size() as u64);
    let each = plenty(job, 4000) as u64;
    let Some(d) = domain::<u64>(job, &Op::ALL) else { return };
    let floats = domain::<f32>(job, &[Op::Add, Op::Load]).expect("as above");
    let (a, f) = (job.array::<u64>(Layout::cyclic(job.size() + 7)).unwrap(), job.array::<f32>(job.size()).unwrap());
    // A message, and the flag that says that it is there; the message goes by puts.
    let message = job.array::<u64>(job.size()).unwrap();
    let mut random = Random::new(me);
    let mut olds = vec![];
    for i in 0..each {
        olds.push(d.at(a.at(0)).fetch_add(1));
        let old = d.at(a.at(1)).load();
        let _ = d.at(a.at(1)).compare_exchange(old, old);
        d.at(a.at(2)).xor(mixed([me, i]));
        drop(d.at(a.at(3 + random.below(a.len() - 3))).start().add(1));
        floats.at(f.at(random.below(f.len()))).add(0.5);
        if i % 8 == 0 {
            let place = d.at(a.at(1));
            let mut old = place.relaxed().load();
            while let Err(now) = place.compare_exchange(old, old + 3) {
                old = now;
            }
        }
    }
    let mut batch = job.batch();
    (0..each).for_each(|i| batch.add(d.at(a.at(3 + i as usize % (a.len() - 3))), 1));
    drop(batch);
    job.quiet();
    job.barrier();
    assert!(olds.windows(2).all(|w| w[0] < w[1]) && olds.iter().all(|&old| old < n * each));
    assert_eq!(d.at(a.at(0)).load(), n * each);
    let all = (0..n).flat_map(|r| (0..each).map(move |i| mixed([r, i])));
    assert_eq!(d.at(a.at(2)).strict().load(), all.fold(0, |a, b| a ^ b));
    job.barrier();
    // From here on nobody uses the domain: puts and gets find what it did.
    assert_eq!(a.get(1), 3 * n * each.div_ceil(8));
    assert_eq!((3..a.len()).map(|i| a.get(i)).sum::<u64>(), 2 * n * each);
    assert_eq!((0..f.len()).map(|i| f.get(i)).sum::<f32>(), 0.5 * (n * each) as f32);
    job.barrier();
    // Each waits for its left neighbour's flag by the domain, and finds what that one put before.
    let (left, right) = (job.neighbor(-1).index(), job.neighbor(1).index());
    a.put(left, 0);
    job.barrier();
    for i in 1..=plenty(job, 200) as u64 {
        message.put(right, i * 17);
        job.fence();
        d.at(a.at(right)).store(i);
        let mine = job.rank().index();
        while d.at(a.at(mine)).load() < i {
            job.poll();
            std::thread::yield_now();
        }
        assert_eq!(message.get(mine), i * 17);
        job.barrier();
    }
}

/// The network alone acts on a native domain's words: no rank of the node is waited for, from the first operation on.
fn domain_of_who_computes(job: &Job) {
    let Some(d) = domain::<u64>(job, &[Op::Add, Op::Load]) else { return };
    let (words, done) = (job.alloc_all::<u64>(1).unwrap(), job.alloc_all::<u64>(job.size()).unwrap());
    let near: Vec<Rank> = job.ranks().filter(|&r| job.same_node(r)).collect();
    let (&last, others) = near.split_last().expect("this rank");
    (0..job.size()).for_each(|i| done.on(job.rank()).add(i).put(job, 0));
    words.on(job.rank()).put(job, 0);
    let serves = !std::env::var("PARTAGE_PROGRESS").is_ok_and(|who| who == "none");
    // Of what the words are only; where they are, only the first operation asks.
    job.barrier();
    if d.is_native() && serves {
        if job.rank() == last {
            // Reads of one's own memory serve nobody.
            let is_done = |r: &Rank| done.on(last).add(r.index()).get(job) == 1;
            while !others.iter().all(is_done) {
                std::thread::yield_now();
            }
        } else {
            d.at(words.on(last).at(job)).add(1);
            done.on(last).add(job.rank().index()).put(job, 1);
        }
        job.barrier();
        assert_eq!(d.at(words.on(last).at(job)).load(), others.len() as u64);
    }
    job.barrier();
    job.free_all(words);
    job.free_all(done);
}

fn domain_rules(job: &Job) {
    let Some(d) = domain::<u64>(job, &[Op::Add, Op::Load]) else { return };
    let a = job.array::<u64>(job.size()).unwrap();
    let cell = job.alloc_all::<u64>(2).unwrap();
    let place = d.at(a.at(job.neighbor(1).index()));
    let refused = |what: &str, words: &str, f: &dyn Fn()| {
        let said = refusal(what, f);
        assert!(said.starts_with(&format!("{}: ", job.rank())) && said.contains(words), "{what}: {said}");
    };
    let words = "in a domain that was not asked for it: give Op::Mul to atomic_domain";
    refused("another operation", words, &|| place.mul(2));
    refused("another operation, started", words, &|| drop(place.start().fetch_mul(2)));
    refused("another operation, in a batch", words, &|| job.batch().mul(place, 2));
    let bad = [
        ("rank", "in a job of", cell.on(Rank(job.size() as u32))),
        ("null", "the pointer is null", GlobalPtr::NULL),
        ("far", "lie outside its segment", cell.on(job.neighbor(1)).add(1 << 41)),
        ("crooked", "is not aligned for u64", cell.on(job.neighbor(1)).cast::<u8>().add(4).cast()),
    ];
    for (what, words, p) in bad {
        refused(what, words, &|| d.at(p.at(job)).add(1));
        refused(what, words, &|| _ = d.at(p.at(job)).strict().load());
        refused(what, words, &|| drop(d.at(p.at(job)).start().fetch_add(1)));
        refused(what, words, &|| job.batch().add(d.at(p.at(job)), 1));
    }
    job.barrier();
    place.add(1);
    job.barrier();
    assert_eq!((cell.get(job), cell.add(1).get(job), a.cells().get(0)), (0, 0, 1), "nothing else was touched");
    job.barrier();
    job.free_all(cell);
}
