//! Virtual machines on isolated CPUs: KVM's parameters, pinning, priority and memory of their threads.

use entrain_system::{CpuSet, Root};

use super::change::{Change, stat_field};
use super::finding::{Finding, State};
use super::system::System;
use crate::watch::target::is_vcpu_name;

const TUNED: &str = "tuned's profile realtime-virtual-host";

/// A thread of a VMM.
#[derive(Clone, Debug)]
struct Thread {
    tid: i32,
    comm: String,
    vcpu: bool,
    allowed: CpuSet,
    started: u64,
    /// SCHED_* and real-time priority.
    policy: (i32, i32),
}

/// A VMM's process that has vCPU threads.
#[derive(Clone, Debug)]
struct Vm {
    pid: i32,
    threads: Vec<Thread>,
}

pub(super) fn check(system: &System) -> Vec<Finding> {
    if system.quiet.is_empty() {
        return Vec::new();
    }
    let mut all = parameters(system);
    // VMs that have nothing to do with isolated CPUs are none of this program's business.
    let vms: Vec<Vm> = vms(&system.root)
        .into_iter()
        .filter(|vm| vm.threads.iter().any(|t| t.vcpu && !t.allowed.common(&system.quiet).is_empty()))
        .collect();
    if !vms.is_empty() {
        all.extend([pinning(system, &vms), priority(system, &vms), emulator(system, &vms), locked(system, &vms)]);
    }
    all
}

/// The CPUs that a thread may run on.
pub(super) fn allowed(root: &Root, folder: &str) -> Option<CpuSet> {
    let status = root.trimmed(format!("{folder}/status"))?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")?.trim().parse().ok())
}

fn vms(root: &Root) -> Vec<Vm> {
    let pids = root.list("proc").into_iter().filter_map(|name| name.parse::<i32>().ok());
    pids.map(|pid| Vm { pid, threads: threads(root, pid) }).filter(|vm| vm.threads.iter().any(|t| t.vcpu)).collect()
}

fn threads(root: &Root, pid: i32) -> Vec<Thread> {
    let read = |name: String| {
        let tid: i32 = name.parse().ok()?;
        let folder = format!("proc/{pid}/task/{tid}");
        let comm = root.trimmed(format!("{folder}/comm"))?;
        let stat = root.trimmed(format!("{folder}/stat"))?;
        let number = |field| stat_field(&stat, field).and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(Thread {
            tid,
            vcpu: is_vcpu_name(&comm),
            allowed: allowed(root, &folder)?,
            started: stat_field(&stat, 22).and_then(|text| text.parse().ok()).unwrap_or(0),
            policy: (number(41), number(40)),
            comm,
        })
    };
    root.list(format!("proc/{pid}/task")).into_iter().filter_map(read).collect()
}

/// KVM's module parameters; those that can't be changed at run time go to /etc/modprobe.d.
fn parameters(system: &System) -> Vec<Finding> {
    let mut all = Vec::new();
    if !system.root.exists("sys/module/kvm/parameters") {
        return all;
    }
    let sync = "sys/module/kvm/parameters/kvmclock_periodic_sync";
    if let Some(found) = system.root.trimmed(sync) {
        all.push(
            Finding::new("kvm kvmclock_periodic_sync", State::when(found == "N"), found, "N")
                .because("every 300 s KVM kicks all vCPUs to correct a drift that NTP in the guest corrects as well", TUNED)
                .by("echo options kvm kvmclock_periodic_sync=0 > /etc/modprobe.d/entrain-isolate.conf (or kvm.… at boot)"),
        );
    }
    let gap = "sys/module/kvm_intel/parameters/ple_gap";
    if let Some(found) = system.root.trimmed(gap) {
        all.push(
            Finding::new("kvm_intel ple_gap", State::when(found == "0"), found, "0")
                .because("a vCPU that has its pCPU for itself gains nothing from exits in spin loops", TUNED)
                .by("echo options kvm_intel ple_gap=0 > /etc/modprobe.d/entrain-isolate.conf (all VMs lose these exits)"),
        );
    }
    all.extend(posted_timer(system));
    all
}

/// Whether a vCPU's own timer, which fires on a housekeeping CPU, reaches the vCPU without an exit.
fn posted_timer(system: &System) -> Option<Finding> {
    let vendor = ["kvm_intel/parameters/enable_apicv", "kvm_amd/parameters/avic"];
    let (path, on) = vendor.iter().find_map(|path| Some((path, system.root.trimmed(format!("sys/module/{path}"))?)))?;
    let inject = system.root.trimmed("sys/module/kvm/parameters/pi_inject_timer")?;
    let posted = matches!(on.as_str(), "Y" | "1");
    // Negative: the kernel decides, and takes it where nohz_full is set.
    let good = posted && inject != "0";
    let found = format!("{}={on}, pi_inject_timer={inject}", path.rsplit('/').next().unwrap_or(path));
    Some(
        Finding::new("kvm posted timers", State::when(good), found, "posted interrupts on, pi_inject_timer not 0")
            .because(
                "a vCPU's timer fires on another CPU; without posted interrupts that CPU kicks the vCPU by an IPI. QEMU needs \
                 -overcommit cpu-pm=on besides",
                "arch/x86/kvm/lapic.c (pi_inject_timer); commit 0c5f81dad46c",
            )
            .by(if posted {
                "echo -1 > /sys/module/kvm/parameters/pi_inject_timer"
            } else {
                "load kvm_intel with enable_apicv=1, or kvm_amd with avic=1, where the processor can"
            }),
    )
}

fn pinning(system: &System, vms: &[Vm]) -> Finding {
    let vcpus: Vec<(i32, &Thread)> =
        vms.iter().flat_map(|vm| vm.threads.iter().filter(|t| t.vcpu).map(|t| (vm.pid, t))).collect();
    let mut wrong = Vec::new();
    for (pid, thread) in &vcpus {
        let alone = vcpus.iter().filter(|(_, other)| !other.allowed.common(&thread.allowed).is_empty()).count() == 1;
        if thread.allowed.len() != 1 || !system.covers_one(&thread.allowed) {
            wrong.push(format!("{} of {pid} may run on {}", thread.comm, thread.allowed));
        } else if !alone {
            wrong.push(format!("{} of {pid} shares CPU {}", thread.comm, thread.allowed));
        }
    }
    let found =
        if wrong.is_empty() { format!("{} vCPUs, each on a CPU of its own", vcpus.len()) } else { wrong.join(", ") };
    Finding::new("vCPU pinning", State::when(wrong.is_empty()), found, "each vCPU alone on an isolated CPU")
        .because(
            "without load balancing nobody else moves it, and two of them would wait for each other",
            "Documentation/admin-guide/kernel-parameters.txt (isolcpus)",
        )
        .by("libvirt: <vcpupin vcpu='N' cpuset='CPU'/>; else taskset -pc CPU TID")
}

fn priority(system: &System, vms: &[Vm]) -> Finding {
    let mut changes = Vec::new();
    let mut wrong = Vec::new();
    for thread in vms.iter().flat_map(|vm| &vm.threads).filter(|t| t.vcpu && system.covers_one(&t.allowed)) {
        if !matches!(thread.policy.0, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE) {
            wrong.push(format!("{} ({})", thread.comm, thread.tid));
            changes.push(Change::Policy {
                tid: thread.tid,
                started: thread.started,
                comm: thread.comm.clone(),
                old: thread.policy,
                new: (libc::SCHED_FIFO, 1),
            });
        }
    }
    let found = if wrong.is_empty() { "real-time".to_owned() } else { format!("ordinary: {}", wrong.join(", ")) };
    Finding::new("vCPU priority", State::when(wrong.is_empty()), found, "SCHED_FIFO, priority 1 or more")
        .because(
            "kernel threads of ordinary priority wait until the vCPU halts",
            "Documentation/scheduler/sched-rt-group.rst",
        )
        .with(changes)
}

fn emulator(system: &System, vms: &[Vm]) -> Finding {
    let mut changes = Vec::new();
    let mut wrong = Vec::new();
    for vm in vms {
        for thread in vm.threads.iter().filter(|t| !t.vcpu && !t.allowed.common(&system.quiet).is_empty()) {
            wrong.push(format!("{} ({})", thread.comm, thread.tid));
            changes.push(Change::Affinity {
                tid: thread.tid,
                started: thread.started,
                comm: thread.comm.clone(),
                old: thread.allowed.to_string(),
                new: system.housekeeping.to_string(),
            });
        }
    }
    let found = if wrong.is_empty() { "on housekeeping CPUs".to_owned() } else { wrong.join(", ") };
    Finding::new("emulator threads", State::when(wrong.is_empty()), found, format!("on CPU {}", system.housekeeping))
        .because(
            "the VMM's own threads and its I/O threads would run in the vCPU's place",
            "libvirt <emulatorpin>, <iothreadpin>",
        )
        .with(changes)
}

fn locked(system: &System, vms: &[Vm]) -> Finding {
    let kib = |vm: &Vm, name: &str| {
        let status = system.root.trimmed(format!("proc/{}/status", vm.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let mut loose = Vec::new();
    for vm in vms {
        // Huge pages of hugetlbfs are never swapped, and count in neither of the two.
        let (locked, resident) = (kib(vm, "VmLck").unwrap_or(0), kib(vm, "VmRSS").unwrap_or(0));
        if locked < resident / 10 * 9 {
            loose.push(format!("{} ({} of {} MiB)", vm.pid, locked / 1024, resident / 1024));
        }
    }
    let found = if loose.is_empty() { "locked".to_owned() } else { format!("not locked: {}", loose.join(", ")) };
    Finding::new("memory locking", State::when(loose.is_empty()), found, "all memory locked")
        .because(
            "a page that was reclaimed or migrated costs the vCPU an exit and a fault",
            "mlock(2); Documentation/mm/unevictable-lru.rst",
        )
        .by("QEMU: -overcommit mem-lock=on; libvirt: <memoryBacking><locked/></memoryBacking>")
}

impl System {
    /// Whether all of `cpus` are to be quiet.
    fn covers_one(&self, cpus: &CpuSet) -> bool {
        !cpus.is_empty() && cpus.without(&self.quiet).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    fn files(threads: &[(i32, &str, &str, i32)]) -> Vec<(String, String)> {
        let mut files = vec![("proc/70/status".to_owned(), "VmLck:\t    0 kB\nVmRSS:\t  409600 kB\n".to_owned())];
        for (tid, comm, cpus, policy) in threads {
            let stat = format!(
                "{tid} ({comm}) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 4711 {} {policy} 0",
                "0 ".repeat(16) + "1 0"
            );
            files.push((format!("proc/70/task/{tid}/comm"), (*comm).to_owned()));
            files.push((format!("proc/70/task/{tid}/stat"), stat));
            files.push((format!("proc/70/task/{tid}/status"), format!("Cpus_allowed_list:\t{cpus}\n")));
        }
        files.push(("sys/devices/system/cpu/online".to_owned(), "0-3".to_owned()));
        files.push(("sys/module/kvm/parameters/kvmclock_periodic_sync".to_owned(), "Y".to_owned()));
        files.push(("sys/module/kvm/parameters/pi_inject_timer".to_owned(), "-1".to_owned()));
        files.push(("sys/module/kvm_amd/parameters/avic".to_owned(), "N".to_owned()));
        files
    }

    fn findings(threads: &[(i32, &str, &str, i32)]) -> Vec<Finding> {
        let files = files(threads);
        let (_dir, root) = tree(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>());
        check(&System::read(root, Some(&"2-3".parse().unwrap())))
    }

    #[test]
    fn a_vm_pinned_badly_is_told_thread_by_thread() {
        let all =
            findings(&[(70, "qemu", "0-3", 0), (71, "CPU 0/KVM", "2", 0), (72, "CPU 1/KVM", "2", libc::SCHED_FIFO)]);
        let of = |name| all.iter().find(|one| one.check == name).unwrap();
        assert!(of("vCPU pinning").found.contains("CPU 0/KVM of 70 shares CPU 2"), "{}", of("vCPU pinning").found);
        assert_eq!(of("vCPU priority").command, "chrt -f -p 1 71");
        assert_eq!(of("emulator threads").command, "taskset -pc 0-1 70");
        assert!(of("memory locking").found.contains("0 of 400 MiB"));
        assert_eq!(of("kvm kvmclock_periodic_sync").state, State::Todo);
    }

    #[test]
    fn a_vm_elsewhere_is_nobodys_business_here() {
        let all = findings(&[(70, "qemu", "0-1", 0), (71, "CPU 0/KVM", "0-1", 0)]);
        assert_eq!(
            all.iter().map(|one| one.check).collect::<Vec<_>>(),
            ["kvm kvmclock_periodic_sync", "kvm posted timers"]
        );
        let all = findings(&[(70, "qemu", "0-1", 0), (71, "CPU 0/KVM", "2", 1), (72, "CPU 1/KVM", "3", 1)]);
        let good = all.iter().filter(|one| one.state == State::Ok).count();
        assert_eq!(good, 3, "{all:?}");
    }
}
