//! Mailboxes: what is sent is received once, whole, and in its sender's order.

use crate::{Case, mixed, plenty, refusal, value};
use partage::prelude::*;
use std::cell::RefCell;

/// The cases.
pub const CASES: [Case; 8] = [
    ("a mailbox receives each value once, in its sender's order", flood),
    ("everybody sends to everybody through full mailboxes", full),
    ("values of every size come whole through mailboxes", sizes),
    ("a mailbox that is full says no, and wakes who waits", tried),
    ("a mailbox is received from by futures, and sent to by called functions", futures),
    ("who waits for room in a mailbox may be called for a scope", scopes),
    ("what was written before a value was sent to a mailbox is there", ordered),
    ("mailboxes of the past are refused, and leave nothing behind", dropped),
];

/// All ranks' addresses of their mailboxes.
fn addresses<T: Pod>(job: &Job, mine: &Mailbox<T>) -> Vec<Address<T>> {
    let table = job.alloc_all::<Address<T>>(1).unwrap();
    table.put(job, mine.address());
    job.barrier();
    let all = job.ranks().map(|r| table.on(r).get(job)).collect();
    job.barrier();
    job.free_all(table);
    all
}

/// All ranks send to one, its owner too, which only receives when it has sent.
fn flood(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let times = plenty(job, 20_000);
    for (owner, capacity) in [(Rank(n as u32 - 1), 64), (Rank(0), 3), (Rank(n as u32 / 2), 1)] {
        let times = if capacity < 64 { times / 8 } else { times };
        let mailbox = job.mailbox::<[u64; 3]>(capacity).unwrap();
        assert_eq!(mailbox.capacity(), capacity.next_power_of_two());
        let to = addresses(job, &mailbox)[owner.index()];
        assert_eq!(to.rank(), owner);
        let send = |i: usize| {
            let head = [me.0.into(), i as u64];
            to.send(job, [head[0], head[1], mixed(head)]);
        };
        if me != owner {
            (0..times).for_each(send);
        } else {
            let (mut next, mut sent) = (vec![0; n], 0);
            for _ in 0..n * times {
                // It may not wait for room in its own.
                while sent < times && to.try_send(job, [me.0.into(), sent as u64, mixed([me.0.into(), sent as u64])]) {
                    sent += 1;
                }
                let (from, [source, i, sum]) = mailbox.receive();
                assert_eq!((u64::from(from.0), sum), (source, mixed([source, i])), "{me}: not what was sent");
                assert_eq!(i as usize, next[from.index()], "{me}: of {from}");
                next[from.index()] += 1;
            }
            assert!(sent == times && next.iter().all(|&n| n == times) && mailbox.is_empty());
        }
        job.barrier();
        assert!(mailbox.try_receive().is_none());
        job.barrier();
    }
}

/// Who waits for room receives too, through a thread of nobody: by sending only what has room and receiving otherwise.
fn full(job: &Job) {
    let (n, me, times) = (job.size(), job.rank(), plenty(job, 4000));
    let mailbox = job.mailbox::<u64>(2).unwrap();
    let all = addresses(job, &mailbox);
    let (mut sent, mut come, mut next) = (vec![0; n], 0, vec![0; n]);
    let pack = |from: Rank, i: usize| mixed([from.0.into(), i as u64]) << 32 | i as u64;
    let mut take = |come: &mut usize, (from, value): (Rank, u64)| {
        assert_eq!(value, pack(from, next[from.index()]), "{me}: of {from}");
        next[from.index()] += 1;
        *come += 1;
    };
    while sent.iter().sum::<usize>() < n * times || come < n * times {
        for to in 0..n {
            let to = (me.index() + to) % n;
            if sent[to] < times && all[to].try_send(job, pack(me, sent[to])) {
                sent[to] += 1;
            }
        }
        while let Some(received) = mailbox.try_receive() {
            take(&mut come, received);
        }
        if sent.iter().sum::<usize>() == n * times && come < n * times {
            take(&mut come, mailbox.receive());
        }
    }
    job.barrier();
    assert!(mailbox.is_empty());
    job.barrier();
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C, align(64))]
struct Aligned([u64; 8]);

fn sizes(job: &Job) {
    fn of<T: Pod>(job: &Job) {
        let mailbox = job.mailbox::<T>(4).unwrap();
        let (all, right) = (addresses(job, &mailbox), job.neighbor(1));
        let seed = |from: Rank, i: u64| mixed([from.0.into(), i, size_of::<T>() as u64]);
        for i in 0..10 {
            all[right.index()].send(job, value(seed(job.rank(), i)));
            let (from, got) = mailbox.receive();
            assert_eq!(from, job.neighbor(-1));
            let expected: T = value(seed(from, i));
            let [got, expected] = [&got, &expected].map(partage::bytemuck::bytes_of);
            assert!(got == expected, "{}: {} bytes", job.rank(), size_of::<T>());
        }
        job.barrier();
    }
    of::<()>(job);
    of::<u8>(job);
    of::<[u8; 47]>(job);
    of::<[u8; 48]>(job);
    of::<[u8; 49]>(job);
    of::<Aligned>(job);
    of::<[u64; 500]>(job);
    of::<[u8; 4096]>(job);
}

/// Everybody waits for room in one mailbox, whose owner comes late.
fn tried(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let mailbox = job.mailbox::<u64>(1).unwrap();
    let to = addresses(job, &mailbox)[0];
    let ready = job.alloc_all::<u64>(1).unwrap().on(Rank(0));
    if me.0 == 0 {
        assert!(to.try_send(job, 77) && !to.try_send(job, 78));
    }
    job.barrier();
    if me.0 != 0 {
        assert!(!to.try_send(job, 1), "{me}: there was room");
        ready.at(job).add(1);
        (0..5).for_each(|i| to.send(job, 10 * u64::from(me.0) + i));
    } else {
        job.wait_until(|| ready.get(job) as usize == n - 1);
        assert_eq!(mailbox.receive(), (me, 77));
        let mut next = vec![0; n];
        for _ in 0..5 * (n - 1) {
            let (from, value) = mailbox.receive();
            assert_eq!(value, 10 * u64::from(from.0) + next[from.index()]);
            next[from.index()] += 1;
        }
        assert!(mailbox.try_receive().is_none() && mailbox.is_empty());
    }
    job.barrier();
    job.free_all(ready.on(me));
}

fn futures(job: &Job) {
    let (n, me) = (job.size(), job.rank());
    let mailboxes = [job.mailbox::<u64>(n).unwrap(), job.mailbox::<u64>(n).unwrap()];
    let all = mailboxes.each_ref().map(|m| addresses(job, m));
    for to in job.ranks() {
        all[0][to.index()].send(job, 5);
        // From a function that runs elsewhere, in that rank's name.
        let there = all[1][me.index()];
        job.rpc(to, |job, to: Address<u64>| assert!(to.try_send(job, job.rank().0.into())), there).wait();
    }
    let both = async {
        let (mut sum, mut whose) = (0, vec![false; n]);
        for _ in 0..n {
            sum += mailboxes[0].received().await.1;
            let (from, value) = mailboxes[1].received().await;
            assert_eq!(u64::from(from.0), value);
            whose[from.index()] = true;
        }
        (sum, whose)
    };
    assert_eq!(job.block_on(both), (5 * n as u64, vec![true; n]));
    job.barrier();
}

/// Who waits for room runs calls, and these wait for what they have started; not for the room.
fn scopes(job: &Job) {
    let me = job.rank();
    let mailbox = job.mailbox::<u64>(1).unwrap();
    let word = job.alloc_all::<u64>(1).unwrap();
    for owner in job.ranks() {
        let to = addresses(job, &mailbox)[owner.index()];
        if me != owner {
            (0..3).for_each(|i| to.send(job, i));
        } else {
            for r in job.ranks().filter(|&r| r != me) {
                let puts = |job: &Job, to: GlobalPtr<u64>| {
                    let next = [to.get(job) + 1];
                    job.scope(|s| drop(s.put_ptr(to, &next)));
                };
                job.rpc(r, puts, word).wait();
            }
            let all: Vec<_> = (1..job.size()).flat_map(|_| 0..3).map(|_| mailbox.receive().1).collect();
            assert_eq!(all.iter().sum::<u64>(), 3 * (job.size() as u64 - 1));
            assert_eq!(word.get(job), job.size() as u64 - 1);
        }
        job.barrier();
    }
    job.free_all(word);
}

fn ordered(job: &Job) {
    let (me, times) = (job.rank(), plenty(job, 2000).min(300));
    let mailbox = job.mailbox::<GlobalPtr<u64>>(4).unwrap();
    let (all, right) = (addresses(job, &mailbox), job.neighbor(1));
    let words = job.alloc_all::<u64>(times).unwrap();
    for i in 0..times {
        let mine = words.add(i);
        mine.put(job, mixed([i as u64]));
        all[right.index()].send(job, mine);
        let (from, there) = mailbox.receive();
        assert_eq!((there.rank(), there.get(job)), (from, mixed([i as u64])), "{me}");
    }
    job.barrier();
    job.free_all(words);
}

fn dropped(job: &Job) {
    let (me, n) = (job.rank(), job.size());
    let right = job.neighbor(1).index();
    let mailbox = job.mailbox::<u64>(1).unwrap();
    let all = addresses(job, &mailbox);
    job.barrier();
    drop(mailbox);
    job.barrier();
    let said = refusal("a mailbox that was dropped", || all[right].send(job, 1));
    let there = all[right].rank();
    assert!(
        said.starts_with(&format!("{me}: send: mailbox ")) && said.contains(&format!("of {there} was dropped")),
        "{said}"
    );
    let said = refusal("the same", || all[right].try_send(job, 1));
    assert!(said.contains("try_send") && said.contains("was dropped"), "{said}");
    let said = refusal("null", || Address::NULL.send(job, 1u64));
    assert!(said.contains("send: the address is null"), "{said}");
    let forged = |bits: u64| partage::bytemuck::cast::<u64, Address<u64>>(bits);
    let said = refusal("no rank", || forged(u64::MAX).send(job, 1));
    assert!(said.contains("there is no rank 1048575 in a job of"), "{said}");
    let said = refusal("never", || forged((right as u64) << 44 | 9999 << 30 | 1).send(job, 1));
    assert!(said.contains("there never was such a mailbox"), "{said}");
    job.barrier();

    let mailbox = job.mailbox::<u64>(1).unwrap();
    let all = addresses(job, &mailbox);
    let other = partage::bytemuck::cast::<Address<u64>, Address<[u8; 7]>>(all[right]);
    let said = refusal("another type", || other.send(job, [0; 7]));
    assert!(said.contains("a value of 7 bytes, and mailbox ") && said.contains("is for values of 8"), "{said}");
    // A called function does not wait.
    let said = refusal("a call", || {
        job.rpc(Rank(right as u32), |job, to: Address<u64>| to.send(job, 1), all[me.index()]).wait()
    });
    assert!(said.contains("send in a function that was called"), "{said}");
    job.barrier();

    // All but the last wait for room in its mailbox, which it drops.
    let (owner, ready) = (n - 1, job.alloc_all::<u64>(1).unwrap().on(Rank(n as u32 - 1)));
    if me.index() == owner {
        all[owner].send(job, 1);
    }
    job.barrier();
    let mailbox = RefCell::new(Some(mailbox));
    if me.index() == owner {
        job.wait_until(|| ready.get(job) as usize == n - 1);
        mailbox.take();
    } else {
        ready.at(job).add(1);
        let said = refusal("there is no room", || all[owner].send(job, 2));
        assert!(said.contains("was dropped"), "{said}");
    }
    job.barrier();
    job.free_all(ready.on(me));
    drop(mailbox);
    // Their places and their memory are used again.
    let before = crate::array::settled(job);
    for _ in 0..20 {
        drop(job.mailbox::<[u64; 100]>(100).unwrap());
        job.barrier();
    }
    job.barrier();
    assert!(crate::array::settled(job) <= before, "{me}: memory of mailboxes of the past");
}
