//! Arrays and phases, against a sequential oracle: what every rank finds is what the program says that was put there.

use crate::{Case, Random, mixed, refusal, value};
use partage::am::Request;
use partage::bytemuck::{bytes_of, cast_slice};
use partage::layout::Run;
use partage::prelude::*;
use std::cell::RefCell;
use std::fmt::Debug;
use std::mem::{forget, swap};
use std::ops::Range;

/// All of them.
pub const CASES: [Case; 19] = [
    ("arrays of every layout and type hold what was put", contents),
    ("long ranges of arrays cross ranks", long_ranges),
    ("elements are words for atomics", words),
    ("slices and blocks are parts of arrays", slices),
    ("a long message into an array comes after its elements", long_messages),
    ("a handler that finds an array does not wait with it", handlers),
    ("blocks over all ranks are taken and given back by anybody", blocks),
    ("what is stored by pointers arrives, waited for or not", stores),
    ("in a phase every rank has its part, or all have all", phases),
    ("a phase begins after what was before it, and what comes after it waits", edges_of_phases),
    ("a phase has any number of arrays", many_arrays),
    ("phases nest, and meet others in between", nested_phases),
    ("what was forgotten is complete before a phase begins", forgotten),
    ("much that was forgotten is complete before a phase begins", much_forgotten),
    ("what was forgotten never lands in a new array", forgotten_and_dropped),
    ("arrays are dropped in any order and their memory is used again", dropped),
    ("handles of arrays change places", places),
    ("an array that has no room is an error on all ranks", no_room),
    ("mistakes with arrays name rank, call and index", misuse),
];

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Cell {
    next: GlobalPtr<Cell>,
    weight: u32,
    kind: [u8; 3],
    flag: i8,
}

/// Who has an element, where that is easy to say in another way than the layout does.
pub(crate) type Owner = Option<Box<dyn Fn(usize) -> usize>>;

/// A layout by its kind, of a random length, and its owners.
pub(crate) fn layout(kind: usize, random: &mut Random, size: usize) -> (Layout, usize, Owner) {
    let n = [0, 1, size - 1, size, size + 1, 5, 1 + random.below(40), 1 + random.below(40)][random.below(8)];
    let (b, first) = (1 + random.below(6), random.below(size));
    let [rows, cols, planes] = [0; 3].map(|_| random.below(6));
    let dealt = move |b: usize, first: usize| Some(Box::new(move |i| (first + i / b) % size) as Box<_>);
    match kind {
        0 => (n.into(), n, dealt(n.div_ceil(size).max(1), 0)),
        1 => (Layout::rows(rows, cols), rows * cols, dealt((rows.div_ceil(size) * cols).max(1), 0)),
        2 => (Layout::cyclic(n), n, dealt(1, 0)),
        3 => (Layout::block_cyclic(n, b), n, dealt(b, 0)),
        4 => (Layout::per_rank(b - 1), (b - 1) * size, dealt((b - 1).max(1), 0)),
        5 => (Layout::on(first, n), n, dealt(usize::MAX, first)),
        6 => (Layout::tiles([rows, cols]), rows * cols, None),
        7 => (Layout::bricks([rows, cols, planes]), rows * cols * planes, None),
        8 => (Layout::block_cyclic(n, b).starting_at(first), n, dealt(b, first)),
        9 => (Layout::blocked(n).starting_at(first), n, dealt(n.div_ceil(size).max(1), first)),
        10 => (Layout::tiles([rows, cols]).grid([1, size]), rows * cols, dealt_columns(cols, size)),
        _ => (Layout::bricks([rows, cols, planes]).grid([1, size, 1]).starting_at(first), rows * cols * planes, None),
    }
}
pub(crate) const KINDS: usize = 12;

/// A matrix of which every rank has some columns.
fn dealt_columns(cols: usize, size: usize) -> Owner {
    Some(Box::new(move |i| i % cols / cols.div_ceil(size)))
}

#[track_caller]
fn same<T: Pod + Debug>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if size_of::<T>() > 0 && cast_slice::<T, u8>(found) != cast_slice::<T, u8>(expected) {
        let i = (0..found.len()).find(|&i| bytes_of(&found[i]) != bytes_of(&expected[i])).unwrap();
        panic!("{what}: element {i} of {} is {:?}, not {:?}", found.len(), found[i], expected[i]);
    }
}

fn contents(job: &Job) {
    let mut random = Random::new(job.size() as u64);
    for turn in 0..if crate::is_short() { 2 } else { 4 } {
        of_type::<u8>(job, &mut random, 5 * turn);
        of_type::<u16>(job, &mut random, 5 * turn + 1);
        of_type::<f32>(job, &mut random, 5 * turn + 2);
        of_type::<u64>(job, &mut random, 5 * turn + 3);
        of_type::<[u64; 3]>(job, &mut random, 5 * turn + 4);
        of_type::<Cell>(job, &mut random, 5 * turn + 5);
        of_type::<[u16; 3]>(job, &mut random, 5 * turn + 6);
        of_type::<[u32; 0]>(job, &mut random, 5 * turn + 7);
    }
}

/// One array, written in every way and read in every way.
fn of_type<T: Pod + Debug>(job: &Job, random: &mut Random, kind: usize) {
    let (me, size, seed) = (job.rank().index(), job.size(), random.draw());
    let (layout, n, owner) = layout(kind % KINDS, random, size);
    let what = format!("{} of {layout:?} over {size}, rank {me}", std::any::type_name::<T>());
    let mut a = job.array::<T>(layout).unwrap();
    assert_eq!((a.len(), a.is_empty(), a.layout()), (n, n == 0, layout), "{what}");
    let mut model = vec![T::zeroed(); n];
    read(job, &a, &what, &model, seed);

    // Who has what.
    let owners: Vec<usize> = (0..n).map(|i| a.affinity(i).index()).collect();
    if let Some(owner) = owner {
        assert_eq!(owners, (0..n).map(owner).collect::<Vec<_>>(), "{what}");
    }
    let mine: Vec<usize> = (0..n).filter(|&i| owners[i] == me).collect();
    assert_eq!(a.my_indices().collect::<Vec<_>>(), mine, "{what}");
    assert_eq!((a.my_indices().len(), a.local_len()), (mine.len(), mine.len()), "{what}");
    assert_eq!((0..mine.len()).map(|k| a.global(k)).collect::<Vec<_>>(), mine, "{what}");
    assert!(job.ranks().all(|r| a.part_len(r) == owners.iter().filter(|&&o| o == r.index()).count()), "{what}");
    assert_eq!(a.part_len(Rank(size as u32)), 0);
    for Run { global, local } in a.my_runs() {
        assert_eq!(global.collect::<Vec<_>>(), mine[local], "{what}");
    }
    assert_eq!(a.my_runs().map(|run| run.local.len()).sum::<usize>(), mine.len());

    // Every rank writes a stretch, each in its way.
    let source = job.array::<T>(Layout::block_cyclic(n, 3)).unwrap();
    let put = |i: usize| value::<T>(mixed([seed, i as u64, 1]));
    let values: Vec<T> = source.my_indices().map(put).collect();
    source.cells().write(0, &values[..values.len() / 2]);
    (values.len() / 2..values.len()).for_each(|k| source.cells().set(k, values[k]));
    job.barrier();
    for step in 0..2 {
        let shift = random.below(size * 9);
        let stretch = |r: usize| n * r / size..n * (r + 1) / size;
        let new = |i: usize| value::<T>(mixed([seed, i as u64, 2 + step]));
        write(job, &a, &source, (me + shift) % 9, stretch(me), &stretch(me).map(new).collect::<Vec<_>>());
        job.quiet();
        job.barrier();
        for r in 0..size {
            for i in stretch(r) {
                model[i] = match (r + shift) % 9 {
                    7 => new(stretch(r).start),
                    8 => put(i),
                    _ => new(i),
                };
            }
        }
        read(job, &a, &what, &model, seed + step);
        job.barrier();
    }

    // Now as slices: the same, and then changed.
    let own = |i: usize| value::<T>(mixed([seed, i as u64, 8]));
    let total: usize = a.own(|part| {
        same(&what, part, &mine.iter().map(|&i| model[i]).collect::<Vec<_>>());
        part.iter_mut().zip(&mine).for_each(|(x, &i)| *x = own(i));
        part.len()
    });
    assert_eq!(total, mine.len());
    model = (0..n).map(own).collect();
    a.freeze(|view| {
        assert_eq!((view.len(), view.is_empty()), (n, n == 0));
        same(&what, view.mine(), &mine.iter().map(|&i| model[i]).collect::<Vec<_>>());
        let mut all = vec![T::zeroed(); n];
        view.get_slice(0, &mut all);
        same(&what, &all, &model);
        view.get_slice(n, &mut []);
        for i in picked(n, seed) {
            same(&what, &[view.get(i)], &[model[i]]);
        }
        for r in job.ranks() {
            let part = view.part(r);
            assert_eq!(part.is_some(), job.same_node(r), "{what}: {r}");
            let theirs = (0..n).filter(|&i| owners[i] == r.index()).map(|i| model[i]);
            part.into_iter().for_each(|part| same(&what, part, &theirs.clone().collect::<Vec<_>>()));
        }
        assert!(view.part(Rank(size as u32)).is_none());
    });
    read(job, &a, &what, &model, seed + 9);
    job.barrier();
    drop(source);
}

/// Writes a stretch; in two ways not what is given.
fn write<T: Pod + Debug>(job: &Job, a: &SharedArray<T>, b: &SharedArray<T>, way: usize, at: Range<usize>, new: &[T]) {
    match way {
        0 => at.zip(new).for_each(|(i, &x)| a.put(i, x)),
        1 => a.put_slice(at.start, new),
        2 => same("handed back", &a.store(at.start, new.to_vec()).wait(), new),
        3 => drop(a.store(at.start, new.to_vec())),
        4 => forget(a.store(at.start, new.to_vec())),
        5 => job.scope(|s| s.put(a, at.start, new).wait()),
        6 => job.scope(|s| {
            let (left, right) = new.split_at(new.len() / 2);
            forget(s.put(a, at.start, left));
            let mut event = s.put(a, at.start + left.len(), right);
            while !event.test() {}
        }),
        7 => new.first().into_iter().for_each(|&x| a.fill(at.clone(), x)),
        _ => b.copy_to(at.clone(), a, at.start),
    }
}

/// Some indices.
fn picked(n: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    (0..n.min(7)).map(|_| random.below(n)).collect()
}

/// Reads all that there is, in every way.
fn read<T: Pod + Debug>(job: &Job, a: &SharedArray<T>, what: &str, model: &[T], seed: u64) {
    let n = model.len();
    let mut all = vec![value::<T>(seed); n];
    a.get_slice(0, &mut all);
    same(what, &all, model);
    a.get_slice(n, &mut []);
    for i in picked(n, seed) {
        same(what, &[a.get(i)], &[model[i]]);
    }
    let (from, to) = (n / 3, n - n / 4);
    same(what, &a.fetch(from..to).wait(), &model[from..to]);
    same(what, &a.fetch(..).wait(), model);
    if from < to {
        same(what, &a.fetch(from..=to - 1).wait(), &model[from..to]);
    }
    all.fill(value::<T>(seed));
    job.scope(|s| {
        let (left, right) = all.split_at_mut(from);
        let event = s.get(a, 0, left);
        forget(s.get(a, from, right));
        same(what, event.wait(), &model[..from]);
    });
    same(what, &all, model);
    let (cells, mine) = (a.cells(), a.my_indices().map(|i| model[i]).collect::<Vec<_>>());
    assert_eq!((cells.len(), cells.is_empty()), (mine.len(), mine.is_empty()), "{what}");
    let mut part = vec![T::zeroed(); mine.len()];
    cells.read(0, &mut part);
    same(what, &part, &mine);
    same(what, &(0..mine.len()).map(|k| cells.get(k)).collect::<Vec<_>>(), &mine);
}

/// More than goes at a time, in few pieces.
fn long_ranges(job: &Job) {
    let (n, me) = (30_011, job.rank().index());
    let a = job.array::<u64>(n).unwrap();
    let b = job.array::<u64>(Layout::block_cyclic(n, 5000).starting_at(job.size() - 1)).unwrap();
    let x = |i: usize| mixed([i as u64, 77]);
    a.my_runs().for_each(|run| a.put_slice(run.global.start, &run.global.map(x).collect::<Vec<_>>()));
    job.barrier();
    let last = job.size() - 1;
    if me == last {
        a.copy_to(1..n - 1, &b, 0);
        b.fill(n - 2.., u64::MAX);
    }
    job.barrier();
    let expected: Vec<u64> = (0..n).map(|i| if i < n - 2 { x(i + 1) } else { u64::MAX }).collect();
    same("copied", &b.fetch(..).wait(), &expected);
    job.barrier();
    if me == 0 {
        b.fill(17..n - 3, 4711);
        // Within one array, where nothing overlaps.
        a.copy_to(..n / 2, &a, n / 2);
    }
    job.barrier();
    let mut found = vec![0; n];
    b.get_slice(0, &mut found);
    assert!(found.iter().enumerate().all(|(i, &x)| x == if (17..n - 3).contains(&i) { 4711 } else { expected[i] }));
    a.get_slice(0, &mut found);
    assert!(found.iter().enumerate().all(|(i, &y)| y == if i / (n / 2) == 1 { x(i - n / 2) } else { x(i) }));
    job.barrier();
}

fn words(job: &Job) {
    let (n, size) = (job.size() as u64, job.size());
    let a = job.array::<u64>(Layout::cyclic(2 * size)).unwrap();
    let b = job.array::<i32>(Layout::block_cyclic(2 * size, 3)).unwrap();
    for i in 0..2 * size {
        a.at(i).fetch_add(1 + job.rank().0 as u64);
        b.at(i).fetch_sub(i as i32);
        b.at(i).fetch_max(i32::MIN + i as i32);
    }
    job.barrier();
    for i in 0..2 * size {
        assert_eq!((a.at(i).load(), a.get(i)), (n * (n + 1) / 2, n * (n + 1) / 2));
        assert_eq!(b.get(i), -((size * i) as i32));
    }
    job.barrier();
    // One of all wins each.
    for i in 0..2 * size {
        let _ = a.at(i).compare_exchange(n * (n + 1) / 2, 1 << 40 | u64::from(job.rank().0));
    }
    job.barrier();
    assert!((0..2 * size).all(|i| a.get(i) >> 40 == 1 && a.get(i) & 0xff_ffff < n));
    job.barrier();
}

/// Writers, then readers, then writers: nobody sees what belongs before or after.
fn phases(job: &Job) {
    let (size, me) = (job.size(), job.rank().0);
    let mut a = job.array::<u32>(Layout::block_cyclic(6 * size + 1, 2)).unwrap();
    let mut none = job.array::<u64>(0).unwrap();
    let mut nothing = job.array::<[u8; 0]>(3 * size).unwrap();
    for step in 1..20 {
        a.own(|mine| {
            assert!(mine.iter().all(|&x| x == if step == 1 { 0 } else { (step - 1) << 8 | me }));
            mine.fill(step << 8 | me);
        });
        let seen = a.freeze(|all| {
            let by_part: usize = job.ranks().filter_map(|r| all.part(r)).map(|part| part.len()).sum();
            let near = job.ranks().filter(|&r| job.same_node(r)).count();
            assert!(near < size || by_part == all.len());
            assert!(job.ranks().all(|r| all.part(r).is_none_or(|part| part.iter().all(|&x| x == step << 8 | r.0))));
            (0..all.len()).filter(|&i| all.get(i) == step << 8 | (i / 2 % size) as u32).count()
        });
        assert_eq!(seen, 6 * size + 1);
        // By value directly before and after a phase.
        let i = 2 * (me as usize);
        a.put(i, step << 8 | me);
        assert_eq!(a.get(i), step << 8 | me);
        assert_eq!(none.own(|mine| mine.len()) + none.freeze(|all| all.mine().len()), 0);
        nothing.own(|mine| assert_eq!(mine.len(), 3));
    }
    // Own threads may work in a part.
    a.own(|mine| {
        std::thread::scope(|s| {
            let chunks = mine.chunks_mut(3).enumerate();
            let threads: Vec<_> = chunks.map(|(k, some)| s.spawn(move || some.fill(k as u32))).collect();
            // The end of the scope would wait for them, too, but in a way that the sanitizer does not see.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(mine.iter().enumerate().all(|(k, &x)| x == k as u32 / 3));
    });
}

/// One rank is late, another one each time; what the others do then is not in its slices.
fn edges_of_phases(job: &Job) {
    let (size, me, right) = (job.size(), job.rank().index(), job.neighbor(1).index());
    let left = job.neighbor(-1).0;
    let mut a = job.array::<u32>(Layout::per_rank(4)).unwrap();
    for step in 0..size.min(5) as u32 {
        let late = step as usize % size == me;
        let moment = || std::thread::sleep(std::time::Duration::from_millis(if late { 3 } else { 0 }));
        moment();
        a.put(4 * right, step << 8 | me as u32);
        a.own(|mine| {
            assert_eq!(mine[0], step << 8 | left, "not what was put before");
            mine.fill(u32::MAX);
            moment();
            assert!(mine.iter().all(|&x| x == u32::MAX), "somebody puts into my slice");
        });
        a.put(4 * right + 1, 7);
        a.freeze(|all| {
            assert_eq!(all.mine(), [u32::MAX, 7, u32::MAX, u32::MAX]);
            moment();
            let seen = [4 * right, 4 * right + 1].map(|i| all.get(i));
            assert!(seen == [u32::MAX, 7] && all.mine()[1] == 7, "somebody writes what is frozen");
        });
        a.put(4 * right + 1, 9);
        job.barrier();
    }
}

fn many_arrays(job: &Job) {
    let (size, me) = (job.size(), job.rank().index());
    let mut many: Vec<SharedArray<u64>> = (0..9).map(|k| job.array(Layout::per_rank(k)).unwrap()).collect();
    let mut bytes = job.array::<u8>(2 * size).unwrap();
    job.phase(many.iter_mut().map(|a| a.owned()).collect::<Vec<_>>(), |parts| {
        for (k, part) in parts.into_iter().enumerate() {
            assert_eq!(part.len(), k);
            part.fill((100 * me + k) as u64);
        }
    });
    // Of different kinds, one of them a vector and one a pair.
    let (left, right) = many.split_at_mut(4);
    let [a, b, c, d] = left else { unreachable!() };
    let right = right.iter_mut().map(|a| a.frozen()).collect::<Vec<_>>();
    let arrays = (a.owned(), b.frozen(), (c.owned(), bytes.owned()), d.frozen(), right);
    let sum = job.phase(arrays, |(a, b, (c, bytes), d, right)| {
        assert_eq!((a.len(), b.len(), c.len(), bytes.len(), d.len()), (0, size, 2, 2, 3 * size));
        c.fill(b.get(job.neighbor(1).index()));
        bytes.fill(me as u8 + 1);
        right.iter().map(|view| view.get(view.len() - 1)).sum::<u64>() + d.get(0)
    });
    assert_eq!(sum, (4..9).map(|k| 100 * (size as u64 - 1) + k).sum::<u64>() + 3);
    let (own, of_neighbor) = (bytes.get(2 * me), many[2].get(2 * me));
    assert_eq!((usize::from(own), of_neighbor), (me + 1, 100 * u64::from(job.neighbor(1).0) + 1));
    job.phase(Vec::<partage::phase::Owned<'_, u8>>::new(), |none| assert!(none.is_empty()));
    job.phase((many[8].frozen(),), |(all,)| assert!((0..all.len()).all(|i| all.get(i) == (100 * (i / 8) + 8) as u64)));
}

fn nested_phases(job: &Job) {
    let (size, me) = (job.size(), job.rank().index());
    let [mut a, mut b] = [0; 2].map(|_| job.array::<usize>(Layout::cyclic(3 * size)).unwrap());
    let c = job.array::<usize>(size).unwrap();
    for step in 0..5 {
        let result = a.own(|mine| {
            mine.fill(step + me);
            job.barrier();
            c.put(job.neighbor(1).index(), mine[0]);
            job.barrier();
            let left = c.get(me);
            let theirs = b.own(|others| {
                others.fill(left);
                job.barrier_with(step as u64);
                others.len()
            });
            b.freeze(|all| {
                mine.copy_from_slice(all.mine());
                // Anything else may be made meanwhile, and given back.
                let d = job.array::<u8>(size).unwrap();
                d.put(me, 1);
                job.barrier();
                theirs + usize::from(d.get(job.neighbor(1).index()))
            })
        });
        assert_eq!(result, 4);
        let left = job.neighbor(-1).index();
        assert!(a.my_indices().all(|i| a.get(i) == step + left), "{step}");
        job.barrier();
    }
}

/// Puts and gets that nobody waits for.
fn forgotten(job: &Job) {
    let (size, me, len) = (job.size(), job.rank().index(), 300);
    let mut a = job.array::<u32>(Layout::per_rank(len)).unwrap();
    let right = job.neighbor(1).index();
    let value = |from: usize, step: usize, k: usize| (from << 20 | step << 10 | k) as u32;
    for step in 0..6 {
        let pattern: Vec<u32> = (0..len).map(|k| value(me, step, k)).collect();
        match step {
            0 => forget(a.store(right * len, pattern)),
            1 => drop(a.store(right * len, pattern)),
            // More than go at a time.
            2 => (0..len).for_each(|k| drop(a.store(right * len + k, vec![pattern[k]]))),
            3 => (0..len).for_each(|k| forget(a.store(right * len + k, vec![pattern[k]]))),
            4 => job.scope(|s| forget(s.put(&a, right * len, &pattern))),
            _ => {
                let mut event = a.store(right * len, pattern);
                event.test();
                drop(event);
            }
        }
        // Reads whose memory nobody ever looks at.
        drop(a.fetch(right * len..(right + 1) * len));
        forget(a.fetch(right * len..right * len + 3));
        let left = job.neighbor(-1).index();
        a.own(|mine| {
            let expected: Vec<u32> = (0..len).map(|k| value(left, step, k)).collect();
            same("stored", mine, &expected);
            // What still came would overwrite it.
            mine.fill(me as u32);
            job.barrier();
            assert!(mine.iter().all(|&x| x == me as u32), "somebody writes into my slice");
        });
        assert!((0..size).all(|r| a.get(r * len + step) == r as u32));
        job.barrier();
    }
}

/// Behind so much that it is long under way, from one rank each time, to one that hears from others that everybody is there:
/// with 4 or 5 nodes, the third to the right.
fn much_forgotten(job: &Job) {
    let (much, len) = (if (4..=5).contains(&job.size()) { 15 << 18 } else { 1 << 16 }, 1000);
    let (me, size) = (job.rank().index(), job.size());
    let before = job.array::<u8>(Layout::per_rank(much)).unwrap();
    let mut kept = job.array::<u8>(Layout::per_rank(len)).unwrap();
    for turn in 0..4 * size.min(5) {
        let (source, target) = (turn % size, (turn + 3) % size);
        let (heap, sent) = (vec![7; if me == source { much } else { 0 }], vec![1 + turn as u8; len]);
        let expected = sent.clone();
        job.barrier();
        if me == source {
            drop(before.store(target * much, heap));
            drop(kept.store(target * len, sent));
        }
        kept.own(|mine| {
            if me == target {
                same("behind much", mine, &expected);
            }
        });
    }
    // The last of it comes long after the memory has been zeroed for the next array, if nobody waits for it.
    for turn in 0..2 {
        let (source, target, all) = (turn % size, (turn + 3) % size, 4 * much);
        let mut sent = vec![9; if me == source { all } else { 0 }];
        let a = job.array::<u8>(Layout::on(target, all)).unwrap();
        job.barrier();
        if me == source {
            drop(a.store(0, std::mem::take(&mut sent)));
        }
        drop(a);
        let b = job.array::<u8>(Layout::on(target, all)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
        let mut mine = vec![1; b.local_len()];
        b.cells().read(0, &mut mine);
        assert!(mine.iter().all(|&x| x == 0), "something came late");
        job.barrier();
    }
}

fn forgotten_and_dropped(job: &Job) {
    let len = 500;
    let right = job.neighbor(1).index();
    for turn in 0..8 {
        let a = job.array::<u64>(Layout::per_rank(len)).unwrap();
        match turn % 3 {
            0 => drop(a.store(right * len, vec![u64::MAX; len])),
            1 => forget(a.store(right * len, vec![u64::MAX; len])),
            _ => (0..len).for_each(|k| drop(a.store(right * len + k, vec![u64::MAX]))),
        }
        drop(a);
        let mut b = job.array::<u64>(Layout::per_rank(len)).unwrap();
        assert!(b.fetch(..).wait().iter().all(|&x| x == 0), "a new array is zeroed");
        b.own(|mine| assert!(mine.iter().all(|&x| x == 0)));
    }
}

/// Bytes in use when nothing is under way, and no array of the past counts any more.
pub fn settled(job: &Job) -> u64 {
    drop(job.array::<u8>(0).unwrap());
    job.allocated()
}

fn dropped(job: &Job) {
    let before = settled(job);
    let (size, me) = (job.size(), job.rank().index());
    // What all ranks make alike, and what every rank drops when it likes.
    let (mut common, mut mine) = (Random::new(5), Random::new(me as u64 + 99));
    let mut held: Vec<(SharedArray<u32>, u32)> = vec![];
    let mut most = 0;
    for turn in 1..60u32 {
        let layout = match common.below(4) {
            0 => Layout::on(common.below(size), 1 + common.below(3000)),
            1 => Layout::cyclic(common.below(3000)),
            _ => Layout::per_rank(common.below(1000)),
        };
        let a = job.array::<u32>(layout).unwrap();
        assert!(a.my_indices().all(|i| a.get(i) == 0), "not zeroed");
        a.cells().write(0, &vec![turn; a.local_len()]);
        held.push((a, turn));
        // Some ranks keep theirs for long, the last one the longest.
        let keep = if me == size - 1 { 12 } else { 1 + mine.below(6) };
        while held.len() > keep {
            let (a, turn) = held.swap_remove(mine.below(held.len()));
            let mut part = vec![0; a.local_len()];
            a.cells().read(0, &mut part);
            assert!(part.iter().all(|&x| x == turn), "somebody else has this memory too");
        }
        most = most.max(job.allocated());
    }
    // 12 arrays and some that are held elsewhere, of at most 12 KB here; 59 would be more. A rank that has dropped an array
    // still has its memory.
    assert!(most - before < 59 * 4 * 1500, "{most} bytes");
    for (a, turn) in held {
        assert!(a.cells().len() == a.local_len() && (0..a.local_len()).all(|k| a.cells().get(k) == turn));
    }
    assert_eq!(settled(job), before);
    // The same over and over takes the same memory.
    for turn in 0..40u32 {
        let a = job.array::<u64>(Layout::per_rank(1000)).unwrap();
        a.put(me * 1000 + 999, u64::from(turn));
        assert!(job.allocated() <= before + 3 * 8192, "{} bytes", job.allocated());
    }
    assert_eq!(settled(job), before);
}

fn places(job: &Job) {
    let (size, me) = (job.size(), job.rank().index());
    let mut a = job.array::<usize>(Layout::cyclic(size)).unwrap();
    let mut b = job.array::<usize>(Layout::per_rank(2)).unwrap();
    a.put(me, 1);
    swap(&mut a, &mut b);
    assert_eq!((a.len(), b.len()), (2 * size, size));
    a.own(|mine| mine.copy_from_slice(&[10, 20]));
    assert_eq!((a.get(2 * me), a.get(2 * me + 1), b.get(me)), (10, 20, 1));
    // A field of a struct, a place in a vector, and a stand-in.
    struct Grid {
        old: SharedArray<usize>,
        new: SharedArray<usize>,
    }
    let mut grid = Grid { old: a, new: b };
    job.phase((grid.old.frozen(), grid.new.owned()), |(old, new)| new[0] += old.get(2 * size - 1));
    swap(&mut grid.old, &mut grid.new);
    let mut all = [grid.new, grid.old];
    let old = std::mem::replace(&mut all[0], job.array(1).unwrap());
    assert_eq!((old.get(2 * me), all[1].get(me), all[0].get(0)), (10, 21, 0));
    all.reverse();
    job.phase(all.iter_mut().map(|a| a.frozen()).collect::<Vec<_>>(), |views| {
        assert_eq!(views.iter().map(|v| v.len()).collect::<Vec<_>>(), [size, 1]);
    });
    job.barrier();
}

fn no_room(job: &Job) {
    use partage::ErrorKind::{Config, OutOfMemory};
    let (me, size) = (job.rank(), job.size());
    let before = settled(job);
    let mut kept = job.array::<u64>(size).unwrap();
    kept.put(me.index(), 7);
    for layout in [
        Layout::per_rank(1 << 38),
        Layout::blocked(1 << 45),
        Layout::on(0, 1 << 39),
        Layout::cyclic(usize::MAX / 2 - 1),
        Layout::tiles([1 << 30, 1 << 28]),
    ] {
        let e = job.array::<u64>(layout).unwrap_err();
        assert!(e.kind() == OutOfMemory && e.to_string().starts_with(&format!("{me}: array of ")), "{e}");
    }
    for layout in [
        Layout::cyclic(8).starting_at(size),
        Layout::on(size, 1),
        Layout::blocked(usize::MAX),
        Layout::rows(usize::MAX, 2),
        Layout::tiles([8, 8]).grid([size + 1, 1]),
        Layout::tiles([8, 8]).grid([size]),
    ] {
        let e = job.array::<u64>(layout).unwrap_err();
        assert!(e.kind() == Config && e.to_string().starts_with(&format!("{me}: array: ")), "{e}");
    }
    // The others are none the worse for it, and the next one has room.
    let mut next = job.array::<u64>(1000).unwrap();
    next.own(|mine| mine.fill(3));
    kept.own(|mine| assert_eq!(mine, [7]));
    assert!(next.my_indices().all(|i| next.get(i) == 3));
    drop((kept, next));
    assert_eq!(settled(job), before);
}

fn misuse(job: &Job) {
    let me = job.rank();
    let a = job.array::<u64>(Layout::block_cyclic(10, 3)).unwrap();
    let other = job.array::<u64>(4).unwrap();
    let none = job.array::<u32>(0).unwrap();
    let refused = |expect: &str, f: &dyn Fn()| {
        let text = refusal(expect, f);
        assert_eq!(text, format!("{me}: {expect}"));
    };
    refused("get: there is no element 10 in an array of 10", &|| _ = a.get(10));
    refused("put: there is no element 11 in an array of 10", &|| a.put(11, 1));
    refused("get: there is no element 18446744073709551615 in an array of 10", &|| _ = a.get(usize::MAX));
    refused("put: there is no element 9223372036854775808 in an array of 10", &|| a.put(1 << 63, 1));
    refused("get: there is no element 0 in an array of 0", &|| _ = none.get(0));
    refused("affinity: there is no element 10 in an array of 10", &|| _ = a.affinity(10));
    refused("at: there is no element 10 in an array of 10", &|| _ = a.at(10).load());
    refused("get_slice: 3 elements from 8 on do not lie in an array of 10", &|| a.get_slice(8, &mut [0; 3]));
    refused("put_slice: 2 elements from 9 on do not lie in an array of 10", &|| a.put_slice(9, &[1, 2]));
    refused("put_slice: 0 elements from 11 on do not lie in an array of 10", &|| a.put_slice(11, &[]));
    refused("store: 11 elements from 0 on do not lie in an array of 10", &|| drop(a.store(0, vec![1; 11])));
    refused("fetch: 7 elements from 4 on do not lie in an array of 10", &|| drop(a.fetch(4..11)));
    refused("fetch: 4 elements from 7 on do not lie in an array of 10", &|| drop(a.fetch(7..=10)));
    #[allow(clippy::reversed_empty_ranges)]
    refused("fetch: elements 5..4 are no range", &|| drop(a.fetch(5..4)));
    refused("fetch: elements 11..10 are no range", &|| drop(a.fetch(11..)));
    refused("fill: 11 elements from 0 on do not lie in an array of 10", &|| a.fill(..11, 1));
    refused("fill: 12 elements from 2 on do not lie in an array of 10", &|| a.fill(2..14, 1));
    refused("copy_to: 5 elements from 0 on do not lie in an array of 4", &|| a.copy_to(..5, &other, 0));
    refused("copy_to: 2 elements from 3 on do not lie in an array of 4", &|| a.copy_to(8.., &other, 3));
    refused("copy_to: elements 0..4 and 3..7 of one array overlap", &|| a.copy_to(..4, &a, 3));
    refused("copy_to: elements 4..8 and 1..5 of one array overlap", &|| a.copy_to(4..8, &a, 1));
    refused("get: 2 elements from 9 on do not lie in an array of 10", &|| {
        let mut two = [0; 2];
        job.scope(|s| drop(s.get(&a, 9, &mut two)));
    });
    refused("put: 2 elements from 9 on do not lie in an array of 10", &|| job.scope(|s| drop(s.put(&a, 9, &[0; 2]))));
    let n = a.local_len();
    refused(&format!("get: 1 elements from {n} on do not lie in my part of {n}"), &|| _ = a.cells().get(n));
    refused(&format!("set: 1 elements from {n} on do not lie in my part of {n}"), &|| a.cells().set(n, 1));
    let all = &vec![1; n + 1];
    refused(&format!("write: {} elements from 0 on do not lie in my part of {n}", n + 1), &|| a.cells().write(0, all));
    refused(&format!("read: 1 elements from {} on do not lie in my part of {n}", usize::MAX), &|| {
        a.cells().read(usize::MAX, &mut [0])
    });
    refused(&format!("global: my part has {n} elements, there is no {n}"), &|| _ = a.global(n));
    // In a frozen array, on all ranks alike.
    let mut a = a;
    a.freeze(|view| {
        let of = "of a frozen array";
        refused(&format!("get {of}: 1 elements from 10 on do not lie in an array of 10"), &|| _ = view.get(10));
        refused(&format!("get_slice {of}: 3 elements from 8 on do not lie in an array of 10"), &|| {
            view.get_slice(8, &mut [0; 3]);
        });
        refused(&format!("get_slice {of}: 1 elements from {} on do not lie in an array of 10", usize::MAX), &|| {
            view.get_slice(usize::MAX, &mut [0]);
        });
    });
    // Nothing was harmed, and what is empty may be anywhere inside.
    assert!(a.fetch(..).wait().iter().all(|&x| x == 0) && a.fetch(10..).wait().is_empty());
    a.put_slice(10, &[]);
    a.copy_to(3..3, &other, 4);
    none.fill(.., 1);
    none.put_slice(0, &[]);
    job.barrier();
}

fn slices(job: &Job) {
    let (n, me) = (31 * job.size(), job.rank().index());
    let a = job.array::<u32>(Layout::block_cyclic(n, 5)).unwrap();
    a.my_indices().for_each(|i| a.put(i, i as u32));
    job.barrier();
    let all: Vec<usize> = (0..a.blocks().unwrap()).flat_map(|b| a.block(b)).collect();
    assert_eq!(all, (0..n).collect::<Vec<_>>());
    assert!((0..a.blocks().unwrap()).all(|b| a.block(b).all(|i| a.affinity(i) == a.affinity(a.block(b).start))));
    let slice = a.slice(3..n - 4);
    let inner = slice.slice(1..=10).slice(2..);
    assert_eq!((slice.len(), inner.len(), inner.indices(), inner.is_empty()), (n - 7, 8, 6..14, false));
    let mut got = [0; 5];
    inner.get_slice(3, &mut got);
    assert_eq!((got, inner.get(0), inner.fetch().wait()[7]), ([9, 10, 11, 12, 13], 6, 13));
    assert_eq!(inner.affinity(1), a.affinity(7));
    job.barrier();
    if me == 0 {
        inner.fill(7);
        inner.put_slice(1, &[1, 2]);
        inner.put(7, 3);
    }
    job.barrier();
    assert_eq!(a.fetch(5..15).wait(), [5, 7, 1, 2, 7, 7, 7, 7, 3, 14]);
    for wrong in [
        refusal("a mistake", || _ = slice.slice(5..slice.len() + 1)),
        refusal("a mistake", || inner.put(8, 0)),
        refusal("a mistake", || inner.put_slice(7, &[0, 0])),
        refusal("a mistake", || _ = a.slice(n - 1..n + 1)),
        refusal("a mistake", || _ = a.block(a.blocks().unwrap())),
    ] {
        assert!(wrong.starts_with(&format!("rank {me}: ")), "{wrong}");
    }
    assert!(a.slice(n..).is_empty() && slice.slice(4..4).fetch().wait().is_empty());
    let b = job.array::<u32>(Layout::tiles([4, 6])).unwrap();
    assert!(b.blocks().is_none() && refusal("a mistake", || _ = b.block(0)).contains("no blocks of one size"));
    let c = job.array::<u8>(10 * job.size()).unwrap();
    assert_eq!(c.my_range(), 10 * me..10 * me + 10);
    assert!(job.size() == 1 || refusal("a mistake", || _ = a.my_range()).contains("my_runs"));
    job.barrier();
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Come {
    n: u64,
    sum: GlobalPtr<u64>,
}

static COME: Request<Come> = Request::new(|_, target, come, _| _ = target.at(come.sum).fetch_add(come.n));

fn long_messages(job: &Job) {
    job.register_handlers(&[&COME]);
    let (size, me) = (job.size(), job.rank().index());
    // A lane from every rank to every rank, of several lengths, also longer than a message's payload.
    let lens = [0, 1, 7, 1000, 20_000];
    let each: usize = lens.iter().sum();
    let a = job.array::<u64>(Layout::per_rank(size * each)).unwrap();
    let sum = job.alloc_all::<u64>(1).unwrap();
    for to in job.ranks() {
        let mut at = to.index() * size * each + me * each;
        for len in lens {
            let src: Vec<u64> = (0..len).map(|k| mixed([me as u64, len as u64, k as u64])).collect();
            a.put_am(at, &src, &COME, Come { n: len as u64 + 1, sum: sum.on(to) });
            at += len;
        }
    }
    // The handlers say that all have come; then all is there, without a barrier.
    job.wait_until(|| sum.at(job).load() == (size * (each + lens.len())) as u64);
    let mut mine = vec![0; size * each];
    a.cells().read(0, &mut mine);
    for (from, lane) in mine.chunks(each).enumerate() {
        let mut at = 0;
        for len in lens {
            let right = |k: usize| lane[at + k] == mixed([from as u64, len as u64, k as u64]);
            assert!((0..len).all(right), "from {from}, {len} values");
            at += len;
        }
    }
    job.barrier();
    if size > 1 {
        let wrong = refusal("a mistake", || a.put_am(size * each - 1, &[1, 2], &COME, Come { n: 0, sum }));
        assert!(wrong.contains("lie on several ranks"), "{wrong}");
    }
    job.barrier();
    job.free_all(sum);
}

fn blocks(job: &Job) {
    let (size, me) = (job.size(), job.rank().index());
    let told = job.alloc_all::<BlockPtr<u64>>(1).unwrap();
    for round in 0..3 {
        // Everybody takes some, without the others, and tells its neighbour.
        let (n, first) = (1 + 37 * (me + round), (me + round) % size);
        let layout = match round {
            0 => Layout::block_cyclic(n, 4),
            1 => Layout::block_cyclic(n, 3).starting_at(first),
            _ => Layout::on(first, n),
        };
        let p = job.alloc_blocks::<u64>(layout).unwrap();
        for i in 0..n {
            let at = p.offset(job, i as isize);
            assert_eq!((at.ptr().get(job), at.distance(job, p)), (0, i as isize), "not zeroed, or not there");
            at.ptr().put(job, mixed([me as u64, i as u64]));
        }
        told.on(job.neighbor(1)).put(job, p);
        job.barrier();
        let (theirs, from) = (told.get(job), job.neighbor(-1).index());
        let n = 1 + 37 * (from + round);
        for i in 0..n {
            assert_eq!(theirs.offset(job, i as isize).ptr().get(job), mixed([from as u64, i as u64]), "{theirs:?} {i}");
        }
        let mine: Vec<usize> = theirs.mine(job, n).collect();
        let rank = |i: &usize| theirs.offset(job, *i as isize).rank() == job.rank();
        assert_eq!(mine, (0..n).filter(rank).collect::<Vec<_>>());
        job.barrier();
        job.free_blocks(theirs);
        assert!(refusal("a mistake", || job.free_blocks(theirs)).contains("no blocks start at"));
        job.barrier();
    }
    job.free_blocks(BlockPtr::<u64>::NULL);
    assert!(job.alloc_blocks::<u8>(Layout::tiles([3, 3])).is_err() && job.alloc_blocks::<u64>(1 << 60).is_err());
    let all = job.alloc_blocks_all::<u64>(Layout::block_cyclic(50, 2)).unwrap();
    job.free_blocks_all(all);
    job.free_all(told);
}

fn stores(job: &Job) {
    let n = 300;
    let p = job.alloc_all::<u64>(n * 2).unwrap();
    let right = job.neighbor(1);
    let value = |from: Rank, k: usize| mixed([u64::from(from.0), k as u64]);
    for k in 0..n {
        let event = p.on(right).add(k).store(job, vec![value(job.rank(), k)]);
        match k % 3 {
            0 => assert_eq!(event.wait(), [value(job.rank(), k)], "the buffer comes back"),
            1 => drop(event),
            _ => forget(event),
        }
    }
    p.on(right).add(n).store(job, (n..2 * n).map(|k| value(job.rank(), k)).collect()).wait();
    job.quiet();
    job.barrier();
    let left = job.neighbor(-1);
    let all = p.fetch(job, 2 * n).wait();
    assert!((0..2 * n).all(|k| all[k] == value(left, k)));
    let (mut coming, mut polls) = (p.on(right).fetch(job, 2 * n), 0);
    while !coming.test() {
        polls += 1;
    }
    assert!(coming.wait().iter().enumerate().all(|(k, &x)| x == value(job.rank(), k)), "after {polls} looks");
    drop(p.on(right).fetch(job, n));
    assert!(p.add(1) > p && p.add(3).sub(2) == p.add(1));
    refusal("before all memory", || p.sub(usize::MAX).get(job));
    // What has left all memory does not come back.
    for (lost, n) in [(p.sub(1 << 40), 1 << 40), (p.sub(usize::MAX), 7), (p.add(usize::MAX), 7)] {
        refusal("outside", || lost.add(n).get(job));
        refusal("outside", || lost.sub(n).get(job));
    }
    job.barrier();
    job.free_all(p);
}

thread_local! {
    static FOUND: RefCell<Option<SharedArray<u64>>> = const { RefCell::new(None) };
}

/// Tries what waits, by a handle that it has found; says how often that was refused. Puts near elements by value.
static FINDER: Request<GlobalPtr<u64>> = Request::new(|_, target, refused, _| {
    FOUND.with_borrow_mut(|found| {
        // The thread that runs it may be another rank's, which has its own, or the network's, which has none.
        let Some(array) = found.as_mut() else { return };
        let words = refusal("a phase in a handler", || array.own(|_| ()));
        assert!(words.contains("in a handler"), "{words}");
        target.at(refused).fetch_add(1);
    });
});

fn handlers(job: &Job) {
    job.register_handlers(&[&FINDER]);
    let mut a = job.array::<u64>(Layout::per_rank(2)).unwrap();
    FOUND.set(Some(job.array::<u64>(Layout::per_rank(3)).unwrap()));
    let refused = job.alloc_all::<u64>(1).unwrap();
    let sent = 5;
    for _ in 0..sent {
        job.ranks().for_each(|r| job.am(r, &FINDER, refused.on(r), &[]));
        // They run while ranks wait here; nobody arrives twice.
        job.barrier();
        a.own_each(|i, x| *x += i as u64);
    }
    job.quiet();
    job.barrier();
    assert!(refused.get(job) <= sent * job.size() as u64);
    assert!(a.my_indices().all(|i| a.get(i) == sent * i as u64));
    drop(FOUND.take());
    job.barrier();
    job.free_all(refused);
}
