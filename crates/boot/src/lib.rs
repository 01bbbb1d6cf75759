//! How the processes of a job find each other.
//!
//! Two sides of one small protocol:
//!
//! - [`Boot`] is the side of a process of the job: who am I, how many are we, an all-gather of bytes, a fence, an
//!   orderly end. It speaks PMI-1 over an inherited socket, to our own launcher or to a foreign one; or the program has
//!   processes that know each other, and brings an all-gather ([`Boot::embedded`]).
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
mod embedded;
mod error;
mod foreign;
mod hostlist;
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
pub use embedded::Gather;
pub use error::Error;
pub use hostlist::Host;
pub use launch::{Ended, launch};
pub use observe::{Observer, Row};
pub use spec::{HEARTBEAT, Hosts, Input, Spec, ranks_of, slots_of};

/// Version of what our launcher and our programs say to each other beyond PMI-1.
pub(crate) const PROTOCOL: u32 = 1;

/// This process's connection to the other processes of its job.
///
/// There is at most one to a launcher in the life of a process, since PMI-1 cannot be initialised twice; a second
/// [`Boot::connect`] is an error. Keep it for as long as jobs run. Dropping it does not finalize.
#[derive(Debug)]
pub struct Boot {
    link: Link,
}

#[derive(Debug)]
enum Link {
    Alone,
    Pmi(pmi::Pmi),
    Embedded(embedded::Embedded),
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Our own launcher, see [`launch()`].
    Launcher,
    /// A foreign launcher that speaks PMI-1 over `PMI_FD`, such as `mpirun.mpich`.
    Pmi1,
    /// The program that the job is embedded in, see [`Boot::embedded`].
    Embedded,
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
            Some("alone") => Link::Alone,
            Some("pmi") if var("PMI_FD").is_none() => {
                return Err(Error::new("PARTAGE_BOOT=pmi, but no launcher has set PMI_FD"));
            }
            None | Some("pmi") if var("PMI_FD").is_some() => Link::Pmi(pmi::Pmi::connect(var)?),
            None => foreign::check(var).map(|()| Link::Alone)?,
            Some(other) => {
                return Err(Error::new(format!("PARTAGE_BOOT={other}: it may be `alone` or `pmi`, or unset")));
            }
        };
        Ok(Boot { link })
    }

    /// Process `process` of `processes` that know each other already. `gather` is called in [`Boot::exchange`] and
    /// [`Boot::fence`] alone.
    pub fn embedded(process: usize, processes: usize, gather: Box<Gather>) -> Result<Boot, Error> {
        embedded::Embedded::new(process, processes, gather).map(|link| Boot { link: Link::Embedded(link) })
    }

    /// Who started this process.
    pub fn kind(&self) -> Kind {
        match &self.link {
            Link::Alone => Kind::Alone,
            Link::Pmi(pmi) if pmi.ours() => Kind::Launcher,
            Link::Pmi(_) => Kind::Pmi1,
            Link::Embedded(_) => Kind::Embedded,
        }
    }

    /// Number of this process, from 0.
    pub fn process(&self) -> usize {
        match &self.link {
            Link::Alone => 0,
            Link::Pmi(pmi) => pmi.process(),
            Link::Embedded(embedded) => embedded.process(),
        }
    }

    /// Number of processes of the job.
    pub fn processes(&self) -> usize {
        match &self.link {
            Link::Alone => 1,
            Link::Pmi(pmi) => pmi.processes(),
            Link::Embedded(embedded) => embedded.processes(),
        }
    }

    /// All-gather: every process of the job calls it with its bytes and gets those of all, by process.
    ///
    /// Any content, any length up to 256 MiB, lengths may differ. Collective; after an error the connection is of no
    /// more use.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match &mut self.link {
            Link::Alone => Ok(vec![mine.to_vec()]),
            Link::Pmi(pmi) => pmi.exchange(mine),
            Link::Embedded(embedded) => embedded.exchange(mine),
        }
    }

    /// Returns after every process of the job has called it. Collective.
    pub fn fence(&mut self) -> Result<(), Error> {
        match &mut self.link {
            Link::Alone => Ok(()),
            Link::Pmi(pmi) => pmi.fence(),
            Link::Embedded(embedded) => embedded.fence(),
        }
    }

    /// Tells our own launcher something for its reports, see [`Observer::announced`]. Does nothing for other kinds.
    ///
    /// Not collective. `key` is of letters, digits, `-`, `_` and `.`, at most 128; `value` at most 256 KiB.
    pub fn announce(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        match &mut self.link {
            Link::Pmi(pmi) => pmi.announce(key, value),
            Link::Alone | Link::Embedded(_) => Ok(()),
        }
    }

    /// Ends the whole job with exit code `code`; the caller then exits with that code itself.
    ///
    /// `line`: `None` when this process has already said why on stderr; `Some` is printed as it stands (one line), by
    /// our own launcher or, for the other kinds, here.
    pub fn abort(&mut self, code: i32, line: Option<&str>) {
        if let Some(line) = line.filter(|_| self.kind() != Kind::Launcher) {
            let _ = writeln!(std::io::stderr(), "{}", error::one_line(line));
        }
        if matches!(self.kind(), Kind::Pmi1 | Kind::Embedded) {
            // mpirun.mpich ends a job without passing on what its processes have just written.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Link::Pmi(pmi) = &mut self.link {
            pmi.abort(code, line);
        }
    }

    /// This process takes part in no further exchange and may exit at any time. Not collective, idempotent.
    ///
    /// Stop watching [`Boot::lifeline`] first: a foreign launcher may hang up as soon as it has read this.
    pub fn finalize(&mut self) {
        if let Link::Pmi(pmi) = &mut self.link {
            pmi.finalize();
        }
    }

    /// A descriptor that reports `POLLHUP` when the launcher is gone; poll it with no events asked for, do not read it.
    ///
    /// `None` when alone or embedded, and after [`Boot::finalize`] under a foreign launcher.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Pmi(pmi) => pmi.lifeline(),
            Link::Alone | Link::Embedded(_) => None,
        }
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
