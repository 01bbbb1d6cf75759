//! How teams are made, and how they end.
//!
//! # Making
//! Nothing is known of a new team but its list of ranks, which each member has. All of them tell the *first*, the member of the lowest rank, at which place
//! of their memory the team's desk could be: each has taken it already, and zeroed it. If all have said the same, the first tells them
//! so, and the team is made; if not, those below the highest place that was said are asked for one from there on, until all are the same. It ends, since
//! places only grow; ranks that make the same teams in the same order need one round. Only members send or receive anything.
//!
//! Members that name different lists would wait for each other forever. So who has waited for a while tells all others its list, and how many teams with them it has
//! made: who waits for a rank that has made no more, and waits for it with another list, says so. What comes early is kept: a rank may make other teams first,
//! or have made this one already.
//!
//! Nor does a team come about of which a member goes elsewhere. So lists are told with how many barriers of all ranks their rank has come to: a member that has not
//! made the team, and waits for all in a later barrier, or at the end, is waited for by one that never comes there, and says so. Who waits in a split tells the
//! members after it the same. Where a member waits for anything else, what it waits for may come; then only the hang report tells.
//!
//! # Ending
//! The last handle that a member drops ends its part. It tells the others how far it came, waits for nobody, and its memory is used again when all have
//! ended theirs, and nothing of them is under way: it looks when it makes another team. So who waits for a member that has left finds out.

use super::meet::Door;
use super::{Group, Rank, Team, TeamRank};
use crate::array::Arrays;
use crate::coll::Engine;
use crate::error::{Error, Result};
use crate::fail;
use crate::job::Inner;
use partage_conduit::contract::{At, Conduit};
use partage_conduit::record::Site;
use partage_conduit::reference::TEAM;
use partage_conduit::shm::bytes;
use partage_conduit::shm::coll::{self, Rest};
use partage_conduit::shm::team::{Heard, NAMED, Said, Told};
use partage_conduit::signal::Notice;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Scratch of a member in one context: little, so that teams are cheap; longer blocks pass in more parts.
const SCRATCH: usize = 16 << 10;
/// The same if members are on several nodes, where each part would wait for a message.
const FAR_SCRATCH: usize = 64 << 10;
/// To which desks are aligned.
const ALIGN: u64 = 4096;

/// What members say: a place that is free; that they have this list; and what the first answers: a place from which on one is needed, the
/// place of all, that somebody has none.
const FREE: u64 = 0;
const LIST: u64 = 1;
const FROM: u64 = 2;
const MADE: u64 = 3;
const NONE: u64 = 4;
/// And what is said in a split: that it waits.
const SPLIT: u64 = 5;
/// No place.
const NOWHERE: u64 = 0;

/// After this time members that wait tell each other their lists.
const LATE: Duration = Duration::from_millis(200);
/// So many members hear from each that waits in a split.
const NEXT: usize = 16;

/// What a rank knows of teams that it has made.
#[derive(Debug, Default)]
pub(crate) struct Teams {
    /// How many of each list, by its hash; also those for which there was no room.
    made: RefCell<HashMap<u64, u64>>,
    /// How many splits of teams of each list it has come to.
    splits: RefCell<HashMap<u64, u64>>,
    /// The split in which it is.
    split: RefCell<Option<Split>>,
    /// How many with each rank.
    common: RefCell<HashMap<u32, u64>>,
    /// Those that it has left, whose memory others may still use.
    left: RefCell<Vec<Left>>,
}

impl Teams {
    fn common_with(&self, rank: u32) -> u64 {
        self.common.borrow().get(&rank).copied().unwrap_or(0)
    }

    /// Has this rank come to that team, or split?
    fn is_past(&self, what: Told) -> bool {
        let counts = if what.kind == SPLIT { &self.splits } else { &self.made };
        counts.borrow().get(&what.list).is_some_and(|&come| what.nth < come)
    }
}

/// A split in which this rank is.
#[derive(Debug)]
struct Split {
    begun: Instant,
    told: Told,
    /// The first members.
    named: Vec<u32>,
    /// Those that are to be told that it waits, the next one last.
    to_tell: RefCell<Vec<u32>>,
}

/// This rank is in a split as long as this lives.
struct InSplit<'a>(&'a Teams);

impl Drop for InSplit<'_> {
    fn drop(&mut self) {
        *self.0.split.borrow_mut() = None;
    }
}

/// A team that this rank has left.
#[derive(Debug)]
struct Left {
    rest: Rest,
    /// Its blocks, and how many bytes they have.
    blocks: Vec<u64>,
    bytes: u64,
    /// Members that are told by messages, at which words, and what; whether they were told of the end, and that nothing is under way.
    far: Vec<u32>,
    words: [u64; 3],
    leavers: u64,
    says: [u64; 2],
    told: Cell<bool>,
    gone: Cell<bool>,
}

/// What a team has that is not the job's.
#[derive(Debug)]
pub(crate) struct Own {
    home: Rc<Inner>,
    /// Its desk, and the board of its arrays: where they begin, and how many bytes they have.
    blocks: RefCell<Vec<u64>>,
    bytes: Cell<u64>,
    pub(super) door: Door,
}

impl Own {
    /// It has this block more.
    pub fn add(&self, block: u64, bytes: u64) {
        self.blocks.borrow_mut().push(block);
        self.bytes.set(self.bytes.get() + bytes);
        self.home.own_use.set(self.home.own_use.get() + bytes);
    }
}

/// A team that is being made.
struct Making<'a> {
    inner: &'a Rc<Inner>,
    site: Site,
    list: &'a [u32],
    told: Told,
    /// Bytes of a desk.
    len: u64,
}

/// Where a rank waits.
struct Waits<'a, 'm>(&'a Making<'m>, Option<u32>);

impl fmt::Display for Waits<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits(Making { site, list, .. }, whom) = self;
        write!(f, "{site} (a team of {}", Ranks(list, list.len()))?;
        match whom {
            Some(rank) => write!(f, ": for rank {rank} to make it too)"),
            None => write!(f, ": for all of them to make it)"),
        }
    }
}

/// Some ranks of a list of so many, in words.
struct Ranks<'a>(&'a [u32], usize);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ranks(list, len) = *self;
        let named: Vec<String> = list.iter().take(NAMED).map(u32::to_string).collect();
        let word = if len == 1 { "rank" } else { "ranks" };
        let more = if len > named.len() { format!(" and {} more", len - named.len()) } else { String::new() };
        write!(f, "{word} {}{more}", named.join(", "))
    }
}

/// Some number that differs if lists do, as a rule.
fn hash(list: &[u32]) -> u64 {
    let mix = |all: u64, &r: &u32| (all.rotate_left(23) ^ u64::from(r)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    list.iter().fold(list.len() as u64, mix)
}

impl Team {
    /// Collective: one team for each color, of the members who give it, in the order of this team.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(5, |job| {
    ///     let odd = job.split(job.rank().index() % 2);
    ///     assert_eq!(odd.size(), [3, 2][job.rank().index() % 2]);
    ///     assert_eq!(odd.rank(), TeamRank(job.rank().0 / 2));
    ///     assert_eq!(odd.value(job.rank()).gather_all(), odd.members().collect::<Vec<_>>());
    /// });
    /// ```
    #[track_caller]
    pub fn split(&self, color: usize) -> Team {
        self.split_at(Site::here("split"), color, 0)
    }

    /// Collective: the same, in the order of keys; members with equal ones in that of this team.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let turned = job.split_by(0, -i64::from(job.rank().0));
    ///     assert_eq!(turned.to_job(TeamRank(0)), Rank(2));
    /// });
    /// ```
    #[track_caller]
    pub fn split_by(&self, color: usize, key: i64) -> Team {
        self.split_at(Site::here("split_by"), color, key)
    }

    /// Collective: one team for each node, of the members on it, whose memory is mapped on all of them.
    ///
    /// ```
    /// partage::test(4, |job| {
    ///     let node = job.split_by_node();
    ///     assert!(node.members().all(|r| job.same_node(r)));
    /// });
    /// ```
    #[track_caller]
    pub fn split_by_node(&self) -> Team {
        let site = Site::here("split_by_node");
        self.may_meet(|| site);
        let ranks = self.inner.seat.node().ranks();
        let list = self.members().map(|r| r.0).filter(|&r| ranks.is_near(r as usize)).collect();
        self.make(site, list)
    }

    /// The team of the members for which `keep` holds, which must say the same on all of them; nothing elsewhere. Only those need to call it,
    /// and only they wait for each other.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(4, |job| {
    ///     if let Some(last) = job.subset(|r| r.0 > 0) {
    ///         assert_eq!(last.value(job.rank().0).gather_all(), [1, 2, 3]);
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn subset(&self, keep: impl Fn(TeamRank) -> bool) -> Option<Team> {
        let site = Site::here("subset");
        self.may_meet(|| site);
        let list = (0..self.size()).filter(|&m| keep(TeamRank(m as u32))).map(|m| self.group.engine.rank_of(m).0);
        keep(self.rank()).then(|| self.make(site, list.collect()))
    }

    /// The team of these ranks, in this order; only they call it, all with the same list. So members are inserted into a team when it is
    /// made: by a longer list.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(4, |job| {
    ///     let two = job.subset(|r| r.0 >= 2);
    ///     if job.rank().0 != 1 {
    ///         // Those of `two`, and rank 0 after them.
    ///         let three = job.team([Rank(2), Rank(3)].into_iter().chain([Rank(0)]));
    ///         assert_eq!(three.member(Rank(0)), Some(TeamRank(2)));
    ///         three.barrier();
    ///     }
    ///     # drop(two);
    /// });
    /// ```
    #[track_caller]
    pub fn team(&self, ranks: impl IntoIterator<Item = Rank>) -> Team {
        let site = Site::here("team");
        self.may_meet(|| site);
        let (me, list) = (self.inner.rank, ranks.into_iter().map(|r| r.0).collect::<Vec<_>>());
        let mut sorted = list.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
            panic!("{me}: team: rank {} is named twice; name each member once", twice[0]);
        }
        if let Some(&outside) = list.iter().find(|&&r| self.member(Rank(r)).is_none()) {
            panic!("{me}: team: rank {outside} is no member of this team of {}; name members only", self.size());
        }
        if !list.contains(&me.0) {
            let all = Ranks(&list, list.len());
            panic!("{me}: team: this rank is not among its members, {all}; only they call it");
        }
        self.make(site, list)
    }

    #[track_caller]
    fn split_at(&self, site: Site, color: usize, key: i64) -> Team {
        self.may_meet(|| site);
        let inside = self.come_to_split();
        let all = self.gather_words(site, [color as u64, key as u64]);
        drop(inside);
        if self.inner.is_ending() {
            self.inner.no_result(site);
        }
        let mut members: Vec<(i64, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, [c, _])| *c == color as u64)
            .map(|(member, [_, key])| (*key as i64, member))
            .collect();
        members.sort_unstable();
        let list = members.iter().map(|&(_, member)| self.group.engine.rank_of(member).0).collect();
        self.make(site, list)
    }

    /// Counts a split, and says that this rank is in it.
    fn come_to_split(&self) -> InSplit<'_> {
        let (teams, n, me) = (&self.inner.teams, self.size(), self.rank().index());
        let list: Vec<u32> = self.members().map(|r| r.0).collect();
        let hash = hash(&list);
        let mut splits = teams.splits.borrow_mut();
        let count = splits.entry(hash).or_default();
        let told = Told { list: hash, nth: *count, len: n as u64, common: 0, kind: SPLIT, offset: 0 };
        *count += 1;
        let to_tell = (1..n.min(NEXT + 1)).rev().map(|d| list[(me + d) % n]).collect();
        let named = list[..n.min(NAMED)].to_vec();
        let split = Split { begun: Instant::now(), told, named, to_tell: RefCell::new(to_tell) };
        *teams.split.borrow_mut() = Some(split);
        InSplit(teams)
    }

    #[track_caller]
    fn make(&self, site: Site, list: Vec<u32>) -> Team {
        match self.try_make(site, list) {
            Ok(team) => team,
            Err(why) => panic!("{why}"),
        }
    }

    fn try_make(&self, site: Site, list: Vec<u32>) -> Result<Team> {
        let inner = &self.inner;
        inner.sweep_teams(site);
        let (n, me, hash) = (list.len(), inner.rank, hash(&list));
        let nth = inner.teams.made.borrow().get(&hash).copied().unwrap_or(0);
        let ranks = inner.seat.node().ranks();
        let node = |r: &u32| ranks.node_of(ranks.place(*r as usize).0);
        let is_near = list.iter().all(|r| node(r) == node(&list[0]));
        let scratch = if is_near { SCRATCH } else { FAR_SCRATCH };
        let len = coll::len(n, scratch) as u64;
        let told = Told { list: hash, nth, len: n as u64, common: 0, kind: LIST, offset: 0 };
        let making = Making { inner, site, list: &list, told, len };
        let agreed = making.agree();
        if inner.is_ending() {
            inner.no_result(site);
        }
        // Counted also if there is no room: that is so on all members.
        inner.teams.made.borrow_mut().insert(hash, nth + 1);
        let mut common = inner.teams.common.borrow_mut();
        list.iter().for_each(|&r| *common.entry(r).or_default() += 1);
        drop(common);
        let offset = agreed?;
        let at = list.iter().position(|&r| r == me.0).expect("a member");
        let place = coll::Place::of_block(offset, n, scratch);
        // SAFETY: a block of this length at this place, which all members have taken and zeroed as far as it must be: they have told so. They give it
        // back when all have left (`sweep_teams`).
        let engine = unsafe { Engine::new(&inner.seat, &inner.guarded, (list.into(), at), place) };
        let own = Own { home: inner.clone(), blocks: RefCell::default(), bytes: Cell::new(0), door: Door::default() };
        own.add(offset, len);
        Ok(Team { inner: inner.clone(), group: Rc::new(Group::new(engine, Some(own))) })
    }
}

impl Making<'_> {
    /// The place of the team's desk, which this rank has taken.
    fn agree(&self) -> Result<u64> {
        let (me, first) = (self.inner.rank.0, *self.list.iter().min().expect("a member"));
        // Lists that came when their teams had been made.
        self.heard().take(|said| self.inner.teams.is_past(said.what));
        let mine = self.take(0);
        let agreed = if me == first { self.lead(mine) } else { self.follow(mine, first) };
        agreed.map_err(|why| {
            let why = why.unwrap_or_else(|| "another member has no room".into());
            let (what, site) = (bytes(self.len), self.site);
            Error::out_of_memory(format!("rank {me}: {site}: {what} for a team of {}: {why}", self.list.len()))
        })
    }

    fn heard(&self) -> &Heard {
        self.inner.heard_of_teams()
    }

    /// Takes the lowest free place from there on, zeroed.
    fn take(&self, from: u64) -> std::result::Result<u64, String> {
        let (seat, zeroed) = (&self.inner.seat, coll::head_len(self.list.len()) as u64);
        let found = seat.find_for_team(self.len, ALIGN, from);
        let taken = found.and_then(|at| seat.take_for_team(at, self.len, ALIGN, zeroed).map(|()| at));
        taken.map_err(|why| why.to_string())
    }

    fn give(&self, place: u64) {
        self.inner.seat.give_for_team(place);
    }

    fn tell(&self, to: u32, kind: u64, offset: u64) {
        let what = Told { kind, offset, common: self.inner.teams.common_with(to), ..self.told };
        let named = &self.list[..self.list.len().min(NAMED)];
        let (args, ranks) = (bytemuck::bytes_of(&what), bytemuck::cast_slice(named));
        self.inner.request(self.site, Rank(to), TEAM, args, ranks);
    }

    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        self.list.iter().copied().filter(|&r| r != self.inner.rank.0)
    }

    /// Waits until `done`; says it if a member is found to have another list.
    fn wait(&self, whom: Option<u32>, done: impl Fn() -> bool) {
        let begun = Instant::now();
        self.wait_hearing(whom, || done() || begun.elapsed() > LATE);
        if !done() {
            let come = self.inner.seat.barrier().come();
            self.others().for_each(|r| self.tell(r, LIST, come));
            self.wait_hearing(whom, done);
        }
    }

    fn wait_hearing(&self, whom: Option<u32>, done: impl Fn() -> bool) {
        let teams = &self.inner.teams;
        let is_other = |said: &Said| {
            let what = said.what;
            let is_elsewhere = match what.kind {
                FREE | LIST => what.list != self.told.list,
                kind => kind == SPLIT,
            };
            is_elsewhere
                && self.list.contains(&said.from)
                && !teams.is_past(what)
                && what.common == teams.common_with(said.from)
        };
        let disagrees = || self.heard().count(is_other) > 0;
        self.inner.unless_over(self.inner.wait_saying(|| Waits(self, whom), || done() || disagrees()));
        if !done()
            && let Some(other) = self.heard().find(is_other)
        {
            let (me, site, mine) = (self.inner.rank, self.site, Ranks(self.list, self.list.len()));
            let (from, theirs) = (other.from, Ranks(&other.ranks, other.what.len as usize));
            let (one, fix) = match other.what.kind {
                SPLIT => ("splits one", "all of them must split it"),
                _ => ("one", "all give the same list"),
            };
            let both = format!("this rank makes a team of {mine}, rank {from} {one} of {theirs}");
            fail::end_with(format!("{me}: {site}: {both}; {fix}"));
        }
    }

    fn is_mine(&self, said: &Said) -> bool {
        (said.what.list, said.what.nth) == (self.told.list, self.told.nth)
    }

    /// The first hears from all, and tells all.
    fn lead(&self, mut mine: std::result::Result<u64, String>) -> std::result::Result<u64, Option<String>> {
        let mut places: HashMap<u32, u64> = HashMap::new();
        let mut asked = self.list.len() - 1;
        loop {
            let is_answer = |said: &Said| self.is_mine(said) && said.what.kind == FREE;
            self.wait(None, || self.heard().count(is_answer) >= asked);
            if self.inner.is_ending() {
                return Err(None);
            }
            places.extend(self.heard().take(is_answer).iter().map(|said| (said.from, said.what.offset)));
            let at = match &mine {
                Ok(at) if places.values().all(|&place| place != NOWHERE) => *at,
                _ => {
                    self.others().for_each(|r| self.tell(r, NONE, 0));
                    mine.iter().for_each(|&at| self.give(at));
                    return Err(mine.err());
                }
            };
            let highest = places.values().copied().max().unwrap_or(at).max(at);
            let below: Vec<u32> = self.others().filter(|r| places[r] < highest).collect();
            if below.is_empty() && at == highest {
                self.others().for_each(|r| self.tell(r, MADE, at));
                return Ok(at);
            }
            below.iter().for_each(|&r| self.tell(r, FROM, highest));
            asked = below.len();
            if at < highest {
                self.give(at);
                mine = self.take(highest);
            }
        }
    }

    /// The others tell it, until it says that all are the same.
    fn follow(
        &self,
        mut mine: std::result::Result<u64, String>,
        first: u32,
    ) -> std::result::Result<u64, Option<String>> {
        self.tell(first, FREE, *mine.as_ref().unwrap_or(&NOWHERE));
        loop {
            let is_answer = |said: &Said| self.is_mine(said) && matches!(said.what.kind, FROM | MADE | NONE);
            self.wait(Some(first), || self.heard().count(is_answer) > 0);
            let answer = self.heard().take(is_answer).pop().map(|said| said.what);
            match (answer, &mine) {
                (Some(Told { kind: MADE, offset, .. }), Ok(at)) if offset == *at => return Ok(offset),
                (Some(Told { kind: FROM, offset, .. }), _) => {
                    mine.iter().for_each(|&at| self.give(at));
                    mine = self.take(offset);
                    self.tell(first, FREE, *mine.as_ref().unwrap_or(&NOWHERE));
                }
                // There is none, or the job ends.
                _ => {
                    mine.iter().for_each(|&at| self.give(at));
                    return Err(mine.err());
                }
            }
        }
    }
}

impl Group {
    /// This rank has dropped its last handle.
    pub(super) fn end(engine: &Engine, arrays: &Arrays, own: &Own) {
        let (inner, desk) = (&own.home, &engine.desk);
        if inner.calls.is_over() {
            return;
        }
        let [epochs, barriers] = [engine.begun() + 1, own.door.times() + 1];
        let told_otherwise = desk.leave(epochs, barriers).into_iter();
        let far: Vec<u32> = told_otherwise.map(|m| engine.rank_of(m).0).collect();
        // What is left of arrays is the runtime's from now on.
        let (more, their_bytes) = arrays.remains();
        let mut blocks = own.blocks.take();
        blocks.extend(more);
        inner.own_use.set(inner.own_use.get() + their_bytes);
        let left = Left {
            rest: desk.rest(),
            blocks,
            bytes: own.bytes.get() + their_bytes,
            gone: Cell::new(far.is_empty()),
            told: Cell::new(far.is_empty()),
            far,
            words: desk.words(0).left,
            leavers: desk.words(0).leavers,
            says: [epochs, barriers],
        };
        if inner.may_serve() && !inner.is_ending() {
            inner.tell_end(Site::here("the end of a team"), &left);
        }
        inner.teams.left.borrow_mut().push(left);
    }
}

impl Inner {
    fn heard_of_teams(&self) -> &Heard {
        &self.seat.landing().teams
    }

    /// This rank waits, and looks up. If it is in a split for long, members may have gone elsewhere: it tells them. What has no room now is told when it looks up again.
    #[cold]
    pub fn looks_up(&self) {
        let split = self.teams.split.borrow();
        let Some(Split { begun, told, named, to_tell }) = &*split else { return };
        if begun.elapsed() < LATE {
            return;
        }
        let (offset, ranks) = (self.seat.barrier().come(), bytemuck::cast_slice(named));
        loop {
            let next = to_tell.borrow().last().copied();
            let Some(to) = next else { return };
            let what = Told { common: self.teams.common_with(to), offset, ..*told };
            if !self.seat.try_request(to as usize, TEAM, bytemuck::bytes_of(&what), ranks) {
                return;
            }
            to_tell.borrow_mut().pop();
        }
    }

    /// This rank waits for all in a barrier, and looks up. If one that has not come there waits for it where it has not been, neither ever goes on.
    pub(super) fn unless_awaited(&self, site: Site) {
        let come = self.seat.barrier().come();
        let waits = |said: &Said| {
            matches!(said.what.kind, LIST | SPLIT) && said.what.offset < come && !self.teams.is_past(said.what)
        };
        if let Some(said) = self.heard_of_teams().find(waits) {
            self.is_awaited(site, &said);
        }
    }

    fn is_awaited(&self, site: Site, said: &Said) -> ! {
        let (me, from, all) = (self.rank, Rank(said.from), Ranks(&said.ranks, said.what.len as usize));
        let (call, fix) = match said.what.kind {
            SPLIT => ("split", "all of them must call it"),
            _ => ("team", "all of them must call it, with the same list"),
        };
        // Without what it waits for there.
        let place = self.place_of(site, said.from);
        let place = place.split(" (").next().filter(|place| !place.is_empty()).unwrap_or(call);
        fail::end_with(format!("{me}: {site}: {from} waits for this rank in {place}, of {all}; {fix}"))
    }

    /// Tells members that are not reached by stores.
    fn tell_end(&self, site: Site, left: &Left) {
        if left.told.replace(true) {
            return;
        }
        let [epochs, barriers, _] = left.words;
        for &to in &left.far {
            for (offset, value) in [(barriers, left.says[1]), (epochs, left.says[0]), (left.leavers, 1)] {
                self.send_notice(site, At::guarded(to, 0), &[], Notice::Add { offset, value });
            }
        }
    }

    /// Gives back the memory of teams that all members have left.
    pub(crate) fn sweep_teams(self: &Rc<Self>, site: Site) {
        if self.teams.left.borrow().is_empty() {
            return;
        }
        let mut all = self.teams.left.take();
        if all.iter().any(|left| !left.gone.get()) {
            // What this rank has under way to them has come.
            all.iter().for_each(|left| self.tell_end(site, left));
            self.quiet_at(site);
            for left in all.iter().filter(|left| !left.gone.replace(true)) {
                let notice = Notice::Add { offset: left.words[2], value: 1 };
                left.far.iter().for_each(|&to| self.send_notice(site, At::guarded(to, 0), &[], notice));
            }
        }
        all.retain(|left| {
            let deserted = left.rest.is_deserted();
            if deserted {
                left.blocks.iter().for_each(|&block| _ = self.seat.give_for_team(block));
                self.own_use.set(self.own_use.get() - left.bytes);
            }
            !deserted
        });
        self.teams.left.borrow_mut().extend(all);
    }
}
