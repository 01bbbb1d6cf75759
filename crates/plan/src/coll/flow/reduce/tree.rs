//! Partial results up a tree, and for an all-reduce the result down again.
//!
//! A tree keeps the order of operands if what is below each rank, itself included, is an interval of ranks, and those
//! below its children are combined in order. That holds for
//!
//! - a k-nomial tree from rank 0 ([as here](super::super::tree)): ⌈log_k P⌉ rounds of up to k − 1 messages. Where order does not matter, it is one
//!   from the root; where it does, rank 0 has the result and passes it to the root;
//! - a chain from both ends to the root, or to the last rank, in pieces one behind the other: P − 2 + pieces rounds at most;
//! - nodes, if each has an interval of ranks: flat inside each, to its leader, and a k-nomial tree of leaders. Parts are dealt
//!   among leaders, as pieces [of a broadcast](super::super::nodes).
//!
//! Bytes: each rank sends one vector, and for an all-reduce receives one again; P − 1 vectors up, and as many down.

use super::{Acts, Flow, Place, Shape, Way};
use crate::coll::flow::{Nodes, Turn, tree};

/// The neighbours of a rank in a tree.
#[derive(Default)]
struct View {
    parent: Option<usize>,
    /// In the order in which they are combined with what the rank has, and whether their operands come before that.
    children: Vec<(usize, bool)>,
}

impl Shape {
    /// Who has all of a part in the end.
    fn top(&self, part: usize) -> usize {
        match (self.flow, self.op.root(), &self.nodes) {
            (Flow::Chain(_), root, _) => root.unwrap_or(self.ranks - 1),
            (_, Some(root), _) if !self.ordered => root,
            (Flow::Nodes(..), _, Some(nodes)) => self.leader_of(nodes, 0, part),
            _ => 0,
        }
    }

    /// The root leads its node, and elsewhere ranks take turns.
    fn leader_of(&self, nodes: &Nodes, node: usize, part: usize) -> usize {
        let members = nodes.members(node);
        self.op.root().filter(|&root| nodes.of(root) == node).unwrap_or(members[part % members.len()])
    }

    fn neighbours(&self, rank: usize, part: usize) -> View {
        let p = self.ranks;
        match (self.flow, &self.nodes) {
            (Flow::Tree(k), _) => {
                let turn = Turn { ranks: p, root: self.top(part) };
                let v = turn.seen(rank);
                let children = nearest(v, k, p).into_iter().map(|c| (turn.rank(c), false));
                View { parent: tree::parent(v, k, p).map(|v| turn.rank(v)), children: children.collect() }
            }
            (Flow::Nodes(k, _), Some(nodes)) => self.by_nodes(nodes, k, rank, part),
            _ => {
                let top = self.top(part);
                let lower = (rank > 0 && rank <= top).then(|| (rank - 1, true));
                let upper = (rank >= top && rank + 1 < p).then_some((rank + 1, false));
                let parent = match rank.cmp(&top) {
                    std::cmp::Ordering::Less => Some(rank + 1),
                    std::cmp::Ordering::Equal => None,
                    std::cmp::Ordering::Greater => Some(rank - 1),
                };
                View { parent, children: lower.into_iter().chain(upper).collect() }
            }
        }
    }

    fn by_nodes(&self, nodes: &Nodes, k: usize, rank: usize, part: usize) -> View {
        let leader = |node: usize| self.leader_of(nodes, node, part);
        let node = nodes.of(rank);
        if leader(node) != rank {
            return View { parent: Some(leader(node)), children: vec![] };
        }
        let turn = Turn { ranks: nodes.count(), root: nodes.of(self.top(part)) };
        let v = turn.seen(node);
        let others = nodes.members(node).iter().copied();
        let below = others.clone().rev().filter(|&m| m < rank).map(|m| (m, true));
        let above = others.filter(|&m| m > rank).map(|m| (m, false));
        let leaders = nearest(v, k, turn.ranks).into_iter().map(|c| (leader(turn.rank(c)), false));
        let parent = tree::parent(v, k, turn.ranks).map(|v| leader(turn.rank(v)));
        View { parent, children: below.chain(above).chain(leaders).collect() }
    }

    /// Where `rank` combines.
    fn sum(&self, rank: usize, part: usize) -> Place {
        match self.op.root() {
            Some(root) if root != rank || self.top(part) != rank => Place::Slot(0),
            _ => Place::Result,
        }
    }

    /// What `rank` sends.
    fn partial(&self, rank: usize, part: usize) -> Place {
        let leaf = self.neighbours(rank, part).children.is_empty();
        if leaf { Place::Own } else { self.sum(rank, part) }
    }

    /// Where what the `i`-th child of `rank` sends lands.
    fn lands(&self, rank: usize, part: usize, i: usize) -> Place {
        let sum = self.sum(rank, part);
        // Where its own operand is, nothing can land.
        let full = sum == Place::Result && self.begins_in_place(rank);
        if i == 0 && !full { sum } else { Place::Slot(usize::from(self.op.root().is_some()) + i) }
    }
}

/// Where a rank combines, and where what is put lands.
pub fn slots(shape: &Shape) -> usize {
    let levels = |k: usize, n: usize| std::iter::successors(Some(1), |d| Some(d * k)).take_while(|&d| d < n).count();
    let children = match (shape.flow, &shape.nodes) {
        (Flow::Tree(k), _) => (k - 1) * levels(k, shape.ranks),
        (Flow::Nodes(k, _), Some(nodes)) => shape.most() - 1 + (k - 1) * levels(k, nodes.count()),
        _ => 2,
    };
    // However large the radix is.
    let children = children.min(shape.ranks - 1);
    usize::from(shape.op.root().is_some()) + if shape.way == Way::Push { children } else { 0 }
}

/// The children of `v`, the nearest first.
fn nearest(v: usize, k: usize, ranks: usize) -> Vec<usize> {
    let mut list: Vec<usize> = tree::children(v, k, ranks).collect();
    list.sort_unstable();
    list
}

pub fn up_and_down(acts: &mut Acts) {
    for part in 0..acts.shape.parts() {
        acts.part = part;
        up(acts);
    }
    for part in 0..acts.shape.parts() {
        acts.part = part;
        down(acts);
    }
}

fn up(acts: &mut Acts) {
    let (shape, me, part) = (acts.shape, acts.me, acts.part);
    let (view, sum) = (shape.neighbours(me, part), shape.sum(me, part));
    for (i, &(child, before)) in view.children.iter().enumerate() {
        let (value, here) = (shape.partial(child, part), shape.lands(me, part, i));
        if here == sum {
            acts.receive(child, value, here);
            acts.combine(Place::Own, sum, !before);
            continue;
        }
        if i == 0 {
            acts.copy(Place::Own, sum);
        }
        acts.fold(child, value, here, sum, before);
    }
    if let Some(parent) = view.parent {
        let siblings = shape.neighbours(parent, part).children;
        let i = siblings.iter().position(|&(c, _)| c == me).unwrap_or_default();
        acts.send(parent, shape.partial(me, part), shape.lands(parent, part, i));
    }
}

fn down(acts: &mut Acts) {
    let (shape, me, part) = (acts.shape, acts.me, acts.part);
    let top = shape.top(part);
    match shape.op.root() {
        // Who has the result is not always who must have it.
        Some(root) if root != top && me == top => acts.send_result(root, shape.partial(top, part)),
        Some(root) if root != top && me == root => acts.receive_result(top, shape.partial(top, part)),
        Some(_) => {}
        None => {
            let View { parent, children } = shape.neighbours(me, part);
            parent.into_iter().for_each(|parent| acts.receive_result(parent, Place::Result));
            children.iter().rev().for_each(|&(c, _)| acts.send_result(c, Place::Result));
        }
    }
}
