//! Calls that look like one before: what was found out then is not found out again.
//!
//! A call is known by its [`Look`]: what the caller has said, and the buffers by the numbers of arrays or the lengths of memory. If one like it was right,
//! it is. What passes at once between ranks of a node is also kept as [`Quick`] steps (see [`quick`]), in which everything is resolved that does not change from call to call: they are the steps of the
//! plan, and touch the same words in the same order as [`super::steps`], by the same functions of the engine; so what
//! the checker of plans has decided holds for them. Only what the last to arrive does before it releases the others, while nobody else touches anything, may have another order:
//! words that do not depend on each other are all loaded before they are stored.
//!
//! Does not contain: what can wait for the network, is started, compared with others' calls, passes in parts, or is long. That is done by tasks.

mod quick;

use super::choice::{Key, Prepared};
use super::engine::{Base, Context, Engine, Waits};
use super::reduce::{Combine, Elements};
use crate::job::Inner;
use crate::team::Team;
use partage_conduit::board::has_come;
use partage_conduit::coll::WORDS;
use partage_conduit::copy;
use partage_conduit::line;
use partage_conduit::record::Site;
use partage_conduit::sync::light_fence;
use partage_conduit::wait::Aborted;
use partage_plan::coll::{Plan, Signal};
use quick::{Op, Part, Place, copy_words, is_word};
use std::cell::Cell;
use std::rc::Rc;

pub(super) use quick::Quick;

/// How many calls are remembered.
const REMEMBERED: usize = 64;
/// Calls that take a task, by plans of more memory than this, are not: to find those plans again is little beside running them.
const LONG: usize = 128 << 10;
/// Who comes late to a letter asks for that of so many collectives later.
const LATER: u64 = 3;

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
    /// Where it is remembered.
    place: usize,
    pub key: Key,
    pub prepared: Rc<Prepared>,
    /// Nothing if it takes a task.
    quick: Option<Quick>,
    /// Of every other collective, if two ranks take turns.
    odd: Option<Quick>,
    /// Where the one is remembered that came after it the last time.
    next: Cell<usize>,
}

impl Before {
    /// What is done in the `epoch`-th collective; nothing if that takes a task.
    #[inline(always)]
    pub fn quick(&self, epoch: u64) -> Option<&Quick> {
        match &self.odd {
            Some(odd) if epoch % 2 == 1 => Some(odd),
            _ => self.quick.as_ref(),
        }
    }
}

/// Calls that were right.
#[derive(Debug)]
pub(super) struct Memory {
    calls: Box<[Option<Rc<Before>>]>,
    /// Where the last one is that was made again.
    last: Cell<usize>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { calls: (0..REMEMBERED).map(|_| None).collect(), last: Cell::new(0) }
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
        self.calls[Memory::place(look)].as_ref().filter(|known| known.look == *look)
    }

    /// This one is made again: it is what came after the last one.
    #[inline(always)]
    fn follows(&self, call: &Before) {
        if let Some(last) = &self.calls[self.last.replace(call.place)]
            && last.next.get() != call.place
        {
            last.next.set(call.place);
        }
    }

    /// Does this rank only hear something in this call, and say something to others in what came after it the last time?
    #[inline(always)]
    fn is_next(&self, call: &Before, epoch: u64) -> bool {
        let part = |call: &Before, epoch| call.quick(epoch).and_then(|quick| quick.part);
        let next = || self.calls[call.next.get()].as_ref().and_then(|next| part(next, epoch + 1));
        part(call, epoch) == Some(Part::Hears) && next() == Some(Part::Says)
    }

    /// It has ended: what follows it, if that is as the last time, will want these lines.
    #[inline(always)]
    fn ask_ahead(&self, call: &Before, epoch: u64) {
        let next = self.calls[call.next.get()].as_ref();
        if let Some(Quick { ahead, .. }) = next.and_then(|next| next.quick(epoch + 1)) {
            ahead.iter().for_each(|&line| line::prefetch_to_write(line));
        }
    }
}

/// A call as it is made.
pub(super) struct Made<'a> {
    pub look: Look,
    /// Source and destination, if they are this rank's own.
    pub sides: [*mut u8; 2],
    pub combine: Option<*const dyn Combine>,
    /// What it must be like.
    pub fixed: Option<&'a Key>,
    pub site: Site,
}

/// One that is known, while it is made.
struct Call<'a> {
    engine: &'a Engine,
    inner: &'a Rc<Inner>,
    known: &'a Before,
    made: &'a Made<'a>,
}

impl Team {
    /// Makes it, if it looks like one before and takes no task; whether it did.
    ///
    /// # Safety
    /// The sides are those of buffers that look as this call does, which are borrowed until it returns, and so is what combines elements.
    #[inline(never)]
    pub(super) unsafe fn again(&self, made: &Made<'_>) -> bool {
        let (inner, engine) = (&self.inner, &self.group.engine);
        if inner.check || inner.calls.has_other() {
            return false;
        }
        let Some(known) = engine.known.borrow().find(&made.look).cloned() else { return false };
        let is_planned = made.fixed.is_none_or(|key| *key == known.key);
        let Some(quick) = known.quick(engine.begun()).filter(|_| is_planned) else { return false };
        let call = Call { engine, inner, known: &known, made };
        // SAFETY: passed on to the caller.
        inner.unless_over(unsafe { call.run(quick) });
        true
    }
}

impl Engine {
    /// Keeps what is known of such calls.
    pub(super) fn keep(&self, inner: &Inner, look: Look, key: Key, prepared: Rc<Prepared>, bases: &[Base; 2]) {
        let is_one = prepared.parts == 1 && self.desk.reaches_all() && self.others.is_empty();
        let posting = prepared.posting;
        let quick = |plan: &Plan| if is_one { self.quick(inner, plan, posting, bases) } else { None };
        let [quick, odd] = match prepared.turns() {
            // Both, or none.
            Some(turns) => match turns.map(quick) {
                both @ [Some(_), Some(_)] => both,
                _ => [None, None],
            },
            None => [quick(prepared.plan(0, 0)), None],
        };
        if quick.is_none() && prepared.bytes() > LONG {
            return;
        }
        let place = Memory::place(&look);
        let known = Rc::new(Before { look, place, key, prepared, quick, odd, next: Cell::new(place) });
        self.known.borrow_mut().calls[place] = Some(known);
    }
}

impl Call<'_> {
    /// Makes it.
    ///
    /// # Safety
    /// As for [`Team::again`].
    #[inline(always)]
    unsafe fn run(&self, quick: &Quick) -> Result<(), Aborted> {
        let engine = self.engine;
        let epoch = engine.next_epoch();
        let number = self.known.prepared.context(epoch);
        let context = &engine.contexts[number];
        if quick.posted {
            engine.enters_posted(self.inner, epoch);
        }
        let mut left = quick.ops.iter();
        while let Some((op, step)) = left.next() {
            let at = (epoch, *step);
            // SAFETY: passed on to the caller.
            match unsafe { self.op(quick, op, (number, context), at)? } {
                0 => {}
                left_out => left = left.as_slice()[left_out..].iter(),
            }
        }
        if quick.counts {
            engine.ended(number, &quick.totals);
        }
        if quick.posted {
            engine.ended_posted(number, epoch);
        }
        match quick.partner {
            Some(partner) => engine.desk.prefetch_letter(partner, self.known.prepared.context(epoch + 1)),
            None if quick.hints => {
                let memory = engine.known.borrow();
                memory.follows(self.known);
                memory.ask_ahead(self.known, epoch);
            }
            None => {}
        }
        if quick.part.is_some() {
            engine.known.borrow().follows(self.known);
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
            // SAFETY: passed on to the caller.
            Op::Copy { .. } | Op::Put { .. } | Op::Combine { .. } => unsafe { self.longer(number, op) },
            // SAFETY: mapped, as for `longer`, and they were found to be aligned.
            Op::Word(src, dst) => unsafe { copy::store(dst, copy::load::<u64>(src)) },
            // SAFETY: the same.
            Op::Words(ref pairs) => unsafe { copy_words(pairs) },
            Op::Fold(ref fold) => {
                let combine = self.made.combine.expect("a reduction has an operation");
                // SAFETY: the same; a vector of eight bytes is whole elements, and what combines them is borrowed by the caller.
                unsafe { fold.run(&*combine) }
            }
            Op::Send { to, src, len } => {
                let peer = &context.peers[to];
                let sent = peer.letters_sent.get();
                if peer.letters_taken.get() < sent && !engine.must_have_taken(number, to) {
                    engine.look_what_was_taken(to);
                    if peer.letters_taken.get() < sent {
                        let taken = &desk.from(to).taken[number];
                        self.until(at, || taken.get() >= sent)?;
                    }
                }
                peer.letters_taken.set(sent);
                peer.letters_sent.set(sent + 1);
                let src = self.at(number, src);
                if is_word(src, len) {
                    // SAFETY: as above, and aligned.
                    engine.post(number, to, &[unsafe { copy::load::<u64>(src) }], sent + 1);
                } else {
                    // SAFETY: as above.
                    let (words, n) = unsafe { letter_of(src, len) };
                    engine.post(number, to, &words[..n], sent + 1);
                }
                engine.sent(number, to, at.0);
                if quick.partner.is_none() {
                    engine.ask_ahead(number, to);
                }
            }
            Op::Post { line, src, len, is_last } => {
                self.until(at, || engine.may_post(number))?;
                let src = self.at(number, src);
                if is_word(src, len) {
                    // SAFETY: as above, and aligned.
                    engine.post_quietly(number, line, &[unsafe { copy::load::<u64>(src) }], at.0);
                } else {
                    // SAFETY: as above.
                    let (words, n) = unsafe { letter_of(src, len) };
                    engine.post_quietly(number, line, &words[..n], at.0);
                }
                if is_last {
                    light_fence();
                    desk.ring_all();
                }
            }
            Op::Read { from, line, dst, len } => {
                self.posted(number, line, at)?;
                let dst = self.at(number, dst);
                if is_word(dst, len) {
                    let mut word = [0];
                    engine.read_posted(number, from, line, &mut word, at.0);
                    // SAFETY: as above, and aligned.
                    unsafe { copy::store(dst, word[0]) };
                } else {
                    let read = |words: &mut [u64]| engine.read_posted(number, from, line, words, at.0);
                    // SAFETY: as above.
                    unsafe { take_letter(dst, len, read) };
                }
            }
            Op::ReadCombine { from, line, dst, len, before } => {
                self.posted(number, line, at)?;
                let read = |words: &mut [u64]| engine.read_posted(number, from, line, words, at.0);
                // SAFETY: as above.
                unsafe { self.combine_letter(read, self.elements(number, dst), len, before) };
            }
            Op::Take { from, dst, len } => {
                self.letter(quick, (number, context), from, at)?;
                let (letter, dst) = (&desk.from(from).told[number].letter, self.at(number, dst));
                if is_word(dst, len) {
                    let mut word = [0];
                    letter.read(&mut word);
                    // SAFETY: as above, and aligned.
                    unsafe { copy::store(dst, word[0]) };
                } else {
                    // SAFETY: as above.
                    unsafe { take_letter(dst, len, |words: &mut [u64]| letter.read(words)) };
                }
                engine.was_taken(at.0, number, from);
            }
            Op::TakeCombine { from, dst, len, before } => {
                self.letter(quick, (number, context), from, at)?;
                let letter = &desk.from(from).told[number].letter;
                let read = |words: &mut [u64]| letter.read(words);
                // SAFETY: as above.
                unsafe { self.combine_letter(read, self.elements(number, dst), len, before) };
                engine.was_taken(at.0, number, from);
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
            Op::Ask(ref lines) => lines.ask(),
            Op::HandOn(ref lines) => {
                desk.hall(number).hand_on();
                lines.iter().for_each(|&line| line::hand_on(line));
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

    /// Moves or combines what is no word. (Not in the loop over steps, whose registers are few.)
    ///
    /// # Safety
    /// As for [`Call::run`].
    #[inline(never)]
    unsafe fn longer(&self, number: usize, op: &Op) {
        match *op {
            // SAFETY: places in buffers of this call, or that are mapped, as scratch of all is where all are reached by stores (else nothing is remembered, `keep`); plans
            // have no more scratch than there is (`choice`). A plan moves nothing to where it is, and has nothing touched by two.
            Op::Copy { src, dst, len } => unsafe { copy::between(self.at(number, dst), self.at(number, src), len) },
            Op::Put { to, src, dst, len } => {
                // SAFETY: the same.
                unsafe { copy::between(self.at(number, dst), self.at(number, src), len) };
                self.engine.tell(number, to, Signal::Data);
            }
            // SAFETY: the same.
            Op::Combine { src, dst, len, before } => unsafe {
                self.combine(self.elements(number, src), self.elements(number, dst), len, before)
            },
            _ => unreachable!("a step that moves or combines something"),
        }
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
    fn at(&self, number: usize, place: Place) -> *mut u8 {
        match place {
            Place::In(side, at) => self.made.sides[side].wrapping_add(at),
            Place::Fixed(p) => p,
            Place::Scratch(of, at) => self.engine.desk.scratch(of, number).wrapping_add(at),
        }
    }

    #[inline(always)]
    fn elements(&self, number: usize, place: Place) -> Elements {
        Elements { at: self.at(number, place), shared: !matches!(place, Place::In(..)) }
    }

    /// # Safety
    /// As for [`Combine::combine`].
    #[inline(always)]
    unsafe fn combine(&self, src: Elements, dst: Elements, len: usize, before: bool) {
        let combine = self.made.combine.expect("a reduction has an operation");
        // SAFETY: passed on to the caller.
        unsafe { (*combine).combine(dst, dst, src, len, before) };
    }

    /// Combines what a letter has. Most are a word.
    ///
    /// # Safety
    /// As for [`Combine::combine`].
    #[inline(always)]
    unsafe fn combine_letter(&self, read: impl Fn(&mut [u64]), dst: Elements, len: usize, before: bool) {
        let own = |at: *mut u64| Elements { at: at.cast(), shared: false };
        if len == 8 {
            let mut word = [0];
            read(&mut word);
            // SAFETY: passed on to the caller.
            unsafe { self.combine(own(word.as_mut_ptr()), dst, 8, before) };
        } else {
            let mut words = [0; WORDS];
            read(&mut words[..len.div_ceil(8)]);
            // SAFETY: the same.
            unsafe { self.combine(own(words.as_mut_ptr()), dst, len, before) };
        }
    }

    /// Waits for the next letter of `from`. If it has come before, later ones may have, too.
    #[inline(always)]
    fn letter(
        &self,
        quick: &Quick,
        (number, context): (usize, &Context),
        from: usize,
        at: (u64, u32),
    ) -> Result<(), Aborted> {
        let (got, letter) = (&context.peers[from].letters_got, &self.engine.desk.from(from).told[number].letter);
        let next = got.get() + 1;
        let came = || letter.number.get() >= next;
        if came() {
            if quick.hints {
                self.engine.desk.prefetch_letter_of(from, self.known.prepared.context(at.0 + LATER));
            }
        } else if !self.inner.seat.waiter().soon(came) {
            self.wait(at, came)?;
        }
        got.set(next);
        Ok(())
    }

    /// Waits for the letter on this line.
    #[inline(always)]
    fn posted(&self, number: usize, line: usize, at: (u64, u32)) -> Result<(), Aborted> {
        let line = self.engine.desk.line(number, line);
        let came = || has_come(line, at.0);
        match came() || self.inner.seat.waiter().soon(came) {
            true => Ok(()),
            false => self.wait(at, came),
        }
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
        let waiter = self.inner.seat.waiter();
        let is_next = self.engine.known.borrow().is_next(self.known, epoch);
        if (is_next && waiter.stays(ready)) || waiter.after_a_turn(ready) {
            return Ok(());
        }
        let waits = || Waits::quick(self.engine, self.made.site, self.known, epoch, step as usize);
        let _near = self.inner.seat.awaits_near();
        self.engine.wait_in(self.inner, epoch, waits, ready)
    }
}

/// The words of a letter of so many bytes, and how many they are. (As what follows, not in the loop over steps.)
///
/// # Safety
/// The bytes are mapped, no reference exists to them if others may write to them, and a letter has room for them.
#[inline(never)]
unsafe fn letter_of(src: *const u8, len: usize) -> ([u64; WORDS], usize) {
    let mut words = [0; WORDS];
    debug_assert!(len <= size_of_val(&words), "a letter");
    // SAFETY: passed on to the caller.
    unsafe { copy::between(words.as_mut_ptr().cast(), src, len) };
    (words, len.div_ceil(8))
}

/// Puts there what a letter of so many bytes has.
///
/// # Safety
/// The bytes can be written, and nobody else touches them if they are private; no reference exists to them if others may touch them; and a letter has
/// room for them.
#[inline(never)]
unsafe fn take_letter(dst: *mut u8, len: usize, read: impl Fn(&mut [u64])) {
    let mut words = [0; WORDS];
    read(&mut words[..len.div_ceil(8)]);
    // SAFETY: passed on to the caller.
    unsafe { copy::between(dst, words.as_ptr().cast(), len) };
}
