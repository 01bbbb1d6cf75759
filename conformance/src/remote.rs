//! What other threads of a rank do: remotes, and semaphores that several threads take from.

use crate::{Case, are, bytes, mixed, plenty, refusal};
use partage::am::Request;
use partage::prelude::*;
use partage::signal::Flavor;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread;

/// The cases.
pub const CASES: [Case; 7] = [
    ("other threads put, get and add", memory),
    ("other threads signal, with and without data", signals),
    ("other threads send messages", messages),
    ("each post is taken once, by the rank or by another thread", consumers),
    ("several posts are taken at once by other threads, or none", several),
    ("a semaphore that is freed sends away the threads that wait for it", freed),
    ("mistakes of other threads are said", mistakes),
];

/// Longer than a message.
const LONG: usize = 100_000;
/// Threads of each rank.
const THREADS: usize = 3;

/// Runs threads beside this rank, which waits for them as it should.
fn beside<R: Send>(job: &Job, f: impl Fn(Remote, usize) -> R + Sync) -> Vec<R> {
    let done = job.semaphore().unwrap();
    let (signal, f) = (done.signal(), &f);
    thread::scope(|s| {
        let start = |k| {
            let remote = job.remote();
            s.spawn(move || {
                let end = Last(remote.clone(), signal);
                let result = f(remote, k);
                drop(end);
                result
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        done.wait_n(THREADS as u32);
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Posts when a thread ends, however.
struct Last(Remote, Signal);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.post(self.1);
    }
}

fn memory(job: &Job) {
    let times = plenty(job, 300).min(60);
    let room = job.alloc_all::<[u64; 5]>(job.size() * THREADS).unwrap();
    let words = job.alloc_all::<u64>(2).unwrap();
    job.barrier();
    let long = job.alloc_all::<u8>(THREADS * LONG).unwrap();
    let (me, size, right) = (job.rank(), job.size(), job.neighbor(1));
    let mine = beside(job, |remote, k| {
        assert_eq!((remote.rank(), remote.size()), (me, size));
        let mut sum = 0u64;
        for i in 0..times {
            let to = Rank(mixed([i as u64, k as u64, me.0.into()]) as u32 % remote.size() as u32);
            let there = room.on(to).add(me.index() * THREADS + k);
            let value = [0, 1, 2, 3, 4].map(|w| mixed([w, i as u64, k as u64]));
            match i % 2 {
                0 => remote.put(there, value),
                _ => remote.put_slice(there.cast(), &value),
            }
            let mut back = [0u64; 5];
            remote.get_slice(there.cast(), &mut back);
            assert_eq!((remote.get(there), back), (value, value));
            remote.fetch_add(words.on(to), 1);
            sum += 1;
        }
        let (there, data) = (long.on(right).add(k * LONG), bytes(k as u64, LONG));
        remote.put_slice(there, &data);
        let mut back = vec![0; LONG];
        remote.get_slice(there, &mut back);
        assert!(back == data, "{me}: long ones of thread {k}");
        sum
    });
    assert_eq!(mine, [times as u64; THREADS]);
    words.add(1).on(Rank(0)).at(job).add(mine.iter().sum());
    job.barrier();
    if me.0 == 0 {
        let counted: u64 = job.ranks().map(|r| words.on(r).get(job)).sum();
        assert_eq!(counted, words.add(1).get(job));
    }
    job.barrier();
    job.free_all(room);
    job.free_all(words);
    job.free_all(long);
}

fn signals(job: &Job) {
    const LEN: usize = LONG;
    let times = plenty(job, 300).min(60) as u32;
    let (me, there) = (job.rank(), job.neighbor(1));
    let room = job.alloc_all::<u8>(THREADS * LEN).unwrap();
    for flavor in [Flavor::default(), Flavor { strict: true, ..Default::default() }] {
        let come: Vec<_> = (0..THREADS + 1).map(|_| job.semaphore_with(flavor).unwrap()).collect();
        let table = job.alloc_all::<Signal>(THREADS + 1).unwrap();
        table.put_slice(job, &come.iter().map(|s| s.signal()).collect::<Vec<_>>());
        job.barrier();
        let mut theirs = [Signal::NULL; THREADS + 1];
        table.on(there).get_slice(job, &mut theirs);
        beside(job, |remote, k| {
            let len = [0, 1000, LEN][k];
            let data = bytes(mixed([k as u64, me.0.into()]), len);
            remote.put_signal(room.on(there).add(k * LEN), &data, theirs[k], 2);
            for i in 0..times {
                remote.post_n(theirs[THREADS], i % 3);
                remote.post(theirs[THREADS]);
            }
        });
        for (k, come) in come[..THREADS].iter().enumerate() {
            come.wait_n(2);
            let mut data = vec![0; [0, 1000, LEN][k]];
            room.add(k * LEN).get_slice(job, &mut data);
            assert!(are(mixed([k as u64, job.neighbor(-1).0.into()]), &data), "{me}: of thread {k}");
        }
        come[THREADS].wait_n(THREADS as u32 * (0..times).map(|i| i % 3 + 1).sum::<u32>());
        job.barrier();
        assert!(come.iter().all(|s| s.value() == 0));
        job.free_all(table);
    }
    job.free_all(room);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Count {
    count: GlobalPtr<u64>,
    seed: u64,
}

static COUNT: Request<Count> = Request::new(|_, target, Count { count, seed }, payload| {
    assert!(are(seed, payload));
    target.at(count).fetch_add(1);
});

fn messages(job: &Job) {
    job.register_handlers(&[&COUNT]);
    let (times, count) = (plenty(job, 1000).min(200), job.alloc_all::<u64>(1).unwrap());
    let me = job.rank();
    beside(job, |remote, k| {
        for i in 0..times {
            let to = Rank(((me.index() + k + i) % remote.size()) as u32);
            let seed = mixed([i as u64, k as u64]);
            remote.am(to, &COUNT, Count { count: count.on(to), seed }, &bytes(seed, [0, 10, 3000][i % 3]));
        }
    });
    job.quiet();
    job.barrier();
    let all: u64 = job.ranks().map(|r| count.on(r).get(job)).sum();
    assert_eq!(all as usize, job.size() * THREADS * times);
    job.barrier();
    job.free_all(count);
}

/// Everybody posts to everybody; the rank and its threads take what comes, and no post is taken twice or lost.
fn consumers(job: &Job) {
    let times = plenty(job, 4000).min(800) as u64;
    let work = job.semaphore().unwrap();
    let table = job.alloc_all::<Signal>(1).unwrap();
    table.put(job, work.signal());
    job.barrier();
    let all = times * job.size() as u64;
    let (taken, mine) = (AtomicU64::new(0), AtomicU64::new(0));
    let (done, stop) = (job.semaphore().unwrap(), AtomicBool::new(false));
    let end = done.signal();
    thread::scope(|s| {
        for _ in 0..THREADS {
            let (work, remote) = (work.share(), job.remote());
            let (taken, stop) = (&taken, &stop);
            s.spawn(move || {
                loop {
                    work.wait();
                    if stop.load(Acquire) {
                        break;
                    }
                    taken.fetch_add(1, AcqRel);
                }
                remote.post(end);
            });
        }
        for i in 0..times {
            job.ranks().for_each(|r| job.post(table.on(r).get(job)));
            if i % 3 == 0 && work.try_wait() {
                mine.fetch_add(1, Relaxed);
            }
        }
        // What others post while this rank only waits is taken by its threads.
        job.wait_until(|| taken.load(Acquire) + mine.load(Relaxed) == all);
        assert!(!work.try_wait(), "{}: one too many", job.rank());
        job.barrier();
        stop.store(true, Release);
        job.post_n(work.signal(), THREADS as u32);
        done.wait_n(THREADS as u32);
    });
    assert_eq!(work.value(), 0);
    job.free_all(table);
}

fn several(job: &Job) {
    let boolean = job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap();
    let work = job.semaphore().unwrap();
    let signals = [work.signal(), boolean.signal()];
    let shares = [work.share(), boolean.share()];
    assert_eq!(shares[0].signal(), signals[0]);
    let turns = beside(job, |remote, k| {
        let [work, boolean] = &shares;
        if k > 0 {
            // Together the two take five times seven.
            (0..5).for_each(|_| work.wait_n([0, 3, 4][k]));
            return 0;
        }
        assert!(!work.try_wait_n(1000));
        (0..35).for_each(|_| remote.post(signals[0]));
        remote.post(signals[1]);
        remote.post(signals[1]);
        boolean.wait();
        u32::from(boolean.try_wait())
    });
    assert_eq!((turns, work.value()), (vec![0; THREADS], 0));
    // Places of semaphores that were shared are used again.
    for _ in 0..300 {
        let one = job.semaphore().unwrap();
        let share = one.share();
        drop(one);
        assert!(refusal("a share of nothing", || share.try_wait()).contains("was freed"));
    }
    job.barrier();
}

fn freed(job: &Job) {
    let work = job.semaphore().unwrap();
    let (share, ready, remote) = (work.share(), job.semaphore().unwrap(), job.remote());
    let signal = ready.signal();
    let thread = thread::spawn(move || {
        remote.post(signal);
        refusal("a wait", || share.wait())
    });
    ready.wait();
    drop(work);
    job.wait_until(|| thread.is_finished());
    let (me, words) = (job.rank(), thread.join().unwrap());
    assert!(words.starts_with(&format!("{me}: wait: the semaphore was freed")), "{words}");
    job.barrier();
}

fn mistakes(job: &Job) {
    let (me, size) = (job.rank(), job.size());
    let single = Flavor { single_producer: true, single_consumer: true, ..Default::default() };
    let (single, work) = (job.semaphore_with(single).unwrap(), job.semaphore().unwrap());
    let boolean = job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap();
    let p = job.alloc(7u64).unwrap();
    let (signals, shared) = ([single.signal(), work.signal(), boolean.signal()], boolean.share());
    static NEVER: Request<()> = Request::new(|_, _, (), _| ());
    let said = beside(job, |remote, k| {
        if k > 0 {
            return vec![];
        }
        let outside = GlobalPtr::<u64>::NULL.on(Rank(size as u32 - 1)).add(1 << 40);
        let elsewhere = p.on(Rank((me.0 + 1).max(1)));
        let odd = p.cast::<u8>().add(1).cast::<u64>();
        vec![
            (refusal("null", || remote.post(Signal::NULL)), "remote.post: the signal is null"),
            (refusal("one producer", || remote.post(signals[0])), "remote.post: semaphore "),
            (refusal("twice", || remote.post_n(signals[2], 2)), "a boolean semaphore is posted once"),
            (refusal("null", || remote.get(GlobalPtr::<u64>::NULL)), "remote.get: the pointer is null"),
            (refusal("nowhere", || remote.put(p.on(Rank(size as u32)), 1)), "remote.put: there is no rank "),
            (refusal("outside", || remote.put(outside, 1)), "remote.put: 8 bytes at offset "),
            (refusal("odd", || remote.put_slice(odd, &[1, 2])), "is not aligned for u64"),
            (refusal("odd", || remote.fetch_add(odd, 1)), "is not aligned for u64"),
            (refusal("nobody", || remote.am(Rank(size as u32), &NEVER, (), &[])), "remote.am: there is no rank "),
            (refusal("unknown", || remote.am(me, &NEVER, (), &[])), "is not registered; pass it to"),
            (refusal("several", || shared.wait_n(2)), "wait_n: 2 posts of a boolean semaphore, which has 1 at most"),
            (refusal("apart", || remote.put_signal(elsewhere, &[1], signals[1], 1)), "both must be on one"),
        ]
    });
    for (words, expected) in said.into_iter().flatten() {
        let right = words.starts_with(&format!("{me}: ")) && words.contains(expected) && !words.contains('\n');
        assert!(right, "{words:?} and not {expected:?}");
    }
    let words = refusal("a share of one consumer's", || single.share());
    assert!(words.contains("share: this semaphore has a single consumer"), "{words}");
    let (remote, share) = (job.remote(), work.share());
    let words = refusal("a rank's own thread", || remote.put(p, 8));
    assert!(words.contains("remote.put: a rank's own thread has its job"), "{words}");
    let words = refusal("a rank's own thread", || share.wait());
    assert!(words.contains("wait: a rank serves others while it waits"), "{words}");
    job.barrier();
    job.free(p);
}
