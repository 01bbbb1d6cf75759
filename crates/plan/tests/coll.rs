//! Plans of all shapes, by the checker, and the checker by leaving out waits and by going through all states.
//!
//! `PARTAGE_DEEP=1` goes further: more ranks, more combinations.

use std::sync::Arc;

use partage_plan::coll::model::{self, Place, Run, Verdict};
use partage_plan::coll::{
    Algorithm, Buffer, Flow, In, Kind, Nodes, Op, Out, Scheme, Shape, Signal, Span, Step, Totals, Way,
};

const WAYS: [Way; 4] = [Way::Push, Way::Pull, Way::Split, Way::Mail];
const KINDS: [Kind; 2] = [Kind::Shared, Kind::Private];

fn deep() -> bool {
    std::env::var_os("PARTAGE_DEEP").is_some()
}

/// All operations of `ranks`, with every root.
fn ops(ranks: usize) -> Vec<Op> {
    let mut list = vec![Op::GatherAll, Op::Exchange];
    for root in 0..ranks {
        let mut pieces = vec![1, 3, ranks];
        pieces.dedup();
        list.extend(pieces.into_iter().map(|pieces| Op::Broadcast { root, pieces }));
        list.extend([Op::Scatter { root }, Op::Gather { root }]);
        list.push(Op::Permute { to: (0..ranks).map(|r| (r + root) % ranks).collect() });
    }
    // Neither a rotation nor its own inverse from five ranks on; a swap that leaves a rank out at three.
    let mut to: Vec<usize> = (0..ranks).rev().collect();
    to[..ranks / 2].rotate_left(1.min(ranks / 2));
    list.push(Op::Permute { to });
    list
}

fn flows(ranks: usize) -> Vec<Flow> {
    use Flow::*;
    vec![
        Flat,
        Pairwise,
        Xor,
        Tree(2),
        Tree(3),
        Ring,
        Dissemination,
        Bruck,
        ScatterGather(2),
        Leader(None),
        Leader(Some(ranks - 1)),
        Last,
    ]
}

fn syncs() -> impl Iterator<Item = (In, Out)> {
    [In::No, In::My, In::All].into_iter().flat_map(|i| [Out::No, Out::My, Out::All].map(|o| (i, o)))
}

/// Every shape of `ranks` that has plans: buffers of `len`, of these kinds.
fn shapes(ranks: usize, len: usize, kinds: (Kind, Kind), in_place: bool) -> Vec<Shape> {
    // Who does it all passes no messages.
    let alone = |flow: &Flow| matches!(flow, Flow::Leader(_) | Flow::Last);
    let (alone, messages): (Vec<Flow>, Vec<Flow>) = flows(ranks).into_iter().partition(alone);
    let mut list = shapes_of(ranks, len, kinds, in_place, &messages, &WAYS);
    list.extend(shapes_of(ranks, len, kinds, in_place, &alone, &WAYS[..1]));
    list.retain(Shape::fits);
    list
}

/// All operations, with these flows and ways, whether they have plans or not.
fn shapes_of(
    ranks: usize,
    len: usize,
    (source, dest): (Kind, Kind),
    in_place: bool,
    flows: &[Flow],
    ways: &[Way],
) -> Vec<Shape> {
    let (scheme, nodes, stride) = (Scheme::Fused, None, len);
    let mut list = vec![];
    for op in ops(ranks) {
        for (&flow, &way) in flows.iter().flat_map(|flow| ways.iter().map(move |way| (flow, way))) {
            for sync in syncs() {
                let (op, nodes, grain, ordered) = (op.clone(), nodes.clone(), 1, false);
                list.push(Shape {
                    op,
                    flow,
                    way,
                    scheme,
                    sync,
                    ranks,
                    nodes,
                    len,
                    stride,
                    source,
                    dest,
                    in_place,
                    grain,
                    ordered,
                });
            }
        }
    }
    list
}

fn shared(ranks: usize, len: usize) -> Vec<Shape> {
    shapes(ranks, len, (Kind::Shared, Kind::Shared), false)
}

/// Every shape of `ranks`, with all kinds of buffers.
fn all(ranks: usize, len: usize) -> Vec<Shape> {
    let kinds = KINDS.into_iter().flat_map(|source| KINDS.map(|dest| (source, dest)));
    kinds.flat_map(|kinds| [false, true].map(|in_place| shapes(ranks, len, kinds, in_place))).flatten().collect()
}

/// Every shape over nodes: of equal and unequal sizes, their ranks side by side and dealt in turn, one and more leaders.
fn over_nodes(ranks: usize, len: usize, kinds: (Kind, Kind), in_place: bool) -> Vec<Shape> {
    let maps: [fn(usize) -> usize; 5] = [|_| 0, |r| r / 2, |r| r % 2, |r| r % 3, |r| usize::from(r > 0) + r / 4];
    let flows = [Flow::Nodes(2, 1), Flow::Nodes(2, 2), Flow::Nodes(3, 3)];
    let mut list = vec![];
    for op in ops(ranks) {
        for nodes in maps.map(|map| Arc::new(Nodes::new(&(0..ranks).map(map).collect::<Vec<_>>()))) {
            for (flow, way) in flows.into_iter().flat_map(|flow| WAYS.map(|way| (flow, way))) {
                for sync in syncs() {
                    let (op, nodes, (source, dest)) = (op.clone(), Some(Arc::clone(&nodes)), kinds);
                    let shape = Shape {
                        op,
                        flow,
                        way,
                        scheme: Scheme::Fused,
                        sync,
                        ranks,
                        nodes,
                        len,
                        stride: len,
                        source,
                        dest,
                        in_place,
                        grain: 1,
                        ordered: false,
                    };
                    list.extend(Some(shape).filter(Shape::fits));
                }
            }
        }
    }
    list
}

fn run(shape: &Shape, context: usize) -> Run {
    Run::new(shape, context).unwrap_or_else(|| panic!("some ranks of {shape:?} have no plan"))
}

#[track_caller]
fn check(runs: &[Run]) {
    if let Err(what) = model::check(runs) {
        panic!("{what}\n{runs:#?}");
    }
}

/// Other collectives before and after, which wait for as little as possible: of the same kind, with the same
/// buffers, and with scratch.
fn neighbours(shape: &Shape) -> Vec<Run> {
    let like = Shape { sync: (In::No, Out::No), ..shape.clone() };
    let flat = Shape { flow: Flow::Flat, ..like.clone() };
    let others = [Op::GatherAll, Op::Exchange].map(|op| Shape { op, in_place: false, ..flat.clone() });
    // Their blocks land in scratch, in all of what the shape has there, and are copied when they have come, of which nobody hears.
    let (p, len) = (shape.ranks, shape.scratch().max(shape.len));
    let around = |by: usize| Op::Permute { to: (0..p).map(|r| (r + by) % p).collect() };
    let flat_push =
        Shape { way: Way::Push, dest: Kind::Private, grain: 1, len, stride: len, in_place: false, ..flat.clone() };
    let lands: Vec<Shape> = (1..p).map(|by| Shape { op: around(by), ..flat_push.clone() }).collect();
    [like, flat].iter().chain(&others).chain(&lands).map(|shape| run(shape, 0)).collect()
}

#[test]
fn shapes_with_shared_buffers_are_right() {
    let mut count = 0;
    for ranks in 1..=if deep() { 12 } else { 9 } {
        for shape in shared(ranks, 2) {
            check(&[run(&shape, 0)]);
            count += 1;
        }
    }
    assert!(count > 30_000, "{count}");
}

/// Lengths that cannot be halved, and fewer than pieces.
#[test]
fn shapes_with_all_buffers_are_right() {
    for ranks in 1..=if deep() { 9 } else { 5 } {
        for len in [1, 3] {
            all(ranks, len).iter().for_each(|shape| check(&[run(shape, 0)]));
        }
    }
}

/// Parts of longer blocks, where an engine cuts them.
#[test]
fn shapes_of_parts_are_right() {
    let mut count = 0;
    for ranks in 2..=if deep() { 6 } else { 4 } {
        let several = |s: &Shape| matches!(s.op, Op::Scatter { .. } | Op::Gather { .. } | Op::GatherAll | Op::Exchange);
        for shape in all(ranks, 2).into_iter().filter(several) {
            check(&[run(&Shape { stride: 5, ..shape }, 0)]);
            count += 1;
        }
    }
    assert!(count > 5_000, "{count}");
}

/// By turns, so that all are checked with few ranks, and some with more.
#[test]
fn shapes_over_nodes_are_right() {
    let mut count = 0;
    for ranks in 1..=if deep() { 9 } else { 7 } {
        let every = if ranks < 4 {
            1
        } else if deep() {
            5
        } else {
            13
        };
        for shape in over_nodes(ranks, 2, (Kind::Shared, Kind::Shared), false).iter().step_by(every) {
            check(&[run(shape, 0)]);
            count += 1;
        }
        for (i, kinds) in KINDS.into_iter().flat_map(|source| KINDS.map(|dest| (source, dest))).enumerate() {
            for in_place in [false, true] {
                let shapes = over_nodes(ranks, 3, kinds, in_place);
                let some = shapes.into_iter().skip(i).step_by(if deep() { 7 * ranks } else { 31 * ranks });
                for (j, shape) in some.enumerate() {
                    let shape = Shape { stride: shape.len + j % 2, ..shape };
                    check(&[run(&shape, 0), run(&shape, 0)]);
                    check(&[run(&shape, 0), run(&shape, 1), run(&shape, 0)]);
                    count += 2;
                }
            }
        }
    }
    assert!(count > 4_000, "{count}");
}

/// The baselines, alone and in streams.
#[test]
fn baselines_are_right() {
    let names = [
        "naive-push",
        "naive-pull",
        "reference-push",
        "reference-pull",
        "straight-push",
        "spanning-tree",
        "xor",
        "ring",
        "registered",
        "dynamic",
        "static",
    ];
    let mut random = Random(11400714819323198485);
    let named = |name: &str| format!("000:{name}").parse::<Algorithm>().unwrap_or_else(|e| panic!("{e}"));
    // A buffer that is too small for a tree of blocks.
    let small = Algorithm { packet: Some(2), ..named("static") };
    for algorithm in names.map(named).into_iter().chain([small]) {
        let name = algorithm.to_string();
        let mut count = 0;
        let mut before: Option<Shape> = None;
        for ranks in 1..=if deep() { 9 } else { 6 } {
            let kinds = KINDS.into_iter().flat_map(|source| KINDS.map(|dest| (source, dest)));
            let flat = |(kinds, in_place)| shapes_of(ranks, 3, kinds, in_place, &[Flow::Flat], &[Way::Push]);
            let all = kinds.flat_map(|kinds| [(kinds, false), (kinds, true)]).flat_map(flat).enumerate();
            let all = all.map(|(i, shape)| algorithm.of(Shape { stride: shape.len + i % 2, ..shape }));
            for shape in all.filter(Shape::fits).step_by(if ranks < 3 {
                1
            } else if deep() {
                3
            } else {
                7
            }) {
                let once = run(&shape, 0);
                let most = once.plans.iter().map(|p| p.scratch).max().unwrap_or(0);
                assert!(most <= shape.scratch(), "{most} of {} of {shape:?}", shape.scratch());
                check(std::slice::from_ref(&once));
                if let Some(other) = before.filter(|other| other.ranks == ranks && random.below(3) == 0) {
                    check(&[once.clone(), run(&other, 0), once.clone()]);
                    check(&[run(&other, 1), once.clone(), run(&other, 1), once]);
                }
                before = Some(shape);
                count += 1;
            }
        }
        assert!(count > 50, "{name}: {count}");
    }
}

#[test]
fn nothing_is_nothing() {
    for shape in all(1, 2).iter().chain(&all(3, 0)) {
        let r = run(shape, 0);
        check(std::slice::from_ref(&r));
        for step in r.plans.iter().flat_map(|p| &p.steps) {
            let moves = matches!(step, Step::Put { .. } | Step::Get { .. } | Step::Send { .. } | Step::Signal { .. });
            assert!(!moves, "{step:?} of {shape:?}");
        }
    }
}

/// One after the other in the same context, or two at a time: scratch and signals of one do not disturb the next.
#[test]
fn streams_are_right() {
    let mut random = Random(88172645463325252);
    for ranks in 2..=if deep() { 5 } else { 4 } {
        let all = if deep() || ranks < 4 { all(ranks, 2) } else { shared(ranks, 2) };
        for shape in &all {
            let like = Shape { sync: all[random.below(all.len())].sync, ..shape.clone() };
            let again = if Run::new(&like, 0).is_some() { &like } else { shape };
            let other = &all[random.below(all.len())];
            check(&[run(shape, 0), run(again, 0), run(other, 0)]);
            if deep() || random.below(4) == 0 {
                check(&[run(other, 0), run(shape, 1), run(again, 0), run(other, 1)]);
            }
        }
    }
}

/// Between two that wait for little, so that what protects them is missed too.
#[test]
fn waits_left_out_are_missed() {
    let mut count = 0;
    for ranks in 2..=if deep() { 5 } else { 4 } {
        // Blocks that hop past many ranks make much known by way of others.
        let hops = |shape: &Shape| ranks > 4 && shape.flow == Flow::Bruck;
        count += shared(ranks, 2).iter().map(|shape| missed(shape, |_| hops(shape))).sum::<usize>();
    }
    assert!(count > 30_000, "{count}");
}

/// Of several leaders, one knows much by way of another.
#[test]
fn waits_left_out_are_missed_over_nodes() {
    let mut count = 0;
    for ranks in 3..=if deep() { 5 } else { 4 } {
        let shapes = over_nodes(ranks, 2, (Kind::Shared, Kind::Shared), false);
        let every = if deep() { 3 } else { 61 };
        for shape in shapes.iter().step_by(every) {
            let one = matches!(shape.flow, Flow::Nodes(_, 1));
            // Who both lends and pushes blocks may know from a later signal what an earlier one says.
            let idle = !one || shape.way == Way::Split;
            count +=
                missed(shape, |step| idle && matches!(step, Step::Wait { signal: Signal::Data | Signal::Done, .. }));
        }
    }
    assert!(count > 1_000, "{count}");
}

/// Where a block is in scratch to be got, a rank may know that by way of a third, and wait for its data all the same.
#[test]
fn waits_left_out_are_missed_with_private_buffers() {
    for ranks in 2..=if deep() { 4 } else { 3 } {
        let shapes = all(ranks, 2).into_iter().filter(|s| (s.source, s.dest) != (Kind::Shared, Kind::Shared));
        // Where every block is already, nobody needs to wait.
        let moves = |s: &Shape| (0..s.blocks()).any(|b| s.target(s.origin(b).0, b) != Some(s.origin(b).1));
        for shape in shapes.filter(moves) {
            missed(&shape, |step| shape.way == Way::Pull && matches!(step, Step::Wait { signal: Signal::Data, .. }));
        }
    }
}

/// How many of the shape's waits are missed. The others are implied, but for those that `may_idle`.
fn missed(shape: &Shape, may_idle: impl Fn(&Step) -> bool) -> usize {
    let around = |other: &Run| [other.clone(), run(shape, 0), other.clone()];
    let neighbours = neighbours(shape);
    let runs = around(&neighbours[0]);
    let missed = |wait: &Place| {
        let step = &runs[1].plans[wait.rank].steps[wait.step];
        let mut verdicts = neighbours.iter().map(|other| model::without(&around(other), *wait));
        let clear = verdicts.find(|verdict| *verdict != Verdict::Idle);
        assert!(clear.is_some() || may_idle(step), "nobody needs {wait:?} of {runs:#?}");
        clear == Some(Verdict::Missed)
    };
    model::waits(&runs).iter().filter(|wait| wait.run == 1).filter(|wait| missed(wait)).count()
}

/// The graph and all states say the same of every shape, and of every shape with a wait left out.
#[test]
fn all_states_say_the_same() {
    let agree = |runs: &[Run]| {
        let (graph, states) = (model::check(runs), model::explore(runs, 1).and(model::explore(runs, 9)));
        assert_eq!(graph.is_ok(), states.is_ok(), "{graph:?}, {states:?}: {runs:#?}");
    };
    // Three ranks that all put to all have too many states.
    let few = |shape: &&Shape| match shape.op.root() {
        _ if shape.ranks < 3 => true,
        Some(root) => shape.blocks() <= 3 && (deep() || root == 1 && matches!(shape.way, Way::Pull | Way::Mail)),
        None => deep() && matches!(shape.way, Way::Pull | Way::Mail),
    };
    for ranks in 1..=3 {
        for shape in shared(ranks, 2).iter().filter(few) {
            let once = run(shape, 0);
            agree(std::slice::from_ref(&once));
            for wait in model::waits(std::slice::from_ref(&once)) {
                let mut less = once.clone();
                less.plans[wait.rank].steps.remove(wait.step);
                agree(std::slice::from_ref(&less));
            }
        }
    }
}

/// The same with scratch, which a collective and the next one share.
#[test]
fn all_states_of_streams_say_the_same() {
    let shapes = all(2, 1).into_iter().filter(|s| s.source == Kind::Private || s.dest == Kind::Private);
    for shape in shapes.filter(|s| deep() || matches!(s.flow, Flow::Flat) && s.op.root() != Some(0)) {
        let once = run(&shape, 0);
        let next = &neighbours(&shape)[0];
        for wait in model::waits(std::slice::from_ref(&once)) {
            let mut less = once.clone();
            less.plans[wait.rank].steps.remove(wait.step);
            let runs = [less, next.clone()];
            let (graph, states) = (model::check(&runs), model::explore(&runs, 2));
            assert_eq!(graph.is_ok(), states.is_ok(), "{graph:?}, {states:?}: {runs:#?}");
        }
    }
}

/// Ranks that have nothing to do with each other do not wait for each other, unless `All` is asked for.
#[test]
fn my_is_not_all() {
    for shape in all(3, 2).into_iter().filter(|s| s.op == (Op::Permute { to: vec![1, 0, 2] })) {
        let waits_for_all = |steps: &[Step]| {
            steps.iter().any(|step| match *step {
                Step::Wait { from, .. } | Step::Take { from, .. } => from == 2,
                _ => matches!(step, Step::Meet { .. } | Step::Last { .. } | Step::Released),
            })
        };
        let all = shape.sync.0 == In::All || shape.sync.1 == Out::All;
        let told = !matches!(shape.flow, Flow::Leader(_) | Flow::Last) && (shape.source, shape.dest) != PRIVATE;
        for me in 0..2 {
            let plan = shape.plan(me).expect("it has plans");
            assert!(!told || waits_for_all(&plan.steps) == all, "{me} of {shape:?}: {plan:?}");
        }
    }
}

/// Nor does one wait for the last to enter where nobody has to.
#[test]
fn the_last_is_for_all() {
    for shape in shared(3, 2).into_iter().filter(|s| s.flow == Flow::Flat && s.way == Way::Push) {
        let all = shape.sync.0 == In::All || (shape.sync.0 == In::No && shape.sync.1 != Out::My);
        assert_eq!(Shape { flow: Flow::Last, ..shape.clone() }.fits(), all, "{shape:?}");
    }
}

/// A rank that knows where its own block goes, and whose it gets, makes the same plan as one that knows all.
#[test]
fn a_permutation_need_not_be_known() {
    let mut count = 0;
    for shape in (1..=5).flat_map(|ranks| all(ranks, 2)) {
        let Op::Permute { to } = &shape.op else { continue };
        for me in 0..shape.ranks {
            let known = |i: usize| if i == me || to[i] == me { to[i] } else { Op::UNKNOWN };
            let to: Vec<usize> = (0..shape.ranks).map(known).collect();
            let missing = to.contains(&Op::UNKNOWN);
            let part = Shape { op: Op::Permute { to }, ..shape.clone() };
            match part.plan(me) {
                Some(_) => assert_eq!(part.plan(me), shape.plan(me), "{me} of {shape:?}"),
                None => assert!(missing && matches!(shape.flow, Flow::Leader(_) | Flow::Last), "{me} of {shape:?}"),
            }
            count += 1;
        }
    }
    assert!(count > 5_000, "{count}");
}

/// What all ranks can say of the room that each needs is enough, and nothing where none needs any.
#[test]
fn there_is_room() {
    let mut count = 0;
    for ranks in 1..=if deep() { 9 } else { 6 } {
        let kinds = KINDS.into_iter().flat_map(|source| KINDS.map(|dest| (source, dest)));
        let places = kinds.flat_map(|kinds| [(kinds, false), (kinds, true)]);
        let both = |(kinds, in_place)| [shapes(ranks, 3, kinds, in_place), over_nodes(ranks, 3, kinds, in_place)];
        for shape in places.flat_map(both).flatten().step_by(if deep() || ranks < 4 { 1 } else { 23 }) {
            let plans = run(&shape, 0).plans;
            let letter = |step: &Step| match step {
                Step::Send { src, .. } => src.iter().map(|span| span.len).sum(),
                _ => 0,
            };
            let longest = plans.iter().flat_map(|p| &p.steps).map(letter).max().unwrap_or(0);
            assert!(longest <= shape.message(), "{longest} of {} of {shape:?}", shape.message());
            let most = plans.iter().map(|p| p.scratch).max().unwrap_or(0);
            assert!(most <= shape.scratch(), "{most} of {} of {shape:?}", shape.scratch());
            // Elsewhere it depends on the number of ranks whether somebody passes on.
            let direct = matches!(shape.flow, Flow::Flat | Flow::Pairwise | Flow::Xor | Flow::Leader(_) | Flow::Last);
            let one = !shape.in_place || shape.source == shape.dest;
            let known = direct && one && !matches!(shape.op, Op::Permute { .. });
            assert!(!known || (most > 0) == (shape.scratch() > 0), "{} of {shape:?}", shape.scratch());
            count += 1;
        }
    }
    assert!(count > 5_000, "{count}");
}

/// A rank of a tree has few steps, however many ranks there are.
#[test]
fn own_steps_only() {
    let ranks = 100_000;
    let (source, dest) = (Kind::Shared, Kind::Shared);
    for (me, op) in [(7, Op::Broadcast { root: 5, pieces: 1 }), (70_000, Op::Gather { root: 5 })] {
        for flow in [Flow::Flat, Flow::Tree(2)] {
            let op = op.clone();
            let sync = (In::My, Out::All);
            let shape = Shape {
                op,
                flow,
                way: Way::Push,
                scheme: Scheme::Fused,
                sync,
                ranks,
                nodes: None,
                len: 8,
                stride: 8,
                source,
                dest,
                in_place: false,
                grain: 1,
                ordered: false,
            };
            assert!(shape.plan(me).expect("it has plans").steps.len() < 100);
        }
    }
}

#[test]
fn the_checker_says_what_is_missing() {
    let (source, dest) = (Kind::Shared, Kind::Shared);
    let (flow, way, sync) = (Flow::Ring, Way::Push, (In::No, Out::My));
    let op = Op::Broadcast { root: 0, pieces: 1 };
    let mut run = run(
        &Shape {
            op,
            flow,
            way,
            scheme: Scheme::Fused,
            sync,
            ranks: 3,
            nodes: None,
            len: 2,
            stride: 2,
            source,
            dest,
            in_place: false,
            grain: 1,
            ordered: false,
        },
        0,
    );
    assert!(matches!(run.plans[1].steps.remove(0), Step::Wait { from: 0, .. }));
    let words = model::check(&[run]).expect_err("rank 1 passes on what it may not have");
    assert!(words.contains("rank 0, step 0 (Put"), "{words}");
    assert!(words.contains("Dest[0..2] of rank 1"), "{words}");
    assert!(words.contains("rank 1 may have returned"), "{words}");
}

/// A shape of three ranks with shared buffers, and blocks of two bytes.
fn of_three(op: Op, flow: Flow, way: Way, sync: (In, Out)) -> Shape {
    let mut all = shared(3, 2).into_iter().filter(|s| (s.flow, s.way, s.sync) == (flow, way, sync));
    all.find(|s| s.op == op).expect("it has plans")
}

/// By the graph, and by going through all states.
#[track_caller]
fn refused(shape: &Shape, words: &str, change: impl Fn(&mut Run)) {
    let mut wrong = run(shape, 0);
    change(&mut wrong);
    let said = model::check(&[wrong.clone()]).expect_err(words);
    assert!(said.contains(words), "{said}");
    assert!(model::explore(&[wrong], 9).is_err(), "{words}");
}

/// Who counts wrongly would not wait in the next collective of its context, or for ever.
#[test]
fn wrong_counts_are_noticed() {
    let gather = Op::Gather { root: 0 };
    let my = of_three(gather.clone(), Flow::Flat, Way::Push, (In::My, Out::My));
    let all = of_three(gather.clone(), Flow::Flat, Way::Push, (In::All, Out::All));
    let mail = of_three(gather.clone(), Flow::Flat, Way::Mail, (In::My, Out::My));
    let leader = of_three(gather.clone(), Flow::Leader(None), Way::Push, (In::All, Out::All));
    let last = of_three(gather, Flow::Last, Way::Push, (In::All, Out::All));
    let done = Step::Signal { to: 0, signal: Signal::Done };
    refused(&my, "rank 0 counts 0 signals Done of rank 1", |r| r.plans[1].steps.push(done.clone()));
    refused(&my, "rank 0 counts 0 signals Data of rank 1", |r| r.plans[0].totals.signals.clear());
    refused(&my, "counts 2 signals Data of rank 1", |r| r.plans[0].totals.signals[0].2 = 2);
    refused(&all, "arrivals of rank 0", |r| r.plans[1].totals.arrivals += 1);
    refused(&all, "arrivals of rank 1", |r| r.plans[1].steps.push(Step::Arrive));
    refused(&last, "releases", |r| r.plans[1].totals.releases = 0);
    refused(&leader, "releases", |r| r.plans[0].steps.push(Step::Release));
    refused(&last, "chunks", |r| r.plans[2].totals.claims = 1);
    let src = vec![Span { buffer: Buffer::Source, at: 0, len: 2 }];
    refused(&mail, "rank 2 counts 0 letters of rank 1", |r| {
        r.plans[1].steps.push(Step::Send { to: 2, src: src.clone() });
    });
    refused(&mail, "several letters", |r| r.plans[0].totals.letters_again = true);
    let nothing = Totals::default();
    refused(&last, "counts 0 arrivals", |r| r.plans.iter_mut().for_each(|p| p.totals = nothing.clone()));
}

/// One who waits until scratch is free may know that, and go on, though the other has not entered.
#[test]
fn signals_of_another_kind_are_not_taken() {
    let shape = of_three(Op::Gather { root: 0 }, Flow::Flat, Way::Push, (In::My, Out::My));
    refused(&shape, "waits for what never comes", |r| {
        let waits = |step: &&mut Step| matches!(step, Step::Wait { signal: Signal::Entered, .. });
        let wait = r.plans[1].steps.iter_mut().find(waits).expect("it waits until the root has entered");
        *wait = Step::Wait { from: 0, signal: Signal::Free, n: 1 };
        r.plans[1].totals.signals = vec![(0, Signal::Free, 1)];
    });
}

/// A wait is for what its own collective makes, not for what the next one does.
#[test]
fn signals_of_the_next_are_not_taken() {
    let shape = of_three(Op::Broadcast { root: 0, pieces: 1 }, Flow::Flat, Way::Push, (In::No, Out::No));
    let (mut less, next) = (run(&shape, 0), run(&shape, 0));
    less.plans[0].steps.remove(0);
    let words = model::check(&[less, next]).expect_err("a put is missing");
    assert!(words.contains("waits for what never comes"), "{words}");
}

/// Buffers are as long as the operation asks, and nothing is written but where it must be.
#[test]
fn what_is_not_for_it_is_not_touched() {
    let my = (In::My, Out::My);
    let span = |buffer, at, len| Span { buffer, at, len };
    let copy = |src, dst| Step::Copy { src, dst };
    let broadcast = of_three(Op::Broadcast { root: 0, pieces: 1 }, Flow::Flat, Way::Push, my);
    refused(&broadcast, "touches Dest[2..4] of rank 1, of which it has 2 only", |r| {
        r.plans[1].steps.push(copy(span(Buffer::Dest, 0, 2), span(Buffer::Dest, 2, 2)));
    });
    refused(&broadcast, "touches Source[0..2] of rank 1, of which it has 0 only", |r| {
        r.plans[1].steps.push(copy(span(Buffer::Dest, 0, 2), span(Buffer::Source, 0, 2)));
    });
    let gather_all = of_three(Op::GatherAll, Flow::Flat, Way::Pull, my);
    refused(&gather_all, "Source[0] of rank 0 is written", |r| {
        r.plans[0].steps.push(copy(span(Buffer::Dest, 2, 2), span(Buffer::Source, 0, 2)));
    });
    let gather = of_three(Op::Gather { root: 0 }, Flow::Flat, Way::Pull, my);
    refused(&gather, "touches Dest[0..2] of rank 1, of which it has 0 only", |r| {
        r.plans[1].steps.push(copy(span(Buffer::Source, 0, 2), span(Buffer::Dest, 0, 2)));
    });
    // Between the parts of blocks.
    let parts = Shape { stride: 4, ..gather_all };
    refused(&parts, "Dest[2] of rank 2 is written", |r| {
        r.plans[2].steps.push(copy(span(Buffer::Dest, 4, 2), span(Buffer::Dest, 2, 2)));
    });
}

const PRIVATE: (Kind, Kind) = (Kind::Private, Kind::Private);

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
