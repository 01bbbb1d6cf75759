//! Atomic operations on one word, wherever it lies: what each does, and in which order with what comes before and after.
//!
//! # Orders
//! * [`Order::Relaxed`]: the operation is one, nothing else.
//! * [`Order::Both`]: acquire and release. What its rank wrote before is seen by whoever has seen what it wrote; what its
//!   rank reads after was written at least as late as what it has seen.
//! * [`Order::Strict`]: the same, and ordered against every earlier and every later access of its rank, stores before loads
//!   included. All strict operations of all ranks have one order, which each rank's own order is a part of.
//!
//! # Memory ordering
//! A strict load has a full fence before it: what came earlier, also a store, is seen by all when it looks. What
//! comes later waits for it, since it acquires. A strict store has a full fence after it: what comes later, also a load, looks
//! when it is seen by all; what came earlier is, since it releases. Other strict operations have both. Between any two strict
//! operations of a rank lies a full fence, and with that the model of Rust and C++ gives what strict promises: message passing
//! needs acquire and release, store buffering one fence in each rank between store and load, independent reads of independent
//! writes one in each reader between its loads. The litmus programs below fail without each of the fences.
//! (On x86-64 a locked instruction is a full fence, so there the others need none.)

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
                    before(order);
                    return u64::from(word.load(order.load()));
                }
                Op::Store => {
                    word.store(x, order.store());
                    after(order);
                    return 0;
                }
                _ => {}
            }
            before_locked(order);
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
            after_locked(order);
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
fn before(order: Order) {
    if order == Order::Strict {
        full_fence();
    }
}

#[inline(always)]
fn after(order: Order) {
    if order == Order::Strict {
        full_fence();
    }
}

/// A locked instruction of x86-64 is a full fence.
const LOCKED_IS_FENCE: bool = cfg!(all(target_arch = "x86_64", not(loom), not(miri)));

#[inline(always)]
fn before_locked(order: Order) {
    if order == Order::Strict && !LOCKED_IS_FENCE {
        full_fence();
    }
}

#[inline(always)]
fn after_locked(order: Order) {
    if order == Order::Strict && !LOCKED_IS_FENCE {
        full_fence();
    }
}
