//! Collectives on buffers: `job.gather(&mine).to(&mut all).run()`; and on one value of each rank: `job.value(x).gather_all()`.
//!
//! `&` is a source, `&mut` a destination or, without `.to`, both: in place. A buffer is memory of one's own (`[T]`, `Vec<T>`, `[T; N]`) or a
//! shared array ([`SharedArray`], or a slice of one): then a rank's block is its part. All ranks make the same call, with the
//! same kinds of buffers.
//!
//! With blocks of n elements, on P ranks:
//!
//! | | source | destination | effect | n is |
//! |---|---|---|---|---|
//! | [`broadcast`](Team::broadcast) | n at the root | n | all have what the root has | the destination's length |
//! | [`scatter`](Team::scatter) | n·P at the root | n | rank k has block k | the destination's length |
//! | [`gather`](Team::gather) | n | n·P at the root | block k is of rank k | the source's length |
//! | [`gather_all`](Team::gather_all) | n | n·P | the same on all ranks | the source's length |
//! | [`exchange`](Team::exchange) | n·P | n·P | block k is of rank k, where it was that of this rank | the source's length / P |
//! | [`permute`](Team::permute) | n | n | each has the block of the rank that sends to it | the source's length |
//! | [`reduce`](Team::reduce) | n | n at the root | element i is what all ranks' elements i make | the source's length |
//! | [`all_reduce`](Team::all_reduce) | n | n | the same on all ranks | the source's length |
//! | [`prefix_reduce`](Team::prefix_reduce) | n | n | the same of ranks up to each | the source's length |
//!
//! What only the root has is ignored elsewhere. A `Vec` as the destination of the last seven is made as long as it must be. In place,
//! the block that stays is where it must be: a root's own block of a gather at its place among the others; and a reduction leaves the buffers of others than the root alone.
//!
//! [`fold`](Team::fold) and [`prefix_fold`](Team::prefix_fold) reduce a sequence that is spread over ranks, as UPC does. [`counts`](Collective::counts) and
//! [`varying`](Collective::varying) are for blocks of different lengths, [`filter`](Collective::filter) for some ranks only.
//!
//! # Sync modes
//! [`In`] says when data may be touched, [`Out`] when a rank may return ([`Collective::sync`]); the default is `All`, `All`: no data of shared arrays
//! are touched before all have entered, and none after the first has returned. Memory of one's own is never touched outside of the call: with two such buffers all modes are `My`, `My`. No
//! mode orders other memory, as a barrier does.
//!
//! ```
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let me = job.rank().0;
//!     let mut all = vec![];
//!     job.gather_all(&[me, 10 * me]).to(&mut all).run();
//!     assert_eq!(all, [0, 0, 1, 10, 2, 20, 3, 30]);
//!
//!     // On shared arrays, from the last rank, with no more waiting than the data ask for.
//!     let a = job.array::<u64>(Layout::on(3, 8)).unwrap();
//!     let mut b = job.array::<u64>(Layout::per_rank(2)).unwrap();
//!     a.my_indices().for_each(|i| a.put(i, i as u64));
//!     job.scatter(&a).root(TeamRank(3)).to(&mut b).sync(In::My, Out::My).run();
//!     assert_eq!(b.own(|mine| mine.to_vec()), [2 * u64::from(me), 2 * u64::from(me) + 1]);
//! });
//! ```

mod again;
mod buffer;
mod check;
mod choice;
mod counts;
mod engine;
mod filter;
mod fold;
mod reduce;
mod steps;
mod value;

pub use buffer::{Buffer, BufferMut, Dest, NeedsTo, Ready, Source};
pub use counts::Counted;
pub(crate) use engine::{Engine, Pending, Task};
pub use filter::Filtered;
pub use fold::{Fold, PrefixFold};
pub use partage_plan::coll::{Algorithm, In, Out, Table};
pub use reduce::{And, Commutative, LogAnd, LogOr, Max, Min, Moves, Or, Ordered, Prod, ReduceOp, Sum, With, Xor};
pub use value::Value;

use crate::array::SharedArray;
use crate::scope::{Event, Scope};
use crate::team::{Team, TeamRank};
use again::{Look, Made};
use buffer::{Side, What};
use bytemuck::Pod;
use choice::{Call, Key, Prepared, UNKNOWN};
use engine::Base;
use partage_conduit::barrier::Tag;
use partage_conduit::record::Site;
use partage_plan::coll::{Kind, OpKind};
#[doc(hidden)]
pub use reduce::Meets;
use std::cell::OnceCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

/// A collective that is described. Root 0, [`In::All`], [`Out::All`] and the algorithm of the table, if nothing else is said.
#[must_use = "a collective does nothing until `run`, `start` or `plan`"]
#[derive(Debug)]
pub struct Collective<'a, T, State, M = Moves> {
    team: &'a Team,
    op: OpKind,
    source: Side<'a, T>,
    dest: Option<Side<'a, T>>,
    /// The root; of a permutation where this rank's block goes.
    root: TeamRank,
    sync: (In, Out),
    /// The one that was asked for, as the engine has it; 0: the table's choice.
    algorithm: u16,
    /// A prefix without the rank's own.
    exclusive: bool,
    /// What it does where elements meet.
    meets: M,
    /// What it must be like.
    fixed: Option<&'a Key>,
    _state: PhantomData<State>,
}

impl Team {
    /// All ranks have what the root has.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut x = [job.rank().0, 5];
    ///     job.broadcast(&mut x).root(TeamRank(2)).run();
    ///     assert_eq!(x, [2, 5]);
    /// });
    /// ```
    #[inline(always)]
    pub fn broadcast<'a, S: Source<'a>>(&'a self, source: S) -> Collective<'a, S::Item, S::State> {
        Collective::new(self, OpKind::Broadcast, source, Moves)
    }

    /// Each rank has its block of what the root has.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let all = if job.rank().0 == 0 { vec![10, 11, 20, 21, 30, 31] } else { vec![] };
    ///     let mut mine = [0; 2];
    ///     job.scatter(&all).to(&mut mine).run();
    ///     assert_eq!(mine[1], 11 + 10 * job.rank().0);
    /// });
    /// ```
    #[inline(always)]
    pub fn scatter<'a, S: Source<'a>>(&'a self, source: S) -> Collective<'a, S::Item, S::State> {
        Collective::new(self, OpKind::Scatter, source, Moves)
    }

    /// The root has a block of each rank.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut all = vec![];
    ///     job.gather(&[job.rank().0]).root(TeamRank(1)).to(&mut all).run();
    ///     assert_eq!(all, if job.rank().0 == 1 { vec![0, 1, 2] } else { vec![] });
    /// });
    /// ```
    #[inline(always)]
    pub fn gather<'a, S: Source<'a>>(&'a self, source: S) -> Collective<'a, S::Item, S::State> {
        Collective::new(self, OpKind::Gather, source, Moves)
    }

    /// All ranks have a block of each.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut all = [0; 3];
    ///     all[job.rank().index()] = job.rank().0 * job.rank().0;
    ///     job.gather_all(&mut all).run();                              // in place
    ///     assert_eq!(all, [0, 1, 4]);
    /// });
    /// ```
    #[inline(always)]
    pub fn gather_all<'a, S: Source<'a>>(&'a self, source: S) -> Collective<'a, S::Item, S::State> {
        Collective::new(self, OpKind::GatherAll, source, Moves)
    }

    /// Each rank has from each a block of its own: a transposition.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let me = job.rank().0;
    ///     let mut columns = vec![];
    ///     job.exchange(&[10 * me, 10 * me + 1, 10 * me + 2]).to(&mut columns).run();
    ///     assert_eq!(columns, [me, 10 + me, 20 + me]);
    /// });
    /// ```
    #[inline(always)]
    pub fn exchange<'a, S: Source<'a>>(&'a self, source: S) -> Collective<'a, S::Item, S::State> {
        Collective::new(self, OpKind::Exchange, source, Moves)
    }

    /// My block goes to `to`, and each rank has that of the one rank that sends to it.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut come = [0];
    ///     job.permute(&[job.rank().0], TeamRank(job.neighbor(1).0)).to(&mut come).run();
    ///     assert_eq!(come, [job.neighbor(-1).0]);
    /// });
    /// ```
    #[inline(always)]
    pub fn permute<'a, S: Source<'a>>(&'a self, source: S, to: TeamRank) -> Collective<'a, S::Item, S::State> {
        Collective { root: to, ..Collective::new(self, OpKind::Permute, source, Moves) }
    }

    /// The root has what all ranks' elements make, combined in the order of ranks: the first ones of all, the second ones of all, and so on.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut sums = vec![];
    ///     job.reduce(&[job.rank().0, 10], Sum).root(TeamRank(1)).to(&mut sums).run();
    ///     assert_eq!(sums, if job.rank().0 == 1 { vec![3, 30] } else { vec![] });
    /// });
    /// ```
    #[inline(always)]
    pub fn reduce<'a, S, O>(&'a self, source: S, op: O) -> Collective<'a, S::Item, S::State, With<S::Item, O>>
    where
        S: Source<'a>,
        O: ReduceOp<S::Item>,
    {
        Collective::new(self, OpKind::Reduce, source, With(op, PhantomData))
    }

    /// All ranks have what their elements make.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut v = vec![f64::from(job.rank().0), 1.5];
    ///     job.all_reduce(&mut v, Sum).run();                          // in place
    ///     assert_eq!(v, [3.0, 4.5]);
    /// });
    /// ```
    #[inline(always)]
    pub fn all_reduce<'a, S, O>(&'a self, source: S, op: O) -> Collective<'a, S::Item, S::State, With<S::Item, O>>
    where
        S: Source<'a>,
        O: ReduceOp<S::Item>,
    {
        Collective::new(self, OpKind::AllReduce, source, With(op, PhantomData))
    }

    /// Each rank has what the elements of all up to it make; of all before it, if it is [`exclusive`](Collective::exclusive).
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut before = [0];
    ///     job.prefix_reduce(&[10 + job.rank().0], Sum).exclusive().to(&mut before).run();
    ///     assert_eq!(before, [[0], [10], [21]][job.rank().index()]);
    /// });
    /// ```
    #[inline(always)]
    pub fn prefix_reduce<'a, S, O>(&'a self, source: S, op: O) -> Collective<'a, S::Item, S::State, With<S::Item, O>>
    where
        S: Source<'a>,
        O: ReduceOp<S::Item>,
    {
        Collective::new(self, OpKind::Prefix, source, With(op, PhantomData))
    }

    /// Words of each member, for a call that is no collective itself.
    #[track_caller]
    pub(crate) fn gather_words<const N: usize>(&self, site: Site, words: [u64; N]) -> Vec<[u64; N]> {
        let mut all = vec![];
        self.gather_all(&words[..]).to(&mut all).run_at(site);
        all.chunks_exact(N).map(|words| words.try_into().expect("so many")).collect()
    }

    /// Collectives on one value of each rank.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| assert_eq!(job.value(job.rank()).gather_all(), [Rank(0), Rank(1), Rank(2)]));
    /// ```
    pub fn value<T: Pod>(&self, value: T) -> Value<'_, T> {
        Value::new(self, value)
    }
}

impl<'a, T: Pod, State, O: ReduceOp<T>> Collective<'a, T, State, With<T, O>> {
    /// A prefix without the rank's own elements; the first rank's destination stays as it is. (Others have no such form.)
    #[inline(always)]
    pub fn exclusive(self) -> Self {
        Collective { exclusive: self.op == OpKind::Prefix, ..self }
    }
}

impl<'a, T: Pod, State, M: Meets<T>> Collective<'a, T, State, M> {
    #[inline(always)]
    fn new<S: Source<'a, Item = T>>(team: &'a Team, op: OpKind, source: S, meets: M) -> Self {
        Collective {
            team,
            op,
            source: source.into_side(),
            dest: None,
            root: TeamRank(0),
            sync: (In::All, Out::All),
            algorithm: 0,
            exclusive: false,
            meets,
            fixed: None,
            _state: PhantomData,
        }
    }

    /// Where the result goes.
    #[inline(always)]
    pub fn to<D: Dest<'a, Item = T>>(self, dest: D) -> Collective<'a, T, Ready, M> {
        let Collective { team, op, source, root, sync, algorithm, exclusive, meets, fixed, .. } = self;
        let dest = Some(dest.into_side());
        Collective { team, op, source, dest, root, sync, algorithm, exclusive, meets, fixed, _state: PhantomData }
    }

    /// The rank from which, or to which, all blocks go. (A permutation has none.)
    #[inline(always)]
    pub fn root(self, root: TeamRank) -> Self {
        let root = if self.op == OpKind::Permute { self.root } else { root };
        Collective { root, ..self }
    }

    /// When data may be touched, and when a rank may return.
    #[inline(always)]
    pub fn sync(self, before: In, after: Out) -> Self {
        Collective { sync: (before, after), ..self }
    }

    /// An algorithm by its name ([`Algorithm`]) instead of the table's choice; the same on all ranks.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(5, |job| {
    ///     let mut x = [job.rank().0; 100];
    ///     job.broadcast(&mut x).algorithm("tree2:pull").run();
    ///     assert_eq!(x, [0; 100]);
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn algorithm(self, name: &str) -> Self {
        match self.team.group.engine.asked.number(name) {
            Ok(algorithm) => Collective { algorithm, ..self },
            Err(why) => panic!("{}: {}: algorithm: {why}", self.team.inner.rank, self.op),
        }
    }
}

impl<'a, T: Pod, M: Meets<T>> Collective<'a, T, Ready, M> {
    /// Does it.
    #[inline(always)]
    #[track_caller]
    pub fn run(self) {
        let Site { call, at } = self.site();
        self.run_named(call, at);
    }

    /// Does it, named otherwise.
    #[track_caller]
    fn run_at(self, site: Site) {
        self.run_named(site.call, site.at);
    }

    /// What the call looks like is put together where it is made, since most of it is known when that is compiled; and the builder itself only goes on where that was not seen before.
    #[inline(always)]
    #[track_caller]
    fn run_named(self, call: &'static str, at: &'static Location<'static>) {
        let (team, fixed, meets, site) = (self.team, self.fixed, self.meets, Site { call, at });
        team.may_meet(|| site);
        let mut sides = [std::ptr::null_mut(); 2];
        let look = self.look(|side, base| {
            if let Base::Private(p) = base {
                sides[side] = p;
            }
        });
        if let Some(look) = look {
            let combine = meets.combines().map(|combine| &raw const *combine);
            // SAFETY: the buffers of this call, which it has borrowed, as it looks.
            if unsafe { team.again(&Made { look, sides, combine, fixed, site }) } {
                return;
            }
        }
        self.run_task(call, at);
    }

    #[inline(never)]
    #[track_caller]
    fn run_task(self, call: &'static str, at: &'static Location<'static>) {
        if self.is_copied_when_all_are_there() {
            self.team.meet(Tag::Plain, u64::MAX, || Site { call, at });
        }
        let mut task = Task::new(call, at);
        if self.describe(&mut task) {
            self.team.group.engine.run(&self.team.inner, &task);
        }
    }

    /// Is it one that copies its source first, which others may write to until they have entered?
    fn is_copied_when_all_are_there(&self) -> bool {
        let copies = self.dest.is_none() && matches!(self.op, OpKind::Exchange | OpKind::Permute);
        copies && self.sync.0 == In::All && matches!(self.source.what, What::Shared(..))
    }

    /// Starts it; it goes on whenever this rank waits for something or makes progress, and is complete when the event is. An exchange or permutation
    /// in place passes what this rank's part has when it is started, whatever the sync mode; all ranks start it then, or none does.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(4, |job| {
    ///     let (mine, mut all) = ([job.rank().0; 1000], vec![]);
    ///     job.scope(|s| {
    ///         let event = job.gather_all(&mine).to(&mut all).start(s);
    ///         let busy: u64 = (0..1000).sum();
    ///         event.wait();
    ///         assert_eq!(busy, 499_500);
    ///     });
    ///     assert_eq!((all.len(), all[3999]), (4000, 3));
    /// });
    /// ```
    #[track_caller]
    pub fn start<'s>(self, scope: &'s Scope<'s, '_>) -> Event<'s, ()>
    where
        'a: 's,
    {
        let team = self.team;
        let site = self.site();
        team.may_meet(|| site);
        debug_assert!(Rc::ptr_eq(&scope.job.all().inner, &team.inner), "a rank has one job");
        let mut task = Task::new(site.call, site.at);
        if !self.describe(&mut task) {
            return Event::ready(());
        }
        task.keep_combine(&self.meets);
        let task = Rc::new(task);
        team.inner.start_task(&team.group, task.clone(), scope.depth);
        Event::collective(team, task, ())
    }

    /// What it is like, without the buffers: to be done again and again. Nothing is done yet.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let mut x = [0; 50];
    ///     let step = job.broadcast(&mut x).root(TeamRank(1)).plan();
    ///     for k in 0..10 {
    ///         x[49] = k * job.rank().0;
    ///         step.on(&mut x).run();
    ///         assert_eq!(x[49], k);
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn plan(self) -> Plan<T, M> {
        let site = self.site();
        self.team.may_meet(|| site);
        let Collective { team, op, root, sync, algorithm, exclusive, meets, .. } = self;
        let mut task = Task::new(site.call, site.at);
        let key = self.describe(&mut task).then_some(task.key);
        let team = team.another();
        Plan { team, op, root, sync, algorithm, exclusive, meets, key, _items: PhantomData }
    }

    #[inline(always)]
    #[track_caller]
    fn site(&self) -> Site {
        Site::here(match self.op {
            OpKind::Broadcast => "broadcast",
            OpKind::Scatter => "scatter",
            OpKind::Gather => "gather",
            OpKind::GatherAll => "gather_all",
            OpKind::Exchange => "exchange",
            OpKind::Permute => "permute",
            OpKind::Reduce => "reduce",
            OpKind::AllReduce => "all_reduce",
            OpKind::Prefix => "prefix_reduce",
        })
    }
}

/// A collective without its buffers: what [`Collective::plan`] gives.
#[derive(Debug)]
pub struct Plan<T, M = Moves> {
    team: Team,
    op: OpKind,
    root: TeamRank,
    sync: (In, Out),
    algorithm: u16,
    exclusive: bool,
    meets: M,
    /// Nothing: of nothing.
    key: Option<Key>,
    _items: PhantomData<fn(T)>,
}

impl<T: Pod, M: Meets<T>> Plan<T, M> {
    /// With these buffers, which are like those that it was made with.
    pub fn on<'b, S: Source<'b, Item = T>>(&'b self, source: S) -> Collective<'b, T, S::State, M> {
        let Plan { team, op, root, sync, algorithm, exclusive, meets, key, .. } = self;
        let (root, sync, algorithm, exclusive, fixed) = (*root, *sync, *algorithm, *exclusive, key.as_ref());
        Collective { root, sync, algorithm, exclusive, fixed, ..Collective::new(team, *op, source, *meets) }
    }
}

/// Bytes of an element, and what it is called.
fn element<T: Pod, M: Meets<T>>() -> (u32, &'static str) {
    (size_of::<T>() as u32, M::name())
}

/// A team's collectives know where its own arrays' parts are: those of others lie elsewhere, and have other lengths.
#[cold]
#[track_caller]
fn is_of_others(team: &Team, site: Site) -> ! {
    panic!("{}: {}: this array is of another team; give one that this team has made", team.inner.rank, site.call)
}

impl<T: Pod, M: Meets<T>> Collective<'_, T, Ready, M> {
    /// Says what is to be done; false if that is nothing.
    #[track_caller]
    fn describe(&self, task: &mut Task) -> bool {
        let engine = &self.team.group.engine;
        let look = self.look(|side, base| task.bases[side] = base);
        let Some(known) = look.and_then(|look| engine.known.borrow().find(&look).cloned()) else {
            return self.describe_new(task);
        };
        self.is_to_do(task, known.key, known.prepared.clone());
        true
    }

    /// What the call looks like; and where its buffers are. Nothing if one of them is a part of an array.
    #[inline(always)]
    fn look(&self, mut side: impl FnMut(usize, Base)) -> Option<Look> {
        let mut see = |i: usize, what: &What<T>| match what {
            What::Private(p, len) => {
                side(i, Base::Private(p.cast()));
                Some((*len as u64) << 1)
            }
            What::Vec(vec) => {
                // SAFETY: borrowed, and nobody else has it.
                let vec = unsafe { &mut **vec };
                side(i, Base::Private(vec.as_mut_ptr().cast()));
                Some((vec.len() as u64) << 1)
            }
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                side(i, Base::Same(array.start, array.own_place()));
                (range.start == 0 && range.end == array.spread.len()).then_some(array.number << 1 | 1)
            }
        };
        let from = see(0, &self.source.what)?;
        let to = match &self.dest {
            Some(to) => see(1, &to.what)?,
            None => {
                see(1, &self.source.what)?;
                u64::MAX
            }
        };
        let bits = u64::from(self.exclusive) | u64::from(M::ORDERED) << 1;
        let small = [self.op as u64, self.sync.0 as u64, self.sync.1 as u64, bits];
        let what = small.iter().fold(self.algorithm.into(), |all: u64, one| all << 8 | one);
        Some(Look { what, ends: u64::from(self.root.0) | (size_of::<T>() as u64) << 32, sides: [from, to] })
    }

    /// The same of one that was not made before, as far as is known: all is looked at.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn describe_new(&self, task: &mut Task) -> bool {
        let site = task.site;
        let engine = &self.team.group.engine;
        let (ranks, me, root) = (engine.desk.ranks(), engine.desk.rank(), self.root.index());
        if root >= ranks {
            self.no_such_root(site);
        }
        let in_place = self.dest.is_none();
        let is_root = me == root;
        let to_root = matches!(self.op, OpKind::Gather | OpKind::Reduce);
        let rooted = to_root || matches!(self.op, OpKind::Broadcast | OpKind::Scatter);
        // How many blocks a rank's buffers have.
        let (blocks_in, blocks_out) = match self.op {
            OpKind::Broadcast | OpKind::Permute | OpKind::Reduce | OpKind::AllReduce | OpKind::Prefix => (1, 1),
            OpKind::Scatter => (ranks, 1),
            OpKind::Gather | OpKind::GatherAll => (1, ranks),
            OpKind::Exchange => (ranks, ranks),
        };
        let (source, len) = self.part(&self.source.what, site, &mut task.bases[0]);
        let (n, dest) = match &self.dest {
            Some(dest) => {
                let resizes = !matches!(self.op, OpKind::Broadcast | OpKind::Scatter);
                let is_source = !rooted || to_root || is_root;
                let is_dest = !rooted || !to_root || is_root;
                let whole = if resizes { self.whole("source", len, blocks_in, site) } else { 0 };
                if let What::Vec(vec) = dest.what
                    && is_dest
                    && resizes
                {
                    // SAFETY: borrowed, and nobody else has it.
                    unsafe { (*vec).resize(whole * blocks_out, T::zeroed()) };
                }
                let (kind, there) = self.part(&dest.what, site, &mut task.bases[1]);
                let n = if resizes { whole } else { there };
                let root_only = |is: bool| (rooted && is).then_some(root);
                if is_source || source == Kind::Shared {
                    let root = root_only(!to_root);
                    self.fits(("source", &self.source.what), len, (n, blocks_in), root, site);
                }
                if is_dest || kind == Kind::Shared {
                    let root = root_only(to_root);
                    self.fits(("destination", &dest.what), there, (n, blocks_out), root, site);
                }
                self.apart(dest, site);
                (n, kind)
            }
            None => {
                let has_all = blocks_in.max(blocks_out) > 1 && (!rooted || is_root);
                task.bases[1] = task.bases[0].clone();
                let n = if has_all { self.whole("buffer", len, ranks, site) } else { len };
                if let What::Shared(array, range) = &self.source.what {
                    // SAFETY: borrowed.
                    let array = unsafe { &**array };
                    self.fits_in_place(array, range, n, site);
                }
                (n, source)
            }
        };
        // Blocks of no elements pass like others: one rank may have none by mistake.
        if size_of::<T>() == 0 {
            return false;
        }
        let call = Call {
            op: self.op,
            root: self.root.0,
            // Of two ranks who sends to the other hears from it.
            from: if self.op == OpKind::Permute && ranks == 2 && !is_root { self.root.0 } else { UNKNOWN },
            len: n * size_of::<T>(),
            sync: self.sync,
            source,
            dest,
            in_place,
            exclusive: self.exclusive,
            ordered: M::ORDERED,
            grain: if self.meets.combines().is_some() { size_of::<T>() as u32 } else { 1 },
            algorithm: self.algorithm,
        };
        let copies = in_place && matches!(self.op, OpKind::Exchange | OpKind::Permute);
        let call = if copies { of_a_copy(call) } else { call };
        // What was once prepared was right.
        if self.algorithm != 0 && !engine.is_prepared(&Key::new(call)) {
            self.check_algorithm(call, site);
        }
        if copies {
            self.with_a_copy(task, call, n * blocks_in);
            return true;
        }
        self.plan_for(task, call);
        // As it looks now that the destination has its length.
        if let Some(look) = self.look(|_, _| {})
            && let Some(prepared) = task.prepared.get()
        {
            engine.keep(&self.team.inner, look, task.key, prepared.clone(), &task.bases);
        }
        true
    }

    #[cold]
    #[track_caller]
    fn no_such_root(&self, site: Site) -> ! {
        let (me, ranks, root) = (self.team.inner.rank, self.team.size(), self.root.0);
        let what = if self.op == OpKind::Permute { "to" } else { "from root" };
        panic!("{me}: {}: {what} {root}, where there are {ranks} ranks", site.call);
    }

    #[track_caller]
    fn plan_for(&self, task: &mut Task, call: Call) {
        let key = Key::new(call);
        let prepared = self.team.group.engine.prepared(&self.team.inner, &key);
        self.is_to_do(task, key, prepared);
    }

    #[inline(always)]
    #[track_caller]
    fn is_to_do(&self, task: &mut Task, key: Key, prepared: Rc<Prepared>) {
        task.key = key;
        task.element = element::<T, M>;
        if self.team.inner.check {
            task.besides = self.number();
        }
        task.combine = self.meets.combines().map(|combine| &raw const *combine);
        if let Some(fixed) = self.fixed
            && *fixed != key
        {
            self.is_not_planned(*fixed, key, task.site);
        }
        task.parts = prepared.parts;
        // Whose block comes here in a permutation may not be known yet.
        if self.op != OpKind::Permute || key.from() != UNKNOWN {
            task.prepared = OnceCell::from(prepared);
        }
    }

    /// What all must have alike besides: the algorithm that is asked for, and which elements of which arrays.
    #[cold]
    fn number(&self) -> u32 {
        let name = self.team.group.engine.asked.get(self.algorithm).map(|algorithm| algorithm.to_string());
        let sides = [Some(&self.source), self.dest.as_ref()].map(|side| match side.map(|side| &side.what) {
            Some(What::Shared(array, range)) => {
                // SAFETY: borrowed.
                let slot = unsafe { (**array).slot };
                [1 + u64::from(slot), range.start as u64, range.end as u64]
            }
            _ => [0; 3],
        });
        check::number(name.unwrap_or_default().bytes().chain(sides.into_iter().flatten().flat_map(u64::to_ne_bytes)))
    }

    #[cold]
    #[track_caller]
    fn is_not_planned(&self, fixed: Key, key: Key, site: Site) -> ! {
        let me = self.team.inner.rank;
        panic!("{me}: {}: the plan was made for {}, and this is {}", site.call, fixed.call(), key.call());
    }

    /// An algorithm that was asked for must be one for this call.
    #[cold]
    #[track_caller]
    fn check_algorithm(&self, call: Call, site: Site) {
        let (inner, engine) = (&self.team.inner, &self.team.group.engine);
        if let Some(asked) = engine.asked.get(call.algorithm)
            && let Some(why) = engine.refuses(inner, &call, &asked)
        {
            panic!("{}: {}: {asked} cannot be taken: {why}", inner.rank, site.call);
        }
    }

    /// Where the buffer is, of which kind, and how many elements it has on this rank.
    #[inline(always)]
    #[track_caller]
    fn part(&self, what: &What<T>, site: Site, base: &mut Base) -> (Kind, usize) {
        match what {
            What::Private(p, len) => {
                *base = Base::Private(p.cast());
                (Kind::Private, *len)
            }
            What::Vec(vec) => {
                // SAFETY: borrowed, and nobody else has it.
                let vec = unsafe { &mut **vec };
                *base = Base::Private(vec.as_mut_ptr().cast());
                (Kind::Private, vec.len())
            }
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                if array.is_empty() {
                    array.check_usable(site.call);
                }
                if !Rc::ptr_eq(&array.group, &self.team.group) {
                    is_of_others(self.team, site);
                }
                if range.start == 0 && range.end == array.spread.len() {
                    *base = Base::Same(array.start, array.own_place());
                    return (Kind::Shared, array.mine);
                }
                (Kind::Shared, self.share(array, range, base))
            }
        }
    }

    /// Some elements of an array.
    #[inline(never)]
    fn share(&self, array: &SharedArray<T>, range: &Range<usize>, base: &mut Base) -> usize {
        let (me, spread) = (self.team.rank().index(), &array.spread);
        *base = Base::Share { start: array.start, spread, size: size_of::<T>(), first: range.start };
        spread.part_before(me, range.end) - spread.part_before(me, range.start)
    }

    /// The length of a block, of which so many must be there.
    #[inline]
    #[track_caller]
    fn whole(&self, what: &str, len: usize, blocks: usize, site: Site) -> usize {
        if !len.is_multiple_of(blocks) {
            let me = self.team.inner.rank;
            panic!(
                "{me}: {}: the {what} has {len} elements, which are not {blocks} blocks of one length: {} too many",
                site.call,
                len % blocks
            );
        }
        len / blocks
    }

    /// Of a shared buffer other ranks' parts must have the right length too, since they are touched: that of the root, or all.
    #[inline(always)]
    #[track_caller]
    fn fits(
        &self,
        (name, what): (&str, &What<T>),
        len: usize,
        (n, blocks): (usize, usize),
        root: Option<usize>,
        site: Site,
    ) {
        let needed = n * blocks;
        let is_right = match what {
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                match root {
                    Some(root) => Self::share_of(array, range, root) == needed,
                    None => len == needed && self.all_have(array, range, needed),
                }
            }
            _ => len == needed,
        };
        if !is_right {
            self.does_not_fit((name, what), len, (n, blocks), root, site);
        }
    }

    /// The same of a shared buffer in which the result begins as the source.
    #[track_caller]
    fn fits_in_place(&self, array: &SharedArray<T>, range: &Range<usize>, n: usize, site: Site) {
        let (ranks, root) = (self.team.size(), self.root.index());
        let needed = |r: usize| match self.op {
            OpKind::Scatter | OpKind::Gather if r != root => n,
            OpKind::Scatter | OpKind::Gather | OpKind::GatherAll | OpKind::Exchange => n * ranks,
            _ => n,
        };
        if let Some(r) = (0..ranks).find(|&r| Self::share_of(array, range, r) != needed(r)) {
            let (me, len, needed) = (self.team.inner.rank, Self::share_of(array, range, r), needed(r));
            let r = self.team.group.engine.rank_of(r);
            panic!("{me}: {}: in place, {r} has {len} elements, where {needed} are needed", site.call);
        }
    }

    /// How many elements of these are of that rank.
    fn share_of(array: &SharedArray<T>, range: &Range<usize>, rank: usize) -> usize {
        let spread = &array.spread;
        match range.start == 0 && range.end == spread.len() {
            true => spread.part_len(rank),
            false => spread.part_before(rank, range.end) - spread.part_before(rank, range.start),
        }
    }

    /// Is this the share of each rank?
    #[inline(always)]
    fn all_have(&self, array: &SharedArray<T>, range: &Range<usize>, share: usize) -> bool {
        let ranks = self.team.size();
        // Who has fewer than the others is among those who have less than the most.
        let whole = range.start == 0 && range.end == array.spread.len();
        range.len() == ranks * share && (whole || (0..ranks).all(|r| Self::share_of(array, range, r) == share))
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn does_not_fit(
        &self,
        (name, what): (&str, &What<T>),
        mut len: usize,
        (n, blocks): (usize, usize),
        root: Option<usize>,
        site: Site,
    ) -> ! {
        let (rank, me, needed) = (self.team.inner.rank, self.team.rank().index(), n * blocks);
        let mut whose = String::new();
        if let What::Shared(array, range) = what {
            // SAFETY: borrowed.
            let array = unsafe { &**array };
            let wrong = |&r: &usize| Self::share_of(array, range, r) != needed;
            // My own is named first.
            let mine = Some(me).filter(|r| root.is_none() && wrong(r));
            if let Some(r) = mine.or(root).or((0..self.team.size()).find(wrong)) {
                len = Self::share_of(array, range, r);
                whose = if r == me { whose } else { format!(" of {}", self.team.group.engine.rank_of(r)) };
            }
        }
        let of = if blocks > 1 { format!(" ({blocks} blocks of {n})") } else { String::new() };
        let by = match len < needed {
            true => format!("{} are missing", needed - len),
            false => format!("{} are too many; give a slice of it", len - needed),
        };
        panic!("{rank}: {}: the {name}{whose} has {len} elements, and {needed} pass{of}: {by}", site.call);
    }

    /// Source and destination may be slices of one array, but not of the same elements.
    #[track_caller]
    fn apart(&self, dest: &Side<'_, T>, site: Site) {
        if let (What::Shared(a, from), What::Shared(b, to)) = (&self.source.what, &dest.what)
            && a == b
            && from.start < to.end
            && to.start < from.end
        {
            let me = self.team.inner.rank;
            panic!("{me}: {}: elements {from:?} and {to:?} of one array overlap", site.call);
        }
    }

    /// What cannot be done in place is done with a copy of the source.
    #[cold]
    #[track_caller]
    fn with_a_copy(&self, task: &mut Task, call: Call, elements: usize) {
        let (len, engine) = (elements * size_of::<T>(), &self.team.group.engine);
        let from = match &task.bases[0] {
            Base::Private(p) => *p,
            shared => {
                let at = shared.at(engine, self.team.rank().index());
                self.team.inner.own_table().locate(at, len).expect("memory of this rank")
            }
        };
        let copy = task.set_source(engine.spare.room(len));
        // SAFETY: this rank's part of the buffer, and memory of its own that has room for it.
        unsafe { partage_conduit::copy::between(copy, from, len) };
        task.bases[0] = Base::Private(copy);
        self.plan_for(task, call);
    }
}

/// The call that is made with a copy of the source.
fn of_a_copy(call: Call) -> Call {
    let (before, after) = call.sync;
    // Nobody writes to what has not been copied yet.
    let before = if before == In::No { In::My } else { before };
    Call { source: Kind::Private, in_place: false, sync: (before, after), ..call }
}
