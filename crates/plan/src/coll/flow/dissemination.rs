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
    let mut d = 1;
    while d < p {
        let count = d.min(p - d);
        let blocks = |first: usize| (0..count).map(move |i| (first + i) % p);
        list.send((me + p - d) % p, blocks(me));
        list.receive((me + d) % p, blocks((me + d) % p));
        d *= 2;
    }
}
