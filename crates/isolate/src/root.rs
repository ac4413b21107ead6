//! `/proc`, `/sys` and `/boot` below a folder of choice, so that tests bring their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpuset::CpuSet;

/// Where the system's folders are.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// The system that `folder` holds; `/` is the running one.
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// A file; `path` has no leading slash.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file without the white space around it. `None` when it is not there or cannot be read: what a
    /// kernel does not offer, and threads that have ended, look the same.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// The same, parsed.
    pub(crate) fn parse<T: FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// A list of CPUs; empty when there is none.
    pub(crate) fn cpus(&self, path: &str) -> CpuSet {
        self.parse(path).unwrap_or_default()
    }

    /// The choice in brackets of a file like `always [madvise] never`.
    pub(crate) fn chosen(&self, path: &str) -> Option<String> {
        Some(self.read(path)?.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    /// Names in a folder, sorted, numbers by their value; empty when it is not there.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Writes a file of `/proc` or `/sys`, which must exist.
    pub(crate) fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use io::Write as _;
        fs::OpenOptions::new().write(true).truncate(true).open(self.path(path))?.write_all(text.as_bytes())
    }

    /// Whether this is the running system.
    pub(crate) fn is_live(&self) -> bool {
        self.0 == Path::new("/")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder with these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    #[test]
    fn files_below_a_folder() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/irq/10/x", ""),
            ("proc/irq/9/x", ""),
        ]);
        assert_eq!(root.cpus("sys/devices/system/cpu/isolated").to_string(), "2-3");
        assert!(root.cpus("sys/devices/system/cpu/nohz_full").is_empty());
        assert_eq!(root.chosen("sys/kernel/mm/transparent_hugepage/enabled").as_deref(), Some("madvise"));
        assert_eq!(root.list("proc/irq"), ["9", "10"]);
        assert!(root.write("proc/absent", "1").is_err() && root.write("proc/irq/9/x", "1").is_ok());
        assert_eq!(root.read("proc/irq/9/x").as_deref(), Some("1"));
        assert!(!root.is_live());
    }
}
