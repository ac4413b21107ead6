//! A private apt tree: own lists, an empty package status, the system's mirror, keys and proxy settings.
use std::{
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use super::tool;
use crate::{LabError, Progress, Result, machine::Arch};

/// Lists older than this are fetched again before something new is downloaded.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// The tree, ready to be asked. Its lock is held for as long as it lives.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
    arch: Arch,
    _lock: File,
}

impl Apt {
    /// Makes the tree if it is missing and brings its lists up to date.
    pub(super) fn ready(dir: &Path, arch: Arch, suites: &[&str], lock: File, progress: &dyn Progress) -> Result<Self> {
        let apt = Self { dir: dir.to_owned(), arch, _lock: lock };
        apt.write_configuration(suites)?;
        let stamp = dir.join("updated");
        let age =
            fs::metadata(&stamp).and_then(|m| m.modified()).ok().and_then(|t| SystemTime::now().duration_since(t).ok());
        if age.is_none_or(|age| age > FRESH) {
            progress.step(&format!("reading the archive's lists ({arch})"));
            match tool::run(apt.get().args(["-q", "--error-on=any", "update"]), dir) {
                Ok(_) => fs::write(&stamp, "").map_err(|e| LabError::io(&stamp, e))?,
                Err(e @ (LabError::Cancelled | LabError::DiskFull { .. } | LabError::Missing { .. })) => return Err(e),
                Err(e) if age.is_some() => tracing::warn!("the archive's lists stay as they were: {e}"),
                Err(e) => return Err(unreachable(&e)),
            }
        }
        Ok(apt)
    }

    fn write_configuration(&self, suites: &[&str]) -> Result<()> {
        for sub in ["lists/partial", "cache/archives/partial", "state", "empty"] {
            let path = self.dir.join(sub);
            fs::create_dir_all(&path).map_err(|e| LabError::io(path, e))?;
        }
        let dir = self.dir.display();
        let mirror = mirror()?;
        let keys = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
        // Without that file apt falls back to its trusted.gpg.d, which holds the same keys.
        let signed = if keys.exists() { format!("[signed-by={}] ", keys.display()) } else { String::new() };
        let sources: String = suites.iter().map(|suite| format!("deb {signed}{mirror} {suite} main\n")).collect();
        let mut conf = String::new();
        let arch = self.arch.debian();
        // The system's own configuration files are left out (their hooks act on the system's folders) …
        let _ = write!(
            conf,
            "APT::Architecture \"{arch}\";\nAPT::Architectures {{ \"{arch}\"; }};\n\
             APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\nDebug::NoLocking \"true\";\n\
             Dir::State \"{dir}/state\";\nDir::State::lists \"{dir}/lists\";\nDir::State::status \"{dir}/status\";\n\
             Dir::Cache \"{dir}/cache\";\nDir::Etc::parts \"{dir}/empty\";\nDir::Etc::main \"/dev/null\";\n\
             Dir::Etc::sourcelist \"{dir}/sources.list\";\nDir::Etc::sourceparts \"{dir}/empty\";\n\
             Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"{dir}/empty\";\n"
        );
        // … but for how it fetches: proxies, certificates, retries.
        for line in tool::run(tool::command("apt-config").arg("dump"), &self.dir)?.lines() {
            if ["Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv"]
                .iter()
                .any(|p| line.starts_with(p))
            {
                conf.push_str(line);
                conf.push('\n');
            }
        }
        conf.push_str("Acquire::Languages \"none\";\n");
        for (name, text) in [("sources.list", sources), ("apt.conf", conf), ("status", String::new())] {
            let path = self.dir.join(name);
            fs::write(&path, text).map_err(|e| LabError::io(path, e))?;
        }
        Ok(())
    }

    fn get(&self) -> Command {
        self.program("apt-get")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = tool::command(name);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
    }

    /// Downloads packages and all that they depend on into `into`; returns the files.
    pub(super) fn install_set(&self, suite: &str, packages: &[&str], into: &Path) -> Result<Vec<PathBuf>> {
        let partial = into.join("partial");
        fs::create_dir_all(&partial).map_err(|e| LabError::io(partial, e))?;
        let mut command = self.get();
        command
            .args(["-q", "-y", "--download-only", "-t", suite])
            .arg(format!("-oDir::Cache::archives={}", into.display()))
            .arg("install")
            .args(packages);
        tool::run(&mut command, into).map_err(|e| self.explain(e))?;
        debs(into)
    }

    /// Downloads exactly these packages into `into`; returns the files.
    pub(super) fn download(&self, packages: &[String], into: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(into).map_err(|e| LabError::io(into, e))?;
        tool::run(self.get().current_dir(into).args(["-q", "download"]).args(packages), into)
            .map_err(|e| self.explain(e))?;
        debs(into)
    }

    /// Names of all packages that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let out = tool::run(self.program("apt-cache").args(["pkgnames", prefix]), &self.dir)?;
        Ok(out.lines().map(str::to_owned).collect())
    }

    /// What a failed download means. Lists that name a version which the mirror no longer has are dropped, so that the
    /// next try reads new ones.
    fn explain(&self, error: LabError) -> LabError {
        match &error {
            LabError::Program { output, .. } if output.contains("404") => {
                let _ = fs::remove_file(self.dir.join("updated"));
                error
            }
            LabError::Program { output, .. } if output.contains("Failed to fetch") => unreachable(&error),
            _ => error,
        }
    }
}

fn unreachable(error: &LabError) -> LabError {
    LabError::Missing {
        what: format!("Debian's archive does not answer and the cache does not hold what is needed yet ({error})"),
        advice: "look at the network (or the proxy settings of apt) and try again; with a full cache the lab works \
                 without network"
            .into(),
    }
}

/// The Debian mirror that the system's apt is configured with.
pub fn mirror() -> Result<String> {
    let format = "$(REPO_URI)|$(ORIGIN)|$(LABEL)";
    let out = tool::run(
        tool::command("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]),
        Path::new("/"),
    )?;
    out.lines().find_map(|line| line.strip_suffix("|Debian|Debian")).map(str::to_owned).ok_or_else(|| {
        LabError::Missing {
            what: "apt knows no Debian mirror".into(),
            advice: "run 'apt-get update' as root and try again (the lab takes its kernels from Debian's archive)"
                .into(),
        }
    })
}

fn debs(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .and_then(|items| items.map(|i| i.map(|i| i.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(|e| LabError::io(dir, e))?
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "deb"))
        .collect();
    files.sort();
    Ok(files)
}
