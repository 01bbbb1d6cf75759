//! A bounded queue of many senders and one receiver: what a mailbox is made of.
//!
//! Each slot has a word that says whose *turn* it is. In round `r` of the queue (how often its slots were all used before) a sender
//! may fill the slot at turn `2r`, and the receiver may empty it at `2r + 1`. A sender takes a ticket, which
//! names slot and round, only when it is its turn: nobody who has a ticket waits for anything, and a full queue has
//! given out none that cannot be used. The receiver takes slots in the order of tickets. So what one sender sends comes in
//! its order. A sender that has its ticket and has not filled its slot holds up those after it.
//! (The turn of each slot is Vyukov's way to bound such a queue.)
//!
//! Senders that find it full say so in [`Waiting`], a bit each, and sleep. Who makes room takes one of them out and wakes it,
//! one for each slot. One that was taken out and has not slept, because it found room by itself, hands that on: to the next, if
//! there is still room.
//!
//! # Memory ordering
//! * A slot's turn carries its value: filled with release and emptied with acquire, emptied with release and filled with acquire.
//!   Tickets carry nothing; they are one word, so the tickets of one sender grow.
//! * A sender that is about to sleep sets its bit, counts itself, makes a full fence and looks at the queue once more. The
//!   receiver empties a slot, makes a full fence, and looks at the count and the bits. Either the sender sees room or the
//!   receiver sees the bit. Both fences are full: the bit may be set when the sender has made its heavy one already. Who takes a bit out rings that rank's bell, after another fence: the sleeper wrote its bell before its last
//!   look (see [`crate::wait`]).
//! * The receiver sleeps on its own bell: whoever has filled a slot makes a light fence and looks at it.

use crate::sync::{AtomicU32, AtomicU64, Ordering::*, full_fence};
use std::cell::Cell;

/// Where the turns of slots are.
pub trait Slots {
    /// How many slots there are, as a power of two.
    fn bits(&self) -> u32;
    /// The turn of one of them; zero at first.
    fn turn(&self, i: usize) -> &AtomicU64;
}

/// The slot of a ticket, and the turn at which it is filled.
#[inline(always)]
fn place(ticket: u64, bits: u32) -> (usize, u64) {
    ((ticket & ((1 << bits) - 1)) as usize, ticket >> bits << 1)
}

/// Sends what `write` puts into the slot that it is given; false if there is no room. The receiver is to be woken after a
/// light fence.
#[inline]
pub fn try_send(tickets: &AtomicU64, slots: &impl Slots, write: impl FnOnce(usize)) -> bool {
    let mut ticket = tickets.load(Relaxed);
    loop {
        let (i, turn) = place(ticket, slots.bits());
        match (slots.turn(i).load(Acquire).wrapping_sub(turn)).cast_signed() {
            0 => match tickets.compare_exchange(ticket, ticket + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    write(i);
                    slots.turn(i).store(turn + 1, Release);
                    return true;
                }
                Err(now) => ticket = now,
            },
            // It has what was sent a round ago.
            ..0 => return false,
            // Somebody else had this ticket.
            _ => ticket = tickets.load(Relaxed),
        }
    }
}

/// Takes the next one, which `read` reads from its slot. `taken`: how many were taken, the receiver's own. Senders that wait are
/// to be woken after a full fence.
#[inline]
pub fn try_receive<R>(taken: &Cell<u64>, slots: &impl Slots, read: impl FnOnce(usize) -> R) -> Option<R> {
    let (i, turn) = place(taken.get(), slots.bits());
    if slots.turn(i).load(Acquire) != turn + 1 {
        return None;
    }
    let value = read(i);
    slots.turn(i).store(turn + 2, Release);
    taken.set(taken.get() + 1);
    Some(value)
}

/// Is there room for one more?
pub fn has_room(tickets: &AtomicU64, slots: &impl Slots) -> bool {
    let (i, turn) = place(tickets.load(Relaxed), slots.bits());
    (slots.turn(i).load(Relaxed).wrapping_sub(turn)).cast_signed() >= 0
}

/// Senders that wait for room, by number.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'m> {
    /// How many bits are set, or about to be.
    pub count: &'m AtomicU32,
    /// A bit each.
    pub bits: &'m [AtomicU64],
}

impl Waiting<'_> {
    /// This one is about to sleep: true if it is to look at the queue once more, because nobody knew of it yet.
    pub fn join(&self, who: usize) -> bool {
        let (word, bit) = (&self.bits[who / 64], 1 << (who % 64));
        if word.load(Relaxed) & bit != 0 {
            return false;
        }
        // Whoever wakes all takes out as many as are counted: none is marked and not counted.
        self.count.fetch_add(1, Relaxed);
        word.fetch_or(bit, Release);
        full_fence();
        true
    }

    /// It does not wait any more: true if somebody has taken it out, to wake it. Whoever else waits is seen after that, and so is
    /// the room of which it was to know.
    pub fn leave(&self, who: usize) -> bool {
        let taken_out = !self.take_out(who);
        if taken_out {
            full_fence();
        }
        taken_out
    }

    /// Takes one out, of which there are some perhaps: the first from this number on. After a full fence that follows the
    /// making of room.
    pub fn next(&self, from: usize) -> Option<usize> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let (words, from) = (self.bits.len(), from % (64 * self.bits.len()));
        (0..=words).find_map(|k| {
            let w = (from / 64 + k) % words;
            let mut word = self.bits[w].load(Relaxed);
            if k == 0 {
                word &= u64::MAX << (from % 64);
            }
            while word != 0 {
                let who = 64 * w + word.trailing_zeros() as usize;
                if self.take_out(who) {
                    return Some(who);
                }
                word &= word - 1;
            }
            None
        })
    }

    fn take_out(&self, who: usize) -> bool {
        let bit = 1 << (who % 64);
        let was = self.bits[who / 64].fetch_and(!bit, AcqRel) & bit != 0;
        if was {
            self.count.fetch_sub(1, Relaxed);
        }
        was
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Few(Vec<AtomicU64>);

    impl Slots for Few {
        fn bits(&self) -> u32 {
            self.0.len().ilog2()
        }
        fn turn(&self, i: usize) -> &AtomicU64 {
            &self.0[i]
        }
    }

    #[test]
    fn as_many_fit_as_there_are_slots_and_come_in_order() {
        for n in [1, 2, 8] {
            let slots = Few((0..n).map(|_| AtomicU64::new(0)).collect());
            let (tickets, taken) = (AtomicU64::new(0), Cell::new(0));
            let values: Vec<Cell<u64>> = vec![Cell::new(0); n];
            let (mut sent, mut come) = (0, 0);
            for turn in 0..20 {
                while try_send(&tickets, &slots, |i| values[i].set(sent)) {
                    sent += 1;
                }
                assert_eq!((sent - come) as usize, n);
                assert!(!has_room(&tickets, &slots));
                for _ in 0..1 + turn % n {
                    assert_eq!(try_receive(&taken, &slots, |i| values[i].get()), Some(come));
                    come += 1;
                }
                assert!(has_room(&tickets, &slots));
            }
            while try_receive(&taken, &slots, |i| values[i].get()) == Some(come) {
                come += 1;
            }
            assert_eq!((come, taken.get()), (sent, sent));
        }
    }

    #[test]
    fn who_waits_is_taken_out_in_turn() {
        let (count, bits) = (AtomicU32::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
        let waiting = Waiting { count: &count, bits: &bits };
        assert_eq!(waiting.next(0), None);
        for who in [3, 70, 127] {
            assert!(waiting.join(who) && !waiting.join(who));
        }
        assert_eq!((waiting.next(4), waiting.next(71), waiting.next(128)), (Some(70), Some(127), Some(3)));
        assert_eq!(waiting.next(0), None);
        assert!(waiting.join(5) && !waiting.leave(5) && waiting.leave(5));
        assert_eq!(count.load(Relaxed), 0);
        assert!(waiting.join(2) && waiting.next(3) == Some(2), "around");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::light_fence;
    use crate::wait::models::Sleeper;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A queue with values, senders that may sleep, and a receiver that may.
    struct Shared {
        tickets: AtomicU64,
        slots: Vec<(AtomicU64, UnsafeCell<(usize, u64)>)>,
        count: AtomicU32,
        bits: [AtomicU64; 1],
        senders: [Sleeper; 2],
        receiver: Sleeper,
    }

    impl Slots for Shared {
        fn bits(&self) -> u32 {
            self.slots.len().ilog2()
        }
        fn turn(&self, i: usize) -> &AtomicU64 {
            &self.slots[i].0
        }
    }

    impl Shared {
        fn new(slots: usize) -> Arc<Shared> {
            Arc::new(Shared {
                tickets: AtomicU64::new(0),
                slots: (0..slots).map(|_| (AtomicU64::new(0), UnsafeCell::new((0, 0)))).collect(),
                count: AtomicU32::new(0),
                bits: [AtomicU64::new(0)],
                senders: Default::default(),
                receiver: Default::default(),
            })
        }

        fn waiting(&self) -> Waiting<'_> {
            Waiting { count: &self.count, bits: &self.bits }
        }

        fn try_send(&self, who: usize, value: u64) -> bool {
            let write = |i: usize| self.slots[i].1.with_mut(|p| unsafe { *p = (who, value) });
            let sent = try_send(&self.tickets, self, write);
            if sent {
                light_fence();
                self.receiver.bell.ring_after_fence();
            }
            sent
        }

        fn send(&self, who: usize, value: u64) {
            if self.try_send(who, value) {
                return;
            }
            self.senders[who]
                .until(|| self.try_send(who, value) || self.waiting().join(who) && self.try_send(who, value));
            if self.waiting().leave(who) && has_room(&self.tickets, self) {
                self.tell();
            }
        }

        fn tell(&self) {
            if let Some(who) = self.waiting().next(0) {
                self.senders[who].bell.ring();
            }
        }

        fn receive(&self, taken: &Cell<u64>) -> (usize, u64) {
            let got = Cell::new(None);
            let look = || {
                got.set(try_receive(taken, self, |i| self.slots[i].1.with(|p| unsafe { *p })));
                got.get().is_some()
            };
            self.receiver.until(look);
            full_fence();
            self.tell();
            got.get().expect("looked until there was one")
        }
    }

    fn check(bound: usize, f: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(bound));
        model.check(f);
    }

    /// One sender, one slot: it sleeps for room, the receiver for values, and none is lost.
    #[test]
    fn loom_a_full_queue_wakes_its_sender() {
        check(3, || {
            let shared = Shared::new(1);
            let sending = shared.clone();
            let sender = loom::thread::spawn(move || (1..4).for_each(|value| sending.send(0, value)));
            let taken = Cell::new(0);
            (1..4).for_each(|value| assert_eq!(shared.receive(&taken), (0, value)));
            sender.join().unwrap();
            assert_eq!(shared.count.load(Relaxed), 0);
        });
    }

    /// Two senders that find no room: each value comes once, whole; nobody sleeps on.
    #[test]
    fn loom_two_senders_of_a_full_queue() {
        // Three threads, each of which may sleep: with two preemptions it takes minutes.
        check(1, || {
            let shared = Shared::new(1);
            assert!(shared.try_send(0, 7));
            let senders = [0, 1].map(|who| {
                let sending = shared.clone();
                loom::thread::spawn(move || sending.send(who, 1))
            });
            let taken = Cell::new(0);
            assert_eq!(shared.receive(&taken), (0, 7));
            let both = [shared.receive(&taken), shared.receive(&taken)];
            assert!(both == [(0, 1), (1, 1)] || both == [(1, 1), (0, 1)]);
            senders.into_iter().for_each(|s| s.join().unwrap());
            assert_eq!(shared.count.load(Relaxed), 0);
        });
    }

    /// The same where there is room for two, so that tickets are taken at the same time.
    #[test]
    fn loom_two_senders_at_once() {
        check(3, || {
            let shared = Shared::new(2);
            let sending = shared.clone();
            let sender = loom::thread::spawn(move || sending.send(0, 1));
            shared.send(1, 1);
            let taken = Cell::new(0);
            let both = [shared.receive(&taken), shared.receive(&taken)];
            assert!(both == [(0, 1), (1, 1)] || both == [(1, 1), (0, 1)]);
            sender.join().unwrap();
        });
    }
}
