//! Hints about cache lines. Nothing depends on them, and they may be given for any address.

/// Asks for the line of this byte, which will be written soon.
#[inline(always)]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint, which may be given for any address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    let _ = at;
}

/// Asks for the line of this byte, which will be read soon.
#[inline(always)]
pub fn prefetch_to_read<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint, which may be given for any address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    let _ = at;
}

/// The line of this byte is what another core wants next: it goes to the cache that all share, where it is found sooner than in this core's own. (Processors that cannot do
/// that do nothing.)
#[inline(always)]
pub fn hand_on<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint, which may be given for any address, and is one of the codes that processors have for doing nothing where it is not known.
    unsafe {
        core::arch::asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    let _ = at;
}
