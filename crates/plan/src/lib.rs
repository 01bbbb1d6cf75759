//! What can be said about shared data before anybody communicates.
//!
//! - [`layout`]: which member of a team holds which elements of an array, and where.
//! - [`mod@pointer`]: how a pointer to one such element moves.
//! - [`region`]: which elements a copy takes, and in which order.
//! - [`coll`]: what each rank does in a collective, and the checker of that.
//!
//! Guaranteed: everything here is arithmetic on numbers. The same question has the same answer on every member, so
//! nobody needs to ask another.
//!
//! Not contained: memory, ranks, communication, clocks, input or output. A member is a number from 0; what it stands for
//! is the caller's affair.
#![forbid(unsafe_code)]

pub mod coll;
mod divide;
pub mod layout;
pub mod pointer;
pub mod region;
