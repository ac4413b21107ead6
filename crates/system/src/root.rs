//! `/proc`, `/sys` and all else below a folder of choice, so that tests bring their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{CpuSet, Result, SystemError};

/// Where a machine's files are. All paths are relative to it and have no leading slash: `proc/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::live()
    }
}

impl Root {
    /// The machine that this program runs on.
    pub fn live() -> Self {
        Self::at("/")
    }

    /// The machine whose files `folder` holds.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Whether this is the running system.
    pub fn is_live(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The full path of a file.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file that must be there.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = self.path(path);
        fs::read_to_string(&path).map_err(|source| SystemError::File { path, source })
    }

    /// The error of a file that says something else than it should.
    pub fn unexpected(&self, path: impl AsRef<Path>, found: impl Into<String>) -> SystemError {
        SystemError::Unexpected { path: self.path(path), found: found.into() }
    }

    /// The text of a file that may be missing. `None` also when it cannot be read: what a kernel does not offer, a thread
    /// that has ended and what this user may not see look the same to whoever can do without.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.read(path).ok()
    }

    /// The same without the white space around it.
    pub fn trimmed(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.text(path)?.trim().to_owned())
    }

    /// The same, parsed; `None` also when it says something else.
    pub fn parse<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// A list of CPUs that must be there and name one CPU at least.
    pub fn cpus(&self, path: impl AsRef<Path>) -> Result<CpuSet> {
        let text = self.read(&path)?;
        let cpus = text.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty());
        cpus.ok_or_else(|| self.unexpected(path, text))
    }

    /// A list of CPUs that may be missing; then it is empty.
    pub fn cpus_or_none(&self, path: impl AsRef<Path>) -> CpuSet {
        self.parse(path).unwrap_or_default()
    }

    /// CPUs that may ever be there, hotplug included.
    pub fn possible_cpus(&self) -> Result<CpuSet> {
        self.cpus("sys/devices/system/cpu/possible")
    }

    /// CPUs that are there now.
    pub fn online_cpus(&self) -> Result<CpuSet> {
        self.cpus("sys/devices/system/cpu/online")
    }

    /// The choice in brackets of a file like `always [madvise] never`.
    pub fn chosen(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.text(path)?.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    /// The value of a parameter on the kernel's command line; of several of this name the kernel takes the last.
    pub fn kernel_parameter(&self, name: &str) -> Option<String> {
        let line = self.text("proc/cmdline")?;
        line.split_ascii_whitespace()
            .rev()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    }

    /// Where a symbolic link points.
    pub fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.to_string_lossy().into_owned())
    }

    /// Names in a folder, sorted, numbers by their value; empty when it is not there.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// Whether a file or folder is there.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Writes a file of `/proc` or `/sys`, which must exist.
    pub fn write(&self, path: impl AsRef<Path>, text: &str) -> io::Result<()> {
        use io::Write as _;
        fs::OpenOptions::new().write(true).truncate(true).open(self.path(path))?.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Machine;

    #[test]
    fn parameters_of_the_kernel() {
        let machine = Machine::new([("proc/cmdline", "quiet rcu_nocbs=1 rcu_nocbs=2-3 x\n")]);
        assert_eq!(machine.root().kernel_parameter("rcu_nocbs").as_deref(), Some("2-3"));
        machine.put("proc/cmdline", "rcu_nocbs\n");
        assert_eq!(machine.root().kernel_parameter("rcu_nocbs"), None);
    }

    #[test]
    fn files_below_a_folder() {
        let machine = Machine::new([
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/irq/10/x", ""),
            ("proc/irq/9/x", ""),
        ]);
        let root = machine.root();
        assert_eq!(root.cpus_or_none("sys/devices/system/cpu/isolated").to_string(), "2-3");
        assert!(root.cpus_or_none("sys/devices/system/cpu/nohz_full").is_empty());
        assert_eq!(root.chosen("sys/kernel/mm/transparent_hugepage/enabled").as_deref(), Some("madvise"));
        assert_eq!(root.list("proc/irq"), ["9", "10"]);
        assert!(root.write("proc/absent", "1").is_err() && root.write("proc/irq/9/x", "1").is_ok());
        assert_eq!(root.trimmed("proc/irq/9/x").as_deref(), Some("1"));
        assert!(!root.is_live() && Root::live().is_live());
    }

    #[test]
    fn errors_name_the_file_and_what_is_gone_is_none() {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "what\n"), ("proc/7/x", "")]);
        let root = machine.root();
        let error = root.possible_cpus().unwrap_err().to_string();
        assert!(error.contains("cpu/possible says \"what\\n\""), "{error}");
        let error = root.online_cpus().unwrap_err().to_string();
        assert!(error.contains("cpu/online: No such file"), "{error}");
        assert!(root.text("proc/8/stat").is_none());
        assert!(root.read("proc/7").is_err(), "a folder is no file");
    }
}
