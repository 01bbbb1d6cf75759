//! Collectives: what every mapping must do.
//!
//! A `Call` is one call of a collective, drawn alike on all ranks. The oracle is arithmetic: block `b` of the source of rank `r`
//! is bytes that follow from the call's key, `r` and `b`; so each rank knows what its buffers have before and after. What does
//! not matter is trash, and stays as it is. Nothing here meets between calls unless a sync mode asks for it.

use crate::late::falls_behind;
use crate::{Case, Random, are, attempt, fill, is_left_out, is_short, mixed, plenty, refusal, value};
use partage::bytemuck::{cast_slice, cast_slice_mut};
use partage::coll::{Collective, NeedsTo, Ready, Source};
use partage::prelude::*;
use std::mem::forget;

/// The cases.
pub const CASES: [Case; 17] = [
    ("collectives of all kinds of buffers", kinds),
    ("collectives in every sync mode", modes),
    ("collectives of every root", roots),
    ("collectives by name", named),
    ("collectives of nothing", nothing),
    ("collectives of values", values),
    ("streams of collectives without barriers", streams),
    ("streams of collectives by letters", letters),
    ("streams of collectives that do not wait", unsynchronized),
    ("collectives that are under way together", together),
    ("collectives that go on in other waits", other_waits),
    ("collectives of plans", plans),
    ("collectives among everything else", among),
    ("a permutation without the third rank", without_the_third),
    ("collectives that wait for a late rank", late),
    ("what follows a collective disturbs nobody", afterwards),
    ("wrong collectives", wrong),
];

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Broadcast,
    Scatter,
    Gather,
    GatherAll,
    Exchange,
    Permute,
}
use Op::*;

const OPS: [Op; 6] = [Broadcast, Scatter, Gather, GatherAll, Exchange, Permute];
const CALLS: [&str; 6] = ["broadcast", "scatter", "gather", "gather_all", "exchange", "permute"];
const ROOTED: [Op; 3] = [Broadcast, Scatter, Gather];

const INS: [In; 3] = [In::No, In::My, In::All];
const OUTS: [Out; 3] = [Out::No, Out::My, Out::All];

/// An element that is neither a word nor a line.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Triple(u64, u64, [u16; 4]);

/// A call that all ranks make alike.
#[derive(Clone, Debug)]
struct Call {
    op: Op,
    root: usize,
    /// Where each rank's block goes, of a permutation.
    to: Vec<usize>,
    /// Elements of a block.
    n: usize,
    sync: (In, Out),
    algorithm: Option<&'static str>,
    /// Where the source is, and the destination, if it is not in place.
    from: Kind,
    into: Option<Kind>,
    /// What the data follow from.
    key: u64,
}

/// Which blocks a buffer has: how many there is room for, and at which of these places is which block of which rank.
#[derive(Debug)]
struct Blocks {
    room: usize,
    there: Vec<[usize; 3]>,
}

impl Call {
    fn new(team: &Team, op: Op, n: usize, (from, into): (Kind, Option<Kind>), random: &mut Random) -> Call {
        let size = team.size();
        let mut to: Vec<usize> = (0..size).collect();
        (1..size).for_each(|i| to.swap(i, random.below(i + 1)));
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        Call { op, root: random.below(size), to, n, sync, algorithm: None, from, into, key: random.draw() }
    }

    /// How many blocks the sources have where they matter, and is that at the root only?
    fn source_blocks(&self, size: usize) -> (usize, bool) {
        (if matches!(self.op, Scatter | Exchange) { size } else { 1 }, matches!(self.op, Broadcast | Scatter))
    }

    /// The same of the destinations.
    fn destination_blocks(&self, size: usize) -> (usize, bool) {
        (if matches!(self.op, Gather | GatherAll | Exchange) { size } else { 1 }, self.op == Gather)
    }

    /// What my source has before.
    fn source(&self, me: usize, size: usize) -> Blocks {
        let (room, rooted) = self.source_blocks(size);
        let there = if rooted && me != self.root { 0 } else { room };
        Blocks { room, there: (0..there).map(|b| [b, me, b]).collect() }
    }

    /// What my destination has after.
    fn result(&self, me: usize, size: usize) -> Blocks {
        let (room, rooted) = self.destination_blocks(size);
        let there = match self.op {
            _ if rooted && me != self.root => vec![],
            Broadcast => vec![[0, self.root, 0]],
            Scatter => vec![[0, self.root, me]],
            Gather | GatherAll => (0..size).map(|r| [r, r, 0]).collect(),
            Exchange => (0..size).map(|r| [r, r, me]).collect(),
            Permute => vec![[0, self.to.iter().position(|&to| to == me).expect("a permutation"), 0]],
        };
        Blocks { room, there }
    }

    /// What my one buffer has before and after.
    fn in_place(&self, me: usize, size: usize) -> [Blocks; 2] {
        let (mut before, mut after) = (self.source(me, size), self.result(me, size));
        match self.op {
            Scatter if me == self.root => after = self.source(me, size),
            Gather if me != self.root => after = self.source(me, size),
            Gather | GatherAll => before.there[0][0] = me,
            _ => {}
        }
        let room = match self.op {
            Broadcast | Permute => 1,
            Scatter | Gather if me != self.root => 1,
            _ => size,
        };
        (before.room, after.room) = (room, room);
        [before, after]
    }

    /// Of such a source.
    fn of<'a, S: Source<'a>>(&self, team: &'a Team, source: S) -> Collective<'a, S::Item, S::State> {
        let begun = match self.op {
            Broadcast => team.broadcast(source),
            Scatter => team.scatter(source),
            Gather => team.gather(source),
            GatherAll => team.gather_all(source),
            Exchange => team.exchange(source),
            Permute => team.permute(source, TeamRank(self.to[team.rank().index()] as u32)),
        };
        let rooted = if ROOTED.contains(&self.op) { begun.root(TeamRank(self.root as u32)) } else { begun };
        let ready = rooted.sync(self.sync.0, self.sync.1);
        match self.algorithm {
            Some(name) => ready.algorithm(name),
            None => ready,
        }
    }

    fn seed(&self, from: usize, block: usize) -> u64 {
        mixed([self.key, from as u64, block as u64])
    }

    /// A buffer with these blocks, and trash where there are none.
    fn contents<T: Pod>(&self, blocks: &Blocks) -> Vec<T> {
        let mut all = vec![T::zeroed(); blocks.room * self.n];
        fill(!self.key, cast_slice_mut(&mut all));
        for &[at, from, block] in &blocks.there {
            fill(self.seed(from, block), cast_slice_mut(&mut all[at * self.n..][..self.n]));
        }
        all
    }

    /// Has the buffer these blocks?
    #[track_caller]
    fn check<T: Pod>(&self, what: &str, me: TeamRank, blocks: &Blocks, all: &[T]) {
        for &[at, from, block] in &blocks.there {
            let right = are(self.seed(from, block), cast_slice(&all[at * self.n..][..self.n]));
            assert!(right, "{me:?}: {what}: block {block} of member {from} is not at {at}: {self:?}");
        }
        // Where nothing was to come, nothing has come.
        if blocks.there.is_empty() {
            assert!(are(!self.key, cast_slice(all)), "{me:?}: {what}: was touched: {self:?}");
        }
    }
}

/// Where a buffer is: a slice, a vector that grows, an array, a slice of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    Grown,
    Array,
    Slice,
}
const SLICES: (Kind, Option<Kind>) = (Kind::Slice, Some(Kind::Slice));
const KINDS: [Kind; 4] = [Kind::Private, Kind::Grown, Kind::Array, Kind::Slice];

enum Buffer<'p, T> {
    Private(Vec<T>),
    Grown(Vec<T>),
    Array(Box<SharedArray<T>>),
    /// Of a cyclic array, so many elements of each rank from this one on.
    Slice(&'p SharedArray<T>, usize, usize),
}

impl<'p, T: Pod> Buffer<'p, T> {
    fn is_shared(&self) -> bool {
        matches!(self, Buffer::Array(_) | Buffer::Slice(..))
    }

    /// My part of it.
    fn read(&self) -> Vec<T> {
        let part = |array: &SharedArray<T>, at, n| {
            let mut part = vec![T::zeroed(); n];
            array.cells().read(at, &mut part);
            part
        };
        match self {
            Buffer::Private(all) | Buffer::Grown(all) => all.clone(),
            Buffer::Array(array) => part(array, 0, array.local_len()),
            &Buffer::Slice(array, at, n) => part(array, at, n),
        }
    }

    /// Writes my part of it, or what it has of it.
    fn write(&mut self, values: &[T]) {
        match self {
            Buffer::Private(all) | Buffer::Grown(all) => *all = values.to_vec(),
            Buffer::Array(array) => array.cells().write(0, &values[..array.local_len()]),
            Buffer::Slice(array, at, n) => array.cells().write(*at, &values[..*n]),
        }
    }

    fn slice(array: &SharedArray<T>, at: usize, n: usize, size: usize) -> SharedSlice<'_, T> {
        array.slice(at * size..(at + n) * size)
    }

    fn source<'a>(&'a self, team: &'a Team, call: &Call) -> Collective<'a, T, NeedsTo> {
        match self {
            Buffer::Private(all) => call.of(team, &all[..]),
            Buffer::Grown(all) => call.of(team, all),
            Buffer::Array(array) => call.of(team, &**array),
            &Buffer::Slice(array, at, n) => call.of(team, Self::slice(array, at, n, team.size())),
        }
    }

    fn destination<'a, S>(&'a mut self, team: &'a Team, from: Collective<'a, T, S>) -> Collective<'a, T, Ready> {
        match self {
            Buffer::Private(all) => from.to(&mut all[..]),
            Buffer::Grown(all) => from.to(all),
            Buffer::Array(array) => from.to(&mut **array),
            &mut Buffer::Slice(array, at, n) => from.to(Self::slice(array, at, n, team.size())),
        }
    }

    fn in_place<'a>(&'a mut self, team: &'a Team, call: &Call) -> Collective<'a, T, Ready> {
        match self {
            Buffer::Private(all) => call.of(team, &mut all[..]),
            Buffer::Grown(all) => call.of(team, all),
            Buffer::Array(array) => call.of(team, &mut **array),
            Buffer::Slice(..) => unreachable!("a slice is no place"),
        }
    }
}

/// Arrays that are used again and again.
pub struct Pool<'j, T> {
    job: &'j Job,
    /// Whose members make the calls.
    team: &'j Team,
    /// What each rank has of each.
    room: usize,
    from: SharedArray<T>,
    into: SharedArray<T>,
}

/// The two ends of a call, and what they have before and after. Without a destination it is in place.
struct Ends<'p, T> {
    source: Buffer<'p, T>,
    destination: Option<Buffer<'p, T>>,
    before: Blocks,
    after: Blocks,
}

impl<'j, T: Pod> Pool<'j, T> {
    /// Collective.
    pub fn new(job: &'j Job, room: usize) -> Self {
        Pool::of(job, job.all(), room)
    }

    /// Collective, for a team.
    pub fn of(job: &'j Job, team: &'j Team, room: usize) -> Self {
        let [from, into] = [(); 2].map(|_| team.array(Layout::cyclic(room * team.size())).expect("a little memory"));
        Pool { job, team, room, from, into }
    }

    /// Collective. Whatever the pool has no room for from `at` on has an array of its own.
    fn ends(&self, call: &Call, at: usize) -> Ends<'_, T> {
        let (me, size) = (self.team.rank().index(), self.team.size());
        let (mine, before, after) = (me == call.root, call.source(me, size), call.result(me, size));
        let array = |room: usize, on_root: bool| {
            let layout = if on_root { Layout::on(call.root, room) } else { Layout::per_rank(room) };
            Buffer::Array(Box::new(self.team.array_unset(layout).expect("a little memory")))
        };
        let Some(into) = call.into else {
            let [before, after] = call.in_place(me, size);
            let mut source = match call.from {
                Kind::Private => Buffer::Private(vec![]),
                Kind::Grown => Buffer::Grown(vec![]),
                // What has another length at the root is in no array.
                _ if matches!(call.op, Scatter | Gather) => Buffer::Private(vec![]),
                _ => array(before.room * call.n, false),
            };
            source.write(&call.contents(&before));
            return Ends { source, destination: None, before, after };
        };
        let make = |kind: Kind, pool, rooted: bool, blocks: &Blocks| match kind {
            Kind::Private => Buffer::Private(vec![]),
            Kind::Grown => Buffer::Grown(vec![]),
            Kind::Slice if at + blocks.room * call.n <= self.room => Buffer::Slice(pool, at, blocks.room * call.n),
            _ => array(blocks.room * call.n, rooted && call.key.is_multiple_of(2)),
        };
        let (rooted_source, rooted_destination) = (matches!(call.op, Broadcast | Scatter), call.op == Gather);
        let mut source = make(call.from, &self.from, rooted_source, &before);
        let mut destination = make(into, &self.into, rooted_destination, &after);
        source.write(&call.contents(&before));
        let trash = call.contents(&Blocks { room: after.room, there: vec![] });
        destination.write(&trash);
        match (&mut source, &mut destination) {
            // Whoever is not asked may give nothing.
            (Buffer::Private(all), _) if rooted_source && !mine => all.clear(),
            (_, Buffer::Grown(all)) if rooted_destination && !mine => all.truncate(call.key as usize % 3),
            // What comes says how long it is.
            (_, Buffer::Grown(all)) if !matches!(call.op, Broadcast | Scatter) => all.truncate(1),
            _ => {}
        }
        Ends { source, destination: Some(destination), before, after }
    }

    /// Makes a call, and looks at what comes of it. Barriers are only where a sync mode asks for them. `at` is where in the pool.
    fn once(&self, call: &Call, at: usize) {
        let team = self.team;
        let mut ends = self.ends(call, at);
        let shared = ends.is_shared();
        if shared && call.sync.0 == In::No {
            team.barrier();
        }
        ends.of(team, call).run();
        if shared && call.sync.1 == Out::No {
            // What is private is complete all the same.
            ends.check_private(team, call);
            team.barrier();
        }
        ends.check(team, call);
        // Nobody reads it any more.
        let trash = call.contents(&Blocks { room: ends.before.room, there: vec![] });
        ends.source.write(&trash);
    }

    /// So many random calls on the same buffers, without barriers.
    pub fn stream(&self, times: usize, most: usize, random: &mut Random) {
        for _ in 0..times {
            let op = OPS[random.below(6)];
            let n = match random.below(8) {
                0 => random.below(most + 1),
                1 | 2 => random.below(most / 8 + 1),
                _ => random.below(12),
            };
            let from = [Kind::Private, Kind::Slice][random.below(2)];
            let into = [Kind::Private, Kind::Grown, Kind::Slice, Kind::Slice][random.below(4)];
            let kinds = if random.below(5) == 0 { (Kind::Private, None) } else { (from, Some(into)) };
            let (mut call, at) = (Call::new(self.team, op, n, kinds, random), random.below(3) * 7);
            if from == Kind::Slice || into == Kind::Slice {
                call.sync = (INS[1 + random.below(2)], OUTS[1 + random.below(2)]);
            }
            self.once(&call, at);
        }
    }

    /// So many random calls in every sync mode, each on buffers of its own, between two barriers. What a mode lets the program do
    /// before and after a call without a barrier, it does.
    pub fn batch(&self, times: usize, most: usize, random: &mut Random) {
        let (job, team, me) = (self.job, self.team, self.team.rank());
        let (mut used, mut calls) = (0, vec![]);
        for _ in 0..times {
            let most = [4, 4, most / 8, most][random.below(4)];
            let (op, n) = (OPS[random.below(6)], random.below(most + 1));
            let from = [Kind::Private, Kind::Slice, Kind::Slice][random.below(3)];
            let into = [Kind::Private, Kind::Grown, Kind::Slice, Kind::Slice][random.below(4)];
            let call = Call::new(team, op, n, (from, Some(into)), random);
            let room = (n + 1) * team.size();
            if used + room <= self.room {
                let mut ends = self.ends(&call, used);
                if call.sync.0 != In::No {
                    let trash = call.contents(&Blocks { room: ends.before.room, there: vec![] });
                    ends.source.write(&trash);
                }
                calls.push((call, ends));
                used += room;
            }
        }
        team.barrier();
        for (call, ends) in &mut calls {
            if call.sync.0 != In::No {
                let real = call.contents(&ends.before);
                if !ends.before.there.is_empty() {
                    ends.source.write(&real);
                }
            }
            if random.below(8) == 0 && random.below(team.size()) == me.index() {
                falls_behind(job, 20);
            }
            ends.of(team, call).run();
            if call.sync.1 != Out::No {
                ends.check(team, call);
                let trash = call.contents(&Blocks { room: ends.before.room, there: vec![] });
                ends.source.write(&trash);
            }
        }
        team.barrier();
        for (call, ends) in &calls {
            if call.sync.1 == Out::No {
                ends.check(team, call);
            } else if let Some(destination) = &ends.destination {
                call.check("the destination, later", me, &ends.after, &destination.read());
            }
        }
    }

    /// So many random calls under way at once, in every sync mode, and other things beside them. Each rank waits for them in its own
    /// order, or does not wait.
    pub fn together(&self, times: usize, most: usize, random: &mut Random) {
        let (job, team, mut own, mut used) = (self.job, self.team, random.clone(), 0);
        (0..job.rank().0).for_each(|_| _ = own.draw());
        // Others do not take part.
        let mut besides = (team.size() == job.size()).then(|| Besides::new(job));
        let mut calls = vec![];
        for _ in 0..times {
            let n = [2, 7, 40, most][random.below(4)].min(most);
            let from = [Kind::Private, Kind::Slice][random.below(2)];
            let into = [Some(Kind::Grown), Some(Kind::Private), Some(Kind::Slice), None][random.below(4)];
            let kinds = (if into.is_none() { Kind::Private } else { from }, into);
            let call = Call::new(team, OPS[random.below(6)], n, kinds, random);
            let ends = self.ends(&call, used);
            used += n * team.size();
            calls.push((call, ends));
        }
        team.barrier();
        job.scope(|s| {
            let mut events = vec![];
            for (call, ends) in &mut calls {
                events.push(ends.of(team, call).start(s));
                if let (0, Some(besides)) = (random.below(3), &mut besides) {
                    besides.something(random);
                }
            }
            while !events.is_empty() {
                let mut event = events.swap_remove(own.below(events.len()));
                match own.below(6) {
                    0 => drop(event),
                    1 => forget(event),
                    2 => job.block_on(event),
                    3 => {
                        _ = event.test();
                        event.wait();
                    }
                    _ => event.wait(),
                }
            }
        });
        // Out::No says that others may not be done.
        team.barrier();
        calls.iter().for_each(|(call, ends)| ends.check(team, call));
        besides.into_iter().for_each(Besides::end);
    }
}

impl<T: Pod> Ends<'_, T> {
    fn is_shared(&self) -> bool {
        self.source.is_shared() || self.destination.as_ref().is_some_and(Buffer::is_shared)
    }

    fn of<'a>(&'a mut self, team: &'a Team, call: &Call) -> Collective<'a, T, Ready> {
        match &mut self.destination {
            Some(destination) => destination.destination(team, self.source.source(team, call)),
            None => self.source.in_place(team, call),
        }
    }

    #[track_caller]
    fn check(&self, team: &Team, call: &Call) {
        let me = team.rank();
        match &self.destination {
            Some(destination) => {
                call.check("the destination", me, &self.after, &destination.read());
                call.check("the source", me, &self.before, &self.source.read());
            }
            None => call.check("in place", me, &self.after, &self.source.read()),
        }
    }

    #[track_caller]
    fn check_private(&self, team: &Team, call: &Call) {
        if let Some(destination) = self.destination.as_ref().filter(|d| !d.is_shared()) {
            call.check("the private destination", team.rank(), &self.after, &destination.read());
        }
    }
}

/// How many bytes all calls of a kind may have in all, and one of them.
fn budget() -> (usize, usize) {
    if cfg!(debug_assertions) { (256 << 10, 5 << 20) } else { (8 << 20, 40 << 20) }
}

fn kinds(job: &Job) {
    fn of<T: Pod>(job: &Job, lengths: &[usize], seed: u64) {
        let (pool, mut random) = (Pool::<T>::new(job, 20_000 / size_of::<T>()), Random::new(seed));
        let (all, one) = budget();
        for (op, &n) in OPS.into_iter().flat_map(|op| lengths.iter().map(move |n| (op, n))) {
            let blocks = if matches!(op, GatherAll | Exchange) { job.size() * job.size() } else { job.size() };
            let bytes = n * size_of::<T>() * blocks;
            if bytes > one || is_left_out(&mut random) {
                continue;
            }
            for _ in 0..(all / bytes.max(1)).clamp(1, (16 / job.size()).clamp(1, 4)) {
                let (from, into, at) = (KINDS[random.below(4)], KINDS[random.below(4)], random.below(9));
                let into = (random.below(4) != 0).then_some(into);
                let call = Call::new(job, op, n, (from, into), &mut random);
                pool.once(&call, at);
            }
        }
    }
    of::<u8>(job, &[0, 1, 7, 8, 24, 25, 56, 57, 64, 1000, 4096, 65537, 300_001], 1);
    of::<u64>(job, &[0, 1, 3, 7, 8, 125, 512, 8193], 2);
    of::<Triple>(job, &[0, 1, 2, 3, 43, 2731], 3);
}

fn modes(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 400 * job.size()), Random::new(4));
    let ends = [
        (Kind::Slice, Some(Kind::Slice)),
        (Kind::Slice, Some(Kind::Grown)),
        (Kind::Private, Some(Kind::Slice)),
        (Kind::Private, Some(Kind::Private)),
        (Kind::Private, None),
        (Kind::Array, None),
    ];
    for (op, kinds) in OPS.into_iter().flat_map(|op| ends.map(|ends| (op, ends))) {
        for (arrive, leave) in INS.into_iter().flat_map(|arrive| OUTS.map(|leave| (arrive, leave))) {
            if is_left_out(&mut random) {
                continue;
            }
            // As long as a letter, and longer.
            let n = [3, 40][random.below(2)];
            let call = Call { sync: (arrive, leave), ..Call::new(job, op, n, kinds, &mut random) };
            pool.once(&call, 1);
        }
    }
}

fn roots(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 300 * job.size()), Random::new(5));
    for (op, root) in ROOTED.into_iter().flat_map(|op| (0..job.size()).map(move |root| (op, root))) {
        for n in [1, 200] {
            let private = (Kind::Private, [Some(Kind::Grown), None][random.below(2)]);
            for kinds in [SLICES, private] {
                pool.once(&Call { root, ..Call::new(job, op, n, kinds, &mut random) }, 0);
            }
        }
    }
}

/// Algorithms by their names, also where they have no plan for a call.
fn named(job: &Job) {
    const NAMES: [&str; 23] = [
        "flat",
        "flat:push",
        "flat:pull",
        "flat:split",
        "flat:mail",
        "tree2",
        "tree2:pull",
        "tree3:push",
        "tree4:mail",
        "ring",
        "ring/8",
        "ring:pull",
        "scatter-gather2",
        "xor",
        "pairwise",
        "bruck",
        "dissemination",
        "leader",
        "leader1",
        "last",
        "flat@1k",
        "tree2@512",
        "ring@8k",
    ];
    let (pool, mut random) = (Pool::<u64>::new(job, 1200 * job.size()), Random::new(6));
    let mut taken = vec![];
    for (op, name) in OPS.into_iter().flat_map(|op| NAMES.map(move |name| (op, name))) {
        for kinds in [SLICES, (Kind::Private, Some(Kind::Private))] {
            // Letters are short.
            let n = [1, 3, 31, 600][random.below(if name.ends_with("mail") { 1 } else { 4 })];
            let call = Call { algorithm: Some(name), ..Call::new(job, op, n, kinds, &mut random) };
            if is_taken(&pool, &call) {
                taken.push(name);
            }
        }
    }
    // Where ranks are on several nodes, nobody does the work of all.
    let alone = |name: &str| name.starts_with('l');
    let all_taken = NAMES.iter().all(|name| alone(name) || taken.contains(name));
    assert!(all_taken, "{taken:?}");
}

/// Makes a call, unless its algorithm has no plan for it, which is said.
fn is_taken(pool: &Pool<u64>, call: &Call) -> bool {
    let refusal = attempt(|| pool.once(call, 2)).err();
    if let Some(said) = &refusal {
        let refused = format!("{}: {}: ", pool.job.rank(), CALLS[call.op as usize]);
        assert!(said.starts_with(&refused) && said.contains(" cannot be taken: "), "{said}");
    }
    refusal.is_none()
}

/// Letters of every flow, so many of each that contexts are used again; some flows send several to the same rank in one call.
fn letters(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 2 + 4 * job.size()), Random::new(22));
    let mut taken = 0;
    for name in ["flat:mail", "tree2:mail", "ring:mail", "pairwise:mail", "bruck:mail", "nodes2:mail", "nodes2x2:mail"]
    {
        for op in OPS {
            for _ in 0..if is_short() { 8 } else { 20 } {
                let n = 1 + random.below(4);
                let mut call = Call::new(job, op, n, (Kind::Private, Some(Kind::Private)), &mut random);
                call.algorithm = Some(name);
                taken += u64::from(is_taken(&pool, &call));
            }
        }
    }
    assert!(taken > 0);
}

fn nothing(job: &Job) {
    let (pool, mut random) = (Pool::<Triple>::new(job, 10), Random::new(7));
    for (op, into) in OPS.into_iter().flat_map(|op| KINDS.map(move |kind| (op, kind))) {
        let from = KINDS[random.below(4)];
        pool.once(&Call::new(job, op, 0, (from, Some(into)), &mut random), 3);
        pool.once(&Call::new(job, op, 0, (into, None), &mut random), 0);
    }
    // A vector that had something has nothing any more.
    let mut all = vec![1u8; 5];
    job.gather_all(&[]).to(&mut all).run();
    assert_eq!(all, []);
    assert_eq!(job.value(()).gather_all(), vec![(); job.size()]);
}

fn values(job: &Job) {
    fn of<T: Pod + PartialEq + std::fmt::Debug>(job: &Job, random: &mut Random) {
        let (me, size) = (job.rank().index(), job.size());
        let (key, root) = (random.draw(), random.below(size));
        let at = TeamRank(root as u32);
        let of = |r: usize| value::<T>(mixed([key, r as u64]));
        let all: Vec<T> = (0..size).map(of).collect();
        assert_eq!(job.value(of(me)).broadcast(at), of(root));
        assert_eq!(job.value(of(me)).gather(at), (me == root).then(|| all.clone()));
        assert_eq!(job.value(of(me)).gather_all(), all);
        let shift = random.below(size);
        let to = TeamRank(((me + shift) % size) as u32);
        assert_eq!(job.value(of(me)).permute(to), of((me + size - shift) % size));
    }
    let mut random = Random::new(8);
    for _ in 0..(100 / job.size()).clamp(4, 25) {
        if is_left_out(&mut random) {
            continue;
        }
        of::<u8>(job, &mut random);
        of::<u64>(job, &mut random);
        of::<Triple>(job, &mut random);
        of::<[u64; 4]>(job, &mut random);
    }
    of::<[u16; 28]>(job, &mut random);
    of::<[u64; 7]>(job, &mut random);
    of::<[u8; 57]>(job, &mut random);
    of::<[u64; 30]>(job, &mut random);
    of::<[u64; 1024]>(job, &mut random);
}

fn streams(job: &Job) {
    let mut random = Random::new(9);
    let pool = Pool::<u64>::new(job, 21 + 200 * job.size());
    pool.stream(plenty(job, 3000), 200, &mut random);
    let pool = Pool::<u8>::new(job, 21 + 2000 * job.size());
    pool.stream(plenty(job, 800), 2000, &mut random);
}

fn unsynchronized(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 2000 * job.size()), Random::new(10));
    for _ in 0..(30 / job.size()).clamp(3, 10) {
        pool.batch(40, 100, &mut random);
    }
    // Rows of an array, one broadcast each.
    let (me, size, rows) = (job.rank().index(), job.size(), 300);
    let table = job.array::<u64>(Layout::cyclic(rows * size)).unwrap();
    let mine = job.array::<u64>(Layout::cyclic(rows * size)).unwrap();
    (0..rows).for_each(|i| mine.cells().set(i, mixed([me as u64, i as u64])));
    job.barrier();
    for i in 0..rows {
        let row = |a| SharedArray::slice(a, i * size..(i + 1) * size);
        let root = TeamRank((i / 7 % size) as u32);
        job.broadcast(row(&mine)).to(row(&table)).root(root).sync(In::No, Out::No).run();
    }
    job.barrier();
    for i in 0..rows {
        assert_eq!(table.cells().get(i), mixed([(i / 7 % size) as u64, i as u64]), "row {i}");
    }
}

/// What ranks do besides.
struct Besides<'j> {
    job: &'j Job,
    come: Semaphore,
    signals: Vec<Signal>,
    counts: GlobalPtr<u64>,
    posted: u64,
}

impl<'j> Besides<'j> {
    fn new(job: &'j Job) -> Self {
        let come = job.semaphore().unwrap();
        let signals = job.value(come.signal()).gather_all();
        let counts = job.alloc_all::<u64>(1).unwrap();
        Besides { job, come, signals, counts, posted: 0 }
    }

    /// Something that is alike on all ranks.
    fn something(&mut self, random: &mut Random) {
        let job = self.job;
        let right = job.neighbor(1);
        match random.below(7) {
            0 => job.barrier(),
            1 => assert_eq!(job.rpc(right, |_, x: u64| x + 1, 6).wait(), 7),
            2 => {
                job.post(self.signals[right.index()]);
                self.come.wait();
            }
            3 => {
                self.counts.on(right).at(job).fetch_add(1);
                self.posted += 1;
            }
            4 => assert_eq!(job.value(job.rank().0).gather_all(), job.ranks().map(|r| r.0).collect::<Vec<_>>()),
            5 => {
                let there = job.notify(Some(7));
                assert_eq!(job.rpc(right, |job, ()| job.rank().0, ()).wait(), right.0);
                there.wait(None);
            }
            _ => {}
        }
    }

    fn end(self) {
        self.job.barrier();
        assert_eq!(self.counts.get(self.job), self.posted);
        self.job.barrier();
        self.job.free_all(self.counts);
    }
}

fn together(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 4000 * job.size()), Random::new(11));
    for _ in 0..(40 / job.size()).clamp(4, 15) {
        pool.together(1 + random.below(10), 400, &mut random);
    }
}

/// A rank that waits for something else goes on with what it has started: others need it.
fn other_waits(job: &Job) {
    let (pool, mut random) = (Pool::<u64>::new(job, 2000 * job.size()), Random::new(12));
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    for (op, way) in OPS.into_iter().flat_map(|op| (0..4).map(move |way| (op, way))) {
        let n = [3, 900][random.below(2)];
        let call = Call::new(job, op, n, SLICES, &mut random);
        let mut ends = pool.ends(&call, 0);
        let mut other = vec![];
        job.barrier();
        let one = random.below(job.size());
        job.scope(|s| {
            let event = ends.of(job, &call).start(s);
            match way {
                // One rank completes it, all others wait to be told.
                0 if job.rank().index() == one => {
                    event.wait();
                    signals.iter().for_each(|&signal| job.post(signal));
                    come.wait();
                }
                0 => {
                    come.wait();
                    event.wait();
                }
                1 => {
                    job.barrier();
                    event.wait();
                }
                2 => {
                    job.gather_all(&[7u64]).to(&mut other).run();
                    event.wait();
                    assert_eq!(other, vec![7; job.size()]);
                }
                // It ends while the scope does.
                _ => assert_eq!(job.rpc(job.neighbor(1), |_, x: u64| x, 5).wait(), 5),
            }
        });
        job.barrier();
        ends.check(job, &call);
    }
}

fn plans(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let (root, last) = (TeamRank(0), TeamRank(size as u32 - 1));
    let (mut all, mut block, mut word) = (vec![0u64; size], vec![0u64; 40], [0u64]);
    let mut array = job.array::<u64>(Layout::per_rank(40)).unwrap();
    let of = |round: u64, r: usize| mixed([round, r as u64]);
    let gather = job.gather(&word).to(&mut all).root(last).plan();
    let broadcast = job.broadcast(&mut block).root(root).sync(In::My, Out::My).plan();
    let shared = job.broadcast(&mut array).root(last).plan();
    let around = job.permute(&mut word, TeamRank(job.neighbor(1).0)).plan();
    for round in 0..30 {
        let mine = [of(round, me)];
        gather.on(&mine).to(&mut all).run();
        if me == size - 1 {
            assert!((0..size).all(|r| all[r] == of(round, r)), "round {round}");
        }
        block.fill(of(round, me));
        array.cells().write(0, &vec![of(!round, me); 40]);
        word = mine;
        job.scope(|s| {
            let first = broadcast.on(&mut block).start(s);
            shared.on(&mut array).run();
            let second = around.on(&mut word).start(s);
            match round % 2 {
                0 => first.wait(),
                _ => second.wait(),
            }
        });
        assert_eq!((block[39], word[0]), (of(round, 0), of(round, job.neighbor(-1).index())), "round {round}");
        assert_eq!(array.cells().get(39), of(!round, size - 1), "round {round}");
    }
}

/// Collectives, and what else there is, in any order; and inside of phases.
fn among(job: &Job) {
    let (me, size, mut random) = (job.rank().index(), job.size(), Random::new(13));
    let pool = Pool::<u64>::new(job, 21 + 100 * size);
    let mut besides = Besides::new(job);
    let mut array = job.array::<u64>(Layout::per_rank(3)).unwrap();
    for round in 0..plenty(job, 300).min(30) as u64 {
        pool.stream(2, 100, &mut random);
        besides.something(&mut random);
        array.own(|mine| {
            mine.fill(mixed([round, me as u64]));
            let mut all = vec![];
            job.gather_all(&*mine).to(&mut all).run();
            assert!((0..3 * size).all(|i| all[i] == mixed([round, i as u64 / 3])));
            job.broadcast(mine).root(TeamRank((round as usize % size) as u32)).run();
        });
        assert_eq!(array.get(3 * me + 1), mixed([round, round % size as u64]));
    }
    besides.end();
}

/// On shared arrays, the first two ranks exchange their blocks. The others come when these have gone on.
fn without_the_third(job: &Job) {
    if job.size() < 3 {
        return;
    }
    let (me, mut random) = (job.rank().index(), Random::new(14));
    let pool = Pool::<u64>::new(job, 10_000);
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    for n in [1, 3, 8, 200, 9000] {
        for (sync, into) in [
            ((In::My, Out::My), Some(Kind::Slice)),
            ((In::No, Out::My), Some(Kind::Slice)),
            ((In::My, Out::No), Some(Kind::Slice)),
            ((In::No, Out::No), Some(Kind::Slice)),
            ((In::My, Out::My), None),
            ((In::My, Out::My), Some(Kind::Private)),
        ] {
            let from = if into == Some(Kind::Private) { Kind::Private } else { Kind::Array };
            let mut call = Call { sync, ..Call::new(job, Permute, n, (from, into), &mut random) };
            call.to = (0..job.size()).collect();
            call.to.swap(0, 1);
            let mut ends = pool.ends(&call, 0);
            job.barrier();
            if me > 1 {
                come.wait_n(2);
            }
            ends.of(job, &call).run();
            if me < 2 {
                signals[2..].iter().for_each(|&signal| job.post(signal));
            }
            if sync.1 == Out::No {
                job.barrier();
            }
            ends.check(job, &call);
        }
    }
}

/// One rank comes when all others are inside. Until then nothing was touched that may not be, and none of those has gone on that
/// have to wait.
fn late(job: &Job) {
    let (me, size, mut random) = (job.rank(), job.size(), Random::new(15));
    let pool = Pool::<u64>::new(job, 400 * size);
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    let (entered, left) = (job.alloc_all::<u64>(1).unwrap(), job.alloc_all::<u64>(1).unwrap());
    let mut round = 0;
    for (op, sync) in OPS.into_iter().flat_map(|op| {
        [(In::All, Out::All), (In::All, Out::My), (In::My, Out::All), (In::My, Out::My)].map(|sync| (op, sync))
    }) {
        let n = [3, 20][random.below(2)];
        let call = Call { sync, ..Call::new(job, op, n, SLICES, &mut random) };
        let mut ends = pool.ends(&call, 0);
        let (at, real) = (random.below(size), call.contents::<u64>(&ends.before));
        let (one, trash) = (Rank(at as u32), call.contents::<u64>(&Blocks { room: ends.before.room, there: vec![] }));
        // What is only right when the late rank has come: its own source, and where nothing is touched before, all.
        let all_late = sync.0 == In::All;
        if all_late || me == one {
            ends.source.write(&trash);
        }
        // Who waits for the late one: under All all, else in a permutation nobody but the two beside it.
        let waits = sync.0 == In::All || sync.1 == Out::All;
        round += 1;
        job.barrier();
        let part = |of: Rank, array: &SharedArray<u64>, len: usize| {
            let mut all = vec![0; len * size];
            array.get_region(0..len * size, &mut all);
            all.into_iter().skip(of.index()).step_by(size).collect::<Vec<_>>()
        };
        if me == one {
            come.wait_n(size as u32 - 1);
            for r in job.ranks().filter(|&r| r != me && waits) {
                // They answer while they wait inside.
                (0..3).for_each(|_| job.rpc(r, |_, ()| (), ()).wait());
                let len = call.result(r.index(), size).room * n;
                let untouched = are(!call.key, cast_slice(&part(r, &pool.into, len)));
                assert!(untouched || !all_late, "{r}'s destination was touched before all came: {call:?}");
            }
            let destination = ends.destination.as_ref().expect("two buffers").read();
            assert!(are(!call.key, cast_slice(&destination)), "{me}: my destination was touched: {call:?}");
            assert!(!waits || left.get(job) == 0, "{} ranks have gone on without me: {call:?}", left.get(job));
            if all_late {
                for r in job.ranks() {
                    let real = call.contents::<u64>(&call.source(r.index(), size));
                    real.iter().enumerate().for_each(|(k, &x)| pool.from.put(k * size + r.index(), x));
                }
            } else {
                ends.source.write(&real);
            }
            entered.put(job, round);
        } else {
            job.post(signals[at]);
        }
        ends.of(job, &call).run();
        if waits {
            assert_eq!(entered.on(one).get(job), round, "{me} went on before {one} came: {call:?}");
        }
        left.on(one).at(job).fetch_add(1);
        if sync.1 == Out::All {
            // All that is to come has come, everywhere.
            for r in job.ranks() {
                let blocks = call.result(r.index(), size);
                call.check("the destination from afar", TeamRank(r.0), &blocks, &part(r, &pool.into, blocks.room * n));
            }
        }
        ends.check(job, &call);
        job.barrier();
        left.put(job, 0);
    }
    job.barrier();
    job.free_all(entered);
    job.free_all(left);
}

/// Who has returned changes what is its own, or under All anything: nobody sees it, and nothing comes later.
fn afterwards(job: &Job) {
    let (me, size, mut random) = (job.rank().index(), job.size(), Random::new(16));
    let pool = Pool::<u64>::new(job, 400 * size);
    for turn in 0..plenty(job, 600).min(60) {
        let n = [1, 3, 30, 300][random.below(4)];
        let leave = OUTS[1 + turn % 2];
        let arrive = INS[1 + random.below(2)];
        let call = Call { sync: (arrive, leave), ..Call::new(job, OPS[turn / 2 % 6], n, SLICES, &mut random) };
        let mut ends = pool.ends(&call, 0);
        // Some are late.
        (0..random.below(size)).for_each(|r| {
            if r == me {
                job.rpc(job.neighbor(1), |_, ()| (), ()).wait();
            }
        });
        ends.of(job, &call).run();
        let destination = ends.destination.as_mut().expect("two buffers");
        call.check("the destination", job.all().rank(), &ends.after, &destination.read());
        let (last, other) = (vec![mixed([call.key]); ends.before.room * n], vec![!call.key; ends.after.room * n]);
        match leave {
            Out::All => {
                let right = job.neighbor(1).index();
                (0..last.len()).for_each(|k| pool.from.put(k * size + right, last[k]));
            }
            _ => ends.source.write(&last),
        }
        destination.write(&other);
        job.barrier();
        assert_eq!(destination.read(), other, "something came after the return: {call:?}");
        job.barrier();
    }
}

/// Whoever is wrong is told so before anything has begun; what is wrong at the root only, the others do not begin.
fn wrong(job: &Job) {
    let (me, size) = (job.rank(), job.size());
    let (one, all) = (vec![1u64; 3], vec![1u64; 3 * size]);
    let blocks = if size > 1 { format!(" ({size} blocks of 3)") } else { String::new() };
    let told = |said: String, line: &str| assert_eq!(said, format!("{me}: {line}"));
    let outside = TeamRank(size as u32);
    told(
        refusal("no root", || job.broadcast(&mut [0u8; 2]).root(outside).run()),
        &format!("broadcast: from root {size}, where there are {size} ranks"),
    );
    told(
        refusal("no root", || job.gather(&one).to(&mut vec![]).root(outside).run()),
        &format!("gather: from root {size}, where there are {size} ranks"),
    );
    told(
        refusal("nobody", || job.permute(&one, outside).to(&mut vec![]).run()),
        &format!("permute: to {size}, where there are {size} ranks"),
    );
    if me == Rank(0) {
        told(
            refusal("a short source", || job.broadcast(&one[..1]).to(&mut [0; 3]).run()),
            "broadcast: the source has 1 elements, and 3 pass: 2 are missing",
        );
        told(
            refusal("a long source", || job.broadcast(&one).to(&mut [0; 2]).run()),
            "broadcast: the source has 3 elements, and 2 pass: 1 are too many; give a slice of it",
        );
        told(
            refusal("a short source", || job.scatter(&all[1..]).to(&mut [0; 3]).run()),
            &format!("scatter: the source has {} elements, and {} pass{blocks}: 1 are missing", 3 * size - 1, 3 * size),
        );
        told(
            refusal("a short destination", || job.gather(&one).to(&mut vec![0; 3 * size - 2][..]).run()),
            &format!(
                "gather: the destination has {} elements, and {} pass{blocks}: 2 are missing",
                3 * size - 2,
                3 * size
            ),
        );
    }
    let array = job.array::<u64>(Layout::per_rank(3)).unwrap();
    let mut short = job.array::<u64>(Layout::per_rank(2)).unwrap();
    told(
        refusal("a short destination", || job.permute(&array, job.all().rank()).to(&mut short).run()),
        "permute: the destination has 2 elements, and 3 pass: 1 are missing",
    );
    told(
        refusal("a long destination", || job.gather_all(&one).to(&mut vec![0; 3 * size + 7][..]).run()),
        &format!(
            "gather_all: the destination has {} elements, and {} pass{blocks}: 7 are too many; give a slice of it",
            3 * size + 7,
            3 * size
        ),
    );
    if size > 1 {
        let len = 3 * size + 1;
        let not_whole = format!("has {len} elements, which are not {size} blocks of one length: 1 too many");
        let mut long = vec![0u64; len];
        told(
            refusal("a part of a block", || job.exchange(&long).to(&mut vec![]).run()),
            &format!("exchange: the source {not_whole}"),
        );
        told(refusal("in place", || job.gather_all(&mut long).run()), &format!("gather_all: the buffer {not_whole}"));
        told(refusal("in place", || job.exchange(&mut long).run()), &format!("exchange: the buffer {not_whole}"));
    }
    // Of a cyclic array, two of each rank and the next two of which one is the same.
    let dealt = job.array::<u64>(Layout::cyclic(4 * size)).unwrap();
    let part = |from: usize| dealt.slice(from * size..(from + 2) * size);
    told(
        refusal("both in one place", || job.broadcast(part(0)).to(part(1)).run()),
        &format!("broadcast: elements 0..{} and {size}..{} of one array overlap", 2 * size, 3 * size),
    );
    let said = refusal("no such algorithm", || job.broadcast(&mut [0u8]).algorithm("tre2").run());
    assert!(said.starts_with(&format!("{me}: broadcast: algorithm: ")) && !said.contains('\n'), "{said}");
    assert!(said.contains("tre2") && said.contains("tree2"), "{said}");
    let plan = job.broadcast(&mut [0u64; 5]).plan();
    told(
        refusal("another length", || plan.on(&mut [0; 6]).run()),
        "broadcast: the plan was made for 40 bytes, root 0, and this is 48 bytes, root 0",
    );
    let there = job.notify(None);
    let said = refusal("between notify and wait", || job.gather_all(&one).to(&mut vec![]).run());
    assert!(
        said.starts_with(&format!("{me}: gather_all at ")) && said.contains(" comes before the wait of "),
        "{said}"
    );
    there.wait(None);
    let inside = |job: &Job, ()| refusal("in a called function", || job.broadcast(&mut [0u8]).run());
    let why = "in a function that was called by rpc or tell; it may put, get, send and call, but not wait";
    let right = job.neighbor(1);
    assert_eq!(job.rpc(right, inside, ()).wait(), format!("{right}: broadcast {why}"));
    job.rpc(me, |job, ()| assert!(attempt(|| job.value(1).gather_all()).is_err()), ()).wait();
    // Nothing of it has begun.
    assert_eq!(job.value(me).gather_all(), job.ranks().collect::<Vec<_>>());
}
