//! One suite per contract, run under every mapping: what every job must do, however its ranks are laid out.
//!
//! [`memory`] is the suite of the memory part: identity, allocation, put, get, barriers, misuse. [`mod@array`] is that of arrays
//! and phases, [`region`] that of vector, indexed and strided copies, [`atomic`] that of atomics and events, [`lock`] that of locks, [`slots`] and [`halo`] those of lanes and of what is built of them,
//! [`am`] that of active messages, [`rpc`] that of calls and of objects that every rank has, [`signal`] and [`ways`] those of
//! semaphores and of signals by every way, [`mod@register`] that of registered memory, [`remote`] that of other threads of ranks, [`mailbox`] that of mailboxes, [`coll`], [`again`], [`late`], [`mod@reduce`] and [`counts`] those of collectives, [`team`] that of teams, [`found`] what reviews found, [`litmus`] what the
//! memory model promises. [`soak`] is random traffic with checked contents, for as long as one likes.

use partage::prelude::*;
use partage::serde::de::Visitor;
use partage::serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

pub mod again;
pub mod am;
pub mod array;
pub mod atomic;
pub mod coll;
pub mod counts;
pub mod found;
pub mod halo;
pub mod late;
pub mod litmus;
pub mod lock;
pub mod mailbox;
pub mod memory;
pub mod reduce;
pub mod region;
pub mod register;
pub mod remote;
pub mod rpc;
pub mod signal;
pub mod slots;
pub mod soak;
pub mod team;
pub mod ways;

/// A case: a program of all ranks.
pub type Case = (&'static str, fn(&Job));

/// All cases, in their order.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    memory::CASES
        .iter()
        .chain(&array::CASES)
        .chain(&region::CASES)
        .chain(&atomic::CASES)
        .chain(&lock::CASES)
        .chain(&signal::CASES)
        .chain(&slots::CASES)
        .chain(&halo::CASES)
        .chain(&am::CASES)
        .chain(&rpc::CASES)
        .chain(&ways::CASES)
        .chain(&register::CASES)
        .chain(&remote::CASES)
        .chain(&mailbox::CASES)
        .chain(&coll::CASES)
        .chain(&late::CASES)
        .chain(&again::CASES)
        .chain(&reduce::CASES)
        .chain(&counts::CASES)
        .chain(&team::CASES)
        .chain(&found::CASES)
        .chain(&litmus::CASES)
}

fn scale() -> f64 {
    std::env::var("SCALE").map_or(1.0, |text| text.parse().expect("SCALE is a number"))
}

/// Is it to be short?
pub fn is_short() -> bool {
    scale() < 0.5
}

/// Of cases that are alike some are left out where a suite is to be short: the same on all ranks.
pub fn is_left_out(random: &mut Random) -> bool {
    random.below(4) > 0 && is_short()
}

/// Are calls of collectives remembered, and later ones like them made by that? Ranks that compare their calls do not.
pub fn is_remembered() -> bool {
    std::env::var("PARTAGE_CHECK").map_or(!cfg!(debug_assertions), |check| check == "0")
}

/// How many messages a flood has, each rank's part: as many in all on few ranks as on many. `SCALE` multiplies it.
pub fn plenty(job: &Job, of_all: usize) -> usize {
    let scale = scale();
    let slower = if cfg!(debug_assertions) { 10.0 } else { 1.0 };
    ((of_all as f64 * scale / slower) as usize / job.size()).max(20)
}

/// A number that looks like no other, from some numbers.
pub fn mixed<const N: usize>(parts: [u64; N]) -> u64 {
    let mut all = 0x9e37_79b9_7f4a_7c15u64;
    for part in parts {
        all = (all ^ part).wrapping_mul(0xff51_afd7_ed55_8ccd);
        all ^= all >> 32;
    }
    all
}

/// Noise, of which all bytes are taken that are to be told apart: to copy and compare it is quick without optimization, too. Its length divides no
/// distance at which something is likely to be misplaced.
static NOISE: [u64; 8191] = {
    let (mut noise, mut word, mut i) = ([0; 8191], 42u64, 0);
    while i < noise.len() {
        word = (word ^ word >> 29).wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(0x9e37_79b9_7f4a_7c15);
        noise[i] = word ^ word >> 32;
        i += 1;
    }
    noise
};

/// The bytes that follow from the seed, by pieces: a word that no other seed has, then noise from a place on that few others have.
fn pieces(seed: u64, len: usize, mut piece: impl FnMut(Range<usize>, &[u8]) -> bool) -> bool {
    let (word, noise) = (mixed([seed]), partage::bytemuck::bytes_of(&NOISE));
    let mut at = len.min(8);
    let mut from = word as usize % noise.len();
    if !piece(0..at, &word.to_ne_bytes()[..at]) {
        return false;
    }
    while at < len {
        let n = (len - at).min(noise.len() - from);
        if !piece(at..at + n, &noise[from..from + n]) {
            return false;
        }
        (at, from) = (at + n, 0);
    }
    true
}

/// Fills with bytes that follow from the seed and the place.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    pieces(seed, bytes.len(), |range, piece| {
        bytes[range].copy_from_slice(piece);
        true
    });
}

/// `len` bytes that follow from the seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, &mut bytes);
    bytes
}

/// Are they those?
pub fn are(seed: u64, bytes: &[u8]) -> bool {
    pieces(seed, bytes.len(), |range, piece| bytes[range] == *piece)
}

/// A value whose bytes follow from the seed.
pub fn value<T: Pod>(seed: u64) -> T {
    let mut value = T::zeroed();
    fill(seed, partage::bytemuck::bytes_of_mut(&mut value));
    value
}

/// Bytes that serde takes in one piece, as it does strings; a vector goes byte by byte, which takes its time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// Myself, ranks of my process and ranks of others, but not so many.
pub fn some_ranks(job: &Job) -> Vec<Rank> {
    if job.size() <= 3 {
        return job.ranks().collect();
    }
    vec![job.rank(), job.neighbor(1), job.neighbor(job.size() as i64 / 2)]
}

/// What a panic said.
pub fn words(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().map(|text| text.to_string()).unwrap_or_default(),
    }
}

/// What `f` says, which panics: nothing is printed, so that a panic that is printed is one that nobody expected.
pub fn refusal<R>(what: &str, f: impl FnOnce() -> R) -> String {
    match attempt(f) {
        Ok(_) => panic!("{what}: went well, and should not have"),
        Err(said) => said,
    }
}

/// What comes of `f`, or what it says if it panics, without printing that.
pub fn attempt<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    thread_local!(static EXPECTED: Cell<bool> = const { Cell::new(false) });
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                hook(info);
            }
        }));
    });
    EXPECTED.set(true);
    let ended = panic::catch_unwind(AssertUnwindSafe(f));
    EXPECTED.set(false);
    ended.map_err(words)
}

/// A small generator, the same on every rank that starts it alike.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The next number below n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() >> 11) as usize % n
    }
}
