//! How the processes of a job find each other.
//!
//! Two sides of one small protocol:
//!
//! - [`Boot`] is the side of a process of the job: who am I, how many are we, an all-gather of bytes, a fence, an
//!   orderly end. It speaks PMI-1 to our own launcher or to a foreign one, or PMIx by libpmix, which is opened when a
//!   launcher wants it; or the program has processes that know each other, and brings an all-gather
//!   ([`Boot::embedded`]).
//! - [`launch()`] is the side of the launcher: it starts the processes, serves them that protocol, watches them, and
//!   ends the whole job when one of them fails. On other hosts it does so through an [`agent()`] on each, which a remote
//!   shell starts.
//!
//! Guaranteed: what a peer sends is checked; whatever it is, the answer is a one-line [`Error`], never a panic. A
//! process under a launcher that is recognised but not spoken gets an error, never a silent job of one. `launch` needs
//! no thread and no `SIGCHLD` handler and leaves no process, zombie or descriptor behind.
//!
//! Not contained: shared memory, networks, ranks as threads (here a rank is only a number in a range), reading of
//! `PARTAGE_*` settings other than those which the launcher itself passes to its processes, and `PARTAGE_LIBPMIX`.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // takes ownership of the descriptor that PMI_FD names
mod adopt;
mod agent;
mod channel;
mod crew;
mod embedded;
mod error;
mod foreign;
mod gather;
mod hostlist;
mod launch;
#[allow(unsafe_code)] // the functions of libpmix
mod libpmix;
mod observe;
mod output;
mod party;
mod pmi;
mod pmix;
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

use foreign::Way;
use gather::Store as _;

pub use agent::agent;
pub use embedded::Gather;
pub use error::Error;
pub use hostlist::Host;
pub use launch::{Ended, launch};
pub use observe::{Observer, Row};
pub use spec::{HEARTBEAT, Hosts, Input, Spec, ranks_for, ranks_of};

/// Version of what our launcher and our programs say to each other beyond PMI-1.
pub(crate) const PROTOCOL: u32 = 2;

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
    Pmix(pmix::Pmix),
    Embedded(embedded::Embedded),
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Our own launcher, see [`launch()`].
    Launcher,
    /// A foreign launcher that speaks PMI-1, over `PMI_FD` or at `PMI_PORT`, such as `mpirun.mpich` and
    /// `srun --mpi=pmi2`.
    Pmi1,
    /// A foreign launcher that speaks PMIx, such as `mpirun` of Open MPI and `srun --mpi=pmix`.
    Pmix,
    /// The program that the job is embedded in, see [`Boot::embedded`].
    Embedded,
    /// Nobody: a job of one process.
    Alone,
}

impl Kind {
    /// Whether a launcher that is not ours has started this process: it ends jobs, but does not say what ranks did.
    pub fn is_foreign(self) -> bool {
        matches!(self, Kind::Pmi1 | Kind::Pmix | Kind::Embedded)
    }
}

/// Says in a few words which launcher a program that is started here would find, or why it would not start; `how` as
/// for [`Boot::connect`]. Connects to nobody.
///
/// ```
/// assert_eq!(partage_boot::found(Some("alone")), "none");
/// ```
pub fn found(how: Option<&str>) -> String {
    let var = |name: &str| std::env::var(name).ok();
    match foreign::way(how, var) {
        Err(e) => e.to_string(),
        Ok(Way::Alone) => "none".into(),
        Ok(Way::Fd) if var("PARTAGE_PROTOCOL").is_some() => "partage run".into(),
        Ok(Way::Fd) => "PMI-1 over PMI_FD".into(),
        Ok(Way::Port) => format!("PMI-1 at PMI_PORT={}", var("PMI_PORT").unwrap_or_default()),
        Ok(Way::Pmix) => match pmix_version() {
            Ok(version) => format!("PMIx, by libpmix {version}"),
            Err(e) => e.to_string(),
        },
    }
}

/// The version of the libpmix that launchers which speak PMIx would be reached by, or why there is none.
pub fn pmix_version() -> Result<String, Error> {
    libpmix::library(libpmix_file().as_deref()).map(|library| library.version().to_owned())
}

fn libpmix_file() -> Option<std::ffi::OsString> {
    std::env::var_os("PARTAGE_LIBPMIX").filter(|name| !name.is_empty())
}

impl Boot {
    /// Connects to the launcher that started this process.
    ///
    /// `how`: `None` finds out from the environment, `Some("alone")` ignores any launcher, `Some("pmi")` insists on
    /// `PMI_FD` or `PMI_PORT`, `Some("pmix")` on PMIx.
    pub fn connect(how: Option<&str>) -> Result<Boot, Error> {
        let var = |name: &str| std::env::var(name).ok();
        let link = match foreign::way(how, var)? {
            Way::Alone => Link::Alone,
            Way::Fd => Link::Pmi(pmi::Pmi::connect(var)?),
            Way::Port => Link::Pmi(pmi::Pmi::dial(var)?),
            Way::Pmix => Link::Pmix(pmix::Pmix::connect(libpmix_file().as_deref())?),
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
            Link::Pmix(_) => Kind::Pmix,
            Link::Embedded(_) => Kind::Embedded,
        }
    }

    /// Number of this process, from 0.
    pub fn process(&self) -> usize {
        match &self.link {
            Link::Alone => 0,
            Link::Pmi(pmi) => pmi.process(),
            Link::Pmix(pmix) => pmix.process(),
            Link::Embedded(embedded) => embedded.process(),
        }
    }

    /// Number of processes of the job.
    pub fn processes(&self) -> usize {
        match &self.link {
            Link::Alone => 1,
            Link::Pmi(pmi) => pmi.processes(),
            Link::Pmix(pmix) => pmix.processes(),
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
            Link::Pmix(pmix) => pmix.exchange(mine),
            Link::Embedded(embedded) => embedded.exchange(mine),
        }
    }

    /// Returns after every process of the job has called it. Collective.
    pub fn fence(&mut self) -> Result<(), Error> {
        match &mut self.link {
            Link::Alone => Ok(()),
            Link::Pmi(pmi) => pmi.fence(),
            Link::Pmix(pmix) => pmix.fence(),
            Link::Embedded(embedded) => embedded.fence(),
        }
    }

    /// Tells our own launcher something for its reports, see [`Observer::announced`]. Does nothing for other kinds.
    ///
    /// Not collective. `key` is of letters, digits, `-`, `_` and `.`, at most 128; `value` at most 256 KiB.
    pub fn announce(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        match &mut self.link {
            Link::Pmi(pmi) => pmi.announce(key, value),
            Link::Alone | Link::Pmix(_) | Link::Embedded(_) => Ok(()),
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
        if self.kind().is_foreign() {
            // Foreign launchers end a job without passing on what its processes have just written.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        match &mut self.link {
            Link::Alone | Link::Embedded(_) => {}
            Link::Pmi(pmi) => pmi.abort(code, line),
            Link::Pmix(pmix) => pmix.abort(code),
        }
    }

    /// This process takes part in no further exchange and may exit at any time. Not collective, idempotent.
    ///
    /// Stop watching [`Boot::lifeline`] first: a foreign launcher may hang up as soon as it has read this.
    pub fn finalize(&mut self) {
        match &mut self.link {
            Link::Alone | Link::Embedded(_) => {}
            Link::Pmi(pmi) => pmi.finalize(),
            Link::Pmix(pmix) => pmix.finalize(),
        }
    }

    /// A descriptor that reports `POLLRDHUP` or `POLLHUP` when the launcher is gone; poll it for the former, do not read it.
    ///
    /// `None` when alone or embedded, and after [`Boot::finalize`] under a foreign launcher.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Alone | Link::Embedded(_) => None,
            Link::Pmi(pmi) => pmi.lifeline(),
            Link::Pmix(pmix) => pmix.lifeline(),
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
    fn can_live_in_a_static() {
        static BOOT: std::sync::Mutex<Option<Boot>> = std::sync::Mutex::new(None);
        *BOOT.lock().unwrap() = Some(Boot::connect(Some("alone")).unwrap());
    }
}
