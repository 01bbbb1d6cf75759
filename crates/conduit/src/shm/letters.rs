//! Calls and results: messages that only the target rank's own thread takes, for whoever is above this crate to make sense
//! of. They go by the [`CALL`] net, also to ranks of the same process; to other nodes by the network, which keeps those that
//! have come until they are taken ([`crate::ofi::letters`]).
//!
//! A call is under way, and takes a place in its window or has its credits, until [`Seat::call_ended`] at its target, or
//! [`Seat::result_ended`] where it came from.

use crate::am::{Arrival, Body, IN_BUFFER, Way};
use crate::credits::Cost;
use crate::ofi::letters::FarLetter;
use crate::ranks::FAR;
use crate::ring::{BATCH, Batch, Inlet, Message, WORDS};
use crate::shm::mail::{CALL, Lent, OF_REPLIES};
use crate::shm::{Node, Seat};
use bytemuck::{Pod, bytes_of};
use std::mem::MaybeUninit;

/// A message of the [`CALL`] net, taken by its target's own thread. Its buffer goes back when this is dropped.
pub struct Letter<'s> {
    source: usize,
    body: LetterBody<'s>,
    node: &'s Node,
    target: usize,
}

enum LetterBody<'s> {
    Near(Message, Option<(Lent<'s>, usize)>),
    Far(FarLetter),
}

/// The other end of a call, for whoever ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its rank.
    pub rank: usize,
    /// What the call cost, if it came from another node.
    cost: Cost,
}

impl std::fmt::Debug for Letter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a letter from rank {} to rank {}", self.source, self.target)
    }
}

impl Letter<'_> {
    /// Who sent it.
    #[inline(always)]
    pub fn caller(&self) -> Caller {
        let cost = match &self.body {
            LetterBody::Near(..) => Cost::LEAST,
            LetterBody::Far(letter) => letter.cost,
        };
        Caller { rank: self.source, cost }
    }

    /// What it is, as the sender said.
    pub fn kind(&self) -> u16 {
        match &self.body {
            LetterBody::Near(message, _) => message.head.handler(),
            LetterBody::Far(letter) => letter.kind,
        }
    }

    /// Arguments and payload.
    #[inline(always)]
    pub fn open<A: Pod>(&self) -> (A, &[u8]) {
        let body = match &self.body {
            LetterBody::Near(message, buffer) => {
                Body::Taken(message, buffer.as_ref().map(|(lent, len)| (lent.buffer, *len)))
            }
            LetterBody::Far(letter) => Body::Here(&letter.args, &letter.payload),
        };
        Arrival::new(self.node, self.target, self.source, body, Way::None).open()
    }
}

impl Seat {
    /// Sends a call if there is room, to any rank.
    #[inline(always)]
    pub fn try_call<A: Pod>(&self, to: usize, kind: u16, args: &A, payload: &[u8]) -> bool {
        self.try_send(CALL, to, kind, bytes_of(args), payload)
    }

    /// The next call for this rank, or the next result.
    #[inline(always)]
    pub fn next_letter(&self, result: bool) -> Option<Letter<'_>> {
        let letterbox = self.own_letterbox();
        let inlet = if result { &letterbox.replies[CALL] } else { &letterbox.requests[CALL] };
        if let Some(far) = &self.far
            && let Some(letter) = far.next_letter(&self.node, result, !inlet.is_empty())
        {
            return Some(Letter {
                source: letter.source,
                body: LetterBody::Far(letter),
                node: &self.node,
                target: self.rank,
            });
        }
        if inlet.is_empty() { None } else { self.take_letter(inlet, result) }
    }

    #[inline]
    fn take_letter(&self, inlet: &Inlet, result: bool) -> Option<Letter<'_>> {
        let mut batch: Batch = [MaybeUninit::uninit(); BATCH];
        let &message = inlet.take(&mut batch, 1).first()?;
        let (node, mail, source) = (&*self.node, &self.node.mail, message.head.source());
        assert!(source < mail.peers.len(), "rank {}: a call from rank {source}, which does not exist", self.rank);
        let mut lent = None;
        if message.head.length() == IN_BUFFER {
            let found = mail.find(source, if result { OF_REPLIES + CALL } else { CALL }, message.words[WORDS - 1]);
            let Some((buffer, len)) = found else {
                let body = Body::Taken(&message, None);
                Arrival::new(node, self.rank, node.ranks.member(source), body, Way::None)
                    .bad(&"its payload is in no buffer")
            };
            lent = Some((Lent { mail, owner: source, buffer }, len));
        }
        let (source, body) = (node.ranks.member(source), LetterBody::Near(message, lent));
        Some(Letter { source, body, node, target: self.rank })
    }

    /// Has every call to `to` ended? If not, this rank is rung at each that does.
    pub fn is_quiet_to(&self, to: usize) -> bool {
        let near = self.outlet.near[to] as usize;
        let Some(route) = self.outlet.routes[CALL].get(near) else {
            let (far, net) = self.beyond();
            return far.is_quiet_to(net, CALL, to);
        };
        if route.credit.is_still_quiet() {
            return true;
        }
        let account = self.node.mail.peers[near].account(CALL, self.near);
        let quiet = route.credit.is_quiet(account, route.got());
        account.set_eager(!quiet);
        quiet
    }

    /// A call has ended without a result.
    #[inline(always)]
    pub fn call_ended(&self, caller: Caller) {
        match self.outlet.near[caller.rank] {
            FAR => self.beyond().1.ended(CALL, self.rank, caller.rank, caller.cost),
            near => self.node.mail.ended(CALL, self.near, near as usize, 1),
        }
    }

    /// Sends the result of a call back; that ends the call.
    #[inline(always)]
    pub fn send_result<A: Pod>(&self, caller: Caller, kind: u16, args: &A, payload: &[u8]) {
        match self.outlet.near[caller.rank] {
            FAR => {
                let (net, to) = (self.beyond().1, (caller.rank, caller.cost));
                net.answer(&self.node.ranks, CALL, self.rank, to, kind, bytes_of(args), payload)
            }
            near => self.node.answer(CALL, self.near, near as usize, kind, bytes_of(args), payload),
        }
    }

    /// A result has been dealt with.
    #[inline(always)]
    pub fn result_ended(&self, caller: Caller) {
        match self.outlet.near[caller.rank] {
            FAR => self.beyond().1.got(&self.node.ranks, CALL, self.rank, (caller.rank, caller.cost)),
            near => self.own_letterbox().got[CALL][near as usize].one_more(true),
        }
    }
}
