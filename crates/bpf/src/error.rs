//! Errors of BPF objects: what was tried, what the kernel said, what to do.

use libbpf_rs::ErrorKind;
use thiserror::Error;

/// What was being done with a BPF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Parsing the object that is built into the program.
    Open,
    /// Handing it to the kernel: maps, relocation, verifier.
    Load,
    /// Connecting a loaded program to its event.
    Attach,
    /// Calling a loaded program, or using a map.
    Run,
}

impl Step {
    fn verb(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Load => "load",
            Self::Attach => "attach",
            Self::Run => "run",
        }
    }
}

/// A BPF object could not be used.
#[derive(Debug, Error)]
#[error("cannot {} the BPF program `{name}`: {source}. {}", step.verb(), advice(*step, source.kind()))]
pub struct Error {
    /// What was tried.
    pub step: Step,
    /// The object or program.
    pub name: String,
    /// What libbpf says.
    #[source]
    pub source: libbpf_rs::Error,
}

impl Error {
    /// For `map_err`: `open().map_err(Error::at(Step::Open, "observe"))`.
    pub fn at(step: Step, name: &str) -> impl FnOnce(libbpf_rs::Error) -> Self + '_ {
        move |source| Self { step, name: name.to_owned(), source }
    }
}

fn advice(step: Step, kind: ErrorKind) -> &'static str {
    match (step, kind) {
        (_, ErrorKind::PermissionDenied) => {
            "Run as root (CAP_SYS_ADMIN, CAP_BPF, CAP_PERFMON), outside of containers, and with kernel lockdown off; if \
             that is so, the kernel's verifier has refused the program: RUST_LOG=libbpf=debug shows its reason"
        }
        (Step::Attach, ErrorKind::NotFound) => "This kernel has no such event; `entrain doctor` lists what is missing",
        (_, ErrorKind::NotFound) => {
            "This kernel lacks a type or function that the program needs; `entrain doctor` lists what is missing"
        }
        (Step::Load, ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::Unsupported) => {
            "The kernel may be too old (6.13 or newer is needed) or built without BTF; RUST_LOG=libbpf=debug shows more"
        }
        (_, ErrorKind::OutOfMemory) => "The kernel refused the memory: see the memory limit of this service",
        _ => "RUST_LOG=libbpf=debug shows more",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_happened_and_what_to_do() {
        let denied = libbpf_rs::Error::from(std::io::Error::from_raw_os_error(1));
        let text = Error::at(Step::Load, "observe")(denied).to_string();
        assert!(text.contains("cannot load the BPF program `observe`"), "{text}");
        assert!(text.contains("Run as root"), "{text}");
    }
}
