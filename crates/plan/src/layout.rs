//! Where the elements of an array live.
//!
//! A [`Layout`] says how an array is divided; [`Layout::over`] binds it to a number of members and makes a [`Spread`],
//! which answers every question: who has element `i` and where ([`Spread::locate`]), what a member has
//! ([`Spread::runs`]), of which pieces a range consists ([`Spread::pieces`]).
//!
//! Guaranteed: every element has exactly one place. The elements of a member fill its *part*, an array of its own,
//! without gaps and in ascending global order. All answers are exact up to the longest array, `usize::MAX / 2`
//! elements. [`Spread::locate`] neither divides nor panics, and every other question costs a few divisions, whatever the
//! length and the number of members, but for [`Spread::part_before`], which searches in halves; iterators take that for each
//! item.
//!
//! Not contained: memory and element types (a place is a number of elements), and checks of indices that the caller has
//! checked.

use std::{
    cmp::{Ordering, Reverse},
    fmt, iter,
    ops::Range,
};

use crate::divide::{BOUND, Divisor};

/// How an array is divided among members, whose number is not yet known.
///
/// ```
/// use partage_plan::layout::Layout;
///
/// let spread = Layout::block_cyclic(10, 2).over(3)?;    // 0 1 | 2 3 | 4 5 | 6 7 | 8 9
/// assert_eq!(spread.locate(7), (0, 3));                 // the fourth block is member 0's second
/// assert_eq!(spread.indices(1).collect::<Vec<_>>(), [2, 3, 8, 9]);
///
/// let matrix = Layout::tiles([4, 6]).over(4)?;          // four tiles of 2 x 3
/// assert_eq!(matrix.indices(1).collect::<Vec<_>>(), [3, 4, 5, 9, 10, 11]);
/// # Ok::<(), partage_plan::layout::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    first: usize,
    /// The members' grid where it was chosen: its dimensions, and their number.
    grid: Option<([usize; 3], usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Rows {
        rows: usize,
        cols: usize,
    },
    Cyclic {
        n: usize,
        block: usize,
    },
    PerRank {
        m: usize,
    },
    /// Tiles are bricks that are one thick.
    Bricks {
        dims: [usize; 3],
        rank: usize,
    },
}

impl Layout {
    const fn new(shape: Shape) -> Layout {
        Layout { shape, first: 0, grid: None }
    }

    /// `n` elements, `⌈n / members⌉` consecutive ones on each member; the last members may have fewer or none. UPC: `[*]`.
    pub const fn blocked(n: usize) -> Layout {
        Layout::rows(n, 1)
    }

    /// A row-major matrix, `⌈rows / members⌉` consecutive whole rows on each member.
    pub const fn rows(rows: usize, cols: usize) -> Layout {
        Layout::new(Shape::Rows { rows, cols })
    }

    /// `n` elements, dealt one by one. UPC: no layout qualifier, or `[1]`.
    pub const fn cyclic(n: usize) -> Layout {
        Layout::block_cyclic(n, 1)
    }

    /// `n` elements, dealt in blocks of `block`. UPC: `[block]`; like there, 0 is one block without end.
    pub const fn block_cyclic(n: usize, block: usize) -> Layout {
        Layout::new(Shape::Cyclic { n, block })
    }

    /// `m` elements on every member: those of a member are `member * m ..`.
    pub const fn per_rank(m: usize) -> Layout {
        Layout::new(Shape::PerRank { m })
    }

    /// `n` elements, all on one member. UPC: `[]` or `[0]`.
    pub const fn on(member: usize, n: usize) -> Layout {
        Layout::block_cyclic(n, 0).starting_at(member)
    }

    /// A row-major matrix cut into one tile for each member, in row-major order of the tiles.
    ///
    /// A tile is `⌈dims / grid⌉` in each dimension; the last ones are smaller and may be empty. The grid is the
    /// factorization of the number of members with the least surface between tiles; of several, the one that divides the
    /// rows least. [`grid`](Layout::grid) chooses another.
    pub const fn tiles(dims: [usize; 2]) -> Layout {
        Layout::new(Shape::Bricks { dims: [1, dims[0], dims[1]], rank: 2 })
    }

    /// The same in three dimensions; the last is contiguous.
    pub const fn bricks(dims: [usize; 3]) -> Layout {
        Layout::new(Shape::Bricks { dims, rank: 3 })
    }

    /// Arranges the members in this grid. It has as many dimensions as the array (2 for tiles, 3 for bricks, else 1) and
    /// as many cells as there are members.
    pub fn grid<const D: usize>(self, grid: [usize; D]) -> Layout {
        const { assert!(1 <= D && D <= 3, "a grid has one to three dimensions") };
        let mut cells = [1; 3];
        cells[3 - D..].copy_from_slice(&grid);
        Layout { grid: Some((cells, D)), ..self }
    }

    /// Puts the first block (row, tile) on this member; the following go to the members after it, and round.
    pub const fn starting_at(self, member: usize) -> Layout {
        Layout { first: member, ..self }
    }

    /// Binds the layout to a number of members.
    pub fn over(self, members: usize) -> Result<Spread, LayoutError> {
        if members == 0 {
            return Err(LayoutError::NoMembers);
        }
        if self.first >= members {
            return Err(LayoutError::NotAMember { member: self.first, members });
        }
        let len = match self.shape {
            Shape::Rows { rows, cols } => rows.checked_mul(cols),
            Shape::Cyclic { n, .. } => Some(n),
            Shape::PerRank { m } => m.checked_mul(members),
            Shape::Bricks { dims, .. } if dims.contains(&0) => Some(0),
            Shape::Bricks { dims, .. } => dims.into_iter().try_fold(1, usize::checked_mul),
        };
        let len = len.filter(|&n| n.max(members) < BOUND).ok_or(LayoutError::TooLong)?;
        let rank = if let Shape::Bricks { rank, .. } = self.shape { rank } else { 1 };
        if let Some((grid, grid_rank)) = self.grid {
            if grid_rank != rank {
                return Err(LayoutError::GridRank { grid: grid_rank, array: rank });
            }
            let cells = grid.into_iter().fold(1, usize::saturating_mul);
            if cells != members {
                return Err(LayoutError::GridSize { cells, members });
            }
        }
        let map = match self.shape {
            Shape::Bricks { dims, .. } => {
                let dims = if len == 0 { [0; 3] } else { dims };
                let grid = self.grid.map_or_else(|| best_grid(dims, rank, members), |(grid, _)| grid);
                Map::Bricks(Bricks::new(dims, grid))
            }
            _ => Map::blocks(self.block(members), members),
        };
        Ok(Spread { layout: self, len, members, map })
    }

    /// The member that has the first block.
    pub fn first(&self) -> usize {
        self.first
    }

    /// All that it says, in words: two layouts are equal if these are.
    pub fn words(&self) -> [u64; 9] {
        let (kind, [a, b, c]) = match self.shape {
            Shape::Rows { rows, cols } => (0, [rows, cols, 0]),
            Shape::Cyclic { n, block } => (1, [n, block, 0]),
            Shape::PerRank { m } => (2, [m, 0, 0]),
            Shape::Bricks { dims, rank } => (rank + 1, dims),
        };
        let ([x, y, z], rank) = self.grid.unwrap_or_default();
        [kind, a, b, c, self.first, rank, x, y, z].map(|n| n as u64)
    }

    /// The block size, if there is one.
    fn block(&self, members: usize) -> Option<usize> {
        match self.shape {
            Shape::Rows { rows, cols } => Some((rows.div_ceil(members) * cols).max(1)),
            Shape::Cyclic { block, .. } => Some(block).filter(|&block| block > 0),
            Shape::PerRank { m } => Some(m.max(1)),
            Shape::Bricks { .. } => None,
        }
    }
}

impl From<usize> for Layout {
    /// Blocked.
    fn from(n: usize) -> Layout {
        Layout::blocked(n)
    }
}

/// Why a layout cannot be bound to a number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// There are none.
    NoMembers,
    /// The layout names a member that is not there.
    NotAMember {
        /// The one it names.
        member: usize,
        /// How many there are.
        members: usize,
    },
    /// More than `usize::MAX / 2` elements (or members).
    TooLong,
    /// The grid has other dimensions than the array.
    GridRank {
        /// How many the grid has.
        grid: usize,
        /// How many the array has.
        array: usize,
    },
    /// The grid has not one cell for each member.
    GridSize {
        /// How many cells it has.
        cells: usize,
        /// How many members there are.
        members: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LayoutError::NoMembers => write!(f, "an array needs at least one member to live on"),
            LayoutError::NotAMember { member, members } => {
                write!(f, "the layout names member {member}, but the last one is member {}", members - 1)
            }
            LayoutError::TooLong => write!(f, "the array is too long: it can have at most {} elements", BOUND - 1),
            LayoutError::GridRank { grid, array } => {
                write!(f, "a grid of {grid} dimensions does not fit an array of {array}")
            }
            LayoutError::GridSize { cells, members } => {
                write!(f, "a grid of {cells} cells does not fit {members} members")
            }
        }
    }
}

impl std::error::Error for LayoutError {}

/// A layout over a number of members: where every element is.
///
/// ```
/// use partage_plan::layout::{Layout, Piece, Run};
///
/// let spread = Layout::blocked(10).over(4)?;
/// assert_eq!((spread.len(), spread.block()), (10, Some(3)));
/// assert_eq!([0, 1, 2, 3].map(|member| spread.part_len(member)), [3, 3, 3, 1]);
/// assert_eq!(spread.locate(4), (1, 1));
/// assert_eq!(spread.global(1, 1), Some(4));
/// assert_eq!(spread.runs(1).collect::<Vec<_>>(), [Run { global: 3..6, local: 0..3 }]);
/// assert_eq!(
///     spread.pieces(2..5).collect::<Vec<_>>(),
///     [Piece { member: 0, local: 2..3, global: 2..3 }, Piece { member: 1, local: 0..2, global: 3..5 }],
/// );
/// # Ok::<(), partage_plan::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    layout: Layout,
    len: usize,
    members: usize,
    map: Map,
}

/// Elements of one member that are neighbours in the array as well as in the member's part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Where they are in the array.
    pub global: Range<usize>,
    /// Where they are in the part; as many.
    pub local: Range<usize>,
}

/// Elements of a range of the array that are neighbours in the array as well as in a member's part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Who has them.
    pub member: usize,
    /// Where they are in its part.
    pub local: Range<usize>,
    /// Where they are in the array; as many.
    pub global: Range<usize>,
}

impl Spread {
    /// How many elements there are, on all members together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Over how many members they are spread.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The layout that was bound.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How many neighbours stay together before the next member's turn; `None` where all are on one member, and for tiles
    /// and bricks.
    pub fn block(&self) -> Option<usize> {
        self.layout.block(self.members)
    }

    /// The member on which all elements are, where the layout says so (UPC's indefinite block).
    pub fn only_member(&self) -> Option<usize> {
        matches!(self.layout.shape, Shape::Cyclic { block: 0, .. }).then_some(self.layout.first)
    }

    /// Whether the parts, in turn from the first member's on, are the array: no member has more than one block. (Not said
    /// of tiles and bricks, unless there is one.)
    pub fn is_in_a_row(&self) -> bool {
        let blocks = || match self.layout.shape {
            Shape::Bricks { .. } => false,
            _ => self.block().is_none_or(|block| block.saturating_mul(self.members) >= self.len),
        };
        self.members == 1 || blocks()
    }

    /// Where element `i` is: who has it, and its index in that member's part. The caller has checked that `i < len`;
    /// else the answer means nothing.
    #[inline(always)]
    pub fn locate(&self, i: usize) -> (usize, usize) {
        match self.map {
            Map::Shifts { block, members, rounds, inside } => {
                let member = (i >> block).wrapping_add(self.layout.first) & self.members.wrapping_sub(1);
                (member, ((i & rounds) >> members) | (i & inside))
            }
            _ => self.locate_otherwise(i),
        }
    }

    /// Where there is more to compute. Not in line, so that the usual case has the registers.
    #[inline(never)]
    fn locate_otherwise(&self, i: usize) -> (usize, usize) {
        match &self.map {
            // Both divisions start from `i`, so that they run at the same time.
            Map::Blocks { block, period } => {
                let (turn, round) = (block.quotient(i), period.quotient(i));
                let member = self.turned(turn.wrapping_sub(round.wrapping_mul(self.members)));
                (member, i.wrapping_sub(turn.wrapping_sub(round).wrapping_mul(block.value)))
            }
            Map::Bricks(bricks) => {
                let (cell, k) = bricks.locate(i);
                (self.turned(cell), k)
            }
            Map::Shifts { .. } => unreachable!("found in line"),
        }
    }

    /// Who has element `i`; the first half of [`locate`](Spread::locate).
    #[inline(always)]
    pub fn affinity(&self, i: usize) -> usize {
        self.locate(i).0
    }

    /// Which element is at index `k` of a member's part: the inverse of [`locate`](Spread::locate). `None` beyond the part.
    pub fn global(&self, member: usize, k: usize) -> Option<usize> {
        let part = self.part(member);
        (k < part.len).then(|| {
            let (run, offset) = (k / part.run, k % part.run);
            part.start + run / part.counts[1] * part.strides[0] + run % part.counts[1] * part.strides[1] + offset
        })
    }

    /// How many elements a member has; none if it is not there. UPC: `upc_affinitysize`.
    pub fn part_len(&self, member: usize) -> usize {
        self.part(member).len
    }

    /// How many elements of a member's part have a smaller index than `i`: where its share of what begins there begins.
    pub fn part_before(&self, member: usize, i: usize) -> usize {
        let len = self.part_len(member);
        match i {
            0 => 0,
            _ if i >= self.len => len,
            // A part is ascending.
            _ => {
                let (mut low, mut high) = (0, len);
                while low < high {
                    let middle = low.midpoint(high);
                    match self.global(member, middle) {
                        Some(global) if global < i => low = middle + 1,
                        _ => high = middle,
                    }
                }
                low
            }
        }
    }

    /// How many elements the member has that has most.
    pub fn largest_part(&self) -> usize {
        // Every layout fills blocks and tiles from the first, and deals to the first member first.
        self.part_len(self.layout.first)
    }

    /// The elements of a member, in the order of its part, which is ascending.
    pub fn indices(&self, member: usize) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        Indices { run: 0..0, runs: self.runs(member), later: self.part_len(member) }
    }

    /// The elements of a member as the fewest stretches that are contiguous both in the array and in its part, in order.
    pub fn runs(&self, member: usize) -> impl Iterator<Item = Run> + Clone + use<> {
        let (part, len) = (self.part(member), self.len);
        (0..part.counts[0]).flat_map(move |a| {
            (0..part.counts[1]).map(move |b| {
                let start = part.start + a * part.strides[0] + b * part.strides[1];
                let end = len.min(start + part.run);
                let k = (a * part.counts[1] + b) * part.run;
                Run { global: start..end, local: k..k + (end - start) }
            })
        })
    }

    /// A range of the array as the fewest stretches that are contiguous both in the array and in one member's part, in
    /// order. The caller has checked that the range is within the array.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Piece> + Clone + use<> {
        let (spread, Range { mut start, end }) = (self.clone(), range);
        iter::from_fn(move || {
            (start < end).then(|| {
                let (member, k, together) = spread.stretch(start);
                let count = together.min(end - start);
                let global = start..start + count;
                start = global.end;
                Piece { member, local: k..k + count, global }
            })
        })
    }

    /// Where element `i` is, as [`locate`](Spread::locate) says, and how many elements from it on are neighbours in the array
    /// as well as in that member's part (not counting where the array ends).
    #[inline]
    pub fn stretch(&self, i: usize) -> (usize, usize, usize) {
        let (member, k) = self.locate(i);
        let run = self.run(member);
        (member, k, run - k % run)
    }

    /// The member whose turn it is `turns` after the first one's.
    #[inline(always)]
    fn turned(&self, turns: usize) -> usize {
        let member = turns.wrapping_add(self.layout.first);
        if member >= self.members { member.wrapping_sub(self.members) } else { member }
    }

    /// After how many turns it is this member's.
    fn turn(&self, member: usize) -> usize {
        let turn = member + self.members - self.layout.first;
        if turn >= self.members { turn - self.members } else { turn }
    }

    /// How many neighbours stay together in this member's part.
    fn run(&self, member: usize) -> usize {
        match &self.map {
            Map::Shifts { block, .. } => 1 << block,
            Map::Blocks { block, .. } => block.value,
            Map::Bricks(bricks) => bricks.part(self.turn(member)).run,
        }
    }

    fn part(&self, member: usize) -> Part {
        match &self.map {
            _ if member >= self.members || self.is_empty() => Part::default(),
            Map::Bricks(bricks) => bricks.part(self.turn(member)),
            _ => Part::of_blocks(self.turn(member), self.run(member), self),
        }
    }
}

/// What is prepared for [`Spread::locate`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Map {
    /// Blocks, dealt in turns; a period is a block for every member. Where block and members are powers of two: their
    /// logarithms, and the bits of an index that say its period and its place in the block.
    Shifts { block: u32, members: u32, rounds: usize, inside: usize },
    /// The same, where they are not.
    Blocks { block: Divisor, period: Divisor },
    /// Tiles and bricks.
    Bricks(Bricks),
}

impl Map {
    fn blocks(block: Option<usize>, members: usize) -> Map {
        // Beyond the bound, a block and a period hold every array.
        let size = if members == 1 { BOUND } else { block.unwrap_or(BOUND).min(BOUND) };
        let (block, period) = (Divisor::new(size), Divisor::new(size.saturating_mul(members).min(BOUND)));
        match (block.shift(), period.shift()) {
            (Some(block), Some(period)) if members.is_power_of_two() => Map::Shifts {
                block,
                members: members.ilog2(),
                rounds: usize::MAX << period,
                inside: !(usize::MAX << block),
            },
            _ => Map::Blocks { block, period },
        }
    }
}

/// A row-major array of three dimensions in a grid of bricks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bricks {
    dims: [Divisor; 3],
    brick: [Divisor; 3],
    grid: [usize; 3],
}

impl Bricks {
    fn new(dims: [usize; 3], grid: [usize; 3]) -> Bricks {
        let brick = [0, 1, 2].map(|d| Divisor::new(dims[d].div_ceil(grid[d]).max(1)));
        Bricks { dims: dims.map(|n| Divisor::new(n.max(1))), brick, grid }
    }

    /// In which cell of the grid element `i` is, and its index there.
    #[inline]
    fn locate(&self, i: usize) -> (usize, usize) {
        let row = self.dims[2].quotient(i);
        let plane = self.dims[1].quotient(row);
        let at = [
            plane,
            row.wrapping_sub(plane.wrapping_mul(self.dims[1].value)),
            i.wrapping_sub(row.wrapping_mul(self.dims[2].value)),
        ];
        let (mut cell, mut k) = (0_usize, 0_usize);
        for (d, at) in at.into_iter().enumerate() {
            let c = self.brick[d].quotient(at);
            let start = c.wrapping_mul(self.brick[d].value);
            let extent = self.brick[d].value.min(self.dims[d].value.wrapping_sub(start));
            cell = cell.wrapping_mul(self.grid[d]).wrapping_add(c);
            k = k.wrapping_mul(extent).wrapping_add(at.wrapping_sub(start));
        }
        (cell, k)
    }

    fn part(&self, cell: usize) -> Part {
        let dims = self.dims.map(|dim| dim.value);
        let cell = [cell / self.grid[2] / self.grid[1], cell / self.grid[2] % self.grid[1], cell % self.grid[2]];
        let at = [0, 1, 2].map(|d| cell[d] * self.brick[d].value);
        let [a, b, c] = [0, 1, 2].map(|d| self.brick[d].value.min(dims[d].saturating_sub(at[d])));
        let len = a * b * c;
        if len == 0 {
            return Part::default();
        }
        // Rows that are whole follow each other, and so do planes.
        let (run, counts, stride) = match () {
            _ if c < dims[2] => (c, [a, b], dims[2]),
            _ if b < dims[1] => (b * c, [a, 1], 0),
            _ => (len, [1, 1], 0),
        };
        let start = (at[0] * dims[1] + at[1]) * dims[2] + at[2];
        Part { len, run, start, counts, strides: [dims[1] * dims[2], stride] }
    }
}

/// What one member has: runs that lie in the array like the rows of a box, the last of them perhaps cut by its end.
#[derive(Clone, Copy, Default)]
struct Part {
    len: usize,
    run: usize,
    start: usize,
    counts: [usize; 2],
    strides: [usize; 2],
}

impl Part {
    /// The part of the member whose turn comes after so many others.
    fn of_blocks(turn: usize, block: usize, spread: &Spread) -> Part {
        let (blocks, rest) = (spread.len / block, spread.len % block);
        let (rounds, over) = (blocks / spread.members, blocks % spread.members);
        let last = match turn.cmp(&over) {
            Ordering::Less => block,
            Ordering::Equal => rest,
            Ordering::Greater => 0,
        };
        let len = rounds * block + last;
        if len == 0 {
            return Part::default();
        }
        // With one block only, a stride beyond all numbers does not count.
        let stride = block.saturating_mul(spread.members);
        Part { len, run: block, start: turn * block, counts: [1, len.div_ceil(block)], strides: [0, stride] }
    }
}

/// The factors of `members` by which bricks have the least surface in common; of several, the largest first.
fn best_grid(dims: [usize; 3], rank: usize, members: usize) -> [usize; 3] {
    let divisors = |n: usize| {
        (1..).take_while(move |d| *d <= n / d).filter(move |d| n.is_multiple_of(*d)).flat_map(move |d| [d, n / d])
    };
    let surface = |grid: &[usize; 3]| -> u128 {
        let cut = |d: usize| (grid[d] - 1) as u128 * dims[(d + 1) % 3] as u128 * dims[(d + 2) % 3] as u128;
        cut(0) + cut(1) + cut(2)
    };
    divisors(members)
        .flat_map(|a| divisors(members / a).map(move |b| [a, b, members / a / b]))
        .filter(|grid| rank == 3 || grid[0] == 1)
        .min_by_key(|grid| (surface(grid), Reverse(*grid)))
        .expect("1 divides every number")
}

/// The elements of runs. How many are in the runs after this one is known.
#[derive(Clone)]
struct Indices<I> {
    run: Range<usize>,
    runs: I,
    later: usize,
}

impl<I: Iterator<Item = Run>> Iterator for Indices<I> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.run.is_empty() {
            self.run = self.runs.next()?.global;
            self.later -= self.run.len();
        }
        self.run.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.run.len() + self.later;
        (left, Some(left))
    }

    fn fold<B, F: FnMut(B, usize) -> B>(self, init: B, f: F) -> B {
        self.run.chain(self.runs.flat_map(|run| run.global)).fold(init, f)
    }
}

impl<I: Iterator<Item = Run>> ExactSizeIterator for Indices<I> {}
