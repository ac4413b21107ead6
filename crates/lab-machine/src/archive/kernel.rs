//! The newest Debian kernel with what Entrain needs.
use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{apt::Apt, unpack};
use crate::{LabError, Progress, Result};

/// Types for BPF programs.
pub(super) const BTF: &str = "CONFIG_DEBUG_INFO_BTF=y";
/// What a kernel's configuration must hold: schedulers in BPF, and types for BPF programs.
pub(super) const WANTED: [&str; 2] = ["CONFIG_SCHED_CLASS_EXT=y", BTF];
/// How many versions are tried, newest first, before the lab gives up.
const TRIES: usize = 4;

/// A kernel, unpacked.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its release, as `uname -r` says.
    pub release: String,
    /// Its bootable image.
    pub image: PathBuf,
    /// Its configuration.
    pub config: PathBuf,
    /// The folder `lib/modules/RELEASE`, if it has modules.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// Finds the one kernel in a tree of unpacked packages, of the layout of 7.x (all in the modules' folder) or the
    /// older one (`/boot`).
    pub(super) fn in_tree(tree: &Path) -> Result<Self> {
        let missing = |what: &str| LabError::Missing {
            what: format!("{}: the kernel package holds no {what}", tree.display()),
            advice: "run 'entrain lab clean' and try again".into(),
        };
        let base = ["usr/lib/modules", "lib/modules"].map(|p| tree.join(p)).into_iter().find(|p| p.is_dir());
        let base = base.ok_or_else(|| missing("modules"))?;
        let modules = fs::read_dir(&base)
            .map_err(|e| LabError::io(&base, e))?
            .filter_map(|e| Some(e.ok()?.path()))
            .find(|p| p.is_dir())
            .ok_or_else(|| missing("modules"))?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let find =
            |inside: &str, boot: String| [modules.join(inside), tree.join(boot)].into_iter().find(|p| p.is_file());
        Ok(Self {
            image: find("vmlinuz", format!("boot/vmlinuz-{release}")).ok_or_else(|| missing("image"))?,
            config: find("config", format!("boot/config-{release}")).ok_or_else(|| missing("configuration"))?,
            modules: Some(modules),
            release,
        })
    }

    /// Which of the wanted settings does the configuration lack?
    pub fn lacks(&self) -> Result<Vec<&'static str>> {
        self.lacks_of(&WANTED)
    }

    fn lacks_of(&self, wanted: &[&'static str]) -> Result<Vec<&'static str>> {
        let text = fs::read_to_string(&self.config).map_err(|e| LabError::io(&self.config, e))?;
        Ok(wanted.iter().copied().filter(|want| !text.lines().any(|line| line == *want)).collect())
    }
}

/// Fetches and unpacks the newest kernel of `flavour` whose configuration holds what is `wanted` into `dir`: of a `series`
/// that was asked for, the newest of all. What that one lacks, it is the asker's to know.
pub(super) fn fetch(
    apt: &Apt,
    flavour: &str,
    wanted: &[&'static str],
    series: Option<&str>,
    dir: &Path,
    progress: &dyn Progress,
) -> Result<()> {
    let names = apt.names("linux-")?;
    let mut rejected = Vec::new();
    let of_series = |version: &String| {
        series.is_none_or(|series| version.strip_prefix(series).is_some_and(|rest| rest.starts_with('.')))
    };
    for version in newest(&names, flavour).into_iter().filter(of_series).take(TRIES) {
        let packages: Vec<String> = ["base", "binary", "image", "modules"]
            .map(|part| format!("linux-{part}-{version}-{flavour}"))
            .into_iter()
            .filter(|name| names.contains(name))
            .collect();
        progress.step(&format!("fetching Linux {version} ({flavour})"));
        let debs = tempfile::tempdir_in(dir).map_err(|e| LabError::io(dir, e))?;
        let tree = dir.join("tree");
        let files = apt.download(&packages, debs.path())?;
        progress.step(&format!("unpacking Linux {version} ({flavour})"));
        unpack(&files, &tree)?;
        drop(debs);
        let lacks = Kernel::in_tree(&tree)?.lacks_of(wanted)?;
        if lacks.is_empty() || series.is_some() {
            return hoist(&tree, dir);
        }
        rejected.push(format!("{version} lacks {}", lacks.join(" and ")));
        fs::remove_dir_all(&tree).map_err(|e| LabError::io(&tree, e))?;
    }
    Err(LabError::Missing {
        what: match series {
            Some(series) => format!("the archive has no kernel {series} of flavour {flavour}"),
            None => format!("no kernel of flavour {flavour} qualifies ({})", rejected.join("; ")),
        },
        advice: "give one of your own with --kernel and --modules".into(),
    })
}

/// Moves what is in `tree` up into `dir`.
fn hoist(tree: &Path, dir: &Path) -> Result<()> {
    let up = || {
        for item in fs::read_dir(tree)? {
            let item = item?;
            fs::rename(item.path(), dir.join(item.file_name()))?;
        }
        fs::remove_dir(tree)
    };
    up().map_err(|e| LabError::io(tree, e))
}

/// The versions of `linux-image-VERSION-FLAVOUR` among package names, newest first.
fn newest(names: &[String], flavour: &str) -> Vec<String> {
    let mut versions: Vec<String> = names
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-")?.strip_suffix(flavour)?.strip_suffix('-'))
        // "7.3.4+deb13" and "6.1.0-50" yes; "7.3.4+deb13-cloud" and the dummy packages no.
        .filter(|v| v.split('-').all(|part| part.starts_with(|c: char| c.is_ascii_digit())))
        .map(str::to_owned)
        .collect();
    versions.sort_by_key(|v| std::cmp::Reverse(numbers(v)));
    versions
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_flavour_comes_first() {
        let names = [
            "linux-image-7.2.11+deb13-arm64",
            "linux-image-7.2.9+deb13-arm64",
            "linux-image-7.3.4+deb13-arm64",
            "linux-image-7.3.4+deb13-arm64-dbg",
            "linux-image-7.3.4+deb13-rt-arm64",
            "linux-image-7.3.4+deb13-arm64-16k",
            "linux-image-arm64",
            "linux-image-rt-arm64",
            "linux-image-6.1.0-9-arm64",
            "linux-image-6.1.0-50-arm64",
            "linux-image-6.1.0-50-cloud-arm64",
        ]
        .map(str::to_owned);
        assert_eq!(newest(&names, "arm64"), ["7.3.4+deb13", "7.2.11+deb13", "7.2.9+deb13", "6.1.0-50", "6.1.0-9"]);
        assert_eq!(newest(&names, "rt-arm64"), ["7.3.4+deb13"]);
    }

    #[test]
    fn a_kernel_says_what_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let modules = dir.path().join("usr/lib/modules/7.3.4");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("vmlinuz"), "").unwrap();
        fs::write(modules.join("config"), "CONFIG_DEBUG_INFO_BTF=y\n# CONFIG_SCHED_CLASS_EXT is not set\n").unwrap();
        let kernel = Kernel::in_tree(dir.path()).unwrap();
        assert_eq!(kernel.release, "7.3.4");
        assert_eq!(kernel.lacks().unwrap(), ["CONFIG_SCHED_CLASS_EXT=y"]);
    }
}
