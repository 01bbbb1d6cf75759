//! Letters that are posted: their plans are those of letters to each, and a board has a line for each letter.

use std::collections::HashMap;
use std::sync::Arc;

use partage_plan::coll::{Flow, In, Kind, Nodes, Op, Out, Plan, Posting, Scheme, Shape, Span, Step, Way};

/// All operations of `ranks`, with every root.
fn ops(ranks: usize) -> Vec<Op> {
    let mut list = vec![Op::GatherAll, Op::Exchange, Op::AllReduce];
    list.extend([false, true].map(|exclusive| Op::Prefix { exclusive }));
    for root in 0..ranks {
        list.extend([1, 3].map(|pieces| Op::Broadcast { root, pieces }));
        list.extend([Op::Scatter { root }, Op::Gather { root }, Op::Reduce { root }]);
        list.push(Op::Permute { to: (0..ranks).map(|r| (r + root) % ranks).collect() });
    }
    list
}

/// All that `flat:post` may be asked for, whether it has plans or not.
fn shapes(ranks: usize, nodes: Option<Arc<Nodes>>) -> Vec<Shape> {
    let kinds = [Kind::Shared, Kind::Private];
    let mut list = vec![];
    for bits in 0..16 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let (source, dest) = (kinds[usize::from(bit(0))], kinds[usize::from(bit(1))]);
        let (in_place, ordered, grain, len) = (bit(2), bit(3), 8, 8);
        for sync in [In::No, In::My, In::All].into_iter().flat_map(|i| [Out::No, Out::My, Out::All].map(|o| (i, o))) {
            let (flow, way, scheme, nodes) = (Flow::Flat, Way::Post, Scheme::Fused, nodes.clone());
            let of = |op| Shape {
                op,
                flow,
                way,
                scheme,
                sync,
                ranks,
                nodes: nodes.clone(),
                len,
                stride: len,
                source,
                dest,
                in_place,
                grain,
                ordered,
            };
            list.extend(ops(ranks).into_iter().map(of));
        }
    }
    list
}

/// Which steps are letters, and what they have.
fn letters(plan: &Plan) -> Vec<(usize, usize, &[Span])> {
    let letter = |(i, step)| match step {
        &Step::Send { to, ref src } => Some((i, to, &src[..])),
        _ => None,
    };
    plan.steps.iter().enumerate().filter_map(letter).collect()
}

#[test]
fn plans_are_those_of_letters_to_each() {
    let mut count = 0;
    for ranks in 1..=6 {
        for shape in shapes(ranks, None) {
            let mailed = Shape { way: Way::Mail, ..shape.clone() };
            let in_pieces = matches!(shape.op, Op::Broadcast { pieces: 3, .. });
            let fits = mailed.fits() && shape.op != Op::Exchange && !in_pieces;
            assert_eq!(shape.fits(), fits, "{shape:?}");
            for me in 0..ranks {
                assert_eq!(shape.plan(me), mailed.plan(me).filter(|_| fits), "{me} of {shape:?}");
            }
            assert_eq!(shape.scratch(), mailed.scratch());
            count += usize::from(fits);
        }
    }
    assert!(count > 5_000, "{count}");
}

/// A line has one letter, which is written once: so all that have it are the same, and nothing changes what they are read from in between. Of several
/// letters the last one looks for sleepers, so nobody waits before it for one who may sleep.
#[test]
fn a_line_has_one_letter() {
    let mut count = 0;
    for ranks in 1..=6 {
        for shape in shapes(ranks, None).into_iter().filter(Shape::fits) {
            let posting = shape.posting().expect("lines");
            let mut lines = HashMap::new();
            for me in 0..ranks {
                let plan = shape.plan(me).expect("a plan");
                let letters = letters(&plan);
                for &(at, to, src) in &letters {
                    let before = lines.insert(posting.of(me, to), (me, src.to_vec()));
                    assert!(posting.of(me, to) < ranks && to != me);
                    match before {
                        Some(before) => assert!(posting == Posting::OfSender && before == (me, src.to_vec())),
                        None => count += 1,
                    }
                    let first = letters[0].0;
                    for step in &plan.steps[first..at] {
                        let waits = matches!(step, Step::Wait { .. }) && posting == Posting::OfSender;
                        assert!(waits || matches!(step, Step::Send { .. }), "{step:?} of {me} of {shape:?}");
                    }
                }
                let taken = plan.steps.iter().filter_map(|step| match step {
                    Step::Take { from, .. } | Step::TakeCombine { from, .. } => Some(*from),
                    _ => None,
                });
                // Nobody takes two of the same.
                let mut taken: Vec<usize> = taken.collect();
                let all = taken.len();
                taken.sort_unstable();
                taken.dedup();
                assert_eq!(taken.len(), all, "{me} of {shape:?}");
            }
        }
    }
    assert!(count > 5_000, "{count}");
}

/// One board is on one node.
#[test]
fn several_nodes_have_none() {
    let nodes = |of: &[usize]| Some(Arc::new(Nodes::new(of)));
    assert!(shapes(3, nodes(&[0, 0, 1])).iter().all(|shape| !shape.fits() && shape.plan(0).is_none()));
    assert!(shapes(3, nodes(&[0, 0, 0])).iter().any(Shape::fits));
    let tree = |shape: Shape| Shape { flow: Flow::Tree(2), ..shape };
    assert!(shapes(3, None).into_iter().map(tree).all(|shape| !shape.fits()));
}
