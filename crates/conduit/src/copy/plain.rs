//! The copy routine in plain Rust: atomics of the value's width, bytes otherwise. Slow, and understood by Miri.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

macro_rules! width {
    ($load:ident, $store:ident, $t:ty, $atomic:ty) => {
        /// # Safety
        /// `from` is valid and aligned for this width.
        #[inline(always)]
        pub unsafe fn $load(from: *const u8) -> $t {
            // SAFETY: valid and aligned for the atomic, and all concurrent accesses are atomic.
            unsafe { (*from.cast::<$atomic>()).load(Relaxed) }
        }

        /// # Safety
        /// `to` is valid and aligned for this width.
        #[inline(always)]
        pub unsafe fn $store(to: *mut u8, value: $t) {
            // SAFETY: valid and aligned for the atomic, and all concurrent accesses are atomic.
            unsafe { (*to.cast::<$atomic>()).store(value, Relaxed) }
        }
    };
}

width!(load_1, store_1, u8, AtomicU8);
width!(load_2, store_2, u16, AtomicU16);
width!(load_4, store_4, u32, AtomicU32);
width!(load_8, store_8, u64, AtomicU64);

/// # Safety
/// `len` bytes are valid on both sides and do not overlap.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: within the range that the caller has vouched for.
        unsafe { store_1(to.add(i), load_1(from.add(i))) }
    }
}

/// # Safety
/// 16 bytes are valid on both sides and do not overlap.
pub unsafe fn copy_16(to: *mut u8, from: *const u8) {
    // SAFETY: passed on to the caller.
    unsafe { copy(to, from, 16) }
}

/// # Safety
/// 64 bytes are valid on both sides and do not overlap.
pub unsafe fn copy_64(to: *mut u8, from: *const u8) {
    // SAFETY: passed on to the caller.
    unsafe { copy(to, from, 64) }
}

/// 64 bytes.
pub type Line = [u128; 4];

/// # Safety
/// 64 bytes are valid.
pub unsafe fn load_line(from: *const u8) -> Line {
    let mut line = [0; 4];
    // SAFETY: passed on to the caller; a line is private, and as long.
    unsafe { copy((&raw mut line).cast(), from, 64) };
    line
}

/// # Safety
/// 64 bytes are valid.
pub unsafe fn store_line(to: *mut u8, line: Line) {
    // SAFETY: the same.
    unsafe { copy(to, (&raw const line).cast(), 64) };
}

/// # Safety
/// `len` bytes from `to` are valid.
pub unsafe fn zero(to: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: within the range that the caller has vouched for.
        unsafe { (*to.add(i).cast::<AtomicU8>()).store(0, Relaxed) }
    }
}
