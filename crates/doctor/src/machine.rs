//! The machine that is examined.

use std::path::PathBuf;

use entrain_bpf::Features;
use entrain_system::Root;

/// A machine, as the files below a folder show it.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) root: Root,
}

impl Machine {
    /// The machine whose `/proc`, `/sys`, `/dev` and `/run` are in `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: Root::at(root) }
    }

    /// What the kernel can do, by its type information.
    pub(crate) fn features(&self) -> Features {
        Features::probe_in(&self.root)
    }

    /// As `uname -r` has it.
    pub(crate) fn release(&self) -> Option<String> {
        self.root.trimmed("proc/sys/kernel/osrelease")
    }

    /// It runs VMs, or could. A container need not have the device for the daemon in it to find the node's VMs.
    pub(crate) fn is_host(&self) -> bool {
        self.root.exists("dev/kvm") || self.root.exists("sys/class/misc/kvm")
    }

    /// It is a VM. x86 says so in the CPU's flags; arm64 only by its firmware's tables or by who made the machine.
    pub(crate) fn is_guest(&self) -> bool {
        const MAKERS: [&str; 7] =
            ["QEMU", "Amazon EC2", "Google", "crosvm", "cloud-hypervisor", "Cloud Hypervisor", "KubeVirt"];
        let flag = self.root.text("proc/cpuinfo").is_some_and(|text| {
            let mut flags = text.lines().filter(|line| line.starts_with("flags"));
            flags.next().is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
        });
        let dmi = |name: &str| self.root.text(format!("sys/class/dmi/id/{name}")).unwrap_or_default();
        // EC2's machines without a hypervisor (c7g.metal, m7i.metal-24xl) have the same maker as its VMs.
        let made_as_vm = MAKERS.contains(&dmi("sys_vendor").trim()) && !dmi("product_name").contains(".metal");
        flag || self.root.exists("sys/firmware/devicetree/base/hypervisor") || made_as_vm
    }
}
