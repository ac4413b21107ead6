//! The clock that BPF programs read.

/// CLOCK_MONOTONIC as `bpf_ktime_get_ns` has it, ns.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
