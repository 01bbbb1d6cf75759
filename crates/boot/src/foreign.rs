//! Finds out by whom this process was started, and recognises launchers whose start-up protocol this build does not speak.
//!
//! Guaranteed: a process that one of those started as one of several gets an error that names the launcher and the ways
//! out, so that a job of N processes never runs as N jobs of one. A launcher's *batch script*, or a job of one process,
//! counts as alone. Not contained: any of the protocols, and reading the environment (a closure does that).

use crate::Error;

/// How to reach the launcher of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// PMI-1 over the socket that `PMI_FD` names.
    Fd,
    /// PMI-1 over a connection to `PMI_PORT`.
    Port,
    /// PMIx, by its library.
    Pmix,
    /// There is none.
    Alone,
}

/// `how`: as [`Boot::connect`](crate::Boot::connect) has it.
pub(crate) fn way(how: Option<&str>, var: impl Fn(&str) -> Option<String>) -> Result<Way, Error> {
    let is_set = |name: &str| var(name).is_some();
    let pmi = [("PMI_FD", Way::Fd), ("PMI_PORT", Way::Port)].into_iter().find(|(name, _)| is_set(name));
    let pmix = is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK");
    match how {
        Some("alone") => Ok(Way::Alone),
        Some("pmi") => {
            let none = || Error::new("PARTAGE_BOOT=pmi, but no launcher has set PMI_FD or PMI_PORT");
            pmi.map(|(_, way)| way).ok_or_else(none)
        }
        Some("pmix") if pmix => Ok(Way::Pmix),
        Some("pmix") => Err(Error::new("PARTAGE_BOOT=pmix, but no launcher has set PMIX_NAMESPACE and PMIX_RANK")),
        Some(other) => Err(Error::new(format!("PARTAGE_BOOT={other}: it may be `alone`, `pmi` or `pmix`, or unset"))),
        None => match pmi {
            Some((_, way)) => Ok(way),
            None if pmix => Ok(Way::Pmix),
            None => check(var).map(|()| Way::Alone),
        },
    }
}

/// `Ok` when no such launcher is in sight.
fn check(var: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let Some(Mark { launcher, variable, .. }) = MARKS.iter().find(|mark| mark.applies(&var)) else { return Ok(()) };
    let hint = match *variable {
        "SLURM_STEP_ID" => "give it `--mpi=pmi2` or `--mpi=pmix`",
        _ => "start it with `partage run -n N`, an mpirun or srun",
    };
    Err(Error::new(format!(
        "this process was started by {launcher} ({variable} is set), without a start-up protocol that this build \
         speaks (PMI-1 or PMIx); {hint}, or set PARTAGE_BOOT=alone to run each process by itself"
    )))
}

/// `variable` shows the launcher, unless one of `sizes` says that the job has one process.
struct Mark {
    launcher: &'static str,
    variable: &'static str,
    sizes: &'static [&'static str],
    /// Whether the mark counts where none of `sizes` is set.
    unsized_counts: bool,
}

const fn mark(launcher: &'static str, variable: &'static str, sizes: &'static [&'static str]) -> Mark {
    Mark { launcher, variable, sizes, unsized_counts: true }
}

const MARKS: &[Mark] = &[
    mark("Open MPI", "OMPI_COMM_WORLD_SIZE", &["OMPI_COMM_WORLD_SIZE"]),
    mark("HPE PALS", "PALS_RANKID", &[]),
    mark("Flux", "FLUX_TASK_RANK", &["FLUX_JOB_SIZE"]),
    mark("IBM JSM", "JSM_NAMESPACE_RANK", &["JSM_NAMESPACE_SIZE"]),
    mark("MVAPICH", "MV2_COMM_WORLD_RANK", &["MV2_COMM_WORLD_SIZE"]),
    mark("Cray ALPS", "ALPS_APP_PE", &[]),
    mark("a PMIx launcher", "PMIX_RANK", &["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"]),
    // A batch script has a job but no step of several tasks; only `srun` makes one.
    Mark {
        launcher: "Slurm's srun",
        variable: "SLURM_STEP_ID",
        sizes: &["SLURM_STEP_NUM_TASKS"],
        unsized_counts: false,
    },
];

impl Mark {
    fn applies(&self, var: impl Fn(&str) -> Option<String>) -> bool {
        if var(self.variable).is_none() {
            return false;
        }
        match self.sizes.iter().find_map(|name| var(name)) {
            None => self.unsized_counts,
            Some(size) => size.trim() != "1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(how: Option<&str>, environment: &[(&str, &str)]) -> Result<Way, String> {
        let var = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        way(how, var).map_err(|e| e.to_string())
    }

    #[test]
    fn launchers_that_are_spoken() {
        let pmix = [("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "0")];
        for (environment, expect) in [
            (&[("PMI_FD", "7"), ("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "job")][..], Way::Fd),
            (&[("PMI_FD", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], Way::Fd),
            (&[("PMI_PORT", "host:1"), ("PMI_ID", "0")], Way::Port),
            (&[pmix[0], pmix[1], ("OMPI_COMM_WORLD_SIZE", "4")], Way::Pmix),
            (&[pmix[0], pmix[1], ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], Way::Pmix),
        ] {
            assert_eq!(found(None, environment), Ok(expect), "{environment:?}");
            assert_eq!(found(Some("alone"), environment), Ok(Way::Alone));
        }
        let both = [pmix[0], pmix[1], ("PMI_PORT", "host:1")];
        assert_eq!(found(Some("pmi"), &both), Ok(Way::Port));
        assert_eq!(found(Some("pmix"), &both), Ok(Way::Pmix));
        assert_eq!(
            found(Some("pmi"), &pmix).unwrap_err(),
            "PARTAGE_BOOT=pmi, but no launcher has set PMI_FD or PMI_PORT"
        );
        assert!(found(Some("pmix"), &both[1..]).unwrap_err().contains("no launcher has set PMIX_NAMESPACE"));
        let line = found(Some("mpi"), &both).unwrap_err();
        assert_eq!(line, "PARTAGE_BOOT=mpi: it may be `alone`, `pmi` or `pmix`, or unset");
    }

    #[test]
    fn other_launchers_of_several_processes_are_named() {
        for (environment, expect, way_out) in [
            (&[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "0")][..], "Open MPI (OMPI_COMM_WORLD_SIZE", "an mpirun"),
            (&[("PMIX_RANK", "0")], "a PMIx launcher (PMIX_RANK", "an mpirun"),
            (
                &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
                "Slurm's srun (SLURM_STEP_ID",
                "`--mpi=pmi2` or `--mpi=pmix`",
            ),
            (&[("PALS_RANKID", "0")], "PALS_RANKID", "an mpirun"),
            (&[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")], "FLUX_TASK_RANK", "an mpirun"),
            (&[("JSM_NAMESPACE_RANK", "0")], "JSM_NAMESPACE_RANK", "an mpirun"),
            (&[("MV2_COMM_WORLD_RANK", "0")], "MV2_COMM_WORLD_RANK", "an mpirun"),
            (&[("ALPS_APP_PE", "0")], "ALPS_APP_PE", "an mpirun"),
        ] {
            let line = found(None, environment).expect_err("it was not recognised");
            for part in [expect, way_out, "PARTAGE_BOOT=alone"] {
                assert!(line.contains(part), "{line}");
            }
            assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn one_process_and_batch_scripts_are_alone() {
        for environment in [
            &[][..],
            &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "64")],
            &[("SLURM_STEP_ID", "4294967290")],
            &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
            &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")],
            &[("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "0")],
            &[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "1")],
        ] {
            assert_eq!(found(None, environment), Ok(Way::Alone), "{environment:?}");
        }
    }
}
