//! UPC's rules, a test for each row of `docs/upc.md`; and that the table tells the truth about itself.
//!
//! The line of code that the table shows for a row stands in the row's test.

use partage::bytemuck;
use partage::domain::Op;
use partage::prelude::*;
use partage::signal::Flavor;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a job of three says when it fails.
fn failure(f: impl Fn(&Job) + Sync) -> Option<String> {
    if std::env::var_os("PARTAGE_TEST").is_some() {
        return None; // processes end with the job, and the test with them
    }
    let why = catch_unwind(AssertUnwindSafe(|| partage::test(3, f))).expect_err("this must fail");
    Some(why.downcast_ref::<String>().expect("words").clone())
}

#[track_caller]
fn says(said: Option<String>, parts: &[&str]) {
    if let Some(said) = said {
        parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in `{said}`"));
    }
}

/// Runs a test of this program by itself, in a process of its own; `None` in there.
fn alone(test: &str) -> Option<Output> {
    if std::env::var_os("UPC_ALONE").is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("UPC_ALONE", "1").env("RUST_BACKTRACE", "0");
    Some(command.env("PARTAGE_RANKS", "3").env_remove("PARTAGE_TEST").output().unwrap())
}

/// What everybody has said, on all ranks.
fn all<T: Pod>(job: &Job, mine: T) -> Vec<T> {
    let cell = job.alloc_all::<T>(1).unwrap();
    cell.put(job, mine);
    job.barrier();
    let all = job.ranks().map(|r| cell.on(r).get(job)).collect();
    job.free_all(cell);
    all
}

fn after_a_moment() {
    std::thread::sleep(Duration::from_millis(30));
}

// 1. Core

#[test]
fn threads_and_mythread() {
    partage::test(5, |job| {
        let (me, threads) = (job.rank(), job.size());
        assert!(me.index() < threads && threads == 5);
        assert_eq!(all(job, me), job.ranks().collect::<Vec<_>>());
    });
}

#[test]
fn start_and_end() {
    partage::test(3, |job| {
        let cell = job.alloc_all::<u64>(1).unwrap();
        cell.put(job, 7);
        job.barrier();
        if job.rank() == Rank(0) {
            after_a_moment(); // the others have come to their end, and their memory is there
            assert!(job.ranks().all(|r| cell.on(r).get(job) == 7));
        }
    });
    for value in [0, 1, u64::MAX] {
        let said = failure(|job| {
            if job.rank() != Rank(1) {
                job.barrier_with(value)
            }
        });
        says(said, &["the ranks disagree", "rank 1", "end"]);
    }
}

#[test]
fn global_exit() {
    if let Some(output) = alone("global_exit") {
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("so far"), "{output:?}");
        return;
    }
    partage::run(|job| {
        if job.rank() == Rank(1) {
            print!("so far");
            job.exit(7);
        }
        job.barrier();
    });
}

#[test]
fn all_alloc() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        assert!(all(job, a).iter().all(|b| (b.ptr(), b.phase(), b.block()) == (a.ptr(), 0, 4)));
        assert_eq!(a.rank(), Rank(0));
        let owners: Vec<u32> = (0..6).map(|block| a.offset(job, 4 * block).rank().0).collect();
        assert_eq!(owners, [0, 1, 2, 0, 1, 2]);
        let nothing = job.alloc_blocks_all::<u64>(0).unwrap();
        job.free_blocks_all(nothing);
        job.free_blocks_all(a);
    });
}

#[test]
fn global_alloc() {
    partage::test(3, |job| {
        let a = job.alloc_blocks::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        let theirs: BTreeSet<u64> = all(job, a).iter().map(|b| b.addrfield()).collect();
        assert_eq!(theirs.len(), 3, "each caller has its own");
        assert_eq!((a.rank(), a.phase(), a.offset(job, 9).rank(), a.offset(job, 9).phase()), (Rank(0), 0, Rank(2), 1));
        (0..24).for_each(|i| a.offset(job, i).ptr().put(job, u64::from(job.rank().0)));
        job.barrier();
        assert!((0..24).all(|i| a.offset(job, i).ptr().get(job) == u64::from(job.rank().0)));
        job.free_blocks(a);
    });
    // One rank may do so alone.
    partage::test(3, |job| {
        if job.rank() == Rank(2) {
            job.free_blocks(job.alloc_blocks::<u8>(Layout::cyclic(100)).unwrap());
        }
    });
}

#[test]
fn local_alloc() {
    partage::test(3, |job| {
        let p = job.alloc_slice::<u32>(100).unwrap();
        assert_eq!((p.rank(), p.add(99).rank(), p.add(99).get(job)), (job.rank(), job.rank(), 0));
        job.free(p);
    });
}

#[test]
fn free() {
    partage::test(3, |job| {
        let p = job.alloc(1u64).unwrap();
        let theirs = all(job, p)[job.neighbor(1).index()];
        job.free(theirs); // by any rank
        job.free(GlobalPtr::<u64>::NULL);
        job.free_blocks(BlockPtr::<u64>::NULL);
        job.quiet();
        job.barrier();
        assert_eq!(job.allocated(), 0);
    });
    let twice = failure(|job| {
        let p = job.alloc(1u64).unwrap();
        job.free(p);
        job.free(p);
    });
    says(twice, &["free", "freed twice"]);
}

#[test]
fn all_free() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u64>(Layout::cyclic(3)).unwrap();
        a.offset(job, job.rank().0 as isize).ptr().put(job, 7);
        job.barrier();
        if job.rank() == Rank(1) {
            after_a_moment(); // the others are in free_blocks_all
            assert!((0..3).all(|i| a.offset(job, i).ptr().get(job) == 7));
        }
        job.free_blocks_all(a);
        job.free_blocks_all(BlockPtr::<u64>::NULL);
        assert_eq!(job.allocated(), 0);
    });
}

#[test]
fn threadof() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        assert!((0..24).all(|i| a.offset(job, i).rank().index() == i as usize / 4 % 3));
        assert_eq!((BlockPtr::<u64>::NULL.rank(), GlobalPtr::<u64>::NULL.rank()), (Rank(0), Rank(0)));
    });
}

#[test]
fn phaseof() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        assert!((0..24).all(|i| a.offset(job, i).phase() == i as usize % 4));
        assert_eq!(BlockPtr::<u64>::NULL.phase(), 0);
    });
}

#[test]
fn resetphase() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap().offset(job, 6);
        let q = p.reset_phase();
        assert_eq!((q.phase(), q.ptr(), q.block(), p.phase()), (0, p.ptr(), 4, 2));
        assert_eq!(q.offset(job, 4).rank(), Rank(2), "a whole block from here");
        assert!(BlockPtr::<u64>::NULL.reset_phase().is_null());
    });
}

#[test]
fn addrfield() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        let b = a.offset(job, 13);
        assert_eq!(b.addrfield() - a.addrfield(), 5 * 8); // both on rank 0: a block and one element
        assert_eq!((a.offset(job, 4).addrfield(), BlockPtr::<u64>::NULL.addrfield()), (a.addrfield(), 0));
    });
}

#[test]
fn affinitysize() {
    for (n, block, ranks) in (0..40).flat_map(|n| (0..7).flat_map(move |b| (1..6).map(move |t| (n, b, t)))) {
        let mut counted = vec![0; ranks];
        (0..n).for_each(|i: usize| counted[i.checked_div(block).map_or(0, |turn| turn % ranks)] += 1);
        let spread = Layout::block_cyclic(n, block).over(ranks).unwrap();
        let sizes: Vec<usize> = (0..ranks).map(|r| spread.part_len(r)).collect();
        assert_eq!(sizes, counted, "{n} in blocks of {block} over {ranks}");
    }
    partage::test(3, |job| {
        let a = job.array::<u16>(Layout::block_cyclic(10, 4)).unwrap();
        assert_eq!([0, 1, 2].map(|r| a.part_len(Rank(r))), [4, 4, 2]);
        assert_eq!(a.local_len(), a.part_len(job.rank()));
    });
}

#[test]
fn localsizeof() {
    for (layout, most) in [(Layout::block_cyclic(10, 4), 4), (Layout::blocked(10), 4), (Layout::on(1, 7), 7)] {
        let spread = layout.over(3).unwrap();
        assert_eq!(spread.largest_part() * size_of::<u16>(), 2 * most);
        assert_eq!((0..3).map(|r| spread.part_len(r)).max(), Some(most));
    }
}

#[test]
fn blocksizeof() {
    partage::test(3, |job| {
        let layouts = [Layout::block_cyclic(10, 3), Layout::blocked(10), Layout::cyclic(7), Layout::on(0, 7)];
        for (layout, block) in layouts.into_iter().zip([3, 4, 1, 0]) {
            assert_eq!(layout.over(3).unwrap().block().unwrap_or(0), block);
            let p = job.alloc_blocks_all::<u32>(layout).unwrap();
            assert_eq!(p.block(), block);
            job.free_blocks_all(p);
        }
    });
}

#[test]
fn elemsizeof() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u16>(Layout::block_cyclic(10, 4)).unwrap();
        assert_eq!(a.offset(job, 1).addrfield() - a.addrfield(), size_of::<u16>() as u64);
        job.free_blocks_all(a);
    });
}

#[test]
fn memcpy() {
    partage::test(3, |job| {
        let (a, b) = (job.array::<u32>(Layout::cyclic(20)).unwrap(), job.array::<u32>(20).unwrap());
        a.my_indices().for_each(|i| a.put(i, i as u32));
        job.barrier();
        if job.rank() == Rank(2) {
            a.copy_to(5..15, &b, 2);
        }
        job.barrier();
        assert_eq!(b.fetch(..).wait()[1..13], [0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0]);
        // By pointers: more than travels at a time, from rank 1 to rank 2, by rank 0.
        let n = 50_000;
        let p = job.alloc_all::<u32>(n).unwrap();
        p.put_slice(job, &(0..n as u32).map(|i| i * 3 + job.rank().0).collect::<Vec<_>>());
        job.barrier();
        if job.rank() == Rank(0) {
            p.on(Rank(1)).add(1).copy_to(job, p.on(Rank(2)), n - 2);
            p.copy_to(job, p.add(1), 0); // nothing, wherever
            let overlap = std::panic::AssertUnwindSafe(|| p.copy_to(job, p.add(1), 2));
            assert!(std::panic::catch_unwind(overlap).is_err());
        }
        job.barrier();
        let all = p.on(Rank(2)).fetch(job, n).wait();
        let expected = |i: usize| if i < n - 2 { 3 * (i as u32 + 1) + 1 } else { 3 * i as u32 + 2 };
        assert!((0..n).all(|i| all[i] == expected(i)));
        job.barrier();
        job.free_all(p);
    });
}

#[test]
fn memget() {
    partage::test(3, |job| {
        let mut here = [0; 4];
        let there = job.alloc_all::<u32>(4).unwrap().on(job.neighbor(1));
        there.put_slice(job, &[1, 2, 3, 4]);
        there.get_slice(job, &mut here);
        assert_eq!(here, [1, 2, 3, 4]);
        let a = job.array::<u32>(9).unwrap();
        a.get_slice(2, &mut here); // over two ranks
        assert_eq!(here, [0; 4]);
    });
}

#[test]
fn memput() {
    partage::test(3, |job| {
        let (here, there) = ([1, 2, 3, 4], job.alloc_all::<u32>(4).unwrap().on(job.neighbor(1)));
        there.put_slice(job, &here);
        job.barrier();
        assert_eq!(there.on(job.rank()).fetch(job, 4).wait(), here);
        let a = job.array::<u32>(9).unwrap();
        if job.rank() == Rank(1) {
            a.put_slice(2, &here); // over two ranks
        }
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [0, 0, 1, 2, 3, 4, 0, 0, 0]);
    });
}

#[test]
fn memset() {
    partage::test(3, |job| {
        let a = job.array::<u8>(Layout::block_cyclic(20, 3)).unwrap();
        if job.rank() == Rank(1) {
            a.fill(4..17, 0xff);
        }
        job.barrier();
        assert!(a.fetch(..).wait().iter().enumerate().all(|(i, &x)| x == if (4..17).contains(&i) { 0xff } else { 0 }));
        let n = 70_000;
        let p = job.alloc_all::<u16>(n).unwrap();
        p.on(job.neighbor(1)).add(1).fill(job, n - 2, 7 + job.rank().0 as u16);
        p.fill(job, 0, 1); // nothing
        job.barrier();
        let (all, left) = (p.fetch(job, n).wait(), 7 + job.neighbor(-1).0 as u16);
        assert!(all[0] == 0 && all[n - 1] == 0 && all[1..n - 1].iter().all(|&x| x == left));
        job.barrier();
        job.free_all(p);
    });
}

#[test]
fn barrier() {
    partage::test(5, |job| {
        let come = job.array::<u64>(1).unwrap();
        for round in 1..20 {
            come.at(0).fetch_add(1);
            job.barrier();
            assert_eq!(come.at(0).load(), 5 * round);
            job.barrier();
        }
    });
}

#[test]
fn barrier_with_a_value() {
    partage::test(3, |job| {
        job.barrier_with(42);
        if job.rank() == Rank(0) { job.barrier() } else { job.barrier_with(7) } // without a value agrees with any
    });
    says(failure(|job| job.barrier_with(job.rank().0.into())), &["the ranks disagree", "value"]);
}

#[test]
fn notify() {
    partage::test(3, |job| {
        let there = job.notify(Some(3));
        after_a_moment(); // owes nobody anything
        there.wait(Some(3));
        job.notify(None).wait(None);
    });
    // No collective between the two, and no second notify.
    says(failure(|job| drop((job.notify(None), job.barrier()))), &["barrier", "before the wait of the notify"]);
    says(failure(|job| drop((job.notify(None), job.notify(None)))), &["notify", "before the wait of the notify"]);
    says(failure(|job| drop((job.notify(None), job.array::<u8>(1)))), &["array", "before the wait of the notify"]);
}

#[test]
fn wait() {
    static COME: AtomicU64 = AtomicU64::new(0);
    partage::test(3, |job| {
        let there = job.notify(None);
        COME.fetch_add(1, Relaxed);
        there.wait(None);
        job.barrier();
        assert!(COME.load(Relaxed) == 3 || !job.ranks().all(|r| job.distance(r) <= Distance::Process));
    });
    says(failure(|job| job.notify(Some(1)).wait(Some(2))), &["wait(2)", "notified with value 1"]);
    // A value that only some have given binds those too who have given none.
    let one = |job: &Job| (job.rank() == Rank(0)).then_some(1);
    says(failure(move |job| job.notify(one(job)).wait(Some(2))), &["wait(2)", "notified with value 1"]);
}

#[test]
fn fence() {
    partage::test(2, |job| {
        let a = job.array::<u32>(Layout::on(1, 100)).unwrap();
        let flag = job.alloc_all::<u32>(1).unwrap().on(Rank(1));
        for round in 1..=10 {
            if job.rank() == Rank(0) {
                drop(a.store(0, vec![round; 100]));
                job.fence();
                flag.put(job, round);
            } else {
                job.wait_until(|| flag.get(job) == round);
                job.fence();
                assert_eq!(a.fetch(..).wait(), [round; 100]);
            }
            job.barrier();
        }
    });
}

#[test]
fn strict_accesses() {
    partage::test(3, |job| {
        let a = job.array::<u32>(Layout::cyclic(6)).unwrap();
        let (me, next, other) = (job.rank().index(), job.neighbor(1).index(), job.neighbor(2).index());
        a.put(3 + next, 7); // relaxed, but before the strict one
        a.at(me).strict().store(1);
        let sees = a.at(next).strict().load() == 1;
        assert!(!sees || a.get(3 + other) == 7);
        // They have one order: the last to store sees the next one's.
        assert!(all(job, u32::from(sees)).contains(&1));
    });
}

#[test]
fn relaxed_accesses() {
    partage::test(3, |job| {
        let a = job.array::<u64>(Layout::cyclic(3)).unwrap();
        let there = job.neighbor(1).index();
        for i in 0..100 {
            a.put(there, i);
            assert_eq!(a.get(there), i); // those of one rank to one element keep their order
        }
        job.barrier();
        assert_eq!(a.get(job.rank().index()), 99);
    });
}

#[test]
fn forall_by_pointer() {
    partage::test(3, |job| {
        let (n, a) = (50, job.alloc_blocks_all::<u64>(Layout::block_cyclic(50, 4)).unwrap());
        for i in a.mine(job, n) {
            assert_eq!(a.offset(job, i as isize).rank(), job.rank());
            a.offset(job, i as isize).ptr().put(job, 1);
        }
        job.barrier();
        assert!((0..50).all(|i| a.offset(job, i).ptr().get(job) == 1));
        // From the middle of a block.
        let p = a.offset(job, 7);
        let mine: Vec<usize> = (0..40).filter(|&i| p.offset(job, i as isize).rank() == job.rank()).collect();
        assert_eq!(p.mine(job, 40).collect::<Vec<_>>(), mine);
    });
}

#[test]
fn forall_by_element() {
    partage::test(3, |job| {
        for layout in [Layout::cyclic(50), Layout::block_cyclic(50, 4), Layout::blocked(50), Layout::tiles([5, 10])] {
            let a = job.array::<u64>(layout).unwrap();
            for i in a.my_indices() {
                assert_eq!(a.affinity(i), job.rank());
                a.put(i, a.get(i) + 1);
            }
            job.barrier();
            assert_eq!(a.fetch(..).wait(), [1; 50]);
        }
    });
}

#[test]
fn forall_by_integer() {
    partage::test(3, |job| {
        let mine: Vec<usize> = job.forall(4..30).collect();
        assert_eq!(mine, (4..30).filter(|i| i % 3 == job.rank().index()).collect::<Vec<_>>());
    });
}

#[test]
fn forall_continue() {
    partage::test(3, |job| {
        let a = job.array::<u64>(10).unwrap();
        for i in 0..a.len() {
            a.at(i).fetch_add(1);
        }
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [3; 10]);
    });
}

#[test]
fn forall_nested() {
    partage::test(3, |job| {
        let a = job.array::<u64>(Layout::rows(6, 5)).unwrap();
        for i in job.forall(0..6) {
            (0..5).for_each(|j| a.put(i * 5 + j, job.rank().0.into())); // the outer one decides
        }
        job.barrier();
        assert!((0..30).all(|k| a.get(k) == k as u64 / 5 % 3));
    });
}

/// Who has which element, as everybody sees it.
fn owners<const N: usize>(job: &Job, layout: Layout) -> [u32; N] {
    let a = job.array::<u64>(layout).unwrap();
    a.my_indices().for_each(|i| a.put(i, job.rank().0.into()));
    job.barrier();
    let owners = std::array::from_fn(|i| a.affinity(i).0);
    assert!(a.len() == N && owners.iter().enumerate().all(|(i, &r)| a.get(i) == r.into()));
    owners
}

#[test]
fn definite_block() {
    partage::test(3, |job| {
        assert_eq!(owners(job, Layout::block_cyclic(10, 3)), [0, 0, 0, 1, 1, 1, 2, 2, 2, 0]);
    });
}

#[test]
fn indefinite_block() {
    partage::test(3, |job| {
        assert_eq!(owners(job, Layout::on(0, 7)), [0; 7]);
        assert_eq!(owners(job, Layout::block_cyclic(7, 0)), [0; 7]);
    });
}

#[test]
fn star_block() {
    partage::test(3, |job| {
        assert_eq!(owners(job, Layout::blocked(10)), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        assert_eq!(owners(job, Layout::from(4)), [0, 0, 1, 1]);
    });
}

#[test]
fn no_block() {
    partage::test(3, |job| {
        assert_eq!(owners(job, Layout::cyclic(7)), [0, 1, 2, 0, 1, 2, 0]);
    });
}

#[test]
fn all_lock_alloc() {
    partage::test(3, |job| {
        let lock = job.mutexes::<()>(1).unwrap();
        assert_eq!(lock.len(), 1);
        let mine = lock.try_lock(0).is_some();
        job.barrier();
        assert!(all(job, u8::from(mine)).contains(&1), "one lock for all, and it is free at first");
    });
}

#[test]
fn global_lock_alloc() {
    partage::test(3, |job| {
        let told = job.alloc_all::<MutexPtr<()>>(1).unwrap();
        if job.rank().0 == 1 {
            told.put(job, job.alloc_mutex(()).unwrap());
        }
        job.barrier();
        let lock = told.on(Rank(1)).get(job);
        drop(lock.lock(job));
        job.barrier();
        job.ranks().filter(|r| r.0 == 1).for_each(|_| assert_eq!(lock.rank(), Rank(1)));
    });
}

#[test]
fn lock() {
    partage::test(4, |job| {
        let (lock, a) = (job.mutexes::<()>(1).unwrap(), job.array::<u64>(4).unwrap());
        for _ in 0..100 {
            let _held = lock.lock(0);
            (0..4).for_each(|i| a.put(i, a.get(i) + 1));
        }
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [400; 4]);
        job.barrier();
    });
}

#[test]
fn lock_attempt() {
    partage::test(2, |job| {
        let lock = job.mutexes::<()>(1).unwrap();
        let held = (job.rank().0 == 0).then(|| lock.try_lock(0).unwrap());
        job.barrier();
        assert!(lock.try_lock(0).is_none());
        job.barrier();
        drop(held);
        job.barrier();
    });
}

#[test]
fn unlock() {
    partage::test(2, |job| {
        let lock = job.mutexes::<()>(1).unwrap();
        if job.rank().0 == 0 {
            let held = lock.lock(0);
            job.barrier();
            drop(held);
        } else {
            job.barrier();
            drop(lock.lock(0)); // It waits for the other.
        }
        job.barrier();
    });
}

#[test]
fn lock_free() {
    partage::test(2, |job| {
        MutexPtr::<()>::NULL.free(job);
        let before = job.allocated();
        let lock = job.alloc_mutex(()).unwrap();
        let held = lock.lock(job);
        lock.free(job);
        drop(held);
        assert_eq!(job.allocated(), before);
    });
}

#[test]
fn relock() {
    let said = failure(|job| {
        let lock = job.mutexes::<()>(job.size()).unwrap();
        if job.rank().0 == 0 {
            let _held = lock.lock(0);
            let _again = lock.lock(0);
        }
        job.barrier();
    });
    says(said, &["rank 0", "lock: this rank has lock 0 since ", "upc.rs:"]);
}

#[test]
fn ticks() {
    partage::test(2, |_| {
        let begun = Instant::now();
        after_a_moment();
        let ns = begun.elapsed().as_nanos();
        assert!(ns >= 30_000_000 && Instant::now() >= begun);
    });
}

// 2. Pointer arithmetic

/// Rank, address and phase `i` elements after these, by the formulas of the specification.
fn formula([rank, addr, phase]: [i64; 3], i: i64, block: i64, size: i64, ranks: i64) -> [i64; 3] {
    let x = phase + i;
    let (phase_then, turn) = (x.rem_euclid(block), rank + x.div_euclid(block));
    [turn.rem_euclid(ranks), addr + size * (block * turn.div_euclid(ranks) + phase_then - phase), phase_then]
}

fn parts<T: Pod>(p: BlockPtr<T>) -> [i64; 3] {
    [p.rank().0.into(), p.addrfield() as i64, p.phase() as i64]
}

/// Calls with the first and all other elements of arrays of several blocks, that start on several ranks.
fn in_many_arrays<T: Pod>(job: &Job, each: impl Fn(BlockPtr<T>, isize, isize)) {
    for block in [1, 2, 3, 7] {
        for first in 0..job.size() {
            let layout = Layout::block_cyclic(40, block).starting_at(first);
            let a = job.alloc_blocks_all::<T>(layout).unwrap();
            for (i, j) in (0..40).flat_map(|i| (0..40).map(move |j| (i, j))) {
                each(a, i, j);
            }
            job.free_blocks_all(a);
        }
    }
}

#[test]
fn stepping() {
    for ranks in [1, 2, 3, 5] {
        partage::test(ranks, |job| {
            in_many_arrays::<u32>(job, |a, i, j| {
                let p = a.offset(job, i);
                let q = p.offset(job, j - i);
                let (block, ranks) = (a.block() as i64, job.size() as i64);
                assert_eq!(parts(q), formula(parts(p), (j - i) as i64, block, 4, ranks));
                assert_eq!((parts(q), q.block()), (parts(a.offset(job, j)), a.block()));
            });
        });
    }
}

#[test]
fn stepping_in_an_indefinite_block() {
    partage::test(3, |job| {
        let a = job.alloc_blocks_all::<u32>(Layout::on(1, 40)).unwrap();
        let p = a.offset(job, 30).offset(job, -5);
        assert_eq!((p.rank(), p.phase(), p.addrfield()), (Rank(1), 0, a.addrfield() + 100));
        assert_eq!((p.distance(job, a), a.distance(job, p)), (25, -25));
    });
}

#[test]
fn difference() {
    partage::test(3, |job| {
        in_many_arrays::<[u16; 3]>(job, |a, i, j| {
            let (p, q) = (a.offset(job, i), a.offset(job, j));
            assert_eq!(q.distance(job, p), j - i);
            let block_of = |p: BlockPtr<_>| p.addrfield() as i64 - p.phase() as i64 * 6;
            let [ranks, block] = [job.size() as i64, a.block() as i64];
            let [t, ph] = [0, 2].map(|k| parts(q)[k] - parts(p)[k]);
            assert_eq!((j - i) as i64, ranks * (block_of(q) - block_of(p)) / 6 + block * t + ph);
        });
    });
}

#[test]
fn affinity_of_an_element() {
    partage::test(3, |job| {
        let a = job.array::<u8>(Layout::block_cyclic(100, 7)).unwrap();
        assert!((0..100).all(|i| a.affinity(i).index() == i / 7 % job.size()));
    });
}

#[test]
fn symmetric_addresses() {
    partage::test(3, |job| {
        let mine = job.alloc_all::<u64>(4).unwrap();
        assert_eq!(all(job, mine)[2], mine.on(Rank(2)));
    });
}

#[test]
fn equality_ignores_the_phase() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap().offset(job, 6);
        assert!(p == p.reset_phase() && p.phase() != p.reset_phase().phase());
        assert!(p != p.offset(job, 1));
    });
}

#[test]
fn casts_reset_the_phase() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap().offset(job, 6);
        let bytes = p.with_block::<u8>(2);
        assert_eq!((bytes.phase(), bytes.block(), bytes.ptr()), (0, 2, p.ptr().cast()));
        assert_eq!(bytes.offset(job, 2).rank(), Rank(2));
    });
}

#[test]
fn generic_pointers_keep_the_phase() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap().offset(job, 6);
        let generic: [u64; 2] = bytemuck::cast(p);
        let back: BlockPtr<u64> = bytemuck::cast(generic);
        assert_eq!((back, back.phase(), back.block()), (p, 2, 4));
    });
}

// 6. Optional libraries

#[test]
fn cast() {
    partage::test(3, |job| {
        let mut a = job.array::<u32>(30).unwrap();
        a.own(|mine| mine.fill(job.rank().0 + 1));
        a.freeze(|a| {
            for r in job.ranks().filter(|&r| job.same_node(r)) {
                let theirs: &[u32] = a.part(r).unwrap();
                assert_eq!(theirs, [r.0 + 1; 10]);
            }
        });
    });
}

#[test]
fn thread_info() {
    partage::test(3, |job| {
        let p = job.alloc_all::<u8>(1).unwrap();
        let castable = job.ranks().filter(|&r| job.same_node(r)).count();
        // SAFETY: nobody dereferences it.
        let found = job.ranks().filter(|&r| unsafe { p.on(r).as_raw(job) }.is_some()).count();
        assert_eq!(castable, found);
    });
}

#[test]
fn atomic_get_and_set() {
    partage::test(3, |job| {
        let a = job.array::<i64>(Layout::cyclic(3)).unwrap();
        let p = job.alloc_all::<u32>(1).unwrap().on(job.neighbor(1));
        a.at(job.neighbor(1).index()).store(-7);
        p.at(job).store(7);
        job.barrier();
        assert_eq!((a.at(0).load(), a.at(2).swap(-7), p.at(job).load()), (-7, -7, 7));
    });
}

#[test]
fn atomic_cswap() {
    partage::test(4, |job| {
        let a = job.array::<u64>(1).unwrap();
        let won = a.at(0).compare_exchange(0, 1 + u64::from(job.rank().0));
        assert_eq!(all(job, u64::from(won.is_ok())).iter().sum::<u64>(), 1);
        assert_eq!(won.err(), Some(a.get(0)).filter(|&winner| winner != 1 + u64::from(job.rank().0)));
    });
}

#[test]
fn atomic_arithmetic() {
    partage::test(4, |job| {
        let (a, r) = (job.array::<i32>(8).unwrap(), job.rank().0 as i32);
        a.put(7, 1);
        job.barrier();
        a.at(7).fetch_mul(r + 1);
        a.at(0).fetch_add(r);
        a.at(1).fetch_sub(r);
        a.at(2).fetch_add(1); // inc
        a.at(3).fetch_sub(1); // dec
        a.at(4).fetch_max(r);
        a.at(5).fetch_min(-r);
        a.at(6).fetch_xor(1 << r);
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [6, -6, 4, -4, 3, -3, 15, 24]);
        job.barrier();
        a.at(6).fetch_and(!(1 << r));
        job.barrier();
        assert_eq!(a.at(6).fetch_or(1 << r) & 1 << r, 0);
        job.barrier();
        assert_eq!(a.get(6), 15);
    });
}

#[test]
fn atomics_that_fetch_nothing() {
    partage::test(4, |job| {
        let (a, r) = (job.array::<u64>(3).unwrap(), u64::from(job.rank().0));
        a.at(0).add(r);
        a.at(1).xor(1 << r);
        a.at(2).start().max(r).wait();
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [6, 15, 3]);
    });
}

#[test]
fn atomics_on_floats_and_pointers() {
    partage::test(4, |job| {
        let sum = job.array::<f64>(1).unwrap();
        sum.at(0).add(0.5);
        // A stack: each rank pushes what it has, then all are on it.
        let head = job.alloc_all::<GlobalPtr<u64>>(1).unwrap().on(Rank(0));
        let nodes = job.alloc_all::<[GlobalPtr<u64>; 2]>(1).unwrap();
        let node = nodes.field::<GlobalPtr<u64>>(0).cast::<u64>();
        let mut old = head.at(job).load();
        loop {
            nodes.field::<GlobalPtr<u64>>(8).put(job, old);
            match head.at(job).compare_exchange(old, node) {
                Ok(_) => break,
                Err(found) => old = found,
            }
        }
        job.barrier();
        assert_eq!(sum.at(0).load(), 2.0);
        let (mut next, mut found) = (head.at(job).load(), BTreeSet::new());
        while !next.is_null() {
            found.insert(next.rank());
            next = next.cast::<[GlobalPtr<u64>; 2]>().field(8).get(job);
        }
        assert_eq!(found.len(), 4);
    });
}

#[test]
fn atomics_of_two_orders() {
    partage::test(4, |job| {
        let a = job.array::<u32>(3).unwrap();
        a.at(0).relaxed().add(1);
        job.barrier();
        assert_eq!(a.at(0).strict().load(), 4);
        // Each says that it is there and looks for the next: not both of two miss each other.
        let b = job.array::<u32>(4).unwrap();
        let (me, next) = (job.rank().index(), job.neighbor(1).index());
        b.at(me).strict().store(1);
        let missed = all(job, u32::from(b.at(next).strict().load() == 0)).iter().sum::<u32>();
        assert!(missed < 4);
    });
}

#[test]
fn atomic_domains() {
    partage::test(4, |job| {
        let a = job.array::<i64>(4).unwrap();
        let domain = job.atomic_domain::<i64>(&[Op::Add, Op::Load]).unwrap();
        domain.at(a.at(1)).fetch_add(2);
        domain.at(a.at(1)).relaxed().add(-1);
        job.barrier();
        assert_eq!(domain.at(a.at(1)).strict().load(), 4);
    });
}

#[test]
fn atomic_isfast() {
    partage::test(2, |job| {
        let domain = job.atomic_domain::<u64>(&Op::ALL).unwrap();
        // On one node there is no network to do them.
        assert!(!domain.is_native() || job.ranks().any(|r| !job.same_node(r)));
    });
    // What was not asked for is refused, as it would be where the network does not do it.
    let other = failure(|job| {
        let a = job.array::<u64>(3).unwrap();
        let domain = job.atomic_domain::<u64>(&[Op::Add]).unwrap();
        domain.at(a.at(0)).store(1);
    });
    says(other, &["store in a domain that was not asked for it: give Op::Store to atomic_domain"]);
}

#[test]
fn nonblocking_get() {
    partage::test(3, |job| {
        let a = job.array::<u32>(30).unwrap();
        a.my_indices().for_each(|i| a.put(i, i as u32));
        let p = job.alloc_all::<u32>(3).unwrap();
        p.put_slice(job, &[1, 2, 3]);
        job.barrier();
        let coming = a.fetch(5..25);
        let there = p.on(job.neighbor(1)).fetch(job, 3);
        job.barrier(); // it may run past barriers
        assert_eq!((coming.wait(), there.wait()), ((5..25).collect(), vec![1, 2, 3]));
        let mut buffer = [0; 20];
        job.scope(|s| {
            let coming = s.get(&a, 5, &mut buffer);
            assert_eq!(coming.wait()[19], 24);
        });
    });
}

#[test]
fn nonblocking_put() {
    partage::test(3, |job| {
        let (a, r) = (job.array::<u32>(30).unwrap(), job.rank().index());
        let going = a.store(10 * r, vec![1; 10]);
        job.barrier();
        assert_eq!(going.wait().len(), 10, "the buffer comes back");
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [1; 30]);
        job.barrier();
        job.scope(|s| drop(s.put(&a, 10 * r, &[2; 10])));
        job.barrier();
        assert_eq!(a.fetch(..).wait(), [2; 30]);
    });
}

#[test]
fn sync_attempt() {
    partage::test(3, |job| {
        let a = job.array::<u32>(30).unwrap();
        let mut coming = a.fetch(5..25);
        while !coming.test() {
            job.poll();
        }
        assert_eq!(coming.wait(), [0; 20]);
    });
}

#[test]
fn implicit_handles() {
    partage::test(3, |job| {
        let p = job.alloc_all::<u64>(10).unwrap().on(job.neighbor(1));
        (0..10).for_each(|i| drop(p.add(i).store(job, vec![7])));
        job.quiet();
        job.barrier();
        assert_eq!(p.on(job.rank()).fetch(job, 10).wait(), [7; 10]);
    });
}

#[test]
fn memset_nb() {
    partage::test(3, |job| {
        let p = job.alloc_all::<u64>(5).unwrap().on(job.neighbor(1));
        let setting = p.store(job, vec![9; 4]);
        setting.wait();
        job.barrier();
        assert_eq!(p.on(job.rank()).fetch(job, 5).wait(), [9, 9, 9, 9, 0]);
    });
}

#[test]
fn memcpy_nb() {
    partage::test(3, |job| {
        let (a, b) = (job.array::<u64>(6).unwrap(), job.array::<u64>(Layout::cyclic(6)).unwrap());
        a.my_indices().for_each(|i| a.put(i, 10 + i as u64));
        job.barrier();
        if job.rank() == Rank(1) {
            // All of them are under way together.
            let (a, b) = (&a, &b);
            let copy = |i: usize| async move { b.store(i, a.fetch(i..i + 2).await).await };
            let copies = job.block_on(partage::wait::join_all([0, 2, 4].map(copy)));
            assert_eq!(copies.len(), 3);
        }
        job.barrier();
        assert_eq!(b.fetch(..).wait(), [10, 11, 12, 13, 14, 15]);
    });
}

// 7. Berkeley's extensions

#[test]
fn thread_distance() {
    partage::test(3, |job| {
        let distance = job.distance(job.neighbor(1));
        assert!(distance > Distance::Me && distance <= Distance::Far);
        assert_eq!(job.distance(job.rank()), Distance::Me);
        assert_eq!(job.same_node(job.neighbor(1)), distance < Distance::Far);
    });
}

#[test]
fn ptradd() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap();
        let block = 4; // decided at run time
        assert_eq!(p.with_block::<u64>(block).offset(job, 9), p.offset(job, 9));
        assert_eq!(p.ptr().add(3), p.offset(job, 3).ptr());
    });
}

#[test]
fn dump() {
    partage::test(3, |job| {
        let p = job.alloc_blocks_all::<u64>(Layout::block_cyclic(24, 4)).unwrap().offset(job, 6);
        assert_eq!(format!("{p:?}"), format!("{:#x}@1, 2 of [4]", p.addrfield()));
        assert_eq!(format!("{:?}", GlobalPtr::<u64>::NULL), "null");
    });
}

#[test]
fn vector_lists() {
    partage::test(3, |job| {
        let a = job.array::<u32>(Layout::block_cyclic(24, 4)).unwrap();
        let b = job.array::<u32>(24).unwrap();
        let src = [10, 11, 12, 13, 14, 15, 16, 17];
        if job.rank().0 == 1 {
            // The lists need not be alike: the k-th of one is the k-th of the other.
            a.put_region_from(&[17..20, 2..4], &src, &[0..1, 4..8]);
            a.copy_region_to(&[2..4, 17..18], &b, &[0..1, 22..24]);
        }
        job.barrier();
        let mut got = [0; 6];
        a.get_region_to(&[2..4, 17..20], &mut got, &[0..1, 2..6]);
        assert_eq!(got, [16, 0, 17, 10, 14, 15]);
        assert_eq!([0, 22, 23].map(|i| b.get(i)), [16, 17, 10]);
    });
}

#[test]
fn indexed_lists() {
    partage::test(3, |job| {
        let a = job.array::<u32>(Layout::cyclic(20)).unwrap();
        a.my_indices().for_each(|i| a.put(i, i as u32));
        job.barrier();
        let mut got = [0; 6];
        a.get_region(Indexed { starts: &[9, 3, 14], len: 2 }, &mut got);
        assert_eq!(got, [9, 10, 3, 4, 14, 15]);
    });
}

#[test]
fn one_stride() {
    partage::test(3, |job| {
        let mine = job.alloc_all::<u64>(40).unwrap();
        let (there, src) = (mine.on(job.neighbor(1)), [1, 2, 3, 4, 5, 6, 7, 8]);
        there.put_region(job, Region::at(1).run(2).times(4, 10), &src);
        job.barrier();
        let all = mine.fetch(job, 40).wait();
        assert!((0..40).all(|i| all[i] == if [1, 2].contains(&(i % 10)) { (i / 10 * 2 + i % 10) as u64 } else { 0 }));
    });
}

#[test]
fn many_strides() {
    partage::test(3, |job| {
        // A box of 2 x 3 x 2 in one of 2 x 5 x 6, and the same box dense, with its dimensions the other way round.
        let a = job.array::<u16>(Layout::bricks([2, 5, 6])).unwrap();
        a.my_indices().for_each(|i| a.put(i, i as u16));
        job.barrier();
        let (there, mut got) = (Region::at(0).run(2).times(3, 6).times(2, 30), [0; 12]);
        a.get_region_to(there, &mut got, Region::at(0).times(2, 6).times(3, 2).times(2, 1));
        assert_eq!(got, [0, 30, 6, 36, 12, 42, 1, 31, 7, 37, 13, 43]);
        assert!(there.indices().eq(Region::at(0).run(2).times(3, 6).times(2, 30).indices()));
    });
}

#[test]
fn strided_async() {
    partage::test(3, |job| {
        let a = job.array::<u32>(Layout::rows(6, 4)).unwrap();
        let column = |c: usize| Region::at(c).times(6, 4);
        let (src, mut got) = ([job.rank().0 + 1; 6], [9; 6]);
        job.scope(|s| {
            if job.rank().0 == 0 {
                let going = s.put_region(&a, column(0), &src);
                let coming = s.get_region(&a, column(3), &mut got);
                going.wait();
                assert_eq!(coming.wait(), &[0; 6]);
            }
        });
        job.barrier();
        assert!((0..24).all(|i| a.get(i) == u32::from(i % 4 == 0)));
    });
}

/// Collective: the signal of my right neighbour's semaphore.
fn right_of(job: &Job, come: &Semaphore) -> Signal {
    let all = job.alloc_all::<Signal>(1).unwrap();
    all.put(job, come.signal());
    job.barrier();
    all.on(job.neighbor(1)).get(job)
}

#[test]
fn semaphores() {
    partage::test(3, |job| {
        if job.rank().0 == 1 {
            // Nobody else is needed.
            let come = job.semaphore().unwrap();
            assert_eq!((come.signal().rank(), come.value(), come.try_wait()), (job.rank(), 0, false));
        }
        job.barrier();
        let freed = job.semaphore().unwrap();
        let right = right_of(job, &freed);
        drop(freed);
        job.post(right);
    });
}

#[test]
fn flavors() {
    partage::test(3, |job| {
        let general = job.semaphore().unwrap();
        assert_eq!(general.flavor(), Flavor::default());
        let flag = job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap();
        let right = right_of(job, &flag);
        job.post(right);
        job.post(right);
        job.quiet();
        job.barrier();
        assert!(flag.try_wait() && !flag.try_wait());
    });
    says(
        failure(|job| {
            let flag = job.semaphore_with(Flavor { boolean: true, ..Default::default() }).unwrap();
            job.post_n(flag.signal(), 2);
        }),
        &["post_n", "a boolean semaphore is posted once at a time"],
    );
}

#[test]
fn posts() {
    partage::test(3, |job| {
        let come = job.semaphore().unwrap();
        let right = right_of(job, &come);
        job.post(right);
        job.post_n(right, 3);
        come.wait_n(4);
        job.barrier();
        assert_eq!(come.value(), 0);
        job.barrier();
        // 65535 at least.
        job.post_n(right, 65535);
        job.post_n(right, 65535);
        come.wait_n(2 * 65535);
    });
    says(
        failure(|job| {
            let come = job.semaphore().unwrap();
            job.post_n(come.signal(), i32::MAX as u32);
            job.post(come.signal());
        }),
        &["post: ", "more than 2147483647 posts wait to be taken"],
    );
}

#[test]
fn waits() {
    partage::test(3, |job| {
        let come = job.semaphore().unwrap();
        let right = right_of(job, &come);
        assert!(!come.try_wait() && !come.try_wait_n(2));
        job.barrier();
        job.post_n(right, 4);
        come.wait();
        come.wait_n(1);
        job.quiet();
        job.barrier();
        assert!(!come.try_wait_n(3) && come.value() == 2);
        assert!(come.try_wait_n(2) && !come.try_wait());
    });
}

#[test]
fn signaling_put() {
    partage::test(3, |job| {
        let a = job.array::<u64>(Layout::per_rank(8)).unwrap();
        let come = job.semaphore().unwrap();
        let (me, right) = (job.rank().index(), right_of(job, &come));
        for step in 0..10 {
            let there = 8 * job.neighbor(1).index() + 4 * (step as usize % 2);
            a.put_signal(there, &[step; 4], right, 1);
            come.wait();
            assert_eq!(a.get(8 * me + 4 * (step as usize % 2) + 3), step);
            // Nobody says that it has read before.
            job.barrier();
        }
        let row = [7; 8];
        job.scope(|s| s.put_signal(&a, 8 * job.neighbor(1).index(), &row, right, 2).wait());
        come.wait_n(2);
        assert_eq!(a.cells().get(7), 7);
        job.barrier();
        a.put_signal(8 * job.neighbor(1).index(), &[], right, 1);
        come.wait();
    });
    says(
        failure(|job| {
            let a = job.array::<u64>(3).unwrap();
            let come = job.semaphore().unwrap();
            a.put_signal(job.neighbor(1).index(), &[1], come.signal(), 1);
        }),
        &["put_signal: element", "both must be on one"],
    );
}

#[test]
fn strict_semaphores() {
    partage::test(3, |job| {
        let come = job.semaphore_with(Flavor { strict: true, ..Default::default() }).unwrap();
        let (right, word) = (right_of(job, &come), job.alloc_all::<u64>(1).unwrap());
        for step in 1..10 {
            // Two away: not where the semaphore is.
            word.on(job.neighbor(2)).put(job, step);
            job.post(right);
            come.wait();
            assert_eq!(word.on(job.neighbor(1)).get(job), step);
            job.barrier();
        }
    });
}

#[test]
fn split_c() {
    partage::test(3, |job| {
        let (me, bytes) = (job.rank().index(), job.alloc_all::<u8>(100).unwrap());
        let come = job.semaphore().unwrap();
        let right = right_of(job, &come);
        // As many bytes as my number says, in pieces; whoever waits knows how many come in all.
        let (mine, all) = (10 * (me + 1), 10 * (job.neighbor(-1).index() + 1));
        for i in (0..mine).step_by(5) {
            bytes.on(job.neighbor(1)).add(i).put_signal(job, &[me as u8 + 1; 5], right, 5);
        }
        come.wait_n(all as u32);
        assert!((0..all).all(|i| usize::from(bytes.add(i).get(job)) == all / 10));
        job.barrier();
        // All of all.
        bytes.on(job.neighbor(1)).add(50).put_signal(job, &[9], right, 1);
        job.quiet();
        job.barrier();
        assert_eq!(bytes.add(50).get(job), 9);
    });
}

#[test]
fn poll() {
    static RUN: AtomicU64 = AtomicU64::new(0);
    partage::test(1, |job| {
        job.tell(job.rank(), |_, ()| _ = RUN.fetch_add(1, Relaxed), ());
        while RUN.load(Relaxed) == 0 {
            job.poll();
        }
    });
}

#[test]
fn embedding() {
    if let Some(output) = alone("embedding") {
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let squares = partage::Launch::new().ranks(4).run(|job| job.rank().0.pow(2)).unwrap();
    assert_eq!(squares, [0, 1, 4, 9]);
}

// Collectives

#[test]
fn all_broadcast() {
    partage::test(3, |job| {
        let src = job.array::<u64>(Layout::on(1, 4)).unwrap();
        let mut dst = job.array::<u64>(Layout::per_rank(4)).unwrap();
        src.my_indices().for_each(|i| src.put(i, 10 + i as u64));
        job.broadcast(&src).to(&mut dst).root(TeamRank(1)).run();
        assert_eq!(dst.own(|mine| mine.to_vec()), [10, 11, 12, 13]);
    });
}

#[test]
fn all_scatter() {
    partage::test(3, |job| {
        let src = job.array::<u64>(Layout::on(2, 6)).unwrap();
        let mut dst = job.array::<u64>(Layout::per_rank(2)).unwrap();
        src.my_indices().for_each(|i| src.put(i, i as u64));
        job.scatter(&src).to(&mut dst).root(TeamRank(2)).run();
        let r = u64::from(job.rank().0);
        assert_eq!(dst.own(|mine| mine.to_vec()), [2 * r, 2 * r + 1]);
    });
}

#[test]
fn all_gather() {
    partage::test(3, |job| {
        let src = job.array::<u64>(Layout::per_rank(2)).unwrap();
        let mut dst = job.array::<u64>(Layout::on(1, 6)).unwrap();
        src.my_indices().for_each(|i| src.put(i, i as u64));
        job.gather(&src).to(&mut dst).root(TeamRank(1)).run();
        assert!((0..6).all(|i| dst.affinity(i) == Rank(1) && dst.get(i) == i as u64));
        job.barrier();
    });
}

#[test]
fn all_gather_all() {
    partage::test(3, |job| {
        let src = job.array::<u64>(Layout::per_rank(2)).unwrap();
        let mut dst = job.array::<u64>(Layout::per_rank(6)).unwrap();
        src.my_indices().for_each(|i| src.put(i, i as u64));
        job.gather_all(&src).to(&mut dst).run();
        assert_eq!(dst.own(|mine| mine.to_vec()), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn all_exchange() {
    partage::test(3, |job| {
        let [src, mut dst] = [(); 2].map(|_| job.array::<u64>(Layout::per_rank(6)).unwrap());
        src.my_indices().for_each(|i| src.put(i, i as u64));
        job.exchange(&src).to(&mut dst).run();
        let r = u64::from(job.rank().0);
        let expected: Vec<u64> = (0..3).flat_map(|j| [6 * j + 2 * r, 6 * j + 2 * r + 1]).collect();
        assert_eq!(dst.own(|mine| mine.to_vec()), expected);
    });
}

#[test]
fn all_permute() {
    partage::test(3, |job| {
        let [src, mut dst] = [(); 2].map(|_| job.array::<u64>(Layout::per_rank(2)).unwrap());
        src.my_indices().for_each(|i| src.put(i, i as u64));
        let perm = [2, 0, 1].map(TeamRank);
        job.permute(&src, perm[job.rank().index()]).to(&mut dst).run();
        let from = [1, 2, 0][job.rank().index()];
        assert_eq!(dst.own(|mine| mine.to_vec()), [2 * from, 2 * from + 1]);
    });
}

#[test]
fn no_permutation() {
    let said = failure(|job| {
        let perm = [2, 0, 2].map(TeamRank);
        _ = job.value(1u64).permute(perm[job.rank().index()]);
        job.barrier();
    });
    says(said, &["permut", "rank 2"]);
}

#[test]
fn nothing_to_pass() {
    partage::test(3, |job| {
        let mut none = job.array::<u64>(0).unwrap();
        job.broadcast(&mut none).run();
        let mut all = vec![1u8];
        job.exchange(&[]).to(&mut all).run();
        assert!(all.is_empty());
    });
}

#[test]
fn nosync() {
    partage::test(3, |job| {
        let rows = 20;
        let [src, dst] = [(); 2].map(|_| job.array::<u64>(Layout::cyclic(3 * rows)).unwrap());
        src.my_indices().for_each(|i| src.put(i, i as u64));
        // Nothing is waited for between the two barriers.
        job.barrier();
        for i in 0..rows {
            let row = |a| SharedArray::slice(a, 3 * i..3 * i + 3);
            job.permute(row(&src), TeamRank(job.neighbor(1).0)).to(row(&dst)).sync(In::No, Out::No).run();
        }
        job.barrier();
        let left = job.neighbor(-1).index();
        assert!(dst.my_indices().enumerate().all(|(k, i)| dst.get(i) == (3 * k + left) as u64));
        job.barrier();
    });
}

#[test]
fn mysync() {
    partage::test(3, |job| {
        let [src, dst] = [(); 2].map(|_| job.array::<u64>(Layout::per_rank(1)).unwrap());
        let me = job.rank().index();
        let come = job.semaphore().unwrap();
        let signals = job.value(come.signal()).gather_all();
        let perm = [1, 0, 2].map(TeamRank);
        for round in 0..20u64 {
            // The third rank comes when the others have gone on: they have nothing to do with it.
            if me == 2 {
                come.wait_n(2);
            }
            src.cells().set(0, 10 * round + me as u64);
            job.permute(src.slice(..), perm[me]).to(dst.slice(..)).sync(In::My, Out::My).run();
            // What is mine is mine again.
            assert_eq!(dst.cells().get(0), 10 * round + u64::from(perm[me].0));
            src.cells().set(0, u64::MAX);
            dst.cells().set(0, u64::MAX);
            if me < 2 {
                job.post(signals[2]);
            }
        }
    });
}

#[test]
fn allsync() {
    partage::test(3, |job| {
        let [src, mut dst] = [(); 2].map(|_| job.array::<u64>(Layout::per_rank(1)).unwrap());
        let me = job.rank().index();
        for round in 0..20u64 {
            // Whose memory it is does not matter: all come before anything is touched, and nothing is touched after.
            src.put(job.neighbor(1).index(), 10 * round + me as u64);
            job.permute(&src, TeamRank(me as u32)).to(&mut dst).sync(In::All, Out::All).run();
            assert!((0..3).all(|r| dst.get(r) == 10 * round + (r as u64 + 2) % 3));
            job.barrier();
        }
    });
}

#[test]
fn sync_that_is_not_said() {
    partage::test(3, |job| {
        let (src, mut dst) = (job.array::<u64>(3).unwrap(), job.array::<u64>(3).unwrap());
        src.put(job.neighbor(1).index(), 7);
        job.permute(&src, TeamRank(job.neighbor(1).0)).to(&mut dst).run();
        assert!((0..3).all(|r| dst.get(r) == 7));
        job.barrier();
    });
}

/// All types that UPC reduces, against one rank's loop.
macro_rules! of_all_types {
    ($job:ident, $each:ident) => {
        $each!($job, i8 u8 i16 u16 i32 u32 i64 u64 f32 f64)
    };
}

#[test]
fn all_reduce() {
    macro_rules! each {
        ($job:ident, $($t:ty)+) => {{ $({
            let src = $job.array::<$t>(Layout::block_cyclic(23, 3)).unwrap();
            src.my_indices().for_each(|i| src.put(i, (i % 7) as $t));
            let sum = (0..23).map(|i| (i % 7) as $t).sum();
            assert_eq!($job.fold(&src, Sum).root(TeamRank(1)).run(), ($job.rank().0 == 1).then_some(sum));
        })+ }};
    }
    partage::test(3, |job| of_all_types!(job, each));
}

#[test]
fn all_prefix_reduce() {
    macro_rules! each {
        ($job:ident, $($t:ty)+) => {{ $({
            let [src, mut dst] = [(); 2].map(|_| $job.array::<$t>(Layout::block_cyclic(23, 3)).unwrap());
            src.my_indices().for_each(|i| src.put(i, (i % 7) as $t));
            $job.prefix_fold(&src, Sum).to(&mut dst).run();
            dst.my_indices().for_each(|i| assert_eq!(dst.get(i), (0..=i).map(|i| (i % 7) as $t).sum()));
        })+ }};
    }
    partage::test(3, |job| of_all_types!(job, each));
}

#[test]
fn reduce_operations() {
    partage::test(3, |job| {
        let src = job.array::<i32>(Layout::cyclic(10)).unwrap();
        src.my_indices().for_each(|i| src.put(i, i as i32 + 1));
        assert_eq!(job.fold(&src, Sum).run(), Some(55));
        assert_eq!(job.fold(&src, Prod).run(), Some(3_628_800));
        assert_eq!(job.fold(&src, And).run(), Some(0));
        assert_eq!(job.fold(&src, Or).run(), Some(15));
        assert_eq!(job.fold(&src, Xor).run(), Some(11));
        assert_eq!(job.fold(&src, LogAnd).run(), Some(1));
        assert_eq!(job.fold(&src, LogOr).run(), Some(1));
        assert_eq!(job.fold(&src, Min).run(), Some(1));
        assert_eq!(job.fold(&src, Max).run(), Some(10));
    });
}

/// A number and ten to its digits: one number is written after the other.
fn then(x: [u64; 2], y: [u64; 2]) -> [u64; 2] {
    [x[0].wrapping_mul(y[1]).wrapping_add(y[0]), x[1].wrapping_mul(y[1])]
}

#[test]
fn reduce_functions() {
    partage::test(3, |job| {
        let src = job.array::<[u64; 2]>(Layout::block_cyclic(8, 2)).unwrap();
        src.my_indices().for_each(|i| src.put(i, [i as u64 + 1, 10]));
        assert_eq!(job.fold(&src, Ordered(then)).run(), Some([12_345_678, 100_000_000]));
        let larger = Commutative(|x: [u64; 2], y: [u64; 2]| x.max(y));
        assert_eq!(job.fold(&src, larger).run(), Some([8, 10]));
    });
}

#[test]
fn reduce_phase() {
    partage::test(3, |job| {
        let src = job.array::<[u64; 2]>(Layout::block_cyclic(20, 4)).unwrap();
        src.my_indices().for_each(|i| src.put(i, [i as u64 % 10, 10]));
        assert_eq!(job.fold(src.slice(5..18), Ordered(then)).run().unwrap()[0], 5_678_901_234_567);
    });
}

#[test]
fn reduce_indefinite() {
    partage::test(3, |job| {
        let mut src = job.array::<u64>(Layout::on(2, 9)).unwrap();
        src.my_indices().for_each(|i| src.put(i, i as u64));
        assert_eq!(job.fold(&src, Sum).root(TeamRank(0)).run(), (job.rank().0 == 0).then_some(36));
        job.prefix_fold(&mut src, Sum).run();
        assert_eq!(src.get(8), 36);
        job.barrier();
    });
}

#[test]
fn reduce_nothing() {
    partage::test(3, |job| {
        let mut src = job.array::<u64>(7).unwrap();
        assert_eq!(job.fold(src.slice(3..3), Sum).run(), None);
        let mut none = job.array::<u64>(0).unwrap();
        job.prefix_fold(&mut none, Sum).run();
        job.prefix_fold(&mut src, Sum).run();
        assert_eq!(src.get(6), 0);
    });
}

#[test]
fn reduce_all() {
    partage::test(4, |job| {
        let src = job.array::<f64>(Layout::blocked(9)).unwrap();
        src.my_indices().for_each(|i| src.put(i, (i * 5 % 9) as f64));
        assert_eq!(job.fold(&src, Max).run(), Some(8.0));
    });
}

#[test]
fn element_by_element() {
    partage::test(3, |job| {
        let me = u64::from(job.rank().0);
        let mut v = [me, 1, 10 * me];
        job.all_reduce(&mut v, Sum).run();
        assert_eq!(v, [3, 3, 30]);
        let mut upto = [0];
        job.prefix_reduce(&[me + 1], Prod).to(&mut upto).run();
        assert_eq!(upto, [[1], [2], [6]][job.rank().index()]);
    });
}

#[test]
fn value_collectives() {
    partage::test(3, |job| {
        let mine = u64::from(job.rank().0) + 1;
        assert_eq!(job.value(mine).broadcast(TeamRank(2)), 3);
        assert_eq!(job.value(mine).gather(TeamRank(1)), (mine == 2).then(|| vec![1, 2, 3]));
        assert_eq!(job.value(mine).gather_all(), [1, 2, 3]);
        assert_eq!(job.value(mine).permute(TeamRank(job.neighbor(1).0)), (mine + 1) % 3 + 1);
    });
}

// The table

/// Rows of the table: the cells that name an item, show a line, and name a test.
fn rows() -> Vec<[&'static str; 3]> {
    let row = |line: &'static str| {
        // Bars of closures are escaped.
        let mut cells = vec![];
        let (mut start, bytes) = (1, line.as_bytes());
        for i in 1..bytes.len() {
            if bytes[i] == b'|' && bytes[i - 1] != b'\\' {
                cells.push(line[start..i].trim());
                start = i + 1;
            }
        }
        <[&str; 4]>::try_from(cells).ok().map(|[_, item, code, test]| [item, code, test])
    };
    let table = include_str!("../../docs/upc.md").lines().filter(|line| line.starts_with("| "));
    table.filter_map(row).filter(|row| row[2].starts_with('`')).collect()
}

fn unquoted(cell: &str) -> String {
    cell.trim_matches('`').replace("\\|", "|")
}

/// Tests of this file, with their text.
fn tests() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = include_str!("upc.rs").split("\n#[test]\nfn ").skip(1);
    all.map(|test| (test.split('(').next().unwrap(), test))
}

#[test]
fn every_row_has_its_test_and_every_test_its_row() {
    let named: BTreeSet<String> = rows().iter().map(|row| unquoted(row[2])).collect();
    assert!(named.len() == rows().len() && named.len() > 40, "{} rows, {} tests", rows().len(), named.len());
    let there = tests().map(|(name, _)| name.to_string()).filter(|name| !name.starts_with("every_"));
    assert_eq!(named, there.collect());
}

#[test]
fn every_line_of_the_table_is_tested() {
    for [_, code, test] in rows() {
        let (code, name) = (unquoted(code), unquoted(test));
        let (_, text) = tests().find(|(found, _)| *found == name).unwrap();
        assert!(text.contains(&code), "`{code}` is not in the test {name}");
    }
}

#[test]
fn every_item_of_the_table_is_where_it_links_to() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for [items, ..] in rows() {
        for (i, link) in items.split("](").enumerate().skip(1) {
            let (file, before) = (link.split(')').next().unwrap(), items.split("](").nth(i - 1).unwrap());
            let path = before.rsplit('[').next().unwrap().trim_matches('`');
            let text = std::fs::read_to_string(docs.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            let name = path.rsplit("::").next().unwrap();
            let is_there = ["fn ", "const fn ", "unsafe fn ", "struct ", "enum ", "trait "].iter().any(|kind| {
                text.match_indices(&format!("pub {kind}{name}"))
                    .any(|(at, found)| !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            });
            // Or in the list of what a macro makes of them.
            let listed = ["(value)", " -> T"].iter().any(|rest| text.contains(&format!("\n        {name}{rest}")));
            assert!(is_there || listed, "{path} is not in {file}");
        }
    }
}
