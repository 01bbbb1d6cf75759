//! Where programs take turns: a file that all processes of all sides map. A side is a job of ours or of an MPI; while one
//! is asked for a sample, the ranks of the others sleep.
//!
//! The driver asks and sleeps until the answer is there, so nobody but the side that is asked uses the cores.
//!
//! Memory ordering: an order is written before `asked` is stored (release) and read after it was seen (acquire); the same
//! holds for the answer and `answered`. Times of ranks are ordered by the barriers of the side.

use super::super::floor::{self, Line};
use super::super::measure::median;
use super::super::ranks::now_ns;
use super::cells::{Mode, Operation};
use crate::scratch::Scratch;
use partage_conduit::shm::segment::{HUGE, Mapping};
use rustix::thread::futex;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// As many ranks as a side may have.
pub const MOST_RANKS: usize = 64;
/// As many sides as there may be.
pub const MOST_SIDES: usize = 8;
const LEN: usize = HUGE;
const _: () = assert!(size_of::<Stage>() <= LEN);

/// Round trips of one look at the hand-off.
const PINGS: u64 = 1000;

/// The memory that all map.
#[repr(C)]
pub struct Stage {
    sides: [Side; MOST_SIDES],
    /// Counts answers; the driver sleeps on it.
    answered: Line<AtomicU32>,
}

#[repr(C)]
struct Side {
    /// Counts orders; the ranks sleep on it.
    asked: Line<AtomicU32>,
    order: Line<[AtomicU64; WORDS]>,
    answer: Line<AtomicU64>,
    /// Arrivals at the side's barrier, of all times.
    arrived: Line<AtomicU64>,
    /// The line of the hand-off.
    ping: Line<AtomicU64>,
    /// When each rank began and ended.
    times: [Line<[AtomicU64; 2]>; MOST_RANKS],
}

const WORDS: usize = 8;

/// What a side is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// To end.
    End,
    /// To look how long a cache line takes from one core to another.
    Handoff,
    /// To measure.
    Sample(Sample),
}

/// One sample: so many calls of a collective, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Which collective.
    pub operation: Operation,
    /// Bytes of a block.
    pub bytes: usize,
    /// When data may be touched.
    pub mode: Mode,
    /// By whom: the job, by hand, the job by another algorithm, or nobody.
    pub by: By,
    /// Owners write their source before each call, and read what they get after it.
    pub touched: bool,
    /// The root changes with each call.
    pub rotating: bool,
    /// Slices of one's own, not shared arrays.
    pub private: bool,
    /// How many calls are timed at once: as many for each root.
    pub calls: u64,
    /// How many times so many. Of several the median counts, as the first rank has seen them; of one the time from the first
    /// one's begin to the last one's end.
    pub batches: u64,
}

/// Who does it, within one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// The library, as it chooses.
    Library,
    /// Hand-written code of the same flow.
    Hand,
    /// The library, by the algorithm with this number among those that the side was given.
    Named(usize),
    /// Nobody: data are touched, and there is a barrier in the place of the collective.
    Nobody,
}

impl Sample {
    /// The root of the `turn`-th call.
    pub fn root(&self, turn: u64, ranks: usize) -> usize {
        if self.rotating { (turn % ranks as u64) as usize } else { 0 }
    }

    /// Blocks that a rank writes before a call, and blocks that it reads after it.
    pub fn touches(&self, is_root: bool, ranks: usize) -> (usize, usize) {
        let only = |there: bool, blocks| if there { blocks } else { 0 };
        match self.operation {
            _ if !self.touched => (0, 0),
            Operation::Broadcast => (only(is_root, 1), only(!is_root, 1)),
            Operation::Scatter => (only(is_root, ranks), 1),
            Operation::Gather => (1, only(is_root, ranks)),
            Operation::GatherAll => (1, ranks),
            Operation::Exchange => (ranks, ranks),
            Operation::Permute | Operation::AllReduce | Operation::Prefix => (1, 1),
            Operation::Reduce => (1, only(is_root, 1)),
            Operation::Barrier => (0, 0),
        }
    }
}

impl Order {
    fn words(self) -> [u64; WORDS] {
        match self {
            Order::End => [0; WORDS],
            Order::Handoff => [1, 0, 0, 0, 0, 0, 0, 0],
            Order::Sample(s) => {
                let flags = u64::from(s.touched) | u64::from(s.rotating) << 1 | u64::from(s.private) << 2;
                let by = match s.by {
                    By::Library => 0,
                    By::Hand => 1,
                    By::Nobody => 2,
                    By::Named(n) => n as u64 + 3,
                };
                [2, s.operation as u64, s.bytes as u64, s.mode as u64, by, flags, s.calls, s.batches]
            }
        }
    }

    fn from_words(words: [u64; WORDS]) -> Order {
        let [what, operation, bytes, mode, by, flags, calls, batches] = words;
        match what {
            0 => Order::End,
            1 => Order::Handoff,
            _ => Order::Sample(Sample {
                operation: Operation::ALL.get(operation as usize).copied().unwrap_or(Operation::Barrier),
                bytes: bytes as usize,
                mode: [Mode::AllAll, Mode::MyMy, Mode::NoNo][mode as usize],
                by: match by {
                    0 => By::Library,
                    1 => By::Hand,
                    2 => By::Nobody,
                    n => By::Named(n as usize - 3),
                },
                touched: flags & 1 != 0,
                rotating: flags & 2 != 0,
                private: flags & 4 != 0,
                calls,
                batches,
            }),
        }
    }
}

impl Stage {
    /// A file for one.
    pub fn file() -> Result<Scratch, String> {
        Scratch::zeroed(LEN)
    }

    /// The one in the file that the driver has made.
    pub fn open(path: &Path) -> Result<&'static Stage, String> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
        let map = Mapping::new(file.as_fd(), LEN, true).map_err(|e| e.to_string())?;
        let map: &'static Mapping = Box::leak(Box::new(map));
        // SAFETY: aligned to a page and longer than a stage, zeroed (which a stage may be), mapped for ever, and used by
        // nobody but through such references to atomics.
        Ok(unsafe { &*map.base().cast::<Stage>() })
    }

    /// Asks a side, and sleeps until it has answered. `alive` is asked now and then why to give up.
    pub fn ask(
        &self,
        side: usize,
        order: Order,
        patience: Duration,
        mut alive: impl FnMut() -> Result<(), String>,
    ) -> Result<f64, String> {
        let before = self.answered.0.load(Acquire);
        self.tell(side, order);
        let start = Instant::now();
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        while self.answered.0.load(Acquire) == before {
            // Whatever it returns, the loop looks again.
            let _ = futex::wait(&self.answered.0, futex::Flags::empty(), before, Some(&second));
            if self.answered.0.load(Acquire) == before {
                alive()?;
                if start.elapsed() > patience {
                    return Err(format!("no answer to {order:?} within {} s", patience.as_secs()));
                }
            }
        }
        Ok(f64::from_bits(self.sides[side].answer.0.load(Relaxed)))
    }

    /// Asks without waiting.
    pub fn tell(&self, side: usize, order: Order) {
        let side = &self.sides[side];
        for (place, word) in side.order.0.iter().zip(order.words()) {
            place.store(word, Relaxed);
        }
        side.asked.0.fetch_add(1, Release);
        // It fails for a bad address only.
        let _ = futex::wake(&side.asked.0, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Does what the side is asked, as one of its ranks, until that is to end. `prepare` makes room for a sample, `call` does
    /// so many calls from a turn on.
    pub fn serve<D>(
        &self,
        side: usize,
        me: usize,
        ranks: usize,
        doer: &mut D,
        mut prepare: impl FnMut(&mut D, &Sample) -> Result<(), String>,
        mut call: impl FnMut(&mut D, &Sample, u64, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let place = &self.sides[side];
        let (mut seen, mut epoch, mut turn, mut looks) = (0, 0, 0, vec![]);
        let mut meet = || place.meet(ranks, &mut epoch);
        loop {
            while place.asked.0.load(Acquire) == seen {
                // Whatever it returns, the loop looks again.
                let _ = futex::wait(&place.asked.0, futex::Flags::empty(), seen, None);
            }
            seen += 1;
            let order = Order::from_words(std::array::from_fn(|i| place.order.0[i].load(Relaxed)));
            if let Order::Sample(sample) = &order {
                prepare(doer, sample)?;
            }
            // All have read the order; after it nobody waits for those who have nothing to do.
            meet();
            let answer = match order {
                Order::End => return Ok(()),
                Order::Handoff if me > 1 => continue,
                Order::Handoff => {
                    // The others use the cores until they sleep.
                    std::thread::sleep(Duration::from_millis(if ranks > 2 { 2 } else { 0 }));
                    let start = now_ns();
                    floor::pass(&place.ping.0, me, PINGS);
                    (now_ns() - start) as f64 / (2 * PINGS) as f64
                }
                Order::Sample(sample) => {
                    let warm = sample.calls * sample.batches / 8 + 1;
                    call(doer, &sample, turn, warm)?;
                    turn += warm;
                    meet();
                    looks.clear();
                    looks.push(now_ns());
                    for _ in 0..sample.batches {
                        call(doer, &sample, turn, sample.calls)?;
                        turn += sample.calls;
                        looks.push(now_ns());
                    }
                    let times = [looks[0], looks[looks.len() - 1]];
                    place.times[me].0.iter().zip(times).for_each(|(place, time)| place.store(time, Relaxed));
                    meet();
                    let of = |i: usize| (0..ranks).map(move |r| place.times[r].0[i].load(Relaxed));
                    let time = match sample.batches {
                        1 => (of(1).max().unwrap_or(0) - of(0).min().unwrap_or(0)) as f64,
                        _ => median(looks.windows(2).map(|two| (two[1] - two[0]) as f64).collect()).unwrap_or(0.0),
                    };
                    time / sample.calls as f64 / 1e3
                }
            };
            if me == 0 {
                place.answer.0.store(answer.to_bits(), Relaxed);
                self.answered.0.fetch_add(1, Release);
                // It fails for a bad address only.
                let _ = futex::wake(&self.answered.0, futex::Flags::empty(), 1);
            }
        }
    }
}

impl Side {
    /// A barrier of the side's ranks; who waits yields at once.
    fn meet(&self, ranks: usize, epoch: &mut u64) {
        *epoch += ranks as u64;
        self.arrived.0.fetch_add(1, AcqRel);
        while self.arrived.0.load(Acquire) < *epoch {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Sample = Sample {
        operation: Operation::Exchange,
        bytes: 1024,
        mode: Mode::MyMy,
        by: By::Named(3),
        touched: true,
        rotating: false,
        private: false,
        calls: 7,
        batches: 3,
    };

    #[test]
    fn orders_travel_as_words() {
        for operation in Operation::ALL.into_iter().chain([Operation::Barrier]) {
            for mode in [Mode::AllAll, Mode::MyMy, Mode::NoNo] {
                for by in [By::Library, By::Hand, By::Nobody, By::Named(0), By::Named(9)] {
                    for (touched, rotating) in [(false, true), (true, false)] {
                        let sample = Sample { operation, mode, by, touched, rotating, ..SAMPLE };
                        let order = Order::Sample(Sample { private: touched, ..sample });
                        assert_eq!(Order::from_words(order.words()), order);
                    }
                }
            }
        }
        assert_eq!([Order::End, Order::Handoff].map(|o| Order::from_words(o.words())), [Order::End, Order::Handoff]);
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let moves = |o: &Operation| *o != Operation::Broadcast && *o != Operation::Reduce;
        for operation in Operation::ALL.into_iter().filter(moves) {
            let sample = Sample { operation, ..SAMPLE };
            let both: Vec<_> = (0..4).map(|r| sample.touches(r == 1, 4)).collect();
            let (written, read) = both.iter().fold((0, 0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
            // A block of gather_all is read by all.
            let readers = if operation == Operation::GatherAll { 4 } else { 1 };
            assert_eq!(written * readers, read, "{operation:?}");
        }
        let sample = Sample { operation: Operation::Broadcast, ..SAMPLE };
        assert_eq!([true, false].map(|root| sample.touches(root, 4)), [(1, 0), (0, 1)]);
        assert_eq!(Sample { touched: false, ..sample }.touches(true, 4), (0, 0));
    }

    #[test]
    fn sides_take_turns() {
        let file = Stage::file().unwrap();
        let stage = Stage::open(&file.path()).unwrap();
        let done = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|s| {
            for (side, done) in done.iter().enumerate() {
                for me in 0..2 {
                    s.spawn(move || {
                        let call = |_: &mut (), sample: &Sample, _: u64, times: u64| {
                            assert_eq!(sample.bytes, side);
                            done.fetch_add(times, Relaxed);
                            Ok(())
                        };
                        stage.serve(side, me, 2, &mut (), |_, _| Ok(()), call).unwrap();
                    });
                }
            }
            let ask = |side, order| stage.ask(side, order, Duration::from_secs(60), || Ok(())).unwrap();
            for batches in 1..20 {
                for side in 0..2 {
                    let order = Order::Sample(Sample { bytes: side, batches, ..SAMPLE });
                    assert!(ask(side, order) > 0.0);
                    assert!(ask(side, Order::Handoff) > 0.0);
                }
            }
            (0..2).for_each(|side| stage.tell(side, Order::End));
        });
        let all: u64 = (1..20).map(|batches| 7 * batches).map(|calls| 2 * (calls + calls / 8 + 1)).sum();
        assert_eq!(done.map(AtomicU64::into_inner), [all, all]);
    }
}
