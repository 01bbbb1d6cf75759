//! Down or up a k-nomial tree.
//!
//! Seen from the root, a rank's parent has the same digits to base k, but for the lowest that is not zero, which is
//! zero. So the ranks below `v` are those from `v` on that share its digits above that one: an interval.
//!
//! Rounds: ⌈log_k P⌉, of up to k − 1 messages. Bytes: a broadcast passes each block P − 1 times, the least; scatter and
//! gather pass each block once for each digit of its rank that is not zero.

use super::{List, Shape, Turn};
use std::ops::Range;

/// The ranks below `v`, itself included.
pub fn below(v: usize, k: usize, ranks: usize) -> Range<usize> {
    v..(v + reach(v, k, ranks)).min(ranks)
}

/// The largest power of `k` that divides `v`; for the root the least that reaches all.
fn reach(v: usize, k: usize, ranks: usize) -> usize {
    let mut d = 1;
    while if v == 0 { d < ranks } else { v.is_multiple_of(d * k) } {
        d *= k;
    }
    d
}

/// None for the root.
pub fn parent(v: usize, k: usize, ranks: usize) -> Option<usize> {
    let above = reach(v, k, ranks) * k;
    (v > 0).then(|| v / above * above)
}

/// The farthest first, which have the most below them.
pub fn children(v: usize, k: usize, ranks: usize) -> impl DoubleEndedIterator<Item = usize> {
    let mut list = vec![];
    let mut d = reach(v, k, ranks);
    while d > 1 {
        d /= k;
        list.extend((1..k).map(|i| v + i * d).filter(|&c| c < ranks));
    }
    list.into_iter()
}

pub fn broadcast(shape: &Shape, k: usize, me: usize, list: &mut List) {
    let turn = Turn::of(shape);
    let v = turn.seen(me);
    for piece in 0..shape.blocks() {
        if let Some(parent) = parent(v, k, shape.ranks) {
            list.receive(turn.rank(parent), [piece]);
        }
        children(v, k, shape.ranks).for_each(|c| list.send(turn.rank(c), [piece]));
    }
}

pub fn scatter(shape: &Shape, k: usize, me: usize, list: &mut List) {
    let (p, turn) = (shape.ranks, Turn::of(shape));
    let v = turn.seen(me);
    let blocks = |v| below(v, k, p).map(|b| turn.rank(b));
    if let Some(parent) = parent(v, k, p) {
        list.receive(turn.rank(parent), blocks(v));
    }
    children(v, k, p).for_each(|c| list.send(turn.rank(c), blocks(c)));
}

/// A scatter that runs backwards.
pub fn gather(shape: &Shape, k: usize, me: usize, list: &mut List) {
    let (p, turn) = (shape.ranks, Turn::of(shape));
    let v = turn.seen(me);
    let blocks = |v| below(v, k, p).map(|b| turn.rank(b));
    children(v, k, p).rev().for_each(|c| list.receive(turn.rank(c), blocks(c)));
    if let Some(parent) = parent(v, k, p) {
        list.send(turn.rank(parent), blocks(v));
    }
}
