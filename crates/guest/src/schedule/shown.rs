//! What the scheduler shows of itself to onlookers: a file in the run folder, which the companion writes twice a second.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::Stats;

const FILE: &str = "schedule.json";

/// Brings the file up to date, at once for whoever reads it.
pub(super) fn write(run_folder: &Path, stats: &Stats) {
    let text = serde_json::to_string(stats).unwrap_or_default();
    let file = run_folder.join(FILE);
    // Only for onlookers: whoever runs the agent is not told if they can't see it.
    let next = file.with_extension("next");
    if fs::write(&next, text).and_then(|()| fs::rename(&next, &file)).is_err() {
        tracing::debug!("{} could not be written", file.display());
    }
}

/// Takes the file away: the scheduler has ended.
pub(crate) fn clear(run_folder: &Path) {
    // There is none in other modes.
    let _ = fs::remove_file(run_folder.join(FILE));
}

/// Whether tasks run on the scheduler: [`Stats::attached`] as it is shown; nothing without the file.
pub(crate) fn attached(run_folder: &Path) -> Option<bool> {
    #[derive(Deserialize)]
    struct Shown {
        attached: bool,
    }
    let text = fs::read_to_string(run_folder.join(FILE)).ok()?;
    serde_json::from_str::<Shown>(&text).ok().map(|shown| shown.attached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(attached(folder.path()), None);
        write(folder.path(), &Stats { attached: true, ..Stats::default() });
        assert_eq!(attached(folder.path()), Some(true));
        clear(folder.path());
        assert_eq!(attached(folder.path()), None);
    }
}
