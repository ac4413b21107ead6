//! Loads that run at the same time in several guests and on the host machine, and the figures taken from what they print.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};
use entrain_workloads::catalog::{self, LOADS};
use serde::Deserialize;

use super::product::unmet;
use crate::load::Printed;
use crate::metric::Better;
use crate::reading::Readings;
use crate::rig::{Job, Rig};

/// Time beyond its own that a load may take.
const PATIENCE: f64 = 90.0;

/// One figure of one load's output.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Its name in the output; unit and direction are those of the catalogue of loads.
    pub(super) metric: String,
    /// The guest, counted from 0 in the order of the configuration; the host machine's first load where nothing is said.
    pub(super) guest: Option<usize>,
    /// Its name in the readings, if another.
    pub(super) name: Option<String>,
}

/// A load that runs.
pub(super) struct Running {
    target: Target,
    job: Box<dyn Job>,
}

/// Starts a command in which `{seconds}` is replaced by a number; one without words is no load.
pub(super) fn start(rig: &dyn Rig, target: Target, argv: &[String], seconds: f64) -> Result<Option<Running>> {
    if argv.is_empty() {
        return Ok(None);
    }
    let argv = argv.iter().map(|word| word.replace("{seconds}", &format!("{seconds}")));
    let command = Command::new(argv).within(Duration::from_secs_f64(seconds + PATIENCE));
    Ok(Some(Running { target, job: rig.start(target, command)? }))
}

impl Running {
    /// Waits for the load's end; a status other than 0 is an error.
    pub(super) fn printed(self) -> Result<(Target, Printed)> {
        let outcome = self.job.wait()?;
        if !outcome.ok() {
            let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
            return Err(unmet(format!("a load failed in {}: {}", self.target, said.trim())));
        }
        let printed =
            Printed::parse(&outcome.text()).map_err(|error| unmet(format!("a load in {}: {error}", self.target)))?;
        Ok((self.target, printed))
    }
}

/// Waits for all, also after one failed: a load left running would spoil the next sample.
pub(super) fn finish(running: Vec<Running>) -> Result<Vec<(Target, Printed)>> {
    let ended: Vec<Result<(Target, Printed)>> = running.into_iter().map(Running::printed).collect();
    ended.into_iter().collect()
}

/// Takes the wanted figures; `guests` are those of the configuration.
pub(super) fn figures(
    wanted: &[Wanted],
    guests: &[usize],
    printed: &[(Target, Printed)],
    readings: &mut Readings,
) -> Result<()> {
    for one in wanted {
        let metric = known(&one.metric)
            .ok_or_else(|| LabError::Invalid(format!("params.figures: no load has a metric '{}'", one.metric)))?;
        let target = match one.guest {
            None => Target::Host,
            Some(number) => Target::Guest(*guests.get(number).ok_or_else(|| {
                LabError::Invalid(format!("params.figures: guest {number} of a configuration of {}", guests.len()))
            })?),
        };
        let value = printed
            .iter()
            .filter(|(from, _)| *from == target)
            .find_map(|(_, printed)| printed.figure(&one.metric, metric.unit).ok())
            .ok_or_else(|| unmet(format!("no load in {target} printed '{}'", one.metric)))?;
        let better = match metric.better {
            catalog::Better::Lower => Better::Lower,
            _ => Better::Higher,
        };
        readings.push(one.name.as_deref().unwrap_or(&one.metric), metric.unit, better, value);
    }
    Ok(())
}

fn known(name: &str) -> Option<&'static catalog::Metric> {
    LOADS.iter().find_map(|load| load.metric(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_taken_from_the_load_that_was_meant() {
        let text = |value: f64| format!("{{\"metric\":\"ops_per_s\",\"value\":{value},\"unit\":\"1/s\"}}");
        let printed: Vec<(Target, Printed)> =
            [3, 5].iter().map(|&n| (Target::Guest(n), Printed::parse(&text(n as f64)).unwrap())).collect();
        let wanted =
            |guest, name: Option<&str>| Wanted { metric: "ops_per_s".into(), guest, name: name.map(str::to_owned) };
        let mut readings = Readings::default();
        figures(&[wanted(Some(0), None), wanted(Some(1), Some("other"))], &[3, 5], &printed, &mut readings).unwrap();
        let values: Vec<(&str, f64)> = readings.iter().map(|one| (one.metric.as_str(), one.value)).collect();
        assert_eq!(values, [("ops_per_s", 3.0), ("other", 5.0)]);
        assert!(figures(&[wanted(None, None)], &[3, 5], &printed, &mut readings).is_err(), "nothing ran on the host");
        assert!(figures(&[wanted(Some(2), None)], &[3, 5], &printed, &mut readings).is_err());
    }
}
