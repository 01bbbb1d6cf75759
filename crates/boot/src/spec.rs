//! What a job is: the program, its ranks and processes, where they run, and what is wrong with it.
//!
//! Not contained: running it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;

use crate::{Error, Host};

/// A job to be launched.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program, found like `execvp` finds it.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How many ranks.
    pub ranks: usize,
    /// In how many processes; see [`ranks_of`].
    pub procs: usize,
    /// Variables to set, beside the launcher's own environment (less what that says about a job
    /// which the launcher itself is part of, and less `PARTAGE_BOOT`).
    pub env: Vec<(OsString, OsString)>,
    /// Put the ranks of a process before every line it writes.
    pub label: bool,
    /// End the job after this time, with code 124.
    pub timeout: Option<Duration>,
    /// Report when a rank has been waiting in one call for this long; the job goes on.
    pub hang_after: Option<Duration>,
    /// Where the processes read from.
    pub stdin: Input,
    /// Discard what the processes write. The launcher's own lines still go to stderr.
    pub quiet_output: bool,
    /// Take the launcher's signals and pass them on. Only for a program that is a launcher and
    /// nothing else: afterwards these signals no longer have their default effect.
    pub forward_signals: bool,
    /// The hosts on which the processes run; none: on this one.
    pub hosts: Option<Hosts>,
    /// A host from which nothing is heard for so long is lost; none: never.
    pub heartbeat: Option<Duration>,
}

/// Several hosts, and how to reach them; see [`Spec::shares`] for who gets which processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// In the order of their processes.
    pub list: Vec<Host>,
    /// The words of the remote shell; run with the name of a host and the words of `agent` behind them.
    pub shell: Vec<OsString>,
    /// The command that calls [`agent`](crate::agent()) on a host.
    pub agent: Vec<OsString>,
}

/// Where the processes of a job read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The launcher's standard input goes to the process of rank 0, the others read nothing.
    ToRankZero,
    /// Nobody reads anything.
    Null,
}

impl Spec {
    /// `ranks` ranks of `program`, one per process, with no arguments and no input.
    pub fn new(program: impl Into<OsString>, ranks: usize) -> Spec {
        Spec {
            program: program.into(),
            args: Vec::new(),
            ranks,
            procs: ranks,
            env: Vec::new(),
            label: false,
            timeout: None,
            hang_after: None,
            stdin: Input::Null,
            quiet_output: false,
            forward_signals: false,
            hosts: None,
            heartbeat: Some(HEARTBEAT),
        }
    }

    /// The host of a process as it was given; none if there are no hosts.
    pub fn host_of(&self, process: usize) -> Option<&str> {
        self.shares().into_iter().find(|(_, share)| share.contains(&process)).map(|(host, _)| host)
    }

    /// The hosts and the processes of each, in the order of the processes; nothing if there are no hosts.
    ///
    /// Where no host has slots, processes are dealt to hosts as ranks are to processes, see [`ranks_of`]. Else one host after
    /// the other is filled, where a host that does not say has one slot, and hosts that are not needed have no part in the
    /// job. A host that is given twice has two shares, which are one where they follow each other; where there are fewer
    /// processes than names, such a host is given once.
    pub fn shares(&self) -> Vec<(&str, Range<usize>)> {
        let list = self.hosts.as_ref().map_or(&[][..], |hosts| &hosts.list);
        let slots = list.iter().any(|host| host.slots.is_some());
        let once = apart(list);
        let list = if slots || self.procs >= list.len() { list.iter().collect() } else { once };
        let mut shares: Vec<(&str, Range<usize>)> = Vec::new();
        let mut next = 0;
        for (number, host) in list.iter().enumerate() {
            let end = match slots {
                true => self.procs.min(next + host.slots.unwrap_or(1)),
                false => ranks_of(number, self.procs, list.len()).end,
            };
            match shares.last_mut() {
                _ if end == next => {}
                Some((name, share)) if *name == host.name => share.end = end,
                _ => shares.push((&host.name, next..end)),
            }
            next = end;
        }
        shares
    }

    /// Finds what is wrong with a job before anything of it is started.
    pub fn check(&self) -> Result<(), Error> {
        let Spec { ranks, procs, .. } = *self;
        let hosts = self.hosts.as_ref().map_or(&[][..], |hosts| &hosts.list);
        let slots = slots_of(hosts);
        let complaint = if ranks == 0 {
            "-n 0: a job has at least one rank".to_owned()
        } else if procs == 0 {
            "a job has at least one process".to_owned()
        } else if procs > ranks {
            format!("{procs} processes for {ranks} ranks: a process has at least one rank")
        } else if ranks > RANKS_MAX {
            format!("-n {ranks}: a job has at most {RANKS_MAX} ranks")
        } else if self.hosts.as_ref().is_some_and(|hosts| hosts.list.is_empty() || hosts.shell.is_empty()) {
            "a job on other hosts needs their names and a remote shell".to_owned()
        } else if let Some(why) = hosts.iter().find_map(|host| host.check().err()) {
            why
        } else if let Some(slots) = slots.filter(|slots| *slots < procs) {
            format!(
                "{procs} processes, but the hosts have {slots} slots; --procs {slots} makes as many processes of more ranks"
            )
        } else if let Some(hosts) = Some(apart(hosts).len()).filter(|hosts| slots.is_none() && *hosts > procs) {
            format!("{hosts} hosts for {procs} processes: a host has at least one process")
        } else {
            return Ok(());
        };
        Err(Error::new(complaint))
    }

    /// Whether this process may have as many descriptors as it takes to start `procs` processes, whose output goes
    /// through it if `piped`.
    pub(crate) fn room_for(procs: usize, piped: bool) -> Result<(), Error> {
        let needed = 64 + procs * if piped { 4 } else { 2 };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        match limit.filter(|limit| needed as u64 > *limit) {
            None => Ok(()),
            Some(limit) => Err(Error::new(format!(
                "{procs} processes need about {needed} descriptors, but only {limit} are allowed (ulimit -n)"
            ))),
        }
    }
}

/// The ranks of a process: contiguous blocks, the first `ranks % procs` of them one longer.
///
/// `procs` is at least 1 and `process` below it.
pub fn ranks_of(process: usize, ranks: usize, procs: usize) -> Range<usize> {
    let (each, more) = (ranks / procs, ranks % procs);
    let begin = |process: usize| process * each + process.min(more);
    begin(process)..begin(process + 1)
}

/// How many processes these hosts may have; none, if none of them says it.
fn slots_of(hosts: &[Host]) -> Option<usize> {
    let all = hosts.iter().map(|host| host.slots.unwrap_or(1)).fold(0, usize::saturating_add);
    hosts.iter().any(|host| host.slots.is_some()).then_some(all)
}

/// How many ranks these hosts are meant for: as many as they have slots, or as there are names where batch systems have
/// written a host once for each core. None, if neither is so.
pub fn ranks_for(hosts: &[Host]) -> Option<usize> {
    let repeated = || (apart(hosts).len() < hosts.len()).then_some(hosts.len());
    slots_of(hosts).or_else(repeated)
}

/// Hosts without those that repeat the one before.
fn apart(hosts: &[Host]) -> Vec<&Host> {
    let mut once: Vec<&Host> = hosts.iter().collect();
    once.dedup_by(|a, b| a.name == b.name);
    once
}

/// After so long without a word a host is lost, unless it is said otherwise.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// More ranks than anybody has use for; a typing error, most likely.
const RANKS_MAX: usize = 1 << 16;

/// The file that `execvp` would start as `program`.
pub(crate) fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let name = program.display();
    if program.is_empty() {
        return Err(Error::new("no program given"));
    }
    if program.as_bytes().contains(&b'/') {
        let file = PathBuf::from(program);
        return match usable(&file) {
            Ok(()) => Ok(file),
            Err(why) => Err(Error::new(format!("`{name}` {why}"))),
        };
    }
    let mut found = None;
    for directory in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty entry is the current directory.
        let file =
            if directory.as_os_str().is_empty() { Path::new(".").join(program) } else { directory.join(program) };
        match usable(&file) {
            Ok(()) => return Ok(file),
            Err(_) if !file.exists() => {}
            Err(why) => found = found.or(Some(format!("`{}` {why}", file.display()))),
        }
    }
    let here = Path::new(program).is_file();
    let hint = if here { format!("; did you mean `./{name}`?") } else { String::new() };
    Err(Error::new(found.unwrap_or(format!("`{name}` is not in any directory of PATH{hint}"))))
}

fn usable(file: &Path) -> Result<(), String> {
    match std::fs::metadata(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err("does not exist".into()),
        Err(e) => Err(format!("cannot be started: {e}")),
        Ok(meta) if meta.is_dir() => Err("is a directory, not a program".into()),
        Ok(_) if rustix::fs::access(file, Access::EXEC_OK).is_err() => Err("is not executable".into()),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_contiguous_and_even() {
        for ranks in 1..40 {
            for procs in 1..=ranks {
                let all: Vec<Range<usize>> = (0..procs).map(|p| ranks_of(p, ranks, procs)).collect();
                assert_eq!(all.iter().cloned().flatten().collect::<Vec<_>>(), (0..ranks).collect::<Vec<_>>());
                assert!(all.windows(2).all(|w| w[0].len() == w[1].len() || w[0].len() == w[1].len() + 1));
                assert!(all[0].len() - all[procs - 1].len() <= 1);
            }
        }
        assert_eq!(ranks_of(1, 7, 3), 3..5);
    }

    #[test]
    fn impossible_jobs() {
        let complaint = |ranks, procs| Spec { procs, ..Spec::new("true", ranks) }.check().unwrap_err().to_string();
        assert_eq!(complaint(0, 1), "-n 0: a job has at least one rank");
        assert_eq!(complaint(2, 0), "a job has at least one process");
        assert_eq!(complaint(2, 3), "3 processes for 2 ranks: a process has at least one rank");
        assert!(complaint(1_000_000, 1).starts_with("-n 1000000: "));
        assert!(Spec::new("true", 2).check().is_ok());
    }

    fn on(hosts: &str, procs: usize) -> Spec {
        let list = if hosts.is_empty() { vec![] } else { Host::list(hosts).unwrap() };
        let hosts = Hosts { list, shell: vec!["ssh".into()], agent: vec!["partage".into()] };
        Spec { procs, hosts: Some(hosts), ..Spec::new("true", 8) }
    }

    #[test]
    fn hosts() {
        let complaint = |hosts, procs| on(hosts, procs).check().unwrap_err().to_string();
        assert_eq!(complaint("a,b,c", 2), "3 hosts for 2 processes: a host has at least one process");
        let line = complaint("a:4,b", 8);
        assert_eq!(line, "8 processes, but the hosts have 5 slots; --procs 5 makes as many processes of more ranks");
        assert!(on("", 1).check().is_err());
        let mut option = on("a", 1);
        option.hosts.iter_mut().for_each(|hosts| hosts.list = vec![Host::new("-oProxyCommand=x")]);
        assert!(option.check().is_err());
        assert_eq!(on("", 1).shares(), []);
        let spec = on("a,b,a", 5);
        spec.check().unwrap();
        let places: Vec<_> = (0..5).filter_map(|process| spec.host_of(process)).collect();
        assert_eq!(places, ["a", "a", "b", "b", "a"]);
        assert_eq!((spec.host_of(5), Spec::new("true", 1).host_of(0)), (None, None));
    }

    #[test]
    fn shares_of_hosts() {
        for (hosts, procs, expect) in [
            ("a:4,b:2", 6, &[("a", 0..4), ("b", 4..6)][..]),
            ("a:4,b:2", 5, &[("a", 0..4), ("b", 4..5)]),
            ("a:4,b:2", 3, &[("a", 0..3)]),
            ("a:1,b,c:9", 4, &[("a", 0..1), ("b", 1..2), ("c", 2..4)]),
            ("a:2,b:1,a:2", 5, &[("a", 0..2), ("b", 2..3), ("a", 3..5)]),
            ("a,a,b,b", 4, &[("a", 0..2), ("b", 2..4)]),
            ("a,a,b", 7, &[("a", 0..5), ("b", 5..7)]),
            ("a:2,a:1,b", 4, &[("a", 0..3), ("b", 3..4)]),
        ] {
            let spec = on(hosts, procs);
            spec.check().unwrap();
            assert_eq!(spec.shares(), expect, "{hosts}, {procs}");
        }
        // As batch systems write them.
        let repeated =
            |procs| on("a,a,a,b,b,b", procs).shares().iter().map(|(_, share)| share.len()).collect::<Vec<_>>();
        assert_eq!([repeated(6), repeated(7), repeated(4), repeated(2)], [[3, 3], [4, 3], [2, 2], [1, 1]]);
        assert_eq!(
            on("a,a,b,b", 1).check().unwrap_err().to_string(),
            "2 hosts for 1 processes: a host has at least one process"
        );
        let ranks = |hosts| ranks_for(&Host::list(hosts).unwrap());
        assert_eq!([ranks("a,b"), ranks("a,a,b"), ranks("a:3,b"), ranks("a,b,a")], [None, Some(3), Some(4), None]);
        assert_eq!((slots_of(&Host::list("a,b").unwrap()), slots_of(&Host::list("a,b:3").unwrap())), (None, Some(4)));
    }

    #[test]
    fn programs_that_cannot_be_started() {
        let complaint =
            |program: &str, path: &str| find(program.as_ref(), Some(path.as_ref())).unwrap_err().to_string();
        assert_eq!(complaint("", "/bin"), "no program given");
        assert_eq!(complaint("no-such-program", "/bin::"), "`no-such-program` is not in any directory of PATH");
        assert_eq!(complaint("./no-such-program", "/bin"), "`./no-such-program` does not exist");
        assert_eq!(complaint("/", "/bin"), "`/` is a directory, not a program");
        assert_eq!(complaint("./Cargo.toml", "/bin"), "`./Cargo.toml` is not executable");
        assert_eq!(complaint("Cargo.toml", "/bin:."), "`./Cargo.toml` is not executable");
        assert!(complaint("Cargo.toml", "/bin").ends_with("did you mean `./Cargo.toml`?"));
        assert!(complaint("src", "/bin:.").ends_with("is a directory, not a program"));
        assert!(complaint("Cargo.toml/x", "").starts_with("`Cargo.toml/x` cannot be started"));
        assert_eq!(find("sh".as_ref(), None).unwrap().file_name(), Some("sh".as_ref()));
    }
}
