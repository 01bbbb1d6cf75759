//! Plans of reductions, by the checker, and the checker by plans that are wrong.
//!
//! Shapes are checked by turns: each operation, flow and way, with some sync modes; with others for other numbers of ranks.
//! `PARTAGE_DEEP=1` takes all.

use std::sync::Arc;

use partage_plan::coll::model::{self, Place, Run, Verdict};
use partage_plan::coll::{Flow, In, Kind, Nodes, Op, Out, Plan, Scheme, Shape, Signal, Step, Way};

const WAYS: [Way; 4] = [Way::Push, Way::Pull, Way::Split, Way::Mail];
const SHARED: (Kind, Kind) = (Kind::Shared, Kind::Shared);

fn deep() -> bool {
    std::env::var_os("PARTAGE_DEEP").is_some()
}

/// One of so many, unless all are asked for. No divisor of the number of sync modes, so that all have their turn.
fn every(n: usize) -> usize {
    if deep() { 1 } else { n }
}

/// All reductions of `ranks`, with every root.
fn ops(ranks: usize) -> Vec<Op> {
    let mut list = vec![Op::AllReduce, Op::Prefix { exclusive: false }, Op::Prefix { exclusive: true }];
    list.extend((0..ranks).map(|root| Op::Reduce { root }));
    list
}

fn flows(ranks: usize, len: usize) -> Vec<Flow> {
    use Flow::*;
    vec![
        Flat,
        Tree(2),
        Tree(3),
        Chain(1),
        Chain(3),
        Ring,
        Dissemination,
        Doubling,
        Slices,
        Nodes(2, 1),
        Nodes(3, 2),
        Leaders,
        Leader(None),
        Leader(Some(ranks - 1)),
        Last,
        Coop(len.div_ceil(2).max(1)),
    ]
}

fn syncs() -> impl Iterator<Item = (In, Out)> {
    [In::No, In::My, In::All].into_iter().flat_map(|i| [Out::No, Out::My, Out::All].map(|o| (i, o)))
}

/// Every shape of `ranks` that has plans: vectors of `len` bytes in elements of `grain`, with buffers of these kinds; nodes of
/// equal and unequal sizes, their ranks side by side and dealt in turn.
fn shapes(ranks: usize, (len, grain): (usize, usize), (source, dest): (Kind, Kind), in_place: bool) -> Vec<Shape> {
    let (scheme, stride) = (Scheme::Fused, len);
    let maps: [fn(usize) -> usize; 4] = [|_| 0, |r| r / 2, |r| r % 3, |r| usize::from(r > 0) + r / 4];
    let maps = maps.map(|map| Some(Arc::new(Nodes::new(&(0..ranks).map(map).collect::<Vec<_>>()))));
    let mut list = vec![];
    for (op, flow) in ops(ranks).iter().flat_map(|op| flows(ranks, len).into_iter().map(move |flow| (op, flow))) {
        let nodes = if matches!(flow, Flow::Nodes(..) | Flow::Leaders) { &maps[..] } else { &[None] };
        // Who does it all passes no messages.
        let ways = if flow.touches_all() { &WAYS[..1] } else { &WAYS };
        let with = |way| nodes.iter().flat_map(move |nodes| [true, false].map(|ordered| (way, nodes, ordered)));
        for (&way, nodes, ordered) in ways.iter().flat_map(with) {
            for sync in syncs() {
                let (op, nodes) = (op.clone(), nodes.clone());
                let shape = Shape {
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
                };
                list.extend(Some(shape).filter(Shape::fits));
            }
        }
    }
    list
}

/// With all kinds of buffers.
fn all(ranks: usize, len: (usize, usize)) -> Vec<Shape> {
    let kinds = [Kind::Shared, Kind::Private].into_iter().flat_map(|s| [(s, Kind::Shared), (s, Kind::Private)]);
    kinds.flat_map(|kinds| [false, true].map(|in_place| shapes(ranks, len, kinds, in_place))).flatten().collect()
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

#[test]
fn reductions_of_shared_vectors_are_right() {
    let mut count = 0;
    for ranks in 1..=9 {
        for shape in
            shapes(ranks, (4, 2), SHARED, false).iter().skip(ranks).step_by(every(if ranks < 5 { 2 } else { 4 }))
        {
            check(&[run(shape, 0)]);
            count += 1;
        }
    }
    assert!(count > 5_000, "{count}");
}

/// Fewer elements than parts, and numbers that cannot be divided. They need no more room than they say.
#[test]
fn reductions_of_all_vectors_are_right() {
    let mut count = 0;
    for ranks in 1..=if deep() { 9 } else { 6 } {
        // Of the largest some, also where all are asked for.
        let some = [1, 2, 7, 17, 35, 71, 1, 5, 7][ranks - 1];
        let step = if ranks > 7 { some } else { every(some) };
        for (i, len) in [(1, 1), (10, 2)].into_iter().enumerate() {
            for shape in all(ranks, len).iter().skip(i).step_by(step) {
                let once = run(shape, 0);
                check(std::slice::from_ref(&once));
                let letter = |step: &Step| match step {
                    Step::Send { src, .. } => src.iter().map(|span| span.len).sum(),
                    _ => 0,
                };
                let longest = once.plans.iter().flat_map(|p| &p.steps).map(letter).max().unwrap_or(0);
                assert!(longest <= shape.message(), "{longest} of {} of {shape:?}", shape.message());
                let most = once.plans.iter().map(|p| p.scratch).max().unwrap_or(0);
                assert!(most <= shape.scratch(), "{most} of {} of {shape:?}", shape.scratch());
                let direct = matches!(shape.flow, Flow::Flat | Flow::Slices) || shape.flow.touches_all();
                let known = direct && shape.len > ranks && (shape.source == shape.dest || !shape.in_place);
                let known = known && shape.op != (Op::Prefix { exclusive: true });
                assert!(!known || (most > 0) == (shape.scratch() > 0), "{most} of {} of {shape:?}", shape.scratch());
                count += 1;
            }
        }
    }
    assert!(count > 5_000, "{count}");
}

#[test]
fn nothing_is_nothing() {
    for shape in all(1, (2, 1)).iter().chain(&all(3, (0, 4))) {
        let r = run(shape, 0);
        check(std::slice::from_ref(&r));
        let moves = |step: &Step| {
            let passes = matches!(step, Step::Put { .. } | Step::Get { .. } | Step::Send { .. } | Step::Signal { .. });
            passes || matches!(step, Step::Combine { .. } | Step::TakeCombine { .. })
        };
        assert!(!r.plans.iter().flat_map(|p| &p.steps).any(moves), "{r:?}");
    }
}

/// Of several one after the other, each claim of each may be another rank's.
fn few_choices(shape: &Shape) -> bool {
    shape.ranks < 3 || !matches!(shape.flow, Flow::Coop(_))
}

/// One after the other in the same context, or two at a time, with movers between: they do not disturb each other.
#[test]
fn streams_are_right() {
    let mut random = Random(88172645463325252);
    for ranks in 2..=if deep() { 5 } else { 4 } {
        let mut all = all(ranks, (4, 2));
        all.retain(few_choices);
        for shape in all.iter().step_by(every([7, 31, 101][ranks.min(4) - 2])) {
            let like = Shape { sync: all[random.below(all.len())].sync, ..shape.clone() };
            let again = if like.fits() { &like } else { shape };
            let other = &all[random.below(all.len())];
            let mover = Shape { op: Op::GatherAll, flow: Flow::Flat, in_place: false, ..again.clone() };
            check(&[run(shape, 0), run(again, 0), run(other, 0)]);
            check(&[run(shape, 0), run(&mover, 1), run(again, 1), run(&mover, 0)]);
        }
    }
}

/// A rank's steps, or those of the last to arrive, or those of the first chunk.
fn steps(plan: &mut Plan) -> &mut Vec<Step> {
    match plan.steps.iter().position(|step| matches!(step, Step::Last { .. } | Step::Claim { .. })) {
        None => &mut plan.steps,
        Some(i) => match &mut plan.steps[i] {
            Step::Last { steps } => steps,
            Step::Claim { chunks } => &mut chunks[0],
            _ => unreachable!(),
        },
    }
}

/// Operands in the wrong order, one that is missing, and one that counts twice are noticed, each in every place.
#[test]
fn what_is_combined_wrongly_is_noticed() {
    let (mut count, mut any_order) = (0, 0);
    for ranks in 2..=4 {
        let shapes = [false, true].map(|in_place| shapes(ranks, (4, 2), SHARED, in_place)).concat();
        for shape in shapes.iter().filter(|s| s.sync == (In::All, Out::All)) {
            let right = run(shape, 0);
            for rank in 0..ranks {
                for i in 0..steps(&mut right.plans[rank].clone()).len() {
                    let with = |change: fn(&mut Vec<Step>, usize)| {
                        let mut wrong = right.clone();
                        change(steps(&mut wrong.plans[rank]), i);
                        model::check(&[wrong])
                    };
                    let combine = steps(&mut right.plans[rank].clone())[i].clone();
                    if !matches!(combine, Step::Combine { .. } | Step::TakeCombine { .. }) {
                        continue;
                    }
                    let turned = with(|steps, i| match &mut steps[i] {
                        Step::Combine { before, .. } | Step::TakeCombine { before, .. } => *before = !*before,
                        _ => {}
                    });
                    assert!(turned.is_err() || !shape.ordered, "{combine:?} turned: {right:#?}");
                    any_order += usize::from(turned.is_ok());
                    assert!(with(|steps, i| _ = steps.remove(i)).is_err(), "without {combine:?}: {right:#?}");
                    let twice = with(|steps, i| steps.insert(i, steps[i].clone()));
                    assert!(twice.is_err(), "{combine:?} twice: {right:#?}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 1_000 && any_order > 100, "{count}, {any_order}");
}

/// The checker says what is wrong.
#[test]
fn the_checker_says_what_is_wrong() {
    let of = |op: Op, way: Way, ordered: bool| {
        let all = shapes(3, (4, 2), SHARED, false).into_iter();
        let mut same = all.filter(|s| s.op == op && s.sync == (In::My, Out::My) && s.ordered == ordered);
        run(&same.find(|s| s.flow == Flow::Tree(2) && s.way == way).expect("it has plans"), 0)
    };
    let mut turned = of(Op::Reduce { root: 0 }, Way::Pull, true);
    let combine = turned.plans[0].steps.iter_mut().rfind(|step| matches!(step, Step::Combine { .. }));
    if let Some(Step::Combine { before, .. }) = combine {
        *before = !*before;
    }
    let words = model::check(&[turned]).expect_err("the order is wrong");
    assert!(words.contains("rank 0 has [(0, 2, 0), (0, 0, 0), (0, 1, 0)]") && words.contains("[0, 1, 2]"), "{words}");

    let mut cut = of(Op::AllReduce, Way::Mail, false);
    cut.shape.grain = 3;
    let words = model::check(&[cut]).expect_err("elements are cut");
    assert!(words.contains("cuts elements of 3"), "{words}");
}

/// Each wait is left out in turn, between others that wait for little. It is missed, or others imply it, or it `may_idle`: of
/// several who combine parts, a rank may know by way of one that another has got its data.
#[test]
fn waits_left_out_are_missed() {
    let mut count = 0;
    for ranks in 2..=4 {
        let shapes = [false, true].map(|in_place| shapes(ranks, (4, 2), SHARED, in_place)).concat();
        for shape in shapes.iter().filter(|s| few_choices(s)).step_by(every([1, 5, 23][ranks - 2])) {
            count += missed(shape);
        }
    }
    assert!(count > 1_000, "{count}");
}

fn missed(shape: &Shape) -> usize {
    let like = Shape { sync: (In::No, Out::No), ..shape.clone() };
    let flat = Shape { flow: Flow::Flat, ..like.clone() };
    // These use as much scratch, of all ranks but one.
    let (way, dest, len) = (Way::Push, Kind::Private, shape.scratch().max(1));
    let movers = [0, shape.ranks - 1].map(|root| Shape {
        op: Op::Broadcast { root, pieces: 1 },
        way,
        dest,
        len,
        stride: len,
        in_place: false,
        ..flat.clone()
    });
    let neighbours: Vec<Run> = [like, flat].iter().chain(&movers).map(|shape| run(shape, 0)).collect();
    let around = |other: &Run| [other.clone(), run(shape, 0), other.clone()];
    let runs = around(&neighbours[0]);
    let missed = |wait: &Place| {
        let step = &runs[1].plans[wait.rank].steps[wait.step];
        let mut verdicts = neighbours.iter().map(|other| model::without(&around(other), *wait));
        let clear = verdicts.find(|verdict| *verdict != Verdict::Idle);
        let third = matches!(shape.flow, Flow::Slices | Flow::Nodes(..));
        let may_idle = third && matches!(step, Step::Wait { signal: Signal::Done, .. });
        assert!(clear.is_some() || may_idle, "nobody needs {wait:?}, {step:?}, of {:?}", runs[1]);
        clear == Some(Verdict::Missed)
    };
    model::waits(&runs).iter().filter(|wait| wait.run == 1).filter(|wait| missed(wait)).count()
}

/// The graph and all states say the same of shapes, of those with a wait left out, and of those with a step turned.
#[test]
fn all_states_say_the_same() {
    let agree = |runs: &[Run]| {
        let (graph, states) = (model::check(runs), model::explore(runs, 1).and(model::explore(runs, 9)));
        assert_eq!(graph.is_ok(), states.is_ok(), "{graph:?}, {states:?}: {runs:#?}");
    };
    for ranks in 2..=3 {
        // Three ranks that all put to all have too many states.
        let few = |s: &&Shape| ranks < 3 || (s.op.root().is_some() && matches!(s.way, Way::Pull | Way::Mail));
        let all = [false, true].map(|in_place| shapes(ranks, (2, 1), SHARED, in_place)).concat();
        for shape in all.iter().filter(few).step_by(every([2, 29][ranks - 2])) {
            let once = run(shape, 0);
            agree(std::slice::from_ref(&once));
            for rank in 0..ranks {
                for i in 0..once.plans[rank].steps.len() {
                    let mut less = once.clone();
                    match &mut less.plans[rank].steps[i] {
                        Step::Wait { .. } | Step::Meet { .. } | Step::Released => {
                            less.plans[rank].steps.remove(i);
                        }
                        Step::Combine { before, .. } | Step::TakeCombine { before, .. } => *before = !*before,
                        _ => continue,
                    }
                    agree(std::slice::from_ref(&less));
                }
            }
        }
    }
}

/// A rank has no more children than there are ranks, however large the radix is.
#[test]
fn large_radixes_need_no_more_room() {
    let mut count = 0;
    for shape in shapes(5, (4, 2), SHARED, false).iter().chain(&shapes(5, (4, 2), SHARED, true)) {
        let (five, most) = match shape.flow {
            Flow::Tree(3) => (Flow::Tree(5), Flow::Tree(65536)),
            Flow::Nodes(2, 1) => (Flow::Nodes(5, 1), Flow::Nodes(65536, 1)),
            _ => continue,
        };
        let (five, most) = (Shape { flow: five, ..shape.clone() }, Shape { flow: most, ..shape.clone() });
        assert_eq!(most.scratch(), five.scratch(), "{most:?}");
        assert!(most.scratch() <= 5 * shape.len, "{} of {most:?}", most.scratch());
        let once = run(&most, 0);
        assert!(once.plans.iter().all(|p| p.scratch <= most.scratch()), "{once:?}");
        check(&[once]);
        count += 1;
    }
    assert!(count > 500, "{count}");
}

/// All who claim wait for all, which only `All` asks for; and what is claimed is counted.
#[test]
fn claims_are_for_all_and_counted() {
    let alone = |s: &Shape| s.op == Op::AllReduce && s.ordered;
    for shape in shapes(2, (4, 2), SHARED, false).into_iter().filter(|s| alone(s) && s.flow == Flow::Flat) {
        let all = shape.sync.0 == In::All || (shape.sync.0 == In::No && shape.sync.1 != Out::My);
        assert_eq!(Shape { flow: Flow::Coop(2), ..shape.clone() }.fits(), all, "{shape:?}");
        assert_eq!(Shape { flow: Flow::Last, ..shape.clone() }.fits(), all, "{shape:?}");
    }
    for shape in shapes(2, (4, 2), SHARED, false).iter().filter(|s| alone(s) && s.flow == Flow::Coop(2)) {
        let mut wrong = run(shape, 0);
        wrong.plans[1].totals.claims = 1;
        let words = model::check(&[wrong]).expect_err("two are claimed");
        assert!(words.contains("rank 1 counts 1 chunks of rank 0, of which there are 2"), "{words}");
    }
}

/// What 8 bytes take: as few steps as can be.
#[test]
fn short_vectors_take_few_steps() {
    let steps = |op: Op, flow: Flow, way: Way, sync, in_place| {
        let all = shapes(2, (8, 8), SHARED, in_place).into_iter();
        let mut same = all.filter(|s| (&s.op, s.flow, s.way, s.sync) == (&op, flow, way, sync));
        let shape = same.find(|s| s.ordered).expect("it has plans");
        [0, 1].map(|me| shape.plan(me).expect("it has a plan").steps)
    };
    let my = (In::My, Out::My);
    let by_mail = steps(Op::AllReduce, Flow::Flat, Way::Mail, my, false);
    assert!(by_mail.iter().all(|s| matches!(s[..], [Step::Send { .. }, Step::Copy { .. }, Step::TakeCombine { .. }])));
    let in_place = steps(Op::AllReduce, Flow::Flat, Way::Mail, my, true);
    assert!(in_place.iter().all(|s| matches!(s[..], [Step::Send { .. }, Step::TakeCombine { .. }])));
    let last = steps(Op::AllReduce, Flow::Last, Way::Push, (In::All, Out::All), false);
    let done = |s: &[Step]| matches!(s, [Step::Carry { .. }, Step::Combine { .. }, Step::Carry { .. }, Step::Release]);
    assert!(last.iter().all(|s| matches!(&s[..], [Step::Last { steps }, Step::Released] if done(steps))), "{last:?}");
}

/// Who needs nothing of a rank does not wait for it, unless `All` is asked for.
#[test]
fn prefixes_wait_for_those_before() {
    let by_mail = |s: &Shape| matches!(s.op, Op::Prefix { .. }) && s.way == Way::Mail && s.sync == (In::My, Out::My);
    let mut count = 0;
    for shape in all(4, (4, 2)).iter().filter(|s| by_mail(s) && !s.flow.touches_all() && s.flow != Flow::Slices) {
        for me in 0..4 {
            for step in shape.plan(me).expect("it has plans").steps {
                let waits = match step {
                    Step::Take { from, .. } | Step::TakeCombine { from, .. } => from >= me,
                    step => matches!(step, Step::Wait { .. } | Step::Meet { .. } | Step::Released),
                };
                assert!(!waits, "rank {me} of {shape:?}");
                count += 1;
            }
        }
    }
    assert!(count > 500, "{count}");
}

/// A rank has few steps, however many ranks there are, and finds them quickly.
#[test]
fn own_steps_only() {
    let few = shapes(2, (8, 8), SHARED, false).into_iter().filter(|s| s.sync == (In::My, Out::All));
    let few = few.filter(|s| matches!(s.flow, Flow::Tree(2) | Flow::Chain(1) | Flow::Doubling | Flow::Dissemination));
    for shape in few {
        let shape = Shape { ranks: 100_000, ..shape };
        assert!(shape.plan(70_001).expect("it has plans").steps.len() < 200, "{shape:?}");
    }
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
