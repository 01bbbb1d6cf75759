//! The crew: the processes of a job on one host.
//!
//! It starts them and holds what belongs to them: their sockets, the pipes of their output and input, the descriptors
//! that tell of their death. What happens to them comes out as [`Event`]s, what is to be done with them goes in as
//! [`Order`]s. The launcher has a crew for its own host; on other hosts an [agent](crate::agent()) has it and passes
//! orders and events on.
//!
//! Guaranteed: nothing here waits; `watch` names what to wait for. Nothing is left behind: when a crew is dropped, every
//! process group is killed before its number is free again and every child reaped. Not contained: what the lines of
//! the processes mean, which death is a failure, and when to end.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::observe::{Observer, Row};
use crate::output::Stream;
use crate::spawn::{Started, spawn};
use crate::verdict::{Death, OomKills};
use crate::wire::Lines;
use crate::{Error, Spec, ranks_of};

/// From SIGKILL to leaving a process alone that the kernel does not let die.
pub(crate) const GRACE_KILLED: Duration = Duration::from_secs(5);
/// A process that does not read its answers is not read from beyond this.
const ANSWERS_MAX: usize = 1 << 20;
/// Reads of a socket of which all is to be heard: more than any socket holds.
const READS: usize = 64;

/// What has happened to a crew.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// An agent has found the directory and the program.
    Ready,
    /// The processes run; their numbers.
    Started(Vec<u32>),
    /// An agent cannot start them: why. The last event.
    Failed(String),
    /// A process has sent a line to its launcher.
    Line { process: usize, line: String },
    /// A process has sent what cannot be a line, and is not listened to any more.
    Garbage { process: usize, error: String },
    /// A process has ended; `out_of_memory`: the kernel has killed processes of this host for that.
    Death { process: usize, death: Death, out_of_memory: bool, doing: Option<String> },
    /// What processes have written, to standard output or (1) error.
    Output { stream: usize, bytes: Vec<u8> },
    /// The answer to [`Order::LookAround`], after all that there was to see.
    Looked,
    /// One answer to [`Order::AskRows`] for each process.
    Rows { process: usize, rows: Vec<Row> },
    /// The answer to [`Order::AskWait`].
    Wait(Option<Duration>),
    /// The input has been passed on; more is welcome.
    Fed,
    /// Nobody reads the input any more.
    Unread,
    /// The answer to [`Order::End`]: no process is left and all they have written has been passed on.
    Closed,
    /// An agent is there.
    Pong,
    /// The connection to an agent is lost, or could not be made: why. Never sent over one.
    Lost(String),
}

/// What a crew has to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    /// A line for a process, newline included.
    Send { process: usize, line: String },
    /// The same for every process.
    SendAll { line: String },
    /// Listens no more to a process.
    Refuse { process: usize },
    /// To all process groups but that of `spare`.
    Signal { signal: i32, spare: Option<usize> },
    /// For the observer.
    Announced { process: usize, pid: Option<u32>, key: String, value: Vec<u8> },
    /// Before a failure is judged: tell what else has happened, for one failure makes others and they arrive together.
    /// Aborts are looked for, since they cause exits, and then deaths by signal, since they cause aborts; other deaths
    /// can wait.
    LookAround,
    /// What each rank is doing.
    AskRows,
    /// How long the longest wait is.
    AskWait,
    /// Input for rank 0; empty: its end.
    Input(Vec<u8>),
    /// Whether to read a stream of output no further for now.
    Hold { stream: usize, hold: bool },
    /// Kill what is left, and pass on what was written. `left`: do not wait for those whom the kernel does not let die.
    End { left: bool },
}

/// What the first process reads, if it is rank 0's.
pub(crate) enum Stdin {
    Null,
    Inherit,
    /// What [`Order::Input`] brings.
    Fed,
}

/// What `poll` has found ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Death(usize),
    Socket(usize),
    Stream(usize, usize),
    Feed,
}

pub(crate) struct Crew {
    first: usize,
    members: Vec<Member>,
    feed: Option<Feed>,
    oom: OomKills,
    held: [bool; 2],
    /// Neither lines nor output are read: whoever takes the events has no room for them.
    pub(crate) paused: bool,
    left: bool,
}

struct Member {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    socket: Option<OwnedFd>,
    lines: Lines,
    answers: VecDeque<u8>,
    /// Its standard output and error, where they come through us.
    streams: [Option<Stream>; 2],
    dead: bool,
}

impl Crew {
    /// Starts `processes` of the job as `program`, which is the spec's program found on the path. `piped`: their output
    /// comes as events; else they inherit ours.
    pub(crate) fn start(
        spec: &Spec,
        program: &Path,
        processes: Range<usize>,
        stdin: Stdin,
        piped: bool,
    ) -> Result<Crew, Error> {
        let mut crew = Crew {
            first: processes.start,
            members: Vec::with_capacity(processes.len()),
            feed: None,
            oom: OomKills::now(),
            held: [false; 2],
            paused: false,
            left: false,
        };
        for process in processes {
            let stdin = if process == 0 { &stdin } else { &Stdin::Null };
            // On an error the drop of `crew` ends the processes that run already.
            crew.add(spec, program, process, stdin, piped).map_err(|e| {
                let program = spec.program.display();
                Error::new(format!("cannot start process {process} of {} as `{program}`: {e}", spec.procs))
            })?;
        }
        Ok(crew)
    }

    fn add(&mut self, spec: &Spec, program: &Path, process: usize, stdin: &Stdin, piped: bool) -> io::Result<()> {
        let input = match stdin {
            Stdin::Null => Stdio::null(),
            Stdin::Inherit => Stdio::inherit(),
            Stdin::Fed => Stdio::piped(),
        };
        let Started { mut child, pid, pidfd, socket } = spawn(spec, program, process, input, piped)?;
        let pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        let input = child.stdin.take().map(OwnedFd::from);
        let label = spec.label.then(|| label(&ranks_of(process, spec.ranks, spec.procs)));
        self.members.push(Member {
            child,
            pid,
            pidfd,
            socket: Some(socket),
            lines: Lines::default(),
            answers: VecDeque::new(),
            streams: [None, None],
            dead: false,
        });
        for (pipe, stream) in pipes.into_iter().zip(&mut self.members[process - self.first].streams) {
            *stream = pipe.map(|pipe| Stream::new(pipe, label.clone())).transpose()?;
        }
        self.feed = self.feed.take().or(input.map(Feed::new).transpose()?);
        Ok(())
    }

    /// The numbers of the processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.child.id()).collect()
    }

    /// What to wait for.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<(Source, PollFd<'a>)>) {
        for (index, member) in self.members.iter().enumerate() {
            if !member.dead {
                fds.push((Source::Death(index), PollFd::new(&member.pidfd, PollFlags::IN)));
            }
            if let Some(socket) = &member.socket {
                let mut events = PollFlags::empty();
                events.set(PollFlags::OUT, !member.answers.is_empty());
                events.set(PollFlags::IN, !self.paused && member.answers.len() < ANSWERS_MAX);
                if !events.is_empty() {
                    fds.push((Source::Socket(index), PollFd::new(socket, events)));
                }
            }
            for (which, stream) in member.streams.iter().enumerate().filter(|(which, _)| !self.held[*which]) {
                if let Some(stream) = stream.as_ref().filter(|_| !self.paused) {
                    let fd = PollFd::from_borrowed_fd(stream.fd(), PollFlags::IN);
                    fds.push((Source::Stream(index, which), fd));
                }
            }
        }
        if let Some(feed) = &self.feed {
            let events = if feed.queue.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push((Source::Feed, PollFd::new(&feed.pipe, events)));
        }
    }

    /// Takes what is ready.
    pub(crate) fn attend(&mut self, source: Source, observer: &mut dyn Observer, events: &mut Vec<Event>) {
        match source {
            Source::Death(index) => self.bury(index, observer, events),
            Source::Socket(index) => {
                self.answer(index);
                if !self.paused {
                    self.listen(index, 1, events);
                }
            }
            Source::Stream(index, which) => {
                let (mut bytes, slot) = (Vec::new(), &mut self.members[index].streams[which]);
                if !slot.as_mut().is_some_and(|stream| stream.pass(64 << 10, &mut bytes)) {
                    slot.take().into_iter().for_each(|stream| stream.finish(&mut bytes));
                }
                tell_output(which, bytes, events);
            }
            Source::Feed => self.feed(events),
        }
    }

    /// Does what is ordered. Processes that are not of this crew are ignored.
    pub(crate) fn order(&mut self, order: Order, observer: &mut dyn Observer, events: &mut Vec<Event>) {
        match order {
            Order::Send { process, line } => {
                if let Some(index) = self.index(process) {
                    self.members[index].answers.extend(line.as_bytes());
                    self.answer(index);
                }
            }
            Order::SendAll { line } => {
                for index in 0..self.members.len() {
                    self.members[index].answers.extend(line.as_bytes());
                    self.answer(index);
                }
            }
            Order::Refuse { process } => {
                self.index(process).into_iter().for_each(|index| self.members[index].socket = None);
            }
            Order::Signal { signal, spare } => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.signal(signal, spare);
                }
            }
            Order::Announced { process, pid, key, value } => {
                if let Some(index) = self.index(process) {
                    let pid = pid.unwrap_or(self.members[index].child.id());
                    observer.announced(process, pid, &key, &value);
                }
            }
            Order::LookAround => {
                for index in 0..self.members.len() {
                    self.listen(index, READS, events);
                }
                for index in 0..self.members.len() {
                    let Member { dead, pid, .. } = self.members[index];
                    if !dead && matches!(Death::of(pid), Some(Death::Signal { .. })) {
                        self.bury(index, observer, events);
                    }
                }
                events.push(Event::Looked);
            }
            Order::AskRows => {
                let processes = self.first..self.first + self.members.len();
                events.extend(processes.map(|process| Event::Rows { process, rows: observer.rows(process) }));
            }
            Order::AskWait => events.push(Event::Wait(observer.longest_wait())),
            Order::Input(bytes) if bytes.is_empty() => self.feed = None,
            Order::Input(bytes) => match &mut self.feed {
                Some(feed) => {
                    feed.queue.extend_from_slice(&bytes);
                    self.feed(events);
                }
                None => events.push(Event::Unread),
            },
            Order::Hold { stream, hold } => self.held[stream.min(1)] = hold,
            Order::End { left } => {
                self.left = left;
                self.signal(Signal::KILL, None);
                for (which, member) in self.members.iter_mut().flat_map(|member| member.streams.iter_mut().enumerate())
                {
                    let mut bytes = Vec::new();
                    member.take().into_iter().for_each(|stream| stream.finish(&mut bytes));
                    tell_output(which, bytes, events);
                }
                events.push(Event::Closed);
            }
        }
    }

    fn index(&self, process: usize) -> Option<usize> {
        process.checked_sub(self.first).filter(|index| *index < self.members.len())
    }

    /// Reads what a process has sent. A process may send as fast as it is read, and the others want their turn.
    fn listen(&mut self, index: usize, reads: usize, events: &mut Vec<Event>) {
        let (process, member) = (self.first + index, &mut self.members[index]);
        let mut buffer = [0; 64 << 10];
        for _ in 0..reads {
            let Some(socket) = member.socket.as_ref().filter(|_| member.answers.len() < ANSWERS_MAX) else { return };
            match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((read, _)) if read > 0 => member.lines.push(&buffer[..read]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => {
                    member.socket = None;
                    return;
                }
            }
            loop {
                match member.lines.next() {
                    Ok(None) => break,
                    Ok(Some(line)) => events.push(Event::Line { process, line }),
                    Err(e) => {
                        member.socket = None;
                        return events.push(Event::Garbage { process, error: e.to_string() });
                    }
                }
            }
        }
    }

    fn answer(&mut self, index: usize) {
        let Member { socket, answers, .. } = &mut self.members[index];
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
    fn bury(&mut self, index: usize, observer: &mut dyn Observer, events: &mut Vec<Event>) {
        let Some(death) = Death::of(self.members[index].pid) else { return };
        self.members[index].dead = true;
        self.listen(index, READS, events);
        let process = self.first + index;
        let killed = matches!(death, Death::Signal { .. });
        let out_of_memory = killed && OomKills::now().since(self.oom);
        events.push(Event::Death { process, death, out_of_memory, doing: observer.doing(process) });
    }

    fn feed(&mut self, events: &mut Vec<Event>) {
        match self.feed.as_mut().map(Feed::pass) {
            Some(true) if self.feed.as_ref().is_some_and(|feed| feed.queue.is_empty()) => events.push(Event::Fed),
            Some(false) => {
                self.feed = None;
                events.push(Event::Unread);
            }
            _ => {}
        }
    }

    /// Those of dead processes are still theirs, see [`Death::of`].
    fn signal(&self, signal: Signal, spare: Option<usize>) {
        for (index, member) in self.members.iter().enumerate() {
            if spare != Some(self.first + index) {
                let _ = kill_process_group(member.pid, signal);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.signal(Signal::KILL, None);
        let until = Instant::now() + if self.left { Duration::ZERO } else { GRACE_KILLED };
        for member in &mut self.members {
            // A killed process that the kernel does not let die would keep us here.
            wait_for(&member.pidfd, until);
            let _ = member.child.try_wait();
        }
    }
}

/// Returns when that process has died or it is too late.
pub(crate) fn wait_for(pidfd: &OwnedFd, until: Instant) {
    loop {
        let time = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(time).unwrap_or_default();
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) if !time.is_zero() => {}
            _ => return,
        }
    }
}

fn tell_output(stream: usize, bytes: Vec<u8>, events: &mut Vec<Event>) {
    if !bytes.is_empty() {
        events.push(Event::Output { stream, bytes });
    }
}

/// The way into the standard input of rank 0's process.
struct Feed {
    pipe: OwnedFd,
    queue: Vec<u8>,
}

impl Feed {
    fn new(pipe: OwnedFd) -> io::Result<Feed> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Feed { pipe, queue: Vec::new() })
    }

    /// Passes on what there is. False: nobody reads it.
    fn pass(&mut self) -> bool {
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

/// `[0-3] ` or `[5] `.
fn label(ranks: &Range<usize>) -> String {
    match ranks.len() {
        1 => format!("[{}] ", ranks.start),
        _ => format!("[{}-{}] ", ranks.start, ranks.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert_eq!((label(&(0..4)).as_str(), label(&(5..6)).as_str()), ("[0-3] ", "[5] "));
    }
}
