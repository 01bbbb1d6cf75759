//! Collectives that do not fit together, that wait in vain, or for ranks that die: one line each.

mod common;

use common::*;
use partage::prelude::*;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let (mut one, mut all) = ([1u64; 4], vec![0u64; 16]);
        let mut array = job.array::<u64>(Layout::per_rank(4)).unwrap();
        match (case.as_str(), me) {
            ("operations", 2) => job.gather_all(&one).to(&mut all).run(), // @gather_all
            ("operations", _) => job.broadcast(&mut one).run(),           // @broadcast
            ("roots", 1) => job.broadcast(&mut one).root(TeamRank(1)).run(), // @one
            ("roots", _) => job.broadcast(&mut one).root(TeamRank(3)).run(), // @three
            ("lengths", 3) => job.gather(&one[1..]).to(&mut all).run(),   // @shorter
            ("lengths", _) => job.gather(&one).to(&mut all).run(),        // @longer
            ("nothing", 3) => job.gather_all(&one[4..]).to(&mut all).run(), // @nothing
            ("nothing", _) => job.gather_all(&one).to(&mut all).run(),    // @something
            ("algorithms", 1) => job.gather_all(&one).to(&mut all).algorithm("flat:push").run(), // @flat
            ("algorithms", _) => job.gather_all(&one).to(&mut all).algorithm("ring").run(), // @ring
            ("counts", 0) => _ = job.gather(&one).counts(&[4, 3, 4, 4]).to(&mut all).run(), // @three_counts
            ("counts", _) => _ = job.gather(&one).counts(&[4; 4]).to(&mut all).run(), // @four
            ("elements", 0) => job.exchange(&[0u32; 8]).to(&mut vec![]).run(), // @u32
            ("elements", _) => job.exchange(&[0u64; 4]).to(&mut vec![]).run(), // @u64
            ("types", 0) => job.exchange(&[0f64; 4]).to(&mut vec![]).run(), // @f64
            ("types", _) => job.exchange(&[0i64; 4]).to(&mut vec![]).run(), // @i64
            ("modes", 3) => job.broadcast(&mut array).sync(In::My, Out::All).run(), // @my
            ("modes", _) => job.broadcast(&mut array).run(),              // @all
            ("buffers", 2) => job.gather_all(&array).to(&mut all).run(),  // @shared
            ("buffers", _) => job.gather_all(&one).to(&mut all).run(),    // @private
            ("started", 1) => job.scope(|s| job.gather_all(&one).to(&mut all).start(s).wait()), // @started
            ("started", _) => job.broadcast(&mut one).run(),              // @run
            ("barriers", 2) => job.barrier(),                             // @barrier
            ("barriers", _) => job.all_reduce(&mut one, Sum).run(),       // @summed
            ("a barrier with a value", 0) => job.barrier_with(7),         // @valued
            ("a barrier with a value", _) => job.gather_all(&array).to(&mut all).run(), // @gathered
            ("ends", 3) => return,
            ("ends", _) => job.gather_all(&one).to(&mut all).run(), // @goes_on
            ("arrays", _) => {
                let mut other = job.array::<u64>(Layout::per_rank(4)).unwrap();
                let buffer = if me == 2 { &mut other } else { &mut array };
                job.broadcast(buffer).run(); // @arrays
            }
            ("elements of an array", _) => {
                let dealt = job.array::<u64>(Layout::cyclic(16)).unwrap();
                let half = if me == 1 { 8..16 } else { 0..8 };
                job.all_reduce(dealt.slice(half), Sum).to(&mut all[..2]).run(); // @halves
            }
            ("functions", 2) => job.all_reduce(&mut one, Max).run(), // @max
            ("functions", _) => job.all_reduce(&mut one, Sum).run(), // @sum
            ("prefixes", 1) => job.prefix_reduce(&mut one, Sum).exclusive().run(), // @exclusive
            ("prefixes", _) => job.prefix_reduce(&mut one, Sum).run(), // @inclusive
            ("a function that panics", _) => {
                let mut one = [u64::from(me); 4];
                let f = |x: u64, y: u64| if y == 3 { panic!("three is too many") } else { x + y }; // @function
                job.scope(|s| drop(job.all_reduce(&mut one, Ordered(f)).start(s)));
            }
            ("twice", _) => job.permute(&one, TeamRank(me / 2)).to(&mut all).run(), // @twice
            ("small", 3) => job.gather_all(&one).to(&mut all[..15]).run(),          // @small
            ("small", _) => job.gather_all(&one).to(&mut all).run(),
            ("named, counted", _) => {
                job.gather_all(&one).algorithm("flat").counts(&[4; 4]).to(&mut all).run(); // @named
            }
            ("called", 1) => job.rpc(Rank(2), |job, ()| job.broadcast(&mut [0u8; 9]).run(), ()).wait(), // @called
            ("never" | "never, started" | "never, reduced" | "never, posted" | "killed" | "killed, started", 1) => {
                job.println("ready");
                job.wait_until(|| false);
            }
            ("never" | "killed", _) => job.broadcast(&mut one).root(TeamRank(1)).run(), // @never
            ("never, reduced", _) => assert_eq!(job.value(1).sum(), 4),                 // @never_reduced
            // Its root posts as many letters as it may before somebody must have come.
            ("never, posted", _) => (0..1000).for_each(|_| {
                let word = job.broadcast(&mut one).root(TeamRank(2)).sync(In::My, Out::My);
                word.algorithm("flat:post").run() // @never_posted
            }),
            ("never, started" | "killed, started", _) => job.scope(|s| {
                let event = job.gather_all(&array).to(&mut all).sync(In::All, Out::My).start(s); // @never_started
                event.wait();
            }),
            // Others have begun with it, and with more.
            ("panics", 2) => panic!("not today"), // @panics
            ("panics", _) => job.scope(|s| {
                let first = job.exchange(&array).to(&mut all[..4]).start(s);
                drop(job.broadcast(&mut one).root(TeamRank(3)).start(s));
                first.wait();
            }),
            _ => {}
        }
        job.barrier();
    });
}

/// The two places without the column, as they are said.
fn said_at(place: String) -> String {
    format!("({})", place.trim_end_matches(':'))
}

#[test]
fn calls_that_differ() {
    let both = |a, b| [said_at(a), said_at(b)];
    for (case, parts, places) in [
        ("operations", ["broadcast of 32 bytes", "gather_all of 32 bytes"], both(at!("gather_all"), at!("broadcast"))),
        ("roots", ["root 1", "root 3"], both(at!("one"), at!("three"))),
        ("lengths", ["gather of 24 bytes", "gather of 32 bytes"], both(at!("shorter"), at!("longer"))),
        ("nothing", ["gather_all of 0 bytes", "gather_all of 32 bytes"], both(at!("nothing"), at!("something"))),
        ("algorithms", ["gather_all of 32 bytes", "different algorithms"], both(at!("flat"), at!("ring"))),
        ("counts", ["gather of 0 bytes", "algorithms, or counts"], both(at!("three_counts"), at!("four"))),
        ("elements", ["4 an element", "8 an element"], both(at!("u32"), at!("u64"))),
        ("types", ["exchange of 8 bytes", "different types or operations"], both(at!("f64"), at!("i64"))),
        ("modes", ["My/All", "All/All"], both(at!("my"), at!("all"))),
        ("buffers", ["shared to private", "private to private"], both(at!("shared"), at!("private"))),
        ("arrays", ["shared to shared", "kinds of buffers, or arrays"], both(at!("arrays"), at!("arrays"))),
        ("elements of an array", ["all_reduce of ", "or elements of them"], both(at!("halves"), at!("halves"))),
        ("functions", ["all_reduce of 32 bytes", "different types or operations"], both(at!("max"), at!("sum"))),
        ("prefixes", ["exclusive", "prefix_reduce of 32 bytes"], both(at!("exclusive"), at!("inclusive"))),
        ("started", ["broadcast of 32 bytes", "gather_all of 32 bytes"], both(at!("started"), at!("run"))),
        (
            "barriers",
            ["rank 2 came to barrier", "the same calls in the same order"],
            both(at!("barrier"), at!("summed")),
        ),
        (
            "a barrier with a value",
            ["rank 0 came to barrier", "to gather_all of 32 bytes"],
            both(at!("valued"), at!("gathered")),
        ),
    ] {
        for mapping in EVERY {
            let ended = job(mapping, case).env("PARTAGE_CHECK", "1").end();
            let line = ended.failed_soon(101, &["partage: the ranks disagree: rank ", " came to "]);
            parts.iter().for_each(|part| assert!(line.contains(part), "{line}"));
            places.iter().for_each(|place| assert!(line.contains(place.as_str()), "`{place}` is not in {line}"));
        }
    }
}

/// The others may find out first that a rank will not come.
#[test]
fn a_rank_that_has_ended() {
    for mapping in EVERY {
        let ended = job(mapping, "ends").env("PARTAGE_CHECK", "1").end();
        ended.failed_soon(101, &["rank 3 ", "the end of the program", &said_at(at!("goes_on"))]);
    }
}

#[test]
fn mistakes() {
    let place = said_at(at!("twice"));
    for mapping in EVERY {
        let ended = job(mapping, "twice").env("PARTAGE_CHECK", "1").end();
        let line = ended.failed_soon(101, &["permute", "to rank ", "no two may send to one", &place]);
        assert!(line.contains("rank 0 came") == line.contains("rank 1 "), "{line}");
        job(mapping, "small").end().failed_soon(
            101,
            &[
                "rank 3",
                "gather_all: the destination has 15 elements, and 16 pass (4 blocks of 4): 1 are missing",
                &at!("small"),
            ],
        );
        let ended = job(mapping, "named, counted").end();
        ended.failed_soon(101, &["rank ", "gather_all: with blocks of different lengths no algorithm", &at!("named")]);
        job(mapping, "called")
            .end()
            .failed_soon(101, &["rank 2", "broadcast in a function that was called", &at!("called")]);
        let ended = job(mapping, "a function that panics").end();
        ended.failed_soon(101, &["rank ", "three is too many", &at!("function")]);
        job(mapping, "panics").end().failed_soon(101, &["rank 2", "not today", &at!("panics")]);
    }
}

#[test]
fn a_rank_that_never_comes_is_reported() {
    let (never, started, reduced) = (at!("never"), at!("never_started"), at!("never_reduced"));
    let posted = at!("never_posted");
    for (mapping, reference) in [(Threads, "0"), (Processes, "0"), (Hybrid, "0"), (Hybrid, "1")] {
        for (case, parts) in [
            ("never", ["waiting in broadcast at ", &never, "root 1", "for rank 1 to pass its data"]),
            ("never, started", ["waiting in gather_all at ", &started, "step 2 of ", "for all ranks to enter"]),
            ("never, reduced", ["waiting in all_reduce at ", &reduced, "step ", "for rank "]),
            ("never, posted", ["waiting in broadcast at ", &posted, "flat:post, step ", "for rank 1 to enter"]),
        ] {
            // Letters are posted where all share memory.
            if case == "never, posted" && reference == "1" {
                continue;
            }
            let running = job(mapping, case).env("PARTAGE_REFERENCE", reference).start();
            running.report_says(|text| text.lines().any(|line| parts.iter().all(|part| line.contains(*part))));
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
    }
}

#[test]
fn a_rank_that_dies_ends_collectives() {
    for case in ["killed", "killed, started"] {
        for mapping in LAUNCHED {
            let running = job(mapping, case).start();
            running.out_says(|text| text.contains("ready"));
            running
                .report_says(|text| text.contains("waiting in broadcast ") || text.contains("waiting in gather_all "));
            let victim = running.children()[if mapping == Hybrid { 0 } else { 1 }];
            let killed = Moment::now();
            kill(victim, libc::SIGKILL);
            let ended = running.wait();
            assert!(ended.code == 137 && killed.elapsed() < SOON, "{ended:#?}");
            let named = |line: &&str| line.contains(&format!("(pid {victim}) ")) && line.contains("killed by SIGKILL");
            assert!(ended.said().iter().any(named), "{ended:#?}");
        }
    }
}
