//! Teams: what every mapping must do.

use crate::coll::Pool;
use crate::{Case, Random, attempt, is_short, mixed, plenty, refusal};
use partage::prelude::*;

/// The cases.
pub const CASES: [Case; 13] = [
    ("teams of every shape", shapes),
    ("collectives on teams", collectives),
    ("teams that overlap in ranks and in time", overlapping),
    ("teams that do different things at once", at_once),
    ("barriers of teams", barriers),
    ("halves of barriers of teams", halves),
    ("arrays of teams", arrays),
    ("locks and objects of teams", others),
    ("collectives of which only a team takes part", filters),
    ("collectives without a root of which the first takes no part", filters_without_the_first),
    ("teams that end in any order", endings),
    ("a team outlived by its array", outlived),
    ("wrong teams", wrong),
];

/// Are these the members, by everything that says it?
#[track_caller]
fn has_members(job: &Job, team: &Team, members: &[u32]) {
    let me = members.iter().position(|&r| r == job.rank().0).expect("a member");
    assert_eq!((team.size(), team.rank().index()), (members.len(), me));
    assert_eq!(team.members().map(|r| r.0).collect::<Vec<_>>(), members);
    for r in job.ranks() {
        let member = members.iter().position(|&m| m == r.0);
        assert_eq!(team.member(r).map(TeamRank::index), member);
        assert!(member.is_none_or(|m| team.to_job(TeamRank(m as u32)) == r));
    }
    team.barrier();
    assert_eq!(team.value(job.rank().0).gather_all(), members);
}

fn shapes(job: &Job) {
    let (n, me) = (job.size() as u32, job.rank().0);
    let all: Vec<u32> = (0..n).collect();
    let backwards: Vec<u32> = all.iter().rev().copied().collect();
    has_members(job, job, &all);
    has_members(job, &job.split(7), &all);
    has_members(job, &job.split(me as usize), &[me]);
    has_members(job, &job.split_by(0, -i64::from(me)), &backwards);
    has_members(job, &job.split_by(usize::MAX, i64::MIN), &all);
    has_members(job, &job.team(backwards.iter().map(|&r| Rank(r))), &backwards);
    let like = |r: &u32| r % 3 == me % 3;
    let third: Vec<u32> = all.iter().copied().filter(like).collect();
    let some = job.split(me as usize % 3);
    has_members(job, &some, &third);
    let near: Vec<u32> = all.iter().copied().filter(|&r| job.same_node(Rank(r))).collect();
    has_members(job, &job.split_by_node(), &near);
    // Of a team: by its numbers.
    let half: Vec<u32> =
        third.iter().enumerate().filter(|(i, _)| i % 2 == some.rank().index() % 2).map(|(_, &r)| r).collect();
    let nested = some.split(some.rank().index() % 2);
    has_members(job, &nested, &half);
    let last = *half.last().expect("this rank at least");
    let rest = nested.subset(|m| m.index() + 1 < half.len());
    assert_eq!(rest.is_some(), me != last);
    rest.iter().for_each(|rest| has_members(job, rest, &half[..half.len() - 1]));
    // Members are inserted when a team is made: after those that there are.
    let few: Vec<u32> = all.iter().copied().filter(|r| r % 2 == 0).collect();
    let pair = job.subset(|r| r.0 % 2 == 0);
    let more: Vec<u32> = few.iter().copied().chain(all.iter().copied().filter(|r| r % 2 == 1)).collect();
    has_members(job, &job.team(more.iter().map(|&r| Rank(r))), &more);
    assert_eq!(pair.is_some(), me % 2 == 0);
    pair.iter().for_each(|pair| has_members(job, pair, &few));
}

/// A list of some ranks in any order, which all ranks draw alike.
pub(crate) fn some_list(job: &Job, random: &mut Random) -> Vec<Rank> {
    let mut all: Vec<Rank> = job.ranks().collect();
    (1..all.len()).for_each(|i| all.swap(i, random.below(i + 1)));
    all.truncate(1 + random.below(all.len()));
    all
}

/// All ranks are dealt out to teams, whose members are in any order: that of this rank, and what its members draw alike.
pub(crate) fn some_team(job: &Job, random: &mut Random) -> (Team, Random) {
    let colors = 1 + random.below(job.size().min(4));
    let dealt: Vec<(usize, i64)> = job.ranks().map(|_| (random.below(colors), random.below(1000) as i64)).collect();
    let (color, key) = dealt[job.rank().index()];
    (job.split_by(color, key), Random::new(mixed([random.draw(), color as u64])))
}

/// So many rounds: all ranks are dealt out, and each team makes random collectives.
pub fn on_random_teams(job: &Job, random: &mut Random, times: usize) {
    let colors = 1 + random.below(job.size().min(4));
    let dealt: Vec<(usize, i64)> = job.ranks().map(|_| (random.below(colors), random.below(3) as i64)).collect();
    let (color, key) = dealt[job.rank().index()];
    let team = job.split_by(color, key);
    let mut random = Random::new(mixed([random.draw(), color as u64]));
    let most = (4000 / team.size() / team.size()).max(20);
    let (words, letters) = (
        Pool::<u64>::of(job, &team, 40 + 3 * most * team.size()),
        Pool::<u8>::of(job, &team, 40 + 3 * most * team.size()),
    );
    words.stream(times, most, &mut random);
    letters.stream(times, most, &mut random);
    words.batch(times, most, &mut random);
    words.together(1 + random.below(6), most / 4, &mut random);
}

fn collectives(job: &Job) {
    for seed in 0..(plenty(job, 600) / 10).clamp(2, 12) as u64 {
        on_random_teams(job, &mut Random::new(seed), 8);
    }
}

/// Makes so many teams of random ranks, keeps some of them for a while, uses all that there are, and drops them when each rank likes. Of how many this rank
/// was the first member, and how many it had at once.
pub fn overlap(job: &Job, times: usize, random: &mut Random) -> (usize, usize) {
    let mut mine = Random::new(mixed([job.rank().0.into(), random.draw()]));
    // With its number, which members know alike.
    let mut held: Vec<(u64, Team)> = vec![];
    // Those that nobody may use any more.
    let mut old: Vec<Team> = vec![];
    let (mut firsts, mut most) = (0, 0);
    for number in 0..times as u64 {
        let list = some_list(job, random);
        if list.contains(&job.rank()) {
            let team = job.team(list.iter().copied());
            firsts += usize::from(team.rank() == TeamRank(0));
            held.push((number, team));
            most = most.max(held.len());
        }
        let (op, root, all) = (random.below(4), random.below(1000), random.below(3) == 0);
        // The new one, or all, in an order that is the same everywhere.
        for (which, team) in held.iter().filter(|(which, _)| all || *which == number) {
            let seed = |m: usize| mixed([*which, number, m as u64]);
            let (me, n) = (team.rank().index(), team.size());
            let everybody: Vec<u64> = (0..n).map(seed).collect();
            match op {
                0 => team.barrier(),
                1 => assert_eq!(team.value(seed(me)).gather_all(), everybody),
                2 => assert_eq!(team.value(seed(me)).broadcast(TeamRank((root % n) as u32)), seed(root % n)),
                _ => {
                    let to = TeamRank(((me + root) % n) as u32);
                    assert_eq!(team.value(seed(me)).permute(to), seed((me + n - root % n) % n));
                }
            }
        }
        if random.below(3) == 0 {
            // The same ones on all of their members.
            let key = random.draw();
            let (keep, end): (Vec<_>, Vec<_>) = held.into_iter().partition(|(which, _)| mixed([key, *which]) % 3 == 0);
            (held, old) = (keep, old.into_iter().chain(end.into_iter().map(|(_, team)| team)).collect());
        }
        while !old.is_empty() && mine.below(3) > 0 {
            drop(old.swap_remove(mine.below(old.len())));
        }
    }
    (firsts, most)
}

/// By the thousand, if there is time.
fn overlapping(job: &Job) {
    let times = match is_short() {
        true => (plenty(job, 40_000) / 10).clamp(40, 400),
        false => (8000 / job.size()).clamp(1000, 2000),
    };
    let (firsts, most) = overlap(job, times, &mut Random::new(77));
    assert_eq!(job.value(firsts).sum(), times, "each has one first member");
    assert!(job.value(most).max() > 1, "no two were there at once");
}

/// Rows and columns; collectives of both are under way together, and each rank waits for them in its own order.
fn at_once(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let width = (1..=n).find(|w| w * w >= n).expect("a number");
    let (row, column) = (job.split(me / width), job.split(me % width));
    for round in 0..30u64 {
        let word = |r: Rank| mixed([round, r.0.into()]);
        let (mine, mut in_row, mut in_column, mut come) = ([word(job.rank()); 40], vec![], [0; 40], [0; 40]);
        in_column[..40].copy_from_slice(&mine);
        let right = TeamRank(((row.rank().index() + 1) % row.size()) as u32);
        let root = TeamRank((round as usize % column.size()) as u32);
        job.scope(|s| {
            let mut events = vec![
                row.gather_all(&mine).to(&mut in_row).start(s),
                column.broadcast(&mut in_column).root(root).start(s),
                row.permute(&mine, right).to(&mut come).start(s),
            ];
            // Some wait for one, some for the other, and meanwhile all meet.
            if round % 3 == 0 {
                job.barrier();
            }
            if (round as usize + me).is_multiple_of(2) {
                events.reverse();
            }
            events.into_iter().for_each(|event| event.wait());
        });
        assert_eq!(in_row, row.members().flat_map(|r| [word(r); 40]).collect::<Vec<_>>());
        assert_eq!(in_column, [word(column.to_job(root)); 40]);
        let left = TeamRank(((row.rank().index() + row.size() - 1) % row.size()) as u32);
        assert_eq!(come, [word(row.to_job(left)); 40]);
    }
    // One row does something else than the other, as often as it likes.
    for i in 0..20 * (1 + me / width) as u64 {
        assert_eq!(row.value(i).broadcast(TeamRank(0)), i);
        if me / width % 2 == 1 {
            row.barrier();
        }
    }
}

fn barriers(job: &Job) {
    let me = job.rank().index();
    let (team, counts) = (job.split(me % 2), job.array::<u64>(Layout::cyclic(job.size())).unwrap());
    let all = |team: &Team| team.members().map(|r| counts.get(r.index())).collect::<Vec<_>>();
    for step in 0..60 {
        counts.put(me, step);
        match step % 5 {
            0 => team.barrier_with(step),
            // Those without a value agree with any.
            1 if team.rank().0 == 0 => team.barrier_with(step),
            2 => {
                let there = team.notify(Some(step));
                assert!(!job.value(1u8).gather_all().is_empty(), "the job's are others");
                there.wait(None);
            }
            3 => {
                let there = team.notify(None);
                while !there.test() {}
                there.wait(Some(step));
            }
            _ => team.barrier(),
        }
        assert!(all(&team).iter().all(|&c| c >= step), "{step}: {:?}", all(&team));
        team.barrier();
    }
}

/// The second half of a barrier waits for nobody who has come to the first, with values, too.
fn halves(job: &Job) {
    let (team, come) = (job.split(0), job.semaphore().unwrap());
    let all = job.value(come.signal()).gather_all();
    for step in 0..6u64 {
        // Some, or all, have it; the first waits in between for others that have left.
        let mine = (step % 2 == 0 || team.rank().0 % 2 == 0).then_some(step << 60 | step);
        let there = team.notify(mine);
        if job.rank().0 == 0 {
            while !there.test() {}
            come.wait_n(job.size() as u32 - 1);
            there.wait(Some(step << 60 | step));
        } else {
            there.wait(mine);
            job.post(all[0]);
        }
    }
    job.quiet();
    job.barrier();
}

fn arrays(job: &Job) {
    let me = job.rank().index();
    for (round, layout) in [Layout::blocked(50), Layout::cyclic(37), Layout::block_cyclic(61, 4), Layout::per_rank(9)]
        .into_iter()
        .enumerate()
    {
        let team = job.split_by((me + round) % 2, -(me as i64));
        let (a, mut b) = (team.array::<u64>(layout).unwrap(), team.array::<u32>(layout).unwrap());
        assert!((0..a.len()).all(|i| a.get(i) == 0), "zeroed, wherever it lies");
        let value = |i: usize| mixed([round as u64, i as u64, (me as u64 + round as u64) % 2]);
        team.barrier();
        a.my_indices().for_each(|i| a.put(i, value(i)));
        team.barrier();
        let mut some = vec![0; a.len()];
        a.get_slice(0, &mut some);
        assert!(some.iter().enumerate().all(|(i, &x)| x == value(i) && a.get(i) == x));
        assert!((0..a.len()).all(|i| team.member(a.affinity(i)).is_some()));
        let parts: usize = job.ranks().map(|r| a.part_len(r)).sum();
        assert_eq!(parts, a.len());
        b.own_each(|i, x| *x = i as u32 + 1);
        let sum: u64 = b.freeze(|b| (0..b.len()).map(|i| u64::from(b.get(i))).sum());
        assert_eq!(sum as usize, b.len() * (b.len() + 1) / 2);
        // Each writes where the next has its part.
        let mut c = team.array::<u64>(Layout::per_rank(3)).unwrap();
        let next = (team.rank().index() + 1) % team.size();
        c.put_slice(3 * next, &[me as u64; 3]);
        let before = team.to_job(TeamRank(((team.rank().index() + team.size() - 1) % team.size()) as u32));
        c.own(|mine| assert_eq!(mine, [u64::from(before.0); 3]));
        let on_last = team.array::<u8>(Layout::on(team.size() - 1, 20)).unwrap();
        assert_eq!((on_last.affinity(0), on_last.get(19)), (team.to_job(TeamRank(team.size() as u32 - 1)), 0));
        let mut two = team.array::<u64>(Layout::per_rank(2 * team.size())).unwrap();
        let from = team.array::<u64>(Layout::per_rank(2 * team.size())).unwrap();
        from.cells().write(0, &vec![me as u64; 2 * team.size()]);
        team.exchange(&from).to(&mut two).run();
        two.own(|mine| assert!(mine.chunks(2).zip(team.members()).all(|(block, r)| block == [u64::from(r.0); 2])));
    }
}

fn others(job: &Job) {
    let (me, n) = (job.rank(), job.size());
    let team = job.split(me.index() % 2);
    let locks = team.mutexes::<u64>(3).unwrap();
    (0..20).for_each(|i| *locks.lock(i % 3) += 1);
    team.barrier();
    let sum: u64 = (0..3).map(|i| *locks.lock(i)).sum();
    assert_eq!(sum as usize, 20 * team.size());
    team.barrier();
    // Some ranks have more objects than others; one of all has a number that is free everywhere.
    let ours = (me.index() % 2 == 0).then(|| team.dist(u64::from(me.0)));
    let all = job.dist(7u8);
    let next = team.to_job(TeamRank(((team.rank().index() + 1) % team.size()) as u32));
    ours.iter().for_each(|ours| assert_eq!(ours.rpc(next, |x, ()| *x, ()).wait(), u64::from(next.0)));
    assert_eq!(all.rpc(Rank((me.0 + 1) % n as u32), |x, ()| *x, ()).wait(), 7);
    job.barrier();
}

/// Blocks are where they would be if all took part; those of others stay.
fn filters(job: &Job) {
    const N: usize = 3;
    let (me, n) = (job.rank().index(), job.size());
    let word = |from: usize, block: usize, k: usize| mixed([from as u64, block as u64, k as u64]);
    let blocks = |from: usize| (0..n).flat_map(move |b| (0..N).map(move |k| word(from, b, k))).collect::<Vec<_>>();
    let one = |from: usize| (0..N).map(|k| word(from, 0, k)).collect::<Vec<_>>();
    let shared = |len: usize| job.array::<u64>(Layout::per_rank(len)).unwrap();
    let (mut few, mut many, mut more) = (shared(N), shared(N * n), shared(N * n));
    let is_in = |r: usize| r % 3 != 1;
    let Some(team) = job.subset(|r| is_in(r.index())) else {
        job.barrier();
        // Nobody has touched what is mine.
        [&few, &many, &more].iter().for_each(|a| (0..a.local_len()).for_each(|k| assert_eq!(a.cells().get(k), 0)));
        job.barrier();
        return;
    };
    let members: Vec<usize> = (0..n).filter(|&r| is_in(r)).collect();
    let root = *members.last().expect("rank 0 at least");
    let at = TeamRank(root as u32);
    // What members have sent, where they would have; the rest is as it was.
    let gathered = |old: u64, block: &dyn Fn(usize) -> Vec<u64>| {
        (0..n).flat_map(|r| if is_in(r) { block(r) } else { vec![old; N] }).collect::<Vec<_>>()
    };
    let to_me = |r: usize| (0..N).map(|k| word(r, me, k)).collect::<Vec<_>>();

    let (source, mut mine) = (if me == root { blocks(root) } else { vec![] }, [0; N]);
    job.scatter(&source).root(at).to(&mut mine).filter(&team).run();
    assert_eq!(mine.to_vec(), (0..N).map(|k| word(root, me, k)).collect::<Vec<_>>());
    let mut all = vec![9; N * n];
    job.gather(&one(me)).root(at).to(&mut all[..]).filter(&team).run();
    let expected = if me == root { gathered(9, &one) } else { vec![9; N * n] };
    assert_eq!(all, expected);
    let mut grown = vec![];
    job.gather_all(&one(me)).to(&mut grown).filter(&team).run();
    assert_eq!(grown, gathered(0, &one));
    let mut in_place = blocks(me);
    job.exchange(&mut in_place).filter(&team).run();
    let kept = blocks(me);
    let expected = (0..n).flat_map(|r| if is_in(r) { to_me(r) } else { kept[r * N..][..N].to_vec() });
    assert_eq!(in_place, expected.collect::<Vec<_>>());
    let mut x = one(me);
    job.broadcast(&mut x).root(at).filter(&team).run();
    assert_eq!(x, one(root));
    let next = |i: usize| members[(i + 1) % members.len()];
    let place = members.iter().position(|&r| r == me).expect("a member");
    let mut come = [0; N];
    job.permute(&one(me), TeamRank(next(place) as u32)).to(&mut come).filter(&team).run();
    assert_eq!(come.to_vec(), one(members[(place + members.len() - 1) % members.len()]));

    // The same on arrays of the whole job.
    few.cells().write(0, &one(me));
    job.gather_all(&few).to(&mut many).filter(&team).run();
    let mut part = vec![0; N * n];
    many.cells().read(0, &mut part);
    assert_eq!(part, gathered(0, &one));
    many.cells().write(0, &blocks(me));
    job.exchange(&many).to(&mut more).sync(In::My, Out::My).filter(&team).run();
    more.cells().read(0, &mut part);
    assert_eq!(part, gathered(0, &to_me));
    job.broadcast(&mut few).root(at).filter(&team).run();
    few.cells().read(0, &mut part[..N]);
    assert_eq!(part[..N], one(root));
    if n > 1 {
        let not_in = TeamRank(1);
        let said = refusal("a root that takes no part", || job.broadcast(&mut [0]).root(not_in).filter(&team).run());
        assert!(said.contains("broadcast: member 1 is not in the filter"), "{said}");
    }
    job.barrier();
    job.barrier();
}

/// Where there is no root, none has to take part.
fn filters_without_the_first(job: &Job) {
    let (me, n) = (job.rank().0 as u64, job.size() as u64);
    if let Some(team) = job.subset(|r| r.0 > 0) {
        let mut sum = [me];
        job.all_reduce(&mut sum, Sum).filter(&team).run();
        assert_eq!(sum, [n * (n - 1) / 2]);
        let mut before = [me];
        job.prefix_reduce(&mut before, Sum).filter(&team).run();
        assert_eq!(before, [me * (me + 1) / 2]);
        let mut all = vec![77; n as usize];
        job.gather_all(&[me]).to(&mut all[..]).filter(&team).run();
        assert_eq!(all, (0..n).map(|r| if r == 0 { 77 } else { r }).collect::<Vec<_>>());
        let mut swapped: Vec<u64> = (0..n).map(|r| 100 * me + r).collect();
        job.exchange(&mut swapped).filter(&team).run();
        assert_eq!(swapped, (0..n).map(|r| if r == 0 { 100 * me } else { 100 * r + me }).collect::<Vec<_>>());
    }
    if n > 1 {
        let reversed = job.team(job.ranks().collect::<Vec<_>>().into_iter().rev());
        let last = Ordered(|_: u64, b: u64| b);
        let said = refusal("another order", || job.all_reduce(&mut [me], last).filter(&reversed).run());
        assert!(
            said.contains("all_reduce: operands are in the order of ranks, which is not that of the filter"),
            "{said}"
        );
    }
    job.barrier();
}

fn endings(job: &Job) {
    let mut mine = Random::new(job.rank().0.into());
    let before = crate::array::settled(job);
    for round in 0..40usize {
        let mut teams = vec![];
        for k in 0..3 {
            let team = job.split((job.rank().index() >> k) % 2);
            let array = (k == round % 3).then(|| team.array::<u64>(10 + round).unwrap());
            array.iter().for_each(|a| assert!((0..a.len()).all(|i| a.get(i) == 0)));
            team.barrier();
            array.iter().for_each(|a| a.my_indices().for_each(|i| a.put(i, u64::MAX)));
            teams.push((team, array));
        }
        while !teams.is_empty() {
            drop(teams.swap_remove(mine.below(teams.len())));
        }
    }
    assert_eq!(crate::array::settled(job), before, "what teams had is nobody's");
}

fn outlived(job: &Job) {
    let team = job.split(job.rank().index() % 2);
    let mut a = team.array::<u16>(Layout::per_rank(2)).unwrap();
    drop(team);
    a.own(|mine| mine.fill(3));
    assert!((0..a.len()).all(|i| a.get(i) == 3));
    a.freeze(|a| assert_eq!(a.get(0), 3));
}

/// What is refused before anybody is asked.
fn wrong(job: &Job) {
    let (me, n) = (job.rank(), job.size() as u32);
    let twice = refusal("twice", || job.team([me, me]));
    assert!(twice.contains(&format!("{me}: team: rank {} is named twice", me.0)), "{twice}");
    let outside = refusal("outside", || job.team([me, Rank(n)]));
    assert!(outside.contains(&format!("rank {n} is no member of this team of {n}")), "{outside}");
    if n > 1 {
        let not_me = refusal("not a member", || job.team([Rank((me.0 + 1) % n)]));
        assert!(not_me.contains(&format!("{me}: team: this rank is not among its members")), "{not_me}");
    }
    let team = job.split(me.index() % 2);
    let nobody = refusal("no member", || team.to_job(TeamRank(n)));
    assert!(nobody.contains(&format!("{me}: to_job: there is no member {n} in a team of {}", team.size())), "{nobody}");
    let (mut ours, mut all) =
        (team.array::<u64>(Layout::per_rank(1)).unwrap(), job.array::<u64>(Layout::per_rank(1)).unwrap());
    let said = refusal("an array of the job", || team.broadcast(&mut all).run());
    assert!(said.contains(&format!("{me}: broadcast: this array is of another team")), "{said}");
    let said = refusal("a team's array", || job.broadcast(&mut ours).run());
    assert!(said.contains("of another team"), "{said}");
    let said = refusal("a fold of the job's", || team.fold(&all, Sum).run());
    assert!(said.contains(&format!("{me}: fold: this array is of another team")), "{said}");
    let said = refusal("prefixes of the job's", || team.prefix_fold(&mut all, Sum).run());
    assert!(said.contains(&format!("{me}: prefix_fold: this array is of another team")), "{said}");
    let said = refusal("a phase", || job.phase(ours.owned(), |_| ()));
    assert!(said.contains(&format!("{me}: phase: this array is of another team")), "{said}");
    let said = refusal("no root", || team.broadcast(&mut [0]).root(TeamRank(n)).run());
    assert!(said.contains(&format!("from root {n}, where there are {} ranks", team.size())), "{said}");
    assert!(attempt(|| team.barrier()).is_ok());
    // A handle that was in a phase that did not begin is as it was.
    team.barrier();
}
