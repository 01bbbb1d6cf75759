//! Whole jobs, from `launch` to the last process, and what is left of them.
//!
//! The processes of these jobs are this test program again: `child` below, when `BOOT_TEST_ROLE`
//! says what to do. Where the launcher's own output or signals matter, the launcher is such a
//! process, too.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use partage_boot::{Boot, Ended, Error, Host, Hosts, Input, Kind, Observer, Row, Spec, launch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGPIPE, SIGSEGV, SIGTERM};

/// After the first failure of a job, its end. A second is promised, the rest is for busy machines.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn exchanges_of_all_sizes() {
    for procs in 1..=5 {
        assert_eq!(job(procs, "exchange").unwrap(), Ended { code: 0, why: None });
    }
}

#[test]
fn several_ranks_in_a_process() {
    let spec = Spec { procs: 3, ..spec(8, "threads") };
    assert_eq!(run(&spec).unwrap(), Ended { code: 0, why: None });
}

#[test]
fn a_killed_process_ends_the_job() {
    struct Doing;
    impl Observer for Doing {
        fn doing(&mut self, process: usize) -> Option<String> {
            Some(format!("rank {process} was in barrier at src/main.rs:12:9"))
        }
    }
    let begin = Instant::now();
    let ended = launch(&spec(4, "killed"), &mut Doing).unwrap();
    assert!(begin.elapsed() < SOON);
    let why = ended.why.unwrap();
    assert!(why.starts_with("partage: rank 2 on "), "{why}");
    assert!(why.ends_with(") was killed by SIGKILL while in barrier at src/main.rs:12:9"), "{why}");
    assert_eq!(ended.code, 137);
}

#[test]
fn an_early_exit_ends_the_job() {
    let begin = Instant::now();
    let ended = run(&Spec { procs: 2, ..spec(5, "early") }).unwrap();
    assert!(begin.elapsed() < SOON);
    let why = ended.why.unwrap();
    assert!(why.starts_with("partage: ranks 3-4 on "), "{why}");
    assert!(why.ends_with(") exited with code 0 before the job was over"), "{why}");
    assert_eq!(ended.code, 1);
}

#[test]
fn the_code_of_the_first_failure_is_that_of_the_job() {
    let ended = job(3, "code").unwrap();
    assert_eq!(ended.code, 7);
    assert!(ended.why.unwrap().ends_with(") exited with code 7 before the job was over"));
}

#[test]
fn leaving_while_others_wait() {
    for role in ["never joins", "leaves"] {
        let ended = job(3, role).unwrap();
        let why = ended.why.unwrap();
        assert!(why.starts_with("partage: rank 1 on "), "{why}");
        assert!(why.ends_with(") exited with code 0 while others wait for it"), "{why}");
        assert_eq!(ended.code, 1);
    }
}

#[test]
fn aborts() {
    for (role, code, why) in [
        ("abort with line", 9, Some("partage: rank 1 has had enough")),
        ("abort said", 9, None),
        ("abort clean", 0, None),
        ("abort 256", 1, None),
    ] {
        let begin = Instant::now();
        assert_eq!(job(3, role).unwrap(), Ended { code, why: why.map(str::to_owned) }, "{role}");
        assert!(begin.elapsed() < SOON);
    }
}

#[test]
fn garbage_from_a_process() {
    for role in ["garbage", "endless line"] {
        let ended = job(2, role).unwrap();
        let why = ended.why.unwrap();
        assert!(why.starts_with("partage: rank 1 on "), "{why}");
        assert!(why.contains("sent its launcher what it does not understand"), "{why}");
        assert_eq!(ended.code, 1);
    }
}

#[test]
fn programs_that_know_nothing_of_us() {
    assert_eq!(run(&Spec::new("true", 4)).unwrap(), Ended { code: 0, why: None });
    let ended = run(&Spec::new("false", 2)).unwrap();
    assert_eq!(ended.code, 1);
    assert!(ended.why.unwrap().ends_with(") exited with code 1"));
}

/// Libfabric is asked to keep fewer receives than it does of itself, if the user has not said how many.
#[test]
fn what_libfabric_is_told() {
    for (said, has) in [(None, "1024"), (Some("64"), "64")] {
        let mut spec = Spec::new("sh", 2);
        spec.args = vec!["-c".into(), format!("[ \"$FI_OFI_RXM_MSG_RX_SIZE\" = {has} ]").into()];
        spec.env.extend(said.map(|n| ("FI_OFI_RXM_MSG_RX_SIZE".into(), n.into())));
        assert_eq!(run(&spec).unwrap(), Ended { code: 0, why: None }, "{said:?}");
    }
}

#[test]
fn what_cannot_be_started() {
    let line = |spec: Spec| run(&spec).unwrap_err().to_string();
    assert_eq!(line(Spec::new("no-such-program", 2)), "`no-such-program` is not in any directory of PATH");
    assert_eq!(line(Spec::new("true", 0)), "-n 0: a job has at least one rank");
    let nul = Spec { args: vec!["a\0b".into()], ..Spec::new("true", 2) };
    assert!(line(nul).starts_with("cannot start process 0 of 2 as `true`: "));
}

#[test]
fn announcements_reach_the_observer() {
    #[derive(Default)]
    struct Heard(Vec<(usize, u32, String, Vec<u8>)>);
    impl Observer for Heard {
        fn announced(&mut self, process: usize, pid: u32, key: &str, value: &[u8]) {
            self.0.push((process, pid, key.into(), value.into()));
        }
    }
    let mut heard = Heard::default();
    assert_eq!(launch(&spec(2, "announce"), &mut heard).unwrap().code, 0);
    heard.0.sort();
    let [(0, a, _, _), (1, b, key, value)] = heard.0.as_slice() else { panic!("{:?}", heard.0) };
    assert_eq!((key.as_str(), value.as_slice()), ("shm", &b"/name \n\xff"[..]));
    assert!(*a != 0 && a != b);
}

#[test]
fn the_timeout() {
    let limit = Some(Duration::from_millis(300));
    let ended = run(&Spec { timeout: limit, args: vec!["60".into()], ..Spec::new("sleep", 2) }).unwrap();
    let why = Some("partage: the job did not end within 0.3 s".to_owned());
    assert_eq!(ended, Ended { code: 124, why });
}

#[test]
fn a_process_that_ignores_sigterm_and_what_it_started_are_killed() {
    let script = r#"
        trap '' TERM
        if [ $PMI_RANK = 0 ]; then
            sleep 600 & echo $! > "$FILE.new"
            mv "$FILE.new" "$FILE"
            while :; do sleep 1; done
        fi
        while [ ! -e "$FILE" ]; do sleep 0.01; done
        kill -KILL $$
    "#;
    let file = std::env::temp_dir().join(format!("partage-boot-{}", std::process::id()));
    let mut spec = Spec::new("sh", 2);
    spec.args = vec!["-c".into(), script.into()];
    spec.env = vec![("FILE".into(), file.clone().into())];
    let ended = run(&spec).unwrap();
    assert!(ended.why.unwrap().starts_with("partage: rank 1 on "));
    assert_eq!(ended.code, 137);
    let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    std::fs::remove_file(&file).unwrap();
    // Nobody may be there to reap an orphan.
    eventually(|| state_of(pid).is_none_or(|state| state == 'Z'));
}

#[test]
fn labels() {
    let output = launcher("label", "lines", &[]).wait_with_output().unwrap();
    let (out, err) = texts(&output);
    for line in ["[0-1] one 0", "[0-1] unfinished 0", "[2] one 1", "[2] unfinished 1"] {
        assert!(out.lines().any(|l| l == line), "{line} is not in {out}");
    }
    // The test harness of the launcher itself writes two lines of its own.
    let labelled = |line: &str| line.starts_with("[0-1] ") || line.starts_with("[2] ");
    assert!(out.lines().skip(2).all(labelled), "{out}");
    assert!(err.lines().any(|line| line == "[2] to stderr 1"), "{err}");
    assert!(output.status.success());
}

/// Whoever reads the output goes: the job ends as programs do that are killed by SIGPIPE.
#[test]
fn output_that_nobody_reads_any_more() {
    let script = "while :; do echo line; sleep 0.01; done";
    let mut launcher = launcher("label", "sh", &[("BOOT_TEST_SCRIPT", script)]);
    let begin = Instant::now();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.ends_with("] line")));
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + SIGPIPE));
    assert!(begin.elapsed() < SOON);
}

/// A job in the background of a terminal is not stopped when it writes to it, or sets its modes.
#[test]
fn terminals_do_not_stop_ranks() {
    let mut spec = Spec::new("sh", 2);
    let bit = 1u64 << (rustix::process::Signal::TTOU.as_raw() - 1);
    spec.args = vec![
        "-c".into(),
        format!("mask=$(sed -n 's/^SigIgn:.//p' /proc/self/status); [ $((0x$mask & {bit})) != 0 ]").into(),
    ];
    assert_eq!(run(&spec).unwrap(), Ended { code: 0, why: None });
}

#[test]
fn labelled_output_of_a_killed_process_is_not_lost() {
    let output = launcher("label", "lines and kill", &[]).wait_with_output().unwrap();
    let (out, err) = texts(&output);
    let full: Vec<&str> = out.lines().filter(|line| line.contains("number")).collect();
    assert_eq!(full.len(), 1000, "{err}");
    assert!(full.iter().enumerate().all(|(i, line)| *line == format!("[0-1] number {i}")));
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn a_daemon_that_keeps_the_pipe_does_not_keep_the_launcher() {
    let script = "setsid sleep 600 & echo started $!";
    let output = launcher("label", "sh", &[("BOOT_TEST_SCRIPT", script)]).wait_with_output().unwrap();
    let (out, _) = texts(&output);
    let pids = out.lines().filter_map(|line| line.split_once("started ")?.1.parse().ok());
    let pids: Vec<i32> = pids.collect();
    assert_eq!(pids.len(), 2, "{out}");
    for pid in pids {
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    assert!(output.status.success());
}

#[test]
fn quiet_output() {
    let output = launcher("quiet", "lines", &[]).wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert!(!out.contains("one") && !err.contains("to stderr"), "{out}{err}");
    assert!(output.status.success());
}

#[test]
fn stdin_goes_to_rank_zero() {
    let mut launcher = launcher("label stdin", "cat", &[]);
    let mut stdin = launcher.stdin.take().unwrap();
    let text: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = launcher.wait_with_output().unwrap();
    writer.join().unwrap();
    let (out, _) = texts(&output);
    let lines: Vec<&str> = out.lines().filter(|line| line.contains("line ")).collect();
    assert_eq!(lines.len(), 20_000);
    assert!(lines.iter().enumerate().all(|(i, line)| *line == format!("[0-1] line {i}")));
    assert!(out.lines().any(|line| line == "[2] end of input"), "{out}");
}

/// Has whoever started this program had SIGHUP ignored?
fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn signals() {
    for (signal, role, code, line) in [
        (Signal::INT, "hang", 130, "partage: interrupted by SIGINT"),
        (Signal::TERM, "hang", 143, "partage: interrupted by SIGTERM"),
        (Signal::HUP, "deaf", 129, "partage: interrupted by SIGHUP"),
        (Signal::USR1, "hang", 138, "killed by SIGUSR1"),
    ] {
        if signal == Signal::HUP && ignores_hang_ups() {
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: hang-ups are ignored here (nohup), and so by jobs");
            continue;
        }
        let (mut launcher, mut out) = launcher_with_running_job(role);
        send(&launcher, signal);
        let begin = Instant::now();
        let status = launcher.wait().unwrap();
        assert!(begin.elapsed() < SOON);
        let mut err = String::new();
        launcher.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(err.contains(line), "{err}");
        assert_eq!(err.matches("partage: ").count(), 1, "{err}");
        assert_eq!(status.code(), Some(code), "{err}");
        out.read_to_string(&mut String::new()).unwrap();
    }
}

#[test]
fn sigquit_reports_and_the_job_goes_on() {
    let (mut launcher, _out) = launcher_with_running_job("hang");
    let mut err = BufReader::new(launcher.stderr.take().unwrap()).lines();
    send(&launcher, Signal::QUIT);
    assert_eq!(err.next().unwrap().unwrap(), "the report");
    send(&launcher, Signal::QUIT);
    assert_eq!(err.next().unwrap().unwrap(), "the report");
    send(&launcher, Signal::INT);
    assert_eq!(launcher.wait().unwrap().code(), Some(130));
}

#[test]
fn a_hang_is_reported_once_and_the_job_goes_on() {
    struct Hang {
        asked: usize,
        reports: usize,
    }
    impl Observer for Hang {
        fn longest_wait(&mut self) -> Option<Duration> {
            self.asked += 1;
            Some(Duration::from_secs(if self.asked == 3 { 0 } else { 60 }))
        }
        fn report(&mut self, _: &[Row]) -> Option<String> {
            self.reports += 1;
            None
        }
    }
    let mut hang = Hang { asked: 0, reports: 0 };
    let mut spec = Spec { hang_after: Some(Duration::from_secs(30)), ..Spec::new("sleep", 1) };
    spec.args = vec!["2.5".into()];
    let begin = Instant::now();
    assert_eq!(launch(&spec, &mut hang).unwrap().code, 0);
    let ticks = begin.elapsed().as_millis() as usize / 250;
    assert!(hang.asked > 3 && hang.asked <= ticks + 1, "{} in {ticks}", hang.asked);
    assert_eq!(hang.reports, 2);
}

#[test]
fn processes_notice_that_their_launcher_is_gone() {
    let (mut launcher, out) = launcher_with_running_job("lifeline");
    send(&launcher, Signal::KILL);
    launcher.wait().unwrap();
    let lines: Vec<String> = out.lines().map(Result::unwrap).filter(|line| line.contains("is gone")).collect();
    assert_eq!(lines.len(), 2);
}

#[test]
fn programs_that_know_nothing_of_us_die_with_the_launcher() {
    let script = "echo pid $$; echo running; exec sleep 600";
    let mut launcher = launcher("label", "sh", &[("BOOT_TEST_SCRIPT", script)]);
    let mut out = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut pids: Vec<i32> = Vec::new();
    while pids.len() < 2 {
        pids.extend(out.next().unwrap().split_once("pid ").map(|(_, pid)| pid.parse::<i32>().unwrap()));
    }
    send(&launcher, Signal::KILL);
    launcher.wait().unwrap();
    pids.iter().for_each(|pid| eventually(|| state_of(*pid).is_none_or(|state| state == 'Z')));
}

#[test]
fn nothing_is_left_behind() {
    let output = launcher("leak", "killed", &[]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);
}

#[test]
fn a_panic_of_the_observer_leaves_no_process() {
    struct Panics(Option<u32>);
    impl Observer for Panics {
        fn announced(&mut self, _: usize, pid: u32, _: &str, _: &[u8]) {
            self.0 = Some(pid);
            panic!("on purpose");
        }
    }
    let mut panics = Panics(None);
    let spec = spec(2, "announce");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| launch(&spec, &mut panics)));
    assert!(outcome.is_err());
    assert_eq!(state_of(panics.0.unwrap() as i32), None);
}

#[test]
fn a_job_in_a_job() {
    assert_eq!(job(2, "nested").unwrap(), Ended { code: 0, why: None });
}

/// A remote shell that stays here; the agents are this program, too.
#[test]
fn hosts() {
    let script = std::env::temp_dir().join(format!("partage-boot-rsh-{}", std::process::id()));
    std::fs::write(&script, "shift; BOOT_TEST_ROLE=agent; export BOOT_TEST_ROLE; exec \"$@\"\n").unwrap();
    let on = |names: &str, spec: Spec| {
        let agent = std::iter::once(std::env::current_exe().unwrap().into()).chain(CHILD.map(OsString::from));
        let list = Host::list(names).unwrap();
        let hosts = Hosts { list, shell: vec!["sh".into(), script.clone().into()], agent: agent.collect() };
        Spec { hosts: Some(hosts), quiet_output: true, ..spec }
    };
    for (names, procs) in [("a", 1), ("a,b", 3), ("a,b,c", 5), ("a,b,a", 5)] {
        let ended = run(&on(names, spec(procs, "exchange"))).unwrap();
        assert_eq!(ended, Ended { code: 0, why: None });
    }
    let begin = Instant::now();
    let ended = run(&on("a,b", spec(4, "killed"))).unwrap();
    assert!(begin.elapsed() < SOON);
    let why = ended.why.unwrap();
    assert!(why.starts_with("partage: rank 2 on b (pid ") && why.ends_with("was killed by SIGKILL"), "{why}");
    assert_eq!(run(&on("a,b", spec(4, "abort with line"))).unwrap().code, 9);
    let line = run(&on("a,b", Spec::new("no-such-program", 2))).unwrap_err().to_string();
    assert!(line.ends_with(": `no-such-program` is not in any directory of PATH"), "{line}");
    std::fs::remove_file(&script).unwrap();
}

#[test]
fn under_mpich() {
    foreign("mpirun.mpich", &[], "is Pmi1");
}

#[test]
fn under_mpich_at_a_port() {
    foreign("mpirun.mpich", &["-pmi-port"], "is Pmi1");
}

#[test]
fn under_open_mpi() {
    if let Err(why) = partage_boot::pmix_version() {
        return println!("SKIPPED: {why}");
    }
    foreign("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"], "is Pmix");
}

/// What a foreign launcher has to do for us.
fn foreign(launcher: &str, options: &[&str], is: &str) {
    let Some(output) = mpirun(launcher, options, 3, "exchange") else {
        println!("SKIPPED: {launcher} is not installed");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let output = mpirun(launcher, options, 18, "addresses").unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = mpirun(launcher, options, 3, "abort with line").unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    assert!(texts(&output).1.contains("partage: rank 1 has had enough"), "{output:?}");
    // The launcher is foreign, whatever a job around it has left in the environment.
    let output = mpirun(launcher, options, 2, is).unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Not a test of its own: the processes that the others start.
#[test]
fn child() {
    let Ok(role) = std::env::var("BOOT_TEST_ROLE") else { return };
    let rank = ["PMI_RANK", "PMIX_RANK"].iter().find_map(|name| std::env::var(name).ok());
    let me: usize = rank.map_or(0, |rank| rank.parse().unwrap());
    match role.as_str() {
        "launcher" => be_a_launcher(),
        "agent" => exit(partage_boot::agent(|_| Nobody)),
        "lines" | "lines and kill" => {
            print!("one {me}\nunfinished {me}");
            eprintln!("to stderr {me}");
            if role == "lines and kill" && me == 0 {
                println!();
                (0..1000).for_each(|i| println!("number {i}"));
                die();
            }
            std::io::stdout().flush().unwrap();
            exit(0);
        }
        "cat" => {
            std::io::copy(&mut std::io::stdin(), &mut std::io::stdout()).unwrap();
            println!("end of input");
            exit(0);
        }
        "never joins" if me == 1 => exit(0),
        "endless line" | "garbage" if me == 1 => {
            // The helper must not need unsafe code; std finds the socket by its number.
            let path = format!("/proc/self/fd/{}", std::env::var("PMI_FD").unwrap());
            assert!(std::fs::read_link(&path).unwrap().to_string_lossy().starts_with("socket:"));
            let text = if role == "garbage" { "printf 'Hello?\\n'" } else { "head -c 3000000 /dev/zero" };
            let script = format!("{text} >&$PMI_FD; sleep 600");
            exit(Command::new("bash").args(["-c", &script]).status().unwrap().code().unwrap());
        }
        _ => {}
    }

    let mut boot = Boot::connect(None).unwrap();
    if std::env::var_os("PMI_PORT").is_none() {
        assert_eq!(boot.process(), me);
    }
    let me = boot.process();
    match role.as_str() {
        "exchange" => {
            for round in 0..4 {
                let blobs = boot.exchange(&blob(me, round)).unwrap();
                assert_eq!(blobs.len(), boot.processes());
                assert!(blobs.iter().enumerate().all(|(process, bytes)| *bytes == blob(process, round)));
            }
            boot.fence().unwrap();
        }
        "addresses" => {
            let all =
                (0..boot.processes()).map(|process| format!("address {process}").into_bytes()).collect::<Vec<_>>();
            assert_eq!(boot.exchange(&all[me]).unwrap(), all);
        }
        "threads" => {
            let threads = std::env::var("PARTAGE_THREADS").unwrap();
            let all = boot.exchange(threads.as_bytes()).unwrap();
            assert_eq!(all, [b"3", b"3", b"2"]);
            assert_eq!(boot.kind(), Kind::Launcher);
        }
        "is Pmi1" | "is Pmix" => {
            let kind = if role == "is Pmi1" { Kind::Pmi1 } else { Kind::Pmix };
            assert!(boot.kind() == kind && boot.kind().is_foreign());
            // As jobs do: where one ends before another has connected, Open MPI's server once left that one waiting for ever.
            boot.fence().unwrap();
        }
        "announce" => boot.announce("shm", b"/name \n\xff").unwrap(),
        "nested" => {
            let inner = job(3, "exchange").unwrap();
            assert_eq!(inner, Ended { code: 0, why: None });
            boot.fence().unwrap();
        }
        "hang" | "deaf" => {
            if role == "deaf" {
                let heard = Arc::new(AtomicBool::new(false));
                for signal in [SIGTERM, SIGHUP] {
                    signal_hook::flag::register(signal, heard.clone()).unwrap();
                }
            }
            boot.fence().unwrap();
            println!("running");
            std::thread::sleep(Duration::from_secs(600));
        }
        "lifeline" => {
            boot.fence().unwrap();
            println!("running");
            let mut fds = [PollFd::from_borrowed_fd(boot.lifeline().unwrap(), PollFlags::empty())];
            poll(&mut fds, None).unwrap();
            assert!(fds[0].revents().contains(PollFlags::HUP));
            println!("is gone");
            exit(0);
        }
        _ => {
            boot.fence().unwrap();
            match (role.as_str(), me) {
                ("killed", 2) => die(),
                ("early", 1) => exit(0),
                ("code", 2) => exit(7),
                ("abort with line", 1) => boot.abort(9, Some("partage: rank 1 has had enough")),
                ("abort said", 1) => boot.abort(9, None),
                ("abort clean", 1) => boot.abort(0, None),
                ("abort 256", 1) => boot.abort(256, None),
                ("leaves", 1) => boot.finalize(),
                _ => boot.fence().unwrap(),
            }
            if role.starts_with("abort") && me == 1 {
                exit(9);
            }
        }
    }
    boot.finalize();
    boot.finalize();
    exit(0);
}

/// `BOOT_TEST_SPEC` holds words that say how to launch, `BOOT_TEST_INNER` the role of the processes.
fn be_a_launcher() -> ! {
    let words = std::env::var("BOOT_TEST_SPEC").unwrap();
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let inner = std::env::var("BOOT_TEST_INNER").unwrap();
    let mut spec = Spec { procs: 2, ..spec(3, &inner) };
    if inner == "sh" {
        spec.program = "sh".into();
        spec.args = vec!["-c".into(), std::env::var_os("BOOT_TEST_SCRIPT").unwrap()];
    }
    if inner == "lifeline" {
        // Not a child of the launcher itself: that would be killed with it.
        let shell = ["-c", r#""$0" "$@"; exit $?"#].map(OsString::from);
        let program = std::mem::replace(&mut spec.program, "sh".into());
        spec.args = shell.into_iter().chain([program]).chain(spec.args).collect();
    }
    spec.label = has("label");
    spec.quiet_output = has("quiet");
    spec.forward_signals = has("signals");
    spec.stdin = if has("stdin") { Input::ToRankZero } else { Input::Null };
    if has("leak") {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let spec = Spec { label: true, procs: 3, forward_signals: true, ..spec };
        // The first run makes what stays: signal handlers and the like.
        run(&spec).unwrap();
        let before = open();
        assert_eq!(run(&spec).unwrap().code, 137);
        assert_eq!(open(), before);
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
            assert_eq!(children, "");
        }
        exit(0);
    }
    exit(run(&spec).unwrap().code)
}

fn blob(process: usize, round: usize) -> Vec<u8> {
    let sizes = [0, 1, 300_000, 511, 65_537];
    let length = sizes[(process + round) % sizes.len()];
    (0..length).map(|i| (i * 31 + process * 7 + round) as u8).collect()
}

struct Nobody;

impl Observer for Nobody {
    fn report(&mut self, _: &[Row]) -> Option<String> {
        Some("the report".into())
    }
}

fn run(spec: &Spec) -> Result<Ended, Error> {
    launch(spec, &mut Nobody)
}

fn job(procs: usize, role: &str) -> Result<Ended, Error> {
    run(&spec(procs, role))
}

/// A job of this program in that role. The timeout is for tests that fail.
fn spec(ranks: usize, role: &str) -> Spec {
    Spec {
        args: CHILD.iter().map(OsString::from).collect(),
        env: vec![("BOOT_TEST_ROLE".into(), role.into())],
        timeout: Some(Duration::from_secs(60)),
        ..Spec::new(std::env::current_exe().unwrap(), ranks)
    }
}

const CHILD: [&str; 4] = ["--exact", "child", "--nocapture", "--quiet"];

fn launcher(words: &str, inner: &str, env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHILD).env("BOOT_TEST_ROLE", "launcher").env("BOOT_TEST_SPEC", words);
    command.env("BOOT_TEST_INNER", inner).envs(env.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// With two processes, both known to be running when this returns.
fn launcher_with_running_job(role: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut launcher = launcher("signals", role, &[]);
    let mut out = BufReader::new(launcher.stdout.take().unwrap());
    let (mut line, mut running) = (String::new(), 0);
    while running < 2 {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0);
        running += line.matches("running\n").count();
    }
    (launcher, out)
}

/// None when it is not installed. It dies of SIGPIPE now and then when a process of a short job is gone before it has heard of it, and Open MPI's crashes, or waits for itself,
/// when it has ended a job that was aborted (in `PMIx_server_finalize`, on a machine with other work). That says nothing about its processes, so it is tried again, a few times.
fn mpirun(launcher: &str, options: &[&str], processes: usize, role: &str) -> Option<Output> {
    let mut command = Command::new(launcher);
    command.args(options).args(["-n", &processes.to_string()]).arg(std::env::current_exe().unwrap()).args(CHILD);
    command.env("BOOT_TEST_ROLE", role).env("PARTAGE_PROTOCOL", "2").stdin(Stdio::null());
    for _ in 0..4 {
        let (output, was_stuck) = watched(&mut command)?;
        if !was_stuck && !matches!(output.status.signal(), Some(SIGPIPE | SIGSEGV)) {
            return Some(output);
        }
        println!("{launcher} has failed by itself, and is tried again: {output:?}");
    }
    watched(&mut command).map(|(output, _)| output)
}

/// Ends a launcher that does not end. It was stuck by itself if none of its processes was left; else its output says how far they came.
fn watched(command: &mut Command) -> Option<(Output, bool)> {
    const LIMIT: Duration = Duration::from_secs(40);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    let launcher = Pid::from_child(&child);
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let is_late = |limit| matches!(is_over.recv_timeout(limit), Err(std::sync::mpsc::RecvTimeoutError::Timeout));
        let left = is_late(LIMIT).then(|| living_children(launcher));
        if left.is_some() {
            _ = kill_process(launcher, Signal::TERM);
            if is_late(Duration::from_secs(5)) {
                _ = kill_process(launcher, Signal::KILL);
            }
        }
        left
    });
    let output = child.wait_with_output().unwrap();
    drop(over);
    let left = watchdog.join().unwrap();
    assert!(left.is_none_or(|left| left == 0), "{command:?} did not end in {LIMIT:?}: {output:?}");
    Some((output, left.is_some()))
}

/// How many processes a process has started that have not ended.
fn living_children(process: Pid) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let all: Vec<String> = children.flat_map(|list| list.split(' ').map(String::from).collect::<Vec<_>>()).collect();
    let lives = |child: &&String| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
    };
    all.iter().filter(|child| !child.is_empty()).filter(lives).count()
}

fn send(launcher: &Child, signal: Signal) {
    kill_process(Pid::from_child(launcher), signal).unwrap();
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into(), String::from_utf8_lossy(&output.stderr).into())
}

/// The state letter of a process, None when there is no such process.
fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn eventually(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < SOON);
        std::thread::yield_now();
    }
}
