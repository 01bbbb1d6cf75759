//! Teams that are made, used and dropped wrongly: one line each.

mod common;

use common::*;
use partage::prelude::*;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let ranks = |list: &[u32]| list.iter().map(|&r| Rank(r)).collect::<Vec<_>>();
        match (case.as_str(), me) {
            // Those that wait for each other, whoever hears of it.
            ("lists", 1) => drop(job.team(ranks(&[1, 2]))), // @shorter
            ("lists", 0 | 2) => drop(job.team(ranks(&[0, 1, 2]))), // @longer
            ("orders", 0) => drop(job.team(ranks(&[0, 1, 2, 3]))), // @forwards
            ("orders", _) => drop(job.team(ranks(&[3, 2, 1, 0]))), // @backwards
            ("outside", 2) => drop(job.team(ranks(&[0, 1]))), // @outside
            ("some", 1) | ("some of a list", 1) => job.wait_until(|| false),
            ("some", _) => drop(job.split(7)),                              // @some
            ("some of a list", 0 | 3) => drop(job.team(ranks(&[0, 1, 3]))), // @list
            ("values" | "phases" | "dropped" | "dropped, in a barrier" | "dropped, started" | "small", _) => {
                in_team(job, &case)
            }
            _ => {}
        }
        job.barrier();
    });
}

/// All but rank 0 are a team.
fn in_team(job: &Job, case: &str) {
    let Some(team) = job.subset(|r| r.0 > 0) else { return };
    let (me, mut one, mut all) = (job.rank().0, [1u64; 4], vec![]);
    let mut arrays: Vec<_> = (0..2).map(|_| team.array::<u64>(6).unwrap()).collect();
    match (case, me) {
        ("values", 2) => team.barrier_with(5),                        // @five
        ("values", _) => team.barrier_with(6),                        // @six
        ("phases", 3) => arrays[0].own(|_| job.println("inside")),    // @first
        ("phases", _) => arrays[1].freeze(|_| job.println("inside")), // @second
        ("dropped" | "dropped, in a barrier" | "dropped, started", 2) => {
            drop((team, arrays));
            return;
        }
        ("dropped", _) => team.gather_all(&one).to(&mut all).run(), // @gather_all
        ("dropped, in a barrier", _) => team.barrier(),             // @barrier
        ("dropped, started", _) => job.scope(|s| team.gather_all(&one).to(&mut all).start(s).wait()), // @started
        ("small", 3) => team.broadcast(&mut one[..2]).run(),        // @two
        ("small", _) => team.broadcast(&mut one).run(),             // @four
        _ => {}
    }
    team.barrier();
}

#[test]
fn members_that_do_not_agree() {
    for mapping in EVERY {
        let same = "all give the same list";
        let ended = job(mapping, "lists").end();
        let line = ended.failed_soon(101, &["team at ", "makes a team of ranks ", same]);
        assert!(line.contains("ranks 1, 2, rank") || line.contains("one of ranks 1, 2;"), "{line}");
        assert!(line.contains("ranks 0, 1, 2"), "{line}");
        let ended = job(mapping, "orders").end();
        let line = ended.failed_soon(101, &["ranks 0, 1, 2, 3", "ranks 3, 2, 1, 0", same]);
        assert!(line.contains(&at!("forwards")) || line.contains(&at!("backwards")), "{line}");
        let parts = ["rank 2: team: this rank is not among its members, ranks 0, 1", &at!("outside")];
        job(mapping, "outside").end().failed_soon(101, &parts);
        for (case, a, b) in [
            ("values", "rank 1 came to barrier with value 6", "rank 2 came to barrier with value 5"),
            ("phases", "a phase that freezes array 1", "rank 3 came to a phase that owns array 0"),
        ] {
            let ended = job(mapping, case).end();
            let line = ended.failed_soon(101, &["the ranks disagree, in a team of 3: ", a, b]);
            let places = if case == "values" { [at!("five"), at!("six")] } else { [at!("first"), at!("second")] };
            places.iter().for_each(|place| assert!(line.contains(place.trim_end_matches(':')), "{place}: {line}"));
        }
        let ended = job(mapping, "small").env("PARTAGE_CHECK", "1").end();
        ended.failed_soon(101, &["the ranks disagree", "rank 3", "broadcast of 16 bytes", "broadcast of 32 bytes"]);
    }
}

#[test]
fn a_team_that_a_member_has_left() {
    for mapping in EVERY {
        for (case, place) in [
            ("dropped", at!("gather_all")),
            ("dropped, in a barrier", at!("barrier")),
            ("dropped, started", at!("started")),
        ] {
            let place = place.trim_end_matches(':').to_owned();
            let parts = ["rank 2 has dropped this team already", "drop it where all members have done with it", &place];
            job(mapping, case).end().failed_soon(101, &parts);
        }
    }
}

#[test]
fn what_only_some_call_is_reported() {
    let (some, list) = (at!("some"), at!("list"));
    for mapping in [Threads, Processes, Hybrid] {
        for (case, parts) in [
            ("some", ["waiting in split at ", &some, "for rank 1 to pass its data"]),
            ("some of a list", ["waiting in team at ", &list, "a team of ranks 0, 1, 3: for "]),
        ] {
            let running = job(mapping, case).start();
            running.report_says(|text| text.lines().any(|line| parts.iter().all(|part| line.contains(part))));
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
    }
}
