//! What a guest must have beside the kernel's general features, and its agent.

use entrain_system::kallsyms;

use crate::finding::Finding;
use crate::machine::Machine;

/// Checks of a guest.
pub(crate) fn examine(machine: &Machine) -> Vec<Finding> {
    vec![hypervisor(machine), confidential(machine), bpffs(machine), symbols(machine), agent(machine)]
}

fn hypervisor(machine: &Machine) -> Finding {
    const FOR: &str = "entrain guest: its host must be KVM";
    let maker = machine.root.text("sys/class/dmi/id/sys_vendor").unwrap_or_default().trim().to_owned();
    let maker = if maker.is_empty() { "a VM".to_owned() } else { format!("a VM made by {maker}") };
    let clocks =
        machine.root.text("sys/devices/system/clocksource/clocksource0/available_clocksource").unwrap_or_default();
    if clocks.contains("kvm-clock") {
        return Finding::ok("guest.hypervisor", FOR, format!("{maker}, on KVM"));
    }
    if clocks.contains("hyperv") || machine.root.exists("sys/hypervisor/type") {
        return Finding::missing(
            "guest.hypervisor",
            FOR,
            format!("{maker}, on a hypervisor that is not KVM"),
            "Entrain works with KVM alone; leave it off here",
        );
    }
    // arm64 has no clock of KVM's own, so nothing here tells its hypervisor.
    Finding::ok("guest.hypervisor", FOR, format!("{maker}; the kernel does not say which hypervisor"))
}

fn confidential(machine: &Machine) -> Finding {
    const FOR: &str = "pairing: the host reads and writes one page per vCPU";
    let flags = machine.root.text("proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    match ["tdx_guest", "sev_snp", "sev_es", "sev"].into_iter().find(|flag| has(flag)) {
        // A host's CPU has the flags of SEV as well; in a guest they are there only when it is one of those.
        Some(flag) if machine.is_guest() => Finding {
            remedy: Vec::new(),
            ..Finding::warn(
                "guest.memory",
                FOR,
                format!("the memory may be encrypted ({flag}): then the host cannot read it, and does not pair"),
                "",
            )
        },
        _ => Finding::ok("guest.memory", FOR, "not encrypted; whether it is shared, only the host can tell"),
    }
}

fn bpffs(machine: &Machine) -> Finding {
    const FOR: &str = "entrain guest: pages that outlive a killed agent";
    let mounted = machine.root.text("proc/self/mounts").is_some_and(|mounts| {
        mounts.lines().any(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words.get(1) == Some(&"/sys/fs/bpf") && words.get(2) == Some(&"bpf")
        })
    });
    if mounted {
        return Finding::ok("guest.bpffs", FOR, "/sys/fs/bpf");
    }
    Finding::warn("guest.bpffs", FOR, "not mounted; the agent mounts it", "mount -t bpf bpf /sys/fs/bpf")
}

fn symbols(machine: &Machine) -> Finding {
    const FOR: &str = "telling the host where preempt counts and load are; without it pages carry neither";
    let table = machine.root.text("proc/kallsyms").unwrap_or_default();
    match kallsyms::symbols(&table).find(|symbol| symbol.name == "runqueues") {
        Some(symbol) if symbol.address != 0 => Finding::ok("guest.symbols", FOR, "addresses of the kernel's variables"),
        Some(_) => Finding::warn(
            "guest.symbols",
            FOR,
            "the kernel hides addresses from this process",
            "run as root; sysctl kernel.kptr_restrict must not be 2",
        ),
        None => Finding::warn(
            "guest.symbols",
            FOR,
            "the kernel does not list its variables",
            "boot a kernel built with CONFIG_KALLSYMS_ALL=y",
        ),
    }
}

fn agent(machine: &Machine) -> Finding {
    const FOR: &str = "everything in this guest";
    // The agent pins its pages below this folder, for as long as it runs and, if it is killed, beyond.
    if !machine.root.list("sys/fs/bpf/entrain").is_empty() {
        return Finding::ok("guest.agent", FOR, "pages are registered; entrain guest --status shows them");
    }
    Finding::warn("guest.agent", FOR, "does not run", "systemctl enable --now entrain-guest, or: entrain guest")
}
