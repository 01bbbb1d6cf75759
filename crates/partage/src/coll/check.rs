//! Ranks compare their collectives: in debug builds, and where `PARTAGE_CHECK` asks for it.
//!
//! Whoever enters a collective tells all others what it is, and where it was called: its *sign*. Whoever waits in one looks at the signs of
//! all who have entered the same, and so does whoever ends it. Nobody waits for a sign, so sync modes stay what they are.
//!
//! A sign says which collective it is of and has a sum of its words: one that is being written over by a rank far ahead is seen to be none.

use super::choice::{Call, UNKNOWN};
use super::engine::{Engine, Task, context_of};
use crate::fail;
use crate::job::Inner;
use partage_conduit::coll::SIGN;
use partage_conduit::contract::At;
use partage_conduit::signal::Notice;
use partage_conduit::sync::light_fence;
use partage_plan::coll::{Kind, OpKind};
use std::fmt;
use std::rc::Rc;

/// Words for the name of a file, of which the end is told.
const FILE: usize = SIGN - 7;

/// What a rank has entered.
#[derive(Clone, Copy)]
struct Said {
    epoch: u64,
    call: Call,
    /// Bytes of an element, and its type.
    element: u32,
    kind: u32,
    besides: u32,
    line: u32,
    file: [u64; FILE],
}

/// A number for bytes, which others hardly have.
pub(super) fn number(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0, |sum: u32, b| sum.wrapping_mul(31).wrapping_add(b.into()))
}

impl Said {
    fn new(task: &Task) -> Said {
        let (element, name) = (task.element)();
        let mut file = [0; FILE];
        let path = task.site.at.file().as_bytes();
        let end = &path[path.len().saturating_sub(8 * FILE)..];
        bytemuck::cast_slice_mut(&mut file)[..end.len()].copy_from_slice(end);
        // The number of an algorithm is its own rank's.
        let call = Call { algorithm: 0, ..task.key.call() };
        let (kind, besides) = (number(name.bytes()), task.besides);
        Said { epoch: task.first(), call, element, kind, besides, line: task.site.at.line(), file }
    }

    fn words(&self) -> [u64; SIGN] {
        let [what, ends, len] = super::choice::Key::new(self.call).words();
        let mut words = [0; SIGN];
        let head = [self.epoch + 1, what, ends, len, pair(self.element, self.kind), pair(self.line, self.besides)];
        words[..6].copy_from_slice(&head);
        words[6..SIGN - 1].copy_from_slice(&self.file);
        words[SIGN - 1] = sum(&words);
        words
    }

    /// What was said of this collective, if that is whole.
    fn read(words: [u64; SIGN], epoch: u64) -> Option<Said> {
        let is = words[0] == epoch + 1 && words[SIGN - 1] == sum(&words);
        is.then(|| {
            let call = super::choice::Key::of([words[1], words[2], words[3]]).call();
            let mut file = [0; FILE];
            file.copy_from_slice(&words[6..SIGN - 1]);
            let [element, kind] = [words[4] as u32, (words[4] >> 32) as u32];
            let [line, besides] = [words[5] as u32, (words[5] >> 32) as u32];
            Said { epoch, call, element, kind, besides, line, file }
        })
    }

    /// Do they fit together?
    fn agrees(&self, other: &Said) -> bool {
        let ends = |call: Call| if call.op == OpKind::Permute { Call { root: 0, from: UNKNOWN, ..call } } else { call };
        let of = |said: &Said| (ends(said.call), said.element, said.kind, said.besides);
        of(self) == of(other)
    }
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) | u64::from(b) << 32
}

/// Of all but the last word.
fn sum(words: &[u64; SIGN]) -> u64 {
    // Words that are not there yet are zero: they must not leave the sum as it is, whatever the ones before.
    let add = |sum: u64, (i, word): (usize, &u64)| {
        (sum ^ word).wrapping_add(i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
    };
    words[..SIGN - 1].iter().enumerate().fold(0x5ca1_ab1e, add)
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, bytes) = (self.call, bytemuck::cast_slice::<u64, u8>(&self.file));
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        let place = if call.in_place { ", in place" } else { "" };
        let (before, after) = call.sync;
        let kind = |kind: Kind| if kind == Kind::Shared { "shared" } else { "private" };
        let (source, dest) = (kind(call.source), kind(call.dest));
        write!(f, "{} of {call}, {} an element, {source} to {dest}{place}", call.op, self.element)?;
        write!(f, ", {before:?}/{after:?}")?;
        write!(f, " ({}:{})", String::from_utf8_lossy(&bytes[..end]), self.line)
    }
}

impl Engine {
    /// Tells all others what this rank has entered.
    pub(super) fn sign(&self, inner: &Rc<Inner>, task: &Task) {
        let words = Said::new(task).words();
        let context = context_of(task.first());
        for to in (0..self.desk.ranks()).filter(|&to| to != self.desk.rank()) {
            match self.desk.sign_to(to, context) {
                Some(sign) => {
                    sign.write(&words);
                    light_fence();
                    self.desk.ring(to);
                }
                None => {
                    let offset = self.words[context].sign;
                    let at = At::guarded(self.rank_of(to).0, offset);
                    inner.send_notice(task.site, at, bytemuck::bytes_of(&words), Notice::Add { offset, value: 0 });
                }
            }
        }
    }

    /// Has a rank entered something else?
    pub(super) fn disagrees(&self, task: &Task) -> bool {
        self.other(task).is_some()
    }

    /// Ends the job if a rank has.
    #[cold]
    pub(super) fn compare(&self, task: &Task) {
        if let Some([(a, mine), (b, other)]) = self.other(task) {
            let why = match mine.agrees(&other) {
                true => "no two may send to one",
                false if mine.kind != other.kind => "they have different types or operations",
                false if mine.besides != other.besides => "they name different algorithms, or counts",
                false => "all must make the same call",
            };
            let [a, b] = [a, b].map(|member| self.rank_of(member));
            fail::end_with(format!("the ranks disagree: {a} came to {mine}, {b} to {other}; {why}"));
        }
    }

    /// Two ranks that do not fit together.
    fn other(&self, task: &Task) -> Option<[(usize, Said); 2]> {
        let (me, epoch) = (self.desk.rank(), task.first());
        let context = context_of(epoch);
        let mine = Said::new(task);
        let said = |r: usize| match r == me {
            true => Some(mine),
            false => Said::read(self.desk.sign_of(r, context).read(), epoch),
        };
        let all = || (0..self.desk.ranks()).filter_map(|r| Some((r, said(r)?)));
        if let Some(other) = all().find(|(_, other)| !mine.agrees(other)) {
            return Some([(me, mine), other]);
        }
        if mine.call.op != OpKind::Permute {
            return None;
        }
        // No two may send to one.
        let mut to: Vec<_> = all().collect();
        to.sort_by_key(|(r, said)| (said.call.root, *r));
        let twice = to.windows(2).find(|two| two[0].1.call.root == two[1].1.call.root)?;
        Some([twice[0], twice[1]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a sign that is being written some words are there, and the others are those of an earlier one, or zero.
    #[test]
    fn a_part_of_a_sign_is_none() {
        let said = |epoch: u64| {
            let file = [0x6f66; FILE];
            let call = super::super::choice::Key::of([7, epoch.wrapping_add(8), 9]).call();
            Said { epoch, call, element: 8, kind: 77, besides: 5, line: 12, file }
        };
        for epoch in [0, 1, 17, 1 << 40] {
            let words = said(epoch).words();
            assert!(
                Said::read(words, epoch).is_some_and(|s| s.agrees(&said(epoch)))
                    && Said::read(words, epoch ^ 1).is_none()
            );
            for before in [[0; SIGN], said(epoch.wrapping_sub(16)).words()] {
                for cut in 1..SIGN {
                    let mut part = before;
                    part[..cut].copy_from_slice(&words[..cut]);
                    assert!(part == words || Said::read(part, epoch).is_none(), "{epoch}, {cut}");
                    let mut rest = words;
                    rest[1..=cut.min(SIGN - 2)].copy_from_slice(&before[1..=cut.min(SIGN - 2)]);
                    assert!(rest == words || Said::read(rest, epoch).is_none(), "{epoch}, {cut}");
                }
            }
        }
    }
}
