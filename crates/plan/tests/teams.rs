//! Plans of teams that overlap, by the checker, and the checker by teams that are in each other's way.
//!
//! `PARTAGE_DEEP=1` goes further: more combinations.

use std::collections::HashMap;
use std::sync::Arc;

use partage_plan::coll::model::{self, Run};
use partage_plan::coll::{Flow, In, Kind, Nodes, Op, OpKind, Out, Scheme, Shape, Way};

const WAYS: [Way; 4] = [Way::Push, Way::Pull, Way::Split, Way::Mail];
const KINDS: [Kind; 2] = [Kind::Shared, Kind::Private];
const INS: [In; 3] = [In::No, In::My, In::All];
const OUTS: [Out; 3] = [Out::No, Out::My, Out::All];

/// Teams of a job that overlap, their members in some order.
const JOBS: [&[&[usize]]; 5] = [
    &[&[0, 1, 2], &[2, 1, 3]],
    &[&[0, 1, 2], &[2, 0, 1]],
    &[&[3, 0, 1, 2], &[3, 1], &[2, 3, 0]],
    &[&[4, 2, 0], &[1, 2, 3, 4], &[0, 3]],
    &[&[0, 1], &[1, 2], &[2, 0]],
];

fn deep() -> bool {
    std::env::var_os("PARTAGE_DEEP").is_some()
}

/// All operations of `ranks`, with some root.
fn ops(ranks: usize) -> Vec<Op> {
    let last = ranks - 1;
    vec![
        Op::Broadcast { root: 0, pieces: 1 },
        Op::Broadcast { root: last, pieces: ranks },
        Op::Scatter { root: last },
        Op::Gather { root: 0 },
        Op::GatherAll,
        Op::Exchange,
        Op::Permute { to: (0..ranks).map(|r| (r + 1) % ranks).collect() },
        Op::Reduce { root: last },
        Op::AllReduce,
        Op::Prefix { exclusive: false },
        Op::Prefix { exclusive: true },
    ]
}

fn flows(ranks: usize) -> Vec<Flow> {
    vec![
        Flow::Flat,
        Flow::Pairwise,
        Flow::Xor,
        Flow::Tree(2),
        Flow::Tree(3),
        Flow::Chain(2),
        Flow::Ring,
        Flow::Dissemination,
        Flow::Doubling,
        Flow::Slices,
        Flow::Bruck,
        Flow::ScatterGather(2),
        Flow::Nodes(2, 1),
        Flow::Nodes(2, 2),
        Flow::Leaders,
        Flow::Leader(None),
        Flow::Leader(Some(ranks - 1)),
        Flow::Last,
        Flow::Coop(2),
    ]
}

/// All operations with all flows, whether they go together or not.
fn pairs(ranks: usize) -> impl Iterator<Item = (Op, Flow)> {
    ops(ranks).into_iter().flat_map(move |op| flows(ranks).into_iter().map(move |flow| (op.clone(), flow)))
}

/// Of shared buffers with four bytes in each block.
fn shape(op: Op, flow: Flow, way: Way, sync: (In, Out), ranks: usize) -> Shape {
    let grain = if op.combines() { 2 } else { 1 };
    Shape {
        op,
        flow,
        way,
        scheme: Scheme::Fused,
        sync,
        ranks,
        nodes: None,
        len: 4,
        stride: 4,
        source: Kind::Shared,
        dest: Kind::Shared,
        in_place: false,
        grain,
        ordered: false,
    }
}

/// One with this operation and flow, of which all else is drawn; nothing if none with plans is found.
fn draw(random: &mut Random, op: &Op, flow: Flow, members: &[usize]) -> Option<Shape> {
    let of: Vec<usize> = members.iter().map(|rank| rank / 2).collect();
    let nodes = matches!(flow, Flow::Nodes(..) | Flow::Leaders).then(|| Arc::new(Nodes::new(&of)));
    let mut one = || {
        // Who does it all passes no messages.
        let way = if flow.touches_all() { Way::Push } else { WAYS[random.below(4)] };
        let sync = (INS[random.below(3)], OUTS[random.below(3)]);
        Shape {
            nodes: nodes.clone(),
            source: KINDS[random.below(2)],
            dest: KINDS[random.below(2)],
            in_place: random.below(3) == 0,
            ordered: op.combines() && random.below(2) == 0,
            ..shape(op.clone(), flow, way, sync, members.len())
        }
    };
    (0..60).map(|_| one()).find(Shape::fits)
}

/// Any one that is the same whoever comes last.
fn any(random: &mut Random, members: &[usize]) -> Shape {
    let (ops, mut flows) = (ops(members.len()), flows(members.len()));
    flows.retain(|flow| !matches!(flow, Flow::Last | Flow::Coop(_)));
    loop {
        let (op, flow) = (&ops[random.below(ops.len())], flows[random.below(flows.len())]);
        if let Some(shape) = draw(random, op, flow, members) {
            return shape;
        }
    }
}

fn of_team(shape: &Shape, context: usize, team: usize, members: &[usize]) -> Run {
    Run::of_team(shape, context, team, members).unwrap_or_else(|| panic!("some ranks of {shape:?} have no plan"))
}

/// Three collectives of each team: in two contexts, those of the `of`-th in the first one of this shape.
fn in_flight(random: &mut Random, teams: &[&[usize]], of: usize, shape: &Shape) -> Vec<Run> {
    let mut list = vec![];
    for context in [0, 1, 0] {
        for (team, members) in teams.iter().enumerate() {
            let other = any(random, members);
            let shape = if team == of && context == 0 { shape } else { &other };
            list.push(of_team(shape, context, team, members));
        }
    }
    list
}

/// Each rank begins them in an order of its own, but those of a team as all do.
fn shuffle(random: &mut Random, runs: &mut [Run]) {
    let mut before: HashMap<(usize, usize), usize> = HashMap::new();
    for run in runs {
        for (turn, &rank) in run.turns.iter_mut().zip(&run.members) {
            let before = before.entry((rank, run.team)).or_default();
            *before += random.below(4);
            *turn = *before;
        }
    }
}

/// All are begun in the order of the list, and block.
fn block(runs: &mut [Run]) {
    for run in runs {
        run.blocking = true;
        run.turns.fill(0);
    }
}

#[track_caller]
fn check(runs: &[Run]) {
    if let Err(what) = model::check(runs) {
        panic!("{what}\n{runs:#?}");
    }
}

/// By the graph and by all states.
#[track_caller]
fn check_both(runs: &[Run]) {
    check(runs);
    let depths: &[usize] = if deep() { &[1, 9] } else { &[1] };
    for &depth in depths {
        if let Err(what) = model::explore(runs, depth) {
            panic!("{what}\n{runs:#?}");
        }
    }
}

/// Whether ranks start them in whatever order, or call them in one order, or both.
#[test]
fn teams_that_overlap_are_right() {
    let mut random = Random(88172645463325252);
    let (mut count, mut seen) = (0, vec![]);
    for teams in JOBS {
        for (of, members) in teams.iter().enumerate() {
            for (op, flow) in pairs(members.len()) {
                // Of two collectives, each claim of each may be another rank's.
                let many = matches!(flow, Flow::Coop(_));
                for _ in 0..if deep() && !many { 8 } else { 1 } {
                    let Some(shape) = draw(&mut random, &op, flow, members) else { break };
                    let mut runs = in_flight(&mut random, teams, of, &shape);
                    shuffle(&mut random, &mut runs);
                    check(&runs);
                    seen.push(op.kind());
                    count += 1;
                    if many && !deep() {
                        continue;
                    }
                    block(&mut runs);
                    check(&runs);
                    // Some start those of one team in between, some in the end.
                    for run in runs.iter_mut().filter(|run| run.team == of) {
                        run.blocking = false;
                        run.turns = run.members.iter().map(|rank| rank % 2).collect();
                    }
                    check(&runs);
                    count += 2;
                }
            }
        }
    }
    assert!(count > 2_000 && OpKind::ALL.iter().all(|kind| seen.contains(kind)), "{count}");
}

/// Where ranks arrive, are released, or claim work.
#[test]
fn halls_of_teams_are_their_own() {
    let flows = [Flow::Last, Flow::Coop(2), Flow::Leader(None)];
    let mut count = 0;
    for (a, b) in flows.into_iter().flat_map(|a| flows.map(|b| (a, b))) {
        for sync in INS.into_iter().flat_map(|i| OUTS.map(|o| (i, o))) {
            let [a, b] = [a, b].map(|flow| shape(Op::AllReduce, flow, Way::Push, sync, 3));
            if !(a.fits() && b.fits()) {
                continue;
            }
            let mut runs = [of_team(&a, 0, 0, &[0, 1, 2]), of_team(&b, 0, 1, &[2, 1, 3])];
            check(&runs);
            block(&mut runs);
            check(&runs);
            count += 2;
        }
    }
    assert!(count > 60, "{count}");
}

/// The graph and all states say the same of two teams of two, and of those with a wait left out.
#[test]
fn all_states_of_teams_say_the_same() {
    let jobs: [[&[usize]; 2]; 3] = [[&[0, 1], &[2, 1]], [&[0, 1], &[1, 0]], [&[1, 0], &[1, 2]]];
    let mut random = Random(11400714819323198485);
    let (mut right, mut less) = (0, 0);
    for (i, (op, flow)) in pairs(2).enumerate() {
        let [first, second] = jobs[i % 3];
        let Some(shape) = draw(&mut random, &op, flow, first).filter(|_| deep() || i % 4 == 0) else { continue };
        let other = any(&mut random, second);
        let mut runs = [of_team(&shape, 0, 0, first), of_team(&other, 0, 1, second)];
        shuffle(&mut random, &mut runs);
        check_both(&runs);
        let mut blocks = runs.clone();
        block(&mut blocks);
        check_both(&blocks);
        right += 1;
        let plain = (shape.source, shape.dest, shape.in_place) == (Kind::Shared, Kind::Shared, false);
        for wait in model::waits(&runs[..1]).into_iter().filter(|_| plain) {
            let mut runs = runs.clone();
            runs[0].plans[wait.rank].steps.remove(wait.step);
            let (graph, states) = (model::check(&runs), model::explore(&runs, 1).and(model::explore(&runs, 9)));
            assert_eq!(graph.is_ok(), states.is_ok(), "{graph:?}, {states:?}: {runs:#?}");
            less += 1;
        }
    }
    assert!(right > 10 && less > 0, "{right}, {less}");
}

/// The same of teams of three.
#[test]
fn all_states_of_larger_teams_are_right() {
    let ops = [Op::Broadcast { root: 1, pieces: 1 }, Op::Scatter { root: 0 }, Op::Gather { root: 2 }];
    let mut count = 0;
    for (i, way) in (0..ops.len()).flat_map(|i| [Way::Pull, Way::Mail].map(|way| (i, way))) {
        let of = |op: &Op| shape(op.clone(), Flow::Flat, way, (In::My, Out::My), 3);
        let (a, b) = (of(&ops[i]), of(&ops[(i + 1) % ops.len()]));
        let mut runs = [of_team(&a, 0, 0, &[0, 1, 2]), of_team(&b, 0, 1, &[2, 1, 3])];
        runs[1].turns = vec![1, 0, 0];
        check_both(&runs);
        block(&mut runs);
        check_both(&runs);
        count += 2;
    }
    assert_eq!(count, 12);
}

/// What two teams do is right if each has a desk, and noticed if both have one.
#[track_caller]
fn shared_is_noticed(runs: [Run; 2], words: &str) {
    check_both(&runs);
    let mut wrong = runs;
    wrong[1].desk = wrong[0].desk;
    let said = model::check(&wrong).expect_err(words);
    assert!(said.contains(words), "{said}");
    assert!(model::explore(&wrong, 9).is_err(), "{words}");
}

/// What lands at rank 1 lands in scratch, that of one team where that of the other does. No count has two who make it.
#[test]
fn shared_scratch_is_noticed() {
    let my = (In::My, Out::My);
    let [first, second] = [0, 1].map(|root| {
        let plain = shape(Op::Broadcast { root, pieces: 1 }, Flow::Flat, Way::Push, my, 2);
        Shape { dest: Kind::Private, ..plain }
    });
    let runs = [of_team(&first, 0, 0, &[0, 1]), of_team(&second, 0, 1, &[1, 2])];
    shared_is_noticed(runs, "Scratch[0..4]");
}

/// Signals, letters, arrivals and releases of one team are taken for those of the other.
#[test]
fn shared_counts_are_noticed() {
    let broadcast = Op::Broadcast { root: 0, pieces: 1 };
    for way in [Way::Push, Way::Mail] {
        let pass = shape(broadcast.clone(), Flow::Flat, way, (In::No, Out::My), 2);
        let runs = [of_team(&pass, 0, 0, &[0, 1]), of_team(&pass, 0, 1, &[2, 1])];
        shared_is_noticed(runs, "one count for what ranks 0 and 2 of the job do");
    }
    let meet = shape(Op::Gather { root: 0 }, Flow::Flat, Way::Pull, (In::All, Out::All), 3);
    let runs = [of_team(&meet, 0, 0, &[0, 1, 2]), of_team(&meet, 0, 1, &[2, 1, 3])];
    shared_is_noticed(runs, "one count for what ranks 0 and 2 of the job do");
    let lead = shape(broadcast, Flow::Leader(None), Way::Push, (In::No, Out::All), 3);
    let runs = [of_team(&lead, 0, 0, &[0, 1, 2]), of_team(&lead, 0, 1, &[0, 1, 3])];
    shared_is_noticed(runs, "waits in a hall where another team's ranks are counted");
}

/// Ranks 1 and 2 call what two teams do in opposite orders: each waits for the other, unless they only start it.
#[test]
fn opposite_orders_that_block_are_noticed() {
    for op in ops(3) {
        let all = shape(op, Flow::Flat, Way::Push, (In::All, Out::All), 3);
        let mut runs = [of_team(&all, 0, 0, &[0, 1, 2]), of_team(&all, 0, 1, &[2, 1, 3])];
        block(&mut runs);
        check(&runs);
        runs[0].turns = vec![0, 0, 1];
        runs[1].turns = vec![0, 1, 1];
        let words = model::check(&runs).expect_err("rank 1 waits for rank 2, which waits for rank 1");
        assert!(words.contains("never"), "{words}");
        let words = model::explore(&runs, 9).expect_err("rank 1 waits for rank 2, which waits for rank 1");
        assert!(words.contains("never ends"), "{words}");
        runs.iter_mut().for_each(|run| run.blocking = false);
        check(&runs);
    }
}

/// Members of a team that begin its collectives in different orders take the one for the other.
#[test]
fn other_orders_in_a_team_are_noticed() {
    let pass = shape(Op::GatherAll, Flow::Flat, Way::Push, (In::No, Out::My), 2);
    let mut runs = [of_team(&pass, 0, 0, &[1, 0]), of_team(&pass, 0, 0, &[1, 0])];
    check_both(&runs);
    runs[0].turns = vec![0, 1];
    let words = model::check(&runs).expect_err("signals are those of the other collective");
    assert!(words.contains("waits for what never comes"), "{words}");
    assert!(model::explore(&runs, 9).is_err(), "signals are those of the other collective");
}

/// xorshift; the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}
