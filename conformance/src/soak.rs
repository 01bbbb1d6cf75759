//! Random traffic with checked contents.

use crate::coll::Pool;
use crate::litmus::Litmus;
use crate::region::Any;
use crate::{Blob, Random, are, bytes, mixed, reduce, team, with_shape};
use partage::am::{LongRequest, MEDIUM, Reply, Request, Target};
use partage::prelude::*;
use partage::serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Rounds that all ranks begin together, until rank 0 finds that the time is over.
struct Rounds<'j> {
    job: &'j Job,
    go_on: GlobalPtr<u8>,
    round: u64,
    begun: Instant,
    time: Duration,
}

impl<'j> Rounds<'j> {
    fn new(job: &'j Job, time: Duration) -> Self {
        let go_on = job.alloc_all::<u8>(1).expect("a byte");
        Rounds { job, go_on, round: 0, begun: Instant::now(), time }
    }

    /// The number of the next round, if there is one.
    fn next(&mut self) -> Option<u64> {
        let Rounds { job, go_on, round, begun, time } = *self;
        if job.rank() == Rank(0) {
            let more = u8::from(begun.elapsed() < time);
            job.ranks().for_each(|r| go_on.on(r).put(job, more));
        }
        job.barrier_with(round);
        self.round += 1;
        (go_on.get(job) != 0).then_some(round)
    }

    fn end(self) {
        self.job.free_all(self.go_on);
    }
}

/// Rounds of random puts and gets of random lengths to random places, each checked by its owner after a barrier, until
/// the time is over. Each rank writes only into its own stripe of every segment, so that what must arrive is known.
pub fn traffic(job: &Job, time: Duration, seed: u64) {
    const STRIPE: usize = 16 << 10;
    let (me, n) = (job.rank().index(), job.size());
    let block = job.alloc_all::<u8>(STRIPE * n).expect("16 KiB per pair");
    let mut more = Rounds::new(job, time);
    // What each rank has written into each segment is known to all: the same generator runs everywhere.
    let mut image = vec![vec![0u8; STRIPE]; n];
    while let Some(round) = more.next() {
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
    more.end();
    job.free_all(block);
}

/// Arrays that come and go, are written by anybody and owned in phases, until the time is over. Every rank knows what is in
/// all of them: the same generator runs everywhere. Handles are dropped late, by each rank when it likes.
pub fn arrays(job: &Job, time: Duration, seed: u64) {
    let (me, n) = (job.rank().index(), job.size());
    let (mut more, mut own) = (Rounds::new(job, time), Random::new(seed ^ 0xfeed ^ me as u64));
    let mut held: Vec<(SharedArray<u64>, Vec<u64>)> = vec![];
    let mut late = vec![];
    while let Some(round) = more.next() {
        let mut random = Random::new(seed ^ round << 20);
        if held.len() < 5 {
            let (len, block) = (random.below(5000), 1 + random.below(300));
            let layout = match random.below(7) {
                0 => Layout::blocked(len),
                1 => Layout::cyclic(len),
                2 => Layout::block_cyclic(len, block).starting_at(random.below(n)),
                3 => Layout::on(random.below(n), len),
                4 => Layout::per_rank(block),
                5 => Layout::tiles([1 + len / 64, 64]),
                _ => Layout::bricks([1 + len / 64, 8, 8]),
            };
            let array = job.array::<u64>(layout).expect("40 kB");
            let image = vec![0; array.len()];
            held.push((array, image));
        }
        // Each rank writes to ranges of its own: the array is dealt out anew in every round.
        let at = random.below(held.len());
        let (array, image) = &mut held[at];
        let each = image.len().div_ceil(n).max(1);
        for from in 0..n {
            let (first, last) = ((from * each).min(image.len()), ((from + 1) * each).min(image.len()));
            let start = first + random.below(last - first + 1);
            let len = random.below(last - start + 1);
            let (way, key) = (random.below(5), random.0);
            random.draw();
            let values: Vec<u64> = (0..len as u64).map(|i| if way == 4 { key } else { mixed([key, i]) }).collect();
            image[start..start + len].copy_from_slice(&values);
            if from == me {
                match way {
                    0 => array.put_slice(start, &values),
                    1 => drop(array.store(start, values)),
                    2 => std::mem::forget(array.store(start, values)),
                    3 => values.iter().enumerate().for_each(|(i, &x)| array.put(start + i, x)),
                    _ => array.slice(start..start + len).fill(key),
                }
            }
        }
        let right =
            |i: usize, x: u64, image: &[u64]| assert_eq!(x, image[i], "{}: round {round}, element {i}", job.rank());
        match random.below(3) {
            0 => array.freeze(|all| {
                (0..20.min(all.len())).map(|_| own.below(all.len())).for_each(|i| right(i, all.get(i), image));
            }),
            _ => {
                array.own_each(|i, x| {
                    right(i, *x, image);
                    *x = mixed([*x, round]);
                });
                image.iter_mut().for_each(|x| *x = mixed([*x, round]));
                let i = own.below(image.len() + 1);
                array.fetch(i..).wait().into_iter().enumerate().for_each(|(k, x)| right(i + k, x, image));
            }
        }
        if random.below(4) == 0 {
            late.push(held.swap_remove(random.below(held.len())));
        }
        while late.len() > own.below(4) {
            drop(late.swap_remove(own.below(late.len())));
        }
        // What is read by value here may be written in the next round.
        job.barrier();
    }
    drop((held, late));
    more.end();
}

/// Regions of every shape, written by all ranks at once to parts of an array that are theirs for a round, in blocks or
/// interleaved, until the time is over. Every rank knows what is in it, and reads what it likes.
pub fn regions(job: &Job, time: Duration, seed: u64) {
    let (me, n) = (job.rank().index(), job.size());
    let each = 600;
    let (mut more, mut own) = (Rounds::new(job, time), Random::new(seed ^ 0xfade ^ me as u64));
    let layouts = [
        Layout::blocked(each * n),
        Layout::block_cyclic(each * n, 7),
        Layout::tiles([20, 30 * n]),
        Layout::on(n / 2, each * n),
    ];
    let arrays = layouts.map(|layout| job.array::<u32>(layout).expect("a few KiB"));
    let mut images = layouts.map(|_| vec![0u32; each * n]);
    while let Some(round) = more.next() {
        let mut random = Random::new(seed ^ round << 20);
        let at = random.below(arrays.len());
        let (array, image) = (&arrays[at], &mut images[at]);
        let interleaved = random.below(2) == 0;
        for from in 0..n {
            let there = match interleaved {
                true => {
                    let (step, start) = (1 + random.below(5), random.below(each / 2));
                    let count = random.below((each - start) / step + 1);
                    Any::Region(Region::at(from + n * start).times(count, n * step))
                }
                false => Any::between(from * each, each, true, &mut random),
            };
            let elements = there.elements();
            let (key, way) = (random.draw(), random.below(3));
            let values: Vec<u32> = (0..elements.len() as u64).map(|i| mixed([key, i]) as u32).collect();
            elements.iter().zip(&values).for_each(|(&i, &x)| image[i] = x);
            if from == me {
                with_shape!(&there, there => match way {
                    0 => array.put_region(there, &values),
                    1 => job.scope(|s| drop(s.put_region(array, there, &values))),
                    _ => job.scope(|s| s.put_region(array, there, &values).wait()),
                });
            }
        }
        job.barrier();
        let some = Any::within(each * n, false, &mut own);
        let elements = some.elements();
        let mut got = vec![0; elements.len()];
        with_shape!(&some, some => match own.below(2) {
            0 => array.get_region(some, &mut got),
            _ => job.scope(|s| std::mem::forget(s.get_region(array, some, &mut got))),
        });
        let right = elements.iter().zip(&got).all(|(&i, &x)| image[i] == x);
        assert!(right, "{}: round {round}: {some:?} of {:?}", job.rank(), array.layout());
        job.barrier();
    }
    drop(arrays);
    more.end();
}

/// Rounds of random puts that signal, of random lengths to random ranks, each waited for and checked by its target, which knows
/// what comes; some semaphores count, some are made anew in every round.
pub fn signals(job: &Job, time: Duration, seed: u64) {
    const STRIPE: usize = 100 << 10;
    let (me, n) = (job.rank(), job.size());
    let block = job.alloc_all::<u8>(STRIPE * n).expect("100 KiB per pair");
    let array = job.array::<u8>(Layout::per_rank(STRIPE * n)).expect("100 KiB per pair");
    let told = job.alloc_all::<[Signal; 2]>(1).expect("two words");
    let come = job.semaphore().expect("a semaphore");
    let mut more = Rounds::new(job, time);
    while let Some(round) = more.next() {
        let fresh = job.semaphore().expect("a semaphore");
        told.put(job, [come.signal(), fresh.signal()]);
        job.barrier();
        let signals: Vec<_> = job.ranks().map(|r| told.on(r).get(job)).collect();
        let mut expected = vec![];
        for from in job.ranks() {
            let mut random = Random::new(seed ^ round << 20 ^ u64::from(from.0));
            // Each rank writes its stripes from the front, so that nothing is written twice.
            let mut used = vec![[0; 2]; n];
            for _ in 0..20 {
                let (to, which, times) = (random.below(n), random.below(2), 1 + random.below(3) as u32);
                let most = [8, 64, 5000, 80 << 10][random.below(4)];
                let (len, key) = (random.below(most), random.draw());
                let start = used[to][which];
                if start + len > STRIPE {
                    continue;
                }
                used[to][which] += len;
                let signal = signals[to][random.below(2)];
                if from == me {
                    let (text, place) = (bytes(key, len), me.index() * STRIPE + start);
                    match which {
                        0 => block.on(Rank(to as u32)).add(place).put_signal(job, &text, signal, times),
                        _ => array.put_signal(to * STRIPE * n + place, &text, signal, times),
                    }
                }
                if to == me.index() {
                    expected.push((from, which, start, len, key, times));
                }
            }
        }
        let all: u32 = expected.iter().map(|e| e.5).sum();
        let mut taken = 0;
        while taken < all {
            taken += 1;
            partage::signal::wait_any(&[&fresh, &come]);
        }
        for (from, which, start, len, key, _) in expected {
            let (mut got, place) = (vec![0; len], from.index() * STRIPE + start);
            match which {
                0 => block.add(place).get_slice(job, &mut got),
                _ => array.cells().read(place, &mut got),
            }
            assert!(are(key, &got), "{me}: round {round}: {len} bytes of {from} did not come whole");
        }
    }
    more.end();
    assert!(!come.try_wait());
    job.barrier();
    job.free_all(told);
    job.free_all(block);
}

/// Rounds in which all ranks take random locks, some of them several at a time, and add to what they guard, until the time is
/// over. What is there after each round is known to all: the same generator runs everywhere.
pub fn locks(job: &Job, time: Duration, seed: u64) {
    const ACTIONS: usize = 40;
    let (me, n) = (job.rank(), job.size());
    let mut more = Rounds::new(job, time);
    // How often, the sum of what was added, and what follows from both.
    let few = job.mutexes::<[u64; 3]>(Layout::cyclic(3)).expect("some lines");
    let many = job.mutexes::<[u64; 3]>(Layout::per_rank(4)).expect("some lines");
    let told = job.alloc_all::<MutexPtr<[u64; 3]>>(1).expect("a word");
    told.put(job, job.alloc_mutex([0; 3]).expect("a line"));
    job.barrier();
    let alone: Vec<_> = job.ranks().map(|r| told.on(r).get(job)).collect();
    let add = |value: &mut [u64; 3], key: u64| {
        let [count, sum, check] = *value;
        assert!(check == if count == 0 { 0 } else { mixed([count, sum]) }, "{me}: {count} added, {sum} in all");
        let (count, sum) = (count + 1, sum.wrapping_add(key));
        *value = [count, sum, mixed([count, sum])];
    };
    let mut expected = vec![(0u64, 0u64); few.len() + many.len() + n];
    while let Some(round) = more.next() {
        for from in job.ranks() {
            let mut random = Random::new(seed ^ round << 20 ^ u64::from(from.0));
            for _ in 0..ACTIONS {
                let (a, b, c, key) =
                    (random.below(few.len()), random.below(many.len()), random.below(n), random.draw());
                let which = random.below(8);
                let mut count = |i: usize| expected[i] = (expected[i].0 + 1, expected[i].1.wrapping_add(key));
                match which {
                    0..3 => count(a),
                    3..5 => count(few.len() + b),
                    5 => count(few.len() + many.len() + c),
                    _ => {
                        count(a);
                        count(few.len() + b);
                    }
                }
                if from != me {
                    continue;
                }
                match which {
                    0..3 => add(&mut few.lock(a), key),
                    3 => add(&mut many.lock(b), key),
                    4 => loop {
                        if let Some(mut value) = many.try_lock(b) {
                            break add(&mut value, key);
                        }
                        job.wait_until(|| true);
                    },
                    5 => add(&mut alone[c].lock(job), key),
                    _ => {
                        let mut first = few.lock(a);
                        add(&mut many.lock(b), key);
                        add(&mut first, key);
                    }
                }
            }
        }
        job.barrier();
        let i = (round as usize * 7 + me.index()) % expected.len();
        let value = match i {
            _ if i < few.len() => *few.lock(i),
            _ if i < few.len() + many.len() => *many.lock(i - few.len()),
            _ => *alone[i - few.len() - many.len()].lock(job),
        };
        assert_eq!((value[0], value[1]), expected[i], "{me}: round {round}: lock {i}");
        job.barrier();
    }
    job.free_mutex(alone[me.index()]);
    job.barrier();
    job.free_all(told);
    more.end();
}

/// Rounds of collectives of every kind, root, length and sync mode, until the time is over: streams without barriers on a few
/// buffers, and batches in which nobody waits. What must come out is known to all: the same generator runs everywhere.
pub fn collectives(job: &Job, time: Duration, seed: u64) {
    let n = job.size();
    // Rarely longer than this, and as long in all on few ranks as on many.
    let most = (60_000 / n / n).max(40);
    let (words, letters) = (Pool::<u64>::new(job, 40 + 3 * most * n), Pool::<u8>::new(job, 40 + 3 * most * n));
    let mut more = Rounds::new(job, time);
    while let Some(round) = more.next() {
        let mut random = Random::new(seed ^ round << 20);
        words.stream(20, most, &mut random);
        letters.stream(20, most, &mut random);
        words.batch(20, most, &mut random);
        letters.batch(20, most, &mut random);
        words.together(1 + random.below(12), most / 4, &mut random);
        reduce::traffic(job, 40, most, &mut random);
    }
    more.end();
}

/// Teams that overlap, with collectives and arrays on them, until the time is over. All ranks give the same seed.
pub fn teams(job: &Job, time: Duration, seed: u64) {
    let mut more = Rounds::new(job, time);
    while let Some(round) = more.next() {
        team::overlap(job, 40, &mut Random::new(seed ^ round << 20));
        team::on_random_teams(job, &mut Random::new(seed ^ round << 21), 10);
        reduce::teams::on_random_teams(job, &mut Random::new(seed ^ round << 22), 10);
    }
    more.end();
}

/// Litmus programs, until the time is over; and what to do in the end. All ranks give the same seed.
pub fn litmus(job: &Job, time: Duration, seed: u64, then: impl Fn(&Litmus<'_>)) {
    let (litmus, mut more) = (Litmus::new(job), Rounds::new(job, time));
    while let Some(round) = more.next() {
        litmus.round(mixed([seed, round]), litmus.instances());
    }
    then(&litmus);
    more.end();
    litmus.end();
}

/// What every message of the traffic carries: where it is counted, what it is known by, and where an answer to it is
/// counted, which is null where there is to be none.
#[derive(Clone, Copy, Debug, Pod, Zeroable, Serialize, Deserialize)]
#[bytemuck(crate = "partage::bytemuck")]
#[serde(crate = "partage::serde")]
#[repr(C)]
struct Stamp {
    count: GlobalPtr<u64>,
    key: u64,
    answer: GlobalPtr<u64>,
}

impl Stamp {
    /// The answer, and how long it is.
    fn answered(self) -> (Stamp, usize) {
        let key = mixed([self.key, 1]);
        (Stamp { count: self.answer, key, answer: GlobalPtr::NULL }, key as usize % 3000)
    }

    /// Two words: how many have come, and the sum of what they are known by.
    fn counted(self, target: &Target<'_>) {
        target.at(self.count).fetch_add(1);
        target.at(self.count.add(1)).fetch_add(self.key);
    }

    fn counted_by(self, job: &Job) {
        self.count.at(job).fetch_add(1);
        self.count.add(1).at(job).fetch_add(self.key);
    }
}

static ASKED: Request<Stamp> = Request::new(|token, target, stamp, payload| {
    let (len, from) = (payload.len(), token.source());
    assert!(are(stamp.key, payload), "{}: {len} bytes of {from} did not arrive whole", target.rank());
    stamp.counted(target);
    if !stamp.answer.is_null() {
        let (answer, len) = stamp.answered();
        token.reply(&ANSWERED, answer, &bytes(answer.key, len));
    }
});
static ANSWERED: Reply<Stamp> = Reply::new(|target, from, stamp, payload| {
    let len = payload.len();
    assert!(are(stamp.key, payload), "{}: {len} bytes answered by {from} did not arrive whole", target.rank());
    stamp.counted(target);
});
static LANDED: LongRequest<Stamp, u8> = LongRequest::new(|token, target, stamp, landed| {
    let (len, from) = (landed.len(), token.source());
    assert!(are(stamp.key, &landed.to_vec()), "{}: {len} bytes of {from} did not land whole", target.rank());
    stamp.counted(target);
});

/// Collective: what the messages need.
pub fn register(job: &Job) {
    job.register_handlers(&[&ASKED, &ANSWERED, &LANDED]);
}

fn told(job: &Job, (stamp, text): (Stamp, Blob)) {
    assert!(are(stamp.key, &text.0), "{}: {} bytes of an argument did not arrive whole", job.rank(), text.0.len());
    stamp.counted_by(job);
}

fn called(job: &Job, (stamp, text): (Stamp, Blob)) -> (u64, Blob) {
    told(job, (stamp, text));
    let (answer, len) = stamp.answered();
    (answer.key, Blob(bytes(answer.key, len * (1 + answer.key as usize % 40))))
}

/// What came to an object from every rank.
type Ledger = Vec<(u64, u64)>;

fn entered(ledger: &mut Ledger, (from, key, text): (Rank, u64, Blob)) -> u64 {
    assert!(are(key, &text.0), "{} bytes of {from} for an object did not arrive whole", text.0.len());
    let (count, sum) = &mut ledger[from.index()];
    (*count, *sum) = (*count + 1, sum.wrapping_add(key));
    *count
}

/// Rounds of random messages of every kind, of random lengths, to random ranks: short, medium, long, answered or not,
/// calls, calls of objects, waited for in any order. Each is checked by its content where it arrives, and after each round
/// all that were to come have come once: who sends what is known to all, from the same generator.
pub fn messages(job: &Job, time: Duration, seed: u64) {
    const ACTIONS: usize = 24;
    const PLACE: usize = 4096;
    let (me, n) = (job.rank(), job.size());
    // Two words for every rank that sends to me, and two for those that answer me.
    let counts = job.alloc_all::<u64>(4 * n).expect("some words");
    let landing = job.alloc_all::<u8>(n * ACTIONS * PLACE).expect("96 KiB per pair");
    let go_on = job.alloc_all::<u8>(1).expect("a byte");
    let ledger = job.dist::<Ledger>(vec![(0, 0); n]);
    let begun = Instant::now();
    let add = |(count, sum): &mut (u64, u64), key: u64| (*count, *sum) = (*count + 1, sum.wrapping_add(key));
    // What has come so far: to my words from every rank, to my object, and answers.
    let mut expected = [vec![(0, 0); n], vec![(0, 0); n], vec![(0, 0); n]];
    for round in 0u64.. {
        if me.0 == 0 {
            let more = u8::from(begun.elapsed() < time);
            job.ranks().for_each(|r| go_on.on(r).put(job, more));
        }
        job.barrier_with(round);
        if go_on.get(job) == 0 {
            break;
        }
        let (mut events, mut entries) = (vec![], vec![]);
        for from in job.ranks() {
            let mut random = Random::new(seed ^ round << 20 ^ u64::from(from.0));
            for i in 0..ACTIONS {
                let (to, kind, key) = (Rank(random.below(n) as u32), random.below(10), random.draw());
                let len = match random.below(20) {
                    0 => random.below(MEDIUM + 1),
                    1..5 => random.below(5000),
                    _ => random.below(130),
                };
                if to == me {
                    add(&mut expected[usize::from(kind >= 8)][from.index()], key);
                }
                if from != me {
                    continue;
                }
                let answer = if kind == 3 { counts.add(2 * n + 2 * to.index()) } else { GlobalPtr::NULL };
                let stamp = Stamp { count: counts.on(to).add(2 * me.index()), key, answer };
                match kind {
                    0 | 1 => job.am(to, &ASKED, stamp, &[]),
                    2 => job.am(to, &ASKED, stamp, &bytes(key, len)),
                    3 => {
                        add(&mut expected[2][to.index()], stamp.answered().0.key);
                        job.am(to, &ASKED, stamp, &bytes(key, len));
                    }
                    4 => {
                        let place = landing.on(to).add((me.index() * ACTIONS + i) * PLACE);
                        job.am_long(place, &bytes(key, len.min(PLACE)), &LANDED, stamp);
                    }
                    5 => job.tell(to, told, (stamp, Blob(bytes(key, len)))),
                    6 | 7 => events.push((stamp, job.rpc(to, called, (stamp, Blob(bytes(key, len * 3)))))),
                    8 => ledger.tell(to, |ledger, entry| _ = entered(ledger, entry), (me, key, Blob(bytes(key, len)))),
                    _ => entries.push(ledger.rpc(to, entered, (me, key, Blob(bytes(key, len))))),
                }
            }
        }
        let mut random = Random::new(seed ^ round << 20 ^ u64::from(me.0));
        while !events.is_empty() {
            let (stamp, event) = events.swap_remove(random.below(events.len()));
            let (key, Blob(text)) = event.wait();
            let (answer, len) = stamp.answered();
            let whole = key == answer.key && text.len() == len * (1 + key as usize % 40) && are(key, &text);
            assert!(whole, "{me}: round {round}: {} bytes of a result did not arrive whole", text.len());
        }
        job.quiet();
        assert!(entries.into_iter().all(|event| event.wait() > 0));
        job.barrier();
        let mut got = vec![0; 4 * n];
        counts.get_slice(job, &mut got);
        let pairs = |from: usize| (0..n).map(|r| (got[from + 2 * r], got[from + 2 * r + 1])).collect::<Vec<_>>();
        assert_eq!(pairs(0), expected[0], "{me}: round {round}: how many messages came and the sum of them");
        assert_eq!(pairs(2 * n), expected[2], "{me}: round {round}: how many answers came and the sum of them");
        let entered = ledger.with(|ledger| ledger.clone());
        assert_eq!(entered, expected[1], "{me}: round {round}: how many calls my object got and the sum of them");
        job.barrier();
    }
    job.barrier();
    job.free_all(go_on);
    job.free_all(landing);
    job.free_all(counts);
}

/// Atomics of all kinds on words of all ranks, waited for, started, in batches and awaited, until the time is over. What must come
/// out is known to all: the same generator runs everywhere.
pub fn atomics(job: &Job, time: Duration, seed: u64) {
    const WORDS: usize = 64;
    let (me, n) = (job.rank().index(), job.size());
    let sums = job.array::<u64>(Layout::block_cyclic(WORDS, 5)).expect("64 words");
    let halves = job.array::<f64>(Layout::cyclic(WORDS)).expect("64 words");
    let (mut sum, mut half) = (vec![0u64; WORDS], vec![0.0; WORDS]);
    let mut more = Rounds::new(job, time);
    while let Some(round) = more.next() {
        for from in 0..n {
            let mut random = Random::new(seed ^ round << 20 ^ from as u64);
            let mut started = vec![];
            let mut floats = vec![];
            let mut batch = job.batch();
            for _ in 0..random.below(200) {
                let (i, k, way) = (random.below(WORDS), random.draw() >> 40, random.below(8));
                sum[i] = sum[i].wrapping_add(k);
                half[i] += 0.5;
                if from != me {
                    continue;
                }
                match way {
                    0 => sums.at(i).add(k),
                    1 => drop(sums.at(i).relaxed().fetch_add(k)),
                    2 => sums.at(i).strict().add(k),
                    3 => started.push(Some(sums.at(i).start().fetch_add(k))),
                    4 => std::mem::forget(sums.at(i).start().add(k)),
                    5 => batch.add(sums.at(i), k),
                    6 => _ = job.block_on(sums.at(i).start().fetch_add(k)),
                    _ => {
                        let place = sums.at(i);
                        let mut old = place.load();
                        while let Err(found) = place.compare_exchange(old, old.wrapping_add(k)) {
                            old = found;
                        }
                    }
                }
                floats.push(halves.at(i).start().add(0.5));
            }
            if from == me {
                while job.wait_any(&mut started).is_some() {}
                partage::wait::wait_all(floats);
            }
        }
        job.quiet();
        job.barrier();
        for i in (0..WORDS).filter(|i| i % n == me) {
            assert_eq!((sums.get(i), halves.at(i).load()), (sum[i], half[i]), "word {i} in round {round}");
        }
        job.barrier();
    }
    more.end();
}
