//! cgroups of VMs, in version 2's tree.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use entrain_policy::entitle_tree::Above;
use entrain_system::Root;

use crate::cgroup_namespace::mount;
use crate::pod;

/// Where cgroup v2 is mounted.
pub(crate) const CGROUPS: &str = "sys/fs/cgroup";
/// A cgroup's tree below a VM is a few levels deep (libvirt: 3); more is not looked through.
const DEPTH: u32 = 8;

/// Groups below a VM's that are looked at: libvirt makes one for each vCPU and I/O thread. A cgroup with more is not taken
/// for a VM's own: a user may make groups without end in one that is delegated to him.
const BREADTH: u32 = 4096;
/// Bytes of the list of a group's processes that are read: one with more holds more than a VM's.
const PROCESSES: u64 = 256;

/// Groups above a VM's that are looked at: a user may nest cgroups of his own without end.
const LEVELS: usize = 32;

/// The weight of a cgroup that nobody has set.
const WEIGHT: u64 = 100;

/// Where the host's scheduler counts a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// cgroup v2 weight among its siblings, 1..=10000.
    pub(crate) weight: u64,
    /// The groups above it that have a weight, from the top: it divides what they get.
    pub(crate) above: Arc<[Above]>,
    /// The cgroup that is its own ([`own_group`]). Elsewhere its vCPUs compete one by one, and a VM that uses fewer gets less.
    pub(crate) own: Option<PathBuf>,
    /// What the limits (`cpu.max`) of its groups let it use at most, 1/1024 pCPU; `u64::MAX`: none has one.
    pub(crate) most: u64,
}

impl Group {
    /// The cgroup that holds a process and no other, or else the process's cgroup; `None` where that is hidden. And how many
    /// groups were looked at.
    pub(crate) fn of(root: &Root, tgid: i32) -> (Option<Group>, u32) {
        let path = match home_of(root, tgid) {
            Home::At(path) => Some(path),
            Home::Nowhere => None,
            Home::Hidden => return (None, 1),
        };
        let mut left = BREADTH;
        let own = path.as_deref().and_then(|path| own_group(root, path, tgid, &mut left));
        // In a group with others its vCPUs count as anybody's threads there.
        let weight = own.as_deref().and_then(weight_of).unwrap_or(WEIGHT);
        let mount = mount(root);
        let shared = || Some(mount.join(path.as_deref()?.strip_prefix('/')?));
        let last = own.as_deref().and_then(Path::parent).map(Path::to_owned).or_else(shared);
        let above = last.map(|last| above(&mount, &last)).unwrap_or_default();
        let most = shared().map_or(u64::MAX, |group| most(&mount, &group));
        (Some(Group { weight, above: above.into(), own, most }), BREADTH - left)
    }

    /// Of a VM whose cgroup has always been hidden: it gains nothing by that.
    pub(crate) fn least() -> Group {
        Group { weight: 1, ..Group::default() }
    }
}

/// The root has no weight, and neither has a group without the cpu controller: everybody is equal there.
fn weight_of(group: &Path) -> Option<u64> {
    fs::read_to_string(group.join("cpu.weight")).ok()?.trim().parse().ok()
}

/// The groups from the root's child down to `last`, the uppermost [`LEVELS`]: what an administrator has set stands there.
fn levels<'a>(mount: &Path, last: &'a Path) -> Vec<&'a Path> {
    let mut groups: Vec<&Path> =
        last.ancestors().take_while(|group| *group != mount && group.starts_with(mount)).collect();
    groups.reverse();
    groups.truncate(LEVELS);
    groups
}

/// The least that a group and those above it may use, 1/1024 pCPU; `u64::MAX`: no limit.
fn most(mount: &Path, last: &Path) -> u64 {
    let limits = levels(mount, last).into_iter();
    limits.filter_map(|group| limit(&fs::read_to_string(group.join("cpu.max")).ok()?)).min().unwrap_or(u64::MAX)
}

/// What the text of `cpu.max` allows, 1/1024 pCPU; `None`: everything.
fn limit(text: &str) -> Option<u64> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (quota, period) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((u128::from(quota) * 1024 / u128::from(period.max(1))).min(u64::MAX.into()) as u64)
}

/// The groups with a weight from the root's child down to `last`.
fn above(mount: &Path, last: &Path) -> Vec<Above> {
    let of = |group: &Path| {
        let mut id = DefaultHasher::new();
        group.hash(&mut id);
        Some(Above { id: id.finish(), weight: weight_of(group)? })
    };
    levels(mount, last).into_iter().filter_map(of).collect()
}

impl Default for Group {
    fn default() -> Self {
        Group { weight: WEIGHT, above: Arc::default(), own: None, most: u64::MAX }
    }
}

/// What a process's cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// With a slash in front.
    At(String),
    /// There is no such process, no cgroup v2, or none below the root that this process sees.
    Nowhere,
    /// The process is there, and its cgroup cannot be read: a user who nests his far enough has a path that the kernel does
    /// not tell.
    Hidden,
}

/// The cgroup of a process. A user may give groups of his own names that are no text: what is no character of a path is
/// replaced, and the groups above, which are not his, still have their names.
pub(crate) fn home_of(root: &Root, pid: i32) -> Home {
    match fs::read(root.path(format!("proc/{pid}/cgroup"))) {
        Ok(bytes) => path_in(&String::from_utf8_lossy(&bytes)).map_or(Home::Nowhere, |path| Home::At(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => Home::Nowhere,
        Err(_) => Home::Hidden,
    }
}

/// The cgroup of a process, if it is known.
pub(crate) fn cgroup_of(root: &Root, pid: i32) -> Option<String> {
    match home_of(root, pid) {
        Home::At(path) => Some(path),
        Home::Nowhere | Home::Hidden => None,
    }
}

/// The path in the text of `/proc/PID/cgroup`. `None` for one above the root that this process sees
/// (`crate::cgroup_namespace`): it names no group below that, and as a path it would leave the tree.
pub(crate) fn path_in(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

/// The highest cgroup from `cgroup` on upwards that holds process `pid` alone and has a weight: libvirt's scope of the VM,
/// not the groups of threads that libvirt makes inside. A slice of systemd's is never a VM's own, even while it holds no
/// other: its weight is that of all VMs against the rest of the system. Except a pod's, where the pod is there for this VM
/// ([`pod`]). `left`: how many groups may be looked at.
fn own_group(root: &Root, cgroup: &str, pid: i32, left: &mut u32) -> Option<PathBuf> {
    let path = cgroup.strip_prefix('/').filter(|path| !path.is_empty())?;
    let mount = mount(root);
    let pod = pod::of(cgroup).map(|pod| mount.join(pod.trim_start_matches('/')));
    if let Some(pod) = pod.filter(|pod| pod.join("cpu.weight").exists() && pod::is_of_one_vm(root, pod, pid)) {
        return Some(pod);
    }
    let parts = Path::new(path).ancestors().filter(|part| !part.as_os_str().is_empty());
    let groups =
        parts.take_while(|part| part.extension().is_none_or(|kind| kind != "slice")).map(|part| mount.join(part));
    groups
        .take_while(|group| holds_only(group, pid, DEPTH, left))
        .filter(|group| group.join("cpu.weight").exists())
        .last()
}

fn holds_only(group: &Path, pid: i32, depth: u32, left: &mut u32) -> bool {
    let Some(fewer) = left.checked_sub(1).filter(|_| depth > 0) else { return false };
    *left = fewer;
    // A threaded group refuses to list processes; the group above it lists them.
    let mut listed = String::new();
    if let Ok(file) = File::open(group.join("cgroup.procs")) {
        let _ = file.take(PROCESSES).read_to_string(&mut listed);
    }
    if listed.lines().any(|line| line.trim() != pid.to_string()) {
        return false;
    }
    let Ok(entries) = fs::read_dir(group) else { return false };
    let mut folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.all(|entry| holds_only(&entry.path(), pid, depth - 1, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn a_scope_is_the_vm_s_own_and_a_slice_never_is() {
        let machine = Machine::default();
        let file = |path: &str, text: &str| machine.put(&format!("{CGROUPS}/{path}"), text);
        for group in ["machine.slice", "machine.slice/vm.scope", "machine.slice/vm.scope/libvirt/emulator"] {
            file(&format!("{group}/cpu.weight"), "100\n");
        }
        file("machine.slice/vm.scope/cgroup.procs", "7\n");
        file("shared/cgroup.procs", "8\n9\n");
        let own = |cgroup, pid| own_group(&machine.root(), cgroup, pid, &mut BREADTH.clone());
        let scope = machine.root().path(CGROUPS).join("machine.slice/vm.scope");
        assert_eq!(own("/machine.slice/vm.scope/libvirt/emulator", 7), Some(scope));
        assert_eq!(own("/machine.slice", 7), None);
        assert_eq!(own("/shared", 8), None, "another process is in it");
        assert_eq!(own("/", 8), None);
    }

    #[test]
    fn a_tree_without_end_is_nobody_s_own_and_costs_a_bounded_look() {
        let machine = Machine::default();
        let wide = |name: &str, groups: u32| {
            machine.put(&format!("{CGROUPS}/{name}/cpu.weight"), "100\n");
            for group in 0..groups {
                machine.put(&format!("{CGROUPS}/{name}/vcpu{group}/cgroup.procs"), "");
            }
        };
        wide("vm.scope", 600);
        wide("broad", 2 * BREADTH);
        machine.put(&format!("{CGROUPS}/crowd/cgroup.procs"), "7\n".repeat(100_000));
        machine.put(&format!("{CGROUPS}/crowd/cpu.weight"), "100\n");
        let mut left = BREADTH;
        assert!(own_group(&machine.root(), "/vm.scope", 7, &mut left).is_some());
        assert_eq!(BREADTH - left, 601);
        assert_eq!(own_group(&machine.root(), "/broad", 7, &mut BREADTH.clone()), None);
        left = BREADTH;
        holds_only(&machine.root().path(CGROUPS).join("broad"), 7, DEPTH, &mut left);
        assert_eq!(left, 0, "no group is looked at beyond the bound");
    }

    #[test]
    fn a_weight_is_that_of_the_process_s_cgroup_below_those_above_it() {
        let machine = Machine::default();
        let file = |path: &str, text: &str| machine.put(path, text);
        file("proc/7/cgroup", "0::/machine/a\n");
        file("proc/8/cgroup", "0::/\n");
        file("sys/fs/cgroup/machine/a/cpu.weight", "250\n");
        let of = |tgid| Group::of(&machine.root(), tgid).0.expect("to be read");
        file("sys/fs/cgroup/machine/cpu.weight", "50\n");
        file("sys/fs/cgroup/machine/b/cpu.weight", "9\n");
        file("sys/fs/cgroup/machine/b/cgroup.procs", "10\n11\n");
        file("proc/10/cgroup", "0::/machine/b/no-controller\n");
        let weights = |group: &Group| group.above.iter().map(|above| above.weight).collect::<Vec<_>>();
        assert_eq!((of(7).weight, of(7).own.is_some(), weights(&of(7))), (250, true, vec![50]));
        assert_eq!((of(10).weight, of(10).own.is_some(), weights(&of(10))), (100, false, vec![50, 9]));
        assert_eq!(of(7).above[0], of(10).above[0], "the same group is the same for both");
        assert_eq!((of(8), of(9)), (Group::default(), Group::default()));
    }

    /// Issue 24: in a pod with a cgroup namespace of its own.
    #[test]
    fn groups_are_those_of_the_host_s_tree_and_never_outside_of_it() {
        let machine = Machine::default();
        machine.put("proc/7/cgroup", "0::/../../kubepods/pod\n");
        machine.put("kubepods/pod/cpu.weight", "9\n");
        assert_eq!(Group::of(&machine.root(), 7).0, Some(Group::default()));
        assert_eq!(cgroup_of(&machine.root(), 7), None);
        // The namespace has been entered.
        machine.put("proc/7/cgroup", "0::/kubepods/pod\n");
        machine.put("sys/fs/cgroup/cgroup.events", "populated 1\n");
        machine.put("proc/1/root/sys/fs/cgroup/cgroup.controllers", "cpu\n");
        machine.put("proc/1/root/sys/fs/cgroup/kubepods/pod/cpu.weight", "250\n");
        machine.put("proc/1/root/sys/fs/cgroup/kubepods/pod/cgroup.procs", "7\n");
        let group = Group::of(&machine.root(), 7).0.expect("to be read");
        assert_eq!((group.weight, group.own.is_some()), (250, true));
    }

    /// A user nests groups of the greatest weight below the one that an administrator has given him.
    #[test]
    fn groups_below_do_not_hide_those_above() {
        let machine = Machine::default();
        let mut path = "tenant".to_owned();
        machine.put(&format!("{CGROUPS}/{path}/cpu.weight"), "50\n");
        machine.put(&format!("{CGROUPS}/{path}/cpu.max"), "50000 100000\n");
        for _ in 0..2 * LEVELS {
            path += "/x";
            machine.put(&format!("{CGROUPS}/{path}/cpu.weight"), "10000\n");
        }
        machine.put("proc/7/cgroup", format!("0::/{path}\n"));
        machine.put(&format!("{CGROUPS}/{path}/cgroup.procs"), "7\n8\n");
        let group = Group::of(&machine.root(), 7).0.expect("to be read");
        assert_eq!((group.above[0].weight, group.above.len(), group.most), (50, LEVELS, 512));
    }

    #[test]
    fn a_name_that_is_no_text_hides_nothing_above() {
        let machine = Machine::default();
        machine.put("proc/7/cgroup", "");
        std::fs::write(machine.root().path("proc/7/cgroup"), b"0::/tenants/a/vm\xff\n").unwrap();
        machine.put(&format!("{CGROUPS}/tenants/cpu.weight"), "50\n");
        assert!(cgroup_of(&machine.root(), 7).is_some_and(|path| path.starts_with("/tenants/a/vm")));
        assert_eq!(Group::of(&machine.root(), 7).0.expect("to be read").above[0].weight, 50);
        machine.put("proc/8/cgroup/folder", "");
        assert_eq!((home_of(&machine.root(), 8), home_of(&machine.root(), 9)), (Home::Hidden, Home::Nowhere));
    }

    #[test]
    fn the_least_limit_above_counts() {
        let machine = Machine::default();
        let file = |path: &str, text: &str| machine.put(path, text);
        file("proc/7/cgroup", "0::/pods/pod/box\n");
        file("sys/fs/cgroup/pods/pod/box/cpu.max", "max 100000\n");
        let of = |tgid| Group::of(&machine.root(), tgid).0.expect("to be read").most;
        assert_eq!((of(7), of(8)), (u64::MAX, u64::MAX));
        file("sys/fs/cgroup/pods/pod/cpu.max", "150000 100000\n");
        file("sys/fs/cgroup/pods/cpu.max", "1000000 250000\n");
        assert_eq!(of(7), 1536);
        file("sys/fs/cgroup/pods/pod/box/cpu.max", "1000 1000000\n");
        assert_eq!(of(7), 1);
        for nonsense in ["", "1", "max", "a b", "18446744073709551615 0"] {
            assert!(limit(nonsense).is_none_or(|most| most == u64::MAX), "{nonsense}");
        }
    }
}
