//! Builds and signs the module.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};

use crate::kernel::Kernel;
use crate::source;

/// The module's name, as the kernel lists it.
pub const MODULE: &str = "entrain_qpw";

/// A key for kernel modules: PEM or DER, as the kernel's `sign-file` takes them.
#[derive(Clone, Debug)]
pub struct Key {
    /// The private key.
    pub key: PathBuf,
    /// Its certificate, enrolled with `mokutil --import`.
    pub certificate: PathBuf,
}

/// Where the built module of a kernel lies unless told otherwise.
pub fn default_dir(release: &str) -> PathBuf {
    Path::new("/var/lib/entrain/qpw").join(release)
}

/// Builds the module in `dir` and returns its file.
///
/// # Errors
/// make fails (its last lines are told), or the folder can not be written.
pub fn build(kernel: &Kernel, dir: &Path) -> anyhow::Result<PathBuf> {
    source::write(dir).with_context(|| format!("writing the source to {} (another folder: --out)", dir.display()))?;
    // kbuild changes folders; a relative one would then mean another.
    let dir = fs::canonicalize(dir).with_context(|| dir.display().to_string())?;
    let output = Command::new("make")
        .arg("-C")
        .arg(&kernel.headers)
        .arg(format!("M={}", dir.display()))
        // The module needs no BTF of its own, and making it would take pahole and the whole vmlinux.
        .args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"])
        .env("LC_ALL", "C")
        .output()
        .context("running make (apt install make gcc-14)")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        bail!("the module could not be built:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
    }
    let module = dir.join(format!("{MODULE}.ko"));
    let found = vermagic(&module)?;
    if found != kernel.release {
        bail!("the headers in {} are those of {found}, not of {}", kernel.headers.display(), kernel.release);
    }
    Ok(module)
}

/// The release that a module was built for, from its own notes.
pub fn vermagic(module: &Path) -> anyhow::Result<String> {
    let data = fs::read(module).with_context(|| module.display().to_string())?;
    let mark = b"\0vermagic=";
    let at = data.windows(mark.len()).position(|w| w == mark).context("the module says no version")? + mark.len();
    let word = data[at..].split(|&b| b == b' ' || b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(word).into_owned())
}

/// Signs the module with the kernel's own tool.
///
/// # Errors
/// The tool is missing or fails.
pub fn sign(kernel: &Kernel, key: &Key, module: &Path) -> anyhow::Result<()> {
    let tool = kernel.headers.join("scripts/sign-file");
    let status = Command::new(&tool)
        .arg("sha256")
        .args([&key.key, &key.certificate])
        .arg(module)
        .status()
        .with_context(|| format!("running {}", tool.display()))?;
    if !status.success() {
        bail!("{} ended with {status}: the module is not signed", tool.display());
    }
    Ok(())
}

/// What to do on a machine that takes only signed modules.
pub fn signing_advice(kernel: &Kernel) -> String {
    let tool = kernel.headers.join("scripts/sign-file");
    let user = env::var("USER").unwrap_or_else(|_| "you".into());
    format!(
        "This machine takes only signed modules (Secure Boot's lockdown, or module.sig_enforce).\n\
         Once: make a key and enroll it; the firmware asks for it at the next boot:\n  \
         openssl req -new -x509 -newkey rsa:2048 -nodes -days 3650 -subj '/CN=Module key of {user}/' \
         -keyout mok.key -outform DER -out mok.der\n  \
         mokutil --import mok.der && reboot\n\
         Then: entrain isolate qpw build --sign-key mok.key --sign-cert mok.der\n\
         (or: {} sha256 mok.key mok.der {MODULE}.ko)\n\
         DKMS signs by itself, with the key in /var/lib/dkms.",
        tool.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_module() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.ko");
        fs::write(&file, b"\x7fELF\0license=GPL\0vermagic=7.3.4-rt SMP preempt_rt mod_unload \0").unwrap();
        assert_eq!(vermagic(&file).unwrap(), "7.3.4-rt");
        fs::write(&file, b"nothing").unwrap();
        assert!(vermagic(&file).is_err());
    }
}
