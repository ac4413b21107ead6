//! How fast an isolated CPU is back from idle and at speed.

use super::change::Change;
use super::finding::{Finding, State};
use super::system::System;

/// Exit latency of an idle state that is still fine, µs.
const LATENCY: u32 = 10;
/// How long a guest polls before it halts, ns: the driver's own default.
const POLL: &str = "200000";

pub(super) fn check(system: &System) -> Vec<Finding> {
    if system.quiet.is_empty() {
        return Vec::new();
    }
    let mut all = vec![idle_states(system)];
    all.extend(haltpoll(system));
    all.extend(governor(system));
    all.extend(siblings(system));
    all
}

fn idle_states(system: &System) -> Finding {
    let mut names: Vec<String> = Vec::new();
    let mut changes = Vec::new();
    for cpu in system.quiet.iter() {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle");
        for state in system.root.list(&folder) {
            let latency: u32 = system.root.parse(format!("{folder}/{state}/latency")).unwrap_or(0);
            let path = format!("{folder}/{state}/disable");
            if latency <= LATENCY || system.root.trimmed(&path).is_none_or(|text| text != "0") {
                continue;
            }
            let name = system.root.trimmed(format!("{folder}/{state}/name")).unwrap_or(state);
            let shown = format!("{name} ({latency} us)");
            if !names.contains(&shown) {
                names.push(shown);
            }
            changes.extend(Change::write(&system.root, &path, "1"));
        }
    }
    let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Finding::new("deep idle states", State::when(names.is_empty()), found, format!("none above {LATENCY} us"))
        .because(
            "waking from a deep idle state takes longer than the work itself",
            "Documentation/admin-guide/pm/cpuidle.rst",
        )
        .with(changes)
}

/// In a guest, each halt is an exit to the hypervisor, which may run something else meanwhile.
fn haltpoll(system: &System) -> Option<Finding> {
    if !system.guest {
        return None;
    }
    let path = "sys/module/haltpoll/parameters/guest_halt_poll_ns";
    let driver = system.root.trimmed("sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    let found = system.root.trimmed(path).unwrap_or_default();
    let good = driver == "haltpoll" && found != "0";
    let shown = match driver.as_str() {
        "haltpoll" => format!("haltpoll, {found} ns"),
        "" | "none" => "no idle driver".to_owned(),
        other => other.to_owned(),
    };
    let fix = if driver == "haltpoll" { Change::write(&system.root, path, POLL) } else { None };
    let command = if fix.is_some() { "" } else { "boot with cpuidle_haltpoll.force=1, or idle=poll" };
    Some(
        Finding::new("guest halt polling", State::when(good), shown, "haltpoll with a poll time")
            .because(
                "a vCPU that halts leaves its pCPU and must be woken by the host",
                "Documentation/virt/guest-halt-polling.rst",
            )
            .by(command)
            .with(fix.into_iter().collect()),
    )
}

fn governor(system: &System) -> Option<Finding> {
    let mut found = Vec::new();
    let mut changes = Vec::new();
    for cpu in system.quiet.iter() {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        let Some(name) = system.root.trimmed(&path) else { continue };
        if name != "performance" {
            changes.extend(Change::write(&system.root, &path, "performance"));
        }
        if !found.contains(&name) {
            found.push(name);
        }
    }
    (!found.is_empty()).then(|| {
        Finding::new("frequency governor", State::when(changes.is_empty()), found.join(", "), "performance")
            .because("no waiting for a higher frequency", "Documentation/admin-guide/pm/cpufreq.rst")
            .with(changes)
    })
}

fn siblings(system: &System) -> Option<Finding> {
    let mut shared = Vec::new();
    for cpu in system.quiet.iter() {
        let all = system.root.cpus_or_none(format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let others = all.common(&system.housekeeping);
        if !others.is_empty() {
            shared.push(format!("{cpu} with {others}"));
        }
    }
    if shared.is_empty() {
        return None;
    }
    Some(
        Finding::new("SMT siblings", State::Todo, shared.join(", "), "no core shared with housekeeping CPUs")
            .because(
                "two CPUs of a core share its execution units and caches",
                "Documentation/admin-guide/hw-vuln/core-scheduling.rst",
            )
            .by("isolate both CPUs of a core, or take the sibling offline (boot with nosmt)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn slow_wake_ups_of_isolated_cpus_only() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/cpu/cpu1/cpuidle/state2/latency", "133"),
            ("sys/devices/system/cpu/cpu1/cpuidle/state2/disable", "0"),
            ("sys/devices/system/cpu/cpu2/cpuidle/state1/latency", "2"),
            ("sys/devices/system/cpu/cpu2/cpuidle/state1/disable", "0"),
            ("sys/devices/system/cpu/cpu2/cpuidle/state2/latency", "133"),
            ("sys/devices/system/cpu/cpu2/cpuidle/state2/disable", "0"),
            ("sys/devices/system/cpu/cpu2/cpuidle/state2/name", "C6"),
            ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2"),
        ]);
        let all = check(&System::read(root, Some(&"2".parse().unwrap())));
        let found: Vec<_> = all.iter().map(|one| one.found.as_str()).collect();
        assert_eq!(found, ["C6 (133 us)", "powersave", "2 with 0"]);
        assert_eq!(all[0].command, "echo 1 > /sys/devices/system/cpu/cpu2/cpuidle/state2/disable");
    }

    #[test]
    fn a_guest_polls_before_it_halts() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-1"),
            ("proc/cpuinfo", "flags : hypervisor\n"),
            ("sys/devices/system/cpu/cpuidle/current_driver", "haltpoll"),
            ("sys/module/haltpoll/parameters/guest_halt_poll_ns", "0"),
        ]);
        let all = check(&System::read(root, Some(&"1".parse().unwrap())));
        let poll = all.iter().find(|one| one.check == "guest halt polling").unwrap();
        assert_eq!((poll.state, poll.fix.len()), (State::Todo, 1));
    }
}
