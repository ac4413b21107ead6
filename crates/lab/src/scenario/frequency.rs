//! A load in the guests of a host machine whose CPUs' frequency can be scaled: its figures, and what the emulated CPUs
//! spent on them.
//!
//! `params`: `run`, the command for every guest, with `{seconds}` and `{full_rate}` (iterations of `entrain-load spin` per
//! second at the CPU's full speed); `per_energy`, optional: one of its metrics, which is also given per mJ of the CPUs;
//! `device_mw`, optional: what the rest of the device takes, mW, for `per_device_energy`, per mJ of both; `exits_per`,
//! optional: one of its metrics per second, adds VM exits per unit of that (per second the host's probe tells). The figures
//! of energy, frequency and speed are the emulation's (docs/frequency-lab.md).

use std::time::Duration;

use entrain_cpufreq_emulation::snapshot::Snapshot;
use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};
use entrain_workloads::catalog;
use serde_json::Value;
use signal_hook::consts::SIGTERM;

use super::interface::{Context, Scenario};
use super::product::{SETTLE, Service, shell, unmet, wait_for};
use super::status;
use crate::load::Printed;
use crate::metric::Better::{self, Higher, Lower};
use crate::reading::Readings;
use crate::rig::{Job, Rig};

/// See the module.
pub(super) struct Frequency;

/// Where the host machine keeps the CPU's full speed for as long as it is up: all arms of a boot get the same work.
const FULL_RATE: &str = "/run/entrain-full-rate";
/// A load may take this much longer than its time, s: at the lowest frequency everything is slow.
const PATIENCE: f64 = 120.0;

impl Scenario for Frequency {
    fn name(&self) -> &'static str {
        "frequency"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let guest = *context.guests.first().ok_or_else(|| LabError::Invalid("frequency: no guest".into()))?;
        let rate = full_rate(rig, guest)?;
        let argv = command(context, rate)?;
        let before = status::look(rig)?;
        let emulation = Emulation::start(rig)?;
        let measured = measure(rig, context, &argv, readings);
        emulation.end()?;
        measured?;
        if let (Some(before), Some(after)) = (before, status::look(rig)?) {
            levels(&before, &after, readings);
        }
        Ok(())
    }
}

/// The running emulation.
pub(super) struct Emulation(Service);

impl Emulation {
    /// Starts it and waits until the CPUs are slowed.
    pub(super) fn start(rig: &dyn Rig) -> Result<Self> {
        let service = Service::start(rig, Target::Host, ["entrain-cpufreq-emulation", "run"])?;
        let up = wait_for(rig, "the emulation of frequencies answers", SETTLE, || {
            Ok(rig.run(Target::Host, Command::new(["entrain-cpufreq-emulation", "read"]))?.ok())
        });
        match up {
            Ok(_) => Ok(Self(service)),
            // What it said tells more than that it does not answer.
            Err(late) => Err(service.end(SIGTERM).err().unwrap_or(late)),
        }
    }

    /// Ends it: the CPUs run at full speed again.
    pub(super) fn end(self) -> Result<()> {
        self.0.end(SIGTERM).map(drop)
    }
}

/// The counters of the running emulation.
pub(super) fn snapshot(rig: &dyn Rig) -> Result<Snapshot> {
    let text = shell(rig, Target::Host, "entrain-cpufreq-emulation read")?;
    serde_json::from_str(&text).map_err(|error| unmet(format!("the emulation printed no JSON ({error}): {text}")))
}

/// Iterations per second at full speed, measured once a boot, in a guest, while nothing slows the CPUs.
fn full_rate(rig: &dyn Rig, guest: usize) -> Result<f64> {
    let known = rig.run(Target::Host, Command::new(["cat", FULL_RATE]))?;
    if let Some(rate) = known.ok().then(|| known.text().trim().parse().ok()).flatten() {
        return Ok(rate);
    }
    let text = shell(rig, Target::Guest(guest), "entrain-load spin --threads 1 --warmup 0.5 --seconds 2 --json")?;
    let printed = Printed::parse(&text).map_err(|error| unmet(error.to_string()))?;
    let rate = printed.figure("iterations_per_s", "1/s").map_err(|error| unmet(error.to_string()))?;
    rig.put(Target::Host, FULL_RATE, format!("{rate}\n").as_bytes(), 0o644)?;
    Ok(rate)
}

/// `params.run` with its placeholders replaced.
fn command(context: &Context, rate: f64) -> Result<Vec<String>> {
    let wrong = || LabError::Invalid("frequency: params.run must be an array of words".into());
    let words = context.params.get("run").and_then(toml::Value::as_array).ok_or_else(wrong)?;
    let seconds = format!("{}", context.seconds);
    let fill = |word: &toml::Value| {
        let word = word.as_str()?.replace("{seconds}", &seconds).replace("{full_rate}", &format!("{rate:.0}"));
        Some(word)
    };
    words.iter().map(|word| fill(word).ok_or_else(wrong)).collect()
}

fn measure(rig: &dyn Rig, context: &Context, argv: &[String], readings: &mut Readings) -> Result<()> {
    let exits_per = context.params.get("exits_per").and_then(toml::Value::as_str);
    let rest = context.params.get("device_mw").and_then(toml::Value::as_integer).map(|rest| rest as f64);
    let limit = Duration::from_secs_f64(context.seconds + PATIENCE);
    let (before, exits_before) = (snapshot(rig)?, if exits_per.is_some() { exits(rig)? } else { 0.0 });
    let jobs: Vec<Box<dyn Job>> = context
        .guests
        .iter()
        .map(|guest| rig.start(Target::Guest(*guest), Command::new(argv.iter().cloned()).within(limit)))
        .collect::<Result<_>>()?;
    let mut printed = Vec::new();
    for job in jobs {
        let outcome = job.wait()?;
        if !outcome.ok() {
            return Err(unmet(format!("the load failed: {}", String::from_utf8_lossy(&outcome.stderr).trim())));
        }
        printed.push(Printed::parse(&outcome.text()).map_err(|error| unmet(error.to_string()))?);
    }
    let (after, exits_after) = (snapshot(rig)?, if exits_per.is_some() { exits(rig)? } else { 0.0 });
    let spent = spent(&before, &after)?;
    let exits_rate = (exits_after - exits_before) / spent.seconds;
    // Of several guests: throughputs add up, of latencies the mean is given.
    for figure in &printed[0].figures {
        let all: Vec<f64> = printed.iter().filter_map(|one| one.figure(&figure.metric, "").ok()).collect();
        let sum: f64 = all.iter().sum();
        let better = better(&figure.metric);
        let value = if better == Higher && figure.unit != "ratio" { sum } else { sum / all.len() as f64 };
        readings.push(&figure.metric, &figure.unit, better, value);
        if exits_per == Some(figure.metric.as_str()) {
            readings.push("exits_per_work", "1", Lower, exits_rate / value);
        }
        if context.params.get("per_energy").and_then(toml::Value::as_str) == Some(figure.metric.as_str()) {
            readings.push("per_energy", "1/mJ", Higher, value / spent.power_mw);
            if let Some(rest) = rest {
                readings.push("per_device_energy", "1/mJ", Higher, value / (spent.power_mw + rest));
            }
        }
    }
    readings.push("power", "mW", Lower, spent.power_mw);
    readings.push("level", "ratio", Lower, spent.level);
    readings.push("transitions", "1/s", Lower, spent.transitions);
    Ok(())
}

/// Of the changes of capacity and level under a vCPU that ran, the share that its guest heard of at a tick only.
fn levels(before: &Value, after: &Value, readings: &mut Readings) {
    let grown = |key| status::sum_of(&after["pcpus"], key) - status::sum_of(&before["pcpus"], key);
    let (told, late) = (grown("levels_told"), grown("levels_late"));
    if told + late > 0.0 {
        readings.push("levels_late", "%", Lower, 100.0 * late / (told + late));
    }
}

/// The direction of a load's metric; figures that the catalogue does not know are good when they are high.
fn better(metric: &str) -> Better {
    let known = catalog::LOADS.iter().find_map(|load| load.metric(metric));
    if known.is_some_and(|metric| metric.better == catalog::Better::Lower) { Lower } else { Higher }
}

/// What the emulated CPUs did between two snapshots.
#[derive(Debug, PartialEq)]
struct Spent {
    seconds: f64,
    /// Mean power of all CPUs, mW.
    power_mw: f64,
    /// Mean speed of the busy time, 0 to 1 of the fastest CPU's.
    level: f64,
    /// Changes of frequency per second.
    transitions: f64,
}

fn spent(before: &Snapshot, after: &Snapshot) -> Result<Spent> {
    let seconds = after.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
    if seconds <= 0.0 || before.cpus.len() != after.cpus.len() {
        return Err(unmet("the emulation was started anew while the load ran"));
    }
    let (mut energy, mut transitions, mut busy, mut work) = (0.0, 0.0, 0.0, 0.0);
    for (then, now) in before.cpus.iter().zip(&after.cpus) {
        energy += now.energy_uj - then.energy_uj;
        transitions += now.transitions.saturating_sub(then.transitions) as f64;
        let fastest = now.khz_of_points.last().copied().unwrap_or(1).max(1);
        for ((then, to), khz) in then.busy_ns.iter().zip(&now.busy_ns).zip(&now.khz_of_points) {
            let time = to.saturating_sub(*then) as f64;
            busy += time;
            work += time * f64::from(now.capacity) / 1024.0 * f64::from(*khz) / f64::from(fastest);
        }
    }
    let level = if busy > 0.0 { work / busy } else { 0.0 };
    Ok(Spent { seconds, power_mw: energy / 1e3 / seconds, level, transitions: transitions / seconds })
}

/// All VM exits until now, from the probe.
fn exits(rig: &dyn Rig) -> Result<f64> {
    let text = shell(rig, Target::Host, "entrain-load probe --json")?;
    let all: Value = serde_json::from_str(&text).map_err(|error| unmet(format!("no JSON ({error}): {text}")))?;
    Ok(all["vms"].as_array().into_iter().flatten().filter_map(|vm| vm["counters"]["exits"].as_f64()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_cpufreq_emulation::snapshot::Cpu;

    fn at(ns: u64, busy: [u64; 2], energy: f64) -> Snapshot {
        let cpu = Cpu {
            capacity: 512,
            khz_of_points: vec![500, 1000],
            busy_ns: busy.to_vec(),
            transitions: ns / 1_000_000_000,
            energy_uj: energy,
            ..Cpu::default()
        };
        Snapshot { at_ns: ns, cpus: vec![cpu], ..Snapshot::default() }
    }

    #[test]
    fn power_and_level_are_of_the_time_between() {
        let spent = spent(&at(1_000_000_000, [5, 0], 100.0), &at(3_000_000_000, [105, 300], 4100.0)).unwrap();
        // 100 ns at a quarter and 300 ns at half of the fastest CPU's speed.
        assert_eq!(spent, Spent { seconds: 2.0, power_mw: 2.0, level: 0.4375, transitions: 1.0 });
    }

    #[test]
    fn directions_are_the_catalogue_s() {
        assert_eq!((better("frame_p99"), better("frames_per_s"), better("unheard_of")), (Lower, Higher, Higher));
    }
}
