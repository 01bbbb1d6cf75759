//! Every kernel, small, as threads, as processes and as a mix of both; on the reference path; and between processes that
//! share no memory. A program whose result its rule refuses ends with an error.

use partage_boot::Spec;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

const GUPS: &str = env!("CARGO_BIN_EXE_gups");

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
