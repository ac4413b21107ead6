//! Programs of Debian that experiments ask for by name.
use std::path::PathBuf;

use crate::{
    LabError, Progress, Result,
    archive::{Archive, RELEASE},
};

/// Program → package.
const PACKAGES: [(&str, &str); 12] = [
    ("bpftool", "bpftool"),
    ("cyclictest", "rt-tests"),
    ("dbench", "dbench"),
    ("fio", "fio"),
    ("hackbench", "rt-tests"),
    ("kexec", "kexec-tools"),
    ("nice", "coreutils"),
    ("oslat", "rt-tests"),
    ("perf", "linux-perf"),
    ("strace", "strace"),
    ("stress-ng", "stress-ng"),
    ("taskset", "util-linux"),
];
/// Files that a program reads at run time.
const DATA: [(&str, &str); 1] = [("dbench", "usr/share/dbench/client.txt")];

/// A program and where its package was unpacked.
pub(super) struct Wanted {
    pub(super) program: String,
    pub(super) tree: PathBuf,
    pub(super) file: PathBuf,
    /// Place in the image, and file.
    pub(super) data: Vec<(&'static str, PathBuf)>,
}

/// Fetches the packages of `programs`.
pub(super) fn fetch(archive: &Archive<'_>, programs: &[String], progress: &dyn Progress) -> Result<Vec<Wanted>> {
    let mut programs = programs.to_vec();
    programs.sort();
    programs.dedup();
    programs.into_iter().map(|program| one(archive, program, progress)).collect()
}

fn one(archive: &Archive<'_>, program: String, progress: &dyn Progress) -> Result<Wanted> {
    let known = || PACKAGES.map(|(program, _)| program).join(", ");
    let (_, package) = PACKAGES.iter().find(|(name, _)| *name == program).ok_or_else(|| {
        LabError::Invalid(format!("the lab does not know which package holds '{program}'; it knows {}", known()))
    })?;
    let tree = archive.tree(package, RELEASE, &[package], progress)?;
    let file = ["usr/bin", "usr/sbin", "bin", "sbin"].iter().map(|d| tree.join(d).join(&program)).find(|p| p.exists());
    let file = file.ok_or_else(|| LabError::Missing {
        what: format!("the package {package} holds no program {program}"),
        advice: "it may have moved to another package: tell the lab's maintainers".into(),
    })?;
    let data = DATA.iter().filter(|(name, _)| *name == program).map(|(_, place)| (*place, tree.join(place))).collect();
    Ok(Wanted { program, tree, file, data })
}
