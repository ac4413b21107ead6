//! Which program runs a VM.

use entrain_host::Manager;
use serde::Serialize;

/// A program that runs VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vmm {
    /// QEMU, started by hand or by a script.
    Qemu,
    /// QEMU, started by libvirt.
    Libvirt,
    /// QEMU and libvirt in a pod of KubeVirt.
    Kubevirt,
    /// QEMU and libvirt by OpenStack's Nova.
    Nova,
    /// QEMU by Proxmox VE.
    Proxmox,
    /// crosvm.
    Crosvm,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// Any other.
    Other,
}

/// A path's last part.
fn base(path: &str) -> &str {
    path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default()
}

/// Options of the dynamic loader that take a value in a word of its own (ld.so(8)).
const LOADER_VALUES: [&str; 7] = [
    "--library-path",
    "--preload",
    "--argv0",
    "--inhibit-rpath",
    "--audit",
    "--glibc-hwcaps-prepend",
    "--glibc-hwcaps-mask",
];

/// What the dynamic loader was told to run, if the program is one (`ld-linux-x86-64.so.2 --library-path … qemu …`).
fn loaded<'a>(loader: &str, arguments: &'a [String]) -> Option<&'a str> {
    if !loader.starts_with("ld-linux") && !loader.starts_with("ld-musl") {
        return None;
    }
    let mut words = arguments.iter().skip(1).map(String::as_str);
    while let Some(word) = words.next() {
        if LOADER_VALUES.contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(base(word));
        }
    }
    None
}

impl Vmm {
    /// By the program's name, its arguments (its own name first) and who manages it.
    pub(crate) fn recognise(program: &str, arguments: &[String], manager: Option<Manager>) -> Self {
        let base = base(program);
        let base = loaded(base, arguments).unwrap_or(base);
        // `comm` holds 15 characters at most.
        if base.starts_with("cloud-hyperviso") {
            Self::CloudHypervisor
        } else if base.starts_with("firecracker") {
            Self::Firecracker
        } else if base.starts_with("crosvm") {
            Self::Crosvm
        } else if base.starts_with("qemu") || base == "kvm" {
            match manager {
                Some(Manager::Kubevirt) => Self::Kubevirt,
                Some(Manager::Openstack) => Self::Nova,
                Some(Manager::Libvirt) => Self::Libvirt,
                Some(Manager::Proxmox) => Self::Proxmox,
                None => Self::Qemu,
            }
        } else {
            Self::Other
        }
    }

    /// Bytes of RAM that QEMU was told to give its VM, by its arguments: `-m 512`, `-m size=4G,slots=2,maxmem=8G`. Its ROMs
    /// and graphics cards have memory beside that.
    pub(crate) fn ram(self, arguments: &[String]) -> Option<u64> {
        if !matches!(self, Self::Qemu | Self::Libvirt | Self::Kubevirt | Self::Nova | Self::Proxmox) {
            return None;
        }
        let at = arguments.iter().rposition(|word| word == "-m")?;
        let size = arguments.get(at + 1)?.split(',').find_map(|part| match part.split_once('=') {
            Some((key, size)) => (key == "size").then_some(size),
            None => Some(part),
        })?;
        let number = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &size[number.len()..] {
            "k" | "K" => 10,
            "" | "m" | "M" => 20,
            "g" | "G" => 30,
            "t" | "T" => 40,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU",
            Self::Libvirt => "QEMU by libvirt",
            Self::Kubevirt => "QEMU by KubeVirt",
            Self::Nova => "QEMU by OpenStack",
            Self::Proxmox => "QEMU by Proxmox",
            Self::Crosvm => "crosvm",
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Firecracker => "Firecracker",
            Self::Other => "a VMM that the doctor does not know",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_ram_is_what_qemu_was_told() {
        let ram = |line: &str| Vmm::Qemu.ram(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(ram("qemu -smp 2 -m 512 -nographic"), Some(512 << 20));
        assert_eq!(ram("qemu -m 4G"), Some(4 << 30));
        assert_eq!(ram("qemu -m slots=2,size=1048576k,maxmem=8G"), Some(1 << 30));
        assert_eq!(ram("qemu -m 1.5G"), None);
        assert_eq!(ram("qemu -m 99999999999T"), None);
        assert_eq!((ram("qemu -m"), ram("qemu")), (None, None));
        assert_eq!(Vmm::Other.ram(&["x".into(), "-m".into(), "7".into()]), None);
    }

    #[test]
    fn programs_are_recognised_by_path_and_by_who_started_them() {
        let none: [String; 0] = [];
        let qemu = |manager| Vmm::recognise("/usr/libexec/qemu-kvm (deleted)", &none, manager);
        assert_eq!(Vmm::recognise("/usr/bin/qemu-system-x86_64", &none, None), Vmm::Qemu);
        assert_eq!(qemu(Some(Manager::Libvirt)), Vmm::Libvirt);
        assert_eq!(qemu(Some(Manager::Kubevirt)), Vmm::Kubevirt);
        assert_eq!(qemu(Some(Manager::Openstack)), Vmm::Nova);
        assert_eq!(Vmm::recognise("/usr/bin/kvm", &none, Some(Manager::Proxmox)), Vmm::Proxmox);
        assert_eq!(Vmm::recognise("cloud-hyperviso", &none, None), Vmm::CloudHypervisor);
        assert_eq!(Vmm::recognise("/opt/firecracker-v1.7", &none, None), Vmm::Firecracker);
        assert_eq!(Vmm::recognise("/usr/bin/crosvm", &none, None), Vmm::Crosvm);
        assert_eq!(Vmm::recognise("lkvm", &none, None), Vmm::Other);
        let words = "ld.so --argv0 x --library-path /lib:/qemu/lib /opt/q/qemu-system-aarch64 -smp 2";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        assert_eq!(Vmm::recognise("/lib64/ld-linux-x86-64.so.2", &words, None), Vmm::Qemu);
        assert_eq!(Vmm::recognise("/lib64/ld-linux-x86-64.so.2", &words[..1], None), Vmm::Other);
    }
}
