//! What ranks tell each other in collectives: counts, letters, arrivals. Where they lie is [`crate::shm::coll`]'s business.
//!
//! A collective in flight has one of [`CONTEXTS`] *contexts*, or the one that is called [`HOME`], in which those are that follow one another. In each, a rank has for each other rank an [`Inlet`], to which only that
//! one writes: three counts of signals, one letter, which is a message that fits a cache line, and a claim. Nothing is ever reset: counts
//! grow, and letters are numbered.
//!
//! A *claim* says that a block goes from one rank to another, which does not know that: it is the number of the collective. It stays
//! until the other has taken it, so that a rank far ahead does not write over it.
//!
//! All ranks of a node share a [`Hall`] for each context: how often somebody has arrived, and how often all were released. One more is for barriers
//! of a team, at which members may come with a *tag*. Nobody comes to the next but one barrier before all have left this one, so tags are
//! counted for even and odd barriers apart: who leaves knows whether anybody had one.
//!
//! Who has done with a team for good says how far it came ([`Left`]): who waits for it in something later waits in vain.
//!
//! # Who may touch what
//! * A count has one writer. A letter's bytes are the writer's from when its reader has counted the letter before as taken until
//!   the number is stored, and the reader's from when it has seen the number until it counts.
//! * Arrivals are one number for all ranks, so it says something only if nobody arrives twice before all have once:
//!   who arrives for the n-th time knows that all have arrived n - 1 times.
//!
//! # Memory ordering
//! Storing a count or a number releases, looking at it acquires: what was written before a signal is there for who has seen it, and what was
//! read before a letter was counted as taken has been read when its place is written again. An arrival does both, so
//! that whoever sees all arrivals sees what all did before. Whoever has stored makes a light fence and looks at bells (see
//! [`crate::wait`]).

use crate::line;
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
use crate::sync::full_fence;
use crate::sync::{AtomicU64, Ordering::*, Plain, publish};
use bytemuck::{Pod, Zeroable};

/// How many collectives of a team may overlap.
pub const CONTEXTS: usize = 16;
/// The context of those that do not, after the others. It has no letters, and no scratch.
pub const HOME: usize = CONTEXTS;
/// Words of a letter.
pub const WORDS: usize = 7;
/// Bytes of a letter.
pub const LETTER: usize = 8 * WORDS;

/// A number that grows, with one writer.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Count(AtomicU64);

impl Count {
    /// What it is.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Makes it larger. Whoever called this makes a light fence before it looks at the reader's bell.
    #[inline(always)]
    pub fn set(&self, to: u64) {
        self.0.store(to, Release);
    }

    /// Makes it larger, after which there is a light fence: whoever called this may look at the reader's bell.
    #[inline(always)]
    pub fn raise(&self, to: u64) {
        publish(&self.0, to);
    }
}

/// A message and its number, in one line.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Letter {
    /// Which one it is, from 1.
    pub number: Count,
    words: [Plain; WORDS],
}

impl Letter {
    /// Where its words begin.
    #[cfg(not(loom))]
    pub const WORDS_AT: usize = std::mem::offset_of!(Letter, words);

    /// Writes it; the reader's bell may be looked at then. The one before has been taken.
    #[inline(always)]
    pub fn write(&self, words: &[u64], number: u64) {
        self.words.iter().zip(words).for_each(|(to, &word)| to.set(word));
        self.number.raise(number);
    }

    /// The same of one of several, after all of which there is to be a light fence.
    #[inline(always)]
    pub fn write_quietly(&self, words: &[u64], number: u64) {
        self.words.iter().zip(words).for_each(|(to, &word)| to.set(word));
        self.number.set(number);
    }

    /// Reads it. Its number was seen.
    #[inline(always)]
    pub fn read(&self, words: &mut [u64]) {
        self.words.iter().zip(words).for_each(|(from, word)| *word = from.get());
    }
}

/// What one rank tells another in one context.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Told {
    /// The letter.
    pub letter: Letter,
    /// Counts of signals, by kind.
    pub signals: Signals,
}

/// Counts of the three kinds of signals, claims, and, of the first context, what a member leaves with, in one line.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Signals(pub [Count; 3], pub Claims, pub Left);

/// What a member leaves a team with: nothing until it does.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
pub struct Left {
    /// How many collectives it has begun, and one.
    pub epochs: Count,
    /// How many barriers it has come to, and one.
    pub barriers: Count,
    /// One: nothing of it is under way any more.
    pub gone: Count,
}

/// Numbers of collectives in which a block goes to a rank that does not know from where.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
pub struct Claims {
    /// The last one in which it goes to the reader.
    pub made: Count,
    /// The last one of the reader's that was taken.
    pub taken: Count,
}

/// How many members have left: what who waits looks at, before it looks who they are. Counted after the words of [`Left`].
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Leavers(AtomicU64);

impl Leavers {
    /// One more. There is a full fence after it.
    pub fn add(&self) {
        self.0.fetch_add(1, AcqRel);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        full_fence();
    }

    /// Are there any?
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.0.load(Acquire) > 0
    }
}

/// What one rank tells another.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Inlet {
    /// How many letters of the other were taken, by context. All are in two lines, which the other seldom looks at.
    pub taken: [Count; CONTEXTS],
    /// By context.
    pub told: [Told; CONTEXTS + 1],
}

/// What a rank tells another of a collective that it has entered, when ranks compare theirs. It is written over when that rank is far
/// ahead, so whoever reads it must be able to tell whether it is whole: the words have to say it.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Sign([Word; SIGN]);

/// Words of a sign.
pub const SIGN: usize = 16;

/// A word that is read while it is written.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
struct Word(AtomicU64);

impl Sign {
    /// Writes it.
    pub fn write(&self, words: &[u64; SIGN]) {
        self.0.iter().zip(words).for_each(|(to, &word)| to.0.store(word, Release));
    }

    /// Reads what is there.
    pub fn read(&self) -> [u64; SIGN] {
        std::array::from_fn(|i| self.0[i].0.load(Acquire))
    }
}

/// Something in lines of its own.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Apart<T>(pub T);

/// Where the ranks of a node meet in one context.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
pub struct Hall {
    all: Apart<Arrivals>,
    /// Of the ranks of this node only, where there are others.
    here: Apart<Arrivals>,
    released: Apart<Count>,
    /// How many of the lists of work of all collectives here were taken.
    claimed: Apart<AtomicU64>,
    /// Of those who came with values, to even and to odd barriers: all, and those of this node.
    values: [Apart<[Values; 2]>; 2],
}

/// The sums of values, as [`Sums`] has them.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
struct Values([AtomicU64; SUMS]);

/// Words of sums.
const SUMS: usize = 7;
/// Bits of a value of which there is a sum, and one of squares: of a million values neither is too long for a word.
const PART: u32 = 22;

/// Of some values how many there are, and of either third of their bits the sum and that of the squares: enough to tell whether they are
/// all the same, and which. Sums can be added in any order, and those of what came before are subtracted: nobody resets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Sums([u64; SUMS]);

impl Sums {
    /// Of one value.
    pub fn of(value: u64) -> Sums {
        let [a, b, c] = [0, 1, 2].map(|i| value >> (i * PART) & ((1 << PART) - 1));
        Sums([1, a, b, c, a * a, b * b, c * c])
    }

    /// Of how many.
    pub fn count(&self) -> u64 {
        self.0[0]
    }

    /// Of those that are not among `before`.
    pub fn since(self, before: Sums) -> Sums {
        Sums(std::array::from_fn(|i| self.0[i].wrapping_sub(before.0[i])))
    }

    /// The value that all of them are, if there are any and they are the same: by the inequality of Cauchy and Schwarz.
    pub fn same(&self) -> Option<u64> {
        let [n, parts @ ..] = self.0;
        let is_same = |i: usize| u128::from(n) * u128::from(parts[3 + i]) == u128::from(parts[i]).pow(2);
        (n > 0 && (0..3).all(is_same)).then(|| (0..3).map(|i| (parts[i] / n) << (i as u32 * PART)).sum())
    }
}

/// How many came to some barriers with tags: with values, and with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    /// What is not told by a sum.
    pub others: u64,
    /// The values.
    pub values: Sums,
}

impl Tags {
    /// Of those that are not among `before`.
    pub fn since(self, before: Tags) -> Tags {
        Tags { others: self.others.wrapping_sub(before.others), values: self.values.since(before.values) }
    }

    /// Are there any?
    pub fn any(&self) -> bool {
        self.others > 0 || self.values.count() > 0
    }
}

/// How many there were, and how many with tags, at even and at odd barriers.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
struct Arrivals {
    count: AtomicU64,
    /// Where other nodes tell of theirs, by even and odd barriers.
    told: [AtomicU64; 2],
    tags: [AtomicU64; 2],
}

impl Hall {
    /// `n` arrivals more; how many there were before. There is a full fence after it.
    #[inline(always)]
    pub fn arrive(&self, n: u64) -> u64 {
        let before = self.all.0.count.fetch_add(n, AcqRel);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        full_fence();
        before
    }

    /// `n` arrivals more at even or odd barriers, of a whole node, in any order: a node that is ahead by one barrier is not counted for this one.
    /// There is a full fence after it.
    pub fn arrive_at(&self, odd: bool, n: u64) {
        self.all.0.told[usize::from(odd)].fetch_add(n, AcqRel);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        full_fence();
    }

    /// How many of those there were.
    pub fn arrivals_at(&self, odd: bool) -> u64 {
        self.all.0.told[usize::from(odd)].load(Acquire)
    }

    /// Others arrive next.
    #[inline(always)]
    pub fn hand_on(&self) {
        line::hand_on(&raw const self.all);
    }

    /// An arrival of a rank of this node, of which others are told when all its ranks have; how many there were before.
    pub fn arrive_here(&self) -> u64 {
        self.here.0.count.fetch_add(1, AcqRel)
    }

    /// Those who arrive next at an even or odd barrier have these.
    pub fn tag(&self, odd: bool, tags: Tags) {
        self.add(0, odd, tags);
    }

    /// One of this node has, of which others are told when all its ranks have arrived.
    pub fn tag_here(&self, odd: bool, tags: Tags) {
        self.add(1, odd, tags);
    }

    fn add(&self, which: usize, odd: bool, tags: Tags) {
        let odd = usize::from(odd);
        if tags.others > 0 {
            [&self.all, &self.here][which].0.tags[odd].fetch_add(tags.others, Relaxed);
        }
        if tags.values.count() > 0 {
            let sums = &self.values[which].0[odd].0;
            sums.iter().zip(tags.values.0).for_each(|(sum, n)| _ = sum.fetch_add(n, Relaxed));
        }
    }

    /// What there was at even or odd barriers, and of this node's. Who has seen all arrive sees theirs.
    pub fn tags(&self, odd: bool) -> [Tags; 2] {
        let odd = usize::from(odd);
        [(&self.all, &self.values[0]), (&self.here, &self.values[1])].map(|(arrivals, values)| Tags {
            others: arrivals.0.tags[odd].load(Relaxed),
            values: Sums(std::array::from_fn(|i| values.0[odd].0[i].load(Relaxed))),
        })
    }

    /// How many arrivals there were.
    #[inline(always)]
    pub fn arrivals(&self) -> u64 {
        self.all.0.count.load(Acquire)
    }

    /// Releases all for the n-th time. There is a light fence after it.
    #[inline(always)]
    pub fn release(&self, n: u64) {
        self.released.0.raise(n);
    }

    /// Takes the next of the lists of work that are numbered from `first` to before `end`, if one is left; its number.
    pub fn claim(&self, first: u64, end: u64) -> Option<u64> {
        // One who comes late finds that others have gone on with what follows.
        let next = |n: u64| (n < end).then_some(n + 1);
        let taken = self.claimed.0.fetch_update(AcqRel, Relaxed, next).ok();
        debug_assert!(taken.is_none_or(|n| n >= first), "lists before these were all taken");
        taken
    }

    /// How often all were released.
    #[inline(always)]
    pub fn released(&self) -> u64 {
        self.released.0.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_apart() {
        assert_eq!((size_of::<Letter>(), size_of::<Signals>(), size_of::<Told>()), (64, 64, 128));
        assert_eq!((size_of::<Inlet>(), size_of::<Hall>()), (128 + 128 * (CONTEXTS + 1), 768));
    }

    #[test]
    fn sums_say_whether_all_are_the_same() {
        let sum = |values: &[u64]| {
            let words = values.iter().map(|&v| Sums::of(v).0);
            Sums(words.fold([0; SUMS], |all, one| std::array::from_fn(|i| all[i].wrapping_add(one[i]))))
        };
        for v in [0, 1, 7, u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef] {
            for n in [1, 2, 3, 1000] {
                assert_eq!(sum(&vec![v; n]).same(), Some(v), "{n} of {v}");
            }
            for bit in 0..64 {
                assert_eq!(sum(&[v, v ^ 1 << bit, v]).same(), None);
            }
        }
        assert_eq!((sum(&[]).same(), sum(&[1, 3, 2, 2]).same()), (None, None));
        let before = sum(&[5, u64::MAX]);
        assert_eq!(sum(&[5, u64::MAX, 9, 9]).since(before), sum(&[9, 9]));
        // A million of the largest.
        let [n, parts @ ..] = Sums::of(u64::MAX).0;
        let million: Vec<u64> = [n].into_iter().chain(parts).map(|word| word.checked_mul(1 << 20).unwrap()).collect();
        assert_eq!(Sums(million.try_into().unwrap()).same(), Some(u64::MAX));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::wait::models::Sleeper;
    use loom::sync::Arc;

    #[derive(Default)]
    struct Two {
        letter: Letter,
        taken: Count,
        hall: Hall,
        sleepers: [Sleeper; 2],
        data: [Plain; 2],
    }

    /// As deep as time allows; `LOOM_MAX_PREEMPTIONS` goes deeper.
    fn bounded(f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(f);
    }

    /// Two letters to one place, each read before the next is written; either side may sleep.
    #[test]
    fn loom_letters_are_read_before_they_are_written_again() {
        bounded(|| {
            let all = Arc::new(Two::default());
            let reader = all.clone();
            let thread = loom::thread::spawn(move || {
                for n in 1..=2 {
                    reader.sleepers[1].until(|| reader.letter.number.get() >= n);
                    let mut words = [0];
                    reader.letter.read(&mut words);
                    assert_eq!(words, [10 + n]);
                    reader.taken.raise(n);
                    reader.sleepers[0].bell.ring_after_fence();
                }
            });
            for n in 1..=2 {
                all.sleepers[0].until(|| all.taken.get() >= n - 1);
                all.letter.write(&[10 + n], n);
                all.sleepers[1].bell.ring_after_fence();
            }
            thread.join().unwrap();
        });
    }

    /// The last to arrive touches what both wrote, and releases; who was released touches it again.
    #[test]
    fn loom_the_last_to_arrive_has_it_all() {
        bounded(|| {
            let all = Arc::new(Two::default());
            let run = |all: &Two, me: usize| {
                all.data[me].set(1);
                if all.hall.arrive(1) == 1 {
                    let sum = all.data[0].get() + all.data[1].get();
                    assert_eq!(sum, 2);
                    all.data.iter().for_each(|d| d.set(sum));
                    all.hall.release(1);
                    all.sleepers.iter().for_each(|s| s.bell.ring_after_fence());
                } else {
                    all.sleepers[me].until(|| all.hall.released() >= 1);
                }
                assert_eq!(all.data[me].get(), 2);
            };
            let other = all.clone();
            let thread = loom::thread::spawn(move || run(&other, 1));
            run(&all, 0);
            thread.join().unwrap();
        });
    }

    /// Of three barriers one member comes to the second with a tag: each that leaves knows at which there was one, however far the other is.
    #[test]
    fn loom_who_leaves_knows_of_tags() {
        bounded(|| {
            let all = Arc::new(Two::default());
            let run = |all: &Two, me: usize| {
                let mut seen = [Tags::default(); 2];
                let tags = Tags { others: 1, values: Sums::of(5) };
                for nth in 0..3 {
                    let odd = nth % 2 == 1;
                    if me == 1 && nth == 1 {
                        all.hall.tag(odd, tags);
                    }
                    all.hall.arrive(1);
                    all.sleepers[1 - me].bell.ring_after_fence();
                    all.sleepers[me].until(|| all.hall.arrivals() >= 2 * (nth + 1));
                    let now = all.hall.tags(odd)[0];
                    let expected = if nth == 1 { tags } else { Tags::default() };
                    assert_eq!(now.since(seen[usize::from(odd)]), expected);
                    seen[usize::from(odd)] = now;
                }
            };
            let other = all.clone();
            let thread = loom::thread::spawn(move || run(&other, 1));
            run(&all, 0);
            thread.join().unwrap();
        });
    }

    /// Another node came to a barrier with a value, and is one ahead; two threads of this one's process take what it told, in any order. Who leaves
    /// knows of the value.
    #[test]
    fn loom_a_node_that_is_ahead_is_not_counted_for_this_barrier() {
        bounded(|| {
            let all = Arc::new(Two::default());
            let tags = Tags { others: 0, values: Sums::of(5) };
            let threads = [Some(tags), None].map(|tags| {
                let all = all.clone();
                loom::thread::spawn(move || {
                    tags.into_iter().for_each(|tags| all.hall.tag(false, tags));
                    all.hall.arrive_at(tags.is_none(), 1);
                    all.sleepers[0].bell.ring_after_fence();
                })
            });
            all.hall.arrive_at(false, 1);
            all.sleepers[0].until(|| all.hall.arrivals_at(false) >= 2);
            assert_eq!(all.hall.tags(false)[0], tags);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Two collectives in one context, in which a block goes to a rank that does not know it: it hears of both, however far the other is
    /// ahead, and sees what was done before each claim.
    #[test]
    fn loom_claims_stay_until_they_were_taken() {
        bounded(|| {
            let all = Arc::new((
                Claims::default(),
                Claims::default(),
                [Sleeper::default(), Sleeper::default()],
                Plain::default(),
            ));
            let other = all.clone();
            let thread = loom::thread::spawn(move || {
                let (to_reader, to_writer, sleepers, data) = &*other;
                for n in 1..=2 {
                    sleepers[1].until(|| to_reader.made.get() == n);
                    assert_eq!(data.get(), n);
                    to_writer.taken.raise(n);
                    sleepers[0].bell.ring_after_fence();
                }
            });
            let (to_reader, to_writer, sleepers, data) = &*all;
            for n in 1..=2 {
                sleepers[0].until(|| to_writer.taken.get() >= n - 1);
                data.set(n);
                to_reader.made.raise(n);
                sleepers[1].bell.ring_after_fence();
            }
            thread.join().unwrap();
        });
    }

    /// Who has seen that a member has left has seen what it signaled before.
    #[test]
    fn loom_who_leaves_has_signaled() {
        bounded(|| {
            let all = Arc::new((Count::default(), Left::default(), Leavers::default(), Sleeper::default()));
            let other = all.clone();
            let thread = loom::thread::spawn(move || {
                let (signal, left, leavers, reader) = &*other;
                signal.raise(1);
                reader.bell.ring_after_fence();
                left.epochs.set(1);
                leavers.add();
                reader.bell.ring_after_fence();
            });
            let (signal, left, leavers, reader) = &*all;
            reader.until(|| signal.get() > 0 || leavers.any());
            assert!(!leavers.any() || (left.epochs.get() == 1 && signal.get() == 1));
            thread.join().unwrap();
        });
    }

    /// What was done before arriving is there for who has seen that all have arrived.
    #[test]
    fn loom_who_meets_sees_what_all_did() {
        bounded(|| {
            let all = Arc::new(Two::default());
            let run = |all: &Two, me: usize| {
                all.data[me].set(5);
                all.hall.arrive(1);
                all.sleepers[1 - me].bell.ring_after_fence();
                all.sleepers[me].until(|| all.hall.arrivals() >= 2);
                assert_eq!(all.data[1 - me].get(), 5);
            };
            let other = all.clone();
            let thread = loom::thread::spawn(move || run(&other, 1));
            run(&all, 0);
            thread.join().unwrap();
        });
    }
}
