//! On which CPU a thread runs.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to one CPU, on which it runs when this returns.
///
/// # Errors
/// When that CPU is offline, or not there.
pub(crate) fn bind(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
