//! Kernels: programs that others have defined, with a rule for what counts and how the result is checked.
//!
//! Each is a module that says its rule, and a program that runs it and prints its score. They use what every user has, the
//! public interface, and no `unsafe`. What they are not: examples. Those are in `examples/`, each under a page.
//!
//! * [`gups`]: random updates of a table. Program: `gups`.
//! * [`spmv`], [`cg`], [`trees`]: what it costs to know that values have come, in a sparse matrix-vector product, in
//!   conjugate gradients, and in trees of ranks. Program: `study`, whose figures [`study`] takes. [`stencil`] has the
//!   matrices, [`lanes`] the memory through which ranks speak, [`clock`] the time.

#![forbid(unsafe_code)]

pub mod cg;
pub mod clock;
pub mod gups;
pub mod lanes;
pub mod spmv;
pub mod stencil;
pub mod study;
pub mod trees;
