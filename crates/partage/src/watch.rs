//! The thread that watches over a process of the job while its ranks work: it sleeps in `poll` and wakes up when the
//! launcher is gone, when a report is asked for (SIGQUIT, without a launcher) or when a rank has waited for too long.

use crate::fail;
use crate::report;
use partage_boot::Row;
use partage_conduit::shm::Node;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
            between_jobs();
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
        loop {
            let mut fds = vec![PollFd::new(stopped, PollFlags::empty())];
            let lifeline = self.lifeline.as_ref().map(|fd| {
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::empty()));
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
            let report_asked = signal.is_some_and(happened);
            if stop {
                return;
            }
            if gone {
                launcher_is_gone(node);
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
                fail::say(&format!("the job did not end within {} s (PARTAGE_TIMEOUT)", limit.as_secs_f64()));
                fail::ENDING.store(true, Release);
                std::process::exit(124);
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

/// While this is set, SIGQUIT does to this process what it does by default.
fn between_jobs() -> &'static AtomicBool {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(true));
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
