//! The agent: the launcher's hand on another host.
//!
//! It is started there by a remote shell and has a [`Crew`]. What the launcher orders comes in on its standard input,
//! what happens to the crew goes out on its standard output, and it has no other connection.
//!
//! Guaranteed: when the launcher hangs up, or the agent is told to end by a signal, all processes of this host are
//! killed and it ends. The processes have neither its input nor its output, so that the launcher hears of its end whoever
//! lives on. Not contained: judging; a job on the launcher's own host has no agent.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::channel::{Channel, Command, Plan, hello};
use crate::crew::{self, Crew, Event, Stdin};
use crate::signals::{self, Signals};
use crate::spec::find;
use crate::{Error, Observer, Spec};

/// Lines and output of the processes are read no further while more than this is on its way to the launcher.
const FULL: usize = 1 << 20;

/// Serves a launcher on standard input and output; what a host's [`Hosts::agent`](crate::Hosts::agent) command has to
/// do. `observe` makes the observer of a job. Returns an exit code.
pub fn agent<O: Observer>(observe: impl FnOnce(&Spec) -> O) -> i32 {
    match serve(observe) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("partage: the agent: {e}");
            1
        }
    }
}

fn serve<O: Observer>(observe: impl FnOnce(&Spec) -> O) -> Result<(), Error> {
    let failed = |e: io::Error| Error::new(format!("cannot begin: {e}"));
    signals::keep_the_dead();
    let signals = Signals::register(&[Signal::INT, Signal::TERM, Signal::HUP]).map_err(failed)?;
    let ends = (io::stdin().as_fd().try_clone_to_owned(), io::stdout().as_fd().try_clone_to_owned());
    let channel = Channel::new(ends.0.map_err(failed)?, ends.1.map_err(failed)?).map_err(failed)?;
    let mut agent = Agent { channel, signals };
    agent.channel.say_text(&hello());

    let Some(Command::Plan(plan)) = agent.receive()? else { return Ok(()) };
    let (spec, program) = match prepare(&plan) {
        Ok(prepared) => prepared,
        Err(e) => return agent.fail(e),
    };
    agent.channel.say(&Event::Ready);
    let Some(Command::Start) = agent.receive()? else { return Ok(()) };
    let mut observer = observe(&spec);
    let stdin = if plan.input { Stdin::Fed } else { Stdin::Null };
    match Crew::start(&spec, &program, plan.processes, stdin, true) {
        Ok(crew) => agent.run(crew, &mut observer),
        Err(e) => agent.fail(e),
    }
}

/// Enters the directory and finds the program.
fn prepare(plan: &Plan) -> Result<(Spec, PathBuf), Error> {
    let directory = Path::new(&plan.directory);
    std::env::set_current_dir(directory)
        .map_err(|e| Error::new(format!("cannot enter `{}`: {e}", directory.display())))?;
    let given = |name: &str| plan.env.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let either = |name: &str| given(name).or_else(|| std::env::var_os(name));
    let mut env = plan.env.clone();
    if either("PARTAGE_NODE").is_none() {
        env.push(("PARTAGE_NODE".into(), OsString::from(&plan.host)));
    }
    let spec = Spec {
        args: plan.args.clone(),
        procs: plan.procs,
        env,
        label: plan.label,
        quiet_output: plan.quiet_output,
        ..Spec::new(&plan.program, plan.ranks)
    };
    spec.check()?;
    if plan.processes.is_empty() || plan.processes.end > plan.procs {
        return Err(Error::new("the plan is not understood"));
    }
    Spec::room_for(plan.processes.len(), true)?;
    let program = find(&plan.program, either("PATH").as_deref())?;
    Ok((spec, program))
}

struct Agent {
    channel: Channel,
    signals: Signals,
}

#[derive(Clone, Copy)]
enum Source {
    Signal,
    Command,
    Events,
    Crew(crew::Source),
}

impl Agent {
    /// Waits for the next command. None: the launcher is gone, or we are to end.
    fn receive(&mut self) -> Result<Option<Command>, Error> {
        loop {
            if let Some(command) = self.channel.next()? {
                return Ok(Some(command));
            }
            for source in self.wait(None)? {
                if matches!(source, Source::Signal) || matches!(source, Source::Command) && !self.read() {
                    return Ok(None);
                }
                self.channel.write();
            }
        }
    }

    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.channel.say(&Event::Failed(error.to_string()));
        // The launcher hangs up when it has heard it.
        while self.receive()?.is_some() {}
        Ok(())
    }

    /// Serves to the end. Dropping the crew ends what is left of it.
    fn run(&mut self, mut crew: Crew, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut events = vec![Event::Started(crew.pids())];
        let mut closed = false;
        loop {
            for event in events.drain(..) {
                closed |= event == Event::Closed;
                self.channel.say(&event);
            }
            if !self.channel.write() || closed && self.channel.queued() == 0 {
                return Ok(());
            }
            crew.paused = self.channel.queued() > FULL;
            for source in self.wait(Some(&crew).filter(|_| !closed))? {
                match source {
                    Source::Signal => return Ok(()),
                    Source::Events => {}
                    Source::Crew(source) => crew.attend(source, observer, &mut events),
                    Source::Command => {
                        if !self.read() {
                            return Ok(());
                        }
                        while let Some(command) = self.channel.next()? {
                            match command {
                                Command::Order(order) => crew.order(order, observer, &mut events),
                                Command::Ping => events.push(Event::Pong),
                                Command::Plan(_) | Command::Start => return Err(Error::new("started twice")),
                            }
                        }
                    }
                }
            }
        }
    }

    /// Reads some. False: the launcher has hung up.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        let bytes = self.channel.read(&mut buffer);
        self.channel.take(bytes);
        self.channel.is_open()
    }

    fn wait(&self, crew: Option<&Crew>) -> Result<Vec<Source>, Error> {
        let mut of_crew = Vec::new();
        crew.into_iter().for_each(|crew| crew.watch(&mut of_crew));
        let mut fds = vec![(Source::Command, PollFd::new(self.channel.from(), PollFlags::IN))];
        fds.extend(self.channel.to().map(|to| (Source::Events, PollFd::new(to, PollFlags::OUT))));
        fds.extend(self.signals.sockets().map(|socket| (Source::Signal, PollFd::new(socket, PollFlags::IN))));
        fds.extend(of_crew.into_iter().map(|(source, fd)| (Source::Crew(source), fd)));
        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) = fds.into_iter().unzip();
        match poll(&mut fds, None) {
            Ok(_) => {
                let ready = fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty());
                Ok(ready.map(|(_, source)| source).collect())
            }
            Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => Ok(Vec::new()),
            Err(e) => Err(Error::new(format!("cannot wait for processes: {e}"))),
        }
    }
}

/// Whether a variable belongs to a host, or to a login on it, so that it does not go with a job to another one.
pub(crate) fn is_of_a_host(name: &[u8]) -> bool {
    let prefixes = [&b"SSH_"[..], b"XDG_", b"DBUS_", b"SYSTEMD_", b"GPG_"];
    let names = [
        &b"HOSTNAME"[..],
        b"HOST",
        b"HOME",
        b"USER",
        b"LOGNAME",
        b"SHELL",
        b"MAIL",
        b"TMPDIR",
        b"TMP",
        b"TEMP",
        b"TEMPDIR",
        b"DISPLAY",
        b"WAYLAND_DISPLAY",
        b"XAUTHORITY",
        b"KRB5CCNAME",
        b"NOTIFY_SOCKET",
        b"INVOCATION_ID",
        b"JOURNAL_STREAM",
        b"WINDOWID",
        b"TMUX",
        b"STY",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
}
