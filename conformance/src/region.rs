//! Vector, indexed and strided copies, against loops over single elements.

use crate::am::reference;
use crate::array::{KINDS, layout};
use crate::{Case, Random, mixed, refusal, some_ranks, value};
use partage::am::{Counters, Request};
use partage::bytemuck::cast_slice;
use partage::prelude::*;
use std::cell::RefCell;
use std::fmt::Debug;
use std::mem::forget;
use std::ops::Range;

/// All of them.
pub const CASES: [Case; 8] = [
    ("shapes of every kind name what loops name, in arrays of every layout", contents),
    ("shapes from pointers reach every rank", pointers),
    ("columns of a matrix are written by all ranks at once", columns),
    ("regions that are started are complete after their scope, waited for or not", scopes),
    ("one message goes to each rank, as long as it fits", packed),
    ("a function that was called copies regions", called),
    ("a handler that finds an array does not copy regions of it", handlers),
    ("mistakes with regions name rank and call, and nothing is written", misuse),
];

/// A shape of any kind.
#[derive(Clone, Debug)]
pub enum Any {
    /// One range.
    Range(Range<usize>),
    /// Some.
    List(Vec<Range<usize>>),
    /// Starts and a length.
    Indexed(Vec<usize>, usize),
    /// Strided.
    Region(Region),
}

/// Does something with the shape that it is.
#[macro_export]
macro_rules! with_shape {
    ($any:expr, $shape:ident => $do:expr) => {
        match $any {
            $crate::region::Any::Range(range) => {
                let $shape = range.clone();
                $do
            }
            $crate::region::Any::List(ranges) => {
                let $shape = ranges.as_slice();
                $do
            }
            $crate::region::Any::Indexed(starts, len) => {
                let $shape = Indexed { starts, len: *len };
                $do
            }
            $crate::region::Any::Region(region) => {
                let $shape = *region;
                $do
            }
        }
    };
}

impl Any {
    /// Its elements.
    pub fn elements(&self) -> Vec<usize> {
        with_shape!(self, shape => shape.indices().collect())
    }

    /// The same as ranges: one kind for the other side, of which every kind is one more program.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        with_shape!(self, shape => shape.runs().map(|(start, len)| start..start + len).collect())
    }

    /// One that lies in `n` elements.
    pub fn within(n: usize, destination: bool, random: &mut Random) -> Any {
        Any::between(0, n, destination, random)
    }

    /// One that lies in the `n` elements from `first` on. A destination names none twice.
    pub fn between(first: usize, n: usize, destination: bool, random: &mut Random) -> Any {
        let fits = |(end, repeats): (usize, bool)| end <= first + n && !(destination && repeats);
        for _ in 0..8 {
            let shape = match random.below(4) {
                0 => break,
                1 => {
                    // Cut in pieces, some of which are left out; in any order.
                    let mut cuts: Vec<usize> = (0..2 + random.below(12)).map(|_| first + random.below(n + 1)).collect();
                    cuts.sort_unstable();
                    let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
                    shuffle(&mut ranges, random);
                    ranges.truncate(1 + random.below(ranges.len()));
                    Any::List(ranges)
                }
                2 => {
                    let len = 1 + random.below(4);
                    let mut starts: Vec<usize> = (0..n / len).map(|i| first + i * len).collect();
                    shuffle(&mut starts, random);
                    starts.truncate(random.below(starts.len() + 1));
                    if !destination && !starts.is_empty() {
                        starts.push(starts[0]);
                    }
                    Any::Indexed(starts, len)
                }
                _ => {
                    let mut region = Region::at(first + random.below(n / 2 + 1)).run(random.below(4));
                    for _ in 0..random.below(4) {
                        region = region.times(random.below(5), random.below(n / 2 + 2));
                    }
                    Any::Region(region)
                }
            };
            if fits(with_shape!(&shape, s => (s.extent().map_or(usize::MAX, |all| all.bounds.end), s.repeats()))) {
                return shape;
            }
        }
        let start = random.below(n + 1);
        Any::Range(first + start..first + start + random.below(n - start + 1))
    }

    /// One of so many elements, none twice, and how long the buffer is that it lies in.
    pub fn of(total: usize, random: &mut Random) -> (Any, usize) {
        let before = random.below(5);
        match random.below(4) {
            0 => (Any::Range(before..before + total), before + total + random.below(3)),
            1 => {
                let (mut ranges, mut end, mut left) = (vec![], before, total);
                while left > 0 {
                    let len = 1 + random.below(left);
                    ranges.push(end..end + len);
                    (end, left) = (end + len + random.below(3), left - len);
                }
                shuffle(&mut ranges, random);
                (Any::List(ranges), end)
            }
            2 => {
                let mut starts: Vec<usize> = (0..total).map(|i| before + 2 * i).collect();
                shuffle(&mut starts, random);
                (Any::Indexed(starts, 1), before + 2 * total)
            }
            _ => {
                let run = (1..=4).rev().find(|run| total.is_multiple_of(*run)).unwrap_or(1);
                let stride = run + random.below(3);
                let region = Region::at(before).run(run).times(total / run, stride);
                (Any::Region(region), before + stride * (total / run) + run)
            }
        }
    }
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    (1..items.len()).for_each(|i| items.swap(i, random.below(i + 1)));
}

#[track_caller]
fn same<T: Pod + Debug>(what: &dyn Debug, found: &[T], expected: impl IntoIterator<Item = T>) {
    let expected: Vec<T> = expected.into_iter().collect();
    let equal = found.len() == expected.len()
        && (size_of::<T>() == 0 || cast_slice::<T, u8>(found) == cast_slice::<T, u8>(&expected));
    assert!(equal, "{what:?}: {found:?} is not {expected:?}");
}

fn contents(job: &Job) {
    let mut random = Random::new(7 * job.size() as u64);
    for kind in 0..KINDS {
        of_type::<u64>(job, &mut random, kind);
        of_type::<u8>(job, &mut random, kind + 5);
        of_type::<[u16; 3]>(job, &mut random, kind + 3);
    }
}

/// An array and a second one, written in turns in every way and read by everybody.
fn of_type<T: Pod + Debug>(job: &Job, random: &mut Random, kind: usize) {
    let (layout, n, _) = layout(kind % KINDS, random, job.size());
    let (a, b) = (job.array::<T>(layout).unwrap(), job.array::<T>(Layout::cyclic(n)).unwrap());
    let mut model = [vec![T::zeroed(); n], vec![T::zeroed(); n]];
    let mut own = Random::new(random.draw() ^ u64::from(job.rank().0));
    for round in 0..6 {
        // The same on all ranks, of which one does it.
        let writes = job.rank().index() == random.below(job.size());
        let there = Any::within(n, true, random);
        let elements = there.elements();
        let (from, len) = Any::of(elements.len(), random);
        let seed = random.draw();
        let src: Vec<T> = (0..len).map(|i| value(mixed([seed, i as u64]))).collect();
        let dense: Vec<T> = from.elements().into_iter().map(|i| src[i]).collect();
        let way = random.below(5);
        if way < 4 {
            elements.iter().zip(&dense).for_each(|(&i, &x)| model[0][i] = x);
            if writes {
                with_shape!(&there, there => match way {
                    0 => a.put_region(there, &dense),
                    1 => job.scope(|s| s.put_region(&a, there, &dense).wait()),
                    2 => a.put_region_from(there, &src, &from.ranges()[..]),
                    _ => job.scope(|s| drop(s.put_region_from(&a, there, &src, &from.ranges()[..]))),
                });
            }
        } else {
            let (to, room) = Any::of(elements.len(), random);
            if room <= n {
                to.elements().iter().zip(&elements).for_each(|(&to, &i)| model[1][to] = model[0][i]);
                if writes {
                    with_shape!(&there, from => a.copy_region_to(from, &b, &to.ranges()[..]));
                }
            }
        }
        job.barrier();
        let what = (layout, round, job.rank());
        for (array, model) in [(&a, &model[0]), (&b, &model[1])] {
            let mut all = vec![T::zeroed(); n];
            array.get_region(0..n, &mut all);
            same(&what, &all, model.iter().copied());
            let some = Any::within(n, false, &mut own);
            let elements = some.elements();
            let mut got = vec![T::zeroed(); elements.len()];
            with_shape!(&some, some => array.get_region(some, &mut got));
            same(&(what, &some), &got, elements.iter().map(|&i| model[i]));
            let (to, len) = Any::of(elements.len(), &mut own);
            let rest = value::<T>(3);
            let (mut got, mut expected) = (vec![rest; len], vec![rest; len]);
            to.elements().into_iter().zip(&elements).for_each(|(to, &i)| expected[to] = model[i]);
            let ranges = &to.ranges()[..];
            with_shape!(&some, some => match own.below(2) {
                0 => array.get_region_to(some, &mut got, ranges),
                _ => job.scope(|s| _ = s.get_region_to(array, some, &mut got, ranges).wait()),
            });
            same(&(what, &some, &to), &got, expected);
        }
        job.barrier();
    }
}

fn pointers(job: &Job) {
    const N: usize = 300;
    let n = job.size();
    // A stripe for every rank that writes.
    let block = job.alloc_all::<u32>(N * n).unwrap();
    let targets = some_ranks(job);
    let mut random = Random::new(99 + u64::from(job.rank().0));
    for &to in &targets {
        let there = block.on(to).add(N * job.rank().index());
        let mut model = vec![0u32; N];
        for round in 0..12 {
            let shape = Any::within(N, true, &mut random);
            let elements = shape.elements();
            let (from, len) = Any::of(elements.len(), &mut random);
            let src: Vec<u32> = (0..len).map(|_| random.draw() as u32).collect();
            let dense: Vec<u32> = from.elements().into_iter().map(|i| src[i]).collect();
            elements.iter().zip(&dense).for_each(|(&i, &x)| model[i] = x);
            with_shape!(&shape, shape => match round % 3 {
                0 => there.put_region(job, shape, &dense),
                1 => with_shape!(&from, from => there.put_region_from(job, shape, &src, from)),
                _ => job.scope(|s| drop(s.put_region_ptr(there, shape, &src, &from.ranges()[..]))),
            });
            let some = Any::within(N, false, &mut random);
            let elements = some.elements();
            let mut got = vec![0; elements.len()];
            with_shape!(&some, some => match round % 2 {
                0 => there.get_region(job, some, &mut got),
                _ => job.scope(|s| {
                    let all = 0..got.len();
                    forget(s.get_region_ptr(there, some, &mut got, all));
                }),
            });
            same(&(to, round, &some), &got, elements.iter().map(|&i| model[i]));
        }
        // From there to my own stripe of my own memory: every third to the same places, interleaved with others.
        let mine = block.add(N * job.rank().index());
        if to != job.rank() {
            let every = |k: usize| Region::at(k).times(N / 3, 3);
            there.copy_region_to(job, every(0), mine, every(1));
            let mut got = vec![0; N / 3];
            mine.get_region(job, every(1), &mut got);
            same(&(to, "copied"), &got, model.iter().copied().step_by(3));
            mine.copy_region_to(job, every(1), mine, every(2));
            mine.get_region(job, every(2), &mut got);
            same(&(to, "copied here"), &got, model.iter().copied().step_by(3));
            mine.put_slice(job, &[0; N]);
        }
    }
    job.barrier();
    job.free_all(block);
}

fn columns(job: &Job) {
    const ROWS: usize = 24;
    let (me, size) = (job.rank().index(), job.size());
    let cols = 3 * size;
    for layout in [Layout::rows(ROWS, cols), Layout::tiles([ROWS, cols]), Layout::block_cyclic(ROWS * cols, 7)] {
        let mut a = job.array::<u64>(layout).unwrap();
        let column = |c: usize| -> Vec<u64> { (0..ROWS).map(|r| mixed([c as u64, r as u64])).collect() };
        let mine: Vec<Vec<u64>> = (0..3).map(|k| column(me + k * size)).collect();
        job.scope(|s| {
            for (k, values) in mine.iter().enumerate() {
                drop(s.put_region(&a, Region::at(me + k * size).times(ROWS, cols), values));
            }
        });
        a.own_each(|i, x| assert_eq!(*x, mixed([(i % cols) as u64, (i / cols) as u64]), "{layout:?}: element {i}"));
        // All columns, one after the other: the transpose.
        let mut all = vec![0; ROWS * cols];
        a.get_region(Region::at(0).times(ROWS, cols).times(cols, 1), &mut all);
        assert!(all.iter().copied().eq((0..cols).flat_map(column)), "{layout:?}");
        job.barrier();
    }
}

fn scopes(job: &Job) {
    const EACH: usize = 40;
    let (size, right) = (job.size(), job.neighbor(1));
    // A row of long and short runs for every rank that writes.
    let a = job.array::<u16>(Layout::per_rank(EACH * 100)).unwrap();
    let first = right.index() * EACH * 100;
    let shape = |k: usize| Region::at(first + k).run(1 + k % 2).times(50, 2 * EACH);
    let values: Vec<Vec<u16>> = (0..EACH / 2).map(|k| vec![k as u16 + 1; 50 * (1 + 2 * k % 2)]).collect();
    let mut back: Vec<Vec<u16>> = values.iter().map(|v| vec![0; v.len()]).collect();
    job.scope(|s| {
        let mut events: Vec<_> = vec![];
        for (k, values) in values.iter().enumerate() {
            let event = s.put_region(&a, shape(2 * k), values);
            match k % 3 {
                0 => events.push(event),
                1 => drop(event),
                _ => forget(event),
            }
        }
        while let Some(mut event) = events.pop() {
            event.test();
            event.wait();
        }
        s.wait_all();
        let mut events = vec![];
        for (k, back) in back.iter_mut().enumerate() {
            let event = s.get_region(&a, shape(2 * k), back);
            match k % 4 {
                0 => drop(event),
                1 => forget(event),
                2 => assert_eq!(event.wait()[0], k as u16 + 1),
                _ => events.push(event),
            }
        }
        // In another order; a fence in between completes them, and their events remain.
        job.fence();
        while let Some(event) = events.pop() {
            assert!(event.wait().iter().all(|&x| x > 0));
        }
    });
    assert_eq!(back, values, "all of it is there when the scope is over");
    // What has come is there also if the scope is left by a panic.
    let mut some = vec![0; 50];
    let words = refusal("a panic", || {
        job.scope(|s| {
            forget(s.get_region(&a, shape(0), &mut some));
            panic!("on purpose");
        });
    });
    assert_eq!((&words[..], some), ("on purpose", vec![1; 50]));
    job.barrier();
    assert!(size == job.size() && a.cells().get(0) == 1);
    job.barrier();
}

/// What was sent meanwhile: packed messages, puts and gets by the network.
fn sent(job: &Job, before: Counters) -> [u64; 3] {
    let now = job.counters();
    [now.packed - before.packed, now.far_puts - before.far_puts, now.far_gets - before.far_gets]
}

fn packed(job: &Job) {
    const EACH: usize = 40_000;
    let (size, right) = (job.size(), job.neighbor(1));
    let by_network = |r: Rank| !job.same_node(r) && !reference();
    let by_messages = |r: Rank| reference() || by_network(r);
    let far = job.ranks().filter(|&r| by_messages(r)).count() as u64;
    let a = job.array::<u64>(Layout::per_rank(EACH)).unwrap();
    // Fifty runs of three on every rank, in one call: one message for each rank that is reached by messages.
    let runs = Region::at(5).run(3).times(50, 20).times(size, EACH);
    let src: Vec<u64> = (0..150 * size as u64).collect();
    let mut got = vec![0; src.len()];
    // Everybody writes the same, one after the other.
    for r in job.ranks() {
        if r == job.rank() {
            let before = job.counters();
            a.put_region(runs, &src);
            assert_eq!(sent(job, before), [far, 0, 0], "of a put");
        }
        job.barrier();
    }
    let before = job.counters();
    a.get_region(runs, &mut got);
    assert_eq!((sent(job, before), &got), ([far, 0, 0], &src), "of a get");
    let starts: Vec<usize> = (0..size).rev().flat_map(|r| [7, 300, 41].map(|i| r * EACH + i)).collect();
    let before = job.counters();
    a.get_region(Indexed { starts: &starts, len: 2 }, &mut got[..6 * size]);
    assert_eq!(sent(job, before), [far, 0, 0], "of a get by indices");
    job.barrier();

    // 60,000 bytes in words, to one rank: one message. Twice as much: two. Below 4 KiB runs are packed, whatever they are.
    let one = u64::from(by_messages(right));
    let first = right.index() * EACH;
    let before = job.counters();
    a.put_region(Region::at(first).times(7500, 2), &vec![1; 7500]);
    assert_eq!(sent(job, before), [one, 0, 0]);
    let before = job.counters();
    a.put_region(Region::at(first).times(15_000, 2), &vec![2; 15_000]);
    assert_eq!(sent(job, before), [2 * one, 0, 0]);
    let before = job.counters();
    let mut got = vec![0; 15_000];
    a.get_region(Region::at(first).times(15_000, 2), &mut got);
    assert_eq!((sent(job, before), got), ([2 * one, 0, 0], vec![2; 15_000]));
    job.barrier();

    // Long runs go by the network where there is one.
    let long = Region::at(first + 1).run(600).times(3, 700);
    let (values, mut got): (Vec<u64>, _) = ((0..1800).map(|i| mixed([i])).collect(), vec![0; 1800]);
    let before = job.counters();
    a.put_region(long, &values);
    let network = 3 * u64::from(by_network(right));
    assert_eq!(sent(job, before), [u64::from(reference()), network, 0]);
    let before = job.counters();
    a.get_region(long, &mut got);
    assert_eq!((sent(job, before), &got), ([u64::from(reference()), 0, network], &values));
    // Longer than a message, in the middle of others.
    let mixture = [first..first + 3, first + 10..first + 20_010, first + 30_000..first + 30_001];
    let (values, mut got): (Vec<u64>, _) = ((0..20_004).map(|i| mixed([i, 5])).collect(), vec![0; 20_004]);
    a.put_region(&mixture, &values);
    a.get_region(&mixture, &mut got);
    assert!(got == values);
    job.barrier();
}

fn called(job: &Job) {
    let block = job.alloc_all::<u64>(100).unwrap();
    let sum = job.rpc(
        job.neighbor(1),
        |job, there: GlobalPtr<u64>| {
            there.put_region(job, Region::at(1).times(10, 10), &[3; 10]);
            let mut back = [0; 20];
            there.get_region(job, Region::at(0).run(2).times(10, 10), &mut back);
            back.iter().sum::<u64>()
        },
        block.on(job.neighbor(2)),
    );
    assert_eq!(sum.wait(), 30);
    job.barrier();
    assert_eq!((block.get(job), block.add(91).get(job)), (0, 3));
    job.barrier();
    job.free_all(block);
}

thread_local! {
    static FOUND: RefCell<Option<SharedArray<u64>>> = const { RefCell::new(None) };
}

static FINDER: Request<GlobalPtr<u64>> = Request::new(|_, target, refused, _| {
    FOUND.with_borrow(|found| {
        // The thread that runs it may be another rank's, which has its own, or the network's, which has none.
        let Some(array) = found.as_ref() else { return };
        let words = refusal("a region in a handler", || array.put_region(Region::at(0).times(2, 2), &[1, 2]));
        assert!(words.contains("put_region") && words.contains("in a handler"), "{words}");
        target.at(refused).fetch_add(1);
    });
});

fn handlers(job: &Job) {
    job.register_handlers(&[&FINDER]);
    FOUND.set(Some(job.array::<u64>(Layout::per_rank(3)).unwrap()));
    let refused = job.alloc_all::<u64>(1).unwrap();
    job.ranks().for_each(|r| job.am(r, &FINDER, refused.on(r), &[]));
    job.quiet();
    job.barrier();
    assert!(refused.get(job) <= job.size() as u64);
    FOUND.with_borrow(|a| assert!(a.as_ref().unwrap().my_indices().all(|i| a.as_ref().unwrap().get(i) == 0)));
    drop(FOUND.take());
    job.barrier();
    job.free_all(refused);
}

fn misuse(job: &Job) {
    let nothing = job.array::<()>(9).unwrap();
    nothing.put_region(Region::at(1).times(3, 2), &[(); 3]);
    nothing.get_region(Region::at(1).times(3, 2), &mut [(); 3]);
    const MAX: usize = usize::MAX;
    let me = job.rank();
    let a = job.array::<u32>(Layout::block_cyclic(100, 3)).unwrap();
    let p = job.alloc_all::<u32>(100).unwrap().on(job.neighbor(1));
    let refused = |expect: &[&str], f: &dyn Fn()| {
        let text = refusal(expect[0], f);
        assert!(text.starts_with(&format!("{me}: ")) && !text.contains('\n'), "{text:?}");
        expect.iter().for_each(|part| assert!(text.contains(part), "`{part}` is not in {text:?}"));
    };
    let src = [7; 20];
    // Outside.
    let outside = &["put_region: the region's elements 5..101 do not lie in an array of 100"];
    refused(outside, &|| a.put_region(Region::at(5).times(6, 19), &src[..6]));
    refused(&["get_region: the region's elements 99..102"], &|| a.get_region(99..102, &mut [0; 3]));
    refused(&["put_region: ", "9..3 is no range"], &|| {
        #[allow(clippy::reversed_empty_ranges)]
        a.put_region(&[0..2, 9..3], &src[..2]);
    });
    let list = [0..2, 90..110];
    refused(&["get_region_to: the region's elements 0..110"], &|| a.get_region_to(&list, &mut [0; 22], 0..22));
    refused(&["lie outside its segment"], &|| p.put_region(job, Region::at(3).times(2, 1 << 40), &src[..2]));
    refused(&["the pointer is null"], &|| GlobalPtr::<u32>::NULL.put_region(job, 0..2, &src[..2]));
    let nobody = p.on(Rank(job.size() as u32));
    refused(&["get_region: there is no rank"], &|| nobody.get_region(job, 0..2, &mut [0; 2]));
    let odd = p.cast::<u8>().add(1).cast::<u32>();
    refused(&["put_region", "is not aligned"], &|| odd.put_region(job, Region::at(0).times(2, 2), &src[..2]));
    // Numbers beyond all numbers.
    for far in [Region::at(MAX), Region::at(0).run(MAX).times(3, 1), Region::at(1).times(2, MAX).times(MAX, 2)] {
        refused(&["put_region: the region does not lie", "beyond all numbers"], &|| a.put_region(far, &src));
        refused(&["put_region: the region does not lie", "beyond all numbers"], &|| p.put_region(job, far, &src));
    }
    let starts = [0, MAX];
    refused(&["beyond all numbers"], &|| a.get_region(Indexed { starts: &starts, len: 2 }, &mut [0; 4]));
    // Sides that differ.
    refused(&["put_region: the source has 20 elements, the destination 4"], &|| a.put_region(0..4, &src));
    let differ = &["get_region: the source has 6 elements, the destination 5; both have as many"];
    refused(differ, &|| a.get_region(Region::at(0).run(2).times(3, 9), &mut [0; 5]));
    refused(&["put_region_from: the source has 3"], &|| a.put_region_from(0..4, &src, Region::at(0).times(3, 2)));
    refused(&["copy_region_to: the source has 4 elements"], &|| a.copy_region_to(0..4, &a, 5..10));
    refused(&["put_region_from: elements 3..22 do not lie in a buffer of 20"], &|| {
        a.put_region_from(0..4, &src, Region::at(3).times(4, 6));
    });
    refused(&["get_region_to: elements 0..12 do not lie in a buffer of 10"], &|| {
        a.get_region_to(0..12, &mut [0; 10], 0..12);
    });
    refused(&["what is named of a buffer of 20 does not lie in it"], &|| {
        a.put_region_from(0..4, &src, Region::at(MAX).run(4));
    });
    // Destinations that name an element twice; sources may.
    let twice = &["put_region: the destination names an element twice; only a source may"];
    refused(twice, &|| a.put_region(Region::at(0).run(3).times(2, 2), &src[..6]));
    refused(twice, &|| a.put_region(&[8..12, 0..2, 11..13], &src[..8]));
    refused(twice, &|| p.put_region(job, Indexed { starts: &[4, 9, 4], len: 1 }, &src[..3]));
    refused(twice, &|| a.put_region(Region::at(0).times(5, 0), &src[..5]));
    refused(&["get_region_to: the destination names"], &|| {
        a.get_region_to(0..4, &mut [0; 9], Indexed { starts: &[0, 1], len: 2 });
    });
    refused(&["copy_region_to: the destination names"], &|| a.copy_region_to(0..4, &a, &[50..52, 51..53]));
    refused(&["copy_region_to: source and destination have elements in common"], &|| {
        a.copy_region_to(Region::at(0).times(5, 2), &a, Region::at(8).times(5, 1));
    });
    refused(&["copy_region_to: source and destination"], &|| p.copy_region_to(job, 5..9, p.add(3), 0..4));
    refused(&["put_region: the source"], &|| job.scope(|s| drop(s.put_region(&a, 0..4, &src))));
    refused(&["get_region_ptr: "], &|| {
        let mut dst = [0; 3];
        job.scope(|s| drop(s.get_region_ptr(p, 0..4, &mut dst, 0..3)));
    });
    refused(&["put_region_ptr: "], &|| job.scope(|s| drop(s.put_region_ptr(p, 0..4, &src, 0..3))));
    // Nothing is nothing, wherever it is.
    a.put_region(Region::at(MAX).run(0).times(MAX, MAX), &[]);
    a.get_region(Indexed { starts: &[], len: MAX }, &mut []);
    a.put_region_from(&[MAX..MAX, 3..3], &src, 9..9);
    a.copy_region_to(0..0, &a, 5..5);
    p.put_region(job, Region::at(0).times(0, 1), &[]);
    // A source may repeat.
    let mut same = [0; 6];
    a.get_region(Region::at(3).run(2).times(3, 0), &mut same);
    assert_eq!(same, [0; 6], "nothing was written");
    job.barrier();
    let mut all = [0; 100];
    a.get_region(0..100, &mut all);
    assert_eq!(all, [0; 100], "nothing was written");
    p.get_region(job, 0..100, &mut all);
    assert_eq!(all, [0; 100], "nothing was written");
    job.barrier();
    job.free_all(p.on(me));
}
