//! Signals as descriptors to poll.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Once};

use rustix::net::RecvFlags;
use rustix::process::Signal;
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};

/// Signals that are taken, each with a socket that it makes readable.
pub(crate) struct Signals(Vec<(Signal, SigId, UnixStream)>);

impl Signals {
    pub(crate) fn none() -> Signals {
        Signals(Vec::new())
    }

    /// From now on these signals no longer have their default effect.
    pub(crate) fn register(taken: &[Signal]) -> io::Result<Signals> {
        let mut signals = Signals::none();
        for signal in taken {
            let (ours, theirs) = UnixStream::pair()?;
            signals.0.push((*signal, pipe::register(signal.as_raw(), theirs)?, ours));
        }
        Ok(signals)
    }

    /// To poll for reading, in the order of `register`.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &UnixStream> {
        self.0.iter().map(|(_, _, socket)| socket)
    }

    /// Which signal the socket `at` stands for, and how often it has come since it was last asked; none: it has not.
    pub(crate) fn take(&self, at: usize) -> Option<(Signal, usize)> {
        let (signal, _, socket) = &self.0[at];
        let (count, _) = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT).ok()?;
        Some((*signal, count))
    }
}

/// Has whoever started this process had this signal ignored? Such an inheritance is not in the way of handlers, but meant.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in(&status, signal.as_raw())
}

fn is_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Processes that end stay until somebody has asked how: where SIGCHLD is ignored, the kernel forgets them at once, and their numbers may be others' by then.
pub(crate) fn keep_the_dead() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if is_ignored(Signal::CHILD) {
            // A handler that does nothing that matters. If there can be none, deaths are noticed without their codes.
            let _ = signal_hook::flag::register(Signal::CHILD.as_raw(), Arc::default());
        }
    });
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, id, _) in &self.0 {
            unregister(*id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_a_mask() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000010003\nSigCgt:\t0\n";
        assert_eq!([1, 2, 3, 17, 18].map(|signal| is_in(status, signal)), [true, true, false, true, false]);
        assert!(!is_in("", 1) && !is_in("SigIgn:\tx", 1));
    }
}
