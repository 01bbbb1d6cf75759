//! `partage bench network --hosts`: collectives between hosts, beside the raw messages that they need and beside Open MPI over
//! TCP between the same hosts.
//!
//! As in [`coll`](crate::bench::coll) the sides live next to each other and take turns: a job of ours, two processes that pass
//! messages by libfabric, and an MPI. They and the driver meet in a file, so the hosts have to be of one machine: network
//! namespaces, as `ci/netns` makes them. Each host has cores of its own as far as there are cores.
//!
//! The floor of a small collective is the time of a raw exchange of messages between two hosts, both of which send and then wait for the other's,
//! times the exchanges that wait for one another in the plan which the ranks run; or, where one host waits for the other before it sends, of
//! a message, half a round trip, times those messages. How many there are says the model of plans, on a machine on which a message between hosts takes 1 and all
//! else nothing. (An exchange takes longer than half a round trip: each side is busy with its own message when the other's comes.)
//!
//! Where hosts have fewer cores than ranks, turns of these come to that. So a barrier is also beside the same by hand, by as many ranks on the same cores: one rank of each host tells the
//! other, by a flag, that it is there, that one passes a raw message to the other host and awaits its, and says so by a flag; who waits yields after each look.

use crate::bench::coll::cells::{Mode, Operation};
use crate::bench::coll::stage::{By, Order, Sample, Stage};
use crate::bench::coll::{Programs, SideOptions};
use crate::bench::floor::{Everywhere, Line};
use crate::bench::measure::{Measured, Round, Tally};
use crate::bench::mpi::OPEN_MPI;
use crate::bench::wire::Wire;
use crate::bench::{Figure, How, Limit, launch, this_program};
use crate::scratch::Scratch;
use clap::Args;
use partage::prelude::*;
use partage_boot::{Host, Hosts};
use partage_conduit::ofi::interfaces::interfaces;
use partage_conduit::topology;
use partage_plan::coll::model::{Link, Machine, cost};
use partage_plan::coll::{Flow, Kind, Nodes, OpKind, Setting, Table};
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Instant;

/// Which hosts.
#[derive(Args)]
pub struct HostOptions {
    /// Collectives between these hosts instead, two ranks on each: network namespaces of this machine (`ci/netns`)
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// Remote shell that reaches a host, run as COMMAND HOST PROGRAM...; split at blanks
    #[arg(long, value_name = "COMMAND", default_value = "ip netns exec", requires = "hosts")]
    pub rsh: String,
    /// The library's ranks of a host are threads of one process
    #[arg(long, requires = "hosts")]
    pub threads: bool,
}

/// What is measured between hosts.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A collective beside raw messages of so many bytes.
    Messages { operation: Operation, bytes: usize, mode: Mode, message: usize },
    /// A barrier beside the same by hand, by as many ranks.
    ByHand,
    /// A collective beside that of Open MPI.
    OpenMpi { operation: Operation, bytes: usize, mode: Mode },
    /// Seconds for a job of so many ranks on each host, in so many processes, that do nothing; beside as many processes that only
    /// open libfabric.
    Start { ranks: usize, procs: usize },
}

impl What {
    /// Is it measured between so many hosts? By hand there are two.
    pub fn is_between(self, hosts: usize) -> bool {
        hosts == 2 || !matches!(self, What::ByHand)
    }
}

/// Those of this kind.
pub static FIGURES: [Figure; 38] = [
    raw("net_hosts_barrier", Operation::Barrier, 0, Mode::AllAll, 64, Limit::Ratio(1.3)),
    Figure {
        name: "net_hosts_barrier_by_hand",
        unit: "us",
        limit: Limit::None,
        most: 25,
        how: How::Hosts(What::ByHand),
    },
    raw("net_hosts_all_reduce_8", Operation::AllReduce, 8, Mode::MyMy, 64, Limit::Ratio(1.3)),
    raw("net_hosts_all_reduce_8_all", Operation::AllReduce, 8, Mode::AllAll, 64, Limit::None),
    raw("net_hosts_exchange_1k", Operation::Exchange, 1 << 10, Mode::MyMy, 1 << 10, Limit::Ratio(1.3)),
    raw("net_hosts_exchange_1k_all", Operation::Exchange, 1 << 10, Mode::AllAll, 1 << 10, Limit::None),
    beside("net_hosts_barrier_beside_openmpi", Operation::Barrier, 0, Limit::None),
    beside("net_hosts_all_reduce_8_beside_openmpi", Operation::AllReduce, 8, Limit::None),
    beside("net_hosts_exchange_1k_beside_openmpi", Operation::Exchange, 1 << 10, Limit::None),
    beside("net_hosts_all_reduce_1m", Operation::AllReduce, 1 << 20, Limit::Ratio(0.8)),
    beside("net_hosts_broadcast_1m", Operation::Broadcast, 1 << 20, Limit::Ratio(0.8)),
    beside("net_hosts_exchange_1m", Operation::Exchange, 1 << 20, Limit::Ratio(0.8)),
    beside("net_hosts_gather_all_1m", Operation::GatherAll, 1 << 20, Limit::None),
    beside("net_hosts_broadcast_1k", Operation::Broadcast, 1 << 10, Limit::None),
    beside("net_hosts_scatter_1k", Operation::Scatter, 1 << 10, Limit::None),
    beside("net_hosts_gather_1k", Operation::Gather, 1 << 10, Limit::None),
    beside("net_hosts_gather_all_1k", Operation::GatherAll, 1 << 10, Limit::None),
    beside("net_hosts_reduce_1k", Operation::Reduce, 1 << 10, Limit::None),
    beside("net_hosts_all_reduce_1k", Operation::AllReduce, 1 << 10, Limit::None),
    beside("net_hosts_prefix_reduce_1k", Operation::Prefix, 1 << 10, Limit::None),
    beside("net_hosts_broadcast_16k", Operation::Broadcast, 16 << 10, Limit::None),
    beside("net_hosts_scatter_16k", Operation::Scatter, 16 << 10, Limit::None),
    beside("net_hosts_gather_16k", Operation::Gather, 16 << 10, Limit::None),
    beside("net_hosts_gather_all_16k", Operation::GatherAll, 16 << 10, Limit::None),
    beside("net_hosts_exchange_16k", Operation::Exchange, 16 << 10, Limit::None),
    beside("net_hosts_reduce_16k", Operation::Reduce, 16 << 10, Limit::None),
    beside("net_hosts_all_reduce_16k", Operation::AllReduce, 16 << 10, Limit::None),
    beside("net_hosts_prefix_reduce_16k", Operation::Prefix, 16 << 10, Limit::None),
    beside("net_hosts_broadcast_256k", Operation::Broadcast, 256 << 10, Limit::None),
    beside("net_hosts_scatter_256k", Operation::Scatter, 256 << 10, Limit::None),
    beside("net_hosts_gather_256k", Operation::Gather, 256 << 10, Limit::None),
    beside("net_hosts_gather_all_256k", Operation::GatherAll, 256 << 10, Limit::None),
    beside("net_hosts_exchange_256k", Operation::Exchange, 256 << 10, Limit::None),
    beside("net_hosts_reduce_256k", Operation::Reduce, 256 << 10, Limit::None),
    beside("net_hosts_all_reduce_256k", Operation::AllReduce, 256 << 10, Limit::None),
    beside("net_hosts_prefix_reduce_256k", Operation::Prefix, 256 << 10, Limit::None),
    start("net_hosts_start_8", 8),
    start("net_hosts_start_8_threads", 1),
];

const fn start(name: &'static str, procs: usize) -> Figure {
    let how = How::Hosts(What::Start { ranks: 8, procs });
    Figure { name, unit: "s", limit: Limit::Value(1.0), most: 9, how }
}

const fn raw(
    name: &'static str,
    operation: Operation,
    bytes: usize,
    mode: Mode,
    message: usize,
    limit: Limit,
) -> Figure {
    let how = How::Hosts(What::Messages { operation, bytes, mode, message });
    Figure { name, unit: "us", limit, most: 25, how }
}

/// As MPI has it: data may be touched when their rank has entered, and until it returns.
const fn beside(name: &'static str, operation: Operation, bytes: usize, limit: Limit) -> Figure {
    let how = How::Hosts(What::OpenMpi { operation, bytes, mode: Mode::MyMy });
    Figure { name, unit: "us", limit, most: 15, how }
}

/// Ranks of each host.
const RANKS: usize = 2;
/// The sides.
const OURS: usize = 0;
const WIRE: usize = 1;
const HAND: usize = 2;
const MPI: usize = 3;
/// The raw sides' names, for `bench-side`: of one rank on each host, and of as many as there are.
pub const WIRE_NAME: &str = "wire";
pub const HAND_NAME: &str = "hand";
/// The longest raw message.
const LONGEST: usize = 4 << 10;
/// A sample takes about so long, in microseconds.
const WINDOW: f64 = 20_000.0;

/// Everything that takes turns.
pub struct Sides {
    hosts: Hosts,
    programs: Programs,
    /// What an MPI's launcher calls as its remote shell.
    script: Option<Scratch>,
    has_mpi: bool,
}

impl Sides {
    /// Starts what these figures need.
    pub fn start(options: &HostOptions, figures: &[&Figure]) -> Result<Sides, String> {
        let shell: Vec<OsString> = options.rsh.split_whitespace().map(OsString::from).collect();
        if shell.is_empty() || options.hosts.len() < 2 {
            return Err("--hosts: give two or more, and a remote shell that reaches them".into());
        }
        let this = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let list = options.hosts.iter().map(Host::new).collect();
        let hosts = Hosts { list, shell, agent: vec![this.clone().into(), "agent".into()] };
        let mut sides = Sides { hosts, programs: Programs::new()?, script: None, has_mpi: false };
        let names = options.hosts.join(",");
        // Two hosts pass raw messages.
        let two = &options.hosts[..2];
        for (name, on, each) in [("ours", &options.hosts[..], RANKS), (WIRE_NAME, two, 1), (HAND_NAME, two, RANKS)] {
            let mut job = Command::new(&this);
            job.args(["run", "--hosts", &on.join(","), "--rsh", &options.rsh]);
            let procs = if options.threads { on.len() } else { each * on.len() };
            job.args(["-n", &(each * on.len()).to_string(), "--procs", &procs.to_string()]);
            job.env("PARTAGE_PROFILE", "none");
            sides.programs.add(job, name, &["--hosts", &names])?;
        }
        if OPEN_MPI.is_there() && figures.iter().any(|f| matches!(f.how, How::Hosts(What::OpenMpi { .. }))) {
            let command = sides.mpirun(&options.rsh, &names)?;
            sides.programs.add(command, OPEN_MPI.name, &["--hosts", &names])?;
            sides.has_mpi = true;
        }
        Ok(sides)
    }

    /// Open MPI's launcher, on the first host.
    fn mpirun(&mut self, rsh: &str, names: &str) -> Result<Command, String> {
        // It gives options, the host, and a command that is quoted for a shell, as for ssh. Hosts of one machine have its name; MPI
        // would take them for one.
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\n\
             exec {rsh} \"$host\" unshare --uts sh -c \"hostname $host; exec $*\"\n"
        );
        let script = self.script.insert(Scratch::with(script.as_bytes())?).path();
        let mut command = Command::new(&self.hosts.shell[0]);
        command.args(&self.hosts.shell[1..]).arg(&self.hosts.list[0].name);
        let slots: Vec<String> = names.split(',').map(|name| format!("{name}:{RANKS}")).collect();
        OPEN_MPI.add_over_hosts(
            &mut command,
            &format!("sh {}", script.display()),
            &slots.join(","),
            RANKS * self.hosts.list.len(),
        );
        Ok(command)
    }

    /// One figure.
    pub fn measure(&mut self, what: What, rounds: usize) -> Result<Measured, String> {
        let (operation, bytes, mode) = match what {
            What::Start { ranks, procs } => return self.start_up(ranks, procs, rounds),
            What::Messages { operation, bytes, mode, .. } | What::OpenMpi { operation, bytes, mode } => {
                (operation, bytes, mode)
            }
            What::ByHand => (Operation::Barrier, 0, Mode::AllAll),
        };
        let sample = Sample {
            operation,
            bytes,
            mode,
            by: By::Library,
            touched: false,
            rotating: true,
            private: false,
            calls: 1,
            batches: 1,
        };
        let (side, floor, times) = match what {
            What::Messages { message, .. } => {
                let (hops, cross) = self.hops(operation, bytes, mode)?;
                (WIRE, Sample { bytes: message, rotating: !cross, ..sample }, hops / 2.0)
            }
            What::ByHand => (HAND, Sample { bytes: 64, ..sample }, 1.0),
            _ if !self.has_mpi => return Err("Open MPI is not installed".into()),
            _ => (MPI, sample, 1.0),
        };
        let (ours, floor) = (self.fit(OURS, sample)?, self.fit(side, floor)?);
        let mut tally = Tally::default();
        while !tally.is_enough(rounds) {
            let mut ask = |side, sample| self.programs.ask(side, Order::Sample(sample));
            let first = ask(side, floor)?;
            let both = ask(OURS, ours)? + ask(OURS, ours)?;
            let floor = times * (first + ask(side, floor)?) / 2.0;
            // Hosts have cores of their own, between which nothing is handed.
            tally.push(Round { before: 1.0, after: 1.0, ours: both / 2.0, floor: Some(floor) });
        }
        Ok(Measured { handoff: None, ..tally.measured() })
    }

    /// With so many calls that a sample takes long enough.
    fn fit(&mut self, side: usize, mut sample: Sample) -> Result<Sample, String> {
        let multiple = (RANKS * self.hosts.list.len()) as u64;
        loop {
            let time = self.programs.ask(side, Order::Sample(sample))?;
            let enough = ((WINDOW / time.max(0.01)) as u64).max(2).next_multiple_of(multiple);
            if enough < 4 * sample.calls {
                return Ok(Sample { calls: enough, ..sample });
            }
            sample.calls = enough.min(8 * sample.calls);
        }
    }

    /// Messages between hosts that wait for one another, and whether those of two hosts cross.
    fn hops(&self, operation: Operation, bytes: usize, mode: Mode) -> Result<(f64, bool), String> {
        let hosts = self.hosts.list.len();
        if operation == Operation::Barrier {
            return Ok((f64::from(hosts.next_power_of_two().ilog2()), true));
        }
        let tables = partage::settings::collectives().map_err(|e| e.to_string())?;
        let table = tables.into_iter().filter(|(origin, _)| *origin != "profile").map(|(_, table)| table);
        let table = table.fold(Table::empty(), Table::over);
        hops(&table, operation, bytes, mode, hosts).ok_or_else(|| format!("{}: no plan", operation.name()))
    }

    /// From the start of the launcher to its end.
    fn start_up(&self, ranks: usize, procs: usize, rounds: usize) -> Result<Measured, String> {
        let hosts = self.hosts.list.len();
        let time = |helper: &str| {
            let mut spec = this_program(ranks * hosts, &[helper])?;
            (spec.procs, spec.hosts) = (procs * hosts, Some(self.hosts.clone()));
            let start = Instant::now();
            launch(&spec).map(|()| start.elapsed().as_secs_f64())
        };
        let mut tally = Tally::default();
        while !tally.is_enough(rounds) {
            let (floor, ours) = (time("fabric")?, time("empty")?);
            tally.push(Round { before: 1.0, after: 1.0, ours, floor: Some(floor) });
        }
        Ok(Measured { handoff: None, ..tally.measured() })
    }

    /// Tells all to end.
    pub fn end(self) -> Result<(), String> {
        self.programs.end()
    }
}

fn hops(table: &Table, operation: Operation, bytes: usize, mode: Mode, hosts: usize) -> Option<(f64, bool)> {
    let op: OpKind = operation.name().parse().ok()?;
    let sync = if mode == Mode::AllAll { (In::All, Out::All) } else { (In::My, Out::My) };
    let setting = Setting {
        ranks: RANKS * hosts,
        nodes: true,
        crowded: true,
        many: false,
        sync,
        source: Kind::Shared,
        dest: Kind::Shared,
        in_place: operation == Operation::Broadcast,
        ordered: false,
    };
    let mut shape = table.choose(op, &setting, bytes).shape(op, &setting, bytes);
    let of: Vec<usize> = (0..setting.ranks).map(|r| r / RANKS).collect();
    shape.nodes = Some(Arc::new(Nodes::new(&of)));
    let near = Link { latency: 0.0, overhead: 0.0, gap: 0.0, byte: 0.0 };
    let machine = Machine { near, far: Link { latency: 1.0, ..near }, copy: 0.0, combine: 0.0 };
    // Up a tree, and down again: one at a time.
    let one_way = op.combines() && matches!(shape.flow, Flow::Nodes(..) | Flow::Tree(_) | Flow::Chain(_));
    Some((cost(&shape, &machine)?, !one_way))
}

/// What ranks of one host tell each other: how often one is there, and how often it may go on.
#[repr(C)]
struct Flags {
    there: Line<AtomicU64>,
    _apart: Line<u64>,
    on: Line<AtomicU64>,
}

/// A process of a raw side, until the driver has enough.
pub fn serve(stage: &Stage, options: &SideOptions) -> Result<(), String> {
    let node = std::env::var("PARTAGE_NODE").unwrap_or_default();
    take_cores(&options.hosts, options.hosts.iter().position(|name| *name == node).unwrap_or(0));
    partage::run(|job| -> Result<(), String> {
        let me = job.rank().index();
        let source = interfaces().into_iter().find(|i| !i.is_loopback).map(|i| i.address.to_string());
        // Of the first host, then of the second one.
        let each = job.size() / 2;
        let mut wire = Wire::between(job, job.neighbor(each as i64), source, 8, 1, LONGEST);
        let flags = Everywhere::<Flags>::new(job).map_err(|e| e.to_string())?;
        // SAFETY: atomics, and a word that nobody uses.
        let flags = unsafe { flags.on(Rank((me - me % each) as u32)) };
        let mut barriers = 0;
        let call = |wire: &mut Wire, s: &Sample, _: u64, times: u64| {
            for _ in 0..times {
                barriers += 1;
                let until = |flag: &AtomicU64| {
                    while flag.load(Acquire) < barriers {
                        std::thread::yield_now();
                    }
                };
                match s.rotating {
                    _ if me % each > 0 => {
                        flags.there.0.store(barriers, Release);
                        until(&flags.on.0);
                    }
                    _ if each > 1 => {
                        until(&flags.there.0);
                        wire.send(s.bytes);
                        wire.await_next_with(std::thread::yield_now);
                        flags.on.0.store(barriers, Release);
                    }
                    true if me == 0 => {
                        wire.send(s.bytes);
                        wire.await_next();
                    }
                    true => {
                        wire.await_next();
                        wire.send(s.bytes);
                    }
                    // As many messages, but both at once.
                    false => (0..2).for_each(|_| {
                        wire.send(s.bytes);
                        wire.await_next();
                    }),
                }
            }
            Ok(())
        };
        stage.serve(options.side, me, job.size(), &mut wire, |_, _| Ok(()), call)
    });
    Ok(())
}

/// Gives this process the cores of its host: an equal share of them, or one in turn.
pub fn take_cores(hosts: &[String], host: usize) {
    let cores = topology::allowed_cores();
    let share = (cores.len() / hosts.len().max(1)).max(1);
    let first = host * share % cores.len();
    topology::allow(&cores[first..(first + share).min(cores.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_wait_for_one_another_are_counted() {
        let hops = |table: &str, operation, bytes| hops(&table.parse().unwrap(), operation, bytes, Mode::MyMy, 2);
        // There is one round of data, before which each receiver says that it has entered.
        assert_eq!(hops("any:flat:push", Operation::Exchange, 1024), Some((2.0, true)));
        assert_eq!(hops("any:flat:mail", Operation::AllReduce, 8), Some((1.0, true)));
        assert_eq!(hops("any:leaders:mail", Operation::AllReduce, 8), Some((1.0, true)));
        // Up to the first host, and down again.
        assert_eq!(hops("any:tree2:mail", Operation::AllReduce, 8), Some((2.0, false)));
    }
}
