//! A crew on another host: the launcher's end of the connection to its agent.
//!
//! It starts the remote shell, waits for the agent's hello, sends the plan, and from then on passes orders there and
//! events back. What the remote shell complains of goes to standard error, and its last line into the error, too.
//!
//! Guaranteed: nothing here waits; a connection that ends, talks nonsense or falls silent is one [`Event::Lost`] that says
//! why. When it is dropped, the agent hears the end of its input and the remote shell is gone. Not contained: what the
//! events mean.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::agent::is_of_a_host;
use crate::channel::{Channel, Command, Plan, greeted};
use crate::crew::{Event, GRACE_KILLED, Order, wait_for};
use crate::spawn::{is_of_a_job, spawn_shell};
use crate::verdict::{self, Death};
use crate::{Error, Hosts, Input, Spec};

/// How long an agent has to end its host's part of a job, after which its remote shell is killed.
pub(crate) const GRACE_AGENT: Duration = Duration::from_secs(2);
/// How long the end of a remote shell that has hung up is waited for.
const ENDING: Duration = Duration::from_millis(100);
/// A login, and the start of processes, may take as long, or as many times as long as any word.
const START: Duration = Duration::from_secs(60);
const START_BEATS: f64 = 6.0;
/// No further orders are made by reading events while as many bytes are on their way.
const ORDERS_MAX: usize = 64 << 20;

/// As much as is remembered of a line of complaint.
const LAST_MAX: usize = 1000;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Events,
    Orders,
    Complaints,
    Shell,
}

pub(crate) struct Remote {
    host: String,
    shell: String,
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    channel: Channel,
    complaints: Option<OwnedFd>,
    /// The last line that the remote shell has complained.
    last: Vec<u8>,
    plan: Plan,
    state: State,
    /// Pings since the last word.
    pings: u32,
    /// It has been told to start processes.
    ran: bool,
    /// It has said that they run.
    started: bool,
    /// It has said that it has told everything.
    closed: bool,
    /// When to kill the remote shell, once it is left.
    kill_at: Option<Instant>,
}

enum State {
    /// What has come before the hello.
    Greeting(Vec<u8>),
    /// The agent has the plan.
    Planned,
    /// It has said that it can be carried out, and runs nothing yet.
    Ready,
    Running,
    /// It has been told to end.
    Ending,
    /// Nothing is heard from it any more.
    Done,
}

impl Remote {
    /// Begins to reach the host of this name, which gets these processes.
    pub(crate) fn start(spec: &Spec, hosts: &Hosts, name: &str, processes: Range<usize>) -> Result<Remote, Error> {
        let shell = hosts.shell[0].display().to_string();
        let failed =
            |e: io::Error| Error::new(format!("cannot start `{shell}`, the remote shell, for host {name}: {e}"));
        let directory =
            directory().map_err(|e| Error::new(format!("the current directory cannot be found out: {e}")))?;
        let mut words = hosts.shell.clone();
        words.push(name.into());
        words.extend(hosts.agent.iter().map(|word| quoted(word, &hosts.shell[0])));
        // In a job over hosts that one's agent has named the node.
        let inside = std::env::var_os("PARTAGE_PROTOCOL").is_some();
        let of_the_node = |name: &OsStr| inside && name == "PARTAGE_NODE";
        let (mut child, pid, pidfd) = spawn_shell(&words, of_the_node).map_err(failed)?;
        let ends = (child.stdout.take().map(OwnedFd::from), child.stdin.take().map(OwnedFd::from));
        let complaints = child.stderr.take().map(OwnedFd::from);
        let (Some(from), Some(to)) = ends else { return Err(Error::new("a pipe is missing")) };
        if let Some(pipe) = &complaints {
            rustix::io::ioctl_fionbio(pipe, true).map_err(|e| failed(e.into()))?;
        }
        let channel = Channel::new(from, to).map_err(failed)?;
        let stays = |name: &OsStr| is_of_a_job(name) || is_of_a_host(name.as_encoded_bytes()) || of_the_node(name);
        let forwarded = std::env::vars_os().filter(|(name, _)| !stays(name));
        let plan = Plan {
            host: name.to_owned(),
            directory: directory.into(),
            program: spec.program.clone(),
            args: spec.args.clone(),
            env: forwarded.chain(spec.env.iter().cloned()).collect(),
            ranks: spec.ranks,
            procs: spec.procs,
            label: spec.label,
            quiet_output: spec.quiet_output,
            input: spec.stdin == Input::ToRankZero && processes.contains(&0),
            processes,
        };
        Ok(Remote {
            host: name.to_owned(),
            shell,
            child,
            pid,
            pidfd,
            channel,
            complaints,
            last: Vec::new(),
            plan,
            state: State::Greeting(Vec::new()),
            pings: 0,
            ran: false,
            started: false,
            closed: false,
            kill_at: None,
        })
    }

    /// To the agent that has said it is ready: go.
    pub(crate) fn go(&mut self) {
        if let State::Ready = self.state {
            self.state = State::Running;
            self.ran = true;
            self.say(&Command::Start);
        }
    }

    /// The host, if not all that its processes have written was told.
    pub(crate) fn untold(&self) -> Option<&str> {
        (self.started && !self.closed).then_some(&*self.host)
    }

    /// Whether it has been told to start its processes, and not to end them.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Whether nothing is to be expected from it any more.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done) || !self.ran && self.kill_at.is_some()
    }

    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<(Source, PollFd<'a>)>) {
        if self.is_done() {
            return;
        }
        fds.push((Source::Shell, PollFd::new(&self.pidfd, PollFlags::IN)));
        if self.channel.is_open() && self.channel.queued() < ORDERS_MAX {
            fds.push((Source::Events, PollFd::new(self.channel.from(), PollFlags::IN)));
        }
        fds.extend(self.channel.to().map(|to| (Source::Orders, PollFd::new(to, PollFlags::OUT))));
        fds.extend(self.complaints.iter().map(|pipe| (Source::Complaints, PollFd::new(pipe, PollFlags::IN))));
    }

    pub(crate) fn attend(&mut self, source: Source, events: &mut Vec<Event>) {
        match source {
            Source::Events => self.listen(1, events),
            Source::Orders => _ = self.channel.write(),
            Source::Complaints => self.complain(events),
            Source::Shell => {
                // It has ended; what it has said before is still in the pipes.
                self.listen(usize::MAX, events);
                self.complain(events);
                self.lose_by_end(events);
            }
        }
    }

    /// Passes an order on. Before the processes run there is none to obey but the last.
    pub(crate) fn order(&mut self, order: Order) {
        match (&self.state, &order) {
            (State::Running, _) => {
                if matches!(order, Order::End { .. }) {
                    self.state = State::Ending;
                }
                self.say(&Command::Order(order));
            }
            (State::Greeting(_) | State::Planned | State::Ready, Order::End { .. }) => {
                self.state = State::Ending;
                self.leave();
            }
            _ => {}
        }
    }

    /// Asks whether it is still there. `heartbeat`: after so many pings without a word, which take so long, it is lost. A
    /// login, and the start of processes, during which it does not answer, have longer.
    pub(crate) fn ping(&mut self, heartbeat: Option<(u32, Duration)>, events: &mut Vec<Event>) {
        if !self.channel.is_open() {
            return self.lose_by_end(events);
        }
        let (what, longer) = match self.state {
            State::Running if self.started => ("nothing was heard from it", false),
            State::Running => ("its processes were not started", true),
            State::Greeting(_) | State::Planned => ("no agent answered", true),
            State::Ready | State::Ending | State::Done => return,
        };
        if let Some((pings, time)) = heartbeat {
            let times = if longer { START.div_duration_f64(time).ceil().max(START_BEATS) as u32 } else { 1 };
            if self.pings >= pings.saturating_mul(times) {
                return self.lose(format!("{what} for {} s", (time * times).as_secs_f64()), events);
            }
        }
        self.pings = self.pings.saturating_add(1);
        // Before it is told to start it takes no other command.
        if self.ran {
            self.say(&Command::Ping);
        }
    }

    fn say(&mut self, command: &Command) {
        self.channel.say(command);
        // Nobody reads it: the end of the remote shell will tell more.
        self.channel.write();
    }

    fn listen(&mut self, reads: usize, events: &mut Vec<Event>) {
        let mut buffer = [0; 64 << 10];
        for _ in 0..reads {
            let bytes = self.channel.read(&mut buffer);
            if bytes.is_empty() || self.is_done() {
                return;
            }
            if let Err(e) = self.hear(bytes, events) {
                self.lose(e.to_string(), events);
            }
        }
    }

    fn hear(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Error> {
        self.pings = 0;
        if let State::Greeting(before) = &mut self.state {
            before.extend_from_slice(bytes);
            if let Some(end) = greeted(before)? {
                let rest = before.split_off(end);
                self.channel.take(&rest);
                self.state = State::Planned;
                let plan = Command::Plan(self.plan.clone());
                self.say(&plan);
            }
        } else {
            self.channel.take(bytes);
        }
        while let (false, Some(event)) = (self.is_greeting(), self.channel.next::<Event>()?) {
            let of = match &event {
                Event::Line { process, .. } | Event::Garbage { process, .. } => Some(*process),
                Event::Death { process, .. } | Event::Rows { process, .. } => Some(*process),
                _ => None,
            };
            let others = matches!(&event, Event::Started(pids) if pids.len() != self.plan.processes.len());
            if others || of.is_some_and(|process| !self.plan.processes.contains(&process)) {
                return Err(Error::new("it speaks of processes that are not its own"));
            }
            match event {
                Event::Ready if matches!(self.state, State::Planned) => {
                    self.state = State::Ready;
                    events.push(Event::Ready);
                }
                Event::Failed(why) => {
                    events.push(Event::Failed(format!("host {}: {why}", self.host)));
                    self.state = State::Ending;
                    self.leave();
                }
                _ if !matches!(self.state, State::Running | State::Ending) => {
                    return Err(Error::new("it speaks out of turn"));
                }
                Event::Closed => {
                    self.closed = true;
                    self.leave();
                }
                Event::Pong => {}
                event => {
                    self.started |= matches!(event, Event::Started(_));
                    events.push(event);
                }
            }
        }
        Ok(())
    }

    fn is_greeting(&self) -> bool {
        matches!(self.state, State::Greeting(_))
    }

    /// Passes on what the remote shell, or the agent itself, writes to standard error.
    fn complain(&mut self, events: &mut Vec<Event>) {
        let mut buffer = [0; 16 << 10];
        while let Some(pipe) = &self.complaints {
            match rustix::io::read(pipe, &mut buffer) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(0) | Err(_) => self.complaints = None,
                Ok(read) => {
                    for line in buffer[..read].split_inclusive(|b| *b == b'\n') {
                        if self.last.ends_with(b"\n") {
                            self.last.clear();
                        }
                        let room = LAST_MAX.saturating_sub(self.last.len());
                        self.last.extend_from_slice(&line[..line.len().min(room)]);
                        if line.ends_with(b"\n") && !self.last.ends_with(b"\n") {
                            self.last.push(b'\n');
                        }
                    }
                    events.push(Event::Output { stream: 1, bytes: buffer[..read].to_vec() });
                }
            }
        }
    }

    /// The remote shell has ended or hung up: `ssh` ended with code 255: Connection refused.
    fn lose_by_end(&mut self, events: &mut Vec<Event>) {
        // A process that is killed lets go of its pipes a moment before its end can be seen.
        wait_for(&self.pidfd, Instant::now() + ENDING);
        let mut how = match Death::of(self.pid) {
            Some(Death::Exit(code)) => format!("`{}` ended with code {code}", self.shell),
            Some(Death::Signal { number, .. }) => {
                format!("`{}` was killed by {}", self.shell, verdict::signal_name(number))
            }
            None => format!("`{}` has hung up", self.shell),
        };
        if self.is_greeting() {
            how += " before an agent answered";
        }
        match String::from_utf8_lossy(&self.last).trim() {
            "" => {}
            last => how += &format!(": {last}"),
        }
        self.lose(how, events);
    }

    /// Nothing more will come. That is a loss, unless it was told to end.
    fn lose(&mut self, why: String, events: &mut Vec<Event>) {
        match self.state {
            State::Done => return,
            State::Ending => {}
            State::Greeting(_) => events.push(Event::Lost(format!("host {}: {why}", self.host))),
            _ => events.push(Event::Lost(format!("the connection to host {} was lost ({why})", self.host))),
        }
        self.state = State::Done;
        self.leave();
    }

    /// Has nothing more to say. At the end of its input an agent kills what it has started, and ends; a remote shell
    /// that has started nothing is ended at once.
    pub(crate) fn leave(&mut self) {
        self.channel.hang_up();
        self.kill_at.get_or_insert(Instant::now() + if self.ran { GRACE_AGENT } else { Duration::ZERO });
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.leave();
        self.kill_at.into_iter().for_each(|at| wait_for(&self.pidfd, at));
        let _ = kill_process_group(self.pid, Signal::KILL);
        wait_for(&self.pidfd, Instant::now() + GRACE_KILLED);
        let _ = self.child.try_wait();
    }
}

/// The current directory as the user calls it, which may be by links that are not the same on other hosts.
fn directory() -> io::Result<PathBuf> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let here = std::env::current_dir()?;
    let called = std::env::var_os("PWD").map(PathBuf::from);
    Ok(called.filter(|path| path.is_absolute() && identity(path) == identity(&here)).unwrap_or(here))
}

/// A word of a command as this remote shell wants it: `ssh` has a shell read it, others hand it on as it is.
fn quoted(word: &OsString, shell: &OsString) -> OsString {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(b);
    let read_by_a_shell = Path::new(shell).file_name().is_some_and(|name| name == "ssh" || name == "rsh");
    if !read_by_a_shell || !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.clone();
    }
    let mut quoted = OsString::from("'");
    let mut parts = word.as_bytes().split(|b| *b == b'\'');
    quoted.extend(parts.next().map(OsStr::from_bytes));
    for part in parts {
        quoted.push("'\\''");
        quoted.push(OsStr::from_bytes(part));
    }
    quoted.push("'");
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_remote_shells() {
        let ssh = |word: &str| quoted(&word.into(), &"/usr/bin/ssh".into()).into_string().unwrap();
        assert_eq!(ssh("/opt/partage-1.0/bin/partage"), "/opt/partage-1.0/bin/partage");
        assert_eq!(ssh("/home/a b/it's"), r"'/home/a b/it'\''s'");
        assert_eq!(quoted(&"a b".into(), &"ip".into()), "a b");
    }
}
