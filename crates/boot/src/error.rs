//! The one error type of this crate.

/// What went wrong, in one line and without a `partage:` prefix.
///
/// Opaque on purpose: nothing that fails while a job starts can be repaired by the program, only be told to its user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// Control characters become spaces, so that the line stays one line whatever a peer has put into it.
    pub(crate) fn new(line: impl AsRef<str>) -> Error {
        Error(one_line(line.as_ref()))
    }
}

/// `text` without line breaks or other control characters.
pub(crate) fn one_line(text: &str) -> String {
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
