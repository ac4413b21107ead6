//! What the kernel can do, for host and guest alike.

use std::fs;

use entrain_bpf::{Features, Lockdown};

use crate::finding::Finding;
use crate::machine::Machine;

/// Checks that mean the same on both sides.
pub(crate) fn examine(machine: &Machine, features: &Features, guest: bool) -> Vec<Finding> {
    vec![
        btf(machine, features),
        capabilities(machine, guest),
        lockdown(features),
        sched_ext(features, guest),
        other_scheduler(machine),
        cgroups(machine),
    ]
}

fn btf(machine: &Machine, features: &Features) -> Finding {
    const FOR: &str = "everything: BPF programs that fit any kernel";
    if features.btf {
        let size = fs::metadata(machine.root.path("sys/kernel/btf/vmlinux")).map_or(0, |file| file.len());
        return Finding::ok("kernel.btf", FOR, format!("type information of the kernel, {} KiB", size / 1024));
    }
    Finding::missing(
        "kernel.btf",
        FOR,
        "the kernel has no type information (/sys/kernel/btf/vmlinux)",
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y; the kernels of Debian 12 and later have it",
    )
}

fn capabilities(machine: &Machine, guest: bool) -> Finding {
    const FOR: &str = "everything: loading BPF programs, looking into VMMs";
    let mut needed = vec![(21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
    // The host's daemon reads the memory of VMMs, the guest's agent the addresses of kernel symbols.
    needed.push(if guest { (34, "CAP_SYSLOG") } else { (19, "CAP_SYS_PTRACE") });
    let status = machine.root.text("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let missing: Vec<&str> =
        needed.iter().filter(|(bit, _)| effective.unwrap_or(0) & (1 << bit) == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        let names: Vec<&str> = needed.iter().map(|(_, name)| *name).collect();
        return Finding::ok("capabilities", FOR, names.join(", "));
    }
    Finding::missing(
        "capabilities",
        FOR,
        format!("this process lacks {}", missing.join(", ")),
        "run as root, outside of containers (or in a privileged one)",
    )
}

fn lockdown(features: &Features) -> Finding {
    const FOR: &str = "reading kernel memory with BPF";
    match features.lockdown {
        Lockdown::None => Finding::ok("kernel.lockdown", FOR, "off"),
        Lockdown::Integrity => Finding::ok("kernel.lockdown", FOR, "integrity: does not stand in the way"),
        Lockdown::Confidentiality => Finding::missing(
            "kernel.lockdown",
            FOR,
            "confidentiality: BPF may not read kernel memory",
            "boot with the kernel parameter lockdown=integrity or lockdown=none",
        ),
    }
}

fn sched_ext(features: &Features, guest: bool) -> Finding {
    const FOR: &str = "--mode schedule; all other modes do without";
    if if guest { features.schedules_guest } else { features.schedules_host } {
        return Finding::ok("kernel.sched-ext", FOR, "schedulers in BPF");
    }
    let found = if features.sched_ext {
        "the kernel's sched_ext is too old for Entrain's scheduler"
    } else {
        "the kernel has no sched_ext"
    };
    if guest {
        // A guest takes part without it, and can give up vCPUs by other means.
        return Finding::warn(
            "kernel.sched-ext",
            FOR,
            found,
            "nothing for --mode register; instead of --mode schedule: --mode vcpud, or Linux 6.19 or newer",
        );
    }
    Finding::missing(
        "kernel.sched-ext",
        FOR,
        found,
        "boot Linux 7.3 or newer built with CONFIG_SCHED_CLASS_EXT=y, or leave --mode schedule alone",
    )
}

fn other_scheduler(machine: &Machine) -> Finding {
    const FOR: &str = "--mode schedule: the kernel holds one such scheduler at a time";
    let state = machine.root.text("sys/kernel/sched_ext/state").unwrap_or_default();
    match state.trim() {
        "" | "disabled" => Finding::ok("scheduler", FOR, "the kernel's own (EEVDF)"),
        state => {
            let name = machine.root.text("sys/kernel/sched_ext/root/ops").unwrap_or_default();
            match name.trim() {
                name if name.starts_with("entrain") => Finding::ok("scheduler", FOR, format!("Entrain's ({name})")),
                name => Finding::warn(
                    "scheduler",
                    FOR,
                    format!("another sched_ext scheduler is loaded: '{name}' ({state})"),
                    "stop that scheduler's service before --mode schedule; --mode observe works beside it",
                ),
            }
        }
    }
}

fn cgroups(machine: &Machine) -> Finding {
    const FOR: &str = "weights and classes of VMs (cpu.weight)";
    if machine.root.exists("sys/fs/cgroup/cgroup.controllers") {
        return Finding::ok("cgroups", FOR, "version 2");
    }
    Finding::warn(
        "cgroups",
        FOR,
        "version 1, or both versions mixed: weights are not read, all VMs count alike",
        "boot with the kernel parameter systemd.unified_cgroup_hierarchy=1",
    )
}
