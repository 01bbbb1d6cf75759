//! Takes over the socket that a launcher left open for this process and named in `PMI_FD`.
//!
//! Guaranteed: at most one descriptor is taken over in the life of the process; it was open and a socket when looked
//! at, and no program that this process starts inherits it. Anything else that the number may name is left untouched.
//! Not contained: speaking over the socket.

use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use rustix::io::FdFlags;

use crate::Error;

/// The socket numbered `number`, owned.
pub(crate) fn adopt(number: &str) -> Result<OwnedFd, Error> {
    static TAKEN: AtomicBool = AtomicBool::new(false);

    let bad = |why: &str| {
        Error::new(format!(
            "PMI_FD={number} {why}; was this program started by a process of a job, not by its launcher? \
             (PARTAGE_BOOT=alone runs it by itself)"
        ))
    };
    let raw: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or_else(|| bad("is no descriptor number"))?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Error::new("this process has already connected to its launcher; that is possible only once"));
    }

    let give_up = |why| {
        TAKEN.store(false, Ordering::Relaxed);
        bad(why)
    };
    // SAFETY: F_GETFD takes no third argument and accepts any number: one that is not open gives EBADF.
    if unsafe { libc::fcntl(raw, libc::F_GETFD) } == -1 {
        return Err(give_up("is not open"));
    }
    // SAFETY: `from_raw_fd` requires a descriptor that is open and that nobody else owns.
    // Open: just asked. Owned by nobody else: PMI_FD is the launcher's statement that it opened this number for this
    // process's PMI client alone and left it across exec, so no code of this process has made it; this function is
    // that client's only way in, and TAKEN lets it past here once. A stale number, where the launcher's statement is
    // not true of this process, is caught as far as it can be (not open, not a socket) and handed back unclosed.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let socket =
        rustix::fs::fstat(fd.as_fd()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    if !socket {
        let _ = fd.into_raw_fd();
        return Err(give_up("is not a socket"));
    }
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|e| Error::new(format!("PMI_FD={number}: {e}")))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the three calls share the process's one permit.
    #[test]
    fn refuses_what_is_not_the_launchers_socket() {
        for (number, why) in
            [("three", "is no descriptor number"), ("-1", "is no"), ("1", "is no"), ("99999", "is not open")]
        {
            let line = adopt(number).unwrap_err().to_string();
            assert!(line.starts_with(&format!("PMI_FD={number} {why}")), "{line}");
        }
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let raw = file.into_raw_fd();
        let line = adopt(&raw.to_string()).unwrap_err().to_string();
        assert!(line.contains("is not a socket"), "{line}");

        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let raw = OwnedFd::from(socket).into_raw_fd();
        let adopted = adopt(&raw.to_string()).unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&adopted).unwrap(), FdFlags::CLOEXEC);
        assert!(adopt(&raw.to_string()).unwrap_err().to_string().contains("only once"));
    }
}
