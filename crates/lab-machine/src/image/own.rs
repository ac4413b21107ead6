//! Entrain's own programs for the machines.
use std::path::{Path, PathBuf};

use super::elf;
use crate::{LabError, Result, machine::Arch};

/// What runs in the machines, beside Debian's programs.
const PROGRAMS: [&str; 3] = ["entrain", "entrain-lab-agent", "entrain-load"];
/// What runs in host machines with emulated frequency hardware, and in their guests.
const EMULATION: &str = "entrain-cpufreq-emulation";

/// Finds the programs of that architecture: where this program was built or installed.
pub fn programs(arch: Arch) -> Result<Vec<(&'static str, PathBuf)>> {
    PROGRAMS.into_iter().map(|name| Ok((name, program(arch, name)?))).collect()
}

/// Finds the emulation of frequency hardware.
///
/// # Errors
/// Only aarch64 has it.
pub fn emulation(arch: Arch) -> Result<(&'static str, PathBuf)> {
    if arch != Arch::Aarch64 {
        return Err(LabError::Invalid("CPUs whose frequency can be scaled are only emulated on aarch64".into()));
    }
    Ok((EMULATION, program(arch, EMULATION)?))
}

/// Finds one of them.
pub(super) fn program(arch: Arch, name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().and_then(|p| p.canonicalize()).map_err(|e| LabError::io("/proc/self/exe", e))?;
    let profile = exe.parent().and_then(Path::file_name).unwrap_or_default();
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let up = |levels: usize| folder.ancestors().nth(levels).unwrap_or(folder).to_owned();
    let built = format!("{arch}-unknown-linux-gnu");
    let candidates = [
        // This program is target/TRIPLE/PROFILE/entrain-lab, or target/PROFILE/entrain-lab.
        up(2).join(&built).join(profile),
        up(1).join(&built).join(profile),
        // It is PREFIX/bin/entrain-lab, or PREFIX/lib/entrain/entrain-lab.
        up(1).join("lib/entrain").join(arch.name()),
        folder.join(arch.name()),
        folder.to_owned(),
    ];
    let found = candidates.iter().map(|c| c.join(name)).find(|p| p.exists() && elf::is_for(p, arch));
    found.ok_or_else(|| LabError::Missing {
        what: format!("no program {name} for {arch} lies beside {}", exe.display()),
        advice: "run 'make build' (or 'make install'), which builds for both architectures".into(),
    })
}
