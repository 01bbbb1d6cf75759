//! `partage bench`: every figure beside its floor, which is the same thing done by hand in the same run.
//!
//! * [`MICRO`], [`MEMORY`], [`AM`], [`network::GROUPS`], [`SIGNAL`]: what is measured, on how many ranks, and what it may be.
//! * [`ranks`], [`memory`], [`atomics`], [`am`], [`network`], [`signal`]: the measurements, as the ranks of a job do them; [`floor`], [`wire`]: the same by hand; [`mod@mpi`]: by MPI, where there is one.
//! * [`coll`]: collectives, measured otherwise: a job and MPIs that live side by side take turns.
//! * [`model`]: what collectives would take on other machines.
//! * [`measure`]: which rounds count, and what is made of them.
//!
//! The driver launches this program again for each figure, as the ranks of a job; rank 0 leaves its result in a file. It
//! does not judge: a figure over its limit is shown as such and is no error.

mod am;
mod atomics;
pub mod coll;
mod floor;
mod locks;
pub mod measure;
mod memory;
mod model;
pub mod mpi;
mod network;
mod ranks;
mod signal;
mod wire;

use crate::scratch::Scratch;
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Measured, Round, Tally};
use partage_boot::{Host, Hosts, Spec};
use partage_conduit::ofi::endpoint::Endpoint;
use partage_conduit::topology;
use ranks::Bench;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What `bench` measures.
#[derive(Subcommand)]
pub enum What {
    /// Puts, gets, barriers, waiting, starting: small things, each beside the same by hand
    ///
    /// One figure is measured only if `--only` names it: `cold_build`, which compiles the library from its sources with
    /// cargo.
    Micro(Options),
    /// Arrays, phases, pointers, allocation, locks, each beside the same by hand
    Memory(Options),
    /// Active messages and calls, each beside raw rings in the same memory
    Am(Options),
    /// Puts, gets and messages between processes that share no memory, each beside libfabric by hand; collectives between hosts
    Network(NetworkOptions),
    /// Data with its notification, one way: put_signal, slots, flags, messages, each beside the same by hand
    Signal(Options),
    /// Collectives, each beside an MPI in turns, and the smallest beside the same by hand
    Collectives(coll::Options),
    /// What collectives would take on more ranks than there are, by a model of few numbers that are measured here or given
    Model(model::Options),
}

/// What every group takes.
#[derive(Args)]
pub struct Options {
    /// Print one JSON object per figure, and nothing else
    #[arg(long)]
    json: bool,
    /// Measure these figures only
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds that count; figures whose rounds take long have fewer
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

/// What `bench network` takes.
#[derive(Args)]
pub struct NetworkOptions {
    #[command(flatten)]
    common: Options,
    #[command(flatten)]
    hosts: network::hosts::HostOptions,
}

/// What `bench-rank` takes.
#[derive(Args)]
pub struct RankOptions {
    /// The figure, or a helper: `empty`, `embedded`, `fabric`, `hog`
    name: String,
    /// Rounds that count
    #[arg(default_value_t = 1)]
    rounds: usize,
    /// Where the result goes
    #[arg(default_value = "/dev/null")]
    out: PathBuf,
}

use Limit::{Ratio, Value};
use Mapping::{Apart, Hybrid, Nodes, OwnCores, Procs, Reference, Registering, Threads};

/// The figures of `bench micro`, in the order in which they are measured.
static MICRO: [Figure; 31] = [
    job("put_8", 2, Procs, "ns", Ratio(1.5), ranks::put_8),
    job("get_8", 2, Procs, "ns", Ratio(1.5), ranks::get_8),
    job("put_64k", 2, Procs, "us", Ratio(1.05), ranks::put::<{ 64 << 10 }>),
    job("put_1m", 2, Procs, "us", Ratio(1.05), ranks::put::<{ 1 << 20 }>),
    job("get_1m", 2, Procs, "us", Ratio(1.05), ranks::get::<{ 1 << 20 }>),
    job("barrier_2", 2, Procs, "ns", Ratio(1.5), ranks::barrier_of_two),
    job("barrier_with_2", 2, Procs, "ns", Limit::None, ranks::barrier_with_value),
    job("barrier_2_threads", 2, Threads, "ns", Ratio(1.5), ranks::barrier_of_two),
    job("barrier_4", 4, Procs, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_4_threads", 4, Threads, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_8", 8, Procs, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_8_threads", 8, Threads, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_16", 16, Procs, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_16_threads", 16, Threads, "us", Ratio(1.3), ranks::barrier_of_many),
    job("barrier_4_cores", 4, OwnCores, "us", Limit::None, ranks::barrier_on_cores),
    job("barrier_8_cores", 8, OwnCores, "us", Limit::None, ranks::barrier_on_cores),
    job("barrier_16_cores", 16, OwnCores, "us", Limit::None, ranks::barrier_on_cores),
    job("team_made_2", 2, Procs, "us", Limit::None, ranks::team_made),
    job("team_made_16", 16, Procs, "us", Ratio(30.0), ranks::team_made),
    job("team_barrier_16", 16, Procs, "us", Ratio(1.1), ranks::team_barrier),
    job("team_gather_all_16", 16, Procs, "us", Ratio(1.1), ranks::team_gather_all),
    job("handoff_parked", 2, Procs, "us", Ratio(1.3), ranks::handoff_parked),
    job("compute_beside_waiters", 16, Procs, "ms", Ratio(1.15), ranks::compute_beside_waiters).most(9),
    job("compute_beside_waiters_threads", 16, Threads, "ms", Ratio(1.15), ranks::compute_beside_waiters).most(9),
    job("handoff_beside_hog", 2, Procs, "us", Ratio(10.0), ranks::handoff_beside_hog).most(9),
    job("idle_cpu_16", 16, Procs, "%", Value(1.0), ranks::idle_cpu).most(3),
    job("idle_memory", 16, Procs, "MiB", Value(1.0), ranks::idle_memory).most(3),
    driver("start_16", Value(0.2), start_16),
    driver("start_16_threads", Value(0.010), |out| embedded(out).map(|(inside, _)| inside)),
    driver("start_16_threads_program", Limit::None, |out| embedded(out).map(|(_, whole)| whole)),
    driver(COLD_BUILD, Value(60.0), cold_build).most(1),
];

/// Those of `bench memory`.
static MEMORY: [Figure; 25] = [
    job("phase_local_loop", 2, Procs, "ns", Ratio(1.02), memory::local_loop),
    job("gptr_get_8", 2, Procs, "ns", Ratio(1.5), ranks::get_8),
    job("gptr_put_8", 2, Procs, "ns", Ratio(1.5), ranks::put_8),
    job("array_get_cyclic", 2, Procs, "ns", Ratio(1.5), memory::get_cyclic),
    job("array_get_cyclic_by_shifts", 2, Procs, "ns", Limit::None, memory::get_cyclic_by_shifts),
    job("phase_enter_exit_2", 2, Procs, "ns", Ratio(2.5), memory::phase),
    job("phase_enter_exit_2_threads", 2, Threads, "ns", Limit::None, memory::phase),
    job("alloc_array_1m", 2, Procs, "ns", Ratio(20.0), memory::alloc_unset),
    job("alloc_array_1m_zeroed", 2, Procs, "ns", Limit::None, memory::alloc_zeroed),
    job("alloc_array_1m_fresh", 2, Procs, "ns", Limit::None, memory::alloc_fresh),
    job("local_alloc_free_64", 2, Procs, "ns", Ratio(2.0), memory::local_alloc_free),
    job("atomic_fetch_add", 2, Procs, "ns", Ratio(1.3), atomics::fetch_add),
    job("atomic_fetch_add_found", 2, Procs, "ns", Limit::None, atomics::find_and_add),
    job("gups_plain_2", 2, Procs, "ns", Ratio(1.15), atomics::gups_plain).most(9),
    job("gups_atomic_2", 2, Procs, "ns", Ratio(1.15), atomics::gups_atomic).most(9),
    job("scope_1000_puts_8", 2, Procs, "ns", Ratio(2.0), atomics::scope_puts),
    job("scope_1000_puts_8_near", 2, Procs, "ns", Limit::None, atomics::scope_puts_near),
    job("lock_uncontended", 2, Procs, "ns", Ratio(3.0), locks::uncontended),
    job("lock_contended_2", 2, Procs, "ns", Limit::None, locks::contended),
    job("lock_contended_16", 16, Procs, "ns", Ratio(3.0), locks::contended).most(9),
    job("lock_least_share_16", 16, Procs, "×", Value(2.0), locks::shares).most(2),
    job("lock_bypass_2", 2, Procs, "ms", Value(2.0), locks::bypass),
    job("lock_bypass_16", 16, Procs, "ms", Limit::None, locks::bypass),
    job("strided_put_512x64", 2, Procs, "ns", Ratio(1.15), memory::strided_put),
    job("strided_put_512x64_array", 2, Procs, "ns", Limit::None, memory::strided_put_array),
];

/// Those of `bench am`.
static AM: [Figure; 20] = [
    job("am_short_rtt", 2, Procs, "ns", Ratio(1.25), am::short_rtt),
    job("am_short_rtt_threads", 2, Threads, "ns", Ratio(0.3), am::short_rtt),
    job("am_short_rtt_hybrid", 4, Hybrid, "ns", Limit::None, am::short_rtt),
    job("am_short_rtt_16", 16, Procs, "ns", Ratio(1.3), am::short_rtt_of_pairs::<1>),
    job("am_thread_safety", 4, Hybrid, "×", Ratio(1.15), am::short_rtt_of_pairs::<2>).against(Procs).most(9),
    job("am_medium_1k_rtt", 2, Procs, "ns", Ratio(2.9), am::medium_rtt::<1024>),
    job("am_medium_64k_rtt", 2, Procs, "ns", Ratio(1.5), am::medium_rtt_by_copies::<{ 64 << 10 }>),
    job("am_medium_rtt_8", 2, Procs, "ns", Limit::None, am::medium_rtt::<8>),
    job("am_medium_rtt_64", 2, Procs, "ns", Limit::None, am::medium_rtt::<64>),
    job("am_medium_rtt_512", 2, Procs, "ns", Limit::None, am::medium_rtt::<512>),
    job("am_medium_rtt_4k", 2, Procs, "ns", Limit::None, am::medium_rtt::<{ 4 << 10 }>),
    job("am_medium_rtt_16k", 2, Procs, "ns", Limit::None, am::medium_rtt::<{ 16 << 10 }>),
    job("am_medium_rtt_64k", 2, Procs, "ns", Limit::None, am::medium_rtt::<{ 64 << 10 }>),
    job("am_long_rtt_1k", 2, Procs, "ns", Limit::None, am::long_rtt::<1024>),
    job("am_long_rtt_64k", 2, Procs, "ns", Limit::None, am::long_rtt::<{ 64 << 10 }>),
    job("am_long_rtt_1m", 2, Procs, "ns", Limit::None, am::long_rtt::<{ 1 << 20 }>),
    job("am_short_stream", 2, Procs, "ns", Ratio(4.0), am::stream::<0>),
    job("am_medium_stream_1k", 2, Procs, "ns", Limit::None, am::stream::<1024>),
    job("am_long_stream_64k", 2, Procs, "ns", Limit::None, am::long_stream::<{ 64 << 10 }>),
    job("rpc_8_rtt", 2, Procs, "ns", Ratio(1.5), am::rpc_rtt),
];

/// Those of `bench signal`.
static SIGNAL: [Figure; 73] = [
    job("sig_1", 2, Procs, "ns", Limit::None, signal::near::<signal::Signaled, 1>),
    job("sig_8", 2, Procs, "ns", Ratio(1.05), signal::near::<signal::Signaled, 8>),
    job("sig_64", 2, Procs, "ns", Ratio(1.05), signal::near::<signal::Signaled, 64>),
    job("sig_512", 2, Procs, "ns", Limit::None, signal::near::<signal::Signaled, 512>),
    job("sig_1k", 2, Procs, "ns", Ratio(1.05), signal::near::<signal::Signaled, 1024>),
    job("sig_4k", 2, Procs, "ns", Limit::None, signal::near::<signal::Signaled, { 4 << 10 }>),
    job("sig_64k", 2, Procs, "ns", Limit::None, signal::near::<signal::Signaled, { 64 << 10 }>),
    job("strict_flag_1", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, 1>),
    job("strict_flag_8", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, 8>),
    job("strict_flag_64", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, 64>),
    job("strict_flag_512", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, 512>),
    job("strict_flag_1k", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, 1024>),
    job("strict_flag_4k", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, { 4 << 10 }>),
    job("strict_flag_64k", 2, Procs, "ns", Limit::None, signal::near::<signal::StrictFlag, { 64 << 10 }>),
    job("flag_1", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, 1>),
    job("flag_8", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, 8>),
    job("flag_64", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, 64>),
    job("flag_512", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, 512>),
    job("flag_1k", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, 1024>),
    job("flag_4k", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, { 4 << 10 }>),
    job("flag_64k", 2, Procs, "ns", Limit::None, signal::near::<signal::Flag, { 64 << 10 }>),
    job("am_1", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, 1>),
    job("am_8", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, 8>),
    job("am_64", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, 64>),
    job("am_512", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, 512>),
    job("am_1k", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, 1024>),
    job("am_4k", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, { 4 << 10 }>),
    job("am_64k", 2, Procs, "ns", Limit::None, signal::near::<signal::Message, { 64 << 10 }>),
    job("sig_8_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Signaled, 8>),
    job("sig_1k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Signaled, 1024>),
    job("sig_64k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Signaled, { 64 << 10 }>),
    job("strict_flag_8_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::StrictFlag, 8>),
    job("strict_flag_1k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::StrictFlag, 1024>),
    job("strict_flag_64k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::StrictFlag, { 64 << 10 }>),
    job("flag_8_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Flag, 8>),
    job("flag_1k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Flag, 1024>),
    job("flag_64k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Flag, { 64 << 10 }>),
    job("am_8_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Message, 8>),
    job("am_1k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Message, 1024>),
    job("am_64k_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Message, { 64 << 10 }>),
    job("sig_8_threads", 2, Threads, "ns", Limit::None, signal::near::<signal::Signaled, 8>),
    job("slots_1", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, 1>),
    job("slots_8", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, 8>),
    job("slots_64", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, 64>),
    job("slots_512", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, 512>),
    job("slots_1k", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, 1024>),
    job("slots_4k", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, { 4 << 10 }>),
    job("slots_64k", 2, Procs, "ns", Limit::None, signal::near::<signal::Slots, { 64 << 10 }>),
    job("slots_8_unread", 2, Procs, "ns", Limit::None, signal::near_unread::<signal::Slots, 8>),
    job("slots_8_threads", 2, Threads, "ns", Limit::None, signal::near::<signal::Slots, 8>),
    job("sig_stream_8", 2, Procs, "ns", Ratio(3.0), signal::stream_8),
    job("sem_stream_8", 2, Procs, "ns", Limit::None, signal::semaphore_stream),
    job("sig_ring_16", 16, Procs, "ns", Ratio(1.3), signal::ring_of_many),
    job("net_sig_8", 2, Apart, "us", Ratio(0.5), signal::far::<signal::Signaled, 8>),
    job("net_slots_8", 2, Apart, "us", Limit::None, signal::far::<signal::Slots, 8>),
    job("net_flag_8", 2, Apart, "us", Limit::None, signal::far::<signal::Flag, 8>),
    job("net_am_8", 2, Apart, "us", Limit::None, signal::far::<signal::Message, 8>),
    job("net_sig_1k", 2, Apart, "us", Limit::None, signal::far::<signal::Signaled, 1024>),
    job("net_flag_1k", 2, Apart, "us", Limit::None, signal::far::<signal::Flag, 1024>),
    job("net_am_1k", 2, Apart, "us", Limit::None, signal::far::<signal::Message, 1024>),
    job("net_sig_64k", 2, Apart, "us", Limit::None, signal::far::<signal::Signaled, { 64 << 10 }>),
    job("net_flag_64k", 2, Apart, "us", Limit::None, signal::far::<signal::Flag, { 64 << 10 }>),
    job("net_am_64k", 2, Apart, "us", Limit::None, signal::far::<signal::Message, { 64 << 10 }>),
    mpi("mpi_send_8_openmpi", &mpi::OPEN_MPI, mpi::Way::Send, 8, true),
    mpi("mpi_send_1k_openmpi", &mpi::OPEN_MPI, mpi::Way::Send, 1024, true),
    mpi("mpi_send_64k_openmpi", &mpi::OPEN_MPI, mpi::Way::Send, 64 << 10, true),
    mpi("mpi_put_flag_8_unread_openmpi", &mpi::OPEN_MPI, mpi::Way::PutFlag, 8, false),
    beside(
        "sig_8_unread_beside_openmpi",
        signal::near_unread::<signal::Signaled, 8>,
        Ratio(0.7),
        &mpi::OPEN_MPI,
        mpi::Way::PutFlag,
        8,
        false,
    ),
    mpi("mpi_send_8_mpich", &mpi::MPICH, mpi::Way::Send, 8, true),
    mpi("mpi_send_1k_mpich", &mpi::MPICH, mpi::Way::Send, 1024, true),
    mpi("mpi_send_64k_mpich", &mpi::MPICH, mpi::Way::Send, 64 << 10, true),
    mpi("mpi_put_flag_8_unread_mpich", &mpi::MPICH, mpi::Way::PutFlag, 8, false),
    beside(
        "sig_8_unread_beside_mpich",
        signal::near_unread::<signal::Signaled, 8>,
        Limit::None,
        &mpi::MPICH,
        mpi::Way::PutFlag,
        8,
        false,
    ),
];

const COLD_BUILD: &str = "cold_build";
/// Rounds of each job where a figure compares jobs.
const ROUNDS_OF_ONE: usize = 3;
/// No measurement takes this long, unless something hangs.
const TIMEOUT: Duration = Duration::from_secs(180);

struct Figure {
    name: &'static str,
    unit: &'static str,
    limit: Limit,
    /// Never more rounds than this.
    most: usize,
    how: How,
}

#[derive(Clone, Copy)]
enum Limit {
    /// On the ratio to the floor.
    Ratio(f64),
    /// On the value.
    Value(f64),
    None,
}

#[derive(Clone, Copy)]
enum How {
    /// By a job whose ranks are bound to cores, round robin; or by two kinds of job, one of them under the mapping
    /// `against`: then the value is the ratio to the floor in the one, and its floor that in the other.
    Job { ranks: usize, mapping: Mapping, against: Option<Mapping>, what: fn(&Bench) -> Measured },
    /// By two processes of an MPI, for so many bytes that the receiver reads or does not; or by such and by a job of two ranks:
    /// then the value is the ratio of the job to its floor, and its floor that of MPI to its own; between nodes, what each takes.
    Mpi {
        library: &'static mpi::Library,
        way: mpi::Way,
        len: usize,
        read: bool,
        beside: Option<fn(&Bench) -> Measured>,
    },
    /// By sides that live on hosts and take turns; needs `--hosts`.
    Hosts(network::hosts::What),
    /// By the driver: the seconds of one round. The path is that of a file it may use.
    Driver(fn(&Scratch) -> Result<f64, String>),
}

impl Mapping {
    /// Do some ranks not map each other's segments?
    fn is_apart(self) -> bool {
        matches!(self, Apart | Reference | Registering | Nodes { .. })
    }
}

/// What the ranks are and where they run.
#[derive(Clone, Copy, PartialEq)]
enum Mapping {
    /// Processes on two cores, however many the machine has.
    Procs,
    /// Threads of one process, on two cores.
    Threads,
    /// Two processes of threads, on two cores.
    Hybrid,
    /// Processes on two cores that do not map each other's segments.
    Apart,
    /// The same with puts, gets and atomics by active messages.
    Reference,
    /// Processes as those, with a network that wants memory registered, which takes [`network::REGISTERING`].
    Registering,
    /// Two nodes on two cores, each with half of so many processes, of which those of one node map each other's segments.
    Nodes { procs: usize },
    /// Processes with a core each; left out where there are fewer cores. No limit: machines differ. (GASNet-EX was seen
    /// to take 1.8 to 2.2 µs for a barrier of 16.)
    OwnCores,
}

const fn job(
    name: &'static str,
    ranks: usize,
    mapping: Mapping,
    unit: &'static str,
    limit: Limit,
    what: fn(&Bench) -> Measured,
) -> Figure {
    Figure { name, unit, limit, most: usize::MAX, how: How::Job { ranks, mapping, against: None, what } }
}

const fn mpi(name: &'static str, library: &'static mpi::Library, way: mpi::Way, len: usize, read: bool) -> Figure {
    let how = How::Mpi { library, way, len, read, beside: None };
    Figure { name, unit: "ns", limit: Limit::None, most: 9, how }
}

/// What a job of two does beside what MPI does.
const fn beside(
    name: &'static str,
    what: fn(&Bench) -> Measured,
    limit: Limit,
    library: &'static mpi::Library,
    way: mpi::Way,
    len: usize,
    read: bool,
) -> Figure {
    let how = How::Mpi { library, way, len, read, beside: Some(what) };
    Figure { name, unit: "×", limit, most: 9, how }
}

const fn driver(name: &'static str, limit: Limit, what: fn(&Scratch) -> Result<f64, String>) -> Figure {
    Figure { name, unit: "s", limit, most: usize::MAX, how: How::Driver(what) }
}

/// All figures.
fn all() -> impl Iterator<Item = &'static Figure> {
    MICRO.iter().chain(&MEMORY).chain(&AM).chain(network::figures()).chain(&SIGNAL)
}

/// Measures and prints; 1 if something could not be measured.
pub fn bench(what: What) -> i32 {
    if matches!(what, What::Network(_))
        && let Err(why) = Endpoint::version()
    {
        eprintln!("partage: {why}");
        return 1;
    }
    let mut hosts = None;
    let (group, options): (Vec<&Figure>, Options) = match what {
        What::Micro(options) => (MICRO.iter().collect(), options),
        What::Memory(options) => (MEMORY.iter().collect(), options),
        What::Am(options) => (AM.iter().collect(), options),
        What::Network(NetworkOptions { common, hosts: over }) => {
            hosts = Some(over).filter(|over| !over.hosts.is_empty());
            let count = hosts.as_ref().map(|over| over.hosts.len());
            let is_there = |f: &&Figure| match f.how {
                How::Hosts(what) => count.is_some_and(|hosts| what.is_between(hosts)),
                _ => count.is_none(),
            };
            (network::figures().filter(is_there).collect(), common)
        }
        What::Signal(options) => (SIGNAL.iter().collect(), options),
        What::Collectives(options) => return coll::bench(&options),
        What::Model(options) => return model::bench(&options),
    };
    let cores = topology::allowed_cores();
    let selected = match options.only.iter().find(|name| hosts.is_none() && network::needs_hosts(name)) {
        Some(name) => Err(format!("{name} needs --hosts")),
        None => select(&group, &options.only, cores.len()),
    };
    let figures = match selected {
        Ok(figures) => figures,
        Err(why) => {
            eprintln!("partage: {why}");
            return 2;
        }
    };
    let mut sides = match hosts.map(|over| network::hosts::Sides::start(&over, &figures)).transpose() {
        Ok(sides) => sides,
        Err(why) => {
            eprintln!("partage: {why}");
            return 2;
        }
    };
    let bar = ProgressBar::new(figures.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template"));
    let (mut results, mut code, before) = (vec![], 0, ticks());
    for figure in figures {
        bar.set_message(figure.name);
        bar.tick();
        let rounds = usize::from(options.rounds).min(figure.most);
        let measured = match (figure.how, &mut sides) {
            (How::Hosts(what), Some(sides)) => sides.measure(what, rounds),
            _ => figure.measure(rounds, &cores),
        };
        match measured {
            Ok(m) => {
                if options.json {
                    out!("{}", figure.json(&m));
                }
                results.push((figure, m));
            }
            Err(why) => {
                bar.suspend(|| eprintln!("partage: {}: {why}", figure.name));
                code = 1;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(Err(why)) = sides.map(network::hosts::Sides::end) {
        eprintln!("partage: {why}");
        code = 1;
    }
    if !options.json {
        out!("{}", table(&results));
    }
    eprintln!("{}", summary(&results));
    say_if_disturbed(before);
    code
}

/// Says so if others have used the cores since.
pub fn say_if_disturbed(before: Option<(i64, i64)>) {
    if let Some(((all, others), (all_now, others_now))) = before.zip(ticks())
        && 30 * (others_now - others) > all_now - all
    {
        let percent = 100 * (others_now - others) / (all_now - all);
        eprintln!("others used {percent} % of the cores meanwhile: measure again when they do not");
    }
}

/// Those of a group that were asked for, or all that this machine can do.
fn select<'f>(group: &[&'f Figure], only: &[String], cores: usize) -> Result<Vec<&'f Figure>, String> {
    if cores < 2 {
        return Err("the benchmark needs two cores".into());
    }
    let fits = |f: &Figure| match f.how {
        How::Job { ranks, mapping: OwnCores, .. } => ranks <= cores,
        How::Mpi { library, .. } => library.is_there(),
        _ => f.name != COLD_BUILD,
    };
    if only.is_empty() {
        return Ok(group.iter().copied().filter(|f| fits(f)).collect());
    }
    let find = |name: &String| group.iter().copied().find(|f| f.name == name).ok_or_else(|| unknown(group, name));
    let found = only.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    match found.iter().find(|f| !fits(f) && f.name != COLD_BUILD) {
        Some(Figure { name, how: How::Mpi { library, .. }, .. }) => {
            Err(format!("{name} needs {}, which is not installed", library.name))
        }
        Some(f) => Err(format!("{} needs more than {cores} cores", f.name)),
        None => Ok(found),
    }
}

fn unknown(group: &[&Figure], name: &str) -> String {
    let names: Vec<&str> = group.iter().map(|f| f.name).collect();
    format!("there is no figure {name}; there are {}", names.join(", "))
}

impl Figure {
    const fn most(mut self, rounds: usize) -> Figure {
        self.most = rounds;
        self
    }

    const fn against(mut self, other: Mapping) -> Figure {
        if let How::Job { against, .. } = &mut self.how {
            *against = Some(other);
        }
        self
    }

    fn measure(&self, rounds: usize, cores: &[usize]) -> Result<Measured, String> {
        let out = Scratch::new()?;
        match self.how {
            How::Hosts(_) => Err("only sides on hosts measure it".into()),
            How::Driver(what) => (0..rounds).map(|_| what(&out)).collect::<Result<_, _>>().map(Measured::absolute),
            How::Job { ranks, mapping, against: None, .. } => self.run(ranks, mapping, rounds, cores, &out),
            How::Mpi { library, way, len, read, beside } => {
                let peer = |rounds| {
                    topology::allow(&cores[..2]);
                    let measured = library.measure(way, len, read, rounds, &out);
                    topology::allow(cores);
                    measured
                };
                let ours = |mapping| self.run(2, mapping, ROUNDS_OF_ONE, cores, &out);
                match beside {
                    None => peer(rounds),
                    Some(_) if way.is_far() => {
                        compare(rounds, |m| Some(m.value), || ours(Apart), || peer(ROUNDS_OF_ONE))
                    }
                    Some(_) => compare(rounds, |m| m.ratio, || ours(Procs), || peer(ROUNDS_OF_ONE)),
                }
            }
            How::Job { ranks, mapping, against: Some(other), .. } => {
                let run = |mapping| self.run(ranks, mapping, ROUNDS_OF_ONE, cores, &out);
                compare(rounds, |m| m.ratio, || run(mapping), || run(other))
            }
        }
    }

    /// What a job of this figure says.
    fn run(
        &self,
        ranks: usize,
        mapping: Mapping,
        rounds: usize,
        cores: &[usize],
        out: &Scratch,
    ) -> Result<Measured, String> {
        let mut spec = this_program(ranks, &[self.name, &rounds.to_string()])?;
        spec.args.push(out.path().into());
        spec.procs = match mapping {
            Threads => 1,
            Hybrid => 2,
            Nodes { procs } => procs,
            Procs | Apart | Reference | Registering | OwnCores => ranks,
        };
        match mapping {
            Apart | Reference | Registering => spec.env.push(("PARTAGE_NODE".into(), "process".into())),
            Nodes { .. } => spec.hosts = Some(two_hosts(&spec)),
            Procs | Threads | Hybrid | OwnCores => (),
        }
        if mapping == Reference {
            spec.env.push(("PARTAGE_REFERENCE".into(), "1".into()));
        }
        if mapping == Registering {
            spec.env.push(("PARTAGE_TEST_DEMANDS".into(), network::REGISTERING.into()));
        }
        spec.env.push(("PARTAGE_BIND".into(), "core".into()));
        // The ranks inherit it.
        topology::allow(&cores[..if mapping == OwnCores { cores.len() } else { 2 }]);
        let ended = launch(&spec);
        topology::allow(cores);
        ended.and_then(|()| out.take_text()).and_then(|line| line.parse())
    }

    fn within(&self, m: &Measured) -> Option<bool> {
        match self.limit {
            Limit::Ratio(limit) => Some(m.ratio? <= limit),
            Limit::Value(limit) => Some(m.value <= limit),
            Limit::None => None,
        }
    }

    fn json(&self, m: &Measured) -> String {
        let number = |x: Option<f64>| x.filter(|x| x.is_finite()).map_or("null".into(), digits);
        let (value, floor, ratio) = (number(Some(m.value)), number(m.floor), number(m.ratio));
        let (name, unit) = (self.name, self.unit);
        format!(r#"{{"name":"{name}","value":{value},"unit":"{unit}","floor":{floor},"ratio":{ratio}}}"#)
    }
}

/// Rounds of other, ours, ours, other, each a job: what counts of them (the ratio to its floor, or the value), and its ratio.
fn compare(
    rounds: usize,
    counts: fn(&Measured) -> Option<f64>,
    ours: impl Fn() -> Result<Measured, String>,
    other: impl Fn() -> Result<Measured, String>,
) -> Result<Measured, String> {
    let mut tally = Tally::default();
    while !tally.is_enough(rounds) {
        let jobs = [other()?, ours()?, ours()?, other()?];
        let mean =
            |a: usize, b: usize, what: fn(&Measured) -> Option<f64>| Some((what(&jobs[a])? + what(&jobs[b])?) / 2.0);
        let of = |what| mean(0, 3, what).zip(mean(1, 2, what)).ok_or("a job without a floor");
        // The hand-off of the ones against that of the others, as before and after.
        let ((before, after), (floor, ours)) = (of(|m| m.handoff)?, of(counts)?);
        tally.push(Round { before, after, ours, floor: Some(floor) });
    }
    Ok(tally.measured())
}

fn table(results: &[(&Figure, Measured)]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["figure", "value", "unit", "floor", "ratio", "limit", "", "rounds"]);
    for (figure, m) in results {
        let some = |x: Option<f64>| x.map_or("–".into(), digits);
        let limit = match figure.limit {
            Limit::Ratio(x) => format!("{x} ×"),
            Limit::Value(x) => format!("{x} {}", figure.unit),
            Limit::None => "–".into(),
        };
        let verdict = figure.within(m).map_or("", |ok| if ok { "ok" } else { "over" });
        let rounds = match (m.kept, m.discarded) {
            (kept, 0) => kept.to_string(),
            (0, _) => "unsteady".into(),
            (kept, discarded) => format!("{kept} (-{discarded})"),
        };
        let (value, floor, ratio) = (digits(m.value), some(m.floor), some(m.ratio));
        table.add_row([figure.name, &value, figure.unit, &floor, &ratio, &limit, verdict, &rounds]);
    }
    for column in [1, 3, 4, 5] {
        table.column_mut(column).into_iter().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    }
    table
}

fn summary(results: &[(&Figure, Measured)]) -> String {
    let sum = |what: fn(&Measured) -> usize| results.iter().map(|(_, m)| what(m)).sum::<usize>();
    let (kept, discarded) = (sum(|m| m.kept), sum(|m| m.discarded));
    let mut text = format!("{kept} rounds count, {discarded} were discarded because the machine changed in them");
    if let Some(ns) = measure::median(results.iter().filter_map(|(_, m)| m.handoff).collect()) {
        text += &format!("; a cache line takes {} ns from core to core", digits(ns));
    }
    text
}

/// Ticks of all cores so far, and how many of them others than this process and its ended children have used.
pub fn ticks() -> Option<(i64, i64)> {
    let numbers = |text: &str| text.split_whitespace().map_while(|n| n.parse().ok()).collect::<Vec<i64>>();
    // User, nice, system, idle, waiting, two kinds of interrupts, stolen.
    let machine = numbers(std::fs::read_to_string("/proc/stat").ok()?.strip_prefix("cpu ")?);
    let all: i64 = machine.get(..8)?.iter().sum();
    let process = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name and the state; the 10th to 13th are user and system time of the process and of its children.
    let ours: i64 = numbers(process.rsplit_once(") ")?.1.get(1..)?).get(10..14)?.iter().sum();
    Some((all, all - machine[3] - machine[4] - ours))
}

/// Four significant digits.
pub fn digits(x: f64) -> String {
    let whole = if x == 0.0 || !x.is_finite() { 0.0 } else { x.abs().log10().floor() };
    let decimals = (3.0 - whole).max(0.0) as usize;
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// This program as a job of `bench-rank`s.
fn this_program(ranks: usize, args: &[&str]) -> Result<Spec, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut spec = Spec::new(program, ranks);
    spec.args = ["bench-rank"].iter().chain(args).map(Into::into).collect();
    spec.timeout = Some(TIMEOUT);
    Ok(spec)
}

/// Two hosts that are both this one: a shell that goes nowhere.
fn two_hosts(spec: &Spec) -> Hosts {
    Hosts {
        list: ["first", "second"].map(Host::new).to_vec(),
        shell: ["sh", "-c", r#"exec "$@""#].map(OsString::from).to_vec(),
        agent: vec![spec.program.clone(), "agent".into()],
    }
}

fn launch(spec: &Spec) -> Result<(), String> {
    match partage::launcher::launch(spec) {
        Ok(ended) if ended.code == 0 => Ok(()),
        Ok(ended) => Err(format!("the job ended with code {}", ended.code)),
        Err(e) => Err(e.to_string()),
    }
}

/// A job of 16 processes that do nothing, from the launch to its end.
fn start_16(_: &Scratch) -> Result<f64, String> {
    let spec = this_program(16, &["empty"])?;
    let start = Instant::now();
    launch(&spec)?;
    Ok(start.elapsed().as_secs_f64())
}

/// A program that starts a job of 16 threads that do nothing: the seconds of that call, and of the whole program.
fn embedded(out: &Scratch) -> Result<(f64, f64), String> {
    let spec = this_program(1, &["embedded", "1"])?;
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).arg(out.path());
    let start = Instant::now();
    let status = command.status().map_err(|e| e.to_string())?;
    let whole = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("the program ended with {status}"));
    }
    let inside: Measured = out.take_text()?.parse()?;
    Ok((inside.value, whole))
}

/// The library and all that it needs, compiled from nothing.
fn cold_build(_: &Scratch) -> Result<f64, String> {
    let target = std::env::temp_dir().join(format!("partage-build-{}", std::process::id()));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = Command::new("cargo");
    cargo.current_dir(sources).args(["build", "--release", "--package", "partage", "--target-dir"]).arg(&target);
    let start = Instant::now();
    let output = cargo.stdin(Stdio::null()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let time = start.elapsed().as_secs_f64();
    let _ = std::fs::remove_dir_all(&target);
    match output.status.success() {
        true => Ok(time),
        false => Err(format!("cargo failed: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// What a process that the driver has started does.
pub fn rank(options: RankOptions) -> i32 {
    let out = &options.out;
    let leave = |m: Measured| std::fs::write(out, m.line()).map_err(|e| format!("{}: {e}", out.display()));
    match options.name.as_str() {
        "hog" => ranks::hog(),
        "empty" => partage::run(|_| ()),
        "fabric" => {
            if let Err(why) = Endpoint::open(&Default::default()) {
                eprintln!("partage: {why}");
                return 1;
            }
        }
        model::RANK => return model::rank(out),
        network::flood::RANK => network::flood::rank(out),
        "embedded" => {
            let start = Instant::now();
            let ended = partage::Launch::new().ranks(16).run(|_| ()).map_err(|e| e.to_string());
            let time = start.elapsed().as_secs_f64();
            if let Err(e) = ended.and_then(|_| leave(Measured::absolute(vec![time]))) {
                eprintln!("partage: {e}");
                return 1;
            }
        }
        name => {
            let (what, mapping) = match all().find(|f| f.name == name).map(|f| f.how) {
                Some(How::Job { what, mapping, .. }) => (what, mapping),
                Some(How::Mpi { beside: Some(what), way, .. }) => (what, if way.is_far() { Apart } else { Procs }),
                _ => {
                    eprintln!("partage: no job measures {name}");
                    return 2;
                }
            };
            partage::run(|job| -> Result<(), String> {
                let result = what(&Bench::new(job, options.rounds, mapping.is_apart()).map_err(|e| e.to_string())?);
                if job.rank() == partage::team::Rank(0) {
                    leave(result)?;
                }
                Ok(())
            });
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_can_be_chosen() {
        let names = |group: &'static [Figure], only: &[&str], cores| {
            let only: Vec<String> = only.iter().map(|n| n.to_string()).collect();
            select(&group.iter().collect::<Vec<_>>(), &only, cores)
                .map(|f| f.iter().map(|f| f.name).collect::<Vec<_>>())
        };
        let all = names(&MICRO, &[], 2).unwrap();
        assert!(all.contains(&"put_8") && !all.contains(&COLD_BUILD) && !all.contains(&"barrier_4_cores"));
        assert!(names(&MICRO, &[], 8).unwrap().contains(&"barrier_8_cores"));
        assert_eq!(names(&MICRO, &[COLD_BUILD, "put_8"], 2).unwrap(), [COLD_BUILD, "put_8"]);
        assert!(names(&MICRO, &["barrier_4_cores"], 2).is_err() && names(&MICRO, &[], 1).is_err());
        assert_eq!(names(&AM, &[], 2).unwrap().len(), AM.len());
        assert!(names(&AM, &["put_8"], 2).is_err_and(|why| why.contains("there are am_short_rtt, ")));
    }

    #[test]
    fn figures_have_names_of_their_own() {
        let mut names: Vec<&str> = all().map(|f| f.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn jobs_are_compared_by_their_ratios() {
        let job = |ratio| Ok(Measured { ratio: Some(ratio), handoff: Some(70.0), ..Measured::absolute(vec![1.0]) });
        let m = compare(3, |m| m.ratio, || job(1.5), || job(1.2)).unwrap();
        assert_eq!((m.value, m.floor, m.ratio, m.kept), (1.5, Some(1.2), Some(1.25), 3));
        assert!(compare(3, |m| m.ratio, || Ok(Measured::absolute(vec![1.0])), || job(1.0)).is_err());
        let job = |value| Ok(Measured { handoff: Some(70.0), ..Measured::absolute(vec![value]) });
        assert_eq!(compare(3, |m| Some(m.value), || job(3.0), || job(2.0)).unwrap().ratio, Some(1.5));
    }

    #[test]
    fn figures_are_printed_in_four_digits() {
        let text = [0.0, 0.0031416, 1.0, 9.99996, 74.25, 12345.6].map(digits);
        assert_eq!(text, ["0", "0.003142", "1", "10", "74.25", "12346"]);
        let m = Measured { floor: Some(2.0), ratio: Some(1.5), ..Measured::absolute(vec![3.0]) };
        assert_eq!(MICRO[0].json(&m), r#"{"name":"put_8","value":3,"unit":"ns","floor":2,"ratio":1.5}"#);
        assert_eq!(MICRO[0].within(&m), Some(true));
        let m = Measured::absolute(vec![3.0]);
        assert_eq!(MICRO[0].json(&m), r#"{"name":"put_8","value":3,"unit":"ns","floor":null,"ratio":null}"#);
    }
}
