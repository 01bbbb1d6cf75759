//! Puts that signal, whichever way they go: by stores, by message, by the network's own data, by a FIFO.
//!
//! `PARTAGE_SIGNAL` says which way is to be taken to other nodes; what was taken is counted, and looked at.

use crate::{Case, are, bytes, fill, mixed, plenty};
use partage::am::Counters;
use partage::prelude::*;
use std::hint::black_box;

/// The cases.
pub const CASES: [Case; 6] = [
    ("ways of signals: bytes of every length are there when their signal is", lengths),
    ("ways of signals: many semaphores", many),
    ("ways of signals: floods against ranks that compute", floods),
    ("ways of signals: semaphores that were freed", freed),
    ("ways of signals: events give sources back", events),
    ("ways of signals: a fence waits for what was signaled", fenced),
];

const LENGTHS: [usize; 20] =
    [0, 1, 7, 8, 56, 64, 1000, 1023, 1024, 1025, 4096, 8191, 8192, 8193, 16384, 16385, 65536, 65537, 300_001, 1 << 20];
const LONGEST: usize = 1 << 20;

/// Signals of every rank: the semaphore on `on` that is for `from`.
struct Board {
    signals: GlobalPtr<Signal>,
    mine: Vec<Semaphore>,
}

impl Board {
    /// Collective: each rank has a semaphore for each.
    fn new(job: &Job) -> Board {
        let signals = job.alloc_all::<Signal>(job.size()).unwrap();
        let mine: Vec<_> = job.ranks().map(|_| job.semaphore().unwrap()).collect();
        mine.iter().enumerate().for_each(|(i, s)| signals.add(i).put(job, s.signal()));
        job.barrier();
        Board { signals, mine }
    }

    fn signal(&self, job: &Job, on: Rank) -> Signal {
        self.signals.add(job.rank().index()).on(on).get(job)
    }

    fn free(self, job: &Job) {
        job.barrier();
        job.free_all(self.signals);
    }
}

/// Signals to another node went the way that was asked for: there were some of so many bytes.
fn went_its_way(job: &Job, before: Counters, short: bool, long: bool) {
    let now = job.counters();
    let data = now.far_signals_data - before.far_signals_data;
    let fifo = now.far_signals_fifo - before.far_signals_fifo;
    let message = now.far_signals - before.far_signals;
    if data + fifo + message == 0 {
        return;
    }
    let way = std::env::var("PARTAGE_SIGNAL").unwrap_or_default();
    let which = (data > 0, fifo > 0);
    let wanted = match &*way {
        "message" => (false, false),
        "data" => (short || long, false),
        "fifo" => (false, short),
        // Not all networks have data.
        _ => (which.0 && long, false),
    };
    assert_eq!(which, wanted, "{way}: {message} by message, {data} by data, {fifo} by FIFO");
}

/// To me, to ranks of my process and of others, but not so many; some of them are those from which something comes, too.
fn shifts(job: &Job) -> Vec<i64> {
    let n = job.size() as i64;
    let mut shifts = vec![0, 1, n / 2, n - 1];
    shifts.retain(|&shift| shift < n);
    shifts.sort();
    shifts.dedup();
    shifts
}

fn lengths(job: &Job) {
    let (before, board) = (job.counters(), Board::new(job));
    let open = job.alloc_all::<u8>(LONGEST + 64).unwrap();
    let guarded = job.array::<u8>(Layout::per_rank(LONGEST + 64)).unwrap();
    let mut there = vec![0; LONGEST + 2];
    for shift in shifts(job) {
        let (to, from) = (job.neighbor(shift), job.neighbor(-shift));
        let signal = board.signal(job, to);
        // Often enough that whatever is set up at first is.
        for round in 0..4u64 {
            for (k, len) in LENGTHS.into_iter().enumerate() {
                let place = 1 + (k + round as usize) % 9;
                let seed = |rank: Rank| mixed([rank.0.into(), round, k as u64]);
                let data = bytes(seed(job.rank()), len);
                let is_open = (k as u64 + round).is_multiple_of(2);
                let n = 1 + (k % 3) as u32;
                match is_open {
                    true => open.on(to).add(place).put_signal(job, &data, signal, n),
                    false => guarded.put_signal(to.index() * (LONGEST + 64) + place, &data, signal, n),
                }
                let come = &board.mine[from.index()];
                come.wait_n(n);
                let there = &mut there[..len + 2];
                match is_open {
                    true => open.on(job.rank()).add(place - 1).get_slice(job, there),
                    false => guarded.cells().read(place - 1, there),
                }
                let (first, rest) = there.split_first().unwrap();
                let right = are(seed(from), &rest[..len]) && (*first, rest[len]) == (0, 0);
                assert!(right, "{}: {len} bytes of {from}, round {round}", job.rank());
                // Nobody writes there before it was read and is zero again.
                match is_open {
                    true => open.on(job.rank()).fill(job, LONGEST + 64, 0),
                    false => guarded.cells().write(place, &vec![0; len]),
                }
                assert!(!come.try_wait(), "{}: {len} bytes of {from}: posted once", job.rank());
                job.barrier();
            }
        }
    }
    went_its_way(job, before, true, true);
    board.free(job);
    job.free_all(open);
}

/// More than there are names for on the way.
fn many(job: &Job) {
    const LEN: usize = 16;
    let n = if cfg!(debug_assertions) { 300 } else { 9000 };
    let last = Rank(job.size() as u32 - 1);
    let is_last = job.rank() == last;
    let mine: Vec<_> = (0..if is_last { n } else { 0 }).map(|_| job.semaphore().unwrap()).collect();
    let signals = job.alloc_all::<Signal>(n).unwrap();
    mine.iter().enumerate().for_each(|(i, s)| signals.add(i).put(job, s.signal()));
    let there = job.alloc_all::<u8>(n * LEN).unwrap();
    job.barrier();
    if job.rank().0 == 0 {
        let mut all = vec![Signal::NULL; n];
        signals.on(last).get_slice(job, &mut all);
        for round in 0..3 {
            for (i, &signal) in all.iter().enumerate() {
                there.on(last).add(i * LEN).put_signal(job, &bytes(i as u64, LEN), signal, 1 + round);
            }
        }
    }
    for (i, semaphore) in mine.iter().enumerate() {
        semaphore.wait_n(6);
        let mut data = [0; LEN];
        there.on(last).add(i * LEN).get_slice(job, &mut data);
        assert!(are(i as u64, &data), "semaphore {i}");
        assert!(!semaphore.try_wait(), "semaphore {i}: posted as often as it was");
    }
    job.barrier();
    job.free_all(signals);
    job.free_all(there);
}

/// Each rank floods the next one, which computes at first. What it writes where is the same each time. Which way it goes is not
/// looked at: a small flood may have been sent before the way is ready.
fn floods(job: &Job) {
    const PLACES: usize = 8;
    for len in [0usize, 8, 1024, 20_000] {
        let times = plenty(job, if len > 1024 { 2000 } else { 20_000 });
        let board = Board::new(job);
        let there = job.alloc_all::<u8>(PLACES * len.max(1)).unwrap();
        let (to, from) = (job.neighbor(1), job.neighbor(-1));
        let (signal, come) = (board.signal(job, to), &board.mine[from.index()]);
        let data: Vec<_> = (0..PLACES).map(|p| bytes(mixed([job.rank().0.into(), p as u64]), len)).collect();
        if job.rank().index() % 2 == 1 {
            black_box((0..2_000_000u64).fold(0, |sum: u64, i| sum.wrapping_mul(31) ^ i));
        }
        for i in 0..times {
            there.on(to).add(i % PLACES * len).put_signal(job, &data[i % PLACES], signal, 1);
        }
        come.wait_n(times as u32);
        let mut data = vec![0; len];
        for p in 0..PLACES.min(times) {
            there.on(job.rank()).add(p * len).get_slice(job, &mut data);
            assert!(are(mixed([from.0.into(), p as u64]), &data), "{}: place {p} of {len} bytes", job.rank());
        }
        assert!(!come.try_wait());
        board.free(job);
        job.free_all(there);
    }
}

/// What is signaled by the name of a semaphore that was freed is ignored; its bytes are written all the same.
fn freed(job: &Job) {
    const LEN: usize = 20_000;
    let there = job.alloc_all::<u8>(LEN).unwrap();
    let (to, signals) = (job.neighbor(1), job.alloc_all::<Signal>(1).unwrap());
    for round in 0..3u64 {
        let semaphore = job.semaphore().unwrap();
        signals.put(job, semaphore.signal());
        job.barrier();
        let signal = signals.on(to).get(job);
        for len in [8, LEN] {
            (0..10).for_each(|_| there.on(to).put_signal(job, &vec![1; len], signal, 1));
        }
        semaphore.wait_n(20);
        job.barrier();
        drop(semaphore);
        job.barrier();
        for len in [8, LEN] {
            let data = bytes(round, len);
            (0..10).for_each(|_| there.on(to).put_signal(job, &data, signal, 1));
        }
        job.quiet();
        job.barrier();
        let mut data = vec![0; LEN];
        there.on(job.rank()).get_slice(job, &mut data);
        assert!(are(round, &data), "{}: the bytes of stale signals", job.rank());
        let fresh: Vec<_> = (0..4).map(|_| job.semaphore().unwrap()).collect();
        assert!(fresh.iter().all(|s| s.value() == 0), "{}: posts to nobody", job.rank());
        job.barrier();
    }
    job.free_all(there);
    job.free_all(signals);
}

fn events(job: &Job) {
    const LEN: usize = 600_000;
    const PARTS: usize = 6;
    let before = job.counters();
    let board = Board::new(job);
    let a = job.array::<u8>(Layout::per_rank(LEN)).unwrap();
    let open = job.alloc_all::<u8>(LEN).unwrap();
    let (to, from) = (job.neighbor(1), job.neighbor(-1));
    let (signal, come) = (board.signal(job, to), &board.mine[from.index()]);
    let part = LEN / PARTS;
    for round in 0..3u64 {
        let seed = |rank: Rank, p: usize| mixed([rank.0.into(), p as u64, round]);
        let data: Vec<Vec<u8>> = (0..PARTS).map(|p| bytes(seed(job.rank(), p), part)).collect();
        job.scope(|s| {
            for (p, data) in data.iter().enumerate() {
                let event = s.put_signal(&a, to.index() * LEN + p * part, data, signal, 1);
                let other = s.put_signal_ptr(open.on(to).add(p * part), data, signal, 1);
                match p % 3 {
                    0 => event.wait(),
                    1 => drop(event),
                    _ => std::mem::forget(event),
                }
                drop(other);
            }
        });
        // One event is waited for and gives the values back, the others are dropped.
        for (p, data) in data.into_iter().enumerate() {
            let event = a.store_signal(to.index() * LEN + p * part, data.clone(), signal, 1);
            drop(open.on(to).add(p * part).store_signal(job, data.clone(), signal, 1));
            if p % 2 == 0 {
                assert_eq!(event.wait(), data);
            }
        }
        come.wait_n(4 * PARTS as u32);
        let mut there = vec![0; part];
        for p in 0..PARTS {
            a.cells().read(p * part, &mut there);
            assert!(are(seed(from, p), &there), "{}: part {p}", job.rank());
            open.on(job.rank()).add(p * part).get_slice(job, &mut there);
            assert!(are(seed(from, p), &there), "{}: part {p} by pointer", job.rank());
        }
        job.barrier();
    }
    went_its_way(job, before, false, true);
    board.free(job);
    job.free_all(open);
}

/// After a fence the bytes are there and posted, for who learns of the fence in another way.
fn fenced(job: &Job) {
    const LEN: usize = 100_000;
    let board = Board::new(job);
    let there = job.alloc_all::<u8>(LEN).unwrap();
    let flag = job.alloc_all::<u64>(1).unwrap();
    let (to, from) = (job.neighbor(1), job.neighbor(-1));
    let (signal, come) = (board.signal(job, to), &board.mine[from.index()]);
    let mut data = vec![0; LEN];
    for round in 1..=plenty(job, 200).min(40) as u64 {
        for len in [8, 1000, LEN] {
            fill(mixed([job.rank().0.into(), round, len as u64]), &mut data[..len]);
            there.on(to).put_signal(job, &data[..len], signal, 1);
            job.fence();
            flag.on(to).at(job).store(round << 32 | len as u64);
            job.wait_until(|| flag.on(job.rank()).at(job).load() == round << 32 | len as u64);
            assert_eq!(come.value(), 1, "{}: {len} bytes", job.rank());
            come.wait();
            there.on(job.rank()).get_slice(job, &mut data[..len]);
            assert!(are(mixed([from.0.into(), round, len as u64]), &data[..len]), "{}: {len} bytes", job.rank());
            job.barrier();
        }
    }
    board.free(job);
    job.free_all(there);
    job.free_all(flag);
}
