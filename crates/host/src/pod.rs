//! The pod of Kubernetes that a VM runs in, by its cgroup.
//!
//! KubeVirt's VMM shares its container with a launcher and libvirt's daemons, and its pod with an idle container that holds
//! the network and perhaps with others, all there for this VM alone. It is the pod's weight that counts against other pods:
//! a container's counts only against its own pod's.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use entrain_system::Root;

/// Processes of a pod that are looked at. KubeVirt's have a dozen; one with more is not taken for a VM's own.
const PROCESSES: usize = 128;
/// Bytes of a list of processes that are read: a number has seven digits at most.
const BYTES: u64 = 8 * (PROCESSES as u64 + 1);
/// Cgroups of a pod that are looked at: its containers', and what they have made inside.
const GROUPS: usize = 256;

/// The pod's cgroup among the parts of `cgroup`, with a slash in front: by systemd
/// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`, without it `/kubepods/burstable/podUID`.
/// Where a node is a container itself, others stand before it.
pub(crate) fn of(cgroup: &str) -> Option<&str> {
    let mut end = 0;
    let mut parts = cgroup.split('/').map(|part| {
        end += part.len() + 1;
        (part, end - 1)
    });
    parts.find(|(part, _)| part.contains("kubepods"))?;
    let (_, end) = parts.find(|(part, _)| is_pod(part))?;
    Some(&cgroup[..end])
}

/// Whether a cgroup is called after a pod's UID: an ordinary one (with underscores for systemd), or the digest that the pods
/// of a node's own files have.
fn is_pod(part: &str) -> bool {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = name.rsplit_once("pod").map_or("", |(_, uid)| uid);
    uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-' || byte == b'_')
}

/// Whether the pod with this folder runs the VM of process `pid` and no other: none of its other processes has the same name.
pub(crate) fn is_of_one_vm(root: &Root, pod: &Path, pid: i32) -> bool {
    let name = |pid: i32| root.text(format!("proc/{pid}/comm"));
    let (Some(vmm), Some(all)) = (name(pid), processes(pod)) else { return false };
    all.contains(&pid) && all.into_iter().all(|other| other == pid || name(other).as_ref() != Some(&vmm))
}

/// All processes in a cgroup and those below it; `None` where there are too many of either.
fn processes(group: &Path) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    let mut groups = vec![group.to_owned()];
    let mut looked = 0;
    while let Some(group) = groups.pop() {
        looked += 1;
        // A threaded group refuses to list processes; the group above it lists them.
        let mut listed = String::new();
        if let Ok(file) = File::open(group.join("cgroup.procs")) {
            let _ = file.take(BYTES).read_to_string(&mut listed);
        }
        found.extend(listed.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
        let entries = fs::read_dir(&group).ok().into_iter().flatten().flatten();
        groups.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
        if found.len() > PROCESSES || looked + groups.len() > GROUPS {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    const UID: &str = "0f4c1b2a-7d3e-4f5a-9b8c-1d2e3f4a5b6c";

    #[test]
    fn a_pod_is_known_by_its_uid() {
        let systemd =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let guaranteed = format!("/kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
        let plain = format!("/kubepods/besteffort/pod{UID}");
        let digest = "/kubepods/pod0123456789abcdef0123456789abcdef".to_owned();
        let kind = format!(
            "/docker/4d3e/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{}.slice",
            UID.replace('-', "_")
        );
        for pod in [systemd, guaranteed, plain, digest, kind] {
            assert_eq!(of(&format!("{pod}/cri-containerd-4d3e.scope/vcpu0")), Some(pod.as_str()));
            assert_eq!(of(&pod), Some(pod.as_str()));
        }
        for other in [
            "",
            "/",
            "/kubepods.slice",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods/podium",
            "/machine.slice/machine-qemu\\x2d1\\x2dpod0123456789abcdef0123456789abcdef.scope",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_is_a_vm_s_own_with_its_launcher_and_not_with_another_vm() {
        let machine = Machine::default();
        let root = machine.root();
        let pod = format!("sys/fs/cgroup/kubepods/pod{UID}");
        let put = |path: &str, text: &str| machine.put(path, text);
        put(&format!("{pod}/pause/cgroup.procs"), "2\n");
        put(&format!("{pod}/compute/cgroup.procs"), "3\n4\n7\n");
        for (pid, name) in [(2, "pause"), (3, "virt-launcher"), (4, "virtqemud"), (7, "qemu-kvm")] {
            put(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        }
        let own = |pid| is_of_one_vm(&root, &root.path(&pod), pid);
        assert!(own(7));
        assert!(!own(9), "that is none of its processes");
        put("proc/5/comm", "qemu-kvm\n");
        put(&format!("{pod}/sidecar/nested/cgroup.procs"), "5\n");
        assert!(!own(7), "which of both would the weight be?");
    }

    #[test]
    fn a_pod_without_end_costs_a_bounded_look() {
        let machine = Machine::default();
        let root = machine.root();
        machine.put("proc/7/comm", "qemu-kvm\n");
        machine.put("many/cgroup.procs", (7..1000).map(|pid| format!("{pid}\n")).collect::<String>());
        (0..300).for_each(|group| machine.put(&format!("wide/{group}/cgroup.procs"), ""));
        machine.put("wide/cgroup.procs", "7\n");
        assert!(!is_of_one_vm(&root, &root.path("many"), 7));
        assert!(!is_of_one_vm(&root, &root.path("wide"), 7));
    }
}
