use super::*;
use crate::record::{Doing, Site};
use crate::shm::segment::{self, Mapping};
use crate::sync::{AtomicU64, be_light, can_be_light, publish};
use crate::topology;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// What a sleeper and who wakes it share; zeros at first.
#[derive(Default)]
#[repr(C)]
struct Both {
    bell: Apart<Bell>,
    /// The round that has begun.
    round: Apart<AtomicU64>,
    /// What the sleeper waits for: the round.
    made: Apart<AtomicU64>,
    /// The round in which who wakes it has done so, or has seen that it need not.
    rung: Apart<AtomicU64>,
    /// Of who wakes it: 1, it can be light; 2, it cannot. Then of both, the same.
    light: Apart<AtomicU64>,
    sleepers: Apart<Sleepers>,
    record: Apart<Record>,
    abort: Apart<AtomicU32>,
}

/// Where cores are shared most waits begin with a turn; one of eight does not, and none where somebody may answer at once, or a foreign load was met.
#[test]
fn turns_are_taken_where_cores_are_shared() {
    let (bell, sleepers, record, abort) = Default::default();
    let waiter = |cores| Waiter::new(&bell, &sleepers, &record, &abort, cores);
    let taken = |waiter: &Waiter<'_>| (0..64).filter(|_| waiter.after_a_turn(|| true)).count();
    assert_eq!(taken(&waiter(Cores::Own)), 0);
    let shared = waiter(Cores::Shared);
    // Fewer if something else ran for long.
    let some = taken(&shared);
    assert!((1..=56).contains(&some), "{some}");
    assert!((0..64).all(|_| !shared.after_a_turn(|| false)));
    let speaks = waiter(Cores::Shared);
    speaks.spoke();
    assert_eq!(taken(&speaks), 0);
    let beside_a_load = waiter(Cores::Shared);
    beside_a_load.no_yield_before.set(u64::MAX);
    assert_eq!(taken(&beside_a_load), 0);
}

/// What it looked at while it slept has panicked, and that was caught: it does not sleep, nor wait.
#[test]
fn a_look_that_panics() {
    let (bell, sleepers, record, abort) = Default::default();
    for cores in [Cores::Own, Cores::Shared] {
        let waiter = Waiter::new(&bell, &sleepers, &record, &abort, cores);
        let site = Site { call: "waits", at: std::panic::Location::caller() };
        let look = || match record.read() {
            Some(Doing::Waiting { .. }) => std::panic::resume_unwind(Box::new("enough")),
            _ => Step::Idle,
        };
        let waits = std::panic::AssertUnwindSafe(|| waiter.until(|| site, look));
        assert!(std::panic::catch_unwind(waits).is_err());
        assert_eq!((sleepers.count.load(Relaxed), bell.0.word().load(Relaxed)), (0, 0));
        assert_eq!(record.read(), Some(Doing::Computing));
    }
}

const OVER: u64 = u64::MAX;
const ROUNDS: u64 = 50_000;
/// How long a sleeper hesitates at most.
const LONGEST: u64 = 400;

impl Both {
    /// Goes to sleep in each round without patience. How many wakes were lost: the waker has come and gone, without ringing, and
    /// this one slept nevertheless.
    fn sleeps(&self) -> u64 {
        on_core(0);
        let waiter = Waiter::new(&self.bell.0, &self.sleepers.0, &self.record.0, &self.abort.0, Cores::Own);
        let waiter = waiter.looking_up(20_000_000);
        let (lost, end) = (Cell::new(0), Instant::now() + Duration::from_secs(3));
        // How long it hesitates: a little longer if it came too early to meet the waker, a little less if too late.
        let mut hesitates = 0u64;
        for n in (1..=ROUNDS).take_while(|_| Instant::now() < end) {
            self.round.0.store(n, Release);
            hesitate(hesitates);
            let looks = Cell::new(0);
            let look = || {
                // Each second look is the one after a sleep.
                looks.set(looks.get() + 1);
                let (came, rings) = (self.rung.0.load(Acquire) >= n, self.bell.0.0.word().load(Relaxed) == 0);
                if looks.get() % 2 == 0 && came && !rings {
                    lost.set(lost.get() + 1);
                }
                Step::done(self.made.0.load(Acquire) >= n)
            };
            assert_eq!(waiter.park(&|say| say(&Site::here("test")), &look), Ok(Step::Done));
            let by = n % 3;
            hesitates = if looks.get() > 1 { (hesitates + by).min(LONGEST) } else { hesitates.saturating_sub(by) };
            wait_for(|| self.rung.0.load(Acquire) >= n);
        }
        self.round.0.store(OVER, Release);
        assert_eq!(self.sleepers.0.count.load(Relaxed), 0);
        lost.get()
    }

    fn wakes(&self) {
        on_core(1);
        for n in 1.. {
            // The bell's line is here before it matters: a look at it takes no time.
            wait_for(|| self.bell.0.0.word().load(Relaxed) <= 1 && self.round.0.load(Acquire) >= n);
            if self.round.0.load(Acquire) == OVER {
                return;
            }
            hesitate(LONGEST / 4);
            publish(&self.made.0, n);
            self.bell.0.ring_after_fence();
            self.rung.0.store(n, Release);
        }
    }

    /// Both say whether they can be light, and are if both can.
    fn agree(&self, decides: bool) {
        let can = can_be_light();
        if decides {
            wait_for(|| self.light.0.load(Acquire) != 0);
            self.light.0.store(if can && self.light.0.load(Relaxed) == 1 { 3 } else { 4 }, Release);
        } else {
            self.light.0.store(if can { 1 } else { 2 }, Release);
            wait_for(|| self.light.0.load(Acquire) > 2);
        }
        be_light(self.light.0.load(Relaxed) == 3);
    }
}

/// Each has a core, where there are two: who is woken comes to its waker's else, and they never meet.
fn on_core(i: usize) {
    let cores = topology::allowed_cores();
    topology::allow(&cores[i.min(cores.len() - 1)..][..1]);
}

fn hesitate(n: u64) {
    (0..n).for_each(|i| _ = std::hint::black_box(i));
}

/// Spins, and yields at times: the other may need this core.
fn wait_for(done: impl Fn() -> bool) {
    while !(0..1000).any(|_| done()) {
        std::thread::yield_now();
    }
}

#[test]
fn who_is_next_stays_where_that_has_not_been_in_vain() {
    let (bell, sleepers, record, abort) = Default::default();
    let waiter = |cores| Waiter::new(&bell, &sleepers, &record, &abort, cores);
    let turn = |waiter: &Waiter<'_>| waiter.staying.turn.set(STAY_MOST_US * waiter.ticks_per_us);
    let [own, shared] = [Cores::Own, Cores::Shared].map(waiter);
    [&own, &shared].into_iter().for_each(turn);
    let looks = Cell::new(0);
    let after = |many| {
        looks.set(0);
        let looks = &looks;
        move || looks.replace(looks.get() + 1) == many
    };
    assert!(!own.stays(after(0)) && looks.get() == 0);
    assert!(shared.stays(after(0)) && shared.stays(after(0)) && looks.get() == 1);
    // In vain: so many are left out until the next.
    let gaps = [2, 3, 5, 9, 17, 33, 65, 65];
    for gap in gaps {
        shared.turns.set(TURNS);
        assert!(!shared.stays(after(u32::MAX)) && looks.get() > 0);
        assert!((1..gap).all(|_| !shared.stays(after(0)) && looks.get() == 0));
    }
    // Not so any more when it was right once.
    shared.turns.set(TURNS);
    assert!(shared.stays(after(0)) && shared.stays(after(0)));
    // As long as the last turn took.
    shared.staying.turn.set(0);
    assert!(!shared.stays(after(1)) && looks.get() == 1);
    // One of eight serves others, and none looks on beside a foreign load.
    turn(&shared);
    shared.staying.left.set(0);
    shared.turns.set(TURNS);
    assert_eq!((0..8).filter(|_| shared.stays(after(0))).count(), 7);
    shared.no_yield_before.set(u64::MAX);
    assert!((0..8).all(|_| !shared.stays(after(0)) && looks.get() == 0));
}

#[test]
fn no_wake_of_a_thread_is_lost() {
    let both = Both::default();
    let lost = std::thread::scope(|s| {
        let waker = s.spawn(|| {
            both.agree(false);
            both.wakes();
        });
        both.agree(true);
        let sleeper = s.spawn(|| both.sleeps());
        waker.join().unwrap();
        sleeper.join().unwrap()
    });
    assert_eq!(lost, 0, "wakes were lost");
}

#[test]
fn who_speaks_looks_on_now_and_then_and_with_who_looks() {
    let (me, other) = (Both::default(), Bell::default());
    let waiter = Waiter::new(&me.bell.0, &me.sleepers.0, &me.record.0, &me.abort.0, Cores::Shared);
    let says = |bell: &Bell| bell.0.word().load(Relaxed);
    assert!(!(0..1000).any(|_| waiter.meets(1)), "nothing was said");
    let waits = || {
        let meets = |_: &u32| {
            waiter.spoke();
            waiter.meets(ticks())
        };
        (1..1000).find(meets)
    };
    // In vain: half as often each time.
    for every in [MEET_OFTEN, 2 * MEET_OFTEN, 4 * MEET_OFTEN, MEET_SELDOM, MEET_SELDOM] {
        assert_eq!(waits(), Some(every));
        assert_eq!(waiter.meet(&|| Step::Idle), Step::Idle);
        assert_eq!(says(&me.bell.0), 0);
    }
    // What is said to who does not look changes nothing.
    other.speak_after_fence();
    assert!(!waiter.meets(1));
    // With who looks at once, and as long as that goes well.
    other.0.word().store(LOOKS, Relaxed);
    for _ in 0..3 {
        other.speak_after_fence();
        assert!(waiter.meets(ticks()));
        assert_eq!(waiter.meet(&|| Step::Busy), Step::Busy);
        assert_eq!(says(&me.bell.0), LOOKS);
    }
    // Not for ever.
    other.speak_after_fence();
    assert!(!waiter.meets(ticks() + (TOGETHER_US + 1) * waiter.ticks_per_us));
    assert_eq!(says(&me.bell.0), 0);
    assert_eq!(waits(), Some(MEET_OFTEN - 1));
    // Who sleeps does not look.
    assert_eq!(waiter.meet(&|| Step::Busy), Step::Busy);
    assert_eq!(waiter.park(&|say| say(&Site::here("test")), &|| Step::Done), Ok(Step::Done));
    assert_eq!((says(&me.bell.0), waiter.meeting.since.get()), (0, 0));
    assert!(!other.is_parked());
}

const MEMORY: &str = "WAIT_TESTS_MEMORY";

fn map(file: impl AsFd) -> Mapping {
    Mapping::new(file.as_fd(), size_of::<Both>().next_multiple_of(4096), true).unwrap()
}

struct Killed(Child);
impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_wake_of_a_process_is_lost() {
    let (file, _) = segment::create(size_of::<Both>().next_multiple_of(4096) as u64, false).unwrap();
    let map = map(&file);
    // SAFETY: zeroed memory of that size, on pages; all of it is atomics.
    let both: &Both = unsafe { &*map.base().cast() };
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "wait::tests::another_process_wakes", "--nocapture"]);
    other.env(MEMORY, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let mut other = Killed(other.stdout(std::process::Stdio::null()).spawn().unwrap());
    while both.light.0.load(Acquire) == 0 {
        assert!(other.0.try_wait().unwrap().is_none(), "the other process has ended");
        std::thread::yield_now();
    }
    both.agree(true);
    let lost = std::thread::scope(|s| s.spawn(|| both.sleeps()).join().unwrap());
    assert_eq!(lost, 0, "wakes were lost");
    assert!(other.0.wait().unwrap().success());
}

/// What the other process of the test above does; nothing otherwise.
#[test]
fn another_process_wakes() {
    let Ok(path) = std::env::var(MEMORY) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let map = map(std::fs::File::options().read(true).write(true).open(path).unwrap());
    // SAFETY: as above.
    let both: &Both = unsafe { &*map.base().cast() };
    both.agree(false);
    both.wakes();
}
