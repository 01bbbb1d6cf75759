//! Kernels: programs that others have defined, with a rule for what counts and how the result is checked.
//!
//! Each is a module that says its rule, and a program of the same name that runs it and prints its score. They use what
//! every user has, the public interface, and no `unsafe`. What they are not: examples. Those are in `examples/`, each under
//! a page.

#![forbid(unsafe_code)]

pub mod gups;
