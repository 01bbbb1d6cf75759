//! Heat spreads over a plate of n x n: each point becomes the mean of its four neighbours, the border stays as it is.
//! Rows are dealt out in blocks. In each step everyone may read the old plate, and has its own rows of the new one.
//!
//! `cargo run --release -p partage-examples --bin heat`; `partage demo` runs it too, and draws it.

use partage::prelude::*;

fn main() {
    let (n, steps) = (64, 100);
    let wanted = serial(n, steps, || ());
    partage::run(|job| -> partage::Result {
        let mut plate = Plate::new(job, n)?;
        (0..steps).for_each(|_| plate.step(job));
        assert_eq!(plate.now.fetch(..).wait(), wanted); // to the last bit
        job.println(format!("{} of the points are as they should be", wanted.len()));
        Ok(())
    });
}

/// The plate, and room for what it becomes.
pub(crate) struct Plate {
    pub(crate) now: SharedArray<f64>,
    next: SharedArray<f64>,
    n: usize,
}

impl Plate {
    pub(crate) fn new(job: &Job, n: usize) -> partage::Result<Plate> {
        let mut now = job.array(Layout::rows(n, n))?;
        let mine = now.my_indices();
        now.own(|points| points.iter_mut().zip(mine).for_each(|(x, i)| *x = at_first(i / n, i % n, n)));
        Ok(Plate { now, next: job.array(Layout::rows(n, n))?, n })
    }

    pub(crate) fn step(&mut self, job: &Job) {
        let Plate { now, next, n } = self;
        let (n, all) = (*n, now.len());
        let mine = now.my_range(); // empty, if there are more ranks than rows
        job.phase((now.frozen(), next.owned()), |(now, next)| {
            let row = |at: usize| {
                let mut row = vec![0.0; n];
                now.get_slice(at, &mut row);
                row
            };
            let above = (0 < mine.start).then(|| row(mine.start - n));
            let below = (0 < mine.end && mine.end < all).then(|| row(mine.end));
            relax(next, above.as_deref(), now.mine(), below.as_deref(), n);
        });
        std::mem::swap(now, next);
    }
}

/// Some rows a step later. Where there is none above or below, the plate ends.
fn relax(next: &mut [f64], above: Option<&[f64]>, now: &[f64], below: Option<&[f64]>, n: usize) {
    let row = |r: usize| now.get(r * n..(r + 1) * n);
    for (r, next) in next.chunks_exact_mut(n).enumerate() {
        let (up, here, down) = (if r > 0 { row(r - 1) } else { above }, &now[r * n..][..n], row(r + 1).or(below));
        next.copy_from_slice(here);
        if let (Some(up), Some(down)) = (up, down) {
            for c in 1..n - 1 {
                next[c] = 0.25 * (up[c] + down[c] + here[c - 1] + here[c + 1]);
            }
        }
    }
}

/// A hot upper edge, a warm left one, and two hot discs.
fn at_first(row: usize, column: usize, n: usize) -> f64 {
    let (y, x) = (row as f64 / n as f64, column as f64 / n as f64);
    let disc = |at_y: f64, at_x: f64, radius: f64| (y - at_y).hypot(x - at_x) < radius;
    match (row, column) {
        (0, _) => 100.0,
        (_, 0) => 60.0,
        _ if disc(0.7, 0.65, 0.13) || disc(0.55, 0.3, 0.07) => 100.0,
        _ => 0.0,
    }
}

/// The same without ranks: all rows are of one.
pub(crate) fn serial(n: usize, steps: u32, mut each: impl FnMut()) -> Vec<f64> {
    let mut now: Vec<f64> = (0..n * n).map(|i| at_first(i / n, i % n, n)).collect();
    let mut next = now.clone();
    for _ in 0..steps {
        relax(&mut next, None, &now, None, n);
        std::mem::swap(&mut now, &mut next);
        each();
    }
    now
}
