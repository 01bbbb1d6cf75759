//! Collectives on buffers: `job.gather(&mine).to(&mut all).run()`; and on one value of each rank: `job.value(x).gather_all()`.
//!
//! `&` is a source, `&mut` a destination or, without `.to`, both: in place. A buffer is memory of one's own (`[T]`, `Vec<T>`, `[T; N]`) or a
//! shared array ([`SharedArray`](crate::array::SharedArray), or a slice of one): then a rank's block is its part. All ranks make the same call, with the
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
mod describe;
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

use crate::scope::{Event, Scope};
use crate::team::{Team, TeamRank};
use again::Made;
use buffer::{Side, What};
use bytemuck::Pod;
use choice::Key;
use engine::Base;
use partage_conduit::barrier::Tag;
use partage_conduit::record::Site;
use partage_plan::coll::OpKind;
#[doc(hidden)]
pub use reduce::Meets;
use std::marker::PhantomData;
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
