//! The suite under 1, 2, 3, 4, 7 and 16 ranks, each in every split into processes; and on the reference path, where puts,
//! gets and atomics are messages, in some of them.

use partage_boot::Spec;
use std::ops::RangeInclusive;
use std::time::Duration;

fn suite(ranks: usize, procs: usize, settings: &[(&str, &str)]) {
    let mut spec = Spec::new(env!("CARGO_BIN_EXE_partage-conformance"), ranks);
    spec.procs = procs;
    // Some cases panic on purpose and catch it.
    spec.env.push(("RUST_BACKTRACE".into(), "0".into()));
    spec.env.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    spec.timeout = Some(Duration::from_secs(120));
    let ended = partage::launcher::launch(&spec).unwrap();
    assert_eq!(ended.code, 0, "{ranks} ranks in {procs} processes, {settings:?}: {:?}", ended.why);
}

fn every_split(ranks: usize) {
    (1..=ranks).for_each(|procs| suite(ranks, procs, &[]));
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

/// Of many splits that are much alike, some have the large floods.
fn sixteen_ranks(splits: RangeInclusive<usize>) {
    for procs in splits {
        let settings: &[_] = if [1, 5, 16].contains(&procs) { &[] } else { &[("SCALE", "0.25")] };
        suite(16, procs, settings);
    }
}

#[test]
fn sixteen_ranks_in_up_to_eight_processes() {
    sixteen_ranks(1..=8);
}

#[test]
fn sixteen_ranks_in_more_processes() {
    sixteen_ranks(9..=16);
}

#[test]
fn reference_path() {
    for (ranks, procs) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 4), (7, 2), (7, 7), (16, 4)] {
        suite(ranks, procs, &[("PARTAGE_REFERENCE", "1"), ("SCALE", "0.25")]);
    }
}
