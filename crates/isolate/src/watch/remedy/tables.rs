//! What is known to help, by what the kernel calls its functions, threads and softirqs.

/// Tick dependencies, TICK_DEP_MASK_* of include/linux/tick.h, why each holds the tick, and what to do.
pub(super) const TICK: [(u32, &str, &str); 6] = [
    (
        1,
        "CPU-time timer",
        "a process there has a CPU-time limit or timer (RLIMIT_CPU, CLOCK_PROCESS_CPUTIME_ID): remove it",
    ),
    (2, "perf events", "stop perf on this CPU; kernel.nmi_watchdog=0"),
    (4, "more than one runnable task", "see the tasks and kernel threads that run there: move or pin them elsewhere"),
    (8, "unstable clock", "boot with tsc=reliable if the TSC is sound"),
    (16, RCU_TICK, "boot with rcu_nocbs=CPUS"),
    (32, "expedited RCU", "boot with rcu_nocbs=CPUS; rcupdate.rcu_normal=1"),
];

/// The tick that RCU holds.
pub(super) const RCU_TICK: &str = "RCU";

pub(super) const QPW: &str =
    "PREEMPT_RT: `entrain isolate qpw` drains by the remote CPU's lock; else keep the sender from doing it";
pub(super) const UNBOUND: &str = "take the CPU out of /sys/devices/virtual/workqueue/cpumask";
pub(super) const RCU: &str = "boot with rcu_nocbs=CPUS and rcutree.nohz_full_patience_delay=1000 (Linux 6.12 or newer)";
pub(super) const IRQ: &str =
    "move the interrupt: echo HOUSEKEEPING > /proc/irq/NUMBER/smp_affinity_list; irqaffinity= at boot";
pub(super) const MOVE: &str = "move the task: taskset -pc HOUSEKEEPING PID, a cpuset, or isolcpus=domain,CPUS at boot";

/// By function: what is called on or queued to the CPU.
pub(super) const FUNCTIONS: [(&[&str], &str); 14] = [
    (&["lru_add_drain_per_cpu", "flush_cpu_slab", "flush_cpu_sheaves", "flush_rcu_sheaf", "drain_local_"], QPW),
    (&["refresh_vm_stats", "stat_refresh"], "keep the sender from reading /proc/sys/vm/stat_refresh"),
    (&["vmstat_update"], "sysctl vm.stat_interval=120; newer kernels spare isolated CPUs"),
    (&["sync_overcommit_as"], "set vm.overcommit_memory once, before the real-time work starts"),
    (
        &["ipi_mb", "ipi_sync_core", "ipi_rseq", "ipi_sync_rq_state"],
        "membarrier: keep the sender's process off this CPU, or use its private commands only",
    ),
    (
        &["do_flush_tlb_all", "do_kernel_range_flush", "do_sync_core", "do_patch"],
        "kernel text or mappings change (BPF, ftrace, modules, vmalloc): do that before the real-time work starts",
    ),
    (
        &["flush_tlb"],
        "the sender shares its memory with a task here: no mmap, munmap or mprotect while it runs, or mlockall first",
    ),
    (&["rcu_exp_", "rcu_exp_handler"], "sysctl-like switch /sys/kernel/rcu_normal = 1: no expedited grace periods"),
    (
        &["__rdmsr_on_cpu", "__wrmsr_on_cpu", "__cpuid_smp", "aperfmperf_", "snapshot_"],
        "stop the tool that reads this CPU's registers (turbostat, monitoring, /proc/cpuinfo)",
    ),
    (&["__perf_", "remote_function", "perf_"], "no perf events on this CPU; kernel.nmi_watchdog=0"),
    (&["retrigger_next_event", "clock_was_set"], "the clock was stepped: let the time daemon slew only"),
    (&["invalidate_bh_lru"], "no BLKFLSBUF or unmount while the real-time work runs"),
    (&["netdev_", "flush_backlog"], "no network device is to be removed while the real-time work runs"),
    (&["cpu_stopper", "multi_cpu_stop"], "stop_machine or migration: see the sender"),
];

/// Kernel threads by the begin of their name.
pub(super) const THREADS: [(&str, &str); 5] = [
    ("rcuc/", RCU),
    ("rcuo", "pin RCU's callback threads to housekeeping CPUs: `entrain isolate check --fix`"),
    ("migration/", "somebody moves tasks or stops machines: see the sender"),
    ("irq/", IRQ),
    ("cpuhp/", "no CPU hotplug while the real-time work runs"),
];

/// Kernel threads that do what other lines tell.
pub(super) const ERRANDS: [(&str, &str); 3] = [
    ("ksoftirqd/", "see the softirqs of this CPU"),
    ("ktimers/", "see the timers of this CPU: what runs here arms them"),
    ("kworker/", "see the work items of this CPU"),
];

/// Softirqs by number (include/linux/interrupt.h): name and what to do.
pub(super) const SOFTIRQS: [(&str, Option<&str>); 10] = [
    ("HI", None),
    ("TIMER", Some("what runs here arms timers; those of others stay away with nohz_full=CPUS")),
    ("NET_TX", Some("steer transmit queues (XPS) to housekeeping CPUs")),
    ("NET_RX", Some("steer receive queues: affinity of the device's interrupts, RPS")),
    ("BLOCK", Some("isolcpus=managed_irq,CPUS at boot")),
    ("IRQ_POLL", None),
    ("TASKLET", Some("move the device's interrupt: /proc/irq/NUMBER/smp_affinity_list")),
    ("SCHED", Some("no load balancing here: isolcpus=domain,CPUS, or an isolated cpuset partition")),
    ("HRTIMER", None),
    ("RCU", Some("boot with rcu_nocbs=CPUS")),
];
