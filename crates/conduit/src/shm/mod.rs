//! The conduit between ranks of one node: every process maps every process's memory.
//!
//! [`Node::attach`] creates this process's file, tells the others where it is, and maps theirs. A process is on this
//! node if its file can be opened through `/proc` and carries the cookie that it told us; names of hosts prove nothing.
//! (Processes that were told different names of nodes are on different ones, whatever can be opened.)
//! The files have no names and end with their last user.
//!
//! [`Seat`] is one rank's place: its waiter, its barrier, its heaps, and its side of active messages ([`am`]).

pub mod am;
pub mod atomic;
pub mod coll;
pub mod control;
pub mod lane;
pub mod letters;
pub mod lock;
pub mod mail;
pub mod mailbox;
pub mod memory;
pub mod progress;
pub mod rma;
pub mod segment;
pub mod signal;
pub mod team;

use crate::barrier::{Barrier, Places};
use crate::contract::{At, Exchange, Half};
use crate::ledger::{self, Ledger};
use crate::meeting::{Carrier, Digest};
use crate::ofi::{self, Net, Whereabouts};
use crate::ranks::Ranks;
use crate::record::Doing;
use crate::sync::Ordering::*;
use crate::sync::ticks;
use crate::topology;
use crate::wait::{Cores, Toil, Waiter};
use am::Outlet;
use bytemuck::{Pod, Zeroable};
use control::{Control, NodePlaces};
use mail::Mail;
use memory::{Memory, TeamWindow, Window};
use rma::Reach;
use segment::{Backing, HUGE, Mapping};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};

/// What `attach` needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ranks of this process.
    pub ranks: usize,
    /// Bytes of each rank's segment (rounded up to huge pages); `None`: what the machine could ever give, less where so
    /// many do not fit into the address space.
    pub segment: Option<u64>,
    /// Try to get huge pages.
    pub huge: bool,
    /// Bind each rank to one core.
    pub bind: bool,
    /// Identity of the program's image; equal in all processes.
    pub image: [u8; 32],
    /// Name of this host, for messages.
    pub host: String,
    /// Name of this process's node, if it is not to be found out; [`EACH_PROCESS`]: it has one of its own.
    pub node: Option<String>,
    /// The network, where there are several nodes.
    pub network: ofi::Settings,
    /// The waiting policy, if it is not to be found out.
    pub cores: Option<Cores>,
    /// Radix of the barrier's tree where every rank has a core; `None`: the default.
    pub radix: Option<usize>,
    /// What process 0 says to all, see [`Node::word`]; nobody asks what the others have here.
    pub word: Vec<u8>,
    /// How signals are fenced.
    pub fences: Fences,
}

/// How signals are fenced: see [`crate::sync`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Fences {
    /// Light where every rank has a core and all processes of the node can be. Who shares a core sleeps often, and what it
    /// takes to yield is much more than a fence.
    #[default]
    Auto,
    /// Light wherever all processes of the node can be.
    Light,
    /// Full ones.
    Full,
}

/// Bytes of the largest segment: its window too has offsets of 44 bits.
const MOST_SEGMENT: u64 = 1 << 43;
/// What is done with so many bytes may take long.
pub(crate) const LONG: usize = 32 << 10;

/// The name of a node that is different in every process: no memory is shared between them.
pub const EACH_PROCESS: &str = "process";

/// The ranks of this node and their memory, as this process sees them. Ranks are named by their numbers in the job, but
/// where it says *near*: by those on this node.
#[derive(Debug)]
pub struct Node {
    serial: u64,
    file: Arc<OwnedFd>,
    backing: Backing,
    /// Of the processes of this node.
    areas: Vec<Control>,
    /// For each near rank its area and its index there.
    seats: Vec<(usize, usize)>,
    /// By near rank.
    ledgers: Vec<Ledger>,
    /// By process.
    hosts: Vec<(String, u32)>,
    ranks: Ranks,
    /// What other nodes are reached by.
    net: OnceLock<Net>,
    /// How many ranks of this machine are of processes before this one.
    first_on_machine: usize,
    own: Arc<Mapping>,
    /// The open halves.
    reach: Reach,
    guarded: Reach,
    /// Bytes of a segment for its two heaps of either half; its window lies after them.
    segment: u64,
    /// The same of this process, which may be longer than what is used.
    own_segment: u64,
    window: Window,
    mail: Mail,
    semaphores: signal::Semaphores,
    mailboxes: mailbox::Mailboxes,
    locks: lock::Locks,
    cores: Cores,
    is_crowded: bool,
    at_once: usize,
    radix: usize,
    bind: bool,
    word: Vec<u8>,
}

/// What each process tells the others.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Hello {
    magic: u64,
    cookie: [u64; 2],
    image: [u8; 32],
    segment: u64,
    pid: u32,
    fd: u32,
    ranks: u32,
    bind: u32,
    /// What process 0 was told about waiting (1: own cores, 2: shared) and the barrier's radix holds for all; 0: not told.
    cores_told: u32,
    radix: u32,
    /// Can light fences be used (1: where every rank has a core, 2: anywhere)? All processes of a node must say so.
    light: u64,
    /// CPUs granted by control groups, in thousandths; 0: no limit.
    quota: u64,
    cores: [u64; 16],
    host: [u8; 64],
    /// What this process was told about its node; empty: nothing.
    node: [u8; 64],
    network: Whereabouts,
}

/// This process's file, its mapping, and what to tell the others about it.
struct Own {
    file: Arc<OwnedFd>,
    backing: Backing,
    map: Arc<Mapping>,
    hello: Hello,
}

impl Own {
    fn create(config: &Config, exchange: &dyn Exchange) -> Result<Own, String> {
        let (_, processes) = exchange.place();
        let segment = config.segment.unwrap_or_else(|| default_segment(processes * config.ranks));
        let segment = segment.max(2 * HUGE as u64);
        let segment = segment.checked_next_multiple_of(HUGE as u64).filter(|s| *s <= MOST_SEGMENT);
        let segment = segment.ok_or("a segment has at most 8 TiB")?;
        let len = file_len(segment, config.ranks).ok_or("the segments are larger than the address space")?;
        let (file, backing) = segment::create(len as u64, config.huge)
            .map_err(|e| format!("cannot create {} of shared memory: {e}", bytes(len as u64)))?;
        let map = Mapping::new(file.as_fd(), len, true).map_err(|e| {
            format!("cannot map {} of address space: {e}; set PARTAGE_SEGMENT lower", bytes(len as u64))
        })?;
        let map = Arc::new(map);
        let cookie = random_cookie();
        Control::new(map.clone()).sign(cookie);

        let hello = Hello {
            magic: MAGIC,
            cookie,
            image: config.image,
            segment,
            pid: std::process::id(),
            fd: file.as_raw_fd() as u32,
            ranks: config.ranks as u32,
            bind: config.bind.into(),
            cores_told: config.cores.map_or(0, |c| if c == Cores::Own { 1 } else { 2 }),
            radix: config.radix.map_or(0, |r| r.min(1 << 15) as u32),
            light: match config.fences {
                Fences::Full => 0,
                _ if !crate::sync::can_be_light() => 0,
                Fences::Auto => 1,
                Fences::Light => 2,
            },
            quota: topology::cpu_quota().map_or(0, |q| (q * 1000.0).max(1.0) as u64),
            cores: mask_of(&topology::allowed_cores()),
            host: fixed(&config.host),
            node: fixed(config.node.as_deref().unwrap_or("")),
            network: Whereabouts::here(),
        };
        Ok(Own { file: Arc::new(file), backing, map, hello })
    }

    /// What an outsider needs to look into the control area: path and cookie.
    fn announcement(&self) -> String {
        let Hello { pid, fd, cookie, .. } = self.hello;
        format!("/proc/{pid}/fd/{fd} {:016x}{:016x}", cookie[0], cookie[1])
    }
}

/// Changes with every change of what processes of one job share.
const MAGIC: u64 = u64::from_le_bytes(*b"hello 10");

impl Node {
    /// Collective over the processes of the job. If it fails on one process it fails on all, with the same words.
    pub fn attach(config: &Config, exchange: &mut dyn Exchange) -> Result<Node, String> {
        // By the time ranks take their seats, the rate of the counter will be known.
        crate::sync::ticks_per_us();
        let own = Own::create(config, exchange);
        if let Ok(own) = &own {
            exchange.announce(&own.announcement());
        }
        let me = exchange.place().0;
        let mut hello = own.as_ref().map_or(vec![], |own| bytemuck::bytes_of(&own.hello).to_vec());
        if me == 0 && own.is_ok() {
            hello.extend(&config.word);
        }
        let mut told = exchange.all_gather(&hello)?;
        let word = told.first_mut().filter(|first| first.len() > size_of::<Hello>());
        let word = word.map_or(vec![], |first| first.split_off(size_of::<Hello>()));
        // `own` lives until all have opened its file, or have been told why this process has none.
        let attached = own.as_ref().map_err(String::clone).and_then(|own| Node::join(config, me, own, &told));
        // Nobody goes on before all have mapped all: a process that ends at once would be missed by who opens its file later.
        let outcome = attached.as_ref().err().map_or("", String::as_str);
        // A process without memory says why; the others only know that it said nothing of use.
        let outcome = if own.is_ok() && told.iter().any(Vec::is_empty) { "" } else { outcome };
        let mapped = attached.as_ref().map_or(vec![], |(_, mapped)| mapped.clone());
        let outcomes = exchange.all_gather(&told_outcome(outcome, &mapped))?;
        let outcomes: Vec<_> = outcomes.iter().map(|o| read_outcome(o)).collect::<Result<_, _>>()?;
        if let Some((why, _)) = outcomes.iter().find(|(why, _)| !why.is_empty()) {
            return Err(why.clone());
        }
        let (mut node, _) = attached?;
        node.word = word;
        // All compare all, and so all find the same.
        let differs = |&(p, q): &(usize, u32)| outcomes.get(q as usize).is_none_or(|o| o.1 != outcomes[p].1);
        let mut pairs = outcomes.iter().enumerate().flat_map(|(p, o)| o.1.iter().map(move |&q| (p, q)));
        if let Some((p, q)) = pairs.find(differs) {
            let host = |p: usize| node.hosts.get(p).map_or("?", |h| h.0.as_str());
            return Err(format!(
                "process {p} (on {}) and process {q} (on {}) do not see the same processes as their node's; set \
                 PARTAGE_NODE to a name per node",
                host(p),
                host(q as usize)
            ));
        }
        let told: Vec<Hello> = told.iter().map(|h| bytemuck::pod_read_unaligned(h)).collect();
        let counts: Vec<usize> = told.iter().map(|h| h.ranks as usize).collect();
        // A node is known by its first process.
        let nodes: Vec<usize> = outcomes.iter().map(|o| o.1.first().map_or(0, |&p| p as usize)).collect();
        node.ranks = Ranks::new(&counts, &nodes, me);
        crate::sync::be_light(are_light(outcomes[me].1.iter().map(|&p| &told[p as usize]), node.cores));
        if node.ranks.nodes() > 1 {
            let whereabouts: Vec<_> = told.iter().map(|h| h.network).collect();
            let net = Net::attach(&node, &config.network, &whereabouts, exchange)?;
            node.net.set(net).expect("once");
            let net = node.net().expect("just set");
            net.greet(&node, exchange)?;
        }
        Ok(node)
    }

    /// Maps the others' memory, of which they have told.
    fn join(config: &Config, me: usize, own: &Own, told: &[Vec<u8>]) -> Result<(Node, Vec<u32>), String> {
        let Own { file, backing, map: own, .. } = own;
        let (file, backing) = (file.clone(), *backing);
        let told: Vec<Hello> = told.iter().enumerate().map(|(p, b)| read_hello(p, b)).collect::<Result<_, _>>()?;
        if let Some((p, other)) = told.iter().enumerate().find(|(_, h)| h.image != told[0].image) {
            let (a, b) = (text(&told[0].host), text(&other.host));
            return Err(format!(
                "process 0 (on {a}) and process {p} (on {b}) run different binaries; start the same build everywhere"
            ));
        }
        let shared = told.iter().map(|h| h.segment).min().expect("at least this process");
        let maps: Vec<Option<Arc<Mapping>>> = told
            .iter()
            .enumerate()
            .map(|(p, h)| match p == me {
                true => Ok(Some(own.clone())),
                false => Ok(map_peer(p, h, &told[me])?.map(Arc::new)),
            })
            .collect::<Result<_, String>>()?;
        let counts: Vec<usize> = told.iter().map(|h| h.ranks as usize).collect();
        let mapped: Vec<u32> = (0..told.len() as u32).filter(|&p| maps[p as usize].is_some()).collect();
        // Which nodes the others have is theirs to say; here it is only known who is not on this one.
        let nodes: Vec<usize> = (0..told.len()).map(|p| if maps[p].is_some() { told.len() } else { p }).collect();
        let ranks = Ranks::new(&counts, &nodes, me);
        if ranks.members().len() > control::MOST_RANKS || ranks.count() > 1 << 20 {
            let (n, most) = (ranks.members().len(), control::MOST_RANKS);
            return Err(format!("{n} ranks on one node; at most {most} are possible, and 1048576 in a job"));
        }

        let (mut areas, mut bases, mut seats, mut near) = (vec![], vec![], vec![], vec![]);
        let (mut posts, mut boxes, mut ledgers) = (vec![], vec![], vec![]);
        for ((p, h), map) in told.iter().enumerate().zip(&maps) {
            let Some(map) = map else {
                bases.extend((0..h.ranks).map(|_| [std::ptr::null_mut(); 2]));
                posts.extend((0..h.ranks).map(|_| None));
                boxes.extend((0..h.ranks).map(|_| None));
                continue;
            };
            let control = Control::new(map.clone());
            map.advise_small(0, segments_at(h.segment, h.ranks as usize));
            for i in 0..h.ranks as usize {
                // SAFETY: the i-th area lies inside the mapping, whose length was computed from the same numbers.
                let area = unsafe { map.base().add(control::LEN + i * mail::AREA + mail::skew(near.len())) };
                let bell = std::ptr::from_ref(control.bell(i));
                // SAFETY: as above; semaphores of this node keep the mappings, as `areas` does.
                posts.push(Some(unsafe {
                    let area = map.base().add(semaphores_at(h.ranks as usize, i));
                    signal::Peer::new(area, mail::skew(near.len()), bell)
                }));
                // SAFETY: as above.
                boxes.push(Some(unsafe {
                    let area = map.base().add(mailboxes_at(h.ranks as usize, i));
                    mailbox::Peer::new(area, mail::skew(near.len()), bell)
                }));
                near.push((area, bell, p == me));
                // SAFETY: as above; `areas` keeps the mappings of ledgers, too.
                ledgers.push(unsafe {
                    let area = map.base().add(ledger_at(h.segment, h.ranks as usize, i));
                    Ledger::new(area, memory::chunks(h.segment))
                });
                let at = segments_at(h.segment, h.ranks as usize) + i * memory::stride(h.segment) as usize;
                let guarded = at + memory::guarded_at(h.segment) as usize;
                if backing != Backing::Memfd {
                    map.advise_huge(at + HUGE, shared as usize - 2 * HUGE);
                    map.advise_huge(guarded + HUGE, shared as usize - 2 * HUGE);
                }
                // SAFETY: the i-th segment lies inside the mapping, whose length was computed from the same numbers.
                bases.push(unsafe { [map.base().add(at), map.base().add(guarded)] });
                seats.push((areas.len(), i));
            }
            areas.push(control);
        }
        let near_count = near.len();
        // SAFETY: areas and bells in mappings that `areas`, a field of the same value, keeps mapped; files are zeroed at
        // first.
        let mail = unsafe { Mail::new(near, ranks.near(ranks.mine().start)) };
        let maps: Vec<_> = maps.into_iter().flatten().collect();
        let half = |half: usize| bases.iter().map(|b| b[half]).collect();
        // SAFETY: bases of halves of at least so many bytes in the mappings that go with them; nobody makes references into
        // the open ones, and into the guarded ones only while they are not accessed otherwise.
        let (reach, guarded) = unsafe {
            let [open, guarded] = [memory::open_len(shared), memory::guarded_len(shared)];
            (Reach::new(half(0), open, maps.clone()), Reach::new(half(1), guarded, maps.clone()))
        };
        let mailboxes = mailbox::Mailboxes::new(boxes, guarded.clone(), near_count);
        let semaphores = signal::Semaphores::new(posts, maps);
        // The barrier has one shape: what differs between the processes' environments must not matter.
        let cores = match told[0].cores_told {
            1 => Cores::Own,
            2 => Cores::Shared,
            _ => judge_cores(&told, me),
        };
        let first = |&i: &usize| !told[..i].iter().any(|h| h.network.machine == told[i].network.machine);
        let mut machines = (0..told.len()).filter(first);
        let is_crowded = match told[0].cores_told {
            1 => false,
            2 => true,
            _ => machines.clone().any(|i| judge_cores(&told, i) == Cores::Shared),
        };
        let rooms = machines.by_ref().map(|i| Room::of(&told, i));
        let at_once = rooms.filter(|room| room.cores() < room.masks.len()).map(|room| room.cores()).min();
        let hosts = told.iter().map(|h| (text(&h.host), h.pid)).collect();
        let radix = match cores {
            Cores::Shared => 0,
            Cores::Own if told[0].radix >= 2 => told[0].radix as usize,
            Cores::Own => 4,
        };
        let (own, bind, net) = (own.clone(), config.bind, OnceLock::new());
        let on_machine = |h: &&Hello| h.network.machine == told[me].network.machine;
        let first_on_machine = told[..me].iter().filter(on_machine).map(|h| h.ranks as usize).sum();
        static JOBS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = JOBS.fetch_add(1, Relaxed) + 1;
        let node = Node {
            serial,
            file,
            backing,
            areas,
            seats,
            ledgers,
            hosts,
            ranks,
            net,
            first_on_machine,
            own,
            reach,
            guarded,
            segment: shared,
            own_segment: told[me].segment,
            window: Window::new(shared, config.ranks),
            mail,
            semaphores,
            mailboxes,
            locks: lock::Locks::default(),
            cores,
            is_crowded,
            at_once: at_once.unwrap_or(usize::MAX),
            radix,
            bind,
            word: vec![],
        };
        Ok((node, mapped))
    }

    /// What the network knows of a rank's segment, if the rank is on this node.
    pub(crate) fn ledger(&self, rank: usize) -> Option<&Ledger> {
        self.ledgers.get(self.ranks.near(rank))
    }

    /// Which of this process's nodes this is, from 1.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// What process 0 was given to say ([`Config::word`]): the same in all processes, whatever they were given.
    pub fn word(&self) -> &[u8] {
        &self.word
    }

    /// Who is where.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// The ranks of this process.
    pub fn mine(&self) -> Range<usize> {
        self.ranks.mine()
    }

    /// Host and process id of a rank.
    pub fn host_of(&self, rank: usize) -> (&str, u32) {
        let (host, pid) = &self.hosts[self.ranks.place(rank).0];
        (host, *pid)
    }

    /// What other nodes are reached by, if there are any.
    #[inline(always)]
    pub fn net(&self) -> Option<&Net> {
        self.net.get()
    }

    /// Do ranks have a core each?
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// What its ranks do for long.
    pub(crate) fn toil(&self) -> &Toil {
        self.areas[0].toil()
    }

    /// Do ranks of some machine share cores? The answer is the same on all ranks of the job.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// How many ranks of a machine can run at the same time, if not all: cores, and what of them it may use; of the machine with the fewest. The answer is the same on all ranks of the job.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// What the pages are.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Bytes of a segment for the heaps of either half.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// The table of the open halves of segments.
    #[inline(always)]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The table of either half.
    #[inline(always)]
    pub fn table(&self, half: Half) -> &Reach {
        match half {
            Half::Open => &self.reach,
            Half::Guarded => &self.guarded,
        }
    }

    /// The table to which this place belongs, and the place there.
    #[inline(always)]
    pub(crate) fn half(&self, at: At) -> (&Reach, At) {
        (self.table(at.half()), at.in_half())
    }

    /// What a rank of this node is doing.
    pub fn doing(&self, rank: usize) -> Option<Doing> {
        self.record(rank).read()
    }

    /// The record of a rank of this node.
    pub fn record(&self, rank: usize) -> &crate::record::Record {
        let (p, i) = self.seats[self.ranks.near(rank)];
        self.areas[p].record(i)
    }

    /// Ends all waits of all ranks of this node with an error; the first code stays.
    pub fn abort(&self, code: u32) {
        let _ = self.areas[0].abort().compare_exchange(0, code.max(1), AcqRel, Relaxed);
        crate::sync::full_fence();
        for &(p, i) in &self.seats {
            self.areas[p].bell(i).ring_after_fence();
        }
    }

    /// Has the job been aborted?
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.areas[0].abort().load(Acquire) != 0
    }

    /// All ranks of this node have come to a barrier.
    fn meet_beyond(&self, epoch: u64, all: Digest) {
        let net = self.net().expect("there are other nodes");
        self.areas[0].meeting().arrive(epoch, all, &Beyond { node: self, net });
    }

    /// Another node has told of a barrier.
    pub(crate) fn heard_of_meeting(&self, epoch: u64, round: usize, digest: Digest) {
        let net = self.net().expect("it came by it");
        self.areas[0].meeting().receive(epoch, round, digest, &Beyond { node: self, net });
    }

    /// Takes the seat of one of this process's ranks; called on the rank's own thread, which it may bind to a core.
    pub fn seat(self: &Arc<Self>, r: usize) -> Seat {
        assert!(self.mine().contains(&r), "rank {r} is not of this process");
        if self.bind {
            let cores = topology::allowed_cores();
            // A refusal leaves the rank where it is; the policy was judged by masks and errs to the safe side.
            let _ = topology::bind_to(cores[(self.first_on_machine + r - self.mine().start) % cores.len()]);
        }
        Seat::new(self.clone(), r)
    }
}

/// Carries a barrier on to other nodes.
struct Beyond<'n> {
    node: &'n Node,
    net: &'n Net,
}

impl Carrier for Beyond<'_> {
    fn rounds(&self) -> usize {
        self.node.ranks.nodes().next_power_of_two().ilog2() as usize
    }

    fn tell(&self, epoch: u64, round: usize, known: Digest) {
        let ranks = &self.node.ranks;
        let to = (ranks.node() + (1 << round)) % ranks.nodes();
        self.net.tell_of_meeting(ranks.first_process(to), epoch, round, known);
    }

    fn release(&self, epoch: u64, known: Digest) {
        let places = NodePlaces::new(&self.node.areas, self.node.seats.iter().copied());
        crate::barrier::open(&places, self.node.seats.len(), epoch, Some(&known));
    }
}

/// One rank's place on its node. Not `Send`: it belongs to the rank's thread.
#[derive(Debug)]
pub struct Seat {
    rank: usize,
    near: usize,
    waiter: Waiter<'static>,
    barrier: Barrier<NodePlaces>,
    outlet: Outlet,
    sites: lock::SitesOfRank,
    semaphores: signal::Book,
    mailboxes: mailbox::Book,
    /// Its side of what reaches other nodes.
    far: Option<ofi::Seat>,
    /// Of either half.
    memory: [Memory; 2],
    teams: TeamWindow,
    node: Arc<Node>,
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Seat {
    fn new(node: Arc<Node>, rank: usize) -> Seat {
        let near = node.ranks.near(rank);
        let (p, i) = node.seats[near];
        // SAFETY: the references point into areas that `node`, a field of the same value, keeps mapped; they never
        // leave this module with that lifetime, and neither `Waiter` nor a reference runs code when dropped.
        let waiter = unsafe {
            let area: &'static Control = &*std::ptr::from_ref(&node.areas[p]);
            let first: &'static Control = &*std::ptr::from_ref(&node.areas[0]);
            let waiter = Waiter::new(area.bell(i), first.sleepers(), area.record(i), first.abort(), node.cores);
            waiter.among(first.toil())
        };
        let waiter = if node.mail.can_help() { waiter.looking_up(progress::LOOK_UP_NS) } else { waiter };
        let waiter = match node.net() {
            Some(net) => {
                // SAFETY: as above; the network is a part of the node.
                let relief = unsafe { &*std::ptr::from_ref(net.relief()) };
                waiter.relieved_by(relief).looking_up(net.look_up_ns())
            }
            None => waiter,
        };
        let places = NodePlaces::new(&node.areas, node.seats.iter().copied());
        let mut barrier = Barrier::new(places, near, node.seats.len(), node.radix);
        let far = node.net().map(|net| ofi::Seat::new(net, &node.ranks, rank));
        if far.is_some() {
            let this = node.clone();
            barrier = barrier.beyond(node.ranks.members(), move |epoch, all| this.meet_beyond(epoch, all));
        }
        let memory = [Half::Open, Half::Guarded].map(|_| Memory::new(node.segment));
        let teams = TeamWindow::new(node.segment);
        let outlet = Outlet::new(&node.mail, &node.ranks, near);
        node.record(rank).running();
        let (sites, semaphores, mailboxes) = Default::default();
        let _not_send = std::marker::PhantomData;
        Seat { rank, near, waiter, barrier, outlet, sites, semaphores, mailboxes, far, memory, teams, node, _not_send }
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// This rank's waiter.
    #[inline(always)]
    pub fn waiter(&self) -> &Waiter<'_> {
        &self.waiter
    }

    /// Does something with so many bytes, of which those that share this rank's core know that it is no foreign load.
    #[inline(always)]
    pub fn toil<R>(&self, len: usize, work: impl FnOnce() -> R) -> R {
        if len < LONG {
            return work();
        }
        let start = ticks();
        let done = work();
        self.node.toil().add(ticks().wrapping_sub(start));
        done
    }

    /// This rank awaits another one of its node, as long as what this returns lives: it looks at the network less often. Nothing where there is none.
    #[inline(always)]
    pub fn awaits_near(&self) -> Option<ofi::progress::Near<'_>> {
        self.far.as_ref().map(ofi::Seat::awaits_near)
    }

    /// The same in a barrier of all, if what other nodes say of it comes to another process.
    #[inline(always)]
    pub fn awaits_barrier(&self) -> Option<ofi::progress::Near<'_>> {
        let ranks = &self.node.ranks;
        self.far.as_ref().filter(|_| ranks.process() != ranks.first_process(ranks.node())).map(ofi::Seat::awaits_near)
    }

    /// This rank's side of the node's barrier.
    #[inline(always)]
    pub fn barrier(&self) -> &Barrier<impl Places + use<>> {
        &self.barrier
    }
}

/// Looks into a process's control area from outside the job: the launcher's view.
#[derive(Debug)]
pub struct Peek(Control);

impl Peek {
    /// By what the process announced; `None` if that is not a control area of its.
    pub fn open(announced: &str) -> Option<Peek> {
        let (path, cookie) = announced.split_once(' ')?;
        let cookie = [cookie.get(..16)?, cookie.get(16..)?].map(|half| u64::from_str_radix(half, 16).ok());
        // Through another process's descriptors: this may be any file.
        let plain = path.starts_with("/proc/");
        let file =
            plain.then(|| std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok())??;
        let meta = file.metadata().ok()?;
        if !meta.is_file() || meta.len() < control::LEN as u64 {
            return None;
        }
        let control = Control::new(Arc::new(Mapping::new(file.as_fd(), control::LEN, false).ok()?));
        control.is_signed([cookie[0]?, cookie[1]?]).then_some(Peek(control))
    }

    /// What the process's i-th rank is doing.
    pub fn doing(&self, i: usize) -> Option<Doing> {
        self.0.record(i).read()
    }
}

/// Bytes of a rank's areas: for messages, semaphores and mailboxes.
const AREAS: usize = mail::AREA + signal::AREA + mailbox::AREA;

/// Where the segments begin in the file of a process: after its control area and its ranks' areas.
fn segments_at(segment: u64, ranks: usize) -> usize {
    ledger_at(segment, ranks, ranks)
}

/// Where the ledger of the i-th of so many ranks with such segments is.
fn ledger_at(segment: u64, ranks: usize, i: usize) -> usize {
    control::LEN + ranks * AREAS + i * ledger_len(segment)
}

/// Bytes of a ledger: of whole huge pages, as all before the segments.
fn ledger_len(segment: u64) -> usize {
    ledger::len(memory::chunks(segment)).next_multiple_of(HUGE)
}

/// Where the semaphores of the i-th of so many ranks are.
fn semaphores_at(ranks: usize, i: usize) -> usize {
    control::LEN + ranks * mail::AREA + i * signal::AREA
}

/// Where its mailboxes are.
fn mailboxes_at(ranks: usize, i: usize) -> usize {
    control::LEN + ranks * (mail::AREA + signal::AREA) + i * mailbox::AREA
}

/// The length of that file.
fn file_len(segment: u64, ranks: usize) -> Option<usize> {
    let each = (memory::stride(segment) as usize).checked_add(AREAS + ledger_len(segment))?;
    each.checked_mul(ranks)?.checked_add(control::LEN)
}

/// A segment that could hold all memory that this process may ever have, if so many fit into the address space.
fn default_segment(ranks: usize) -> u64 {
    const SPACE: u64 = 1 << 44;
    let share = SPACE / ranks.next_power_of_two() as u64;
    topology::memory_total().next_power_of_two().clamp(1 << 30, 1 << 40).min(share)
}

/// The memory of another process; `None` if it is on another node.
fn map_peer(p: usize, h: &Hello, mine: &Hello) -> Result<Option<Mapping>, String> {
    let named = !text(&h.node).is_empty();
    if h.node != mine.node || named && text(&h.node) == EACH_PROCESS {
        return Ok(None);
    }
    let path = format!("/proc/{}/fd/{}", h.pid, h.fd);
    let host = text(&h.host);
    // Who was told that both are on one node is told why nothing is shared.
    let elsewhere = |why: String| match named {
        true => Err(format!("process {p} (pid {} on {host}) was said to be on this node: {why}", h.pid)),
        false => Ok(None),
    };
    // On another machine this is anybody's: a terminal, or what lets whoever opens it wait.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        Err(e) => return elsewhere(format!("{path}: {e}")),
    };
    let len = file_len(h.segment, h.ranks as usize);
    let size = file.metadata().map_or(0, |m| if m.is_file() { m.len() } else { 0 });
    let Some(len) = len.filter(|&l| l as u64 == size) else { return elsewhere(format!("{path} is not its memory")) };
    let map = Mapping::new(file.as_fd(), len, true)
        .map_err(|e| format!("cannot map {} of process {p}: {e}; set PARTAGE_SEGMENT lower", bytes(len as u64)))?;
    let map = Arc::new(map);
    if !Control::new(map.clone()).is_signed(h.cookie) {
        return elsewhere(format!("{path} is not its memory"));
    }
    Ok(Some(Arc::into_inner(map).expect("nobody else has it yet")))
}

/// What a process tells after it has mapped others: why that failed, or whom it has mapped.
fn told_outcome(why: &str, mapped: &[u32]) -> Vec<u8> {
    let mut bytes = (why.len() as u64).to_le_bytes().to_vec();
    bytes.extend(why.as_bytes());
    mapped.iter().for_each(|p| bytes.extend(p.to_le_bytes()));
    bytes
}

fn read_outcome(bytes: &[u8]) -> Result<(String, Vec<u32>), String> {
    let bad = || "another process speaks another protocol; rebuild it".to_string();
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(bad)?;
    let (why, mapped) = rest.split_at_checked(u64::from_le_bytes(*len) as usize).ok_or_else(bad)?;
    let mapped = mapped.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect();
    Ok((String::from_utf8_lossy(why).into_owned(), mapped))
}

fn read_hello(p: usize, told: &[u8]) -> Result<Hello, String> {
    let hello = bytemuck::try_pod_read_unaligned::<Hello>(told).ok();
    let hello = hello.filter(|h| h.magic == MAGIC && h.ranks > 0 && shape_is_good(h));
    hello.ok_or_else(|| format!("process {p} was built with another version of partage; rebuild it"))
}

/// The other process's numbers are used in arithmetic; they must be such as `attach` makes.
fn shape_is_good(h: &Hello) -> bool {
    let huge = HUGE as u64;
    h.segment.is_multiple_of(huge) && (2 * huge..=MOST_SEGMENT).contains(&h.segment) && h.radix < 1 << 16
}

/// Where ranks of one machine may run, whichever node they are said to be on.
struct Room {
    /// The cores of each.
    masks: Vec<Vec<usize>>,
    /// Cores' worth of time for all of them.
    quota: Option<f64>,
}

impl Room {
    /// By all processes of the machine of this one.
    fn of(told: &[Hello], me: usize) -> Room {
        let told: Vec<&Hello> = told.iter().filter(|h| h.network.machine == told[me].network.machine).collect();
        let mut masks = vec![];
        for h in &told {
            let allowed: Vec<usize> = (0..1024).filter(|c| h.cores[c / 64] >> (c % 64) & 1 == 1).collect();
            for _ in 0..h.ranks {
                let bound = || vec![allowed[masks.len() % allowed.len()]];
                masks.push(if h.bind != 0 && !allowed.is_empty() { bound() } else { allowed.clone() });
            }
        }
        let quota = told.iter().map(|h| h.quota).filter(|&q| q > 0).min();
        Room { masks, quota: quota.map(|q| q as f64 / 1000.0) }
    }

    /// How many of them can run at the same time.
    fn cores(&self) -> usize {
        let all: std::collections::BTreeSet<usize> = self.masks.iter().flatten().copied().collect();
        let most = self.quota.map_or(usize::MAX, |quota| quota as usize);
        all.len().min(most).max(1)
    }
}

fn judge_cores(told: &[Hello], me: usize) -> Cores {
    let Room { masks, quota } = Room::of(told, me);
    if topology::have_own_cores(&masks, quota) { Cores::Own } else { Cores::Shared }
}

/// Are signals light on a node of these processes?
fn are_light<'h>(mut of_node: impl Iterator<Item = &'h Hello>, cores: Cores) -> bool {
    of_node.all(|h| h.light > u64::from(cores == Cores::Shared))
}

fn mask_of(cores: &[usize]) -> [u64; 16] {
    let mut mask = [0; 16];
    for c in cores.iter().filter(|&&c| c < 1024) {
        mask[c / 64] |= 1 << (c % 64);
    }
    mask
}

fn random_cookie() -> [u64; 2] {
    use std::hash::{BuildHasher, RandomState};
    // The standard library's hasher keys come from the kernel's random numbers.
    [0, 1].map(|i| RandomState::new().hash_one((i, std::process::id())))
}

fn fixed(s: &str) -> [u8; 64] {
    let mut out = [0; 64];
    let n = s.len().min(63);
    out[..n].copy_from_slice(&s.as_bytes()[..n]);
    out
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `1.5 GiB`, for messages.
pub fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", n as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", n as f64 / 1048576.0),
        _ => format!("{:.1} GiB", n as f64 / 1073741824.0),
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    pub(crate) struct Alone;
    impl Exchange for Alone {
        fn place(&self) -> (usize, usize) {
            (0, 1)
        }
        fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
            Ok(vec![mine.to_vec()])
        }
        fn announce(&mut self, _: &str) {}
    }

    pub(crate) fn config(ranks: usize) -> Config {
        Config {
            ranks,
            segment: Some(8 << 20),
            huge: true,
            bind: false,
            image: [7; 32],
            host: "here".into(),
            node: None,
            network: Default::default(),
            cores: None,
            radix: None,
            word: b"said".to_vec(),
            fences: Fences::Light,
        }
    }

    #[test]
    fn segments_are_apart_and_checked() {
        let node = Arc::new(Node::attach(&config(3), &mut Alone).unwrap());
        assert_eq!(node.word(), b"said");
        // Heaps and window.
        const END: u64 = 10 << 20;
        let reach = node.reach();
        for r in 0..3 {
            reach.put(At { rank: r, offset: 4096 }, 100 + u64::from(r)).unwrap();
            reach.put(At { rank: r, offset: END - 8 }, u64::from(r)).unwrap();
        }
        for r in 0..3 {
            assert_eq!(reach.get::<u64>(At { rank: r, offset: 4096 }), Some(100 + u64::from(r)));
            assert_eq!(reach.get::<u64>(At { rank: r, offset: END - 8 }), Some(u64::from(r)));
        }
        for (rank, offset) in [(0, 0), (0, 4088), (3, 4096), (0, END), (0, END - 4), (1, u64::MAX - 3)] {
            let at = At { rank, offset };
            assert_eq!(reach.get::<u64>(at), None, "{at:?}");
            assert_eq!(reach.put(at, 1u64), None);
            assert!(reach.write(at, &[1; 8]).is_err());
            assert!(reach.read(at, &mut [1; 8]).is_err());
        }
        assert_eq!(reach.get::<u64>(At { rank: 0, offset: 4100 }), None, "not aligned");
        assert!(reach.write(At { rank: 0, offset: 4096 }, &vec![0; 11 << 20]).is_err());
        assert!(reach.write(At { rank: 0, offset: END }, &[]).is_ok(), "nothing, at the very end");
    }

    #[test]
    fn one_process_that_needs_fences_is_enough() {
        let light = |said: &[u64], cores| {
            let told: Vec<_> = said.iter().map(|&light| Hello { light, ..Zeroable::zeroed() }).collect();
            are_light(told.iter(), cores)
        };
        for said in [[1, 1], [1, 2], [2, 2]] {
            assert!(light(&said, Cores::Own), "{said:?}");
            assert_eq!(light(&said, Cores::Shared), said == [2, 2]);
        }
        for said in [[0, 0], [0, 2], [1, 0]] {
            assert!(!light(&said, Cores::Own) && !light(&said, Cores::Shared), "{said:?}");
        }
    }

    #[test]
    fn hellos_from_strangers_are_refused() {
        let good = Hello { magic: MAGIC, ranks: 1, segment: 2 * HUGE as u64, ..Zeroable::zeroed() };
        assert!(read_hello(0, bytemuck::bytes_of(&good)).is_ok());
        assert!(read_hello(0, &[]).is_err());
        assert!(read_hello(0, &bytemuck::bytes_of(&good)[1..]).is_err());
        assert!(read_hello(0, bytemuck::bytes_of(&Hello { magic: 1, ..good })).is_err());
        assert!(read_hello(0, bytemuck::bytes_of(&Hello { ranks: 0, ..good })).is_err());
        for segment in [0, HUGE as u64, 3 * HUGE as u64 + 1, 1 << 45] {
            assert!(read_hello(0, bytemuck::bytes_of(&Hello { segment, ..good })).is_err());
        }
        for bad in [
            "",
            "/proc/self/exe",
            "/dev/zero 0",
            "/proc/self/exe 00",
            "/proc/self/maps 0000000000000000000000000000000f",
        ] {
            assert!(Peek::open(bad).is_none(), "{bad}");
        }
        // Another process's descriptor that is no file of ours.
        assert!(map_peer(1, &Hello { pid: std::process::id(), fd: 0, ..good }, &good).unwrap().is_none());
        assert!(map_peer(1, &Hello { pid: u32::MAX, ..good }, &good).unwrap().is_none());
    }
}
