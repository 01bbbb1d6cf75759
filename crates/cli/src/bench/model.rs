//! `partage bench model`: how long collectives would take on more ranks than there are, or on another machine.
//!
//! The plans are those that ranks would run; what their steps cost is LogGP's (`partage_plan::coll::model::cost`), with
//! numbers that are measured here, between two ranks, or given. On top comes what a call costs before its first step.
//!
//! Where there are more than [`COMPUTED`] ranks, or their plans together have more than [`MOST_STEPS`] steps, fewer ranks are computed, four numbers of them, and the time is
//! continued as `a + b log P + c P + d P log P`, which is what the steps of all these algorithms amount to. Such figures
//! have a `~`.
//!
//! `--validate` measures the same here and says how far off the model is.

use super::coll::cells::{Mode, Operation, size};
use super::coll::sampler::{Sampler, Samples, What};
use super::coll::stage::MOST_RANKS;
use super::measure::median;
use super::ranks::now_ns;
use super::{digits, launch, say_if_disturbed, this_program, ticks};
use crate::scratch::Scratch;
use crate::tune::cells::{can_run, candidates, is_sensible};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use partage::coll::Algorithm;
use partage::prelude::*;
use partage_conduit::topology;
use partage_plan::coll::model::{Link, Machine, cost};
use partage_plan::coll::{FEW, Kind, Nodes, Op, OpKind, Setting, Step};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// What `bench model` takes.
#[derive(Args)]
pub struct Options {
    /// Print JSON objects, and nothing else: what is known of the machine, then one per figure
    #[arg(long)]
    json: bool,
    /// Ranks of the job
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    ranks: u32,
    /// Nodes that they are on, as many on each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    nodes: u32,
    /// Bytes of a block
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8,1k,64k,1m", value_parser = size)]
    bytes: Vec<usize>,
    /// These operations only
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The sync mode, before and after
    #[arg(long, value_enum, default_value = "all")]
    sync: Sync,
    /// From one rank to another of its node, in nanoseconds; what is not given is measured here
    #[arg(long, value_name = "NS", value_parser = number)]
    latency: Option<f64>,
    /// Of a message, at each end, in nanoseconds
    #[arg(long, value_name = "NS", value_parser = number)]
    overhead: Option<f64>,
    /// Between two messages of one rank, in nanoseconds
    #[arg(long, value_name = "NS", value_parser = number)]
    gap: Option<f64>,
    /// From one rank to another, in gigabytes a second
    #[arg(long, value_name = "GB/S", value_parser = number)]
    bandwidth: Option<f64>,
    /// Of a copy in a rank's own memory, in gigabytes a second
    #[arg(long, value_name = "GB/S", value_parser = number)]
    copy: Option<f64>,
    /// Of a call before its first step, in nanoseconds
    #[arg(long, value_name = "NS", value_parser = number)]
    call: Option<f64>,
    /// The same between nodes, if there are several
    #[arg(long, value_name = "NS", value_parser = number)]
    far_latency: Option<f64>,
    /// The same between nodes
    #[arg(long, value_name = "NS", value_parser = number)]
    far_overhead: Option<f64>,
    /// The same between nodes
    #[arg(long, value_name = "NS", value_parser = number)]
    far_gap: Option<f64>,
    /// The same between nodes
    #[arg(long, value_name = "GB/S", value_parser = number)]
    far_bandwidth: Option<f64>,
    /// Measure the same here on 2, 4, 8 and 16 ranks, and say how far off the model is
    #[arg(long)]
    validate: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Sync {
    /// All/All
    All,
    /// My/My
    My,
}

fn number(text: &str) -> Result<f64, String> {
    let n = text.parse::<f64>().ok().filter(|n| *n >= 0.0 && *n < 1e12);
    n.ok_or_else(|| "give a number that is not negative".into())
}

/// The helper that measures, as `bench-rank` knows it.
pub const RANK: &str = "model";
/// The most ranks that are computed one by one: each looks at all others to make its plan.
const COMPUTED: usize = 1024;
/// All plans of a job that is computed have so many steps at most.
const MOST_STEPS: usize = 150_000;
/// The most ranks from which more are continued.
const CONTINUED: usize = 128;
/// A sample of a collective takes about so long, in microseconds.
const WINDOW: f64 = 2000.0;
/// Of so many samples the median counts.
const SAMPLES: usize = 5;

/// Computes and prints.
pub fn bench(options: &Options) -> i32 {
    let before = ticks();
    match operations(options).and_then(|operations| {
        let known = Known::find(options)?;
        known.print(options);
        match options.validate {
            true => validate(options, &operations, &known),
            false => predict(options, &operations, &known),
        }
    }) {
        Ok(()) => {
            if options.validate || !options.has_all() {
                say_if_disturbed(before);
            }
            0
        }
        Err(why) => {
            eprintln!("partage: {why}");
            2
        }
    }
}

fn operations(options: &Options) -> Result<Vec<Operation>, String> {
    let all = Operation::ALL.map(Operation::name).join(", ");
    if let Some(bad) = options.only.iter().find(|o| Operation::ALL.iter().all(|op| op.name() != o.as_str())) {
        return Err(format!("--only: there is no operation {bad}; there are {all}"));
    }
    if options.nodes > options.ranks {
        return Err(format!("--nodes: {} ranks cannot be on {} nodes", options.ranks, options.nodes));
    }
    if [options.bandwidth, options.copy, options.far_bandwidth].contains(&Some(0.0)) {
        return Err("a bandwidth of 0: nothing would ever arrive".into());
    }
    let wanted = |op: &Operation| options.only.is_empty() || options.only.iter().any(|o| o == op.name());
    Ok(Operation::ALL.into_iter().filter(wanted).collect())
}

impl Options {
    /// Is nothing left to measure?
    fn has_all(&self) -> bool {
        let near = [self.latency, self.overhead, self.gap, self.bandwidth, self.copy, self.call];
        near.iter().all(Option::is_some) && (self.nodes < 2 || self.has_far())
    }

    fn has_far(&self) -> bool {
        [self.far_latency, self.far_overhead, self.far_gap, self.far_bandwidth].iter().all(Option::is_some)
    }
}

/// What is known of the machine, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    machine: Machine,
    call: f64,
}

impl Known {
    fn find(options: &Options) -> Result<Known, String> {
        let nothing = Numbers::default();
        let near = if options.has_all() { nothing } else { Numbers::measure(false)? };
        let far = match options.nodes > 1 && !options.has_far() {
            true => Numbers::measure(true)
                .map_err(|why| format!("between nodes: {why}; or give --far-latency, -overhead, -gap, -bandwidth"))?,
            false => nothing,
        };
        // Nanoseconds to microseconds; gigabytes a second to microseconds a byte.
        let time = |given: Option<f64>, measured: f64| given.map_or(measured, |ns| ns / 1e3);
        let byte = |given: Option<f64>, measured: f64| given.map_or(measured, |gb| 1e-3 / gb);
        let o = options;
        Ok(Known {
            machine: Machine {
                near: Link {
                    latency: time(o.latency, near.latency),
                    overhead: time(o.overhead, near.overhead),
                    gap: time(o.gap, near.gap),
                    byte: byte(o.bandwidth, near.byte),
                },
                far: Link {
                    latency: time(o.far_latency, far.latency),
                    overhead: time(o.far_overhead, far.overhead),
                    gap: time(o.far_gap, far.gap),
                    byte: byte(o.far_bandwidth, far.byte),
                },
                copy: byte(o.copy, near.copy),
                combine: byte(o.copy, near.copy),
            },
            call: time(o.call, near.call),
        })
    }

    fn print(&self, options: &Options) {
        let link = |l: &Link| [l.latency * 1e3, l.overhead * 1e3, l.gap * 1e3, 1e-3 / l.byte].map(digits);
        let (near, far) = (link(&self.machine.near), link(&self.machine.far));
        let (copy, call) = (digits(1e-3 / self.machine.copy), digits(self.call * 1e3));
        if options.json {
            let object = |l: &[String; 4]| {
                format!(r#"{{"latency":{},"overhead":{},"gap":{},"bandwidth":{}}}"#, l[0], l[1], l[2], l[3])
            };
            let far = if options.nodes > 1 { object(&far) } else { "null".into() };
            out!(r#"{{"name":"machine","near":{},"far":{far},"copy":{copy},"call":{call}}}"#, object(&near));
            return;
        }
        let say =
            |l: &[String; 4]| format!("latency {} ns, overhead {} ns, gap {} ns, {} GB/s", l[0], l[1], l[2], l[3]);
        out!("in a node: {}; a call {call} ns; a copy {copy} GB/s", say(&near));
        if options.nodes > 1 {
            out!("between nodes: {}", say(&far));
        }
    }
}

/// What two ranks measure, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Numbers {
    call: f64,
    latency: f64,
    overhead: f64,
    gap: f64,
    byte: f64,
    copy: f64,
}

impl Numbers {
    /// By a job of two processes, on one node or on two.
    fn measure(apart: bool) -> Result<Numbers, String> {
        if topology::allowed_cores().len() < 2 {
            return Err("two cores are needed to measure; or give all numbers".into());
        }
        let out = Scratch::new()?;
        let mut spec = this_program(2, &[RANK, "1"])?;
        spec.args.push(out.path().into());
        for (name, value) in [("PARTAGE_BIND", "core"), ("PARTAGE_PROFILE", "none")] {
            spec.env.push((name.into(), value.into()));
        }
        if apart {
            spec.env.push(("PARTAGE_NODE".into(), "process".into()));
        }
        launch(&spec)?;
        let line = out.take_text()?;
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let &[call, latency, overhead, gap, byte, copy] = &numbers[..] else {
            return Err(format!("not a result: {line:?}"));
        };
        Ok(Numbers { call, latency, overhead, gap, byte, copy })
    }
}

/// One of the two ranks that measure.
pub fn rank(out: &Path) -> i32 {
    partage::run(|job| -> Result<(), String> {
        let Numbers { call, latency, overhead, gap, byte, copy } = numbers(job).map_err(|e| e.to_string())?;
        if job.rank() == Rank(0) {
            let line = format!("{call} {latency} {overhead} {gap} {byte} {copy}");
            std::fs::write(out, line).map_err(|e| format!("{}: {e}", out.display()))?;
        }
        Ok(())
    });
    0
}

/// By broadcasts in letters, which are what a message is, and by one long one. Each is the least of short rounds, in which nobody
/// else has used the cores.
///
/// A rank that does nothing but send is busy with it all the time, so overhead and gap are one number here.
fn numbers(job: &Job) -> partage::Result<Numbers> {
    const ROUNDS: usize = 101;
    const CALLS: u32 = 50;
    /// As many words as a letter has.
    const WORDS: usize = 7;
    const LONG: usize = 1 << 20;
    let mut times: [Vec<f64>; 5] = Default::default();
    let mut words = [0u64; WORDS];
    let mut long = job.array::<u64>(Layout::per_rank(LONG / 8))?;
    let mut own = (vec![1u8; LONG], vec![2u8; LONG]);
    let micros = |start: u64| (now_ns() - start) as f64 / 1e3;
    for _ in 0..ROUNDS {
        // There and back, so that each call waits for the one before; then streams of calls with one letter, and with seven.
        for (which, alternate, len, name) in
            [(0, 1, 1, "flat:mail"), (1, 0, 1, "flat:mail"), (2, 0, WORDS, "flat/7:mail")]
        {
            job.barrier();
            let start = now_ns();
            for i in 0..CALLS {
                let root = TeamRank(alternate * (i % 2));
                job.broadcast(&mut words[..len]).root(root).sync(In::My, Out::My).algorithm(name).run();
            }
            times[which].push(micros(start) / f64::from(CALLS));
        }
        // All bytes, there and back.
        job.barrier();
        let start = now_ns();
        for root in 0..2 {
            job.broadcast(&mut long).root(TeamRank(root)).sync(In::My, Out::My).algorithm("flat:push").run();
        }
        times[3].push(micros(start) / 2.0);
        job.barrier();
        if job.rank() == Rank(0) {
            let start = now_ns();
            own.0.copy_from_slice(black_box(&own.1));
            black_box(&own.0);
            times[4].push(micros(start));
        }
    }
    let [ping, one, seven, put, copied] = times.map(|all| all.into_iter().fold(f64::INFINITY, f64::min));
    // Calls with seven letters have six more of them.
    let gap = ((seven - one) / (WORDS - 1) as f64).max(0.0);
    let call = (one - gap).max(0.0);
    let latency = (ping - call - 2.0 * gap).max(0.0);
    // Where nobody was ever undisturbed, a long one may seem to take less than a short one.
    let bytes = if put > ping { put - ping } else { put };
    let len = LONG as f64;
    // The other rank has not copied.
    let copy = if copied.is_finite() { copied / len } else { 0.0 };
    Ok(Numbers { call, latency, overhead: gap, gap, byte: bytes / len, copy })
}

/// How long it takes in microseconds, and whether all plans were computed.
type Answer = (f64, bool);

/// An algorithm, and its times by lengths.
type Row = (String, Vec<Option<Answer>>);

/// A call whose time is asked for.
#[derive(Clone, Copy)]
struct Question {
    operation: Operation,
    sync: Sync,
    ranks: usize,
    nodes: usize,
    bytes: usize,
}

impl Question {
    fn op(&self) -> OpKind {
        self.operation.name().parse().expect("the same names")
    }

    fn setting(&self) -> Setting {
        let sync = if self.sync == Sync::All { (In::All, Out::All) } else { (In::My, Out::My) };
        let (source, dest) = (Kind::Shared, Kind::Shared);
        let in_place = self.operation == Operation::Broadcast;
        Setting {
            ranks: self.ranks,
            nodes: self.nodes > 1,
            crowded: false,
            many: self.ranks / self.nodes.max(1) > FEW,
            sync,
            source,
            dest,
            in_place,
            ordered: false,
        }
    }

    /// Those that can do it.
    fn algorithms(&self) -> Vec<Algorithm> {
        let far = ["nodes2:push", "nodes2x2:push", "nodes4:push", "leaders:push"];
        let far = far.map(|name| name.parse().expect("its name")).into_iter().filter(|_| self.nodes > 1);
        // What needs all memory to be mapped is for one node.
        let sensible = |a: &Algorithm| {
            is_sensible(a, self.operation, self.ranks, self.bytes)
                && !(a.flow.touches_all() && self.nodes > 1)
                && a.packet.is_none()
        };
        let setting = self.setting();
        let can = |a: &Algorithm| sensible(a) && can_run(a, self.op(), &setting, self.bytes);
        candidates(self.ranks).chain(far).filter(can).collect()
    }

    /// By this algorithm, if it can.
    fn answer(&self, algorithm: &Algorithm, known: &Known) -> Option<Answer> {
        if self.ranks <= COMPUTED && self.steps(algorithm)? <= MOST_STEPS {
            return Some((self.computed(algorithm, known)?, true));
        }
        let mut points = vec![];
        let shift = (0..).find(|shift| self.ranks >> shift <= CONTINUED)?;
        for shift in shift..shift + 4 {
            let ranks = (self.ranks >> shift).max(2);
            let nodes = (self.nodes * ranks / self.ranks).max(1);
            let smaller = Question { ranks, nodes, ..*self };
            points.push((ranks as f64, smaller.computed(algorithm, known)?));
        }
        Some((continued(&points, self.ranks as f64)?, false))
    }

    fn shape(&self, algorithm: &Algorithm) -> partage_plan::coll::Shape {
        let mut shape = algorithm.shape(self.op(), &self.setting(), self.bytes);
        let per_node = self.ranks.div_ceil(self.nodes);
        shape.nodes = Some(Arc::new(Nodes::new(&(0..self.ranks).map(|r| r / per_node).collect::<Vec<_>>())));
        // Words are combined.
        if shape.op.combines() {
            shape.grain = 8;
        }
        if let Op::Permute { to } = &mut shape.op {
            *to = (0..self.ranks).map(|r| (r + 1) % self.ranks).collect();
        }
        shape
    }

    /// How many steps all plans have, about: the root's, and those of another rank that has many.
    fn steps(&self, algorithm: &Algorithm) -> Option<usize> {
        let shape = self.shape(algorithm);
        // Every rank has the steps of the last one, which may be it, and those of all that is claimed.
        let count = |step: &Step| match step {
            Step::Last { steps } => 1 + steps.len(),
            Step::Claim { chunks } => 1 + chunks.iter().map(Vec::len).sum::<usize>(),
            _ => 1,
        };
        let of = |rank: usize| shape.plan(rank).map(|plan| plan.steps.iter().map(count).sum::<usize>());
        let others = [1, self.ranks / 2, self.ranks - 1].into_iter().map(of).collect::<Option<Vec<_>>>()?;
        Some(of(0)? + (self.ranks - 1) * others.into_iter().max()?)
    }

    fn computed(&self, algorithm: &Algorithm, known: &Known) -> Option<f64> {
        Some(known.call + cost(&self.shape(algorithm), &known.machine)?)
    }
}

/// The curve `a + b log P + c P + d P log P` through four points, at another one; no less than at the last of them.
fn continued(points: &[(f64, f64)], at: f64) -> Option<f64> {
    let basis = |p: f64| [1.0, p.log2(), p, p * p.log2()];
    let mut rows: Vec<[f64; 5]> = vec![];
    for &(p, time) in points {
        let [a, b, c, d] = basis(p);
        rows.push([a, b, c, d, time]);
    }
    // Gaussian elimination.
    for i in 0..4 {
        let pivot = (i..4).max_by(|&a, &b| rows[a][i].abs().total_cmp(&rows[b][i].abs()))?;
        rows.swap(i, pivot);
        let row = rows[i];
        if row[i] == 0.0 {
            return None;
        }
        for other in (0..4).filter(|&j| j != i) {
            let factor = rows[other][i] / row[i];
            rows[other].iter_mut().zip(row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let time: f64 = basis(at).iter().enumerate().map(|(i, x)| x * rows[i][4] / rows[i][i]).sum();
    let least = points.iter().map(|p| p.1).fold(0.0, f64::max);
    Some(time.max(least))
}

fn predict(options: &Options, operations: &[Operation], known: &Known) -> Result<(), String> {
    let (ranks, nodes) = (options.ranks as usize, options.nodes as usize);
    for &operation in operations {
        let ask = |bytes| Question { operation, sync: options.sync, ranks, nodes, bytes };
        let mut names: Vec<Algorithm> = vec![];
        for a in options.bytes.iter().flat_map(|&bytes| ask(bytes).algorithms()) {
            if !names.contains(&a) {
                names.push(a);
            }
        }
        let mut rows = vec![];
        for algorithm in &names {
            let answer = |&bytes: &usize| {
                let fits = ask(bytes).algorithms().contains(algorithm);
                fits.then(|| ask(bytes).answer(algorithm, known)).flatten()
            };
            let row: Vec<Option<Answer>> = options.bytes.iter().map(answer).collect();
            if options.json {
                for (bytes, (us, exact)) in options.bytes.iter().zip(&row).filter_map(|(b, t)| Some((b, (*t)?))) {
                    let name = operation.name();
                    let us = digits(us);
                    out!(
                        r#"{{"name":"{name}/{bytes}/{ranks}","algorithm":"{algorithm}","nodes":{nodes},"value":{us},"unit":"us","exact":{exact}}}"#
                    );
                }
            }
            rows.push((algorithm.to_string(), row));
        }
        if !options.json {
            let nodes = if nodes > 1 { format!(" on {nodes} nodes") } else { String::new() };
            out!("\n{} on {ranks} ranks{nodes}, µs (*: the least; ~: continued from fewer ranks)", operation.name());
            out!("{}", table(&rows, &options.bytes));
        }
    }
    Ok(())
}

fn table(rows: &[Row], bytes: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(std::iter::once("bytes".to_string()).chain(bytes.iter().map(|b| b.to_string())));
    let best = |i: usize| rows.iter().filter_map(|(_, row)| row[i]).map(|t| t.0).fold(f64::INFINITY, f64::min);
    for (name, row) in rows {
        let cell = |(i, time): (usize, &Option<Answer>)| match *time {
            None => "–".to_string(),
            Some((us, exact)) => {
                let marks = [if us == best(i) { "*" } else { "" }, if exact { "" } else { "~" }];
                format!("{}{}{}", marks[0], marks[1], digits(us))
            }
        };
        table.add_row(std::iter::once(name.clone()).chain(row.iter().enumerate().map(cell)));
    }
    for column in 1..=bytes.len() {
        table.column_mut(column).into_iter().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    }
    table
}

/// Predicted and measured on so many ranks as there are in small jobs here.
fn validate(options: &Options, operations: &[Operation], known: &Known) -> Result<(), String> {
    let cores = topology::allowed_cores().len();
    let mode = if options.sync == Sync::All { Mode::AllAll } else { Mode::MyMy };
    let mut rows = Table::new();
    rows.load_preset(presets::UTF8_BORDERS_ONLY);
    rows.set_header(["call", "algorithm", "predicted, µs", "measured, µs", "ratio"]);
    let mut summary = vec![];
    for ranks in [2, 4, 8, 16].into_iter().filter(|&n| n <= MOST_RANKS) {
        let ask = |operation, bytes| Question { operation, sync: options.sync, ranks, nodes: 1, bytes };
        let all = operations.iter().flat_map(|&op| options.bytes.iter().map(move |&bytes| (op, bytes)));
        let questions: Vec<Question> = all.map(|(op, bytes)| ask(op, bytes)).collect();
        let mut names: Vec<String> = questions.iter().flat_map(Question::algorithms).map(|a| a.to_string()).collect();
        names.sort();
        names.dedup();
        let mut sampler = Sampler::start(&[ranks], cores, WINDOW, &names, &[])?;
        let mut errors = vec![];
        for q in &questions {
            let mut found = vec![];
            for algorithm in q.algorithms() {
                let Some((predicted, _)) = q.answer(&algorithm, known) else { continue };
                let name = algorithm.to_string();
                let number = names.iter().position(|n| *n == name).ok_or("an algorithm that no job knows")?;
                let what = What {
                    operation: q.operation,
                    bytes: q.bytes,
                    mode,
                    private: false,
                    touched: false,
                    rotating: true,
                    algorithm: number,
                };
                let (fit, _) = sampler.fit(&what)?;
                let samples: Vec<f64> =
                    (0..SAMPLES).map(|_| sampler.take(&what, &fit).map(|t| t[0])).collect::<Result<_, _>>()?;
                let measured = median(samples).unwrap_or(f64::NAN);
                let ratio = predicted / measured;
                errors.push((ratio.max(1.0 / ratio) - 1.0, ratio));
                found.push((predicted, measured));
                let call = format!("{}/{}/{ranks}", q.operation.name(), q.bytes);
                let (p, m, r) = (digits(predicted), digits(measured), digits(ratio));
                if options.json {
                    out!(
                        r#"{{"name":"{call}","algorithm":"{name}","predicted":{p},"measured":{m},"unit":"us","ratio":{r}}}"#
                    );
                } else {
                    rows.add_row([call, name, p, m, r]);
                }
            }
        }
        sampler.end()?;
        let error = median(errors.iter().map(|e| e.0).collect()).unwrap_or(f64::NAN);
        let ratio = median(errors.iter().map(|e| e.1).collect()).unwrap_or(f64::NAN);
        let crowded = if ranks > cores {
            format!(", which share {cores} cores: of that the model knows nothing")
        } else {
            String::new()
        };
        summary.push(format!(
            "{ranks} ranks: off by {:.0} % in the median, predicted / measured {} in the median, {} figures{crowded}",
            100.0 * error,
            digits(ratio),
            errors.len()
        ));
    }
    if !options.json {
        for column in 2..5 {
            rows.column_mut(column).into_iter().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        }
        out!("{rows}");
        summary.iter().for_each(|line| out!("{line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Known = {
        let near = Link { latency: 0.1, overhead: 0.05, gap: 0.06, byte: 1e-4 };
        let far = Link { latency: 2.0, overhead: 0.5, gap: 0.6, byte: 1e-3 };
        Known { machine: Machine { near, far, copy: 5e-5, combine: 5e-5 }, call: 0.05 }
    };

    fn ask(operation: Operation, ranks: usize, nodes: usize, bytes: usize) -> Question {
        Question { operation, sync: Sync::All, ranks, nodes, bytes }
    }

    #[test]
    fn every_operation_has_times() {
        for operation in Operation::ALL {
            for (ranks, nodes) in [(2, 1), (7, 1), (16, 4)] {
                let q = ask(operation, ranks, nodes, 1024);
                let algorithms = q.algorithms();
                assert!(algorithms.len() >= 2, "{operation:?}");
                for a in algorithms {
                    let (time, exact) = q.answer(&a, &KNOWN).unwrap_or_else(|| panic!("{operation:?} by {a}"));
                    assert!(time > KNOWN.call && time.is_finite() && exact, "{operation:?} by {a}: {time}");
                }
            }
        }
    }

    /// Every flow of a reduction has a time, where it can be taken: on one node, or on several.
    #[test]
    fn reductions_have_all_their_flows() {
        for (operation, flows) in [
            (Operation::Reduce, &["flat", "slices", "chain", "tree2", "tree4"][..]),
            (Operation::AllReduce, &["flat", "slices", "chain", "tree2", "tree4", "doubling", "ring"][..]),
            (Operation::Prefix, &["flat", "slices", "chain", "dissemination"][..]),
        ] {
            for nodes in [1, 4] {
                let q = ask(operation, 16, nodes, 64 << 10);
                let algorithms = q.algorithms();
                let has = |flow: &str| algorithms.iter().any(|a| a.flow.to_string() == flow);
                assert!(flows.iter().all(|flow| has(flow)), "{operation:?}: {algorithms:?}");
                assert!(["coop", "leader", "last"].iter().all(|flow| has(flow) == (nodes == 1)), "{algorithms:?}");
                assert_eq!(has("nodes2"), nodes > 1 && operation != Operation::Prefix, "{algorithms:?}");
                assert_eq!(has("leaders"), nodes > 1 && operation == Operation::AllReduce, "{algorithms:?}");
                for a in algorithms {
                    let (time, exact) = q.answer(&a, &KNOWN).unwrap_or_else(|| panic!("{operation:?} by {a}"));
                    assert!(time > KNOWN.call && time.is_finite() && exact, "{operation:?} by {a}: {time}");
                }
            }
            // A word passes in a letter, and has no parts.
            let algorithms = ask(operation, 16, 1, 8).algorithms();
            let by = |name: &str| algorithms.iter().any(|a| a.to_string() == name);
            assert!(by("chain:mail") && !by("slices:push") && !by("flat:split"), "{operation:?}: {algorithms:?}");
        }
    }

    /// What all ranks claim together is counted for each: there is no room for the plans of many.
    #[test]
    fn claims_are_counted() {
        let q = ask(Operation::AllReduce, 256, 1, 1 << 20);
        let coop: Algorithm = "coop@16k".parse().unwrap();
        assert!(q.algorithms().contains(&coop) && q.steps(&coop).unwrap() > MOST_STEPS);
        // And no more of them than others have steps.
        assert!(!ask(Operation::AllReduce, 256, 1, 64 << 20).algorithms().contains(&coop));
    }

    /// What was continued from a few ranks is what is computed with all of them.
    #[test]
    fn curves_go_on_as_they_must() {
        for (operation, name) in [
            (Operation::Exchange, "flat:push"),
            (Operation::Exchange, "pairwise:push"),
            (Operation::GatherAll, "ring:push"),
            (Operation::GatherAll, "flat:pull"),
            (Operation::Broadcast, "tree2:push"),
        ] {
            let algorithm: Algorithm = name.parse().unwrap();
            for bytes in [8, 4096] {
                let time = |ranks| ask(operation, ranks, 1, bytes).computed(&algorithm, &KNOWN).unwrap();
                let points: Vec<(f64, f64)> = [8, 16, 32, 64].map(|n| (n as f64, time(n))).to_vec();
                let (there, far) = (time(192), continued(&points, 192.0).unwrap());
                assert!((far / there - 1.0).abs() < 0.1, "{operation:?} by {name}, {bytes}: {far}, not {there}");
            }
        }
        let line: Vec<(f64, f64)> = [2.0, 4.0, 8.0, 16.0].map(|p: f64| (p, 3.0 + p * p.log2())).to_vec();
        assert!((continued(&line, 64.0).unwrap() - 387.0).abs() < 1e-6);
    }

    #[test]
    fn many_ranks_are_continued() {
        let q = ask(Operation::Exchange, 4096, 1, 8);
        let (time, exact) = q.answer(&"flat:push".parse().unwrap(), &KNOWN).unwrap();
        // No rank can send 4095 messages in less.
        assert!(!exact && time > 4095.0 * 0.05, "{time}");
        let (time, exact) =
            ask(Operation::Broadcast, 1024, 1, 8).answer(&"tree2:push".parse().unwrap(), &KNOWN).unwrap();
        assert!(exact && time > 10.0 * 0.2, "{time}");
    }
}
