//! The part of a job that is on one host, as the launcher sees it: a crew of its own, or one behind an agent.

use std::time::Duration;

use rustix::event::PollFd;

use crate::Observer;
use crate::crew::{self, Crew, Event, Order};
use crate::remote::{self, Remote};

pub(crate) enum Party {
    Here(Crew),
    There(Box<Remote>),
}

/// What `poll` has found ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Here(crew::Source),
    There(remote::Source),
}

impl Party {
    /// What to wait for. `closed`: no process is left.
    pub(crate) fn watch<'a>(&'a self, closed: bool, fds: &mut Vec<(Source, PollFd<'a>)>) {
        match self {
            Party::Here(_) if closed => {}
            Party::Here(crew) => {
                let mut own = Vec::new();
                crew.watch(&mut own);
                fds.extend(own.into_iter().map(|(source, fd)| (Source::Here(source), fd)));
            }
            Party::There(remote) => {
                let mut own = Vec::new();
                remote.watch(&mut own);
                fds.extend(own.into_iter().map(|(source, fd)| (Source::There(source), fd)));
            }
        }
    }

    /// Takes what is ready.
    pub(crate) fn attend(&mut self, source: Source, observer: &mut dyn Observer, events: &mut Vec<Event>) {
        match (self, source) {
            (Party::Here(crew), Source::Here(source)) => crew.attend(source, observer, events),
            (Party::There(remote), Source::There(source)) => remote.attend(source, events),
            _ => {}
        }
    }

    /// Does what is ordered, here at once, there when it arrives.
    pub(crate) fn order(&mut self, order: Order, observer: &mut dyn Observer, events: &mut Vec<Event>) {
        match self {
            Party::Here(crew) => crew.order(order, observer, events),
            Party::There(remote) => remote.order(order),
        }
    }

    /// The agent may start its processes; a crew that is here has done so.
    pub(crate) fn go(&mut self) {
        if let Party::There(remote) = self {
            remote.go();
        }
    }

    /// Asks whether it is still there, see [`Remote::ping`].
    pub(crate) fn ping(&mut self, heartbeat: Option<(u32, Duration)>, events: &mut Vec<Event>) {
        if let Party::There(remote) = self {
            remote.ping(heartbeat, events);
        }
    }

    /// Whether it has processes that it can be asked about.
    pub(crate) fn is_running(&self) -> bool {
        match self {
            Party::Here(_) => true,
            Party::There(remote) => remote.is_running(),
        }
    }

    /// Whether nothing is to be expected from it after its end was ordered.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Party::Here(_) => true,
            Party::There(remote) => remote.is_done(),
        }
    }

    /// The name of a host that has not told all that its processes have written.
    pub(crate) fn untold(&self) -> Option<&str> {
        match self {
            Party::Here(_) => None,
            Party::There(remote) => remote.untold(),
        }
    }

    /// Says farewell; dropping it waits for the end.
    pub(crate) fn leave(&mut self) {
        if let Party::There(remote) = self {
            remote.leave();
        }
    }
}
