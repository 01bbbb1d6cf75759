//! Threads that use a remote when its rank has come to its end, or its job was aborted: they are told, and nothing is touched.

use partage::am::Request;
use partage::prelude::*;
use partage::signal::SharedSemaphore;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::JoinHandle;

/// What a panic said.
fn said(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

/// Threads that go on until they are told.
fn threads(remote: &Remote, share: &SharedSemaphore, p: GlobalPtr<u64>) -> Vec<JoinHandle<String>> {
    let start = |go_on: fn(&Remote, &SharedSemaphore, GlobalPtr<u64>)| {
        let (remote, share) = (remote.clone(), share.clone());
        std::thread::spawn(move || {
            said(|| {
                loop {
                    go_on(&remote, &share, p)
                }
            })
        })
    };
    vec![
        start(|remote, _, p| remote.put(p, 1)),
        start(|remote, _, p| _ = remote.get(p)),
        start(|remote, share, _| remote.post_n(share.signal(), 0)),
        start(|_, share, _| share.wait()),
        start(|_, share, _| _ = share.try_wait()),
    ]
}

#[test]
fn threads_hear_of_the_end() {
    let left = Mutex::new(vec![]);
    partage::test(3, |job| {
        let work = job.semaphore().unwrap();
        let p = job.alloc_all::<u64>(1).unwrap().on(job.neighbor(1));
        let remote = job.remote();
        left.lock().unwrap().extend(threads(&remote, &work.share(), p));
        // It is not freed, so that what they hear of is the end.
        std::mem::forget(work);
        job.barrier();
    });
    for thread in left.into_inner().unwrap() {
        let said = thread.join().unwrap();
        assert!(said.starts_with("rank ") && said.ends_with(": the job is over"), "{said}");
    }
}

#[test]
fn threads_hear_of_a_failure() {
    let heard = Mutex::new(vec![]);
    let failed = said(|| {
        partage::test(3, |job| {
            let work = job.semaphore().unwrap();
            let p = job.alloc_all::<u64>(1).unwrap().on(job.neighbor(1));
            job.barrier();
            if job.rank().0 == 2 {
                panic!("enough");
            }
            let running = threads(&job.remote(), &work.share(), p);
            // Joined without a call of ours: so it is not this rank that tells them.
            heard.lock().unwrap().extend(running.into_iter().map(|thread| thread.join().unwrap()));
            job.barrier();
        });
    });
    assert!(failed.contains("enough"), "{failed}");
    let heard = heard.into_inner().unwrap();
    assert_eq!(heard.len(), 10);
    for said in heard {
        assert!(said.starts_with("rank ") && said.ends_with(": the job is over"), "{said}");
    }
}

static NOTHING: Request<u64> = Request::new(|_, _, _, _| ());

/// What they wait for is for the rank to do, which joins them as it unwinds.
#[test]
fn threads_hear_of_a_rank_that_panics_in_their_scope() {
    let heard = Mutex::new(vec![]);
    let failed = said(|| {
        partage::test(2, |job| {
            job.register_handlers(&[&NOTHING]);
            // A panic that is caught is none: what a thread waits for is done when the rank makes progress.
            assert_eq!(said(|| panic!("{}", "caught")), "caught");
            let (remote, to) = (job.remote(), job.neighbor(1));
            std::thread::scope(|s| {
                let sent = s.spawn(|| remote.am(to, &NOTHING, 1, &[]));
                job.wait_until(|| sent.is_finished());
            });
            job.barrier();
            if job.rank().0 == 1 {
                std::thread::scope(|s| {
                    s.spawn(|| heard.lock().unwrap().push(said(|| remote.am(to, &NOTHING, 1, &[]))));
                    panic!("enough");
                });
            }
            job.barrier();
        });
    });
    assert!(failed.starts_with("rank 1 on ") && failed.ends_with("enough"), "{failed}");
    let text = "rank 1: remote.am: the rank has panicked, and does nothing for its threads any more";
    assert_eq!(*heard.lock().unwrap(), [text]);
}
