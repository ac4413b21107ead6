//! The cost of a VM's exit into KVM and back, by a hypercall that KVM itself refuses: kvm-unit-tests' "vmcall" and "hvc".

use super::Slice;
use crate::kvm::{Exit, Kvm, MEMORY_AT};
use crate::pages::Pages;
use crate::session::Session;
use anyhow::{Context, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Hypercalls between two returns to this program; the return is then a five-hundredth of what is measured.
const CALLS: u32 = 0x1000;

/// `CALLS` times PSCI_VERSION, which a vCPU without PSCI does not have, then a store to where no memory is:
/// `movz w9, #0x1000; movz w10, #0x4000, lsl 16; 1: movz w0, #0x8400, lsl 16; hvc #0; subs w9, w9, #1; b.ne 1b;
/// str w9, [x10]; b .-28`
#[cfg(target_arch = "aarch64")]
fn program() -> Vec<u8> {
    [0x5282_0009u32, 0x52a8_000a, 0x52b0_8000, 0xd400_0002, 0x7100_0529, 0x54ff_ffa1, 0xb900_0149, 0x17ff_fff9]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// `CALLS` times a hypercall that nobody knows, then a port that nobody has:
/// `mov $0x1000, %cx; 1: mov $0xff, %eax; vmcall; dec %cx; jne 1b; out %al, $0x80; jmp .-17` in real mode.
#[cfg(target_arch = "x86_64")]
fn program() -> Vec<u8> {
    // Each vendor has its own instruction; KVM would patch the other one into the page at each call.
    let vendor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let last = if vendor.contains("GenuineIntel") { 0xc1 } else { 0xd9 };
    let mut code = vec![0xb9, 0x00, 0x10, 0x66, 0xb8, 0xff, 0, 0, 0, 0x0f, 0x01, last];
    code.extend([0x49, 0x75, 0xf4, 0xe6, 0x80, 0xeb, 0xed]);
    code
}

/// A hypercall and the return from it, ns; `None` without KVM, or where its guest does not get so far.
pub(super) fn hypercall(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    let Ok(kvm) = Kvm::open() else { return Ok(None) };
    let memory = Pages::new(1)?;
    for (number, word) in program().chunks(8).enumerate() {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        memory.word(0, number).store(u64::from_le_bytes(bytes), Relaxed);
    }
    let vm = kvm.create_vm(MEMORY_AT, &memory).context("cannot create a VM")?;
    let mut vcpu = vm.create_vcpu(0, MEMORY_AT).context("cannot create a vCPU")?;
    let mut other = None;
    let per_call = slice.per_operation(CALLS, |_| {
        loop {
            match vcpu.run_to_exit().context("KVM_RUN failed")? {
                Exit::Interrupted => {}
                Exit::Access => return Ok(()),
                // A KVM inside a VM may end a guest in real mode at once; nothing can be measured then.
                Exit::Other(reason) => {
                    other = Some(reason);
                    return Ok(());
                }
            }
        }
    })?;
    Ok(other.is_none().then_some(per_call))
}
