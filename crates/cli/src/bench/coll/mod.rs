//! `partage bench collectives`: a job and MPIs that live side by side and take turns.
//!
//! * [`cells`]: what is measured, and what it may be.
//! * [`stage`]: how the driver asks one side after the other, while the rest sleep.
//! * [`sampler`]: the same without peers, of algorithms by their names, for whoever compares those.
//! * [`ours`], [`hand`], [`peer`]: the sides: the library, the same flow by hand in the same job, an MPI.
//!
//! A round is: the raw hand-off, a sample of each kind, the same samples in the opposite order, the hand-off again. As in
//! the other groups a round counts if the hand-off stayed the same, and ratios are taken within rounds. All of a cell is
//! in one round: the modes, the code by hand, the MPIs. A sample is the median of many short batches of calls, as the first rank
//! sees them, so that what else the machine does for a moment does not count. Where ranks share cores they run in bursts:
//! there it is the time from the first rank's begin to the last one's end, divided by the calls.
//!
//! *Touched* means that owners write their whole source before each call and read all that they get after it, as an honest
//! program does. Untouched buffers stay in the caches of whoever has copied them last. The figure is what the call adds to
//! that: from the time of all is taken what it takes to write and read the same where nothing is passed, with a barrier between, less the
//! barrier; of each side by itself, in the same round. What data that have moved cost their owner to write again is in the figure. Of words
//! (8 bytes) nothing is taken. The root of a rooted operation changes with each call.

pub mod cells;
mod hand;
mod ours;
mod peer;
pub mod sampler;
pub mod stage;

use super::measure::{Measured, Round, Tally, median};
use super::mpi::{Library, MPICH, OPEN_MPI};
use super::network::hosts;
use super::{digits, say_if_disturbed, ticks};
use crate::scratch::Scratch;
use cells::{Cell, Mode, Operation, is_named};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use partage_conduit::topology;
use partage_plan::coll::Algorithm;
use rustix::process::{Pid, Signal, kill_process};
use stage::{By, MOST_RANKS, Order, Sample, Stage};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What `bench collectives` takes.
#[derive(Args)]
pub struct Options {
    /// Print one JSON object per figure, and nothing else
    #[arg(long)]
    json: bool,
    /// Measure these figures only: operation, operation/bytes, operation/bytes/ranks, operation/bytes/ranks/mode
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds that count
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Numbers of ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4,8,16")]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=MOST_RANKS as u64))]
    ranks: Vec<u64>,
    /// Processes of which the library's ranks are threads [default: one for each rank]; MPI's ranks are processes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    procs: Option<u64>,
    /// Bytes of a block
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8,1k,64k,1m", value_parser = cells::size)]
    bytes: Vec<usize>,
    /// Cores that the ranks share, round robin
    #[arg(long, value_name = "N", default_value_t = 2)]
    cores: usize,
    /// Private slices in place of shared arrays
    #[arg(long)]
    private: bool,
    /// Another algorithm than the library's choice
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<String>,
    /// Measure this algorithm too, and the ratio to it
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    against: Option<String>,
    /// Only the library and the code by hand
    #[arg(long)]
    no_peers: bool,
}

impl Options {
    /// How many processes a job of so many ranks has.
    fn procs(&self, ranks: usize) -> usize {
        self.procs.map_or(ranks, |procs| procs as usize)
    }
}

/// A name that there is; else it is said here, once, and not by each rank.
fn algorithm(name: &str) -> Result<String, String> {
    name.parse().map(|_: Algorithm| name.to_owned()).map_err(|e| e.to_string())
}

/// What `bench-side` takes.
#[derive(Args)]
pub struct SideOptions {
    pub side: usize,
    name: String,
    stage: PathBuf,
    /// The algorithm in place of the table's choice
    #[arg(long)]
    algorithm: Option<String>,
    /// Those that are asked for by their numbers
    #[arg(long)]
    named: Vec<String>,
    /// The hosts that the ranks are on, each with a share of the cores
    #[arg(long, value_delimiter = ',')]
    pub hosts: Vec<String>,
}

/// The job is this side.
const OURS: usize = 0;
/// A sample takes about so long, in microseconds.
const WINDOW: f64 = 4000.0;
/// A batch of a sample takes about so long.
const BATCH: f64 = 100.0;
/// So many samples tell how many calls fit.
const TRIES: usize = 3;
/// No sample takes this long, unless something hangs.
const PATIENCE: Duration = super::TIMEOUT;
/// Blocks of so many bytes are touched by one store, and compared with code by hand.
const WORD: usize = 8;
/// Words that are written and read at once where buffers are touched: they stay in the nearest cache.
const CHUNK: usize = 512;

/// Measures and prints; 1 if something could not be measured.
pub fn bench(options: &Options) -> i32 {
    let cores = topology::allowed_cores();
    if let Err(why) = check(options, cores.len()) {
        eprintln!("partage: {why}");
        return 2;
    }
    let before = ticks();
    let jobs: Vec<(usize, Vec<Cell>)> = jobs(options, &options.only);
    let bar = ProgressBar::new(jobs.iter().map(|(_, cells)| cells.len() as u64).sum());
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template"));
    let (mut figures, mut code) = (vec![], 0);
    for (ranks, cells) in jobs {
        let mut measured = Sides::start(options, ranks, &cores).and_then(|mut sides| {
            for cell in &cells {
                bar.set_message(cell.name(ranks, cell.modes()[0]));
                bar.tick();
                for figure in sides.measure(cell, options)? {
                    if options.json {
                        out!("{}", figure.json());
                    }
                    figures.push(figure);
                }
                bar.inc(1);
            }
            sides.programs.end()
        });
        if let Err(why) = &mut measured {
            bar.suspend(|| eprintln!("partage: {ranks} ranks: {why}"));
            code = 1;
        }
    }
    bar.finish_and_clear();
    if !options.json {
        out!("{}", table(&figures));
    }
    if let Some(ns) = median(figures.iter().map(|f| f.handoff.0).collect()) {
        eprintln!("a cache line takes {} ns from core to core", digits(ns));
    }
    say_if_disturbed(before);
    code
}

fn check(options: &Options, cores: usize) -> Result<(), String> {
    if options.cores < 2 || options.cores > cores {
        return Err(format!("--cores: there are {cores}, and two are needed"));
    }
    if let Some(ranks) = options.ranks.iter().find(|&&ranks| options.procs(ranks as usize) > ranks as usize) {
        return Err(format!("--procs: {ranks} ranks are in {ranks} processes at most"));
    }
    if let Some(name) = options.only.iter().find(|name| jobs(options, std::slice::from_ref(name)).is_empty()) {
        return Err(format!("no figure is called {name}; they are called as in broadcast/8/2/all-all"));
    }
    Ok(())
}

/// For each number of ranks what is measured, of what has these names.
fn jobs(options: &Options, only: &[String]) -> Vec<(usize, Vec<Cell>)> {
    let of = |ranks: usize| {
        let wanted = |c: &Cell| c.modes().iter().any(|&m| is_named(&c.name(ranks, m), only));
        (ranks, cells::all(&options.bytes).into_iter().filter(wanted).collect())
    };
    options.ranks.iter().map(|&ranks| of(ranks as usize)).filter(|(_, cells): &(_, Vec<_>)| !cells.is_empty()).collect()
}

/// One figure.
struct Figure {
    name: String,
    /// Processes of the library's side.
    procs: usize,
    touched: bool,
    value: f64,
    /// What the touching takes by itself, which is not in the value.
    touching: Option<f64>,
    /// By hand, or for a stream without synchronization that with it.
    floor: Option<Compared>,
    floor_limit: Option<f64>,
    peer: Option<Compared>,
    peer_limit: Option<f64>,
    mpich: Option<Compared>,
    against: Option<Compared>,
    /// Before and after.
    handoff: (f64, f64),
    kept: usize,
    discarded: usize,
}

/// What something else took, and the ratio to it.
#[derive(Clone, Copy)]
struct Compared {
    value: f64,
    ratio: f64,
}

impl Figure {
    fn json(&self) -> String {
        let number = |x: Option<f64>| x.filter(|x| x.is_finite()).map_or("null".into(), digits);
        let mut text = format!(
            r#"{{"name":"{}","procs":{},"touched":{},"value":{},"unit":"us""#,
            self.name,
            self.procs,
            self.touched,
            number(Some(self.value))
        );
        let mut add = |name: &str, ratio: &str, what: Option<Compared>| {
            let (value, by) = (number(what.map(|c| c.value)), number(what.map(|c| c.ratio)));
            text += &format!(r#","{name}":{value},"{ratio}":{by}"#);
        };
        add("floor", "ratio", self.floor);
        add("peer", "peer_ratio", self.peer);
        add("mpich", "mpich_ratio", self.mpich);
        add("against", "against_ratio", self.against);
        let (before, after) = (number(Some(self.handoff.0)), number(Some(self.handoff.1)));
        let (kept, discarded, touching) = (self.kept, self.discarded, number(self.touching));
        text + &format!(
            r#","touching":{touching},"before":{before},"after":{after},"rounds":{kept},"discarded":{discarded}}}"#
        )
    }
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    let against = figures.iter().any(|f| f.against.is_some());
    let mut header =
        vec!["figure", "touched", "µs", "floor", "ratio", "", "Open MPI", "ratio", "limit", "", "MPICH", "ratio"];
    header.extend(against.then_some(["against", "ratio"]).into_iter().flatten());
    header.push("rounds");
    let columns = header.len();
    table.set_header(header);
    for f in figures {
        let two = |c: Option<Compared>| match c {
            Some(c) => [digits(c.value), format!("{:.2}", c.ratio)],
            None => ["–".into(), "–".into()],
        };
        let verdict = |c: Option<Compared>, limit: Option<f64>| match c.zip(limit) {
            Some((c, limit)) => if c.ratio <= limit { "ok" } else { "over" }.to_string(),
            None => String::new(),
        };
        let touched = if f.touched { "yes" } else { "no" };
        let mut row = vec![f.name.clone(), touched.into(), digits(f.value)];
        row.extend(two(f.floor));
        row.push(verdict(f.floor, f.floor_limit));
        row.extend(two(f.peer));
        row.push(f.peer_limit.map_or("–".into(), |limit| format!("{limit} ×")));
        row.push(verdict(f.peer, f.peer_limit));
        row.extend(two(f.mpich));
        row.extend(against.then(|| two(f.against)).into_iter().flatten());
        row.push(match (f.kept, f.discarded) {
            (kept, 0) => kept.to_string(),
            (0, _) => "unsteady".into(),
            (kept, discarded) => format!("{kept} (-{discarded})"),
        });
        table.add_row(row);
    }
    for column in (2..columns - 1).filter(|c| ![5, 9].contains(c)) {
        table.column_mut(column).into_iter().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    }
    table
}

/// The job and the MPIs.
struct Sides {
    ranks: usize,
    procs: usize,
    cores: usize,
    programs: Programs,
}

/// Programs that take turns: each is one side of a stage.
pub struct Programs {
    file: Scratch,
    stage: &'static Stage,
    all: Vec<(&'static str, Child)>,
    /// All of them have answered.
    are_there: bool,
}

/// What is sampled in a round.
#[derive(Clone, Copy)]
struct Kind {
    side: usize,
    sample: Sample,
}

/// Which of the samples tell what touching takes on one side: with a barrier, and the barrier.
struct Touching {
    both: usize,
    barrier: usize,
}

impl Touching {
    fn time(&self, values: &[f64]) -> f64 {
        (values[self.both] - values[self.barrier]).max(0.0)
    }
}

fn touching(kinds: &[Kind], side: usize) -> Option<Touching> {
    let find = |wanted: &dyn Fn(&Sample) -> bool| kinds.iter().position(|k| k.side == side && wanted(&k.sample));
    let both = find(&|s| s.by == By::Nobody)?;
    Some(Touching { both, barrier: find(&|s| s.operation == Operation::Barrier)? })
}

impl Sides {
    fn start(options: &Options, ranks: usize, cores: &[usize]) -> Result<Sides, String> {
        let procs = options.procs(ranks);
        let mut sides = Sides { ranks, procs, cores: options.cores, programs: Programs::new()? };
        // The ranks inherit it.
        topology::allow(&cores[..options.cores]);
        let started = sides.start_all(options);
        topology::allow(cores);
        started.map(|()| sides)
    }

    fn start_all(&mut self, options: &Options) -> Result<(), String> {
        let mut args = vec![];
        for (option, value) in [("--algorithm", &options.algorithm), ("--named", &options.against)] {
            args.extend(value.iter().flat_map(|value| [option, value]));
        }
        let procs = self.procs.to_string();
        self.programs.add_job(self.ranks, |job| _ = job.args(["--procs", &procs]), &args)?;
        let share_cores = self.ranks > options.cores;
        for library in [&OPEN_MPI, &MPICH] {
            // MPICH spins: where ranks share cores it takes milliseconds for anything.
            if library.is_there() && !options.no_peers && !(share_cores && *library == MPICH) {
                self.programs.add(library.command(self.ranks, share_cores), library.name, &[])?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, cell: &Cell, options: &Options) -> Result<Vec<Figure>, String> {
        let kinds = self.kinds(cell, options)?;
        let mut rounds: Vec<(f64, f64, Vec<f64>)> = vec![];
        let mut tally = Tally::default();
        while !tally.is_enough(options.rounds.into()) {
            let before = self.programs.ask(OURS, Order::Handoff)?;
            let mut values = vec![0.0; kinds.len()];
            for i in (0..kinds.len()).chain((0..kinds.len()).rev()) {
                values[i] += self.programs.ask(kinds[i].side, Order::Sample(kinds[i].sample))? / 2.0;
            }
            let after = self.programs.ask(OURS, Order::Handoff)?;
            tally.push(Round { before, after, ours: values[0], floor: None });
            rounds.push((before, after, values));
        }
        let ours = touching(&kinds, OURS);
        let ours = ours.and_then(|of| median(rounds.iter().map(|(_, _, values)| of.time(values)).collect()));
        for (_, _, values) in &mut rounds {
            let all = values.clone();
            for (value, kind) in values.iter_mut().zip(&kinds).filter(|(_, kind)| kind.sample.touched) {
                *value -= touching(&kinds, kind.side).map_or(0.0, |of| of.time(&all));
            }
        }
        let compare = |i: usize, other: Option<usize>| {
            let mut tally = Tally::default();
            for (before, after, values) in &rounds {
                let floor = other.map(|other| values[other]);
                tally.push(Round { before: *before, after: *after, ours: values[i], floor });
            }
            tally.measured()
        };
        let find = |wanted: &dyn Fn(&Kind) -> bool| kinds.iter().position(wanted);
        let side_of = |name: &str| self.programs.all.iter().position(|(n, _)| *n == name);
        let compared = |i, other: Option<usize>| {
            let Measured { floor, ratio, .. } = compare(i, Some(other?));
            Some(Compared { value: floor?, ratio: ratio? })
        };
        let mut figures = vec![];
        let is_figure = |k: &Kind| (k.side, k.sample.operation, k.sample.by) == (OURS, cell.operation, By::Library);
        for (i, kind) in kinds.iter().enumerate().filter(|(_, k)| is_figure(k)) {
            let mode = kind.sample.mode;
            let name = cell.name(self.ranks, mode);
            let by = |by: By, mode: Mode| find(&|k| k.side == OURS && k.sample.by == by && k.sample.mode == mode);
            let floor = match cell.stream && mode == Mode::NoNo {
                true => by(By::Library, Mode::AllAll),
                false => by(By::Hand, mode),
            };
            let peer = |library: &Library| side_of(library.name).and_then(|side| find(&|k| k.side == side));
            let m = compare(i, None);
            let after = median(rounds.iter().map(|r| r.1).collect()).unwrap_or(f64::NAN);
            // Of two ranks it is that of two processes.
            let has_limit = self.cores == 2 && (self.ranks > 2 || self.procs == self.ranks);
            figures.push(Figure {
                procs: self.procs,
                touched: cell.touched,
                value: m.value,
                touching: ours,
                floor: compared(i, floor),
                floor_limit: cell.floor_limit(mode),
                peer: compared(i, peer(&OPEN_MPI)),
                peer_limit: cell.peer_limit(self.ranks, mode).filter(|_| has_limit),
                mpich: compared(i, peer(&MPICH)),
                against: compared(i, by(By::Named(0), mode)),
                handoff: (m.handoff.unwrap_or(f64::NAN), after),
                kept: m.kept,
                discarded: m.discarded,
                name,
            });
        }
        Ok(figures.into_iter().filter(|f| is_named(&f.name, &options.only)).collect())
    }

    /// All that is sampled of a cell, with so many calls that a sample takes long enough.
    fn kinds(&mut self, cell: &Cell, options: &Options) -> Result<Vec<Kind>, String> {
        let Cell { operation, bytes, touched, stream } = *cell;
        let sample = |mode, by| {
            let (rotating, private) = (!stream, options.private);
            Sample { operation, bytes, mode, by, touched, rotating, private, calls: 1, batches: 1 }
        };
        let mut kinds = vec![];
        // A stream without synchronization is compared with the one that has it.
        let wanted = |mode: Mode| stream || is_named(&cell.name(self.ranks, mode), &options.only);
        for &mode in cell.modes().iter().filter(|&&mode| wanted(mode)) {
            kinds.push(Kind { side: OURS, sample: sample(mode, By::Library) });
            if options.against.is_some() {
                kinds.push(Kind { side: OURS, sample: sample(mode, By::Named(0)) });
            }
            if self.ranks == 2 && bytes == WORD && !stream && !options.private && !operation.reduces() {
                kinds.push(Kind { side: OURS, sample: sample(mode, By::Hand) });
            }
        }
        kinds.extend((1..self.programs.all.len()).map(|side| Kind { side, sample: sample(Mode::AllAll, By::Library) }));
        if touched && bytes > WORD {
            let nobody = sample(Mode::AllAll, By::Nobody);
            let barrier = Sample { operation: Operation::Barrier, by: By::Library, touched: false, ..nobody };
            let of = |side| [nobody, barrier].map(|sample| Kind { side, sample });
            kinds.extend((0..self.programs.all.len()).flat_map(of));
        }
        for kind in &mut kinds {
            // The first one is for pages; then ever more calls, until the time of one is known well.
            self.programs.ask(kind.side, Order::Sample(kind.sample))?;
            let time = loop {
                // A sample may be disturbed; the shortest of some is not.
                let mut time = f64::INFINITY;
                for _ in 0..TRIES {
                    time = time.min(self.programs.ask(kind.side, Order::Sample(kind.sample))?);
                }
                let calls = &mut kind.sample.calls;
                let enough = (WINDOW / time.max(0.001)) as u64;
                if enough < 4 * *calls {
                    break time;
                }
                *calls = enough.min(8 * *calls);
            };
            let fit = |window: f64| ((window / time) as u64).max(2).next_multiple_of(self.ranks as u64);
            (kind.sample.calls, kind.sample.batches) = match self.ranks > self.cores {
                true => (fit(WINDOW), 1),
                false => (fit(BATCH), (WINDOW / BATCH.max(time * fit(BATCH) as f64)).ceil() as u64 + 2),
            };
        }
        Ok(kinds)
    }
}

impl Programs {
    /// None yet.
    pub fn new() -> Result<Programs, String> {
        let file = Stage::file()?;
        let stage = Stage::open(&file.path())?;
        Ok(Programs { file, stage, all: vec![], are_there: false })
    }

    /// Starts a job of so many ranks, each bound to a core, with what `more` says about its start.
    pub fn add_job(&mut self, ranks: usize, more: impl FnOnce(&mut Command), args: &[&str]) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut job = Command::new(program);
        more(job.args(["run", "--bind", "core", "-n", &ranks.to_string()]));
        self.add(job, "ours", args)
    }

    /// Starts one side by its launcher.
    pub fn add(&mut self, mut launcher: Command, name: &'static str, args: &[&str]) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let side = self.all.len().to_string();
        launcher.arg(program).args(["bench-side", &side, name]).arg(self.file.path()).args(args);
        let prepare = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?);
        // SAFETY: one system call between fork and exec; it neither allocates nor locks. Launchers end their ranks when they
        // are told to end, and so they do if this process does not live to tell them.
        unsafe { launcher.pre_exec(prepare) };
        let child = launcher.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        self.all.push((name, child.map_err(|e| format!("{name}: {e}"))?));
        Ok(())
    }

    /// Asks one, and sleeps until it has answered. Before the first time all are awaited: who still starts would disturb.
    pub fn ask(&mut self, side: usize, order: Order) -> Result<f64, String> {
        if !std::mem::replace(&mut self.are_there, true) {
            for side in 0..self.all.len() {
                self.ask_one(side, Order::Handoff)?;
            }
        }
        self.ask_one(side, order)
    }

    fn ask_one(&mut self, side: usize, order: Order) -> Result<f64, String> {
        let (name, child) = &mut self.all[side];
        self.stage
            .ask(side, order, PATIENCE, || match child.try_wait() {
                Ok(None) => Ok(()),
                Ok(Some(status)) => Err(format!("ended with {status}")),
                Err(e) => Err(e.to_string()),
            })
            .map_err(|why| format!("{name}: {why}"))
    }

    /// Tells all to end, and waits for that.
    pub fn end(mut self) -> Result<(), String> {
        (0..self.all.len()).for_each(|side| self.stage.tell(side, Order::End));
        for (name, mut child) in std::mem::take(&mut self.all) {
            let status = child.wait().map_err(|e| e.to_string())?;
            if !status.success() {
                return Err(format!("{name} ended with {status}"));
            }
        }
        Ok(())
    }
}

impl Drop for Programs {
    /// Ends what still runs.
    fn drop(&mut self) {
        for (_, child) in &mut self.all {
            // One that has ended already is no error.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// A rank of a side.
pub fn side(options: &SideOptions) -> i32 {
    let result = Stage::open(&options.stage).and_then(|stage| match Library::named(&options.name) {
        Some(library) => peer::serve(stage, options, library),
        None if [hosts::WIRE_NAME, hosts::HAND_NAME].contains(&options.name.as_str()) => hosts::serve(stage, options),
        None => ours::serve(stage, options),
    });
    match result {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("partage: {why}");
            1
        }
    }
}

/// Writes so many words, a chunk at a time.
#[inline(always)]
fn write(len: usize, turn: u64, chunk: &mut [u64; CHUNK], mut put: impl FnMut(usize, &[u64])) {
    chunk[..len.min(CHUNK)].fill(turn);
    for at in (0..len).step_by(CHUNK) {
        put(at, &chunk[..CHUNK.min(len - at)]);
    }
}

/// Reads so many words, a chunk at a time.
#[inline(always)]
fn read(len: usize, chunk: &mut [u64; CHUNK], mut get: impl FnMut(usize, &mut [u64])) {
    for at in (0..len).step_by(CHUNK) {
        get(at, &mut chunk[..CHUNK.min(len - at)]);
        black_box(&chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Line::try_parse_from(["collectives"].into_iter().chain(line.split_whitespace())).map(|line| line.options)
    }

    #[test]
    fn what_is_measured_can_be_chosen() {
        let jobs = |options: &Options| jobs(options, &options.only);
        let all = jobs(&parse("").unwrap());
        assert_eq!(all.iter().map(|(ranks, _)| *ranks).collect::<Vec<_>>(), [2, 4, 8, 16]);
        assert!(all.iter().all(|(_, cells)| cells.len() == 9 * 4 * 2 + 1));
        let some = parse("--ranks 4,3 --bytes 8,2k --only scatter/2048,gather/8/3/my-my").unwrap();
        let count: Vec<_> = jobs(&some).iter().map(|(ranks, cells)| (*ranks, cells.len())).collect();
        assert_eq!(count, [(4, 2), (3, 4)]);
        assert!(check(&some, 2).is_ok());
        assert!(check(&parse("--only reduction").unwrap(), 2).is_err_and(|why| why.contains("broadcast/8/2/all-all")));
        let beside = parse("--only gather,scater,reduce").unwrap();
        assert!(check(&beside, 2).is_err_and(|why| why.starts_with("no figure is called scater;")));
        assert!(check(&parse("--cores 4").unwrap(), 2).is_err_and(|why| why.contains("--cores")));
        assert!(check(&parse("--ranks 16,4 --procs 8").unwrap(), 2).is_err_and(|why| why.contains("--procs: 4 ranks")));
        assert_eq!([4, 16].map(|ranks| parse("--procs 3").unwrap().procs(ranks)), [3, 3]);
        assert_eq!(parse("").unwrap().procs(16), 16);
        for bad in ["--procs 0", "--ranks 1", "--ranks 65", "--bytes 7", "--rounds 0", "--ranks x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_are_printed() {
        let figure = Figure {
            name: "gather/8/2/all-all".into(),
            procs: 2,
            touched: true,
            value: 0.25,
            touching: Some(0.125),
            floor: Some(Compared { value: 0.2, ratio: 1.25 }),
            floor_limit: Some(1.1),
            peer: Some(Compared { value: 0.5, ratio: 0.5 }),
            peer_limit: Some(0.65),
            mpich: None,
            against: None,
            handoff: (70.0, 71.5),
            kept: 9,
            discarded: 1,
        };
        assert_eq!(
            figure.json(),
            concat!(
                r#"{"name":"gather/8/2/all-all","procs":2,"touched":true,"value":0.25,"unit":"us","floor":0.2,"ratio":1.25,"#,
                r#""peer":0.5,"peer_ratio":0.5,"mpich":null,"mpich_ratio":null,"against":null,"against_ratio":null,"#,
                r#""touching":0.125,"before":70,"after":71.5,"rounds":9,"discarded":1}"#
            )
        );
        let text = table(&[figure]).to_string();
        assert!(text.contains("over") && text.contains("ok") && text.contains("9 (-1)"), "{text}");
    }

    #[test]
    fn touching_is_known_of_each_side() {
        let sample = Sample {
            operation: Operation::Gather,
            bytes: 1024,
            mode: Mode::AllAll,
            by: By::Library,
            touched: true,
            rotating: true,
            private: false,
            calls: 1,
            batches: 1,
        };
        let barrier = Sample { operation: Operation::Barrier, touched: false, ..sample };
        let kinds: Vec<Kind> = [0, 1]
            .into_iter()
            .flat_map(|side| [sample, Sample { by: By::Nobody, ..sample }, barrier].map(|sample| Kind { side, sample }))
            .collect();
        let values = [9.0, 5.0, 1.0, 20.0, 2.0, 3.0];
        let times = [0, 1, 2].map(|side| touching(&kinds, side).map(|of| of.time(&values)));
        // A barrier that took longer than it and the touching: nothing is taken.
        assert_eq!(times, [Some(4.0), Some(0.0), None]);
        assert!(touching(&kinds[..2], 0).is_none());
    }

    #[test]
    fn chunks_are_all_of_it() {
        let (mut chunk, mut written, mut seen) = ([0; CHUNK], 0, 0);
        let len = 2 * CHUNK + 3;
        write(len, 5, &mut chunk, |at, part| {
            assert!(at == written && part.iter().all(|&x| x == 5));
            written += part.len();
        });
        read(len, &mut chunk, |at, part| {
            assert_eq!(at, seen);
            seen += part.len();
        });
        assert_eq!((written, seen), (len, len));
        write(0, 1, &mut chunk, |_, _| panic!("nothing is to be written"));
    }
}
