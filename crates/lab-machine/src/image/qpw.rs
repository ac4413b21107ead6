//! The livepatch module of `entrain isolate qpw` for the machine's kernel.
//!
//! For one of the archive it is built by the program itself, as a user would: with the kernel's headers, and the compiler that the kernel was
//! built with. Both come from the archive into the cache. The headers name one another, and the compiler its parts, by
//! absolute paths: so the build runs in a root of its own, in a mount namespace, which needs no privilege.
use std::{
    fs,
    path::{Path, PathBuf},
};

use super::own;
use crate::{
    Cache, LabError, Progress, Result,
    archive::{Archive, BACKPORTS, tool},
    machine::Arch,
};

/// What the build needs beside the headers. gcc-14 is the compiler of trixie, and so of its and its backports' kernels.
const TOOLS: [&str; 9] = ["gcc-14", "binutils", "make", "dash", "coreutils", "mawk", "findutils", "sed", "grep"];

const FILE: &str = "entrain_qpw.ko";

/// Makes the root in memory, with the tree's programs in it, and builds there. Packages are unpacked, not installed:
/// names that their scripts would have made (`awk`) are made here.
const SCRIPT: &str = r#"
set -e
# chroot lies where an unprivileged user's PATH does not lead.
PATH=$PATH:/usr/sbin:/sbin
root=$1 tree=$2 out=$3 entrain=$4 release=$5
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir usr proc dev tmp out own
for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
ln -s /usr/bin/mawk own/awk
mount --rbind "$tree/usr" usr
mount --rbind /proc proc
mount --rbind /dev dev
mount --bind "$out" out
cp "$entrain" entrain
in_root() { chroot . /usr/bin/env -i PATH=/own:/usr/sbin:/usr/bin LC_ALL=C "$@"; }
in_root /entrain isolate qpw build --release "$release" --headers "/usr/src/linux-headers-$release" --out /out
in_root strip -g /out/entrain_qpw.ko
"#;

/// The module's file, built or from the cache.
pub(super) fn module(
    cache: &Cache,
    archive: &Archive<'_>,
    arch: Arch,
    release: &str,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    native(arch)?;
    let key = format!("{release}-{}", digest());
    let headers = format!("linux-headers-{release}");
    let packages: Vec<&str> = [headers.as_str()].into_iter().chain(TOOLS).collect();
    let folder = cache.entry("qpw", &key, |dir| {
        let tree = archive.tree("headers", BACKPORTS, &packages, progress)?;
        progress.step(&format!("building the module of 'entrain isolate qpw' for {release}"));
        build(&tree, dir, &own::program(arch, "entrain")?, release)
    })?;
    Ok(folder.join(FILE))
}

/// The same for a kernel of the user's own, by this computer's compiler: with the tree that its modules came from, which
/// `make modules_install` links as `build` among them.
pub(super) fn own_module(
    cache: &Cache,
    arch: Arch,
    release: &str,
    modules: &Path,
    stamp: &str,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    native(arch)?;
    let headers = modules.join("build");
    if !headers.is_dir() {
        return Err(LabError::Missing {
            what: format!(
                "{}: the module of 'entrain isolate qpw' needs the kernel's headers there",
                headers.display()
            ),
            advice: "link the kernel's built tree there, as 'make modules_install' does".into(),
        });
    }
    let key = format!("{release}-{}", tool::digest([digest().as_str(), stamp]));
    let folder = cache.entry("qpw", &key, |dir| {
        progress.step(&format!("building the module of 'entrain isolate qpw' for {release}"));
        let mut command = tool::command(own::program(arch, "entrain")?);
        command.args(["isolate", "qpw", "build", "--release", release, "--headers"]).arg(&headers);
        tool::run(command.arg("--out").arg(dir), dir)?;
        tool::run(tool::command("strip").arg("-g").arg(dir.join(FILE)), dir).map(drop)
    })?;
    Ok(folder.join(FILE))
}

/// The compiler, and the kernel's own tools among its headers, run on their own architecture only.
fn native(arch: Arch) -> Result<()> {
    if Arch::native() == Some(arch) {
        return Ok(());
    }
    Err(LabError::Missing {
        what: format!("the module of 'entrain isolate qpw' is built by a compiler for {arch}, which runs only there"),
        advice: format!("run this experiment on a computer of that architecture ({arch})"),
    })
}

/// Another one for other sources.
fn digest() -> String {
    tool::digest(entrain_qpw::source::FILES.iter().flat_map(|(name, text)| [*name, *text]))
}

fn build(tree: &Path, dir: &Path, entrain: &Path, release: &str) -> Result<()> {
    let root = tempfile::tempdir().map_err(|e| LabError::io("a temporary folder", e))?;
    let out = dir.join("build");
    fs::create_dir(&out).map_err(|e| LabError::io(&out, e))?;
    let mut command = tool::command("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(root.path()).arg(tree).arg(&out).arg(entrain).arg(release);
    tool::run(&mut command, dir)?;
    let module = dir.join(FILE);
    fs::rename(out.join(FILE), &module).map_err(|e| LabError::io(&module, e))?;
    fs::remove_dir_all(&out).map_err(|e| LabError::io(&out, e))
}
