//! The doorbell: tells the host without any device where a page is, by an instruction that KVM traces and that changes
//! nothing: on x86 a hypercall that KVM refuses; on arm64 a `wfe`, which Linux lets user programs execute and KVM traps
//! where other tasks want the CPU. (`wfi` is no use: the guest's own kernel traps and skips it.)
//!
//! The registers carry the message. Where nobody hears the bell, the host finds the pages by their magic.

use entrain_channel::page::Page;

/// What became of the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The hypervisor took the call, on so many vCPUs.
    Rung(u32),
    /// There is no bell on this machine; nothing was tried.
    NoBell,
    /// The instruction ended the process that tried it.
    Refused,
}

/// Rings for each page of `offers` (vCPU number, page) on its own vCPU, if that is online.
///
/// A short-lived child does it: under a foreign hypervisor the instruction may end the process, and the agent's own
/// affinity stays as it is.
pub fn ring(offers: &[(u32, &Page)]) -> Ring {
    use entrain_channel::page::{DOORBELL_NR, HeaderValues, MAGIC1, VERSION};
    use rustix::thread::{CpuSet, sched_setaffinity};

    let Some(bell) = bell() else { return Ring::NoBell };
    let calls: Vec<(usize, [u64; 4])> = offers
        .iter()
        .map(|(vcpu, page)| {
            let header = HeaderValues::load(&page.header);
            (*vcpu as usize, [header.gpa, header.cookie, MAGIC1, VERSION.into()])
        })
        .collect();
    // SAFETY: the agent has one thread, so the child may do what it likes; it leaves by _exit or by the signal that the
    // instruction raises, never back into the caller.
    match unsafe { libc::fork() } {
        -1 => Ring::NoBell,
        0 => {
            // No core file for an instruction that the hypervisor does not know.
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a valid struct that outlives the call.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
            let mut rung = 0;
            for (vcpu, arguments) in calls {
                let mut cpu = CpuSet::new();
                cpu.set(vcpu);
                // A CPU that is offline has no vCPU that could ring.
                if sched_setaffinity(None, &cpu).is_ok() {
                    bell.call(DOORBELL_NR, arguments);
                    rung += 1;
                }
            }
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(rung.min(100)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child that was just made; `status` outlives the call.
            while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
                if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                    return Ring::NoBell;
                }
            }
            if libc::WIFEXITED(status) { Ring::Rung(libc::WEXITSTATUS(status) as u32) } else { Ring::Refused }
        }
    }
}

/// Whether a hypervisor is known to be below; `None` where that can't be told.
pub fn under_hypervisor() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(std::arch::x86_64::__cpuid(1).ecx & 1 << 31 != 0);
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// arm64: nothing that a user program can read tells what is below.
#[cfg(not(target_arch = "x86_64"))]
fn bell() -> Option<Bell> {
    cfg!(target_arch = "aarch64").then_some(Bell)
}

#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bell;

#[cfg(target_arch = "aarch64")]
impl Bell {
    /// The first `wfe` may but take note of an event that has been; untrapped, it waits for the next one, and Linux makes
    /// one every 100 µs (its event stream).
    fn call(self, number: u64, arguments: [u64; 4]) {
        const TRIES: u32 = 4;
        let [a0, a1, a2, a3] = arguments;
        for _ in 0..TRIES {
            // SAFETY: `wfe` changes no register and no memory; it waits for an event or an interrupt, of which a running
            // program's CPU has one with each timer tick.
            unsafe {
                std::arch::asm!(
                    "wfe",
                    in("x0") number, in("x1") a0, in("x2") a1, in("x3") a2, in("x4") a3,
                    options(nostack, nomem, preserves_flags),
                );
            }
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Bell {
    fn call(self, _: u64, _: [u64; 4]) {}
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bell {
    Vmcall,
    Vmmcall,
}

/// The instruction of this CPU's vendor, if KVM is below. KVM's signature may stand behind Hyper-V's, 0x100 further.
#[cfg(target_arch = "x86_64")]
fn bell() -> Option<Bell> {
    use std::arch::x86_64::__cpuid;
    if under_hypervisor() != Some(true) {
        return None;
    }
    let signature = |leaf| {
        let found = __cpuid(leaf);
        [found.ebx, found.ecx, found.edx].map(u32::to_le_bytes).concat()
    };
    (0x4000_0000..0x4001_0000).step_by(0x100).find(|&leaf| signature(leaf) == b"KVMKVMKVM\0\0\0")?;
    let vendor = __cpuid(0);
    match [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat().as_slice() {
        b"AuthenticAMD" | b"HygonGenuine" => Some(Bell::Vmmcall),
        _ => Some(Bell::Vmcall),
    }
}

#[cfg(target_arch = "x86_64")]
impl Bell {
    fn call(self, number: u64, arguments: [u64; 4]) {
        let [a0, a1, a2, a3] = arguments;
        // SAFETY: KVM reads the registers and writes rax alone; it touches no memory. rbx belongs to the compiler, so it
        // is swapped in and out. Elsewhere the instruction raises a signal, which the caller is prepared for.
        unsafe {
            match self {
                Self::Vmcall => std::arch::asm!(
                    "xchg rbx, {a0}", "vmcall", "xchg rbx, {a0}",
                    a0 = inout(reg) a0 => _, inout("rax") number => _,
                    in("rcx") a1, in("rdx") a2, in("rsi") a3, options(nostack),
                ),
                Self::Vmmcall => std::arch::asm!(
                    "xchg rbx, {a0}", "vmmcall", "xchg rbx, {a0}",
                    a0 = inout(reg) a0 => _, inout("rax") number => _,
                    in("rcx") a1, in("rdx") a2, in("rsi") a3, options(nostack),
                ),
            }
        }
    }
}
