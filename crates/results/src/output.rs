//! Files that a run writes at its end: looked at before it begins, and replaced whole or not at all.
//!
//! A file that is there stays as it is until the new one is complete: that is written beside it, brought to the disk,
//! and renamed into place.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// A file to be written later.
#[derive(Clone, Debug)]
pub struct Output {
    /// As the user named it.
    name: PathBuf,
    /// Links followed, so that not a link is replaced but the file behind it.
    path: PathBuf,
}

impl Output {
    /// Looks whether `path` can be written, without changing it.
    ///
    /// # Errors
    /// A folder that is missing or not writable, a file that is read-only, or a folder in the file's place.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot write {}", path.display());
        let output = Self { name: path.to_owned(), path: path.canonicalize().unwrap_or_else(|_| path.to_owned()) };
        if output.path.is_dir() {
            bail!("{}: it is a folder; give a file's name", what());
        }
        if output.path.exists() {
            // Opened for appending and closed again, a file stays as it is; a pipe may not even be there to read yet.
            if output.replaced() {
                File::options().append(true).open(&output.path).with_context(what)?;
            } else {
                return Ok(output);
            }
        }
        // A folder tells whether it takes new files only when it is given one; this one goes at once.
        output.beside().with_context(what)?;
        Ok(output)
    }

    /// The file, as the user named it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Is it a file that another can take the place of? A pipe or /dev/stdout is not.
    pub fn replaced(&self) -> bool {
        self.path.is_file() || !self.path.exists()
    }

    /// An empty file in the same folder, which vanishes unless it is renamed.
    fn beside(&self) -> io::Result<tempfile::NamedTempFile> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As readable as any file that the user makes (the umask applies), or as the one that it replaces was.
        tempfile::Builder::new().prefix(".entrain-").permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// A folder that takes no new file, a full disk.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        if !self.replaced() {
            return fs::write(&self.path, text);
        }
        let mut file = self.beside()?;
        file.write_all(text)?;
        if let Ok(old) = fs::metadata(&self.path) {
            file.as_file().set_permissions(old.permissions())?;
        }
        // Some file systems tell only now that they are full.
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// As [`Output::new`] and [`Output::write`].
pub fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    Output::new(path)?.write(text).map_err(|error| anyhow::anyhow!(why(path, &error)))
}

/// What went wrong with a file, for the user.
pub fn why(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull => format!("{path} could not be written: its disk is full"),
        io::ErrorKind::QuotaExceeded => format!("{path} could not be written: the quota on its disk is used up"),
        _ => format!("{path} could not be written: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        Output::new(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(&path, "good").unwrap();
        Output::new(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "good");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Output::new(&dir.path().join("no/such/folder.json")).unwrap_err();
        assert!(missing.to_string().contains("cannot write"), "{missing:#}");
        let folder = Output::new(dir.path()).unwrap_err();
        assert!(folder.to_string().contains("folder"), "{folder:#}");
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Output::new(&link).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_full_disk_is_told() {
        let full = Output::new(Path::new("/dev/full")).unwrap();
        let error = full.write(b"text").unwrap_err();
        assert!(why(full.name(), &error).contains("disk is full"));
        assert!(write(Path::new("/dev/full"), b"text").unwrap_err().to_string().contains("disk is full"));
    }
}
