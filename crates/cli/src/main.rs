//! The `partage` command: start jobs, see the machine, try it out, measure it.

/// A line on standard output; if nobody reads it any more, the program ends.
macro_rules! out {
    ($($text:tt)*) => {{
        use std::io::Write;
        if writeln!(std::io::stdout(), $($text)*).is_err() {
            std::process::exit(1);
        }
    }};
}

mod bench;
mod demo;
mod info;
mod run;
mod scratch;
mod tune;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "partage", version, about = "A partitioned global address space for Rust")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Start a program as a job of ranks
    Run(run::Options),
    /// Run one program as threads, as processes and as a mix, and compare with a serial run
    Demo(demo::Options),
    /// Show the machine, the conduits and every setting
    Info(info::Options),
    /// Find out which algorithms of collectives are best on this machine, for the jobs to come
    Tune(tune::Options),
    /// Measure, each figure beside its floor in the same run
    #[command(subcommand)]
    Bench(bench::What),
    /// What `run --hosts` starts on each host
    #[command(hide = true)]
    Agent,
    /// A rank of the demo
    #[command(hide = true)]
    DemoRank(demo::RankOptions),
    /// A rank of a benchmark
    #[command(hide = true)]
    BenchRank(bench::RankOptions),
    /// One of the two processes that MPI's launcher starts for a benchmark
    #[command(hide = true)]
    BenchMpi(bench::mpi::Options),
    /// A rank of one side of `bench collectives`
    #[command(hide = true)]
    BenchSide(bench::coll::SideOptions),
}

/// What was asked for. Understanding it takes more stack, in debug builds, than a user may have set.
fn asked() -> What {
    let parsed = std::thread::Builder::new().stack_size(4 << 20).spawn(Command::parse).map(|thread| thread.join());
    match parsed {
        Ok(Ok(command)) => command.what,
        // There is no other thread to be had.
        _ => Command::parse().what,
    }
}

fn main() -> ExitCode {
    let code = match asked() {
        What::Run(options) => run::run(options),
        What::Demo(options) => demo::demo(options),
        What::Info(options) => info::info(&options),
        What::Tune(options) => tune::tune(&options),
        What::Bench(what) => bench::bench(what),
        What::Agent => partage::launcher::agent(),
        What::DemoRank(options) => demo::rank(options),
        What::BenchRank(options) => bench::rank(options),
        What::BenchMpi(options) => bench::mpi::rank(&options),
        What::BenchSide(options) => bench::coll::side(&options),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
