//! `partage demo`: heat spreads over a plate. One program, the example `heat`, runs as threads, as processes and as a mix of
//! both, and must give, to the last bit, what a serial run gives.

use crate::scratch::Scratch;
use clap::Args;
use heat::{Plate, serial};
use indicatif::{ProgressBar, ProgressStyle};
use partage::prelude::*;
use partage_boot::Spec;
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "../../../examples/heat.rs"]
#[allow(dead_code)]
mod heat;

/// What `demo` takes.
#[derive(Args)]
pub struct Options {
    /// Ranks of each job
    #[arg(short = 'n', long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Rows and columns of the plate
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(16..=8192))]
    size: u16,
    /// Steps of time
    #[arg(long, default_value_t = 2000)]
    steps: u32,
}

/// What a rank of the demo takes.
#[derive(Args)]
pub struct RankOptions {
    name: String,
    size: usize,
    steps: u32,
    result: PathBuf,
}

/// Runs it; 0 if all agree.
pub fn demo(options: Options) -> i32 {
    let (ranks, size, steps) = (usize::from(options.ranks), usize::from(options.size), options.steps);
    out!("Heat on a plate of {size} x {size}, {steps} steps, {ranks} ranks.");
    let begun = Instant::now();
    let bar = progress("serial", steps, true);
    let wanted = serial(size, steps, || bar.inc(1));
    bar.finish_and_clear();
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["mapping", "processes x ranks", "seconds", "result"]);
    let seconds = |t: Duration| format!("{:.2}", t.as_secs_f64());
    table.add_row(["serial", "1", &seconds(begun.elapsed()), "the measure"]);
    let half = ranks.div_ceil(2).min(ranks);
    let (mut good, mut plate) = (true, vec![]);
    for (name, procs) in [("threads", 1), ("processes", ranks), ("hybrid", half)] {
        let shape = match (procs, ranks % procs) {
            (p, 0) => format!("{p} x {}", ranks / p),
            (p, _) => format!("{p} x {}-{}", ranks / p, ranks / p + 1),
        };
        match job(name, ranks, procs, size, steps) {
            Ok((time, result)) => {
                let same = result.iter().map(|v| v.to_bits()).eq(wanted.iter().map(|v| v.to_bits()));
                good &= same;
                table.add_row([name, &shape, &seconds(time), if same { "equal to the last bit" } else { "DIFFERENT" }]);
                plate = result;
            }
            Err(e) => {
                good = false;
                table.add_row([name, &shape, "-", &e]);
            }
        }
    }
    out!("{table}");
    if good {
        picture(&plate, size);
        out!("The same program, three ways: `partage run -n 8 --procs 2 ./your-program` does it with yours.");
    }
    i32::from(!good)
}

/// One job of this program; its time and the plate.
fn job(name: &str, ranks: usize, procs: usize, size: usize, steps: u32) -> Result<(Duration, Vec<f64>), String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let result = Scratch::new()?;
    let mut spec = Spec::new(program, ranks);
    spec.procs = procs;
    spec.args =
        vec!["demo-rank".into(), name.into(), size.to_string().into(), steps.to_string().into(), result.path().into()];
    let begun = Instant::now();
    let ended = partage::launcher::launch(&spec).map_err(|e| e.to_string())?;
    let time = begun.elapsed();
    if ended.code != 0 {
        return Err(ended.why.unwrap_or_else(|| format!("ended with code {}", ended.code)));
    }
    let bytes = result.take()?;
    Ok((time, bytes.chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().expect("eight bytes"))).collect()))
}

/// What each rank does.
pub fn rank(options: RankOptions) -> i32 {
    let RankOptions { name, size, steps, result } = options;
    partage::run(|job| spread(job, &name, size, steps, &result).map_err(|e| e.to_string()));
    0
}

fn spread(job: &Job, name: &str, size: usize, steps: u32, result: &Path) -> Result<(), Box<dyn Error>> {
    let mut plate = Plate::new(job, size)?;
    let bar = progress(name, steps, job.rank() == Rank(0));
    for _ in 0..steps {
        plate.step(job);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if job.rank() == Rank(0) {
        let bytes: Vec<u8> = plate.now.fetch(..).wait().into_iter().flat_map(f64::to_ne_bytes).collect();
        std::fs::write(result, bytes).map_err(|e| format!("cannot write {}: {e}", result.display()))?;
    }
    Ok(())
}

fn progress(name: &str, steps: u32, show: bool) -> ProgressBar {
    if !show {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:>10} {bar:40} {pos}/{len} steps").expect("a fixed template");
    ProgressBar::new(steps.into()).with_style(style).with_message(name.to_string())
}

/// The plate in the terminal: colours where there are some, shades where not.
fn picture(plate: &[f64], size: usize) {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (lines, columns) = (20, 64);
    let most = plate.iter().copied().fold(1e-9, f64::max);
    for y in 0..lines {
        let mut line = String::from("  ");
        for x in 0..columns {
            let (from_r, to_r) = (y * size / lines, ((y + 1) * size / lines).max(y * size / lines + 1));
            let (from_c, to_c) = (x * size / columns, ((x + 1) * size / columns).max(x * size / columns + 1));
            let cells = (from_r..to_r).flat_map(|r| plate[r * size + from_c..r * size + to_c].iter());
            let mean = cells.sum::<f64>() / ((to_r - from_r) * (to_c - from_c)) as f64;
            let heat = (mean / most).clamp(0.0, 1.0).sqrt();
            if colours {
                const SCALE: [u8; 10] = [17, 18, 54, 90, 126, 161, 196, 208, 220, 230];
                line += &format!("\x1b[48;5;{}m ", SCALE[(heat * 9.0) as usize]);
            } else {
                line.push(b" .:-=+*#%@"[(heat * 9.0) as usize] as char);
            }
        }
        out!("{line}{}", if colours { "\x1b[0m" } else { "" });
    }
}
