//! Collectives on one value of each rank.

use super::reduce::{Max, Min, ReduceOp, Sum};
use crate::team::{Team, TeamRank};
use bytemuck::Pod;

/// One value of each rank: what [`Team::value`] gives. A call returns when this rank has what it gets. It waits
/// only for ranks whose values that takes, and for those who pass its own on: it is no barrier. It cannot be started.
#[must_use = "say what is to be done with the values"]
#[derive(Debug)]
pub struct Value<'t, T> {
    team: &'t Team,
    value: T,
}

impl<'t, T: Pod> Value<'t, T> {
    pub(super) fn new(team: &'t Team, value: T) -> Value<'t, T> {
        Value { team, value }
    }

    /// That of the root.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| assert_eq!(job.value(7 * job.rank().0).broadcast(TeamRank(2)), 14));
    /// ```
    #[track_caller]
    pub fn broadcast(self, root: TeamRank) -> T {
        let mut value = [self.value];
        self.team.broadcast(&mut value).root(root).run();
        value[0]
    }

    /// All of them, at the root.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let all = job.value(job.rank().0).gather(TeamRank(0));
    ///     assert_eq!(all, (job.rank().0 == 0).then(|| vec![0, 1, 2]));
    /// });
    /// ```
    #[track_caller]
    pub fn gather(self, root: TeamRank) -> Option<Vec<T>> {
        let mut all = vec![];
        self.team.gather(&[self.value]).root(root).to(&mut all).run();
        (self.team.rank() == root).then_some(all)
    }

    /// All of them, in the order of ranks.
    ///
    /// ```
    /// partage::test(3, |job| assert_eq!(job.value(2 * job.rank().0).gather_all(), [0, 2, 4]));
    /// ```
    #[track_caller]
    pub fn gather_all(self) -> Vec<T> {
        let mut all = vec![];
        self.team.gather_all(&[self.value]).to(&mut all).run();
        all
    }

    /// That of the rank that sends to this one.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let left = job.value(job.rank()).permute(TeamRank(job.neighbor(1).0));
    ///     assert_eq!(left, job.neighbor(-1));
    /// });
    /// ```
    #[track_caller]
    pub fn permute(self, to: TeamRank) -> T {
        let mut come = [self.value];
        self.team.permute(&[self.value], to).to(&mut come).run();
        come[0]
    }

    /// The sum of all.
    ///
    /// ```
    /// partage::test(4, |job| assert_eq!(job.value(job.rank().0).sum(), 6));
    /// ```
    #[track_caller]
    pub fn sum(self) -> T
    where
        Sum: ReduceOp<T>,
    {
        self.all_reduce(Sum)
    }

    /// The smallest of all.
    ///
    /// ```
    /// partage::test(4, |job| assert_eq!(job.value(2.5 - f64::from(job.rank().0)).min(), -0.5));
    /// ```
    #[track_caller]
    pub fn min(self) -> T
    where
        Min: ReduceOp<T>,
    {
        self.all_reduce(Min)
    }

    /// The largest of all.
    ///
    /// ```
    /// partage::test(4, |job| assert_eq!(job.value(job.rank().0 % 3).max(), 2));
    /// ```
    #[track_caller]
    pub fn max(self) -> T
    where
        Max: ReduceOp<T>,
    {
        self.all_reduce(Max)
    }

    /// What all of them make, in the order of ranks, at the root.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let product = job.value(2 + job.rank().0).reduce(Prod, TeamRank(1));
    ///     assert_eq!(product, (job.rank().0 == 1).then_some(24));
    /// });
    /// ```
    #[track_caller]
    pub fn reduce<O: ReduceOp<T>>(self, op: O, root: TeamRank) -> Option<T> {
        let mut value = [self.value];
        self.team.reduce(&mut value, op).root(root).run();
        (self.team.rank() == root).then_some(value[0])
    }

    /// The same at all ranks.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| assert_eq!(job.value(1 << job.rank().0).all_reduce(Or), 7));
    /// ```
    #[track_caller]
    pub fn all_reduce<O: ReduceOp<T>>(self, op: O) -> T {
        let mut value = [self.value];
        self.team.all_reduce(&mut value, op).run();
        value[0]
    }

    /// What those of all ranks up to this one make.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| assert_eq!(job.value(1).prefix_reduce(Sum), 1 + job.rank().0));
    /// ```
    #[track_caller]
    pub fn prefix_reduce<O: ReduceOp<T>>(self, op: O) -> T {
        let mut value = [self.value];
        self.team.prefix_reduce(&mut value, op).run();
        value[0]
    }

    /// What those of all ranks before this one make; there is none before the first.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let begin = job.value(10 + job.rank().0).prefix_before(Sum).unwrap_or(0);
    ///     assert_eq!(begin, [0, 10, 21][job.rank().index()]);
    /// });
    /// ```
    #[track_caller]
    pub fn prefix_before<O: ReduceOp<T>>(self, op: O) -> Option<T> {
        let mut value = [self.value];
        self.team.prefix_reduce(&mut value, op).exclusive().run();
        (self.team.rank() != TeamRank(0)).then_some(value[0])
    }
}
