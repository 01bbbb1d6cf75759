//! Ranks of different nodes, through libfabric.
//!
//! * [`endpoint`]: one endpoint of a process, typed; no policy.
//! * `fi`: what is called of the library, which is opened when it is first needed.

pub mod endpoint;
mod fi;
