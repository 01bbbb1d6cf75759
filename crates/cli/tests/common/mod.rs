//! Starts jobs of this test program, watches over them, and looks at what is left of them.
//!
//! Each test file has a test `ranks` that does nothing unless `CASE` says what: it is the program of the jobs.

#![allow(dead_code, unused_macros, unused_imports)]

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is promised to end a job within a second gets four more, for slow machines; [`Moment`] is for busy ones.
pub const SOON: Duration = Duration::from_secs(5);
/// Across hosts a job ends within two seconds of a failure; more for slow machines.
pub const SOON_ACROSS: Duration = Duration::from_secs(8);
/// After this a job hangs: it is killed and its test fails.
const LIMIT: Duration = Duration::from_secs(180);

/// A moment, and how long ago it was in time that this machine was there for us. A virtual machine whose host is busy, or a
/// test beside others, gets far less time than passes; the jobs it looks at get no more.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    at: Duration,
    wall: Instant,
}

impl Moment {
    /// Between two ticks; when twice as much has passed, the rest was not ours.
    const TICK: Duration = Duration::from_millis(5);

    pub fn now() -> Moment {
        Moment { at: Moment::there(), wall: Instant::now() }
    }

    /// Since then, of the time that this machine was there.
    pub fn elapsed(self) -> Duration {
        Moment::there() - self.at
    }

    /// Since then, by the clock.
    pub fn wall(self) -> Duration {
        self.wall.elapsed()
    }

    /// What has passed while a thread that only sleeps was woken in time.
    fn there() -> Duration {
        static THERE: OnceLock<AtomicU64> = OnceLock::new();
        let nanos = THERE.get_or_init(|| {
            std::thread::spawn(|| {
                let mut last = Instant::now();
                loop {
                    std::thread::sleep(Moment::TICK);
                    let passed = last.elapsed();
                    last += passed;
                    THERE.wait().fetch_add(passed.min(2 * Moment::TICK).as_nanos() as u64, Relaxed);
                }
            });
            AtomicU64::new(0)
        });
        Duration::from_nanos(nanos.load(Relaxed))
    }
}

/// How the four ranks of a job are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    Threads,
    Processes,
    Hybrid,
}
pub use Mapping::*;

pub const EVERY: [Mapping; 3] = [Threads, Processes, Hybrid];
pub const LAUNCHED: [Mapping; 2] = [Processes, Hybrid];

impl Mapping {
    /// What the launcher calls the process of rank `r`, out of four.
    pub fn process_of(self, r: usize) -> String {
        match self {
            Hybrid => format!("ranks {}-{}", r / 2 * 2, r / 2 * 2 + 1),
            _ => format!("rank {r}"),
        }
    }
}

/// The place of the line with the comment `// @mark` in the test file that says this.
macro_rules! at {
    ($mark:literal) => {
        common::place(file!(), $mark)
    };
}
pub(crate) use at;

pub fn place(file: &str, mark: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let comment = format!("// @{mark}");
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.trim_end().ends_with(&comment));
    let (number, _) = lines.next().unwrap_or_else(|| panic!("no line is marked {mark}"));
    assert!(lines.next().is_none(), "two lines are marked {mark}");
    format!("{file}:{}:", number + 1)
}

pub fn partage() -> &'static str {
    env!("CARGO_BIN_EXE_partage")
}

pub fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Arguments that make this program a rank.
pub const RANKS: [&str; 3] = ["--exact", "ranks", "--nocapture"];

/// A command that is a job, or starts one.
pub struct Start {
    pub command: Command,
    marker: String,
}

/// Four ranks of this program.
pub fn job(mapping: Mapping, case: &str) -> Start {
    let start = match mapping {
        Threads => program(this_program()).env("PARTAGE_RANKS", "4"),
        Processes => run(&["-n", "4"]).arg(this_program()),
        Hybrid => run(&["-n", "4", "--procs", "2"]).arg(this_program()),
    };
    start.args(RANKS).env("CASE", case)
}

/// `partage run` with these options; arguments to come.
pub fn run(options: &[&str]) -> Start {
    program(partage()).arg("run").args(options)
}

/// Any program.
pub fn program(path: impl AsRef<OsStr>) -> Start {
    let mut command = Command::new(path);
    let marker = format!("JOB_OF_TEST={}", unique());
    let (name, value) = marker.split_once('=').unwrap();
    for (name, _) in std::env::vars_os() {
        let foreign = ["PARTAGE_", "PMI", "OMPI_", "SLURM_", "CASE"];
        if name.to_str().is_some_and(|name| foreign.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    // Not what somebody has tuned here.
    command.env("PARTAGE_PROFILE", "none");
    command.env(name, value).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    Start { command, marker }
}

/// A name that nobody else has.
pub fn unique() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

impl Start {
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Start {
        self.command.arg(arg);
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Start {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Start {
        self.command.env(name, value);
        self
    }

    pub fn start(mut self) -> Running {
        // One job at a time: times and the system's memory are looked at.
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Memory::now();
        let begun = Moment::now();
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = Text::collect(child.stdout.take().unwrap());
        let err = Text::collect(child.stderr.take().unwrap());
        Running { child, out, err, marker: self.marker, begun, memory, ended: false, _turn: turn }
    }

    pub fn end(self) -> Ended {
        self.start().wait()
    }
}

/// A started job. It is killed when this is dropped.
pub struct Running {
    child: Child,
    out: Text,
    err: Text,
    marker: String,
    pub begun: Moment,
    memory: Memory,
    ended: bool,
    _turn: MutexGuard<'static, ()>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code, or 128 and the signal.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// Of the time that this machine was there.
    pub took: Duration,
    /// By the clock.
    pub wall: Duration,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn out(&self) -> String {
        self.out.now()
    }

    pub fn err(&self) -> String {
        self.err.now()
    }

    /// Waits for standard output to be so.
    pub fn out_says(&self, enough: impl Fn(&str) -> bool) -> String {
        self.out.wait(LIMIT, enough).unwrap_or_else(|| self.hangs("does not say what was expected"))
    }

    /// Waits for standard error to be so.
    pub fn err_says(&self, enough: impl Fn(&str) -> bool) -> String {
        self.err.wait(LIMIT, enough).unwrap_or_else(|| self.hangs("does not say what was expected"))
    }

    /// Asks the launcher, or a job that has none, for reports until one is so.
    pub fn report_says(&self, enough: impl Fn(&str) -> bool) -> String {
        // Before it is ready for the signal it would die of it, like any program.
        while !catches(self.pid(), libc::SIGQUIT) {
            if self.begun.elapsed() > LIMIT {
                self.hangs("does not take signals");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            let before = self.err().len();
            self.signal(libc::SIGQUIT);
            let text = self.err_says(|text| text.len() > before && text[before..].contains("partage: where the "));
            // The lines of a report come in one piece.
            if enough(&text[before..]) {
                return text[before..].to_string();
            }
            if self.begun.elapsed() > LIMIT {
                self.hangs("is never where it was expected");
            }
        }
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// All processes of the job, the launcher too.
    pub fn processes(&self) -> Vec<i32> {
        processes_with(&self.marker)
    }

    /// The processes that `partage run` has started and that still run.
    pub fn children(&self) -> Vec<i32> {
        children_of(self.pid())
    }

    fn hangs(&self, what: &str) -> ! {
        let (out, err) = (self.out(), self.err());
        let mut states = String::new();
        for pid in self.processes() {
            states += &format!("process {pid}: {}\n", state_of(pid));
        }
        for pid in self.processes() {
            kill(pid, libc::SIGKILL);
        }
        panic!("the job {what}; its processes:\n{states}stdout:\n{out}\nstderr:\n{err}");
    }

    /// Waits for the end, after which nothing of the job may be left.
    pub fn wait(self) -> Ended {
        self.wait_with(Duration::ZERO)
    }

    /// The same where processes may live on for a moment after the one that was started.
    pub fn wait_with(mut self, moment: Duration) -> Ended {
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if self.begun.elapsed() > LIMIT => self.hangs("does not end"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let (took, wall) = (self.begun.elapsed(), self.begun.wall());
        self.ended = true;
        let end = Moment::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            if end.elapsed() >= moment {
                let left: Vec<String> = left.iter().map(|p| format!("{p}: {}", state_of(*p))).collect();
                self.processes().into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
                panic!("left behind: {left:#?}; stderr:\n{}", self.err());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        let closed = |text: &mut Text| text.closed(LIMIT).expect("somebody unknown keeps the output open");
        let ended = Ended { code, out: closed(&mut self.out), err: closed(&mut self.err), took, wall };
        self.memory.comes_back(&ended);
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            kill(self.pid(), libc::SIGKILL);
            self.processes().into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Standard error without reports of where ranks are.
    pub fn said(&self) -> Vec<&str> {
        let report = |line: &&str| line.starts_with("partage: where the ") || line.starts_with("  ");
        self.err.lines().filter(|line| !report(line)).collect()
    }

    /// The one line that was said.
    #[track_caller]
    pub fn line(&self) -> &str {
        match self.said()[..] {
            [line] => line,
            _ => panic!("not one line: {self:#?}"),
        }
    }

    /// A failure with this code and one line, which has all of these in it.
    #[track_caller]
    pub fn failed(&self, code: i32, parts: &[&str]) -> &str {
        assert_eq!(self.code, code, "{self:#?}");
        let line = self.line();
        assert!(line.starts_with("partage: "), "{line}");
        for part in parts {
            assert!(line.contains(part), "`{part}` is not in `{line}`");
        }
        line
    }

    /// The same, soon after the start.
    #[track_caller]
    pub fn failed_soon(&self, code: i32, parts: &[&str]) -> &str {
        assert!(self.took < SOON, "it took {:?}", self.took);
        self.failed(code, parts)
    }

    /// Success without a word on standard error.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert!(self.code == 0 && self.err.is_empty(), "{self:#?}");
        &self.out
    }
}

/// The bytes so far and whether they are all.
type State = (Mutex<(Vec<u8>, bool)>, Condvar);

/// The bytes, and whether the pipe is closed.
type Said = (Vec<u8>, bool);

/// What a pipe has said so far.
struct Text {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Text {
    fn collect(mut pipe: impl Read + Send + 'static) -> Text {
        let state = Arc::new((Mutex::new((Vec::new(), false)), Condvar::new()));
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let read = pipe.read(&mut buffer).unwrap_or(0);
                let mut state = shared.0.lock().unwrap();
                state.0.extend_from_slice(&buffer[..read]);
                state.1 = read == 0;
                shared.1.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Text { state, thread: Some(thread) }
    }

    fn now(&self) -> String {
        String::from_utf8_lossy(&self.state.0.lock().unwrap().0).into()
    }

    fn wait(&self, limit: Duration, enough: impl Fn(&str) -> bool) -> Option<String> {
        let text = |state: &Said| String::from_utf8_lossy(&state.0).into_owned();
        let state = self.state.0.lock().unwrap();
        let wait = |state: &mut Said| !enough(&text(state)) && !state.1;
        let (state, _) = self.state.1.wait_timeout_while(state, limit, wait).unwrap();
        Some(text(&state)).filter(|text| enough(text))
    }

    fn closed(&mut self, limit: Duration) -> Option<String> {
        let state = self.state.0.lock().unwrap();
        let (state, _) = self.state.1.wait_timeout_while(state, limit, |state| !state.1).unwrap();
        let closed = state.1;
        drop(state);
        closed.then(|| {
            self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
            self.now()
        })
    }
}

/// Shared memory that exists although no process has it mapped.
#[derive(Debug, Clone, Copy)]
pub struct Memory(u64);

impl Memory {
    pub fn now() -> Memory {
        let number = |text: &str, key: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        let all = number(&std::fs::read_to_string("/proc/meminfo").unwrap(), "Shmem:");
        // What other jobs on this machine have is theirs; each page counts once, in parts, for all who map it.
        let mapped = pids().map(|pid| {
            let parts = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            number(&parts, "Pss_Shmem:")
        });
        Memory(all.saturating_sub(mapped.sum()))
    }

    /// It is as it was then, but for a little, or is so within two seconds.
    pub fn comes_back(self, context: &impl std::fmt::Debug) {
        let begun = Moment::now();
        loop {
            let now = Memory::now();
            if now.0 < self.0 + (8 << 20) {
                return;
            }
            if begun.elapsed() > Duration::from_secs(2) {
                panic!("{} MiB of shared memory are left behind: {context:#?}", (now.0 - self.0) >> 20);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: a system call without memory; a process that is gone gives an error.
    unsafe { libc::kill(pid, signal) };
}

/// Has the process a handler for this signal?
fn catches(pid: i32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1)
}

fn pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Processes with this in their environment; zombies have none.
pub fn processes_with(marker: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|variable| variable == marker.as_bytes())
    };
    pids().filter(has).collect()
}

pub fn children_of(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// What a process is, for messages: its command, state and what its threads wait for.
fn state_of(pid: i32) -> String {
    let read = |file: String| std::fs::read_to_string(file).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let mut text = command.to_string();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let task = task.path();
        let of = |file: &str| read(task.join(file).display().to_string()).trim().to_string();
        let stat = of("stat");
        let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
        text += &format!("\n    {} {state} {} {}", of("comm"), of("wchan"), of("syscall"));
    }
    text
}

/// A directory that is removed in the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("partage-test-{name}-{}", unique()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// Writes a script into it.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        allow(&path, 0o755);
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn allow(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Says loudly, past the harness, that something was not tested.
pub fn skipped(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
}

/// Has whoever started this program had SIGHUP ignored?
pub fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

/// Is there such a program?
pub fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Memory for every rank, so that a job that leaves some behind is seen: 16 MiB each.
pub fn burden(job: &partage::Job) {
    job.alloc_slice::<u8>(16 << 20).unwrap();
}

/// Hosts made of network namespaces, removed in the end.
pub struct Namespaces {
    pub prefix: String,
    count: usize,
}

impl Namespaces {
    /// Two of them. An error says why there are none.
    pub fn up() -> Result<Namespaces, String> {
        Namespaces::of(2)
    }

    pub fn of(count: usize) -> Result<Namespaces, String> {
        let namespaces = Namespaces { prefix: format!("partage-test-{}-", unique()), count };
        let output = namespaces.ci("netns").args(["up", &count.to_string()]).output().unwrap();
        match output.status.success() {
            true => Ok(namespaces),
            false => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()),
        }
    }

    pub fn ci(&self, script: &str) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci").join(script));
        command.env("NETNS_PREFIX", &self.prefix);
        command
    }

    /// The name of a host, from 1.
    pub fn host(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Has `ci/netns` do something to them.
    pub fn fault(&self, words: &[&str]) {
        let output = self.ci("netns").args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// `partage run` over them; arguments to come.
    pub fn run(&self, options: &[&str]) -> Start {
        let hosts = (1..=self.count).map(|number| self.host(number)).collect::<Vec<_>>().join(",");
        run(&["--rsh", "ip netns exec", "--hosts", &hosts]).args(options)
    }
}

/// Is there a network between nodes? An error says why not.
pub fn libfabric() -> Result<String, String> {
    partage_conduit::ofi::endpoint::Endpoint::version().map_err(|why| format!("no libfabric: {why}"))
}

/// Two hosts with a network between them; says it if there are none.
pub fn two_hosts() -> Option<Namespaces> {
    hosts(2)
}

/// So many hosts with a network between them; says it if there are none.
pub fn hosts(count: usize) -> Option<Namespaces> {
    let hosts = libfabric().and_then(|_| Namespaces::of(count).map_err(|why| format!("no network namespaces: {why}")));
    hosts.map_err(|why| skipped(&why)).ok()
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.ci("netns").arg("down").output();
    }
}
