//! A hash table over all ranks without locks and calls: buckets are the heads of chains, and a compare-and-exchange hangs
//! in a node that lies where it was made. Counts numbers that everyone has. (`hashtable` does it by calls.)
//!
//! `cargo run -p partage-examples --bin hashtable_cas`, or `partage run -n 4 target/debug/hashtable_cas`.

use partage::prelude::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::offset_of;

fn main() {
    partage::run(|job| -> partage::Result {
        let table = Table::new(job)?;
        // Everyone counts number k k times; whoever comes first makes its node.
        for key in 0..50 {
            (0..key).try_for_each(|_| table.add(job, key, 1))?;
        }
        job.barrier();
        let ranks = job.size() as u64;
        assert_eq!([0, 1, 49, 50].map(|key| table.find(job, key)), [None, Some(ranks), Some(49 * ranks), None]);
        job.barrier(); // all have looked
        table.free(job);
        Ok(())
    });
}

struct Table {
    heads: SharedArray<GlobalPtr<Node>>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Node {
    key: u64,
    value: u64,
    next: GlobalPtr<Node>,
}

impl Table {
    fn new(job: &Job) -> partage::Result<Table> {
        Ok(Table { heads: job.array(Layout::cyclic(16))? })
    }

    fn bucket(&self, key: u64) -> usize {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish() as usize % self.heads.len()
    }

    /// Adds to a key's value. A node that is once in a chain stays, so a chain only grows at its head.
    fn add(&self, job: &Job, key: u64, n: u64) -> partage::Result {
        let head = self.heads.at(self.bucket(key));
        let (mut seen, mut mine) = (GlobalPtr::NULL, GlobalPtr::NULL);
        loop {
            let first = head.load();
            if let Some(node) = Self::search(job, key, first, seen) {
                node.field::<u64>(offset_of!(Node, value)).at(job).add(n);
                job.free(mine); // null, unless another rank was faster
                return Ok(());
            }
            if mine.is_null() {
                mine = job.alloc_slice(1)?;
            }
            mine.put(job, Node { key, value: n, next: first });
            match head.compare_exchange(first, mine) {
                Ok(_) => return Ok(()),
                Err(_) => seen = first, // only what is new has to be looked at
            }
        }
    }

    fn find(&self, job: &Job, key: u64) -> Option<u64> {
        let first = self.heads.at(self.bucket(key)).load();
        Some(Self::search(job, key, first, GlobalPtr::NULL)?.get(job).value)
    }

    /// The key's node, from one on and before another.
    fn search(job: &Job, key: u64, first: GlobalPtr<Node>, end: GlobalPtr<Node>) -> Option<GlobalPtr<Node>> {
        let mut node = first;
        while node != end {
            let Node { key: this, next, .. } = node.get(job);
            if this == key {
                return Some(node);
            }
            node = next;
        }
        None
    }

    /// Each rank frees the chains whose heads it has, whoever allocated their nodes.
    fn free(&self, job: &Job) {
        for i in self.heads.my_indices() {
            let mut node = self.heads.get(i);
            while !node.is_null() {
                let next = node.get(job).next;
                job.free(node);
                node = next;
            }
        }
    }
}
