//! Which collectives each rank of the job begins in which order, and which of them have the same memory.

use super::Run;

pub struct Calls {
    /// How many members a team has at most.
    pub width: usize,
    /// By rank of the job: collectives, and its number in their teams.
    pub orders: Vec<Vec<(usize, usize)>>,
    /// By collective: a number for its team.
    pub teams: Vec<usize>,
    /// By collective: a number for the context of its team.
    pub contexts: Vec<usize>,
    /// By collective: a number for the context of its desk.
    pub halls: Vec<usize>,
    /// By rank of the job and collective: which of its calls that is, if it is one.
    turns: Vec<usize>,
}

impl Calls {
    pub fn new(runs: &[Run]) -> Calls {
        let ranks = runs.iter().flat_map(|r| &r.members).max().map_or(0, |most| most + 1);
        let mut orders = vec![vec![]; ranks];
        for (run, r) in runs.iter().enumerate() {
            r.members.iter().enumerate().for_each(|(member, &rank)| orders[rank].push((run, member)));
        }
        let mut turns = vec![usize::MAX; ranks * runs.len()];
        for (rank, order) in orders.iter_mut().enumerate() {
            order.sort_by_key(|&(run, member)| runs[run].turns[member]);
            order.iter().enumerate().for_each(|(i, &(run, _))| turns[rank * runs.len() + run] = i);
        }
        Calls {
            width: runs.iter().map(|r| r.members.len()).max().unwrap_or(0),
            orders,
            teams: numbers(runs, |r| (r.team, 0)),
            contexts: numbers(runs, |r| (r.team, r.context)),
            halls: numbers(runs, |r| (r.desk, r.context)),
            turns,
        }
    }

    /// How many ranks the job has.
    pub fn ranks(&self) -> usize {
        self.orders.len()
    }

    /// What the rank of the job begins before this collective of its own, and its number there.
    pub fn before(&self, rank: usize, run: usize) -> &[(usize, usize)] {
        let order = &self.orders[rank];
        &order[..self.turns[rank * self.teams.len() + run].min(order.len())]
    }

    /// Does the rank of the job begin `other` before `run`, in the same context of the same team?
    pub fn is_before(&self, rank: usize, other: usize, run: usize) -> bool {
        let turns = &self.turns[rank * self.teams.len()..];
        self.contexts[other] == self.contexts[run] && turns[other] < turns[run]
    }
}

/// The same numbers for those with the same key, from 0 on.
fn numbers(runs: &[Run], key: impl Fn(&Run) -> (usize, usize)) -> Vec<usize> {
    let mut keys: Vec<(usize, usize)> = vec![];
    let mut list = vec![];
    for key in runs.iter().map(key) {
        let known = keys.iter().position(|&k| k == key);
        list.push(known.unwrap_or(keys.len()));
        if known.is_none() {
            keys.push(key);
        }
    }
    list
}
