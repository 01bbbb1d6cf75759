//! Where a rank waits in a collective, what it says of that in a hang report, and what else ends the wait: somebody who has left the team, or who
//! calls something else.

use super::super::again::Before;
use super::super::choice::{Key, Prepared};
use super::Engine;
use super::task::{Place, Task};
use crate::job::Inner;
use partage_conduit::record::Site;
use partage_conduit::wait::Aborted;
use partage_plan::coll::{Signal, Step};
use std::fmt;
use std::rc::Rc;

/// Where a rank waits.
pub(in crate::coll) struct Waits<'a> {
    engine: &'a Engine,
    site: Site,
    key: Key,
    /// What is done, which part of it, the number of the step, and that of the collective.
    prepared: Option<(&'a Prepared, usize, usize, u64)>,
    step: Option<&'a Step>,
    begun: bool,
    claimed: bool,
}

impl<'a> Waits<'a> {
    pub(super) fn new(engine: &'a Engine, task: &'a Task, step: Option<&'a Step>) -> Waits<'a> {
        let Place { part, step: number, begun, claimed } = &task.place;
        let prepared = task.prepared.get().map(|prepared| (&**prepared, part.get(), number.get(), task.epoch()));
        Waits { engine, site: task.site, key: task.key, prepared, step, begun: begun.get(), claimed: claimed.get() }
    }

    /// In the step at which the task is.
    pub(super) fn of(engine: &'a Engine, task: &'a Task) -> Waits<'a> {
        let begun = task.prepared.get().filter(|_| task.place.begun.get());
        let steps = begun.map(|prepared| &prepared.plan(task.place.part.get(), task.epoch()).steps);
        Waits::new(engine, task, steps.and_then(|steps| steps.get(task.place.step.get())))
    }

    /// The same of a call without a task, in a step of its only part.
    pub(in crate::coll) fn quick(
        engine: &'a Engine,
        site: Site,
        call: &'a Before,
        epoch: u64,
        number: usize,
    ) -> Waits<'a> {
        let step = call.prepared.plan(0, epoch).steps.get(number);
        let prepared = Some((&*call.prepared, 0, number, epoch));
        Waits { engine, site, key: call.key, prepared, step, begun: true, claimed: true }
    }
}

impl fmt::Display for Waits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits { engine, site, key, prepared, step, begun, claimed } = self;
        let rank = |member: usize| engine.rank_of(member);
        write!(f, "{site} ({}", key.call())?;
        if let Some((prepared, part, number, epoch)) = *prepared {
            let steps = prepared.plan(part, epoch).steps.len();
            write!(f, ", {}, step {} of {steps}", prepared.algorithm, number + 1)?;
            if prepared.parts > 1 {
                write!(f, ", part {} of {}", part + 1, prepared.parts)?;
            }
        }
        let what = |signal: &Signal| match signal {
            Signal::Entered | Signal::Free => "to enter",
            Signal::Data => "to pass its data",
            Signal::Done => "to have read",
        };
        match step {
            Some(Step::Wait { from, signal, .. }) => write!(f, ": for {} {})", rank(*from), what(signal)),
            Some(Step::Take { from, .. } | Step::TakeCombine { from, .. }) => {
                write!(f, ": for {} to pass its data)", rank(*from))
            }
            Some(Step::Send { to, .. }) => {
                let posted = prepared.is_some_and(|(prepared, ..)| prepared.posting.is_some());
                match posted {
                    // Or one of the last ones before it.
                    true => write!(f, ": for {} to enter)", rank(engine.farthest_behind())),
                    false => write!(f, ": for {} to read what came before)", rank(*to)),
                }
            }
            Some(Step::Meet { .. } | Step::Arrive | Step::Last { .. }) => write!(f, ": for all ranks to enter)"),
            Some(Step::Released) => write!(f, ": for the rank that does it)"),
            None if !begun => write!(f, ": for collectives before it)"),
            None if prepared.is_none() && !claimed => {
                write!(f, ": for {} to enter the permutation before)", rank(key.root() as usize))
            }
            None if prepared.is_none() => write!(f, ": for a rank that permutes to this one)"),
            _ => write!(f, ": for the network)"),
        }
    }
}

impl Engine {
    /// Waits; false if it does not hold yet and this does not block.
    #[inline(always)]
    pub(in crate::coll) fn wait<const BLOCK: bool>(
        &self,
        inner: &Rc<Inner>,
        task: &Task,
        step: Option<&Step>,
        ready: impl Fn() -> bool + Copy,
    ) -> Result<bool, Aborted> {
        if inner.check {
            return self.wait_comparing::<BLOCK>(inner, task, step, &ready);
        }
        if ready() {
            return Ok(true);
        }
        if BLOCK {
            let waits = || Waits::new(self, task, step);
            let _near = if self.is_near(step) { inner.seat.awaits_near() } else { None };
            self.wait_in(inner, task.epoch(), waits, ready)?;
        } else {
            self.tell_what_was_taken();
        }
        Ok(BLOCK)
    }

    /// Is what a rank waits for in this step done by a rank of its node?
    fn is_near(&self, step: Option<&Step>) -> bool {
        match step {
            Some(Step::Wait { from: member, .. } | Step::Take { from: member, .. })
            | Some(Step::TakeCombine { from: member, .. } | Step::Send { to: member, .. }) => {
                self.desk.to(*member).is_some()
            }
            // Of other nodes' ranks the first one here is told.
            Some(Step::Meet { .. } | Step::Arrive | Step::Last { .. } | Step::Released) => {
                let me = self.desk.rank();
                self.others.is_empty() || self.nodes.members(self.nodes.of(me)).first() != Some(&me)
            }
            _ => false,
        }
    }

    /// Waits in the collective that has this number.
    #[inline(always)]
    pub(in crate::coll) fn wait_in<'a>(
        &'a self,
        inner: &Rc<Inner>,
        epoch: u64,
        waits: impl Fn() -> Waits<'a> + Copy,
        ready: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        self.tell_what_was_taken();
        match self.is_of_all {
            true => inner.wait_saying(waits, ready),
            false => self.wait_unless_left(inner, epoch, &waits, &ready),
        }
    }

    /// Waits, but not for a member that has left.
    #[inline(never)]
    pub(super) fn wait_unless_left<'a>(
        &'a self,
        inner: &Rc<Inner>,
        epoch: u64,
        waits: &dyn Fn() -> Waits<'a>,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), Aborted> {
        let left = || self.left_before(epoch);
        inner.wait_saying(waits, || ready() || left().is_some())?;
        match left() {
            // Its leaving was seen, so what it signaled before has been seen, too.
            Some(member) if !ready() => Err(self.is_left_by(inner, waits().site, member)),
            _ => Ok(()),
        }
    }

    /// As [`wait`](Self::wait), which also ends when a rank has entered something else.
    #[cold]
    fn wait_comparing<const BLOCK: bool>(
        &self,
        inner: &Rc<Inner>,
        task: &Task,
        step: Option<&Step>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Aborted> {
        let ready = || ready() || (task.place.begun.get() && self.disagrees(task));
        self.tell_what_was_taken();
        let is = match BLOCK {
            true => {
                let waits = || Waits::new(self, task, step);
                self.wait_unless_left(inner, task.epoch(), &waits, &ready).map(|()| true)?
            }
            false => ready(),
        };
        if is && task.place.begun.get() {
            self.compare(task);
        }
        Ok(is)
    }
}
