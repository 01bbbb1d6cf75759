//! Lanes of slots.

use crate::array::settled;
use crate::{Case, Random, are, bytes, mixed, plenty, refusal, value};
use partage::prelude::*;
use partage::wait::join_all;
use std::cell::RefCell;
use std::future::Future;
use std::mem::forget;
use std::pin::Pin;

/// The cases.
pub const CASES: [Case; 12] = [
    ("a token goes round over lanes of one slot", ring),
    ("lanes between all ranks carry everything, in order, at every depth", all_to_all),
    ("lanes: messages have the length that was put, from none to all", lengths),
    ("lanes: elements of every size and alignment arrive whole", types),
    ("lanes: messages longer than any buffer arrive whole", long),
    ("the k-th outbox and the k-th inbox are one lane, in whichever order they are made", pairs),
    ("lanes: what was written before a message is there with it", before),
    ("slots of lanes are tried, and had if there are some", tried),
    ("lanes are waited for in futures", futures),
    ("slots of lanes that are forgotten go back with the next", forgotten),
    ("ends of lanes are dropped at any time", dropped),
    ("mistakes with lanes are said", mistakes),
];

fn ring(job: &Job) {
    let (n, me) = (job.size() as u64, u64::from(job.rank().0));
    let mut to = job.outbox::<u64>(job.neighbor(1), 1, 1).unwrap();
    let mut from = job.inbox::<u64>(job.neighbor(-1), 1, 1).unwrap();
    for round in 0..plenty(job, 2000) as u64 {
        if me == 0 {
            to.put_signal(&[round]);
        }
        let token = from.wait()[0];
        match me {
            0 => assert_eq!(token, round + n * (n - 1) / 2),
            _ => to.put_signal(&[token + me]),
        }
    }
}

fn all_to_all(job: &Job) {
    let me = u64::from(job.rank().0);
    for depth in [1, 2, 3, 8] {
        let mut out: Vec<_> = job.ranks().map(|r| job.outbox::<[u64; 3]>(r, 2, depth).unwrap()).collect();
        let mut come: Vec<_> = job.ranks().map(|r| job.inbox::<[u64; 3]>(r, 2, depth).unwrap()).collect();
        for i in 0..plenty(job, 1000) as u64 {
            // As many at a time as there are slots: who only sends, and only then receives, finds room.
            for burst in 0..1 + i % depth as u64 {
                for to in &mut out {
                    let peer = u64::from(to.rank().0);
                    to.put_signal(&[[me, i, burst], [peer, i, mixed([me, peer, i, burst])]]);
                }
            }
            for burst in 0..1 + i % depth as u64 {
                for from in &mut come {
                    let peer = u64::from(from.rank().0);
                    let got = from.wait();
                    assert_eq!(*got, [[peer, i, burst], [me, i, mixed([peer, me, i, burst])]], "{}", job.rank());
                }
            }
        }
    }
}

fn lengths(job: &Job) {
    const LEN: usize = 100;
    for shift in [0, 1, job.size() as i64 / 2] {
        let mut to = job.outbox::<u8>(job.neighbor(shift), LEN, 4).unwrap();
        let mut from = job.inbox::<u8>(job.neighbor(-shift), LEN, 4).unwrap();
        for len in 0..=LEN {
            to.put_signal(&bytes(len as u64, len));
            let got = from.wait();
            assert!(got.len() == len && are(len as u64, &got), "{}: {len} bytes", job.rank());
        }
        assert_eq!((to.len(), to.depth(), from.len(), from.depth()), (LEN, 4, LEN, 4));
        job.barrier();
    }
    // A slot without elements is a signal.
    let mut to = job.outbox::<f64>(job.neighbor(1), 0, 3).unwrap();
    let mut from = job.inbox::<f64>(job.neighbor(-1), 0, 3).unwrap();
    for _ in 0..10 {
        to.put_signal(&[]);
        assert!(from.wait().is_empty());
    }
}

#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C, align(16))]
struct Sixteen([u64; 2]);

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C, align(256))]
struct Wide([u8; 256]);

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

fn of_type<T: Pod>(job: &Job, len: usize, depth: usize) {
    let mut to = job.outbox::<T>(job.neighbor(1), len, depth).unwrap();
    let mut from = job.inbox::<T>(job.neighbor(-1), len, depth).unwrap();
    for i in 0..3 * depth + 1 {
        let seed = |rank: Rank, k| mixed([u64::from(rank.0), i as u64, k as u64]);
        let src: Vec<T> = (0..len).map(|k| value(seed(job.rank(), k))).collect();
        to.put_signal(&src);
        let got = from.wait();
        assert!(got.len() == len && got.as_ptr().is_aligned());
        for (k, element) in got.iter().enumerate() {
            let right = are(seed(job.neighbor(-1), k), partage::bytemuck::bytes_of(element));
            assert!(right, "{}: element {k} of {}", job.rank(), std::any::type_name::<T>());
        }
    }
}

fn types(job: &Job) {
    for (len, depth) in [(1, 1), (7, 2), (33, 5)] {
        of_type::<u8>(job, len, depth);
        of_type::<u16>(job, len, depth);
        of_type::<[u8; 3]>(job, len, depth);
        of_type::<f64>(job, len, depth);
        of_type::<[u32; 5]>(job, len, depth);
        of_type::<Sixteen>(job, len, depth);
        of_type::<Wide>(job, len, depth);
        of_type::<()>(job, len, depth);
        of_type::<GlobalPtr<u8>>(job, len, depth);
    }
    of_type::<Page>(job, 2, 2);
}

fn long(job: &Job) {
    const LEN: usize = 300_001;
    let mut to = job.outbox::<u8>(job.neighbor(1), LEN, 2).unwrap();
    let mut from = job.inbox::<u8>(job.neighbor(-1), LEN, 2).unwrap();
    for (i, len) in [LEN, 65_536, 65_537, 200_000, LEN].into_iter().enumerate() {
        to.put_signal(&bytes(i as u64, len));
        let got = from.wait();
        assert!(got.len() == len && are(i as u64, &got), "{}: {len} bytes", job.rank());
    }
}

fn pairs(job: &Job) {
    let (me, there) = (u64::from(job.rank().0), job.neighbor(1));
    let from = job.neighbor(-1);
    const LANES: usize = 20;
    let mut random = Random::new(17 + me);
    // All of one kind, then all of the other, or mixed; each as it likes.
    let (mut out, mut come) = (vec![], vec![]);
    while out.len() < LANES || come.len() < LANES {
        if come.len() == LANES || (out.len() < LANES && random.below(2) == 0) {
            out.push(job.outbox::<u64>(there, 1, 1 + out.len() % 3).unwrap());
        } else {
            come.push(job.inbox::<u64>(from, 1, 1 + come.len() % 3).unwrap());
        }
    }
    out.iter_mut().enumerate().rev().for_each(|(k, to)| to.put_signal(&[mixed([me, k as u64])]));
    for (k, inbox) in come.iter_mut().enumerate() {
        assert_eq!(*inbox.wait(), [mixed([u64::from(from.0), k as u64])], "{}: lane {k}", job.rank());
        assert_eq!(inbox.rank(), from);
    }
}

/// Also what lies elsewhere: on the sender, on the receiver and, after a fence, on a third rank.
fn before(job: &Job) {
    let (n, me) = (job.size(), job.rank().index());
    let words = job.array::<u64>(Layout::per_rank(3)).unwrap();
    let mut to = job.outbox::<u8>(job.neighbor(1), 0, 1).unwrap();
    let mut from = job.inbox::<u8>(job.neighbor(-1), 0, 1).unwrap();
    let place = |rank: usize, of: usize| 3 * (rank % n) + of;
    for i in 1..=plenty(job, 500) as u64 {
        words.put(place(me, 0), i);
        words.put(place(me + 1, 1), i);
        words.put(place(me + 2, 2), i);
        job.fence();
        to.put_signal(&[]);
        drop(from.wait());
        let found = [place(me + n - 1, 0), place(me, 1), place(me + 1, 2)].map(|k| words.get(k));
        assert_eq!(found, [i; 3], "{}", job.rank());
        job.barrier();
    }
}

fn tried(job: &Job) {
    let mut to = job.outbox::<u64>(job.neighbor(1), 1, 3).unwrap();
    let mut from = job.inbox::<u64>(job.neighbor(-1), 1, 3).unwrap();
    assert!(from.try_wait().is_none());
    job.barrier();
    let (mut sent, mut got) = (0, 0);
    let times = plenty(job, 2000) as u64;
    while got < times {
        if sent < times && to.try_put_signal(&[sent]) {
            sent += 1;
        }
        if let Some(message) = from.try_wait() {
            assert_eq!(*message, [got], "{}", job.rank());
            got += 1;
        }
    }
    while sent < times {
        to.put_signal(&[sent]);
        sent += 1;
    }
    assert!(from.try_wait().is_none());
    job.barrier();
    // There is room for three, and not for a fourth. (That slots were given back may be told after a barrier, over a network.)
    (0..3).for_each(|i| to.put_signal(&[i]));
    assert!(!to.try_put_signal(&[3]));
    job.barrier();
    (0..3).for_each(|i| assert_eq!(*from.wait(), [i]));
    job.barrier();
}

fn futures(job: &Job) {
    let times = plenty(job, 500) as u64;
    let mut out: Vec<_> = job.ranks().map(|r| job.outbox::<u64>(r, 1, 2).unwrap()).collect();
    let mut come: Vec<_> = job.ranks().map(|r| job.inbox::<u64>(r, 1, 2).unwrap()).collect();
    let got = RefCell::new(0);
    let sends = out.iter_mut().map(|to| {
        Box::pin(async move {
            for i in 0..times {
                to.ready().await;
                to.put_signal(&[i]);
            }
        }) as Pin<Box<dyn Future<Output = ()> + '_>>
    });
    let receives = come.iter_mut().map(|from| {
        Box::pin(async {
            let from = from;
            for i in 0..times {
                assert_eq!(*from.arrived().await, [i]);
                *got.borrow_mut() += 1;
            }
        }) as Pin<Box<dyn Future<Output = ()> + '_>>
    });
    let all: Vec<_> = sends.chain(receives).collect();
    job.block_on(join_all(all));
    assert_eq!(got.into_inner(), times * job.size() as u64);
}

fn forgotten(job: &Job) {
    let mut to = job.outbox::<u64>(job.neighbor(1), 1, 4).unwrap();
    let mut from = job.inbox::<u64>(job.neighbor(-1), 1, 4).unwrap();
    for i in 0..40 {
        to.put_signal(&[i]);
        let got = from.wait();
        assert_eq!(*got, [i]);
        if i % 4 != 3 {
            forget(got);
        }
    }
    // Slots that go back to another node do so by a message, which a barrier may overtake.
    job.quiet();
    job.barrier();
    (0..4).for_each(|i| assert!(to.try_put_signal(&[i])));
    assert!(!to.try_put_signal(&[4]), "{}: all slots are full", job.rank());
    job.barrier();
    (0..4).for_each(|_| forget(from.wait()));
    // Nothing more has come, so all of them go back.
    assert!(from.try_wait().is_none());
    job.quiet();
    job.barrier();
    (0..4).for_each(|i| assert!(to.try_put_signal(&[i]), "{}: forgotten slots are given back", job.rank()));
    // Who forgets all slots and waits does not wait for good.
    let (mut to, mut from) = (None, None);
    match job.rank() {
        _ if job.size() == 1 => {}
        Rank(0) => to = Some(job.outbox::<u64>(Rank(job.size() as u32 - 1), 1, 1).unwrap()),
        Rank(r) if r as usize + 1 == job.size() => from = Some(job.inbox::<u64>(Rank(0), 1, 1).unwrap()),
        _ => {}
    }
    for i in 0..20 {
        to.iter_mut().for_each(|to| to.put_signal(&[i]));
        from.iter_mut().for_each(|from| forget(from.wait()));
    }
    job.barrier();
}

fn dropped(job: &Job) {
    let (me, before) = (job.rank(), settled(job));
    let (right, left) = (job.neighbor(1), job.neighbor(-1));
    let mut random = Random::new(3 + u64::from(me.0));
    for round in 0..30 {
        // Ends that are dropped before the other is made, or was used.
        drop(job.outbox::<u64>(right, 3, 2).unwrap());
        let unused = job.inbox::<u64>(left, 3, 2).unwrap();
        let mut to = job.outbox::<u64>(right, 1, 4).unwrap();
        let mut from = job.inbox::<u64>(left, 1, 4).unwrap();
        if random.below(2) == 0 {
            drop(unused);
        }
        // A receiver that goes while messages are under way, a sender that goes before they are taken.
        let takes = round % 4;
        (0..3).for_each(|i| to.put_signal(&[round + i]));
        drop(to);
        (0..takes).for_each(|i| assert_eq!(*from.wait(), [round + i], "{me}"));
        if random.below(2) == 0 {
            job.barrier();
        } else {
            drop(from);
            job.barrier();
        }
        assert!(job.allocated() < before + 100_000, "{me}: memory of lanes is used again");
    }
    assert_eq!(settled(job), before, "{me}: lanes leave nothing behind");
}

fn mistakes(job: &Job) {
    let (me, right, left) = (job.rank(), job.neighbor(1), job.neighbor(-1));
    let line = |what: &str, said: String, parts: &[&str]| {
        assert!(said.starts_with(&format!("{me}: ")) && !said.contains('\n'), "{what}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{what}: {said}"));
    };
    let nobody = Rank(job.size() as u32);
    line("no slots", refusal("no slots", || job.outbox::<u8>(right, 1, 0)), &["outbox", "depth is 1 at least"]);
    line("no slots", refusal("no slots", || job.inbox::<u8>(left, 1, 0)), &["inbox", "depth is 1 at least"]);
    line("nobody", refusal("nobody", || job.outbox::<u8>(nobody, 1, 1)), &["outbox", "there is no"]);
    line("nobody", refusal("nobody", || job.inbox::<u8>(nobody, 1, 1)), &["inbox", "there is no"]);
    for error in [
        job.outbox::<u64>(right, usize::MAX / 4, 1).map(drop).unwrap_err(),
        job.inbox::<u64>(left, 1 << 40, 1 << 20).map(drop).unwrap_err(),
        job.inbox::<u64>(left, 1 << 45, 1).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), partage::ErrorKind::OutOfMemory, "{error}");
    }
    let mut to = job.outbox::<u64>(right, 2, 1).unwrap();
    let mut from = job.inbox::<u64>(left, 2, 1).unwrap();
    let long = ["3 elements for a slot of 2"];
    line("long", refusal("long", || to.put_signal(&[1, 2, 3])), &["put_signal", long[0]]);
    line("long", refusal("long", || to.try_put_signal(&[1, 2, 3])), &["try_put_signal", long[0]]);
    to.put_signal(&[1]);
    assert_eq!(*from.wait(), [1]);
    job.barrier();
    // The receiver goes: what fits is taken, what does not is said.
    drop(from);
    job.quiet();
    job.barrier();
    to.put_signal(&[2]);
    let gone = ["has dropped its inbox at ", "slots.rs:", "slots are full"];
    line("gone", refusal("gone", || to.put_signal(&[3])), &[&gone[..], &["put_signal", &right.to_string()]].concat());
    line("gone", refusal("gone", || to.try_put_signal(&[3])), &gone);
    line("gone", refusal("gone", || job.block_on(to.ready())), &gone);
    // The sender goes: what it sent is received.
    let mut to = job.outbox::<u64>(right, 1, 2).unwrap();
    let mut from = job.inbox::<u64>(left, 1, 2).unwrap();
    to.put_signal(&[5]);
    drop(to);
    assert_eq!(*from.wait(), [5]);
    let gone = ["has dropped its outbox at ", "slots.rs:", "after 1 message,", &left.to_string()];
    line("gone", refusal("gone", || from.wait()[0]), &gone);
    line("gone", refusal("gone", || job.block_on(from.arrived())[0]), &gone);
    assert!(from.try_wait().is_none());
    job.barrier();
    // Ends that do not fit: whoever looks finds out.
    for case in 0..4 {
        let (mut to, mut come, mut as_bits) = (job.outbox::<f64>(right, 4, 2).unwrap(), None, None);
        match case {
            0 => come = Some(job.inbox::<f64>(left, 5, 2).unwrap()),
            1 => come = Some(job.inbox::<f64>(left, 4, 3).unwrap()),
            2 => as_bits = Some(job.inbox::<u64>(left, 4, 2).unwrap()),
            _ => come = Some(job.inbox::<f64>(left, 4, 2).unwrap()),
        }
        if case == 3 {
            to.put_signal(&[0.5]);
            assert_eq!(come.map(|mut from| from.wait()[0]), Some(0.5));
            break;
        }
        let fit = ["outbox at ", "inbox at ", "slots.rs:", "2 slots of 4 f64", "lane "];
        line("fit", refusal("fit", || to.put_signal(&[1.0])), &[&fit[..], &[&right.to_string()]].concat());
        let said = refusal("fit", || match (&mut come, &mut as_bits) {
            (Some(from), _) => from.wait().len(),
            (_, Some(from)) => from.wait().len(),
            _ => 0,
        });
        line("fit", said, &[&fit[..], &[&left.to_string()]].concat());
        job.barrier();
    }
    job.barrier();
}
