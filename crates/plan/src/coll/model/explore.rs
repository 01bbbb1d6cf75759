//! All states that can be reached. See [the module above](super).
//!
//! What is tried in every order: entering, every touch of memory, claiming, and arriving where the last to arrive has more
//! to do.
//! All else is done at once: signals, arrivals, and waits that are over only let others go on, and nobody has to; to
//! return is worst when it is early.

use std::collections::{BTreeMap, HashSet};

use super::cells::Cells;
use super::values::{NOTHING, Value, Values};
use super::{Run, counts, for_each_choice};
use crate::coll::{Buffer, In, Kind, Out, Signal, Span, Step, Totals};

/// Goes through all states of these collectives, with mail that holds `depth` messages for each pair: how many there
/// are.
///
/// # Errors
/// What is wrong in one of them, in words.
pub fn explore(runs: &[Run], depth: usize) -> Result<usize, String> {
    let cells = Cells::new(runs);
    let world = World { runs, width: cells.calls.width, depth, cells, values: Values::new(runs) };
    let mut first = world.first();
    world.settle(&mut first);
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        let next = world.next(&state)?;
        if next.is_empty() {
            world.end(&state)?;
        }
        for mut state in next {
            world.settle(&mut state);
            if !seen.contains(&state) {
                seen.insert(state.clone());
                open.push(state);
            }
        }
    }
    // Counts are the same in all of them, but for who is last, or claims what.
    for_each_choice(runs, |choice| counts::check(runs, choice))?;
    Ok(seen.len())
}

struct World<'a> {
    runs: &'a [Run],
    /// How many members a team has at most.
    width: usize,
    depth: usize,
    cells: Cells<'a>,
    values: Values,
}

/// How far a rank is in a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Outside,
    Step(usize),
    /// In the steps of the last to arrive.
    Inner(usize, usize),
    /// In the steps of a chunk that it has claimed.
    Chunk(usize, usize, usize),
    Returned,
}

/// A put that has been made.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Flight {
    Made,
    Read(Vec<Value>),
    Arrived,
}

/// A signal: its collective, and the step if it is a put's.
type Made = (usize, Option<usize>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// By collective and rank.
    at: Vec<At>,
    memory: Vec<Value>,
    /// By collective, rank and step.
    puts: BTreeMap<(usize, usize, usize), Flight>,
    /// By hall, sender, receiver's rank in the job, and kind; of all collectives there, as all that follows.
    signals: BTreeMap<(usize, usize, usize, Signal), Vec<Made>>,
    /// By hall, sender, and receiver's rank in the job.
    mail: BTreeMap<(usize, usize, usize), Vec<Vec<Value>>>,
    /// By hall and member.
    arrived: Vec<usize>,
    /// By hall.
    released: Vec<usize>,
    /// By hall.
    claimed: Vec<usize>,
}

impl World<'_> {
    fn first(&self) -> State {
        // There are no more halls than collectives.
        let all = self.runs.len() * self.width;
        let has = |i: usize| i % self.width < self.runs[i / self.width].shape.ranks;
        State {
            at: (0..all).map(|i| if has(i) { At::Outside } else { At::Returned }).collect(),
            memory: self.values.first(self.runs, &self.cells),
            puts: BTreeMap::new(),
            signals: BTreeMap::new(),
            mail: BTreeMap::new(),
            arrived: vec![0; all],
            released: vec![0; self.runs.len()],
            claimed: vec![0; self.runs.len()],
        }
    }

    /// What the collectives that the rank has ended in this context amount to.
    fn before(&self, run: usize, rank: usize, of: impl Fn(&Totals) -> usize) -> usize {
        let (calls, me) = (&self.cells.calls, self.runs[run].members[rank]);
        let same = calls.before(me, run).iter().filter(|&&(other, _)| calls.contexts[other] == calls.contexts[run]);
        same.map(|&(other, member)| of(&self.runs[other].plans[member].totals)).sum()
    }

    /// Have all members arrived so often?
    fn arrived(&self, state: &State, run: usize, times: usize) -> bool {
        let hall = self.cells.calls.halls[run] * self.width;
        state.arrived[hall..hall + self.runs[run].shape.ranks].iter().all(|&n| n >= times)
    }

    /// Does what lets others go on, or hinders nobody.
    fn settle(&self, state: &mut State) {
        while (0..state.at.len()).any(|i| self.settle_one(state, i / self.width, i % self.width)) {}
    }

    fn settle_one(&self, state: &mut State, run: usize, rank: usize) -> bool {
        let (r, i, hall) = (&self.runs[run], run * self.width + rank, self.cells.calls.halls[run]);
        let (step, next) = match state.at[i] {
            At::Step(at) => match r.plans[rank].steps.get(at) {
                Some(step) => (step, At::Step(at + 1)),
                None if state.puts.iter().any(|(put, f)| (put.0, put.1) == (run, rank) && *f == Flight::Made) => {
                    return false;
                }
                None => {
                    state.at[i] = At::Returned;
                    return true;
                }
            },
            At::Inner(at, inner) => match &r.plans[rank].steps[at] {
                Step::Last { steps } if inner < steps.len() => (&steps[inner], At::Inner(at, inner + 1)),
                _ => {
                    state.at[i] = At::Step(at + 1);
                    return true;
                }
            },
            At::Chunk(at, chunk, inner) => match &r.plans[rank].steps[at] {
                Step::Claim { chunks } if inner < chunks[chunk].len() => {
                    (&chunks[chunk][inner], At::Chunk(at, chunk, inner + 1))
                }
                _ => {
                    state.at[i] = At::Step(at);
                    return true;
                }
            },
            At::Outside | At::Returned => return false,
        };
        match *step {
            Step::Signal { to, signal } => {
                state.signals.entry((hall, rank, r.members[to], signal)).or_default().push((run, None));
            }
            Step::Put { to, .. } => {
                let At::Step(at) = state.at[i] else { return false };
                state.puts.insert((run, rank, at), Flight::Made);
                state.signals.entry((hall, rank, r.members[to], Signal::Data)).or_default().push((run, Some(at)));
            }
            Step::Wait { from, signal, n } => {
                let key = (hall, from, r.members[rank], signal);
                let made = state.signals.get(&key).map_or(&[][..], |list| &list[..]);
                let here =
                    |&&(run, put): &&Made| put.is_none_or(|step| state.puts[&(run, from, step)] == Flight::Arrived);
                let same = |&&(f, s, _): &&(usize, Signal, usize)| (f, s) == (from, signal);
                let heard = |totals: &Totals| totals.signals.iter().filter(same).map(|&(.., n)| n).sum::<usize>();
                if made.iter().take_while(here).count() < self.before(run, rank, heard) + n {
                    return false;
                }
            }
            Step::Arrive => state.arrived[hall * self.width + rank] += 1,
            Step::Meet { n } => {
                if !self.arrived(state, run, self.before(run, rank, |totals| totals.arrivals) + n) {
                    return false;
                }
            }
            Step::Release => state.released[hall] += 1,
            Step::Released => {
                if state.released[hall] <= self.before(run, rank, |totals| totals.releases) {
                    return false;
                }
            }
            _ => return false,
        }
        state.at[i] = next;
        true
    }

    /// All that may happen next.
    fn next(&self, state: &State) -> Result<Vec<State>, String> {
        let mut list = vec![];
        for (run, r) in self.runs.iter().enumerate() {
            let (calls, hall) = (&self.cells.calls, self.cells.calls.halls[run]);
            for rank in 0..r.shape.ranks {
                let i = run * self.width + rank;
                let (step, next) = match state.at[i] {
                    At::Outside => {
                        // What was only started may not have begun, unless its team is the same.
                        let ready = |&(before, member): &(usize, usize)| match state.at[before * self.width + member] {
                            At::Returned => true,
                            _ if self.runs[before].blocking || calls.contexts[before] == calls.contexts[run] => false,
                            at => at != At::Outside || calls.teams[before] != calls.teams[run],
                        };
                        if calls.before(r.members[rank], run).iter().all(ready) {
                            let mut new = state.clone();
                            new.at[i] = At::Step(0);
                            list.push(new);
                        }
                        continue;
                    }
                    At::Step(at) if at < r.plans[rank].steps.len() => (&r.plans[rank].steps[at], At::Step(at + 1)),
                    At::Inner(at, inner) => match &r.plans[rank].steps[at] {
                        Step::Last { steps } => (&steps[inner], At::Inner(at, inner + 1)),
                        _ => continue,
                    },
                    At::Chunk(at, chunk, inner) => match &r.plans[rank].steps[at] {
                        Step::Claim { chunks } => (&chunks[chunk][inner], At::Chunk(at, chunk, inner + 1)),
                        _ => continue,
                    },
                    _ => continue,
                };
                let mut new = state.clone();
                new.at[i] = next;
                let by = (run, rank);
                let step = if let Step::Each { step, .. } = step { step } else { step };
                match *step {
                    Step::Get { from, src, dst } => self.copy(&mut new, by, (from, src), (rank, dst))?,
                    Step::Copy { src, dst } => self.copy(&mut new, by, (rank, src), (rank, dst))?,
                    Step::Carry { from, src, to, dst } => self.copy(&mut new, by, (from, src), (to, dst))?,
                    Step::Send { to, ref src } => {
                        let mut data = vec![];
                        for &span in src {
                            data.extend(self.read(&new, by, rank, span)?);
                        }
                        let mail = new.mail.entry((hall, rank, r.members[to])).or_default();
                        mail.push(data);
                        if mail.len() > self.depth {
                            continue;
                        }
                    }
                    Step::Take { from, ref dst } => {
                        let mail = new.mail.entry((hall, from, r.members[rank])).or_default();
                        if mail.is_empty() {
                            continue;
                        }
                        let mut data = &mail.remove(0)[..];
                        for &span in dst {
                            let (part, rest) = data.split_at_checked(span.len).ok_or("mail that is too short")?;
                            self.write(&mut new, by, rank, span, part)?;
                            data = rest;
                        }
                    }
                    Step::Combine { from, src, dst, before } => {
                        let data = self.read(&new, by, from, src)?;
                        self.combine(&mut new, by, dst, before, &data)?;
                    }
                    Step::TakeCombine { from, dst, before } => {
                        let mail = new.mail.entry((hall, from, r.members[rank])).or_default();
                        if mail.is_empty() {
                            continue;
                        }
                        let data = mail.remove(0);
                        self.combine(&mut new, by, dst, before, &data)?;
                    }
                    Step::Claim { ref chunks } => {
                        let before = self.before(run, rank, |totals| totals.claims);
                        let (Some(chunk), At::Step(at)) = (state.claimed[hall].checked_sub(before), state.at[i]) else {
                            continue;
                        };
                        if chunk < chunks.len() {
                            new.claimed[hall] += 1;
                            new.at[i] = At::Chunk(at, chunk, 0);
                        }
                    }
                    Step::Last { .. } => {
                        new.arrived[hall * self.width + rank] += 1;
                        if self.arrived(&new, run, self.before(run, rank, |totals| totals.arrivals) + 1) {
                            let At::Step(at) = state.at[i] else { continue };
                            new.at[i] = At::Inner(at, 0);
                        }
                    }
                    _ => continue,
                }
                list.push(new);
            }
        }
        for (&(run, rank, step), put) in &state.puts {
            let Step::Put { to, src, dst } = self.runs[run].plans[rank].steps[step] else { continue };
            let mut new = state.clone();
            let later = match put {
                Flight::Made => Flight::Read(self.read(state, (run, rank), rank, src)?),
                Flight::Read(data) => {
                    self.write(&mut new, (run, rank), to, dst, data)?;
                    Flight::Arrived
                }
                Flight::Arrived => continue,
            };
            new.puts.insert((run, rank, step), later);
            list.push(new);
        }
        Ok(list)
    }

    fn copy(
        &self,
        state: &mut State,
        by: (usize, usize),
        (from, src): (usize, Span),
        (to, dst): (usize, Span),
    ) -> Result<(), String> {
        let data = self.read(state, by, from, src)?;
        self.write(state, by, to, dst, &data)
    }

    /// Of two values, the one that is combined comes first if it is `before`.
    fn combine(
        &self,
        state: &mut State,
        by: (usize, usize),
        dst: Span,
        before: bool,
        data: &[Value],
    ) -> Result<(), String> {
        let mut all = self.read(state, by, by.1, dst)?;
        if all.len() != data.len() {
            return Err(format!("{by:?} (collective, rank) combines {} with {dst:?}", data.len()));
        }
        for (a, &b) in all.iter_mut().zip(data) {
            *a = if before { self.values.combine(b, *a) } else { self.values.combine(*a, b) };
        }
        self.write(state, by, by.1, dst, &all)
    }

    fn read(&self, state: &State, by: (usize, usize), owner: usize, span: Span) -> Result<Vec<Value>, String> {
        self.touch(state, by, owner, span)?;
        let data = state.memory[self.cells.range(by.0, owner, span)].to_vec();
        match data.contains(&NOTHING) {
            true => {
                Err(format!("{by:?} (collective, rank) reads {span:?} of rank {owner}, where nothing has been written"))
            }
            false => Ok(data),
        }
    }

    fn write(
        &self,
        state: &mut State,
        by: (usize, usize),
        owner: usize,
        span: Span,
        data: &[Value],
    ) -> Result<(), String> {
        self.touch(state, by, owner, span)?;
        state.memory[self.cells.range(by.0, owner, span)].copy_from_slice(data);
        Ok(())
    }

    /// May it be touched now?
    fn touch(&self, state: &State, (run, by): (usize, usize), owner: usize, span: Span) -> Result<(), String> {
        let shape = &self.runs[run].shape;
        let has = self.cells.size(run, owner, span.buffer);
        if span.at + span.len > has {
            return Err(format!(
                "rank {by} touches {span:?} of rank {owner} in collective {run}, which has {has} only"
            ));
        }
        let kind = match span.buffer {
            Buffer::Source => shape.source,
            Buffer::Dest => shape.dest,
            Buffer::Scratch => return Ok(()),
        };
        let ranks = &state.at[run * self.width..run * self.width + shape.ranks];
        let entered = |r: usize| ranks[r] != At::Outside;
        let returned = |r: usize| ranks[r] == At::Returned;
        let both = (shape.source, shape.dest) == (Kind::Private, Kind::Private);
        let (enter, leave) = if both { (In::My, Out::My) } else { shape.sync };
        let early = match enter {
            In::No => false,
            In::My => !entered(owner),
            In::All => !(0..shape.ranks).all(entered),
        };
        let late = match leave {
            Out::No => (0..shape.ranks).all(returned),
            Out::My => returned(owner),
            Out::All => (0..shape.ranks).any(returned),
        };
        let foreign = kind == Kind::Private && owner != by;
        match early || late || foreign {
            true => Err(format!(
                "rank {by} touches {span:?} of rank {owner} in collective {run}: early {early}, late {late}, foreign {foreign}"
            )),
            false => Ok(()),
        }
    }

    /// Nothing more happens.
    fn end(&self, state: &State) -> Result<(), String> {
        if let Some(i) = state.at.iter().position(|&at| at != At::Returned) {
            return Err(format!("rank {} never ends collective {}", i % self.width, i / self.width));
        }
        self.values.check(self.runs, &self.cells, &state.memory)
    }
}
