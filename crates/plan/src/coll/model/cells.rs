//! Where each cell of the memory of some collectives is in one list of all.

use std::ops::Range;

use super::Run;
use super::calls::Calls;
use crate::coll::{Buffer, Op, Shape, Span};

pub struct Cells<'a> {
    runs: &'a [Run],
    pub calls: Calls,
    /// How long source and destination are, by collective and rank.
    sizes: Vec<[usize; 2]>,
    /// No source or destination is longer.
    data: usize,
    scratch: usize,
}

impl Cells<'_> {
    pub fn new(runs: &[Run]) -> Cells<'_> {
        let calls = Calls::new(runs);
        let all = runs.iter().flat_map(|r| (0..calls.width).map(move |rank| (&r.shape, rank)));
        let sizes: Vec<[usize; 2]> =
            all.map(|(shape, rank)| if rank < shape.ranks { sizes(shape, rank) } else { [0, 0] }).collect();
        let data = sizes.iter().flatten().copied().max().unwrap_or(0);
        let scratch = runs.iter().flat_map(|r| r.plans.iter().map(|p| p.scratch)).max().unwrap_or(0);
        Cells { runs, calls, sizes, data, scratch }
    }

    /// Every collective has its own source and destination. There are no more contexts than collectives.
    pub fn total(&self) -> usize {
        self.runs.len() * (self.calls.width * 2 * self.data + self.calls.ranks() * self.scratch)
    }

    /// How much of the buffer there is.
    pub fn size(&self, run: usize, owner: usize, buffer: Buffer) -> usize {
        let [source, dest] = self.sizes[run * self.calls.width + owner];
        match buffer {
            Buffer::Source => source,
            Buffer::Dest => dest,
            Buffer::Scratch => self.runs[run].plans[owner].scratch,
        }
    }

    pub fn range(&self, run: usize, owner: usize, span: Span) -> Range<usize> {
        let (width, ranks) = (self.calls.width, self.calls.ranks());
        let first = match span.buffer {
            Buffer::Source => (run * width + owner) * 2 * self.data,
            Buffer::Dest => ((run * width + owner) * 2 + 1) * self.data,
            // That of the rank of the job, at the desk.
            Buffer::Scratch => {
                let place = self.calls.halls[run] * ranks + self.runs[run].members[owner];
                self.runs.len() * width * 2 * self.data + place * self.scratch
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
