//! The ways in which the ranks of a job reach each other.
//!
//! * [`contract`]: what every conduit promises, in words and as a trait; [`mod@reference`]: its provided part.
//! * [`am`]: active messages as handlers see them; [`ring`] and [`pool`]: how they travel on a node.
//! * [`shm`]: ranks of one node, through memory that all of them map.
//! * [`ofi`]: ranks of different nodes, through libfabric; [`ranks`]: who is where.
//! * [`wait`], [`barrier`], [`meeting`], [`record`]: waiting, meeting on a node and between nodes, and saying where one waits. Protocols over atomics that may
//!   lie in shared memory or, in a model, on the heap.
//! * [`answers`], [`board`], [`lock`], [`signal`], [`lane`], [`word`]: what ranks ask, take turns at, tell, send and count. Protocols too.
//! * [`credits`], [`owing`]: how much memory messages of other nodes may take, who lends it to whom, and who is told what has ended.
//! * [`copy`]: the one routine through which bytes enter and leave shared memory; [`runs`]: many short ones in one message.
//! * [`heap`], [`topology`], [`rseq`], [`turn`], [`sync`]: book-keeping, the machine, what its kernel does for threads, giving a core away and coming back, the atomics.
//!
//! This crate is the home of `unsafe`. It knows nothing of launchers: a conduit is handed an
//! [`Exchange`](contract::Exchange) when it attaches.
#![cfg_attr(loom, allow(dead_code, missing_docs))]

#[cfg(not(loom))]
pub mod am;
pub mod answers;
pub mod barrier;
pub mod board;
pub mod bounce;
pub mod coll;
#[cfg(not(loom))]
pub mod contract;
pub mod copy;
pub mod credits;
pub mod far;
pub mod heap;
pub mod lane;
pub mod ledger;
pub mod line;
pub mod lock;
pub mod meeting;
#[cfg(not(loom))]
pub mod ofi;
pub mod owing;
pub mod pool;
pub mod queue;
#[cfg(not(loom))]
pub mod ranks;
pub mod record;
#[cfg(not(loom))]
pub mod reference;
pub mod ring;
#[cfg(not(loom))]
pub mod rseq;
pub mod runs;
#[cfg(not(loom))]
pub mod shm;
pub mod signal;
pub mod small;
pub mod sync;
#[cfg(not(loom))]
pub mod topology;
pub mod turn;
pub mod wait;
pub mod word;
