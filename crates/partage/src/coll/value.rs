//! Collectives on one value of each rank.

use crate::team::{Team, TeamRank};
use bytemuck::Pod;

/// One value of each rank: what [`Team::value`] gives. Each call waits until all have what they get.
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
}
