//! What plans cost: where one can reckon by hand, and what is dearer than what.

use std::sync::Arc;

use partage_plan::coll::model::{Link, Machine, cost};
use partage_plan::coll::{Algorithm, In, Kind, Nodes, Op, Out, Shape};

const NEAR: Link = Link { latency: 100.0, overhead: 20.0, gap: 30.0, byte: 0.1 };
const FAR: Link = Link { latency: 1500.0, overhead: 200.0, gap: 300.0, byte: 0.4 };
const MACHINE: Machine = Machine { near: NEAR, far: FAR, copy: 0.03, combine: 0.06 };

fn of(name: &str, op: Op, ranks: usize, len: usize, sync: (In, Out)) -> Shape {
    let algorithm: Algorithm = name.parse().unwrap_or_else(|e| panic!("{e}"));
    let (flow, way, scheme) = (algorithm.flow, algorithm.way, algorithm.scheme);
    let (source, dest, nodes, in_place) = (Kind::Shared, Kind::Shared, None, false);
    let (stride, grain, ordered) = (len, 1, false);
    algorithm.of(Shape {
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
    })
}

fn time(shape: &Shape) -> f64 {
    cost(shape, &MACHINE).unwrap_or_else(|| panic!("no plan for {shape:?}"))
}

const BROADCAST: Op = Op::Broadcast { root: 0, pieces: 1 };
const LEAST: (In, Out) = (In::No, Out::My);
const ALL: (In, Out) = (In::All, Out::All);

#[track_caller]
fn about(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6 * b, "{a} and {b}");
}

#[test]
fn by_hand() {
    let message = |len: f64| 2.0 * NEAR.overhead + NEAR.latency + len * NEAR.byte;
    about(time(&of("flat", BROADCAST, 2, 1000, LEAST)), message(1000.0));
    // The farthest are sent to first, so nobody waits but for those above.
    about(time(&of("tree2", BROADCAST, 8, 1000, LEAST)), 3.0 * message(1000.0));
    about(time(&of("ring", BROADCAST, 5, 1000, LEAST)), 4.0 * message(1000.0));
    // The last of so many puts that leave one after the other.
    let busy = NEAR.overhead + 1000.0 * NEAR.byte;
    about(time(&of("flat", BROADCAST, 5, 1000, LEAST)), 3.0 * busy + message(1000.0));
    about(time(&of("flat:pull", BROADCAST, 5, 1000, (In::No, Out::No))), NEAR.latency + NEAR.overhead + 100.0);
}

#[test]
fn what_is_dearer() {
    let dearer = |a: &str, b: &str, op: &Op, ranks: usize, len: usize| {
        let [x, y] = [a, b].map(|name| time(&of(name, op.clone(), ranks, len, ALL)));
        assert!(x > y, "{a} {x}, {b} {y}");
    };
    dearer("flat", "tree2", &BROADCAST, 2000, 8);
    dearer("scatter-gather2", "tree2", &BROADCAST, 64, 8);
    dearer("tree2", "scatter-gather2", &BROADCAST, 64, 1 << 20);
    dearer("pairwise", "bruck", &Op::Exchange, 128, 8);
    dearer("bruck", "pairwise", &Op::Exchange, 128, 1 << 16);
    dearer("ring", "dissemination", &Op::GatherAll, 128, 8);
    dearer("000:naive-push", "000:reference-push", &BROADCAST, 16, 4096);
    dearer("000:reference-push", "flat:push", &BROADCAST, 16, 4096);
    dearer("000:static", "000:dynamic", &Op::Gather { root: 0 }, 16, 4096);
}

#[test]
fn reductions() {
    let message = |len: f64| 2.0 * NEAR.overhead + NEAR.latency + len * (NEAR.byte + MACHINE.combine);
    // One operand lands where the other is combined with it.
    about(time(&of("tree2", Op::Reduce { root: 0 }, 2, 1000, (In::No, Out::No))), message(1000.0));
    about(time(&of("chain", Op::Prefix { exclusive: false }, 5, 1000, (In::No, Out::No))), 4.0 * message(1000.0));
    let dearer = |a: &str, b: &str, op: &Op, ranks: usize, len: usize| {
        let [x, y] = [a, b].map(|name| time(&of(name, op.clone(), ranks, len, ALL)));
        assert!(x > y, "{a} {x}, {b} {y}");
    };
    dearer("flat", "doubling", &Op::AllReduce, 128, 8);
    dearer("ring", "doubling", &Op::AllReduce, 128, 8);
    dearer("doubling", "ring", &Op::AllReduce, 128, 1 << 20);
    dearer("doubling", "slices", &Op::AllReduce, 128, 1 << 20);
    dearer("chain", "chain/16", &Op::Reduce { root: 3 }, 16, 1 << 20);
    dearer("tree2", "chain/16", &Op::Reduce { root: 3 }, 16, 1 << 20);
    dearer("chain", "dissemination", &Op::Prefix { exclusive: true }, 128, 8);
}

/// Sixteen ranks on each of eight nodes, dealt in turn, so that a tree of ranks is nearly all between nodes.
#[test]
fn nodes_matter() {
    let nodes = Some(Arc::new(Nodes::new(&(0..128).map(|r| r % 8).collect::<Vec<_>>())));
    let on_nodes = |name: &str, op: &Op| time(&Shape { nodes: nodes.clone(), ..of(name, op.clone(), 128, 8, LEAST) });
    for (op, other) in [(BROADCAST, "flat"), (BROADCAST, "tree2"), (Op::GatherAll, "flat"), (Op::GatherAll, "ring")] {
        assert!(on_nodes("nodes2", &op) < on_nodes(other, &op), "{op:?}");
    }
}
