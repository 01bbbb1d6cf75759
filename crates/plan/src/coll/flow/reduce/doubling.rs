//! An all-reduce in which twice as many operands are combined in each round.
//!
//! In round `j`, two ranks whose numbers differ in bit `j` swap what they have, the operands of 2^`j` ranks each, side by
//! side, and combine it alike. Of ranks beyond a power of two, the odd ones among the first hand their operands to those
//! before them, are idle, and are given the result. So the order is kept, whatever the number.
//!
//! Rounds: ⌊log₂ P⌋, and two more if P is no power of two. Bytes: each rank sends its vector once in each.
//!
//! Source: Rabenseifner, "Optimization of Collective Reduction Operations", 2004, where it is recursive doubling.

use super::{Acts, Place, Way};

/// How many there are, that of the operands handed on included.
pub fn rounds(ranks: usize) -> usize {
    1 + ranks.ilog2() as usize
}

pub fn all_reduce(acts: &mut Acts) {
    let (shape, me, p) = (acts.shape, acts.me, acts.shape.ranks);
    let swaps = p.ilog2() as usize;
    let more = p - (1 << swaps);
    let handed = |rank: usize| rank < 2 * more && rank % 2 == 1;
    let keeps = |rank: usize| rank < 2 * more && rank.is_multiple_of(2);
    // Letters have been read when they are sent, so what was sent may be changed.
    let mail = shape.way == Way::Mail;
    // What a rank has before its `j`-th swap, and after the last.
    let partial = |rank: usize, j: usize| match j {
        0 if !keeps(rank) => Place::Own,
        _ if mail || (j == swaps && !shape.in_place) => Place::Result,
        _ => Place::Slot(j),
    };
    if handed(me) {
        acts.send(me - 1, Place::Own, partial(me - 1, 0));
        acts.receive_result(me - 1, Place::Result);
        return;
    }
    let swap = |acts: &mut Acts, with: usize, theirs: Place, (mine, then): (Place, Place)| match mail {
        true => {
            acts.copy(mine, then);
            acts.fold(with, theirs, then, then, with < me);
        }
        false => {
            acts.receive(with, theirs, then);
            acts.combine(mine, then, me < with);
        }
    };
    if keeps(me) {
        swap(acts, me + 1, Place::Own, (Place::Own, partial(me, 0)));
    }
    let v = if me < 2 * more { me / 2 } else { me - more };
    for j in 0..swaps {
        let w = v ^ 1 << j;
        let peer = if w < more { 2 * w } else { w + more };
        acts.send(peer, partial(me, j), partial(peer, j + 1));
        swap(acts, peer, partial(peer, j), (partial(me, j), partial(me, j + 1)));
    }
    acts.copy(partial(me, swaps), Place::Result);
    if keeps(me) {
        acts.send_result(me + 1, Place::Result);
    }
}
