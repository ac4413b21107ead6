//! Debian's archive, fetched and verified by apt's own means, without touching the system's apt.
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use self::apt::Apt;
pub use self::kernel::Kernel;
use crate::{Cache, Progress, Result, machine::Arch};

pub mod apt;
mod kernel;
pub mod tool;

/// The release that everything comes from.
pub const RELEASE: &str = "trixie";
/// Where newer kernels and QEMU come from.
pub const BACKPORTS: &str = "trixie-backports";

/// A release whose own kernel a machine may boot instead of the newest one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Release {
    /// Bookworm: Linux 6.1.
    Debian12,
    /// Trixie: Linux 6.12.
    Debian13,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Self; 2] = [Self::Debian12, Self::Debian13];

    /// As the archive calls it.
    fn suite(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian13 => RELEASE,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debian12 => "debian12",
            Self::Debian13 => "debian13",
        })
    }
}

impl FromStr for Release {
    type Err = ();
    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        Self::ALL.into_iter().find(|release| release.to_string() == text).ok_or(())
    }
}

/// One architecture of the archive.
#[derive(Debug)]
pub struct Archive<'a> {
    cache: &'a Cache,
    arch: Arch,
}

impl<'a> Archive<'a> {
    /// The archive's packages for `arch`, unpacked into `cache` as they are asked for.
    pub fn new(cache: &'a Cache, arch: Arch) -> Self {
        Self { cache, arch }
    }

    fn apt(&self, progress: &dyn Progress) -> Result<Apt> {
        self.apt_of(self.arch.debian(), &[RELEASE, BACKPORTS], progress)
    }

    /// A tree of its own, so that what comes from these suites never changes what others take.
    fn apt_of(&self, tree: &str, suites: &[&str], progress: &dyn Progress) -> Result<Apt> {
        let lock = self.cache.lock("apt", tree)?;
        Apt::ready(&self.cache.root().join("apt").join(tree), self.arch, suites, lock, progress)
    }

    /// The unpacked packages and all that they depend on, in one tree. `suite` is where `packages` themselves come
    /// from if they are newer there.
    pub fn tree(&self, name: &str, suite: &str, packages: &[&str], progress: &dyn Progress) -> Result<PathBuf> {
        let key = format!("{}-{name}-{}", self.arch.debian(), tool::digest([suite].iter().chain(packages)));
        self.cache.entry("trees", &key, |dir| {
            let apt = self.apt(progress)?;
            progress.step(&format!("fetching {name} ({}) and what it depends on", self.arch));
            // Inside the entry that is being built: a lab that is killed here leaves it to the next build to sweep.
            let debs = tempfile::tempdir_in(dir).map_err(|e| crate::LabError::io(dir, e))?;
            let files = apt.install_set(suite, packages, debs.path())?;
            progress.step(&format!("unpacking {} packages of {name} ({})", files.len(), self.arch));
            unpack(&files, dir)
        })
    }

    /// As [`Self::tree`], with packages of another architecture on top, whose dependencies are not followed: of `own`
    /// the headers that a kernel's module is built with here.
    pub fn tree_with(
        &self,
        name: &str,
        packages: &[&str],
        other: &Self,
        own: &str,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        let key = format!("{}-{name}-{}", self.arch.debian(), tool::digest([own].iter().chain(packages)));
        self.cache.entry("trees", &key, |dir| {
            let debs = tempfile::tempdir_in(dir).map_err(|e| crate::LabError::io(dir, e))?;
            progress.step(&format!("fetching {own} and what is needed to build with it"));
            let mut files = self.apt(progress)?.install_set(BACKPORTS, packages, debs.path())?;
            files.extend(other.apt(progress)?.download(&[own.to_owned()], debs.path())?);
            unpack(&files, dir)
        })
    }

    /// Whether the archive has a package of this name.
    pub fn has(&self, name: &str, progress: &dyn Progress) -> Result<bool> {
        Ok(self.apt(progress)?.names(name)?.iter().any(|known| known == name))
    }

    /// The newest kernel that qualifies (sched_ext and BTF), or the newest of a `series` as "6.12", of the plain or the
    /// PREEMPT_RT flavour.
    pub fn kernel(&self, rt: bool, series: Option<&str>, progress: &dyn Progress) -> Result<Kernel> {
        let flavour = self.flavour(rt);
        let name = series.map_or_else(|| flavour.clone(), |series| format!("{flavour}-{series}"));
        let path = self.cache.entry("kernels", &name, |dir| {
            kernel::fetch(&self.apt(progress)?, &flavour, &kernel::WANTED, series, dir, progress)
        })?;
        Kernel::in_tree(&path)
    }

    /// A release's own kernel, which need not have sched_ext, of the plain or the PREEMPT_RT flavour.
    pub fn kernel_of(&self, release: Release, rt: bool, progress: &dyn Progress) -> Result<Kernel> {
        let (flavour, suite) = (self.flavour(rt), release.suite());
        let path = self.cache.entry("kernels", &format!("{flavour}-{suite}"), |dir| {
            let apt = self.apt_of(&format!("{}-{suite}", self.arch.debian()), &[suite], progress)?;
            kernel::fetch(&apt, &flavour, &[kernel::BTF], None, dir, progress)
        })?;
        Kernel::in_tree(&path)
    }

    /// As in the packages' names, `rt-arm64`.
    fn flavour(&self, rt: bool) -> String {
        if rt { format!("rt-{}", self.arch.debian()) } else { self.arch.debian().to_owned() }
    }
}

/// Unpacks packages over one another and records their names.
fn unpack(debs: &[PathBuf], dir: &Path) -> Result<()> {
    let mut names = String::new();
    for deb in debs {
        crate::cancel::check()?;
        tool::run(tool::command("dpkg-deb").arg("-x").arg(deb).arg(dir), dir)?;
        names.push_str(&deb.file_stem().unwrap_or_default().to_string_lossy());
        names.push('\n');
    }
    let list = dir.join(".packages");
    fs::write(&list, names).map_err(|e| crate::LabError::io(&list, e))
}
