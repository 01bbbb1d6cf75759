//! How the processes of a job find each other.
//!
//! Two sides of one small protocol:
//!
//! - [`Boot`] is the side of a process of the job: who am I, how many are we, an all-gather of bytes, a fence, an
//!   orderly end. It speaks PMI-1 over an inherited socket, to our own launcher or to a foreign one.
//! - [`launch()`] is the side of the launcher: it starts the processes, serves them that protocol, watches them, and
//!   ends the whole job when one of them fails. On other hosts it does so through an [`agent()`] on each, which a remote
//!   shell starts.
//!
//! Guaranteed: what a peer sends is checked; whatever it is, the answer is a one-line [`Error`], never a panic. A
//! process under a launcher that is recognised but not spoken gets an error, never a silent job of one. `launch` needs
//! no thread and no `SIGCHLD` handler and leaves no process, zombie or descriptor behind.
//!
//! Not contained: shared memory, networks, ranks as threads (here a rank is only a number in a range), reading of
//! `PARTAGE_*` settings other than those which the launcher itself passes to its processes.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // takes ownership of the descriptor that PMI_FD names
mod adopt;
mod agent;
mod channel;
mod crew;
mod error;
mod foreign;
mod launch;
mod observe;
mod output;
mod party;
mod pmi;
mod remote;
mod server;
mod signals;
#[allow(unsafe_code)] // pre_exec
mod spawn;
mod spec;
mod verdict;
mod wire;

use std::io::Write;
use std::os::fd::BorrowedFd;

pub use agent::agent;
pub use error::Error;
pub use launch::{Ended, launch};
pub use observe::{Observer, Row};
pub use spec::{Hosts, Input, Spec, ranks_of};

/// Version of what our launcher and our programs say to each other beyond PMI-1.
pub(crate) const PROTOCOL: u32 = 1;

/// This process's connection to the other processes of its job.
///
/// There is at most one to a launcher in the life of a process, since PMI-1 cannot be initialised twice; a second
/// [`Boot::connect`] is an error. Keep it for as long as jobs run. Dropping it does not finalize.
#[derive(Debug)]
pub struct Boot {
    link: Option<pmi::Pmi>,
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Our own launcher, see [`launch()`].
    Launcher,
    /// A foreign launcher that speaks PMI-1 over `PMI_FD`, such as `mpirun.mpich`.
    Pmi1,
    /// Nobody: a job of one process.
    Alone,
}

impl Boot {
    /// Connects to the launcher that started this process.
    ///
    /// `how`: `None` finds out from the environment, `Some("alone")` ignores any launcher, `Some("pmi")` insists on
    /// `PMI_FD`.
    pub fn connect(how: Option<&str>) -> Result<Boot, Error> {
        let var = |name: &str| std::env::var(name).ok();
        let link = match how {
            Some("alone") => None,
            Some("pmi") if var("PMI_FD").is_none() => {
                return Err(Error::new("PARTAGE_BOOT=pmi, but no launcher has set PMI_FD"));
            }
            None | Some("pmi") if var("PMI_FD").is_some() => Some(pmi::Pmi::connect(var)?),
            None => foreign::check(var).map(|()| None)?,
            Some(other) => {
                return Err(Error::new(format!("PARTAGE_BOOT={other}: it may be `alone` or `pmi`, or unset")));
            }
        };
        Ok(Boot { link })
    }

    /// Who started this process.
    pub fn kind(&self) -> Kind {
        match &self.link {
            None => Kind::Alone,
            Some(pmi) if pmi.ours() => Kind::Launcher,
            Some(_) => Kind::Pmi1,
        }
    }

    /// Number of this process, from 0.
    pub fn process(&self) -> usize {
        self.link.as_ref().map_or(0, |pmi| pmi.process())
    }

    /// Number of processes of the job.
    pub fn processes(&self) -> usize {
        self.link.as_ref().map_or(1, |pmi| pmi.processes())
    }

    /// All-gather: every process of the job calls it with its bytes and gets those of all, by process.
    ///
    /// Any content, any length up to 256 MiB, lengths may differ. Collective; after an error the connection is of no
    /// more use.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match &mut self.link {
            None => Ok(vec![mine.to_vec()]),
            Some(pmi) => pmi.exchange(mine),
        }
    }

    /// Returns after every process of the job has called it. Collective.
    pub fn fence(&mut self) -> Result<(), Error> {
        self.link.as_mut().map_or(Ok(()), |pmi| pmi.fence())
    }

    /// Tells our own launcher something for its reports, see [`Observer::announced`]. Does nothing for other kinds.
    ///
    /// Not collective. `key` is of letters, digits, `-`, `_` and `.`, at most 128; `value` at most 256 KiB.
    pub fn announce(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.link.as_mut().map_or(Ok(()), |pmi| pmi.announce(key, value))
    }

    /// Ends the whole job with exit code `code`; the caller then exits with that code itself.
    ///
    /// `line`: `None` when this process has already said why on stderr; `Some` is printed as it stands (one line), by
    /// our own launcher or, for the other kinds, here.
    pub fn abort(&mut self, code: i32, line: Option<&str>) {
        if let (Some(line), Kind::Pmi1 | Kind::Alone) = (line, self.kind()) {
            let _ = writeln!(std::io::stderr(), "{}", error::one_line(line));
        }
        if self.kind() == Kind::Pmi1 {
            // mpirun.mpich ends a job without passing on what its processes have just written.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Some(pmi) = &mut self.link {
            pmi.abort(code, line);
        }
    }

    /// This process takes part in no further exchange and may exit at any time. Not collective, idempotent.
    ///
    /// Stop watching [`Boot::lifeline`] first: a foreign launcher may hang up as soon as it has read this.
    pub fn finalize(&mut self) {
        if let Some(pmi) = &mut self.link {
            pmi.finalize();
        }
    }

    /// A descriptor that reports `POLLHUP` when the launcher is gone; poll it with no events asked for, do not read it.
    ///
    /// `None` when alone, and after [`Boot::finalize`] under a foreign launcher.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().and_then(|pmi| pmi.lifeline())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone() {
        let mut boot = Boot::connect(Some("alone")).unwrap();
        assert_eq!((boot.kind(), boot.process(), boot.processes()), (Kind::Alone, 0, 1));
        assert_eq!(boot.exchange(b"x").unwrap(), [b"x"]);
        boot.fence().unwrap();
        boot.announce("no key!", b"").unwrap();
        assert!(boot.lifeline().is_none());
        boot.finalize();
        boot.finalize();
    }

    #[test]
    fn an_unknown_way_names_the_known_ones() {
        let line = Boot::connect(Some("pmix")).unwrap_err().to_string();
        assert_eq!(line, "PARTAGE_BOOT=pmix: it may be `alone` or `pmi`, or unset");
    }

    #[test]
    fn can_live_in_a_static() {
        static BOOT: std::sync::Mutex<Option<Boot>> = std::sync::Mutex::new(None);
        *BOOT.lock().unwrap() = Some(Boot::connect(Some("alone")).unwrap());
    }
}
