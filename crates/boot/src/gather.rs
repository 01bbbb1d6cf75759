//! All-gather through a store of keys that has a fence: what PMI-1 has, and nothing more.
//!
//! Dissemination with radix [`RADIX`] (Hensgen, Finkel and Manber; the all-gather is Bruck's): a process begins with its own blob. In a round it puts all
//! that it holds, of `held` processes from itself on, and reads what the processes `held`, `2 held`, … further on have put;
//! then it holds up to [`RADIX`] times as many.
//!
//! Each process makes `⌈log₁₆ n⌉` rounds, in each a fence, a put and at most 15 gets; of 1024 processes that is 39
//! requests, where reading each blob by itself takes 1026. What does not fit the store's longest value goes as several, so that a store of short
//! values adds as many requests as the bytes need. Up to 16 processes it is a put, a fence and a get from each other.
//!
//! Not contained: the store itself.

use crate::Error;
use crate::wire::{self, Blob};

/// By how much what a process holds grows in a round.
const RADIX: usize = 16;

/// A store of texts. Whoever has passed a fence finds all that was put before anybody came to it.
pub(crate) trait Store {
    /// As long as a value may be, in bytes.
    fn longest(&self) -> usize;
    fn put(&mut self, key: Key, value: &str) -> Result<(), Error>;
    fn get(&mut self, key: Key) -> Result<String, Error>;
    fn fence(&mut self) -> Result<(), Error>;
}

/// What is unique in one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) round: usize,
    pub(crate) process: usize,
    pub(crate) chunk: usize,
}

/// The blobs of all processes, by process; all call it, with their place and their blob.
pub(crate) fn gather(
    store: &mut impl Store,
    process: usize,
    processes: usize,
    mine: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    // Those of this process and the next ones, around the end.
    let mut held = vec![mine.to_vec()];
    for round in 0.. {
        let distance = held.len();
        let missing = processes - distance;
        if missing == 0 {
            break;
        }
        put(store, Key { round, process, chunk: 0 }, &wire::join(&held[..distance.min(missing)]))?;
        store.fence()?;
        for step in 1..RADIX {
            let wanted = distance.min(processes.saturating_sub(step * distance));
            if wanted == 0 {
                break;
            }
            let from = (process + step * distance) % processes;
            let blobs = get(store, Key { round, process: from, chunk: 0 })?;
            if blobs.len() < wanted {
                return Err(Error::new(format!("process {from} has sent {} blobs, not {wanted}", blobs.len())));
            }
            held.extend(blobs.into_iter().take(wanted));
        }
    }
    held.rotate_right(process);
    Ok(held)
}

fn put(store: &mut impl Store, key: Key, bytes: &[u8]) -> Result<(), Error> {
    let text = wire::blob_text(bytes);
    let mut rest = text.as_str();
    for chunk in 0.. {
        let (now, later) = rest.split_at(store.longest().min(rest.len()));
        store.put(Key { chunk, ..key }, now)?;
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    Ok(())
}

fn get(store: &mut impl Store, key: Key) -> Result<Vec<Vec<u8>>, Error> {
    let broken = |e: Error| Error::new(format!("what process {} has sent is broken: {e}", key.process));
    let mut blob = Blob::begin(&store.get(key)?).map_err(broken)?;
    for chunk in 1.. {
        if blob.complete() {
            break;
        }
        blob.add(&store.get(Key { chunk, ..key })?).map_err(broken)?;
    }
    wire::split(&blob.into_bytes()).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::{Arc, Barrier, Mutex};

    /// A store in memory; each process has a clone, which counts its requests.
    #[derive(Clone)]
    struct Memory {
        values: Arc<Mutex<HashMap<Key, String>>>,
        all: Arc<Barrier>,
        longest: usize,
        puts: usize,
        gets: usize,
        fences: usize,
    }

    impl Memory {
        fn new(processes: usize, longest: usize) -> Memory {
            let (values, all) = (Arc::default(), Arc::new(Barrier::new(processes)));
            Memory { values, all, longest, puts: 0, gets: 0, fences: 0 }
        }
    }

    impl Store for Memory {
        fn longest(&self) -> usize {
            self.longest
        }

        fn put(&mut self, key: Key, value: &str) -> Result<(), Error> {
            self.puts += 1;
            assert!(value.len() <= self.longest);
            assert_eq!(self.values.lock().unwrap().insert(key, value.into()), None, "{key:?} is put twice");
            Ok(())
        }

        fn get(&mut self, key: Key) -> Result<String, Error> {
            self.gets += 1;
            self.values.lock().unwrap().get(&key).cloned().ok_or_else(|| Error::new(format!("there is no {key:?}")))
        }

        fn fence(&mut self) -> Result<(), Error> {
            self.fences += 1;
            self.all.wait();
            Ok(())
        }
    }

    /// The requests of the process that makes most; (puts, fences, gets). Every process has got every blob.
    fn run(processes: usize, longest: usize, blob: fn(usize) -> Vec<u8>) -> (usize, usize, usize) {
        let store = Memory::new(processes, longest);
        let expect: Vec<Vec<u8>> = (0..processes).map(blob).collect();
        let each = |process: usize| {
            let mut store = store.clone();
            assert!(gather(&mut store, process, processes, &blob(process)).unwrap() == expect, "process {process}");
            (store.puts, store.fences, store.gets)
        };
        std::thread::scope(|scope| {
            let thread = || std::thread::Builder::new().stack_size(256 << 10);
            let threads = (0..processes).map(|process| thread().spawn_scoped(scope, move || each(process)).unwrap());
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).max_by_key(|(p, f, g)| p + f + g).unwrap()
        })
    }

    fn address(process: usize) -> Vec<u8> {
        format!("the address of {process}").into_bytes()
    }

    #[test]
    fn all_numbers_of_processes_and_lengths_of_blobs() {
        // None, one, and more than a value holds.
        let uneven = |process: usize| vec![process as u8; [0, 1, 300, 7][process % 4]];
        for processes in (1..=40).chain([255, 256, 257]) {
            run(processes, 64, uneven);
        }
        assert_eq!(run(1, 64, uneven), (0, 0, 0));
        assert_eq!(run(16, 1 << 20, address), (1, 1, 15));
        assert_eq!(run(17, 1 << 20, address), (2, 2, 16));
    }

    #[test]
    fn requests_of_1024_processes_grow_with_the_logarithm() {
        assert_eq!(run(1024, 64 << 10, address), (3, 3, 33));
        // With the values of 1023 bytes that launchers have, the bytes count too.
        let bytes = 1024 * (4 + address(1023).len());
        let text = bytes.div_ceil(3) * 4;
        let (puts, fences, gets) = run(1024, 1023, address);
        assert_eq!(fences, 3);
        assert!(puts + gets <= 3 + 33 + text / 1023 + text / 1023 / 2, "{puts} puts and {gets} gets");
    }

    #[test]
    fn what_is_broken_names_its_sender() {
        for (text, why) in [
            ("", "not the beginning of a blob"),
            ("2.AAA", "a list of blobs ends too early"),
            ("0.", "process 1 has sent 0 blobs, not 1"),
        ] {
            let mut store = Memory::new(1, 64);
            store.values.lock().unwrap().insert(Key { round: 0, process: 1, chunk: 0 }, text.into());
            let line = gather(&mut store, 0, 2, b"x").unwrap_err().to_string();
            assert!(line.contains("process 1 has sent") && line.contains(why), "{line}");
        }
    }
}
