//! A hash table over all ranks: each has a part, and strangers call into it.
//!
//! `cargo run --release --example hashtable`, or `partage run -n 4 target/release/examples/hashtable`.

use partage::prelude::*;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

struct Table {
    parts: Dist<HashMap<String, u64>>,
    ranks: u64,
}

impl Table {
    fn new(job: &Job) -> Table {
        Table { parts: job.dist(HashMap::new()), ranks: job.size() as u64 }
    }

    fn home(&self, key: &str) -> Rank {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Rank((hasher.finish() % self.ranks) as u32)
    }

    /// Adds to a key's value; what it was, when it has arrived.
    fn add(&self, key: &str, n: u64) -> Event<'_, Option<u64>> {
        let add = |part: &mut HashMap<String, u64>, (key, n)| {
            let old = part.get(&key).copied();
            *part.entry(key).or_default() += n;
            old
        };
        self.parts.rpc(self.home(key), add, (key.to_string(), n))
    }

    fn find(&self, key: &str) -> Event<'_, Option<u64>> {
        self.parts.rpc(self.home(key), |part, key: String| part.get(&key).copied(), key.to_string())
    }
}

fn count_words(job: &Job) {
    const TEXT: &str = "to be or not to be that is the question";
    let table = Table::new(job);
    let open: Vec<_> = TEXT.split_whitespace().map(|word| table.add(word, 1)).collect();
    for event in open {
        event.wait();
    }
    job.barrier();
    let n = job.size() as u64;
    assert_eq!(table.find("be").wait(), Some(2 * n));
    assert_eq!(table.find("question").wait(), Some(n));
    assert_eq!(table.find("whether").wait(), None);
    job.println(format!("{} words live here", table.parts.with(|part| part.len())));
    // Nobody ends while others still ask.
    job.barrier();
}

fn main() {
    partage::run(count_words);
}

#[test]
fn words_on_four() {
    partage::test(4, count_words);
}
