//! A hash table over all ranks: each has a part, and others call into it. Counts the words of a text that everyone reads.
//!
//! `cargo run -p partage-examples --bin hashtable`, or `partage run -n 4 target/debug/hashtable`.

use partage::prelude::*;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const TEXT: &str = "to be or not to be that is the question";

fn main() {
    partage::run(|job| {
        let words = Table::new(job);
        let open: Vec<_> = TEXT.split_whitespace().map(|word| words.add(word, 1)).collect();
        open.into_iter().for_each(|event| _ = event.wait());
        job.barrier();

        let ranks = job.size() as u64;
        assert_eq!(words.find("be").wait(), Some(2 * ranks));
        assert_eq!(words.find("question").wait(), Some(ranks));
        assert_eq!(words.find("whether").wait(), None);
        job.println(format!("{} words live here", words.parts.with(|part| part.len())));
        job.barrier(); // nobody takes its part away while others still ask
    });
}

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
