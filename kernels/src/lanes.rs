//! Lanes: memory of a receiver into which one sender puts, round after round, and the ways to say that it has.
//!
//! A lane has two *sets*, which rounds use in turn: that of round `k` is the one of its parity. A set is room for values,
//! a flag and a semaphore, on cache lines of their own. A lane has no calls that send or receive: those are the programs that
//! are compared. It says where things are.
//!
//! # When values may be overwritten
//! The put of round `k + 2` comes where the values of round `k` have been. Nothing here waits until they have been read;
//! whoever uses a lane knows that they have, because the receiver's part in round `k + 1` comes after, in its program, and
//! the sender has heard of it:
//! * by a barrier of that round, which all ranks have come to;
//! * or by what the receiver has sent to the sender in that round, on a lane the other way.
//!
//! A read comes before what its rank releases later (a barrier, a strict store, a signal), and what acquires that before
//! the puts that follow. So two sets are enough, and one is not: the sender may begin round `k + 1` while round `k` is read.
//!
//! # Flags
//! A store wakes nobody. Who waits for a flag [looks at it](Inlet::wait_for_flag) again and again, and serves others
//! meanwhile; after a while it waits as others do, which may sleep for a tenth of a second, and ends with the job.
//!
//! The flag of a set is the number of the round whose values are there, and a set has a semaphore of its own: the signal of
//! one round is never taken for that of the other, in whichever order a network brings them.

use partage::prelude::*;
use partage::signal::Flavor;
use std::time::{Duration, Instant};

/// Doubles of a cache line.
const LINE: usize = 8;
/// How often a rank looks at a flag before it lets others have the core, which may be the sender's too.
const LOOKS: usize = 256;
/// How long it does so before it may sleep.
const PATIENCE: Duration = Duration::from_millis(20);

/// Where values come in.
#[derive(Debug)]
pub struct Inlet {
    /// From whom.
    pub from: Rank,
    place: Sets,
    semaphores: [Semaphore; 2],
}

/// Where values go out.
#[derive(Debug)]
pub struct Outlet {
    /// To whom.
    pub to: Rank,
    place: Sets,
    signals: [Signal; 2],
}

/// The lanes of a rank.
#[derive(Debug)]
pub struct Lanes {
    /// In the order in which they were asked for.
    pub inlets: Vec<Inlet>,
    /// In the order in which they were asked for.
    pub outlets: Vec<Outlet>,
}

impl Lanes {
    /// Collective: lanes from and to these ranks, each with room for so many values. Whom one rank names as a receiver names
    /// it as a sender, with as many values.
    pub fn new(job: &Job, from: &[(usize, usize)], to: &[(usize, usize)]) -> partage::Result<Lanes> {
        let (me, ranks) = (job.rank().index(), job.size());
        // Of each rank: where it may put, by receivers, and what it then signals.
        let places = job.array::<GlobalPtr<f64>>(Layout::per_rank(ranks))?;
        let signals = job.array::<[Signal; 2]>(Layout::per_rank(ranks))?;
        let flavor = Flavor { single_producer: true, single_consumer: true, ..Default::default() };
        let mut inlets = vec![];
        for &(from, len) in from {
            let first = job.alloc_slice(2 * Sets::stride(len))?;
            let semaphores = [job.semaphore_with(flavor)?, job.semaphore_with(flavor)?];
            places.put(from * ranks + me, first);
            signals.put(from * ranks + me, [semaphores[0].signal(), semaphores[1].signal()]);
            inlets.push(Inlet { from: Rank(from as u32), place: Sets { first, len }, semaphores });
        }
        job.barrier();
        let outlet = |&(to, len): &(usize, usize)| {
            let place = Sets { first: places.cells().get(to), len };
            Outlet { to: Rank(to as u32), place, signals: signals.cells().get(to) }
        };
        Ok(Lanes { inlets, outlets: to.iter().map(outlet).collect() })
    }

    /// Collective: frees them.
    pub fn free(self, job: &Job) {
        job.barrier();
        self.inlets.into_iter().for_each(|inlet| job.free(inlet.place.first));
    }
}

impl Inlet {
    /// The values of round `k`.
    #[inline]
    pub fn values(&self, k: u64) -> GlobalPtr<f64> {
        self.place.values(k)
    }

    /// Their flag: `k`, when they have come.
    #[inline]
    pub fn flag(&self, k: u64) -> GlobalPtr<u64> {
        self.place.flag(k)
    }

    /// Waits until the flag of round `k` says so, by strict loads. A store wakes nobody, so this looks again and again, as programs with
    /// flags do, and gives its core away meanwhile; for what takes long it waits as all do.
    #[inline]
    #[track_caller]
    pub fn wait_for_flag(&self, job: &Job, k: u64) {
        let flag = self.flag(k).at(job).strict();
        if flag.load() != k {
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                for _ in 0..LOOKS {
                    job.poll();
                    if flag.load() == k {
                        return;
                    }
                }
                std::thread::yield_now();
            }
            job.wait_until(|| flag.load() == k);
        }
    }

    /// Their semaphore.
    #[inline]
    pub fn semaphore(&self, k: u64) -> &Semaphore {
        &self.semaphores[(k % 2) as usize]
    }
}

impl Outlet {
    /// Where the values of round `k` go.
    #[inline]
    pub fn values(&self, k: u64) -> GlobalPtr<f64> {
        self.place.values(k)
    }

    /// Their flag.
    #[inline]
    pub fn flag(&self, k: u64) -> GlobalPtr<u64> {
        self.place.flag(k)
    }

    /// Their semaphore.
    #[inline]
    pub fn signal(&self, k: u64) -> Signal {
        self.signals[(k % 2) as usize]
    }
}

/// Two times a flag and, on the next line, values, in the receiver's memory.
#[derive(Clone, Copy, Debug)]
struct Sets {
    first: GlobalPtr<f64>,
    len: usize,
}

impl Sets {
    /// From one set to the other.
    fn stride(len: usize) -> usize {
        LINE + len.next_multiple_of(LINE)
    }

    #[inline]
    fn flag(self, k: u64) -> GlobalPtr<u64> {
        self.first.add((k % 2) as usize * Sets::stride(self.len)).cast()
    }

    #[inline]
    fn values(self, k: u64) -> GlobalPtr<f64> {
        self.flag(k).add(LINE).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rank has a lane to the next, of a length that differs.
    #[test]
    fn both_ends_mean_the_same_place() {
        partage::test(5, |job| {
            let me = job.rank().index();
            let (left, right) = (job.neighbor(-1).index(), job.neighbor(1).index());
            let lanes = Lanes::new(job, &[(left, left + 1)], &[(right, me + 1)]).unwrap();
            let (inlet, outlet) = (&lanes.inlets[0], &lanes.outlets[0]);
            assert_eq!((inlet.from, outlet.to), (job.neighbor(-1), job.neighbor(1)));
            let mut got = vec![0.0; left + 1];
            for k in 1..=6 {
                let values = vec![(100 * k) as f64 + me as f64; me + 1];
                if k < 4 {
                    outlet.values(k).put_slice(job, &values);
                    outlet.flag(k).at(job).strict().store(k);
                    inlet.wait_for_flag(job, k);
                } else {
                    outlet.values(k).put_signal(job, &values, outlet.signal(k), 1);
                    inlet.semaphore(k).wait();
                }
                inlet.values(k).get_slice(job, &mut got);
                assert_eq!(got, vec![(100 * k) as f64 + left as f64; left + 1]);
                job.barrier();
            }
            assert!(inlet.values(1) != inlet.values(2) && inlet.values(1) == inlet.values(3));
            lanes.free(job);
        });
    }
}
