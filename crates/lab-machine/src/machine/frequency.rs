//! The emulated frequency hardware of a host machine: QEMU's own device tree, extended, and the registers' contents.
//!
//! What they are and who uses them: `entrain_cpufreq_emulation::hardware`, `docs/frequency-lab.md`.
use std::{fs, path::Path};

use entrain_cpufreq_emulation::hardware::Hardware;
use entrain_lab_agent::qemu::Program;
use tempfile::TempDir;

use super::{MachineSpec, recipe};
use crate::{LabError, Result, archive::tool};

/// Files for QEMU, and the arguments that name them. The files go with it.
pub(super) struct Files {
    pub(super) args: Vec<String>,
    _folder: TempDir,
}

/// Makes the files; `None` where the machine has no such hardware. Images with its emulation are made for aarch64 only.
pub(super) fn prepare(spec: &MachineSpec, kvm: bool, program: &Program) -> Result<Option<Files>> {
    let Some(choice) = &spec.frequency else { return Ok(None) };
    let invalid = |e: &dyn std::fmt::Display| LabError::Invalid(e.to_string());
    let (table, cores) = choice.resolve(spec.pcpus as usize).map_err(|e| invalid(&e))?;
    let hardware = Hardware::new(table, &cores, spec.memory_mib);
    let folder = tempfile::tempdir().map_err(|e| LabError::io(std::env::temp_dir(), e))?;
    let (tree, registers) = (folder.path().join("machine.dtb"), folder.path().join("registers"));
    let qemus = dump(spec, kvm, program, &tree)?;
    write(&tree, &hardware.device_tree(&qemus).map_err(|e| invalid(&e))?)?;
    write(&registers, &hardware.registers())?;
    let loader = format!("loader,file={},addr={:#x},force-raw=on", registers.display(), hardware.address);
    let args = ["-dtb".into(), tree.to_string_lossy().into_owned(), "-device".into(), loader].to_vec();
    Ok(Some(Files { args, _folder: folder }))
}

/// The device tree that QEMU makes for the machine: it writes it and ends.
fn dump(spec: &MachineSpec, kvm: bool, program: &Program, to: &Path) -> Result<Vec<u8>> {
    let (accel, machine, cpu) = recipe::board(spec, kvm);
    let machine = format!("{machine},dumpdtb={}", to.display());
    let (cpus, memory) = (spec.pcpus.to_string(), spec.memory_mib.to_string());
    let mut command = tool::command(&program.argv[0]);
    command.args(&program.argv[1..]).args(["-accel", accel, "-M", &machine, "-cpu", cpu]);
    command.args(["-smp", &cpus, "-m", &memory, "-nodefaults", "-no-user-config", "-display", "none"]);
    tool::run(&mut command, to.parent().unwrap_or(Path::new("/")))?;
    fs::read(to).map_err(|e| LabError::io(to, e))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|e| LabError::io(path, e))
}
