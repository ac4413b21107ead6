//! Who a thread is: a vCPU, a VMM, a task, the kernel.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::file::Recording;

/// What somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// A vCPU of a VM.
    Vcpu,
    /// A VMM's other threads.
    Vmm,
    /// Any other process.
    Task,
    /// A kernel thread.
    Kernel,
    /// Nobody: the pCPU was idle, and the wake-up on its way.
    Idle,
}

/// Somebody who can be on a pCPU; the threads of a process are one, the vCPUs of a VM are not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Who {
    /// What.
    pub sort: Sort,
    /// For people.
    pub name: String,
}

/// kthreadd, the parent of all kernel threads, is thread 2; they have no process of their own, each is one.
const INIT: u32 = 1;

/// All threads that a recording knows.
pub(super) struct Directory<'a> {
    recording: &'a Recording,
    vcpus: HashMap<u32, Who>,
    vmms: HashMap<u32, Who>,
    /// Process -> its name.
    processes: HashMap<u32, &'a str>,
}

impl<'a> Directory<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        let (mut vcpus, mut vmms) = (HashMap::new(), HashMap::new());
        for vm in &recording.vms {
            vmms.insert(vm.pid as u32, Who { sort: Sort::Vmm, name: format!("VMM of {}", vm.name) });
            for (id, tid) in &vm.vcpus {
                vcpus.insert(*tid, Who { sort: Sort::Vcpu, name: format!("{} vCPU {id}", vm.name) });
            }
        }
        // A process is called what its leader is; where that has not been met, what its lowest thread is.
        let mut threads: Vec<_> = recording.names.iter().collect();
        threads.sort_by_key(|(tid, (tgid, _))| (*tid != tgid, *tid));
        let mut processes = HashMap::new();
        for (_, (tgid, name)) in threads {
            processes.entry(*tgid).or_insert(name.as_str());
        }
        Self { recording, vcpus, vmms, processes }
    }

    pub(super) fn who(&self, tid: u32) -> Who {
        if tid == 0 {
            return Who { sort: Sort::Idle, name: "nobody: pCPU idle, wake-up on its way".into() };
        }
        if let Some(vcpu) = self.vcpus.get(&tid) {
            return vcpu.clone();
        }
        let Some((tgid, name)) = self.recording.names.get(&tid) else {
            return Who { sort: Sort::Task, name: format!("thread {tid}") };
        };
        if let Some(vmm) = self.vmms.get(tgid) {
            return vmm.clone();
        }
        // The recorder cannot ask each thread whether it is the kernel's; their names tell those that matter.
        let kernel = ["kworker/", "ksoftirqd/", "migration/", "rcu_", "kthreadd", "idle_inject/", "irq/", "khugepaged"];
        if *tgid == tid && *tgid > INIT && kernel.iter().any(|start| name.starts_with(start)) {
            return Who { sort: Sort::Kernel, name: name.clone() };
        }
        Who { sort: Sort::Task, name: format!("{} ({tgid})", self.processes[tgid]) }
    }

    /// Threads of one process become one, longest first.
    pub(super) fn merge(&self, ran: &[(u32, u64)]) -> Vec<(Who, u64)> {
        let mut all: BTreeMap<Who, u64> = BTreeMap::new();
        for (tid, ns) in ran {
            let sum = all.entry(self.who(*tid)).or_default();
            *sum = sum.saturating_add(*ns);
        }
        let mut all: Vec<(Who, u64)> = all.into_iter().collect();
        all.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        all
    }
}
