//! What stored results have in common, whether the lab has measured them or the simulator predicts: what they were built
//! from, how old they may be, the Markdown of their pages, and how their files are written.

pub mod age;
pub mod markdown;
pub mod output;
pub mod provenance;

use std::path::Path;

/// A result's name: its file's, without the ending.
pub fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.strip_suffix(".json").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_ending() {
        for path in ["docs/results/tour.json.gz", "tour.json", "/tmp/tour"] {
            assert_eq!(name(path.as_ref()), "tour");
        }
    }
}
