//! What the daemon on the host tells of itself (`entrain top --once --json`), and the figures that come out of two looks.

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::{Command, Target};
use serde_json::Value;

use super::product::{shell, unmet};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// The kernel's counting of the BPF programs' time, switched on for as long as this lives. It costs two clock readings a
/// run, so that nothing else should be measured meanwhile.
pub(super) struct BpfStats<'a>(&'a dyn Rig);

impl<'a> BpfStats<'a> {
    pub(super) fn on(rig: &'a dyn Rig) -> Result<Self> {
        shell(rig, Target::Host, "echo 1 > /proc/sys/kernel/bpf_stats_enabled")?;
        Ok(Self(rig))
    }
}

impl Drop for BpfStats<'_> {
    fn drop(&mut self) {
        if let Err(error) = shell(self.0, Target::Host, "echo 0 > /proc/sys/kernel/bpf_stats_enabled") {
            tracing::warn!("the kernel goes on counting the BPF programs' time: {error}");
        }
    }
}

/// What the daemon says now; `None` where the arm has none.
pub(super) fn look(rig: &dyn Rig) -> Result<Option<Value>> {
    if !rig.run(Target::Host, Command::shell("test -S /run/entrain/host.sock"))?.ok() {
        return Ok(None);
    }
    // The rows are about an interval, the status is not.
    let text = shell(rig, Target::Host, "entrain top --once --json --interval 0.1")?;
    let mut all: Value =
        serde_json::from_str(&text).map_err(|error| unmet(format!("entrain top: no JSON ({error}): {text}")))?;
    Ok(Some(all["status"].take()))
}

/// Sum over the entries of a list.
pub(super) fn sum_of(list: &Value, key: &str) -> f64 {
    list.as_array().into_iter().flatten().filter_map(|entry| entry[key].as_f64()).sum()
}

/// Seconds of the daemon's clock between two looks.
pub(super) fn seconds(before: &Value, after: &Value) -> f64 {
    (after["now_ns"].as_f64().unwrap_or(0.0) - before["now_ns"].as_f64().unwrap_or(0.0)) / 1e9
}

/// A VM of both looks, as it was and as it is.
pub(super) type Pair<'a> = (&'a Value, &'a Value);

/// The VMs that ran between two looks, by name, which is the order of the experiment's guests.
pub(super) fn vms<'a>(before: &'a Value, after: &'a Value) -> Vec<Pair<'a>> {
    let list = |status: &'a Value| status["vms"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut pairs: Vec<Pair<'a>> = list(after)
        .iter()
        .filter_map(|vm| Some((list(before).iter().find(|old| old["pid"] == vm["pid"])?, vm)))
        .filter(|(old, new)| sum(new, "run_ns") > sum(old, "run_ns"))
        .collect();
    pairs.sort_by_key(|(_, new)| new["name"].as_str().unwrap_or_default().to_owned());
    pairs
}

/// What a look tells of who runs, for the message of a failure.
pub(super) fn brief(status: &Value) -> String {
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let mut words: Vec<String> = Vec::new();
    for vm in list(status, "vms") {
        words.push(format!("{} (pid {})", vm["name"].as_str().unwrap_or("?"), vm["pid"]));
        for vcpu in list(&vm, "vcpus") {
            words.push(format!("thread {} {} ran {} ns", vcpu["tid"], vcpu["state"], vcpu["run_ns"]));
        }
    }
    let switch = list(status, "programs").into_iter().find(|program| program["name"] == "observe_switch");
    words.extend(switch.map(|program| format!("observe_switch missed {}", program["missed"])));
    words.join(", ")
}

/// Sum of a VM's vCPUs.
pub(super) fn sum(vm: &Value, key: &str) -> f64 {
    sum_of(&vm["vcpus"], key)
}

/// The program that the daemon calls many times a second: one pass over all vCPUs, whatever happens.
const TICK: &str = "tick";

/// What the BPF programs cost, by the kernel's own counting: all together, per event, and each that ran often.
pub(super) fn bpf(before: &Value, after: &Value, readings: &mut Readings) {
    let list = |status: &Value| status["programs"].as_array().cloned().unwrap_or_default();
    let then = list(before);
    let old = |name: &Value, key: &str| -> f64 {
        then.iter().find(|program| program["name"] == *name).and_then(|program| program[key].as_f64()).unwrap_or(0.0)
    };
    let seconds = seconds(before, after);
    let (mut all_runs, mut all_ns, mut ticks_ns) = (0.0, 0.0, 0.0);
    for program in list(after) {
        let runs = program["runs"].as_f64().unwrap_or(0.0) - old(&program["name"], "runs");
        let ns = program["run_ns"].as_f64().unwrap_or(0.0) - old(&program["name"], "run_ns");
        all_runs += runs;
        all_ns += ns;
        if program["name"] == TICK {
            ticks_ns += ns;
        }
        // Fewer say nothing of an average.
        if runs >= 100.0 && ns > 0.0 {
            let name = format!("{}_ns", program["name"].as_str().unwrap_or("unnamed"));
            readings.push(&name, "ns", Lower, ns / runs);
        }
    }
    readings.push("bpf_time", "ms/s", Lower, all_ns / 1e6 / seconds);
    readings.push("bpf_runs", "1/s", Lower, all_runs / seconds);
    let pcpus = |status: &Value, key: &str| -> f64 {
        status["pcpus"].as_array().into_iter().flatten().filter_map(|pcpu| pcpu[key].as_f64()).sum()
    };
    let grown = |key: &str| pcpus(after, key) - pcpus(before, key);
    let events = grown("switches") + grown("idles");
    readings.push("vcpu_switches", "1/s", Lower, grown("switches") / seconds);
    readings.push("idle_transitions", "1/s", Lower, grown("idles") / seconds);
    if events > 0.0 {
        readings.push("bpf_per_event", "ns", Lower, (all_ns - ticks_ns) / events);
    }
}

/// What the host's scheduler did with KVM's directed yields; nothing in mode `observe`.
pub(super) fn yields(before: &Value, after: &Value, readings: &mut Readings) {
    let seconds = seconds(before, after);
    let (Some(then), Some(now)) = (before["schedule"].as_object(), after["schedule"].as_object()) else { return };
    for (key, value) in now.iter().filter(|(key, _)| key.starts_with("yields_")) {
        let old = then.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let better = if key == "yields_honoured" { Higher } else { Lower };
        readings.push(key, "1/s", better, (value.as_f64().unwrap_or(0.0) - old) / seconds);
    }
}

/// CPU time of the daemon until now, s, and its memory, MiB.
pub(super) fn daemon(rig: &dyn Rig, status: &Value) -> Result<(f64, f64)> {
    let pid = &status["pid"];
    let line = format!(
        "awk '{{ print ($14 + $15) / 100 }}' /proc/{pid}/stat; awk '/VmRSS/ {{ print $2 / 1024 }}' /proc/{pid}/status"
    );
    let text = shell(rig, Target::Host, &line)?;
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [cpu, memory] = numbers[..] else { return Err(unmet(format!("no figures of the daemon: {text}"))) };
    Ok((cpu, memory))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn costs_are_differences_by_program_and_by_event() {
        let look = |now: u64, runs: u64, ns: u64, switches: u64| {
            json!({
                "now_ns": now,
                "programs": [{"name": "observe_switch", "runs": runs, "run_ns": ns}, {"name": "rare", "runs": 5, "run_ns": 7},
                             {"name": "tick", "runs": runs, "run_ns": 3 * ns}],
                "pcpus": [{"switches": switches, "idles": switches}],
            })
        };
        let mut readings = Readings::default();
        bpf(&look(0, 100, 1_000, 0), &look(2_000_000_000, 1_100, 401_000, 1_000), &mut readings);
        let value = |name: &str| readings.iter().find(|one| one.metric == name).map(|one| one.value);
        assert_eq!(value("observe_switch_ns"), Some(400.0));
        assert_eq!(value("rare_ns"), None, "too few runs");
        assert_eq!((value("bpf_time"), value("tick_ns")), (Some(0.8), Some(1200.0)));
        assert_eq!(value("bpf_per_event"), Some(200.0));
    }

    #[test]
    fn yields_are_told_only_by_a_scheduler() {
        let look =
            |now: u64, honoured: u64| json!({"now_ns": now, "schedule": {"yields_honoured": honoured, "switches": 9}});
        let mut readings = Readings::default();
        yields(&look(0, 10), &look(1_000_000_000, 30), &mut readings);
        assert_eq!((readings.iter().count(), readings.iter().next().unwrap().value), (1, 20.0));
        let mut none = Readings::default();
        yields(&json!({"schedule": null}), &json!({"schedule": null}), &mut none);
        assert!(none.into_vec().is_empty());
    }
}
