//! The suite under 1, 2, 3, 4, 7 and 16 ranks, each in every split into processes (of 7 and 16, which are much alike, in some;
//! `EVERY_SPLIT=1`, as in `ci/soak`, takes all); and on the reference path, where puts, gets and atomics are messages, in some of them. Then over libfabric: between processes that share no memory, and between
//! hosts, which are network namespaces.

use partage_boot::{Host, Hosts, Spec};
use partage_conduit::ofi::endpoint::{Asked, Atomics, Endpoint};
use partage_conduit::word::{Kind, Op};
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Far more than any takes: a virtual machine whose host is busy has made twenty times of some.
const LIMIT: Duration = Duration::from_secs(900);

const SUITE: &str = env!("CARGO_BIN_EXE_partage-conformance");

fn suite(ranks: usize, procs: usize, settings: &[(&str, &str)]) {
    suite_on(None, ranks, procs, settings);
}

/// Two jobs at a time keep each other's ranks from their cores, and take longer than one after the other.
static TURN: Mutex<()> = Mutex::new(());

fn suite_on(hosts: Option<Hosts>, ranks: usize, procs: usize, settings: &[(&str, &str)]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut spec = Spec::new(SUITE, ranks);
    spec.procs = procs;
    spec.hosts = hosts;
    // Some cases panic on purpose and catch it.
    spec.env.push(("RUST_BACKTRACE".into(), "0".into()));
    spec.env.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    spec.timeout = Some(LIMIT);
    let begun = Instant::now();
    let ended = partage::launcher::launch(&spec).unwrap();
    println!("{:.1} s: {ranks} ranks in {procs} processes, {settings:?}", begun.elapsed().as_secs_f64());
    assert_eq!(ended.code, 0, "{ranks} ranks in {procs} processes, {settings:?}: {:?}", ended.why);
}

/// In every split; all but one of them short, if there is not time for all of it.
fn every_split(ranks: usize, long: usize) {
    (1..=ranks).for_each(|procs| suite(ranks, procs, if is_every() || procs == long { &[] } else { &[SHORT] }));
}

#[test]
fn one_rank() {
    every_split(1, 1);
}

#[test]
fn two_ranks() {
    every_split(2, 2);
}

#[test]
fn three_ranks() {
    every_split(3, 2);
}

#[test]
fn four_ranks() {
    every_split(4, 4);
}

/// As programs that are not debugged have them: calls are not compared, and those that were made before are remembered.
#[test]
fn collectives_that_are_not_compared() {
    for (ranks, procs) in [(1, 1), (2, 2), (3, 1), (5, 2), (7, 7)] {
        suite(ranks, procs, &[("PARTAGE_CHECK", "0"), ("ONLY", "coll|different lengths|without the third"), SHORT]);
    }
}

/// Operands keep their order for every number of ranks, where trees and rings have their gaps; compared, or remembered.
#[test]
fn reductions_of_up_to_nine_ranks() {
    for ranks in 1..=9 {
        for procs in 1..=ranks.min(2) {
            for check in checks(ranks + procs) {
                let only = ("ONLY", "reductions|operations of all types|folds|prefixes");
                suite(ranks, procs, &[("PARTAGE_CHECK", check), only, SHORT]);
            }
        }
    }
}

/// Blocks go where they must for every number of ranks: those that other tests have not, or not all of; compared, or remembered.
#[test]
fn movers_of_up_to_nine_ranks() {
    for (i, (ranks, split)) in [(5, 3), (6, 2), (8, 3), (9, 4)].into_iter().enumerate() {
        for procs in some_of(1..=ranks, &[1, split]) {
            for check in checks(i + usize::from(procs > 1)) {
                let only = "collectives in every|collectives of every|collectives by name|late rank|third|disturbs";
                suite(ranks, procs, &[("PARTAGE_CHECK", check), ("ONLY", only), SHORT]);
            }
        }
    }
}

/// Calls are compared or remembered, in turns; both if there is time.
fn checks(turn: usize) -> &'static [&'static str] {
    if is_every() { &["0", "1"] } else { &[["0"], ["1"]][turn % 2] }
}

/// Who asks for a case that is not there hears of it.
#[test]
fn no_such_case() {
    let mut spec = Spec::new(SUITE, 3);
    spec.procs = 2;
    spec.env.push(("ONLY".into(), "flood|no such case".into()));
    spec.timeout = Some(LIMIT);
    let ended = partage::launcher::launch(&spec).unwrap();
    assert_eq!(ended.code, 1, "{:?}", ended.why);
}

/// Is there time for all of it?
fn is_every() -> bool {
    std::env::var_os("EVERY_SPLIT").is_some()
}

/// The splits that are taken of many.
fn some_of(splits: RangeInclusive<usize>, some: &[usize]) -> Vec<usize> {
    splits.filter(|procs| is_every() || some.contains(procs)).collect()
}

#[test]
fn seven_ranks() {
    for procs in some_of(1..=7, &[3, 7]) {
        suite(7, procs, if is_every() { &[] } else { &[SHORT] });
    }
}

#[test]
fn sixteen_ranks() {
    for procs in some_of(1..=16, &[16]) {
        suite(16, procs, if is_every() { &[] } else { &[SHORT] });
    }
}

#[test]
fn reference_path() {
    let more = [(2, 1), (2, 2), (4, 4), (7, 2), (7, 7), (16, 4)];
    for (ranks, procs) in [(1, 1), (3, 2)].into_iter().chain(more.into_iter().filter(|_| is_every())) {
        suite(ranks, procs, &[("PARTAGE_REFERENCE", "1"), SHORT]);
    }
}

/// Says loudly, past the harness, that something was not tested.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
}

/// Is there a network between nodes? Says so if not.
fn is_there_libfabric() -> bool {
    let found = partage_conduit::ofi::endpoint::Endpoint::version();
    found.map_err(|why| skipped(&format!("no libfabric: {why}"))).is_ok()
}

fn is_there(launcher: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(launcher).is_file());
    if !found {
        skipped(&format!("{launcher} is not installed"));
    }
    found
}

/// That of Open MPI speaks PMIx. Says so if it is missing, or its library.
fn is_there_open_mpi() -> bool {
    is_there("mpirun.openmpi") && partage_boot::pmix_version().map_err(|why| skipped(&why.to_string())).is_ok()
}

/// Processes of one host that share no memory.
const APART: (&str, &str) = ("PARTAGE_NODE", "process");
/// For what is slow, and more of it would not test better.
const SHORT: (&str, &str) = ("SCALE", "0.1");

#[test]
fn processes_without_shared_memory() {
    if is_there_libfabric() {
        if is_every() {
            suite(2, 2, &[APART, SHORT]);
        }
        suite(4, 2, &[APART, SHORT]);
        suite(3, 3, &[APART, SHORT]);
        // So many that some hear of others only through a third.
        suite(5, 5, &[APART, ("ONLY", "forgotten")]);
    }
}

/// Does the network do atomics itself? Says so if not.
fn are_there_native_atomics() -> bool {
    let asked = Asked { source: Some("127.0.0.1".into()), ..Asked::default() };
    let opened = Endpoint::open(&asked).and_then(|endpoint| {
        let atomics = Atomics::open(&endpoint)?;
        let all = Op::ALL.iter().all(|&op| atomics.is_valid(op, Kind::Unsigned, 8));
        all.then_some(()).ok_or_else(|| format!("{} does not do all", endpoint.provider()))
    });
    opened.map_err(|why| skipped(&format!("no atomics of the network: {why}"))).is_ok()
}

const DOMAINS: (&str, &str) = ("ONLY", "domain");

#[test]
fn atomics_of_domains() {
    // Where there is no network, to ask for it is an error.
    suite(3, 2, &[("PARTAGE_ATOMICS", "network"), DOMAINS]);
    suite(3, 1, &[("PARTAGE_ATOMICS", "cpu"), DOMAINS]);
    if is_there_libfabric() && are_there_native_atomics() {
        let network = ("PARTAGE_ATOMICS", "network");
        suite(2, 2, &[APART, network, DOMAINS, SHORT]);
        suite(5, 2, &[APART, network, DOMAINS, SHORT]);
        suite(3, 3, &[APART, network, DOMAINS, SHORT]);
        suite(2, 2, &[APART, network, DOMAINS, SHORT, ("PARTAGE_PROGRESS", "none")]);
        suite(2, 2, &[APART, network, DOMAINS, SHORT, ("PARTAGE_REFERENCE", "1")]);
        suite(3, 2, &[APART, ("PARTAGE_ATOMICS", "cpu"), DOMAINS, SHORT]);
        // Ranks of one node that are not of one process, beside others.
        if let Some(namespaces) = Namespaces::up() {
            namespaces.suite(4, 4, &[network, DOMAINS, SHORT]);
        }
        // Providers that do not do them, or wrongly.
        for provider in ["net", "udp"] {
            let asked = Asked { provider: Some(provider.into()), source: Some("127.0.0.1".into()), ..Asked::default() };
            match Endpoint::open(&asked) {
                Ok(_) => suite(2, 2, &[APART, ("PARTAGE_PROVIDER", provider), DOMAINS, SHORT]),
                Err(why) => skipped(&why),
            }
        }
    }
}

const WAYS: (&str, &str) = ("ONLY", "ways");

/// Every way of signals, between processes, hosts, and by every provider.
#[test]
fn signals_by_every_way() {
    suite(3, 2, &[WAYS, SHORT, ("PARTAGE_SIGNAL", "data")]);
    if !is_there_libfabric() {
        return;
    }
    for way in ["auto", "message", "data", "fifo"] {
        let way = ("PARTAGE_SIGNAL", way);
        suite(2, 2, &[APART, way, WAYS]);
        suite(5, 3, &[APART, way, WAYS, SHORT]);
        suite(3, 2, &[APART, way, WAYS, SHORT, ("PARTAGE_PROGRESS", "none")]);
    }
    suite(3, 2, &[APART, WAYS, SHORT, ("PARTAGE_SIGNAL", "data"), ("PARTAGE_REFERENCE", "1")]);
    if let Some(namespaces) = Namespaces::up() {
        for way in ["auto", "data", "fifo"] {
            namespaces.suite(4, 4, &[("PARTAGE_SIGNAL", way), WAYS, SHORT]);
        }
    }
    for provider in ["net", "udp", "sockets"] {
        let asked = Asked { provider: Some(provider.into()), source: Some("127.0.0.1".into()), ..Asked::default() };
        match Endpoint::open(&asked) {
            Ok(_) => ["data", "fifo"].into_iter().for_each(|way| {
                suite(2, 2, &[APART, ("PARTAGE_PROVIDER", provider), ("PARTAGE_SIGNAL", way), WAYS, SHORT]);
            }),
            Err(why) => skipped(&why),
        }
    }
}

/// What providers of real fabrics ask for and tcp does not: each of them, and all together.
const DEMANDS: [&str; 9] =
    ["local", "virt_addr", "prov_key", "endpoint", "allocated", "context", "rx_cq_data", "data4", "all"];

fn demanding(demands: &'static str) -> (&'static str, &'static str) {
    ("PARTAGE_TEST_DEMANDS", demands)
}

#[test]
fn what_fabrics_ask_for() {
    if !is_there_libfabric() {
        return;
    }
    for demands in DEMANDS {
        // Of each by itself, cases of every length, type and layout.
        let some = [APART, SHORT, demanding(demands), ("ONLY", "every")];
        suite(2, 2, if is_every() || demands == "all" { &some[..3] } else { &some });
    }
    suite(3, 3, &[APART, SHORT, demanding("all"), ("PARTAGE_PROGRESS", "none")]);
    // Long transfers, and signals with data, in many pieces.
    suite(2, 2, &[APART, SHORT, demanding("longest=70001"), ("ONLY", "every")]);
    suite(3, 2, &[APART, SHORT, demanding("longest=70001"), ("PARTAGE_SIGNAL", "data"), WAYS]);
}

/// The same for atomics of the network, and for signals by every way.
#[test]
fn what_fabrics_ask_for_in_every_way() {
    if !is_there_libfabric() {
        return;
    }
    for way in ["message", "data", "fifo"] {
        suite(3, 2, &[APART, WAYS, SHORT, ("PARTAGE_SIGNAL", way), demanding("all")]);
    }
    if are_there_native_atomics() {
        // Not `endpoint`: where registrations belong to one, atomics of the network have none, and asking for them is an error.
        let demands = demanding("local,virt_addr,prov_key,allocated,context,data4");
        suite(3, 2, &[APART, ("PARTAGE_ATOMICS", "network"), DOMAINS, SHORT, demands]);
    }
}

/// With room for few messages under way, a step of a collective waits for room, and others go on meanwhile.
#[test]
fn collectives_with_little_room() {
    if !is_there_libfabric() {
        return;
    }
    for (ranks, procs, way) in [(4, 4, "fifo"), (5, 3, "message")] {
        let some = [APART, SHORT, demanding("sends=3"), ("PARTAGE_SIGNAL", way), ("ONLY", "collectives that")];
        suite(ranks, procs, if is_every() { &some[..4] } else { &some });
    }
}

/// Where little can be registered, or nothing more, transfers go by copies.
#[test]
fn what_cannot_be_registered() {
    if !is_there_libfabric() {
        return;
    }
    let little = [APART, SHORT, ("PARTAGE_SEGMENT", "4M")];
    for demands in ["local,limit=27000000", "all,limit=33554432"] {
        suite(2, 2, &[&little[..], &[demanding(demands), ("ONLY", "registered")]].concat());
    }
    // Buffers and segments are 25.3 MB of these.
    suite(2, 2, &[&little[..], &[demanding("local,limit=25700000"), ("ONLY", "what cannot be")]].concat());
    let cached = ("PARTAGE_REGISTERED", "16M");
    suite(2, 2, &[APART, SHORT, cached, demanding("local,cost=100"), ("ONLY", "registered")]);
}

/// Hosts, made of network namespaces and removed in the end.
struct Namespaces {
    prefix: String,
    count: usize,
}

impl Namespaces {
    /// Two of them; says it if there are none.
    fn up() -> Option<Namespaces> {
        Namespaces::of(2)
    }

    fn of(count: usize) -> Option<Namespaces> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if !is_there_libfabric() {
            return None;
        }
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let namespaces = Namespaces { prefix: format!("partage-suite-{unique}-"), count };
        let output = namespaces.ci("netns").args(["up", &count.to_string()]).output().unwrap();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            skipped(&format!("no network namespaces: {why}"));
            return None;
        }
        Some(namespaces)
    }

    fn ci(&self, script: &str) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci").join(script));
        command.env("NETNS_PREFIX", &self.prefix);
        command
    }

    fn suite(&self, ranks: usize, procs: usize, settings: &[(&str, &str)]) {
        let hosts = Hosts {
            list: (1..=self.count).map(|i| Host::new(format!("{}{i}", self.prefix))).collect(),
            shell: ["ip", "netns", "exec"].map(Into::into).to_vec(),
            agent: [SUITE, "agent"].map(Into::into).to_vec(),
        };
        suite_on(Some(hosts), ranks, procs, settings);
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.ci("netns").arg("down").output();
    }
}

#[test]
fn two_hosts() {
    if let Some(namespaces) = Namespaces::up() {
        namespaces.suite(4, 4, &[SHORT]);
        namespaces.suite(5, 3, &[SHORT]);
    }
}

#[test]
fn four_hosts() {
    if let Some(namespaces) = Namespaces::of(4) {
        namespaces.suite(9, 5, &[("ONLY", "collectives of|reductions of"), SHORT]);
        namespaces.suite(7, 7, &[("ONLY", "flood"), SHORT]);
        namespaces.suite(7, 5, &[("ONLY", "semaphore"), SHORT]);
    }
}

/// One packet of a hundred is lost: all is as it should be, only later.
#[test]
fn two_hosts_that_lose_packets() {
    let Some(namespaces) = Namespaces::up() else { return };
    let output = namespaces.ci("netns").args(["loss", "1"]).output().unwrap();
    if !output.status.success() {
        return skipped(&format!("no loss of packets: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    namespaces.suite(3, 3, &[("ONLY", "flood"), SHORT]);
    namespaces.suite(4, 2, &[("ONLY", "collectives of"), SHORT]);
    namespaces.suite(3, 3, &[("ONLY", "atomics of"), SHORT]);
}

/// Without the thread that serves others while ranks compute, ranks that wait serve them.
#[test]
fn two_hosts_without_a_thread_for_progress() {
    if let Some(namespaces) = Namespaces::up() {
        let some = [("PARTAGE_PROGRESS", "none"), SHORT, ("ONLY", "flood|wait|late|under way|lock|semaphore|every")];
        namespaces.suite(4, 4, if is_every() { &some[..2] } else { &some });
    }
}

#[test]
fn reference_path_over_the_network() {
    if is_there_libfabric() {
        suite(3, 2, &[APART, SHORT, ("PARTAGE_REFERENCE", "1")]);
    }
    if let Some(namespaces) = Namespaces::up() {
        let some = [SHORT, ("PARTAGE_REFERENCE", "1"), ("ONLY", "collectives")];
        namespaces.suite(4, 4, if is_every() { &some[..2] } else { &some });
    }
}

/// A foreign launcher, which may take this long; all that it starts is one group.
fn ends_well(mut command: Command, settings: &[(&str, &str)]) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| ["PARTAGE_", "PMI", "OMPI_"].iter().any(|prefix| name.starts_with(prefix)))
        {
            command.env_remove(name);
        }
    }
    command
        .envs(settings.iter().copied())
        .env("RUST_BACKTRACE", "0")
        .env("PARTAGE_TIMEOUT", LIMIT.as_secs().to_string());
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begun.elapsed() > LIMIT + Duration::from_secs(10) => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status();
        let _ = child.wait();
    }
    println!("{:.1} s: {command:?}", begun.elapsed().as_secs_f64());
    assert!(status.is_some_and(|status| status.success()), "{command:?}: {status:?}");
}

#[test]
fn mpirun_without_shared_memory() {
    if !is_there_libfabric() || !is_there("mpirun.mpich") {
        return;
    }
    for (processes, threads) in [("3", "1"), ("2", "2")] {
        let mut command = Command::new("mpirun.mpich");
        command.args(["-n", processes, SUITE]);
        let some = [APART, SHORT, ("PARTAGE_THREADS", threads), ("ONLY", "collectives")];
        ends_well(command, if is_every() { &some[..3] } else { &some });
    }
}

#[test]
fn mpirun_over_two_hosts() {
    if !is_there("mpirun.mpich") {
        return;
    }
    let Some(namespaces) = Namespaces::up() else { return };
    // What depends on who is where; the rest is as it is between hosts of our own launcher.
    let some = [("PARTAGE_THREADS", "2"), SHORT, ("ONLY", "collectives")];
    let last = if is_every() { 2 } else { 3 };
    for (processes, settings) in [("4", &some[1..last]), ("2", &some[..])] {
        let mut command = namespaces.ci("netns-mpirun");
        command.args([processes, SUITE]);
        ends_well(command, settings);
    }
}

/// Once on a node, and of two hosts what depends on who is where.
#[test]
fn mpirun_of_open_mpi() {
    if !is_there_open_mpi() {
        return;
    }
    let mut command = Command::new("mpirun.openmpi");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3", SUITE]);
    ends_well(command, &[SHORT]);
    let Some(namespaces) = Namespaces::up() else { return };
    let mut command = namespaces.ci("netns-mpirun");
    command.args(["4", SUITE]);
    ends_well(command, &[("MPIRUN", "mpirun.openmpi"), ("ONLY", "collectives"), SHORT]);
}
