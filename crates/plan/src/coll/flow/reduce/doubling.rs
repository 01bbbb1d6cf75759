//! An all-reduce in which twice as many operands are combined in each round.
//!
//! Some ranks *swap*: all of them, or the first rank of each node, its leader, to which the others of the node hand their operands. They are numbered. In round
//! `j`, two whose numbers differ in bit `j` swap what they have, the operands of 2^`j` of them each, side by side, and combine it alike. Of those beyond a power of
//! two, the odd ones among the first hand what they have to those before them. Who has handed something on is idle, and is given the result. So the order
//! is kept, whatever the number; by leaders, if each node has an interval of ranks.
//!
//! Rounds, of S who swap: ⌊log₂ S⌋, two more if S is no power of two, and two inside nodes. Bytes: each rank sends its vector once in each that it takes part in.
//!
//! Source: Rabenseifner, "Optimization of Collective Reduction Operations", 2004, where it is recursive doubling.

use super::{Acts, Flow, Place, Shape, Way};
use crate::coll::Nodes;

/// Who swaps, and who hands what it has to whom.
struct Swaps<'a> {
    shape: &'a Shape,
    /// Of which the first ranks swap, if not all do.
    nodes: Option<&'a Nodes>,
    /// How many rounds there are, and how many are beyond the power of two.
    rounds: usize,
    more: usize,
}

impl<'a> Swaps<'a> {
    fn new(shape: &'a Shape) -> Swaps<'a> {
        let nodes = shape.nodes.as_deref().filter(|_| shape.flow == Flow::Leaders);
        let count = nodes.map_or(shape.ranks, Nodes::count);
        let rounds = count.ilog2() as usize;
        Swaps { shape, nodes, rounds, more: count - (1 << rounds) }
    }

    /// The ranks of which the `i`-th who swaps is the first.
    fn group(&self, i: usize) -> &[usize] {
        self.nodes.map_or(&[], |nodes| nodes.members(i))
    }

    fn rank(&self, i: usize) -> usize {
        self.group(i).first().copied().unwrap_or(i)
    }

    /// Its number, or that of its leader.
    fn number(&self, rank: usize) -> usize {
        self.nodes.map_or(rank, |nodes| nodes.of(rank))
    }

    /// It hands what it has to the one before.
    fn hands(&self, i: usize) -> bool {
        i < 2 * self.more && i % 2 == 1
    }

    /// The next one hands something to it.
    fn keeps(&self, i: usize) -> bool {
        i < 2 * self.more && i.is_multiple_of(2)
    }

    /// Who hands something to the `i`-th, and what that is.
    fn handed_to(&self, i: usize) -> Vec<(usize, Place)> {
        let near = self.group(i).iter().skip(1).map(|&rank| (rank, Place::Own));
        let next = self.keeps(i).then(|| (self.rank(i + 1), self.partial(i + 1, 0)));
        near.chain(next).collect()
    }

    /// Where what the `n`-th of those hands to it lands.
    fn lands(&self, n: usize) -> Place {
        match n {
            _ if self.shape.way == Way::Mail => Place::Result,
            0 => Place::Slot(0),
            _ => Place::Slot(self.rounds + n),
        }
    }

    /// Where the `i`-th has what it has before its `j`-th swap, and after the last.
    fn partial(&self, i: usize, j: usize) -> Place {
        match j {
            0 if self.group(i).len() <= 1 && !self.keeps(i) => Place::Own,
            // Letters have been read when they are sent, so what was sent may be changed.
            _ if self.shape.way == Way::Mail => Place::Result,
            _ if j > 0 && j == self.rounds && !self.shape.in_place => Place::Result,
            _ => Place::Slot(j),
        }
    }

    /// With whom the `i`-th swaps in round `j`.
    fn peer(&self, i: usize, j: usize) -> usize {
        let v = if i < 2 * self.more { i / 2 } else { i - self.more };
        let w = v ^ 1 << j;
        if w < self.more { 2 * w } else { w + self.more }
    }
}

/// A place for each round, and before the first; and, of what is put by others of a node and by the next leader, for all but one.
pub fn slots(shape: &Shape) -> usize {
    let Swaps { nodes, rounds, .. } = Swaps::new(shape);
    match shape.way {
        Way::Mail | Way::Post => 0,
        Way::Push => rounds + nodes.map_or(1, |_| shape.most()),
        Way::Pull | Way::Split => rounds + 1,
    }
}

pub fn all_reduce(acts: &mut Acts) {
    let (shape, me) = (acts.shape, acts.me);
    let swaps = Swaps::new(shape);
    let i = swaps.number(me);
    // What this rank has is handed to the `to`-th.
    let hand = |acts: &mut Acts, value: Place, to: usize| {
        let n = swaps.handed_to(to).iter().position(|&(rank, _)| rank == me).expect("it is one of them");
        acts.send(swaps.rank(to), value, swaps.lands(n));
        acts.receive_result(swaps.rank(to), Place::Result);
    };
    if swaps.rank(i) != me {
        return hand(acts, Place::Own, i);
    }
    let mail = shape.way == Way::Mail;
    let handed = swaps.handed_to(i);
    for (n, &(from, value)) in handed.iter().enumerate() {
        let (here, into) = (swaps.lands(n), swaps.partial(i, 0));
        match n {
            0 if !mail => {
                acts.receive(from, value, here);
                acts.combine(Place::Own, into, true);
                continue;
            }
            0 => acts.copy(Place::Own, into),
            _ => {}
        }
        acts.fold(from, value, here, into, false);
    }
    if swaps.hands(i) {
        hand(acts, swaps.partial(i, 0), i - 1);
    } else {
        for j in 0..swaps.rounds {
            let with = swaps.peer(i, j);
            let (peer, mine, then) = (swaps.rank(with), swaps.partial(i, j), swaps.partial(i, j + 1));
            acts.send(peer, mine, swaps.partial(with, j + 1));
            match mail {
                true => {
                    acts.copy(mine, then);
                    acts.fold(peer, swaps.partial(with, j), then, then, with < i);
                }
                false => {
                    acts.receive(peer, swaps.partial(with, j), then);
                    acts.combine(mine, then, i < with);
                }
            }
        }
        acts.copy(swaps.partial(i, swaps.rounds), Place::Result);
    }
    handed.iter().rev().for_each(|&(rank, _)| acts.send_result(rank, Place::Result));
}
