//! What can go wrong when a file of `/proc` or `/sys` is read.

use std::io;
use std::path::PathBuf;

/// Result of the readers.
pub type Result<T> = std::result::Result<T, SystemError>;

/// A file that was needed could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// It is not there, or may not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not say what it should.
    #[error("{path} says {found:?}, which is not understood", path = .path.display())]
    Unexpected {
        /// Which.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}
