//! Random processes of random jobs are killed at random moments: the job ends soon, says who it was, and nothing of it
//! is left. `KILLS` says how many, `SEED` which, and `WHEN` at which moment only. Here and over two hosts.

mod common;

use common::*;
use partage::am::{LongRequest, MEDIUM, Reply, Request};
use partage::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A small generator; the ranks draw from it, too.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % n
    }
}

/// What a job does: until it is killed, but for `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    /// In the first milliseconds.
    Start,
    /// While processes find each other.
    Join,
    Barrier,
    Put,
    Asleep,
    Mixed,
    /// In a flood of active messages of all against all, short, medium, long and answered.
    Messages,
    /// In calls of all against all, waited for and not, and calls in calls.
    Calls,
    /// While all flood one rank, which computes.
    Flood,
    /// In puts, gets and atomics that are messages.
    Reference,
    /// In phases, at their edges, and where arrays are made.
    Phases,
    /// In atomics that are started, batches, regions and futures, which are messages.
    Events,
    /// With locks and in waits for them.
    Locks,
    /// In puts that signal, and in waits for signals.
    Signals,
    /// In collectives of every kind, run and started.
    Collectives,
    Exit,
}

const WHEN: [When; 16] = [
    When::Start,
    When::Join,
    When::Barrier,
    When::Put,
    When::Asleep,
    When::Mixed,
    When::Messages,
    When::Calls,
    When::Flood,
    When::Reference,
    When::Phases,
    When::Events,
    When::Locks,
    When::Signals,
    When::Collectives,
    When::Exit,
];

static TAKE: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| _ = target.at(p).fetch_add(1));
static ASK: Request<GlobalPtr<u64>> = Request::new(|token, target, p, payload| {
    target.at(p).fetch_add(1);
    token.reply(&ANSWER, 1, payload);
});
static ANSWER: Reply<u64> = Reply::new(|_, _, _, _| ());
static LAND: LongRequest<GlobalPtr<u64>, u64> = LongRequest::new(|_, target, p, _| _ = target.at(p).fetch_add(1));

fn again(job: &Job, (left, text): (u32, Vec<u8>)) -> Vec<u8> {
    if left > 0 {
        job.tell(job.neighbor(1), |job, args| _ = again(job, args), (left - 1, text.clone()));
    }
    text
}

/// What `Messages` and `Flood` do, some times.
fn messages(job: &Job, random: &mut Random, block: GlobalPtr<u64>, to: Rank, text: &[u8]) {
    let count = block.on(to);
    let longest = if random.below(10) == 0 { MEDIUM } else { 300 };
    let payload = &text[..random.below(longest)];
    match random.below(5) {
        0 | 1 => job.am(to, &TAKE, count, &[]),
        2 => job.am(to, &TAKE, count, payload),
        3 => job.am(to, &ASK, count, payload),
        _ => job.am_long(count.add(8 + random.below(1000)), &[7; 100], &LAND, count),
    }
}

/// One collective, the same on all ranks, and some that are under way meanwhile.
fn collectives(job: &Job, alike: &mut Random, array: &mut SharedArray<u64>, row: &[u64]) {
    let (root, most) = (TeamRank(alike.below(job.size()) as u32), [5, 100, 2000][alike.below(3)]);
    let n = alike.below(most);
    let (mut all, mut other, mut some) = (vec![], vec![0; n], row[..n].to_vec());
    let way = alike.below(6);
    job.scope(|s| {
        drop(job.broadcast(&mut some).root(root).start(s));
        match way {
            0 => job.gather(&row[..n]).to(&mut all).root(root).run(),
            1 => job.gather_all(&row[..n / 8]).to(&mut all).run(),
            2 => job.exchange(&row[..n / 8 * job.size()]).to(&mut all).run(),
            3 => job.permute(&row[..n], TeamRank(job.neighbor(1).0)).to(&mut other).run(),
            4 => job.broadcast(array.slice(..job.size())).to(array.slice(500..500 + job.size())).root(root).run(),
            _ => _ = job.value(n).gather_all(),
        }
    });
    assert!(all.iter().chain(&some).all(|&x| x == 7), "{way}");
}

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    partage::run(|job| {
        let mut random = Random(seed ^ u64::from(job.rank().0) << 32);
        let block = job.alloc_all::<u64>(64 << 10).unwrap();
        job.register_handlers(&[&TAKE, &ASK, &ANSWER, &LAND]);
        let (text, random_rank) = (vec![7u8; MEDIUM], |random: &mut Random| Rank(random.below(job.size()) as u32));
        job.barrier();
        if job.rank().0 == 0 {
            job.println("ready");
        }
        let row = vec![7u64; 8 << 10];
        let mut array = job.array::<u64>(Layout::cyclic(1000)).unwrap();
        let locks = job.mutexes::<[u64; 20]>(Layout::cyclic(3)).unwrap();
        let (come, told, mut posted) = (job.semaphore().unwrap(), job.alloc_all::<Signal>(1).unwrap(), 0);
        told.put(job, come.signal());
        job.barrier();
        let signals: Vec<Signal> = job.ranks().map(|r| told.on(r).get(job)).collect();
        let (mut alike, begun) = (Random(seed), Instant::now());
        // The killer is dead itself after this time.
        while begun.elapsed() < Duration::from_secs(60) {
            match case.as_str() {
                "Barrier" | "Start" | "Join" => job.barrier(),
                "Put" => block.on(job.neighbor(random.below(job.size()) as i64)).put_slice(job, &row),
                "Asleep" => {
                    if job.rank().0 == 0 {
                        std::thread::sleep(Duration::from_secs(60));
                    }
                    job.barrier();
                }
                "Mixed" => {
                    for _ in 0..random.below(20) {
                        let place = block.on(job.neighbor(random.below(16) as i64)).add(random.below(1000));
                        place.put_slice(job, &row[..random.below(row.len())]);
                    }
                    if random.below(4) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                    }
                    job.barrier();
                    let some = job.alloc_all::<u64>(100).unwrap();
                    job.free_all(some);
                }
                "Messages" => {
                    let to = random_rank(&mut random);
                    messages(job, &mut random, block, to, &text);
                    if random.below(1000) == 0 {
                        job.quiet();
                    }
                }
                "Calls" => {
                    let (to, len) = (random_rank(&mut random), random.below(3000));
                    let event = job.rpc(to, again, (random.below(4) as u32, text[..len].to_vec()));
                    match random.below(3) {
                        0 => assert_eq!(event.wait().len(), len),
                        _ => drop(event),
                    }
                }
                "Phases" => {
                    drop(array.store(random.below(500), row[..random.below(500)].to_vec()));
                    array.own(|mine| mine.iter_mut().for_each(|x| *x += 1));
                    let other = job.array::<u64>(Layout::per_rank(100)).unwrap();
                    std::thread::sleep(Duration::from_micros(random.below(300) as u64));
                    array.freeze(|all| other.put(100 * job.rank().index(), all.get(random.below(1000))));
                }
                "Locks" => {
                    let mut value = locks.lock(random.below(3));
                    value[random.below(20)] += 1;
                    if random.below(20) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
                    }
                }
                "Signals" => {
                    let to = random_rank(&mut random);
                    let there = block.on(to).add(random.below(1000));
                    there.put_signal(job, &row[..random.below(row.len())], signals[to.index()], 1);
                    posted += 1;
                    // As many come as go, but not always to me.
                    match random.below(3) {
                        0 if posted % 7 == 0 => come.wait(),
                        1 => _ = come.try_wait_n(random.below(5) as u32),
                        _ => {}
                    }
                }
                "Collectives" => collectives(job, &mut alike, &mut array, &row),
                "Events" => {
                    let started: Vec<_> =
                        (0..random.below(50)).map(|_| array.at(random.below(1000)).start().fetch_add(1)).collect();
                    let mut batch = job.batch();
                    (0..random.below(50)).for_each(|_| batch.add(array.at(random.below(1000)), 1));
                    let shape = Region::at(random.below(100)).run(3).times(20, 9);
                    job.scope(|s| s.put_region(&array, shape, &row[..60]).wait());
                    let (some, then) = (random.below(1000), random.below(3));
                    let both = async {
                        let got = array.fetch(..some).await;
                        array.store(0, got).await;
                    };
                    match then {
                        0 => job.block_on(both),
                        1 => _ = partage::wait::wait_all(started),
                        _ => drop(batch),
                    }
                }
                "Flood" if job.rank().0 == 0 => _ = std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b)),
                "Flood" => messages(job, &mut random, block, Rank(0), &text),
                "Reference" => {
                    let there = block.on(random_rank(&mut random));
                    let mut got = vec![0; random.below(row.len())];
                    there.put_slice(job, &row[..random.below(row.len())]);
                    there.get_slice(job, &mut got);
                    there.add(random.below(1000)).at(job).fetch_add(1);
                }
                _ => break,
            }
        }
    });
}

#[derive(Default, Debug)]
struct Summary {
    kills: BTreeMap<When, usize>,
    of_launchers: usize,
    after_the_end: usize,
    slowest: Duration,
    slowest_orphans: Duration,
}

#[test]
fn random_kills() {
    kills(None, 30);
}

/// The same over two hosts, which are network namespaces.
#[test]
fn kills_over_two_hosts() {
    if std::env::var("CASE").is_err() {
        two_hosts().iter().for_each(|hosts| kills(Some(hosts), 24));
    }
}

fn kills(hosts: Option<&Namespaces>, default: u64) {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    // Of a rank's environment only.
    if std::env::var("CASE").is_ok() {
        return;
    }
    let kills = number("KILLS", default);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = number("SEED", time.as_nanos() as u64 >> 10 & 0xffff_ffff);
    println!("SEED={first}");
    let wanted = std::env::var("WHEN").ok();
    let wanted = wanted.map(|name| WHEN.into_iter().find(|w| format!("{w:?}") == name).unwrap());
    let mut summary = Summary::default();
    for seed in first..first + kills {
        one_kill(seed, hosts, wanted, &mut summary);
        let done = seed - first + 1;
        if done % 50 == 0 {
            println!("{done} kills: {summary:?}");
        }
    }
    println!("kills: {kills} of {kills} as they should be: {summary:?}");
}

const MESSAGES: [When; 9] = [
    When::Messages,
    When::Calls,
    When::Flood,
    When::Reference,
    When::Phases,
    When::Locks,
    When::Signals,
    When::Collectives,
    When::Events,
];

/// The moments that have to do with messages, arrays, locks, signals and collectives, each some times.
#[test]
fn kills_among_messages() {
    if std::env::var("CASE").is_ok() {
        return;
    }
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = time.as_nanos() as u64 >> 10 & 0xffff_ffff;
    println!("SEED={first}");
    let mut summary = Summary::default();
    for (i, when) in MESSAGES.into_iter().cycle().take(30).enumerate() {
        one_kill(first + i as u64, None, Some(when), &mut summary);
    }
    println!("{summary:?}");
}

fn one_kill(seed: u64, hosts: Option<&Namespaces>, wanted: Option<When>, summary: &mut Summary) {
    let mut random = Random(seed << 16);
    // A host has at least one process.
    let least = if hosts.is_some() { 2 } else { 1 };
    let ranks = least + random.below(17 - least);
    let procs = least + random.below(ranks - least + 1);
    let soon = if hosts.is_some() { SOON_ACROSS } else { SOON };
    let when = WHEN[random.below(WHEN.len())];
    let when = wanted.unwrap_or(when);
    let launcher = random.below(8) == 0;
    let longest = match when {
        When::Join if hosts.is_some() => 100_000 + 5_000 * procs,
        When::Start if hosts.is_some() => 30_000,
        When::Join => 3_000 + 2_000 * procs,
        When::Asleep
        | When::Messages
        | When::Calls
        | When::Flood
        | When::Reference
        | When::Phases
        | When::Locks
        | When::Signals
        | When::Collectives
        | When::Events => 20_000,
        _ => 5_000,
    };
    let delay = Duration::from_micros(random.below(longest) as u64);
    let what = format!("SEED={seed}: {ranks} ranks in {procs} processes, {when:?}, after {delay:?}");

    let (n, p) = (ranks.to_string(), procs.to_string());
    let options = ["-n", &n, "--procs", &p];
    let start = hosts.map_or_else(|| run(&options), |hosts| hosts.run(&options));
    let mut start = start.arg(this_program()).args(RANKS);
    if matches!(when, When::Reference | When::Events) {
        start = start.env("PARTAGE_REFERENCE", "1");
    }
    let running = start.env("CASE", format!("{when:?}")).env("SEED", seed.to_string()).start();
    if when <= When::Join {
        while running.begun.wall() < delay {
            std::hint::spin_loop();
        }
    } else {
        running.out_says(|text| text.contains("ready"));
        std::thread::sleep(delay);
    }

    let victim = if launcher {
        Some(running.pid())
    } else {
        // At the very start there may be none yet, at the end none any more.
        loop {
            let mut children = running.children();
            if hosts.is_some() {
                children = children.into_iter().flat_map(children_of).collect();
            }
            if !children.is_empty() {
                break Some(children[random.below(children.len())]);
            }
            if when == When::Exit || running.begun.elapsed() > soon {
                break None;
            }
        }
    };
    let killed = Moment::now();
    if let Some(victim) = victim {
        kill(victim, libc::SIGKILL);
    }
    let ended = running.wait_with(if launcher { soon } else { Duration::ZERO });
    let took = killed.elapsed();
    *summary.kills.entry(when).or_default() += 1;
    if ended.code == 0 && when == When::Exit {
        assert!(ended.err.is_empty(), "{what}: {ended:#?}");
        summary.after_the_end += 1;
        return;
    }
    let victim = victim.unwrap_or_else(|| panic!("{what}: there was nobody to kill: {ended:#?}"));
    assert!(took < soon, "{what}: the end took {took:?}: {ended:#?}");
    assert_eq!(ended.code, 137, "{what}: {ended:#?}");
    if launcher {
        summary.of_launchers += 1;
        summary.slowest_orphans = summary.slowest_orphans.max(took);
        return;
    }
    summary.slowest = summary.slowest.max(took);
    let [line] = ended.said()[..] else { panic!("{what}: {ended:#?}") };
    let named = line.starts_with("partage: rank") && line.contains(&format!("(pid {victim}) "));
    assert!(named && line.contains(" killed by SIGKILL"), "{what}: {ended:#?}");
    if let Some(hosts) = hosts {
        assert!(line.contains(&format!(" on {}", hosts.prefix)), "{what}: {line}");
    }
}
