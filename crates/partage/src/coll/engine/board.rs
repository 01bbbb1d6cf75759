//! Letters that are posted ([`Way::Post`]): how a rank says how far it is, and what it waits for before it writes.
//!
//! [`partage_conduit::board`] has the protocol. A rank that begins with collective `e` has ended all up to `e - `[`WINDOW`], and all before `e` if it has started none that has not
//! ended; contexts are used again after [`APART`](super::APART) or more. So it has said enough for who writes in `e`, though it says it only now and then.

use super::{Engine, WINDOW};
use crate::job::Inner;
use partage_conduit::board::has_come;
#[cfg(doc)]
use partage_plan::coll::Way;

// What is waited for is said by who begins.
const _: () = assert!(WINDOW - 1 + partage_conduit::board::SELDOM <= super::APART);

impl Engine {
    /// This rank begins with a collective whose letters are posted.
    #[inline(always)]
    pub(in super::super) fn enters_posted(&self, inner: &Inner, epoch: u64) {
        let ended = if inner.calls.has_other() { (epoch + 1).saturating_sub(WINDOW) } else { epoch };
        if self.progress.say(self.desk.said(self.desk.rank()), ended) {
            self.desk.ring_all();
        }
    }

    /// It has ended it.
    #[inline(always)]
    pub(in super::super) fn ended_posted(&self, context: usize, epoch: u64) {
        self.contexts[context].posted.set(epoch + 1);
    }

    /// Have all ended what had this context before, as far as that was posted?
    #[inline(always)]
    pub(in super::super) fn may_post(&self, context: usize) -> bool {
        let said = (0..self.desk.ranks()).map(|member| self.desk.said(member));
        self.progress.have_ended(self.contexts[context].posted.get(), said)
    }

    /// Of whom it is known for the fewest collectives that it has ended them.
    pub(in super::super) fn farthest_behind(&self) -> usize {
        (0..self.desk.ranks()).min_by_key(|&member| self.desk.said(member).get()).unwrap_or_default()
    }

    /// Posts a letter, if that is not there yet. Who has written all looks at bells.
    #[inline(always)]
    pub(in super::super) fn post_quietly(&self, context: usize, line: usize, words: &[u64], epoch: u64) {
        let line = self.desk.line(context, line);
        if !has_come(line, epoch) {
            line.write_quietly(words, self.progress.number(epoch));
        }
    }

    /// Reads a letter that has come from a member.
    #[inline(always)]
    pub(in super::super) fn read_posted(
        &self,
        context: usize,
        from: usize,
        line: usize,
        words: &mut [u64],
        epoch: u64,
    ) {
        self.progress.read(self.desk.line(context, line), epoch, words);
        self.hears(from, epoch);
    }
}
