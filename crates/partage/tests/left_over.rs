//! What of a job is kept beyond it, in a thread-local or by another thread: it is refused with one line, and harms nobody.

use partage::am::Request;
use partage::mailbox::Mailbox;
use partage::prelude::*;
use partage::signal::{Semaphore, SharedSemaphore};
use partage::slots::{Inbox, Outbox};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What this call, which must panic, says.
fn refusal<R>(what: &str, f: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).err().unwrap_or_else(|| panic!("{what} is refused"));
    let said = payload.downcast_ref::<String>().cloned();
    said.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string())).expect("a message")
}

fn is_over(what: &str, said: String) {
    assert!(said.starts_with("rank 0: ") && said.contains("the job is over") && !said.contains('\n'), "{what}: {said}");
}

struct Kept {
    semaphore: Semaphore,
    share: SharedSemaphore,
    remote: Remote,
    to: Outbox<u64>,
    from: Inbox<u64>,
    mailbox: Mailbox<u64>,
    signal: Signal,
    word: GlobalPtr<u64>,
}

thread_local!(static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) });

fn keep(job: &Job) -> Kept {
    let (semaphore, right) = (job.semaphore().unwrap(), job.neighbor(1));
    let (mut to, mut from) = (job.outbox(right, 1, 2).unwrap(), job.inbox(job.neighbor(-1), 1, 2).unwrap());
    to.put_signal(&[1]);
    assert_eq!(*from.wait(), [1]);
    let (signal, share, remote) = (semaphore.signal(), semaphore.share(), job.remote());
    Kept { semaphore, share, remote, to, from, mailbox: job.mailbox(2).unwrap(), signal, word: job.alloc(7).unwrap() }
}

#[test]
fn what_is_left_of_a_job_says_that_it_is_over() {
    partage::test(2, |job| KEPT.set(Some(keep(job))));
    let Kept { semaphore, share, remote, mut to, mut from, mailbox, signal, word } =
        KEPT.take().expect("rank 0 is here");
    is_over("wait", refusal("wait", || semaphore.wait()));
    assert!(!semaphore.try_wait());
    is_over("share", refusal("share", || share.wait()));
    is_over("post", refusal("post", || remote.post(signal)));
    is_over("put", refusal("put", || remote.put(word, 1)));
    is_over("get", refusal("get", || remote.get(word)));
    is_over("inbox", refusal("inbox", || from.wait()[0]));
    is_over("receive", refusal("receive", || mailbox.receive()));
    is_over("try_receive", refusal("try_receive", || mailbox.try_receive()));
    // What is mapped may be written; nobody reads it.
    (0..2).for_each(|_| _ = catch_unwind(AssertUnwindSafe(|| to.put_signal(&[2]))));
    is_over("outbox", refusal("outbox", || to.put_signal(&[3])));
    is_over("outbox", refusal("outbox", || to.try_put_signal(&[3])));
    partage::test(2, |job| {
        job.barrier();
        let kept = keep(job);
        job.barrier();
        drop(kept.mailbox);
    });
}

/// Dropped while another job runs, and when that has ended.
#[test]
fn what_is_left_of_a_job_is_dropped_at_any_time() {
    partage::test(2, |job| KEPT.set(Some(keep(job))));
    partage::test(3, |job| {
        job.barrier();
        if job.rank().0 == 0 {
            drop(KEPT.take());
        }
        KEPT.set(Some(keep(job)));
        job.barrier();
    });
    drop(KEPT.take());
}

/// A handler that finds a semaphore in a thread-local takes what is there, and serves nobody.
#[test]
fn handlers_do_not_run_inside_handlers_that_look_at_a_semaphore() {
    static DEPTH: AtomicUsize = AtomicUsize::new(0);
    static LOOK: Request<u32> = Request::new(|_, _, _, _| {
        assert_eq!(DEPTH.fetch_add(1, Relaxed), 0, "a handler runs inside another");
        KEPT.with_borrow(|kept| kept.iter().for_each(|kept| assert!(!kept.semaphore.try_wait())));
        DEPTH.fetch_sub(1, Relaxed);
    });
    partage::test(1, |job| {
        job.register_handlers(&[&LOOK]);
        KEPT.set(Some(keep(job)));
        (0..100).for_each(|n| job.am(job.rank(), &LOOK, n, &[]));
        job.quiet();
        drop(KEPT.take());
    });
}
