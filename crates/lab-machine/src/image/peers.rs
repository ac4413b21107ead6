//! Published sched_ext schedulers that Entrain is compared with, built from the crate registry when one is asked for.
//!
//! They are built in the toolchain of `scripts/toolchain.sh`. Its text is a part of this program, so this works away from
//! the repository. Each lies in the cache by name, version, architecture and toolchain.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Cache, LabError, Progress, Result,
    archive::{Archive, RELEASE, tool},
    machine::Arch,
};

/// A published scheduler.
#[derive(Debug)]
pub struct Peer {
    /// The name of its crate and of its program.
    pub name: &'static str,
    /// The version that is built, by the lock file in its crate.
    pub version: &'static str,
    /// Its licence, as its crate says.
    pub license: &'static str,
}

/// All that the lab builds. The versions are named here and nowhere else.
pub const PEERS: [Peer; 4] = [
    Peer { name: "scx_bpfland", version: "1.1.4", license: "GPL-2.0-only" },
    Peer { name: "scx_cosmos", version: "1.1.7", license: "GPL-2.0-only" },
    Peer { name: "scx_lavd", version: "1.1.4", license: "GPL-2.0-only" },
    Peer { name: "scx_rusty", version: "1.1.4", license: "GPL-2.0-only" },
];

const TOOLCHAIN: &str = include_str!("../../../../scripts/toolchain.sh");
/// What they link beside libc. The toolchain's root has no such packages, since Entrain's own programs carry both in
/// themselves; the peers' build scripts, which link them too, can't.
const LIBRARIES: [&str; 2] = ["libelf-dev", "zlib1g-dev"];
/// Raised when the way in which they are built changes, so that those in the cache are not taken for new ones.
const RECIPE: &str = "1";
/// What cargo says where it can't reach the registry.
const UNREACHABLE: [&str; 3] = ["curl failed", "network error", "failed to download"];

/// The peer of that name.
pub fn find(name: &str) -> Option<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name)
}

/// The tree with its libraries and its file, built or from the cache.
///
/// # Errors
/// The toolchain or the crate can't be fetched or built.
pub(super) fn program(cache: &Cache, arch: Arch, peer: &Peer, progress: &dyn Progress) -> Result<(PathBuf, PathBuf)> {
    let libraries = libraries(cache, arch, progress)?;
    let root = tool::run(toolchain(cache).arg("path"), cache.root())?;
    // The root's name tells what compilers it holds; where it lies does not matter.
    let root = root.trim().rsplit('/').next().unwrap_or_default();
    let key = format!("{}-{}-{arch}-{}", peer.name, peer.version, tool::digest([root, RECIPE]));
    let folder = cache.entry("peers", &key, |dir| build(cache, dir, arch, peer, progress))?;
    Ok((libraries, folder.join(peer.name)))
}

fn libraries(cache: &Cache, arch: Arch, progress: &dyn Progress) -> Result<PathBuf> {
    Archive::new(cache, arch).tree("peers", RELEASE, &LIBRARIES, progress)
}

/// The toolchain's script, to be given its arguments. It takes the folder above the one that it lies in for the repository
/// and binds that into its root: here the cache, for it is told that it lies beside the libraries.
fn toolchain(cache: &Cache) -> Command {
    let mut command = tool::command("bash");
    command.arg("-c").arg(TOOLCHAIN).arg(cache.root().join("trees/toolchain.sh"));
    command
}

fn build(cache: &Cache, dir: &Path, arch: Arch, peer: &Peer, progress: &dyn Progress) -> Result<()> {
    let name = format!("{} {} ({arch})", peer.name, peer.version);
    progress.step("looking for the toolchain; a new one takes some minutes and 2 GB");
    tool::run(toolchain(cache).arg("ensure"), cache.root()).map_err(|e| named(e, "the toolchain"))?;
    let mut command = toolchain(cache);
    // Build scripts are programs of the toolchain's own architecture.
    for built in [Arch::X86_64, arch] {
        for (setting, value) in settings(built, &libraries(cache, built, progress)?) {
            command.env(setting, value);
        }
    }
    // Inside the entry that is being built: what a killed lab leaves there is swept by the next build.
    let scratch = dir.join("build");
    fs::create_dir(&scratch).map_err(|e| LabError::io(&scratch, e))?;
    command.env("CARGO_TARGET_DIR", &scratch).env("TMPDIR", &scratch).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    command.current_dir(dir).args(["run", "cargo", "install", "--locked", "--no-track", "--target", &triple(arch)]);
    command.args(["--version", peer.version, "--root"]).arg(&scratch).arg(peer.name);
    progress.step(&format!("building {name}: fetching it"));
    let mut crates = 0;
    tool::run_telling(&mut command, dir, &mut |line| {
        if let Some(what) = line.trim_start().strip_prefix("Compiling ") {
            crates += 1;
            progress.step(&format!("building {name}, some minutes: part {crates}, {what}"));
        }
    })
    .map_err(|e| explain(e, &name))?;
    let program = dir.join(peer.name);
    fs::rename(scratch.join("bin").join(peer.name), &program).map_err(|e| LabError::io(&program, e))?;
    fs::remove_dir_all(&scratch).map_err(|e| LabError::io(scratch, e))
}

fn triple(arch: Arch) -> String {
    format!("{arch}-unknown-linux-gnu")
}

/// The environment by which cargo and libbpf's build find compiler, headers and libraries of an architecture.
fn settings(arch: Arch, tree: &Path) -> [(String, String); 4] {
    let triple = triple(arch).replace('-', "_");
    let gcc = format!("{arch}-linux-gnu-gcc");
    let tree = tree.display();
    [
        (format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase()), gcc.clone()),
        // After the root's own headers, which are of the release that the compiler is of.
        (
            format!("CFLAGS_{triple}"),
            format!("-idirafter {tree}/usr/include -idirafter {tree}/usr/include/{arch}-linux-gnu"),
        ),
        (format!("CC_{triple}"), gcc),
        (format!("LIBBPF_SYS_LIBRARY_PATH_{triple}"), format!("{tree}/usr/lib/{arch}-linux-gnu")),
    ]
}

/// What a failed build means.
fn explain(error: LabError, name: &str) -> LabError {
    match &error {
        LabError::Program { output, .. } if UNREACHABLE.iter().any(|sign| output.contains(sign)) => LabError::Missing {
            what: format!(
                "{name} is not in the cache yet, and the crate registry does not answer ({})",
                output.lines().last().unwrap_or_default().trim()
            ),
            advice: "look at the network (or the proxy and mirror in cargo's config.toml) and try again".into(),
        },
        _ => named(error, name),
    }
}

/// The command that failed is a whole script: what it should have built says more.
fn named(error: LabError, name: &str) -> LabError {
    match error {
        LabError::Program { output, .. } => LabError::Program { program: format!("building {name}"), output },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_name() {
        assert_eq!(find("scx_lavd").map(|peer| peer.name), Some("scx_lavd"));
        assert!(find("scx_nothing").is_none());
    }

    #[test]
    fn a_build_finds_compiler_and_libraries_of_the_architecture() {
        let settings = settings(Arch::Aarch64, Path::new("/c/t"));
        let get = |name: &str| settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!(get("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER"), Some("aarch64-linux-gnu-gcc"));
        assert_eq!(get("LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu"), Some("/c/t/usr/lib/aarch64-linux-gnu"));
    }

    #[test]
    fn a_missing_network_is_told_from_code_that_does_not_build() {
        let failed = |output: &str| {
            let error = LabError::Program { program: "bash -c …".into(), output: output.into() };
            explain(error, "scx_lavd 1 (aarch64)").to_string()
        };
        let text = failed("error: download of config.json failed\n  curl failed\n  [6] Could not resolve hostname");
        assert!(text.starts_with("scx_lavd 1 (aarch64) is not in the cache yet"), "{text}");
        assert!(text.contains("([6] Could not resolve hostname): look at the network"), "{text}");
        let text = failed("error[E0432]: unresolved import");
        assert_eq!(text, "building scx_lavd 1 (aarch64) failed: error[E0432]: unresolved import");
    }
}
