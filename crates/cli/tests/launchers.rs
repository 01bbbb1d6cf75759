//! Jobs under launchers that are not ours: `mpirun` of Open MPI (PMIx), `mpirun` of MPICH at a port (PMI-1), and Slurm's
//! `srun` over two nodes (PMI-1 and PMIx). That of MPICH otherwise is in `jobs.rs`.

mod common;

use common::*;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

#[test]
fn ranks() {
    let Ok(case) = std::env::var("CASE") else { return };
    partage::run(|job| {
        let me = job.rank().0;
        let cell = job.alloc_all::<u64>(1 << 10).unwrap();
        cell.on(job.neighbor(1)).put(job, me.into());
        job.barrier();
        assert_eq!(cell.get(job), job.neighbor(-1).0.into());
        match case.as_str() {
            "panic" if me == 2 => panic!("rank two has had enough"), // @panic
            "exit" if me == 1 => std::process::exit(0),
            "killed" if me == 2 => kill(std::process::id() as i32, libc::SIGKILL),
            "put" if me == 1 => kill(std::process::id() as i32, libc::SIGKILL),
            "put" => loop {
                cell.on(partage::prelude::Rank(1)).put_slice(job, &[0; 1 << 10]);
            },
            "wait" => {
                if me == 0 {
                    job.println("ready");
                }
                if me == 3 {
                    std::thread::sleep(Duration::from_secs(600));
                }
            }
            _ => {}
        }
        job.barrier();
        let node = std::env::var("PARTAGE_NODE").unwrap_or_default();
        job.println(format!("worked on {node}"));
    });
}

/// A launcher that is told how many processes to start, and of what.
type Launcher<'a> = &'a dyn Fn(&str) -> Start;

fn start(launcher: Launcher<'_>, processes: &str, case: &str) -> Start {
    launcher(processes).arg(this_program()).args(RANKS).env("CASE", case)
}

/// Launchers have processes of their own, which live on for a moment.
fn end(start: Start) -> Ended {
    start.start().wait_with(Duration::from_secs(20))
}

/// What was said by us.
fn said(ended: &Ended) -> Vec<&str> {
    ended.err.lines().filter_map(|line| line.find("partage: ").map(|at| &line[at..])).collect()
}

#[track_caller]
fn worked(ended: &Ended) {
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert_eq!(ended.out.matches("] worked on ").count(), 4, "{ended:#?}");
    assert!(said(ended).is_empty(), "{ended:#?}");
}

/// The job has failed and said one line with all of these in it.
#[track_caller]
fn failed(ended: &Ended, parts: &[&str]) {
    assert_ne!(ended.code, 0, "{ended:#?}");
    let said = said(ended);
    assert_eq!(said.len(), 1, "{ended:#?}");
    for part in parts {
        assert!(said[0].contains(part), "`{part}` is not in {ended:#?}");
    }
}

/// What every launcher has to do.
fn everything(launcher: Launcher<'_>) {
    worked(&end(start(launcher, "4", "work")));
    worked(&end(start(launcher, "2", "work").env("PARTAGE_THREADS", "2")));
    failed(&end(start(launcher, "4", "panic")), &["rank 2 on ", "rank two has had enough", &at!("panic")]);
    // All processes find that, and one says it.
    failed(&end(start(launcher, "4", "work").env("PARTAGE_SEGMENT", "much")), &["PARTAGE_SEGMENT", "much"]);
    failed(&end(start(launcher, "4", "exit")), &["rank 1 on ", "exited before the job was over"]);
    let ended = end(start(launcher, "4", "killed"));
    assert_ne!(ended.code, 0, "{ended:#?}");
    // Either the launcher notices and says so, or a neighbor does.
    match said(&ended)[..] {
        [] => assert!(["signal 9", "Killed", "KILLED BY SIGNAL"].iter().any(|w| ended.err.contains(w)), "{ended:#?}"),
        [line] => assert!(line.contains("rank 2 on ") && line.contains(" died while "), "{ended:#?}"),
        _ => panic!("{ended:#?}"),
    }
}

fn open_mpi(processes: &str) -> Start {
    let start = program("mpirun.openmpi").args(["--allow-run-as-root", "--oversubscribe", "-n", processes]);
    // In containers it may not look into other processes; nothing of that is used.
    start.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
}

/// Says it if there is none.
fn is_there_open_mpi() -> bool {
    let why = match (installed("mpirun.openmpi"), partage_boot::pmix_version()) {
        (false, _) => "mpirun.openmpi is not installed".to_string(),
        (true, Err(why)) => why.to_string(),
        (true, Ok(_)) => return true,
    };
    skipped(&why);
    false
}

#[test]
fn mpirun_of_open_mpi() {
    if !is_there_open_mpi() {
        return;
    }
    everything(&open_mpi);
    // When the launcher is gone, all end.
    let running = start(&open_mpi, "4", "wait").start();
    running.out_says(|text| text.contains("ready"));
    running.signal(libc::SIGKILL);
    let ended = running.wait_with(Duration::from_secs(20));
    assert!(said(&ended).len() <= 1, "{ended:#?}");
    // It can be ignored.
    let ended = end(start(&open_mpi, "2", "work").env("PARTAGE_BOOT", "alone").env("PARTAGE_RANKS", "2"));
    worked(&ended);
    let ended = end(start(&open_mpi, "1", "work").env("PARTAGE_BOOT", "pmi"));
    failed(&ended, &["PARTAGE_BOOT=pmi, but no launcher has set PMI_FD or PMI_PORT"]);
    // A library that is not there.
    let ended = end(start(&open_mpi, "1", "work").env("PARTAGE_LIBPMIX", "/no/such/libpmix.so"));
    failed(&ended, &["libpmix2 (Debian)", "PARTAGE_LIBPMIX"]);
    let ended = end(open_mpi("1").arg(partage()).arg("info"));
    let line = ended.out.lines().find(|line| line.contains("found here"));
    assert!(line.is_some_and(|line| line.contains("PMIx, by libpmix ")), "{ended:#?}");
}

#[test]
fn mpirun_of_mpich_at_a_port() {
    if !installed("mpirun.mpich") {
        return skipped("mpirun.mpich is not installed");
    }
    let mpich = |processes: &str| program("mpirun.mpich").args(["-pmi-port", "-n", processes]);
    worked(&end(start(&mpich, "4", "work")));
    failed(&end(start(&mpich, "4", "panic")), &["rank 2 on ", "rank two has had enough"]);
    let ended = end(mpich("1").arg(partage()).arg("info"));
    let line = ended.out.lines().find(|line| line.contains("found here"));
    assert!(line.is_some_and(|line| line.contains("PMI-1 at PMI_PORT=")), "{ended:#?}");
}

/// Two nodes of Slurm, which are daemons on this machine; ended with this.
struct Slurm {
    directory: Directory,
    port: String,
}

impl Slurm {
    /// An error says why there is none.
    fn up() -> Result<Slurm, String> {
        let slurm = Slurm { directory: Directory::new("slurm"), port: free_ports().to_string() };
        let output = slurm.ci().arg("up").output().map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(slurm),
            false => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()),
        }
    }

    fn ci(&self) -> Command {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ci/slurm"));
        command.env("SLURM_DIR", self.directory.0.join("cluster")).env("SLURM_PORT", &self.port);
        command
    }

    /// `srun` over both nodes, each with a name of its own.
    fn srun(&self, mpi: &str, processes: &str) -> Start {
        let start = program(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ci/slurm"));
        let start = start.env("SLURM_DIR", self.directory.0.join("cluster").to_str().unwrap());
        let start = start.env("SLURM_PORT", &self.port).args(["exec", "srun", "-N", "2", mpi, "-n", processes]);
        start.args(["sh", "-c", "PARTAGE_NODE=$SLURMD_NODENAME exec \"$@\"", "sh"])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.ci().arg("down").output();
    }
}

/// The first of three ports in a row that nobody has.
fn free_ports() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let begin = 17000 + (std::process::id() % 10_000) as u16;
    (begin..begin + 1000).step_by(3).find(|&port| (port..port + 3).all(free)).expect("a thousand ports are taken")
}

/// Over two nodes by libfabric where it is there; the nodes have one machine's memory else.
#[test]
fn srun() {
    let slurm = match Slurm::up() {
        Ok(slurm) => slurm,
        Err(why) => return skipped(&why),
    };
    if let Err(why) = libfabric() {
        return skipped(&why);
    }
    let plugins = slurm.ci().args(["exec", "srun", "--mpi=list"]).output().unwrap();
    let plugins = [plugins.stdout, plugins.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    for mpi in ["pmi2", "pmix"] {
        if !plugins.contains(mpi) {
            skipped(&format!("srun has no --mpi={mpi}"));
            continue;
        }
        let srun = |processes: &str| slurm.srun(&format!("--mpi={mpi}"), processes);
        everything(&srun);
        // Nobody is left on the other node who could say it, and Slurm lets the job go on.
        let ended = end(start(&srun, "2", "put"));
        failed(
            &ended,
            &["the network between the nodes has failed", " process 1 on ", "has ended, or the link to its host"],
        );
        let ended = end(start(&srun, "4", "work"));
        for node in ["n1", "n2"] {
            assert!(ended.out.contains(&format!("worked on {node}\n")), "{ended:#?}");
        }
    }
    // Without a protocol each process would be a job of its own.
    let ended = end(start(&|n: &str| slurm.srun("--mpi=none", n), "2", "work"));
    assert_ne!(ended.code, 0, "{ended:#?}");
    assert!(said(&ended).iter().all(|line| line.contains("`--mpi=pmi2` or `--mpi=pmix`")), "{ended:#?}");
}
