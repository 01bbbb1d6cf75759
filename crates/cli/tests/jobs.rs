//! Jobs that go well: input, output, signals, other launchers, small containers, unit tests.

mod common;

use common::*;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    if case == "signals" {
        catch_usr1();
    }
    partage::run(|job| {
        let me = job.rank().0;
        match case.as_str() {
            "work" => {
                let cell = job.alloc_all::<u64>(1 << 20).unwrap();
                cell.on(job.neighbor(1)).put(job, me.into());
                job.barrier();
                assert_eq!(cell.get(job), job.neighbor(-1).0.into());
                job.println("worked");
            }
            "stdin" => {
                // One after the other: ranks of one process have one input.
                for turn in job.ranks() {
                    if turn == job.rank() {
                        let text = std::io::read_to_string(std::io::stdin()).unwrap();
                        job.println(format!("read {text:?}"));
                    }
                    job.barrier();
                }
            }
            "lines" => {
                let line = format!("line of rank {me}");
                println!("{line}");
                eprintln!("error of rank {me}");
            }
            "signals" => {
                job.barrier();
                if me == 0 {
                    job.println("ready");
                }
                while !HEARD.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                job.barrier();
                job.println("heard");
            }
            "panic" if me == 2 => panic!("rank two has had enough"), // @panic
            "sleep" | "compute" => {
                job.barrier();
                if me == 0 {
                    job.println("ready");
                }
                let begun = Instant::now();
                while case == "compute" && begun.elapsed() < Duration::from_secs(60) {
                    std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
                }
                if me == 3 {
                    std::thread::sleep(Duration::from_secs(60));
                }
            }
            _ => {}
        }
        job.barrier();
    });
}

static HEARD: AtomicBool = AtomicBool::new(false);

fn catch_usr1() {
    extern "C" fn heard(_: i32) {
        HEARD.store(true, Relaxed);
    }
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGUSR1, heard as *const () as libc::sighandler_t) };
}

/// Four ranks have worked.
#[track_caller]
fn worked(ended: &Ended) {
    assert_eq!(ended.succeeded().matches("] worked\n").count(), 4, "{ended:#?}");
}

#[test]
fn every_mapping_works() {
    for mapping in EVERY {
        worked(&job(mapping, "work").end());
    }
    let ended = run(&["-n", "7", "--procs", "3", "--bind", "core"]).arg(this_program()).args(RANKS);
    assert_eq!(ended.env("CASE", "work").end().succeeded().matches("] worked\n").count(), 7);
}

#[test]
fn through_a_shell() {
    let script = r#""$0" "$@"; exit $?"#;
    for options in [&["-n", "4"][..], &["-n", "4", "--procs", "2"]] {
        let start = run(options).args(["sh", "-c", script]).arg(this_program()).args(RANKS);
        worked(&start.env("CASE", "work").end());
    }
}

#[test]
fn input_goes_to_rank_zero() {
    for mapping in EVERY {
        let (read, mut write) = std::io::pipe().unwrap();
        let mut start = job(mapping, "stdin");
        start.command.stdin(Stdio::from(read));
        let running = start.start();
        write.write_all(b"two\nlines\n").unwrap();
        drop(write);
        let ended = running.wait();
        let out = ended.succeeded();
        assert!(out.contains(r#"[0] read "two\nlines\n""#), "{out}");
        assert_eq!(out.matches(r#"read """#).count(), 3, "{out}");
    }
}

#[test]
fn labels() {
    let program = this_program();
    for (options, labels) in [
        (&["-n", "4", "--label"][..], ["[0] ", "[3] "]),
        (&["-n", "4", "--procs", "2", "--label"], ["[0-1] ", "[2-3] "]),
    ] {
        let ended = run(options).arg(&program).args(RANKS).env("CASE", "lines").end();
        assert_eq!(ended.code, 0);
        for (rank, label) in [(0, labels[0]), (3, labels[1])] {
            // The harness says `test ranks ...` without an end of line first.
            let of = |text: &str, what: &str| {
                let end = format!("{what} of rank {rank}");
                text.lines().any(|line| line.starts_with(label) && line.ends_with(&end))
            };
            assert!(of(&ended.out, "line") && of(&ended.err, "error"), "{ended:#?}");
        }
        assert!(ended.out.lines().chain(ended.err.lines()).all(|line| line.starts_with('[')), "{ended:#?}");
    }
}

#[test]
fn other_programs() {
    let host = String::from_utf8(Command::new("hostname").output().unwrap().stdout).unwrap();
    let ended = run(&["-n", "4", "hostname"]).end();
    assert_eq!(ended.succeeded(), host.repeat(4));
    let ended = run(&["-n", "3", "sh", "-c", "exit 0"]).end();
    ended.succeeded();
    let ended = run(&["-n", "4", "--procs", "2", "sh", "-c", "echo $PMI_RANK of $PMI_SIZE"]).end();
    let mut lines: Vec<&str> = ended.succeeded().lines().collect();
    lines.sort();
    assert_eq!(lines, ["0 of 2", "1 of 2"]);
}

#[test]
fn signals_end_the_job() {
    for mapping in LAUNCHED {
        for case in ["sleep", "compute"] {
            for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
                if signal == libc::SIGHUP && ignores_hang_ups() {
                    skipped("hang-ups are ignored here (nohup), and so by jobs");
                    continue;
                }
                let running = job(mapping, case).start();
                running.out_says(|text| text.contains("ready"));
                running.signal(signal);
                let sent = Moment::now();
                let ended = running.wait();
                assert!(sent.elapsed() < SOON);
                ended.failed(code, &["interrupted by SIG"]);
            }
        }
    }
}

#[test]
fn signals_are_passed_on() {
    for mapping in EVERY {
        let running = job(mapping, "signals").start();
        running.out_says(|text| text.contains("ready"));
        running.signal(libc::SIGUSR1);
        assert_eq!(running.wait().succeeded().matches("] heard\n").count(), 4);
    }
}

#[test]
fn mpirun() {
    if !installed("mpirun.mpich") {
        return skipped("mpirun.mpich is not installed");
    }
    let mpirun = |case: &str| {
        let start = program("mpirun.mpich").args(["-n", "4"]).arg(this_program()).args(RANKS);
        // Its proxies live on for a moment.
        start.env("CASE", case).start().wait_with(SOON)
    };
    worked(&mpirun("work"));
    let ended = mpirun("panic");
    assert_ne!(ended.code, 0);
    assert!(ended.took < SOON, "{ended:#?}");
    let said: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("partage: ")).collect();
    assert_eq!(said.len(), 1, "{ended:#?}");
    assert!(said[0].starts_with("partage: rank 2 on ") && said[0].contains("rank two has had enough"), "{ended:#?}");
    assert!(said[0].contains(&at!("panic")), "{ended:#?}");
    // Two ranks in each process.
    let start = program("mpirun.mpich").args(["-n", "2"]).arg(this_program()).args(RANKS);
    worked(&start.env("CASE", "work").env("PARTAGE_THREADS", "2").start().wait_with(SOON));
}

/// Programs where anyone may run them.
fn public() -> Directory {
    let directory = Directory::new("public");
    allow(&directory.0, 0o755);
    for (from, to) in [(Path::new(partage()), "partage"), (&this_program(), "ranks")] {
        std::fs::copy(from, directory.0.join(to)).unwrap();
        allow(&directory.0.join(to), 0o755);
    }
    directory
}

/// Every mapping, each started through these words, in a directory with copies of the programs.
fn everywhere(words: &[&str]) {
    let directory = public();
    let [launcher, ranks] = ["partage", "ranks"].map(|name| directory.0.join(name));
    for options in [None, Some(&["-n", "4"][..]), Some(&["-n", "4", "--procs", "2"])] {
        let mut start = program(words[0]).args(&words[1..]);
        start.command.current_dir(&directory.0);
        start = match options {
            None => start.env("PARTAGE_RANKS", "4"),
            Some(options) => start.arg(&launcher).arg("run").args(options),
        };
        worked(&start.arg(&ranks).args(RANKS).env("CASE", "work").end());
    }
}

/// Can this be done here? It must end with success.
fn possible(words: &[&str]) -> bool {
    let done = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let possible = done.as_ref().is_ok_and(|output| output.status.success());
    if !possible {
        skipped(&format!("`{}` is not possible: {done:?}", words.join(" ")));
    }
    possible
}

#[test]
fn as_nobody() {
    let words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    if possible(&[&words[..], &["true"]].concat()) {
        everywhere(&words);
    }
}

#[test]
fn as_nobody_without_namespaces() {
    let words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"];
    let no_namespaces = ["--bounding-set=-all", "--inh-caps=-all"];
    if possible(&[&words[..], &no_namespaces, &["true"]].concat()) {
        everywhere(&[&words[..], &no_namespaces].concat());
    }
}

#[test]
fn as_root_without_rights() {
    let words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    if possible(&[&words[..], &["true"]].concat()) {
        everywhere(&words);
    }
}

#[test]
fn in_a_namespace_of_processes() {
    let words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if possible(&[&words[..], &["true"]].concat()) {
        everywhere(&words);
    }
}

#[test]
fn without_shared_memory_directory() {
    // In a namespace of its own, and covered, not removed: the directory below belongs to the whole machine. Nothing
    // can be made there.
    let script = r#"mount -t tmpfs -o ro,size=4k none /dev/shm && ! touch /dev/shm/x 2>/dev/null && exec "$@""#;
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"];
    if possible(&[&words[..], &["true"]].concat()) {
        everywhere(&words);
    }
}

#[test]
fn with_a_root_that_cannot_be_written() {
    let script = r#"mount -o remount,ro,bind / && ! touch /touched 2>/dev/null && exec "$@""#;
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"];
    if possible(&[&words[..], &["true"]].concat()) {
        everywhere(&words);
    }
}

#[test]
fn with_few_descriptors_and_a_small_stack() {
    let script = r#"ulimit -n 80 && ulimit -s 256 && exec "$@""#;
    everywhere(&["sh", "-c", script, "sh"]);
}

// The two following are what a user's unit tests look like.

#[test]
fn a_unit_test() {
    if std::env::var("CASE").is_ok_and(|case| case == "unit") {
        let ranks = partage::test(4, |job| {
            job.println(format!("pid {}", std::process::id()));
            job.barrier();
            job.rank().0
        });
        assert!(ranks.is_empty() || ranks == [0, 1, 2, 3]);
    }
}

#[test]
fn a_unit_test_that_fails() {
    if std::env::var("CASE").is_ok_and(|case| case == "unit") {
        partage::test(4, |job| {
            assert_ne!(job.rank().0, 2, "rank two is wrong"); // @assert
            job.barrier();
        });
    }
}

#[test]
fn tests_of_units() {
    for (setting, processes) in [("threads", 1), ("procs", 4), ("procs=2", 2), ("procs=9", 4)] {
        let test = |args: &[&str]| program(this_program()).args(args).env("CASE", "unit").env("PARTAGE_TEST", setting);
        let ended = test(&["--exact", "a_unit_test", "--nocapture"]).end();
        assert_eq!(ended.code, 0, "{ended:#?}");
        let pids = ended.out.lines().filter_map(|line| line.split_once("pid ")).map(|(_, pid)| pid);
        let mut pids: Vec<&str> = pids.collect();
        assert_eq!(pids.len(), 4, "{ended:#?}");
        pids.sort();
        pids.dedup();
        assert_eq!(pids.len(), processes, "{ended:#?}");

        for args in
            [&["--exact", "a_unit_test_that_fails"][..], &["a_unit_test"], &["a_unit_test", "--test-threads", "1"]]
        {
            let ended = test(args).end();
            assert_eq!(ended.code, 101, "{ended:#?}");
            assert!(ended.took < 2 * SOON);
            // In the harness's account of failures.
            let (_, account) = ended.out.split_once("a_unit_test_that_fails stdout ----").unwrap();
            assert!(account.contains("rank 2 ") && account.contains("rank two is wrong"), "{ended:#?}");
            assert!(account.contains(&at!("assert")), "{ended:#?}");
        }
    }
}
