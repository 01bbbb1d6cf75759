//! What each step of a plan does: copies and stores between ranks of a node, messages with notices to others.

use super::engine::{Base, Engine, Known, Task, UnderWay};
use super::reduce::Elements;
use crate::job::Inner;
use crate::team::Rank;
use partage_conduit::board::has_come;
use partage_conduit::coll::{LETTER, WORDS};
use partage_conduit::contract::{At, Conduit};
use partage_conduit::copy;
use partage_conduit::ofi::rma;
use partage_conduit::reference::ARRIVED;
use partage_conduit::shm::coll::Words;
use partage_conduit::signal::Notice;
use partage_conduit::sync::light_fence;
use partage_conduit::wait::Aborted;
use partage_plan::coll::{Buffer, Posting, Signal, Span, Step, Totals};
use std::rc::Rc;

/// A part of a task that is being run.
pub(super) struct Now<'a> {
    pub engine: &'a Engine,
    pub inner: &'a Rc<Inner>,
    pub task: &'a Task,
    pub context: usize,
    /// Where this part begins in each block.
    pub offset: usize,
    pub totals: &'a Totals,
    /// Letters are posted, on these lines.
    pub posting: Option<Posting>,
}

/// A letter that has come: the so manieth of its sender in this context, or on this line of the board.
#[derive(Clone, Copy)]
enum Letter {
    Sent(u64),
    Posted(usize),
}

impl Now<'_> {
    fn known(&self, rank: usize) -> &Known {
        &self.engine.contexts[self.context].peers[rank]
    }

    /// Where a span of a rank is, if it is mapped.
    #[inline(always)]
    fn near(&self, rank: usize, span: Span) -> Option<*mut u8> {
        let desk = &self.engine.desk;
        let base = match span.buffer {
            Buffer::Scratch => {
                let p = desk.scratch(rank, self.context);
                debug_assert!(span.at + span.len <= desk.scratch_len());
                // SAFETY: plans have no more scratch than there is (`choice`).
                return (!p.is_null()).then(|| unsafe { p.add(span.at) });
            }
            Buffer::Source => &self.task.bases[0],
            Buffer::Dest => &self.task.bases[1],
        };
        match base {
            // SAFETY: inside the buffer, whose length was compared with the shape's.
            Base::Private(p) => Some(unsafe { p.add(self.offset + span.at) }),
            // SAFETY: the same.
            Base::Same(_, p) if rank == desk.rank() && !p.is_null() => Some(unsafe { p.add(self.offset + span.at) }),
            shared => {
                let part = shared.at(self.engine, rank);
                let at = At { offset: part.offset + (self.offset + span.at) as u64, ..part };
                let table = if rank == desk.rank() { self.inner.own_table() } else { &self.inner.guarded };
                table.locate(at, span.len)
            }
        }
    }

    /// My own.
    #[inline(always)]
    fn mine(&self, span: Span) -> *mut u8 {
        self.near(self.engine.desk.rank(), span).expect("memory of this rank")
    }

    /// Where it is, for the network.
    fn far(&self, rank: usize, span: Span) -> At {
        let offset = match span.buffer {
            Buffer::Scratch => self.engine.desk.scratch_offset(self.context),
            Buffer::Source => self.task.bases[0].offset(rank) + self.offset as u64,
            Buffer::Dest => self.task.bases[1].offset(rank) + self.offset as u64,
        };
        At::guarded(self.engine.rank_of(rank).0, offset + span.at as u64)
    }

    /// Does the first of these steps, or as much of it as there is to be done now, or several at once; how many are done.
    #[inline(always)]
    pub fn some<const BLOCK: bool>(&self, steps: &[Step]) -> Result<usize, Aborted> {
        match steps {
            [first, second @ Step::Combine { .. }, ..] if self.copy_and_combine(first, second) => Ok(2),
            _ => self.step::<BLOCK>(&steps[0]).map(usize::from),
        }
    }

    /// Does a step, or as much of it as there is to be done now; whether it is done.
    #[inline(always)]
    fn step<const BLOCK: bool>(&self, step: &Step) -> Result<bool, Aborted> {
        let (engine, context) = (self.engine, &self.engine.contexts[self.context]);
        let desk = &engine.desk;
        macro_rules! wait {
            ($ready:expr) => {
                engine.wait::<BLOCK>(self.inner, self.task, Some(step), $ready)
            };
        }
        // What was got is there when the next step begins.
        if self.task.has_under_way.get() && !matches!(step, Step::Get { .. }) && !self.got::<BLOCK>(step)? {
            return Ok(false);
        }
        match step {
            Step::Put { to, src, dst } => self.put(*to, *src, *dst),
            Step::Get { from, src, dst } => self.get(*from, *src, *dst),
            Step::Combine { from, src, dst, before } => match self.near(*from, *src) {
                Some(at) => self.combine(self.elements(src.buffer, at), *dst, *before),
                None => return self.combine_far::<BLOCK>(step, *from, *src, *dst, *before),
            },
            Step::TakeCombine { from, dst, before } => {
                let Some(letter) = self.letter::<BLOCK>(step, *from)? else { return Ok(false) };
                let mut words = [0; WORDS];
                self.read(*from, letter, &mut words[..dst.len.div_ceil(8)]);
                self.combine(Elements { at: words.as_mut_ptr().cast(), shared: false }, *dst, *before);
                self.taken(*from, letter);
            }
            Step::Copy { src, dst } => self.copy(self.mine(*dst), self.mine(*src), src.len),
            Step::Carry { from, src, to, dst } => match self.near(*to, *dst) {
                Some(there) => {
                    let here = self.near(*from, *src).expect("memory of this rank or of its node");
                    self.copy(there, here, src.len);
                }
                None => self.put_far(self.far(*to, *dst), self.mine(*src), src.len),
            },
            Step::Each { len, step } => return self.each::<BLOCK>(*len, step),
            Step::Send { to, src } if let Some(posting) = self.posting => {
                if !wait!(|| engine.may_post(self.context))? {
                    return Ok(false);
                }
                let (words, len) = self.gathered(src);
                let (line, epoch) = (posting.of(desk.rank(), *to), self.task.epoch());
                engine.post_quietly(self.context, line, &words[..len.div_ceil(8)], epoch);
                light_fence();
                desk.ring(*to);
            }
            Step::Send { to, src } => {
                let known = self.known(*to);
                let (sent, taken) = (known.letters_sent.get(), &desk.from(*to).taken[self.context]);
                let must_have = || engine.must_have_taken(self.context, *to);
                if known.letters_taken.get() < sent && !must_have() {
                    engine.look_what_was_taken(*to);
                    if known.letters_taken.get() < sent && !wait!(|| taken.get() >= sent || must_have())? {
                        return Ok(false);
                    }
                }
                known.letters_taken.set(sent);
                known.letters_sent.set(sent + 1);
                self.send(*to, src, sent + 1);
            }
            Step::Take { from, dst } => {
                let Some(letter) = self.letter::<BLOCK>(step, *from)? else { return Ok(false) };
                self.take(*from, dst, letter);
            }
            Step::Signal { to, signal } => self.signal(*to, *signal),
            Step::Wait { from, signal, n } => {
                let until = self.known(*from).heard[signal.count()].get() + *n as u64;
                let count = &desk.from(*from).told[self.context].signals.0[signal.count()];
                let epoch = self.task.epoch();
                let is_known = || *signal == Signal::Free && engine.must_be_free(*from, epoch);
                if !wait!(|| count.get() >= until || is_known())? {
                    return Ok(false);
                }
                match count.get() >= until {
                    true => engine.hears(*from, epoch),
                    false => engine.will_hear(*from, self.context, until, epoch),
                }
            }
            Step::Arrive | Step::Last { .. } => {
                let (hall, before) = (desk.hall(self.context), context.mine.get());
                let all = before * desk.ranks() as u64;
                if context.all_arrived.get() < before {
                    if !wait!(|| hall.arrivals() >= all)? {
                        return Ok(false);
                    }
                    context.all_arrived.set(before);
                }
                context.mine.set(before + 1);
                let is_last = self.arrive();
                if let (Step::Last { steps }, true) = (step, is_last) {
                    context.all_arrived.set(before + 1);
                    // Copies, and the release.
                    self.all(steps)?;
                }
            }
            Step::Meet { n } => {
                let (hall, times) = (desk.hall(self.context), context.arrived.get() + *n as u64);
                let all = times * desk.ranks() as u64;
                if !wait!(|| hall.arrivals() >= all)? {
                    return Ok(false);
                }
                context.all_arrived.set(times);
            }
            Step::Claim { chunks } => {
                let (hall, first) = (desk.hall(self.context), context.claimed.get());
                while let Some(n) = hall.claim(first, first + chunks.len() as u64) {
                    self.all(&chunks[(n - first) as usize])?;
                }
            }
            Step::Release => engine.release(self.context),
            Step::Released => {
                let (hall, times) = (desk.hall(self.context), context.released.get() + 1);
                if !wait!(|| hall.released() >= times)? {
                    return Ok(false);
                }
                // Who released all had seen them arrive, if they did.
                if self.totals.arrivals > 0 {
                    context.all_arrived.set(context.arrived.get() + self.totals.arrivals as u64);
                }
            }
        }
        Ok(true)
    }

    /// All of these, which wait for nobody.
    #[inline(never)]
    fn all(&self, mut steps: &[Step]) -> Result<(), Aborted> {
        while !steps.is_empty() {
            steps = &steps[self.some::<true>(steps)?..];
        }
        Ok(())
    }

    /// All that was started here is complete.
    #[inline(always)]
    pub fn end<const BLOCK: bool>(&self) -> Result<bool, Aborted> {
        if self.task.has_under_way.get() { self.end_slowly::<BLOCK>() } else { Ok(true) }
    }

    #[cold]
    fn end_slowly<const BLOCK: bool>(&self) -> Result<bool, Aborted> {
        let is_complete = |all: &UnderWay| all.gets.iter().chain(&all.puts).all(|one| self.inner.is_complete(one));
        let ended = self.complete::<BLOCK>(None, is_complete)?;
        if ended {
            self.task.under_way(self.engine).clear();
            self.task.has_under_way.set(false);
        }
        Ok(ended)
    }

    /// Is what was got there?
    #[cold]
    fn got<const BLOCK: bool>(&self, step: &Step) -> Result<bool, Aborted> {
        let got = self.complete::<BLOCK>(Some(step), |all| all.gets.iter().all(|get| self.inner.is_complete(get)))?;
        if got {
            self.task.under_way(self.engine).gets.clear();
        }
        Ok(got)
    }

    fn complete<const BLOCK: bool>(
        &self,
        step: Option<&Step>,
        is_complete: impl Fn(&UnderWay) -> bool,
    ) -> Result<bool, Aborted> {
        let ready = || self.task.is_under_way(&is_complete);
        if ready() {
            return Ok(true);
        }
        // Whoever does not block looks at the network, too.
        Conduit::progress(&self.inner.seat);
        self.engine.wait::<BLOCK>(self.inner, self.task, step, &ready)
    }

    #[inline(always)]
    fn copy(&self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: places of so many bytes in buffers that this task has, or that are mapped; a plan moves nothing to where it is, and
        // has neither read what is written meanwhile nor the other way round.
        self.inner.seat.toil(len, || unsafe { copy::between(to, from, len) });
    }

    #[inline(always)]
    fn put(&self, to: usize, src: Span, dst: Span) {
        let from = self.mine(src);
        match self.near(to, dst) {
            Some(there) => {
                self.copy(there, from, src.len);
                self.signal(to, Signal::Data);
            }
            None => {
                let (offset, value) = (self.engine.words[self.context].signals[Signal::Data.count()], 1);
                self.engine.says(to, self.task.epoch());
                let (at, notice) = (self.far(to, dst), Notice::Add { offset, value });
                // SAFETY: the buffer is this task's, which does not end before that is complete.
                let put = unsafe { self.inner.start_notice_raw(self.task.site, at, from, src.len, notice) };
                let put = put.expect("memory of a desk or an array");
                if !put.is_empty() {
                    self.task.under_way(self.engine).puts.push(put);
                    self.task.has_under_way.set(true);
                }
            }
        }
    }

    /// A put that has arrived when the next step begins.
    #[cold]
    fn put_far(&self, at: At, from: *const u8, len: usize) {
        let (inner, site) = (self.inner, self.task.site);
        if inner.is_network(at) {
            // SAFETY: the buffer is this task's, which does not end, nor touches it, before that is complete.
            let put = unsafe { rma::start_put(&inner.seat, site, at, from, len) };
            let put = inner.unless_outside(put).expect("memory of an array");
            self.task.under_way(self.engine).gets.push(put);
            self.task.has_under_way.set(true);
        } else {
            let mut room = self.engine.spare.room(len);
            self.copy(room.as_mut_ptr().cast(), from, len);
            inner.put_guarded(site, at, &bytemuck::cast_slice::<u64, u8>(&room)[..len]);
            self.engine.spare.keep(room);
        }
    }

    /// A copy, so many bytes at a time. To and from other nodes all are under way at once.
    #[cold]
    fn each<const BLOCK: bool>(&self, len: usize, step: &Step) -> Result<bool, Aborted> {
        let cut = |span: Span, at: usize| Span { at: span.at + at, len: len.min(span.len - at), ..span };
        match *step {
            Step::Get { from, src, dst } => {
                (0..src.len).step_by(len).for_each(|at| self.get(from, cut(src, at), cut(dst, at)));
            }
            Step::Carry { from, src, to, dst } => {
                for at in (0..src.len).step_by(len) {
                    let (src, dst) = (cut(src, at), cut(dst, at));
                    match (self.near(to, dst), self.near(from, src)) {
                        (Some(there), Some(here)) => self.copy(there, here, src.len),
                        _ => self.put_far(self.far(to, dst), self.mine(src), src.len),
                    }
                }
            }
            _ => return self.step::<BLOCK>(step),
        }
        Ok(true)
    }

    #[inline(always)]
    fn get(&self, from: usize, src: Span, dst: Span) {
        let to = self.mine(dst);
        match self.near(from, src) {
            Some(there) => self.copy(to, there, src.len),
            None => self.get_far(self.far(from, src), to, src.len),
        }
    }

    #[cold]
    fn get_far(&self, at: At, to: *mut u8, len: usize) {
        let (inner, site) = (self.inner, self.task.site);
        if inner.is_network(at) {
            // SAFETY: the buffer is this task's, which does not end, nor touches it, before that is complete.
            let got = unsafe { rma::start_get(&inner.seat, site, at, to, len) };
            let got = inner.unless_outside(got).expect("memory of a desk or an array");
            self.task.under_way(self.engine).gets.push(got);
            self.task.has_under_way.set(true);
        } else {
            let mut room = self.engine.spare.room(len);
            inner.get_guarded(site, at, &mut bytemuck::cast_slice_mut::<u64, u8>(&mut room)[..len]);
            self.copy(to, room.as_ptr().cast(), len);
            self.engine.spare.keep(room);
        }
    }

    #[inline(always)]
    fn signal(&self, to: usize, signal: Signal) {
        match self.engine.desk.to(to) {
            Some(_) => self.engine.tell(self.context, to, signal),
            None => self.signal_far(to, signal),
        }
    }

    #[cold]
    fn signal_far(&self, to: usize, signal: Signal) {
        let epoch = self.task.epoch();
        let value = match signal {
            Signal::Entered | Signal::Free => self.engine.enters_far(self.context, to, signal, epoch),
            Signal::Data | Signal::Done => 1,
        };
        if value == 0 {
            return;
        }
        self.engine.says(to, epoch);
        let notice = Notice::Add { offset: self.engine.words[self.context].signals[signal.count()], value };
        self.inner.send_notice(self.task.site, At::guarded(self.engine.rank_of(to).0, 0), &[], notice);
    }

    /// What a letter has, and how long it is.
    #[inline(always)]
    fn gathered(&self, src: &[Span]) -> ([u64; WORDS], usize) {
        let mut words = [0; WORDS];
        let mut len = 0;
        for &span in src {
            assert!(len + span.len <= LETTER, "a letter has {LETTER} bytes");
            // SAFETY: room for so many, as was just tested.
            let p = unsafe { words.as_mut_ptr().cast::<u8>().add(len) };
            self.copy(p, self.mine(span), span.len);
            len += span.len;
        }
        (words, len)
    }

    #[inline(always)]
    fn send(&self, to: usize, src: &[Span], number: u64) {
        let (words, len) = self.gathered(src);
        match self.engine.desk.to(to) {
            Some(_) => {
                self.engine.post(self.context, to, &words[..len.div_ceil(8)], number);
                self.engine.ask_ahead(self.context, to);
            }
            None => {
                self.engine.says(to, self.task.epoch());
                let Words { letter, number: offset, .. } = self.engine.words[self.context];
                let notice = Notice::Add { offset, value: 1 };
                let bytes = &bytemuck::cast_slice(&words)[..len];
                self.inner.send_notice(self.task.site, At::guarded(self.engine.rank_of(to).0, letter), bytes, notice);
            }
        }
        self.engine.sent(self.context, to, self.task.epoch());
    }

    /// What this rank has, combined with as much that it or another one has.
    #[inline(always)]
    fn combine(&self, src: Elements, dst: Span, before: bool) {
        let (len, dst) = (dst.len, self.elements(dst.buffer, self.mine(dst)));
        let combine = self.task.combine.expect("a reduction has an operation");
        // SAFETY: the caller's, who waits for this task, or the task's own. Places of so many bytes, as for `copy`, of which one is
        // written and neither is touched by others, as the checker of plans has decided; but for those of arrays, which are shared.
        self.inner.seat.toil(len, || unsafe { (*combine).combine(dst, dst, src, len, before) });
    }

    /// Copies data and combines others with them where they are then, in one go; whether it did, which it does if all are near.
    fn copy_and_combine(&self, copy: &Step, combine: &Step) -> bool {
        let me = self.engine.desk.rank();
        let (from, src, dst) = match *copy {
            Step::Copy { src, dst } => (me, src, dst),
            Step::Get { from, src, dst } => (from, src, dst),
            Step::Carry { from, src, to, dst } if to == me => (from, src, dst),
            _ => return false,
        };
        let Step::Combine { from: other, src: operand, dst: place, before } = *combine else { return false };
        if dst != place || self.task.has_under_way.get() {
            return false;
        }
        let elements = |of: usize, span: Span| Some(self.elements(span.buffer, self.near(of, span)?));
        let (Some(a), Some(b), Some(dst)) = (elements(from, src), elements(other, operand), elements(me, dst)) else {
            return false;
        };
        let combine = self.task.combine.expect("a reduction has an operation");
        // SAFETY: as in `combine`. What is copied is not where it goes to, and neither is the operand.
        self.inner.seat.toil(place.len, || unsafe { (*combine).combine(dst, a, b, place.len, before) });
        true
    }

    /// The same with what must be got first.
    #[cold]
    fn combine_far<const BLOCK: bool>(
        &self,
        step: &Step,
        from: usize,
        src: Span,
        dst: Span,
        before: bool,
    ) -> Result<bool, Aborted> {
        let place = {
            let mut under_way = self.task.under_way(self.engine);
            let is_new = under_way.operand.is_none();
            let room = || self.engine.spare.room(src.len);
            let place = under_way.operand.get_or_insert_with(room).as_mut_ptr().cast::<u8>();
            drop(under_way);
            if is_new {
                self.get_far(self.far(from, src), place, src.len);
            }
            place
        };
        if !self.got::<BLOCK>(step)? {
            return Ok(false);
        }
        self.combine(Elements { at: place, shared: false }, dst, before);
        let room = self.task.under_way(self.engine).operand.take();
        self.engine.spare.keep(room.unwrap_or_default());
        Ok(true)
    }

    /// Elements of a buffer.
    #[inline(always)]
    fn elements(&self, buffer: Buffer, at: *mut u8) -> Elements {
        let base = match buffer {
            // Ranks that disagree would write there.
            Buffer::Scratch => return Elements { at, shared: true },
            Buffer::Source => &self.task.bases[0],
            Buffer::Dest => &self.task.bases[1],
        };
        Elements { at, shared: !matches!(base, Base::Private(_)) }
    }

    /// Waits for the next letter of a member.
    #[inline(always)]
    fn letter<const BLOCK: bool>(&self, step: &Step, from: usize) -> Result<Option<Letter>, Aborted> {
        let (engine, desk) = (self.engine, &self.engine.desk);
        if let Some(posting) = self.posting {
            let (at, epoch) = (posting.of(from, desk.rank()), self.task.epoch());
            let line = desk.line(self.context, at);
            let has_come = engine.wait::<BLOCK>(self.inner, self.task, Some(step), || has_come(line, epoch))?;
            return Ok(has_come.then_some(Letter::Posted(at)));
        }
        let known = self.known(from);
        let (next, letter) = (known.letters_got.get() + 1, &desk.from(from).told[self.context].letter);
        let ready = || letter.number.get() >= next;
        if !ready() && !engine.wait::<BLOCK>(self.inner, self.task, Some(step), ready)? {
            return Ok(None);
        }
        known.letters_got.set(next);
        Ok(Some(Letter::Sent(next)))
    }

    /// Reads a letter that is there.
    #[inline(always)]
    fn read(&self, from: usize, letter: Letter, words: &mut [u64]) {
        match letter {
            Letter::Sent(_) => self.engine.desk.from(from).told[self.context].letter.read(words),
            Letter::Posted(line) => self.engine.read_posted(self.context, from, line, words, self.task.epoch()),
        }
    }

    #[inline(always)]
    fn take(&self, from: usize, dst: &[Span], letter: Letter) {
        let mut words = [0; WORDS];
        let all: usize = dst.iter().map(|span| span.len).sum();
        self.read(from, letter, &mut words[..all.div_ceil(8)]);
        let mut len = 0;
        for &span in dst {
            // SAFETY: inside, since all of them are no more than a letter.
            let p = unsafe { words.as_ptr().cast::<u8>().add(len) };
            self.copy(self.mine(span), p, span.len);
            len += span.len;
        }
        self.taken(from, letter);
    }

    /// A letter has been read.
    #[inline(always)]
    fn taken(&self, from: usize, letter: Letter) {
        // Of what is posted a rank says how far it is when it begins with another.
        let Letter::Sent(number) = letter else { return };
        match self.engine.desk.to(from) {
            Some(_) => self.engine.was_taken(self.task.epoch(), self.context, from),
            None => {
                self.engine.hears(from, self.task.epoch());
                match self.totals.letters_again {
                    true => self.engine.answer(self.inner, self.task.site, self.context, from, number),
                    false => self.engine.was_taken_far(self.task.epoch(), self.context, from, number),
                }
            }
        }
    }

    /// Whether this rank is the last one.
    #[inline(always)]
    fn arrive(&self) -> bool {
        if !self.engine.others.is_empty() {
            self.arrive_beyond();
            return false;
        }
        self.engine.arrive_near(self.context)
    }

    #[cold]
    fn arrive_beyond(&self) {
        let (engine, hall) = (self.engine, self.engine.desk.hall(self.context));
        if (hall.arrive_here() + 1).is_multiple_of(engine.here) {
            hall.arrive(engine.here);
            engine.desk.ring_all();
            let what = [engine.words[self.context].hall, engine.here, 0, 0];
            for &first in &engine.others {
                self.inner.request(self.task.site, Rank(first), ARRIVED, bytemuck::bytes_of(&what), &[]);
            }
        }
    }
}
