//! What happens before what. See [the module above](super).

use std::fmt::Write as _;
use std::ops::Range;

use super::calls::Calls;
use super::cells::Cells;
use super::values::{NOTHING, Value, Values};
use super::{Place, Run, claims};
use crate::coll::{Buffer, In, Kind, Out, Plan, Shape, Signal, Span, Step};

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Enter,
    /// A step, or what becomes of it later.
    Step(usize),
    Return,
}

struct Node {
    run: usize,
    rank: usize,
    what: What,
    /// What happens before, directly.
    after: Vec<usize>,
}

/// Data are read into a message or written from it.
#[derive(Clone, Copy)]
struct Effect {
    node: usize,
    write: bool,
    /// What is written is combined with what is there: before it, or after it.
    combine: Option<bool>,
    message: usize,
    owner: usize,
    span: Span,
}

/// Signals or arrivals: in their order, the collective of each, its kind, and the node in which it takes effect.
type Made = Vec<(usize, Option<Signal>, usize)>;

pub struct Graph<'a> {
    runs: &'a [Run],
    /// How many members a team has at most.
    width: usize,
    nodes: Vec<Node>,
    /// In an order in which they may happen.
    effects: Vec<Effect>,
    /// For each node the set of those that happen before it.
    before: Vec<u64>,
    /// The node of the wait that is left out, and those that it would wait for.
    left_out: Option<(usize, Vec<usize>)>,
}

/// While the nodes are made.
struct Draft<'d> {
    runs: &'d [Run],
    calls: &'d Calls,
    nodes: Vec<Node>,
    /// A step's read comes before its write.
    effects: Vec<Effect>,
    messages: usize,
    /// By pair and kind.
    signals: Vec<Made>,
    /// By pair: the node and the first message.
    mail: Vec<Vec<(usize, usize)>>,
    /// By pair: the node, and its effects.
    taken: Vec<Vec<(usize, Range<usize>)>>,
    /// By hall and member.
    arrivals: Vec<Made>,
    /// By collective.
    releases: Vec<Option<usize>>,
    waits: Vec<(usize, Place, Step)>,
    lasts: Vec<(Place, usize)>,
    /// Where the rank ended what had its context before.
    ended: Option<usize>,
    /// What comes after what when nobody knows more than it is told.
    told: Vec<(usize, usize)>,
}

impl<'a> Graph<'a> {
    /// The graph where `choice[i]` is the last to arrive in the `i`-th collective, or says who claims what.
    pub fn new(runs: &'a [Run], choice: &[usize], without: Option<Place>) -> Result<Graph<'a>, String> {
        let calls = Calls::new(runs);
        let halls = calls.halls.iter().max().map_or(0, |most| most + 1);
        let members = halls * calls.width;
        let mut draft = Draft {
            runs,
            calls: &calls,
            nodes: vec![],
            effects: vec![],
            messages: 0,
            signals: vec![vec![]; members * calls.ranks() * 3],
            mail: vec![vec![]; members * calls.ranks()],
            taken: vec![vec![]; members * calls.ranks()],
            arrivals: vec![vec![]; members],
            releases: vec![None; runs.len()],
            waits: vec![],
            lasts: vec![],
            ended: None,
            told: vec![],
        };
        for order in &calls.orders {
            // By context, by team, and of what blocks.
            let mut ended: Vec<Option<usize>> = vec![None; runs.len()];
            let mut entered: Vec<Option<usize>> = vec![None; runs.len()];
            let mut returned: Option<usize> = None;
            for &(run, rank) in order {
                let (r, context, team) = (&runs[run], calls.contexts[run], calls.teams[run]);
                let after = [entered[team], ended[context], returned].into_iter().flatten().collect();
                let enter = draft.node(run, rank, What::Enter, after);
                entered[team] = Some(enter);
                draft.ended = ended[context];
                let mut reads = vec![];
                let mut at = enter;
                let steps = r.plans[rank].steps.iter();
                for (i, step) in steps.enumerate() {
                    let place = Place { run, rank, step: i };
                    at = draft.step(place, step, at, &mut reads);
                    if let (Step::Last { steps }, true) = (step, choice[run] == rank) {
                        draft.lasts.push((place, at));
                        for inner in steps {
                            at = draft.step(place, inner, at, &mut reads);
                        }
                    }
                    if let Step::Claim { chunks } = step {
                        let mine = |c: usize| claims(choice[run], r.shape.ranks, rank, c);
                        let claimed = chunks.iter().enumerate().filter(|&(c, _)| mine(c));
                        for inner in claimed.flat_map(|(_, steps)| steps) {
                            at = draft.step(place, inner, at, &mut reads);
                        }
                    }
                }
                reads.push(at);
                let end = draft.node(run, rank, What::Return, reads);
                ended[context] = Some(end);
                returned = if r.blocking { Some(end) } else { returned };
            }
        }
        draft.join(runs, without)
    }

    /// Whatever matters and happens before what the wait that is left out waits for: does it happen before that wait
    /// all the same? What matters is touching memory, and entering where `In` asks for it.
    pub fn implied(&self) -> bool {
        let Some((wait, made)) = &self.left_out else { return false };
        let asks = |n: &Node| n.what == What::Enter && self.runs[n.run].shape.sync.0 != In::No;
        let entering = (0..self.nodes.len()).filter(|&n| asks(&self.nodes[n]));
        let mut matters = entering.chain(self.effects.iter().map(|e| e.node));
        matters.all(|n| self.is_before(n, *wait) || !made.iter().any(|&m| n == m || self.is_before(n, m)))
    }

    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.check_sync()?;
        self.check_order()?;
        self.check_result()
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        let words = self.nodes.len().div_ceil(64);
        self.before[b * words + a / 64] >> (a % 64) & 1 == 1
    }

    fn check_sync(&self) -> Result<(), String> {
        let width = self.width;
        let mut ends = vec![(0, 0); width * self.runs.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            match n.what {
                What::Enter => ends[n.run * width + n.rank].0 = i,
                What::Return => ends[n.run * width + n.rank].1 = i,
                What::Step(_) => {}
            }
        }
        for &e in &self.effects {
            let n = e.node;
            let run = self.nodes[n].run;
            let shape = &self.runs[run].shape;
            let ranks = shape.ranks;
            let ends = &ends[run * width..run * width + ranks];
            let kind = match e.span.buffer {
                Buffer::Source => shape.source,
                Buffer::Dest => shape.dest,
                Buffer::Scratch => continue,
            };
            let me = self.nodes[n].rank;
            if kind == Kind::Private && me != e.owner {
                return Err(self.at(n, &format!("touches {}, which is private", place(e))));
            }
            let both = (shape.source, shape.dest) == (Kind::Private, Kind::Private);
            let (enter, leave) = if both { (In::My, Out::My) } else { shape.sync };
            let missing = (0..ranks).find(|&r| match enter {
                In::No => false,
                In::My => r == e.owner && !self.is_before(ends[r].0, n),
                In::All => !self.is_before(ends[r].0, n),
            });
            if let Some(r) = missing {
                return Err(self.at(
                    n,
                    &format!("touches {} when rank {r} may not have entered: a wait for it is missing", place(e)),
                ));
            }
            let missing = (0..ranks).find(|&r| match leave {
                Out::No => false,
                Out::My => r == e.owner && !self.is_before(n, ends[r].1),
                Out::All => !self.is_before(n, ends[r].1),
            });
            if let Some(r) = missing {
                return Err(self.at(
                    n,
                    &format!("touches {} when rank {r} may have returned: rank {r} does not wait for it", place(e)),
                ));
            }
            if !ends.iter().any(|&(_, end)| self.is_before(n, end)) {
                return Err(
                    self.at(n, &format!("touches {} when all may have returned: nobody waits for it", place(e)))
                );
            }
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), String> {
        let cells = Cells::new(self.runs);
        let mut touches = vec![vec![]; cells.total()];
        for (i, &e) in self.effects.iter().enumerate() {
            let run = self.nodes[e.node].run;
            let has = cells.size(run, e.owner, e.span.buffer);
            if e.span.at + e.span.len > has {
                return Err(self.at(e.node, &format!("touches {}, of which it has {has} only", place(e))));
            }
            touches[cells.range(run, e.owner, e.span)].iter_mut().for_each(|list| list.push(i));
        }
        for list in &touches {
            for &w in list.iter().filter(|&&w| self.effects[w].write) {
                let write = self.effects[w];
                for &i in list.iter().filter(|&&i| i != w) {
                    let e = self.effects[i];
                    if e.node == write.node
                        || !(self.is_before(e.node, write.node) || self.is_before(write.node, e.node))
                    {
                        let what = if e.write { "writes" } else { "reads" };
                        let other = self.at(write.node, &format!("writes {}", place(write)));
                        return Err(self
                            .at(e.node, &format!("{what} {}, before or after {other}: a wait is missing", place(e))));
                    }
                }
            }
        }
        Ok(())
    }

    /// All conflicts are ordered, so any one order shows what comes out in every one.
    fn check_result(&self) -> Result<(), String> {
        let (cells, values) = (Cells::new(self.runs), Values::new(self.runs));
        let mut memory = values.first(self.runs, &cells);
        let mut messages = vec![vec![]; self.effects.len()];
        for &e in &self.effects {
            let run = self.nodes[e.node].run;
            let at = &mut memory[cells.range(run, e.owner, e.span)];
            let data: &mut Vec<Value> = &mut messages[e.message];
            let grain = self.runs[run].shape.grain;
            match e.write {
                false => *data = at.to_vec(),
                true if data.len() != at.len() => {
                    return Err(self.at(e.node, &format!("writes {} from {} that were read", place(e), data.len())));
                }
                true if e.combine.is_some() && !(e.span.at.is_multiple_of(grain) && at.len().is_multiple_of(grain)) => {
                    return Err(self.at(e.node, &format!("writes {}, which cuts elements of {grain}", place(e))));
                }
                true => {
                    for (cell, &new) in at.iter_mut().zip(&*data) {
                        *cell = match e.combine {
                            Some(true) => values.combine(new, *cell),
                            Some(false) => values.combine(*cell, new),
                            None => new,
                        };
                    }
                }
            }
            if at.contains(&NOTHING) {
                let words = format!("touches {}, where nothing has been written", place(e));
                return Err(self.at(e.node, &words));
            }
        }
        values.check(self.runs, &cells, &memory)
    }

    fn at(&self, node: usize, words: &str) -> String {
        let n = &self.nodes[node];
        let What::Step(step) = n.what else { return words.to_string() };
        describe(self.runs, Place { run: n.run, rank: n.rank, step }, words)
    }
}

impl Draft<'_> {
    fn node(&mut self, run: usize, rank: usize, what: What, after: Vec<usize>) -> usize {
        self.nodes.push(Node { run, rank, what, after });
        self.nodes.len() - 1
    }

    /// The nodes of one step after `at`; the one that the rank's next step comes after.
    fn step(&mut self, place: Place, step: &Step, at: usize, reads: &mut Vec<usize>) -> usize {
        let Place { run, rank, step: i } = place;
        let what = What::Step(i);
        let node = self.node(run, rank, what, vec![at]);
        match *step {
            Step::Get { from, src, dst } => self.copied(node, (from, src), (rank, dst)),
            Step::Copy { src, dst } => self.copied(node, (rank, src), (rank, dst)),
            Step::Carry { from, src, to, dst } => self.copied(node, (from, src), (to, dst)),
            Step::Each { ref step, .. } => match **step {
                Step::Get { from, src, dst } => self.copied(node, (from, src), (rank, dst)),
                Step::Carry { from, src, to, dst } => self.copied(node, (from, src), (to, dst)),
                _ => {}
            },
            Step::Put { to, src, dst } => {
                let read = self.node(run, rank, what, vec![node]);
                let arrival = self.node(run, rank, what, vec![read]);
                self.effect(read, false, rank, src);
                self.effect(arrival, true, to, dst);
                self.messages += 1;
                reads.push(read);
                self.signal(place, to, Signal::Data, arrival);
            }
            Step::Signal { to, signal } => self.signal(place, to, signal, node),
            Step::Send { to, ref src } => {
                let pair = self.pair(run, rank, to);
                self.mail[pair].push((node, self.messages));
                for &src in src {
                    self.effect(node, false, rank, src);
                    self.messages += 1;
                }
            }
            Step::Take { from, ref dst } => {
                let pair = self.pair(run, from, rank);
                let first = self.effects.len();
                dst.iter().for_each(|&dst| self.effect(node, true, rank, dst));
                self.taken[pair].push((node, first..self.effects.len()));
            }
            Step::Combine { from, src, dst, before } => {
                self.effect(node, false, from, src);
                self.combined(node, rank, dst, before);
                self.messages += 1;
            }
            Step::TakeCombine { from, dst, before } => {
                let pair = self.pair(run, from, rank);
                let first = self.effects.len();
                self.combined(node, rank, dst, before);
                self.taken[pair].push((node, first..first + 1));
            }
            Step::Arrive | Step::Last { .. } => {
                let slot = self.slot(run, rank);
                self.arrivals[slot].push((run, None, node));
            }
            Step::Claim { .. } => {}
            Step::Release => self.releases[run] = Some(node),
            Step::Wait { .. } | Step::Meet { .. } | Step::Released => self.waits.push((node, place, step.clone())),
        }
        node
    }

    /// Where a member is counted at the desk.
    fn slot(&self, run: usize, member: usize) -> usize {
        self.calls.halls[run] * self.calls.width + member
    }

    /// Where one member counts for another: at the other's rank, by its own number in the team.
    fn pair(&self, run: usize, from: usize, to: usize) -> usize {
        self.slot(run, from) * self.calls.ranks() + self.runs[run].members[to]
    }

    fn effect(&mut self, node: usize, write: bool, owner: usize, span: Span) {
        self.effects.push(Effect { node, write, combine: None, message: self.messages, owner, span });
    }

    fn combined(&mut self, node: usize, owner: usize, span: Span, before: bool) {
        let (message, combine) = (self.messages, Some(before));
        self.effects.push(Effect { node, write: true, combine, message, owner, span });
    }

    fn copied(&mut self, node: usize, (from, src): (usize, Span), (to, dst): (usize, Span)) {
        self.effect(node, false, from, src);
        self.effect(node, true, to, dst);
        self.messages += 1;
    }

    /// Signals of one rank to another take effect in order. That scratch is free is so when what had the context before has ended;
    /// who knows that need not be told.
    fn signal(&mut self, place: Place, to: usize, signal: Signal, after: usize) {
        let Place { run, rank, step } = place;
        let before = if signal == Signal::Free { Vec::from_iter(self.ended) } else { vec![after] };
        let node = self.node(run, rank, What::Step(step), before);
        self.told.push((node, after));
        let pair = self.pair(run, rank, to);
        let made = &mut self.signals[pair * 3 + signal.count()];
        self.nodes[node].after.extend(made.last().map(|&(.., before)| before));
        made.push((run, Some(signal), node));
    }

    /// Each count has one rank that makes it: else nobody could tell from it who has.
    fn check_makers(&self) -> Result<(), String> {
        let by = |node: usize| {
            let Node { run, rank, .. } = self.nodes[node];
            (run, self.runs[run].members[rank])
        };
        let made = self.signals.iter().chain(&self.arrivals).flat_map(|made| made.windows(2));
        let made = made.map(|two| (by(two[0].2), by(two[1].2)));
        let sent = self.mail.iter().flat_map(|sent| sent.windows(2)).map(|two| (by(two[0].0), by(two[1].0)));
        match made.chain(sent).find(|(a, b)| a.1 != b.1) {
            Some(((a, of_a), (b, of_b))) => {
                Err(format!("collectives {a} and {b} have one count for what ranks {of_a} and {of_b} of the job do"))
            }
            None => Ok(()),
        }
    }

    /// Another collective that is counted in the hall of this one, by others than this rank.
    fn stranger(&self, place: Place) -> Option<usize> {
        let (hall, rank) = (self.calls.halls[place.run], self.runs[place.run].members[place.rank]);
        let counted = |step: &Step| matches!(step, Step::Arrive | Step::Last { .. } | Step::Release);
        let strange = |&run: &usize| {
            let r = &self.runs[run];
            let here = self.calls.halls[run] == hall && !r.members.contains(&rank);
            here && r.plans.iter().flat_map(|p| &p.steps).any(counted)
        };
        (0..self.runs.len()).find(strange)
    }

    /// Adds what orders the ranks.
    fn join<'a>(mut self, runs: &'a [Run], without: Option<Place>) -> Result<Graph<'a>, String> {
        self.check_makers()?;
        let calls = self.calls;
        let mut left_out = None;
        // The n-th of those made in this collective, which come after those that the rank has counted before. It must be what is
        // waited for.
        let nth = |made: &Made, at: Place, signal: Option<Signal>, n: usize| {
            let rank = runs[at.run].members[at.rank];
            let before = made.iter().filter(|&&(r, ..)| calls.is_before(rank, r, at.run)).count();
            let nth = made.get(before + n - 1);
            nth.filter(|&&(r, s, _)| (r, s) == (at.run, signal)).map(|&(.., node)| node)
        };
        for (node, place, step) in std::mem::take(&mut self.waits) {
            let (run, ranks) = (place.run, runs[place.run].shape.ranks);
            let made: Option<Vec<usize>> = match step {
                Step::Wait { from, signal, n } => {
                    nth(&self.signals[self.pair(run, from, place.rank) * 3 + signal.count()], place, Some(signal), n)
                        .map(|node| vec![node])
                }
                _ if self.stranger(place).is_some() => {
                    return Err(describe(runs, place, "waits in a hall where another team's ranks are counted"));
                }
                Step::Meet { n } => {
                    (0..ranks).map(|r| nth(&self.arrivals[self.slot(run, r)], place, None, n)).collect()
                }
                // The last to arrive has done its steps, and the release, before.
                _ => self.releases[run].map(|node| vec![node]),
            };
            match made {
                None => return Err(describe(runs, place, "waits for what never comes")),
                Some(made) if without == Some(place) => left_out = Some((node, made)),
                Some(made) => self.nodes[node].after.extend(made),
            }
        }
        for (place, node) in std::mem::take(&mut self.lasts) {
            for r in 0..runs[place.run].shape.ranks {
                let other = nth(&self.arrivals[self.slot(place.run, r)], place, None, 1);
                self.nodes[node].after.extend(other.filter(|&other| other != node));
            }
        }
        let mut full = std::mem::take(&mut self.told);
        for (sent, taken) in self.mail.iter().zip(&self.taken) {
            for (i, (node, effects)) in taken.iter().enumerate() {
                let n = &self.nodes[*node];
                let Some(&(from, first)) = sent.get(i).filter(|(from, _)| self.nodes[*from].run == n.run) else {
                    return Err(format!("collective {}: rank {} takes what never comes", n.run, n.rank));
                };
                self.nodes[*node].after.push(from);
                self.effects[effects.clone()].iter_mut().enumerate().for_each(|(i, e)| e.message = first + i);
                full.extend(sent.get(i + 1).map(|&(next, _)| (next, *node)));
            }
        }
        // What mail orders by being full, and signals that are not needed, is for deadlocks only: safe is what is safe without.
        if let Err(stuck) = sort(&self.nodes, &full) {
            let n = &self.nodes[stuck];
            return Err(match n.what {
                What::Step(step) => {
                    describe(runs, Place { run: n.run, rank: n.rank, step }, "never happens: each waits for another")
                }
                _ => format!("collective {}: rank {} never ends", n.run, n.rank),
            });
        }
        let order = sort(&self.nodes, &[]).unwrap_or_default();
        let words = self.nodes.len().div_ceil(64);
        let mut before = vec![0_u64; self.nodes.len() * words];
        let mut set = vec![0_u64; words];
        for &n in &order {
            set.fill(0);
            for &a in &self.nodes[n].after {
                set.iter_mut().zip(&before[a * words..(a + 1) * words]).for_each(|(s, b)| *s |= b);
                set[a / 64] |= 1 << (a % 64);
            }
            before[n * words..(n + 1) * words].copy_from_slice(&set);
        }
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &n)| rank[n] = i);
        self.effects.sort_by_key(|e| rank[e.node]);
        Ok(Graph { runs, width: calls.width, nodes: self.nodes, effects: self.effects, before, left_out })
    }
}

/// An order in which the nodes may happen; else one that never does. An edge is (after, before).
fn sort(nodes: &[Node], more: &[(usize, usize)]) -> Result<Vec<usize>, usize> {
    let mut open: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
    let mut next: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        n.after.iter().for_each(|&a| next[a].push(i));
    }
    for &(after, before) in more {
        next[before].push(after);
        open[after] += 1;
    }
    let mut order: Vec<usize> = (0..nodes.len()).filter(|&n| open[n] == 0).collect();
    let mut done = 0;
    while let Some(&n) = order.get(done) {
        done += 1;
        for &after in &next[n] {
            open[after] -= 1;
            if open[after] == 0 {
                order.push(after);
            }
        }
    }
    match open.iter().position(|&o| o > 0) {
        Some(stuck) => Err(stuck),
        None => Ok(order),
    }
}

fn place(e: Effect) -> String {
    let Span { buffer, at, len } = e.span;
    format!("{buffer:?}[{at}..{}] of rank {}", at + len, e.owner)
}

fn describe(runs: &[Run], at: Place, words: &str) -> String {
    let Place { run, rank, step } = at;
    let Run { shape: Shape { op, .. }, plans, members, .. } = &runs[run];
    let plan: &Plan = &plans[rank];
    let mut line = format!("collective {run} ({op:?}), rank {rank}, step {step}");
    if members[rank] != rank {
        line = format!("collective {run} ({op:?}) of ranks {members:?} of the job, rank {rank}, step {step}");
    }
    match &plan.steps[step] {
        Step::Last { .. } => line += " (Last)",
        Step::Claim { .. } => line += " (Claim)",
        step => _ = write!(line, " ({step:?})"),
    }
    format!("{line} {words}")
}
