//! `partage info`: the machine, the conduits, every setting with its meaning, value and origin.

mod network;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use partage::profile::{self, Found};
use partage_conduit::ofi::endpoint::{Asked, Endpoint};
use partage_conduit::shm::{bytes, segment};
use partage_conduit::topology;
use std::fs;

/// What `info` takes.
#[derive(Args)]
pub struct Options {
    /// The network between nodes in full, with a test of it on this machine
    #[arg(long)]
    network: bool,
}

/// Prints it.
pub fn info(options: &Options) -> i32 {
    if options.network {
        return network::info();
    }
    out!("partage {}", env!("CARGO_PKG_VERSION"));
    out!("\nMachine");
    let mut machine = plain();
    for (what, value) in rows() {
        machine.add_row([what, value]);
    }
    out!("{machine}");

    out!("\nLaunchers");
    let mut launchers = plain();
    let how = std::env::var("PARTAGE_BOOT").ok().filter(|how| how != "detect");
    launchers.add_row(["  found here", &partage_boot::found(how.as_deref())]);
    launchers.add_row(["  PMI-1", "partage run, mpirun of MPICH, srun --mpi=pmi2: ready"]);
    let pmix = partage_boot::pmix_version().map_or_else(|why| why.to_string(), |v| format!("libpmix {v}"));
    launchers.add_row(["  PMIx", &format!("mpirun of Open MPI, srun --mpi=pmix: {pmix}")]);
    out!("{launchers}");

    out!("\nConduits");
    let mut conduits = plain();
    conduits.add_row(["  shm", "ranks of one node, by shared memory: ready"]);
    let network = Endpoint::version().map_or_else(|why| why, |version| format!("libfabric {version}"));
    conduits.add_row(["  ofi", &format!("ranks of different nodes: {network}")]);
    if Endpoint::version().is_ok() {
        conduits.add_row(["  signals", &format!("to other nodes: {}", signals().unwrap_or_else(|why| why))]);
        conduits.add_row(["", "`partage info --network` says more, and tests it"]);
    }
    out!("{conduits}");

    out!(
        "\nCollectives (the first rule that fits: those of PARTAGE_COLL, then of the profile, then the built-in ones)"
    );
    out!("   profile: {}", profile());
    let mut rules = plain();
    match partage::settings::collectives() {
        Ok(tables) => {
            for (origin, entry) in tables.iter().flat_map(|(origin, t)| t.entries().map(move |e| (origin, e))) {
                rules.add_row([&format!("  {entry}"), *origin]);
            }
            out!("{rules}");
        }
        Err(why) => out!("  {why}"),
    }

    out!("\nSettings (environment)");
    let mut settings = plain();
    settings.set_content_arrangement(ContentArrangement::Dynamic);
    settings.set_header(["name", "value", "origin", "meaning"]);
    for s in partage::settings::all() {
        settings.add_row([s.name, &s.value, s.origin, s.meaning]);
    }
    out!("{settings}");
    for (name, near) in partage::settings::unknown() {
        let hint = near.map_or(String::new(), |n| format!("; did you mean {n}?"));
        out!("warning: there is no setting {name}{hint}");
    }
    0
}

/// Which profile a job here would have, or why none.
fn profile() -> String {
    match profile::find() {
        Found::Nowhere if std::env::var("PARTAGE_PROFILE").is_ok_and(|v| v == "none") => {
            "none, as PARTAGE_PROFILE says".into()
        }
        Found::Nowhere => "none, and there is no home for one; PARTAGE_PROFILE names a file".into(),
        Found::Missing(path) => format!("none; `partage tune` writes {}", path.display()),
        Found::Ignored(path, why) => format!("{} is not used: {why}", path.display()),
        Found::Used(path, profile) => {
            let rules = profile.table.entries().count();
            format!("{} of {} on {}, in force: {rules} entries", path.display(), profile.made.date, profile.made.host)
        }
    }
}

/// How signals go on the network that a job here would have.
fn signals() -> Result<String, String> {
    let ways = partage::settings::signals().map_err(|e| e.to_string())?;
    let endpoint = Endpoint::open(&asked())?;
    Ok(format!("{} ({})", ways.describe(&endpoint)?, endpoint.provider()))
}

/// What the network of a job would be asked for.
fn asked() -> Asked {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (provider, source) = (given("PARTAGE_PROVIDER"), given("PARTAGE_INTERFACE"));
    Asked { provider, source, no_atomics: true, ..Asked::default() }
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

fn rows() -> Vec<(String, String)> {
    let cores = topology::allowed_cores();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let quota = topology::cpu_quota().map_or("none".into(), |q| format!("{q:.2} cores"));
    let pages = match segment::create(1 << 20, true) {
        Ok((_, backing)) => backing.to_string(),
        Err(e) => format!("cannot be created: {e}"),
    };
    let uname = rustix::system::uname();
    let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
    let row = |what: &str, value: String| (format!("  {what}"), value);
    vec![
        row("host", text(uname.nodename())),
        row("system", format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine()))),
        row("processor", topology::processor().0),
        row("cores", format!("{} allowed ({}), online {}", cores.len(), ranges(&cores), online.trim())),
        row("sockets, NUMA nodes", format!("{}, {}", sockets(), numa())),
        row("CPU quota", quota),
        row("memory", format!("{} left of {}", bytes(topology::memory_left()), bytes(topology::memory_total()))),
        row("segments", pages),
    ]
}

fn sockets() -> usize {
    let package =
        |c: &usize| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{c}/topology/physical_package_id")).ok();
    let mut found: Vec<_> = topology::allowed_cores().iter().filter_map(package).collect();
    found.sort();
    found.dedup();
    found.len().max(1)
}

fn numa() -> usize {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 1 };
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let is_node = |n: &String| n.strip_prefix("node").is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit()));
    names.filter(is_node).count().max(1)
}

fn ranges(cores: &[usize]) -> String {
    let mut out: Vec<(usize, usize)> = vec![];
    for &c in cores {
        match out.last_mut() {
            Some(last) if last.1 + 1 == c => last.1 = c,
            _ => out.push((c, c)),
        }
    }
    out.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect::<Vec<_>>().join(",")
}
