//! Reductions: what every mapping must do.
//!
//! The oracle computes what all ranks have, from numbers that follow from a key, one after the other in the order of ranks or indices. Most
//! operations are compositions of functions, whose order matters.
//!
//! * `floating`: sums that depend on the order of operands.
//! * `teams`: the same on teams, and with filters.

mod floating;
pub(crate) mod teams;

use crate::{Case, Random, am, attempt, is_left_out, is_short, mixed, plenty, refusal};
use partage::coll::{Collective, Source, With};
use partage::prelude::*;
use std::ops::Range;

/// The cases.
pub const CASES: [Case; 14] = [
    ("reductions of all kinds of buffers", kinds),
    ("reductions by name", named),
    ("streams of reductions without barriers", streams),
    ("reductions of values", values),
    ("all operations of all types", operations),
    ("reductions that are under way together", together),
    ("folds of arrays", folds),
    ("prefixes of arrays", prefixes),
    ("folds and prefixes of long arrays", long_folds),
    ("floating reductions are the same each time", floating::same),
    ("reductions on teams", teams::collectives),
    ("reductions of teams that overlap", teams::overlapping),
    ("reductions of which only a team takes part", teams::filters),
    ("wrong reductions", wrong),
];

/// A function `x ↦ a x + b` modulo 2^8.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Line([u8; 2]);

/// The same modulo 2^64, with something else, so that it is neither a word nor a line.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Long([u64; 3]);

/// Elements of which many are drawn, and what is done with them.
trait Drawn: Pod + PartialEq + std::fmt::Debug {
    type Op: ReduceOp<Self>;
    const OP: Self::Op;
    fn draw(seed: u64) -> Self;
}

/// First the one, then the other.
#[derive(Clone, Copy, Debug)]
struct Then;

impl ReduceOp<Line> for Then {
    const ORDERED: bool = true;
    fn combine(&self, Line([a, b]): Line, Line([c, d]): Line) -> Line {
        Line([a.wrapping_mul(c), c.wrapping_mul(b).wrapping_add(d)])
    }
}

impl ReduceOp<Long> for Then {
    const ORDERED: bool = true;
    fn combine(&self, Long([a, b, n]): Long, Long([c, d, m]): Long) -> Long {
        Long([a.wrapping_mul(c), c.wrapping_mul(b).wrapping_add(d), n + m])
    }
}

impl Drawn for Line {
    type Op = Then;
    const OP: Then = Then;
    fn draw(seed: u64) -> Line {
        Line([seed as u8 | 1, (seed >> 8) as u8])
    }
}

impl Drawn for Long {
    type Op = Then;
    const OP: Then = Then;
    fn draw(seed: u64) -> Long {
        Long([seed | 1, seed.rotate_left(17), 1])
    }
}

impl Drawn for u64 {
    type Op = Sum;
    const OP: Sum = Sum;
    fn draw(seed: u64) -> u64 {
        seed
    }
}

impl Drawn for i32 {
    type Op = Min;
    const OP: Min = Min;
    fn draw(seed: u64) -> i32 {
        seed as i32
    }
}

/// Exact however it is summed up.
impl Drawn for f64 {
    type Op = Sum;
    const OP: Sum = Sum;
    fn draw(seed: u64) -> f64 {
        (seed % 1000) as f64
    }
}

/// Which reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Reduce,
    AllReduce,
    Prefix,
    Before,
}
use Op::*;

const OPS: [Op; 4] = [Reduce, AllReduce, Prefix, Before];
const INS: [In; 3] = [In::No, In::My, In::All];
const OUTS: [Out; 3] = [Out::No, Out::My, Out::All];

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    Shared,
}
const KINDS: [Kind; 2] = [Kind::Private, Kind::Shared];

/// A call that all ranks make alike.
#[derive(Clone, Copy, Debug)]
struct Call {
    op: Op,
    root: usize,
    n: usize,
    sync: (In, Out),
    algorithm: Option<&'static str>,
    from: Kind,
    /// In place, if it is nowhere.
    into: Option<Kind>,
    key: u64,
}

impl Call {
    fn new(team: &Team, op: Op, n: usize, (from, into): (Kind, Option<Kind>), random: &mut Random) -> Call {
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        Call { op, root: random.below(team.size()), n, sync, algorithm: None, from, into, key: random.draw() }
    }

    /// What a rank has before.
    fn mine<T: Drawn>(&self, rank: usize) -> Vec<T> {
        (0..self.n).map(|i| T::draw(mixed([self.key, rank as u64, i as u64]))).collect()
    }

    /// What it has where nothing has come.
    fn trash<T: Drawn>(&self) -> Vec<T> {
        (0..self.n).map(|i| T::draw(mixed([!self.key, i as u64]))).collect()
    }

    /// What it has after, if something has come.
    fn result<T: Drawn>(&self, me: usize, size: usize) -> Option<Vec<T>> {
        self.result_of(me, &(0..size).collect::<Vec<_>>())
    }

    /// The same if only these ranks take part.
    fn result_of<T: Drawn>(&self, me: usize, ranks: &[usize]) -> Option<Vec<T>> {
        let counts = |r: usize| match self.op {
            Reduce => me == self.root,
            AllReduce => true,
            Prefix => r <= me,
            Before => r < me,
        };
        let join = |a: Vec<T>, b: Vec<T>| a.into_iter().zip(b).map(|(a, b)| T::OP.combine(a, b)).collect();
        ranks.iter().filter(|&&r| counts(r)).map(|&r| self.mine(r)).reduce(join)
    }

    fn of<'a, T: Drawn, S: Source<'a, Item = T>>(
        &self,
        team: &'a Team,
        source: S,
    ) -> Collective<'a, T, S::State, With<T, T::Op>> {
        let begun = match self.op {
            Reduce => team.reduce(source, T::OP).root(TeamRank(self.root as u32)),
            AllReduce => team.all_reduce(source, T::OP),
            Prefix => team.prefix_reduce(source, T::OP),
            Before => team.prefix_reduce(source, T::OP).exclusive(),
        };
        let ready = begun.sync(self.sync.0, self.sync.1);
        match self.algorithm {
            Some(name) => ready.algorithm(name),
            None => ready,
        }
    }
}

/// Arrays that are used again and again.
struct Pool<'t, T> {
    team: &'t Team,
    from: SharedArray<T>,
    into: SharedArray<T>,
}

impl<'t, T: Drawn> Pool<'t, T> {
    /// Collective.
    fn new(team: &'t Team, room: usize) -> Self {
        let [from, into] = [(); 2].map(|_| team.array(Layout::cyclic(room * team.size())).expect("a little memory"));
        Pool { team, from, into }
    }

    /// Makes a call, and looks at what comes of it. `at` is where in the arrays.
    fn once(&self, call: &Call, at: usize) {
        let (team, from, into) = (self.team, &self.from, &self.into);
        let (me, size) = (team.rank().index(), team.size());
        let (mine, expected) = (call.mine::<T>(me), call.result::<T>(me, size));
        let left = if call.into.is_none() { mine.clone() } else { call.trash() };
        let range = at * size..(at + call.n) * size;
        let (mut private, mut come) = (mine.clone(), left.clone());
        if call.from == Kind::Shared {
            from.cells().write(at, &mine);
        }
        if call.into == Some(Kind::Shared) {
            into.cells().write(at, &left);
        }
        let shared = call.from == Kind::Shared || call.into == Some(Kind::Shared);
        if shared && call.sync.0 == In::No {
            team.barrier();
        }
        match (call.from, call.into) {
            (Kind::Private, None) => call.of(team, &mut private).run(),
            (Kind::Private, Some(Kind::Private)) => call.of(team, &private).to(&mut come).run(),
            (Kind::Private, Some(Kind::Shared)) => call.of(team, &private).to(into.slice(range)).run(),
            (Kind::Shared, Some(Kind::Private)) => call.of(team, from.slice(range)).to(&mut come).run(),
            (Kind::Shared, Some(Kind::Shared)) => call.of(team, from.slice(range.clone())).to(into.slice(range)).run(),
            (Kind::Shared, None) => unreachable!("a slice is no place"),
        }
        if shared && call.sync.1 == Out::No {
            team.barrier();
        }
        if call.into == Some(Kind::Shared) {
            into.cells().read(at, &mut come);
        }
        let found = if call.into.is_none() { &private } else { &come };
        assert_eq!(*found, expected.unwrap_or(left), "member {me}: {call:?}");
        // Nobody reads it any more.
        if call.from == Kind::Shared {
            from.cells().write(at, &call.trash());
        }
    }

    /// So many random calls on the same buffers, without barriers.
    fn stream(&self, times: usize, most: usize, random: &mut Random) {
        for _ in 0..times {
            let n = match random.below(8) {
                0 => random.below(most + 1),
                1 | 2 => random.below(most / 8 + 1),
                _ => random.below(6),
            };
            let (from, into) = (KINDS[random.below(2)], KINDS[random.below(2)]);
            let kinds = if random.below(4) == 0 { (Kind::Private, None) } else { (from, Some(into)) };
            let mut call = Call::new(self.team, OPS[random.below(4)], n, kinds, random);
            if kinds.0 == Kind::Shared || kinds.1 == Some(Kind::Shared) {
                call.sync = (INS[1 + random.below(2)], OUTS[1 + random.below(2)]);
            }
            let at = random.below(3) * 7;
            self.once(&call, at);
        }
    }
}

/// So many random reductions on the same buffers, for a soak.
pub fn traffic(job: &Job, times: usize, most: usize, random: &mut Random) {
    Pool::<u64>::new(job, most + 30).stream(times / 2, most, random);
    Pool::<Long>::new(job, most + 30).stream(times / 2, most / 2, random);
}

/// As many elements in all on few ranks as on many.
fn long(job: &Job) -> usize {
    6000 / job.size().max(2)
}

fn kinds(job: &Job) {
    fn of<T: Drawn>(job: &Job, random: &mut Random) {
        let pool = Pool::<T>::new(job, 6000);
        for from in KINDS {
            for into in [Some(Kind::Private), Some(Kind::Shared), None] {
                if from == Kind::Shared && into.is_none() {
                    continue;
                }
                for op in OPS {
                    for n in [0, 1, 3, 60, long(job)] {
                        if is_left_out(random) {
                            continue;
                        }
                        let call = Call::new(job, op, n, (from, into), random);
                        pool.once(&call, 0);
                        // The next one writes to the same places, whatever this one's mode was.
                        job.barrier();
                    }
                }
            }
        }
    }
    let mut random = Random::new(31);
    of::<u64>(job, &mut random);
    of::<Line>(job, &mut random);
    of::<Long>(job, &mut random);
    of::<i32>(job, &mut random);
    // In place in arrays, which have a part of each rank.
    let mut all = job.array::<u64>(Layout::per_rank(40)).expect("a little memory");
    for op in OPS {
        let call = Call { n: 40, ..Call::new(job, op, 40, (Kind::Shared, None), &mut random) };
        let call = Call { sync: (In::All, Out::All), ..call };
        let (me, size) = (job.rank().index(), job.size());
        let mine = call.mine::<u64>(me);
        all.cells().write(0, &mine);
        call.of(job, &mut all).run();
        let mut found = vec![0; 40];
        all.cells().read(0, &mut found);
        assert_eq!(found, call.result(me, size).unwrap_or(mine), "{}: {op:?}", job.rank());
        job.barrier();
    }
}

/// Every algorithm for every operation that it does; of others it says that it cannot be taken, and why.
fn named(job: &Job) {
    const NAMES: [&str; 29] = [
        "flat:push",
        "flat:pull",
        "flat:mail",
        "flat:post",
        "leader",
        "last",
        "tree2:push",
        "tree2:pull",
        "tree3:mail",
        "ring:push",
        "ring:pull",
        "chain:push",
        "chain/4:pull",
        "doubling:push",
        "doubling:pull",
        "doubling:mail",
        "leaders:push",
        "leaders:pull",
        "leaders:mail",
        "slices:push",
        "slices:pull",
        "slices:split",
        "dissemination:push",
        "dissemination:pull",
        "dissemination:mail",
        "nodes2:push",
        "coop@1k",
        "coop@2",
        "coop",
    ];
    fn of<T: Drawn>(job: &Job, random: &mut Random) {
        let pool = Pool::<T>::new(job, 500);
        let (shared, private) = ((Kind::Shared, Some(Kind::Shared)), (Kind::Private, Some(Kind::Private)));
        for (name, op) in NAMES.into_iter().flat_map(|name| OPS.map(|op| (name, op))) {
            // Nothing is in the way of any that does the operation.
            if !is_short() || !<T::Op as ReduceOp<T>>::ORDERED {
                let call = Call::new(job, op, 1, shared, random);
                is_taken_or_not(job, &pool, &Call { sync: (In::All, Out::All), algorithm: Some(name), ..call });
            }
            for kinds in [(Kind::Private, None), shared, private] {
                if is_left_out(random) {
                    continue;
                }
                let n = [1, 2, long(job) / 12][random.below(3)];
                let call = Call::new(job, op, n, kinds, random);
                is_taken_or_not(job, &pool, &Call { algorithm: Some(name), ..call });
            }
        }
    }
    let mut random = Random::new(37);
    of::<u64>(job, &mut random);
    of::<Line>(job, &mut random);
}

/// Makes a call whose algorithm is named: it is taken, or there is a reason, which is said.
#[track_caller]
fn is_taken_or_not<T: Drawn>(job: &Job, pool: &Pool<'_, T>, call: &Call) {
    let (name, ordered) = (call.algorithm.expect("a name"), <T::Op as ReduceOp<T>>::ORDERED);
    let is_one_node = job.ranks().all(|r| job.same_node(r));
    let are_stores = job.size() == 1 || (is_one_node && !am::reference());
    let why = why_not(call, call.n * size_of::<T>(), ordered, are_stores);
    match attempt(|| pool.once(call, 0)) {
        Ok(()) => assert_eq!(why, None, "{name} was taken: {call:?}"),
        Err(said) if ordered && said.contains("ranks of a node do not follow one another") => {
            assert!(!is_one_node && (name.starts_with("leaders") || name.starts_with("nodes")), "{said}");
        }
        Err(said) => {
            let right = why.is_some_and(|why| said.ends_with(&format!(" cannot be taken: {why}")));
            assert!(right, "{call:?}: {said}, where {why:?} is right");
        }
    }
    job.barrier();
}

/// What is wrong with the algorithm of a call of so many bytes, if something is: as the documentation of collectives has it.
fn why_not(call: &Call, bytes: usize, ordered: bool, are_stores: bool) -> Option<&'static str> {
    let name = call.algorithm?;
    let (flow, way) = name.split_once(':').unwrap_or((name, ""));
    let flow = flow.split(['/', '@']).next().unwrap_or(flow);
    let is_prefix = matches!(call.op, Prefix | Before);
    let is_shared = call.from == Kind::Shared && call.into == Some(Kind::Shared);
    let is_done = match flow {
        "flat" | "slices" | "chain" => is_shared || way != "split",
        "leader" => is_shared && call.sync.0 != In::My,
        "last" | "coop" => is_shared && call.sync.0 != In::My && call.sync != (In::No, Out::My),
        "doubling" | "leaders" => call.op == AllReduce,
        "ring" => call.op == AllReduce && !ordered,
        "dissemination" => is_prefix,
        // Trees, of ranks or of nodes.
        _ => !is_prefix,
    };
    match flow {
        _ if !is_done => Some("it does not do that, with such buffers, in that sync mode"),
        "leader" | "last" | "coop" if !are_stores => Some("ranks are on several nodes"),
        _ if way == "post" && !are_stores => Some("ranks are on several nodes"),
        _ if matches!(way, "mail" | "post") && bytes > 56 => Some("a letter has 56 bytes"),
        _ => None,
    }
}

fn streams(job: &Job) {
    let mut random = Random::new(41);
    let times = plenty(job, 4000).min(400);
    Pool::<u64>::new(job, 3000).stream(times, 2900, &mut random);
    Pool::<Line>::new(job, 3000).stream(times / 2, 2900, &mut random);
    Pool::<Long>::new(job, 3000).stream(times / 4, 2900, &mut random);
    Pool::<f64>::new(job, 3000).stream(times / 4, 2900, &mut random);
}

fn values(job: &Job) {
    values_of(job, 20);
}

fn values_of(team: &Team, times: u64) {
    let (me, size) = (team.rank().index(), team.size());
    for k in 0..times {
        let all: Vec<u32> = (0..size).map(|r| mixed([k, r as u64]) as u32).collect();
        let mine = all[me];
        let root = TeamRank((k as usize % size) as u32);
        assert_eq!(team.value(mine).sum(), all.iter().fold(0u32, |a, &b| a.wrapping_add(b)));
        assert_eq!(team.value(mine).min(), *all.iter().min().expect("some"));
        assert_eq!(team.value(mine).max(), *all.iter().max().expect("some"));
        let xor = all.iter().fold(0, |a, b| a ^ b);
        assert_eq!(team.value(mine).reduce(Xor, root), (team.rank() == root).then_some(xor));
        let lines: Vec<Line> = all.iter().map(|&x| Line::draw(x.into())).collect();
        let join = |to: usize| lines[..to].iter().copied().reduce(|a, b| Then.combine(a, b));
        let mine = lines[me];
        assert_eq!(team.value(mine).reduce(Then, root), join(size).filter(|_| team.rank() == root));
        assert_eq!(Some(team.value(mine).all_reduce(Then)), join(size));
        assert_eq!(Some(team.value(mine).prefix_reduce(Then)), join(me + 1));
        assert_eq!(team.value(mine).prefix_before(Then), join(me));
    }
}

fn operations(job: &Job) {
    let (me, size) = (job.rank().0 as u8, job.size() as u8);
    macro_rules! are {
        ($($t:ty)+; $ops:tt) => { $(are!(@ $t $ops);)+ };
        (@ $t:ty [$($op:ident)+]) => { $({
            let of = |r: u8| [r as $t, 1 as $t, (r % 2) as $t, 0 as $t];
            let mut all = of(me);
            job.all_reduce(&mut all, $op).run();
            let join = |a: [$t; 4], b: [$t; 4]| [0, 1, 2, 3].map(|i| $op.combine(a[i], b[i]));
            assert_eq!(Some(all), (0..size).map(of).reduce(join), stringify!($op));
        })+ };
    }
    are!(i8 u8 i16 u16 i32 u32 i64 u64 isize usize; [Sum Prod Min Max And Or Xor LogAnd LogOr]);
    are!(f32 f64; [Sum Prod Min Max LogAnd LogOr]);
}

/// Several are started, and complete in any order.
fn together(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut random = Random::new(43);
    for n in [1, 100, 3000] {
        let calls: [Call; 4] = OPS.map(|op| Call::new(job, op, n, (Kind::Private, None), &mut random));
        let mut all = calls.map(|call| call.mine::<Long>(me));
        let expected = calls.map(|call| call.result(me, size).unwrap_or(call.mine(me)));
        job.scope(|s| {
            let mut events = vec![];
            for (call, mine) in calls.iter().zip(&mut all) {
                events.push(call.of(job, mine).start(s));
            }
            events.into_iter().rev().for_each(|event| event.wait());
        });
        assert_eq!(all, expected);
    }
    // A plan is done again and again; a function has what it was given.
    let mut v = vec![1u64; 30];
    let k = 3;
    let step = job.all_reduce(&mut v, Commutative(move |a: u64, b| a.wrapping_add(b).wrapping_add(k))).plan();
    for _ in 0..5 {
        v.fill(1);
        step.on(&mut v).run();
        assert_eq!(v, vec![size as u64 + 3 * (size as u64 - 1); 30]);
        v.fill(1);
        job.scope(|s| step.on(&mut v).start(s).wait());
        assert_eq!(v[29], 4 * size as u64 - 3);
    }
}

/// An array, whose elements are known, and a part of it.
type Dealt<T> = (SharedArray<T>, Vec<T>, Range<usize>);

fn dealt<T: Drawn>(team: &Team, layout: Layout, random: &mut Random) -> Dealt<T> {
    let a = team.array::<T>(layout).expect("a little memory");
    let key = random.draw();
    let all: Vec<T> = (0..a.len()).map(|i| T::draw(mixed([key, i as u64]))).collect();
    a.my_indices().for_each(|i| a.put(i, all[i]));
    let start = random.below(all.len() + 1);
    let range = start..start + random.below(all.len() - start + 1);
    (a, all, range)
}

/// A short one of some layout.
fn array<T: Drawn>(team: &Team, random: &mut Random) -> Dealt<T> {
    let n = random.below(60);
    let layout = match random.below(5) {
        0 => Layout::blocked(n),
        1 => Layout::cyclic(n),
        2 => Layout::block_cyclic(n, 1 + random.below(7)),
        3 => Layout::per_rank(n / 4),
        _ => Layout::on(random.below(team.size()), n),
    };
    dealt(team, layout, random)
}

/// UPC's reductions: any layout, beginning and end.
fn folds(job: &Job) {
    let mut random = Random::new(47);
    for _ in 0..plenty(job, 400).min(25) {
        fold_of::<u64>(job, array(job, &mut random), &mut random);
        fold_of::<Line>(job, array(job, &mut random), &mut random);
        fold_of::<Long>(job, array(job, &mut random), &mut random);
    }
}

fn fold_of<T: Drawn>(team: &Team, (a, all, range): Dealt<T>, random: &mut Random) {
    let expected = all[range.clone()].iter().copied().reduce(|x, y| T::OP.combine(x, y));
    let sync = (INS[random.below(3)], OUTS[random.below(3)]);
    let found = team.fold(a.slice(range.clone()), T::OP).sync(sync.0, sync.1).run();
    assert_eq!(found, expected, "{range:?} of {:?}", a.layout());
    let root = TeamRank(random.below(team.size()) as u32);
    let found = team.fold(a.slice(range), T::OP).root(root).run();
    assert_eq!(found, expected.filter(|_| team.rank() == root));
    // Memory of one's own, of any length.
    let lens: Vec<usize> = (0..team.size()).map(|_| random.below(5)).collect();
    let of = |r: usize| (0..lens[r]).map(move |i| T::draw(mixed([7, r as u64, i as u64])));
    let mine: Vec<T> = of(team.rank().index()).collect();
    let expected = (0..team.size()).flat_map(of).reduce(|x, y| T::OP.combine(x, y));
    assert_eq!(team.fold(&mine, T::OP).run(), expected);
}

fn prefixes(job: &Job) {
    let mut random = Random::new(53);
    for _ in 0..plenty(job, 300).min(20) {
        prefix_of::<u64>(job, array(job, &mut random), &mut random);
        prefix_of::<Line>(job, array(job, &mut random), &mut random);
    }
}

/// What comes of the first, of the first two, and so on, after what comes before.
fn prefixes_after<T: Drawn>(mut sum: Option<T>, all: &[T]) -> Vec<T> {
    all.iter().map(|&x| *sum.insert(sum.map_or(x, |sum| T::OP.combine(sum, x)))).collect()
}

fn prefix_of<T: Drawn>(team: &Team, (mut a, all, range): Dealt<T>, random: &mut Random) {
    let b = team.array::<T>(a.layout()).expect("a little memory");
    let exclusive = random.below(2) == 0;
    let mut expected = vec![T::zeroed(); all.len()];
    let mut sum: Option<T> = None;
    for i in range.clone() {
        let with = sum.map_or(all[i], |sum| T::OP.combine(sum, all[i]));
        expected[i] = if exclusive { sum.unwrap_or(T::zeroed()) } else { with };
        sum = Some(with);
    }
    let begun = team.prefix_fold(a.slice(range.clone()), T::OP).to(b.slice(range.clone()));
    let begun = if exclusive { begun.exclusive() } else { begun };
    begun.run();
    b.my_indices().for_each(|i| assert_eq!(b.get(i), expected[i], "{i} of {range:?} of {:?}", a.layout()));
    team.prefix_fold(&mut a, T::OP).sync(In::My, Out::My).run();
    let expected = prefixes_after(None, &all);
    a.my_indices().for_each(|i| assert_eq!(a.get(i), expected[i], "{i} of {:?}, in place", a.layout()));
    // Memory of one's own, of any length.
    let me = team.rank().index();
    let lens: Vec<usize> = (0..team.size()).map(|_| [random.below(5), 1000][random.below(9) / 8]).collect();
    let of = |r: usize| (0..lens[r]).map(move |i| T::draw(mixed([11, r as u64, i as u64])));
    let mine: Vec<T> = of(me).collect();
    let before = (0..me).flat_map(of).reduce(|x, y| T::OP.combine(x, y));
    let mut come = vec![T::zeroed(); mine.len()];
    team.prefix_fold(&mine, T::OP).to(&mut come).run();
    assert_eq!(come, prefixes_after(before, &mine), "{lens:?}");
}

/// Ranks have so much, side by side, that they read and write it in several pieces.
fn long_folds(job: &Job) {
    fn of<T: Drawn>(job: &Job, random: &mut Random) {
        let part = 10_000 / size_of::<T>();
        let (n, on) = (part * job.size() + random.below(9), random.below(job.size()));
        let layouts = [Layout::block_cyclic(n, part / 2 + 3), Layout::blocked(n), Layout::on(on, part)];
        for layout in layouts.into_iter().take(if is_short() { 1 } else { 3 }) {
            let mut array = || {
                let (a, all, _) = dealt::<T>(job, layout, random);
                let range = random.below(9)..all.len() - random.below(9);
                (a, all, range)
            };
            let [first, second] = [array(), array()];
            fold_of(job, first, random);
            prefix_of(job, second, random);
        }
    }
    let mut random = Random::new(59);
    of::<u64>(job, &mut random);
    of::<Long>(job, &mut random);
}

fn wrong(job: &Job) {
    let me = job.rank();
    let size = job.size();
    let said = refusal("a root that is none", || job.reduce(&[1], Sum).root(TeamRank(size as u32)).to(&mut [0]).run());
    assert!(said.contains(&format!("{me}: reduce: from root {size}")), "{said}");
    let said = refusal("a short destination", || job.all_reduce(&[1u8, 2, 3], Max).to(&mut [0u8; 2][..]).run());
    assert!(said.contains("all_reduce") && said.contains("1 are missing"), "{said}");
    let said = refusal("another length", || job.prefix_fold(&[1, 2], Sum).to(&mut [0; 3]).run());
    assert!(said.contains("prefix_fold") && said.contains("dealt alike"), "{said}");
    let said = refusal("an algorithm of movers", || job.all_reduce(&mut [1], Sum).algorithm("bruck").run());
    assert!(said.contains("all_reduce: bruck") && said.contains("cannot be taken"), "{said}");
    job.barrier();
}
