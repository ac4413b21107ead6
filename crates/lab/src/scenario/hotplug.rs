//! Drains of every kind against busy CPUs, while isolated CPUs go off and on: is anything in the kernel's log?
//!
//! `params`: `cpus`, those that go and come. `seconds` is how long. Needs two CPUs that stay.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{Result, cancel};
use serde_json::Value;

use super::interface::{Context, Scenario};
use super::isolated::OnCpus;
use super::product::{shell, unmet};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Hotplug;

/// What never belongs into the kernel's log.
const BAD: &str = "WARNING:|BUG:|Oops:|lockup -|detected stall|blocked for more|Bad page";
/// Lines told of the first thing found.
const TOLD: usize = 20;
/// Time that the loops get to end, s.
const PATIENCE: f64 = 120.0;
/// Each of these goes round until the time is over. A cgroup at its limit drains the stocks of all CPUs in each turn; a task
/// that holds a CPU is moved when that goes, and started anew.
const LOOPS: [&str; 7] = [
    "entrain-load isolated hold --cpu 1 --seconds 3 --touch 5 2>/dev/null || sleep 0.1",
    "entrain-load isolated hold --cpu 2 --seconds 3 --touch 5 2>/dev/null || sleep 0.1",
    "entrain-load isolated hold --cpu 3 --seconds 3 --touch 5 2>/dev/null || sleep 0.1",
    "entrain-load isolated drain mbind >/dev/null",
    "echo 1 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory",
    "for s in filp kmalloc-64 maple_node vm_area_struct; do echo 1 > /sys/kernel/slab/$s/shrink; done",
    "sh -c 'echo 0 > /sys/fs/cgroup/stress/cgroup.procs; dd if=/dev/zero of=/tmp/big bs=1M count=40 2>/dev/null; \
     rm -f /tmp/big'; echo 8M > /sys/fs/cgroup/stress/memory.reclaim 2>/dev/null",
];

impl Scenario for Hotplug {
    fn name(&self) -> &'static str {
        "hotplug"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let OnCpus { cpus } = context.params(self.name())?;
        let set_up = "mkdir -p /sys/fs/cgroup/stress && echo +memory > /sys/fs/cgroup/cgroup.subtree_control && \
                      echo 24M > /sys/fs/cgroup/stress/memory.max && dmesg -c >/dev/null";
        shell(rig, Target::Host, set_up)?;
        let uptime: f64 = shell(rig, Target::Host, "cut -d' ' -f1 /proc/uptime")?.parse().unwrap_or_default();
        let until = (uptime + context.seconds).ceil();
        let limit = Duration::from_secs_f64(context.seconds + PATIENCE);
        let mut loops = Vec::new();
        for body in LOOPS {
            let line = format!("while [ $(cut -d. -f1 /proc/uptime) -lt {until} ]; do {body}; done");
            loops.push(rig.start(Target::Host, Command::shell(&line).within(limit))?);
        }
        let begun = rig.now();
        let (mut turns, mut bad) = (0.0, Vec::new());
        while (rig.now() - begun).as_secs_f64() < context.seconds {
            cancel::check()?;
            for cpu in &cpus.0 {
                let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
                shell(rig, Target::Host, &format!("echo 0 > {file} && echo 1 > {file}"))?;
            }
            turns += 1.0;
            bad.extend(look(rig)?);
        }
        for one in loops {
            one.wait()?;
        }
        bad.extend(look(rig)?);
        shell(rig, Target::Host, "rmdir /sys/fs/cgroup/stress 2>/dev/null; true")?;
        if !bad.is_empty() {
            tracing::warn!("the kernel's log, CPUs {cpus}: {}", bad.join("\n"));
        }
        readings.push("turns", "1", Higher, turns);
        readings.push("warnings", "1", Lower, bad.len() as f64);
        counters(rig, readings)
    }
}

/// What is bad in the kernel's log since the last look, with some lines of what follows.
fn look(rig: &dyn Rig) -> Result<Vec<String>> {
    let text = shell(rig, Target::Host, &format!("dmesg -c | grep -E -A {TOLD} '{BAD}'; true"))?;
    let found = text.lines().filter(|line| BAD.split('|').any(|bad| line.contains(bad))).count();
    Ok(if found == 0 { Vec::new() } else { vec![text; found] })
}

/// What the livepatch module did, where it is loaded.
fn counters(rig: &dyn Rig, readings: &mut Readings) -> Result<()> {
    let text = shell(rig, Target::Host, "entrain isolate qpw status --json")?;
    let status: Value = serde_json::from_str(&text).map_err(|error| unmet(format!("no JSON ({error}): {text}")))?;
    for counter in status["counters"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (counter["name"].as_str(), counter["value"].as_f64()) {
            readings.push(name, "1", if name == "n_work" { Lower } else { Higher }, value);
        }
    }
    Ok(())
}
