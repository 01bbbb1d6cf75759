//! Mailboxes and threads beside ranks that wait in vain, or for ranks that die: it is said where, and nobody waits on.

mod common;

use common::*;
use partage::prelude::*;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let mailbox = job.mailbox::<u64>(1).unwrap();
        let all = job.alloc_all::<Address<u64>>(1).unwrap();
        all.put(job, mailbox.address());
        job.barrier();
        let theirs = |r: u32| all.on(Rank(r)).get(job);
        match (case.as_str(), me) {
            ("dropped", 0) => {
                drop(mailbox);
                job.barrier();
            }
            ("dropped", 1) => {
                job.barrier();
                theirs(0).send(job, 1); // @dropped
            }
            ("dropped", _) => job.barrier(),
            ("null", 1) => Address::NULL.send(job, 1u64), // @null
            ("size", 1) => {
                let other: Address<u32> = partage::bytemuck::cast(theirs(2));
                other.send(job, 1); // @size
            }
            ("full" | "full and killed", 1) => {
                job.println("ready");
                job.wait_until(|| false);
            }
            ("full" | "full and killed", _) => loop {
                theirs(1).send(job, 1); // @full
            },
            ("empty" | "empty and killed", 1) => {
                job.println("ready");
                job.wait_until(|| false);
            }
            ("empty" | "empty and killed", _) => _ = mailbox.receive(), // @empty
            ("thread", 1) => {
                let remote = job.remote();
                let thread = std::thread::spawn(move || remote.post(Signal::NULL)); // @thread
                job.wait_until(|| thread.is_finished());
                thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
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
            ("dropped", &["rank 1", "send: mailbox 0 of rank 0 was dropped; ", &at!("dropped")][..]),
            ("null", &["rank 1", "send: the address is null", &at!("null")]),
            ("size", &["rank 1", "send: a value of 4 bytes, and mailbox 0 of rank 2 is for values of 8", &at!("size")]),
        ] {
            job(mapping, case).end().failed_soon(101, parts);
            if mapping == Hybrid {
                job(mapping, case).env("PARTAGE_REFERENCE", "1").end().failed_soon(101, parts);
            }
        }
        let ended = job(mapping, "thread").end();
        assert!(ended.code == 101 && ended.err.contains("rank 1: remote.post: the signal is null"), "{ended:#?}");
        assert!(ended.err.contains(&at!("thread")), "{ended:#?}");
    }
}

#[test]
fn who_waits_for_a_mailbox_is_reported() {
    for (case, words) in [("full", "waiting in send at "), ("empty", "waiting in receive at ")] {
        let said = |text: &str| {
            let line = text.lines().find(|line| line.contains(words));
            let (full, empty) = (at!("full"), at!("empty"));
            line.is_some_and(|line| match case {
                "full" => line.contains(&full) && line.contains("mailbox 0 of rank 1"),
                _ => line.contains(&empty) && line.contains(", for a value in mailbox 0 of rank "),
            })
        };
        for (mapping, reference) in [(Threads, "0"), (Processes, "0"), (Hybrid, "0"), (Hybrid, "1")] {
            let running = job(mapping, case).env("PARTAGE_REFERENCE", reference).start();
            running.report_says(said);
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
    }
}

#[test]
fn a_rank_that_dies_ends_waits_for_mailboxes() {
    for case in ["full and killed", "empty and killed"] {
        for mapping in LAUNCHED {
            let running = job(mapping, case).start();
            running.out_says(|text| text.contains("ready"));
            running.report_says(|text| text.contains("mailbox 0 of rank "));
            let victim = running.children()[if mapping == Hybrid { 0 } else { 1 }];
            kill(victim, libc::SIGKILL);
            let ended = running.wait();
            assert_eq!(ended.code, 137, "{ended:#?}");
            let named = |line: &&str| line.contains(&format!("(pid {victim}) ")) && line.contains("killed by SIGKILL");
            assert!(ended.said().iter().any(named), "{ended:#?}");
        }
    }
}
