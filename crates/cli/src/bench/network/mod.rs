//! `partage bench network`: what is measured between nodes.
//!
//! Each file has figures of one kind, as a list that stands in [`GROUPS`]; a new kind is a new file and a line there.
//!
//! * [`pair`]: puts, gets, messages and signals between two processes, beside libfabric by hand, and beside active messages.
//! * [`mod@register`]: puts from private memory on a network that wants it registered; [`flood`]: many that send to one.
//! * [`inject`]: what a message costs when all ranks of a node send, by how they are processes and threads.
//! * [`hosts`]: collectives between hosts, if those are named.
//! * [`mpi`]: puts beside messages of an MPI over TCP, where there is one.

pub mod flood;
pub mod hosts;
mod inject;
mod mpi;
mod pair;
mod register;

use super::Figure;
pub use register::DEMANDS as REGISTERING;

/// All kinds, in the order in which they are measured.
pub static GROUPS: &[&[Figure]] =
    &[&pair::FIGURES, &register::FIGURES, &flood::FIGURES, &mpi::FIGURES, &inject::FIGURES, &hosts::FIGURES];

/// All figures.
pub fn figures() -> impl Iterator<Item = &'static Figure> {
    GROUPS.iter().copied().flatten()
}

/// Is it one that only hosts can measure?
pub fn needs_hosts(name: &str) -> bool {
    hosts::FIGURES.iter().any(|f| f.name == name)
}
