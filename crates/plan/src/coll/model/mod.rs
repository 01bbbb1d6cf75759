//! The checker: what may happen when all ranks run their plans, in every order in which that is possible.
//!
//! [`check`] decides by a graph of what happens before what. Its nodes are entering, steps, a put's read, its arrival,
//! a signal's taking effect, and returning. Its edges are what an engine promises (see [`crate::coll`]) and nothing
//! else: a put is ordered by its own signal only. Steps are straight-line and each signal has one producer, so the
//! graph is the same in all executions, but for who arrives last, or claims what: there is one graph for each choice. A claim
//! orders nothing. Whatever
//! the graph does not order can happen in either order. Checked are:
//!
//! - There is no cycle, and nobody waits for what never comes: no deadlock. Mail holds one message for each pair here; an
//!   engine that holds more waits less.
//! - The sync mode, for every touch of data: who has entered before it, who returns after it. Private data are touched by
//!   their own rank only.
//! - Two touches of one place, of which one writes, are ordered: those of scratch by other collectives included.
//! - The postcondition, by symbols instead of data: of a reduction, which operands were combined, in which order, and
//!   by the same steps for all ranks. It cuts no elements. Buffers are as long as the operation asks, and what nothing must come to
//!   is as it was.
//! - What is made is what [`Plan::totals`] say: signals of each kind, arrivals, releases, claims; and all letters are taken.
//!
//! [`explore`](fn@explore) decides the same by going through all states that can be reached, which is possible for few
//! ranks: it is there to check the checker.
//!
//! [`cost`](fn@cost) says how long plans take on a machine of which a few numbers are known.

mod cells;
mod cost;
mod counts;
mod explore;
mod graph;
mod values;

pub use cost::{Link, Machine, cost};
pub use explore::explore;
use graph::Graph;

use super::{Plan, Shape, Step};

/// One collective, by all its ranks.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is to be done.
    pub shape: Shape,
    /// What each rank does.
    pub plans: Vec<Plan>,
    /// Collectives in the same context follow one another; those in different ones overlap.
    pub context: usize,
}

impl Run {
    /// The plans of a shape, where it has some.
    pub fn new(shape: &Shape, context: usize) -> Option<Run> {
        let plans = (0..shape.ranks).map(|me| shape.plan(me)).collect::<Option<Vec<Plan>>>()?;
        Some(Run { shape: shape.clone(), plans, context })
    }
}

/// A step of a rank in the `run`-th of some collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which collective.
    pub run: usize,
    /// Whose.
    pub rank: usize,
    /// Which step.
    pub step: usize,
}

/// What becomes of collectives of which one wait is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The checker says that it is missing.
    Missed,
    /// It is not missed: what it would make sure of, other waits do, for its rank, when it is reached.
    Implied,
    /// It is not missed, but it makes sure of something that nobody needs.
    Idle,
}

/// Checks collectives that each rank begins in this order, for every choice of ranks that arrive last, and of who claims what.
///
/// # Errors
/// What is wrong first, in words.
///
/// ```
/// use partage_plan::coll::{model, Flow, In, Kind, Op, Out, Scheme, Shape, Step, Way};
///
/// let op = Op::Gather { root: 0 };
/// let (flow, way, scheme, sync) = (Flow::Flat, Way::Push, Scheme::Fused, (In::My, Out::My));
/// let (ranks, nodes, len, stride, grain, ordered) = (3, None, 2, 2, 1, false);
/// let (source, dest, in_place) = (Kind::Shared, Kind::Shared, false);
/// let shape = Shape { op, flow, way, scheme, sync, ranks, nodes, len, stride, source, dest, in_place, grain, ordered };
/// let mut run = model::Run::new(&shape, 0).unwrap();
/// assert_eq!(model::check(&[run.clone()]), Ok(()));
/// run.plans[1].steps.retain(|step| !matches!(step, Step::Wait { .. }));
/// assert!(model::check(&[run]).unwrap_err().contains("rank 1, step 0"));
/// ```
pub fn check(runs: &[Run]) -> Result<(), String> {
    for_each_choice(runs, |choice| {
        Graph::new(runs, choice, None)?.check()?;
        counts::check(runs, choice)
    })
}

/// The waits of collectives.
pub fn waits(runs: &[Run]) -> Vec<Place> {
    let mut list = vec![];
    for (run, r) in runs.iter().enumerate() {
        for (rank, plan) in r.plans.iter().enumerate() {
            let waits = |s: &Step| matches!(s, Step::Wait { .. } | Step::Meet { .. } | Step::Released);
            let steps = (0..plan.steps.len()).filter(|&step| waits(&plan.steps[step]));
            list.extend(steps.map(|step| Place { run, rank, step }));
        }
    }
    list
}

/// What becomes of the collectives without one wait.
pub fn without(runs: &[Run], wait: Place) -> Verdict {
    let mut implied = true;
    let noticed = for_each_choice(runs, |choice| {
        let graph = Graph::new(runs, choice, Some(wait))?;
        implied &= graph.implied();
        graph.check()
    });
    match noticed {
        Err(_) => Verdict::Missed,
        Ok(()) if implied => Verdict::Implied,
        Ok(()) => Verdict::Idle,
    }
}

/// For all choices in each collective where there is one: the rank that is last; or who claims what, a number of which
/// [`claims`] makes sense.
fn for_each_choice(runs: &[Run], mut f: impl FnMut(&[usize]) -> Result<(), String>) -> Result<(), String> {
    let choices = |r: &Run| {
        let of = |step: &Step| match step {
            Step::Last { .. } => r.shape.ranks,
            Step::Claim { chunks } => r.shape.ranks.pow(chunks.len() as u32),
            _ => 1,
        };
        r.plans.iter().flat_map(|p| &p.steps).map(of).max().unwrap_or(1)
    };
    let choices: Vec<usize> = runs.iter().map(choices).collect();
    let mut choice = vec![0; runs.len()];
    loop {
        f(&choice)?;
        let Some(i) = (0..runs.len()).find(|&i| choice[i] + 1 < choices[i]) else {
            return Ok(());
        };
        choice[i] += 1;
        choice[..i].fill(0);
    }
}

/// Does `rank` claim this chunk? Each digit of the choice is a rank.
fn claims(choice: usize, ranks: usize, rank: usize, chunk: usize) -> bool {
    choice / ranks.pow(chunk as u32) % ranks == rank
}
