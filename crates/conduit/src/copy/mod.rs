//! The one routine through which bytes enter and leave shared memory.
//!
//! Other ranks, in this process and in others, may read and write the same bytes at the same time. Rust's memory model
//! calls that a data race if both are ordinary accesses, and says nothing of other processes; so no ordinary access is
//! made. Every byte moves through an instruction or a call that the compiler cannot see into: to it, an asm block or
//! a foreign function reads and writes memory that it knows nothing about. What the machine then does is well defined:
//!
//! * [`load`] and [`store`] of 1, 2, 4 or 8 aligned bytes are one instruction and never tear;
//! * anything larger is copied in an unspecified order and may arrive as a mix of old and new bytes, which is harmless
//!   because only plain data (`Pod`, every bit pattern is a value) is ever read this way;
//! * no order between copies is promised. Barriers and signals order them: on x86-64 and AArch64 a release store after
//!   a copy orders it like any other store. (Copies use no non-temporal stores past their own fence.)
//!
//! The private side is ordinary memory, owned by the caller for the length of the call.
//! The plain version exists for Miri and for architectures without an asm version.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod asm;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use asm as arch;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
mod plain;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
use plain as arch;

use bytemuck::Pod;
use std::mem::{MaybeUninit, transmute_copy};

/// Reads a value from memory that may be shared.
///
/// # Safety
/// `from` is aligned for `T` and `size_of::<T>()` bytes from there are mapped; no reference exists to them if they are shared, else they can be read.
#[inline(always)]
pub unsafe fn load<T: Pod>(from: *const u8) -> T {
    // SAFETY: the caller vouches for the shared side. Each arm has tested that T has that size and alignment, and any
    // bits of that size are a `Pod`; in the last arm `value` has room for one T, which the copy fills.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => transmute_copy(&arch::load_1(from)),
            (2, 2) => transmute_copy(&arch::load_2(from)),
            (4, 4) => transmute_copy(&arch::load_4(from)),
            (8, 8) => transmute_copy(&arch::load_8(from)),
            (n, _) => {
                let mut value = MaybeUninit::<T>::uninit();
                arch::copy(value.as_mut_ptr().cast(), from, n);
                value.assume_init()
            }
        }
    }
}

/// Writes a value to memory that may be shared.
///
/// # Safety
/// As for [`load`]; what is private can be written.
#[inline(always)]
pub unsafe fn store<T: Pod>(to: *mut u8, value: T) {
    // SAFETY: the caller vouches for the shared side; each arm has tested the size and alignment that it assumes, and
    // `value` lives until the end of the call.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => arch::store_1(to, transmute_copy(&value)),
            (2, 2) => arch::store_2(to, transmute_copy(&value)),
            (4, 4) => arch::store_4(to, transmute_copy(&value)),
            (8, 8) => arch::store_8(to, transmute_copy(&value)),
            (n, _) => arch::copy(to, (&raw const value).cast(), n),
        }
    }
}

/// Copies `len` bytes out of shared memory.
///
/// # Safety
/// `len` bytes from `from` are mapped shared memory to which no reference exists; `to` has room for them and is not shared.
#[inline(always)]
pub unsafe fn read(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: passed on to the caller; a private and a shared range do not overlap. A line has the length that was tested.
    unsafe { if len == 64 { arch::copy_64(to, from) } else { arch::copy(to, from, len) } }
}

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// As for [`read`], with the sides exchanged.
#[inline(always)]
pub unsafe fn write(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: passed on to the caller; a private and a shared range do not overlap. A line has the length that was tested.
    unsafe { if len == 64 { arch::copy_64(to, from) } else { arch::copy(to, from, len) } }
}

/// Copies `len` bytes from one place to another, either of which may be shared.
///
/// # Safety
/// Both are mapped and do not overlap. No reference exists to one that is shared; the other, if it is private, can be read or
/// written.
#[inline(always)]
pub unsafe fn between(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: passed on to the caller; words are aligned, as was tested.
    unsafe {
        match len {
            8 if (to.addr() | from.addr()).is_multiple_of(8) => arch::store_8(to, arch::load_8(from)),
            64 => arch::copy_64(to, from),
            _ => arch::copy(to, from, len),
        }
    }
}

/// 64 bytes of memory that may be shared, in registers. What is done to one element after the other there is done to many at once.
#[derive(Clone, Copy, Debug)]
pub struct Line(arch::Line);

impl Line {
    /// How many bytes it has.
    pub const LEN: usize = 64;

    /// Does it have a whole number of these elements?
    pub const fn has_whole<T>() -> bool {
        Line::LEN.is_multiple_of(size_of::<T>()) && align_of::<T>() <= align_of::<Line>()
    }

    /// Loads it from any address.
    ///
    /// # Safety
    /// As many bytes are mapped; no reference exists to them if they are shared, else they can be read.
    #[inline(always)]
    pub unsafe fn load(from: *const u8) -> Line {
        // SAFETY: passed on to the caller.
        Line(unsafe { arch::load_line(from) })
    }

    /// Stores it to any address.
    ///
    /// # Safety
    /// As many bytes are mapped; no reference exists to them if they are shared, else they can be written.
    #[inline(always)]
    pub unsafe fn store(self, to: *mut u8) {
        // SAFETY: passed on to the caller.
        unsafe { arch::store_line(to, self.0) };
    }

    /// Its elements.
    ///
    /// # Panics
    /// If it does not have a whole number of them.
    #[inline(always)]
    pub fn elements<T: Pod>(&mut self) -> &mut [T] {
        assert!(Line::has_whole::<T>());
        // SAFETY: aligned, and any bytes are such elements.
        unsafe { std::slice::from_raw_parts_mut((&raw mut self.0).cast(), Line::LEN / size_of::<T>()) }
    }
}

/// Runs of bytes at one distance on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Bytes of each.
    pub len: usize,
    /// How many there are.
    pub count: usize,
    /// How far each begins after the one before in shared memory.
    pub there: usize,
    /// The same in private memory.
    pub here: usize,
}

impl Runs {
    /// From the first byte of the first to the last of the last, if they are at this distance; `None` beyond all numbers.
    #[inline(always)]
    fn span(&self, stride: usize) -> Option<usize> {
        match self.count {
            0 => Some(0),
            count => (count - 1).checked_mul(stride)?.checked_add(self.len),
        }
    }

    /// How many bytes of shared memory they lie in.
    #[inline(always)]
    pub fn span_there(&self) -> Option<usize> {
        self.span(self.there)
    }

    /// How many bytes of private memory they lie in.
    #[inline(always)]
    pub fn span_here(&self) -> Option<usize> {
        self.span(self.here)
    }

    /// Is each of them a word of so many bytes, aligned if it is where the first is?
    #[inline(always)]
    fn are_words(&self, shared: *const u8, n: usize) -> bool {
        self.len == n && shared.addr().is_multiple_of(n) && self.there.is_multiple_of(n)
    }
}

/// The longest runs that are copied in line; beyond that the C library's copy is as fast.
const IN_LINE: usize = 256;

/// # Safety
/// As for [`write_runs`] or [`read_runs`].
#[inline(always)]
unsafe fn each(runs: Runs, to: (*mut u8, usize), from: (*const u8, usize), one: impl Fn(*mut u8, *const u8)) {
    let ((mut to, to_stride), (mut from, from_stride)) = (to, from);
    for _ in 0..runs.count {
        one(to, from);
        // Past the last one this is no address; it is not used.
        (to, from) = (to.wrapping_add(to_stride), from.wrapping_add(from_stride));
    }
}

/// # Safety
/// `len` bytes are valid on both sides and do not overlap; they are a multiple of 16.
#[inline(always)]
unsafe fn in_line(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    // SAFETY: inside the bytes for which the caller vouches.
    unsafe {
        while len - done >= 64 {
            arch::copy_64(to.add(done), from.add(done));
            done += 64;
        }
        while done < len {
            arch::copy_16(to.add(done), from.add(done));
            done += 16;
        }
    }
}

/// Copies runs into shared memory. Aligned words of 1, 2, 4 or 8 bytes do not tear.
///
/// # Safety
/// As for [`write()`], for each run.
#[inline]
pub unsafe fn write_runs(to: *mut u8, from: *const u8, runs: Runs) {
    let ends = ((to, runs.there), (from, runs.here));
    // SAFETY: each run is passed on to the caller; a word has the length and, in shared memory, the alignment that was
    // tested, and private memory is read as it lies.
    unsafe {
        match runs.len {
            64 => each(runs, ends.0, ends.1, |to, from| arch::copy_64(to, from)),
            1 => each(runs, ends.0, ends.1, |to, from| arch::store_1(to, from.read())),
            2 if runs.are_words(to, 2) => {
                each(runs, ends.0, ends.1, |to, from| arch::store_2(to, from.cast::<u16>().read_unaligned()));
            }
            4 if runs.are_words(to, 4) => {
                each(runs, ends.0, ends.1, |to, from| arch::store_4(to, from.cast::<u32>().read_unaligned()));
            }
            8 if runs.are_words(to, 8) => {
                each(runs, ends.0, ends.1, |to, from| arch::store_8(to, from.cast::<u64>().read_unaligned()));
            }
            n if n <= IN_LINE && n.is_multiple_of(16) => {
                each(runs, ends.0, ends.1, |to, from| in_line(to, from, n));
            }
            n => each(runs, ends.0, ends.1, |to, from| arch::copy(to, from, n)),
        }
    }
}

/// Copies runs out of shared memory. Aligned words of 1, 2, 4 or 8 bytes do not tear.
///
/// # Safety
/// As for [`read`], for each run.
#[inline]
pub unsafe fn read_runs(to: *mut u8, from: *const u8, runs: Runs) {
    let ends = ((to, runs.here), (from, runs.there));
    // SAFETY: as for `write_runs`, with the sides exchanged.
    unsafe {
        match runs.len {
            64 => each(runs, ends.0, ends.1, |to, from| arch::copy_64(to, from)),
            1 => each(runs, ends.0, ends.1, |to, from| to.write(arch::load_1(from))),
            2 if runs.are_words(from, 2) => {
                each(runs, ends.0, ends.1, |to, from| to.cast::<u16>().write_unaligned(arch::load_2(from)));
            }
            4 if runs.are_words(from, 4) => {
                each(runs, ends.0, ends.1, |to, from| to.cast::<u32>().write_unaligned(arch::load_4(from)));
            }
            8 if runs.are_words(from, 8) => {
                each(runs, ends.0, ends.1, |to, from| to.cast::<u64>().write_unaligned(arch::load_8(from)));
            }
            n if n <= IN_LINE && n.is_multiple_of(16) => {
                each(runs, ends.0, ends.1, |to, from| in_line(to, from, n));
            }
            n => each(runs, ends.0, ends.1, |to, from| arch::copy(to, from, n)),
        }
    }
}

/// Zeroes a few words of shared memory.
///
/// # Safety
/// `8 * words` bytes from `to`, which is a multiple of 8, are mapped shared memory to which no reference exists.
#[inline(always)]
pub unsafe fn zero_words(to: *mut u8, words: usize) {
    for i in 0..words {
        // SAFETY: passed on to the caller.
        unsafe { arch::store_8(to.add(8 * i), 0) };
    }
}

/// Zeroes `len` bytes of shared memory.
///
/// # Safety
/// `len` bytes from `to` are mapped shared memory to which no reference exists.
pub unsafe fn zero(to: *mut u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { arch::zero(to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_ranges_of_every_length_arrive() {
        let source: Vec<u8> = (0..5000).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..300).chain([1000, 4096, 4999]) {
            for shift in [0, 1, 3, 8] {
                let mut shared = vec![0xa5u8; 5100];
                let mut back = vec![0u8; len];
                // SAFETY: the ranges lie in three different vectors, long enough, and nobody else knows them.
                unsafe {
                    write(shared.as_mut_ptr().add(shift), source.as_ptr(), len);
                    read(back.as_mut_ptr(), shared.as_ptr().add(shift), len);
                }
                assert_eq!(back, source[..len]);
                assert!(shared[..shift].iter().chain(&shared[shift + len..]).all(|&b| b == 0xa5));
                // SAFETY: as above.
                unsafe { zero(shared.as_mut_ptr().add(shift), len) };
                assert!(shared[shift..shift + len].iter().all(|&b| b == 0));
            }
        }
        for shift in 0..64 {
            let (mut to, mut some) = ([0xa5u8; 192], [0u8; 64]);
            // SAFETY: so many bytes from there; nobody else knows them.
            unsafe {
                let mut line = Line::load(source.as_ptr().add(shift));
                some.copy_from_slice(line.elements::<u8>());
                line.elements::<u16>()[31] = 0x1234;
                line.store(to.as_mut_ptr().add(shift));
            }
            assert_eq!(some, source[shift..shift + 64]);
            assert_eq!(to[shift..shift + 62], some[..62]);
            assert_eq!(to[shift + 62..shift + 64], 0x1234u16.to_ne_bytes());
            assert!(to[..shift].iter().chain(&to[shift + 64..]).all(|&b| b == 0xa5));
        }
        let mut cell = [0u64; 4];
        let p = cell.as_mut_ptr().cast::<u8>();
        // SAFETY: `cell` is aligned, large enough for each of these types and used by nobody else.
        unsafe {
            store(p, 0x1122_3344_5566_7788u64);
            assert_eq!(load::<u64>(p), 0x1122_3344_5566_7788);
            assert_eq!(load::<u32>(p.add(4)), if cfg!(target_endian = "little") { 0x1122_3344 } else { 0x5566_7788 });
            store(p, -2i16);
            store(p.add(2), 200u8);
            assert_eq!((load::<i16>(p), load::<u8>(p.add(2))), (-2, 200));
            store(p, [1.5f64, 2.5, 3.5]);
            assert_eq!(load::<[f64; 3]>(p), [1.5, 2.5, 3.5]);
            store(p, [1u8, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(load::<[u8; 8]>(p), [1, 2, 3, 4, 5, 6, 7, 8]);
            store(p, ());
        }
    }

    #[test]
    fn runs_of_every_length_and_distance_arrive() {
        let source: Vec<u8> = (0..4000).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..70).chain([80, 96, 128, 144, 240, 256, 272, 300]) {
            for (count, there, here, shift) in
                [(0, 9, 9, 0), (1, 0, 0, 3), (5, len, len + 3, 1), (7, len + 8, len, 8), (4, len + 5, 0, 0)]
            {
                let runs = Runs { len, count, there, here };
                let (there_len, here_len) = (runs.span_there().unwrap(), runs.span_here().unwrap());
                assert_eq!(
                    (there_len, here_len),
                    match count {
                        0 => (0, 0),
                        n => ((n - 1) * there + len, (n - 1) * here + len),
                    }
                );
                let (mut shared, mut wanted) = (vec![0xa5u8; 4000], vec![0xa5u8; 4000]);
                for i in 0..count {
                    wanted[shift + i * there..][..len].copy_from_slice(&source[1 + i * here..][..len]);
                }
                // SAFETY: the runs lie in three different vectors, long enough, and nobody else knows them.
                unsafe { write_runs(shared.as_mut_ptr().add(shift), source.as_ptr().add(1), runs) };
                assert_eq!(shared, wanted, "{runs:?}");
                let (mut back, mut wanted) = (vec![0x5au8; 4000], vec![0x5au8; 4000]);
                for i in 0..count {
                    wanted[1 + i * here..][..len].copy_from_slice(&shared[shift + i * there..][..len]);
                }
                // SAFETY: as above.
                unsafe { read_runs(back.as_mut_ptr().add(1), shared.as_ptr().add(shift), runs) };
                assert_eq!(back, wanted, "{runs:?}");
            }
        }
        let huge = Runs { len: 2, count: usize::MAX, there: 2, here: usize::MAX };
        assert_eq!((huge.span_there(), huge.span_here()), (None, None));
    }

    #[test]
    fn eight_bytes_never_tear() {
        #[repr(align(64))]
        struct Cell(std::cell::UnsafeCell<u64>);
        // SAFETY: the value is only reached through `load` and `store`.
        unsafe impl Sync for Cell {}
        impl Cell {
            fn at(&self) -> *mut u8 {
                self.0.get().cast()
            }
        }
        let cell = Cell(0.into());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..2_000_000u64 {
                    // SAFETY: aligned, mapped, no reference to the inside.
                    unsafe { store(cell.at(), if i % 2 == 0 { u64::MAX } else { 0 }) };
                }
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: as above.
                let v = unsafe { load::<u64>(cell.at()) };
                assert!(v == 0 || v == u64::MAX, "{v:#x}");
            }
        });
    }
}
