//! What a rank is doing, for whoever asks from outside: the launcher, a hang report, the line about a death.
//!
//! One record per rank in shared memory, written by its owner alone and read by anyone at any time, also after the
//! owner was killed in the middle of a write. It promises a consistent reading or none; nothing in the system depends
//! on its contents.
//!
//! # Memory ordering
//! A sequence lock: the owner makes `seq` odd, fences, writes, and makes it even with a release store. A reader loads
//! `seq` with acquire, reads, fences, and loads it again: equal and even means that no write fell in between. All
//! words are atomics, so a torn reading is discarded, not undefined.

#[cfg(not(loom))]
use crate::sync::now_ns;
use crate::sync::{AtomicU64, Ordering::*, full_fence};
use std::fmt;
use std::panic::Location;

const WORDS: usize = 61;

/// The place of a call in the user's source.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The operation, as the user knows it: `barrier`, `alloc_all`.
    pub call: &'static str,
    /// Where it was called.
    pub at: &'static Location<'static>,
}

impl Site {
    /// This call, at the caller's place.
    #[inline(always)]
    #[track_caller]
    pub fn here(call: &'static str) -> Site {
        Site { call, at: Location::caller() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.call, self.at)
    }
}

/// A rank's record: 512 bytes of shared memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Record {
    seq: AtomicU64,
    state: AtomicU64,
    since: AtomicU64,
    text: [AtomicU64; WORDS],
}

impl Default for Record {
    fn default() -> Self {
        let word = || AtomicU64::new(0);
        Record { seq: word(), state: word(), since: word(), text: std::array::from_fn(|_| word()) }
    }
}

/// What a record said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Not in the job yet.
    Starting,
    /// In the program, not waiting (or not long enough to have published it).
    Computing,
    /// In a call, asleep, since this time of [`now_ns`].
    Waiting {
        /// `barrier at src/main.rs:12:9`
        site: String,
        /// Since when.
        since_ns: u64,
    },
    /// It has left the job in good order.
    Ended,
    /// It failed, and this is what it said.
    Failed(String),
}

const STARTING: u64 = 0;
const COMPUTING: u64 = 1;
const WAITING: u64 = 2;
const ENDED: u64 = 3;
const FAILED: u64 = 4;

impl Record {
    /// The owner computes.
    pub fn running(&self) {
        self.write(COMPUTING, format_args!(""));
    }

    /// The owner, who may have said that it waits, has something to do.
    #[inline(always)]
    pub fn awake(&self) {
        if self.state.load(Relaxed) == WAITING {
            self.running();
        }
    }

    /// The owner waits there.
    pub fn waiting(&self, site: &impl fmt::Display) {
        self.write(WAITING, format_args!("{site}"));
    }

    /// The owner, who has said that it waits, still does: what it says may have changed, the time has not.
    #[cfg(not(loom))]
    pub fn still_waiting(&self, site: &impl fmt::Display) {
        self.write_since(WAITING, self.since.load(Relaxed), format_args!("{site}"));
    }

    #[cfg(loom)]
    pub fn still_waiting(&self, _: &impl fmt::Display) {}

    /// The owner has left.
    pub fn ended(&self) {
        self.write(ENDED, format_args!(""));
    }

    /// The owner failed, for this reason.
    pub fn failed(&self, why: &str) {
        self.write(FAILED, format_args!("{why}"));
    }

    /// Where the owner waited last; it stays known while it computes.
    pub fn last_site(&self) -> Option<String> {
        self.consistent(|| self.text())
    }

    /// A consistent reading; `None` when the owner never stopped writing (or died while it wrote).
    pub fn read(&self) -> Option<Doing> {
        let (state, since_ns, text) =
            self.consistent(|| (self.state.load(Relaxed), self.since.load(Relaxed), self.text()))?;
        Some(match state {
            COMPUTING => Doing::Computing,
            WAITING => Doing::Waiting { site: text, since_ns },
            ENDED => Doing::Ended,
            FAILED => Doing::Failed(text),
            STARTING => Doing::Starting,
            _ => return None,
        })
    }

    fn consistent<T>(&self, read: impl Fn() -> T) -> Option<T> {
        for _ in 0..1000 {
            let before = self.seq.load(Acquire);
            if before % 2 == 1 {
                std::thread::yield_now();
                continue;
            }
            let found = read();
            full_fence();
            if self.seq.load(Relaxed) == before {
                return Some(found);
            }
        }
        None
    }

    fn text(&self) -> String {
        let bytes = self.text.iter().flat_map(|w| w.load(Relaxed).to_le_bytes());
        String::from_utf8_lossy(&bytes.take_while(|&b| b != 0).collect::<Vec<u8>>()).into_owned()
    }

    #[cfg(loom)]
    fn write(&self, _state: u64, _text: fmt::Arguments<'_>) {}

    #[cfg(not(loom))]
    fn write(&self, state: u64, text: fmt::Arguments<'_>) {
        self.write_since(state, now_ns(), text);
    }

    #[cfg(not(loom))]
    fn write_since(&self, state: u64, since: u64, text: fmt::Arguments<'_>) {
        let seq = self.seq.load(Relaxed);
        self.seq.store(seq + 1, Relaxed);
        full_fence();
        self.state.store(state, Relaxed);
        self.since.store(since, Relaxed);
        if state == WAITING || state == FAILED {
            let mut out = Words { text: &self.text, word: 0, filled: 0, next: 0 };
            let _ = fmt::Write::write_fmt(&mut out, text);
            out.finish();
        }
        self.seq.store(seq + 2, Release);
    }
}

/// Packs text into the words, without allocation; what does not fit is cut off.
#[cfg(not(loom))]
struct Words<'a> {
    text: &'a [AtomicU64],
    word: u64,
    filled: u32,
    next: usize,
}

#[cfg(not(loom))]
impl fmt::Write for Words<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            if self.next == self.text.len() - 1 {
                return Err(fmt::Error);
            }
            self.word |= u64::from(b) << (8 * self.filled);
            self.filled += 1;
            if self.filled == 8 {
                self.text[self.next].store(self.word, Relaxed);
                (self.word, self.filled, self.next) = (0, 0, self.next + 1);
            }
        }
        Ok(())
    }
}

#[cfg(not(loom))]
impl Words<'_> {
    /// Stores the unfinished word; a zero byte ends the text.
    fn finish(&mut self) {
        self.text[self.next].store(self.word, Relaxed);
        if self.filled == 0 && self.next + 1 < self.text.len() {
            self.text[self.next + 1].store(0, Relaxed);
        }
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Starting => write!(f, "starting"),
            Doing::Computing => write!(f, "computing"),
            Doing::Waiting { site, .. } => write!(f, "in {site}"),
            Doing::Ended => write!(f, "at its end"),
            Doing::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record() -> Box<Record> {
        Box::default()
    }

    #[test]
    fn says_what_was_written_last() {
        let r = record();
        assert_eq!(r.read(), Some(Doing::Starting));
        r.running();
        assert_eq!(r.read(), Some(Doing::Computing));
        r.waiting(&Site::here("barrier"));
        let Some(Doing::Waiting { site, since_ns }) = r.read() else { panic!("{:?}", r.read()) };
        assert!(site.starts_with("barrier at ") && site.contains("record.rs:"), "{site}");
        assert!(since_ns > 0 && since_ns <= now_ns());
        r.failed("x");
        assert_eq!(r.read(), Some(Doing::Failed("x".into())));
        r.ended();
        assert_eq!(r.read(), Some(Doing::Ended));
        assert_eq!(size_of::<Record>(), 512);
    }

    #[test]
    fn texts_of_every_length_come_back_or_are_cut() {
        let r = record();
        for n in 0..600 {
            let text = "abcdefghij".repeat(60)[..n].to_string();
            r.failed(&text);
            assert_eq!(r.read(), Some(Doing::Failed(text[..n.min(8 * (WORDS - 1))].to_string())), "{n}");
        }
    }

    #[test]
    fn an_unfinished_write_is_not_shown() {
        let r = record();
        r.running();
        r.seq.fetch_add(1, Relaxed);
        assert_eq!(r.read(), None);
    }

    #[test]
    fn readers_never_see_a_mix() {
        let r = record();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                for i in 0..100_000u64 {
                    r.failed(&format!("{}", i % 10).repeat(1 + (i % 97) as usize));
                }
                stop.store(true, Relaxed);
            });
            while !stop.load(Relaxed) {
                if let Some(Doing::Failed(t)) = r.read() {
                    assert!(t.bytes().all(|b| b == t.as_bytes()[0]), "{t}");
                }
            }
            // By hand: a sanitizer does not see how a scope waits.
            writer.join().unwrap();
        });
    }
}
