//! Folds, prefixes, blocks of different lengths and filters that do not fit together: calls of several collectives, of which ranks that differ would wait in
//! different ones, or combine what does not belong together. One line each.

mod common;

use common::*;
use partage::prelude::*;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let (one, mut all) = ([1u64; 4], vec![0u64; 16]);
        let mut array = job.array::<u64>(Layout::per_rank(4)).unwrap();
        let mut other = job.array::<u64>(Layout::per_rank(4)).unwrap();
        match (case.as_str(), me) {
            ("modes", 1) => {
                job.fold(&array, Sum).sync(In::My, Out::All).run(); // @my
            }
            ("modes", _) => {
                job.fold(&array, Sum).run(); // @all
            }
            ("most modes", 1) => {
                job.fold(&array, Sum).root(TeamRank(1)).run(); // @one_all
            }
            ("most modes", _) => {
                job.fold(&array, Sum).root(TeamRank(1)).sync(In::No, Out::No).run(); // @most_no
            }
            ("ranges", 2) => {
                job.fold(array.slice(0..8), Sum).run(); // @first
            }
            ("ranges", _) => {
                job.fold(array.slice(4..12), Sum).run(); // @middle
            }
            ("ranges at once", 0) => {
                job.fold(array.slice(0..3), Sum).sync(In::My, Out::My).run(); // @three
            }
            ("ranges at once", _) => {
                job.fold(array.slice(1..4), Sum).sync(In::My, Out::My).run(); // @next_three
            }
            ("buffers", 3) => {
                job.fold(&one, Sum).run(); // @private
            }
            ("buffers", _) => {
                job.fold(&array, Sum).run(); // @shared
            }
            ("operations", 0) => {
                job.fold(&array, Max).run(); // @max
            }
            ("operations", _) => {
                job.fold(&array, Sum).run(); // @sum
            }
            ("roots", 2) => {
                job.fold(&array, Sum).root(TeamRank(2)).run(); // @two
            }
            ("roots", _) => {
                job.fold(&array, Sum).root(TeamRank(1)).run(); // @one
            }
            ("calls", 3) => {
                job.prefix_fold(&mut array, Sum).run(); // @prefixes
            }
            ("calls", _) => {
                job.fold(&array, Sum).run(); // @fold
            }
            ("prefix modes", 0) => {
                job.prefix_fold(&mut array, Sum).sync(In::My, Out::My).run(); // @prefixes_my
            }
            ("prefix modes", _) => {
                job.prefix_fold(&mut array, Sum).run(); // @prefixes_all
            }
            ("exclusive", 1) => {
                job.prefix_fold(&mut array, Sum).exclusive().run(); // @exclusive
            }
            ("exclusive", _) => {
                job.prefix_fold(&mut array, Sum).run(); // @inclusive
            }
            ("in place", 2) => {
                job.prefix_fold(&mut array, Sum).run(); // @in_place
            }
            ("in place", _) => {
                job.prefix_fold(&array, Sum).to(&mut other).run(); // @elsewhere
            }
            ("counted modes", 1) => {
                job.gather(&array).counts(&[4; 4]).to(&mut all).sync(In::My, Out::All).run(); // @counted_my
            }
            ("counted modes", _) => {
                job.gather(&array).counts(&[4; 4]).to(&mut all).run(); // @counted_all
            }
            ("exchanged modes", 2) => {
                job.exchange(&one).counts(&[1; 4]).to(&mut other).sync(In::My, Out::My).run(); // @exchanged_my
            }
            ("exchanged modes", _) => {
                job.exchange(&one).counts(&[1; 4]).to(&mut other).run(); // @exchanged_all
            }
            ("counted buffers", 0) => {
                job.gather_all(&one).counts(&[4; 4]).to(&mut all).run(); // @counted_private
            }
            ("counted buffers", _) => {
                job.gather_all(&array).counts(&[4; 4]).to(&mut all).run(); // @counted_shared
            }
            ("filtered modes", 3) => {
                job.gather_all(&array).to(&mut all).sync(In::My, Out::All).filter(job).run(); // @filtered_my
            }
            ("filtered modes", _) => {
                job.gather_all(&array).to(&mut all).filter(job).run(); // @filtered_all
            }
            ("filtered buffers", 1) => {
                job.gather_all(&one).to(&mut all).filter(job).run(); // @filtered_private
            }
            ("filtered buffers", _) => {
                job.gather_all(&array).to(&mut all).filter(job).run(); // @filtered_shared
            }
            ("filtered kinds", 2) => {
                job.all_reduce(&array, Sum).to(&mut all).sync(In::My, Out::My).filter(job).run(); // @from_shared
            }
            ("filtered kinds", _) => {
                job.all_reduce(&one, Sum).to(&mut all).sync(In::My, Out::My).filter(job).run(); // @from_private
            }
            ("alike", _) => agreeing(job, &mut array, &mut other),
            _ => {}
        }
        job.barrier();
    });
}

/// What ranks may have different is not compared.
fn agreeing(job: &Job, array: &mut SharedArray<u64>, other: &mut SharedArray<u64>) {
    let (me, n) = (job.rank().index(), job.size() as u64);
    array.my_indices().for_each(|i| array.put(i, 1));
    for sync in [(In::All, Out::All), (In::My, Out::My), (In::No, Out::All)] {
        assert_eq!(job.fold(&*array, Sum).sync(sync.0, sync.1).run(), Some(4 * n));
        assert_eq!(job.fold(&vec![1; me], Sum).sync(sync.0, sync.1).run(), Some(n * (n - 1) / 2));
        job.prefix_fold(&*array, Sum).to(&mut *other).sync(sync.0, sync.1).run();
        other.my_indices().for_each(|i| assert_eq!(other.get(i), i as u64 + 1));
        let mut before = vec![7; 3 - me];
        job.prefix_fold(&vec![1; me], Sum).exclusive().to(&mut before).sync(sync.0, sync.1).run();
        assert_eq!(before.len(), me);
        let mut all = vec![];
        let came = job.gather_all(&vec![me; me]).varying().to(&mut all).sync(sync.0, sync.1).run();
        assert_eq!((came, all), (vec![0, 1, 2, 3], vec![1, 2, 2, 3, 3, 3]));
        let (mut come, next) = ([0], TeamRank(job.neighbor(1).0));
        job.permute(&[me], next).to(&mut come).sync(sync.0, sync.1).filter(job).run();
        assert_eq!(come, [job.neighbor(-1).index()]);
    }
    job.permute(&*array, TeamRank(job.neighbor(1).0)).to(&mut *other).filter(job).run();
    other.my_indices().for_each(|i| assert_eq!(other.get(i), 1));
    job.println("all went well");
}

/// A place without the column, as it is said.
fn said_at(place: String) -> String {
    format!("({})", place.trim_end_matches(':'))
}

#[test]
fn calls_that_differ() {
    let both = |a, b| [said_at(a), said_at(b)];
    let modes = "their sync modes differ";
    let elements = "not of the same elements";
    for (case, parts, places) in [
        ("modes", ["fold, My/All", "fold, All/All", modes], both(at!("my"), at!("all"))),
        ("most modes", ["fold, root 1, All/All", "fold, root 1, No/No", modes], both(at!("one_all"), at!("most_no"))),
        ("ranges", ["fold, All/All", "rank 2 ", elements], both(at!("first"), at!("middle"))),
        ("ranges at once", ["fold, My/My", "rank 0 ", elements], both(at!("three"), at!("next_three"))),
        ("buffers", ["fold, All/All", "rank 3 ", elements], both(at!("private"), at!("shared"))),
        ("operations", ["fold, All/All", "rank 0 ", "different types or operations"], both(at!("max"), at!("sum"))),
        ("roots", ["fold, root 1, ", "fold, root 2, ", "the same call"], both(at!("one"), at!("two"))),
        ("calls", [" prefix_fold, All/All", " fold, All/All", "the same call"], both(at!("prefixes"), at!("fold"))),
        (
            "prefix modes",
            ["prefix_fold, My/My", "prefix_fold, All/All", modes],
            both(at!("prefixes_my"), at!("prefixes_all")),
        ),
        ("exclusive", ["prefix_fold", "rank 1 ", "not both exclusive"], both(at!("exclusive"), at!("inclusive"))),
        ("in place", ["prefix_fold", "rank 2 ", "in place"], both(at!("in_place"), at!("elsewhere"))),
        ("counted modes", ["gather of ", "My/All", modes], both(at!("counted_my"), at!("counted_all"))),
        ("exchanged modes", ["exchange of ", "My/My", modes], both(at!("exchanged_my"), at!("exchanged_all"))),
        (
            "counted buffers",
            ["gather_all of ", "shared to private", "private to private"],
            both(at!("counted_private"), at!("counted_shared")),
        ),
        ("filtered modes", ["gather_all of ", "My/All", modes], both(at!("filtered_my"), at!("filtered_all"))),
        (
            "filtered buffers",
            ["gather_all of ", "shared to private", "private to private"],
            both(at!("filtered_private"), at!("filtered_shared")),
        ),
        (
            "filtered kinds",
            ["all_reduce of 32 bytes", "rank 2 ", "kinds of buffers"],
            both(at!("from_shared"), at!("from_private")),
        ),
    ] {
        for mapping in EVERY {
            let ended = job(mapping, case).env("PARTAGE_CHECK", "1").end();
            let line = ended.failed_soon(101, &["partage: the ranks disagree: rank ", " came to "]);
            parts.iter().for_each(|part| assert!(line.contains(part), "{case}: `{part}` is not in {line}"));
            places.iter().for_each(|place| assert!(line.contains(place.as_str()), "`{place}` is not in {line}"));
        }
    }
}

#[test]
fn calls_that_do_not() {
    for mapping in EVERY {
        for check in ["0", "1"] {
            let ended = job(mapping, "alike").env("PARTAGE_CHECK", check).end();
            assert_eq!(ended.succeeded().matches("all went well").count(), 4, "{ended:#?}");
        }
    }
}
