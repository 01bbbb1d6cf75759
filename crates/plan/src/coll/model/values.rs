//! Symbols instead of data: what a cell holds, as the operands that are combined there, in which order, and which of them
//! were combined first.
//!
//! A value is a number, the same if all that is, so that it is quickly compared and copied. Data that are only moved are
//! single operands.

use std::cell::RefCell;
use std::collections::HashMap;

use super::Run;
use super::cells::Cells;
use crate::coll::{Buffer, Flow, Op, Span};

/// What a cell holds.
pub type Value = u32;

/// Nothing has been written there.
pub const NOTHING: Value = 0;

/// Where a datum began: its collective, its block, and where in that.
type Origin = (usize, usize, usize);

pub struct Values {
    blocks: usize,
    len: usize,
    /// Those up to here are single operands.
    single: Value,
    combined: RefCell<Combined>,
}

/// Values that are two combined, from the first that is no single operand on.
#[derive(Default)]
struct Combined {
    pairs: Vec<(Value, Value)>,
    numbers: HashMap<(Value, Value), Value>,
}

impl Values {
    pub fn new(runs: &[Run]) -> Values {
        let blocks = runs.iter().map(|r| r.shape.blocks()).max().unwrap_or(0);
        let len = runs.iter().map(|r| r.shape.len).max().unwrap_or(0);
        Values { blocks, len, single: (runs.len() * blocks * len) as Value, combined: RefCell::default() }
    }

    /// All memory before.
    pub fn first(&self, runs: &[Run], cells: &Cells) -> Vec<Value> {
        let mut memory = vec![NOTHING; cells.total()];
        for (run, r) in runs.iter().enumerate() {
            for block in 0..r.shape.blocks() {
                let (rank, span) = r.shape.origin(block);
                let cells = memory[cells.range(run, rank, span)].iter_mut().enumerate();
                cells.for_each(|(i, cell)| *cell = self.of((run, block, i)));
            }
        }
        memory
    }

    fn of(&self, (run, block, place): Origin) -> Value {
        (1 + (run * self.blocks + block) * self.len + place) as Value
    }

    /// First `a`, then `b`.
    pub fn combine(&self, a: Value, b: Value) -> Value {
        let Combined { pairs, numbers } = &mut *self.combined.borrow_mut();
        match a == NOTHING || b == NOTHING {
            true => NOTHING,
            false => *numbers.entry((a, b)).or_insert_with(|| {
                pairs.push((a, b));
                self.single + pairs.len() as Value
            }),
        }
    }

    /// The operands, in their order.
    fn list(&self, value: Value) -> Vec<Value> {
        let pair = |v: Value| self.combined.borrow().pairs[(v - self.single - 1) as usize];
        let (mut list, mut open) = (vec![], vec![value]);
        while let Some(v) = open.pop() {
            match v {
                NOTHING => {}
                _ if v <= self.single => list.push(v),
                _ => open.extend([pair(v).1, pair(v).0]),
            }
        }
        list
    }

    /// What is wrong with all memory after.
    pub fn check(&self, runs: &[Run], cells: &Cells, memory: &[Value]) -> Result<(), String> {
        let first = self.first(runs, cells);
        // All memory but where something must be.
        let mut rest = memory.to_vec();
        for (run, r) in runs.iter().enumerate() {
            let shape = &r.shape;
            for rank in 0..shape.ranks {
                for block in 0..shape.blocks() {
                    let Some(span) = shape.target(rank, block) else { continue };
                    let at = cells.range(run, rank, span);
                    self.has(run, rank, &memory[at.clone()], &[block], true)?;
                    rest[at.clone()].copy_from_slice(&first[at]);
                }
                if !shape.operands(rank).is_empty() {
                    let at = cells.range(run, rank, Span { buffer: Buffer::Dest, at: 0, len: shape.len });
                    rest[at.clone()].copy_from_slice(&first[at]);
                }
            }
            if shape.op.combines() {
                self.check_reduction(runs, run, cells, memory)?;
            }
            for (rank, buffer) in (0..shape.ranks).flat_map(|r| [(r, Buffer::Source), (r, Buffer::Dest)]) {
                let at = cells.range(run, rank, Span { buffer, at: 0, len: cells.size(run, rank, buffer) });
                if let Some(i) = rest[at.clone()].iter().zip(&first[at]).position(|(now, then)| now != then) {
                    return Err(format!(
                        "collective {run}: {buffer:?}[{i}] of rank {rank} is written, where nothing must come"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_reduction(&self, runs: &[Run], run: usize, cells: &Cells, memory: &[Value]) -> Result<(), String> {
        let shape = &runs[run].shape;
        let dest = Span { buffer: Buffer::Dest, at: 0, len: shape.len };
        for rank in 0..shape.ranks {
            let (_, origin) = shape.origin(rank);
            let result = &memory[cells.range(run, rank, dest)];
            let operands: Vec<usize> = shape.operands(rank).collect();
            match operands.is_empty() {
                // In place, the operand is still there.
                true if origin == dest => self.has(run, rank, result, &[rank], true)?,
                true => self.has(run, rank, result, &[], true)?,
                false => self.has(run, rank, result, &operands, shape.ordered)?,
            }
            if origin != dest {
                self.has(run, rank, &memory[cells.range(run, rank, origin)], &[rank], true)?;
            }
            // To the last bit, who does it makes no difference.
            let first_first =
                matches!(shape.flow, Flow::Flat | Flow::Slices | Flow::Leader(_) | Flow::Last | Flow::Coop(_));
            for (i, &value) in result.iter().enumerate().filter(|_| !operands.is_empty()) {
                let all = operands.iter().map(|&r| self.of((run, r, i)));
                let wanted = match shape.op {
                    _ if first_first => all.reduce(|a, b| self.combine(a, b)),
                    Op::AllReduce => memory[cells.range(run, 0, dest)].get(i).copied(),
                    _ => Some(value),
                };
                if Some(value) != wanted {
                    return Err(format!(
                        "collective {run}: rank {rank} combined the right operands in the wrong steps"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The cells of a rank must have these blocks combined, in this order, or in any.
    fn has(&self, run: usize, rank: usize, cells: &[Value], blocks: &[usize], ordered: bool) -> Result<(), String> {
        for (i, &value) in cells.iter().enumerate() {
            let mut wanted: Vec<Value> = blocks.iter().map(|&block| self.of((run, block, i))).collect();
            let mut list = self.list(value);
            if !ordered {
                wanted.sort_unstable();
                list.sort_unstable();
            }
            if list != wanted {
                let origin = |v: Value| {
                    let (block, place) = ((v as usize - 1) / self.len, (v as usize - 1) % self.len);
                    (block / self.blocks, block % self.blocks, place)
                };
                let list: Vec<Origin> = list.into_iter().map(origin).collect();
                return Err(format!(
                    "collective {run}: rank {rank} has {list:?} (collective, block, place) instead of place {i} of {blocks:?}"
                ));
            }
        }
        Ok(())
    }
}
