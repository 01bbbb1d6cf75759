//! Answers that a rank waits for, several at a time: numbered slots, which outlive every operation.
//!
//! A rank that asks others takes a slot, sends its number along, and each answer names it. Taking, asking whether all have
//! come, and giving back are the rank's own; answering is done by any thread of its process, in handlers. A slot whose
//! rank has given it up (an event was dropped, the job ends) is free when its last answer has come. There are as many slots as
//! are needed: events that a program keeps have one each.
//!
//! # Memory ordering
//! A slot's state is one word: how many answers are missing, and whether the rank still has it. An answer writes what it
//! brings and takes itself off with release; the rank sees that none is missing with acquire. All-zero is free: who takes it
//! then loads with acquire too, so that nothing of an earlier use comes after it. Bytes go through the slot's *sink*, under
//! its lock: giving a slot back takes the sink away, so nothing is written to the rank's memory after that.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use std::sync::{OnceLock, PoisonError};

/// The rank has it.
const OWNED: u64 = 1 << 32;
/// It has a sink.
const SINK: u64 = 1 << 33;
/// Only who asked waits for its answers, which may take as long as others like. It stays until the slot is free.
const APART: u64 = 1 << 34;

/// What becomes of bytes that an answer brings: where they belong in the whole, and the bytes.
pub type Sink = Box<dyn FnMut(u64, &[u8]) + Send>;

/// A sink that writes to memory what lies inside it.
///
/// # Safety
/// The memory can be written, and is not used, until the slot that has the sink is given back.
pub unsafe fn sink_to(dst: *mut [u8]) -> Sink {
    struct Memory(*mut [u8]);
    // SAFETY: whoever made it has promised that nobody else uses the memory.
    unsafe impl Send for Memory {}
    let dst = Memory(dst);
    Box::new(move |offset, bytes| {
        let Memory(dst) = &dst;
        let inside = usize::try_from(offset).ok().filter(|&o| o <= dst.len() && bytes.len() <= dst.len() - o);
        if let Some(offset) = inside {
            // SAFETY: inside the memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.cast::<u8>().add(offset), bytes.len()) };
        }
    })
}

/// One slot.
#[derive(Default)]
pub struct Slot {
    /// Missing answers, [`OWNED`], [`SINK`], [`APART`].
    state: AtomicU64,
    value: AtomicU64,
    sink: Mutex<Option<Sink>>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a slot of {:#x}", self.state.load(Relaxed))
    }
}

impl Slot {
    /// Takes it for so many answers, with these flags, if it is free.
    #[inline]
    fn take(&self, answers: u32, flags: u64) -> bool {
        let free = self.state.load(Acquire) == 0;
        if free {
            self.state.store(OWNED | flags | u64::from(answers), Relaxed);
        }
        free
    }

    /// Have all answers come?
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state.load(Acquire) as u32 == 0
    }

    /// One more answer will come.
    fn one_more(&self) {
        self.state.fetch_add(1, Relaxed);
    }

    /// What the last answer said, once all have come.
    #[inline]
    pub fn value(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Gives it back, whether or not all answers have come.
    #[inline]
    fn give(&self) {
        if self.state.load(Relaxed) & SINK != 0 {
            *self.lock() = None;
        }
        let before = self.state.fetch_and(!(OWNED | SINK), AcqRel);
        if before & APART != 0 && before as u32 == 0 {
            self.state.fetch_and(!APART, AcqRel);
        }
    }

    /// An answer has come; none if none is missing, else the state before. Of giving it back and the last answer the later one sets it free.
    #[inline]
    fn answer(&self, value: u64) -> Option<u64> {
        if self.state.load(Relaxed) as u32 == 0 {
            return None;
        }
        self.value.store(value, Relaxed);
        let before = self.state.fetch_sub(1, AcqRel);
        if before & (APART | OWNED) == APART && before as u32 == 1 {
            self.state.fetch_and(!APART, AcqRel);
        }
        Some(before)
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Option<Sink>> + '_ {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slots of one rank.
#[derive(Debug)]
pub struct Answers {
    /// Each twice as many as the one before.
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// Where the last one was taken; the rank's own.
    last: AtomicU32,
    /// How many answers are missing, of all slots but those that are apart.
    missing: AtomicU64,
}

const CHUNKS: usize = 24;
const FIRST: usize = 64;

impl Default for Answers {
    fn default() -> Self {
        let answers = Answers {
            chunks: std::array::from_fn(|_| OnceLock::new()),
            last: AtomicU32::new(0),
            missing: AtomicU64::new(0),
        };
        answers.grow();
        answers
    }
}

impl Answers {
    /// Takes a slot for so many answers; the calling thread is the rank's.
    #[inline]
    pub fn take(&self, answers: u32) -> u32 {
        let number = self.take_with(answers, 0);
        self.missing.fetch_add(u64::from(answers), Relaxed);
        number
    }

    /// The same, for answers that nobody waits for but who asked: they are not among [all](Self::are_all_done).
    pub fn take_apart(&self, answers: u32) -> u32 {
        self.take_with(answers, APART)
    }

    #[inline]
    fn take_with(&self, answers: u32, flags: u64) -> u32 {
        let last = self.last.load(Relaxed);
        // The next one, as a rule.
        let next = if last as usize + 1 < FIRST { last + 1 } else { 0 };
        let number = match self.slot(next).is_some_and(|slot| slot.take(answers, flags)) {
            true => next,
            false => self.search(answers, flags),
        };
        self.last.store(number, Relaxed);
        number
    }

    #[cold]
    fn search(&self, answers: u32, flags: u64) -> u32 {
        let mut number = 0;
        for chunk in self.chunks.iter().map_while(|c| c.get()) {
            if let Some(i) = chunk.iter().position(|slot| slot.take(answers, flags)) {
                return number + i as u32;
            }
            number += chunk.len() as u32;
        }
        self.grow();
        assert!(
            self.slot(number).is_some_and(|slot| slot.take(answers, flags)),
            "answers to more than a thousand million questions"
        );
        number
    }

    fn grow(&self) {
        if let Some(i) = self.chunks.iter().position(|c| c.get().is_none()) {
            let chunk = (0..FIRST << i).map(|_| Slot::default()).collect();
            self.chunks[i].set(chunk).expect("only the rank makes more");
        }
    }

    /// The slot with this number.
    #[inline]
    pub fn slot(&self, number: u32) -> Option<&Slot> {
        let number = number as usize;
        if number < FIRST {
            return self.chunks[0].get()?.get(number);
        }
        // Chunk i begins at FIRST * (2^i - 1).
        let i = ((number / FIRST) + 1).ilog2() as usize;
        self.chunks.get(i)?.get()?.get(number - FIRST * ((1 << i) - 1))
    }

    fn own(&self, number: u32) -> &Slot {
        self.slot(number).expect("a slot that was taken")
    }

    /// One more answer will come to a slot that was taken.
    pub fn one_more(&self, number: u32) {
        self.own(number).one_more();
        self.missing.fetch_add(1, Relaxed);
    }

    /// What becomes of the bytes that answers to this slot bring.
    pub fn set_sink(&self, number: u32, sink: Sink) {
        let slot = self.own(number);
        *slot.lock() = Some(sink);
        slot.state.fetch_or(SINK, Relaxed);
    }

    /// Have all answers to this slot come?
    #[inline]
    pub fn is_done(&self, number: u32) -> bool {
        self.own(number).is_done()
    }

    /// What the last answer said.
    #[inline]
    pub fn value(&self, number: u32) -> u64 {
        self.own(number).value()
    }

    /// Gives a slot back.
    #[inline]
    pub fn give(&self, number: u32) {
        self.own(number).give();
    }

    /// Have all answers to all slots come that are not apart?
    #[inline]
    pub fn are_all_done(&self) -> bool {
        self.missing.load(Acquire) == 0
    }

    /// An answer; false if nobody asked.
    #[inline]
    #[must_use]
    pub fn answer(&self, number: u32, value: u64) -> bool {
        let before = self.slot(number).and_then(|slot| slot.answer(value));
        if before.is_some_and(|state| state & APART == 0) {
            self.missing.fetch_sub(1, Release);
        }
        before.is_some()
    }

    /// An answer that brings bytes; false if nobody asked.
    #[must_use]
    pub fn answer_with(&self, number: u32, offset: u64, bytes: &[u8]) -> bool {
        let Some(slot) = self.slot(number) else { return false };
        if let Some(sink) = slot.lock().as_mut() {
            sink(offset, bytes);
        }
        self.answer(number, bytes.len() as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn slots_are_found_and_there_are_always_more() {
        let answers = Answers::default();
        let taken: Vec<u32> = (0..1000).map(|_| answers.take(1)).collect();
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 1000);
        assert!(taken.iter().all(|&t| !answers.is_done(t)) && !answers.are_all_done());
        assert!(!answers.answer(5000, 0), "nobody asked");
        for &t in &taken {
            assert!(answers.answer(t, u64::from(t) + 7));
            assert!(!answers.answer(t, 0), "answered twice");
        }
        assert!(taken.iter().all(|&t| answers.is_done(t) && answers.value(t) == u64::from(t) + 7));
        assert!(answers.are_all_done());
        taken.iter().for_each(|&t| answers.give(t));
        let again: Vec<u32> = (0..1000).map(|_| answers.take(1)).collect();
        assert!(again.iter().all(|t| sorted.binary_search(t).is_ok()), "used again");
    }

    #[test]
    fn who_asks_apart_is_the_only_one_to_wait() {
        let answers = Answers::default();
        let (apart, other) = (answers.take_apart(1), answers.take(1));
        assert!(answers.answer(other, 1) && answers.are_all_done() && !answers.is_done(apart));
        assert!(answers.answer(apart, 2) && answers.are_all_done() && answers.value(apart) == 2);
        answers.give(apart);
        // Given up before its answer has come.
        let given_up = answers.take_apart(1);
        answers.give(given_up);
        let taken: Vec<u32> = (0..FIRST).map(|_| answers.take(0)).collect();
        assert!(taken.contains(&apart) && !taken.contains(&given_up));
        assert!(answers.answer(given_up, 3) && answers.are_all_done());
        assert!((0..2 * FIRST).any(|_| answers.take(0) == given_up), "free now");
    }

    #[test]
    fn bytes_come_until_a_slot_is_given_up() {
        let answers = Answers::default();
        let got = Arc::new(std::sync::Mutex::new(vec![0; 6]));
        let number = answers.take(2);
        let there = got.clone();
        answers.set_sink(
            number,
            Box::new(move |at, bytes| there.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes)),
        );
        assert!(answers.answer_with(number, 3, b"def"));
        answers.give(number);
        assert_ne!(answers.take(1), number, "one is still missing");
        assert!(answers.answer_with(number, 0, b"abc"));
        assert_eq!(&got.lock().unwrap()[..], b"\0\0\0def");
        assert!((0..FIRST).any(|_| answers.take(1) == number), "free now");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A slot that was taken for one answer, and a cell that stands for what the answer touches; another thread gives it.
    fn asked(flags: u64) -> (Arc<(Slot, UnsafeCell<u32>)>, loom::thread::JoinHandle<()>) {
        let slot = Arc::new((Slot::default(), UnsafeCell::new(0)));
        assert!(slot.0.take(1, flags));
        let answering = slot.clone();
        let thread = loom::thread::spawn(move || {
            answering.1.with_mut(|p| unsafe { *p += 1 });
            assert!(answering.0.answer(7).is_some());
        });
        (slot, thread)
    }

    /// What an answer brings is there when it is seen to have come.
    #[test]
    fn loom_what_an_answer_brings_is_there() {
        loom::model(|| {
            let (slot, thread) = asked(0);
            while !slot.0.is_done() {
                loom::thread::yield_now();
            }
            assert_eq!((slot.0.value(), slot.1.with(|p| unsafe { *p })), (7, 1));
            slot.0.give();
            thread.join().unwrap();
        });
    }

    /// A rank gives up, and the slot is used again only when nobody uses it any more.
    #[test]
    fn loom_a_slot_is_used_again_when_its_answers_have_come() {
        for flags in [0, APART] {
            loom::model(move || {
                let (slot, thread) = asked(flags);
                slot.0.give();
                let again = slot.0.take(1, 0);
                if again {
                    slot.1.with_mut(|p| unsafe { *p += 1 });
                }
                thread.join().unwrap();
                assert!(again || slot.0.take(1, 0), "free now");
            });
        }
    }
}
