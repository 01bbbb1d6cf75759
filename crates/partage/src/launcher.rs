//! Launching processes of a job and looking into them: `partage run`, the demo and re-executed tests.

use crate::report;
use partage_boot::{Ended, Error, Observer, Row, Spec, ranks_of};
use partage_conduit::record::Doing;
use partage_conduit::shm::Peek;
use std::ops::Range;
use std::time::Duration;

/// The key under which a process announces its memory.
pub(crate) const MEMORY: &str = "memory";

/// Launches a job and waits for its end; see [`partage_boot::launch`]. Deaths and hangs are reported with what the ranks
/// were doing.
pub fn launch(spec: &Spec) -> Result<Ended, Error> {
    launch_and_count(spec).map(|(ended, _)| ended)
}

/// The same, with the number of processes of this host that came as far as to join a job.
pub(crate) fn launch_and_count(spec: &Spec) -> Result<(Ended, usize), Error> {
    spec.check()?;
    let mut eye = Eye::new(spec);
    let ended = partage_boot::launch(spec, &mut eye)?;
    Ok((ended, eye.joined.iter().filter(|j| **j).count()))
}

/// Does on this host what a launcher on another one asks for, see [`partage_boot::agent`]; an exit code.
pub fn agent() -> i32 {
    partage_boot::agent(Eye::new)
}

/// Looks into the control areas of the processes of a host.
struct Eye {
    spec: Spec,
    peeks: Vec<Option<Peek>>,
    joined: Vec<bool>,
}

impl Eye {
    fn new(spec: &Spec) -> Eye {
        let peeks = (0..spec.procs).map(|_| None).collect();
        Eye { spec: spec.clone(), peeks, joined: vec![false; spec.procs] }
    }

    fn ranks_of(&self, process: usize) -> Range<usize> {
        ranks_of(process, self.spec.ranks, self.spec.procs)
    }

    fn doing_of(&self, process: usize) -> impl Iterator<Item = Option<Doing>> {
        let count = self.ranks_of(process).len();
        (0..count).map(move |i| match &self.peeks[process] {
            Some(peek) => peek.doing(i),
            None => Some(Doing::Starting),
        })
    }
}

impl Observer for Eye {
    fn announced(&mut self, process: usize, _pid: u32, key: &str, value: &[u8]) {
        if key == MEMORY {
            self.joined[process] = true;
            self.peeks[process] = std::str::from_utf8(value).ok().and_then(Peek::open);
        }
    }

    fn doing(&mut self, process: usize) -> Option<String> {
        self.peeks[process].as_ref()?;
        let first = self.ranks_of(process).start;
        let mut doing: Vec<_> = self.doing_of(process).collect();
        if doing.len() == 1 {
            return doing.remove(0).map(|d| d.to_string());
        }
        // Of several ranks: those that wait or failed, in ranges; computing ones go without saying.
        let mut parts: Vec<(String, Vec<usize>)> = vec![];
        for (i, d) in doing.into_iter().enumerate() {
            let text = d.map_or("not readable".to_string(), |d| d.to_string());
            match parts.iter_mut().find(|p| p.0 == text) {
                Some(p) => p.1.push(first + i),
                None => parts.push((text, vec![first + i])),
            }
        }
        let parts: Vec<String> =
            parts.into_iter().map(|(text, who)| format!("{} {text}", report::ranks(&who))).collect();
        Some(parts.join(", "))
    }

    fn rows(&mut self, process: usize) -> Vec<Row> {
        self.doing_of(process).map(report::row).collect()
    }

    fn longest_wait(&mut self) -> Option<Duration> {
        report::longest_wait((0..self.spec.procs).flat_map(|p| self.doing_of(p)))
    }

    fn report(&mut self, rows: &[Row]) -> Option<String> {
        let of = |process| std::iter::repeat_n(self.spec.host_of(process), self.ranks_of(process).len());
        let hosts: Vec<Option<&str>> = (0..self.spec.procs).flat_map(of).collect();
        Some(report::table(rows, &hosts))
    }
}
