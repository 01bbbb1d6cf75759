//! Where the ranks are: the text of a hang report, for the launcher and for a job without one.

use partage_boot::Row;
use partage_conduit::record::Doing;
use partage_conduit::sync::now_ns;
use std::time::Duration;

/// A rank's line.
pub(crate) fn row(doing: Option<Doing>) -> Row {
    let (text, waiting) = match doing {
        None => ("cannot be read".into(), None),
        Some(Doing::Starting) => ("starting".into(), None),
        Some(Doing::Computing) => ("computing".into(), None),
        Some(Doing::Waiting { site, since_ns }) => (format!("waiting in {site}"), Some(age(since_ns))),
        Some(Doing::Ended) => ("ended".into(), None),
        Some(Doing::Failed(why)) => (format!("failed: {why}"), None),
    };
    Row { text, waiting }
}

/// Ranks that do the same in one line each. `hosts`: of each rank, where ranks are on several.
pub(crate) fn table(rows: &[Row], hosts: &[Option<&str>]) -> String {
    let mut lines: Vec<(&str, Option<Duration>, Vec<usize>)> = vec![];
    for (rank, row) in rows.iter().enumerate() {
        match lines.iter_mut().find(|l| l.0 == row.text) {
            Some(line) => {
                line.1 = line.1.max(row.waiting);
                line.2.push(rank);
            }
            None => lines.push((&row.text, row.waiting, vec![rank])),
        }
    }
    let waiting = rows.iter().filter(|row| row.waiting.is_some()).count();
    let mut out = format!("partage: where the {} ranks are ({waiting} waiting):", rows.len());
    let lines: Vec<_> =
        lines.into_iter().map(|(text, time, who)| (ranks(&who) + &on(&who, hosts), text, time)).collect();
    let width = lines.iter().map(|l| l.0.len()).max().unwrap_or(0);
    for (who, text, time) in lines {
        out += &format!("\n  {who:width$}  {text}");
        if let Some(time) = time {
            out += &format!(" for {:.1} s", time.as_secs_f64());
        }
    }
    out
}

/// ` on b`, ` on 3 hosts`.
fn on(who: &[usize], hosts: &[Option<&str>]) -> String {
    let mut names: Vec<&str> = who.iter().filter_map(|rank| *hosts.get(*rank)?).collect();
    names.sort();
    names.dedup();
    match names[..] {
        [] => String::new(),
        [name] => format!(" on {name}"),
        _ => format!(" on {} hosts", names.len()),
    }
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
        let at = |site: &str| row(Some(Doing::Waiting { site: site.into(), since_ns: 1 }));
        let rows = [at("barrier at a.rs:1:1"), row(Some(Doing::Computing)), at("barrier at a.rs:1:1"), row(None)];
        let t = table(&rows, &[]);
        assert!(t.starts_with("partage: where the 4 ranks are (2 waiting):\n"), "{t}");
        assert!(t.contains("ranks 0,2  waiting in barrier at a.rs:1:1 for "), "{t}");
        assert!(t.contains("rank 1     computing") && t.contains("rank 3     cannot be read"), "{t}");
        let t = table(&rows, &[Some("a"), Some("a"), Some("b"), Some("b")]);
        assert!(
            t.contains("ranks 0,2 on 2 hosts  waiting in ") && t.contains("rank 1 on a           computing"),
            "{t}"
        );
        let doing = |site: &str| Some(Doing::Waiting { site: site.into(), since_ns: 1 });
        assert!(longest_wait([doing("x"), None].into_iter()).is_some());
        assert_eq!(longest_wait([None, Some(Doing::Computing)].into_iter()), None);
    }
}
