//! Starts one process of a job, or a remote shell.
//!
//! Guaranteed: a process of a job leads its own process group, is killed by the kernel when the
//! thread that started it dies (what it has started itself is not), has exactly one descriptor more than the
//! standard ones from here (the socket that `PMI_FD` names), and sees no variable of a job that
//! the launcher itself may be part of. Every descriptor made here closes on exec in every other
//! process, also in those that other threads start meanwhile. Not contained: what happens to it
//! afterwards.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::{PROTOCOL, Spec, ranks_of};

/// How many receives libfabric's ofi_rxm keeps posted, unless the user says another number. Of itself it takes 4096 of 16 KiB, all of whose pages it
/// touches: 68 MiB and a quarter of the time that a process takes to start. It must be known before libfabric is loaded, and a process that may have
/// threads cannot change its own variables.
const RECEIVES: (&str, &str) = ("FI_OFI_RXM_MSG_RX_SIZE", "1024");

pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// The launcher's end, non-blocking.
    pub(crate) socket: OwnedFd,
}

/// Starts process `process` of the job as `program`, which is `spec.program` found on the path. `piped`: its output
/// comes back through pipes.
pub(crate) fn spawn(spec: &Spec, program: &Path, process: usize, stdin: Stdio, piped: bool) -> io::Result<Started> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    // Out of the way of the standard descriptors, whatever this process has done to its own.
    let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, 3)?;

    let mut command = Command::new(program);
    command.arg0(&spec.program).args(&spec.args).process_group(0).stdin(stdin);
    let output = || match (spec.quiet_output, piped) {
        (true, _) => Stdio::null(),
        (false, true) => Stdio::piped(),
        (false, false) => Stdio::inherit(),
    };
    command.stdout(output()).stderr(output());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_a_job(name)) {
        command.env_remove(name);
    }
    let (name, value) = RECEIVES;
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let ranks = ranks_of(process, spec.ranks, spec.procs);
    for (name, value) in [
        ("PMI_FD", theirs.as_raw_fd().to_string()),
        ("PMI_RANK", process.to_string()),
        ("PMI_SIZE", spec.procs.to_string()),
        ("PARTAGE_PROTOCOL", PROTOCOL.to_string()),
        ("PARTAGE_THREADS", ranks.len().to_string()),
    ] {
        command.env(name, value);
    }
    let parent = rustix::process::getpid();
    let prepare = move || {
        // In a group of its own it may still write to the terminal and set its modes; it would be stopped, and nobody would know.
        // SAFETY: async-signal-safe, and no handler: nothing of this process's memory is touched.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Too late for the signal, if it has died before.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: `pre_exec` requires that the closure is sound to run between fork and exec of a
    // process that may have other threads: it makes a few system calls, one of them on a descriptor
    // that it owns; it neither allocates nor locks, touches no memory that another thread may have
    // left half-changed, and does not panic. The error it may return is an errno, made and read
    // without allocation. `theirs` is closed in this process when `command` is dropped below, and
    // in the child never, as exec drops nothing.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn()?;
    drop(command);

    let (child, pid, pidfd) = watched(child)?;
    Ok(Started { child, pid, pidfd, socket: ours })
}

/// Starts a remote shell with pipes for all three standard streams, in a session of its own: what the user types is not
/// for it, and it has no terminal to ask for a password on. It does not get the variables for which `stays` says so.
pub(crate) fn spawn_shell(words: &[OsString], stays: impl Fn(&OsStr) -> bool) -> io::Result<(Child, Pid, OwnedFd)> {
    let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    std::env::vars_os().filter(|(name, _)| stays(name)).for_each(|(name, _)| _ = command.env_remove(name));
    // SAFETY: as above: one system call, which touches no memory of this process.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    watched(command.spawn()?)
}

fn watched(mut child: Child) -> io::Result<(Child, Pid, OwnedFd)> {
    let pid = Pid::from_child(&child);
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pid, pidfd)),
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(e.into())
        }
    }
}

/// Whether a variable tells a process about its place in a job, so that it must not be inherited.
pub(crate) fn is_of_a_job(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    [&b"PMI_"[..], b"PMIX_", b"OMPI_COMM_WORLD_"].iter().any(|prefix| name.starts_with(prefix))
        || [&b"PARTAGE_PROTOCOL"[..], b"PARTAGE_THREADS", b"PARTAGE_BOOT", b"PARTAGE_CALL"].contains(&name)
}
