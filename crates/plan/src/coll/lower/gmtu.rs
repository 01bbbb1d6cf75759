//! The collectives of GMTU, a library for UPC over Myrinet, and those that it was compared with: baselines. [`Scheme`]
//! says what each is.
//!
//! Differences: where GMTU needs a barrier to know that memory is registered, nothing is needed here. Where its last
//! signal goes up a tree, and ranks below may return before all is done, it comes down again if `Out::All` asks.
//!
//! Source: Mishra and Seidel, "High Performance Unified Parallel C (UPC) Collectives For Linux/Myrinet Platforms", Michigan
//! Technological University, CS-TR-04-05, 2004; `000` in names of algorithms.

use super::super::{Buffer, In, Op, Out, Scheme, Signal, Span, Step, Way};
use super::{Lowering, Move, runs};
use crate::coll::flow::{Turn, children, parent};

/// Elements of naive copies, in bytes.
const ELEMENT: usize = 8;

impl Lowering<'_> {
    pub fn by_scheme(&mut self, moves: &[Move]) {
        match (self.shape.scheme, &self.shape.op) {
            (Scheme::Fused | Scheme::Dynamic, _) => self.messages(moves),
            (Scheme::Plain | Scheme::Elements, _) => self.plain(moves),
            (Scheme::Trees, _) => self.trees(moves),
            (Scheme::Static, Op::Gather { root }) => self.token(*root),
            (Scheme::Static, _) => self.one_at_a_time(moves),
        }
        self.end();
    }

    /// Copies between barriers.
    fn plain(&mut self, moves: &[Move]) {
        let (enter, leave) = self.shape.sync;
        if enter != In::No {
            self.arrive();
            self.meet();
        }
        self.met = true;
        self.copy_own();
        self.copies(moves);
        if leave != Out::No {
            self.arrive();
            self.meet();
        }
    }

    /// Every block from where it begins to where it must be, by the rank that pushes or pulls it.
    fn copies(&mut self, moves: &[Move]) {
        let (shape, me) = (self.shape, self.me);
        let push = shape.way == Way::Push;
        for message in moves.chunk_by(|a, b| a.round == b.round).filter(|m| m[0].send == push) {
            let peer = message[0].peer;
            let to = if push { peer } else { me };
            let places = message.iter().filter_map(|m| Some((shape.origin(m.block).1, shape.target(to, m.block)?)));
            for (src, dst) in runs(places) {
                let step = match push {
                    true => Step::Carry { from: me, src, to, dst },
                    false => Step::Get { from: peer, src, dst },
                };
                match shape.scheme {
                    Scheme::Elements => self.step(Step::Each { len: ELEMENT, step: Box::new(step) }),
                    _ => self.step(step),
                }
            }
        }
    }

    /// Between signals up and down a binary tree, whose root is the operation's.
    fn trees(&mut self, moves: &[Move]) {
        let (shape, (enter, leave)) = (self.shape, self.shape.sync);
        let direct = !matches!(shape.flow, super::Flow::Tree(_));
        if !matches!(shape.op, Op::Gather { .. }) || enter == In::All {
            self.up(Signal::Entered);
        }
        if !matches!(shape.op, Op::Broadcast { .. } | Op::Scatter { .. }) {
            self.down();
        }
        self.met = true;
        self.copy_own();
        if direct {
            self.copies(moves);
        }
        for m in moves.iter().filter(|_| !direct) {
            let (src, dst) = (shape.held(self.me, m.block), shape.landing(m.peer, m.block));
            match m.send {
                _ if src.len == 0 => {}
                true => self.step(Step::Put { to: m.peer, src, dst }),
                false => self.wait(m.peer, Signal::Data, 1),
            }
        }
        match shape.op {
            // The root has copied all.
            Op::Broadcast { .. } | Op::Scatter { .. } if direct => self.down(),
            Op::Broadcast { .. } | Op::Scatter { .. } if leave != Out::All => {}
            Op::Gather { .. } if leave != Out::All => self.up(Signal::Done),
            _ => {
                self.up(Signal::Done);
                self.down();
            }
        }
    }

    /// Tells the root of the tree.
    fn up(&mut self, signal: Signal) {
        let (turn, v) = self.place();
        for child in children(v, 2, turn.ranks).rev() {
            self.wait(turn.rank(child), signal, 1);
        }
        if let Some(parent) = parent(v, 2, turn.ranks) {
            self.step(Step::Signal { to: turn.rank(parent), signal });
        }
    }

    /// Is told by the root of the tree.
    fn down(&mut self) {
        let (turn, v) = self.place();
        if let Some(parent) = parent(v, 2, turn.ranks) {
            self.wait(turn.rank(parent), Signal::Data, 1);
        }
        for child in children(v, 2, turn.ranks) {
            self.step(Step::Signal { to: turn.rank(child), signal: Signal::Data });
        }
    }

    fn place(&self) -> (Turn, usize) {
        let turn = Turn::of(self.shape);
        (turn, turn.seen(self.me))
    }

    /// Each rank has one buffer to send from and one to receive in. The receiver says whose turn it is, by
    /// [`Signal::Entered`], and when it has copied out what came, by [`Signal::Done`].
    fn one_at_a_time(&mut self, moves: &[Move]) {
        let (shape, me) = (self.shape, self.me);
        let (enter, leave) = shape.sync();
        let (receive, send) = self.buffers();
        if enter == In::All {
            self.arrive();
        }
        let cut = |span: Span, len: usize| Span { len, ..span };
        let filled = |m: &&Move| shape.origin(m.block).1.len > 0;
        let mut senders = moves.iter().filter(filled).filter(|m| !m.send).map(|m| m.peer);
        let mut grant = |lowering: &mut Self| {
            if let Some(to) = senders.next() {
                lowering.step(Step::Signal { to, signal: Signal::Entered });
            }
        };
        grant(self);
        let mut sent = None;
        for m in moves.iter().filter(filled) {
            let (from, at) = shape.origin(m.block);
            let len = at.len;
            if m.send {
                let src = if from == me { Some(at) } else { shape.target(me, m.block) };
                if let Some(before) = sent.replace(m.peer) {
                    self.wait(before, Signal::Done, 1);
                }
                self.copy(src.unwrap_or(at), cut(send, len));
                self.wait(m.peer, Signal::Entered, 1);
                self.step(Step::Put { to: m.peer, src: cut(send, len), dst: cut(receive, len) });
            } else {
                self.wait_for_data(m.peer, 1);
                if let Some(target) = shape.target(me, m.block) {
                    self.copy(cut(receive, len), target);
                }
                self.step(Step::Signal { to: m.peer, signal: Signal::Done });
                grant(self);
            }
        }
        self.copy_own();
        if let Some(before) = sent {
            self.wait(before, Signal::Done, 1);
        }
        if leave == Out::All {
            self.arrive();
            self.meet();
        }
    }

    /// A gather into one buffer: who has sent tells the next that it may.
    fn token(&mut self, root: usize) {
        let (shape, me, p) = (self.shape, self.me, self.shape.ranks);
        let (enter, leave) = shape.sync();
        let (receive, send) = self.buffers();
        let (turn, v) = self.place();
        if enter == In::All {
            self.arrive();
        }
        if shape.len == 0 || p == 1 {
            self.copy_own();
        } else if me == root {
            self.step(Step::Signal { to: turn.rank(1), signal: Signal::Entered });
            for from in (1..p).map(|v| turn.rank(v)) {
                self.wait_for_data(from, 1);
                if let Some(target) = shape.target(me, from) {
                    self.copy(receive, target);
                }
                self.step(Step::Signal { to: from, signal: Signal::Done });
            }
        } else {
            self.copy(shape.origin(me).1, send);
            self.wait(turn.rank(v - 1), Signal::Entered, 1);
            self.step(Step::Put { to: root, src: send, dst: receive });
            self.wait(root, Signal::Done, 1);
            if v + 1 < p {
                self.step(Step::Signal { to: turn.rank(v + 1), signal: Signal::Entered });
            }
        }
        if leave == Out::All {
            self.arrive();
            self.meet();
        }
    }

    /// To receive in, and to send from.
    fn buffers(&self) -> (Span, Span) {
        let len = self.shape.len;
        let at = |at| Span { buffer: Buffer::Scratch, at, len };
        (at(0), at(len))
    }
}
