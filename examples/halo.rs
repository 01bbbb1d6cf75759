//! A grid that is periodic in its columns, cut into upright strips: in each step the outer columns of a strip, which are
//! strided, go to its neighbours' halos.
//!
//! `cargo run --release -p partage-examples --bin halo`

use partage::prelude::*;

const ROWS: usize = 48;
const COLS: usize = 20;
/// A strip has a halo on either side.
const PITCH: usize = COLS + 2;
const STEPS: usize = 30;

fn main() {
    partage::run(|job| -> partage::Result {
        let (me, left, right) = (job.rank(), job.neighbor(-1), job.neighbor(1));
        let mut grid = job.array::<f64>(Layout::per_rank(ROWS * PITCH))?;
        let before = me.index() * COLS;
        grid.own(|mine| {
            (0..ROWS * COLS).for_each(|i| mine[i / COLS * PITCH + 1 + i % COLS] = start(i / COLS, before + i % COLS));
        });

        let (mut first, mut last) = ([0.0; ROWS], [0.0; ROWS]);
        for _ in 0..STEPS {
            grid.get_region(column(me, 1), &mut first);
            grid.get_region(column(me, COLS), &mut last);
            job.scope(|s| {
                // Both are under way at once; the end of the scope waits for them.
                drop(s.put_region(&grid, column(left, COLS + 1), &first));
                drop(s.put_region(&grid, column(right, 0), &last));
            });
            grid.own(|mine| mine.chunks_exact_mut(PITCH).for_each(smooth));
        }

        // A row, all around, by one who has it all.
        let around = job.size() * COLS;
        for row in [0, ROWS / 2, ROWS - 1] {
            let mut all: Vec<f64> = (0..around + 2).map(|c| start(row, (c + around - 1) % around)).collect();
            for _ in 0..STEPS {
                (all[0], all[around + 1]) = (all[around], all[1]);
                smooth(&mut all);
            }
            let mut mine = [0.0; COLS];
            grid.get_region(Region::at(me.index() * ROWS * PITCH + row * PITCH + 1).run(COLS), &mut mine);
            assert_eq!(mine, all[before + 1..][..COLS], "row {row} of {me}");
        }
        if me == Rank(0) {
            println!("{ROWS} x {around} values, {STEPS} steps: as by one alone");
        }
        Ok(())
    });
}

/// A column of a rank's strip.
fn column(rank: Rank, c: usize) -> Region {
    Region::at(rank.index() * ROWS * PITCH + c).times(ROWS, PITCH)
}

fn start(row: usize, col: usize) -> f64 {
    (row * 31 + col * 17 % 23) as f64
}

/// Each value becomes the mean of itself and its neighbours; those at the ends are halos.
fn smooth(row: &mut [f64]) {
    let mut before = row[0];
    for c in 1..row.len() - 1 {
        let mean = (before + row[c] + row[c + 1]) / 3.0;
        before = std::mem::replace(&mut row[c], mean);
    }
}
