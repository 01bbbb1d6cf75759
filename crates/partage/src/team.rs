//! Ranks, teams, barriers. Everything collective is a method of [`Team`]; [`Job`](crate::Job) derefs to the team of all.

mod make;
#[deny(unsafe_code)]
mod meet;

use crate::array::Arrays;
use crate::coll::Engine;
use crate::fail;
use crate::job::Inner;
use bytemuck::{Pod, Zeroable};
use partage_conduit::barrier::{Arrived, Call, Met, Tag};
use partage_conduit::meeting::Verdict;
use partage_conduit::record::Site;
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

pub(crate) use make::{Own, Teams};
use meet::Came;

/// A rank of the job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub struct Rank(pub u32);

/// A member's number in a team; not a [`Rank`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub struct TeamRank(pub u32);

impl Rank {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl TeamRank {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// An ordered set of ranks that do collective things together: all ranks of the job, or some of them ([`split`](Team::split),
/// [`subset`](Team::subset), [`team`](Team::team)). Members have numbers of their own in it ([`TeamRank`]), and only they call what it has: barriers,
/// arrays and their phases, collectives. Teams may overlap, and each goes its own way: what one does another neither waits for nor sees.
///
/// Dropping it waits for nobody. Who then waits for this rank in another collective of the team is told that it has left.
///
/// Not `Clone` (two handles could split one order of collectives) and not `Send`.
///
/// ```
/// use partage::prelude::*;
/// partage::test(6, |job| {
///     let row = job.split(job.rank().index() / 3);                        // two rows of three
///     let column = job.split(job.rank().index() % 3);                     // three columns of two
///     let sums = row.value(u64::from(job.rank().0)).gather_all();         // in each row, at the same time
///     assert_eq!(sums.iter().sum::<u64>(), [3, 12][job.rank().index() / 3]);
///     let mut a = column.array::<u64>(4).unwrap();                        // over two ranks
///     a.own(|mine| mine.fill(u64::from(job.rank().0)));
///     assert_eq!((a.get(0), a.get(3)), (u64::from(job.rank().0 % 3), u64::from(job.rank().0 % 3 + 3)));
///     column.barrier();
/// });
/// ```
#[derive(Debug)]
pub struct Team {
    pub(crate) inner: Rc<Inner>,
    pub(crate) group: Rc<Group>,
}

/// What all handles of a team on one rank share.
#[derive(Debug)]
pub(crate) struct Group {
    /// What runs its collectives; it knows the members.
    pub engine: Engine,
    /// The notify of a split barrier whose wait has not come yet.
    notified: Cell<Option<Site>>,
    pub arrays: Arrays,
    /// What it has for itself, if it is not the team of all ranks.
    pub own: Option<Own>,
}

impl Group {
    pub fn new(engine: Engine, own: Option<Own>) -> Group {
        Group { engine, notified: Cell::new(None), arrays: Arrays::default(), own }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            Group::end(&self.engine, &self.arrays, own);
        }
    }
}

impl Team {
    /// Another handle of the same team.
    pub(crate) fn another(&self) -> Team {
        Team { inner: self.inner.clone(), group: self.group.clone() }
    }

    /// My number in this team.
    #[inline(always)]
    pub fn rank(&self) -> TeamRank {
        TeamRank(self.group.engine.desk.rank() as u32)
    }

    /// How many members it has.
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.group.engine.desk.ranks()
    }

    /// The rank of a member.
    #[track_caller]
    pub fn to_job(&self, member: TeamRank) -> Rank {
        if member.index() >= self.size() {
            panic!("{}: to_job: there is no member {} in a team of {}", self.inner.rank, member.0, self.size());
        }
        self.group.engine.rank_of(member.index())
    }

    /// The number of a rank in this team, if it is a member.
    pub fn member(&self, rank: Rank) -> Option<TeamRank> {
        self.group.engine.member(rank).map(|m| TeamRank(m as u32))
    }

    /// The ranks of all members, in their order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Rank> + '_ {
        (0..self.size()).map(|m| self.group.engine.rank_of(m))
    }

    /// Waits until all members have come. My puts before it are seen by everybody's gets after it.
    ///
    /// ```
    /// partage::test(3, |job| {
    ///     let flag = job.alloc_all::<u32>(1).unwrap();
    ///     flag.on(job.neighbor(1)).put(job, 7);
    ///     job.barrier();
    ///     assert_eq!(flag.get(job), 7);
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn barrier(&self) {
        let at = Location::caller();
        self.meet(Tag::Plain, u64::MAX, move || Site { call: "barrier", at });
    }

    /// A barrier at which all who give a value must give the same one; a job whose ranks disagree ends, with one
    /// message that names two of them and their values. Ranks in a plain [`barrier`](Self::barrier) agree with any value.
    ///
    /// ```
    /// partage::test(3, |job| {
    ///     for step in 0..10 {
    ///         job.barrier_with(step);    // nobody is in another step
    ///     }
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn barrier_with(&self, value: u64) {
        let at = Location::caller();
        self.meet(Tag::Value(value), u64::MAX, move || Site { call: "barrier_with", at });
    }

    /// The first half of a split barrier: says that I have come, and goes on. [`Notified::wait`] is the second half.
    ///
    /// ```
    /// partage::test(4, |job| {
    ///     let there = job.notify(Some(1));
    ///     let sum: u64 = (0..1000).sum();          // something that needs nobody
    ///     there.wait(Some(1));
    ///     assert_eq!(sum, 499500);
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn notify(&self, value: Option<u64>) -> Notified<'_> {
        let site = Site::here("notify");
        self.may_meet(move || site);
        let tag = value.map_or(Tag::Plain, Tag::Value);
        self.group.notified.set(Some(site));
        let arrived = match &self.group.own {
            None => Here::All(self.inner.seat.barrier().arrive(tag, u64::MAX)),
            Some(own) => Here::Some(self.come(&own.door, tag, u64::MAX, site)),
        };
        Notified { team: self, arrived, value }
    }

    /// Arrives and waits; the smallest `aux`.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn meet(&self, tag: Tag, aux: u64, site: impl Fn() -> Site + Copy) -> u64 {
        self.may_meet(site);
        if self.group.own.is_some() {
            return self.meet_members(tag, aux, site());
        }
        let arrived = self.inner.seat.barrier().arrive(tag, aux);
        self.complete(arrived, site).map_or(u64::MAX, |(aux, _)| aux)
    }

    /// The same of a team that is not the job's.
    #[inline(never)]
    fn meet_members(&self, tag: Tag, aux: u64, site: Site) -> u64 {
        let door = &self.group.own.as_ref().expect("a team of some").door;
        let came = self.come(door, tag, aux, site);
        self.leave(door, came, site).map_or(u64::MAX, |(aux, _)| aux)
    }

    /// Waits for all; the smallest `aux` and the value that was given, if anybody came with something.
    #[inline(always)]
    fn complete(&self, arrived: Arrived, site: impl Fn() -> Site + Copy) -> Option<(u64, Option<u64>)> {
        let seat = &self.inner.seat;
        let _near = seat.awaits_barrier();
        let says = move || self.unless_in_vain(site());
        let unwound = Unwound { team: self, site };
        let waited = seat.barrier().wait(arrived, seat.waiter(), says, || self.inner.progress());
        std::mem::forget(unwound);
        match waited {
            Ok(Met::Bare) => None,
            Ok(Met::WithDetails) => Some(self.conclude(arrived, site())),
            // In a destructor that already unwinds for that, there is nothing to wait for.
            Err(_) if std::thread::panicking() => None,
            Err(_) => fail::job_is_over(),
        }
    }

    /// This rank waits for all, and looks up: others may wait for it elsewhere.
    #[cold]
    #[inline(never)]
    fn unless_in_vain(&self, site: Site) -> Site {
        // What unwinds already says why.
        if !std::thread::panicking() {
            if self.inner.check {
                self.group.engine.unless_in_collective(&self.inner, site);
            }
            self.inner.unless_awaited(site);
        }
        site
    }

    #[inline(never)]
    fn conclude(&self, arrived: Arrived, site: Site) -> (u64, Option<u64>) {
        match self.inner.seat.barrier().verdict(arrived) {
            Verdict::Agreed { aux, tag: Tag::Value(v) } => (aux, Some(v)),
            Verdict::Agreed { aux, .. } => (aux, None),
            Verdict::Disagreed(who) => self.disagree(who, &site),
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn may_meet(&self, site: impl Fn() -> Site) {
        if let Some(open) = self.group.notified.get() {
            self.not_waited(open, site());
        }
        self.inner.may_wait(site);
    }

    #[cold]
    #[track_caller]
    fn not_waited(&self, open: Site, site: Site) -> ! {
        panic!(
            "{}: {site} comes before the wait of the {open}; call `wait` on what `notify` returned",
            self.inner.rank
        );
    }

    /// All ranks come here with the same two; each tells the others where it is, and all say the same.
    #[cold]
    #[inline(never)]
    fn disagree(&self, who: [(u32, Tag); 2], site: &Site) -> ! {
        let seat = &self.inner.seat;
        let node = seat.node();
        let all_have_come = || {
            let arrived = seat.barrier().arrive(Tag::Call(Call::Report, 0), u64::MAX);
            if seat.barrier().wait(arrived, seat.waiter(), || *site, || seat.serve_messages()).is_err() {
                fail::job_is_over();
            }
        };
        node.record(self.inner.rank.index()).waiting(site);
        all_have_come();
        let place = |rank: u32| self.inner.place_of(*site, rank);
        let [a, b] = who.map(|(rank, tag)| format!("rank {rank} came to {tag} ({})", place(rank)));
        // Nobody goes on, and overwrites its record, before all have read.
        all_have_come();
        fail::end_with(format!("the ranks disagree: {a}, {b}"));
    }
}

impl Inner {
    /// Where a rank was last seen waiting.
    fn place_of(&self, site: Site, rank: u32) -> String {
        let (seat, node) = (&self.seat, self.seat.node());
        match node.ranks().is_near(rank as usize) {
            true => node.record(rank as usize).last_site().unwrap_or_default(),
            false => partage_conduit::reference::last_site(seat, site, rank).unwrap_or_default(),
        }
    }
}

/// A rank that has arrived and unwinds out of its wait: who has caught that and comes again would be counted twice, and others would go on without
/// one that has not come. It comes to no more, and the job ends.
struct Unwound<'t, S: Fn() -> Site> {
    team: &'t Team,
    site: S,
}

impl<S: Fn() -> Site> Drop for Unwound<'_, S> {
    #[cold]
    fn drop(&mut self) {
        self.team.group.notified.set(Some((self.site)()));
        fail::end_unwinding();
    }
}

/// A split barrier between its halves: what [`Team::notify`] returns. Until [`wait`](Self::wait) every collective call of this team panics, not only another barrier; those
/// of other teams, puts and gets do not. [`test`](Self::test) in a loop has room for other work: `while !there.test() { … }`.
#[must_use = "a split barrier ends with `wait`"]
#[derive(Debug)]
pub struct Notified<'t> {
    team: &'t Team,
    arrived: Here,
    value: Option<u64>,
}

/// An arrival: of all ranks, or of some.
#[derive(Debug)]
enum Here {
    All(Arrived),
    Some(Came),
}

impl Notified<'_> {
    /// Have all members come? Then [`wait`](Self::wait) does not wait. Makes progress if they have not.
    pub fn test(&self) -> bool {
        let test = || match &self.arrived {
            Here::All(arrived) => self.team.inner.seat.barrier().test(arrived),
            Here::Some(came) => self.team.have_come_or_stay_away(came),
        };
        test() || (self.team.inner.look() && test())
    }

    /// The second half: waits until all members have come. A value must be the one that was notified.
    #[inline(always)]
    #[track_caller]
    pub fn wait(self, value: Option<u64>) {
        let site = Site::here("wait");
        self.team.group.notified.set(None);
        let met = match (self.arrived, &self.team.group.own) {
            (Here::Some(came), Some(own)) => self.team.leave(&own.door, came, site),
            (Here::All(arrived), _) => self.team.complete(arrived, move || site),
            (Here::Some(_), None) => unreachable!("all ranks meet otherwise"),
        };
        let agreed = met.and_then(|(_, agreed)| agreed);
        if let (Some(v), Some(agreed)) = (value, self.value.or(agreed))
            && v != agreed
        {
            panic!("{}: {site}: wait({v}) ends a barrier that was notified with value {agreed}", self.team.inner.rank);
        }
    }
}
