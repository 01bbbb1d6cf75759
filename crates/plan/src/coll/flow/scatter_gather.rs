//! A broadcast in as many pieces as ranks: scattered, then gathered by all.
//!
//! Rounds: ⌈log_k P⌉ + P − 1. Bytes: each piece passes P − 1 times, the least, and no rank sends much more than twice
//! the whole: a rank is not sent what the scatter has left with it.
//!
//! Source: van de Geijn, as in Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor Collective
//! Communication Library (InterCom)", 1994.

use super::{List, Shape, Turn, tree};

pub fn broadcast(shape: &Shape, k: usize, me: usize, list: &mut List) {
    let (p, turn) = (shape.ranks, Turn::of(shape));
    let v = turn.seen(me);
    if let Some(parent) = tree::parent(v, k, p) {
        list.receive(turn.rank(parent), tree::below(v, k, p));
    }
    tree::children(v, k, p).for_each(|c| list.send(turn.rank(c), tree::below(c, k, p)));
    let (next, before) = ((v + 1) % p, (v + p - 1) % p);
    for t in 0..p - 1 {
        let passed = |from: usize, to: usize| {
            let piece = (from + p - t) % p;
            (!tree::below(to, k, p).contains(&piece)).then_some(piece)
        };
        list.send(turn.rank(next), passed(v, next));
        list.receive(turn.rank(before), passed(before, v));
    }
}
