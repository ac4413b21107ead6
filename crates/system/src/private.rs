//! Folders that nobody but root sees.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Makes a folder, and those above it, for root alone; one that is there becomes so. Locks and sockets lie in it: whoever may
/// open a lock's file can hold it.
///
/// # Errors
/// When it cannot be made, or is somebody else's.
pub fn private_folder(path: &Path) -> io::Result<()> {
    const MODE: u32 = 0o700;
    DirBuilder::new().recursive(true).mode(MODE).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_there_becomes_private() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run/entrain");
        let mode = || fs::metadata(&path).expect("made").permissions().mode() & 0o777;
        private_folder(&path).expect("made");
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("ours");
        private_folder(&path).expect("there");
        assert_eq!(mode(), 0o700);
    }
}
