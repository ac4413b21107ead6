//! Whether a stored result and its page may stand: of the schedulers that are there, or admitted to be older.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// A line of the changelog that admits results from before the schedulers' last change.
pub const ADMITTED: &str = "results from before:";

/// What a project's results are held against.
#[derive(Debug)]
pub struct Yardstick {
    /// Digest of the schedulers' sources that are there.
    schedulers: String,
    /// What the changelog says.
    changelog: String,
}

impl Yardstick {
    /// Of the project in `root`.
    ///
    /// # Errors
    /// When `scripts/provenance.sh` fails or says no digest, or there is no changelog.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let said = Command::new(root.join("scripts/provenance.sh")).arg("schedulers").output();
        let said = said.context("cannot run scripts/provenance.sh")?;
        ensure!(said.status.success(), "scripts/provenance.sh failed: {said:?}");
        let digest = String::from_utf8(said.stdout)?;
        ensure!(digest.trim().len() == 16, "no digest: {digest}");
        Self::with(root, digest.trim())
    }

    /// Of the project in `root`, as if its schedulers' digest were this one.
    ///
    /// # Errors
    /// When there is no changelog.
    pub fn with(root: &Path, schedulers: &str) -> anyhow::Result<Self> {
        let changelog = fs::read_to_string(root.join("CHANGELOG.md")).context("cannot read CHANGELOG.md")?;
        Ok(Self { schedulers: schedulers.to_owned(), changelog })
    }

    /// Whether the changelog admits that this result is old.
    pub fn admits(&self, name: &str) -> bool {
        let lines = self.changelog.lines();
        let lines = lines.filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(ADMITTED));
        lines.flat_map(|names| names.split([',', ' '])).any(|one| one.trim_end_matches('.') == name)
    }

    /// What is wrong with a result of schedulers with this digest, if anything is.
    pub fn complaint(&self, name: &str, schedulers: &str) -> Option<String> {
        (schedulers != self.schedulers && !self.admits(name)).then(|| {
            format!(
                "{name} is of other schedulers than those that are there: make it anew, or say '{ADMITTED} {name}' in \
                 CHANGELOG.md"
            )
        })
    }
}

/// What is wrong with a page or another file that is made of results, if it does not hold `made`.
pub fn page_complaint(path: &Path, made: &str) -> Option<String> {
    let same = fs::read_to_string(path).is_ok_and(|text| text == made);
    (!same).then(|| format!("{} is not what the stored results give: 'make results' renews it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_result_is_a_fault_unless_the_changelog_admits_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(Yardstick::with(root.path(), "new").is_err(), "there is no changelog");
        fs::write(root.path().join("CHANGELOG.md"), "# Changelog\n\n- results from before: tour, exits.\n").unwrap();
        let yardstick = Yardstick::with(root.path(), "new").unwrap();
        assert_eq!(yardstick.complaint("frames", "new"), None);
        assert!(yardstick.complaint("frames", "old").unwrap().starts_with("frames is of other schedulers"));
        assert!(["tour", "exits"].iter().all(|name| yardstick.complaint(name, "old").is_none()));
    }

    #[test]
    fn a_page_that_differs_or_is_missing_is_a_fault() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tour.md");
        assert!(page_complaint(&path, "").is_some());
        fs::write(&path, "# Tour\n").unwrap();
        assert_eq!(page_complaint(&path, "# Tour\n"), None);
        assert!(page_complaint(&path, "# Tours\n").is_some());
    }
}
