//! How long a collective takes on a machine of which a few numbers are known: to compare algorithms on more ranks than
//! there are.
//!
//! A message costs what LogGP says: its sender is busy for the overhead and may send the next one after the gap, or when
//! all bytes have left; they arrive after the latency; its receiver is busy for the overhead. Between nodes a get is there and
//! back, with the overhead each way; inside a node it is a load, which takes the latency and the overhead once. An arrival is seen by all after the latency.
//!
//! Not contained: messages that get in each other's way, caches, letters that wait for the one before to be taken.
//!
//! Source: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: Incorporating Long Messages into the LogP Model", 1995.

use std::collections::{HashMap, VecDeque};

use crate::coll::{Plan, Posting, Shape, Signal, Step};

/// What messages between two ranks cost, in any unit of time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// From one to the other.
    pub latency: f64,
    /// For each end of a message.
    pub overhead: f64,
    /// Between two messages of one sender.
    pub gap: f64,
    /// For each byte.
    pub byte: f64,
}

/// What a machine is like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Inside a node; everywhere if shapes do not say on which nodes ranks are.
    pub near: Link,
    /// Between nodes.
    pub far: Link,
    /// To copy a byte in one's own memory.
    pub copy: f64,
    /// To combine a byte with one of one's own.
    pub combine: f64,
}

/// When the last rank returns, if all enter at once. Nothing if there are no plans.
///
/// ```
/// use partage_plan::coll::model::{cost, Link, Machine};
/// use partage_plan::coll::{Flow, In, Kind, Op, Out, Scheme, Shape, Way};
///
/// let near = Link { latency: 2.0, overhead: 1.0, gap: 3.0, byte: 0.5 };
/// let machine = Machine { near, far: near, copy: 0.0, combine: 0.0 };
/// let (op, way, scheme, sync) = (Op::Broadcast { root: 0, pieces: 1 }, Way::Push, Scheme::Fused, (In::No, Out::My));
/// let (nodes, source, dest, in_place) = (None, Kind::Shared, Kind::Shared, false);
/// let (flow, ranks, len, stride, grain, ordered) = (Flow::Flat, 2, 8, 8, 1, false);
/// let flat = Shape { op, flow, way, scheme, sync, ranks, nodes, len, stride, source, dest, in_place, grain, ordered };
/// assert_eq!(cost(&flat, &machine), Some(1.0 + 8.0 * 0.5 + 2.0 + 1.0));
///
/// let many = Shape { ranks: 1000, ..flat };
/// let tree = Shape { flow: Flow::Tree(2), ..many.clone() };
/// assert!(cost(&tree, &machine) < cost(&many, &machine));
/// ```
pub fn cost(shape: &Shape, machine: &Machine) -> Option<f64> {
    let plans = (0..shape.ranks).map(|me| shape.plan(me)).collect::<Option<Vec<Plan>>>()?;
    let mut world = World {
        shape,
        machine,
        ranks: vec![Rank::default(); shape.ranks],
        signals: HashMap::new(),
        mail: HashMap::new(),
        arrivals: vec![],
        released: None,
        ready: (0..shape.ranks).collect(),
    };
    while let Some(rank) = world.ready.pop_front() {
        while let Some(step) = plans[rank].steps.get(world.ranks[rank].at) {
            if !world.step(rank, step) {
                break;
            }
            world.ranks[rank].at += 1;
        }
    }
    // What is sent has left when its plan ends.
    Some(world.ranks.iter().map(|r| r.clock.max(r.free)).fold(0.0, f64::max))
}

#[derive(Clone, Default)]
struct Rank {
    /// Its next step.
    at: usize,
    clock: f64,
    /// When it may send again.
    free: f64,
    arrivals: usize,
    /// When what it has posted for all arrives.
    posted: Option<f64>,
}

struct World<'a> {
    shape: &'a Shape,
    machine: &'a Machine,
    ranks: Vec<Rank>,
    /// When each took effect: by sender, receiver and kind.
    signals: HashMap<(usize, usize, Signal), Vec<f64>>,
    /// By sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<f64>>,
    /// Of the first, second … arrivals: how many, and when the last.
    arrivals: Vec<(usize, f64)>,
    released: Option<f64>,
    /// Ranks that may have something to do.
    ready: VecDeque<usize>,
}

impl World<'_> {
    /// Does a step of a rank, if it can be done now.
    fn step(&mut self, me: usize, step: &Step) -> bool {
        match *step {
            Step::Put { to, src, .. } => self.signal(me, to, Signal::Data, src.len),
            Step::Signal { to, signal } => self.signal(me, to, signal, 0),
            Step::Get { .. } | Step::Copy { .. } | Step::Carry { .. } | Step::Each { .. } | Step::Combine { .. } => {
                self.ranks[me].clock += self.copied(me, step);
            }
            Step::Send { to, ref src } => {
                let len = src.iter().map(|span| span.len).sum();
                // What is on the board once is there for all.
                let at = match self.ranks[me].posted {
                    Some(at) => at,
                    None => self.send(me, to, len),
                };
                if self.shape.posting() == Some(Posting::OfSender) {
                    self.ranks[me].posted = Some(at);
                }
                self.mail.entry((me, to)).or_default().push_back(at);
                self.ready.push_back(to);
            }
            Step::Take { from, .. } => match self.mail.entry((from, me)).or_default().pop_front() {
                Some(at) => self.receive(me, from, at),
                None => return false,
            },
            Step::TakeCombine { from, dst, .. } => match self.mail.entry((from, me)).or_default().pop_front() {
                Some(at) => {
                    self.receive(me, from, at);
                    self.ranks[me].clock += dst.len as f64 * self.machine.combine;
                }
                None => return false,
            },
            Step::Wait { from, signal, n } => match self.signals.get(&(from, me, signal)).and_then(|s| s.get(n - 1)) {
                Some(&at) => self.receive(me, from, at),
                None => return false,
            },
            Step::Arrive => _ = self.arrive(me),
            Step::Last { ref steps } => {
                if self.arrive(me) {
                    self.ranks[me].clock = self.arrivals[0].1 + self.widest().latency;
                    steps.iter().for_each(|step| _ = self.step(me, step));
                }
            }
            // Ranks take turns.
            Step::Claim { ref chunks } => {
                let mine = chunks.iter().skip(me).step_by(self.shape.ranks);
                mine.flatten().for_each(|step| _ = self.step(me, step));
            }
            Step::Meet { n } => match self.arrivals.get(n - 1) {
                Some(&(count, at)) if count == self.shape.ranks => self.hear(me, at + self.widest().latency),
                _ => return false,
            },
            Step::Release => {
                self.released = Some(self.ranks[me].clock);
                self.ready.extend(0..self.shape.ranks);
            }
            Step::Released => match self.released {
                Some(at) => self.hear(me, at + self.widest().latency),
                None => return false,
            },
        }
        true
    }

    fn is_near(&self, a: usize, b: usize) -> bool {
        self.shape.nodes.as_ref().is_none_or(|nodes| nodes.of(a) == nodes.of(b))
    }

    fn link(&self, a: usize, b: usize) -> Link {
        if self.is_near(a, b) { self.machine.near } else { self.machine.far }
    }

    /// What all hear of.
    fn widest(&self) -> Link {
        let one = self.shape.nodes.as_ref().is_none_or(|nodes| nodes.count() < 2);
        if one { self.machine.near } else { self.machine.far }
    }

    /// When it arrives.
    fn send(&mut self, me: usize, to: usize, len: usize) -> f64 {
        let link = self.link(me, to);
        let rank = &mut self.ranks[me];
        let bytes = len as f64 * link.byte;
        let start = rank.clock.max(rank.free);
        rank.clock = start + link.overhead;
        rank.free = start + link.gap.max(link.overhead + bytes);
        rank.clock + bytes + link.latency
    }

    fn signal(&mut self, me: usize, to: usize, signal: Signal, len: usize) {
        let at = self.send(me, to, len);
        let made = self.signals.entry((me, to, signal)).or_default();
        // They take effect in order.
        let before = made.last().copied().unwrap_or(0.0);
        made.push(at.max(before));
        self.ready.push_back(to);
    }

    fn receive(&mut self, me: usize, from: usize, at: f64) {
        self.hear(me, at);
        self.ranks[me].clock += self.link(from, me).overhead;
    }

    fn hear(&mut self, me: usize, at: f64) {
        self.ranks[me].clock = self.ranks[me].clock.max(at);
    }

    /// Whether it is the last.
    fn arrive(&mut self, me: usize) -> bool {
        self.ranks[me].clock += self.widest().overhead;
        let (n, at) = (self.ranks[me].arrivals, self.ranks[me].clock);
        self.ranks[me].arrivals += 1;
        if self.arrivals.len() == n {
            self.arrivals.push((0, 0.0));
        }
        let (count, last) = &mut self.arrivals[n];
        (*count, *last) = (*count + 1, last.max(at));
        let all = *count == self.shape.ranks;
        if all {
            self.ready.extend(0..self.shape.ranks);
        }
        all
    }

    /// How long a copy takes, or combining.
    fn copied(&self, me: usize, step: &Step) -> f64 {
        let there = |rank: usize, len: usize| {
            let link = self.link(me, rank);
            let ways = if self.is_near(me, rank) { 1.0 } else { 2.0 };
            if rank == me { 0.0 } else { ways * (link.latency + link.overhead) + len as f64 * link.byte }
        };
        match *step {
            Step::Get { from, src, .. } => there(from, src.len),
            Step::Combine { from, src, .. } => there(from, src.len) + src.len as f64 * self.machine.combine,
            Step::Carry { from, src, to, .. } if (from, to) != (me, me) => there(from, src.len) + there(to, src.len),
            Step::Carry { src, .. } | Step::Copy { src, .. } => src.len as f64 * self.machine.copy,
            Step::Each { len, ref step } => match **step {
                Step::Get { from, src, .. } => src.len.div_ceil(len) as f64 * there(from, len),
                Step::Carry { to, src, .. } => src.len.div_ceil(len) as f64 * there(to, len),
                _ => self.copied(me, step),
            },
            _ => 0.0,
        }
    }
}
