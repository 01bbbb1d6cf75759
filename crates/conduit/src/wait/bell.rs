//! Where ranks and other threads sleep, and how they are woken: one bell per rank ([`Bell`]), one for a thread that makes progress for others
//! ([`Relief`]), one for any number of threads that are no ranks ([`Crowd`]).
//!
//! The sleeper writes 1 to its bell, fences, looks at its condition once more and sleeps in the kernel while the bell
//! is 1. Whoever makes a condition true publishes it, fences, and looks at the bell ([`Bell::ring`]); only if it says
//! *parked* does it enter the kernel. With these fences at least one of the two sees the other's store
//! (store buffering), so either the sleeper does not sleep or the waker wakes it. Without either fence wakes are lost;
//! an ordinary stress test does not notice, the loom models of the barrier do. The timed park is only a belt.
//!
//! The two are not alike: signals are many, so the waker's fence is light, and the sleeper's is heavy ([`crate::sync`] says
//! why that is enough, and when both are full ones). Somebody who does not sleep is never the heavy side; where two who
//! look at each other's stores both go on, as in [`Relief`], both fences are full.
//!
//! A bell that says `LOOKS` is one that is not parked: its owner is awake and looks, or will before it sleeps.
//!
//! A sleeper that looks up and was not rung sleeps on without another fence: its bell has said so since the last one.
//!
//! Whoever wakes many looks at one word first, the node's count of sleepers ([`Sleepers`](super::Sleepers)), and at the bells only if there
//! are some: sixteen bells lie in sixteen pages.
//!
//! # Memory ordering
//! The bell and the count carry no data: their accesses are relaxed and the two fences order them. Each is right by
//! itself: whoever reads an old value of either after its fence has published before the sleeper's fence, and the
//! sleeper's last look sees it. What the condition guards is ordered by the condition's own release store and acquire
//! load.

use crate::sync::{AtomicU32, Futex, Ordering::*, full_fence, heavy_fence, light_fence};
use std::cell::Cell;

/// The longest time that a rank sleeps without looking at its condition and at the abort word.
pub(super) const PARK_NS: u64 = 100_000_000;
/// What a bell says of its owner, who is awake else: it is parked or about to be; it does not yield before it has looked.
pub(super) const PARKED: u32 = 1;
pub(super) const LOOKS: u32 = 2;

thread_local! {
    /// Did the rank of this thread send something to one that looks, since it last asked?
    pub(super) static MET: Cell<bool> = const { Cell::new(false) };
}

/// A rank's bell: 0 while it is awake, `PARKED`, or `LOOKS`.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Bell(pub(super) Futex);

impl Bell {
    /// Call after publishing what the owner may be waiting for.
    #[inline(always)]
    pub fn ring(&self) {
        light_fence();
        self.ring_after_fence();
    }

    /// The same when a [`light_fence`] lies between the publication and this call already: one fence for many bells.
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        if self.0.word().load(Relaxed) != 0 {
            self.wake();
        }
    }

    /// The same for a message: if the owner runs, this thread may wait for what it says to it, and not yield.
    #[inline(always)]
    pub fn speak_after_fence(&self) {
        let word = self.0.word().load(Relaxed);
        if word != 0 {
            MET.set(word == LOOKS);
            self.wake();
        }
    }

    /// Is its owner parked, or about to be? A guess, for who would do something in its place.
    pub fn is_parked(&self) -> bool {
        self.0.word().load(Relaxed) == PARKED
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let word = self.0.word();
        // One of several ringers enters the kernel.
        if word.load(Relaxed) == PARKED && word.compare_exchange(PARKED, 0, Relaxed, Relaxed).is_ok() {
            self.0.wake();
        }
    }
}

/// Where a thread that makes progress for others dozes while they make it themselves.
///
/// It dozes for a bounded time, and not when somebody has asked it to take over since it last woke: the asking is a store
/// before a look at the bell, the dozing a store to the bell before a look for who asked, with a full fence in each: both are seldom, and
/// a heavy one at every doze would disturb those who make progress.
#[derive(Debug, Default)]
pub struct Relief {
    asked: AtomicU32,
    bell: Bell,
}

impl Relief {
    /// A rank is going to sleep: whoever relieves it does not doze any longer.
    #[inline]
    pub fn take_over(&self) {
        self.asked.store(1, Relaxed);
        full_fence();
        self.bell.ring_after_fence();
    }

    /// Dozes for `ns` at most; true if somebody has asked.
    pub fn doze(&self, ns: u64) -> bool {
        let word = self.bell.0.word();
        word.store(1, Relaxed);
        full_fence();
        if self.asked.load(Relaxed) == 0 {
            self.bell.0.wait(1, ns);
        }
        word.store(0, Relaxed);
        self.asked.load(Relaxed) != 0 && self.asked.compare_exchange(1, 0, Relaxed, Relaxed).is_ok()
    }
}

/// Where threads that are no ranks sleep, any number of them, until somebody rings: what a bell is to its one owner.
///
/// Each sleeper makes the word odd, makes a heavy fence, looks, and sleeps while the word is what it was. Only who rings makes it even, by
/// adding one: a sleeper that leaves does not know of others, and one that had not fallen asleep yet when it was rung finds
/// another word, also when somebody has come since. So the word may be odd when nobody sleeps, which costs a ringer a system
/// call once.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Crowd(Futex);

impl Crowd {
    /// Call after publishing what they may be waiting for, and a [`light_fence`].
    #[inline(always)]
    pub fn ring_after_fence(&self) {
        if self.0.word().load(Relaxed) & 1 != 0 {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let word = self.0.word().load(Relaxed);
        // One of several ringers enters the kernel.
        if word & 1 != 0 && self.0.word().compare_exchange(word, word.wrapping_add(1), Relaxed, Relaxed).is_ok() {
            self.0.wake();
        }
    }

    /// Sleeps until a look says yes; looks up every tenth of a second.
    pub fn until(&self, look: impl Fn() -> bool) {
        while !look() {
            let word = self.0.word().fetch_or(1, Relaxed) | 1;
            heavy_fence();
            if look() {
                return;
            }
            self.0.wait(word, PARK_NS);
        }
    }
}
