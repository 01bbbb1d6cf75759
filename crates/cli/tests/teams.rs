//! Teams that are made, used and dropped wrongly: one line each.

mod common;

use common::*;
use partage::prelude::*;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let ranks = |list: &[u32]| list.iter().map(|&r| Rank(r)).collect::<Vec<_>>();
        if case.starts_with("alone: ") {
            return alone(job, &case);
        }
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
            ("late", _) => late(job),
            ("idle", _) => idle(job),
            ("values" | "phases" | "dropped" | "dropped, in a barrier" | "dropped, started" | "small", _) => {
                in_team(job, &case)
            }
            _ => {}
        }
        job.barrier();
    });
}

/// Some wait for others, who wait elsewhere.
fn alone(job: &Job, case: &str) {
    let (me, two) = (job.rank().0, [Rank(1), Rank(2)]);
    if case.contains("list") {
        if me == 0 {
            drop(job.team([Rank(0), Rank(1), Rank(2)])); // @three
        } else if me < 3 {
            job.team(two).barrier();
        }
    } else if me != 1 {
        drop(job.split(7)); // @split
    } else if case.contains("making") {
        drop(job.team(two)); // @pair
    }
    if !case.contains("end") {
        job.barrier(); // @meets
    }
}

/// All is right, but somebody is always so late that the others tell each other where they wait.
fn late(job: &Job) {
    let me = job.rank().0;
    let is_late = |who: u32| std::thread::sleep(Duration::from_millis(if me == who { 400 } else { 0 }));
    let two = || [Rank(0), Rank(1)];
    is_late(0);
    let all = job.split(0);
    // Rank 0 waits here, and knows that others have waited for it there.
    is_late(1);
    job.barrier();
    is_late(1);
    if me < 2 {
        drop(job.team(two()));
    }
    is_late(2);
    job.barrier();
    if me == 1 {
        // It waits for rank 0, which waits for all, but not for this one.
        let there = job.notify(None);
        drop(all.team(two()));
        there.wait(None);
    } else {
        is_late(2);
        job.barrier();
        if me == 0 {
            drop(all.team(two()));
        }
    }
    job.println("goes on");
}

/// Two make teams and use them, while the others call nothing at all.
fn idle(job: &Job) {
    let (me, members) = (job.rank().0, [0, 3]);
    let done = |r: &u32| PathBuf::from(std::env::var_os("FOLDER").unwrap()).join(r.to_string());
    if members.contains(&me) {
        for round in 0..10 {
            let team = job.subset(|m| members.contains(&m.0)).unwrap();
            assert_eq!(team.value(me + round).gather_all(), [round, 3 + round]);
            let mut a = team.array::<u32>(Layout::per_rank(2)).unwrap();
            a.own(|mine| mine.fill(me + round));
            assert_eq!([a.get(0), a.get(3)], [round, 3 + round]);
            team.barrier();
        }
        std::fs::write(done(&me), "").unwrap();
    } else {
        let begun = Instant::now();
        while !members.iter().all(|r| done(r).exists()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the team needs ranks that are not in it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    job.println("goes on");
}

/// How the ranks of a job are laid out, and whether their processes share no memory.
#[derive(Clone, Copy, Debug)]
struct Laid {
    mapping: Mapping,
    apart: bool,
}

/// All ways; says it if there is no network.
fn laid() -> Vec<Laid> {
    let mut all = EVERY.map(|mapping| Laid { mapping, apart: false }).to_vec();
    match libfabric() {
        Ok(_) => all.extend(LAUNCHED.map(|mapping| Laid { mapping, apart: true })),
        Err(why) => skipped(&why),
    }
    all
}

impl Laid {
    fn job(self, case: &str) -> Start {
        let start = job(self.mapping, case);
        if self.apart { start.env("PARTAGE_NODE", "process") } else { start }
    }

    /// It fails soon, with one line that has these in it.
    #[track_caller]
    fn fails(self, start: Start, parts: &[&str]) -> String {
        let (ended, soon) = (start.end(), if self.apart { SOON_ACROSS } else { SOON });
        assert!(ended.took < soon, "{self:?}: {ended:#?}");
        ended.failed(101, parts).to_owned()
    }

    #[track_caller]
    fn goes_on(self, start: Start) {
        let ended = start.end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4, "{self:?}: {ended:#?}");
    }
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
    for laid in laid() {
        let same = "all give the same list";
        let line = laid.fails(laid.job("lists"), &["team at ", "makes a team of ranks ", same]);
        assert!(line.contains("ranks 1, 2, rank") || line.contains("one of ranks 1, 2;"), "{line}");
        assert!(line.contains("ranks 0, 1, 2"), "{line}");
        let line = laid.fails(laid.job("orders"), &["ranks 0, 1, 2, 3", "ranks 3, 2, 1, 0", same]);
        assert!(line.contains(&at!("forwards")) || line.contains(&at!("backwards")), "{line}");
        let parts = ["rank 2: team: this rank is not among its members, ranks 0, 1", &at!("outside")];
        laid.fails(laid.job("outside"), &parts);
        for (case, a, b) in [
            ("values", "rank 1 came to barrier with value 6", "rank 2 came to barrier with value 5"),
            ("phases", "a phase that freezes array 1", "rank 3 came to a phase that owns array 0"),
        ] {
            let line = laid.fails(laid.job(case), &["the ranks disagree, in a team of 3: ", a, b]);
            let places = if case == "values" { [at!("five"), at!("six")] } else { [at!("first"), at!("second")] };
            places.iter().for_each(|place| assert!(line.contains(place.trim_end_matches(':')), "{place}: {line}"));
        }
        let parts = ["the ranks disagree", "rank 3", "broadcast of 16 bytes", "broadcast of 32 bytes"];
        laid.fails(laid.job("small").env("PARTAGE_CHECK", "1"), &parts);
    }
}

#[test]
fn a_team_that_a_member_has_left() {
    for laid in laid() {
        for (case, place) in [
            ("dropped", at!("gather_all")),
            ("dropped, in a barrier", at!("barrier")),
            ("dropped, started", at!("started")),
        ] {
            let place = place.trim_end_matches(':').to_owned();
            let parts = ["rank 2 has dropped this team already", "drop it where all members have done with it", &place];
            laid.fails(laid.job(case), &parts);
        }
    }
}

/// Those who wait elsewhere for all, or for one of those who wait for them, say so.
#[test]
fn what_only_some_call_while_others_wait_for_them() {
    let (split, three) = (format!("waits for this rank in split at {}", at!("split")), at!("three"));
    let three = format!("rank 0 waits for this rank in team at {three}");
    let (meets, pair) = (format!(": barrier at {}", at!("meets")), format!(": team at {}", at!("pair")));
    let (end, of_all) = (": the end of the program at ", ", of ranks 0, 1, 2, 3; all of them must call it");
    let of_three = ", of ranks 0, 1, 2; all of them must call it, with the same list";
    let both = "this rank makes a team of ranks 1, 2, rank 2 splits one of ranks 0, 1, 2, 3; ";
    for laid in laid() {
        for (case, parts) in [
            ("alone: split, then a barrier", ["rank 1", &meets, &split, of_all]),
            ("alone: split, then the end", ["rank 1", end, &split, of_all]),
            ("alone: list, then a barrier", ["rank ", &meets, &three, of_three]),
            ("alone: list, then the end", ["rank ", end, &three, of_three]),
            ("alone: split, then making", ["rank 1", &pair, both, "all of them must split it"]),
        ] {
            laid.fails(laid.job(case), &parts);
        }
    }
}

#[test]
fn members_may_be_late() {
    for laid in laid() {
        laid.goes_on(laid.job("late"));
    }
}

#[test]
fn others_than_members_need_not_do_anything() {
    for laid in laid() {
        let folder = Directory::new("teams");
        laid.goes_on(laid.job("idle").env("FOLDER", &folder.0));
    }
}

#[test]
fn what_only_some_call_is_reported() {
    let (some, list) = (at!("some"), at!("list"));
    for laid in laid() {
        // Between nodes others pass the data on.
        let what = if laid.apart { "(" } else { "for rank 1 to pass its data" };
        for (case, parts) in [
            ("some", ["waiting in split at ", &some, what]),
            ("some of a list", ["waiting in team at ", &list, "a team of ranks 0, 1, 3: for "]),
        ] {
            let running = laid.job(case).start();
            running.report_says(|text| text.lines().any(|line| parts.iter().all(|part| line.contains(part))));
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
    }
}
