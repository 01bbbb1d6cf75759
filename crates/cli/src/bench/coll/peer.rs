//! The side of an MPI.

use super::super::mpi::{Collectives, Library, Mpi};
use super::cells::Operation;
use super::stage::{By, Sample, Stage};
use super::{CHUNK, SideOptions, read, write};
use crate::bench::network::hosts::take_cores;
use partage_conduit::topology;

/// A rank of it, until the driver has enough.
pub fn serve(stage: &Stage, options: &SideOptions, library: &'static Library) -> Result<(), String> {
    let mpi = Mpi::open(library)?;
    let collectives = Collectives::new(&mpi)?;
    let cores = topology::allowed_cores();
    match options.hosts.len() {
        // A refusal leaves the process where it is.
        0 => _ = topology::bind_to(cores[mpi.me % cores.len()]),
        hosts => take_cores(&options.hosts, mpi.me * hosts / collectives.ranks),
    }
    let mut buffers = Buffers { src: vec![], dst: vec![], chunk: [0; CHUNK] };
    let prepare = |b: &mut Buffers, s: &Sample| {
        let wide = s.bytes / 8 * collectives.ranks;
        if b.src.len() != wide {
            (b.src, b.dst) = (vec![1; wide], vec![1; wide]);
        }
        Ok(())
    };
    stage.serve(options.side, mpi.me, collectives.ranks, &mut buffers, prepare, |b, s, turn, times| {
        b.call(&collectives, mpi.me, s, turn, times)
    })?;
    mpi.finalize()
}

/// A block for each rank.
struct Buffers {
    src: Vec<u64>,
    dst: Vec<u64>,
    chunk: [u64; CHUNK],
}

impl Buffers {
    fn call(&mut self, c: &Collectives, me: usize, s: &Sample, turn: u64, times: u64) -> Result<(), String> {
        let (n, ranks) = (s.bytes / 8, c.ranks);
        let Buffers { src, dst, chunk } = self;
        for turn in turn..turn + times {
            let root = s.root(turn, ranks);
            let (written, got) = s.touches(root == me, ranks);
            write(written * n, turn, chunk, |at, chunk| src[at..at + chunk.len()].copy_from_slice(chunk));
            match s.operation {
                _ if s.by == By::Nobody => c.barrier()?,
                Operation::Broadcast => c.broadcast(&mut src[..n], root)?,
                Operation::Scatter => c.scatter(src, &mut dst[..n], root)?,
                Operation::Gather => c.gather(&src[..n], dst, root)?,
                Operation::GatherAll => c.gather_all(&src[..n], dst)?,
                Operation::Exchange | Operation::Permute => c.exchange(src, dst)?,
                Operation::Reduce => c.reduce(&src[..n], &mut dst[..n], root)?,
                Operation::AllReduce => c.all_reduce(&src[..n], &mut dst[..n])?,
                Operation::Barrier => c.barrier()?,
                Operation::Prefix => c.scan(&src[..n], &mut dst[..n])?,
            }
            // A broadcast is in place: what it brings is where it begins.
            let got_in = if s.operation == Operation::Broadcast { &*src } else { &*dst };
            read(got * n, chunk, |at, chunk| chunk.copy_from_slice(&got_in[at..at + chunk.len()]));
        }
        Ok(())
    }
}
