//! Runs the suite as the job that it is started as, or soaks: `partage-conformance [soak SECONDS]`, or runs litmus programs
//! and says what came of them: `partage-conformance litmus SECONDS`. As `partage-conformance agent` it is what a launcher
//! starts on another host.
//!
//! `VERBOSE` says each case and its time, `ONLY` runs the cases whose name contains it (or one of several, `a|b`; it fails if no case has one of them), `SCALE` multiplies the floods.

use partage_conformance::{Case, am, array, cases, memory, soak};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["agent"] => std::process::exit(partage::launcher::agent()),
        ["soak", seconds] => {
            let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            // One kind of traffic after the other, some times.
            partage::run(|job| {
                am::register(job);
                for turn in 0..4 {
                    soak::traffic(job, time / 40, 42 + turn);
                    soak::messages(job, time / 40, 42 + turn);
                    soak::arrays(job, time / 40, 42 + turn);
                    soak::regions(job, time / 40, 42 + turn);
                    soak::atomics(job, time / 40, 42 + turn);
                    soak::locks(job, time / 40, 42 + turn);
                    soak::signals(job, time / 40, 42 + turn);
                    soak::collectives(job, time / 40, 42 + turn);
                    soak::teams(job, time / 40, 42 + turn);
                    soak::litmus(job, time / 40, 42 + turn, |_| ());
                }
            });
        }
        ["litmus", seconds] => {
            let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            partage::run(|job| soak::litmus(job, time, 42, |litmus| litmus.say()));
        }
        _ => {
            let only = std::env::var("ONLY").unwrap_or_default();
            // A name that no case has is a mistake: nothing would run, and all would seem well.
            if let Some(part) = only.split('|').find(|part| !cases().any(|(name, _)| name.contains(*part))) {
                partage::run(|job| {
                    if job.rank().0 == 0 {
                        eprintln!("ONLY: no case has {part:?} in its name");
                    }
                });
                std::process::exit(1);
            }
            let wanted = || cases().filter(|(name, _)| only.split('|').any(|part| name.contains(part)));
            let verbose = std::env::var_os("VERBOSE").is_some();
            partage::run(|job| {
                am::register(job);
                let before = array::settled(job);
                for (name, case) in wanted() {
                    let begun = Instant::now();
                    case(job);
                    job.barrier();
                    if verbose && job.rank().0 == 0 {
                        job.println(format!("ok: {name} ({:.2} s)", begun.elapsed().as_secs_f64()));
                    }
                }
                if verbose {
                    job.println(format!("{:?}", job.counters()));
                }
                assert_eq!(array::settled(job), before, "the suite leaves nothing behind");
            });
            if std::env::var_os("ONLY").is_some() {
                return;
            }
            // A process may have several jobs, one after the other, each with its own handlers.
            let again: [Case; 2] = [memory::CASES[0], am::CASES[1]];
            partage::run(|job| {
                am::register_otherwise(job);
                again.iter().for_each(|(_, case)| case(job));
            });
        }
    }
}
