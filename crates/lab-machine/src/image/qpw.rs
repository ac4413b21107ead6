//! The livepatch module of `entrain isolate qpw` for the machine's kernel.
//!
//! For one of the archive it is built by the program itself, as a user would: with the kernel's headers, and the compiler that the kernel was
//! built with (on x86_64 for arm64: its cross compiler). Both come from the archive into the cache. The headers name one another, and the compiler its parts, by
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

/// What a kernel for arm64 is built with on x86_64, as Debian builds it.
const CROSS: &str = "aarch64-linux-gnu-";

/// What the build needs beside the headers. gcc-14 is the compiler of trixie, and so of its and its backports' kernels.
const TOOLS: [&str; 9] = ["gcc-14", "binutils", "make", "dash", "coreutils", "mawk", "findutils", "sed", "grep"];

const FILE: &str = "entrain_qpw.ko";
/// The module of somebody else's that uses what the first one exports.
pub(super) const EXAMPLE_FILE: &str = "entrain_qpw_example.ko";

/// Makes the root in memory, with the tree's programs in it, and builds there. Packages are unpacked, not installed:
/// names that their scripts would have made (`awk`) are made here.
const SCRIPT: &str = r#"
set -e
# chroot lies where an unprivileged user's PATH does not lead.
PATH=$PATH:/usr/sbin:/sbin
root=$1 tree=$2 out=$3 entrain=$4 release=$5 cross=$6
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
in_root() { chroot . /usr/bin/env -i PATH=/own:/usr/sbin:/usr/bin LC_ALL=C ${cross:+ARCH=arm64 CROSS_COMPILE=$cross} "$@"; }
headers=/usr/src/linux-headers-$release
in_root /entrain isolate qpw build --release "$release" --headers "$headers" --out /out
in_root make -C "$headers" M=/out/example KBUILD_EXTRA_SYMBOLS=/out/Module.symvers CONFIG_DEBUG_INFO_BTF_MODULES= modules
in_root "${cross}strip" -g /out/entrain_qpw.ko /out/example/entrain_qpw_example.ko
"#;

/// The module's file, built or from the cache.
pub(super) fn module(
    cache: &Cache,
    archive: &Archive<'_>,
    arch: Arch,
    release: &str,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    let builder = builder(arch)?;
    let key = format!("{release}-{}", digest());
    let folder = cache.entry("qpw", &key, |dir| {
        let tree = headers(cache, archive, arch, builder, release, progress)?;
        progress.step(&format!("building the module of 'entrain isolate qpw' for {release}"));
        let cross = if arch == builder { "" } else { CROSS };
        build(&tree, dir, &own::program(builder, "entrain")?, release, cross)
    })?;
    Ok(folder.join(FILE))
}

/// A tree with a kernel's headers and with what builds modules with them here.
fn headers(
    cache: &Cache,
    archive: &Archive<'_>,
    arch: Arch,
    builder: Arch,
    release: &str,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    let headers = format!("linux-headers-{release}");
    if arch == builder {
        let packages: Vec<&str> = [headers.as_str()].into_iter().chain(TOOLS).collect();
        return archive.tree("headers", BACKPORTS, &packages, progress);
    }
    // The tools that come with a kernel are this computer's, the headers the other one's.
    let here = Archive::new(cache, builder);
    let version = release.strip_suffix("-rt-arm64").or(release.strip_suffix("-arm64")).unwrap_or(release);
    let common = format!("linux-headers-{version}-common");
    let with_rt = format!("{common}-rt");
    let common = if release.contains("-rt-") && here.has(&with_rt, progress)? { with_rt } else { common };
    let kbuild = format!("linux-kbuild-{version}");
    let compiler = ["gcc-aarch64-linux-gnu", "gcc-14-aarch64-linux-gnu", "binutils-aarch64-linux-gnu"];
    let own = TOOLS.into_iter().chain(compiler);
    let packages: Vec<&str> = [common.as_str(), kbuild.as_str()].into_iter().chain(own).collect();
    here.tree_with("headers-arm64", &packages, archive, &headers, progress)
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
    if builder(arch)? != arch {
        return Err(LabError::Invalid("the module for a kernel of your own is only built on its architecture".into()));
    }
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

/// Which computer builds for `arch`: one of the same architecture, or x86_64 for arm64, whose compiler Debian has there.
fn builder(arch: Arch) -> Result<Arch> {
    match Arch::native() {
        Some(own) if own == arch || (own, arch) == (Arch::X86_64, Arch::Aarch64) => Ok(own),
        _ => Err(LabError::Missing {
            what: format!("the module of 'entrain isolate qpw' for {arch} is not built on this computer"),
            advice: format!("run this experiment on a computer of that architecture ({arch})"),
        }),
    }
}

/// Another one for other sources.
fn digest() -> String {
    let files = entrain_qpw::source::FILES.iter().chain(entrain_qpw::source::EXAMPLE);
    tool::digest(files.flat_map(|(name, text)| [*name, *text]))
}

fn build(tree: &Path, dir: &Path, entrain: &Path, release: &str, cross: &str) -> Result<()> {
    let root = tempfile::tempdir().map_err(|e| LabError::io("a temporary folder", e))?;
    let out = dir.join("build");
    let example = out.join("example");
    fs::create_dir_all(&example).map_err(|e| LabError::io(&example, e))?;
    for (name, text) in entrain_qpw::source::EXAMPLE {
        fs::write(example.join(name), text).map_err(|e| LabError::io(&example, e))?;
    }
    let mut command = tool::command("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(root.path()).arg(tree).arg(&out).arg(entrain).arg(release).arg(cross);
    tool::run(&mut command, dir)?;
    for (from, name) in [(&out, FILE), (&example, EXAMPLE_FILE)] {
        let module = dir.join(name);
        fs::rename(from.join(name), &module).map_err(|e| LabError::io(&module, e))?;
    }
    fs::remove_dir_all(&out).map_err(|e| LabError::io(&out, e))
}
