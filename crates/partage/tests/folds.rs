//! Prefixes of a sequence, against a loop over it: destinations that are dealt alike wherever they begin, and those that are not.

use partage::prelude::*;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an element was before.
const OLD: [u64; 2] = [77, 78];

/// First the one, then the other: the order matters.
fn then(x: [u64; 2], y: [u64; 2]) -> [u64; 2] {
    [x[0].wrapping_mul(y[1]).wrapping_add(y[0]), x[1].wrapping_mul(y[1])]
}

fn element(i: usize) -> [u64; 2] {
    [7 * i as u64 + 1, 2 * i as u64 + 3]
}

/// What these elements have become where the prefixes of others went.
fn expected(mut all: Vec<[u64; 2]>, from: Range<usize>, to: Range<usize>, exclusive: bool) -> Vec<[u64; 2]> {
    let mut sum: Option<[u64; 2]> = None;
    for (i, k) in from.zip(to) {
        let with = sum.map_or(element(i), |sum| then(sum, element(i)));
        match sum {
            Some(before) if exclusive => all[k] = before,
            None if exclusive => {}
            _ => all[k] = with,
        }
        sum = Some(with);
    }
    all
}

/// An array whose elements are known.
fn known(job: &Job, layout: Layout) -> SharedArray<[u64; 2]> {
    let a = job.array::<[u64; 2]>(layout).unwrap();
    a.my_indices().for_each(|i| a.put(i, element(i)));
    a
}

/// Prefixes of these elements of one array go to those of the other, and nowhere else. (A rank touches its own elements only, in any sync mode.)
fn go(a: &SharedArray<[u64; 2]>, from: &Range<usize>, b: &SharedArray<[u64; 2]>, to: &Range<usize>, job: &Job) {
    let modes = [(In::All, Out::All), (In::My, Out::My), (In::No, Out::No)];
    let sync = modes[(from.start + to.start + from.len()) % 3];
    for exclusive in [false, true] {
        b.my_indices().for_each(|i| b.put(i, OLD));
        let begun = job.prefix_fold(a.slice(from.clone()), Ordered(then)).to(b.slice(to.clone()));
        let begun = if exclusive { begun.exclusive() } else { begun };
        begun.sync(sync.0, sync.1).run();
        let wanted = expected(vec![OLD; b.len()], from.clone(), to.clone(), exclusive);
        let what = format!("{from:?} of {:?} to {to:?} of {:?}, {sync:?}", a.layout(), b.layout());
        b.my_indices().for_each(|i| assert_eq!(b.get(i), wanted[i], "{i}: {what}, exclusive: {exclusive}"));
        a.my_indices().for_each(|i| assert_eq!(a.get(i), element(i), "{i}: {what}"));
    }
}

#[test]
fn destinations_begin_wherever_they_are_dealt_alike() {
    for ranks in 1..=5 {
        partage::test(ranks, |job| {
            for block in [1, 2, 3, 5] {
                let period = block * ranks;
                let layout = Layout::block_cyclic(4 * period + 3, block);
                let (a, b) = (known(job, layout), known(job, layout));
                // The same blocks, which begin at another rank.
                let turned = known(job, layout.starting_at(1 % ranks));
                for start in [0, 1, block, period - 1] {
                    for len in [0, 1, block + 1, 2 * period] {
                        let (from, later) = (start..start + len, start + period..start + period + len);
                        go(&a, &from, &b, &from, job);
                        go(&a, &from, &b, &later, job);
                        go(&a, &later, &b, &from, job);
                        let around = start + period - block;
                        go(&a, &from, &turned, &(around..around + len), job);
                    }
                }
            }
        });
    }
}

#[test]
fn prefixes_go_to_other_elements_of_the_same_array() {
    for ranks in 1..=4 {
        partage::test(ranks, |job| {
            for (block, start) in [(1, 0), (2, 1), (4, 7)] {
                let (period, len) = (block * ranks, 2 * block * ranks - 1);
                let a = known(job, Layout::block_cyclic(6 * period + start, block));
                let (from, to) = (start..start + len, start + 3 * period..start + 3 * period + len);
                job.prefix_fold(a.slice(from.clone()), Ordered(then)).to(a.slice(to.clone())).run();
                let wanted = expected((0..a.len()).map(element).collect(), from, to, false);
                assert_eq!(a.fetch(..).wait(), wanted, "blocks of {block}");
                job.barrier();
            }
        });
    }
}

#[test]
fn where_all_is_on_one_rank_any_place_will_do() {
    partage::test(3, |job| {
        let (a, b) = (known(job, Layout::on(1, 9)), known(job, Layout::on(1, 20)));
        go(&a, &(0..9), &b, &(0..9), job);
        go(&a, &(2..9), &b, &(12..19), job);
        go(&a, &(5..5), &b, &(0..0), job);
        // In other words, but dealt alike.
        let [blocked, shorter] = [(); 2].map(|_| known(job, Layout::blocked(11)));
        let [cyclic, longer] = [(); 2].map(|_| known(job, Layout::block_cyclic(40, 4)));
        go(&blocked, &(1..11), &longer, &(13..23), job);
        go(&cyclic, &(24..35), &shorter, &(0..11), job);
    });
}

/// Also one that was longer.
#[test]
fn a_vec_is_made_as_long_as_the_source() {
    for ranks in 1..=4 {
        partage::test(ranks, |job| {
            let len = |r: usize| 2 * r % 3;
            let me = job.rank().index();
            let first = (0..me).map(len).sum::<usize>();
            let (end, mine) = (first + len(me), (first..first + len(me)).map(element).collect::<Vec<_>>());
            for before in [0, 1, 7] {
                for exclusive in [false, true] {
                    let mut to = vec![OLD; before];
                    let begun = job.prefix_fold(&mine, Ordered(then)).to(&mut to);
                    let begun = if exclusive { begun.exclusive() } else { begun };
                    begun.run();
                    let mut old = vec![[0; 2]; end];
                    old[first..end.min(first + before)].fill(OLD);
                    assert_eq!(to, expected(old, 0..end, 0..end, exclusive)[first..], "{before}, {exclusive}");
                }
            }
            let (mut source, mut to) = (mine.clone(), vec![]);
            job.prefix_fold(&mut source, Ordered(then)).to(&mut to).run();
            assert_eq!((source, to.len()), (mine, len(me)));
        });
    }
}

/// What a rank says that refuses it.
fn refusal(f: impl FnOnce()) -> String {
    let why = catch_unwind(AssertUnwindSafe(f)).expect_err("this must be refused");
    *why.downcast::<String>().expect("words")
}

#[test]
fn destinations_that_are_dealt_otherwise_are_refused() {
    partage::test(3, |job| {
        let layout = Layout::block_cyclic(40, 4);
        let (a, b, pairs) = (known(job, layout), known(job, layout), known(job, Layout::block_cyclic(40, 2)));
        let says = |said: String, what: &str| {
            let begin = format!("{}: prefix_fold: ", job.rank());
            assert!(said.contains(&begin) && said.contains(what), "`{what}` is not in `{said}`");
        };
        let alike = "source and destination differ: give equally many elements, dealt alike";
        for (from, to) in [
            (0..6, 4..10),    // the next rank's
            (0..6, 8..14),    // the last one's
            (0..2, 1..3),     // the same rank's, but not at the same place of a block
            (3..15, 14..26),  // nor these
            (0..6, 12..17),   // one is missing
            (0..12, 12..25),  // one is too many
            (0..0, 3..4),     // one, where there is none
            (0..40, 1..40),   // to the end
            (10..20, 22..31), // and not to it
        ] {
            let slices = (a.slice(from.clone()), b.slice(to.clone()));
            says(refusal(|| job.prefix_fold(slices.0, Ordered(then)).to(slices.1).run()), alike);
            if from.end <= to.start {
                let to = a.slice(to.clone());
                says(refusal(|| job.prefix_fold(slices.0, Ordered(then)).to(to).run()), alike);
            }
        }
        let whole = a.slice(..);
        says(refusal(|| job.prefix_fold(whole, Ordered(then)).to(pairs.slice(..)).run()), alike);
        says(
            refusal(|| job.prefix_fold(a.slice(0..24), Ordered(then)).to(a.slice(12..36)).run()),
            "elements 0..24 and 12..36 of one array overlap",
        );
        // An array and memory of one's own.
        let mut own = vec![OLD; 3];
        says(refusal(|| job.prefix_fold(a.slice(0..4), Ordered(then)).to(&mut own).run()), alike);
        says(refusal(|| job.prefix_fold(&own, Ordered(then)).to(b.slice(0..3)).run()), alike);
        says(refusal(|| job.prefix_fold(&own, Ordered(then)).to(&mut [OLD; 4]).run()), alike);
        assert_eq!(own, [OLD; 3]);
        // Nothing was touched, and ranks are still together.
        b.my_indices().for_each(|i| assert_eq!(b.get(i), element(i)));
        go(&a, &(1..8), &b, &(25..32), job);
    });
}
