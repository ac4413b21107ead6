//! The results that are kept with the project, and what is made of them: pages and README's block.

use std::path::{Path, PathBuf};

use anyhow::Context;
use entrain_results::name;

use super::{Report, file, markdown, readme};

/// A file that is made of results, with its content.
pub type Made = (PathBuf, String);

/// Reads results, each with its name.
///
/// # Errors
/// A file that is no report.
pub fn read(files: &[PathBuf]) -> anyhow::Result<Vec<(String, Report)>> {
    files.iter().map(|path| Ok((name(path), file::read(path)?))).collect()
}

/// The page of every result, in the folder `into`.
pub fn pages(results: &[(String, Report)], into: &Path) -> Vec<Made> {
    let page = |(name, report): &(String, Report)| (into.join(format!("{name}.md")), markdown::render(report, name));
    results.iter().map(page).collect()
}

/// README with its block made anew.
///
/// # Errors
/// A file that cannot be read or has no place for the block.
pub fn front(results: &[(String, Report)], path: &Path) -> anyhow::Result<Made> {
    let what = || format!("cannot renew {}", path.display());
    let text = std::fs::read_to_string(path).with_context(what)?;
    Ok((path.to_owned(), readme::renew(&text, results).with_context(what)?))
}

#[cfg(test)]
#[path = "stored_tests.rs"]
pub(super) mod tests;
