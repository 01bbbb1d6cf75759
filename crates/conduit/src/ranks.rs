//! Who is where: the ranks of a job by process and by node.
//!
//! A rank has a number in the job, by which everybody speaks of it, and one among the ranks of its node, by which the
//! shared memory there is laid out. On a job of one node they are the same.

use std::ops::Range;

/// The number on this node of a rank that is on another.
pub const FAR: u32 = u32::MAX;

/// The ranks of a job as one process sees them.
#[derive(Debug, Clone)]
pub struct Ranks {
    /// By rank: its process, and which of its ranks it is.
    places: Box<[(u32, u32)]>,
    /// By rank: its number on this node.
    near: Box<[u32]>,
    /// By number on this node: its rank.
    members: Box<[u32]>,
    /// By process: its node's number.
    nodes: Box<[u32]>,
    mine: Range<usize>,
    me: usize,
}

impl Ranks {
    /// `counts` are the ranks of each process, `nodes` the node of each, by any numbers; this is process `me`.
    pub fn new(counts: &[usize], nodes: &[usize], me: usize) -> Ranks {
        let mut seen: Vec<usize> = vec![];
        let mut number = |node: &usize| match seen.iter().position(|s| s == node) {
            Some(i) => i as u32,
            None => {
                seen.push(*node);
                seen.len() as u32 - 1
            }
        };
        let nodes: Box<[u32]> = nodes.iter().map(&mut number).collect();
        let (mut places, mut near, mut members, mut mine) = (vec![], vec![], vec![], 0..0);
        for (process, &count) in counts.iter().enumerate() {
            if process == me {
                mine = places.len()..places.len() + count;
            }
            for i in 0..count {
                let here = nodes[process] == nodes[me];
                near.push(if here { members.len() as u32 } else { FAR });
                if here {
                    members.push(places.len() as u32);
                }
                places.push((process as u32, i as u32));
            }
        }
        Ranks { places: places.into(), near: near.into(), members: members.into(), nodes, mine, me }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Those of this process.
    pub fn mine(&self) -> Range<usize> {
        self.mine.clone()
    }

    /// This process.
    pub fn process(&self) -> usize {
        self.me
    }

    /// The process of a rank, and which of its ranks it is.
    #[inline(always)]
    pub fn place(&self, rank: usize) -> (usize, usize) {
        let (process, i) = self.places[rank];
        (process as usize, i as usize)
    }

    /// The number of a rank on this node, or [`FAR`].
    #[inline(always)]
    pub fn near(&self, rank: usize) -> usize {
        self.near[rank] as usize
    }

    /// The rank with this number on this node.
    #[inline(always)]
    pub fn member(&self, near: usize) -> usize {
        self.members[near] as usize
    }

    /// The ranks of this node, by their numbers there.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Is this rank on this node?
    pub fn is_near(&self, rank: usize) -> bool {
        self.near[rank] != FAR
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes.iter().max().map_or(0, |&n| n as usize + 1)
    }

    /// The node of this process.
    pub fn node(&self) -> usize {
        self.nodes[self.me] as usize
    }

    /// The node of a process.
    pub fn node_of(&self, process: usize) -> usize {
        self.nodes[process] as usize
    }

    /// The first process of a node: the one that is spoken to where any would do.
    pub fn first_process(&self, node: usize) -> usize {
        self.nodes.iter().position(|&n| n as usize == node).expect("a node of the job")
    }

    /// The processes of other nodes.
    pub fn far_processes(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&p| self.nodes[p] != self.nodes[self.me])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_node_need_not_be_neighbours() {
        let ranks = Ranks::new(&[2, 1, 3], &[7, 3, 7], 2);
        assert_eq!((ranks.count(), ranks.mine(), ranks.nodes(), ranks.node()), (6, 3..6, 2, 0));
        assert_eq!(ranks.members(), [0, 1, 3, 4, 5]);
        assert_eq!((ranks.near(4), ranks.member(3), ranks.is_near(2)), (3, 4, false));
        assert_eq!((ranks.place(4), ranks.node_of(1), ranks.first_process(1)), ((2, 1), 1, 1));
        assert_eq!(ranks.far_processes().collect::<Vec<_>>(), [1]);
        let one = Ranks::new(&[1, 1], &[0, 0], 1);
        assert_eq!((one.nodes(), one.mine(), one.members()), (1, 1..2, &[0, 1][..]));
    }
}
