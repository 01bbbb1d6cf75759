//! Programs that are wrong about arrays and phases: all ranks hear the same line, no closure runs that should not, and what
//! can go on does.

mod common;

use common::*;
use partage::ErrorKind::OutOfMemory;
use partage::am::LongRequest;
use partage::prelude::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    if let Some(case) = case.strip_prefix("after: ") {
        after_the_job(case);
        return;
    }
    partage::run(|job| match case.as_str() {
        "no room" => no_room(job),
        "one without room" => one_without_room(job),
        "more than the machine has" => more_than_the_machine_has(job),
        "all panic" => all_panic(job),
        "forged" => forged(job),
        "a thousand" => a_thousand(job),
        "too many" => too_many(job),
        "kept in a thread-local" => kept_in_a_thread_local(job),
        "entry" | "exit" | "nested" | "making" => parked(job, &case),
        _ => disagreeing(job, &case),
    });
}

/// What a closure of a phase says that must not run.
fn inside(job: &Job) {
    job.println("inside");
}

fn disagreeing(job: &Job, case: &str) {
    let me = job.rank().0;
    let mut many: Vec<_> = (0..6).map(|_| job.array::<u64>(8).unwrap()).collect();
    let [a, b, c, ..] = &mut many[..] else { unreachable!() };
    match (case, me) {
        ("arrays", 2) => b.own(|_| inside(job)),   // @b
        ("arrays", _) => a.own(|_| inside(job)),   // @a
        ("modes", 1) => a.freeze(|_| inside(job)), // @frozen
        ("modes", _) => a.own(|_| inside(job)),    // @owned
        ("one of two modes", 3) => job.phase((a.owned(), b.owned()), |_| inside(job)), // @both
        ("one of two modes", _) => job.phase((a.owned(), b.frozen()), |_| inside(job)), // @one
        ("order", 0) => job.phase((a.owned(), b.owned()), |_| inside(job)), // @order
        ("order", _) => job.phase((b.owned(), a.owned()), |_| inside(job)), // @reversed
        ("fewer", 1) => job.phase((a.owned(), b.owned()), |_| inside(job)), // @two
        ("fewer", _) => job.phase((a.owned(), b.owned(), c.owned()), |_| inside(job)), // @three
        ("the fifth", 2) => {
            let five = many.iter_mut().take(5).map(|a| a.owned()).collect::<Vec<_>>();
            job.phase(five, |_| inside(job)); // @first five
        }
        ("the fifth", _) => {
            many.swap(4, 5);
            let five = many.iter_mut().take(5).map(|a| a.owned()).collect::<Vec<_>>();
            job.phase(five, |_| inside(job)); // @another fifth
        }
        ("swapped", _) => {
            if me == 1 {
                std::mem::swap(a, b);
            }
            a.own(|_| inside(job)); // @swapped
        }
        ("phase and barrier", 3) => job.barrier(),           // @barrier
        ("phase and barrier", _) => a.own(|_| inside(job)),  // @not a barrier
        ("phase and value", 3) => job.barrier_with(5),       // @value
        ("phase and value", _) => a.own(|_| inside(job)),    // @no value
        ("phase and array", 0) => drop(job.array::<u8>(5)),  // @array
        ("phase and array", _) => a.freeze(|_| inside(job)), // @no array
        ("phase and alloc_all", 2) => _ = job.alloc_all::<u8>(5).unwrap(), // @alloc
        ("phase and alloc_all", _) => a.own(|_| inside(job)), // @no alloc
        ("phase and the end", 1) => return,
        ("phase and the end", _) => a.own(|_| inside(job)), // @not the end
        // Inside, where the closures of all have begun.
        ("barrier in a phase", 2) => a.own(|_| job.barrier()), // @in a phase
        ("barrier in a phase", _) => a.own(|_| ()),            // @empty phase
        ("end and nested phase", 3) => a.own(|_| ()),          // @not nested
        ("end and nested phase", _) => a.own(|_| b.own(|_| inside(job))), // @nested
        ("lengths", 1) => drop(job.array::<u64>(9)),           // @nine
        ("lengths", _) => drop(job.array::<u64>(8)),           // @eight
        ("layouts", 2) => drop(job.array::<u64>(Layout::cyclic(8))), // @cyclic
        ("layouts", _) => drop(job.array::<u64>(Layout::blocked(8))), // @blocked
        ("blocks", 3) => drop(job.array::<u64>(Layout::block_cyclic(8, 4))), // @by four
        ("blocks", _) => drop(job.array::<u64>(Layout::block_cyclic(8, 2))), // @by two
        ("firsts", 1) => drop(job.array::<u64>(Layout::block_cyclic(8, 2).starting_at(1))), // @first
        ("firsts", _) => drop(job.array::<u64>(Layout::block_cyclic(8, 2))), // @no first
        ("owners", 0) => drop(job.array::<u64>(Layout::on(2, 100))), // @on two
        ("owners", _) => drop(job.array::<u64>(Layout::on(1, 100))), // @on one
        ("grids", 2) => drop(job.array::<u64>(Layout::tiles([8, 8]).grid([4, 1]))), // @grid
        ("grids", _) => drop(job.array::<u64>(Layout::tiles([8, 8]).grid([1, 4]))), // @other grid
        ("types", 2) => drop(job.array::<i64>(8)),             // @signed
        ("types", _) => drop(job.array::<u64>(8)),             // @unsigned
        ("array and barrier", 2) => job.barrier(),             // @a barrier
        ("array and barrier", _) => drop(job.array::<u64>(8)), // @an array
        ("array and the end", 2) => return,
        ("array and the end", _) => drop(job.array::<u64>(8)), // @last array
        // A panic in a phase that is caught: the handle reaches nothing, and the next meeting is not the others'.
        ("caught, barrier", 1) => {
            caught(job, a);
            job.barrier(); // @after
        }
        ("caught, the same phase", 1) => {
            caught(job, a);
            let refused = refusal(|| a.own(|_| inside(job)));
            assert!(
                refused.contains("phase: this array of 8 elements is in a phase, or was left by a panic"),
                "{refused}"
            );
            b.own(|_| inside(job)); // @another phase
        }
        ("caught, the end", 1) => return caught(job, a),
        ("caught, the end of an outer one", 1) => {
            b.own(|_| caught(job, a)); // @outer
        }
        ("caught, the end of an outer one", _) => b.own(|_| a.own(|_| ())), // @inner
        (name, _) if name.starts_with("caught") => a.own(|_| ()),           // @waits
        (name, _) => unreachable!("{name}"),
    }
    job.println("went on");
}

fn refusal<R>(f: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).err().expect("this should have been refused");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

/// Panics in a phase of `a`, catches it, and finds that the handle reaches nothing.
fn caught(job: &Job, a: &mut SharedArray<u64>) {
    assert!(catch_unwind(AssertUnwindSafe(|| a.own(|_| panic!("in a phase")))).is_err());
    assert_eq!((a.len(), a.local_len(), a.my_indices().len(), a.my_runs().count()), (0, 0, 0, 0));
    let other = &*a;
    let calls: [&dyn Fn(); 14] = [
        &|| _ = other.get(0),
        &|| other.put(0, 1),
        &|| other.get_slice(0, &mut [0; 2]),
        &|| other.put_slice(3, &[1]),
        &|| other.fill(..2, 1),
        &|| other.copy_to(..1, other, 2),
        &|| drop(other.fetch(0..1)),
        &|| drop(other.store(0, vec![1])),
        &|| _ = other.at(0).load(),
        &|| _ = other.affinity(0),
        &|| job.scope(|s| drop(s.put(other, 0, &[1]))),
        &|| other.get_region(Region::at(0).times(2, 3), &mut [0; 2]),
        &|| other.put_region(&[1..2, 5..6], &[1, 2]),
        &|| other.copy_region_to(0..1, other, 2..3),
    ];
    for f in calls {
        let text = refusal(f);
        assert!(text.starts_with(&format!("{}: ", job.rank())), "{text}");
        assert!(text.contains("was left by a panic in one; such a handle reaches nothing"), "{text}");
    }
    assert!(refusal(|| other.cells().get(0)).contains("do not lie in my part of 0"));
    assert!(refusal(|| other.global(0)).contains("my part has 0 elements"));
}

/// The same line, whoever says it and however ranks are laid out; and not a word from inside.
#[track_caller]
fn disagreement(case: &str, parts: &[&str]) {
    let mut lines = vec![];
    for mapping in EVERY {
        let ended = job(mapping, case).end();
        lines.push(ended.failed_soon(101, parts).to_string());
        assert!(!ended.out.contains("inside") && !ended.out.contains("went on"), "{case}: {ended:#?}");
    }
    lines.dedup();
    assert!(lines.len() == 1 && lines[0].starts_with("partage: the ranks disagree: "), "{lines:#?}");
}

#[test]
fn phases_that_differ() {
    disagreement("arrays", &["rank 0 ", "rank 2 ", "owns array 0", "owns array 1", &at!("a"), &at!("b")]);
    disagreement("modes", &["rank 0 ", "rank 1 ", "owns array 0", "freezes array 0", &at!("frozen"), &at!("owned")]);
    disagreement("one of two modes", &["rank 3 ", "owns array 1", "freezes array 1", &at!("both"), &at!("one")]);
    disagreement("order", &["rank 1 ", "owns array 0, owns array 1", &at!("order"), &at!("reversed")]);
    disagreement("fewer", &["rank 1 ", "owns array 2", &at!("two"), &at!("three")]);
    disagreement("the fifth", &["rank 2 ", "owns array 4", "owns array 5", &at!("first five"), &at!("another fifth")]);
    disagreement("swapped", &["rank 1 ", "owns array 0", "owns array 1", &at!("swapped")]);
}

#[test]
fn phases_against_something_else() {
    disagreement("phase and barrier", &["rank 3 ", "barrier without a value", &at!("barrier"), &at!("not a barrier")]);
    disagreement("phase and value", &["rank 3 ", "barrier with value 5", &at!("value"), &at!("no value")]);
    disagreement("phase and array", &["rank 0 ", "an array of 5 elements", &at!("array"), &at!("no array")]);
    disagreement("phase and alloc_all", &["rank 2 ", "alloc_all of 5 bytes", &at!("alloc"), &at!("no alloc")]);
    disagreement("phase and the end", &["rank 1 ", "the end of its program", "owns array 0", &at!("not the end")]);
    disagreement("barrier in a phase", &["rank 2 ", "the end of a phase that owns array 0", &at!("in a phase")]);
    disagreement("end and nested phase", &["rank 3 ", "a phase that owns array 1", &at!("nested"), &at!("not nested")]);
}

#[test]
fn arrays_that_differ() {
    disagreement("lengths", &["rank 1 ", "9 elements", "8 elements", &at!("nine"), &at!("eight")]);
    disagreement("layouts", &["rank 2 ", "8 elements, cyclic", "8 elements, blocked", &at!("cyclic"), &at!("blocked")]);
    disagreement("blocks", &["rank 0 ", "rank 3 ", &at!("by four"), &at!("by two")]);
    disagreement("firsts", &["rank 0 ", "rank 1 ", &at!("first"), &at!("no first")]);
    disagreement("owners", &["rank 0 ", "rank 1 ", &at!("on two"), &at!("on one")]);
    disagreement("grids", &["rank 0 ", "rank 2 ", &at!("grid"), &at!("other grid")]);
    disagreement("types", &["rank 0 ", "rank 2 ", &at!("signed"), &at!("unsigned")]);
    disagreement(
        "array and barrier",
        &["rank 2 ", "barrier without", "8 elements", &at!("a barrier"), &at!("an array")],
    );
    disagreement("array and the end", &["rank 2 ", "the end of its program", "8 elements", &at!("last array")]);
}

#[test]
fn a_panic_in_a_phase_that_is_caught() {
    let waits = ["rank 1 ", "the end of a phase that owns array 0", &at!("waits")];
    disagreement("caught, barrier", &[&waits[..], &["barrier without a value", &at!("after")]].concat());
    disagreement(
        "caught, the same phase",
        &[&waits[..], &["a phase that owns array 1", &at!("another phase")]].concat(),
    );
    disagreement("caught, the end", &[&waits[..], &["the end of its program"]].concat());
    let inner = ["the end of a phase that owns array 0", "the end of a phase that owns array 1"];
    disagreement("caught, the end of an outer one", &[&inner[..], &[&at!("outer"), &at!("inner")]].concat());
}

/// It ends well, and every rank says so.
#[track_caller]
fn goes_on(start: Start) {
    let ended = start.end();
    assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4, "{ended:#?}");
}

/// Arrays can be made, and are zeroed and whole.
#[track_caller]
fn still_works(job: &Job) {
    for turn in 0..3 {
        let mut a = job.array::<u32>(Layout::per_rank(1000 << turn)).unwrap();
        a.own(|mine| {
            assert!(mine.iter().all(|&x| x == 0));
            mine.fill(job.rank().0 + 1);
        });
        assert_eq!(a.get(a.len() - 1), job.size() as u32);
        job.barrier();
    }
}

#[track_caller]
fn refused(job: &Job, layout: Layout) {
    let error = job.array::<u8>(layout).expect_err("this is too much");
    assert_eq!(error.kind(), OutOfMemory, "{error}");
    assert!(error.to_string().starts_with(&format!("{}: array of ", job.rank())), "{error}");
}

fn no_room(job: &Job) {
    refused(job, Layout::per_rank(16 << 20));
    refused(job, Layout::blocked(64 << 20));
    (0..4).for_each(|r| refused(job, Layout::on(r, 16 << 20)));
    still_works(job);
    job.println("goes on");
}

/// Of one rank's memory more is taken than of the others'.
fn one_without_room(job: &Job) {
    let large = job.array::<u8>(Layout::on(1, 5 << 20)).unwrap();
    if job.rank().0 == 1 {
        large.fill(.., 7);
    }
    for turn in 0..4 {
        // Fails at rank 1 only; what the others have taken they give back.
        refused(job, Layout::per_rank(4 << 20));
        still_works(job);
        let some = job.array::<u8>(Layout::per_rank(100_000 * turn)).unwrap();
        refused(job, Layout::per_rank(5 << 20));
        refused(job, Layout::on(1, 4 << 20));
        assert_eq!(some.len(), 400_000 * turn);
        // On another rank it goes well.
        drop(job.array::<u8>(Layout::on(2, 4 << 20)).unwrap());
    }
    assert_eq!((large.get(0), large.get((5 << 20) - 1)), (7, 7));
    drop(large);
    drop(job.array::<u8>(Layout::per_rank(5 << 20)).unwrap());
    still_works(job);
    job.println("goes on");
}

fn more_than_the_machine_has(job: &Job) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let more = (total << 10) + (1 << 30);
    refused(job, Layout::per_rank(more));
    refused(job, Layout::on(3, more));
    refused(job, Layout::per_rank(1 << 50));
    still_works(job);
    job.println("goes on");
}

#[test]
fn arrays_without_room() {
    for mapping in EVERY {
        goes_on(job(mapping, "no room").env("PARTAGE_SEGMENT", "8M"));
        goes_on(job(mapping, "one without room").env("PARTAGE_SEGMENT", "8M"));
        goes_on(job(mapping, "more than the machine has"));
    }
}

/// If all ranks do the same, the job goes on without that array.
fn all_panic(job: &Job) {
    let mut a = job.array::<u64>(8).unwrap();
    let mut b = job.array::<u64>(8).unwrap();
    caught(job, &mut a);
    job.barrier();
    b.own(|mine| mine.fill(2));
    assert_eq!(b.get(7), 2);
    // In a phase of both, both are lost.
    let mut c = job.array::<u64>(8).unwrap();
    let both = catch_unwind(AssertUnwindSafe(|| job.phase((b.owned(), c.frozen()), |_| panic!("again"))));
    assert!(both.is_err() && b.is_empty() && c.is_empty());
    // Not only those that were left are refused, but all of a phase with one of them.
    let mut d = job.array::<u64>(8).unwrap();
    assert!(refusal(|| job.phase((d.owned(), a.owned()), |_| inside(job))).contains("left by a panic"));
    drop((a, b, c, d));
    still_works(job);
    job.println("goes on");
}

#[test]
fn a_panic_of_all_ranks() {
    for mapping in EVERY {
        goes_on(job(mapping, "all panic"));
    }
}

static LAND: LongRequest<u64, u64> = LongRequest::new(|_, _, _, _| ());

/// Bits that are no pointer reach open memory or nothing.
fn forged(job: &Job) {
    let me = u64::from(job.rank().0);
    job.register_handlers(&[&LAND]);
    let n = 40_000;
    let mut a = job.array::<u64>(Layout::block_cyclic(n, 50)).unwrap();
    let local = job.array::<u64>(Layout::on(2, 1000)).unwrap();
    let open = job.alloc_all::<u64>(1000).unwrap();
    a.own(|mine| mine.iter_mut().enumerate().for_each(|(k, x)| *x = (me + 1) << 32 | k as u64));
    local.fill(.., 4711);
    let mut state = me + 1;
    let mut draw = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state ^ state >> 33
    };
    let segment = 8 << 20;
    let (mut reached, mut refused) = (0, 0);
    let begun = Instant::now();
    for turn in 0..600 {
        let rank = match turn % 5 {
            0 => draw() & 0xf_ffff,
            _ => draw() % 4,
        };
        let offset = match turn % 8 {
            0 => draw() & ((1 << 44) - 1),
            1 => segment + (segment / 4) + draw() % segment, // where the guarded half lies in a file
            2 => (1 << 44) - 1 - draw() % segment,
            3 => (1 << 43) + draw() % segment,
            4 => 2 * segment + segment / 4 - draw() % 4096,
            5 => 1 << (draw() % 44),
            6 => draw() % (1 << 16),
            _ => draw() % (4 * segment),
        };
        let bits = rank << 44 | offset & if turn % 3 == 0 { !0 } else { !7 };
        let p: GlobalPtr<u64> = partage::bytemuck::cast(if turn % 11 == 0 { draw() } else { bits });
        let long = vec![u64::MAX; draw() as usize % 3000];
        let went = catch_unwind(AssertUnwindSafe(|| match turn % 7 {
            0 => p.put(job, u64::MAX),
            1 => p.put_slice(job, &long),
            2 => _ = p.at(job).fetch_add(1),
            3 => job.scope(|s| drop(s.put_ptr(p, &long))),
            4 => job.am_long(p, &long, &LAND, 0),
            5 => p.cast::<u8>().add(draw() as usize).put(job, 0xff),
            _ => p.add(draw() as usize).on(Rank(draw() as u32)).put(job, u64::MAX),
        }));
        *(if went.is_ok() { &mut reached } else { &mut refused }) += 1;
        if begun.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    // Both have been: what open memory has is anybody's.
    assert!(reached > 0 && refused > 0, "{reached} {refused}");
    // Frees of what was never taken, and of what is an array.
    for bits in [me << 44 | 1 << 13, me << 44 | segment, 1 << 43] {
        let p: GlobalPtr<u8> = partage::bytemuck::cast(bits);
        assert!(refusal(|| job.free_all(p)).contains("free_all: no allocation"));
    }
    job.quiet();
    a.freeze(|view| {
        assert!((0..view.len()).all(|i| {
            let (block, owner) = (i / 50 / 4, i as u64 / 50 % 4);
            view.get(i) == (owner + 1) << 32 | (block * 50 + i % 50) as u64
        }));
    });
    assert!((0..1000).all(|i| local.get(i) == 4711));
    still_works(job);
    job.free_all(open);
    job.println("goes on");
}

#[test]
fn forged_pointers() {
    for mapping in EVERY {
        goes_on(job(mapping, "forged").env("PARTAGE_SEGMENT", "8M"));
        goes_on(job(mapping, "forged").env("PARTAGE_SEGMENT", "8M").env("PARTAGE_REFERENCE", "1"));
    }
    match libfabric() {
        Ok(_) => goes_on(job(Hybrid, "forged").env("PARTAGE_SEGMENT", "8M").env("PARTAGE_NODE", "process")),
        Err(why) => skipped(&why),
    }
}

/// More arrays than are counted in one place.
fn a_thousand(job: &Job) {
    let me = job.rank().0;
    let make = |n: u32| {
        let a = job.array::<u32>(4).unwrap();
        a.put(me as usize, n << 2 | me);
        a
    };
    let mut all: Vec<_> = (0..1100).map(make).collect();
    job.barrier();
    assert!(all.iter().enumerate().all(|(n, a)| (0..4).all(|r| a.get(r) == (n << 2 | r) as u32)));
    job.barrier();
    let (first, last) = (&all[0], &all[1099]);
    assert_ne!(format!("{first:?}"), format!("{last:?}"));
    // Every rank drops some of them before and others after a new one is made, and another half of them for good.
    let before = job.allocated();
    let (mut held, mut kept) = (vec![], vec![]);
    for (n, a) in all.drain(..).enumerate() {
        match (n % 2, (n as u32 / 2 + me) % 3) {
            (0, 0) => held.push(a),
            (0, _) => drop(a),
            _ => kept.push(a),
        }
    }
    drop(job.array::<u32>(4).unwrap());
    drop(held);
    drop(job.array::<u32>(4).unwrap());
    let mut again: Vec<_> = (2000..2540).map(make).collect();
    job.barrier();
    assert!(again.iter().zip(2000..).all(|(a, n)| (0..4).all(|r| a.get(r) == n << 2 | r as u32)));
    assert!(kept.iter().enumerate().all(|(k, a)| (0..4).all(|r| a.get(r) == ((2 * k + 1) << 2 | r) as u32)));
    assert!(job.allocated() <= before, "{} after {before}", job.allocated());
    again.last_mut().unwrap().own(|mine| assert_eq!(mine, [2539 << 2 | me]));
    job.println("goes on");
}

#[test]
fn a_thousand_arrays() {
    for mapping in EVERY {
        goes_on(job(mapping, "a thousand"));
    }
}

fn too_many(job: &Job) {
    let mut all = vec![];
    let error = loop {
        match job.array::<u8>(0) {
            Ok(a) => all.push(a),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == OutOfMemory && error.to_string().contains("drop some"), "{error}");
    assert_eq!(all.len(), (1 << 14) - 1);
    all.last_mut().unwrap().own(|mine| assert!(mine.is_empty()));
    all.truncate(1000);
    still_works(job);
    job.println("goes on");
}

#[test]
fn too_many_arrays() {
    let ended = job(Threads, "too many").env("PARTAGE_RANKS", "2").end();
    assert_eq!(ended.succeeded().matches("] goes on\n").count(), 2, "{ended:#?}");
}

thread_local! {
    static KEPT: RefCell<Option<SharedArray<u64>>> = const { RefCell::new(None) };
}

/// A handle that can be reached from everywhere is refused where somebody has a slice.
fn kept_in_a_thread_local(job: &Job) {
    fn put(job: &Job, i: usize) -> bool {
        // Rust itself says that somebody has it.
        let put = |kept: &Option<SharedArray<u64>>| kept.as_ref().unwrap().put(i, u64::from(job.rank().0) + 100);
        KEPT.with(|kept| kept.try_borrow().map(|kept| put(&kept)).is_ok())
    }
    KEPT.set(Some(job.array::<u64>(Layout::per_rank(1)).unwrap()));
    job.barrier();
    assert!(job.rpc(job.neighbor(1), put, job.rank().index()).wait());
    job.barrier();
    KEPT.with_borrow_mut(|kept| {
        kept.as_mut().unwrap().own(|mine| {
            assert_eq!(mine[0], u64::from(job.neighbor(1).0) + 100);
            mine[0] = 7;
            job.barrier();
            assert!(!job.rpc(job.neighbor(1), put, job.rank().index()).wait());
            job.barrier();
            assert_eq!(mine[0], 7);
        });
    });
    KEPT.take();
    job.println("goes on");
}

/// A handle that outlives its job.
fn after_the_job(case: &str) {
    partage::run(|job| {
        let mut a = job.array::<u64>(Layout::per_rank(8)).unwrap();
        a.own(|mine| mine.fill(7));
        KEPT.set(Some(a));
    });
    match case {
        "nothing" => return,
        "own" => _ = KEPT.with_borrow_mut(|a| a.as_mut().map(|a| a.own(|_| println!("inside")))), // @dead
        _ => {}
    }
    // What is old reaches what was its own, or says that the job is over.
    KEPT.with_borrow(|kept| {
        let a = kept.as_ref().unwrap();
        for i in 0..a.len() {
            let ways: [&dyn Fn(); 6] = [
                &|| assert!([7, 8].contains(&a.get(i))),
                &|| a.put(i, 8),
                &|| _ = a.at(i).load(),
                &|| a.fill(i.., 8),
                &|| drop(a.fetch(i..)),
                &|| drop(a.store(i, vec![8])),
            ];
            for way in ways {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(way)) {
                    let text = payload.downcast_ref::<String>().unwrap();
                    assert!(text.contains("the job is over"), "{text}");
                }
            }
        }
    });
    partage::run(|job| {
        let mut new = job.array::<u64>(Layout::per_rank(8)).unwrap();
        new.own(|mine| mine.fill(1));
        // The thread of a rank that is not a process's first is another one than before.
        let mut old = KEPT.take();
        match (case, &mut old) {
            // An array of another job has no business here, whatever its number.
            ("phase", Some(old)) => job.phase(old.owned(), |_| inside(job)), // @old
            ("phase", None) => job.phase(new.owned(), |_| inside(job)),
            _ => {}
        }
        drop(old);
        assert!(new.my_indices().all(|i| new.get(i) == 1), "an old handle reaches a new array");
        still_works(job);
        job.println("goes on");
    });
}

#[test]
fn handles_in_thread_locals() {
    for mapping in EVERY {
        goes_on(job(mapping, "kept in a thread-local"));
        goes_on(job(mapping, "after: use"));
        job(mapping, "after: nothing").end().succeeded();
    }
    for mapping in EVERY {
        let ended = job(mapping, "after: phase").end();
        ended.failed_soon(101, &["phase: ", "another job", &at!("old")]);
        assert!(!ended.out.contains("inside"), "{ended:#?}");
    }
    // Where an access would have to wait for others, it says that the job is over.
    let far = |start: Start| {
        let ended = start.end();
        assert!(ended.code == 0 && ended.out.matches("] goes on\n").count() == 4, "{ended:#?}");
        assert!(ended.err.contains(": the job is over"), "{ended:#?}");
    };
    far(job(Processes, "after: use").env("PARTAGE_REFERENCE", "1"));
    match libfabric() {
        Ok(_) => far(job(Processes, "after: use").env("PARTAGE_NODE", "process")),
        Err(why) => skipped(&why),
    }
    // A phase has nobody to meet.
    for mapping in EVERY {
        let ended = job(mapping, "after: own").end();
        assert!(ended.code != 0 && !ended.out.contains("inside"), "{ended:#?}");
        assert!(
            ended.out.contains("phase: the job is over") || ended.err.contains("phase: the job is over"),
            "{ended:#?}"
        );
    }
}

/// The last rank sleeps where the others wait for it.
fn parked(job: &Job, case: &str) {
    let [mut a, mut b] = [0; 2].map(|_| job.array::<u64>(8).unwrap());
    let late = job.rank().0 == 3;
    let sleep = || std::thread::sleep(Duration::from_secs(if late { 60 } else { 0 }));
    match case {
        "entry" | "making" if late => sleep(),
        "entry" => a.own(|_| inside(job)),                            // @entry
        "exit" => a.own(|_| sleep()),                                 // @exit
        "nested" => a.own(|_| job.phase((b.frozen(),), |_| sleep())), // @nested exit
        _ => drop(job.array::<u64>(100)),                             // @making
    }
}

#[test]
fn a_rank_that_is_killed_while_others_wait() {
    let cases = [
        ("entry", "phase", at!("entry")),
        ("exit", "the end of a phase", at!("exit")),
        ("nested", "the end of a phase", at!("nested exit")),
        ("making", "array", at!("making")),
    ];
    for mapping in LAUNCHED {
        for (case, call, place) in &cases {
            for of_those_who_wait in [true, false] {
                let running = job(mapping, case).start();
                running.report_says(|text| text.contains(&format!("ranks 0-2  waiting in {call} at {place}")));
                let children = running.children();
                let victim = if of_those_who_wait { children[0] } else { children[children.len() - 1] };
                kill(victim, libc::SIGKILL);
                let killed = Moment::now();
                let ended = running.wait();
                assert!(killed.elapsed() < SOON, "{case}: {:?}", killed.elapsed());
                let line = ended.failed(137, &[&format!("(pid {victim})"), "killed by SIGKILL"]);
                let who = mapping.process_of(if of_those_who_wait { 0 } else { 3 });
                assert!(line.starts_with(&format!("partage: {who} on ")), "{line}");
                if of_those_who_wait {
                    assert!(line.contains(&format!("in {call} at {place}")), "{line}");
                }
                assert!(!ended.out.contains("inside"), "{ended:#?}");
            }
        }
    }
}
