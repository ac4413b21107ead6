//! Probes beside a sample: what host machine and guests counted while the load ran.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_workloads::probe::Snapshot;

use super::failure::{Stop, tail};
use crate::probe;
use crate::reading::Reading;
use crate::rig::Rig;

/// A snapshot takes some hundred milliseconds, more in a guest that is busy.
const LIMIT: Duration = Duration::from_secs(30);

/// The probes that run beside one sample.
pub(super) struct Running<'a> {
    rig: &'a dyn Rig,
    before: Vec<(Target, Snapshot)>,
}

/// Starts the named probes; `guests` are those of the configuration.
pub(super) fn start<'a>(rig: &'a dyn Rig, names: &[String], guests: &[Target]) -> Result<Running<'a>, Stop> {
    let asked = |name: &str| names.iter().any(|one| one == name);
    let mut targets = Vec::new();
    if asked("guests") {
        targets.extend_from_slice(guests);
    }
    // The host last, and first when it ends: what the guests' probes cost is not counted on it.
    if asked("host") {
        targets.push(Target::Host);
    }
    let before = targets.into_iter().map(|target| Ok((target, snapshot(rig, target)?))).collect::<Result<_, Stop>>()?;
    Ok(Running { rig, before })
}

impl Running<'_> {
    /// Ends them and gives what they counted.
    pub(super) fn stop(self) -> Result<Vec<Reading>, Stop> {
        let mut readings = Vec::new();
        let mut guests: Vec<Vec<Reading>> = Vec::new();
        for (target, before) in self.before.into_iter().rev() {
            let after = snapshot(self.rig, target)?;
            let wrong = |error: probe::ProbeError| Stop::Failed(format!("probe of the {target}: {error}"));
            match target {
                Target::Host => {
                    readings.extend(probe::host(&before, &after).map_err(wrong)?);
                    scheduled_alike(&before, &after)?;
                }
                Target::Guest(_) => guests.push(probe::guest(&before, &after).map_err(wrong)?),
            }
        }
        readings.extend(mean(&guests));
        Ok(readings)
    }
}

/// An error if the host's BPF scheduler came, went or was loaded anew meanwhile: the figure is then of no arm.
fn scheduled_alike(before: &Snapshot, after: &Snapshot) -> Result<(), Stop> {
    let seen = |snapshot: &Snapshot| snapshot.sched_ext.as_ref().map(|scx| (scx.state.clone(), scx.loads));
    if seen(before) == seen(after) {
        return Ok(());
    }
    let words = |snapshot: &Snapshot| match &snapshot.sched_ext {
        Some(scx) => format!("{}, {} loads", scx.state, scx.loads),
        None => "none".to_owned(),
    };
    let (before, after) = (words(before), words(after));
    Err(Stop::Failed(format!("the host's BPF scheduler changed while it was measured: {before}; then {after}")))
}

/// The mean over the guests that have a reading, in the order of the first.
fn mean(guests: &[Vec<Reading>]) -> Vec<Reading> {
    let Some(first) = guests.first() else { return Vec::new() };
    first
        .iter()
        .map(|reading| {
            let values: Vec<f64> = guests
                .iter()
                .flatten()
                .filter(|other| other.metric == reading.metric)
                .map(|other| other.value)
                .collect();
            Reading { value: values.iter().sum::<f64>() / values.len() as f64, ..reading.clone() }
        })
        .collect()
}

fn snapshot(rig: &dyn Rig, target: Target) -> Result<Snapshot, Stop> {
    let outcome = rig.run(target, Command::new(probe::COMMAND).within(LIMIT))?;
    if !outcome.ok() {
        let said = tail(&outcome.stderr, 3);
        return Err(Stop::Failed(format!("probe of the {target} ended with status {}: {said}", outcome.status)));
    }
    probe::parse(&outcome.text()).map_err(|error| Stop::Failed(format!("probe of the {target}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Better;
    use entrain_workloads::probe::SchedExt;

    #[test]
    fn a_scheduler_that_came_back_meanwhile_spoils_the_sample() {
        let with = |state: &str, loads| {
            let scx = SchedExt { state: state.into(), loads, ..SchedExt::default() };
            Snapshot { sched_ext: Some(scx), ..Snapshot::default() }
        };
        assert!(scheduled_alike(&with("enabled", 1), &with("enabled", 1)).is_ok());
        assert!(scheduled_alike(&Snapshot::default(), &Snapshot::default()).is_ok());
        assert!(scheduled_alike(&with("enabled", 1), &with("enabled", 2)).is_err());
        assert!(scheduled_alike(&with("enabled", 1), &with("disabled", 1)).is_err());
    }

    #[test]
    fn guests_are_averaged() {
        let one = |name: &str, value| Reading::new(name, "1/s", Better::Lower, value);
        let guests = [vec![one("a", 1.0), one("b", 10.0)], vec![one("a", 3.0)]];
        assert_eq!(mean(&guests), [one("a", 2.0), one("b", 10.0)]);
        assert!(mean(&[]).is_empty());
    }
}
