//! What the module was written for: Linux 7.3 with PREEMPT_RT on x86_64.
//!
//! `module/layout.h` holds the same sizes and offsets as assertions; a test compares the two.

/// Kernel series whose functions were read and found to do what the replacements do.
pub const SERIES: &[&str] = &["7.3."];

/// The configuration must have these set to `y`.
pub const CONFIG_ON: &[&str] =
    &["PREEMPT_RT", "X86_64", "SMP", "LIVEPATCH", "KPROBES", "KALLSYMS_ALL", "DYNAMIC_FTRACE_WITH_ARGS"];

/// The configuration must not have these: they change the layouts or the locking.
pub const CONFIG_OFF: &[&str] = &["SLUB_TINY", "MEM_ALLOC_PROFILING_DEBUG", "RANDSTRUCT_FULL", "CFI"];

/// `sizeof(local_lock_t)`, bytes.
pub const LOCK: u32 = 32;
/// The same in a kernel with lockdep (`CONFIG_PROVE_LOCKING`, without `CONFIG_LOCK_STAT`).
pub const LOCKDEP_LOCK: u32 = 128;

/// A private structure of mm/: its size in bytes, and its members' names and offsets in bytes.
#[derive(Debug)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// Its size, bytes. 0: not compared, the module knows only the first members.
    pub size: u32,
    /// The members that the module names, with their offset in bytes.
    pub members: Vec<(&'static str, u32)>,
}

/// The structures of `module/layout.h`, and those that the kernel's headers show but the layouts rest on, where a local lock has
/// `lock` bytes.
pub fn layouts(lock: u32) -> Vec<Layout> {
    let of = |name, size, members: &[(&'static str, u32)]| Layout { name, size, members: members.to_vec() };
    vec![
        of("spinlock", lock, &[]),
        of("folio_batch", 256, &[("nr", 0), ("folios", 8)]),
        of(
            "cpu_fbatches",
            1536 + 2 * lock,
            &[
                ("lock", 0),
                ("lru_add", lock),
                ("lru_deactivate_file", lock + 256),
                ("lru_deactivate", lock + 512),
                ("lru_lazyfree", lock + 768),
                ("lru_activate", lock + 1024),
                ("lock_irq", lock + 1280),
                ("lru_move_tail", 2 * lock + 1280),
            ],
        ),
        of("mlock_fbatch", 256 + lock, &[("lock", 0), ("fbatch", lock)]),
        of("slab_sheaf", 32, &[("cache", 16), ("size", 24), ("node", 28), ("objects", 32)]),
        of(
            "slub_percpu_sheaves",
            24 + lock,
            &[("lock", 0), ("main", lock), ("spare", lock + 8), ("rcu_free", lock + 16)],
        ),
        of("kmem_cache", 0, &[("cpu_sheaves", 0), ("flags", 8), ("sheaf_capacity", 44)]),
    ]
}

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

    /// The C assertions and the table here must not drift apart, whatever a lock's size.
    #[test]
    fn sizes_agree_with_the_modules_assertions() {
        let header = include_str!("../module/layout.h");
        for (given, lock) in [("ifdef CONFIG_DEBUG_LOCK_ALLOC", LOCKDEP_LOCK), ("else", LOCK)] {
            let after = header.split(&format!("#{given}\n")).nth(1).unwrap();
            let line = after.lines().find(|line| line.starts_with("#define")).unwrap();
            assert_eq!(line, format!("#define LOCK_BYTES {lock}"));
            for layout in
                layouts(lock).iter().filter(|l| header.contains(&format!("struct {} {{", l.name)) && l.size > 0)
            {
                let start = format!("static_assert(sizeof(struct {}) == ", layout.name);
                let sum = header.split(&start).nth(1).expect(&start).split(");").next().unwrap();
                let size: u32 = sum.split(" + ").map(|part| size_of(part, lock)).sum();
                assert_eq!(size, layout.size, "{}", layout.name);
            }
        }
    }

    /// A part of a sum in `layout.h`: a number, `LOCK_BYTES`, or a number of them.
    fn size_of(part: &str, lock: u32) -> u32 {
        part.split(" * ").map(|factor| if factor == "LOCK_BYTES" { lock } else { factor.parse().unwrap() }).product()
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
