//! The atomics of this crate, in one place so that loom can replace them (`--cfg loom`), the fences, the futex
//! word and the clock. Every protocol here is written against these names and nothing else.
//!
//! # Two fences that do not cost the same
//! Whoever signals publishes and looks whether somebody sleeps; whoever is about to sleep says so and looks once more. Each must see
//! its own store done before it looks, and a full fence on both sides is the plain way ([`crate::wait`]). But signals are
//! many and a fence makes each wait until its line is here, and who sleeps has time. So the side that signals has a
//! [`light_fence`], which is one for the compiler only, and the side that sleeps a [`heavy_fence`], which asks the kernel (`membarrier`) to make
//! a full fence on every processor that runs a thread of a process that takes part. A thread that is not running passes a
//! full fence when it is switched. So it is as if each of them made a full fence somewhere between the begin and the end of the heavy one. If that
//! is before a thread looks, it sees what the sleeper said, which was written before; if it is after, all that the
//! thread published before it looked is there for the sleeper's last look. One of the two sees the other, as with two full fences.
//!
//! All processes of a node must take part before anyone leaves its fences out: each says whether it can ([`can_be_light`]) when processes
//! meet at the start, and if all can, signals are light ([`be_light`]). Who can makes its heavy fences heavy from
//! then on, before it knows what comes of it; if nobody's signals will be light, they are full ones again. The pair is right only if one of its sides is a heavy one: two that are light order
//! nothing. Neither carries data: what is published is ordered by its own release and acquire, which is all
//! that a sanitizer sees, and all that it needs to.
//!
//! In models, under Miri and on other processors than x86-64 both are full fences. There a release store and a later load would need
//! a fence for the compiler only, too, but nobody has measured what it is worth.
//!
//! Does not contain: any waiting policy (see [`crate::wait`]) or any protocol.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub use std::sync::Mutex;

/// Orders every earlier access of this thread before every later one, stores before loads included.
///
/// On x86-64 it is a locked read-modify-write of the stack, a third of the price of `mfence`, which is what
/// `fence(SeqCst)` compiles to. A locked instruction is a full barrier for ordinary (write-back) memory, the only kind
/// that segments and control areas have; the asm block is a compiler barrier because it may touch memory.
#[inline(always)]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: ORs zero into the word at the top of this thread's own stack, which changes nothing.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(all(any(not(target_arch = "x86_64"), miri), not(loom)))]
    core::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders what this thread has published before its look at who sleeps, if who sleeps makes a [`heavy_fence`] between saying
/// so and looking: nothing but that. A full fence until all processes of the node are ready for less.
#[inline(always)]
pub fn light_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if is_light() {
        return core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    full_fence();
}

/// A full fence, and the other side of [`light_fence`]. It takes microseconds, for others too: for who is about to sleep.
///
/// If the kernel refuses, which it does only when it has no memory, a wake may be lost, and the sleeper finds out
/// when it looks up.
pub fn heavy_fence() {
    full_fence();
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if MODE.heavy.load(Ordering::Relaxed) {
        let _ = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited);
    }
}

/// Stores with release, after which there is a light fence: whoever called this may look at a bell.
#[inline(always)]
pub fn publish(word: &AtomicU64, value: u64) {
    // The locked exchange is the fence too.
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if !is_light() {
        word.swap(value, Ordering::AcqRel);
        return;
    }
    word.store(value, Ordering::Release);
    light_fence();
}

/// How this process fences, in lines of its own: it is read at every signal.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[repr(align(128))]
struct Mode {
    /// Heavy fences are.
    heavy: core::sync::atomic::AtomicBool,
    /// Light fences are.
    light: core::sync::atomic::AtomicBool,
}

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
static MODE: Mode = {
    use core::sync::atomic::AtomicBool;
    Mode { heavy: AtomicBool::new(false), light: AtomicBool::new(false) }
};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
fn is_light() -> bool {
    MODE.light.load(Ordering::Relaxed)
}

/// Can signals of this process be light? If so, its heavy fences are from now on.
pub fn can_be_light() -> bool {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
        let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        let can = membarrier_query().contains(needed) && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        if can {
            MODE.heavy.store(true, Ordering::Relaxed);
        }
        can
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    false
}

/// Signals of this process are light from now on, because all processes of its node can be; or they are not. A process is of one
/// node at a time. (Tests have several, of one process each: any of them may decide.)
pub fn be_light(light: bool) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        MODE.light.store(light && MODE.heavy.load(Ordering::Relaxed), Ordering::Relaxed);
        // Where nobody's are light, nobody's need be heavy. A thread of this process that found light ones before has
        // passed the last heavy one when the next fence is not.
        if !light {
            heavy_fence();
            MODE.heavy.store(false, Ordering::Relaxed);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = light;
}

/// A word that has one user at a time, by somebody else's order. In shared memory it is a relaxed atomic; in a model an
/// ordinary cell, whose users loom checks: an order that is missing is reported.
#[cfg(not(loom))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Plain(AtomicU64);

#[cfg(not(loom))]
impl Plain {
    /// Its value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Plain(loom::cell::UnsafeCell<u64>);

#[cfg(loom)]
// SAFETY: loom checks every access.
unsafe impl Sync for Plain {}

#[cfg(loom)]
#[allow(missing_docs)]
impl Plain {
    pub fn get(&self) -> u64 {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.0.with(|p| unsafe { *p })
    }
    pub fn set(&self, value: u64) {
        // SAFETY: loom checks that nobody else uses it.
        self.0.with_mut(|p| unsafe { *p = value });
    }
}

/// A count that only grows, raised by threads that may overtake each other; by how much it was raised.
pub fn raise(count: &AtomicU32, to: u32) -> u32 {
    let mut now = count.load(Ordering::Relaxed);
    while to.wrapping_sub(now) as i32 > 0 {
        match count.compare_exchange_weak(now, to, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return to.wrapping_sub(now),
            Err(other) => now = other,
        }
    }
    0
}

/// Monotonic nanoseconds, the same clock in every process of the machine.
#[cfg(not(loom))]
#[inline]
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
#[cfg(loom)]
/// Time stands still in a model.
pub fn now_ns() -> u64 {
    0
}

/// A counter that runs at a constant rate and is read in a few cycles without touching memory: what a waiting rank uses
/// to see how long something took. On x86-64 the time stamp counter, else [`now_ns`].
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: reads a counter that every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    now_ns()
}

/// How many [`ticks`] a microsecond has: measured against the clock from the first call on, a guess until some time has
/// passed. Call it early once, and again when it is needed.
pub fn ticks_per_us() -> u64 {
    // Plain cells that threads may fill at the same time: a mix of two beginnings is off by less than they are apart.
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static BEGIN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    static RATE: AtomicU64 = AtomicU64::new(0);
    match RATE.load(Relaxed) {
        0 => {}
        rate => return rate,
    }
    // A pair of readings between which this thread was not interrupted.
    let now = (0..100).find_map(|_| {
        let (before, ticks, after) = (now_ns(), ticks(), now_ns());
        (after - before < 1000).then_some([ticks, before])
    });
    let Some(now) = now else { return 1000 };
    let begin = [0, 1].map(|i| match BEGIN[i].load(Relaxed) {
        0 => {
            BEGIN[i].store(now[i], Relaxed);
            now[i]
        }
        begin => begin,
    });
    let us = now[1].saturating_sub(begin[1]) / 1000;
    if us < 200 {
        return 1000;
    }
    let rate = (now[0].saturating_sub(begin[0]) / us).clamp(1, 100_000);
    RATE.store(rate, Relaxed);
    rate
}

/// A 32-bit word that threads of any process can sleep on.
#[cfg(not(loom))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Futex(AtomicU32);

#[cfg(not(loom))]
impl Futex {
    /// The word.
    #[inline(always)]
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps while the word holds `expected`, until woken, for `timeout_ns` at most; may return early.
    pub fn wait(&self, expected: u32, timeout_ns: u64) {
        let t = rustix::thread::futex::Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // Woken, timed out, interrupted or the word had changed: the caller looks again in every case.
        let _ = rustix::thread::futex::wait(&self.0, rustix::thread::futex::Flags::empty(), expected, Some(&t));
        crate::turn::came_back();
    }

    /// Wakes all sleepers.
    pub fn wake(&self) {
        let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }
}

/// The model of the kernel's futex: the comparison and the falling asleep are one step under the bucket's lock, and a
/// waker takes that lock. It never times out, so a lost wake shows as a deadlock.
#[cfg(loom)]
#[derive(Debug)]
pub struct Futex(AtomicU32, loom::sync::Mutex<()>, loom::sync::Condvar);

#[cfg(loom)]
#[allow(missing_docs)]
impl Default for Futex {
    fn default() -> Self {
        Futex(AtomicU32::new(0), loom::sync::Mutex::new(()), loom::sync::Condvar::new())
    }
}

#[cfg(loom)]
#[allow(missing_docs)]
impl Futex {
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
    pub fn wait(&self, expected: u32, _timeout_ns: u64) {
        let guard = self.1.lock().unwrap();
        if self.0.load(Ordering::Relaxed) == expected {
            drop(self.2.wait(guard).unwrap());
        }
    }
    pub fn wake(&self) {
        drop(self.1.lock().unwrap());
        self.2.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_are_raised_and_never_lowered() {
        let count = AtomicU32::new(u32::MAX - 1);
        assert_eq!((raise(&count, 3), raise(&count, 3), raise(&count, u32::MAX)), (5, 0, 0));
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
