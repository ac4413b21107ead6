//! `--emit`: what the check wants, as a profile of a tool that applies it at each boot.
//!
//! A profile holds what goes by names: parameters of the kernel, sysctls, files of sysfs. Interrupts and threads have other
//! numbers after each boot; the tools have means of their own for those, which are told the CPUs.

use std::fmt::Write as _;

use super::change::Change;
use super::finding::Finding;
use super::system::System;

/// Whose profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// A profile of tuned: /etc/tuned/profiles/entrain-isolated/tuned.conf (older versions: without profiles/)
    Tuned,
    /// A PerformanceProfile of OpenShift's Node Tuning Operator, for `oc apply -f`
    #[value(name = "performanceprofile")]
    PerformanceProfile,
}

impl Form {
    /// The file.
    pub(super) fn text(self, system: &System, findings: &[Finding]) -> String {
        let wanted = Wanted::of(findings);
        match self {
            Self::Tuned => tuned(system, &wanted),
            Self::PerformanceProfile => performance_profile(system, &wanted),
        }
    }
}

/// What the findings want, by where it goes.
#[derive(Debug, Default)]
struct Wanted {
    boot: Vec<String>,
    /// Name and value, of files below `/proc/sys`.
    sysctl: Vec<(String, String)>,
    /// Path and value, of files below `/sys`.
    sysfs: Vec<(String, String)>,
}

impl Wanted {
    fn of(findings: &[Finding]) -> Self {
        let mut wanted = Self { boot: findings.iter().flat_map(|one| one.boot.clone()).collect(), ..Self::default() };
        for change in findings.iter().flat_map(|one| &one.wants) {
            let Change::Write { path, new, .. } = change else { continue };
            if let Some(name) = path.strip_prefix("proc/sys/") {
                wanted.sysctl.push((name.replace('/', "."), new.clone()));
            } else if path.starts_with("sys/") {
                wanted.sysfs.push((format!("/{path}"), new.clone()));
            }
        }
        wanted
    }
}

fn tuned(system: &System, wanted: &Wanted) -> String {
    let mut text = format!(
        "# From `entrain isolate check --emit tuned`, for CPU {}; apply with: tuned-adm profile entrain-isolated, then boot.\n\
         [main]\nsummary=CPU {} undisturbed, as entrain isolate check wants it\n\n[variables]\nisolated_cores={}\n\n\
         [bootloader]\ncmdline_entrain=+{}\n",
        system.quiet,
        system.quiet,
        system.quiet,
        wanted.boot.join(" ")
    );
    for (section, pairs) in [("sysctl", &wanted.sysctl), ("sysfs", &wanted.sysfs)] {
        if !pairs.is_empty() {
            let _ = write!(text, "\n[{section}]\n");
            pairs.iter().for_each(|(name, value)| text.push_str(&format!("{name}={value}\n")));
        }
    }
    // tuned moves interrupts and all threads that may be moved off these.
    text + "\n[irqbalance]\nbanned_cpus=${isolated_cores}\n\n[scheduler]\nisolated_cores=${isolated_cores}\n"
}

fn performance_profile(system: &System, wanted: &Wanted) -> String {
    // The operator gives these itself, from the sets of CPUs.
    let own = |parameter: &&String| {
        !["isolcpus=", "nohz_full=", "rcu_nocbs="].iter().any(|start| parameter.starts_with(start))
    };
    let mut text = format!(
        "# From `entrain isolate check --emit performanceprofile`. The operator derives isolcpus, nohz_full, rcu_nocbs, the\n\
         # affinity of interrupts and its tuned profile from the sets of CPUs.\n\
         apiVersion: performance.openshift.io/v2\nkind: PerformanceProfile\nmetadata:\n  name: entrain-isolated\nspec:\n  \
         cpu:\n    isolated: \"{}\"\n    reserved: \"{}\"\n  realTimeKernel:\n    enabled: {}\n  globallyDisableIrqLoadBalancing: \
         true\n  nodeSelector:\n    node-role.kubernetes.io/worker-rt: \"\"\n",
        system.quiet, system.housekeeping, system.rt,
    );
    let more: Vec<&String> = wanted.boot.iter().filter(own).collect();
    if !more.is_empty() {
        text.push_str("  additionalKernelArgs:\n");
        more.iter().for_each(|parameter| text.push_str(&format!("    - {parameter}\n")));
    }
    for (path, value) in wanted.sysctl.iter().chain(&wanted.sysfs) {
        text.push_str(&format!("# not in a PerformanceProfile, for a Tuned object of your own: {path}={value}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::all;
    use entrain_system::fake::tree;

    fn system() -> (entrain_system::fake::Machine, System) {
        let (machine, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/cpu/isolated", "2-3"),
            ("proc/sys/kernel/osrelease", "6.12.0"),
            ("sys/module/rcutree/parameters/nohz_full_patience_delay", "1000"),
            ("proc/sys/kernel/numa_balancing", "0"),
            ("proc/sys/kernel/timer_migration", "1"),
            ("sys/kernel/mm/ksm/run", "1"),
        ]);
        let system = System::read(root, None);
        (machine, system)
    }

    #[test]
    fn a_profile_has_what_is_done_already_as_well() {
        let (_machine, system) = system();
        let text = Form::Tuned.text(&system, &all(&system));
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "no '{line}' in\n{text}");
        has("isolated_cores=2-3");
        has("kernel.numa_balancing=0");
        has("/sys/kernel/mm/ksm/run=0");
        let boot = text.lines().find(|line| line.starts_with("cmdline_entrain=+")).expect("parameters");
        assert_eq!(
            boot,
            "cmdline_entrain=+isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocbs=2-3 \
             rcutree.nohz_full_patience_delay=1000"
        );
    }

    #[test]
    fn the_operator_is_told_the_sets_and_not_what_it_derives_from_them() {
        let (_machine, system) = system();
        let text = Form::PerformanceProfile.text(&system, &all(&system));
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "no '{line}' in\n{text}");
        has("    isolated: \"2-3\"");
        has("    reserved: \"0-1\"");
        has("    - rcutree.nohz_full_patience_delay=1000");
        assert!(!text.contains("nohz_full=2-3"), "{text}");
    }
}
