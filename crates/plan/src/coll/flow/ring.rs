//! From each rank to the next one.
//!
//! Broadcast: P − 2 + pieces rounds, each block passes P − 1 times. Gather to all: P − 1 rounds, in each of which every
//! rank passes on the block that came last; each block passes P − 1 times. Both are the least bytes.

use super::{List, Shape, Turn};

pub fn broadcast(shape: &Shape, me: usize, list: &mut List) {
    let turn = Turn::of(shape);
    let v = turn.seen(me);
    for piece in 0..shape.blocks() {
        if v > 0 {
            list.receive(turn.rank(v - 1), [piece]);
        }
        if v + 1 < shape.ranks {
            list.send(turn.rank(v + 1), [piece]);
        }
    }
}

pub fn gather_all(shape: &Shape, me: usize, list: &mut List) {
    let p = shape.ranks;
    for t in 0..p - 1 {
        list.send((me + 1) % p, [(me + p - t) % p]);
        list.receive((me + p - 1) % p, [(me + 2 * p - 1 - t) % p]);
    }
}
