//! Conjugate gradients for the 1-D Laplacian, dealt out in blocks: rows beside a block come by a halo, dot products are
//! reductions. No barrier anywhere.
//!
//! `cargo run --release -p partage-examples --bin cg`

use partage::halo::{Edge, Grid, Halo};
use partage::prelude::*;

const N: usize = 600;

fn main() {
    partage::run(|job| -> partage::Result {
        let [mine] = Grid::new(job, [Edge::Open]).block([N]);
        // The solution of which we know.
        let wanted = |i: usize| ((i + 1) * (N - i)) as f64 / 2.0;
        let (x, steps) = solve(job, &vec![1.0; mine.len()])?;
        for (x, i) in x.iter().zip(mine) {
            assert!((x - wanted(i)).abs() < 1e-6 * wanted(i), "{}: {x} at {i}", job.rank());
        }
        if job.rank() == Rank(0) {
            println!("{N} unknowns after {steps} steps");
        }
        Ok(())
    });
}

fn solve(job: &Job, b: &[f64]) -> partage::Result<(Vec<f64>, usize)> {
    let mut halo = Halo::new(job, 1, Edge::Open)?;
    let (mut x, mut r, mut p, mut q) = (vec![0.0; b.len()], b.to_vec(), b.to_vec(), vec![0.0; b.len()]);
    let (mut rr, mut steps) = (dot(job, &r, &r), 0);
    while rr > 1e-18 && steps < 2 * N {
        multiply(&mut halo, &p, &mut q);
        let alpha = rr / dot(job, &p, &q);
        for i in 0..x.len() {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        let new = dot(job, &r, &r);
        p.iter_mut().zip(&r).for_each(|(p, r)| *p = r + new / rr * *p);
        (rr, steps) = (new, steps + 1);
    }
    Ok((x, steps))
}

/// y = A x; the inner part while what is beside it travels.
fn multiply(halo: &mut Halo<f64>, x: &[f64], y: &mut [f64]) {
    let last = x.len() - 1;
    halo.send(&x[..1], &x[last..]);
    (1..last).for_each(|i| y[i] = 2.0 * x[i] - x[i - 1] - x[i + 1]);
    let (left, right) = halo.recv();
    let (left, right) = (left.map_or(0.0, |l| l[0]), right.map_or(0.0, |r| r[0]));
    let at = |i: usize| x.get(i).copied();
    y[last] = 2.0 * x[last] - if last > 0 { x[last - 1] } else { left } - right;
    y[0] = 2.0 * x[0] - left - at(1).unwrap_or(right);
}

/// All have the same to the last bit.
fn dot(job: &Job, a: &[f64], b: &[f64]) -> f64 {
    job.value(a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()).sum()
}
