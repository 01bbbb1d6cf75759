//! Blocks of different lengths: what every mapping must do.

use crate::team::some_team;
use crate::{Case, Random, is_left_out, is_short, mixed, plenty, refusal};
use partage::coll::{Collective, Source};
use partage::prelude::*;
use std::ops::Range;

/// The cases.
pub const CASES: [Case; 5] = [
    ("exchanges of different lengths", exchanges),
    ("gathers and scatters of different lengths", gathers),
    ("blocks of different lengths between all kinds of buffers", kinds),
    ("blocks of different lengths on teams", teams),
    ("wrong lengths", wrong),
];

/// How many elements go from one rank to another: often none, sometimes many.
fn count(key: u64, from: usize, to: usize) -> usize {
    let seed = mixed([key, from as u64, to as u64]) as usize;
    [0, 1, 3 + seed / 8 % 20, seed / 8 % 9000][seed % 4]
}

fn element(key: u64, from: usize, to: usize, i: usize) -> u32 {
    mixed([key, from as u64, to as u64, i as u64]) as u32
}

fn block(key: u64, from: usize, to: usize, n: usize) -> impl Iterator<Item = u32> {
    (0..n).map(move |i| element(key, from, to, i))
}

fn exchanges(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut random = Random::new(61);
    for k in 0..plenty(job, 300).min(12) {
        let key = random.draw();
        let counts: Vec<usize> = (0..size).map(|to| count(key, me, to)).collect();
        let expected_counts: Vec<usize> = (0..size).map(|from| count(key, from, me)).collect();
        let mine: Vec<u32> = (0..size).flat_map(|to| block(key, me, to, counts[to])).collect();
        let expected: Vec<u32> = (0..size).flat_map(|from| block(key, from, me, expected_counts[from])).collect();
        let mut come = vec![7; k];
        let came = job.exchange(&mine).counts(&counts).to(&mut come).run();
        assert_eq!(came, expected_counts, "{}", job.rank());
        assert!(come == expected, "{}: {counts:?}", job.rank());
        // A part of an array has room for more than comes; what it does not need stays as it is.
        let room = job.value(expected.len()).max() + 1;
        let array = job.array::<u32>(Layout::per_rank(room)).expect("a little memory");
        array.cells().write(0, &vec![77; room]);
        let sync = [(In::My, Out::My), (In::All, Out::All), (In::No, Out::No)][k % 3];
        let came = job.exchange(&mine).counts(&counts).to(array.slice(..)).sync(sync.0, sync.1).run();
        let mut found = vec![0; room];
        array.cells().read(0, &mut found);
        assert_eq!(came, expected_counts);
        assert!(found[..expected.len()] == expected && found[expected.len()..].iter().all(|&x| x == 77));
        // Nobody's memory goes before all have come.
        job.barrier();
    }
}

fn gathers(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut random = Random::new(67);
    for _ in 0..plenty(job, 300).min(12) {
        let (key, root) = (random.draw(), random.below(size));
        let counts: Vec<usize> = (0..size).map(|r| count(key, r, 0)).collect();
        let blocks: Vec<u32> = (0..size).flat_map(|r| block(key, r, 0, counts[r])).collect();
        let mine: Vec<u32> = block(key, me, 0, counts[me]).collect();
        let team_root = TeamRank(root as u32);

        let mut all = vec![];
        assert_eq!(job.gather_all(&mine).varying().to(&mut all).run(), counts);
        assert!(all == blocks, "{}: {counts:?}", job.rank());
        all.clear();
        job.gather_all(&mine).counts(&counts).to(&mut all).run();
        assert!(all == blocks);
        all = vec![9; 3];
        let came = job.gather(&mine).root(team_root).varying().to(&mut all).run();
        assert_eq!(came, if me == root { counts.clone() } else { vec![0; size] });
        assert!(all == if me == root { &blocks[..] } else { &[9; 3] }, "only the root's is written to");

        let (source, sent): (&[u32], &[usize]) = if me == root { (&blocks, &counts) } else { (&[], &[]) };
        let mut come = vec![];
        let came = job.scatter(source).root(team_root).counts(sent).to(&mut come).run();
        assert_eq!(came.iter().sum::<usize>(), counts[me]);
        assert!(come == mine, "{}: {counts:?}", job.rank());
    }
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Exchange,
    Scatter,
    Gather,
    GatherAll,
}
use Op::*;

const OPS: [Op; 4] = [Exchange, Scatter, Gather, GatherAll];

impl Op {
    fn of<'a, S: Source<'a, Item = u32>>(self, team: &'a Team, source: S) -> Collective<'a, u32, S::State> {
        match self {
            Exchange => team.exchange(source),
            Scatter => team.scatter(source),
            Gather => team.gather(source),
            GatherAll => team.gather_all(source),
        }
    }
}

/// Where a buffer is: a slice, a vector, an array, a slice of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    Grown,
    Array,
    Slice,
}
const KINDS: [Kind; 4] = [Kind::Private, Kind::Grown, Kind::Array, Kind::Slice];

/// A buffer of one of these kinds.
struct Side {
    kind: Kind,
    own: Vec<u32>,
    array: SharedArray<u32>,
    range: Range<usize>,
    /// Where this rank's elements of it begin in its part.
    first: usize,
}

impl Side {
    /// Collective.
    fn new(team: &Team, kind: Kind, layout: Layout, range: Range<usize>) -> Side {
        let array = team.array::<u32>(layout).expect("a little memory");
        let range = if kind == Kind::Array { 0..array.len() } else { range };
        let first = array.my_indices().filter(|&i| i < range.start).count();
        Side { kind, own: vec![], array, range, first }
    }

    fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Array | Kind::Slice)
    }

    /// How many elements of the array each member has.
    fn shares(&self, team: &Team) -> Vec<usize> {
        let mut all = vec![0; team.size()];
        let whose = |i: usize| team.member(self.array.affinity(i)).expect("a member").index();
        self.range.clone().for_each(|i| all[whose(i)] += 1);
        all
    }

    /// This rank's elements.
    fn write(&mut self, values: &[u32]) {
        self.own = values.to_vec();
        if self.is_shared() && !values.is_empty() {
            self.array.cells().write(self.first, values);
        }
    }

    /// As many as were written, or as have come.
    fn read(&self) -> Vec<u32> {
        let mut all = self.own.clone();
        if self.is_shared() && !all.is_empty() {
            self.array.cells().read(self.first, &mut all);
        }
        all
    }
}

/// So many in so many parts, of which some have none.
fn cut(seed: u64, n: usize, parts: usize) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut ends: Vec<usize> = (1..parts).map(|_| random.below(n + 1)).chain([n]).collect();
    ends.sort();
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, end)| end - start).collect()
}

/// One of them, between buffers of these kinds. Members have different parts of an array, and of a slice of it.
fn once(team: &Team, op: Op, (from, into): (Kind, Kind), random: &mut Random) {
    let (me, size) = (team.rank().index(), team.size());
    let (key, root) = (random.draw(), random.below(size));
    let n = [1 + random.below(4 * size), 30 * size, 2000 + random.below(500)][random.below(3)];
    let layout = match random.below(4) {
        0 => Layout::blocked(n),
        1 => Layout::cyclic(n),
        2 => Layout::block_cyclic(n, 1 + random.below(n)),
        _ => Layout::on(root, n),
    };
    let start = random.below(n);
    let mut source = Side::new(team, from, layout, start..start + random.below(n - start + 1));
    let shares = source.shares(team);
    // How many go from each to each.
    let sent_by = |r: usize| match op {
        Exchange => cut(mixed([key, r as u64]), shares[r], size),
        Scatter if r == root => cut(key, shares[r], size),
        Scatter => vec![0; size],
        Gather => (0..size).map(|to| if to == root { shares[r] } else { 0 }).collect(),
        GatherAll => vec![shares[r]; size],
    };
    let counts: Vec<Vec<usize>> = (0..size).map(sent_by).collect();
    let elements = |r: usize, range: Range<usize>| range.map(move |i| element(key, r, 0, i));
    let mut expected: Vec<u32> = vec![];
    for (r, sent) in counts.iter().enumerate() {
        let start = if matches!(op, Exchange | Scatter) { sent[..me].iter().sum::<usize>() } else { 0 };
        expected.extend(elements(r, start..start + sent[me]));
    }
    let mine: Vec<u32> = elements(me, 0..shares[me]).collect();
    source.write(&mine);
    // There is room for more than comes, and what is not needed stays as it is.
    let most = (0..size).map(|to| counts.iter().map(|sent| sent[to]).sum::<usize>()).max().unwrap_or(0) + 2;
    let room = if into == Kind::Slice { most + 5 } else { most };
    let mut dest = Side::new(team, into, Layout::cyclic(room * size), 2 * size..(most + 2) * size);
    dest.write(&vec![77; if into == Kind::Grown { random.below(5) } else { most }]);

    let sync = ([In::No, In::My, In::All][random.below(3)], [Out::No, Out::My, Out::All][random.below(3)]);
    let is_varying = matches!(op, Gather | GatherAll) && random.below(2) == 0;
    let what = format!("member {me}: {op:?} from {from:?} to {into:?}, {sync:?}, {counts:?}");
    let is_shared = source.is_shared() || dest.is_shared();
    if is_shared && sync.0 == In::No {
        team.barrier();
    }
    let begun = match from {
        Kind::Private => op.of(team, &source.own[..]),
        Kind::Grown => op.of(team, &source.own),
        Kind::Array => op.of(team, &source.array),
        Kind::Slice => op.of(team, source.array.slice(source.range.clone())),
    };
    let given: &[usize] = match op {
        Exchange => &counts[me],
        Scatter if me == root => &counts[me],
        Scatter => &[],
        Gather | GatherAll => &shares,
    };
    let counted = if is_varying { begun.varying() } else { begun.counts(given) };
    let counted = counted.sync(sync.0, sync.1);
    let is_rooted = matches!(op, Scatter | Gather);
    let counted = if is_rooted { counted.root(TeamRank(root as u32)) } else { counted };
    let ready = match into {
        Kind::Private => counted.to(&mut dest.own[..]),
        Kind::Grown => counted.to(&mut dest.own),
        Kind::Array => counted.to(&mut dest.array),
        Kind::Slice => counted.to(dest.array.slice(dest.range.clone())),
    };
    let came = ready.run();
    if is_shared && sync.1 == Out::No {
        team.barrier();
    }
    assert_eq!(came, counts.iter().map(|sent| sent[me]).collect::<Vec<_>>(), "{what}");
    let found = dest.read();
    let (come, rest) = found.split_at(expected.len().min(found.len()));
    assert!(come == expected && rest.iter().all(|&x| x == 77), "{what}");
    // What only the root has is not made longer or shorter elsewhere.
    assert!(into != Kind::Grown || rest.is_empty() || op == Gather && me != root, "{what}");
    assert!(source.read() == mine, "{what}: the source");
}

fn kinds(job: &Job) {
    let mut random = Random::new(107);
    for (op, from) in OPS.into_iter().flat_map(|op| KINDS.map(|from| (op, from))) {
        for into in KINDS {
            if !is_left_out(&mut random) {
                once(job, op, (from, into), &mut random);
            }
        }
    }
}

fn teams(job: &Job) {
    for seed in 0..if is_short() { 2 } else { 6 } {
        let (team, mut random) = some_team(job, &mut Random::new(mixed([109, seed])));
        for op in OPS {
            let kinds = (KINDS[random.below(4)], KINDS[random.below(4)]);
            once(&team, op, kinds, &mut random);
        }
    }
}

fn wrong(job: &Job) {
    let size = job.size();
    let says = |said: String, what: &str| {
        assert!(said.contains(&format!("{}: ", job.rank())) && said.contains(what), "{said}")
    };
    let of = |counts: &[usize]| {
        let counts = counts.to_vec();
        refusal("wrong counts", move || job.exchange(&[1, 2, 3]).counts(&counts).to(&mut vec![]).run())
    };
    says(of(&vec![0; size + 1]), "one count for each rank");
    says(of(&vec![4; size]), "the counts make");
    if size > 1 {
        // Their sum would be that of the source, if it wrapped.
        let mut counts = vec![0; size];
        (counts[0], counts[1]) = (usize::MAX, 4);
        says(of(&counts), "more than any memory has");
    }
    says(refusal("no counts", || job.exchange(&[1]).varying().to(&mut vec![]).run()), "say what goes to each");
    says(refusal("a broadcast", || job.broadcast(&[1]).varying().to(&mut [0]).run()), "there are exchange");
    let in_place = || job.gather_all(&mut vec![1; 3]).varying().run();
    says(refusal("in place", in_place), "give a destination");
    job.barrier();
    if size > 1 {
        // A destination that is too short is found out before anything passes.
        let mut short = [0; 1];
        let said = refusal("no room", || job.gather_all(&[1, 2]).varying().to(&mut short).run());
        says(said, "room for 1");
    }
    job.barrier();
}
