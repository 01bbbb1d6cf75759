//! Every operand straight to whoever needs it, where all are combined from the first rank's on.
//!
//! Flat: all of it. One round, in which P − 1 vectors go to each rank that has a result.
//!
//! Slices: rank `r` does that with the `r`-th part only, and passes it to all who need it. Two rounds; each rank combines P − 1
//! parts, and of an all-reduce sends and receives less than two vectors, the least. It is a reduce-scatter and a gather
//! to all. Of a prefix, a rank makes its part of all results.

use std::ops::Range;

use super::{Acts, Flow, Place, Shape, Way};

/// Where what is put lands, the operand that a result would overwrite, a part for the root.
pub fn slots(shape: &Shape) -> usize {
    landings(shape) + usize::from(kept(shape)) + usize::from(shape.flow == Flow::Slices && shape.op.root().is_some())
}

fn landings(shape: &Shape) -> usize {
    if shape.way == Way::Push { shape.ranks } else { 0 }
}

/// Some rank puts its own operand aside, since it is not among the first two, and its result is in the same place.
fn kept(shape: &Shape) -> bool {
    keeps(shape, shape.op.root().unwrap_or(shape.ranks - 1))
}

fn keeps(shape: &Shape, rank: usize) -> bool {
    let own = shape.flow == Flow::Slices || shape.operands(rank).contains(&rank);
    rank > 1 && own && shape.begins_in_place(rank) && !shape.aside(rank)
}

/// Where the operand of `from` lands at `rank`, which combines some with its own: the first where all are combined.
fn landing(shape: &Shape, rank: usize, from: usize, into: Place) -> Place {
    let own = shape.flow == Flow::Slices || shape.operands(rank).contains(&rank);
    let first = from == 0 && !(own && rank < 2);
    if first && !(shape.way == Way::Push && shape.begins_in_place(rank)) { into } else { Place::Slot(from) }
}

/// Combines the operands of these ranks.
fn in_order(acts: &mut Acts, ranks: Range<usize>, into: Place) {
    let (shape, me) = (acts.shape, acts.me);
    let own = ranks.contains(&me);
    // The first two begin with their own.
    if own && me < 2 {
        acts.copy(Place::Own, into);
        for r in ranks.filter(|&r| r != me) {
            acts.fold(r, Place::Own, landing(shape, me, r, into), into, r < me);
        }
        return;
    }
    let mut mine = Place::Own;
    if own && keeps(shape, me) {
        mine = Place::Slot(landings(shape));
        acts.copy(Place::Own, mine);
    }
    for r in ranks {
        let here = landing(shape, me, r, into);
        match r {
            0 => {
                acts.receive(0, Place::Own, here);
                if here != into {
                    acts.copy(here, into);
                }
            }
            _ if r == me => acts.combine(mine, into, false),
            _ => acts.fold(r, Place::Own, here, into, false),
        }
    }
}

pub fn flat(acts: &mut Acts) {
    let (shape, me, p) = (acts.shape, acts.me, acts.shape.ranks);
    let needs = |to: &usize| shape.operands(*to).contains(&me);
    // One peer only, which need not be searched.
    let all = shape.op.root().map_or(1..p, |root| (root + p - me) % p..(root + p - me) % p + 1);
    for to in all.map(|d| (me + d) % p).filter(|&to| to != me).filter(needs) {
        acts.send(to, Place::Own, landing(shape, to, me, Place::Result));
    }
    in_order(acts, shape.operands(me), Place::Result);
}

pub fn slices(acts: &mut Acts) {
    let (shape, me, p) = (acts.shape, acts.me, acts.shape.ranks);
    let root = shape.op.root();
    let last = Place::Slot(slots(shape).saturating_sub(1));
    let into = |rank: usize| if root.is_none_or(|root| root == rank) { Place::Result } else { last };
    for to in (1..p).map(|d| (me + d) % p) {
        acts.part = to;
        acts.send(to, Place::Own, landing(shape, to, me, into(to)));
    }
    acts.part = me;
    in_order(acts, 0..p, into(me));
    for to in (1..p).map(|d| (me + d) % p).filter(|&to| shape.has_result(to)) {
        acts.send_result(to, into(me));
    }
    for from in (1..p).map(|d| (me + p - d) % p).filter(|_| shape.has_result(me)) {
        acts.part = from;
        acts.receive_result(from, into(from));
    }
}

/// A rank's part of the result of `r`, inclusive, is in its `r`-th slot.
pub fn prefix_slices(acts: &mut Acts, exclusive: bool) {
    let (me, p) = (acts.me, acts.shape.ranks);
    let needed = p - usize::from(exclusive);
    for to in (1..p).map(|d| (me + d) % p).filter(|_| me < needed) {
        acts.part = to;
        acts.send(to, Place::Own, Place::Slot(me));
    }
    acts.part = me;
    for r in 0..needed {
        match r == me {
            true => acts.copy(Place::Own, Place::Slot(r)),
            false => acts.receive(r, Place::Own, Place::Slot(r)),
        }
        if r > 0 {
            acts.combine(Place::Slot(r - 1), Place::Slot(r), true);
        }
    }
    let value = |r: usize| Place::Slot(r - usize::from(exclusive));
    let has = |r: &usize| *r > 0 || !exclusive;
    for to in (1..p).map(|d| (me + d) % p).filter(has) {
        acts.send_result(to, value(to));
    }
    if has(&me) {
        acts.copy(value(me), Place::Result);
        for from in (1..p).map(|d| (me + p - d) % p) {
            acts.part = from;
            acts.receive_result(from, value(me));
        }
    }
}
