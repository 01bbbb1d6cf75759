//! The launcher: has the processes of a job started, serves them, judges what happens to them, ends them.
//!
//! Guaranteed:
//! - One thread, the caller's, and one `poll` loop; no `SIGCHLD` handler and no wait for children
//!   that are not the job's, so that it also works inside a larger program.
//! - The first failure ends the job: one line on stderr, SIGTERM to all other processes, SIGKILL
//!   after a moment, and the exit code of the process that failed.
//! - Nothing is left behind on any host, also when the observer panics: see [`Crew`] and [`Remote`]. (A launcher whose
//!   host is cut off cannot end what is elsewhere: agents there hear the end of their input when the kernel gives the
//!   connection up, or the processes notice that hosts of their own are lost.)
//!
//! Not contained: processes as such, which are in crews, here or behind an agent; what ranks do (an
//! [`Observer`] is asked); the death of the launcher itself, which the processes notice by their
//! [`crate::Boot::lifeline`] and agents by the end of their input.

mod judge;
mod report;

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::crew::{Crew, Event, GRACE_KILLED, Order, Stdin};
use crate::output::Sink;
use crate::party::{self, Party};
use crate::remote::{self, GRACE_AGENT, Remote};
use crate::server::{Abort, Action, Server};
use crate::signals::{self, Signals};
use crate::spec::find;
use crate::verdict::{self, Death};
use crate::{Error, HEARTBEAT, Input, Observer, Spec, ranks_of};
use judge::Looking;
use report::Report;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exit code of the job: 0, or that of the process that failed first; 128 + number for a
    /// signal, 124 for the timeout.
    pub code: i32,
    /// The line that was printed, if one was.
    pub why: Option<String>,
}

/// Runs a job to its end. An error means that nothing was started, or nothing of it is left.
pub fn launch(spec: &Spec, observer: &mut dyn Observer) -> Result<Ended, Error> {
    spec.check()?;
    Job::start(spec, observer)?.run()
}

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_millis(200);
/// From a signal that the user sent to SIGKILL.
const GRACE_INTERRUPTED: Duration = Duration::from_secs(1);
/// How often the observer is asked for hangs, and a terminal whether it is ours again.
const TICK: Duration = Duration::from_millis(250);
/// Agents are asked so often whether they are there before they are given up.
const PINGS: u32 = 10;
/// How long other hosts have to tell what they know, before a failure is judged or a report made.
const PATIENCE: Duration = Duration::from_millis(500);

struct Job<'a> {
    spec: &'a Spec,
    observer: &'a mut dyn Observer,
    parties: Vec<Party>,
    members: Vec<Member>,
    /// What was heard and not yet thought about, with the number of the party.
    news: VecDeque<(usize, Event)>,
    server: Server,
    stdin: Option<Keyboard>,
    signals: Signals,
    out: Sink,
    err: Sink,
    held: [bool; 2],
    started: Instant,
    next_tick: Instant,
    next_ping: Instant,
    /// How long the longest wait of each party was, when last asked.
    waits: Vec<Option<Duration>>,
    hang_reported: bool,
    report: Option<Report>,
    /// Something has happened that may be a failure.
    suspicion: bool,
    looking: Option<Looking>,
    /// In the order in which they were read.
    aborts: Vec<(usize, Abort)>,
    garbage: Vec<(usize, String)>,
    lost: Vec<String>,
    /// One of them could not start its processes.
    failed: bool,
    /// Agents that wait for the word to start.
    ready: usize,
    /// All parties have it.
    going: bool,
    /// Why nothing was started.
    cannot: Option<Error>,
    /// Set by the first failure; from then on the job is being ended.
    ended: Option<Ended>,
    interrupts: usize,
    kill_at: Option<Instant>,
    leave_at: Option<Instant>,
    /// Nobody is left to wait for but agents, until then, and those who read our output.
    closed: Option<Instant>,
    /// Nothing was ready when it was last looked at.
    idle: bool,
}

struct Member {
    party: usize,
    host: String,
    pid: u32,
    ranks: Range<usize>,
    life: Life,
}

enum Life {
    Coming,
    Running,
    Dead {
        death: Death,
        out_of_memory: bool,
        doing: Option<String>,
    },
    /// Of a host that is lost, or never started.
    Gone,
}

impl Member {
    fn death(&self) -> Option<Death> {
        match self.life {
            Life::Dead { death, .. } => Some(death),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.life, Life::Dead { .. } | Life::Gone)
    }
}

/// The launcher's standard input, where it goes to rank 0 through us.
struct Keyboard {
    /// The last that was read has been passed on.
    ready: bool,
    terminal: bool,
}

impl Keyboard {
    /// A launcher in the background must not read a terminal, or it would be stopped.
    fn may_read(&self) -> bool {
        let ours = || rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp());
        self.ready && (!self.terminal || ours())
    }
}

/// What `poll` has found ready.
#[derive(Clone, Copy)]
enum Source {
    Signal(usize),
    Party(usize, party::Source),
    Stdin,
    Out,
    Err,
}

impl<'a> Job<'a> {
    fn start(spec: &'a Spec, observer: &'a mut dyn Observer) -> Result<Job<'a>, Error> {
        let taken = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2, Signal::CONT, Signal::QUIT];
        // Under `nohup` a hang-up stays ignored. (Not so interrupts, which shells have ignored in the background: who sends one there means it.)
        let stays = |signal: &Signal| *signal == Signal::HUP && signals::is_ignored(Signal::HUP);
        let taken: Vec<Signal> = taken.into_iter().filter(|signal| !stays(signal)).collect();
        let forwarded = if spec.forward_signals { Signals::register(&taken) } else { Ok(Signals::none()) };
        signals::keep_the_dead();
        let signals = forwarded.map_err(|e| Error::new(format!("cannot take over signals: {e}")))?;
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let shares = match &spec.hosts {
            None => vec![(own.as_str(), 0..spec.procs)],
            Some(_) => spec.shares(),
        };
        // A name that was given twice is one node.
        let node = |name: &str| shares.iter().position(|(other, _)| *other == name).unwrap_or_default();
        let nodes: Vec<(usize, usize)> = shares.iter().map(|(name, share)| (node(name), share.len())).collect();
        let members = shares.iter().enumerate().flat_map(|(party, (name, share))| {
            share.clone().map(move |process| Member {
                party,
                host: name.to_string(),
                pid: 0,
                ranks: ranks_of(process, spec.ranks, spec.procs),
                life: Life::Coming,
            })
        });
        let now = Instant::now();
        let mut job = Job {
            spec,
            observer,
            parties: Vec::with_capacity(shares.len()),
            members: members.collect(),
            news: VecDeque::new(),
            server: Server::new(format!("partage-{}", std::process::id()), &nodes),
            stdin: None,
            signals,
            out: Sink::shared(io::stdout()),
            err: Sink::shared(io::stderr()),
            held: [false; 2],
            started: now,
            next_tick: now,
            next_ping: now,
            waits: vec![None; shares.len()],
            hang_reported: false,
            report: None,
            suspicion: false,
            looking: None,
            aborts: Vec::new(),
            garbage: Vec::new(),
            lost: Vec::new(),
            failed: false,
            ready: 0,
            going: false,
            cannot: None,
            ended: None,
            interrupts: 0,
            kill_at: None,
            leave_at: None,
            closed: None,
            idle: false,
        };
        let terminal = spec.stdin == Input::ToRankZero && io::stdin().is_terminal();
        match &spec.hosts {
            None => {
                let piped = spec.label && !spec.quiet_output;
                Spec::room_for(spec.procs, piped)?;
                let program = find(&spec.program, std::env::var_os("PATH").as_deref())?;
                let stdin = match spec.stdin {
                    Input::Null => Stdin::Null,
                    // Not handed on: the process, in its own group, would be stopped when it reads.
                    Input::ToRankZero if terminal => Stdin::Fed,
                    Input::ToRankZero => Stdin::Inherit,
                };
                job.stdin = terminal.then_some(Keyboard { ready: true, terminal });
                let crew = Crew::start(spec, &program, 0..spec.procs, stdin, piped)?;
                job.news.push_back((0, Event::Started(crew.pids())));
                job.parties.push(Party::Here(crew));
                job.going = true;
            }
            Some(hosts) => {
                Spec::room_for(shares.len(), true)?;
                for (name, share) in shares {
                    job.parties.push(Party::There(Box::new(Remote::start(spec, hosts, name, share)?)));
                }
                job.stdin = (spec.stdin == Input::ToRankZero).then_some(Keyboard { ready: false, terminal });
            }
        }
        job.think();
        Ok(job)
    }

    fn run(mut self) -> Result<Ended, Error> {
        loop {
            let left = self.leave_at.is_some_and(|at| Instant::now() >= at);
            let over = self.looking.is_none() && self.members.iter().all(Member::is_over);
            if self.closed.is_none() && (left || over) {
                self.close(left);
            }
            if self.closed.is_some() && self.parties_are_done() && self.out.is_empty() && self.err.is_empty() {
                match self.parties.iter().find_map(Party::untold).filter(|_| self.ended.is_none()) {
                    None => break,
                    Some(host) => {
                        let why = format!("partage: host {host}: the end of what its processes wrote was lost");
                        self.fail(1, Some(why), None);
                        continue;
                    }
                }
            }
            for source in self.wait() {
                self.attend(source);
            }
            self.hold();
            if self.closed.is_none() {
                // What it finds, a host that is lost, is judged before it is seen whether anybody is left.
                self.clock();
                if self.suspicion && self.ended.is_none() && self.looking.is_none() {
                    self.look_around();
                }
                if self.looking.as_ref().is_none_or(|l| l.waiting.is_empty() || Instant::now() >= l.until) {
                    self.suspicion &= self.looking.take().is_none();
                    self.judge();
                }
            }
        }
        match self.cannot.take() {
            Some(error) => Err(error),
            None => Ok(self.ended.take().unwrap_or(Ended { code: 0, why: None })),
        }
    }

    /// Waits until something happens or it is time for [`Job::clock`].
    fn wait(&mut self) -> Vec<Source> {
        let mut fds: Vec<(Source, PollFd<'_>)> = Vec::new();
        for (at, socket) in self.signals.sockets().enumerate() {
            fds.push((Source::Signal(at), PollFd::new(socket, PollFlags::IN)));
        }
        for (number, party) in self.parties.iter().enumerate() {
            let mut own = Vec::new();
            party.watch(self.closed.is_some(), &mut own);
            fds.extend(own.into_iter().map(|(source, fd)| (Source::Party(number, source), fd)));
        }
        let stdin = io::stdin();
        if self.closed.is_none() && self.stdin.as_ref().is_some_and(Keyboard::may_read) {
            fds.push((Source::Stdin, PollFd::new(&stdin, PollFlags::IN)));
        }
        for (source, sink) in [(Source::Out, &self.out), (Source::Err, &self.err)] {
            if !sink.is_empty() {
                fds.push((source, PollFd::from_borrowed_fd(sink.fd(), PollFlags::OUT)));
            }
        }

        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) = fds.into_iter().unzip();
        let timeout = self.until_clock().and_then(|time| Timespec::try_from(time).ok());
        let polled = poll(&mut fds, timeout.as_ref());
        self.idle = !matches!(polled, Ok(1..) | Err(Errno::INTR));
        match polled {
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
            Source::Party(number, source) => {
                self.with(number, |party, observer, events| party.attend(source, observer, events));
                // It has said something, or ended.
                if !matches!(source, party::Source::There(remote::Source::Orders)) {
                    self.wait_on();
                }
            }
            Source::Stdin => self.read_stdin(),
            Source::Out => self.out.write(),
            Source::Err => self.err.write(),
        }
        // As a program by itself ends then.
        if self.out.is_deserted() && self.ended.is_none() {
            self.fail(128 + Signal::PIPE.as_raw(), None, None);
        }
        self.think();
    }

    /// Has a party do something. What comes of it is thought about later.
    fn with(&mut self, number: usize, what: impl FnOnce(&mut Party, &mut dyn Observer, &mut Vec<Event>)) {
        let mut events = Vec::new();
        what(&mut self.parties[number], self.observer, &mut events);
        self.news.extend(events.into_iter().map(|event| (number, event)));
    }

    fn order(&mut self, number: usize, order: Order) {
        self.with(number, |party, observer, events| party.order(order, observer, events));
    }

    fn order_all(&mut self, order: Order) {
        (0..self.parties.len()).for_each(|number| self.order(number, order.clone()));
    }

    /// Thinks about all that was heard.
    fn think(&mut self) {
        while let Some((number, event)) = self.news.pop_front() {
            self.heard(number, event);
        }
    }

    fn heard(&mut self, number: usize, event: Event) {
        let failed = matches!(event, Event::Failed(_));
        match event {
            Event::Ready => {
                self.ready += 1;
                if self.ready == self.parties.len() && self.ended.is_none() && self.lost.is_empty() {
                    self.going = true;
                    self.parties.iter_mut().for_each(Party::go);
                }
            }
            Event::Started(pids) => {
                let members = self.members.iter_mut().filter(|member| member.party == number);
                for (member, pid) in members.zip(pids) {
                    (member.pid, member.life) = (pid, Life::Running);
                }
                if number == 0 {
                    self.stdin.iter_mut().for_each(|stdin| stdin.ready = true);
                }
            }
            Event::Line { process, line } => match self.server.line(process, &line) {
                Ok(actions) => actions.into_iter().for_each(|action| self.act(process, action)),
                Err(e) => {
                    self.order(number, Order::Refuse { process });
                    self.garbage.push((process, e.to_string()));
                    self.suspicion = true;
                }
            },
            Event::Garbage { process, error } => {
                self.garbage.push((process, error));
                self.suspicion = true;
            }
            Event::Death { process, death, out_of_memory, doing } => {
                self.members[process].life = Life::Dead { death, out_of_memory, doing };
                self.suspicion |= self.is_failure(process, death);
            }
            Event::Output { stream, bytes } => {
                let sink = if stream == 0 { &mut self.out } else { &mut self.err };
                sink.push(&bytes);
                sink.write();
            }
            Event::Looked => {
                if let Some(looking) = &mut self.looking {
                    looking.waiting.retain(|waiting| *waiting != number);
                }
            }
            Event::Rows { process, rows } => {
                if let Some(report) = &mut self.report {
                    report.rows[process] = Some(rows);
                    if report.rows.iter().all(Option::is_some) {
                        self.say_report();
                    }
                }
            }
            Event::Wait(longest) => {
                self.waits[number] = longest;
                self.look_for_hangs();
            }
            Event::Fed => self.stdin.iter_mut().for_each(|stdin| stdin.ready = true),
            Event::Unread => self.stdin = None,
            Event::Lost(why) | Event::Failed(why) => {
                self.failed |= failed;
                self.looking.iter_mut().for_each(|looking| looking.waiting.retain(|waiting| *waiting != number));
                let unfinished = |member: &&mut Member| member.party == number && !member.is_over();
                let mut missed = false;
                for member in self.members.iter_mut().filter(unfinished) {
                    member.life = Life::Gone;
                    missed = true;
                }
                if missed {
                    self.lost.push(why);
                    self.suspicion = true;
                }
            }
            Event::Closed | Event::Pong => {}
        }
    }

    fn act(&mut self, from: usize, action: Action) {
        match action {
            Action::Send { to, line } => self.order(self.members[to].party, Order::Send { process: to, line }),
            Action::SendAll { line } => self.order_all(Order::SendAll { line }),
            Action::Announced { pid, key, value } => {
                let order = Order::Announced { process: from, pid, key, value };
                self.order(self.members[from].party, order);
            }
            Action::Abort(abort) => {
                self.aborts.push((from, abort));
                self.suspicion = true;
            }
        }
    }

    fn read_stdin(&mut self) {
        let mut buffer = [0; 16 << 10];
        let bytes = match rustix::io::read(io::stdin(), &mut buffer) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            Ok(read) => &buffer[..read],
            Err(_) => &[],
        };
        self.stdin.iter_mut().for_each(|stdin| stdin.ready = false);
        if bytes.is_empty() {
            self.stdin = None;
        }
        self.order(self.members[0].party, Order::Input(bytes.to_vec()));
    }

    /// Tells the parties whether there is room for output.
    fn hold(&mut self) {
        for (stream, hold) in [self.out.is_full(), self.err.is_full()].into_iter().enumerate() {
            if std::mem::replace(&mut self.held[stream], hold) != hold {
                self.order_all(Order::Hold { stream, hold });
            }
        }
        self.think();
    }

    /// Begins to end the job; a process that ends by itself, `spare`, is given the time to do so.
    fn fail(&mut self, code: i32, why: Option<String>, spare: Option<usize>) {
        if let Some(why) = &why {
            self.err.push_line(why);
        }
        self.end(Ended { code, why }, spare);
    }

    /// Tells all but one to end.
    fn end(&mut self, ended: Ended, spare: Option<usize>) {
        self.end_with(ended, GRACE);
        self.order_all(Order::Signal { signal: Signal::TERM.as_raw(), spare });
        self.err.write();
    }

    fn end_with(&mut self, ended: Ended, grace: Duration) {
        self.ended = Some(ended);
        self.kill_at = Some(Instant::now() + grace);
        self.closed = self.closed.map(|until| until.min(Instant::now() + GRACE_AGENT));
        if !self.going {
            self.members.iter_mut().for_each(|member| member.life = Life::Gone);
        }
    }

    fn signalled(&mut self, at: usize) {
        let Some((signal, count)) = self.signals.take(at) else { return };
        if signal == Signal::QUIT {
            return self.report();
        }
        self.order_all(Order::Signal { signal: signal.as_raw(), spare: None });
        if [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal) {
            if self.ended.is_none() {
                let why = format!("partage: interrupted by {}", verdict::signal_name(signal.as_raw()));
                self.err.push_line(&why);
                self.end_with(Ended { code: 128 + signal.as_raw(), why: Some(why) }, GRACE_INTERRUPTED);
            }
            if signal == Signal::INT {
                self.interrupts += count;
            }
            if self.interrupts > 1 {
                self.kill_at = self.kill_at.map(|_| Instant::now());
            }
            if self.closed.is_some() {
                self.out.discard();
                self.err.discard();
            }
        }
    }

    fn until_clock(&self) -> Option<Duration> {
        let now = Instant::now();
        let next = if let Some(until) = self.closed {
            (!self.parties_are_done()).then_some(until)
        } else {
            let timeout = self.spec.timeout.filter(|_| self.ended.is_none());
            let timeout = timeout.and_then(|timeout| self.started.checked_add(timeout));
            let hangs = self.spec.hang_after.is_some() && self.ended.is_none();
            let tick = (hangs || self.stdin.as_ref().is_some_and(|stdin| stdin.terminal)).then_some(self.next_tick);
            let ping = self.spec.hosts.as_ref().map(|_| self.next_ping);
            let report = self.report.as_ref().map(|report| report.until);
            let looking = self.looking.as_ref().map(|looking| looking.until);
            let times = [timeout, tick, ping, report, looking, self.kill_at, self.leave_at];
            times.into_iter().flatten().min()
        };
        Some(next?.saturating_duration_since(now))
    }

    /// Does what it is time for.
    fn clock(&mut self) {
        let now = Instant::now();
        if self.ended.is_none() {
            if let Some(timeout) = self.spec.timeout.filter(|timeout| now - self.started >= *timeout) {
                let why = format!("partage: the job did not end within {} s", timeout.as_secs_f64());
                self.err.push_line(&why);
                // Asked before they are told to end, so each agent's answer comes before the deaths of its ranks.
                self.report();
                self.end(Ended { code: 124, why: Some(why) }, None);
            } else if self.spec.hang_after.is_some() && now >= self.next_tick {
                self.order_all(Order::AskWait);
            }
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
        }
        if now >= self.next_ping {
            self.next_ping = now + self.spec.heartbeat.unwrap_or(HEARTBEAT) / PINGS;
            let heartbeat = self.spec.heartbeat.map(|time| (PINGS, time));
            let all = 0..self.parties.len();
            all.for_each(|number| self.with(number, |party, _, events| party.ping(heartbeat, events)));
        }
        if self.report.as_ref().is_some_and(|report| now >= report.until) {
            self.say_report();
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.leave_at = Some(now + GRACE_KILLED);
            self.order_all(Order::Signal { signal: Signal::KILL.as_raw(), spare: None });
        }
        self.think();
    }

    /// No process is left, or none that dies: has what they have started killed and what they have written passed on.
    fn close(&mut self, left: bool) {
        self.say_report();
        self.closed = Some(Instant::now() + self.patience());
        self.order_all(Order::End { left });
        self.think();
    }

    /// How long the end of what processes have written is waited for: that of a job that went well as long as any word.
    fn patience(&self) -> Duration {
        let word = self.spec.heartbeat.unwrap_or(HEARTBEAT).clamp(GRACE_AGENT, 6 * HEARTBEAT);
        if self.ended.is_none() { word } else { GRACE_AGENT }
    }

    /// As long as something comes, be it a part of a word, more is waited for. When all have told everything there is
    /// nothing to lose but what remote shells complain of, and those that stay do not delay the end for long.
    fn wait_on(&mut self) {
        let (Some(until), now) = (self.closed, Instant::now()) else { return };
        self.closed = Some(match self.is_untold() {
            true => until.max(now + self.patience()),
            false => until.min(now + GRACE_AGENT),
        });
    }

    /// Whether what processes have written may still come.
    fn is_untold(&self) -> bool {
        self.parties.iter().any(|party| party.untold().is_some() && !party.is_done())
    }

    /// Nobody is late while there is something to be read.
    fn parties_are_done(&self) -> bool {
        let over = self.closed.is_some_and(|until| Instant::now() >= until);
        let late = over && (self.idle || !self.is_untold());
        late || self.parties.iter().all(Party::is_done)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // All of them before one is waited for.
        self.parties.iter_mut().for_each(Party::leave);
    }
}
