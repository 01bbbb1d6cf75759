//! The same by MPI, where one is installed: two processes that its own launcher starts, beside the same by hand; and its
//! [`Collectives`].
//!
//! The library is found at run time. Open MPI and MPICH are told apart by their files, since their handles differ: pointers
//! to objects of the library in the one, numbers in the other. Both fit a register, so one declaration of the functions
//! serves both.

use super::floor::{self, Board, Flagged};
use super::measure::{Measured, Round, Tally};
use super::ranks::now_ns;
use crate::scratch::Scratch;
use clap::Args;
use partage_conduit::shm::segment::{HUGE, Mapping};
use partage_conduit::topology;
use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// An MPI that may be installed.
#[derive(Debug, PartialEq)]
pub struct Library {
    /// What it is called.
    pub name: &'static str,
    launcher: &'static str,
    options: &'static [&'static str],
    /// Those for ranks that share cores: who waits yields.
    sharing: &'static [&'static str],
    /// Those, and the environment, for ranks that share no memory.
    apart: &'static [&'static str],
    apart_env: &'static [(&'static str, &'static str)],
    file: &'static CStr,
    /// The names of its objects, or their numbers: the world, bytes, words, replacing, adding, no hints.
    objects: Objects,
    /// What says that nobody wants to know a status.
    no_status: usize,
}

#[derive(Debug, PartialEq)]
enum Objects {
    Named([&'static CStr; 6]),
    Numbered([usize; 6]),
}

/// Open MPI, 4 and later.
pub static OPEN_MPI: Library = Library {
    name: "openmpi",
    launcher: "mpirun.openmpi",
    options: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    sharing: &["--mca", "mpi_yield_when_idle", "1"],
    apart: &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
    apart_env: &[],
    file: c"libmpi.so.40",
    objects: Objects::Named([
        c"ompi_mpi_comm_world",
        c"ompi_mpi_byte",
        c"ompi_mpi_int64_t",
        c"ompi_mpi_op_replace",
        c"ompi_mpi_op_sum",
        c"ompi_mpi_info_null",
    ]),
    no_status: 0,
};

/// MPICH, 3 and later.
pub static MPICH: Library = Library {
    name: "mpich",
    launcher: "mpirun.mpich",
    options: &[],
    sharing: &[],
    apart: &[],
    apart_env: &[("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", "tcp")],
    file: c"libmpich.so.12",
    objects: Objects::Numbered([0x4400_0000, 0x4c00_010d, 0x4c00_083a, 0x5800_000d, 0x5800_0003, 0x1c00_0000]),
    no_status: 1,
};

/// How MPI brings data and its notification.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Way {
    /// A message, sent and received.
    Send,
    /// A put into a window and, when it is complete, a flag.
    PutFlag,
    /// Over the network: a message, and an empty one as the answer; microseconds of both.
    PingAck,
    /// Over the network: many messages, of which some are under way at any time, and one answer; microseconds of one.
    Stream,
}

impl Way {
    /// Does it go over the network?
    pub fn is_far(self) -> bool {
        matches!(self, Way::PingAck | Way::Stream)
    }
}

impl Library {
    /// Is its launcher there?
    pub fn is_there(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(self.launcher).is_file())
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Library> {
        [&OPEN_MPI, &MPICH].into_iter().find(|l| l.name == name)
    }

    /// Its launcher, for so many ranks of a program that is to be added.
    pub fn command(&self, ranks: usize, share_cores: bool) -> Command {
        let mut command = Command::new(self.launcher);
        command.args(self.options).args(if share_cores { self.sharing } else { &[] });
        command.args(["-n", &ranks.to_string()]);
        command
    }

    /// The same over hosts with so many slots each, which it reaches by a remote shell; it runs itself on one of them. Between hosts
    /// it uses TCP, on a host memory. Who waits yields.
    pub fn add_over_hosts(&self, command: &mut Command, shell: &str, slots: &str, ranks: usize) {
        command.arg(self.launcher).args(self.options).args(self.sharing);
        command.args(["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", shell]);
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self"]);
        command.args(["-H", slots, "-n", &ranks.to_string()]);
    }

    /// What two processes of it measure, and leave there.
    pub fn measure(&self, way: Way, len: usize, read: bool, rounds: usize, out: &Scratch) -> Result<Measured, String> {
        let memory = Scratch::zeroed(LEN)?;
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = self.command(2, false);
        if way.is_far() {
            command.args(self.apart).envs(self.apart_env.iter().copied());
        }
        let way = match way {
            Way::Send => "send",
            Way::PutFlag => "put-flag",
            Way::PingAck => "ping-ack",
            Way::Stream => "stream",
        };
        command.arg(program).args(["bench-mpi", self.name, way]);
        command.args([len.to_string(), read.to_string(), rounds.to_string()]).arg(memory.path()).arg(out.path());
        let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
        let ended = ended.map_err(|e| format!("{}: {e}", self.launcher))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr).trim().replace('\n', " | ");
            return Err(format!("{} ended with {}: {said}", self.launcher, ended.status));
        }
        out.take_text().and_then(|line| line.parse())
    }
}

impl Library {
    fn symbol(&self, handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: a handle of this library, which nobody closes, and a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!found.is_null()).then_some(found).ok_or_else(|| format!("{:?} has no {name:?}", self.file))
    }
}

/// What `bench-mpi` takes.
#[derive(Args)]
pub struct Options {
    library: String,
    way: Way,
    len: usize,
    #[arg(action = clap::ArgAction::Set)]
    read: bool,
    rounds: usize,
    memory: PathBuf,
    out: PathBuf,
}

/// One of the two processes.
pub fn rank(options: &Options) -> i32 {
    match measured(options) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("partage: {why}");
            1
        }
    }
}

fn measured(options: &Options) -> Result<(), String> {
    let library = Library::named(&options.library).ok_or("no such MPI")?;
    let mpi = Mpi::open(library)?;
    let me = mpi.me;
    let cores = topology::allowed_cores();
    // A refusal leaves the process where it is.
    let _ = topology::bind_to(cores[me % cores.len()]);
    let memory = Memory::open(&options.memory)?;
    let places = if options.len > 4096 { 1 } else { PLACES };
    let by_hand: Vec<Flagged> = (0..places).map(|i| memory.parcels(me, i)).collect();
    let mut window = Window::new(&mpi, options.len.max(8), places)?;
    let (src, mut dst) = (vec![7; options.len], vec![0; options.len]);
    let trips = (16 << 20) / (options.len + 2048);
    let (mut turn, mut epoch) = (0, 0);
    let mut meet = || floor::pair_barrier(memory.board, me, &mut epoch);
    meet();
    let handoff = |meet: &mut dyn FnMut()| {
        meet();
        let start = now_ns();
        floor::ping(memory.board, me, 3000);
        (now_ns() - start) as f64 / 6000.0
    };
    let mut sample = |hand: bool, meet: &mut dyn FnMut()| -> Result<f64, String> {
        meet();
        if options.way.is_far() {
            return mpi.far(options.way, options.len);
        }
        let start = now_ns();
        for _ in 0..trips {
            turn += 1;
            let dst = if options.read { &mut dst[..] } else { &mut [] };
            let place = turn as usize % places;
            for step in 0..2 {
                match (step == me, hand) {
                    (true, true) => by_hand[place].send(&src, turn),
                    (false, true) => by_hand[place].receive(dst, turn),
                    (true, false) if options.way == Way::Send => mpi.send(&src)?,
                    (false, false) if options.way == Way::Send => mpi.receive(&mut window.private)?,
                    (true, false) => window.put(&src, place, turn)?,
                    (false, false) => window.take(dst, place, turn),
                }
            }
        }
        Ok((now_ns() - start) as f64 / (2 * trips) as f64)
    };
    let mut tally = Tally::default();
    for round in 0.. {
        let before = handoff(&mut meet);
        let by_hand = !options.way.is_far();
        let first = if by_hand { sample(true, &mut meet)? } else { 0.0 };
        let ours = (sample(false, &mut meet)? + sample(false, &mut meet)?) / 2.0;
        let floor = if by_hand { Some((first + sample(true, &mut meet)?) / 2.0) } else { None };
        let after = handoff(&mut meet);
        // The first one is for pages, caches and branches.
        if round > 0 {
            tally.push(Round { before, after, ours, floor });
        }
        if me == 0 {
            memory.board.over.0.store(tally.is_enough(options.rounds).into(), Relaxed);
        }
        meet();
        if memory.board.over.0.load(Relaxed) != 0 {
            break;
        }
        meet();
    }
    if me == 0 {
        let out = &options.out;
        std::fs::write(out, tally.measured().line()).map_err(|e| format!("{}: {e}", out.display()))?;
    }
    window.free()?;
    mpi.finalize()
}

/// Messages of a sample, each answered; or bytes of a stream, and how many are under way.
const TRIPS: usize = 500;
const VOLUME: usize = 32 << 20;
const UNDER_WAY: usize = 4 << 20;
/// Places that are used in turn.
const PLACES: usize = 16;
/// Bytes of the memory that both map.
const LEN: usize = 2 * HUGE + 2 * PLACES * STRIDE;
const STRIDE: usize = 128 << 10;

/// Memory that both processes map.
struct Memory {
    map: &'static Mapping,
    board: &'static Board,
}

impl Memory {
    fn open(path: &Path) -> Result<Memory, String> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
        let map = Mapping::new(file.as_fd(), LEN, true).map_err(|e| e.to_string())?;
        let map: &'static Mapping = Box::leak(Box::new(map));
        // SAFETY: aligned to a page and longer than a board, zeroed, mapped for ever, and used by nobody but through such
        // references to atomics.
        Ok(Memory { map, board: unsafe { &*map.base().cast::<Board>() } })
    }

    /// Both ends of the i-th place.
    fn parcels(&self, me: usize, i: usize) -> Flagged<'static> {
        let place = |receiver: usize| {
            // SAFETY: inside the mapping.
            unsafe { self.map.base().add(HUGE + (2 * i + receiver) * STRIDE) }
        };
        // SAFETY: apart from each other and long enough for a parcel, zeroed, mapped for ever; only such ends use them.
        unsafe { Flagged::at(place(1 - me), place(me)) }
    }
}

type Send = unsafe extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, usize) -> c_int;
type SendLater = unsafe extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
type ReceiveLater = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
type Wait = unsafe extern "C" fn(*mut usize, usize) -> c_int;
type Allocate = unsafe extern "C" fn(isize, c_int, usize, usize, *mut *mut u8, *mut usize) -> c_int;
type Put = unsafe extern "C" fn(*const c_void, c_int, usize, c_int, isize, c_int, usize, usize) -> c_int;
type OnOne = unsafe extern "C" fn(usize) -> c_int;
type OnRank = unsafe extern "C" fn(c_int, usize) -> c_int;
type Free = unsafe extern "C" fn(*mut usize) -> c_int;
type Probe = unsafe extern "C" fn(c_int, c_int, usize, *mut c_int, usize) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Accumulate = unsafe extern "C" fn(*const c_void, c_int, usize, c_int, isize, c_int, usize, usize, usize) -> c_int;

/// MPI's functions and objects, as this process uses them.
pub struct Mpi {
    /// The rank of this process.
    pub me: usize,
    library: &'static Library,
    handle: *mut c_void,
    world: usize,
    byte: usize,
    word: usize,
    replace: usize,
    add: usize,
    no_info: usize,
    no_status: usize,
    send: Send,
    receive: Receive,
    send_later: SendLater,
    receive_later: ReceiveLater,
    wait: Wait,
    allocate: Allocate,
    put: Put,
    accumulate: Accumulate,
    flush: OnRank,
    lock_all: OnRank,
    unlock_all: OnOne,
    free: Free,
    sync: OnOne,
    probe: Probe,
    finalize: Finalize,
}

fn good(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what} says {code}")) }
}

impl Mpi {
    /// Begins to use it.
    pub fn open(library: &'static Library) -> Result<Mpi, String> {
        let missing = || format!("{:?} cannot be opened", library.file);
        // SAFETY: a C string. Its parts look for its symbols in the process.
        let handle = unsafe { libc::dlopen(library.file.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(missing());
        }
        let symbol = |name: &CStr| library.symbol(handle, name);
        let [world, byte, word, replace, add, no_info] = match &library.objects {
            Objects::Numbered(numbers) => *numbers,
            Objects::Named(names) => {
                let mut addresses = [0; 6];
                for (address, name) in addresses.iter_mut().zip(names) {
                    *address = symbol(name)?.expose_provenance();
                }
                addresses
            }
        };
        // SAFETY: each is the function of that name of the standard's C binding. Handles are passed in registers: whole where
        // they are pointers, their lower half where they are numbers.
        unsafe {
            let begin: unsafe extern "C" fn(*mut c_int, *mut c_void) -> c_int =
                std::mem::transmute::<*mut c_void, _>(symbol(c"MPI_Init")?);
            let rank: unsafe extern "C" fn(usize, *mut c_int) -> c_int =
                std::mem::transmute::<*mut c_void, _>(symbol(c"MPI_Comm_rank")?);
            good("MPI_Init", begin(std::ptr::null_mut(), std::ptr::null_mut()))?;
            let mut me = 0;
            good("MPI_Comm_rank", rank(world, &raw mut me))?;
            Ok(Mpi {
                me: me as usize,
                library,
                handle,
                world,
                byte,
                word,
                replace,
                add,
                no_info,
                no_status: library.no_status,
                send: std::mem::transmute::<*mut c_void, Send>(symbol(c"MPI_Send")?),
                receive: std::mem::transmute::<*mut c_void, Receive>(symbol(c"MPI_Recv")?),
                send_later: std::mem::transmute::<*mut c_void, SendLater>(symbol(c"MPI_Isend")?),
                receive_later: std::mem::transmute::<*mut c_void, ReceiveLater>(symbol(c"MPI_Irecv")?),
                wait: std::mem::transmute::<*mut c_void, Wait>(symbol(c"MPI_Wait")?),
                allocate: std::mem::transmute::<*mut c_void, Allocate>(symbol(c"MPI_Win_allocate")?),
                put: std::mem::transmute::<*mut c_void, Put>(symbol(c"MPI_Put")?),
                accumulate: std::mem::transmute::<*mut c_void, Accumulate>(symbol(c"MPI_Accumulate")?),
                flush: std::mem::transmute::<*mut c_void, OnRank>(symbol(c"MPI_Win_flush")?),
                lock_all: std::mem::transmute::<*mut c_void, OnRank>(symbol(c"MPI_Win_lock_all")?),
                unlock_all: std::mem::transmute::<*mut c_void, OnOne>(symbol(c"MPI_Win_unlock_all")?),
                free: std::mem::transmute::<*mut c_void, Free>(symbol(c"MPI_Win_free")?),
                sync: std::mem::transmute::<*mut c_void, OnOne>(symbol(c"MPI_Win_sync")?),
                probe: std::mem::transmute::<*mut c_void, Probe>(symbol(c"MPI_Iprobe")?),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(symbol(c"MPI_Finalize")?),
            })
        }
    }

    fn peer(&self) -> c_int {
        1 - self.me as c_int
    }

    fn send(&self, src: &[u8]) -> Result<(), String> {
        // SAFETY: so many bytes, which it reads before it returns.
        let code =
            unsafe { (self.send)(src.as_ptr().cast(), src.len() as c_int, self.byte, self.peer(), 0, self.world) };
        good("MPI_Send", code)
    }

    fn receive(&self, dst: &mut [u8]) -> Result<(), String> {
        let (p, n) = (dst.as_mut_ptr().cast(), dst.len() as c_int);
        // SAFETY: so many bytes, which it has written when it returns.
        let code = unsafe { (self.receive)(p, n, self.byte, self.peer(), 0, self.world, self.no_status) };
        good("MPI_Recv", code)
    }

    /// Microseconds of a message from the first process to the second, and of its answer or its share of one.
    fn far(&self, way: Way, len: usize) -> Result<f64, String> {
        // Times that an answer is awaited, messages before each, and how many of those are under way.
        let (times, messages, under_way) = match way {
            Way::Stream => (1, (VOLUME / len).max(1), (UNDER_WAY / len).max(1)),
            _ => (TRIPS, 1, 1),
        };
        let (mut bytes, start) = (vec![1; len], now_ns());
        let (p, n, to) = (bytes.as_mut_ptr().cast::<c_void>(), len as c_int, self.peer());
        // SAFETY: a request of below, once.
        let wait = |request: &mut usize| good("MPI_Wait", unsafe { (self.wait)(request, self.no_status) });
        for _ in 0..times {
            let mut requests = VecDeque::with_capacity(under_way);
            for _ in 0..messages {
                if requests.len() == under_way
                    && let Some(mut oldest) = requests.pop_front()
                {
                    wait(&mut oldest)?;
                }
                let mut request = 0;
                // SAFETY: so many bytes, which live until all requests are waited for below; nobody looks at what is received, so that
                // it is received over itself is no harm. A request is a pointer or a number, and fits.
                let code = unsafe {
                    match self.me {
                        0 => (self.send_later)(p, n, self.byte, to, 0, self.world, &raw mut request),
                        _ => (self.receive_later)(p, n, self.byte, to, 0, self.world, &raw mut request),
                    }
                };
                good("MPI_Isend or MPI_Irecv", code)?;
                requests.push_back(request);
            }
            requests.iter_mut().try_for_each(wait)?;
            if self.me == 0 { self.receive(&mut [])? } else { self.send(&[])? }
        }
        Ok((now_ns() - start) as f64 / (times * messages) as f64 / 1e3)
    }

    /// Ends its use.
    pub fn finalize(&self) -> Result<(), String> {
        // SAFETY: the last call.
        good("MPI_Finalize", unsafe { (self.finalize)() })
    }
}

type Rooted = unsafe extern "C" fn(*const c_void, c_int, usize, *mut c_void, c_int, usize, c_int, usize) -> c_int;
type Unrooted = unsafe extern "C" fn(*const c_void, c_int, usize, *mut c_void, c_int, usize, usize) -> c_int;
type Broadcast = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, usize) -> c_int;

type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, c_int, usize) -> c_int;
type Combined = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, usize) -> c_int;

/// MPI's collectives, on blocks of words.
pub struct Collectives<'m> {
    mpi: &'m Mpi,
    /// How many ranks there are.
    pub ranks: usize,
    broadcast: Broadcast,
    scatter: Rooted,
    gather: Rooted,
    gather_all: Unrooted,
    exchange: Unrooted,
    reduce: Reduce,
    all_reduce: Combined,
    scan: Combined,
    barrier: OnOne,
}

impl<'m> Collectives<'m> {
    /// Those of all ranks.
    pub fn new(mpi: &'m Mpi) -> Result<Collectives<'m>, String> {
        let symbol = |name: &CStr| mpi.library.symbol(mpi.handle, name);
        let mut ranks = 0;
        // SAFETY: each is the function of that name of the standard's C binding; handles are passed as in `Mpi::open`.
        unsafe {
            let size: unsafe extern "C" fn(usize, *mut c_int) -> c_int =
                std::mem::transmute::<*mut c_void, _>(symbol(c"MPI_Comm_size")?);
            good("MPI_Comm_size", size(mpi.world, &raw mut ranks))?;
            Ok(Collectives {
                mpi,
                ranks: ranks as usize,
                broadcast: std::mem::transmute::<*mut c_void, Broadcast>(symbol(c"MPI_Bcast")?),
                scatter: std::mem::transmute::<*mut c_void, Rooted>(symbol(c"MPI_Scatter")?),
                gather: std::mem::transmute::<*mut c_void, Rooted>(symbol(c"MPI_Gather")?),
                gather_all: std::mem::transmute::<*mut c_void, Unrooted>(symbol(c"MPI_Allgather")?),
                exchange: std::mem::transmute::<*mut c_void, Unrooted>(symbol(c"MPI_Alltoall")?),
                reduce: std::mem::transmute::<*mut c_void, Reduce>(symbol(c"MPI_Reduce")?),
                all_reduce: std::mem::transmute::<*mut c_void, Combined>(symbol(c"MPI_Allreduce")?),
                scan: std::mem::transmute::<*mut c_void, Combined>(symbol(c"MPI_Scan")?),
                barrier: std::mem::transmute::<*mut c_void, OnOne>(symbol(c"MPI_Barrier")?),
            })
        }
    }

    /// In place, as MPI has it.
    pub fn broadcast(&self, block: &mut [u64], root: usize) -> Result<(), String> {
        let (p, n, mpi) = (block.as_mut_ptr().cast(), block.len() as c_int, self.mpi);
        // SAFETY: so many words, which it has read or written when it returns.
        good("MPI_Bcast", unsafe { (self.broadcast)(p, n, mpi.word, root as c_int, mpi.world) })
    }

    /// The root's blocks, one to each.
    pub fn scatter(&self, src: &[u64], dst: &mut [u64], root: usize) -> Result<(), String> {
        assert!(self.mpi.me != root || src.len() == self.ranks * dst.len());
        let (p, q, n, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), dst.len() as c_int, self.mpi);
        // SAFETY: `n` words for each rank at the root, `n` here.
        good("MPI_Scatter", unsafe { (self.scatter)(p, n, mpi.word, q, n, mpi.word, root as c_int, mpi.world) })
    }

    /// A block of each, to the root.
    pub fn gather(&self, src: &[u64], dst: &mut [u64], root: usize) -> Result<(), String> {
        assert!(self.mpi.me != root || dst.len() == self.ranks * src.len());
        let (p, q, n, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, self.mpi);
        // SAFETY: `n` words here, `n` for each rank at the root.
        good("MPI_Gather", unsafe { (self.gather)(p, n, mpi.word, q, n, mpi.word, root as c_int, mpi.world) })
    }

    /// A block of each, to all.
    pub fn gather_all(&self, src: &[u64], dst: &mut [u64]) -> Result<(), String> {
        assert_eq!(dst.len(), self.ranks * src.len());
        let (p, q, n, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, self.mpi);
        // SAFETY: `n` words here, `n` for each rank there.
        good("MPI_Allgather", unsafe { (self.gather_all)(p, n, mpi.word, q, n, mpi.word, mpi.world) })
    }

    /// Blocks of each, one to each.
    pub fn exchange(&self, src: &[u64], dst: &mut [u64]) -> Result<(), String> {
        assert!(src.len() == dst.len() && src.len().is_multiple_of(self.ranks));
        let n = (src.len() / self.ranks) as c_int;
        let (p, q, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), self.mpi);
        // SAFETY: `n` words for each rank in both.
        good("MPI_Alltoall", unsafe { (self.exchange)(p, n, mpi.word, q, n, mpi.word, mpi.world) })
    }

    /// Sums, to the root.
    pub fn reduce(&self, src: &[u64], dst: &mut [u64], root: usize) -> Result<(), String> {
        assert_eq!(src.len(), dst.len());
        let (p, q, n, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, self.mpi);
        // SAFETY: `n` words in both.
        good("MPI_Reduce", unsafe { (self.reduce)(p, q, n, mpi.word, mpi.add, root as c_int, mpi.world) })
    }

    /// Sums, to all.
    pub fn all_reduce(&self, src: &[u64], dst: &mut [u64]) -> Result<(), String> {
        self.combined("MPI_Allreduce", self.all_reduce, src, dst)
    }

    /// Waits for all.
    pub fn barrier(&self) -> Result<(), String> {
        // SAFETY: of all ranks.
        good("MPI_Barrier", unsafe { (self.barrier)(self.mpi.world) })
    }

    /// Sums of all ranks up to each.
    pub fn scan(&self, src: &[u64], dst: &mut [u64]) -> Result<(), String> {
        self.combined("MPI_Scan", self.scan, src, dst)
    }

    fn combined(&self, name: &str, f: Combined, src: &[u64], dst: &mut [u64]) -> Result<(), String> {
        assert_eq!(src.len(), dst.len());
        let (p, q, n, mpi) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, self.mpi);
        // SAFETY: `n` words in both.
        good(name, unsafe { f(p, q, n, mpi.word, mpi.add, mpi.world) })
    }
}

/// A window of each process: places with a flag each, in a line of its own.
struct Window<'m> {
    mpi: &'m Mpi,
    window: usize,
    base: *mut u8,
    stride: usize,
    len: usize,
    /// What messages are received into.
    private: Vec<u8>,
}

impl<'m> Window<'m> {
    fn new(mpi: &'m Mpi, len: usize, places: usize) -> Result<Window<'m>, String> {
        let stride = len.next_multiple_of(64) + 64;
        let (mut base, mut window) = (std::ptr::null_mut(), 0);
        let size = (stride * places + 64) as isize;
        // SAFETY: places for what it gives; nobody uses the memory otherwise.
        let code = unsafe { (mpi.allocate)(size, 1, mpi.no_info, mpi.world, &raw mut base, &raw mut window) };
        good("MPI_Win_allocate", code)?;
        // SAFETY: a window that was just made, whose memory has so many bytes.
        let code = unsafe {
            base.write_bytes(0, size as usize);
            (mpi.lock_all)(0, window)
        };
        good("MPI_Win_lock_all", code)?;
        Ok(Window { mpi, window, base, stride, len, private: vec![0; len] })
    }

    /// Puts, and when that is complete sets the flag.
    fn put(&self, src: &[u8], place: usize, turn: u64) -> Result<(), String> {
        let (mpi, at, turn) = (self.mpi, (place * self.stride) as isize, turn as i64);
        let (p, n, to) = (src.as_ptr().cast(), src.len() as c_int, mpi.peer());
        let flag = at + (self.stride - 64) as isize;
        // SAFETY: inside the other's window; the source is read before the flushes return.
        unsafe {
            good("MPI_Put", (mpi.put)(p, n, mpi.byte, to, at, n, mpi.byte, self.window))?;
            good("MPI_Win_flush", (mpi.flush)(to, self.window))?;
            let (p, replace) = ((&raw const turn).cast(), mpi.replace);
            good("MPI_Accumulate", (mpi.accumulate)(p, 1, mpi.word, to, flag, 1, mpi.word, replace, self.window))?;
            good("MPI_Win_flush", (mpi.flush)(to, self.window))
        }
    }

    /// Waits for the flag, and reads what has come if there is anything to read it into.
    fn take(&self, dst: &mut [u8], place: usize, turn: u64) {
        assert!(dst.len() <= self.len);
        let at = place * self.stride;
        // SAFETY: a word of my window, which the other writes as one.
        let flag = unsafe { &*self.base.add(at + self.stride - 64).cast::<AtomicU64>() };
        loop {
            // SAFETY: of a window that is locked.
            unsafe { (self.mpi.sync)(self.window) };
            if flag.load(Acquire) == turn {
                break;
            }
            let (mpi, mut found) = (self.mpi, 0);
            // SAFETY: asks for a message that nobody sends: what it takes to make progress.
            unsafe { (mpi.probe)(mpi.peer(), 0, mpi.world, &raw mut found, mpi.no_status) };
        }
        // SAFETY: inside my window; the other writes it again when it has heard from me.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), dst.as_mut_ptr(), dst.len()) };
    }

    fn free(&mut self) -> Result<(), String> {
        // SAFETY: a window that nobody uses any more.
        unsafe {
            good("MPI_Win_unlock_all", (self.mpi.unlock_all)(self.window))?;
            good("MPI_Win_free", (self.mpi.free)(&raw mut self.window))
        }
    }
}
