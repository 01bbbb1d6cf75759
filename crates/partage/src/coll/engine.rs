//! Runs plans ([`partage_plan::coll`]): by stores and copies between ranks of a node, by messages with notices to others.
//!
//! # Contexts
//! The `e`-th collective of a team, or part of one, has context [`context_of`]`(e)`. All ranks count alike. A rank begins with `e` when it
//! has ended all up to `e - APART`, so each context has one plan at a time. What a rank knows of counts in a context ([`Known`]) grows
//! as [`Totals`](partage_plan::coll::Totals) say, and is never reset.
//!
//! # Arrivals
//! Who arrives has seen that all have arrived as often before, in this context: in the plans before, and in this one. (Most ranks that
//! arrive again have met all. Those from which a root pulls have not.) So one number for all ranks tells whether all have come.
//! Where there are several nodes, the last of a node to arrive tells the others of all its ranks.
//!
//! # Letters
//! A sender is told late which of its letters were taken: after some of them, or when their reader has to wait. So it may have to wait
//! for a rank that has taken all, but computes, or waits outside of collectives, until that rank enters another one: under
//! no sync mode may a program count on more.
//!
//! # Memory
//! A task has addresses of its caller's buffers. Blocking calls borrow them until they return; started ones are
//! borrowed by a scope, which ends when no task is left, or when the job ends and all tasks are given up.
//! Whoever touches whose memory when is what the checker of plans has decided.

use super::choice::{Asked, Cache, Key, Prepared};
use crate::fail;
use crate::job::Inner;
use crate::team::Rank;
use partage_conduit::coll::{CONTEXTS, Claims, LETTER, WORDS};
use partage_conduit::contract::{At, Conduit, Half};
use partage_conduit::copy;
use partage_conduit::heap::Side;
use partage_conduit::ofi::rma::{self, Started};
use partage_conduit::record::Site;
use partage_conduit::reference::ARRIVED;
use partage_conduit::shm::coll::{self, Desk, Words};
use partage_conduit::shm::rma::Reach;
use partage_conduit::shm::{Seat, bytes};
use partage_conduit::signal::Notice;
use partage_conduit::sync::full_fence;
use partage_conduit::wait::Aborted;
use partage_plan::coll::{Buffer, Nodes, Plan, Signal, Span, Step};
use partage_plan::layout::Spread;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// What a rank has of collectives.
#[derive(Debug)]
pub(crate) struct Engine {
    pub desk: Desk,
    /// Bytes of this rank's segment that are the desk's.
    pub in_use: u64,
    /// Which ranks are on which node.
    pub nodes: Arc<Nodes>,
    /// The first ranks of the other nodes.
    others: Box<[u32]>,
    /// How many ranks of this node there are.
    here: u64,
    /// How many collectives, or parts of them, were begun.
    epoch: Cell<u64>,
    contexts: Box<[Context]>,
    pub(super) words: [Words; CONTEXTS],
    pub prepared: RefCell<Cache>,
    pub asked: Asked,
    /// Those that were started and have not ended.
    pending: RefCell<Vec<Rc<Task>>>,
    /// Letters that were taken, of which their senders have not been told: context, sender and number.
    owed: RefCell<Vec<(usize, usize, u64)>>,
}

/// The context of the `e`-th collective. They are taken in turn, but begin one later each time: else roots that are taken in turn, as
/// many as there are contexts, would each always have the same one, and with it the same letter.
pub(super) fn context_of(epoch: u64) -> usize {
    ((epoch + epoch / CONTEXTS as u64) % CONTEXTS as u64) as usize
}

/// Collectives that are so far apart may have the same context; nearer ones have not.
const APART: u64 = CONTEXTS as u64 - 1;

/// So many letters are taken before their senders are told, unless this rank has to wait.
const OWED: usize = CONTEXTS / 2;

/// What a rank knows of a context.
#[derive(Debug, Default)]
struct Context {
    /// How often each rank has arrived when the last plan ended.
    arrived: Cell<u64>,
    /// How often this one has, by now.
    mine: Cell<u64>,
    /// How often all are known to have.
    all_arrived: Cell<u64>,
    released: Cell<u64>,
    /// By rank.
    peers: Box<[Known]>,
}

/// What a rank knows of what it tells another, and of what it is told.
#[derive(Debug, Default)]
struct Known {
    /// Signals that it made.
    sent: [Cell<u64>; 3],
    /// Signals that plans have waited for.
    heard: [Cell<u64>; 3],
    letters_sent: Cell<u64>,
    /// So many of them were taken, as far as is known.
    letters_taken: Cell<u64>,
    letters_got: Cell<u64>,
    /// Its last claim, and the last of the other's that it has taken.
    claimed: Cell<u64>,
    taken: Cell<u64>,
}

/// Where a buffer is.
#[derive(Debug, Clone)]
pub(super) enum Base {
    /// Memory of this rank's own.
    Private(*mut u8),
    /// At this offset of every rank's guarded memory.
    Same(u64),
    /// A part of an array that begins at this offset, whose elements have so many bytes: the elements from `first` on.
    Share { start: u64, spread: *const Spread, size: usize, first: usize },
}

impl Base {
    /// Where the part of a rank begins.
    #[inline(always)]
    fn offset(&self, rank: usize) -> u64 {
        match self {
            Base::Private(_) => unreachable!("nobody else touches private memory"),
            Base::Same(offset) => *offset,
            // SAFETY: of an array that is borrowed as long as the task.
            Base::Share { start, spread, size, first } => unsafe {
                start + ((**spread).part_before(rank, *first) * size) as u64
            },
        }
    }
}

impl Base {
    /// Where the part of a rank begins, in its half.
    pub(super) fn at(&self, rank: Rank) -> At {
        At { rank: rank.0, offset: self.offset(rank.index()) }
    }
}

/// A collective that is under way.
#[derive(Debug)]
pub(crate) struct Task {
    pub(super) site: Site,
    pub(super) key: Key,
    /// Bytes of an element, and its type.
    pub(super) element: (u32, &'static str),
    /// Nothing until the source of a permutation is known.
    pub(super) prepared: OnceCell<Rc<Prepared>>,
    /// Source and destination.
    pub(super) bases: [Base; 2],
    /// The source, if it is a copy.
    _source: Option<Box<[u64]>>,
    /// How many parts pass.
    pub(super) parts: usize,
    first: Cell<u64>,
    place: Place,
    /// Transfers from and to other nodes that are under way, if there were any.
    under_way: RefCell<UnderWay>,
    has_under_way: Cell<bool>,
    busy: Cell<bool>,
    done: Cell<bool>,
}

#[derive(Debug, Default)]
struct UnderWay {
    gets: Vec<Started>,
    puts: Vec<Started>,
}

/// How far a task is.
#[derive(Debug, Default)]
struct Place {
    part: Cell<usize>,
    step: Cell<usize>,
    /// This part has begun.
    begun: Cell<bool>,
    /// The claim of a permutation has been made.
    claimed: Cell<bool>,
}

impl Task {
    /// One of which the rest is still to be said.
    #[inline(always)]
    pub(super) fn new(site: Site) -> Task {
        Task {
            site,
            key: Key::default(),
            element: (0, ""),
            prepared: OnceCell::new(),
            bases: [Base::Same(0), Base::Same(0)],
            _source: None,
            parts: 1,
            first: Cell::new(0),
            place: Place::default(),
            under_way: RefCell::default(),
            has_under_way: Cell::new(false),
            busy: Cell::new(false),
            done: Cell::new(false),
        }
    }

    /// This is its source, and lives as long.
    pub(super) fn set_source(&mut self, source: Box<[u64]>) {
        self._source = Some(source);
    }

    pub fn is_done(&self) -> bool {
        self.done.get()
    }

    /// The number of its first part.
    pub(super) fn first(&self) -> u64 {
        self.first.get()
    }

    fn epoch(&self) -> u64 {
        self.first.get() + self.place.part.get() as u64
    }
}

/// Where a rank waits.
struct Waits<'a> {
    task: &'a Task,
    step: Option<&'a Step>,
}

impl fmt::Display for Waits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits { task, step } = self;
        let (part, number) = (task.place.part.get(), task.place.step.get());
        write!(f, "{} ({}", task.site, task.key.call())?;
        if let Some(prepared) = task.prepared.get() {
            write!(f, ", {}, step {} of {}", prepared.algorithm, number + 1, prepared.plan(part).steps.len())?;
            if prepared.parts > 1 {
                write!(f, ", part {} of {}", part + 1, prepared.parts)?;
            }
        }
        let what = |signal: &Signal| match signal {
            Signal::Entered => "to enter",
            Signal::Data => "to pass its data",
            Signal::Done => "to have read",
        };
        match step {
            Some(Step::Wait { from, signal, .. }) => write!(f, ": for rank {from} {})", what(signal)),
            Some(Step::Take { from, .. }) => write!(f, ": for rank {from} to pass its data)"),
            Some(Step::Send { to, .. }) => write!(f, ": for rank {to} to read what came before)"),
            Some(Step::Meet { .. } | Step::Arrive | Step::Last { .. }) => write!(f, ": for all ranks to enter)"),
            Some(Step::Released) => write!(f, ": for the rank that does it)"),
            None if !task.place.begun.get() => write!(f, ": for collectives before it)"),
            None if !task.place.claimed.get() => {
                write!(f, ": for rank {} to enter the permutation before)", task.key.root())
            }
            None if task.prepared.get().is_none() => write!(f, ": for a rank that permutes to this one)"),
            _ => write!(f, ": for the network)"),
        }
    }
}

impl Engine {
    /// Of a rank that has just taken its seat: everybody takes the same block then. Others are reached by what this table has.
    pub fn new(seat: &Seat, reach: &Reach, rank: usize) -> Result<Engine, String> {
        let (node, ranks) = (seat.node(), seat.node().ranks());
        let n = ranks.count();
        let len = coll::len(node) as u64;
        let taken = seat.take(Half::Guarded, Side::Symmetric, len, 4096);
        let offset = taken.map_err(|e| format!("rank {rank}: {} for collectives: {e}", bytes(len)))?;
        let in_use = seat.in_use();
        // SAFETY: the first block of this side that any rank takes, so it is at the same place everywhere; nobody gives it back.
        let desk = unsafe { Desk::new(node, reach, rank, offset) };
        let nodes: Vec<usize> = (0..n).map(|r| ranks.node_of(ranks.place(r).0)).collect();
        let mut firsts: Vec<Option<u32>> = vec![None; ranks.nodes()];
        nodes.iter().enumerate().for_each(|(r, &node)| _ = firsts[node].get_or_insert(r as u32));
        let others = firsts.into_iter().enumerate().filter(|&(i, _)| i != ranks.node()).filter_map(|(_, first)| first);
        let context = || Context { peers: (0..n).map(|_| Known::default()).collect(), ..Context::default() };
        Ok(Engine {
            nodes: Arc::new(Nodes::new(&nodes)),
            others: others.collect(),
            here: ranks.members().len() as u64,
            epoch: Cell::new(0),
            contexts: (0..CONTEXTS).map(|_| context()).collect(),
            words: std::array::from_fn(|c| desk.words(c)),
            prepared: RefCell::default(),
            asked: Asked::default(),
            pending: RefCell::default(),
            owed: RefCell::new(Vec::with_capacity(OWED)),
            in_use,
            desk,
        })
    }

    /// Runs a task to its end.
    #[inline]
    pub fn run(&self, inner: &Rc<Inner>, task: &Task) {
        self.begin(task);
        let ran = self.advance::<true>(inner, task);
        if ran.is_err() {
            // Before anything unwinds: what was borrowed is given back then.
            inner.complete_far(task.site);
        }
        inner.unless_over(ran.map(|_| ()));
    }

    /// Starts a task, which goes on whenever this rank serves others.
    pub fn start(&self, inner: &Rc<Inner>, task: Rc<Task>) {
        self.begin(&task);
        self.pending.borrow_mut().push(task);
        inner.calls.set_other(true);
        self.serve(inner);
    }

    /// Waits for a task that was started.
    pub fn complete(&self, inner: &Rc<Inner>, task: &Task) {
        self.serve(inner);
        if !task.is_done() {
            let step = || task.prepared.get().map(|p| &p.plan(task.place.part.get()).steps);
            let site = || Waits { task, step: step().and_then(|steps| steps.get(task.place.step.get())) };
            inner.unless_over(inner.wait_saying(site, || task.is_done()));
        }
    }

    /// Waits for all that were started: the end of a scope. When the job ends they are given up.
    pub fn complete_all(&self, inner: &Rc<Inner>) {
        loop {
            // Nothing is borrowed while it waits.
            let Some(task) = self.pending.borrow().first().cloned() else { return };
            if !inner.is_ending() {
                self.complete(inner, &task);
            }
            // The wait may have ended because the job does.
            if !task.is_done() {
                return self.give_up();
            }
        }
    }

    /// Nothing of what was started touches memory any more.
    fn give_up(&self) {
        self.pending.borrow_mut().clear();
    }

    /// Is nothing started that has not ended?
    pub fn is_idle(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Goes on with what was started; true if something could.
    #[cold]
    pub fn serve(&self, inner: &Rc<Inner>) -> bool {
        let (mut some, mut i) = (false, 0);
        loop {
            let Some(task) = self.pending.borrow().get(i).cloned() else { break };
            i += 1;
            // It is what waits.
            if task.busy.replace(true) {
                continue;
            }
            let place = || (task.place.part.get(), task.place.step.get());
            let before = place();
            // Who waits finds out that the job is over.
            let _ = self.advance::<false>(inner, &task);
            task.busy.set(false);
            some |= task.is_done() || before != place();
        }
        let mut pending = self.pending.borrow_mut();
        pending.retain(|task| !task.is_done());
        inner.calls.set_other(!pending.is_empty());
        some
    }

    fn begin(&self, task: &Task) {
        let first = self.epoch.get();
        task.first.set(first);
        self.epoch.set(first + task.parts as u64);
    }

    /// Have all up to this one ended?
    fn have_ended(&self, epoch: u64) -> bool {
        self.pending.borrow().iter().all(|task| task.is_done() || task.epoch() > epoch)
    }

    /// Goes on as far as it can, or, blocking, to the end; whether it is there.
    fn advance<const BLOCK: bool>(&self, inner: &Rc<Inner>, task: &Task) -> Result<bool, Aborted> {
        loop {
            let (place, part) = (&task.place, task.place.part.get());
            let epoch = task.epoch();
            let context = context_of(epoch);
            if !place.begun.get() {
                if inner.calls.has_other() && epoch >= APART {
                    let is_free = || self.have_ended(epoch - APART);
                    if !self.wait::<BLOCK>(inner, task, None, is_free)? {
                        return Ok(false);
                    }
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
                        task.prepared.get_or_init(|| inner.prepared(&key))
                    }
                    None => return Ok(false),
                },
            };
            let plan = prepared.plan(part);
            let (offset, arrivals) = (part * prepared.part, plan.totals.arrivals);
            let now = Now { engine: self, inner, task, context, offset, arrivals };
            for step in &plan.steps[place.step.get()..] {
                if !now.step::<BLOCK>(step)? {
                    return Ok(false);
                }
                place.step.set(place.step.get() + 1);
            }
            if !now.end::<BLOCK>()? {
                return Ok(false);
            }
            self.ended(context, plan);
            if part + 1 == prepared.parts {
                if inner.check {
                    self.compare(task);
                }
                task.done.set(true);
                return Ok(true);
            }
            place.part.set(part + 1);
            place.step.set(0);
            place.begun.set(false);
        }
    }

    /// The counts of this context have grown.
    #[inline(always)]
    fn ended(&self, context: usize, plan: &Plan) {
        let (context, totals) = (&self.contexts[context], &plan.totals);
        let add = |cell: &Cell<u64>, n: usize| cell.set(cell.get() + n as u64);
        add(&context.arrived, totals.arrivals);
        add(&context.released, totals.releases);
        totals.signals.iter().for_each(|&(from, signal, n)| add(&context.peers[from].heard[signal as usize], n));
    }

    /// Waits; false if it does not hold yet and this does not block.
    #[inline(always)]
    fn wait<const BLOCK: bool>(
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
        self.tell_what_was_taken();
        if BLOCK {
            inner.wait_saying(|| Waits { task, step }, ready)?;
        }
        Ok(BLOCK)
    }

    /// Tells senders which of their letters were taken, so that they may write others. Whoever waits does it before: a sender may be what
    /// it waits for.
    #[inline]
    fn tell_what_was_taken(&self) {
        if !self.owed.borrow().is_empty() {
            self.tell_all();
        }
    }

    #[inline(never)]
    fn tell_all(&self) {
        let mut owed = self.owed.borrow_mut();
        for &(context, from, number) in owed.iter() {
            self.desk.to(from).expect("reached by stores").taken[context].set(number);
        }
        full_fence();
        owed.iter().for_each(|&(_, from, _)| self.desk.ring(from));
        owed.clear();
    }

    /// The same, which also ends when a rank has entered something else.
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
            true => inner.wait_saying(|| Waits { task, step }, ready).map(|()| true)?,
            false => ready(),
        };
        if is && task.place.begun.get() {
            self.compare(task);
        }
        Ok(is)
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
                    inner.send_notice(task.site, At::guarded(to as u32, 0), &[], notice);
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

/// A part of a task that is being run.
struct Now<'a> {
    engine: &'a Engine,
    inner: &'a Rc<Inner>,
    task: &'a Task,
    context: usize,
    /// Where this part begins in each block.
    offset: usize,
    /// How often each rank arrives.
    arrivals: usize,
}

impl Now<'_> {
    fn known(&self, rank: usize) -> &Known {
        &self.engine.contexts[self.context].peers[rank]
    }

    /// Where a span of a rank is, if it is mapped.
    #[inline(always)]
    fn near(&self, rank: usize, span: Span) -> Option<*mut u8> {
        let desk = &self.engine.desk;
        let base = match span.buffer {
            Buffer::Scratch => {
                let p = desk.scratch(rank, self.context);
                debug_assert!(span.at + span.len <= desk.scratch_len());
                // SAFETY: plans have no more scratch than there is (`choice`).
                return (!p.is_null()).then(|| unsafe { p.add(span.at) });
            }
            Buffer::Source => &self.task.bases[0],
            Buffer::Dest => &self.task.bases[1],
        };
        match base {
            // SAFETY: inside the buffer, whose length was compared with the shape's.
            Base::Private(p) => Some(unsafe { p.add(self.offset + span.at) }),
            shared => {
                let at = At { rank: rank as u32, offset: shared.offset(rank) + (self.offset + span.at) as u64 };
                let table = if rank == desk.rank() { self.inner.own_table() } else { &self.inner.guarded };
                table.locate(at, span.len)
            }
        }
    }

    /// My own.
    #[inline(always)]
    fn mine(&self, span: Span) -> *mut u8 {
        self.near(self.engine.desk.rank(), span).expect("memory of this rank")
    }

    /// Where it is, for the network.
    fn far(&self, rank: usize, span: Span) -> At {
        let offset = match span.buffer {
            Buffer::Scratch => self.engine.desk.scratch_offset(self.context),
            Buffer::Source => self.task.bases[0].offset(rank) + self.offset as u64,
            Buffer::Dest => self.task.bases[1].offset(rank) + self.offset as u64,
        };
        At::guarded(rank as u32, offset + span.at as u64)
    }

    /// Does a step, or as much of it as there is to be done now; whether it is done.
    #[inline(always)]
    fn step<const BLOCK: bool>(&self, step: &Step) -> Result<bool, Aborted> {
        let (engine, context) = (self.engine, &self.engine.contexts[self.context]);
        let desk = &engine.desk;
        macro_rules! wait {
            ($ready:expr) => {
                engine.wait::<BLOCK>(self.inner, self.task, Some(step), $ready)
            };
        }
        // What was got is there when the next step begins.
        if self.task.has_under_way.get() && !matches!(step, Step::Get { .. }) && !self.got::<BLOCK>(step)? {
            return Ok(false);
        }
        match step {
            Step::Put { to, src, dst } => self.put(*to, *src, *dst),
            Step::Get { from, src, dst } => self.get(*from, *src, *dst),
            Step::Copy { src, dst } => self.copy(self.mine(*dst), self.mine(*src), src.len),
            Step::Carry { from, src, to, dst } => match self.near(*to, *dst) {
                Some(there) => {
                    let here = self.near(*from, *src).expect("memory of this rank or of its node");
                    self.copy(there, here, src.len);
                }
                None => self.put_far(self.far(*to, *dst), self.mine(*src), src.len),
            },
            Step::Each { len, step } => return self.each::<BLOCK>(*len, step),
            Step::Send { to, src } => {
                let known = self.known(*to);
                let (sent, taken) = (known.letters_sent.get(), &desk.from(*to).taken[self.context]);
                if known.letters_taken.get() < sent {
                    self.look_what_was_taken(*to);
                    if known.letters_taken.get() < sent {
                        if !wait!(|| taken.get() >= sent)? {
                            return Ok(false);
                        }
                        known.letters_taken.set(sent);
                    }
                }
                known.letters_sent.set(sent + 1);
                self.send(*to, src, sent + 1);
            }
            Step::Take { from, dst } => {
                let known = self.known(*from);
                let (next, letter) = (known.letters_got.get() + 1, &desk.from(*from).told[self.context].letter);
                if letter.number.get() < next && !wait!(|| letter.number.get() >= next)? {
                    return Ok(false);
                }
                known.letters_got.set(next);
                self.take(*from, dst, next);
            }
            Step::Signal { to, signal } => self.signal(*to, *signal),
            Step::Wait { from, signal, n } => {
                let until = self.known(*from).heard[*signal as usize].get() + *n as u64;
                let count = &desk.from(*from).told[self.context].signals.0[*signal as usize];
                return wait!(|| count.get() >= until);
            }
            Step::Arrive | Step::Last { .. } => {
                let (hall, before) = (desk.hall(self.context), context.mine.get());
                let all = before * desk.ranks() as u64;
                if context.all_arrived.get() < before {
                    if !wait!(|| hall.arrivals() >= all)? {
                        return Ok(false);
                    }
                    context.all_arrived.set(before);
                }
                context.mine.set(before + 1);
                let is_last = self.arrive();
                if let (Step::Last { steps }, true) = (step, is_last) {
                    context.all_arrived.set(before + 1);
                    // Copies, and the release.
                    for step in steps {
                        self.step_of_last(step)?;
                    }
                }
            }
            Step::Meet { n } => {
                let (hall, times) = (desk.hall(self.context), context.arrived.get() + *n as u64);
                let all = times * desk.ranks() as u64;
                if !wait!(|| hall.arrivals() >= all)? {
                    return Ok(false);
                }
                context.all_arrived.set(times);
            }
            Step::Release => {
                desk.hall(self.context).release(context.released.get() + 1);
                desk.ring_all();
            }
            Step::Released => {
                let (hall, times) = (desk.hall(self.context), context.released.get() + 1);
                if !wait!(|| hall.released() >= times)? {
                    return Ok(false);
                }
                // Who released all had seen them arrive, if they did.
                if self.arrivals > 0 {
                    context.all_arrived.set(context.arrived.get() + self.arrivals as u64);
                }
            }
        }
        Ok(true)
    }

    /// The counts of all contexts are in two lines, which are fetched once for all.
    #[inline(never)]
    fn look_what_was_taken(&self, by: usize) {
        let taken = &self.engine.desk.from(by).taken;
        let contexts = self.engine.contexts.iter().zip(taken);
        contexts.for_each(|(context, taken)| context.peers[by].letters_taken.set(taken.get()));
    }

    #[inline(never)]
    fn step_of_last(&self, step: &Step) -> Result<bool, Aborted> {
        self.step::<true>(step)
    }

    /// All that was started here is complete.
    #[inline(always)]
    fn end<const BLOCK: bool>(&self) -> Result<bool, Aborted> {
        if self.task.has_under_way.get() { self.end_slowly::<BLOCK>() } else { Ok(true) }
    }

    #[cold]
    fn end_slowly<const BLOCK: bool>(&self) -> Result<bool, Aborted> {
        let is_complete = |all: &UnderWay| all.gets.iter().chain(&all.puts).all(|one| self.inner.is_complete(one));
        let ended = self.complete::<BLOCK>(None, is_complete)?;
        if ended {
            self.task.under_way.take();
            self.task.has_under_way.set(false);
        }
        Ok(ended)
    }

    /// Is what was got there?
    #[cold]
    fn got<const BLOCK: bool>(&self, step: &Step) -> Result<bool, Aborted> {
        let got = self.complete::<BLOCK>(Some(step), |all| all.gets.iter().all(|get| self.inner.is_complete(get)))?;
        if got {
            self.task.under_way.borrow_mut().gets.clear();
        }
        Ok(got)
    }

    fn complete<const BLOCK: bool>(
        &self,
        step: Option<&Step>,
        is_complete: impl Fn(&UnderWay) -> bool,
    ) -> Result<bool, Aborted> {
        let ready = || is_complete(&self.task.under_way.borrow());
        if ready() {
            return Ok(true);
        }
        // Whoever does not block looks at the network, too.
        Conduit::progress(&self.inner.seat);
        self.engine.wait::<BLOCK>(self.inner, self.task, step, &ready)
    }

    #[inline(always)]
    fn copy(&self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: places of so many bytes in buffers that this task has, or that are mapped; a plan moves nothing to where it is, and
        // has neither read what is written meanwhile nor the other way round.
        unsafe { copy::between(to, from, len) };
    }

    #[inline(always)]
    fn put(&self, to: usize, src: Span, dst: Span) {
        let from = self.mine(src);
        match self.near(to, dst) {
            Some(there) => {
                self.copy(there, from, src.len);
                self.signal(to, Signal::Data);
            }
            None => {
                let (offset, value) = (self.engine.words[self.context].signals[Signal::Data as usize], 1);
                let (at, notice) = (self.far(to, dst), Notice::Add { offset, value });
                // SAFETY: the buffer is this task's, which does not end before that is complete.
                let put = unsafe { self.inner.start_notice_raw(self.task.site, at, from, src.len, notice) };
                let put = put.expect("memory of a desk or an array");
                if !put.is_empty() {
                    self.task.under_way.borrow_mut().puts.push(put);
                    self.task.has_under_way.set(true);
                }
            }
        }
    }

    /// A put that has arrived when the next step begins.
    #[cold]
    fn put_far(&self, at: At, from: *const u8, len: usize) {
        let (inner, site) = (self.inner, self.task.site);
        if inner.is_network(at) {
            // SAFETY: the buffer is this task's, which does not end, nor touches it, before that is complete.
            let put = unsafe { rma::start_put(&inner.seat, site, at, from, len) };
            let put = inner.unless_outside(put).expect("memory of an array");
            self.task.under_way.borrow_mut().gets.push(put);
            self.task.has_under_way.set(true);
        } else {
            let mut bytes = vec![0; len];
            self.copy(bytes.as_mut_ptr(), from, len);
            inner.put_guarded(site, at, &bytes);
        }
    }

    /// A copy, so many bytes at a time. To and from other nodes all are under way at once.
    #[cold]
    fn each<const BLOCK: bool>(&self, len: usize, step: &Step) -> Result<bool, Aborted> {
        let cut = |span: Span, at: usize| Span { at: span.at + at, len: len.min(span.len - at), ..span };
        match *step {
            Step::Get { from, src, dst } => {
                (0..src.len).step_by(len).for_each(|at| self.get(from, cut(src, at), cut(dst, at)));
            }
            Step::Carry { from, src, to, dst } => {
                for at in (0..src.len).step_by(len) {
                    let (src, dst) = (cut(src, at), cut(dst, at));
                    match (self.near(to, dst), self.near(from, src)) {
                        (Some(there), Some(here)) => self.copy(there, here, src.len),
                        _ => self.put_far(self.far(to, dst), self.mine(src), src.len),
                    }
                }
            }
            _ => return self.step::<BLOCK>(step),
        }
        Ok(true)
    }

    #[inline(always)]
    fn get(&self, from: usize, src: Span, dst: Span) {
        let to = self.mine(dst);
        match self.near(from, src) {
            Some(there) => self.copy(to, there, src.len),
            None => self.get_far(self.far(from, src), to, src.len),
        }
    }

    #[cold]
    fn get_far(&self, at: At, to: *mut u8, len: usize) {
        let (inner, site) = (self.inner, self.task.site);
        if inner.is_network(at) {
            // SAFETY: the buffer is this task's, which does not end, nor touches it, before that is complete.
            let got = unsafe { rma::start_get(&inner.seat, site, at, to, len) };
            let got = inner.unless_outside(got).expect("memory of a desk or an array");
            self.task.under_way.borrow_mut().gets.push(got);
            self.task.has_under_way.set(true);
        } else {
            let mut bytes = vec![0; len];
            inner.get_guarded(site, at, &mut bytes);
            self.copy(to, bytes.as_ptr(), len);
        }
    }

    #[inline(always)]
    fn signal(&self, to: usize, signal: Signal) {
        let sent = &self.known(to).sent[signal as usize];
        sent.set(sent.get() + 1);
        match self.engine.desk.to(to) {
            Some(inlet) => {
                inlet.told[self.context].signals.0[signal as usize].raise(sent.get());
                self.engine.desk.ring(to);
                self.engine.desk.prefetch_signals(to, self.context);
            }
            None => self.add_far(to, self.engine.words[self.context].signals[signal as usize]),
        }
    }

    #[cold]
    fn add_far(&self, to: usize, offset: u64) {
        let notice = Notice::Add { offset, value: 1 };
        self.inner.send_notice(self.task.site, At::guarded(to as u32, 0), &[], notice);
    }

    #[inline(always)]
    fn send(&self, to: usize, src: &[Span], number: u64) {
        let mut words = [0; WORDS];
        let mut len = 0;
        for &span in src {
            assert!(len + span.len <= LETTER, "a letter has {LETTER} bytes");
            // SAFETY: room for so many, as was just tested.
            let p = unsafe { words.as_mut_ptr().cast::<u8>().add(len) };
            self.copy(p, self.mine(span), span.len);
            len += span.len;
        }
        match self.engine.desk.to(to) {
            Some(inlet) => {
                inlet.told[self.context].letter.write(&words[..len.div_ceil(8)], number);
                self.engine.desk.ring(to);
                let ahead = &self.engine.contexts[(self.context + coll::AHEAD) % CONTEXTS].peers[to];
                if ahead.letters_taken.get() == ahead.letters_sent.get() {
                    self.engine.desk.prefetch_letter(to, self.context);
                }
            }
            None => {
                let Words { letter, number: offset, .. } = self.engine.words[self.context];
                let notice = Notice::Add { offset, value: 1 };
                let bytes = &bytemuck::cast_slice(&words)[..len];
                self.inner.send_notice(self.task.site, At::guarded(to as u32, letter), bytes, notice);
            }
        }
    }

    #[inline(always)]
    fn take(&self, from: usize, dst: &[Span], number: u64) {
        let desk = &self.engine.desk;
        let mut words = [0; WORDS];
        let all: usize = dst.iter().map(|span| span.len).sum();
        desk.from(from).told[self.context].letter.read(&mut words[..all.div_ceil(8)]);
        let mut len = 0;
        for &span in dst {
            // SAFETY: inside, since all of them are no more than a letter.
            let p = unsafe { words.as_ptr().cast::<u8>().add(len) };
            self.copy(self.mine(span), p, span.len);
            len += span.len;
        }
        match desk.to(from) {
            Some(_) => {
                let mut owed = self.engine.owed.borrow_mut();
                owed.push((self.context, from, number));
                if owed.len() == OWED {
                    drop(owed);
                    self.engine.tell_all();
                }
            }
            None => self.add_far(from, self.engine.words[self.context].taken),
        }
    }

    /// Whether this rank is the last one.
    #[inline(always)]
    fn arrive(&self) -> bool {
        let (engine, hall) = (self.engine, self.engine.desk.hall(self.context));
        if !engine.others.is_empty() {
            self.arrive_beyond();
            return false;
        }
        let is_last = (hall.arrive(1) + 1).is_multiple_of(engine.desk.ranks() as u64);
        if is_last {
            engine.desk.ring_all();
        }
        is_last
    }

    #[cold]
    fn arrive_beyond(&self) {
        let (engine, hall) = (self.engine, self.engine.desk.hall(self.context));
        if (hall.arrive_here() + 1).is_multiple_of(engine.here) {
            hall.arrive(engine.here);
            engine.desk.ring_all();
            let what = [engine.words[self.context].hall, engine.here];
            for &first in &engine.others {
                self.inner.request(self.task.site, Rank(first), ARRIVED, bytemuck::bytes_of(&what), &[]);
            }
        }
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
