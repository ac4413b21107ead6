//! Programs that experiments ask for by name: Debian's, and peers.
use std::path::PathBuf;

use super::peers;
use crate::{
    Cache, LabError, Progress, Result,
    archive::{Archive, RELEASE},
    machine::Arch,
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

/// The names of all programs that can be asked for.
pub fn names() -> impl Iterator<Item = &'static str> {
    PACKAGES.iter().map(|(program, _)| *program).chain(peers::PEERS.iter().map(|peer| peer.name))
}

/// Fetches the packages of `programs`, and builds those that are peers.
pub(super) fn fetch(cache: &Cache, arch: Arch, programs: &[String], progress: &dyn Progress) -> Result<Vec<Wanted>> {
    let mut programs = programs.to_vec();
    programs.sort();
    programs.dedup();
    let archive = Archive::new(cache, arch);
    let one = |program: String| match peers::find(&program) {
        Some(peer) => {
            let (tree, file) = peers::program(cache, arch, peer, progress)?;
            Ok(Wanted { program, tree, file, data: Vec::new() })
        }
        None => packaged(&archive, program, progress),
    };
    programs.into_iter().map(one).collect()
}

fn packaged(archive: &Archive<'_>, program: String, progress: &dyn Progress) -> Result<Wanted> {
    let (_, package) = PACKAGES.iter().find(|(name, _)| *name == program).ok_or_else(|| {
        let known: Vec<&str> = names().collect();
        LabError::Invalid(format!("the lab does not know where to get '{program}'; it knows {}", known.join(", ")))
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
