//! Conjugate gradients: a product with a sparse matrix and two sums over all ranks in each iteration.
//!
//! # The rule
//! * Solves A x = b for a [stencil matrix](crate::stencil), from x = 0, for a given number of iterations. The solution is to
//!   be all ones: b is A times that.
//! * Products go by one of [five ways](crate::spmv), sums by one of [two](crate::trees). [`Variant`]s are the pairs that are
//!   compared.
//! * Checked in three ways. All variants give the same x to the last bit: blocks are added in the same order, and sums by the
//!   same tree. x differs from that of [one rank alone](serial), which adds in another order, by at most
//!   [`TOLERANCE`] of its length. And b − A x, computed anew, is as long as the residual that the iterations have carried
//!   along, up to [`TOLERANCE`] of the length of b.
//!
//! ```
//! use partage_kernels::cg::{Solver, Variant};
//! use partage_kernels::clock::Clock;
//! use partage_kernels::stencil::Grid;
//! partage::test(3, |job| {
//!     let mut solver = Solver::new(job, Grid::square(8)).unwrap();
//!     for variant in Variant::ALL {
//!         let residual = solver.solve(variant, 30, &mut Clock::start());
//!         assert!(residual < 1e-9 && solver.x().iter().all(|x| (x - 1.0).abs() < 1e-9));
//!     }
//!     solver.free();
//! });
//! ```

use crate::clock::{Clock, Doing};
use crate::spmv::{Spmv, Sync};
use crate::stencil::Grid;
use crate::trees::{AllReduce, Way};
use partage::prelude::*;
use std::fmt;
use std::iter;
use std::ops::Range;

/// How far results may differ that were added up in another order, as a part of their length.
pub const TOLERANCE: f64 = 1e-8;

/// How products and sums are synchronized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Products.
    pub products: Sync,
    /// Sums.
    pub sums: Way,
}

impl Variant {
    /// Those that are compared.
    pub const ALL: [Variant; 5] = [
        Variant { products: Sync::Barrier, sums: Way::Flag },
        Variant { products: Sync::StartedBarrier, sums: Way::Flag },
        Variant { products: Sync::Flag, sums: Way::Flag },
        Variant { products: Sync::StartedFlag, sums: Way::Flag },
        Variant { products: Sync::Signal, sums: Way::Signal },
    ];
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} / {}", self.products, self.sums))
    }
}

/// A rank's part of a system, and of its solution.
#[derive(Debug)]
pub struct Solver<'j> {
    a: Spmv<'j>,
    sums: AllReduce<'j>,
    b: Vec<f64>,
    x: Vec<f64>,
    /// The residual, the direction, and the matrix times that.
    r: Vec<f64>,
    p: Vec<f64>,
    q: Vec<f64>,
}

impl<'j> Solver<'j> {
    /// Collective: the system of a grid.
    pub fn new(job: &'j Job, grid: Grid) -> partage::Result<Solver<'j>> {
        let (a, sums) = (Spmv::new(job, grid)?, AllReduce::new(job, 1)?);
        let b: Vec<f64> = a.rows().map(|i| grid.product(i, |_| 1.0)).collect();
        let [x, r, p, q] = [(); 4].map(|()| vec![0.0; b.len()]);
        Ok(Solver { a, sums, b, x, r, p, q })
    }

    /// Collective: frees what others put into.
    pub fn free(self) {
        self.a.free();
        self.sums.free();
    }

    /// The rows of this rank.
    pub fn rows(&self) -> Range<usize> {
        self.a.rows()
    }

    /// This rank's part of the solution.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// All ranks come here, with the same: so many iterations from the start on. The length of the residual.
    pub fn solve(&mut self, variant: Variant, iterations: usize, clock: &mut Clock) -> f64 {
        let Solver { a, sums, b, x, r, p, q } = self;
        let mut dot = |a: &[f64], b: &[f64], clock: &mut Clock| {
            let mut sum = [dot(a, b)];
            clock.lap(Doing::Vectors);
            sums.sum(variant.sums, &mut sum);
            clock.lap(Doing::Reduce);
            sum[0]
        };
        x.fill(0.0);
        r.copy_from_slice(b);
        p.copy_from_slice(b);
        let mut rr = dot(r, r, clock);
        for _ in 0..iterations {
            if rr == 0.0 {
                break;
            }
            a.multiply(variant.products, p, q, clock);
            let alpha = rr / dot(p, q, clock);
            advance(x, r, alpha, p, q);
            let before = rr;
            rr = dot(r, r, clock);
            turn(p, r, rr / before);
            clock.lap(Doing::Vectors);
        }
        rr.sqrt()
    }

    /// Collective: the lengths of b − A x, computed anew, and of b.
    pub fn true_residual(&mut self) -> (f64, f64) {
        let (mut clock, variant) = (Clock::start(), Variant::ALL[0]);
        self.a.multiply(variant.products, &self.x, &mut self.q, &mut clock);
        let residual = self.b.iter().zip(&self.q).map(|(b, q)| (b - q) * (b - q)).sum();
        let mut length = |square: f64| {
            let mut sum = [square];
            self.sums.sum(variant.sums, &mut sum);
            sum[0].sqrt()
        };
        (length(residual), length(dot(&self.b, &self.b)))
    }
}

/// The same by one rank: the solution and the length of the residual.
pub fn serial(grid: Grid, iterations: usize) -> (Vec<f64>, f64) {
    let n = grid.points();
    let b: Vec<f64> = (0..n).map(|i| grid.product(i, |_| 1.0)).collect();
    let (mut x, mut r, mut p, mut q) = (vec![0.0; n], b.clone(), b, vec![0.0; n]);
    let mut rr = dot(&r, &r);
    for _ in 0..iterations {
        if rr == 0.0 {
            break;
        }
        q.iter_mut().enumerate().for_each(|(i, q)| *q = grid.product(i, |j| p[j]));
        advance(&mut x, &mut r, rr / dot(&p, &q), &p, &q);
        let before = rr;
        rr = dot(&r, &r);
        turn(&mut p, &r, rr / before);
    }
    (x, rr.sqrt())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// x goes along p, and the residual follows.
fn advance(x: &mut [f64], r: &mut [f64], alpha: f64, p: &[f64], q: &[f64]) {
    x.iter_mut().zip(p).for_each(|(x, p)| *x += alpha * p);
    r.iter_mut().zip(q).for_each(|(r, q)| *r -= alpha * q);
}

/// The next direction.
fn turn(p: &mut [f64], r: &[f64], beta: f64) {
    iter::zip(p, r).for_each(|(p, r)| *p = r + beta * *p);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_variants_solve() {
        for (ranks, grid) in [(1, Grid::square(9)), (2, Grid::square(9)), (3, Grid::cube(4)), (5, Grid::square(7))] {
            let (wanted, length) = serial(grid, 12);
            partage::test(ranks, |job| {
                let mut solver = Solver::new(job, grid).unwrap();
                let mut first: Option<Vec<f64>> = None;
                for variant in Variant::ALL {
                    let residual = solver.solve(variant, 12, &mut Clock::start());
                    let (real, b) = solver.true_residual();
                    assert!((residual - real).abs() <= TOLERANCE * b && (residual - length).abs() <= TOLERANCE * b);
                    let wanted = &wanted[solver.a.rows()];
                    assert!(solver.x.iter().zip(wanted).all(|(x, wanted)| (x - wanted).abs() <= TOLERANCE));
                    let first = first.get_or_insert_with(|| solver.x.clone());
                    assert_eq!(*first, solver.x, "{variant}");
                }
                solver.free();
            });
        }
    }

    #[test]
    fn one_rank_alone_solves() {
        for grid in [Grid::square(12), Grid::cube(5), Grid::square(1)] {
            let (x, residual) = serial(grid, 60);
            assert!(residual < 1e-9 && x.iter().all(|x| (x - 1.0).abs() < 1e-9), "{grid}: {residual}");
        }
    }
}
