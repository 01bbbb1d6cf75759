//! Reductions on teams, whose members have an order of their own, and of which only a team takes part.

use super::{AllReduce, Call, Drawn, Kind, Line, Long, OPS, Op, Pool, Reduce, array, fold_of, prefix_of, values_of};
use crate::team::{some_list, some_team};
use crate::{Random, is_short, mixed, plenty};
use partage::prelude::*;

/// All ranks are dealt out, and each team makes so many random reductions of a kind.
pub fn on_random_teams(job: &Job, random: &mut Random, times: usize) {
    let (team, mut random) = some_team(job, random);
    Pool::<u64>::new(&team, 330).stream(times, 300, &mut random);
    Pool::<Line>::new(&team, 330).stream(times, 300, &mut random);
    Pool::<Long>::new(&team, 130).stream(times, 100, &mut random);
    values_of(&team, 2);
    for _ in 0..2 {
        fold_of::<u64>(&team, array(&team, &mut random), &mut random);
        fold_of::<Line>(&team, array(&team, &mut random), &mut random);
        prefix_of::<Line>(&team, array(&team, &mut random), &mut random);
        prefix_of::<Long>(&team, array(&team, &mut random), &mut random);
    }
}

pub fn collectives(job: &Job) {
    for seed in 0..(plenty(job, 600) / 10).clamp(2, 12) as u64 {
        on_random_teams(job, &mut Random::new(mixed([97, seed])), 8);
    }
}

/// Reductions of teams that overlap are under way together, and each rank waits for them in its own order.
pub fn overlapping(job: &Job) {
    let mut random = Random::new(101);
    let mut own = Random::new(mixed([101, job.rank().0.into()]));
    for _ in 0..if is_short() { 6 } else { 20 } {
        let n = [1, 5, 60][random.below(3)];
        let mut teams = vec![];
        for _ in 0..3 {
            let (list, key) = (some_list(job, &mut random), random.draw());
            if list.contains(&job.rank()) {
                teams.push((job.team(list), key));
            }
        }
        let mut calls = vec![];
        for (team, key) in &teams {
            let (me, mut random) = (team.rank().index(), Random::new(*key));
            for op in OPS {
                let call = Call::new(team, op, n, (Kind::Private, None), &mut random);
                calls.push((team, call, call.mine::<Line>(me)));
            }
        }
        job.scope(|s| {
            let mut events = vec![];
            for (team, call, mine) in &mut calls {
                events.push(call.of(team, mine).start(s));
            }
            while !events.is_empty() {
                events.swap_remove(own.below(events.len())).wait();
            }
        });
        for (team, call, found) in &calls {
            let me = team.rank().index();
            let expected = call.result(me, team.size()).unwrap_or(call.mine::<Line>(me));
            assert_eq!(*found, expected, "member {me} of {}: {call:?}", team.size());
        }
    }
}

/// Elements of the arrays.
const LEN: usize = 30;

/// The layout, the root and the order of operands are those of the job.
pub fn filters(job: &Job) {
    fn arrays<T: Drawn>(job: &Job) -> [SharedArray<T>; 2] {
        [(); 2].map(|()| job.array::<T>(Layout::per_rank(LEN)).expect("a little memory"))
    }
    let (mut words, mut lines) = (arrays::<u64>(job), arrays::<Line>(job));
    let mut random = Random::new(103);
    for round in 0..if is_short() { 3 } else { 6 } {
        let (mut list, is_any_order, key) = (some_list(job, &mut random), round % 3 == 2, random.draw());
        if !is_any_order {
            list.sort();
        }
        if list.contains(&job.rank()) {
            let ranks: Vec<usize> = list.iter().map(|r| r.index()).collect();
            let (team, mut random) = (job.team(list), Random::new(key));
            // Where the order of operands matters, the filter's must be that of ranks.
            let ops: &[Op] = if is_any_order { &[Reduce, AllReduce] } else { &OPS };
            filtered(job, (&team, &ranks[..]), ops, &mut words, &mut random);
            if !is_any_order {
                filtered(job, (&team, &ranks[..]), ops, &mut lines, &mut random);
            }
        }
    }
    job.barrier();
}

fn filtered<T: Drawn>(
    job: &Job,
    (team, ranks): (&Team, &[usize]),
    ops: &[Op],
    [from, into]: &mut [SharedArray<T>; 2],
    random: &mut Random,
) {
    let me = job.rank().index();
    for (&op, n) in ops.iter().flat_map(|op| [1, LEN].map(|n| (op, n))) {
        let root = ranks[random.below(ranks.len())];
        let call = Call { root, ..Call::new(job, op, n, (Kind::Private, Some(Kind::Private)), random) };
        let (mine, trash) = (call.mine::<T>(me), call.trash::<T>());
        let result = call.result_of::<T>(me, ranks);
        let expected = result.clone().unwrap_or(trash.clone());
        let mut come = trash.clone();
        call.of(job, &mine).to(&mut come[..]).filter(team).run();
        assert_eq!(come, expected, "rank {me} of {ranks:?}: {call:?}");
        let mut place = mine.clone();
        call.of(job, &mut place).filter(team).run();
        assert_eq!(place, result.unwrap_or(mine.clone()), "rank {me} of {ranks:?}, in place: {call:?}");
        if n == LEN {
            from.cells().write(0, &mine);
            into.cells().write(0, &trash);
            call.of(job, &*from).to(&mut *into).filter(team).run();
            into.cells().read(0, &mut come);
            assert_eq!(come, expected, "rank {me} of {ranks:?}, arrays: {call:?}");
        }
    }
}
