//! What a launcher asks about ranks: of whoever can look into their processes.

use std::time::Duration;

/// What one rank is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// `waiting in barrier at src/main.rs:12:9`.
    pub text: String,
    /// For how long it has been waiting, if it waits.
    pub waiting: Option<Duration>,
}

/// What the launcher asks about ranks, and tells about processes.
///
/// Its methods are called from within [`launch`](crate::launch()) and [`agent`](crate::agent()) and hold up everything
/// else while they run. All but [`Observer::report`] are called on the host of the process in question.
pub trait Observer {
    /// A process has called [`crate::Boot::announce`]. `pid` is that of the caller, which may be a
    /// descendant of the process that was started.
    fn announced(&mut self, process: usize, pid: u32, key: &str, value: &[u8]) {
        let _ = (process, pid, key, value);
    }

    /// What was this process doing? `rank 3 was in barrier at src/main.rs:12:9`, or only `in
    /// barrier at src/main.rs:12:9`. Asked once, when it has died, for the line that may be said about that.
    fn doing(&mut self, process: usize) -> Option<String> {
        let _ = process;
        None
    }

    /// What each rank of this process is doing, in their order.
    fn rows(&mut self, process: usize) -> Vec<Row> {
        let _ = process;
        Vec::new()
    }

    /// The longest time that any rank on this host has been waiting in its present call.
    fn longest_wait(&mut self) -> Option<Duration> {
        None
    }

    /// What all ranks are doing, in as many lines as it takes. Asked of the launcher's own observer, with the rows of
    /// all ranks of the job in their order.
    fn report(&mut self, rows: &[Row]) -> Option<String> {
        let _ = rows;
        None
    }
}
