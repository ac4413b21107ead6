//! The scheduler's settings.

use super::change::Change;
use super::finding::{Finding, State};
use super::system::System;

const FAIR: &str = "sys/kernel/debug/sched/fair_server";

pub(super) fn check(system: &System) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(throttling(system));
    all.extend(fair_server(system));
    all.extend(migration(system));
    all.extend(numa(system));
    all
}

fn throttling(system: &System) -> Option<Finding> {
    let path = "proc/sys/kernel/sched_rt_runtime_us";
    let found: i64 = system.root.parse(path)?;
    let period: i64 = system.root.parse("proc/sys/kernel/sched_rt_period_us").unwrap_or(1_000_000);
    let fix = Change::write(&system.root, path, "-1");
    Some(
        Finding::new("RT throttling", State::when(found < 0 || found >= period), format!("{found} of {period} us"), "-1 (off)")
            .because(
                "real-time tasks are stopped when they have used this up; without it a task that spins keeps its CPU for good",
                "Documentation/scheduler/sched-rt-group.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

fn fair_server(system: &System) -> Option<Finding> {
    let why = "gives ordinary tasks some time of a busy real-time task's CPU (50 ms of each second). Without it, work \
               queued there waits as long as the task spins: see `entrain isolate qpw`";
    let source = "kernel/sched/deadline.c (dl_server), Linux 6.12";
    if !system.at_least((6, 12)) || system.quiet.is_empty() {
        return None;
    }
    if !system.root.exists(FAIR) {
        // A kernel without SCHED_DEBUG looks the same as a file system that is not mounted.
        let mounted = system.root.exists("sys/kernel/debug/sched");
        let found = if mounted { "this kernel has none" } else { "debugfs is not mounted" };
        let state = if mounted { State::Ok } else { State::Unknown };
        let finding = Finding::new("fair server", state, found, "off on isolated CPUs").because(why, source);
        return Some(finding.by("mount -t debugfs none /sys/kernel/debug"));
    }
    let path = |cpu: u32| format!("{FAIR}/cpu{cpu}/runtime");
    if system.quiet.iter().any(|cpu| system.root.trimmed(path(cpu)).is_none()) {
        let finding = Finding::new("fair server", State::Unknown, "can't be read", "off on isolated CPUs");
        return Some(finding.because(why, source).by("run as root; lockdown (Secure Boot) closes debugfs"));
    }
    let on: Vec<u32> =
        system.quiet.iter().filter(|cpu| system.root.trimmed(path(*cpu)).is_some_and(|text| text != "0")).collect();
    let found = match on.as_slice() {
        [] => "off".to_owned(),
        cpus => format!("on: CPU {}", cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    };
    let changes = on.iter().filter_map(|cpu| Change::write(&system.root, &path(*cpu), "0")).collect();
    Some(
        Finding::new("fair server", State::when(on.is_empty()), found, "off on isolated CPUs")
            .because(why, source)
            .with(changes),
    )
}

fn migration(system: &System) -> Option<Finding> {
    let path = "proc/sys/kernel/timer_migration";
    let found = system.root.trimmed(path)?;
    let fix = Change::write(&system.root, path, "1");
    Some(
        Finding::new("timer migration", State::when(found == "1"), found, "1")
            .because(
                "timers that are armed on isolated CPUs fire on others. A vCPU's own timer does too, and kicks the vCPU by \
                 an IPI: 0 is worth a trial on KVM hosts without posted interrupts",
                "Documentation/admin-guide/sysctl/kernel.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

fn numa(system: &System) -> Option<Finding> {
    let path = "proc/sys/kernel/numa_balancing";
    let found = system.root.trimmed(path)?;
    let fix = Change::write(&system.root, path, "0");
    Some(
        Finding::new("NUMA balancing", State::when(found == "0"), found, "0")
            .because(
                "it unmaps pages of running tasks to see who uses them",
                "Documentation/admin-guide/sysctl/kernel.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn settings_of_the_scheduler() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("proc/sys/kernel/osrelease", "7.3.4"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000"),
            ("proc/sys/kernel/sched_rt_period_us", "1000000"),
            ("sys/kernel/debug/sched/fair_server/cpu2/runtime", "50000000"),
            ("sys/kernel/debug/sched/fair_server/cpu3/runtime", "0"),
            ("proc/sys/kernel/timer_migration", "1"),
        ]);
        let all = check(&System::read(root, Some(&"2-3".parse().unwrap())));
        let shown: Vec<_> = all.iter().map(|one| (one.check, one.state, one.found.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("RT throttling", State::Todo, "950000 of 1000000 us"),
                ("fair server", State::Todo, "on: CPU 2"),
                ("timer migration", State::Ok, "1"),
            ]
        );
        assert_eq!(all[1].command, "echo 0 > /sys/kernel/debug/sched/fair_server/cpu2/runtime");
    }

    #[test]
    fn a_server_that_can_not_be_read_is_not_off() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("proc/sys/kernel/osrelease", "7.3.4"),
            ("sys/kernel/debug/sched/fair_server/cpu2/runtime", "0"),
        ]);
        let all = check(&System::read(root, Some(&"2-3".parse().unwrap())));
        assert_eq!((all[0].check, all[0].state), ("fair server", State::Unknown));
    }

    #[test]
    fn without_debugfs_nothing_is_claimed() {
        let (_dir, root) = tree(&[("sys/devices/system/cpu/online", "0-3"), ("proc/sys/kernel/osrelease", "7.3.4")]);
        let all = check(&System::read(root, Some(&"2".parse().unwrap())));
        assert_eq!((all[0].check, all[0].state), ("fair server", State::Unknown));
    }
}
