//! Data and its notification from one rank to another: one way, half of a round trip.
//!
//! On a node each way is beside the same by hand: a copy, and a flag in another line. Between nodes it is beside a put that
//! is complete, and a strict store to a flag after it. As in [`ranks`](super::ranks), every function here is run by all ranks
//! of a job; what rank 0 returns counts.

use super::floor::{Flagged, Rings, Tokens};
use super::measure::Measured;
use super::ranks::{Bench, now_ns};
use partage::am::Request;
use partage::prelude::*;
use partage::signal::Flavor;
use std::cell::RefCell;
use std::hint::black_box;

/// How data and its notification travel between two ranks.
pub trait Way<'j> {
    /// Collective: for at most so many bytes.
    fn new(job: &'j Job, len: usize) -> Self;
    /// Sends all of it, for the `turn`-th time.
    fn send(&mut self, job: &Job, src: &[u8], turn: u64);
    /// Waits for what comes for the `turn`-th time; and reads it, if there is anything to read it into.
    fn receive(&mut self, job: &Job, dst: &mut [u8], turn: u64);
}

/// Places that are used in turn: how long a line takes depends on where in the machine its home is, and so on its address.
fn places(len: usize) -> usize {
    if len > 4096 { 1 } else { 16 }
}

fn peer(job: &Job) -> Rank {
    job.neighbor(1)
}

/// Blocks of mine; `on(peer)` of one is the other's.
fn blocks(job: &Job, len: usize, n: usize) -> Vec<GlobalPtr<u8>> {
    let stride = len.next_multiple_of(64);
    let all = block(job, n * stride);
    (0..n).map(|i| all.add(i * stride)).collect()
}

fn block(job: &Job, len: usize) -> GlobalPtr<u8> {
    job.alloc_all::<[u64; 8]>(len.div_ceil(64)).expect("a block").cast()
}

/// One `put_signal`.
pub struct Signaled(Vec<Signaling>);

struct Signaling {
    here: GlobalPtr<u8>,
    come: Semaphore,
    there: Signal,
}

impl Way<'_> for Signaled {
    fn new(job: &Job, len: usize) -> Signaled {
        let flavor = Flavor { single_producer: true, single_consumer: true, ..Default::default() };
        let one = |here| {
            let come = job.semaphore_with(flavor).expect("a semaphore");
            let there = told(job, come.signal());
            Signaling { here, come, there }
        };
        Signaled(blocks(job, len, places(len)).into_iter().map(one).collect())
    }

    #[inline(always)]
    fn send(&mut self, job: &Job, src: &[u8], turn: u64) {
        let Signaling { here, there, .. } = &self.0[turn as usize % self.0.len()];
        here.on(peer(job)).put_signal(job, src, *there, 1);
    }

    #[inline(always)]
    fn receive(&mut self, job: &Job, dst: &mut [u8], turn: u64) {
        let Signaling { here, come, .. } = &self.0[turn as usize % self.0.len()];
        come.wait();
        if !dst.is_empty() {
            here.get_slice(job, dst);
        }
    }
}

/// Collective: the other rank's signal.
fn told(job: &Job, mine: Signal) -> Signal {
    let all = job.alloc_all::<Signal>(1).expect("a word");
    all.put(job, mine);
    job.barrier();
    all.on(peer(job)).get(job)
}

/// A put, and when it is complete a strict store to a flag.
pub struct StrictFlag(Vec<(GlobalPtr<u8>, GlobalPtr<u64>)>);

impl StrictFlag {
    #[inline(always)]
    fn place(&self, turn: u64) -> (GlobalPtr<u8>, GlobalPtr<u64>) {
        self.0[turn as usize % self.0.len()]
    }
}

impl Way<'_> for StrictFlag {
    fn new(job: &Job, len: usize) -> StrictFlag {
        let (data, flags) = (blocks(job, len, places(len)), blocks(job, 8, places(len)));
        StrictFlag(data.into_iter().zip(flags.into_iter().map(|flag| flag.cast())).collect())
    }

    #[inline(always)]
    fn send(&mut self, job: &Job, src: &[u8], turn: u64) {
        let (here, flag) = self.place(turn);
        here.on(peer(job)).put_slice(job, src);
        flag.on(peer(job)).at(job).strict().store(turn);
    }

    #[inline(always)]
    fn receive(&mut self, job: &Job, dst: &mut [u8], turn: u64) {
        let (here, flag) = self.place(turn);
        let flag = flag.at(job).strict();
        job.wait_until(|| flag.load() == turn);
        if !dst.is_empty() {
            here.get_slice(job, dst);
        }
    }
}

/// A put and a store to a flag, both under way at once: between nodes nothing says that they come in this order.
pub struct Flag(StrictFlag);

impl Way<'_> for Flag {
    fn new(job: &Job, len: usize) -> Flag {
        Flag(StrictFlag::new(job, len))
    }

    #[inline(always)]
    fn send(&mut self, job: &Job, src: &[u8], turn: u64) {
        let (here, flag) = self.0.place(turn);
        job.scope(|s| {
            let put = s.put_ptr(here.on(peer(job)), src);
            flag.on(peer(job)).at(job).start().store(turn).wait();
            put.wait();
        });
    }

    #[inline(always)]
    fn receive(&mut self, job: &Job, dst: &mut [u8], turn: u64) {
        let (here, flag) = self.0.place(turn);
        let flag = flag.at(job);
        job.wait_until(|| flag.load() == turn);
        if !dst.is_empty() {
            here.get_slice(job, dst);
        }
    }
}

thread_local! {
    static COME: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
}

/// Keeps what has come, if that is wanted, and counts.
static TAKE: Request<GlobalPtr<u64>> = Request::new(|_, target, count, payload| {
    COME.with_borrow_mut(|kept| {
        if !kept.is_empty() {
            kept[..payload.len()].copy_from_slice(payload);
            black_box(&kept);
        }
    });
    target.at(count).store(target.get(count) + 1);
});

/// An active message with the data as its payload.
pub struct Message {
    come: GlobalPtr<u64>,
}

impl Way<'_> for Message {
    fn new(job: &Job, len: usize) -> Message {
        job.register_handlers(&[&TAKE]);
        COME.with_borrow_mut(|kept| kept.resize(len, 0));
        Message { come: block(job, 8).cast() }
    }

    #[inline(always)]
    fn send(&mut self, job: &Job, src: &[u8], _: u64) {
        job.am(peer(job), &TAKE, self.come.on(peer(job)), src);
    }

    #[inline(always)]
    fn receive(&mut self, job: &Job, dst: &mut [u8], turn: u64) {
        if dst.is_empty() {
            COME.with_borrow_mut(Vec::clear);
        }
        let come = self.come.at(job);
        job.wait_until(|| come.load() == turn);
    }
}

/// A lane of slots: the receiver reads the slot itself.
pub struct Slots {
    right: Outbox<u8>,
    left: Inbox<u8>,
}

impl Way<'_> for Slots {
    fn new(job: &Job, len: usize) -> Slots {
        let depth = places(len);
        let right = job.outbox(peer(job), len, depth).expect("a lane");
        Slots { right, left: job.inbox(peer(job), len, depth).expect("a lane") }
    }

    #[inline(always)]
    fn send(&mut self, _: &Job, src: &[u8], _: u64) {
        self.right.put_signal(src);
    }

    #[inline(always)]
    fn receive(&mut self, _: &Job, dst: &mut [u8], _: u64) {
        let come = self.left.wait();
        if !dst.is_empty() {
            dst.copy_from_slice(&come);
        }
    }
}

/// Two ranks that pass data to and fro.
struct Pair<W> {
    way: W,
    src: Vec<u8>,
    dst: Vec<u8>,
    turn: u64,
}

impl<'j, W: Way<'j>> Pair<W> {
    fn new(job: &'j Job, len: usize, read: bool) -> Pair<W> {
        Pair { way: W::new(job, len), src: vec![7; len], dst: vec![0; if read { len } else { 0 }], turn: 0 }
    }

    /// Nanoseconds one way.
    #[inline(never)]
    fn play(&mut self, b: &Bench, trips: usize) -> f64 {
        let (job, start) = (b.job, now_ns());
        for turn in self.turn + 1..=self.turn + trips as u64 {
            if b.me == 0 {
                self.way.send(job, &self.src, turn);
                self.way.receive(job, &mut self.dst, turn);
            } else {
                self.way.receive(job, &mut self.dst, turn);
                self.way.send(job, &self.src, turn);
            }
            black_box(&mut self.dst);
        }
        self.turn += trips as u64;
        (now_ns() - start) as f64 / (2 * trips) as f64
    }
}

/// Trips of a sample.
fn trips(len: usize) -> usize {
    (16 << 20) / (len + 2048)
}

/// By hand on a node.
impl<'j> Way<'j> for Vec<Flagged<'j>> {
    fn new(job: &'j Job, len: usize) -> Self {
        (0..places(len)).map(|_| Flagged::new(job, peer(job)).expect("64 KiB")).collect()
    }

    #[inline(always)]
    fn send(&mut self, _: &Job, src: &[u8], turn: u64) {
        self[turn as usize % self.len()].send(src, turn);
    }

    #[inline(always)]
    fn receive(&mut self, _: &Job, dst: &mut [u8], turn: u64) {
        self[turn as usize % self.len()].receive(dst, turn);
    }
}

fn beside<'j, W: Way<'j>, F: Way<'j>>(b: &Bench<'j>, len: usize, read: bool, trips: usize) -> Measured {
    let (mut ours, mut floor) = (Pair::<W>::new(b.job, len, read), Pair::<F>::new(b.job, len, read));
    b.compare(|| ours.play(b, trips), || floor.play(b, trips))
}

/// Nanoseconds one way of `len` bytes, each time it is called.
pub fn one_way<'j, W: Way<'j>>(b: &Bench<'j>, len: usize, trips: usize) -> impl FnMut() -> f64 {
    let mut pair = Pair::<W>::new(b.job, len, true);
    move || pair.play(b, trips)
}

/// Nanoseconds one way on a node, of so many bytes that the receiver reads, beside a copy and a flag.
pub fn near<W: for<'j> Way<'j>, const LEN: usize>(b: &Bench) -> Measured {
    beside::<W, Vec<Flagged>>(b, LEN, true, trips(LEN))
}

/// The same if the receiver does not read them.
pub fn near_unread<W: for<'j> Way<'j>, const LEN: usize>(b: &Bench) -> Measured {
    beside::<W, Vec<Flagged>>(b, LEN, false, trips(LEN))
}

/// Microseconds one way between nodes, beside a put and a strict flag.
pub fn far<W: for<'j> Way<'j>, const LEN: usize>(b: &Bench) -> Measured {
    let m = beside::<W, StrictFlag>(b, LEN, true, trips(LEN) / 8 + 20);
    Measured { value: m.value / 1e3, floor: m.floor.map(|f| f / 1e3), ..m }
}

/// Messages of a stream in a sample.
const STREAM: usize = 100_000;
/// Posts of the ring of semaphores that may be under way.
const DEPTH: usize = 64;

/// A stream of 8 bytes each through a ring in the receiver's memory, with a semaphore for what is full and one for what is free:
/// nanoseconds of one, beside a raw ring.
pub fn semaphore_stream(b: &Bench) -> Measured {
    let (job, flavor) = (b.job, Flavor { single_producer: true, single_consumer: true, ..Default::default() });
    let sem = || job.semaphore_with(flavor).expect("a semaphore");
    let (full, free) = (sem(), sem());
    let [to_fill, to_free] = [&full, &free].map(|s| told(job, s.signal()));
    let ring = block(job, 64 * DEPTH).cast::<u64>();
    if b.me == 0 {
        job.post_n(free.signal(), DEPTH as u32);
    }
    let ours = || {
        let there = ring.on(peer(job));
        for k in 0..STREAM {
            let slot = 8 * (k % DEPTH);
            if b.me == 0 {
                free.wait();
                there.add(slot).put_signal(job, &[k as u64], to_fill, 1);
            } else {
                full.wait();
                assert_eq!(ring.add(slot).get(job), k as u64);
                job.post(to_free);
            }
        }
    };
    stream(b, ours)
}

/// The same through a lane of slots.
pub fn stream_8(b: &Bench) -> Measured {
    let job = b.job;
    let mut right = job.outbox::<u64>(peer(job), 1, 1024).expect("a lane");
    let mut left = job.inbox::<u64>(peer(job), 1, 1024).expect("a lane");
    stream(b, || {
        if b.me == 0 {
            (0..STREAM as u64).for_each(|k| right.put_signal(&[k]));
        } else {
            (0..STREAM as u64).for_each(|k| assert_eq!(*left.wait(), [k]));
        }
    })
}

/// Nanoseconds of a message of a stream, beside a raw ring.
fn stream(b: &Bench, mut ours: impl FnMut()) -> Measured {
    let mut rings = Rings::new(b.job, peer(b.job)).expect("64 KiB");
    let by_hand = || {
        for k in 0..STREAM as u64 {
            if b.me == 0 {
                rings.send([k; 7], || ());
            } else {
                assert_eq!(rings.receive(|| ())[6], k);
            }
        }
        if b.me == 0 { rings.all_taken(|| ()) } else { rings.report() }
    };
    let by_hand = RefCell::new(by_hand);
    let timed = |what: &mut dyn FnMut()| {
        let start = now_ns();
        what();
        b.job.barrier();
        (now_ns() - start) as f64 / STREAM as f64
    };
    b.compare(|| timed(&mut ours), || timed(&mut *by_hand.borrow_mut()))
}

/// Laps of a token.
const LAPS: usize = 200;

/// A word that goes round all ranks, which share two cores: nanoseconds of one hop, beside the better of yielding and sleeping
/// by hand.
pub fn ring_of_many(b: &Bench) -> Measured {
    let job = b.job;
    let flavor = Flavor { single_producer: true, single_consumer: true, ..Default::default() };
    let (come, token) = (job.semaphore_with(flavor).expect("a semaphore"), block(job, 8).cast::<u64>());
    let next = told(job, come.signal());
    let right = token.on(peer(job));
    let mut turn = 0;
    let by_hand = Tokens::new(job, peer(job)).expect("two lines");
    let hop = |took: u64| took as f64 / (LAPS * job.size()) as f64;
    let ours = || {
        let start = now_ns();
        for lap in 0..LAPS as u64 {
            if b.me == 0 {
                right.put_signal(job, &[lap], next, 1);
                come.wait();
                assert_eq!(token.get(job), lap);
            } else {
                come.wait();
                right.put_signal(job, &[token.get(job)], next, 1);
            }
        }
        hop(now_ns() - start)
    };
    let floor = || {
        let mut times = [true, false].map(|sleeps| {
            job.barrier();
            let start = now_ns();
            for _ in 0..LAPS {
                turn += 1;
                by_hand.go_round(b.me == 0, turn, sleeps);
            }
            hop(now_ns() - start)
        });
        times.sort_by(f64::total_cmp);
        times[0]
    };
    b.compare(ours, floor)
}
