//! The files of the machine that is examined.

use std::fs;
use std::path::{Path, PathBuf};

use entrain_bpf::Features;

/// A machine, as the files below a folder show it.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine whose `/proc`, `/sys`, `/dev` and `/run` are in `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The path of a file, given without its leading slash.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text; `None` where it is missing or cannot be read, as many of these are on one machine or another.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// Where a symbolic link points.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.to_string_lossy().into_owned())
    }

    /// Names in a folder; none where it is missing.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// What the kernel can do, by its type information.
    pub(crate) fn features(&self) -> Features {
        Features::probe_in(&self.root)
    }

    /// As `uname -r` has it.
    pub(crate) fn release(&self) -> Option<String> {
        Some(self.text("proc/sys/kernel/osrelease")?.trim().to_owned())
    }

    /// It runs VMs, or could.
    pub(crate) fn is_host(&self) -> bool {
        self.has("dev/kvm")
    }

    /// It is a VM. x86 says so in the CPU's flags; arm64 only by its firmware's tables or by who made the machine.
    pub(crate) fn is_guest(&self) -> bool {
        const MAKERS: [&str; 7] =
            ["QEMU", "Amazon EC2", "Google", "crosvm", "cloud-hypervisor", "Cloud Hypervisor", "KubeVirt"];
        let flag = self.text("proc/cpuinfo").is_some_and(|text| {
            let mut flags = text.lines().filter(|line| line.starts_with("flags"));
            flags.next().is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
        });
        let dmi = |name: &str| self.text(format!("sys/class/dmi/id/{name}")).unwrap_or_default();
        // EC2's machines without a hypervisor (c7g.metal, m7i.metal-24xl) have the same maker as its VMs.
        let made_as_vm = MAKERS.contains(&dmi("sys_vendor").trim()) && !dmi("product_name").contains(".metal");
        flag || self.has("sys/firmware/devicetree/base/hypervisor") || made_as_vm
    }
}
