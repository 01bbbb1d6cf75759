//! The measurements, as the ranks of a job do them: each beside its floor, in the same processes and the same rounds.
//!
//! Every function here is run by all ranks of a job; what rank 0 returns counts.

use super::floor::{self, Board, Places};
use super::measure::{Measured, Round, Tally, median};
use partage::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Round trips of one look at the hand-off, and looks of which the median is taken.
const PINGS: (u64, usize) = (300, 9);
/// How long barriers are repeated for one sample.
pub const WINDOW_NS: u64 = 5_000_000;
/// The same where a foreign load takes turns with the ranks, in slices of milliseconds.
const LONG_WINDOW_NS: u64 = 200_000_000;
/// Barriers between two looks at the clock.
const BATCH: u64 = 64;
/// Places of `put_8` and `get_8`, all of 32 KiB.
const PLACES: usize = 4096;

/// A rank that measures.
pub struct Bench<'j> {
    /// Its handle to the job.
    pub job: &'j Job,
    /// Words that all ranks use.
    pub board: &'j Board,
    /// The number of this rank.
    pub me: usize,
    rounds: usize,
}

impl<'j> Bench<'j> {
    /// Collective. Ranks that are `apart` do not map each other's segments.
    pub fn new(job: &'j Job, rounds: usize, apart: bool) -> partage::Result<Bench<'j>> {
        let board = if apart { Board::apart(job) } else { Board::new(job) };
        Ok(Bench { job, board: board?, me: job.rank().index(), rounds })
    }

    /// Rounds of floor, ours, ours, floor.
    pub fn compare(&self, mut ours: impl FnMut() -> f64, mut floor: impl FnMut() -> f64) -> Measured {
        let mut round = || {
            let first = self.sample(&mut floor);
            let both = self.sample(&mut ours) + self.sample(&mut ours);
            let last = self.sample(&mut floor);
            (both / 2.0, Some((first + last) / 2.0))
        };
        round(); // Pages, caches, branches.
        self.repeat(round)
    }

    /// Rounds of something that has no floor and does not depend on how far cores are from each other.
    pub fn alone(&self, mut ours: impl FnMut() -> f64) -> Measured {
        Measured::absolute((0..self.rounds).map(|_| self.sample(&mut ours)).collect())
    }

    fn repeat(&self, mut round: impl FnMut() -> (f64, Option<f64>)) -> Measured {
        let mut tally = Tally::default();
        loop {
            let before = self.handoff();
            let (ours, floor) = round();
            tally.push(Round { before, after: self.handoff(), ours, floor });
            if self.me == 0 {
                self.board.over.0.store(tally.is_enough(self.rounds).into(), Relaxed);
            }
            self.job.barrier();
            if self.board.over.0.load(Relaxed) != 0 {
                return tally.measured();
            }
        }
    }

    fn sample(&self, what: &mut impl FnMut() -> f64) -> f64 {
        self.job.barrier();
        what()
    }

    /// Nanoseconds for a cache line from rank 0 to rank 1, while all others sleep.
    fn handoff(&self) -> f64 {
        self.job.barrier();
        let mut looks = vec![];
        if self.me < 2 {
            std::thread::sleep(Duration::from_millis(if self.job.size() > 2 { 2 } else { 0 }));
            for _ in 0..PINGS.1 {
                let start = now_ns();
                floor::ping(self.board, self.me, PINGS.0);
                looks.push((now_ns() - start) as f64 / (2 * PINGS.0) as f64);
            }
        }
        self.job.barrier();
        median(looks).unwrap_or(0.0)
    }

    /// Nanoseconds per `meet`, which waits for all ranks, repeated for `window` nanoseconds.
    pub fn paced(&self, window: u64, mut meet: impl FnMut()) -> f64 {
        let over = &self.board.over.0;
        if self.me == 0 {
            over.store(0, Relaxed);
        }
        meet();
        let (start, mut count) = (now_ns(), 0);
        loop {
            (1..BATCH).for_each(|_| meet());
            if self.me == 0 && now_ns() - start > window {
                over.store(1, Relaxed);
            }
            meet();
            count += BATCH;
            // All see it after the same meeting: rank 0 decides before it comes to one.
            if over.load(Relaxed) != 0 {
                return (now_ns() - start) as f64 / count as f64;
            }
        }
    }

    /// Nanoseconds of each of `times` repetitions, on rank 0.
    pub fn timed(&self, times: usize, mut what: impl FnMut()) -> f64 {
        let start = now_ns();
        if self.me == 0 {
            what();
        }
        (now_ns() - start) as f64 / times as f64
    }
}

/// Monotonic time, the same in all processes.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Pointers to all values of a block of the other rank, shuffled; ours and by hand.
fn places(b: &Bench) -> (Vec<GlobalPtr<u64>>, Places) {
    let block = b.job.alloc_all::<u64>(PLACES).expect("32 KiB");
    let mut targets: Vec<_> = (0..PLACES).map(|i| block.on(b.job.neighbor(1)).add(i)).collect();
    let mut random = 1u64;
    for i in (1..PLACES).rev() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        targets.swap(i, (random >> 33) as usize % (i + 1));
    }
    let by_hand = Places::new(b.job, block, PLACES, &targets);
    (targets, by_hand)
}

/// A put of 8 bytes, in nanoseconds.
pub fn put_8(b: &Bench) -> Measured {
    #[inline(never)]
    fn put(job: &Job, targets: &[GlobalPtr<u64>], value: u64) {
        targets.iter().for_each(|p| p.put(job, value));
    }
    const TIMES: u64 = 200;
    let (targets, by_hand) = places(b);
    b.compare(
        || b.timed(PLACES * TIMES as usize, || (0..TIMES).for_each(|i| put(b.job, &targets, i))),
        || b.timed(PLACES * TIMES as usize, || (0..TIMES).for_each(|i| by_hand.put(i))),
    )
}

/// A get of 8 bytes, in nanoseconds.
pub fn get_8(b: &Bench) -> Measured {
    #[inline(never)]
    fn get(job: &Job, targets: &[GlobalPtr<u64>]) -> u64 {
        targets.iter().fold(0, |sum: u64, p| sum.wrapping_add(p.get(job)))
    }
    const TIMES: usize = 200;
    let (targets, by_hand) = places(b);
    b.compare(
        || b.timed(PLACES * TIMES, || (0..TIMES).for_each(|_| _ = black_box(get(b.job, &targets)))),
        || b.timed(PLACES * TIMES, || (0..TIMES).for_each(|_| _ = black_box(by_hand.get()))),
    )
}

/// A put of `LEN` bytes beside `memcpy` of the same bytes, in microseconds.
pub fn put<const LEN: usize>(b: &Bench) -> Measured {
    let (src, there, times) = buffers(b, LEN);
    b.compare(
        || b.timed(times, || (0..times).for_each(|_| there.put_slice(b.job, black_box(&src)))) / 1e3,
        || b.timed(times, || floor::copy_out(b.job, there, &src, times)) / 1e3,
    )
}

/// A get of `LEN` bytes beside `memcpy` of the same bytes, in microseconds.
pub fn get<const LEN: usize>(b: &Bench) -> Measured {
    let (dst, there, times) = buffers(b, LEN);
    let dst = std::cell::RefCell::new(dst);
    b.compare(
        || b.timed(times, || (0..times).for_each(|_| there.get_slice(b.job, black_box(&mut dst.borrow_mut())))) / 1e3,
        || b.timed(times, || floor::copy_in(b.job, &mut dst.borrow_mut(), there, times)) / 1e3,
    )
}

/// Private memory, a block of the other rank, and how often a sample copies it.
fn buffers(b: &Bench, len: usize) -> (Vec<u8>, GlobalPtr<u8>, usize) {
    let block = b.job.alloc_all::<u8>(len).expect("a block");
    (vec![1; len], block.on(b.job.neighbor(1)), (32 << 20) / len)
}

/// A barrier of two, each on its core, in nanoseconds.
pub fn barrier_of_two(b: &Bench) -> Measured {
    let mut epoch = 0;
    b.compare(
        || b.paced(WINDOW_NS, || b.job.barrier()),
        || b.paced(WINDOW_NS, || floor::pair_barrier(b.board, b.me, &mut epoch)),
    )
}

/// A barrier of two that carries a value, beside one that does not, in nanoseconds.
pub fn barrier_with_value(b: &Bench) -> Measured {
    let mut value = 0;
    b.compare(
        || {
            b.paced(WINDOW_NS, || {
                value += 1;
                b.job.barrier_with(value);
            })
        },
        || b.paced(WINDOW_NS, || b.job.barrier()),
    )
}

/// A barrier of more ranks than cores, in microseconds.
pub fn barrier_of_many(b: &Bench) -> Measured {
    let (n, mut epoch) = (b.job.size(), 0);
    b.compare(
        || b.paced(WINDOW_NS, || b.job.barrier()) / 1e3,
        || b.paced(WINDOW_NS, || floor::central_barrier(b.board, n, &mut epoch)) / 1e3,
    )
}

/// A barrier of several ranks with a core each, in microseconds.
pub fn barrier_on_cores(b: &Bench) -> Measured {
    b.repeat(|| (b.paced(WINDOW_NS, || b.job.barrier()) / 1e3, None))
}

/// Making a team of all ranks by a split, and dropping it, beside a barrier, in microseconds.
pub fn team_made(b: &Bench) -> Measured {
    b.compare(|| b.paced(WINDOW_NS, || drop(b.job.split(0))) / 1e3, || b.paced(WINDOW_NS, || b.job.barrier()) / 1e3)
}

/// A barrier of a team of all ranks, beside the job's, in microseconds.
pub fn team_barrier(b: &Bench) -> Measured {
    let team = b.job.split(0);
    b.compare(|| b.paced(WINDOW_NS, || team.barrier()) / 1e3, || b.paced(WINDOW_NS, || b.job.barrier()) / 1e3)
}

/// Words of all ranks, by a team of all beside the job, in microseconds.
pub fn team_gather_all(b: &Bench) -> Measured {
    let (team, mut all) = (b.job.split(0), vec![0; b.job.size()]);
    let gather = |team: &Team, all: &mut Vec<u64>| team.gather_all(&[b.me as u64]).to(all).run();
    let mut by = |team: &Team| b.paced(WINDOW_NS, || gather(team, &mut all)) / 1e3;
    let both = std::cell::RefCell::new(&mut by);
    b.compare(|| both.borrow_mut()(&team), || both.borrow_mut()(b.job))
}

/// From the arrival of rank 0 to rank 1 running again after 10 ms asleep, in microseconds: the median of several.
pub fn handoff_parked(b: &Bench) -> Measured {
    // `wait` is what rank 1 sleeps in, `publish` what rank 0 does to end that.
    let handoffs = |wait: &mut dyn FnMut(), publish: &mut dyn FnMut()| {
        let (time, taken) = (&b.board.time.0, &b.board.of[1].0);
        let each = (0..5).map(|_| {
            b.job.barrier();
            if b.me == 0 {
                let start = now_ns();
                while now_ns() - start < 10_000_000 {}
                time.store(now_ns(), Relaxed);
                publish();
            } else {
                wait();
                taken.store(now_ns() - time.load(Relaxed), Relaxed);
            }
            b.job.barrier();
            taken.load(Relaxed) as f64 / 1e3
        });
        median(each.collect()).unwrap_or(0.0)
    };
    let (asleep, awake) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let next = |turn: &std::cell::Cell<u32>| turn.replace(turn.get() + 1) + 1;
    b.compare(
        || handoffs(&mut || b.job.barrier(), &mut || b.job.barrier()),
        || handoffs(&mut || floor::sleep(b.board, next(&asleep)), &mut || floor::wake(b.board, next(&awake))),
    )
}

/// 100 ms of work on rank 0 while all others wait in a barrier, beside the same while they sleep; in milliseconds.
pub fn compute_beside_waiters(b: &Bench) -> Measured {
    let trial = |steps| (0..5).map(|_| b.timed(1, || burn(steps))).fold(f64::MAX, f64::min);
    let steps = (4e6 * 1e8 / trial(4_000_000).max(1e5)) as u64;
    let mut turn = 0;
    b.compare(
        || {
            let time = b.timed(1, || burn(steps));
            b.job.barrier();
            time / 1e6
        },
        || {
            turn += 1;
            if b.me > 0 {
                floor::sleep(b.board, turn);
                return 0.0;
            }
            std::thread::sleep(Duration::from_millis(2));
            let time = b.timed(1, || burn(steps));
            floor::wake(b.board, turn);
            time / 1e6
        },
    )
}

/// A chain of multiplications: nothing but the core's clock and whoever shares the core changes its time.
#[inline(never)]
fn burn(steps: u64) {
    black_box((0..black_box(steps)).fold(black_box(1), |x: u64, _| x.wrapping_mul(6364136223846793005) ^ steps));
}

/// A round trip of two barriers while a foreign process computes on rank 0's core, beside the same without it; in
/// microseconds.
pub fn handoff_beside_hog(b: &Bench) -> Measured {
    let hog = (b.me == 0).then(Hog::start);
    let round_trip = || 2.0 * b.paced(LONG_WINDOW_NS, || b.job.barrier()) / 1e3;
    b.compare(
        || {
            hog.iter().for_each(|h| h.signal(Signal::CONT));
            let time = round_trip();
            hog.iter().for_each(|h| h.signal(Signal::STOP));
            time
        },
        round_trip,
    )
}

/// Another process that computes on the core to which this thread is bound; it ends with this value.
struct Hog(Child);

impl Hog {
    fn start() -> Hog {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["bench-rank", "hog"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let hog = Hog(command.spawn().expect("this program can be started"));
        hog.signal(Signal::STOP);
        hog
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the hog does: computes until it is killed, or its parent is gone.
pub fn hog() {
    // If the system refuses, the launcher kills it with its process group.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    loop {
        burn(1_000_000);
    }
}

/// CPU time of all processes while all but rank 0, which sleeps, wait in a barrier for two seconds; in percent of a core.
pub fn idle_cpu(b: &Bench) -> Measured {
    b.alone(|| {
        let (start, cpu) = (now_ns(), nanoseconds(ClockId::ProcessCPUTime));
        if b.me == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
        b.job.barrier();
        let time = now_ns() - start;
        b.board.of[b.me].0.store(nanoseconds(ClockId::ProcessCPUTime) - cpu, Relaxed);
        b.job.barrier();
        let all: u64 = b.board.of[..b.job.size()].iter().map(|of| of.0.load(Relaxed)).sum();
        100.0 * all as f64 / time as f64
    })
}

/// Memory of the largest process while all but rank 0 wait in a barrier, in MiB: its anonymous pages and its share of the
/// shared ones (control areas and segments), as `smaps_rollup` counts them. Not the program's file, which is mapped.
pub fn idle_memory(b: &Bench) -> Measured {
    b.board.of[b.me].0.store(std::process::id().into(), Relaxed);
    b.alone(|| {
        if b.me > 0 {
            return 0.0;
        }
        std::thread::sleep(Duration::from_millis(100));
        let of = |pid: u64| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let kib = |key| text.lines().find_map(|l| l.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok());
            let [anon, shared] = ["Pss_Anon:", "Pss_Shmem:"].map(|key| kib(key).unwrap_or(f64::INFINITY));
            (anon + shared) / 1024.0
        };
        b.board.of[..b.job.size()].iter().map(|pid| of(pid.0.load(Relaxed))).fold(0.0, f64::max)
    })
}
