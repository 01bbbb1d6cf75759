//! Every example as threads, as processes and as a mix of both, with odd numbers of ranks too; on the reference path; and
//! between processes that share no memory.

use partage_boot::Spec;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

macro_rules! examples {
    ($($name:ident)+) => {
        const NAMES: &[&str] = &[$(stringify!($name)),+];
        $(
            #[test]
            fn $name() {
                every_way(env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
            }
        )+
    };
}
examples! { hello heat histogram transpose halo list_tree hashtable hashtable_cas overlap events work_queue ring pipeline cg mailbox consumers matrix sample_sort compaction pi_teams }

fn every_way(program: &str) {
    plainly(program, 3);
    for (ranks, procs) in [(1, 1), (5, 1), (3, 3), (5, 2), (7, 3), (4, 4)] {
        launched(program, ranks, procs, &[]);
    }
    launched(program, 3, 2, &[("PARTAGE_REFERENCE", "1")]);
    match partage_conduit::ofi::endpoint::Endpoint::version() {
        Ok(_) => {
            launched(program, 3, 3, &[("PARTAGE_NODE", "process")]);
            launched(program, 5, 2, &[("PARTAGE_NODE", "process")]);
        }
        // Past the harness, which would keep it.
        Err(why) => _ = writeln!(std::io::stderr(), "\nSKIPPED: no libfabric: {why}"),
    }
}

/// As `cargo run` does; nothing may be left allocated.
fn plainly(program: &str, ranks: usize) {
    let mut command = Command::new(program);
    command
        .env("PARTAGE_LEAKS", "1")
        .env("PARTAGE_RANKS", ranks.to_string())
        .env("PARTAGE_TIMEOUT", "120")
        .env("RUST_BACKTRACE", "0");
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{program} as {ranks} threads: {output:?}");
}

/// As `partage run` does.
fn launched(program: &str, ranks: usize, procs: usize, settings: &[(&str, &str)]) {
    let mut spec = Spec::new(program, ranks);
    spec.procs = procs;
    spec.env.push(("RUST_BACKTRACE".into(), "0".into()));
    spec.env.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    spec.timeout = Some(Duration::from_secs(600));
    spec.quiet_output = true;
    let ended = partage::launcher::launch(&spec).unwrap();
    assert_eq!(ended.code, 0, "{program}, {ranks} ranks in {procs} processes, {settings:?}: {:?}", ended.why);
}

#[test]
fn none_is_left_out() {
    let directory = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let files = directory.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<_> = files.filter_map(|file| file.strip_suffix(".rs").map(str::to_owned)).collect();
    assert_eq!(names, NAMES.iter().map(|name| name.to_string()).collect());
}
