//! Blocks travel as many hops as their distance has bits.
//!
//! In the round of bit `b`, every rank sends to the rank `b` after it all blocks whose way has that bit; a block on its
//! way has gone the lower bits already. Rounds: ⌈log₂ P⌉. Bytes: about P/2 blocks from each rank in each round.
//!
//! Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", 1997, the index operation with radix 2.

use super::{List, Shape};

pub fn exchange(shape: &Shape, me: usize, list: &mut List) {
    let p = shape.ranks;
    // What `rank` sends in this round: the block that goes `far` came from as many ranks before as the lower bits say.
    let sends = |rank: usize, bit: usize| {
        (1..p).filter(move |far| far & bit != 0).map(move |far| {
            let from = (rank + p - far % bit) % p;
            from * p + (from + far) % p
        })
    };
    let mut bit = 1;
    while bit < p {
        let before = (me + p - bit) % p;
        list.send((me + bit) % p, sends(me, bit));
        list.receive(before, sends(before, bit));
        bit *= 2;
    }
}
