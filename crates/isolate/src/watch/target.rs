//! Which CPUs are watched, and for whom they are.

use std::collections::BTreeSet;

use anyhow::bail;
use entrain_system::{CpuSet, Root};

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The CPUs.
    pub(crate) cpus: CpuSet,
    /// Threads that they are for; empty when nobody was named.
    pub(crate) owners: BTreeSet<u32>,
}

/// The CPUs that are isolated by the kernel's own account.
pub(crate) fn isolated(root: &Root) -> CpuSet {
    root.cpus_or_none("sys/devices/system/cpu/isolated").union(&root.cpus_or_none("sys/devices/system/cpu/nohz_full"))
}

impl Target {
    /// The given CPUs, or those that the threads of `pids` are pinned to, or the isolated ones.
    ///
    /// # Errors
    /// When no CPU is left, one is not there, or a process is not pinned.
    pub(crate) fn choose(root: &Root, cpus: Option<&CpuSet>, pids: &[u32]) -> anyhow::Result<Self> {
        let online = root.cpus_or_none("sys/devices/system/cpu/online");
        let mut owners = BTreeSet::new();
        let mut pinned = CpuSet::default();
        for pid in pids {
            let threads = vcpu_threads(root, *pid);
            if threads.is_empty() {
                bail!("no process or thread {pid}: it has ended, or the number is wrong");
            }
            for (tid, allowed) in threads {
                if online.without(&allowed).is_empty() && cpus.is_none() {
                    bail!(
                        "thread {tid} of {pid} may run on every CPU: pin it first (taskset -pc CPU {tid}), or name CPUs with --cpus"
                    );
                }
                pinned = pinned.union(&allowed);
                owners.insert(tid);
            }
        }
        let chosen = match cpus {
            Some(cpus) => cpus.clone(),
            None if pids.is_empty() => isolated(root),
            None => pinned,
        };
        if chosen.is_empty() {
            bail!("no CPU is isolated here (isolcpus=, nohz_full=): name the CPUs to watch with --cpus LIST");
        }
        let absent = chosen.without(&online);
        if !absent.is_empty() {
            bail!("CPU {absent} is not online; online are {online}");
        }
        Ok(Self { cpus: chosen, owners })
    }
}

/// The vCPU threads of a VMM's process with the CPUs that they may run on (QEMU's are called `CPU 0/KVM`,
/// cloud-hypervisor's `vcpu0`, firecracker's `fc_vcpu 0`). A process without such threads, or a thread, stands for itself.
pub(crate) fn vcpu_threads(root: &Root, pid: u32) -> Vec<(u32, CpuSet)> {
    let field = |path: String, key: &str| {
        let text = root.trimmed(&path)?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
    };
    let allowed = |tid: u32| field(format!("proc/{pid}/task/{tid}/status"), "Cpus_allowed_list:")?.parse().ok();
    // The kernel shows the folder of a thread as well, with all threads of its process in it.
    let leader = field(format!("proc/{pid}/status"), "Tgid:").and_then(|text| text.parse::<u32>().ok());
    let thread = leader.is_some_and(|leader| leader != pid);
    let tasks = root.list(format!("proc/{pid}/task"));
    let tasks: Vec<u32> =
        tasks.iter().filter_map(|name| name.parse().ok()).filter(|tid| !thread || *tid == pid).collect();
    let of = |wanted: &dyn Fn(u32) -> bool| {
        tasks.iter().filter(|tid| wanted(**tid)).filter_map(|tid| Some((*tid, allowed(*tid)?))).collect::<Vec<_>>()
    };
    let vcpus = of(&|tid| root.trimmed(format!("proc/{pid}/task/{tid}/comm")).is_some_and(|comm| is_vcpu_name(&comm)));
    if vcpus.is_empty() { of(&|tid| tid == pid) } else { vcpus }
}

/// Whether VMMs call vCPU threads so.
pub(crate) fn is_vcpu_name(comm: &str) -> bool {
    comm.ends_with("/KVM") || comm.starts_with("vcpu") || comm.starts_with("fc_vcpu")
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn a_vm_is_watched_where_its_vcpus_are_pinned() {
        let status = |cpus: &str| format!("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\n");
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-7"),
            ("proc/70/task/70/comm", "qemu"),
            ("proc/70/task/70/status", &status("0-7")),
            ("proc/70/task/71/comm", "CPU 0/KVM"),
            ("proc/70/task/71/status", &status("2")),
            ("proc/70/task/72/comm", "CPU 1/KVM"),
            ("proc/70/task/72/status", &status("3")),
            ("proc/72/status", "Name:\tx\nTgid:\t70\n"),
            ("proc/72/task/71/comm", "CPU 0/KVM"),
            ("proc/72/task/71/status", &status("2")),
            ("proc/72/task/72/comm", "CPU 1/KVM"),
            ("proc/72/task/72/status", &status("3")),
            ("proc/80/task/80/comm", "loose"),
            ("proc/80/task/80/status", &status("0-7")),
        ]);
        let target = Target::choose(&root, None, &[70]).unwrap();
        assert_eq!((target.cpus.to_string().as_str(), target.owners.len()), ("2-3", 2));
        let target = Target::choose(&root, None, &[72]).unwrap();
        assert_eq!((target.cpus.to_string().as_str(), target.owners), ("3", BTreeSet::from([72])));
        let error = Target::choose(&root, None, &[80]).unwrap_err().to_string();
        assert!(error.contains("pin it first"), "{error}");
        assert!(Target::choose(&root, None, &[90]).is_err());
    }

    #[test]
    fn the_kernel_tells_what_is_isolated() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/online", "0-7"),
            ("sys/devices/system/cpu/isolated", "2-3"),
            ("sys/devices/system/cpu/nohz_full", "3-4"),
        ]);
        assert_eq!(Target::choose(&root, None, &[]).unwrap().cpus.to_string(), "2-4");
        let error = Target::choose(&root, Some(&"8".parse().unwrap()), &[]).unwrap_err().to_string();
        assert!(error.contains("CPU 8 is not online"), "{error}");
        let (_dir, bare) = tree(&[("sys/devices/system/cpu/online", "0-1")]);
        assert!(Target::choose(&bare, None, &[]).unwrap_err().to_string().contains("--cpus"));
    }
}
