//! Slots that one put fills, and that whoever polls them can tell to be full, in whatever order the bytes arrive: the
//! protocol of a FIFO of bounce buffers, for networks that do not say at the target that a put has come.
//!
//! A slot is a header, the same header again, and a payload. Empty, the first header is all zeros, the second all ones and
//! the payload all zeros. One put writes both headers and the payload. A byte that has not arrived has its old value:
//!
//! * Where the two headers are equal, both bytes are what was sent: a byte of the first that has not arrived is 0, and
//!   equal to its twin only if that has arrived and is 0 too; a byte of the second is 255 likewise; and where neither has, 0
//!   is not 255. So *equal headers are the header that was sent*, though some bytes of it may still be under way, which
//!   change nothing when they arrive.
//! * The header says how many bytes of the payload are zero. A byte that has not arrived is zero, so there are more zeros than
//!   that until *every byte that is not zero has arrived*. Those that are zero may still be under way, and change nothing.
//!
//! So a slot that is [`taken`](take) has been read as it was sent, and may be [emptied](clear) at once. Another put may go
//! to it when it is empty **and** the one before has arrived as a whole: whoever puts sees to both. (This is the "tinysem put" of
//! Berkeley UPC.)
//!
//! # Memory ordering
//! Bytes are written by the network, or by a thread of its library; they are read by atomics, with acquire. Where the network
//! orders nothing the counts above do: what was read has arrived. A slot is emptied with release before its putter is told.
//!
//! It does not contain who puts, who is told, and where slots are.

use crate::sync::{AtomicU64, Ordering::*};

/// Words of a header: three of whoever puts, and one about the payload.
pub const HEADER: usize = 4;
/// The longest payload in bytes.
pub const PAYLOAD: usize = if cfg!(loom) { 8 } else { 1024 };
/// Words of a slot.
pub const SLOT: usize = 2 * HEADER + PAYLOAD / 8;

/// What a put says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// For whoever puts and whoever takes.
    pub words: [u64; 3],
    /// And so much more.
    pub more: u32,
    /// Bytes of payload.
    pub len: usize,
}

/// Fills in what is to be put to a slot: so many bytes of `image`, from its start.
///
/// # Panics
/// If the payload is longer than [`PAYLOAD`].
pub fn fill(image: &mut [u64; SLOT], words: [u64; 3], more: u32, payload: &[u8]) -> usize {
    assert!(payload.len() <= PAYLOAD);
    let zeros = payload.iter().filter(|&&byte| byte == 0).count();
    let last = u64::from(more) << 32 | (payload.len() as u64) << 16 | zeros as u64;
    let header = [words[0], words[1], words[2], last];
    image[..HEADER].copy_from_slice(&header);
    image[HEADER..2 * HEADER].copy_from_slice(&header);
    let (start, end) = (16 * HEADER, 16 * HEADER + payload.len());
    bytemuck::cast_slice_mut::<u64, u8>(image)[start..end].copy_from_slice(payload);
    end
}

/// Makes a slot empty; nothing is under way to it that changes it.
pub fn clear(slot: &[AtomicU64; SLOT]) {
    for (i, word) in slot.iter().enumerate() {
        word.store(if (HEADER..2 * HEADER).contains(&i) { u64::MAX } else { 0 }, Release);
    }
}

/// Reads a slot if all of it has arrived: what it says, and the payload into `to`.
pub fn take(slot: &[AtomicU64; SLOT], to: &mut [u64; PAYLOAD / 8]) -> Option<Said> {
    let word = |i: usize| slot[i].load(Acquire);
    // The last word of an empty slot is never equal to its twin, so a look at an empty slot is two loads.
    let last = word(HEADER - 1);
    if last != word(2 * HEADER - 1) || (0..HEADER - 1).any(|i| word(i) != word(HEADER + i)) {
        return None;
    }
    let (len, want) = (usize::from((last >> 16) as u16), u32::from(last as u16));
    // None of our putters says so.
    let len = Some(len).filter(|&len| len <= PAYLOAD)?;
    let words = len.div_ceil(8);
    let mut zeros = 0;
    for (i, place) in to[..words].iter_mut().enumerate() {
        *place = word(2 * HEADER + i);
        zeros += zero_bytes(*place);
    }
    // Those that fill up the last word were not sent.
    if zeros != want + (8 * words - len) as u32 {
        return None;
    }
    Some(Said { words: [word(0), word(1), word(2)], more: (last >> 32) as u32, len })
}

/// How many bytes of a word are zero.
fn zero_bytes(word: u64) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The high bit of each byte: is any bit of it set?
    8 - ((((word & LOW) + LOW) | word) & !LOW).count_ones()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn empty() -> Box<[AtomicU64; SLOT]> {
        let slot = Box::new(std::array::from_fn(|_| AtomicU64::new(7)));
        clear(&slot);
        slot
    }

    /// A byte of a put arrives.
    fn arrives(slot: &[AtomicU64; SLOT], image: &[u64; SLOT], i: usize) {
        let mask = u64::from_ne_bytes(std::array::from_fn(|k| if k == i % 8 { 255 } else { 0 }));
        let word = slot[i / 8].load(Relaxed);
        slot[i / 8].store(word & !mask | image[i / 8] & mask, Relaxed);
    }

    fn is_empty(slot: &[AtomicU64; SLOT]) -> bool {
        let fresh = empty();
        slot.iter().zip(&*fresh).all(|(a, b)| a.load(Relaxed) == b.load(Relaxed))
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
        }

        /// Half of them are such as arriving does not change.
        fn byte(&mut self) -> u8 {
            [0, 255, 1, 128, self.below(256) as u8, 0][self.below(6)]
        }

        fn word(&mut self) -> u64 {
            u64::from_ne_bytes(std::array::from_fn(|_| self.byte()))
        }
    }

    /// Would it make a difference if this byte had not arrived?
    fn matters(image: &[u64; SLOT], i: usize) -> bool {
        let byte = bytemuck::cast_slice::<u64, u8>(image)[i];
        byte != if (8 * HEADER..16 * HEADER).contains(&i) { 255 } else { 0 }
    }

    #[test]
    fn zero_bytes_are_counted() {
        let mut random = Random(3);
        for _ in 0..100_000 {
            let word = random.word();
            let want = word.to_ne_bytes().iter().filter(|&&byte| byte == 0).count();
            assert_eq!(zero_bytes(word), want as u32, "{word:#x}");
        }
        assert_eq!((zero_bytes(0), zero_bytes(u64::MAX), zero_bytes(0x0101_0101_0101_0101)), (8, 0, 0));
    }

    /// Every subset of the bytes that can make a difference, where there are few: a slot is taken when all have arrived, and
    /// what is read is what was sent; or when those that are missing change nothing.
    #[test]
    fn a_slot_is_taken_exactly_when_all_has_arrived() {
        let cases: [([u64; 3], u32, &[u8]); 6] = [
            ([0, 0, 0], 0, &[]),
            ([0, u64::MAX, 0], 0, &[0, 9]),
            ([1, 0, u64::MAX], 0, &[0, 0, 7]),
            ([0, 0, 0], u32::MAX, &[5, 0, 6, 0, 0, 0, 0, 0, 0, 7]),
            ([0x8000_0000_0000_0000, 0xff, 0], 1, &[255; 3]),
            ([u64::MAX; 3], u32::MAX, &[0; 17]),
        ];
        let mut read = [0; PAYLOAD / 8];
        for (words, more, payload) in cases {
            let mut image = [0; SLOT];
            let end = fill(&mut image, words, more, payload);
            // A header's byte counts by its two copies: at least one of 0 and 255 matters. Bytes beyond twenty are of the
            // header and alike; they have arrived.
            let all: Vec<usize> = (0..end).filter(|&i| matters(&image, i)).collect();
            let payload_first = |&i: &usize| std::cmp::Reverse(i);
            let mut some = all.clone();
            some.sort_by_key(payload_first);
            some.truncate(16);
            for subset in 0u32..1 << some.len() {
                let slot = empty();
                let missing = |i: &usize| some.iter().position(|s| s == i).is_some_and(|k| subset >> k & 1 == 1);
                all.iter().filter(|i| !missing(i)).for_each(|&i| arrives(&slot, &image, i));
                let taken = take(&slot, &mut read);
                assert_eq!(taken.is_some(), subset == 0, "{words:x?} {payload:?}: {subset:#b} of {some:?} are missing");
                if let Some(said) = taken {
                    assert_eq!(said, Said { words, more, len: payload.len() });
                    assert_eq!(bytemuck::cast_slice::<u64, u8>(&read)[..payload.len()], *payload);
                }
            }
        }
    }

    /// Puts of any contents and length whose bytes arrive in any order and in pieces, one after the other in one slot.
    #[test]
    fn bytes_arrive_in_any_order() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (slot, mut read) = (empty(), [0; PAYLOAD / 8]);
        for round in 0..3000 {
            let len = [0, 1, 7, 8, 9, 64, PAYLOAD, random.below(PAYLOAD + 1)][random.below(8)];
            let payload: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            let words = [random.word(), random.word(), random.word()];
            let mut image = [random.word(); SLOT];
            let end = fill(&mut image, words, random.word() as u32, &payload);
            // Whole pieces, turned around, or single bytes.
            let piece = [1, 1, 8, 64][random.below(4)];
            let mut pieces: Vec<usize> = (0..end.div_ceil(piece)).collect();
            for i in (1..pieces.len()).rev() {
                pieces.swap(i, random.below(i + 1));
            }
            let mut left = (0..end).filter(|&i| matters(&image, i)).count();
            let mut taken = None;
            let mut late = vec![];
            for (n, p) in pieces.into_iter().enumerate() {
                let bytes = piece * p..end.min(piece * (p + 1));
                if taken.is_some() {
                    late.extend(bytes);
                    continue;
                }
                left -= bytes.clone().filter(|&i| matters(&image, i)).count();
                bytes.for_each(|i| arrives(&slot, &image, i));
                // Not at every byte: that takes long, and who polls does not either.
                if left == 0 || n % 64 == 0 || random.below(8) == 0 {
                    taken = take(&slot, &mut read);
                    assert_eq!(taken.is_some(), left == 0, "round {round}: {left} bytes are missing");
                }
            }
            let said = taken.expect("all has arrived");
            assert_eq!((said.words, said.len), (words, len));
            assert_eq!(bytemuck::cast_slice::<u64, u8>(&read)[..len], payload[..]);
            // What is late changes nothing, before and after the slot is emptied.
            let half = late.len() / 2;
            late[..half].iter().for_each(|&i| arrives(&slot, &image, i));
            clear(&slot);
            late[half..].iter().for_each(|&i| arrives(&slot, &image, i));
            assert!(is_empty(&slot) && take(&slot, &mut read).is_none());
        }
    }

    #[test]
    #[should_panic]
    fn a_payload_that_does_not_fit_is_refused() {
        fill(&mut [0; SLOT], [0; 3], 0, &[0; PAYLOAD + 1]);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Two puts, one after the other, whose words arrive in some order while another thread polls: both are read as they were
    /// sent. The second one begins when it is told that the slot is empty.
    #[test]
    fn loom_puts_are_taken_whole() {
        for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1, 0], [3, 7, 0, 4, 8, 2, 6, 1, 5]] {
            let mut model = loom::model::Builder::new();
            // Nine words, and as many looks: with more it does not end.
            model.preemption_bound = model.preemption_bound.or(Some(2));
            model.check(move || {
                let slot: Arc<[AtomicU64; SLOT]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
                clear(&slot);
                let emptied = Arc::new(AtomicU64::new(0));
                let network = {
                    let (slot, emptied) = (slot.clone(), emptied.clone());
                    loom::thread::spawn(move || {
                        for n in 1..=2u64 {
                            while emptied.load(Acquire) + 1 < n {
                                loom::thread::yield_now();
                            }
                            let mut image = [0; SLOT];
                            fill(&mut image, [n, 0, u64::MAX], 1, &[0, n as u8]);
                            order.iter().for_each(|&i| slot[i].store(image[i], Relaxed));
                        }
                    })
                };
                for n in 1..=2u64 {
                    let mut payload = [0; PAYLOAD / 8];
                    let said = loop {
                        match take(&slot, &mut payload) {
                            Some(said) => break said,
                            None => loom::thread::yield_now(),
                        }
                    };
                    assert_eq!(said, Said { words: [n, 0, u64::MAX], more: 1, len: 2 });
                    assert_eq!(bytemuck::cast_slice::<u64, u8>(&payload)[..2], [0, n as u8]);
                    clear(&slot);
                    emptied.store(n, Release);
                }
                network.join().unwrap();
            });
        }
    }
}
