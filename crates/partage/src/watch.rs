//! The thread that watches over a process of the job while its ranks work: it sleeps in `poll` and wakes up when the
//! launcher is gone, when a report is asked for (SIGQUIT, without a launcher) or when a rank has waited for too long.
//! Under a foreign launcher, which may take no notice of a process that dies, it also watches the next process of its node.

use crate::fail;
use crate::report;
use partage_boot::Row;
use partage_conduit::record::Doing;
use partage_conduit::shm::Node;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What to watch for.
pub(crate) struct Watch {
    /// Hangs up when the launcher is gone.
    pub lifeline: Option<OwnedFd>,
    /// Whether the next process of this node is watched, since the launcher may not do it.
    pub neighbor: bool,
    /// Report on SIGQUIT and after these times: where no launcher does.
    pub own_reports: bool,
    pub hang_after: Option<Duration>,
    pub timeout: Option<Duration>,
}

/// Stops and joins the thread when dropped.
pub(crate) struct Watching {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    signal: Option<signal_hook::SigId>,
}

impl Watch {
    /// Starts watching; a system that refuses gives a job that is not watched.
    pub fn start(self, node: Arc<Node>) -> Watching {
        let mut watching = Watching { stop: None, thread: None, signal: None };
        let Ok((stop, stopped)) = UnixStream::pair() else { return watching };
        let mut asked = None;
        if self.own_reports
            && let Ok((read, write)) = UnixStream::pair()
            && read.set_nonblocking(true).is_ok()
        {
            // Before the other, which would end this process by a signal that comes between the two.
            watching.signal = signal_hook::low_level::pipe::register(libc::SIGQUIT, write).ok();
            if watching.signal.is_some() {
                between_jobs().store(false, Release);
                asked = Some(read);
            }
        }
        let name = std::thread::Builder::new().name("partage-watch".into()).stack_size(128 << 10);
        watching.thread = name.spawn(move || self.watch(&node, &stopped, asked)).ok();
        watching.stop = Some(stop);
        watching
    }

    fn watch(self, node: &Node, stopped: &UnixStream, mut asked: Option<UnixStream>) {
        let begun = Instant::now();
        let timed = self.own_reports && (self.hang_after.is_some() || self.timeout.is_some());
        let tick = timed.then_some(Timespec { tv_sec: 0, tv_nsec: 100_000_000 });
        let mut reported = false;
        let mut neighbor = if self.neighbor { Neighbor::of(node) } else { None };
        loop {
            let mut fds = vec![PollFd::new(stopped, PollFlags::empty())];
            let lifeline = self.lifeline.as_ref().map(|fd| {
                // Of a connection by TCP the other's end alone is no hang-up.
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::RDHUP));
                fds.len() - 1
            });
            let other = neighbor.as_ref().map(|neighbor| {
                fds.push(PollFd::new(&neighbor.pidfd, PollFlags::IN));
                fds.len() - 1
            });
            let signal = asked.as_ref().map(|fd| {
                fds.push(PollFd::new(fd, PollFlags::IN));
                fds.len() - 1
            });
            if poll(&mut fds, tick.as_ref()).is_err() {
                continue;
            }
            let happened = |i: usize| !fds[i].revents().is_empty();
            let (stop, gone) = (happened(0), lifeline.is_some_and(happened));
            let (report_asked, died) = (signal.is_some_and(happened), other.is_some_and(happened));
            if stop {
                return;
            }
            if gone {
                launcher_is_gone(node);
            }
            if died && let Some(neighbor) = neighbor.take() {
                neighbor.has_died(node, stopped);
            }
            if report_asked {
                use std::io::Read;
                let drained = asked.as_mut().map(|fd| fd.read(&mut [0; 64]));
                match drained {
                    Some(Ok(1..)) => print(&table(node)),
                    _ => asked = None,
                }
            }
            if !timed {
                continue;
            }
            if let Some(limit) = self.timeout.filter(|&t| begun.elapsed() >= t) {
                print(&table(node));
                fail::die(
                    124,
                    Some(&format!("the job did not end within {} s (PARTAGE_TIMEOUT)", limit.as_secs_f64())),
                );
            }
            if let Some(limit) = self.hang_after {
                let longest = report::longest_wait(node.ranks().members().iter().map(|&r| node.doing(r as usize)));
                let hangs = longest.is_some_and(|l| l >= limit);
                if hangs && !reported {
                    print(&table(node));
                }
                reported = hangs;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(id) = self.signal.take() {
            between_jobs().store(true, Release);
            signal_hook::low_level::unregister(id);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The process of this node that this one watches: the next one, so that each is watched by one.
struct Neighbor {
    pidfd: OwnedFd,
    pid: u32,
    ranks: Vec<usize>,
}

impl Neighbor {
    fn of(node: &Node) -> Option<Neighbor> {
        let process = |rank: usize| node.ranks().place(rank).0;
        let near: Vec<usize> = node.ranks().members().iter().map(|&rank| rank as usize).collect();
        let me = process(node.mine().start);
        // They are in the order of their processes.
        let next = near.iter().copied().find(|&rank| process(rank) > me).or(near.first().copied())?;
        let ranks: Vec<usize> = near.into_iter().filter(|&rank| process(rank) == process(next)).collect();
        let pid = node.host_of(next).1;
        let raw = Pid::from_raw(pid as i32).filter(|_| process(next) != me)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        Some(Neighbor { pidfd, pid, ranks })
    }

    /// Ends the job, unless it had left it in good order or the launcher ends it.
    fn has_died(self, node: &Node, stopped: &UnixStream) {
        let doing: Vec<_> = self.ranks.iter().map(|&rank| node.doing(rank)).collect();
        if doing.iter().all(|doing| matches!(doing, Some(Doing::Ended))) {
            return;
        }
        let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut stop = [PollFd::new(stopped, PollFlags::empty())];
        if !matches!(poll(&mut stop, Some(&patience)), Ok(0)) {
            return;
        }
        let has_said = doing.iter().any(|doing| matches!(doing, Some(Doing::Failed(_))));
        let first = doing.into_iter().flatten().find(|doing| *doing != Doing::Ended);
        let while_doing = first.map_or(String::new(), |doing| format!(" while {doing}"));
        let (who, host) = (report::ranks(&self.ranks), node.host_of(self.ranks[0]).0);
        let line = format!("{who} on {host} (pid {}) died{while_doing}", self.pid);
        fail::die(1, Some(line.as_str()).filter(|_| !has_said));
    }
}

/// While this is set, SIGQUIT does to this process what it does by default. Made when the first job has begun.
fn between_jobs() -> &'static AtomicBool {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        // If it is refused, the signal is only ours from the first job on.
        let _ = signal_hook::flag::register_conditional_default(libc::SIGQUIT, flag.clone());
        flag
    })
}

fn launcher_is_gone(node: &Node) -> ! {
    // This process may be ending the job itself, and the launcher have heard of it.
    while fail::ENDING.swap(true, AcqRel) {
        std::thread::park();
    }
    if node.mine().start == 0 {
        fail::say("the launcher is gone; the job ends");
    }
    std::process::exit(1)
}

fn table(node: &Node) -> String {
    let row = |rank| match node.ranks().is_near(rank) {
        true => report::row(node.doing(rank)),
        false => Row { text: "on another node".into(), waiting: None },
    };
    report::table(&(0..node.ranks().count()).map(row).collect::<Vec<_>>(), &[])
}

fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
