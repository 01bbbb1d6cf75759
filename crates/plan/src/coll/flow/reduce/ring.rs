//! An all-reduce round the ring, of which each rank has a part.
//!
//! A part goes once round the ring, and each rank combines its own operand; then it goes round once more, as the result. Each
//! begins at another rank, so the order of operands is that of ranks, but turned. Rounds: 2(P − 1). Bytes: each rank sends
//! less than two vectors, the least.
//!
//! Source: Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009.

use super::{Acts, Place};

pub fn all_reduce(acts: &mut Acts) {
    let (me, p) = (acts.me, acts.shape.ranks);
    let (next, before) = ((me + 1) % p, (me + p - 1) % p);
    let in_place = acts.shape.in_place;
    for t in 0..p - 1 {
        let partial = if t == 0 { Place::Own } else { Place::Result };
        let here = if in_place { Place::Slot(t) } else { Place::Result };
        acts.part = (me + p - t) % p;
        acts.send(next, partial, here);
        acts.part = (before + p - t) % p;
        match in_place {
            true => {
                acts.copy(Place::Own, Place::Result);
                acts.fold(before, partial, here, Place::Result, true);
            }
            false => {
                acts.receive(before, partial, here);
                acts.combine(Place::Own, Place::Result, false);
            }
        }
    }
    for t in 0..p - 1 {
        acts.part = (next + p - t) % p;
        acts.send_result(next, Place::Result);
        acts.part = (me + p - t) % p;
        acts.receive_result(before, Place::Result);
    }
}
