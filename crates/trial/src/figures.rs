//! What the host knows of a window: the difference of two looks at the daemon's counters and the kernel's.

use std::collections::HashMap;

use entrain_host::status::{Status, VcpuStatus, WaitCause};
use entrain_system::Root;

/// What is measured, in the order of reports.
pub(crate) const FIGURES: [Figure; 9] = [
    Figure { id: "ready_percent", name: "vCPUs ready, without a pCPU (% of their time)", lower_is_better: true },
    Figure { id: "worst_ready_percent", name: "the same, of the VM that waits most", lower_is_better: true },
    Figure { id: "wake_us", name: "wake-up of a vCPU until it runs (µs, mean)", lower_is_better: true },
    Figure { id: "run_percent", name: "vCPUs on a pCPU (% of their time)", lower_is_better: false },
    Figure { id: "switches", name: "context switches of the host (1/s)", lower_is_better: true },
    Figure { id: "preemptions", name: "vCPUs switched out while runnable (1/s)", lower_is_better: true },
    Figure { id: "holder_preemptions", name: "of those, in critical sections (1/s)", lower_is_better: true },
    Figure { id: "exits", name: "exits of vCPUs (1/s)", lower_is_better: true },
    Figure { id: "system_percent", name: "host's CPU time in the kernel (% of all pCPUs)", lower_is_better: true },
];

/// One measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// In JSON.
    pub(crate) id: &'static str,
    /// For people, with its unit.
    pub(crate) name: &'static str,
    pub(crate) lower_is_better: bool,
}

/// The kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kernel {
    switches: u64,
    /// Ticks of all CPUs in the kernel (system, interrupts), and in all.
    system: u64,
    all: u64,
    /// Of all vCPUs, where debugfs is mounted.
    exits: Option<u64>,
}

impl Kernel {
    /// As they are now.
    pub(crate) fn read(root: &Root) -> Self {
        let stat = root.text("proc/stat").unwrap_or_default();
        let line = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let cpu: Vec<u64> = line("cpu ").split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let of = |at: usize| cpu.get(at).copied().unwrap_or(0);
        Self {
            switches: line("ctxt ").trim().parse().unwrap_or(0),
            // user nice system idle iowait irq softirq steal; a guest's time is in user.
            system: of(2) + of(5) + of(6),
            all: cpu.iter().take(8).sum(),
            exits: root.parse("sys/kernel/debug/kvm/exits"),
        }
    }
}

/// The figures between two looks, by [`Figure::id`]; those that this host does not tell are left out.
pub(crate) fn between(before: (&Status, Kernel), now: (&Status, Kernel)) -> Vec<(&'static str, f64)> {
    let ((then, kernel_then), (now, kernel)) = (before, now);
    let seconds = now.now_ns.saturating_sub(then.now_ns) as f64 / 1e9;
    if seconds <= 0.0 {
        return Vec::new();
    }
    let shares = ready_shares(then, now);
    let old = vcpus(then);
    let pairs: Vec<(&VcpuStatus, &VcpuStatus)> =
        now.vms.iter().flat_map(|vm| &vm.vcpus).filter_map(|vcpu| Some((*old.get(&vcpu.tid)?, vcpu))).collect();
    let sum =
        |of: fn(&VcpuStatus) -> u64| pairs.iter().map(|(was, is)| of(is).saturating_sub(of(was)) as f64).sum::<f64>();
    let part = |ns: f64| 100.0 * ns / 1e9 / seconds / pairs.len().max(1) as f64;
    let mut all = Vec::new();
    if !pairs.is_empty() {
        all.push(("ready_percent", part(sum(|vcpu| vcpu.ready_ns))));
        all.push(("worst_ready_percent", 100.0 * shares.iter().copied().fold(0.0, f64::max)));
        all.extend(wake_us(then, now).map(|us| ("wake_us", us)));
        all.push(("run_percent", part(sum(|vcpu| vcpu.run_ns))));
        all.push(("preemptions", sum(|vcpu| vcpu.preemptions) / seconds));
        // Only guests with an agent let it be known.
        if sum(|vcpu| vcpu.samples) > 0.0 {
            all.push(("holder_preemptions", sum(|vcpu| vcpu.preemptions_cs) / seconds));
        }
    }
    all.push(("switches", kernel.switches.saturating_sub(kernel_then.switches) as f64 / seconds));
    if let (Some(was), Some(is)) = (kernel_then.exits, kernel.exits) {
        // A VM that ended took its count along.
        all.extend((is >= was).then(|| ("exits", (is - was) as f64 / seconds)));
    }
    let ticks = kernel.all.saturating_sub(kernel_then.all);
    if ticks > 0 {
        all.push(("system_percent", 100.0 * kernel.system.saturating_sub(kernel_then.system) as f64 / ticks as f64));
    }
    all
}

fn vcpus(status: &Status) -> HashMap<i32, &VcpuStatus> {
    status.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| (vcpu.tid, vcpu)).collect()
}

/// Of each VM, the part of its vCPUs' time in which they waited for a pCPU, 0 to 1.
pub(crate) fn ready_shares(then: &Status, now: &Status) -> Vec<f64> {
    let ns = now.now_ns.saturating_sub(then.now_ns) as f64;
    let old = vcpus(then);
    let share = |vm: &entrain_host::status::VmStatus| {
        let known: Vec<f64> = vm
            .vcpus
            .iter()
            .filter_map(|vcpu| Some(vcpu.ready_ns.saturating_sub(old.get(&vcpu.tid)?.ready_ns) as f64))
            .collect();
        (ns > 0.0 && !known.is_empty()).then(|| known.iter().sum::<f64>() / ns / known.len() as f64)
    };
    now.vms.iter().filter_map(share).collect()
}

/// The mean wait of vCPUs that were woken.
fn wake_us(then: &Status, now: &Status) -> Option<f64> {
    let sum = |status: &Status| {
        let woken = status.waits.iter().filter(|wait| wait.cause == WaitCause::Woken);
        woken.fold((0u64, 0u64), |(ns, waits), wait| (ns + wait.ns, waits + wait.waits))
    };
    let (was, is) = (sum(then), sum(now));
    let waits = is.1.checked_sub(was.1).filter(|waits| *waits > 0)?;
    Some(is.0.checked_sub(was.0)? as f64 / 1000.0 / waits as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;
    use serde_json::{Value, json};

    fn status(now_ns: u64, vcpus: &[(i32, u64)], waits: &[(u64, u64)]) -> Status {
        let vcpu = |&(tid, ready): &(i32, u64)| -> Value {
            json!({ "id": tid, "tid": tid, "state": "running", "since_ns": 0, "pcpu": 0, "run_ns": 2 * ready,
                "ready_ns": ready, "halted_ns": 0, "steal_ns": 0, "switches": 0, "preemptions": ready / 1000, "samples": 0,
                "preemptions_cs": 0, "preempt_count": 0, "boosts": 0, "instant": false, "paired": false, "util": 0,
                "runnable": 0 })
        };
        let vm = |one: &(i32, u64)| {
            json!({ "name": "x", "pid": one.0, "channel": "silent", "entitlement": 0, "scans": 0, "scanned_pages": 0,
                "vcpus": [vcpu(one)] })
        };
        let waits: Vec<Value> = waits
            .iter()
            .map(|(ns, n)| json!({ "tid": 1, "who": 0, "name": "i", "cause": "woken", "ns": ns, "waits": n }))
            .collect();
        let vms: Vec<Value> = vcpus.iter().map(vm).collect();
        serde_json::from_value(json!({ "schema": 1, "version": "0", "mode": "observe", "pid": 1, "now_ns": now_ns,
            "uptime_ns": 0, "pcpus": [], "vms": vms, "waits": waits,
            "work": { "ticks": 0, "tick_ns": 0, "discoveries": 0, "discovery_ns": 0, "pairing_ns": 0 } }))
        .expect("a status")
    }

    #[test]
    fn figures_are_of_the_window_and_of_vcpus_that_were_there_all_along() {
        let then = status(0, &[(1, 0), (2, 0)], &[(1_000, 1)]);
        let now = status(1_000_000_000, &[(1, 100_000_000), (2, 300_000_000), (3, 900_000_000)], &[(9_000, 5)]);
        let before = Kernel { switches: 100, system: 10, all: 100, exits: Some(5) };
        let after = Kernel { switches: 1100, system: 60, all: 300, exits: Some(2005) };
        let all: HashMap<_, _> = between((&then, before), (&now, after)).into_iter().collect();
        assert_eq!((all["ready_percent"], all["worst_ready_percent"], all["run_percent"]), (20.0, 30.0, 40.0));
        assert_eq!((all["wake_us"], all["switches"], all["exits"], all["system_percent"]), (2.0, 1000.0, 2000.0, 25.0));
        assert!(!all.contains_key("holder_preemptions"), "no guest says it");
        let less = Kernel { exits: Some(3), ..after };
        assert!(between((&then, before), (&now, less)).iter().all(|(id, _)| *id != "exits"), "a VM ended");
        assert!(all.keys().all(|id| FIGURES.iter().any(|figure| figure.id == *id)));
    }

    #[test]
    fn the_kernel_s_counters_are_found() {
        let machine = Machine::new([
            ("proc/stat", "cpu  10 0 20 30 1 2 3 4 5 6\ncpu0 1 2\nctxt 77\n"),
            ("sys/kernel/debug/kvm/exits", "12\n"),
        ]);
        let kernel = Kernel::read(&machine.root());
        assert_eq!(kernel, Kernel { switches: 77, system: 25, all: 70, exits: Some(12) });
    }
}
