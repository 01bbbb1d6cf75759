//! Active messages: each case is a plain program over the public API that asserts what it expects. A handler
//! that finds something wrong panics, which ends the job.

use crate::{Case, Random, are, bytes, fill, mixed, plenty, refusal, soak, some_ranks, value};
use partage::am::{Landed, LongRequest, MEDIUM, Reply, Request, Target, Token};
use partage::bytemuck::{bytes_of, cast};
use partage::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// All of them.
pub const CASES: [Case; 19] = [
    ("every size of arguments and payloads arrives and is answered", sizes),
    ("every rank reaches every rank and is answered", everyone),
    ("a handler works in the memory of its rank", targets),
    ("a long message lies in open memory before its handler runs", longs),
    ("all flood one rank with short messages", short_floods),
    ("all flood one rank with medium messages", medium_floods),
    ("all flood one rank with messages of every length", mixed_floods),
    ("all flood one rank with long messages", long_floods),
    ("all flood all", floods_of_all),
    ("all flood a rank that computes", flood_against_computation),
    ("requests in floods are answered once each", answered_floods),
    ("messages are taken in the order in which they were sent", order),
    ("quiet waits for everything that I sent", quiet),
    ("a wait for a condition sees what handlers and others do", wait_until),
    ("a handler that takes its time holds up nothing for good", slow_handlers),
    ("the way that was asked for is the way that is taken", ways),
    ("messages are counted", counts),
    ("wrong messages are refused on the rank that sends them", misuse),
    ("random messages arrive", |job| soak::messages(job, Duration::from_millis(100), 7)),
];

/// Collective: the handlers of all cases, and of the traffic.
pub fn register(job: &Job) {
    register_kinds(job);
    job.register_handlers(&[&WORK, &WORKED]);
    job.register_handlers(&[&LONG_BYTES, &LONG_WORDS, &LONG_ODD, &LANDED]);
    job.register_handlers(&[]);
    job.register_handlers(&[&FLOOD, &LONG_FLOOD, &ASK_BACK, &ANSWERED, &IN_ORDER]);
    job.register_handlers(&[&ADD]);
    job.register_handlers(&[&ADD_SLOWLY]);
    soak::register(job);
}

/// Collective: the same, but in another order and not all of them.
pub fn register_otherwise(job: &Job) {
    job.register_handlers(&[&ANSWERED, &ASK_BACK, &FLOOD]);
    register_kinds(job);
}

/// Where a case's handlers find its open memory. It is at one offset on all ranks, so one word in a static is right for
/// every rank of a process.
struct Board(AtomicU64);

impl Board {
    const fn new() -> Board {
        Board(AtomicU64::new(0))
    }

    /// Collective. My part of it; it is known to all handlers when this returns.
    fn alloc(&self, job: &Job, n: usize) -> GlobalPtr<u64> {
        let mine = job.alloc_all::<u64>(n).unwrap();
        self.0.store(cast(mine.on(Rank(0))), Relaxed);
        job.barrier();
        mine
    }

    fn of(&self, rank: Rank) -> GlobalPtr<u64> {
        cast::<u64, GlobalPtr<u64>>(self.0.load(Relaxed)).on(rank)
    }
}

/// Payloads around everything that might be a boundary: words, cache lines, pages, the largest.
const LENGTHS: [usize; 46] = [
    0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 39, 40, 41, 47, 48, 49, 55, 56, 57, 63, 64, 65, 127, 128,
    129, 4000, 4032, 4040, 4064, 4087, 4088, 4089, 4095, 4096, 4097, 4104, 4160, 4300, 65_535, 65_536,
];

/// The length of the answer to a message of this length: another one of them.
fn length_of_answer(len: usize) -> usize {
    let place = LENGTHS.iter().position(|l| *l == len).expect("a length that was sent");
    LENGTHS[(place + 1) % LENGTHS.len()]
}

/// What everything in a message follows from.
fn seed(kind: u64, from: Rank, to: Rank, len: usize) -> u64 {
    mixed([kind, from.0.into(), to.0.into(), len as u64])
}

/// The parts of a row of the board, for each pair of ranks: of the requests the number and the sum of their lengths, each
/// and one, and of the replies too.
const REQUESTS: usize = 0;
const REQUESTS_SUM: usize = 1;
const REPLIES: usize = 2;
const REPLIES_SUM: usize = 3;
static SIZES: Board = Board::new();

/// What a handler checks of arguments and payload, whatever their sizes.
fn check<A: Pod>(what: &str, kind: u64, from: Rank, target: &Target<'_>, args: A, payload: &[u8]) {
    let (me, len) = (target.rank(), payload.len());
    let seed = seed(kind, from, me, len);
    assert!(are(!seed, bytes_of(&args)), "{what} {from} to {me}: {} bytes of arguments", size_of::<A>());
    assert!(are(seed, payload), "{what} {from} to {me}: {len} bytes of payload");
    assert!(len == 0 || payload.as_ptr().addr().is_multiple_of(8), "{what}: payload at {:p}", payload.as_ptr());
}

fn on_request<A: Pod>(
    kind: u64,
    reply: &'static Reply<A>,
    token: Token<'_>,
    target: &Target<'_>,
    args: A,
    payload: &[u8],
) {
    let (from, me) = (token.source(), target.rank());
    check("request", kind, from, target, args, payload);
    let row = SIZES.of(me).add(4 * from.index());
    target.at(row.add(REQUESTS)).fetch_add(1);
    target.at(row.add(REQUESTS_SUM)).fetch_add(payload.len() as u64 + 1);
    let len = length_of_answer(payload.len());
    let seed = seed(kind, me, from, len);
    let shift = len % 5;
    let mut text = vec![0; len + shift];
    fill(seed, &mut text[shift..]);
    token.reply(reply, value::<A>(!seed), &text[shift..]);
}

fn on_reply<A: Pod>(kind: u64, target: &Target<'_>, from: Rank, args: A, payload: &[u8]) {
    check("reply", kind, from, target, args, payload);
    let row = SIZES.of(target.rank()).add(4 * from.index());
    target.at(row.add(REPLIES)).fetch_add(1);
    target.at(row.add(REPLIES_SUM)).fetch_add(payload.len() as u64 + 1);
}

/// Sends messages of these lengths to a rank.
type Ask = fn(&Job, Rank, &[usize]);

/// For every type of arguments a request, its reply, and how to send it.
macro_rules! kinds {
    ($($name:ident = $number:literal: $A:ty,)*) => {
        $(mod $name {
            use super::*;
            pub static REQUEST: Request<$A> = Request::new(|token, target, args, payload| {
                on_request($number, &REPLY, token, target, args, payload)
            });
            pub static REPLY: Reply<$A> = Reply::new(|target, from, args, payload| {
                on_reply($number, target, from, args, payload)
            });
            pub fn ask(job: &Job, to: Rank, lengths: &[usize]) {
                for (i, &len) in lengths.iter().enumerate() {
                    let seed = seed($number, job.rank(), to, len);
                    // Wherever the sender has it.
                    let mut text = vec![0; len + 8];
                    let payload = &mut text[i % 8..][..len];
                    fill(seed, payload);
                    job.am(to, &REQUEST, value::<$A>(!seed), payload);
                }
            }
        })*
        const KINDS: &[Ask] = &[$($name::ask,)*];
        fn register_kinds(job: &Job) {
            job.register_handlers(&[$(&$name::REQUEST, &$name::REPLY,)*]);
        }
    };
}

kinds! {
    nothing = 1: (),
    one_byte = 2: u8,
    three_bytes = 3: [u8; 3],
    five_words_of_two = 4: [u16; 5],
    a_word = 5: u64,
    three_words_of_four = 6: [u32; 3],
    thirty_nine_bytes = 7: [u8; 39],
    five_words = 8: [u64; 5],
    forty_one_bytes = 9: [u8; 41],
    forty_seven_bytes = 10: [u8; 47],
    six_words = 11: [u64; 6],
    forty_nine_bytes = 12: [u8; 49],
    fifty_six_bytes = 13: [u8; 56],
    fifty_seven_bytes = 14: [u8; 57],
    sixty_three_bytes = 15: [u8; 63],
    eight_words = 16: [u64; 8],
}

/// Sends all these lengths with all kinds of arguments to all these ranks and checks that all has been run and answered
/// when `quiet` returns: no barrier is needed for that.
fn ask_all(job: &Job, board: GlobalPtr<u64>, to: &[Rank], kinds: &[Ask], lengths: &[usize]) {
    let me = job.rank();
    // Others count there meanwhile.
    let row = |owner: Rank, of: Rank| -> [u64; 4] {
        std::array::from_fn(|i| board.on(owner).add(4 * of.index() + i).at(job).load())
    };
    let before: Vec<_> = to.iter().map(|&r| (row(r, me), row(me, r))).collect();
    for kind in kinds {
        to.iter().for_each(|&r| kind(job, r, lengths));
    }
    job.quiet();
    let count = (kinds.len() * lengths.len()) as u64;
    let sum = |length: fn(usize) -> usize| -> u64 {
        kinds.len() as u64 * lengths.iter().map(|&l| length(l) as u64 + 1).sum::<u64>()
    };
    for (&r, (there, here)) in to.iter().zip(before) {
        let now = row(r, me);
        let came = (now[REQUESTS] - there[REQUESTS], now[REQUESTS_SUM] - there[REQUESTS_SUM]);
        assert_eq!(came, (count, sum(|l| l)), "{me}: requests at {r}");
        let now = row(me, r);
        let came = (now[REPLIES] - here[REPLIES], now[REPLIES_SUM] - here[REPLIES_SUM]);
        assert_eq!(came, (count, sum(length_of_answer)), "{me}: replies of {r}");
    }
}

fn sizes(job: &Job) {
    let board = SIZES.alloc(job, 4 * job.size());
    let some = some_ranks(job);
    let short = LENGTHS.partition_point(|&l| l <= 129);
    ask_all(job, board, &some, KINDS, &LENGTHS[..short]);
    let page = LENGTHS.partition_point(|&l| l < 10_000);
    ask_all(job, board, &some, &[nothing::ask, a_word::ask, forty_one_bytes::ask], &LENGTHS[short..page]);
    ask_all(job, board, &some, &[nothing::ask, eight_words::ask], &LENGTHS[page..]);
    job.barrier();
    job.free_all(board);
}

fn everyone(job: &Job) {
    let board = SIZES.alloc(job, 4 * job.size());
    let all: Vec<Rank> = job.ranks().collect();
    for _ in 0..2 {
        ask_all(job, board, &all, &[nothing::ask, forty_nine_bytes::ask, six_words::ask], &[0, 1, 17, 64, 4096]);
    }
    job.barrier();
    // What others have sent to me has arrived too.
    let sums: u64 = 2 * 3 * [0u64, 1, 17, 64, 4096].iter().map(|l| l + 1).sum::<u64>();
    for r in job.ranks() {
        let mut row = [0; 2];
        board.add(4 * r.index()).get_slice(job, &mut row);
        assert_eq!(row, [2 * 3 * 5, sums], "what {r} sent to {}", job.rank());
    }
    job.barrier();
    job.free_all(board);
}

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Work {
    /// Sixteen words: eight are read, eight are written.
    words: GlobalPtr<u64>,
    /// Where the sum goes, here and at the one who asked.
    sum: GlobalPtr<u64>,
    answer: GlobalPtr<[u32; 3]>,
    odd: GlobalPtr<[u8; 3]>,
    factor: u32,
    asked: Rank,
}

static WORK: Request<Work> = Request::new(|token, target, work, payload| {
    assert_eq!(token.source(), work.asked);
    assert_eq!(work.words.rank(), target.rank());
    let mut read = [0; 8];
    target.get_slice(work.words, &mut read);
    assert_eq!(target.get(work.words.add(7)), read[7]);
    let written = read.map(|v| v * u64::from(work.factor));
    target.put_slice(work.words.add(8), &written);
    target.put(work.odd, [1, 2, payload.len() as u8]);
    assert_eq!(target.get(work.odd), [1, 2, payload.len() as u8]);
    target.get_slice(work.words, &mut []);
    target.put_slice(work.words.add(16), &[]);
    let sum = written.iter().sum();
    target.at(work.sum).store(sum);
    assert_eq!(target.at(work.sum).load(), sum);
    token.reply(
        &WORKED,
        Worked { answer: work.answer, values: [sum as u32, work.factor, target.rank().0], pad: 0 },
        &[],
    );
});

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Worked {
    answer: GlobalPtr<[u32; 3]>,
    values: [u32; 3],
    pad: u32,
}

static WORKED: Reply<Worked> = Reply::new(|target, from, worked, payload| {
    assert!(payload.is_empty());
    assert_eq!(worked.values[2], from.0);
    target.put(worked.answer, worked.values);
});

fn targets(job: &Job) {
    let (me, n) = (job.rank().index(), job.size());
    // A row of every asker's own on every rank.
    let words = job.alloc_all::<u64>(16 * n).unwrap();
    let sums = job.alloc_all::<u64>(n).unwrap();
    let odd = job.alloc_all::<[u8; 3]>(n).unwrap();
    let answers = job.alloc_slice::<[u32; 3]>(n).unwrap();
    for round in 1..=5u32 {
        for r in job.ranks() {
            let mine = words.on(r).add(16 * me);
            mine.put_slice(job, &[1, 2, 3, 4, 5, 6, 7, u64::from(r.0)]);
            job.quiet();
            let work = Work {
                words: mine,
                sum: sums.on(r).add(me),
                answer: answers.add(r.index()),
                odd: odd.on(r).add(me),
                factor: round,
                asked: job.rank(),
            };
            job.am(r, &WORK, work, &bytes(1, round as usize));
        }
        job.quiet();
        for r in job.ranks() {
            let sum = u64::from(round) * (28 + u64::from(r.0));
            assert_eq!(answers.add(r.index()).get(job), [sum as u32, round, r.0]);
            assert_eq!(sums.on(r).add(me).get(job), sum);
            assert_eq!(odd.on(r).add(me).get(job), [1, 2, round as u8]);
            let mut written = [0; 8];
            words.on(r).add(16 * me + 8).get_slice(job, &mut written);
            assert_eq!(written, [1, 2, 3, 4, 5, 6, 7, u64::from(r.0)].map(|v| v * u64::from(round)));
        }
    }
    job.barrier();
    job.free(answers);
    job.free_all(odd);
    job.free_all(sums);
    job.free_all(words);
}

/// What comes with a long message: what it is and where to count it.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Parcel {
    at: GlobalPtr<u8>,
    len: u64,
    seed: u64,
    count: GlobalPtr<u64>,
    back: GlobalPtr<u64>,
}

fn landed<T: Pod>(token: Token<'_>, target: &Target<'_>, parcel: Parcel, landed: Landed<'_, T>) {
    assert_eq!(landed.ptr(), parcel.at.cast::<T>());
    assert_eq!(landed.ptr().rank(), target.rank());
    assert_eq!(landed.len() as u64, parcel.len);
    assert_eq!(landed.is_empty(), parcel.len == 0);
    let all = landed.to_vec();
    let (from, me) = (token.source(), target.rank());
    assert!(are(parcel.seed, partage::bytemuck::cast_slice(&all)), "{} values of {from} at {me}", parcel.len);
    for i in [0, landed.len() / 3, landed.len().wrapping_sub(1)] {
        if i < landed.len() {
            assert_eq!(bytes_of(&landed.get(i)), bytes_of(&all[i]));
        }
    }
    target.at(parcel.count).fetch_add(1);
    token.reply(&LANDED, parcel, &[]);
}

static LANDED: Reply<Parcel> = Reply::new(|target, from, parcel, payload| {
    assert_eq!((parcel.at.rank(), payload.len()), (from, 0));
    target.at(parcel.back).fetch_add(1);
});
static LONG_BYTES: LongRequest<Parcel, u8> = LongRequest::new(landed::<u8>);
static LONG_WORDS: LongRequest<Parcel, u64> = LongRequest::new(landed::<u64>);
static LONG_ODD: LongRequest<Parcel, [u8; 3]> = LongRequest::new(landed::<[u8; 3]>);

fn longs(job: &Job) {
    let (me, n) = (job.rank().index(), job.size());
    const STRIPE: usize = 80 << 10;
    const BIG: usize = (3 << 20) + 8;
    let stripes = job.alloc_all::<u8>(STRIPE * n).unwrap();
    let big = job.alloc_all::<u8>(BIG).unwrap();
    // Of every rank how many have come to me from it, and how many answers.
    let counts = job.alloc_all::<u64>(n).unwrap();
    let back = job.alloc(0u64).unwrap();
    let mut sent = 0;
    let mut send = |at: GlobalPtr<u8>, bytes_long: usize, which: usize| {
        let seed = mixed([me as u64, at.rank().0.into(), bytes_long as u64]);
        let size = [1, 8, 3][which];
        let len = (bytes_long / size) as u64;
        let parcel = Parcel { at, len, seed, count: counts.on(at.rank()).add(me), back };
        let text = bytes(seed, len as usize * size);
        match which {
            0 => job.am_long(at, &text, &LONG_BYTES, parcel),
            1 => {
                let mut words = vec![0u64; len as usize];
                partage::bytemuck::cast_slice_mut(&mut words).copy_from_slice(&text);
                job.am_long(at.cast::<u64>(), &words, &LONG_WORDS, parcel);
            }
            _ => job.am_long(at.cast(), partage::bytemuck::cast_slice::<u8, [u8; 3]>(&text), &LONG_ODD, parcel),
        }
        sent += 1;
    };
    // In my stripe on each rank, one after the other, each where nothing else is in flight.
    let mut expected = vec![0u64; n];
    for &r in &some_ranks(job) {
        let mut start = 0;
        for (i, len) in [0, 1, 7, 8, 9, 40, 63, 64, 65, 333, 4096, 4097, 65_535].into_iter().enumerate() {
            let which = i % 3;
            // At every alignment for bytes.
            let at = start + if which == 0 { i % 8 } else { 0 };
            send(stripes.on(r).add(me * STRIPE + at), len, which);
            expected[r.index()] += 1;
            start += (len + 16).next_multiple_of(8);
        }
        assert!(start <= STRIPE);
    }
    job.quiet();
    // More than a mebibyte, at the right neighbour: its block is mine.
    let lengths = [(65_536, 0), (65_537, 0), (1 << 20, 1), ((1 << 20) + 3, 0), (3 << 20, 2), (3 << 20, 1)];
    let some = if job.size() <= 3 || me == 1 { 6 } else { 3 };
    for (len, which) in lengths.into_iter().take(some) {
        send(big.on(job.neighbor(1)), len, which);
        expected[job.neighbor(1).index()] += 1;
        job.quiet();
        // It stays there.
        let seed = mixed([me as u64, job.neighbor(1).0.into(), len as u64]);
        let mut got = vec![0; len / [1, 8, 3][which] * [1, 8, 3][which]];
        big.on(job.neighbor(1)).get_slice(job, &mut got);
        assert!(are(seed, &got), "{len} bytes");
    }
    // Into memory that one rank has allocated for itself and told to me.
    let post = job.alloc_all::<GlobalPtr<u8>>(1).unwrap();
    let private = job.alloc_slice::<u8>(10_000).unwrap();
    post.on(job.neighbor(1)).put(job, private);
    job.barrier();
    let told = post.get(job);
    send(told, 10_000, 0);
    expected[told.rank().index()] += 1;
    job.quiet();
    assert_eq!(back.get(job), sent, "{}: answers", job.rank());
    for r in job.ranks() {
        assert_eq!(counts.on(r).add(me).get(job), expected[r.index()], "from {me} to {r}");
    }
    job.barrier();
    job.free(private);
    job.free(back);
    job.free_all(post);
    job.free_all(counts);
    job.free_all(big);
    job.free_all(stripes);
}

/// What every message of a flood carries. Its bit is set when it has come; the row is its sender's.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Numbered {
    number: u64,
    check: u64,
    row: GlobalPtr<u64>,
}

impl Numbered {
    fn new(job: &Job, number: usize, row: GlobalPtr<u64>) -> Numbered {
        let check = mixed([job.rank().0.into(), row.rank().0.into(), number as u64]);
        Numbered { number: number as u64, check, row }
    }

    /// It is whole, for this rank, and comes for the first time.
    fn mark(&self, from: Rank, target: &Target<'_>) {
        let me = target.rank();
        assert_eq!(self.row.rank(), me, "a message for {} came to {me}", self.row.rank());
        assert_eq!(self.check, mixed([from.0.into(), me.0.into(), self.number]), "message {} of {from}", self.number);
        let bit = 1 << (self.number % 64);
        let before = target.at(self.row.add(self.number as usize / 64)).fetch_or(bit);
        assert_eq!(before & bit, 0, "message {} of {from} came to {me} twice", self.number);
    }
}

static FLOOD: Request<Numbered> = Request::new(|token, target, message, payload| {
    assert!(are(message.check, payload), "{} bytes of message {} of {}", payload.len(), message.number, token.source());
    message.mark(token.source(), target);
});
static LONG_FLOOD: LongRequest<Numbered, u8> = LongRequest::new(|token, target, message, landed| {
    let (len, from) = (landed.len(), token.source());
    assert!(are(message.check, &landed.to_vec()), "{len} bytes of message {} of {from}", message.number);
    message.mark(from, target);
});
static ASK_BACK: Request<[Numbered; 2]> = Request::new(|token, target, [there, back], payload| {
    let from = token.source();
    assert!(are(there.check, payload), "{} bytes of message {} of {from}", payload.len(), there.number);
    there.mark(from, target);
    let answer = Numbered { check: mixed([target.rank().0.into(), from.0.into(), back.number]), ..back };
    token.reply(&ANSWERED, answer, payload);
});
static ANSWERED: Reply<Numbered> = Reply::new(|target, from, answer, payload| {
    // The payload is that of the question.
    let asked = mixed([target.rank().0.into(), from.0.into(), answer.number]);
    assert!(are(asked, payload), "{} bytes of answer {} of {from}", payload.len(), answer.number);
    answer.mark(from, target);
});

/// Rows of bits, one for every sender on every rank.
#[derive(Clone, Copy)]
struct Marks {
    all: GlobalPtr<u64>,
    words: usize,
}

impl Marks {
    fn alloc(job: &Job, each: usize) -> Marks {
        let words = each.div_ceil(64);
        Marks { all: job.alloc_all::<u64>(words * job.size()).unwrap(), words }
    }

    fn row(&self, on: Rank, from: Rank) -> GlobalPtr<u64> {
        self.all.on(on).add(from.index() * self.words)
    }

    /// The first `count` have come, and no others.
    fn assert(&self, job: &Job, on: Rank, from: Rank, count: usize) {
        let mut row = vec![0u64; self.words];
        self.row(on, from).get_slice(job, &mut row);
        let whole = |word: usize| match count.saturating_sub(64 * word) {
            0 => 0,
            n if n < 64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        for (i, word) in row.iter().enumerate() {
            assert_eq!(*word, whole(i), "of messages {} on, from {from}, these came to {on}", 64 * i);
        }
    }

    fn free(self, job: &Job) {
        job.free_all(self.all);
    }
}

/// How long a message is.
type Length = fn(&mut Random) -> usize;

fn short(_: &mut Random) -> usize {
    0
}

fn medium(random: &mut Random) -> usize {
    match random.below(200) {
        0 => 1 + random.below(MEDIUM),
        1..20 => 1 + random.below(5000),
        _ => 1 + random.below(200),
    }
}

fn any(random: &mut Random) -> usize {
    match random.below(3) {
        0 => medium(random),
        _ => 0,
    }
}

/// Sends these messages, without a pause and without any other call.
fn flood(job: &Job, to: Rank, marks: Marks, numbers: Range<usize>, length: Length) {
    let mut random = Random::new(mixed([job.rank().0.into(), to.0.into(), numbers.start as u64]));
    let mut payload = vec![];
    for number in numbers {
        let message = Numbered::new(job, number, marks.row(to, job.rank()));
        payload.resize(length(&mut random), 0);
        fill(message.check, &mut payload);
        job.am(to, &FLOOD, message, &payload);
    }
}

/// All flood one: first the first rank, then the last. Who waits for others does so in a barrier.
fn floods(job: &Job, each: usize, length: Length) {
    let me = job.rank();
    for victim in [Rank(0), job.neighbor(-1 - i64::from(me.0))] {
        let marks = Marks::alloc(job, each);
        flood(job, victim, marks, 0..each, length);
        job.quiet();
        marks.assert(job, victim, me, each);
        job.barrier();
        if me == victim {
            job.ranks().for_each(|r| marks.assert(job, me, r, each));
        }
        job.barrier();
        marks.free(job);
        // And while the one does nothing but wait.
        let marks = Marks::alloc(job, each);
        if me != victim {
            flood(job, victim, marks, 0..each, length);
        }
        job.quiet();
        job.barrier();
        if me == victim {
            job.ranks().for_each(|r| marks.assert(job, me, r, if r == me { 0 } else { each }));
        }
        job.barrier();
        marks.free(job);
    }
}

fn short_floods(job: &Job) {
    floods(job, plenty(job, 2_000_000), short);
}

fn medium_floods(job: &Job) {
    floods(job, plenty(job, 60_000), medium);
}

fn mixed_floods(job: &Job) {
    floods(job, plenty(job, 200_000), any);
}

fn long_floods(job: &Job) {
    const SLOT: usize = 8 << 10;
    const SLOTS: usize = 16;
    let me = job.rank();
    let each = plenty(job, 100_000);
    let marks = Marks::alloc(job, each);
    let slots = job.alloc_all::<u8>(SLOT * SLOTS * job.size()).unwrap();
    let victim = Rank(job.size() as u32 / 2);
    let mut random = Random::new(me.0.into());
    let mut text = vec![0; SLOT];
    for number in 0..each {
        // What is in flight has its place to itself.
        if number % SLOTS == 0 {
            job.quiet();
        }
        let message = Numbered::new(job, number, marks.row(victim, me));
        let long = if random.below(10) == 0 { SLOT } else { 100 };
        let payload = &mut text[..random.below(long + 1)];
        fill(message.check, payload);
        let slot = slots.on(victim).add((me.index() * SLOTS + number % SLOTS) * SLOT);
        job.am_long(slot, payload, &LONG_FLOOD, message);
    }
    job.quiet();
    marks.assert(job, victim, me, each);
    job.barrier();
    if me == victim {
        job.ranks().for_each(|r| marks.assert(job, me, r, each));
    }
    job.barrier();
    job.free_all(slots);
    marks.free(job);
}

fn floods_of_all(job: &Job) {
    let me = job.rank();
    for (of_all, length) in [(1_000_000, short as Length), (200_000, any)] {
        let each = plenty(job, of_all).div_ceil(job.size());
        let marks = Marks::alloc(job, each);
        // Turn by turn, then one victim after the other, which all begin with the same.
        let half = each / 2;
        let mut begun = vec![0; job.size()];
        for number in 0..half {
            for r in job.ranks() {
                flood(job, r, marks, number..number + 1, length);
                begun[r.index()] += 1;
            }
        }
        for r in job.ranks() {
            flood(job, r, marks, begun[r.index()]..each, length);
        }
        job.quiet();
        job.ranks().for_each(|r| marks.assert(job, r, me, each));
        job.barrier();
        job.ranks().for_each(|r| marks.assert(job, me, r, each));
        job.barrier();
        marks.free(job);
    }
}

/// Computes, without any call, for this long.
pub(crate) fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box((0..1000u64).fold(0, |a, b| a ^ b));
    }
}

fn flood_against_computation(job: &Job) {
    let me = job.rank();
    let victim = Rank(job.size() as u32 / 2);
    let each = plenty(job, 400_000);
    let marks = Marks::alloc(job, each);
    if me == victim {
        compute(Duration::from_millis(200));
    } else {
        flood(job, victim, marks, 0..each / 2, short);
        flood(job, victim, marks, each / 2..each, any);
        job.quiet();
        marks.assert(job, victim, me, each);
    }
    job.barrier();
    if me == victim {
        job.ranks().for_each(|r| marks.assert(job, me, r, if r == me { 0 } else { each }));
    }
    job.barrier();
    marks.free(job);
}

fn answered_floods(job: &Job) {
    let me = job.rank();
    for (of_all, length) in [(300_000, short as Length), (100_000, any)] {
        let each = plenty(job, of_all).div_ceil(job.size());
        let there = Marks::alloc(job, each);
        let back = Marks::alloc(job, each);
        let mut random = Random::new(me.0.into());
        let mut text = vec![0; MEDIUM];
        for number in 0..each {
            for r in job.ranks() {
                let question = Numbered::new(job, number, there.row(r, me));
                let payload = &mut text[..length(&mut random)];
                fill(question.check, payload);
                let answer = Numbered { number: number as u64, check: 0, row: back.row(me, r) };
                job.am(r, &ASK_BACK, [question, answer], payload);
            }
        }
        job.quiet();
        for r in job.ranks() {
            there.assert(job, r, me, each);
            back.assert(job, me, r, each);
        }
        job.barrier();
        back.free(job);
        there.free(job);
    }
}

static IN_ORDER: Request<Numbered> = Request::new(|token, target, message, _| {
    let (from, me) = (token.source(), target.rank());
    let before = target.at(message.row).swap(message.number);
    assert_eq!(before + 1, message.number, "from {from} to {me}");
});

/// Handlers overlap where a process has several threads, or where a network brings messages; else order is seen.
fn order(job: &Job) {
    let me = job.rank();
    let last = job.alloc_all::<u64>(job.size()).unwrap();
    let alone = job.alloc_all::<u8>(1).unwrap();
    alone.put(job, job.ranks().all(|r| job.distance(r) != Distance::Process).into());
    job.barrier();
    let targets: Vec<Rank> = job.ranks().filter(|r| job.same_node(*r) && alone.on(*r).get(job) == 1).collect();
    let mut random = Random::new(me.0.into());
    let text = vec![0; 6000];
    for number in 1..=plenty(job, 100_000) as u64 {
        for &r in &targets {
            let message = Numbered { number, check: 0, row: last.on(r).add(me.index()) };
            let long = [0, 0, 100, 6000][random.below(4)];
            job.am(r, &IN_ORDER, message, &text[..random.below(long + 1)]);
        }
    }
    job.quiet();
    job.barrier();
    job.free_all(alone);
    job.free_all(last);
}

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
pub(crate) struct Add {
    pub to: GlobalPtr<u64>,
    pub n: u64,
}

/// Adds to one word of its rank.
pub(crate) static ADD: Request<Add> = Request::new(|_, target, add, _| _ = target.at(add.to).fetch_add(add.n));
/// The same, but not soon.
static ADD_SLOWLY: Request<GlobalPtr<u64>> = Request::new(|_, target, p, _| {
    compute(Duration::from_millis(2));
    target.at(p).fetch_add(1);
});

fn quiet(job: &Job) {
    let (me, n) = (job.rank().index(), job.size());
    // Nothing is under way: nothing to wait for, however often one asks.
    (0..1000).for_each(|_| job.quiet());
    let cells = job.alloc_all::<u64>(2 * n).unwrap();
    let mut sent = vec![0; n];
    let mut random = Random::new(me as u64);
    for round in 0..plenty(job, 20_000) as u64 {
        for _ in 0..random.below(20) {
            let r = random.below(n);
            let cell = cells.on(Rank(r as u32)).add(me);
            job.am(cell.rank(), &ADD, Add { to: cell, n: round }, &[]);
            sent[r] += round;
        }
        let r = random.below(n);
        cells.on(Rank(r as u32)).add(n + me).put(job, round + 1);
        job.quiet();
        // Mine have run; nobody else writes there.
        assert_eq!(cells.on(Rank(r as u32)).add(n + me).get(job), round + 1);
        let r = random.below(n);
        assert_eq!(cells.on(Rank(r as u32)).add(me).get(job), sent[r], "{me} to {r}, round {round}");
    }
    for (r, sent) in sent.iter().enumerate() {
        assert_eq!(cells.on(Rank(r as u32)).add(me).get(job), *sent);
    }
    job.barrier();
    job.free_all(cells);
}

fn wait_until(job: &Job) {
    let n = job.size() as u64;
    let cells = job.alloc_all::<u64>(2).unwrap();
    job.wait_until(|| true);
    for round in 1..=5 {
        // What a handler does here.
        for r in job.ranks() {
            job.am(r, &ADD, Add { to: cells.on(r), n: 1 }, &[]);
        }
        job.wait_until(|| cells.at(job).load() >= round * n);
        // What another rank puts here, which is not served by anybody.
        cells.on(job.neighbor(1)).add(1).put(job, round);
        job.wait_until(|| cells.add(1).get(job) == round);
        job.barrier();
    }
    assert_eq!(cells.get(job), 5 * n);
    job.barrier();
    job.free_all(cells);
}

fn slow_handlers(job: &Job) {
    let count = job.alloc_all::<u64>(1).unwrap();
    for _ in 0..3 {
        job.am(job.neighbor(1), &ADD_SLOWLY, count.on(job.neighbor(1)), &[]);
        job.am(Rank(0), &ADD_SLOWLY, count.on(Rank(0)), &[]);
    }
    job.quiet();
    job.barrier();
    let all = if job.rank().0 == 0 { 3 * job.size() as u64 + 3 } else { 3 };
    assert_eq!(count.get(job), all);
    job.barrier();
    job.free_all(count);
}

/// Were messages asked for instead of shared memory?
pub fn reference() -> bool {
    std::env::var("PARTAGE_REFERENCE").is_ok_and(|value| value == "1")
}

fn ways(job: &Job) {
    let row = job.alloc_all::<u64>(100).unwrap();
    let there = row.on(job.neighbor(1));
    let before = job.counters();
    let mut got = vec![0; 100];
    there.put(job, 5);
    assert_eq!(there.get(job), 5);
    there.put_slice(job, &[6; 100]);
    there.get_slice(job, &mut got);
    assert_eq!(there.at(job).fetch_add(1), 6);
    assert!(got.iter().all(|&v| v == 6));
    assert_eq!(there.get(job), 7);
    let now = job.counters();
    let [puts, gets, atomics] = [
        now.reference_puts - before.reference_puts,
        now.reference_gets - before.reference_gets,
        now.reference_atomics - before.reference_atomics,
    ];
    let far = [now.far_puts - before.far_puts, now.far_gets - before.far_gets];
    let is_far = job.distance(there.rank()) == Distance::Far && !reference();
    assert_eq!(far, if is_far { [2, 3] } else { [0, 0] }, "puts and gets by the network");
    if reference() && job.size() > 1 {
        // A put of 800 bytes may be more than one message.
        assert!(puts >= 2 && gets >= 3 && atomics >= 1, "{puts} puts, {gets} gets, {atomics} atomics by messages");
    } else if !reference() {
        assert_eq!([puts, gets, atomics], [0; 3], "by messages, which nobody asked for");
        let all = [now.reference_puts, now.reference_gets, now.reference_atomics];
        assert_eq!(all, [0; 3], "by messages, which nobody asked for");
    }
    job.barrier();
    job.free_all(row);
}

fn counts(job: &Job) {
    let cells = job.alloc_all::<u64>(1).unwrap();
    let before = job.counters();
    // By how far they go: to this process, to others of this node, to other nodes.
    let mut wanted = [0; 3];
    for r in job.ranks() {
        for _ in 0..10 {
            job.am(r, &ADD, Add { to: cells.on(r), n: 1 }, &[]);
            wanted[match job.distance(r) {
                Distance::Me | Distance::Process => 0,
                Distance::Node => 1,
                Distance::Far => 2,
            }] += 1;
        }
    }
    job.quiet();
    let now = job.counters();
    let sent = [now.in_line - before.in_line, now.queued - before.queued, now.far - before.far];
    assert!(sent.iter().zip(wanted).all(|(sent, wanted)| *sent >= wanted), "{sent:?} were sent, {wanted:?} wanted");
    if job.ranks().all(|r| job.same_node(r)) {
        assert_eq!((now.far, now.far_puts, now.far_gets), (0, 0, 0), "over the network, on one node");
    }
    job.barrier();
    let before = job.counters();
    job.barrier();
    let sum: u64 = job.ranks().map(|r| job.rpc(r, |_, n: u64| n + 1, 1).wait()).sum();
    assert_eq!(sum, 2 * job.size() as u64);
    job.barrier();
    // One of every rank, perhaps without my own.
    let served = job.counters().served - before.served;
    assert!(served + 1 >= job.size() as u64, "{served} calls were served");
    assert_eq!(cells.get(job), 10 * job.size() as u64);
    job.barrier();
    job.free_all(cells);
}

static NEVER_REGISTERED: Request<u64> = Request::new(|_, _, _, _| panic!("a handler that is not registered has run"));
static NEVER_LONG: LongRequest<u64, u64> =
    LongRequest::new(|_, _, _, _| panic!("a handler that is not registered has run"));

fn misuse(job: &Job) {
    let me = job.rank();
    let beyond = Rank(job.size() as u32);
    let to = job.neighbor(1);
    let cell = job.alloc_all::<u64>(2).unwrap();
    let refused = |what: &str, expect: &[&str], f: &dyn Fn()| {
        let text = refusal(what, f);
        assert!(text.starts_with(&format!("{me}: ")), "{what}: {text:?}");
        expect.iter().for_each(|part| assert!(text.contains(part), "{what}: `{part}` is not in {text:?}"));
    };
    let nobody = format!("am: there is no {beyond} in a job of {}", job.size());
    let message = Numbered::new(job, 0, cell.on(to));
    refused("rank", &[&nobody], &|| job.am(beyond, &FLOOD, message, &[]));
    refused("huge rank", &["am: there is no rank "], &|| job.am(Rank(u32::MAX), &FLOOD, message, &[1]));
    for len in [MEDIUM + 1, MEDIUM + 8, 1 << 20] {
        for r in [me, to] {
            refused("payload", &["am: ", &len.to_string()], &|| job.am(r, &FLOOD, message, &vec![0; len]));
        }
    }
    for r in [me, to] {
        refused("unregistered", &["am: ", "register"], &|| job.am(r, &NEVER_REGISTERED, 1, &[]));
        let there = cell.on(r);
        refused("unregistered", &["am_long: ", "register"], &|| job.am_long(there, &[1], &NEVER_LONG, 1));
    }
    let long = |at: GlobalPtr<u8>, len: usize| job.am_long(at, &vec![0; len], &LONG_FLOOD, message);
    let bytes = cell.cast::<u8>();
    refused("long rank", &["am_long: there is no ", "in a job of"], &|| long(bytes.on(beyond), 1));
    refused("null", &["am_long: the pointer is null"], &|| long(GlobalPtr::NULL, 1));
    refused("far", &["am_long: ", "lie outside its segment"], &|| long(bytes.on(to).add(usize::MAX), 100));
    refused("alignment", &["am_long: ", "is not aligned for u64"], &|| {
        let parcel = Parcel { at: bytes, len: 1, seed: 0, count: cell, back: cell };
        job.am_long(bytes.add(4).cast::<u64>(), &[1], &LONG_WORDS, parcel)
    });
    let place = |p: GlobalPtr<u64>| _ = p.at(job).fetch_add(1);
    refused("atomic rank", &["there is no ", "in a job of"], &|| place(cell.on(beyond)));
    refused("atomic null", &["the pointer is null"], &|| place(GlobalPtr::NULL));
    refused("atomic far", &["lie outside its segment"], &|| place(cell.on(to).add(1 << 41)));
    refused("atomic alignment", &["is not aligned for u64"], &|| place(bytes.on(to).add(4).cast()));
    // Nothing was harmed, and nothing of all that was sent.
    job.quiet();
    job.barrier();
    assert_eq!([cell.get(job), cell.add(1).get(job)], [0; 2]);
    job.barrier();
    job.am(to, &FLOOD, message, &crate::bytes(message.check, MEDIUM));
    job.quiet();
    assert_eq!(cell.on(to).get(job), 1);
    job.barrier();
    job.free_all(cell);
}
