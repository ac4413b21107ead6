//! What things cost, in ns, each with its source, on two computers: a server (`HARDWARE`), and the lab with its dilated
//! clock (`LAB`), whose machines are emulated and not slowed down alike (docs/fidelity.md).
//!
//! Sources: *EPYC*: measured on an EPYC with Linux 6.18 by `kernel.bpf_stats_enabled` (observe_switch 369 ns,
//! observe_wakeup 167 ns; docs/host.md) or by `entrain-load costs`. *fidelity*: docs/fidelity.md, which names its own.
//! *pipe*: measured on 2026-11-24 on the same EPYC (a VM, Linux 6.18; the 5th percentile of 400 runs of 80): getppid() 192,
//! sched_yield() of a task that is alone 546, a byte through a pipe 770 without a switch and 3,000 with one, one way.
//! *profile*: `%profile` of the lab's shell while two guests of four vCPUs on two pCPUs do `wake` under stock Linux, N = 26,
//! 2026-11-26: 6,230 samples, as shares of the 46 µs of CPU time that a request takes there.
//! *stays*: `kvm_entry` and `kvm_exit` of guests that do `wake` under stock Linux, N = 16, 2026-11-27. A guest of two vCPUs
//! on as many pCPUs, alone on its host, with one worker: 5.4 µs from one IPI's return to the halt, 7.8 from the end of a
//! halt to an IPI. Two guests of four vCPUs on two pCPUs: 5.4 µs from one IPI to the next. World switches are in these.
//! *field*: orders of magnitude that published measurements of x86 servers agree on; not measured here, and what depends
//! on them is to be shown with half and double of each (`--cost NAME=NS`).
//!
//! The lab's column follows from the hardware's by what docs/fidelity.md says of each operation, not by its results:
//! hypercalls are 2.6 times too slow, and since the factor of the clock is the geometric mean of system call, switch and
//! hypercall, the first two are 1.6 and 2 times too fast (`entrain-load costs` at N = 23, 2026-11-25: 80, 850 and 1,570
//! ns); interrupts to a CPU that runs are several times too cheap.

use std::collections::BTreeMap;

macro_rules! costs {
    ($($(#[doc = $doc:literal])+ $name:ident: $hardware:literal, $lab:literal;)+) => {
        /// What things cost on one kind of computer, ns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct Costs {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Costs {
            /// A server.
            pub const HARDWARE: Self = Self { $($name: $hardware,)+ };
            /// The lab.
            pub const LAB: Self = Self { $($name: $lab,)+ };
            /// The names of all costs.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// All of them by their names, in ns.
            pub fn named(&self) -> BTreeMap<String, u64> {
                [$((stringify!($name).to_owned(), self.$name),)+].into()
            }

            /// Sets one by its name; whether there is one of that name.
            pub fn set(&mut self, name: &str, ns: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = ns,)+
                    _ => return false,
                }
                true
            }
        }
    };
}

costs! {
    /// A call of a BPF operation: entering and leaving the program by its trampoline. field: 20 to 100.
    operation: 50, 50;
    /// A call of a helper or a kernel function out of BPF with what it does, in the mean. EPYC: observe_switch makes
    /// about 20 calls and compare-and-swaps in 369 ns. fidelity: the lab's BPF is within 2.5 of it.
    helper: 15, 15;
    /// Programs of the host's scheduler, each a run, where they were measured by themselves; 0: `helper` for each call.
    /// *programs*: the lab's host machine with `kernel.bpf_stats_enabled` (`entrain top --json`, `status.programs`), wake at
    /// four vCPUs a pCPU, host alone, N = 23, 2026-11-25: 340, 607, 863, 337, 279 and 80 ns, less the 45 that counting
    /// takes there. ops.select_cpu.
    host_select_cpu: 0, 295;
    /// ops.enqueue. *programs*.
    host_enqueue: 0, 562;
    /// ops.dispatch. *programs*.
    host_dispatch: 0, 818;
    /// ops.running. *programs*.
    host_running: 0, 292;
    /// ops.stopping. *programs*.
    host_stopping: 0, 234;
    /// ops.quiescent. *programs*.
    host_quiescent: 0, 35;
    /// ops.tick. *programs*, but at N = 40: 1,012, less 100.
    host_tick: 0, 912;
    /// What watches a switch of vCPUs. *programs*: 498.
    observe_switch: 0, 453;
    /// What watches a wake-up. *programs*: 274.
    observe_wakeup: 0, 229;
    /// What looks at a trapped WFE, both programs. *programs*: 105 and 47.
    host_wfx: 0, 62;
    /// What looks at a vCPU's saved timer. *programs*: 43, no more than counting takes.
    host_timer: 0, 5;
    /// `__schedule()` without the class's own work. field: perf bench sched pipe takes 1 to 2 µs for a round with two.
    schedule: 300, 150;
    /// Switch of address space and stack, and the caches' first misses, without the class's own work. fidelity: 1.7 µs with a
    /// byte through a pipe; *pipe*: 2.2 on the EPYC without the two system calls, which is what wake, wake_window, schedule,
    /// switch and EEVDF's own parts come to. There are no caches in the lab.
    switch: 800, 400;
    /// What a CPU does between its last task and its idle state, or between that and its next task (`do_idle()`: the tick is
    /// stopped or started, timers are set, RCU is told). field: 300 to 1,000 each way. *stays*: from entry to halt less what
    /// is known of it, and less `cold`.
    idle: 400, 2500;
    /// `try_to_wake_up()` without the class's own work.
    wake: 200, 100;
    /// EEVDF's choice of a CPU, `select_task_rq_fair()`. field: 100 to 300 where the CPU before is idle or a few are looked at.
    fair_select: 100, 60;
    /// `enqueue_task_fair()` and `wakeup_preempt_fair()`. field: as above.
    fair_enqueue: 100, 60;
    /// `pick_next_task_fair()`. *pipe*: sched_yield() of a task that is alone takes 355 more than getppid() on the EPYC, of which
    /// schedule is 300.
    fair_pick: 50, 30;
    /// The rest of EEVDF's part of a switch: `dequeue_task_fair()` or `put_prev_task_fair()`, `set_next_task_fair()`. field:
    /// ghOSt (SOSP 2021, table 3) has 599 for a switch under CFS and 410 for a minimal one, the pick included (from
    /// memory: the table was not looked up again).
    fair_switch: 140, 85;
    /// `task_tick_fair()`. field: 100 to 200. Balancing is not charged.
    fair_tick: 100, 60;
    /// From the choice of a CPU to the insertion into its queue: the run-queue lock's way over, or the IPI of a remote
    /// wake-up. The window in which the machine may have changed.
    wake_window: 500, 300;
    /// A reschedule interrupt's way to another CPU, awake. field: 1 to 2 µs. fidelity: several times too cheap.
    ipi: 1000, 300;
    /// The same to an idle one: it has to leave its C-state (C1), which the lab's CPUs have not. field: 1 to 3 µs.
    ipi_idle: 2000, 600;
    /// A timer interrupt with its tick. field: 1 to 3 µs.
    tick: 1500, 1500;
    /// Any other interrupt's handler.
    interrupt: 500, 500;
    /// An interrupt that a CPU sends to itself (irq_work) for what BPF may not do with interrupts off, start a timer or kick
    /// a CPU. field: half a microsecond to one. *samples*: the emulator's registers read some 300 times a second during
    /// wake at four vCPUs a pCPU, N = 26 (2026-11-25): sending, entry, handlers and return of 0.5 such interrupts and 0.2
    /// timers come to 1,500 ns a request, and sampling made a request 2.2 times as long. At 1,800 overcommit/lock falls
    /// back into its convoy, which it does not in the lab.
    irq_work: 700, 800;
    /// Leaving the guest. field: 0.7 to 1.2 µs with mitigations for a round trip without work. fidelity says 600 for a
    /// hypercall and back, and 2.6 times as long in the lab: with 300 each way here calm-wake has 0.965 of EEVDF's
    /// operations instead of 0.97 and more, which is to be measured before it is believed.
    exit: 600, 780;
    /// Entering the guest, with what is injected.
    entry: 600, 780;
    /// What a guest loses to forgotten translations of addresses after an interrupt's exit or its own: hardware tags them
    /// with the VM, the emulator drops all of them at each entry and exit (`do_hcr_write()` of QEMU's
    /// target/arm/helper.c). *stays*: from the return from one IPI to the trap of the next.
    cold: 0, 2300;
    /// What a guest loses to forgotten translations after a switch to another process: hardware tags them with the address
    /// space, the emulator drops all of them as its number (ASID) changes (`vmsa_ttbr_write()`, the same file).
    /// `entrain-load costs` in a guest of two vCPUs alone on as many pCPUs, N = 16, 2026-11-28: a byte through a pipe takes 910
    /// ns to a thread and 4,230 to a process; on the EPYC 2,180 to either.
    address_space: 0, 3300;
    /// Work of KVM for an exit that is handled in the kernel (halt, IPI, timer). field: an IPI between vCPUs takes some
    /// 2 to 3 µs in all. In the lab KVM's own use of system registers is emulated, and traps again.
    exit_work: 800, 2100;
    /// `kvm_sched_out()` of a vCPU's thread, or `kvm_sched_in()`: its registers, timers and interrupt controller. field: a
    /// few hundred ns. *profile*: 18 % of 46 µs, for 1.4 switches of which most have a vCPU on either side: what KVM writes to
    /// timers, interrupt controller and counters there is emulated.
    vcpu_switch: 200, 2500;
    /// Handing a spinning lock over to a waiter that runs: a cache line's way.
    handover: 100, 100;
    /// A system call that posts to or waits for a semaphore. fidelity: 130 for one that does nothing.
    syscall: 200, 125;
    /// How long a task spins for a lock of user mode before it sleeps. Rust's looks at it 100 times, with a PAUSE (140
    /// cycles on x86 since Skylake) or an ISB (field: 10 to 30 ns) between.
    mutex_spin: 2000, 2000;
    /// `kvm_vcpu_on_spin()` for each sibling that it looks at.
    spin_look: 30, 30;
    /// Spinning until the pause filter exits (AMD: 3,000 PAUSEs; Intel: a window of 4,096 cycles, which grows).
    ple_window: 20000, 20000;
    /// arm64: a WFE traps at once while others wait for the CPU; this long lasts one round of the spinner's loop.
    wfe_window: 5000, 5000;
}

/// `KVM_HALT_POLL_NS_DEFAULT` of arm64 and of x86, asm/kvm_host.h: the bound of halt polling.
pub const HALT_POLL_MAX: [u64; 2] = [500_000, 200_000];
/// `halt_poll_ns_grow_start` of kvm_main.c.
pub const HALT_POLL_START: u64 = 10_000;
/// The kernel's tick, 1/HZ with HZ = 250 as Debian's.
pub const TICK_PERIOD: u64 = 4_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_have_names() {
        let mut costs = Costs::HARDWARE;
        assert!(costs.set("exit_work", 7) && costs.exit_work == 7 && !costs.set("exit-work", 7));
        assert!(Costs::NAMES.contains(&"switch"));
    }
}
