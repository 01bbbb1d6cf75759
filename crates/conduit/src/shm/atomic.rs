//! Atomics between ranks of a node: the CPU's own, on the word where it lies.

use crate::contract::{At, Atomic, Op};
use crate::shm::rma::Reach;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::*};

impl Reach {
    /// Does this to the word there; its old value, or `None` if it does not lie in a segment that is mapped here or is not
    /// aligned.
    #[inline]
    pub fn atomic(&self, at: At, what: Atomic) -> Option<u64> {
        let p = self.locate(at, what.width()).filter(|p| p.addr().is_multiple_of(what.width()))?;
        macro_rules! apply {
            ($word:ty, $signed:ty, $t:ty, $s:ty) => {{
                // SAFETY: aligned, inside a segment; every access to segments that is not atomic is made by the copy
                // routine, which is opaque to the compiler, and the machine keeps aligned words whole.
                let (word, signed) = unsafe { (&*p.cast::<$word>(), &*p.cast::<$signed>()) };
                let x = what.operand as $t;
                let old = match what.op()? {
                    Op::Load => word.load(Acquire),
                    Op::Swap => word.swap(x, AcqRel),
                    Op::CompareExchange => match word.compare_exchange(what.expected as $t, x, AcqRel, Acquire) {
                        Ok(old) | Err(old) => old,
                    },
                    Op::Add => word.fetch_add(x, AcqRel),
                    Op::And => word.fetch_and(x, AcqRel),
                    Op::Or => word.fetch_or(x, AcqRel),
                    Op::Xor => word.fetch_xor(x, AcqRel),
                    Op::Min => word.fetch_min(x, AcqRel),
                    Op::Max => word.fetch_max(x, AcqRel),
                    Op::MinSigned => signed.fetch_min(x as $s, AcqRel) as $t,
                    Op::MaxSigned => signed.fetch_max(x as $s, AcqRel) as $t,
                };
                u64::from(old)
            }};
        }
        Some(match what.width() {
            4 => apply!(AtomicU32, AtomicI32, u32, i32),
            8 => apply!(AtomicU64, AtomicI64, u64, i64),
            _ => return None,
        })
    }
}
