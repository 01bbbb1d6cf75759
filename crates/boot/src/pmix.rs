//! The client of PMIx: how one process speaks to the launchers of Open MPI and Slurm (`srun --mpi=pmix`).
//!
//! An exchange is a put, a fence that collects what all have put, and gets, which the library answers from what the fence
//! has brought to this host. Values are of any length. Keys carry the number of the exchange, since what was once put is
//! there to the end of the job.
//!
//! Guaranteed: an error is final, as with PMI-1. Not contained: the library (`libpmix`).

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::Error;
use crate::libpmix::{Library, Process, library};
use crate::wire::{BLOB_MAX, too_long};

pub(crate) struct Pmix {
    library: &'static Library,
    me: Process,
    processes: usize,
    exchanges: u64,
    /// Hangs up when the server is lost.
    lifeline: OwnedFd,
    open: bool,
}

impl Pmix {
    /// `file`: instead of the library that the system finds.
    pub(crate) fn connect(file: Option<&OsStr>) -> Result<Pmix, Error> {
        let library = library(file)?;
        let me = library.init()?;
        let processes = library.job_size(&me)? as usize;
        if me.rank() as usize >= processes {
            return Err(Error::new(format!("PMIx says that this is process {} of {processes}", me.rank())));
        }
        let (lifeline, other) = UnixStream::pair().map_err(|e| Error::new(format!("no socket: {e}")))?;
        library.close_when_lost(other.into())?;
        Ok(Pmix { library, me, processes, exchanges: 0, lifeline: lifeline.into(), open: true })
    }

    pub(crate) fn process(&self) -> usize {
        self.me.rank() as usize
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes
    }

    pub(crate) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > BLOB_MAX {
            return Err(too_long(mine));
        }
        self.still_open()?;
        let key = CString::new(format!("partage-{}", self.exchanges)).map_err(|_| Error::new("a bad key"))?;
        self.exchanges += 1;
        let outcome = self.library.put(&key, mine).and_then(|()| {
            self.library.commit()?;
            self.library.fence(true)?;
            (0..self.processes as u32).map(|rank| self.library.get(&self.me.peer(rank), &key)).collect()
        });
        self.open &= outcome.is_ok();
        outcome
    }

    pub(crate) fn fence(&mut self) -> Result<(), Error> {
        self.still_open()?;
        let outcome = self.library.fence(false);
        self.open &= outcome.is_ok();
        outcome
    }

    pub(crate) fn abort(&mut self, code: i32) {
        self.library.abort(code);
    }

    pub(crate) fn finalize(&mut self) {
        if self.open {
            self.library.finalize();
            self.open = false;
        }
    }

    pub(crate) fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.lifeline.as_fd())
    }

    fn still_open(&self) -> Result<(), Error> {
        match self.open {
            true => Ok(()),
            false => Err(Error::new("the connection to the launcher has ended before")),
        }
    }
}

impl std::fmt::Debug for Pmix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pmix(process {} of {}, libpmix {})", self.process(), self.processes, self.library.version())
    }
}
