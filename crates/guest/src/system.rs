//! What /proc and /sys say about this guest.

use std::io;
use std::path::{Path, PathBuf};

use entrain_system::Root;

use crate::error::{GuestError, Result};

/// The files of one machine.
#[derive(Clone, Debug)]
pub struct System {
    root: Root,
}

/// Capabilities that the agent needs, by number (linux/capability.h).
const CAPABILITIES: [(u32, &str); 4] =
    [(21, "CAP_SYS_ADMIN"), (34, "CAP_SYSLOG"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

impl System {
    /// The machine that this program runs on.
    pub fn live() -> Self {
        Self { root: Root::live() }
    }

    /// Fails with the first reason why this kernel or this process can't register, so that it is said before anything is
    /// tried.
    pub fn check(&self) -> Result<()> {
        let missing = self.missing_capabilities()?;
        if !missing.is_empty() {
            return Err(GuestError::Privileges { missing: missing.join(", ") });
        }
        let btf = self.root.path("sys/kernel/btf/vmlinux");
        if !btf.exists() {
            return Err(GuestError::NoBtf(btf));
        }
        match self.root.text("sys/kernel/security/lockdown") {
            Some(modes) if modes.contains("[confidentiality]") => Err(GuestError::Lockdown),
            _ => Ok(()),
        }
    }

    fn missing_capabilities(&self) -> Result<Vec<&'static str>> {
        let status = self.root.read("proc/self/status")?;
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0);
        Ok(CAPABILITIES.iter().filter(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| *name).collect())
    }

    /// Numbers of the CPUs that may ever be there, hotplug included.
    pub fn possible_cpus(&self) -> Result<Vec<u32>> {
        Ok(self.root.possible_cpus()?.iter().collect())
    }

    /// Numbers of the CPUs that are there now.
    pub fn online_cpus(&self) -> Result<Vec<u32>> {
        Ok(self.root.online_cpus()?.iter().collect())
    }

    /// Whether this kernel has sched_ext.
    pub fn has_sched_ext(&self) -> bool {
        self.root.path("sys/kernel/sched_ext/state").exists()
    }

    /// The first 8 bytes of the kernel's boot id.
    pub fn boot_id(&self) -> Result<u64> {
        const PATH: &str = "proc/sys/kernel/random/boot_id";
        let text = self.root.read(PATH)?;
        let hex: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        Ok(u64::from_str_radix(&hex, 16).map_err(|_| self.root.unexpected(PATH, text))?)
    }

    /// One past the highest address of the machine's RAM.
    pub fn ram_end(&self) -> Result<u64> {
        const PATH: &str = "proc/iomem";
        let text = self.root.read(PATH)?;
        let end = text
            .lines()
            .filter(|line| !line.starts_with(' ') && line.ends_with(": System RAM"))
            .filter_map(|line| u64::from_str_radix(line.split_once(" : ")?.0.split_once('-')?.1, 16).ok())
            .max()
            .filter(|&end| end > 0)
            .ok_or_else(|| self.root.unexpected(PATH, "no System RAM"))?;
        Ok(end + 1)
    }

    /// Where pinned maps are kept, where the BPF file system is mounted.
    pub fn bpffs(&self) -> PathBuf {
        self.root.path("sys/fs/bpf")
    }

    /// The same; mounts the BPF file system there if nothing has, and says so.
    pub fn mounted_bpffs(&self) -> Result<PathBuf> {
        let path = self.bpffs();
        if self.root.text("proc/self/mounts").is_some_and(|mounts| mounts_have_bpffs(&mounts)) {
            return Ok(path);
        }
        rustix::mount::mount("bpf", &path, "bpf", rustix::mount::MountFlags::empty(), None)
            .map_err(|source| GuestError::Bpffs { path: path.clone(), source: io::Error::from(source) })?;
        tracing::warn!("mounted the BPF file system at {}: it was not there; it stays", path.display());
        Ok(path)
    }

    /// Where the agent's lock is kept; made if it is missing.
    pub fn run_folder(&self) -> Result<PathBuf> {
        let path = self.root.path("run/entrain");
        entrain_system::private_folder(&path).map_err(|source| GuestError::File { path: path.clone(), source })?;
        Ok(path)
    }
}

fn mounts_have_bpffs(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/sys/fs/bpf") && words.next() == Some("bpf")
    })
}

/// The path of a pinned object of ours below the BPF file system.
pub fn pin_folder(bpffs: &Path) -> PathBuf {
    bpffs.join("entrain")
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake;

    fn tree(files: &[(&str, &str)]) -> (fake::Machine, System) {
        let (machine, root) = fake::tree(files);
        (machine, System { root })
    }

    const ROOT: (&str, &str) = ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");

    #[test]
    fn says_what_is_missing() {
        let (_dir, system) = tree(&[("proc/self/status", "CapEff:\t0000000000000000\n")]);
        let error = system.check().expect_err("no rights").to_string();
        assert!(error.contains("CAP_SYS_ADMIN, CAP_SYSLOG, CAP_PERFMON, CAP_BPF"), "{error}");
        let (_dir, system) = tree(&[ROOT]);
        assert!(matches!(system.check(), Err(GuestError::NoBtf(_))));
        let btf = ("sys/kernel/btf/vmlinux", "");
        let locked = ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert!(matches!(tree(&[ROOT, btf, locked]).1.check(), Err(GuestError::Lockdown)));
        let open = ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        let (_dir, system) = tree(&[ROOT, btf, open]);
        system.check().expect("all is well");
    }

    #[test]
    fn reads_lists_of_cpus() {
        const PATH: &str = "sys/devices/system/cpu/possible";
        let list = |text: &str| tree(&[(PATH, text)]).1.possible_cpus();
        assert_eq!(list("0-2,7\n").expect("a list"), [0, 1, 2, 7]);
        assert_eq!(list("0").expect("a list"), [0]);
        for broken in ["", "a", "3-1", "0-4000000000", "0-"] {
            assert!(list(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn finds_the_end_of_ram() {
        let iomem = "00001000-0009fbff : System RAM\n  00002000-00003000 : System RAM\n\
                     00100000-1fffffff : System RAM\nfe000000-feffffff : PCI Bus\n";
        assert_eq!(tree(&[("proc/iomem", iomem)]).1.ram_end().expect("found"), 0x2000_0000);
        let hidden = "00000000-00000000 : System RAM\n";
        assert!(tree(&[("proc/iomem", hidden)]).1.ram_end().is_err());
    }

    #[test]
    fn reads_the_boot_id() {
        let (_dir, system) = tree(&[("proc/sys/kernel/random/boot_id", "01234567-89ab-cdef-0123-456789abcdef\n")]);
        assert_eq!(system.boot_id().expect("read"), 0x0123_4567_89ab_cdef);
    }

    #[test]
    fn recognises_the_bpf_file_system() {
        assert!(mounts_have_bpffs("none /sys/fs/bpf bpf rw 0 0\n"));
        assert!(!mounts_have_bpffs("none /sys/fs/bpf tmpfs rw 0 0\n"));
    }
}
