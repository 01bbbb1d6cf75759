//! Heartbeats: how a lost host is noticed, whoever started the job.
//!
//! A cut link or a host without power says nothing, and the network itself tries for a quarter of an hour to reach it. So
//! the network's thread [beats](Net::beat), [`BEATS`] times in the time that silence may last. At each beat it greets one process of every
//! node from which no message has come since the last one; greetings are answered by whoever serves the process. A node that
//! has been silent for [`BEATS`] beats is lost, and the job ends with its name.
//!
//! # What is not a loss
//! * A rank that computes: its process's thread answers. Processes without such a thread (`PARTAGE_PROGRESS=none`) have said so
//!   at the start; a node whose first process has none is not watched, and such a process watches nobody.
//! * A process that is stopped, starved, or behind gigabytes on a slow line: before a node is lost, the kernel is asked when
//!   its own connections have last heard of that host ([`heard_by_kernel`]). A stopped process's kernel acknowledges.
//!   Networks that are not TCP have no such connections; there messages alone count.
//! * This process's own standstill: beats are counted, not seconds, and what has come is read before one is counted.
//!
//! # Who is named
//! The silent node; but where a process of more than two nodes hears from none at all, its own host is the one that is cut off,
//! and it says so, as the others say it of it.
//!
//! # Memory ordering
//! `heard` is a hint by rank: set relaxed by whoever reads messages, taken relaxed by the one thread that beats. A mark that is seen a
//! beat late makes a greeting more. All else is that thread's own.
//!
//! Not contained: processes that die while their host lives, of which launchers and broken connections tell.

use super::Net;
use crate::ranks::Ranks;
use crate::shm::Node;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

/// After so many without a word a node is lost.
const BEATS: u32 = 5;
/// So often the queue is looked at before a beat is counted.
const WORDS: usize = 64;

/// Of which ranks something has come since the last beat.
#[derive(Debug)]
pub(super) struct Heard(Box<[AtomicBool]>);

impl Heard {
    pub(super) fn new(ranks: usize) -> Heard {
        Heard((0..ranks).map(|_| AtomicBool::new(false)).collect())
    }

    /// A message of this rank has come.
    #[inline]
    pub(super) fn from(&self, rank: usize) {
        self.0[rank].store(true, Relaxed);
    }

    fn take(&self, rank: usize) -> bool {
        self.0[rank].load(Relaxed) && self.0[rank].swap(false, Relaxed)
    }
}

/// What the thread that beats knows of other nodes.
#[derive(Debug)]
pub(super) struct Heart {
    /// How long silence may last.
    limit: Duration,
    next: Instant,
    /// How many beats that is. The first process of a node has one less than its neighbours, so that one says it for all.
    patience: u32,
    /// By node: beats without a word; none: it is not watched.
    silent: Box<[Option<u32>]>,
}

impl Heart {
    /// None where nobody is watched.
    pub(super) fn new(net: &Net, ranks: &Ranks) -> Option<Heart> {
        let limit = net.settings.heartbeat.filter(|_| net.settings.thread)?;
        let watched = |n: usize| n != ranks.node() && net.serves[ranks.first_process(n)];
        let silent = (0..ranks.nodes()).map(|n| watched(n).then_some(0)).collect();
        let patience = BEATS + u32::from(ranks.process() != ranks.first_process(ranks.node()));
        Some(Heart { limit, next: Instant::now() + limit / BEATS, patience, silent })
    }

    /// Counts a beat; the nodes that are to be greeted.
    fn count(&mut self, heard: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut quiet = vec![];
        for (n, silent) in self.silent.iter_mut().enumerate() {
            let Some(silent) = silent else { continue };
            *silent = if heard(n) { 0 } else { silent.saturating_add(1) };
            if *silent > 0 {
                quiet.push(n);
            }
        }
        quiet
    }

    /// The nodes that may be lost.
    fn lost(&self) -> impl Iterator<Item = usize> {
        let beats = self.silent.iter().enumerate();
        beats.filter(|(_, silent)| silent.is_some_and(|beats| beats >= self.patience)).map(|(n, _)| n)
    }

    /// Whether all others are, of several. Those who fell silent together are noticed a beat apart.
    fn hears_nobody(&self) -> bool {
        let mut others = self.silent.iter().flatten();
        others.clone().count() > 1 && others.all(|&beats| beats >= BEATS - 2)
    }
}

impl Net {
    /// If it is time: greets nodes that are silent; why the job is to end, if one is lost.
    #[inline]
    pub(super) fn beat(&self, node: &Node, heart: &mut Heart) -> Option<String> {
        let now = Instant::now();
        if now < heart.next {
            return None;
        }
        // After a standstill there is one beat, not all that were missed.
        heart.next = now + heart.limit / BEATS;
        self.beat_now(node, heart)
    }

    #[cold]
    fn beat_now(&self, node: &Node, heart: &mut Heart) -> Option<String> {
        let ranks = node.ranks();
        // What has come during a standstill counts.
        (0..WORDS).all(|_| self.poll(node));
        let mut heard = vec![false; ranks.nodes()];
        for rank in (0..ranks.count()).filter(|&rank| !ranks.is_near(rank)) {
            heard[ranks.node_of(ranks.place(rank).0)] |= self.heard.take(rank);
        }
        for n in heart.count(|n| heard[n]) {
            // If there is no room for it, much is under way already.
            self.say_hello(ranks, ranks.first_process(n));
        }
        let recent = |time: Duration| time < heart.limit * (BEATS - 1) / BEATS;
        let heard = |host: IpAddr| heard_by_kernel(host, heart.limit);
        let lives = |process: &usize| address(&self.addresses[*process]).and_then(heard).is_some_and(recent);
        let process = heart.lost().map(|n| ranks.first_process(n)).find(|process| !lives(process))?;
        let host = |process: usize| host(node, process);
        let (here, limit) = (host(ranks.process()), heart.limit.as_secs_f64());
        Some(match heart.hears_nobody() {
            true => format!(
                "host {here} has lost its network: process {} there, {}, has heard nothing from any other host for {limit} s \
                 (PARTAGE_HEARTBEAT)",
                ranks.process(),
                self.addresses[ranks.process()],
            ),
            false => format!(
                "host {} is lost: process {} on {here} has heard nothing from it, {}, for {limit} s (PARTAGE_HEARTBEAT); \
                 it is down, or the link to it is cut",
                host(process),
                ranks.process(),
                self.addresses[process],
            ),
        })
    }
}

/// The host of a process.
pub(super) fn host(node: &Node, process: usize) -> String {
    let ranks = node.ranks();
    let rank = (0..ranks.count()).find(|&rank| ranks.place(rank).0 == process).expect("a process has a rank");
    node.host_of(rank).0.to_string()
}

/// The address in `10.0.0.2:41234`.
fn address(text: &str) -> Option<IpAddr> {
    text.parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// How long this process's TCP connections to that host are silent, the least of them; none, if there are none.
fn heard_by_kernel(host: IpAddr, limit: Duration) -> Option<Duration> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let lines: Vec<Line> = numbers.filter(|&fd| peer(fd) == Some(host)).filter_map(line).collect();
    silence(&lines, limit)
}

/// Linux asks whether there is room at least so often (TCP_RTO_MAX), however often it has asked before.
const PAUSE_MOST: Duration = Duration::from_secs(120);

/// What is known of a connection that is open.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// How long ago anything was acknowledged.
    heard: Duration,
    /// How long nothing is to be heard since nothing is asked.
    pause: Duration,
    /// Something was sent more than twice, and is not acknowledged.
    unanswered: bool,
}

/// How long ago one of these connections to a host should have been acknowledged something, the least of them.
///
/// Where something was sent on another one in vain, for longer than silence may last, one on which nothing is asked tells
/// nothing.
fn silence(lines: &[Line], limit: Duration) -> Option<Duration> {
    let in_vain = lines.iter().any(|line| line.unanswered && line.heard >= limit);
    let pause = |line: &Line| if in_vain { Duration::ZERO } else { line.pause };
    lines.iter().map(|line| line.heard.saturating_sub(pause(line))).min()
}

/// Whom a descriptor is connected to, if it is a socket and is.
fn peer(fd: i32) -> Option<IpAddr> {
    // SAFETY: plain data, for which zeros are valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: `len` bytes to write to; a descriptor that is closed meanwhile, or another by now, gives an error or its name.
    let got = unsafe { libc::getpeername(fd, (&raw mut name).cast(), &mut len) };
    if got != 0 {
        return None;
    }
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: names of this family have this type, which is smaller than the storage and aligned less.
            let name = unsafe { &*(&raw const name).cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(name.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*(&raw const name).cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(name.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// What is known of this connection; none, if it is not open.
///
/// A process that does not read leaves no room for more. Then the kernel asks now and then whether there is some, each time
/// after twice the time, and whoever lives answers: until it asks again, nothing is to be heard. (It does not ask while
/// anything is not acknowledged, and counts what it asked without answer.) All of that pause is believed: else jobs would
/// end whose processes were stopped for a minute.
fn line(fd: i32) -> Option<Line> {
    let info = tcp_info(fd)?;
    let asks = info.tcpi_unacked == 0 && info.tcpi_backoff > 0 && info.tcpi_probes <= 1;
    let pause = if asks { u64::from(info.tcpi_rto) << info.tcpi_backoff.min(20) } else { 0 };
    Some(Line {
        heard: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        pause: Duration::from_micros(pause).min(PAUSE_MOST),
        unanswered: info.tcpi_unacked > 0 && info.tcpi_retransmits > 1,
    })
}

/// What the kernel knows of a connection, if it is open.
fn tcp_info(fd: i32) -> Option<libc::tcp_info> {
    const ESTABLISHED: u8 = 1;
    // SAFETY: plain data, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `len` bytes to write to; what is not a TCP socket (any more) gives an error.
    let got = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut len) };
    let open = got == 0 && info.tcpi_state == ESTABLISHED;
    open.then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn heart(silent: &[Option<u32>]) -> Heart {
        Heart { limit: Duration::from_secs(1), next: Instant::now(), patience: BEATS, silent: silent.into() }
    }

    fn lost(heart: &Heart) -> Vec<usize> {
        heart.lost().collect()
    }

    #[test]
    fn a_node_is_lost_after_as_many_beats() {
        let mut heart = heart(&[None, Some(0), Some(0)]);
        for beat in 1..BEATS {
            assert_eq!(heart.count(|n| n == 2), [1]);
            assert!(lost(&heart).is_empty(), "beat {beat}");
        }
        assert_eq!((heart.count(|n| n == 2), lost(&heart)), (vec![1], vec![1]));
        assert!(!heart.hears_nobody());
        // A word, and all is well.
        assert_eq!((heart.count(|_| true), lost(&heart)), (vec![], vec![]));
    }

    #[test]
    fn who_hears_nobody_is_cut_off_himself() {
        assert!(heart(&[Some(5), None, Some(3), Some(4)]).hears_nobody());
        assert!(!heart(&[Some(5), None, Some(2), Some(4)]).hears_nobody());
        // Of two, either may be.
        assert!(!heart(&[Some(7), None]).hears_nobody());
        assert!(!heart(&[None, None]).hears_nobody());
        assert_eq!(lost(&heart(&[Some(5), None, Some(4), Some(6)])), [0, 3]);
    }

    #[test]
    fn marks_are_taken_once() {
        let heard = Heard::new(3);
        heard.from(1);
        assert_eq!([heard.take(0), heard.take(1), heard.take(1)], [false, true, false]);
    }

    #[test]
    fn kernels_acknowledge_for_processes_that_do_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::io::Write::write_all(&mut stream, b"nobody accepts this").unwrap();
        let heard = |host: [u8; 4]| heard_by_kernel(host.into(), Duration::from_secs(1));
        assert!(heard([127, 0, 0, 1]).unwrap() < Duration::from_secs(60));
        // Reserved for documentation: nobody has it.
        assert_eq!(heard([192, 0, 2, 1]), None);
        assert_eq!(address("10.0.0.2:41234"), Some([10, 0, 0, 2].into()));
        assert_eq!(address("a name of 3 bytes"), None);
    }

    #[test]
    fn who_leaves_no_room_is_asked_ever_more_rarely_and_lives() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _does_not_read = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        let fd = stream.as_raw_fd();
        let begun = Instant::now();
        loop {
            let info = tcp_info(fd).unwrap();
            if info.tcpi_last_ack_recv > 700 {
                let line = line(fd).unwrap();
                assert!(silence(&[line], Duration::from_secs(1)).unwrap() < Duration::from_millis(350), "{line:?}");
                assert!(!line.unanswered && line.pause <= PAUSE_MOST, "{line:?}");
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it is asked often");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_pause_is_not_believed_where_something_was_sent_in_vain() {
        let seconds = Duration::from_secs;
        let (limit, asks) = (seconds(10), Line { heard: seconds(50), pause: seconds(60), unanswered: false });
        let of = |heard: u64, unanswered: bool| Line { heard: seconds(heard), pause: Duration::ZERO, unanswered };
        assert_eq!(silence(&[], limit), None);
        assert_eq!(silence(&[asks], limit), Some(Duration::ZERO));
        // Nothing was sent on the other one, or not long ago.
        assert_eq!(silence(&[asks, of(40, false)], limit), Some(Duration::ZERO));
        assert_eq!(silence(&[asks, of(9, true)], limit), Some(Duration::ZERO));
        assert_eq!(silence(&[asks, of(40, true)], limit), Some(seconds(40)));
        // Somebody was heard after all.
        assert_eq!(silence(&[asks, of(40, true), of(1, false)], limit), Some(seconds(1)));
    }
}
