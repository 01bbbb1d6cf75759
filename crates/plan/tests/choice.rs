//! Names of algorithms and tables of them.

use partage_plan::coll::{Algorithm, Flow, In, Kind, Op, OpKind, Out, Scheme, Setting, Shape, Table, Way};

const OPS: [OpKind; 9] = [
    OpKind::Broadcast,
    OpKind::Scatter,
    OpKind::Gather,
    OpKind::GatherAll,
    OpKind::Exchange,
    OpKind::Permute,
    OpKind::Reduce,
    OpKind::AllReduce,
    OpKind::Prefix,
];

const SHARED: Setting = Setting {
    ranks: 4,
    nodes: false,
    crowded: false,
    many: false,
    sync: (In::All, Out::All),
    source: Kind::Shared,
    dest: Kind::Shared,
    in_place: false,
    ordered: false,
};

/// All settings of 1, 2 and 5 ranks, the last as many.
fn settings() -> Vec<Setting> {
    let mut list = vec![];
    for bits in 0..64 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let kind = |i| if bit(i) { Kind::Private } else { Kind::Shared };
        for ranks in [1, 2, 5] {
            for sync in [In::No, In::My, In::All].into_iter().flat_map(|i| [Out::No, Out::My, Out::All].map(|o| (i, o)))
            {
                let (nodes, crowded, in_place, ordered) = (bit(0), bit(1), bit(2), bit(5));
                let (source, dest, many) = (kind(3), kind(4), ranks == 5);
                list.push(Setting { ranks, nodes, crowded, many, sync, source, dest, in_place, ordered });
            }
        }
    }
    list
}

#[test]
fn names_mean_what_they_say() {
    let named = |name: &str| name.parse::<Algorithm>().unwrap_or_else(|e| panic!("{e}"));
    let of = |flow, way| Algorithm { flow, way, scheme: Scheme::Fused, pieces: 1, packet: None };
    let split = of(Flow::Flat, Way::Split);
    let table = [
        ("flat", of(Flow::Flat, Way::Push), "flat:push"),
        ("flat:push", of(Flow::Flat, Way::Push), "flat:push"),
        ("flat:mail", of(Flow::Flat, Way::Mail), "flat:mail"),
        ("flat:post", of(Flow::Flat, Way::Post), "flat:post"),
        ("flat:split@8192", Algorithm { packet: Some(8192), ..split }, "flat:split@8k"),
        ("tree4:pull", of(Flow::Tree(4), Way::Pull), "tree4:pull"),
        ("ring/8", Algorithm { pieces: 8, ..of(Flow::Ring, Way::Push) }, "ring/8:push"),
        ("scatter-gather2", of(Flow::ScatterGather(2), Way::Push), "scatter-gather2:push"),
        ("nodes3x1:mail", of(Flow::Nodes(3, 1), Way::Mail), "nodes3:mail"),
        ("nodes2x4", of(Flow::Nodes(2, 4), Way::Push), "nodes2x4:push"),
        ("xor", of(Flow::Xor, Way::Push), "xor:push"),
        ("pairwise:pull", of(Flow::Pairwise, Way::Pull), "pairwise:pull"),
        ("bruck@1m", Algorithm { packet: Some(1 << 20), ..of(Flow::Bruck, Way::Push) }, "bruck:push@1m"),
        ("dissemination", of(Flow::Dissemination, Way::Push), "dissemination:push"),
        ("doubling:mail", of(Flow::Doubling, Way::Mail), "doubling:mail"),
        ("leaders", of(Flow::Leaders, Way::Push), "leaders:push"),
        ("slices:split", of(Flow::Slices, Way::Split), "slices:split"),
        ("coop", of(Flow::Coop(16 << 10), Way::Push), "coop@16k"),
        ("coop@4k", of(Flow::Coop(4 << 10), Way::Push), "coop@4k"),
        ("chain", of(Flow::Chain(1), Way::Push), "chain:push"),
        ("chain/8:pull", Algorithm { pieces: 8, ..of(Flow::Chain(1), Way::Pull) }, "chain/8:pull"),
        ("leader", of(Flow::Leader(None), Way::Push), "leader"),
        ("leader3", of(Flow::Leader(Some(3)), Way::Push), "leader3"),
        ("last@3000", Algorithm { packet: Some(3000), ..of(Flow::Last, Way::Push) }, "last@3000"),
    ];
    let naive = Algorithm { scheme: Scheme::Elements, ..of(Flow::Flat, Way::Pull) };
    let buffered = Algorithm { scheme: Scheme::Static, ..of(Flow::Gmtu, Way::Push) };
    let baselines = [
        ("000:naive-pull", naive, "000:naive-pull"),
        (
            "000:xor@1k",
            Algorithm { scheme: Scheme::Trees, packet: Some(1024), ..of(Flow::Xor, Way::Push) },
            "000:xor@1k",
        ),
        ("000:static", Algorithm { packet: Some(64 << 10), ..buffered }, "000:static@64k"),
        ("000:static@8192", Algorithm { packet: Some(8 << 10), ..buffered }, "000:static@8k"),
    ];
    for (name, algorithm, shown) in table.into_iter().chain(baselines) {
        assert_eq!(named(name), algorithm, "{name}");
        assert_eq!(algorithm.to_string(), shown);
        assert_eq!(named(shown), algorithm);
    }
}

#[test]
fn wrong_names_are_said_in_one_line() {
    let flows = "flat, pairwise, xor, ring, dissemination, bruck, doubling, leaders, chain, slices, coop, leader, last, tree2, scatter-gather2, nodes2, nodes2x4, 000:…";
    for (name, says) in [
        ("", &*format!("\"\" is no algorithm: {flows}")),
        ("tre2", flows),
        ("ring2", flows),
        ("tree", "tree2"),
        ("tree1:push", "radix of 2 to 65536"),
        ("tree9999999999999", "radix of 2 to 65536"),
        ("nodes2x1000000000000", "of at most 65536"),
        ("ring/1000000000000", "1 to 65536"),
        ("tree99999999999999999999", "radix of 2 to 65536"),
        ("nodes", "nodes2x4"),
        ("nodes1", "radix of 2 or more"),
        ("nodes2x0", "nodes2x4"),
        ("nodes2x+3", "nodes2x4"),
        ("flat:pul", "\"pul\" is no way: push, pull, split, mail, post"),
        ("flat:push:pull", "push, pull, split, mail"),
        ("flat@16q", "\"16q\" is no size"),
        ("flat@+1", "\"+1\" is no size"),
        ("flat@0", "one byte at least"),
        ("flat@99999999999g", "is no size"),
        (
            "000:",
            "is no baseline: naive-push, naive-pull, reference-push, reference-pull, straight-push, spanning-tree",
        ),
        ("000:tree2", "registered, dynamic, static"),
        ("000:static@4k", "8k to 64k"),
        ("000:static@65537", "8k to 64k"),
        ("ring/0", "1 to 65536"),
        ("ring/x", "1 to 65536"),
        ("ring/+8", "1 to 65536"),
        ("ring/", "1 to 65536"),
        ("last:pull", "has no way"),
        ("coop/2", "in one piece"),
        ("leader/2", "in one piece"),
        ("scatter-gather2/4", "as many pieces as ranks"),
        ("slices/4", "as many pieces as ranks"),
        ("chain8", flows),
    ] {
        let error = name.parse::<Algorithm>().expect_err(name).to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{name}: {error}");
    }
    for (table, says) in [
        ("broadcast", "a colon"),
        (
            "bcast:flat",
            "\"bcast\" is no operation: broadcast, scatter, gather, gather_all, exchange, permute, reduce, all_reduce",
        ),
        (
            "exchange.cold:flat",
            "is no condition: node, nodes, cores, crowded, few, many, two, more, all, my, no, shared, private",
        ),
        ("exchange.two.my.more:flat", "\"more\" and a word before it exclude each other"),
        ("gather:4k-1k:flat", "no length"),
        ("gather:0-x:flat", "\"x\" is no size"),
        ("gather:0-1k", "is no algorithm"),
        ("gather:0-1k:flat;", "is no algorithm"),
    ] {
        let error = table.parse::<Table>().expect_err(table).to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{table}: {error}");
    }
}

#[test]
fn random_tables_are_read_as_they_are_shown() {
    let mut random = Random(0x9e3779b97f4a7c15);
    for _ in 0..2000 {
        let entries: Vec<String> = (0..random.below(5)).map(|_| entry(&mut random)).collect();
        let shown = entries.join(" ");
        let table: Table = shown.parse().unwrap_or_else(|e| panic!("{shown}: {e}"));
        assert_eq!(table.to_string(), shown);
        assert_eq!(entries.join(", ").parse::<Table>().as_ref(), Ok(&table));
    }
}

/// An entry as it is shown.
fn entry(random: &mut Random) -> String {
    let ops = ["broadcast", "scatter", "gather", "gather_all", "exchange", "permute", "reduce", "all_reduce", "any"];
    let mut text = random.one(&ops).to_string();
    let groups: [&[&str]; 6] = [
        &["node", "nodes"],
        &["cores", "crowded"],
        &["few", "many"],
        &["two", "more"],
        &["all", "my", "no"],
        &["shared", "private"],
    ];
    for group in groups {
        if random.below(3) == 0 {
            text += &format!(".{}", random.one(group));
        }
    }
    for i in 0..1 + random.below(3) {
        text += if i == 0 { ":" } else { ";" };
        text += random.one(&["", "0-256:", "1-1:", "16k-:", "1k-3m:", "1025-2g:"]);
        text += match random.below(5) {
            0 => random.one(&["000:naive-push", "000:reference-pull", "000:ring", "000:dynamic"]),
            1 => random.one(&["leader", "leader0", "last"]),
            _ => random.one(&[
                "flat:",
                "tree2:",
                "tree17:",
                "ring/8:",
                "scatter-gather3:",
                "nodes2:",
                "nodes2x2/3:",
                "chain/2:",
            ]),
        };
        if text.ends_with(':') {
            text += random.one(&["push", "pull", "split", "mail", "post"]);
        }
        text += random.one(&["", "", "@1", "@16k", "@5m"]);
    }
    text
}

#[test]
fn the_first_rule_that_fits_is_taken() {
    let table: Table = "broadcast.two:last broadcast:0-1k:tree2;1k-4k:scatter-gather2;8k-:xor any.nodes:flat:pull"
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
    let choose = |op, setting: Setting, bytes| table.choose(op, &setting, bytes).to_string();
    assert_eq!(choose(OpKind::Broadcast, Setting { ranks: 2, ..SHARED }, 8), "last");
    // It needs shared buffers, and all to have entered.
    assert_eq!(choose(OpKind::Broadcast, Setting { ranks: 2, dest: Kind::Private, ..SHARED }, 8), "tree2:push");
    assert_eq!(choose(OpKind::Broadcast, Setting { ranks: 2, sync: (In::My, Out::All), ..SHARED }, 8), "tree2:push");
    // Both ends of a range are in it, and the first rule wins.
    assert_eq!(choose(OpKind::Broadcast, SHARED, 1024), "tree2:push");
    assert_eq!(choose(OpKind::Broadcast, SHARED, 4096), "scatter-gather2:push");
    // Between the ranges, and where the algorithm is for other operations.
    assert_eq!(choose(OpKind::Broadcast, SHARED, 4097), "flat:push");
    assert_eq!(choose(OpKind::Broadcast, SHARED, 8192), "flat:push");
    assert_eq!(choose(OpKind::Exchange, Setting { dest: Kind::Private, ..SHARED }, 8192), "flat:pull");
    assert_eq!(choose(OpKind::Exchange, Setting { source: Kind::Private, ..SHARED }, 8192), "flat:push");
    assert_eq!(choose(OpKind::Exchange, Setting { nodes: true, ..SHARED }, 8192), "flat:pull");
}

/// One rank does all of an exchange only where that is not too much for a plan, which each rank makes.
#[test]
fn one_does_not_do_all_for_many() {
    let table: Table = "any:last;leader;flat:pull".parse().unwrap_or_else(|e| panic!("{e}"));
    let choose = |op, ranks| table.choose(op, &Setting { ranks, ..SHARED }, 8).to_string();
    for op in [OpKind::Exchange, OpKind::GatherAll] {
        assert_eq!([32, 33].map(|ranks| choose(op, ranks)), ["last", "flat:pull"]);
    }
    assert_eq!(choose(OpKind::Gather, 100), "last");
}

/// A leader that is no rank does nothing, and another rule is taken.
#[test]
fn leaders_are_ranks() {
    let table: Table = "any:leader4;tree2".parse().unwrap_or_else(|e| panic!("{e}"));
    let choose = |ranks| table.choose(OpKind::Broadcast, &Setting { ranks, ..SHARED }, 8).to_string();
    assert_eq!([4, 5, 6].map(choose), ["tree2:push", "leader4", "leader4"]);
    let leader4: Algorithm = "leader4".parse().unwrap_or_else(|e| panic!("{e}"));
    let shape = |ranks| leader4.shape(OpKind::AllReduce, &Setting { ranks, ..SHARED }, 8);
    let plan = |ranks| Shape { nodes: None, ..shape(ranks) }.plan(0);
    assert!(plan(4).is_none() && plan(5).is_some());
}

/// GMTU scatters down a tree if half of all blocks fit into its buffer, and else to one after the other.
#[test]
fn the_buffer_decides() {
    let algorithm: Algorithm = "000:static@8k".parse().unwrap_or_else(|e| panic!("{e}"));
    let of = |op: Op, len: usize, stride: usize| {
        let (flow, way, scheme) = (algorithm.flow, algorithm.way, algorithm.scheme);
        let (source, dest, sync) = (Kind::Shared, Kind::Shared, (In::All, Out::All));
        let (ranks, nodes, in_place, grain, ordered) = (8, None, false, 1, false);
        let shape =
            Shape { op, flow, way, scheme, sync, ranks, nodes, len, stride, source, dest, in_place, grain, ordered };
        let shape = algorithm.of(shape);
        assert!(shape.fits(), "{shape:?}");
        (shape.flow, shape.scheme)
    };
    let scatter = Op::Scatter { root: 1 };
    assert_eq!(of(scatter.clone(), 2048, 2048), (Flow::Tree(2), Scheme::Dynamic));
    assert_eq!(of(scatter.clone(), 2049, 2049), (Flow::Flat, Scheme::Static));
    // The last part of a long block.
    assert_eq!(of(scatter, 1, 100_000), (Flow::Flat, Scheme::Static));
    assert_eq!(of(Op::Gather { root: 1 }, 1, 1), (Flow::Flat, Scheme::Static));
    assert_eq!(of(Op::GatherAll, 1, 1), (Flow::Ring, Scheme::Static));
    assert_eq!(of(Op::Exchange, 1, 1), (Flow::Xor, Scheme::Static));
    assert_eq!(of(Op::Broadcast { root: 1, pieces: 1 }, 1, 1), (Flow::Tree(2), Scheme::Static));
}

#[test]
fn what_is_chosen_has_plans() {
    let empty: Table = "".parse().unwrap_or_else(|e| panic!("{e}"));
    let mut seen = std::collections::BTreeSet::new();
    for table in [Table::default(), empty] {
        for setting in settings() {
            for op in OPS {
                for bytes in [0, 8, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
                    let algorithm = table.choose(op, &setting, bytes);
                    assert!(algorithm.fits(op, &setting), "{algorithm} for {op}, {setting:?}");
                    seen.insert(algorithm.to_string());
                }
            }
        }
    }
    // No rule of the built-in table is read wrongly.
    let built_in = Table::default().to_string();
    assert_eq!(built_in.parse(), Ok(Table::default()));
    let some = [
        "leader",
        "last",
        "flat:mail",
        "flat:post",
        "flat:split",
        "nodes2:push",
        "slices:split",
        "slices:pull",
        "coop@16k",
        "chain/4:push",
    ];
    assert!(some.iter().all(|&a| seen.contains(a)), "{seen:?}");
}

/// Short blocks pass between nodes by leaders, in letters where they are short enough; two ranks have nobody to lead.
#[test]
fn short_blocks_pass_between_nodes_by_leaders() {
    let table = Table::default();
    let all = [In::No, In::My, In::All].into_iter().zip([Out::No, Out::My, Out::All]);
    let by_leaders = |a: &Algorithm| matches!(a.flow, Flow::Nodes(..) | Flow::Leaders);
    for sync in all {
        let setting = Setting { nodes: true, sync, ..SHARED };
        for op in OPS.into_iter().filter(|op| !matches!(op, OpKind::Permute | OpKind::Prefix)) {
            for bytes in [8, 256, 257, 4 << 10] {
                let algorithm = table.choose(op, &setting, bytes);
                assert!(by_leaders(algorithm), "{op} of {bytes}: {algorithm}");
                assert_eq!(algorithm.way == Way::Mail, bytes <= 256, "{op} of {bytes}: {algorithm}");
            }
            // Whoever cannot run what is too long for a letter takes what passes data by themselves.
            let other = table.choose_if(op, &setting, 256, |a| a.way != Way::Mail);
            assert!(by_leaders(other), "{op}: {other}");
        }
        assert_eq!(table.choose(OpKind::Permute, &setting, 8).to_string(), "flat:mail");
        assert_eq!(table.choose(OpKind::Prefix, &setting, 8).to_string(), "dissemination:mail");
        let two = Setting { ranks: 2, ..setting };
        assert_eq!(table.choose(OpKind::AllReduce, &two, 8).to_string(), "flat:mail");
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

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}
