//! Reductions of a sequence of elements that is spread over ranks: of an array in the order of indices, as UPC's are; or of memory of each
//! rank's own, in the order of ranks.
//!
//! Each rank combines what it has. Where the order of elements matters, as it does for prefixes and some operations, it does so for each *row*: a row has one stretch of elements of each
//! rank at most, in the order of ranks, and the next one begins where a rank comes that does not follow. Of each row ranks combine their stretches; then each combines
//! the rows. Else there is one row.
//!
//! A rank may have nothing of a row, so what ranks combine is an element or none, unless all are known to have some.

use super::buffer::{Dest, Ready, Side, Source, What};
use super::check::{self, Whole};
use super::describe::is_of_others;
use super::reduce::{OrNone, ReduceOp, With, as_two, fold, or_end, or_none};
use super::{In, Out};
use crate::array::SharedArray;
use crate::team::{Team, TeamRank};
use bytemuck::Pod;
use partage_conduit::barrier::Tag;
use partage_conduit::contract::At;
use partage_conduit::copy;
use partage_conduit::record::Site;
use partage_plan::coll::{Kind, OpKind};
use partage_plan::layout::Spread;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

/// A reduction of a sequence that is described. All ranks have the result, [`In::All`], [`Out::All`], if nothing else is said.
#[must_use = "a collective does nothing until `run`"]
#[derive(Debug)]
pub struct Fold<'a, T, O> {
    team: &'a Team,
    source: Side<'a, T>,
    op: O,
    root: Option<TeamRank>,
    sync: (In, Out),
}

/// All prefixes of a sequence: a collective that is described.
#[must_use = "a collective does nothing until `run`"]
#[derive(Debug)]
pub struct PrefixFold<'a, T, State, O> {
    team: &'a Team,
    source: Side<'a, T>,
    dest: Option<Side<'a, T>>,
    op: O,
    exclusive: bool,
    sync: (In, Out),
    _state: PhantomData<State>,
}

impl Team {
    /// What all elements of an array, or of a slice of one, make in the order of their indices; or all elements of the ranks' own memory, in the
    /// order of ranks. UPC: `upc_all_reduce`.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let a = job.array::<u64>(Layout::block_cyclic(10, 2)).unwrap();
    ///     a.my_indices().for_each(|i| a.put(i, i as u64));
    ///     assert_eq!(job.fold(&a, Sum).run(), Some(45));
    ///     let last = Ordered(|_, y| y);
    ///     assert_eq!(job.fold(a.slice(1..6), last).root(TeamRank(2)).run(), (job.rank().0 == 2).then_some(5));
    ///     assert_eq!(job.fold(a.slice(4..4), Sum).run(), None);
    ///     assert_eq!(job.fold(&vec![1; job.rank().index()], Sum).run(), Some(3));
    /// });
    /// ```
    pub fn fold<'a, S: Source<'a>, O: ReduceOp<S::Item>>(&'a self, source: S, op: O) -> Fold<'a, S::Item, O> {
        Fold { team: self, source: source.into_side(), op, root: None, sync: (In::All, Out::All) }
    }

    /// What the elements up to each make. Source and destination are dealt alike: they have equally many elements, and each one's prefix is on the same rank, at
    /// the same place of a block; or both are memory of the ranks' own. A `Vec` as the destination is made as long as it must be. UPC: `upc_all_prefix_reduce`.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut a = job.array::<u64>(Layout::cyclic(7)).unwrap();
    ///     a.my_indices().for_each(|i| a.put(i, i as u64));
    ///     job.prefix_fold(&mut a, Sum).run();                               // in place
    ///     assert_eq!(a.fetch(..).wait(), [0, 1, 3, 6, 10, 15, 21]);
    ///
    ///     // Where each rank's elements begin among all.
    ///     let (mine, mut before) = (vec![1; 2 + job.rank().index()], vec![]);
    ///     job.prefix_fold(&mine, Sum).exclusive().to(&mut before).run();
    ///     assert_eq!(before[0], [0, 2, 5][job.rank().index()]);
    /// });
    /// ```
    pub fn prefix_fold<'a, S, O>(&'a self, source: S, op: O) -> PrefixFold<'a, S::Item, S::State, O>
    where
        S: Source<'a>,
        O: ReduceOp<S::Item>,
    {
        let (source, sync) = (source.into_side(), (In::All, Out::All));
        PrefixFold { team: self, source, dest: None, op, exclusive: false, sync, _state: PhantomData }
    }
}

impl<T: Pod, O: ReduceOp<T>> Fold<'_, T, O> {
    /// Only this rank has the result.
    pub fn root(self, root: TeamRank) -> Self {
        Fold { root: Some(root), ..self }
    }

    /// When elements may be touched, and when a rank may return.
    pub fn sync(self, before: In, after: Out) -> Self {
        Fold { sync: (before, after), ..self }
    }

    /// Does it: the result, where there is one. There is none of no elements.
    #[track_caller]
    pub fn run(self) -> Option<T> {
        let site = Site::here("fold");
        let Fold { team, source, op, root, sync } = self;
        team.may_meet(|| site);
        let rows = Rows::<T>::of(team, &source.what, O::ORDERED, site);
        let kind = if root.is_some() { OpKind::Reduce } else { OpKind::AllReduce };
        let whole = whole::<T, O>(team, (kind, root), [&source.what, &source.what], false, sync, site);
        whole.enter(team);
        let totals = or_end::<T, O, _>(|| rows.totals(&op));
        let all = match rows.everybody {
            true => {
                let mut all: Vec<T> = totals.into_iter().flatten().collect();
                combine(team, &mut all, op, root, &whole);
                or_end::<T, O, _>(|| fold(&op, None, &all))
            }
            false => {
                let mut all: Vec<[T; 2]> = totals.into_iter().map(as_two).collect();
                combine(team, &mut all, OrNone(op), root, &whole);
                or_end::<T, O, _>(|| all.into_iter().filter_map(or_none).reduce(|a, b| op.combine(a, b)))
            }
        };
        // Who has the result knows that all have read.
        if root.is_some() && sync.1 == Out::All {
            team.meet(Tag::Plain, u64::MAX, || site);
        }
        all.filter(|_| root.is_none_or(|root| root == team.rank()))
    }
}

/// Element by element, on all ranks or the root.
fn combine<T: Pod, O: ReduceOp<T>>(team: &Team, all: &mut Vec<T>, op: O, root: Option<TeamRank>, whole: &Whole) {
    let &Whole { site, sync: (before, after), besides, .. } = whole;
    match root {
        Some(root) => team.reduce(all, op).root(root).sync(before, after).run_as(site, besides),
        None => team.all_reduce(all, op).sync(before, after).run_as(site, besides),
    }
}

/// What the collectives of a fold, or of prefixes, say of it.
fn whole<T: Pod, O: ReduceOp<T>>(
    team: &Team,
    (op, root): (OpKind, Option<TeamRank>),
    sides: [&What<T>; 2],
    exclusive: bool,
    sync: (In, Out),
    site: Site,
) -> Whole {
    let kinds = sides.map(|side| if matches!(side, What::Shared(..)) { Kind::Shared } else { Kind::Private });
    let in_place = std::ptr::eq(sides[0], sides[1]);
    let besides = if team.inner.check { number(sides, [exclusive, in_place]) } else { 0 };
    let (root, element) = (root.unwrap_or(TeamRank(0)), super::describe::element::<T, With<T, O>>);
    Whole { site, op, root, sync, kinds, in_place, element, besides }
}

/// What all ranks must have alike: of both sides the same elements, if they are an array's.
fn number<T: Pod>(sides: [&What<T>; 2], flags: [bool; 2]) -> u32 {
    let mut words = flags.map(u64::from).to_vec();
    for side in sides {
        match side {
            What::Private(..) | What::Vec(_) => words.push(0),
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                words.extend([1, range.start as u64, range.end as u64]);
                words.extend(array.spread.layout().words());
            }
        }
    }
    check::number(words.into_iter().flat_map(u64::to_ne_bytes))
}

impl<'a, T: Pod, State, O: ReduceOp<T>> PrefixFold<'a, T, State, O> {
    /// Where the prefixes go.
    pub fn to<D: Dest<'a, Item = T>>(self, dest: D) -> PrefixFold<'a, T, Ready, O> {
        let PrefixFold { team, source, op, exclusive, sync, .. } = self;
        PrefixFold { team, source, dest: Some(dest.into_side()), op, exclusive, sync, _state: PhantomData }
    }

    /// Each without its own element; the first one stays as it is.
    pub fn exclusive(self) -> Self {
        PrefixFold { exclusive: true, ..self }
    }

    /// When elements may be touched, and when a rank may return.
    pub fn sync(self, before: In, after: Out) -> Self {
        PrefixFold { sync: (before, after), ..self }
    }
}

impl<T: Pod, O: ReduceOp<T>> PrefixFold<'_, T, Ready, O> {
    /// Does it.
    #[track_caller]
    pub fn run(self) {
        let site = Site::here("prefix_fold");
        let PrefixFold { team, source, dest, op, exclusive, sync, .. } = self;
        team.may_meet(|| site);
        let rows = Rows::<T>::of(team, &source.what, true, site);
        let (to, to_first) = match &dest {
            Some(dest) => rows.dest(team, &source.what, &dest.what, site),
            None => (rows.place, rows.first()),
        };
        let sides = [&source.what, dest.as_ref().map_or(&source.what, |dest| &dest.what)];
        let whole = whole::<T, O>(team, (OpKind::Prefix, None), sides, exclusive, sync, site);
        whole.enter(team);
        let totals: Vec<[T; 2]> = or_end::<T, O, _>(|| rows.totals(&op)).into_iter().map(as_two).collect();
        // What other ranks have of each row before this one, and what all have of the rows before.
        let mut before = vec![as_two(None); rows.count];
        let prefixes_of_ranks = team.prefix_reduce(&totals, OrNone(op)).exclusive().to(&mut before);
        prefixes_of_ranks.sync(sync.0, sync.1).run_as(site, whole.besides);
        let mut all = totals;
        if rows.count > 1 {
            combine(team, &mut all, OrNone(op), None, &whole);
        }
        let (mut above, mut row, join) = (as_two(None), 0, OrNone(op));
        or_end::<T, O, ()>(|| {
            for (of, stretch) in &rows.stretches {
                while row < *of {
                    above = join.combine(above, all[row]);
                    row += 1;
                }
                let (from, to) = ((rows.place, stretch.clone()), (to, to_first + stretch.start - rows.first()));
                prefixes(&op, or_none(join.combine(above, before[row])), exclusive, from, to);
            }
        });
        if sync.1 == Out::All {
            team.meet(Tag::Plain, u64::MAX, || site);
        }
    }
}

/// Where this rank's elements are.
#[derive(Clone, Copy)]
enum Place<T> {
    Private(*mut T),
    /// Others may touch them, though a right program does not let them.
    Shared(*mut T),
}

/// Elements that are copied out of an array, and into it, at a time: some KiB.
fn room<T>() -> usize {
    (4096 / size_of::<T>().max(1)).max(1)
}

impl<T: Pod> Place<T> {
    /// These elements, one part after the other.
    fn read(self, range: Range<usize>, mut each: impl FnMut(&[T])) {
        match self {
            // SAFETY: memory that the caller borrows, of this length.
            Place::Private(p) => each(unsafe { std::slice::from_raw_parts(p.add(range.start), range.len()) }),
            Place::Shared(_) => {
                let mut some = vec![T::zeroed(); room::<T>().min(range.len())];
                for at in range.clone().step_by(room::<T>()) {
                    let some = &mut some[..room::<T>().min(range.end - at)];
                    self.get(at, some);
                    each(some);
                }
            }
        }
    }

    fn get(self, at: usize, some: &mut [T]) {
        let (Place::Private(p) | Place::Shared(p)) = self;
        // SAFETY: elements of this rank's part, or of its own memory; none overlaps a vector that was just made.
        unsafe { copy::between(some.as_mut_ptr().cast(), p.add(at).cast(), size_of_val(some)) };
    }

    fn put(self, at: usize, some: &[T]) {
        let (Place::Private(p) | Place::Shared(p)) = self;
        // SAFETY: as in `get`.
        unsafe { copy::between(p.add(at).cast(), some.as_ptr().cast(), size_of_val(some)) };
    }
}

/// The prefixes of these elements after what came before; they go to as many from there on.
fn prefixes<T: Pod, O: ReduceOp<T>>(
    op: &O,
    mut before: Option<T>,
    exclusive: bool,
    (from, range): (Place<T>, Range<usize>),
    (to, start): (Place<T>, usize),
) {
    let mut some = vec![T::zeroed(); room::<T>().min(range.len())];
    for at in range.clone().step_by(room::<T>()) {
        let some = &mut some[..room::<T>().min(range.end - at)];
        from.get(at, some);
        // Nothing comes before the first one, which stays as it is.
        let untouched = exclusive && before.is_none();
        for x in some.iter_mut() {
            let with = before.map_or(*x, |before| op.combine(before, *x));
            *x = if exclusive { before.unwrap_or(*x) } else { with };
            before = Some(with);
        }
        let first = usize::from(untouched);
        to.put(start + (at - range.start) + first, &some[first..]);
    }
}

/// What a rank has of a sequence.
struct Rows<T> {
    place: Place<T>,
    /// How many rows there are.
    count: usize,
    /// Of which row, and which elements of this rank's; ascending.
    stretches: Vec<(usize, Range<usize>)>,
    /// Each rank has something of each row.
    everybody: bool,
}

impl<T: Pod> Rows<T> {
    #[track_caller]
    fn of(team: &Team, what: &What<T>, ordered: bool, site: Site) -> Rows<T> {
        let own = |p: *mut T, len: usize| Rows {
            place: Place::Private(p),
            count: 1,
            stretches: vec![(0, 0..len)],
            // Others may have none.
            everybody: false,
        };
        match what {
            What::Private(p, len) => own(*p, *len),
            What::Vec(vec) => {
                // SAFETY: borrowed, and nobody else has it.
                let vec = unsafe { &mut **vec };
                own(vec.as_mut_ptr(), vec.len())
            }
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                if array.is_empty() {
                    array.check_usable(site.call);
                }
                if !Rc::ptr_eq(&array.group, &team.group) {
                    is_of_others(team, site);
                }
                Rows::of_array(team, array, range.clone(), ordered)
            }
        }
    }

    fn of_array(team: &Team, array: &SharedArray<T>, range: Range<usize>, ordered: bool) -> Rows<T> {
        let (inner, me, spread) = (&team.inner, team.rank().index(), &array.spread);
        let at = At { rank: inner.rank.0, offset: array.start };
        let place = match inner.own_table().locate(at, array.mine * size_of::<T>()) {
            Some(p) => Place::Shared(p.cast()),
            None => unreachable!("memory of this rank"),
        };
        let share = |r: usize| spread.part_before(r, range.start)..spread.part_before(r, range.end);
        if !ordered {
            let everybody = (0..team.size()).all(|r| !share(r).is_empty());
            return Rows { place, count: 1, stretches: vec![(0, share(me))], everybody };
        }
        let (mut row, mut last, mut pieces) = (0, None, 0);
        let mut stretches = vec![];
        for piece in spread.pieces(range) {
            row += usize::from(last.is_some_and(|last| piece.member <= last));
            last = Some(piece.member);
            pieces += 1;
            if piece.member == me {
                stretches.push((row, piece.local));
            }
        }
        let count = row + 1;
        Rows { place, count, stretches, everybody: pieces == count * team.size() }
    }

    /// What each row's stretch makes.
    fn totals<O: ReduceOp<T>>(&self, op: &O) -> Vec<Option<T>> {
        let mut totals = vec![None; self.count];
        for (row, stretch) in &self.stretches {
            let total = &mut totals[*row];
            self.place.read(stretch.clone(), |some| *total = fold(op, *total, some));
        }
        totals
    }

    /// Where this rank's elements begin. They follow one another: a rank's part has no gaps.
    fn first(&self) -> usize {
        self.stretches.first().map_or(0, |(_, stretch)| stretch.start)
    }

    /// Where the destination's elements are, and which is the first of them; they must be dealt as these are.
    #[track_caller]
    fn dest(&self, team: &Team, source: &What<T>, dest: &What<T>, site: Site) -> (Place<T>, usize) {
        if let (What::Private(..) | What::Vec(_), What::Vec(vec)) = (source, dest) {
            // SAFETY: borrowed, and nobody else has it.
            let vec = unsafe { &mut **vec };
            vec.resize(self.stretches.iter().map(|(_, stretch)| stretch.len()).sum(), T::zeroed());
        }
        let (me, there) = (team.inner.rank, Rows::of(team, dest, true, site));
        let alike = match (source, dest) {
            (What::Shared(a, from), What::Shared(b, to)) => {
                if a == b && from != to && from.start < to.end && to.start < from.end {
                    panic!("{me}: {}: elements {from:?} and {to:?} of one array overlap", site.call);
                }
                // SAFETY: both are borrowed.
                let (a, b) = unsafe { (&(**a).spread, &(**b).spread) };
                are_dealt_alike((a, from), (b, to))
            }
            (What::Shared(..), _) | (_, What::Shared(..)) => false,
            _ => self.stretches == there.stretches,
        };
        if !alike {
            panic!("{me}: {}: source and destination differ: give equally many elements, dealt alike", site.call);
        }
        (there.place, there.first())
    }
}

/// Are they equally many, and each on the same rank as the other, at the same place of a block?
fn are_dealt_alike((a, from): (&Spread, &Range<usize>), (b, to): (&Spread, &Range<usize>)) -> bool {
    if from.len() != to.len() {
        return false;
    }
    // Each at the same place of the same part is alike, whatever the blocks.
    if from == to && (a == b || from.clone().all(|i| a.locate(i) == b.locate(i))) {
        return true;
    }
    // One block without end has no places. (Of tiles and bricks it is the one in the part.)
    let dealt = |spread: &Spread, i: usize| match (spread.block(), spread.locate(i)) {
        (Some(block), (member, _)) => (member, i % block),
        (None, (member, k)) => (member, if spread.only_member().is_some() { 0 } else { k }),
    };
    // In blocks of one size, or in one block, the others are as the first is.
    let is_steady = |spread: &Spread| spread.block().is_some() || spread.only_member().is_some();
    let as_the_first = a.block() == b.block() && is_steady(a) && is_steady(b);
    let len = if as_the_first { from.len().min(1) } else { from.len() };
    (0..len).all(|k| dealt(a, from.start + k) == dealt(b, to.start + k))
}
