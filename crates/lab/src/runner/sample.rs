//! Taking one sample: the load in every guest at the same time, and the share of CPU that the machine got meanwhile.

use std::collections::BTreeMap;

use entrain_lab_machine::machine::{Command, Target};

use super::arm::{Spots, failed};
use super::failure::Stop;
use super::output;
use crate::experiment::Load;
use crate::reading::{Reading, Readings};
use crate::rig::Rig;
use crate::scenario::{self, Context};

/// Below this share of the CPU time that it asked for, the machine was disturbed by a neighbour. A share holds at any
/// dilation: what a neighbour takes is N times shorter in the machine, and so is the window.
pub const QUIET_SHARE: f64 = 0.9;
/// Times that a spoilt sample is taken anew.
const REPEATS: u32 = 2;
/// After so many samples in a row that stayed spoilt the neighbour is there to stay, and repeating only costs time.
const GIVE_UP: u32 = 3;

/// All figures of one load, taken at once.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub(super) readings: Vec<Reading>,
    /// What the probes counted meanwhile.
    pub(super) counted: Vec<Reading>,
    /// Share of the CPU time asked for that the machine got, 0 to 1.
    pub(super) share: f64,
    /// How fast this computer was before and after, on average.
    pub(super) speed: f64,
    /// How many were thrown away before this one.
    pub(super) thrown: u32,
}

/// Knows whether the development machine is ever quiet.
#[derive(Debug, Default)]
pub(super) struct Patience {
    spoilt_in_a_row: u32,
}

impl Patience {
    fn repeats(&self) -> u32 {
        if self.spoilt_in_a_row >= GIVE_UP { 0 } else { REPEATS }
    }

    fn saw(&mut self, share: f64) {
        self.spoilt_in_a_row = if share < QUIET_SHARE { self.spoilt_in_a_row + 1 } else { 0 };
    }
}

/// Takes a sample, anew while it is spoilt; of several spoilt ones the least spoilt is kept.
pub(super) fn take(
    rig: &dyn Rig,
    load: &Load,
    spots: &Spots,
    probes: &[String],
    context: &Context,
    patience: &mut Patience,
) -> Result<Taken, Stop> {
    let mut best: Option<Taken> = None;
    // A scenario changes its machine; doing it twice is not the same as once.
    let repeats = if load.scenario.is_some() { 0 } else { patience.repeats() };
    for thrown in 0..=repeats {
        let (speed, before) = (rig.speed(), rig.cpu_clock());
        let (readings, counted) = measure(rig, load, spots, probes, context)?;
        let share = rig.cpu_clock().share_since(&before);
        let speed = f64::midpoint(speed, rig.speed());
        let quiet = share >= QUIET_SHARE;
        if best.as_ref().is_none_or(|best| share > best.share) {
            best = Some(Taken { readings, counted, share, speed, thrown: 0 });
        }
        if let Some(best) = &mut best {
            best.thrown = thrown;
        }
        if quiet {
            break;
        }
    }
    let best = best.expect("at least one sample was taken");
    patience.saw(best.share);
    Ok(best)
}

fn measure(
    rig: &dyn Rig,
    load: &Load,
    spots: &Spots,
    probes: &[String],
    context: &Context,
) -> Result<(Vec<Reading>, Vec<Reading>), Stop> {
    let guests: Vec<Target> = spots.guests.iter().map(|spot| spot.target).collect();
    let running = super::probes::start(rig, probes, &guests)?;
    let readings = match &load.scenario {
        Some(name) => scenario_readings(rig, name.as_ref(), context)?,
        None => command_readings(rig, load, spots)?,
    };
    Ok((readings, running.stop()?))
}

fn scenario_readings(rig: &dyn Rig, name: &str, context: &Context) -> Result<Vec<Reading>, Stop> {
    let scenario = scenario::find(name).expect("the name was checked when the file was read");
    let mut readings = Readings::default();
    scenario.run(rig, context, &mut readings)?;
    Ok(readings.into_vec())
}

fn command_readings(rig: &dyn Rig, load: &Load, spots: &Spots) -> Result<Vec<Reading>, Stop> {
    let argv = load.run.as_ref().expect("a load has a command or a scenario").as_ref();
    let spots = spots.at(load.on);
    let mut jobs = Vec::new();
    for spot in spots {
        let limit = load.deadline(spot.values.seconds);
        let argv = spot.values.expand(argv);
        let name = argv.join(" ");
        jobs.push((spot, name, rig.start(spot.target, Command::new(argv).within(limit))?));
    }
    let mut values: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut bad = None;
    // All are waited for, also after one failed: a load left running would spoil the next sample.
    for (spot, name, job) in jobs {
        let outcome = job.wait()?;
        if !outcome.ok() {
            bad.get_or_insert(failed(&name, spot.target, &outcome));
            continue;
        }
        let text = outcome.text();
        match output::figures(&text, &load.metrics) {
            Ok(figures) => figures.into_iter().enumerate().for_each(|(i, v)| values.entry(i).or_default().push(v)),
            Err(what) => {
                let said = super::failure::tail(&outcome.stderr, 3);
                bad.get_or_insert(Stop::Failed(format!("{} in {}: {what} {said}", load.name.as_ref(), spot.target)));
            }
        }
    }
    if let Some(bad) = bad {
        return Err(bad);
    }
    Ok(load
        .metrics
        .iter()
        .enumerate()
        .filter_map(|(i, metric)| {
            let value = output::combine(values.get(&i)?, metric.combine);
            let (metric, unit, better) = (metric.name.as_ref().clone(), metric.unit.clone(), metric.better);
            Some(Reading { metric, unit, better, value })
        })
        .collect())
}
