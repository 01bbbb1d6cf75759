//! The memory part: each case is a plain program over the public API that asserts what it expects.

use crate::{Case, Random, bytes, mixed, refusal, soak};
use partage::prelude::*;
use std::time::Duration;

/// All of them.
pub const CASES: [Case; 14] = [
    ("ranks know themselves and each other", identity),
    ("values of every width go everywhere", values),
    ("values of up to a word never tear", whole_values),
    ("slices of every length go everywhere", slices),
    ("scopes complete their transfers", scopes),
    ("a barrier waits for all and publishes all", barriers),
    ("a split barrier does not hold up who has notified", split_barriers),
    ("memory of who sleeps is reached", sleepers),
    ("local memory is zeroed, apart and reusable", local_memory),
    ("symmetric memory has one offset", symmetric_memory),
    ("exhaustion is an error, on all ranks where all asked", exhaustion),
    ("pointers compute", pointers),
    ("misuse panics on the rank that made it and names rank and call", misuse),
    ("random traffic arrives", |job| soak::traffic(job, Duration::from_millis(100), 7)),
];

fn identity(job: &Job) {
    let me = job.rank().index();
    assert!(me < job.size());
    assert_eq!(job.all().rank().index(), me);
    assert_eq!(job.ranks().map(Rank::index).collect::<Vec<_>>(), (0..job.size()).collect::<Vec<_>>());
    assert_eq!(job.neighbor(job.size() as i64), job.rank());
    assert_eq!(job.neighbor(-1).index(), (me + job.size() - 1) % job.size());
    assert_eq!(job.distance(job.rank()), Distance::Me);
    assert!(job.same_node(job.rank()));
    // Everybody signs everybody's book.
    let book = job.alloc_all::<u32>(job.size()).unwrap();
    for r in job.ranks() {
        book.on(r).add(me).put(job, me as u32 + 1);
    }
    job.barrier();
    let mut read = vec![0; job.size()];
    book.get_slice(job, &mut read);
    assert_eq!(read, (1..=job.size() as u32).collect::<Vec<_>>());
    job.barrier();
    job.free_all(book);
}

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Particle {
    x: [f64; 3],
    id: u32,
    kind: [u8; 4],
}

fn values(job: &Job) {
    each(job, |i| i as u8);
    each(job, |i| i as i16 - 300);
    each(job, |i| i as u32 * 70_001);
    each(job, |i| i as f32 * 0.5 - 7.0);
    each(job, |i| u64::MAX - i as u64);
    each(job, |i| i as f64 / 7.0);
    each(job, |i| [i as u8, 1, 2]);
    each(job, |i| Particle { x: [i as f64, 1.5, -2.0], id: i as u32, kind: *b"abcd" });
    each(job, |i| GlobalPtr::<u64>::NULL.add(8 * i));
}

/// Every rank writes into every rank's row, and every rank reads every row.
fn each<T: Pod + PartialEq + std::fmt::Debug>(job: &Job, make: impl Fn(usize) -> T) {
    let (me, n) = (job.rank().index(), job.size());
    let row = job.alloc_all::<T>(n).unwrap();
    for r in job.ranks() {
        row.on(r).add(me).put(job, make(me * n + r.index()));
    }
    job.barrier();
    for r in job.ranks() {
        for from in 0..n {
            assert_eq!(row.on(r).add(from).get(job), make(from * n + r.index()));
        }
    }
    job.barrier();
    job.free_all(row);
}

/// One rank writes nothing and everything in turn; whoever reads sees one or the other.
fn whole_values(job: &Job) {
    fn of<T: Pod + PartialEq + std::fmt::Debug>(job: &Job, all: T) {
        let cell = job.alloc_all::<T>(1).unwrap();
        let (writer, there) = (job.rank().0 == 0, cell.on(job.neighbor(1 - i64::from(job.rank().0))));
        for i in 0..500 {
            match writer {
                true => there.put(job, if i % 2 == 0 { all } else { T::zeroed() }),
                false => {
                    let seen = there.get(job);
                    assert!(seen == all || seen == T::zeroed(), "a mixture: {seen:?}");
                }
            }
        }
        job.barrier();
        job.free_all(cell);
    }
    of(job, u16::MAX);
    of(job, u32::MAX);
    of(job, u64::MAX);
    of(job, -1i64);
}

const LENGTHS: [usize; 15] = [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 4096, 4097, 65_536, 1_000_003];

fn slices(job: &Job) {
    let most = LENGTHS[LENGTHS.len() - 1];
    let block = job.alloc_all::<u8>(most + 8).unwrap();
    let (left, right) = (job.neighbor(-1), job.neighbor(1));
    for (k, len) in LENGTHS.into_iter().enumerate() {
        for shift in [0, 1, 5] {
            let pattern = |rank: Rank| bytes(mixed([k as u64, rank.0.into()]), len);
            block.add(shift).on(right).put_slice(job, &pattern(job.rank()));
            job.barrier();
            let mut got = vec![0xee; len];
            block.add(shift).get_slice(job, &mut got);
            assert_eq!(got, pattern(left), "{len} bytes at {shift}, put");
            let far = job.neighbor(2);
            block.on(far).add(shift).get_slice(job, &mut got);
            assert_eq!(got, pattern(job.neighbor(1)), "{len} bytes at {shift}, got from {far}");
            job.barrier();
        }
    }
    // What lies around a put stays as it was.
    let guard = job.alloc_all::<u64>(10).unwrap();
    guard.put_slice(job, &[u64::MAX; 10]);
    job.barrier();
    guard.on(right).add(3).put_slice(job, &[1, 2, 3]);
    job.barrier();
    let mut got = [0; 10];
    guard.get_slice(job, &mut got);
    assert_eq!(got[..3], [u64::MAX; 3]);
    assert_eq!(got[3..6], [1, 2, 3]);
    assert_eq!(got[6..], [u64::MAX; 4]);
    job.barrier();
    job.free_all(guard);
    job.free_all(block);
}

fn scopes(job: &Job) {
    let block = job.alloc_all::<u32>(100).unwrap();
    let source: Vec<u32> = (0..100).map(|i| i * job.rank().0).collect();
    let (mut a, mut b) = (vec![9; 50], vec![9; 50]);
    job.scope(|s| {
        let mut event = s.put_ptr(block.on(job.neighbor(1)), &source);
        while !event.test() {}
        event.wait();
        s.wait_all();
    });
    job.barrier();
    let got = job.scope(|s| {
        let first = s.get_ptr(block, &mut a);
        let _forgotten = s.get_ptr(block.add(50), &mut b);
        first.wait()[49]
    });
    let left = job.neighbor(-1).0;
    assert_eq!(got, 49 * left);
    assert!(a.iter().chain(&b).enumerate().all(|(i, v)| *v == i as u32 * left));
    job.barrier();
    job.free_all(block);
}

fn barriers(job: &Job) {
    let count = job.alloc_all::<u64>(1).unwrap();
    for i in 1..=if crate::is_short() { 90 } else { 300u64 } {
        count.put(job, i);
        match i % 3 {
            0 => job.barrier(),
            1 => job.barrier_with(i),
            _ if job.rank().0.is_multiple_of(2) => job.barrier(),
            _ => job.barrier_with(i),
        }
        for r in job.ranks() {
            let seen = count.on(r).get(job);
            assert!(seen == i || seen == i + 1, "rank {r:?} is at {seen} after barrier {i}");
        }
    }
    job.barrier();
    job.free_all(count);
}

/// All but one sleep in a barrier; between nodes, threads of their processes serve them.
fn sleepers(job: &Job) {
    let (block, rounds) = (job.alloc_all::<u64>(2).unwrap(), (200 / job.size() as u64).max(20));
    let value = |rank: Rank, round: u64| u64::from(rank.0) << 32 | round;
    if job.rank().0 == 0 {
        std::thread::sleep(Duration::from_millis(5));
        for (round, rank) in (1..=rounds).flat_map(|round| job.ranks().map(move |rank| (round, rank))) {
            block.on(rank).put(job, value(rank, round));
            assert_eq!(block.on(rank).get(job), value(rank, round));
            assert_eq!(block.add(1).on(rank).at(job).fetch_add(1), round - 1);
        }
    }
    job.barrier();
    assert_eq!([block.get(job), block.add(1).get(job)], [value(job.rank(), rounds), rounds]);
    job.barrier();
    job.free_all(block);
}

fn split_barriers(job: &Job) {
    let count = job.alloc_all::<u64>(1).unwrap();
    for i in 1..=100u64 {
        count.put(job, i);
        let value = (i % 2 == 0).then_some(i);
        let there = job.notify(value);
        // What I do between the halves touches nobody.
        std::hint::black_box((0..i * 10).sum::<u64>());
        if there.test() {
            assert!(job.ranks().all(|r| count.on(r).get(job) >= i));
        }
        there.wait(value);
        assert!(job.ranks().all(|r| count.on(r).get(job) >= i), "a rank had not notified {i}");
    }
    job.barrier();
    job.free_all(count);
}

fn local_memory(job: &Job) {
    let mut random = Random::new(job.rank().0.into());
    let before = job.allocated();
    let mut held: Vec<(GlobalPtr<u32>, usize, u32)> = vec![];
    for i in 0..500u32 {
        if held.len() < 40 && random.below(3) > 0 {
            let len = random.below(3000);
            let p = job.alloc_slice::<u32>(len).unwrap();
            assert_eq!(p.rank(), job.rank());
            let mut got = vec![1; len];
            p.get_slice(job, &mut got);
            assert!(got.iter().all(|&v| v == 0), "not zeroed");
            p.put_slice(job, &vec![i; len]);
            held.push((p, len, i));
        } else if !held.is_empty() {
            let (p, len, i) = held.swap_remove(random.below(held.len()));
            let mut got = vec![0; len];
            p.get_slice(job, &mut got);
            assert!(got.iter().all(|&v| v == i), "somebody else has this memory too");
            job.free(p);
        }
    }
    held.into_iter().for_each(|(p, ..)| job.free(p));
    job.free(GlobalPtr::<u64>::NULL);
    assert_eq!(job.allocated(), before);
    // A pointer that was told to others is good there.
    let post = job.alloc_all::<GlobalPtr<u64>>(1).unwrap();
    let mine = job.alloc(1000 + u64::from(job.rank().0)).unwrap();
    post.on(job.neighbor(1)).put(job, mine);
    job.barrier();
    let told = post.get(job);
    assert_eq!((told.rank(), told.get(job)), (job.neighbor(-1), 1000 + u64::from(job.neighbor(-1).0)));
    job.barrier();
    job.free(mine);
    job.free_all(post);
}

fn symmetric_memory(job: &Job) {
    let before = job.allocated();
    let mut held = vec![];
    for i in 0..30 {
        // Local allocations differ from rank to rank and must not matter.
        let noise = job.alloc_slice::<u8>(1 + job.rank().index() * 100 + i).unwrap();
        let p = job.alloc_all::<u16>(i * i).unwrap();
        assert_eq!(p.on(Rank(0)), p.on(job.rank()).on(Rank(0)));
        let all = job.alloc_all::<GlobalPtr<u16>>(1).unwrap();
        all.put(job, p.on(Rank(0)));
        job.barrier();
        assert!(job.ranks().all(|r| all.on(r).get(job) == p.on(Rank(0))), "offsets differ");
        job.free_all(all);
        job.free(noise);
        held.push(p);
        if i % 3 == 2 {
            job.free_all(held.swap_remove(i % held.len()));
        }
    }
    held.into_iter().for_each(|p| job.free_all(p.on(job.neighbor(1))));
    job.free_all(GlobalPtr::<u8>::NULL);
    assert_eq!(job.allocated(), before);
}

fn exhaustion(job: &Job) {
    use partage::ErrorKind::OutOfMemory;
    let me = job.rank();
    for n in [usize::MAX, usize::MAX / 8, 1 << 44] {
        let e = job.alloc_slice::<u64>(n).unwrap_err();
        assert_eq!(e.kind(), OutOfMemory);
        assert!(e.to_string().starts_with(&format!("{me}: alloc_slice of ")), "{e}");
        let e = job.alloc_all::<u64>(n).unwrap_err();
        assert!(e.to_string().starts_with(&format!("{me}: alloc_all of ")), "{e}");
    }
    // Everything still works.
    let p = job.alloc_all::<u64>(1000).unwrap();
    p.on(job.neighbor(1)).add(999).put(job, 5);
    job.barrier();
    assert_eq!(p.add(999).get(job), 5);
    job.barrier();
    job.free_all(p);
}

fn pointers(job: &Job) {
    let p = job.alloc_slice::<u32>(100).unwrap();
    assert_eq!(p.add(7).offset_from(p), 7);
    assert_eq!(p.offset_from(p.add(7)), -7);
    assert_eq!(p.add(3).add(4), p.add(7));
    assert_ne!(p.on(job.neighbor(1)) == p, job.size() > 1);
    p.put_slice(job, &[0x0403_0201; 100]);
    assert_eq!(p.cast::<[u8; 4]>().add(5).get(job), 0x0403_0201u32.to_ne_bytes());
    assert_eq!(p.cast::<u64>().add(1).get(job), 0x0403_0201_0403_0201);
    let q = job.alloc(Particle { x: [1.0, 2.0, 3.0], id: 7, kind: [1, 2, 3, 4] }).unwrap();
    q.field::<u32>(std::mem::offset_of!(Particle, id)).put(job, 8);
    assert_eq!(q.get(job).id, 8);
    assert_eq!(q.field::<[f64; 3]>(0).get(job), [1.0, 2.0, 3.0]);
    assert!(GlobalPtr::<u8>::NULL.is_null() && !q.is_null());
    assert_eq!(format!("{:?}", GlobalPtr::<u8>::NULL), "null");
    assert!(format!("{q:?}").ends_with(&format!("@{}", job.rank().0)));
    job.free(q);
    job.free(p);
}

fn misuse(job: &Job) {
    let me = job.rank();
    let p = job.alloc_slice::<u64>(4).unwrap();
    let beyond = Rank(job.size() as u32);
    let refused = |what: &str, expect: &str, f: &dyn Fn()| {
        let text = refusal(what, f);
        assert!(text.starts_with(&format!("{me}: ")) && text.contains(expect), "{what}: {text:?}");
    };
    refused("rank", &format!("put: there is no {beyond} in a job of {}", job.size()), &|| p.on(beyond).put(job, 1));
    refused("huge rank", "get: there is no rank 1048575", &|| _ = p.on(Rank(u32::MAX)).get(job));
    refused("null", "get: the pointer is null", &|| _ = GlobalPtr::<u64>::NULL.get(job));
    refused("below", "put: 8 bytes at offset 0x8", &|| GlobalPtr::<u64>::NULL.add(1).put(job, 1));
    refused("end", "get: 8 bytes at offset", &|| _ = p.add(1 << 41).get(job));
    refused("far", "lie outside its segment", &|| _ = p.add(usize::MAX).get(job));

    // The last byte of a segment belongs to it, the next one does not; 2^44 bytes of segment there never are.
    let last = GlobalPtr::<u8>::NULL.on(me).add((1 << 44) - 1);
    refused("across the end", "put_slice: 2 bytes at offset", &|| last.put_slice(job, &[1, 2]));
    refused("alignment", "is not aligned for u64", &|| _ = p.cast::<u8>().add(1).cast::<u64>().get(job));
    refused("slice alignment", "is not aligned for u32", &|| {
        p.cast::<u8>().add(2).cast::<u32>().get_slice(job, &mut [0])
    });
    refused("free twice", "free: no allocation starts at", &|| job.free(p.add(1)));
    refused("free_all", "free_all: no allocation", &|| job.free_all(p));
    refused("distance", "distance: there is no", &|| _ = job.distance(beyond));
    // A split barrier that is not waited for: the next one says so, and the job goes on.
    let there = job.notify(None);
    refused("unwaited", "comes before the wait of the notify at", &|| job.barrier());
    there.wait(None);
    // A wrong value at the wait: this rank's own mistake.
    let there = job.notify(Some(5));
    let wrong = refusal("wrong value", || there.wait(Some(6)));
    assert!(wrong.contains("wait(6) ends a barrier that was notified with value 5"));
    // Nothing was harmed.
    p.put_slice(job, &[1, 2, 3, 4]);
    assert_eq!(p.add(3).get(job), 4);
    job.barrier();
    job.free(p);
}
