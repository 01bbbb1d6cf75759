//! What has been found out so far: a file beside the profile, one line for each cell, which a run that was interrupted leaves behind.

use super::cells::Cell;
use super::judge::Outcome;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The outcomes, in memory and in the file.
pub struct Work {
    path: PathBuf,
    file: File,
    /// The first line of the file.
    first: String,
    outcomes: Vec<Outcome>,
}

impl Work {
    /// Goes on with the file beside `profile`, or begins a new one: if that is wanted, or if the old one was for something else
    /// than `key` says.
    pub fn open(profile: &Path, key: &str, fresh: bool) -> Result<Work, String> {
        let mut path = profile.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let wrong = |e: std::io::Error| format!("{}: {e}", path.display());
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(wrong)?;
        }
        let first = format!("partage tune 1 {key}").replace('\n', " ");
        // What cannot be read is measured again.
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = old.lines();
        if !fresh && lines.next() == Some(&first) {
            let outcomes = lines.filter_map(|line| line.parse().ok()).collect();
            let mut file = OpenOptions::new().append(true).open(&path).map_err(wrong)?;
            // After a line that was cut short.
            if !old.ends_with('\n') {
                file.write_all(b"\n").map_err(wrong)?;
            }
            return Ok(Work { path, file, first, outcomes });
        }
        if !fresh && lines.next().is_some() {
            eprintln!("partage: tune: {}: its cells were measured with other settings: it begins anew", path.display());
        }
        let mut file = File::create(&path).map_err(wrong)?;
        file.write_all(format!("{first}\n").as_bytes()).map_err(wrong)?;
        Ok(Work { path, file, first, outcomes: vec![] })
    }

    /// What a cell came to.
    pub fn find(&self, cell: &Cell) -> Option<&Outcome> {
        let head = cell.head();
        self.outcomes.iter().find(|o| o.bytes == cell.bytes && o.head == head)
    }

    /// Is no cell known that differs from this one in its length only?
    pub fn is_first(&self, cell: &Cell) -> bool {
        let head = cell.head();
        self.outcomes.iter().all(|o| o.head != head)
    }

    /// One more.
    pub fn push(&mut self, outcome: Outcome) -> Result<(), String> {
        let written = self.file.write_all(format!("{}\n", outcome.line()).as_bytes());
        self.outcomes.push(outcome);
        written.map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// All of these cells are done, and in the profile. What others came to stays, for a run that goes on with those.
    pub fn finish(&mut self, cells: &[Cell]) -> Result<(), String> {
        let done: Vec<(String, usize)> = cells.iter().map(|cell| (cell.head(), cell.bytes)).collect();
        self.outcomes.retain(|o| !done.iter().any(|(head, bytes)| *bytes == o.bytes && *head == o.head));
        if self.outcomes.is_empty() {
            self.remove();
            return Ok(());
        }
        let lines = self.outcomes.iter().map(Outcome::line).fold(self.first.clone(), |all, line| all + "\n" + &line);
        let new = self.path.with_extension("part.new");
        let written = std::fs::write(&new, lines + "\n").and_then(|()| std::fs::rename(&new, &self.path));
        written.map_err(|e| format!("{}: {e}", self.path.display()))
    }

    fn remove(&self) {
        // A file that stays is found to be complete.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Work {
    /// A file without outcomes is of no use.
    fn drop(&mut self) {
        if self.outcomes.is_empty() {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells;
    use super::*;
    use crate::bench::coll::cells::Operation;

    #[test]
    fn what_was_cut_short_goes_on() {
        let profile = std::env::temp_dir().join(format!("partage-work-{}", std::process::id()));
        let outcome = |bytes: usize| -> Outcome { format!("head {bytes} last 2 last 2 1 .").parse().unwrap() };
        let mut work = Work::open(&profile, "a", true).unwrap();
        work.push(outcome(8)).unwrap();
        work.push(outcome(64)).unwrap();
        let path = work.path.clone();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let mut work = Work::open(&profile, "a", false).unwrap();
        assert_eq!(work.outcomes, [outcome(8)]);
        work.push(outcome(64)).unwrap();
        assert_eq!(Work::open(&profile, "a", false).unwrap().outcomes, [outcome(8), outcome(64)]);
        // For something else, and anew.
        assert_eq!(Work::open(&profile, "b", false).unwrap().outcomes, []);
        let mut work = Work::open(&profile, "b", false).unwrap();
        work.push(outcome(8)).unwrap();
        assert_eq!(Work::open(&profile, "b", true).unwrap().outcomes, []);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_smaller_run_does_not_measure_stays() {
        let profile = std::env::temp_dir().join(format!("partage-part-{}", std::process::id()));
        let cells = cells::all(&cells::situations(&[2], 2), &[Operation::Gather], &[8, 64]);
        let mut work = Work::open(&profile, "a", true).unwrap();
        for cell in &cells {
            let line = format!("{} {} last 2 last 2 1 .", cell.head(), cell.bytes);
            work.push(line.parse().unwrap()).unwrap();
        }
        let short: Vec<Cell> = cells.iter().filter(|cell| cell.bytes == 8).cloned().collect();
        work.finish(&short).unwrap();
        let mut work = Work::open(&profile, "a", false).unwrap();
        assert_eq!(work.outcomes.len(), cells.len() - short.len());
        assert!(short.iter().all(|cell| work.find(cell).is_none()));
        work.finish(&cells).unwrap();
        assert!(!work.path.exists());
    }
}
