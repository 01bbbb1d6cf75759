//! Semaphores and puts that signal them: what every mapping must do.

use crate::{Case, Random, are, bytes, mixed, plenty, refusal};
use partage::prelude::*;
use partage::signal::{Flavor, wait_all, wait_any};
use partage::wait::join_all;

/// The cases.
pub const CASES: [Case; 15] = [
    ("semaphores take all or nothing", all_or_nothing),
    ("signals bring their data", data),
    ("signals bring their data wherever it goes", anywhere),
    ("signals of all ranks lose nothing", contended),
    ("signals of boolean semaphores merge", boolean),
    ("signals that nobody waits for", unwanted),
    ("signals of several semaphores", several),
    ("what was written before a signal is there", transitive),
    ("a pipeline of signals", pipeline),
    ("a ring of strict signals", strict),
    ("signals that count bytes", bytes_that_count),
    ("signals from called functions", called),
    ("fences and signals do not wait for a neighbor", fences),
    ("semaphores that are freed and made again", made_again),
    ("wrong signals", wrong),
];

/// Collective: everybody's signals, so many of each.
fn exchange<const N: usize>(job: &Job, mine: [Signal; N]) -> Vec<[Signal; N]> {
    let all = job.alloc_all::<[Signal; N]>(1).unwrap();
    all.put(job, mine);
    job.barrier();
    let told = job.ranks().map(|r| all.on(r).get(job)).collect();
    job.free_all(all);
    told
}

/// The last rank of each node computes until the others have signalled other nodes, and fenced, with messages to it under way.
fn fences(job: &Job) {
    job.register_handlers(&[&NOTHING]);
    let (done, come) = (job.alloc_all::<u64>(job.size()).unwrap(), job.semaphore().unwrap());
    (0..job.size()).for_each(|i| done.on(job.rank()).add(i).put(job, 0));
    let all = exchange(job, [come.signal()]);
    let far = job.ranks().find(|&r| !job.same_node(r));
    let near: Vec<Rank> = job.ranks().filter(|&r| job.same_node(r)).collect();
    let (&last, others) = near.split_last().expect("this rank");
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    // There messages are what does it.
    if is_set("PARTAGE_REFERENCE", "1") || is_set("PARTAGE_PROGRESS", "none") {
        return job.free_all(done);
    }
    // More than can be under way.
    let n = 9000;
    if job.rank() == last {
        let is_done = |r: &Rank| done.on(last).add(r.index()).get(job) == 1;
        while !others.iter().all(is_done) {
            std::thread::yield_now();
        }
    } else {
        job.am(last, &NOTHING, 0, &[]);
        if let Some(far) = far {
            (0..n).for_each(|_| job.post(all[far.index()][0]));
        }
        job.fence();
        done.on(last).add(job.rank().index()).put(job, 1);
    }
    // To whom each posts, who does.
    let told = job.value(if job.rank() == last { u32::MAX } else { far.map_or(u32::MAX, |r| r.0) }).gather_all();
    let posters = told.iter().filter(|&&to| to == job.rank().0).count() as u32;
    come.wait_n(posters * n);
    job.barrier();
    assert_eq!(come.value(), 0);
    job.quiet();
    job.free_all(done);
}

static NOTHING: partage::am::Request<u64> = partage::am::Request::new(|_, _, _, _| ());

const ONE_TO_ONE: Flavor = Flavor { boolean: false, single_producer: true, single_consumer: true, strict: false };

/// All flavors that count.
fn counting() -> impl Iterator<Item = Flavor> {
    (0..8).map(|bits| Flavor {
        boolean: false,
        single_producer: bits & 1 != 0,
        single_consumer: bits & 2 != 0,
        strict: bits & 4 != 0,
    })
}

fn all_or_nothing(job: &Job) {
    for flavor in counting() {
        let come = job.semaphore_with(flavor).unwrap();
        assert_eq!(come.flavor(), flavor);
        let [signal] = exchange(job, [come.signal()])[job.neighbor(1).index()];
        assert_eq!(signal.rank(), job.neighbor(1));
        assert!(come.try_wait_n(0));
        come.wait_n(0);
        job.post_n(signal, 0);
        job.post_n(signal, 3);
        job.post(signal);
        come.wait_n(2);
        come.wait();
        come.wait();
        job.barrier();
        assert!(!come.try_wait() && !come.try_wait_n(2) && come.value() == 0);
        job.barrier();
        job.post_n(signal, 2);
        job.quiet();
        job.barrier();
        assert_eq!((come.value(), come.try_wait_n(3), come.value()), (2, false, 2));
        assert!(come.try_wait_n(2) && !come.try_wait());
        job.barrier();
    }
}

/// Lengths around what fits a word, a line, a message, and more messages.
const LENGTHS: [usize; 14] = [0, 1, 7, 8, 56, 64, 65, 1000, 1024, 4097, 65536, 65537, 150_000, 262_144];

fn data(job: &Job) {
    let me = job.rank().index();
    let most = LENGTHS[LENGTHS.len() - 1];
    let distances = match job.size() {
        1 => vec![0],
        2 | 3 => vec![0, 1],
        n => vec![0, 1, n as i64 / 2],
    };
    let array = job.array::<u8>(Layout::per_rank(most)).unwrap();
    let block = job.alloc_all::<u8>(most).unwrap();
    let many = job.semaphore().unwrap();
    let signals = exchange(job, [many.signal()]);
    for (k, distance) in distances.into_iter().enumerate() {
        let (to, from) = (job.neighbor(distance), job.neighbor(-distance).index());
        let fresh = job.semaphore_with(ONE_TO_ONE).unwrap();
        let [single] = exchange(job, [fresh.signal()])[to.index()];
        for len in LENGTHS {
            let seed = |from: usize, way: u64| mixed([from as u64, k as u64, len as u64, way]);
            let (mut got, own) = (vec![0; len], |way| bytes(seed(me, way), len));
            array.put_signal(to.index() * most + (most - len), &own(1), single, 1);
            fresh.wait();
            array.cells().read(most - len, &mut got);
            assert!(are(seed(from, 1), &got), "{len} bytes from {from} into an array");
            job.barrier();
            block.on(to).put_signal(job, &own(2), signals[to.index()][0], 3);
            many.wait_n(3);
            block.get_slice(job, &mut got);
            assert!(are(seed(from, 2), &got), "{len} bytes from {from} into open memory");
            job.barrier();
            drop(array.store_signal(to.index() * most, own(3), single, 2));
            fresh.wait_n(2);
            array.cells().read(0, &mut got);
            assert!(are(seed(from, 3), &got));
            let (four, five) = (own(4), own(5));
            job.barrier();
            job.scope(|s| {
                let first = s.put_signal(&array, to.index() * most, &four, single, 1);
                let second = s.put_signal_ptr(block.on(to), &five, single, 1);
                first.wait();
                second.wait();
            });
            fresh.wait_n(2);
            array.cells().read(0, &mut got);
            assert!(are(seed(from, 4), &got));
            block.get_slice(job, &mut got);
            assert!(are(seed(from, 5), &got));
            job.barrier();
            assert_eq!(block.on(to).store_signal(job, own(6), single, 1).wait(), own(6));
            fresh.wait();
            block.get_slice(job, &mut got);
            assert!(are(seed(from, 6), &got));
            job.barrier();
        }
    }
    drop(array);
    job.free_all(block);
}

/// More than a network may have one name for, which makes no difference to how it goes.
fn anywhere(job: &Job) {
    const STEP: usize = 1 << 20;
    const STEPS: usize = 17;
    const PART: usize = (STEPS + 1) * STEP;
    if job.size() > 6 {
        return;
    }
    let (me, to, from) = (job.rank().index(), job.neighbor(1).index(), job.neighbor(-1).index());
    let array = job.array::<u8>(Layout::per_rank(PART)).unwrap();
    let come = job.semaphore_with(ONE_TO_ONE).unwrap();
    let [signal] = exchange(job, [come.signal()])[to];
    let before = job.counters();
    for step in 0..8 * STEPS {
        let seed = |r: usize| mixed([r as u64, step as u64]);
        let (place, len) = (step % STEPS * STEP + step / STEPS * 120_000, if step == 0 { 9000 } else { STEP });
        array.put_signal(to * PART + place, &bytes(seed(me), len), signal, 1);
        come.wait();
        let mut got = vec![0; len];
        array.cells().read(place, &mut got);
        assert!(are(seed(from), &got), "step {step}: {len} bytes from {from}");
    }
    job.barrier();
    let after = job.counters();
    let (data, messages) = (after.far_signals_data - before.far_signals_data, after.far_signals - before.far_signals);
    // The first of either kind may go before the other has said how it is known there, and in one of the eight rounds a part may be short.
    assert!(data == 0 || messages <= 5, "{data} signals went by data, {messages} by message");
}

/// All post to all, as often as they can, with data, each to a place of its own.
fn contended(job: &Job) {
    let (me, n, times) = (job.rank().index(), job.size(), plenty(job, 40_000));
    let come = job.semaphore().unwrap();
    let signals = exchange(job, [come.signal()]);
    let places = job.alloc_all::<u64>(n * times).unwrap();
    let mut random = Random::new(me as u64);
    let mut taken = 0;
    let all = (times * n) as u64;
    for i in 1..=times as u64 {
        for to in job.ranks() {
            let place = places.on(to).add(me * times + i as usize - 1);
            let [signal] = signals[to.index()];
            match random.below(3) {
                0 => {
                    place.put(job, mixed([me as u64, i]));
                    job.post(signal);
                }
                _ => place.put_signal(job, &[mixed([me as u64, i])], signal, 1),
            }
        }
        match random.below(4) {
            0 => taken += u64::from(come.try_wait()),
            1 => {
                // There are so many in all.
                come.wait_n(n as u32 / 2);
                taken += n as u64 / 2;
            }
            2 => {
                job.block_on(come.signaled());
                taken += 1;
            }
            _ => {}
        }
        taken = take_rest(&come, taken, i * n as u64 / 4);
    }
    while taken < all {
        let some = (1 + random.below(7) as u64).min(all - taken);
        come.wait_n(some as u32);
        taken += some;
    }
    for (from, i) in (0..n).flat_map(|from| (1..=times).map(move |i| (from, i))) {
        assert_eq!(places.add(from * times + i - 1).get(job), mixed([from as u64, i as u64]), "{i} of {from}");
    }
    job.barrier();
    assert!(!come.try_wait());
    job.free_all(places);
}

/// Takes what there is, up to so many.
fn take_rest(come: &Semaphore, mut taken: u64, most: u64) -> u64 {
    while taken < most && come.try_wait() {
        taken += 1;
    }
    taken
}

/// Posts merge, and none of them is lost: whoever is signaled finds everything.
fn boolean(job: &Job) {
    let (me, n) = (job.rank().index(), job.size());
    for single_producer in [true, false] {
        let times = plenty(job, 4000) as u64;
        let come = job.semaphore_with(Flavor { boolean: true, single_producer, ..Default::default() }).unwrap();
        let signals = exchange(job, [come.signal()]);
        let places = job.alloc_all::<u64>(n * times as usize).unwrap();
        let place = |of: usize, i: u64| places.add(of * times as usize + i as usize);
        let posters: Vec<usize> = if single_producer { vec![job.neighbor(-1).index()] } else { (0..n).collect() };
        let targets: Vec<Rank> = if single_producer { vec![job.neighbor(1)] } else { job.ranks().collect() };
        let mut seen = vec![0; n];
        let mut sent = 0;
        while sent < times || posters.iter().any(|&p| seen[p] < times) {
            if sent < times {
                sent += 1;
                targets.iter().for_each(|to| {
                    place(me, sent - 1).on(*to).put_signal(job, &[sent], signals[to.index()][0], 1);
                });
            }
            // After the last of mine, I wait for the last of others.
            if sent < times || posters.iter().all(|&p| seen[p] == times) {
                _ = come.try_wait();
            } else {
                come.wait();
            }
            for &p in &posters {
                while seen[p] < times && place(p, seen[p]).get(job) != 0 {
                    seen[p] += 1;
                }
            }
        }
        job.barrier();
        assert!(come.value() <= 1);
        job.free_all(places);
    }
}

/// Quiet and a barrier complete what nobody waits for.
fn unwanted(job: &Job) {
    let me = job.rank().index() as u64;
    let come = job.semaphore().unwrap();
    let signals = exchange(job, [come.signal()]);
    let block = job.alloc_all::<[u64; 100]>(job.size()).unwrap();
    for round in 0..20u64 {
        for r in job.ranks() {
            let there = block.on(r).add(job.rank().index());
            there.put_signal(job, &[[mixed([me, round]); 100]], signals[r.index()][0], 1);
        }
        if round % 2 == 0 {
            job.quiet()
        } else {
            job.fence()
        }
        job.barrier();
        for r in 0..job.size() {
            assert_eq!(block.add(r).get(job), [mixed([r as u64, round]); 100]);
        }
        job.barrier();
    }
    assert_eq!(come.value(), 20 * job.size() as u32);
    job.barrier();
    job.free_all(block);
}

fn several(job: &Job) {
    let sems: [Semaphore; 3] = std::array::from_fn(|_| job.semaphore().unwrap());
    let signals = exchange(job, sems.each_ref().map(Semaphore::signal));
    let right = signals[job.neighbor(1).index()];
    let refs = sems.each_ref();
    for i in [2, 0, 1, 1] {
        job.post(right[i]);
        assert_eq!(wait_any(&refs), i);
        job.barrier();
    }
    // In one order there, in another here.
    [2, 0, 1].iter().for_each(|&i| job.post_n(right[i], i as u32 + 1));
    wait_all(&[(&sems[0], 1), (&sems[1], 2), (&sems[2], 3)]);
    [1, 2, 0].iter().for_each(|&i| job.post_n(right[i], 2));
    job.block_on(join_all(sems.iter().map(|s| s.signaled_n(2))));
    job.barrier();
    assert!(sems.iter().all(|s| s.value() == 0));
    job.barrier();
    // A future that is given up takes nothing.
    job.post(right[0]);
    drop(sems[0].signaled());
    sems[0].wait();
    job.barrier();
}

/// I write to one rank and signal another, which reads there.
fn transitive(job: &Job) {
    let (there, told) = (job.neighbor(1), job.neighbor(2));
    let come = job.semaphore().unwrap();
    let signals = exchange(job, [come.signal()]);
    let block = job.alloc_all::<[u64; 9]>(1).unwrap();
    let array = job.array::<u64>(Layout::per_rank(1)).unwrap();
    for round in 0..plenty(job, 2000) as u64 {
        let me = u64::from(job.rank().0);
        block.on(there).put(job, [mixed([me, round]); 9]);
        array.put(there.index(), round);
        job.post(signals[told.index()][0]);
        come.wait();
        // Who has signaled me wrote to my left neighbour.
        let (from, at) = (job.neighbor(-2), job.neighbor(-1));
        assert_eq!(block.on(at).get(job), [mixed([u64::from(from.0), round]); 9]);
        assert_eq!(array.get(at.index()), round);
        job.barrier();
    }
    job.free_all(block);
}

/// Each rank takes from its left, and gives to its right; as many are under way as there is room for. The last signals come
/// when some have gone on, and freed their semaphores.
fn pipeline(job: &Job) {
    const DEPTH: usize = 4;
    let (me, last, items) = (job.rank().index(), job.size() - 1, plenty(job, 8000) as u64);
    for flavor in [Flavor::default(), ONE_TO_ONE] {
        let ring = job.array::<[u64; 3]>(Layout::per_rank(DEPTH)).unwrap();
        {
            let (full, free) = (job.semaphore_with(flavor).unwrap(), job.semaphore().unwrap());
            let signals = exchange(job, [full.signal(), free.signal()]);
            job.post_n(free.signal(), DEPTH as u32);
            for k in 0..items {
                let (slot, mut item) = (k as usize % DEPTH, [k, 0, mixed([k])]);
                if me > 0 {
                    full.wait();
                    item = ring.get(me * DEPTH + slot);
                    job.post(signals[me - 1][1]);
                }
                assert_eq!(item, [k, me as u64, mixed([k])]);
                if me < last {
                    free.wait();
                    item[1] += 1;
                    ring.put_signal((me + 1) * DEPTH + slot, &[item], signals[me + 1][0], 1);
                }
            }
        }
        drop(ring);
    }
}

/// A word goes round, by semaphores that are full fences.
fn strict(job: &Job) {
    let flavor = Flavor { strict: true, ..Default::default() };
    let come = job.semaphore_with(flavor).unwrap();
    let right = exchange(job, [come.signal()])[job.neighbor(1).index()][0];
    let word = job.alloc_all::<u64>(1).unwrap();
    let there = word.on(job.neighbor(1));
    for lap in 0..20u64 {
        if job.rank().0 == 0 {
            there.put_signal(job, &[lap * 100], right, 1);
            come.wait();
            assert_eq!(word.get(job), lap * 100 + job.size() as u64 - 1);
        } else {
            come.wait();
            there.put_signal(job, &[word.get(job) + 1], right, 1);
        }
    }
    job.barrier();
    job.free_all(word);
}

/// Split-C's: so many bytes have come, whoever sent them.
fn bytes_that_count(job: &Job) {
    let (me, n) = (job.rank().index(), job.size());
    let come = job.semaphore().unwrap();
    let signals = exchange(job, [come.signal()]);
    let block = job.alloc_all::<u8>(1000 * n).unwrap();
    let len = |from: usize, to: usize, k: usize| mixed([from as u64, to as u64, k as u64]) as usize % 100;
    for (to, signal) in signals.iter().enumerate() {
        let mut at = block.on(Rank(to as u32)).add(1000 * me);
        for k in 0..10 {
            let some = bytes(mixed([me as u64, to as u64, k as u64]), len(me, to, k));
            at.put_signal(job, &some, signal[0], some.len() as u32);
            at = at.add(some.len());
        }
    }
    let all: usize = (0..n).flat_map(|from| (0..10).map(move |k| len(from, me, k))).sum();
    come.wait_n(all as u32);
    for from in 0..n {
        let mut at = block.add(1000 * from);
        for k in 0..10 {
            let mut some = vec![0; len(from, me, k)];
            at.get_slice(job, &mut some);
            assert!(are(mixed([from as u64, me as u64, k as u64]), &some));
            at = at.add(some.len());
        }
    }
    job.barrier();
    job.free_all(block);
}

fn called(job: &Job) {
    let come = job.semaphore().unwrap();
    let word = job.alloc_all::<u64>(1).unwrap();
    job.tell(
        job.neighbor(1),
        |job, (signal, word): (Signal, GlobalPtr<u64>)| word.put_signal(job, &[7], signal, 2),
        (come.signal(), word),
    );
    come.wait_n(2);
    assert_eq!(word.get(job), 7);
    job.barrier();
    job.free_all(word);
}

fn made_again(job: &Job) {
    let many: Vec<Semaphore> = (0..1500).map(|_| job.semaphore().unwrap()).collect();
    let right = exchange(job, [many[1234].signal(), many[0].signal()])[job.neighbor(1).index()];
    let block = job.alloc_all::<u8>(1).unwrap();
    job.post_n(right[0], 5);
    many[1234].wait_n(5);
    job.barrier();
    drop(many);
    // Nobody wants to hear of these any more.
    for round in 0..5 {
        job.barrier();
        let again: Vec<Semaphore> = (0..300).map(|_| job.semaphore().unwrap()).collect();
        right.iter().for_each(|&signal| job.post(signal));
        block.on(job.neighbor(1)).put_signal(job, &[round], right[0], 1);
        job.quiet();
        job.barrier();
        assert!(again.iter().all(|s| s.value() == 0), "in round {round}");
        assert_eq!(block.get(job), round, "a put it is all the same");
    }
    job.free_all(block);
}

fn wrong(job: &Job) {
    let me = job.rank();
    let a = job.array::<u32>(Layout::cyclic(2 * job.size())).unwrap();
    let (come, flag) =
        (job.semaphore().unwrap(), job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap());
    let signals = exchange(job, [come.signal(), flag.signal()]);
    let block = job.alloc_all::<u32>(4).unwrap();
    let (right, other) = (job.neighbor(1), signals[job.neighbor(1).index()]);
    let refused = |parts: &[&str], said: String| {
        let starts = said.starts_with(&format!("{me}: "));
        assert!(starts && !said.contains('\n') && parts.iter().all(|part| said.contains(part)), "{said}");
    };
    let far = format!("on {right}");
    if job.size() > 1 {
        refused(
            &["put_signal", "element", "both must be on one", &far],
            refusal("another rank's", || a.put_signal(me.index(), &[1], other[0], 1)),
        );
        refused(
            &["put_signal", "both must be on one", &far],
            refusal("another rank's", || block.put_signal(job, &[1], other[0], 1)),
        );
        refused(
            &["put_signal", "lie on several ranks"],
            refusal("on several", || a.put_signal(right.index(), &[1, 2], other[0], 1)),
        );
    }
    refused(
        &["put_signal", "2 elements from", "do not lie in an array of"],
        refusal("beyond", || a.put_signal(2 * job.size() - 1, &[1, 2], other[0], 1)),
    );
    refused(&["put_signal"], refusal("beyond", || block.on(right).add(1 << 40).put_signal(job, &[1], other[0], 1)));
    refused(&["post_n", "a boolean semaphore"], refusal("boolean", || job.post_n(other[1], 2)));
    refused(
        &["put_signal", "a boolean semaphore"],
        refusal("boolean", || block.on(right).put_signal(job, &[1], other[1], 2)),
    );
    refused(&["wait_n: 2 posts of a boolean semaphore"], refusal("boolean", || flag.wait_n(2)));
    refused(&["try_wait_n: 2 posts of a boolean semaphore"], refusal("boolean", || flag.try_wait_n(2)));
    refused(&["signaled_n: 3 posts of a boolean"], refusal("boolean", || _ = flag.signaled_n(3)));
    refused(&["wait_n", "which has 2147483647 at most"], refusal("too many", || come.wait_n(u32::MAX)));
    refused(&["post: the signal is null"], refusal("null", || job.post(Signal::NULL)));
    refused(
        &["put_signal: the signal is null"],
        refusal("null", || block.on(right).put_signal(job, &[], Signal::NULL, 1)),
    );
    refused(&["post_n", "more than 2147483647 posts"], refusal("too many", || job.post_n(other[0], u32::MAX)));
    let nowhere: Signal = partage::bytemuck::cast(u64::MAX);
    refused(&["post: there is no rank 1048575"], refusal("no rank", || job.post(nowhere)));
    job.rpc(me, |job, ()| refusal("in a function", || job.semaphore().unwrap().wait()), ()).wait();
    job.barrier();
    // Nothing of it has come.
    assert!(come.value() == 0 && flag.value() == 0 && (0..4).all(|i| block.add(i).get(job) == 0));
    job.barrier();
    job.free_all(block);
}
