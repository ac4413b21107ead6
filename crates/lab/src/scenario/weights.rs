//! CPU weights of the guests' VMs on the host machine.

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::Target;

use super::product::{shell, unmet};
use super::status;
use crate::rig::Rig;

/// VMs with weights of their own; as before once this is dropped.
pub(super) struct Weights<'a>(&'a dyn Rig);

impl<'a> Weights<'a> {
    /// Gives each VM a weight, in units of 100. A VM that lies where libvirt puts it has it set on its scope, where
    /// libvirt sets `<shares>`; another is put into a cgroup of its own.
    pub(super) fn set(rig: &'a dyn Rig, weights: &[f64]) -> Result<Self> {
        let status = status::look(rig)?.ok_or_else(|| unmet("weights need a daemon, which knows the VMs"))?;
        let mut vms = status["vms"].as_array().cloned().unwrap_or_default();
        vms.sort_by_key(|vm| vm["name"].as_str().unwrap_or_default().to_owned());
        if vms.len() != weights.len() {
            return Err(unmet(format!("weights for {} guests, and {} VMs run", weights.len(), vms.len())));
        }
        let this = Self(rig);
        shell(rig, Target::Host, "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control")?;
        for (vm, weight) in vms.iter().zip(weights) {
            shell(rig, Target::Host, &set("", &vm["pid"].to_string(), 100.0 * weight))?;
        }
        Ok(this)
    }
}

/// The line that gives one VM a weight.
pub(super) fn weigh(pid: &str, weight: f64) -> String {
    set("", pid, weight)
}

/// The line that prints the weight which that one would set.
pub(super) fn weight_of(pid: &str) -> String {
    format!("{}\ncat \"$d/cpu.weight\"", folder("", pid))
}

/// The line that makes all as it was.
pub(super) fn unweigh() -> String {
    undo("")
}

impl Drop for Weights<'_> {
    fn drop(&mut self) {
        if let Err(error) = shell(self.0, Target::Host, &undo("")) {
            tracing::warn!("the VMs' weights are left behind: {error}");
        }
    }
}

/// Sets a weight; `root` is before all paths.
fn set(root: &str, pid: &str, weight: f64) -> String {
    let folder = folder(root, pid);
    format!(
        r#"{folder}
        case $d in */weighed-*) mkdir -p $d && echo {pid} > $d/cgroup.procs || exit 1 ;; esac
        echo {weight} > "$d/cpu.weight""#
    )
}

/// Sets `d` to the VM's own cgroup, as it is or is to be.
fn folder(root: &str, pid: &str) -> String {
    format!(
        r#"g={root}/sys/fs/cgroup; c=$(sed -n 's/^0:://p' {root}/proc/{pid}/cgroup)
        case "$c" in
        */libvirt | */libvirt/*) d=$g${{c%/libvirt*}} ;;
        *) d=$g/weighed-{pid} ;;
        esac"#
    )
}

fn undo(root: &str) -> String {
    format!(
        r#"g={root}/sys/fs/cgroup
        for d in $g/weighed-*; do
            [ -e $d ] || continue
            for p in $(cat $d/cgroup.procs); do echo $p > $g/cgroup.procs; done
            rmdir $d
        done
        for d in $g/machine.slice/*.scope; do
            [ ! -e "$d/cpu.weight" ] || echo 100 > "$d/cpu.weight"
        done"#
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_scope_is_weighed_itself_and_another_vm_in_a_cgroup_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let scope = "machine.slice/machine-qemu\\x2d1\\x2da.scope";
        for (file, text) in [
            ("proc/7/cgroup", &format!("1:name=x:/\n0::/{scope}/libvirt/emulator\n")),
            ("proc/8/cgroup", &"0::/\n".to_owned()),
            (&format!("sys/fs/cgroup/{scope}/libvirt/emulator/cgroup.type"), &"threaded\n".to_owned()),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let run = |line: String| assert!(Command::new("sh").args(["-ec", &line]).status().unwrap().success(), "{line}");
        let read = |file: &str| fs::read_to_string(dir.path().join("sys/fs/cgroup").join(file)).unwrap();
        run(set(root, "7", 300.0));
        run(set(root, "8", 100.0));
        assert_eq!(read(&format!("{scope}/cpu.weight")), "300\n");
        assert_eq!((read("weighed-8/cpu.weight"), read("weighed-8/cgroup.procs")), ("100\n".into(), "8\n".into()));
        assert!(!dir.path().join("sys/fs/cgroup/weighed-7").exists());
        // In cgroupfs the files go with their folder.
        fs::remove_file(dir.path().join("sys/fs/cgroup/weighed-8/cpu.weight")).unwrap();
        run(undo(root).replace("rmdir", "rm -r"));
        assert_eq!(read(&format!("{scope}/cpu.weight")), "100\n");
        assert_eq!(read("cgroup.procs"), "8\n");
        assert!(!dir.path().join("sys/fs/cgroup/weighed-8").exists());
    }
}
