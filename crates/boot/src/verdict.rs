//! How a process ended, in words, and whether the kernel ran out of memory.
//!
//! Guaranteed: one line per death. "Out of memory" is only said of a SIGKILL while the kernel's
//! count of such kills rose: that of the launcher's own control group where it has one, else that
//! of the host. Not contained: which death is the one that ended the job.

use std::ops::Range;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};
use signal_hook::consts::SIGKILL;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Death {
    Exit(i32),
    Signal { number: i32, core: bool },
}

impl Death {
    /// How the child `pid` ended, if it has. It stays a zombie, so that its number, and with it
    /// that of its process group, stays its own.
    pub(crate) fn of(pid: Pid) -> Option<Death> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = match rustix::process::waitid(WaitId::Pid(pid), options) {
            Ok(status) => status?,
            // Somebody else of this process has asked already: how it ended is not known, but it has.
            Err(Errno::CHILD) => return Some(Death::Exit(1)),
            Err(_) => return None,
        };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Death::Exit(code)),
            (_, Some(number)) => Some(Death::Signal { number, core: status.dumped() }),
            _ => None,
        }
    }

    /// The job's exit code, if this death is what ended it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Death::Exit(0) => 1,
            Death::Exit(code) => code,
            Death::Signal { number, .. } => 128 + number,
        }
    }
}

/// `rank 3` or `ranks 4-7`.
pub(crate) fn name(ranks: &Range<usize>) -> String {
    match ranks.len() {
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {}-{}", ranks.start, ranks.end - 1),
    }
}

/// `was killed by SIGSEGV (core dumped)`.
pub(crate) fn killed(ranks: &Range<usize>, number: i32, core: bool, out_of_memory: bool) -> String {
    let was = if ranks.len() == 1 { "was" } else { "were" };
    match number {
        SIGKILL if out_of_memory => format!("{was} killed by the kernel: out of memory"),
        _ => format!("{was} killed by {}{}", signal_name(number), if core { " (core dumped)" } else { "" }),
    }
}

/// What to put behind a line about a death, given what the observer knows.
///
/// `rank 3 was in barrier at x` about rank 3 alone, or `in barrier at x`, become ` while in barrier
/// at x`; any other sentence is set after a semicolon.
pub(crate) fn doing(ranks: &Range<usize>, text: Option<String>) -> String {
    let Some(text) = text.map(|text| crate::error::one_line(&text)).filter(|text| !text.is_empty()) else {
        return String::new();
    };
    let own = format!("{} was ", name(ranks));
    match text.strip_prefix(&own) {
        Some(rest) => format!(" while {rest}"),
        None if text.starts_with("rank") => format!("; {text}"),
        None => format!(" while {text}"),
    }
}

pub(crate) fn signal_name(number: i32) -> String {
    signal_hook::low_level::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// How many processes the kernel has killed for want of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OomKills(Option<u64>);

impl OomKills {
    pub(crate) fn now() -> OomKills {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut files: Vec<String> = groups.lines().flat_map(counters_of).collect();
        files.push("/proc/vmstat".into());
        let count = |file: &String| oom_kills(&std::fs::read_to_string(file).ok()?);
        OomKills(files.iter().find_map(count))
    }

    pub(crate) fn since(self, before: OomKills) -> bool {
        self.0 > before.0 && before.0.is_some()
    }
}

/// Where the control group of a line of `/proc/self/cgroup` may have its counter. The second
/// guess is for containers, which see their own group as the root.
fn counters_of(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let path = path.trim_end_matches('/');
    let (root, file) = if controllers.is_empty() {
        ("/sys/fs/cgroup", "memory.events")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("/sys/fs/cgroup/memory", "memory.oom_control")
    } else {
        return Vec::new();
    };
    vec![format!("{root}{path}/{file}"), format!("{root}/{file}")]
}

fn oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(name(&(3..4)), "rank 3");
        assert_eq!(name(&(4..8)), "ranks 4-7");
        assert_eq!(killed(&(3..4), 9, false, false), "was killed by SIGKILL");
        assert_eq!(killed(&(4..8), 9, false, true), "were killed by the kernel: out of memory");
        assert_eq!(killed(&(0..1), 11, true, true), "was killed by SIGSEGV (core dumped)");
        assert_eq!(killed(&(0..1), 40, false, false), "was killed by signal 40");
    }

    #[test]
    fn doings() {
        let what = |ranks, text: &str| doing(&ranks, Some(text.into()));
        assert_eq!(what(3..4, "rank 3 was in barrier at src/main.rs:12:9"), " while in barrier at src/main.rs:12:9");
        assert_eq!(what(3..4, "in barrier"), " while in barrier");
        assert_eq!(what(4..8, "rank 5 was in barrier"), "; rank 5 was in barrier");
        assert_eq!(what(4..8, "a\nb"), " while a b");
        assert_eq!(doing(&(0..1), None), "");
    }

    #[test]
    fn counters() {
        assert_eq!(counters_of("0::/a/b")[0], "/sys/fs/cgroup/a/b/memory.events");
        assert_eq!(counters_of("0::/"), ["/sys/fs/cgroup/memory.events"; 2]);
        assert_eq!(counters_of("4:memory:/x")[0], "/sys/fs/cgroup/memory/x/memory.oom_control");
        for line in ["", ":", "1:cpu:/", "junk"] {
            assert!(counters_of(line).is_empty(), "{line}");
        }
        assert_eq!(oom_kills("low 0\noom 1\noom_kill 7\noom_group_kill 0\n"), Some(7));
        assert_eq!(oom_kills("oom_kill_disable 0\n"), None);
        assert!(OomKills(Some(2)).since(OomKills(Some(1))));
        assert!(!OomKills(Some(2)).since(OomKills(None)));
    }
}
