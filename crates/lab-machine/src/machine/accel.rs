//! Which QEMU the development machine uses, and whether it can use KVM.
use std::{
    ffi::OsString,
    fs,
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
};

use entrain_lab_agent::qemu::Program;
use rustix::ioctl;

use super::{Accel, Arch, MachineSpec};
use crate::{
    Cache, LabError, Progress, Result,
    archive::{Archive, BACKPORTS},
};

/// `KVM_CREATE_VM`: `_IO(0xAE, 0x01)`; its argument is the machine type, its result a descriptor.
const CREATE_VM: u8 = 0x01;
/// `KVM_CHECK_EXTENSION`: `_IO(0xAE, 0x03)`; its argument is a capability, its result 0 where KVM lacks it.
const CHECK_EXTENSION: u8 = 0x03;
/// `KVM_CAP_ARM_EL2`: a VM's CPUs can have EL2, so that KVM works in it.
const ARM_EL2: usize = 240;

/// Shall the host machine run under KVM?
pub(super) fn use_kvm(spec: &MachineSpec) -> Result<bool> {
    match spec.accel {
        Accel::Tcg => Ok(false),
        // Also where nothing nests: a KVM that can't do it may be a poor one. Seen: one inside a VM that stops at the first
        // BMI2 instruction ("KVM internal error"), and the machine then hangs without a word.
        Accel::Auto => Ok(kvm_works(spec.arch, true).is_ok()),
        Accel::Kvm => kvm_works(spec.arch, spec.nested).map(|()| true).map_err(|why| LabError::Missing {
            what: format!("KVM cannot carry the host machine: {why}"),
            advice: "use --accel tcg (or auto)".into(),
        }),
    }
}

/// KVM for that architecture, with virtualization for its guests in turn if it is to have any (`nested`); why not, if not.
pub fn kvm_works(arch: Arch, nested: bool) -> std::result::Result<(), String> {
    if Arch::native() != Some(arch) {
        return Err(format!("this computer is not {arch}"));
    }
    let file = fs::File::options().read(true).write(true).open("/dev/kvm").map_err(|e| format!("/dev/kvm: {e}"))?;
    // The device may be there without a CPU that can do it: only making a VM tells.
    let vm = ask(&file, CREATE_VM, 0).map_err(|e| format!("/dev/kvm: a VM cannot be made: {e}"))?;
    // SAFETY: the result is a fresh descriptor that nobody else owns.
    drop(unsafe { OwnedFd::from_raw_fd(vm) });
    let can_nest = || match arch {
        Arch::Aarch64 => ask(&file, CHECK_EXTENSION, ARM_EL2).is_ok_and(|has| has > 0),
        Arch::X86_64 => ["kvm_amd", "kvm_intel"]
            .map(|m| Path::new("/sys/module").join(m).join("parameters/nested"))
            .iter()
            .any(|p| fs::read_to_string(p).is_ok_and(|v| matches!(v.trim(), "1" | "Y"))),
    };
    if nested && !can_nest() {
        return Err("nested virtualization is off, or this computer has none".into());
    }
    Ok(())
}

/// Makes a request of KVM whose argument and result are integers.
fn ask(kvm: &fs::File, number: u8, argument: usize) -> rustix::io::Result<i32> {
    struct Ask(ioctl::Opcode, usize);
    // SAFETY: the opcodes are those above, whose argument is an integer and no pointer.
    unsafe impl ioctl::Ioctl for Ask {
        type Output = i32;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> ioctl::Opcode {
            self.0
        }
        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            std::ptr::without_provenance_mut(self.1)
        }
        unsafe fn output_from_ptr(out: ioctl::IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<i32> {
            Ok(out)
        }
    }
    // SAFETY: see above; `kvm` is open.
    unsafe { ioctl::ioctl(kvm, Ask(ioctl::opcode::none(0xae, number), argument)) }
}

/// QEMU for host machines of that architecture: the archive's newest, run out of the cache through its own loader, so
/// that nothing is installed and any system's libraries will do.
///
/// From 11.1 on, WFE in aarch64 guests traps under emulation, which gives the directed yields that PLE gives on x86.
pub fn qemu(cache: &Cache, arch: Arch, progress: &dyn Progress) -> Result<Program> {
    let native = Arch::native().ok_or_else(|| LabError::Missing {
        what: format!("no QEMU for a development machine of architecture {}", std::env::consts::ARCH),
        advice: "the lab runs on x86_64 and aarch64".into(),
    })?;
    let package = match arch {
        Arch::Aarch64 => "qemu-system-arm",
        Arch::X86_64 => "qemu-system-x86",
    };
    let tree = Archive::new(cache, native).tree(package, BACKPORTS, &[package], progress)?;
    let (loader, triplet) = match native {
        Arch::Aarch64 => ("usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
        Arch::X86_64 => ("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
    };
    let libraries = tree.join("usr/lib").join(triplet);
    let mut path = OsString::from(&libraries);
    // A library of PulseAudio's lies in a folder of its own.
    path.push(":");
    path.push(libraries.join("pulseaudio"));
    let mut argv: Vec<OsString> = vec![tree.join(loader).into(), "--library-path".into(), path];
    argv.push(tree.join(format!("usr/bin/qemu-system-{arch}")).into());
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        argv.extend(["-L".into(), tree.join(data).into()]);
    }
    Ok(Program { argv, ..Program::default() })
}
