//! Who wins a cell, and which rules the winners make. Arithmetic only: no clock and no rank is used here.
//!
//! A round of an algorithm is one time for each job, that is for each number of ranks.

use crate::bench::digits;
use crate::bench::measure::median;
use std::str::FromStr;

/// What is better by less than this is not.
const NOISE: f64 = 0.05;
/// It must be better in so many rounds of four.
const MOST: usize = 3;
/// Blocks of this length and longer are alike.
const LONG: usize = 1 << 20;

/// The median of each job.
pub fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let jobs = rounds.first().map_or(0, Vec::len);
    (0..jobs).map(|job| median(rounds.iter().map(|r| r[job]).collect()).unwrap_or(f64::NAN)).collect()
}

/// One number for the times of several jobs: their geometric mean, so that all count alike.
pub fn cost(times: &[f64]) -> f64 {
    (times.iter().map(|t| t.ln()).sum::<f64>() / times.len() as f64).exp()
}

/// How many times as long one takes as the other, in rounds that were taken side by side: the median.
pub fn ratio(ours: &[Vec<f64>], other: &[Vec<f64>]) -> f64 {
    median(ours.iter().zip(other).map(|(a, b)| cost(a) / cost(b)).collect()).unwrap_or(1.0)
}

/// Is it better by more than noise, in most rounds, and for no job worse?
pub fn beats(new: &[Vec<f64>], old: &[Vec<f64>]) -> bool {
    let rounds = new.len().min(old.len());
    let better = new.iter().zip(old).filter(|(a, b)| cost(a) < cost(b)).count();
    let no_worse = medians(new).iter().zip(medians(old)).all(|(a, b)| *a < b * (1.0 + NOISE));
    rounds > 0 && 4 * better >= MOST * rounds && ratio(new, old) < 1.0 - NOISE && no_worse
}

/// What a cell came to. Times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How the entry begins.
    pub head: String,
    /// Bytes of a block.
    pub bytes: usize,
    /// What the built-in table takes.
    pub built_in: String,
    /// How long that takes.
    pub built_in_us: f64,
    /// What is to be taken.
    pub chosen: String,
    /// How long that takes.
    pub chosen_us: f64,
    /// The ratio of both, by rounds.
    pub ratio: f64,
}

impl Outcome {
    /// The line that [`from_str`](Self::from_str) reads.
    pub fn line(&self) -> String {
        let Outcome { head, bytes, built_in, built_in_us, chosen, chosen_us, ratio } = self;
        format!("{head} {bytes} {built_in} {built_in_us} {chosen} {chosen_us} {ratio} .")
    }
}

impl FromStr for Outcome {
    type Err = ();

    fn from_str(line: &str) -> Result<Outcome, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        // Of a line that was being written the end is missing.
        let &[head, bytes, built_in, built_in_us, chosen, chosen_us, ratio, "."] = &words[..] else { return Err(()) };
        let number = |word: &str| word.parse::<f64>().map_err(|_| ());
        Ok(Outcome {
            head: head.into(),
            bytes: bytes.parse().map_err(|_| ())?,
            built_in: built_in.into(),
            built_in_us: number(built_in_us)?,
            chosen: chosen.into(),
            chosen_us: number(chosen_us)?,
            ratio: number(ratio)?,
        })
    }
}

/// The entry of cells that differ in their lengths only, in order, and a remark; nothing where the built-in choice holds for all. A
/// length stands for those that are nearer to it than to the next one.
pub fn rules(cells: &[&Outcome]) -> Option<(String, String)> {
    let between = |a: usize, b: usize| ((a as f64 * b as f64).sqrt() as usize).next_power_of_two();
    let from = |i: usize| match i.checked_sub(1) {
        Some(before) => between(cells[before].bytes, cells[i].bytes),
        None if cells[i].bytes <= 8 => 0,
        None => cells[i].bytes / 2,
    };
    let to = |i: usize| match cells.get(i + 1) {
        Some(next) => Some(between(cells[i].bytes, next.bytes)),
        None if cells[i].bytes >= LONG => None,
        None => Some(2 * cells[i].bytes),
    };
    let (mut rules, mut remarks) = (vec![], vec![]);
    let mut at = 0;
    for same in cells.chunk_by(|a, b| a.chosen == b.chosen && (a.chosen == a.built_in) == (b.chosen == b.built_in)) {
        let last = at + same.len() - 1;
        if same[0].chosen != same[0].built_in {
            let to = to(last).map_or(String::new(), |to| to.to_string());
            rules.push(format!("{}-{to}:{}", from(at), same[0].chosen));
            for o in same {
                let (now, was) = (digits(o.chosen_us), digits(o.built_in_us));
                remarks.push(format!("{}: {now} µs, {} {was}", o.bytes, o.built_in));
            }
        }
        at = last + 1;
    }
    // In the words of the table: 1k, not 1024.
    let entry = (!rules.is_empty()).then(|| format!("{}:{}", cells[0].head, rules.join(";")))?;
    let entry = entry.parse::<partage::coll::Table>().map_or(entry, |table| table.to_string());
    Some((entry, remarks.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bytes: usize, chosen: &str) -> Outcome {
        let head = "broadcast.node.cores.two.all.shared".into();
        let (built_in, chosen) = ("last".into(), chosen.into());
        Outcome { head, bytes, built_in, built_in_us: 2.0, chosen, chosen_us: 1.5, ratio: 0.75 }
    }

    #[test]
    fn outcomes_travel_as_lines() {
        let o = outcome(1024, "ring/8:pull@16k");
        assert_eq!(o.line().parse(), Ok(o.clone()));
        let line = o.line();
        assert!((0..line.len()).all(|n| line[..n].parse::<Outcome>().is_err()));
    }

    #[test]
    fn only_what_is_better_by_more_than_noise_wins() {
        let rounds = |times: &[f64]| times.iter().map(|&t| vec![t]).collect::<Vec<_>>();
        let old = rounds(&[1.0, 1.01, 0.99, 1.0]);
        assert!(beats(&rounds(&[0.9, 0.9, 0.91, 0.9]), &old));
        assert!(!beats(&rounds(&[0.97, 0.97, 0.96, 0.97]), &old));
        assert!(!beats(&rounds(&[0.5, 0.5, 1.2, 1.2]), &old));
        assert!(!beats(&old, &old) && !beats(&[], &[]));
        // Better on the whole, but not for all numbers of ranks.
        let old = vec![vec![1.0, 10.0]; 4];
        assert!(beats(&vec![vec![0.5, 10.2]; 4], &old) && !beats(&vec![vec![0.5, 11.0]; 4], &old));
        assert!((ratio(&vec![vec![0.5, 10.0]; 3], &vec![vec![2.0, 10.0]; 3]) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn neighbours_with_one_winner_are_one_rule() {
        let names = ["last", "flat:pull", "flat:pull", "last", "ring:push"];
        let cells: Vec<Outcome> = [8, 64, 256, 1024, 4096].into_iter().zip(names).map(|(b, n)| outcome(b, n)).collect();
        let (entry, remark) = rules(&cells.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(entry, "broadcast.node.cores.two.all.shared:32-512:flat:pull;2k-8k:ring:push");
        assert_eq!(remark, "64: 1.5 µs, last 2; 256: 1.5 µs, last 2; 4096: 1.5 µs, last 2");
        assert_eq!(rules(&[&outcome(8, "last"), &outcome(64, "last")]), None);
        let one = rules(&[&outcome(1 << 20, "flat:pull")]).unwrap().0;
        assert_eq!(one, "broadcast.node.cores.two.all.shared:512k-:flat:pull");
        let one = rules(&[&outcome(8, "flat:pull")]).unwrap().0;
        assert_eq!(one, "broadcast.node.cores.two.all.shared:0-16:flat:pull");
    }
}
