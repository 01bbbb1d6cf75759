//! Where the ranks are: asked for, after a time, at the end of all time. And what `partage` shows about itself.

mod common;

use common::*;
use partage::Job;
use std::time::Duration;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        if case == "started" {
            return started(job);
        }
        if job.rank().0 == 3 {
            let time = if case == "late" { Duration::from_secs(6) } else { Duration::from_secs(60) };
            std::thread::sleep(time);
        }
        job.barrier(); // @barrier
    });
}

/// Rank 3 does not gather; rank 2 waits for what it has started, the others for something else meanwhile.
fn started(job: &Job) {
    let (mine, mut all) = ([1u64; 100], vec![]);
    let never = job.semaphore().unwrap();
    if job.rank().0 < 3 {
        job.scope(|s| {
            let gathering = job.gather_all(&mine).to(&mut all).start(s); // @gather
            if job.rank().0 == 2 {
                gathering.wait();
            }
            never.wait(); // @never
        });
    }
    job.barrier();
}

/// Others may wait for what a rank has started and waits for nowhere.
#[test]
fn a_report_of_what_was_started() {
    let (waits, gather) = (at!("never"), at!("gather"));
    for mapping in EVERY {
        let running = job(mapping, "started").start();
        running.report_says(|text| {
            let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
            text.contains(&format!("\n  rank 2  waiting in gather_all at {gather}"))
                && lines(&format!("at {waits}")) >= 1
                && lines(&format!("; has started gather_all at {gather}")) == lines(&format!("at {waits}"))
                && text.contains("for rank 3 to enter)")
        });
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait().code, 143);
    }
}

/// What says how soon a job ends goes on, and not faster than the clock.
#[test]
fn moments_pass() {
    let (begun, tenth) = (Moment::now(), Duration::from_millis(100));
    while begun.elapsed() < tenth {
        std::thread::sleep(Duration::from_millis(1));
        assert!(begun.wall() < Duration::from_secs(60), "{begun:?}");
    }
    // A tick may have begun before.
    assert!(begun.wall() > tenth.mul_f64(0.8), "{begun:?}");
}

fn is_report(text: &str) -> bool {
    text.contains("partage: where the 4 ranks are (3 waiting):\n")
        && text.contains(&format!("\n  ranks 0-2  waiting in barrier at {}", at!("barrier")))
        && text.contains("\n  rank 3     computing\n")
}

#[test]
fn a_job_that_hangs_for_a_while() {
    for mapping in EVERY {
        let start = match mapping {
            Threads => job(mapping, "late"),
            Processes => run(&["-n", "4", "--hang-after", "2"]).arg(this_program()).args(RANKS).env("CASE", "late"),
            Hybrid => run(&["-n", "4", "--procs", "2", "--hang-after", "2"])
                .arg(this_program())
                .args(RANKS)
                .env("CASE", "late"),
        };
        let running = start.env("PARTAGE_HANG_AFTER", "2").start();
        running.err_says(is_report);
        let after = running.begun.wall();
        assert!(after > Duration::from_secs(2), "after {after:?}");
        let ended = running.wait();
        assert_eq!(ended.code, 0);
        assert_eq!(ended.err.matches("where the 4 ranks are").count(), 1, "{}", ended.err);
    }
}

#[test]
fn a_report_on_demand() {
    for mapping in EVERY {
        let running = job(mapping, "hang").start();
        running.report_says(is_report);
        // The job goes on.
        running.report_says(is_report);
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait().code, 143);
    }
}

#[test]
fn a_time_limit() {
    for mapping in EVERY {
        let start = match mapping {
            // By then all have come to where they wait.
            Threads => job(mapping, "hang").env("PARTAGE_TIMEOUT", "4"),
            Processes => run(&["-n", "4", "--timeout", "4"]).arg(this_program()).args(RANKS).env("CASE", "hang"),
            Hybrid => {
                run(&["-n", "4", "--procs", "2", "--timeout", "4"]).arg(this_program()).args(RANKS).env("CASE", "hang")
            }
        };
        let ended = start.end();
        let limit = Duration::from_secs(4);
        assert!(ended.wall > limit && ended.took < limit + SOON, "{ended:#?}");
        ended.failed(124, &["did not end within 4 s"]);
        assert!(is_report(&ended.err), "{}", ended.err);
    }
}

#[test]
fn a_program_that_says_nothing() {
    let ended = run(&["-n", "2", "--timeout", "1", "sleep", "60"]).end();
    ended.failed(124, &["did not end within 1 s"]);
    assert!(ended.err.contains("ranks 0-1  starting"), "{}", ended.err);
}

#[test]
fn info() {
    let ended = program(partage()).arg("info").env("PARTAGE_HANG_AFTER", "17").end();
    let out = ended.succeeded();
    for setting in partage::settings::all() {
        assert!(out.contains(setting.name), "{} is not in {out}", setting.name);
    }
    let given = out.lines().find(|line| line.contains("PARTAGE_HANG_AFTER")).unwrap();
    assert!(given.contains("17") && given.contains("environment"), "{given}");
}

#[test]
fn demo() {
    let ended = program(partage()).args(["demo", "-n", "3", "--size", "32", "--steps", "20"]).end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert_eq!(ended.out.matches("equal to the last bit").count(), 3, "{}", ended.out);
}
