//! From a call to the plans of this rank: which algorithm, in how many parts; remembered by what the call is like.

use super::engine::{Engine, context_of};
use crate::job::Inner;
use partage_conduit::coll::{HOME, LETTER};
use partage_plan::coll::name::Error;
use partage_plan::coll::{Algorithm, FEW, Flow, In, Kind, Op, OpKind, Out, Plan, Posting, Setting, Shape, Way};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

/// Bytes that pass through scratch at a time on a node, unless the algorithm says otherwise: of short blocks, and of long ones. Between nodes it is as much as there is room for.
const PACKETS: [usize; 2] = [16 << 10, 64 << 10];
/// Blocks up to this length are short.
const SHORT: usize = 64 << 10;
/// Blocks up to this length go through scratch between nodes rather than wait for a message that says that their destination may be touched.
const EAGER: usize = 32 << 10;
/// Shapes are remembered in so many sets, a power of two, by what they are like.
const SETS: usize = 64;
/// Of each set so many.
const WAYS: usize = 8;
/// All of them take no more memory than this, for each job or team; one that alone takes more is made anew for each call.
const MEMORY: usize = 8 << 20;
/// Chunks that ranks claim of a part, at most. Each has steps for all ranks, so a long block passes in several parts,
const CHUNKS: usize = 512;
/// and in more where ranks are many: so many chunks times ranks.
const CLAIMED: usize = 16 << 10;
/// The source of a permutation that is not known yet.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// What plans depend on, in a few words that are quickly compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Key {
    what: u64,
    ends: u64,
    len: u64,
}

impl Key {
    #[inline(always)]
    pub fn new(call: Call) -> Key {
        let Call { op, root, from, len, sync, source, dest, in_place, exclusive, ordered, grain, algorithm } = call;
        let bits = u64::from(in_place) | u64::from(exclusive) << 1 | u64::from(ordered) << 2;
        let small = [op as u64, sync.0 as u64, sync.1 as u64, source as u64, dest as u64, bits];
        let what = small.iter().fold(algorithm.into(), |all: u64, one| all << 8 | one);
        // Only permutations have a source, and only reductions a grain.
        let other = if op.combines() { grain } else { from };
        Key { what, ends: u64::from(root) | u64::from(other) << 32, len: len as u64 }
    }

    /// As words, and back.
    pub fn words(self) -> [u64; 3] {
        [self.what, self.ends, self.len]
    }

    pub fn of([what, ends, len]: [u64; 3]) -> Key {
        Key { what, ends, len }
    }

    /// The same from this source.
    pub fn with_source(self, from: u32) -> Key {
        Key { ends: u64::from(self.root()) | u64::from(from) << 32, ..self }
    }

    #[inline(always)]
    pub fn root(self) -> u32 {
        self.ends as u32
    }

    /// Of a permutation, whose block comes here.
    #[inline(always)]
    pub fn from(self) -> u32 {
        (self.ends >> 32) as u32
    }

    /// What it was made of.
    pub fn call(self) -> Call {
        let byte = |i: u32| self.what >> (8 * (5 - i)) & 0xff;
        let kind = |i| if byte(i) == Kind::Shared as u64 { Kind::Shared } else { Kind::Private };
        let (ins, outs) = ([In::No, In::My, In::All], [Out::No, Out::My, Out::All]);
        let find_in = |n: u64| ins.into_iter().find(|&i| i as u64 == n).unwrap_or(In::All);
        let find_out = |n: u64| outs.into_iter().find(|&o| o as u64 == n).unwrap_or(Out::All);
        let op = OpKind::ALL.into_iter().find(|&op| op as u64 == byte(0)).unwrap_or(OpKind::Permute);
        let other = (self.ends >> 32) as u32;
        Call {
            op,
            root: self.root(),
            from: if op.combines() { UNKNOWN } else { other },
            grain: if op.combines() { other } else { 1 },
            len: self.len as usize,
            sync: (find_in(byte(1)), find_out(byte(2))),
            source: kind(3),
            dest: kind(4),
            in_place: byte(5) & 1 != 0,
            exclusive: byte(5) & 2 != 0,
            ordered: byte(5) & 4 != 0,
            algorithm: (self.what >> 48) as u16,
        }
    }
}

/// A call, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
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
    /// A prefix without the rank's own.
    pub exclusive: bool,
    /// Operands keep their order.
    pub ordered: bool,
    /// Bytes of an element that is combined; else 1.
    pub grain: u32,
    /// The one that was asked for, as [`Asked`] has it.
    pub algorithm: u16,
}

/// Has such an operation a root?
fn has_root(op: OpKind) -> bool {
    matches!(op, OpKind::Broadcast | OpKind::Scatter | OpKind::Gather | OpKind::Reduce)
}

/// Algorithms that were asked for, with their names: a name is understood once, and looked at first if it was the last one.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    all: RefCell<Vec<(String, Algorithm)>>,
    last: Cell<usize>,
}

impl Asked {
    /// The number of the one with this name, from 1: 0 is the table's choice.
    pub fn number(&self, name: &str) -> Result<u16, Error> {
        let is_last = self.all.borrow().get(self.last.get()).is_some_and(|(n, _)| n == name);
        let i = if is_last { self.last.get() } else { self.find(name)? };
        Ok(u16::try_from(i + 1).expect("fewer than 65536 names of algorithms in one job"))
    }

    #[cold]
    fn find(&self, name: &str) -> Result<usize, Error> {
        let mut all = self.all.borrow_mut();
        let i = match all.iter().position(|(n, _)| n == name) {
            Some(i) => i,
            None => {
                all.push((name.into(), name.parse()?));
                all.len() - 1
            }
        };
        self.last.set(i);
        Ok(i)
    }

    /// The one with this number.
    pub fn get(&self, number: u16) -> Option<Algorithm> {
        Some(self.all.borrow()[usize::from(number.checked_sub(1)?)].1)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)?;
        match self.op {
            OpKind::Broadcast | OpKind::Scatter | OpKind::Gather | OpKind::Reduce => write!(f, ", root {}", self.root),
            OpKind::Permute => write!(f, " to rank {}", self.root),
            OpKind::Prefix if self.exclusive => write!(f, ", exclusive"),
            OpKind::GatherAll | OpKind::Exchange | OpKind::AllReduce | OpKind::Prefix => Ok(()),
        }
    }
}

/// Does a rank know where all blocks go? Of a permutation only if there are two ranks, which send to each other.
fn is_known(engine: &Engine, call: &Call) -> bool {
    let others = call.from == call.root && call.root as usize != engine.desk.rank();
    call.op != OpKind::Permute || (engine.desk.ranks() == 2 && others)
}

/// The plans of this rank for a key.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub algorithm: Algorithm,
    /// How many bytes of each block pass in one part, and how many parts there are.
    pub part: usize,
    pub parts: usize,
    /// Both ranks leave together, by stores, and need neither scratch nor letters.
    pub at_home: bool,
    /// Letters are posted, on these lines.
    pub posting: Option<Posting>,
    full: Plan,
    /// Of the last part, if it is shorter.
    last: Option<Plan>,
    /// Of every other collective, if two ranks take turns.
    odd: Option<Plan>,
}

impl Prepared {
    /// A plan that is made for one call.
    pub fn once(plan: Plan) -> Prepared {
        let (algorithm, at_home, posting) = (Algorithm::PULL, false, None);
        Prepared { algorithm, part: 0, parts: 1, at_home, posting, full: plan, last: None, odd: None }
    }

    /// The context in which the `epoch`-th collective has it.
    #[inline(always)]
    pub fn context(&self, epoch: u64) -> usize {
        if self.at_home { HOME } else { context_of(epoch) }
    }

    /// That of a part, which is the `epoch`-th collective.
    #[inline(always)]
    pub fn plan(&self, part: usize, epoch: u64) -> &Plan {
        match (&self.last, &self.odd) {
            (Some(last), _) if part + 1 == self.parts => last,
            (_, Some(odd)) if epoch % 2 == 1 => odd,
            _ => &self.full,
        }
    }

    /// How much memory its plans take.
    pub fn bytes(&self) -> usize {
        [Some(&self.full), self.last.as_ref(), self.odd.as_ref()].into_iter().flatten().map(Plan::bytes).sum()
    }

    /// Those of even and of odd collectives, if they are not the same.
    pub fn turns(&self) -> Option<[&Plan; 2]> {
        self.odd.as_ref().map(|odd| [&self.full, odd])
    }
}

/// Plans that were made, by their keys. A program has as many as it has roots, sync modes and lengths in its loops: one that is made
/// anew in each turn costs more than the call.
#[derive(Debug)]
pub(crate) struct Cache {
    sets: Box<[Set]>,
    bytes: usize,
    /// The set that was emptied last, for others' room.
    emptied: usize,
}

type Set = Vec<(Key, Rc<Prepared>)>;

impl Default for Cache {
    fn default() -> Cache {
        Cache { sets: (0..SETS).map(|_| vec![]).collect(), bytes: 0, emptied: 0 }
    }
}

impl Cache {
    #[inline(always)]
    fn set(&self, key: &Key) -> usize {
        let all = key.what ^ key.ends.rotate_left(21) ^ key.len.rotate_left(43);
        // The highest bits are those in which all others take part.
        (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SETS.ilog2())) as usize
    }

    #[inline(always)]
    fn get(&self, key: &Key) -> Option<&Rc<Prepared>> {
        self.sets[self.set(key)].iter().find(|(k, _)| k == key).map(|(_, prepared)| prepared)
    }

    /// The oldest of many is forgotten, and one set after the other if all are too large.
    fn keep(&mut self, key: Key, prepared: Rc<Prepared>) {
        let (i, bytes) = (self.set(&key), prepared.bytes());
        if bytes > MEMORY {
            return;
        }
        while self.bytes + bytes > MEMORY {
            self.emptied = (self.emptied + 1) % SETS;
            let set = std::mem::take(&mut self.sets[self.emptied]);
            self.bytes -= set.iter().map(|(_, prepared)| prepared.bytes()).sum::<usize>();
        }
        let set = &mut self.sets[i];
        if set.len() == WAYS {
            self.bytes -= set.remove(0).1.bytes();
        }
        set.push((key, prepared));
        self.bytes += bytes;
    }
}

impl Engine {
    /// The plans for a call of this kind. Whatever it says is the same on all members, but for the steps.
    #[inline]
    pub(super) fn prepared(&self, inner: &Inner, key: &Key) -> Rc<Prepared> {
        if let Some(prepared) = self.prepared.borrow().get(key) {
            return prepared.clone();
        }
        let prepared = Rc::new(self.prepare(inner, &key.call()));
        self.prepared.borrow_mut().keep(*key, prepared.clone());
        prepared
    }

    /// Are there plans for it already?
    pub(super) fn is_prepared(&self, key: &Key) -> bool {
        self.prepared.borrow().get(key).is_some()
    }

    #[cold]
    fn prepare(&self, inner: &Inner, call: &Call) -> Prepared {
        let call = &self.eager(call);
        let Cut { algorithm, part, parts } = self.cut(inner, call);
        let plan_by = |algorithm: &Algorithm, len: usize| {
            let shape = shape(self, call, algorithm, len);
            assert!(shape.scratch() <= self.desk.scratch_len(), "no more scratch than there is");
            shape.plan(self.desk.rank()).expect("it fits")
        };
        let plan = |len: usize| plan_by(&algorithm, len);
        let rest = call.len - (parts - 1) * part;
        let last = (rest < part).then(|| plan(rest));
        let at_home = parts == 1 && self.is_left_together(call, &algorithm);
        let full = plan(part.min(call.len));
        // If nobody is the root, or named, each of two ranks leads every other time: what the other says at the end of one and at the begin of the next goes together.
        let take_turns = at_home && algorithm.flow == Flow::Leader(None) && !has_root(call.op);
        let odd = take_turns.then(|| plan_by(&Algorithm { flow: Flow::Leader(Some(1)), ..algorithm }, call.len));
        let posting = shape(self, call, &algorithm, call.len).posting();
        Prepared { algorithm, part, parts, at_home, posting, full, last, odd }
    }

    /// The call that is made instead: one in which nobody touches others' buffers, if that is sooner. It may be any if a rank's data are touched after it
    /// has entered and before it returns.
    fn eager(&self, call: &Call) -> Call {
        let is_short = call.len <= EAGER && call.algorithm == 0;
        match is_short && call.sync == (In::My, Out::My) && !self.desk.reaches_all() {
            true => Call { source: Kind::Private, dest: Kind::Private, ..*call },
            false => *call,
        }
    }

    /// Do two ranks leave it together, by stores, and need neither scratch nor letters? The answer is the same on both.
    fn is_left_together(&self, call: &Call, algorithm: &Algorithm) -> bool {
        let are_two = self.desk.ranks() == 2 && self.desk.reaches_all();
        let is_for_all = call.sync.1 == Out::All && (call.source, call.dest) == (Kind::Shared, Kind::Shared);
        let by_stores =
            !matches!(algorithm.way, Way::Mail | Way::Post) && shape(self, call, algorithm, call.len).scratch() == 0;
        are_two && is_for_all && by_stores && is_known(self, call)
    }

    /// Which algorithm is taken, and in how many parts a block passes.
    fn cut(&self, inner: &Inner, call: &Call) -> Cut {
        let algorithm = self.choose(inner, call);
        let Some(part) = self.part(call, &algorithm) else {
            let (me, op, grain, room) = (inner.rank, call.op, call.grain, self.desk.scratch_len());
            panic!(
                "{me}: {op}: an element has {grain} bytes, for which {room} of scratch are too few; make elements smaller"
            );
        };
        Cut { algorithm, part, parts: call.len.div_ceil(part).max(1) }
    }

    /// How many bytes pass at a time, if there is scratch for that. Elements that are combined are whole.
    fn part(&self, call: &Call, algorithm: &Algorithm) -> Option<usize> {
        let usual = match self.desk.reaches_all() {
            true => PACKETS[usize::from(call.len > SHORT)],
            false => usize::MAX,
        };
        let longest = match (longest_part(self, call, algorithm), algorithm.packet) {
            (Some(longest), packet) => longest.min(packet.unwrap_or(usual)),
            (None, packet) => packet.unwrap_or(call.len),
        };
        let longest = match algorithm.flow {
            Flow::Coop(chunk) => longest.min(chunk.saturating_mul((CLAIMED / self.desk.ranks()).clamp(8, CHUNKS))),
            _ => longest,
        };
        let grain = call.grain as usize;
        let whole = |len: usize| (len / grain * grain).max(grain);
        let call = Call { from: UNKNOWN, ..*call };
        let fits = |len: usize| {
            let shape = shape(self, &call, algorithm, len);
            shape.fits() && shape.scratch() <= self.desk.scratch_len()
        };
        // Each rank may have a part of one element, which is more than its share of few.
        let mut part = whole(longest.min(call.len));
        while part > grain && !fits(part) {
            part = whole(part / 2);
        }
        fits(part.min(call.len)).then_some(part)
    }

    fn choose(&self, inner: &Inner, call: &Call) -> Algorithm {
        let setting = self.setting(inner, call);
        let can = |a: &Algorithm| self.can_run(call, a);
        match self.asked.get(call.algorithm) {
            Some(asked) => asked,
            None => *inner.table.choose_if(call.op, &setting, call.len, can),
        }
    }

    /// What is wrong with an algorithm for such a call, if something is.
    pub(super) fn refuses(&self, inner: &Inner, call: &Call, algorithm: &Algorithm) -> Option<&'static str> {
        let alone = algorithm.flow.touches_all();
        match () {
            () if !algorithm.fits(call.op, &self.setting(inner, call)) => {
                Some("it does not do that, with such buffers, in that sync mode")
            }
            () if alone && !is_known(self, call) => Some("no rank knows the whole permutation"),
            () if (alone || algorithm.way == Way::Post) && !self.desk.reaches_all() => {
                Some("ranks are on several nodes")
            }
            () if !shape(self, &Call { from: UNKNOWN, ..*call }, algorithm, call.len).fits() => {
                Some("operands keep their order, and ranks of a node do not follow one another")
            }
            () if !self.can_run(call, algorithm) && matches!(algorithm.way, Way::Mail | Way::Post) => {
                Some("a letter has 56 bytes")
            }
            () if !self.can_run(call, algorithm) => Some("there is not scratch enough"),
            () => None,
        }
    }

    /// Can this engine run it? The answer is the same on all ranks.
    fn can_run(&self, call: &Call, algorithm: &Algorithm) -> bool {
        match (algorithm.flow, algorithm.way) {
            (flow, _) if flow.touches_all() => {
                is_known(self, call) && self.desk.reaches_all() && self.part(call, algorithm).is_some()
            }
            (_, Way::Post) if !self.desk.reaches_all() => false,
            (_, Way::Mail | Way::Post) => {
                let usual = algorithm.packet.unwrap_or(call.len).min(call.len);
                // Elements that are combined are whole.
                let part = self.part(call, algorithm).filter(|_| usual <= LETTER);
                part.is_some_and(|part| longest_letter(self, call, algorithm, part.min(call.len)) <= LETTER)
            }
            _ => self.part(call, algorithm).is_some(),
        }
    }

    fn setting(&self, inner: &Inner, call: &Call) -> Setting {
        Setting {
            ranks: self.desk.ranks(),
            nodes: !self.desk.reaches_all(),
            crowded: inner.seat.node().is_crowded(),
            many: self.desk.ranks().min(inner.seat.node().at_once()) > FEW,
            sync: call.sync,
            source: call.source,
            dest: call.dest,
            in_place: call.in_place,
            ordered: call.ordered,
        }
    }
}

/// How blocks pass.
struct Cut {
    algorithm: Algorithm,
    part: usize,
    parts: usize,
}

fn shape(engine: &Engine, call: &Call, algorithm: &Algorithm, len: usize) -> Shape {
    let (ranks, root, me) = (engine.desk.ranks(), call.root as usize, engine.desk.rank());
    let op = match call.op {
        OpKind::Broadcast => Op::Broadcast { root, pieces: 1 },
        OpKind::Scatter => Op::Scatter { root },
        OpKind::Gather => Op::Gather { root },
        OpKind::GatherAll => Op::GatherAll,
        OpKind::Exchange => Op::Exchange,
        OpKind::Reduce => Op::Reduce { root },
        OpKind::AllReduce => Op::AllReduce,
        OpKind::Prefix => Op::Prefix { exclusive: call.exclusive },
        OpKind::Permute if call.from == UNKNOWN => Op::Permute { to: (0..ranks).map(|r| (r + 1) % ranks).collect() },
        // Of the others it is not known where they send.
        OpKind::Permute => {
            let mut to = vec![usize::MAX; ranks];
            (to[me], to[call.from as usize]) = (root, me);
            Op::Permute { to }
        }
    };
    let Call { sync, source, dest, in_place, ordered, .. } = *call;
    let grain = call.grain as usize;
    let (flow, way, scheme, stride) = (algorithm.flow, algorithm.way, algorithm.scheme, call.len);
    let nodes = Some(engine.nodes.clone());
    algorithm.of(Shape {
        op,
        flow,
        way,
        scheme,
        sync,
        ranks,
        nodes,
        len,
        stride,
        source,
        dest,
        in_place,
        grain,
        ordered,
    })
}

/// How long a part may be for all ranks to have scratch for it; however long if none is needed.
fn longest_part(engine: &Engine, call: &Call, algorithm: &Algorithm) -> Option<usize> {
    const PROBE: usize = 1 << 16;
    let times = shape(engine, &Call { from: UNKNOWN, ..*call }, algorithm, PROBE).scratch().div_ceil(PROBE);
    (times > 0).then(|| match engine.desk.scratch_len() / times {
        few @ ..64 => few,
        many => many & !63,
    })
}

fn longest_letter(engine: &Engine, call: &Call, algorithm: &Algorithm, len: usize) -> usize {
    shape(engine, &Call { from: UNKNOWN, ..*call }, algorithm, len).message()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_plan::coll::{Step, Totals};

    /// A plan of so many steps.
    fn of(steps: usize) -> Rc<Prepared> {
        let steps = (0..steps).map(|_| Step::Arrive).collect();
        Rc::new(Prepared::once(Plan { steps, scratch: 0, totals: Totals::default() }))
    }

    #[test]
    fn plans_that_are_kept_take_bounded_memory() {
        let mut cache = Cache::default();
        let key = |len| Key { len, ..Key::default() };
        let small = of(10);
        for i in 0..100_000 {
            cache.keep(key(i), small.clone());
            assert!(cache.get(&key(i)).is_some(), "the last one is there");
        }
        let kept = |cache: &Cache| cache.sets.iter().map(Vec::len).sum::<usize>();
        assert_eq!((kept(&cache), cache.bytes), (SETS * WAYS, SETS * WAYS * small.bytes()));
        // A quarter of the memory each.
        let large = of(MEMORY / 4 / size_of::<Step>() - 100);
        for i in 200_000..200_100 {
            cache.keep(key(i), large.clone());
            assert!(cache.bytes <= MEMORY && cache.get(&key(i)).is_some());
        }
        assert!((3..=4).contains(&cache.sets.iter().flatten().filter(|one| one.1.bytes() > MEMORY / 5).count()));
        // More than all of it.
        let (before, bytes) = (kept(&cache), cache.bytes);
        cache.keep(key(1), of(MEMORY));
        assert!(cache.get(&key(1)).is_none() && (kept(&cache), cache.bytes) == (before, bytes));
    }

    #[test]
    fn keys_are_their_calls() {
        for (i, op) in OpKind::ALL.into_iter().enumerate() {
            for sync in [(In::No, Out::All), (In::My, Out::No), (In::All, Out::My)] {
                for (source, dest) in [(Kind::Shared, Kind::Private), (Kind::Private, Kind::Shared)] {
                    for bits in 0..8 {
                        let [in_place, exclusive, ordered] = [1, 2, 4].map(|bit| bits & bit != 0);
                        let (root, algorithm, len) = (i as u32 * 77, 500 * i as u16, 1 << 40);
                        let (from, grain) = if op.combines() { (UNKNOWN, 24) } else { (UNKNOWN - i as u32, 1) };
                        let call = Call {
                            op,
                            root,
                            from,
                            len,
                            sync,
                            source,
                            dest,
                            in_place,
                            exclusive,
                            ordered,
                            grain,
                            algorithm,
                        };
                        assert_eq!(Key::new(call).call(), call);
                        if op == OpKind::Permute {
                            assert_eq!(Key::new(call).with_source(5).call(), Call { from: 5, ..call });
                        }
                    }
                }
            }
        }
    }
}
