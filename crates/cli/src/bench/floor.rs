//! The floors: what the runtime does, by hand, on the same memory. With [`wire`](super::wire), [`mpi`](mod@super::mpi)
//! and [`coll`](super::coll) all unsafe code of this command.
//!
//! None of it is a runtime: no checks beyond those that a measurement names, no abort, no reports, no sleep where it
//! spins. It lives in the job's own segments, so that pages, cores and processes are those of what it is compared with.

use partage::bytemuck;
use partage::prelude::*;
use partage_conduit::shm::segment::{self, Mapping};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Something in a cache line of its own.
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// Words in rank 0's segment that all ranks use as atomics.
#[repr(C)]
pub struct Board {
    /// The line of [`ping`].
    ping: Line<AtomicU64>,
    /// The line of [`pair_barrier`].
    flags: Line<[AtomicU64; 2]>,
    /// Arrivals of [`central_barrier`].
    count: Line<AtomicU64>,
    /// Its last epoch.
    epoch: Line<AtomicU64>,
    /// What [`sleep`] sleeps on.
    bell: Line<AtomicU32>,
    /// Rank 0 says that a loop or the rounds are over.
    pub over: Line<AtomicU64>,
    /// When something was published.
    pub time: Line<AtomicU64>,
    /// Rank 0 says how many samples are over.
    pub turn: Line<AtomicU64>,
    /// A word of each rank.
    pub of: [Line<AtomicU64>; MOST_RANKS],
}

/// As many ranks as a measurement may have.
pub const MOST_RANKS: usize = 16;

impl Board {
    /// Collective; the board is never given back.
    pub fn new(job: &Job) -> partage::Result<&Board> {
        assert!(job.size() <= MOST_RANKS);
        let boards = Everywhere::<Board>::new(job)?;
        // SAFETY: a board consists of atomics.
        Ok(unsafe { boards.on(Rank(0)) })
    }

    /// The same in a file of rank 0's, for processes of one node that do not map each other's segments.
    pub fn apart(job: &Job) -> partage::Result<&Board> {
        assert!(job.size() <= MOST_RANKS);
        let len = size_of::<Board>().next_multiple_of(segment::HUGE);
        let place = job.alloc_all::<[u64; 2]>(1)?.on(Rank(0));
        let mine = (job.rank() == Rank(0)).then(|| {
            let (file, _) = segment::create(len as u64, false).expect("a file");
            place.put(job, [std::process::id().into(), file.as_raw_fd() as u64]);
            file
        });
        job.barrier();
        let file = mine.unwrap_or_else(|| {
            let [process, number] = place.get(job);
            let path = format!("/proc/{process}/fd/{number}");
            OpenOptions::new().read(true).write(true).open(path).expect("the file of rank 0").into()
        });
        let mapping = Mapping::new(file.as_fd(), len, true).expect("a mapping");
        let board = Box::leak(Box::new(mapping)).base().cast::<Board>();
        job.barrier();
        // SAFETY: aligned to more than a page, longer than a board (and so is the file), zeroed (which a board may be),
        // mapped for ever, and used by nobody but through such references to atomics.
        Ok(unsafe { &*board })
    }
}

/// A `T` on every rank, zeroed; never given back.
pub struct Everywhere<'j, T>(&'j Job, GlobalPtr<[u64; 8]>, PhantomData<T>);

impl<'j, T> Everywhere<'j, T> {
    /// Collective.
    pub fn new(job: &'j Job) -> partage::Result<Self> {
        Ok(Everywhere(job, job.alloc_all(size_of::<T>().div_ceil(64))?, PhantomData))
    }

    /// That of a rank.
    ///
    /// # Safety
    /// A `T` consists of atomics, and of cells that they guard: zeros are one, and all ranks may use it at once through
    /// shared references.
    pub unsafe fn on(&self, rank: Rank) -> &'j T {
        let place = raw(self.0, self.1.on(rank).cast(), size_of::<T>()).cast::<T>();
        assert!(place.is_aligned());
        // SAFETY: aligned, as long as a `T`, zeroed (which a `T` may be), never freed and so mapped as long as the job,
        // and written by nobody but through such references.
        unsafe { &*place }
    }
}

/// The raw hand-off: ranks 0 and 1 pass one line to and fro. Nobody else may use their cores meanwhile.
pub fn ping(board: &Board, me: usize, trips: u64) {
    pass(&board.ping.0, me, trips);
}

/// The same over a word that is zero, and is so again afterwards. (On one core, as hosts of two ranks may have it, the other needs a turn.)
pub fn pass(word: &AtomicU64, me: usize, trips: u64) {
    let until = |value| {
        while !(0..1 << 16).any(|_| word.load(Acquire) == value) {
            std::thread::yield_now();
        }
    };
    for i in 0..trips {
        let mine = 2 * i + me as u64;
        until(mine);
        // The last store leaves the word as the first load expects it.
        word.store((mine + 1) % (2 * trips), Release);
    }
    // Rank 0 is done when the line has come back.
    if me == 0 {
        until(0);
    }
}

/// A barrier of two: both flags in one line, a store, a spin.
#[inline(always)]
pub fn pair_barrier(board: &Board, me: usize, epoch: &mut u64) {
    *epoch += 1;
    board.flags.0[me].store(*epoch, Release);
    while board.flags.0[1 - me].load(Acquire) < *epoch {}
}

/// A barrier of `n`: one counter, the last to come stores the epoch, all others yield at once.
#[inline(always)]
pub fn central_barrier(board: &Board, n: usize, epoch: &mut u64) {
    *epoch += 1;
    if board.count.0.fetch_add(1, AcqRel) + 1 == n as u64 {
        board.count.0.store(0, Relaxed);
        board.epoch.0.store(*epoch, Release);
    } else {
        while board.epoch.0.load(Acquire) < *epoch {
            std::thread::yield_now();
        }
    }
}

/// Sleeps in the kernel until [`wake`] is called with `turn`, one more than the last.
pub fn sleep(board: &Board, turn: u32) {
    let bell = &board.bell.0;
    while bell.load(Acquire) != turn {
        // Whatever it returns, the loop looks again.
        let _ = futex::wait(bell, futex::Flags::empty(), turn - 1, None);
    }
}

/// Wakes all who sleep for `turn`.
pub fn wake(board: &Board, turn: u32) {
    board.bell.0.store(turn, Release);
    // It fails for a bad address only.
    let _ = futex::wake(&board.bell.0, futex::Flags::empty(), i32::MAX as u32);
}

/// A mutex of three states over a futex, for processes, and the count that it guards.
#[repr(C, align(64))]
pub struct Mutex {
    /// 0: free, 1: held, 2: held, and somebody may sleep.
    state: AtomicU32,
    count: UnsafeCell<u64>,
}

impl Mutex {
    /// Collective: one in rank 0's segment.
    pub fn new(job: &Job) -> partage::Result<&Mutex> {
        let mutexes = Everywhere::<Mutex>::new(job)?;
        // SAFETY: an atomic, and a cell that it guards.
        Ok(unsafe { mutexes.on(Rank(0)) })
    }

    /// Counts, holding it.
    #[inline(always)]
    pub fn count(&self) {
        if self.state.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.wait();
        }
        // SAFETY: who holds it has the count alone.
        unsafe { *self.count.get() = black_box(*self.count.get()) + 1 };
        if self.state.swap(0, Release) == 2 {
            self.wake();
        }
    }

    #[cold]
    fn wait(&self) {
        while self.state.swap(2, Acquire) != 0 {
            // Whatever it returns, the loop looks again.
            let _ = futex::wait(&self.state, futex::Flags::empty(), 2, None);
        }
    }

    #[cold]
    fn wake(&self) {
        // It fails for a bad address only.
        let _ = futex::wake(&self.state, futex::Flags::empty(), 1);
    }
}

/// Slots of a ring.
const SLOTS: u64 = 1024;
/// The receiver says how far it is every so many slots.
const REPORT: u64 = 64;

/// Messages from one rank to one other.
#[repr(C)]
struct Ring {
    slots: [Slot; SLOTS as usize],
    /// The number of the last message that the receiver has taken, as far as it has said.
    taken: Line<AtomicU64>,
}

/// A message of seven words in a cache line.
#[repr(C, align(64))]
struct Slot {
    /// Of the message that lies here: 1 for the first of the ring. Stored last, by a release, and loaded first.
    number: AtomicU64,
    words: UnsafeCell<[u64; 7]>,
}

/// A rank's ends of two rings: one to another rank, and one from it. Where they wait they call `wait`, again and again.
///
/// A loop has them in a variable of its own, that is in registers: one store elsewhere between those of two messages, such
/// as that of a number in memory, makes a stream four times slower.
pub struct Rings<'j> {
    into: &'j Ring,
    from: &'j Ring,
    sent: u64,
    received: u64,
    /// The last message for which there is room, as far as is known.
    room: u64,
}

impl<'j> Rings<'j> {
    /// Collective: with `peer`, which names this rank. They lie in their receivers' segments.
    pub fn new(job: &'j Job, peer: Rank) -> partage::Result<Rings<'j>> {
        let rings = Everywhere::<Ring>::new(job)?;
        // SAFETY: a ring consists of atomics and of words that they guard, as `send` and `receive` say.
        let [into, from] = [peer, job.rank()].map(|receiver| unsafe { rings.on(receiver) });
        Ok(Rings { into, from, sent: 0, received: 0, room: SLOTS })
    }

    /// One message.
    #[inline(always)]
    pub fn send(&mut self, words: [u64; 7], wait: impl Fn()) {
        self.sent += 1;
        while self.room < self.sent {
            wait();
            self.room = self.into.taken.0.load(Acquire) + SLOTS;
        }
        let slot = &self.into.slots[(self.sent % SLOTS) as usize];
        // SAFETY: only this end writes here. The receiver has said that it has read what lay here (acquired above), and
        // reads what lies here now when it has seen the number.
        unsafe { slot.words.get().write(words) };
        slot.number.store(self.sent, Release);
    }

    /// The next message.
    #[inline(always)]
    pub fn receive(&mut self, wait: impl Fn()) -> [u64; 7] {
        self.received += 1;
        let slot = &self.from.slots[(self.received % SLOTS) as usize];
        while slot.number.load(Acquire) != self.received {
            wait();
        }
        // SAFETY: the sender stored the number after the words (acquired above), and writes here again when it has seen
        // that this message was taken, which is said after this.
        let words = unsafe { slot.words.get().read() };
        if self.received.is_multiple_of(REPORT) {
            self.report();
        }
        words
    }

    /// Says how far this end is, as [`all_taken`](Self::all_taken) of the other needs it after the last message.
    pub fn report(&self) {
        self.from.taken.0.store(self.received, Release);
    }

    /// Waits until the other end has taken all messages.
    pub fn all_taken(&self, wait: impl Fn()) {
        while self.into.taken.0.load(Acquire) < self.sent {
            wait();
        }
    }
}

/// Bytes that go from one rank to another, and a flag in a line of its own.
pub struct Flagged<'j> {
    into: &'j Parcel,
    from: &'j Parcel,
}

#[repr(C)]
struct Parcel {
    flag: Line<AtomicU64>,
    bytes: Line<UnsafeCell<[u8; 64 << 10]>>,
}

impl<'j> Flagged<'j> {
    /// Collective: with `peer`, which names this rank.
    pub fn new(job: &'j Job, peer: Rank) -> partage::Result<Flagged<'j>> {
        let parcels = Everywhere::<Parcel>::new(job)?;
        // SAFETY: an atomic, and bytes that it guards, as `send` and `receive` say.
        let [into, from] = [peer, job.rank()].map(|receiver| unsafe { parcels.on(receiver) });
        Ok(Flagged { into, from })
    }

    /// The same over memory of two processes that are no ranks: what goes to the other, and what comes from it.
    ///
    /// # Safety
    /// Both are lines of zeroed memory, long enough for a parcel, mapped for ever, and used through such ends only.
    pub unsafe fn at(into: *mut u8, from: *mut u8) -> Flagged<'j> {
        // SAFETY: passed on to the caller: an atomic, and bytes that it guards.
        let [into, from] = [into, from].map(|p| unsafe { &*p.cast::<Parcel>() });
        Flagged { into, from }
    }

    /// Copies, then sets the flag. The other has read what was there before: it has sent since.
    #[inline(always)]
    pub fn send(&self, src: &[u8], turn: u64) {
        assert!(src.len() <= 64 << 10);
        // SAFETY: inside the bytes; only this end writes them, and the other reads them when it has seen the flag.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.into.bytes.0.get().cast(), src.len()) };
        self.into.flag.0.store(turn, Release);
    }

    /// Waits for the flag, then copies as many bytes as there is room for.
    #[inline(always)]
    pub fn receive(&self, dst: &mut [u8], turn: u64) {
        assert!(dst.len() <= 64 << 10);
        while self.from.flag.0.load(Acquire) != turn {}
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.from.bytes.0.get().cast(), dst.as_mut_ptr(), dst.len()) };
    }
}

/// A token that goes round all ranks: a word of each, which its left neighbour writes.
pub struct Tokens<'j> {
    mine: &'j Line<AtomicU32>,
    right: &'j Line<AtomicU32>,
}

impl<'j> Tokens<'j> {
    /// Collective: with the rank on the right.
    pub fn new(job: &'j Job, right: Rank) -> partage::Result<Tokens<'j>> {
        let words = Everywhere::<Line<AtomicU32>>::new(job)?;
        // SAFETY: an atomic.
        let [mine, right] = [job.rank(), right].map(|rank| unsafe { words.on(rank) });
        Ok(Tokens { mine, right })
    }

    /// It goes round once, begun by the first; who waits sleeps in the kernel, or yields.
    #[inline(always)]
    pub fn go_round(&self, first: bool, turn: u32, sleeps: bool) {
        if first {
            self.pass(turn, sleeps);
        }
        loop {
            let now = self.mine.0.load(Acquire);
            match sleeps {
                _ if now == turn => break,
                // Whatever it returns, the loop looks again.
                true => _ = futex::wait(&self.mine.0, futex::Flags::empty(), now, None),
                false => std::thread::yield_now(),
            }
        }
        if !first {
            self.pass(turn, sleeps);
        }
    }

    #[inline(always)]
    fn pass(&self, turn: u32, sleeps: bool) {
        self.right.0.store(turn, Release);
        if sleeps {
            // It fails for a bad address only.
            let _ = futex::wake(&self.right.0, futex::Flags::empty(), 1);
        }
    }
}

/// Places in segments as `rank << 44 | offset`, and the bases to find them by: a global pointer by hand.
pub struct Places {
    targets: Vec<u64>,
    bases: Vec<*mut u8>,
    end: u64,
}

impl Places {
    /// For pointers into `block`, which has `len` values on every rank.
    pub fn new(job: &Job, block: GlobalPtr<u64>, len: usize, targets: &[GlobalPtr<u64>]) -> Places {
        let offset = bytemuck::cast::<_, u64>(block) & OFFSET;
        let base = |rank| raw(job, block.on(rank).cast(), 8 * len).wrapping_sub(offset as usize);
        let places = Places {
            targets: bytemuck::cast_slice(targets).to_vec(),
            bases: job.ranks().map(base).collect(),
            end: offset + 8 * len as u64,
        };
        assert!(places.targets.iter().all(|t| (offset..places.end).contains(&(t & OFFSET)) && t % 8 == 0));
        places
    }

    /// Writes `value` to all.
    #[inline(never)]
    pub fn put(&self, value: u64) {
        for &target in &self.targets {
            // SAFETY: `new` has seen that all targets are aligned and in the block; no other rank uses it meanwhile.
            unsafe { self.locate(target).write_volatile(value) };
        }
    }

    /// Adds up all.
    #[inline(never)]
    pub fn get(&self) -> u64 {
        // SAFETY: as for `put`.
        self.targets
            .iter()
            .fold(0, |sum: u64, &target| sum.wrapping_add(unsafe { self.locate(target).read_volatile() }))
    }

    #[inline(always)]
    fn locate(&self, target: u64) -> *mut u64 {
        let (rank, offset) = ((target >> 44) as usize, target & OFFSET);
        assert!(rank < self.bases.len() && offset < self.end);
        self.bases[rank].wrapping_add(offset as usize).cast()
    }
}

const OFFSET: u64 = (1 << 44) - 1;

/// A block-cyclic array by hand, in blocks of 8: bases, arithmetic and a check.
pub struct Cyclic {
    bases: Vec<*const u64>,
    len: usize,
}

impl Cyclic {
    /// Over `block`, which has the parts of `len` values on every rank.
    pub fn new(job: &Job, block: GlobalPtr<u64>, len: usize) -> Cyclic {
        assert!(len.is_multiple_of(8 * job.size()));
        let part = |r| raw(job, block.on(r).cast(), 8 * len / job.size()).cast_const().cast();
        Cyclic { bases: job.ranks().map(part).collect(), len }
    }

    /// Adds up the elements of these indices, for any number of ranks.
    #[inline(never)]
    pub fn get(&self, indices: &[usize]) -> u64 {
        let ranks = self.bases.len();
        self.sum(indices, |i| ((i / 8) % ranks, i / (8 * ranks) * 8 + i % 8))
    }

    /// The same for numbers of ranks that are powers of two: without a division.
    #[inline(never)]
    pub fn get_by_shifts(&self, indices: &[usize]) -> u64 {
        let shift = self.bases.len().ilog2();
        assert!(self.bases.len().is_power_of_two());
        self.sum(indices, |i| ((i >> 3) & ((1 << shift) - 1), ((i >> (3 + shift)) << 3) | (i & 7)))
    }

    #[inline(always)]
    fn sum(&self, indices: &[usize], locate: impl Fn(usize) -> (usize, usize)) -> u64 {
        indices.iter().fold(0, |sum: u64, &i| {
            assert!(i < self.len);
            let (rank, k) = locate(i);
            // SAFETY: an element of the array, which no rank writes to meanwhile.
            sum.wrapping_add(unsafe { self.bases[rank].add(k).read_volatile() })
        })
    }
}

/// A table that lies in two parts, by hand: addresses and arithmetic, no check.
pub struct Table {
    parts: Vec<*mut u64>,
    /// An index, shifted by this, is a rank.
    shift: u32,
    len: usize,
}

impl Table {
    /// Collective: over the memory of `array`, whose parts have a power of two of words, and which outlives it.
    pub fn new(job: &Job, array: &mut SharedArray<u64>) -> Table {
        let len = array.len();
        let part = array.local_len();
        assert!(part.is_power_of_two() && part * job.size() == len && len.is_power_of_two());
        let parts = job.ranks().map(|r| raw_part(array, r)).collect();
        Table { parts, shift: part.ilog2(), len }
    }

    /// So many updates from a number of the stream on, by loads and stores; the last number.
    #[inline(never)]
    pub fn plain(&self, stream: u64, times: usize) -> u64 {
        self.update(stream, times, |p, x| {
            // SAFETY: a word of the array (`locate`), outside of phases: there are no references to it. Others may write
            // it at the same time, as is measured; volatile accesses stay whole instructions.
            unsafe { p.write_volatile(p.read_volatile() ^ x) }
        })
    }

    /// The same by atomics.
    #[inline(never)]
    pub fn atomic(&self, stream: u64, times: usize) -> u64 {
        self.update(stream, times, |p, x| {
            // SAFETY: as above, and aligned.
            unsafe { AtomicU64::from_ptr(p) }.fetch_xor(x, AcqRel);
        })
    }

    #[inline(always)]
    fn update(&self, stream: u64, times: usize, update: impl Fn(*mut u64, u64)) -> u64 {
        let (mask, inside) = (self.len - 1, (1 << self.shift) - 1);
        (0..times).fold(stream, |x, _| {
            let x = super::atomics::next(x);
            let i = x as usize & mask;
            update(self.parts[i >> self.shift].wrapping_add(i & inside), x);
            x
        })
    }
}

/// The CPU's addition to a word, `times` times; the sum of what it was.
#[inline(never)]
pub fn fetch_add(job: &Job, word: GlobalPtr<u64>, times: usize) -> u64 {
    let word = raw(job, word.cast(), 8).cast::<u64>();
    assert!(word.is_aligned());
    // SAFETY: aligned and in a segment, into which no reference exists; used as an atomic only.
    let word = unsafe { AtomicU64::from_ptr(word) };
    (0..times).fold(0, |sum: u64, _| sum.wrapping_add(word.fetch_add(1, AcqRel)))
}

/// Addresses of words.
pub struct Stores(Vec<*mut u64>);

impl Stores {
    /// Of these words.
    pub fn new(job: &Job, places: &[GlobalPtr<u64>]) -> Stores {
        let stores = Stores(places.iter().map(|p| raw(job, p.cast(), 8).cast()).collect());
        assert!(stores.0.iter().all(|p| p.is_aligned()));
        stores
    }

    /// Stores a value to each.
    #[inline(never)]
    pub fn put(&self, src: &[u64]) {
        for (&to, value) in self.0.iter().zip(src) {
            // SAFETY: a word of a segment, aligned (`new`), which no other rank uses meanwhile.
            unsafe { to.write_volatile(*value) };
        }
    }
}

/// `malloc` and `free` of a zeroed block of so many bytes, `times` times.
#[inline(never)]
pub fn malloc_free(len: usize, times: usize) {
    for _ in 0..times {
        // SAFETY: what was allocated is freed, once, and written to in between, inside.
        unsafe {
            let p = libc::malloc(black_box(len));
            libc::memset(p, 0, len);
            libc::free(black_box(p));
        }
    }
}

/// Copies `src` to `dst`, `times` times.
#[inline(never)]
pub fn copy_out(job: &Job, dst: GlobalPtr<u8>, src: &[u8], times: usize) {
    let dst = raw(job, dst, src.len());
    for _ in 0..times {
        // SAFETY: `dst` is as long as `src` and in a segment, into which no reference exists; no other rank uses it
        // meanwhile.
        unsafe { libc::memcpy(black_box(dst).cast(), black_box(src.as_ptr()).cast(), src.len()) };
    }
}

/// Copies from `src` to `dst`, `times` times.
#[inline(never)]
pub fn copy_in(job: &Job, dst: &mut [u8], src: GlobalPtr<u8>, times: usize) {
    let src = raw(job, src, dst.len());
    for _ in 0..times {
        // SAFETY: as for `copy_out`, in the other direction.
        unsafe { libc::memcpy(black_box(dst.as_mut_ptr()).cast(), black_box(src).cast(), dst.len()) };
    }
}

/// Copies runs of `RUN` values, which follow each other in `src`, to places `STRIDE` values apart, `times` times. Run and
/// stride are known to the compiler.
#[inline(never)]
pub fn copy_runs<const RUN: usize, const STRIDE: usize>(job: &Job, dst: GlobalPtr<u64>, src: &[u64], times: usize) {
    let runs = src.len() / RUN;
    let dst = raw(job, dst.cast(), 8 * STRIDE * runs).cast::<u64>();
    for _ in 0..times {
        let (dst, src) = (black_box(dst), black_box(src.as_ptr()));
        for i in 0..runs {
            // SAFETY: as for `copy_out`, for each run, which lies inside both.
            unsafe { std::ptr::copy_nonoverlapping(src.add(i * RUN), dst.add(i * STRIDE), RUN) };
        }
    }
}

/// Collective: where a rank's part of an array is, for code that uses it outside of phases.
pub fn raw_part(array: &mut SharedArray<u64>, rank: Rank) -> *mut u64 {
    let address = |part: &[u64]| std::ptr::with_exposed_provenance_mut(part.as_ptr().expose_provenance());
    array.freeze(|view| address(view.part(rank).expect("on this node")))
}

/// The address of `len` bytes, all of which lie in one segment.
pub fn raw(job: &Job, p: GlobalPtr<u8>, len: usize) -> *mut u8 {
    // SAFETY: only looked up here; who uses the address says why it may.
    let ends = unsafe { (p.as_raw(job), p.add(len - 1).as_raw(job)) };
    ends.0.filter(|_| ends.1.is_some()).expect("a place on this node")
}
