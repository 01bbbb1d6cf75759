//! Hosts as people write them: in a list (`node7:4,node8:2`), and in a host file, one on each line.
//!
//! A host is a name with the processes that it may have, its *slots*: `node7`, `node7:4` or `node7 slots=4`; an IPv6 address
//! with slots is in brackets, `[fd00::7]:4`. In a file `#` begins a comment, and blank lines are nothing. A host that stands
//! there twice has two shares, so the node files of batch systems, with a line for each core, are host files.
//!
//! Guaranteed: whatever the text or file, the outcome is hosts or a one-line error that names the file and the line. Not
//! contained: whether there are such hosts, and who gets which processes ([`Spec::shares`](crate::Spec::shares)).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::Error;

/// A host of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As the remote shell knows it.
    pub name: String,
    /// How many processes it may have; if it was not said, all that its share is.
    pub slots: Option<usize>,
}

/// More than any host has.
const SLOTS_MAX: usize = 1 << 16;
/// A longer file is another one than was meant.
const FILE_MAX: u64 = 16 << 20;

impl Host {
    /// A host without slots.
    pub fn new(name: impl Into<String>) -> Host {
        Host { name: name.into(), slots: None }
    }

    /// Hosts with commas between them.
    ///
    /// ```
    /// use partage_boot::Host;
    /// let hosts = Host::list("node7:4,node8").unwrap();
    /// assert_eq!((hosts[0].name.as_str(), hosts[0].slots), ("node7", Some(4)));
    /// assert_eq!(hosts[1], Host::new("node8"));
    /// ```
    pub fn list(text: &str) -> Result<Vec<Host>, Error> {
        let host = |word: &str| Host::read(word).map_err(|why| Error::new(format!("--hosts {text}: {why}")));
        text.split(',').map(|word| host(word.trim())).collect()
    }

    /// The hosts of a host file.
    pub fn file(path: &Path) -> Result<Vec<Host>, Error> {
        let name = path.display();
        let cannot = |why: std::io::Error| Error::new(format!("host file {name} cannot be read: {why}"));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(cannot)?;
        file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(Error::new(format!(
                "host file {name} is longer than {} MiB: is it another file?",
                FILE_MAX >> 20
            )));
        }
        let mut hosts = Vec::new();
        for (number, line) in bytes.split(|b| *b == b'\n').enumerate() {
            let wrong = |why: &str| Error::new(format!("host file {name}, line {}: {why}", number + 1));
            let line = std::str::from_utf8(line).map_err(|_| wrong("it is not text"))?;
            let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
            if !line.is_empty() {
                hosts.push(Host::of_line(line).map_err(|why| wrong(&why))?);
            }
        }
        match hosts.is_empty() {
            true => Err(Error::new(format!("host file {name} has no hosts; write one on each line"))),
            false => Ok(hosts),
        }
    }

    /// `node7`, `node7:4`, `node7 slots=4`.
    fn of_line(line: &str) -> Result<Host, String> {
        let mut words = line.split_whitespace();
        let mut host = Host::read(words.next().unwrap_or_default())?;
        for word in words {
            match word.strip_prefix("slots=") {
                Some(count) if host.slots.is_none() => host.slots = Some(slots(count)?),
                Some(_) => return Err(format!("`{line}` says twice how many slots there are")),
                None => return Err(format!("`{word}` is not understood; write a host, and slots=N if need be")),
            }
        }
        Ok(host)
    }

    /// `node7`, `node7:4`, `[fd00::7]:4`.
    fn read(word: &str) -> Result<Host, String> {
        let (name, count) = match word.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, rest)) => (name, Some(rest.strip_prefix(':').ok_or(format!("`{word}` is not understood"))?)),
            // Several colons make an address.
            None => match word.split_once(':').filter(|(_, rest)| !rest.contains(':')) {
                Some((name, count)) => (name, Some(count)),
                None => (word, None),
            },
        };
        let host = Host { name: name.into(), slots: count.map(slots).transpose()? };
        host.check().map(|()| host)
    }

    /// What is wrong with its name, which goes to a remote shell.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() {
            return Err("a host has a name".into());
        }
        if name.starts_with('-') {
            return Err(format!("`{name}`: the name of a host does not begin with a hyphen"));
        }
        match name.chars().find(|c| c.is_whitespace() || c.is_control()) {
            Some(odd) => Err(format!("the name of a host has no {odd:?} in it")),
            None => Ok(()),
        }
    }
}

fn slots(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=SLOTS_MAX).contains(count));
    count.ok_or_else(|| format!("`{text}` slots: a host has 1 to {SLOTS_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, slots: usize) -> Host {
        Host { name: name.into(), slots: Some(slots) }
    }

    #[test]
    fn lists() {
        assert_eq!(Host::list("a").unwrap(), [Host::new("a")]);
        assert_eq!(Host::list("a:4, user@b:2,a").unwrap(), [with("a", 4), with("user@b", 2), Host::new("a")]);
        let addresses = [with("fd00::7", 4), Host::new("fd00::8"), Host::new("fd00::9")];
        assert_eq!(Host::list("[fd00::7]:4,fd00::8,[fd00::9]").unwrap(), addresses);
        for (text, why) in [
            ("a,,b", "a host has a name"),
            ("", "a host has a name"),
            (":4", "a host has a name"),
            ("a:", "`` slots: a host has 1 to 65536"),
            ("a:0", "`0` slots: a host has 1 to 65536"),
            ("a:many", "`many` slots: a host has 1 to 65536"),
            ("a:99999999999999999999", "`99999999999999999999` slots: a host has 1 to 65536"),
            ("[a]4", "`[a]4` is not understood"),
            ("-l", "`-l`: the name of a host does not begin with a hyphen"),
            ("a b", "the name of a host has no ' ' in it"),
        ] {
            assert_eq!(Host::list(text).unwrap_err().to_string(), format!("--hosts {text}: {why}"));
        }
    }

    #[test]
    fn lines() {
        for (line, host) in [
            ("node7", Host::new("node7")),
            ("node7:4", with("node7", 4)),
            ("node7\tslots=4", with("node7", 4)),
            ("[fd00::7]  slots=2", with("fd00::7", 2)),
        ] {
            assert_eq!(Host::of_line(line).unwrap(), host);
        }
        for (line, why) in [
            ("node7:4 slots=4", "`node7:4 slots=4` says twice how many slots there are"),
            ("node7 slots=", "`` slots: a host has 1 to 65536"),
            ("node7 4", "`4` is not understood; write a host, and slots=N if need be"),
            ("node7 max_slots=8", "`max_slots=8` is not understood; write a host, and slots=N if need be"),
            ("-oProxyCommand=x", "`-oProxyCommand=x`: the name of a host does not begin with a hyphen"),
        ] {
            assert_eq!(Host::of_line(line).unwrap_err(), why);
        }
    }
}
