//! The cgroups that libvirt gives a VM under systemd and cgroup v2, for the host machine's guests.
//!
//! `machine.slice/machine-qemu\x2dNUMBER\x2dNAME.scope/libvirt` is QEMU's; below it, threaded, are `emulator` with QEMU's
//! own threads and `vcpuN` with one thread each, all with the controllers cpu and cpuset. Nothing is written into them: a
//! domain without `<cputune>` has the kernel's weight of 100 everywhere. (libvirt: `virCgroupNewMachineSystemd`,
//! `virCgroupV2MakeGroup`, `qemuProcessSetupPid`.)

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

/// Where the machine's init mounts cgroup v2.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// What a VM's threads are controlled by.
const CONTROLLERS: &str = "+cpu +cpuset";

/// The cgroups of one QEMU; removed when dropped, which must come after QEMU's end.
#[derive(Debug)]
pub(crate) struct Scope {
    scope: PathBuf,
}

impl Scope {
    /// Makes the cgroups of a VM and moves its QEMU into them. `number` tells apart VMs of one name that run at the same
    /// time, as the domain's id does with libvirt.
    pub(crate) fn new(root: &Path, number: u32, name: &str, qemu: i32) -> io::Result<Self> {
        let slice = root.join("machine.slice");
        let this = Self { scope: slice.join(format!("machine-{}.scope", escaped(&format!("qemu-{number}-{name}")))) };
        let libvirt = this.libvirt();
        fs::create_dir_all(&libvirt).map_err(|error| told(&libvirt, &error))?;
        for parent in [root, &slice, &this.scope] {
            set(&parent.join("cgroup.subtree_control"), CONTROLLERS)?;
        }
        set(&libvirt.join("cgroup.procs"), &qemu.to_string())?;
        // A process goes into a threaded cgroup with all its threads; vCPUs leave it again one by one.
        set(&this.threaded("emulator")?.join("cgroup.procs"), &qemu.to_string())?;
        Ok(this)
    }

    /// Moves vCPU threads into cgroups of their own. `answer` is that of QMP's `query-cpus-fast`.
    pub(crate) fn take_vcpus(&self, answer: &str) -> io::Result<()> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "return")]
            cpus: Vec<Cpu>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Cpu {
            cpu_index: u32,
            thread_id: i32,
        }
        for cpu in serde_json::from_str::<Answer>(answer)?.cpus {
            let group = self.threaded(&format!("vcpu{}", cpu.cpu_index))?;
            set(&group.join("cgroup.threads"), &cpu.thread_id.to_string())?;
        }
        Ok(())
    }

    fn threaded(&self, name: &str) -> io::Result<PathBuf> {
        let libvirt = self.libvirt();
        let group = libvirt.join(name);
        fs::create_dir_all(&group).map_err(|error| told(&group, &error))?;
        set(&group.join("cgroup.type"), "threaded")?;
        // The parent can only have controllers for its children once one of them is threaded: it has a process itself.
        set(&libvirt.join("cgroup.subtree_control"), CONTROLLERS)?;
        Ok(group)
    }

    fn libvirt(&self) -> PathBuf {
        self.scope.join("libvirt")
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let libvirt = self.libvirt();
        let groups = fs::read_dir(&libvirt).into_iter().flatten().flatten().map(|entry| entry.path());
        let groups = groups.filter(|path| path.is_dir()).chain([libvirt.clone(), self.scope.clone()]);
        for group in groups.collect::<Vec<_>>() {
            if let Err(error) = fs::remove_dir(&group) {
                tracing::warn!("a guest's cgroup is left behind: {}", told(&group, &error));
            }
        }
    }
}

fn set(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value).map_err(|error| told(file, &error))
}

fn told(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A name as part of a systemd unit's name.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'.') {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_lies_where_libvirt_puts_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let scope = Scope::new(root, 3, "a-4", 77).unwrap();
        scope.take_vcpus(r#"{"return": [{"cpu-index": 0, "thread-id": 80, "target": "aarch64"}, {"cpu-index": 1, "thread-id": 81}]}"#).unwrap();
        let libvirt = root.join("machine.slice/machine-qemu\\x2d3\\x2da\\x2d4.scope/libvirt");
        let read = |file: &str| fs::read_to_string(libvirt.join(file)).unwrap();
        assert_eq!((read("cgroup.procs"), read("emulator/cgroup.procs")), ("77".into(), "77".into()));
        assert_eq!((read("vcpu0/cgroup.threads"), read("vcpu1/cgroup.threads")), ("80".into(), "81".into()));
        for group in ["emulator", "vcpu0", "vcpu1"] {
            assert_eq!(read(&format!("{group}/cgroup.type")), "threaded");
            assert!(!libvirt.join(group).join("cpu.weight").exists());
        }
        for parent in [root.to_owned(), root.join("machine.slice"), libvirt.join(".."), libvirt] {
            assert_eq!(fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap(), "+cpu +cpuset");
        }
    }

    #[test]
    fn what_fails_is_told_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("machine.slice"), "").unwrap();
        let error = Scope::new(dir.path(), 1, "a", 7).unwrap_err().to_string();
        assert!(error.contains("machine.slice/machine-qemu\\x2d1\\x2da.scope/libvirt: "), "{error}");
    }

    #[test]
    fn units_are_named_as_systemd_does() {
        assert_eq!(escaped("qemu-1-a.b_c:d e"), "qemu\\x2d1\\x2da.b_c:d\\x20e");
    }
}
