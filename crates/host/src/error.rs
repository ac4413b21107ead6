//! Why the daemon does not start, or ends.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::schedule::error::ScheduleError;
use crate::uclamp::error::UclampError;

/// Why the daemon did not start, or had to end.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel cannot do it.
    #[error("this machine cannot be observed; it lacks:\n  - {}", .0.join("\n  - "))]
    Missing(Vec<&'static str>),
    /// Another daemon runs.
    #[error("another `entrain host` runs already (it holds {}): stop it first", .0.display())]
    Running(PathBuf),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A BPF program.
    #[error(transparent)]
    Bpf(#[from] entrain_bpf::Error),
    /// Anything else of the system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] entrain_config::ConfigError),
    /// The scheduler.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The utilisation clamps.
    #[error(transparent)]
    Uclamp(#[from] UclampError),
}

/// For `map_err`: what of the system was tried.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::System { what, source }
}
