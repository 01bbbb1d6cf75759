//! Who combines what with what, and in which order.
//!
//! A reduction has no blocks: each rank has an *operand*, a vector, and what passes are *partial results*, the operands of
//! some ranks combined. A flow says, as arithmetic on the rank's number, what the rank sends, receives and combines, and in
//! which of its [places](Place). Which memory those are, how data pass and who waits for what is not its business.
//!
//! What a flow promises, and the checker finds out:
//!
//! - What one sends to another, the other receives, in the same order; both name the place at either end.
//! - The operands are combined as the operation says, each once, and in the order of ranks if the shape is ordered. Which are
//!   combined first depends on the shape only; where all ranks get a result, it is the same to the last bit.
//! - A place that was sent from is not changed in the same plan, unless what changes it came from those who received it.
//!   Letters have been read when they are sent, so with [`Way::Mail`] it may be.
//! - A place of its own that a rank combines into and where it has something already is not one to which others put.
//!
//! A vector passes in [parts](Shape::parts), each by itself.

mod direct;
mod doubling;
mod ring;
mod scan;
mod tree;

use std::ops::Range;

use crate::coll::{Flow, Op, Shape, Way};

/// Where a rank has a vector, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Its operand.
    Own,
    /// Its result. In place, that is where its operand is.
    Result,
    /// Memory that is not the caller's; as many as the flow takes.
    Slot(usize),
}

/// What a rank does with one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Sends what it has at `value`, which the receiver has at `there`, unless it combines it at once. It is a `result` that
    /// is not combined any more, or it is not.
    Send { to: usize, value: Place, there: Place, result: bool },
    /// Receives what `from` has at `value`, and has it at `here`.
    Receive { from: usize, value: Place, here: Place, result: bool },
    /// The same, but it is combined with what this rank has at `into`. If it cannot be at once, it is at `here` until then.
    Fold { from: usize, value: Place, here: Place, into: Place, before: bool },
    /// Combines its own `src` with its own `into`.
    Combine { src: Place, into: Place, before: bool },
    /// Copies its own `src` to its own `dst`.
    Copy { src: Place, dst: Place },
}

/// What rank `me` does, in order, and with which part; nothing where no flow does the operation so.
pub fn acts(shape: &Shape, me: usize) -> Option<Vec<(usize, Act)>> {
    let mut list = Acts { shape, me, part: 0, list: vec![] };
    match (shape.flow, &shape.op) {
        _ if !shape.flow.serves(shape) => return None,
        _ if shape.ranks == 1 => list.alone(),
        (Flow::Flat, _) => direct::flat(&mut list),
        (Flow::Slices, Op::Prefix { exclusive }) => direct::prefix_slices(&mut list, *exclusive),
        (Flow::Slices, _) => direct::slices(&mut list),
        (Flow::Chain(_), Op::Prefix { exclusive }) => scan::chain(&mut list, *exclusive),
        (Flow::Dissemination, Op::Prefix { exclusive }) => scan::dissemination(&mut list, *exclusive),
        (Flow::Tree(_) | Flow::Chain(_) | Flow::Nodes(..), _) => tree::up_and_down(&mut list),
        (Flow::Doubling | Flow::Leaders, _) => doubling::all_reduce(&mut list),
        (Flow::Ring, _) => ring::all_reduce(&mut list),
        _ => return None,
    }
    Some(list.list)
}

/// How many slots a flow takes, each for all of a vector, or for one part.
pub fn slots(shape: &Shape) -> usize {
    let p = shape.ranks;
    // What is put lands somewhere; what is got or sent is combined at once.
    let lands = shape.way == Way::Push;
    match (shape.flow, &shape.op) {
        _ if p == 1 => 0,
        (Flow::Slices, Op::Prefix { .. }) => p,
        (Flow::Flat | Flow::Slices, _) => direct::slots(shape),
        (Flow::Chain(_), Op::Prefix { exclusive }) => match (exclusive, shape.in_place) {
            (true, in_place) => 1 + usize::from(in_place),
            (false, in_place) => usize::from(in_place && lands),
        },
        (Flow::Dissemination, Op::Prefix { exclusive }) => match (shape.way, exclusive) {
            (Way::Mail, false) => 0,
            _ => scan::rounds(p),
        },
        (Flow::Tree(_) | Flow::Chain(_) | Flow::Nodes(..), _) => tree::slots(shape),
        (Flow::Doubling | Flow::Leaders, _) => doubling::slots(shape),
        (Flow::Ring, _) if shape.in_place && lands => p,
        _ => 0,
    }
}

impl Shape {
    /// In how many parts the vectors of a reduction pass: as equal as elements allow, in order.
    pub fn parts(&self) -> usize {
        match (self.flow, &self.op) {
            (Flow::Slices, _) | (Flow::Ring, Op::AllReduce) => self.ranks,
            (Flow::Chain(pieces), _) => pieces,
            (Flow::Nodes(_, leaders), _) => leaders,
            _ => 1,
        }
    }

    /// The bytes of a part.
    pub fn part(&self, part: usize) -> Range<usize> {
        let (elements, parts) = (self.len / self.grain, self.parts());
        let begin = |part: usize| (elements / parts * part + (elements % parts).min(part)) * self.grain;
        begin(part)..begin(part + 1)
    }

    /// A slot has one part at a time.
    pub(in super::super) fn slot_is_part(&self) -> bool {
        matches!(self.flow, Flow::Slices | Flow::Ring)
    }

    /// The operand of `rank` is where its result must be.
    pub fn begins_in_place(&self, rank: usize) -> bool {
        self.in_place && self.has_result(rank)
    }

    /// `rank` has a destination.
    pub(in super::super) fn has_result(&self, rank: usize) -> bool {
        self.op.root().is_none_or(|root| root == rank)
    }

    /// The ranks whose operands make up the result of `rank`; none if it has none.
    pub fn operands(&self, rank: usize) -> Range<usize> {
        match self.op {
            Op::Reduce { root } if root == rank => 0..self.ranks,
            Op::AllReduce => 0..self.ranks,
            Op::Prefix { exclusive } => 0..rank + usize::from(!exclusive),
            _ => 0..0,
        }
    }
}

/// The acts of a rank, as its flow says them.
struct Acts<'a> {
    shape: &'a Shape,
    me: usize,
    part: usize,
    list: Vec<(usize, Act)>,
}

impl Acts<'_> {
    fn add(&mut self, act: Act) {
        self.list.push((self.part, act));
    }

    fn send(&mut self, to: usize, value: Place, there: Place) {
        self.add(Act::Send { to, value, there, result: false });
    }

    fn receive(&mut self, from: usize, value: Place, here: Place) {
        self.add(Act::Receive { from, value, here, result: false });
    }

    /// What is at `value` is the result of `to`.
    fn send_result(&mut self, to: usize, value: Place) {
        self.add(Act::Send { to, value, there: Place::Result, result: true });
    }

    fn receive_result(&mut self, from: usize, value: Place) {
        self.add(Act::Receive { from, value, here: Place::Result, result: true });
    }

    fn fold(&mut self, from: usize, value: Place, here: Place, into: Place, before: bool) {
        self.add(Act::Fold { from, value, here, into, before });
    }

    fn combine(&mut self, src: Place, into: Place, before: bool) {
        self.add(Act::Combine { src, into, before });
    }

    /// There is one rank only.
    fn alone(&mut self) {
        for part in 0..self.shape.parts() {
            self.part = part;
            if !self.shape.operands(self.me).is_empty() {
                self.copy(Place::Own, Place::Result);
            }
        }
    }

    fn copy(&mut self, src: Place, dst: Place) {
        self.add(Act::Copy { src, dst });
    }
}
