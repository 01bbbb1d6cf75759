//! Buffers for payloads that do not fit into a slot. Each rank owns three pools in its shared memory, for its requests, its
//! calls and its replies; whoever receives a message reads the payload where it is and gives the buffer back.
//!
//! No receiver holds more than half of a pool (where there are others), so that one that does not read does not stop the
//! messages to all.
//!
//! A pool has many small buffers and a few large ones. A buffer is a word with its state, in the payload's first line so
//! that both come with one transfer, the payload, and room for arguments that do not fit into the slot.
//!
//! # Memory ordering
//! The owner takes a buffer (free to busy, acquire), writes it and sends its place in a slot, whose release store
//! publishes the bytes. The receiver stores free with release when it has read them. So each side has the bytes
//! to itself in turn: between taking and giving back nobody else touches them, and references to them are sound.

#[cfg(not(loom))]
use crate::am::ARGS;
#[cfg(not(loom))]
use crate::line::{prefetch_to_read, prefetch_to_write};
use crate::sync::{AtomicU32, Ordering::*};
#[cfg(not(loom))]
use core::sync::atomic::AtomicU16;

/// The longest payload.
pub const LARGE: usize = 64 << 10;
/// The longest payload of a small buffer.
pub const SMALL: usize = 4096;
const SMALLS: usize = 32;
const LARGES: usize = 8;
/// Bytes before the payload.
const FRONT: usize = 8;
/// An odd number of lines, so that buffers do not all fall into the same sets of a cache.
const SMALL_STRIDE: usize = SMALL + 3 * 64;
const LARGE_STRIDE: usize = LARGE + 3 * 64;
const LARGE_FROM: usize = SMALLS * SMALL_STRIDE;
/// Bytes of a pool.
pub const LEN: usize = LARGE_FROM + LARGES * LARGE_STRIDE;

/// Nobody has had this buffer yet. (There are fewer ranks.)
const NOBODY: u16 = u16::MAX;

/// One of the two kinds of buffers: how many, from where, how far apart, for how much.
#[derive(Clone, Copy)]
struct Kind {
    index: usize,
    first: usize,
    n: usize,
    from: usize,
    stride: usize,
    room: usize,
}
const SMALL_ONES: Kind = Kind { index: 0, first: 0, n: SMALLS, from: 0, stride: SMALL_STRIDE, room: SMALL };
const LARGE_ONES: Kind =
    Kind { index: 1, first: SMALLS, n: LARGES, from: LARGE_FROM, stride: LARGE_STRIDE, room: LARGE };

#[cfg(not(loom))]
const _: () = assert!(FRONT + ARGS <= 3 * 64);
const _: () = assert!((SMALL_STRIDE / 64) % 2 == 1 && (LARGE_STRIDE / 64) % 2 == 1);

/// The state of a buffer, in a line of its own; zeroed memory is a free one.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug, Default)]
pub struct State(AtomicU32);

impl State {
    /// Takes the buffer if it is free.
    #[inline(always)]
    pub fn take(&self) -> bool {
        self.0.load(Relaxed) == 0 && self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Does somebody have it?
    #[inline(always)]
    pub fn is_taken(&self) -> bool {
        self.0.load(Relaxed) == 1
    }

    /// Gives it back.
    #[inline(always)]
    pub fn give(&self) {
        self.0.store(0, Release);
    }
}

/// A pool as its owner uses it.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Pool {
    base: *mut u8,
    /// Which of the first two is looked at first, small and large: a rank that waits for each answer uses these two in turn
    /// and finds their lines at hand, the next one's while the last one travels.
    hot: [AtomicU32; 2],
    /// Where the search goes on.
    next: [AtomicU32; 2],
    /// For whom each buffer was taken last.
    holder: [AtomicU16; SMALLS + LARGES],
    /// How many of either kind each receiver has as its last holder: at least as many as it really holds.
    held: Box<[[AtomicU16; 2]]>,
}

// SAFETY: an address; buffers are taken by compare-and-exchange.
#[cfg(not(loom))]
unsafe impl Send for Pool {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Pool {}

/// A buffer in this process's address space.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    at: *mut u8,
    room: usize,
}

#[cfg(not(loom))]
impl Pool {
    /// For messages to any of `receivers`.
    ///
    /// # Safety
    /// [`LEN`] bytes from `base`, at the start of a line, are shared memory that was zeroed at first, is used as a pool
    /// by everybody and stays mapped as long as the pool and its buffers are used.
    pub unsafe fn new(base: *mut u8, receivers: usize) -> Pool {
        let held = (0..receivers).map(|_| Default::default()).collect();
        Pool {
            base,
            hot: Default::default(),
            next: Default::default(),
            holder: [const { AtomicU16::new(NOBODY) }; _],
            held,
        }
    }

    /// Takes a buffer for `len` bytes to a receiver, and the place by which it finds it.
    #[inline(always)]
    pub fn take(&self, receiver: usize, len: usize) -> Option<(Buffer, u32)> {
        let found = (len <= SMALL).then(|| self.search(receiver, SMALL_ONES)).flatten();
        found.or_else(|| self.search(receiver, LARGE_ONES))
    }

    #[inline(always)]
    fn search(&self, receiver: usize, kind: Kind) -> Option<(Buffer, u32)> {
        // At its limit it may have again what it has given back. Two ranks, of which one is the owner, share nothing.
        let limit = if self.held.len() <= 2 { kind.n } else { kind.n / 2 };
        let only_its_own = self.held[receiver][kind.index].load(Relaxed) as usize >= limit;
        let hot = self.hot[kind.index].load(Relaxed) as usize;
        if let Some(found) = self.try_take(receiver, kind, hot, only_its_own) {
            self.hot[kind.index].store(1 - hot as u32, Relaxed);
            return Some(found);
        }
        let first = self.next[kind.index].load(Relaxed) as usize;
        for i in (0..kind.n).map(|i| (first + i) % kind.n) {
            if let Some(found) = self.try_take(receiver, kind, i, only_its_own) {
                self.next[kind.index].store(((i + 1) % kind.n) as u32, Relaxed);
                return Some(found);
            }
        }
        None
    }

    /// Takes the i-th buffer of a kind if it is free.
    #[inline(always)]
    fn try_take(&self, receiver: usize, kind: Kind, i: usize, only_its_own: bool) -> Option<(Buffer, u32)> {
        let holder = &self.holder[kind.first + i];
        if only_its_own && holder.load(Relaxed) != receiver as u16 {
            return None;
        }
        let place = kind.from + i * kind.stride;
        // SAFETY: inside the pool.
        let buffer = Buffer { at: unsafe { self.base.add(place) }, room: kind.room };
        if !buffer.state().take() {
            return None;
        }
        // Read again now that it is ours: other threads of this rank's process may have had it in between.
        let before = holder.load(Relaxed);
        if before != receiver as u16 {
            holder.store(receiver as u16, Relaxed);
            self.held[receiver][kind.index].fetch_add(1, Relaxed);
            if before != NOBODY {
                self.held[before as usize][kind.index].fetch_sub(1, Relaxed);
            }
        }
        Some((buffer, place as u32))
    }

    /// Asks for the lines that the next payload of this length will be written to, while the last one travels.
    #[inline(always)]
    pub fn prefetch(&self, len: usize) {
        let kind = if len > SMALL { LARGE_ONES } else { SMALL_ONES };
        let place = kind.from + self.hot[kind.index].load(Relaxed) as usize * kind.stride;
        for line in (0..FRONT + len.min(2048)).step_by(64) {
            prefetch_to_write(self.base.wrapping_add(place + line));
        }
    }
}

#[cfg(not(loom))]
impl Buffer {
    /// The buffer at a place that somebody else told, in the pool that begins at `base`; `None` if none begins there, it
    /// does not have `len` bytes, or nobody has it.
    ///
    /// # Safety
    /// As for [`Pool::new`].
    #[inline(always)]
    pub unsafe fn find(base: *mut u8, place: u32, len: usize) -> Option<Buffer> {
        let place = place as usize;
        let (start, room) = match place < LARGE_FROM {
            true => (place.is_multiple_of(SMALL_STRIDE), SMALL),
            false => ((place - LARGE_FROM).is_multiple_of(LARGE_STRIDE) && place < LEN, LARGE),
        };
        if !start || len > room {
            return None;
        }
        // SAFETY: inside the pool.
        let buffer = Buffer { at: unsafe { base.add(place) }, room };
        buffer.state().is_taken().then_some(buffer)
    }

    fn state(&self) -> &State {
        // SAFETY: the first word of a buffer in a pool, which stays mapped.
        unsafe { &*self.at.cast() }
    }

    /// Where arguments go: 64 bytes.
    #[inline(always)]
    pub fn args(&self) -> *mut u8 {
        // SAFETY: after the payload, inside the buffer's stride.
        unsafe { self.at.add(FRONT + self.room) }
    }

    /// Where the payload goes.
    #[inline(always)]
    pub fn payload(&self) -> *mut u8 {
        // SAFETY: after the state.
        unsafe { self.at.add(FRONT) }
    }

    /// Asks for the lines of a payload that will be read, the first one to give the buffer back.
    #[inline(always)]
    pub fn prefetch(&self, len: usize) {
        prefetch_to_write(self.at);
        for line in (64..FRONT + len.min(2048)).step_by(64) {
            prefetch_to_read(self.at.wrapping_add(line));
        }
    }

    /// Bytes of payload that fit.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Gives it back to its owner, who may then write to it.
    #[inline(always)]
    pub fn give(self) {
        self.state().give();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_found_and_used_again() {
        let mut memory = vec![0u64; LEN / 8 + 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: on a line, long enough, zeroed, and alive until the end.
        let (base, pool) = unsafe {
            let base = base.add(base.align_offset(64));
            (base, Pool::new(base, 2))
        };
        for len in [0, 1, SMALL, SMALL + 1, LARGE] {
            let mut held = vec![];
            while let Some((buffer, place)) = pool.take(1, len) {
                assert!(buffer.room() >= len);
                // SAFETY: the same pool.
                let found = unsafe { Buffer::find(base, place, len) }.unwrap();
                assert_eq!((found.at, found.room), (buffer.at, buffer.room));
                held.push((buffer.at as usize, buffer.room, buffer));
            }
            assert_eq!(held.len(), if len <= SMALL { SMALLS + LARGES } else { LARGES });
            held.sort_by_key(|h| h.0);
            assert!(held.windows(2).all(|w| w[0].0 + FRONT + w[0].1 < w[1].0));
            assert!(held.iter().all(|h| h.0 >= base as usize && h.0 + FRONT + h.1 <= base as usize + LEN));
            held.into_iter().for_each(|h| h.2.give());
        }
        // Who does not give back leaves half of them to others, and may have its own again.
        // SAFETY: as above; all are free.
        let pool = unsafe { Pool::new(base, 5) };
        let take_all = |receiver, len| std::iter::from_fn(|| pool.take(receiver, len)).collect::<Vec<_>>();
        let (first, second) = (take_all(0, 1), take_all(1, LARGE));
        assert_eq!((first.len(), second.len()), (SMALLS / 2 + LARGES / 2, LARGES / 2));
        assert_eq!(take_all(2, 1).len(), SMALLS / 2);
        first[0].0.give();
        assert!(pool.take(0, 1).is_some() && pool.take(0, 1).is_none());
        second[0].0.give();
        assert!(pool.take(3, LARGE).is_some() && pool.take(1, LARGE).is_none());
        for (place, len) in
            [(1, 0), (64, 0), (0, SMALL + 1), (LARGE_FROM as u32 + 64, 0), (LEN as u32, 0), (u32::MAX, 1)]
        {
            // SAFETY: as above.
            assert!(unsafe { Buffer::find(base, place, len) }.is_none(), "{place} {len}");
        }
    }
}

/// A buffer goes to and fro between its owner and a receiver.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[test]
    fn loom_a_buffer_has_one_user_at_a_time() {
        loom::model(|| {
            let shared = Arc::new((State::default(), UnsafeCell::new(0u64), AtomicU32::new(0)));
            let s = shared.clone();
            let receiver = loom::thread::spawn(move || {
                let (state, payload, sent) = &*s;
                for i in 1..=2 {
                    while sent.load(Acquire) != i {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom checks that nobody writes meanwhile; that is what is tested.
                    assert_eq!(payload.with(|p| unsafe { *p }), u64::from(i));
                    state.give();
                }
            });
            let (state, payload, sent) = &*shared;
            for i in 1..=2 {
                while !state.take() {
                    loom::thread::yield_now();
                }
                // SAFETY: as above.
                payload.with_mut(|p| unsafe { *p = u64::from(i) });
                sent.store(i, Release);
            }
            receiver.join().unwrap();
        });
    }
}
