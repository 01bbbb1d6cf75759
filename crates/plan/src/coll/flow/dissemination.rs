//! Twice as many blocks in each round, from twice as far.
//!
//! After the rounds of distance 1, 2, 4 … `d`/2 a rank has `d` blocks, from its own on; the last round takes what is
//! missing. Rounds: ⌈log₂ P⌉. Bytes: each block passes P − 1 times, the least.
//!
//! Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", 1997, the concatenation; blocks are where they belong at once, so nothing is turned at the
//! end.

use super::{List, Shape};

pub fn gather_all(shape: &Shape, me: usize, list: &mut List) {
    let p = shape.ranks;
    for (to, from, count) in rounds(me, p, 2) {
        let blocks = |first: usize| (0..count).map(move |i| (first + i) % p);
        list.send(to, blocks(me));
        list.receive(from, blocks(from));
    }
}

/// To whom, from whom, and how many blocks, from the sender's own on: with radix `k`, from `d`, 2`d` … away, then from
/// `k` times as far.
pub fn rounds(me: usize, p: usize, k: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let distances = std::iter::successors(Some(1), move |d| Some(d * k)).take_while(move |&d| d < p);
    let all = distances.flat_map(move |d| (1..k).map(move |i| (d, i * d)).filter(move |&(_, far)| far < p));
    all.map(move |(d, far)| ((me + p - far) % p, (me + far) % p, d.min(p - far)))
}
