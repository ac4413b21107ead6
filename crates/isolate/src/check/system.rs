//! What all checks start from: which CPUs, which kernel, how it was booted.

use entrain_system::{CpuSet, Root};

/// The system under check.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(crate) root: Root,
    pub(crate) online: CpuSet,
    /// The CPUs that are to be quiet: as asked for, or those that the kernel isolates in any way.
    pub(crate) quiet: CpuSet,
    /// The others.
    pub(crate) housekeeping: CpuSet,
    /// What the kernel says of isolcpus= and of isolated cpuset partitions.
    pub(crate) isolated: CpuSet,
    pub(crate) nohz_full: CpuSet,
    /// From rcu_nocbs=; the CPUs of nohz_full are offloaded besides.
    pub(crate) rcu_nocbs: CpuSet,
    /// Major and minor number; (0, 0) when they are not to be read.
    pub(crate) release: (u32, u32),
    pub(crate) rt: bool,
    /// It runs under a hypervisor.
    pub(crate) guest: bool,
}

impl System {
    /// Reads it. `wanted` are the CPUs that are to be quiet, if anybody said so.
    pub(crate) fn read(root: Root, wanted: Option<&CpuSet>) -> Self {
        let online = root.cpus_or_none("sys/devices/system/cpu/online");
        let isolated = root.cpus_or_none("sys/devices/system/cpu/isolated");
        let nohz_full = root.cpus_or_none("sys/devices/system/cpu/nohz_full");
        let possible = root.cpus_or_none("sys/devices/system/cpu/possible");
        let rcu_nocbs = match root.kernel_parameter("rcu_nocbs").as_deref() {
            Some("all") => possible,
            Some(list) => list.parse().unwrap_or_default(),
            None => CpuSet::default(),
        };
        // rcu_nocbs=all is common, and says nothing of quiet CPUs where others are named.
        let named = isolated.union(&nohz_full);
        let found = || if named.is_empty() { rcu_nocbs.clone() } else { named.clone() };
        let quiet = wanted.cloned().unwrap_or_else(found).common(&online);
        let osrelease = root.trimmed("proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            housekeeping: online.without(&quiet),
            rt: root.trimmed("sys/kernel/realtime").as_deref() == Some("1") || osrelease.contains("-rt"),
            guest: root.trimmed("proc/cpuinfo").is_some_and(|text| has_flag(&text, "hypervisor")),
            release: release(&osrelease),
            root,
            online,
            quiet,
            isolated,
            nohz_full,
            rcu_nocbs,
        }
    }

    /// Whether the kernel is at least this one; an unknown one is taken for new.
    pub(crate) fn at_least(&self, release: (u32, u32)) -> bool {
        self.release == (0, 0) || self.release >= release
    }

    /// Tells whether `cpus` have all quiet CPUs, and which are missing.
    pub(crate) fn covers(&self, cpus: &CpuSet) -> bool {
        self.quiet.without(cpus).is_empty()
    }
}

fn release(text: &str) -> (u32, u32) {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_ascii_whitespace().any(|word| word == flag))
}

/// A set as text; empty ones too.
pub(crate) fn shown(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn the_kernel() {
        assert_eq!(release("7.3.4+deb13-rt-amd64"), (7, 3));
        assert_eq!(release("unknown"), (0, 0));
    }

    #[test]
    fn quiet_cpus_are_those_isolated_unless_told() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/devices/system/cpu/possible", "0-15\n"),
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/cpu/nohz_full", "3-4\n"),
            ("proc/cmdline", "isolcpus=2-3 nohz_full=3-4 rcu_nocbs=all\n"),
            ("proc/sys/kernel/osrelease", "6.12.1-rt-amd64\n"),
            ("proc/cpuinfo", "flags\t\t: fpu hypervisor\n"),
        ]);
        let system = System::read(root.clone(), None);
        assert_eq!((system.quiet.to_string().as_str(), system.housekeeping.to_string().as_str()), ("2-4", "0-1,5-7"));
        assert!(system.rt && system.guest && system.at_least((6, 12)) && !system.at_least((6, 13)));
        let system = System::read(root, Some(&"2-4".parse().unwrap()));
        assert_eq!((system.housekeeping.to_string().as_str(), system.covers(&system.isolated)), ("0-1,5-7", false));
    }
}
