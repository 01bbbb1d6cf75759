//! From a program to its ranks and back: [`run`], [`test()`], [`Launch`].
//!
//! A job is processes × threads. Under a launcher each process joins the others and hosts its share of the ranks; without
//! one the process is the whole job. Each rank is a thread (the first of a process is the calling one) that runs the
//! closure once. The end is a barrier too: nobody's memory goes away while others use it.
//!
//! Jobs of one process may follow one another, never overlap.

use crate::coll::Table;
use crate::domain::Arbiter;
use crate::error::{Error, Result};
use crate::fail::{self, Unwound};
use crate::image;
use crate::job::{Job, Options};
use crate::launcher;
use crate::profile;
use crate::settings::{self, Settings};
use crate::watch::Watch;
use partage_boot::{Boot, Kind};
use partage_conduit::contract::Exchange;
use partage_conduit::ofi::{self, progress::Serving};
use partage_conduit::record::Site;
use partage_conduit::rseq::LeftOut;
use partage_conduit::shm::{Config, Node};
use partage_conduit::topology;
use partage_conduit::wait::Cores;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// How long processes wait for the first one to say why the job could not be started, and to be ended by the launcher.
const ANOTHER_SPEAKS: Duration = Duration::from_secs(2);

/// What a rank may return from [`run`]: `()`, or a `Result` whose error ends the job with one line naming the rank.
pub trait Outcome {
    /// The error's text, if this is one.
    fn error(self) -> Option<String>;
}

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: std::fmt::Display> Outcome for std::result::Result<(), E> {
    fn error(self) -> Option<String> {
        self.err().map(|e| e.to_string())
    }
}

/// Runs `f` once on every rank; returns when all are done. A panic, an `Err` or a lost rank ends the whole job and this
/// process, with one line that says who and why, and a code that is not zero (101 for a panic).
///
/// The same program is a job of threads when it is started plainly (`PARTAGE_RANKS`, by default one per core), and of
/// processes, or of processes with several ranks each, under `partage run`, `mpirun` (MPICH, Open MPI) or `srun`.
///
/// ```
/// partage::run(|job| {
///     job.println(format!("one of {}", job.size()));
///     job.barrier();
/// });
/// ```
#[track_caller]
pub fn run<O: Outcome>(f: impl Fn(&Job) -> O + Sync) {
    let site = Site::here("the end of the program");
    let body = |job: &Job| f(job).error().map_or(Ok(()), Err);
    if let Err(e) = Launch::new().start(site, Fate::Exit, &body) {
        // Most often all processes fail alike. A foreign launcher passes on what each of them says, and ends all when the first one has: so that one
        // speaks, and the others if nothing has come of that.
        if Told.place().0 > 0 && fail::boot().as_ref().is_some_and(|boot| boot.kind().is_foreign()) {
            std::thread::sleep(ANOTHER_SPEAKS);
        }
        fail::die(1, Some(&e.to_string()));
    }
}

/// Runs `f` on `ranks` ranks, for unit tests: threads of this process, or, with `PARTAGE_TEST=procs`, processes that
/// re-execute this one test. A failing rank's panic becomes this call's. Tests of one process wait for each other.
///
/// Returns what each rank returned, in order; nothing when the ranks were processes (assert inside the closure).
/// A test that has not ended after five minutes (`PARTAGE_TIMEOUT`) ends the process and says where its ranks are.
///
/// ```
/// let ranks = partage::test(3, |job| job.rank().0);
/// assert_eq!(ranks, [0, 1, 2]);
/// ```
#[track_caller]
pub fn test<R: Send>(ranks: usize, f: impl Fn(&Job) -> R + Sync) -> Vec<R> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let site = Site::here("the end of the test");
    if let Some(me) = fail::this_rank() {
        panic!("rank {me}: test: a job cannot be started inside a job");
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = Settings::read().unwrap_or_else(|e| panic!("{e}"));
    let mut launch = Launch::new().ranks(ranks);
    launch.default_timeout = Some(Duration::from_secs(300));
    if let Some(procs) = settings.test_procs {
        launch = launch.procs(procs.unwrap_or(ranks).min(ranks));
        launch.test_name = Some(test_name());
    }
    launch.start(site, Fate::Unwind, &|job| Ok(f(job))).unwrap_or_else(|e| panic!("{e}"))
}

/// A job with its shape given by the program, for embedding in a foreign `main`. A process has one job at a time; a
/// second one at the same time is refused (unit tests queue: [`test()`]).
///
/// ```
/// let squares = partage::Launch::new().ranks(3).segment(64 << 20).run(|job| job.rank().0.pow(2)).unwrap();
/// assert_eq!(squares, [0, 1, 4]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Launch {
    ranks: Option<usize>,
    procs: Option<usize>,
    segment: Option<u64>,
    default_timeout: Option<Duration>,
    test_name: Option<String>,
}

impl Launch {
    /// By default: as many ranks as cores, threads of this process.
    pub fn new() -> Self {
        Self::default()
    }

    /// This many ranks.
    pub fn ranks(mut self, n: usize) -> Self {
        self.ranks = Some(n);
        self
    }

    /// In this many processes: this one starts them by re-executing itself with its own arguments. They run this job and
    /// end with it; earlier calls of `Launch` return at once in them. Under a launcher, which has already
    /// decided, this is ignored.
    pub fn procs(mut self, n: usize) -> Self {
        self.procs = Some(n);
        self
    }

    /// Size of each rank's segment in bytes, instead of what the machine has. It is address space, not memory.
    pub fn segment(mut self, bytes: usize) -> Self {
        self.segment = Some(bytes as u64);
        self
    }

    /// Runs `f` once on every rank and returns what those of this process returned, in order. A rank's panic becomes this
    /// call's where all ranks are of this process; else it ends this process and the job.
    #[track_caller]
    pub fn run<R: Send>(self, f: impl Fn(&Job) -> R + Sync) -> Result<Vec<R>> {
        self.start(Site::here("the end of the program"), Fate::Unwind, &|job| Ok(f(job)))
    }

    fn start<R: Send, F>(&self, site: Site, fate: Fate, body: &F) -> Result<Vec<R>>
    where
        F: Fn(&Job) -> std::result::Result<R, String> + Sync,
    {
        let _one = Exclusive::take()?;
        // Connected first, so that what is wrong with the settings is said once.
        let (kind, processes) = connect()?;
        warn_of_unknown_settings();
        let settings = Settings::read()?;
        let call = Call::of(self.test_name.as_deref(), kind);
        if kind == Kind::Alone && self.procs.is_some_and(|p| p != 1) {
            return self.start_processes(&call);
        }
        if !call.is_mine() {
            return Ok(vec![]);
        }
        let config = self.config(&settings, kind)?;
        let node = Node::attach(&config, &mut Told).map_err(Error::start)?;
        let node = Arc::new(node);
        if self.ranks.is_some_and(|n| n != node.ranks().count()) {
            let asked = self.ranks.unwrap_or(0);
            let started = node.ranks().count();
            return Err(Error::start(format!("the program asks for {asked} ranks, {started} were started")));
        }
        let watching = Watch {
            lifeline: fail::boot()
                .as_ref()
                .and_then(Boot::lifeline)
                .and_then(|fd| fd.as_fd().try_clone_to_owned().ok()),
            neighbor: kind.is_foreign(),
            own_reports: kind != Kind::Launcher && node.mine().contains(&(node.ranks().members()[0] as usize)),
            hang_after: settings.hang_after,
            timeout: settings.timeout.unwrap_or(self.default_timeout),
        };
        let watching = watching.start(node.clone());
        let fate = if processes > 1 { Fate::Exit } else { fate };
        let options = Options {
            reference: settings.reference,
            leaks: settings.leaks,
            atomics: settings.atomics,
            table: said_table(&node)?,
            check: settings.check,
        };
        let serving = Serving::start(&node).map_err(Error::start)?;
        let (keeps_rseq, first_failure) = (settings.keeps_rseq, Arc::default());
        let crew = Crew { node: node.clone(), site, fate, options, keeps_rseq, body, first_failure };
        let results = crew.work();
        if node.net().is_some() && crew.first_failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            // What this process sent last may not have left it, and others may still need it to.
            serving.alone();
            Told.fence().map_err(Error::start)?;
        }
        drop((serving, watching));
        // Who ended it while it unwound may have caught that.
        if node.is_aborted() {
            let why = || "a rank that panicked, and went on, left others waiting for what it had started".into();
            crew.first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(why);
        }
        if let Some(why) = crew.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            panic!("{why}");
        }
        if call.re_executed {
            drop(_one);
            std::process::exit(0);
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// This process becomes the launcher of processes that run the same program up to this call.
    fn start_processes<R>(&self, call: &Call) -> Result<Vec<R>> {
        let ranks = self.ranks.unwrap_or_else(default_ranks);
        let procs = self.procs.unwrap_or(1);
        let program = std::env::current_exe().map_err(|e| Error::start(format!("cannot find this program: {e}")))?;
        let mut spec = partage_boot::Spec::new(program, ranks);
        spec.procs = procs;
        spec.args = std::env::args_os().skip(1).collect();
        if let Some(name) = self.test_name.as_deref().filter(|n| !n.is_empty()) {
            spec.args = ["--exact", name, "--nocapture"].map(Into::into).to_vec();
        }
        spec.env.push((settings::CALL.into(), call.key().into()));
        let settings = Settings::read()?;
        spec.timeout = settings.timeout.unwrap_or(self.default_timeout);
        spec.hang_after = settings.hang_after;
        let (ended, joined) = launcher::launch_and_count(&spec).map_err(Error::start)?;
        match (ended.code, ended.why) {
            (0, _) if joined < procs => panic!(
                "{} of {procs} processes ended without reaching this job; a test calls partage::test on its own thread",
                procs - joined
            ),
            (0, _) => Ok(vec![]),
            (_, Some(why)) => panic!("{why}"),
            (code, None) => panic!("a job of {ranks} ranks in {procs} processes ended with code {code}"),
        }
    }

    fn config(&self, settings: &Settings, kind: Kind) -> Result<Config> {
        let ranks = match kind {
            Kind::Alone => self.ranks.or(settings.ranks).unwrap_or_else(default_ranks),
            _ => settings.threads.unwrap_or(1),
        };
        if ranks == 0 {
            return Err(Error::config("ranks(0): a job has at least one rank"));
        }
        Ok(Config {
            ranks,
            segment: self.segment.or(settings.segment),
            huge: !settings.no_huge,
            bind: settings.bind,
            image: image::identity(),
            host: hostname(),
            node: settings.node.clone(),
            network: ofi::Settings {
                provider: settings.provider.clone(),
                interface: settings.interface.clone(),
                atomics: settings.atomics == Arbiter::Network,
                signals: settings.signals,
                registered: settings.registered.unwrap_or(ofi::REGISTERED),
                demands: settings.demands,
                am_memory: settings.am_memory,
                credits: settings.credits,
                puts_under_way: settings.puts_under_way.unwrap_or(ofi::rma::TOKENS),
                thread: !settings.no_progress_thread,
                enter: fail::enter_service,
                lost: |why| fail::die(1, Some(why)),
                patience: settings.connect.unwrap_or(Duration::from_secs(10)),
                heartbeat: settings.heartbeat,
            },
            cores: settings.own_cores.map(|own| if own { Cores::Own } else { Cores::Shared }),
            radix: settings.radix,
            word: if Told.place().0 == 0 { own_table(settings).to_string().into_bytes() } else { vec![] },
            fences: settings.fences,
        })
    }
}

/// The rules that come before the built-in table: those of the environment, then those of the profile.
fn own_table(settings: &Settings) -> Table {
    static ONCE: Once = Once::new();
    let found = profile::find();
    if let Some(line) = found.complaint() {
        ONCE.call_once(|| fail::say(&line));
    }
    let tuned = match found {
        profile::Found::Used(_, profile) => profile.table,
        _ => Table::empty(),
    };
    settings.table.clone().unwrap_or(Table::empty()).over(tuned)
}

/// The table of the job: those rules as process 0 has them, or ranks would choose different algorithms and wait for ever.
fn said_table(node: &Node) -> Result<Table> {
    let said = std::str::from_utf8(node.word()).ok().and_then(|text| text.parse::<Table>().ok());
    let rules =
        said.ok_or_else(|| Error::start("process 0 has rules for collectives that this process cannot read"))?;
    Ok(rules.over(Table::default()))
}

/// What a rank's failure does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It ends this process and the job.
    Exit,
    /// It ends the job's ranks and is the caller's panic.
    Unwind,
}

/// The ranks of this process at work.
struct Crew<'f, F> {
    node: Arc<Node>,
    site: Site,
    fate: Fate,
    options: Options,
    keeps_rseq: bool,
    body: &'f F,
    first_failure: Arc<Mutex<Option<String>>>,
}

impl<F> Crew<'_, F> {
    fn work<R: Send>(&self) -> Vec<Option<R>>
    where
        F: Fn(&Job) -> std::result::Result<R, String> + Sync,
    {
        let mut mine = self.node.mine();
        let first = mine.next().expect("a process has a rank");
        // The calling thread's mask is put back: a bound rank must not leave a bound program behind.
        let cores = topology::allowed_cores();
        let results = std::thread::scope(|s| {
            let others: Vec<_> = mine
                .map(|r| {
                    let thread = std::thread::Builder::new().name(format!("rank {r}")).stack_size(8 << 20);
                    let started = thread.spawn_scoped(s, move || self.rank(r));
                    started.map_err(|e| self.failed(r, 1, &format!("cannot start its thread: {e}"))).ok()
                })
                .collect();
            let mut results = vec![self.rank(first)];
            results.extend(others.into_iter().map(|t| t?.join().expect("a rank's panic is caught in it")));
            results
        });
        topology::allow(&cores);
        results
    }

    fn rank<R>(&self, r: usize) -> Option<R>
    where
        F: Fn(&Job) -> std::result::Result<R, String>,
    {
        let (node, first_failure) = (self.node.clone(), self.first_failure.clone());
        let host = self.node.host_of(r).0;
        let _rank = fail::enter_rank(r as u32, host, self.fate == Fate::Exit, move |line| {
            if !line.is_empty() {
                first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(line.into());
            }
            node.abort(fail::PANICKED as u32);
        });
        let shares = self.node.cores() == Cores::Shared && !self.keeps_rseq;
        let _left_out = if shares { LeftOut::here() } else { None };
        let job = match Job::new(self.node.seat(r), r, &self.options) {
            Ok(job) => job,
            Err(why) => {
                self.failed(r, 1, &format!("failed: {why}"));
                return None;
            }
        };
        // A rank that starts late, when the job has been aborted, finds out at its first wait.
        let result = catch_unwind(AssertUnwindSafe(|| {
            job.begin(self.site.at);
            let result = (self.body)(&job);
            if result.is_ok() {
                job.end(self.site);
            }
            result
        }));
        // What the program has left is dropped now.
        let left = catch_unwind(AssertUnwindSafe(|| job.is_over()));
        let result = result.and_then(|result| left.map(|()| result));
        match result.map_err(fail::unwound) {
            Ok(Ok(value)) => {
                self.node.record(r).ended();
                job.report_leaks();
                return Some(value);
            }
            Ok(Err(text)) => self.failed(r, 1, &format!("failed: {text}")),
            Err(Unwound::Panicked(text)) => self.failed(r, fail::PANICKED, &text),
            Err(Unwound::Ended(text)) => self.failed_saying(r, fail::PANICKED, text),
            Err(Unwound::JobIsOver) => {}
        }
        None
    }

    fn failed(&self, r: usize, code: i32, why: &str) {
        self.failed_saying(r, code, format!("rank {r} on {} {why}", self.node.host_of(r).0));
    }

    fn failed_saying(&self, r: usize, code: i32, line: String) {
        self.node.record(r).failed(&line);
        if self.fate == Fate::Exit {
            fail::die(code, Some(&line));
        }
        let mut first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(line);
        self.node.abort(code as u32);
    }
}

/// The right to have a job: one at a time in a process.
struct Exclusive;

static IN_A_JOB: AtomicBool = AtomicBool::new(false);

impl Exclusive {
    fn take() -> Result<Exclusive> {
        match IN_A_JOB.swap(true, AcqRel) {
            false => Ok(Exclusive),
            true => {
                let who = fail::this_rank().map_or("this process".to_string(), |r| format!("rank {r}"));
                let what = "is in a job already; jobs of one process follow one another, they do not overlap";
                Err(Error::start(format!("{who} {what}")))
            }
        }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        IN_A_JOB.store(false, Release);
    }
}

/// Which of a process's jobs this is, so that a re-executed process finds the one that it was started for.
struct Call {
    name: String,
    number: usize,
    wanted: Option<String>,
    re_executed: bool,
}

impl Call {
    fn of(test_name: Option<&str>, kind: Kind) -> Call {
        static COUNTS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);
        let name = test_name.unwrap_or_default().to_string();
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get_or_insert_default().entry(name.clone()).or_default();
        *count += 1;
        let wanted = std::env::var(settings::CALL).ok().filter(|_| kind == Kind::Launcher);
        Call { name, number: *count, re_executed: wanted.is_some(), wanted }
    }

    fn key(&self) -> String {
        format!("{}#{}", self.name, self.number)
    }

    fn is_mine(&self) -> bool {
        self.wanted.as_ref().is_none_or(|w| *w == self.key())
    }
}

/// The name of the running test: its thread has it, or the command line.
fn test_name() -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if name != "main" => name.to_string(),
        _ => {
            let args: Vec<String> = std::env::args().collect();
            let exact = args.iter().any(|a| a == "--exact");
            let name = args.iter().skip(1).find(|a| !a.starts_with('-'));
            name.filter(|_| exact).cloned().unwrap_or_default()
        }
    }
}

/// Makes this process the one with number `process` of `processes` that know each other already, for programs that another
/// runtime starts, such as MPI. Jobs that are started afterwards ([`run`], [`Launch`]) have the ranks of all of them
/// (`PARTAGE_THREADS` each), and no launcher is asked: whoever has connected to it, as `MPI_Init` has, keeps it for himself.
///
/// `all_gather(mine, all)` puts everybody's `mine` into `all`, by process; all are of one length. It is collective, and only
/// called inside the call that starts a job, by the thread that made it.
///
/// To be called once by every process, before its first job. A rank that fails ends its process with a code that is not
/// zero, and whoever started the processes is to end the others.
///
/// ```no_run
/// # const MPI_BYTE: i32 = 0; const MPI_COMM_WORLD: i32 = 0;
/// # #[allow(non_snake_case)]
/// # unsafe fn MPI_Allgather(_: *const u8, _: i32, _: i32, _: *mut u8, _: i32, _: i32, _: i32) -> i32 { 0 }
/// # let (process, processes) = (0, 1);
/// // After MPI_Init; process and processes are those of MPI_COMM_WORLD.
/// partage::embed(process, processes, |mine, all| {
///     let (from, to, len) = (mine.as_ptr(), all.as_mut_ptr(), mine.len() as i32);
///     // SAFETY: `all` has room for everybody's bytes, and MPI keeps neither.
///     match unsafe { MPI_Allgather(from, len, MPI_BYTE, to, len, MPI_BYTE, MPI_COMM_WORLD) } {
///         0 => Ok(()),
///         code => Err(format!("MPI_Allgather returned {code}")),
///     }
/// })?;
/// partage::run(|job| job.barrier());
/// // MPI goes on here.
/// # Ok::<(), partage::Error>(())
/// ```
pub fn embed(
    process: usize,
    processes: usize,
    all_gather: impl FnMut(&[u8], &mut [u8]) -> std::result::Result<(), String> + Send + 'static,
) -> Result<()> {
    let mut boot = fail::boot();
    if boot.is_some() {
        return Err(Error::start("embed: this process has its connection already; call it once, before the first job"));
    }
    *boot = Some(Boot::embedded(process, processes, Box::new(all_gather)).map_err(Error::start)?);
    drop(boot);
    finalize_at_exit();
    Ok(())
}

/// Connects this process to the others, once.
fn connect() -> Result<(Kind, usize)> {
    let mut boot = fail::boot();
    if boot.is_none() {
        let how = std::env::var("PARTAGE_BOOT").ok().filter(|how| how != "detect");
        let connected = Boot::connect(how.as_deref()).map_err(Error::start)?;
        finalize_at_exit();
        *boot = Some(connected);
    }
    let boot = boot.as_ref().expect("just connected");
    Ok((boot.kind(), boot.processes()))
}

/// A process that ends between jobs has left in good order; one that ends inside a job has not. Our launcher says so;
/// where there is none, or one that may not notice, we do.
fn finalize_at_exit() {
    static OWNER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn finalize() {
        // A forked child inherits this handler, but neither the job nor the connection. And whoever holds the connection
        // at this moment waits for other processes; they will notice by themselves.
        if OWNER.load(Relaxed) != std::process::id() {
            return;
        }
        let Some(mut boot) = fail::try_boot() else { return };
        let Some(boot) = &mut *boot else { return };
        if !IN_A_JOB.load(Acquire) {
            return boot.finalize();
        }
        if boot.kind() != Kind::Launcher && !fail::ENDING.load(Acquire) {
            let who = fail::this_rank().map_or("the program".into(), |r| format!("rank {r} on {}", hostname()));
            boot.abort(1, Some(&format!("partage: {who} exited before the job was over")));
            // SAFETY: ends the process; what the C library still holds is written first, as a normal exit would.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(1);
            }
        }
    }
    OWNER.store(std::process::id(), Relaxed);
    // SAFETY: `finalize` is a plain function over statics that live as long as the process; it does not block, does nothing
    // in a forked child, and does not unwind.
    unsafe { libc::atexit(finalize) };
}

/// The exchange of the conduits, over the connection of this process.
struct Told;

impl Told {
    /// Returns when all processes have called it.
    fn fence(&self) -> std::result::Result<(), String> {
        let mut boot = fail::boot();
        boot.as_mut().ok_or("not connected")?.fence().map_err(|e| e.to_string())
    }
}

impl Exchange for Told {
    fn place(&self) -> (usize, usize) {
        fail::boot().as_ref().map_or((0, 1), |b| (b.process(), b.processes()))
    }

    fn all_gather(&mut self, mine: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut boot = fail::boot();
        let boot = boot.as_mut().ok_or("not connected")?;
        boot.exchange(mine).map_err(|e| e.to_string())
    }

    fn announce(&mut self, path: &str) {
        if let Some(boot) = &mut *fail::boot() {
            // Only reports suffer if this fails.
            let _ = boot.announce(launcher::MEMORY, path.as_bytes());
        }
    }
}

fn warn_of_unknown_settings() {
    static ONCE: Once = Once::new();
    if Told.place().0 != 0 {
        return;
    }
    ONCE.call_once(|| {
        for (name, near) in settings::unknown() {
            let hint = near.map_or("`partage info` lists them all".into(), |n| format!("did you mean {n}?"));
            fail::say(&format!("warning: there is no setting {name}; {hint}"));
        }
    });
}

fn default_ranks() -> usize {
    let quota = topology::cpu_quota().map_or(usize::MAX, |q| q.floor().max(1.0) as usize);
    topology::allowed_cores().len().clamp(1, quota)
}

/// The name by which a launcher knows this host, or the host itself.
fn hostname() -> String {
    if let Ok(name) = std::env::var("PARTAGE_NODE")
        && !name.is_empty()
        && name != partage_conduit::shm::EACH_PROCESS
    {
        return name;
    }
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
