//! `partage run`: starts a program as a job and waits for its end.

use clap::{Args, ValueEnum};
use partage_boot::{Host, Hosts, Input, Spec, ranks_for};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `run` takes.
#[derive(Args)]
pub struct Options {
    /// Ranks of the job; by default as many as --procs, as the hosts have slots or repeated lines, or as the cores that this
    /// command is allowed here (its affinity mask; CPU quotas are not looked at)
    #[arg(short = 'n', long = "ranks", value_name = "RANKS")]
    ranks: Option<usize>,
    /// Processes that host them; by default one each
    #[arg(long)]
    procs: Option<usize>,
    /// Hosts to run on, such as a,b or, with the processes that each may have, a:4,b:2; one that is given twice gets two
    /// shares. The directory, the program and `partage` itself must be there under the same paths
    #[arg(long, value_name = "HOST,...", group = "where")]
    hosts: Option<String>,
    /// File with the hosts to run on, one on each line, with slots=N for the processes that it may have; # begins a comment
    #[arg(long, value_name = "FILE", group = "where")]
    hostfile: Option<PathBuf>,
    /// Remote shell that reaches a host without asking, run as COMMAND HOST partage...; split at blanks
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10",
        requires = "where"
    )]
    rsh: String,
    /// Bind each rank to a core
    #[arg(long, value_enum)]
    bind: Option<Bind>,
    /// Begin each line of output with the ranks of the process that wrote it
    #[arg(long)]
    label: bool,
    /// End the job after this many seconds, and say where its ranks are
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Say where the ranks are when one has waited this many seconds in one call; the job goes on
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    hang_after: Option<Duration>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bind {
    /// Ranks run where the system puts them
    None,
    /// Rank r runs on the r-th allowed core
    Core,
}

/// Runs it; the job's exit code.
pub fn run(options: Options) -> i32 {
    let mut words = options.program.into_iter();
    let program = words.next().expect("clap requires it");
    let hosts = match hosts(options.hosts.as_deref(), options.hostfile.as_deref(), &options.rsh) {
        Ok(hosts) => hosts,
        Err(e) => {
            eprintln!("partage: {e}");
            return 2;
        }
    };
    let meant = hosts.as_ref().and_then(|hosts| ranks_for(&hosts.list));
    let cores = partage_conduit::topology::allowed_cores().len();
    let ranks = options.ranks.or(options.procs).or(meant).unwrap_or(cores);
    let mut spec = Spec::new(program, ranks);
    spec.hosts = hosts;
    spec.args = words.collect();
    spec.procs = options.procs.unwrap_or(ranks);
    spec.label = options.label;
    let limits = match partage::settings::limits() {
        Ok(limits) => limits,
        Err(e) => {
            eprintln!("partage: {e}");
            return 2;
        }
    };
    spec.timeout = options.timeout.or(limits.timeout);
    spec.hang_after = options.hang_after.or(limits.hang_after);
    spec.heartbeat = limits.heartbeat;
    spec.stdin = Input::ToRankZero;
    spec.forward_signals = true;
    if let Some(bind) = options.bind {
        let bind = if let Bind::Core = bind { "core" } else { "none" };
        spec.env.push(("PARTAGE_BIND".into(), bind.into()));
    }
    match partage::launcher::launch(&spec) {
        Ok(ended) => ended.code,
        Err(e) => {
            eprintln!("partage: {e}");
            2
        }
    }
}

fn hosts(list: Option<&str>, file: Option<&Path>, shell: &str) -> Result<Option<Hosts>, String> {
    let list = match (list, file) {
        (None, None) => return Ok(None),
        (Some(list), _) => Host::list(list),
        (None, Some(file)) => Host::file(file),
    };
    let list = list.map_err(|e| e.to_string())?;
    let shell: Vec<OsString> = shell.split_whitespace().map(OsString::from).collect();
    if shell.is_empty() {
        return Err("--rsh: there is no command in it".into());
    }
    let this = std::env::current_exe().map_err(|e| format!("the path of `partage` cannot be found out: {e}"))?;
    Ok(Some(Hosts { list, shell, agent: vec![this.into(), "agent".into()] }))
}

fn seconds(text: &str) -> Result<Duration, String> {
    partage::settings::seconds(text).ok_or_else(|| "give seconds, such as 30 or 0.5".into())
}
