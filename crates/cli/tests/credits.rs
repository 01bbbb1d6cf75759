//! What messages of other nodes may take of a process's memory, however many send and however little it serves; and what
//! strangers on the network may do to a job. Processes of one host that share no memory (`PARTAGE_NODE=process`).

mod common;

use common::*;
use partage::am::{Reply, Request};
use partage::prelude::*;
use partage_conduit::ofi::endpoint::{Asked, Endpoint, Entry, Posted};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

static COUNT: Request<GlobalPtr<u64>> = Request::new(|token, target, p, payload| {
    let seed = payload.len() as u8 ^ token.source().0 as u8;
    assert!(is_all(payload, seed), "{} bytes of {} did not arrive whole", payload.len(), token.source());
    target.at(p).fetch_add(1 + payload.len() as u64);
});
/// Asks for so many bytes.
static ASK: Request<[GlobalPtr<u64>; 2]> = Request::new(|token, _, [len, p], _| {
    let len = len.offset_from(GlobalPtr::NULL.on(len.rank())) as usize;
    token.reply(&BYTES, p, &vec![7; len]);
});
static BYTES: Reply<GlobalPtr<u64>> = Reply::new(|target, _, p, payload| {
    assert!(is_all(payload, 7));
    target.at(p).fetch_add(1 + payload.len() as u64);
});

/// Are all bytes this one?
fn is_all(bytes: &[u8], byte: u8) -> bool {
    bytes.first().is_none_or(|&first| first == byte)
        && bytes.get(1..).unwrap_or_default() == &bytes[..bytes.len().max(1) - 1]
}

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        job.register_handlers(&[&COUNT, &ASK, &BYTES]);
        let cells = job.alloc_all::<u64>(8).unwrap();
        let last = Rank(job.size() as u32 - 1);
        job.barrier();
        let before = Rss::now();
        match case.as_str() {
            "handlers" => handlers(job, cells),
            "calls" => calls(job, cells),
            "replies" => replies(job, cells),
            "all" => all_against_all(job, cells),
            "strangers" => strangers(job, cells),
            _ => {}
        }
        job.quiet();
        job.barrier();
        let c = job.counters();
        if job.rank() == last {
            let growth = before.growth() >> 10;
            let (most, may) = (c.far_memory_most >> 10, c.far_memory >> 10);
            job.println(format!("most {most} of {may} growth {growth} strays {}", c.far_strays));
        }
        job.println(format!("{} stalls {} loans {}", job.rank(), c.far_stalls, c.far_loans));
    });
}

fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
    }
}

fn payload(me: Rank, len: usize) -> Vec<u8> {
    vec![len as u8 ^ me.0 as u8; len]
}

const LENGTHS: [usize; 6] = [0, 8, 60_000, 200, 3000, 16_000];

/// About so much comes to the process that is flooded: several times what it may grow by.
const FLOOD: usize = 160 << 20;

/// All ranks of other nodes flood the last, whose process does nothing at first.
fn handlers(job: &Job, cells: GlobalPtr<u64>) {
    let times = LENGTHS.len() * FLOOD.div_ceil(job.size() * LENGTHS.iter().sum::<usize>());
    let (me, last) = (job.rank(), Rank(job.size() as u32 - 1));
    if job.same_node(last) {
        compute(Duration::from_millis(300));
    } else {
        for i in 0..times {
            job.am(last, &COUNT, cells.on(last), &payload(me, LENGTHS[i % LENGTHS.len()]));
        }
    }
    job.quiet();
    job.barrier();
    if me == last {
        let sources = job.ranks().filter(|&r| !job.same_node(r)).count();
        let each: usize = (0..times).map(|i| 1 + LENGTHS[i % LENGTHS.len()]).sum();
        assert_eq!(cells.get(job), (sources * each) as u64);
        job.println("all came");
    }
}

/// All tell the last to run something with long arguments, while it computes.
fn calls(job: &Job, cells: GlobalPtr<u64>) {
    const TIMES: usize = FLOOD / 8 / 60_000;
    let (me, last) = (job.rank(), Rank(job.size() as u32 - 1));
    if me == last {
        compute(Duration::from_millis(500));
    } else {
        for _ in 0..TIMES {
            // Text travels as it is, and bytes one by one, which takes long without optimization.
            let add = |job: &Job, (cells, text): (GlobalPtr<u64>, String)| {
                _ = cells.on(job.rank()).at(job).fetch_add(text.len() as u64);
            };
            job.tell(last, add, (cells, "x".repeat(60_000)));
        }
    }
    job.quiet();
    job.barrier();
    if me == last {
        assert_eq!(cells.get(job), (last.index() * TIMES * 60_000) as u64);
        job.println("all came");
    }
}

/// The first asks the last for much, and does not look at what comes.
fn replies(job: &Job, cells: GlobalPtr<u64>) {
    const TIMES: usize = FLOOD / 60_000;
    let (me, last) = (job.rank(), Rank(job.size() as u32 - 1));
    if me.0 == 0 {
        let len = GlobalPtr::<u64>::NULL.on(last).add(60_000);
        (0..TIMES).for_each(|_| job.am(last, &ASK, [len, cells.on(me)], &[]));
        compute(Duration::from_millis(500));
    }
    job.quiet();
    job.barrier();
    if me.0 == 0 {
        assert_eq!(cells.get(job), (TIMES * 60_001) as u64);
    }
    if me == last {
        job.println("all came");
    }
}

/// Everybody floods everybody, and asks for answers.
fn all_against_all(job: &Job, cells: GlobalPtr<u64>) {
    const TIMES: usize = 12;
    let me = job.rank();
    let others: Vec<Rank> = job.ranks().filter(|&r| !job.same_node(r)).collect();
    for i in 0..TIMES {
        for &to in &others {
            job.am(to, &COUNT, cells.on(to), &payload(me, LENGTHS[i % LENGTHS.len()]));
            let len = GlobalPtr::<u64>::NULL.on(to).add(LENGTHS[(i + 2) % LENGTHS.len()]);
            job.am(to, &ASK, [len, cells.on(me).add(1)], &[]);
            job.tell(to, |job, c: GlobalPtr<u64>| _ = c.on(job.rank()).add(2).at(job).fetch_add(1), cells);
        }
    }
    job.quiet();
    job.barrier();
    let each: usize = (0..TIMES).map(|i| 1 + LENGTHS[i % LENGTHS.len()]).sum();
    let n = others.len() as u64;
    assert_eq!([0, 1, 2].map(|i| cells.add(i).get(job)), [n * each as u64, n * each as u64, n * TIMES as u64]);
    if me.index() == job.size() - 1 {
        job.println("all came");
    }
}

/// Ranks work until a file is there.
fn strangers(job: &Job, cells: GlobalPtr<u64>) {
    let (me, stop) = (job.rank(), std::env::var("STOP").unwrap());
    let to = job.neighbor(1);
    let work = |round: u64| {
        job.am(to, &COUNT, cells.on(to), &payload(me, 5000));
        assert_eq!(job.rpc(to, |job, ()| job.rank(), ()).wait(), to);
        cells.on(to).add(1).put(job, round);
    };
    // All buffers are used once before strangers come, and all scratch.
    let (mut rounds, mut dropped) = (300u64, false);
    (0..rounds).for_each(work);
    (0..100).for_each(|_| _ = job.value(0).broadcast(TeamRank(0)));
    job.barrier();
    let (before, files) = (Rss::now(), descriptors());
    job.println(format!("{me} listens at {:?}", ports()));
    loop {
        if !dropped && job.counters().far_strays > 0 {
            job.println(format!("{me} has dropped some"));
            dropped = true;
        }
        let over = job.value(u64::from(me.0 == 0 && std::path::Path::new(&stop).exists())).broadcast(TeamRank(0));
        work(rounds);
        rounds += 1;
        if over == 1 {
            break;
        }
    }
    // The network's thread notices who has left.
    let begun = Instant::now();
    while descriptors() > files + 10 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    job.println(format!("{me} grew {} KiB, {files} descriptors, then {}", before.growth() >> 10, descriptors()));
    job.quiet();
    job.barrier();
    assert_eq!(cells.get(job), rounds * 5001);
    if me.index() == job.size() - 1 {
        job.println("all came");
    }
}

/// How many descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Where this process listens.
fn ports() -> Vec<u16> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links: Vec<String> = fds
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = words[3] == "0A" && links.contains(&format!("socket:[{}]", words[9]));
        ours.then(|| u16::from_str_radix(words[1].split(':').nth(1).unwrap(), 16).unwrap())
    });
    listening.collect()
}

/// Memory of this process that is resident.
struct Rss(u64);

impl Rss {
    /// From here on the most is looked for.
    fn now() -> Rss {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Rss(Rss::read("VmRSS:"))
    }

    fn read(key: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// How much the most was more.
    fn growth(&self) -> u64 {
        Rss::read("VmHWM:").saturating_sub(self.0)
    }
}

fn apart(options: &[&str], case: &str) -> Start {
    run(options).env("PARTAGE_NODE", "process").arg(this_program()).args(RANKS).env("CASE", case)
}

fn no_network() -> bool {
    libfabric().map_err(|why| skipped(&why)).is_err()
}

/// What the last rank says: the most that messages took and may take, how much the process grew (all in KiB), and strays.
fn said(ended: &Ended) -> [u64; 4] {
    let out = ended.succeeded();
    assert!(out.contains("all came\n"), "{ended:#?}");
    let line = out.lines().find_map(|line| line.split("most ").nth(1)).unwrap();
    println!("{line}");
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap()
}

/// How much a process may grow beyond what is set: receive and bounce buffers of ours, buffers of the provider for each
/// connection, replies that are kept. What comes in these tests is several times as much.
const BESIDES: u64 = 40 << 10;

#[test]
fn a_flood_at_handlers_takes_what_is_set() {
    if no_network() {
        return;
    }
    for (ranks, procs, memory, credits, progress) in [
        ("72", "9", "4M", "dynamic", "none"),
        ("72", "9", "4M", "dynamic", "thread"),
        ("6", "6", "2M", "static", "none"),
        ("6", "6", "1M", "dynamic", "none"),
    ] {
        let start = apart(&["-n", ranks, "--procs", procs], "handlers").env("PARTAGE_AM_MEMORY", memory);
        let ended = start.env("PARTAGE_CREDITS", credits).env("PARTAGE_PROGRESS", progress).end();
        let [most, may, growth, strays] = said(&ended);
        assert!(most > 0 && most <= may && may << 10 == memory_of(memory) && strays == 0, "{ended:#?}");
        assert!(growth <= may + BESIDES, "{growth} KiB: {ended:#?}");
        // Nobody could have sent all of it at once.
        assert!(ended.out.contains("stalls ") && !ended.out.contains("rank 0 stalls 0 "), "{ended:#?}");
    }
}

fn memory_of(text: &str) -> u64 {
    text.trim_end_matches('M').parse::<u64>().unwrap() << 20
}

#[test]
fn a_flood_of_calls_takes_what_is_set() {
    if no_network() {
        return;
    }
    let ended = apart(&["-n", "9"], "calls").env("PARTAGE_AM_MEMORY", "4M").end();
    let [most, may, growth, _] = said(&ended);
    // The lane of a rank's calls is half of it, and it was full.
    assert!(most <= may / 2 && most >= may / 4, "{ended:#?}");
    assert!(growth <= may + BESIDES, "{growth} KiB: {ended:#?}");
}

#[test]
fn replies_that_nobody_takes_are_not_piled_up() {
    if no_network() {
        return;
    }
    let ended = apart(&["-n", "2"], "replies").env("PARTAGE_PROGRESS", "none").end();
    let [_, _, growth, _] = said(&ended);
    // Four times as much was asked for.
    assert!(growth <= BESIDES, "{growth} KiB: {ended:#?}");
}

#[test]
fn everybody_floods_everybody() {
    if no_network() {
        return;
    }
    for (memory, credits) in [("2M", "dynamic"), ("32M", "dynamic"), ("32M", "static")] {
        let start = apart(&["-n", "12", "--procs", "6"], "all").env("PARTAGE_AM_MEMORY", memory);
        let [most, may, ..] = said(&start.env("PARTAGE_CREDITS", credits).end());
        assert!(most <= may, "{most} of {may} KiB");
    }
}

#[test]
fn memory_that_does_not_suffice_is_refused() {
    if no_network() {
        return;
    }
    let job = |memory: &str| apart(&["-n", "16", "--procs", "2"], "nothing").env("PARTAGE_AM_MEMORY", memory);
    let parts = ["PARTAGE_AM_MEMORY=524288: 8 ranks that 8 of other nodes send to need at least 1115136"];
    job("512K").end().failed(1, &parts);
    job("1115136").end().succeeded();
    let parts = ["PARTAGE_AM_MEMORY=8388608", "need at least 8650752 with PARTAGE_CREDITS=static"];
    job("8M").env("PARTAGE_CREDITS", "static").end().failed(1, &parts);
    job("1K").end().failed(2, &["PARTAGE_AM_MEMORY=1K: must be a size from 256K to 128G"]);
    job("much").end().failed(2, &["PARTAGE_AM_MEMORY=much: must be a size"]);
    let parts = ["PARTAGE_CREDITS=some: must be dynamic or static"];
    job("8M").env("PARTAGE_CREDITS", "some").end().failed(2, &parts);
}

/// The ports of a job's processes, as its ranks say them.
fn listening(running: &Running, ranks: usize) -> Vec<u16> {
    let out = running.out_says(|text| text.matches(" listens at [").count() == ranks);
    let lines = out.lines().filter_map(|line| line.split(" listens at [").nth(1));
    lines
        .flat_map(|line| line.trim_end_matches(']').split(", ").map(|p| p.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
}

/// Anybody can connect to where a provider listens. Whatever is sent there, the job goes on, and is no larger for it.
#[test]
fn strangers_who_send_anything() {
    if no_network() {
        return;
    }
    let directory = Directory::new("strangers");
    let stop = directory.0.join("stop");
    // Completions have a ring as long as there may be messages, whose pages are touched one after the other: 12 MiB for 32 of messages.
    let job = apart(&["-n", "3"], "strangers").env("PARTAGE_AM_MEMORY", "2M");
    let running = job.env("STOP", &stop).start();
    let (ports, mut seed) = (listening(&running, 3), 0x1234_5678_9abc_def1u64);
    assert!(ports.len() >= 3, "{ports:?}");
    let mut open = vec![];
    for i in 0..3000 {
        let port = ports[i % ports.len()];
        let Ok(mut stranger) =
            TcpStream::connect_timeout(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into(), Duration::from_secs(5))
        else {
            continue;
        };
        let mut bytes: Vec<u8> = (0..random(&mut seed) % 300).map(|_| random(&mut seed) as u8).collect();
        if i % 4 == 0 {
            // As the provider's own messages begin: small numbers.
            bytes.iter_mut().take(16).for_each(|b| *b %= 4);
        }
        let _ = stranger.write_all(&bytes);
        match i % 8 {
            // Some stay, some wait for an answer, most go.
            0 => open.push(stranger),
            1 => {
                let _ = stranger.set_read_timeout(Some(Duration::from_millis(1)));
                let _ = stranger.read(&mut [0; 64]);
            }
            _ => {}
        }
        if open.len() > 50 {
            open.remove(0);
        }
    }
    drop(open);
    std::fs::write(&stop, "").unwrap();
    let ended = running.wait();
    said(&ended);
    // Each process has had a thousand of them.
    let lines: Vec<&str> = ended.out.lines().filter_map(|line| line.split(" grew ").nth(1)).collect();
    assert_eq!(lines.len(), 3, "{ended:#?}");
    for line in lines {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [growth, before, after]: [u64; 3] = numbers.try_into().unwrap();
        assert!(growth < 8 << 10 && after < before + 100, "{line}: {ended:#?}");
    }
}

/// Messages that look like those of a job, but for its secret: they are counted, dropped and not answered.
#[test]
fn messages_of_another_job() {
    if no_network() {
        return;
    }
    let directory = Directory::new("forged");
    let stop = directory.0.join("stop");
    let running = apart(&["-n", "2"], "strangers").env("STOP", &stop).start();
    let ports = listening(&running, 2);
    let endpoint = Endpoint::open(&Asked { source: Some("127.0.0.1".into()), ..Asked::default() }).unwrap();
    let mut taken = 0;
    for port in ports {
        // The address of a socket, as the system has it.
        let mut name = endpoint.name().to_vec();
        name[2..4].copy_from_slice(&port.to_be_bytes());
        name[4..8].copy_from_slice(&[127, 0, 0, 1]);
        let Ok(peer) = endpoint.insert(&name) else { continue };
        let deadline = Instant::now() + Duration::from_secs(5);
        for i in 0..200u64 {
            // A greeting of rank 1 or 0, which would be answered; a request to rank 0 or 1; what some other bits make.
            let kinds = [6u64 << 56, 0, 4 << 56, 8 << 56, i << 32 | i];
            let forged = [0x5ec2_e7aa + i, (i % 2) | ((i + 1) % 2) << 24, kinds[i as usize % 5]];
            while Instant::now() < deadline {
                match endpoint.inject(peer, partage::bytemuck::bytes_of(&forged)) {
                    Posted::Done => {
                        taken += 1;
                        break;
                    }
                    _ => _ = endpoint.poll(&mut [Entry::EMPTY; 4]),
                }
            }
        }
        // It leaves.
        (0..1000).for_each(|_| _ = endpoint.poll(&mut [Entry::EMPTY; 4]));
    }
    assert!(taken > 0, "nothing could be sent");
    let mut entries = [Entry::EMPTY; 4];
    assert!(!matches!(endpoint.poll(&mut entries), Ok(n) if n > 0), "somebody has answered");
    running.out_says(|text| text.contains("rank 1 has dropped some\n"));
    std::fs::write(&stop, "").unwrap();
    let ended = running.wait();
    let [_, _, _, strays] = said(&ended);
    println!("{taken} were sent");
    assert!(strays > 0, "{ended:#?}");
}
