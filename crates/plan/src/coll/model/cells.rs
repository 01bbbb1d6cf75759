//! Where each cell of the memory of some collectives is in one list of all.

use std::ops::Range;

use super::Run;
use crate::coll::{Buffer, Span};

pub struct Cells<'a> {
    runs: &'a [Run],
    ranks: usize,
    /// The size of a source or a destination.
    data: usize,
    scratch: usize,
}

impl Cells<'_> {
    pub fn new(runs: &[Run]) -> Cells<'_> {
        let ranks = runs[0].shape.ranks;
        let data = runs.iter().map(|r| r.shape.len * ranks).max().unwrap_or(0);
        let scratch = runs.iter().flat_map(|r| r.plans.iter().map(|p| p.scratch)).max().unwrap_or(0);
        Cells { runs, ranks, data, scratch }
    }

    /// Every collective has its own source and destination. There are no more contexts than collectives.
    pub fn total(&self) -> usize {
        self.runs.len() * self.ranks * (2 * self.data + self.scratch)
    }

    /// How much of the buffer there is.
    pub fn size(&self, run: usize, owner: usize, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Scratch => self.runs[run].plans[owner].scratch,
            _ => self.runs[run].shape.len * self.ranks,
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
