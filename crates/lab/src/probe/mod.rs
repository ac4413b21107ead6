//! What happened between two snapshots of `entrain-load probe`, as rates and shares.
//!
//! | reading | unit | from |
//! |---|---|---|
//! | `context_switches` | 1/s | host: `/proc/stat` |
//! | `ipi_reschedule`, `ipi_call`, `ipi_tlb` | 1/s | host: `/proc/interrupts` |
//! | `exits`, `exits_halt`, `exits_wfe`, `exits_io`, … | 1/s | KVM's counters, all VMs that lived the whole time |
//! | `yields_directed`, `yields_taken` | 1/s | KVM's directed yields, attempted and successful (x86) |
//! | `vcpu_wait` | ratio | of the time that vCPU threads wanted to run, the share that they waited for a CPU |
//! | `vcpu_runs` | 1/s | times that a vCPU thread was put on a CPU |
//! | `host_system` | ratio | of the CPUs' time, what the host's kernel took for itself, guests' time not in it |
//! | `scx_enabled` | 1 | a BPF scheduler was loaded at the end (1) or not (0) |
//! | `guest_steal` | ratio | guest: of the time that its CPUs were not idle, the share that was stolen |
//! | `guest_system` | ratio | guest: of the time that its CPUs ran, the share in its kernel |
//! | `guest_context_switches`, `guest_ipi_…` | 1/s | guest: as on the host |

use entrain_workloads::probe::{Counters, CpuTimes, Snapshot, Vm};

use crate::metric::Better;
use crate::reading::Reading;

/// Names of the probes that experiments may ask for: `host` counts on the host machine, `guests` in each guest of the
/// configuration, whose readings are averaged.
pub const PROBES: &[&str] = &["host", "guests"];

/// The command that takes a snapshot, in host machine and guests alike.
pub const COMMAND: [&str; 3] = ["entrain-load", "probe", "--json"];

/// Two snapshots can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The output of `entrain-load probe` is none.
    #[error("entrain-load probe printed what is no snapshot: {0}")]
    Form(#[from] serde_json::Error),
    /// The machine's programs are of another version than the lab.
    #[error(
        "the snapshot has form {found}, this lab knows {known}: build entrain-load and entrain from the same sources"
    )]
    Schema {
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The counters began anew.
    #[error("the machine was started anew between the two snapshots")]
    Restarted,
}

/// Reads what `entrain-load probe --json` printed.
pub fn parse(output: &str) -> Result<Snapshot, ProbeError> {
    let snapshot: Snapshot = serde_json::from_str(output.trim())?;
    match snapshot.schema {
        entrain_workloads::probe::SCHEMA => Ok(snapshot),
        found => Err(ProbeError::Schema { found, known: entrain_workloads::probe::SCHEMA }),
    }
}

/// KVM's counters that are shown, under names that both architectures share where they mean the same.
const EXITS: &[(&str, &[&str])] = &[
    ("exits", &["exits"]),
    ("exits_halt", &["halt_exits", "wfi_exit_stat"]),
    ("exits_wfe", &["wfe_exit_stat"]),
    ("exits_hypercall", &["hypercalls", "hvc_exit_stat"]),
    ("exits_io", &["io_exits", "mmio_exits", "mmio_exit_user", "mmio_exit_kernel"]),
    ("exits_irq", &["irq_exits"]),
    ("exits_signal", &["signal_exits"]),
    ("irqs_injected", &["irq_injections"]),
    ("yields_directed", &["directed_yield_attempted"]),
    ("yields_taken", &["directed_yield_successful"]),
    ("preemptions_told", &["preemption_reported"]),
];

/// What the host machine did between two snapshots.
pub fn host(before: &Snapshot, after: &Snapshot) -> Result<Vec<Reading>, ProbeError> {
    let seconds = seconds(before, after)?;
    let mut readings = common("", before, after, seconds);
    let pairs: Vec<(&Vm, &Vm)> =
        (after.vms.iter()).filter_map(|now| Some((before.vms.iter().find(|then| then.id == now.id)?, now))).collect();
    for (name, sources) in EXITS {
        let there = |counters: &Counters| sources.iter().any(|source| counters.contains_key(*source));
        if pairs.iter().any(|(then, now)| there(&then.counters) && there(&now.counters)) {
            let total: u64 = pairs
                .iter()
                .flat_map(|(then, now)| sources.iter().map(|source| grown(&then.counters, &now.counters, source)))
                .sum();
            let better = if *name == "yields_taken" { Better::Higher } else { Better::Lower };
            readings.push(Reading::new(*name, "1/s", better, total as f64 / seconds));
        }
    }
    readings.extend(vcpus(&pairs, seconds));
    let (then, now) = (&before.cpu, &after.cpu);
    let system = now.system_ns.saturating_sub(then.system_ns) as f64;
    // `user_ns` has the guests' time in it.
    let all = |cpu: &CpuTimes| cpu.user_ns + cpu.system_ns + cpu.idle_ns + cpu.steal_ns;
    let passed = all(now).saturating_sub(all(then)) as f64;
    if passed > 0.0 {
        readings.push(Reading::new("host_system", "ratio", Better::Lower, system / passed));
    }
    if let Some(scx) = &after.sched_ext {
        let value = f64::from(u8::from(scx.state == "enabled"));
        readings.push(Reading::new("scx_enabled", "1", Better::Higher, value));
    }
    Ok(readings)
}

/// What a guest saw between two snapshots.
pub fn guest(before: &Snapshot, after: &Snapshot) -> Result<Vec<Reading>, ProbeError> {
    let seconds = seconds(before, after)?;
    let mut readings = common("guest_", before, after, seconds);
    let (then, now) = (&before.cpu, &after.cpu);
    let stolen = now.steal_ns.saturating_sub(then.steal_ns) as f64;
    let ran = (now.user_ns + now.system_ns).saturating_sub(then.user_ns + then.system_ns) as f64;
    if stolen + ran > 0.0 {
        readings.push(Reading::new("guest_steal", "ratio", Better::Lower, stolen / (stolen + ran)));
    }
    if ran > 0.0 {
        let system = now.system_ns.saturating_sub(then.system_ns) as f64;
        readings.push(Reading::new("guest_system", "ratio", Better::Lower, system / ran));
    }
    Ok(readings)
}

fn seconds(before: &Snapshot, after: &Snapshot) -> Result<f64, ProbeError> {
    match after.at_ns.checked_sub(before.at_ns) {
        Some(ns) if ns > 0 && after.context_switches >= before.context_switches => Ok(ns as f64 / 1e9),
        _ => Err(ProbeError::Restarted),
    }
}

/// Context switches and interrupts between CPUs.
fn common(prefix: &str, before: &Snapshot, after: &Snapshot, seconds: f64) -> Vec<Reading> {
    let rate =
        |name: &str, count: u64| Reading::new(format!("{prefix}{name}"), "1/s", Better::Lower, count as f64 / seconds);
    let mut readings = vec![rate("context_switches", after.context_switches - before.context_switches)];
    for (kind, name) in [("reschedule", "ipi_reschedule"), ("call", "ipi_call"), ("tlb", "ipi_tlb")] {
        if after.interrupts.contains_key(kind) {
            readings.push(rate(name, grown(&before.interrupts, &after.interrupts, kind)));
        }
    }
    readings
}

fn vcpus(pairs: &[(&Vm, &Vm)], seconds: f64) -> Vec<Reading> {
    let (mut ran, mut waited, mut runs) = (0, 0, 0);
    for (then, now) in pairs {
        for vcpu in &now.vcpus {
            let Some(earlier) = then.vcpus.iter().find(|earlier| earlier.tid == vcpu.tid) else { continue };
            ran += vcpu.run_ns.saturating_sub(earlier.run_ns);
            waited += vcpu.wait_ns.saturating_sub(earlier.wait_ns);
            runs += vcpu.runs.saturating_sub(earlier.runs);
        }
    }
    if ran + waited == 0 {
        return Vec::new();
    }
    let share = waited as f64 / (ran + waited) as f64;
    vec![
        Reading::new("vcpu_wait", "ratio", Better::Lower, share),
        Reading::new("vcpu_runs", "1/s", Better::Lower, runs as f64 / seconds),
    ]
}

fn grown(before: &Counters, after: &Counters, name: &str) -> u64 {
    let get = |counters: &Counters| counters.get(name).copied().unwrap_or(0);
    get(after).saturating_sub(get(before))
}

#[cfg(test)]
mod tests;
