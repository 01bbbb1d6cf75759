//! `partage bench collectives` as a user runs it: what it prints, and what it refuses.

use std::process::{Command, Output};

fn collectives(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(["bench", "collectives"]).args(args.split_whitespace());
    command.env("RUST_BACKTRACE", "0").output().unwrap()
}

/// Two ranks, a word each: all operations, in all modes, beside the same by hand.
#[test]
fn every_figure_is_one_object() {
    let out = collectives("--json --rounds 1 --ranks 2 --bytes 8 --no-peers --against flat:push");
    let (text, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{said}");
    let field = |line: &str, name: &str| -> Option<f64> {
        let (_, rest) = line.split_once(&format!(r#""{name}":"#)).unwrap_or_else(|| panic!("no {name} in {line}"));
        rest[..rest.find([',', '}']).unwrap()].parse().ok()
    };
    let mut names = vec![];
    for line in text.lines() {
        assert!(line.starts_with(r#"{"name":""#) && line.ends_with('}'), "{line}");
        names.push(line.split('"').nth(3).unwrap());
        for name in ["value", "against", "against_ratio", "before", "after"] {
            assert!(field(line, name).is_some_and(|x| x > 0.0), "{name} of {line}");
        }
        // Movers are done by hand, too. Of a stream, the floor of the one without synchronization is the one with it.
        let has_floor = !line.contains("_stream/8/2/all-all") && !line.contains("reduce/");
        assert_eq!(field(line, "floor").is_some() && field(line, "ratio").is_some(), has_floor, "{line}");
        assert!(field(line, "peer").is_none() && field(line, "mpich_ratio").is_none(), "{line}");
    }
    for operation in
        ["broadcast", "scatter", "gather", "gather_all", "exchange", "permute", "reduce", "all_reduce", "prefix_reduce"]
    {
        for mode in ["all-all", "my-my"] {
            let name = format!("{operation}/8/2/{mode}");
            assert_eq!(names.iter().filter(|n| **n == name).count(), 2, "{name}");
        }
    }
    assert!(names.contains(&"broadcast_stream/8/2/no-no"));
}

/// More ranks than cores, slices of one's own, more than a chunk.
#[test]
fn private_slices_are_measured_too() {
    let out = collectives("--rounds 1 --ranks 3 --bytes 8k --no-peers --private --only exchange,scatter/8192/3/my-my");
    let (text, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{said}");
    assert_eq!(text.matches("exchange/8192/3/").count(), 4, "{text}");
    assert_eq!(text.matches("scatter/8192/3/").count(), 2, "{text}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    for (args, why) in [
        ("--only reduction", "no figure is called reduction"),
        ("--only gather,scater", "no figure is called scater"),
        ("--bytes 9", "multiple of 8"),
        ("--ranks 1", "1 is not in 2..=64"),
        ("--cores 1", "two are needed"),
        ("--only gather --algorithm nonsense", "nonsense"),
    ] {
        let out = collectives(args);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(2) && said.contains(why), "{args}: {said}");
    }
    // A name that there is, of what gathers do not have.
    let out = collectives("--rounds 1 --ranks 2 --bytes 8 --no-peers --only gather --algorithm doubling");
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        out.status.code() == Some(1) && said.contains("doubling") && said.contains("2 ranks: ours: ended"),
        "{said}"
    );
}
