//! Jobs over several nodes: what goes over the network and what does not, mistakes and panics across it, who serves others
//! while ranks compute, and networks that are missing or cut. Two hosts are network namespaces; where those cannot be had,
//! and in some tests besides, processes of one host share no memory (`PARTAGE_NODE=process`).

mod common;

use common::*;
use partage::am::{LongRequest, MEDIUM, Reply, Request};
use partage::domain::Op;
use partage::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static ADD: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| _ = target.at(p).fetch_add(1));
static ASK: Request<[GlobalPtr<u64>; 2]> = Request::new(|token, target, [p, answer], payload| {
    target.at(p).fetch_add(1);
    token.reply(&ANSWER, answer, payload);
});
static ANSWER: Reply<GlobalPtr<u64>> = Reply::new(|target, _, p, _| _ = target.at(p).fetch_add(1));
static WHOLE: Request<[u64; 2]> = Request::new(|token, target, [seed, at], payload| {
    assert!(whole(seed, payload), "{} of {} did not arrive whole", wrong(seed, payload), token.source());
    target.at(GlobalPtr::<u64>::NULL.on(target.rank()).add(at as usize)).fetch_add(1);
});
static PANIC: Request<u64> = Request::new(|_, _, n, _| panic!("the handler has had enough of {n}")); // @handler
static PANIC_LONG: LongRequest<u64, u8> =
    LongRequest::new(|_, _, n, landed| panic!("{} bytes were too much, {n}", landed.len())); // @long handler
static PANIC_IN_REPLY: Reply<u64> = Reply::new(|_, _, n, _| panic!("no answer to {n}")); // @reply handler
static ASK_FOR_PANIC: Request<u64> = Request::new(|token, _, n, _| token.reply(&PANIC_IN_REPLY, n, &[]));
static SLEEP: Request<u64> = Request::new(|_, _, _, _| std::thread::sleep(Duration::from_secs(60)));

/// Bytes that follow from a seed; made once, since a flood is to be fast.
fn bytes(seed: u64, len: usize) -> &'static [u8] {
    static ROW: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |i: u64| (i.wrapping_mul(i ^ 0x2545_f491_4f6c_dd1d) >> 40) as u8;
    let row = ROW.get_or_init(|| (0..310_000).map(byte).collect());
    &row[seed as usize % 9973..][..len]
}

fn whole(seed: u64, payload: &[u8]) -> bool {
    payload == bytes(seed, payload.len())
}

/// Where it is wrong, and what is there instead.
fn wrong(seed: u64, payload: &[u8]) -> String {
    let right = bytes(seed, payload.len());
    let differ = |i: &usize| payload[*i] != right[*i];
    let (first, last) = ((0..right.len()).find(differ).unwrap(), (0..right.len()).rfind(differ).unwrap());
    let other = payload[first..].get(..16).and_then(|found| bytes(0, 300_000).windows(16).position(|w| w == found));
    format!("{} bytes (seed at {}, wrong {first}..={last}, where that of {other:?} is)", right.len(), seed % 9973)
}

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| -> Result<(), String> {
        let me = job.rank().0;
        match (case.as_str(), me) {
            ("nothing", _) => return Ok(()),
            ("values", 2) => job.barrier_with(8),              // @eight
            ("values", _) => job.barrier_with(7),              // @seven
            ("values of neighbors", 3) => job.barrier_with(8), // @neighbor eight
            ("values of neighbors", 2) => job.barrier_with(7), // @neighbor seven
            ("values of neighbors", _) => job.barrier_with(7), // @others
            ("sizes", 3) => drop(job.alloc_all::<u64>(10)),    // @ten
            ("sizes", _) => drop(job.alloc_all::<u64>(5)),     // @five
            ("calls", 1) => job.barrier(),                     // @plain
            ("calls", _) => drop(job.alloc_all::<u64>(5)),     // @alloc
            ("value and end", 2) => return Ok(()),
            ("value and end", _) => job.barrier_with(3),       // @three
            ("handlers", 2) => job.register_handlers(&[&ADD]), // @one
            ("handlers", _) => job.register_handlers(&[&ADD, &ASK]), // @two
            ("panic", 2) => panic!("rank two has had enough"), // @panic
            ("panic and compute", 2) => panic!("rank two has had enough"),
            ("panic and compute", _) => compute(Duration::from_secs(60)),
            ("error", 3) => return Err("the file is empty".into()),
            ("exit 3", 3) => std::process::exit(3),
            ("job exit 7", 2) => job.exit(7),
            ("job exit 0", 2) => job.exit(0),
            _ => {}
        }
        job.register_handlers(&[&ADD, &ASK, &ANSWER, &WHOLE, &PANIC, &PANIC_LONG, &PANIC_IN_REPLY, &ASK_FOR_PANIC]);
        job.register_handlers(&[&SLEEP]);
        let cells = job.alloc_all::<u64>(2 << 20).unwrap();
        job.barrier();
        match (case.as_str(), me) {
            ("handler", 1) => job.am(Rank(2), &PANIC, 12, &[]),
            ("long handler", 1) => job.am_long(cells.cast::<u8>().on(Rank(2)), &[1; 100], &PANIC_LONG, 12),
            ("reply handler", 1) => job.am(Rank(2), &ASK_FOR_PANIC, 12, &[]),
            ("tell", 1) => job.tell(Rank(2), |_, n: u64| panic!("nobody told me about {n}"), 12), // @tell
            ("panic back", 1) => job.rpc(Rank(2), |_, n: u64| -> () { panic!("no result for {n}") }, 12).wait(), // @rpc
            ("wrong free", 1) => job.free(cells.on(Rank(2)).add(1)),
            ("counters", _) => counters(job, cells),
            ("forged", _) => forged(job, cells),
            ("flood", _) => flood(job, cells),
            ("computing", _) => computing(job, cells),
            ("hang", _) => hang(job, cells),
            ("inside", _) => inside(job, cells),
            ("many puts", _) => many_puts(job, cells),
            _ => {}
        }
        job.quiet();
        job.barrier();
        Ok(())
    });
}

fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
    }
}

/// Every rank to every other: what is counted as far is what went to another node.
fn counters(job: &Job, cells: GlobalPtr<u64>) {
    let me = job.rank();
    for to in job.ranks().filter(|&r| r != me) {
        let there = cells.on(to).add(100 * me.index());
        // How far the other's memory reaches is asked once.
        there.put(job, 1);
        job.quiet();
        let before = job.counters();
        (0..3).for_each(|i| there.add(i).put(job, 5));
        (0..2).for_each(|i| assert_eq!(there.add(i).get(job), 5));
        let transfers = job.counters();
        (0..5).for_each(|_| job.am(to, &ADD, cells.on(to).add(5), &[]));
        assert_eq!(job.rpc(to, |job, n: u64| n + u64::from(job.rank().0), 10).wait(), 10 + u64::from(to.0));
        job.quiet();
        let messages = job.counters();
        assert_eq!(there.at(job).fetch_add(1), 5);
        let atomics = job.counters();
        let far = u64::from(!job.same_node(to));
        assert_eq!(transfers.far_puts - before.far_puts, 3 * far, "{me} to {to}");
        assert_eq!(transfers.far_gets - before.far_gets, 2 * far, "{me} to {to}");
        // Neither goes by messages, whichever way it goes.
        assert_eq!((transfers.far, transfers.queued), (before.far, before.queued), "{me} to {to}");
        assert_eq!(transfers.reference_puts + transfers.reference_gets, 0);
        assert_eq!(messages.far - transfers.far, 6 * far, "{me} to {to}");
        assert_eq!(messages.queued - transfers.queued, 6 * (1 - far), "{me} to {to}");
        assert_eq!((messages.far_puts, messages.far_gets), (transfers.far_puts, transfers.far_gets));
        // Those are messages between nodes, and nothing at all on one.
        assert_eq!(atomics.far - messages.far, far, "{me} to {to}");
        assert_eq!(atomics.queued, messages.queued, "{me} to {to}");
    }
    job.barrier();
    assert_eq!(cells.add(5).get(job), 5 * (job.size() as u64 - 1));
    let far = job.ranks().filter(|&r| !job.same_node(r)).count();
    job.println(format!("{far} are far"));
}

/// Pointers that nobody gave out: each is refused with a line, and the connection goes on.
fn forged(job: &Job, cells: GlobalPtr<u64>) {
    let (me, n) = (job.rank(), job.size());
    let (beyond, mut buffer) = (Rank(n as u32), vec![0u64; 1000]);
    for to in job.ranks().filter(|&r| !job.same_node(r)) {
        let there = cells.on(to).add(100);
        let unused = cells.on(to).add(1 << 28);
        let middle = GlobalPtr::<u64>::NULL.on(to).add(1 << 26);
        let odd = there.cast::<u8>().add(1).cast::<u64>();
        let refused = |what: &str, expect: &str, f: &mut dyn FnMut()| {
            let payload = catch_unwind(AssertUnwindSafe(f)).expect_err(what);
            let text = payload.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.starts_with(&format!("{me}: ")) && text.contains(expect), "{what}: {text:?}");
            assert!(!text.contains('\n'), "{what}: {text}");
            // Nothing was harmed.
            let mine = there.add(1 + me.index());
            let count = mine.get(job);
            mine.put(job, count + 1);
            assert_eq!(mine.get(job), count + 1, "{what}");
            assert_eq!(job.rpc(to, |job, ()| job.rank(), ()).wait(), to, "{what}");
            job.am(to, &ADD, there, &[1; 1000]);
            job.quiet();
        };
        refused("put into memory that is not allocated", "are not allocated there", &mut || middle.put(job, 7));
        refused("get of memory that is not allocated", "are not allocated there", &mut || _ = middle.get(job));
        refused("the same, much", "are not allocated there", &mut || middle.get_slice(job, &mut buffer));
        refused("from allocated memory out of it", "put_slice: ", &mut || {
            cells.on(to).add((2 << 20) - 10).put_slice(job, &vec![0; 1 << 26])
        });
        refused("atomic", " is not ", &mut || _ = odd.at(job).load());
        refused("far outside", "lie outside its segment", &mut || _ = cells.on(to).add(1 << 40).get(job));
        refused("far outside, atomic", "lie outside its segment", &mut || {
            _ = cells.on(to).add(1 << 40).at(job).fetch_add(1)
        });
        refused("below", "put: 8 bytes at offset 0x8", &mut || GlobalPtr::<u64>::NULL.on(to).add(1).put(job, 1));
        refused("rank", &format!("there is no {beyond} in a job of {n}"), &mut || there.on(beyond).put(job, 1));
        refused("rank, get", &format!("there is no {beyond}"), &mut || _ = there.on(beyond).get(job));
        refused("rank, am", &format!("there is no {beyond}"), &mut || job.am(beyond, &ADD, there, &[]));
        refused("rank, rpc", &format!("there is no {beyond}"), &mut || drop(job.rpc(beyond, |_, ()| (), ())));
        refused("alignment", "is not aligned for u64", &mut || odd.put(job, 1));
        refused("alignment, get", "is not aligned for u64", &mut || _ = odd.get(job));
        refused("long message", "are not allocated there", &mut || {
            job.am_long(middle.cast::<u8>(), &[1; 100], &PANIC_LONG, 1)
        });
        refused("message", "am: ", &mut || job.am(to, &ADD, there, &vec![0; MEDIUM + 1]));
        // It is inside the segment or it is not; neither is memory.
        refused("much later", "get: 8 bytes at offset ", &mut || _ = unused.get(job));
    }
    job.barrier();
    let far = job.ranks().filter(|&r| !job.same_node(r)).count() as u64;
    assert_eq!(cells.add(100).get(job), 17 * far);
    job.ranks().filter(|&r| !job.same_node(r)).for_each(|r| assert_eq!(cells.add(101 + r.index()).get(job), 17));
    job.println("unharmed");
}

/// All but the last rank flood it with long messages, whose bytes are looked at.
fn flood(job: &Job, cells: GlobalPtr<u64>) {
    let (me, last) = (job.rank().index(), job.size() - 1);
    let to = Rank(last as u32);
    let count: usize = std::env::var("COUNT").unwrap().parse().unwrap();
    // A handler gets a place in its own segment.
    let at = cells.on(to).offset_from(GlobalPtr::NULL.on(to)) as u64;
    job.barrier();
    if me == last {
        job.println("flooding");
    } else {
        for i in 0..count {
            let seed = (me * 1_000_003 + i) as u64;
            let len = [MEDIUM, 60_000, 30_000, 8, 0, 3_000][i % 6];
            job.am(to, &WHOLE, [seed, at], bytes(seed, len));
            if i % 500 == 0 {
                let (seed, len) = (seed ^ 7, 300_000);
                let text = job.rpc(to, |_, (seed, len): (u64, usize)| bytes(seed, len).to_vec(), (seed, len)).wait();
                assert!(whole(seed, &text), "{len} bytes of a result did not arrive whole");
            }
        }
    }
    job.quiet();
    job.barrier();
    if me == last {
        assert_eq!(cells.get(job), (count * last) as u64);
        job.println("all came whole");
    }
}

/// The last rank computes for a while; how long others wait for it.
fn computing(job: &Job, cells: GlobalPtr<u64>) {
    let busy = Duration::from_millis(600);
    let last = Rank(job.size() as u32 - 1);
    let (there, mine) = (cells.on(last), cells.on(job.rank()));
    // All is known and connected.
    there.put(job, 0);
    job.barrier();
    if job.rank() == last {
        compute(busy);
    } else if job.rank().0 == 0 {
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let mut times = [vec![], vec![], vec![]];
        let mut answers = mine.get(job);
        while begun.elapsed() < busy / 3 {
            let mut time = |i: usize, f: &mut dyn FnMut()| {
                let begun = Instant::now();
                f();
                times[i].push(begun.elapsed());
            };
            time(0, &mut || there.add(1).put(job, 7));
            time(1, &mut || assert_eq!(there.add(1).get(job), 7));
            time(2, &mut || {
                job.am(last, &ASK, [there, mine], &[]);
                job.wait_until(|| mine.get(job) == answers + 1);
                answers += 1;
            });
        }
        let slowest = times.each_ref().map(|t| t.iter().max().unwrap().as_millis());
        let median = times.map(|mut t| {
            t.sort();
            t[t.len() / 2].as_millis()
        });
        job.println(format!("slowest {slowest:?} median {median:?}"));
    }
    job.barrier();
}

/// Rank 3 stands still, its process and all; the others wait in different calls.
fn hang(job: &Job, cells: GlobalPtr<u64>) {
    if job.rank().0 < 2 {
        std::thread::sleep(Duration::from_millis(400));
    }
    match job.rank().0 {
        0 => cells.on(Rank(3)).put(job, 1),           // @hanging put
        1 => job.rpc(Rank(3), |_, ()| (), ()).wait(), // @hanging rpc
        2 => job.barrier(),                           // @hanging barrier
        _ => {
            // What it has sent to end the last barrier has left by then.
            compute(Duration::from_millis(300));
            kill(std::process::id() as i32, libc::SIGSTOP);
            // Another thread may take the signal, and this one go on for a moment.
            compute(Duration::from_secs(60));
        }
    }
}

/// All but rank 3, which is stopped by then, get into a call that waits for it.
fn inside(job: &Job, cells: GlobalPtr<u64>) {
    let (last, call) = (Rank(3), std::env::var("CALL").unwrap());
    let (there, mut row) = (cells.on(last), vec![7u64; 1 << 20]);
    there.put(job, 1);
    let domain = job.atomic_domain::<u64>(&[Op::Add]).unwrap();
    let (come, mailbox) = (job.semaphore().unwrap(), job.mailbox::<u64>(1).unwrap());
    let locks = job.mutexes::<u64>(Layout::cyclic(4)).unwrap();
    let signals = job.alloc_all::<Signal>(1).unwrap();
    signals.put(job, come.signal());
    let (word, mut all) = ([1u64], vec![]);
    job.barrier();
    let signal = signals.on(last).get(job);
    let held = (job.rank() == last).then(|| locks.lock(0));
    if call == "atomic of a domain" {
        domain.at(there.at(job)).add(1);
    }
    job.barrier();
    if job.rank() == last {
        job.println("ready");
        compute(Duration::from_secs(60));
    }
    // The others begin when it has been stopped.
    std::thread::sleep(Duration::from_millis(500));
    loop {
        match call.as_str() {
            "put" => there.put(job, 1),
            "long put" => there.put_slice(job, &row),
            "get" => _ = there.get(job),
            "long get" => there.get_slice(job, &mut row),
            "am" => job.am(last, &ADD, there, &[]),
            "medium am" => job.am(last, &ADD, there, &[1; MEDIUM]),
            "sleeping handler" => job.am(last, &SLEEP, 1, &[]),
            "quiet" => {
                job.am(last, &ADD, there, &[]);
                job.quiet();
            }
            "rpc" => job.rpc(last, |_, ()| (), ()).wait(),
            "long rpc" => _ = job.rpc(last, |_, v: Vec<u8>| v, vec![1; 1 << 20]).wait(),
            "atomic" => _ = there.at(job).fetch_add(1),
            "atomic of a domain" => _ = domain.at(there.at(job)).fetch_add(1),
            "scope" => {
                job.scope(|s| s.get_ptr(there, &mut row).wait().len());
            }
            "alloc_all" => drop(job.alloc_all::<u64>(1000)),
            "put_signal" => {
                there.put_signal(job, &row, signal, 1);
                job.quiet();
            }
            "semaphore" => come.wait(),
            "mailbox" => _ = mailbox.receive(),
            "lock" => drop(locks.lock(0)),
            "collective" => job.gather_all(&word).to(&mut all).run(),
            "long collective" => job.all_reduce(&mut row, Sum).run(),
            "team" => drop(job.team([job.rank(), last])),
            _ => job.barrier(),
        }
        assert!(held.is_none());
    }
}

/// Many puts and gets at a time, to all others.
fn many_puts(job: &Job, cells: GlobalPtr<u64>) {
    let (me, row) = (job.rank(), vec![job.rank().0.into(); 2000]);
    let mut back = vec![vec![0u64; 2000]; 50];
    for to in job.ranks().filter(|&r| r != me) {
        let there = |i: usize| cells.on(to).add((50 * me.index() + i) * 2000);
        job.scope(|s| (0..50).for_each(|i| drop(s.put_ptr(there(i), &row))));
        job.scope(|s| back.iter_mut().enumerate().for_each(|(i, back)| drop(s.get_ptr(there(i), back))));
        assert!(back.iter().all(|back| *back == row), "{me} to {to}");
    }
    job.barrier();
}

/// How the four ranks of a job are on nodes.
enum Nodes {
    /// Each on its own: processes of this host.
    Apart,
    /// Two on each of two hosts.
    Hosts(Namespaces),
}

impl Nodes {
    fn start(&self, options: &[&str], case: &str) -> Start {
        let start = match self {
            Nodes::Apart => run(options).env("PARTAGE_NODE", "process"),
            Nodes::Hosts(namespaces) => namespaces.run(options),
        };
        start.arg(this_program()).args(RANKS).env("CASE", case)
    }

    fn job(&self, case: &str) -> Start {
        self.start(&["-n", "4"], case)
    }

    /// The host of a rank.
    fn host(&self, rank: usize) -> String {
        match self {
            Nodes::Apart => hostname(),
            Nodes::Hosts(namespaces) => format!("{}{}", namespaces.prefix, rank / 2 + 1),
        }
    }
}

fn hostname() -> String {
    String::from_utf8(std::process::Command::new("hostname").output().unwrap().stdout).unwrap().trim().into()
}

/// Every way that there is here; says which is not.
fn every() -> Vec<Nodes> {
    if let Err(why) = libfabric() {
        skipped(&why);
        return vec![];
    }
    [Some(Nodes::Apart), two_hosts().map(Nodes::Hosts)].into_iter().flatten().collect()
}

#[test]
fn what_goes_over_the_network() {
    for nodes in every() {
        let ended = nodes.job("counters").end();
        let far = if matches!(nodes, Nodes::Apart) { 3 } else { 2 };
        let count = ended.succeeded().matches(&format!("{far} are far\n")).count();
        assert_eq!(count, 4, "{ended:#?}");
        // Two ranks in each process: nothing is far in it.
        let ended = nodes.start(&["-n", "2", "--procs", "2"], "counters").end();
        assert_eq!(ended.succeeded().matches("1 are far\n").count(), 2, "{ended:#?}");
    }
}

/// The same line as on one node.
fn disagreement(case: &str, parts: &[&str]) {
    let on_one = job(Processes, case).end();
    let line = on_one.failed_soon(101, parts);
    assert!(line.starts_with("partage: the ranks disagree: "), "{line}");
    for nodes in every() {
        for options in [&["-n", "4"][..], &["-n", "4", "--procs", "2"]] {
            let ended = nodes.start(options, case).end();
            assert_eq!(ended.failed(101, parts), line);
            assert!(ended.took < SOON_ACROSS, "{ended:#?}");
        }
    }
}

#[test]
fn ranks_that_disagree() {
    disagreement("values", &["rank 0 ", "rank 2 ", "value 7", "value 8", &at!("seven"), &at!("eight")]);
    let places = [&at!("others"), &at!("neighbor eight")];
    disagreement("values of neighbors", &["rank 0 ", "rank 3 ", "value 7", "value 8", places[0], places[1]]);
    disagreement("sizes", &["rank 0 ", "rank 3 ", "40 bytes", "80 bytes", &at!("five"), &at!("ten")]);
    disagreement("calls", &["rank 0 ", "rank 1 ", "alloc_all of 40 bytes", "barrier", &at!("alloc"), &at!("plain")]);
    disagreement("value and end", &["rank 0 ", "rank 2 ", "value 3", "the end of its program", &at!("three")]);
    disagreement("handlers", &["rank 0 ", "rank 2 ", "register", &at!("one"), &at!("two")]);
}

#[test]
fn panics() {
    for nodes in every() {
        for (case, parts) in [
            ("panic", &["rank 2 on ", "rank two has had enough", &at!("panic")][..]),
            ("panic and compute", &["rank 2 on ", "rank two has had enough"]),
            ("handler", &["rank 2", "rank 1", "the handler has had enough of 12", &at!("handler")]),
            ("long handler", &["rank 2", "rank 1", "100 bytes were too much, 12", &at!("long handler")]),
            ("reply handler", &["rank 1", "rank 2", "no answer to 12", &at!("reply handler")]),
            ("tell", &["rank 2", "rank 1", "nobody told me about 12", &at!("tell")]),
            ("panic back", &["rank 1", "rank 2", "no result for 12", &at!("rpc")]),
            ("wrong free", &["rank 2", "rank 1", "free", "no allocation starts at"]),
        ] {
            let ended = nodes.job(case).end();
            assert!(ended.took < SOON_ACROSS, "{case}: {ended:#?}");
            let line = ended.failed(101, parts);
            let host = format!("partage: rank 2 on {} panicked at ", nodes.host(2));
            assert!(line.starts_with(&host) || !case.starts_with("panic and") && case != "panic", "{case}: {line}");
        }
    }
}

#[test]
fn exit_codes() {
    for nodes in every() {
        let soon = |case: &str| {
            let ended = nodes.job(case).end();
            assert!(ended.took < SOON_ACROSS, "{case}: {ended:#?}");
            ended
        };
        soon("error").failed(1, &[&format!("rank 3 on {}", nodes.host(3)), "the file is empty"]);
        let ended = soon("exit 3");
        ended.failed(3, &[&format!("rank 3 on {} (pid ", nodes.host(3)), "exited with code 3 before the job was over"]);
        for (case, code) in [("job exit 7", 7), ("job exit 0", 0)] {
            let ended = soon(case);
            assert_eq!((ended.code, ended.err.as_str()), (code, ""), "{case}");
        }
        assert_eq!(soon("nothing").code, 0);
    }
}

#[test]
fn pointers_that_nobody_gave_out() {
    for nodes in every() {
        for options in [&["-n", "4"][..], &["-n", "4", "--procs", "2"]] {
            let ended = nodes.start(options, "forged").end();
            assert_eq!(ended.succeeded().matches("unharmed\n").count(), 4, "{ended:#?}");
        }
    }
}

/// Messages of two processes to a third arrive at the same time, in the same buffers. Now and then one of the two is stopped,
/// as a rule in the midst of a message, while the other goes on and the buffers go around.
#[test]
fn two_processes_flood_a_third() {
    for nodes in every() {
        let running = nodes.start(&["-n", "3"], "flood").env("COUNT", "12000").start();
        running.out_says(|text| text.contains("flooding\n"));
        let of_job = running.processes();
        let flooders = ["PMI_RANK=0", "PMI_RANK=1"].map(|rank| {
            let of_rank = processes_with(rank);
            of_job.iter().copied().find(|pid| of_rank.contains(pid)).unwrap()
        });
        for (i, pid) in flooders.into_iter().cycle().take(40).enumerate() {
            kill(pid, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(60));
            kill(pid, libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(3 + i as u64 % 5));
            if !running.err().is_empty() || running.out().contains("all came whole\n") {
                break;
            }
        }
        let ended = running.wait();
        assert!(ended.succeeded().contains("all came whole\n"), "{ended:#?}");
    }
}

/// The slowest and the median times for a rank that computes, of put, get and answer, in milliseconds.
fn times(nodes: &Nodes, progress: &str) -> ([u32; 3], [u32; 3]) {
    let ended = nodes.start(&["-n", "2"], "computing").env("PARTAGE_PROGRESS", progress).end();
    let line = ended.succeeded().lines().find(|line| line.contains("slowest ")).unwrap().to_string();
    println!("{progress}: {line}");
    let numbers: Vec<u32> =
        line.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect();
    let numbers = &numbers[numbers.len() - 6..];
    (numbers[..3].try_into().unwrap(), numbers[3..].try_into().unwrap())
}

#[test]
fn a_rank_that_computes_serves_others() {
    for nodes in every() {
        let (_, median) = times(&nodes, "thread");
        assert!(median.iter().all(|ms| *ms < 100), "{median:?} ms");
        // Without the thread nothing happens until it has computed.
        let (slowest, _) = times(&nodes, "none");
        assert!(slowest.iter().any(|ms| *ms > 300), "{slowest:?} ms");
    }
}

#[test]
fn a_report_of_ranks_that_wait_for_another_node() {
    for nodes in every() {
        let start = nodes.start(&["-n", "4", "--hang-after", "1"], "hang");
        let running = start.start();
        running.err_says(|text| text.contains("has been waiting for 1 s") && text.contains("where the 4 ranks are"));
        let waits = [("put", at!("hanging put")), ("rpc", at!("hanging rpc")), ("barrier", at!("hanging barrier"))];
        // Said when the first has waited for so long; the others may come later.
        let text = running.report_says(|text| {
            let found = waits.iter().enumerate().all(|(rank, (call, place))| {
                let (rank, waits) = (format!("rank {rank} "), format!("waiting in {call} at {place}"));
                text.lines().any(|line| line.contains(&rank) && line.contains(&waits))
            });
            found && text.contains("computing\n")
        });
        if let Nodes::Hosts(_) = &nodes {
            assert!(text.contains(&format!("rank 3 on {} ", nodes.host(3))), "{text}");
        }
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait().code, 143);
    }
}

#[test]
fn info() {
    let ended = program(partage()).arg("info").env("PARTAGE_PROVIDER", "tcp").env("PARTAGE_NODE", "process").end();
    let out = ended.succeeded();
    for name in ["NODE", "PROVIDER", "INTERFACE", "CONNECT", "PROGRESS", "LIBFABRIC"] {
        let name = format!("PARTAGE_{name}");
        let line = out.lines().find(|line| line.contains(&name)).unwrap_or_else(|| panic!("{name} is not in {out}"));
        let given = ["PARTAGE_PROVIDER", "PARTAGE_NODE"].contains(&name.as_str());
        assert!(line.contains(if given { "environment" } else { "default" }), "{line}");
    }
}

/// Every line has a name, a value and a meaning; what is wrong is one line more.
#[test]
fn info_of_the_network() {
    if let Err(why) = libfabric() {
        return skipped(&why);
    }
    let info = || program(partage()).args(["info", "--network"]);
    let ended = info().env("PARTAGE_INTERFACE", "127.0.0.1").end();
    let out = ended.succeeded();
    let line = |name: &str| {
        let found = out.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("{name} is not in {out}"))
    };
    for (name, part) in [
        ("library", "libfabric "),
        ("interfaces", "127.0.0.1/8"),
        ("interface ", "127.0.0.1"),
        ("provider", "tcp"),
        ("address", "127.0.0.1:"),
        ("mr_mode", "0x"),
        ("inject size", " bytes"),
        ("largest message", "longer"),
        ("locked memory", "MEMLOCK"),
        ("self-test", "passed: message "),
    ] {
        assert!(line(name).contains(part), "{part} is not in {}", line(name));
    }
    let missing = "/nonexistent/libfabric.so.1";
    info().env("PARTAGE_LIBFABRIC", missing).end().failed(1, &["no network between nodes", missing, "libfabric1"]);
    info().env("PARTAGE_PROVIDER", "nosuch").end().failed(1, &["does not work on this host", "nosuch"]);
    info()
        .env("PARTAGE_INTERFACE", "198.51.100.1")
        .end()
        .failed_soon(1, &["does not work on this host", "198.51.100.1"]);
}

/// Namespaces have the interface that a job would take.
#[test]
fn info_of_the_network_of_a_host() {
    let Some(namespaces) = two_hosts() else { return };
    let host = format!("{}1", namespaces.prefix);
    let ended = program("ip").args(["netns", "exec", &host, partage(), "info", "--network"]).end();
    let out = ended.succeeded();
    assert!(out.contains(" 10.77.0.1:") && out.contains("eth0 10.77.0.1/24") && out.contains("passed: "), "{out}");
}

/// Figures of every kind, each an object with the numbers that it must have.
#[test]
fn bench() {
    if let Err(why) = libfabric() {
        return skipped(&why);
    }
    let bench = |args: &str| program(partage()).args(["bench", "network", "--json"]).args(args.split_whitespace());
    let figures = "net_sig_8_vs_put,net_inject_8_flood_many_2t2p";
    let ended = bench(&format!("--rounds 1 --only {figures}")).end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    objects(&ended.out, figures);
    let floors = ended.out.lines().filter(|line| line.contains(r#""ratio":null"#)).count();
    assert_eq!(floors, 1, "injection has no floor: {}", ended.out);
    bench("--only net_hosts_barrier").end().failed(2, &["net_hosts_barrier", "--hosts"]);
    bench("--only net_put_8 --hosts a,b").end().failed(2, &["net_put_8", "net_hosts_barrier"]);
    bench("--hosts a").end().failed(2, &["--hosts", "two or more"]);
}

/// Two hosts, beside the raw messages between them.
#[test]
fn bench_between_hosts() {
    let Some(namespaces) = two_hosts() else { return };
    let hosts = format!("{0}1,{0}2", namespaces.prefix);
    let figures = "net_hosts_barrier,net_hosts_barrier_by_hand,net_hosts_all_reduce_8,net_hosts_exchange_1k_all";
    let bench = program(partage()).args(["bench", "network", "--json", "--rounds", "1", "--hosts", &hosts]);
    let ended = bench.args(["--only", figures]).end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    objects(&ended.out, figures);
    assert!(!ended.out.contains("null"), "{}", ended.out);
}

/// One for each, in this order, with a value.
fn objects(out: &str, figures: &str) {
    assert_eq!(out.lines().count(), figures.split(',').count(), "{out}");
    for (line, name) in out.lines().zip(figures.split(',')) {
        let rest = line.strip_prefix(&format!(r#"{{"name":"{name}","value":"#)).unwrap_or_else(|| panic!("{line}"));
        assert!(rest.split(',').next().and_then(|n| n.parse::<f64>().ok()).is_some_and(|n| n > 0.0), "{line}");
    }
}

#[test]
fn settings_that_are_wrong() {
    for (name, value) in [("PARTAGE_CONNECT", "soon"), ("PARTAGE_PROGRESS", "some")] {
        let ended = run(&["-n", "2"]).arg(this_program()).args(RANKS).env("CASE", "nothing").env(name, value).end();
        ended.failed_soon(2, &[&format!("{name}={value}: must be ")]);
    }
}

/// Needs no libfabric.
#[test]
fn without_libfabric() {
    let missing = "/nonexistent/libfabric.so.1";
    // A job of one node does without.
    for mapping in EVERY {
        job(mapping, "nothing").env("PARTAGE_LIBFABRIC", missing).end().succeeded();
    }
    let ended = Nodes::Apart.job("nothing").env("PARTAGE_LIBFABRIC", missing).end();
    let line = ended.failed(1, &[missing, "libfabric1", &hostname()]);
    assert!(ended.took < SOON && line.len() < 600, "{line}");
}

#[test]
fn an_unknown_provider() {
    for nodes in every() {
        let ended = nodes.job("nothing").env("PARTAGE_PROVIDER", "nosuch").end();
        assert!(ended.took < SOON_ACROSS, "{ended:#?}");
        ended.failed(1, &["nosuch", &nodes.host(0)]);
    }
}

/// One line that names two processes of different hosts, with their addresses and ports.
fn unreachable(namespaces: &Namespaces, ended: &Ended, addresses: [&str; 2]) {
    let (second, prefix) = (Duration::from_secs(1), &namespaces.prefix);
    assert!(ended.wall > second && ended.took < second + SOON_ACROSS, "{ended:#?}");
    let line = ended.failed(1, &["process ", "did not answer", "within 1 s"]);
    for (i, address) in addresses.iter().enumerate() {
        let host = format!("on {prefix}{}, ", i + 1);
        let rest = line.split_once(&host).unwrap_or_else(|| panic!("`{host}` is not in `{line}`")).1;
        let port = rest.find(&format!("{address}:")).map(|at| &rest[at + address.len() + 1..]);
        let digits = port.map_or(0, |port| port.chars().take_while(char::is_ascii_digit).count());
        assert!(digits > 0, "`{address}:PORT` is not in `{line}`");
    }
}

#[test]
fn hosts_that_cannot_reach_each_other() {
    let Some(namespaces) = two_hosts() else { return };
    let job = || namespaces.run(&["-n", "4"]).arg(this_program()).args(RANKS).env("CASE", "nothing");
    job().end().succeeded();
    let ended = job().env("PARTAGE_CONNECT", "1").env("PARTAGE_INTERFACE", "127.0.0.1").end();
    unreachable(&namespaces, &ended, ["127.0.0.1", "127.0.0.1"]);
    // No host has this one.
    let ended = job().env("PARTAGE_CONNECT", "1").env("PARTAGE_INTERFACE", "192.0.2.1").end();
    assert!(ended.took < SOON_ACROSS, "{ended:#?}");
    ended.failed(1, &["192.0.2.1", &namespaces.prefix]);
    // The wire is cut.
    let switch = format!("{}-switch", namespaces.prefix);
    let link = |up: &str| {
        let status = std::process::Command::new("ip").args(["-n", &switch, "link", "set", "port2", up]).status();
        assert!(status.unwrap().success());
    };
    link("down");
    let ended = job().env("PARTAGE_CONNECT", "1").end();
    unreachable(&namespaces, &ended, ["10.77.0.1", "10.77.0.2"]);
    link("up");
    job().end().succeeded();
}

/// Rank 3 is killed while the others are inside a call that waits for it: all hosts end soon, and it is named.
fn killed_inside(calls: &[(&str, &str)]) {
    let every_one = std::env::var_os("EVERY_SPLIT").is_some();
    for (i, nodes) in every().into_iter().enumerate() {
        // By turns, where there is no time for all of it.
        for &(call, waits) in calls.iter().skip(if every_one { 0 } else { i }).step_by(if every_one { 1 } else { 2 }) {
            // A domain is the network's, also with tcp.
            let atomics = if call == "atomic of a domain" { "network" } else { "auto" };
            let running = nodes.job("inside").env("CALL", call).env("PARTAGE_ATOMICS", atomics).start();
            running.out_says(|text| text.contains("ready\n"));
            let victim =
                running.processes().into_iter().find(|pid| processes_with("PMI_RANK=3").contains(pid)).unwrap();
            kill(victim, libc::SIGSTOP);
            // Those of its own host put and get without it, but meet and send in vain.
            let waiting = format!("waiting in {waits}");
            running.report_says(|text| {
                text.lines()
                    .any(|line| line.contains(&waiting) && (line.contains("rank 0") || line.contains("ranks 0")))
            });
            kill(victim, libc::SIGKILL);
            let killed = Moment::now();
            let ended = running.wait();
            let took = killed.elapsed();
            assert!(took < SOON, "{call}: {took:?}: {ended:#?}");
            let line = ended.failed(137, &["was killed by SIGKILL"]);
            let who = format!("partage: rank 3 on {} (pid {victim}) ", nodes.host(3));
            assert!(line.starts_with(&who), "{call}: {line}");
            println!("{call}: {took:?}");
        }
    }
}

#[test]
fn killed_in_the_midst_of_transfers() {
    killed_inside(&[
        ("put", "put"),
        ("long put", "put_slice"),
        ("get", "get"),
        ("long get", "get_slice"),
        ("scope", "get_"),
        ("atomic", "fetch_add"),
        ("atomic of a domain", "fetch_add"),
    ]);
}

#[test]
fn killed_in_the_midst_of_messages() {
    killed_inside(&[
        ("am", "am"),
        ("medium am", "am"),
        ("sleeping handler", "am"),
        ("quiet", "quiet"),
        ("rpc", "rpc"),
        ("long rpc", "rpc"),
    ]);
}

#[test]
fn killed_in_the_midst_of_meetings() {
    killed_inside(&[("barrier", "barrier"), ("alloc_all", "alloc_all"), ("team", "team")]);
}

#[test]
fn killed_in_the_midst_of_signals() {
    killed_inside(&[("put_signal", "put_signal"), ("semaphore", "wait"), ("mailbox", "receive"), ("lock", "lock")]);
}

#[test]
fn killed_in_the_midst_of_collectives() {
    killed_inside(&[("collective", "gather_all"), ("long collective", "all_reduce")]);
}

/// No more is under way than that, and the rest waits its turn. Without the setting there would be more.
#[test]
fn puts_under_way_are_bounded() {
    let nodes = Nodes::Apart;
    if let Err(why) = libfabric() {
        return skipped(&why);
    }
    let many = |most: &str| {
        let job = nodes.job("many puts").env("PARTAGE_TEST_DEMANDS", "transfers=4");
        job.env("PARTAGE_PUTS_UNDER_WAY", most).end()
    };
    let refusal = "more under way than there may be";
    many("4").succeeded();
    // What is refused is tried again, so it may end well all the same.
    let ended = many("5");
    assert!(ended.err.contains(refusal), "{ended:#?}");
}
