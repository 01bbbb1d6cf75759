//! Memory that is not there: an error where a program asks, a word where the kernel kills.

mod common;

use common::*;
use partage::ErrorKind::OutOfMemory;
use partage::Job;
use std::path::PathBuf;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        match case.as_str() {
            "segment" => segment(job),
            "machine" => machine(job),
            "one without room" => one_without_room(job),
            "private" => private(job),
            "group" => group(job),
            "group, all at once" => group_all_at_once(job),
            _ => unreachable!(),
        }
        // The job goes on as if nothing had been.
        let cell = job.alloc_all::<u64>(1).unwrap();
        cell.on(job.neighbor(1)).put(job, 7);
        job.barrier();
        assert_eq!(cell.get(job), 7);
        job.println("goes on");
    });
}

#[track_caller]
fn refused<T: std::fmt::Debug>(job: &Job, result: partage::Result<T>) {
    let error = result.expect_err("this is too much");
    assert_eq!(error.kind(), OutOfMemory, "{error}");
    assert!(error.to_string().starts_with(&format!("{}: alloc", job.rank())), "{error}");
}

fn segment(job: &Job) {
    refused(job, job.alloc_slice::<u8>(16 << 20));
    refused(job, job.alloc_all::<u8>(16 << 20));
    refused(job, job.alloc_slice::<u64>(usize::MAX));
    refused(job, job.alloc_all::<u64>(usize::MAX));
    job.free(job.alloc_slice::<u8>(4 << 20).unwrap());
}

fn machine(job: &Job) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let more = (total << 10) + (1 << 30);
    refused(job, job.alloc_slice::<u8>(more));
    refused(job, job.alloc_all::<u8>(more));
    refused(job, job.alloc_slice::<u8>(1 << 50));
    refused(job, job.alloc_all::<u8>(1 << 50));
}

fn one_without_room(job: &Job) {
    let mine = (job.rank().0 == 1).then(|| job.alloc_slice::<u8>(7 << 20).unwrap());
    for _ in 0..3 {
        refused(job, job.alloc_all::<u8>(4 << 20));
    }
    if let Some(mine) = mine {
        job.free(mine);
    }
    let all = job.alloc_all::<u8>(4 << 20).unwrap();
    job.free_all(all);
}

/// Rank 2 takes more than the group has.
fn private(job: &Job) {
    if job.rank().0 == 2 {
        let mut all = vec![];
        for _ in 0..64 {
            all.push(std::hint::black_box(vec![1u8; 16 << 20]));
        }
        panic!("{} MiB were given", 16 * all.len());
    }
    job.barrier();
}

fn group(job: &Job) {
    if job.rank().0 == 1 {
        refused(job, job.alloc_slice::<u8>(300 << 20));
        // Piece by piece.
        let mut blocks = vec![];
        let error = loop {
            match job.alloc_slice::<u8>(16 << 20) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), OutOfMemory);
        assert!(blocks.len() >= 4 && blocks.len() < 16, "{} blocks", blocks.len());
        blocks.into_iter().for_each(|block| job.free(block));
    }
    job.barrier();
    refused(job, job.alloc_all::<u8>(300 << 20));
}

/// What one could have, all cannot: 4 times 100 MiB in a group of 256.
fn group_all_at_once(job: &Job) {
    for _ in 0..5 {
        refused(job, job.alloc_all::<u8>(100 << 20));
    }
}

#[test]
fn a_segment_that_is_too_small() {
    for mapping in EVERY {
        let ended = job(mapping, "segment").env("PARTAGE_SEGMENT", "8M").end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
    }
}

#[test]
fn more_than_the_machine_has() {
    for mapping in EVERY {
        let ended = job(mapping, "machine").end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
    }
}

#[test]
fn one_rank_without_room() {
    for mapping in EVERY {
        let ended = job(mapping, "one without room").env("PARTAGE_SEGMENT", "8M").end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
    }
}

/// A control group of 256 MiB.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("partage-test-{}", unique());
        let mut refusals = vec![];
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ] {
            let group = Group(PathBuf::from(root).join(&name));
            if let Err(e) = std::fs::create_dir(&group.0) {
                refusals.push(format!("{root}: {e}"));
                continue;
            }
            // In a directory that is no control group nothing is written.
            if !group.0.join(limit).exists() || !group.0.join("cgroup.procs").exists() {
                refusals.push(format!("{root}: has no {limit}"));
                continue;
            }
            match std::fs::write(group.0.join(limit), "268435456") {
                Ok(()) => {
                    // Swap would only put it off.
                    let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
                    return Some(group);
                }
                Err(e) => refusals.push(format!("{root}: {e}")),
            }
        }
        skipped(&format!("no memory control group can be made: {}", refusals.join(", ")));
        None
    }

    /// The job, in the group.
    fn start(&self, mapping: Mapping, case: &str) -> Start {
        let script = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        let inner = job(mapping, case);
        let mut start = program("sh").args(["-c", script]).arg(&self.0);
        start = start.arg(inner.command.get_program()).args(inner.command.get_args());
        start.env("CASE", case).env("PARTAGE_RANKS", "4")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn in_a_control_group() {
    let Some(control) = Group::new() else { return };
    for mapping in LAUNCHED {
        let ended = control.start(mapping, "private").end();
        let line = ended.failed(137, &["killed by the kernel: out of memory"]);
        assert!(line.starts_with(&format!("partage: {} on ", mapping.process_of(2))), "{line}");
    }
    for mapping in EVERY {
        let ended = control.start(mapping, "group").end();
        assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
    }
}

#[test]
fn all_at_once_in_a_control_group() {
    let Some(control) = Group::new() else { return };
    for mapping in EVERY {
        for _ in 0..3 {
            let ended = control.start(mapping, "group, all at once").end();
            assert_eq!(ended.succeeded().matches("] goes on\n").count(), 4);
        }
    }
}
