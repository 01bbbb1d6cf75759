//! Where each cell of the memory of some collectives is in one list of all.

use std::ops::Range;

use super::Run;
use crate::coll::{Buffer, Shape, Span};

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
        let sizes: Vec<[usize; 2]> = runs.iter().flat_map(|r| sizes(&r.shape)).collect();
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

/// How long the source and the destination of each rank are: up to the end of what begins or must be there.
fn sizes(shape: &Shape) -> Vec<[usize; 2]> {
    let mut sizes = vec![[0; 2]; shape.ranks];
    let mut has = |rank: usize, span: Span| {
        let size = &mut sizes[rank][usize::from(span.buffer == Buffer::Dest)];
        *size = (*size).max(span.at + span.len);
    };
    for block in 0..shape.blocks() {
        let (rank, span) = shape.origin(block);
        has(rank, span);
        (0..shape.ranks).for_each(|rank| shape.target(rank, block).into_iter().for_each(|span| has(rank, span)));
    }
    for rank in (0..shape.ranks).filter(|&rank| shape.op.combines() && shape.has_result(rank)) {
        has(rank, Span { buffer: Buffer::Dest, at: 0, len: shape.len });
    }
    sizes
}
