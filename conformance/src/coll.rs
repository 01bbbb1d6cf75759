//! Collectives: what every mapping must do.
//!
//! Nothing here meets between calls unless a sync mode asks for it.
//!
//! * `calls`: what is called, and what must come of it.
//! * `posted`: letters on a board.

mod calls;
mod posted;

use crate::{Case, Random, am, are, attempt, is_left_out, is_remembered, is_short, mixed, plenty, refusal, value};
use calls::Op::*;
use calls::{Besides, Blocks, CALLS, Call, INS, KINDS, Kind, OPS, OUTS, ROOTED, SLICES, Triple};
use partage::bytemuck::cast_slice;
use partage::prelude::*;

pub use calls::Pool;

/// The cases.
pub const CASES: [Case; 19] = [
    ("collectives of all kinds of buffers", kinds),
    ("collectives in every sync mode", modes),
    ("collectives of every root", roots),
    ("collectives by name", named),
    ("collectives by names of baselines", baselines),
    ("collectives of nothing", nothing),
    ("collectives of values", values),
    ("streams of collectives without barriers", streams),
    ("streams of collectives by letters", letters),
    ("streams of letters that are posted", posted::posted),
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
    const NAMES: [&str; 29] = [
        "flat",
        "flat:push",
        "flat:pull",
        "flat:split",
        "flat:mail",
        "flat:post",
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
        "nodes2",
        "nodes2:pull",
        "nodes2x2",
        "nodes2x2/3",
        "nodes3x3:split",
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
            let n = [1, 3, 31, 600][random.below(if name.ends_with("mail") || name.ends_with("post") { 1 } else { 4 })];
            let mut call = Call { algorithm: Some(name), ..Call::new(job, op, n, kinds, &mut random) };
            if op == Broadcast && name.starts_with('l') {
                // In this mode all are taken that can be.
                call.sync = (In::All, Out::All);
            }
            let is_taken = is_taken(&pool, &call);
            if name.starts_with('l') {
                assert_eq!(is_taken, does_all(job, name, &call), "{call:?}");
            } else if name == "flat:post" {
                assert_eq!(is_taken, op != Exchange && are_stores(job), "{call:?}");
            } else if is_taken {
                taken.push(name);
            }
        }
    }
    let told = |name: &str| name.starts_with('l') || name == "flat:post";
    let all_taken = NAMES.iter().all(|name| told(name) || taken.contains(name));
    assert!(all_taken, "{taken:?}");
}

/// Does each rank reach the memory of all by stores?
fn are_stores(job: &Job) -> bool {
    job.size() == 1 || (job.ranks().all(|r| job.same_node(r)) && !am::reference())
}

/// Can one rank do the work of all in such a call? It needs the memory of all, and to know where blocks go.
fn does_all(job: &Job, name: &str, call: &Call) -> bool {
    let size = job.size();
    let is_shared = (call.from, call.into) == SLICES;
    let is_known = call.op != Permute || (size == 2 && call.to == [1, 0]);
    let is_mode = call.sync.0 != In::My && (name != "last" || call.sync != (In::No, Out::My));
    are_stores(job) && is_shared && is_known && is_mode && (name != "leader1" || size > 1)
}

/// The algorithms of others, to which ours are compared: in blocks of any number of bytes, also longer than their buffers.
fn baselines(job: &Job) {
    const NAMES: [&str; 12] = [
        "000:naive-push",
        "000:naive-pull",
        "000:reference-push",
        "000:reference-pull",
        "000:straight-push",
        "000:spanning-tree",
        "000:xor",
        "000:ring",
        "000:registered",
        "000:dynamic",
        "000:static@8k",
        "000:static@16k",
    ];
    // Longer than both buffers.
    const LONG: usize = 17_003;
    const BUFFERS: [(Kind, Option<Kind>); 5] = [
        SLICES,
        (Kind::Private, Some(Kind::Private)),
        (Kind::Private, Some(Kind::Slice)),
        (Kind::Slice, Some(Kind::Private)),
        (Kind::Private, None),
    ];
    let (pool, mut random) = (Pool::<u8>::new(job, 2 + LONG * job.size()), Random::new(23));
    for (op, name) in OPS.into_iter().flat_map(|op| NAMES.map(move |name| (op, name))) {
        for kinds in BUFFERS {
            if kinds != SLICES && is_left_out(&mut random) {
                continue;
            }
            let n = if name.contains("naive") {
                // Each eight bytes are a message, or more.
                [0, 1, 13, 133][random.below(4)]
            } else if name.contains("static") && kinds == SLICES {
                LONG
            } else {
                [0, 1, 13, 1003, LONG][random.below(5)]
            };
            let call = Call { algorithm: Some(name), ..Call::new(job, op, n, kinds, &mut random) };
            assert_eq!(is_taken(&pool, &call), is_done(name, &call), "{call:?}");
        }
    }
}

/// Does the baseline do such a call? As the documentation of collectives has it.
fn is_done(name: &str, call: &Call) -> bool {
    let (from, into) = (call.from == Kind::Slice, call.into == Some(Kind::Slice));
    match name {
        "000:naive-push" | "000:reference-push" => into,
        "000:naive-pull" | "000:reference-pull" => from,
        "000:straight-push" | "000:registered" => from && into,
        "000:spanning-tree" => from && into && call.op == Broadcast,
        "000:xor" => from && into && matches!(call.op, GatherAll | Exchange),
        "000:ring" => matches!(call.op, Broadcast | GatherAll),
        _ => true,
    }
}

/// Makes a call, unless its algorithm has no plan for it, which is said.
fn is_taken<T: Pod>(pool: &Pool<T>, call: &Call) -> bool {
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
    let mut random = Random::new(14);
    let pool = Pool::<u64>::new(job, 10_000);
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    let two_first = |call: Call| {
        let mut to: Vec<usize> = (0..job.size()).collect();
        to.swap(0, 1);
        Call { to, ..call }
    };
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
            let call = two_first(Call { sync, ..Call::new(job, Permute, n, (from, into), &mut random) });
            two_are_ahead(&pool, &call, &come, &signals);
        }
    }
    // Whole arrays, again and again.
    let modes = [(In::My, Out::My), (In::No, Out::My), (In::My, Out::No), (In::No, Out::No)];
    for (sync, n) in modes.into_iter().zip([1, 200, 8, 3]) {
        if is_remembered() || !is_left_out(&mut random) {
            let like = two_first(Call { sync, ..Call::new(job, Permute, n, SLICES, &mut random) });
            let whole = Pool::whole(job, &like);
            for _ in 0..3 {
                two_are_ahead(&whole, &Call { key: random.draw(), ..like.clone() }, &come, &signals);
            }
        }
    }
}

/// The others make the call when the first two have.
fn two_are_ahead(pool: &Pool<u64>, call: &Call, come: &Semaphore, signals: &[Signal]) {
    let (job, me) = (pool.job, pool.job.rank().index());
    let mut ends = pool.ends(call, 0);
    job.barrier();
    if me > 1 {
        come.wait_n(2);
    }
    ends.of(job, call).run();
    if me < 2 {
        signals[2..].iter().for_each(|&signal| job.post(signal));
    }
    if call.sync.1 == Out::No {
        job.barrier();
    }
    ends.check(job, call);
}

/// One rank comes when all others are inside. Until then nothing was touched that may not be, and none of those has gone on that
/// have to wait. Of parts of arrays, and of whole ones again and again: then calls are remembered.
fn late(job: &Job) {
    let mut random = Random::new(15);
    let pool = Pool::<u64>::new(job, 400 * job.size());
    let mut late = Late::new(job);
    for (op, sync) in OPS.into_iter().flat_map(|op| {
        [(In::All, Out::All), (In::All, Out::My), (In::My, Out::All), (In::My, Out::My)].map(|sync| (op, sync))
    }) {
        let n = [3, 20][random.below(2)];
        let call = Call { sync, ..Call::new(job, op, n, SLICES, &mut random) };
        late.comes(&pool, &call, random.below(job.size()));
        if is_remembered() || !is_left_out(&mut random) {
            let whole = Pool::whole(job, &call);
            for _ in 0..3 {
                let again = Call { key: random.draw(), ..call.clone() };
                late.comes(&whole, &again, random.below(job.size()));
            }
        }
    }
    late.end();
}

/// What ranks know of the one that is late.
struct Late<'j> {
    job: &'j Job,
    come: Semaphore,
    signals: Vec<Signal>,
    /// The last round that this rank has entered when it was late.
    entered: GlobalPtr<u64>,
    /// How many have gone on, while this rank was late.
    left: GlobalPtr<u64>,
    round: u64,
}

impl<'j> Late<'j> {
    fn new(job: &'j Job) -> Self {
        let come = job.semaphore().unwrap();
        let signals = job.value(come.signal()).gather_all();
        let (entered, left) = (job.alloc_all(1).unwrap(), job.alloc_all(1).unwrap());
        Late { job, come, signals, entered, left, round: 0 }
    }

    /// The rank `at` comes late to the call.
    fn comes(&mut self, pool: &Pool<u64>, call: &Call, at: usize) {
        let Late { job, ref come, ref signals, entered, left, .. } = *self;
        let (me, size, n, sync) = (job.rank(), job.size(), call.n, call.sync);
        let mut ends = pool.ends(call, 0);
        let real = call.contents::<u64>(&ends.before);
        let (one, trash) = (Rank(at as u32), call.contents::<u64>(&Blocks { room: ends.before.room, there: vec![] }));
        // What is only right when the late rank has come: its own source, and where nothing is touched before, all.
        let all_late = sync.0 == In::All;
        if all_late || me == one {
            ends.source.write(&trash);
        }
        // Who waits for the late one: under All all, else in a permutation nobody but the two beside it.
        let waits = sync.0 == In::All || sync.1 == Out::All;
        self.round += 1;
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
            entered.put(job, self.round);
        } else {
            job.post(signals[at]);
        }
        ends.of(job, call).run();
        if waits {
            assert_eq!(entered.on(one).get(job), self.round, "{me} went on before {one} came: {call:?}");
        }
        left.on(one).at(job).fetch_add(1);
        if sync.1 == Out::All {
            // All that is to come has come, everywhere.
            for r in job.ranks() {
                let blocks = call.result(r.index(), size);
                call.check("the destination from afar", TeamRank(r.0), &blocks, &part(r, &pool.into, blocks.room * n));
            }
        }
        ends.check(job, call);
        job.barrier();
        left.put(job, 0);
    }

    fn end(self) {
        self.job.barrier();
        self.job.free_all(self.entered);
        self.job.free_all(self.left);
    }
}

/// Who has returned changes what is its own, or under All anything: nobody sees it, and nothing comes later. Of parts of arrays, and of whole ones again
/// and again: then calls are remembered.
fn afterwards(job: &Job) {
    let mut random = Random::new(16);
    let pool = Pool::<u64>::new(job, 400 * job.size());
    for turn in 0..plenty(job, 600).min(60) {
        let n = [1, 3, 30, 300][random.below(4)];
        let leave = OUTS[1 + turn % 2];
        let arrive = INS[1 + random.below(2)];
        let call = Call { sync: (arrive, leave), ..Call::new(job, OPS[turn / 2 % 6], n, SLICES, &mut random) };
        goes_on(&pool, &call, &mut random);
    }
    for (op, turn) in OPS.into_iter().flat_map(|op| (0..4).map(move |turn| (op, turn))) {
        if is_remembered() || !is_left_out(&mut random) {
            let (n, sync) = ([1, 3, 30, 300][random.below(4)], (INS[1 + turn / 2], OUTS[1 + turn % 2]));
            let like = Call { sync, ..Call::new(job, op, n, SLICES, &mut random) };
            let whole = Pool::whole(job, &like);
            for _ in 0..3 {
                goes_on(&whole, &Call { key: random.draw(), ..like.clone() }, &mut random);
            }
        }
    }
}

/// Makes the call, and goes on.
fn goes_on(pool: &Pool<u64>, call: &Call, random: &mut Random) {
    let (job, n) = (pool.job, call.n);
    let (me, size) = (job.rank().index(), job.size());
    let mut ends = pool.ends(call, 0);
    // Some are late.
    (0..random.below(size)).for_each(|r| {
        if r == me {
            job.rpc(job.neighbor(1), |_, ()| (), ()).wait();
        }
    });
    ends.of(job, call).run();
    let destination = ends.destination.as_mut().expect("two buffers");
    call.check("the destination", job.all().rank(), &ends.after, &destination.read());
    let (last, other) = (vec![mixed([call.key]); ends.before.room * n], vec![!call.key; ends.after.room * n]);
    match call.sync.1 {
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
