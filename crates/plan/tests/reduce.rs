//! Plans of reductions, by the checker.

use std::sync::Arc;

use partage_plan::coll::model::{self, Run};
use partage_plan::coll::{Flow, In, Kind, Nodes, Op, Out, Scheme, Shape, Way};

const WAYS: [Way; 4] = [Way::Push, Way::Pull, Way::Split, Way::Mail];
const KINDS: [Kind; 2] = [Kind::Shared, Kind::Private];

fn ops(ranks: usize) -> Vec<Op> {
    let mut list = vec![Op::AllReduce, Op::Prefix { exclusive: false }, Op::Prefix { exclusive: true }];
    list.extend((0..ranks).map(|root| Op::Reduce { root }));
    list
}

fn flows(ranks: usize) -> Vec<Flow> {
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
        Leader(None),
        Leader(Some(ranks - 1)),
        Last,
    ]
}

fn syncs() -> impl Iterator<Item = (In, Out)> {
    [In::No, In::My, In::All].into_iter().flat_map(|i| [Out::No, Out::My, Out::All].map(|o| (i, o)))
}

fn shapes(ranks: usize, (len, grain): (usize, usize), (source, dest): (Kind, Kind), in_place: bool) -> Vec<Shape> {
    let (scheme, stride) = (Scheme::Fused, len);
    let maps: [fn(usize) -> usize; 3] = [|r| r / 2, |r| r % 3, |r| usize::from(r > 0) + r / 4];
    let maps = maps.map(|map| Some(Arc::new(Nodes::new(&(0..ranks).map(map).collect::<Vec<_>>()))));
    let mut list = vec![];
    for (op, flow) in ops(ranks).iter().flat_map(|op| flows(ranks).into_iter().map(move |flow| (op, flow))) {
        let nodes = if matches!(flow, Flow::Nodes(..)) { &maps[..] } else { &[None] };
        let ways = if matches!(flow, Flow::Leader(_) | Flow::Last) { &WAYS[..1] } else { &WAYS };
        for (&way, nodes, ordered) in
            ways.iter().flat_map(|w| nodes.iter().flat_map(move |n| [true, false].map(|o| (w, n, o))))
        {
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

fn all(ranks: usize, len: (usize, usize)) -> Vec<Shape> {
    let kinds = KINDS.into_iter().flat_map(|source| KINDS.map(|dest| (source, dest)));
    kinds.flat_map(|kinds| [false, true].map(|in_place| shapes(ranks, len, kinds, in_place))).flatten().collect()
}

fn run(shape: &Shape, context: usize) -> Run {
    Run::new(shape, context).unwrap_or_else(|| panic!("some ranks of {shape:?} have no plan"))
}

#[test]
fn survey() {
    let mut wrong = std::collections::BTreeMap::<String, (usize, String)>::new();
    let mut count = 0;
    for ranks in 1..=9 {
        for shape in all(ranks, (4, 2)).into_iter().step_by([1, 1, 3, 7, 11, 31, 67, 101, 211][ranks - 1]) {
            count += 1;
            let r = run(&shape, 0);
            let most = r.plans.iter().map(|p| p.scratch).max().unwrap_or(0);
            let result =
                if most > shape.scratch() { Err(format!("scratch {most} {}", shape.scratch())) } else { Ok(()) };
            let result =
                result.and_then(|_| model::check(&[r.clone()])).and_then(|_| model::check(&[r.clone(), r.clone()]));
            if let Err(what) = result {
                let key = format!("{:?} {:?} {:?} in_place {}", shape.op.kind(), shape.flow, shape.way, shape.in_place);
                let e = wrong.entry(key).or_insert((0, format!("{what}\n{r:#?}")));
                e.0 += 1;
            }
        }
    }
    println!("{count} shapes");
    for (key, (n, what)) in &wrong {
        println!("{n} {key}: {}", what.lines().next().unwrap());
    }
    if let Some((key, (_, what))) = wrong.iter().next() {
        panic!("{key} {what}");
    }
}
