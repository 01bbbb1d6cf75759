//! What must compile, beside what must not: each is run, too.

use partage::array::Cells;
use partage::phase::{Frozen, Owned, View};
use partage::prelude::*;
use partage::scope::Scope;
use std::cell::RefCell;
use std::mem::forget;

/// Threads of a rank's own may work in its slices, and read parts of others.
#[test]
fn threads_in_a_phase() {
    partage::test(3, |job| {
        let mut a = job.array::<f64>(Layout::per_rank(8)).unwrap();
        a.own(|mine| {
            std::thread::scope(|s| {
                for chunk in mine.chunks_mut(2) {
                    s.spawn(|| chunk.fill(1.0));
                }
            });
        });
        let sum: f64 = a.freeze(|all| {
            let parts: Vec<&[f64]> = job.ranks().filter_map(|r| all.part(r)).collect();
            std::thread::scope(|s| {
                let sums: Vec<_> = parts.into_iter().map(|part| s.spawn(|| part.iter().sum::<f64>())).collect();
                sums.into_iter().map(|sum| sum.join().unwrap()).sum()
            })
        });
        assert_eq!(sum, 24.0);
    });
}

/// In a phase ranks meet, reach other arrays, and call each other.
#[test]
fn everything_else_in_a_phase() {
    partage::test(3, |job| {
        let mut a = job.array::<u64>(3).unwrap();
        let b = job.array::<u64>(3).unwrap();
        a.own(|mine| {
            b.put(job.neighbor(1).index(), 7);
            job.barrier();
            mine[0] = b.get(job.rank().index());
            mine[0] += job.rpc(job.neighbor(1), |_, x: u64| x + 1, 1).wait();
            let there = job.notify(None);
            there.wait(None);
        });
        assert_eq!(a.get(job.rank().index()), 9);
    });
}

/// In a phase the slices are buffers of collectives like any other memory.
#[test]
fn collectives_in_a_phase() {
    partage::test(3, |job| {
        let mut a = job.array::<f64>(9).unwrap();
        let b = job.array::<f64>(9).unwrap();
        let me = f64::from(job.rank().0);
        a.own(|mut mine| {
            mine.fill(me);
            let firsts = job.value(mine[0]).gather_all();
            let mut all = vec![];
            job.gather_all(&mine).to(&mut all).run();
            job.broadcast(&mut mine).root(TeamRank(2)).run();
            assert_eq!((firsts, all.len(), all[8]), (vec![0.0, 1.0, 2.0], 9, 2.0));
            mine[0] += b.get(0);
        });
        assert_eq!(a.get(0), 2.0);
        a.own(|mut mine| {
            mine[1] = job.value(me).sum();
            job.all_reduce(&mut mine, Max).run();
        });
        assert_eq!(a.get(1), 3.0);
        job.barrier();
    });
}

/// A function may have data of its own, as long as it can be copied; its types are found out.
#[test]
fn functions_of_reductions() {
    partage::test(3, |job| {
        let (k, mut v) = (3u64, vec![1u64]);
        job.all_reduce(&mut v, Ordered(move |a, b| a + b * k)).run();
        assert_eq!(v, [7]);
        let least = job
            .value([1.0f64, 2.0])
            .all_reduce(Commutative(|a: [f64; 2], b: [f64; 2]| if a[0] < b[0] { a } else { b }));
        assert_eq!(least, [1.0, 2.0]);
    });
}

/// Source and destination may be halves of one array: nobody has two handles for that.
#[test]
fn halves_of_an_array() {
    partage::test(3, |job| {
        let a = job.array::<u64>(Layout::block_cyclic(12, 2)).unwrap();
        a.cells().write(0, &[7 + u64::from(job.rank().0); 2]);
        job.barrier();
        job.broadcast(a.slice(..6)).to(a.slice(6..)).root(TeamRank(1)).sync(In::No, Out::No).run();
        job.barrier();
        assert_eq!((a.cells().get(1), a.cells().get(3)), (7 + u64::from(job.rank().0), 8));
        job.barrier();
    });
}

/// Whatever is forgotten, nothing is wrong with what is left.
#[test]
fn everything_is_forgotten() {
    partage::test(3, |job| {
        let mut a = job.array::<f64>(9).unwrap();
        forget(a.fetch(0..8));
        forget(a.store(0, vec![1.0]));
        let _ = a.owned();
        let _ = a.frozen();
        a.own(|mine| mine.fill(2.0));
        job.scope(|s| forget(s.put(&a, 0, &[3.0])));
        let mut all = vec![];
        job.scope(|s| forget(job.gather_all(&[1u8; 100]).to(&mut all).start(s)));
        assert_eq!(all, [1; 300]);
        job.barrier();
        assert_eq!((a.get(0), a.get(8)), (3.0, 2.0));
        job.barrier();
        let before = job.allocated();
        forget(a);
        // Its memory is nobody else's any more.
        (0..3).for_each(|_| drop(job.array::<u8>(0).unwrap()));
        assert!(job.allocated() >= before);
    });
}

#[test]
fn many_arrays_of_different_shapes() {
    partage::test(2, |job| {
        let mut all: Vec<_> = (0..3).map(|n| job.array::<f64>(8 + n).unwrap()).collect();
        let mut single = job.array::<u8>(2).unwrap();
        job.phase(all.iter_mut().map(|a| a.owned()).collect::<Vec<_>>(), |parts| {
            parts.into_iter().for_each(|part| part.fill(1.0));
        });
        let (first, rest) = all.split_first_mut().unwrap();
        let rest: Vec<_> = rest.iter_mut().map(|a| a.frozen()).collect();
        let sum = job.phase((first.owned(), (rest, single.owned())), |(mine, (rest, single))| {
            single[0] = 1;
            mine[0] + rest.iter().map(|view| view.get(view.len() - 1)).sum::<f64>()
        });
        assert_eq!(sum, 3.0);
    });
}

/// A generic function of arrays, and a struct that has them, without lifetimes.
#[test]
fn handles_in_structs() {
    struct Grid<T> {
        old: SharedArray<T>,
        new: SharedArray<T>,
    }
    impl<T: Pod> Grid<T> {
        fn new(job: &Job, n: usize) -> partage::Result<Grid<T>> {
            Ok(Grid { old: job.array(n)?, new: job.array(n)? })
        }
        fn step(&mut self, job: &Job, f: impl Fn(View<'_, T>, &mut [T])) {
            job.phase((self.old.frozen(), self.new.owned()), |(old, new)| f(old, new));
            std::mem::swap(&mut self.old, &mut self.new);
        }
    }
    partage::test(2, |job| {
        let mut grid = Grid::<i32>::new(job, 10).unwrap();
        for _ in 0..3 {
            grid.step(job, |old, new| new.copy_from_slice(&old.mine().iter().map(|x| x + 1).collect::<Vec<_>>()));
        }
        assert_eq!(grid.old.get(9), 3);
    });
}

/// A handle in a thread-local is a handle; it ends with its thread or stays behind.
#[test]
fn handles_in_thread_locals() {
    thread_local! {
        static KEPT: RefCell<Option<SharedArray<f64>>> = const { RefCell::new(None) };
    }
    for _ in 0..2 {
        partage::test(2, |job| {
            KEPT.set(job.array(8).ok());
            KEPT.with_borrow_mut(|a| a.as_mut().unwrap().own(|mine| mine.fill(1.0)));
        });
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Node {
    key: u64,
    next: GlobalPtr<Node>,
}

/// A type of the program's, with pointers to itself, marked without a dependency of its own.
#[test]
fn data_with_pointers() {
    partage::test(2, |job| {
        let last = job.alloc(Node { key: 1, next: GlobalPtr::NULL }).unwrap();
        let heads = job.array::<Node>(2).unwrap();
        heads.put(job.rank().index(), Node { key: 0, next: last });
        job.barrier();
        let head = heads.get(job.neighbor(1).index());
        assert_eq!((head.key, head.next.rank(), head.next.get(job).key), (0, job.neighbor(1), 1));
        job.barrier();
    });
}

#[test]
fn calls_to_objects() {
    partage::test(2, |job| {
        let object = job.dist(vec![1u64]);
        fn push(v: &mut Vec<u64>, x: u64) -> usize {
            v.push(x);
            v.len()
        }
        let n: usize = object.rpc(Rank(0), push, 3).wait();
        assert_eq!(object.rpc(Rank(0), |v, i: usize| v[i], 0).wait().min(1), 1);
        fn set(v: &mut Vec<u64>, (i, x): (usize, u64)) {
            v.insert(i, x);
        }
        object.tell(Rank(0), set, (0, n as u64));
        job.quiet();
        job.barrier();
    });
}

/// Compiles if the type is not `Send`, or not `Sync`: else it would be ambiguous which `check` is meant.
macro_rules! is_not {
    ($marker:ident: $($t:ty),+ $(,)?) => {$({
        trait Ambiguous<A> {
            fn check() {}
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        impl<T: ?Sized + $marker> Ambiguous<u8> for T {}
        <$t as Ambiguous<_>>::check();
    })+};
}

#[test]
fn what_stays_on_its_thread() {
    use partage::atomic::Place;
    is_not!(Send: Job, Team, SharedArray<u64>, Owned<'static, u8>, Frozen<'static, u8>, View<'static, u8>, Dist<u8>);
    is_not!(Sync: Job, Team, SharedArray<u64>, Owned<'static, u8>, Frozen<'static, u8>, View<'static, u8>, Dist<u8>);
    is_not!(Send: Cells<'static, u8>, Place<'static, u64>, Event<'static, ()>, Scope<'static, 'static>);
    is_not!(Sync: Cells<'static, u8>, Place<'static, u64>, Event<'static, ()>, Scope<'static, 'static>);
    is_not!(Send: partage::team::Notified<'static>);
    // What is bits goes anywhere.
    fn goes<T: Send + Sync + Copy + 'static>() {}
    goes::<GlobalPtr<u64>>();
    goes::<Rank>();
    goes::<Layout>();
}

/// A future that asks for another turn gets it, though nobody else has anything to do: not one in a tenth of a second.
#[test]
fn futures_that_only_yield() {
    let begun = std::time::Instant::now();
    partage::test(2, |job| {
        for rank in job.ranks() {
            let mut turns = 0;
            let yields = std::future::poll_fn(|cx| {
                turns += 1;
                cx.waker().wake_by_ref();
                if turns == 3000 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            if rank == job.rank() {
                job.block_on(yields);
                assert_eq!(turns, 3000);
            }
            job.barrier();
        }
    });
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
}
