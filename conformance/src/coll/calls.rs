//! Calls of collectives that all ranks draw alike, the buffers that they have, and what must be in these before and after.
//!
//! The oracle is arithmetic: block `b` of the source of rank `r` is bytes that follow from the call's key, `r` and `b`; so each rank knows what its buffers have before and after. What does
//! not matter is trash, and stays as it is.

use crate::late::falls_behind;
use crate::{Random, are, fill, mixed};
use partage::bytemuck::{cast_slice, cast_slice_mut};
use partage::coll::{Collective, NeedsTo, Ready, Source};
use partage::prelude::*;
use std::mem::forget;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Broadcast,
    Scatter,
    Gather,
    GatherAll,
    Exchange,
    Permute,
}
use Op::*;

pub(super) const OPS: [Op; 6] = [Broadcast, Scatter, Gather, GatherAll, Exchange, Permute];
pub(super) const CALLS: [&str; 6] = ["broadcast", "scatter", "gather", "gather_all", "exchange", "permute"];
pub(super) const ROOTED: [Op; 3] = [Broadcast, Scatter, Gather];

pub(super) const INS: [In; 3] = [In::No, In::My, In::All];
pub(super) const OUTS: [Out; 3] = [Out::No, Out::My, Out::All];

/// An element that is neither a word nor a line.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
pub(super) struct Triple(u64, u64, [u16; 4]);

/// A call that all ranks make alike.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) op: Op,
    pub(super) root: usize,
    /// Where each rank's block goes, of a permutation.
    pub(super) to: Vec<usize>,
    /// Elements of a block.
    pub(super) n: usize,
    pub(super) sync: (In, Out),
    pub(super) algorithm: Option<&'static str>,
    /// Where the source is, and the destination, if it is not in place.
    pub(super) from: Kind,
    pub(super) into: Option<Kind>,
    /// What the data follow from.
    pub(super) key: u64,
}

/// Which blocks a buffer has: how many there is room for, and at which of these places is which block of which rank.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) room: usize,
    pub(super) there: Vec<[usize; 3]>,
}

impl Call {
    pub(super) fn new(team: &Team, op: Op, n: usize, (from, into): (Kind, Option<Kind>), random: &mut Random) -> Call {
        let size = team.size();
        let mut to: Vec<usize> = (0..size).collect();
        (1..size).for_each(|i| to.swap(i, random.below(i + 1)));
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        Call { op, root: random.below(size), to, n, sync, algorithm: None, from, into, key: random.draw() }
    }

    /// How many blocks the sources have where they matter, and is that at the root only?
    pub(super) fn source_blocks(&self, size: usize) -> (usize, bool) {
        (if matches!(self.op, Scatter | Exchange) { size } else { 1 }, matches!(self.op, Broadcast | Scatter))
    }

    /// The same of the destinations.
    pub(super) fn destination_blocks(&self, size: usize) -> (usize, bool) {
        (if matches!(self.op, Gather | GatherAll | Exchange) { size } else { 1 }, self.op == Gather)
    }

    /// What my source has before.
    pub(super) fn source(&self, me: usize, size: usize) -> Blocks {
        let (room, rooted) = self.source_blocks(size);
        let there = if rooted && me != self.root { 0 } else { room };
        Blocks { room, there: (0..there).map(|b| [b, me, b]).collect() }
    }

    /// What my destination has after.
    pub(super) fn result(&self, me: usize, size: usize) -> Blocks {
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
    pub(super) fn in_place(&self, me: usize, size: usize) -> [Blocks; 2] {
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
    pub(super) fn of<'a, S: Source<'a>>(&self, team: &'a Team, source: S) -> Collective<'a, S::Item, S::State> {
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

    pub(super) fn seed(&self, from: usize, block: usize) -> u64 {
        mixed([self.key, from as u64, block as u64])
    }

    /// A buffer with these blocks, and trash where there are none.
    pub(super) fn contents<T: Pod>(&self, blocks: &Blocks) -> Vec<T> {
        let mut all = vec![T::zeroed(); blocks.room * self.n];
        fill(!self.key, cast_slice_mut(&mut all));
        for &[at, from, block] in &blocks.there {
            fill(self.seed(from, block), cast_slice_mut(&mut all[at * self.n..][..self.n]));
        }
        all
    }

    /// Has the buffer these blocks?
    #[track_caller]
    pub(super) fn check<T: Pod>(&self, what: &str, me: TeamRank, blocks: &Blocks, all: &[T]) {
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
pub(super) enum Kind {
    Private,
    Grown,
    Array,
    Slice,
}
pub(super) const SLICES: (Kind, Option<Kind>) = (Kind::Slice, Some(Kind::Slice));
pub(super) const KINDS: [Kind; 4] = [Kind::Private, Kind::Grown, Kind::Array, Kind::Slice];

pub(super) enum Buffer<'p, T> {
    Private(Vec<T>),
    Grown(Vec<T>),
    Array(Box<SharedArray<T>>),
    /// Of a cyclic array, so many elements of each rank from this one on.
    Slice(&'p SharedArray<T>, usize, usize),
}

impl<'p, T: Pod> Buffer<'p, T> {
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Buffer::Array(_) | Buffer::Slice(..))
    }

    /// My part of it.
    pub(super) fn read(&self) -> Vec<T> {
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
    pub(super) fn write(&mut self, values: &[T]) {
        match self {
            Buffer::Private(all) | Buffer::Grown(all) => *all = values.to_vec(),
            Buffer::Array(array) => array.cells().write(0, &values[..array.local_len()]),
            Buffer::Slice(array, at, n) => array.cells().write(*at, &values[..*n]),
        }
    }

    pub(super) fn slice(array: &SharedArray<T>, at: usize, n: usize, size: usize) -> SharedSlice<'_, T> {
        array.slice(at * size..(at + n) * size)
    }

    pub(super) fn source<'a>(&'a self, team: &'a Team, call: &Call) -> Collective<'a, T, NeedsTo> {
        match self {
            Buffer::Private(all) => call.of(team, &all[..]),
            Buffer::Grown(all) => call.of(team, all),
            Buffer::Array(array) => call.of(team, &**array),
            &Buffer::Slice(array, at, n) => call.of(team, Self::slice(array, at, n, team.size())),
        }
    }

    pub(super) fn destination<'a, S>(
        &'a mut self,
        team: &'a Team,
        from: Collective<'a, T, S>,
    ) -> Collective<'a, T, Ready> {
        match self {
            Buffer::Private(all) => from.to(&mut all[..]),
            Buffer::Grown(all) => from.to(all),
            Buffer::Array(array) => from.to(&mut **array),
            &mut Buffer::Slice(array, at, n) => from.to(Self::slice(array, at, n, team.size())),
        }
    }

    pub(super) fn in_place<'a>(&'a mut self, team: &'a Team, call: &Call) -> Collective<'a, T, Ready> {
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
    pub(super) job: &'j Job,
    /// Whose members make the calls.
    pub(super) team: &'j Team,
    /// What each rank has of each.
    pub(super) room: usize,
    pub(super) from: SharedArray<T>,
    pub(super) into: SharedArray<T>,
}

/// The two ends of a call, and what they have before and after. Without a destination it is in place.
pub(super) struct Ends<'p, T> {
    pub(super) source: Buffer<'p, T>,
    pub(super) destination: Option<Buffer<'p, T>>,
    pub(super) before: Blocks,
    pub(super) after: Blocks,
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

    /// Collective, with arrays that are as long as calls like this one need them: from 0 on, these have them whole.
    pub(super) fn whole(job: &'j Job, like: &Call) -> Self {
        let (team, size) = (job.all(), job.size());
        let array = |blocks: usize| team.array(Layout::cyclic(blocks * like.n * size)).expect("a little memory");
        let (from, into) = (array(like.source_blocks(size).0), array(like.destination_blocks(size).0));
        Pool { job, team, room: like.n * size, from, into }
    }

    /// Collective. Whatever the pool has no room for from `at` on has an array of its own.
    pub(super) fn ends(&self, call: &Call, at: usize) -> Ends<'_, T> {
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
    pub(super) fn once(&self, call: &Call, at: usize) {
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
    pub(super) fn is_shared(&self) -> bool {
        self.source.is_shared() || self.destination.as_ref().is_some_and(Buffer::is_shared)
    }

    pub(super) fn of<'a>(&'a mut self, team: &'a Team, call: &Call) -> Collective<'a, T, Ready> {
        match &mut self.destination {
            Some(destination) => destination.destination(team, self.source.source(team, call)),
            None => self.source.in_place(team, call),
        }
    }

    #[track_caller]
    pub(super) fn check(&self, team: &Team, call: &Call) {
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
    pub(super) fn check_private(&self, team: &Team, call: &Call) {
        if let Some(destination) = self.destination.as_ref().filter(|d| !d.is_shared()) {
            call.check("the private destination", team.rank(), &self.after, &destination.read());
        }
    }
}

/// What ranks do besides.
pub(super) struct Besides<'j> {
    pub(super) job: &'j Job,
    pub(super) come: Semaphore,
    pub(super) signals: Vec<Signal>,
    pub(super) counts: GlobalPtr<u64>,
    pub(super) posted: u64,
}

impl<'j> Besides<'j> {
    pub(super) fn new(job: &'j Job) -> Self {
        let come = job.semaphore().unwrap();
        let signals = job.value(come.signal()).gather_all();
        let counts = job.alloc_all::<u64>(1).unwrap();
        Besides { job, come, signals, counts, posted: 0 }
    }

    /// Something that is alike on all ranks.
    pub(super) fn something(&mut self, random: &mut Random) {
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

    pub(super) fn end(self) {
        self.job.barrier();
        assert_eq!(self.counts.get(self.job), self.posted);
        self.job.barrier();
        self.job.free_all(self.counts);
    }
}
