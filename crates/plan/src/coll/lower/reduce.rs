//! From what is combined where to one rank's steps.
//!
//! The signals are those of [blocks that pass](super), and needed when they are there, unless the result comes back from the
//! same rank, which says as much. In scratch are, one behind the other:
//!
//! - the operand, if others get it and it is private, or if its place is overwritten while it is still needed;
//! - the result, if others put it there, or get it, and it is private: it is copied in the end;
//! - the flow's slots.
//!
//! Which of them there are all ranks know. [What makes scratch safe](super) does so here, too: where a place is put to
//! twice in a plan, the second put brings what came of the first. What is put is combined where it has landed; what is got
//! is combined as it is got, and a letter as it is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::flow::reduce::{Act, Place, slots};
use super::super::{Buffer, Flow, In, Kind, Op, Out, Shape, Signal, Span, Step, Way};
use super::Lowering;

/// A partial result that passes, as both its ends see it.
struct Passed {
    peer: usize,
    send: bool,
    way: Way,
    /// Where it is at its sender, and where it comes at its receiver.
    src: Span,
    dst: Span,
    /// Does the sender need to know that the receiver has entered?
    sender_asks: bool,
    /// Does the receiver need to know that the sender has entered?
    receiver_asks: bool,
    /// It is got, and not there from the beginning.
    fresh: bool,
    done: bool,
}

/// Which of its places a rank has in scratch.
#[derive(Clone, Copy)]
struct InScratch {
    own: bool,
    result: bool,
}

impl Shape {
    /// The operand of `rank` is put aside before anything else: others get it, or it is put to them, from where the result
    /// will be, which may be there earlier.
    pub(in super::super) fn aside(&self, rank: usize) -> bool {
        self.ranks > 1
            && self.begins_in_place(rank)
            && match (self.flow, &self.op) {
                (Flow::Flat, Op::Prefix { .. }) => self.way != Way::Mail && rank > 0,
                (Flow::Flat, Op::AllReduce) | (Flow::Doubling | Flow::Leaders, _) => self.way != Way::Mail,
                (Flow::Dissemination, Op::Prefix { exclusive }) => (self.way != Way::Mail || *exclusive) && rank > 0,
                _ => false,
            }
    }

    /// Others get it, but cannot where it begins.
    fn hidden(&self, rank: usize) -> bool {
        self.way == Way::Pull && self.kind(self.origin(rank).1) == Kind::Private
    }

    /// Does an operand have a place in scratch, and does a result?
    fn in_scratch(&self) -> InScratch {
        let (first, last) = (self.op.root().unwrap_or(0), self.op.root().unwrap_or(self.ranks - 1));
        let hidden = self.way == Way::Pull && (self.source == Kind::Private || self.hidden(first));
        let passed = match self.way {
            Way::Push => true,
            Way::Pull | Way::Split => self.flow != Flow::Flat && self.op.root().is_none(),
            Way::Mail | Way::Post => false,
        };
        InScratch { own: hidden || self.aside(last), result: passed && self.dest == Kind::Private }
    }

    /// No rank's plan of a reduction needs more scratch.
    pub(in super::super) fn reduction_scratch(&self) -> usize {
        let alone = |rank: usize| self.alone(rank) * self.chunk().min(self.len);
        match self.flow {
            _ if self.ranks == 1 => 0,
            Flow::Leader(leader) => alone(self.leads(leader)),
            // Of these, one needs most: some are not the root, and one has another's operands before its own.
            Flow::Last | Flow::Coop(_) => (0..self.ranks.min(4)).chain([self.ranks - 1]).map(alone).max().unwrap_or(0),
            _ => self.slots_at() + slots(self) * self.slot_len(),
        }
    }

    /// How much of a vector is done at a time, if one rank does all of that.
    fn chunk(&self) -> usize {
        match self.flow {
            Flow::Coop(chunk) => (chunk / self.grain * self.grain).max(self.grain),
            _ => self.len,
        }
    }

    /// How many vectors, or chunks of them, the rank that does it all has in scratch.
    fn alone(&self, rank: usize) -> usize {
        match self.op {
            Op::Prefix { exclusive: true } => 1 + usize::from(self.in_place && self.ranks > 2),
            Op::Prefix { exclusive: false } => 1,
            _ => usize::from(!self.has_result(rank) || (self.begins_in_place(rank) && rank > 1)),
        }
    }

    fn slots_at(&self) -> usize {
        let InScratch { own, result } = self.in_scratch();
        (usize::from(own) + usize::from(result)) * self.len
    }

    fn slot_len(&self) -> usize {
        if self.slot_is_part() { self.part(0).len() } else { self.len }
    }

    /// A part of what a rank has at `place`.
    fn at(&self, rank: usize, place: Place, part: usize, here: InScratch) -> Span {
        let bytes = self.part(part);
        let span = |buffer, base: usize| Span { buffer, at: base + bytes.start, len: bytes.len() };
        match place {
            Place::Own if here.own => span(Buffer::Scratch, 0),
            Place::Own => span(self.origin(rank).1.buffer, 0),
            Place::Result if here.result => span(Buffer::Scratch, usize::from(self.in_scratch().own) * self.len),
            Place::Result => span(Buffer::Dest, 0),
            Place::Slot(i) => {
                let base = self.slots_at() + i * self.slot_len();
                let at = if self.slot_is_part() { base } else { base + bytes.start };
                Span { buffer: Buffer::Scratch, at, len: bytes.len() }
            }
        }
    }

    /// The same, as others see it, who see no place that they cannot touch.
    fn seen(&self, rank: usize, place: Place, part: usize) -> Span {
        let here = InScratch { own: self.aside(rank) || self.hidden(rank), result: self.dest == Kind::Private };
        self.at(rank, place, part, here)
    }

    /// Who receives an operand, or a partial result, sends the result of it back: so the one has entered, and the other has
    /// got what it combined.
    fn answers(&self) -> bool {
        match self.flow {
            Flow::Tree(_) | Flow::Chain(_) | Flow::Nodes(..) => self.op == Op::AllReduce,
            Flow::Slices => matches!(self.op, Op::AllReduce | Op::Prefix { exclusive: false }),
            _ => false,
        }
    }

    /// Of a split reduction operands are got, so that they are combined at once, and results are put.
    fn way_of(&self, result: bool) -> Way {
        match self.way {
            Way::Split if result => Way::Push,
            Way::Split => Way::Pull,
            way => way,
        }
    }
}

impl Lowering<'_> {
    pub fn reduction(&mut self, acts: &[(usize, Act)]) {
        let (shape, me) = (self.shape, self.me);
        let (enter, leave) = shape.sync();
        let here = self.in_scratch(acts);
        // A part may be empty, if there are fewer elements than parts.
        let acts = || acts.iter().filter(|(part, _)| !shape.part(*part).is_empty());
        if enter == In::All {
            self.arrive();
        }
        let passed = acts().filter_map(|(part, act)| self.passed(*part, act, here));
        let passed: Vec<Passed> = passed.collect();
        for m in &passed {
            let touches = m.sender_asks && enter == In::My && m.dst.buffer != Buffer::Scratch;
            self.asks(m.peer, m.send, touches, m.receiver_asks);
        }
        let asked = passed.iter().filter(|m| if m.send { m.receiver_asks } else { m.sender_asks });
        let mut told = BTreeSet::new();
        for to in asked.map(|m| m.peer).filter(|&peer| told.insert(peer)) {
            self.step(Step::Signal { to, signal: self.entry(to, true) });
        }
        let whole = |buffer, at| Span { buffer, at, len: shape.len };
        if here.own {
            self.copy(shape.origin(me).1, whole(Buffer::Scratch, 0));
        }
        let mut done = BTreeMap::new();
        for (part, act) in acts() {
            let at = |place| shape.at(me, place, *part, here);
            match (*act, self.passed(*part, act, here)) {
                (Act::Send { .. }, Some(m)) => {
                    self.pass(&m);
                    if m.done {
                        *done.entry(m.peer).or_default() += 1;
                    }
                }
                (Act::Fold { into, before, .. }, Some(m)) => self.take(&m, Some((at(into), before))),
                (_, Some(m)) => self.take(&m, None),
                (Act::Combine { src, into, before }, _) => self.combine(me, at(src), at(into), before),
                (Act::Copy { src, dst }, _) if at(src) != at(dst) => self.copy(at(src), at(dst)),
                _ => {}
            }
        }
        if here.result {
            self.copy(whole(Buffer::Scratch, usize::from(shape.in_scratch().own) * shape.len), whole(Buffer::Dest, 0));
        }
        for (from, n) in done {
            self.wait(from, Signal::Done, n);
        }
        if leave == Out::All {
            self.arrive();
            // The root has received from all, so it knows that all is done; unless there was nothing.
            if shape.op != (Op::Reduce { root: me }) || shape.len == 0 {
                self.meet();
            }
        }
        self.end();
    }

    /// Which of my places are in scratch.
    fn in_scratch(&self, acts: &[(usize, Act)]) -> InScratch {
        let (shape, me) = (self.shape, self.me);
        let way = |result| shape.way_of(result);
        let got = |place: Place| {
            let sends = |act: &Act| matches!(*act, Act::Send { value, result, .. } if value == place && way(result) == Way::Pull);
            acts.iter().any(|(_, act)| sends(act))
        };
        let lands = |act: &Act| match *act {
            Act::Receive { here, result, .. } => here == Place::Result && way(result) == Way::Push,
            Act::Fold { here, .. } => here == Place::Result && way(false) == Way::Push,
            _ => false,
        };
        let own = shape.len > 0 && (shape.aside(me) || (shape.hidden(me) && got(Place::Own)));
        let landed = acts.iter().any(|(_, act)| lands(act));
        InScratch { own, result: shape.len > 0 && shape.dest == Kind::Private && (landed || got(Place::Result)) }
    }

    /// What passes when a rank does this; nothing if nothing does.
    fn passed(&self, part: usize, act: &Act, here: InScratch) -> Option<Passed> {
        let (shape, me) = (self.shape, self.me);
        let (peer, value, there, result, send) = match *act {
            Act::Send { to, value, there, result } => (to, value, there, result, true),
            Act::Receive { from, value, here, result } => (from, value, here, result, false),
            Act::Fold { from, value, here, .. } => (from, value, here, false, false),
            Act::Combine { .. } | Act::Copy { .. } => return None,
        };
        let (enter, leave) = shape.sync();
        let way = shape.way_of(result);
        let (src, dst) = match send {
            true => (shape.at(me, value, part, here), shape.seen(peer, there, part)),
            false => (shape.seen(peer, value, part), shape.at(me, there, part, here)),
        };
        let scratch = |span: Span| span.buffer == Buffer::Scratch;
        let got = way == Way::Pull;
        let fresh = got && (value != Place::Own || scratch(src));
        Some(Passed {
            peer,
            send,
            way,
            src,
            dst,
            sender_asks: way == Way::Push
                && enter != In::All
                && (enter == In::My || scratch(dst))
                && !(result && shape.answers()),
            receiver_asks: got && !fresh && enter == In::My,
            fresh,
            done: got && leave != Out::All && (leave == Out::My || scratch(src)) && (result || !shape.answers()),
        })
    }

    fn pass(&mut self, m: &Passed) {
        let to = m.peer;
        if m.fresh {
            self.step(Step::Signal { to, signal: Signal::Data });
        }
        if m.sender_asks {
            self.wait_for_entry(to);
        }
        match m.way {
            Way::Mail | Way::Post => {
                self.touch(m.src);
                self.step(Step::Send { to, src: vec![m.src] });
            }
            Way::Push => {
                self.touch(m.src);
                self.step(Step::Put { to, src: m.src, dst: m.dst });
            }
            Way::Pull | Way::Split => {}
        }
    }

    /// What comes replaces what was there, or is combined with it.
    fn take(&mut self, m: &Passed, into: Option<(Span, bool)>) {
        let (me, from) = (self.me, m.peer);
        if m.receiver_asks {
            self.wait_for_entry(from);
        }
        if m.fresh {
            self.wait_for_data(from, 1);
        }
        match (m.way, into) {
            (Way::Mail | Way::Post, into) => {
                self.met = true;
                let dst = into.map_or(m.dst, |(into, _)| into);
                self.touch(dst);
                self.step(match into {
                    Some((dst, before)) => Step::TakeCombine { from, dst, before },
                    None => Step::Take { from, dst: vec![dst] },
                });
            }
            (Way::Push, into) => {
                self.wait_for_data(from, 1);
                self.touch(m.dst);
                into.into_iter().for_each(|(into, before)| self.combine(me, m.dst, into, before));
            }
            (Way::Pull | Way::Split, Some((into, before))) => self.combine(from, m.src, into, before),
            (Way::Pull | Way::Split, None) => {
                self.touch(m.dst);
                self.step(Step::Get { from, src: m.src, dst: m.dst });
            }
        }
        if m.done {
            self.step(Step::Signal { to: from, signal: Signal::Done });
        }
    }

    fn combine(&mut self, from: usize, src: Span, dst: Span, before: bool) {
        if from == self.me {
            self.touch(src);
        }
        self.touch(dst);
        self.step(Step::Combine { from, src, dst, before });
    }

    /// All combine, chunk by chunk. Who has arrived in the end has done what it claimed.
    pub fn coop(&mut self) {
        let (shape, (enter, leave)) = (self.shape, self.shape.sync);
        if enter == In::All {
            self.arrive();
            self.meet();
        }
        let begins = (0..shape.len).step_by(shape.chunk());
        let mut combined = |at: usize| {
            let mut steps = self.all_combined(at..(at + shape.chunk()).min(shape.len));
            steps.shrink_to_fit();
            steps
        };
        let chunks: Vec<Vec<Step>> = begins.map(&mut combined).collect();
        self.plan.totals.claims = chunks.len();
        if !chunks.is_empty() {
            self.step(Step::Claim { chunks });
        }
        if leave != Out::No {
            self.arrive();
            self.meet();
        }
    }

    /// The reduction of these bytes, by this rank, in the memory of all: operands from the first rank's on.
    pub fn all_combined(&mut self, bytes: Range<usize>) -> Vec<Step> {
        let (shape, me, p, len) = (self.shape, self.me, self.shape.ranks, bytes.len());
        if len == 0 {
            return vec![];
        }
        self.plan.scratch = if p > 1 { self.plan.scratch.max(shape.alone(me) * len) } else { 0 };
        let span = |buffer, at| Span { buffer, at, len };
        let (src, dst) = (|r: usize| span(shape.origin(r).1.buffer, bytes.start), span(Buffer::Dest, bytes.start));
        let slot = |i: usize| span(Buffer::Scratch, i * len);
        let combine = |from: usize, dst: Span, before: bool| Step::Combine { from, src: src(from), dst, before };
        let mut steps = vec![];
        match shape.op {
            _ if p == 1 => {
                if !shape.operands(0).is_empty() {
                    steps.push(Step::Carry { from: 0, src: src(0), to: 0, dst });
                }
            }
            Op::Prefix { exclusive } => {
                // Where the next operand is in the place of a result, that must be read before this is written.
                let turns = exclusive && shape.in_place;
                let mut sum = 0;
                steps.push(Step::Carry { from: 0, src: src(0), to: me, dst: slot(sum) });
                if !exclusive {
                    steps.push(Step::Carry { from: 0, src: src(0), to: 0, dst });
                }
                for r in 1..p {
                    let out = Step::Carry { from: me, src: slot(sum), to: r, dst };
                    match (exclusive, r + 1 < p) {
                        (false, _) => steps.extend([combine(r, slot(sum), false), out]),
                        (true, true) if turns => {
                            steps.push(Step::Carry { from: me, src: slot(sum), to: me, dst: slot(1 - sum) });
                            steps.extend([combine(r, slot(1 - sum), false), out]);
                            sum = 1 - sum;
                        }
                        (true, true) => steps.extend([out, combine(r, slot(sum), false)]),
                        (true, false) => steps.push(out),
                    }
                }
            }
            _ => {
                let sum = if shape.alone(me) == 0 { dst } else { slot(0) };
                let first = if me < 2 { me } else { 0 };
                steps.push(Step::Carry { from: first, src: src(first), to: me, dst: sum });
                steps.extend((0..p).filter(|&r| r != first).map(|r| combine(r, sum, r < first)));
                let results = (0..p).filter(|&r| shape.has_result(r));
                steps.extend(results.map(|to| Step::Carry { from: me, src: sum, to, dst }));
            }
        }
        // What is where it must be is not carried.
        steps.retain(|step| !matches!(step, Step::Carry { from, src, to, dst } if (from, src) == (to, dst)));
        steps
    }
}
