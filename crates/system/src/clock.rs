//! The clock of BPF's times.

/// CLOCK_MONOTONIC in ns, which is what `bpf_ktime_get_ns` reads: times of BPF programs can be compared with it. It does
/// not go on while the machine is suspended.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_goes_on() {
        let first = super::monotonic_ns();
        assert!(first > 0 && super::monotonic_ns() >= first);
    }
}
