//! Every kernel, small, as threads, as processes and as a mix of both; on the reference path; and between processes that
//! share no memory. A program whose result its rule refuses ends with an error.

use partage_boot::Spec;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

const GUPS: &str = env!("CARGO_BIN_EXE_gups");
const STUDY: &str = env!("CARGO_BIN_EXE_study");
/// A plane and a space whose points no number of ranks divides evenly, and little of everything else.
const PLANE: [&str; 11] =
    ["--grid", "13", "--rounds", "2", "--steps", "3", "--iterations", "5", "--doubles", "16", "--json"];
const SPACE: [&str; 12] =
    ["--dims", "3", "--grid", "5", "--rounds", "2", "--steps", "2", "--iterations", "4", "--doubles", "2"];

/// As `cargo run` does; what it prints.
fn plainly(program: &str, args: &[&str], ranks: usize) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(args).env("PARTAGE_RANKS", ranks.to_string()).env("PARTAGE_TIMEOUT", "120");
    let output = command.env("PARTAGE_LEAKS", "1").env("RUST_BACKTRACE", "0").output().unwrap();
    assert!(!output.status.success() || output.stderr.is_empty(), "{program} as {ranks} threads: {output:?}");
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// As `partage run` does.
fn launched(program: &str, args: &[&str], ranks: usize, procs: usize, settings: &[(&str, &str)]) {
    let mut spec = Spec::new(program, ranks);
    spec.args = args.iter().map(Into::into).collect();
    spec.procs = procs;
    spec.env.push(("RUST_BACKTRACE".into(), "0".into()));
    spec.env.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    spec.timeout = Some(Duration::from_secs(120));
    spec.quiet_output = true;
    let ended = partage::launcher::launch(&spec).unwrap();
    assert_eq!(ended.code, 0, "{program} {args:?}, {ranks} ranks in {procs} processes, {settings:?}: {:?}", ended.why);
}

#[test]
fn gups_as_threads() {
    let (passes, text) = plainly(GUPS, &["-m", "14"], 3);
    let lines: Vec<&str> = text.lines().collect();
    assert!(passes && lines.len() == 3 && lines.iter().all(|line| line.ends_with(": passes")), "{text}");
    assert!(lines[0].starts_with("Plain: ") && lines[1].starts_with("Atomic: "), "{text}");
    assert!(lines[1..].iter().all(|line| line.contains(" (65536 updates of 16384 words in ")), "{text}");
    assert!(lines[1..].iter().all(|line| line.ends_with(" s), 0 words wrong: passes")), "{text}");
    assert!(!plainly(GUPS, &["-m", "40"], 1).0);
}

#[test]
fn gups_as_processes() {
    for (ranks, procs) in [(1, 1), (4, 4), (5, 2), (7, 3)] {
        launched(GUPS, &["-m", "14"], ranks, procs, &[]);
    }
}

/// More of them are under way here, and so more of those that are not atomic are lost: of a table that is small.
#[test]
fn gups_on_the_reference_path() {
    launched(GUPS, &["-m", "13"], 3, 2, &[("PARTAGE_REFERENCE", "1")]);
}

#[test]
fn gups_between_nodes() {
    match partage_conduit::ofi::endpoint::Endpoint::version() {
        Ok(_) => {
            launched(GUPS, &["-m", "13"], 2, 2, &[("PARTAGE_NODE", "process")]);
            launched(GUPS, &["-m", "12", "--variant", "batched"], 5, 2, &[("PARTAGE_NODE", "process")]);
        }
        // Past the harness, which would keep it.
        Err(why) => _ = writeln!(std::io::stderr(), "\nSKIPPED: no libfabric: {why}"),
    }
}

#[test]
fn study_as_threads() {
    let (passes, text) = plainly(STUDY, &PLANE, 3);
    let of = |part: &str| text.lines().filter(|line| line.starts_with(&format!("{{\"part\": \"{part}\", "))).count();
    assert!(passes && (of("products"), of("cg"), of("trees"), text.lines().count()) == (5, 5, 5, 15), "{text}");
    let has = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!((has("\"wrong\": 0}"), has("\"differ\": 0, "), has("\"sync\": \"put_signal\"")), (10, 5, 1), "{text}");
    assert!(text.lines().all(|line| line.ends_with('}') && line.matches('"').count() % 2 == 0), "{text}");

    let (passes, text) = plainly(STUDY, &SPACE, 2);
    assert!(passes && text.contains("y = A x: 27-point stencil, 5 x 5 x 5, 2 ranks, 2 rounds of 2 products"), "{text}");
    assert!(
        text.matches("0 values wrong").count() == 2 && text.contains("; 0 values differ between variants"),
        "{text}"
    );
    assert!(text.contains("\nput_signal / barrier, synchronous communication: "), "{text}");
    let (passes, text) = plainly(STUDY, &["--part", "trees", "--doubles", "1", "--rounds", "1"], 1);
    assert!(passes && text.starts_with("trees: 1 ranks") && !text.contains("y = A x"), "{text}");
    assert!(!plainly(STUDY, &["--dims", "4"], 1).0 && !plainly(STUDY, &["--grid", "0"], 1).0);
}

#[test]
fn study_as_processes() {
    for (ranks, procs) in [(1, 1), (2, 2), (3, 3), (5, 2), (7, 3)] {
        launched(STUDY, &PLANE, ranks, procs, &[]);
        launched(STUDY, &SPACE, ranks, procs, &[]);
    }
}

#[test]
fn study_on_the_reference_path() {
    launched(STUDY, &PLANE, 3, 2, &[("PARTAGE_REFERENCE", "1")]);
    launched(STUDY, &SPACE, 2, 2, &[("PARTAGE_REFERENCE", "1")]);
}

#[test]
fn study_between_nodes() {
    match partage_conduit::ofi::endpoint::Endpoint::version() {
        Ok(_) => {
            launched(STUDY, &PLANE, 2, 2, &[("PARTAGE_NODE", "process")]);
            launched(STUDY, &SPACE, 5, 3, &[("PARTAGE_NODE", "process")]);
        }
        // Past the harness, which would keep it.
        Err(why) => _ = writeln!(std::io::stderr(), "\nSKIPPED: no libfabric: {why}"),
    }
}
