//! Prefixes along the ranks.
//!
//! Chain: a rank receives the combined operands of all before it, combines its own, and passes that on, in pieces one behind
//! the other. P − 2 + pieces rounds; each rank sends one vector, the least.
//!
//! Dissemination: in the round of distance `d` = 1, 2, 4 …, a rank has the operands of the last `d` ranks, itself included,
//! combined; it passes that to the rank `d` after and combines what comes from the rank `d` before. ⌈log₂ P⌉ rounds; in each,
//! a rank sends one vector.
//!
//! Source: Hillis and Steele, "Data Parallel Algorithms", 1986, for the latter.

use super::{Acts, Place, Way};

pub fn chain(acts: &mut Acts, exclusive: bool) {
    let (shape, me, p) = (acts.shape, acts.me, acts.shape.ranks);
    // What a rank passes on: its own operand, its result, or what is its result and its operand.
    let passed = |rank: usize| match rank {
        0 => Place::Own,
        _ if exclusive => Place::Slot(0),
        _ => Place::Result,
    };
    let lands = |exclusive: bool| match (exclusive, shape.in_place) {
        (_, false) => Place::Result,
        (true, true) => Place::Slot(1),
        (false, true) => Place::Slot(0),
    };
    for part in 0..shape.parts() {
        acts.part = part;
        let (here, last) = (lands(exclusive), me + 1 == p);
        match (me, exclusive) {
            (0, _) => {}
            (_, false) if shape.in_place => {
                acts.copy(Place::Own, Place::Result);
                acts.fold(me - 1, passed(me - 1), here, Place::Result, true);
            }
            (_, false) => {
                acts.receive(me - 1, passed(me - 1), here);
                acts.combine(Place::Own, Place::Result, false);
            }
            (_, true) => {
                acts.receive(me - 1, passed(me - 1), here);
                if !last {
                    acts.copy(here, Place::Slot(0));
                    acts.combine(Place::Own, Place::Slot(0), false);
                }
                if here != Place::Result {
                    acts.copy(here, Place::Result);
                }
            }
        }
        if !last {
            acts.send(me + 1, passed(me), lands(exclusive));
        }
        if me == 0 && !exclusive {
            acts.copy(Place::Own, Place::Result);
        }
    }
}

/// How many there are.
pub fn rounds(ranks: usize) -> usize {
    (usize::BITS - (ranks - 1).leading_zeros()) as usize
}

pub fn dissemination(acts: &mut Acts, exclusive: bool) {
    let (shape, me, p) = (acts.shape, acts.me, acts.shape.ranks);
    // Letters have been read when they are sent, so what was sent may be changed.
    let folds = shape.way == Way::Mail && !exclusive;
    // What a rank has after so many rounds: what came last, and its own before.
    let partial = |rank: usize, after: usize| {
        let all = if rank == 0 { 0 } else { rank.ilog2() as usize + 1 };
        match after.min(all) {
            0 => Place::Own,
            n if folds || (n == all && !exclusive && !shape.in_place) => Place::Result,
            n => Place::Slot(n - 1),
        }
    };
    for j in 0..rounds(p) {
        let d = 1 << j;
        if me + d < p {
            acts.send(me + d, partial(me, j), partial(me + d, j + 1));
        }
        if me < d {
            continue;
        }
        let (mine, then, theirs) = (partial(me, j), partial(me, j + 1), partial(me - d, j));
        if folds {
            acts.copy(mine, then);
            acts.fold(me - d, theirs, then, then, true);
            continue;
        }
        acts.receive(me - d, theirs, then);
        match (exclusive, j) {
            (false, _) => {}
            (true, 0) => acts.copy(then, Place::Result),
            (true, _) => acts.combine(then, Place::Result, true),
        }
        // It is sent once more, or it is the result.
        if !exclusive || me + 2 * d < p {
            acts.combine(mine, then, false);
        }
    }
    if !exclusive {
        acts.copy(partial(me, rounds(p)), Place::Result);
    }
}
