//! What is measured: cells, and the algorithms that may win them. Arithmetic only.

use crate::bench::coll::cells::{Mode, Operation};
use partage::coll::{Algorithm, In, Out, Table};
use partage_conduit::coll::LETTER;
use partage_plan::coll::{Flow, Kind, OpKind, Setting, Way};

/// The lengths that are measured if nobody says which.
pub const LENGTHS: [usize; 9] = [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// All that may win, each with the fewest ranks for which it is something of its own. What does not fit a call is left out there; a
/// new algorithm is one line here.
const CANDIDATES: [(&str, usize); 27] = [
    ("flat:push", 2),
    ("flat:pull", 2),
    ("flat:split", 2),
    ("flat:mail", 2),
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
    ("dissemination:mail", 3),
    ("bruck:push", 3),
    ("bruck:mail", 3),
    ("scatter-gather2:push", 3),
];

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
}

/// The situations of these numbers of ranks.
pub fn situations(ranks: &[usize], cores: usize) -> Vec<Situation> {
    let mut all: Vec<Situation> = vec![];
    for &n in ranks {
        let crowded = n > cores;
        match all.iter_mut().find(|s| s.crowded == crowded && (s.ranks[0] > 2) == (n > 2)) {
            Some(same) if same.ranks.contains(&n) => {}
            Some(same) => same.ranks.push(n),
            None => all.push(Situation { ranks: vec![n], crowded }),
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
        let ranks = if self.situation.ranks[0] > 2 { "more" } else { "two" };
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
        let crowded = self.situation.crowded;
        let of = |&ranks: &usize| Setting {
            ranks,
            nodes: false,
            crowded,
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
    let alone = matches!(algorithm.flow, Flow::Leader(_) | Flow::Last);
    let part = algorithm.packet.map_or(bytes, |packet| packet.min(bytes));
    algorithm.fits(op, setting)
        && !(alone && op == OpKind::Permute)
        && (algorithm.way != Way::Mail || algorithm.shape(op, setting, part).message().max(part) <= LETTER)
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

/// Pieces are for broadcasts that are not tiny, packets for private buffers that are longer than one.
fn makes_sense(a: &Algorithm, cell: &Cell) -> bool {
    let pieces = a.pieces == 1 || cell.operation == Operation::Broadcast && cell.bytes >= 1 << 10;
    pieces && a.packet.is_none_or(|packet| cell.private && packet < cell.bytes)
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
        let of = |ranks: &[usize], cores| situations(ranks, cores).into_iter().map(|s| (s.ranks, s.crowded)).collect();
        let all: Vec<_> = of(&[2, 2, 4], 2);
        assert_eq!(all, [(vec![2], false), (vec![4], true)]);
        let all: Vec<_> = of(&[2, 8, 16, 32], 16);
        assert_eq!(all, [(vec![2], false), (vec![8, 16], false), (vec![32], true)]);
        let all: Vec<_> = of(&[2, 4], 1);
        assert_eq!(all, [(vec![2], true), (vec![4], true)]);
    }

    #[test]
    fn every_head_is_one_of_the_table() {
        let cells = all(&situations(&[2, 4], 2), &Operation::ALL, &LENGTHS);
        assert_eq!(cells.len(), 2 * Operation::ALL.len() * 3 * LENGTHS.len());
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
        for cell in all(&situations(&[2, 3, 8], 2), &Operation::ALL, &LENGTHS) {
            let all = algorithms(&cell, &[&built_in]);
            assert_eq!(all[0], cell.choice(&built_in));
            assert!(all.len() >= 2, "{cell:?}");
            assert!(all.iter().all(|a| cell.can_be(a)));
            let has = |name: &str| all.iter().any(|a| a.to_string() == name);
            assert!(!has("flat:mail") || cell.bytes <= LETTER, "{cell:?}");
            assert_eq!(has("last"), cell.mode == Mode::AllAll && cell.operation != Operation::Permute, "{cell:?}");
            assert!(!has("tree2:push") || cell.situation.ranks[0] > 2);
        }
        assert!(candidates(64).count() == CANDIDATES.len() && candidates(2).count() < 10);
    }
}
