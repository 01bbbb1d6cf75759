//! Slots that one put fills, and that whoever polls them can tell to be full, in whatever order the bytes arrive, and however often:
//! the protocol of a FIFO of bounce buffers, for networks that do not say at the target that a put has come.
//!
//! A slot is a header, its twin, and a payload. Nobody empties it: a byte of it is what the put before has left there until it arrives, and both sides
//! know what that was. The twin of a header is equal to it in every second put, and in the others all of its bits are turned round.
//! At first a slot is as if the put before had been one of those: the header is zeros, its twin ones, the payload zeros.
//!
//! * Take a byte of the header that was `x` before, and is `y`; its twin was `!x`, and is `y`. If neither has arrived they are not equal, since `x` is not `!x`.
//!   If only the header's has, they are equal if `y` is `!x`, and then the twin is what it will be; if only the twin's has, they are equal if `y` is
//!   `x`, and then the header's is what it will be. If the twin was `x`, and is `!y`, the same holds for being the other's reverse. So *a header and a twin that are as this put makes them
//!   are the header that was sent*, though some bytes of it may still be under way, which change nothing when they arrive.
//! * The header says how many bytes of the payload differ from those that were there. A byte that has not arrived does not, so there are fewer until *every byte
//!   that differs has arrived*. The others may still be under way, and change nothing.
//!
//! So a slot that is [taken](take) has been read as it was sent. Bytes may arrive again after that, too: copies of processors store some twice, so
//! whoever takes it may do so between the two. They are the same, so that changes nothing either. (If slots were emptied, it would fill them again.) Another put may go
//! to a slot when it has been taken **and** the one before has arrived as a whole: whoever puts sees to both. (The "tinysem put" of
//! Berkeley UPC is like this, with slots that are emptied.)
//!
//! # Memory ordering
//! Bytes are written by the network, or by a thread of its library; they are read by atomics, with acquire. Where the network
//! orders nothing the counts above do: what was read has arrived. A slot has been read before its putter is told.
//!
//! It does not contain who puts, who is told, and where slots are.

use crate::sync::{AtomicU64, Ordering::*};

/// Words of a header: three of whoever puts, and one about the payload.
pub const HEADER: usize = 4;
/// The longest payload in bytes.
pub const PAYLOAD: usize = if cfg!(loom) { 8 } else { 1024 };
/// Words of a slot.
pub const SLOT: usize = 2 * HEADER + PAYLOAD / 8;

/// What is in a slot, as both sides know it.
pub type Content = [u64; SLOT];

/// What is in it before the first put.
pub const FRESH: Content = {
    let mut content = [0; SLOT];
    let mut i = HEADER;
    while i < 2 * HEADER {
        content[i] = u64::MAX;
        i += 1;
    }
    content
};

/// What a put says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// For whoever puts and whoever takes.
    pub words: [u64; 3],
    /// And so much more.
    pub more: u32,
    /// Bytes of payload, which are in the content then, from [`payload`] on.
    pub len: usize,
}

/// The payload that is in there, of so many bytes.
pub fn payload(content: &Content, len: usize) -> &[u8] {
    &bytemuck::cast_slice(&content[2 * HEADER..])[..len]
}

/// By which bits the twin of the next header differs from it.
fn next_twin(content: &Content) -> u64 {
    if content[0] == content[HEADER] { u64::MAX } else { 0 }
}

/// Fills in what is to be put to a slot that has this content: so many bytes of `image`, from its start. When that has been sent, the slot
/// [has it](sent).
///
/// # Panics
/// If the payload is longer than [`PAYLOAD`].
pub fn fill(image: &mut Content, before: &Content, words: [u64; 3], more: u32, payload: &[u8]) -> usize {
    assert!(payload.len() <= PAYLOAD);
    let differ = payload.iter().zip(self::payload(before, payload.len())).filter(|(new, old)| new != old).count();
    let last = u64::from(more) << 32 | (payload.len() as u64) << 16 | differ as u64;
    let (header, twin) = ([words[0], words[1], words[2], last], next_twin(before));
    image[..HEADER].copy_from_slice(&header);
    image[HEADER..2 * HEADER].copy_from_slice(&header.map(|word| word ^ twin));
    let (start, end) = (16 * HEADER, 16 * HEADER + payload.len());
    bytemuck::cast_slice_mut::<u64, u8>(image)[start..end].copy_from_slice(payload);
    end
}

/// So many bytes of the image were sent.
pub fn sent(image: &Content, len: usize, before: &mut Content) {
    bytemuck::cast_slice_mut::<u64, u8>(before)[..len].copy_from_slice(&bytemuck::cast_slice(image)[..len]);
}

/// Makes a slot, before the first put.
pub fn fresh() -> [AtomicU64; SLOT] {
    std::array::from_fn(|i| AtomicU64::new(FRESH[i]))
}

/// Reads a slot that had this content, if all of the next put has arrived: what that says, and what the slot has then.
pub fn take(slot: &[AtomicU64; SLOT], content: &mut Content) -> Option<Said> {
    let twin = next_twin(content);
    let word = |i: usize| slot[i].load(Acquire);
    // The last word of what was there before is never as the next put makes it, so a look at an old slot is two loads.
    let last = word(HEADER - 1);
    if word(2 * HEADER - 1) != last ^ twin {
        return None;
    }
    let words: [u64; 3] = std::array::from_fn(word);
    if (0..HEADER - 1).any(|i| word(HEADER + i) != words[i] ^ twin) {
        return None;
    }
    let (len, want) = (usize::from((last >> 16) as u16), u32::from(last as u16));
    // None of our putters says so.
    let len = Some(len).filter(|&len| len <= PAYLOAD)?;
    let payload = 2 * HEADER..2 * HEADER + len.div_ceil(8);
    if payload.clone().map(|i| 8 - zero_bytes(word(i) ^ content[i])).sum::<u32>() != want {
        return None;
    }
    // They have arrived, so they are what they were.
    payload.for_each(|i| content[i] = word(i));
    let header = [words[0], words[1], words[2], last];
    content[..HEADER].copy_from_slice(&header);
    content[HEADER..2 * HEADER].copy_from_slice(&header.map(|word| word ^ twin));
    Some(Said { words, more: (last >> 32) as u32, len })
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

    /// A byte of a put arrives.
    fn arrives(slot: &[AtomicU64; SLOT], image: &Content, i: usize) {
        let mask = u64::from_ne_bytes(std::array::from_fn(|k| if k == i % 8 { 255 } else { 0 }));
        let word = slot[i / 8].load(Relaxed);
        slot[i / 8].store(word & !mask | image[i / 8] & mask, Relaxed);
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
        }

        /// Many of them are such as arriving does not change.
        fn byte(&mut self) -> u8 {
            [0, 255, 1, 254, self.below(256) as u8, 0][self.below(6)]
        }

        fn word(&mut self) -> u64 {
            u64::from_ne_bytes(std::array::from_fn(|_| self.byte()))
        }
    }

    /// The bytes that a put changes.
    fn changed(image: &Content, before: &Content, end: usize) -> Vec<usize> {
        let bytes = |content| bytemuck::cast_slice::<u64, u8>(content);
        (0..end).filter(|&i| bytes(image)[i] != bytes(before)[i]).collect()
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

    /// Every subset of the bytes that a put changes, where there are few, after every other put: a slot is taken when all have arrived, and
    /// what is read is what was sent.
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
        for (first, second) in cases.iter().flat_map(|first| cases.iter().map(move |second| (first, second))) {
            // Both are put, the first one after an even or odd number of others.
            for turns in 0..2 {
                let (mut image, mut before) = (FRESH, FRESH);
                for _ in 0..turns {
                    let end = fill(&mut image, &before, [7; 3], 7, &[7; 4]);
                    sent(&image, end, &mut before);
                }
                let end = fill(&mut image, &before, first.0, first.1, first.2);
                sent(&image, end, &mut before);
                let (words, more, payload) = *second;
                let end = fill(&mut image, &before, words, more, payload);
                let all = changed(&image, &before, end);
                // Of the payload first; those beyond ten have arrived.
                let some: Vec<usize> = all.iter().rev().copied().take(10).collect();
                for subset in 0u32..1 << some.len() {
                    let slot: [AtomicU64; SLOT] = std::array::from_fn(|i| AtomicU64::new(before[i]));
                    let missing = |i: &usize| some.iter().position(|s| s == i).is_some_and(|k| subset >> k & 1 == 1);
                    all.iter().filter(|i| !missing(i)).for_each(|&i| arrives(&slot, &image, i));
                    let mut content = before;
                    let taken = take(&slot, &mut content);
                    // A byte of the header that has not arrived is told by its twin, and the other way round.
                    assert!(subset != 0 || taken.is_some(), "{first:x?}, {second:x?}");
                    assert!(taken.is_some() || content == before);
                    if let Some(said) = taken {
                        assert_eq!(subset, 0, "{first:x?}, {second:x?}: {subset:#b} of {some:?} are missing");
                        assert_eq!(said, Said { words, more, len: payload.len() });
                        assert_eq!(self::payload(&content, said.len), payload);
                    }
                }
            }
        }
    }

    /// Puts of any contents and length whose bytes arrive in any order, in pieces, and some of them again at any time until the next one begins, one after the other in one slot.
    #[test]
    fn bytes_arrive_in_any_order_and_again() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (slot, mut image, mut before, mut content) = (fresh(), FRESH, FRESH, FRESH);
        for round in 0..3000 {
            let len = [0, 1, 7, 8, 9, 64, PAYLOAD, random.below(PAYLOAD + 1)][random.below(8)];
            let data: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            // At times the same as before.
            let words =
                if random.below(4) == 0 { [before[0], before[1], before[2]] } else { [0; 3].map(|_| random.word()) };
            if random.below(4) == 0 {
                // One that could not be sent.
                fill(&mut image, &before, [random.word(); 3], 9, &[random.byte(); 50]);
            }
            let end = fill(&mut image, &before, words, random.word() as u32, &data);
            // Whole pieces, turned around, or single bytes.
            let piece = [1, 1, 8, 64][random.below(4)];
            let mut pieces: Vec<usize> = (0..end.div_ceil(piece)).collect();
            for i in (1..pieces.len()).rev() {
                pieces.swap(i, random.below(i + 1));
            }
            let mut left = changed(&image, &before, end);
            let (mut taken, mut arrived) = (None, vec![]);
            for (n, p) in pieces.into_iter().enumerate() {
                let bytes = piece * p..end.min(piece * (p + 1));
                left.retain(|i| !bytes.contains(i));
                bytes.clone().for_each(|i| arrives(&slot, &image, i));
                arrived.extend(bytes);
                if random.below(16) == 0 {
                    let again = random.below(arrived.len());
                    arrived[again..].iter().for_each(|&i| arrives(&slot, &image, i));
                }
                // Not at every byte: that takes long, and who polls does not either.
                if taken.is_none() && (left.is_empty() || n % 64 == 0 || random.below(8) == 0) {
                    taken = take(&slot, &mut content);
                    assert_eq!(taken.is_some(), left.is_empty(), "round {round}: {left:?} are missing");
                }
            }
            let said = taken.expect("all has arrived");
            assert_eq!((said.words, said.len), (words, len));
            assert_eq!(payload(&content, len), data);
            // What comes again changes nothing, also after it was taken.
            arrived[random.below(end)..].iter().for_each(|&i| arrives(&slot, &image, i));
            assert_eq!(take(&slot, &mut content), None, "round {round}");
            sent(&image, end, &mut before);
            assert_eq!(content, before, "both sides know what is there");
        }
    }

    #[test]
    #[should_panic]
    fn a_payload_that_does_not_fit_is_refused() {
        fill(&mut { FRESH }, &FRESH, [0; 3], 0, &[0; PAYLOAD + 1]);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Two puts, one after the other, whose words arrive in some order, some of them twice, while another thread polls: both are read as they were
    /// sent. The second one begins when it is told that the first was taken.
    #[test]
    fn loom_puts_are_taken_whole() {
        for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1, 0], [3, 7, 0, 4, 8, 2, 6, 1, 5]] {
            let mut model = loom::model::Builder::new();
            // Nine words, and as many looks: with more it does not end.
            model.preemption_bound = model.preemption_bound.or(Some(2));
            model.check(move || {
                let (slot, taken) = (Arc::new(fresh()), Arc::new(AtomicU64::new(0)));
                let network = {
                    let (slot, taken) = (slot.clone(), taken.clone());
                    loom::thread::spawn(move || {
                        let (mut image, mut before) = (FRESH, FRESH);
                        for n in 1..=2u64 {
                            while taken.load(Acquire) + 1 < n {
                                loom::thread::yield_now();
                            }
                            let len = fill(&mut image, &before, [n, 0, u64::MAX], 1, &[0, n as u8]);
                            order.iter().chain(&order[7..]).for_each(|&i| slot[i].store(image[i], Relaxed));
                            sent(&image, len, &mut before);
                        }
                    })
                };
                let mut content = FRESH;
                for n in 1..=2u64 {
                    let said = loop {
                        match take(&slot, &mut content) {
                            Some(said) => break said,
                            None => loom::thread::yield_now(),
                        }
                    };
                    assert_eq!(said, Said { words: [n, 0, u64::MAX], more: 1, len: 2 });
                    assert_eq!(payload(&content, 2), [0, n as u8]);
                    taken.store(n, Release);
                }
                network.join().unwrap();
            });
        }
    }
}
