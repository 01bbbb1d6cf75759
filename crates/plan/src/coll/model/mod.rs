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
//! Teams may overlap. A plan names members of its team; which ranks of the job they are says [`Run::members`], and the
//! order in which a rank begins collectives is its own, in all its teams. A team has scratch, signals, letters and halls at its
//! desk, where no other team has any: if one has, its scratch may be touched in any order, and a count has two who make it.
//! Starting a collective never waits, so it comes after those that the rank began before in this team, and those that block; one that
//! blocks is over before the rank begins another.
//!
//! [`explore`](fn@explore) decides the same by going through all states that can be reached, which is possible for few
//! ranks: it is there to check the checker.
//!
//! [`cost`](fn@cost) says how long plans take on a machine of which a few numbers are known.

mod calls;
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

/// One collective, by all its ranks, which are the members of a team.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is to be done.
    pub shape: Shape,
    /// What each rank does.
    pub plans: Vec<Plan>,
    /// Collectives of a team in the same context follow one another; those in different ones overlap.
    pub context: usize,
    /// Which ranks of the job they are: those of plans and shapes are numbers in this list.
    pub members: Vec<usize>,
    /// Which team they are. All its collectives have the same members.
    pub team: usize,
    /// Where its scratch, signals, letters and halls are: the number of the team, or of one whose memory it has by mistake.
    pub desk: usize,
    /// When each member begins it, among all that its rank begins: lower turns first, the same one in the order of the list. Members of
    /// a team begin its collectives in the same order.
    pub turns: Vec<usize>,
    /// Its ranks begin no other until they have returned from it; else they only start it.
    pub blocking: bool,
}

impl Run {
    /// The plans of a shape, where it has some, for the team of all, which starts it.
    pub fn new(shape: &Shape, context: usize) -> Option<Run> {
        Run::of_team(shape, context, 0, &(0..shape.ranks).collect::<Vec<_>>())
    }

    /// The same for the team of this number, whose members are these ranks of the job.
    ///
    /// # Panics
    /// If there are not as many members as ranks in the shape, or one is there twice.
    pub fn of_team(shape: &Shape, context: usize, team: usize, members: &[usize]) -> Option<Run> {
        let once = (1..members.len()).all(|i| !members[..i].contains(&members[i]));
        assert!(members.len() == shape.ranks && once, "a team: each rank of the shape is one of the job");
        let plans = (0..shape.ranks).map(|me| shape.plan(me)).collect::<Option<Vec<Plan>>>()?;
        let (members, turns) = (members.to_vec(), vec![0; shape.ranks]);
        Some(Run { shape: shape.clone(), plans, context, members, team, desk: team, turns, blocking: false })
    }
}

/// A step of a rank in the `run`-th of some collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which collective.
    pub run: usize,
    /// Whose, by its number in the team.
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

/// Checks collectives that each rank begins in this order, unless their turns say otherwise, for every choice of ranks that arrive last, and of who claims what.
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
