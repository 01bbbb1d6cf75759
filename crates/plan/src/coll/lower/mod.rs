//! From a flow to one rank's steps.
//!
//! Each message of the flow becomes steps at both its ends, which fit together because both compute the same: the
//! places at either end, the runs that they make up, and the signals that are needed. Those are, in one context:
//!
//! | signal | made by | when it is needed |
//! |---|---|---|
//! | entered, or free | a rank whose memory another touches, when it enters, once to each | `In::My` asks; or what is put lands in scratch: *free*, if nothing else does |
//! | data | the sender | where it puts: always; where it is got from: if the block is not there from the beginning |
//! | done | the receiver, when it has got | `Out::My` asks, or the place is scratch, which the next collective uses again |
//!
//! `In::All`: all arrive when they enter, and who touches data without having received any meets them first. Data that were
//! received come from one who did, so nobody else needs to. `Out::All`: all arrive in the end and meet. Both stand for
//! entered and done, scratch included.
//!
//! Why scratch is safe: each place in it is written once in a plan. It is put to only by one who knows that its rank
//! has entered, hence ended the plan before. It is got from by ranks of which each has said, or shown by arriving, that
//! it is done, before the plan ends.
//!
//! A reduction passes partial results instead of blocks, by the same rules: [`reduce`].
//!
//! Nobody can tell `All` from `My` where source and destination are private: it is `My` there.

mod gmtu;
mod reduce;

use std::collections::{BTreeMap, BTreeSet};

use super::flow::{Move, reduce::acts};
use super::{Buffer, Flow, In, Kind, Op, OpKind, Out, Plan, Posting, Scheme, Shape, Signal, Span, Step, Totals, Way};

/// So many ranks at most may leave all of an exchange to one of them: the plan of each has a step from every rank to every other, so all of
/// them together take memory and time in the cube of the ranks.
const MOST_OF_ALL: usize = 32;

impl Shape {
    /// The steps of rank `me`; nothing where the flow is not one for the operation, or not for these buffers, this way
    /// or this sync mode. The answer is the same on every rank.
    ///
    /// # Panics
    /// If `me` or the root is no rank, a broadcast has no pieces, a permutation is not one of all ranks, nodes are
    /// not of these ranks, or vectors are not of whole elements.
    pub fn plan(&self, me: usize) -> Option<Plan> {
        assert!(me < self.ranks && self.op.root().is_none_or(|root| root < self.ranks), "plan: no such rank");
        assert!(!matches!(self.op, Op::Broadcast { pieces: 0, .. }), "plan: a broadcast has one piece at least");
        if let Op::Permute { to } = &self.op {
            let known = to.iter().filter(|&&t| t != Op::UNKNOWN).all(|&t| t < self.ranks);
            let once = to.iter().filter(|&&t| t == me).count() == 1;
            assert!(to.len() == self.ranks && known && once, "plan: a permutation names every rank once");
            assert!(to[me] != Op::UNKNOWN, "plan: a rank knows where its block goes");
        }
        assert!(self.nodes.as_ref().is_none_or(|n| n.ranks() == self.ranks), "plan: nodes are of other ranks");
        let whole = self.grain > 0 && self.len.is_multiple_of(self.grain);
        assert!(!self.op.combines() || whole, "plan: vectors are of whole elements");
        if !self.fits() {
            return None;
        }
        if self.way == Way::Post {
            return self.mailed().plan(me);
        }
        let mut lowering = Lowering::new(self, me);
        match self.flow {
            Flow::Leader(leader) => lowering.leader(self.leads(leader)),
            Flow::Last => lowering.last(),
            Flow::Coop(_) => lowering.coop(),
            _ if self.op.combines() => lowering.reduction(&acts(self, me)?),
            flow => lowering.by_scheme(&flow.moves(self, me)?),
        }
        let mut plan = lowering.plan;
        let mut senders = BTreeSet::new();
        plan.totals.letters_again = plan.steps.iter().any(|step| match step {
            Step::Take { from, .. } | Step::TakeCombine { from, .. } => !senders.insert(*from),
            _ => false,
        });
        Some(plan)
    }

    /// The same by letters to each.
    pub(super) fn mailed(&self) -> Shape {
        Shape { way: Way::Mail, ..self.clone() }
    }

    /// Which line of the board each letter has; nothing if letters are not posted, or cannot be.
    pub fn posting(&self) -> Option<Posting> {
        let are_near = self.nodes.as_ref().is_none_or(|nodes| nodes.count() < 2);
        match self.op {
            _ if (self.flow, self.way, self.scheme) != (Flow::Flat, Way::Post, Scheme::Fused) || !are_near => None,
            Op::Exchange => None,
            Op::Broadcast { pieces, .. } if pieces > 1 => None,
            Op::Scatter { .. } => Some(Posting::OfReceiver),
            _ => Some(Posting::OfSender),
        }
    }

    /// Does it have plans?
    pub fn fits(&self) -> bool {
        if self.way == Way::Post {
            return self.posting().is_some() && self.mailed().fits();
        }
        let shared = (self.source, self.dest) == (Kind::Shared, Kind::Shared);
        let known = !matches!(&self.op, Op::Permute { to } if to.contains(&Op::UNKNOWN));
        let (push, swaps) = (self.way == Way::Push, self.swaps());
        let direct = matches!(self.flow, Flow::Flat | Flow::Pairwise | Flow::Xor);
        // All of it is in the plan of each rank that may be the one to do it.
        let is_long = self.ranks > MOST_OF_ALL && matches!(self.op, Op::Exchange | Op::GatherAll);
        let flow = match (self.scheme, self.flow) {
            (scheme, _) if self.op.combines() && scheme != Scheme::Fused => false,
            (_, Flow::Leader(_) | Flow::Last) if is_long => false,
            // One rank's steps depend on all others having entered: that is not what `My` says.
            (Scheme::Fused, Flow::Leader(leader)) => {
                let is_one = leader.is_none_or(|leader| leader < self.ranks);
                is_one && shared && self.sync.0 != In::My && known && !swaps
            }
            (Scheme::Fused, Flow::Last | Flow::Coop(_)) => {
                let my = self.sync.0 == In::My || self.sync == (In::No, Out::My);
                shared && !my && known && !swaps
            }
            // What is overwritten has been sent, or copied to where it is got from, in these orders and ways.
            (Scheme::Fused, Flow::Flat | Flow::Xor) if swaps => matches!(self.way, Way::Pull | Way::Mail),
            (Scheme::Fused, _) => !swaps && (shared || self.way != Way::Split),
            (_, Flow::Leader(_) | Flow::Last | Flow::Nodes(..)) => false,
            _ if swaps => false,
            (Scheme::Plain | Scheme::Elements, flow) => {
                let got = self.source == Kind::Shared && (shared || !self.in_place);
                flow == Flow::Flat && ((push && self.dest == Kind::Shared) || (self.way == Way::Pull && got))
            }
            (Scheme::Trees, Flow::Tree(_)) => push && shared && self.op.kind() == OpKind::Broadcast,
            (Scheme::Trees, _) => push && shared && direct,
            (Scheme::Dynamic, flow) => push && matches!(flow, Flow::Flat | Flow::Xor | Flow::Tree(_) | Flow::Ring),
            (Scheme::Static, flow) => match self.op.kind() {
                _ if !push => false,
                OpKind::Broadcast => matches!(flow, Flow::Tree(_)),
                OpKind::GatherAll => flow == Flow::Ring,
                OpKind::Exchange => flow == Flow::Xor,
                _ => flow == Flow::Flat,
            },
        };
        flow && self.flow.serves(self)
    }

    /// Who does it all, if nobody else is named: the root; but of two ranks the one to which data go, since it reads what the other
    /// has, which is quicker than writing there.
    fn leader(&self) -> usize {
        match self.op {
            Op::Broadcast { root, .. } | Op::Scatter { root } if self.ranks == 2 => 1 - root,
            _ => self.op.root().unwrap_or(0),
        }
    }

    /// Who does it all, if this one is named, or nobody.
    fn leads(&self, named: Option<usize>) -> usize {
        named.unwrap_or(self.leader())
    }

    /// Where the sender of a message has `block`.
    fn held(&self, rank: usize, block: usize) -> Span {
        let origin = self.origin(block);
        match self.way {
            _ if origin.0 != rank => self.landing(rank, block),
            _ if self.staged(block) => self.stage(rank, block),
            _ => origin.1,
        }
    }

    /// What others are to get must be where they can, and stay there. And what a leader passes on with others' is beside that.
    fn staged(&self, block: usize) -> bool {
        let (rank, origin) = self.origin(block);
        let got = self.way == Way::Pull && (self.swaps() || self.kind(origin) == Kind::Private);
        got || self.scheme == Scheme::Dynamic || self.packed(block).is_some_and(|(sender, _)| sender == rank)
    }

    /// The leaders, of whom the one passes this block to the other between nodes, among others: all are one message if they lie side by side at
    /// both ends, in scratch.
    fn packed(&self, block: usize) -> Option<(usize, usize)> {
        let (Flow::Nodes(_, leaders), Op::Exchange, Some(nodes)) = (self.flow, &self.op, &self.nodes) else {
            return None;
        };
        let (from, to) = (block / self.ranks, block % self.ranks);
        let (source, target) = (nodes.members(nodes.of(from)), nodes.members(nodes.of(to)));
        let several = nodes.of(from) != nodes.of(to) && source.len() * target.len() > 1;
        let stream = nodes.index(from) % leaders;
        (several && self.way != Way::Mail).then(|| (source[stream % source.len()], target[stream % target.len()]))
    }

    /// Where that is: apart from what is received, if that is in scratch, too.
    fn stage(&self, rank: usize, block: usize) -> Span {
        let slot = self.slot(rank, block);
        let apart = if self.scheme == Scheme::Dynamic { self.slots() * self.len } else { 0 };
        Span { at: slot.at + apart, ..slot }
    }

    /// Where the receiver of a message has `block`: where it must be in the end, if its sender or those to whom it is
    /// passed on can touch that.
    fn landing(&self, rank: usize, block: usize) -> Span {
        let packed = self.packed(block).is_some_and(|(_, receiver)| receiver == rank);
        let reached = (self.dest == Kind::Shared && self.scheme != Scheme::Dynamic) || self.way == Way::Mail;
        self.target(rank, block).filter(|_| reached && !packed).unwrap_or_else(|| self.slot(rank, block))
    }

    fn kind(&self, span: Span) -> Kind {
        match span.buffer {
            Buffer::Source => self.source,
            Buffer::Dest => self.dest,
            Buffer::Scratch => Kind::Shared,
        }
    }

    /// The blocks that begin and end at `rank`, but not in the same place: from where to where.
    fn own(&self, rank: usize) -> Vec<(Span, Span)> {
        let blocks = self.between(rank, rank);
        runs(blocks.filter_map(|b| Some((self.origin(b).1, self.target(rank, b)?))).filter(|(src, dst)| src != dst))
    }
}

/// Neighbours at both ends are one; what is empty is nothing.
fn runs(pairs: impl Iterator<Item = (Span, Span)>) -> Vec<(Span, Span)> {
    let mut list: Vec<(Span, Span)> = vec![];
    let follows = |a: Span, b: Span| a.buffer == b.buffer && a.at + a.len == b.at;
    for (src, dst) in pairs.filter(|(src, _)| src.len > 0) {
        match list.last_mut() {
            Some((s, d)) if follows(*s, src) && follows(*d, dst) => {
                s.len += src.len;
                d.len += dst.len;
            }
            _ => list.push((src, dst)),
        }
    }
    list
}

/// A message, as both its ends see it.
struct Message {
    peer: usize,
    send: bool,
    blocks: Vec<usize>,
    /// What is put or sent: from where to where.
    pushed: Vec<(Span, Span)>,
    /// What is got.
    pulled: Vec<(Span, Span)>,
    /// Does the sender need to know that the receiver has entered, and only because of its scratch?
    sender_asks: bool,
    scratch_only: bool,
    /// Does the receiver need to know that the sender has entered?
    receiver_asks: bool,
    /// What is got is not there from the beginning.
    fresh: bool,
    done: bool,
}

impl Message {
    fn new(shape: &Shape, me: usize, moves: &[Move]) -> Option<Message> {
        let Move { peer, send, .. } = moves[0];
        let (from, to) = if send { (me, peer) } else { (peer, me) };
        let blocks: Vec<usize> = moves.iter().map(|m| m.block).collect();
        let all = runs(blocks.iter().map(|&b| (shape.held(from, b), shape.landing(to, b))));
        // The half that is put is not the longer one.
        let half = |(src, dst): &(Span, Span)| {
            let cut = |s: &Span| {
                let len = s.len / 2;
                (Span { len, ..*s }, Span { at: s.at + len, len: s.len - len, ..*s })
            };
            let ((a, b), (c, d)) = (cut(src), cut(dst));
            ((a, c), (b, d))
        };
        let (pushed, pulled): (Vec<_>, Vec<_>) = match shape.way {
            Way::Push | Way::Mail | Way::Post => (all, vec![]),
            Way::Pull => (vec![], all),
            Way::Split => all.iter().map(half).unzip(),
        };
        let pushed = runs(pushed.into_iter());
        let (enter, leave) = shape.sync();
        let scratch = |span: Span| span.buffer == Buffer::Scratch;
        let begins_there = |b: usize| shape.origin(b) == (from, shape.held(from, b));
        let got = !pulled.is_empty();
        let fresh = got && !blocks.iter().all(|&b| begins_there(b));
        let message = Message {
            peer,
            send,
            sender_asks: shape.way != Way::Mail
                && enter != In::All
                && pushed.iter().any(|&(_, dst)| enter == In::My || scratch(dst)),
            scratch_only: enter == In::No || pushed.iter().all(|&(_, dst)| scratch(dst)),
            receiver_asks: got && !fresh && enter == In::My,
            fresh,
            done: got && leave != Out::All && (leave == Out::My || pulled.iter().any(|&(src, _)| scratch(src))),
            blocks,
            pushed,
            pulled,
        };
        (!message.pushed.is_empty() || got).then_some(message)
    }
}

struct Lowering<'a> {
    shape: &'a Shape,
    me: usize,
    plan: Plan,
    /// It knows that all have entered.
    met: bool,
    /// Its own blocks have been copied.
    copied: bool,
    heard: BTreeMap<(usize, Signal), usize>,
    /// Peers, and whether it is this rank that enters, where the other one touches data; else it puts to scratch only.
    entered: BTreeSet<(usize, bool)>,
}

impl<'a> Lowering<'a> {
    fn new(shape: &'a Shape, me: usize) -> Lowering<'a> {
        let plan = Plan { steps: vec![], scratch: 0, totals: Totals::default() };
        Lowering {
            shape,
            me,
            plan,
            met: shape.sync().0 != In::All,
            copied: false,
            heard: BTreeMap::new(),
            entered: BTreeSet::new(),
        }
    }

    fn messages(&mut self, moves: &[Move]) {
        let (shape, me) = (self.shape, self.me);
        let (enter, leave) = shape.sync();
        let messages: Vec<Message> = moves
            .chunk_by(|a, b| (a.send, a.peer, a.round) == (b.send, b.peer, b.round))
            .filter_map(|moves| Message::new(shape, me, moves))
            .collect();
        let sent: BTreeSet<usize> = messages.iter().filter(|m| m.send).flat_map(|m| m.blocks.iter().copied()).collect();

        if enter == In::All {
            self.arrive();
        }
        messages.iter().for_each(|m| self.asks(m.peer, m.send, m.sender_asks && !m.scratch_only, m.receiver_asks));
        let asked = messages.iter().filter(|m| if m.send { m.receiver_asks } else { m.sender_asks });
        let mut told = BTreeSet::new();
        for to in asked.map(|m| m.peer).filter(|&peer| told.insert(peer)) {
            self.step(Step::Signal { to, signal: self.entry(to, true) });
        }
        let mut staged = BTreeSet::new();
        for m in &messages {
            if m.send { self.send(m, &mut staged) } else { self.receive(m, &sent) }
        }
        self.copy_own();
        let mut done = BTreeMap::new();
        messages.iter().filter(|m| m.send && m.done).for_each(|m| *done.entry(m.peer).or_default() += 1);
        for (from, n) in done {
            self.wait(from, Signal::Done, n);
        }
        if leave == Out::All {
            self.arrive();
            // The root of a gather has received from all, so it knows that all is done; unless there was nothing.
            if shape.op != (Op::Gather { root: me }) || shape.len == 0 {
                self.meet();
            }
        }
    }

    /// What it has waited for is all that there was.
    fn end(&mut self) {
        self.plan.totals.signals = self.heard.iter().map(|(&(from, signal), &n)| (from, signal, n)).collect();
    }

    fn send(&mut self, m: &Message, staged: &mut BTreeSet<usize>) {
        let (shape, to) = (self.shape, m.peer);
        // A block that cannot be got from where it begins is copied to where it can, once.
        let stage = |&b: &usize| shape.origin(b).0 == self.me && shape.staged(b);
        let fresh = m.blocks.iter().copied().filter(stage).filter(|&b| staged.insert(b));
        for (src, dst) in runs(fresh.map(|b| (shape.origin(b).1, shape.stage(self.me, b)))) {
            self.copy(src, dst);
        }
        if m.fresh {
            self.step(Step::Signal { to, signal: Signal::Data });
        }
        if m.sender_asks {
            self.wait_for_entry(to);
        }
        m.pushed.iter().for_each(|&(src, _)| self.touch(src));
        if shape.way == Way::Mail {
            self.step(Step::Send { to, src: m.pushed.iter().map(|&(src, _)| src).collect() });
        } else {
            m.pushed.iter().for_each(|&(src, dst)| self.step(Step::Put { to, src, dst }));
        }
    }

    fn receive(&mut self, m: &Message, sent: &BTreeSet<usize>) {
        let (shape, me, from) = (self.shape, self.me, m.peer);
        if m.receiver_asks {
            self.wait_for_entry(from);
        }
        if m.fresh {
            self.wait_for_data(from, 1);
        }
        // Got blocks that nobody gets from here go where they must be.
        let ends = |b: usize| shape.target(me, b).filter(|_| shape.way == Way::Pull && !sent.contains(&b));
        let pulled = match shape.way {
            Way::Pull => runs(m.blocks.iter().map(|&b| (shape.held(from, b), ends(b).unwrap_or(shape.landing(me, b))))),
            _ => m.pulled.clone(),
        };
        for (src, dst) in pulled {
            self.touch(dst);
            self.step(Step::Get { from, src, dst });
        }
        if m.done {
            self.step(Step::Signal { to: from, signal: Signal::Done });
        }
        if shape.way == Way::Mail {
            self.copy_own();
            self.met = true;
            m.pushed.iter().for_each(|&(_, dst)| self.touch(dst));
            self.step(Step::Take { from, dst: m.pushed.iter().map(|&(_, dst)| dst).collect() });
        } else if !m.pushed.is_empty() {
            // Data take effect in order: the last of them says that all are there.
            self.wait_for_data(from, m.pushed.len());
            m.pushed.iter().for_each(|&(_, dst)| self.touch(dst));
        }
        let landed = m.blocks.iter().filter(|&&b| ends(b).is_none());
        for (src, dst) in runs(landed.filter_map(|&b| Some((shape.landing(me, b), shape.target(me, b)?)))) {
            if src != dst {
                self.copy(src, dst);
            }
        }
    }

    /// All is done by one rank. Two ranks need nobody to count them: the other one says that it has entered, and is told.
    fn leader(&mut self, leader: usize) {
        let (enter, leave) = self.shape.sync;
        let two = self.shape.ranks == 2;
        let other = 1 - self.me.min(1);
        match (self.me == leader, two) {
            _ if enter != In::All => {}
            (true, true) => self.wait(other, Signal::Entered, 1),
            (false, true) => self.step(Step::Signal { to: other, signal: Signal::Entered }),
            (true, false) => {
                self.arrive();
                self.meet();
            }
            (false, false) => self.arrive(),
        }
        if self.me == leader {
            let mut all = self.all();
            if two && leave != Out::No {
                all.pop();
                all.push(Step::Signal { to: other, signal: Signal::Done });
            }
            self.plan.steps.extend(all);
        } else if leave != Out::No {
            match two {
                true => self.wait(other, Signal::Done, 1),
                false => self.step(Step::Released),
            }
        }
        self.plan.totals.releases = usize::from(leave != Out::No && !two);
        self.plan.totals.signals = self.heard.iter().map(|(&(from, signal), &n)| (from, signal, n)).collect();
    }

    /// All is done by the last to arrive.
    fn last(&mut self) {
        let leave = self.shape.sync.1;
        let steps = self.all();
        self.plan.totals.arrivals += 1;
        self.step(Step::Last { steps });
        if leave != Out::No {
            self.step(Step::Released);
        }
        self.plan.totals.releases = usize::from(leave != Out::No);
    }

    /// The whole operation, and the release.
    fn all(&mut self) -> Vec<Step> {
        let shape = self.shape;
        let mut steps = if shape.op.combines() { self.all_combined(0..shape.len) } else { vec![] };
        for from in 0..shape.ranks {
            for to in 0..shape.ranks {
                let blocks = shape.between(from, to);
                let pairs = blocks.filter_map(|b| Some((shape.origin(b).1, shape.target(to, b)?)));
                let moved = runs(pairs.filter(|(src, dst)| from != to || src != dst));
                steps.extend(moved.into_iter().map(|(src, dst)| Step::Carry { from, src, to, dst }));
            }
        }
        if shape.sync.1 != Out::No {
            steps.push(Step::Release);
        }
        steps
    }

    fn step(&mut self, step: Step) {
        self.plan.steps.push(step);
    }

    /// `span` of this rank is about to be used: data only when `In` allows.
    fn touch(&mut self, span: Span) {
        if span.buffer == Buffer::Scratch {
            self.plan.scratch = self.plan.scratch.max(span.at + span.len);
        }
        if !self.met {
            self.meet();
        }
    }

    fn copy(&mut self, src: Span, dst: Span) {
        self.touch(src);
        self.touch(dst);
        self.step(Step::Copy { src, dst });
    }

    /// What begins and ends here is copied when there is nothing better to do.
    fn copy_own(&mut self) {
        if !std::mem::replace(&mut self.copied, true) {
            self.shape.own(self.me).into_iter().for_each(|(src, dst)| self.copy(src, dst));
        }
    }

    fn wait_for_data(&mut self, from: usize, more: usize) {
        self.copy_own();
        self.wait(from, Signal::Data, more);
        self.met = true;
    }

    /// Unless it has done so before.
    fn wait_for_entry(&mut self, of: usize) {
        let signal = self.entry(of, false);
        if !self.heard.contains_key(&(of, signal)) {
            self.wait(of, signal, 1);
        }
    }

    /// The ends of a message touch each other's data: its sender those of the receiver, or its receiver those of the sender.
    fn asks(&mut self, peer: usize, send: bool, sender: bool, receiver: bool) {
        self.entered.extend(sender.then_some((peer, !send)));
        self.entered.extend(receiver.then_some((peer, send)));
    }

    /// What this rank says to a peer when it enters, or the peer to it.
    fn entry(&self, peer: usize, mine: bool) -> Signal {
        if self.entered.contains(&(peer, mine)) { Signal::Entered } else { Signal::Free }
    }

    /// Waits for `more` signals than before.
    fn wait(&mut self, from: usize, signal: Signal, more: usize) {
        let n = self.heard.entry((from, signal)).or_default();
        *n += more;
        let wait = Step::Wait { from, signal, n: *n };
        if *n > more {
            // Nothing has been done since: who waits for more waits for less.
            let waits =
                self.plan.steps.iter().rposition(|step| !matches!(step, Step::Wait { .. })).map_or(0, |at| at + 1);
            let same = |step: &Step| matches!(*step, Step::Wait { from: f, signal: s, .. } if (f, s) == (from, signal));
            if let Some(less) = self.plan.steps[waits..].iter().position(same) {
                self.plan.steps.remove(waits + less);
            }
        }
        self.step(wait);
    }

    /// Alone, there is nobody to meet.
    fn arrive(&mut self) {
        if self.shape.ranks > 1 {
            self.plan.totals.arrivals += 1;
            self.step(Step::Arrive);
        }
    }

    fn meet(&mut self) {
        self.met = true;
        if self.shape.ranks > 1 {
            let n = self.plan.totals.arrivals;
            self.step(Step::Meet { n });
        }
    }
}

impl Shape {
    /// What is asked for, as far as somebody can tell.
    fn sync(&self) -> (In, Out) {
        match (self.source, self.dest) {
            (Kind::Private, Kind::Private) => (In::My, Out::My),
            _ => self.sync,
        }
    }
}
