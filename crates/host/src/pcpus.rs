//! Tells BPF what the pCPUs are.

use entrain_system::Root;

use crate::cpus;
use crate::programs::Programs;

/// Where that is known from.
#[derive(Debug)]
pub(crate) struct Pcpus {
    /// The kernel counts performance levels, so cpufreq is not asked.
    pub(crate) counted: bool,
    /// Capacity of each pCPU (0..=1024) instead of the kernel's, for emulated ones; empty = the kernel's.
    pub(crate) capacities: Vec<u32>,
}

impl Pcpus {
    /// Reads them, and tells BPF.
    pub(crate) fn tell(&self, programs: &Programs) {
        for (index, cpu) in cpus::read(&Root::live()).iter().enumerate().take(programs.pcpus.entries()) {
            let entry = programs.pcpus.at(index);
            let capacity = self.capacities.get(index).copied().unwrap_or(cpu.capacity);
            // SAFETY: aligned fields inside the table; BPF only reads them, but for `perf` where the kernel counts.
            unsafe {
                (&raw mut (*entry).domain).write_volatile(cpu.domain);
                (&raw mut (*entry).capacity).write_volatile(if cpu.online { capacity } else { 0 });
                if !self.counted {
                    (&raw mut (*entry).perf).write_volatile(cpu.level);
                }
            }
        }
    }
}
