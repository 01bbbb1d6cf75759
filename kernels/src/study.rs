//! The study: what [products](crate::spmv), [conjugate gradients](crate::cg) and [trees](crate::trees) take, by how ranks
//! know that values have come.
//!
//! # How it is measured
//! All variants run in one job, in turns, round after round, each time in another order; the first round does not count. A
//! figure is a median over rounds. Ranks differ: in every round, a figure is that of the rank in the middle, or that of the
//! slowest where it says so. A ratio is the median of the rounds' ratios. Everything that is measured is checked, when the clock
//! has stopped.
//!
//! ```
//! use partage_kernels::stencil::Grid;
//! use partage_kernels::study::{Amount, products};
//! partage::test(2, |job| {
//!     let report = products(job, Grid::square(16), Amount { rounds: 2, steps: 3 }).unwrap();
//!     assert_eq!((report.rows.len(), report.wrong), (5, 0));
//!     assert_eq!(report.rows[0].ratio, 1.0);                        // of a barrier to itself
//! });
//! ```

use crate::cg::{self, Solver, Variant};
use crate::clock::{Clock, Doing, median};
use crate::spmv::{self, Spmv, Sync};
use crate::stencil::Grid;
use crate::trees::{AllReduce, Broadcast, Way};
use partage::prelude::*;
use std::fmt;
use std::time::Instant;

/// What communication consists of.
const COMMUNICATION: [Doing; 3] = [Doing::Send, Doing::Wait, Doing::Barrier];
/// The vectors that products are taken with, in turns: not in step with the two sets of a lane, so that old values show.
const VECTORS: u64 = 3;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Rounds that count.
    pub rounds: usize,
    /// How often each variant does in a round what it does. As many results of products are kept, to be checked.
    pub steps: usize,
}

/// What products take.
#[derive(Clone, Debug)]
pub struct Products {
    /// Of which matrix.
    pub grid: Grid,
    /// Ranks of the job.
    pub ranks: usize,
    /// How often.
    pub amount: Amount,
    /// In the order of [`Sync::ALL`].
    pub rows: Vec<Product>,
    /// Values that were not what one rank alone gets.
    pub wrong: usize,
}

/// What a product takes by one synchronization. Times are in seconds.
#[derive(Clone, Debug)]
pub struct Product {
    /// Which.
    pub sync: Sync,
    /// Computation, sending, waiting, barrier.
    pub split: [f64; 4],
    /// The same of the slowest rank.
    pub slowest: [f64; 4],
    /// Synchronous communication: sending, waiting and barrier.
    pub synchronous: f64,
    /// The same of the slowest rank.
    pub synchronous_slowest: f64,
    /// All of it.
    pub total: f64,
    /// Synchronous communication against that with a barrier.
    pub ratio: f64,
    /// The same of the slowest ranks.
    pub ratio_slowest: f64,
    /// The whole product against that with a barrier.
    pub total_ratio: f64,
}

/// Collective: measures products.
pub fn products(job: &Job, grid: Grid, amount: Amount) -> partage::Result<Products> {
    let variants = Sync::ALL.len();
    let mut a = Spmv::new(job, grid)?;
    let vectors: Vec<Vec<f64>> = (0..VECTORS).map(|which| a.vector(which)).collect();
    let right: Vec<Vec<f64>> = (0..VECTORS).map(|which| a.product(which)).collect();
    // One for each product of a turn: all are checked, after the last of them.
    let mut products = vec![vec![0.0; a.rows().len()]; amount.steps];
    let (mut times, mut wrong) = (vec![], 0);
    for round in 0..=amount.rounds {
        let mut clocks = Sync::ALL.map(|_| Clock::start());
        for turn in 0..variants {
            let variant = (round + turn) % variants;
            job.barrier();
            let mut clock = Clock::start();
            for (x, y) in vectors.iter().cycle().zip(&mut products) {
                a.multiply(Sync::ALL[variant], x, y, &mut clock);
            }
            clocks[variant] = clock;
            for (right, y) in right.iter().cycle().zip(&mut products) {
                wrong += y.iter().zip(right).filter(|(y, right)| y != right).count();
                // So that a value that is not written is found the next time.
                y.fill(f64::NAN);
            }
        }
        if round > 0 {
            let parts = [Doing::Compute, Doing::Send, Doing::Wait, Doing::Barrier];
            times.extend(clocks.iter().flat_map(|clock| parts.map(|part| clock.spent(part) / amount.steps as f64)));
        }
    }
    a.free();
    times.push(wrong as f64);
    let all = gather(job, &times)?;
    let wrong = all.iter().map(|times| times[times.len() - 1] as usize).sum();
    let part =
        |rank: usize, round: usize, variant: usize| -> &[f64] { &all[rank][4 * (round * variants + variant)..][..4] };
    let over = |what: &dyn Fn(&[f64]) -> f64, variant: usize| -> Ranks {
        let of = |round, rank| what(part(rank, round, variant));
        Ranks { of: (0..amount.rounds).map(|round| (0..all.len()).map(|rank| of(round, rank)).collect()).collect() }
    };
    let synchronous = |part: &[f64]| part[1..].iter().sum::<f64>();
    let total = |part: &[f64]| part.iter().sum::<f64>();
    let row = |(variant, &sync): (usize, &Sync)| {
        let split: Vec<Ranks> = (0..4).map(|i| over(&|part| part[i], variant)).collect();
        let [(comm, comm_barrier), (whole, whole_barrier)] =
            [&synchronous as &dyn Fn(&[f64]) -> f64, &total].map(|what| (over(what, variant), over(what, 0)));
        Product {
            sync,
            split: [0, 1, 2, 3].map(|i| split[i].middle()),
            slowest: [0, 1, 2, 3].map(|i| split[i].slowest()),
            synchronous: comm.middle(),
            synchronous_slowest: comm.slowest(),
            total: whole.middle(),
            ratio: comm.ratio(&comm_barrier),
            ratio_slowest: comm.ratio_slowest(&comm_barrier),
            total_ratio: whole.ratio(&whole_barrier),
        }
    };
    Ok(Products { grid, ranks: job.size(), amount, rows: Sync::ALL.iter().enumerate().map(row).collect(), wrong })
}

/// What conjugate gradients take.
#[derive(Clone, Debug)]
pub struct Solutions {
    /// Of which matrix.
    pub grid: Grid,
    /// Ranks of the job.
    pub ranks: usize,
    /// Rounds that count.
    pub rounds: usize,
    /// Iterations of each.
    pub iterations: usize,
    /// In the order of [`Variant::ALL`].
    pub rows: Vec<Solution>,
    /// The length of the residual, as a part of that of b.
    pub residual: f64,
    /// Values that differ between variants.
    pub differ: usize,
    /// How far x is from that of one rank alone, as a part of its length.
    pub from_serial: f64,
    /// How far the residual is from the true one, as a part of the length of b.
    pub from_true: f64,
}

/// What all iterations take by one variant, in seconds.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Which.
    pub variant: Variant,
    /// Products: computation.
    pub compute: f64,
    /// Products: synchronous communication.
    pub synchronous: f64,
    /// Sums.
    pub sums: f64,
    /// Vectors.
    pub vectors: f64,
    /// All of it.
    pub total: f64,
    /// All of it, against that with a barrier.
    pub ratio: f64,
}

impl Solutions {
    /// Are all results as they should be?
    pub fn passes(&self) -> bool {
        self.differ == 0 && self.from_serial <= cg::TOLERANCE && self.from_true <= cg::TOLERANCE
    }
}

/// Collective: measures conjugate gradients.
pub fn solutions(job: &Job, grid: Grid, rounds: usize, iterations: usize) -> partage::Result<Solutions> {
    let variants = Variant::ALL.len();
    let mut solver = Solver::new(job, grid)?;
    let mut first: Option<Vec<f64>> = None;
    let (mut times, mut differ, mut residual) = (vec![], 0, 0.0);
    for round in 0..=rounds {
        let mut clocks = Variant::ALL.map(|_| Clock::start());
        for turn in 0..variants {
            let variant = (round + turn) % variants;
            job.barrier();
            let mut clock = Clock::start();
            residual = solver.solve(Variant::ALL[variant], iterations, &mut clock);
            clocks[variant] = clock;
            let first = first.get_or_insert_with(|| solver.x().to_vec());
            differ += first.iter().zip(solver.x()).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
        if round > 0 {
            times.extend(clocks.iter().flat_map(|clock| {
                let synchronous: f64 = COMMUNICATION.map(|part| clock.spent(part)).iter().sum();
                let [compute, sums, vectors] =
                    [Doing::Compute, Doing::Reduce, Doing::Vectors].map(|part| clock.spent(part));
                [compute, synchronous, sums, vectors]
            }));
        }
    }
    let (real, b) = solver.true_residual();
    let [apart, length] = from_serial(job, grid, iterations, &solver)?;
    solver.free();
    times.extend([differ as f64, apart, length]);
    let all = gather(job, &times)?;
    let last = |back: usize| all.iter().map(|times| times[times.len() - back]).sum::<f64>();
    let over = |parts: std::ops::Range<usize>, variant: usize| {
        let of = |round, rank: usize| all[rank][4 * (round * variants + variant)..][parts.clone()].iter().sum();
        Ranks { of: (0..rounds).map(|round| (0..all.len()).map(|rank| of(round, rank)).collect()).collect() }
    };
    let row = |(i, &variant): (usize, &Variant)| Solution {
        variant,
        compute: over(0..1, i).middle(),
        synchronous: over(1..2, i).middle(),
        sums: over(2..3, i).middle(),
        vectors: over(3..4, i).middle(),
        total: over(0..4, i).middle(),
        ratio: over(0..4, i).ratio(&over(0..4, 0)),
    };
    Ok(Solutions {
        grid,
        ranks: job.size(),
        rounds,
        iterations,
        rows: Variant::ALL.iter().enumerate().map(row).collect(),
        residual: residual / b,
        differ: last(3) as usize,
        from_serial: (last(2) / last(1)).sqrt(),
        from_true: (residual - real).abs() / b,
    })
}

/// Collective: rank 0 solves alone. Of this rank's part, the squares of how far the two are apart, and of the length.
fn from_serial(job: &Job, grid: Grid, iterations: usize, solver: &Solver) -> partage::Result<[f64; 2]> {
    let serial = job.array_unset::<f64>(grid.points())?;
    if job.rank() == Rank(0) {
        serial.put_slice(0, &cg::serial(grid, iterations).0);
    }
    job.barrier();
    let mut wanted = vec![0.0; solver.x().len()];
    serial.get_slice(solver.rows().start, &mut wanted);
    let apart = solver.x().iter().zip(&wanted).map(|(x, wanted)| (x - wanted) * (x - wanted)).sum();
    Ok([apart, wanted.iter().map(|x| x * x).sum()])
}

/// What trees take.
#[derive(Clone, Debug)]
pub struct Trees {
    /// Ranks of the job.
    pub ranks: usize,
    /// How often.
    pub amount: Amount,
    /// By size.
    pub rows: Vec<Tree>,
    /// Values that were not what was sent, or not the sum.
    pub wrong: usize,
}

/// What a broadcast and an all-reduce of so many doubles take, of the slowest rank, in seconds; in the order of [`Way::ALL`].
#[derive(Clone, Debug)]
pub struct Tree {
    /// How many.
    pub doubles: usize,
    /// The broadcast by the best tree, and its radix.
    pub broadcast: [(f64, usize); 2],
    /// That by the binomial tree.
    pub binomial: [f64; 2],
    /// The all-reduce.
    pub all_reduce: [f64; 2],
    /// `put_signal` against put and flag: best broadcasts, binomial ones, all-reduces.
    pub ratios: [f64; 3],
}

/// Collective: measures trees of 1, 2, 4 … `most` doubles.
pub fn trees(job: &Job, most: usize, amount: Amount) -> partage::Result<Trees> {
    let ranks = job.size();
    let flat = ranks.max(2);
    let radices: Vec<usize> = [2, 4, 8].into_iter().filter(|&radix| radix < flat).chain([flat]).collect();
    let mut broadcasts = vec![];
    for &radix in &radices {
        broadcasts.push(Broadcast::new(job, radix, most)?);
    }
    let mut sums = AllReduce::new(job, most)?;
    let (mut rows, mut wrong) = (vec![], 0);
    for doubles in std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n <= most) {
        let mut values = vec![0.0; doubles];
        // By rounds: of each tree and way its steps, and of each way the all-reduce's.
        let mut times = vec![];
        for round in 0..=amount.rounds {
            if round == 1 {
                times.clear();
            }
            for (tree, way) in (0..radices.len()).flat_map(|tree| Way::ALL.map(|way| (tree, way))) {
                for step in 0..amount.steps {
                    let value = |i: usize| spmv::value(i, step as u64);
                    values
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, v)| *v = if job.rank().0 == 0 { value(i) } else { -1.0 });
                    job.barrier();
                    let start = Instant::now();
                    broadcasts[tree].send(way, &mut values);
                    times.push(start.elapsed().as_secs_f64());
                    wrong += values.iter().enumerate().filter(|&(i, &v)| v != value(i)).count();
                }
            }
            for way in Way::ALL {
                job.barrier();
                for step in 0..amount.steps {
                    let value = |i: usize, rank: usize| spmv::value(i + rank, step as u64);
                    values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i, job.rank().index()));
                    let start = Instant::now();
                    sums.sum(way, &mut values);
                    times.push(start.elapsed().as_secs_f64());
                    let sum = |i: usize| (0..ranks).map(|rank| value(i, rank)).sum::<f64>();
                    wrong += values.iter().enumerate().filter(|&(i, &v)| v != sum(i)).count();
                }
            }
        }
        let all = gather(job, &times)?;
        let kinds = Way::ALL.len() * (radices.len() + 1);
        // Every step is one of its own.
        let over = |kind: usize| {
            let index = |round: usize, step: usize| (round * kinds + kind) * amount.steps + step;
            let steps = (0..amount.rounds).flat_map(|round| (0..amount.steps).map(move |step| index(round, step)));
            Ranks { of: steps.map(|i| all.iter().map(|times| times[i]).collect()).collect() }
        };
        let best = |way: usize| {
            let tree = |(i, &radix): (usize, &usize)| (over(2 * i + way).slowest(), radix);
            radices.iter().enumerate().map(tree).min_by(|a, b| a.0.total_cmp(&b.0)).expect("a tree")
        };
        let (broadcast, reduce) = ([best(0), best(1)], [0, 1].map(|way| over(2 * radices.len() + way).slowest()));
        let binomial = [0, 1].map(|way| over(way).slowest());
        let ratios = [broadcast.map(|best| best.0), binomial, reduce].map(|[flag, signal]| signal / flag);
        rows.push(Tree { doubles, broadcast, binomial, all_reduce: reduce, ratios });
    }
    broadcasts.into_iter().for_each(Broadcast::free);
    sums.free();
    let wrong = gather(job, &[wrong as f64])?.iter().map(|wrong| wrong[0] as usize).sum();
    Ok(Trees { ranks, amount, rows, wrong })
}

/// Collective: what all ranks have, of the same length.
fn gather(job: &Job, mine: &[f64]) -> partage::Result<Vec<Vec<f64>>> {
    let all = job.array::<f64>(Layout::per_rank(mine.len()))?;
    all.cells().write(0, mine);
    job.barrier();
    let of = |rank: Rank| all.fetch(rank.index() * mine.len()..(rank.index() + 1) * mine.len()).wait();
    Ok(job.ranks().map(of).collect())
}

/// A figure of all ranks, in all rounds.
struct Ranks {
    of: Vec<Vec<f64>>,
}

impl Ranks {
    fn middles(&self) -> impl Iterator<Item = f64> {
        self.of.iter().map(|ranks| median(ranks.iter().copied()))
    }

    fn largest(&self) -> impl Iterator<Item = f64> {
        self.of.iter().map(|ranks| ranks.iter().copied().fold(0.0, f64::max))
    }

    fn middle(&self) -> f64 {
        median(self.middles())
    }

    fn slowest(&self) -> f64 {
        median(self.largest())
    }

    fn ratio(&self, to: &Ranks) -> f64 {
        median(self.middles().zip(to.middles()).map(|(a, b)| a / b))
    }

    fn ratio_slowest(&self, to: &Ranks) -> f64 {
        median(self.largest().zip(to.largest()).map(|(a, b)| a / b))
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Products { grid, ranks, amount: Amount { rounds, steps }, rows, wrong } = self;
        writeln!(f, "y = A x: {grid}, {ranks} ranks, {rounds} rounds of {steps} products; µs per product")?;
        let heads = ["compute", "send", "wait", "barrier", "synchronous", "ratio", "total", "ratio", "lines"];
        write!(f, "{:32}", "")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>12}"))?;
        for row in rows {
            write!(f, "\n{:32}", row.sync)?;
            row.split.iter().chain([&row.synchronous]).try_for_each(|t| micros(f, *t))?;
            write!(f, "{:12.3}", row.ratio)?;
            micros(f, row.total)?;
            write!(f, "{:12.3}{:>12}", row.total_ratio, row.sync.lines())?;
            write!(f, "\n{:32}", "    the slowest rank")?;
            row.slowest.iter().chain([&row.synchronous_slowest]).try_for_each(|t| micros(f, *t))?;
            write!(f, "{:12.3}", row.ratio_slowest)?;
        }
        let common = spmv::common_lines();
        write!(f, "\nratio: to the first; lines: of code, beside {common} of all; {wrong} values wrong")?;
        if let [barrier, .., signal] = &rows[..] {
            let (ratio, slowest) = (signal.ratio, signal.ratio_slowest);
            let what = format!("{} / {}", signal.sync, barrier.sync);
            write!(f, "\n{what}, synchronous communication: {ratio:.3} (of the slowest ranks: {slowest:.3})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Solutions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Solutions { grid, ranks, rounds, iterations, rows, residual, differ, from_serial, from_true } = self;
        writeln!(f, "A x = b: {grid}, {ranks} ranks, {rounds} rounds of {iterations} iterations; µs per iteration")?;
        write!(f, "{:52}", "products / sums")?;
        ["compute", "synchronous", "sums", "vectors", "total", "ratio"]
            .iter()
            .try_for_each(|h| write!(f, "{h:>12}"))?;
        for row in rows {
            write!(f, "\n{:52}", row.variant)?;
            let Solution { compute, synchronous, sums, vectors, total, ratio, .. } = row;
            [compute, synchronous, sums, vectors, total].iter().try_for_each(|t| micros(f, *t / *iterations as f64))?;
            write!(f, "{ratio:12.3}")?;
        }
        write!(f, "\nresidual {residual:.3e} of b, {from_true:.1e} from the true one; ")?;
        write!(f, "{differ} values differ between variants; x is {from_serial:.1e} from that of one rank alone")
    }
}

impl fmt::Display for Trees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trees { ranks, amount: Amount { rounds, steps }, rows, wrong } = self;
        writeln!(f, "trees: {ranks} ranks, {rounds} rounds of {steps}; µs, of the slowest rank")?;
        let [flag, signal] = Way::ALL;
        writeln!(f, "{:8}{:>46}{:>46}{:>46}", "", "broadcast, best tree (radix)", "broadcast, binomial", "all-reduce")?;
        write!(f, "{:8}", "doubles")?;
        (0..3).try_for_each(|_| write!(f, "{flag:>20}{signal:>16}{:>10}", "ratio"))?;
        for row in rows {
            let time = |time: f64| format!("{:.3}", time * 1e6);
            let best = row.broadcast.map(|(best, radix)| format!("{} ({radix})", time(best)));
            write!(f, "\n{:8}", row.doubles)?;
            for ([flag, signal], ratio) in
                [best, row.binomial.map(time), row.all_reduce.map(time)].iter().zip(row.ratios)
            {
                write!(f, "{flag:>20}{signal:>16}{ratio:10.3}")?;
            }
        }
        write!(f, "\n{wrong} values wrong")
    }
}

fn micros(f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
    write!(f, "{:12.3}", seconds * 1e6)
}

impl Products {
    /// One object for each synchronization, each on a line of its own. Times are in microseconds.
    pub fn json(&self) -> String {
        let Products { grid: Grid { x, y, z }, ranks, amount: Amount { rounds, steps }, rows, wrong } = self;
        let line = |row: &Product| {
            let Product { sync, split: [compute, send, wait, barrier], slowest, .. } = row;
            object(&[
                ("part", text("products")),
                ("grid", format!("[{x}, {y}, {z}]")),
                ("ranks", ranks.to_string()),
                ("rounds", rounds.to_string()),
                ("steps", steps.to_string()),
                ("sync", text(sync)),
                ("compute", number(compute * 1e6)),
                ("send", number(send * 1e6)),
                ("wait", number(wait * 1e6)),
                ("barrier", number(barrier * 1e6)),
                ("slowest", format!("[{}]", slowest.map(|t| number(t * 1e6)).join(", "))),
                ("synchronous", number(row.synchronous * 1e6)),
                ("synchronous_slowest", number(row.synchronous_slowest * 1e6)),
                ("total", number(row.total * 1e6)),
                ("ratio", number(row.ratio)),
                ("ratio_slowest", number(row.ratio_slowest)),
                ("total_ratio", number(row.total_ratio)),
                ("lines", sync.lines().to_string()),
                ("common_lines", spmv::common_lines().to_string()),
                ("wrong", wrong.to_string()),
            ])
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Solutions {
    /// One object for each variant, each on a line of its own. Times are in microseconds per iteration.
    pub fn json(&self) -> String {
        let Grid { x, y, z } = self.grid;
        let line = |row: &Solution| {
            let micros = |seconds: f64| number(seconds / self.iterations as f64 * 1e6);
            object(&[
                ("part", text("cg")),
                ("grid", format!("[{x}, {y}, {z}]")),
                ("ranks", self.ranks.to_string()),
                ("rounds", self.rounds.to_string()),
                ("iterations", self.iterations.to_string()),
                ("products", text(row.variant.products)),
                ("sums", text(row.variant.sums)),
                ("compute", micros(row.compute)),
                ("synchronous", micros(row.synchronous)),
                ("reduce", micros(row.sums)),
                ("vectors", micros(row.vectors)),
                ("total", micros(row.total)),
                ("ratio", number(row.ratio)),
                ("residual", number(self.residual)),
                ("differ", self.differ.to_string()),
                ("from_serial", number(self.from_serial)),
                ("from_true", number(self.from_true)),
            ])
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Trees {
    /// One object for each size, each on a line of its own. Times are in microseconds, those of put and flag first.
    pub fn json(&self) -> String {
        let line = |row: &Tree| {
            let pair = |times: [f64; 2]| format!("[{}]", times.map(|t| number(t * 1e6)).join(", "));
            object(&[
                ("part", text("trees")),
                ("ranks", self.ranks.to_string()),
                ("rounds", self.amount.rounds.to_string()),
                ("steps", self.amount.steps.to_string()),
                ("doubles", row.doubles.to_string()),
                ("broadcast", pair(row.broadcast.map(|best| best.0))),
                ("radix", format!("[{}, {}]", row.broadcast[0].1, row.broadcast[1].1)),
                ("broadcast_ratio", number(row.ratios[0])),
                ("binomial", pair(row.binomial)),
                ("binomial_ratio", number(row.ratios[1])),
                ("all_reduce", pair(row.all_reduce)),
                ("all_reduce_ratio", number(row.ratios[2])),
                ("wrong", self.wrong.to_string()),
            ])
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

/// What has no number is null.
fn number(x: f64) -> String {
    if x.is_finite() { format!("{x:.6e}") } else { "null".into() }
}

fn text(x: impl fmt::Display) -> String {
    format!("\"{x}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_of_rounds() {
        let ours = Ranks { of: vec![vec![1.0, 2.0, 9.0], vec![3.0, 4.0, 5.0], vec![1.0, 1.0, 1.0]] };
        let theirs = Ranks { of: vec![vec![4.0; 3], vec![4.0; 3], vec![10.0; 3]] };
        assert_eq!((ours.middle(), ours.slowest()), (2.0, 5.0));
        assert_eq!((ours.ratio(&theirs), ours.ratio_slowest(&theirs)), (0.5, 1.25));
    }

    #[test]
    fn wrong_solutions_do_not_pass() {
        let report = partage::test(2, |job| solutions(job, Grid::square(6), 1, 8).unwrap()).swap_remove(1);
        assert!(report.passes() && report.rows.len() == 5 && report.rows[0].ratio == 1.0);
        assert!(!Solutions { differ: 1, ..report.clone() }.passes());
        assert!(!Solutions { from_serial: 1e-6, ..report.clone() }.passes());
        assert!(!Solutions { from_true: f64::NAN, ..report }.passes());
    }

    #[test]
    fn json_has_numbers_or_null() {
        let fields = [("a", number(0.5)), ("b", number(f64::NAN)), ("c", text(Sync::Signal))];
        assert_eq!(object(&fields), r#"{"a": 5.000000e-1, "b": null, "c": "put_signal"}"#);
    }
}
