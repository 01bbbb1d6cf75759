//! What a process owes others of word: how much of what a source has sent has ended without a reply, and who is still to be
//! told so.
//!
//! Each source has an account at its target, with a count that only grows. Whoever ends one of its messages raises the count
//! and puts the account on the list, unless it is there. Word goes in two ways. Any message to that source takes the count
//! along if it has not been told ([`news`](Owing::news), and [`told`](Owing::told) once the message is the network's). Else somebody
//! [takes](Owing::take) the list and sends those on it a message of their own, as far as that is still [needed](Owing::word). When that is,
//! is for whoever asks to decide; what is listed may wait for a message to go along with.
//!
//! # Nobody is forgotten
//! Told is the whole count, so word that comes twice, or is overtaken, does no harm. What has to be shown is that each count is
//! told, or an account whose count is not is on the list (or in the hands of who took it from there, and is about to look).
//! Who ends a message raises the count and then sets the account's mark, by an exchange. Who has taken an account from the list
//! clears its mark by an exchange, and then reads the count. If the first finds the mark set, then the
//! second's exchange is the later of the two, and it acquires the count; if not, it puts the account on the list itself.
//! The same holds for what else there is to say ([`more`](Owing::more)), and for anything that was written before that.
//!
//! A count that was told is noted only when the message that tells it cannot be lost any more: who finds it noted leaves out
//! a message, and there may be no other. The one exception is [`word`](Owing::word), whose caller has to send it.
//!
//! Does not contain: messages, when they are sent (`ofi::progress`), and what a source does with what it hears (`ofi::am`).

use crate::sync::{AtomicU32, Mutex, Ordering::*, full_fence, raise};
use std::sync::PoisonError;

/// What is owed to all sources. Accounts are numbers.
#[derive(Debug)]
pub struct Owing {
    accounts: Box<[Account]>,
    list: Mutex<Vec<usize>>,
    /// How long the list is, sooner or later: it is counted after the list was changed.
    length: AtomicU32,
    /// How many messages have ended since the list was taken: roughly, it is only a reason to take it.
    untold: AtomicU32,
}

/// The sleep of whoever serves when nobody else does. It sleeps for long only when nothing is owed, and whoever owes something from then on wakes it:
/// each says what it does, makes a full fence, and looks what the other has said, so that one of the two sees the other.
#[derive(Debug, Default)]
pub struct Nap(AtomicU32);

impl Nap {
    /// Falls asleep, if nothing is owed.
    pub fn begins(&self, owes: impl FnOnce() -> bool) -> bool {
        self.0.store(1, Relaxed);
        full_fence();
        let begins = !owes();
        if !begins {
            self.ends();
        }
        begins
    }

    /// Is awake.
    pub fn ends(&self) {
        self.0.store(0, Relaxed);
    }

    /// Something is owed now, after a full fence. True if there is a sleeper that whoever gets this has to wake.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.0.load(Relaxed) == 1 && self.0.swap(0, Relaxed) == 1
    }
}

/// Of one source. Marks are 0 or 1.
#[derive(Debug, Default)]
struct Account {
    ended: AtomicU32,
    told: AtomicU32,
    more: AtomicU32,
    listed: AtomicU32,
}

impl Owing {
    /// With so many accounts.
    pub fn new(accounts: usize) -> Owing {
        let accounts = (0..accounts).map(|_| Account::default()).collect();
        Owing { accounts, list: Mutex::new(vec![]), length: AtomicU32::new(0), untold: AtomicU32::new(0) }
    }

    /// A message has ended that had so many credits. True if the source was not on the list; then there is a full fence after that.
    pub fn ended(&self, at: usize, credits: u32) -> bool {
        self.accounts[at].ended.fetch_add(credits, AcqRel);
        self.untold.fetch_add(1, Relaxed);
        self.list(at)
    }

    /// There is something else to say, which only a message of its own does; what it is was written before. As [`ended`](Self::ended).
    pub fn more(&self, at: usize) -> bool {
        self.accounts[at].more.swap(1, AcqRel);
        self.list(at)
    }

    fn list(&self, at: usize) -> bool {
        let is_new = self.accounts[at].listed.swap(1, AcqRel) == 0;
        if is_new {
            self.list.lock().unwrap_or_else(PoisonError::into_inner).push(at);
            self.length.fetch_add(1, AcqRel);
            #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
            full_fence();
        }
        is_new
    }

    /// How many credits of the source's messages have ended.
    pub fn count(&self, at: usize) -> u32 {
        self.accounts[at].ended.load(Acquire)
    }

    /// The same, if it has not been told.
    pub fn news(&self, at: usize) -> Option<u32> {
        let count = self.count(at);
        (count != self.accounts[at].told.load(Relaxed)).then_some(count)
    }

    /// A message that says so is the network's, or kept for it.
    pub fn told(&self, at: usize, count: u32) {
        raise(&self.accounts[at].told, count);
    }

    /// Is there anybody to tell?
    pub fn is_any(&self) -> bool {
        self.length.load(Relaxed) != 0
    }

    /// So many messages have ended since the list was taken.
    pub fn untold(&self) -> u32 {
        self.untold.load(Relaxed)
    }

    /// Takes the list: for each on it, [`word`](Self::word) is to be asked for.
    pub fn take(&self) -> Vec<usize> {
        if self.length.load(Acquire) == 0 {
            return vec![];
        }
        let list = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.length.fetch_sub(list.len() as u32, Relaxed);
        self.untold.store(0, Relaxed);
        list
    }

    /// What is to be said to one that was on the list, and is noted as said; none if it has been told, and there is no more to
    /// say. What ends from here on is listed anew.
    pub fn word(&self, at: usize) -> Option<u32> {
        let account = &self.accounts[at];
        account.listed.swap(0, AcqRel);
        let more = account.more.swap(0, AcqRel) == 1;
        let news = self.news(at);
        if let Some(count) = news {
            self.told(at, count);
        }
        news.or_else(|| more.then(|| self.count(at)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_owed_word_is_told_once() {
        let owing = Owing::new(3);
        assert!(!owing.is_any() && owing.take().is_empty());
        owing.ended(1, 2);
        owing.ended(1, 5);
        owing.ended(2, 1);
        assert!(owing.is_any() && owing.untold() == 3);
        assert_eq!(owing.take(), [1, 2]);
        assert_eq!((owing.word(1), owing.word(2)), (Some(7), Some(1)));
        assert!(!owing.is_any() && owing.untold() == 0 && owing.news(1).is_none());
        // Once more, and it goes along with a message.
        owing.ended(1, 1);
        assert_eq!(owing.news(1), Some(8));
        owing.told(1, 8);
        // Overtaken.
        owing.told(1, 7);
        assert_eq!((owing.news(1), owing.take(), owing.word(1)), (None, vec![1], None));
    }

    #[test]
    fn what_else_there_is_to_say_takes_a_message_of_its_own() {
        let owing = Owing::new(1);
        owing.ended(0, 3);
        owing.more(0);
        owing.told(0, 3);
        assert_eq!((owing.take(), owing.word(0), owing.is_any()), (vec![0], Some(3), false));
        owing.more(0);
        assert_eq!((owing.take(), owing.word(0), owing.word(0)), (vec![0], Some(3), None));
    }

    #[test]
    fn counts_go_around() {
        let owing = Owing::new(1);
        owing.ended(0, u32::MAX);
        owing.told(0, u32::MAX);
        owing.ended(0, 3);
        assert_eq!((owing.news(0), owing.take(), owing.word(0)), (Some(2), vec![0], Some(2)));
        assert_eq!(owing.news(0), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// The wire: the highest count that a source was told, and what it was told besides.
    #[derive(Default)]
    struct Source {
        count: AtomicU32,
        besides: AtomicU32,
    }

    /// Whoever is listed is told.
    fn tell(owing: &Owing, source: &Source, besides: &AtomicU32) {
        for at in owing.take() {
            if let Some(count) = owing.word(at) {
                source.count.fetch_max(count, Relaxed);
                source.besides.fetch_max(besides.load(Relaxed), Relaxed);
            }
        }
    }

    /// A message takes the count along, if there is room for it.
    fn send(owing: &Owing, source: &Source, is_room: bool) {
        if let Some(count) = owing.news(0).filter(|_| is_room) {
            source.count.fetch_max(count, Relaxed);
            owing.told(0, count);
        }
    }

    /// As deep as time allows; `LOOM_MAX_PREEMPTIONS` goes deeper.
    fn bounded(f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(f);
    }

    type Part = fn(&Owing, &Source, &AtomicU32);

    /// Three do something with what is owed to one source. Afterwards, whoever looks tells it all, and nobody is left.
    fn model([first, second, third]: [Part; 3], ended: u32, said: u32) {
        bounded(move || {
            let all = Arc::new((Owing::new(1), Source::default(), AtomicU32::new(0)));
            let others = [second, third].map(|part| {
                let all = all.clone();
                thread::spawn(move || part(&all.0, &all.1, &all.2))
            });
            let (owing, source, besides) = &*all;
            first(owing, source, besides);
            others.into_iter().for_each(|other| other.join().unwrap());
            tell(owing, source, besides);
            let heard = (source.count.load(Relaxed), source.besides.load(Relaxed));
            assert_eq!((heard.0, owing.news(0), owing.is_any()), (ended, None, false));
            assert!(heard.1 >= said, "{heard:?}");
        });
    }

    /// Whoever serves does not sleep while something is owed, or is woken.
    #[test]
    fn loom_nobody_sleeps_on_what_is_owed() {
        bounded(|| {
            let all = Arc::new((Owing::new(2), Nap::default()));
            let [first, second] = [0, 1].map(|at| {
                let all = all.clone();
                thread::spawn(move || all.0.ended(at, 1) && all.1.is_broken())
            });
            let sleeps = all.1.begins(|| all.0.is_any());
            let woken = [first.join().unwrap(), second.join().unwrap()];
            assert!(!woken[0] || !woken[1], "woken twice");
            assert!(!sleeps || woken[0] || woken[1]);
        });
    }

    fn ends_one(owing: &Owing, _: &Source, _: &AtomicU32) {
        owing.ended(0, 1);
    }

    fn ends_two(owing: &Owing, _: &Source, _: &AtomicU32) {
        owing.ended(0, 1);
        owing.ended(0, 1);
    }

    fn sends(owing: &Owing, source: &Source, _: &AtomicU32) {
        send(owing, source, true);
    }

    fn sends_in_vain_and_tells(owing: &Owing, source: &Source, besides: &AtomicU32) {
        send(owing, source, false);
        tell(owing, source, besides);
    }

    fn says_more(owing: &Owing, source: &Source, besides: &AtomicU32) {
        owing.ended(0, 1);
        send(owing, source, true);
        besides.store(7, Relaxed);
        owing.more(0);
    }

    /// Two end messages while somebody tells.
    #[test]
    fn loom_whatever_ends_is_told() {
        model([tell, ends_one, ends_two], 3, 0);
    }

    /// Two tell while messages end.
    #[test]
    fn loom_two_that_tell_forget_nobody() {
        model([ends_two, tell, tell], 2, 0);
    }

    /// One message takes it along, another finds no room, and somebody tells.
    #[test]
    fn loom_what_goes_along_is_told() {
        model([ends_one, sends, sends_in_vain_and_tells], 1, 0);
    }

    /// What was written before there was more to say is said, though the count went another way.
    #[test]
    fn loom_what_else_there_is_to_say_is_said() {
        model([says_more, tell, tell], 1, 7);
    }
}
