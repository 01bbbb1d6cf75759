//! Which elements a copy takes, and in which order: [`Shape`].
//!
//! A shape is a sequence of *runs*, each some neighbouring elements. There are four kinds: a range; a list of ranges (a
//! *vector*); a list of starts with one length ([`Indexed`]); and runs that repeat at strides, on up to [`LEVELS`] levels
//! ([`Region`]). Two shapes of as many elements describe a copy, whatever their kinds: [`Cursor`] walks them together.
//!
//! Guaranteed: [`Shape::extent`] computes without overflow or says that it cannot. Where it answered, everything else here
//! is exact, and counts elements as the list of runs would, one by one. Runs of a list that touch are one, and so are levels
//! of a region of which one goes on where the other ends. Empty runs name no element, wherever they are. Nothing is allocated, but where elements are to be compared that do not
//! come in ascending order and do not nest.
//!
//! Not contained: memory, and where elements live ([`crate::layout`]).

use std::{fmt, ops::Range};

/// The most levels of a [`Region`].
pub const LEVELS: usize = 8;

/// Runs at strides, on several levels: the elements of a box in a box.
///
/// The first [`times`](Region::times) is the innermost: it is done first.
///
/// ```
/// use partage_plan::region::{Region, Shape};
///
/// let column = Region::at(3).times(4, 10);                      // column 3 of a matrix of 4 x 10
/// assert_eq!(column.indices().collect::<Vec<_>>(), [3, 13, 23, 33]);
/// let tile = Region::at(12).run(3).times(2, 10);                // 2 x 3 of it
/// assert_eq!(tile.indices().collect::<Vec<_>>(), [12, 13, 14, 22, 23, 24]);
/// let brick = Region::at(0).run(2).times(2, 4).times(2, 16);    // 2 x 2 x 2 of a box of 4 x 4 x 4
/// assert_eq!(brick.indices().collect::<Vec<_>>(), [0, 1, 4, 5, 16, 17, 20, 21]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Region {
    start: usize,
    run: usize,
    /// Count and stride of each level, the innermost first.
    levels: [(usize, usize); LEVELS],
    depth: usize,
}

impl Region {
    /// The element `start`: a run of one.
    pub const fn at(start: usize) -> Region {
        Region { start, run: 1, levels: [(1, 0); LEVELS], depth: 0 }
    }

    /// The run that repeats has `len` elements.
    pub const fn run(self, len: usize) -> Region {
        Region { run: len, ..self }
    }

    /// All of it `count` times, each `stride` elements after the one before.
    ///
    /// # Panics
    /// If that is more than [`LEVELS`] levels.
    #[inline]
    #[track_caller]
    pub const fn times(mut self, count: usize, stride: usize) -> Region {
        assert!(self.depth < LEVELS, "times: a region has at most 8 levels; a list of ranges has any number of runs");
        self.levels[self.depth] = (count, stride);
        self.depth += 1;
        self
    }

    #[inline]
    fn levels(&self) -> &[(usize, usize)] {
        &self.levels[..self.depth]
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.run == 0 || self.levels().iter().any(|&(count, _)| count == 0)
    }

    /// Its first row, and the levels outside: levels that go on where the one inside ends are part of it, as far as they
    /// are innermost. It has elements.
    #[inline(always)]
    fn first_row(&self) -> (Row, &[(usize, usize)]) {
        let mut row = Row { start: self.start, len: self.run, count: 1, stride: 0 };
        for (i, &(count, stride)) in self.levels().iter().enumerate() {
            // Numbers that go beyond all numbers are those of another level, or of no element.
            let (len, all) = (row.len.wrapping_mul(count), row.count.wrapping_mul(count));
            match row.count {
                _ if count == 1 => {}
                1 if stride == row.len => row.len = len,
                1 => (row.count, row.stride) = (count, stride),
                n if stride == n.wrapping_mul(row.stride) => row.count = all,
                _ => return (row, &self.levels()[i..]),
            }
        }
        (row, &[])
    }

    /// Does an element come twice, where levels do not nest in their order?
    #[cold]
    fn repeats_somewhere(&self) -> bool {
        let mut region = *self;
        let levels = &mut region.levels[..self.depth];
        // Levels in any order name the same elements.
        levels.sort_unstable_by_key(|&(count, stride)| (count > 1, stride));
        let levels = &levels[levels.partition_point(|&(count, _)| count == 1)..];
        match levels {
            _ if nest(self.run, levels) => false,
            // One level that does not nest is one whose neighbours overlap; and so is a level that stands still.
            [_] | [(_, 0), ..] => true,
            // More elements than places.
            _ if self.extent().is_ok_and(|all| all.total > all.bounds.len()) => true,
            _ => !are_apart(self.runs()),
        }
    }
}

/// Does each level step over all that lies inside it?
#[inline]
fn nest(run: usize, levels: &[(usize, usize)]) -> bool {
    let mut span = run;
    levels.iter().filter(|&&(count, _)| count > 1).all(|&(count, stride)| {
        let apart = span <= stride;
        span = span.wrapping_add(stride.wrapping_mul(count - 1));
        apart
    })
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at({}).run({})", self.start, self.run)?;
        self.levels().iter().try_for_each(|(count, stride)| write!(f, ".times({count}, {stride})"))
    }
}

/// Runs of one length at any starts, in this order.
///
/// ```
/// use partage_plan::region::{Indexed, Shape};
/// let some = Indexed { starts: &[7, 0, 4], len: 2 };
/// assert_eq!(some.indices().collect::<Vec<_>>(), [7, 8, 0, 1, 4, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed<'a> {
    /// Where they start.
    pub starts: &'a [usize],
    /// How many elements each has.
    pub len: usize,
}

/// Runs of one length at one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first element of the first.
    pub start: usize,
    /// How many elements each has; one at least.
    pub len: usize,
    /// How many there are; one at least.
    pub count: usize,
    /// How far each starts after the one before.
    pub stride: usize,
}

/// How large a shape is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// How many elements, each as often as it comes.
    pub total: usize,
    /// From the first to the last of them; `0..0` if there are none.
    pub bounds: Range<usize>,
}

/// Why a shape has no extent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// Some number in it is too large to be counted with.
    TooLarge,
    /// A range that ends before it starts.
    Backwards(Range<usize>),
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::TooLarge => write!(f, "its counts and strides go beyond all numbers"),
            ShapeError::Backwards(range) => write!(f, "{range:?} is no range"),
        }
    }
}

impl std::error::Error for ShapeError {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Region {}
    impl Sealed for super::Indexed<'_> {}
    impl Sealed for std::ops::Range<usize> {}
    impl Sealed for &[std::ops::Range<usize>] {}
    impl<const N: usize> Sealed for &[std::ops::Range<usize>; N] {}
}

/// Which elements, in which order: a range, a list of ranges, [`Indexed`] or a [`Region`].
pub trait Shape: sealed::Sealed + fmt::Debug {
    /// How large it is. Nothing else here is to be asked of a shape that has no extent.
    fn extent(&self) -> Result<Extent, ShapeError>;

    /// Its runs, in order; those of one length and distance that follow each other together, as far as that is seen without
    /// looking for it.
    fn rows(&self) -> Rows<'_>;

    /// Does an element come twice? Without regard to the order; the time and memory of a sort where runs neither ascend nor
    /// nest.
    fn repeats(&self) -> bool;

    /// Its runs: where each starts and how long it is.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        self.rows().flat_map(|row| (0..row.count).map(move |i| (row.start + i * row.stride, row.len)))
    }

    /// Its elements.
    fn indices(&self) -> impl Iterator<Item = usize> + Clone {
        self.runs().flat_map(|(start, len)| start..start + len)
    }
}

impl Shape for Region {
    #[inline]
    fn extent(&self) -> Result<Extent, ShapeError> {
        if self.is_empty() {
            return Ok(Extent::default());
        }
        let (mut total, mut end) = (Some(self.run), self.start.checked_add(self.run));
        for &(count, stride) in self.levels() {
            total = total.and_then(|n| n.checked_mul(count));
            end = end.zip((count - 1).checked_mul(stride)).and_then(|(end, more)| end.checked_add(more));
        }
        let (total, end) = total.zip(end).ok_or(ShapeError::TooLarge)?;
        Ok(Extent { total, bounds: self.start..end })
    }

    #[inline(always)]
    fn rows(&self) -> Rows<'_> {
        let (row, levels) = self.first_row();
        Rows(Kind::Levels { next: (!self.is_empty()).then_some(row), levels, at: [0; LEVELS] })
    }

    #[inline]
    fn repeats(&self) -> bool {
        !self.is_empty() && !nest(self.run, self.levels()) && self.repeats_somewhere()
    }
}

impl Shape for Range<usize> {
    #[inline]
    fn extent(&self) -> Result<Extent, ShapeError> {
        match self.start.cmp(&self.end) {
            std::cmp::Ordering::Less => Ok(Extent { total: self.end - self.start, bounds: self.clone() }),
            std::cmp::Ordering::Equal => Ok(Extent::default()),
            std::cmp::Ordering::Greater => Err(ShapeError::Backwards(self.clone())),
        }
    }

    #[inline(always)]
    fn rows(&self) -> Rows<'_> {
        let row = Row { start: self.start, len: self.len(), count: 1, stride: 0 };
        Rows(Kind::Levels { next: (row.len > 0).then_some(row), levels: &[], at: [0; LEVELS] })
    }

    fn repeats(&self) -> bool {
        false
    }
}

impl Shape for &[Range<usize>] {
    fn extent(&self) -> Result<Extent, ShapeError> {
        let mut all = Extent::default();
        for range in self.iter() {
            grow(&mut all, range.extent()?)?;
        }
        Ok(all)
    }

    fn rows(&self) -> Rows<'_> {
        Rows(Kind::List { list: List::Ranges(self.iter()), held: None })
    }

    fn repeats(&self) -> bool {
        !are_apart(self.runs())
    }
}

impl<const N: usize> Shape for &[Range<usize>; N] {
    fn extent(&self) -> Result<Extent, ShapeError> {
        self.as_slice().extent()
    }

    fn rows(&self) -> Rows<'_> {
        Rows(Kind::List { list: List::Ranges(self.iter()), held: None })
    }

    fn repeats(&self) -> bool {
        self.as_slice().repeats()
    }
}

impl Shape for Indexed<'_> {
    fn extent(&self) -> Result<Extent, ShapeError> {
        let mut all = Extent::default();
        if self.len == 0 {
            return Ok(all);
        }
        for &start in self.starts {
            let end = start.checked_add(self.len).ok_or(ShapeError::TooLarge)?;
            grow(&mut all, Extent { total: self.len, bounds: start..end })?;
        }
        Ok(all)
    }

    fn rows(&self) -> Rows<'_> {
        Rows(Kind::List { list: List::Starts(self.starts.iter(), self.len), held: None })
    }

    fn repeats(&self) -> bool {
        !are_apart(self.runs())
    }
}

/// Adds what comes next.
fn grow(all: &mut Extent, more: Extent) -> Result<(), ShapeError> {
    if more.total > 0 {
        let (a, b) = (&all.bounds, &more.bounds);
        all.bounds = if all.total == 0 { b.clone() } else { a.start.min(b.start)..a.end.max(b.end) };
        all.total = all.total.checked_add(more.total).ok_or(ShapeError::TooLarge)?;
    }
    Ok(())
}

/// The rows of a shape: what [`Shape::rows`] gives.
#[derive(Clone, Debug)]
pub struct Rows<'s>(Kind<'s>);

#[derive(Clone, Debug)]
enum Kind<'s> {
    /// The innermost level of a region each, for all values of the others.
    Levels {
        next: Option<Row>,
        /// The others.
        levels: &'s [(usize, usize)],
        /// How often each of them has been taken.
        at: [usize; LEVELS],
    },
    /// Runs of a list, of which those that touch are one, and without empty ones.
    List {
        list: List<'s>,
        /// The next one, if it was looked at.
        held: Option<(usize, usize)>,
    },
}

#[derive(Clone, Debug)]
enum List<'s> {
    Ranges(std::slice::Iter<'s, Range<usize>>),
    Starts(std::slice::Iter<'s, usize>, usize),
}

impl Iterator for List<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        match self {
            List::Ranges(ranges) => ranges.next().map(|range| (range.start, range.len())),
            List::Starts(starts, len) => starts.next().map(|&start| (start, *len)),
        }
    }
}

impl Iterator for Rows<'_> {
    type Item = Row;

    // In line always: a row that is handed over in memory costs as much as copying it.
    #[inline(always)]
    fn next(&mut self) -> Option<Row> {
        match &mut self.0 {
            Kind::Levels { next, levels, at } => {
                let row = next.take()?;
                let mut start = row.start;
                for (&(count, stride), at) in levels.iter().zip(at) {
                    *at += 1;
                    start = start.wrapping_add(stride);
                    if *at < count {
                        *next = Some(Row { start, ..row });
                        break;
                    }
                    *at = 0;
                    start = start.wrapping_sub(stride.wrapping_mul(count));
                }
                Some(row)
            }
            Kind::List { list, held } => {
                let (start, mut len) = held.take().or_else(|| list.find(|&(_, len)| len > 0))?;
                *held = list.find(|&(next, more)| {
                    let touches = start.checked_add(len) == Some(next);
                    len += if touches { more } else { 0 };
                    more > 0 && !touches
                });
                Some(Row { start, len, count: 1, stride: 0 })
            }
        }
    }
}

/// Do no two runs have an element in common?
fn are_apart(runs: impl Iterator<Item = (usize, usize)> + Clone) -> bool {
    fn ascend(mut runs: impl Iterator<Item = (usize, usize)>) -> bool {
        let mut end = 0;
        runs.all(|(start, len)| std::mem::replace(&mut end, start + len) <= start)
    }
    ascend(runs.clone()) || {
        let mut runs: Vec<_> = runs.collect();
        runs.sort_unstable();
        ascend(runs.into_iter())
    }
}

/// Do two shapes have an element in common, if the elements of each are counted from so far on? It takes a sort of both
/// where their bounds do.
pub fn meet(a: &impl Shape, a_from: usize, b: &impl Shape, b_from: usize) -> bool {
    let bounds = |extent: Result<Extent, ShapeError>, from: usize| match extent {
        Ok(Extent { total: 1.., bounds }) => bounds.start + from..bounds.end + from,
        _ => 0..0,
    };
    let (x, y) = (bounds(a.extent(), a_from), bounds(b.extent(), b_from));
    if x.start >= y.end || y.start >= x.end {
        return false;
    }
    let runs = |(start, len), from, side| (start + from, len, side);
    let both = a.runs().map(|run| runs(run, a_from, 0)).chain(b.runs().map(|run| runs(run, b_from, 1)));
    let mut both: Vec<(usize, usize, usize)> = both.collect();
    both.sort_unstable();
    let mut ends = [0; 2];
    both.into_iter().any(|(start, len, side)| {
        ends[side] = ends[side].max(start + len);
        start < ends[1 - side]
    })
}

/// Pieces of two shapes that belong to each other: runs of one length, at one distance on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Where the first starts on either side.
    pub starts: [usize; 2],
    /// How many elements each has.
    pub len: usize,
    /// How many there are.
    pub count: usize,
    /// How far each starts after the one before, on either side.
    pub strides: [usize; 2],
}

/// A place in a shape, from which it is walked together with another.
///
/// ```
/// use partage_plan::region::{Cursor, Pair, Region};
///
/// let (matrix, dense) = (Region::at(10).run(2).times(3, 8), 0..6);
/// let (mut there, mut here) = (Cursor::new(&matrix), Cursor::new(&dense));
/// let all = Pair { starts: [10, 0], len: 2, count: 3, strides: [8, 2] };
/// assert_eq!((there.pair(&mut here), there.pair(&mut here)), (Some(all), None));
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<'s> {
    rows: Rows<'s>,
    /// What is left of the row; no runs if it is over.
    row: Row,
    /// How much of its first run has been taken.
    taken: usize,
}

impl<'s> Cursor<'s> {
    /// At the beginning of a shape.
    #[inline(always)]
    pub fn new(shape: &'s impl Shape) -> Self {
        Cursor { rows: shape.rows(), row: Row { start: 0, len: 0, count: 0, stride: 0 }, taken: 0 }
    }

    /// The next pieces of both, as many as can be said at once; `None` at the end of the shorter one.
    #[inline(always)]
    pub fn pair(&mut self, other: &mut Cursor<'_>) -> Option<Pair> {
        if !self.is_at_some() || !other.is_at_some() {
            return None;
        }
        let (a, b) = (self.row, other.row);
        let (left_a, left_b) = (a.len - self.taken, b.len - other.taken);
        let starts = [a.start + self.taken, b.start + other.taken];
        // Whole runs of one side, of the other side's length or inside one of its runs, go together.
        let (len, count, strides) = match () {
            () if left_a == left_b && self.taken == 0 && other.taken == 0 => {
                (a.len, a.count.min(b.count), [a.stride, b.stride])
            }
            () if self.taken == 0 && a.len <= left_b => (a.len, fit(a, left_b), [a.stride, a.len]),
            () if other.taken == 0 && b.len <= left_a => (b.len, fit(b, left_a), [b.len, b.stride]),
            () => (left_a.min(left_b), 1, [0; 2]),
        };
        self.take(len, count);
        other.take(len, count);
        Some(Pair { starts, len, count, strides })
    }

    /// Is there a row here, or a next one?
    #[inline]
    fn is_at_some(&mut self) -> bool {
        if self.row.count == 0
            && let Some(row) = self.rows.next()
        {
            self.row = row;
        }
        self.row.count > 0
    }

    /// Goes on: by so many whole runs, or inside one.
    #[inline]
    fn take(&mut self, len: usize, count: usize) {
        let runs = if len == self.row.len {
            count
        } else {
            self.taken += len * count;
            usize::from(self.taken == self.row.len)
        };
        if runs > 0 {
            self.taken = 0;
            self.row.count -= runs;
            // After the last one this is no element, and perhaps no number.
            self.row.start = self.row.start.wrapping_add(runs.wrapping_mul(self.row.stride));
        }
    }
}

/// How many runs of the row fit into so many elements, of which one does.
#[inline]
fn fit(row: Row, left: usize) -> usize {
    match row.count.checked_mul(row.len) {
        Some(all) if all <= left => row.count,
        _ => left / row.len,
    }
}
