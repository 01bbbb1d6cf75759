//! Linked structures over all ranks: a list that everyone pushes to, and a search tree whose nodes lie where they were
//! made. A link is a pointer in shared memory, and a compare-and-exchange hangs a node in, so nobody locks anything.
//!
//! `cargo run -p partage-examples --bin list_tree`, or `partage run -n 8 target/debug/list_tree`.

use partage::prelude::*;
use std::mem::offset_of;

const KEYS: u64 = 100;

fn main() {
    partage::run(|job| -> partage::Result {
        // Rank 0 has the beginning of both.
        let head = job.alloc_all::<GlobalPtr<Link>>(1)?.on(Rank(0));
        let root = job.alloc_all::<GlobalPtr<Node>>(1)?.on(Rank(0));
        let me = u64::from(job.rank().0);
        let my_link = push(job, head, me)?;
        let my_nodes = (0..KEYS).map(|k| insert(job, root, 1000 * me + k * 7919 % 101));
        let my_nodes = my_nodes.collect::<partage::Result<Vec<_>>>()?;
        job.barrier();

        let mut seen = vec![false; job.size()];
        let mut next = head.get(job);
        while !next.is_null() {
            let link = next.get(job);
            seen[link.rank as usize] = true;
            next = link.next;
        }
        assert!(seen.iter().all(|&seen| seen));

        let mut keys = vec![];
        walk(job, root.get(job), &mut keys);
        assert!(keys.is_sorted() && keys.len() == job.size() * KEYS as usize);

        job.barrier(); // all have read
        job.free(my_link);
        my_nodes.into_iter().for_each(|node| job.free(node));
        job.free_all(head);
        job.free_all(root);
        Ok(())
    });
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Link {
    rank: u64,
    next: GlobalPtr<Link>,
}

fn push(job: &Job, head: GlobalPtr<GlobalPtr<Link>>, rank: u64) -> partage::Result<GlobalPtr<Link>> {
    let mut link = Link { rank, next: head.get(job) };
    let mine = job.alloc(link)?;
    while let Err(newer) = hang_in(job, head, link.next, mine) {
        link.next = newer;
        mine.put(job, link);
    }
    Ok(mine)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Node {
    key: u64,
    kids: [GlobalPtr<Node>; 2],
}

fn insert(job: &Job, root: GlobalPtr<GlobalPtr<Node>>, key: u64) -> partage::Result<GlobalPtr<Node>> {
    let node = job.alloc(Node { key, kids: [GlobalPtr::NULL; 2] })?;
    let mut link = root;
    while let Err(taken) = hang_in(job, link, GlobalPtr::NULL, node) {
        let side = usize::from(key > taken.get(job).key);
        link = taken.field::<[GlobalPtr<Node>; 2]>(offset_of!(Node, kids)).cast().add(side);
    }
    Ok(node)
}

fn walk(job: &Job, node: GlobalPtr<Node>, keys: &mut Vec<u64>) {
    if !node.is_null() {
        let Node { key, kids: [left, right] } = node.get(job);
        walk(job, left, keys);
        keys.push(key);
        walk(job, right, keys);
    }
}

/// Makes the link point to `new` if it still points to `old`; where it points, if not.
fn hang_in<T: Pod>(
    job: &Job,
    link: GlobalPtr<GlobalPtr<T>>,
    old: GlobalPtr<T>,
    new: GlobalPtr<T>,
) -> Result<(), GlobalPtr<T>> {
    link.at(job).compare_exchange(old, new).map(|_| ())
}
