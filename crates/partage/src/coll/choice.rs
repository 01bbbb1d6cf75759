//! From a call to the plans of this rank: which algorithm, in how many parts; remembered by what the call is like.

use super::engine::Engine;
use crate::job::Inner;
use partage_conduit::coll::LETTER;
use partage_conduit::wait::Cores;
use partage_plan::coll::{Algorithm, Flow, In, Kind, Op, OpKind, Out, Plan, Setting, Shape, Step, Way};
use std::fmt;
use std::rc::Rc;

/// Bytes that pass through scratch at a time, unless the algorithm says otherwise: of short blocks, and of long ones.
const PACKETS: [usize; 2] = [16 << 10, 64 << 10];
/// Blocks up to this length are short.
const SHORT: usize = 64 << 10;
/// How many shapes are remembered.
const REMEMBERED: usize = 64;
/// The source of a permutation that is not known yet.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// What plans depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub op: OpKind,
    /// The root; of a permutation the rank to which this one's block goes.
    pub root: u32,
    /// Of a permutation the rank whose block comes here.
    pub from: u32,
    /// Bytes of a block.
    pub len: usize,
    pub sync: (In, Out),
    pub source: Kind,
    pub dest: Kind,
    pub in_place: bool,
    /// The one that was asked for.
    pub algorithm: Option<Algorithm>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)?;
        match self.op {
            OpKind::Broadcast | OpKind::Scatter | OpKind::Gather => write!(f, ", root {}", self.root),
            OpKind::Permute => write!(f, " to rank {}", self.root),
            OpKind::GatherAll | OpKind::Exchange => Ok(()),
        }
    }
}

/// The plans of this rank for a key.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub algorithm: Algorithm,
    /// How many bytes of each block pass in one part, and how many parts there are.
    pub part: usize,
    pub parts: usize,
    full: Plan,
    /// Of the last part, if it is shorter.
    last: Option<Plan>,
}

impl Prepared {
    #[inline(always)]
    pub fn plan(&self, part: usize) -> &Plan {
        match &self.last {
            Some(last) if part + 1 == self.parts => last,
            _ => &self.full,
        }
    }
}

/// Plans that were made, by their keys.
#[derive(Debug)]
pub(crate) struct Cache(Box<[Option<(Key, Rc<Prepared>)>]>);

impl Default for Cache {
    fn default() -> Cache {
        Cache((0..REMEMBERED).map(|_| None).collect())
    }
}

impl Cache {
    #[inline(always)]
    fn slot(&mut self, key: &Key) -> &mut Option<(Key, Rc<Prepared>)> {
        let hash = key.op as usize * 11 + key.root as usize + key.from as usize * 3 + key.len.trailing_zeros() as usize;
        &mut self.0[hash % REMEMBERED]
    }
}

impl Inner {
    /// The plans for a call of this kind. Whatever it says is the same on all ranks, but for the steps.
    #[inline]
    pub(super) fn prepared(&self, key: &Key) -> Rc<Prepared> {
        let mut cache = self.engine.prepared.borrow_mut();
        let slot = cache.slot(key);
        match slot {
            Some((k, prepared)) if k == key => prepared.clone(),
            _ => {
                let prepared = Rc::new(self.prepare(key));
                *slot = Some((key.clone(), prepared.clone()));
                prepared
            }
        }
    }

    #[cold]
    fn prepare(&self, key: &Key) -> Prepared {
        let Cut { algorithm, part, parts } = self.cut(key);
        let plan = |len: usize| shape(&self.engine, key, &algorithm, len).plan(self.rank.index()).expect("it fits");
        let rest = key.len - (parts - 1) * part;
        let last = (rest < part).then(|| plan(rest));
        Prepared { algorithm, part, parts, full: plan(part.min(key.len)), last }
    }

    /// Which algorithm is taken, and in how many parts a block passes.
    pub(super) fn cut(&self, key: &Key) -> Cut {
        let algorithm = self.choose(key);
        let longest = longest_part(&self.engine, key, &algorithm);
        let usual = PACKETS[usize::from(key.len > SHORT)];
        let part = match (longest, algorithm.packet) {
            (Some(longest), packet) => longest.min(packet.unwrap_or(usual)),
            (None, packet) => packet.unwrap_or(key.len),
        };
        let part = part.min(key.len).max(1);
        Cut { algorithm, part, parts: key.len.div_ceil(part).max(1) }
    }

    fn choose(&self, key: &Key) -> Algorithm {
        let setting = self.setting(key);
        let can = |a: &Algorithm| self.can_run(key, a);
        match &key.algorithm {
            Some(asked) => *asked,
            None => *self.table.choose_if(key.op, &setting, key.len, can),
        }
    }

    /// What is wrong with an algorithm for such a call, if something is.
    pub(super) fn refuses(&self, key: &Key, algorithm: &Algorithm) -> Option<&'static str> {
        let alone = matches!(algorithm.flow, Flow::Leader(_) | Flow::Last);
        match () {
            () if !algorithm.fits(key.op, &self.setting(key)) => {
                Some("it does not do that, with such buffers, in that sync mode")
            }
            () if alone && key.op == OpKind::Permute => Some("no rank knows the whole permutation"),
            () if alone && !self.engine.desk.reaches_all() => Some("ranks are on several nodes"),
            () if !self.can_run(key, algorithm) => Some("a letter has 56 bytes"),
            () => None,
        }
    }

    /// Can this engine run it? The answer is the same on all ranks.
    fn can_run(&self, key: &Key, algorithm: &Algorithm) -> bool {
        match (algorithm.flow, algorithm.way) {
            (Flow::Leader(_) | Flow::Last, _) => key.op != OpKind::Permute && self.engine.desk.reaches_all(),
            (_, Way::Mail) => {
                let part = algorithm.packet.unwrap_or(key.len).min(key.len);
                part <= LETTER && longest_letter(&self.engine, key, algorithm, part) <= LETTER
            }
            _ => true,
        }
    }

    fn setting(&self, key: &Key) -> Setting {
        Setting {
            ranks: self.size,
            nodes: !self.engine.desk.reaches_all(),
            crowded: self.seat.node().cores() == Cores::Shared,
            sync: key.sync,
            source: key.source,
            dest: key.dest,
            in_place: key.in_place,
        }
    }
}

/// How blocks pass.
pub(super) struct Cut {
    pub algorithm: Algorithm,
    pub part: usize,
    pub parts: usize,
}

fn shape(engine: &Engine, key: &Key, algorithm: &Algorithm, len: usize) -> Shape {
    let (ranks, root, me) = (engine.desk.ranks(), key.root as usize, engine.desk.rank());
    let op = match key.op {
        OpKind::Broadcast => Op::Broadcast { root, pieces: 1 },
        OpKind::Scatter => Op::Scatter { root },
        OpKind::Gather => Op::Gather { root },
        OpKind::GatherAll => Op::GatherAll,
        OpKind::Exchange => Op::Exchange,
        OpKind::Permute if key.from == UNKNOWN => Op::Permute { to: (0..ranks).map(|r| (r + 1) % ranks).collect() },
        // Of the others it is not known where they send.
        OpKind::Permute => {
            let mut to = vec![usize::MAX; ranks];
            (to[me], to[key.from as usize]) = (root, me);
            Op::Permute { to }
        }
    };
    let Key { sync, source, dest, in_place, .. } = *key;
    let (flow, way, stride) = (algorithm.flow, algorithm.way, key.len);
    algorithm.of(Shape { op, flow, way, sync, ranks, len, stride, source, dest, in_place })
}

/// All ranks' plans for blocks of this length; of a permutation whichever.
fn plans(engine: &Engine, key: &Key, algorithm: &Algorithm, len: usize) -> impl Iterator<Item = Plan> {
    let shape = shape(engine, &Key { from: UNKNOWN, ..key.clone() }, algorithm, len);
    let ranks = if key.op == OpKind::Permute { 1 } else { shape.ranks };
    (0..ranks).filter_map(move |rank| shape.plan(rank))
}

/// How long a part may be for all ranks to have scratch for it; however long if none is needed.
fn longest_part(engine: &Engine, key: &Key, algorithm: &Algorithm) -> Option<usize> {
    const PROBE: usize = 1 << 16;
    let needed = plans(engine, key, algorithm, PROBE).map(|plan| plan.scratch).max().unwrap_or(0);
    // Rounded up: pieces of a broadcast may differ by one.
    let times = needed.div_ceil(PROBE);
    (times > 0).then(|| (engine.desk.scratch_len() / times & !63).max(64))
}

fn longest_letter(engine: &Engine, key: &Key, algorithm: &Algorithm, len: usize) -> usize {
    let all: Vec<Plan> = plans(engine, key, algorithm, len).collect();
    let steps = all.iter().flat_map(|plan| &plan.steps);
    let letters = steps.filter_map(|step| match step {
        Step::Send { src, .. } => Some(src.iter().map(|span| span.len).sum()),
        _ => None,
    });
    letters.max().unwrap_or(0)
}
