//! A kernel of the user's own, `--kernel FILE [--modules DIR]`, or the running system's, `--kernel running`: found,
//! and looked at before anything is built or booted, so that what is wrong with it is told in words.
use std::path::{Path, PathBuf};

use super::kernel_file;
use crate::{LabError, Result, archive::Kernel, machine::Arch};

/// The name that stands for the running system's kernel.
const RUNNING: &str = "running";

/// The series of `--kernel debian:6.12`: a kernel of the archive, but not its newest.
pub fn of_archive(image: &Path) -> Option<&str> {
    image.to_str()?.strip_prefix("debian:")
}

/// Finds the kernel `image` with its modules and configuration.
///
/// # Errors
/// No kernel image, or one for another architecture; modules that are missing or another release's; no configuration,
/// or one without sched_ext or BTF.
pub fn find(image: &Path, modules: Option<&Path>, arch: Arch) -> Result<Kernel> {
    let image = if image == Path::new(RUNNING) { running(arch)? } else { image.to_owned() };
    let release = kernel_file::release(&image, arch)?;
    let modules = self::modules(&image, modules, &release, Path::new("/"))?;
    let config = config(&image, &modules, &release, Path::new("/"))?;
    let kernel = Kernel { release, image, config, modules: Some(modules) };
    let lacks = kernel.lacks()?;
    if lacks.is_empty() {
        return Ok(kernel);
    }
    Err(LabError::Missing {
        what: format!(
            "{} (Linux {}) was built without {} (see {})",
            kernel.image.display(),
            kernel.release,
            lacks.join(" and "),
            kernel.config.display()
        ),
        advice: "take a kernel with sched_ext and BTF, or leave --kernel out for Debian's".into(),
    })
}

/// The running system's image.
fn running(arch: Arch) -> Result<PathBuf> {
    let own = std::env::consts::ARCH;
    if Arch::native() != Some(arch) {
        return Err(LabError::Invalid(format!(
            "--kernel running: this computer's kernel is for {own}, the machine is {arch}: add --arch {own}"
        )));
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let places = [
        format!("/boot/vmlinuz-{release}"),
        format!("/usr/lib/modules/{release}/vmlinuz"),
        format!("/lib/modules/{release}/vmlinuz"),
        format!("/boot/Image-{release}"),
    ];
    places.iter().map(PathBuf::from).find(|path| path.is_file()).ok_or_else(|| LabError::Missing {
        what: format!("--kernel running: this system keeps no image of its kernel {release} ({})", places.join(", ")),
        advice: "a container or a VM whose kernel comes from outside has none: give --kernel a file, or leave it out \
                 for Debian's"
            .into(),
    })
}

/// The folder of the modules of `release`: the one that was given, or found beside the image or in the system at `root`.
fn modules(image: &Path, given: Option<&Path>, release: &str, root: &Path) -> Result<PathBuf> {
    let is =
        |folder: &Path| folder.is_dir() && (folder.join("kernel").is_dir() || folder.join("modules.builtin").exists());
    let Some(given) = given else {
        let beside = image.parent().unwrap_or(Path::new("."));
        let places = [
            beside.to_owned(),
            beside.join("lib/modules").join(release),
            beside.join("../lib/modules").join(release),
            root.join("usr/lib/modules").join(release),
            root.join("lib/modules").join(release),
        ];
        // Beside the image only in a folder of that name: a build tree has a folder "kernel" too.
        let named = |folder: &Path| folder.canonicalize().is_ok_and(|f| f.file_name() == Some(release.as_ref()));
        return places.into_iter().find(|folder| is(folder) && named(folder)).ok_or_else(|| LabError::Missing {
            what: format!(
                "{}: the modules of Linux {release} are neither beside it nor in this system",
                image.display()
            ),
            advice: "give --modules the folder lib/modules/RELEASE of that kernel ('make modules_install \
                     INSTALL_MOD_PATH=DIR' makes one)"
                .into(),
        });
    };
    if !given.is_dir() {
        return Err(LabError::Missing {
            what: format!("--modules: {} is no folder", given.display()),
            advice: "give the folder lib/modules/RELEASE of that kernel".into(),
        });
    }
    let inside = ["lib/modules", "usr/lib/modules", ""].map(|sub| given.join(sub).join(release));
    if let Some(found) = inside.into_iter().find(|folder| is(folder)) {
        return Ok(found);
    }
    if !is(given) {
        return Err(LabError::Missing {
            what: format!("--modules: {} holds no kernel modules", given.display()),
            advice: format!("give the folder lib/modules/{release}, or the one that it was installed below"),
        });
    }
    let full = given.canonicalize().map_err(|e| LabError::io(given, e))?;
    let name = full.file_name().unwrap_or_default().to_string_lossy();
    if name == release {
        return Ok(full);
    }
    Err(LabError::Invalid(format!(
        "--modules: {} is named after Linux {name}, but {} is Linux {release}: modules of another release do not load",
        given.display(),
        image.display()
    )))
}

/// The kernel's configuration, which libbpf wants to read in the machines too.
fn config(image: &Path, modules: &Path, release: &str, root: &Path) -> Result<PathBuf> {
    let name = format!("config-{release}");
    let places = [
        modules.join("config"),
        image.with_file_name(&name),
        modules.join("build/.config"),
        modules.join("../../../boot").join(&name),
        root.join("boot").join(&name),
    ];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| LabError::Missing {
        what: format!("{}: there is no configuration of Linux {release}", image.display()),
        advice: format!(
            "put its .config beside it as {name}: it tells whether the kernel has sched_ext and BTF, and libbpf reads \
             it in the machines"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("Image");
        fs::write(&image, kernel_file::tests::aarch64("7.9.1-own")).unwrap();
        let modules = dir.path().join("stage/lib/modules/7.9.1-own");
        fs::create_dir_all(modules.join("kernel")).unwrap();
        (dir, image, modules)
    }

    #[test]
    fn modules_are_taken_by_their_folder_or_the_one_above() {
        let (dir, image, folder) = tree();
        let take = |given: &Path| modules(&image, Some(given), "7.9.1-own", dir.path()).unwrap();
        assert_eq!(take(&folder), folder.canonicalize().unwrap());
        assert_eq!(take(&dir.path().join("stage")), folder);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let (dir, image, folder) = tree();
        let told = |modules: Option<&Path>| find(&image, modules, Arch::Aarch64).unwrap_err().to_string();
        assert!(told(None).contains("neither beside it nor in this system"), "{}", told(None));
        assert!(told(Some(dir.path())).contains("holds no kernel modules"), "{}", told(Some(dir.path())));
        assert!(told(Some(&image)).contains("is no folder"));
        let other = folder.with_file_name("6.1.0-1");
        fs::create_dir_all(other.join("kernel")).unwrap();
        assert!(told(Some(&other)).contains("6.1.0-1"), "{}", told(Some(&other)));
        assert!(told(Some(&folder)).contains("no configuration"), "{}", told(Some(&folder)));
        fs::write(folder.join("config"), "CONFIG_DEBUG_INFO_BTF=y\n").unwrap();
        assert!(told(Some(&folder)).contains("CONFIG_SCHED_CLASS_EXT=y"), "{}", told(Some(&folder)));
        fs::write(folder.join("config"), "CONFIG_DEBUG_INFO_BTF=y\nCONFIG_SCHED_CLASS_EXT=y\n").unwrap();
        assert_eq!(find(&image, Some(&folder), Arch::Aarch64).unwrap().release, "7.9.1-own");
    }
}
