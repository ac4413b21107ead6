//! What /proc and /sys say about this guest. Every reader takes the root of the file tree, so that tests can fake one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{GuestError, Result};

/// The files of one machine.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

/// Capabilities that the agent needs, by number (linux/capability.h).
const CAPABILITIES: [(u32, &str); 4] =
    [(21, "CAP_SYS_ADMIN"), (34, "CAP_SYSLOG"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

impl System {
    /// The machine that this program runs on.
    pub fn live() -> Self {
        Self::at("/")
    }

    /// A tree of files below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn read(&self, path: &str) -> Result<String> {
        let path = self.path(path);
        fs::read_to_string(&path).map_err(|source| GuestError::File { path, source })
    }

    fn read_if_there(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// Fails with the first reason why this kernel or this process can't register, so that it is said before anything is
    /// tried.
    pub fn check(&self) -> Result<()> {
        let missing = self.missing_capabilities()?;
        if !missing.is_empty() {
            return Err(GuestError::Privileges { missing: missing.join(", ") });
        }
        let btf = self.path("sys/kernel/btf/vmlinux");
        if !btf.exists() {
            return Err(GuestError::NoBtf(btf));
        }
        match self.read_if_there("sys/kernel/security/lockdown") {
            Some(modes) if modes.contains("[confidentiality]") => Err(GuestError::Lockdown),
            _ => Ok(()),
        }
    }

    fn missing_capabilities(&self) -> Result<Vec<&'static str>> {
        let status = self.read("proc/self/status")?;
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0);
        Ok(CAPABILITIES.iter().filter(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| *name).collect())
    }

    /// Numbers of the CPUs that may ever be there, hotplug included.
    pub fn possible_cpus(&self) -> Result<Vec<u32>> {
        self.cpu_list("sys/devices/system/cpu/possible")
    }

    /// Numbers of the CPUs that are there now.
    pub fn online_cpus(&self) -> Result<Vec<u32>> {
        self.cpu_list("sys/devices/system/cpu/online")
    }

    fn cpu_list(&self, path: &str) -> Result<Vec<u32>> {
        let text = self.read(path)?;
        parse_cpu_list(text.trim()).ok_or_else(|| GuestError::Unexpected { path: self.path(path), found: text })
    }

    /// Whether this kernel has sched_ext.
    pub fn has_sched_ext(&self) -> bool {
        self.path("sys/kernel/sched_ext/state").exists()
    }

    /// The first 8 bytes of the kernel's boot id.
    pub fn boot_id(&self) -> Result<u64> {
        const PATH: &str = "proc/sys/kernel/random/boot_id";
        let text = self.read(PATH)?;
        let hex: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        u64::from_str_radix(&hex, 16).map_err(|_| GuestError::Unexpected { path: self.path(PATH), found: text })
    }

    /// One past the highest address of the machine's RAM.
    pub fn ram_end(&self) -> Result<u64> {
        const PATH: &str = "proc/iomem";
        let text = self.read(PATH)?;
        let end = text
            .lines()
            .filter(|line| !line.starts_with(' ') && line.ends_with(": System RAM"))
            .filter_map(|line| u64::from_str_radix(line.split_once(" : ")?.0.split_once('-')?.1, 16).ok())
            .max()
            .filter(|&end| end > 0)
            .ok_or_else(|| GuestError::Unexpected { path: self.path(PATH), found: "no System RAM".into() })?;
        Ok(end + 1)
    }

    /// Where pinned maps are kept, where the BPF file system is mounted.
    pub fn bpffs(&self) -> PathBuf {
        self.path("sys/fs/bpf")
    }

    /// The same; mounts the BPF file system there if nothing has, and says so.
    pub fn mounted_bpffs(&self) -> Result<PathBuf> {
        let path = self.bpffs();
        if self.read_if_there("proc/self/mounts").is_some_and(|mounts| mounts_have_bpffs(&mounts)) {
            return Ok(path);
        }
        rustix::mount::mount("bpf", &path, "bpf", rustix::mount::MountFlags::empty(), None)
            .map_err(|source| GuestError::Bpffs { path: path.clone(), source: io::Error::from(source) })?;
        tracing::warn!("mounted the BPF file system at {}: it was not there; it stays", path.display());
        Ok(path)
    }

    /// Where the agent's lock is kept; made if it is missing.
    pub fn run_folder(&self) -> Result<PathBuf> {
        let path = self.path("run/entrain");
        fs::create_dir_all(&path).map_err(|source| GuestError::File { path: path.clone(), source })?;
        Ok(path)
    }
}

fn mounts_have_bpffs(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/sys/fs/bpf") && words.next() == Some("bpf")
    })
}

fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // More than any kernel can have: a broken file, not a machine.
        if first > last || last > 65_535 {
            return None;
        }
        cpus.extend(first..=last);
    }
    (!cpus.is_empty()).then_some(cpus)
}

/// The path of a pinned object of ours below the BPF file system.
pub fn pin_folder(bpffs: &Path) -> PathBuf {
    bpffs.join("entrain")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let system = System::at(dir.path());
        (dir, system)
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
        assert_eq!(parse_cpu_list("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse_cpu_list("0"), Some(vec![0]));
        for broken in ["", "a", "3-1", "0-4000000000", "0-"] {
            assert_eq!(parse_cpu_list(broken), None, "{broken:?}");
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
