//! A program that MPI has started, with jobs of ours in it: both work in one process. MPICH is opened at run time.

mod common;

use common::*;
use partage::am::Request;
use partage::prelude::*;
use std::ffi::{CStr, c_int, c_void};

static ADD: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| _ = target.at(p).fetch_add(1));

type Init = unsafe extern "C" fn(*mut c_int, *mut c_void) -> c_int;
type Number = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type AllGather = unsafe extern "C" fn(*const u8, c_int, c_int, *mut u8, c_int, c_int, c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// MPICH, whose handles are numbers.
struct Mpi {
    init: Init,
    rank: Number,
    size: Number,
    all_gather: AllGather,
    finalize: Finalize,
}

const FILE: &CStr = c"libmpich.so.12";
const WORLD: c_int = 0x4400_0000;
const BYTE: c_int = 0x4c00_010d;

impl Mpi {
    fn open() -> Option<Mpi> {
        // SAFETY: a library that is never closed, and the functions that its header declares so.
        unsafe {
            let handle = libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            if handle.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let found = libc::dlsym(handle, name.as_ptr());
                assert!(!found.is_null(), "no {name:?}");
                found
            };
            Some(Mpi {
                init: std::mem::transmute::<*mut c_void, Init>(symbol(c"MPI_Init")),
                rank: std::mem::transmute::<*mut c_void, Number>(symbol(c"MPI_Comm_rank")),
                size: std::mem::transmute::<*mut c_void, Number>(symbol(c"MPI_Comm_size")),
                all_gather: std::mem::transmute::<*mut c_void, AllGather>(symbol(c"MPI_Allgather")),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(symbol(c"MPI_Finalize")),
            })
        }
    }

    fn init(&self) -> (usize, usize) {
        let (mut rank, mut size) = (-1, -1);
        // SAFETY: the first call of MPI, without arguments; then numbers are written to where they go.
        unsafe {
            assert_eq!((self.init)(std::ptr::null_mut(), std::ptr::null_mut()), 0);
            assert_eq!(((self.rank)(WORLD, &mut rank), (self.size)(WORLD, &mut size)), (0, 0));
        }
        (rank as usize, size as usize)
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<(), String> {
        let len = mine.len() as c_int;
        // SAFETY: `all` has room for everybody's bytes (embed promises it), and MPI keeps neither.
        match unsafe { (self.all_gather)(mine.as_ptr(), len, BYTE, all.as_mut_ptr(), len, BYTE, WORLD) } {
            0 => Ok(()),
            code => Err(format!("MPI_Allgather returned {code}")),
        }
    }

    /// All processes by MPI: do they know each other?
    fn works(&self, me: usize, n: usize) {
        let mut all = vec![0; n];
        self.all_gather(&[me as u8 + 1], &mut all).unwrap();
        assert_eq!(all, (1..=n as u8).collect::<Vec<_>>());
    }
}

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    let mpi: &'static Mpi = Box::leak(Box::new(Mpi::open().unwrap()));
    if case.starts_with("without embed") {
        return without_embed(mpi, case.ends_with("ours first"));
    }
    let (me, n) = mpi.init();
    mpi.works(me, n);
    partage::embed(me, n, |mine, all| mpi.all_gather(mine, all)).unwrap();
    let again = partage::embed(me, n, |_, _| Ok(())).unwrap_err().to_string();
    assert!(again.contains("call it once, before the first job"), "{again}");
    let threads = std::env::var("PARTAGE_THREADS").map_or(1, |n| n.parse().unwrap());
    // Jobs and MPI by turns.
    for round in 0..3u64 {
        partage::run(|job| {
            assert_eq!((job.size(), job.rank().index() / threads), (n * threads, me));
            if (case.as_str(), round, job.rank().0) == ("panic", 1, 1) {
                panic!("rank one has had enough");
            }
            job.register_handlers(&[&ADD]);
            let cells = job.alloc_all::<u64>(100).unwrap();
            let right = cells.on(Rank((job.rank().0 + 1) % job.size() as u32));
            right.put(job, round);
            job.am(right.rank(), &ADD, right.add(1), &[]);
            job.quiet();
            job.barrier();
            assert_eq!((cells.get(job), cells.add(1).get(job)), (round, 1));
            assert_eq!(job.value(1u64).sum(), job.size() as u64);
            // By MPI inside a job: its own thread, the first of the process.
            if job.rank().index().is_multiple_of(threads) {
                mpi.works(me, n);
            }
        });
        mpi.works(me, n);
    }
    // SAFETY: the last call of MPI.
    assert_eq!(unsafe { (mpi.finalize)() }, 0);
    println!("both work");
}

/// Both speak to the launcher, one after the other.
fn without_embed(mpi: &Mpi, ours_first: bool) {
    if ours_first {
        partage::run(|job| job.barrier());
    }
    let (me, n) = mpi.init();
    mpi.works(me, n);
    partage::run(|job| assert_eq!(job.value(1usize).sum(), n));
    mpi.works(me, n);
    // SAFETY: the last call of MPI.
    assert_eq!(unsafe { (mpi.finalize)() }, 0);
    println!("both work");
}

fn is_there_mpich() -> bool {
    let there = installed("mpirun.mpich") && Mpi::open().is_some();
    if !there {
        skipped("MPICH is not installed (Debian package mpich)");
    }
    there
}

fn mpirun(processes: &str, case: &str) -> Start {
    program("mpirun.mpich").args(["-n", processes]).arg(this_program()).args(RANKS).env("CASE", case)
}

#[test]
fn mpi_and_partage_in_one_process() {
    if !is_there_mpich() {
        return;
    }
    for (processes, settings) in [
        ("1", &[][..]),
        ("3", &[]),
        ("2", &[("PARTAGE_THREADS", "2")]),
        ("3", &[("PARTAGE_NODE", "process")]),
        ("2", &[("PARTAGE_NODE", "process"), ("PARTAGE_THREADS", "2")]),
    ] {
        if settings.contains(&("PARTAGE_NODE", "process"))
            && let Err(why) = libfabric()
        {
            skipped(&why);
            continue;
        }
        let start = settings.iter().fold(mpirun(processes, "work"), |start, (name, value)| start.env(name, value));
        let ended = start.end();
        assert_eq!(ended.code, 0, "{ended:#?}");
        assert_eq!(ended.out.matches("both work\n").count().to_string(), processes, "{ended:#?}");
    }
}

/// The launcher of MPICH is patient with a second one that speaks to it; others need not be.
#[test]
fn before_and_after_mpi_without_being_embedded() {
    if !is_there_mpich() {
        return;
    }
    for case in ["without embed, ours first", "without embed, theirs first"] {
        let ended = mpirun("2", case).end();
        assert_eq!((ended.code, ended.out.matches("both work\n").count()), (0, 2), "{case}: {ended:#?}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_program() {
    if !is_there_mpich() {
        return;
    }
    let ended = mpirun("3", "panic").end();
    assert!(ended.code != 0 && ended.took < SOON_ACROSS, "{ended:#?}");
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("partage: ")).collect();
    assert!(
        matches!(lines[..], [line] if line.contains("rank 1 on ") && line.contains("rank one has had enough")),
        "{ended:#?}"
    );
}
