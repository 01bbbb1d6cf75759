//! Algorithms by name.
//!
//! ```text
//! algorithm = flow [ "/" pieces ] [ ":" way ] [ "@" packet ] | "000:" baseline [ "@" packet ]
//! flow      = "flat" | "pairwise" | "xor" | "tree"k | "ring" | "dissemination" | "bruck" | "scatter-gather"k
//!           | "doubling" | "leaders" | "chain" | "slices" | "coop" | "nodes"k [ "x" leaders ] | "leader" [ rank ] | "last"
//! way       = "push" | "pull" | "split" | "mail" | "post"
//! baseline  = "naive-push" | "naive-pull" | "reference-push" | "reference-pull" | "straight-push" | "spanning-tree" | "xor"
//!           | "ring" | "registered" | "dynamic" | "static"
//! ```
//!
//! Not said: one piece; push. `pieces` are those of a broadcast or of a `chain`, one behind the other. A `packet` is a size (`16k`):
//! longer blocks pass in parts of so many bytes; of `coop`, ranks claim so many at a time (16k if not said). `leader`,
//! `last` and `coop` have no way, for one rank touches all data;
//! `scatter-gather` and `slices` have as many pieces as there are ranks.
//!
//! Baselines are those of GMTU's report (see `lower/gmtu.rs` and [`Scheme`]). The last three are GMTU with its three kinds
//! of buffers, which takes for each operation what suits them; the packet of `static` is its buffer, of 8 to 64 KiB.

use std::fmt;
use std::str::FromStr;

use super::{Flow, Op, OpKind, Scheme, Shape, Way};

/// What is left to choose when the caller has said what is to be done.
///
/// ```
/// use partage_plan::coll::{Algorithm, Flow, Scheme, Way};
///
/// let ring: Algorithm = "ring/8:pull@16k".parse().unwrap();
/// let (flow, way, scheme) = (Flow::Ring, Way::Pull, Scheme::Fused);
/// assert_eq!(ring, Algorithm { flow, way, scheme, pieces: 8, packet: Some(16 << 10) });
/// assert_eq!(ring.to_string(), "ring/8:pull@16k");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Algorithm {
    /// Who passes which block to whom.
    pub flow: Flow,
    /// How blocks pass.
    pub way: Way,
    /// What keeps ranks apart.
    pub scheme: Scheme,
    /// In how many pieces a broadcast passes, or a reduction along a chain.
    pub pieces: usize,
    /// Blocks longer than so many bytes pass in parts, each a collective of its own; nothing: as scratch allows.
    pub packet: Option<usize>,
}

impl Algorithm {
    /// The shape with this algorithm.
    pub fn of(&self, mut shape: Shape) -> Shape {
        (shape.flow, shape.way, shape.scheme) = (self.flow, self.way, self.scheme);
        if self.flow == Flow::Gmtu {
            // Of all of each block, not of the part of it that passes at a time.
            let half = shape.stride.saturating_mul(shape.ranks) / 2;
            let small = half <= self.packet.unwrap_or(BUFFER.1);
            (shape.flow, shape.scheme) = match (shape.op.kind(), self.scheme) {
                (OpKind::Broadcast, scheme) => (Flow::Tree(2), scheme),
                (OpKind::Scatter, Scheme::Dynamic) => (Flow::Tree(2), Scheme::Dynamic),
                (OpKind::Scatter, Scheme::Static) if small => (Flow::Tree(2), Scheme::Dynamic),
                (OpKind::GatherAll, Scheme::Dynamic | Scheme::Static) => (Flow::Ring, self.scheme),
                (OpKind::GatherAll, scheme) => (Flow::Xor, scheme),
                (OpKind::Exchange, Scheme::Trees | Scheme::Static) => (Flow::Xor, self.scheme),
                (_, scheme) => (Flow::Flat, scheme),
            };
        }
        if let Flow::Chain(pieces) = &mut shape.flow {
            *pieces = self.pieces;
        }
        if let Op::Broadcast { pieces, .. } = &mut shape.op {
            *pieces = if matches!(self.flow, Flow::ScatterGather(_)) { shape.ranks } else { self.pieces };
        }
        shape
    }
}

/// A name that is none, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(pub(super) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// What stands for what, in both directions.
type Words<T> = [(&'static str, T)];

const OPS: &Words<OpKind> = &[
    ("broadcast", OpKind::Broadcast),
    ("scatter", OpKind::Scatter),
    ("gather", OpKind::Gather),
    ("gather_all", OpKind::GatherAll),
    ("exchange", OpKind::Exchange),
    ("permute", OpKind::Permute),
    ("reduce", OpKind::Reduce),
    ("all_reduce", OpKind::AllReduce),
    ("prefix_reduce", OpKind::Prefix),
];

const WAYS: &Words<Way> =
    &[("push", Way::Push), ("pull", Way::Pull), ("split", Way::Split), ("mail", Way::Mail), ("post", Way::Post)];

/// The baselines: all that is not [`Scheme::Fused`].
const BASELINES: &Words<(Flow, Way, Scheme)> = &[
    ("naive-push", (Flow::Flat, Way::Push, Scheme::Elements)),
    ("naive-pull", (Flow::Flat, Way::Pull, Scheme::Elements)),
    ("reference-push", (Flow::Flat, Way::Push, Scheme::Plain)),
    ("reference-pull", (Flow::Flat, Way::Pull, Scheme::Plain)),
    ("straight-push", (Flow::Flat, Way::Push, Scheme::Trees)),
    ("spanning-tree", (Flow::Tree(2), Way::Push, Scheme::Trees)),
    ("xor", (Flow::Xor, Way::Push, Scheme::Trees)),
    ("ring", (Flow::Ring, Way::Push, Scheme::Dynamic)),
    ("registered", (Flow::Gmtu, Way::Push, Scheme::Trees)),
    ("dynamic", (Flow::Gmtu, Way::Push, Scheme::Dynamic)),
    ("static", (Flow::Gmtu, Way::Push, Scheme::Static)),
];

/// How long the buffers of [`Scheme::Static`] may be.
const BUFFER: (usize, usize) = (8 << 10, 64 << 10);

/// What is claimed at a time, if nothing is said.
const CHUNK: usize = 16 << 10;

const FLOWS: &Words<Flow> = &[
    ("flat", Flow::Flat),
    ("pairwise", Flow::Pairwise),
    ("xor", Flow::Xor),
    ("ring", Flow::Ring),
    ("dissemination", Flow::Dissemination),
    ("bruck", Flow::Bruck),
    ("doubling", Flow::Doubling),
    ("leaders", Flow::Leaders),
    ("chain", Flow::Chain(1)),
    ("slices", Flow::Slices),
    ("coop", Flow::Coop(CHUNK)),
    ("leader", Flow::Leader(None)),
    ("last", Flow::Last),
];

/// The value of a word; the error lists the words.
pub(super) fn value<T: Copy>(words: &Words<T>, what: &str, word: &str) -> Result<T, Error> {
    let found = words.iter().find(|(w, _)| *w == word).map(|&(_, v)| v);
    found.ok_or_else(|| Error(format!("{word:?} is no {what}: {}", list(words))))
}

/// The word of a value.
pub(super) fn word<T: Copy + PartialEq>(words: &Words<T>, value: T) -> Option<&'static str> {
    words.iter().find(|&&(_, v)| v == value).map(|&(w, _)| w)
}

fn list<T>(words: &Words<T>) -> String {
    words.iter().map(|&(w, _)| w).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(OPS, *self).unwrap_or_default())
    }
}

impl FromStr for OpKind {
    type Err = Error;

    fn from_str(s: &str) -> Result<OpKind, Error> {
        value(OPS, "operation", s)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Flow::Tree(k) => write!(f, "tree{k}"),
            Flow::ScatterGather(k) => write!(f, "scatter-gather{k}"),
            Flow::Nodes(k, 1) => write!(f, "nodes{k}"),
            Flow::Nodes(k, leaders) => write!(f, "nodes{k}x{leaders}"),
            Flow::Leader(Some(rank)) => write!(f, "leader{rank}"),
            Flow::Chain(_) => f.write_str("chain"),
            Flow::Coop(_) => f.write_str("coop"),
            flow => f.write_str(word(FLOWS, flow).unwrap_or_default()),
        }
    }
}

/// The largest radix, and the most leaders and pieces: plans are made in as many steps.
const MOST: usize = 1 << 16;

/// A number of digits only, if it is not too large.
fn number(digits: &str) -> Option<usize> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|&n| plain && n <= MOST)
}

impl FromStr for Flow {
    type Err = Error;

    fn from_str(s: &str) -> Result<Flow, Error> {
        if let Some(numbers) = s.strip_prefix("nodes") {
            let (radix, leaders) = numbers.split_once('x').unwrap_or((numbers, "1"));
            return match (number(radix), number(leaders)) {
                (Some(k @ 2..), Some(leaders @ 1..)) => Ok(Flow::Nodes(k, leaders)),
                _ => Err(Error(format!(
                    "{s:?}: it takes a radix of 2 or more, as nodes2, and leaders, as nodes2x4, of at most {MOST}"
                ))),
            };
        }
        let digits = s.len() - s.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (name, digits) = s.split_at(s.len() - digits);
        match (name, number(digits)) {
            ("tree", Some(k @ 2..)) => Ok(Flow::Tree(k)),
            ("scatter-gather", Some(k @ 2..)) => Ok(Flow::ScatterGather(k)),
            ("leader", Some(rank)) => Ok(Flow::Leader(Some(rank))),
            ("tree" | "scatter-gather", _) => Err(Error(format!("{s:?}: it takes a radix of 2 to {MOST}, as {name}2"))),
            _ => value(FLOWS, "algorithm", s)
                .map_err(|Error(words)| Error(words + ", tree2, scatter-gather2, nodes2, nodes2x4, 000:…")),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let baseline = word(BASELINES, (self.flow, self.way, self.scheme));
        match baseline {
            Some(name) => write!(f, "000:{name}")?,
            None => self.flow.fmt(f)?,
        }
        if self.pieces != 1 {
            write!(f, "/{}", self.pieces)?;
        }
        if baseline.is_none() && !self.flow.touches_all() {
            write!(f, ":{}", word(WAYS, self.way).unwrap_or_default())?;
        }
        match (self.flow, self.packet) {
            (Flow::Coop(chunk), _) => write!(f, "@{}", Size(chunk)),
            (_, Some(packet)) => write!(f, "@{}", Size(packet)),
            (_, None) => Ok(()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(s: &str) -> Result<Algorithm, Error> {
        let (rest, packet) = match s.split_once('@') {
            Some((rest, packet)) => (rest, Some(packet.parse::<Size>()?.0)),
            None => (s, None),
        };
        let wrong = |why: &str| Err(Error(format!("{s:?}: {why}")));
        if packet == Some(0) {
            return wrong("a packet has one byte at least");
        }
        if let Some(name) = rest.strip_prefix("000:") {
            let (flow, way, scheme) = value(BASELINES, "baseline", name)?;
            let packet = if scheme == Scheme::Static { packet.or(Some(BUFFER.1)) } else { packet };
            if scheme == Scheme::Static && packet.is_some_and(|len| len < BUFFER.0 || len > BUFFER.1) {
                return wrong("its buffer has 8k to 64k");
            }
            return Ok(Algorithm { flow, way, scheme, pieces: 1, packet });
        }
        let (rest, way) = match rest.split_once(':') {
            Some((rest, way)) => (rest, Some(value(WAYS, "way", way)?)),
            None => (rest, None),
        };
        let (flow, pieces) = match rest.split_once('/') {
            Some((flow, pieces)) => (flow, Some(pieces)),
            None => (rest, None),
        };
        let flow: Flow = flow.parse()?;
        match (flow, pieces, way) {
            (flow, _, Some(_)) if flow.touches_all() => return wrong("one rank touches all data, so it has no way"),
            (flow, Some(_), _) if flow.touches_all() => return wrong("one rank touches all data, in one piece"),
            (Flow::ScatterGather(_) | Flow::Slices, Some(_), _) => return wrong("it has as many pieces as ranks"),
            _ => {}
        }
        let pieces = match pieces.map_or(Some(1), number) {
            Some(pieces @ 1..) => pieces,
            _ => return wrong("the number of pieces is 1 to 65536"),
        };
        let (flow, packet) = match flow {
            Flow::Coop(chunk) => (Flow::Coop(packet.unwrap_or(chunk)), None),
            flow => (flow, packet),
        };
        Ok(Algorithm { flow, way: way.unwrap_or(Way::Push), scheme: Scheme::Fused, pieces, packet })
    }
}

/// Bytes, as `256`, `16k`, `1m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size(pub usize);

const UNITS: [(char, u32); 3] = [('g', 30), ('m', 20), ('k', 10)];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|&&(_, bits)| self.0 > 0 && self.0.trailing_zeros() >= bits);
        match unit {
            Some(&(letter, bits)) => write!(f, "{}{letter}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(s: &str) -> Result<Size, Error> {
        let unit = UNITS.iter().find(|&&(letter, _)| s.ends_with([letter, letter.to_ascii_uppercase()]));
        let (digits, bits) = unit.map_or((s, 0), |&(_, bits)| (&s[..s.len() - 1], bits));
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let bytes = digits.parse::<usize>().ok().filter(|_| plain).and_then(|n| n.checked_mul(1 << bits));
        bytes.map(Size).ok_or_else(|| Error(format!("{s:?} is no size: a number of bytes, as 256, 16k or 1m")))
    }
}
