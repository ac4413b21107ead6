//! What the module was written for: Linux 7.3 with PREEMPT_RT on x86_64.
//!
//! `module/layout.h` holds the same sizes and offsets as assertions; a test compares the two.

/// Kernel series whose functions were read and found to do what the replacements do.
pub const SERIES: &[&str] = &["7.3."];

/// The configuration must have these set to `y`.
pub const CONFIG_ON: &[&str] =
    &["PREEMPT_RT", "X86_64", "SMP", "LIVEPATCH", "KPROBES", "KALLSYMS_ALL", "DYNAMIC_FTRACE_WITH_ARGS"];

/// The configuration must not have these: they change the layouts or the locking.
pub const CONFIG_OFF: &[&str] = &["DEBUG_LOCK_ALLOC", "SLUB_TINY", "RANDSTRUCT_FULL", "CFI"];

/// A private structure of mm/: its size in bytes, and its members' names and offsets in bits.
#[derive(Debug)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// Its size, bytes. 0: not compared, the module knows only the first members.
    pub size: usize,
    /// The members that the module names, with their offset in bits.
    pub members: &'static [(&'static str, u32)],
}

/// The structures of `module/layout.h`, and those that the kernel's headers show but the layouts rest on.
pub const LAYOUTS: &[Layout] = &[
    Layout { name: "spinlock", size: 32, members: &[] },
    Layout { name: "folio_batch", size: 256, members: &[("nr", 0), ("folios", 64)] },
    Layout {
        name: "cpu_fbatches",
        size: 1600,
        members: &[
            ("lock", 0),
            ("lru_add", 256),
            ("lru_deactivate_file", 2304),
            ("lru_deactivate", 4352),
            ("lru_lazyfree", 6400),
            ("lru_activate", 8448),
            ("lock_irq", 10496),
            ("lru_move_tail", 10752),
        ],
    },
    Layout { name: "mlock_fbatch", size: 288, members: &[("lock", 0), ("fbatch", 256)] },
    Layout { name: "slab_sheaf", size: 32, members: &[("cache", 128), ("size", 192), ("node", 224), ("objects", 256)] },
    Layout {
        name: "slub_percpu_sheaves",
        size: 56,
        members: &[("lock", 0), ("main", 256), ("spare", 320), ("rcu_free", 384)],
    },
    Layout { name: "kmem_cache", size: 0, members: &[("cpu_sheaves", 0), ("flags", 64), ("sheaf_capacity", 352)] },
];

/// The functions that are replaced or called, with their prototypes as [`crate::shape`] writes them.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("lru_add_drain_all", "void()"),
    ("lru_cache_disable", "void()"),
    ("flush_all_cpus_locked", "void(struct kmem_cache*)"),
    ("flush_rcu_sheaves_on_cache", "void(struct kmem_cache*)"),
    ("vmstat_refresh", "int(const struct ctl_table*, int, void*, size_t*, loff_t*)"),
    ("lru_add_drain", "void()"),
    ("lru_add_drain_cpu", "void(int)"),
    ("mlock_folio_batch", "void(struct folio_batch*)"),
    ("has_bh_in_lru", "bool(int, void*)"),
    ("invalidate_bh_lrus_cpu", "void()"),
    ("rcu_free_sheaf_nobarn", "void(struct callback_head*)"),
    ("kmem_cache_return_sheaf", "void(struct kmem_cache*, gfp_t, struct slab_sheaf*)"),
    ("refresh_vm_stats", "void(struct work_struct*)"),
    ("kallsyms_lookup_name", "long unsigned int(const char*)"),
];

/// Functions that are replaced by name, for all of their callers: the compiler must have left them in one piece.
pub const REPLACED: &[&str] =
    &["lru_add_drain_all", "lru_cache_disable", "flush_all_cpus_locked", "flush_rcu_sheaves_on_cache"];

/// Variables that the module finds by name.
pub const VARIABLES: &[&str] = &["cpu_fbatches", "mlock_fbatch", "lru_disable_count", "mm_percpu_wq"];

/// Where work on isolated CPUs is left as it is.
#[derive(Debug, serde::Serialize)]
pub struct Remaining {
    /// What starts it.
    pub trigger: &'static str,
    /// Why the module leaves it.
    pub why: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

/// What still queues work on, or interrupts, an isolated CPU.
pub const REMAINING: &[Remaining] = &[
    Remaining {
        trigger: "reading or writing /proc/sys/vm/stat_refresh",
        why: "the counters have no lock that another CPU could take",
        advice: "load with --skip-stats, or keep programs from using it",
    },
    Remaining {
        trigger: "setting vm.overcommit_memory to 2",
        why: "the sum must be exact before the strict policy holds, and only its own CPU may change a CPU's part",
        advice: "set it at boot (sysctl.d), before the real-time load starts",
    },
    Remaining {
        trigger: "charges of a memory cgroup that lie in an isolated CPU's stock (not a disturbance: they stay there)",
        why: "the compiler split drain_all_stock(), so replacing it would not reach its callers",
        advice: "leave a cgroup with real-time tasks some MiB below its limit",
    },
    Remaining {
        trigger: "buffer heads that a CPU cached before it was isolated",
        why: "they are guarded by disabled interrupts, not by a lock",
        advice: "isolate CPUs at boot (isolcpus=), then there are none",
    },
    Remaining {
        trigger: "kernel text patching (loading this module, static keys, ftrace), TLB flushes of vmalloc, membarrier",
        why: "IPIs, not work",
        advice: "load modules and start tracing before the real-time load starts",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The C assertions and the table here must not drift apart.
    #[test]
    fn sizes_agree_with_the_modules_assertions() {
        let header = include_str!("../module/layout.h");
        for layout in LAYOUTS.iter().filter(|l| header.contains(&format!("struct {} {{", l.name)) && l.size > 0) {
            let assertion = format!("static_assert(sizeof(struct {}) == {});", layout.name, layout.size);
            assert!(header.contains(&assertion), "{assertion}");
        }
    }

    #[test]
    fn every_symbol_of_the_module_is_checked() {
        let sources = crate::source::FILES.iter().filter(|(name, _)| name.ends_with(".c")).map(|(_, text)| *text);
        let text: String = sources.collect();
        for (name, _) in FUNCTIONS {
            assert!(text.contains(&format!("\"{name}\"")), "{name} is checked but not used");
        }
        for part in text.split("qpw_symbol(\"").skip(1).chain(text.split(".old_name = \"").skip(1)) {
            let name = part.split('"').next().unwrap();
            assert!(VARIABLES.contains(&name) || FUNCTIONS.iter().any(|(f, _)| *f == name), "{name} is not checked");
        }
    }
}
