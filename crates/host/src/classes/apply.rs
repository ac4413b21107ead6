//! What a class does: it sets `cpu.weight` of its VMs' cgroups, for as long as the daemon runs.
//!
//! The weight is what both of the host's schedulers go by, the kernel's own and Entrain's, and the entitlement that
//! guests are told follows it, as it does a weight that somebody else has set. It is only set on a cgroup that holds one
//! VM's process and no other: in a cgroup that is shared, it would count for the neighbours too. A weight that was
//! changed by somebody else meanwhile is theirs from then on.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::{Classes, Identity};
use crate::cgroup::{cgroup_of, own_group};

/// A weight that was set.
#[derive(Debug)]
struct Set {
    before: String,
    now: u64,
}

/// Sets weights and takes them back.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// By the path of a cgroup.
    set: BTreeMap<PathBuf, Set>,
    /// What has been said of each VM's process, so that it is said once.
    said: HashSet<i32>,
}

impl Weights {
    /// Gives every VM its class: returns their names in the order of `vms` (name, VMM's process). Without classes, or for
    /// VMs without one, what was set before is taken back.
    pub(crate) fn apply(
        &mut self,
        classes: Option<&Classes>,
        proc: &Path,
        root: &Path,
        vms: &[(String, i32)],
    ) -> Vec<Option<String>> {
        let mut wanted = BTreeMap::new();
        let mut names = Vec::new();
        self.said.retain(|pid| vms.iter().any(|(_, known)| known == pid));
        for (name, pid) in vms {
            let cgroup = cgroup_of(proc, *pid).unwrap_or_default();
            let identity = Identity { name, pid: *pid, cgroup: &cgroup };
            let Some((class, settings)) = classes.and_then(|classes| classes.of(&identity)) else {
                names.push(None);
                continue;
            };
            names.push(Some(class.to_owned()));
            let Some(weight) = settings.weight else { continue };
            match own_group(root, &cgroup, *pid) {
                Some(group) => {
                    wanted.insert(group, weight);
                }
                None if self.said.insert(*pid) => warn!(
                    "{name}: no cgroup of its own that has cpu.weight ({}): class '{class}' changes nothing for it; start \
                     it by libvirt, or in a scope of its own (systemd-run --scope)",
                    if cgroup.is_empty() { "no cgroup v2" } else { &cgroup },
                ),
                None => {}
            }
        }
        let gone: Vec<PathBuf> = self.set.keys().filter(|group| !wanted.contains_key(*group)).cloned().collect();
        for group in gone {
            self.take_back(&group);
        }
        for (group, weight) in wanted {
            self.put(group, weight);
        }
        names
    }

    fn put(&mut self, group: PathBuf, weight: u64) {
        if self.set.get(&group).is_some_and(|set| set.now == weight) {
            return;
        }
        let file = group.join("cpu.weight");
        // The VM may end at any moment, and its cgroup with it.
        let Ok(before) = fs::read_to_string(&file) else { return };
        match fs::write(&file, weight.to_string()) {
            Ok(()) => {
                info!("{}: {} becomes {weight}", file.display(), before.trim());
                let before = self.set.remove(&group).map_or(before, |set| set.before);
                self.set.insert(group, Set { before, now: weight });
            }
            Err(error) => warn!("{}: cannot set {weight}: {error}", file.display()),
        }
    }

    fn take_back(&mut self, group: &Path) {
        let Some(set) = self.set.remove(group) else { return };
        let file = group.join("cpu.weight");
        let now = fs::read_to_string(&file).unwrap_or_default();
        if now.trim() != set.now.to_string() {
            return;
        }
        match fs::write(&file, set.before.trim()) {
            Ok(()) => info!("{}: {} again", file.display(), set.before.trim()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!("{}: cannot set {} again: {error}", file.display(), set.before.trim()),
        }
    }

    /// Takes everything back, for the end of the daemon.
    pub(crate) fn take_all_back(&mut self) {
        let groups: Vec<PathBuf> = self.set.keys().cloned().collect();
        groups.iter().for_each(|group| self.take_back(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a temporary folder"))
        }
        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("has a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        fn get(&self, path: &str) -> String {
            fs::read_to_string(self.0.path().join(path)).expect("there").trim().to_owned()
        }
        /// A VM as libvirt makes it, and one in a cgroup with a shell.
        fn with_vms() -> Self {
            let tree = Self::new();
            tree.put("proc/7/cgroup", "0::/machine.slice/vm7.scope/libvirt/emulator\n");
            tree.put("cgroup/machine.slice/cpu.weight", "100\n");
            tree.put("cgroup/machine.slice/other.scope/cgroup.procs", "99\n");
            tree.put("cgroup/machine.slice/vm7.scope/cpu.weight", "150\n");
            tree.put("cgroup/machine.slice/vm7.scope/cgroup.procs", "7\n");
            tree.put("cgroup/machine.slice/vm7.scope/libvirt/cpu.weight", "100\n");
            tree.put("cgroup/machine.slice/vm7.scope/libvirt/emulator/cpu.weight", "100\n");
            tree.put("proc/8/cgroup", "0::/user.slice\n");
            tree.put("cgroup/user.slice/cpu.weight", "100\n");
            tree.put("cgroup/user.slice/cgroup.procs", "8\n1234\n");
            tree
        }
        fn apply(&self, weights: &mut Weights, config: &str) -> Vec<Option<String>> {
            self.put("host.toml", config);
            let classes = Classes::load(&self.0.path().join("host.toml")).expect("fine");
            let vms = [("db".to_owned(), 7), ("web".to_owned(), 8)];
            weights.apply(Some(&classes), &self.0.path().join("proc"), &self.0.path().join("cgroup"), &vms)
        }
    }

    const WEIGHT: &str = "cgroup/machine.slice/vm7.scope/cpu.weight";

    #[test]
    fn the_vm_s_own_scope_is_set_and_taken_back() {
        let tree = Tree::with_vms();
        let mut weights = Weights::default();
        let critical = "[[vm]]\nclass = 'critical'\nname = '*'\n";
        assert_eq!(tree.apply(&mut weights, critical), [Some("critical".to_owned()), Some("critical".to_owned())]);
        assert_eq!(tree.get(WEIGHT), "400");
        assert_eq!(tree.get("cgroup/machine.slice/cpu.weight"), "100", "others are in it");
        assert_eq!(tree.get("cgroup/user.slice/cpu.weight"), "100", "a shell is in it");
        // Another class, then none: back to what was there before the first.
        tree.apply(&mut weights, "[[vm]]\nclass = 'batch'\nname = 'd*'\n");
        assert_eq!(tree.get(WEIGHT), "25");
        assert_eq!(tree.apply(&mut weights, ""), [None, None]);
        assert_eq!(tree.get(WEIGHT), "150");
    }

    #[test]
    fn what_somebody_else_sets_meanwhile_stays() {
        let tree = Tree::with_vms();
        let mut weights = Weights::default();
        tree.apply(&mut weights, "default = 'critical'\n");
        tree.put(WEIGHT, "777\n");
        tree.apply(&mut weights, "default = 'critical'\n");
        assert_eq!(tree.get(WEIGHT), "777");
        weights.take_all_back();
        assert_eq!(tree.get(WEIGHT), "777");
        let mut again = Weights::default();
        tree.apply(&mut again, "default = 'critical'\n");
        again.take_all_back();
        assert_eq!(tree.get(WEIGHT), "777");
    }
}
