//! Collectives of which some ranks are late, or far ahead of others.

use crate::{Case, mixed};
use partage::prelude::*;

/// The cases.
pub const CASES: [Case; 5] = [
    ("started collectives that wait for a late rank one by one", late_again),
    ("what is put before all have entered is passed, in place too", in_place),
    ("collectives of which some ranks are far ahead", far_ahead),
    ("streams of blocks to ranks that fall behind", behind),
    ("streams of blocks to a rank that has not ended what it has started", behind_its_own),
];

/// All but one have started several. That one comes to them one by one, and says only then what is passed: none is done before.
fn late_again(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let come = job.semaphore().unwrap();
    let signals = job.value(come.signal()).gather_all();
    let mut words = [(); 3].map(|()| job.array::<u64>(Layout::per_rank(1)).unwrap());
    for round in 0..4 * size {
        let (root, late) = (round % size, (round + round / size) % size);
        let value = |n: usize| mixed([round as u64, n as u64]);
        words.iter().for_each(|array| array.cells().write(0, &[0]));
        job.barrier();
        job.scope(|s| {
            let mut started = vec![];
            for (n, array) in words.iter_mut().enumerate() {
                if me == late {
                    come.wait_n(if n == 0 { 0 } else { size as u32 - 1 });
                    array.put(root, value(n));
                }
                started.push(job.broadcast(array).root(TeamRank(root as u32)).sync(In::All, Out::All).start(s));
            }
            for event in started {
                event.wait();
                if me != late {
                    job.post(signals[late]);
                }
            }
        });
        if me == late {
            come.wait_n(size as u32 - 1);
        }
        let got = words.each_ref().map(|array| array.get(me));
        assert_eq!(got, [0, 1, 2].map(value), "{root} is the root, {late} comes late");
    }
}

/// One rank comes late, and puts to the others' parts before it does: that is what they pass.
fn in_place(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    let mut blocks = job.array::<u64>(Layout::per_rank(size)).unwrap();
    let mut words = job.array::<u64>(Layout::per_rank(1)).unwrap();
    let (usual, other) = (|from: usize, to: usize| mixed([from as u64, to as u64]), |from: usize| mixed([from as u64]));
    for late in 0..size {
        blocks.cells().write(0, &(0..size).map(|to| usual(me, to)).collect::<Vec<_>>());
        words.cells().write(0, &[usual(me, me)]);
        job.barrier();
        let put = |array: &SharedArray<u64>, place: &dyn Fn(usize) -> usize| {
            if me == late {
                // Whoever runs it has come there, or nearly.
                job.ranks().for_each(|r| job.rpc(r, |_, ()| (), ()).wait());
                (0..size).for_each(|r| array.put(place(r), other(r)));
            }
        };
        put(&blocks, &|r| r * size + late);
        job.exchange(&mut blocks).run();
        let got: Vec<u64> = (0..size).map(|from| blocks.cells().get(from)).collect();
        let expected = |from| if me == late { other(from) } else { usual(from, me) };
        assert_eq!(got, (0..size).map(expected).collect::<Vec<_>>(), "{late} comes late to an exchange");
        put(&words, &|r| r);
        job.permute(&mut words, TeamRank(((me + 1) % size) as u32)).run();
        assert_eq!(words.cells().get(0), other((me + size - 1) % size), "{late} comes late to a permutation");
    }
}

/// Others have the time to go ahead.
pub(crate) fn falls_behind(job: &Job, times: usize) {
    for r in (0..times).map(|i| job.neighbor(i as i64)) {
        job.rpc(r, |_, ()| (), ()).wait();
    }
}

/// The second rank needs nothing of the first, which is late, but for its last block; and sends it another before that has come.
fn far_ahead(job: &Job) {
    let (me, size, rounds) = (job.rank().index(), job.size(), 60);
    if size < 4 {
        return;
    }
    let [from, into] = [(); 2].map(|_| job.array::<u64>(Layout::cyclic(rounds * size)).unwrap());
    let of = |round: usize, r: usize| mixed([round as u64, r as u64]);
    for sync in [(In::No, Out::No), (In::My, Out::My)] {
        (0..rounds).for_each(|i| from.cells().set(i, of(i, me)));
        job.barrier();
        if me == 0 {
            falls_behind(job, 100);
        }
        let around = |r: usize| [1, 3, 0, 2].get(r).copied().unwrap_or(r);
        for i in 0..rounds {
            let to = if i % 16 == 3 { around(me) } else { me };
            let row = |a| SharedArray::slice(a, i * size..(i + 1) * size);
            job.permute(row(&from), TeamRank(to as u32)).to(row(&into)).sync(sync.0, sync.1).run();
        }
        job.barrier();
        for i in 0..rounds {
            let source = if i % 16 == 3 { (0..size).find(|&r| around(r) == me).expect("a permutation") } else { me };
            assert_eq!(into.cells().get(i), of(i, source), "round {i}, {sync:?}");
        }
    }
}

/// Those who send are ahead of those who receive, as far as they may be; nothing is overwritten before it was read.
fn behind(job: &Job) {
    let (me, size, rounds) = (job.rank().index(), job.size(), 50);
    let block = |n: usize, round: usize, r: usize| vec![mixed([round as u64, r as u64]); n];
    for (n, op, root) in [5, 100, 3000].into_iter().flat_map(|n| (0..4).map(move |op| (n, op, (n + op) % size))) {
        let at = TeamRank(root as u32);
        let late = (root + 1 + op) % size;
        let all = |round: usize, of: usize| (0..size).flat_map(|r| block(n, round, of + r)).collect::<Vec<_>>();
        for round in 0..rounds {
            if me == late && round % 20 == 7 {
                falls_behind(job, 5);
            }
            let mine = block(n, round, me);
            let mut got = vec![0; n];
            match op {
                0 => {
                    let mut here = if me == root { mine } else { got };
                    job.broadcast(&mut here).root(at).run();
                    assert_eq!(here, block(n, round, root), "broadcast {round}, {n} words from {root}, {late} is late");
                }
                1 => {
                    let from = if me == root { all(round, 100) } else { vec![] };
                    job.scatter(&from).to(&mut got).root(at).run();
                    assert_eq!(
                        got,
                        block(n, round, 100 + me),
                        "scatter {round}, {n} words from {root}, {late} is late"
                    );
                }
                2 => {
                    let mut into = vec![];
                    job.gather(&mine).to(&mut into).root(at).run();
                    if me == root {
                        assert_eq!(into, all(round, 0), "gather {round}, {n} words to {root}, {late} is late");
                    }
                }
                _ => {
                    job.prefix_reduce(&mine, Sum).to(&mut got).run();
                    let sum = (0..=me).fold(0u64, |sum, r| sum.wrapping_add(mixed([round as u64, r as u64])));
                    assert_eq!(got, vec![sum; n], "prefix_reduce {round}, {n} words, {late} is late");
                }
            }
        }
    }
}

/// A rank has started to gather what another one has not sent, and goes on: it tells a third what that one may conclude, who then sends as much as it
/// may.
fn behind_its_own(job: &Job) {
    let (me, size) = (job.rank().index(), job.size());
    if size < 3 {
        return;
    }
    let of = |round: usize, i: usize, r: usize| mixed([round as u64, i as u64, r as u64]);
    for round in 0..12 {
        let apart = 1 + (round + round / size) % (size - 2);
        let [sends, gathers, late] = [0, apart, apart + 1].map(|i| (round + i) % size);
        for told in [1, 3, 5, 7] {
            // Letters, and what is put.
            let n = [1, 100][(round + told / 2) % 2];
            if me == late {
                falls_behind(job, 4);
            }
            let roots = |i: usize| if i < told { gathers } else { sends };
            let mine = vec![of(round, 99, me); n];
            let mut all = vec![0; n * size];
            let mut blocks: Vec<Vec<u64>> = (0..told + 20)
                .map(|i| vec![if me == roots(i) { of(round, i, me) } else { 0 }; n * n.min(size)])
                .collect();
            job.scope(|s| {
                let mut events = vec![job.gather(&mine).to(&mut all[..]).root(TeamRank(gathers as u32)).start(s)];
                for (i, block) in blocks.iter_mut().enumerate() {
                    events.push(job.broadcast(block).root(TeamRank(roots(i) as u32)).start(s));
                }
                events.into_iter().for_each(|event| event.wait());
            });
            let what = format!("{sends} sends, {gathers} gathers, {late} is late, told {told} times, {n} words");
            for (i, block) in blocks.iter().enumerate() {
                assert!(block.iter().all(|&word| word == of(round, i, roots(i))), "broadcast {i}: {what}");
            }
            if me == gathers {
                let whole: Vec<u64> = (0..size).flat_map(|r| vec![of(round, 99, r); n]).collect();
                assert_eq!(all, whole, "{what}");
            }
        }
    }
}
