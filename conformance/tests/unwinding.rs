//! Failures of a job of threads that is the caller's own: they unwind to the caller and nothing else happens.

use partage::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Runs the job, which must fail, and returns what the caller's panic says.
fn failing(ranks: usize, f: impl Fn(&Job) + Sync) -> String {
    let payload = catch_unwind(AssertUnwindSafe(|| partage::test(ranks, f))).expect_err("a failing job");
    payload.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn the_first_failure_reaches_the_caller_and_the_next_job_works() {
    let said = failing(3, |job| {
        assert!(job.rank() != Rank(1), "rank one is not wanted");
        job.barrier();
    });
    assert!(said.starts_with("rank 1 on ") && said.contains("rank one is not wanted"), "{said}");
    assert_eq!(partage::test(3, |job| job.rank().0), [0, 1, 2]);
}

/// Whoever catches it: others wait for what the function was to give, and this rank may be anywhere by then.
#[test]
fn a_panic_of_a_reduction_cannot_be_caught() {
    for started in [false, true] {
        let said = failing(3, |job| {
            let mut x = [u64::from(job.rank().0)];
            let op = Commutative(|_: u64, _: u64| -> u64 { panic!("no sum") });
            let sum = job.all_reduce(&mut x, op);
            let caught = match started {
                false => catch_unwind(AssertUnwindSafe(move || sum.run())),
                true => catch_unwind(AssertUnwindSafe(move || job.scope(|s| sum.start(s).wait()))),
            };
            assert!(caught.is_err());
            let _ = catch_unwind(AssertUnwindSafe(|| job.barrier()));
            job.barrier();
        });
        assert!(said.starts_with("rank ") && said.contains(": the operation of a reduction panicked"), "{said}");
        assert!(said.ends_with("no sum"), "{said}");
    }
}

#[test]
fn nor_can_one_of_a_fold() {
    for prefix in [false, true] {
        let said = failing(3, |job| {
            let op = Commutative(|_: u64, _: u64| -> u64 { panic!("no sum") });
            let (x, mut y) = ([1u64; 4], [0; 4]);
            let caught = catch_unwind(AssertUnwindSafe(|| match prefix {
                false => drop(job.fold(&x, op).run()),
                true => job.prefix_fold(&x, op).to(&mut y).run(),
            }));
            assert!(caught.is_err());
            job.barrier();
        });
        assert!(said.contains(": the operation of a reduction panicked") && said.ends_with("no sum"), "{said}");
    }
}

/// Who unwinds drops its teams on the way; what it panicked with is said, not that it has left.
#[test]
fn a_panic_with_a_team() {
    for round in 0..10 {
        let said = failing(3, |job| {
            let team = job.split(0);
            if job.rank().0 == 2 {
                panic!("enough in round {round}");
            }
            match round % 2 {
                0 => team.barrier(),
                _ => drop(team.value(1).gather_all()),
            }
        });
        assert!(said.starts_with("rank 2 on ") && said.ends_with(&format!("enough in round {round}")), "{said}");
    }
}

/// Others wait for a rank that unwinds, and it for them, by what it has started: that ends.
#[test]
fn a_panic_before_others_come_to_what_was_started() {
    let said = failing(3, |job| {
        let mut x = [0u8; 10];
        if job.rank().0 == 0 {
            job.scope(|s| {
                let _event = job.broadcast(&mut x).root(TeamRank(1)).start(s);
                panic!("not yet");
            });
        }
        job.barrier();
        job.broadcast(&mut x).root(TeamRank(1)).run();
    });
    assert!(said.starts_with("rank 0 on ") && said.ends_with("not yet"), "{said}");
}

/// The same with a team that is left on the way: what is said is the panic.
#[test]
fn a_panic_with_a_team_in_a_scope() {
    let said = failing(3, |job| {
        let (mut x, team) = ([0u8; 10], job.split(0));
        if job.rank().0 == 0 {
            job.scope(|s| {
                let _event = job.broadcast(&mut x).root(TeamRank(1)).start(s);
                let _left = team;
                panic!("the real reason");
            });
        } else {
            team.barrier();
        }
    });
    assert!(said.starts_with("rank 0 on ") && said.ends_with("the real reason"), "{said}");
}

/// What is under way is waited for as long as it goes on; nobody has waited in vain then.
#[test]
fn a_panic_that_was_caught_while_what_was_started_takes_long() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    let sums = partage::test(2, |job| {
        let mut v = vec![1u32; 512 << 10];
        // Some seconds in all, and far less than one for what passes at a time.
        let slow = Commutative(|a: u32, b: u32| {
            if TIMES.fetch_add(1, Relaxed).is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(20));
            }
            a + b
        });
        let caught = catch_unwind(AssertUnwindSafe(|| {
            job.scope(|s| {
                let _event = job.all_reduce(&mut v, slow).start(s);
                if job.rank().0 == 0 {
                    panic!("never mind");
                }
            })
        }));
        assert_eq!(caught.is_err(), job.rank().0 == 0);
        v.iter().sum::<u32>()
    });
    assert_eq!(sums, [2 * (512 << 10); 2]);
}

/// A wait that was left by a panic is not waited again: who came would count twice, and others go on without one that has not come.
#[test]
fn a_barrier_that_was_left_is_not_entered_again() {
    static PASSED: AtomicUsize = AtomicUsize::new(0);
    for with_a_team in [false, true] {
        let said = failing(3, |job| {
            let team = with_a_team.then(|| job.split(0));
            let barrier = || team.as_ref().map_or_else(|| job.barrier(), |team| team.barrier());
            match job.rank().0 {
                0 => {
                    assert!(catch_unwind(AssertUnwindSafe(barrier)).is_err());
                    barrier();
                }
                1 => {
                    barrier();
                    PASSED.fetch_add(1, Relaxed);
                }
                _ => {
                    std::thread::sleep(Duration::from_millis(100));
                    job.tell(Rank(0), |_, ()| panic!("enough of it"), ());
                    std::thread::sleep(Duration::from_millis(300));
                }
            }
        });
        assert!(said.contains("enough of it"), "{said}");
        assert_eq!(PASSED.load(Relaxed), 0);
    }
}

/// What a panic carries may panic itself when it is dropped.
#[test]
fn a_panic_that_panics_again() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    let said = failing(2, |job| {
        if job.rank().0 == 0 {
            job.tell(Rank(1), |_, ()| std::panic::panic_any(Bomb), ());
        }
        job.barrier();
    });
    assert!(said.contains("of an unknown kind"), "{said}");
}

/// The operation of a reduction runs in the middle of whatever its rank waits for.
#[test]
fn an_operation_does_not_wait() {
    for started in [false, true] {
        let said = failing(2, |job| {
            let team: &'static Team = Box::leak(Box::new(job.split(0)));
            let op = Commutative(move |a: u64, b: u64| {
                team.barrier();
                a + b
            });
            let mut v = [1u64; 9];
            match started {
                false => job.all_reduce(&mut v, op).run(),
                true => job.scope(|s| drop(job.all_reduce(&mut v, op).start(s))),
            }
        });
        assert!(said.contains("barrier at ") || said.contains("barrier in the operation of a reduction"), "{said}");
        assert!(said.contains("in the operation of a reduction, which may run while its rank waits"), "{said}");
    }
}

/// That it was caught does not make it a success.
#[test]
fn a_panic_that_was_caught_before_others_come_to_what_was_started() {
    let said = failing(2, |job| {
        let mut x = [0u8; 10];
        if job.rank().0 == 0 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                job.scope(|s| {
                    let _event = job.broadcast(&mut x).root(TeamRank(1)).start(s);
                    panic!("not yet");
                })
            }));
            assert!(caught.is_err());
        }
        job.barrier();
    });
    assert!(said.contains("a rank that panicked, and went on, left others waiting"), "{said}");
}

/// Calls that do not wait end, too, when they are made again and again.
#[test]
fn a_rank_that_asks_again_and_again_is_ended() {
    for case in 0..9 {
        let said = failing(2, |job| {
            let semaphore = job.semaphore().unwrap();
            let locks = job.mutexes::<u64>(1).unwrap();
            let mailbox = job.mailbox::<u64>(1).unwrap();
            let team = job.split(0);
            if job.rank().0 == 0 {
                // Who unwinds would release it before others hear of that.
                std::mem::forget(locks.lock(0));
                job.barrier();
                panic!("enough");
            }
            job.barrier();
            loop {
                match case {
                    0 => assert!(!semaphore.try_wait()),
                    1 => assert!(locks.try_lock(0).is_none()),
                    2 => assert!(mailbox.try_receive().is_none()),
                    3 => job.poll(),
                    4 => job.block_on(semaphore.signaled()),
                    5 => {
                        let notified = team.notify(None);
                        while !notified.test() {}
                        notified.wait(None);
                    }
                    6 => {
                        let mut v = vec![7u64; 8];
                        job.scope(|s| {
                            let mut event = job.gather_all(&mut v).start(s);
                            while !event.test() {}
                        });
                    }
                    // By who has panicked nobody is served.
                    7 => {
                        let mut event = job.rpc(Rank(0), |_, ()| std::thread::sleep(Duration::from_secs(1)), ());
                        while !event.test() {}
                    }
                    _ => {
                        let mut v = vec![7u64; 8];
                        job.scope(|s| _ = job.wait_any(&mut [Some(team.gather_all(&mut v).start(s))]));
                    }
                }
            }
        });
        assert!(said.starts_with("rank 0 on ") && said.ends_with("enough"), "case {case}: {said}");
    }
}

/// What was started in a scope is waited for at its end, not at that of one inside of it.
#[test]
fn scopes_wait_for_their_own() {
    partage::test(2, |job| {
        let (x, mut y) = ([job.rank().0], vec![]);
        let told = job.semaphore().unwrap();
        let signals = job.alloc_all::<Signal>(1).unwrap();
        signals.put(job, told.signal());
        job.barrier();
        job.scope(|outer| {
            if job.rank().0 == 1 {
                told.wait();
            }
            let event = job.scope(|_| job.gather_all(&x).to(&mut y).start(outer));
            if job.rank().0 == 0 {
                job.post(signals.on(Rank(1)).get(job));
            }
            event.wait();
        });
        assert_eq!(y, [0, 1]);
        job.barrier();
    });
}

#[test]
fn a_lock_in_a_destructor_keeps_its_change() {
    struct Count<'a>(&'a Mutexes<u64>);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            *self.0.lock(0) += 1;
        }
    }
    let counts = partage::test(2, |job| {
        let locks = job.mutexes::<u64>(1).unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _count = Count(&locks);
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        job.barrier();
        let count = *locks.lock(0);
        job.barrier();
        count
    });
    assert_eq!(counts, [2, 2]);
}

#[test]
fn a_disagreement_is_said_in_both_ranks_words() {
    let said = failing(4, |job| job.barrier_with(u64::from(job.rank().0 / 3)));
    assert!(said.starts_with("the ranks disagree: rank 0 came to barrier with value 0 (barrier_with at "), "{said}");
    assert!(said.contains("rank 3 came to barrier with value 1 (barrier_with at "), "{said}");
}

#[test]
fn a_rank_that_returns_early_is_named() {
    let said = failing(2, |job| {
        if job.rank() == Rank(0) {
            job.barrier()
        }
    });
    assert!(said.contains("rank 0 came to barrier without a value (barrier at "), "{said}");
    assert!(said.contains("rank 1 came to the end of its program"), "{said}");
}

#[test]
fn a_collective_in_a_destructor_does_not_panic_twice() {
    struct Last<'j>(&'j Job);
    impl Drop for Last<'_> {
        fn drop(&mut self) {
            self.0.barrier();
        }
    }
    let said = failing(2, |job| {
        if job.rank() == Rank(1) {
            panic!("only this one");
        }
        let _last = Last(job);
        job.barrier();
    });
    assert!(said.contains("only this one"), "{said}");
}

#[test]
fn a_phase_in_a_destructor_reaches_nothing() {
    static SEEN: AtomicUsize = AtomicUsize::new(usize::MAX);
    struct Last<'j>(&'j Job, SharedArray<u64>);
    impl Drop for Last<'_> {
        fn drop(&mut self) {
            self.1.own(|mine| SEEN.store(mine.len(), Relaxed));
            self.1.own_each(|_, _| SEEN.store(1, Relaxed));
            assert!(self.1.is_empty() && self.0.array::<u64>(8).is_err());
        }
    }
    let said = failing(2, |job| {
        let array = job.array::<u64>(8).unwrap();
        if job.rank() == Rank(1) {
            panic!("only this one");
        }
        let _last = Last(job, array);
        job.barrier();
    });
    assert!(said.contains("only this one"), "{said}");
    assert_eq!(SEEN.load(Relaxed), 0, "nobody else was in the phase");
}

#[test]
fn a_forgotten_wait_is_refused_at_the_end() {
    let said = failing(2, |job| _ = job.notify(None));
    assert!(
        said.contains("the end of the test at ") && said.contains("comes before the wait of the notify at "),
        "{said}"
    );
}

#[test]
fn a_refused_barrier_stays_refused_until_the_wait() {
    partage::test(3, |job| {
        let there = job.notify(None);
        for _ in 0..2 {
            assert!(catch_unwind(AssertUnwindSafe(|| job.barrier())).is_err());
        }
        there.wait(None);
        job.barrier();
    });
}

#[test]
fn a_job_in_a_job_is_refused() {
    partage::test(2, |_| {
        let e = partage::Launch::new().ranks(1).run(|_| ()).unwrap_err();
        assert_eq!(e.kind(), partage::ErrorKind::Start);
        assert!(e.to_string().contains("is in a job already"), "{e}");
    });
}

/// What was started is given up, and what it had is given back.
#[test]
fn collectives_that_are_under_way_when_a_rank_fails() {
    for round in 0..20 {
        let said = failing(4, |job| {
            let (mine, mut all, mut other) = (vec![7u64; 3000], vec![], [0u8; 40]);
            job.scope(|s| {
                let first = job.gather_all(&mine).to(&mut all).start(s);
                drop(job.broadcast(&mut other).root(TeamRank(3)).start(s));
                if job.rank().0 == round % 4 {
                    panic!("in round {round}");
                }
                first.wait();
            });
            job.value(1).gather_all();
        });
        assert!(said.contains(&format!("in round {round}")), "{said}");
    }
    assert_eq!(partage::test(2, |job| job.value(job.rank().0).gather_all()), [[0, 1], [0, 1]]);
}

/// The function of a reduction that was started fails wherever its rank waits; the job ends with its words.
#[test]
fn a_function_of_a_started_reduction_fails() {
    for wait in [false, true] {
        let said = failing(3, |job| {
            let mut v = vec![job.rank().0; 1000];
            let f = Ordered(|a: u32, b: u32| if b == 2 { panic!("two is too many") } else { a + b });
            job.scope(|s| {
                let event = job.all_reduce(&mut v, f).start(s);
                if wait {
                    event.wait();
                }
            });
        });
        assert!(said.contains("two is too many"), "{said}");
    }
    assert_eq!(partage::test(3, |job| job.value(1).sum()), [3; 3]);
}

/// Who waits for a member that has left unwinds out of its scope, and nothing of what was started is under way then.
#[test]
fn a_scope_of_a_team_that_was_left() {
    let said = failing(3, |job| {
        let team = job.split(0);
        if job.rank().0 == 2 {
            drop(team);
            job.wait_until(|| false);
        } else {
            let mut v = vec![7u64; 9];
            job.scope(|s| drop(team.gather_all(&mut v).start(s)));
        }
    });
    assert!(said.contains("rank 2 has dropped this team already"), "{said}");
    partage::test(3, |job| assert!(format!("{:?}", job.split(0)).contains("Team")));
}

/// The same by what waits otherwise.
#[test]
fn whoever_waits_for_one_of_a_team_that_was_left_hears_of_it() {
    for case in 0..4 {
        let said = failing(3, |job| {
            let team = job.split(0);
            if job.rank().0 == 2 {
                drop(team);
                return job.wait_until(|| false);
            }
            let mut v = vec![7u64; 9];
            if case == 3 {
                let notified = team.notify(None);
                while !notified.test() {}
                notified.wait(None);
            }
            job.scope(|s| {
                let mut event = team.gather_all(&mut v).start(s);
                match case {
                    0 => _ = job.wait_any(&mut [Some(event)]),
                    1 => {
                        while !event.test() {}
                        event.wait();
                    }
                    _ => job.block_on(event),
                }
            });
        });
        assert!(said.contains("rank 2 has dropped this team already"), "case {case}: {said}");
    }
}

/// Elements of which not all ranks' scratch has room for one are refused, or pass in another way.
#[test]
fn elements_that_are_large() {
    type Large = [u64; 300];
    let sum = Commutative(|a: Large, b: Large| std::array::from_fn(|i| a[i] + b[i]));
    for n in [1, 3, 17] {
        partage::test(16, |job| {
            let team = job.split(0);
            let mut v = vec![[1; 300]; n];
            team.all_reduce(&mut v, sum).run();
            assert!(v.iter().all(|x| *x == [16; 300]));
            let mut v = vec![[1; 300]; n];
            team.prefix_reduce(&mut v, sum).run();
            assert!(v.iter().all(|x| *x == [u64::from(job.rank().0) + 1; 300]));
            for name in ["slices", "ring", "slices:pull", "chain/4", "flat"] {
                let said = catch_unwind(AssertUnwindSafe(|| {
                    let mut v = vec![[1; 300]; n];
                    team.all_reduce(&mut v, sum).algorithm(name).run();
                    v
                }));
                match said {
                    Ok(v) => assert!(v.iter().all(|x| *x == [16; 300]), "{name}"),
                    Err(why) => {
                        let why = why.downcast_ref::<String>().expect("words");
                        assert!(why.contains("cannot be taken: there is not scratch enough"), "{name}: {why}");
                    }
                }
                job.barrier();
            }
        });
    }
    // Elements are whole, also in letters that were asked to be short.
    partage::test(3, |job| {
        let sum = Commutative(|a: [u64; 8], b: [u64; 8]| std::array::from_fn(|i| a[i] + b[i]));
        let said =
            catch_unwind(AssertUnwindSafe(|| job.all_reduce(&mut [[1; 8]], sum).algorithm("flat:mail@56").run()));
        let why = said.expect_err("a letter is too short").downcast::<String>().expect("words");
        assert!(why.contains("cannot be taken: a letter has 56 bytes"), "{why}");
    });
}
