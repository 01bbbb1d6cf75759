//! Lanes: slots of one rank that one other fills, in turn, and the credit that says when it may.
//!
//! The receiver has `depth` slots, each a [`Flag`] and room for elements behind it. The sender fills one after the other, and
//! begins again with the first. A flag says how many elements lie in the slot and in which *turn* they were put: the receiver,
//! which knows the next slot and its turn, looks at that one word. It counts the slots that it has done with in the sender's
//! [`Credit`]. The sender looks there only when it has filled all that it knows to be free.
//!
//! Flag and elements begin in the same cache line: a message of 56 bytes is one line, which goes from core to core once.
//!
//! # Who may touch what
//! Message `k` lies in slot `k mod depth`. The sender fills that slot when the credit has counted message `k - depth`, which the
//! receiver counts when it has done with it. So a slot has one user at a time: the sender from then until it stores the
//! flag, the receiver from when it has seen the flag until it counts.
//!
//! # Memory ordering
//! * The flag's release store and the receiver's acquire load hand the elements over.
//! * The credit's release store (or addition, where a message brings it) and the sender's acquire load hand the slot back: what the
//!   receiver has read is read.
//! * Whoever has stored either makes a light fence and looks at the other's bell (see [`crate::wait`]): a rank that sleeps for it
//!   is woken.
//!
//! Does not contain: where slots lie, and how the two ends find each other ([`crate::shm::lane`]).

use crate::sync::{AtomicU64, Ordering::*, publish};

/// A flag has so many bits for the number of elements.
const LEN_BITS: u32 = 48;
/// Slots of more elements there are not.
pub const MOST_LEN: usize = (1 << LEN_BITS) - 1;
const TURN: u64 = 1 << LEN_BITS;

/// The first word of a slot: the turn in which it was filled, of 16 bits, and how many elements lie in it. Zero: nothing yet.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Flag(AtomicU64);

/// How many slots the receiver has done with. In the sender's memory, in a line of its own.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Credit(AtomicU64);

impl Credit {
    /// So many slots were given back.
    #[inline(always)]
    pub fn given(&self) -> u64 {
        self.0.load(Acquire)
    }
}

/// How far an end is: which slot is next, and in which turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    depth: usize,
    next: usize,
    /// As flags have it.
    turn: u64,
}

impl Place {
    fn new(depth: usize) -> Place {
        assert!(depth > 0);
        Place { depth, next: 0, turn: TURN }
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.depth {
            (self.next, self.turn) = (0, self.turn.wrapping_add(TURN));
        }
    }
}

/// The sender's side.
#[derive(Debug)]
pub struct Sending {
    place: Place,
    sent: u64,
    /// So many may be sent, as far as is known.
    most: u64,
}

impl Sending {
    /// Of a lane with so many slots, all of them free.
    pub fn new(depth: usize) -> Sending {
        Sending { place: Place::new(depth), sent: 0, most: depth as u64 }
    }

    /// How many slots are known to be free.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        self.most - self.sent
    }

    /// How many messages were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Does the credit say that there is room?
    #[inline(always)]
    pub fn may_refill(&self, credit: &Credit) -> bool {
        credit.given() + self.place.depth as u64 > self.sent
    }

    /// Asks the credit whether there is room.
    #[inline(always)]
    pub fn refill(&mut self, credit: &Credit) -> bool {
        self.most = credit.given() + self.place.depth as u64;
        self.most > self.sent
    }

    /// The slot that is next.
    #[inline(always)]
    pub fn slot(&self) -> usize {
        self.place.next
    }

    /// The slot `n` after it.
    #[inline(always)]
    pub fn slot_after(&self, n: usize) -> usize {
        let at = self.place.next + n;
        if at < self.place.depth { at } else { at % self.place.depth }
    }

    /// The next slot is filled with so many elements: what its flag is to say.
    #[inline(always)]
    pub fn filled(&mut self, len: usize) -> u64 {
        debug_assert!(self.room() > 0 && len <= MOST_LEN);
        let flag = self.place.turn | len as u64;
        self.place.advance();
        self.sent += 1;
        flag
    }
}

impl Flag {
    /// Says it, after which there is a light fence: whoever called this may look at the receiver's bell.
    #[inline(always)]
    pub fn raise(&self, flag: u64) {
        publish(&self.0, flag);
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct Receiving {
    place: Place,
    taken: u64,
    given: u64,
}

impl Receiving {
    /// Of a lane with so many slots.
    pub fn new(depth: usize) -> Receiving {
        Receiving { place: Place::new(depth), taken: 0, given: 0 }
    }

    /// The slot that is next.
    #[inline(always)]
    pub fn slot(&self) -> usize {
        self.place.next
    }

    /// How many messages were taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many elements have come to the next slot, whose flag this is; `None` while nothing has.
    #[inline(always)]
    pub fn look(&self, flag: &Flag) -> Option<usize> {
        // As far as the turn goes they are equal, and then the rest is the length.
        let len = flag.0.load(Acquire) ^ self.place.turn;
        (len < TURN).then_some(len as usize)
    }

    /// Takes what lies in the next slot.
    #[inline(always)]
    pub fn take(&mut self) {
        self.place.advance();
        self.taken += 1;
    }

    /// All that was taken is done with: how many more slots that gives back than were given before.
    #[inline(always)]
    pub fn give(&mut self) -> u64 {
        let more = self.taken - self.given;
        self.given = self.taken;
        more
    }

    /// The same where the credit is reached by a store, after which there is a light fence.
    #[inline(always)]
    pub fn give_to(&mut self, credit: &Credit) {
        self.given = self.taken;
        publish(&credit.0, self.given);
    }

    /// How many slots were given back.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Another one that is as far.
    pub fn copied(&self) -> Receiving {
        Receiving { ..*self }
    }

    /// Has everything arrived, if `sent` messages were sent? Flags are found by slot.
    pub fn has_all<'f>(&self, sent: u64, flag: impl Fn(usize) -> &'f Flag) -> bool {
        let mut at = self.copied();
        (self.taken..sent).all(|_| {
            let come = at.look(flag(at.slot())).is_some();
            at.take();
            come
        })
    }
}

/// Where things are in the memory of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many slots there are.
    pub depth: usize,
    /// How many elements each has room for.
    pub len: usize,
    /// Where the elements begin in a slot.
    pub payload: usize,
    /// How far slots are apart.
    pub stride: usize,
    /// To which they are aligned.
    pub align: usize,
}

impl Shape {
    /// Of so many slots, for elements of this size and alignment; `None` beyond all numbers. Elements that fit into the line of
    /// the flag lie there, others begin with the next one: copies are aligned, and a receiver that looks at the flag takes no line
    /// away that is being filled.
    pub fn of(size: usize, align: usize, len: usize, depth: usize) -> Option<Shape> {
        let bytes = len.checked_mul(size)?;
        let beside = align.max(size_of::<u64>());
        let payload = if bytes <= 64usize.saturating_sub(beside) { beside } else { align.max(64) };
        let align = align.max(64);
        let slot = bytes.checked_add(payload)?;
        let stride = slot.checked_next_multiple_of(align)?;
        let fits = stride.checked_mul(depth)? < 1 << 56 && len <= MOST_LEN;
        fits.then_some(Shape { depth, len, payload, stride, align })
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.stride * self.depth
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_filled_and_taken_in_turn() {
        for depth in [1, 2, 3, 8] {
            let (mut to, mut from, credit) = (Sending::new(depth), Receiving::new(depth), Credit::default());
            let flags: Vec<Flag> = (0..depth).map(|_| Flag::default()).collect();
            // So often that turns begin anew.
            for k in 0..200_000u64 {
                let many = 1 + k as usize % depth;
                for i in 0..many {
                    assert!(to.room() > 0 || to.refill(&credit), "{k}");
                    let slot = to.slot();
                    assert_eq!(to.slot_after(depth), slot);
                    flags[slot].raise(to.filled(i * 1000));
                }
                assert!(from.has_all(to.sent(), |i| &flags[i]) && !from.has_all(to.sent() + 1, |i| &flags[i]));
                for i in 0..many {
                    assert_eq!(from.look(&flags[from.slot()]), Some(i * 1000));
                    from.take();
                }
                assert_eq!((from.look(&flags[from.slot()]), from.taken()), (None, to.sent()));
                from.give_to(&credit);
            }
            assert_eq!((credit.given(), from.give()), (from.taken(), 0));
        }
    }

    #[test]
    fn there_is_no_room_until_some_was_given() {
        let (mut to, mut from, credit) = (Sending::new(2), Receiving::new(2), Credit::default());
        (0..2).for_each(|_| _ = to.filled(0));
        assert!(to.room() == 0 && !to.may_refill(&credit) && !to.refill(&credit));
        from.take();
        from.take();
        assert_eq!(from.give(), 2);
        credit.0.fetch_add(1, Release);
        assert!(to.may_refill(&credit) && to.refill(&credit) && to.room() == 1);
    }

    #[test]
    fn shapes_have_room_for_all() {
        for (size, align, len, depth) in
            [(8, 8, 7, 3), (8, 8, 8, 1), (1, 1, 57, 2), (0, 1, 9, 9), (16, 16, 3, 2), (12, 4, 0, 1)]
        {
            let shape = Shape::of(size, align, len, depth).unwrap();
            assert!(shape.payload.is_multiple_of(align) && shape.payload >= 8 && shape.stride.is_multiple_of(64));
            assert!(shape.payload + len * size <= shape.stride && shape.stride - 64 < shape.payload + len * size);
        }
        let wide = Shape::of(4096, 4096, 1, 2).unwrap();
        assert_eq!((wide.payload, wide.stride, wide.align), (4096, 8192, 4096));
        assert_eq!(Shape::of(8, 8, 7, 4).unwrap().bytes(), 256);
        for (size, len, depth) in [(8, usize::MAX / 8, 1), (0, 1 << 48, 1), (8, 1 << 30, 1 << 30), (1, usize::MAX, 2)] {
            assert_eq!(Shape::of(size, 8, len, depth), None);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::wait::models::Sleeper;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct Slot {
        flag: Flag,
        element: UnsafeCell<u32>,
    }

    #[derive(Default)]
    struct Lane {
        slots: Vec<Slot>,
        credit: Credit,
        sender: Sleeper,
        receiver: Sleeper,
    }

    fn lane(depth: usize) -> Arc<Lane> {
        Arc::new(Lane { slots: (0..depth).map(|_| Slot::default()).collect(), ..Default::default() })
    }

    impl Lane {
        fn put(&self, to: &mut Sending, value: u32) {
            if to.room() == 0 && !to.refill(&self.credit) {
                self.sender.until(|| to.may_refill(&self.credit));
                assert!(to.refill(&self.credit));
            }
            let slot = &self.slots[to.slot()];
            slot.element.with_mut(|p| unsafe { *p = value });
            slot.flag.raise(to.filled(1));
            self.receiver.bell.ring_after_fence();
        }

        fn take(&self, from: &mut Receiving) -> u32 {
            let slot = &self.slots[from.slot()];
            self.receiver.until(|| from.look(&slot.flag).is_some());
            assert_eq!(from.look(&slot.flag), Some(1));
            from.take();
            slot.element.with(|p| unsafe { *p })
        }

        /// By a store, or as a message does it.
        fn give(&self, from: &mut Receiving, by_store: bool) {
            match by_store {
                true => from.give_to(&self.credit),
                false => {
                    self.credit.0.fetch_add(from.give(), AcqRel);
                    crate::sync::full_fence();
                }
            }
            self.sender.bell.ring_after_fence();
        }
    }

    /// All orders of two threads, both of which may sleep, take too long.
    fn model(f: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(f);
    }

    /// Whoever is late sleeps; nothing is lost, nothing is overwritten while it is read, and all comes in order.
    fn hand_over(depth: usize, messages: u32, by_store: bool) {
        model(move || {
            let lane = lane(depth);
            let there = lane.clone();
            let thread = loom::thread::spawn(move || {
                let mut to = Sending::new(depth);
                (0..messages).for_each(|i| there.put(&mut to, 10 + i));
            });
            let mut from = Receiving::new(depth);
            for i in 0..messages {
                assert_eq!(lane.take(&mut from), 10 + i);
                lane.give(&mut from, by_store);
            }
            thread.join().unwrap();
            assert_eq!((lane.credit.given(), from.look(&lane.slots[from.slot()].flag)), (messages.into(), None));
        });
    }

    #[test]
    fn loom_a_lane_of_one_slot() {
        hand_over(1, 2, true);
    }

    #[test]
    fn loom_a_lane_of_one_slot_by_messages() {
        hand_over(1, 2, false);
    }

    #[test]
    fn loom_a_lane_of_two_slots() {
        hand_over(2, 3, true);
    }

    /// A slot that was forgotten goes back with the next.
    #[test]
    fn loom_forgotten_slots_go_back_with_the_next() {
        model(|| {
            let lane = lane(2);
            let there = lane.clone();
            let thread = loom::thread::spawn(move || {
                let mut to = Sending::new(2);
                (0..4).for_each(|i| there.put(&mut to, i));
            });
            let mut from = Receiving::new(2);
            for i in 0..4 {
                assert_eq!(lane.take(&mut from), i);
                if i % 2 == 1 {
                    lane.give(&mut from, true);
                }
            }
            thread.join().unwrap();
        });
    }
}
