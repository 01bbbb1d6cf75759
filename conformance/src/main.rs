//! Runs the suite as the job that it is started as, or soaks: `partage-conformance [soak SECONDS]`.

use partage_conformance::{memory, soak};
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["soak", seconds] => {
            let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            partage::run(|job| soak::traffic(job, time, 42));
        }
        _ => {
            partage::run(|job| {
                for (name, case) in memory::CASES {
                    case(job);
                    job.barrier();
                    if std::env::var_os("VERBOSE").is_some() && job.rank().0 == 0 {
                        job.println(format!("ok: {name}"));
                    }
                }
                assert_eq!(job.allocated(), 0, "the suite leaves nothing behind");
            });
            // A process may have several jobs, one after the other.
            partage::run(|job| memory::CASES[0].1(job));
        }
    }
}
