//! Runs the [study] and prints what it finds; it fails where a result is wrong.

use clap::{Parser, ValueEnum};
use partage::prelude::*;
use partage_kernels::stencil::Grid;
use partage_kernels::study::{self, Amount};

/// What it costs to know that values have come: by barriers, by flags, by signals
#[derive(Parser)]
#[command(name = "study")]
struct Options {
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    part: Vec<Part>,
    /// Dimensions of the grid: 9 points in 2, 27 in 3
    #[arg(long, value_name = "D", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    dims: u8,
    /// Points of a side of the grid [default: 1024, and 128 in 3 dimensions]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    grid: Option<u32>,
    /// Rounds that count; of conjugate gradients a fifth
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Products, broadcasts or sums of each variant in a round
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// Iterations of conjugate gradients
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    iterations: u16,
    /// Trees of 1, 2, 4 … N doubles
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    doubles: u32,
    /// Print one JSON object per row, and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// A sparse matrix times a vector
    Products,
    /// Conjugate gradients
    Cg,
    /// Broadcast and all-reduce
    Trees,
}

impl Part {
    const ALL: [Part; 3] = [Part::Products, Part::Cg, Part::Trees];
}

fn main() {
    let options = Options::parse();
    let side = options.grid.unwrap_or(if options.dims == 2 { 1024 } else { 128 }) as usize;
    let grid = if options.dims == 2 { Grid::square(side) } else { Grid::cube(side) };
    let amount = Amount { rounds: options.rounds.into(), steps: options.steps.into() };
    partage::run(|job| -> Result<(), String> {
        let failed = |e: partage::Error| e.to_string();
        let print = |json: String, plain: String| {
            if job.rank() == Rank(0) {
                println!("{}", if options.json { json } else { plain + "\n" });
            }
        };
        for part in Part::ALL.into_iter().filter(|part| options.part.contains(part)) {
            match part {
                Part::Products => {
                    let report = study::products(job, grid, amount).map_err(failed)?;
                    print(report.json(), report.to_string());
                    right(report.wrong == 0, "products are not those of one rank")?;
                }
                Part::Cg => {
                    let (rounds, iterations) = (amount.rounds.div_ceil(5), options.iterations.into());
                    let report = study::solutions(job, grid, rounds, iterations).map_err(failed)?;
                    print(report.json(), report.to_string());
                    right(report.passes(), "solutions are not those of one rank")?;
                }
                Part::Trees => {
                    let report = study::trees(job, options.doubles as usize, amount).map_err(failed)?;
                    print(report.json(), report.to_string());
                    right(report.wrong == 0, "broadcasts or sums are not what they should be")?;
                }
            }
        }
        Ok(())
    });
}

fn right(is: bool, otherwise: &str) -> Result<(), String> {
    if is { Ok(()) } else { Err(otherwise.into()) }
}
