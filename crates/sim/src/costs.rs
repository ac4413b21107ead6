//! What things cost, in ns, each with its source.
//!
//! *EPYC*: measured on an EPYC with Linux 6.18 by `kernel.bpf_stats_enabled` (observe_switch 369 ns, observe_wakeup
//! 167 ns; docs/host.md). *field*: orders of magnitude that published measurements of x86 servers agree on; not measured
//! here, and what depends on them is to be shown with half and double of each.

/// A call of a BPF operation: entering and leaving the program by its trampoline. field: 20 to 100.
pub const OPERATION: u64 = 50;
/// A call of a helper or a kernel function out of BPF with what it does, in the mean. EPYC: observe_switch makes about
/// 20 calls and compare-and-swaps in 369 ns.
pub const HELPER: u64 = 15;
/// `__schedule()` without the class's own work. field: perf bench sched pipe takes 1 to 2 µs for a round with two.
pub const SCHEDULE: u64 = 300;
/// Switch of address space and stack, and the caches' first misses. field: 1 to 2 µs.
pub const SWITCH: u64 = 1_000;
/// `try_to_wake_up()` without the class's own work.
pub const WAKE: u64 = 300;
/// From the choice of a CPU to the insertion into its queue: the run-queue lock's way over, or the IPI of a remote
/// wake-up. The window in which the machine may have changed.
pub const WAKE_WINDOW: u64 = 500;
/// A reschedule interrupt's way to another CPU, awake. field: 1 to 2 µs.
pub const IPI: u64 = 1_000;
/// The same to an idle one: it has to leave its C-state (C1). field: 1 to 3 µs.
pub const IPI_IDLE: u64 = 2_000;
/// A timer interrupt with its tick. field: 1 to 3 µs.
pub const TICK: u64 = 1_500;
/// Any other interrupt's handler.
pub const INTERRUPT: u64 = 500;
/// Leaving the guest. field: 0.7 to 1.2 µs with mitigations for a round trip without work.
pub const EXIT: u64 = 600;
/// Entering the guest, with what is injected.
pub const ENTRY: u64 = 600;
/// Work of KVM for an exit that is handled in the kernel (halt, IPI, timer).
pub const EXIT_WORK: u64 = 800;
/// Handing a spinning lock over to a waiter that runs: a cache line's way.
pub const HANDOVER: u64 = 100;
/// A system call that posts to or waits for a semaphore.
pub const SYSCALL: u64 = 200;
/// How long a task spins for a lock of user mode before it sleeps. Rust's looks at it 100 times, with a PAUSE (140 cycles
/// on x86 since Skylake) or an ISB (field: 10 to 30 ns) between.
pub const MUTEX_SPIN: u64 = 2_000;
/// `kvm_vcpu_on_spin()` for each sibling that it looks at.
pub const SPIN_LOOK: u64 = 30;
/// Spinning until the pause filter exits (AMD: 3,000 PAUSEs; Intel: a window of 4,096 cycles, which grows).
pub const PLE_WINDOW: u64 = 20_000;
/// arm64: a WFE traps at once while others wait for the CPU; this long lasts one round of the spinner's loop.
pub const WFE_WINDOW: u64 = 5_000;
/// `halt_poll_ns` of kvm_main.c: the bound, and where growth starts (halt_poll_ns_grow_start).
pub const HALT_POLL_MAX: u64 = 200_000;
/// See [`HALT_POLL_MAX`].
pub const HALT_POLL_START: u64 = 10_000;
/// The kernel's tick, 1/HZ with HZ = 250 as Debian's.
pub const TICK_PERIOD: u64 = 4_000_000;
