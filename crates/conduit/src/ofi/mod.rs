//! The conduit between ranks of different nodes: libfabric, opened at run time and only where a job has several nodes.
//!
//! A process has one endpoint, for all its ranks. `Net::attach` opens it, tells the others its address and greets them,
//! so that hosts that cannot reach each other are found out at the start. [`Seat`] is one rank's side.
//!
//! * [`am`]: messages, their credits and their ends; [`letters`]: calls and results until their rank takes them; [`rma`]:
//!   puts and gets; [`segment`]: which memory the network knows; [`local`]: which of this process's its operations may use,
//!   with a [`cache`]; [`progress`]: who looks at the completion queue, and when.
//!   [`signal`]: puts that notify, by message, by one put, or by a FIFO. `heartbeat`: how a lost host is noticed.
//!   Atomics go by messages (see [`crate::reference`]), but for those of a domain, which may be the network's own:
//!   [`mod@atomic`].
//! * [`interfaces`]: the addresses that this machine has; [`selftest`]: whether the network works at all.
//! * [`endpoint`]: libfabric's objects, typed, without policy; `fi`: what is called of the library.
//!
//! # What it asks of a provider
//! Reliable datagrams, messages in order, and puts with delivery completion. What it may ask of us: that local memory is
//! registered, that places in others' memory are addresses, that keys are the provider's, that registrations belong to the
//! endpoint, that memory has its pages before, contexts, and receive buffers for the data of puts. `tcp` asks for none of it; tests have a
//! [shim](endpoint::demands) that does.
//!
//! # Trust
//! Every message begins with 64 bits that process 0 has drawn for this job from the kernel's random source, and travelled with the addresses
//! when processes met. They are compared before anything else of a message is looked at; what has others is counted and
//! dropped, without an answer. Keys of memory are drawn likewise, wherever we choose them, and told by messages. Puts, gets and
//! atomics of the network are checked by their keys only, also those that bring a signal (by data or FIFO). All of that
//! keeps strays of other jobs out, and whoever can send but not read; not an attacker who can read the network, nor one who
//! breaks the provider. The guide says what helps against those.

pub mod am;
pub mod atomic;
pub mod cache;
pub mod endpoint;
mod fi;
mod heartbeat;
pub mod interfaces;
pub mod letters;
pub mod local;
pub mod progress;
pub mod rma;
pub mod segment;
pub mod selftest;
pub mod signal;

use crate::contract::Exchange;
use crate::credits::{self, Lender, Mode, Share};
use crate::ledger::Extent;
use crate::owing::{Nap, Owing};
use crate::ranks::Ranks;
use crate::shm::Node;
use crate::wait::Relief;
use am::{Account, Bounce, Buffer, Desk, Early, Kept};
use atomic::Native;
use bytemuck::{Pod, Zeroable};
use endpoint::demands::Demands;
use endpoint::{Asked, Endpoint, Peer};
use heartbeat::Heard;
use interfaces::Interface;
use local::Local;
use rma::Ops;
use segment::{Names, Regions};
use signal::{Sender, Signals, Ways};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Bytes of private memory that stay registered, unless the user says otherwise.
pub const REGISTERED: u64 = 1 << 30;
/// Bytes that messages of other nodes may take in a process, unless more are needed or something else is asked for.
pub const AM_MEMORY: u64 = 32 << 20;

/// What a user may say about the network.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider; else tcp.
    pub provider: Option<String>,
    /// The address of the interface; else one that all nodes share a subnet with, or the first.
    pub interface: Option<String>,
    /// How long other processes may take to answer a greeting.
    pub patience: Duration,
    /// How long a node may be silent before it is lost; none: for ever.
    pub heartbeat: Option<Duration>,
    /// Shall the network do atomics itself, also one that is a library at both ends?
    pub atomics: bool,
    /// How signals go.
    pub signals: Ways,
    /// Bytes of private memory that stay registered, where the network wants it to be.
    pub registered: u64,
    /// What the provider shall ask for beside what it does: for tests.
    pub demands: Demands,
    /// Bytes that messages of other nodes may take in this process until they have been dealt with; else [`AM_MEMORY`], or what is needed.
    pub am_memory: Option<u64>,
    /// May sources lend each other what they do not need of it?
    pub credits: Mode,
    /// Puts and gets that a rank may have under way, at most [`rma::TOKENS`].
    pub puts_under_way: usize,
    /// Is there a thread that makes progress while ranks compute?
    pub thread: bool,
    /// What that thread does first.
    pub enter: fn(),
    /// Called when the network has failed and nobody has ended the job meanwhile; it ends the process.
    pub lost: fn(&str),
}

impl Default for Settings {
    fn default() -> Self {
        let patience = Duration::from_secs(10);
        let (provider, interface, atomics, signals, heartbeat, demands) = Default::default();
        let (am_memory, credits) = Default::default();
        let (registered, puts_under_way, thread) = (REGISTERED, rma::TOKENS, true);
        let (enter, lost): (fn(), fn(&str)) = (|| (), |why| panic!("{why}"));
        Settings {
            provider,
            interface,
            atomics,
            signals,
            registered,
            demands,
            am_memory,
            credits,
            puts_under_way,
            patience,
            heartbeat,
            thread,
            enter,
            lost,
        }
    }
}

/// So many addresses of a process are told.
const TOLD: usize = 8;

/// Where a process is, as networks see it.
#[derive(Clone, Copy, Debug, Pod, Zeroable, PartialEq, Eq)]
#[repr(C)]
pub struct Whereabouts {
    /// The kernel: processes with the same one share its cores.
    pub machine: [u64; 2],
    /// The network namespace: processes with the same one share the loopback interface.
    namespace: u64,
    /// Addresses that are up, as four bytes, and the length of their prefix; the loopback interface is left out, and those
    /// for which there is no room.
    addresses: [[u8; 8]; TOLD],
}

impl Whereabouts {
    /// Of this process.
    pub fn here() -> Whereabouts {
        use std::os::unix::fs::MetadataExt;
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let half = |i: usize| {
            let hex: String = id.chars().filter(char::is_ascii_hexdigit).skip(16 * i).take(16).collect();
            u64::from_str_radix(&hex, 16).unwrap_or(0)
        };
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino());
        Whereabouts { machine: [half(0), half(1)], namespace, addresses: addresses(interfaces::interfaces()) }
    }

    fn addresses(&self) -> impl Iterator<Item = (Ipv4Addr, u32)> + '_ {
        self.addresses.iter().filter(|a| a[4] != 0).map(|a| (Ipv4Addr::new(a[0], a[1], a[2], a[3]), u32::from(a[4])))
    }

    /// Has it an address in this subnet?
    fn is_in(&self, (address, prefix): (Ipv4Addr, u32)) -> bool {
        let net = |a: Ipv4Addr| u32::from(a) >> 32u32.saturating_sub(prefix).min(31);
        self.addresses().any(|(other, _)| net(other) == net(address))
    }
}

/// The addresses of these interfaces, as far as there is room.
fn addresses(mut all: Vec<Interface>) -> [[u8; 8]; TOLD] {
    all.retain(|i| !i.is_loopback);
    all.sort_by_key(unlikeliness);
    let mut out = [[0; 8]; TOLD];
    for (place, found) in out.iter_mut().zip(all) {
        place[..4].copy_from_slice(&found.address.octets());
        place[4] = found.prefix.max(1);
    }
    out
}

/// How little is to be said for that other hosts are reached by it: those of containers and virtual machines come last, of
/// which a host may have many, and before them those whose subnet has room for no more than two.
fn unlikeliness(interface: &Interface) -> u8 {
    const INSIDE: [&str; 10] = ["docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "lxc", "podman"];
    match INSIDE.iter().any(|begin| interface.name.starts_with(begin)) {
        true => 2,
        false => u8::from(interface.prefix > 30),
    }
}

/// The interface by which this process reaches all others.
fn choose(all: &[Whereabouts], me: usize) -> Option<String> {
    let mine = &all[me];
    let elsewhere = |w: &&Whereabouts| (w.machine, w.namespace) != (mine.machine, mine.namespace);
    if !all.iter().any(|w| elsewhere(&w)) {
        return Some("127.0.0.1".into());
    }
    // An address that another has too, as that of a bridge for containers, leads nowhere.
    let shared = |a: &(Ipv4Addr, u32)| {
        all.iter().filter(elsewhere).all(|w| w.is_in(*a) && !w.addresses().any(|(other, _)| other == a.0))
    };
    mine.addresses().find(shared).or(mine.addresses().next()).map(|(address, _)| address.to_string())
}

/// A process's way to other nodes.
#[derive(Debug)]
pub struct Net {
    // These four go first: everything is closed before the memory that the network may have goes away.
    regions: Mutex<Regions>,
    local: Local,
    native: Native,
    endpoint: Endpoint,
    /// By process; none on this node.
    peers: Box<[Option<Peer>]>,
    /// Their addresses, as people write them.
    addresses: Box<[String]>,
    greeted: Box<[AtomicBool]>,
    /// By process: does it answer while its ranks compute?
    serves: Box<[bool]>,
    heard: Heard,
    nonce: u64,
    /// Bytes of a segment's heaps.
    segment: u64,
    /// By rank of this process.
    desks: Box<[Desk]>,
    ops: Box<[Ops]>,
    /// What sources are told about their messages: by rank of the job those to this process's handlers, then, for each rank
    /// of this process, the calls to it.
    accounts: Box<[Account]>,
    /// What was lent, and how many messages have come; by lane: to handlers, then the calls to each rank of this process.
    lenders: Box<[Mutex<Lender>]>,
    taken: Box<[AtomicU32]>,
    /// Credits of the messages that are here, and the most that were at any time.
    memory: u64,
    held: AtomicU32,
    most_held: AtomicU32,
    /// How many came that are not of this job.
    strays: AtomicU64,
    /// Which accounts are to be told, and what.
    owing: Owing,
    /// How many looks were in vain since that was done last.
    in_vain: AtomicU32,
    /// Does the thread sleep for long?
    nap: Nap,
    signals: Signals,
    /// Held by whoever reads the completion queue: what comes is put into order under it.
    reading: Mutex<Early>,
    /// Where messages are received.
    buffers: Box<[Buffer]>,
    /// Those that could not be posted yet.
    idle_buffers: Mutex<Vec<usize>>,
    idle_count: AtomicUsize,
    /// Where messages that cannot be injected are sent from.
    bounces: Box<[Bounce]>,
    next_bounce: AtomicUsize,
    /// Messages for which there was no room.
    kept: Mutex<VecDeque<Kept>>,
    kept_count: AtomicUsize,
    kept_bytes: AtomicUsize,
    /// Requests that wait until there are fewer of those.
    aside: Mutex<VecDeque<Vec<u8>>>,
    aside_count: AtomicUsize,
    /// Somebody waits for room.
    hungry: AtomicBool,
    /// By rank of the job: how much of its segment is known to be registered.
    extents: Box<[Extent]>,
    /// And by what names.
    names: Box<[Names]>,
    relief: Relief,
    first: usize,
    broken: Mutex<Option<String>>,
    /// No rank of this process makes progress any more.
    deserted: AtomicBool,
    over: AtomicBool,
    settings: Settings,
}

/// One rank's side: what only its own thread touches.
#[derive(Debug)]
pub struct Seat {
    /// Which of the process's ranks.
    i: usize,
    rank: usize,
    /// By net and process: the number of the next message.
    numbers: [Box<[Cell<u32>]>; 2],
    /// What was sent, in credits: of requests by process, of calls by rank.
    sent: [Box<[Cell<u32>]>; 2],
    /// Were there too few credits since the last one?
    wants: [Box<[Cell<bool>]>; 2],
    /// What was asked for last.
    asked: [Box<[Cell<Option<credits::Lack>>]>; 2],
    /// Is it among those that may not have ended?
    listed: [Box<[Cell<bool>]>; 2],
    /// Net and process or rank of those.
    not_quiet: RefCell<Vec<(usize, usize)>>,
    total: Cell<u64>,
    /// How often there were too few credits, and how often some were asked for.
    stalls: Cell<u64>,
    loans: Cell<u64>,
    /// Puts and gets that were started, and their bytes.
    started: Cell<u64>,
    bytes: Cell<u64>,
    puts: Cell<u64>,
    gets: Cell<u64>,
    turns: letters::Turns,
    signals: Sender,
    /// It awaits another rank of its node; looks that it has made while it did since it last looked at the network, and in this wait.
    awaits_near: Cell<bool>,
    looks: Cell<u32>,
    waited: Cell<u32>,
    /// How long it has posted long puts and gets since it last looked at the network, in ticks.
    posting: Cell<u64>,
}

/// What the processes of several nodes tell each other.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Hello {
    nonce: u64,
    /// 1: there is a thread that makes progress while ranks compute.
    serves: u64,
    /// What messages may take in this process, and whether it lends.
    memory: u64,
    lends: u64,
}

/// How many ranks each process has, and how many send to it from other nodes.
struct Crowd {
    ranks: Vec<usize>,
    sources: Vec<usize>,
}

impl Crowd {
    fn new(all: &Ranks) -> Crowd {
        let mut ranks = vec![];
        for (process, _) in (0..all.count()).map(|rank| all.place(rank)) {
            ranks.resize(ranks.len().max(process + 1), 0);
            ranks[process] += 1;
        }
        let mut on = vec![0; all.nodes()];
        ranks.iter().enumerate().for_each(|(p, n)| on[all.node_of(p)] += n);
        let sources = (0..ranks.len()).map(|p| all.count() - on[all.node_of(p)]).collect();
        Crowd { ranks, sources }
    }

    fn least(&self, process: usize, mode: Mode) -> u64 {
        credits::least(self.ranks[process], self.sources[process], mode)
    }

    /// Entries that the completion queue of a process must hold: of its operations, buffers and bounces, and of others' puts with data, each
    /// of which has a credit for requests. Those are so many only where a user gives messages hundreds of megabytes; then there are
    /// fewer, and it is left to the provider what it does with more.
    fn entries(&self, process: usize, hello: &Hello) -> usize {
        let Share { grant, reserve } = self.divide(process, hello)[0];
        let credits = self.sources[process] * grant as usize + reserve as usize;
        self.ranks[process] * rma::TOKENS + am::BUFFERS + am::BOUNCES + credits.min(1 << 20)
    }

    fn divide(&self, process: usize, hello: &Hello) -> [Share; 2] {
        let mode = if hello.lends == 0 { Mode::Static } else { Mode::Dynamic };
        credits::divide(hello.memory, self.ranks[process], self.sources[process], mode)
    }
}

/// What this process says: a secret, of which that of process 0 counts, and its memory for messages.
fn hello(settings: &Settings, crowd: &Crowd, me: usize) -> Result<Hello, String> {
    let least = crowd.least(me, settings.credits);
    let memory = match settings.am_memory {
        Some(bytes) if bytes < least => {
            return Err(format!(
                "PARTAGE_AM_MEMORY={bytes}: {} ranks that {} of other nodes send to need at least {least}{}",
                crowd.ranks[me],
                crowd.sources[me],
                if settings.credits == Mode::Static { " with PARTAGE_CREDITS=static" } else { "" }
            ));
        }
        Some(bytes) => bytes,
        None => AM_MEMORY.max(least),
    };
    let lends = u64::from(settings.credits == Mode::Dynamic);
    Ok(Hello { nonce: endpoint::random(), serves: settings.thread.into(), memory, lends })
}

impl Net {
    /// Collective over all processes of the job. If it fails on one process it fails on all, with the same words.
    pub(crate) fn attach(
        node: &Node,
        settings: &Settings,
        whereabouts: &[Whereabouts],
        exchange: &mut dyn Exchange,
    ) -> Result<Net, String> {
        let me = node.ranks().process();
        let here = |why: String| format!("process {me} (on {}): {why}", node.host_of(node.mine().start).0);
        let crowd = Crowd::new(node.ranks());
        let hello = hello(settings, &crowd, me);
        let opened = hello
            .and_then(|hello| Ok((Net::open(settings, whereabouts, me, crowd.entries(me, &hello))?, hello)))
            .map_err(here);
        let hello = opened.as_ref().map_or(Hello::zeroed(), |(_, hello)| *hello);
        let mut mine = bytemuck::bytes_of(&hello).to_vec();
        match &opened {
            Ok((endpoint, _)) => mine.extend([&[1], endpoint.name()].concat()),
            Err(why) => mine.extend([&[0], why.as_bytes()].concat()),
        }
        let told = exchange.all_gather(&mine)?;
        let parts: Vec<(Hello, &[u8])> = told
            .iter()
            .map(|bytes| bytes.split_first_chunk::<{ size_of::<Hello>() }>())
            .map(|parts| parts.filter(|(_, rest)| !rest.is_empty()))
            .map(|parts| parts.map(|(hello, rest)| (bytemuck::pod_read_unaligned(hello), rest)))
            .collect::<Option<_>>()
            .ok_or("another process speaks another protocol; rebuild it")?;
        if let Some((_, [0, why @ ..])) = parts.iter().find(|(_, rest)| rest.first() == Some(&0)) {
            return Err(String::from_utf8_lossy(why).into_owned());
        }
        let (endpoint, _) = opened?;
        let mut peers = vec![None; parts.len()];
        let mut wrong = None;
        for p in node.ranks().far_processes() {
            match endpoint.insert(&parts[p].1[1..]) {
                Ok(peer) => peers[p] = Some(peer),
                Err(why) => wrong = wrong.or(Some(why)),
            }
        }
        let addresses = parts.iter().map(|(_, rest)| endpoint.text_of(&rest[1..])).collect();
        let place = (node.ranks(), node.segment());
        let hellos: Vec<Hello> = parts.iter().map(|(hello, _)| *hello).collect();
        let mut net = Net::new(endpoint, peers, addresses, &hellos, place, settings.clone());
        // Nobody greets before all listen.
        let why = wrong.or_else(|| net.describe_own().and_then(|()| net.post_all(am::POSTING)).err());
        let why = why.map(here).unwrap_or_default();
        let outcomes = exchange.all_gather(why.as_bytes())?;
        match outcomes.into_iter().find(|why| !why.is_empty()) {
            Some(why) => Err(String::from_utf8_lossy(&why).into_owned()),
            None => Ok(net),
        }
    }

    fn open(settings: &Settings, whereabouts: &[Whereabouts], me: usize, cq_size: usize) -> Result<Endpoint, String> {
        let source = settings.interface.clone().or_else(|| choose(whereabouts, me));
        let provider = settings.provider.clone();
        // Where no adapter does atomics, to be ready for them is for nothing.
        const LIBRARIES: [&str; 7] = ["tcp", "udp", "sockets", "net", "shm", "ofi_rxm", "ofi_rxd"];
        let library = LIBRARIES.iter().any(|name| provider.as_deref().unwrap_or("tcp").contains(name));
        let no_atomics = library && !settings.atomics;
        let demands = settings.demands;
        let peers = whereabouts.len() - 1;
        let asked = Asked { provider, source, peers, no_atomics, cq_size, demands, ..Asked::default() };
        let endpoint = Endpoint::open(&asked);
        let endpoint = endpoint.map_err(|why| match &settings.interface {
            Some(address) => format!("PARTAGE_INTERFACE={address}: {why}"),
            None => why,
        })?;
        Signals::check(settings.signals, &endpoint)?;
        let (most, needed) = (endpoint.max_message_size(), am::LONGEST);
        if most < needed {
            let provider = endpoint.provider();
            return Err(format!("the provider {provider} sends at most {most} bytes at once, and {needed} are needed"));
        }
        Ok(endpoint)
    }

    fn new(
        endpoint: Endpoint,
        peers: Vec<Option<Peer>>,
        addresses: Box<[String]>,
        hellos: &[Hello],
        (ranks, segment): (&Ranks, u64),
        settings: Settings,
    ) -> Net {
        let (processes, count, mine) = (peers.len(), ranks.count(), ranks.mine());
        assert!(count <= am::RANKS as usize, "{count} ranks");
        let crowd = Crowd::new(ranks);
        let shares: Vec<[Share; 2]> = (0..processes).map(|p| crowd.divide(p, &hellos[p])).collect();
        let grants: [Vec<u32>; 2] = [
            shares.iter().map(|[requests, _]| requests.grant).collect(),
            (0..count).map(|rank| shares[ranks.place(rank).0][1].grant).collect(),
        ];
        let lane = |i: usize| Mutex::new(Lender::new(shares[ranks.process()][i.min(1)]));
        Net {
            local: Local::new(&endpoint, settings.registered),
            signals: Signals::new(settings.signals, &endpoint, mine.len(), (processes, count)),
            bounces: (0..settings.demands.sends().unwrap_or(am::BOUNCES)).map(Bounce::new).collect(),
            endpoint,
            native: Native::new(processes),
            peers: peers.into(),
            addresses,
            greeted: (0..processes).map(|_| AtomicBool::new(false)).collect(),
            serves: hellos.iter().map(|hello| hello.serves == 1).collect(),
            heard: Heard::new(count),
            nonce: hellos[0].nonce,
            segment,
            desks: mine.clone().map(|_| Desk::new([&grants[0], &grants[1]])).collect(),
            ops: (0..mine.len()).map(Ops::new).collect(),
            accounts: (0..count * (1 + mine.len())).map(|_| Account::default()).collect(),
            lenders: (0..1 + mine.len()).map(lane).collect(),
            taken: (0..1 + mine.len()).map(|_| AtomicU32::new(0)).collect(),
            memory: hellos[ranks.process()].memory,
            held: AtomicU32::new(0),
            most_held: AtomicU32::new(0),
            strays: AtomicU64::new(0),
            owing: Owing::new(count * (1 + mine.len())),
            in_vain: AtomicU32::new(0),
            nap: Nap::default(),
            reading: Mutex::default(),
            buffers: (0..am::BUFFERS).map(Buffer::new).collect(),
            idle_buffers: Mutex::new((0..am::BUFFERS).collect()),
            idle_count: AtomicUsize::new(am::BUFFERS),
            next_bounce: AtomicUsize::new(0),
            kept: Mutex::default(),
            kept_count: AtomicUsize::new(0),
            kept_bytes: AtomicUsize::new(0),
            aside: Mutex::default(),
            aside_count: AtomicUsize::new(0),
            hungry: AtomicBool::new(false),
            extents: (0..count).map(|_| Extent::default()).collect(),
            names: (0..count).map(|_| Names::new(segment)).collect(),
            regions: Mutex::default(),
            relief: Relief::default(),
            first: mine.start,
            broken: Mutex::default(),
            deserted: AtomicBool::new(false),
            over: AtomicBool::new(false),
            settings,
        }
    }

    /// Registers what messages and operations have for themselves, where that must be.
    fn describe_own(&mut self) -> Result<(), String> {
        let Net { local, endpoint, ops, buffers, bounces, .. } = self;
        if !local.is_needed() {
            return Ok(());
        }
        // SAFETY: all of it is in fields of this value that are dropped after `local`, in memory of its own.
        let mut describe = |at: *mut u8, len: usize| unsafe { local.describe(endpoint, at, len) };
        ops.iter_mut().try_for_each(|ops| ops.describe(&mut describe))?;
        buffers.iter_mut().try_for_each(|buffer| buffer.describe(&mut describe))?;
        bounces.iter_mut().try_for_each(|bounce| bounce.describe(&mut describe))
    }

    /// Collective: says hello to the processes of other nodes, and waits for their answers.
    pub(crate) fn greet(&self, node: &Node, exchange: &mut dyn Exchange) -> Result<(), String> {
        let ranks = node.ranks();
        let mut silent: Vec<usize> = ranks.far_processes().collect();
        if silent.len() > 64 {
            silent = (0..ranks.nodes()).filter(|&n| n != ranks.node()).map(|n| ranks.first_process(n)).collect();
        }
        let met = AtomicBool::new(false);
        std::thread::scope(|s| {
            // Others are answered until all have been.
            s.spawn(|| {
                while !met.load(Acquire) {
                    if !self.poll(node) {
                        self.endpoint.wait(Duration::from_millis(10));
                    }
                }
            });
            let deadline = Instant::now() + self.settings.patience;
            let mut to_greet = silent.clone();
            while !silent.is_empty() && Instant::now() < deadline && self.why_broken().is_none() {
                to_greet.retain(|&p| !self.say_hello(ranks, p));
                silent.retain(|&p| !self.greeted[p].load(Acquire));
                if !silent.is_empty() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            let me = ranks.process();
            let name = |p: usize| {
                let rank = (0..ranks.count()).find(|&r| ranks.place(r).0 == p).expect("a process has a rank");
                format!("process {p} (rank {rank} on {}, {})", node.host_of(rank).0, self.addresses[p])
            };
            let broken = self.why_broken();
            let why = silent.first().map_or(String::new(), |&p| match &broken {
                Some(why) => format!("{} cannot reach {} over {}: {why}", name(me), name(p), self.endpoint.provider()),
                None => format!(
                    "{} did not answer {} over {} within {} s; PARTAGE_INTERFACE chooses the address, and firewalls must let \
                     the hosts of a job connect to each other",
                    name(p),
                    name(me),
                    self.endpoint.provider(),
                    self.settings.patience.as_secs_f64()
                ),
            });
            let outcomes = exchange.all_gather(why.as_bytes());
            met.store(true, Release);
            self.endpoint.wake();
            match outcomes?.into_iter().find(|why| !why.is_empty()) {
                Some(why) => Err(String::from_utf8_lossy(&why).into_owned()),
                None => Ok(()),
            }
        })
    }

    /// What is in use: provider, version, and this process's address.
    pub fn description(&self) -> String {
        let version = Endpoint::version().unwrap_or_default();
        format!("{} of libfabric {version} on {}", self.endpoint.provider(), self.endpoint.address_text())
    }

    /// Bytes that messages of other nodes may take here, and the most that they have.
    pub fn memory(&self) -> (u64, u64) {
        (self.memory, u64::from(self.most_held.load(Relaxed)) * credits::UNIT as u64)
    }

    /// How many messages came that are not of this job, and were dropped.
    pub fn strays(&self) -> u64 {
        self.strays.load(Relaxed)
    }

    /// How long a rank may sleep: it is woken by whoever looks at the queue, which may be itself.
    pub(crate) fn look_up_ns(&self) -> u64 {
        if self.settings.thread { 5_000_000 } else { 500_000 }
    }

    pub(crate) fn relief(&self) -> &Relief {
        &self.relief
    }
}

impl Seat {
    pub(crate) fn new(net: &Net, ranks: &Ranks, rank: usize) -> Seat {
        let zeros = |n| (0..n).map(|_| Cell::new(0)).collect::<Box<[_]>>();
        let numbers = [0, 1].map(|_| zeros(net.peers.len()));
        let sent = [zeros(net.peers.len()), zeros(ranks.count())];
        let listed = [net.peers.len(), ranks.count()].map(|n| (0..n).map(|_| Cell::new(false)).collect());
        let wants = [net.peers.len(), ranks.count()].map(|n| (0..n).map(|_| Cell::new(false)).collect());
        let asked = [net.peers.len(), ranks.count()].map(|n| (0..n).map(|_| Cell::new(None)).collect());
        let (total, started, bytes, puts, gets, turns) = Default::default();
        let (not_quiet, signals, stalls, loans) = Default::default();
        let (awaits_near, looks, waited, posting) = Default::default();
        Seat {
            i: rank - ranks.mine().start,
            rank,
            numbers,
            sent,
            wants,
            asked,
            listed,
            not_quiet,
            total,
            stalls,
            loans,
            started,
            bytes,
            puts,
            gets,
            turns,
            signals,
            awaits_near,
            looks,
            waited,
            posting,
        }
    }

    /// Messages that were sent.
    pub fn sent(&self) -> u64 {
        self.total.get()
    }

    /// How often there were too few credits for a message, and how often some were asked for.
    pub fn stalls(&self) -> (u64, u64) {
        (self.stalls.get(), self.loans.get())
    }

    /// Puts and gets that were made.
    pub fn transfers(&self) -> (u64, u64) {
        (self.puts.get(), self.gets.get())
    }

    /// Signals that were sent, by their way.
    pub fn signals(&self) -> signal::Counts {
        self.signals.counts()
    }
}

/// A count that one rank's look adds to.
fn one_more(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(machine: u64, namespace: u64, addresses: &[([u8; 4], u8)]) -> Whereabouts {
        let mut w = Whereabouts { machine: [machine, 0], namespace, addresses: [[0; 8]; TOLD] };
        for (place, (address, prefix)) in w.addresses.iter_mut().zip(addresses) {
            place[..4].copy_from_slice(address);
            place[4] = *prefix;
        }
        w
    }

    #[test]
    fn an_interface_that_all_share_is_chosen() {
        let a = at(1, 1, &[([192, 168, 0, 1], 24), ([10, 77, 0, 1], 16)]);
        let b = at(1, 2, &[([10, 77, 3, 2], 16)]);
        let c = at(2, 1, &[([172, 16, 0, 1], 12)]);
        assert_eq!(choose(&[a, a], 0).as_deref(), Some("127.0.0.1"));
        assert_eq!(choose(&[a, b, a], 0).as_deref(), Some("10.77.0.1"));
        assert_eq!(choose(&[a, b], 1).as_deref(), Some("10.77.3.2"));
        assert_eq!(choose(&[a, c], 0).as_deref(), Some("192.168.0.1"));
        let bridge = ([172, 17, 0, 1], 16);
        let (d, e) = (at(1, 1, &[bridge, ([10, 1, 0, 1], 24)]), at(2, 1, &[bridge, ([10, 1, 0, 2], 24)]));
        assert_eq!(choose(&[d, e], 0).as_deref(), Some("10.1.0.1"));
        assert_eq!(choose(&[at(1, 1, &[]), c], 0), None);
    }

    #[test]
    fn bridges_for_containers_leave_room_for_others() {
        let interface = |name: &str, address: [u8; 4], prefix: u8| {
            let (name, address) = (name.to_string(), Ipv4Addr::from(address));
            Interface { name, address, prefix, is_loopback: address.is_loopback() }
        };
        let bridge = |i: u8| interface(&format!("br-{i}"), [172, 17 + i, 0, 1], 16);
        let mut all: Vec<Interface> = (0..20).map(bridge).collect();
        all.insert(0, interface("lo", [127, 0, 0, 1], 8));
        all.push(interface("ppp0", [10, 9, 0, 1], 32));
        all.extend([interface("eth0", [192, 168, 0, 1], 24), interface("ib0", [10, 77, 0, 1], 16)]);
        let here = Whereabouts { addresses: addresses(all), ..at(1, 1, &[]) };
        let told: Vec<(Ipv4Addr, u32)> = here.addresses().collect();
        let expect = [([192, 168, 0, 1], 24), ([10, 77, 0, 1], 16), ([10, 9, 0, 1], 32), ([172, 17, 0, 1], 16)];
        assert_eq!(told[..4], expect.map(|(address, prefix): ([u8; 4], u32)| (Ipv4Addr::from(address), prefix)));
        assert_eq!(told.len(), TOLD);
        assert_eq!(choose(&[here, at(2, 1, &[([10, 77, 3, 2], 16)])], 0).as_deref(), Some("10.77.0.1"));
    }

    #[test]
    fn all_that_can_complete_fits_into_the_queue() {
        let crowd = Crowd::new(&Ranks::new(&[2, 8, 1], &[0, 1, 1], 1));
        assert_eq!((&crowd.ranks[..], &crowd.sources[..]), (&[2, 8, 1][..], &[9, 2, 2][..]));
        let hello = Hello { memory: AM_MEMORY, lends: 1, ..Hello::zeroed() };
        let half = AM_MEMORY as usize / 2 / credits::UNIT;
        assert_eq!(crowd.entries(1, &hello), 8 * rma::TOKENS + am::BUFFERS + am::BOUNCES + half);
        assert_eq!(crowd.entries(1, &Hello { memory: 1 << 37, ..hello }), 8 * rma::TOKENS + 128 + (1 << 20));
    }

    #[test]
    fn secrets_are_drawn_anew_each_time() {
        let crowd = Crowd::new(&Ranks::new(&[1, 1], &[0, 1], 0));
        let [a, b] = [0, 1].map(|_| hello(&Settings::default(), &crowd, 0).unwrap());
        assert!(a.nonce != b.nonce && a.nonce >> 32 != 0);
        let settings = Settings { am_memory: Some(100_000), ..Settings::default() };
        let why = hello(&settings, &crowd, 0).err().unwrap();
        assert!(why.contains("PARTAGE_AM_MEMORY=100000: 1 ranks that 1 of") && !why.contains('\n'), "{why}");
    }
}
