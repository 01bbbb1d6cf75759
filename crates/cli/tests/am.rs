//! Active messages and calls in whole jobs: mistakes and panics in them, floods against ranks that compute, and the end of
//! a program. Each mistake is one line.

mod common;

use common::*;
use partage::am::{LongRequest, MEDIUM, Reply, Request};
use partage::prelude::*;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Add {
    to: GlobalPtr<u64>,
    n: u64,
}

static ADD: Request<Add> = Request::new(|_, target, add, _| _ = target.at(add.to).fetch_add(add.n));
static ADDED: Request<Add> = Request::new(|_, target, add, _| _ = target.at(add.to).fetch_add(add.n));
static ASK: Request<Add> = Request::new(|token, target, add, payload| {
    target.at(add.to).fetch_add(1);
    token.reply(&ANSWER, add, &vec![7; if payload.is_empty() { MEDIUM } else { payload.len() }]);
});
static ANSWER: Reply<Add> = Reply::new(|_, _, _, payload| assert!(payload.iter().all(|&b| b == 7)));
static PANIC: Request<u64> = Request::new(|_, _, n, _| panic!("the handler has had enough of {n}")); // @handler
static PANIC_LONG: LongRequest<u64, u8> =
    LongRequest::new(|_, _, n, landed| panic!("{} bytes were too much, {n}", landed.len())); // @long handler
static PANIC_IN_REPLY: Reply<u64> = Reply::new(|_, _, n, _| panic!("no answer to {n}")); // @reply handler
static ASK_FOR_PANIC: Request<u64> = Request::new(|token, _, n, _| token.reply(&PANIC_IN_REPLY, n, &[]));
static REPLY_TOO_MUCH: Request<u64> = Request::new(|token, _, _, _| {
    token.reply(&ANSWER, Add { to: GlobalPtr::NULL, n: 0 }, &[7; MEDIUM + 1]) // @too much
});
static REPLY_UNKNOWN: Request<u64> = Request::new(|token, _, _, _| token.reply(&UNREGISTERED_REPLY, 0, &[]));
static ELSEWHERE: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| target.put(p, 1));
static UNREGISTERED: Request<u64> = Request::new(|_, _, _, _| unreachable!());
static UNREGISTERED_REPLY: Reply<u64> = Reply::new(|_, _, _, _| unreachable!());
static FORWARD: Request<u64> = Request::new(|token, target, n, _| {
    note(&format!("{} {} {n}", token.source(), target.rank()));
    token.reply(&NOTE, n, &[]);
});
static NOTE: Reply<u64> = Reply::new(|target, from, n, _| note(&format!("{from} answers {} {n}", target.rank())));

/// Adds a line to the file that the test counts, in one piece.
fn note(line: &str) {
    let path = std::env::var_os("NOTES").unwrap();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn tell_note(job: &Job, (from, n): (Rank, u64)) {
    note(&format!("{from} {} {n}", job.rank()));
}

/// Passes it on until it has been around often enough.
fn around(job: &Job, left: u64) {
    match left {
        0 => note("has been around"),
        _ => job.tell(job.neighbor(1), around, left - 1),
    }
}

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let beyond = Rank(9);
        match (case.as_str(), me) {
            ("order", 2) => job.register_handlers(&[&ADDED, &ADD]), // @order of two
            ("order", _) => job.register_handlers(&[&ADD, &ADDED]), // @order of others
            ("number", 1) => job.register_handlers(&[&ADD]),        // @one
            ("number", _) => job.register_handlers(&[&ADD, &ADDED]), // @two
            ("another", 3) => job.register_handlers(&[&ADDED]),     // @another
            ("another", _) => job.register_handlers(&[&ADD]),       // @usual
            ("no registration", 1) => job.barrier(),                // @barrier
            ("no registration", _) => job.register_handlers(&[&ADD]), // @registration
            _ => {}
        }
        job.register_handlers(&[
            &ADD,
            &ASK,
            &ANSWER,
            &PANIC,
            &PANIC_LONG,
            &PANIC_IN_REPLY,
            &ASK_FOR_PANIC,
            &REPLY_TOO_MUCH,
        ]);
        job.register_handlers(&[&REPLY_UNKNOWN, &ELSEWHERE, &FORWARD, &NOTE]);
        let cells = job.alloc_all::<u64>(16).unwrap();
        let there = |r: u32| Add { to: cells.on(Rank(r)), n: 1 };
        job.barrier();
        match (case.as_str(), me) {
            ("payload", 1) => job.am(Rank(2), &ADD, there(2), &vec![0; MEDIUM + 1]), // @payload
            ("payload to itself", 1) => job.am(Rank(1), &ADD, there(1), &vec![0; 1 << 20]), // @payload to itself
            ("unregistered", 1) => job.am(Rank(2), &UNREGISTERED, 1, &[]),           // @unregistered
            ("am beyond", 1) => job.am(beyond, &ADD, there(2), &[]),                 // @am beyond
            ("long beyond", 1) => job.am_long(cells.cast::<u8>().on(beyond), &[1; 100], &PANIC_LONG, 1), // @long beyond
            ("long outside", 1) => job.am_long(cells.cast::<u8>().add(1 << 43), &[1; 100], &PANIC_LONG, 1), // @outside
            ("rpc beyond", 1) => drop(job.rpc(beyond, |_, ()| (), ())),              // @rpc beyond
            ("tell beyond", 1) => job.tell(beyond, |_, ()| (), ()),                  // @tell beyond
            ("atomic beyond", 1) => _ = cells.on(beyond).at(job).load(),             // @atomic beyond
            ("handler", 1) => job.am(Rank(2), &PANIC, 12, &[]),
            ("handler of itself", 2) => job.am(Rank(2), &PANIC, 12, &[1; 1000]),
            ("long handler", 1) => job.am_long(cells.cast::<u8>().on(Rank(2)), &[1; 100], &PANIC_LONG, 12),
            ("reply handler", 1) => job.am(Rank(2), &ASK_FOR_PANIC, 12, &[]),
            ("reply too large", 1) => job.am(Rank(2), &REPLY_TOO_MUCH, 12, &[]),
            ("reply unknown", 1) => job.am(Rank(2), &REPLY_UNKNOWN, 12, &[]),
            ("elsewhere", 1) => job.am(Rank(2), &ELSEWHERE, cells.on(Rank(3)), &[]),
            ("tell", 1) => job.tell(Rank(2), |_, n: u64| panic!("nobody told me about {n}"), 12), // @tell
            ("dropped", 1) => drop(job.rpc(Rank(2), |_, n: u64| -> () { panic!("nobody waits for {n}") }, 12)), // @dropped
            ("dist tell", _) => {
                let list = job.dist(vec![0u64]);
                if me == 1 {
                    list.tell(Rank(2), |v, at: usize| v[at] += 1, 7); // @dist tell
                }
                job.quiet();
                job.barrier();
            }
            ("dist beyond", _) => {
                let list = job.dist(vec![0u64]);
                if me == 1 {
                    list.rpc(beyond, |v, ()| v.len(), ()).wait(); // @dist beyond
                }
                job.barrier();
            }
            ("panic back", 1) => job.rpc(Rank(2), |_, n: u64| -> () { panic!("no result for {n}") }, 12).wait(), // @rpc
            ("barrier in tell", 1) => job.tell(Rank(2), |job, ()| job.barrier(), ()), // @barrier in tell
            ("barrier in rpc", 1) => job.rpc(Rank(2), |job, ()| job.barrier(), ()).wait(), // @barrier in rpc
            ("wait in rpc", 1) => {
                job.rpc(Rank(2), |job, ()| job.rpc(Rank(3), |_, ()| (), ()).wait(), ()).wait() // @wait in rpc
            }
            ("free beyond", 1) => job.free(cells.on(beyond)),
            ("wrong free", 1) => job.free(cells.on(Rank(2)).add(1)),
            ("stuck function", 1) => {
                job.tell(Rank(2), |_, ()| std::thread::sleep(Duration::from_secs(60)), ());
                job.quiet(); // @quiet
            }
            ("stuck result", 1) => {
                job.rpc(Rank(2), |_, ()| std::thread::sleep(Duration::from_secs(60)), ()).wait(); // @wait
            }
            _ => {}
        }
        match case.as_str() {
            "flood" => flood(job, cells),
            "last act" => last_act(job),
            _ => {
                job.quiet();
                job.barrier();
            }
        }
    });
}

/// All against rank 2, which computes for two seconds and says when it begins and when it has ended.
fn flood(job: &Job, cells: GlobalPtr<u64>) {
    let me = job.rank();
    let victim = Rank(2);
    let kind = std::env::var("KIND").unwrap();
    let count: u64 = std::env::var("COUNT").unwrap().parse().unwrap();
    let object = job.dist([0u64; 4]);
    job.barrier();
    if me == victim {
        job.println("computing");
        // Calls for an object wait while it is in use, also if its rank looks after everything else.
        object.with(|_| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(1) {
                std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
                if kind == "object" {
                    job.poll();
                }
            }
        });
        job.println("computed");
    } else {
        let mine = cells.on(victim).add(me.index());
        let add = Add { to: mine, n: 1 };
        let text = vec![7; MEDIUM];
        // As a string, which goes as one piece of memory.
        let words = WORDS.repeat(128);
        let long = WORDS.repeat(25_000);
        for _ in 0..count {
            match kind.as_str() {
                "short" => job.am(victim, &ADD, add, &[]),
                "medium" => job.am(victim, &ADD, add, &text),
                "answers" => job.am(victim, &ASK, add, &[]),
                "tell" => job.tell(victim, count_told, (mine, words.clone())),
                "results" => drop(job.rpc(victim, count_and_answer, (mine, MEDIUM / 8 - 1))),
                "long results" => drop(job.rpc(victim, count_and_answer, (mine, 25_000))),
                "long tells" => job.tell(victim, count_long, (mine, long.clone())),
                "object" => object.tell(victim, count_in_object, (me, words.clone())),
                "rpc" => drop(job.rpc(
                    victim,
                    |job, (to, words)| (count_told(job, (to, words.clone())), words).1,
                    (mine, words.clone()),
                )),
                _ => unreachable!(),
            }
        }
        job.quiet();
        if kind != "object" {
            assert_eq!(mine.at(job).load(), count, "messages of {me} after quiet");
        }
    }
    job.barrier();
    if me == victim {
        for r in job.ranks() {
            let came = cells.add(r.index()).get(job) + object.with(|counts| counts[r.index()]);
            assert_eq!(came, if r == me { 0 } else { count }, "messages of {r}");
        }
        job.println("all came");
    }
}

const WORDS: &str = "8 bytes.";

/// A kibibyte of words.
fn check(words: &str) {
    assert!(words.len() == 1024 && words.as_bytes().chunks(8).all(|eight| eight == WORDS.as_bytes()));
}

fn count_told(job: &Job, (to, words): (GlobalPtr<u64>, String)) {
    check(&words);
    to.at(job).fetch_add(1);
}

fn count_long(job: &Job, (to, words): (GlobalPtr<u64>, String)) {
    assert!(words.len() == 200_000 && words.ends_with(WORDS));
    to.at(job).fetch_add(1);
}

/// So many times eight bytes.
fn count_and_answer(job: &Job, (to, n): (GlobalPtr<u64>, usize)) -> String {
    to.at(job).fetch_add(1);
    WORDS.repeat(n)
}

fn count_in_object(counts: &mut [u64; 4], (from, words): (Rank, String)) {
    check(&words);
    counts[from.index()] += 1;
}

/// Nothing comes after it: no quiet, no barrier.
fn last_act(job: &Job) {
    let me = job.rank();
    let kind = std::env::var("KIND").unwrap();
    // Some come to their end later than others.
    std::thread::sleep(Duration::from_millis(20 * u64::from(me.0)));
    for n in 0..100 {
        for r in job.ranks() {
            match kind.as_str() {
                "am" => job.am(r, &FORWARD, n, &[]),
                "medium" => job.am(r, &FORWARD, n, &[1; 5000]),
                "tell" => job.tell(r, tell_note, (me, n)),
                "rpc" => drop(job.rpc(r, tell_note, (me, n))),
                "large" if n < 10 => {
                    let note = |job: &Job, (from, n, words): (Rank, u64, String)| {
                        tell_note(job, (from, n));
                        words
                    };
                    drop(job.rpc(r, note, (me, n, WORDS.repeat(20_000))));
                }
                _ => {}
            }
        }
    }
    if kind == "chain" {
        (0..10).for_each(|_| job.tell(job.neighbor(1), around, 25));
    }
}

/// The same mistake under every mapping: who made it is named first.
fn mistake(case: &str, who: &str, parts: &[&str]) {
    for mapping in EVERY {
        let ended = job(mapping, case).end();
        let line = ended.failed_soon(101, parts);
        assert!(line.starts_with(&format!("partage: {who} on ")), "{mapping:?}: {line}");
    }
}

#[test]
fn payloads_that_are_too_large() {
    mistake("payload", "rank 1", &["rank 1: am: ", "65537", "65536", &at!("payload")]);
    mistake("payload to itself", "rank 1", &["rank 1: am: ", "1048576", "65536", &at!("payload to itself")]);
}

#[test]
fn a_handler_that_is_not_registered() {
    mistake("unregistered", "rank 1", &["rank 1: am: ", "is not registered", &at!("unregistered")]);
}

#[test]
fn ranks_out_of_range() {
    mistake("am beyond", "rank 1", &["rank 1: am: there is no rank 9 in a job of 4", &at!("am beyond")]);
    mistake("long beyond", "rank 1", &["rank 1: am_long: there is no rank 9 in a job of 4", &at!("long beyond")]);
    mistake("long outside", "rank 1", &["rank 1: am_long: ", "100 bytes", "outside its segment", &at!("outside")]);
    mistake("rpc beyond", "rank 1", &["rank 1: rpc: there is no rank 9 in a job of 4", &at!("rpc beyond")]);
    mistake("tell beyond", "rank 1", &["rank 1: tell: there is no rank 9 in a job of 4", &at!("tell beyond")]);
    mistake("dist beyond", "rank 1", &["rank 1: rpc: there is no rank 9 in a job of 4", &at!("dist beyond")]);
    mistake("atomic beyond", "rank 1", &["rank 1: ", "there is no rank 9 in a job of 4", &at!("atomic beyond")]);
    mistake("free beyond", "rank 1", &["rank 1: free: there is no rank 9 in a job of 4"]);
}

/// The same line, whoever says it and however ranks are laid out.
fn disagreement(case: &str, parts: &[&str]) {
    let mut lines = vec![];
    for mapping in EVERY {
        let ended = job(mapping, case).end();
        lines.push(ended.failed_soon(101, parts).to_string());
    }
    lines.dedup();
    assert!(lines.len() == 1 && lines[0].starts_with("partage: the ranks disagree: "), "{lines:#?}");
}

#[test]
fn registrations_that_differ() {
    disagreement("order", &["rank 0 ", "rank 2 ", "register", &at!("order of two"), &at!("order of others")]);
    disagreement("number", &["rank 0 ", "rank 1 ", "register", &at!("one"), &at!("two")]);
    disagreement("another", &["rank 0 ", "rank 3 ", "register", &at!("another"), &at!("usual")]);
    disagreement(
        "no registration",
        &["rank 0 ", "rank 1 ", "register", "barrier", &at!("barrier"), &at!("registration")],
    );
}

/// A handler that panics, for rank `target`: one line that names it, who sent the message, and what was said.
fn handler(case: &str, target: &str, source: &str, parts: &[&str]) {
    for mapping in EVERY {
        let ended = job(mapping, case).end();
        let line = ended.failed_soon(101, parts);
        assert!(line.contains(target) && line.contains(source), "{mapping:?}: {line}");
    }
}

#[test]
fn handlers_that_panic() {
    handler("handler", "rank 2", "rank 1", &["the handler has had enough of 12", &at!("handler")]);
    handler("handler of itself", "rank 2", "rank 2", &["the handler has had enough of 12", &at!("handler")]);
    handler("long handler", "rank 2", "rank 1", &["100 bytes were too much, 12", &at!("long handler")]);
    handler("reply handler", "rank 1", "rank 2", &["no answer to 12", &at!("reply handler")]);
}

#[test]
fn handlers_that_are_wrong() {
    handler("reply too large", "rank 2", "rank 1", &["reply: ", "65537", "65536", &at!("too much")]);
    handler("reply unknown", "rank 2", "rank 1", &["reply: ", "is not registered"]);
    handler("elsewhere", "rank 2", "rank 3", &["put", "handler"]);
}

#[test]
fn functions_that_panic() {
    handler("tell", "rank 2", "rank 1", &["nobody told me about 12", &at!("tell")]);
    handler("dist tell", "rank 2", "rank 1", &["index out of bounds", &at!("dist tell")]);
    handler("dropped", "rank 2", "rank 1", &["nobody waits for 12", &at!("dropped")]);
    // It comes back to the one who waits, and that one does not catch it.
    mistake("panic back", "rank 1", &["rank 2", "no result for 12", &at!("rpc")]);
}

#[test]
fn functions_that_wait() {
    handler("barrier in tell", "rank 2", "rank 1", &["barrier", &at!("barrier in tell")]);
    mistake("barrier in rpc", "rank 1", &["rank 2", "barrier", &at!("barrier in rpc")]);
    mistake("wait in rpc", "rank 1", &["rank 2", "wait", &at!("wait in rpc")]);
}

#[test]
fn wrong_memory_of_another_rank() {
    handler("wrong free", "rank 2", "rank 1", &["free", "no allocation starts at"]);
}

#[test]
fn functions_that_hang() {
    for mapping in EVERY {
        for (case, call, place) in [("stuck function", "quiet", at!("quiet")), ("stuck result", "rpc", at!("wait"))] {
            let running = job(mapping, case).start();
            running.report_says(|text| text.contains(&format!("waiting in {call} at {place}")));
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
    }
}

/// Private and shared memory of a process, in bytes, its part of what it shares with others.
fn memory_of(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let number = |key: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse().ok())
    };
    Some((number("Pss_Anon:")? + number("Pss_Shmem:")?) << 10)
}

/// Three ranks flood one that computes: each process of the job keeps to its memory, and everything arrives.
fn flood_is_bounded(kind: &str, count: usize) {
    for mapping in EVERY {
        let start = job(mapping, "flood").env("KIND", kind).env("COUNT", count.to_string());
        let running = start.start();
        running.out_says(|text| text.contains("computing"));
        let (mut most, mut samples) = (0, 0);
        while !running.out().contains("all came") && running.err().is_empty() {
            assert!(running.begun.elapsed() < Duration::from_secs(60), "{kind}, {mapping:?}: {}", running.out());
            let processes = if mapping == Threads { vec![running.pid()] } else { running.children() };
            most = processes.into_iter().filter_map(memory_of).fold(most, u64::max);
            samples += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = running.wait();
        assert!(ended.succeeded().contains("all came"), "{kind}, {mapping:?}: {ended:#?}");
        println!("{kind}, {mapping:?}: at most {:.1} MiB, took {:?}", most as f64 / 1048576.0, ended.took);
        assert!(samples > 20, "{kind}, {mapping:?}: {samples} samples");
        // Results land at whoever called, as many as it has calls open: 256 of 64 KiB or 200 kB, of up to three ranks.
        let limit = match kind {
            "results" => 2 * LIMIT,
            "long results" => 4 * LIMIT,
            _ => LIMIT,
        };
        assert!(most < limit, "{kind}, {mapping:?}: a process has had {} MiB", most >> 20);
    }
}

/// For all that a process of four ranks has, its program too.
const LIMIT: u64 = 32 << 20;

#[test]
fn floods_of_short_messages_are_bounded() {
    // 64 bytes each: 58 MB.
    flood_is_bounded("short", 300_000);
}

#[test]
fn floods_of_medium_messages_are_bounded() {
    // 64 KiB each: 157 MB.
    flood_is_bounded("medium", 800);
}

#[test]
fn floods_of_answers_are_bounded() {
    flood_is_bounded("answers", 800);
}

#[test]
fn floods_of_tells_are_bounded() {
    // 1 KiB each: 61 MB.
    flood_is_bounded("tell", 20_000);
}

#[test]
fn floods_of_calls_are_bounded() {
    flood_is_bounded("rpc", 20_000);
}

#[test]
fn floods_of_arguments_in_pieces_are_bounded() {
    // 200 kB each: 150 MB.
    flood_is_bounded("long tells", 250);
}

#[test]
fn floods_of_results_are_bounded() {
    // 64 KiB each: 236 MB.
    flood_is_bounded("results", 1_200);
}

#[test]
fn floods_of_results_in_pieces_are_bounded() {
    // 200 kB each: 360 MB.
    flood_is_bounded("long results", 600);
}

#[test]
fn floods_against_an_object_in_use_are_bounded() {
    flood_is_bounded("object", 20_000);
}

/// The lines that a job's messages have written, sorted.
fn notes(mapping: Mapping, kind: &str) -> Vec<String> {
    let directory = Directory::new("notes");
    let path = directory.0.join("notes");
    std::fs::write(&path, "").unwrap();
    job(mapping, "last act").env("KIND", kind).env("NOTES", &path).end().succeeded();
    let text = read(&path);
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.sort();
    lines
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn what_is_sent_last_arrives() {
    let pairs = || (0..4).flat_map(|from| (0..4).map(move |to| (from, to)));
    let mut requests: Vec<String> =
        pairs().flat_map(|(a, b)| (0..100).map(move |n| format!("rank {a} rank {b} {n}"))).collect();
    requests.sort();
    let answers = pairs().flat_map(|(a, b)| (0..100).map(move |n| format!("rank {a} answers rank {b} {n}")));
    let mut both: Vec<String> = requests.iter().cloned().chain(answers).collect();
    both.sort();
    for mapping in EVERY {
        for (kind, expected) in [("am", &both), ("medium", &both), ("tell", &requests), ("rpc", &requests)] {
            let lines = notes(mapping, kind);
            assert!(lines == *expected, "{kind}, {mapping:?}: {} of {} lines", lines.len(), expected.len());
        }
        // Arguments and results in pieces.
        let lines = notes(mapping, "large");
        assert_eq!(lines.len(), 4 * 4 * 10, "{mapping:?}: {lines:?}");
    }
}

#[test]
fn what_the_last_messages_send_arrives() {
    for mapping in EVERY {
        assert_eq!(notes(mapping, "chain"), vec!["has been around"; 40], "{mapping:?}");
    }
}
