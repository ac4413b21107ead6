//! The kernel to build for: its release, headers, type information and symbols.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where to look. All but `release` may be missing from the machine.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As `uname -r` prints it.
    pub release: String,
    /// Its headers, ready for building modules.
    pub headers: PathBuf,
    /// A file with its BTF: raw, or an ELF file with a section `.BTF`.
    pub btf: PathBuf,
    /// Its list of symbols; `None` where it can not be read now, and only the module checks when it is loaded.
    pub kallsyms: Option<PathBuf>,
}

impl Kernel {
    /// The running kernel, or another one whose parts are named.
    ///
    /// What is not named is taken from the usual places; of a kernel that does not run, the BTF is that in the headers'
    /// `vmlinux` (Debian ships it there).
    pub fn find(
        release: Option<&str>,
        headers: Option<&Path>,
        btf: Option<&Path>,
        kallsyms: Option<&Path>,
    ) -> io::Result<Self> {
        let running = running_release()?;
        let release = release.map_or_else(|| running.clone(), str::to_owned);
        let runs = release == running;
        let headers = headers.map_or_else(|| Path::new("/lib/modules").join(&release).join("build"), Path::to_owned);
        let btf = match btf {
            Some(path) => path.to_owned(),
            None if runs => "/sys/kernel/btf/vmlinux".into(),
            None => headers.join("vmlinux"),
        };
        let kallsyms = kallsyms.map(Path::to_owned).or_else(|| runs.then(|| "/proc/kallsyms".into()));
        Ok(Self { release, headers, btf, kallsyms })
    }

    /// The configuration, from the headers.
    ///
    /// # Errors
    /// The headers are not there, or hold no configuration.
    pub fn config(&self) -> io::Result<Config> {
        let text = [".config", "include/config/auto.conf"]
            .iter()
            .map(|name| fs::read_to_string(self.headers.join(name)))
            .reduce(|first, second| first.or(second));
        Ok(Config(text.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?))
    }
}

/// `uname -r` of this machine.
pub fn running_release() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// A kernel's configuration.
#[derive(Debug)]
pub struct Config(String);

impl Config {
    /// Whether `CONFIG_name` is `y` or `m`.
    pub fn has(&self, name: &str) -> bool {
        let line = |value: &str| format!("CONFIG_{name}={value}");
        let (built_in, module) = (line("y"), line("m"));
        self.0.lines().any(|l| l == built_in || l == module)
    }
}

/// What the machine asks of modules' signatures.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Signing {
    /// Any module is taken.
    NotNeeded,
    /// Only signed ones: lockdown (Secure Boot), or `module.sig_enforce`.
    Needed,
}

/// Reads that from `root` (`/` but in tests).
pub fn signing(root: &Path) -> Signing {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    // The active level stands in brackets: "none [integrity] confidentiality".
    let lockdown = read("sys/kernel/security/lockdown");
    let locked = lockdown.contains('[') && !lockdown.contains("[none]");
    if locked || read("sys/module/module/parameters/sig_enforce").trim() == "Y" {
        Signing::Needed
    } else {
        Signing::NotNeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_read_from_the_headers() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".config"), "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\n").unwrap();
        let kernel = Kernel::find(Some("1.2.3"), Some(dir.path()), None, None).unwrap();
        let config = kernel.config().unwrap();
        assert!(config.has("A") && !config.has("B") && config.has("C"));
        assert_eq!(kernel.btf, dir.path().join("vmlinux"));
        assert!(kernel.kallsyms.is_none());
    }

    #[test]
    fn lockdown_asks_for_a_signature() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(signing(dir.path()), Signing::NotNeeded);
        let security = dir.path().join("sys/kernel/security");
        fs::create_dir_all(&security).unwrap();
        fs::write(security.join("lockdown"), "[none] integrity confidentiality\n").unwrap();
        assert_eq!(signing(dir.path()), Signing::NotNeeded);
        fs::write(security.join("lockdown"), "none [integrity] confidentiality\n").unwrap();
        assert_eq!(signing(dir.path()), Signing::Needed);
    }
}
