//! Stencil matrices, cut into blocks of rows: what a rank has of a sparse matrix, and which values it gives to whom.
//!
//! # The matrix
//! Its rows and columns are the points of a [`Grid`] of two or three dimensions. A row has a −1 for each neighbour of its
//! point, also across corners, and on the diagonal the number of neighbours that a point inside has: 8 in the plane (9
//! points), 26 in space (27 points). At the border neighbours are missing, so the matrix is symmetric and positive definite.
//!
//! # The cut
//! Ranks have rows in order, as many as others but for one. Of its rows, a rank has the columns that are its own as one
//! matrix, the *diagonal block*, and those of every peer as another: a product with the first needs nobody. The matrix is
//! symmetric, so who needs values of mine has values that I need. All of it is arithmetic: a rank knows what its peers
//! know, and nothing is sent.
//!
//! ```
//! use partage_kernels::stencil::{Grid, Part};
//! let (grid, x) = (Grid::square(8), |j: usize| j as f64);
//! let part = Part::of(grid, 1, 4);                                     // the second of four ranks: two lines of eight
//! assert_eq!((part.rows.clone(), part.incoming.len()), (16..32, 2));
//! let mut y = vec![0.0; 16];
//! part.diagonal.multiply(&part.rows.clone().map(x).collect::<Vec<_>>(), &mut y);
//! for from in &part.incoming {
//!     from.block.add(&from.columns.iter().map(|&j| x(j)).collect::<Vec<_>>(), &mut y);
//! }
//! assert!(part.rows.zip(y).all(|(i, y)| y == grid.product(i, x)));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The points of a plane or of a space, and with them the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Points of a line.
    pub x: usize,
    /// Lines of a plane.
    pub y: usize,
    /// Planes; one in two dimensions.
    pub z: usize,
}

impl Grid {
    /// `n` × `n` points.
    pub fn square(n: usize) -> Grid {
        Grid { x: n, y: n, z: 1 }
    }

    /// `n` × `n` × `n` points.
    pub fn cube(n: usize) -> Grid {
        Grid { x: n, y: n, z: n }
    }

    /// Rows of the matrix.
    pub fn points(self) -> usize {
        self.x * self.y * self.z
    }

    /// Values of a row inside: 9 or 27.
    pub fn stencil(self) -> usize {
        if self.z == 1 { 9 } else { 27 }
    }

    /// Row `i`: its columns in order, and their values.
    pub fn row(self, i: usize) -> impl Iterator<Item = (usize, f64)> {
        let diagonal = (self.stencil() - 1) as f64;
        self.stretches(i).flatten().map(move |j| (j, if j == i { diagonal } else { -1.0 }))
    }

    /// Row `i` times a vector, in the order of columns.
    pub fn product(self, i: usize, x: impl Fn(usize) -> f64) -> f64 {
        self.row(i).fold(0.0, |sum, (j, value)| sum + value * x(j))
    }

    /// The columns of row `i`, in stretches.
    fn stretches(self, i: usize) -> impl Iterator<Item = Range<usize>> {
        let around = |at: usize, n: usize| at.saturating_sub(1)..n.min(at + 2);
        let (x, y, z) = (i % self.x, i / self.x % self.y, i / self.x / self.y);
        let (line, lines) = (around(x, self.x), around(y, self.y));
        around(z, self.z).flat_map(move |z| {
            let line = line.clone();
            lines.clone().map(move |y| {
                let first = (z * self.y + y) * self.x;
                first + line.start..first + line.end
            })
        })
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grid { x, y, z } = *self;
        write!(f, "{}-point stencil, {x} x {y}", self.stencil())?;
        if z > 1 { write!(f, " x {z}") } else { Ok(()) }
    }
}

/// A sparse matrix by rows.
#[derive(Clone, Debug)]
pub struct Csr {
    /// Where each row starts among the values, and where the last one ends.
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Csr {
    /// None yet, and room for so many rows and values.
    fn with_capacity(rows: usize, nonzeros: usize) -> Csr {
        let mut starts = Vec::with_capacity(rows + 1);
        starts.push(0);
        Csr { starts, columns: Vec::with_capacity(nonzeros), values: Vec::with_capacity(nonzeros) }
    }

    fn push(&mut self, column: usize, value: f64) {
        self.columns.push(u32::try_from(column).expect("a part of less than 2^32 points"));
        self.values.push(value);
    }

    fn end_row(&mut self) {
        self.starts.push(self.values.len());
    }

    /// Values that are stored.
    pub fn nonzeros(&self) -> usize {
        self.values.len()
    }

    // lines: common
    /// `y` becomes the product with `x`.
    pub fn multiply(&self, x: &[f64], y: &mut [f64]) {
        self.products(x).zip(y).for_each(|(product, y)| *y = product);
    }

    fn products(&self, x: &[f64]) -> impl Iterator<Item = f64> {
        self.starts.windows(2).map(|row| {
            let (columns, values) = (&self.columns[row[0]..row[1]], &self.values[row[0]..row[1]]);
            columns.iter().zip(values).fold(0.0, |sum, (&j, value)| sum + value * x[j as usize])
        })
    }
    // lines: end
}

/// A sparse matrix of which few rows have values.
#[derive(Clone, Debug)]
pub struct Block {
    rows: Vec<u32>,
    values: Csr,
}

impl Block {
    // lines: common
    /// Adds the product with `x` to `y`.
    pub fn add(&self, x: &[f64], y: &mut [f64]) {
        self.values.products(x).zip(&self.rows).for_each(|(product, &i)| y[i as usize] += product);
    }
    // lines: end
}

/// What comes from a peer.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Whose values.
    pub from: usize,
    /// Which of the vector, in order: as they come, one after the other.
    pub columns: Vec<usize>,
    /// What they are multiplied with; its columns count in those above.
    pub block: Block,
}

/// What goes to a peer.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Who needs it.
    pub to: usize,
    /// Which values of my part, in order.
    pub rows: Vec<u32>,
}

/// The rows of one rank.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which they are.
    pub rows: Range<usize>,
    /// Their columns that are the rank's own.
    pub diagonal: Csr,
    /// The others, by peers; first the next rank, and so on around.
    pub incoming: Vec<Incoming>,
    /// What peers need; first the rank before, and so on around.
    pub outgoing: Vec<Outgoing>,
}

impl Part {
    /// The part of `rank` of so many.
    pub fn of(grid: Grid, rank: usize, ranks: usize) -> Part {
        let start = |rank: usize| (grid.points() as u128 * rank as u128 / ranks as u128) as usize;
        let starts: Vec<usize> = (0..=ranks).map(start).collect();
        let rows = start(rank)..start(rank + 1);
        let mut diagonal = Csr::with_capacity(rows.len(), rows.len() * grid.stencil());
        // Of each peer: row of mine, column of its, value.
        let mut others: BTreeMap<usize, Vec<(u32, usize, f64)>> = BTreeMap::new();
        for i in rows.clone() {
            for (j, value) in grid.row(i) {
                if rows.contains(&j) {
                    diagonal.push(j - rows.start, value);
                } else {
                    let owner = starts.partition_point(|&start| start <= j) - 1;
                    others.entry(owner).or_default().push(((i - rows.start) as u32, j, value));
                }
            }
            diagonal.end_row();
        }
        let mut part = Part { rows, diagonal, incoming: vec![], outgoing: vec![] };
        for (peer, entries) in others {
            part.outgoing.push(Outgoing { to: peer, rows: once_each(entries.iter().map(|e| e.0)) });
            part.incoming.push(incoming(peer, &entries));
        }
        part.incoming.sort_by_key(|incoming| (incoming.from + ranks - rank) % ranks);
        part.outgoing.sort_by_key(|outgoing| (rank + ranks - outgoing.to) % ranks);
        part
    }
}

fn incoming(from: usize, entries: &[(u32, usize, f64)]) -> Incoming {
    let columns = once_each(entries.iter().map(|e| e.1));
    let rows = once_each(entries.iter().map(|e| e.0));
    let values = Csr::with_capacity(rows.len(), entries.len());
    let mut block = Block { rows, values };
    for row in entries.chunk_by(|a, b| a.0 == b.0) {
        for &(_, j, value) in row {
            block.values.push(columns.binary_search(&j).expect("one of them"), value);
        }
        block.values.end_row();
    }
    Incoming { from, columns, block }
}

fn once_each<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRIDS: [Grid; 6] = [
        Grid { x: 5, y: 4, z: 1 },
        Grid { x: 1, y: 1, z: 1 },
        Grid { x: 7, y: 1, z: 1 },
        Grid { x: 16, y: 16, z: 1 },
        Grid { x: 4, y: 3, z: 5 },
        Grid { x: 6, y: 6, z: 6 },
    ];

    #[test]
    fn rows_are_as_the_stencil_says() {
        let grid = Grid::square(4);
        let row = |i| grid.row(i).collect::<Vec<_>>();
        assert_eq!(row(0), [(0, 8.0), (1, -1.0), (4, -1.0), (5, -1.0)]);
        let columns: Vec<usize> = row(5).iter().map(|e| e.0).collect();
        assert_eq!((columns, row(5)[4]), (vec![0, 1, 2, 4, 5, 6, 8, 9, 10], (5, 8.0)));
        let inside = Grid::cube(3).row(13).collect::<Vec<_>>();
        assert_eq!((inside.len(), inside[13]), (27, (13, 26.0)));
        assert_eq!((Grid::cube(3).row(0).count(), Grid::cube(3).product(13, |_| 1.0)), (8, 0.0));
        assert_eq!((grid.to_string(), Grid::cube(3).to_string().len()), ("9-point stencil, 4 x 4".into(), 27));
    }

    #[test]
    fn matrices_are_symmetric() {
        for grid in GRIDS {
            for i in 0..grid.points() {
                for (j, value) in grid.row(i) {
                    assert!(grid.row(j).any(|back| back == (i, value)), "{grid}: {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn parts_are_the_whole() {
        for (grid, ranks) in GRIDS.into_iter().flat_map(|grid| [1, 2, 3, 5, 16, 40].map(|ranks| (grid, ranks))) {
            let parts: Vec<Part> = (0..ranks).map(|rank| Part::of(grid, rank, ranks)).collect();
            assert_eq!((parts[0].rows.start, parts[ranks - 1].rows.end), (0, grid.points()));
            assert!(parts.windows(2).all(|two| two[0].rows.end == two[1].rows.start));
            let x = |j: usize| (j * j % 101) as f64;
            for (rank, part) in parts.iter().enumerate() {
                let mine: Vec<f64> = part.rows.clone().map(x).collect();
                let mut y = vec![f64::NAN; mine.len()];
                part.diagonal.multiply(&mine, &mut y);
                let mut nonzeros = part.diagonal.nonzeros();
                for from in &part.incoming {
                    // As it is packed there.
                    let sent = parts[from.from].outgoing.iter().find(|outgoing| outgoing.to == rank).unwrap();
                    let first = parts[from.from].rows.start;
                    assert!(sent.rows.iter().map(|&i| first + i as usize).eq(from.columns.iter().copied()));
                    from.block.add(&from.columns.iter().map(|&j| x(j)).collect::<Vec<_>>(), &mut y);
                    nonzeros += from.block.values.nonzeros();
                }
                assert!(part.rows.clone().zip(&y).all(|(i, &y)| y == grid.product(i, x)), "{grid}: {rank} of {ranks}");
                assert_eq!(nonzeros, part.rows.clone().map(|i| grid.row(i).count()).sum());
                assert_eq!(part.incoming.len(), part.outgoing.len());
                assert!(part.incoming.windows(2).all(|two| {
                    let turns = |peer: usize| (peer + ranks - rank) % ranks;
                    turns(two[0].from) < turns(two[1].from)
                }));
                assert!(part.incoming.iter().map(|i| i.from).eq(part.outgoing.iter().rev().map(|o| o.to)));
            }
        }
    }
}
