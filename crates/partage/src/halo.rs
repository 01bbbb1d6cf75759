//! Halo exchange over [slots](crate::slots): ranks that have blocks of a grid get what lies beside theirs.
//!
//! [`Halo`] is for rows that are dealt out in order: what is above and below arrives as slices. [`Grid`] lays ranks out in D
//! dimensions and says who is beside whom and who has which block; [`Halos`] fills the ghost cells around a block. No barrier
//! is involved: a rank waits for its neighbours only.
//!
//! A block is a `Vec` of the program's, with ghost cells around it, `width` of them on every side, the last dimension contiguous:
//!
//! ```
//! use partage::halo::{Edge, Grid, Halos, Stencil};
//! partage::test(4, |job| {
//!     let grid = Grid::new(job, [Edge::Wrap, Edge::Open]);                // 2 x 2 ranks
//!     let block = grid.block([10, 7]);                                     // my part of 10 x 7 cells
//!     let cells = [block[0].len(), block[1].len()];
//!     let mut halos = Halos::<f64, 2>::new(job, &grid, cells, 1, Stencil::Full).unwrap();
//!     let mut now = vec![1.0; halos.len()];
//!     for _ in 0..5 {
//!         halos.exchange(&mut now);
//!         let [_, pitch] = halos.padded();
//!         let mut next = now.clone();
//!         for (r, c) in (0..cells[0]).flat_map(|r| (0..cells[1]).map(move |c| (r, c))) {
//!             let at = halos.index([r, c]);
//!             let around = |d: usize| now[at - pitch + d] + now[at + d] + now[at + pitch + d];
//!             next[at] = (around(0) + now[at - 1 - pitch] + now[at - 1] + now[at - 1 + pitch] + around(1)) / 9.0;
//!         }
//!         now = next;
//!     }
//!     assert!(now.iter().all(|x| (x - 1.0).abs() < 1e-12));
//! });
//! ```

use crate::error::Result;
use crate::job::Job;
use crate::slots::{Arrived, Inbox, Outbox};
use crate::team::Rank;
use bytemuck::Pod;
use std::fmt;
use std::ops::Range;

/// Who sends before it receives is a step ahead of its neighbours, no more.
const DEPTH: usize = 2;

/// What is beyond the first and the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// Nothing.
    Open,
    /// The last and the first.
    Wrap,
}

/// Lanes to the ranks before and after, for rows that are dealt out in order.
///
/// ```
/// use partage::halo::{Edge, Halo};
/// partage::test(3, |job| {
///     let me = f64::from(job.rank().0);
///     let mut halo = Halo::<f64>::new(job, 4, Edge::Open).unwrap();
///     halo.send(&[me; 4], &[me + 0.5; 4]);                         // my first row and my last
///     let (above, below) = halo.recv();
///     assert_eq!(above.is_some(), me > 0.0);
///     assert!(above.is_none_or(|row| *row == [me - 0.5; 4]));
///     assert!(below.is_none_or(|row| *row == [me + 1.0; 4]));
/// });
/// ```
#[derive(Debug)]
pub struct Halo<T: Pod> {
    up: Option<Outbox<T>>,
    below: Option<Inbox<T>>,
    down: Option<Outbox<T>>,
    above: Option<Inbox<T>>,
}

impl<T: Pod> Halo<T> {
    /// Collective in that all ranks make it alike, with rows of `len` elements; it waits for nobody.
    #[track_caller]
    pub fn new(job: &Job, len: usize, edge: Edge) -> Result<Halo<T>> {
        let last = job.size() - 1;
        let before = (edge == Edge::Wrap || job.rank().index() > 0).then(|| job.neighbor(-1));
        let after = (edge == Edge::Wrap || job.rank().index() < last).then(|| job.neighbor(1));
        // In this order on all ranks: of two, each is before and after the other.
        Ok(Halo {
            up: outbox(job, before, len)?,
            below: inbox(job, after, len)?,
            down: outbox(job, after, len)?,
            above: inbox(job, before, len)?,
        })
    }

    /// Sends my first row and my last, each to the rank beside it. Waits only while a neighbour is two steps behind.
    #[track_caller]
    pub fn send(&mut self, first: &[T], last: &[T]) {
        for (to, row) in [(&mut self.up, first), (&mut self.down, last)] {
            if let Some(to) = to {
                to.put_signal(row);
            }
        }
    }

    /// Waits for the row above my first and the row below my last; `None` where there is none.
    // No closures: they would not know the caller's place.
    #[allow(clippy::manual_map)]
    #[track_caller]
    pub fn recv(&mut self) -> (Option<Arrived<'_, T>>, Option<Arrived<'_, T>>) {
        let above = match &mut self.above {
            Some(above) => Some(above.wait()),
            None => None,
        };
        let below = match &mut self.below {
            Some(below) => Some(below.wait()),
            None => None,
        };
        (above, below)
    }
}

#[track_caller]
fn outbox<T: Pod>(job: &Job, to: Option<Rank>, len: usize) -> Result<Option<Outbox<T>>> {
    match to {
        Some(to) => job.outbox(to, len, DEPTH).map(Some),
        None => Ok(None),
    }
}

#[track_caller]
fn inbox<T: Pod>(job: &Job, from: Option<Rank>, len: usize) -> Result<Option<Inbox<T>>> {
    match from {
        Some(from) => job.inbox(from, len, DEPTH).map(Some),
        None => Ok(None),
    }
}

/// All ranks, laid out in D dimensions; the last one varies fastest. Arithmetic: nobody is asked.
///
/// ```
/// use partage::halo::{Edge, Grid};
/// use partage::prelude::*;
/// partage::test(6, |job| {
///     let grid = Grid::with_dims(job, [3, 2], [Edge::Open, Edge::Wrap]);
///     assert_eq!(grid.coordinates(), [job.rank().index() / 2, job.rank().index() % 2]);
///     assert_eq!(grid.neighbor([0, 1]), grid.neighbor([0, -1]));           // of two, around
///     assert_eq!(grid.neighbor([-1, 0]).is_none(), job.rank().0 < 2);
///     assert_eq!(grid.block_at([1, 0], [10, 7]), [4..7, 0..4]);
/// });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grid<const D: usize> {
    dims: [usize; D],
    edges: [Edge; D],
    me: [usize; D],
}

impl<const D: usize> Grid<D> {
    /// As near to a cube as the number of ranks allows, longest first.
    pub fn new(job: &Job, edges: [Edge; D]) -> Grid<D> {
        let mut best = [0; D];
        best[0] = usize::MAX;
        choose(job.size(), 0, &mut [1; D], &mut best);
        Grid::of(job, best, edges)
    }

    /// With so many ranks in each dimension, which are all that there are.
    #[track_caller]
    pub fn with_dims(job: &Job, dims: [usize; D], edges: [Edge; D]) -> Grid<D> {
        let (me, size) = (job.rank(), job.size());
        if dims.iter().try_fold(1, |all: usize, &n| all.checked_mul(n)) != Some(size) {
            panic!("{me}: Grid::with_dims: {dims:?} are not the {size} ranks of the job");
        }
        Grid::of(job, dims, edges)
    }

    fn of(job: &Job, dims: [usize; D], edges: [Edge; D]) -> Grid<D> {
        let mut grid = Grid { dims, edges, me: [0; D] };
        grid.me = grid.coordinates_of(job.rank());
        grid
    }

    /// How many ranks there are in each dimension.
    pub fn dims(&self) -> [usize; D] {
        self.dims
    }

    /// Where I am.
    pub fn coordinates(&self) -> [usize; D] {
        self.me
    }

    /// Where a rank is.
    pub fn coordinates_of(&self, rank: Rank) -> [usize; D] {
        let (mut rest, mut at) = (rank.index(), [0; D]);
        for d in (0..D).rev() {
            (at[d], rest) = (rest % self.dims[d], rest / self.dims[d]);
        }
        at
    }

    /// The rank that is there.
    #[track_caller]
    pub fn rank_at(&self, at: [usize; D]) -> Rank {
        let inside = at.iter().zip(&self.dims).all(|(at, n)| at < n);
        assert!(inside, "Grid::rank_at: {at:?} is not in a grid of {:?}", self.dims);
        Rank(at.iter().zip(&self.dims).fold(0, |all, (at, n)| all * n + at) as u32)
    }

    /// The rank so many places away from me; `None` beyond an open edge.
    pub fn neighbor(&self, by: [i64; D]) -> Option<Rank> {
        let mut at = self.me;
        for d in 0..D {
            let (me, n) = (self.me[d] as i64, self.dims[d] as i64);
            if self.edges[d] == Edge::Open && !(0..n).contains(&me.saturating_add(by[d])) {
                return None;
            }
            at[d] = (me + by[d].rem_euclid(n)).rem_euclid(n) as usize;
        }
        Some(self.rank_at(at))
    }

    /// My block of so many cells: in each dimension equal parts, the first ones longer by one where they do not come out even.
    pub fn block(&self, cells: [usize; D]) -> [Range<usize>; D] {
        self.block_at(self.me, cells)
    }

    /// The block of the rank that is there.
    pub fn block_at(&self, at: [usize; D], cells: [usize; D]) -> [Range<usize>; D] {
        std::array::from_fn(|d| {
            let (each, longer) = (cells[d] / self.dims[d], cells[d] % self.dims[d]);
            let start = |i: usize| i * each + i.min(longer);
            start(at[d])..start(at[d] + 1)
        })
    }
}

/// Finds the factors of `rest` from dimension `d` on whose sum is least, the larger ones first.
fn choose<const D: usize>(rest: usize, d: usize, dims: &mut [usize; D], best: &mut [usize; D]) {
    if d + 1 == D {
        dims[d] = rest;
        let sum = |dims: &[usize; D]| dims.iter().fold(0, |all: usize, &n| all.saturating_add(n));
        if dims.is_sorted_by(|a, b| a >= b) && sum(dims) < sum(best) {
            *best = *dims;
        }
        return;
    }
    for n in (1..=rest).filter(|n| rest.is_multiple_of(*n)) {
        dims[d] = n;
        choose(rest / n, d + 1, dims, best);
    }
}

/// Which cells around a block are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stencil {
    /// Those beside its faces: enough for stencils of 3, 5 and 7 points.
    Star,
    /// Those beside its edges and corners too: for 9 and 27 points.
    Full,
}

/// Fills the ghost cells of a block; see the [module](self).
pub struct Halos<T: Pod, const D: usize> {
    rank: Rank,
    cells: [usize; D],
    width: usize,
    parts: Vec<Part<T>>,
    /// What is sent and does not lie in a row.
    packed: Vec<T>,
    started: bool,
}

/// What goes in one direction.
struct Part<T: Pod> {
    out: Option<(Outbox<T>, Runs)>,
    come: Option<(Inbox<T>, Runs)>,
}

/// Cells of a padded block: where each run begins, and how long they are.
struct Runs {
    starts: Vec<usize>,
    len: usize,
}

impl<T: Pod, const D: usize> Halos<T, D> {
    /// For a block of so many cells, and `width` ghost cells on every side. Collective in that all ranks make it alike, each for its own
    /// block: neighbours have as many cells along what they share, as [`Grid::block`] deals them out. It waits for nobody.
    #[track_caller]
    pub fn new(job: &Job, grid: &Grid<D>, cells: [usize; D], width: usize, stencil: Stencil) -> Result<Halos<T, D>> {
        let (rank, mut parts) = (job.rank(), vec![]);
        // Not 0, which is the block itself; in the same order on all ranks, so that lanes between two of them are paired.
        for direction in 0..3usize.pow(D as u32) {
            let by: [i64; D] = std::array::from_fn(|d| direction as i64 / 3i64.pow(d as u32) % 3 - 1);
            let beside = by.iter().filter(|&&step| step != 0).count();
            if beside == 0 || (beside > 1 && stencil == Stencil::Star) {
                continue;
            }
            let [to, from] = [by, by.map(|step| -step)].map(|by| grid.neighbor(by));
            let thin = (0..D).find(|&d| by[d] != 0 && cells[d] < width);
            if let Some(d) = thin.filter(|_| to.or(from).is_some()) {
                let n = cells[d];
                panic!(
                    "{rank}: Halos::new: {n} cells in dimension {d} are fewer than the {width} that go to a neighbour"
                );
            }
            let len = (0..D).map(|d| if by[d] == 0 { cells[d] } else { width }).product();
            let sent = |d: usize| match by[d] {
                0 => (width, cells[d]),
                1 => (cells[d], width),
                _ => (width, width),
            };
            let ghosts = |d: usize| match by[d] {
                0 => (width, cells[d]),
                1 => (0, width),
                _ => (width + cells[d], width),
            };
            let runs = |of: &dyn Fn(usize) -> (usize, usize)| runs(cells, width, std::array::from_fn(of));
            parts.push(Part {
                out: outbox(job, to, len)?.map(|out| (out, runs(&sent))),
                come: inbox(job, from, len)?.map(|come| (come, runs(&ghosts))),
            });
        }
        Ok(Halos { rank, cells, width, parts, packed: vec![], started: false })
    }

    /// How many cells the padded block has in each dimension.
    pub fn padded(&self) -> [usize; D] {
        self.cells.map(|n| n + 2 * self.width)
    }

    /// How many it has in all.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.padded().iter().product()
    }

    /// Where a cell of the block, counted without ghost cells, is in the padded one.
    pub fn index(&self, at: [usize; D]) -> usize {
        at.iter().zip(self.padded()).fold(0, |all, (at, n)| all * n + at + self.width)
    }

    /// Sends what neighbours want of this block. It may be read meanwhile, and written again when this returns.
    #[track_caller]
    pub fn start(&mut self, block: &[T]) {
        self.check("start", block.len());
        if self.started {
            panic!("{}: Halos::start: it was started already; finish comes first", self.rank);
        }
        self.started = true;
        let packed = &mut self.packed;
        for (to, Runs { starts, len }) in self.parts.iter_mut().flat_map(|part| &mut part.out) {
            match starts[..] {
                [start] => to.put_signal(&block[start..][..*len]),
                _ => {
                    packed.clear();
                    starts.iter().for_each(|&start| packed.extend_from_slice(&block[start..][..*len]));
                    to.put_signal(packed);
                }
            }
        }
    }

    /// Waits for what neighbours have sent, and fills the ghost cells. Beyond open edges, and those that the stencil does not
    /// want, they stay as they are.
    #[track_caller]
    pub fn finish(&mut self, block: &mut [T]) {
        self.check("finish", block.len());
        if !std::mem::replace(&mut self.started, false) {
            panic!("{}: Halos::finish: it was not started", self.rank);
        }
        for (from, Runs { starts, len }) in self.parts.iter_mut().flat_map(|part| &mut part.come) {
            let come = from.wait();
            for (i, &start) in starts.iter().enumerate() {
                block[start..][..*len].copy_from_slice(&come[i * *len..][..*len]);
            }
        }
    }

    /// Both.
    #[track_caller]
    pub fn exchange(&mut self, block: &mut [T]) {
        self.start(block);
        self.finish(block);
    }

    #[track_caller]
    fn check(&self, call: &str, len: usize) {
        let (all, padded) = (self.len(), self.padded());
        if len != all {
            panic!(
                "{}: Halos::{call}: a block of {len} cells, but {padded:?} with its ghost cells has {all}",
                self.rank
            );
        }
    }
}

impl<T: Pod, const D: usize> fmt::Debug for Halos<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "halos of width {} around {:?}, {} neighbours", self.width, self.cells, self.parts.len())
    }
}

/// A part of a padded block, given by start and length in each dimension.
fn runs<const D: usize>(cells: [usize; D], width: usize, part: [(usize, usize); D]) -> Runs {
    let (mut starts, len) = (vec![0], part[D - 1].1);
    for d in 0..D {
        let (first, n) = if d + 1 < D { part[d] } else { (part[d].0, 1) };
        let wide = cells[d] + 2 * width;
        starts = starts.iter().flat_map(|before| (first..first + n).map(move |at| before * wide + at)).collect();
    }
    Runs { starts, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_near_to_cubes() {
        let dims = |n| {
            let mut best = [usize::MAX, 0, 0];
            choose(n, 0, &mut [1; 3], &mut best);
            best
        };
        let wanted =
            [[1, 1, 1], [2, 1, 1], [2, 2, 1], [7, 1, 1], [2, 2, 2], [3, 2, 2], [4, 2, 2], [3, 3, 3], [10, 10, 10]];
        [1, 2, 4, 7, 8, 12, 16, 27, 1000]
            .into_iter()
            .zip(wanted)
            .for_each(|(n, want)| assert_eq!(dims(n), want, "{n}"));
    }

    #[test]
    fn runs_lie_in_a_padded_block() {
        let Runs { starts, len } = runs([3, 4], 1, [(1, 3), (4, 1)]);
        assert_eq!((starts, len), (vec![10, 16, 22], 1));
        let Runs { starts, len } = runs([2, 2, 2], 1, [(0, 1), (1, 2), (1, 2)]);
        assert_eq!((starts, len), (vec![5, 9], 2));
        assert_eq!(runs([5], 2, [(2, 5)]).starts, [2]);
    }
}
