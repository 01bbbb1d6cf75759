//! Where the ranks are: the text of a hang report, for the launcher and for a job without one.

use partage_conduit::record::Doing;
use partage_conduit::sync::now_ns;
use std::time::Duration;

/// Ranks that do the same in one line each.
pub(crate) fn table(rows: &[Option<Doing>]) -> String {
    let mut lines: Vec<(String, u64, Vec<usize>)> = vec![];
    for (rank, doing) in rows.iter().enumerate() {
        let (text, since) = match doing {
            None => ("cannot be read".into(), 0),
            Some(Doing::Starting) => ("starting".into(), 0),
            Some(Doing::Computing) => ("computing".into(), 0),
            Some(Doing::Waiting { site, since_ns }) => (format!("waiting in {site}"), *since_ns),
            Some(Doing::Ended) => ("ended".into(), 0),
            Some(Doing::Failed(why)) => (format!("failed: {why}"), 0),
        };
        match lines.iter_mut().find(|l| l.0 == text) {
            Some(line) => {
                line.1 = line.1.min(since);
                line.2.push(rank);
            }
            None => lines.push((text, since, vec![rank])),
        }
    }
    let waiting = rows.iter().filter(|d| matches!(d, Some(Doing::Waiting { .. }))).count();
    let mut out = format!("partage: where the {} ranks are ({waiting} waiting):", rows.len());
    let width = lines.iter().map(|l| ranks(&l.2).len()).max().unwrap_or(0);
    for (text, since, who) in lines {
        out += &format!("\n  {:width$}  {text}", ranks(&who));
        if since > 0 {
            out += &format!(" for {:.1} s", age(since).as_secs_f64());
        }
    }
    out
}

/// `rank 3`, `ranks 0-2,5`.
pub(crate) fn ranks(who: &[usize]) -> String {
    let mut parts: Vec<String> = vec![];
    let mut i = 0;
    while i < who.len() {
        let mut j = i;
        while j + 1 < who.len() && who[j + 1] == who[j] + 1 {
            j += 1;
        }
        parts.push(if i == j { who[i].to_string() } else { format!("{}-{}", who[i], who[j]) });
        i = j + 1;
    }
    format!("{} {}", if who.len() == 1 { "rank" } else { "ranks" }, parts.join(","))
}

/// How long the longest waiter has been waiting in one call.
pub(crate) fn longest_wait(rows: impl Iterator<Item = Option<Doing>>) -> Option<Duration> {
    let since = rows.filter_map(|d| match d {
        Some(Doing::Waiting { since_ns, .. }) => Some(since_ns),
        _ => None,
    });
    since.min().map(age)
}

fn age(since_ns: u64) -> Duration {
    Duration::from_nanos(now_ns().saturating_sub(since_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_in_runs() {
        assert_eq!(ranks(&[3]), "rank 3");
        assert_eq!(ranks(&[0, 1, 2, 5, 7, 8]), "ranks 0-2,5,7-8");
    }

    #[test]
    fn ranks_that_do_the_same_share_a_line() {
        let at = |site: &str| Some(Doing::Waiting { site: site.into(), since_ns: 1 });
        let t = table(&[at("barrier at a.rs:1:1"), Some(Doing::Computing), at("barrier at a.rs:1:1"), None]);
        assert!(t.starts_with("partage: where the 4 ranks are (2 waiting):\n"), "{t}");
        assert!(t.contains("ranks 0,2  waiting in barrier at a.rs:1:1 for "), "{t}");
        assert!(t.contains("rank 1     computing") && t.contains("rank 3     cannot be read"), "{t}");
        assert!(longest_wait([at("x"), None].into_iter()).is_some());
        assert_eq!(longest_wait([None, Some(Doing::Computing)].into_iter()), None);
    }
}
