//! What `--fix` has changed, so that `--undo` can take it back. The settings end with the machine's run, and so does the
//! record: it lies below `/run`.

use std::fs;
use std::io;

use anyhow::Context;
use entrain_system::Root;

use super::change::Change;

const FOLDER: &str = "run/entrain";
const FILE: &str = "run/entrain/isolate-undo.json";

/// The changes so far, oldest first.
///
/// # Errors
/// When the record is there but not readable.
pub(super) fn load(root: &Root) -> anyhow::Result<Vec<Change>> {
    let path = root.path(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: undo by hand and remove it", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Adds changes. Of two of the same thing the older one knows the original value.
pub(super) fn add(root: &Root, changes: &[Change]) -> anyhow::Result<()> {
    let mut all = load(root)?;
    for change in changes {
        if !all.iter().any(|known| known.same_thing(change)) {
            all.push(change.clone());
        }
    }
    store(root, &all)
}

/// Replaces the record; an empty one is removed.
pub(super) fn store(root: &Root, changes: &[Change]) -> anyhow::Result<()> {
    let path = root.path(FILE);
    if changes.is_empty() {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("cannot remove the record"),
            _ => Ok(()),
        };
    }
    fs::create_dir_all(root.path(FOLDER)).with_context(|| format!("cannot make {}", root.path(FOLDER).display()))?;
    // Whole or not at all: a half-written record would lose every original value.
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_string_pretty(changes)?)
        .with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, &path).with_context(|| format!("cannot write {}", path.display()))
}
