//! Jobs over several hosts: `partage run --hosts`, with remote shells that only pretend to go elsewhere, and with network
//! namespaces where that is allowed.

mod common;

use common::*;
use partage_boot::Boot;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    match case.as_str() {
        "boot" => {
            let mut boot = Boot::connect(None).unwrap();
            for round in 0..4 {
                let blob = |process: usize| vec![process as u8; [0, 1, 70_000, 300][(process + round) % 4]];
                let all = boot.exchange(&blob(boot.process())).unwrap();
                assert!(all.iter().enumerate().all(|(process, bytes)| *bytes == blob(process)));
                assert_eq!(all.len(), boot.processes());
            }
            boot.finalize();
            println!("exchanged");
            std::process::exit(0);
        }
        "wait" => {
            let mut boot = Boot::connect(None).unwrap();
            boot.fence().unwrap();
            println!("ready\n");
            boot.fence().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        // The memory of one node: all hosts here are one, whatever they are called.
        _ => partage::run(|job| {
            if job.rank().0 == 3 {
                std::thread::sleep(Duration::from_secs(60));
            }
            job.barrier(); // @barrier
        }),
    }
}

/// A remote shell that drops the name of the host and does as it is told. It is a file for as long as this lives.
struct Rsh {
    directory: Directory,
    path: PathBuf,
}

fn rsh(script: &str) -> Rsh {
    let directory = Directory::new("rsh");
    let path = directory.script("rsh", &format!("#!/bin/sh\n{script}\n"));
    Rsh { directory, path }
}

/// As `ip netns exec` does it: the agent takes the place of the shell.
fn exec() -> Rsh {
    rsh(r#"shift; exec "$@""#)
}

/// As `ssh` does it: the agent is another process than the shell.
fn through() -> Rsh {
    rsh(r#"shift; "$@"; exit $?"#)
}

impl Rsh {
    fn run(&self, hosts: &str, options: &[&str]) -> Start {
        run(&["--hosts", hosts, "--rsh"]).arg(&self.path).args(options)
    }

    fn job(&self, hosts: &str, options: &[&str], case: &str) -> Start {
        self.run(hosts, options).arg(this_program()).args(RANKS).env("CASE", case).env("PARTAGE_NODE", "one")
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort();
    lines
}

#[test]
fn output_labels_and_environment() {
    let script = r#"echo "$PMI_RANK on $PARTAGE_NODE, $FORWARDED, $TMPDIR"; echo "error" >&2"#;
    for rsh in [exec(), through(), rsh(r#"shift; echo Welcome; TMPDIR=/there; export TMPDIR; exec "$@""#)] {
        let there = std::fs::read_to_string(&rsh.path).unwrap().contains("TMPDIR");
        let start = rsh.run("a,b", &["-n", "5", "--procs", "3", "--label", "sh", "-c", script]);
        let ended = start.env("FORWARDED", "two words").env("TMPDIR", "/here").end();
        assert_eq!(ended.code, 0, "{ended:#?}");
        let of_host = if there { "/there" } else { "/here" };
        let expect =
            ["[0-1] 0 on a", "[2-3] 1 on a", "[4] 2 on b"].map(|begin| format!("{begin}, two words, {of_host}"));
        assert_eq!(sorted(&ended.out), expect, "{ended:#?}");
        assert_eq!(sorted(&ended.err), ["[0-1] error", "[2-3] error", "[4] error"], "{ended:#?}");
    }
    let ended = exec().run("a,b", &["-n", "2", "printf", "no end of line"]).end();
    assert_eq!(ended.succeeded(), "no end of line".repeat(2));
    let ended = exec().run("a", &["-n", "1", "sh", "-c", "pwd; echo $PARTAGE_NODE"]).env("PARTAGE_NODE", "mine").end();
    assert_eq!(ended.succeeded(), format!("{}\nmine\n", std::env::current_dir().unwrap().display()));
}

#[test]
fn a_lot_of_output_is_not_lost() {
    let script =
        r#"i=0; while [ $i -lt 20000 ]; do echo "line $i of a text that is a little longer"; i=$((i+1)); done"#;
    let rsh = through();
    let running = rsh.run("a,b", &["-n", "2", "--label", "sh", "-c", script]).start();
    let ended = running.wait();
    let of = |label: &str| ended.out.lines().filter(|line| line.starts_with(label)).count();
    assert_eq!((ended.code, of("[0] line "), of("[1] line ")), (0, 20_000, 20_000), "{}", ended.err);
}

/// Without labels, too, whole lines come, though both hosts write at once.
#[test]
fn lines_are_not_torn() {
    let script = r#"i=0; while [ $i -lt 20000 ]; do echo "line $PMI_RANK $i of a text that is a little longer"; i=$((i+1)); done"#;
    let ended = exec().run("a,b", &["-n", "2", "sh", "-c", script]).end();
    let whole = |line: &&str| line.starts_with("line ") && line.ends_with(" of a text that is a little longer");
    assert_eq!((ended.code, ended.out.lines().filter(whole).count()), (0, 40_000), "{}", ended.err);
}

/// An agent that dies after its processes may have had something to tell.
#[test]
fn output_whose_end_is_lost() {
    let rsh = exec();
    // Rank 0 ends when the agent of rank 1 is dead, long after rank 1.
    let script = r#"if [ $PMI_RANK = 1 ]; then (sleep 1; kill -9 $PPID; : > "$DEAD") &
        else until [ -e "$DEAD" ]; do sleep 0.02; done; fi"#;
    let start = rsh.run("a,b", &["-n", "2", "sh", "-c", script]);
    let ended = start.env("DEAD", rsh.directory.0.join("dead")).end();
    ended.failed_soon(1, &["partage: host b: the end of what its processes wrote was lost"]);
}

/// A remote shell that stays when its agent has told everything is not waited for as one that has not.
#[test]
fn remote_shells_that_linger() {
    let rsh = rsh(r#"shift; "$@"; exec sleep 60"#);
    let ended = rsh.run("a,b", &["-n", "2", "sh", "-c", "echo here"]).end();
    assert_eq!(ended.succeeded(), "here\nhere\n");
    assert!(ended.took < SOON, "{ended:#?}");
}

/// A word that takes longer than silence may last is waited for as long as parts of it come.
#[test]
fn output_that_comes_slowly() {
    // From host b come 20 KiB in a second.
    let slow = r#"
        if [ "$1" = a ]; then shift; exec "$@"; fi
        shift
        { "$@"; : > "$0.over"; } | {
            left=12
            while [ $left -gt 0 ]; do
                dd bs=8192 count=1 2> /dev/null
                sleep 0.4
                if [ -e "$0.over" ]; then left=$((left-1)); fi
            done
        }"#;
    let rsh = rsh(slow);
    // Rank 1 has ended before what it has started writes, and rank 0 ends after that.
    let script = r#"if [ $PMI_RANK = 1 ]; then
            (sleep 1; dd bs=60000 count=1 if=/dev/zero 2> /dev/null; : > "$DONE") &
        else until [ -e "$DONE" ]; do sleep 0.02; done; fi"#;
    let start = rsh.run("a,b", &["-n", "2", "sh", "-c", script]).env("PARTAGE_HEARTBEAT", "2");
    let ended = start.env("DONE", rsh.directory.0.join("done")).start().wait_with(Duration::from_secs(1));
    assert_eq!(ended.succeeded().len(), 60_000);
}

/// The name of an agent's host is not that of the hosts of a job inside.
#[test]
fn a_job_over_hosts_in_a_job_over_hosts() {
    let (outer, inner) = (exec(), exec());
    let script =
        format!("'{}' run --hosts c,d --rsh '{}' -n 2 sh -c 'echo $PARTAGE_NODE'", partage(), inner.path.display());
    let ended = outer.run("a", &["-n", "1", "sh", "-c", &script]).end();
    assert_eq!(sorted(ended.succeeded()), ["c", "d"]);
}

#[test]
fn output_that_nobody_reads_for_a_while() {
    let rsh = exec();
    let mut command = Command::new(partage());
    command.args(["run", "--hosts", "a,b", "--rsh"]).arg(&rsh.path).args([
        "-n",
        "2",
        "head",
        "-c",
        "50000000",
        "/dev/zero",
    ]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")).unwrap();
    // What is bounded is some queues of a megabyte or two, and what they were before they grew; not the hundred megabytes.
    assert!(memory.parse::<usize>().unwrap() < 40_000, "all is held in memory: {memory} kB");
    let read = std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read, 100_000_000);
}

#[test]
fn input_goes_to_rank_zero() {
    for rsh in [exec(), through()] {
        let (read, mut write) = std::io::pipe().unwrap();
        let mut start = rsh.run("a,b", &["-n", "2", "--label", "cat"]);
        start.command.stdin(Stdio::from(read));
        let running = start.start();
        let text: String = (0..50_000).map(|i| format!("line {i}\n")).collect();
        write.write_all(text.as_bytes()).unwrap();
        drop(write);
        let ended = running.wait();
        let lines: Vec<&str> = ended.succeeded().lines().collect();
        assert_eq!(lines.len(), 50_000);
        assert!(lines.iter().enumerate().all(|(i, line)| *line == format!("[0] line {i}")));
    }
    // One that does not read.
    let (read, mut write) = std::io::pipe().unwrap();
    let rsh = exec();
    let mut start = rsh.run("a,b", &["-n", "2", "true"]);
    start.command.stdin(Stdio::from(read));
    let running = start.start();
    let _ = write.write_all(&[b'x'; 30_000]);
    running.wait().succeeded();
}

#[test]
fn exchanges() {
    for (hosts, ranks, procs) in [("a", 1, 1), ("a,b", 2, 2), ("a,b", 7, 5), ("a,b,c", 7, 7), ("a,b,a", 9, 4)] {
        let (n, p) = (ranks.to_string(), procs.to_string());
        let ended = through().job(hosts, &["-n", &n, "--procs", &p], "boot").end();
        assert_eq!((ended.code, ended.out.matches("exchanged\n").count()), (0, procs), "{ended:#?}");
    }
}

#[test]
fn the_mapping_of_processes_to_hosts() {
    let script = r#"
        ask() { printf '%s\n' "$1" >&$PMI_FD; read -r answer <&$PMI_FD; }
        ask "cmd=init pmi_version=1 pmi_subversion=1"
        ask "cmd=get kvsname=any key=PMI_process_mapping"
        echo "${answer#*value=}"
        ask "cmd=finalize""#;
    for (hosts, expect) in [("a,b", "(vector,(0,1,3),(1,1,2))"), ("a,b,a", "(vector,(0,2,2),(0,1,1))")] {
        let ended = exec().run(hosts, &["-n", "5", "bash", "-c", script]).end();
        assert_eq!(ended.succeeded(), format!("{expect}\n").repeat(5));
    }
}

#[test]
fn the_code_of_the_first_failure() {
    let script = r#"[ "$PMI_RANK" = 2 ] && exit 5; exec sleep 60"#;
    let ended = exec().run("a,b", &["-n", "4", "sh", "-c", script]).end();
    assert!(ended.took < SOON_ACROSS);
    let line = ended.failed(5, &["exited with code 5"]);
    assert!(line.starts_with("partage: rank 2 on b (pid "), "{line}");
}

#[test]
fn all_fail_at_once() {
    for rsh in [exec(), through()] {
        for _ in 0..10 {
            let ended = rsh.run("a,b", &["-n", "4", "sh", "-c", "exit 3"]).end();
            ended.failed(3, &[") exited with code 3"]);
        }
    }
}

/// A process, an agent or the launcher, at any moment: the job ends soon, says who it was, and nothing of it is left.
#[test]
fn kills_at_any_moment() {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut seed = time.as_nanos() as u64 | 1;
    let mut below = |bound: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % bound
    };
    let rsh = exec();
    for round in 0..40 {
        let running = rsh.job("a,b,c", &["-n", "5"], "wait").start();
        let delay = Duration::from_micros(below(60_000));
        std::thread::sleep(delay);
        let agents = running.children();
        let processes: Vec<i32> = agents.iter().flat_map(|agent| children_of(*agent)).collect();
        let pick = |of: &[i32], number: u64| of.get(number as usize % of.len().max(1)).copied();
        let (kind, number) = (below(6), below(100));
        let victim = match kind {
            0 => running.pid(),
            1 => pick(&agents, number).unwrap_or(running.pid()),
            _ => pick(&processes, number).or(pick(&agents, number)).unwrap_or(running.pid()),
        };
        kill(victim, libc::SIGKILL);
        let killed = Moment::now();
        let launcher = victim == running.pid();
        let ended = running.wait_with(SOON_ACROSS);
        let what = format!("round {round}: {victim} of {agents:?} {processes:?} after {delay:?}: {ended:#?}");
        assert!(killed.elapsed() < SOON_ACROSS, "{what}");
        let (code, line) = match victim {
            _ if launcher => (137, ""),
            victim if processes.contains(&victim) => (137, " was killed by SIGKILL"),
            // Before its agent has said that it is ready nothing is started.
            _ if ended.code == 2 => (2, "` was killed by SIGKILL"),
            _ => (1, " was lost (`"),
        };
        assert_eq!(ended.code, code, "{what}");
        assert!(launcher || ended.line().contains(line), "{what}");
    }
}

#[test]
fn a_process_is_killed() {
    for rsh in [exec(), through()] {
        let running = rsh.job("hosta,hostb", &["-n", "4"], "wait").start();
        running.out_says(|text| text.matches("ready\n").count() == 4);
        let victim = processes_of(&running, "3");
        kill(victim, libc::SIGKILL);
        let killed = Moment::now();
        let ended = running.wait();
        assert!(killed.elapsed() < SOON_ACROSS);
        let line = ended.failed(137, &["was killed by SIGKILL"]);
        assert!(line.starts_with(&format!("partage: rank 3 on hostb (pid {victim}) ")), "{line}");
    }
}

/// The process of the job whose PMI_RANK is so.
fn processes_of(running: &Running, rank: &str) -> i32 {
    let has = |pid: &i32| processes_with(&format!("PMI_RANK={rank}")).contains(pid);
    running.processes().into_iter().find(has).unwrap()
}

#[test]
fn an_agent_is_killed() {
    let rsh = exec();
    let running = rsh.job("hosta,hostb", &["-n", "4"], "wait").start();
    running.out_says(|text| text.matches("ready\n").count() == 4);
    let agents = running.children();
    assert_eq!(agents.len(), 2);
    kill(agents[1], libc::SIGKILL);
    let killed = Moment::now();
    let ended = running.wait_with(SOON_ACROSS);
    assert!(killed.elapsed() < SOON_ACROSS);
    ended.failed(1, &["the connection to host hostb was lost (", "rsh` was killed by SIGKILL"]);
}

#[test]
fn an_agent_is_told_to_end() {
    let rsh = through();
    let running = rsh.job("hosta,hostb", &["-n", "4"], "wait").start();
    running.out_says(|text| text.matches("ready\n").count() == 4);
    let agent = children_of(running.children()[0])[0];
    kill(agent, libc::SIGTERM);
    running.wait().failed(1, &["the connection to host hosta was lost"]);
}

#[test]
fn the_launcher_is_killed() {
    for rsh in [exec(), through()] {
        for program in ["wait", "sleep"] {
            let start = match program {
                "wait" => rsh.job("a,b", &["-n", "4"], "wait"),
                _ => rsh.run("a,b", &["-n", "4", "sh", "-c", "echo ready; sleep 60 & wait"]),
            };
            let running = start.start();
            running.out_says(|text| text.matches("ready\n").count() == 4);
            running.signal(libc::SIGKILL);
            assert_eq!(running.wait_with(SOON_ACROSS).code, 137);
        }
    }
}

#[test]
fn signals() {
    for (signal, code, line) in [
        (libc::SIGINT, 130, "partage: interrupted by SIGINT"),
        (libc::SIGTERM, 143, "partage: interrupted by SIGTERM"),
        (libc::SIGUSR1, 138, "was killed by SIGUSR1"),
    ] {
        let rsh = through();
        let running = rsh.job("a,b", &["-n", "2"], "wait").start();
        running.out_says(|text| text.matches("ready\n").count() == 2);
        running.signal(signal);
        let signalled = Moment::now();
        running.wait().failed(code, &[line]);
        assert!(signalled.elapsed() < SOON_ACROSS);
    }
}

#[test]
fn reports() {
    let rsh = through();
    let running = rsh.job("hosta,hostb", &["-n", "4"], "partage").start();
    let (barrier, report) = (at!("barrier"), "partage: where the 4 ranks are (3 waiting):\n");
    running.report_says(|text| {
        text.contains(report)
            && text.contains(&format!("\n  ranks 0-2 on 2 hosts  waiting in barrier at {barrier}"))
            && text.contains("\n  rank 3 on hostb       computing\n")
    });
    kill(processes_of(&running, "2"), libc::SIGKILL);
    let ended = running.wait();
    let line = ended.failed(137, &["was killed by SIGKILL while in barrier at ", &barrier]);
    assert!(line.starts_with("partage: rank 2 on hostb (pid "), "{line}");

    let rsh = exec();
    let running = rsh.job("hosta,hostb", &["-n", "4", "--procs", "2", "--hang-after", "1"], "partage").start();
    running.err_says(|text| text.contains(report) && text.contains("rank 3 on hostb "));
    running.signal(libc::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.err.matches(report).count(), 1, "{}", ended.err);
    let ended = exec().job("hosta,hostb", &["-n", "4", "--timeout", "3"], "partage").end();
    ended.failed(124, &["did not end within 3 s"]);
    assert!(ended.err.contains(report), "{}", ended.err);
}

#[test]
fn what_cannot_be_started() {
    let said = |start: Start| {
        let ended = start.end();
        assert!(ended.took < SOON_ACROSS);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{ended:#?}");
        ended.err.lines().last().unwrap().to_owned()
    };
    let line = said(run(&["--hosts", "a,b", "--rsh", "no-such-shell", "-n", "2", "true"]));
    assert!(line.starts_with("partage: cannot start `no-such-shell`, the remote shell, for host a: "), "{line}");

    let refuses = rsh(r#"[ $1 = b ] && { echo "b: no route to host" >&2; exit 255; }; shift; exec "$@""#);
    let line = said(refuses.run("a,b", &["-n", "2", "echo", "not to be seen"]));
    let (begin, end) = ("partage: host b: `", "rsh` ended with code 255 before an agent answered: b: no route to host");
    assert!(line.starts_with(begin) && line.ends_with(end), "{line}");

    let line = said(exec().run("a,b", &["-n", "2", "no-such-program"]));
    assert_eq!(line.replace("host b", "host a"), "partage: host a: `no-such-program` is not in any directory of PATH");
    let lacks = rsh(r#"host=$1; shift; [ $host = b ] && mv app elsewhere; exec "$@""#);
    let program = lacks.directory.script("app", "#!/bin/sh\necho not to be seen\n");
    let mut start = lacks.run("b", &["-n", "2"]).arg("./app");
    start.command.current_dir(&lacks.directory.0);
    assert_eq!(said(start), "partage: host b: `./app` does not exist");
    assert!(!program.exists());

    let elsewhere = rsh(r#"shift; rmdir gone; exec "$@""#);
    let gone = elsewhere.directory.0.join("gone");
    std::fs::create_dir(&gone).unwrap();
    let removes = rsh(&format!(r#"shift; rmdir {}; exec "$@""#, gone.display()));
    let mut start = removes.run("b", &["-n", "2", "true"]);
    start.command.current_dir(&gone);
    let line = said(start);
    assert!(line.starts_with(&format!("partage: host b: cannot enter `{}`: ", gone.display())), "{line}");

    let other = rsh(r#"echo "partage-agent protocol=99 version=7.5"; exec sleep 60"#);
    let line = said(other.run("a,b", &["-n", "2", "true"]));
    assert!(line.contains(": its `partage` is of another version: 7.5 with agent protocol 99, here it is "), "{line}");

    for (options, expect) in [
        (&["--hosts", "a,,b", "-n", "4", "true"][..], "partage: --hosts a,,b: a host has a name"),
        (&["--hosts", "a,b,c", "-n", "2", "true"], "partage: 3 hosts for 2 processes: a host has at least one process"),
        (&["--hosts", "a", "--rsh", " ", "-n", "2", "true"], "partage: --rsh: there is no command in it"),
    ] {
        assert_eq!(said(run(options)), expect);
    }
    let ended = run(&["--rsh", "ssh", "-n", "2", "true"]).end();
    assert!(ended.code == 2 && ended.err.contains("--hosts"), "{ended:#?}");
}

fn with_file(rsh: &Rsh, text: &str, options: &[&str]) -> Start {
    let file = rsh.directory.0.join("hosts");
    std::fs::write(&file, text).unwrap();
    run(&["--hostfile"]).arg(file).arg("--rsh").arg(&rsh.path).args(options)
}

#[test]
fn host_files_and_slots() {
    let text = "# the cluster\n\na slots=2   # a big one\r\nb:1\n\tc\n#d slots=9";
    let script = ["sh", "-c", r#"echo "$PMI_RANK of $PMI_SIZE on $PARTAGE_NODE, $PARTAGE_THREADS""#];
    // Who is not needed is not asked.
    let rsh = rsh(r#"[ $1 = c ] && [ -n "$NOT_C" ] && exit 9; echo $1 >>"${0%/*}/reached"; shift; exec "$@""#);
    let said = |start: Start| sorted(start.args(script).end().succeeded()).join("; ");
    let all = "0 of 4 on a, 1; 1 of 4 on a, 1; 2 of 4 on b, 1; 3 of 4 on c, 1";
    assert_eq!(said(with_file(&rsh, text, &[])), all);
    assert_eq!(said(rsh.run("a:2,b:1,c", &[])), all);
    let some = said(with_file(&rsh, text, &["-n", "3"]).env("NOT_C", "1"));
    assert_eq!(some, "0 of 3 on a, 1; 1 of 3 on a, 1; 2 of 3 on b, 1");
    let some = said(with_file(&rsh, text, &["-n", "5", "--procs", "3"]).env("NOT_C", "1"));
    assert_eq!(some, "0 of 3 on a, 2; 1 of 3 on a, 2; 2 of 3 on b, 1");
    // As the node files of batch systems are: one agent for a host's lines that follow each other.
    std::fs::remove_file(rsh.directory.0.join("reached")).unwrap();
    let lines = said(with_file(&rsh, "a\na\nb\nb\n", &["-n", "4"]));
    assert_eq!(lines, "0 of 4 on a, 1; 1 of 4 on a, 1; 2 of 4 on b, 1; 3 of 4 on b, 1");
    let reached = std::fs::read_to_string(rsh.directory.0.join("reached")).unwrap();
    assert_eq!(sorted(&reached), ["a", "b"]);
}

#[test]
fn host_files_that_are_wrong() {
    let rsh = exec();
    let complaint = |start: Start| {
        let ended = start.args(["-n", "8", "true"]).end();
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{ended:#?}");
        ended.line().replace(&*rsh.directory.0.to_string_lossy(), "DIR")
    };
    for (text, why) in [
        ("a\n\n# b\nc slots=none\n", ", line 4: `none` slots: a host has 1 to 65536"),
        ("a:0", ", line 1: `0` slots: a host has 1 to 65536"),
        ("a b", ", line 1: `b` is not understood; write a host, and slots=N if need be"),
        ("a\n-oProxyCommand=x", ", line 2: `-oProxyCommand=x`: the name of a host does not begin with a hyphen"),
        ("", " has no hosts; write one on each line"),
        ("# a\n\n  \n", " has no hosts; write one on each line"),
    ] {
        assert_eq!(complaint(with_file(&rsh, text, &[])), format!("partage: host file DIR/hosts{why}"));
    }
    let line = complaint(with_file(&rsh, "a:4\nb", &[]));
    assert_eq!(
        line,
        "partage: 8 processes, but the hosts have 5 slots; --procs 5 makes as many processes of more ranks"
    );
    let at = |path: PathBuf| complaint(run(&["--hostfile"]).arg(path));
    std::fs::write(rsh.directory.0.join("binary"), b"a\n\xff\xfe\0\n").unwrap();
    assert_eq!(at(rsh.directory.0.join("binary")), "partage: host file DIR/binary, line 2: it is not text");
    std::fs::File::create(rsh.directory.0.join("huge")).unwrap().set_len(20 << 20).unwrap();
    assert_eq!(
        at(rsh.directory.0.join("huge")),
        "partage: host file DIR/huge is longer than 16 MiB: is it another file?"
    );
    for path in [rsh.directory.0.clone(), rsh.directory.0.join("no-such-file"), rsh.path.join("not-a-directory")] {
        let line = at(path);
        assert!(line.starts_with("partage: host file DIR") && line.contains(" cannot be read: "), "{line}");
    }
    let ended = with_file(&rsh, "a", &["--hosts", "b", "-n", "1", "true"]).end();
    assert!(ended.code == 2 && ended.err.contains("cannot be used with"), "{ended:#?}");
}

/// What `ssh` is told, so that it never asks.
#[test]
fn ssh_is_the_remote_shell() {
    let directory = Directory::new("ssh");
    let log = directory.0.join("log");
    directory.script(
        "ssh",
        &format!(
            "#!/bin/sh\necho \"$@\" >>{}\nwhile [ \"$1\" = -o ]; do shift 2; done\nshift; exec sh -c \"$*\"\n",
            log.display()
        ),
    );
    let path = format!("{}:{}", directory.0.display(), std::env::var("PATH").unwrap());
    let ended = run(&["--hosts", "a", "-n", "2", "echo", "reached"]).env("PATH", path).end();
    assert_eq!(ended.succeeded(), "reached\n".repeat(2));
    let expect = format!("-o BatchMode=yes -o ConnectTimeout=10 a {} agent\n", partage());
    assert_eq!(std::fs::read_to_string(log).unwrap(), expect);
}

/// An `sshd` of this test's own, on a port of the loopback interface. It ends with this.
struct Sshd {
    directory: Directory,
    child: std::process::Child,
}

impl Sshd {
    /// An error says why there is none.
    fn start() -> Result<Sshd, String> {
        let program = "/usr/sbin/sshd";
        if !std::path::Path::new(program).exists() || !installed("ssh") || !installed("ssh-keygen") {
            return Err("sshd or ssh is not installed (Debian packages openssh-server, openssh-client)".into());
        }
        let directory = Directory::new("sshd");
        let at = |name: &str| directory.0.join(name).display().to_string();
        for key in ["host", "user"] {
            let status = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(status.unwrap().success());
        }
        // Where root wants it for the part without rights.
        let _ = std::fs::create_dir_all("/run/sshd");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes \
             no\nPermitRootLogin yes\nPasswordAuthentication no\n",
            at("host"),
            at("user.pub"),
        );
        let client = format!(
            "Host hosta hostb\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {}\n",
            at("user"),
            at("known"),
        );
        std::fs::write(at("sshd_config"), server).unwrap();
        std::fs::write(at("ssh_config"), client).unwrap();
        let mut command = Command::new(program);
        command.args(["-D", "-e", "-f", &at("sshd_config")]).stdin(Stdio::null());
        let log = std::fs::File::create(at("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut sshd = Sshd { directory, child };
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if sshd.child.try_wait().unwrap().is_some() {
                return Err(format!("sshd does not start: {}", sshd.log().trim()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(sshd)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.0.join("log")).unwrap()
    }

    fn run(&self, hosts: &str, options: &str) -> Start {
        let shell = format!("ssh -F {}/ssh_config -o BatchMode=yes {options}", self.directory.0.display());
        run(&["--hosts", hosts, "--rsh", &shell])
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn over_ssh_itself() {
    let sshd = match Sshd::start() {
        Ok(sshd) => sshd,
        Err(why) => return skipped(&why),
    };
    let job = || sshd.run("hosta:2,hostb:1", "-o StrictHostKeyChecking=accept-new");
    let ended = job().arg(this_program()).args(RANKS).env("CASE", "boot").end();
    assert_eq!((ended.code, ended.out.matches("exchanged\n").count()), (0, 3), "{ended:#?}\n{}", sshd.log());

    let running = job().arg(this_program()).args(RANKS).env("CASE", "wait").start();
    running.out_says(|text| text.matches("ready\n").count() == 3);
    // The connection of the second host breaks: its agent ends what it has started.
    let shell = running.children()[1];
    kill(shell, libc::SIGKILL);
    let ended = running.wait_with(SOON_ACROSS);
    ended.failed(1, &["the connection to host hostb was lost (`ssh` was killed by SIGKILL"]);

    // A host that nobody knows is not asked about, but refused.
    let ended = sshd.run("hosta", "-o StrictHostKeyChecking=yes -o UserKnownHostsFile=/dev/null").arg("true").end();
    assert_eq!(ended.code, 2, "{ended:#?}");
    let line = ended.err.lines().last().unwrap();
    assert!(line.starts_with("partage: host hosta: `ssh` ended with code 255 before an agent answered: "), "{line}");
}

#[test]
fn a_host_that_does_not_answer() {
    let silent = rsh(r#"[ $1 = b ] && exec sleep 60; shift; exec "$@""#);
    let ended = silent.run("a,b", &["-n", "2", "--timeout", "1", "true"]).end();
    assert!(ended.took < Duration::from_secs(1) + SOON_ACROSS);
    ended.failed(124, &["did not end within 1 s"]);
    let running = silent.run("a,b", &["-n", "2", "true"]).start();
    while running.children().len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(200));
    running.signal(libc::SIGINT);
    running.wait().failed(130, &["interrupted by SIGINT"]);
}

/// A link that is cut sends nothing, nor does an agent that is stopped.
#[test]
fn a_host_that_falls_silent() {
    let rsh = exec();
    let running = rsh.job("a,b", &["-n", "2"], "wait").env("PARTAGE_HEARTBEAT", "3").start();
    running.out_says(|text| text.matches("ready\n").count() == 2);
    kill(running.children()[1], libc::SIGSTOP);
    let ended = running.wait_with(SOON_ACROSS);
    ended.failed(1, &["the connection to host b was lost (nothing was heard from it for 3 s)"]);
    assert!(ended.took < Duration::from_secs(3) + 2 * SOON_ACROSS);
    // Nobody else is left who could say so.
    let running = rsh.job("a", &["-n", "2"], "wait").env("PARTAGE_HEARTBEAT", "2").start();
    running.out_says(|text| text.matches("ready\n").count() == 2);
    kill(running.children()[0], libc::SIGSTOP);
    let ended = running.wait_with(SOON_ACROSS);
    ended.failed(1, &["the connection to host a was lost (nothing was heard from it for 2 s)"]);
}

#[test]
fn nonsense_from_an_agent() {
    for bytes in [r"\377\377\377\377", r"\001\000\000\000\143"] {
        let nonsense =
            rsh(&format!(r#"echo "partage-agent protocol=2 version=1"; printf '{bytes}'; exec cat >/dev/null"#));
        let ended = nonsense.run("b", &["-n", "2", "true"]).end();
        ended.failed(2, &["the connection to host b was lost (a frame "]);
    }
}

#[test]
fn network_namespaces() {
    let namespaces = match Namespaces::up() {
        Ok(namespaces) => namespaces,
        Err(why) => return skipped(&format!("no network namespaces: {why}")),
    };
    let prefix = &namespaces.prefix;
    let script = r#"echo "$PARTAGE_NODE $(ip -4 -o addr show eth0 | awk '{ print $4 }')""#;
    let ended = namespaces.run(&["-n", "2", "sh", "-c", script]).end();
    let expect = [format!("{prefix}1 10.77.0.1/24"), format!("{prefix}2 10.77.0.2/24")];
    assert_eq!(sorted(ended.succeeded()), expect);

    let ended = namespaces.run(&["-n", "5"]).arg(this_program()).args(RANKS).env("CASE", "boot").end();
    assert_eq!((ended.code, ended.out.matches("exchanged\n").count()), (0, 5), "{ended:#?}");

    let running = namespaces.run(&["-n", "4"]).arg(this_program()).args(RANKS).env("CASE", "wait").start();
    running.out_says(|text| text.matches("ready\n").count() == 4);
    kill(processes_of(&running, "3"), libc::SIGKILL);
    let killed = Moment::now();
    let ended = running.wait();
    assert!(killed.elapsed() < SOON_ACROSS);
    ended.failed(137, &[&format!("rank 3 on {prefix}2 (pid "), "was killed by SIGKILL"]);

    if !installed("mpirun.mpich") {
        return skipped("mpirun.mpich is not installed");
    }
    let output = namespaces.ci("netns-mpirun").args(["4", "sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:#?}");
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(sorted(&out), [&expect[0], &expect[0], &expect[1], &expect[1]]);
}
