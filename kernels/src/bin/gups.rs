//! Runs [`gups`](partage_kernels::gups) and prints its score; it fails where the rule says so.

use clap::{Parser, ValueEnum};
use partage::prelude::*;
use partage_kernels::gups::{self, Variant};

/// Random access to a table over all ranks, by the rule of HPCC's RandomAccess
#[derive(Parser)]
#[command(name = "gups")]
struct Options {
    /// The table has 2^N words of 8 bytes
    #[arg(short = 'm', long, value_name = "N", default_value_t = 22, value_parser = clap::value_parser!(u32).range(0..40))]
    log2: u32,
    /// How updates are made
    #[arg(long, value_enum, default_value_t = Which::All)]
    variant: Which,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Which {
    /// A get and a put; 1 % of the words may be wrong
    Plain,
    /// An atomic each
    Atomic,
    /// Atomics that travel together
    Batched,
    /// One after the other
    All,
}

fn main() {
    let Options { log2, variant } = Options::parse();
    let variants = match variant {
        Which::Plain => &[Variant::Plain][..],
        Which::Atomic => &[Variant::Atomic],
        Which::Batched => &[Variant::Batched],
        Which::All => &Variant::ALL,
    };
    partage::run(|job| -> Result<(), String> {
        for &variant in variants {
            let score = gups::run(job, log2, variant).map_err(|e| e.to_string())?;
            if job.rank() == Rank(0) {
                println!("{score}");
            }
            if !score.passes() {
                return Err(format!("{} words of {} are wrong", score.wrong, score.words));
            }
        }
        Ok(())
    });
}
