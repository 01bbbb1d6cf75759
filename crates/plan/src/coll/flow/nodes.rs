//! Flat inside a node, a tree between nodes.
//!
//! Blocks pass between nodes only by *leaders*. They are dealt into *streams*, as many as leaders are asked for, and in
//! each node a stream has one leader: its ranks in turn, as far as there are ranks. On the root's node that is the
//! root, or for a broadcast, where all get the data anyway, the ranks from the root on.
//!
//! - Broadcast: pieces are dealt. Each goes down a k-nomial tree of nodes, by its leaders, who pass it to all of their
//!   node. Rounds: ⌈log_k N⌉ + 1 of N nodes. Between nodes, each piece passes N − 1 times, the least.
//! - Scatter: the blocks of a node's ranks are dealt. A leader gets those of all nodes below its own, and passes them
//!   on, as [in a tree of ranks](super::tree). Gather is that backwards.
//! - Gather to all: flat in each node, then leaders pass what their nodes have [by dissemination](super::dissemination)
//!   with this radix, then what came to all of their node. Between nodes, each block passes N − 1 times, the least.
//! - Exchange: flat in each node, where each rank's blocks for other nodes go to its leader; in N − 1 rounds, leaders pass
//!   to the node `t` after what its ranks must have, and get from the node `t` before; then what came to whom it is for.
//!   Between nodes, there is one message for two nodes and a stream, not one for two ranks. The radix does not matter.
//!
//! Source: one step inside a node and trees between nodes are what Berkeley UPC does, as in Blagojević, Hargrove, Iancu
//! and Yelick, "Hybrid PGAS Runtime Support for Multicore Nodes", 2010, which shows that one leader is too few.

use super::{List, Op, Shape, dissemination, tree};

/// Which ranks are on which node.
///
/// ```
/// use partage_plan::coll::flow::Nodes;
///
/// assert_eq!(Nodes::new(&[7, 3, 7]).members(0), [0, 2]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// By rank: its node, and the how-many-th it is there.
    place: Vec<(usize, usize)>,
    /// By node, in order.
    members: Vec<Vec<usize>>,
    /// By node: how many ranks those before it have.
    before: Vec<usize>,
}

impl Nodes {
    /// From a number for each rank, which is the same for those on the same node. Nodes count from 0, in the order of
    /// their lowest ranks.
    pub fn new(of: &[usize]) -> Nodes {
        let mut numbers: Vec<(usize, usize)> = vec![];
        let mut nodes = Nodes { place: vec![], members: vec![], before: vec![] };
        for (rank, &number) in of.iter().enumerate() {
            let at = numbers.binary_search_by_key(&number, |&(n, _)| n);
            let node = match at {
                Ok(at) => numbers[at].1,
                Err(at) => {
                    numbers.insert(at, (number, nodes.members.len()));
                    nodes.members.push(vec![]);
                    nodes.members.len() - 1
                }
            };
            nodes.place.push((node, nodes.members[node].len()));
            nodes.members[node].push(rank);
        }
        let sizes = nodes.members.iter().map(Vec::len);
        nodes.before = sizes.scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        nodes
    }

    /// How many ranks the nodes before this one have.
    pub(in super::super) fn before(&self, node: usize) -> usize {
        self.before[node]
    }

    /// The how-many-th of its node `rank` is, if those of the first stream come first, then those of the second …
    pub(in super::super) fn dealt(&self, rank: usize, streams: usize) -> usize {
        let (count, index) = (self.members[self.of(rank)].len(), self.index(rank));
        let (each, more, stream) = (count / streams, count % streams, index % streams);
        stream * each + stream.min(more) + index / streams
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.place.len()
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The node of `rank`.
    pub fn of(&self, rank: usize) -> usize {
        self.place[rank].0
    }

    /// The how-many-th of its node `rank` is.
    pub fn index(&self, rank: usize) -> usize {
        self.place[rank].1
    }

    /// The ranks of each follow one another, and those of the next node follow them.
    pub fn are_intervals(&self) -> bool {
        self.members.concat().is_sorted()
    }

    /// The ranks of `node`, in order.
    pub fn members(&self, node: usize) -> &[usize] {
        &self.members[node]
    }
}

pub fn moves(shape: &Shape, nodes: &Nodes, radix: usize, leaders: usize, me: usize, list: &mut List) {
    let view = View { shape, nodes, radix, streams: leaders, me, node: nodes.of(me) };
    match shape.op {
        Op::Broadcast { root, pieces } => view.broadcast(root, pieces, list),
        Op::Scatter { root } => view.scatter(root, list),
        Op::Gather { root } => {
            view.scatter(root, list);
            list.reverse();
        }
        Op::GatherAll => view.gather_all(list),
        Op::Exchange => view.exchange(list),
        _ => {}
    }
}

struct View<'a> {
    shape: &'a Shape,
    nodes: &'a Nodes,
    radix: usize,
    streams: usize,
    me: usize,
    node: usize,
}

impl View<'_> {
    fn stream(&self, rank: usize) -> usize {
        self.nodes.index(rank) % self.streams
    }

    /// Who leads `stream` in `node`.
    fn leader(&self, node: usize, stream: usize) -> usize {
        let members = self.nodes.members(node);
        match self.shape.op {
            Op::Scatter { root } | Op::Gather { root } if self.nodes.of(root) == node => root,
            Op::Broadcast { root, .. } if self.nodes.of(root) == node => {
                members[(self.nodes.index(root) + stream) % members.len()]
            }
            _ => members[stream % members.len()],
        }
    }

    /// The streams that I lead.
    fn led(&self) -> impl Iterator<Item = usize> {
        (0..self.streams).filter(|&s| self.leader(self.node, s) == self.me)
    }

    /// The other ranks of my node, from `first` on.
    fn others(&self, first: usize) -> impl DoubleEndedIterator<Item = usize> {
        let (members, at) = (self.nodes.members(self.node), self.nodes.index(first));
        (0..members.len()).map(move |i| members[(at + i) % members.len()]).filter(|&m| m != self.me)
    }

    /// Those of them that I lead. What they send I need first.
    fn followers(&self) -> impl Iterator<Item = usize> {
        self.others(self.me).rev().filter(|&m| self.leader(self.node, self.stream(m)) == self.me)
    }

    fn led_by_others(&self) -> impl Iterator<Item = usize> {
        self.others(self.me).rev().filter(|&m| self.leader(self.node, self.stream(m)) != self.me)
    }

    /// The ranks of `node` in `stream`.
    fn dealt(&self, node: usize, stream: usize) -> impl Iterator<Item = usize> {
        self.nodes.members(node).iter().copied().filter(move |&m| self.stream(m) == stream)
    }

    /// The ranks of other nodes, led by `leader` in mine.
    fn foreign(&self, leader: usize) -> impl Iterator<Item = usize> {
        let foreign = (0..self.shape.ranks).filter(|&r| self.nodes.of(r) != self.node);
        foreign.filter(move |&r| self.leader(self.node, self.stream(r)) == leader)
    }

    fn broadcast(&self, root: usize, pieces: usize, list: &mut List) {
        let (me, node, k) = (self.me, self.node, self.radix);
        let turn = self.turn(root);
        let v = turn.seen(node);
        for piece in 0..pieces {
            let stream = piece % self.streams;
            let leader = self.leader(node, stream);
            let parent = tree::parent(v, k, turn.ranks).map(|p| self.leader(turn.rank(p), stream));
            let inside = if parent.is_none() { root } else { leader };
            match parent {
                Some(parent) if me == leader => list.receive(parent, [piece]),
                _ if me != inside => list.receive(inside, [piece]),
                _ => {}
            }
            if me == leader {
                let children = tree::children(v, k, turn.ranks).map(|c| self.leader(turn.rank(c), stream));
                children.for_each(|c| list.send(c, [piece]));
            }
            if me == inside {
                self.others(leader).for_each(|m| list.send(m, [piece]));
            }
        }
    }

    fn scatter(&self, root: usize, list: &mut List) {
        let (me, node, k) = (self.me, self.node, self.radix);
        let turn = self.turn(root);
        let v = turn.seen(node);
        let below = |v: usize, s: usize| tree::below(v, k, turn.ranks).flat_map(move |b| self.dealt(turn.rank(b), s));
        for s in self.led() {
            if let Some(parent) = tree::parent(v, k, turn.ranks) {
                list.receive(self.leader(turn.rank(parent), s), below(v, s));
            }
            tree::children(v, k, turn.ranks).for_each(|c| list.send(self.leader(turn.rank(c), s), below(c, s)));
            self.dealt(node, s).filter(|&m| m != me).for_each(|m| list.send(m, [m]));
        }
        let leader = self.leader(node, self.stream(me));
        if leader != me {
            list.receive(leader, [me]);
        }
    }

    fn gather_all(&self, list: &mut List) {
        let (me, v, count) = (self.me, self.node, self.nodes.count());
        self.others(me).for_each(|m| list.send(m, [me]));
        self.followers().for_each(|m| list.receive(m, [m]));
        for (to, from, n) in dissemination::rounds(v, count, self.radix) {
            let blocks = |first: usize, s| (0..n).flat_map(move |i| self.dealt((first + i) % count, s));
            for s in self.led() {
                list.send(self.leader(to, s), blocks(v, s));
                list.receive(self.leader(from, s), blocks(from, s));
            }
        }
        self.led_by_others().for_each(|m| list.receive(m, [m]));
        self.others(me).for_each(|m| list.send(m, self.foreign(me)));
        self.others(me).rev().for_each(|m| list.receive(m, self.foreign(m)));
    }

    fn exchange(&self, list: &mut List) {
        let (p, me, v, count) = (self.shape.ranks, self.me, self.node, self.nodes.count());
        let first = |from: usize, to: usize| {
            let leads = self.leader(v, self.stream(from)) == to;
            (0..p).filter(move |&r| r == to || leads && self.nodes.of(r) != v).map(move |r| from * p + r)
        };
        self.others(me).for_each(|m| list.send(m, first(me, m)));
        self.followers().for_each(|m| list.receive(m, first(m, me)));
        for t in 1..count {
            let (to, from) = ((v + t) % count, (v + count - t) % count);
            let blocks = |from: usize, to: usize, s: usize| {
                self.dealt(from, s).flat_map(move |i| self.nodes.members(to).iter().map(move |j| i * p + j))
            };
            for s in self.led() {
                list.send(self.leader(to, s), blocks(v, to, s));
                list.receive(self.leader(from, s), blocks(from, v, s));
            }
        }
        self.led_by_others().for_each(|m| list.receive(m, first(m, me)));
        let last = |leader: usize, to: usize| self.foreign(leader).map(move |r| r * p + to);
        self.others(me).for_each(|m| list.send(m, last(me, m)));
        self.others(me).rev().for_each(|m| list.receive(m, last(m, me)));
    }

    /// Nodes seen from the root's.
    fn turn(&self, root: usize) -> super::Turn {
        super::Turn { ranks: self.nodes.count(), root: self.nodes.of(root) }
    }
}
