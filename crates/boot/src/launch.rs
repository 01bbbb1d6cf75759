//! The launcher: starts the processes of a job, serves them, watches them, ends them.
//!
//! Guaranteed:
//! - One thread, the caller's, and one `poll` loop; no `SIGCHLD` handler and no wait for children
//!   that are not the job's, so that it also works inside a larger program.
//! - The first failure ends the job: one line on stderr, SIGTERM to all other processes, SIGKILL
//!   after a moment, and the exit code of the process that failed.
//! - Nothing is left behind: every process group is killed before its number is free again, every
//!   child reaped, every descriptor closed, also when the observer panics.
//!
//! Not contained: other hosts; what ranks do (an [`Observer`] is asked); the death of the launcher
//! itself, which the processes notice by their [`crate::Boot::lifeline`].

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};

use crate::Error;
use crate::output::{Sink, Stream};
use crate::server::{Abort, Action, Server};
use crate::spawn::{Started, spawn};
use crate::verdict::{self, Death, OomKills};
use crate::wire::Lines;

/// A job to be launched.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program, found like `execvp` finds it.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How many ranks.
    pub ranks: usize,
    /// In how many processes; see [`ranks_of`].
    pub procs: usize,
    /// Variables to set, beside the launcher's own environment (less what that says about a job
    /// which the launcher itself is part of, and less `PARTAGE_BOOT`).
    pub env: Vec<(OsString, OsString)>,
    /// Put the ranks of a process before every line it writes.
    pub label: bool,
    /// End the job after this time, with code 124.
    pub timeout: Option<Duration>,
    /// Report when a rank has been waiting in one call for this long; the job goes on.
    pub hang_after: Option<Duration>,
    /// Where the processes read from.
    pub stdin: Input,
    /// Discard what the processes write. The launcher's own lines still go to stderr.
    pub quiet_output: bool,
    /// Take the launcher's signals and pass them on. Only for a program that is a launcher and
    /// nothing else: afterwards these signals no longer have their default effect.
    pub forward_signals: bool,
}

/// Where the processes of a job read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The launcher's standard input goes to the process of rank 0, the others read nothing.
    ToRankZero,
    /// Nobody reads anything.
    Null,
}

impl Spec {
    /// `ranks` ranks of `program`, one per process, with no arguments and no input.
    pub fn new(program: impl Into<OsString>, ranks: usize) -> Spec {
        Spec {
            program: program.into(),
            args: Vec::new(),
            ranks,
            procs: ranks,
            env: Vec::new(),
            label: false,
            timeout: None,
            hang_after: None,
            stdin: Input::Null,
            quiet_output: false,
            forward_signals: false,
        }
    }
}

/// What the launcher asks about ranks, and tells about processes.
///
/// Its methods are called from within [`launch`] and hold up everything else while they run.
pub trait Observer {
    /// A process has called [`crate::Boot::announce`]. `pid` is that of the caller, which may be a
    /// descendant of the process that was started.
    fn announced(&mut self, process: usize, pid: u32, key: &str, value: &[u8]) {
        let _ = (process, pid, key, value);
    }

    /// What was this process doing? `rank 3 was in barrier at src/main.rs:12:9`, or only `in
    /// barrier at src/main.rs:12:9`. Asked once, for the line about its death, and only of a
    /// process that has connected and not finalized.
    fn doing(&mut self, process: usize) -> Option<String> {
        let _ = process;
        None
    }

    /// What all ranks are doing, in as many lines as it takes.
    fn report(&mut self) -> Option<String> {
        None
    }

    /// The longest time that any rank has been waiting in its present call.
    fn longest_wait(&mut self) -> Option<Duration> {
        None
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exit code of the job: 0, or that of the process that failed first; 128 + number for a
    /// signal, 124 for the timeout.
    pub code: i32,
    /// The line that was printed, if one was.
    pub why: Option<String>,
}

/// The ranks of a process: contiguous blocks, the first `ranks % procs` of them one longer.
///
/// `procs` is at least 1 and `process` below it.
pub fn ranks_of(process: usize, ranks: usize, procs: usize) -> Range<usize> {
    let (each, more) = (ranks / procs, ranks % procs);
    let begin = |process: usize| process * each + process.min(more);
    begin(process)..begin(process + 1)
}

/// Runs a job to its end. An error means that nothing was started, or nothing of it is left.
pub fn launch(spec: &Spec, observer: &mut dyn Observer) -> Result<Ended, Error> {
    let program = validate(spec)?;
    Ok(Job::start(spec, &program, observer)?.run())
}

/// More ranks than any one host has use for; a typing error, most likely.
const RANKS_MAX: usize = 1 << 16;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_millis(200);
/// From a signal that the user sent to SIGKILL.
const GRACE_INTERRUPTED: Duration = Duration::from_secs(1);
/// From SIGKILL to leaving a process alone that the kernel does not let die.
const GRACE_KILLED: Duration = Duration::from_secs(5);
/// How often the observer is asked for hangs, and a terminal whether it is ours again.
const TICK: Duration = Duration::from_millis(250);
/// A process that does not read its answers is not read from beyond this.
const ANSWERS_MAX: usize = 1 << 20;

struct Job<'a> {
    spec: &'a Spec,
    observer: &'a mut dyn Observer,
    members: Vec<Member>,
    server: Server,
    feed: Option<Feed>,
    signals: Signals,
    out: Sink,
    err: Sink,
    host: String,
    oom: OomKills,
    started: Instant,
    next_tick: Instant,
    hang_reported: bool,
    /// Something has happened that may be a failure.
    suspicion: bool,
    /// In the order in which they were read.
    aborts: Vec<(usize, Abort)>,
    garbage: Vec<(usize, Error)>,
    /// Set by the first failure; from then on the job is being ended.
    ended: Option<Ended>,
    interrupts: usize,
    kill_at: Option<Instant>,
    leave_at: Option<Instant>,
    /// Nobody is left to wait for but those who read our output.
    closed: bool,
}

struct Member {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    ranks: Range<usize>,
    socket: Option<OwnedFd>,
    lines: Lines,
    answers: VecDeque<u8>,
    /// Its standard output and error, where they are labelled.
    streams: [Option<Stream>; 2],
    death: Option<Death>,
}

/// What `poll` has found ready.
#[derive(Clone, Copy)]
enum Source {
    Signal(usize),
    Death(usize),
    Socket(usize),
    Stream(usize, usize),
    Stdin,
    Feed,
    Out,
    Err,
}

impl<'a> Job<'a> {
    fn start(spec: &'a Spec, program: &Path, observer: &'a mut dyn Observer) -> Result<Job<'a>, Error> {
        let forwarded = if spec.forward_signals { Signals::register() } else { Ok(Signals(Vec::new())) };
        let signals = forwarded.map_err(|e| Error::new(format!("cannot take over signals: {e}")))?;
        let now = Instant::now();
        let mut job = Job {
            spec,
            observer,
            members: Vec::with_capacity(spec.procs),
            server: Server::new(format!("partage-{}", std::process::id()), spec.procs),
            feed: None,
            signals,
            out: Sink::new(io::stdout()),
            err: Sink::new(io::stderr()),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            oom: OomKills::now(),
            started: now,
            next_tick: now,
            hang_reported: false,
            suspicion: false,
            aborts: Vec::new(),
            garbage: Vec::new(),
            ended: None,
            interrupts: 0,
            kill_at: None,
            leave_at: None,
            closed: false,
        };
        for process in 0..spec.procs {
            // On an error the drop of `job` ends the processes that run already.
            job.add(process, program).map_err(|e| {
                let program = spec.program.display();
                Error::new(format!("cannot start process {process} of {} as `{program}`: {e}", spec.procs))
            })?;
        }
        Ok(job)
    }

    fn add(&mut self, process: usize, program: &Path) -> io::Result<()> {
        let mut feed = false;
        let stdin = if process > 0 || self.spec.stdin == Input::Null {
            Stdio::null()
        } else if io::stdin().is_terminal() {
            // Not handed on: the process, in its own group, would be stopped when it reads.
            feed = true;
            Stdio::piped()
        } else {
            Stdio::inherit()
        };
        let Started { mut child, pid, pidfd, socket } = spawn(self.spec, program, process, stdin)?;
        let ranks = ranks_of(process, self.spec.ranks, self.spec.procs);
        let pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        let input = child.stdin.take().filter(|_| feed).map(OwnedFd::from);
        let label = label(&ranks);
        self.members.push(Member {
            child,
            pid,
            pidfd,
            ranks,
            socket: Some(socket),
            lines: Lines::default(),
            answers: VecDeque::new(),
            streams: [None, None],
            death: None,
        });
        for (pipe, stream) in pipes.into_iter().zip(&mut self.members[process].streams) {
            *stream = pipe.map(|pipe| Stream::new(pipe, &label)).transpose()?;
        }
        self.feed = self.feed.take().or(input.map(Feed::new).transpose()?);
        Ok(())
    }

    fn run(mut self) -> Ended {
        loop {
            let left = self.leave_at.is_some_and(|at| Instant::now() >= at);
            if !self.closed && (left || self.members.iter().all(|member| member.death.is_some())) {
                self.close();
            }
            if self.closed && self.out.is_empty() && self.err.is_empty() {
                break;
            }
            for source in self.wait() {
                self.attend(source);
            }
            if !self.closed {
                if self.suspicion && self.ended.is_none() {
                    self.look_around();
                }
                self.judge();
                self.clock();
            }
        }
        self.ended.take().unwrap_or(Ended { code: 0, why: None })
    }

    /// Waits until something happens or it is time for [`Job::clock`].
    fn wait(&mut self) -> Vec<Source> {
        let mut fds: Vec<(Source, PollFd<'_>)> = Vec::new();
        for (at, (_, _, stream)) in self.signals.0.iter().enumerate() {
            fds.push((Source::Signal(at), PollFd::new(stream, PollFlags::IN)));
        }
        for (process, member) in self.members.iter().enumerate().filter(|_| !self.closed) {
            if member.death.is_none() {
                fds.push((Source::Death(process), PollFd::new(&member.pidfd, PollFlags::IN)));
            }
            if let Some(socket) = &member.socket {
                let mut events = PollFlags::empty();
                events.set(PollFlags::OUT, !member.answers.is_empty());
                events.set(PollFlags::IN, member.answers.len() < ANSWERS_MAX);
                fds.push((Source::Socket(process), PollFd::new(socket, events)));
            }
            for (which, stream) in member.streams.iter().enumerate() {
                let sink = if which == 0 { &self.out } else { &self.err };
                if let Some(stream) = stream.as_ref().filter(|_| !sink.is_full()) {
                    let fd = PollFd::from_borrowed_fd(stream.fd(), PollFlags::IN);
                    fds.push((Source::Stream(process, which), fd));
                }
            }
        }
        let stdin = io::stdin();
        if let Some(feed) = self.feed.as_ref().filter(|_| !self.closed) {
            let events = if feed.queue.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push((Source::Feed, PollFd::new(&feed.pipe, events)));
            if feed.queue.is_empty() && feed.may_read() {
                fds.push((Source::Stdin, PollFd::new(&stdin, PollFlags::IN)));
            }
        }
        for (source, sink) in [(Source::Out, &self.out), (Source::Err, &self.err)] {
            if !sink.is_empty() {
                fds.push((source, PollFd::from_borrowed_fd(sink.fd(), PollFlags::OUT)));
            }
        }

        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) = fds.into_iter().unzip();
        let timeout = self.until_clock().filter(|_| !self.closed).and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {
                let ready = fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty());
                ready.map(|(_, source)| source).collect()
            }
            Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => Vec::new(),
            Err(e) => {
                drop(fds);
                self.fail(1, Some(format!("partage: the launcher cannot wait for its processes: {e}")), None);
                self.leave_at = Some(Instant::now());
                Vec::new()
            }
        }
    }

    fn attend(&mut self, source: Source) {
        match source {
            Source::Signal(at) => self.signalled(at),
            Source::Death(process) => self.bury(process),
            Source::Socket(process) => self.serve(process),
            Source::Stream(process, which) => {
                let sink = if which == 0 { &mut self.out } else { &mut self.err };
                let stream = &mut self.members[process].streams[which];
                if !stream.as_mut().is_some_and(|stream| stream.pass(64 << 10, sink)) {
                    stream.take().into_iter().for_each(|stream| stream.finish(sink));
                }
            }
            Source::Stdin | Source::Feed => {
                if !self.feed.as_mut().is_some_and(|feed| feed.pass(matches!(source, Source::Stdin))) {
                    self.feed = None;
                }
            }
            Source::Out => self.out.write(),
            Source::Err => self.err.write(),
        }
    }

    /// Reads what a process has sent, does it, and sends what there is to answer.
    fn serve(&mut self, process: usize) {
        let mut buffer = [0; 64 << 10];
        self.answer(process);
        // A process may send as fast as it is read; the others want their turn.
        for _ in 0..64 {
            let member = &mut self.members[process];
            let Some(socket) = &member.socket else { return };
            match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((read, _)) if read > 0 => member.lines.push(&buffer[..read]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => {
                    member.socket = None;
                    return;
                }
            }
            loop {
                match self.members[process].lines.next() {
                    Ok(None) => break,
                    Ok(Some(line)) => match self.server.line(process, &line) {
                        Ok(actions) => actions.into_iter().for_each(|action| self.act(process, action)),
                        Err(e) => return self.refuse(process, e),
                    },
                    Err(e) => return self.refuse(process, e),
                }
            }
            if self.members[process].answers.len() >= ANSWERS_MAX {
                break;
            }
        }
        self.answer(process);
    }

    fn act(&mut self, from: usize, action: Action) {
        match action {
            Action::Send { to, line } => {
                self.members[to].answers.extend(line.as_bytes());
                if to != from {
                    self.answer(to);
                }
            }
            Action::Announced { pid, key, value } => {
                let pid = pid.unwrap_or(self.members[from].child.id());
                self.observer.announced(from, pid, &key, &value);
            }
            Action::Abort(abort) => {
                self.aborts.push((from, abort));
                self.suspicion = true;
            }
        }
    }

    /// A process has sent what no client sends; it gets no answer any more.
    fn refuse(&mut self, process: usize, error: Error) {
        self.members[process].socket = None;
        self.garbage.push((process, error));
        self.suspicion = true;
    }

    fn answer(&mut self, process: usize) {
        let Member { socket, answers, .. } = &mut self.members[process];
        while let Some(socket) = socket.as_ref().filter(|_| !answers.is_empty()) {
            match rustix::net::send(socket, answers.as_slices().0, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(answers.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // It is ending; its death will tell more.
                Err(_) => answers.clear(),
            }
        }
    }

    /// Learns how a process has died, if it has, and what it has said before.
    fn bury(&mut self, process: usize) {
        let member = &mut self.members[process];
        member.death = Death::of(member.pid);
        if let Some(death) = member.death {
            self.serve(process);
            self.suspicion |= self.is_failure(process, death);
        }
    }

    /// Before a failure is judged: learns what else has happened, for one failure makes others and
    /// they arrive together. Aborts are looked for, since they cause exits, and then deaths by
    /// signal, since they cause aborts; other deaths can wait.
    fn look_around(&mut self) {
        for process in 0..self.members.len() {
            self.serve(process);
        }
        for process in 0..self.members.len() {
            let Member { death, pid, .. } = self.members[process];
            if death.is_none() && matches!(Death::of(pid), Some(Death::Signal { .. })) {
                self.bury(process);
            }
        }
        self.suspicion = false;
    }

    /// Finds the failure that ends the job, if there is one.
    fn judge(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let deaths = || self.members.iter().enumerate().filter_map(|(p, member)| Some((p, member.death?)));
        let aborted = |process: usize| self.aborts.iter().any(|(by, _)| *by == process);
        let killed = deaths().find(|(p, death)| matches!(death, Death::Signal { .. }) && !aborted(*p));
        if let Some((process, death)) = killed {
            return self.fail_by_death(process, death);
        }
        if let Some((process, abort)) = self.aborts.first().cloned() {
            return self.fail_by_abort(process, abort);
        }
        if let Some((process, error)) = self.garbage.first() {
            let who = self.who(*process);
            let why = format!("partage: {who} sent its launcher what it does not understand: {error}");
            return self.fail(1, Some(why), Some(*process));
        }
        let exited = deaths().find(|(_, death)| !matches!(death, Death::Exit(0)));
        if let Some((process, death)) = exited.or_else(|| deaths().find(|(p, death)| self.is_failure(*p, *death))) {
            self.fail_by_death(process, death);
        }
    }

    fn is_failure(&self, process: usize, death: Death) -> bool {
        death != Death::Exit(0) || self.server.takes_part(process) || self.server.awaited(process)
    }

    fn fail_by_death(&mut self, process: usize, death: Death) {
        let (who, ranks) = (self.who(process), self.members[process].ranks.clone());
        let takes_part = self.server.takes_part(process);
        let what = match death {
            Death::Signal { number, core } => verdict::killed(&ranks, number, core, OomKills::now().since(self.oom)),
            Death::Exit(code) if takes_part => format!("exited with code {code} before the job was over"),
            Death::Exit(0) => "exited with code 0 while others wait for it".into(),
            Death::Exit(code) => format!("exited with code {code}"),
        };
        let doing = if takes_part { self.observer.doing(process) } else { None };
        let doing = verdict::doing(&ranks, doing);
        self.fail(death.code(), Some(format!("partage: {who} {what}{doing}")), None);
    }

    fn fail_by_abort(&mut self, process: usize, abort: Abort) {
        let why = match abort.line {
            Some(line) => Some(line),
            None if abort.said || abort.code == 0 => None,
            None => Some(format!("partage: {} aborted the job with code {}", self.who(process), abort.code)),
        };
        // What an exit code can carry, but no failure that looks like success.
        let code = match abort.code & 0xff {
            0 if abort.code != 0 => 1,
            code => code,
        };
        self.fail(code, why, Some(process));
    }

    /// Begins to end the job; a process that ends by itself, `spare`, is given the time to do so.
    fn fail(&mut self, code: i32, why: Option<String>, spare: Option<usize>) {
        if let Some(why) = &why {
            self.err.push_line(why);
        }
        self.ended = Some(Ended { code, why });
        for (process, member) in self.members.iter().enumerate() {
            if spare != Some(process) {
                let _ = kill_process_group(member.pid, Signal::TERM);
            }
        }
        self.kill_at = Some(Instant::now() + GRACE);
        self.err.write();
    }

    fn signalled(&mut self, at: usize) {
        let (signal, _, stream) = &self.signals.0[at];
        let signal = *signal;
        let mut buffer = [0; 64];
        let Ok((count, _)) = rustix::net::recv(stream, &mut buffer, RecvFlags::DONTWAIT) else { return };
        if signal == Signal::QUIT {
            return self.report();
        }
        self.signal_all(signal);
        if [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal) {
            if self.ended.is_none() {
                let why = format!("partage: interrupted by {}", verdict::signal_name(signal.as_raw()));
                self.err.push_line(&why);
                self.ended = Some(Ended { code: 128 + signal.as_raw(), why: Some(why) });
                self.kill_at = Some(Instant::now() + GRACE_INTERRUPTED);
            }
            if signal == Signal::INT {
                self.interrupts += count;
            }
            if self.interrupts > 1 {
                self.kill_at = self.kill_at.map(|_| Instant::now());
            }
            if self.closed {
                self.out.discard();
                self.err.discard();
            }
        }
    }

    fn until_clock(&self) -> Option<Duration> {
        let timeout = self.spec.timeout.filter(|_| self.ended.is_none());
        let timeout = timeout.and_then(|timeout| self.started.checked_add(timeout));
        let hangs = self.spec.hang_after.is_some() && self.ended.is_none();
        let tick = (hangs || self.feed.is_some()).then_some(self.next_tick);
        let next = [timeout, tick, self.kill_at, self.leave_at].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Does what it is time for.
    fn clock(&mut self) {
        let now = Instant::now();
        if self.ended.is_none() {
            if let Some(timeout) = self.spec.timeout.filter(|timeout| now - self.started >= *timeout) {
                let why = format!("partage: the job did not end within {} s", timeout.as_secs_f64());
                self.fail(124, Some(why), None);
                self.report();
            } else if let Some(limit) = self.spec.hang_after.filter(|_| now >= self.next_tick) {
                let hangs = self.observer.longest_wait().is_some_and(|wait| wait >= limit);
                if hangs && !self.hang_reported {
                    let limit = limit.as_secs_f64();
                    self.err.push_line(&format!("partage: a rank has been waiting for {limit} s in one call"));
                    self.report();
                }
                self.hang_reported = hangs;
            }
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.leave_at = Some(now + GRACE_KILLED);
            self.signal_all(Signal::KILL);
        }
    }

    fn report(&mut self) {
        let nothing = || "partage: the ranks have not told what they are doing".to_owned();
        self.err.push_line(&self.observer.report().unwrap_or_else(nothing));
        self.err.write();
    }

    /// No process is left, or none that dies: kills what they have started and takes what they
    /// have written.
    fn close(&mut self) {
        self.closed = true;
        self.signal_all(Signal::KILL);
        for member in &mut self.members {
            for (stream, sink) in member.streams.iter_mut().zip([&mut self.out, &mut self.err]) {
                stream.take().into_iter().for_each(|stream| stream.finish(sink));
            }
        }
    }

    /// To all process groups. Those of dead processes are still theirs, see [`Death::of`].
    fn signal_all(&self, signal: Signal) {
        for member in &self.members {
            let _ = kill_process_group(member.pid, signal);
        }
    }

    /// `rank 3 on vm (pid 123)`.
    fn who(&self, process: usize) -> String {
        let member = &self.members[process];
        format!("{} on {} (pid {})", verdict::name(&member.ranks), self.host, member.child.id())
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
        let left = self.leave_at.is_some_and(|at| Instant::now() >= at);
        for member in &mut self.members {
            // A killed process that the kernel does not let die would keep us here.
            let _ = if left { member.child.try_wait().map(drop) } else { member.child.wait().map(drop) };
        }
    }
}

/// From the terminal that is the launcher's standard input to the process of rank 0.
struct Feed {
    pipe: OwnedFd,
    queue: Vec<u8>,
}

impl Feed {
    fn new(pipe: OwnedFd) -> io::Result<Feed> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Feed { pipe, queue: Vec::new() })
    }

    /// A launcher in the background must not read, or it would be stopped.
    fn may_read(&self) -> bool {
        rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Passes on what there is. False: the input has ended, or nobody reads it.
    fn pass(&mut self, readable: bool) -> bool {
        if readable {
            let mut buffer = [0; 4096];
            match rustix::io::read(io::stdin(), &mut buffer) {
                Ok(0) => return false,
                Ok(read) => self.queue.extend_from_slice(&buffer[..read]),
                Err(Errno::INTR | Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        // Nothing was asked of the pipe, so it has woken us because its reader is gone.
        if self.queue.is_empty() {
            return false;
        }
        match rustix::io::write(&self.pipe, &self.queue) {
            Ok(written) => {
                self.queue.drain(..written);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }
}

/// The signals that the launcher takes, each with a socket that it makes readable.
struct Signals(Vec<(Signal, SigId, UnixStream)>);

impl Signals {
    fn register() -> io::Result<Signals> {
        let mut signals = Signals(Vec::new());
        let passed = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2, Signal::CONT];
        for signal in passed.into_iter().chain([Signal::QUIT]) {
            let (ours, theirs) = UnixStream::pair()?;
            signals.0.push((signal, pipe::register(signal.as_raw(), theirs)?, ours));
        }
        Ok(signals)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, id, _) in &self.0 {
            unregister(*id);
        }
    }
}

/// `[0-3] ` or `[5] `.
fn label(ranks: &Range<usize>) -> String {
    match ranks.len() {
        1 => format!("[{}] ", ranks.start),
        _ => format!("[{}-{}] ", ranks.start, ranks.end - 1),
    }
}

/// Finds what is wrong with a job before anything of it is started, and where its program is.
fn validate(spec: &Spec) -> Result<PathBuf, Error> {
    let Spec { ranks, procs, .. } = *spec;
    let complaint = if ranks == 0 {
        Some("-n 0: a job has at least one rank".to_owned())
    } else if procs == 0 {
        Some("a job has at least one process".to_owned())
    } else if procs > ranks {
        Some(format!("{procs} processes for {ranks} ranks: a process has at least one rank"))
    } else if ranks > RANKS_MAX {
        Some(format!("-n {ranks}: a job on one host has at most {RANKS_MAX} ranks"))
    } else {
        let needed = 64 + procs * if spec.label && !spec.quiet_output { 4 } else { 2 };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.filter(|limit| needed as u64 > *limit).map(|limit| {
            format!("{procs} processes need about {needed} descriptors, but only {limit} are allowed (ulimit -n)")
        })
    };
    match complaint {
        Some(complaint) => Err(Error::new(complaint)),
        None => find(&spec.program, std::env::var_os("PATH").as_deref()),
    }
}

/// The file that `execvp` would start as `program`.
fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let name = program.display();
    if program.is_empty() {
        return Err(Error::new("no program given"));
    }
    if program.as_bytes().contains(&b'/') {
        let file = PathBuf::from(program);
        return match usable(&file) {
            Ok(()) => Ok(file),
            Err(why) => Err(Error::new(format!("`{name}` {why}"))),
        };
    }
    let mut found = None;
    for directory in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty entry is the current directory.
        let file =
            if directory.as_os_str().is_empty() { Path::new(".").join(program) } else { directory.join(program) };
        match usable(&file) {
            Ok(()) => return Ok(file),
            Err(_) if !file.exists() => {}
            Err(why) => found = found.or(Some(format!("`{}` {why}", file.display()))),
        }
    }
    let here = Path::new(program).is_file();
    let hint = if here { format!("; did you mean `./{name}`?") } else { String::new() };
    Err(Error::new(found.unwrap_or(format!("`{name}` is not in any directory of PATH{hint}"))))
}

fn usable(file: &Path) -> Result<(), String> {
    match std::fs::metadata(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err("does not exist".into()),
        Err(e) => Err(format!("cannot be started: {e}")),
        Ok(meta) if meta.is_dir() => Err("is a directory, not a program".into()),
        Ok(_) if rustix::fs::access(file, Access::EXEC_OK).is_err() => Err("is not executable".into()),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_contiguous_and_even() {
        for ranks in 1..40 {
            for procs in 1..=ranks {
                let all: Vec<Range<usize>> = (0..procs).map(|p| ranks_of(p, ranks, procs)).collect();
                assert_eq!(all.iter().cloned().flatten().collect::<Vec<_>>(), (0..ranks).collect::<Vec<_>>());
                assert!(all.windows(2).all(|w| w[0].len() == w[1].len() || w[0].len() == w[1].len() + 1));
                assert!(all[0].len() - all[procs - 1].len() <= 1);
            }
        }
        assert_eq!(ranks_of(1, 7, 3), 3..5);
    }

    #[test]
    fn labels() {
        assert_eq!((label(&(0..4)).as_str(), label(&(5..6)).as_str()), ("[0-3] ", "[5] "));
    }

    #[test]
    fn impossible_jobs() {
        let complaint = |ranks, procs| validate(&Spec { procs, ..Spec::new("true", ranks) }).unwrap_err().to_string();
        assert_eq!(complaint(0, 1), "-n 0: a job has at least one rank");
        assert_eq!(complaint(2, 0), "a job has at least one process");
        assert_eq!(complaint(2, 3), "3 processes for 2 ranks: a process has at least one rank");
        assert!(complaint(1_000_000, 1).starts_with("-n 1000000: "));
        assert!(validate(&Spec::new("true", 2)).unwrap().is_absolute());
    }

    #[test]
    fn programs_that_cannot_be_started() {
        let complaint =
            |program: &str, path: &str| find(program.as_ref(), Some(path.as_ref())).unwrap_err().to_string();
        assert_eq!(complaint("", "/bin"), "no program given");
        assert_eq!(complaint("no-such-program", "/bin::"), "`no-such-program` is not in any directory of PATH");
        assert_eq!(complaint("./no-such-program", "/bin"), "`./no-such-program` does not exist");
        assert_eq!(complaint("/", "/bin"), "`/` is a directory, not a program");
        assert_eq!(complaint("./Cargo.toml", "/bin"), "`./Cargo.toml` is not executable");
        assert_eq!(complaint("Cargo.toml", "/bin:."), "`./Cargo.toml` is not executable");
        assert!(complaint("Cargo.toml", "/bin").ends_with("did you mean `./Cargo.toml`?"));
        assert!(complaint("src", "/bin:.").ends_with("is a directory, not a program"));
        assert!(complaint("Cargo.toml/x", "").starts_with("`Cargo.toml/x` cannot be started"));
        assert_eq!(find("sh".as_ref(), None).unwrap().file_name(), Some("sh".as_ref()));
    }
}
