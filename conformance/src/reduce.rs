//! Reductions: what every mapping must do.
//!
//! The oracle computes what all ranks have, from numbers that follow from a key, one after the other in the order of ranks or indices. Most
//! operations are compositions of functions, whose order matters.

use crate::{Case, Random, attempt, is_left_out, mixed, plenty, refusal};
use partage::coll::{Collective, Source, With};
use partage::prelude::*;

/// The cases.
pub const CASES: [Case; 9] = [
    ("reductions of all kinds of buffers", kinds),
    ("reductions by name", named),
    ("streams of reductions without barriers", streams),
    ("reductions of values", values),
    ("all operations of all types", operations),
    ("reductions that are under way together", together),
    ("folds of arrays", folds),
    ("prefixes of arrays", prefixes),
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
    fn new(job: &Job, op: Op, n: usize, (from, into): (Kind, Option<Kind>), random: &mut Random) -> Call {
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        Call { op, root: random.below(job.size()), n, sync, algorithm: None, from, into, key: random.draw() }
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
        let ranks = match self.op {
            Reduce if me != self.root => return None,
            Reduce | AllReduce => 0..size,
            Prefix => 0..me + 1,
            Before => 0..me,
        };
        let join = |a: Vec<T>, b: Vec<T>| a.into_iter().zip(b).map(|(a, b)| T::OP.combine(a, b)).collect();
        ranks.map(|r| self.mine(r)).reduce(join)
    }

    fn of<'a, T: Drawn, S: Source<'a, Item = T>>(
        &self,
        job: &'a Job,
        source: S,
    ) -> Collective<'a, T, S::State, With<T, T::Op>> {
        let begun = match self.op {
            Reduce => job.reduce(source, T::OP).root(TeamRank(self.root as u32)),
            AllReduce => job.all_reduce(source, T::OP),
            Prefix => job.prefix_reduce(source, T::OP),
            Before => job.prefix_reduce(source, T::OP).exclusive(),
        };
        let ready = begun.sync(self.sync.0, self.sync.1);
        match self.algorithm {
            Some(name) => ready.algorithm(name),
            None => ready,
        }
    }
}

/// Arrays that are used again and again.
struct Pool<'j, T> {
    job: &'j Job,
    from: SharedArray<T>,
    into: SharedArray<T>,
}

impl<'j, T: Drawn> Pool<'j, T> {
    /// Collective.
    fn new(job: &'j Job, room: usize) -> Self {
        let [from, into] = [(); 2].map(|_| job.array(Layout::cyclic(room * job.size())).expect("a little memory"));
        Pool { job, from, into }
    }

    /// Makes a call, and looks at what comes of it. `at` is where in the arrays.
    fn once(&mut self, call: &Call, at: usize) {
        let Pool { job, from, into } = self;
        let (me, size) = (job.rank().index(), job.size());
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
            job.barrier();
        }
        match (call.from, call.into) {
            (Kind::Private, None) => call.of(job, &mut private).run(),
            (Kind::Private, Some(Kind::Private)) => call.of(job, &private).to(&mut come).run(),
            (Kind::Private, Some(Kind::Shared)) => call.of(job, &private).to(into.slice(range)).run(),
            (Kind::Shared, Some(Kind::Private)) => call.of(job, from.slice(range)).to(&mut come).run(),
            (Kind::Shared, Some(Kind::Shared)) => call.of(job, from.slice(range.clone())).to(into.slice(range)).run(),
            (Kind::Shared, None) => unreachable!("a slice is no place"),
        }
        if shared && call.sync.1 == Out::No {
            job.barrier();
        }
        if call.into == Some(Kind::Shared) {
            into.cells().read(at, &mut come);
        }
        let found = if call.into.is_none() { &private } else { &come };
        assert_eq!(*found, expected.unwrap_or(left), "{}: {call:?}", job.rank());
        // Nobody reads it any more.
        if call.from == Kind::Shared {
            from.cells().write(at, &call.trash());
        }
    }

    /// So many random calls on the same buffers, without barriers.
    fn stream(&mut self, times: usize, most: usize, random: &mut Random) {
        for _ in 0..times {
            let n = match random.below(8) {
                0 => random.below(most + 1),
                1 | 2 => random.below(most / 8 + 1),
                _ => random.below(6),
            };
            let (from, into) = (KINDS[random.below(2)], KINDS[random.below(2)]);
            let kinds = if random.below(4) == 0 { (Kind::Private, None) } else { (from, Some(into)) };
            let mut call = Call::new(self.job, OPS[random.below(4)], n, kinds, random);
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
        let mut pool = Pool::<T>::new(job, 6000);
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

/// Every algorithm for every operation, or it says that it cannot be taken; the table's stay right.
fn named(job: &Job) {
    const NAMES: [&str; 27] = [
        "flat:push",
        "flat:pull",
        "flat:mail",
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
        "coop",
    ];
    fn of<T: Drawn>(job: &Job, random: &mut Random) -> usize {
        let mut pool = Pool::<T>::new(job, 500);
        let mut taken = 0;
        for name in NAMES {
            for op in OPS {
                for kinds in
                    [(Kind::Private, None), (Kind::Shared, Some(Kind::Shared)), (Kind::Private, Some(Kind::Private))]
                {
                    if is_left_out(random) {
                        continue;
                    }
                    let n = [1, 2, long(job) / 12][random.below(3)];
                    let mut call = Call::new(job, op, n, kinds, random);
                    call.algorithm = Some(name);
                    match attempt(|| pool.once(&call, 0)) {
                        Ok(()) => taken += 1,
                        Err(said) => {
                            assert!(said.contains("cannot be taken") || said.contains("algorithm: "), "{name}: {said}")
                        }
                    }
                    job.barrier();
                }
            }
        }
        taken
    }
    let mut random = Random::new(37);
    let taken = [of::<u64>(job, &mut random), of::<Line>(job, &mut random)];
    assert!(taken.iter().all(|&n| n >= 8), "{taken:?}");
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
    let (me, size) = (job.rank().0, job.size() as u32);
    for k in 0..20 {
        let all: Vec<u32> = (0..size).map(|r| mixed([k, r.into()]) as u32).collect();
        let mine = all[me as usize];
        let root = TeamRank(k as u32 % size);
        assert_eq!(job.value(mine).sum(), all.iter().fold(0u32, |a, &b| a.wrapping_add(b)));
        assert_eq!(job.value(mine).min(), *all.iter().min().expect("some"));
        assert_eq!(job.value(mine).max(), *all.iter().max().expect("some"));
        let xor = all.iter().fold(0, |a, b| a ^ b);
        assert_eq!(job.value(mine).reduce(Xor, root), (job.rank().0 == root.0).then_some(xor));
        let lines: Vec<Line> = all.iter().map(|&x| Line::draw(x.into())).collect();
        let join = |to: usize| lines[..to].iter().copied().reduce(|a, b| Then.combine(a, b));
        let mine = lines[me as usize];
        assert_eq!(Some(job.value(mine).all_reduce(Then)), join(lines.len()));
        assert_eq!(Some(job.value(mine).prefix_reduce(Then)), join(me as usize + 1));
        assert_eq!(job.value(mine).prefix_before(Then), join(me as usize));
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

/// An array of some layout, whose elements are known, and a part of it.
fn array<T: Drawn>(job: &Job, random: &mut Random) -> (SharedArray<T>, Vec<T>, std::ops::Range<usize>) {
    let n = random.below(60);
    let layout = match random.below(5) {
        0 => Layout::blocked(n),
        1 => Layout::cyclic(n),
        2 => Layout::block_cyclic(n, 1 + random.below(7)),
        3 => Layout::per_rank(n / 4),
        _ => Layout::on(random.below(job.size()), n),
    };
    let a = job.array::<T>(layout).expect("a little memory");
    let key = random.draw();
    let all: Vec<T> = (0..a.len()).map(|i| T::draw(mixed([key, i as u64]))).collect();
    a.my_indices().for_each(|i| a.put(i, all[i]));
    let start = random.below(all.len() + 1);
    let range = start..start + random.below(all.len() - start + 1);
    (a, all, range)
}

/// UPC's reductions: any layout, beginning and end.
fn folds(job: &Job) {
    fn of<T: Drawn>(job: &Job, random: &mut Random) {
        let (a, all, range) = array::<T>(job, random);
        let expected = all[range.clone()].iter().copied().reduce(|x, y| T::OP.combine(x, y));
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        let found = job.fold(a.slice(range.clone()), T::OP).sync(sync.0, sync.1).run();
        assert_eq!(found, expected, "{range:?} of {:?}", a.layout());
        let root = TeamRank(random.below(job.size()) as u32);
        let found = job.fold(a.slice(range), T::OP).root(root).run();
        assert_eq!(found, expected.filter(|_| root.0 == job.rank().0));
        // Memory of one's own, of any length.
        let lens: Vec<usize> = (0..job.size()).map(|_| random.below(5)).collect();
        let of = |r: usize| (0..lens[r]).map(move |i| T::draw(mixed([7, r as u64, i as u64])));
        let mine: Vec<T> = of(job.rank().index()).collect();
        let expected = (0..job.size()).flat_map(of).reduce(|x, y| T::OP.combine(x, y));
        assert_eq!(job.fold(&mine, T::OP).run(), expected);
    }
    let mut random = Random::new(47);
    for _ in 0..plenty(job, 400).min(25) {
        of::<u64>(job, &mut random);
        of::<Line>(job, &mut random);
        of::<Long>(job, &mut random);
    }
}

fn prefixes(job: &Job) {
    fn of<T: Drawn>(job: &Job, random: &mut Random) {
        let (mut a, all, range) = array::<T>(job, random);
        let b = job.array::<T>(a.layout()).expect("a little memory");
        let exclusive = random.below(2) == 0;
        let mut expected = vec![T::zeroed(); all.len()];
        let mut sum: Option<T> = None;
        for i in range.clone() {
            let with = sum.map_or(all[i], |sum| T::OP.combine(sum, all[i]));
            expected[i] = if exclusive { sum.unwrap_or(T::zeroed()) } else { with };
            sum = Some(with);
        }
        let begun = job.prefix_fold(a.slice(range.clone()), T::OP).to(b.slice(range.clone()));
        let begun = if exclusive { begun.exclusive() } else { begun };
        begun.run();
        b.my_indices().for_each(|i| assert_eq!(b.get(i), expected[i], "{i} of {range:?} of {:?}", a.layout()));
        job.prefix_fold(&mut a, T::OP).sync(In::My, Out::My).run();
        let mut sum = None;
        let prefixes: Vec<T> = all.iter().map(|&x| *sum.insert(sum.map_or(x, |sum| T::OP.combine(sum, x)))).collect();
        a.my_indices().for_each(|i| assert_eq!(a.get(i), prefixes[i], "{i} of {:?}, in place", a.layout()));
    }
    let mut random = Random::new(53);
    for _ in 0..plenty(job, 300).min(20) {
        of::<u64>(job, &mut random);
        of::<Line>(job, &mut random);
    }
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
