//! Mistakes of programs and of those who start them: one line each.

mod common;

use common::*;
use partage::{ErrorKind, Launch};
use std::time::Duration;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    if case == "beside a job" {
        beside_a_job();
        return;
    }
    partage::run(|job| {
        let me = job.rank().0;
        match (case.as_str(), me) {
            ("values", 2) => job.barrier_with(8),           // @eight
            ("values", _) => job.barrier_with(7),           // @seven
            ("sizes", 2) => drop(job.alloc_all::<u64>(10)), // @ten
            ("sizes", _) => drop(job.alloc_all::<u64>(5)),  // @five
            ("calls", 3) => job.barrier(),                  // @plain
            ("calls", _) => drop(job.alloc_all::<u64>(5)),  // @alloc
            ("frees", _) => {
                let blocks = [job.alloc_all::<u64>(1).unwrap(), job.alloc_all::<u64>(1).unwrap()];
                job.free_all(blocks[usize::from(me == 1)]); // @free
            }
            ("value and end", 0) => return,
            ("value and end", _) => job.barrier_with(3), // @three
            ("job in a job", 1) => partage::run(|_| {}),
            ("launch in a job", _) => {
                let error = Launch::new().ranks(2).run(|_| ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Start);
                assert!(error.to_string().contains(&format!("rank {me} is in a job already")), "{error}");
                let error = Launch::new().ranks(2).procs(2).run(|_| ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Start);
            }
            ("test in a job", 2) => drop(partage::test(2, |_| ())),
            _ => {}
        }
        job.barrier();
        if case == "launch in a job" {
            job.println("goes on");
        }
    });
}

/// A second job, from a thread that is no rank.
fn beside_a_job() {
    partage::run(|job| {
        if job.rank().0 == 0 {
            let other = std::thread::spawn(|| Launch::new().ranks(2).run(|_| ()).unwrap_err().kind());
            assert_eq!(other.join().unwrap(), ErrorKind::Start);
        }
        job.barrier();
    });
    // After it, another one may be.
    partage::run(|job| job.barrier());
}

/// The same line, whoever says it and however ranks are laid out.
fn disagreement(case: &str, parts: &[&str]) {
    let mut lines = vec![];
    for mapping in EVERY {
        let ended = job(mapping, case).end();
        lines.push(ended.failed_soon(101, parts).to_string());
    }
    lines.dedup();
    assert!(lines.len() == 1 && lines[0].starts_with("partage: the ranks disagree: "), "{lines:#?}");
}

#[test]
fn values_that_differ() {
    disagreement("values", &["rank 0 ", "rank 2 ", "value 7", "value 8", &at!("seven"), &at!("eight")]);
}

#[test]
fn a_value_against_the_end() {
    disagreement("value and end", &["rank 0 ", "rank 1 ", "value 3", "the end of its program", &at!("three")]);
}

#[test]
fn allocations_that_differ() {
    disagreement("sizes", &["rank 0 ", "rank 2 ", "40 bytes", "80 bytes", &at!("five"), &at!("ten")]);
}

#[test]
fn calls_that_differ() {
    disagreement("calls", &["rank 0 ", "rank 3 ", "alloc_all of 40 bytes", "barrier", &at!("alloc"), &at!("plain")]);
}

#[test]
fn frees_that_differ() {
    disagreement("frees", &["rank 0 ", "rank 1 ", "free_all", &at!("free")]);
}

#[test]
fn a_job_in_a_job() {
    for mapping in EVERY {
        let ended = job(mapping, "job in a job").end();
        ended.failed_soon(1, &["rank 1", "is in a job already"]);
        let ended = job(mapping, "test in a job").end();
        ended.failed_soon(101, &["rank 2", "a job cannot be started inside a job"]);
        let ended = job(mapping, "launch in a job").end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
        job(mapping, "beside a job").end().succeeded();
    }
}

#[test]
fn impossible_jobs() {
    let directory = Directory::new("programs");
    let file = directory.0.join("not-executable");
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, says) in [
        (&["-n", "0", "true"][..], "-n 0: a job has at least one rank"),
        (&["-n", "4", "--procs", "0", "true"], "at least one process"),
        (&["--procs", "0", "true"], "at least one"),
        (&["-n", "4", "--procs", "5", "true"], "5 processes for 4 ranks"),
        (&["-n", "4", "/no/such/program"], "`/no/such/program` does not exist"),
        (&["-n", "4", "no-such-program"], "`no-such-program` is not in any directory of PATH"),
        (&["-n", "4", file], "is not executable"),
        (&["-n", "4", directory.0.to_str().unwrap()], "is a directory"),
    ] {
        let ended = run(args).end();
        ended.failed_soon(2, &[says]);
        assert_eq!(ended.out, "");
    }
    // What the command line itself is wrong about, clap says.
    for args in [&["-n", "-3", "true"][..], &["-n", "many", "true"], &["-n", "2"], &["--timeout", "-1", "true"]] {
        let ended = run(args).end();
        assert!(ended.code == 2 && ended.err.starts_with("error: "), "{ended:#?}");
    }
}

#[test]
fn launchers_that_we_cannot_speak_to() {
    let open_mpi = |start: Start| start.env("OMPI_COMM_WORLD_SIZE", "4").env("OMPI_COMM_WORLD_RANK", "0");
    let ended = open_mpi(job(Threads, "")).end();
    assert_ne!(ended.code, 0);
    let line = ended.line();
    assert!(line.starts_with("partage: ") && line.contains("Open MPI"), "{line}");
    open_mpi(job(Threads, "")).env("PARTAGE_BOOT", "alone").end().succeeded();
    // Inside our own job it does not matter where that was started.
    open_mpi(job(Processes, "")).end().succeeded();
}

#[test]
fn different_binaries() {
    let directory = Directory::new("binaries");
    let (ours, theirs) = (this_program(), partage());
    let wrapper = |name: &str, ours_if: &str| {
        let text = format!(
            "#!/bin/sh\nif [ {ours_if} ]; then exec {} --exact ranks --nocapture; fi\n\
             exec {theirs} demo-rank x 16 1 /dev/null\n",
            ours.display()
        );
        directory.script(name, &text)
    };
    let refused = |start: Start, expect: &str, soon: Duration| {
        let ended = start.env("CASE", "").end();
        assert_ne!(ended.code, 0);
        let line = ended.line();
        assert!(line.starts_with("partage: ") && line.contains(expect), "{line}");
        assert!(ended.took < soon, "{ended:#?}");
    };
    let host = String::from_utf8(std::process::Command::new("hostname").output().unwrap().stdout).unwrap();
    let host = host.trim();
    let by_rank = wrapper("by-rank", "$PMI_RANK = 0");
    for n in ["2", "5"] {
        let expect = format!("process 0 (on {host}) and process 1 (on {host}) run different binaries");
        refused(run(&["-n", n]).arg(&by_rank), &expect, SOON);
    }
    // Hosts on which the same name is another file; the remote shell only pretends to go there.
    let by_host = wrapper("by-host", "$PARTAGE_NODE = a");
    let rsh = directory.script("rsh", "#!/bin/sh\nshift; exec \"$@\"\n");
    for (n, second) in [("2", 1), ("5", 3)] {
        let expect = format!("process 0 (on a) and process {second} (on b) run different binaries");
        refused(run(&["--hosts", "a,b", "-n", n, "--rsh"]).arg(&rsh).arg(&by_host), &expect, SOON_ACROSS);
    }
}

#[test]
fn settings() {
    for mapping in EVERY {
        let ended = job(mapping, "").env("PARTAGE_FOO", "1").env("PARTAGE_RANK", "4").end();
        assert_eq!(ended.code, 0, "{ended:#?}");
        let count = |text: &str| ended.err.matches(text).count();
        assert_eq!((count("there is no setting PARTAGE_FOO;"), count("there is no setting PARTAGE_RANK;")), (1, 1));
        assert!(ended.err.contains("did you mean PARTAGE_RANKS?"), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 2);
        for (name, value) in [("PARTAGE_SEGMENT", "abc"), ("PARTAGE_WAIT", "spin"), ("PARTAGE_HANG_AFTER", "x")] {
            let ended = job(mapping, "").env(name, value).end();
            // `partage run` notices before it starts anything.
            let code = if matches!(mapping, Threads) { 1 } else { 2 };
            ended.failed_soon(code, &[&format!("{name}={value}: must be ")]);
        }
    }
    let ended = job(Threads, "").env("PARTAGE_RANKS", "0").end();
    ended.failed_soon(1, &["PARTAGE_RANKS=0: must be "]);
}
