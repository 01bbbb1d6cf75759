//! `partage demo`: heat spreads over a plate. One program runs as threads, as processes and as a mix of both, and must
//! give, to the last bit, what a serial run gives.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use partage::prelude::*;
use partage_boot::Spec;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    let wanted = serial(size, steps);
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
    let file = std::env::temp_dir().join(format!("partage-demo-{}-{name}", std::process::id()));
    let mut spec = Spec::new(program, ranks);
    spec.procs = procs;
    spec.args =
        vec!["demo-rank".into(), name.into(), size.to_string().into(), steps.to_string().into(), (&file).into()];
    let begun = Instant::now();
    let ended = partage::launcher::launch(&spec).map_err(|e| e.to_string())?;
    let time = begun.elapsed();
    let bytes = std::fs::read(&file);
    let _ = std::fs::remove_file(&file);
    if ended.code != 0 {
        return Err(ended.why.unwrap_or_else(|| format!("ended with code {}", ended.code)));
    }
    let bytes = bytes.map_err(|e| format!("no result: {e}"))?;
    Ok((time, bytes.chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().expect("eight bytes"))).collect()))
}

/// What each rank does.
pub fn rank(options: RankOptions) -> i32 {
    partage::run(|job| heat(job, &options.name, options.size, options.steps, &options.result));
    0
}

/// Rows are dealt out in blocks. Each step a rank puts its first and last row into its neighbours' halos, meets all
/// others, and computes. The halos of even and odd steps lie apart, so that one barrier a step is enough.
fn heat(job: &Job, name: &str, size: usize, steps: u32, result: &Path) -> Result<(), String> {
    let error = |e: partage::Error| e.to_string();
    let (me, n) = (job.rank().index(), job.size());
    let first = |rank: usize| rank * size / n;
    let rows = first(me + 1) - first(me);
    let (mut old, mut new) = (vec![0.0; rows * size], vec![0.0; rows * size]);
    (0..rows).for_each(|r| start_row(first(me) + r, size, &mut old[r * size..][..size]));

    let halo = job.alloc_all::<f64>(4 * size).map_err(error)?;
    // The nearest ranks that have rows; with more ranks than rows some have none.
    let up = (0..me).rev().find(|&r| first(r) < first(r + 1)).filter(|_| rows > 0);
    let down = (me + 1..n).find(|&r| first(r) < first(r + 1)).filter(|_| rows > 0);
    let (mut above, mut below) = (vec![0.0; size], vec![0.0; size]);
    let bar = progress(name, steps, me == 0);
    for step in 0..steps {
        let side = |s: usize| halo.add((2 * (step as usize % 2) + s) * size);
        if let Some(up) = up {
            side(1).on(Rank(up as u32)).put_slice(job, &old[..size]);
        }
        if let Some(down) = down {
            side(0).on(Rank(down as u32)).put_slice(job, &old[(rows - 1) * size..]);
        }
        job.barrier_with(step.into());
        side(0).get_slice(job, &mut above);
        side(1).get_slice(job, &mut below);
        for r in 0..rows {
            let row = |r: usize| &old[r * size..][..size];
            let over = if r > 0 { Some(row(r - 1)) } else { up.map(|_| &above[..]) };
            let under = if r + 1 < rows { Some(row(r + 1)) } else { down.map(|_| &below[..]) };
            relax(&mut new[r * size..][..size], over, row(r), under);
        }
        std::mem::swap(&mut old, &mut new);
        bar.inc(1);
    }
    bar.finish_and_clear();

    // Rank 0 has room for the plate and tells everybody where; each puts its rows there.
    let told = job.alloc_all::<GlobalPtr<f64>>(1).map_err(error)?;
    if me == 0 {
        let plate = job.alloc_slice::<f64>(size * size).map_err(error)?;
        job.ranks().for_each(|r| told.on(r).put(job, plate));
    }
    job.barrier();
    told.get(job).add(first(me) * size).put_slice(job, &old);
    job.barrier();
    if me == 0 {
        let mut plate = vec![0.0; size * size];
        told.get(job).get_slice(job, &mut plate);
        let bytes: Vec<u8> = plate.iter().flat_map(|v| v.to_ne_bytes()).collect();
        std::fs::write(result, bytes).map_err(|e| format!("cannot write {}: {e}", result.display()))?;
    }
    Ok(())
}

fn serial(size: usize, steps: u32) -> Vec<f64> {
    let (mut old, mut new) = (vec![0.0; size * size], vec![0.0; size * size]);
    (0..size).for_each(|r| start_row(r, size, &mut old[r * size..][..size]));
    let bar = progress("serial", steps, true);
    for _ in 0..steps {
        for r in 0..size {
            let row = |r: usize| &old[r * size..][..size];
            let over = (r > 0).then(|| row(r - 1));
            let under = (r + 1 < size).then(|| row(r + 1));
            relax(&mut new[r * size..][..size], over, row(r), under);
        }
        std::mem::swap(&mut old, &mut new);
        bar.inc(1);
    }
    bar.finish_and_clear();
    old
}

/// A row of the next step; the border of the plate keeps its heat.
fn relax(new: &mut [f64], over: Option<&[f64]>, row: &[f64], under: Option<&[f64]>) {
    new.copy_from_slice(row);
    let (Some(over), Some(under)) = (over, under) else { return };
    for j in 1..row.len() - 1 {
        new[j] = 0.25 * (over[j] + under[j] + row[j - 1] + row[j + 1]);
    }
}

/// A hot upper edge, a warm left one, and two hot discs.
fn start_row(r: usize, size: usize, row: &mut [f64]) {
    for (c, v) in row.iter_mut().enumerate() {
        let near = |y: f64, x: f64, radius: f64| {
            let s = size as f64;
            (r as f64 / s - y).hypot(c as f64 / s - x) < radius
        };
        *v = match (r, c) {
            (0, _) => 100.0,
            (_, 0) => 60.0,
            _ if near(0.7, 0.65, 0.13) || near(0.55, 0.3, 0.07) => 100.0,
            _ => 0.0,
        };
    }
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
