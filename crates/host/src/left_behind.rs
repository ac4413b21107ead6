//! What must be put back if the daemon is killed: written to a file before it is done, taken from it by the next start.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// Writes the file anew, whole or not at all; nothing to put back: no file.
pub(crate) fn write<T: Serialize>(path: &Path, what: Option<&T>) -> io::Result<()> {
    let Some(what) = what else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_vec(what).map_err(io::Error::other)?)?;
    fs::rename(&part, path)
}

/// What an earlier process left; the file is gone after that.
pub(crate) fn take<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = fs::read(path).ok()?;
    let left = serde_json::from_slice(&text)
        .inspect_err(|error| warn!("{}: no record of an earlier daemon, ignored: {error}", path.display()));
    let _ = fs::remove_file(path);
    left.ok()
}
