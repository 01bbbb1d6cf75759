//! Which algorithm is taken when: a table that is data.
//!
//! ```text
//! table     = entry { (" " | ",") entry }
//! entry     = operation { "." condition } ":" rule { ";" rule }
//! operation = "broadcast" | "scatter" | "gather" | "gather_all" | "exchange" | "permute" | "reduce" | "all_reduce"
//!           | "prefix_reduce" | "any"
//! condition = "node" | "nodes"                   all ranks are on one node, or on several
//!           | "cores" | "crowded"                each rank has a core, or ranks share cores
//!           | "few" | "many"                     at most four of the ranks have a core at a time, or more
//!           | "two" | "more"                     there are two ranks (or one), or more
//!           | "all" | "my" | "no"                the sync mode has an All; has neither; or is No/No
//!           | "shared" | "private"               both buffers are shared, or one is not
//! rule      = [ from "-" [ to ] ":" ] algorithm
//! ```
//!
//! The first rule that fits is taken. It fits if the operation is the one, all conditions hold, a block has `from` bytes
//! or more and `to` or less, and the algorithm has plans for such a call; so rules may name what is best first, whatever
//! it cannot do. If none fits, it is flat, pushed or pulled as the buffers ask. A block is what a rank has or gets from
//! each, or a vector. [`name`] says what an algorithm is called.
//!
//! `broadcast.all:0-256:last;256-16k:flat:split;16k-:flat:pull` takes the last to arrive up to 256 bytes, 256 included.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::name::{self, Error, Size};
use super::{Algorithm, Flow, In, Kind, Nodes, Op, OpKind, Out, Scheme, Shape, Way};

/// What an algorithm may depend on, but the operation and the length. It is the same for all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// How many ranks there are.
    pub ranks: usize,
    /// They are on several nodes.
    pub nodes: bool,
    /// They share cores.
    pub crowded: bool,
    /// More than [`FEW`] of them have a core at a time, on each node that has as many.
    pub many: bool,
    /// When data may be touched.
    pub sync: (In, Out),
    /// Who may touch the source.
    pub source: Kind,
    /// Who may touch the destination.
    pub dest: Kind,
    /// The data begin where they end.
    pub in_place: bool,
    /// Operands keep their order.
    pub ordered: bool,
}

/// So many ranks at a time are few: what one of them does for all is hardly slower than what each does for itself.
pub const FEW: usize = 4;

/// Rules that choose an algorithm. See [the module](self).
///
/// ```
/// use partage_plan::coll::{In, Kind, OpKind, Out, Setting, Table};
///
/// let mine: Table = "broadcast.all:0-256:last;256-:ring/8 exchange:xor".parse().unwrap();
/// let table = mine.over(Table::default());
/// let (source, dest) = (Kind::Shared, Kind::Shared);
/// let sync = (In::All, Out::All);
/// let all = Setting { ranks: 8, nodes: false, crowded: false, many: true, sync, source, dest, in_place: false, ordered: false };
/// assert_eq!(table.choose(OpKind::Broadcast, &all, 256).to_string(), "last");
/// assert_eq!(table.choose(OpKind::Broadcast, &all, 257).to_string(), "ring/8:push");
/// // The last to arrive cannot touch what is private.
/// let private = Setting { source: Kind::Private, ..all };
/// assert_eq!(table.choose(OpKind::Broadcast, &private, 256).to_string(), "ring/8:push");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    /// None: any.
    op: Option<OpKind>,
    /// At most one of each group, in the order of [`GROUPS`].
    when: Vec<Condition>,
    rules: Vec<Rule>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    from: usize,
    /// None: however long.
    to: Option<usize>,
    algorithm: Algorithm,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    Node,
    Nodes,
    Cores,
    Crowded,
    Few,
    Many,
    Two,
    More,
    All,
    My,
    No,
    Shared,
    Private,
}

/// Those of a group exclude one another.
const GROUPS: [&[(&str, Condition)]; 6] = [
    &[("node", Condition::Node), ("nodes", Condition::Nodes)],
    &[("cores", Condition::Cores), ("crowded", Condition::Crowded)],
    &[("few", Condition::Few), ("many", Condition::Many)],
    &[("two", Condition::Two), ("more", Condition::More)],
    &[("all", Condition::All), ("my", Condition::My), ("no", Condition::No)],
    &[("shared", Condition::Shared), ("private", Condition::Private)],
];

impl Condition {
    fn holds(self, s: &Setting) -> bool {
        let shared = (s.source, s.dest) == (Kind::Shared, Kind::Shared);
        // Nobody can tell where both buffers are private.
        let private = (s.source, s.dest) == (Kind::Private, Kind::Private);
        let all = !private && (s.sync.0 == In::All || s.sync.1 == Out::All);
        let no = !private && s.sync == (In::No, Out::No);
        match self {
            Condition::Node => !s.nodes,
            Condition::Nodes => s.nodes,
            Condition::Cores => !s.crowded,
            Condition::Crowded => s.crowded,
            Condition::Few => !s.many,
            Condition::Many => s.many,
            Condition::Two => s.ranks <= 2,
            Condition::More => s.ranks > 2,
            Condition::All => all,
            Condition::No => no,
            Condition::My => !all && !no,
            Condition::Shared => shared,
            Condition::Private => !shared,
        }
    }

    fn group(self) -> usize {
        GROUPS.iter().position(|group| group.iter().any(|&(_, c)| c == self)).unwrap_or_default()
    }
}

impl Table {
    /// [`Table::default`].
    const BUILT_IN: &str = "\
        broadcast.node.crowded.many.all:0-1k:last;1k-:flat:pull \
        gather.node.many.all:57-2k:leader \
        gather_all.node.crowded.many.all:0-128k:flat:pull \
        gather_all.node.cores.many.all:57-32k:flat:pull;32k-128k:ring:push \
        gather_all.node.many.my.shared:128-128k:flat:pull \
        gather_all.node.cores.many.private:57-:flat:pull \
        gather_all.node.crowded.many.private:512k-:flat:pull \
        exchange.node.crowded.many.all:0-256k:flat:pull \
        exchange.node.cores.many.all:57-32k:flat:pull \
        exchange.node.many.my.shared:57-2k:flat:pull \
        scatter.node.many.private:8k-:flat:push \
        reduce.node.crowded.many.all:8k-128k:coop@2k;128k-512k:coop@8k \
        reduce.node.many.my:57-2k:flat:push;2k-32k:tree4:pull \
        reduce.node.many.my.shared:32k-128k:chain/4:push \
        reduce.node.cores.many.all:8k-128k:slices:push \
        reduce.node.many.private:32k-:chain/4:pull \
        all_reduce.node.crowded.many.all:4k-32k:coop@2k;32k-512k:coop@8k \
        all_reduce.node.cores.many.all:57-512:leader;8k-128k:slices:push;128k-:ring:push \
        all_reduce.node.crowded.many.my:57-8k:tree4:pull \
        all_reduce.node.cores.many.my.shared:57-512:doubling:push;512-2k:tree4:pull;8k-128k:slices:push;128k-:ring:push \
        all_reduce.node.cores.many.private:57-8k:doubling:push;8k-:slices:push \
        prefix_reduce.node.cores.many.all:128k-:chain/16:pull \
        prefix_reduce.node.cores.many.my:32k-:chain/4:push \
        gather.node.cores.few.more.all:57-2k:leader \
        gather_all.node.cores.few.more.all:128-8k:flat:pull \
        gather_all.node.cores.few.more.my:0-256:flat:mail;512-8k:flat:pull \
        exchange.node.cores.few.more.all:128-2k:flat:pull \
        reduce.node.cores.few.more.my:57-32k:flat:push \
        all_reduce.node.cores.few.more.my:0-256:flat:mail \
        prefix_reduce.node.cores.few.more.all:512-32k:flat:pull;128k-:chain/16:pull \
        prefix_reduce.node.cores.few.more.my:2k-32k:flat:pull;128k-:chain/4:push \
        broadcast.node.crowded.few.more.private:32k-128k:flat:pull@32k \
        scatter.node.crowded.few.more.all:2k-8k:last \
        scatter.node.crowded.few.more.private:32k-:flat:push \
        gather.node.crowded.few.more.all:2k-32k:leader \
        gather.node.crowded.few.more.private:32k-128k:flat:pull@32k;128k-:flat:pull \
        gather_all.node.crowded.few.more.my.shared:1k-128k:pairwise:pull \
        reduce.node.crowded.few.more.all:8k-512k:leader \
        reduce.node.crowded.few.more.my:57-8k:flat:push;8k-32k:flat:pull \
        reduce.node.crowded.few.more.private:32k-128k:flat:pull@32k;128k-:flat:pull \
        reduce.node.crowded.few.more.my:32k-:flat:pull \
        all_reduce.node.crowded.few.more.my:57-32k:tree4:pull \
        all_reduce.node.crowded.few.more.private:512k-:tree2:pull \
        prefix_reduce.node.crowded.few.more.all.shared:8k-:chain/4:pull \
        prefix_reduce.node.crowded.few.more.my:2k-8k:dissemination:push;8k-:chain/4:push \
        broadcast.node.all.two:0-56:last;57-1k:leader;1k-:flat:split \
        broadcast.node.all.crowded:0-16k:last;16k-:flat:pull \
        broadcast.node.all:0-1k:last;1k-:flat:pull \
        scatter.node.all.two:0-1k:last;256-:flat:pull \
        scatter.node.all:0-1k:last;1k-:flat:pull \
        gather.node.all.two:0-56:last;57-1k:leader;1k-512k:flat:split;512k-:flat:push \
        gather.node.all:0-1k:last;1k-:flat:push \
        gather_all.node.all.two:0-128:last;128-4k:flat:pull;4k-:flat:push \
        gather_all.node.all.crowded:0-1k:last;1k-256k:flat:pull;256k-:flat:push \
        gather_all.node.all:0-256:last;256-:flat:push \
        exchange.node.all.two:0-128:last;128-4k:flat:pull;4k-512k:flat:push;512k-:flat:pull \
        exchange.node.all.crowded:0-1k:last;1k-256k:flat:pull;256k-:flat:push \
        exchange.node.all:0-256:last;256-512k:flat:push;512k-:flat:pull \
        permute.node.all.two:0-256:last;256-:flat:pull \
        permute.node.all.crowded:57-:flat:pull \
        permute.node.all:0-256:last;256-:flat:push \
        all_reduce.node.all.two.shared:32k-512k:slices:pull \
        all_reduce.node.all.two:0-256:last;256-16k:flat:pull;16k-512k:coop@16k;512k-:slices:split \
        all_reduce.node.all.crowded:0-4k:last;4k-32k:coop@8k;32k-:coop@16k \
        all_reduce.node.all:0-1k:last;1k-:slices:split \
        reduce.node.all.two:0-56:last;57-1k:leader;1k-2m:flat:pull;2m-:slices:split \
        reduce.node.all.crowded:0-4k:last;4k-256k:flat:pull;256k-:coop@16k \
        reduce.node.all:0-1k:last;1k-:slices:split \
        prefix_reduce.node.all.two:0-256:last;256-:flat:pull \
        prefix_reduce.node.all.crowded:0-16k:last;16k-512k:coop@8k;512k-:slices:split \
        prefix_reduce.node.all:0-1k:last;1k-:slices:split \
        all_reduce.node.cores.more:0-256:doubling:mail \
        prefix_reduce.node.cores.more:0-256:dissemination:mail \
        broadcast.node.crowded.more:0-256:flat:post \
        scatter.node.crowded.more:0-256:flat:post \
        gather_all.node.more:0-256:flat:post \
        all_reduce.node.crowded.more:0-256:flat:post \
        prefix_reduce.node.crowded.more:0-256:flat:post \
        any.node:0-256:flat:mail \
        gather_all.node.crowded.private:1k-256k:flat:pull@32k \
        all_reduce.node.two.private:16k-128k:flat:pull@64k;128k-:flat:push \
        all_reduce.node.crowded.private:1k-256k:tree4:pull \
        reduce.node.two.private:16k-96k:flat:pull@32k;96k-:flat:pull \
        prefix_reduce.node.two.private:16k-:flat:push \
        reduce.node.my.two.shared:48k-1m:flat:pull \
        prefix_reduce.node.my.two.shared:16k-:flat:pull \
        all_reduce.node.two:0-16k:flat:pull;slices:split;slices:pull \
        all_reduce.node:0-1k:flat:pull;slices:split;slices:pull \
        reduce.node.two:0-16k:flat:pull;slices:split;slices:pull \
        reduce.node:0-1k:flat:pull;slices:split;slices:pull \
        prefix_reduce.node.two:0-16k:flat:pull;slices:split;slices:pull \
        prefix_reduce.node:0-1k:flat:pull;slices:split;slices:pull \
        broadcast.node.my.two:57-4k:flat:pull;flat:split \
        permute.node.my.two:256-:flat:pull \
        broadcast.node.my:flat:pull \
        scatter.node.my:flat:pull \
        all_reduce.nodes.two:0-256:flat:mail \
        all_reduce.nodes:0-256:leaders:mail \
        prefix_reduce.nodes:0-256:dissemination:mail \
        any.nodes:0-256:nodes2:mail;0-256:flat:mail \
        broadcast.nodes.crowded:0-256k:nodes2;256k-:nodes2/4 \
        broadcast.nodes:0-512k:nodes2;512k-:nodes2x2/8 \
        scatter.nodes:0-8k:nodes2 \
        scatter.nodes.cores.shared:32k-:flat:pull \
        gather.nodes:0-4k:nodes2 \
        gather_all.nodes.crowded:nodes2 \
        gather_all.nodes:nodes2x2 \
        exchange.nodes.crowded:0-16k:nodes2;flat \
        exchange.nodes:0-1k:nodes2;1k-16k:nodes2x2;flat \
        all_reduce.nodes.crowded:128k-1m:nodes2 \
        all_reduce.nodes:0-128k:leaders;0-128k:doubling;128k-:ring;128k-:tree2 \
        reduce.nodes:nodes2;tree2 \
        prefix_reduce.nodes:0-32k:dissemination;32k-:chain/4";

    /// No rules.
    pub fn empty() -> Table {
        Table { entries: vec![] }
    }

    /// The entries one by one, as text.
    pub fn entries(&self) -> impl Iterator<Item = String> {
        self.entries.iter().map(|entry| Table { entries: vec![entry.clone()] }.to_string())
    }

    /// These rules, and where none of them fits, those of `other`.
    #[must_use]
    pub fn over(mut self, other: Table) -> Table {
        self.entries.extend(other.entries);
        self
    }

    /// The algorithm for blocks of so many bytes.
    pub fn choose(&self, op: OpKind, setting: &Setting, bytes: usize) -> &Algorithm {
        self.choose_if(op, setting, bytes, |_| true)
    }

    /// The same of those that whoever runs it can run. The last resort is what needs the least.
    pub fn choose_if(
        &self,
        op: OpKind,
        setting: &Setting,
        bytes: usize,
        can: impl Fn(&Algorithm) -> bool,
    ) -> &Algorithm {
        let entries = self.entries.iter().filter(|e| e.op.is_none_or(|o| o == op));
        let rules = entries.filter(|e| e.when.iter().all(|c| c.holds(setting))).flat_map(|e| &e.rules);
        let mut long = rules.filter(|r| r.from <= bytes && r.to.is_none_or(|to| bytes <= to));
        match long.find(|r| r.algorithm.fits(op, setting) && can(&r.algorithm)) {
            Some(rule) => &rule.algorithm,
            // Operands are combined where they land, whatever the buffers are, if they have room there.
            None if op.combines() => [&PUSH, &PULL][usize::from(!can(&PUSH))],
            None if PUSH.fits(op, setting) && (setting.source, setting.dest) != (Kind::Shared, Kind::Private) => &PUSH,
            None => &PULL,
        }
    }
}

/// One of them fits always.
const PUSH: Algorithm = Algorithm { flow: Flow::Flat, way: Way::Push, scheme: Scheme::Fused, pieces: 1, packet: None };
const PULL: Algorithm = Algorithm { way: Way::Pull, ..PUSH };

impl Algorithm {
    /// Every block straight to where it must be, got by its receiver.
    pub const PULL: Algorithm = PULL;

    /// Does it have plans for such a call, if its shape says on which nodes ranks are? Between nodes, ordered operands also ask
    /// that those have [intervals](Nodes::are_intervals) of ranks, which only [`Shape::fits`] knows.
    pub fn fits(&self, op: OpKind, setting: &Setting) -> bool {
        self.shape(op, setting, 0).fits()
    }

    /// The shape of such a call with root 0 and blocks of so many bytes. On which nodes ranks are, and of more than two ranks where
    /// a permutation goes, is not said.
    pub fn shape(&self, op: OpKind, setting: &Setting, len: usize) -> Shape {
        let Setting { ranks, sync, source, dest, in_place, ordered, .. } = *setting;
        let op = match op {
            OpKind::Broadcast => Op::Broadcast { root: 0, pieces: 1 },
            OpKind::Scatter => Op::Scatter { root: 0 },
            OpKind::Gather => Op::Gather { root: 0 },
            OpKind::GatherAll => Op::GatherAll,
            OpKind::Exchange => Op::Exchange,
            // Of two ranks each knows where both blocks go.
            OpKind::Permute if ranks < 3 => Op::Permute { to: vec![] },
            OpKind::Permute => Op::Permute { to: vec![Op::UNKNOWN] },
            OpKind::Reduce => Op::Reduce { root: 0 },
            OpKind::AllReduce => Op::AllReduce,
            OpKind::Prefix => Op::Prefix { exclusive: false },
        };
        let (flow, way, scheme) = (self.flow, self.way, self.scheme);
        let (nodes, stride, grain) = (Some(Arc::new(Nodes::new(&[]))), len, 1);
        let shape =
            Shape { op, flow, way, scheme, sync, ranks, nodes, len, stride, source, dest, in_place, grain, ordered };
        self.of(shape)
    }
}

impl Default for Table {
    /// What measurements on two machines said, of two cores (`few`) and of sixteen (`many`).
    fn default() -> Table {
        match Table::BUILT_IN.parse() {
            Ok(table) => table,
            Err(error) => unreachable!("the built-in table: {error}"),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { " " })?;
            match entry.op {
                Some(op) => op.fmt(f)?,
                None => f.write_str("any")?,
            }
            for &c in &entry.when {
                write!(f, ".{}", name::word(GROUPS[c.group()], c).unwrap_or_default())?;
            }
            for (i, rule) in entry.rules.iter().enumerate() {
                f.write_str(if i == 0 { ":" } else { ";" })?;
                match (rule.from, rule.to) {
                    (0, None) => {}
                    (from, None) => write!(f, "{}-:", Size(from))?,
                    (from, Some(to)) => write!(f, "{}-{}:", Size(from), Size(to))?,
                }
                rule.algorithm.fmt(f)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Table {
    type Err = Error;

    fn from_str(s: &str) -> Result<Table, Error> {
        let entries = s.split([' ', ',', '\t', '\n']).filter(|entry| !entry.is_empty());
        Ok(Table { entries: entries.map(str::parse).collect::<Result<_, _>>()? })
    }
}

impl FromStr for Entry {
    type Err = Error;

    fn from_str(s: &str) -> Result<Entry, Error> {
        let Some((head, rules)) = s.split_once(':') else {
            return Err(Error(format!("{s:?}: an operation, a colon and an algorithm, as broadcast:tree2")));
        };
        let mut words = head.split('.');
        let op = match words.next() {
            Some("any") => None,
            op => Some(op.unwrap_or_default().parse()?),
        };
        let all: Vec<(&str, Condition)> = GROUPS.concat();
        let mut when: Vec<Condition> = vec![];
        for word in words {
            let c = name::value(&all, "condition", word)?;
            if when.iter().any(|other| other.group() == c.group()) {
                return Err(Error(format!("{head:?}: {word:?} and a word before it exclude each other")));
            }
            when.push(c);
        }
        when.sort_by_key(|c| c.group());
        Ok(Entry { op, when, rules: rules.split(';').map(str::parse).collect::<Result<_, _>>()? })
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(s: &str) -> Result<Rule, Error> {
        // No algorithm's name begins with a digit and has a dash before its way.
        let range = s.split_once(':').and_then(|(range, rest)| Some((range.split_once('-')?, rest)));
        let range = range.filter(|_| s.starts_with(|c: char| c.is_ascii_digit()));
        let Some(((from, to), algorithm)) = range else {
            return Ok(Rule { from: 0, to: None, algorithm: s.parse()? });
        };
        let from = from.parse::<Size>()?.0;
        let to = if to.is_empty() { None } else { Some(to.parse::<Size>()?.0) };
        if to.is_some_and(|to| to < from) {
            return Err(Error(format!("{s:?}: no length is {} or more and less than that", Size(from))));
        }
        Ok(Rule { from, to, algorithm: algorithm.parse()? })
    }
}
