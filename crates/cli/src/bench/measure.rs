//! Rounds and what is made of them: which count, medians, ratios. Arithmetic only: no clock and no rank is used here.
//!
//! A virtual machine moves its cores about: a cache line that took 70 ns from one to the other takes 30 ns a second
//! later. A round therefore begins and ends with the raw hand-off between the two cores, and counts only if that stayed
//! the same, in the round and against all rounds. What remains is a ratio of two things measured in the same moment.

use std::str::FromStr;

/// The hand-off may change this much within a round.
const WITHIN: f64 = 0.15;
/// It may differ this much from the median of all rounds.
const ACROSS: f64 = 0.25;
/// So many times the rounds that are wanted are tried.
const PATIENCE: usize = 4;

/// One round: the hand-off before and after in nanoseconds, the figure and its floor.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Hand-off before.
    pub before: f64,
    /// Hand-off after.
    pub after: f64,
    /// What was measured.
    pub ours: f64,
    /// The same by hand; none where the figure is absolute.
    pub floor: Option<f64>,
}

/// All rounds so far.
#[derive(Debug, Default)]
pub struct Tally {
    rounds: Vec<Round>,
}

impl Tally {
    /// One more.
    pub fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// Are there `wanted` rounds that count, or is it time to give up?
    pub fn is_enough(&self, wanted: usize) -> bool {
        self.kept().len() >= wanted || self.rounds.len() >= PATIENCE * wanted
    }

    /// What the rounds say. Where none counts, all are used, and `kept` says 0.
    pub fn measured(&self) -> Measured {
        let kept = self.kept();
        let used = if kept.is_empty() { &self.rounds } else { &kept };
        let of = |what: fn(&Round) -> Option<f64>| median(used.iter().filter_map(what).collect());
        Measured {
            value: of(|r| Some(r.ours)).unwrap_or(f64::NAN),
            floor: of(|r| r.floor),
            ratio: of(|r| Some(r.ours / r.floor?)),
            handoff: of(|r| Some(r.before)),
            kept: kept.len(),
            discarded: self.rounds.len() - kept.len(),
        }
    }

    fn kept(&self) -> Vec<Round> {
        let usual = median(self.rounds.iter().flat_map(|r| [r.before, r.after]).collect()).unwrap_or(0.0);
        let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * b;
        let counts = |r: &&Round| {
            near(r.after, r.before, WITHIN) && near(r.before, usual, ACROSS) && near(r.after, usual, ACROSS)
        };
        self.rounds.iter().filter(counts).copied().collect()
    }
}

/// A figure as it is reported, and as a line between rank 0 and the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Median of the figure.
    pub value: f64,
    /// Median of its floor.
    pub floor: Option<f64>,
    /// Median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// Median of the hand-off, in nanoseconds.
    pub handoff: Option<f64>,
    /// Rounds that count.
    pub kept: usize,
    /// Rounds that do not.
    pub discarded: usize,
}

impl Measured {
    /// The median of times that were taken without hand-offs.
    pub fn absolute(values: Vec<f64>) -> Measured {
        let kept = values.len();
        let value = median(values).unwrap_or(f64::NAN);
        Measured { value, floor: None, ratio: None, handoff: None, kept, discarded: 0 }
    }

    /// The line that [`from_str`](Self::from_str) reads.
    pub fn line(&self) -> String {
        let Measured { value, floor, ratio, handoff, kept, discarded } = *self;
        let some = |x: Option<f64>| x.map_or("-".into(), |x| x.to_string());
        format!("{value} {} {} {} {kept} {discarded}", some(floor), some(ratio), some(handoff))
    }
}

impl FromStr for Measured {
    type Err = String;

    fn from_str(line: &str) -> Result<Measured, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[value, floor, ratio, handoff, kept, discarded] = &words[..] else {
            return Err(format!("not a result: {line:?}"));
        };
        let bad = |e: &dyn std::fmt::Display| format!("not a result: {line:?}: {e}");
        let some = |word: &str| match word {
            "-" => Ok(None),
            word => word.parse().map(Some).map_err(|e| bad(&e)),
        };
        Ok(Measured {
            value: value.parse().map_err(|e| bad(&e))?,
            floor: some(floor)?,
            ratio: some(ratio)?,
            handoff: some(handoff)?,
            kept: kept.parse().map_err(|e| bad(&e))?,
            discarded: discarded.parse().map_err(|e| bad(&e))?,
        })
    }
}

/// The middle value, or the mean of the two; `None` of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(handoffs: &[(f64, f64)]) -> Tally {
        let mut t = Tally::default();
        for &(before, after) in handoffs {
            t.push(Round { before, after, ours: 2.0 * before, floor: Some(before) });
        }
        t
    }

    #[test]
    fn rounds_in_which_the_machine_changed_do_not_count() {
        let t = tally(&[(70.0, 71.0), (70.0, 30.0), (30.0, 30.0), (72.0, 69.0), (70.0, 75.0)]);
        let m = t.measured();
        assert_eq!((m.kept, m.discarded), (3, 2));
        assert_eq!((m.value, m.floor, m.ratio), (140.0, Some(70.0), Some(2.0)));
        assert!(t.is_enough(3) && !t.is_enough(4));
    }

    #[test]
    fn an_unsteady_machine_ends_too() {
        let t = tally(&[(70.0, 30.0); 8]);
        assert!(t.is_enough(2) && !t.is_enough(3));
        assert_eq!((t.measured().kept, t.measured().ratio), (0, Some(2.0)));
    }

    #[test]
    fn results_travel_as_lines() {
        let m = tally(&[(70.0, 71.0)]).measured();
        assert_eq!(m.line().parse(), Ok(m));
        let m = Measured::absolute(vec![3.0, 1.0, 2.0]);
        assert_eq!((m.value, m.line().parse()), (2.0, Ok(m)));
        assert!("1 2 3".parse::<Measured>().is_err());
    }
}
