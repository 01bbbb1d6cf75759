//! Models of bells and of those who sleep on them, and a sleeper for the models of other protocols.

use super::*;
use crate::record::Site;
use crate::sync::light_fence;
use loom::sync::Arc;

/// A thread that sleeps on a bell.
#[derive(Debug)]
pub(crate) struct Sleeper {
    pub bell: Bell,
    sleepers: Sleepers,
    record: Record,
    abort: AtomicU32,
}

impl Default for Sleeper {
    fn default() -> Self {
        let (bell, sleepers, record) = Default::default();
        Sleeper { bell, sleepers, record, abort: AtomicU32::new(0) }
    }
}

impl Sleeper {
    /// Sleeps until the condition holds.
    pub fn until(&self, done: impl Fn() -> bool + Copy) {
        self.until_with(Cores::Own, done);
    }

    /// The same; with shared cores it looks on first.
    pub fn until_with(&self, cores: Cores, done: impl Fn() -> bool + Copy) {
        let waiter = Waiter::new(&self.bell, &self.sleepers, &self.record, &self.abort, cores);
        waiter.until(|| Site::here("model"), || Step::done(done())).unwrap();
    }
}

/// In a model nobody wakes up by himself: a thread that dozes on after it was asked is a deadlock.
#[test]
fn loom_whoever_is_asked_takes_over() {
    loom::model(|| {
        let relief = Arc::new(Relief::default());
        let dozing = relief.clone();
        let thread = loom::thread::spawn(move || while !dozing.doze(1) {});
        relief.take_over();
        thread.join().unwrap();
    });
}

/// Two in a crowd want one each of what comes for both: who takes the first does not hide the second from the other.
#[test]
fn loom_a_crowd_of_two_is_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let heap = Arc::new((Crowd::default(), AtomicU32::new(0)));
        let threads = [(); 2].map(|()| {
            let heap = heap.clone();
            loom::thread::spawn(move || {
                let take = |n: u32| n.checked_sub(1);
                heap.0.until(|| heap.1.fetch_update(AcqRel, Acquire, take).is_ok());
            })
        });
        heap.1.store(2, Release);
        light_fence();
        heap.0.ring_after_fence();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// Nor does who says that it looks, and then sleeps, miss what is said to it at any moment.
#[test]
fn loom_whoever_looks_on_is_woken() {
    loom::model(|| {
        let heap = Arc::new((Sleeper::default(), AtomicU32::new(0)));
        let speaker = heap.clone();
        let thread = loom::thread::spawn(move || {
            speaker.1.store(1, Release);
            light_fence();
            speaker.0.bell.speak_after_fence();
        });
        heap.0.until_with(Cores::Shared, || heap.1.load(Acquire) == 1);
        thread.join().unwrap();
    });
}
