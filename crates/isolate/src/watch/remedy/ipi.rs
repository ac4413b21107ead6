//! Inter-processor interrupts, by the stack of who sent them.

use super::Advice;

/// What the sender of an IPI was about, by its stack.
pub(super) fn by_frames(frames: &[String]) -> Advice {
    let in_stack = |part: &str| frames.iter().any(|frame| frame.contains(part));
    if in_stack("kvm_vcpu_kick") {
        return kick(in_stack("apic_timer_fn"), in_stack("rcuwait_wake_up"));
    }
    if in_stack("queue_work") || in_stack("insert_work") {
        return Advice::note("goes with the work item that it announces");
    }
    if in_stack("flush_tlb") {
        return Advice::help(
            "the sender shares its memory with a task here: no mmap, munmap or mprotect while it runs",
        );
    }
    if in_stack("membarrier") {
        return Advice::help("membarrier: keep the sender's process off this CPU");
    }
    if in_stack("folio_wake_bit") {
        return Advice::note("a task of this CPU waited for a page that the sender moved, read or wrote");
    }
    if in_stack("rt_spin_unlock") || in_stack("rt_mutex") {
        return Advice::note("a task of this CPU waited for a lock that the sender held");
    }
    let wakes =
        ["try_to_wake_up", "wake_up_process", "ttwu_", "wake_up_q", "wake_up_new_task"].iter().any(|f| in_stack(f));
    if wakes {
        return Advice::note("a task was woken to run here: see tasks and kernel threads of this CPU");
    }
    Advice::NONE
}

/// KVM kicks a vCPU of this CPU. `timer`: for its own local timer, which fired elsewhere. `halted`: it slept.
fn kick(timer: bool, halted: bool) -> Advice {
    match (timer, halted) {
        (true, true) => Advice::note(
            "the guest's timer, kept on a housekeeping CPU, wakes its halted vCPU: it interrupts nobody. Where that is too late: QEMU's -overcommit cpu-pm=on (it halts without leaving the guest), or kernel.timer_migration=0",
        ),
        (true, false) => Advice::help(
            "the guest's timer fires on a housekeeping CPU, which kicks the vCPU. With APICv or AVIC, kvm.pi_inject_timer and QEMU's -overcommit cpu-pm=on it is posted instead; else try kernel.timer_migration=0",
        ),
        (false, _) => Advice::note(
            "an interrupt for this vCPU, from the sender: a device, or another vCPU of its guest. Who sends that one is seen inside the guest, by `entrain isolate watch` there",
        ),
    }
}
