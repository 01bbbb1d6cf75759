//! A job inside a program whose processes know each other already, such as one that MPI has started: they say who they are and
//! bring an all-gather.
//!
//! All that is asked of it is the simplest there is, of equally many bytes from everybody; lengths are gathered first and
//! bytes filled up. Guaranteed: it is only called inside [`Boot::exchange`](crate::Boot::exchange) and
//! [`Boot::fence`](crate::Boot::fence), by whoever calls those; after it has failed once, never again. Not contained: hearing of
//! the end of others. Whoever started these processes has to end all when one fails.

use crate::Error;
use crate::wire::BLOB_MAX;

/// An all-gather: fills the second slice with everybody's first, by process; all first ones are of one length. Collective.
pub type Gather = dyn FnMut(&[u8], &mut [u8]) -> Result<(), String> + Send;

pub(crate) struct Embedded {
    process: usize,
    processes: usize,
    gather: Box<Gather>,
    failed: Option<String>,
}

impl Embedded {
    pub(crate) fn new(process: usize, processes: usize, gather: Box<Gather>) -> Result<Embedded, Error> {
        match process < processes {
            true => Ok(Embedded { process, processes, gather, failed: None }),
            false => Err(Error::new(format!("there is no process {process} in a job of {processes}"))),
        }
    }

    pub(crate) fn process(&self) -> usize {
        self.process
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes
    }

    pub(crate) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let lengths = self.gather(&(mine.len() as u64).to_le_bytes())?;
        let lengths = lengths.chunks_exact(8).map(|bytes| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes));
        let lengths: Vec<u64> = lengths.collect();
        // All find the same, or some would wait for the others.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest > BLOB_MAX as u64 {
            let why = format!("{longest} bytes are too many for one exchange; {BLOB_MAX} are allowed");
            return self.fail(&why);
        }
        let mut padded = mine.to_vec();
        padded.resize(longest as usize, 0);
        let all = self.gather(&padded)?;
        let part = |(process, length): (usize, u64)| all[process * longest as usize..][..length as usize].to_vec();
        Ok(lengths.into_iter().enumerate().map(part).collect())
    }

    pub(crate) fn fence(&mut self) -> Result<(), Error> {
        self.gather(&[1]).map(drop)
    }

    fn gather(&mut self, mine: &[u8]) -> Result<Vec<u8>, Error> {
        if let Some(why) = &self.failed {
            return Err(Error::new(why));
        }
        let mut all = vec![0; mine.len() * self.processes];
        if mine.is_empty() {
            return Ok(all);
        }
        if let Err(why) = (self.gather)(mine, &mut all) {
            return self.fail(&format!("the all-gather that process {} brought has failed: {why}", self.process));
        }
        match all[self.process * mine.len()..].starts_with(mine) {
            true => Ok(all),
            false => self.fail(&format!(
                "the all-gather that process {} of {} brought does not give it its own bytes: is it another number there?",
                self.process, self.processes
            )),
        }
    }

    fn fail<T>(&mut self, why: &str) -> Result<T, Error> {
        Err(Error::new(self.failed.insert(why.into())))
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("process", &self.process).field("processes", &self.processes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boot, Kind};
    use std::sync::{Arc, Barrier, Mutex};

    /// All-gather among threads.
    fn meeting(processes: usize) -> Vec<Box<Gather>> {
        let (board, barrier) = (Arc::new(Mutex::new(vec![Vec::new(); processes])), Arc::new(Barrier::new(processes)));
        let gather = |process: usize| -> Box<Gather> {
            let (board, barrier) = (board.clone(), barrier.clone());
            Box::new(move |mine, all| {
                board.lock().unwrap()[process] = mine.to_vec();
                barrier.wait();
                all.copy_from_slice(&board.lock().unwrap().concat());
                barrier.wait();
                Ok(())
            })
        };
        (0..processes).map(gather).collect()
    }

    #[test]
    fn exchanges_of_any_lengths() {
        for processes in [1, 2, 5] {
            std::thread::scope(|s| {
                for (process, gather) in meeting(processes).into_iter().enumerate() {
                    s.spawn(move || {
                        let mut boot = Boot::embedded(process, processes, gather).unwrap();
                        assert_eq!(
                            (boot.kind(), boot.process(), boot.processes()),
                            (Kind::Embedded, process, processes)
                        );
                        for round in 0..6 {
                            let blob =
                                |p: usize| vec![p as u8 + 1; [0, 1, 70_000, 0, 300][(p + round) % 5] * (round % 2)];
                            let all = boot.exchange(&blob(process)).unwrap();
                            assert_eq!(all, (0..processes).map(blob).collect::<Vec<_>>());
                            boot.fence().unwrap();
                        }
                        assert!(boot.lifeline().is_none());
                        boot.finalize();
                    });
                }
            });
        }
    }

    #[test]
    fn what_is_wrong_with_it() {
        let none = || Box::new(|_: &[u8], _: &mut [u8]| Ok(()));
        let line = Boot::embedded(2, 2, none()).unwrap_err().to_string();
        assert_eq!(line, "there is no process 2 in a job of 2");
        let mut boot = Boot::embedded(1, 2, none()).unwrap();
        let line = boot.exchange(b"x").unwrap_err().to_string();
        assert!(
            line.starts_with("the all-gather that process 1 of 2 brought does not give it its own bytes"),
            "{line}"
        );

        let mut calls = 0;
        let breaks = move |_: &[u8], _: &mut [u8]| {
            calls += 1;
            Err(format!("call {calls}"))
        };
        let mut boot = Boot::embedded(0, 2, Box::new(breaks)).unwrap();
        let line = "the all-gather that process 0 brought has failed: call 1";
        assert_eq!(boot.exchange(b"x").unwrap_err().to_string(), line);
        // It is not asked again.
        assert_eq!(boot.fence().unwrap_err().to_string(), line);
    }
}
