//! Letters, and who knows that they were taken.
//!
//! A rank begins with collective `e` when it has ended all up to `e - `[`WINDOW`], so whoever hears from it in `e` knows that it has taken what was sent to it
//! until then. Mostly that is all that a sender needs: a letter of `t` is followed by the next in its context in `t + APART` at the earliest.
//! * On a node, where to tell takes lines that go to the sender and back, a reader tells it after [`OWED`] letters between which it has not written to it; and
//!   whoever has to wait tells all who may not know, since the letter that it waits for may be the next. That is enough: the rank that a sender waits for has to take the next letter in
//!   the same collective, so it waits there for that one, or for something before it, and tells. So a sender may have to wait for a rank that has taken all, but computes, or waits
//!   outside of collectives, until that rank enters another one: under no sync mode may a program count on more.
//! * To tell another node takes a message. A reader owes it when it begins with `t + APART` or a later one, unless it has said anything to the sender in
//!   `t + WINDOW` or later, which the sender hears in that collective (plans wait for all that is said in them), or when it comes, if it knew that before ([`will_hear`](Engine::will_hear)): and no collective waits for a later one. Where a rank sends another
//!   one more than one letter in a collective, each is answered at once.
//!
//! In the same way, who hears from a rank in `e` knows that it has ended all that had the contexts of the next [`KNOWN_FOR`] collectives: its scratch is
//! free there, and may be put to. So a rank does not say that ([`Signal::Free`]) to one to which it has said anything in the last so many. What it says in
//! the same one does not count, since the other may hear it only after it has put.

use super::{APART, Engine, KNOWN_FOR, WINDOW};
use crate::job::Inner;
use partage_conduit::coll::CONTEXTS;
use partage_conduit::contract::At;
use partage_conduit::record::Site;
use partage_conduit::signal::Notice;
use partage_conduit::sync::light_fence;
use partage_plan::coll::Signal;
use std::cell::Cell;

/// How many collectives ahead lines of letters are asked for, where there are many.
const AHEAD: usize = 2;

/// So many letters of a member on this node are taken before it is told, if it is not written to meanwhile.
const OWED: u32 = CONTEXTS as u32 / 2;

/// What a member on this node may not know.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// In which contexts letters of it were taken since it was told, by bits.
    contexts: Cell<u32>,
    /// How many were since it was written to or told.
    letters: Cell<u32>,
}

/// That a member on another node has scratch free, which was known before it came.
#[derive(Debug)]
pub(super) struct Unheard {
    from: usize,
    context: usize,
    /// It has come when there are so many.
    until: u64,
    epoch: u64,
}

impl Engine {
    /// Writes a letter to a member that is reached by stores and has taken the one before.
    #[inline(always)]
    pub(in super::super) fn post(&self, context: usize, to: usize, words: &[u64], number: u64) {
        let inlet = self.desk.to(to).expect("reached by stores");
        inlet.told[context].letter.write(words, number);
        self.desk.ring(to);
    }

    /// Asks for the line of a later letter to the same member, if it may be written.
    #[inline(always)]
    pub(in super::super) fn ask_ahead(&self, context: usize, to: usize) {
        let context = (context + AHEAD) % CONTEXTS;
        let ahead = &self.contexts[context].peers[to];
        if ahead.letters_taken.get() == ahead.letters_sent.get() || self.must_have_taken(context, to) {
            self.desk.prefetch_letter(to, context);
        }
    }

    /// A letter of a member on another node has been read.
    #[cold]
    pub(in super::super) fn was_taken_far(&self, epoch: u64, context: usize, from: usize, number: u64) {
        let mut debts = self.debts.borrow_mut();
        debug_assert!(!debts.iter().any(|&(e, _, f, _)| (e, f) == (epoch, from)), "two letters: answered at once");
        debts.push((epoch, context, from, number));
    }

    /// A letter of a member that is reached by stores has been read; it is told later, if it has to be.
    #[inline(always)]
    pub(in super::super) fn was_taken(&self, epoch: u64, context: usize, from: usize) {
        self.hears(from, epoch);
        let Owed { contexts, letters } = &self.owed[from];
        if contexts.get() == 0 {
            self.creditors.borrow_mut().push(from);
        }
        contexts.set(contexts.get() | 1 << context);
        letters.set(letters.get() + 1);
        if letters.get() == OWED {
            self.tell_what_was_taken();
        }
    }

    /// Which of its letters a member has taken. The counts of all contexts are in two lines, which are fetched once for all.
    #[inline(never)]
    pub(in super::super) fn look_what_was_taken(&self, by: usize) {
        for (context, taken) in self.contexts.iter().zip(&self.desk.from(by).taken) {
            let known = &context.peers[by].letters_taken;
            known.set(known.get().max(taken.get()));
        }
    }

    /// Something came from a member in this collective.
    #[inline(always)]
    pub(in super::super) fn hears(&self, from: usize, epoch: u64) {
        self.heard[from].set(self.heard[from].get().max(epoch + 1));
    }

    /// Has this member taken the last letter that went to it in this context, as can be told from what came from it since?
    #[inline(always)]
    pub(in super::super) fn must_have_taken(&self, context: usize, by: usize) -> bool {
        self.has_said_since(context, by) || (self.hears_late(by) && self.has_said_since(context, by))
    }

    #[inline(always)]
    fn has_said_since(&self, context: usize, by: usize) -> bool {
        self.heard[by].get() > self.contexts[context].peers[by].letter_of.get() + WINDOW
    }

    /// A member on another node says in this collective that scratch is free, which was known before it came: it counts on being heard, so that is heard when it comes.
    #[cold]
    pub(in super::super) fn will_hear(&self, from: usize, context: usize, until: u64, epoch: u64) {
        let mut unheard = self.unheard.borrow_mut();
        unheard.retain(|one| one.epoch >= self.heard[one.from].get());
        unheard.push(Unheard { from, context, until, epoch });
    }

    fn has_come(&self, one: &Unheard) -> bool {
        self.desk.from(one.from).told[one.context].signals.0[Signal::Free.count()].get() >= one.until
    }

    /// Has it come from this member since?
    #[inline]
    fn hears_late(&self, from: usize) -> bool {
        !self.unheard.borrow().is_empty() && self.hears_some(from)
    }

    #[cold]
    fn hears_some(&self, from: usize) -> bool {
        let mut unheard = self.unheard.borrow_mut();
        let before = self.heard[from].get();
        unheard.retain(|one| {
            let has_come = one.from == from && self.has_come(one);
            if has_come {
                self.hears(from, one.epoch);
            }
            !has_come
        });
        self.heard[from].get() > before
    }

    /// A letter has gone to a member.
    #[inline(always)]
    pub(in super::super) fn sent(&self, context: usize, to: usize, epoch: u64) {
        self.contexts[context].peers[to].letter_of.set(epoch);
        self.owed[to].letters.set(0);
    }

    /// Something goes to a member by a message that belongs to this collective: that one hears it.
    pub(in super::super) fn says(&self, to: usize, epoch: u64) {
        self.said[to].set(self.said[to].get().max(epoch + 1));
    }

    /// How often a member on another node is to be told now that this one has entered: not if it may put to scratch only, and can tell
    /// from what this one has said that the scratch is free.
    #[cold]
    pub(in super::super) fn enters_far(&self, context: usize, to: usize, signal: Signal, epoch: u64) -> u64 {
        let untold = &self.contexts[context].peers[to].untold;
        let said = self.said[to].get();
        if signal == Signal::Free && (1..=epoch).contains(&said) && said + KNOWN_FOR > epoch {
            untold.set(untold.get() + 1);
            return 0;
        }
        untold.replace(0) + 1
    }

    /// Is the scratch of this member, on another node, free for this collective, as can be told from what it has said?
    #[inline(always)]
    pub(in super::super) fn must_be_free(&self, of: usize, epoch: u64) -> bool {
        let is_known = || {
            let heard = self.heard[of].get();
            heard > 0 && heard + KNOWN_FOR > epoch
        };
        self.desk.to(of).is_none() && (is_known() || (self.hears_late(of) && is_known()))
    }

    /// Tells members on other nodes which of their letters were taken, if they do not know and may have to when this collective begins.
    #[cold]
    pub(super) fn pay(&self, inner: &Inner, site: Site, epoch: u64) {
        let mut debts = self.debts.borrow_mut();
        let mut due: Vec<_> = debts.extract_if(.., |&mut (of, ..)| of + APART <= epoch).collect();
        drop(debts);
        due.retain(|&(of, _, from, _)| self.said[from].get() <= of + WINDOW);
        for (_, context, from, number) in due {
            self.answer(inner, site, context, from, number);
        }
    }

    /// Tells a member on another node that so many of its letters in this context were taken.
    #[cold]
    pub(in super::super) fn answer(&self, inner: &Inner, site: Site, context: usize, from: usize, number: u64) {
        let told = self.contexts[context].peers[from].letters_told.replace(number);
        let notice = Notice::Add { offset: self.words[context].taken, value: number - told };
        inner.send_notice(site, At::guarded(self.rank_of(from).0, 0), &[], notice);
    }

    /// Tells senders on this node which of their letters were taken, so that they may write others.
    #[inline]
    pub(super) fn tell_what_was_taken(&self) {
        if !self.creditors.borrow().is_empty() {
            self.tell_all();
        }
    }

    #[inline(never)]
    fn tell_all(&self) {
        let mut creditors = self.creditors.borrow_mut();
        for &from in creditors.iter() {
            let Owed { contexts, letters } = &self.owed[from];
            let taken = &self.desk.to(from).expect("reached by stores").taken;
            let mut left = contexts.replace(0);
            while left != 0 {
                let context = left.trailing_zeros() as usize;
                taken[context].set(self.contexts[context].peers[from].letters_got.get());
                left &= left - 1;
            }
            letters.set(0);
        }
        light_fence();
        creditors.drain(..).for_each(|from| self.desk.ring(from));
    }
}
