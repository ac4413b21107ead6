//! Loads in the guests, seen by the daemon on the host: who ran, who waited, and in the middle of what the host took a
//! vCPU off its pCPU.
//!
//! `params`: `loads`, one command (an array of words) for each guest of the configuration; a daemon must run on the host,
//! which the arm sets up. `weights`, optional: the guests' CPU weights, in units of 100; each VM's process then is in a cgroup
//! of that `cpu.weight` for as long. The fairness index divides by them.

use std::time::Duration;

use serde_json::Value;

use super::product::{shell, unmet};
use super::{Context, Samples, Scenario};
use crate::experiment::Better::{Higher, Lower};
use crate::machine::{Command, Target};
use crate::runner::{Job, Rig};
use crate::{LabError, Result};

/// See the module.
pub(super) struct Watched;

/// Time for the loads to come up, before they are looked at.
const SETTLE: Duration = Duration::from_millis(500);
/// The loads go on for a while after the last look, so that none ends before it.
const MARGIN: f64 = 3.0;

impl Scenario for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, samples: &mut Samples) -> Result<()> {
        let loads = loads(context)?;
        let weights = weights(context, loads.len())?;
        let _groups = context.params.contains_key("weights").then(|| Groups::make(rig, &weights)).transpose()?;
        let jobs: Vec<Box<dyn Job>> = context
            .guests
            .iter()
            .zip(&loads)
            .map(|(&guest, argv)| {
                let argv = argv.iter().map(|word| word.replace("{seconds}", &format!("{}", context.seconds + MARGIN)));
                rig.start(Target::Guest(guest), Command::new(argv).within(Duration::from_secs(120)))
            })
            .collect::<Result<_>>()?;
        std::thread::sleep(SETTLE);
        let before = status(rig)?;
        std::thread::sleep(Duration::from_secs_f64(context.seconds));
        let after = status(rig)?;
        for job in jobs {
            let outcome = job.wait()?;
            if !outcome.ok() {
                return Err(unmet(format!("a load failed: {}", String::from_utf8_lossy(&outcome.stderr).trim())));
            }
        }
        figures(&before, &after, &weights, samples)
    }
}

/// The VMs' processes in cgroups of their own; back in the root once this is dropped.
struct Groups<'a>(&'a dyn Rig);

impl<'a> Groups<'a> {
    fn make(rig: &'a dyn Rig, weights: &[f64]) -> Result<Self> {
        let mut vms = status(rig)?["vms"].as_array().cloned().unwrap_or_default();
        vms.sort_by_key(|vm| vm["name"].as_str().unwrap_or_default().to_owned());
        if vms.len() != weights.len() {
            return Err(unmet(format!("weights for {} guests, and {} VMs run", weights.len(), vms.len())));
        }
        let groups = Self(rig);
        shell(rig, Target::Host, "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control")?;
        for (number, (vm, weight)) in vms.iter().zip(weights).enumerate() {
            let line = format!(
                "d=/sys/fs/cgroup/watched{number}; mkdir -p $d && echo {} > $d/cpu.weight && echo {} > $d/cgroup.procs",
                100.0 * weight,
                vm["pid"],
            );
            shell(rig, Target::Host, &line)?;
        }
        Ok(groups)
    }
}

impl Drop for Groups<'_> {
    fn drop(&mut self) {
        let line = "for d in /sys/fs/cgroup/watched*; do \
                    for p in $(cat $d/cgroup.procs); do echo $p > /sys/fs/cgroup/cgroup.procs; done; rmdir $d; done";
        if let Err(error) = shell(self.0, Target::Host, line) {
            tracing::warn!("the VMs' cgroups are left behind: {error}");
        }
    }
}

/// `params.loads`.
fn loads(context: &Context) -> Result<Vec<Vec<String>>> {
    let wrong = || LabError::Invalid("watched: params.loads must be an array of commands, one a guest".into());
    let list = context.params.get("loads").and_then(toml::Value::as_array).ok_or_else(wrong)?;
    let words = |load: &toml::Value| -> Option<Vec<String>> {
        load.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let loads: Vec<Vec<String>> = list.iter().map(|load| words(load).ok_or_else(wrong)).collect::<Result<_>>()?;
    if loads.len() != context.guests.len() { Err(wrong()) } else { Ok(loads) }
}

/// `params.weights`.
fn weights(context: &Context, guests: usize) -> Result<Vec<f64>> {
    let Some(list) = context.params.get("weights") else { return Ok(vec![1.0; guests]) };
    let weights: Option<Vec<f64>> =
        list.as_array().and_then(|list| list.iter().map(|w| w.as_integer().map(|w| w as f64)).collect());
    match weights {
        Some(weights) if weights.len() == guests && weights.iter().all(|w| *w > 0.0) => Ok(weights),
        _ => Err(LabError::Invalid("watched: params.weights must be one positive integer a guest".into())),
    }
}

fn status(rig: &dyn Rig) -> Result<Value> {
    let text = shell(rig, Target::Host, "entrain top --once --json")?;
    let all: Value =
        serde_json::from_str(&text).map_err(|error| unmet(format!("entrain top: no JSON ({error}): {text}")))?;
    Ok(all["status"].clone())
}

/// Sums of a VM's vCPUs.
fn sum(vm: &Value, key: &str) -> f64 {
    vm["vcpus"].as_array().into_iter().flatten().filter_map(|vcpu| vcpu[key].as_f64()).sum()
}

fn figures(before: &Value, after: &Value, weights: &[f64], samples: &mut Samples) -> Result<()> {
    let seconds = (after["now_ns"].as_f64().unwrap_or(0.0) - before["now_ns"].as_f64().unwrap_or(0.0)) / 1e9;
    let vms = |status: &Value| status["vms"].as_array().cloned().unwrap_or_default();
    let (then, now) = (vms(before), vms(after));
    // By name, which is the order of the experiment's guests.
    let mut pairs: Vec<(&Value, &Value)> =
        now.iter().filter_map(|vm| Some((then.iter().find(|old| old["pid"] == vm["pid"])?, vm))).collect();
    pairs.retain(|(old, new)| sum(new, "run_ns") > sum(old, "run_ns"));
    pairs.sort_by_key(|(_, new)| new["name"].as_str().unwrap_or_default().to_owned());
    if pairs.len() != weights.len() || seconds <= 0.0 {
        return Err(unmet(format!("the daemon saw {} of {} guests run", pairs.len(), weights.len())));
    }
    let grown = |key: &str| -> f64 { pairs.iter().map(|(old, new)| sum(new, key) - sum(old, key)).sum() };
    let (preemptions, read) = (grown("preemptions"), grown("samples"));
    samples.push("preemptions", "1/s", Lower, preemptions / seconds);
    samples.push("switches", "1/s", Lower, grown("switches") / seconds);
    if read > 0.0 {
        samples.push("preempted_in_cs", "%", Lower, 100.0 * grown("preemptions_cs") / read);
        samples.push("preempted_in_cs_rate", "1/s", Lower, grown("preemptions_cs") / seconds);
    }
    let ran: Vec<f64> = pairs.iter().map(|(old, new)| sum(new, "run_ns") - sum(old, "run_ns")).collect();
    let all: f64 = ran.iter().sum();
    samples.push("share_first", "%", Lower, 100.0 * ran[0] / all);
    samples.push("fairness", "1", Higher, jain(&ran, weights));
    samples.push("ready", "%", Lower, 100.0 * grown("ready_ns") / (grown("ready_ns") + all));
    Ok(())
}

/// Jain's index of the time that each got by its weight: 1 when all got their share, 1/n when one got all.
fn jain(ran: &[f64], weights: &[f64]) -> f64 {
    let parts: Vec<f64> = ran.iter().zip(weights).map(|(ran, weight)| ran / weight).collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    sum * sum / (parts.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(now: u64, vms: &[(&str, u64, u64)]) -> Value {
        let vms: Vec<Value> = vms
            .iter()
            .enumerate()
            .map(|(pid, (name, run, cs))| {
                serde_json::json!({"name": name, "pid": pid, "vcpus": [
                    {"run_ns": run, "ready_ns": run, "preemptions": 2 * cs, "samples": 2 * cs, "preemptions_cs": cs, "switches": cs},
                ]})
            })
            .collect();
        serde_json::json!({"now_ns": now, "vms": vms})
    }

    #[test]
    fn figures_are_differences() {
        let before = status(0, &[("b", 100, 10), ("a", 100, 10)]);
        let after = status(2_000_000_000, &[("b", 400, 20), ("a", 200, 10)]);
        let mut samples = Samples::default();
        figures(&before, &after, &[1.0, 3.0], &mut samples).unwrap();
        let value = |name: &str| samples.0.iter().find(|s| s.metric == name).unwrap().value;
        assert_eq!(value("preempted_in_cs"), 50.0);
        assert_eq!(value("preemptions"), 10.0);
        assert_eq!(value("share_first"), 25.0, "a comes first by its name");
        assert_eq!(value("fairness"), 1.0, "b has three times a's weight and time");
        assert!(figures(&before, &after, &[1.0], &mut Samples::default()).is_err());
    }

    #[test]
    fn jain_s_index_spans_its_range() {
        assert_eq!(jain(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0], &[1.0, 1.0]), 0.5);
    }
}
