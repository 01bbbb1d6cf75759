//! A board, on which a rank posts a letter once for all who read it.
//!
//! In each context a team's board has a line for each member ([`Letter`]), in memory that all of them reach. Where ranks share cores that is one page for all letters of a
//! collective, where letters to each are pages of each; and who tells all writes one line.
//!
//! # Who may touch what
//! A line is the writer's when all members have ended the collectives that had this context before, until it stores the number; and the readers' from when they see the
//! number of their collective there, until they have ended it. So a writer has to know how far all are:
//!
//! * Each member *says* how far it is in a line of its own, when it begins with a collective whose letters are posted and has not said so lately ([`SELDOM`]).
//! * A letter's number has beside that of its collective how many collectives its writer knows all to have ended, and who reads it knows that too. So of
//!   some ten collectives the writer of one looks at what all have said, and the others know it from there.
//!
//! Contexts are used again after more collectives than may be under way and [`SELDOM`] together. So who begins with a collective says as much as its writers
//! wait for, if it has not before: nobody waits for more than that all others begin with it.
//!
//! # Memory ordering
//! What is said, and numbers, are stored by a release and loaded by an acquire. Who has said that it has ended a collective has read its letters before. Who writes has loaded what
//! all have said, or the number of a letter whose writer had, so those reads came before; and who sees the number of its collective sees what was written before it. Who has stored
//! something makes a light fence, and looks at bells (see [`crate::wait`]).

use crate::coll::{Count, Letter};
use std::cell::Cell;

/// A member says how far it is if that is so many collectives more than it has said.
pub const SELDOM: u64 = if cfg!(loom) { 1 } else { 4 };

/// Bits of a letter's number that say how far behind all are, at most.
const LAG: u32 = 8;
/// So far behind, or farther.
const FAR: u64 = (1 << LAG) - 1;

/// What a member knows of how far all are, itself included.
#[derive(Debug, Default)]
pub struct Progress {
    /// All have ended so many collectives.
    all: Cell<u64>,
    /// What it has said of itself.
    said: Cell<u64>,
}

impl Progress {
    /// This member has ended so many, and says so in this line of its own if it has not lately; whether it did. Then there is a light fence, and it has to look at bells.
    #[inline(always)]
    pub fn say(&self, line: &Count, ended: u64) -> bool {
        let is_news = ended >= self.said.get() + SELDOM;
        if is_news {
            self.said.set(ended);
            line.raise(ended);
        }
        is_news
    }

    /// Have all ended so many? These are the lines in which they say it, if it is not known.
    #[inline(always)]
    pub fn have_ended<'a>(&self, many: u64, lines: impl Iterator<Item = &'a Count>) -> bool {
        self.all.get() >= many || self.look(lines) >= many
    }

    #[inline(never)]
    fn look<'a>(&self, lines: impl Iterator<Item = &'a Count>) -> u64 {
        let least = lines.map(Count::get).min().unwrap_or_default();
        self.learn(least);
        self.all.get()
    }

    #[inline(always)]
    fn learn(&self, all: u64) {
        self.all.set(self.all.get().max(all));
    }

    /// The number of a letter of the collective after so many.
    #[inline(always)]
    pub fn number(&self, epoch: u64) -> u64 {
        (epoch + 1) << LAG | epoch.saturating_sub(self.all.get()).min(FAR)
    }

    /// Reads the letter of the collective after so many, which [has come](has_come).
    #[inline(always)]
    pub fn read(&self, line: &Letter, epoch: u64, words: &mut [u64]) {
        let lag = line.number.get() & FAR;
        if lag < FAR {
            self.learn(epoch.saturating_sub(lag));
        }
        line.read(words);
    }
}

/// Is the letter of the collective after so many there?
#[inline(always)]
pub fn has_come(line: &Letter, epoch: u64) -> bool {
    line.number.get() >> LAG > epoch
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_reads_knows_what_the_writer_knew() {
        let lines = [Count::default(), Count::default()];
        let (writer, reader, letter) = (Progress::default(), Progress::default(), Letter::default());
        assert!(writer.say(&lines[0], 40) && !writer.say(&lines[0], 43) && reader.say(&lines[1], 41));
        assert!(!writer.have_ended(41, lines.iter()) && writer.have_ended(40, lines.iter()));
        assert!(!has_come(&letter, 0));
        letter.write(&[7], writer.number(46));
        assert!(has_come(&letter, 46) && !has_come(&letter, 47));
        let mut words = [0];
        reader.read(&letter, 46, &mut words);
        assert!(words == [7] && reader.have_ended(40, [].iter()) && !reader.have_ended(41, lines.iter()));
        // What is too far behind says nothing.
        letter.write(&[8], Progress::default().number(1000));
        reader.read(&letter, 1000, &mut words);
        assert!(words == [8] && !reader.have_ended(41, lines.iter()));
        // The farthest that can be said.
        letter.write(&[9], writer.number(40 + FAR - 1));
        let late = Progress::default();
        late.read(&letter, 40 + FAR - 1, &mut words);
        assert!(late.have_ended(40, [].iter()) && !late.have_ended(41, [].iter()));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::light_fence;
    use crate::wait::models::Sleeper;
    use loom::sync::Arc;

    /// Of three, all in one context.
    #[derive(Default)]
    struct Board {
        lines: [Letter; 3],
        said: [Count; 3],
        sleepers: [Sleeper; 3],
    }

    struct Member {
        board: Arc<Board>,
        me: usize,
        of: usize,
        progress: Progress,
    }

    impl Member {
        fn begin(&self, epoch: u64) {
            if self.progress.say(&self.board.said[self.me], epoch) {
                self.ring();
            }
        }

        fn ring(&self) {
            (0..self.of).filter(|&r| r != self.me).for_each(|r| self.board.sleepers[r].bell.ring_after_fence());
        }

        /// After so many collectives had the context.
        fn post(&self, epoch: u64, word: u64) {
            let said = || self.board.said[..self.of].iter();
            self.board.sleepers[self.me].until(|| self.progress.have_ended(epoch, said()));
            self.write(epoch, word);
        }

        fn write(&self, epoch: u64, word: u64) {
            self.board.lines[self.me].write_quietly(&[word], self.progress.number(epoch));
            light_fence();
            self.ring();
        }

        fn read(&self, from: usize, epoch: u64) -> u64 {
            let line = &self.board.lines[from];
            self.board.sleepers[self.me].until(|| has_come(line, epoch));
            let mut words = [0];
            self.progress.read(line, epoch, &mut words);
            words[0]
        }

        /// The second has a word for all, and then the first, which writes it in this way.
        fn two_words(&self, write: fn(&Member)) {
            self.begin(0);
            match self.me {
                1 => self.post(0, 5),
                _ => assert_eq!(self.read(1, 0), 5),
            }
            self.begin(1);
            match self.me {
                0 => write(self),
                _ => assert_eq!(self.read(0, 1), 6),
            }
        }
    }

    fn bounded(preemptions: usize, members: usize, run: fn(&Member)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(preemptions));
        model.check(move || {
            let board = Arc::new(Board::default());
            let member = |me| Member { board: board.clone(), me, of: members, progress: Progress::default() };
            let threads: Vec<_> =
                (1..members).map(|me| member(me)).map(|m| loom::thread::spawn(move || run(&m))).collect();
            run(&member(0));
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// Two post what the other reads, three times on the same lines; either may sleep.
    #[test]
    fn loom_lines_are_read_before_they_are_written_again() {
        bounded(3, 2, |m| {
            for epoch in 0..3 {
                m.begin(epoch);
                m.post(epoch, 10 * epoch + m.me as u64);
                assert_eq!(m.read(1 - m.me, epoch), 10 * epoch + 1 - m.me as u64);
            }
        });
    }

    /// One knows only from another's letter that a third has read what it writes over.
    #[test]
    fn loom_who_reads_a_letter_knows_what_its_writer_knew() {
        bounded(1, 3, |m| {
            m.two_words(|m| m.post(1, 6));
            match m.me {
                1 => {
                    // Without a look at what others have said.
                    assert!(m.progress.have_ended(1, [].iter()));
                    m.write(2, 7);
                }
                _ => assert_eq!(m.read(1, 2), 7),
            }
        });
    }

    /// One knows of no other that it has ended anything when it writes; who reads that still waits for the third.
    #[test]
    fn loom_a_letter_says_no_more_than_its_writer_knew() {
        bounded(1, 3, |m| {
            // On a line that nobody had before.
            m.two_words(|m| m.write(1, 6));
            if m.me == 1 {
                let said = || m.board.said.iter();
                m.board.sleepers[1].until(|| m.progress.have_ended(1, said()));
                m.write(2, 7);
            }
        });
    }
}
