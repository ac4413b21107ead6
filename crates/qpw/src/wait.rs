//! Waiting for livepatch's transition, and who holds it up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The patch's folder under `root` (`/` but in tests).
pub fn patch_dir(root: &Path) -> PathBuf {
    root.join("sys/kernel/livepatch").join(crate::make::MODULE)
}

/// Whether a transition is under way. `None`: the patch is not there.
pub fn in_transition(root: &Path) -> Option<bool> {
    fs::read_to_string(patch_dir(root).join("transition")).ok().map(|text| text.trim() == "1")
}

/// Waits for the transition to end, or the patch to vanish; says whether it did within `timeout`.
pub fn ended(root: &Path, timeout: Duration) -> bool {
    let start = Instant::now();
    while in_transition(root) == Some(true) {
        if start.elapsed() > timeout {
            return false;
        }
        thread::sleep(Duration::from_millis(100));
    }
    true
}

/// Tasks that have not switched yet, as "name (tid)". `patched`: the state that they are to reach.
///
/// A task switches when it is seen outside of the replaced functions, at the latest when it enters or leaves the
/// kernel. Where all have switched, the transition still waits for a work item on each CPU, behind a FIFO task for as
/// long as that runs.
pub fn behind(root: &Path, patched: bool) -> Vec<String> {
    let wanted = if patched { "1" } else { "0" };
    let tasks = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|e| e.path());
    let is_number = |p: &PathBuf| p.file_name().is_some_and(|n| n.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    tasks(root.join("proc"))
        .filter(is_number)
        .flat_map(|process| tasks(process.join("task")))
        .filter_map(|task| {
            // A task may end meanwhile; -1 is one that needs nothing.
            let state = fs::read_to_string(task.join("patch_state")).ok()?;
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let tid = task.file_name()?.to_string_lossy().into_owned();
            let late = state.trim() != wanted && state.trim() != "-1";
            late.then(|| format!("{} ({tid})", name.trim()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_who_is_behind() {
        let dir = tempfile::tempdir().unwrap();
        for (tid, state) in [("7", "1"), ("8", "0"), ("9", "-1")] {
            let task = dir.path().join("proc").join(tid).join("task").join(tid);
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("patch_state"), format!("{state}\n")).unwrap();
            fs::write(task.join("comm"), "spin\n").unwrap();
        }
        assert_eq!(behind(dir.path(), true), ["spin (8)"]);
        assert_eq!(behind(dir.path(), false), ["spin (7)"]);
    }

    #[test]
    fn a_patch_that_is_not_there_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(in_transition(dir.path()), None);
        assert!(ended(dir.path(), Duration::ZERO));
        fs::create_dir_all(patch_dir(dir.path())).unwrap();
        fs::write(patch_dir(dir.path()).join("transition"), "1\n").unwrap();
        assert!(!ended(dir.path(), Duration::ZERO));
    }
}
