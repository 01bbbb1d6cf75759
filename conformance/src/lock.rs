//! Locks and the values that they guard.

use crate::array::settled;
use crate::{Case, Random, are, fill, mixed, plenty, refusal};
use partage::am::{Counters, Request};
use partage::prelude::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The cases.
pub const CASES: [Case; 14] = [
    ("locks have one holder at a time, wherever they are", counts),
    ("values that locks guard, of every size, come whole from holder to holder", values),
    ("a lock is tried, and had if nobody has it", tried),
    ("a lock is held for the scope of its guard", scopes),
    ("a rank that unwinds leaves the value of its lock as it was", unwinding),
    ("plain puts under a lock are ordered by it", ordered),
    ("pointers to locks are passed around in memory", pointers),
    ("a lock is freed by anybody, also while it is held", freed),
    ("whoever waits for a lock that is freed hears of it", freed_for_all),
    ("a rank that waits for a lock sends nothing", silent),
    ("locks of a rank that computes", of_who_computes),
    ("locks of the past leave nothing behind", dropped),
    ("a handler that finds a lock does not take it", handlers),
    ("mistakes with locks are said", mistakes),
];

/// Several locks that all ranks want, in every layout.
fn counts(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let times = plenty(job, 4000);
    for layout in [Layout::cyclic(5), Layout::per_rank(2), Layout::on(n - 1, 3), Layout::blocked(1)] {
        // How often, by whom last, and what follows from the two.
        let locks = job.mutexes::<[u64; 3]>(layout).unwrap();
        let (len, mut random) = (locks.len(), Random::new(7 + me as u64));
        let mut mine = vec![0; len];
        for _ in 0..times {
            let i = random.below(len);
            let mut value = locks.lock(i);
            let [count, last, sum] = *value;
            let right = if count == 0 { 0 } else { mixed([count, last]) };
            assert!(sum == right && (last as usize) < n, "{}: lock {i}: {count} of {last}", job.rank());
            *value = [count + 1, me as u64, mixed([count + 1, me as u64])];
            drop(value);
            mine[i] += 1;
        }
        let all = job.array::<u64>(len).unwrap();
        (0..len).for_each(|i| _ = all.at(i).fetch_add(mine[i]));
        job.barrier();
        for (i, _) in mine.iter().enumerate() {
            assert_eq!(locks.lock(i)[0], all.get(i), "{}: lock {i}", job.rank());
        }
        job.barrier();
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(transparent)]
struct Bytes<const N: usize>([u8; N]);

/// Every holder finds what the one before it has written, and writes what follows.
fn value_of<const N: usize>(job: &Job, times: usize) {
    let (n, me) = (job.size(), job.rank());
    let turns = job.array::<u64>(n).unwrap();
    let locks = job.mutexes::<Bytes<N>>(Layout::cyclic(n)).unwrap();
    for round in 0..times {
        let i = (me.index() + round) % n;
        let mut value = Box::new(locks.lock(i));
        // How often it was written, which only its holder reads and writes.
        let seed = turns.get(i);
        let right = if seed == 0 { value.0.iter().all(|&b| b == 0) } else { are(seed, &value.0) };
        assert!(right, "{me}: lock {i}: {N} bytes did not come whole");
        fill(seed + 1, &mut value.0);
        turns.put(i, seed + 1);
    }
    job.barrier();
    let sum: u64 = (0..n).map(|i| turns.get(i)).sum();
    assert_eq!(sum, (n * times) as u64, "{me}: {N} bytes");
    job.barrier();
}

fn values(job: &Job) {
    let times = plenty(job, 1000).min(200);
    value_of::<0>(job, times);
    value_of::<1>(job, times);
    value_of::<8>(job, times);
    value_of::<100>(job, times);
    value_of::<3000>(job, times / 4 + 1);
    value_of::<100_000>(job, times / 16 + 1);
}

fn tried(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let locks = job.mutexes::<u64>(Layout::cyclic(n)).unwrap();
    // One that everybody tries at the same time.
    let mut had = 0;
    for _ in 0..plenty(job, 1000) {
        if let Some(mut value) = locks.try_lock(0) {
            *value += 1;
            had += 1;
        }
    }
    let all = job.array::<u64>(1).unwrap();
    all.at(0).fetch_add(had);
    job.barrier();
    assert_eq!(*locks.lock(0), all.get(0), "{}", job.rank());
    job.barrier();
    let mine = locks.try_lock(me).expect("each has its own");
    assert!(locks.try_lock(me).is_none(), "also to who has it");
    job.barrier();
    (0..n).for_each(|i| assert!(locks.try_lock(i).is_none(), "{}: lock {i}", job.rank()));
    job.barrier();
    drop(mine);
    job.barrier();
    assert!(locks.try_lock((me + 1) % n).is_some());
    job.barrier();
}

fn scopes(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let locks = job.mutexes::<u32>(Layout::cyclic(4 * n)).unwrap();
    assert_eq!((locks.len(), locks.is_empty(), locks.affinity(n + me)), (4 * n, false, job.rank()));
    // Several at a time, taken in one order by all.
    for _ in 0..10 {
        let (mut a, mut b, mut c) = (locks.lock(0), locks.lock(n), locks.lock(2 * n));
        *a += 1;
        *b += *a;
        *c = *a + *b;
    }
    {
        let early = locks.lock(3 * n + me);
        drop(early);
        assert!(locks.try_lock(3 * n + me).is_some());
    }
    job.barrier();
    let turns = 10 * n as u32;
    assert_eq!(*locks.lock(n), turns * (turns + 1) / 2, "{}", job.rank());
    job.barrier();
}

fn unwinding(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let locks = job.mutexes::<u64>(Layout::cyclic(n)).unwrap();
    *locks.lock(me.index()) = 5;
    job.barrier();
    let right = job.neighbor(1).index();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut value = locks.lock(right);
        *value = 99;
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(unwound.is_err() && *locks.lock(right) == 5, "{me}: it is released, and its value as it was");
    job.barrier();
}

/// A list in memory of all ranks that plain puts and gets change, under one lock.
fn ordered(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let lock = job.mutexes::<()>(Layout::on(n / 2, 1)).unwrap();
    let words = job.array::<u64>(Layout::cyclic(4 * n)).unwrap();
    let open = job.alloc_all::<u64>(2).unwrap();
    let times = plenty(job, 500);
    for _ in 0..times {
        let _held = lock.lock(0);
        let was = words.get(0);
        for i in 0..4 * n {
            assert_eq!(words.get(i), was, "{}: word {i}", job.rank());
            // Not waited for: the guard does it.
            drop(words.store(i, vec![was + 1]));
        }
        for r in job.ranks() {
            let there = open.on(r).add(1);
            assert_eq!(there.get(job), was, "{}: the word of {r}", job.rank());
            drop(there.store(job, vec![was + 1]));
        }
    }
    job.barrier();
    assert_eq!(words.get(me), (n * times) as u64);
    job.barrier();
    job.free_all(open);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Node {
    count: u64,
    next: MutexPtr<Node>,
}

/// A ring of locks, one made by each rank, that is found by its pointers only.
fn pointers(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let first = job.alloc_all::<MutexPtr<Node>>(1).unwrap();
    let mine = job.alloc_mutex(Node { count: 0, next: MutexPtr::NULL }).unwrap();
    assert_eq!((mine.rank(), mine.is_null(), MutexPtr::<u8>::NULL.is_null()), (me, false, true));
    first.put(job, mine);
    job.barrier();
    mine.lock(job).next = first.on(job.neighbor(1)).get(job);
    job.barrier();
    let (mut at, times) = (mine, plenty(job, 1000));
    for _ in 0..times {
        let mut node = at.lock(job);
        node.count += 1;
        at = node.next;
    }
    job.barrier();
    let sum: u64 = job.ranks().map(|r| first.on(r).get(job).lock(job).count).sum();
    assert_eq!(sum, (n * times) as u64, "{me}");
    job.barrier();
    // Each by another.
    job.free_mutex(first.on(job.neighbor(1)).get(job));
    job.quiet();
    job.barrier();
    job.free_all(first);
}

fn freed(job: &Job) {
    let before = settled(job);
    let told = job.alloc_all::<MutexPtr<[u64; 20]>>(1).unwrap();
    let mine = job.alloc_mutex([3; 20]).unwrap();
    told.put(job, mine);
    job.barrier();
    let theirs = told.on(job.neighbor(1)).get(job);
    let mut guard = theirs.lock(job);
    assert_eq!(*guard, [3; 20]);
    job.barrier();
    mine.free(job);
    job.barrier();
    guard[0] = 4;
    drop(guard);
    job.quiet();
    job.barrier();
    MutexPtr::<u64>::NULL.free(job);
    job.free_all(told);
    assert_eq!(settled(job), before, "{}: the memory is given back by who held the lock", job.rank());
}

/// Not only the first of them, whose panic may be caught.
fn freed_for_all(job: &Job) {
    let told = job.alloc_all::<MutexPtr<u64>>(1).unwrap();
    for home in [0, job.size() - 1] {
        if job.rank().index() == home {
            told.on(Rank(0)).put(job, job.alloc_mutex(5).unwrap());
        }
        job.barrier();
        let lock = told.on(Rank(0)).get(job);
        let held = (job.rank().0 == 0).then(|| lock.lock(job));
        job.barrier();
        match held {
            Some(held) => {
                let begun = Instant::now();
                job.wait_until(|| begun.elapsed() >= Duration::from_millis(10));
                lock.free(job);
                drop(held);
            }
            None => {
                let said = refusal("a lock that was freed", || drop(lock.lock(job)));
                assert!(said.contains(" was freed"), "{said}");
            }
        }
        job.barrier();
    }
    job.free_all(told);
}

/// Everything that a rank sends, by any way.
fn sent(c: Counters) -> u64 {
    c.in_line + c.queued + c.far + c.far_puts + c.far_gets + c.reference_puts + c.reference_gets + c.reference_atomics
}

fn silent(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let locks = job.mutexes::<u64>(Layout::cyclic(n)).unwrap();
    for home in [0, n / 2, n - 1] {
        for millis in [0, 30] {
            let time = Duration::from_millis(millis);
            let held = (me.0 == 0).then(|| locks.lock(home));
            job.barrier();
            let before = sent(job.counters());
            if let Some(held) = held {
                let begun = Instant::now();
                job.wait_until(|| begun.elapsed() >= time);
                drop(held);
            } else {
                *locks.lock(home) += 1;
                // It asks for the lock, gets the value, hands the lock on, and tells who has it.
                let messages = sent(job.counters()) - before;
                assert!(messages <= 5, "{me}: {messages} messages for a lock on rank {home} held for {millis} ms");
            }
            job.barrier();
        }
        assert_eq!(*locks.lock(home) % (n as u64 - 1).max(1), 0);
        job.barrier();
    }
}

/// A lock goes from rank to rank of all nodes without the rank in whose memory it is.
fn of_who_computes(job: &Job) {
    if std::env::var("PARTAGE_PROGRESS").is_ok_and(|who| who == "none") {
        return;
    }
    let done = job.alloc_all::<u64>(job.size()).unwrap();
    (0..job.size()).for_each(|i| done.on(job.rank()).add(i).put(job, 0));
    let locks = job.mutexes::<[u64; 2]>(job.size()).unwrap();
    let is_home = job.ranks().filter(|&r| job.same_node(r)).last() == Some(job.rank());
    let homes: Vec<u64> = job.value(u64::from(is_home)).gather_all();
    let homes: Vec<usize> = (0..job.size()).filter(|&r| homes[r] == 1).collect();
    let others: Vec<usize> = (0..job.size()).filter(|r| !homes.contains(r)).collect();
    let (me, times) = (job.rank(), plenty(job, 300) as u64);
    if is_home {
        // Reads of one's own memory serve nobody.
        while !others.iter().all(|&r| done.on(me).add(r).get(job) == 1) {
            std::thread::yield_now();
        }
    } else {
        for i in 0..times {
            let mut value = locks.lock(homes[i as usize % homes.len()]);
            let [count, sum] = *value;
            assert_eq!(sum, if count == 0 { 0 } else { mixed([count]) }, "{me}: after {count}");
            *value = [count + 1, mixed([count + 1])];
        }
        homes.iter().for_each(|&r| done.on(Rank(r as u32)).add(me.index()).put(job, 1));
    }
    job.barrier();
    let counts: u64 = homes.iter().map(|&r| locks.lock(r)[0]).sum();
    assert_eq!(counts, times * others.len() as u64);
    job.barrier();
    job.free_all(done);
}

fn dropped(job: &Job) {
    let before = settled(job);
    for turn in 0..20usize {
        let locks = job.mutexes::<u64>(Layout::cyclic(100 + turn)).unwrap();
        let i = (turn + job.rank().index()) % locks.len();
        *locks.lock(i) += 1;
        // A guard that is forgotten keeps its lock, and the memory comes back.
        if turn % 3 == 0 {
            std::mem::forget(locks.try_lock(50 + job.rank().index()));
        }
        job.barrier();
    }
    let fresh = job.mutexes::<u64>(Layout::cyclic(119)).unwrap();
    fresh_is_free(&fresh);
    job.barrier();
    drop(fresh);
    assert_eq!(settled(job), before, "{}", job.rank());
}

fn fresh_is_free(locks: &Mutexes<u64>) {
    (0..locks.len()).for_each(|i| assert_eq!(*locks.lock(i), 0, "lock {i} is free and its value zero"));
}

fn called(job: &Job, p: MutexPtr<u64>) {
    let said = refusal("in a called function", || p.lock(job));
    assert!(said.contains("lock in a function that was called by rpc or tell"), "{said}");
    let said = refusal("in a called function", || p.try_lock(job).is_some());
    assert!(said.contains("try_lock in a function that was called by rpc or tell"), "{said}");
}

thread_local! {
    static FOUND: RefCell<Option<Mutexes<u64>>> = const { RefCell::new(None) };
}

/// Locks by a handle that it has found; says how often that was refused.
static FINDER: Request<GlobalPtr<u64>> = Request::new(|_, target, refused, _| {
    FOUND.with_borrow(|found| {
        // The thread that runs it may be another rank's, which has its own, or the network's, which has none.
        let Some(locks) = found else { return };
        let said = refusal("in a handler", || drop(locks.lock(0)));
        assert!(said.contains("lock in a handler"), "{said}");
        let said = refusal("in a handler", || drop(locks.try_lock(0)));
        assert!(said.contains("try_lock in a handler"), "{said}");
        target.at(refused).fetch_add(1);
    });
});

fn handlers(job: &Job) {
    job.register_handlers(&[&FINDER]);
    FOUND.set(Some(job.mutexes(1).unwrap()));
    let refused = job.alloc_all::<u64>(1).unwrap();
    job.ranks().for_each(|r| job.am(r, &FINDER, refused.on(r), &[]));
    job.quiet();
    job.barrier();
    assert!(refused.get(job) <= job.size() as u64);
    let locks = FOUND.take().expect("it was left there");
    *locks.lock(0) += 1;
    job.barrier();
    assert_eq!(*locks.lock(0), job.size() as u64, "{}: a lock that was refused is free", job.rank());
    job.barrier();
    job.free_all(refused);
}

fn mistakes(job: &Job) {
    let me = job.rank();
    let locks = job.mutexes::<u64>(7).unwrap();
    let says = |what: &str, words: &str, f: &dyn Fn()| {
        let said = refusal(what, f);
        assert!(said.starts_with(&format!("{me}: ")) && said.contains(words) && !said.contains('\n'), "{what}: {said}");
    };
    says("an index", "lock: there is no lock 7 among 7", &|| drop(locks.lock(7)));
    says("an index", "try_lock: there is no lock 99 among 7", &|| drop(locks.try_lock(99)));
    says("an index", "affinity: there is no lock 7 among 7", &|| _ = locks.affinity(7));
    let mine = job.alloc_mutex(1u64).unwrap();
    {
        let _held = mine.lock(job);
        says("a lock of mine", "lock: this rank has lock 0x", &|| drop(mine.lock(job)));
    }
    if me.0 == 0 {
        let line = line!() + 1;
        let _held = locks.lock(6);
        let words = format!("this rank has lock 6 since {}:{line}:", file!());
        says("a lock of mine", &words, &|| drop(locks.lock(6)));
    }
    job.barrier();
    let forged = |bits: u64| partage::bytemuck::cast::<u64, MutexPtr<u64>>(bits);
    says("null", "lock: the pointer is null", &|| drop(MutexPtr::<u64>::NULL.lock(job)));
    says("no rank", "there is no rank", &|| drop(forged(0xfffff << 44 | 4096).lock(job)));
    says("outside", "lie outside its segment", &|| drop(forged((1 << 44) - 64).lock(job)));
    says("not aligned", "is no lock: those begin at multiples of 64", &|| drop(forged(4096 + 8).lock(job)));
    says("not aligned", "free_mutex: ", &|| forged(4096 + 8).free(job));
    // Whatever is written to a lock, nothing but locks is confused.
    let bits = partage::bytemuck::cast::<MutexPtr<u64>, u64>(mine);
    let word = partage::bytemuck::cast::<u64, GlobalPtr<u64>>(bits);
    says("written over", "something was written over lock ", &|| {
        let guard = mine.lock(job);
        word.put(job, u64::MAX >> 8);
        drop(guard);
    });
    word.put(job, 0);
    assert!(mine.try_lock(job).is_some());
    let p = job.alloc_mutex(1u64).unwrap();
    job.rpc(job.neighbor(1), called, p).wait();
    p.free(job);
    mine.free(job);
    job.quiet();
    job.barrier();
}
