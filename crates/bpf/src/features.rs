//! What the running kernel can do, probed once into named booleans.

use entrain_system::Root;
use entrain_system::kallsyms::symbols;

use crate::btf::BtfNames;

/// The kernel's lockdown mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// No restriction, or a kernel without lockdown.
    None,
    /// The kernel may not be modified: BPF may still read it.
    Integrity,
    /// The kernel's memory may not be read either: BPF observation does not work.
    Confidentiality,
}

/// Features of the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Type information of the kernel is there (CONFIG_DEBUG_INFO_BTF).
    pub btf: bool,
    /// BPF may call a function so many times (since 5.17): the one loop that all kernels in question have.
    pub bpf_loop: bool,
    /// BPF may hold user memory in task storage (since 6.13): how host BPF sees guest pages.
    pub task_uptr: bool,
    /// Schedulers in BPF (CONFIG_SCHED_CLASS_EXT, since 6.12).
    pub sched_ext: bool,
    /// sched_ext has what the guest's scheduler calls (since 6.19).
    pub schedules_guest: bool,
    /// sched_ext has what the host's scheduler calls (7.3 has it).
    pub schedules_host: bool,
    /// KVM is loaded or built in, with type information.
    pub kvm: bool,
    /// KVM's tracepoint of hypercalls: the doorbell of x86.
    pub kvm_hypercall: bool,
    /// KVM's tracepoint of trapped `wfi` and `wfe`: the doorbell of arm64.
    pub kvm_wfx: bool,
    /// KVM's tracepoint of timers that are saved as a vCPU leaves its CPU (arm64).
    pub kvm_timer: bool,
    /// The kernel keeps each CPU's performance level, and its address can be found.
    pub freq_scale: bool,
    /// cpufreq's tracepoint of changes.
    pub cpu_frequency: bool,
    /// Lockdown mode.
    pub lockdown: Lockdown,
    /// All capabilities that the daemon needs are effective: SYS_ADMIN, SYS_PTRACE, BPF, PERFMON.
    pub capable: bool,
}

/// Functions of sched_ext without which the guest's scheduler does not load.
const GUEST_CALLS: [&str; 2] = ["scx_bpf_dsq_peek", "scx_bpf_task_set_slice"];
/// Those that the host's needs, too; the last one says that setting a limit may wait for memory.
const HOST_CALLS: [&str; 3] =
    ["scx_bpf_tid_to_task", "scx_bpf_cpu_curr", "scx_compat_marker_cgroup_set_bandwidth_may_sleep"];

/// Bits of capabilities(7).
const CAPABILITIES: [u32; 4] =
    [21 /* SYS_ADMIN */, 19 /* SYS_PTRACE */, 39 /* BPF */, 38 /* PERFMON */];

impl Features {
    /// Probes the running kernel.
    pub fn probe() -> Self {
        Self::probe_in(&Root::live())
    }

    /// Probes the kernel as `root`'s `/proc` and `/sys` show it.
    pub fn probe_in(root: &Root) -> Self {
        let names = BtfNames::read(&root.path("sys/kernel/btf"), &["kvm"]);
        let has = |name| names.as_ref().is_some_and(|names| names.has(name));
        Self {
            btf: names.is_some(),
            bpf_loop: has("BPF_FUNC_loop"),
            task_uptr: has("BPF_UPTR"),
            sched_ext: has("sched_ext_ops"),
            schedules_guest: GUEST_CALLS.iter().all(|name| has(name)),
            schedules_host: GUEST_CALLS.iter().chain(&HOST_CALLS).all(|name| has(name)),
            kvm: has("nr_memslots_dirty_logging") || has("created_vcpus"),
            kvm_hypercall: has("btf_trace_kvm_hypercall"),
            kvm_wfx: has("btf_trace_kvm_wfx_arm64"),
            kvm_timer: has("btf_trace_kvm_timer_save_state"),
            freq_scale: has("arch_freq_scale") && has_symbol(root, "arch_freq_scale"),
            cpu_frequency: has("btf_trace_cpu_frequency"),
            lockdown: lockdown(root),
            capable: capable(root),
        }
    }

    /// What stands in the way of observing, in plain words; empty when nothing does.
    pub fn missing_for_observe(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        let mut need = |there: bool, text| {
            if !there {
                missing.push(text);
            }
        };
        need(self.capable, "root's capabilities (SYS_ADMIN, SYS_PTRACE, BPF, PERFMON): run as root");
        need(self.btf, "the kernel's type information: use a kernel built with CONFIG_DEBUG_INFO_BTF");
        need(!self.btf || self.bpf_loop, "loops in BPF: use Linux 6.1 or newer");
        need(!self.btf || self.kvm, "KVM: load its module (kvm_intel or kvm_amd), or boot arm64 at EL2");
        need(
            self.lockdown != Lockdown::Confidentiality,
            "reading kernel memory: lockdown is in confidentiality mode, boot with lockdown=integrity or none",
        );
        missing
    }

    /// Why a host with this kernel cannot pair with guests, in plain words; it observes all the same.
    pub fn missing_for_pairing(&self) -> Option<&'static str> {
        (!self.task_uptr).then_some(NO_UPTR)
    }
}

/// Why no guest can be paired on a kernel without `task_uptr`.
const NO_UPTR: &str = "its BPF holds no user memory in task storage (Linux 6.13 and newer do)";

/// Whether the kernel itself, not a module, lists a symbol of this name.
fn has_symbol(root: &Root, name: &str) -> bool {
    let text = root.text("proc/kallsyms").unwrap_or_default();
    symbols(&text).any(|symbol| symbol.module.is_none() && symbol.name == name)
}

fn lockdown(root: &Root) -> Lockdown {
    match root.chosen("sys/kernel/security/lockdown").as_deref() {
        Some("integrity") => Lockdown::Integrity,
        Some("confidentiality") => Lockdown::Confidentiality,
        _ => Lockdown::None,
    }
}

fn capable(root: &Root) -> bool {
    let text = root.text("proc/self/status").unwrap_or_default();
    let effective = text.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|caps| CAPABILITIES.iter().all(|&bit| caps & (1 << bit) != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::{Machine, tree};

    fn fake(status: &str, lockdown: &str) -> (Machine, Root) {
        tree(&[
            ("proc/self/status", status),
            ("sys/kernel/security/lockdown", lockdown),
            ("proc/kallsyms", "ffff0 D arch_freq_scale\nffff1 t kvm_init\t[kvm]\n"),
        ])
    }

    #[test]
    fn a_bare_kernel_lacks_everything_and_says_so() {
        let (_machine, root) = fake("CapEff:\t0000000000000000\n", "none integrity [confidentiality]\n");
        let features = Features::probe_in(&root);
        assert!(!features.btf && !features.capable);
        assert_eq!(features.lockdown, Lockdown::Confidentiality);
        let missing = features.missing_for_observe();
        assert_eq!(missing.len(), 3, "{missing:?}");
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let (_machine, root) = fake("CapEff:\t000001ffffffffff\n", "[none] integrity confidentiality\n");
        let features = Features::probe_in(&root);
        assert!(features.capable);
        assert_eq!(features.lockdown, Lockdown::None);
        assert!(has_symbol(&root, "arch_freq_scale") && !has_symbol(&root, "arch_freq"));
    }
}
