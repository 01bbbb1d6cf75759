//! By how much the steps of a collective let the counts of its context grow: as [`Totals`](crate::coll::Totals) say, or the next
//! plan in that context counts from a wrong number.

use super::{Run, claims};
use crate::coll::{Plan, Signal, Step};

/// Of one collective, by all its ranks.
struct Counts {
    ranks: usize,
    /// By sender and receiver: of each kind.
    signals: Vec<[usize; 4]>,
    /// By sender and receiver: sent, and taken.
    letters: Vec<[usize; 2]>,
    /// By rank.
    arrivals: Vec<usize>,
    /// By rank.
    claims: Vec<usize>,
    releases: usize,
}

/// What is wrong with the counts of some collectives, where these ranks are the last to arrive or claim something.
pub fn check(runs: &[Run], choice: &[usize]) -> Result<(), String> {
    for (i, (run, &choice)) in runs.iter().zip(choice).enumerate() {
        Counts::new(run, choice).check(&run.plans).map_err(|words| format!("collective {i}: {words}"))?;
    }
    Ok(())
}

impl Counts {
    fn new(run: &Run, choice: usize) -> Counts {
        let ranks = run.shape.ranks;
        let mut counts = Counts {
            ranks,
            signals: vec![[0; 4]; ranks * ranks],
            letters: vec![[0; 2]; ranks * ranks],
            arrivals: vec![0; ranks],
            claims: vec![0; ranks],
            releases: 0,
        };
        for (rank, plan) in run.plans.iter().enumerate() {
            for step in &plan.steps {
                counts.step(rank, step);
                match step {
                    Step::Last { steps } if choice == rank => steps.iter().for_each(|inner| counts.step(rank, inner)),
                    Step::Claim { chunks } => {
                        let mine = chunks.iter().enumerate().filter(|&(c, _)| claims(choice, ranks, rank, c));
                        mine.flat_map(|(_, steps)| steps).for_each(|inner| counts.step(rank, inner));
                    }
                    _ => {}
                }
            }
        }
        counts
    }

    fn step(&mut self, rank: usize, step: &Step) {
        let p = self.ranks;
        match *step {
            Step::Put { to, .. } => self.signals[rank * p + to][Signal::Data as usize] += 1,
            Step::Signal { to, signal } => self.signals[rank * p + to][signal as usize] += 1,
            Step::Send { to, .. } => self.letters[rank * p + to][0] += 1,
            Step::Take { from, .. } | Step::TakeCombine { from, .. } => self.letters[from * p + rank][1] += 1,
            Step::Arrive | Step::Last { .. } => self.arrivals[rank] += 1,
            Step::Claim { ref chunks } => self.claims[rank] += chunks.len(),
            Step::Release => self.releases += 1,
            _ => {}
        }
    }

    fn check(&self, plans: &[Plan]) -> Result<(), String> {
        let p = self.ranks;
        for (me, totals) in plans.iter().map(|plan| &plan.totals).enumerate() {
            let wrong = |what: &str, made: usize, counted: usize| {
                Err(format!("rank {me} counts {counted} {what}, of which there are {made}"))
            };
            let mut counted = vec![[0; 4]; p];
            totals.signals.iter().for_each(|&(from, signal, n)| counted[from][signal as usize] += n);
            for from in 0..p {
                for signal in [Signal::Entered, Signal::Data, Signal::Done, Signal::Free] {
                    let (made, counted) =
                        (self.signals[from * p + me][signal as usize], counted[from][signal as usize]);
                    if made != counted {
                        return wrong(&format!("signals {signal:?} of rank {from}"), made, counted);
                    }
                }
                let [sent, taken] = self.letters[from * p + me];
                if sent != taken {
                    return wrong(&format!("letters of rank {from}"), sent, taken);
                }
                if self.arrivals[from] != totals.arrivals {
                    return wrong(&format!("arrivals of rank {from}"), self.arrivals[from], totals.arrivals);
                }
                if self.claims[from] != totals.claims {
                    return wrong(&format!("chunks of rank {from}"), self.claims[from], totals.claims);
                }
            }
            // Who waits for a release waits for the first one.
            if self.releases != totals.releases || self.releases > 1 {
                return wrong("releases, one at most", self.releases, totals.releases);
            }
            let again = (0..p).any(|from| self.letters[from * p + me][0] > 1);
            if totals.letters_again != again {
                return Err(format!("rank {me} does not say whether some rank sends it several letters"));
            }
        }
        Ok(())
    }
}
