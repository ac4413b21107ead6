//! What `entrain-load memcheck` finds in a guest: memory that somebody else has written to.

use std::time::Duration;

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::{Command, Target};
use entrain_workloads::wire::Reason;
use signal_hook::consts::SIGINT;

use super::product::{shell, unmet};
use crate::load::Printed;
use crate::rig::{Job, Rig};

/// Longer than a scenario takes, s: what ends earlier has not seen the rest of it.
const LIFE: u64 = 3000;
/// Until it counts as hung.
const LIMIT: Duration = Duration::from_secs(LIFE + 300);

/// A guest's memory is looked at for as long as this lives.
pub(super) struct Witness(Box<dyn Job>);

impl Witness {
    /// Starts it; `options` are more of `entrain-load memcheck`'s.
    pub(super) fn start(rig: &dyn Rig, guest: usize, options: &[&str]) -> Result<Self> {
        let life = LIFE.to_string();
        let argv = ["entrain-load", "memcheck", "--json", "--seconds", &life];
        let argv = argv.iter().chain(options).copied();
        Ok(Self(rig.start(Target::Guest(guest), Command::new(argv).within(LIMIT))?))
    }

    /// Ends it; how many words somebody else had changed.
    pub(super) fn end(self) -> Result<f64> {
        self.0.kill(SIGINT)?;
        seen(&self.0.wait()?.text())
    }
}

/// Fills the guest's free memory with patterns for some seconds and looks whether they change.
pub(super) fn memory_is_sound(rig: &dyn Rig, guest: usize) -> Result<()> {
    let found = corruptions(&shell(rig, Target::Guest(guest), "entrain-load memcheck --json --seconds 4")?)?.0;
    if found > 0.0 {
        Err(unmet(format!("{found} words of the guest's memory were changed by somebody else")))
    } else {
        Ok(())
    }
}

/// What a witness printed that looked until it was told to end.
fn seen(output: &str) -> Result<f64> {
    match corruptions(output)? {
        (found, Some(Reason::Signal)) => Ok(found),
        _ => Err(unmet(format!("memcheck ended before it was told to: {output}"))),
    }
}

fn corruptions(output: &str) -> Result<(f64, Option<Reason>)> {
    let wrong = |error| unmet(format!("memcheck: {error}: {output}"));
    let printed = Printed::parse(output).map_err(wrong)?;
    Ok((printed.figure("corruptions", "").map_err(wrong)?, printed.end.map(|(reason, _)| reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_that_left_early_counts_for_nothing() {
        let output = |reason: &str| {
            format!(
                "{{\"metric\":\"corruptions\",\"value\":2.0,\"unit\":\"1\"}}\n\
                 {{\"event\":\"end\",\"reason\":\"{reason}\",\"seconds\":600.0}}\n"
            )
        };
        assert_eq!(seen(&output("signal")).unwrap(), 2.0);
        assert!(seen(&output("time")).unwrap_err().to_string().contains("before it was told to"));
        assert!(seen("").is_err(), "killed, it says nothing");
    }
}
