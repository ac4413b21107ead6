//! What can end a step of a run, by what the runner does about it.

use entrain_lab_machine::LabError;

/// Why a step did not do what it should.
#[derive(Debug)]
pub(super) enum Stop {
    /// The machine is lost, or in a state that nobody knows: the boot ends and is repeated.
    Lost(LabError),
    /// A command of the experiment failed while the machine is well: noted, and the run goes on with the next arm.
    Failed(String),
    /// The user asked to stop.
    Cancelled,
    /// Nothing can go on: the development machine lacks something.
    Fatal(LabError),
}

impl From<LabError> for Stop {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Fault(_) | LabError::Deadline { .. } => Self::Lost(error),
            LabError::Remote { .. } | LabError::Invalid(_) => Self::Failed(error.to_string()),
            LabError::Cancelled => Self::Cancelled,
            _ => Self::Fatal(error),
        }
    }
}

/// The last lines of what a command said, for a message.
pub(super) fn tail(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}
