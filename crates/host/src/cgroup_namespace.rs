//! The host's tree of cgroups, where the daemon runs in a container with a cgroup namespace of its own.
//!
//! There `/proc/PID/cgroup` tells paths from the container's own cgroup (`/../../kubepods.slice/…`) and `/sys/fs/cgroup`
//! is the container's part of the tree. The daemon shares the host's processes (`hostPID`), so it reads through the first
//! of them: it enters that one's cgroup namespace, and finds the tree below its root.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use entrain_system::Root;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tracing::{info, warn};

use crate::cgroup::CGROUPS;

/// Has this thread, and those that it starts from here on, read the host's paths. Takes CAP_SYS_ADMIN.
pub(crate) fn enter(root: &Root) {
    if !is_apart(&root.text("proc/1/cgroup").unwrap_or_default()) {
        return;
    }
    match join(root) {
        Ok(()) => info!("entered the host's cgroup namespace"),
        Err(error) => warn!(
            "this cgroup namespace is not the host's, which cannot be entered ({error}): VMs' cgroups are not known, so \
             classes by cgroup match none and no weight is followed or set; run with the host's (docker run --cgroupns=host)"
        ),
    }
}

fn join(root: &Root) -> io::Result<()> {
    let namespace = File::open(root.path("proc/1/ns/cgroup"))?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup))?)
}

/// Whether the first process, by the text of its `/proc/1/cgroup`, is outside of the namespace that it is read from.
fn is_apart(cgroup: &str) -> bool {
    cgroup.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| path == "/.." || path.starts_with("/../"))
}

/// The folder of the host's root cgroup. The root has no `cgroup.events`; what is mounted in a container has.
pub(crate) fn mount(root: &Root) -> PathBuf {
    let is_root = |tree: &str| !root.exists(format!("{tree}/cgroup.events"));
    let of_first = format!("proc/1/root/{CGROUPS}");
    if !is_root(CGROUPS) && root.exists(format!("{of_first}/cgroup.controllers")) && is_root(&of_first) {
        return root.path(of_first);
    }
    root.path(CGROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn a_namespace_of_its_own_shows_where_the_first_process_is() {
        assert!(is_apart("9:name=systemd:/\n0::/../../../init.scope\n") && is_apart("0::/..\n"));
        assert!(!is_apart("0::/init.scope\n") && !is_apart("0::/..x\n") && !is_apart("4:memory:/../..\n0::/\n"));
    }

    #[test]
    fn the_host_s_tree_is_found_through_the_first_process() {
        let machine = Machine::default();
        let root = machine.root();
        machine.put("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        assert_eq!(mount(&root), root.path("sys/fs/cgroup"), "the root itself");
        machine.put("sys/fs/cgroup/cgroup.events", "populated 1\n");
        assert_eq!(mount(&root), root.path("sys/fs/cgroup"), "no other to be seen");
        machine.put("proc/1/root/sys/fs/cgroup/cgroup.controllers", "cpu\n");
        assert_eq!(mount(&root), root.path("proc/1/root/sys/fs/cgroup"));
        machine.put("proc/1/root/sys/fs/cgroup/cgroup.events", "populated 1\n");
        assert_eq!(mount(&root), root.path("sys/fs/cgroup"), "that is a container's, too");
    }
}
