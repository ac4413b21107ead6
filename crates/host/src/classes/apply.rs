//! What a class does: it sets `cpu.weight` of its VMs' cgroups, for as long as the daemon runs.
//!
//! The weight is what both of the host's schedulers go by, the kernel's own and Entrain's, and the entitlement that
//! guests are told follows it, as it does a weight that somebody else has set. It is only set on a cgroup that holds one
//! VM's process and no other: in a cgroup that is shared, it would count for the neighbours too. A weight that was
//! changed by somebody else meanwhile is theirs from then on.
//!
//! A minimum is held by the weight, too: it is raised as far as the VM's part of the pCPUs, with all VMs wanting all they
//! can get, would be less. What the class says to the host's scheduler alone goes to it with the VM's process.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use entrain_system::Root;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use entrain_policy::entitle::{Floor, raise};

use super::{Class, Classes, Identity, Publish, Schedule};
use crate::cgroup::{Home, home_of};
use crate::left_behind;

/// A VM that runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Its name.
    pub(crate) name: String,
    /// The VMM's process.
    pub(crate) pid: i32,
    /// vCPUs: a minimum beyond them would only take from others.
    pub(crate) vcpus: u32,
    /// `cpu.weight` that counts for it now.
    pub(crate) weight: u64,
    /// The cgroup that is its own.
    pub(crate) own: Option<PathBuf>,
}

/// What a VM was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// The class's name.
    pub(crate) class: String,
    /// For the host's scheduler.
    pub(crate) schedule: Schedule,
    /// For its guest.
    pub(crate) publish: Publish,
}

impl Given {
    fn new((name, class): (&str, &Class)) -> Self {
        Self { class: name.to_owned(), schedule: class.schedule, publish: class.publish.unwrap_or_default() }
    }

    /// To a VM whose cgroup has never been read where classes go by cgroups. Its owner can bring that about, so it gets what no
    /// class takes away: no pages, and no extension.
    fn hidden() -> Self {
        let schedule = Schedule { extensions: Some(false), ..Schedule::default() };
        Self { class: "(its cgroup is hidden)".to_owned(), schedule, publish: Publish::None }
    }
}

/// A weight that was set, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Set {
    before: String,
    now: u64,
    /// What was set before `now`: a kill may come between the record and the deed.
    earlier: Option<u64>,
    /// Of the cgroup's folder: no later cgroup of the same name has it.
    inode: u64,
}

/// The record of what is set, in the run folder.
const RECORD: &str = "weights.json";

/// Puts back the weights that a daemon left which was killed. For every start, with classes or without.
pub(crate) fn clean_up(run_dir: &Path) -> usize {
    let left: BTreeMap<PathBuf, Set> = left_behind::take(&run_dir.join(RECORD)).unwrap_or_default();
    let back = left.iter().filter(|(group, set)| inode(group) == Some(set.inode) && put_back(group, set)).count();
    if back > 0 {
        info!("put back the weights of {back} cgroups that an earlier daemon left");
    }
    back
}

fn inode(group: &Path) -> Option<u64> {
    Some(fs::metadata(group).ok()?.ino())
}

/// Whether the weight is as it was before; one that was changed by somebody else stays.
fn put_back(group: &Path, set: &Set) -> bool {
    let file = group.join("cpu.weight");
    let now = fs::read_to_string(&file).unwrap_or_default();
    let ours = |weight: u64| now.trim() == weight.to_string();
    if !ours(set.now) && !set.earlier.is_some_and(ours) {
        return false;
    }
    match fs::write(&file, set.before.trim()) {
        Ok(()) => {
            info!("{}: {} again", file.display(), set.before.trim());
            return true;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn!("{}: cannot set {} again: {error}", file.display(), set.before.trim()),
    }
    false
}

/// Sets weights and takes them back.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// By the path of a cgroup.
    set: BTreeMap<PathBuf, Set>,
    /// Where that is written down, so that a kill leaves nothing behind; `None` = nowhere.
    record: Option<PathBuf>,
    /// What has been said of each VM's process, so that it is said once.
    said: HashSet<i32>,
    /// The cgroup of each VM's process, as it was read last.
    homes: BTreeMap<i32, String>,
    /// Minima did not fit when last looked at.
    short: bool,
}

impl Weights {
    /// No weights yet; those that will be set are recorded in this folder.
    pub(crate) fn recorded_in(run_dir: &Path) -> Self {
        Self { record: Some(run_dir.join(RECORD)), ..Self::default() }
    }

    /// Gives every VM its class: returns what each was given, in the order of `vms`. Without classes, or for VMs without
    /// one, what was set before is taken back. `pcpus` is what the VMs share.
    pub(crate) fn apply(
        &mut self,
        classes: Option<&Classes>,
        root: &Root,
        pcpus: u32,
        vms: &[Running],
    ) -> Vec<Option<Given>> {
        let mut given = Vec::new();
        // Of each VM its cgroup, if it is to have a weight, and the weight with the minimum.
        let mut groups = Vec::new();
        let mut floors = Vec::new();
        let runs: HashSet<i32> = vms.iter().map(|vm| vm.pid).collect();
        self.said.retain(|pid| runs.contains(pid));
        self.homes.retain(|pid, _| runs.contains(pid));
        for vm in vms {
            let home = self.home(root, vm.pid);
            let hidden = home.is_none() && classes.is_some_and(Classes::asks_for_cgroups);
            let cgroup = home.unwrap_or_default();
            let identity = Identity { name: &vm.name, pid: vm.pid, cgroup: &cgroup };
            let class = classes.filter(|_| !hidden).and_then(|classes| classes.of(&identity));
            given.push(if hidden { Some(Given::hidden()) } else { class.map(Given::new) });
            let wants = class.filter(|(_, class)| class.weight.is_some() || class.minimum.is_some());
            let group = wants.and_then(|(name, _)| self.group(&cgroup, vm, name));
            let own = group.as_ref().and_then(|group| self.before(group));
            let (weight, minimum) = match class {
                Some((_, Class { weight, minimum, .. })) if group.is_some() => (*weight, minimum.unwrap_or(0)),
                _ => (None, 0),
            };
            let weight = weight.or(own).unwrap_or(vm.weight);
            floors.push(Floor::new(weight, minimum.min(u64::from(vm.vcpus) * 1024)));
            groups.push(group);
        }
        let fits = raise(&mut floors, u64::from(pcpus) * 1024);
        if !fits && !self.short {
            warn!(
                "the VMs that run are promised more than nine tenths of {pcpus} pCPUs: each has less than its minimum"
            );
        }
        self.short = !fits;
        let wanted: BTreeMap<PathBuf, u64> =
            groups.into_iter().zip(&floors).filter_map(|(group, floor)| Some((group?, floor.weight))).collect();
        let gone: Vec<PathBuf> = self.set.keys().filter(|group| !wanted.contains_key(*group)).cloned().collect();
        for group in gone {
            self.take_back(&group);
        }
        for (group, weight) in wanted {
            self.put(group, weight);
        }
        given
    }

    /// The cgroup of a process, the last one where it cannot be read now; `None` where it never could. Empty: there is none.
    fn home(&mut self, root: &Root, pid: i32) -> Option<String> {
        match home_of(root, pid) {
            Home::At(path) => {
                self.homes.insert(pid, path.clone());
                Some(path)
            }
            Home::Nowhere => Some(String::new()),
            Home::Hidden => self.homes.get(&pid).cloned(),
        }
    }

    /// The VM's own cgroup, or once a line about why it has none.
    fn group(&mut self, cgroup: &str, vm: &Running, class: &str) -> Option<PathBuf> {
        if vm.own.is_none() && self.said.insert(vm.pid) {
            warn!(
                "{}: no cgroup of its own that has cpu.weight ({}): class '{class}' sets neither weight nor minimum for it; \
                 start it by libvirt, or in a scope of its own (systemd-run --scope)",
                vm.name,
                if cgroup.is_empty() { "no cgroup v2" } else { cgroup },
            );
        }
        vm.own.clone()
    }

    /// The weight of a group without us.
    fn before(&self, group: &Path) -> Option<u64> {
        match self.set.get(group) {
            Some(set) => set.before.trim().parse().ok(),
            None => fs::read_to_string(group.join("cpu.weight")).ok()?.trim().parse().ok(),
        }
    }

    fn put(&mut self, group: PathBuf, weight: u64) {
        if self.set.get(&group).is_some_and(|set| set.now == weight) {
            return;
        }
        let file = group.join("cpu.weight");
        // The VM may end at any moment, and its cgroup with it.
        let Ok(before) = fs::read_to_string(&file) else { return };
        // Whoever has changed it since means it.
        if self.set.get(&group).is_some_and(|set| before.trim() != set.now.to_string()) {
            return;
        }
        let Some(inode) = inode(&group) else { return };
        let known = self.set.get(&group).cloned();
        let first = known.as_ref().map_or(&before, |set| &set.before).clone();
        self.set.insert(
            group.clone(),
            Set { before: first, now: weight, earlier: known.as_ref().map(|set| set.now), inode },
        );
        // Before it is done: a kill between the two is put right by the next start, which finds the old weight or the new.
        if let Err(error) = self.write_down() {
            warn!("{}: weights cannot be written down, so {weight} is not set: {error}", file.display());
        } else if let Err(error) = fs::write(&file, weight.to_string()) {
            warn!("{}: cannot set {weight}: {error}", file.display());
        } else {
            info!("{}: {} becomes {weight}", file.display(), before.trim());
            return;
        }
        match known {
            Some(set) => self.set.insert(group, set),
            None => self.set.remove(&group),
        };
    }

    fn write_down(&self) -> io::Result<()> {
        let set = Some(&self.set).filter(|set| !set.is_empty());
        self.record.as_ref().map_or(Ok(()), |record| left_behind::write(record, set))
    }

    fn take_back(&mut self, group: &Path) {
        let Some(set) = self.set.remove(group) else { return };
        put_back(group, &set);
        if let Err(error) = self.write_down() {
            warn!("weights cannot be written down: {error}");
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
    use crate::cgroup::Group;
    use entrain_system::fake::Machine;

    struct Tree(Machine);

    impl Tree {
        fn new() -> Self {
            Self(Machine::default())
        }
        fn put(&self, path: &str, text: &str) {
            self.0.put(path, text);
        }
        fn get(&self, path: &str) -> String {
            self.0.get(path).trim().to_owned()
        }
        /// A VM as libvirt makes it, and one in a cgroup with a shell.
        fn with_vms() -> Self {
            let tree = Self::new();
            tree.put("proc/7/cgroup", "0::/machine.slice/vm7.scope/libvirt/emulator\n");
            tree.put("sys/fs/cgroup/machine.slice/cpu.weight", "100\n");
            tree.put("sys/fs/cgroup/machine.slice/other.scope/cgroup.procs", "99\n");
            tree.put("sys/fs/cgroup/machine.slice/vm7.scope/cpu.weight", "150\n");
            tree.put("sys/fs/cgroup/machine.slice/vm7.scope/cgroup.procs", "7\n");
            tree.put("sys/fs/cgroup/machine.slice/vm7.scope/libvirt/cpu.weight", "100\n");
            tree.put("sys/fs/cgroup/machine.slice/vm7.scope/libvirt/emulator/cpu.weight", "100\n");
            tree.put("proc/8/cgroup", "0::/user.slice\n");
            tree.put("sys/fs/cgroup/user.slice/cpu.weight", "100\n");
            tree.put("sys/fs/cgroup/user.slice/cgroup.procs", "8\n1234\n");
            tree
        }
        fn apply(&self, weights: &mut Weights, config: &str) -> Vec<Option<String>> {
            let classes = Classes::parse(Path::new("host.toml"), config, 4).expect("fine");
            let vm = |name: &str, pid| {
                let own = Group::of(&self.0.root(), pid).0.and_then(|group| group.own);
                Running { name: name.to_owned(), pid, vcpus: 4, weight: 100, own }
            };
            let given = weights.apply(Some(&classes), &self.0.root(), 4, &[vm("db", 7), vm("web", 8)]);
            given.into_iter().map(|given| given.map(|given| given.class)).collect()
        }
    }

    const WEIGHT: &str = "sys/fs/cgroup/machine.slice/vm7.scope/cpu.weight";

    #[test]
    fn the_vm_s_own_scope_is_set_and_taken_back() {
        let tree = Tree::with_vms();
        let mut weights = Weights::default();
        let critical = "[[vm]]\nclass = 'critical'\nname = '*'\n";
        assert_eq!(tree.apply(&mut weights, critical), [Some("critical".to_owned()), Some("critical".to_owned())]);
        assert_eq!(tree.get(WEIGHT), "400");
        assert_eq!(tree.get("sys/fs/cgroup/machine.slice/cpu.weight"), "100", "others are in it");
        assert_eq!(tree.get("sys/fs/cgroup/user.slice/cpu.weight"), "100", "a shell is in it");
        // Another class, then none: back to what was there before the first.
        tree.apply(&mut weights, "[[vm]]\nclass = 'batch'\nname = 'd*'\n");
        assert_eq!(tree.get(WEIGHT), "25");
        assert_eq!(tree.apply(&mut weights, ""), [None, None]);
        assert_eq!(tree.get(WEIGHT), "150");
    }

    /// Issue 24's tenants, one of whom nests his VM's cgroup so far that the kernel does not tell its path.
    #[test]
    fn who_hides_his_cgroup_escapes_no_class() {
        let tree = Tree::with_vms();
        let mut weights = Weights::default();
        let config = "[class.tenant]\npublish = 'own'\n[[vm]]\nclass = 'tenant'\ncgroup = '/user.slice'\n";
        let hide = |pid| {
            std::fs::remove_file(tree.0.root().path(format!("proc/{pid}/cgroup"))).unwrap();
            tree.put(&format!("proc/{pid}/cgroup/folder"), "");
        };
        assert_eq!(tree.apply(&mut weights, config), [None, Some("tenant".to_owned())]);
        hide(8);
        assert_eq!(tree.apply(&mut weights, config), [None, Some("tenant".to_owned())], "as it was");
        hide(7);
        let hidden = Some("(its cgroup is hidden)".to_owned());
        assert_eq!(tree.apply(&mut Weights::default(), config), [hidden.clone(), hidden], "from the first");
        assert_eq!(
            tree.apply(&mut Weights::default(), "default = 'batch'\n"),
            [Some("batch".to_owned()), Some("batch".to_owned())]
        );
        assert_eq!(Given::hidden().publish, Publish::None);
    }

    #[test]
    fn a_minimum_raises_the_weight_and_no_more_than_it_needs() {
        let tree = Tree::with_vms();
        let mut weights = Weights::default();
        // Three of four pCPUs, against a neighbour of weight 100: three quarters. The other has no cgroup of its own.
        let three = "[class.own]\nminimum_pcpus = 3\n[[vm]]\nclass = 'own'\nname = 'db'\n";
        tree.apply(&mut weights, three);
        assert_eq!(tree.get(WEIGHT), "300");
        tree.apply(&mut weights, three);
        assert_eq!(tree.get(WEIGHT), "300", "it is not raised upon what was raised");
        tree.apply(&mut weights, "");
        assert_eq!(tree.get(WEIGHT), "150");
    }

    /// Issue 24: KubeVirt's VMM shares its container with a launcher, and a container's weight counts against its own pod's
    /// containers only.
    #[test]
    fn the_weight_of_a_vm_in_a_pod_is_the_pod_s() {
        let tree = Tree::with_vms();
        let pod =
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f4c1b2a_7d3e_4f5a_9b8c_1d2e3f4a5b6c.slice";
        let compute = format!("{pod}/cri-containerd-4d3e.scope");
        let put = |path: &str, text: &str| tree.put(&format!("sys/fs/cgroup/{path}"), text);
        tree.put("proc/7/cgroup", &format!("0::/{compute}\n"));
        put(&format!("{pod}/cpu.weight"), "20\n");
        put(&format!("{pod}/cri-containerd-9f00.scope/cgroup.procs"), "2\n");
        put(&format!("{compute}/cpu.weight"), "20\n");
        put(&format!("{compute}/cgroup.procs"), "3\n7\n");
        for (pid, name) in [(2, "pause"), (3, "virt-launcher"), (7, "qemu-kvm")] {
            tree.put(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        }
        let weight = |group: &str| tree.get(&format!("sys/fs/cgroup/{group}/cpu.weight"));
        let mut weights = Weights::default();
        let given = tree.apply(&mut weights, "[[vm]]\nclass = 'critical'\ncgroup = '/kubepods.slice/**'\n");
        assert_eq!(given, [Some("critical".to_owned()), None]);
        assert_eq!((weight(pod), weight(&compute)), ("400".to_owned(), "20".to_owned()));
        weights.take_all_back();
        assert_eq!(weight(pod), "20");
    }

    /// Issue 23: after a kill the weights stayed, and the next daemon took them for the original ones.
    #[test]
    fn what_a_kill_leaves_is_put_back_by_the_next_start() {
        let tree = Tree::with_vms();
        let run = tempfile::tempdir().expect("a folder");
        let killed = |config| {
            let mut weights = Weights::recorded_in(run.path());
            tree.apply(&mut weights, config);
            std::mem::forget(weights);
        };
        killed("default = 'critical'\n");
        assert_eq!(tree.get(WEIGHT), "400");
        assert_eq!((clean_up(run.path()), tree.get(WEIGHT).as_str()), (1, "150"));
        assert_eq!(clean_up(run.path()), 0, "once");
        // Somebody else has changed it since; another cgroup has its name; nothing was done yet.
        killed("default = 'critical'\n");
        tree.put(WEIGHT, "777\n");
        assert_eq!((clean_up(run.path()), tree.get(WEIGHT).as_str()), (0, "777"));
        tree.put(WEIGHT, "150\n");
        killed("default = 'critical'\n");
        let record = run.path().join(RECORD);
        let text = fs::read_to_string(&record).expect("written down");
        fs::write(&record, text.replace("\"inode\":", "\"inode\":1")).expect("written");
        assert_eq!((clean_up(run.path()), tree.get(WEIGHT).as_str()), (0, "400"));
        // An orderly end leaves no record.
        tree.put(WEIGHT, "150\n");
        let mut weights = Weights::recorded_in(run.path());
        tree.apply(&mut weights, "default = 'batch'\n");
        assert!(record.exists());
        weights.take_all_back();
        assert!(tree.get(WEIGHT) == "150" && !record.exists());
    }

    #[test]
    fn a_weight_that_cannot_be_written_down_is_not_set() {
        let tree = Tree::with_vms();
        let mut weights = Weights::recorded_in(Path::new("/proc/none"));
        tree.apply(&mut weights, "default = 'critical'\n");
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
        tree.apply(&mut weights, "default = 'batch'\n");
        assert_eq!(tree.get(WEIGHT), "777", "nor when the class asks for another");
        weights.take_all_back();
        assert_eq!(tree.get(WEIGHT), "777");
        let mut again = Weights::default();
        tree.apply(&mut again, "default = 'critical'\n");
        again.take_all_back();
        assert_eq!(tree.get(WEIGHT), "777");
    }
}
