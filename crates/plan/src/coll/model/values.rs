//! Symbols instead of data: what a cell holds, as the list of the operands that are combined there.
//!
//! A value is a number, the same for the same list, so that it is quickly compared and copied. Data that are only moved are
//! lists of one.

use std::cell::RefCell;
use std::collections::HashMap;

use super::Run;
use super::cells::Cells;
use crate::coll::{Buffer, Span};

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

#[derive(Default)]
struct Combined {
    lists: Vec<Vec<Value>>,
    numbers: HashMap<Vec<Value>, Value>,
    pairs: HashMap<(Value, Value), Value>,
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

    /// First the operands of `a`, then those of `b`.
    pub fn combine(&self, a: Value, b: Value) -> Value {
        let Combined { lists, numbers, pairs } = &mut *self.combined.borrow_mut();
        if a == NOTHING || b == NOTHING {
            return NOTHING;
        }
        *pairs.entry((a, b)).or_insert_with(|| {
            let list = [self.list(lists, a), self.list(lists, b)].concat();
            *numbers.entry(list).or_insert_with_key(|list| {
                lists.push(list.clone());
                self.single + lists.len() as Value
            })
        })
    }

    fn list(&self, lists: &[Vec<Value>], value: Value) -> Vec<Value> {
        match value {
            NOTHING => vec![],
            _ if value <= self.single => vec![value],
            _ => lists[(value - self.single - 1) as usize].clone(),
        }
    }

    /// What is wrong with all memory after.
    pub fn check(&self, runs: &[Run], cells: &Cells, memory: &[Value]) -> Result<(), String> {
        for (run, r) in runs.iter().enumerate() {
            let shape = &r.shape;
            for rank in 0..shape.ranks {
                for block in 0..shape.blocks() {
                    let Some(span) = shape.target(rank, block) else { continue };
                    self.has(run, rank, &memory[cells.range(run, rank, span)], &[block], true)?;
                }
                if !shape.op.combines() {
                    continue;
                }
                let (_, origin) = shape.origin(rank);
                let dest = Span { buffer: Buffer::Dest, at: 0, len: shape.len };
                let operands: Vec<usize> = shape.operands(rank).collect();
                match operands.is_empty() {
                    // In place, the operand is still there.
                    true if origin == dest => {
                        self.has(run, rank, &memory[cells.range(run, rank, dest)], &[rank], true)?
                    }
                    true => self.has(run, rank, &memory[cells.range(run, rank, dest)], &[], true)?,
                    false => {
                        self.has(run, rank, &memory[cells.range(run, rank, dest)], &operands, shape.ordered)?;
                    }
                }
                if origin != dest {
                    self.has(run, rank, &memory[cells.range(run, rank, origin)], &[rank], true)?;
                }
            }
        }
        Ok(())
    }

    /// The cells of a rank must have these blocks combined, in this order, or in any.
    fn has(&self, run: usize, rank: usize, cells: &[Value], blocks: &[usize], ordered: bool) -> Result<(), String> {
        for (i, &value) in cells.iter().enumerate() {
            let mut wanted: Vec<Value> = blocks.iter().map(|&block| self.of((run, block, i))).collect();
            let mut list = self.list(&self.combined.borrow().lists, value);
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
