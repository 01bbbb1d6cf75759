//! Two teams estimate Pi by throwing darts, each by itself; then the job weighs their estimates.
//!
//! `cargo run --release -p partage-examples --bin pi_teams`

use partage::prelude::*;

fn main() {
    partage::run(|job| {
        // The first half of the ranks throws more often than the second.
        let trials = [400_000, 100_000];
        let which = usize::from(job.rank().index() >= job.size().div_ceil(2));
        let team = job.split(which);
        let pi = monte_carlo(&team, trials[which]);
        // One estimate of each team: its first member speaks, with the weight of its trials.
        let weight = if team.rank() == TeamRank(0) { trials[which] as f64 } else { 0.0 };
        let all = job.value(pi * weight).sum() / job.value(weight).sum();
        assert!((all - std::f64::consts::PI).abs() < 0.05);
        if job.rank() == Rank(0) {
            println!("pi is about {all:.4}");
        }
    });
}

fn monte_carlo(team: &Team, trials: u64) -> f64 {
    let mine = trials / team.size() as u64;
    let hits = team.value(throw(mine, team.to_job(team.rank()).0.into())).sum();
    4.0 * hits as f64 / (mine * team.size() as u64) as f64
}

/// How many of so many darts hit the quarter of a disk.
fn throw(darts: u64, seed: u64) -> u64 {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as f64 / u64::MAX as f64
    };
    (0..darts).filter(|_| next().powi(2) + next().powi(2) < 1.0).count() as u64
}
