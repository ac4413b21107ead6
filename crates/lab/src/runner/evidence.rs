//! What is kept of a machine on which something did not end in its time: without it such a fault, seen once in a hundred
//! boots, can only be guessed at.

use std::path::PathBuf;
use std::time::Duration;

use entrain_lab_machine::LabError;
use entrain_lab_machine::machine::{Command, Target};

use super::failure::Stop;
use crate::output;
use crate::rig::Rig;

/// Gathers it inside a machine.
const SCRIPT: &str = include_str!("evidence.sh");
/// For each machine, of its own time; one that hangs says nothing, and must not hold up the others for long.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether evidence tells more than the fault itself does: a fault has its console, a deadline has nothing.
pub(super) fn is_wanted(stop: &Stop) -> bool {
    matches!(stop, Stop::Lost(LabError::Deadline { .. }))
}

/// Keeps in a file what [`gather`] gives. `None` where no folder takes it.
pub(super) fn keep(rig: &dyn Rig, name: &str, what: &str, guests: &[Target]) -> Option<PathBuf> {
    output::keep(gather(rig, what, guests).as_bytes(), &format!("{name}-evidence"), "txt")
}

/// Asks the host machine and the `guests` for stacks, states, schedulers and timers.
pub(super) fn gather(rig: &dyn Rig, what: &str, guests: &[Target]) -> String {
    let mut text = format!("{what}\n");
    // The host first: asking a guest changes what its vCPUs do.
    for target in [Target::Host].iter().chain(guests) {
        text += &format!("\n######## {target}\n");
        match rig.run(*target, Command::shell(SCRIPT).within(LIMIT)) {
            Ok(outcome) => text += &outcome.text(),
            Err(LabError::Cancelled) => break,
            Err(error) => text += &format!("no answer: {error}\n"),
        }
    }
    text
}
