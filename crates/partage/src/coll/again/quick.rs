//! The steps of a call that looks like one before, resolved: addresses in place of spans, words together that can be, and hints about cache lines.
//!
//! # Lines on their way
//! Of a call of a few words most time is that in which lines go from core to core. Where two ranks have cores of their own it is told as soon as it is known which
//! lines will be wanted, by hints ([`partage_conduit::line`]) that change nothing but when they come:
//! * each of them may be the last to arrive, so both ask for what the last touches before they arrive;
//! * who is not the last hands on the line in which others arrive, and its own that the last will touch;
//! * who has to wait before it touches lines asks for them before it waits, and those that it will write to, if its calls come in the order of the last time, at the end of
//!   the call before: roots that change take them from each other (calls by letters are not counted among those: to follow what comes after them would take them longer);
//! * who writes or reads a letter asks for the line of its next one at the end of the call. (Sooner, while it waits for the other's, is later: it is one more
//!   line on its way at the same time.) Who finds that a letter has come before is behind, so later ones may have come, too: it asks for one of those.

use super::super::engine::{Base, Engine};
use super::super::reduce::{Combine, Elements};
use crate::job::Inner;
use partage_conduit::coll::LETTER;
use partage_conduit::contract::At;
use partage_conduit::copy;
use partage_conduit::line;
use partage_conduit::wait::Cores;
use partage_plan::coll::{Buffer, Plan, Posting, Signal, Span, Step, Totals};

/// Of more bytes at a time, or more that are combined, a call takes a task, which is then worth it.
const SHORT: usize = 16 << 10;
const FEW: usize = 1 << 10;
/// So many lines are worth to be asked for.
const ASKED: usize = 32;
/// So many words are combined at a time.
const FOLDED: usize = 32;
/// So many words are carried at a time.
const TOGETHER: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    /// In the source (0) or destination (1), memory of this rank's own whose address each call has.
    In(usize, usize),
    /// In an array, which stays where it is. Others may touch it, though a right program does not.
    Fixed(*mut u8),
    /// In scratch of that member, which has another place in each context. Others may touch it, as a plan says.
    Scratch(usize, usize),
}

#[derive(Debug)]
pub(super) enum Op {
    /// Of so many bytes, as the others; of letters, no more than they have.
    Copy {
        src: Place,
        dst: Place,
        len: usize,
    },
    /// A word of an array: from where, and to where.
    Word(*mut u8, *mut u8),
    /// Several: from where, and to where, none of which is one from where.
    Words(Box<[(*mut u8, *mut u8)]>),
    /// To the memory of another, which is told.
    Put {
        to: usize,
        src: Place,
        dst: Place,
        len: usize,
    },
    Combine {
        src: Place,
        dst: Place,
        len: usize,
        before: bool,
    },
    /// A word of each of several.
    Fold(Box<Fold>),
    Send {
        to: usize,
        src: Place,
        len: usize,
    },
    /// Posts a letter; if it is the last, bells are looked at.
    Post {
        line: usize,
        src: Place,
        len: usize,
        is_last: bool,
    },
    Read {
        from: usize,
        line: usize,
        dst: Place,
        len: usize,
    },
    ReadCombine {
        from: usize,
        line: usize,
        dst: Place,
        len: usize,
        before: bool,
    },
    Take {
        from: usize,
        dst: Place,
        len: usize,
    },
    TakeCombine {
        from: usize,
        dst: Place,
        len: usize,
        before: bool,
    },
    Signal {
        to: usize,
        signal: Signal,
    },
    Wait {
        from: usize,
        signal: Signal,
        n: u64,
    },
    /// Arrives; if it is not the last, so many steps are left out.
    Last {
        steps: usize,
    },
    Arrive,
    Meet {
        n: u64,
    },
    Release,
    Released,
    /// What follows is for who is not the last.
    Else,
    /// Asks for lines, before it is waited for what allows to touch them.
    Ask(Lines),
    /// Another is going to arrive in the hall, and to want these lines of this rank's.
    HandOn(Box<[*const u8]>),
}

/// The steps of a plan, resolved.
#[derive(Debug)]
pub(in super::super) struct Quick {
    /// With the number of the step of which each is one.
    pub(super) ops: Box<[(Op, u32)]>,
    pub(super) totals: Totals,
    /// There are some: letters are counted by themselves.
    pub(super) counts: bool,
    /// Its letters are posted.
    pub(super) posted: bool,
    /// The other of two that write letters.
    pub(super) partner: Option<usize>,
    /// Are there two with a core each?
    pub(super) hints: bool,
    /// Where ranks share cores: this rank only says something, or only hears one.
    pub(super) part: Option<Part>,
    /// Lines that it writes to after its first wait.
    pub(super) ahead: Box<[*const u8]>,
}

/// What a rank does in a call in which one says something to the others, by letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Says,
    Hears,
}

impl Part {
    fn of(ops: &[(Op, u32)]) -> Option<Part> {
        let (mut said, mut heard) = (0, 0);
        for (op, _) in ops {
            match op {
                Op::Send { .. } | Op::Post { .. } => said += 1,
                Op::Take { .. } | Op::Read { .. } => heard += 1,
                Op::Copy { .. } | Op::Word(..) | Op::Words(_) => {}
                _ => return None,
            }
        }
        match (said, heard) {
            (1.., 0) => Some(Part::Says),
            (0, 1) => Some(Part::Hears),
            _ => None,
        }
    }
}

/// A line of an array that steps touch.
#[derive(Debug, Clone, Copy)]
struct Touched {
    at: *const u8,
    to_write: bool,
    /// It is this rank's.
    mine: bool,
}

/// Lines that will be touched.
#[derive(Debug)]
pub(super) struct Lines {
    to_read: Box<[*const u8]>,
    to_write: Box<[*const u8]>,
}

impl Lines {
    fn of(touched: &[Touched]) -> Lines {
        let those = |to_write| touched.iter().filter(|line| line.to_write == to_write).map(|line| line.at).collect();
        Lines { to_read: those(false), to_write: those(true) }
    }

    #[inline(always)]
    pub fn ask(&self) {
        self.to_read.iter().for_each(|&line| line::prefetch_to_read(line));
        self.to_write.iter().for_each(|&line| line::prefetch_to_write(line));
    }
}

impl Op {
    /// Adds a step. Words that one rank carries for all are loaded together, and then stored: each has to come from another core, and to go to one, and a load after a store to
    /// the same place of another page (all ranks have what belongs together at the same places of pages) waits until that has got there.
    fn add(to: &mut Vec<Op>, op: Op) {
        let pair = |op: &Op| match *op {
            Op::Copy { src: Place::Fixed(src), dst: Place::Fixed(dst), len }
                if is_word(src, len) && is_word(dst, len) =>
            {
                Some((src, dst))
            }
            _ => None,
        };
        let Some(next) = pair(&op) else { return to.push(op) };
        let is_apart = |pairs: &[(*mut u8, *mut u8)]| {
            pairs.len() < TOGETHER && pairs.iter().all(|&(src, dst)| src != next.1 && dst != next.0)
        };
        match to.last_mut() {
            Some(Op::Words(pairs)) if is_apart(pairs) => *pairs = pairs.iter().copied().chain([next]).collect(),
            Some(last) if pair(last).is_some_and(|first| is_apart(&[first])) => {
                *last = Op::Words(pair(last).into_iter().chain([next]).collect());
            }
            _ => to.push(op),
        }
    }

    /// The same, with nothing left to be found out about one word.
    fn resolved(self) -> Op {
        match self {
            Op::Copy { src: Place::Fixed(src), dst: Place::Fixed(dst), len }
                if is_word(src, len) && is_word(dst, len) =>
            {
                Op::Word(src, dst)
            }
            op => op,
        }
    }
}

/// Copies 2 to [`TOGETHER`] words.
///
/// # Safety
/// They are aligned, and of memory that is mapped and to which no reference exists.
// (Not in the loop over steps, whose registers are few.)
#[inline(never)]
pub(super) unsafe fn copy_words(pairs: &[(*mut u8, *mut u8)]) {
    /// Of so many, in registers.
    ///
    /// # Safety
    /// The same.
    #[inline(always)]
    unsafe fn some<const N: usize>(pairs: &[(*mut u8, *mut u8)]) {
        let pairs: &[_; N] = pairs.try_into().expect("so many");
        // SAFETY: passed on to the caller.
        let words = pairs.map(|(src, _)| unsafe { copy::load::<u64>(src) });
        // SAFETY: the same.
        words.iter().zip(pairs).for_each(|(&word, &(_, dst))| unsafe { copy::store(dst, word) });
    }
    macro_rules! of {
        ($($n:literal)+) => {
            match pairs.len() {
                // SAFETY: passed on to the caller.
                $($n => unsafe { some::<$n>(pairs) },)+
                n => unreachable!("{n} words at a time"),
            }
        };
    }
    of!(2 3 4 5 6 7 8);
}

/// Words of arrays that one rank combines: the first of them with one after the other, which may come before what there is; and where the result goes. All are loaded, and combined in
/// memory of this rank's own: nobody needs what comes of some of them.
#[derive(Debug)]
pub(super) struct Fold {
    first: *mut u8,
    others: Box<[(*mut u8, bool)]>,
    to: Box<[*mut u8]>,
}

impl Fold {
    /// What these steps are, but for those that pass no data, and how many it is in place of.
    fn of(ops: &[Op]) -> Option<(Fold, usize)> {
        let word = |place: Place| match place {
            Place::Fixed(p) if is_word(p, 8) => Some(p),
            _ => None,
        };
        // Where the others are combined.
        let into = ops.iter().find_map(|op| match *op {
            Op::Combine { dst, .. } => Some(dst),
            _ => None,
        })?;
        let (first, mut at) = match ops[0] {
            Op::Copy { src, dst, len: 8 } if dst == into => (word(src)?, 1),
            _ => (word(into)?, 0),
        };
        let (mut others, mut to) = (vec![], vec![]);
        while let Some(&Op::Combine { src, dst, len: 8, before }) = ops.get(at)
            && dst == into
        {
            others.push((word(src)?, before));
            at += 1;
        }
        if !matches!(into, Place::Scratch(..)) {
            to.push(word(into)?);
        }
        loop {
            match ops.get(at) {
                Some(&Op::Copy { src, dst, len: 8 }) if src == into => to.push(word(dst)?),
                Some(Op::Words(pairs)) if pairs.iter().all(|&(src, _)| Place::Fixed(src) == into) => {
                    to.extend(pairs.iter().map(|&(_, dst)| dst));
                }
                Some(Op::Release) | None => break,
                _ => return None,
            }
            at += 1;
        }
        let is_all = ops[at..].iter().all(|op| matches!(op, Op::Release));
        let fold = Fold { first, others: others.into(), to: to.into() };
        (is_all && (1..=FOLDED).contains(&fold.others.len())).then_some((fold, at))
    }

    /// # Safety
    /// The words are mapped, and no reference exists to them. A word is some whole elements of the operation.
    // (Not in the loop over steps, whose registers are few.)
    #[inline(never)]
    pub(super) unsafe fn run(&self, combine: &dyn Combine) {
        let mut words = [0; FOLDED];
        // SAFETY: passed on to the caller, and aligned.
        let load = |at: *mut u8| unsafe { copy::load::<u64>(at) };
        let mut result = load(self.first);
        words.iter_mut().zip(&self.others).for_each(|(word, &(at, _))| *word = load(at));
        let own = |word: &mut u64| Elements { at: (&raw mut *word).cast(), shared: false };
        for (word, &(_, before)) in words.iter_mut().zip(&self.others) {
            let all = own(&mut result);
            // SAFETY: two words of this call's own, which nobody else touches; that they are whole elements is passed on to the caller.
            unsafe { combine.combine(all, all, own(word), 8, before) };
        }
        // SAFETY: as above.
        self.to.iter().for_each(|&at| unsafe { copy::store(at, result) });
    }
}

/// Are these bytes a word? Many are.
#[inline(always)]
pub(super) fn is_word(at: *mut u8, len: usize) -> bool {
    len == 8 && at.addr().is_multiple_of(8)
}

impl Engine {
    /// The steps of this plan, if all of them can be resolved.
    pub(super) fn quick(
        &self,
        inner: &Inner,
        plan: &Plan,
        posting: Option<Posting>,
        bases: &[Base; 2],
    ) -> Option<Quick> {
        let mut ops = vec![];
        let mut posts = plan.steps.iter().filter(|step| matches!(step, Step::Send { .. })).count();
        // Ranks that share a core have each other's lines, and of many nobody knows who wants them next.
        let hints = self.desk.ranks() == 2 && inner.seat.waiter().cores() == Cores::Own;
        for (i, step) in plan.steps.iter().enumerate() {
            let mut push = |op: Op| ops.push((op.resolved(), i as u32));
            match step {
                Step::Last { steps } => {
                    let lines = if hints { self.touched(inner, steps, bases) } else { vec![] };
                    let mine = lines.iter().filter(|line| line.mine).map(|line| line.at).collect();
                    if !lines.is_empty() {
                        push(Op::Ask(Lines::of(&lines)));
                    }
                    let mut last = vec![];
                    for step in steps {
                        Op::add(&mut last, self.op(inner, step, bases)?);
                    }
                    if let Some((fold, instead)) = Fold::of(&last) {
                        last.splice(..instead, [Op::Fold(Box::new(fold))]);
                    }
                    push(Op::Last { steps: last.len() + usize::from(hints) });
                    last.into_iter().for_each(&mut push);
                    if hints {
                        push(Op::Else);
                        push(Op::HandOn(mine));
                    }
                }
                Step::Send { to, src } if let Some(posting) = posting => {
                    posts -= 1;
                    // The first is there for all, if all have the same.
                    if posting == Posting::OfReceiver || !ops.iter().any(|(op, _)| matches!(op, Op::Post { .. })) {
                        let is_last = posting == Posting::OfSender || posts == 0;
                        ops.push((
                            self.post_of(inner, posting.of(self.desk.rank(), *to), src, is_last, bases)?,
                            i as u32,
                        ));
                    }
                }
                step => {
                    if hints && matches!(step, Step::Wait { .. }) {
                        let lines = self.touched(inner, &plan.steps[i + 1..], bases);
                        if !lines.is_empty() {
                            push(Op::Ask(Lines::of(&lines)));
                        }
                    }
                    push(self.posted_op(posting, self.op(inner, step, bases)?));
                }
            }
        }
        let is_letter = |(op, _): &_| matches!(op, Op::Send { .. } | Op::Take { .. } | Op::TakeCombine { .. });
        let shares = self.desk.ranks() > 2 && inner.seat.waiter().cores() == Cores::Shared;
        let part = Part::of(&ops).filter(|_| shares);
        let partner = (hints && ops.iter().any(is_letter)).then(|| 1 - self.desk.rank());
        let ahead = match &ops[..] {
            [(Op::Ask(lines), _), (Op::Wait { .. }, _), ..] => lines.to_write.clone(),
            _ => Box::default(),
        };
        let (totals, posted) = (plan.totals.clone(), posting.is_some());
        let counts = totals.arrivals + totals.releases + totals.signals.len() > 0;
        (totals.claims == 0).then(|| Quick { ops: ops.into(), totals, counts, posted, partner, hints, part, ahead })
    }

    /// A letter on this line.
    fn post_of(&self, inner: &Inner, line: usize, src: &[Span], is_last: bool, bases: &[Base; 2]) -> Option<Op> {
        match *src {
            [src] if src.len <= LETTER => {
                let place = self.place(inner, self.desk.rank(), src, bases)?;
                Some(Op::Post { line, src: place, len: src.len, is_last })
            }
            _ => None,
        }
    }

    /// What is taken is on these lines, if letters are posted.
    fn posted_op(&self, posting: Option<Posting>, op: Op) -> Op {
        let me = self.desk.rank();
        match (posting, op) {
            (Some(posting), Op::Take { from, dst, len }) => Op::Read { from, line: posting.of(from, me), dst, len },
            (Some(posting), Op::TakeCombine { from, dst, len, before }) => {
                Op::ReadCombine { from, line: posting.of(from, me), dst, len, before }
            }
            (_, op) => op,
        }
    }

    /// The lines of arrays that are touched by these steps, as far as they are short and wait for nothing; of many only those of others.
    fn touched(&self, inner: &Inner, steps: &[Step], bases: &[Base; 2]) -> Vec<Touched> {
        let mut lines: Vec<Touched> = vec![];
        for step in steps {
            let me = self.desk.rank();
            let sides = match *step {
                Step::Copy { src, dst } => [(me, src), (me, dst)],
                Step::Get { from, src, dst } | Step::Combine { from, src, dst, .. } => [(from, src), (me, dst)],
                Step::Carry { from, src, to, dst } => [(from, src), (to, dst)],
                _ => break,
            };
            for ((of, span), to_write) in sides.into_iter().zip([false, true]) {
                let place = if span.len > FEW { None } else { self.place(inner, of, span, bases) };
                let Some(Place::Fixed(start)) = place else { continue };
                for at in (0..span.len).step_by(LINE).map(|at| start.wrapping_add(at).cast_const()) {
                    match lines.iter_mut().find(|line| line.at.addr() / LINE == at.addr() / LINE) {
                        Some(line) => line.to_write |= to_write,
                        None => lines.push(Touched { at, to_write, mine: of == me }),
                    }
                }
            }
        }
        if lines.len() > ASKED {
            lines.retain(|line| !line.mine);
        }
        if lines.len() > ASKED { vec![] } else { lines }
    }

    fn op(&self, inner: &Inner, step: &Step, bases: &[Base; 2]) -> Option<Op> {
        let me = self.desk.rank();
        let place = |of: usize, span: Span| self.place(inner, of, span, bases);
        Some(match *step {
            Step::Copy { src, .. } | Step::Get { src, .. } | Step::Carry { src, .. } | Step::Put { src, .. }
                if src.len > SHORT =>
            {
                return None;
            }
            Step::Combine { dst, .. } if dst.len > FEW => return None,
            Step::Put { to, src, dst } => Op::Put { to, src: place(me, src)?, dst: place(to, dst)?, len: src.len },
            Step::Copy { src, dst } => Op::Copy { src: place(me, src)?, dst: place(me, dst)?, len: src.len },
            Step::Get { from, src, dst } => Op::Copy { src: place(from, src)?, dst: place(me, dst)?, len: src.len },
            Step::Carry { from, src, to, dst } => {
                Op::Copy { src: place(from, src)?, dst: place(to, dst)?, len: src.len }
            }
            Step::Combine { from, src, dst, before } => {
                Op::Combine { src: place(from, src)?, dst: place(me, dst)?, len: dst.len, before }
            }
            Step::Send { to, ref src } => match src[..] {
                [src] if src.len <= LETTER => Op::Send { to, src: place(me, src)?, len: src.len },
                _ => return None,
            },
            Step::Take { from, ref dst } => match dst[..] {
                [dst] if dst.len <= LETTER => Op::Take { from, dst: place(me, dst)?, len: dst.len },
                _ => return None,
            },
            Step::TakeCombine { from, dst, before } if dst.len <= LETTER => {
                Op::TakeCombine { from, dst: place(me, dst)?, len: dst.len, before }
            }
            Step::Signal { to, signal } => Op::Signal { to, signal },
            Step::Wait { from, signal, n } => Op::Wait { from, signal, n: n as u64 },
            Step::Release => Op::Release,
            Step::Released => Op::Released,
            Step::Arrive => Op::Arrive,
            Step::Meet { n } => Op::Meet { n: n as u64 },
            Step::Each { .. } | Step::Claim { .. } | Step::Last { .. } | Step::TakeCombine { .. } => return None,
        })
    }

    fn place(&self, inner: &Inner, of: usize, span: Span, bases: &[Base; 2]) -> Option<Place> {
        let (side, base) = match span.buffer {
            Buffer::Scratch => return Some(Place::Scratch(of, span.at)),
            Buffer::Source => (0, &bases[0]),
            Buffer::Dest => (1, &bases[1]),
        };
        let is_mine = of == self.desk.rank();
        match base {
            Base::Private(_) => is_mine.then_some(Place::In(side, span.at)),
            shared => {
                let table = if is_mine { inner.own_table() } else { &inner.guarded };
                let part = shared.at(self, of);
                table.locate(At { offset: part.offset + span.at as u64, ..part }, span.len).map(Place::Fixed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coll::Ordered;
    use crate::coll::reduce::With;
    use std::marker::PhantomData;

    fn copies(words: &mut [u64], pairs: &[(usize, usize)]) -> Vec<Op> {
        let start = words.as_mut_ptr();
        let at = |i: usize| Place::Fixed(start.wrapping_add(i).cast());
        let mut ops = vec![];
        for &(src, dst) in pairs {
            Op::add(&mut ops, Op::Copy { src: at(src), dst: at(dst), len: 8 });
        }
        for op in &ops {
            match op {
                // SAFETY: words of the slice.
                Op::Words(pairs) => unsafe { copy_words(pairs) },
                Op::Copy { src: Place::Fixed(src), dst: Place::Fixed(dst), len } => {
                    // SAFETY: the same, and two of them.
                    unsafe { copy::between(*dst, *src, *len) }
                }
                _ => unreachable!("only copies"),
            }
        }
        ops
    }

    #[test]
    fn words_are_carried_together() {
        for n in 1..=3 * TOGETHER {
            let mut words: Vec<u64> = (0..2 * n as u64).collect();
            let pairs: Vec<_> = (0..n).map(|i| (i, n + i)).collect();
            let ops = copies(&mut words, &pairs);
            assert_eq!(ops.len(), n.div_ceil(TOGETHER));
            assert!((0..2 * n).all(|i| words[i] == (i % n) as u64), "{words:?}");
        }
    }

    #[test]
    fn what_was_carried_is_carried_on() {
        let mut words = [7, 0, 0, 0, 5, 0];
        let ops = copies(&mut words, &[(0, 1), (1, 2), (2, 3), (4, 5), (5, 0)]);
        assert_eq!(words, [5, 7, 7, 7, 5, 5]);
        assert_eq!(ops.len(), 4, "{ops:?}");
    }

    #[test]
    fn a_word_that_was_read_is_written_later() {
        let mut words = [1, 2, 3];
        assert_eq!(copies(&mut words, &[(0, 1), (2, 0)]).len(), 2);
        assert_eq!(words, [3, 1, 3]);
    }

    #[test]
    fn what_is_no_word_is_left_alone() {
        let mut words = [1u64, 2, 3, 4];
        let start = words.as_mut_ptr().cast::<u8>();
        let at = |i: usize| Place::Fixed(start.wrapping_add(i));
        let mut ops = vec![];
        for (src, dst, len) in [(0, 8, 8), (1, 16, 8), (0, 24, 4), (0, 24, 8)] {
            Op::add(&mut ops, Op::Copy { src: at(src), dst: at(dst), len });
        }
        assert!(ops.len() == 4 && ops.iter().all(|op| matches!(op, Op::Copy { .. })), "{ops:?}");
    }

    /// The words after it has run, if it is one.
    fn folded(ops: impl Fn(&dyn Fn(usize) -> Place) -> Vec<Op>) -> Option<Vec<u64>> {
        let mut words: Vec<u64> = (1..=8).collect();
        let start = words.as_mut_ptr();
        let ops = ops(&|i| Place::Fixed(start.wrapping_add(i).cast()));
        let (fold, instead) = Fold::of(&ops)?;
        assert_eq!(instead, ops.iter().filter(|op| !matches!(op, Op::Release)).count());
        let digits = With(Ordered(|a: u64, b: u64| a * 10u64.pow(b.ilog10() + 1) + b), PhantomData::<fn(u64)>);
        // SAFETY: words of the vector.
        unsafe { fold.run(&digits) };
        Some(words)
    }

    fn combine(src: Place, dst: Place, before: bool) -> Op {
        Op::Combine { src, dst, len: 8, before }
    }

    #[test]
    fn words_are_combined_in_their_order_and_stored_once() {
        let copy = |src, dst| Op::Copy { src, dst, len: 8 };
        let scratch = Place::Scratch(1, 0);
        let on_a_root = folded(|at| {
            let others = [combine(at(0), scratch, true), combine(at(3), scratch, false), combine(at(2), scratch, true)];
            [copy(at(1), scratch)].into_iter().chain(others).chain([copy(scratch, at(7)), Op::Release]).collect()
        });
        assert_eq!(on_a_root, Some(vec![1, 2, 3, 4, 5, 6, 7, 3124]));
        let everywhere = |first: Option<usize>| {
            folded(|at| {
                let mut ops = vec![];
                first.into_iter().for_each(|first| Op::add(&mut ops, copy(at(first), at(4))));
                ops.extend([combine(at(2), at(4), false), combine(at(0), at(4), true)]);
                (5..8).for_each(|i| Op::add(&mut ops, copy(at(4), at(i))));
                ops.push(Op::Release);
                ops
            })
        };
        assert_eq!(everywhere(Some(1)), Some(vec![1, 2, 3, 4, 123, 123, 123, 123]));
        // In place: the first is where the result goes.
        assert_eq!(everywhere(None), Some(vec![1, 2, 3, 4, 153, 153, 153, 153]));
    }

    #[test]
    fn what_is_needed_in_between_is_not_folded() {
        let copy = |src, dst| Op::Copy { src, dst, len: 8 };
        let scratch = Place::Scratch(1, 0);
        // A prefix.
        let prefix = |at: &dyn Fn(usize) -> Place| {
            let some = [copy(at(0), scratch), combine(at(1), scratch, false), copy(scratch, at(5))];
            some.into_iter().chain([combine(at(2), scratch, false), copy(scratch, at(6)), Op::Release]).collect()
        };
        assert_eq!(folded(prefix), None);
        // Two vectors, bytes that are no word, more words than there is room for; and nothing to combine.
        assert_eq!(folded(|at| vec![combine(at(1), at(2), false), combine(at(1), at(3), false), Op::Release]), None);
        assert_eq!(folded(|at| vec![Op::Combine { src: at(1), dst: at(2), len: 4, before: false }]), None);
        assert_eq!(folded(|at| (0..=FOLDED).map(|_| combine(at(1), at(2), false)).collect()), None);
        assert_eq!(folded(|at| vec![copy(at(1), at(2)), Op::Release]), None);
        assert_eq!(folded(|_| vec![]), None);
    }
}
