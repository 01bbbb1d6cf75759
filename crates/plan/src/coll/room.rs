//! How much room a shape needs on any rank: numbers on which all ranks agree without having made each other's plans.

use super::flow::rounds;
use super::{Flow, Kind, Op, Scheme, Shape, Way};

impl Shape {
    /// No rank's plan needs more scratch. Some need less, or none: it does not look at who passes what to whom.
    pub fn scratch(&self) -> usize {
        let p = self.ranks;
        if self.way == Way::Post {
            return self.mailed().scratch();
        }
        if self.op.combines() {
            return self.reduction_scratch();
        }
        match self.scheme {
            Scheme::Fused => {}
            Scheme::Plain | Scheme::Elements | Scheme::Trees => return 0,
            _ if p == 1 => return 0,
            Scheme::Dynamic => return 2 * self.slots() * self.len,
            Scheme::Static => return 2 * self.len,
        }
        // Blocks that their ranks cannot be given where they must be, or are not for them. A rank can get them there, unless
        // others get them from it.
        let direct = matches!(self.flow, Flow::Flat | Flow::Pairwise | Flow::Xor);
        let given = self.way == Way::Mail || (self.way == Way::Pull && direct);
        let landed = self.dest == Kind::Private && !given;
        let passed = match self.flow {
            Flow::Tree(k) => p > k + 1 && !matches!(self.op, Op::Broadcast { .. }),
            Flow::Nodes(..) => matches!(self.op, Op::Scatter { .. } | Op::Gather { .. } | Op::Exchange),
            Flow::Bruck => p > 3,
            _ => false,
        };
        // Where they begin others cannot get them. In place, that may be in the destination.
        let private = self.source == Kind::Private || (self.in_place && self.dest == Kind::Private);
        let staged = self.way == Way::Pull && (self.swaps() || private);
        if p == 1 || !(landed || passed || staged) {
            return 0;
        }
        match (&self.op, self.flow) {
            (Op::Scatter { .. }, Flow::Flat) if !staged => self.len,
            (Op::Gather { .. }, Flow::Flat) if !landed => self.len,
            // The ranks below one.
            (Op::Scatter { .. }, Flow::Tree(_)) if !staged => self.message(),
            (Op::Gather { .. }, Flow::Tree(_)) if !landed => self.message(),
            _ => self.slots() * self.len,
        }
    }

    /// No block has a [slot](Shape::slot) after so many.
    pub(super) fn slots(&self) -> usize {
        let p = self.ranks;
        match (&self.op, self.flow) {
            (Op::Broadcast { .. } | Op::Permute { .. }, _) => 1,
            (Op::Exchange, Flow::Bruck) => p * (usize::BITS - p.leading_zeros()) as usize,
            (Op::Exchange, Flow::Nodes(..)) => 2 * p * self.most(),
            _ => p,
        }
    }

    /// No message has more.
    pub fn message(&self) -> usize {
        let p = self.ranks;
        let blocks = match (&self.op, self.flow) {
            (Op::Broadcast { .. }, _) => 1,
            (op, _) if op.combines() => 1,
            (_, Flow::Tree(k)) => rounds(0, p, k).map(|(.., n)| n).max().unwrap_or(0),
            (_, Flow::Dissemination) => rounds(0, p, 2).map(|(.., n)| n).max().unwrap_or(0),
            (_, Flow::Bruck) => p / 2 + p % 2,
            (Op::Exchange, Flow::Nodes(..)) => p.max(self.most() * self.most()),
            (_, Flow::Nodes(..)) => p,
            _ => 1,
        };
        blocks * self.len
    }

    /// How many ranks a node has at most.
    pub(super) fn most(&self) -> usize {
        let nodes = self.nodes.as_ref();
        nodes.map_or(self.ranks, |n| (0..n.count()).map(|i| n.members(i).len()).max().unwrap_or(0))
    }
}
