//! Collectives that were started: they go on whenever their rank waits for something or serves others.

use super::{Task, Waits};
use crate::fail;
use crate::job::Inner;
use crate::team::Group;
use partage_conduit::record::Site;
use partage_conduit::wait::Aborted;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A rank that unwinds waits as long for others to go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is left of what was started in a scope is given up, whatever ends it: then nothing of it touches memory any more.
struct GivenUp<'a> {
    inner: &'a Inner,
    site: Site,
    depth: u32,
}

impl GivenUp<'_> {
    fn is_one(&self, task: &Task) -> bool {
        task.depth.get() >= self.depth
    }

    fn next(&self) -> Option<(Rc<Group>, Rc<Task>)> {
        self.inner.pending.all.borrow().iter().find(|(_, task)| self.is_one(task)).cloned()
    }
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if self.next().is_some() {
            let mut all = self.inner.pending.all.borrow_mut();
            let given_up: Vec<_> = all.extract_if(.., |(_, task)| self.is_one(task)).collect();
            self.inner.calls.set_other(!all.is_empty());
            drop(all);
            // Nobody goes on with them, whatever comes of this.
            self.inner.complete_far(self.site);
            // A team may end with them, and tell others.
            drop(given_up);
        }
    }
}

/// Collectives of all teams that this rank has started and that have not ended.
#[derive(Default)]
pub(crate) struct Pending {
    pub(super) all: RefCell<Vec<(Rc<Group>, Rc<Task>)>>,
    /// How many there were.
    count: Cell<u64>,
    /// How many scopes there are, one inside the other.
    scopes: Cell<u32>,
    /// Which one its rank waits for.
    waited_for: Cell<Option<u64>>,
}

impl fmt::Debug for Pending {
    /// Tasks have teams, which have the job, which has these.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} of {})", self.all.borrow().len(), self.count.get())
    }
}

impl Pending {
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// A scope begins inside those that there are; how many there are then.
    pub fn open_scope(&self) -> u32 {
        self.scopes.set(self.scopes.get() + 1);
        self.scopes.get()
    }

    /// The last one has ended.
    pub fn close_scope(&self) {
        self.scopes.set(self.scopes.get() - 1);
    }

    /// Says where the first one stands that has not ended, unless its rank waits for that one.
    pub fn say(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(all) = self.all.try_borrow() else { return Ok(()) };
        match all.iter().find(|(_, task)| !task.is_done()) {
            Some((group, task)) if self.waited_for.get() != Some(task.started.get()) => {
                write!(f, "; has started {}", Waits::of(&group.engine, task))
            }
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// Starts a task, which goes on whenever this rank serves others.
    pub(in super::super) fn start_task(self: &Rc<Self>, group: &Rc<Group>, task: Rc<Task>, depth: u32) {
        group.engine.begin(&task);
        task.depth.set(depth);
        let Pending { all, count, .. } = &self.pending;
        task.started.set(count.replace(count.get() + 1));
        all.borrow_mut().push((group.clone(), task));
        self.calls.set_other(true);
        self.serve_started();
    }

    /// Waits for a task that was started.
    pub fn complete_task(self: &Rc<Self>, group: &Group, task: &Task) {
        self.unless_over(self.wait_for_task(group, task));
    }

    fn wait_for_task(self: &Rc<Self>, group: &Group, task: &Task) -> Result<(), Aborted> {
        self.serve_started();
        if task.is_done() {
            return Ok(());
        }
        let left = || group.engine.left_before(task.epoch());
        let waits = || Waits::of(&group.engine, task);
        let before = self.pending.waited_for.replace(Some(task.started.get()));
        let waited = self.wait_saying(waits, || task.is_done() || left().is_some());
        self.pending.waited_for.set(before);
        waited?;
        match left() {
            Some(member) if !task.is_done() => Err(group.engine.is_left_by(self, task.site, member)),
            _ => Ok(()),
        }
    }

    /// The same by a rank that unwinds, for which others may wait elsewhere: it does so until nothing has happened for a while, and then ends the job.
    #[cold]
    fn wait_unwinding(self: &Rc<Self>, group: &Group, task: &Task) -> Result<(), Aborted> {
        let place = || (task.place.part.get(), task.place.step.get());
        let stands = Cell::new((place(), Instant::now()));
        let is_stuck = || {
            let (at, since) = stands.get();
            if at != place() {
                stands.set((place(), Instant::now()));
            }
            at == place() && since.elapsed() >= PATIENCE
        };
        let waits = || Waits::of(&group.engine, task);
        self.wait_saying(waits, || task.is_done() || is_stuck())?;
        if task.is_done() {
            return Ok(());
        }
        fail::end_unwinding();
        Err(Aborted)
    }

    /// Waits for all that were started in this scope, and in those inside of it: its end, by which its rank may unwind. If the job ends, or one of them fails, they are given
    /// up: the network is waited for, and nothing of them touches memory after that. Only then does this unwind.
    pub fn complete_started(self: &Rc<Self>, site: Site, depth: u32, unwinds: bool) {
        let given_up = GivenUp { inner: self, site, depth };
        loop {
            // Nothing is borrowed while it waits.
            let Some((group, task)) = given_up.next() else { return };
            // Nobody goes on with one of which a step has panicked.
            let failed = task.busy.get();
            let waited = match failed || self.is_ending() {
                true => Err(Aborted),
                false if unwinds => self.wait_unwinding(&group, &task),
                false => self.wait_for_task(&group, &task),
            };
            if waited.is_err() {
                drop(given_up);
                if failed && !std::thread::panicking() {
                    panic!("{}: {site}: a function of the {} that was started here has panicked", self.rank, task.site);
                }
                return self.unless_over(waited);
            }
        }
    }

    /// Goes on with what was started; true if something could.
    #[cold]
    pub fn serve_started(self: &Rc<Self>) -> bool {
        let (mut some, mut i) = (false, 0);
        loop {
            let Some((group, task)) = self.pending.all.borrow().get(i).cloned() else { break };
            i += 1;
            // One that has ended stays in the list while a step of another waits, in which this is called again; and what is busy is what waits.
            if task.is_done() || task.busy.replace(true) {
                continue;
            }
            let place = || (task.place.part.get(), task.place.step.get());
            let before = place();
            // Who waits finds out that the job is over.
            let _ = group.engine.advance::<false>(self, &task);
            task.busy.set(false);
            some |= task.is_done() || before != place();
        }
        // A team may end with its last task, and tell others.
        let ended: Vec<_> = self.pending.all.borrow_mut().extract_if(.., |(_, task)| task.is_done()).collect();
        self.calls.set_other(!self.pending.is_empty());
        drop(ended);
        some
    }
}
