//! The copy routine for x86-64 and AArch64: single moves as instructions, everything else as a call of the C library's
//! `memcpy` through a pointer that the compiler cannot follow.

use core::arch::asm;
use core::hint::black_box;

macro_rules! width {
    ($load:ident, $store:ident, $t:ty, $as:ident,
     $x86_load:literal, $x86_store:literal, $arm_load:literal, $arm_store:literal) => {
        /// # Safety
        /// `from` is valid and aligned for this width.
        #[inline(always)]
        pub unsafe fn $load(from: *const u8) -> $t {
            let x: $as;
            // SAFETY: one load of this width, for which the caller has vouched; no stack, no flags, no store.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                asm!($x86_load, x = out(reg) x, p = in(reg) from, options(nostack, preserves_flags, readonly));
                #[cfg(target_arch = "aarch64")]
                asm!($arm_load, x = out(reg) x, p = in(reg) from, options(nostack, preserves_flags, readonly));
            }
            x as $t
        }

        /// # Safety
        /// `to` is valid and aligned for this width.
        #[inline(always)]
        pub unsafe fn $store(to: *mut u8, value: $t) {
            let x = value as $as;
            // SAFETY: one store of this width, for which the caller has vouched; no stack, no flags.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                asm!($x86_store, x = in(reg) x, p = in(reg) to, options(nostack, preserves_flags));
                #[cfg(target_arch = "aarch64")]
                asm!($arm_store, x = in(reg) x, p = in(reg) to, options(nostack, preserves_flags));
            }
        }
    };
}

width!(
    load_1,
    store_1,
    u8,
    u32,
    "movzx {x:e}, byte ptr [{p}]",
    "mov byte ptr [{p}], {x:l}",
    "ldrb {x:w}, [{p}]",
    "strb {x:w}, [{p}]"
);
width!(
    load_2,
    store_2,
    u16,
    u32,
    "movzx {x:e}, word ptr [{p}]",
    "mov word ptr [{p}], {x:x}",
    "ldrh {x:w}, [{p}]",
    "strh {x:w}, [{p}]"
);
width!(
    load_4,
    store_4,
    u32,
    u32,
    "mov {x:e}, dword ptr [{p}]",
    "mov dword ptr [{p}], {x:e}",
    "ldr {x:w}, [{p}]",
    "str {x:w}, [{p}]"
);
width!(
    load_8,
    store_8,
    u64,
    u64,
    "mov {x}, qword ptr [{p}]",
    "mov qword ptr [{p}], {x}",
    "ldr {x:x}, [{p}]",
    "str {x:x}, [{p}]"
);

/// # Safety
/// 16 bytes are valid on both sides and do not overlap.
#[inline(always)]
pub unsafe fn copy_16(to: *mut u8, from: *const u8) {
    // SAFETY: a load and a store of 16 bytes of any alignment, for which the caller has vouched; no stack, no flags.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("movups {a}, [{f}]", "movups [{t}], {a}",
            a = out(xmm_reg) _, f = in(reg) from, t = in(reg) to, options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("ldr {a:q}, [{f}]", "str {a:q}, [{t}]",
            a = out(vreg) _, f = in(reg) from, t = in(reg) to, options(nostack, preserves_flags));
    }
}

/// # Safety
/// 64 bytes are valid on both sides and do not overlap.
#[inline(always)]
pub unsafe fn copy_64(to: *mut u8, from: *const u8) {
    // SAFETY: loads and stores of 64 bytes of any alignment, for which the caller has vouched; no stack, no flags.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("movups {a}, [{f}]", "movups {b}, [{f} + 16]", "movups {c}, [{f} + 32]", "movups {d}, [{f} + 48]",
            "movups [{t}], {a}", "movups [{t} + 16], {b}", "movups [{t} + 32], {c}", "movups [{t} + 48], {d}",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            f = in(reg) from, t = in(reg) to, options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("ldp {a:q}, {b:q}, [{f}]", "ldp {c:q}, {d:q}, [{f}, #32]",
            "stp {a:q}, {b:q}, [{t}]", "stp {c:q}, {d:q}, [{t}, #32]",
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            f = in(reg) from, t = in(reg) to, options(nostack, preserves_flags));
    }
}

/// 64 bytes in registers.
#[cfg(target_arch = "x86_64")]
pub type Line = [core::arch::x86_64::__m128i; 4];
/// 64 bytes in registers.
#[cfg(target_arch = "aarch64")]
pub type Line = [core::arch::aarch64::uint8x16_t; 4];

/// # Safety
/// 64 bytes are valid.
#[inline(always)]
pub unsafe fn load_line(from: *const u8) -> Line {
    let (a, b, c, d);
    // SAFETY: loads of 64 bytes of any alignment, for which the caller has vouched; no stack, no flags, no store.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("movups {a}, [{f}]", "movups {b}, [{f} + 16]", "movups {c}, [{f} + 32]", "movups {d}, [{f} + 48]",
            a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
            f = in(reg) from, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        asm!("ldp {a:q}, {b:q}, [{f}]", "ldp {c:q}, {d:q}, [{f}, #32]",
            a = out(vreg) a, b = out(vreg) b, c = out(vreg) c, d = out(vreg) d,
            f = in(reg) from, options(nostack, preserves_flags, readonly));
    }
    [a, b, c, d]
}

/// # Safety
/// 64 bytes are valid.
#[inline(always)]
pub unsafe fn store_line(to: *mut u8, [a, b, c, d]: Line) {
    // SAFETY: stores of 64 bytes of any alignment, for which the caller has vouched; no stack, no flags.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("movups [{t}], {a}", "movups [{t} + 16], {b}", "movups [{t} + 32], {c}", "movups [{t} + 48], {d}",
            a = in(xmm_reg) a, b = in(xmm_reg) b, c = in(xmm_reg) c, d = in(xmm_reg) d,
            t = in(reg) to, options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("stp {a:q}, {b:q}, [{t}]", "stp {c:q}, {d:q}, [{t}, #32]",
            a = in(vreg) a, b = in(vreg) b, c = in(vreg) c, d = in(vreg) d,
            t = in(reg) to, options(nostack, preserves_flags));
    }
}

/// # Safety
/// `len` bytes are valid on both sides and do not overlap.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    type Copy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, libc::size_t) -> *mut libc::c_void;
    let f: Copy = black_box(libc::memcpy);
    // SAFETY: the caller has vouched for both sides.
    unsafe { f(to.cast(), from.cast(), len) };
}

/// # Safety
/// `len` bytes from `to` are valid.
pub unsafe fn zero(to: *mut u8, len: usize) {
    type Set = unsafe extern "C" fn(*mut libc::c_void, libc::c_int, libc::size_t) -> *mut libc::c_void;
    let f: Set = black_box(libc::memset);
    // SAFETY: the caller has vouched for the range.
    unsafe { f(to.cast(), 0, len) };
}
