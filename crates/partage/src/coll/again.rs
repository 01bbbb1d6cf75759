//! Calls that look like one before: what was found out then is not found out again.
//!
//! A call is known by its [`Look`]: what the caller has said, and the buffers by the numbers of arrays or the lengths of memory. If one like it was right,
//! it is. What passes at once between ranks of a node is also kept as [`Quick`] steps, in which everything is resolved that does not change from call to call: they are the steps of the
//! plan, one for one, and touch the same words in the same order as [`super::steps`], by the same functions of the engine; so what
//! the checker of plans has decided holds for them.
//!
//! # Lines on their way
//! Of a call of a few words most time is that in which lines go from core to core. Where ranks have cores of their own it is told as soon as it is known which
//! lines will be wanted, by hints ([`line`]) that change nothing but when they come:
//! * of two ranks, each of which may be the last to arrive, both ask for what the last touches before they arrive;
//! * who is not the last hands on the line in which others arrive, and its own that the last will touch;
//! * who has to wait before it touches lines asks for them before it waits;
//! * a rank that has one partner asks for the line of the next letter to it at the end of a call. (Sooner, while it waits for the other's, is later: it is one more
//!   line on its way at the same time.)
//!
//! Does not contain: what can wait for the network, is started, compared with others' calls, passes in parts, or is long. That is done by tasks.

use super::choice::{Key, Prepared};
use super::engine::{Base, Context, Engine, Waits};
use super::reduce::{Combine, Elements};
use crate::job::Inner;
use partage_conduit::coll::{LETTER, WORDS};
use partage_conduit::contract::At;
use partage_conduit::copy;
use partage_conduit::line;
use partage_conduit::record::Site;
use partage_conduit::wait::{Aborted, Cores};
use partage_plan::coll::{Buffer, Plan, Signal, Span, Step, Totals};
use std::rc::Rc;

/// How many calls are remembered.
const REMEMBERED: usize = 64;
/// Of more bytes at a time, or more that are combined, a call takes a task, which is then worth it.
const SHORT: usize = 16 << 10;
const FEW: usize = 1 << 10;
/// So many lines are worth to be asked for.
const ASKED: usize = 32;
/// So many words are carried at a time.
const TOGETHER: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A call as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Operation, sync modes, algorithm.
    pub what: u64,
    /// Root, and bytes of an element.
    pub ends: u64,
    /// Source and destination.
    pub sides: [u64; 2],
}

/// What is known of calls that look alike.
#[derive(Debug)]
pub(super) struct Before {
    look: Look,
    pub key: Key,
    pub prepared: Rc<Prepared>,
    /// Nothing if it takes a task.
    pub quick: Option<Quick>,
}

/// Calls that were right.
#[derive(Debug)]
pub(super) struct Memory(Box<[Option<Rc<Before>>]>);

impl Default for Memory {
    fn default() -> Memory {
        Memory((0..REMEMBERED).map(|_| None).collect())
    }
}

impl Memory {
    #[inline(always)]
    fn place(look: &Look) -> usize {
        let [source, dest] = look.sides;
        let hash = look.what ^ look.what >> 20 ^ look.ends.wrapping_mul(5) ^ source.wrapping_mul(3) ^ dest;
        (hash ^ hash >> 8) as usize % REMEMBERED
    }

    #[inline(always)]
    pub fn find(&self, look: &Look) -> Option<&Rc<Before>> {
        self.0[Memory::place(look)].as_ref().filter(|known| known.look == *look)
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the source (0) or destination (1), memory of this rank's own whose address each call has.
    In(usize, usize),
    /// In an array, which stays where it is. Others may touch it, though a right program does not.
    Fixed(*mut u8),
}

#[derive(Debug)]
enum Op {
    /// Of so many bytes, as the others; of letters, no more than they have.
    Copy {
        src: Place,
        dst: Place,
        len: usize,
    },
    /// Words of arrays: from where, and to where, none of which is one from where.
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
    Send {
        to: usize,
        src: Place,
        len: usize,
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
    Ask(Box<[Lines]>),
    /// Another is going to arrive in the hall, and to want these lines of this rank's.
    HandOn(Box<[Lines]>),
}

/// The steps of a plan, resolved.
#[derive(Debug)]
pub(super) struct Quick {
    /// With the number of the step of which each is one.
    ops: Box<[(Op, u32)]>,
    totals: Totals,
    /// The only rank that letters go to, or come from.
    partner: Option<usize>,
}

/// Lines of an array that steps touch: where, how many, whether they are written to, and whether they are this rank's.
#[derive(Debug, Clone, Copy)]
struct Lines {
    at: *mut u8,
    count: usize,
    to_write: bool,
    mine: bool,
}

impl Lines {
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = *const u8> {
        let at = self.at.cast_const();
        (0..self.count).map(move |i| at.wrapping_add(i * LINE))
    }

    // (Not in the loop over steps, whose registers are few.)
    #[inline(never)]
    fn ask(lines: &[Lines]) {
        for run in lines {
            match run.to_write {
                true => run.each().for_each(line::prefetch_to_write),
                false => run.each().for_each(line::prefetch_to_read),
            }
        }
    }

    #[inline(never)]
    fn hand_on(lines: &[Lines]) {
        lines.iter().for_each(|run| run.each().for_each(line::hand_on));
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
}

/// Copies words.
///
/// # Safety
/// They are aligned, and of memory that is mapped.
// (Not in the loop over steps, whose registers are few.)
#[inline(never)]
unsafe fn copy_words(pairs: &[(*mut u8, *mut u8)]) {
    /// In registers.
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

/// Are these bytes a word? Many are.
#[inline(always)]
fn is_word(at: *mut u8, len: usize) -> bool {
    len == 8 && at.addr().is_multiple_of(8)
}

/// A call that is being made.
pub(super) struct Call<'a> {
    pub engine: &'a Engine,
    pub inner: &'a Rc<Inner>,
    pub known: &'a Before,
    pub name: &'static str,
    pub at: &'static std::panic::Location<'static>,
    /// Source and destination, if they are this rank's own.
    pub sides: [*mut u8; 2],
    pub combine: Option<*const dyn Combine>,
}

impl Engine {
    /// Keeps what is known of such calls.
    pub(super) fn keep(&self, inner: &Inner, look: Look, key: Key, prepared: Rc<Prepared>, bases: &[Base; 2]) {
        let is_one = prepared.parts == 1 && self.desk.reaches_all() && self.others.is_empty();
        let quick = if is_one { self.quick(inner, prepared.plan(0), bases) } else { None };
        let known = Rc::new(Before { look, key, prepared, quick });
        self.known.borrow_mut().0[Memory::place(&look)] = Some(known);
    }

    /// The steps of this plan, if all of them can be resolved.
    fn quick(&self, inner: &Inner, plan: &Plan, bases: &[Base; 2]) -> Option<Quick> {
        let mut ops = vec![];
        // Ranks that share a core have each other's lines, and of many nobody knows who wants them next.
        let hints = self.desk.ranks() == 2 && inner.seat.waiter().cores() == Cores::Own;
        for (i, step) in plan.steps.iter().enumerate() {
            let mut push = |op| ops.push((op, i as u32));
            match step {
                Step::Last { steps } => {
                    let lines = if hints { self.touched(inner, steps, bases) } else { Box::default() };
                    let mine = lines.iter().filter(|line| line.mine).copied().collect();
                    if !lines.is_empty() {
                        push(Op::Ask(lines));
                    }
                    let mut last = vec![];
                    for step in steps {
                        Op::add(&mut last, self.op(inner, step, bases)?);
                    }
                    push(Op::Last { steps: last.len() + usize::from(hints) });
                    last.into_iter().for_each(&mut push);
                    if hints {
                        push(Op::Else);
                        push(Op::HandOn(mine));
                    }
                }
                step => {
                    if hints && matches!(step, Step::Wait { .. }) {
                        let lines = self.touched(inner, &plan.steps[i + 1..], bases);
                        if !lines.is_empty() {
                            push(Op::Ask(lines));
                        }
                    }
                    push(self.op(inner, step, bases)?);
                }
            }
        }
        let partner = |(op, _): &(Op, u32)| match op {
            Op::Send { to: with, .. } | Op::Take { from: with, .. } | Op::TakeCombine { from: with, .. } => Some(*with),
            _ => None,
        };
        let mut partners = ops.iter().filter_map(partner);
        let partner = partners.next().filter(|first| hints && partners.all(|other| other == *first));
        (plan.totals.claims == 0).then(|| Quick { ops: ops.into(), totals: plan.totals.clone(), partner })
    }

    /// The lines of arrays that are touched by these steps, as far as they are short and wait for nothing; of many only those of others.
    fn touched(&self, inner: &Inner, steps: &[Step], bases: &[Base; 2]) -> Box<[Lines]> {
        let mut lines: Vec<Lines> = vec![];
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
                for at in (0..span.len).step_by(LINE).map(|at| start.wrapping_add(at)) {
                    match lines.iter_mut().find(|line| line.at.addr() / LINE == at.addr() / LINE) {
                        Some(line) => line.to_write |= to_write,
                        None => lines.push(Lines { at, count: 1, to_write, mine: of == me }),
                    }
                }
            }
        }
        if lines.len() > ASKED {
            lines.retain(|line| !line.mine);
        }
        if lines.len() > ASKED {
            return Box::default();
        }
        lines.dedup_by(|next, run| {
            let is_next = (next.to_write, next.mine) == (run.to_write, run.mine)
                && next.at == run.at.wrapping_add(run.count * LINE);
            run.count += usize::from(is_next);
            is_next
        });
        lines.into()
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
            // Another in each context.
            Buffer::Scratch => return None,
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

impl Call<'_> {
    /// Makes it.
    ///
    /// # Safety
    /// The sides are those of buffers that look as this call does, which are borrowed until it returns, and so is what combines elements.
    #[inline(always)]
    pub unsafe fn run(&self, quick: &Quick) -> Result<(), Aborted> {
        let engine = self.engine;
        let epoch = engine.next_epoch();
        let number = self.known.prepared.context(epoch);
        let context = &engine.contexts[number];
        let mut left = &quick.ops[..];
        while let [(op, step), after @ ..] = left {
            let at = (epoch, *step);
            // SAFETY: passed on to the caller.
            let left_out = unsafe { self.op(quick, op, (number, context), at)? };
            left = &after[left_out..];
        }
        engine.ended(number, &quick.totals);
        if let Some(partner) = quick.partner {
            engine.desk.prefetch_letter(partner, self.known.prepared.context(epoch + 1));
        }
        Ok(())
    }

    /// Makes a step; how many of those that follow are left out.
    ///
    /// # Safety
    /// As for [`Call::run`].
    #[inline(always)]
    unsafe fn op(
        &self,
        quick: &Quick,
        op: &Op,
        (number, context): (usize, &Context),
        at: (u64, u32),
    ) -> Result<usize, Aborted> {
        let (engine, desk) = (self.engine, &self.engine.desk);
        match *op {
            // SAFETY: places in buffers of this call, or that are mapped; a plan moves nothing to where it is, and has nothing touched by two.
            Op::Copy { src, dst, len } => unsafe { copy::between(self.at(dst), self.at(src), len) },
            // SAFETY: the same, and tested.
            Op::Words(ref pairs) => unsafe { copy_words(pairs) },
            Op::Put { to, src, dst, len } => {
                // SAFETY: the same.
                unsafe { copy::between(self.at(dst), self.at(src), len) };
                engine.tell(number, to, Signal::Data);
            }
            // SAFETY: the same.
            Op::Combine { src, dst, len, before } => unsafe { self.combine(self.elements(src), dst, len, before) },
            Op::Send { to, src, len } => {
                let peer = &context.peers[to];
                let sent = peer.letters_sent.get();
                if peer.letters_taken.get() < sent {
                    engine.look_what_was_taken(to);
                    if peer.letters_taken.get() < sent {
                        let taken = &desk.from(to).taken[number];
                        self.until(at, || taken.get() >= sent)?;
                        peer.letters_taken.set(sent);
                    }
                }
                peer.letters_sent.set(sent + 1);
                let src = self.at(src);
                if is_word(src, len) {
                    // SAFETY: as above, and aligned.
                    engine.post(number, to, &[unsafe { copy::load::<u64>(src) }], sent + 1);
                } else {
                    let mut words = [0; WORDS];
                    // SAFETY: as above; a letter has room for it.
                    unsafe { copy::between(words.as_mut_ptr().cast(), src, len) };
                    engine.post(number, to, &words[..len.div_ceil(8)], sent + 1);
                }
                if quick.partner.is_none() {
                    engine.ask_ahead(number, to);
                }
            }
            Op::Take { from, dst, len } => {
                let next = self.letter(number, context, from, at)?;
                let (letter, dst) = (&desk.from(from).told[number].letter, self.at(dst));
                let mut words = [0; WORDS];
                if is_word(dst, len) {
                    letter.read(&mut words[..1]);
                    // SAFETY: as above, and aligned.
                    unsafe { copy::store(dst, words[0]) };
                } else {
                    letter.read(&mut words[..len.div_ceil(8)]);
                    // SAFETY: as above.
                    unsafe { copy::between(dst, words.as_ptr().cast(), len) };
                }
                engine.was_taken(number, from, next);
            }
            Op::TakeCombine { from, dst, len, before } => {
                let next = self.letter(number, context, from, at)?;
                let mut words = [0; WORDS];
                desk.from(from).told[number].letter.read(&mut words[..len.div_ceil(8)]);
                let src = Elements { at: words.as_mut_ptr().cast(), shared: false };
                // SAFETY: as above.
                unsafe { self.combine(src, dst, len, before) };
                engine.was_taken(number, from, next);
            }
            Op::Signal { to, signal } => engine.tell(number, to, signal),
            Op::Wait { from, signal, n } => {
                let until = context.peers[from].heard[signal.count()].get() + n;
                let count = &desk.from(from).told[number].signals.0[signal.count()];
                self.until(at, || count.get() >= until)?;
            }
            Op::Last { steps } => {
                if !self.arrive(number, context, at)? {
                    return Ok(steps);
                }
            }
            Op::Else => return Ok(1),
            Op::Ask(ref lines) => Lines::ask(lines),
            Op::HandOn(ref lines) => {
                desk.hall(number).hand_on();
                Lines::hand_on(lines);
            }
            Op::Arrive => _ = self.arrive(number, context, at)?,
            Op::Meet { n } => {
                let (hall, times) = (desk.hall(number), context.arrived.get() + n);
                let all = times * desk.ranks() as u64;
                self.until(at, || hall.arrivals() >= all)?;
                context.all_arrived.set(times);
            }
            Op::Release => engine.release(number),
            Op::Released => {
                let (hall, times) = (desk.hall(number), context.released.get() + 1);
                self.until(at, || hall.released() >= times)?;
                if quick.totals.arrivals > 0 {
                    context.all_arrived.set(context.arrived.get() + quick.totals.arrivals as u64);
                }
            }
        }
        Ok(0)
    }

    /// Arrives, when all have that must have before; whether it is the last.
    #[inline(always)]
    fn arrive(&self, number: usize, context: &Context, at: (u64, u32)) -> Result<bool, Aborted> {
        let (hall, before) = (self.engine.desk.hall(number), context.mine.get());
        let all = before * self.engine.desk.ranks() as u64;
        if context.all_arrived.get() < before {
            self.until(at, || hall.arrivals() >= all)?;
            context.all_arrived.set(before);
        }
        context.mine.set(before + 1);
        let is_last = self.engine.arrive_near(number);
        if is_last {
            context.all_arrived.set(before + 1);
        }
        Ok(is_last)
    }

    #[inline(always)]
    fn at(&self, place: Place) -> *mut u8 {
        match place {
            Place::In(side, at) => self.sides[side].wrapping_add(at),
            Place::Fixed(p) => p,
        }
    }

    #[inline(always)]
    fn elements(&self, place: Place) -> Elements {
        Elements { at: self.at(place), shared: matches!(place, Place::Fixed(_)) }
    }

    /// # Safety
    /// As for [`Combine::combine`].
    #[inline(always)]
    unsafe fn combine(&self, src: Elements, dst: Place, len: usize, before: bool) {
        let (combine, dst) = (self.combine.expect("a reduction has an operation"), self.elements(dst));
        // SAFETY: passed on to the caller.
        unsafe { (*combine).combine(dst, dst, src, len, before) };
    }

    /// Waits for the next letter of `from`; its number.
    #[inline(always)]
    fn letter(&self, number: usize, context: &Context, from: usize, at: (u64, u32)) -> Result<u64, Aborted> {
        let (got, letter) = (&context.peers[from].letters_got, &self.engine.desk.from(from).told[number].letter);
        let next = got.get() + 1;
        let came = || letter.number.get() >= next;
        if !(came() || self.inner.seat.waiter().soon(came)) {
            self.wait(at, came)?;
        }
        got.set(next);
        Ok(next)
    }

    /// Waits in a step of the collective with this number.
    #[inline(always)]
    fn until(&self, at: (u64, u32), ready: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
        let (waiter, calmly) = (self.inner.seat.waiter(), self.engine.desk.ranks() == 2);
        match ready() || if calmly { waiter.soon_calmly(ready) } else { waiter.soon(ready) } {
            true => Ok(()),
            false => self.wait(at, ready),
        }
    }

    /// The same if it takes longer. (What is handed on here is handed on in registers: what is stored and loaded again in other pieces waits until all that was
    /// stored before, the letter too, has got to where it belongs.)
    #[inline(never)]
    fn wait(&self, (epoch, step): (u64, u32), ready: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
        let waits = || Waits::quick(self.engine, Site { call: self.name, at: self.at }, self.known, step as usize);
        let _near = self.inner.seat.awaits_near();
        self.engine.wait_in(self.inner, epoch, waits, ready)
    }
}
