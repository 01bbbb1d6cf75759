//! Signals as descriptors to poll.

use std::io;
use std::os::unix::net::UnixStream;

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

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, id, _) in &self.0 {
            unregister(*id);
        }
    }
}
