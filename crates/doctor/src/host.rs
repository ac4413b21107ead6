//! What a host must have beside the kernel's general features, and its daemon.

use entrain_bpf::Features;
use entrain_host::status::{self, Status as Daemon};

use crate::finding::Finding;
use crate::machine::Machine;

/// vCPUs for each pCPU from which on halt polling and untrapped waiting are told of: below, a vCPU that polls or spins mostly
/// keeps nobody waiting.
const CROWDED: usize = 2;

/// Checks of a host.
pub(crate) fn examine(machine: &Machine, features: &Features, daemon: Option<&Daemon>) -> Vec<Finding> {
    vec![uptr(machine, features), kvm(machine, features), doorbell(features), running(daemon)]
}

/// The daemon's status, if one runs.
pub(crate) fn ask(machine: &Machine) -> Option<Daemon> {
    status::ask(&machine.root.path("run/entrain/host.sock")).ok()
}

fn uptr(machine: &Machine, features: &Features) -> Finding {
    const FOR: &str = "pairing with guests, and --mode schedule; entrain host watches without it";
    let Some(why) = features.missing_for_pairing() else {
        return Finding::ok("host.uptr", FOR, "BPF holds user memory in task storage");
    };
    let release = machine.release().unwrap_or_default();
    Finding::missing(
        "host.uptr",
        FOR,
        format!("pairing is unsupported on Linux {release}: {why}"),
        "boot Linux 6.13 or newer with CONFIG_DEBUG_INFO_BTF=y; entrain host, top and metrics work without",
    )
}

fn kvm(machine: &Machine, features: &Features) -> Finding {
    const FOR: &str = "entrain host: VMs are found through KVM";
    match (machine.is_host(), features.kvm) {
        (true, true) => Finding::ok("host.kvm", FOR, "KVM, and its type information"),
        (true, false) => Finding::missing(
            "host.kvm",
            FOR,
            "KVM is there, but its type information is not (/sys/kernel/btf/kvm)",
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF_MODULES=y",
        ),
        (false, _) => Finding::missing(
            "host.kvm",
            FOR,
            "no /dev/kvm",
            "modprobe kvm_intel or modprobe kvm_amd, with virtualization on in the firmware; arm64 must boot at EL2",
        ),
    }
}

fn doorbell(features: &Features) -> Finding {
    const FOR: &str = "finding agents at once; without it they are found within seconds";
    if features.kvm_hypercall {
        return Finding::ok("host.doorbell", FOR, "KVM traces hypercalls");
    }
    if features.kvm_wfx {
        return Finding::ok("host.doorbell", FOR, "KVM traces wfe where it traps it; else guests' memory is searched");
    }
    Finding::ok("host.doorbell", FOR, "not on this kernel or architecture: guests' memory is searched instead")
}

/// How many vCPUs there are on how many pCPUs, and whether that is crowded. `None` where no VM runs.
fn crowd(machine: &Machine, vcpus: usize) -> Option<(String, bool)> {
    let pcpus = machine.root.online_cpus().ok()?.len();
    (vcpus > 0).then(|| (format!("{vcpus} vCPUs on {pcpus} pCPUs"), vcpus >= CROWDED * pcpus))
}

/// A vCPU that has nothing to do polls for a while before its thread sleeps. Whoever waits for a pCPU meanwhile may wait in
/// vain: the kernel ends it only for those that wait on the same one. `None` where no VM runs, or KVM is not there.
pub(crate) fn polling(machine: &Machine, vcpus: usize) -> Option<Finding> {
    const FOR: &str =
        "throughput of crowded hosts: a halted vCPU polls for work and keeps its pCPU from others that wait";
    const FILE: &str = "sys/module/kvm/parameters/halt_poll_ns";
    let ns: u64 = machine.root.trimmed(FILE)?.parse().ok()?;
    let (crowd, crowded) = crowd(machine, vcpus)?;
    let found = format!("halt_poll_ns is {ns}, with {crowd}");
    if ns == 0 || !crowded {
        return Some(Finding::ok("host.halt-poll", FOR, found));
    }
    let remedy = format!("try: echo 0 > /{FILE}; it costs latency where vCPUs find a pCPU idle");
    Some(Finding::warn("host.halt-poll", FOR, found, remedy))
}

/// arm64's KVM decides whether a vCPU's `wfe` is trapped when its thread comes to a pCPU (`kvm_arch_vcpu_load()`): by default
/// not where the thread is alone there. Others may come to wait for that pCPU afterwards, and a vCPU that spins untrapped
/// yields to none of them. `None` where no VM runs, or `wfe` is not what guests wait with.
pub(crate) fn trapping(machine: &Machine, features: &Features, vcpus: usize) -> Option<Finding> {
    const FOR: &str =
        "throughput of guests with threads under --mode schedule (arm64): a vCPU that waits untrapped yields to nobody";
    const POLICY: &str = "kvm-arm.wfe_trap_policy";
    if !features.kvm_wfx {
        return None;
    }
    let (crowd, crowded) = crowd(machine, vcpus)?;
    let policy = machine.root.kernel_parameter(POLICY);
    let found = format!("{POLICY} is {}, with {crowd}", policy.as_deref().unwrap_or("not set"));
    if policy.as_deref() == Some("trap") || !crowded {
        return Some(Finding::ok("host.wfe-trap", FOR, found));
    }
    let remedy = format!(
        "with entrain host --mode schedule: boot Linux 6.11 or newer with the kernel parameter {POLICY}=trap; under the \
         kernel's own scheduler guests that fight for locks lose by it"
    );
    Some(Finding::warn("host.wfe-trap", FOR, found, remedy))
}

fn running(daemon: Option<&Daemon>) -> Finding {
    const FOR: &str = "everything on this host";
    match daemon {
        Some(status) => {
            let runs = format!("runs (pid {}, mode {}, {} VMs)", status.pid, status.mode, status.vms.len());
            let Some(fallback) = &status.fallback else { return Finding::ok("host.daemon", FOR, runs) };
            let remedy = match fallback.retry_in_ns {
                Some(ns) => format!("remove what it names; it tries again by itself (in {} s)", ns / 1_000_000_000),
                None => "remove what it names, then: systemctl reload entrain-host".to_owned(),
            };
            Finding::warn("host.daemon", FOR, format!("{runs}, but only observes: {}", fallback.why), remedy)
        }
        None => Finding::warn("host.daemon", FOR, "does not run", "systemctl start entrain-host, or: entrain host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Status;
    use entrain_system::fake::Machine as Files;
    use serde_json::json;

    fn found(fallback: serde_json::Value) -> Finding {
        let status = json!({
            "schema": 1, "version": "0", "mode": "schedule", "pid": 7, "now_ns": 0, "uptime_ns": 0, "pcpus": [], "vms": [],
            "work": { "ticks": 0, "tick_ns": 0, "discoveries": 0, "discovery_ns": 0, "pairing_ns": 0 },
            "fallback": fallback,
        });
        running(Some(&serde_json::from_value(status).expect("a status")))
    }

    #[test]
    fn halt_polling_is_told_of_where_vcpus_outnumber_pcpus() {
        let files = Files::new([("sys/devices/system/cpu/online", "0-3\n")]);
        let machine = Machine::at(files.path());
        assert!(polling(&machine, 8).is_none(), "no KVM");
        files.put("sys/module/kvm/parameters/halt_poll_ns", "200000\n");
        assert!(polling(&machine, 0).is_none(), "no VM");
        assert_eq!(polling(&machine, 7).unwrap().status, Status::Ok);
        let crowded = polling(&machine, 8).unwrap();
        assert_eq!(
            (crowded.status, crowded.found.as_str()),
            (Status::Warn, "halt_poll_ns is 200000, with 8 vCPUs on 4 pCPUs")
        );
        files.put("sys/module/kvm/parameters/halt_poll_ns", "0\n");
        assert_eq!(polling(&machine, 8).unwrap().status, Status::Ok);
    }

    #[test]
    fn untrapped_waiting_is_told_of_on_crowded_hosts_of_arm64() {
        let files = Files::new([("sys/devices/system/cpu/online", "0-3\n"), ("proc/cmdline", "quiet\n")]);
        let machine = Machine::at(files.path());
        let x86 = Features::probe_in(&machine.root);
        let arm64 = Features { kvm_wfx: true, ..x86 };
        assert!(trapping(&machine, &x86, 8).is_none(), "not arm64");
        assert!(trapping(&machine, &arm64, 0).is_none(), "no VM");
        assert_eq!(trapping(&machine, &arm64, 7).unwrap().status, Status::Ok);
        let crowded = trapping(&machine, &arm64, 8).unwrap();
        assert_eq!(
            (crowded.status, crowded.found.as_str()),
            (Status::Warn, "kvm-arm.wfe_trap_policy is not set, with 8 vCPUs on 4 pCPUs")
        );
        files.put("proc/cmdline", "kvm-arm.wfe_trap_policy=trap quiet kvm-arm.wfe_trap_policy=notrap\n");
        assert_eq!(trapping(&machine, &arm64, 8).unwrap().status, Status::Warn, "the last one counts");
        files.put("proc/cmdline", "quiet kvm-arm.wfe_trap_policy=trap\n");
        assert_eq!(trapping(&machine, &arm64, 8).unwrap().status, Status::Ok);
    }

    #[test]
    fn a_daemon_that_only_observes_is_told_of_with_the_way_back() {
        assert_eq!(found(json!(null)).status, Status::Ok);
        let waits = found(json!({ "why": "a limit", "retry_in_ns": 4_000_000_000u64 }));
        assert!(waits.status == Status::Warn && waits.found.ends_with("but only observes: a limit"), "{waits:?}");
        assert!(waits.remedy[0].contains("by itself (in 4 s)"), "{waits:?}");
        let stays = found(json!({ "why": "sysrq", "retry_in_ns": null }));
        assert!(stays.remedy[0].contains("reload"), "{stays:?}");
    }
}
