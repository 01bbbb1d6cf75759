//! Runs plans ([`partage_plan::coll`]): by stores and copies between ranks of a node, by messages with notices to others.
//!
//! # Contexts
//! The `e`-th collective of a team, or part of one, has context [`context_of`]`(e)`. All ranks count alike. A rank begins with `e` when it
//! has ended all up to `e - WINDOW`, so each context has one plan at a time. What a rank knows of counts in a context ([`Known`]) grows
//! as [`Totals`] say, and is never reset.
//!
//! Those that two ranks leave together all have the context [`HOME`]: a line that both had in the call before comes sooner than one of sixteen calls
//! ago, and they gain nothing from being apart. A rank begins with one of them when it has ended all others of them. The checker of plans has every plan follow
//! every other in one context.
//!
//! # Arrivals
//! Who arrives has seen that all have arrived as often before, in this context: in the plans before, and in this one. (Most ranks that
//! arrive again have met all. Those from which a root pulls have not.) So one number for all ranks tells whether all have come.
//! Where there are several nodes, the last of a node to arrive tells the others of all its ranks.
//!
//! # Memory
//! A task has addresses of its caller's buffers. Blocking calls borrow them until they return; started ones are
//! borrowed by a scope, which ends when no task is left, or when the job ends and all tasks are given up.
//! Whoever touches whose memory when is what the checker of plans has decided.

mod board;
mod letters;
mod spare;
mod started;
mod task;
mod waits;

use spare::Spare;
pub(crate) use started::Pending;
pub(crate) use task::Task;
pub(super) use task::{Base, UnderWay};
pub(super) use waits::Waits;

use super::again::Memory;
use super::choice::{Asked, Cache};
use super::steps::Now;
use crate::fail;
use crate::job::Inner;
use crate::team::{Group, Rank};
use partage_conduit::board::Progress;
use partage_conduit::coll::{CONTEXTS, Claims, HOME};
use partage_conduit::contract::{At, Half};
use partage_conduit::heap::Side;
use partage_conduit::record::Site;
use partage_conduit::shm::coll::{self, Desk, Words};
use partage_conduit::shm::rma::Reach;
use partage_conduit::shm::{Seat, bytes};
use partage_conduit::signal::Notice;
use partage_conduit::wait::Aborted;
use partage_plan::coll::{Nodes, Signal, Totals};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rank that panics has said so after as long: it may wait for what it has started, and for its connection to the launcher.
const SOON: Duration = Duration::from_secs(2);

/// What a rank has of a team's collectives. Members are named by their numbers in the team, but for what goes to the conduit.
#[derive(Debug)]
pub(crate) struct Engine {
    pub desk: Desk,
    /// The members' ranks.
    members: Box<[u32]>,
    /// It is the job's, which nobody leaves.
    is_of_all: bool,
    /// Which members are on which node.
    pub nodes: Arc<Nodes>,
    /// The ranks of the first members on the other nodes.
    pub(super) others: Box<[u32]>,
    /// How many members are on this node.
    pub(super) here: u64,
    /// How many collectives, or parts of them, were begun.
    epoch: Cell<u64>,
    pub(super) contexts: Box<[Context]>,
    pub(super) words: [Words; CONTEXTS],
    pub prepared: RefCell<Cache>,
    pub(super) known: RefCell<Memory>,
    pub asked: Asked,
    /// By member: of which letters it may not know that they were taken; and the members of whose there are such.
    owed: Box<[letters::Owed]>,
    creditors: RefCell<Vec<usize>>,
    /// Letters of members on other nodes that were taken, of which they were not told: collective, context, sender and number.
    debts: RefCell<Vec<(u64, usize, usize, u64)>>,
    /// The last collectives, and one, in which something came from each member, and in which something went to it by a message.
    heard: Box<[Cell<u64>]>,
    said: Box<[Cell<u64>]>,
    /// What had not come when it was known already.
    unheard: RefCell<Vec<letters::Unheard>>,
    pub(super) spare: Spare,
    /// How far all are, for letters that are posted.
    progress: Progress,
}

/// The context of the `e`-th collective. They are taken in turn, but begin one later each time: else roots that are taken in turn, as
/// many as there are contexts, would each always have the same one, and with it the same letter.
pub(super) fn context_of(epoch: u64) -> usize {
    ((epoch + epoch / CONTEXTS as u64) % CONTEXTS as u64) as usize
}

/// Collectives that are so far apart may have the same context; nearer ones have not.
const APART: u64 = CONTEXTS as u64 - 1;

/// So many may be under way.
const WINDOW: u64 = 6;

/// Who has begun with one has ended all that had the contexts of so many after it.
const KNOWN_FOR: u64 = APART - WINDOW;

/// What a rank knows of a context.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// How often each rank has arrived when the last plan ended.
    pub(super) arrived: Cell<u64>,
    /// How often this one has, by now.
    pub(super) mine: Cell<u64>,
    /// How often all are known to have.
    pub(super) all_arrived: Cell<u64>,
    pub(super) released: Cell<u64>,
    /// How many lists of work plans had.
    pub(super) claimed: Cell<u64>,
    /// The number of the last collective whose letters were posted, from 1.
    posted: Cell<u64>,
    /// By rank.
    pub(super) peers: Box<[Known]>,
}

/// What a rank knows of what it tells another, and of what it is told.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Signals that it made.
    pub(super) sent: [Cell<u64>; 3],
    /// Signals that plans have waited for.
    pub(super) heard: [Cell<u64>; 3],
    pub(super) letters_sent: Cell<u64>,
    /// So many of them were taken, as far as is known.
    pub(super) letters_taken: Cell<u64>,
    pub(super) letters_got: Cell<u64>,
    /// In which collective the last one was sent, and of how many of the other's it was told that they were taken, by messages.
    letter_of: Cell<u64>,
    letters_told: Cell<u64>,
    /// How often the other was not told, by a message, that scratch is free: the next time it is told so often more.
    untold: Cell<u64>,
    /// Its last claim, and the last of the other's that it has taken.
    claimed: Cell<u64>,
    taken: Cell<u64>,
}

/// Before anything unwinds what was borrowed must be free: the network is waited for, unless the task has ended.
struct Complete<'a> {
    inner: &'a Inner,
    task: &'a Task,
}

impl Drop for Complete<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.task.is_done() {
            self.inner.complete_far(self.task.site);
        }
    }
}

impl Engine {
    /// That of the `me`-th of these ranks. Others are reached by what this table has.
    ///
    /// # Safety
    /// As for [`Desk::new`].
    pub unsafe fn new(seat: &Seat, reach: &Reach, (members, me): (Box<[u32]>, usize), place: coll::Place) -> Engine {
        let (node, ranks, n) = (seat.node(), seat.node().ranks(), members.len());
        // SAFETY: passed on to the caller.
        let desk = unsafe { Desk::new(node, reach, (&members, me), place) };
        let nodes: Vec<usize> = members.iter().map(|&r| ranks.node_of(ranks.place(r as usize).0)).collect();
        let mut firsts: Vec<Option<u32>> = vec![None; ranks.nodes()];
        nodes.iter().zip(&members).for_each(|(&node, &r)| _ = firsts[node].get_or_insert(r));
        let others = firsts.into_iter().enumerate().filter(|&(i, _)| i != ranks.node()).filter_map(|(_, first)| first);
        let context = || Context { peers: (0..n).map(|_| Known::default()).collect(), ..Context::default() };
        Engine {
            others: others.collect(),
            here: nodes.iter().filter(|&&node| node == ranks.node()).count() as u64,
            nodes: Arc::new(Nodes::new(&nodes)),
            epoch: Cell::new(0),
            contexts: (0..=HOME).map(|_| context()).collect(),
            words: std::array::from_fn(|c| desk.words(c)),
            prepared: RefCell::default(),
            known: RefCell::default(),
            asked: Asked::default(),
            owed: (0..n).map(|_| letters::Owed::default()).collect(),
            // How many there are at a time is a matter of chance.
            creditors: RefCell::new(Vec::with_capacity(n)),
            debts: RefCell::default(),
            heard: (0..n).map(|_| Cell::new(0)).collect(),
            said: (0..n).map(|_| Cell::new(0)).collect(),
            unheard: RefCell::default(),
            spare: Spare::default(),
            progress: Progress::default(),
            is_of_all: false,
            members,
            desk,
        }
    }

    /// That of a rank that has just taken its seat, for the team of all: everybody takes the same block then.
    pub fn of_all(seat: &Seat, reach: &Reach, rank: usize) -> Result<Engine, String> {
        let (node, n) = (seat.node(), seat.node().ranks().count());
        let (head_len, scratch_len) = (coll::head_len(n) as u64, coll::scratch_of_all(node));
        let scratch = (CONTEXTS * scratch_len) as u64;
        let refused = |e| format!("rank {rank}: {} for collectives: {e}", bytes(head_len + scratch));
        // Idle ranks have no scratch.
        let head = seat.take(Half::Guarded, Side::Symmetric, head_len, 4096).map_err(refused)?;
        let scratch = seat.take_untouched(Half::Guarded, Side::Symmetric, scratch).map_err(refused)?;
        let (members, place) = ((0..n as u32).collect(), coll::Place { head, scratch, scratch_len });
        // SAFETY: the first blocks of this side that any rank takes, so they are at the same places everywhere; nobody gives them back.
        let engine = unsafe { Engine::new(seat, reach, (members, rank), place) };
        Ok(Engine { is_of_all: true, ..engine })
    }

    /// The number of a rank among the members.
    pub fn member(&self, rank: Rank) -> Option<usize> {
        // In most teams members are in the order of ranks, and in the job's at the place of their rank.
        match self.members.get(rank.index()) {
            Some(&r) if r == rank.0 => Some(rank.index()),
            _ => self.members.iter().position(|&r| r == rank.0),
        }
    }

    /// The ranks of all members.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// The ranks of the first members on other nodes, and how many members are on this one.
    pub fn elsewhere(&self) -> (&[u32], u64) {
        (&self.others, self.here)
    }

    /// A member that will never begin this collective: it has left the team.
    fn left_before(&self, epoch: u64) -> Option<usize> {
        if !self.desk.have_some_left() {
            return None;
        }
        (0..self.desk.ranks()).find(|&m| (1..=epoch + 1).contains(&self.desk.left(m).epochs.get()))
    }

    /// Will a member never begin what was started?
    pub fn is_left(&self, task: &Task) -> bool {
        self.left_before(task.epoch()).is_some()
    }

    /// Who waits for a member that has left waits in vain: this ends the job, unless that ends by itself. A member that panics
    /// leaves its teams first, and then says why.
    #[cold]
    pub fn is_left_by(&self, inner: &Rc<Inner>, site: Site, member: usize) -> Aborted {
        let (me, left, begun) = (inner.rank, self.rank_of(member), Instant::now());
        // What unwinds already says why.
        let is_over = std::thread::panicking() || inner.wait_saying(|| site, || begun.elapsed() >= SOON).is_err();
        if is_over {
            return Aborted;
        }
        let why = "has dropped this team already; drop it where all members have done with it";
        fail::end_with(format!("{me}: {site}: {left} {why}"))
    }

    /// The rank of a member.
    #[inline(always)]
    pub fn rank_of(&self, member: usize) -> Rank {
        Rank(self.members[member])
    }

    /// Runs a task to its end.
    #[inline]
    pub fn run(&self, inner: &Rc<Inner>, task: &Task) {
        self.begin(task);
        let unless = Complete { inner, task };
        let ran = self.advance::<true>(inner, task);
        drop(unless);
        inner.unless_over(ran.map(|_| ()));
    }

    /// How many collectives, or parts of them, were begun.
    pub fn begun(&self) -> u64 {
        self.epoch.get()
    }

    /// A call that is done at once begins; its number.
    #[inline(always)]
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.replace(self.epoch.get() + 1)
    }

    fn begin(&self, task: &Task) {
        let first = self.epoch.get();
        task.first.set(first);
        self.epoch.set(first + task.parts as u64);
    }

    /// Have all ended that must have before this task begins with a part?
    fn may_begin(&self, inner: &Inner, task: &Task) -> bool {
        let (epoch, is_at_home) = (task.epoch(), task.is_at_home());
        let is_mine = |group: &Group| std::ptr::eq(&group.engine, self);
        let may_go_on = |before: &Task| match before.epoch() {
            e if is_at_home && before.is_at_home() => e >= epoch,
            e => e + WINDOW > epoch,
        };
        let started = inner.pending.all.borrow();
        started.iter().all(|(group, before)| !is_mine(group) || before.is_done() || may_go_on(before))
    }

    /// Goes on as far as it can, or, blocking, to the end; whether it is there.
    fn advance<const BLOCK: bool>(&self, inner: &Rc<Inner>, task: &Task) -> Result<bool, Aborted> {
        debug_assert!(!task.is_done(), "what has ended would be counted twice");
        loop {
            let (place, part) = (&task.place, task.place.part.get());
            let epoch = task.epoch();
            // If the source of a permutation is not known yet, it is none that ranks leave together.
            let context = task.prepared.get().map_or_else(|| context_of(epoch), |prepared| prepared.context(epoch));
            if !place.begun.get() {
                if inner.calls.has_other() && !self.wait::<BLOCK>(inner, task, None, || self.may_begin(inner, task))? {
                    return Ok(false);
                }
                if !self.debts.borrow().is_empty() {
                    self.pay(inner, task.site, epoch);
                }
                if inner.check && part == 0 {
                    self.sign(inner, task);
                }
                place.begun.set(true);
            }
            let prepared = match task.prepared.get() {
                Some(prepared) => prepared,
                None => match self.claim::<BLOCK>(inner, task, context)? {
                    Some(from) => {
                        let key = task.key.with_source(from);
                        task.prepared.get_or_init(|| self.prepared(inner, &key))
                    }
                    None => return Ok(false),
                },
            };
            if prepared.posting.is_some() && place.step.get() == 0 {
                self.enters_posted(inner, epoch);
            }
            let plan = prepared.plan(part, epoch);
            let (offset, totals) = (part * prepared.part, &plan.totals);
            let now = Now { engine: self, inner, task, context, offset, totals, posting: prepared.posting };
            while let left @ [_, ..] = &plan.steps[place.step.get()..] {
                match now.some::<BLOCK>(left)? {
                    0 => return Ok(false),
                    done => place.step.set(place.step.get() + done),
                }
            }
            if !now.end::<BLOCK>()? {
                return Ok(false);
            }
            self.ended(context, &plan.totals);
            if prepared.posting.is_some() {
                self.ended_posted(context, epoch);
            }
            if part + 1 == prepared.parts {
                if inner.check {
                    self.compare(task);
                }
                let had_some = !task.source.borrow().is_empty() || task.under_way.borrow().is_some();
                if had_some {
                    self.reclaim(task);
                }
                task.done.set(true);
                return Ok(true);
            }
            place.part.set(part + 1);
            place.step.set(0);
            place.begun.set(false);
        }
    }

    /// What a task had that touches nothing any more is for later ones.
    #[cold]
    fn reclaim(&self, task: &Task) {
        self.spare.keep(task.source.take());
        if let Some(under_way) = task.under_way.take() {
            self.spare.keep_under_way(under_way);
        }
    }

    /// The counts of this context have grown.
    #[inline(always)]
    pub(super) fn ended(&self, context: usize, totals: &Totals) {
        let context = &self.contexts[context];
        let add = |cell: &Cell<u64>, n: usize| cell.set(cell.get() + n as u64);
        add(&context.arrived, totals.arrivals);
        add(&context.released, totals.releases);
        add(&context.claimed, totals.claims);
        totals.signals.iter().for_each(|&(from, signal, n)| add(&context.peers[from].heard[signal.count()], n));
    }

    /// Signals to a member that is reached by stores.
    #[inline(always)]
    pub(super) fn tell(&self, context: usize, to: usize, signal: Signal) {
        let sent = &self.contexts[context].peers[to].sent[signal.count()];
        sent.set(sent.get() + 1);
        let inlet = self.desk.to(to).expect("reached by stores");
        inlet.told[context].signals.0[signal.count()].raise(sent.get());
        self.desk.ring(to);
    }

    /// Arrives, where all members are on this node; whether it is the last one.
    #[inline(always)]
    pub(super) fn arrive_near(&self, context: usize) -> bool {
        let is_last = (self.desk.hall(context).arrive(1) + 1).is_multiple_of(self.desk.ranks() as u64);
        if is_last {
            self.desk.ring_all();
        }
        is_last
    }

    /// Releases all.
    #[inline(always)]
    pub(super) fn release(&self, context: usize) {
        self.desk.hall(context).release(self.contexts[context].released.get() + 1);
        self.desk.ring_all();
    }

    /// Tells the rank to which this one permutes, and hears from the one that permutes to this.
    fn claim<const BLOCK: bool>(&self, inner: &Rc<Inner>, task: &Task, context: usize) -> Result<Option<u32>, Aborted> {
        let (desk, peers, number) = (&self.desk, &self.contexts[context].peers, task.first() + 1);
        let (me, to, words) = (desk.rank(), task.key.root() as usize, self.words[context].claims);
        let claims = |of: usize| &desk.from(of).told[context].signals.1;
        let tell = |to: usize, which: usize, last: &Cell<u64>| {
            match desk.to(to) {
                Some(inlet) => {
                    let Claims { made, taken } = &inlet.told[context].signals.1;
                    [made, taken][which].raise(number);
                    desk.ring(to);
                }
                None => {
                    let notice = Notice::Add { offset: words[which], value: number - last.get() };
                    inner.send_notice(task.site, At::guarded(self.rank_of(to).0, 0), &[], notice);
                }
            }
            last.set(number);
        };
        if to != me && !task.place.claimed.get() {
            let last = peers[to].claimed.get();
            if !self.wait::<BLOCK>(inner, task, None, || claims(to).taken.get() >= last)? {
                return Ok(None);
            }
            tell(to, 0, &peers[to].claimed);
        }
        task.place.claimed.set(true);
        let permutes = |r: usize| if r == me { to == me } else { claims(r).made.get() == number };
        if !self.wait::<BLOCK>(inner, task, None, || (0..desk.ranks()).any(permutes))? {
            return Ok(None);
        }
        let mut all = (0..desk.ranks()).filter(|&r| permutes(r));
        let from = all.next().expect("one has claimed");
        if let more @ 1.. = all.count() {
            if inner.check {
                self.compare(task);
            }
            let (me, times, site) = (inner.rank, more + 1, task.site);
            fail::end_with(format!("{me}: {site}: {times} ranks permute to this one; give each rank another"));
        }
        if from != me {
            tell(from, 1, &peers[from].taken);
        }
        Ok(Some(from as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_collectives_have_different_contexts() {
        for e in 0..1000 {
            assert!((1..APART).all(|d| context_of(e) != context_of(e + d)), "{e}");
            assert!(context_of(e) < CONTEXTS);
        }
    }
}
