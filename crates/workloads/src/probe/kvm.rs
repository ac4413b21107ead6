//! KVM's counters in debugfs (VM exits by reason, directed yields, halts) and its vCPU threads' CPU time.

use super::Counters;
use entrain_system::Root;
use serde::{Deserialize, Serialize};

/// A KVM guest that runs here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// Name of KVM's folder: process id of the VMM and number of its descriptor. Unique while the VM lives.
    pub id: String,
    /// Name of the VMM's process.
    pub name: String,
    /// KVM's counters, sums over the vCPUs, as KVM names them. Which ones there are depends on the architecture.
    pub counters: Counters,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
}

/// A vCPU's thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Thread id.
    pub tid: u32,
    /// Time that it ran on a CPU, ns.
    pub run_ns: u64,
    /// Time that it was runnable and waited for a CPU, ns.
    pub wait_ns: u64,
    /// Times that it was put on a CPU.
    pub runs: u64,
}

/// The counters that we take: each is a file of debugfs, and under emulation reading all 60 takes longer than it is
/// worth.
const COUNTERS: &[&str] = &[
    "exits",
    "halt_exits",
    "wfe_exit_stat",
    "wfi_exit_stat",
    "hvc_exit_stat",
    "mmio_exit_user",
    "mmio_exit_kernel",
    "io_exits",
    "mmio_exits",
    "irq_exits",
    "irq_window_exits",
    "signal_exits",
    "hypercalls",
    "insn_emulation",
    "irq_injections",
    "pf_taken",
    "directed_yield_attempted",
    "directed_yield_successful",
    "preemption_reported",
    "halt_attempted_poll",
    "halt_successful_poll",
    "halt_wakeup",
    "remote_tlb_flush",
];

const FOLDER: &str = "sys/kernel/debug/kvm";

/// All VMs; empty without KVM or without debugfs.
pub(super) fn read(root: &Root) -> Vec<Vm> {
    let mut vms: Vec<Vm> = root
        .list(FOLDER)
        .into_iter()
        .filter_map(|id| {
            // Beside the VMs' folders there are files with the sums over all VMs.
            let pid = id.split_once('-')?.0.parse::<u32>().ok()?;
            vm(root, &id, pid)
        })
        .collect();
    vms.sort_by(|a, b| a.id.cmp(&b.id));
    vms
}

fn vm(root: &Root, id: &str, pid: u32) -> Option<Vm> {
    let folder = format!("{FOLDER}/{id}");
    let counters = COUNTERS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), root.parse(format!("{folder}/{name}"))?)))
        .collect();
    let mut vcpus: Vec<Vcpu> = root
        .list(&folder)
        .into_iter()
        .filter_map(|name| {
            name.strip_prefix("vcpu")?.parse::<u32>().ok()?;
            vcpu(root, pid, root.parse(format!("{folder}/{name}/pid"))?)
        })
        .collect();
    vcpus.sort_by_key(|vcpu| vcpu.tid);
    let name = root.trimmed(format!("proc/{pid}/comm"))?;
    Some(Vm { id: id.to_owned(), name, counters, vcpus })
}

fn vcpu(root: &Root, pid: u32, tid: u32) -> Option<Vcpu> {
    let [run_ns, wait_ns, runs] = schedstat(root, &format!("proc/{pid}/task/{tid}"))?;
    Some(Vcpu { tid, run_ns, wait_ns, runs })
}

/// The three numbers in `schedstat` of a task, given by its folder (Documentation/scheduler/sched-stats.rst): ns that it
/// ran, ns that it waited for a CPU, and how often it was given one. `None` if the task or the file is not there, or holds
/// anything else.
pub fn schedstat(root: &Root, task: &str) -> Option<[u64; 3]> {
    let text = root.text(format!("{task}/schedstat"))?;
    let numbers = text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<_>>>()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn vms_are_found_with_their_counters_and_vcpus() {
        let (_machine, root) = tree(&[
            ("sys/kernel/debug/kvm/exits", "99\n"),
            ("sys/kernel/debug/kvm/812-11/exits", "40\n"),
            ("sys/kernel/debug/kvm/812-11/wfe_exit_stat", "7\n"),
            ("sys/kernel/debug/kvm/812-11/vcpu0/pid", "815\n"),
            ("sys/kernel/debug/kvm/812-11/vcpu1/pid", "816\n"),
            ("proc/812/comm", "vm0\n"),
            ("proc/812/task/815/schedstat", "1000 200 30\n"),
            ("proc/812/task/816/schedstat", "1 2 3\n"),
        ]);
        let vms = read(&root);
        assert_eq!(vms.len(), 1);
        assert_eq!((vms[0].id.as_str(), vms[0].name.as_str()), ("812-11", "vm0"));
        assert_eq!(vms[0].counters, [("exits".into(), 40), ("wfe_exit_stat".into(), 7)].into());
        assert_eq!(vms[0].vcpus[0], Vcpu { tid: 815, run_ns: 1000, wait_ns: 200, runs: 30 });
        assert_eq!(vms[0].vcpus.len(), 2);
    }

    #[test]
    fn a_vm_that_is_just_ending_is_left_out() {
        // The VMM's process is gone, KVM's folder not yet; or a thread is gone.
        let (_machine, root) = tree(&[("sys/kernel/debug/kvm/812-11/exits", "40\n")]);
        assert!(read(&root).is_empty());
        let (_machine, root) = tree(&[("sys/kernel/debug/kvm/812-11/vcpu0/pid", "815\n"), ("proc/812/comm", "vm0\n")]);
        assert!(read(&root)[0].vcpus.is_empty());
    }
}
