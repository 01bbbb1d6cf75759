//! Who wins a cell, and which rules the winners make. Arithmetic only: no clock and no rank is used here.
//!
//! A round of an algorithm is one time for each job, that is for each number of ranks, under each condition.

use crate::bench::digits;
use crate::bench::measure::median;
use partage::coll::Algorithm;
use std::str::FromStr;

/// What is better by less than this is not.
const NOISE: f64 = 0.05;
/// It must be better in so many rounds of four.
const MOST: usize = 3;
/// Blocks of this length and longer are alike.
const LONG: usize = 1 << 20;

/// The median of each job, under each condition.
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

/// Is it better by more than noise, in most rounds, and nowhere worse?
pub fn beats(new: &[Vec<f64>], old: &[Vec<f64>]) -> bool {
    let rounds = new.len().min(old.len());
    let better = new.iter().zip(old).filter(|(a, b)| cost(a) < cost(b)).count();
    rounds > 0 && 4 * better >= MOST * rounds && ratio(new, old) < 1.0 - NOISE && no_worse(new, old)
}

/// Is it worse by no more than noise, for each job, under each condition?
pub fn no_worse(new: &[Vec<f64>], old: &[Vec<f64>]) -> bool {
    medians(new).iter().zip(medians(old)).all(|(a, b)| *a < b * (1.0 + NOISE))
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
        // Of a name that is none jobs would refuse the profile.
        if [built_in, chosen].iter().any(|name| name.parse::<Algorithm>().is_err()) {
            return Err(());
        }
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

/// The first length that is nearer to `b` than to `a`, or a power of two about there that is neither.
fn between(a: usize, b: usize) -> usize {
    let middle = (a as f64 * b as f64).sqrt() as usize;
    let power = middle.next_power_of_two();
    if a < power && power < b { power } else { middle + 1 }
}

/// The lengths that one of these cells stands for, which are in order: those that are nearer to its own than to the next one. The
/// last is included; none: however long.
fn range(cells: &[&Outcome], i: usize) -> (usize, Option<usize>) {
    let bytes = cells[i].bytes;
    let from = match i.checked_sub(1) {
        Some(before) => between(cells[before].bytes, bytes),
        None if bytes <= 8 => 0,
        None => bytes / 2,
    };
    let to = match cells.get(i + 1) {
        Some(next) => Some(between(bytes, next.bytes) - 1),
        None if bytes >= LONG => None,
        None => Some(2 * bytes - 1),
    };
    (from, to)
}

fn rule(from: usize, to: Option<usize>, algorithm: &str) -> String {
    let to = to.map_or(String::new(), |to| to.to_string());
    format!("{from}-{to}:{algorithm}")
}

/// In the words of the table: 1k, not 1024.
fn entry(head: &str, rules: &[String]) -> Option<String> {
    let entry = (!rules.is_empty()).then(|| format!("{head}:{}", rules.join(";")))?;
    Some(entry.parse::<partage::coll::Table>().map_or(entry, |table| table.to_string()))
}

/// The entry of cells that differ in their lengths only, in order, and a remark; nothing where the built-in choice holds for all.
pub fn rules(cells: &[&Outcome]) -> Option<(String, String)> {
    let (mut rules, mut remarks) = (vec![], vec![]);
    let mut at = 0;
    for same in cells.chunk_by(|a, b| a.chosen == b.chosen && (a.chosen == a.built_in) == (b.chosen == b.built_in)) {
        let last = at + same.len() - 1;
        if same[0].chosen != same[0].built_in {
            rules.push(rule(range(cells, at).0, range(cells, last).1, &same[0].chosen));
            for o in same {
                let (now, was) = (digits(o.chosen_us), digits(o.built_in_us));
                remarks.push(format!("{}: {now} µs, {} {was}", o.bytes, o.built_in));
            }
        }
        at = last + 1;
    }
    Some((entry(&cells[0].head, &rules)?, remarks.join("; ")))
}

/// What is left of an older entry with the same head: its rules for the lengths that none of these cells stands for.
pub fn rest(old: &str, cells: &[&Outcome]) -> Option<String> {
    let (head, rules) = old.split_once(':')?;
    let (first, last) = (range(cells, 0).0, range(cells, cells.len() - 1).1);
    let mut left = vec![];
    for one in rules.split(';') {
        let (from, to, algorithm) = parts(one);
        if from < first {
            left.push(rule(from, Some(to.unwrap_or(first).min(first - 1)), algorithm));
        }
        if let Some(last) = last
            && to.is_none_or(|to| to > last)
        {
            left.push(rule(from.max(last + 1), to, algorithm));
        }
    }
    entry(head, &left)
}

/// The lengths that a rule of a table is for, and its algorithm.
fn parts(rule: &str) -> (usize, Option<usize>, &str) {
    let size = |text: &str| {
        let unit = [('k', 10), ('m', 20), ('g', 30)].into_iter().find(|&(letter, _)| text.ends_with(letter));
        let (digits, bits) = unit.map_or((text, 0), |(_, bits)| (&text[..text.len() - 1], bits));
        digits.parse::<usize>().ok().map(|n| n << bits)
    };
    let range = rule.split_once(':').and_then(|(range, algorithm)| Some((range.split_once('-')?, algorithm)));
    match range.and_then(|((from, to), algorithm)| Some((size(from)?, size(to), algorithm))) {
        Some(parts) => parts,
        None => (0, None, rule),
    }
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
        assert!(line.replace("ring/", "rong/").parse::<Outcome>().is_err(), "jobs would refuse it");
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
        assert_eq!(entry, "broadcast.node.cores.two.all.shared:32-511:flat:pull;2k-8191:ring:push");
        assert_eq!(remark, "64: 1.5 µs, last 2; 256: 1.5 µs, last 2; 4096: 1.5 µs, last 2");
        assert_eq!(rules(&[&outcome(8, "last"), &outcome(64, "last")]), None);
        let one = rules(&[&outcome(1 << 20, "flat:pull")]).unwrap().0;
        assert_eq!(one, "broadcast.node.cores.two.all.shared:512k-:flat:pull");
        let one = rules(&[&outcome(8, "flat:pull")]).unwrap().0;
        assert_eq!(one, "broadcast.node.cores.two.all.shared:0-15:flat:pull");
    }

    #[test]
    fn no_length_is_in_the_range_of_another() {
        let of = |lengths: &[usize]| -> Vec<(usize, Option<usize>)> {
            let cells: Vec<Outcome> = lengths.iter().map(|&bytes| outcome(bytes, "last")).collect();
            let cells: Vec<&Outcome> = cells.iter().collect();
            (0..cells.len()).map(|i| range(&cells, i)).collect()
        };
        assert_eq!(of(&[8, 16, 32]), [(0, Some(11)), (12, Some(22)), (23, Some(63))]);
        let all = of(&super::super::cells::LENGTHS);
        let (k, m) = (1 << 10, 1 << 20);
        let from = [0, 32, 128, 512, 2 * k, 8 * k, 32 * k, 128 * k, m / 2];
        assert_eq!(all.iter().map(|r| r.0).collect::<Vec<_>>(), from);
        let close: Vec<usize> = (1..200).map(|i| 8 * i).collect();
        for lengths in [&close, &vec![8, 24, 40, 1000, 1024, 1032, m, m + 8], &super::super::cells::LENGTHS.to_vec()] {
            let all = of(lengths);
            assert!(lengths.iter().zip(&all).all(|(n, (from, to))| from <= n && to.is_none_or(|to| *n <= to)));
            assert!(all.windows(2).all(|two| two[0].1 == Some(two[1].0 - 1)), "{all:?}");
        }
    }

    #[test]
    fn rules_for_other_lengths_are_left() {
        let left = |old: &str, lengths: &[usize]| {
            let cells: Vec<Outcome> = lengths.iter().map(|&bytes| outcome(bytes, "last")).collect();
            rest(old, &cells.iter().collect::<Vec<_>>())
        };
        let old = "gather:0-31:last;32-2047:flat:pull;2k-:scatter-gather2:push";
        let some = |text: &str| Some(text.to_string());
        assert_eq!(left(old, &[8]), some("gather:16-31:last;32-2047:flat:pull;2k-:scatter-gather2:push"));
        assert_eq!(left(old, &[8, 64]), some("gather:128-2047:flat:pull;2k-:scatter-gather2:push"));
        let one = "gather:0-31:last;32-511:flat:pull;2k-:scatter-gather2:push";
        assert_eq!(left(old, &[1 << 10]), some(one));
        assert_eq!(left(old, &[1 << 20]), some("gather:0-31:last;32-2047:flat:pull;2k-524287:scatter-gather2:push"));
        assert_eq!(left(old, &[8, 1 << 20]), None);
        // However long, and by an algorithm whose name begins with a digit.
        assert_eq!(left("gather:000:naive-push", &[64]), some("gather:0-31:000:naive-push;128-:000:naive-push"));
        assert_eq!(left("gather:1k-2m:ring/8:pull@16k", &[8]), some("gather:1k-2m:ring/8:pull@16k"));
    }
}
