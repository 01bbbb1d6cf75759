//! Files by which processes of one machine pass results to one another. They have no name in any directory: others find
//! them by this process's descriptor, so nothing is left behind however it ends, and nobody can be there before.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// A file that is there as long as this is, or somebody has opened it.
#[derive(Debug)]
pub struct Scratch(File);

impl Scratch {
    /// An empty one.
    pub fn new() -> Result<Scratch, String> {
        let made = memfd_create("partage-scratch", MemfdFlags::CLOEXEC);
        Ok(Scratch(made.map_err(|e| format!("cannot make a file in memory: {e}"))?.into()))
    }

    /// One with this in it.
    pub fn with(bytes: &[u8]) -> Result<Scratch, String> {
        let mut scratch = Scratch::new()?;
        scratch.0.write_all(bytes).map_err(|e| format!("cannot write a file in memory: {e}"))?;
        Ok(scratch)
    }

    /// One of so many bytes, all zero.
    pub fn zeroed(len: usize) -> Result<Scratch, String> {
        let scratch = Scratch::new()?;
        scratch.0.set_len(len as u64).map_err(|e| format!("cannot make a file of {len} bytes in memory: {e}"))?;
        Ok(scratch)
    }

    /// What other processes open.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// What others have left in it since the last time; nothing is an error.
    pub fn take(&self) -> Result<Vec<u8>, String> {
        let mut bytes = vec![];
        let mut file = &self.0;
        let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes)).and_then(|_| file.set_len(0));
        match read {
            Err(e) => Err(format!("no result: {e}")),
            Ok(()) if bytes.is_empty() => Err("no result".into()),
            Ok(()) => Ok(bytes),
        }
    }

    /// The same as text.
    pub fn take_text(&self) -> Result<String, String> {
        String::from_utf8(self.take()?).map_err(|e| format!("no result: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn others_find_it_and_leave_something() {
        let scratch = Scratch::new().unwrap();
        assert_eq!(scratch.take_text(), Err("no result".into()));
        for text in ["first, and long", "second"] {
            let mut sh = Command::new("sh");
            sh.args(["-c", "printf '%s' \"$1\" > \"$0\""]).arg(scratch.path()).arg(text);
            assert!(sh.status().unwrap().success());
            assert_eq!(scratch.take_text().unwrap(), text);
        }
        assert!(scratch.take().is_err(), "what was taken is gone");
        assert_eq!(std::fs::read(Scratch::with(b"x").unwrap().path()).unwrap(), b"x");
        let zeroed = Scratch::zeroed(10).unwrap();
        assert_eq!(zeroed.take().unwrap(), [0; 10]);
        let path = zeroed.path();
        drop(zeroed);
        assert!(!path.exists(), "gone with its owner");
    }
}
