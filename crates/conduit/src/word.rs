//! Atomic operations on one word, wherever it lies: what each does, and in which order with what comes before and after.
//!
//! # Orders
//! * [`Order::Relaxed`]: the operation is one, nothing else.
//! * [`Order::Both`]: acquire and release. What its rank wrote before is seen by whoever has seen what it wrote; what its
//!   rank reads after was written at least as late as what it has seen.
//! * [`Order::Strict`]: as if a full fence stood before it and after it. So it is ordered against every earlier and every
//!   later access of its rank, stores before loads included, and all strict operations of all ranks have one order, which
//!   each rank's own order is a part of.
//!
//! # Memory ordering
//! A strict operation has a full fence on both sides. Between any two of them lies one, then, and with that the model of Rust
//! and C++ gives what strict promises; acquire and release alone would not. Each fence has its program below, which fails
//! without it. Before a load: a store that came earlier (store buffering). After a store, the same of a load that comes later.
//! After a load and before a store: what the rank has read must come before what it writes *for everybody*, also for a third
//! rank that writes over it and reads (`W x | R x, W y | W y, R x`). Around the others: both.
//!
//! On x86-64 two are instructions, before a load and after a store. Loads come before all that is later there, stores come after
//! all that was earlier, all processors see stores in one order, and a locked instruction is a full fence.

use crate::sync::{AtomicU32, AtomicU64, Ordering, Ordering::*, full_fence};

/// What an atomic does with the word. The old value comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Nothing.
    Load,
    /// Replaces it; nothing comes back.
    Store,
    /// Replaces it.
    Swap,
    /// Replaces it if its bits are the expected ones.
    CompareExchange,
    /// Adds; integers wrap around.
    Add,
    /// Multiplies; integers wrap around.
    Mul,
    /// The smaller; of floats the one that is a number.
    Min,
    /// The larger; of floats the one that is a number.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 11] = {
        use Op::*;
        [Load, Store, Swap, CompareExchange, Add, Mul, Min, Max, And, Or, Xor]
    };
}

/// What the bits of the word are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Integers without sign, or bits.
    Unsigned,
    /// Integers with sign.
    Signed,
    /// Floats.
    Float,
}

/// In which order with other accesses of the same rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Order {
    /// None.
    Relaxed,
    /// Acquire and release.
    Both,
    /// With all of them.
    Strict,
}

impl Order {
    const fn load(self) -> Ordering {
        if matches!(self, Order::Relaxed) { Relaxed } else { Acquire }
    }
    const fn store(self) -> Ordering {
        if matches!(self, Order::Relaxed) { Relaxed } else { Release }
    }
    const fn both(self) -> Ordering {
        if matches!(self, Order::Relaxed) { Relaxed } else { AcqRel }
    }
}

/// An atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomic {
    /// What it does.
    pub op: Op,
    /// On what.
    pub kind: Kind,
    /// Bytes of the word, 4 or 8.
    pub width: u8,
    /// In which order.
    pub order: Order,
    /// The operand; 32-bit values in the low half.
    pub operand: u64,
    /// The expected value of [`Op::CompareExchange`].
    pub expected: u64,
}

impl Atomic {
    /// On a `u64`, acquire and release.
    pub fn on_u64(op: Op, operand: u64) -> Atomic {
        Atomic { op, kind: Kind::Unsigned, width: 8, order: Order::Both, operand, expected: 0 }
    }

    /// As it travels.
    pub fn encode(self) -> [u64; 3] {
        let bytes = [self.op as u8, self.kind as u8, self.width, self.order as u8, 0, 0, 0, 0];
        [u64::from_le_bytes(bytes), self.operand, self.expected]
    }

    /// What came; `None` for bits that nobody sends.
    pub fn decode([head, operand, expected]: [u64; 3]) -> Option<Atomic> {
        use {Kind::*, Op::*};
        let [op, kind, width, order, 0, 0, 0, 0] = head.to_le_bytes() else { return None };
        let op = *Op::ALL.get(op as usize)?;
        let kind = *[Unsigned, Signed, Float].get(kind as usize)?;
        let order = *[Order::Relaxed, Order::Both, Order::Strict].get(order as usize)?;
        let bits = matches!(op, And | Or | Xor) && kind == Float;
        (matches!(width, 4 | 8) && !bits).then_some(Atomic { op, kind, width, order, operand, expected })
    }

    /// What the word becomes, where no single instruction does it.
    #[inline(always)]
    fn combine(self, old: u64) -> u64 {
        macro_rules! with {
            ($t:ty, $read:expr, $write:expr, $mul:expr) => {{
                let (old, x): ($t, $t) = ($read(old), $read(self.operand));
                $write(match self.op {
                    Op::Mul => $mul(old, x),
                    Op::Min => old.min(x),
                    Op::Max => old.max(x),
                    _ => old + x,
                })
            }};
        }
        macro_rules! integers {
            ($t:ty, $u:ty) => {
                with!($t, |bits| bits as $t, |x: $t| u64::from(x as $u), |a: $t, b| a.wrapping_mul(b))
            };
        }
        use std::ops::Mul;
        match (self.kind, self.width) {
            (Kind::Unsigned, 4) => integers!(u32, u32),
            (Kind::Unsigned, _) => integers!(u64, u64),
            (Kind::Signed, 4) => integers!(i32, u32),
            (Kind::Signed, _) => integers!(i64, u64),
            (Kind::Float, 4) => with!(f32, |b| f32::from_bits(b as u32), |x: f32| x.to_bits().into(), f32::mul),
            (Kind::Float, _) => with!(f64, f64::from_bits, f64::to_bits, f64::mul),
        }
    }
}

macro_rules! apply {
    ($(#[$doc:meta])* $name:ident, $word:ty, $t:ty) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(word: &$word, what: Atomic) -> u64 {
            let (order, x) = (what.order, what.operand as $t);
            match what.op {
                Op::Load => {
                    fence(order);
                    let value = u64::from(word.load(order.load()));
                    fence_unless_x86(order);
                    return value;
                }
                Op::Store => {
                    fence_unless_x86(order);
                    word.store(x, order.store());
                    fence(order);
                    return 0;
                }
                _ => {}
            }
            fence_unless_x86(order);
            let old = match what.op {
                Op::Swap => word.swap(x, order.both()),
                Op::CompareExchange => {
                    match word.compare_exchange(what.expected as $t, x, order.both(), order.load()) {
                        Ok(old) | Err(old) => old,
                    }
                }
                Op::Add if what.kind != Kind::Float => word.fetch_add(x, order.both()),
                Op::And => word.fetch_and(x, order.both()),
                Op::Or => word.fetch_or(x, order.both()),
                Op::Xor => word.fetch_xor(x, order.both()),
                _ => {
                    let mut old = word.load(Relaxed);
                    loop {
                        let new = what.combine(u64::from(old)) as $t;
                        match word.compare_exchange_weak(old, new, order.both(), Relaxed) {
                            Ok(old) => break old,
                            Err(found) => old = found,
                        }
                    }
                }
            };
            fence_unless_x86(order);
            u64::from(old)
        }
    };
}

apply!(
    /// Does it to a word of 32 bits; its old value, of a store nothing.
    apply_32,
    AtomicU32,
    u32
);
apply!(
    /// Does it to a word of 64 bits; its old value, of a store nothing.
    apply_64,
    AtomicU64,
    u64
);

#[inline(always)]
fn fence(order: Order) {
    if order == Order::Strict {
        #[cfg(all(test, loom))]
        models::at_a_fence();
        full_fence();
    }
}

/// Where the machine orders enough by itself.
#[inline(always)]
fn fence_unless_x86(order: Order) {
    if !cfg!(all(target_arch = "x86_64", not(loom), not(miri))) {
        fence(order);
    }
}

/// Litmus programs of the functions above. Plain puts and gets are relaxed accesses here. A model tries every order of the
/// accesses, and for loads every value that the model of Rust and C++ allows. It does not know load buffering: no load
/// sees a store that comes later. And where two ranks write one word it allows more than can be, so coherence has one writer.
/// Each program is also shown to find what it looks for where nothing rules it out.
#[cfg(all(test, loom))]
mod models {
    use super::Order::{Both, Strict};
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    loom::lazy_static! {
        static ref FENCES: AtomicU64 = AtomicU64::new(0);
    }

    /// A model tries the orders of accesses, and takes a fence and the access before it for one. With an access of its own it
    /// can come later. It orders nothing that fences do not.
    pub(super) fn at_a_fence() {
        FENCES.fetch_add(1, Relaxed);
    }

    type Words = [AtomicU64; 2];
    /// What a rank does, and what it has read.
    type Rank = fn(&Words) -> Vec<u64>;

    fn done(word: &AtomicU64, op: Op, order: Order, operand: u64) -> u64 {
        apply_64(word, Atomic { order, ..Atomic::on_u64(op, operand) })
    }
    fn load(word: &AtomicU64, order: Order) -> u64 {
        done(word, Op::Load, order, 0)
    }
    fn store(word: &AtomicU64, order: Order, value: u64) {
        done(word, Op::Store, order, value);
    }

    /// All that can come of it: what the ranks have read, one after the other, and then the words.
    fn outcomes<const N: usize>(ranks: [Rank; N]) -> BTreeSet<Vec<u64>> {
        let all = Arc::new(Mutex::new(BTreeSet::new()));
        let found = all.clone();
        let mut model = loom::model::Builder::new();
        // More ranks would take minutes; LOOM_MAX_PREEMPTIONS sets another bound for all.
        model.preemption_bound = model.preemption_bound.or((N > 2).then_some(6 - N));
        model.check(move || {
            // Made here, since who makes it releases, and others acquire.
            at_a_fence();
            let words = loom::sync::Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let threads: Vec<_> = ranks[1..]
                .iter()
                .map(|&rank| {
                    let words = words.clone();
                    loom::thread::spawn(move || rank(&words))
                })
                .collect();
            let mut outcome = ranks[0](&words);
            threads.into_iter().for_each(|thread| outcome.extend(thread.join().unwrap()));
            outcome.extend(words.iter().map(|word| word.load(Relaxed)));
            found.lock().unwrap().insert(outcome);
        });
        let all = all.lock().unwrap();
        all.clone()
    }

    fn sees<const N: usize>(ranks: [Rank; N], outcome: &[u64]) -> bool {
        outcomes(ranks).iter().any(|o| o.starts_with(outcome))
    }

    /// The flag is seen, and what was put before it is not.
    const OLD: &[u64] = &[1, 0];

    #[test]
    fn loom_message_passing() {
        let write: Rank = |[x, flag]| {
            store(x, Order::Relaxed, 1);
            store(flag, Both, 1);
            vec![]
        };
        let read: Rank = |[x, flag]| vec![load(flag, Both), load(x, Order::Relaxed)];
        assert!(!sees([write, read], OLD));
        // By operations that read and write, on either side; one that finds another value than it expects has read it too.
        let add: Rank = |[x, flag]| {
            store(x, Order::Relaxed, 1);
            done(flag, Op::Add, Both, 1);
            vec![]
        };
        let max: Rank = |[x, flag]| {
            store(x, Order::Relaxed, 1);
            done(flag, Op::Max, Both, 1);
            vec![]
        };
        let add_0: Rank = |[x, flag]| vec![done(flag, Op::Add, Both, 0), load(x, Order::Relaxed)];
        let max_0: Rank = |[x, flag]| vec![done(flag, Op::Max, Both, 0), load(x, Order::Relaxed)];
        let exchange: Rank = |[x, flag]| vec![done(flag, Op::CompareExchange, Both, 7), load(x, Order::Relaxed)];
        for ranks in [[add, read], [max, read], [write, add_0], [write, max_0], [write, exchange]] {
            assert!(!sees(ranks, OLD));
        }
        // Relaxed ones pass nothing on.
        let write_relaxed: Rank = |words| {
            words.iter().for_each(|word| store(word, Order::Relaxed, 1));
            vec![]
        };
        let read_relaxed: Rank = |[x, flag]| vec![load(flag, Order::Relaxed), load(x, Order::Relaxed)];
        assert!(sees([write_relaxed, read], OLD) && sees([write, read_relaxed], OLD));
    }

    /// The same by fences between plain accesses, on both sides.
    #[test]
    fn loom_message_passing_by_fences() {
        let write: Rank = |[x, flag]| {
            store(x, Order::Relaxed, 1);
            full_fence();
            store(flag, Order::Relaxed, 1);
            vec![]
        };
        let read: Rank = |[x, flag]| {
            let seen = load(flag, Order::Relaxed);
            full_fence();
            vec![seen, load(x, Order::Relaxed)]
        };
        let read_at_once: Rank = |[x, flag]| vec![load(flag, Order::Relaxed), load(x, Order::Relaxed)];
        assert!(!sees([write, read], OLD));
        assert!(sees([write, read_at_once], OLD));
    }

    /// Each rank writes its word and reads the other's: it may not be that neither sees the other's write.
    fn store_buffering(me: Rank, other: Rank) -> bool {
        sees([me, other], &[0, 0])
    }

    #[test]
    fn loom_store_buffering_strict_store() {
        let [me, other]: [Rank; 2] = [
            |[x, y]| {
                store(x, Strict, 1);
                vec![load(y, Order::Relaxed)]
            },
            |[x, y]| {
                store(y, Strict, 1);
                vec![load(x, Order::Relaxed)]
            },
        ];
        assert!(!store_buffering(me, other));
    }

    #[test]
    fn loom_store_buffering_strict_load() {
        let [me, other]: [Rank; 2] = [
            |[x, y]| {
                store(x, Order::Relaxed, 1);
                vec![load(y, Strict)]
            },
            |[x, y]| {
                store(y, Order::Relaxed, 1);
                vec![load(x, Strict)]
            },
        ];
        assert!(!store_buffering(me, other));
    }

    /// The operation that reads and writes is the write.
    #[test]
    fn loom_store_buffering_strict_add_and_load() {
        let [me, other]: [Rank; 2] = [
            |[x, y]| {
                done(x, Op::Add, Strict, 1);
                vec![load(y, Order::Relaxed)]
            },
            |[x, y]| {
                done(y, Op::Max, Strict, 1);
                vec![load(x, Order::Relaxed)]
            },
        ];
        assert!(!store_buffering(me, other));
    }

    /// It is the read, on one side: those of a model always read the newest.
    #[test]
    fn loom_store_buffering_store_and_strict_add() {
        let [add, exchange, other]: [Rank; 3] = [
            |[x, y]| {
                store(x, Order::Relaxed, 1);
                vec![done(y, Op::Add, Strict, 0)]
            },
            |[x, y]| {
                store(x, Order::Relaxed, 1);
                vec![done(y, Op::CompareExchange, Strict, 7)]
            },
            |[x, y]| {
                store(y, Order::Relaxed, 1);
                vec![load(x, Strict)]
            },
        ];
        assert!(!store_buffering(add, other));
        assert!(!store_buffering(exchange, other));
    }

    #[test]
    fn loom_store_buffering_by_fences() {
        let [me, other]: [Rank; 2] = [
            |[x, y]| {
                store(x, Order::Relaxed, 1);
                full_fence();
                vec![load(y, Order::Relaxed)]
            },
            |[x, y]| {
                store(y, Order::Relaxed, 1);
                full_fence();
                vec![load(x, Order::Relaxed)]
            },
        ];
        assert!(!store_buffering(me, other));
    }

    /// Acquire and release let each load pass the store before it.
    #[test]
    fn loom_store_buffering_is_seen_by_default() {
        let [me, other]: [Rank; 2] = [
            |[x, y]| {
                store(x, Both, 1);
                vec![load(y, Both)]
            },
            |[x, y]| {
                store(y, Both, 1);
                vec![load(x, Both)]
            },
        ];
        assert!(store_buffering(me, other));
    }

    /// Independent reads of independent writes: two readers may not see two writes in different orders.
    fn independent_reads(readers: [Rank; 2]) -> bool {
        let [write_x, write_y]: [Rank; 2] = [
            |[x, _]| {
                store(x, Order::Relaxed, 1);
                vec![]
            },
            |[_, y]| {
                store(y, Order::Relaxed, 1);
                vec![]
            },
        ];
        let [first, second] = readers;
        sees([write_x, write_y, first, second], &[1, 0, 1, 0])
    }

    #[test]
    fn loom_independent_reads_strict() {
        let strict: [Rank; 2] =
            [|[x, y]| vec![load(x, Strict), load(y, Strict)], |[x, y]| vec![load(y, Strict), load(x, Strict)]];
        assert!(!independent_reads(strict));
    }

    #[test]
    fn loom_independent_reads_by_fences() {
        let fenced: [Rank; 2] = [
            |[x, y]| {
                let seen = load(x, Order::Relaxed);
                full_fence();
                vec![seen, load(y, Order::Relaxed)]
            },
            |[x, y]| {
                let seen = load(y, Order::Relaxed);
                full_fence();
                vec![seen, load(x, Order::Relaxed)]
            },
        ];
        assert!(!independent_reads(fenced));
    }

    #[test]
    fn loom_independent_reads_differ_by_default() {
        let default: [Rank; 2] =
            [|[x, y]| vec![load(x, Both), load(y, Both)], |[x, y]| vec![load(y, Both), load(x, Both)]];
        assert!(independent_reads(default));
    }

    /// One writes x; one reads it and writes 1 to y; one writes 2 over that and reads x, which may not be old then: what was
    /// read came before, for everybody.
    fn read_then_write(reader: Rank, last: Rank) -> bool {
        let write: Rank = |[x, _]| {
            store(x, Strict, 1);
            vec![]
        };
        sees([write, reader, last], &[1, 0, 1, 2])
    }

    #[test]
    fn loom_strict_load_then_store() {
        let [reader, reader_by_default, last]: [Rank; 3] = [
            |[x, y]| {
                let seen = load(x, Strict);
                store(y, Order::Relaxed, 1);
                vec![seen]
            },
            |[x, y]| {
                let seen = load(x, Both);
                store(y, Both, 1);
                vec![seen]
            },
            |[x, y]| {
                store(y, Order::Relaxed, 2);
                vec![load(x, Strict)]
            },
        ];
        assert!(!read_then_write(reader, last));
        assert!(read_then_write(reader_by_default, last));
    }

    #[test]
    fn loom_load_then_strict_store() {
        let [reader, last]: [Rank; 2] = [
            |[x, y]| {
                let seen = load(x, Order::Relaxed);
                store(y, Strict, 1);
                vec![seen]
            },
            |[x, y]| {
                store(y, Strict, 2);
                vec![load(x, Order::Relaxed)]
            },
        ];
        assert!(!read_then_write(reader, last));
    }

    #[test]
    fn loom_strict_load_then_strict_store() {
        let [reader, last]: [Rank; 2] = [
            |[x, y]| {
                let seen = load(x, Strict);
                store(y, Strict, 1);
                vec![seen]
            },
            |[x, y]| {
                store(y, Strict, 2);
                vec![load(x, Strict)]
            },
        ];
        assert!(!read_then_write(reader, last));
    }

    /// One word changes in one order, also for relaxed accesses.
    #[test]
    fn loom_coherence() {
        let [twice, read, write_read, read_write]: [Rank; 4] = [
            |[x, _]| {
                store(x, Order::Relaxed, 1);
                store(x, Order::Relaxed, 2);
                vec![]
            },
            |[x, _]| vec![load(x, Order::Relaxed), load(x, Order::Relaxed)],
            |[x, _]| {
                store(x, Order::Relaxed, 3);
                vec![load(x, Order::Relaxed)]
            },
            |[x, _]| {
                let seen = load(x, Order::Relaxed);
                store(x, Order::Relaxed, 3);
                vec![seen]
            },
        ];
        // Reads do not go back, and the later of two writes stays.
        for outcome in outcomes([twice, read]) {
            assert!(outcome[0] <= outcome[1] && outcome[2] == 2, "{outcome:?}");
        }
        // What was there before a write of one's own is not read after it.
        assert!(outcomes([twice, write_read]).iter().all(|outcome| outcome[0] != 0));
        // A write after a read comes after what was read.
        for outcome in outcomes([twice, read_write]) {
            assert!(outcome[0] != 2 || outcome[1] == 3, "{outcome:?}");
        }
    }
}
