//! Ranks compare their collectives: in debug builds, and where `PARTAGE_CHECK` asks for it.
//!
//! Whoever enters a collective tells all others what it is, and where it was called: its *sign*. Whoever waits in one looks at the signs of
//! all who have entered the same, and so does whoever ends it. Nobody waits for a sign, so sync modes stay what they are.
//!
//! A sign says which collective it is of and has a sum of its words: one that is being written over by a rank far ahead is seen to be none.
//!
//! Some calls consist of several collectives ([`Whole`]), whose signs say what was asked for. Barriers have no signs: who is to wait in one first says so in a
//! collective that moves nothing. Who waits long in a barrier of the job looks whether another has entered its next collective instead: signs say how many barriers
//! their ranks had come to. What is started may come before the barrier on some ranks and after it on others, so that is told of ranks only that
//! have started nothing.

use super::buffer::Ready;
use super::choice::{Call, Key, UNKNOWN};
use super::engine::{Engine, Task, context_of};
use super::reduce::Meets;
use super::{Collective, In, Out};
use crate::fail;
use crate::job::Inner;
use crate::team::{Team, TeamRank};
use bytemuck::Pod;
use partage_conduit::barrier::Tag;
use partage_conduit::coll::SIGN;
use partage_conduit::contract::At;
use partage_conduit::record::Site;
use partage_conduit::signal::Notice;
use partage_conduit::sync::light_fence;
use partage_plan::coll::{Kind, OpKind};
use std::fmt;
use std::rc::Rc;

/// Words for the name of a file, of which the end is told.
const FILE: usize = SIGN - 8;

/// Calls that are named otherwise than the collectives of which they consist; the first is none of them.
const NAMES: [&str; 3] = ["", "fold", "prefix_fold"];
/// A line has so many bits; the number of the name is above them, and above that whether the rank waits.
const LINE: u32 = 24;
const WAITS: u32 = 1 << 31;

/// What a rank has entered.
#[derive(Clone, Copy)]
struct Said {
    epoch: u64,
    call: Call,
    /// Bytes of an element, and its type.
    element: u32,
    kind: u32,
    besides: u32,
    /// The number of the call's name.
    name: u32,
    /// It is a call that its rank does not leave before it ends, by the name that the user knows.
    waits: bool,
    /// How many barriers of the job its rank had come to.
    barriers: u64,
    line: u32,
    file: [u64; FILE],
}

/// A number for bytes, which others hardly have.
pub(super) fn number(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |sum: u32, b| (sum ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

impl Said {
    fn new(task: &Task) -> Said {
        let (element, type_name) = (task.element)();
        let mut file = [0; FILE];
        let path = task.site.at.file().as_bytes();
        let end = &path[path.len().saturating_sub(8 * FILE)..];
        bytemuck::cast_slice_mut(&mut file)[..end.len()].copy_from_slice(end);
        // The number of an algorithm is its own rank's.
        let call = Call { algorithm: 0, ..task.key.call() };
        let (kind, besides) = (number(type_name.bytes()), task.besides);
        let name = NAMES.iter().position(|&name| name == task.site.call).unwrap_or(0) as u32;
        let line = task.site.at.line().min((1 << LINE) - 1);
        let (waits, barriers) = (false, 0);
        Said { epoch: task.first(), call, element, kind, besides, name, waits, barriers, line, file }
    }

    /// The same, with what others in a barrier want to know.
    fn of(inner: &Inner, task: &Task) -> Said {
        let said = Said::new(task);
        // A split, too, is a collective, and says by itself who is missing.
        let is_named = said.name > 0 || said.call.op.to_string() == task.site.call;
        let (waits, barriers) = (is_named && inner.pending.is_empty(), inner.seat.barrier().come());
        Said { waits, barriers, ..said }
    }

    fn words(&self) -> [u64; SIGN] {
        let [what, ends, len] = Key::new(self.call).words();
        let mut words = [0; SIGN];
        let place = self.line | self.name << LINE | if self.waits { WAITS } else { 0 };
        let pairs = [pair(self.element, self.kind), pair(place, self.besides)];
        words[..7].copy_from_slice(&[self.epoch + 1, what, ends, len, pairs[0], pairs[1], self.barriers]);
        words[7..SIGN - 1].copy_from_slice(&self.file);
        words[SIGN - 1] = sum(&words);
        words
    }

    /// What was said of this collective, if that is whole.
    fn read(words: [u64; SIGN], epoch: u64) -> Option<Said> {
        let is = words[0] == epoch + 1 && words[SIGN - 1] == sum(&words);
        is.then(|| {
            let call = Key::of([words[1], words[2], words[3]]).call();
            let mut file = [0; FILE];
            file.copy_from_slice(&words[7..SIGN - 1]);
            let [element, kind] = [words[4] as u32, (words[4] >> 32) as u32];
            let [place, besides] = [words[5] as u32, (words[5] >> 32) as u32];
            let (waits, barriers) = (place & WAITS != 0, words[6]);
            let (name, line) = ((place & !WAITS) >> LINE, place & ((1 << LINE) - 1));
            Said { epoch, call, element, kind, besides, name, waits, barriers, line, file }
        })
    }

    /// Do they fit together?
    fn agrees(&self, other: &Said) -> bool {
        let of = |said: &Said| (said.alike(), said.element, said.kind, said.besides, said.name);
        of(self) == of(other)
    }

    /// What all have alike of the call: not where a permutation goes.
    fn alike(&self) -> Call {
        let call = self.call;
        if call.op == OpKind::Permute { Call { root: 0, from: UNKNOWN, ..call } } else { call }
    }

    /// What does not fit together, of two that do not.
    fn why(&self, other: &Said) -> &'static str {
        let besides = self.besides != other.besides;
        match () {
            () if (self.name, self.call.op) != (other.name, other.call.op) => "all must make the same call",
            () if self.call.sync != other.call.sync => "their sync modes differ",
            () if besides && self.name > 0 => "they are not of the same elements, or not both exclusive, or in place",
            () if self.kind != other.kind => "they have different types or operations",
            () if !besides || self.alike() != other.alike() => "all must make the same call",
            () => "they name different algorithms, or counts, or kinds of buffers, or arrays, or elements of them",
        }
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
        match NAMES.get(self.name as usize) {
            None | Some(&"") => {
                write!(f, "{} of {call}, {} an element, {source} to {dest}{place}", call.op, self.element)?;
            }
            // What its collectives move is not what it is of.
            Some(name) if call.op == OpKind::Reduce => write!(f, "{name}, root {}", call.root)?,
            Some(name) => write!(f, "{name}")?,
        }
        write!(f, ", {before:?}/{after:?}")?;
        write!(f, " ({}:{})", String::from_utf8_lossy(&bytes[..end]), self.line)
    }
}

impl Engine {
    /// Tells all others what this rank has entered.
    pub(super) fn sign(&self, inner: &Rc<Inner>, task: &Task) {
        let words = Said::of(inner, task).words();
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
                false => mine.why(&other),
            };
            let [a, b] = [a, b].map(|member| self.rank_of(member));
            fail::end_with(format!("the ranks disagree: {a} came to {mine}, {b} to {other}; {why}"));
        }
    }

    /// This rank waits in a barrier of the job, whose engine this is, and looks up. Who had not come there when it entered a collective that this rank has not entered waits for
    /// this one, which waits for it.
    pub fn unless_in_collective(&self, inner: &Inner, site: Site) {
        if !inner.pending.is_empty() {
            return;
        }
        let (epoch, come) = (self.begun(), inner.seat.barrier().come());
        let read = |r: usize| Some((r, Said::read(self.desk.sign_of(r, context_of(epoch)).read(), epoch)?));
        let others = (0..self.desk.ranks()).filter(|&r| r != self.desk.rank());
        let is_one = |(_, said): &(usize, Said)| said.waits && said.barriers < come;
        if let Some((r, said)) = others.filter_map(read).find(is_one) {
            let (me, other, Site { call, at }) = (inner.rank, self.rank_of(r), site);
            let mine = format!("{call} ({}:{})", at.file(), at.line());
            let why = "all must make the same calls in the same order";
            fail::end_with(format!("the ranks disagree: {me} came to {mine}, {other} to {said}; {why}"));
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

/// A call that consists of several collectives, as it would be if it were one.
pub(super) struct Whole {
    pub site: Site,
    pub op: OpKind,
    pub root: TeamRank,
    pub sync: (In, Out),
    /// Of source and destination.
    pub kinds: [Kind; 2],
    pub in_place: bool,
    /// Bytes of an element, and its type.
    pub element: fn() -> (u32, &'static str),
    /// What else all ranks must have alike, by a number.
    pub besides: u32,
}

impl Whole {
    /// Data are not touched before all have entered, if that is asked for.
    pub fn enter(&self, team: &Team) {
        self.enter_with(team, 0);
    }

    /// The same with blocks of so many bytes.
    pub fn enter_with(&self, team: &Team, len: usize) {
        if self.sync.0 == In::All {
            if team.inner.check {
                self.say(team, len);
            }
            team.meet(Tag::Plain, u64::MAX, || self.site);
        }
    }

    /// Says what it is to whoever does not come to the barrier: that one is in the first collective already.
    #[cold]
    fn say(&self, team: &Team, len: usize) {
        let (mine, mut all, mut task) = ([0u8], vec![], Task::new(self.site.call, self.site.at));
        if !team.gather_all(&mine).to(&mut all).describe(&mut task) {
            return;
        }
        task.key = Key::new(Call {
            op: self.op,
            root: self.root.0,
            from: UNKNOWN,
            len,
            sync: self.sync,
            source: self.kinds[0],
            dest: self.kinds[1],
            in_place: self.in_place,
            exclusive: false,
            ordered: false,
            grain: 1,
            algorithm: 0,
        });
        (task.element, task.besides) = (self.element, self.besides);
        team.group.engine.run(&team.inner, &task);
    }
}

impl<T: Pod, M: Meets<T>> Collective<'_, T, Ready, M> {
    /// Does it for another call, of which all ranks must have this alike, too. (Its buffers are memory of this rank's own.)
    #[track_caller]
    pub(super) fn run_as(self, site: Site, besides: u32) {
        let team = self.team;
        if !team.inner.check {
            return self.run_at(site);
        }
        let mut task = Task::new(site.call, site.at);
        if self.describe(&mut task) {
            task.besides = besides;
            team.group.engine.run(&team.inner, &task);
        }
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
            let call = Key::of([7, epoch.wrapping_add(8), 9]).call();
            let (waits, barriers) = (epoch.is_multiple_of(2), epoch / 3);
            Said { epoch, call, element: 8, kind: 77, besides: 5, name: 2, waits, barriers, line: 12, file }
        };
        for epoch in [0, 1, 17, 1 << 40] {
            let words = said(epoch).words();
            assert!(
                Said::read(words, epoch).is_some_and(|s| s.agrees(&said(epoch)))
                    && Said::read(words, epoch ^ 1).is_none()
            );
            let back = Said::read(words, epoch).map(|s| (s.waits, s.barriers, s.name, s.line));
            assert_eq!(back, Some((epoch.is_multiple_of(2), epoch / 3, 2, 12)));
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
