//! Shapes against lists of their elements, written out one by one.

use std::collections::HashSet;
use std::ops::Range;

use partage_plan::layout::Layout;
use partage_plan::region::{Cursor, Extent, Indexed, LEVELS, Region, Shape, ShapeError, meet};

/// xorshift; the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// A region and its elements, by loops in loops.
fn region(start: usize, run: usize, levels: &[(usize, usize)]) -> (Region, Vec<usize>) {
    let mut all: Vec<usize> = (start..start + run).collect();
    let mut region = Region::at(start).run(run);
    for &(count, stride) in levels {
        all = (0..count).flat_map(|i| all.iter().map(move |x| x + i * stride)).collect();
        region = region.times(count, stride);
    }
    (region, all)
}

/// Everything that a shape answers is what the list says.
fn check(shape: &impl Shape, all: &[usize]) {
    let bounds = all.iter().min().zip(all.iter().max()).map_or(0..0, |(&first, &last)| first..last + 1);
    assert_eq!(shape.extent(), Ok(Extent { total: all.len(), bounds }), "{shape:?}");
    assert!(shape.indices().eq(all.iter().copied()), "{shape:?}: {:?}", shape.indices().collect::<Vec<_>>());
    let mut runs: Vec<(usize, usize)> = vec![];
    for &i in all {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == i => *len += 1,
            _ => runs.push((i, 1)),
        }
    }
    assert!(shape.rows().all(|row| row.len > 0 && row.count > 0), "{shape:?}");
    // Runs of different rows of a region may touch; those of lists do not.
    let mut merged: Vec<(usize, usize)> = vec![];
    for (start, len) in shape.runs() {
        match merged.last_mut() {
            Some(last) if last.0 + last.1 == start => last.1 += len,
            _ => merged.push((start, len)),
        }
    }
    assert_eq!(merged, runs, "{shape:?}");
    let distinct: HashSet<usize> = all.iter().copied().collect();
    assert_eq!(shape.repeats(), distinct.len() < all.len(), "{shape:?}");
}

/// Two shapes of as many elements, walked together, give the pairs of their elements, in order.
fn check_together(a: &impl Shape, b: &impl Shape) {
    let (mut x, mut y) = (Cursor::new(a), Cursor::new(b));
    let mut pairs = vec![];
    while let Some(pair) = x.pair(&mut y) {
        assert!(pair.len > 0 && pair.count > 0);
        for run in 0..pair.count {
            let [a, b] = [0, 1].map(|side| pair.starts[side] + run * pair.strides[side]);
            pairs.extend((0..pair.len).map(|i| (a + i, b + i)));
        }
    }
    assert!(pairs.into_iter().eq(a.indices().zip(b.indices())), "{a:?} and {b:?}");
    let shared: HashSet<usize> = a.indices().collect();
    for (a_from, b_from) in [(0, 0), (5, 0), (1, 3)] {
        let met = b.indices().any(|i| (i + b_from).checked_sub(a_from).is_some_and(|i| shared.contains(&i)));
        assert_eq!(meet(a, a_from, b, b_from), met, "{a:?} from {a_from} and {b:?} from {b_from}");
    }
}

#[test]
fn regions_of_two_levels_name_what_loops_name() {
    let numbers = || (0..5usize).flat_map(|count| (0..7usize).map(move |stride| (count, stride)));
    for start in [0, 3] {
        for run in 0..4 {
            check(&region(start, run, &[]).0, &region(start, run, &[]).1);
            for inner in numbers() {
                for outer in numbers() {
                    let (region, all) = region(start, run, &[inner, outer]);
                    check(&region, &all);
                }
            }
        }
    }
}

#[test]
fn random_shapes_of_all_kinds_name_what_lists_name_and_go_together() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..1500 {
        let levels: Vec<_> = (0..random.below(4)).map(|_| (random.below(4), random.below(30))).collect();
        let (strided, elements) = region(random.below(50), random.below(5), &levels);
        check(&strided, &elements);
        let n = elements.len();
        check_together(&strided, &(7..7 + n));
        check_together(&(0..n), &strided);

        // The same number of elements as a list of ranges, some of them empty, some touching.
        let (mut ranges, mut left): (Vec<Range<usize>>, usize) = (vec![], n);
        while left > 0 {
            let len = random.below(left + 1).min(6);
            let start = match ranges.last() {
                Some(last) if random.below(3) == 0 => last.end,
                _ => random.below(60),
            };
            ranges.push(start..start + len);
            left -= len;
        }
        let list: Vec<usize> = ranges.iter().cloned().flatten().collect();
        check(&ranges.as_slice(), &list);
        check_together(&strided, &ranges.as_slice());

        let len = 1 + random.below(4);
        let starts: Vec<usize> = (0..n / len).map(|_| random.below(100)).collect();
        let indexed = Indexed { starts: &starts, len };
        check(&indexed, &starts.iter().flat_map(|&s| s..s + len).collect::<Vec<_>>());
        check_together(&ranges.as_slice(), &indexed);
        let (other, _) = region(random.below(9), 1 + random.below(5), &[(1 + random.below(9), random.below(12))]);
        check_together(&other, &strided);
    }
}

#[test]
fn levels_nest_in_any_order_of_their_strides() {
    // All columns of a matrix, one after the other: the inner stride is the larger one.
    let (columns, elements) = region(0, 1, &[(30, 40), (40, 1)]);
    check(&columns, &elements);
    assert!(!columns.repeats());
    // Neither nested nor ascending, and yet no element twice; and then one.
    let (comb, elements) = region(0, 1, &[(3, 5), (4, 3)]);
    check(&comb, &elements);
    assert!(!region(0, 1, &[(2, 3), (2, 2)]).0.repeats() && region(0, 1, &[(2, 2), (2, 2)]).0.repeats());
}

#[test]
fn eight_levels_are_possible_and_nine_are_refused() {
    let levels = [(2, 2), (2, 5), (2, 11), (1, 9), (2, 23), (2, 60), (2, 130), (2, 300)];
    let (region, elements) = region(1, 2, &levels);
    check(&region, &elements);
    assert_eq!(levels.len(), LEVELS);
    let nine = std::panic::catch_unwind(|| region.times(1, 1)).unwrap_err();
    assert!(nine.downcast_ref::<&str>().is_some_and(|words| words.contains("at most 8 levels")));
    assert_eq!(format!("{:?}", Region::at(3).run(2).times(4, 5)), "at(3).run(2).times(4, 5)");
}

#[test]
fn numbers_beyond_all_numbers_are_refused_and_nothing_is_not() {
    const MAX: usize = usize::MAX;
    let far = |region: Region| assert_eq!(region.extent(), Err(ShapeError::TooLarge), "{region:?}");
    far(Region::at(MAX));
    far(Region::at(1).run(MAX));
    far(Region::at(0).times(3, MAX));
    far(Region::at(0).times(MAX, 2));
    far(Region::at(0).run(2).times(MAX / 2 + 1, 0));
    far(Region::at(0).times(1 << 33, 0).times(1 << 33, 0));
    far(Region::at(0).times(2, MAX - 5).times(2, 5));
    for nothing in [Region::at(MAX).run(0), Region::at(MAX).times(MAX, MAX).times(0, MAX), Region::at(5).times(0, 1)] {
        assert_eq!((nothing.extent(), nothing.rows().next()), (Ok(Extent::default()), None));
        assert!(!nothing.repeats() && !meet(&nothing, 0, &(0..9), 0));
    }
    assert_eq!(Region::at(MAX - 1).extent().unwrap().bounds, MAX - 1..MAX);
    let once = Region::at(7).times(1, MAX).times(1, MAX);
    assert_eq!(once.indices().collect::<Vec<_>>(), [7]);

    let huge = [0..MAX, 0..2];
    assert_eq!((&huge).extent(), Err(ShapeError::TooLarge));
    assert_eq!(Indexed { starts: &[MAX], len: 1 }.extent(), Err(ShapeError::TooLarge));
    assert_eq!(Indexed { starts: &[0, 1], len: MAX - 1 }.extent(), Err(ShapeError::TooLarge));
    assert_eq!(Indexed { starts: &[MAX], len: 0 }.extent(), Ok(Extent::default()));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = [0..4, 9..3];
    assert_eq!((&backwards).extent(), Err(ShapeError::Backwards(backwards[1].clone())));
    assert_eq!(backwards[1].extent(), Err(ShapeError::Backwards(backwards[1].clone())));
    assert_eq!(backwards[1].extent().unwrap_err().to_string(), "9..3 is no range");
    assert_eq!((5..5).extent(), Ok(Extent::default()));
}

#[test]
fn what_repeats_more_often_than_there_are_places_is_not_sorted() {
    // A sort of these would not end.
    assert!(Region::at(0).times(1 << 30, 0).times(1 << 20, 1).repeats());
    assert!(Region::at(0).run(3).times(1 << 40, 2).repeats());
    assert!(Region::at(0).run(2).times(1 << 20, 3).times(1 << 20, 4).repeats());
    assert!(!Region::at(0).run(2).times(1 << 20, 3).times(1 << 20, 3 << 20).repeats());
}

#[test]
fn neighbours_stay_together_as_far_as_pieces_say() {
    for layout in [Layout::block_cyclic(40, 3), Layout::tiles([6, 7]), Layout::blocked(40), Layout::on(1, 40)] {
        let spread = layout.over(4).unwrap();
        for i in 0..spread.len() {
            let (member, k, together) = spread.stretch(i);
            let end = spread.len().min(i + together);
            assert_eq!((member, k), spread.locate(i));
            assert!((i..end).all(|j| spread.locate(j) == (member, k + j - i)), "{layout:?} {i}");
        }
    }
}
