//! Restartable sequences, without which a rank does that shares its core.
//!
//! The C library (glibc from 2.35 on) tells the kernel a place in each thread, where that writes on which core the thread is, each time it gets one. `sched_getcpu` reads it; some
//! allocators have a heap for each core by it. Ranks that share a core get it for each message or two: the write takes some 90 of a turn's 900 ns where eight processes take turns, since the
//! place is in a page whose translation is gone by then. So a rank's thread takes the place back while it is a rank, and tells it again afterwards. In between `sched_getcpu` asks the
//! kernel, as it does where there is no such place; whoever has told the kernel a place of its own keeps it. Threads that a rank starts have none from the beginning. A program that
//! itself has sequences which are to be begun again, by the C library's place, loses what makes them right: it has to say `PARTAGE_RSEQ=keep`.

use std::marker::PhantomData;

/// While it lives, the kernel does not say on which core this thread is.
#[derive(Debug)]
pub struct LeftOut {
    place: Place,
    /// It is about the thread that made it.
    _thread: PhantomData<*mut ()>,
}

/// Where the C library has the kernel write, and how many bytes it has told it.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: usize,
    len: usize,
}

/// What the kernel is to find before places to which it would return: the C library's choice.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SIGNATURE: u32 = 0;

const UNREGISTER: i32 = 1;
/// What the kernel takes at least.
const SHORTEST: usize = 32;

impl LeftOut {
    /// Of this thread; nothing if the kernel does not say it.
    pub fn here() -> Option<LeftOut> {
        let (at, used) = place()?;
        let lens = [SHORTEST, used.max(SHORTEST), used.next_multiple_of(8), used.next_multiple_of(SHORTEST)];
        let mut places = lens.into_iter().filter(|&len| len >= SHORTEST).map(|len| Place { at, len });
        // SAFETY: the C library can do without, and has room at that place for as long as the thread lives. Whoever else uses it has to say so (`PARTAGE_RSEQ`).
        let place = places.find(|place| unsafe { place.tell(UNREGISTER) })?;
        Some(LeftOut { place, _thread: PhantomData })
    }
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        // SAFETY: as it was before, by the same thread. Where the kernel refuses it, all goes on as where it never did it.
        unsafe { self.place.tell(0) };
    }
}

impl Place {
    /// Does the kernel take it?
    ///
    /// # Safety
    /// What the kernel may write there from now on is the C library's.
    unsafe fn tell(self, flags: i32) -> bool {
        // SAFETY: passed on to the caller; the kernel checks all that it is given.
        unsafe { libc::syscall(libc::SYS_rseq, self.at, self.len as u32, flags, SIGNATURE) == 0 }
    }
}

/// Where it is in this thread, and how much of it is in use, if the C library has told the kernel.
fn place() -> Option<(usize, usize)> {
    // SAFETY: names that end with a zero. They are of the C library's interface, which gives them these types, and never change.
    let (offset, size) = unsafe {
        let find = |name: &std::ffi::CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        let (offset, size) = (find(c"__rseq_offset").cast::<isize>(), find(c"__rseq_size").cast::<u32>());
        if offset.is_null() || size.is_null() {
            return None;
        }
        (*offset, *size as usize)
    };
    let at = thread_pointer()?.wrapping_add_signed(offset);
    // None, if the kernel has none.
    (size > 0).then_some((at, size))
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> Option<usize> {
    let at;
    // SAFETY: the first word of what this register points to is where that is, on all systems with the C libraries that have those names.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, preserves_flags, readonly)) };
    Some(at)
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> Option<usize> {
    let at;
    // SAFETY: a register that any program may read.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) at, options(nostack, preserves_flags, nomem)) };
    Some(at)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On which core the kernel says that this thread is: the second word of the place.
    fn said() -> Option<i32> {
        let (at, _) = place()?;
        // SAFETY: a word of the C library's place, which the kernel writes.
        Some(unsafe { (at as *const i32).add(1).read_volatile() })
    }

    fn core() -> i32 {
        // SAFETY: no arguments.
        unsafe { libc::sched_getcpu() }
    }

    #[test]
    fn it_is_as_before_afterwards() {
        std::thread::spawn(|| {
            let before = said();
            let left_out = LeftOut::here();
            assert!(core() >= 0, "it is found out otherwise");
            if before.is_none_or(|core| core < 0) {
                println!("SKIPPED: the C library does not tell the kernel a place");
                assert!(left_out.is_none());
                return;
            }
            assert!(left_out.is_some() && said().is_some_and(|core| core < 0), "{left_out:?}");
            // There is no second one to take back.
            assert!(LeftOut::here().is_none());
            drop(left_out);
            assert!(said().is_some_and(|core| core >= 0) && core() >= 0);
        })
        .join()
        .expect("a thread of its own");
    }
}
