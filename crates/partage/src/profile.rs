//! What `partage tune` has found out about a machine, as a file: a *profile*.
//!
//! ```text
//! partage profile 1
//! version 0.1.0                           who made it
//! table 5f1d…                             the built-in table that its rules were compared with
//! processor …, cores …                    where
//! host …, date …                          for people
//!
//! broadcast.node.all:1k-4k:tree2:pull     # rules, as those of the environment's table
//! end
//! ```
//! (One word and its value on each line; from `#` on a line is for people.)
//!
//! It is used by a job whose version, built-in table, processor and number of cores are those. Otherwise, or if it cannot be
//! read, the job runs without it, and one line says why. Process 0 reads it for all.
//!
//! Not contained: measuring, which is the command's.

use crate::coll::Table;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Which file is the profile; `none`: none is.
pub(crate) const VARIABLE: &str = "PARTAGE_PROFILE";
/// The first line.
const FIRST: &str = "partage profile 1";
/// The last one, without which something is missing.
const LAST: &str = "end";
/// No profile is as long.
const MOST: u64 = 1 << 20;

/// What the head of a profile says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The version of partage.
    pub version: String,
    /// The built-in table, as a number.
    pub table: String,
    /// The processor's name.
    pub processor: String,
    /// How many cores the machine has.
    pub cores: String,
    /// The machine's name.
    pub host: String,
    /// When.
    pub date: String,
}

impl Made {
    /// Here and now.
    pub fn now() -> Made {
        let (processor, cores) = partage_conduit::topology::processor();
        // 64-bit FNV-1a.
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        let table = Table::default().to_string().bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Made {
            version: env!("CARGO_PKG_VERSION").into(),
            table: format!("{table:016x}"),
            processor,
            cores: cores.to_string(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            date: date(seconds),
        }
    }

    /// Why what was made then does not hold here; nothing if it does.
    pub fn differs(&self, here: &Made) -> Option<String> {
        let Made { version, table, processor, cores, .. } = self;
        match () {
            () if *version != here.version => Some(format!("it is of partage {version}, and this is {}", here.version)),
            () if *table != here.table => Some("the built-in table is another one now".into()),
            () if *processor != here.processor => {
                Some(format!("it is for {processor}, and this is {}", here.processor))
            }
            () if *cores != here.cores => Some(format!("it is for {cores} cores, and here are {}", here.cores)),
            () => None,
        }
    }

    /// As lines of the head.
    fn lines(&self) -> [(&'static str, &String); 6] {
        let Made { version, table, processor, cores, host, date } = self;
        [
            ("version", version),
            ("table", table),
            ("processor", processor),
            ("cores", cores),
            ("host", host),
            ("date", date),
        ]
    }
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Where, when and by whom.
    pub made: Made,
    /// The rules that come before the built-in ones.
    pub table: Table,
}

impl Profile {
    /// The file's text. Each rule is one line: the entry and what people may want to know about it.
    pub fn text(made: &Made, rules: &[(String, String)]) -> String {
        let mut text = format!("{FIRST}\n");
        made.lines().iter().for_each(|(word, value)| text += &format!("{word} {}\n", value.replace('#', "")));
        text += "\n";
        rules.iter().for_each(|(rule, remark)| text += &format!("{rule}  # {remark}\n"));
        text + LAST + "\n"
    }

    /// What a text says.
    ///
    /// # Errors
    /// The line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Profile, String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let mut lines = (1..).zip(lines).filter(|(_, line)| !line.is_empty());
        match lines.next() {
            Some((_, FIRST)) => {}
            Some((_, line)) if line.starts_with("partage profile ") => {
                return Err(format!("it is {line:?}, and this version reads {FIRST:?}"));
            }
            _ => return Err(format!("line 1 is not {FIRST:?}")),
        }
        let mut head = |word: &str| match lines.next() {
            Some((n, line)) => match line.split_once(' ') {
                Some((first, value)) if first == word => Ok(value.trim().to_string()),
                _ => Err(format!("line {n}: there must be `{word}` and its value")),
            },
            None => Err(format!("it ends before `{word}`")),
        };
        let made = Made {
            version: head("version")?,
            table: head("table")?,
            processor: head("processor")?,
            cores: head("cores")?,
            host: head("host")?,
            date: head("date")?,
        };
        let mut table = Table::empty();
        loop {
            match lines.next() {
                None => return Err(format!("its last line is not `{LAST}`: a part is missing")),
                Some((_, LAST)) => break,
                Some((n, line)) => match line.parse() {
                    Ok(more) => table = table.over(more),
                    Err(why) => return Err(format!("line {n}: {why}")),
                },
            }
        }
        match lines.next() {
            Some((n, _)) => Err(format!("line {n}: there is something after `{LAST}`")),
            None => Ok(Profile { made, table }),
        }
    }
}

/// What there is for a job that starts here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No profile, and no place for one: it was not wanted, or there is no home.
    Nowhere,
    /// No profile, but this is where one would be.
    Missing(PathBuf),
    /// One that is not used, and why.
    Ignored(PathBuf, String),
    /// One that is.
    Used(PathBuf, Profile),
}

/// Looks for the profile.
pub fn find() -> Found {
    let asked = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty());
    let Some(path) = path() else { return Found::Nowhere };
    match read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !asked => Found::Missing(path),
        Err(e) => Found::Ignored(path, e.to_string()),
        Ok(text) => match Profile::parse(&text) {
            Err(why) => Found::Ignored(path, why),
            Ok(profile) => match profile.made.differs(&Made::now()) {
                Some(why) => Found::Ignored(path, why),
                None => Found::Used(path, profile),
            },
        },
    }
}

impl Found {
    /// The line that says why a profile is not used.
    pub fn complaint(&self) -> Option<String> {
        let Found::Ignored(path, why) = self else { return None };
        let path = path.display();
        Some(format!(
            "the profile {path} is not used: {why}; `partage tune` makes it anew, {VARIABLE}=none does without"
        ))
    }
}

/// Where the profile is, or would be: what `PARTAGE_PROFILE` says, or a file in the user's configuration.
pub fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match variable(VARIABLE) {
        Some(asked) if asked == "none" => None,
        Some(asked) => Some(asked.into()),
        None => {
            let home = || variable("HOME").map(|home| Path::new(&home).join(".config"));
            let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            Some(config.or_else(home)?.join("partage/profile"))
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut text = vec![];
    File::open(path)?.take(MOST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Seconds since 1970 as a date in UTC.
fn date(seconds: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year) = (seconds / 86400, 1970);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Vec<(String, String)> {
        let rule = |rule: &str, remark: &str| (rule.to_string(), remark.to_string());
        vec![rule("broadcast.node.all:1k-4k:tree2:pull;16k-:ring/8", "0.5 µs, not 0.7"), rule("any.two:xor", "")]
    }

    #[test]
    fn what_was_written_is_read() {
        let made = Made::now();
        let profile = Profile::parse(&Profile::text(&made, &rules())).unwrap();
        assert_eq!((profile.made.differs(&made), profile.made.date), (None, made.date.clone()));
        let table: Table = "broadcast.node.all:1k-4k:tree2:pull;16k-:ring/8 any.two:xor".parse().unwrap();
        assert_eq!(profile.table, table);
        assert_eq!(Profile::parse(&Profile::text(&made, &[])).unwrap().table, Table::empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Profile::text(&Made::now(), &rules());
        let lines: Vec<&str> = good.lines().collect();
        for (text, why) in [
            (String::new(), "line 1 is not \"partage profile 1\""),
            ("\u{0}\u{1}\u{2}".into(), "line 1 is not"),
            (good.replace("profile 1", "profile 2"), "it is \"partage profile 2\", and this version reads"),
            (lines[..3].join("\n"), "it ends before `processor`"),
            (good.replace("cores ", "course "), "line 5: there must be `cores` and its value"),
            (lines[..lines.len() - 1].join("\n"), "its last line is not `end`: a part is missing"),
            (good.replace("tree2", "tree"), "line 9: \"tree\": it takes a radix"),
            (good.replace("any.two:xor", "any.two:xor!"), "line 10: \"xor!\" is no algorithm"),
            (good.clone() + "more", "line 12: there is something after `end`"),
        ] {
            let said = Profile::parse(&text).unwrap_err();
            assert!(said.starts_with(why), "{said}");
        }
    }

    #[test]
    fn what_was_made_elsewhere_differs() {
        let here = Made::now();
        for (made, why) in [
            (Made { version: "0.0.1".into(), ..here.clone() }, "it is of partage 0.0.1, and this is "),
            (Made { table: "0".into(), ..here.clone() }, "the built-in table"),
            (Made { processor: "Z80".into(), ..here.clone() }, "it is for Z80, and this is "),
            (Made { cores: "12345".into(), ..here.clone() }, "it is for 12345 cores, and here are "),
        ] {
            assert!(made.differs(&here).is_some_and(|said| said.starts_with(why)), "{made:?}");
        }
        let (host, date) = ("elsewhere".into(), "1970".into());
        assert_eq!(Made { host, date, ..here.clone() }.differs(&here), None);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_164_800, "2024-02-29 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
