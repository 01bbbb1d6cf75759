//! Sums a vector that lies elsewhere, and reads ahead: while one piece is summed, the next is under way. Once into
//! memory that comes with the event, once into two buffers that are used in turn, and once as two tasks of one thread, of
//! which one computes while the other waits.
//!
//! `cargo run --release -p partage-examples --bin overlap`

use partage::prelude::*;
use partage::wait::join_all;

const N: usize = 100_000;
const PIECE: usize = 1000;

fn main() {
    partage::run(|job| -> partage::Result {
        let mut a = job.array::<f64>(N)?;
        let mine = a.my_indices();
        a.own(|a| a.iter_mut().zip(mine).for_each(|(x, i)| *x = (i % 7) as f64));
        let wanted: f64 = (0..N).map(|i| (i % 7) as f64).sum();

        assert_eq!(owned(&a), wanted);
        assert_eq!(borrowed(job, &a), wanted);
        assert_eq!(awaited(job, &a), wanted);
        Ok(())
    });
}

fn owned(a: &SharedArray<f64>) -> f64 {
    let (mut total, mut next) = (0.0, a.fetch(..PIECE));
    for start in (PIECE..N).step_by(PIECE) {
        let piece = std::mem::replace(&mut next, a.fetch(start..start + PIECE)).wait();
        total += piece.iter().sum::<f64>();
    }
    total + next.wait().iter().sum::<f64>()
}

fn borrowed(job: &Job, a: &SharedArray<f64>) -> f64 {
    let (mut total, mut piece, mut next) = (0.0, vec![0.0; PIECE], vec![0.0; PIECE]);
    a.get_slice(0, &mut piece);
    for start in (PIECE..=N).step_by(PIECE) {
        job.scope(|s| {
            let ahead = (start < N).then(|| s.get(a, start, &mut next));
            total += piece.iter().sum::<f64>();
            ahead.map(Event::wait);
        });
        std::mem::swap(&mut piece, &mut next);
    }
    total
}

fn awaited(job: &Job, a: &SharedArray<f64>) -> f64 {
    // Each task has every other piece.
    let task = |first: usize| async move {
        let mut total = 0.0;
        for start in (first..N).step_by(2 * PIECE) {
            total += a.fetch(start..start + PIECE).await.iter().sum::<f64>();
        }
        total
    };
    job.block_on(join_all([task(0), task(PIECE)])).iter().sum()
}
