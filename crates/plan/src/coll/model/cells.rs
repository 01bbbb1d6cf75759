//! Where each cell of the memory of some collectives is in one list of all.

use std::ops::Range;

use super::Run;
use crate::coll::{Buffer, Op, Shape, Span};

pub struct Cells<'a> {
    runs: &'a [Run],
    ranks: usize,
    /// How long source and destination are, by collective and rank.
    sizes: Vec<[usize; 2]>,
    /// No source or destination is longer.
    data: usize,
    scratch: usize,
}

impl Cells<'_> {
    pub fn new(runs: &[Run]) -> Cells<'_> {
        let ranks = runs[0].shape.ranks;
        let sizes: Vec<[usize; 2]> = runs.iter().flat_map(|r| (0..ranks).map(|rank| sizes(&r.shape, rank))).collect();
        let data = sizes.iter().flatten().copied().max().unwrap_or(0);
        let scratch = runs.iter().flat_map(|r| r.plans.iter().map(|p| p.scratch)).max().unwrap_or(0);
        Cells { runs, ranks, sizes, data, scratch }
    }

    /// Every collective has its own source and destination. There are no more contexts than collectives.
    pub fn total(&self) -> usize {
        self.runs.len() * self.ranks * (2 * self.data + self.scratch)
    }

    /// How much of the buffer there is.
    pub fn size(&self, run: usize, owner: usize, buffer: Buffer) -> usize {
        let [source, dest] = self.sizes[run * self.ranks + owner];
        match buffer {
            Buffer::Source => source,
            Buffer::Dest => dest,
            Buffer::Scratch => self.runs[run].plans[owner].scratch,
        }
    }

    pub fn range(&self, run: usize, owner: usize, span: Span) -> Range<usize> {
        let first = match span.buffer {
            Buffer::Source => (run * self.ranks + owner) * 2 * self.data,
            Buffer::Dest => ((run * self.ranks + owner) * 2 + 1) * self.data,
            Buffer::Scratch => {
                let context = self.runs[run].context;
                self.runs.len() * self.ranks * 2 * self.data + (context * self.ranks + owner) * self.scratch
            }
        };
        first + span.at..first + span.at + span.len
    }
}

/// How long the source and the destination of a rank are, by what the operation asks.
fn sizes(shape: &Shape, rank: usize) -> [usize; 2] {
    let (one, all) = (shape.len, (shape.ranks - 1) * shape.stride + shape.len);
    let if_root = |len: usize| if shape.op.root() == Some(rank) { len } else { 0 };
    let [source, dest] = match shape.op {
        Op::Broadcast { .. } => [if_root(one), one],
        // In place, the root's own block stays where it is.
        Op::Scatter { .. } => [if_root(all), if shape.in_place { one - if_root(one) } else { one }],
        Op::Gather { .. } => [one, if_root(all)],
        Op::GatherAll => [one, all],
        Op::Exchange => [all, all],
        Op::Reduce { .. } => [one, if_root(one)],
        Op::Permute { .. } | Op::AllReduce | Op::Prefix { .. } => [one, one],
    };
    // In place, what is in both is in the destination.
    [if shape.in_place && dest > 0 { 0 } else { source }, dest]
}
