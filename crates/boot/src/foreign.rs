//! Recognises launchers whose start-up protocol this build does not speak.
//!
//! Guaranteed: a process that one of them started as one of several gets an error that names the launcher and the ways
//! out, so that a job of N processes never runs as N jobs of one. A launcher's *batch script*, or a job of one process,
//! counts as alone. Not contained: any of their protocols, and reading the environment (a closure does that).

use crate::Error;

/// `Ok` when no such launcher is in sight. Only asked where `PMI_FD` is absent.
pub(crate) fn check(var: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    match MARKS.iter().find(|mark| mark.applies(&var)) {
        None => Ok(()),
        Some(Mark { launcher, variable, .. }) => Err(Error::new(format!(
            "this process was started by {launcher} ({variable} is set), whose start-up protocol this build does not \
             speak; start it with `partage run -n N` or mpirun.mpich, or set PARTAGE_BOOT=alone to run each process \
             by itself"
        ))),
    }
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
    mark("a PMI launcher that wants a TCP connection", "PMI_PORT", &[]),
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

    fn found(environment: &[(&str, &str)]) -> Option<String> {
        check(|name| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn launchers_of_several_processes_are_named() {
        for (environment, expect) in [
            (&[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "0")][..], "Open MPI (OMPI_COMM_WORLD_SIZE"),
            (&[("PMIX_RANK", "0")], "a PMIx launcher (PMIX_RANK"),
            (&[("PMIX_RANK", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], "PMIX_RANK"),
            (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], "Slurm's srun (SLURM_STEP_ID"),
            (&[("PMI_PORT", "host:1"), ("SLURM_STEP_ID", "1"), ("SLURM_STEP_NUM_TASKS", "1")], "PMI_PORT"),
            (&[("PALS_RANKID", "0")], "PALS_RANKID"),
            (&[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")], "FLUX_TASK_RANK"),
            (&[("JSM_NAMESPACE_RANK", "0")], "JSM_NAMESPACE_RANK"),
            (&[("MV2_COMM_WORLD_RANK", "0")], "MV2_COMM_WORLD_RANK"),
            (&[("ALPS_APP_PE", "0")], "ALPS_APP_PE"),
        ] {
            let line = found(environment).unwrap_or_else(|| panic!("{environment:?} was not recognised"));
            assert!(line.contains(expect), "{line}");
            for way_out in ["`partage run -n N`", "mpirun.mpich", "PARTAGE_BOOT=alone"] {
                assert!(line.contains(way_out), "{line}");
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
            assert_eq!(found(environment), None, "{environment:?}");
        }
    }
}
