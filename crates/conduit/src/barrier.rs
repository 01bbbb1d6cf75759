//! Barriers between the ranks of a node, blocking or split, with a tag that must agree and a value that is reduced.
//!
//! One arrival carries a [`Tag`] and a number (`aux`). When all have arrived every rank gets the same [`Verdict`]: the
//! smallest `aux`, or the first two ranks whose tags disagree. Plain barriers pay nothing for tags that are not there, and
//! two ranks pay nothing for tags that are.
//!
//! # Shapes
//! * Two ranks: a pair of words in one cache line, with their tags. Each rank writes its own and reads the other's, so that
//!   one line goes to and fro and the last to come finds all in it. The other may already have written its next arrival
//!   while this rank still waits for the last one (it cannot be two ahead), so a word speaks of two epochs. Only numbers
//!   to reduce lie elsewhere, in the ranks' slots.
//! * More: counters in a tree of radix k. The last to arrive at a counter resets it and goes on to its parent; the
//!   last at the root compares the tags, if there are any, and stores the release word that all others watch. Nobody
//!   has to make progress for anybody else: after `arrive` a rank may compute as long as it likes. Radix ≥ n is the
//!   central counter. (Yew, Tzeng, Lawrie 1987, with one release word for all.)
//!
//! # Memory ordering
//! Arrivals are release (a store, or a read-modify-write that also acquires the earlier ones at this counter), the
//! release word is stored with release by the last and loaded with acquire by the others. So everything that any rank
//! did before its arrival happens before everything that any rank does after its wait. A counter is reset with a
//! relaxed store: the next arrival at it comes after the release word, which comes after the reset. Slots and the
//! release line's other words are plain data under the same edges.
//! # Other nodes
//! Where there are some ([`Barrier::beyond`]), the shape is the tree, and the last at the root hands what it found to
//! somebody else, who [opens](open) the barrier when all nodes have come (see [`crate::meeting`]).
//!
//! # Bells
//! See [`crate::wait`]; the light fence lies between the arrival (pair) or the release store (tree) and the look at the
//! bells.

use crate::meeting::{Digest, Verdict};
use crate::record::Site;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*, light_fence};
use crate::wait::{Aborted, Bell, Sleepers, Step, Waiter};
use std::cell::Cell;
use std::fmt;

/// What an arrival says about itself; ranks whose tags do not [agree](Tag::agrees) made a mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// A barrier without a value; agrees with barriers of any value.
    Plain,
    /// A barrier with a value that must be equal wherever one is given.
    Value(u64),
    /// A collective call: which one and what all ranks must give alike.
    Call(Call, u64),
    /// The end of the job.
    Exit,
}

/// The collective calls that meet at a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Call {
    /// Symmetric allocation.
    AllocAll = 16,
    /// Its inverse.
    FreeAll = 17,
    /// The round in which ranks that disagree tell each other where they are.
    Report = 18,
    /// Handlers: how many in the high 16 bits, and a hash of them.
    Register = 19,
    /// A distributed object: its number in the high half, and a hash of its type.
    Dist = 20,
    /// An array: the kind of its layout in the high 4 bits, and its length.
    Array = 21,
    /// A hash of all that an array is asked for with.
    ArrayDetails = 22,
    /// The begin of a phase: up to four arrays, see [`Call::in_phase`].
    Phase = 23,
    /// Its end.
    PhaseEnd = 24,
    /// A domain of atomics: its operations as bits, bytes of its words, and their kind, in 16, 8 and 8 bits from the low end.
    AtomicDomain = 32,
}

impl Call {
    /// The value of an allocation: its length, and in these low bits the logarithm of its alignment.
    pub const ALIGN_BITS: u32 = 4;

    /// In the value of a phase: more arrays follow.
    pub const MORE: u64 = 1 << 63;

    /// The value of a phase is the sum of these: the number of the i-th of up to four arrays, and whether it is frozen.
    #[inline(always)]
    pub fn in_phase(array: u16, frozen: bool, i: u32) -> u64 {
        debug_assert!(i < 4 && array < (1 << 14) - 1);
        ((u64::from(array) + 1) << 1 | u64::from(frozen)) << (15 * i)
    }

    fn phase_in_words(n: u64) -> String {
        let entries = (0..4).map(|i| n >> (15 * i) & 0x7fff).filter(|&e| e != 0);
        let words = entries.map(|e| format!("{} array {}", if e & 1 == 1 { "freezes" } else { "owns" }, (e >> 1) - 1));
        let all = words.collect::<Vec<_>>().join(", ");
        let all = if all.is_empty() { "has no array".into() } else { all };
        if n & Call::MORE != 0 { format!("{all} and more") } else { all }
    }
}

impl Tag {
    /// May two ranks meet with these tags?
    pub fn agrees(self, other: Tag) -> bool {
        match (self, other) {
            (Tag::Plain, Tag::Value(_)) | (Tag::Value(_), Tag::Plain) => true,
            (a, b) => a == b,
        }
    }

    /// As two words.
    #[inline(always)]
    pub fn encode(self) -> (u64, u64) {
        match self {
            Tag::Plain => (0, 0),
            Tag::Value(v) => (1, v),
            Tag::Exit => (2, 0),
            Tag::Call(call, v) => (call as u64, v),
        }
    }

    /// From them.
    pub fn decode(kind: u64, value: u64) -> Tag {
        match kind {
            0 => Tag::Plain,
            1 => Tag::Value(value),
            2 => Tag::Exit,
            16 => Tag::Call(Call::AllocAll, value),
            17 => Tag::Call(Call::FreeAll, value),
            19 => Tag::Call(Call::Register, value),
            20 => Tag::Call(Call::Dist, value),
            21 => Tag::Call(Call::Array, value),
            22 => Tag::Call(Call::ArrayDetails, value),
            23 => Tag::Call(Call::Phase, value),
            24 => Tag::Call(Call::PhaseEnd, value),
            32 => Tag::Call(Call::AtomicDomain, value),
            _ => Tag::Call(Call::Report, value),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tag::Plain => write!(f, "barrier without a value"),
            Tag::Value(v) => write!(f, "barrier with value {v}"),
            Tag::Exit => write!(f, "the end of its program"),
            Tag::Call(Call::AllocAll, n) => {
                write!(f, "alloc_all of {} bytes aligned to {}", n >> Call::ALIGN_BITS, 1u64 << (n & 15))
            }
            Tag::Call(Call::FreeAll, n) => write!(f, "free_all of the block at offset {n:#x}"),
            Tag::Call(Call::Register, n) => {
                write!(f, "register_handlers of {} handlers, list {:x}", n >> 48, n & 0xffff_ffff_ffff)
            }
            Tag::Call(Call::Dist, n) => write!(f, "dist number {} of type {:x}", n >> 32, *n as u32),
            Tag::Call(Call::Array, n) => {
                let kinds = ["blocked", "cyclic", "per rank", "in tiles", "in bricks"];
                let kind = kinds.get((n >> 60) as usize).unwrap_or(&"laid out");
                write!(f, "an array of {} elements, {kind}", n & (u64::MAX >> 4))
            }
            Tag::Call(Call::ArrayDetails, n) => write!(f, "an array of block, grid and type {n:x}"),
            Tag::Call(Call::Phase, n) => write!(f, "a phase that {}", Call::phase_in_words(*n)),
            Tag::Call(Call::PhaseEnd, n) => write!(f, "the end of a phase that {}", Call::phase_in_words(*n)),
            Tag::Call(Call::AtomicDomain, n) => {
                let (ops, width, kind) = (n & 0xffff, n >> 16 & 0xff, n >> 24);
                write!(f, "atomic_domain of operations {ops:#x} on words of {width} bytes and kind {kind}")
            }
            Tag::Call(Call::Report, _) => write!(f, "the report of a disagreement"),
        }
    }
}

/// How ranks met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// All came with the same tag and nothing to reduce: there is no more to say.
    Bare,
    /// Perhaps not: ask for the [`verdict`](Barrier::verdict).
    WithDetails,
}

/// What one rank's arrival carries besides being one.
#[repr(C)]
#[derive(Debug, Default)]
struct Details {
    /// Epoch and kind of tag.
    word: AtomicU64,
    value: AtomicU64,
    aux: AtomicU64,
}

/// A rank's details of even and odd epochs, written only where there are some.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot([Details; 2]);

/// The arrivals of two ranks in one cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Pair([Side; 2]);

/// One rank's arrival and the one before it.
#[repr(C)]
#[derive(Debug, Default)]
struct Side {
    /// From the low end: what this arrival says in a byte, and the same of the one before; the small values of their tags; as
    /// much of the epoch as there is room for (the two ranks are at most one apart).
    word: AtomicU64,
    /// Values that are not small, of even and odd epochs.
    values: [AtomicU64; 2],
}

/// In the byte, beside the kind of the tag: its value is small, and in the word.
const SMALL: u64 = 0x40;
/// There is a number to reduce, in the slot.
const REDUCED: u64 = 0x80;
const SMALL_BITS: u32 = 15;
const EPOCH_AT: u32 = 16 + 2 * SMALL_BITS;

/// What a pair's word says of one arrival: the byte, and above it the small value.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Said(u64);

impl Said {
    #[inline(always)]
    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    #[inline(always)]
    fn byte(self) -> u64 {
        self.0 & 0xff
    }

    #[inline(always)]
    fn small(self) -> u64 {
        self.0 >> 8
    }
}

/// The word of an arrival after another.
#[inline(always)]
fn word_of(epoch: u64, now: Said, before: Said) -> u64 {
    let values = now.small() << 16 | before.small() << (16 + SMALL_BITS);
    epoch << EPOCH_AT | values | before.byte() << 8 | now.byte()
}

/// Does this word's rank have come to the epoch, which is at most one away?
#[inline(always)]
fn has_come(word: u64, epoch: u64) -> bool {
    (word.wrapping_sub(epoch << EPOCH_AT) >> EPOCH_AT) << 1 < 1 << (64 - EPOCH_AT)
}

/// What it says of this epoch, to which its rank has come.
#[inline(always)]
fn said_at(word: u64, epoch: u64) -> Said {
    let small = (1 << SMALL_BITS) - 1;
    match (word >> EPOCH_AT) ^ (epoch << EPOCH_AT >> EPOCH_AT) {
        0 => Said(word & 0xff | (word >> 16 & small) << 8),
        _ => Said(word >> 8 & 0xff | (word >> (16 + SMALL_BITS) & small) << 8),
    }
}

/// Arrivals of one group: the low half counts them, the high half those with a tag.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counter(AtomicU32);

/// What the last rank leaves for all others.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Release {
    /// Epoch times four, plus two if there were tags, plus one if they disagreed.
    word: AtomicU64,
    aux: AtomicU64,
    /// The two ranks that disagree (or the first that came with a tag), the kinds of their tags and their values: copies,
    /// since a rank that has seen the verdict may arrive again and overwrite its slot while another still reads.
    ranks: [AtomicU64; 2],
    values: [AtomicU64; 2],
    /// Here, because the last rank looks at them right after it has written this line.
    sleepers: Sleepers,
}

impl Release {
    /// The ranks of the node that sleep.
    pub fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }
}

/// Where a barrier's words live: in a control area, or, in a model, on the heap.
///
/// # Safety
/// The same words at the same addresses as long as the value lives, also when it is moved.
pub unsafe trait Places {
    /// The line of a pair.
    fn pair(&self) -> &Pair;
    /// Rank r's slot.
    fn slot(&self, r: usize) -> &Slot;
    /// The i-th counter; there are fewer than 2n.
    fn counter(&self, i: usize) -> &Counter;
    /// The release line.
    fn release(&self) -> &Release;
    /// Rank r's bell.
    fn bell(&self, r: usize) -> &Bell;
}

/// One rank's side of a barrier; each rank of the node has one, over the same places.
pub struct Barrier<P> {
    places: P,
    me: usize,
    n: usize,
    /// How many ranks; on one of several nodes too many for a short way.
    shape: usize,
    epoch: Cell<u64>,
    pair: PairOfMine,
    /// What my last arrival at a pair said.
    last: Cell<u64>,
    /// From my group's counter to the root: index and number of arrivals expected there.
    path: Vec<(u32, u32)>,
    /// By number on this node: the rank of the job. Empty: the same.
    names: Box<[u32]>,
    beyond: Option<Beyond>,
}

/// What happens when all of a node have come, and there are other nodes.
type Beyond = Box<dyn Fn(u64, Digest)>;

impl<P> fmt::Debug for Barrier<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} at epoch {}", self.me, self.n, self.epoch.get())
    }
}

/// What the hot path of two ranks touches, found once: my word, the other's, the other's bell.
#[derive(Debug)]
struct PairOfMine {
    mine: *const Side,
    other: *const Side,
    bell: *const Bell,
}

/// A promise to wait: what `arrive` returns.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    epoch: u64,
    /// The tag, in words: so that a plain one is nothing but constants.
    kind: u64,
    value: u64,
    aux: u64,
}

impl Arrived {
    /// Nothing to compare and nothing to reduce.
    #[inline(always)]
    fn is_bare(self) -> bool {
        self.kind == 0 && self.aux == u64::MAX
    }

    /// What a pair's word says of it.
    #[inline(always)]
    fn said(self) -> Said {
        let reduced = if self.aux == u64::MAX { 0 } else { REDUCED };
        match self.kind != 0 && self.value < 1 << SMALL_BITS {
            true => Said(self.kind | SMALL | reduced | self.value << 8),
            false => Said(self.kind | reduced),
        }
    }

    fn tag(self) -> Tag {
        Tag::decode(self.kind, self.value)
    }
}

impl<P: Places> Barrier<P> {
    /// Rank `me` of `n`; `radix` 0 means one central counter.
    pub fn new(places: P, me: usize, n: usize, radix: usize) -> Self {
        assert!(me < n && n < 1 << 16, "a barrier of {n} ranks");
        let radix = if radix < 2 { n.max(2) } else { radix };
        let (mut path, mut group, mut members, mut first) = (vec![], me, n, 0);
        while members > 1 {
            group /= radix;
            path.push(((first + group) as u32, radix.min(members - group * radix) as u32));
            let groups = members.div_ceil(radix);
            (first, members) = (first + groups, groups);
        }
        let (a, b) = (me % 2, (me + 1) % 2);
        let sides = &places.pair().0;
        let pair = PairOfMine { mine: &sides[a], other: &sides[b], bell: places.bell(if n == 2 { b } else { me }) };
        let (epoch, last, names, beyond) = Default::default();
        Barrier { places, me, n, shape: n, epoch, pair, last, path, names, beyond }
    }

    /// The same on one of several nodes: `names` are the job's numbers of its ranks, and `beyond` is told when all of them
    /// have come. Somebody then calls [`open`].
    pub fn beyond(self, names: &[u32], beyond: impl Fn(u64, Digest) + 'static) -> Self {
        assert_eq!(names.len(), self.n);
        Barrier { names: names.into(), beyond: Some(Box::new(beyond)), shape: usize::MAX, ..self }
    }

    fn name(&self, r: usize) -> u32 {
        self.names.get(r).copied().unwrap_or(r as u32)
    }

    /// How often this rank has come.
    pub fn come(&self) -> u64 {
        self.epoch.get()
    }

    /// Announces this rank's arrival. Arrive and [`wait`](Self::wait) alternate.
    #[inline(always)]
    pub fn arrive(&self, tag: Tag, aux: u64) -> Arrived {
        let epoch = self.epoch.get() + 1;
        self.epoch.set(epoch);
        let (kind, value) = tag.encode();
        let arrived = Arrived { epoch, kind, value, aux };
        match self.shape {
            2 => self.arrive_pair(arrived),
            1 => {}
            _ => self.arrive_tree(epoch, kind, value, aux),
        }
        arrived
    }

    /// Have all arrived?
    #[inline(always)]
    pub fn test(&self, arrived: &Arrived) -> bool {
        match self.shape {
            1 => true,
            2 => has_come(self.other().word.load(Acquire), arrived.epoch),
            _ => self.places.release().word.load(Acquire) >> 2 >= arrived.epoch,
        }
    }

    /// Waits until all have arrived; `progress` serves others meanwhile and says whether it did.
    #[inline(always)]
    pub fn wait(
        &self,
        arrived: Arrived,
        waiter: &Waiter<'_>,
        site: impl Fn() -> Site + Copy,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<Met, Aborted> {
        let epoch = arrived.epoch;
        let step = move |come: bool| match come {
            true => Step::Done,
            false if progress() => Step::Busy,
            false => Step::Idle,
        };
        let bare = match self.shape {
            2 => {
                let other = self.other();
                // What was seen is looked at, not seen again: the other may be on its way to the next, and has the line.
                let seen = Cell::new(0);
                let look = || {
                    seen.set(other.word.load(Acquire));
                    step(has_come(seen.get(), epoch))
                };
                waiter.until(site, look)?;
                let mine = arrived.said();
                let same = || arrived.value == other.values[epoch as usize % 2].load(Relaxed);
                let equal = said_at(seen.get(), epoch) == mine && !mine.has(REDUCED);
                equal && (arrived.kind == 0 || mine.has(SMALL) || same())
            }
            1 => arrived.is_bare(),
            _ => {
                let release = &self.places.release().word;
                let all_have_come = move || release.load(Acquire) >> 2 >= epoch;
                if !all_have_come() && !waiter.after_a_turn(all_have_come) {
                    waiter.until(site, move || step(all_have_come()))?;
                }
                release.load(Relaxed) & 2 == 0
            }
        };
        Ok(if bare { Met::Bare } else { Met::WithDetails })
    }

    /// What came of a meeting whose wait has ended; before the next arrival.
    #[inline(never)]
    pub fn verdict(&self, arrived: Arrived) -> Verdict {
        match self.shape {
            1 => Verdict::Agreed { aux: arrived.aux, tag: arrived.tag() },
            2 => self.verdict_of_pair(arrived),
            _ => self.verdict_of_tree(),
        }
    }

    #[inline(always)]
    fn arrive_pair(&self, a: Arrived) {
        // SAFETY: addresses of places, which `self` owns and which stay where they are (`Places`).
        let (mine, bell) = unsafe { (&*self.pair.mine, &*self.pair.bell) };
        let (said, before) = (a.said(), Said(self.last.get()));
        if said.byte() != 0 && !said.has(SMALL) {
            mine.values[a.epoch as usize % 2].store(a.value, Relaxed);
        }
        if said.has(REDUCED) {
            self.write_slot(a.epoch, a.kind, a.value, a.aux);
        }
        if said != before {
            self.last.set(said.0);
        }
        mine.word.store(word_of(a.epoch, said, before), Release);
        bell.ring();
    }

    #[inline(always)]
    fn other(&self) -> &Side {
        // SAFETY: as in `arrive_pair`.
        unsafe { &*self.pair.other }
    }

    fn verdict_of_pair(&self, a: Arrived) -> Verdict {
        let (mine, other) = (a.tag(), self.other());
        let said = said_at(other.word.load(Relaxed), a.epoch);
        let aux = if said.has(REDUCED) { self.details(1 - self.me, a.epoch).1 } else { u64::MAX };
        let value = match said.has(SMALL) {
            true => said.small(),
            false => other.values[a.epoch as usize % 2].load(Relaxed),
        };
        let tag = Tag::decode(said.byte() & !(SMALL | REDUCED), value);
        if mine.agrees(tag) {
            return Verdict::Agreed { aux: a.aux.min(aux), tag: if mine == Tag::Plain { tag } else { mine } };
        }
        let mut both = [(self.me as u32, mine), (1 - self.me as u32, tag)];
        both.sort_by_key(|x| x.0);
        Verdict::Disagreed(both)
    }

    #[inline(never)]
    fn write_slot(&self, epoch: u64, kind: u64, value: u64, aux: u64) {
        let mine = &self.places.slot(self.me).0[epoch as usize % 2];
        mine.value.store(value, Relaxed);
        mine.aux.store(aux, Relaxed);
        mine.word.store(epoch << 8 | kind, Relaxed);
    }

    /// The tag and `aux` of rank r in this epoch; it did not touch its slot if it had none.
    fn details(&self, r: usize, epoch: u64) -> (Tag, u64) {
        let d = &self.places.slot(r).0[epoch as usize % 2];
        let word = d.word.load(Relaxed);
        match word >> 8 == epoch {
            true => (Tag::decode(word & 0xff, d.value.load(Relaxed)), d.aux.load(Relaxed)),
            false => (Tag::Plain, u64::MAX),
        }
    }

    #[inline(never)]
    fn arrive_tree(&self, epoch: u64, kind: u64, value: u64, aux: u64) {
        let mut tagged = kind != 0 || aux != u64::MAX;
        if tagged {
            self.write_slot(epoch, kind, value, aux);
        }
        for &(index, expected) in &self.path {
            let counter = &self.places.counter(index as usize).0;
            let before = counter.fetch_add(1 + (u32::from(tagged) << 16), AcqRel);
            if (before & 0xffff) + 1 < expected {
                return;
            }
            tagged |= before >> 16 != 0;
            counter.store(0, Relaxed);
        }
        self.release(epoch, tagged);
    }

    /// Run by the last to arrive.
    fn release(&self, epoch: u64, tagged: bool) {
        if let Some(beyond) = &self.beyond {
            let all = if tagged { self.digest(epoch) } else { Digest::of(self.name(0), Tag::Plain, u64::MAX) };
            return beyond(epoch, all);
        }
        open(&self.places, self.n, epoch, tagged.then(|| self.digest(epoch)).as_ref());
    }

    /// What all ranks of this node have said.
    #[inline(never)]
    fn digest(&self, epoch: u64) -> Digest {
        let of = |r| {
            let (tag, aux) = self.details(r, epoch);
            Digest::of(self.name(r), tag, aux)
        };
        (0..self.n).map(of).reduce(Digest::merge).expect("a rank")
    }

    fn verdict_of_tree(&self) -> Verdict {
        let release = self.places.release();
        let word = release.word.load(Relaxed);
        if word & 2 == 0 {
            return Verdict::Agreed { aux: u64::MAX, tag: Tag::Plain };
        }
        let [a, b] = [0, 1].map(|i| {
            let rank = release.ranks[i].load(Relaxed);
            ((rank >> 8) as u32, Tag::decode(rank & 0xff, release.values[i].load(Relaxed)))
        });
        match word & 1 {
            0 => Verdict::Agreed { aux: release.aux.load(Relaxed), tag: a.1 },
            _ => Verdict::Disagreed([a, b]),
        }
    }
}

/// Lets all ranks of the barrier at these places go on, with what came of it if anybody had something to say.
#[inline]
pub fn open(places: &impl Places, n: usize, epoch: u64, said: Option<&Digest>) {
    let release = places.release();
    let said = said.filter(|digest| !digest.is_bare());
    let bad = said.is_some_and(|digest| write_verdict(release, digest));
    release.word.store(epoch << 2 | u64::from(said.is_some()) << 1 | u64::from(bad), Release);
    light_fence();
    if release.sleepers.any() {
        wake_all(places, n);
    }
}

#[cold]
fn wake_all(places: &impl Places, n: usize) {
    (0..n).for_each(|r| places.bell(r).ring_after_fence());
}

/// Leaves the verdict for all; true if ranks disagreed.
#[inline(never)]
fn write_verdict(release: &Release, digest: &Digest) -> bool {
    let (aux, two, bad) = match digest.verdict() {
        Verdict::Agreed { aux, tag } => (aux, [(0, tag); 2], false),
        Verdict::Disagreed(two) => (digest.aux, two, true),
    };
    release.aux.store(aux, Relaxed);
    for (i, (rank, tag)) in two.into_iter().enumerate() {
        let (kind, value) = tag.encode();
        release.ranks[i].store(u64::from(rank) << 8 | kind, Relaxed);
        release.values[i].store(value, Relaxed);
    }
    bad
}

/// The places on the heap, for tests and models.
#[cfg(test)]
mod testing {
    use super::*;
    use crate::record::Record;

    pub struct Heap {
        pair: Pair,
        slots: Vec<Slot>,
        counters: Vec<Counter>,
        release: Release,
        bells: Vec<Bell>,
        pub records: Vec<Record>,
        pub abort: AtomicU32,
    }

    impl Heap {
        pub fn new(n: usize) -> Heap {
            let many = |k: usize| 0..k;
            Heap {
                pair: Pair::default(),
                slots: many(n).map(|_| Slot::default()).collect(),
                counters: many(2 * n).map(|_| Counter::default()).collect(),
                release: Release::default(),
                bells: many(n).map(|_| Bell::default()).collect(),
                records: many(n).map(|_| Record::default()).collect(),
                abort: AtomicU32::new(0),
            }
        }
    }

    pub fn waiter(heap: &Heap, r: usize, cores: crate::wait::Cores) -> Waiter<'_> {
        Waiter::new(&heap.bells[r], heap.release.sleepers(), &heap.records[r], &heap.abort, cores)
    }

    pub fn meet<P: Places>(b: &Barrier<P>, w: &Waiter<'_>, tag: Tag, aux: u64) -> Verdict {
        let arrived = b.arrive(tag, aux);
        match b.wait(arrived, w, || Site::here("barrier"), || false).unwrap() {
            Met::Bare => Verdict::Agreed { aux: u64::MAX, tag },
            Met::WithDetails => b.verdict(arrived),
        }
    }

    // SAFETY: a borrowed heap does not move.
    unsafe impl Places for &Heap {
        fn pair(&self) -> &Pair {
            &self.pair
        }
        fn slot(&self, r: usize) -> &Slot {
            &self.slots[r]
        }
        fn counter(&self, i: usize) -> &Counter {
            &self.counters[i]
        }
        fn release(&self) -> &Release {
            &self.release
        }
        fn bell(&self, r: usize) -> &Bell {
            &self.bells[r]
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::testing::{Heap, meet, waiter};
    use super::*;
    use crate::wait::Cores;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    /// Runs `body` on n threads, each with its barrier and a function that meets and returns the verdict.
    fn ranks(n: usize, radix: usize, body: impl Fn(usize, &dyn Fn(Tag, u64) -> Verdict) + Sync) {
        let heap = Heap::new(n);
        std::thread::scope(|s| {
            let start = |r| {
                let (heap, body) = (&heap, &body);
                s.spawn(move || {
                    let b = Barrier::new(heap, r, n, radix);
                    let w = waiter(heap, r, Cores::Shared);
                    body(r, &|tag, aux| meet(&b, &w, tag, aux));
                })
            };
            // A watchdog: if the barrier hangs, it says where each rank is and ends the waits.
            let (done, watched) = std::sync::mpsc::channel::<()>();
            let watchdog = s.spawn({
                let heap = &heap;
                move || {
                    if watched.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                        let doing: Vec<_> = heap.records.iter().map(|r| r.read()).collect();
                        eprintln!("{n} ranks, radix {radix}, hang: {doing:?}");
                        heap.abort.store(1, Release);
                        (0..n).for_each(|r| heap.bell(r).ring());
                    }
                }
            });
            // Joined by hand: the end of a scope is not seen by the thread sanitizer.
            let ranks: Vec<_> = (0..n).map(start).collect();
            ranks.into_iter().for_each(|r| r.join().unwrap());
            drop(done);
            watchdog.join().unwrap();
        });
    }

    const PLAIN: Verdict = Verdict::Agreed { aux: u64::MAX, tag: Tag::Plain };
    const SHAPES: [(usize, usize); 12] =
        [(1, 0), (2, 0), (3, 0), (3, 2), (4, 2), (5, 2), (7, 3), (8, 2), (9, 4), (16, 4), (16, 0), (17, 4)];

    #[test]
    fn nobody_leaves_before_the_last_has_come() {
        for (n, radix) in SHAPES {
            let come = AtomicUsize::new(0);
            ranks(n, radix, |_, meet| {
                for i in 1..=200 {
                    come.fetch_add(1, Relaxed);
                    assert_eq!(meet(Tag::Plain, u64::MAX), PLAIN);
                    let seen = come.load(Relaxed);
                    assert!(seen >= i * n && seen <= (i + 1) * n, "{n} ranks, radix {radix}: {seen} at {i}");
                    meet(Tag::Plain, u64::MAX);
                }
            });
        }
    }

    #[test]
    fn values_are_reduced_and_tags_compared() {
        for (n, radix) in SHAPES {
            ranks(n, radix, |r, meet| {
                for i in 0..50u64 {
                    let tag = Tag::Call(Call::AllocAll, i);
                    assert_eq!(meet(tag, 100 + r as u64), Verdict::Agreed { aux: 100, tag });
                    // Given values are equal; who gives none agrees with all.
                    let tag = if r % 2 == 0 { Tag::Value(i) } else { Tag::Plain };
                    let agreed = Verdict::Agreed { aux: u64::MAX, tag: Tag::Value(i) };
                    assert_eq!(meet(tag, u64::MAX), agreed);
                    assert_eq!(
                        meet(Tag::Plain, u64::MAX - r as u64),
                        Verdict::Agreed { aux: u64::MAX - (n as u64 - 1), tag: Tag::Plain }
                    );
                    if n > 1 {
                        let odd = i as usize % n;
                        let tag = if r == odd { Tag::Exit } else { Tag::Value(7) };
                        let Verdict::Disagreed([a, b]) = meet(tag, u64::MAX) else { panic!("{n}: not noticed") };
                        assert!(a.0 < b.0, "{a:?} {b:?}");
                        assert!([a, b].contains(&(odd as u32, Tag::Exit)), "{odd}: {a:?} {b:?}");
                        assert!(a.1 == Tag::Value(7) || b.1 == Tag::Value(7));
                        let tag = if r == odd { Tag::Exit } else { Tag::Plain };
                        assert!(matches!(meet(tag, u64::MAX), Verdict::Disagreed(_)), "plain against exit");
                    }
                }
            });
        }
    }

    #[test]
    fn equal_tags_need_no_more_words() {
        for (n, radix) in SHAPES {
            ranks(n, radix, |r, meet| {
                for i in 0..300u64 {
                    let large = i << 40 | i;
                    let tag = [Tag::Value(i), Tag::Call(Call::Phase, large), Tag::Plain, Tag::Exit][i as usize % 4];
                    assert_eq!(meet(tag, u64::MAX), Verdict::Agreed { aux: u64::MAX, tag });
                    if n > 1 && i % 5 == 0 {
                        let tag = Tag::Call(Call::Phase, if r == 0 { i } else { i + 1 });
                        assert!(matches!(meet(tag, u64::MAX), Verdict::Disagreed([(0, _), (1, _)])));
                    }
                }
            });
        }
    }

    #[test]
    fn a_word_speaks_of_two_arrivals_and_epochs_wrap() {
        let says = [Said(0), Said(23 | SMALL | 0x7fff << 8), Said(16 | REDUCED), Said(1 | SMALL | 5 << 8)];
        for epoch in [1, 2, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 40) - 1, 1 << 40] {
            for (now, before) in says.iter().flat_map(|&a| says.map(|b| (a, b))) {
                let word = word_of(epoch, now, before);
                assert!(has_come(word, epoch) && has_come(word, epoch - 1) && !has_come(word, epoch + 1), "{epoch}");
                assert!(said_at(word, epoch) == now && said_at(word, epoch - 1) == before, "{epoch}");
            }
        }
    }

    #[test]
    fn tags_survive_their_encoding() {
        for t in [
            Tag::Plain,
            Tag::Value(0),
            Tag::Value(u64::MAX),
            Tag::Exit,
            Tag::Call(Call::FreeAll, 3),
            Tag::Call(Call::AtomicDomain, 5),
        ] {
            let (kind, value) = t.encode();
            assert_eq!(Tag::decode(kind, value), t);
        }
        assert!(!Tag::Value(1).agrees(Tag::Value(2)));
        assert!(!Tag::Plain.agrees(Tag::Exit));
        assert!(!Tag::Call(Call::AllocAll, 1).agrees(Tag::Call(Call::FreeAll, 1)));
    }
}

/// The real barrier and the real parking under every interleaving that loom allows. A missing fence in
/// [`Bell::ring`], in the release or in the parking shows as a deadlock, a missing release or acquire as a wrong sum.
#[cfg(all(test, loom))]
mod models {
    use super::{testing::Heap, *};
    use crate::wait::Cores;
    use loom::sync::Arc;

    fn meet(n: usize, radix: usize, rounds: u64) {
        let mut model = loom::model::Builder::new();
        // Bounds that finish in seconds; LOOM_MAX_PREEMPTIONS sets another for all.
        if model.preemption_bound.is_none() {
            model.preemption_bound = Some(if n == 2 { 5 } else { 3 } - rounds as usize);
        }
        model.check(move || {
            let heap = Arc::new((Heap::new(n), (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>()));
            let rank = move |heap: Arc<(Heap, Vec<AtomicU64>)>, r: usize| {
                let (heap, data) = &*heap;
                let b = Barrier::new(heap, r, n, radix);
                let w = super::testing::waiter(&heap, r, Cores::Own);
                for i in 1..=rounds {
                    data[r].store(i, Relaxed);
                    let verdict = super::testing::meet(&b, &w, Tag::Plain, u64::MAX);
                    assert_eq!(verdict, Verdict::Agreed { aux: u64::MAX, tag: Tag::Plain });
                    for d in data {
                        assert!(d.load(Relaxed) >= i, "the barrier published nothing");
                    }
                }
            };
            let others: Vec<_> = (1..n)
                .map(|r| {
                    let heap = heap.clone();
                    loom::thread::spawn(move || rank(heap, r))
                })
                .collect();
            rank(heap, 0);
            for o in others {
                o.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_pair() {
        meet(2, 0, 2);
    }

    #[test]
    fn loom_pair_three_rounds() {
        meet(2, 0, 3);
    }

    #[test]
    fn loom_central_three() {
        meet(3, 0, 1);
    }

    #[test]
    fn loom_central_three_twice() {
        meet(3, 0, 2);
    }

    #[test]
    fn loom_tree_three() {
        meet(3, 2, 1);
    }

    #[test]
    fn loom_pair_with_tags() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(2));
        model.check(|| {
            let heap = Arc::new(Heap::new(2));
            // The same, different values, something to reduce: each round's words are not the next one's.
            let side = |heap: Arc<Heap>, r: usize| {
                let b = Barrier::new(&*heap, r, 2, 0);
                let w = super::testing::waiter(&heap, r, Cores::Own);
                let meet = |tag, aux| super::testing::meet(&b, &w, tag, aux);
                let tag = Tag::Call(Call::Phase, 1 << 30);
                assert_eq!(meet(tag, u64::MAX), Verdict::Agreed { aux: u64::MAX, tag });
                let ours = |r: usize| Tag::Call(Call::Phase, (1 << 20) + r as u64);
                assert_eq!(meet(ours(r), u64::MAX), Verdict::Disagreed([(0, ours(0)), (1, ours(1))]));
                assert_eq!(meet(Tag::Exit, 5 + r as u64), Verdict::Agreed { aux: 5, tag: Tag::Exit });
            };
            let h = heap.clone();
            let t = loom::thread::spawn(move || side(h, 1));
            side(heap, 0);
            t.join().unwrap();
        });
    }

    #[test]
    fn loom_disagreement_is_the_same_for_both() {
        loom::model(|| {
            let heap = Arc::new(Heap::new(2));
            let side = |heap: Arc<Heap>, r: usize, tag: Tag| {
                let b = Barrier::new(&*heap, r, 2, 0);
                let w = super::testing::waiter(&heap, r, Cores::Own);
                super::testing::meet(&b, &w, tag, u64::MAX)
            };
            let h = heap.clone();
            let t = loom::thread::spawn(move || side(h, 1, Tag::Exit));
            let mine = side(heap, 0, Tag::Value(5));
            assert_eq!(mine, Verdict::Disagreed([(0, Tag::Value(5)), (1, Tag::Exit)]));
            assert_eq!(t.join().unwrap(), mine);
        });
    }
}
