//! Blocks of different lengths: their plans are run in random orders, and where all are equally long the checker has its say.

use partage_plan::coll::model::{self, Run, Verdict};
use partage_plan::coll::{Buffer, Flow, In, Kind, Op, Out, Plan, Ragged, Scheme, Shape, Signal, Span, Step, Way};

/// What all ranks have while they run their plans, one step of somebody's at a time.
struct Ranks {
    memory: Vec<[Vec<u16>; 3]>,
    signals: Vec<usize>,
    at: Vec<usize>,
}

impl Ranks {
    fn bytes(&mut self, rank: usize, span: Span) -> &mut [u16] {
        let which = match span.buffer {
            Buffer::Source => 0,
            Buffer::Dest => 1,
            Buffer::Scratch => 2,
        };
        &mut self.memory[rank][which][span.at..span.at + span.len]
    }

    fn signal(&mut self, from: usize, to: usize, signal: Signal) -> &mut usize {
        let ranks = self.at.len();
        &mut self.signals[(from * ranks + to) * 3 + signal as usize]
    }

    /// Does the next step of a rank, if it can.
    fn step(&mut self, rank: usize, plan: &Plan) -> bool {
        let Some(step) = plan.steps.get(self.at[rank]) else { return false };
        match *step {
            Step::Copy { src, dst } => {
                let some = self.bytes(rank, src).to_vec();
                self.bytes(rank, dst).copy_from_slice(&some);
            }
            Step::Get { from, src, dst } => {
                let some = self.bytes(from, src).to_vec();
                self.bytes(rank, dst).copy_from_slice(&some);
            }
            Step::Signal { to, signal } => *self.signal(rank, to, signal) += 1,
            Step::Wait { from, signal, n } if *self.signal(from, rank, signal) < n => return false,
            Step::Wait { .. } => {}
            ref other => panic!("{other:?}"),
        }
        self.at[rank] += 1;
        true
    }
}

/// Block `j` of rank `i` as it is known everywhere.
fn block(i: usize, j: usize, len: usize) -> impl Iterator<Item = u16> {
    (0..len).map(move |k| (i * 4001 + j * 257 + k) as u16)
}

fn next(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

/// All have what was sent to them, in whatever order steps are made; and all signals were waited for.
#[test]
fn blocks_of_all_lengths_arrive() {
    let mut seed = 5;
    for case in 0..600 {
        let ranks = 1 + next(&mut seed) % 6;
        let room = ranks + next(&mut seed) % 300;
        let same = case % 3 == 0;
        // By sender and receiver.
        let mut lens = vec![vec![0; ranks]; ranks];
        for row in &mut lens {
            let one = next(&mut seed) % 200;
            row.iter_mut().for_each(|len| {
                *len = if same { one } else { [0, 1, one, next(&mut seed) % 900][next(&mut seed) % 4] }
            });
        }
        let come = |me: usize| (0..ranks).map(|r| lens[r][me]).collect::<Vec<_>>();
        let plans: Vec<Plan> =
            (0..ranks).map(|me| Ragged { me, sent: lens[me].clone(), come: come(me), same, room }.plan()).collect();
        let source = |me: usize| match same {
            true => block(me, 0, lens[me][0]).collect::<Vec<_>>(),
            false => (0..ranks).flat_map(|to| block(me, to, lens[me][to])).collect(),
        };
        let memory = (0..ranks).map(|me| [source(me), vec![0; come(me).iter().sum()], vec![0; room]]).collect();
        let mut all = Ranks { memory, signals: vec![0; ranks * ranks * 3], at: vec![0; ranks] };
        while all.at.iter().zip(&plans).any(|(&at, plan)| at < plan.steps.len()) {
            let first = next(&mut seed) % ranks;
            let went = (0..ranks).map(|k| (first + k) % ranks).any(|rank| all.step(rank, &plans[rank]));
            assert!(went, "all wait: {lens:?}");
        }
        for (me, plan) in plans.iter().enumerate() {
            let expected: Vec<u16> =
                (0..ranks).flat_map(|r| block(r, if same { 0 } else { me }, lens[r][me])).collect();
            assert_eq!(all.memory[me][1], expected, "rank {me}: {lens:?}");
            for &(from, signal, n) in &plan.totals.signals {
                assert_eq!(*all.signal(from, me, signal), n);
                *all.signal(from, me, signal) = 0;
            }
        }
        assert!(all.signals.iter().all(|&n| n == 0), "signals that nobody counts");
    }
}

/// Where all blocks are equally long they are those of the plain operation, which the checker knows.
#[test]
fn equal_blocks_are_checked() {
    let (source, dest) = (Kind::Private, Kind::Private);
    for ranks in 1..=5 {
        for op in [Op::Exchange, Op::GatherAll] {
            for (len, room) in [(3, 3 * ranks), (7, 2 * ranks), (5, ranks)] {
                let same = op == Op::GatherAll;
                let shape = Shape {
                    op: op.clone(),
                    flow: Flow::Flat,
                    way: Way::Pull,
                    scheme: Scheme::Fused,
                    sync: (In::My, Out::My),
                    ranks,
                    nodes: None,
                    len,
                    stride: len,
                    source,
                    dest,
                    in_place: false,
                    grain: 1,
                    ordered: false,
                };
                let plan = |me| Ragged { me, sent: vec![len; ranks], come: vec![len; ranks], same, room }.plan();
                let like = |context| Run::new(&shape, context).expect("it has plans");
                let run = |context| Run { plans: (0..ranks).map(plan).collect(), ..like(context) };
                let runs = [run(0), run(1), run(0)];
                assert_eq!(model::check(&runs), Ok(()), "{op:?} of {ranks} ranks");
                if ranks < 4 {
                    for wait in model::waits(&runs[..1]) {
                        assert_ne!(model::without(&runs, wait), Verdict::Idle, "{op:?} of {ranks} ranks: {wait:?}");
                    }
                }
            }
        }
    }
}
