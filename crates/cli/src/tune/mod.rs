//! `partage tune`: which algorithms of collectives are best on this machine, as a profile that later jobs take.
//!
//! * [`cells`]: what is measured: which calls, with which candidates.
//! * [`judge`]: who wins, and which rules the winners make. Arithmetic only.
//! * [`work`]: what has been found out so far, in a file, so that a run that was interrupted goes on.
//!
//! A *cell* is an operation, a situation of the ranks, a sync mode, a kind of buffers and a length: what a rule of the table
//! can tell apart. All its candidates are measured in turns, in jobs that live side by side; those that are hopeless drop out early. The
//! best of those that are nowhere worse than the built-in one then meets the one that is in force, in new rounds, for the best of many is always flattered. It takes over if it is
//! better by more than noise, in most rounds, and nowhere worse. Nothing is kept that the built-in one is faster than, on the whole, or anywhere by more than noise: then that one is taken. So
//! the outcome is the built-in one, or better.
//!
//! *Anywhere* is each number of ranks, with data that are left alone, and with data that their owners write before each call and read after it, as programs do; and, where there is a root, with one that stays the same.
//! What stays in the cache of whoever copied it last flatters him: of blocks that are left alone one rank that copies them all would win. Between two ranks, roots that change flatter who waits for the root. Ranks are
//! processes of one node, each bound to a core.

pub mod cells;
mod judge;
mod work;

use crate::bench::coll::cells::{Operation, size};
use crate::bench::coll::sampler::{Fit, Sampler, Samples, What};
use crate::bench::coll::stage::MOST_RANKS;
use crate::bench::{digits, say_if_disturbed, ticks};
use cells::{Cell, LENGTHS, algorithms, names};
use clap::Args;
use comfy_table::{CellAlignment, presets};
use indicatif::{ProgressBar, ProgressStyle};
use judge::{Outcome, beats, cost, medians, no_worse};
use partage::coll::Table;
use partage::profile::{self, Made, Profile};
use partage_conduit::topology;
use partage_plan::coll::FEW;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use work::Work;

/// What `tune` takes.
#[derive(Args)]
pub struct Options {
    /// Stop after so many minutes with what there is; another run goes on from there
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = minutes)]
    minutes: f64,
    /// Shorter samples: half the time, twice the noise
    #[arg(long)]
    quick: bool,
    /// Forget what a run that was interrupted has measured
    #[arg(long)]
    fresh: bool,
    /// Tune these operations only; a profile keeps its rules for the others
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = operation)]
    operations: Vec<Operation>,
    /// Numbers of ranks; those that no rule can tell apart are judged together [default: 2, 4, the cores, twice the cores]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=MOST_RANKS as u64))]
    ranks: Vec<u64>,
    /// Bytes of a block; each stands for lengths that are nearer to it than to another one [default: 8 to 1m]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = size)]
    bytes: Vec<usize>,
    /// The profile to write [default: the one that jobs read]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rules that are in force at first, before the built-in ones
    #[arg(long, value_name = "TABLE")]
    from: Option<Table>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let n = text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 1e4);
    n.ok_or_else(|| "give minutes, such as 3 or 0.5".into())
}

fn operation(text: &str) -> Result<Operation, String> {
    let found = Operation::ALL.into_iter().find(|o| o.name() == text);
    found.ok_or_else(|| format!("the operations are {}", Operation::ALL.map(Operation::name).join(", ")))
}

/// A sample takes about so long, in microseconds.
const WINDOW: f64 = 2000.0;
/// Of what a candidate is measured with: are data touched, and does the root change? (The last one only where there is a root.)
const CONDITIONS: [(bool, bool); 3] = [(false, true), (true, true), (true, false)];
/// Rounds in which all candidates take part.
const ROUNDS: usize = 3;
/// Rounds of the last ones: at least, and at most.
const FINALS: (usize, usize) = (5, 11);
/// Candidates that are so many times slower than the best drop out: after a first look, and after a round.
const HOPELESS: [f64; 2] = [3.0, 1.3];
/// Blocks of one cell take this part of the memory at most.
const PART_OF_MEMORY: u64 = 4;
/// Jobs run as if nobody had set what makes calls take longer or shorter: a profile is for all jobs to come.
const PLAIN: [(&str, Option<&str>); 11] = [
    ("PARTAGE_CHECK", Some("0")),
    ("PARTAGE_TIMEOUT", None),
    ("PARTAGE_HANG_AFTER", None),
    ("PARTAGE_SEGMENT", None),
    ("PARTAGE_HUGE", None),
    ("PARTAGE_WAIT", None),
    ("PARTAGE_RSEQ", None),
    ("PARTAGE_RADIX", None),
    ("PARTAGE_FENCES", None),
    ("PARTAGE_REFERENCE", None),
    ("PARTAGE_NODE", None),
];

/// Tunes, writes the profile and says what has changed.
pub fn tune(options: &Options) -> i32 {
    let before = ticks();
    let done = Tuner::new(options).and_then(|mut tuner| {
        let finished = tuner.run()?;
        tuner.report(finished)
    });
    match done {
        Ok(()) => {
            say_if_disturbed(before);
            0
        }
        Err(why) => {
            eprintln!("partage: tune: {why}");
            1
        }
    }
}

struct Tuner {
    output: PathBuf,
    made: Made,
    cells: Vec<Cell>,
    /// The table in force.
    from: Table,
    work: Work,
    cores: usize,
    window: f64,
    deadline: Instant,
}

impl Tuner {
    fn new(options: &Options) -> Result<Tuner, String> {
        let nowhere = "there is no place for a profile: set PARTAGE_PROFILE to a file, or give --output";
        let output = options.output.clone().or_else(profile::path).ok_or(nowhere)?;
        if output.is_dir() {
            return Err(format!("{} is a directory", output.display()));
        }
        file_name(&output)?;
        let quota = topology::cpu_quota().map_or(usize::MAX, |q| q.floor().max(1.0) as usize);
        let cores = topology::allowed_cores().len().min(quota);
        let mut ranks: Vec<usize> = options.ranks.iter().map(|&n| n as usize).collect();
        if ranks.is_empty() {
            ranks = vec![2, FEW, cores.clamp(2, MOST_RANKS), (2 * cores).clamp(4, MOST_RANKS)];
        }
        let lengths = if options.bytes.is_empty() { LENGTHS.to_vec() } else { options.bytes.clone() };
        let operations =
            if options.operations.is_empty() { Operation::ALL.to_vec() } else { options.operations.clone() };
        let situations = cells::situations(&ranks, cores);
        let most = topology::memory_left() / PART_OF_MEMORY;
        let mut cells = cells::all(&situations, &operations, &lengths);
        let all = cells.len();
        cells.retain(|cell| cell.memory() <= most);
        if cells.is_empty() {
            return Err("every cell needs more than a quarter of the memory; give fewer --ranks or --bytes".into());
        }
        if cells.len() < all {
            eprintln!(
                "partage: tune: {} of {all} cells need more than a quarter of the memory: left out",
                all - cells.len()
            );
        }
        let made = Made::now();
        let from = options.from.clone().unwrap_or(Table::empty()).over(Table::default());
        let how = (cfg!(debug_assertions), options.quick, cores);
        let key = format!("{} {} {} {} {how:?} {ranks:?} {from}", made.version, made.table, made.processor, made.cores);
        let work = Work::open(&output, &key, options.fresh)?;
        let count = cells.iter().filter(|cell| work.find(cell).is_some()).count();
        if count > 0 {
            eprintln!(
                "partage: tune: {count} of {} cells were measured before; --fresh measures them again",
                cells.len()
            );
        }
        if cfg!(debug_assertions) {
            eprintln!("partage: tune: this build is not optimised, and its profile is not good for release builds");
        }
        let window = if options.quick { WINDOW / 2.0 } else { WINDOW };
        let deadline = Instant::now() + Duration::from_secs_f64(60.0 * options.minutes);
        Ok(Tuner { output, made, cells, from, work, cores, window, deadline })
    }

    /// Measures what is left; false if the time is over before.
    fn run(&mut self) -> Result<bool, String> {
        let todo: Vec<Cell> = self.cells.iter().filter(|cell| self.work.find(cell).is_none()).cloned().collect();
        let bar = ProgressBar::new(self.cells.len() as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} to go");
        bar.set_style(style.expect("a valid template"));
        bar.set_position((self.cells.len() - todo.len()) as u64);
        let mut left = todo.len();
        for group in todo.chunk_by(|a, b| a.situation == b.situation) {
            let situation = &group[0].situation;
            // Every name that a cell may need.
            let tables = [&self.from, &Table::default()];
            let names = names(group, &tables);
            let mut sampler = Sampler::start(&situation.ranks, self.cores, self.window, &names, &PLAIN)?;
            for cell in group {
                let now = Instant::now();
                if now >= self.deadline {
                    bar.finish_and_clear();
                    return sampler.end().map(|()| false);
                }
                if bar.is_hidden() && self.work.is_first(cell) {
                    eprintln!("partage: tune: {}", cell.head());
                }
                bar.set_message(format!("{} {}", cell.head(), cell.bytes));
                bar.tick();
                let outcome = contest(&mut sampler, &self.from, cell, &names, (self.deadline - now) / left as u32)?;
                self.work.push(outcome)?;
                left -= 1;
                bar.inc(1);
            }
            sampler.end()?;
        }
        bar.finish_and_clear();
        Ok(true)
    }

    /// Writes the profile, and says what is new in it.
    fn report(&mut self, finished: bool) -> Result<(), String> {
        let outcomes: Vec<&Outcome> = self.cells.iter().filter_map(|cell| self.work.find(cell)).collect();
        if outcomes.is_empty() {
            return Err("the time was over before anything was measured; give more --minutes".into());
        }
        let mut rules: Vec<(String, String)> = vec![];
        for one in outcomes.chunk_by(|a, b| a.head == b.head) {
            rules.extend(judge::rules(one));
        }
        rules.extend(kept(&self.output, &self.made, &outcomes));
        write(&self.output, &Profile::text(&self.made, &rules))?;
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY);
        table.set_header(["cell", "bytes", "built-in", "µs", "tuned", "µs", "ratio"]);
        let new: Vec<_> = outcomes.iter().filter(|o| o.chosen != o.built_in).collect();
        for o in &new {
            let (was, now, ratio) = (digits(o.built_in_us), digits(o.chosen_us), format!("{:.2}", o.ratio));
            table.add_row([&o.head, &o.bytes.to_string(), &o.built_in, &was, &o.chosen, &now, &ratio]);
        }
        for column in [1, 3, 5, 6] {
            table.column_mut(column).into_iter().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        }
        if !new.is_empty() {
            out!("{table}");
        }
        let worst = outcomes.iter().map(|o| o.ratio).fold(0.0, f64::max);
        let (count, all) = (new.len(), self.cells.len());
        out!(
            "{count} of {} cells have another algorithm than the built-in one; the worst takes {worst:.2} of its time",
            outcomes.len()
        );
        out!("{}: {} entries; `partage info` shows what is in force", self.output.display(), rules.len());
        if finished {
            self.work.finish(&self.cells)?;
        } else {
            let left = all - outcomes.len();
            eprintln!(
                "partage: tune: the time was over before {left} of {all} cells; `partage tune` goes on with them"
            );
        }
        Ok(())
    }
}

/// Who wins a cell, if a table is in force. It takes about so much time.
fn contest(
    sampler: &mut impl Samples,
    from: &Table,
    cell: &Cell,
    names: &[String],
    time: Duration,
) -> Result<Outcome, String> {
    let start = Instant::now();
    let [incumbent, built_in] = [from, &Table::default()].map(|table| cell.choice(table).to_string());
    let Cell { operation, bytes, mode, private, .. } = *cell;
    let mut field: Vec<Candidate> = vec![];
    for algorithm in algorithms(cell, &[from, &Table::default()]) {
        let name = algorithm.to_string();
        let number = names.iter().position(|n| *n == name).ok_or("an algorithm that no job knows")?;
        let what = |(touched, rotating)| What { operation, bytes, mode, private, touched, rotating, algorithm: number };
        let first = what(CONDITIONS[0]);
        let (fit, times) = sampler.fit(&first)?;
        let samples = vec![(first, fit)];
        field.push(Candidate { stays: name == incumbent || name == built_in, name, samples, rounds: vec![times] });
    }
    drop_hopeless(&mut field, HOPELESS[0]);
    let conditions = if operation.is_rooted() { &CONDITIONS[..] } else { &CONDITIONS[..2] };
    for c in &mut field {
        for &(touched, rotating) in &conditions[1..] {
            let what = What { touched, rotating, ..c.samples[0].0 };
            let (fit, _) = sampler.fit(&what)?;
            c.samples.push((what, fit));
        }
        c.rounds.clear();
    }
    for round in 0..ROUNDS {
        take_turns(sampler, &mut field, round % 2 == 1)?;
        drop_hopeless(&mut field, HOPELESS[1]);
    }
    let find = |field: &[Candidate], name: &str| field.iter().position(|c| c.name == name).expect("it stays");
    let reference = &field[find(&field, &built_in)];
    let fair = field.iter().filter(|c| no_worse(&c.rounds, &reference.rounds));
    let best = fair.min_by(|a, b| cost(&medians(&a.rounds)).total_cmp(&cost(&medians(&b.rounds))));
    let best = best.map_or(built_in.clone(), |c| c.name.clone());
    field.retain(|c| c.stays || c.name == best);
    field.iter_mut().for_each(|c| c.rounds.clear());
    for round in 0..FINALS.1 {
        if round >= FINALS.0 && start.elapsed() > time || field.len() == 1 && round > 0 {
            break;
        }
        take_turns(sampler, &mut field, round % 2 == 1)?;
    }
    let [old, new, reference] = [&incumbent, &best, &built_in].map(|name| &field[find(&field, name)]);
    let takes_over = Some(new).filter(|new| beats(&new.rounds, &old.rounds));
    let is_kept =
        |c: &&Candidate| judge::ratio(&c.rounds, &reference.rounds) <= 1.0 && no_worse(&c.rounds, &reference.rounds);
    let chosen = takes_over.into_iter().chain([old]).find(is_kept).unwrap_or(reference);
    Ok(Outcome {
        head: cell.head(),
        bytes,
        built_in,
        built_in_us: cost(&medians(&reference.rounds)),
        chosen: chosen.name.clone(),
        chosen_us: cost(&medians(&chosen.rounds)),
        ratio: judge::ratio(&chosen.rounds, &reference.rounds),
    })
}

/// One algorithm in a cell.
struct Candidate {
    name: String,
    /// It is in force, or the built-in one: it takes part to the end.
    stays: bool,
    /// What is measured: see [`CONDITIONS`].
    samples: Vec<(What, Fit)>,
    /// By round, then by sample and job.
    rounds: Vec<Vec<f64>>,
}

/// One round of all, in order or backwards.
fn take_turns(sampler: &mut impl Samples, field: &mut [Candidate], backwards: bool) -> Result<(), String> {
    let n = field.len();
    for i in 0..n {
        let c = &mut field[if backwards { n - 1 - i } else { i }];
        let mut times = vec![];
        for (what, fit) in &c.samples {
            times.extend(sampler.take(what, fit)?);
        }
        c.rounds.push(times);
    }
    Ok(())
}

fn drop_hopeless(field: &mut Vec<Candidate>, times: f64) {
    let cost_of = |c: &Candidate| cost(&medians(&c.rounds));
    let best = field.iter().map(cost_of).fold(f64::INFINITY, f64::min);
    field.retain(|c| c.stays || cost_of(c) <= times * best);
}

/// The rules of a profile that is there already, for what was not measured now: other calls, and lengths
/// that no measured one stands for.
fn kept(path: &Path, made: &Made, measured: &[&Outcome]) -> Vec<(String, String)> {
    let old = std::fs::read_to_string(path).ok().and_then(|text| Profile::parse(&text).ok());
    let Some(old) = old.filter(|old| old.made.differs(made).is_none()) else { return vec![] };
    let rest = |entry: String| {
        let head = entry.split(':').next().unwrap_or_default();
        let cells: Vec<&Outcome> = measured.iter().copied().filter(|o| o.head == head).collect();
        if cells.is_empty() { Some(entry) } else { judge::rest(&entry, &cells) }
    };
    let entries = old.table.entries().filter_map(rest);
    entries.map(|entry| (entry, format!("of {}", old.made.date))).collect()
}

/// What comes last, if that is a name and not a slash or a dot.
fn file_name(path: &Path) -> Result<&OsStr, String> {
    let ends_so = |name: &&OsStr| path.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes());
    path.file_name().filter(ends_so).ok_or_else(|| format!("{} is no name of a file", path.display()))
}

/// The file is the old one or the new one, whatever happens.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let name = file_name(path)?;
    let new = path.with_file_name(format!("{}.{}", name.to_string_lossy(), std::process::id()));
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // Whether it is there or not, the error is what matters.
        let _ = std::fs::remove_file(&new);
    }
    written.map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which each algorithm has a time of its own in each cell, seen through noise.
    struct Imagined {
        jobs: usize,
        names: Vec<String>,
        seed: u64,
    }

    impl Imagined {
        /// From 1 to 3 µs, and up to a fifth more where the conditions are others.
        fn time(&self, what: &What) -> f64 {
            let What { operation, bytes, mode, private, touched, rotating, algorithm } = what;
            let cell = format!("{} {operation:?} {bytes} {mode:?} {private}", self.names[*algorithm]);
            let random = |text: &str| {
                let hash = text.bytes().fold(7u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1);
                (hash >> 20) as f64 % 1000.0 / 1000.0
            };
            (1.0 + 2.0 * random(&cell)) * (1.0 + 0.2 * random(&format!("{cell} {touched} {rotating}")))
        }

        /// Of 4 % at most, and now and then of much more.
        fn noise(&mut self) -> f64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (self.seed >> 40) as f64 / (1 << 24) as f64;
            if random < 0.02 { 3.0 } else { 0.96 + 0.08 * random }
        }
    }

    impl Samples for Imagined {
        fn fit(&mut self, what: &What) -> Result<(Fit, Vec<f64>), String> {
            let fit = vec![(1, 1); self.jobs];
            let times = self.take(what, &fit)?;
            Ok((fit, times))
        }

        fn take(&mut self, what: &What, _: &Fit) -> Result<Vec<f64>, String> {
            let time = self.time(what);
            Ok((0..self.jobs).map(|_| time * self.noise()).collect())
        }
    }

    /// Whatever was in force: what comes out is no worse than the built-in table by more than noise, whether data are touched or not, and better than what was or the built-in one.
    #[test]
    fn a_wrong_table_ends_as_the_built_in_one_or_better() {
        let wrong: Table = "any:000:naive-push any:leader any:flat:split any:tree2:pull any:flat:pull".parse().unwrap();
        let cells = cells::all(&cells::situations(&[2, 4, 8], 2), &Operation::ALL, &LENGTHS);
        for start in [Table::empty(), wrong] {
            let from = start.over(Table::default());
            let mut changed = 0;
            for cell in &cells {
                let names = names(std::slice::from_ref(cell), &[&from, &Table::default()]);
                let jobs = cell.situation.ranks.len();
                let mut machine = Imagined { jobs, names: names.clone(), seed: cell.bytes as u64 };
                let outcome = contest(&mut machine, &from, cell, &names, Duration::from_secs(60)).unwrap();
                let Cell { operation, bytes, mode, private, .. } = *cell;
                let times = |name: &str| {
                    let algorithm = names.iter().position(|n| n == name).unwrap();
                    let conditions = if operation.is_rooted() { &CONDITIONS[..] } else { &CONDITIONS[..2] };
                    let what = |&(touched, rotating): &_| {
                        machine.time(&What { operation, bytes, mode, private, touched, rotating, algorithm })
                    };
                    conditions.iter().map(what).collect::<Vec<f64>>()
                };
                let (now, built_in) = (times(&outcome.chosen), times(&outcome.built_in));
                let is_fair = |one: &[f64]| one.iter().zip(&built_in).all(|(a, b)| *a <= 1.1 * b);
                assert!(is_fair(&now), "{cell:?}: {outcome:?}: {now:?}, {built_in:?}");
                // What was in force stays, or something better comes, unless the built-in one is better anywhere.
                let before = times(&cell.choice(&from).to_string());
                let stays = before.iter().zip(&built_in).all(|(a, b)| a < b) && cost(&before) < 0.9 * cost(&built_in);
                assert!(!stays || cost(&now) <= 1.05 * cost(&before), "{cell:?}: {outcome:?}: {now:?}, {before:?}");
                changed += usize::from(outcome.chosen != outcome.built_in);
            }
            assert!(changed > cells.len() / 2, "{changed}");
        }
    }
}
