//! `partage tune` as a user runs it, and what jobs make of the profiles that it writes.

mod common;

use common::*;
use partage::prelude::*;
use std::path::{Path, PathBuf};

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let mut data = [job.rank().0; 100];
        if case == "waits" && job.rank() == Rank(1) {
            job.println("ready");
            job.wait_until(|| false);
        }
        job.broadcast(&mut data).root(TeamRank(1)).run();
        assert_eq!(data, [1; 100]);
        job.barrier();
    });
}

/// A folder of this test, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("partage-tune-{}", unique()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A profile that holds here, with these rules.
    fn profile(&self, rules: &[&str]) -> PathBuf {
        let rules: Vec<_> = rules.iter().map(|rule| (rule.to_string(), String::new())).collect();
        let text = partage::profile::Profile::text(&partage::profile::Made::now(), &rules);
        let path = self.file("made");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tune(folder: &Folder, args: &str) -> Start {
    let start = program(partage()).arg("tune").args(args.split_whitespace());
    start.env("TMPDIR", &folder.0).env("PARTAGE_PROFILE", folder.file("deep/er/profile"))
}

fn info(profile: impl AsRef<Path>, table: Option<&str>) -> String {
    let mut start = program(partage()).arg("info").env("PARTAGE_PROFILE", profile.as_ref());
    if let Some(table) = table {
        start = start.env("PARTAGE_COLL", table);
    }
    start.end().succeeded().into()
}

/// Two and three ranks, a word and more, from a table that nobody would want.
#[test]
fn a_profile_is_written_and_used() {
    let folder = Folder::new();
    let path = folder.file("deep/er/profile");
    let ended = tune(&folder, "--operations permute --ranks 2,3 --bytes 8,1k --quick --from any:000:naive-push").end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert!(ended.out.contains("of 12 cells have another algorithm than the built-in one"), "{}", ended.out);
    assert!(ended.err.contains("tune: permute.node."), "{}", ended.err);
    let profile = partage::profile::Profile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(profile.table.entries().all(|entry| entry.starts_with("permute.node.")), "{}", profile.table);
    assert!(!folder.file("deep/er/profile.part").exists());
    let text = info(&path, None);
    assert!(text.contains(&format!("{} of {}", path.display(), profile.made.date)), "{text}");
    let count = profile.table.entries().count();
    assert!(text.contains(&format!("in force: {count} entries")), "{text}");
    assert_eq!(text.lines().filter(|line| line.trim_end().ends_with(" profile")).count(), count, "{text}");
}

/// Rules for what is not measured stay: of other operations, and for other lengths.
#[test]
fn a_profile_keeps_the_rest() {
    let folder = Folder::new();
    let head = "permute.node.cores.two.all.shared";
    let path = folder.profile(&["gather.node:ring/3", &format!("{head}:0-31:tree7;1k-:tree8:pull")]);
    std::fs::write(folder.file("made.part"), "partage tune 1 of something else\nhead 8 last 2 last 2 1 .\n").unwrap();
    let output = path.to_str().unwrap();
    let ended = tune(&folder, &format!("--operations permute --ranks 2 --bytes 8 --quick --output {output}")).end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert!(ended.err.contains("made.part: its cells were measured with other settings"), "{ended:#?}");
    assert!(!folder.file("made.part").exists(), "{ended:#?}");
    let profile = partage::profile::Profile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let entries: Vec<String> = profile.table.entries().collect();
    assert!(entries.contains(&"gather.node:ring/3:push".into()), "{entries:?}");
    assert!(entries.contains(&format!("{head}:16-31:tree7:push;1k-:tree8:pull")), "{entries:?}");
}

/// What somebody has set for a while is not what a profile is for.
#[test]
fn settings_do_not_count() {
    let folder = Folder::new();
    let mut start = tune(&folder, "--operations permute --ranks 2 --bytes 8 --quick").env("PARTAGE_NODE", "process");
    // No job starts with these.
    for name in ["CHECK", "WAIT", "RADIX", "FENCES", "REFERENCE"] {
        start = start.env(&format!("PARTAGE_{name}"), "wrong");
    }
    let ended = start.end();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert_eq!(ended.err.contains("this build is not optimised"), cfg!(debug_assertions), "{ended:#?}");
}

#[test]
fn a_run_that_was_killed_goes_on() {
    let folder = Folder::new();
    let part = folder.file("deep/er/profile.part");
    let args = "--operations permute --ranks 2 --bytes 8,16,32,64 --quick";
    let running = tune(&folder, args).start();
    let lines = || std::fs::read_to_string(&part).unwrap_or_default().lines().count();
    while lines() < 4 {
        assert!(running.children().len() <= 1);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    running.signal(libc::SIGKILL);
    assert_eq!(running.wait_with(SOON).code, 137);
    assert!(!folder.file("deep/er/profile").exists());
    // Where the jobs met has lost its name as soon as they had met.
    let names = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_str().unwrap().ends_with(".stage")).count(), 0);
    // A smaller run leaves the rest to one that goes on.
    let ended = tune(&folder, "--operations permute --ranks 2 --bytes 8 --quick").end();
    let rest = std::fs::read_to_string(&part).unwrap();
    assert!(ended.code == 0 && rest.lines().all(|line| !line.contains(" 8 ")), "{ended:#?}, {rest}");
    let before = lines() - 1;
    let ended = tune(&folder, args).end();
    let said = format!("tune: {before} of 12 cells were measured before");
    assert!(ended.code == 0 && ended.err.contains(&said), "{ended:#?}");
    assert!(ended.out.contains("of 12 cells have another") && !part.exists(), "{ended:#?}");
    // Now all is measured again, and anew if that is wanted.
    let ended = tune(&folder, "--operations permute --ranks 2 --bytes 8 --quick --fresh").end();
    assert!(ended.code == 0 && !ended.err.contains("before"), "{ended:#?}");
}

/// When the time is over, there is a profile of what was measured, and another run goes on.
#[test]
fn the_time_ends_a_run() {
    let folder = Folder::new();
    let (path, part) = (folder.file("deep/er/profile"), folder.file("deep/er/profile.part"));
    let ended = tune(&folder, "--ranks 2,3 --minutes 0.00001").end();
    assert!(ended.code == 1 && ended.err.contains("the time was over before anything was measured"), "{ended:#?}");
    assert!(!path.exists() && !part.exists(), "{ended:#?}");
    // Operations, numbers of ranks, kinds of calls, lengths: that takes longer.
    let all = 9 * 2 * 3 * 9;
    let mut before = 0;
    for minutes in ["0.05", "0.02"] {
        let ended = tune(&folder, &format!("--ranks 2,3 --minutes {minutes}")).end();
        assert_eq!(ended.code, 0, "{ended:#?}");
        let known = format!("tune: {before} of {all} cells were measured before");
        assert!(before == 0 || ended.err.contains(&known), "no `{known}`: {ended:#?}");
        let lines = std::fs::read_to_string(&part).unwrap().lines().count();
        let measured = lines - 1;
        assert!(measured > 0 && before <= measured && measured < all, "{measured}: {ended:#?}");
        let over = format!("tune: the time was over before {} of {all} cells", all - measured);
        assert!(ended.err.contains(&over), "no `{over}`: {ended:#?}");
        let said = format!(" of {measured} cells have another algorithm than the built-in one");
        assert!(ended.out.contains(&said), "no `{said}`: {ended:#?}");
        let profile = partage::profile::Profile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let count = profile.table.entries().count();
        assert!(ended.out.contains(&format!("profile: {count} entries")), "{ended:#?}");
        before = measured;
    }
}

#[test]
fn jobs_take_what_the_profile_says() {
    let folder = Folder::new();
    let path = folder.profile(&["broadcast.node:tree2:pull", "any:flat:pull"]);
    for mapping in EVERY {
        for (table, algorithm) in [(None, ", tree2:pull, step "), (Some("broadcast:ring/5"), ", ring/5:push, step ")] {
            let mut start = job(mapping, "waits").env("PARTAGE_PROFILE", &path);
            if let Some(table) = table {
                start = start.env("PARTAGE_COLL", table);
            }
            let running = start.start();
            let waits = |line: &str| line.contains("waiting in broadcast at ") && line.contains(algorithm);
            running.report_says(|text| text.lines().any(waits));
            running.signal(libc::SIGTERM);
            assert_eq!(running.wait().code, 143);
        }
        job(mapping, "goes on").env("PARTAGE_PROFILE", &path).end().succeeded();
    }
    let text = info(&path, Some("broadcast:ring/5"));
    let origins: Vec<&str> = text.lines().filter_map(|line| line.trim_start().strip_prefix("broadcast")).collect();
    let origin = |i: usize| origins[i].split_whitespace().last().unwrap();
    assert_eq!([origin(0), origin(1), origin(2)], ["PARTAGE_COLL", "profile", "built-in"], "{text}");
}

/// The first process says which table holds, whatever the others were told.
#[test]
fn processes_that_were_told_different_things_agree() {
    let folder = Folder::new();
    folder.profile(&["broadcast:tree2"]);
    let this = this_program();
    let told = "PARTAGE_PROFILE=$0/made-$PMI_RANK PARTAGE_COLL=broadcast:tree$((PMI_RANK + 2)) exec \"$@\"";
    let start = run(&["-n", "4", "sh", "-c", told]).arg(&folder.0).arg(this).args(RANKS).env("CASE", "goes on");
    // Of the four the first complains about its file, which is not there.
    let ended = start.end();
    assert!(ended.code == 0 && ended.line().contains("made-0 is not used: "), "{ended:#?}");
}

#[test]
fn a_profile_that_is_not_for_here_is_ignored_with_one_line() {
    let folder = Folder::new();
    let good = std::fs::read_to_string(folder.profile(&["broadcast.node:tree7:pull"])).unwrap();
    let with = |word: &str, value: &str| {
        let line = good.lines().find(|line| line.starts_with(word)).unwrap();
        good.replace(line, &format!("{word} {value}"))
    };
    for (text, why) in [
        (good.replace("tree7", "tre7"), "line 9: \"tre7\" is no algorithm"),
        (good.lines().take(4).collect::<Vec<_>>().join("\n"), "it ends before `cores`"),
        ("\u{1}\u{2}\u{fffd}".repeat(1000), "line 1 is not \"partage profile 1\""),
        (good.replace("profile 1", "profile 7"), "it is \"partage profile 7\", and this version reads"),
        (with("version", "0.0.3"), "it is of partage 0.0.3, and this is "),
        (with("table", "0"), "the built-in table is another one now"),
        (with("processor", "Z80"), "it is for Z80, and this is "),
        (with("cores", "4321"), "it is for 4321 cores, and here are "),
    ] {
        let path = folder.file("bad");
        std::fs::write(&path, text).unwrap();
        for mapping in EVERY {
            let ended = job(mapping, "goes on").env("PARTAGE_PROFILE", &path).end();
            assert_eq!(ended.code, 0, "{ended:#?}");
            let line = ended.line();
            assert!(line.starts_with(&format!("partage: the profile {} is not used: ", path.display())), "{line}");
            assert!(line.contains(why) && line.contains("`partage tune`"), "{why} is not in {line}");
        }
        let text = info(&path, None);
        assert!(text.contains(&format!("{} is not used: ", path.display())) && text.contains(why), "{text}");
        assert!(!text.contains("tree7:pull"), "{text}");
    }
    let ended = job(Processes, "goes on").env("PARTAGE_PROFILE", folder.file("nowhere")).end();
    assert!(ended.code == 0 && ended.line().contains("nowhere is not used: No such file"), "{ended:#?}");
    let ended = job(Processes, "goes on").env("PARTAGE_PROFILE", &folder.0).end();
    assert!(ended.code == 0 && ended.line().contains("it is not a file"), "{ended:#?}");
    // One that was not asked for may be missing.
    let start = job(Processes, "goes on").env("PARTAGE_PROFILE", "").env("XDG_CONFIG_HOME", &folder.0);
    start.end().succeeded();
    assert!(info("none", None).contains("profile: none, as PARTAGE_PROFILE says"));
}

#[test]
fn what_cannot_be_tuned_is_said() {
    let folder = Folder::new();
    for (args, why) in [
        ("--operations brodcast", "the operations are broadcast, "),
        ("--bytes 7", "multiple of 8"),
        ("--ranks 1", "1 is not in 2..=64"),
        ("--minutes 0", "give minutes"),
        ("--from broadcast:trea2", "\"trea2\" is no algorithm"),
    ] {
        let ended = tune(&folder, args).end();
        assert!(ended.code == 2 && ended.err.contains(why), "{args}: {ended:#?}");
    }
    let ended = tune(&folder, "").env("PARTAGE_PROFILE", "none").end();
    ended.failed(1, &["there is no place for a profile", "--output"]);
    let ended = tune(&folder, "--output /proc/profile").end();
    ended.failed(1, &["/proc/profile"]);
    let file = |name: &str| folder.file(name).display().to_string();
    for (output, why) in [
        (".".into(), "is a directory"),
        (file(""), "is a directory"),
        (file("new/"), "is no name of a file"),
        (file("new/."), "is no name of a file"),
        (file("new/.."), "is no name of a file"),
    ] {
        tune(&folder, &format!("--output {output}")).end().failed(1, &[why]);
    }
    let ended = tune(&folder, "--ranks 64 --bytes 64m").end();
    ended.failed(1, &["every cell needs more than a quarter of the memory", "fewer --ranks or --bytes"]);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// What is not given is measured, and so is what the model says.
#[test]
fn the_model_is_compared() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: two cores are needed to measure");
        return;
    }
    let model = |args: &str| program(partage()).args(["bench", "model"]).args(args.split_whitespace()).end();
    let ended = model("--json --ranks 8 --bytes 8 --only gather --gap 12345");
    assert_eq!(ended.code, 0, "{ended:#?}");
    let machine = ended.out.lines().next().unwrap();
    assert!(machine.contains(r#""gap":12345,"#) && !machine.contains("NaN") && !machine.contains("inf"), "{machine}");
    let ended = model("--validate --only permute,all_reduce --bytes 8 --json");
    assert_eq!(ended.code, 0, "{ended:#?}");
    for ranks in [2, 4, 8, 16] {
        for (operation, algorithm) in [
            ("permute", "flat:pull"),
            ("all_reduce", "flat:mail"),
            ("all_reduce", if ranks > 2 { "doubling:mail" } else { "last" }),
        ] {
            let begin = format!(r#"{{"name":"{operation}/8/{ranks}","algorithm":"{algorithm}","predicted":"#);
            let line = ended.out.lines().find(|line| line.starts_with(&begin));
            let line = line.unwrap_or_else(|| panic!("no {begin} in {ended:#?}"));
            let [predicted, measured, ratio] =
                ["predicted", "measured", "ratio"].map(|name| field(line, name).parse::<f64>().unwrap());
            assert!(predicted > 0.0 && measured > 0.0 && measured.is_finite(), "{line}");
            // All have four digits.
            assert!((predicted / measured / ratio - 1.0).abs() < 0.01, "{line}");
        }
    }
    // For each number of ranks it is said how far off it is, by how many figures.
    let ended = model("--validate --only permute,reduce --bytes 8");
    assert_eq!(ended.code, 0, "{ended:#?}");
    for ranks in [2, 4, 8, 16] {
        let rows = |operation: &str| ended.out.matches(&format!(" {operation}/8/{ranks} ")).count();
        assert!(rows("permute") > 0 && rows("reduce") > 0, "{ended:#?}");
        let begin = format!("{ranks} ranks: off by ");
        let line = ended.out.lines().find_map(|line| line.strip_prefix(&begin));
        let line = line.unwrap_or_else(|| panic!("no `{begin}` in {ended:#?}"));
        let (error, rest) = line.split_once(" % in the median, predicted / measured ").unwrap();
        let (ratio, rest) = rest.split_once(" in the median, ").unwrap();
        let [error, ratio] = [error, ratio].map(|number| number.parse::<f64>().unwrap());
        assert!(error >= 0.0 && error.is_finite() && ratio > 0.0 && ratio.is_finite(), "{line}");
        assert!(rest.starts_with(&format!("{} figures", rows("permute") + rows("reduce"))), "{line}: {ended:#?}");
    }
}

/// A field of a line of JSON.
fn field(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!(r#""{name}":"#)).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest[..rest.find([',', '}']).unwrap()].trim_matches('"').into()
}

/// The model of a machine of which all is given needs no rank.
#[test]
fn the_model_says_what_would_be() {
    let given = "--latency 500 --overhead 100 --gap 150 --bandwidth 10 --copy 20 --call 50";
    let far = "--nodes 64 --far-latency 2000 --far-overhead 300 --far-gap 400 --far-bandwidth 5";
    let model = |args: &str| program(partage()).args(["bench", "model"]).args(args.split_whitespace()).end();
    let ended = model(&format!("--json --ranks 64 --bytes 8,1k {given}"));
    let mut lines = ended.succeeded().lines();
    let machine = r#"{"name":"machine","near":{"latency":500,"overhead":100,"gap":150,"bandwidth":10},"far":null,"copy":20,"call":50}"#;
    assert_eq!(lines.next(), Some(machine));
    let figures: Vec<(String, String, f64)> =
        lines.map(|l| (field(l, "name"), field(l, "algorithm"), field(l, "value").parse().unwrap())).collect();
    let time = |name: &str, algorithm: &str| {
        let found = figures.iter().find(|f| f.0 == name && f.1 == algorithm);
        found.unwrap_or_else(|| panic!("no {name} by {algorithm} in {figures:?}")).2
    };
    for operation in ["broadcast", "scatter", "gather", "gather_all", "exchange", "permute"] {
        assert!(time(&format!("{operation}/1024/64"), "flat:push") > 0.5, "{operation}");
    }
    for operation in ["reduce", "all_reduce", "prefix_reduce"] {
        for algorithm in ["flat:push", "chain:pull"] {
            assert!(time(&format!("{operation}/1024/64"), algorithm) > 0.5, "{operation} by {algorithm}");
        }
    }
    // 63 messages one after the other, or six.
    assert!(time("broadcast/8/64", "tree2:push") < time("broadcast/8/64", "flat:push"));
    assert!(time("all_reduce/8/64", "doubling:mail") < time("all_reduce/8/64", "chain:mail"));
    let ended = model(&format!("--ranks 256 --bytes 8 --only broadcast,gather {given} {far}"));
    let text = ended.succeeded();
    for part in ["between nodes: latency 2000 ns", "broadcast on 256 ranks on 64 nodes", "nodes2:push", "tree4:pull"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    for (args, why) in [
        ("--only reduc", "there is no operation reduc"),
        ("--ranks 4 --nodes 5", "4 ranks cannot be on 5 nodes"),
        ("--bandwidth 0", "a bandwidth of 0"),
        ("--latency=-1", "not negative"),
    ] {
        let ended = model(args);
        assert!(ended.code == 2 && ended.err.contains(why), "{args}: {ended:#?}");
    }
}
