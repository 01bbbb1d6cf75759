//! Teams in little memory: what they had is used again.

use partage::ErrorKind::OutOfMemory;
use partage::prelude::*;
use std::sync::Mutex;

/// Jobs of one process follow one another.
static ONE: Mutex<()> = Mutex::new(());

/// Jobs of one process follow one another.
#[test]
fn in_little_memory() {
    the_memory_of_lanes_is_used_again();
    the_memory_of_teams_is_used_again();
    the_memory_of_teams_is_used_again_by_the_job();
    a_team_for_which_there_is_no_room();
}

/// Slots that both ends have dropped make room for arrays.
fn the_memory_of_lanes_is_used_again() {
    let _one = ONE.lock();
    let ended = partage::Launch::new().ranks(2).segment(64 << 20).run(|job| {
        let to = job.outbox::<u8>(job.neighbor(1), 30 << 20, 1).unwrap();
        let from = job.inbox::<u8>(job.neighbor(1), 30 << 20, 1).unwrap();
        assert!(job.array::<u8>(Layout::per_rank(45 << 20)).is_err());
        drop((to, from));
        job.quiet();
        job.barrier();
        assert!(job.array::<u8>(Layout::per_rank(45 << 20)).is_ok());
        assert_eq!((job.neighbor(i64::MAX), job.neighbor(i64::MIN)), (job.neighbor(1), job.rank()));
    });
    ended.unwrap();
}

/// The object of a team's member is reached by members only: another team may have one of the same number.
#[test]
fn objects_of_teams_are_their_own() {
    let _one = ONE.lock();
    partage::test(4, |job| {
        let team = job.split(job.rank().index() / 2);
        let d = team.dist(u64::from(job.rank().0));
        let other = Rank((job.rank().0 + 2) % 4);
        for tell in [false, true] {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match tell {
                false => d.rpc(other, |x, ()| *x = 99, ()).wait(),
                true => d.tell(other, |x, ()| *x = 99, ()),
            }));
            let why = refused.expect_err("it is no member").downcast::<String>().unwrap();
            assert!(why.contains("is no member of the team of this Dist<u64>"), "{why}");
        }
        let mate = Rank(job.rank().0 ^ 1);
        assert_eq!(d.rpc(mate, |x, ()| *x, ()).wait(), u64::from(mate.0));
        job.quiet();
        job.barrier();
    });
}

/// So many at a time would not fit, and one after the other do.
fn the_memory_of_teams_is_used_again() {
    let _one = ONE.lock();
    let ended = partage::Launch::new().ranks(4).segment(8 << 20).run(|job| {
        for round in 0..200usize {
            let team = job.split((job.rank().index() + round) % 3 % 2);
            let a = team.array::<u64>(Layout::per_rank(1000)).unwrap();
            a.cells().set(999, 1);
            team.barrier();
            assert_eq!(a.get(a.len() - 1), 1);
            if round % 7 == 0 {
                // It lives longer than the others.
                let kept = job.split(0);
                drop(team);
                kept.barrier();
            }
        }
    });
    ended.unwrap();
}

/// No other team is made; an array of the job has room in memory that was a team's.
fn the_memory_of_teams_is_used_again_by_the_job() {
    let _one = ONE.lock();
    let shared = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    partage::test(2, |job| {
        let team = job.split(0);
        let mut a = team.array::<u8>(Layout::per_rank(64 << 20)).unwrap();
        a.own(|mine| mine.fill(1));
        job.barrier();
        let with = shared();
        assert!(with >= 128, "{with} MiB");
        drop((a, team));
        (0..2).for_each(|_| drop(job.array::<u64>(100).unwrap()));
        job.barrier();
        assert!(shared() + 100 < with, "{} of {with} MiB", shared());
    });
}

/// One that does not fit is an error, or a panic, on all members alike; those that there are go on.
fn a_team_for_which_there_is_no_room() {
    let _one = ONE.lock();
    let said = partage::Launch::new().ranks(3).segment(4 << 20).run(|job| {
        let team = job.split(0);
        let error = team.array::<u8>(Layout::per_rank(5 << 20)).unwrap_err();
        assert_eq!(error.kind(), OutOfMemory);
        assert_eq!(team.value(job.rank().0).gather_all(), [0, 1, 2]);
        let fill = team.array::<u8>(Layout::on(1, 3 << 20)).unwrap();
        let mut held = vec![];
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loop {
                held.push(job.split(0));
            }
        }));
        assert!(!held.is_empty() && made.is_err());
        assert_eq!(held[0].value(job.rank().0).gather_all(), [0, 1, 2]);
        drop((held, fill));
        job.barrier();
        // There is room again.
        job.split(0).barrier();
        made.err().and_then(|why| why.downcast_ref::<String>().cloned()).unwrap_or_default()
    });
    let said = said.unwrap();
    assert!(format!("{said:?}").contains("for a team of 3: "), "{said:?}");
}
