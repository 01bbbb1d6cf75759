//! What reviews found and tests had missed: each case is a program that once hung, or did things in the wrong order.

use crate::{Case, refusal};
use partage::am::{Reply, Request};
use partage::prelude::*;
use partage::signal::Flavor;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// All of them.
pub const CASES: [Case; 8] = [
    ("calls made while an object is in use do not wait for it", in_use),
    ("results that nobody has read stop nothing else", unread_results),
    ("a called function sends beside results that nobody has read", sends_beside_results),
    ("a long call is not overtaken", long_before_short),
    ("a rank that does not read its answers stops nobody else's", slow_reader),
    ("threads that always have more to do do not keep their rank", busy_threads),
    ("nothing of a boolean semaphore is waited for, and had", nothing_of_a_boolean),
    ("collectives of parts that differ are refused by all ranks", parts_that_differ),
];

/// Two ranks that empty their objects into each other's, from inside.
fn in_use(job: &Job) {
    const EACH: u64 = 3000;
    // What it gives away, and what it is given: others may begin before this one does.
    let all = job.dist(((0..EACH).collect::<Vec<_>>(), vec![]));
    let to = job.neighbor(1);
    all.with(|mine| mine.0.drain(..).for_each(|x| all.tell(to, |theirs, x| theirs.1.push(x), x)));
    job.quiet();
    job.barrier();
    let mut came = all.with(|mine| std::mem::take(&mut mine.1));
    came.sort();
    assert_eq!(came, (0..EACH).collect::<Vec<_>>());
    job.barrier();
}

/// Everybody holds the events of many calls while others ask it for something long.
fn unread_results(job: &Job) {
    let (right, left) = (job.neighbor(1), job.neighbor(-1));
    let open: Vec<_> = (0..300u64).map(|n| job.rpc(right, |_, n: u64| vec![n; 12], n)).collect();
    let long = job.rpc(left, |_, len: usize| vec![7u8; len], 1 << 20).wait();
    assert!(long.len() == 1 << 20 && long.iter().all(|&b| b == 7));
    let word = job.alloc_all::<u64>(100).unwrap();
    word.on(right).put_slice(job, &[5; 100]);
    for (n, event) in open.into_iter().enumerate() {
        assert_eq!(event.wait(), [n as u64; 12]);
    }
    job.barrier();
    let mut back = [0; 100];
    word.get_slice(job, &mut back);
    assert_eq!(back, [5; 100]);
    job.barrier();
    job.free_all(word);
}

static ASK: Request<[GlobalPtr<u64>; 1]> = Request::new(|token, _, count, _| token.reply(&ANSWER, count, &[1; 200]));
static ANSWER: Reply<[GlobalPtr<u64>; 1]> = Reply::new(|target, _, [count], payload| {
    assert_eq!(payload, [1; 200]);
    target.at(count).fetch_add(1);
});

fn sends_beside_results(job: &Job) {
    job.register_handlers(&[&ASK, &ANSWER]);
    let count = job.alloc_all::<u64>(1).unwrap();
    fn busy(job: &Job, (to, count): (Rank, GlobalPtr<u64>)) {
        (0..60).for_each(|n: u64| drop(job.rpc(to, |_, n: u64| vec![n; 25], n)));
        (0..600).for_each(|_| job.am(to, &ASK, [count], &[]));
    }
    let right = job.neighbor(1);
    job.rpc(right, busy, (job.rank(), count.on(right))).wait();
    job.quiet();
    job.barrier();
    job.wait_until(|| count.at(job).load() == 600);
    job.barrier();
    job.free_all(count);
}

/// While a long call waits for room, a function runs here that calls the same rank: they come in the order in which they
/// were made.
fn long_before_short(job: &Job) {
    thread_local! {
        static SEEN: RefCell<Vec<u32>> = const { RefCell::new(vec![]) };
        static MADE: RefCell<Vec<u32>> = const { RefCell::new(vec![]) };
    }
    fn see(_: &Job, (n, _): (u32, Vec<u8>)) {
        SEEN.with_borrow_mut(|seen| seen.push(n));
    }
    fn short(job: &Job, to: Rank) {
        MADE.with_borrow_mut(|made| made.push(2));
        job.tell(to, see, (2, vec![]));
    }
    SEEN.take();
    MADE.take();
    job.barrier();
    let to = job.neighbor(1);
    job.tell(job.rank(), short, to);
    MADE.with_borrow_mut(|made| made.push(1));
    job.tell(to, see, (1, vec![0; 2 << 20]));
    job.quiet();
    job.barrier();
    let made = job.rpc(job.neighbor(-1), |_, ()| MADE.with_borrow(Vec::clone), ()).wait();
    assert_eq!(SEEN.take(), made);
    job.barrier();
}

/// Rank 2 asks for more answers than there are buffers and then only looks at its memory; rank 0 gets its answer all the
/// same, and says so there.
fn slow_reader(job: &Job) {
    // Without a thread for progress nobody would serve rank 2's process while it looks.
    if job.size() < 3 || std::env::var("PARTAGE_PROGRESS").is_ok_and(|who| who == "none") {
        return;
    }
    job.register_handlers(&[&ASK, &ANSWER]);
    let (count, go_on) = (job.alloc_all::<u64>(1).unwrap(), job.alloc_all::<u64>(1).unwrap());
    job.barrier();
    match job.rank() {
        Rank(2) => {
            (0..60).for_each(|_| job.am(Rank(1), &ASK, [count], &[]));
            go_on.on(Rank(0)).put(job, 1);
            while go_on.get(job) == 0 {
                std::hint::spin_loop();
            }
        }
        Rank(0) => {
            job.wait_until(|| go_on.get(job) == 1);
            job.am(Rank(1), &ASK, [count], &[]);
            job.wait_until(|| count.at(job).load() == 1);
            go_on.on(Rank(2)).put(job, 1);
        }
        _ => {}
    }
    job.quiet();
    job.barrier();
    assert_eq!(count.get(job), [1, 0, 60].get(job.rank().index()).copied().unwrap_or(0));
    job.barrier();
    job.free_all(count);
    job.free_all(go_on);
}

static ADD: Request<GlobalPtr<u64>> = Request::new(|_, target, count, _| _ = target.at(count).fetch_add(1));

/// Three threads of each rank have it do things, one after the other; the rank waits for others meanwhile. Every second thing is a message, which is the rank's to
/// do wherever it goes: threads that add to mapped memory wait for nobody, and are only a load (six of them on two cores keep ranks
/// from their cores for 30 ms at each barrier).
fn busy_threads(job: &Job) {
    job.register_handlers(&[&ADD]);
    let count = job.alloc_all::<u64>(1).unwrap();
    let to = job.neighbor(1);
    let (there, stop) = (count.on(to), AtomicBool::new(false));
    std::thread::scope(|s| {
        let adds = |remote: partage::remote::Remote| {
            let mut made = 0;
            while !stop.load(Relaxed) {
                remote.am(to, &ADD, there, &[]);
                remote.fetch_add(there, 1);
                made += 2;
            }
            made
        };
        let threads: Vec<_> = (0..3).map(|_| job.remote()).map(|remote| s.spawn(move || adds(remote))).collect();
        (0..30).for_each(|_| job.barrier());
        stop.store(true, Relaxed);
        job.wait_until(|| threads.iter().all(|thread| thread.is_finished()));
        let made: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        job.quiet();
        job.barrier();
        assert_eq!(there.get(job), made);
    });
    job.barrier();
    job.free_all(count);
}

fn nothing_of_a_boolean(job: &Job) {
    for boolean in [false, true] {
        let s = job.semaphore_with(Flavor { boolean, ..Default::default() }).unwrap();
        s.wait_n(0);
        job.post(s.signal());
        job.quiet();
        assert!(s.try_wait_n(0) && s.value() == 1, "{}: nothing was taken", job.rank());
        s.wait();
    }
}

/// A rank looks at the parts of others, too: it would touch them beyond their ends.
fn parts_that_differ(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let root = TeamRank(n as u32 - 1);
    let even = job.array::<u32>(Layout::per_rank(2)).unwrap();
    let mut whole = job.array::<u32>(Layout::on(n - 1, 2 * n)).unwrap();
    let mut short = job.array::<u32>(Layout::on(n - 1, 2 * n - 1)).unwrap();
    let mut to = job.array::<u32>(Layout::per_rank(2)).unwrap();
    let missing = format!("has {} elements, and {} pass", 2 * n - 1, 2 * n);
    let said = refusal("scatter", || job.scatter(&short).root(root).to(&mut to).run());
    assert!(said.starts_with(&format!("{me}: scatter: the source")) && said.contains(&missing), "{said}");
    let said = refusal("gather", || job.gather(&even).root(root).to(&mut short).run());
    assert!(said.contains(&missing), "{said}");
    // The last has fewer than the others.
    let mut uneven = job.array::<u32>(Layout::block_cyclic(3 * n - 1, 3)).unwrap();
    if n > 1 {
        let said = refusal("broadcast", || job.broadcast(&mut uneven).run());
        assert!(said.starts_with(&format!("{me}: broadcast: in place, rank ")), "{said}");
        let from = job.array::<u32>(Layout::on(0, 3)).unwrap();
        let said = refusal("to", || job.broadcast(&from).to(&mut uneven).run());
        assert!(said.starts_with(&format!("{me}: broadcast: the ")), "{said}");
        let said = refusal("slice", || job.gather(uneven.slice(2..)).root(root).to(&mut whole).run());
        assert!(said.starts_with(&format!("{me}: gather: ")), "{said}");
    }
    job.gather(&even).root(root).to(&mut whole).run();
    job.barrier();
}
