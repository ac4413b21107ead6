//! What is chosen at boot: which CPUs are isolated from what, RCU, clocks, watchdogs.

use entrain_system::CpuSet;

use super::change::Change;
use super::finding::{Finding, State};
use super::system::{System, shown};

const PARAMETERS: &str = "Documentation/admin-guide/kernel-parameters.txt";
/// Clocks that are read without leaving the CPU, and are good enough for a stopped tick.
const CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];
/// Patience of RCU that is asked for, ms; the kernel's own limit is 5000.
const PATIENCE: u32 = 1000;

pub(super) fn check(system: &System) -> Vec<Finding> {
    let mut all = vec![isolated(system)];
    if !system.quiet.is_empty() {
        all.extend([isolcpus(system), nohz_full(system), rcu_nocbs(system), patience(system), guest_exit(system)]);
        all.extend(watchdog(system));
    }
    all.extend(clocksource(system));
    all.extend(nmi_watchdog(system));
    all.extend(expedited(system));
    all
}

fn isolated(system: &System) -> Finding {
    let state = State::when(!system.quiet.is_empty() && !system.housekeeping.is_empty());
    let found = format!("{} of {}", shown(&system.quiet), system.online);
    Finding::new("isolated CPUs", state, found, "some CPUs, but not all")
        .because("an undisturbed CPU needs another one to do the rest", PARAMETERS)
        .by("boot with isolcpus=managed_irq,domain,CPUS nohz_full=CPUS rcu_nocbs=CPUS, or name them: --cpus LIST")
}

fn covering(system: &System, check: &'static str, cpus: &CpuSet, why: &'static str, parameter: &str) -> Finding {
    Finding::new(check, State::when(system.covers(cpus)), shown(cpus), system.quiet.to_string())
        .because(why, PARAMETERS)
        .at_boot(format!("{parameter}{}", system.quiet))
}

fn isolcpus(system: &System) -> Finding {
    let why = "no load balancing onto these CPUs, and the kernel's own threads stay away";
    let mut finding = covering(system, "isolcpus", &system.isolated, why, "isolcpus=managed_irq,domain,");
    finding.command.push_str(" (or a cpuset partition `isolated`)");
    finding
}

fn nohz_full(system: &System) -> Finding {
    let why = "the tick stops while one task runs; timers and unbound work stay on the other CPUs";
    covering(system, "nohz_full", &system.nohz_full, why, "nohz_full=")
}

fn rcu_nocbs(system: &System) -> Finding {
    let why = "RCU callbacks run in threads on other CPUs (those of nohz_full are included)";
    let covered = system.rcu_nocbs.union(&system.nohz_full);
    covering(system, "rcu_nocbs", &covered, why, "rcu_nocbs=")
}

fn patience(system: &System) -> Finding {
    let check = "rcu patience";
    let why = "without it, any grace period that this CPU keeps waiting for wakes rcuc there from the tick";
    let source =
        "Documentation/admin-guide/kernel-parameters.txt (rcutree.nohz_full_patience_delay); commit 68d124b09999";
    let wanted = format!("{PATIENCE} ms or more");
    let path = "sys/module/rcutree/parameters/nohz_full_patience_delay";
    match system.root.parse::<u32>(path) {
        Some(found) => Finding::new(check, State::when(found >= PATIENCE), format!("{found} ms"), wanted)
            .because(why, source)
            .at_boot(format!("rcutree.nohz_full_patience_delay={PATIENCE}")),
        None if system.at_least((6, 11)) => {
            Finding::new(check, State::Unknown, "the kernel does not tell", wanted).because(why, source)
        }
        None => Finding::new(check, State::Todo, "the kernel has none (6.11 or newer has)", wanted)
            .because(why, source)
            .by(format!("use Linux 6.11 or newer, with rcutree.nohz_full_patience_delay={PATIENCE}")),
    }
}

fn guest_exit(system: &System) -> Finding {
    let (major, minor) = system.release;
    Finding::new(
        "rcu at guest exit",
        State::when(system.at_least((6, 12))),
        format!("{major}.{minor}"),
        "6.12 or newer",
    )
    .because(
        "KVM notes a quiescent state at each guest exit, so that a busy vCPU does not wake rcuc",
        "commit 593377036e50",
    )
    .by("use Linux 6.12 or newer on a KVM host")
}

fn clocksource(system: &System) -> Option<Finding> {
    let folder = "sys/devices/system/clocksource/clocksource0";
    let found = system.root.trimmed(format!("{folder}/current_clocksource"))?;
    let offered = system.root.trimmed(format!("{folder}/available_clocksource")).unwrap_or_default();
    let better = CLOCKS.iter().find(|name| offered.split_ascii_whitespace().any(|one| one == **name));
    let path = format!("{folder}/current_clocksource");
    let fix = better.and_then(|name| Change::write(&system.root, &path, *name));
    let state = State::when(CLOCKS.contains(&found.as_str()));
    let finding = Finding::new("clocksource", state, found, better.map_or("tsc", |name| name))
        .because(
            "others are slow to read; an unstable clock keeps the tick on, nohz_full or not",
            "Documentation/timers/no_hz.rst",
        )
        .by(if better.is_some() { "" } else { "boot with tsc=reliable if the TSC is sound" });
    Some(finding.with(fix.into_iter().collect()))
}

fn watchdog(system: &System) -> Option<Finding> {
    let path = "proc/sys/kernel/watchdog_cpumask";
    if system.root.trimmed("proc/sys/kernel/soft_watchdog")? == "0" {
        return None;
    }
    let found: CpuSet = system.root.parse(path)?;
    let state = State::when(found.common(&system.quiet).is_empty());
    let fix = Change::write(&system.root, path, system.housekeeping.to_string());
    Some(
        Finding::new("soft lockup watchdog", state, shown(&found), system.housekeeping.to_string())
            .because(
                "its timer fires on each CPU of this set every few seconds",
                "Documentation/admin-guide/lockup-watchdogs.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

fn nmi_watchdog(system: &System) -> Option<Finding> {
    let path = "proc/sys/kernel/nmi_watchdog";
    let found = system.root.trimmed(path)?;
    let state = State::when(found == "0");
    let fix = Change::write(&system.root, path, "0");
    Some(
        Finding::new("NMI watchdog", state, found, "0")
            .because(
                "it takes a perf counter and interrupts every CPU",
                "Documentation/admin-guide/lockup-watchdogs.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

fn expedited(system: &System) -> Option<Finding> {
    let path = "sys/kernel/rcu_normal";
    let found = system.root.trimmed(path)?;
    let fix = Change::write(&system.root, path, "1");
    Some(
        Finding::new("expedited RCU", State::when(found == "1"), format!("rcu_normal={found}"), "rcu_normal=1")
            .because(
                "expedited grace periods send an IPI to every CPU that is busy in the kernel",
                "Documentation/admin-guide/kernel-parameters.txt (rcupdate.rcu_normal)",
            )
            .with(fix.into_iter().collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    fn outcome(files: &[(&str, &str)]) -> Vec<(&'static str, State, String)> {
        let (_dir, root) = tree(files);
        let found = check(&System::read(root, Some(&"2-3".parse().unwrap())));
        found.into_iter().map(|one| (one.check, one.state, one.command)).collect()
    }

    #[test]
    fn parameters_that_disagree_are_told_with_the_right_ones() {
        let all = outcome(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/cpu/possible", "0-3"),
            ("sys/devices/system/cpu/isolated", "2-3"),
            ("sys/devices/system/cpu/nohz_full", "3"),
            ("proc/cmdline", "isolcpus=2-3 nohz_full=3 rcu_nocbs=2"),
            ("proc/sys/kernel/osrelease", "6.8.0"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
            ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm"),
            ("proc/sys/kernel/soft_watchdog", "1"),
            ("proc/sys/kernel/watchdog_cpumask", "0-3"),
        ]);
        let of = |name| all.iter().find(|one| one.0 == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(of("isolcpus").1, State::Ok);
        assert_eq!((of("nohz_full").1, of("nohz_full").2.as_str()), (State::Todo, "boot with nohz_full=2-3"));
        assert_eq!(of("rcu_nocbs").1, State::Ok, "nohz_full adds CPU 3");
        assert_eq!(of("rcu patience").1, State::Todo);
        assert!(of("rcu patience").2.contains("6.11"));
        assert_eq!(of("rcu at guest exit").1, State::Todo);
        assert!(of("clocksource").2.contains("echo tsc > /sys/devices"));
        assert_eq!(of("soft lockup watchdog").2, "echo 0-1 > /proc/sys/kernel/watchdog_cpumask");
    }

    #[test]
    fn a_new_kernel_well_set_up_has_nothing_to_do() {
        let all = outcome(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/cpu/isolated", "2-3"),
            ("sys/devices/system/cpu/nohz_full", "2-3"),
            ("proc/sys/kernel/osrelease", "7.3.4+deb13-rt-amd64"),
            ("sys/module/rcutree/parameters/nohz_full_patience_delay", "1000"),
            ("sys/kernel/rcu_normal", "1"),
            ("proc/sys/kernel/nmi_watchdog", "0"),
        ]);
        assert!(all.iter().all(|one| one.1 == State::Ok), "{all:?}");
    }
}
