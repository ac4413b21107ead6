//! What the module was written for: PREEMPT_RT of Linux 7.3 and 6.12, on x86_64 and arm64.
//!
//! `module/layout.h` holds the same sizes and offsets as assertions; a test compares the two.

/// A kernel series whose functions were read and found to do what the replacements do.
#[derive(Debug)]
pub struct Series {
    /// How its releases begin.
    pub prefix: &'static str,
    /// What its slab allocator keeps for each CPU.
    slabs: Slabs,
}

/// What slub keeps for each CPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slabs {
    /// A slab and its free objects (`struct kmem_cache_cpu`).
    CpuSlab,
    /// Arrays of objects (`struct slub_percpu_sheaves`).
    Sheaves,
}

/// All of them.
pub const SERIES: &[Series] =
    &[Series { prefix: "7.3.", slabs: Slabs::Sheaves }, Series { prefix: "6.12.", slabs: Slabs::CpuSlab }];

/// The series that a release belongs to.
pub fn series(release: &str) -> Option<&'static Series> {
    SERIES.iter().find(|series| release.starts_with(series.prefix))
}

/// An architecture, as the configuration names it.
#[derive(Debug)]
pub struct Arch {
    /// `CONFIG_` of it.
    pub option: &'static str,
    /// What a configuration must have set to `y` beside [`CONFIG_ON`], for more than the replacement at once (`--hot`).
    pub livepatch: bool,
    /// What it must not have.
    pub off: &'static [&'static str],
}

/// Those that are known. Linux 7.3 has a livepatch for arm64; Debian's configuration leaves it out.
pub const ARCHES: &[Arch] = &[
    Arch { option: "X86_64", livepatch: true, off: &[] },
    // The calls into the kernel's private functions go through pointers there, and those begin with no BTI.
    Arch { option: "ARM64", livepatch: false, off: &["ARM64_BTI_KERNEL"] },
];

/// The configuration must have these set to `y`.
pub const CONFIG_ON: &[&str] = &["PREEMPT_RT", "SMP", "KPROBES", "KALLSYMS_ALL", "DYNAMIC_FTRACE_WITH_ARGS"];

/// The configuration must not have these: they change the layouts or the locking.
pub const CONFIG_OFF: &[&str] = &["SLUB_TINY", "SLUB_STATS", "MEM_ALLOC_PROFILING_DEBUG", "RANDSTRUCT_FULL", "CFI"];

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
pub fn layouts(lock: u32, series: &Series) -> Vec<Layout> {
    let of = |name, size, members: &[(&'static str, u32)]| Layout { name, size, members: members.to_vec() };
    let mut all = vec![
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
    ];
    match series.slabs {
        Slabs::Sheaves => all.extend([
            of("slab_sheaf", 32, &[("cache", 16), ("size", 24), ("node", 28), ("objects", 32)]),
            of(
                "slub_percpu_sheaves",
                24 + lock,
                &[("lock", 0), ("main", lock), ("spare", lock + 8), ("rcu_free", lock + 16)],
            ),
            of("kmem_cache", 0, &[("cpu_sheaves", 0), ("flags", 8), ("sheaf_capacity", 44)]),
            // What follows the slots tells how many there are.
            of("memcg_stock_pcp", 0, &[("lock", 0), ("cached", lock + 8), ("work", lock + 64)]),
            of("obj_stock_pcp", 0, &[("lock", 0), ("cached", lock + 24), ("work", lock + 64)]),
        ]),
        Slabs::CpuSlab => all.extend([
            // What comes first has no name: the list of free objects and the id of a transaction.
            of("kmem_cache_cpu", 32 + lock, &[("slab", 16), ("partial", 24), ("lock", 32)]),
            of("kmem_cache", 0, &[("cpu_slab", 0)]),
            of("memcg_stock_pcp", 0, &[("stock_lock", 0), ("cached", lock), ("cached_objcg", lock + 16)]),
        ]),
    }
    all
}

/// A function of the kernel with its prototype, as [`crate::shape`] writes it.
pub type Function = (&'static str, &'static str);

/// Functions that are called or replaced in every series.
const COMMON: &[Function] = &[
    ("lru_add_drain_all", "void()"),
    ("lru_cache_disable", "void()"),
    ("flush_all_cpus_locked", "void(struct kmem_cache*)"),
    ("vmstat_refresh", "int(const struct ctl_table*, int, void*, size_t*, loff_t*)"),
    ("lru_add_drain", "void()"),
    ("lru_add_drain_cpu", "void(int)"),
    ("mlock_folio_batch", "void(struct folio_batch*)"),
    ("has_bh_in_lru", "bool(int, void*)"),
    ("invalidate_bh_lrus_cpu", "void()"),
    ("refresh_vm_stats", "void(struct work_struct*)"),
    ("kallsyms_lookup_name", "long unsigned int(const char*)"),
];

const OF_SHEAVES: &[Function] = &[
    ("flush_rcu_sheaves_on_cache", "void(struct kmem_cache*)"),
    ("rcu_free_sheaf_nobarn", "void(struct callback_head*)"),
    ("kmem_cache_return_sheaf", "void(struct kmem_cache*, gfp_t, struct slab_sheaf*)"),
];

const OF_CPU_SLABS: &[Function] = &[
    ("deactivate_slab", "void(struct kmem_cache*, struct slab*, void*)"),
    ("__put_partials", "void(struct kmem_cache*, struct slab*)"),
];

/// Functions that are replaced by name, for all of their callers: the compiler must have left them in one piece.
const REPLACED: &[&str] = &["lru_add_drain_all", "lru_cache_disable", "flush_all_cpus_locked"];

impl Series {
    /// The functions that are replaced or called.
    pub fn functions(&self) -> impl Iterator<Item = &'static Function> + use<> {
        let own = match self.slabs {
            Slabs::Sheaves => OF_SHEAVES,
            Slabs::CpuSlab => OF_CPU_SLABS,
        };
        COMMON.iter().chain(own)
    }

    /// Functions that the module can do without. Where they are, they must be these.
    pub fn optional(&self) -> &'static [Function] {
        match self.slabs {
            Slabs::Sheaves => &[
                ("drain_stock", "void(struct memcg_stock_pcp*, int)"),
                ("drain_obj_stock_slot", "void(struct obj_stock_pcp*, int)"),
            ],
            Slabs::CpuSlab => &[
                ("drain_stock", "void(struct memcg_stock_pcp*)"),
                ("drain_obj_stock", "struct obj_cgroup*(struct memcg_stock_pcp*)"),
            ],
        }
    }

    /// Those that are replaced by name.
    pub fn replaced(&self) -> impl Iterator<Item = &'static str> + use<> {
        let own = (self.slabs == Slabs::Sheaves).then_some("flush_rcu_sheaves_on_cache");
        REPLACED.iter().copied().chain(own)
    }
}

/// Variables that the module looks for and can do without: then charges of memory cgroups stay in isolated CPUs' stocks.
pub const OPTIONAL: &[&str] = &["memcg_stock", "obj_stock"];

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
            let locks = &header[header.find("#ifdef CONFIG_DEBUG_LOCK_ALLOC\n").unwrap()..];
            let after = locks.split(&format!("#{given}\n")).nth(1).unwrap();
            let line = after.lines().find(|line| line.starts_with("#define")).unwrap();
            assert_eq!(line, format!("#define LOCK_BYTES {lock}"));
            for layout in SERIES
                .iter()
                .flat_map(|series| layouts(lock, series))
                .filter(|l| header.contains(&format!("struct {} {{", l.name)) && l.size > 0)
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
        let functions = || SERIES.iter().flat_map(Series::functions);
        for (name, _) in functions() {
            assert!(text.contains(&format!("\"{name}\"")), "{name} is checked but not used");
        }
        for part in text.split("qpw_symbol(\"").skip(1).chain(text.split("\t{\"").skip(1)) {
            let name = part.split('"').next().unwrap();
            let known = VARIABLES.iter().chain(OPTIONAL).any(|v| *v == name) || functions().any(|(f, _)| *f == name);
            assert!(known, "{name} is not checked");
        }
    }

    #[test]
    fn a_series_is_told_by_the_whole_number() {
        let prefix = |release| series(release).map(|s| s.prefix);
        assert_eq!(prefix("6.12.117+deb13-rt-amd64"), Some("6.12."));
        assert_eq!(prefix("7.3.4+deb13-rt-arm64"), Some("7.3."));
        assert_eq!([prefix("6.1.2-rt"), prefix("7.30.1"), prefix("7.2.12+deb13-rt-amd64")], [None; 3]);
    }
}
