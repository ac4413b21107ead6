//! What can go wrong in the lab, told so that the reader knows what to do next.
use std::{io, path::PathBuf, time::Duration};

use crate::fault::Fault;

/// Any failure of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The host machine or a guest broke down; the runner decides whether it is started again.
    #[error("{0}")]
    Fault(Box<Fault>),
    /// Something did not end in its time, with no sign of a fault.
    #[error("{what} did not end within {} s", limit.as_secs_f32())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The user asked to stop (Ctrl-C or SIGTERM).
    #[error("stopped at the user's request")]
    Cancelled,
    /// A file or folder could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The cache's file system is full.
    #[error(
        "no space left in {path} (the cache); free some, or set XDG_CACHE_HOME to a folder on a larger disk, \
         or run 'entrain lab clean'",
        path = path.display()
    )]
    DiskFull {
        /// The cache folder.
        path: PathBuf,
    },
    /// A package, program or kernel that the lab needs could not be had.
    #[error("{what}: {advice}")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do about it.
        advice: String,
    },
    /// A program of the development machine (apt-get, dpkg-deb, QEMU) failed.
    #[error("{program} failed: {output}")]
    Program {
        /// The program and its arguments.
        program: String,
        /// The end of what it said.
        output: String,
    },
    /// A machine's agent refused or could not do what it was asked for.
    #[error("{who}: {message}")]
    Remote {
        /// Host machine or guest.
        who: String,
        /// The agent's words.
        message: String,
    },
    /// A wrong request, for example a guest that does not exist.
    #[error("{0}")]
    Invalid(String),
}

impl LabError {
    /// Wraps a system error with the path that it happened at; a full disk gets its own kind.
    pub fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            _ => Self::Io { path, source },
        }
    }

    /// The fault behind this error, if it is one.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }
}

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, LabError>;
