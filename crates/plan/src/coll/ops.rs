//! The operations, as what each rank has before and must have after.
//!
//! An operation moves *blocks*. [`Shape::origin`] is the precondition: each block begins at one rank, in one place.
//! [`Shape::target`] is the postcondition: where a rank must have it in the end. In between, a rank that passes a block
//! on without having to keep it has it in scratch, at [`Shape::slot`].
//!
//! A reduction combines *operands*, one of each rank, which are its blocks before; [`Shape::operands`] says which of them a
//! rank must have combined in its destination after.
//!
//! Not contained: how a block gets from the one to the other.

use std::ops::Range;

use super::{Buffer, Flow, Shape, Span};

/// What is to be done. Every rank's own number is that of its block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the words on a variant name its fields")]
pub enum Op {
    /// All get what `root` has; in so many pieces, each a block.
    Broadcast { root: usize, pieces: usize },
    /// Each gets its block of what `root` has.
    Scatter { root: usize },
    /// `root` gets a block of each.
    Gather { root: usize },
    /// All get a block of each.
    GatherAll,
    /// Each gets from each a block of its own: block `i * ranks + j` is from `i` to `j`.
    Exchange,
    /// `to[i]` gets the block of `i`. It is a permutation. A rank needs to know only where its own block goes and whose it
    /// gets: the others may be [`Op::UNKNOWN`], unless one rank does it all.
    Permute { to: Vec<usize> },
    /// `root` gets the operands of all, combined in the order of ranks.
    Reduce { root: usize },
    /// All get that.
    AllReduce,
    /// Each gets the operands of the ranks up to itself, combined in their order; `exclusive`: of those before it, so that rank 0 gets
    /// nothing.
    Prefix { exclusive: bool },
}

/// An operation without its details.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is as in `Op`")]
pub enum OpKind {
    Broadcast,
    Scatter,
    Gather,
    GatherAll,
    Exchange,
    Permute,
    Reduce,
    AllReduce,
    Prefix,
}

impl OpKind {
    /// All of them.
    pub const ALL: [OpKind; 9] = [
        OpKind::Broadcast,
        OpKind::Scatter,
        OpKind::Gather,
        OpKind::GatherAll,
        OpKind::Exchange,
        OpKind::Permute,
        OpKind::Reduce,
        OpKind::AllReduce,
        OpKind::Prefix,
    ];

    /// It combines operands.
    pub fn combines(self) -> bool {
        matches!(self, OpKind::Reduce | OpKind::AllReduce | OpKind::Prefix)
    }
}

impl Op {
    /// Where the block of another rank goes that this one need not know of.
    pub const UNKNOWN: usize = usize::MAX;

    /// Which one it is.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Broadcast { .. } => OpKind::Broadcast,
            Op::Scatter { .. } => OpKind::Scatter,
            Op::Gather { .. } => OpKind::Gather,
            Op::GatherAll => OpKind::GatherAll,
            Op::Exchange => OpKind::Exchange,
            Op::Permute { .. } => OpKind::Permute,
            Op::Reduce { .. } => OpKind::Reduce,
            Op::AllReduce => OpKind::AllReduce,
            Op::Prefix { .. } => OpKind::Prefix,
        }
    }

    /// The rank that all blocks come from or go to.
    pub fn root(&self) -> Option<usize> {
        match *self {
            Op::Broadcast { root, .. } | Op::Scatter { root } | Op::Gather { root } | Op::Reduce { root } => Some(root),
            Op::GatherAll | Op::Exchange | Op::Permute { .. } | Op::AllReduce | Op::Prefix { .. } => None,
        }
    }

    /// It combines operands.
    pub fn combines(&self) -> bool {
        self.kind().combines()
    }
}

impl Shape {
    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        match self.op {
            Op::Broadcast { pieces, .. } => pieces,
            Op::Exchange => self.ranks * self.ranks,
            _ => self.ranks,
        }
    }

    /// Where `block` is before: at which rank, and where there.
    pub fn origin(&self, block: usize) -> (usize, Span) {
        let (rank, at) = match self.op {
            Op::Broadcast { root, .. } => (root, 0),
            Op::Scatter { root } => (root, block),
            Op::Gather { .. } | Op::GatherAll | Op::Permute { .. } => (block, 0),
            Op::Exchange => (block / self.ranks, block % self.ranks),
            Op::Reduce { .. } | Op::AllReduce | Op::Prefix { .. } => {
                let buffer = if self.begins_in_place(block) { Buffer::Dest } else { Buffer::Source };
                return (block, Span { buffer, at: 0, len: self.len });
            }
        };
        match self.target(rank, block) {
            Some(span) if self.in_place => (rank, span),
            _ if self.swaps() => (rank, self.span(Buffer::Dest, at, block)),
            _ => (rank, self.span(Buffer::Source, at, block)),
        }
    }

    /// Where `rank` must have `block` after, if it must.
    pub fn target(&self, rank: usize, block: usize) -> Option<Span> {
        let at = match &self.op {
            Op::Broadcast { .. } => Some(0),
            // In place, the root's own block stays where it is.
            Op::Scatter { root } => (block == rank && !(self.in_place && rank == *root)).then_some(0),
            Op::Gather { root } => (rank == *root).then_some(block),
            Op::GatherAll => Some(block),
            Op::Exchange => (block % self.ranks == rank).then_some(block / self.ranks),
            Op::Permute { to } => (to[block] == rank).then_some(0),
            Op::Reduce { .. } | Op::AllReduce | Op::Prefix { .. } => None,
        };
        at.map(|at| self.span(Buffer::Dest, at, block))
    }

    /// Blocks begin where others end.
    pub(super) fn swaps(&self) -> bool {
        self.in_place && matches!(self.op, Op::Exchange | Op::Permute { .. })
    }

    /// Where `rank` has `block` in scratch: no two blocks that it may have there at once have the same place.
    pub fn slot(&self, rank: usize, block: usize) -> Span {
        let p = self.ranks;
        let slot = match self.op {
            Op::Broadcast { .. } | Op::Permute { .. } | Op::Reduce { .. } | Op::AllReduce | Op::Prefix { .. } => 0,
            Op::Scatter { .. } | Op::Gather { .. } | Op::GatherAll => (block + p - rank) % p,
            Op::Exchange => {
                let (from, to) = (block / p, block % p);
                match (self.flow, &self.nodes) {
                    // By leaders come blocks from their node, and to it. Those from one node to another lie side by
                    // side, as far as they have one leader.
                    (Flow::Nodes(_, leaders), Some(nodes)) => {
                        let (node, source, target) = (nodes.of(rank), nodes.of(from), nodes.of(to));
                        let (mine, theirs) = (nodes.members(node).len(), nodes.members(target).len());
                        let between = nodes.dealt(from, leaders) * theirs + nodes.index(to);
                        match source == node {
                            true => mine * nodes.before(target) + between,
                            false => mine * (p + nodes.before(source)) + between,
                        }
                    }
                    // A block that goes far by several hops meets those that go as far, but after other hops.
                    _ => {
                        let (far, gone) = ((to + p - from) % p, (rank + p - from) % p);
                        let hop = if gone == far { 0 } else { usize::BITS - gone.leading_zeros() };
                        hop as usize * p + far
                    }
                }
            }
        };
        self.span(Buffer::Scratch, slot, block)
    }

    /// The blocks that begin at `from` and end at `to`.
    pub fn between(&self, from: usize, to: usize) -> Range<usize> {
        match &self.op {
            Op::Broadcast { root, pieces } if *root == from => 0..*pieces,
            Op::Scatter { root } if *root == from => to..to + 1,
            Op::Gather { root } if *root == to => from..from + 1,
            Op::GatherAll => from..from + 1,
            Op::Exchange => from * self.ranks + to..from * self.ranks + to + 1,
            Op::Permute { to: t } if t[from] == to => from..from + 1,
            _ => 0..0,
        }
    }

    /// `block` at the `at`-th place of a buffer.
    fn span(&self, buffer: Buffer, at: usize, block: usize) -> Span {
        match self.op {
            Op::Broadcast { pieces, .. } => {
                // Pieces differ by one at most.
                let begin = |piece: usize| self.len / pieces * piece + (self.len % pieces).min(piece);
                Span { buffer, at: begin(block), len: begin(block + 1) - begin(block) }
            }
            _ if buffer == Buffer::Scratch => Span { buffer, at: at * self.len, len: self.len },
            _ => Span { buffer, at: at * self.stride, len: self.len },
        }
    }
}
