//! Signals that are misused, waited for in vain, or waited for from ranks that die: one line each.

mod common;

use common::*;
use partage::prelude::*;
use partage::signal::Flavor;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let flavor = Flavor { single_producer: case == "two producers", ..Default::default() };
        let come = job.semaphore_with(flavor).unwrap();
        let all = job.alloc_all::<Signal>(1).unwrap();
        let block = job.alloc_all::<u64>(10).unwrap();
        all.put(job, come.signal());
        job.barrier();
        let theirs = |r: u32| all.on(Rank(r)).get(job);
        match (case.as_str(), me) {
            ("two producers", 1) => {
                job.post(theirs(0));
                job.quiet();
                job.barrier();
            }
            ("two producers", 3) => {
                job.barrier();
                job.post(theirs(0)); // @second
                job.quiet();
            }
            ("two producers", _) => job.barrier(),
            ("too many", 2) => {
                job.post_n(theirs(1), i32::MAX as u32);
                job.post(theirs(1)); // @many
                job.quiet();
            }
            ("never made", 1) => {
                let bits: u64 = partage::bytemuck::cast(theirs(2));
                job.post(partage::bytemuck::cast(bits + 5)); // @never
                job.quiet();
            }
            ("other rank", 1) => block.on(Rank(2)).put_signal(job, &[1], theirs(3), 1), // @other
            ("outside", 1) => block.on(Rank(2)).add(1 << 40).put_signal(job, &[1], theirs(2), 1), // @outside
            ("called", 1) => {
                job.rpc(Rank(2), |job, ()| job.semaphore().unwrap().wait(), ()).wait() // @called
            }
            ("all of them", 2) => {
                let all: Vec<_> = (0..1 << 18).map_while(|_| job.semaphore().ok()).collect();
                let why = job.semaphore().unwrap_err();
                assert_eq!(all.len(), (1 << 18) - 1);
                panic!("{why}"); // @all
            }
            ("waiting" | "killed", 1) => {
                job.println("ready");
                job.wait_until(|| false);
            }
            ("waiting" | "killed", _) => {
                come.wait_n(3); // @waiting
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
            ("too many", &["rank 2", "post: semaphore 0 of rank 1: more than 2147483647 posts wait", &at!("many")][..]),
            ("never made", &["rank 1", "post: semaphore 0 of rank 2: there never was such a", &at!("never")]),
            ("other rank", &["rank 1", "is on rank 2, the semaphore on rank 3; both must be on one", &at!("other")]),
            ("outside", &["rank 1", "put_signal: 8 bytes at offset 0x", "lie outside its segment", &at!("outside")]),
            ("called", &["rank 2", "wait in a function that was called by rpc or tell"]),
            ("all of them", &["rank 2", "semaphore: a rank has 262144 at most"]),
        ] {
            job(mapping, case).end().failed_soon(101, parts);
        }
        if cfg!(debug_assertions) {
            let second = &at!("second");
            let parts = ["rank 3", "post: semaphore 0 of rank 0: rank 1 is the one producer of this semaphore", second];
            job(mapping, "two producers").end().failed_soon(101, &parts);
        }
    }
    // Found out by the rank that has the semaphore.
    for (case, parts) in [
        ("too many", &["rank 1: a signal from rank 2: more than 2147483647 posts wait"][..]),
        ("never made", &["rank 2: a signal from rank 1: there never was such a semaphore"]),
        ("other rank", &["rank 1", "both must be on one", &at!("other")]),
        ("outside", &["rank 1", "put_signal: 8 bytes at offset 0x", "lie outside its segment", &at!("outside")]),
    ] {
        job(Hybrid, case).env("PARTAGE_REFERENCE", "1").end().failed_soon(101, parts);
    }
    if cfg!(debug_assertions) {
        let parts = ["rank 0: a signal from rank 3: rank 1 is the one producer of this semaphore"];
        job(Hybrid, "two producers").env("PARTAGE_REFERENCE", "1").end().failed_soon(101, &parts);
    }
}

#[test]
fn waiting_in_vain_is_reported() {
    let waiting = at!("waiting");
    for mapping in EVERY {
        let running = job(mapping, "waiting").start();
        running.report_says(|text| {
            let line = text.lines().find(|line| line.starts_with("  ranks 0,2-3  waiting in wait_n at "));
            line.is_some_and(|line| line.contains(&waiting) && line.contains("for 3 of semaphore 0, which has 0"))
        });
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait().code, 143);
    }
}

#[test]
fn a_producer_that_dies_ends_the_job() {
    for mapping in LAUNCHED {
        let running = job(mapping, "killed").start();
        running.out_says(|text| text.contains("ready"));
        let victim = running.children()[if mapping == Hybrid { 0 } else { 1 }];
        kill(victim, libc::SIGKILL);
        let process = mapping.process_of(if mapping == Hybrid { 0 } else { 1 });
        running.wait().failed_soon(137, &[&process, "killed"]);
    }
}
