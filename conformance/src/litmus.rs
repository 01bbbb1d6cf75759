//! Litmus programs: a few accesses of a few ranks, again and again, and what they may not come to by what
//! `docs/memory-model.md` promises.
//!
//! A *shape* says which rank writes and reads which of two words in which order; a *way* by which calls, and what lies
//! between two of them. Each program has thousands of instances at a time, with two words each: the ranks are shuffled and
//! form groups, the words of a group lie on any two ranks, and every rank goes through the instances at a pace of its own.
//! What was promised is asserted of every instance. What is not is counted: where nothing orders the accesses a machine may show
//! it, and that shows that these programs could.

use crate::{Random, mixed, plenty};
use partage::prelude::*;
use std::cell::Cell;
use std::hint::black_box;

/// The case of the suite.
pub const CASES: [crate::Case; 1] = [("litmus programs", |job| {
    let litmus = Litmus::new(job);
    litmus.round(plenty(job, 400) as u64, plenty(job, litmus.instances()).min(litmus.instances()));
    litmus.end();
})];

/// Something that a rank does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, u64),
    Read(usize),
}
use Step::{Read, Write};

/// What each rank of a group does. An outcome is all that was read, rank by rank, and then the words if they matter.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    ranks: &'static [&'static [Step]],
    words: bool,
    forbidden: fn(&[u64]) -> bool,
}

/// A flag is seen, and what was written before it is not.
const MESSAGE: Shape = Shape {
    name: "message passing",
    ranks: &[&[Write(0, 1), Write(1, 1)], &[Read(1), Read(0)]],
    words: false,
    forbidden: |o| *o == [1, 0],
};
/// Two ranks write, then read, and neither sees the other's.
const STORES: Shape = Shape {
    name: "store buffering",
    ranks: &[&[Write(0, 1), Read(1)], &[Write(1, 1), Read(0)]],
    words: false,
    forbidden: |o| *o == [0, 0],
};
/// Two ranks read, then write, and both see the other's.
const LOADS: Shape = Shape {
    name: "load buffering",
    ranks: &[&[Read(0), Write(1, 1)], &[Read(1), Write(0, 1)]],
    words: false,
    forbidden: |o| *o == [1, 1],
};
/// Somebody sees a word go back.
const COHERENCE: Shape = Shape {
    name: "coherence",
    ranks: &[&[Write(0, 1), Write(0, 2)], &[Read(0), Read(0)]],
    words: true,
    forbidden: |o| o[0] > o[1] || o[2] != 2,
};
/// Two see the writes of two others to one word in different orders.
const ONE_ORDER: Shape = Shape {
    name: "one order of a word",
    ranks: &[&[Write(0, 1)], &[Write(0, 2)], &[Read(0), Read(0)], &[Read(0), Read(0)]],
    words: false,
    forbidden: |o| matches!(*o, [1, 2, 2, 1] | [2, 1, 1, 2] | [1 | 2, 0, ..] | [_, _, 1 | 2, 0]),
};
/// The same of two words.
const INDEPENDENT: Shape = Shape {
    name: "independent reads",
    ranks: &[&[Write(0, 1)], &[Write(1, 1)], &[Read(0), Read(1)], &[Read(1), Read(0)]],
    words: false,
    forbidden: |o| *o == [1, 0, 1, 0],
};
/// A flag is seen of somebody who had seen a write, and the write is not.
const CAUSALITY: Shape = Shape {
    name: "causality",
    ranks: &[&[Write(0, 1)], &[Read(0), Write(1, 1)], &[Read(1), Read(0)]],
    words: false,
    forbidden: |o| *o == [1, 1, 0],
};
/// Of two ranks that write two words, each comes first at its second.
const WRITES: Shape = Shape {
    name: "two writes each",
    ranks: &[&[Write(0, 1), Write(1, 2)], &[Write(1, 1), Write(0, 2)]],
    words: true,
    forbidden: |o| *o == [1, 1],
};
/// A rank sees a write and writes; another writes over that and does not see the first.
const OVERWRITTEN: Shape = Shape {
    name: "read, then overwritten",
    ranks: &[&[Write(0, 1)], &[Read(0), Write(1, 1)], &[Write(1, 2), Read(0)]],
    words: true,
    forbidden: |o| *o == [1, 0, 1, 2],
};

/// The call that a step is.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// `put`, `get`.
    Plain,
    /// `store`, which nobody waits for; `fetch`.
    Started,
    /// Atomics: `store`, `load`.
    Relaxed,
    Default,
    Strict,
    /// Atomics that read and write.
    Exchange,
    StrictExchange,
    /// A relaxed atomic, which nobody waits for.
    StartedAtomic,
}

/// What lies between two steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    Fence,
    Quiet,
    Barrier,
    /// Nothing: all steps of a rank are made under a lock.
    Locked,
}

/// How steps are done.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    /// How each word is read, and how it is written.
    calls: [[Call; 2]; 2],
    between: Between,
}

const fn all(name: &'static str, call: Call, between: Between) -> Way {
    Way { name, calls: [[call; 2]; 2], between }
}

const fn reads_and_writes(name: &'static str, read: Call, write: Call) -> Way {
    Way { name, calls: [[read, write]; 2], between: Between::Nothing }
}

/// The first word is data, the second says that it is there.
const fn flag(name: &'static str, data: Call, flag: Call) -> Way {
    Way { name, calls: [[data; 2], [flag; 2]], between: Between::Nothing }
}

const PLAIN: Way = all("puts and gets", Call::Plain, Between::Nothing);
const RELAXED: Way = all("relaxed atomics", Call::Relaxed, Between::Nothing);
const DEFAULT: Way = all("atomics", Call::Default, Between::Nothing);
const EXCHANGE: Way = all("exchanges", Call::Exchange, Between::Nothing);
const STRICT: Way = all("strict atomics", Call::Strict, Between::Nothing);
const PLAIN_FENCE: Way = all("puts and gets, fences", Call::Plain, Between::Fence);
const PLAIN_QUIET: Way = all("puts and gets, quiet", Call::Plain, Between::Quiet);
const PLAIN_BARRIER: Way = all("puts and gets, barriers", Call::Plain, Between::Barrier);
const PLAIN_LOCK: Way = all("puts and gets, a lock", Call::Plain, Between::Locked);
const STARTED_LOCK: Way = all("started puts and gets, a lock", Call::Started, Between::Locked);
const RELAXED_FENCE: Way = all("relaxed atomics, fences", Call::Relaxed, Between::Fence);
const STARTED_FENCE: Way = all("started puts and gets, fences", Call::Started, Between::Fence);
const STARTED_ATOMIC_FENCE: Way = all("started relaxed atomics, fences", Call::StartedAtomic, Between::Fence);
const FLAG: Way = flag("puts, an atomic flag", Call::Plain, Call::Default);
const EXCHANGED_FLAG: Way = flag("puts, an exchanged flag", Call::Plain, Call::Exchange);
const STARTED_FLAG: Way = flag("started puts, an atomic flag", Call::Started, Call::Default);
const STARTED_STRICT_FLAG: Way = flag("started puts, a strict flag", Call::Started, Call::Strict);
const STRICT_WRITES: Way = reads_and_writes("strict stores, gets", Call::Plain, Call::Strict);
const STRICT_READS: Way = reads_and_writes("puts, strict loads", Call::Strict, Call::Plain);
const STRICT_EXCHANGE_WRITES: Way = reads_and_writes("strict exchanges, gets", Call::Plain, Call::StrictExchange);
const STRICT_EXCHANGE_READS: Way = reads_and_writes("puts, strict exchanges", Call::StrictExchange, Call::Plain);
const STARTED_STRICT_READS: Way = reads_and_writes("started puts, strict loads", Call::Strict, Call::Started);

/// The ways in which a shape's outcome is ruled out, and those in which it is not.
type Programs = (Shape, &'static [Way], &'static [Way]);

const PROGRAMS: &[Programs] = &[
    (
        MESSAGE,
        &[
            DEFAULT,
            EXCHANGE,
            STRICT,
            RELAXED_FENCE,
            PLAIN_FENCE,
            PLAIN_QUIET,
            PLAIN_BARRIER,
            PLAIN_LOCK,
            STARTED_LOCK,
            FLAG,
            EXCHANGED_FLAG,
            STRICT_WRITES,
            STRICT_READS,
            STARTED_FENCE,
            STARTED_ATOMIC_FENCE,
            STARTED_STRICT_FLAG,
        ],
        &[PLAIN, RELAXED, STARTED_FLAG],
    ),
    (
        STORES,
        &[
            STRICT,
            RELAXED_FENCE,
            PLAIN_FENCE,
            PLAIN_QUIET,
            PLAIN_BARRIER,
            PLAIN_LOCK,
            STARTED_LOCK,
            STRICT_WRITES,
            STRICT_READS,
            STRICT_EXCHANGE_WRITES,
            STRICT_EXCHANGE_READS,
            STARTED_FENCE,
            STARTED_ATOMIC_FENCE,
            STARTED_STRICT_READS,
        ],
        &[PLAIN, RELAXED, DEFAULT],
    ),
    (
        LOADS,
        &[DEFAULT, EXCHANGE, STRICT, RELAXED_FENCE, PLAIN_FENCE, PLAIN_LOCK, FLAG, STRICT_WRITES, STRICT_READS],
        &[PLAIN, RELAXED],
    ),
    (COHERENCE, &[PLAIN, RELAXED, DEFAULT, EXCHANGE, STRICT, STRICT_WRITES], &[]),
    (ONE_ORDER, &[PLAIN, RELAXED, DEFAULT, EXCHANGE, STRICT, STRICT_READS], &[]),
    (INDEPENDENT, &[STRICT, RELAXED_FENCE, PLAIN_FENCE, PLAIN_LOCK, STRICT_READS], &[PLAIN, DEFAULT]),
    (CAUSALITY, &[DEFAULT, EXCHANGE, STRICT, RELAXED_FENCE, PLAIN_FENCE, PLAIN_LOCK, FLAG], &[PLAIN]),
    (WRITES, &[STRICT, RELAXED_FENCE, PLAIN_FENCE, PLAIN_LOCK, STRICT_WRITES], &[PLAIN, DEFAULT]),
    (OVERWRITTEN, &[STRICT, RELAXED_FENCE, PLAIN_FENCE, PLAIN_LOCK, STRICT_WRITES, STRICT_READS], &[PLAIN, DEFAULT]),
];

/// Shape, way, and whether the outcome is ruled out.
fn programs() -> impl Iterator<Item = (Shape, Way, bool)> {
    PROGRAMS.iter().flat_map(|&(shape, never, perhaps)| {
        let [never, perhaps] =
            [(never, true), (perhaps, false)].map(|(ways, promised)| ways.iter().map(move |&way| (way, promised)));
        never.chain(perhaps).map(move |(way, promised)| (shape, way, promised))
    })
}

/// Bits of a value in a number that is an outcome; there are at most four values.
const BITS: usize = 2;
const OUTCOMES: usize = 1 << (4 * BITS);
/// Most ranks of a group.
const MOST: usize = 4;
/// Words are this far apart: each has a line of its own.
const APART: usize = 8;

/// All programs, and what came of them so far.
pub struct Litmus<'j> {
    job: &'j Job,
    /// Instances of a program at a time.
    instances: usize,
    /// How often a rank may look for another in a run.
    looks: u32,
    /// On every rank: two words of each instance of each group, twice, so that those of one run are left alone in the next.
    words: GlobalPtr<u64>,
    /// On every rank: what each rank of its group has read in each instance.
    read: GlobalPtr<u32>,
    /// On every rank: the instance at which it is.
    at: GlobalPtr<u64>,
    /// On rank 0: how often each outcome of each program came.
    counts: GlobalPtr<u64>,
    locks: Mutexes<()>,
    /// How many programs have run.
    runs: Cell<usize>,
}

impl<'j> Litmus<'j> {
    /// Collective.
    pub fn new(job: &'j Job) -> Litmus<'j> {
        let far = job.ranks().any(|rank| !job.same_node(rank));
        let slow = far || std::env::var("PARTAGE_REFERENCE").is_ok_and(|text| text != "0");
        let instances = if slow { 64 } else { 1024 };
        // A look is some nanoseconds; a rank that has its core is there within milliseconds.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let looks = match () {
            () if slow => 0,
            () if job.size() <= cores => 1_000_000,
            () => 20_000,
        };
        let groups = job.size() / 2;
        Litmus {
            job,
            instances,
            looks,
            words: job.alloc_all(2 * groups * 2 * instances * APART).expect("words"),
            read: job.alloc_all(MOST * instances).expect("what was read"),
            at: job.alloc_all(1).expect("a word"),
            counts: job.alloc_all(programs().count() * OUTCOMES).expect("counts").on(Rank(0)),
            locks: job.mutexes(Layout::per_rank(4)).expect("locks"),
            runs: Cell::new(0),
        }
    }

    /// How many instances of a program there can be at a time.
    pub fn instances(&self) -> usize {
        self.instances
    }

    /// Collective: every program once, with so many instances for each group.
    pub fn round(&self, seed: u64, instances: usize) {
        for (number, program) in programs().enumerate() {
            self.run(number, program, mixed([seed, number as u64]), instances.min(self.instances));
        }
    }

    fn run(&self, number: usize, (shape, way, promised): (Shape, Way, bool), seed: u64, instances: usize) {
        self.runs.set(self.runs.get() + 1);
        let (job, all) = (self.job, self.job.size());
        let size = shape.ranks.len();
        let meets = way.between == Between::Barrier;
        // What waits for others takes its time.
        let instances = match way.between {
            Between::Barrier => instances.div_ceil(32),
            Between::Locked => instances.div_ceil(8),
            _ => instances,
        };
        // The same on every rank: who is in which group, and where its words are.
        let mut random = Random::new(seed);
        let mut order: Vec<usize> = (0..all).collect();
        (1..all).for_each(|i| order.swap(i, random.below(i + 1)));
        let owners: Vec<[usize; 2]> = (0..all / size).map(|_| [0, 1].map(|_| random.below(all))).collect();
        let place = order.iter().position(|&rank| rank == job.rank().index()).expect("everybody is somewhere");
        let (group, role) = (place / size, place % size);
        let word = |i: usize, word: usize| {
            let block = (self.runs.get() % 2 * (all / 2) + group) * 2 + word;
            let owner = Rank(owners[group][word] as u32);
            self.words.on(owner).add((block * self.instances + i) * APART)
        };
        let others = &order[group * size..all.min((group + 1) * size)];
        let takes_part = others.len() == size;

        if takes_part && role == 0 {
            (0..2).for_each(|w| word(0, w).fill(job, instances * APART, 0));
        }
        self.at.put(job, 0);
        job.barrier();

        let mut random = Random::new(seed ^ (place as u64 + 1) << 40);
        let (mut read, mut looks) = (vec![0; instances], self.looks);
        for (i, read) in read.iter_mut().enumerate() {
            match takes_part {
                true => {
                    self.keep_pace(i as u64, &mut looks, &mut random, Rank(others[(role + 1) % size] as u32));
                    let lock = || self.locks.lock((group + 5 * i) % self.locks.len());
                    let _guard = (way.between == Between::Locked).then(lock);
                    for (k, step) in shape.ranks[role].iter().enumerate() {
                        if k > 0 {
                            way.lie_between(job);
                        }
                        if let Some(value) = way.step(job, *step, |w| word(i, w)) {
                            *read = *read << BITS | value as u32;
                        }
                    }
                    if meets && shape.ranks[role].len() == 1 {
                        way.lie_between(job);
                    }
                }
                false if meets => way.lie_between(job),
                false => {}
            }
        }
        if takes_part {
            // A put that is started is not complete before somebody waits for it.
            job.quiet();
            let collector = self.read.on(Rank(others[0] as u32));
            collector.add(role * self.instances).put_slice(job, &read);
        }
        job.barrier();

        if !takes_part || role > 0 {
            return;
        }
        let mut came = vec![0u64; OUTCOMES];
        let mut never = None;
        for i in 0..instances {
            let (mut outcome, mut missed) = (vec![], false);
            for (role, steps) in shape.ranks.iter().enumerate() {
                let all = self.read.add(role * self.instances + i).get(job);
                let reads = steps.iter().filter(|step| matches!(step, Read(_))).count();
                outcome.extend((0..reads).rev().map(|k| u64::from(all >> (k * BITS) & ((1 << BITS) - 1))));
                // What was written before a barrier is read after it.
                missed |= meets && matches!(steps, [_, Read(_)]) && outcome.last() != Some(&1);
            }
            if shape.words {
                outcome.extend((0..2).map(|w| word(i, w).get(job)));
            }
            came[outcome.iter().fold(0, |key, &value| key << BITS | value as usize)] += 1;
            if missed || (shape.forbidden)(&outcome) {
                never.get_or_insert(outcome);
            }
        }
        if let (true, Some(outcome)) = (promised, never) {
            let (name, by, owners) = (shape.name, way.name, owners[group]);
            panic!("{}: {name} by {by}: {outcome:?}; ranks {others:?}, words on {owners:?}", job.rank());
        }
        let counts = self.counts.add(number * OUTCOMES);
        came.iter().enumerate().filter(|(_, n)| **n > 0).for_each(|(key, &n)| counts.add(key).at(job).relaxed().add(n));
    }

    /// Ranks that are at the same instance at the same time show more: so this looks for the next one of the group, as often as it
    /// has looks left, and then counts for a moment.
    fn keep_pace(&self, i: u64, looks: &mut u32, random: &mut Random, other: Rank) {
        if self.looks > 0 {
            self.at.put(self.job, i);
        }
        while *looks > 0 && self.at.on(other).get(self.job) < i {
            *looks -= 1;
        }
        (0..random.below(40)).for_each(|k| _ = black_box(k));
    }

    /// Rank 0 says what came of every program. All ranks have ended their rounds.
    pub fn say(&self) {
        self.job.barrier();
        if self.job.rank() != Rank(0) {
            return;
        }
        for (number, (shape, way, promised)) in programs().enumerate() {
            let values =
                shape.ranks.iter().flat_map(|steps| steps.iter()).filter(|step| matches!(step, Read(_))).count()
                    + if shape.words { 2 } else { 0 };
            let (mut text, mut all, mut weak) = (String::new(), 0, 0);
            for key in 0..OUTCOMES {
                let n = self.counts.add(number * OUTCOMES + key).get(self.job);
                if n > 0 {
                    let outcome: Vec<u64> = (0..values).rev().map(|k| (key >> (k * BITS)) as u64 & 3).collect();
                    let digits: String = outcome.iter().map(|value| value.to_string()).collect();
                    text += &format!(" {digits}: {n}");
                    all += n;
                    weak += if (shape.forbidden)(&outcome) { n } else { 0 };
                }
            }
            if all == 0 {
                println!("{}, {}: no group of {} ranks", shape.name, way.name, shape.ranks.len());
                continue;
            }
            let verdict = if promised { "never".into() } else { format!("not promised, {weak} times") };
            println!("{}, {}: {all} instances, {verdict};{text}", shape.name, way.name);
        }
    }

    /// Collective.
    pub fn end(self) {
        let job = self.job;
        job.barrier();
        job.free_all(self.counts.on(job.rank()));
        job.free_all(self.at);
        job.free_all(self.read);
        job.free_all(self.words);
    }
}

impl Way {
    fn lie_between(self, job: &Job) {
        match self.between {
            Between::Nothing | Between::Locked => {}
            Between::Fence => job.fence(),
            Between::Quiet => job.quiet(),
            Between::Barrier => job.barrier(),
        }
    }

    /// Does it; what was read.
    #[inline(always)]
    fn step(self, job: &Job, step: Step, word: impl Fn(usize) -> GlobalPtr<u64>) -> Option<u64> {
        match step {
            Write(w, value) => {
                let (p, [_, call]) = (word(w), self.calls[w]);
                match call {
                    Call::Plain => p.put(job, value),
                    Call::Started => drop(p.store(job, vec![value])),
                    Call::Relaxed => p.at(job).relaxed().store(value),
                    Call::Default => p.at(job).store(value),
                    Call::Strict => p.at(job).strict().store(value),
                    Call::Exchange => _ = p.at(job).swap(value),
                    Call::StrictExchange => _ = p.at(job).strict().swap(value),
                    Call::StartedAtomic => drop(p.at(job).relaxed().start().store(value)),
                }
                None
            }
            Read(w) => {
                let (p, [call, _]) = (word(w), self.calls[w]);
                Some(match call {
                    Call::Plain => p.get(job),
                    Call::Started => p.fetch(job, 1).wait()[0],
                    Call::Relaxed => p.at(job).relaxed().load(),
                    Call::Default => p.at(job).load(),
                    Call::Strict => p.at(job).strict().load(),
                    Call::Exchange => p.at(job).fetch_add(0),
                    Call::StrictExchange => p.at(job).strict().fetch_add(0),
                    Call::StartedAtomic => p.at(job).relaxed().start().load().wait(),
                })
            }
        }
    }
}
