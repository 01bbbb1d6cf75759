//! Partage: a partitioned global address space.
//!
//! *Ranks* own parts of one address space and reach the rest by one-sided puts and gets. A job of ranks is a program that
//! is started once: as threads of its process, as processes, or as any mix of the two.
//!
//! ```
//! use partage::prelude::*;
//!
//! fn main() {
//!     partage::run(|job| -> partage::Result {
//!         let cell = job.alloc_all::<u64>(1)?;                 // one value on every rank
//!         cell.on(job.neighbor(1)).put(job, job.rank().0.into()); // into my right neighbour's
//!         job.barrier();
//!         assert_eq!(cell.get(job), job.neighbor(-1).0.into());
//!         Ok(())
//!     });
//! }
//! ```
//!
//! # Rules
//! * `Result` where memory is allocated or a job starts; a program's mistake panics on the rank that made it; a lost
//!   rank ends the job.
//! * Per-rank state lives in the closure: statics are shared between ranks that are threads and private to those that
//!   are processes.
//! * [`Job`] and everything that carries it stay on the rank's own thread.

#[deny(unsafe_code)]
pub mod am;
#[deny(unsafe_code)]
pub mod array;
#[deny(unsafe_code)]
pub mod atomic;
pub mod block;
pub mod coll;
#[deny(unsafe_code)]
pub mod domain;
#[deny(unsafe_code)]
pub mod error;
#[deny(unsafe_code)]
mod fail;
#[deny(unsafe_code)]
pub mod halo;
mod image;
#[deny(unsafe_code)]
pub mod job;
#[deny(unsafe_code)]
pub mod launcher;
#[deny(unsafe_code)]
mod leaks;
pub mod lock;
pub mod mailbox;
pub mod phase;
#[deny(unsafe_code)]
pub mod profile;
pub mod ptr;
#[deny(unsafe_code)]
pub mod region;
#[deny(unsafe_code)]
pub mod register;
#[deny(unsafe_code)]
pub mod remote;
#[deny(unsafe_code)]
mod report;
pub mod rpc;
pub mod scope;
#[deny(unsafe_code)]
pub mod settings;
pub mod signal;
pub mod slots;
mod start;
pub mod team;
#[deny(unsafe_code)]
pub mod wait;
#[deny(unsafe_code)]
mod watch;

pub use bytemuck::{self, Pod, Zeroable};
pub use error::{Error, ErrorKind, Result};
pub use job::Job;
pub use partage_plan::layout;
pub use serde;
pub use start::{Launch, Outcome, run, test};

/// What a program needs: `use partage::prelude::*;`
pub mod prelude {
    pub use crate::array::{SharedArray, SharedSlice};
    pub use crate::block::BlockPtr;
    pub use crate::coll::{And, Commutative, In, LogAnd, LogOr, Max, Min, Or, Ordered, Out, Prod, ReduceOp, Sum, Xor};
    pub use crate::job::{Distance, Job};
    pub use crate::lock::{Guard, MutexPtr, Mutexes};
    pub use crate::mailbox::{Address, Mailbox};
    pub use crate::ptr::GlobalPtr;
    pub use crate::region::{Indexed, Region, Shape};
    pub use crate::register::Registered;
    pub use crate::remote::Remote;
    pub use crate::rpc::Dist;
    pub use crate::scope::Event;
    pub use crate::signal::{Semaphore, Signal};
    pub use crate::slots::{Arrived, Inbox, Outbox};
    pub use crate::team::{Rank, Team, TeamRank};
    pub use crate::{Pod, Zeroable};
    pub use partage_plan::layout::Layout;
}

/// What the README, the guide and the memory model show is compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../../../docs/memory-model.md")]
    mod memory_model {}
}
