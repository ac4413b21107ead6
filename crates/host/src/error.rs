//! Why the daemon does not start, or ends.

use std::io;
use std::path::PathBuf;

use entrain_cli::exit;
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

impl HostError {
    /// The program's status, where another start would not cure it.
    pub fn exit_status(&self) -> Option<u8> {
        match self {
            Self::Missing(_) => Some(exit::UNAVAILABLE),
            Self::Config(_) => Some(exit::CONFIGURATION),
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Some(exit::NO_PERMISSION),
            _ => None,
        }
    }
}

/// For `map_err`: what of the system was tried.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::System { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_has_a_status_of_its_own() {
        let file = |kind: io::ErrorKind| HostError::File { path: "/run/entrain".into(), source: kind.into() };
        assert_eq!(HostError::Missing(vec!["BTF"]).exit_status(), Some(69));
        assert_eq!(file(io::ErrorKind::PermissionDenied).exit_status(), Some(77));
        assert_eq!(file(io::ErrorKind::StorageFull).exit_status(), None);
        assert_eq!(HostError::Running("/run/entrain/host.lock".into()).exit_status(), None, "the other may end");
    }
}
