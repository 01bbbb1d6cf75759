//! Every `PARTAGE_*` variable, in one table: what `partage info` prints, what start-up reads, what is warned about.

use crate::coll::Table;
use crate::domain::Arbiter;
use crate::profile::{self, Found};
use crate::{Error, Result};
use partage_boot::HEARTBEAT;
use partage_conduit::credits::Mode;
use partage_conduit::ofi::endpoint::demands::Demands;
use partage_conduit::ofi::rma::TOKENS;
use partage_conduit::ofi::signal::Ways;
use partage_conduit::shm::Fences;
use std::time::Duration;

/// A setting as `partage info` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What it means, and its values.
    pub meaning: &'static str,
    /// Its value, as it was given or by default.
    pub value: String,
    /// `environment` or `default`.
    pub origin: &'static str,
}

/// Name, default, meaning.
const TABLE: [(&str, &str, &str); 33] = [
    ("PARTAGE_RANKS", "the cores", "ranks of a program that is started without a launcher: threads of its process"),
    ("PARTAGE_THREADS", "1", "ranks of each process under a launcher; `partage run` sets it"),
    ("PARTAGE_BOOT", "detect", "how processes find each other: detect, alone, pmi (PMI_FD or PMI_PORT) or pmix"),
    (
        "PARTAGE_SEGMENT",
        "all memory",
        "size of each rank's heaps, open and guarded, e.g. 512M or 8G: address space, not memory",
    ),
    ("PARTAGE_HUGE", "auto", "huge pages for segments: auto (where they can be had) or never"),
    ("PARTAGE_BIND", "none", "core: bind each rank to one core; `partage run --bind` sets it"),
    ("PARTAGE_WAIT", "auto", "waiting: auto, own (ranks have a core each: spin) or shared (yield)"),
    (
        "PARTAGE_RSEQ",
        "auto",
        "the kernel's note in each thread, for restartable sequences, on which core it is: auto (ranks that share cores go without), or keep",
    ),
    ("PARTAGE_RADIX", "auto", "radix of the barrier's tree where ranks have a core each: auto, or 2 and more"),
    (
        "PARTAGE_FENCES",
        "auto",
        "fences of signals: auto (light where ranks have a core each), light (the sleeper pays, where the kernel can), or full",
    ),
    (
        "PARTAGE_REFERENCE",
        "0",
        "1: puts, gets and atomics go by active messages, as on a conduit that has nothing better",
    ),
    ("PARTAGE_LEAKS", "0", "1: ranks say at the end which memory they have not freed, and where it was allocated"),
    ("PARTAGE_HANG_AFTER", "never", "seconds of waiting in one call after which a report says where the ranks are"),
    ("PARTAGE_TIMEOUT", "never", "seconds after which a job is ended, with that report"),
    ("PARTAGE_TEST", "threads", "how partage::test runs ranks: threads, procs, or procs=N processes"),
    (
        "PARTAGE_NODE",
        "the host",
        "name of the node that this process is on (process: one of its own); `partage run --hosts` sets it to the host's",
    ),
    ("PARTAGE_PROVIDER", "tcp", "libfabric's provider between nodes"),
    ("PARTAGE_INTERFACE", "one that all share", "address of the interface between nodes"),
    ("PARTAGE_CONNECT", "10", "seconds that processes of other nodes may take to answer at the start"),
    (
        "PARTAGE_HEARTBEAT",
        "10",
        "seconds after which a host from which nothing is heard is lost, and the job ends; or never",
    ),
    ("PARTAGE_PROGRESS", "thread", "who serves other nodes while ranks compute: thread, or none"),
    (
        "PARTAGE_ATOMICS",
        "auto",
        "who does the atomics of domains: auto (the network where an adapter can), cpu, or network (any that can, else an error)",
    ),
    (
        "PARTAGE_SIGNAL",
        "auto",
        "how signals go to other nodes: auto (long ones by data where the network can), message, data (else an error), or fifo",
    ),
    (
        "PARTAGE_REGISTERED",
        "1G",
        "private memory of a process that stays registered with a network that wants that, as far as programs ask for it: 16M or more",
    ),
    (
        "PARTAGE_AM_MEMORY",
        "32M, or what is needed",
        "memory that messages of other nodes may take in a process until they have been dealt with, e.g. 8M or 1G",
    ),
    (
        "PARTAGE_CREDITS",
        "dynamic",
        "how it is divided: dynamic (a little for each rank of another node, the rest is lent), or static (equally)",
    ),
    ("PARTAGE_PUTS_UNDER_WAY", "256", "puts and gets that a rank may have under way to other nodes, 1 to 256"),
    (
        "PARTAGE_COLL",
        "the built-in table",
        "which algorithms collectives take, before the profile and the built-in table are asked, e.g. broadcast:0-4k:flat;4k-:tree2",
    ),
    (
        profile::VARIABLE,
        "the user's",
        "file with the algorithms that `partage tune` found best here, or none; by default partage/profile in the user's configuration",
    ),
    ("PARTAGE_CHECK", "0", "1: ranks compare their collectives, as they always do in debug builds"),
    ("PARTAGE_LIBFABRIC", "libfabric.so.1", "the library between nodes"),
    ("PARTAGE_LIBPMIX", "libpmix.so.2", "the library by which launchers are reached that speak PMIx"),
    ("PARTAGE_PROTOCOL", "none", "set by `partage run`: the version of its protocol"),
];
/// Set by us for processes that we re-execute.
pub(crate) const CALL: &str = "PARTAGE_CALL";
/// Set by tests and benchmarks: what the network's provider shall ask for beside what it does.
pub(crate) const DEMANDS: &str = "PARTAGE_TEST_DEMANDS";

/// All settings with the values in force here.
pub fn all() -> Vec<Setting> {
    let row = |&(name, default, meaning): &(&'static str, &str, &'static str)| match std::env::var(name) {
        Ok(value) => Setting { name, meaning, value, origin: "environment" },
        Err(_) => Setting { name, meaning, value: default.into(), origin: "default" },
    };
    TABLE.iter().map(row).collect()
}

/// Times after which a launcher does something; none: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `PARTAGE_TIMEOUT`.
    pub timeout: Option<Duration>,
    /// `PARTAGE_HANG_AFTER`.
    pub hang_after: Option<Duration>,
    /// `PARTAGE_HEARTBEAT`.
    pub heartbeat: Option<Duration>,
}

/// The settings that a launcher follows where it has no option for them.
pub fn limits() -> Result<Limits> {
    Settings::read().map(|s| Limits { timeout: s.timeout.flatten(), hang_after: s.hang_after, heartbeat: s.heartbeat })
}

/// The tables that choose algorithms of collectives, the first one first, each with where it is from.
pub fn collectives() -> Result<Vec<(&'static str, Table)>> {
    let asked = Settings::read()?.table.map(|table| ("PARTAGE_COLL", table));
    let tuned = match profile::find() {
        Found::Used(_, profile) => Some(("profile", profile.table)),
        _ => None,
    };
    Ok(asked.into_iter().chain(tuned).chain([("built-in", Table::default())]).collect())
}

/// `PARTAGE_SIGNAL`.
pub fn signals() -> Result<Ways> {
    Settings::read().map(|s| s.signals)
}

/// Variables that look like settings and are none, each with the setting that was probably meant.
pub fn unknown() -> Vec<(String, Option<&'static str>)> {
    let known = |n: &str| n == CALL || n == DEMANDS || TABLE.iter().any(|t| t.0 == n);
    let names = std::env::vars_os().filter_map(|(n, _)| n.into_string().ok());
    let mut found: Vec<_> = names.filter(|n| n.starts_with("PARTAGE_") && !known(n)).collect();
    found.sort();
    let near = |n: &str| TABLE.iter().map(|t| t.0).min_by_key(|t| distance(n, t)).filter(|t| distance(n, t) <= 3);
    found.into_iter().map(|n| (near(&n).map(|t| (n.clone(), Some(t)))).unwrap_or((n, None))).collect()
}

/// The settings that start-up uses, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub ranks: Option<usize>,
    pub threads: Option<usize>,
    pub segment: Option<u64>,
    pub no_huge: bool,
    pub bind: bool,
    pub own_cores: Option<bool>,
    pub keeps_rseq: bool,
    pub radix: Option<usize>,
    pub fences: Fences,
    pub reference: bool,
    pub leaks: bool,
    pub node: Option<String>,
    pub provider: Option<String>,
    pub interface: Option<String>,
    pub connect: Option<Duration>,
    pub heartbeat: Option<Duration>,
    pub no_progress_thread: bool,
    pub atomics: Arbiter,
    pub signals: Ways,
    pub registered: Option<u64>,
    pub demands: Demands,
    pub am_memory: Option<u64>,
    pub credits: Mode,
    pub puts_under_way: Option<usize>,
    pub table: Option<Table>,
    pub check: bool,
    pub hang_after: Option<Duration>,
    /// If it is given: after that, or never.
    pub timeout: Option<Option<Duration>>,
    pub test_procs: Option<Option<usize>>,
}

impl Settings {
    pub fn read() -> Result<Settings> {
        Settings::from(|name| std::env::var(name).ok())
    }

    fn from(get: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let bad = |name: &str, value: &str, want: &str| Error::config(format!("{name}={value}: must be {want}"));
        let count = |name: &str| -> Result<Option<usize>> {
            let Some(v) = get(name) else { return Ok(None) };
            let n = v.trim().parse().ok().filter(|n| (1..1 << 16).contains(n));
            n.map(Some).ok_or_else(|| bad(name, &v, "a number of ranks, 1 to 65535"))
        };
        let seconds = |name: &str| -> Result<Option<Duration>> {
            let Some(v) = get(name) else { return Ok(None) };
            match v.trim() {
                "never" => Ok(None),
                t => seconds(t).map(Some).ok_or_else(|| bad(name, &v, "seconds or never")),
            }
        };
        let one_of = |name: &str, words: &[&str]| -> Result<Option<usize>> {
            let Some(v) = get(name) else { return Ok(None) };
            let i = words.iter().position(|w| *w == v.trim());
            i.map(Some).ok_or_else(|| bad(name, &v, &words.join(" or ")))
        };
        let segment = match get("PARTAGE_SEGMENT") {
            None => None,
            Some(v) => {
                let n = size(&v).filter(|n| (4 << 20..=1 << 43).contains(n));
                Some(n.ok_or_else(|| bad("PARTAGE_SEGMENT", &v, "a size from 4M to 8T, such as 512M or 8G"))?)
            }
        };
        let registered = match get("PARTAGE_REGISTERED") {
            None => None,
            Some(v) => {
                let n = size(&v).filter(|n| *n >= 16 << 20);
                Some(n.ok_or_else(|| bad("PARTAGE_REGISTERED", &v, "a size of at least 16M, such as 512M or 8G"))?)
            }
        };
        let demands = get(DEMANDS).map(|v| v.parse::<Demands>()).transpose();
        let demands = demands.map_err(|why| Error::config(format!("{DEMANDS}: {why}")))?.unwrap_or_default();
        let am_memory = match get("PARTAGE_AM_MEMORY") {
            None => None,
            Some(v) => {
                let n = size(&v).filter(|n| (1 << 18..=1 << 37).contains(n));
                Some(n.ok_or_else(|| bad("PARTAGE_AM_MEMORY", &v, "a size from 256K to 128G, such as 8M or 1G"))?)
            }
        };
        let puts_under_way = match get("PARTAGE_PUTS_UNDER_WAY") {
            None => None,
            Some(v) => {
                let n = v.trim().parse().ok().filter(|n| (1..=TOKENS).contains(n));
                Some(n.ok_or_else(|| bad("PARTAGE_PUTS_UNDER_WAY", &v, &format!("a number from 1 to {TOKENS}")))?)
            }
        };
        let test_procs = match get("PARTAGE_TEST").as_deref() {
            None | Some("threads") => None,
            Some("procs") => Some(None),
            Some(v) => {
                let n = v.strip_prefix("procs=").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                Some(Some(n.ok_or_else(|| bad("PARTAGE_TEST", v, "threads, procs or procs=N"))?))
            }
        };
        let radix = match get("PARTAGE_RADIX").as_deref() {
            None | Some("auto") => None,
            Some(v) => {
                let n = v.parse().ok().filter(|n| *n >= 2);
                Some(n.ok_or_else(|| bad("PARTAGE_RADIX", v, "auto, or a number from 2"))?)
            }
        };
        Ok(Settings {
            ranks: count("PARTAGE_RANKS")?,
            threads: count("PARTAGE_THREADS")?,
            segment,
            no_huge: one_of("PARTAGE_HUGE", &["auto", "never"])? == Some(1),
            bind: one_of("PARTAGE_BIND", &["none", "core"])? == Some(1),
            own_cores: one_of("PARTAGE_WAIT", &["auto", "own", "shared"])?.filter(|&i| i > 0).map(|i| i == 1),
            keeps_rseq: one_of("PARTAGE_RSEQ", &["auto", "keep"])? == Some(1),
            radix,
            fences: match one_of("PARTAGE_FENCES", &["auto", "light", "full"])? {
                Some(1) => Fences::Light,
                Some(2) => Fences::Full,
                _ => Fences::Auto,
            },
            reference: one_of("PARTAGE_REFERENCE", &["0", "1"])? == Some(1),
            leaks: one_of("PARTAGE_LEAKS", &["0", "1"])? == Some(1),
            node: get("PARTAGE_NODE").filter(|node| !node.is_empty()),
            provider: get("PARTAGE_PROVIDER").filter(|provider| !provider.is_empty()),
            interface: get("PARTAGE_INTERFACE").filter(|interface| !interface.is_empty()),
            connect: match get("PARTAGE_CONNECT").filter(|v| v.trim() == "never") {
                Some(v) => return Err(bad("PARTAGE_CONNECT", &v, "seconds")),
                None => seconds("PARTAGE_CONNECT")?,
            },
            heartbeat: match get("PARTAGE_HEARTBEAT") {
                None => Some(HEARTBEAT),
                Some(_) => seconds("PARTAGE_HEARTBEAT")?,
            },
            no_progress_thread: one_of("PARTAGE_PROGRESS", &["thread", "none"])? == Some(1),
            atomics: match one_of("PARTAGE_ATOMICS", &["auto", "cpu", "network"])? {
                Some(1) => Arbiter::Cpu,
                Some(2) => Arbiter::Network,
                _ => Arbiter::Auto,
            },
            signals: match one_of("PARTAGE_SIGNAL", &["auto", "message", "data", "fifo"])? {
                Some(1) => Ways::Message,
                Some(2) => Ways::Data,
                Some(3) => Ways::Fifo,
                _ => Ways::Auto,
            },
            registered,
            demands,
            am_memory,
            puts_under_way,
            credits: match one_of("PARTAGE_CREDITS", &["dynamic", "static"])? {
                Some(1) => Mode::Static,
                _ => Mode::Dynamic,
            },
            table: match get("PARTAGE_COLL") {
                None => None,
                Some(v) => match v.parse::<Table>() {
                    Ok(table) => Some(table),
                    Err(why) => return Err(Error::config(format!("PARTAGE_COLL: {why}"))),
                },
            },
            check: one_of("PARTAGE_CHECK", &["0", "1"])?.map_or(cfg!(debug_assertions), |i| i == 1),
            hang_after: seconds("PARTAGE_HANG_AFTER")?,
            timeout: get("PARTAGE_TIMEOUT").map(|_| seconds("PARTAGE_TIMEOUT")).transpose()?,
            test_procs,
        })
    }
}

/// Seconds as people write them: `30`, `0.5`, `30s`, `500ms`, `2m`.
pub fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text {
        t if t.ends_with("ms") => (&t[..t.len() - 2], 1e-3),
        t if t.ends_with('s') => (&t[..t.len() - 1], 1.0),
        t if t.ends_with('m') => (&t[..t.len() - 1], 60.0),
        t => (t, 1.0),
    };
    let s = number.parse::<f64>().ok()? * unit;
    (s > 0.0 && s < 1e9).then(|| Duration::from_secs_f64(s))
}

/// `4096`, `64K`, `512M`, `8G`, `1T`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.parse::<u64>().ok()?.checked_shl(shift).filter(|n| n >> shift == digits.parse().unwrap_or(0))
}

/// Edit distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let best = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Settings> {
        Settings::from(|n| (n == name).then(|| value.to_string()))
    }

    #[test]
    fn good_values_are_read() {
        assert_eq!(with("PARTAGE_RANKS", "7").unwrap().ranks, Some(7));
        assert_eq!(with("PARTAGE_SEGMENT", "512M").unwrap().segment, Some(512 << 20));
        assert_eq!(with("PARTAGE_HANG_AFTER", "500ms").unwrap().hang_after, Some(Duration::from_millis(500)));
        assert_eq!(with("PARTAGE_HANG_AFTER", "never").unwrap().hang_after, None);
        assert_eq!(with("PARTAGE_TIMEOUT", "2").unwrap().timeout, Some(Some(Duration::from_secs(2))));
        assert_eq!(with("PARTAGE_TIMEOUT", "never").unwrap().timeout, Some(None));
        assert_eq!(with("PARTAGE_RANKS", "1").unwrap().timeout, None);
        assert!(with("PARTAGE_CONNECT", "never").is_err());
        assert_eq!(with("PARTAGE_HEARTBEAT", "2").unwrap().heartbeat, Some(Duration::from_secs(2)));
        assert_eq!(with("PARTAGE_HEARTBEAT", "never").unwrap().heartbeat, None);
        assert_eq!(with("PARTAGE_RANKS", "1").unwrap().heartbeat, Some(HEARTBEAT));
        assert_eq!(with("PARTAGE_ATOMICS", "cpu").unwrap().atomics, Arbiter::Cpu);
        assert_eq!(with("PARTAGE_ATOMICS", "network").unwrap().atomics, Arbiter::Network);
        for (word, fences) in [("auto", Fences::Auto), ("light", Fences::Light), ("full", Fences::Full)] {
            assert_eq!(with("PARTAGE_FENCES", word).unwrap().fences, fences);
        }
        for (word, ways) in
            [("auto", Ways::Auto), ("message", Ways::Message), ("data", Ways::Data), ("fifo", Ways::Fifo)]
        {
            assert_eq!(with("PARTAGE_SIGNAL", word).unwrap().signals, ways);
        }
        assert_eq!(with("PARTAGE_REGISTERED", "2G").unwrap().registered, Some(2 << 30));
        assert!(with(DEMANDS, "local,virt_addr").unwrap().demands.any() && with(DEMANDS, "locale").is_err());
        assert_eq!(with("PARTAGE_AM_MEMORY", "8M").unwrap().am_memory, Some(8 << 20));
        assert_eq!(with("PARTAGE_CREDITS", "static").unwrap().credits, Mode::Static);
        assert_eq!(with("PARTAGE_PUTS_UNDER_WAY", "32").unwrap().puts_under_way, Some(32));
        assert_eq!(with("PARTAGE_TEST", "procs=3").unwrap().test_procs, Some(Some(3)));
    }

    #[test]
    fn bad_values_are_named_with_what_they_must_be() {
        for (name, value) in [
            ("PARTAGE_RANKS", "0"),
            ("PARTAGE_RANKS", "-1"),
            ("PARTAGE_RANKS", "many"),
            ("PARTAGE_THREADS", "99999999"),
            ("PARTAGE_SEGMENT", "1K"),
            ("PARTAGE_SEGMENT", "99999999999T"),
            ("PARTAGE_SEGMENT", ""),
            ("PARTAGE_TIMEOUT", "-3"),
            ("PARTAGE_HEARTBEAT", "0"),
            ("PARTAGE_WAIT", "spin"),
            ("PARTAGE_FENCES", "none"),
            ("PARTAGE_TEST", "procs=0"),
            ("PARTAGE_ATOMICS", "nic"),
            ("PARTAGE_SIGNAL", "smoke"),
            ("PARTAGE_REGISTERED", "1M"),
            ("PARTAGE_REGISTERED", "none"),
            ("PARTAGE_AM_MEMORY", "255K"),
            ("PARTAGE_AM_MEMORY", "1T"),
            ("PARTAGE_CREDITS", "none"),
            ("PARTAGE_PUTS_UNDER_WAY", "0"),
            ("PARTAGE_PUTS_UNDER_WAY", "257"),
        ] {
            let e = with(name, value).unwrap_err();
            assert!(e.to_string().starts_with(&format!("{name}={value}: must be ")), "{e}");
        }
    }

    #[test]
    fn a_misspelt_name_is_recognised() {
        assert!(distance("PARTAGE_RANK", "PARTAGE_RANKS") == 1 && distance("", "abc") == 3);
    }
}
