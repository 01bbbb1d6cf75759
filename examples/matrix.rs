//! A product of matrices, all of it in private memory: rows of the one are scattered, the other is broadcast, rows of the product
//! are gathered. Then several products, of which the next one's data travel while this one is computed.
//!
//! `cargo run --release -p partage-examples --bin matrix`

/// Columns of all of them, and rows of what is broadcast.
const N: usize = 48;

fn main() {
    partage::run(|job| {
        // As many rows for each rank.
        let rows = N.div_ceil(job.size()) * job.size();
        let is_root = job.rank().0 == 0;
        let a = if is_root { (0..rows * N).map(|i| entry(i, 1)).collect() } else { vec![] };
        let mut b: Vec<f64> = (0..N * N).map(|i| if is_root { entry(i, 2) } else { 0.0 }).collect();
        let (mut my_a, mut c) = (vec![0.0; rows / job.size() * N], vec![]);

        job.scatter(&a).to(&mut my_a).run();
        job.broadcast(&mut b).run();
        job.gather(&multiply(&my_a, &b)).to(&mut c).run();
        assert!(!is_root || c == multiply(&a, &b));

        // Powers of b, of which each rank computes its rows while those of the one before are on their way to the root.
        let mut power = my_a;
        let mut all = [vec![], vec![]];
        for k in 0..6 {
            let next = job.scope(|s| {
                let sent = job.gather(&power).to(&mut all[k % 2]).start(s);
                let next = multiply(&power, &b);
                sent.wait();
                next
            });
            power = next;
        }
        if is_root {
            // The last two.
            let fourth = (0..4).fold(a, |a, _| multiply(&a, &b));
            assert_eq!(all[0], fourth);
            assert_eq!(all[1], multiply(&fourth, &b));
            println!("{rows} x {N} times {N} x {N}, on {} ranks", job.size());
        }
    });
}

/// Small numbers, so that sums are exact.
fn entry(i: usize, seed: usize) -> f64 {
    ((i * 7 + seed * 13) % 3) as f64 - 1.0
}

fn multiply(a: &[f64], b: &[f64]) -> Vec<f64> {
    let row = |a: &[f64]| (0..N).map(|j| (0..N).map(|k| a[k] * b[k * N + j]).sum()).collect::<Vec<f64>>();
    a.chunks(N).flat_map(row).collect()
}
