//! What the machine is wanted for: which findings count then.

use clap::ValueEnum;
use serde::Serialize;

use crate::finding::Finding;
use crate::machine::Machine;

/// What somebody wants to do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// See who waits for whom: `entrain record` and `report`, `entrain host`, `top`, metrics
    Watch,
    /// Host and guests tell each other: `entrain host --mode observe`, `entrain guest`
    Pair,
    /// Entrain's scheduler, on this host or in this guest: `--mode schedule`
    Schedule,
    /// Isolated and real-time CPUs: `entrain isolate`
    Rt,
    /// Compare with and without Entrain's scheduler on this host: `entrain trial`
    Trial,
}

/// What everything that loads BPF needs.
const BPF: [&str; 3] = ["kernel.btf", "capabilities", "kernel.lockdown"];

impl Purpose {
    /// The findings beside [`BPF`]'s that count.
    fn own(self) -> &'static [&'static str] {
        match self {
            Self::Watch => &["host.kvm"],
            Self::Pair => &[
                "host.kvm",
                "host.uptr",
                "host.doorbell",
                "host.daemon",
                "vm.memory",
                "vm.agent",
                "guest.hypervisor",
                "guest.memory",
                "guest.bpffs",
                "guest.symbols",
                "guest.agent",
            ],
            Self::Schedule => &[
                "host.kvm",
                "host.uptr",
                "host.daemon",
                "host.halt-poll",
                "host.wfe-trap",
                "kernel.sched-ext",
                "scheduler",
                "cgroups",
                "guest.hypervisor",
            ],
            Self::Rt => &["rt.kernel", "rt.cpus"],
            Self::Trial => &["host.kvm", "host.uptr", "kernel.sched-ext", "scheduler", "trial.vms"],
        }
    }

    /// Whether it needs what this finding is about.
    pub(crate) fn needs(self, finding: &Finding) -> bool {
        BPF.contains(&finding.id) || self.own().contains(&finding.id)
    }
}

/// Checks that only this purpose asks for; `vms` run here.
pub(crate) fn examine(machine: &Machine, purpose: Purpose, vms: usize) -> Vec<Finding> {
    match purpose {
        Purpose::Rt => vec![realtime(machine), isolated(machine)],
        Purpose::Trial => vec![running(vms)],
        Purpose::Watch | Purpose::Pair | Purpose::Schedule => Vec::new(),
    }
}

fn realtime(machine: &Machine) -> Finding {
    const FOR: &str = "bounds on the worst case; entrain isolate works on any kernel";
    if machine.root.trimmed("sys/kernel/realtime").as_deref() == Some("1") {
        return Finding::ok("rt.kernel", FOR, "PREEMPT_RT");
    }
    Finding::warn("rt.kernel", FOR, "not PREEMPT_RT", "boot a kernel for real time: Debian's is linux-image-rt-ARCH")
}

fn isolated(machine: &Machine) -> Finding {
    const FOR: &str = "CPUs that the rest of the system leaves alone";
    let cpus = |name: &str| machine.root.cpus_or_none(format!("sys/devices/system/cpu/{name}"));
    let (isolated, tickless) = (cpus("isolated"), cpus("nohz_full"));
    if isolated.is_empty() && tickless.is_empty() {
        let remedy =
            "boot with isolcpus=managed_irq,domain,CPUS nohz_full=CPUS rcu_nocbs=CPUS, then: entrain isolate check";
        return Finding::missing("rt.cpus", FOR, "no CPU is isolated, none without a tick", remedy);
    }
    let told = |cpus: &entrain_system::CpuSet| if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() };
    let found =
        format!("isolated {}, without a tick {}; entrain isolate check says more", told(&isolated), told(&tickless));
    Finding::ok("rt.cpus", FOR, found)
}

fn running(vms: usize) -> Finding {
    const FOR: &str = "a trial: it measures what the VMs of this host do";
    if vms > 0 {
        return Finding::ok("trial.vms", FOR, format!("{vms} VMs run"));
    }
    Finding::missing("trial.vms", FOR, "no VM runs, or this process may not see them", "start the VMs, and run as root")
}
