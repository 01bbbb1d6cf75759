//! One opaque error. Only what a program can act on is an `Err`: start-up, configuration, exhausted memory.
//! A program's mistake panics on the rank that made it; a lost rank ends the job.

use std::fmt;

/// What went wrong, in one line that names the rank, the call and the remedy.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

/// What sort of thing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The job could not be started.
    Start,
    /// A setting has a value that it cannot have.
    Config,
    /// The segment or the machine's memory is exhausted.
    OutOfMemory,
}

/// A result whose error is [`Error`].
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// What sort of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn start(text: impl fmt::Display) -> Error {
        Error { kind: ErrorKind::Start, text: text.to_string() }
    }

    pub(crate) fn config(text: impl fmt::Display) -> Error {
        Error { kind: ErrorKind::Config, text: text.to_string() }
    }

    pub(crate) fn out_of_memory(text: impl fmt::Display) -> Error {
        Error { kind: ErrorKind::OutOfMemory, text: text.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
