//! Paths of cgroups from the numbers that BPF sees: those of their folders in the cgroup 2 tree.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders looked at in one walk; a host with more keeps numbers for the rest.
const MOST: usize = 20_000;

/// Known paths by number.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    mount: Option<PathBuf>,
    paths: HashMap<u64, String>,
}

impl Cgroups {
    /// Finds the tree in the text of `/proc/self/mountinfo`.
    pub(crate) fn new(mountinfo: &str) -> Self {
        let mut mounts = mountinfo.lines().filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            (right.split(' ').next()? == "cgroup2").then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or_default()))
        });
        Self { mount: mounts.next(), paths: HashMap::new() }
    }

    /// Looks for numbers that are not known yet; walks the tree once if there are any.
    pub(crate) fn learn(&mut self, ids: impl IntoIterator<Item = u64>) {
        let missing: Vec<u64> = ids.into_iter().filter(|id| *id != 0 && !self.paths.contains_key(id)).collect();
        let Some(mount) = self.mount.clone().filter(|_| !missing.is_empty()) else { return };
        let mut seen = 0;
        self.walk(&mount, &mount, &mut seen);
        for id in missing {
            // Ended meanwhile. The number is all that is left, and the walk need not be repeated for it.
            self.paths.entry(id).or_insert_with(|| format!("(ended cgroup {id})"));
        }
    }

    fn walk(&mut self, mount: &Path, folder: &Path, seen: &mut usize) {
        *seen += 1;
        if *seen > MOST {
            return;
        }
        if let Ok(meta) = fs::metadata(folder) {
            let path = folder.strip_prefix(mount).unwrap_or(folder).display();
            self.paths.insert(meta.ino(), format!("/{path}"));
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.walk(mount, &entry.path(), seen);
            }
        }
    }

    /// The path; empty for none.
    pub(crate) fn path(&self, id: u64) -> String {
        self.paths.get(&id).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_folders_become_paths() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("system.slice/docker-1.scope")).unwrap();
        let info =
            format!("31 23 0:28 / /sys rw - tmpfs t rw\n41 31 0:38 / {} rw - cgroup2 c rw\n", dir.path().display());
        let mut cgroups = Cgroups::new(&info);
        let id = fs::metadata(dir.path().join("system.slice/docker-1.scope")).unwrap().ino();
        cgroups.learn([id, 0, u64::MAX]);
        assert_eq!(cgroups.path(id), "/system.slice/docker-1.scope");
        assert_eq!(cgroups.path(0), "");
        assert!(cgroups.path(u64::MAX).starts_with("(ended"));
    }
}
