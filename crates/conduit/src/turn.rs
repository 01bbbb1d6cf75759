//! A turn of the others on this core, and the way back from it.
//!
//! When a thread gets its core back, the kernel has filled the processor's memory of return addresses with its own, so that nobody's returns can be led astray by those of another thread. The thread's
//! next returns are then predicted to lead into the kernel. On AMD's processors (3rd generation) one such guess costs the translations of all pages of code: three to four dozen walks through page tables at the next entry to
//! the kernel, 1000 cycles or a fifth of a turn between ranks that share cores. A program cannot do without returns, but it can fill that memory itself, by calls that lead nowhere: guesses made by them are
//! wrong as well, and stay at home. Half of the 32 places are enough; to fill all takes 10 ns more. Intel's (Sapphire Rapids) have better guesses where the kernel's are wrong, and turns would take a tenth longer.

/// Lets the others on this core have a turn.
#[inline(always)]
pub fn turn() {
    // Made here and not by the C library, from which one had to return first.
    rustix::thread::sched_yield();
    came_back();
}

/// To be said by who comes back from a call of the kernel in which others may have had the core, before it returns to its own caller.
#[inline(always)]
pub fn came_back() {
    if is_amd() {
        fill();
    }
}

/// Makes as many calls that lead nowhere as there may be functions to return from: a wait is ten deep, with the program's own around it.
#[inline(always)]
fn fill() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: each call goes to the instruction after the next one, and what all of them have put onto the stack is taken off at the end; without `nostack` the compiler keeps nothing
    // below the stack's end. (A call to the very next instruction would count as none, for the guesses as for what follows.) Where the system keeps a second stack of returns, whose place `rdsspq` asks for, it is
    // shortened by as many; elsewhere that instruction does nothing.
    unsafe {
        std::arch::asm!(
            "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:",
            "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:",
            "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:",
            "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:", "call 2f", "int3", "2:",
            "add rsp, 8 * 16",
            "xor {second:e}, {second:e}",
            "rdsspq {second}",
            "test {second}, {second}",
            "jz 3f",
            "mov {second:e}, 16",
            "incsspq {second}",
            "3:",
            second = out(reg) _,
        );
    }
}

/// Is the processor one of AMD's, or made after them? No others have these instructions.
#[inline(always)]
pub fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("sse4a");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_came_back_returns_to_its_callers() {
        fn down(depth: u64) -> u64 {
            let local = std::hint::black_box([depth; 7]);
            turn();
            // On every processor.
            fill();
            let below = if depth == 0 { 0 } else { std::hint::black_box(down)(depth - 1) };
            came_back();
            below + local.iter().sum::<u64>()
        }
        assert_eq!(down(50), 7 * 50 * 51 / 2);
    }
}
