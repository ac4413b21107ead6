//! Whether a kernel is one that the module was written for. All that speaks against it is told at once.

use std::fs;

use crate::kernel::Kernel;
use crate::known::{ARCHES, CONFIG_OFF, CONFIG_ON, SERIES, series};
use crate::{shape, symbols};

/// Why the module is not built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No headers: nothing can be built, nor the configuration read.
    #[error(
        "the headers of {release} are not at {path}. Install them: apt install linux-headers-{release} \
         (or name their folder with --headers)"
    )]
    NoHeaders {
        /// The kernel.
        release: String,
        /// Where they were looked for.
        path: String,
    },
    /// The kernel differs from what is known.
    #[error(
        "{release} is not a kernel that the module was written for, and it would not be safe there:\n  {}\n\
         Nothing was changed. A version of Entrain that knows this kernel is needed.",
        reasons.join("\n  ")
    )]
    Unknown {
        /// The kernel.
        release: String,
        /// One line per difference.
        reasons: Vec<String>,
    },
}

/// What was compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Checked {
    /// False: the symbols of a kernel that does not run can't be seen; the module refuses to load if one is not there once.
    pub symbols: bool,
    /// False: the kernel has no livepatch, and the functions can only be replaced at once (`load --hot`).
    pub livepatch: bool,
}

/// Compares configuration, type information and symbols with what the module was written for.
///
/// # Errors
/// A [`Refusal`] with every difference found.
pub fn check(kernel: &Kernel) -> Result<Checked, Refusal> {
    let release = || kernel.release.clone();
    let config = kernel
        .config()
        .map_err(|_| Refusal::NoHeaders { release: release(), path: kernel.headers.display().to_string() })?;
    let mut reasons = Vec::new();
    let known = series(&kernel.release);
    if known.is_none() {
        let known: Vec<String> = SERIES.iter().map(|s| format!("{}x", s.prefix)).collect();
        reasons.push(format!("its version is not among those whose code was read: {}", known.join(", ")));
    }
    let arch = ARCHES.iter().find(|arch| config.has(arch.option));
    match arch {
        None => reasons.push("its architecture is neither x86_64 nor arm64".to_owned()),
        Some(arch) => {
            reasons.extend(arch.off.iter().filter(|name| config.has(name)).map(|name| format!("CONFIG_{name} is set")));
            if arch.livepatch && !config.has("LIVEPATCH") {
                reasons.push("CONFIG_LIVEPATCH is not set".to_owned());
            }
        }
    }
    let lacks = CONFIG_ON.iter().filter(|name| !config.has(name));
    reasons.extend(lacks.map(|name| {
        match *name {
            "PREEMPT_RT" => "it is no PREEMPT_RT kernel: its local locks are no locks that another CPU could take \
                         (Debian's are named linux-image-rt-amd64 and linux-image-rt-arm64)"
                .to_owned(),
            name => format!("CONFIG_{name} is not set"),
        }
    }));
    reasons.extend(CONFIG_OFF.iter().filter(|name| config.has(name)).map(|name| format!("CONFIG_{name} is set")));
    // Of a series that nobody has read there is nothing to compare with but the newest: what differs says how far it is.
    let series = known.unwrap_or(&SERIES[0]);
    match shape::differences(&kernel.btf, series) {
        Ok(lines) => reasons.extend(lines),
        Err(error) => {
            reasons.push(format!("{} holds no BTF to compare the private types with ({error})", kernel.btf.display()))
        }
    }
    if let Some(path) = &kernel.kallsyms {
        match fs::read_to_string(path) {
            Ok(text) => reasons.extend(symbols::problems(&text, series)),
            Err(error) => reasons.push(format!("{}: {error}", path.display())),
        }
    }
    let checked = Checked { symbols: kernel.kallsyms.is_some(), livepatch: config.has("LIVEPATCH") };
    if reasons.is_empty() { Ok(checked) } else { Err(Refusal::Unknown { release: release(), reasons }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_headers_name_the_package() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::find(Some("7.3.4+deb13-rt-amd64"), Some(&dir.path().join("no")), None, None).unwrap();
        let text = check(&kernel).unwrap_err().to_string();
        assert!(text.contains("apt install linux-headers-7.3.4+deb13-rt-amd64"), "{text}");
    }

    #[test]
    fn all_differences_are_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".config"), "CONFIG_SMP=y\nCONFIG_SLUB_TINY=y\n").unwrap();
        fs::write(dir.path().join("symbols"), "0 t lru_add_drain\n").unwrap();
        let kernel =
            Kernel::find(Some("6.11.1-amd64"), Some(dir.path()), None, Some(&dir.path().join("symbols"))).unwrap();
        let Err(Refusal::Unknown { reasons, .. }) = check(&kernel) else { panic!("not refused") };
        for part in ["version", "architecture", "PREEMPT_RT", "SLUB_TINY", "BTF", "symbol mlock_folio_batch is missing"]
        {
            assert!(reasons.iter().any(|r| r.contains(part)), "{part}: {reasons:?}");
        }
    }
    /// Debian's arm64 kernels have no livepatch: they can be patched at once, and an x86_64 one without it is none of Debian's.
    #[test]
    fn a_livepatch_is_asked_for_where_debian_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let reasons = |config: &str| {
            fs::write(dir.path().join(".config"), config).unwrap();
            let kernel = Kernel::find(Some("6.12.117+deb13-rt"), Some(dir.path()), None, None).unwrap();
            let Err(Refusal::Unknown { reasons, .. }) = check(&kernel) else { panic!("without BTF it is refused") };
            reasons
        };
        let told = |config, what: &str| reasons(config).iter().any(|reason| reason.contains(what));
        assert!(told("CONFIG_X86_64=y\n", "LIVEPATCH") && !told("CONFIG_ARM64=y\n", "LIVEPATCH"));
        assert!(told("CONFIG_ARM64=y\nCONFIG_ARM64_BTI_KERNEL=y\n", "BTI") && !told("CONFIG_ARM64=y\n", "version"));
    }
}
