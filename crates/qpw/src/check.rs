//! Whether a kernel is one that the module was written for. All that speaks against it is told at once.

use std::fs;

use crate::kernel::Kernel;
use crate::known::{CONFIG_OFF, CONFIG_ON, SERIES};
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
pub enum Checked {
    /// Configuration, types and symbols.
    All,
    /// The symbols of a kernel that does not run can't be seen; the module refuses to load if one is not there once.
    NotSymbols,
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
    if !SERIES.iter().any(|s| kernel.release.starts_with(s)) {
        let known: Vec<String> = SERIES.iter().map(|s| format!("{s}x")).collect();
        reasons.push(format!("its version is not among those whose code was read: {}", known.join(", ")));
    }
    let lacks = CONFIG_ON.iter().filter(|name| !config.has(name));
    reasons.extend(lacks.map(|name| {
        match *name {
            "PREEMPT_RT" => "it is no PREEMPT_RT kernel: its local locks are no locks that another CPU could take \
                         (Debian's are named linux-image-rt-amd64)"
                .to_owned(),
            name => format!("CONFIG_{name} is not set"),
        }
    }));
    reasons.extend(CONFIG_OFF.iter().filter(|name| config.has(name)).map(|name| format!("CONFIG_{name} is set")));
    match shape::differences(&kernel.btf) {
        Ok(lines) => reasons.extend(lines),
        Err(error) => {
            reasons.push(format!("{} holds no BTF to compare the private types with ({error})", kernel.btf.display()))
        }
    }
    let checked = match &kernel.kallsyms {
        None => Checked::NotSymbols,
        Some(path) => {
            match fs::read_to_string(path) {
                Ok(text) => reasons.extend(symbols::problems(&text)),
                Err(error) => reasons.push(format!("{}: {error}", path.display())),
            }
            Checked::All
        }
    };
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
            Kernel::find(Some("6.12.1-amd64"), Some(dir.path()), None, Some(&dir.path().join("symbols"))).unwrap();
        let Err(Refusal::Unknown { reasons, .. }) = check(&kernel) else { panic!("not refused") };
        for part in ["version", "PREEMPT_RT", "SLUB_TINY", "BTF", "symbol mlock_folio_batch is missing"] {
            assert!(reasons.iter().any(|r| r.contains(part)), "{part}: {reasons:?}");
        }
    }
}
