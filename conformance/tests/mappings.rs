//! The suite under 1, 2, 3, 4, 7 and 16 ranks, each in every split into processes.

use partage_boot::Spec;
use std::time::Duration;

fn every_split(ranks: usize) {
    for procs in 1..=ranks {
        let mut spec = Spec::new(env!("CARGO_BIN_EXE_partage-conformance"), ranks);
        spec.procs = procs;
        // Some cases panic on purpose and catch it.
        spec.env.push(("RUST_BACKTRACE".into(), "0".into()));
        spec.timeout = Some(Duration::from_secs(120));
        let ended = partage::launcher::launch(&spec).unwrap();
        assert_eq!(ended.code, 0, "{ranks} ranks in {procs} processes: {:?}", ended.why);
    }
}

#[test]
fn one_rank() {
    every_split(1);
}

#[test]
fn two_ranks() {
    every_split(2);
}

#[test]
fn three_ranks() {
    every_split(3);
}

#[test]
fn four_ranks() {
    every_split(4);
}

#[test]
fn seven_ranks() {
    every_split(7);
}

#[test]
fn sixteen_ranks() {
    every_split(16);
}
