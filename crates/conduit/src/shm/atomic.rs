//! Atomics between ranks of a node: the CPU's own, on the word where it lies.

use crate::contract::At;
use crate::shm::rma::{Mapped, Reach};
use crate::word::{Atomic, apply_32, apply_64};
use bytemuck::Pod;

impl Reach {
    /// Does this to the word there; its old value, or `None` if it does not lie in a segment that is mapped here or is not
    /// aligned.
    #[inline(always)]
    pub fn atomic(&self, at: At, what: Atomic) -> Option<u64> {
        // SAFETY: aligned, inside a segment; every access to segments that is not atomic is made by the copy routine, which
        // is opaque to the compiler, and the machine keeps aligned words whole.
        Some(unsafe {
            match what.width {
                4 => apply_32(&*self.locate_value::<u32>(at)?.cast(), what),
                _ => apply_64(&*self.locate_value::<u64>(at)?.cast(), what),
            }
        })
    }
}

impl<T: Pod> Mapped<'_, T> {
    /// Does this to the word, which is as wide as the operation says; its old value.
    #[inline(always)]
    pub fn atomic(self, what: Atomic) -> u64 {
        const { assert!(matches!(size_of::<T>(), 4 | 8) && align_of::<T>() == size_of::<T>()) };
        debug_assert_eq!(usize::from(what.width), size_of::<T>());
        // SAFETY: mapped and aligned (`Mapped`), of this width; otherwise as above.
        unsafe {
            match size_of::<T>() {
                4 => apply_32(&*self.as_ptr().cast(), what),
                _ => apply_64(&*self.as_ptr().cast(), what),
            }
        }
    }
}
