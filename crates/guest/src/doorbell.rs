//! The doorbell: tells the host without any device where a page is, by an instruction that KVM traces and that changes
//! nothing: on x86 a hypercall that KVM refuses; on arm64 a `wfe`, which Linux lets user programs execute and KVM traps
//! where other tasks want the CPU. (`wfi` is no use: the guest's own kernel traps and skips it.)
//!
//! The registers carry the message. Where nobody hears the bell, the host finds the pages by their magic.

use std::time::{Duration, Instant};

use entrain_channel::page::Page;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::affinity;

/// What became of the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The hypervisor took the call, on so many vCPUs.
    Rung(u32),
    /// There is no bell on this machine; nothing was tried.
    NoBell,
    /// The instruction ended the process that tried it.
    Refused,
    /// It was not rung on all vCPUs in time: something keeps one for itself.
    Stuck,
}

/// A bell that may still ring.
///
/// A short-lived child rings it: under a foreign hypervisor the instruction may end the process, and the agent's own
/// affinity stays as it is. Nobody waits for the child: on a vCPU that a real-time task keeps it may not run for ever.
#[derive(Debug)]
pub struct Ringing {
    child: libc::pid_t,
    since: Instant,
}

/// A child that has not been on all its vCPUs by then is ended: on one it does not get to run.
const PATIENCE: Duration = Duration::from_secs(3);

/// Rings for each page of `offers` (vCPU number, page) on its own vCPU, if that is online. `None` where there is no bell.
pub fn ring(offers: &[(u32, &Page)]) -> Option<Ringing> {
    use entrain_channel::page::{DOORBELL_NR, HeaderValues, MAGIC1, VERSION};

    let bell = bell()?;
    let calls: Vec<(usize, [u64; 4])> = offers
        .iter()
        .map(|(vcpu, page)| {
            let header = HeaderValues::load(&page.header);
            (*vcpu as usize, [header.gpa, header.cookie, MAGIC1, VERSION.into()])
        })
        .collect();
    Ringing::by_child(|| {
        let mut rung = 0;
        for (vcpu, arguments) in calls {
            // A CPU that is offline has no vCPU that could ring.
            if affinity::bind(vcpu).is_ok() {
                bell.call(DOORBELL_NR, arguments);
                rung += 1;
            }
        }
        rung
    })
}

impl Ringing {
    /// Has a child ring, which tells how many vCPUs it rang on.
    fn by_child(rings: impl FnOnce() -> i32) -> Option<Self> {
        // SAFETY: the agent has one thread, so the child may do what it likes; it leaves by _exit or by the signal that the
        // instruction raises, never back into the caller.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                // No core file for an instruction that the hypervisor does not know.
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                // SAFETY: a valid struct that outlives the call.
                unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
                // The agent's lock ends with the agent, not with a child that it has left.
                // SAFETY: closes descriptors of this process alone, none of which it will use.
                unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
                let rung = rings();
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(rung.min(100)) }
            }
            child => Some(Self { child, since: Instant::now() }),
        }
    }

    /// What became of it; `None`: it still rings.
    pub fn outcome(&self) -> Option<Ring> {
        let mut status = 0;
        // SAFETY: asks for a child of ours; `status` outlives the call.
        match unsafe { libc::waitpid(self.child, &mut status, libc::WNOHANG) } {
            0 if self.since.elapsed() > PATIENCE => {
                self.end();
                None
            }
            0 => None,
            // It has been asked for before.
            -1 => Some(Ring::Stuck),
            _ if libc::WIFEXITED(status) => Some(Ring::Rung(libc::WEXITSTATUS(status) as u32)),
            _ if libc::WTERMSIG(status) == libc::SIGKILL => Some(Ring::Stuck),
            _ => Some(Ring::Refused),
        }
    }

    /// The same, once it is known.
    pub fn wait(self) -> Ring {
        loop {
            match self.outcome() {
                Some(ring) => return ring,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// The child ends as soon as it runs, which it may do on any CPU now.
    fn end(&self) {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        if let Some(child) = rustix::process::Pid::from_raw(self.child) {
            let _ = sched_setaffinity(Some(child), &all);
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Ringing {
    /// One that still rings does not outlive the agent.
    fn drop(&mut self) {
        if self.outcome().is_none() {
            self.end();
            let late = Instant::now() + PATIENCE;
            while self.outcome().is_none() && Instant::now() < late {
                std::thread::sleep(Duration::from_millis(1));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_child_that_does_not_run() {
        let hangs = || -> i32 {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        };
        let begun = Instant::now();
        let mut ringing = Ringing::by_child(hangs).expect("a child");
        assert_eq!(ringing.outcome(), None);
        assert!(begun.elapsed() < PATIENCE, "not waited for");
        ringing.since = begun.checked_sub(2 * PATIENCE).expect("a time");
        assert_eq!(ringing.wait(), Ring::Stuck);
        assert_eq!(Ringing::by_child(|| 3).expect("a child").wait(), Ring::Rung(3));
    }
}
