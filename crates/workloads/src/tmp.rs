//! A scratch folder in memory: what is measured is the kernel, not a disk.

use crate::session::Session;
use anyhow::{Context, Result};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Behind it stands the owner's process id.
const PREFIX: &str = "entrain-load-";

/// A folder of our own, removed with all that is in it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes it in `dir`, else in the first of TMPDIR, /dev/shm, /tmp that is memory. If none is, the first that can
    /// be written is taken, and a note says so.
    pub(crate) fn new(dir: Option<&Path>, session: &Session) -> Result<Self> {
        let parent = match dir {
            Some(dir) => dir.to_path_buf(),
            None => {
                let places = [std::env::temp_dir(), "/dev/shm".into(), "/tmp".into(), "/run".into()];
                match places.iter().find(|place| in_memory(place)) {
                    Some(place) => place.clone(),
                    None => places[0].clone(),
                }
            }
        };
        if !in_memory(&parent) {
            session.out.note(format!("{} is not in memory: the figures hold a disk's time too", parent.display()))?;
        }
        sweep(&parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("entrain-load: cannot remove {}: {error}; remove it by hand", self.0.display());
        }
    }
}

/// Removes folders whose owners were killed: in a guest they hold its memory.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Somebody else's, or gone by now: then it is not ours to tell.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a path lies on a file system that lives in memory.
fn in_memory(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain data; all zeroes is a valid value.
    let mut info: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name is terminated, the buffer is ours.
    let found = unsafe { libc::statfs(name.as_ptr(), &mut info) } == 0;
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between C libraries")]
    let kind = info.f_type as i64;
    found && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind)
}

#[cfg(test)]
mod tests {
    #[test]
    fn folders_of_the_dead_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        // Process ids end below 2^22.
        let (dead, own) = (super::PREFIX.to_owned() + "4194305", format!("{}{}", super::PREFIX, std::process::id()));
        for name in [&dead, &own, &"other".to_owned()] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        super::sweep(parent.path());
        let kept = |name: &str| parent.path().join(name).exists();
        assert!(!kept(&dead) && kept(&own) && kept("other"));
    }

    #[test]
    fn proc_is_no_place_in_memory_and_a_missing_folder_neither() {
        assert!(!super::in_memory("/proc".as_ref()));
        assert!(!super::in_memory("/does/not/exist".as_ref()));
    }
}
