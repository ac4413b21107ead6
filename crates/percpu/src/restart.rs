//! Restartable sequences: the owner's side without a lock, and the call that restarts them from elsewhere.
//!
//! glibc (2.35 and later) registers an area for each thread and says where it is (`__rseq_offset` from the thread
//! pointer). The kernel keeps the CPU's number there, and if a thread is preempted, migrated or signalled between the
//! start and the commit of the sequence that the area names, it goes on at the sequence's abort address.
//! Source: `include/uapi/linux/rseq.h`, and the conventions of librseq. There is no well-kept crate for it.

use std::sync::OnceLock;

use rustix::thread::{Cpuid, MembarrierCommand, membarrier, membarrier_cpu};

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub(crate) use x86_64::{pop, push};

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
pub(crate) use none::{pop, push};

/// Whether owners can use sequences here: asked once, also registers the process for restarts.
pub fn rseq_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| thread_is_registered() && register())
}

fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).is_ok()
}

/// Restarts the sequence that runs on the CPU, if one of this process does. An IPI, if so.
///
/// # Panics
/// If the kernel takes back what it promised at registration: then no drain would be safe.
pub(crate) fn restart(cpu: u32) {
    // SAFETY: a number from the kernel's list of possible CPUs; one that is not there makes the call fail, no more.
    let id = unsafe { Cpuid::from_raw(cpu) };
    let again = |_| {
        // A child of fork may have lost the registration.
        register();
        membarrier_cpu(MembarrierCommand::PrivateExpeditedRseq, id)
    };
    match membarrier_cpu(MembarrierCommand::PrivateExpeditedRseq, id).or_else(again) {
        // A CPU that is not there (any more) runs no sequence.
        Ok(()) | Err(rustix::io::Errno::NXIO) => {}
        Err(error) => panic!("membarrier for rseq on CPU {cpu}: {error}"),
    }
}

/// The number of the CPU that this thread runs on, or ran on a moment ago.
pub fn current_cpu() -> usize {
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    if let Some(cpu) = x86_64::cpu() {
        return cpu;
    }
    rustix::thread::sched_getcpu()
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn thread_is_registered() -> bool {
    x86_64::cpu().is_some()
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
fn thread_is_registered() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod x86_64 {
    use std::arch::asm;

    use crate::protocol::Attempt;

    unsafe extern "C" {
        /// glibc: where a thread's area is, from its thread pointer (fs).
        safe static __rseq_offset: isize;
        /// glibc: 0 if the kernel or the user (tunable glibc.pthread.rseq) would not have it.
        safe static __rseq_size: u32;
    }

    // struct rseq: cpu_id_start u32 at 0, cpu_id i32 at 4, rseq_cs u64 at 8.

    /// The CPU, if this thread's area is registered.
    pub(super) fn cpu() -> Option<usize> {
        if __rseq_size == 0 {
            return None;
        }
        let id: i32;
        // SAFETY: glibc says that the area is there.
        unsafe {
            asm!("mov {id:e}, dword ptr fs:[{area} + 4]", id = out(reg) id, area = in(reg) __rseq_offset,
                 options(nostack, readonly, preserves_flags));
        }
        // Negative: this thread is not registered.
        usize::try_from(id).ok()
    }

    // What the sequences leave in `end`.
    const ABORTED: u32 = 0;
    const DONE: u32 = 2;
    const CLOSED: u32 = 3;

    // Labels: 22 start, 33 after the commit, 44 abort, 55 on another CPU, 66 closed, 77 full or empty, 99 end; 88 is
    // the descriptor (version, flags, start, length, abort). The signature before the abort address is an instruction
    // (ud1) with 0x53053053 in it, so that disassemblers keep in step. Everything between 22 and 33 may be done any
    // number of times; only the store just before 33 counts.

    /// # Safety
    /// `slot` is a [`crate::slot::Slot`] of the CPU `cpu` that is not `locked`.
    pub(crate) unsafe fn push(slot: *const u8, cpu: u32, word: usize) -> Attempt<bool> {
        let end: u32;
        // SAFETY: the kernel restarts the sequence before another thread can run on this CPU, so the slot has one
        // owner; a drainer has closed it and restarted this one before it touches anything. A word written above the
        // length by an attempt that was aborted is not part of the stack.
        unsafe {
            asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "88: .long 0, 0",
                ".quad 22f, 33f - 22f, 44f",
                ".popsection",
                "xor {end:e}, {end:e}",
                "lea {t}, [rip + 88b]",
                "mov qword ptr fs:[{area} + 8], {t}",
                "22:",
                "cmp dword ptr fs:[{area} + 4], {cpu:e}",
                "jne 55f",
                "cmp dword ptr [{slot}], 0",
                "jne 66f",
                "mov {t}, qword ptr [{slot} + 8]",
                "cmp {t}, qword ptr [{slot} + 16]",
                "jae 77f",
                "mov {items}, qword ptr [{slot} + 24]",
                "mov qword ptr [{items} + {t} * 8], {word}",
                "inc {t}",
                "mov qword ptr [{slot} + 8], {t}",
                "33:",
                "mov {end:e}, 1",
                "jmp 99f",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "44:",
                "55:",
                "xor {end:e}, {end:e}",
                "jmp 99f",
                "66:",
                "mov {end:e}, 3",
                "jmp 99f",
                "77:",
                "mov {end:e}, 2",
                "99:",
                end = out(reg) end, t = out(reg) _, items = out(reg) _,
                area = in(reg) __rseq_offset, slot = in(reg) slot, cpu = in(reg) cpu, word = in(reg) word,
                options(nostack),
            );
        }
        match end {
            ABORTED => Attempt::Aborted,
            CLOSED => Attempt::Closed,
            end => Attempt::Done(end != DONE),
        }
    }

    /// # Safety
    /// As [`push`].
    pub(crate) unsafe fn pop(slot: *const u8, cpu: u32) -> Attempt<Option<usize>> {
        let (end, word): (u32, usize);
        // SAFETY: as in `push`. A word that an aborted attempt has read is not used.
        unsafe {
            asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "88: .long 0, 0",
                ".quad 22f, 33f - 22f, 44f",
                ".popsection",
                "lea {t}, [rip + 88b]",
                "mov qword ptr fs:[{area} + 8], {t}",
                "22:",
                "cmp dword ptr fs:[{area} + 4], {cpu:e}",
                "jne 55f",
                "cmp dword ptr [{slot}], 0",
                "jne 66f",
                "mov {t}, qword ptr [{slot} + 8]",
                "sub {t}, 1",
                "jb 77f",
                "mov {word}, qword ptr [{slot} + 24]",
                "mov {word}, qword ptr [{word} + {t} * 8]",
                "mov qword ptr [{slot} + 8], {t}",
                "33:",
                "mov {end:e}, 1",
                "jmp 99f",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "44:",
                "55:",
                "xor {end:e}, {end:e}",
                "jmp 99f",
                "66:",
                "mov {end:e}, 3",
                "jmp 99f",
                "77:",
                "mov {end:e}, 2",
                "99:",
                end = out(reg) end, word = out(reg) word, t = out(reg) _,
                area = in(reg) __rseq_offset, slot = in(reg) slot, cpu = in(reg) cpu,
                options(nostack),
            );
        }
        match end {
            ABORTED => Attempt::Aborted,
            CLOSED => Attempt::Closed,
            DONE => Attempt::Done(None),
            _ => Attempt::Done(Some(word)),
        }
    }
}

/// Where there are no sequences: never called, since every slot is `locked` then.
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod none {
    use crate::protocol::Attempt;

    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn push(_: *const u8, _: u32, _: usize) -> Attempt<bool> {
        unreachable!("without rseq all caches have locks")
    }

    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn pop(_: *const u8, _: u32) -> Attempt<Option<usize>> {
        unreachable!("without rseq all caches have locks")
    }
}
