//! The suite of collectives that are called again and again with the same buffers: what is remembered of a call is right for the next,
//! and for no other. Ranks that compare their calls (`PARTAGE_CHECK=1`, debug builds) remember less; so it is run without that, too.

use crate::{Case, mixed};
use partage::prelude::*;

/// All of them.
pub const CASES: [Case; 3] = [
    ("collectives again and again: all operations, modes, roots, on arrays and on slices", same),
    ("collectives again: arrays that come and go, vectors of other lengths, started ones between", other),
    ("collectives again: on teams, whose ranks and arrays have numbers of their own", teams),
];

const MODES: [(In, Out); 5] =
    [(In::All, Out::All), (In::My, Out::My), (In::All, Out::My), (In::My, Out::All), (In::No, Out::No)];

/// What a rank has in a round.
fn word(rank: usize, round: u64, i: usize) -> u64 {
    mixed([rank as u64, round, i as u64])
}

fn sum(size: usize, round: u64, i: usize) -> u64 {
    (0..size).fold(0, |sum: u64, r| sum.wrapping_add(word(r, round, i)))
}

/// One of each operation: with n elements in a block, on arrays or on memory of one's own; what comes is compared.
struct Buffers<'t> {
    team: &'t Team,
    n: usize,
    src: SharedArray<u64>,
    dst: SharedArray<u64>,
    wide_src: SharedArray<u64>,
    wide_dst: SharedArray<u64>,
    private: [Vec<u64>; 4],
}

impl<'t> Buffers<'t> {
    fn new(team: &'t Team, n: usize) -> Buffers<'t> {
        let array = |blocks: usize| team.array::<u64>(Layout::per_rank(n * blocks)).unwrap();
        let all = team.size();
        let private = [1, 1, all, all].map(|blocks| vec![0; n * blocks]);
        Buffers { team, n, src: array(1), dst: array(1), wide_src: array(all), wide_dst: array(all), private }
    }

    fn fill(&mut self, round: u64) {
        let me = self.team.rank().index();
        let [src, dst, wide_src, wide_dst] = &mut self.private;
        for (array, private) in [(&self.src, src), (&self.wide_src, wide_src)] {
            private.iter_mut().enumerate().for_each(|(i, to)| *to = word(me, round, i));
            array.cells().write(0, private);
        }
        for (array, private) in [(&self.dst, dst), (&self.wide_dst, wide_dst)] {
            private.fill(7);
            array.cells().write(0, private);
        }
        self.team.barrier();
    }

    /// A broadcast is in place.
    fn call(&mut self, op: usize, private: bool, root: TeamRank, sync: (In, Out)) {
        let (team, to) = (self.team, TeamRank((self.team.rank().0 + 1) % self.team.size() as u32));
        macro_rules! call {
            ($src:expr, $dst:expr, $wide_src:expr, $wide_dst:expr) => {
                match op {
                    0 => team.broadcast($src).root(root).sync(sync.0, sync.1).run(),
                    1 => team.scatter(&*$wide_src).to($dst).root(root).sync(sync.0, sync.1).run(),
                    2 => team.gather(&*$src).to($wide_dst).root(root).sync(sync.0, sync.1).run(),
                    3 => team.gather_all(&*$src).to($wide_dst).sync(sync.0, sync.1).run(),
                    4 => team.exchange(&*$wide_src).to($wide_dst).sync(sync.0, sync.1).run(),
                    5 => team.permute(&*$src, to).to($dst).sync(sync.0, sync.1).run(),
                    6 => team.reduce(&*$src, Sum).to($dst).root(root).sync(sync.0, sync.1).run(),
                    7 => team.all_reduce(&*$src, Sum).to($dst).sync(sync.0, sync.1).run(),
                    8 => team.prefix_reduce(&*$src, Sum).to($dst).sync(sync.0, sync.1).run(),
                    _ => team.prefix_reduce(&*$src, Sum).exclusive().to($dst).sync(sync.0, sync.1).run(),
                }
            };
        }
        let [src, dst, wide_src, wide_dst] = &mut self.private;
        match private {
            true => call!(src, dst, wide_src, wide_dst),
            false => call!(&mut self.src, &mut self.dst, &mut self.wide_src, &mut self.wide_dst),
        }
    }

    fn check(&self, op: usize, private: bool, root: TeamRank, round: u64) {
        let (me, size, n) = (self.team.rank().index(), self.team.size(), self.n);
        let is_root = me == root.index();
        let wide = matches!(op, 2..=4);
        let [src, dst, _, wide_dst] = &self.private;
        let there = match (op, private) {
            (0, true) => src.clone(),
            (0, false) => read(&self.src, n),
            (_, true) => if wide { wide_dst } else { dst }.clone(),
            (_, false) => read(if wide { &self.wide_dst } else { &self.dst }, n * if wide { size } else { 1 }),
        };
        for (i, &came) in there.iter().enumerate() {
            let (block, j) = (i / n, i % n);
            let wanted = match op {
                0 => word(root.index(), round, i),
                1 => word(root.index(), round, me * n + i),
                2 if is_root => word(block, round, j),
                3 => word(block, round, j),
                4 => word(block, round, me * n + j),
                5 => word((me + size - 1) % size, round, i),
                6 if is_root => sum(size, round, i),
                7 => sum(size, round, i),
                8 => sum(me + 1, round, i),
                9 if me > 0 => sum(me, round, i),
                _ => 7,
            };
            assert_eq!(came, wanted, "operation {op}, private {private}, root {}, round {round}, element {i}", root.0);
        }
        self.team.barrier();
    }
}

fn read(array: &SharedArray<u64>, len: usize) -> Vec<u64> {
    let mut all = vec![0; len];
    array.cells().read(0, &mut all);
    all
}

/// Each call some times in a row, so that all but the first are known.
fn every(team: &Team, n: usize, times: u64) {
    let mut buffers = Buffers::new(team, n);
    let mut round = n as u64;
    for op in 0..10 {
        for (i, sync) in MODES.into_iter().enumerate() {
            for private in [false, true] {
                for turn in 0..times {
                    round += 1;
                    let root = TeamRank(((turn / 2 + i as u64) % team.size() as u64) as u32);
                    buffers.fill(round);
                    buffers.call(op, private, root, sync);
                    // What others may still be doing is not looked at.
                    team.barrier();
                    buffers.check(op, private, root, round);
                }
            }
        }
    }
}

fn same(job: &Job) {
    let (times, rounds) = if job.size() > 8 || crate::scale() < 1.0 { (3, 200) } else { (6, 1000) };
    for n in [1, 40, 3, 7].into_iter().take(if crate::is_short() { 2 } else { 4 }) {
        every(job, n, times);
    }
    // Without anything between: the same call many times, and two by turns.
    let (size, me) = (job.size(), job.rank().index());
    let mut total = [0u64];
    let mut before = [0u64];
    for round in 0..rounds {
        total[0] = word(me, round, 0);
        job.all_reduce(&mut total, Sum).run();
        assert_eq!(total[0], sum(size, round, 0), "round {round}");
        job.prefix_reduce(&[word(me, round, 1)], Sum).to(&mut before).run();
        assert_eq!(before[0], sum(me + 1, round, 1), "round {round}");
    }
}

fn other(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    // An array is where another was, with another layout, or as long and of another team's.
    for round in 0..20 {
        let n = 1 + round as usize % 3;
        let src = job.array::<u64>(Layout::per_rank(n)).unwrap();
        let mut all = job.array::<u64>(Layout::per_rank(n * size)).unwrap();
        for turn in 0..3 {
            let word = |r: usize, i: usize| word(r, 100 * round + turn, i);
            (0..n).for_each(|i| src.cells().set(i, word(me, i)));
            job.gather_all(&src).to(&mut all).run();
            assert!(read(&all, n * size).iter().enumerate().all(|(i, &x)| x == word(i / n, i % n)), "round {round}");
            job.barrier();
        }
    }
    // A vector is made as long as it must be, also when it had that length before.
    let mut all = vec![];
    for round in 0..40u64 {
        let mine = vec![me as u64 + round; 1 + round as usize % 4];
        if round % 5 == 0 {
            all.truncate(round as usize % 3);
        }
        job.gather_all(&mine).to(&mut all).run();
        let wanted: Vec<u64> = (0..size).flat_map(|r| vec![r as u64 + round; mine.len()]).collect();
        assert_eq!(all, wanted, "round {round}");
    }
    // While others are under way, known ones take their turn.
    for round in 0..30 {
        let (mine, mut come) = ([word(me, round, 0); 5], vec![]);
        let mut total = [word(me, round, 1)];
        job.scope(|s| {
            let event = job.gather_all(&mine).to(&mut come).start(s);
            job.all_reduce(&mut total, Sum).run();
            event.wait();
        });
        assert_eq!(total[0], sum(size, round, 1));
        assert!(come.iter().enumerate().all(|(i, &x)| x == word(i / 5, round, 0)));
        job.all_reduce(&mut total, Sum).run();
        assert_eq!(total[0], sum(size, round, 1).wrapping_mul(size as u64));
    }
}

fn teams(job: &Job) {
    every(&job.split(job.rank().index() % 2), 1, 3);
    // The other way round.
    every(&job.split_by(0, -i64::from(job.rank().0)), 2, 3);
}
