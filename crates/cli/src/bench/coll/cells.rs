//! What is measured, and what it may be: operations, modes, sizes, limits. Arithmetic only.

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Broadcast,
    Scatter,
    Gather,
    GatherAll,
    Exchange,
    Permute,
    Reduce,
    AllReduce,
    Prefix,
    /// None of [`ALL`](Self::ALL): nothing is moved.
    Barrier,
}

use Operation::*;

impl Operation {
    /// All that move data, in the order in which they are measured.
    pub const ALL: [Operation; 9] =
        [Broadcast, Scatter, Gather, GatherAll, Exchange, Permute, Reduce, AllReduce, Prefix];

    /// As in the name of a figure.
    pub fn name(self) -> &'static str {
        match self {
            Broadcast => "broadcast",
            Scatter => "scatter",
            Gather => "gather",
            GatherAll => "gather_all",
            Exchange => "exchange",
            Permute => "permute",
            Reduce => "reduce",
            AllReduce => "all_reduce",
            Prefix => "prefix_reduce",
            Barrier => "barrier",
        }
    }

    /// Is there a root?
    pub fn is_rooted(self) -> bool {
        matches!(self, Broadcast | Scatter | Gather | Reduce)
    }

    /// Are elements combined?
    pub fn reduces(self) -> bool {
        matches!(self, Reduce | AllReduce | Prefix)
    }
}

/// When data may be touched, and what a rank that returns knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    AllAll,
    MyMy,
    NoNo,
}

impl Mode {
    /// As in the name of a figure.
    pub fn name(self) -> &'static str {
        match self {
            Mode::AllAll => "all-all",
            Mode::MyMy => "my-my",
            Mode::NoNo => "no-no",
        }
    }
}

/// One cell: it is measured in all modes, beside everything that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The collective.
    pub operation: Operation,
    /// Bytes of a block.
    pub bytes: usize,
    /// Do the owners write their source before each call, and read what they get after it?
    pub touched: bool,
    /// A stream of broadcasts from one root without any synchronization, beside the same with all of it.
    pub stream: bool,
}

impl Cell {
    /// The name of a figure of this cell.
    pub fn name(&self, ranks: usize, mode: Mode) -> String {
        let stream = if self.stream { "_stream" } else { "" };
        format!("{}{stream}/{}/{ranks}/{}", self.operation.name(), self.bytes, mode.name())
    }

    /// The modes in which it is measured.
    pub fn modes(&self) -> &'static [Mode] {
        if self.stream { &[Mode::NoNo, Mode::AllAll] } else { &[Mode::AllAll, Mode::MyMy] }
    }

    /// What the ratio to the floor may be: that of code by hand, or for a stream without synchronization that with it.
    pub fn floor_limit(&self, mode: Mode) -> Option<f64> {
        match (self.stream, mode) {
            (true, Mode::NoNo) => Some(0.25),
            (false, _) if !self.operation.reduces() => Some(1.1),
            _ => None,
        }
    }

    /// What the ratio to Open MPI may be where so many ranks have two cores.
    pub fn peer_limit(&self, ranks: usize, mode: Mode) -> Option<f64> {
        let Cell { operation, bytes, touched, stream } = *self;
        let by_ranks = |limits: [f64; 3]| match ranks {
            4 => Some(limits[0]),
            8 => Some(limits[1]),
            16 => Some(limits[2]),
            _ => None,
        };
        // Where ranks share cores: of these two MPI promises no more.
        let sharing = if matches!(operation, Broadcast | Scatter) { Mode::MyMy } else { Mode::AllAll };
        match (ranks, bytes, mode, touched) {
            _ if stream => None,
            _ if operation.reduces() => self.reduction_limit(ranks, mode),
            (2, 8, Mode::AllAll, _) => Some(if operation.is_rooted() { 0.65 } else { 0.6 }),
            (2, 8, Mode::MyMy, _) => Some(if operation.is_rooted() { 0.5 } else { 0.4 }),
            // The peer of a permutation is an exchange: a figure to look at, but for the smallest.
            _ if operation == Permute => None,
            (2, 1024, Mode::AllAll, touched) => Some(if touched { 0.85 } else { 0.5 }),
            (2, 0x1_0000, Mode::AllAll, true) => Some(0.75),
            (2, 0x10_0000, Mode::AllAll, true) => Some(if operation.is_rooted() { 0.5 } else { 0.75 }),
            (2, ..) => None,
            (_, 8, mode, _) if mode == sharing => {
                by_ranks(if sharing == Mode::MyMy { [0.95, 0.75, 0.75] } else { [0.85, 0.5, 0.4] })
            }
            (_, 0x1_0000, mode, false) if mode == sharing => by_ranks([0.65; 3]),
            (_, 0x10_0000, Mode::AllAll, false) if matches!(operation, GatherAll | Exchange) => by_ranks([0.75; 3]),
            _ => None,
        }
    }

    fn reduction_limit(&self, ranks: usize, mode: Mode) -> Option<f64> {
        let Cell { operation, bytes, touched, .. } = *self;
        match (ranks, bytes, mode, operation) {
            (2, 0x10_0000, Mode::AllAll, _) if touched => Some(0.5),
            (_, 0x1_0000, Mode::AllAll, AllReduce) if ranks > 2 && !touched => Some(0.3),
            (_, 0x10_0000, Mode::AllAll, AllReduce) if ranks > 2 && !touched => Some(0.4),
            (.., Prefix) => None,
            (2, 8, Mode::AllAll, _) => Some(0.6),
            (2, 8, Mode::MyMy, _) => Some(if operation == Reduce { 0.5 } else { 0.4 }),
            (2, 1024, Mode::AllAll, _) if touched => Some(0.8),
            (2, 0x1_0000, Mode::AllAll, _) if touched => Some(0.7),
            (4, 8, Mode::AllAll, _) => Some(0.75),
            (8, 8, Mode::AllAll, _) => Some(0.45),
            (16, 8, Mode::AllAll, _) => Some(0.35),
            _ => None,
        }
    }
}

/// All cells of these sizes.
pub fn all(sizes: &[usize]) -> Vec<Cell> {
    let mut cells = vec![];
    for operation in Operation::ALL {
        for &bytes in sizes {
            for touched in [false, true] {
                cells.push(Cell { operation, bytes, touched, stream: false });
            }
        }
        if operation == Broadcast && sizes.contains(&8) {
            cells.push(Cell { operation, bytes: 8, touched: false, stream: true });
        }
    }
    cells
}

/// Is a figure named? By its name, by the beginning of it up to a stroke, or not at all.
pub fn is_named(name: &str, only: &[String]) -> bool {
    let begins =
        |o: &String| name.strip_prefix(o.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    only.is_empty() || only.iter().any(begins)
}

/// A number of bytes: 8, 1k, 1m. Blocks are of words, so it is a multiple of 8.
pub fn size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => lower.strip_suffix('m').map_or((lower.as_str(), 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(n) if n > 0 && n % 8 == 0 && n <= 64 << 20 => Ok(n),
        _ => Err("give a multiple of 8 up to 64m, such as 8, 1k or 1m".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(["8", "1k", "64K", "1m"].map(|s| size(s).unwrap()), [8, 1024, 64 << 10, 1 << 20]);
        for bad in ["", "0", "7", "k", "-8", "1g", "65m", "99999999999999999999m"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_have_names_of_their_own() {
        let cells = all(&[8, 1024]);
        let mut names: Vec<_> =
            cells.iter().flat_map(|c| c.modes().iter().map(|&m| (c.name(2, m), c.touched))).collect();
        assert!(names.contains(&("gather_all/1024/2/my-my".into(), true)));
        assert!(names.contains(&("broadcast_stream/8/2/no-no".into(), false)));
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]));
        assert_eq!(names.len(), 9 * 2 * 2 * 2 + 2);
        let only = |name: &str| is_named("broadcast_stream/8/2/no-no", &[name.into()]);
        assert!(only("broadcast_stream") && only("broadcast_stream/8") && only("broadcast_stream/8/2/no-no"));
        assert!(!only("broadcast") && !only("broadcast_stream/8/2/n") && is_named("gather/8/2/my-my", &[]));
    }

    #[test]
    fn limits_are_those_that_were_set() {
        let limit = |operation, bytes, touched, ranks, mode| {
            Cell { operation, bytes, touched, stream: false }.peer_limit(ranks, mode)
        };
        assert_eq!(limit(Gather, 8, true, 2, Mode::AllAll), Some(0.65));
        assert_eq!(limit(Permute, 8, true, 2, Mode::MyMy), Some(0.4));
        assert_eq!(limit(Exchange, 1 << 20, true, 2, Mode::AllAll), Some(0.75));
        assert_eq!(limit(Scatter, 8, false, 16, Mode::MyMy), Some(0.75));
        assert_eq!(limit(Scatter, 8, false, 16, Mode::AllAll), None);
        assert_eq!(limit(GatherAll, 8, false, 8, Mode::AllAll), Some(0.5));
        assert_eq!(limit(GatherAll, 1 << 20, false, 16, Mode::AllAll), Some(0.75));
        assert_eq!(limit(Broadcast, 64 << 10, false, 4, Mode::MyMy), Some(0.65));
        assert_eq!(limit(Broadcast, 64 << 10, false, 4, Mode::AllAll), None);
        assert_eq!(limit(Gather, 64 << 10, false, 4, Mode::AllAll), Some(0.65));
        assert_eq!(limit(AllReduce, 8, false, 16, Mode::AllAll), Some(0.35));
        assert_eq!(limit(Reduce, 8, true, 2, Mode::MyMy), Some(0.5));
        assert_eq!(limit(Prefix, 1 << 20, true, 2, Mode::AllAll), Some(0.5));
        assert_eq!(limit(Prefix, 8, true, 2, Mode::AllAll), None);
    }
}
