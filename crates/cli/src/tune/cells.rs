//! What is measured: cells, and the algorithms that may win them. Arithmetic only.

use crate::bench::coll::cells::{Mode, Operation};
use partage::coll::{Algorithm, In, Out, Table};
use partage_conduit::coll::LETTER;
use partage_plan::coll::{FEW, Flow, Kind, OpKind, Setting, Way};

/// The lengths that are measured if nobody says which.
pub const LENGTHS: [usize; 9] = [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// All that may win, each with the fewest ranks for which it is something of its own. What does not fit a call is left out there; a
/// new algorithm is one line here.
const CANDIDATES: [(&str, usize); 45] = [
    ("flat:push", 2),
    ("flat:pull", 2),
    ("flat:split", 2),
    ("flat:mail", 2),
    ("flat:post", 2),
    ("leader", 2),
    ("last", 2),
    ("flat:push@32k", 2),
    ("flat:pull@32k", 2),
    ("flat/4:push", 2),
    ("pairwise:push", 3),
    ("pairwise:pull", 3),
    ("xor:push", 3),
    ("xor:pull", 3),
    ("tree2:push", 3),
    ("tree2:pull", 3),
    ("tree2:mail", 3),
    ("tree4:push", 4),
    ("tree4:pull", 4),
    ("ring:push", 3),
    ("ring:pull", 3),
    ("ring/8:push", 3),
    ("ring/8:pull", 3),
    ("dissemination:push", 3),
    ("dissemination:pull", 3),
    ("dissemination:mail", 3),
    ("bruck:push", 3),
    ("bruck:mail", 3),
    ("scatter-gather2:push", 3),
    ("slices:push", 2),
    ("slices:pull", 2),
    ("slices:split", 2),
    ("coop@2k", 2),
    ("coop@8k", 2),
    ("coop@16k", 2),
    ("doubling:push", 3),
    ("doubling:pull", 3),
    ("doubling:mail", 3),
    ("leaders:mail", 3),
    ("chain:push", 3),
    ("chain:pull", 3),
    ("chain:mail", 3),
    ("chain/4:push", 3),
    ("chain/4:pull", 3),
    ("chain/16:pull", 3),
];

/// A rank's part of a vector has so many bytes at least.
const LINE: usize = 64;
/// Pieces of a chain have so many bytes at least; what is shorter than four of them passes whole.
const PIECE: usize = 4 << 10;
/// Vectors up to this length pass whole in each of several rounds.
const WHOLE: usize = 128 << 10;
/// Ranks claim so many chunks at most.
const CLAIMS: usize = 64;

/// The candidates.
pub fn candidates(ranks: usize) -> impl Iterator<Item = Algorithm> {
    let of_its_own = CANDIDATES.iter().filter(move |(_, fewest)| *fewest <= ranks);
    of_its_own.map(|(name, _)| name.parse().expect("its name"))
}

/// Ranks, as far as a rule can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Numbers of ranks for which the same rule holds.
    pub ranks: Vec<usize>,
    /// They share cores.
    pub crowded: bool,
    /// More than [`FEW`] have a core at a time.
    pub many: bool,
}

/// The situations of these numbers of ranks.
pub fn situations(ranks: &[usize], cores: usize) -> Vec<Situation> {
    let mut all: Vec<Situation> = vec![];
    for &n in ranks {
        let (crowded, many) = (n > cores, n.min(cores) > FEW);
        match all.iter_mut().find(|s| (s.crowded, s.many) == (crowded, many) && (s.ranks[0] > 2) == (n > 2)) {
            Some(same) if same.ranks.contains(&n) => {}
            Some(same) => same.ranks.push(n),
            None => all.push(Situation { ranks: vec![n], crowded, many }),
        }
    }
    all
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Who calls.
    pub situation: Situation,
    /// What.
    pub operation: Operation,
    /// When data may be touched.
    pub mode: Mode,
    /// Slices of one's own, not shared arrays.
    pub private: bool,
    /// Bytes of a block.
    pub bytes: usize,
}

/// All cells, in order. With private buffers there is one mode, for nobody can tell.
pub fn all(situations: &[Situation], operations: &[Operation], lengths: &[usize]) -> Vec<Cell> {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    lengths.dedup();
    let mut cells = vec![];
    for situation in situations {
        for &operation in operations {
            for (mode, private) in [(Mode::AllAll, false), (Mode::MyMy, false), (Mode::MyMy, true)] {
                for &bytes in &lengths {
                    cells.push(Cell { situation: situation.clone(), operation, mode, private, bytes });
                }
            }
        }
    }
    cells
}

impl Cell {
    /// How an entry of the table begins that is for this cell.
    pub fn head(&self) -> String {
        let cores = if self.situation.crowded { "crowded" } else { "cores" };
        let ranks = match self.situation.ranks[0] {
            ..=2 => "two",
            _ if self.situation.many => "many.more",
            _ => "few.more",
        };
        let sync = if self.mode == Mode::AllAll { "all" } else { "my" };
        let kind = if self.private { "private" } else { "shared" };
        format!("{}.node.{cores}.{ranks}.{sync}.{kind}", self.operation.name())
    }

    /// Bytes of all buffers together, where there are most ranks.
    pub fn memory(&self) -> u64 {
        let ranks = self.situation.ranks.iter().max().map_or(0, |&n| n as u64);
        2 * ranks * (ranks + 1) * self.bytes as u64
    }

    /// What a table takes, if its choice is to be run on all numbers of ranks.
    pub fn choice(&self, table: &Table) -> Algorithm {
        *table.choose_if(self.op(), &self.settings()[0], self.bytes, |a| self.can_be(a))
    }

    fn op(&self) -> OpKind {
        self.operation.name().parse().expect("the same names")
    }

    fn can_be(&self, algorithm: &Algorithm) -> bool {
        self.settings().iter().all(|setting| can_run(algorithm, self.op(), setting, self.bytes))
    }

    /// By numbers of ranks.
    fn settings(&self) -> Vec<Setting> {
        let sync = if self.mode == Mode::AllAll { (In::All, Out::All) } else { (In::My, Out::My) };
        let kind = if self.private { Kind::Private } else { Kind::Shared };
        let in_place = self.operation == Operation::Broadcast;
        let Situation { crowded, many, .. } = self.situation;
        let of = |&ranks: &usize| Setting {
            ranks,
            nodes: false,
            crowded,
            many,
            sync,
            source: kind,
            dest: kind,
            in_place,
            ordered: false,
        };
        self.situation.ranks.iter().map(of).collect()
    }
}

/// Has it plans that ranks of one node can run?
pub fn can_run(algorithm: &Algorithm, op: OpKind, setting: &Setting, bytes: usize) -> bool {
    // No rank knows the whole permutation.
    let alone = algorithm.flow.touches_all();
    let part = algorithm.packet.map_or(bytes, |packet| packet.min(bytes));
    algorithm.fits(op, setting)
        && !(alone && op == OpKind::Permute)
        && (!matches!(algorithm.way, Way::Mail | Way::Post)
            || algorithm.shape(op, setting, part).message().max(part) <= LETTER)
}

/// Those that may win a cell: what the tables take, and the candidates that make sense there.
pub fn algorithms(cell: &Cell, tables: &[&Table]) -> Vec<Algorithm> {
    let fewest = cell.situation.ranks.iter().min().copied().unwrap_or(2);
    let mut found: Vec<Algorithm> = tables.iter().map(|table| cell.choice(table)).collect();
    found.extend(candidates(fewest).filter(|a| makes_sense(a, cell) && cell.can_be(a)));
    let mut unique: Vec<Algorithm> = vec![];
    for algorithm in found {
        if !unique.contains(&algorithm) {
            unique.push(algorithm);
        }
    }
    unique
}

/// Packets are for private buffers that are longer than one.
fn makes_sense(a: &Algorithm, cell: &Cell) -> bool {
    let most = cell.situation.ranks.iter().max().copied().unwrap_or(2);
    is_sensible(a, cell.operation, most, cell.bytes)
        && a.packet.is_none_or(|packet| cell.private && packet < cell.bytes)
}

/// Is it something of its own for blocks of so many bytes, and not hopeless?
pub fn is_sensible(a: &Algorithm, operation: Operation, ranks: usize, bytes: usize) -> bool {
    let reduces = operation.reduces();
    match a.flow {
        Flow::Chain(_) if a.pieces == 1 => bytes < 4 * PIECE,
        Flow::Chain(_) => bytes >= a.pieces * PIECE,
        // Other pieces are for broadcasts that are not tiny.
        _ if a.pieces > 1 => operation == Operation::Broadcast && bytes >= 1 << 10,
        Flow::Slices | Flow::Ring if reduces => bytes >= ranks * LINE,
        Flow::Doubling | Flow::Leaders | Flow::Dissemination if reduces => bytes <= WHOLE,
        Flow::Coop(chunk) => 2 * chunk <= bytes && bytes <= CLAIMS * chunk,
        // What passes are operands only, which are pulled.
        Flow::Flat if reduces => a.way != Way::Split,
        _ => true,
    }
}

/// The names of all algorithms that these cells may need.
pub fn names(cells: &[Cell], tables: &[&Table]) -> Vec<String> {
    let mut names: Vec<String> = cells.iter().flat_map(|c| algorithms(c, tables)).map(|a| a.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_apart_as_rules_do() {
        let of = |ranks: &[usize], cores| {
            situations(ranks, cores).into_iter().map(|s| (s.ranks, s.crowded, s.many)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[2, 2, 4], 2), [(vec![2], false, false), (vec![4], true, false)]);
        let all =
            [(vec![2], false, false), (vec![4], false, false), (vec![8, 16], false, true), (vec![32], true, true)];
        assert_eq!(of(&[2, 4, 8, 16, 32], 16), all);
        assert_eq!(of(&[2, 4], 1), [(vec![2], true, false), (vec![4], true, false)]);
    }

    #[test]
    fn every_head_is_one_of_the_table() {
        let cells = all(&situations(&[2, 4, 8, 9], 8), &Operation::ALL, &LENGTHS);
        assert_eq!(cells.len(), 4 * Operation::ALL.len() * 3 * LENGTHS.len());
        for cell in &cells {
            let entry = format!("{}:flat:push", cell.head());
            assert_eq!(entry.parse::<Table>().unwrap().to_string(), entry);
            // A rule for this cell is the one that is taken.
            assert_eq!(cell.choice(&entry.parse().unwrap()).to_string(), "flat:push", "{entry}");
        }
    }

    #[test]
    fn candidates_can_be_run() {
        let built_in = Table::default();
        for cell in all(&situations(&[2, 3, 8, 9, 5], 7), &Operation::ALL, &LENGTHS) {
            let all = algorithms(&cell, &[&built_in]);
            assert_eq!(all[0], cell.choice(&built_in));
            assert!(all.len() >= 2, "{cell:?}");
            assert!(all.iter().all(|a| cell.can_be(a)));
            let has = |name: &str| all.iter().any(|a| a.to_string() == name);
            let is_letter = cell.bytes <= LETTER;
            assert!(is_letter || !has("flat:mail") && !has("flat:post"), "{cell:?}");
            assert_eq!(has("flat:post"), is_letter && cell.operation != Operation::Exchange, "{cell:?}");
            assert_eq!(has("last"), cell.mode == Mode::AllAll && cell.operation != Operation::Permute, "{cell:?}");
            assert!(!has("tree2:push") || cell.situation.ranks[0] > 2);
        }
        assert!(candidates(64).count() == CANDIDATES.len() && candidates(2).count() < CANDIDATES.len() / 2);
    }

    /// Whatever flow a reduction has is tried, whether a table names it or not; but not so many that it takes too long.
    #[test]
    fn reductions_have_all_their_flows() {
        let reductions = [Operation::Reduce, Operation::AllReduce, Operation::Prefix];
        for cell in all(&situations(&[2, 4, 8], 2), &reductions, &LENGTHS) {
            let found = algorithms(&cell, &[]);
            assert!(found.len() <= 21, "{cell:?}: {found:?}");
            assert!(found.iter().all(|a| cell.can_be(a)), "{cell:?}");
            let Cell { operation, mode, private, bytes, .. } = cell;
            let (all_reduce, prefix) = (operation == Operation::AllReduce, operation == Operation::Prefix);
            let more = cell.situation.ranks[0] > 2;
            let has_parts = bytes >= if more { 8 * LINE } else { 2 * LINE };
            for (flow, wanted) in [
                ("flat", true),
                ("leader", mode == Mode::AllAll),
                ("last", mode == Mode::AllAll),
                ("slices", has_parts),
                ("coop", mode == Mode::AllAll && bytes >= 4 << 10),
                ("chain", more),
                ("tree2", more && !prefix),
                ("tree4", more && !prefix),
                ("ring", more && all_reduce && has_parts),
                ("doubling", more && all_reduce && bytes <= WHOLE),
                ("leaders", more && all_reduce && bytes <= LETTER),
                ("dissemination", more && prefix && bytes <= WHOLE),
            ] {
                let has = found.iter().any(|a| a.flow.to_string() == flow);
                assert_eq!(has, wanted, "{flow}: {cell:?}: {found:?}");
            }
            for (name, wanted) in [
                ("flat:split", false),
                ("slices:split", has_parts && !private),
                ("slices:push", has_parts),
                ("slices:pull", has_parts),
                ("doubling:mail", more && all_reduce && bytes <= LETTER),
                ("chain:mail", more && bytes <= LETTER),
                ("chain:pull", more && bytes < 16 << 10),
                ("chain/4:pull", more && bytes >= 16 << 10),
                ("chain/16:pull", more && bytes >= 64 << 10),
            ] {
                let has = found.iter().any(|a| a.to_string() == name);
                assert_eq!(has, wanted, "{name}: {cell:?}: {found:?}");
            }
        }
    }
}
