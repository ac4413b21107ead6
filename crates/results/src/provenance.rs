//! What was built: the commit, and a digest of the schedulers' sources.
//!
//! Both stand in a small file that `make build` writes beside the programs. Were they compiled in, every commit would
//! build the lab anew.

use std::fs;
use std::path::{Path, PathBuf};

/// The file's name. It lies beside the programs, or in `PREFIX/lib/entrain` where they are installed.
const FILE: &str = "entrain-lab.commit";

/// What stands for a commit or digest that nobody wrote down.
pub const UNKNOWN: &str = "unknown";

/// What the programs were built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// The git commit, with `-dirty` where the sources differed from it.
    pub commit: String,
    /// Digest of the schedulers' sources, as `scripts/provenance.sh schedulers` prints it.
    pub schedulers: String,
}

impl Default for Provenance {
    fn default() -> Self {
        Self { commit: UNKNOWN.to_owned(), schedulers: UNKNOWN.to_owned() }
    }
}

impl Provenance {
    /// Of this program and of those that it puts into machines; unknown where the file is missing or older than the
    /// program, which was then built by other means than `make build`.
    pub fn of_this_program() -> Self {
        let exe = std::env::current_exe().and_then(|path| path.canonicalize());
        exe.ok().and_then(|exe| Self::beside(&exe)).unwrap_or_default()
    }

    fn beside(exe: &Path) -> Option<Self> {
        let folder = exe.parent()?;
        let up = |levels: usize| folder.ancestors().nth(levels).map(Path::to_owned);
        let profile = folder.file_name().map(PathBuf::from).unwrap_or_default();
        let candidates = [
            Some(folder.to_owned()),
            // This program is PREFIX/bin/entrain-lab.
            up(1).map(|prefix| prefix.join("lib/entrain")),
            // It is target/TRIPLE/PROFILE/entrain-lab.
            up(2).map(|target| target.join(profile)),
        ];
        let file = candidates.into_iter().flatten().map(|folder| folder.join(FILE)).find(|file| file.is_file())?;
        let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        (changed(&file)? >= changed(exe)?).then(|| fs::read_to_string(&file).ok().map(|text| Self::parse(&text)))?
    }

    /// Reads lines of a name and a value.
    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.map(str::trim).filter(|value| !value.is_empty()).unwrap_or(UNKNOWN).to_owned()
        };
        Self { commit: value("commit"), schedulers: value("schedulers") }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn it_is_read_where_programs_are_built_and_installed() {
        let root = tempfile::tempdir().unwrap();
        let find = |program: &str, file: &str, age: u64| {
            let (program, file) = (root.path().join(program), root.path().join(file));
            for path in [&program, &file] {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
            }
            fs::write(&program, "").unwrap();
            fs::write(&file, "commit abc-dirty\nschedulers 123\n").unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            fs::File::options().write(true).open(&file).unwrap().set_modified(then).unwrap();
            let found = Provenance::beside(&program);
            fs::remove_file(file).unwrap();
            found
        };
        let known = Some(Provenance { commit: "abc-dirty".into(), schedulers: "123".into() });
        assert_eq!(find("target/release/entrain-lab", "target/release/entrain-lab.commit", 0), known);
        assert_eq!(find("target/x/release/entrain-lab", "target/release/entrain-lab.commit", 0), known);
        assert_eq!(find("usr/bin/entrain-lab", "usr/lib/entrain/entrain-lab.commit", 0), known);
        assert_eq!(find("target/release/entrain-lab", "target/release/entrain-lab.commit", 60), None, "built since");
        assert_eq!(find("target/release/entrain-lab", "elsewhere/entrain-lab.commit", 0), None);
    }

    #[test]
    fn what_the_file_lacks_is_unknown() {
        assert_eq!(Provenance::parse("schedulers \n"), Provenance::default());
    }
}
