//! Jobs that fail: what they say, with which code and how soon they end, and that nothing of them is left.

mod common;

use common::*;
use std::time::{Duration, Instant};

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| -> Result<(), String> {
        let me = job.rank().0;
        burden(job);
        match (case.as_str(), me) {
            ("panic", 2) => panic!("rank two has had enough"), // @panic
            ("panic and compute", 2) => panic!("enough"),
            ("panic and compute", _) => compute(),
            ("panic at once", _) => panic!("all at once"),
            ("error", 1) => return Err("the file is empty".into()),
            ("exit 3", 1) => std::process::exit(3),
            ("exit 0", 1) => std::process::exit(0),
            ("job exit 7", 1) => job.exit(7),
            ("job exit 0", 1) => job.exit(0),
            ("job exit 7 and compute", 1) => job.exit(7),
            ("job exit 7 and compute", _) => compute(),
            ("kill", 2) => {
                kill(std::process::id() as i32, libc::SIGKILL);
                compute();
            }
            ("kill and compute", 2) => kill(std::process::id() as i32, libc::SIGKILL),
            ("kill and compute", _) => compute(),
            ("segv", 2) => segv(),
            ("abort", 2) => std::process::abort(),
            ("parked", 3) => std::thread::sleep(Duration::from_secs(60)),
            ("early end", 1) => return Ok(()),
            ("two jobs", 1) => {
                job.barrier();
                return Ok(());
            }
            ("compute", _) => {
                job.barrier();
                if me == 0 {
                    job.println("computing");
                }
                compute();
            }
            _ => {}
        }
        job.barrier(); // @barrier
        job.barrier();
        Ok(())
    });
}

fn compute() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
    }
}

fn segv() {
    // SAFETY: none; that is the point. Nothing is mapped there.
    unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) };
}

#[test]
fn a_panic() {
    for mapping in EVERY {
        let ended = job(mapping, "panic").end();
        let line = ended.failed_soon(101, &["rank two has had enough", &at!("panic")]);
        assert!(line.starts_with("partage: rank 2 on "), "{line}");
    }
}

#[test]
fn a_panic_while_others_compute() {
    for mapping in EVERY {
        job(mapping, "panic and compute").end().failed_soon(101, &["rank 2 on ", "enough"]);
    }
}

#[test]
fn of_many_panics_one_is_said() {
    for mapping in EVERY {
        job(mapping, "panic at once").end().failed_soon(101, &["all at once"]);
    }
}

#[test]
fn an_error() {
    for mapping in EVERY {
        let ended = job(mapping, "error").end();
        let line = ended.failed_soon(1, &["the file is empty"]);
        assert!(line.starts_with("partage: rank 1 on "), "{line}");
    }
}

#[test]
fn an_exit_of_a_process() {
    for mapping in LAUNCHED {
        for (case, code) in [("exit 3", 3), ("exit 0", 1)] {
            let ended = job(mapping, case).end();
            let line = ended.failed_soon(code, &["before the job was over", &case.replace("exit", "exited with code")]);
            assert!(line.starts_with(&format!("partage: {} on ", mapping.process_of(1))), "{line}");
        }
    }
}

#[test]
fn an_exit_of_the_job() {
    for mapping in EVERY {
        for (case, code) in [("job exit 7", 7), ("job exit 0", 0), ("job exit 7 and compute", 7)] {
            let ended = job(mapping, case).end();
            assert!(ended.took < SOON, "{ended:#?}");
            assert_eq!((ended.code, ended.err.as_str()), (code, ""), "{mapping:?} {case}");
        }
    }
}

#[test]
fn deaths_by_a_signal() {
    let host = String::from_utf8(std::process::Command::new("hostname").output().unwrap().stdout).unwrap();
    for mapping in LAUNCHED {
        for (case, number, name) in [
            ("kill", libc::SIGKILL, "SIGKILL"),
            ("kill and compute", libc::SIGKILL, "SIGKILL"),
            ("segv", libc::SIGSEGV, "SIGSEGV"),
            ("abort", libc::SIGABRT, "SIGABRT"),
        ] {
            let ended = job(mapping, case).end();
            let line = ended.failed_soon(128 + number, &[&format!("killed by {name}")]);
            let who = format!("partage: {} on {} (pid ", mapping.process_of(2), host.trim());
            assert!(line.starts_with(&who), "{line}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_it_waits() {
    for mapping in LAUNCHED {
        let running = job(mapping, "parked").start();
        let barrier = at!("barrier");
        running.report_says(|text| text.contains(&format!("ranks 0-2  waiting in barrier at {barrier}")));
        let victim = running.children()[0];
        kill(victim, libc::SIGKILL);
        let killed = Moment::now();
        let ended = running.wait();
        assert!(killed.elapsed() < SOON);
        let line = ended.failed(137, &[&format!("(pid {victim})"), "killed by SIGKILL"]);
        assert!(line.starts_with(&format!("partage: {} on ", mapping.process_of(0))), "{line}");
        assert!(line.contains(&format!("in barrier at {barrier}")), "{line}");
    }
}

#[test]
fn a_rank_that_ends_early() {
    let mut lines = vec![];
    for mapping in EVERY {
        let ended = job(mapping, "early end").end();
        let line = ended.failed_soon(101, &["rank 1", "the end of its program", "barrier at ", &at!("barrier")]);
        assert!(line.contains("rank 0 ") && line.contains("rank 1 "), "{line}");
        lines.push(line.to_string());
    }
    lines.dedup();
    assert!(lines.len() == 1 && lines[0].starts_with("partage: the ranks disagree: "), "{lines:#?}");
}

#[test]
fn the_launcher_is_killed() {
    let through_a_shell = |options: &[&str]| {
        let script = r#""$0" "$@"; exit $?"#;
        run(options).args(["sh", "-c", script]).arg(this_program()).args(RANKS).env("CASE", "compute")
    };
    for start in [
        job(Processes, "compute"),
        job(Hybrid, "compute"),
        through_a_shell(&["-n", "4"]),
        through_a_shell(&["-n", "4", "--procs", "2"]),
    ] {
        let running = start.start();
        running.out_says(|text| text.contains("[0] computing"));
        running.signal(libc::SIGKILL);
        let ended = running.wait_with(SOON);
        assert_eq!(ended.code, 137);
    }
    // Asleep, too.
    for mapping in LAUNCHED {
        let running = job(mapping, "parked").start();
        running.report_says(|text| text.contains("ranks 0-2  waiting in barrier"));
        running.signal(libc::SIGKILL);
        assert_eq!(running.wait_with(SOON).code, 137);
    }
}

#[test]
fn the_code_of_the_first_failure() {
    let script = r#"[ "$PMI_RANK" = 2 ] && exit 5; sleep 60"#;
    // What the shells have started is killed with them, but nobody here is its parent and sees it gone.
    let ended = run(&["-n", "4", "sh", "-c", script]).start().wait_with(SOON);
    let line = ended.failed_soon(5, &["exited with code 5"]);
    assert!(line.starts_with("partage: rank 2 on "), "{line}");
}

/// Where the launcher's parent ignores the ends of its children, that is inherited, and the kernel would forget them.
#[test]
fn a_parent_that_ignores_its_children() {
    let ignoring = |script: &str| {
        let start = program("sh").arg("-c").arg(r#"trap '' CHLD; exec "$0" run -n 3 sh -c "$1""#).arg(partage());
        start.arg(script).start().wait_with(SOON)
    };
    assert_eq!(ignoring("exit 0").succeeded(), "");
    ignoring("exit 7").failed(7, &["exited with code 7"]);
}

/// What `nohup` has ignored is not taken for an interrupt; what a shell has ignored because it starts a job in the background, is.
#[test]
fn a_hang_up_that_is_ignored_stays_so() {
    let script = r#"trap '' HUP INT; exec "$0" run -n 2 sh -c "echo ready; sleep 2; echo done""#;
    let start = || program("sh").arg("-c").arg(script).arg(partage()).start();
    for signal in [libc::SIGHUP, libc::SIGINT] {
        let running = start();
        running.out_says(|text| text.matches("ready\n").count() == 2);
        running.signal(signal);
        let ended = running.wait_with(2 * SOON + Duration::from_secs(2));
        match signal {
            libc::SIGHUP => assert_eq!(ended.succeeded().matches("done\n").count(), 2),
            _ => _ = ended.failed(130, &["interrupted by SIGINT"]),
        }
    }
}
