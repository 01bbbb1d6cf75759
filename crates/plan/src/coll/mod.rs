//! Collectives before anybody communicates: what one rank has to do, as a list of steps.
//!
//! Each choice has one place, and any may be combined with any other that [`Shape::plan`] accepts:
//!
//! - [`ops`]: the operation, as what each rank has before and must have after.
//! - [`flow`]: who passes which block to whom, in which order; or who combines what. A new algorithm is one
//!   short file there.
//! - `lower`: how a block passes ([`Way`]), in what memory ([`Kind`]), and what that needs of [`In`] and [`Out`].
//! - `room`: how much scratch that needs, and how long its messages are.
//! - [`name`] and [`choice`]: what the algorithms are called, and the table that says which is taken when.
//! - [`model`]: the checker; it decides about every order in which the steps of all ranks may happen.
//!
//! Guaranteed: a rank makes its own steps only, from numbers that all ranks know, and those of all ranks fit together.
//!
//! Not contained: memory, signals, waiting. Whoever runs a plan (an *engine*) has those, and promises:
//!
//! - A rank runs its steps in order. [`Step`] says what each one means.
//! - A collective in flight has a *context*: scratch memory on each rank, counts of signals for each pair of ranks and
//!   each [`Signal`], a count of arrivals, one of releases, one of claims. Counts only grow. The numbers in a plan count from what
//!   [`Plan::totals`] of the plans before it in this context amount to, so nothing is ever reset.
//! - A rank ends a plan before it begins the next one in the same context. Collectives that overlap have different
//!   contexts: the `e`-th has context `e` modulo their number. Each team has contexts of its own, and counts its own collectives.
//! - A put has read its source when its plan ends, not earlier; it has arrived when its own signal has, not earlier.
//!   Signals of one rank to another, of one kind, take effect in the order in which they are made.

pub mod choice;
pub mod flow;
mod lower;
pub mod model;
pub mod name;
pub mod ops;
mod ragged;
mod room;

use std::sync::Arc;

pub use choice::{FEW, Setting, Table};
pub use flow::{Flow, Nodes};
pub use name::Algorithm;
pub use ops::{Op, OpKind};
pub use ragged::Ragged;

/// Who must have entered before data are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum In {
    /// Any one rank.
    No,
    /// The rank whose data are touched.
    My,
    /// All ranks.
    All,
}

/// What a rank that returns knows to be over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Out {
    /// Nothing; all is over when all have returned.
    No,
    /// Every touch of its own data.
    My,
    /// Every touch of any data.
    All,
}

/// Who may touch a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every rank.
    Shared,
    /// The rank that has it.
    Private,
}

/// How a block passes from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Its sender puts it.
    Push,
    /// Its receiver gets it.
    Pull,
    /// Its sender puts one half, its receiver gets the other; of shared buffers only. Of a reduction, operands are got and
    /// results are put.
    Split,
    /// It travels in the signal: each end touches its own memory only. A message must fit into what the engine has for one;
    /// longer data are several collectives.
    Mail,
    /// The same, but its sender posts it once for all who take it, or its receivers' next to each other, on a board that all ranks can read: of flat flows on one
    /// node, all of whose letters of one rank are the same, or all of whose letters come from one rank. The steps are those of [`Mail`](Way::Mail);
    /// [`Shape::posting`] says which line of the board each letter has.
    Post,
}

/// Which line of the board a letter has, of as many as there are ranks. Nobody writes to another's in the same collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posting {
    /// That of its sender, whose letters are all the same: it is written once.
    OfSender,
    /// That of its receiver: there is one sender.
    OfReceiver,
}

impl Posting {
    /// That of a letter.
    #[inline(always)]
    pub fn of(self, from: usize, to: usize) -> usize {
        match self {
            Posting::OfSender => from,
            Posting::OfReceiver => to,
        }
    }
}

/// What keeps ranks from touching data too early or too late, and where data pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheme {
    /// Each message has the signals that it needs. Data pass through scratch only where they must.
    #[default]
    Fused,
    /// A baseline: barriers before and after, unless the sync mode is `No` there; copies between them.
    Plain,
    /// The same with copies of single elements.
    Elements,
    /// A baseline: signals up and down a binary tree before and after.
    Trees,
    /// A baseline: at both ends data pass through scratch, of which there is as much as it takes.
    Dynamic,
    /// A baseline: at both ends data pass through scratch, where one block has room.
    Static,
}

/// All that a plan depends on but the rank.
///
/// ```
/// use partage_plan::coll::{Flow, In, Kind, Op, Out, Scheme, Shape, Step, Way};
///
/// let shape = Shape {
///     op: Op::Broadcast { root: 2, pieces: 1 },
///     flow: Flow::Tree(2),
///     way: Way::Push,
///     scheme: Scheme::Fused,
///     sync: (In::No, Out::My),
///     ranks: 3,
///     nodes: None,
///     len: 8,
///     stride: 8,
///     source: Kind::Shared,
///     dest: Kind::Shared,
///     in_place: false,
///     grain: 1,
///     ordered: false,
/// };
/// let steps = shape.plan(0).unwrap().steps;             // rank 0 is the root's next one: it waits, and passes nothing on
/// assert!(matches!(steps[..], [Step::Wait { from: 2, .. }]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The operation.
    pub op: Op,
    /// The algorithm.
    pub flow: Flow,
    /// How blocks pass.
    pub way: Way,
    /// What keeps ranks apart.
    pub scheme: Scheme,
    /// When data may be touched.
    pub sync: (In, Out),
    /// How many ranks there are.
    pub ranks: usize,
    /// On which nodes they are; nothing if that does not matter.
    pub nodes: Option<Arc<Nodes>>,
    /// The length of what each rank has or gets from each: a block's, and for a broadcast that of all its pieces.
    pub len: usize,
    /// How far apart blocks begin in source and destination: as far as they are long, or farther where a plan moves only a
    /// part of each.
    pub stride: usize,
    /// Who may touch the source.
    pub source: Kind,
    /// Who may touch the destination.
    pub dest: Kind,
    /// The data begin where they end, as far as a rank has both.
    pub in_place: bool,
    /// The bytes of an element, of which a reduction's vectors have a whole number, and so have their parts; 1 where nothing
    /// is combined.
    pub grain: usize,
    /// Operands are combined in the order of ranks; else in any order, each once.
    pub ordered: bool,
}

/// What a span is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Buffer {
    /// What the caller gives.
    Source,
    /// What the caller gets.
    Dest,
    /// The context's memory, which any rank may touch.
    Scratch,
}

/// A part of a rank's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which buffer.
    pub buffer: Buffer,
    /// Where it begins.
    pub at: usize,
    /// How long it is.
    pub len: usize,
}

/// What a signal says. Each kind has counts of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Signal {
    /// I have entered, and you may touch my data.
    Entered,
    /// It is there: what was put to you, or what you may get from me.
    Data,
    /// I have got it, and you may use its place again.
    Done,
    /// I have entered, and you may put to my scratch: I have ended whatever used it before. (No data of mine are touched, so one who
    /// knows that otherwise need not be told.)
    Free,
}

impl Signal {
    /// Which count it has. A rank says [`Entered`](Signal::Entered) or [`Free`](Signal::Free) to another one, not both.
    #[inline(always)]
    pub fn count(self) -> usize {
        match self {
            Signal::Entered | Signal::Free => 0,
            Signal::Data => 1,
            Signal::Done => 2,
        }
    }
}

/// What one rank does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the words on a variant name its fields")]
pub enum Step {
    /// Puts its own `src` to `dst` of `to`; when that is there, signals [`Signal::Data`] to it.
    Put { to: usize, src: Span, dst: Span },
    /// Gets `src` of `from` to its own `dst`, and has it when the next step begins.
    Get { from: usize, src: Span, dst: Span },
    /// Copies its own `src` to its own `dst`.
    Copy { src: Span, dst: Span },
    /// Copies `src` of `from` to `dst` of `to`, where it is when the next step begins. One of both is this rank, or both are
    /// on its node.
    Carry { from: usize, src: Span, to: usize, dst: Span },
    /// Does the copy that `step` is, so many bytes at a time.
    Each { len: usize, step: Box<Step> },
    /// Sends its own `src`, all of it in one message that is a signal too. When the step ends it has been read. It
    /// waits only for the message before it, to the same rank, to be taken; or, if it is [posted](Way::Post), for all ranks to have ended the collectives that had this
    /// context before.
    Send { to: usize, src: Vec<Span> },
    /// Waits for what `from` sends next, and takes it to its own `dst`.
    Take { from: usize, dst: Vec<Span> },
    /// Combines `src` of `from`, this rank or one whose memory it may touch, with its own `dst`, where the result is when the
    /// next step begins: `src` comes first in the order of operands if `before`, else second.
    Combine { from: usize, src: Span, dst: Span, before: bool },
    /// Waits for what `from` sends next, and combines it with its own `dst` in the same way.
    TakeCombine { from: usize, dst: Span, before: bool },
    /// Signals to `to`.
    Signal { to: usize, signal: Signal },
    /// Waits for the `n`-th such signal of `from`.
    Wait { from: usize, signal: Signal, n: usize },
    /// Arrives.
    Arrive,
    /// Waits until all ranks have arrived `n` times.
    Meet { n: usize },
    /// Arrives; the last rank to do so does these steps.
    Last { steps: Vec<Step> },
    /// Claims the first of these lists of steps that no rank has claimed, and does it; and so on, until there is none. It waits for
    /// nobody.
    Claim { chunks: Vec<Vec<Step>> },
    /// Releases all ranks.
    Release,
    /// Waits for the release.
    Released,
}

/// One rank's steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What it does, in order.
    pub steps: Vec<Step>,
    /// How much scratch it must have.
    pub scratch: usize,
    /// By how much the context's counts grow.
    pub totals: Totals,
}

impl Plan {
    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        let signals = self.totals.signals.len() * size_of::<(usize, Signal, usize)>();
        self.steps.iter().map(Step::bytes).sum::<usize>() + signals + size_of::<Plan>()
    }
}

impl Step {
    fn bytes(&self) -> usize {
        let all = |steps: &[Step]| steps.iter().map(Step::bytes).sum::<usize>();
        size_of::<Step>()
            + match self {
                Step::Each { step, .. } => step.bytes(),
                Step::Send { src: spans, .. } | Step::Take { dst: spans, .. } => size_of_val(&spans[..]),
                Step::Last { steps } => all(steps),
                Step::Claim { chunks } => chunks.iter().map(|steps| size_of::<Vec<Step>>() + all(steps)).sum(),
                _ => 0,
            }
    }
}

/// By how much a plan lets its context's counts grow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Arrivals of each rank.
    pub arrivals: usize,
    /// Releases.
    pub releases: usize,
    /// Lists of steps that were claimed, by whomever.
    pub claims: usize,
    /// Signals to this rank: from whom, of which kind, how many.
    pub signals: Vec<(usize, Signal, usize)>,
    /// Some rank sends this one more than one letter, and must know that the first has been taken.
    pub letters_again: bool,
}
