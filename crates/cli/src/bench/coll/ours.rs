//! Our side: the library, and beside it the same by hand.

use super::cells::{Mode, Operation};
use super::hand::{Hand, Words};
use super::stage::{By, Sample, Stage};
use super::{CHUNK, SideOptions, read, write};
use crate::bench::network::hosts::take_cores;
use partage::coll::{Collective, Meets, Ready};
use partage::prelude::*;

/// A rank of it, until the driver has enough.
pub fn serve(stage: &Stage, options: &SideOptions) -> Result<(), String> {
    let node = std::env::var("PARTAGE_NODE").unwrap_or_default();
    if let Some(host) = options.hosts.iter().position(|name| *name == node) {
        take_cores(&options.hosts, host);
    }
    partage::run(|job| {
        let hand = if job.size() == 2 { Some(Hand::new(job).map_err(|e| e.to_string())?) } else { None };
        let mut side = Ours { job, options, hand, buffers: None };
        let (me, ranks) = (job.rank().index(), job.size());
        stage.serve(options.side, me, ranks, &mut side, Ours::prepare, |side, s, turn, times| {
            side.call(s, turn, times);
            Ok(())
        })
    });
    Ok(())
}

struct Ours<'j> {
    job: &'j Job,
    options: &'j SideOptions,
    hand: Option<Hand<'j>>,
    buffers: Option<Buffers>,
}

/// A block of each rank, and a block for each on each, shared or private.
struct Buffers {
    bytes: usize,
    is_private: bool,
    shared: Set<SharedArray<u64>>,
    private: Set<Vec<u64>>,
    words: Option<Words>,
    chunk: [u64; CHUNK],
}

struct Set<B> {
    src: B,
    dst: B,
    wide_src: B,
    wide_dst: B,
}

impl Ours<'_> {
    /// Collective.
    fn prepare(&mut self, s: &Sample) -> Result<(), String> {
        // A barrier has none, which is no array.
        let bytes = s.bytes.max(8);
        if self.buffers.as_ref().is_some_and(|b| (b.bytes, b.is_private) == (bytes, s.private)) {
            return Ok(());
        }
        self.buffers = None;
        let (job, n) = (self.job, bytes / 8);
        let array = |n| job.array::<u64>(Layout::per_rank(n)).map_err(|e| e.to_string());
        // Of shared ones there is always a word, so that making them is the same for all.
        let (small, wide) = if s.private { (1, 1) } else { (n, n * job.size()) };
        let mut shared = Set { src: array(small)?, dst: array(small)?, wide_src: array(wide)?, wide_dst: array(wide)? };
        let own = |blocks: usize| vec![1; if s.private { n * blocks } else { 0 }];
        let private = Set { src: own(1), dst: own(1), wide_src: own(job.size()), wide_dst: own(job.size()) };
        let words = (job.size() == 2 && n == 1 && !s.private).then(|| {
            let Set { src, dst, wide_src, wide_dst } = &mut shared;
            Words::new(job, [src, dst], [wide_src, wide_dst])
        });
        self.buffers = Some(Buffers { bytes, is_private: s.private, shared, private, words, chunk: [0; CHUNK] });
        Ok(())
    }

    fn call(&mut self, s: &Sample, turn: u64, times: u64) {
        let (job, private) = (self.job, s.private);
        let algorithm = match s.by {
            By::Library => self.options.algorithm.as_deref(),
            By::Named(n) => Some(self.options.named[n].as_str()),
            By::Hand | By::Nobody => None,
        };
        let buffers = self.buffers.as_mut().expect("what was prepared");
        let (me, ranks) = (job.rank().index(), job.size());
        let to = TeamRank(job.neighbor(1).0);
        let sync = match s.mode {
            Mode::AllAll => (In::All, Out::All),
            Mode::MyMy => (In::My, Out::My),
            Mode::NoNo => (In::No, Out::No),
        };
        for turn in turn..turn + times {
            let root = s.root(turn, ranks);
            if s.touched {
                buffers.touch(s, root == me, ranks, turn, private);
            }
            let at = TeamRank(root as u32);
            macro_rules! calls {
                ($b:expr) => {{
                    let Set { src, dst, wide_src, wide_dst } = &mut $b;
                    match s.operation {
                        Operation::Broadcast => run(job.broadcast(src).root(at), sync, algorithm),
                        Operation::Scatter => run(job.scatter(&*wide_src).to(dst).root(at), sync, algorithm),
                        Operation::Gather => run(job.gather(&*src).to(wide_dst).root(at), sync, algorithm),
                        Operation::GatherAll => run(job.gather_all(&*src).to(wide_dst), sync, algorithm),
                        Operation::Exchange => run(job.exchange(&*wide_src).to(wide_dst), sync, algorithm),
                        Operation::Permute => run(job.permute(&*src, to).to(dst), sync, algorithm),
                        Operation::Reduce => run(job.reduce(&*src, Sum).to(dst).root(at), sync, algorithm),
                        Operation::AllReduce => run(job.all_reduce(&*src, Sum).to(dst), sync, algorithm),
                        Operation::Barrier => job.barrier(),
                        Operation::Prefix => run(job.prefix_reduce(&*src, Sum).to(dst), sync, algorithm),
                    }
                }};
            }
            match (s.by, &mut self.hand, &buffers.words) {
                (By::Hand, Some(hand), Some(words)) => hand.call(words, s, root),
                (By::Nobody, ..) => job.barrier(),
                _ if private => calls!(buffers.private),
                _ => calls!(buffers.shared),
            }
            if s.touched {
                buffers.look(s, root == me, ranks, private);
            }
        }
    }
}

#[inline(always)]
fn run<M: Meets<u64>>(what: Collective<'_, u64, Ready, M>, sync: (In, Out), algorithm: Option<&str>) {
    let what = what.sync(sync.0, sync.1);
    match algorithm {
        Some(name) => what.algorithm(name).run(),
        None => what.run(),
    }
}

impl Buffers {
    /// Writes what this rank passes.
    #[inline(always)]
    fn touch(&mut self, s: &Sample, is_root: bool, ranks: usize, turn: u64, private: bool) {
        let (blocks, _) = s.touches(is_root, ranks);
        let len = blocks * self.bytes / 8;
        let wide = matches!(s.operation, Operation::Scatter | Operation::Exchange);
        if private {
            let src = if wide { &mut self.private.wide_src } else { &mut self.private.src };
            write(len, turn, &mut self.chunk, |at, chunk| src[at..at + chunk.len()].copy_from_slice(chunk));
        } else {
            let src = if wide { self.shared.wide_src.cells() } else { self.shared.src.cells() };
            write(len, turn, &mut self.chunk, |at, chunk| src.write(at, chunk));
        }
    }

    /// Reads what this rank got.
    #[inline(always)]
    fn look(&mut self, s: &Sample, is_root: bool, ranks: usize, private: bool) {
        let (_, blocks) = s.touches(is_root, ranks);
        let len = blocks * self.bytes / 8;
        macro_rules! result {
            ($set:expr) => {
                match s.operation {
                    Operation::Broadcast => &$set.src,
                    Operation::Scatter | Operation::Permute => &$set.dst,
                    Operation::Reduce | Operation::AllReduce | Operation::Prefix => &$set.dst,
                    Operation::Gather | Operation::GatherAll | Operation::Exchange => &$set.wide_dst,
                    // Nothing is read.
                    Operation::Barrier => &$set.dst,
                }
            };
        }
        if private {
            let dst = result!(self.private);
            read(len, &mut self.chunk, |at, chunk| chunk.copy_from_slice(&dst[at..at + chunk.len()]));
        } else {
            let dst = result!(self.shared).cells();
            read(len, &mut self.chunk, |at, chunk| dst.read(at, chunk));
        }
    }
}
