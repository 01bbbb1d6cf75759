//! Hosts that are lost, links that are cut, packets that go astray, and what of a job others can see. Hosts are network
//! namespaces, on which `ci/netns` inflicts the faults.

mod common;

use common::*;
use partage::am::Request;
use partage::prelude::*;
use std::process::Command;
use std::time::{Duration, Instant};

static ADD: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| _ = target.at(p).fetch_add(1));

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let (me, n) = (job.rank().index(), job.size());
        job.register_handlers(&[&ADD]);
        let cells = job.alloc_all::<u64>(1 << 16).unwrap();
        job.barrier();
        if me == 0 {
            job.println("ready");
        }
        let there = cells.on(Rank(((me + n / 2) % n) as u32));
        let (row, mut all) = (vec![me as u64; 1000], vec![0u64; 1000]);
        match case.as_str() {
            "put" => loop {
                there.put(job, 1);
            },
            "am" => loop {
                job.am(there.rank(), &ADD, there, &[]);
            },
            "rpc" => loop {
                job.rpc(there.rank(), |_, ()| (), ()).wait();
            },
            "barrier" => loop {
                job.barrier();
            },
            "collective" => loop {
                job.all_reduce(&row, Sum).to(&mut all).run();
            },
            "compute" => compute(Duration::from_secs(60)),
            // The last rank is not there for a while; the others wait for it.
            "busy" => {
                if me == n - 1 {
                    compute(Duration::from_millis(3500));
                } else {
                    let last = cells.on(Rank(n as u32 - 1));
                    (0..100).for_each(|_| job.am(last.rank(), &ADD, last, &[]));
                    last.add(1 + me).put(job, 7); // @put
                }
                job.quiet();
                job.barrier(); // @barrier
                if me == n - 1 {
                    assert_eq!(cells.get(job), 100 * (n as u64 - 1));
                    (1..n).for_each(|i| assert_eq!(cells.add(i).get(job), 7));
                    job.println("nothing is lost");
                }
            }
            // Until it is told to end.
            "go on" => {
                let mut rounds = 0u64;
                while job
                    .value(u64::from(std::env::var("FLAG").is_ok_and(|file| std::path::Path::new(&file).exists())))
                    .max()
                    == 0
                {
                    there.add(1 + me).put(job, rounds);
                    rounds += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                if me == 0 {
                    job.println("went on");
                }
            }
            _ => {}
        }
    });
}

fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
    }
}

fn job(namespaces: &Namespaces, options: &[&str], case: &str) -> Start {
    namespaces.run(options).arg(this_program()).args(RANKS).env("CASE", case)
}

/// A silence of two seconds is a loss here.
const HEARTBEAT: (&str, &str) = ("PARTAGE_HEARTBEAT", "2");
const SILENCE: Duration = Duration::from_secs(2);

/// Does something to a job; how it ended, and how long after that.
fn after(running: Running, what: impl FnOnce()) -> (Ended, Duration) {
    what();
    let done = running.begun.elapsed();
    let ended = running.wait_with(SOON_ACROSS);
    let took = ended.took.saturating_sub(done);
    println!("{took:?}: {}", ended.line());
    (ended, took)
}

/// How a job ends when a host is cut off.
fn cut_off(running: Running, cut: impl FnOnce()) -> Ended {
    let (ended, took) = after(running, cut);
    assert!(took < SILENCE + SOON_ACROSS, "{took:?}: {ended:#?}");
    ended.failed(1, &["(PARTAGE_HEARTBEAT)"]);
    ended
}

#[test]
fn a_cut_link_in_the_midst_of_everything() {
    let Some(namespaces) = two_hosts() else { return };
    for case in ["put", "am", "rpc", "collective", "compute"] {
        let running = job(&namespaces, &["-n", "4"], case).env(HEARTBEAT.0, HEARTBEAT.1).start();
        running.out_says(|text| text.contains("ready\n"));
        std::thread::sleep(Duration::from_millis(100));
        let ended = cut_off(running, || namespaces.fault(&["cut", &namespaces.host(2)]));
        // Of two hosts either may say it of the other.
        let hosts = [1, 2].map(|number| format!("host {} is lost: process ", namespaces.host(number)));
        assert!(hosts.iter().any(|host| ended.line().contains(host)), "{case}: {}", ended.line());
        namespaces.fault(&["heal"]);
    }
}

#[test]
fn one_of_four_hosts_is_cut_off() {
    let Some(namespaces) = hosts(4) else { return };
    let running = job(&namespaces, &["-n", "5"], "barrier").env(HEARTBEAT.0, HEARTBEAT.1).start();
    running.out_says(|text| text.contains("ready\n"));
    let ended = cut_off(running, || namespaces.fault(&["cut", &namespaces.host(3)]));
    // Whoever says it, itself or another, means the same host.
    let line = ended.line();
    let lost = namespaces.host(3);
    let said = [format!("host {lost} is lost: "), format!("host {lost} has lost its network: ")];
    assert!(said.iter().any(|said| line.contains(said)), "{line}");
    namespaces.fault(&["heal"]);

    // Two of them that do not reach each other, while all others do; at the start, and later.
    if !installed("nft") {
        return skipped("nft is not installed (Debian package nftables)");
    }
    let [two, four] = [namespaces.host(2), namespaces.host(4)];
    let running = job(&namespaces, &["-n", "4"], "collective").env(HEARTBEAT.0, HEARTBEAT.1).start();
    running.out_says(|text| text.contains("ready\n"));
    let ended = cut_off(running, || namespaces.fault(&["cut", &two, &four]));
    let line = ended.line();
    assert!(line.contains(&format!("host {two} is lost")) || line.contains(&format!("host {four} is lost")), "{line}");
    assert!(line.contains(&format!(" on {two} ")) || line.contains(&format!(" on {four} ")), "{line}");
    let ended = job(&namespaces, &["-n", "4"], "nothing").env("PARTAGE_CONNECT", "1").end();
    let line = ended.failed(1, &["did not answer", "within 1 s"]);
    for part in [format!("on {two}, 10.77.0.2:"), format!("on {four}, 10.77.0.4:")] {
        assert!(line.contains(&part), "`{part}` is not in `{line}`");
    }
    namespaces.fault(&["heal"]);
    job(&namespaces, &["-n", "4"], "nothing").end().succeeded();
}

/// The processes in a host's namespace.
fn processes_on(host: &str) -> Vec<i32> {
    let output = Command::new("ip").args(["netns", "pids", host]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill_host(host: &str) {
    processes_on(host).into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
}

#[test]
fn a_host_is_killed_in_the_midst_of_everything() {
    let Some(namespaces) = two_hosts() else { return };
    for case in ["put", "am", "collective"] {
        let running = job(&namespaces, &["-n", "4"], case).start();
        running.out_says(|text| text.contains("ready\n"));
        std::thread::sleep(Duration::from_millis(100));
        let host = namespaces.host(2);
        let (ended, took) = after(running, || kill_host(&host));
        assert!(took < SOON_ACROSS, "{case}: {took:?}: {ended:#?}");
        let line = ended.line();
        let lost = line.contains(&format!("the connection to host {host} was lost"));
        let seen = line.contains(&format!(" on {host} (pid ")) && line.contains("was killed by SIGKILL");
        assert!(ended.code != 0 && (lost || seen), "{case}: {ended:#?}");
    }
}

/// Under a launcher that is not ours there are no agents: the network itself notices.
#[test]
fn hosts_are_lost_under_mpirun() {
    if !installed("mpirun.mpich") {
        return skipped("mpirun.mpich is not installed");
    }
    let Some(namespaces) = two_hosts() else { return };
    let start = |case: &str| {
        let script = namespaces.ci("netns-mpirun");
        let mut start = program(script.get_program()).env("NETNS_PREFIX", &namespaces.prefix);
        start = start.env("CASE", case).env(HEARTBEAT.0, HEARTBEAT.1);
        let running = start.arg("4").arg(this_program()).args(RANKS).start();
        running.out_says(|text| text.contains("ready\n"));
        std::thread::sleep(Duration::from_millis(100));
        running
    };
    // Ranks end by themselves; what mpirun has started on a host that it cannot reach is not ours.
    let ends = |running: Running, within: Duration| {
        let begun = Moment::now();
        let ours = || [1, 2].iter().flat_map(|n| processes_on(&namespaces.host(*n))).any(is_ours);
        while ours() {
            assert!(begun.elapsed() < within + SOON_ACROSS, "ranks are left behind: {}", running.err());
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("{:?}", begun.elapsed());
        [1, 2].iter().for_each(|n| kill_host(&namespaces.host(*n)));
        running.wait_with(SOON_ACROSS).err
    };
    for case in ["put", "collective"] {
        let running = start(case);
        namespaces.fault(&["cut", &namespaces.host(2)]);
        let text = ends(running, SILENCE);
        let hosts = [1, 2].map(|number| format!("partage: host {} is lost: process ", namespaces.host(number)));
        assert!(hosts.iter().any(|host| text.contains(host)), "{case}: {text}");
        namespaces.fault(&["heal"]);
    }
    // Of a host that is killed mpirun hears itself, and ends the job with words of its own.
    let running = start("collective");
    kill_host(&namespaces.host(2));
    ends(running, Duration::ZERO);
}

/// Is this a rank of a job of these tests?
fn is_ours(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == this_program())
}

/// Neither is a process that stands still, nor one that computes and has nobody to answer for it.
#[test]
fn what_is_not_a_loss() {
    let Some(namespaces) = two_hosts() else { return };
    let directory = Directory::new("flag");
    let flag = directory.0.join("enough");
    let start = job(&namespaces, &["-n", "4"], "go on").env("PARTAGE_HEARTBEAT", "1").env("FLAG", &flag);
    let running = start.start();
    running.out_says(|text| text.contains("ready\n"));
    let of_rank = processes_with("PMI_RANK=3");
    let stopped = running.processes().into_iter().find(|pid| of_rank.contains(pid)).unwrap();
    kill(stopped, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(2500));
    kill(stopped, libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&flag, "").unwrap();
    assert!(running.wait().succeeded().contains("went on\n"));

    // It computes for longer than silence may last: a thread answers for it, or everybody knows that none does.
    for progress in ["thread", "none"] {
        let start = job(&namespaces, &["-n", "4", "--hang-after", "1"], "busy");
        let ended = start.env("PARTAGE_HEARTBEAT", "1").env("PARTAGE_PROGRESS", progress).end();
        assert!(ended.code == 0 && ended.out.contains("nothing is lost\n"), "{ended:#?}");
        // Those that wait meanwhile are reported: for the barrier, or for what nobody serves.
        let (call, place) = if progress == "thread" { ("barrier", at!("barrier")) } else { ("put", at!("put")) };
        assert!(ended.err.contains(&format!("waiting in {call} at {place}")), "{progress}: {ended:#?}");
    }
}

/// The addresses at which somebody listens in a host's namespace, as `ss` writes them.
fn listening(host: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "exec", host, "ss", "-Hltn"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect()
}

/// What others on the hosts and on the network can see of a job.
#[test]
fn nothing_listens_but_on_the_interface_in_use() {
    let Some(namespaces) = two_hosts() else { return };
    if !installed("ss") {
        return skipped("ss is not installed (Debian package iproute2)");
    }
    let running = job(&namespaces, &["-n", "4"], "compute").start();
    running.out_says(|text| text.contains("ready\n"));
    for number in [1, 2] {
        let (host, address) = (namespaces.host(number), format!("10.77.0.{number}:"));
        let found = listening(&host);
        // One for each process, and none for the agent.
        assert!(found.len() == 2 && found.iter().all(|at| at.starts_with(&address)), "{host}: {found:?}");
        for pid in processes_on(&host) {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
            let words = read("cmdline");
            let words: Vec<&str> = words.split_terminator('\0').collect();
            assert!(words[1..] == RANKS || words[1..] == ["agent"], "{words:?}");
            // Its number, the descriptor of its launcher, versions; nothing that would let another in.
            let known = [
                "PMI_FD",
                "PMI_RANK",
                "PMI_SIZE",
                "PARTAGE_PROTOCOL",
                "PARTAGE_THREADS",
                "PARTAGE_NODE",
                "PARTAGE_PROFILE",
            ];
            for variable in read("environ").split_terminator('\0') {
                let name = variable.split('=').next().unwrap();
                let ours = name.starts_with("PARTAGE_") || name.starts_with("PMI");
                assert!(!ours || known.contains(&name), "{variable}");
            }
        }
    }
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait().code, 143);
}
