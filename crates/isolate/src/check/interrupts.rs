//! Where interrupts, work items and kernel threads may run.

use entrain_system::CpuSet;

use super::change::{Change, stat_field};
use super::finding::{Finding, State};
use super::system::{System, shown};

/// Names shown of a long list.
const SHOWN: usize = 5;
/// The kernel lets nobody change this thread's CPUs (PF_NO_SETAFFINITY).
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;
/// A kernel thread (PF_KTHREAD).
const PF_KTHREAD: u64 = 0x0020_0000;

pub(super) fn check(system: &System) -> Vec<Finding> {
    if system.quiet.is_empty() || system.housekeeping.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    all.extend(default_affinity(system));
    all.push(affinities(system));
    all.extend(workqueues(system));
    all.push(threads(system));
    all
}

fn default_affinity(system: &System) -> Option<Finding> {
    let path = "proc/irq/default_smp_affinity";
    let found = CpuSet::from_mask(&system.root.trimmed(path)?)?;
    let fix = Change::write(&system.root, path, system.housekeeping.to_mask());
    let found = found.common(&system.online);
    let state = State::when(found.common(&system.quiet).is_empty());
    Some(
        Finding::new("default IRQ affinity", state, shown(&found), system.housekeeping.to_string())
            .because("devices that appear later get these CPUs", "Documentation/core-api/irq/irq-affinity.rst")
            .with(fix.into_iter().collect()),
    )
}

fn affinities(system: &System) -> Finding {
    let mut names = Vec::new();
    let mut changes = Vec::new();
    for number in system.root.list("proc/irq").iter().filter(|name| name.parse::<u32>().is_ok()) {
        let folder = format!("proc/irq/{number}");
        // Interrupts in use have a folder named after their handler.
        let handlers = system.root.list(&folder);
        let Some(handler) = handlers.iter().find(|name| system.root.path(format!("{folder}/{name}")).is_dir()) else {
            continue;
        };
        let path = format!("{folder}/smp_affinity_list");
        let allowed = system.root.cpus_or_none(&path);
        if allowed.common(&system.quiet).is_empty() {
            continue;
        }
        // Where it really goes, if the kernel tells: a wide mask does no harm while it holds, but any CPU may be next.
        names.push(format!("{number} ({handler})"));
        changes.extend(Change::write(&system.root, &path, system.housekeeping.to_string()));
    }
    Finding::new("IRQ affinity", State::when(names.is_empty()), list(&names), "no device's interrupt on isolated CPUs")
        .because("a device may interrupt any CPU of its mask", "Documentation/core-api/irq/irq-affinity.rst")
        .with(changes)
}

fn workqueues(system: &System) -> Option<Finding> {
    let path = "sys/devices/virtual/workqueue/cpumask";
    let found = CpuSet::from_mask(&system.root.trimmed(path)?)?.common(&system.online);
    let state = State::when(found.common(&system.quiet).is_empty());
    let fix = Change::write(&system.root, path, system.housekeeping.to_mask());
    Some(
        Finding::new("unbound workqueues", state, shown(&found), system.housekeeping.to_string())
            .because("work of unbound workqueues may run on any of these CPUs", "Documentation/core-api/workqueue.rst")
            .with(fix.into_iter().collect()),
    )
}

/// Kernel threads that are bound to no CPU but may run on an isolated one.
fn threads(system: &System) -> Finding {
    let mut names = Vec::new();
    let mut changes = Vec::new();
    for name in system.root.list("proc") {
        let Ok(tid) = name.parse::<i32>() else { continue };
        let Some(stat) = system.root.trimmed(format!("proc/{tid}/stat")) else { continue };
        let flags: u64 = stat_field(&stat, 9).and_then(|text| text.parse().ok()).unwrap_or(0);
        if flags & PF_KTHREAD == 0 || flags & PF_NO_SETAFFINITY != 0 {
            continue;
        }
        let Some(allowed) = super::threads::allowed(&system.root, &format!("proc/{tid}")) else { continue };
        let allowed = allowed.common(&system.online);
        if allowed.common(&system.quiet).is_empty() || allowed.without(&system.quiet).is_empty() {
            continue;
        }
        let comm = system.root.trimmed(format!("proc/{tid}/comm")).unwrap_or_default();
        names.push(format!("{comm} ({tid})"));
        let started = stat_field(&stat, 22).and_then(|text| text.parse().ok()).unwrap_or(0);
        changes.push(Change::Affinity {
            tid,
            started,
            comm,
            old: allowed.to_string(),
            new: allowed.without(&system.quiet).to_string(),
        });
    }
    Finding::new("kernel threads", State::when(names.is_empty()), list(&names), "none that may choose an isolated CPU")
        .because(
            "those that are not bound to a CPU can be kept away",
            "Documentation/admin-guide/kernel-per-CPU-kthreads.rst",
        )
        .with(changes)
}

fn list(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        n if n <= SHOWN => names.join(", "),
        n => format!("{n}: {}, …", names[..SHOWN].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn interrupts_work_and_threads_that_may_come_are_found() {
        let status = |cpus: &str| format!("Cpus_allowed_list:\t{cpus}\n");
        let stat = |flags: u64| format!("9 (x y) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 77 0");
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("proc/irq/default_smp_affinity", "f\n"),
            ("proc/irq/24/smp_affinity_list", "0-3\n"),
            ("proc/irq/24/virtio0-input/x", ""),
            ("proc/irq/25/smp_affinity_list", "0\n"),
            ("proc/irq/25/nvme/x", ""),
            ("proc/irq/26/smp_affinity_list", "0-3\n"),
            ("sys/devices/virtual/workqueue/cpumask", "f\n"),
            ("proc/9/stat", &stat(PF_KTHREAD)),
            ("proc/9/status", &status("0-3")),
            ("proc/9/comm", "kswapd0"),
            ("proc/10/stat", &stat(PF_KTHREAD | PF_NO_SETAFFINITY)),
            ("proc/10/status", &status("0-3")),
            ("proc/11/stat", &stat(0)),
            ("proc/11/status", &status("0-3")),
            ("proc/12/stat", &stat(PF_KTHREAD)),
            ("proc/12/status", &status("2")),
        ]);
        let all = check(&System::read(root.clone(), Some(&"2-3".parse().unwrap())));
        let of = |name| all.iter().find(|one| one.check == name).unwrap();
        assert_eq!(of("default IRQ affinity").command, "echo 3 > /proc/irq/default_smp_affinity");
        assert_eq!((of("IRQ affinity").found.as_str(), of("IRQ affinity").fix.len()), ("24 (virtio0-input)", 1));
        assert_eq!(of("unbound workqueues").state, State::Todo);
        assert_eq!(of("kernel threads").found, "kswapd0 (9)");
        assert_eq!(of("kernel threads").command, "taskset -pc 0-1 9");
        for change in &of("IRQ affinity").fix {
            change.apply(&root).unwrap();
        }
        let again = check(&System::read(root, Some(&"2-3".parse().unwrap())));
        assert_eq!(again.iter().find(|one| one.check == "IRQ affinity").unwrap().state, State::Ok);
    }
}
