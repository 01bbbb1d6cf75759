//! Who passes which block to whom, and in which order.
//!
//! A flow is arithmetic: from the shape and a rank's number it says what that rank sends and receives. Where blocks
//! lie, how they pass, and who waits for what is not its business, so every flow works for every buffer, way and sync
//! mode.
//!
//! What a flow promises, and the checker finds out: a rank sends what it begins with or has received before; what one
//! sends to another, the other receives, in the same order; no rank receives what it has.
//!
//! Rooted flows are written for root 0, and ranks are turned.

mod bruck;
mod direct;
mod dissemination;
mod nodes;
pub(super) mod reduce;
mod ring;
mod scatter_gather;
mod tree;

pub(super) use dissemination::rounds;
pub use nodes::Nodes;
pub(super) use tree::{children, parent};

use super::{Op, Shape};

/// An algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Every block straight to where it must be: all sends, then all receives.
    Flat,
    /// The same in rounds: in round `t`, to the rank `t` after and from the rank `t` before.
    Pairwise,
    /// The same in rounds: in round `t`, to and from the rank with number exclusive-or `t`, if there is one.
    Xor,
    /// Down or up a tree of this radix.
    Tree(usize),
    /// From each rank to the next one. A broadcast is a chain, its pieces one behind the other.
    Ring,
    /// Twice as many blocks in each round, from twice as far. A prefix: twice as many operands.
    Dissemination,
    /// Twice as many operands in each round, by swapping with the rank whose number differs in one bit.
    Doubling,
    /// The same by the first rank of each node, to which the others hand their operands.
    Leaders,
    /// Partial results from each rank to the next one, in so many pieces.
    Chain(usize),
    /// Each rank combines a part, and passes it to those who need it.
    Slices,
    /// Blocks travel as many hops as their distance has bits.
    Bruck,
    /// A broadcast in as many pieces as ranks: scattered down a tree of this radix, then passed round the ring.
    ScatterGather(usize),
    /// Flat inside a node, a tree of this radix between nodes, with so many leaders on each.
    Nodes(usize, usize),
    /// This rank does it all, in the buffers of all; nobody named: the root, or rank 0 where there is none.
    Leader(Option<usize>),
    /// The last rank to arrive does it all, in the buffers of all.
    Last,
    /// All do it, in the buffers of all, in chunks of so many bytes that each claims as it can.
    Coop(usize),
    /// Whichever GMTU takes for the operation in this scheme; a shape has that one instead.
    Gmtu,
}

/// A block that a rank sends or receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Blocks that are moved in the same direction, with the same peer and in the same round, next to each other, are
    /// one message.
    pub round: usize,
    /// To or from whom.
    pub peer: usize,
    /// What.
    pub block: usize,
    /// Sent, or received.
    pub send: bool,
}

impl Flow {
    /// Who does it, or a part of it, does that in the buffers of all.
    pub fn touches_all(self) -> bool {
        matches!(self, Flow::Leader(_) | Flow::Last | Flow::Coop(_))
    }

    /// Is it one for the operation?
    pub fn serves(self, shape: &Shape) -> bool {
        match self {
            Flow::Flat | Flow::Leader(_) | Flow::Last => true,
            _ if shape.op.combines() => self.reduces(shape),
            Flow::Gmtu => false,
            Flow::Pairwise | Flow::Xor => matches!(shape.op, Op::GatherAll | Op::Exchange),
            Flow::Tree(k) => k > 1 && shape.op.root().is_some(),
            Flow::Ring => matches!(shape.op, Op::Broadcast { .. } | Op::GatherAll),
            Flow::Dissemination => shape.op == Op::GatherAll,
            Flow::Bruck => shape.op == Op::Exchange,
            Flow::Doubling | Flow::Leaders | Flow::Chain(_) | Flow::Slices | Flow::Coop(_) => false,
            Flow::Nodes(k, leaders) => {
                k > 1 && leaders > 0 && shape.nodes.is_some() && !matches!(shape.op, Op::Permute { .. })
            }
            Flow::ScatterGather(k) => {
                k > 1 && matches!(shape.op, Op::Broadcast { pieces, .. } if pieces == shape.ranks)
            }
        }
    }

    /// Is it one for the reduction?
    fn reduces(self, shape: &Shape) -> bool {
        let prefix = matches!(shape.op, Op::Prefix { .. });
        let all = shape.op == Op::AllReduce;
        match (self, &shape.nodes) {
            (Flow::Tree(k), _) => k > 1 && !prefix,
            (Flow::Chain(pieces), _) => pieces > 0,
            (Flow::Slices, _) => true,
            (Flow::Coop(chunk), _) => chunk > 0,
            (Flow::Doubling, _) => all,
            (Flow::Leaders, Some(nodes)) => all && (!shape.ordered || nodes.are_intervals()),
            // It combines in the order of ranks, but does not begin with the first.
            (Flow::Ring, _) => all && !shape.ordered,
            (Flow::Dissemination, _) => prefix,
            (Flow::Nodes(k, leaders), Some(nodes)) => {
                k > 1 && leaders > 0 && !prefix && (!shape.ordered || nodes.are_intervals())
            }
            _ => false,
        }
    }

    /// What rank `me` sends and receives, in order; nothing where this flow is not one for the operation, or where no
    /// blocks are passed ([`Flow::Leader`], [`Flow::Last`]).
    pub fn moves(self, shape: &Shape, me: usize) -> Option<Vec<Move>> {
        if shape.op.combines() || !self.serves(shape) {
            return None;
        }
        let mut list = List::default();
        match (self, &shape.op) {
            (Flow::Flat, _) => direct::flat(shape, me, &mut list),
            (Flow::Pairwise, _) => direct::pairwise(shape, me, &mut list),
            (Flow::Xor, _) => direct::xor(shape, me, &mut list),
            (Flow::Tree(k), Op::Broadcast { .. }) => tree::broadcast(shape, k, me, &mut list),
            (Flow::Tree(k), Op::Scatter { .. }) => tree::scatter(shape, k, me, &mut list),
            (Flow::Tree(k), Op::Gather { .. }) => tree::gather(shape, k, me, &mut list),
            (Flow::Ring, Op::Broadcast { .. }) => ring::broadcast(shape, me, &mut list),
            (Flow::Ring, _) => ring::gather_all(shape, me, &mut list),
            (Flow::Dissemination, _) => dissemination::gather_all(shape, me, &mut list),
            (Flow::Bruck, _) => bruck::exchange(shape, me, &mut list),
            (Flow::ScatterGather(k), _) => scatter_gather::broadcast(shape, k, me, &mut list),
            (Flow::Nodes(k, leaders), _) => nodes::moves(shape, shape.nodes.as_ref()?, k, leaders, me, &mut list),
            _ => return None,
        }
        Some(list.moves)
    }
}

/// The moves of a rank, as its flow says them.
#[derive(Default)]
struct List {
    moves: Vec<Move>,
    round: usize,
}

impl List {
    /// One message to `peer`.
    fn send(&mut self, peer: usize, blocks: impl IntoIterator<Item = usize>) {
        self.message(peer, blocks, true);
    }

    /// One message from `peer`.
    fn receive(&mut self, peer: usize, blocks: impl IntoIterator<Item = usize>) {
        self.message(peer, blocks, false);
    }

    /// The same backwards: what was sent is received.
    fn reverse(&mut self) {
        let messages: Vec<&[Move]> = self.moves.chunk_by(|a, b| a.round == b.round).collect();
        let back = messages.into_iter().rev().flatten();
        self.moves = back.map(|m| Move { send: !m.send, ..*m }).collect();
    }

    fn message(&mut self, peer: usize, blocks: impl IntoIterator<Item = usize>, send: bool) {
        let round = self.round;
        self.moves.extend(blocks.into_iter().map(|block| Move { round, peer, block, send }));
        self.round += 1;
    }
}

/// Ranks seen from the root: it is 0, and the others follow.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub ranks: usize,
    pub root: usize,
}

impl Turn {
    pub fn of(shape: &Shape) -> Turn {
        Turn { ranks: shape.ranks, root: shape.op.root().unwrap_or(0) }
    }

    /// The number of `rank`, seen from the root.
    pub fn seen(&self, rank: usize) -> usize {
        (rank + self.ranks - self.root) % self.ranks
    }

    /// The rank that is `v`, seen from the root.
    pub fn rank(&self, v: usize) -> usize {
        (v + self.root) % self.ranks
    }
}
