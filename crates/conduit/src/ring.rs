//! The queue of messages between ranks of a node: one ring of cache lines per receiver, any number of senders, and the
//! credits that keep it from overflowing.
//!
//! # How a message goes
//! A sender that has credit draws a ticket (one locked add to the ring's tail), fills the slot that the ticket names and
//! stores the slot's head, which carries the ticket's number: that one word says that the slot is ready and what to do
//! with it. Nobody waits while holding a ticket, so a sender that is preempted delays the receiver, never deadlocks it.
//! Receivers take slots in the order of tickets, under a try-lock that is not held while handlers run: any thread of
//! the receiver's process may serve its ring.
//! After filling a slot the sender asks for ownership of the one four ahead; without that, each ticket waits for the
//! line of the previous slot (80 against 21 ns a message, measured).
//!
//! # Credits
//! Requests go to the target's ring, replies come to the source's. For each pair the source counts what it has *sent*;
//! the target counts the requests that ended without a reply (*silent*); the source counts the replies that it has
//! *got*. What is under way is `sent - silent - got`, and it never exceeds the pair's *window*. Windows of all sources
//! together are not larger than a ring, so
//! * a request finds its slot empty: at most one ring's worth of them is not yet taken;
//! * a reply finds its slot empty without asking anybody: every reply under way belongs to a request under way. So a
//!   handler never waits to reply, and a request whose reply has come has returned its credit by that alone.
//!
//! The target shows its count to the source every quarter of a window ([`Account::silent`] counts, [`Shown`] is what
//! the source reads): a sender that waits for credit would otherwise take the line away at every message. A source that
//! wants to know exactly (`quiet`) reads the count itself and asks to be rung at each change (*eager*).
//!
//! # Memory ordering
//! * The head's release store and the taker's acquire load publish the slot's words.
//! * A slot is filled again only after it was taken. Among the N+1 last tickets of a ring of N some source holds more than
//!   its window; it drew its last one after acquiring a count (or a reply) that was released after its first one had been
//!   taken, and slots are taken in order. Tickets are drawn with acquire and release, so whoever draws a later one comes after that too.
//! * The lock's acquire and release order the takers among each other.
//! * `eager` against `silent` is store buffering, as for bells ([`crate::wait`]): the source stores, fences (when it
//!   goes to sleep) and reads, the target adds, fences and reads. On x86-64 the add is a locked instruction and thereby the
//!   fence.

use crate::line::{prefetch_to_read, prefetch_to_write};
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
use crate::sync::full_fence;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*, Plain, light_fence, publish};
use std::cell::Cell;
use std::mem::MaybeUninit;

/// Words of a slot besides its head.
pub const WORDS: usize = 7;
/// Messages that are taken under one lock.
pub const BATCH: usize = 8;
/// How far ahead a sender asks for slots.
const AHEAD: u64 = 4;

/// One cache line of a ring; zeroed memory is an empty one.
#[cfg_attr(not(loom), repr(C, align(64)))]
#[derive(Debug, Default)]
pub struct Slot {
    /// The ticket's number plus one in the low half, the sender's [`Head`] in the high half.
    head: AtomicU64,
    words: [Plain; WORDS],
}

/// The next ticket of a ring, in a line of its own.
#[cfg_attr(not(loom), repr(C, align(64)))]
#[derive(Debug, Default)]
pub struct Tail(AtomicU64);

/// What a slot's head says: 16 bits source, 10 bits handler, 6 bits length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head(u32);

impl Head {
    /// Handlers are numbered below this.
    pub const HANDLERS: u16 = 1 << 10;
    /// Lengths are below this.
    pub const LENGTHS: usize = 1 << 6;

    /// A head; what does not fit is a mistake of this crate.
    #[inline(always)]
    pub fn new(source: usize, handler: u16, len: usize) -> Head {
        assert!(handler < Head::HANDLERS && len < Head::LENGTHS);
        debug_assert!(source < 1 << 16);
        Head((source as u32) << 16 | u32::from(handler) << 6 | len as u32)
    }

    /// Who sent it.
    #[inline(always)]
    pub fn source(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// For which handler.
    #[inline(always)]
    pub fn handler(self) -> u16 {
        (self.0 >> 6) as u16 & (Head::HANDLERS - 1)
    }

    /// How long something is, as sender and receiver agree.
    #[inline(always)]
    pub fn length(self) -> usize {
        (self.0 & (Head::LENGTHS as u32 - 1)) as usize
    }
}

/// A message as it was taken out of its slot.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Who, what, how long.
    pub head: Head,
    /// The rest of the line; those that the sender did not fill are old.
    pub words: [u64; WORDS],
}

/// Where a ring is.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    tail: *const Tail,
    slots: *const Slot,
    mask: u64,
    /// One thread only ever sends.
    one_sender: bool,
}

// SAFETY: addresses of atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `tail` and `len` slots, a power of two, stay there as long as this value or a copy is used.
    pub unsafe fn new(tail: *const Tail, slots: *const Slot, len: usize) -> Ring {
        assert!(len.is_power_of_two());
        Ring { tail, slots, mask: len as u64 - 1, one_sender: false }
    }

    /// The same where one thread only ever sends: its tickets need no locked instruction.
    pub fn with_one_sender(self, one_sender: bool) -> Ring {
        Ring { one_sender, ..self }
    }

    /// Sends a message with the first `n` words of `words`. The caller has credit. A light fence lies between the message
    /// and what the caller does next, so that it may look at the receiver's bell.
    #[inline(always)]
    pub fn push(&self, head: Head, words: &[u64; WORDS], n: usize) {
        // SAFETY: stays there (`new`).
        let tail = unsafe { &(*self.tail).0 };
        let ticket = match self.one_sender {
            true => {
                let ticket = tail.load(Relaxed);
                tail.store(ticket + 1, Relaxed);
                ticket
            }
            false => tail.fetch_add(1, AcqRel),
        };
        let slot = self.slot(ticket);
        for (to, word) in slot.words.iter().zip(words).take(n) {
            to.set(*word);
        }
        let head = u64::from(head.0) << 32 | u64::from((ticket as u32).wrapping_add(1));
        publish(&slot.head, head);
        prefetch_to_write(self.slot(ticket + AHEAD));
    }

    #[inline(always)]
    fn slot(&self, ticket: u64) -> &Slot {
        // SAFETY: inside the ring, which stays there (`new`).
        unsafe { &*self.slots.add((ticket & self.mask) as usize) }
    }
}

/// The receiver's end of a ring: in the memory of its process, for all its threads.
#[derive(Debug)]
pub struct Inlet {
    ring: Ring,
    /// One thread only ever takes.
    solo: bool,
    lock: AtomicU32,
    next: AtomicU64,
}

/// Room for what one visit takes.
pub type Batch = [MaybeUninit<Message>; BATCH];

impl Inlet {
    /// One per ring. With `solo` one thread only ever takes, and needs no lock.
    pub fn new(ring: Ring, solo: bool) -> Inlet {
        Inlet { ring, solo, lock: AtomicU32::new(0), next: AtomicU64::new(0) }
    }

    /// Is nothing there to take? Another thread may be about to take what is.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        !self.ready(self.next.load(Relaxed))
    }

    /// How many messages have been taken: a number that stands still while nobody serves this ring.
    pub fn taken(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Takes up to `most` messages, in order; none if there are none or another thread is taking some.
    #[inline(always)]
    pub fn take<'b>(&self, batch: &'b mut Batch, most: usize) -> &'b [Message] {
        if self.is_empty() { &[] } else { self.take_some(batch, most) }
    }

    #[inline(always)]
    fn take_some<'b>(&self, batch: &'b mut Batch, most: usize) -> &'b [Message] {
        let locked = || self.lock.load(Relaxed) == 0 && self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        if !self.solo && !locked() {
            return &[];
        }
        let start = self.next.load(Relaxed);
        let mut n = 0;
        // The first was seen before there was a lock: somebody else may have taken it.
        while n < most.min(BATCH) && ((self.solo && n == 0) || self.ready(start + n as u64)) {
            let slot = self.ring.slot(start + n as u64);
            let head = Head((slot.head.load(Relaxed) >> 32) as u32);
            batch[n].write(Message { head, words: std::array::from_fn(|i| slot.words[i].get()) });
            n += 1;
        }
        self.next.store(start + n as u64, Relaxed);
        if !self.solo {
            self.lock.store(0, Release);
        }
        // There are more, as it seems: they come while handlers run.
        if n == BATCH {
            (0..BATCH).for_each(|i| prefetch_to_read(self.ring.slot(start + (n + i) as u64)));
        }
        // SAFETY: the first n were written above.
        unsafe { &*(&raw const batch[..n] as *const [Message]) }
    }

    #[inline(always)]
    fn ready(&self, ticket: u64) -> bool {
        self.ring.slot(ticket).head.load(Acquire) as u32 == (ticket as u32).wrapping_add(1)
    }
}

/// What a target keeps for one source, in its shared memory; written by the target's threads.
#[cfg_attr(not(loom), repr(C))]
#[derive(Debug, Default)]
pub struct Account {
    /// Requests of the source that ended without a reply.
    silent: AtomicU32,
    /// The source wants to be rung at each.
    eager: AtomicU32,
}

/// What the target shows of it, in another line.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug, Default)]
pub struct Shown(AtomicU32);

impl Account {
    /// The exact count.
    #[inline(always)]
    pub fn silent(&self) -> u32 {
        self.silent.load(Acquire)
    }

    /// Counts `n` requests that have ended; true if the source is to be rung, for which the fence has been made.
    #[inline(always)]
    #[must_use]
    pub fn ended(&self, n: u32, shown: &Shown, window: u32) -> bool {
        let before = self.silent.fetch_add(n, AcqRel);
        let after = before.wrapping_add(n);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        full_fence();
        // The quarters of a window are powers of two.
        if (before ^ after) & !(quarter(window) - 1) != 0 {
            shown.raise(after);
            light_fence();
            return true;
        }
        self.eager.load(Relaxed) != 0
    }

    /// From now on the source wants to be rung at each, or not any more. Its fence is that of whoever goes to sleep.
    pub fn set_eager(&self, on: bool) {
        self.eager.store(on.into(), Relaxed);
    }
}

impl Shown {
    /// Several threads may show at once; the count never goes back.
    #[cold]
    fn raise(&self, to: u32) {
        let mut now = self.0.load(Relaxed);
        while to.wrapping_sub(now) as i32 > 0 {
            match self.0.compare_exchange(now, to, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

/// How many messages a target may end before it shows them.
fn quarter(window: u32) -> u32 {
    (window / 4).max(1).next_power_of_two()
}

/// The replies from one target that a source has got, counted by whichever of its threads has run their handlers.
#[derive(Debug, Default)]
pub struct Got(AtomicU32);

impl Got {
    /// One more; with `solo` one thread only ever counts.
    #[inline(always)]
    pub fn one_more(&self, solo: bool) {
        match solo {
            true => self.0.store(self.0.load(Relaxed).wrapping_add(1), Release),
            false => _ = self.0.fetch_add(1, Release),
        }
    }

    /// The count.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.0.load(Acquire)
    }
}

/// A source's credit with one target; used by the source's own thread.
#[derive(Debug, Default)]
pub struct Credit {
    sent: Cell<u32>,
    limit: Cell<u32>,
    /// So many had been sent when last all had ended.
    quiet: Cell<u32>,
    /// So many had ended without a reply when last the target was asked.
    silent: Cell<u32>,
}

impl Credit {
    /// May one more be sent?
    #[inline(always)]
    pub fn has_room(&self, shown: &Shown, got: &Got, window: u32) -> bool {
        self.limit.get().wrapping_sub(self.sent.get()) as i32 > 0 || self.refresh(shown, got, window)
    }

    #[cold]
    fn refresh(&self, shown: &Shown, got: &Got, window: u32) -> bool {
        self.limit.set(window.wrapping_add(shown.0.load(Acquire)).wrapping_add(got.count()));
        self.limit.get().wrapping_sub(self.sent.get()) as i32 > 0
    }

    /// One was sent.
    #[inline(always)]
    pub fn spend(&self) {
        self.sent.set(self.sent.get().wrapping_add(1));
    }

    /// Has everything that was sent ended, and all replies been handled?
    #[inline(always)]
    pub fn is_quiet(&self, account: &Account, got: &Got) -> bool {
        self.silent.set(account.silent());
        self.is_answered(got)
    }

    /// The same at first: a target that has always replied, as far as is known, is not asked.
    #[inline(always)]
    pub fn is_quiet_at_first(&self, account: &Account, got: &Got) -> bool {
        self.is_answered(got) || self.silent.get() != 0 && self.is_quiet(account, got)
    }

    /// The same by what is known of the target: no memory of its is touched.
    #[inline(always)]
    pub fn is_answered(&self, got: &Got) -> bool {
        let quiet = self.sent.get() == self.silent.get().wrapping_add(got.count());
        if quiet {
            self.quiet.set(self.sent.get());
        }
        quiet
    }

    /// Has nothing been sent since it was last quiet? Then nobody has to be asked.
    #[inline(always)]
    pub fn is_still_quiet(&self) -> bool {
        self.sent.get() == self.quiet.get()
    }

    /// How many have been sent, of some number.
    pub fn sent(&self) -> u32 {
        self.sent.get()
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    /// A ring on the heap with one account per source; it must not move.
    pub struct Heap {
        pub tail: Tail,
        pub slots: Vec<Slot>,
        pub accounts: Vec<Account>,
        pub shown: Vec<Shown>,
    }

    impl Heap {
        pub fn new(len: usize, sources: usize) -> Heap {
            Heap {
                tail: Tail::default(),
                slots: (0..len).map(|_| Slot::default()).collect(),
                accounts: (0..sources).map(|_| Account::default()).collect(),
                shown: (0..sources).map(|_| Shown::default()).collect(),
            }
        }

        pub fn ring(&self) -> Ring {
            // SAFETY: the tests keep the heap where it is as long as they use the ring.
            unsafe { Ring::new(&self.tail, self.slots.as_ptr(), self.slots.len()) }
        }
    }

    /// Words that only belong together.
    pub fn words(source: usize, i: u64) -> [u64; WORDS] {
        std::array::from_fn(|k| (source as u64) << 48 | i << 8 | k as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::testing::{Heap, words};
    use super::*;
    use std::sync::atomic::{AtomicU64, AtomicUsize};

    #[test]
    fn a_slot_is_a_line_and_heads_hold_their_parts() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>(), size_of::<Account>(), size_of::<Shown>()), (64, 64, 8, 4));
        for (source, handler, len) in [(0, 0, 0), (65535, 1023, 63), (1, 512, 7)] {
            let head = Head::new(source, handler, len);
            assert_eq!((head.source(), head.handler(), head.length()), (source, handler, len));
        }
        assert_eq!([1, 2, 3, 4, 8, 64, 512].map(quarter), [1, 1, 1, 1, 2, 16, 128]);
    }

    /// Sources flood, takers on several threads take; everything arrives once, whole, in each source's order, and never
    /// more than the window is under way.
    fn flood(sources: usize, takers: usize, window: u32, each: u64) {
        let heap = Heap::new((sources * window as usize).next_power_of_two(), sources);
        let inlet = Inlet::new(heap.ring(), takers == 1);
        let seen: Vec<_> = (0..sources).map(|_| AtomicU64::new(0)).collect();
        let (sum, total) = (AtomicU64::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            let (heap, inlet, seen, sum, total) = (&heap, &inlet, &seen, &sum, &total);
            let send = |source: usize| {
                s.spawn(move || {
                    let (credit, got) = (Credit::default(), Got::default());
                    for i in 0..each {
                        while !credit.has_room(&heap.shown[source], &got, window) {
                            std::thread::yield_now();
                        }
                        credit.spend();
                        heap.ring().push(Head::new(source, 5, 3), &words(source, i), WORDS);
                        let under_way = credit.sent().wrapping_sub(heap.accounts[source].silent());
                        assert!(under_way <= window, "{under_way} messages under way");
                    }
                    while !credit.is_quiet(&heap.accounts[source], &got) {
                        std::thread::yield_now();
                    }
                })
            };
            let take = |_| {
                s.spawn(move || {
                    let mut batch = [MaybeUninit::uninit(); BATCH];
                    while total.load(Relaxed) < sources * each as usize {
                        let taken = inlet.take(&mut batch, BATCH);
                        if taken.is_empty() {
                            std::thread::yield_now();
                        }
                        for m in taken {
                            let source = m.head.source();
                            let i = m.words[0] >> 8 & 0xff_ffff_ffff;
                            assert_eq!(m.words, words(source, i));
                            assert_eq!((m.head.handler(), m.head.length()), (5, 3));
                            sum.fetch_add(i + 1, Relaxed);
                            if takers == 1 {
                                assert_eq!(seen[source].fetch_add(1, Relaxed), i, "source {source}");
                            }
                            total.fetch_add(1, Relaxed);
                            let _ = heap.accounts[source].ended(1, &heap.shown[source], window);
                        }
                    }
                })
            };
            // Joined by hand: the end of a scope is not seen by the thread sanitizer.
            let threads: Vec<_> = (0..sources).map(send).chain((0..takers).map(take)).collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        assert_eq!(sum.into_inner(), sources as u64 * each * (each + 1) / 2);
    }

    #[test]
    fn floods_arrive_once_and_whole() {
        let each = if cfg!(debug_assertions) { 3_000 } else { 100_000 };
        for (sources, takers, window) in [(1, 1, 1), (1, 1, 64), (3, 1, 1), (3, 2, 4), (4, 3, 16), (2, 3, 2)] {
            flood(sources, takers, window, each);
        }
    }

    #[test]
    fn counts_may_wrap_around() {
        let heap = Heap::new(8, 1);
        let (account, shown, got) = (&heap.accounts[0], &heap.shown[0], Got::default());
        let credit = Credit { sent: Cell::new(u32::MAX - 3), limit: Cell::new(u32::MAX - 3), ..Default::default() };
        account.silent.store(u32::MAX - 3, Relaxed);
        shown.0.store(u32::MAX - 3, Relaxed);
        for _ in 0..20 {
            for _ in 0..8 {
                assert!(credit.has_room(shown, &got, 8));
                credit.spend();
            }
            assert!(!credit.has_room(shown, &got, 8) && !credit.is_quiet(account, &got));
            assert!((0..8).filter(|_| account.ended(1, shown, 8)).count() >= 3);
            assert!(credit.is_quiet(account, &got));
        }
    }
}

/// The real ring under every interleaving that loom allows: slots that are used again, several takers, credits by counts
/// and by replies, and the exact wait.
#[cfg(all(test, loom))]
mod models {
    use super::testing::{Heap, words};
    use super::*;
    use crate::wait::models::Sleeper;
    use loom::sync::Arc;

    fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        if builder.preemption_bound.is_none() {
            builder.preemption_bound = Some(preemptions);
        }
        builder.check(model);
    }

    fn take(heap: &Heap, inlet: &Inlet, window: u32, seen: &mut Vec<(usize, u64)>) {
        let mut batch = [MaybeUninit::uninit(); BATCH];
        for m in inlet.take(&mut batch, BATCH) {
            let (source, i) = (m.head.source(), m.words[0] >> 8 & 0xff);
            assert_eq!(m.words[..2], words(source, i)[..2], "a message that was never sent");
            seen.push((source, i));
            let _ = heap.accounts[source].ended(1, &heap.shown[source], window);
        }
    }

    fn send(heap: &Heap, source: usize, window: u32, each: u64) {
        let (credit, got) = (Credit::default(), Got::default());
        for i in 0..each {
            while !credit.has_room(&heap.shown[source], &got, window) {
                loom::thread::yield_now();
            }
            credit.spend();
            heap.ring().push(Head::new(source, 1, 0), &words(source, i), 2);
        }
    }

    /// Two sources with a window of one in a ring of two: every slot is used again, also by the other source. All sleep
    /// when they have nothing to do.
    #[test]
    fn loom_slots_are_used_again() {
        const EACH: [u64; 2] = [2, 1];
        check(2, || {
            let sleepers: [Sleeper; 3] = Default::default();
            let shared = Arc::new((Heap::new(2, 2), sleepers));
            let senders: Vec<_> = (0..2)
                .map(|s| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let (heap, sleepers) = &*shared;
                        let (credit, got) = (Credit::default(), Got::default());
                        for i in 0..EACH[s] {
                            sleepers[s].until(|| credit.has_room(&heap.shown[s], &got, 1));
                            credit.spend();
                            heap.ring().push(Head::new(s, 1, 0), &words(s, i), 2);
                            sleepers[2].bell.ring_after_fence();
                        }
                    })
                })
                .collect();
            let (heap, sleepers) = &*shared;
            let inlet = Inlet::new(heap.ring(), true);
            let (mut seen, mut batch) = (vec![], [MaybeUninit::uninit(); BATCH]);
            while seen.len() < 3 {
                sleepers[2].until(|| !inlet.is_empty());
                for m in inlet.take(&mut batch, BATCH) {
                    let (source, i) = (m.head.source(), m.words[0] >> 8 & 0xff);
                    assert_eq!(m.words[..2], words(source, i)[..2], "a message that was never sent");
                    seen.push((source, i));
                    if heap.accounts[source].ended(1, &heap.shown[source], 1) {
                        sleepers[source].bell.ring_after_fence();
                    }
                }
            }
            senders.into_iter().for_each(|s| s.join().unwrap());
            for s in 0..2 {
                let of: Vec<u64> = seen.iter().filter(|m| m.0 == s).map(|m| m.1).collect();
                assert_eq!(of, (0..EACH[s]).collect::<Vec<_>>(), "source {s}");
            }
        });
    }

    /// Two threads serve one ring: each message is taken by one of them.
    #[test]
    fn loom_two_takers() {
        check(2, || {
            let heap = Arc::new(Heap::new(2, 1));
            let inlet = Arc::new(Inlet::new(heap.ring(), false));
            let taker = |heap: Arc<Heap>, inlet: Arc<Inlet>| {
                let mut seen = vec![];
                for _ in 0..3 {
                    take(&heap, &inlet, 2, &mut seen);
                    loom::thread::yield_now();
                }
                seen
            };
            let (h, i) = (heap.clone(), inlet.clone());
            let other = loom::thread::spawn(move || taker(h, i));
            send(&heap, 0, 2, 3);
            let mut seen = taker(heap, inlet);
            seen.extend(other.join().unwrap());
            seen.sort();
            seen.windows(2).for_each(|w| assert_ne!(w[0], w[1], "taken twice"));
        });
    }

    /// Requests and replies with a window of one: reply slots are used again, and the credit comes from the reply alone.
    #[test]
    fn loom_replies_return_credit() {
        check(3, || {
            // With one sender each, as between two processes of one rank.
            let (requests, replies) = (Arc::new(Heap::new(1, 1)), Arc::new(Heap::new(1, 1)));
            let (q, p) = (requests.clone(), replies.clone());
            let target = loom::thread::spawn(move || {
                let inlet = Inlet::new(q.ring(), true);
                let mut batch = [MaybeUninit::uninit(); BATCH];
                let mut done = 0;
                while done < 2 {
                    for m in inlet.take(&mut batch, BATCH) {
                        assert_eq!(m.words[..2], words(0, done)[..2]);
                        p.ring().with_one_sender(true).push(Head::new(0, 2, 0), &m.words, 2);
                        done += 1;
                    }
                    loom::thread::yield_now();
                }
            });
            let (credit, got, inlet) = (Credit::default(), Got::default(), Inlet::new(replies.ring(), true));
            let mut batch = [MaybeUninit::uninit(); BATCH];
            let mut sent = 0;
            while got.count() < 2 {
                if sent < 2 && credit.has_room(&requests.shown[0], &got, 1) {
                    credit.spend();
                    let ring = requests.ring().with_one_sender(true);
                    ring.push(Head::new(0, 1, 0), &words(0, sent), 2);
                    sent += 1;
                }
                for m in inlet.take(&mut batch, BATCH) {
                    assert_eq!(m.words[..2], words(0, u64::from(got.count()))[..2]);
                    got.one_more(true);
                }
                loom::thread::yield_now();
            }
            assert!(credit.is_quiet(&requests.accounts[0], &got));
            target.join().unwrap();
        });
    }

    /// The same where another thread of the source's process serves the replies.
    #[test]
    fn loom_replies_are_served_by_another_thread() {
        const ROUNDS: u64 = 2;
        check(2, || {
            let sleepers: [Sleeper; 3] = Default::default();
            let shared = Arc::new((Heap::new(1, 1), Heap::new(1, 1), sleepers, Got::default()));
            let s = shared.clone();
            let target = loom::thread::spawn(move || {
                let (requests, replies, [_, target, helper], _) = &*s;
                let (inlet, mut batch) = (Inlet::new(requests.ring(), true), [MaybeUninit::uninit(); BATCH]);
                for i in 0..ROUNDS {
                    target.until(|| !inlet.is_empty());
                    let &[m] = inlet.take(&mut batch, BATCH) else { panic!("one at a time") };
                    assert_eq!(m.words[..2], words(0, i)[..2]);
                    replies.ring().push(Head::new(0, 2, 0), &m.words, 2);
                    helper.bell.ring_after_fence();
                }
            });
            let s = shared.clone();
            let helper = loom::thread::spawn(move || {
                let (_, replies, [source, _, helper], got) = &*s;
                let (inlet, mut batch) = (Inlet::new(replies.ring(), false), [MaybeUninit::uninit(); BATCH]);
                for i in 0..ROUNDS {
                    helper.until(|| !inlet.is_empty());
                    let &[m] = inlet.take(&mut batch, BATCH) else { panic!("one at a time") };
                    assert_eq!(m.words[..2], words(0, i)[..2]);
                    got.one_more(false);
                    source.bell.ring();
                }
            });
            let (requests, _, [source, target_sleeper, _], got) = &*shared;
            let credit = Credit::default();
            for i in 0..ROUNDS {
                source.until(|| credit.has_room(&requests.shown[0], got, 1));
                credit.spend();
                requests.ring().push(Head::new(0, 1, 0), &words(0, i), 2);
                target_sleeper.bell.ring_after_fence();
            }
            source.until(|| credit.is_quiet(&requests.accounts[0], got));
            target.join().unwrap();
            helper.join().unwrap();
        });
    }

    /// A source that sleeps until all that it sent has ended is woken.
    #[test]
    fn loom_an_exact_wait_ends() {
        check(4, || {
            let heap = Arc::new((Heap::new(4, 1), Sleeper::default()));
            let h = heap.clone();
            let target = loom::thread::spawn(move || {
                let (heap, sleeper) = &*h;
                for _ in 0..2 {
                    // A window so large that nothing is shown.
                    if heap.accounts[0].ended(1, &heap.shown[0], 1024) {
                        sleeper.bell.ring_after_fence();
                    }
                }
            });
            let (heap, sleeper) = &*heap;
            let (credit, got) = (Credit::default(), Got::default());
            credit.spend();
            credit.spend();
            let account = &heap.accounts[0];
            account.set_eager(true);
            sleeper.until(|| credit.is_quiet(account, &got));
            account.set_eager(false);
            target.join().unwrap();
        });
    }

    /// A source that sleeps for credit is woken when a quarter of its window has ended.
    #[test]
    fn loom_a_wait_for_credit_ends() {
        check(4, || {
            let heap = Arc::new((Heap::new(4, 1), Sleeper::default()));
            let h = heap.clone();
            let target = loom::thread::spawn(move || {
                let (heap, sleeper) = &*h;
                for _ in 0..2 {
                    if heap.accounts[0].ended(1, &heap.shown[0], 8) {
                        sleeper.bell.ring_after_fence();
                    }
                }
            });
            let (heap, sleeper) = &*heap;
            let (credit, got) = (Credit::default(), Got::default());
            (0..8).for_each(|_| credit.spend());
            sleeper.until(|| credit.has_room(&heap.shown[0], &got, 8));
            target.join().unwrap();
        });
    }
}
