//! The transpose of an N x N matrix whose rows are dealt out in blocks of B: each rank gets the tiles that become its rows.
//!
//! `cargo run --release -p partage-examples --bin transpose`

use partage::prelude::*;

const N: usize = 192;
const B: usize = 16;

fn main() {
    partage::run(|job| -> partage::Result {
        let mut a = job.array::<f64>(Layout::block_cyclic(N * N, B * N))?;
        let mut t = job.array::<f64>(a.layout())?;
        let mine = a.my_indices();
        a.own(|a| a.iter_mut().zip(mine).for_each(|(x, i)| *x = i as f64));

        transpose(job, &mut a, &mut t);

        let mine = t.my_indices();
        t.own(|t| assert!(t.iter().zip(mine).all(|(x, i)| *x == (i % N * N + i / N) as f64)));
        Ok(())
    });
}

fn transpose(job: &Job, a: &mut SharedArray<f64>, t: &mut SharedArray<f64>) {
    let mut row = [0.0; B];
    job.phase((a.frozen(), t.owned()), |(a, t)| {
        for (block, i) in t.chunks_exact_mut(B * N).zip(job.forall(0..N / B)) {
            for j in 0..N {
                a.get_slice(j * N + i * B, &mut row); // a row of tile (j / B, i): a column of my block
                (0..B).for_each(|k| block[k * N + j] = row[k]);
            }
        }
    });
}
