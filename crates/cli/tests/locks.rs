//! Locks that are misused, kept, or held by ranks that die: one line each, and who has them.

mod common;

use common::*;
use partage::prelude::*;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let locks = job.mutexes::<u64>(Layout::cyclic(8)).unwrap();
        let told = job.alloc_all::<MutexPtr<u64>>(1).unwrap();
        told.put(job, job.alloc_mutex(7).unwrap());
        job.barrier();
        let theirs = told.on(job.neighbor(1)).get(job);
        match (case.as_str(), me) {
            ("index", 1) => drop(locks.lock(8)), // @index
            ("again", 2) => {
                let _first = locks.lock(5); // @first
                let _second = locks.lock(5); // @second
            }
            ("again by pointer", 2) => {
                let _first = theirs.lock(job); // @held
                let _second = theirs.lock(job); // @relocked
            }
            ("null", 1) => drop(MutexPtr::<u64>::NULL.lock(job)), // @null
            ("called", 1) => job.rpc(Rank(2), |job, p: MutexPtr<u64>| _ = p.lock(job), theirs).wait(), // @called
            ("freed twice", 3) => {
                let _held = theirs.lock(job);
                theirs.free(job);
                theirs.free(job); // @twice
            }
            ("different", 1) => drop(job.array::<u64>(5)),
            ("different", _) => drop(job.mutexes::<u64>(5)), // @different
            ("freed", 0) => {
                let held = told.on(Rank(3)).get(job).lock(job);
                job.barrier();
                job.wait_until(|| told.on(Rank(0)).get(job).is_null());
                drop(held);
            }
            ("freed", 1) => {
                job.barrier();
                drop(told.on(Rank(3)).get(job).lock(job)); // @freed
            }
            ("freed", 2) => {
                job.barrier();
                job.free_mutex(told.on(Rank(3)).get(job));
                told.on(Rank(0)).put(job, MutexPtr::NULL);
            }
            ("freed", _) => job.barrier(),
            ("kept" | "killed", 1) => {
                std::mem::forget(locks.lock(6)); // @kept
                job.barrier();
                if case == "killed" {
                    job.println("ready");
                    job.wait_until(|| false);
                }
            }
            ("kept" | "killed", _) => {
                job.barrier();
                drop(locks.lock(6)); // @wanted
            }
            _ => {}
        }
        job.barrier();
    });
}

#[test]
fn mistakes() {
    for mapping in EVERY {
        for (case, parts) in [
            ("index", &["rank 1", "lock: there is no lock 8 among 8", &at!("index")][..]),
            ("again", &["rank 2", "lock: this rank has lock 5 since ", &at!("first"), &at!("second")]),
            ("again by pointer", &["rank 2", "lock: this rank has lock 0x", &at!("held"), &at!("relocked")]),
            ("null", &["rank 1", "lock: the pointer is null", &at!("null")]),
            ("called", &["rank 2", "lock in a function that was called by rpc or tell"]),
            ("freed twice", &["rank 3", "free_mutex: lock 0x", "was freed already", &at!("twice")]),
            ("different", &["the ranks disagree: ", "(mutexes at ", &at!("different")]),
            ("freed", &["rank 1", "lock: lock 0x", "was freed", &at!("freed")]),
        ] {
            job(mapping, case).end().failed_soon(101, parts);
            // Without the word at hand, the home finds it out.
            if mapping == Hybrid {
                job(mapping, case).env("PARTAGE_REFERENCE", "1").end().failed_soon(101, parts);
            }
        }
    }
}

#[test]
fn a_lock_that_is_kept_is_reported_with_its_holder() {
    let said = |when: &'static str| {
        let (wanted, kept) = (at!("wanted"), at!("kept"));
        move |text: &str| {
            let line = text.lines().find(|line| line.starts_with("  ranks 0,2-3  waiting in lock at "));
            line.is_some_and(|line| {
                let held = line.split_once(", for lock 6 held by rank 1 since ");
                held.is_some_and(|(at, since)| at.contains(&wanted) && since.starts_with(&kept) && since.contains(when))
            })
        }
    };
    for mapping in EVERY {
        let running = job(mapping, "kept").start();
        running.report_says(said(""));
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait().code, 143);
    }
    let running = job(Hybrid, "kept").env("PARTAGE_REFERENCE", "1").start();
    running.report_says(said(" when it asked"));
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait().code, 143);
}

#[test]
fn a_rank_that_dies_with_a_lock_ends_the_job() {
    for mapping in LAUNCHED {
        let running = job(mapping, "killed").start();
        running.out_says(|text| text.contains("ready"));
        running.report_says(|text| text.contains("for lock 6 held by rank 1 since "));
        let victim = running.children()[if mapping == Hybrid { 0 } else { 1 }];
        kill(victim, libc::SIGKILL);
        let ended = running.wait();
        assert_eq!(ended.code, 137, "{ended:#?}");
        let named = |line: &&str| line.contains(&format!("(pid {victim}) ")) && line.contains("killed by SIGKILL");
        assert!(ended.said().iter().any(named), "{ended:#?}");
    }
}
