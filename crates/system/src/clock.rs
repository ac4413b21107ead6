//! The clock of BPF's times.

/// CLOCK_MONOTONIC in ns, which is what `bpf_ktime_get_ns` reads: times of BPF programs can be compared with it. It does
/// not go on while the machine is suspended.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One moment by three clocks of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The CPU's counter (TSC; on arm64 the virtual counter), which a guest's is a fixed number behind its host's.
    pub counter: u64,
    /// CLOCK_MONOTONIC, ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME, ns: Perfetto's own clock.
    pub boottime_ns: u64,
}

/// Now. The counter is read between two looks at the clock, several times: the closest pair counts.
pub fn moment() -> Moment {
    let read = |_| {
        let before = monotonic_ns();
        let counter = counter();
        let after = monotonic_ns();
        (after - before, Moment { counter, monotonic_ns: before + (after - before) / 2, boottime_ns: 0 })
    };
    let (_, moment) = (0..16).map(read).min_by_key(|(took, _)| *took).unwrap_or_default();
    let boottime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ahead = (boottime.tv_sec as u64 * 1_000_000_000 + boottime.tv_nsec as u64).saturating_sub(monotonic_ns());
    Moment { boottime_ns: moment.monotonic_ns + ahead, ..moment }
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: Linux lets every process read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: a register that Linux lets every process read.
    unsafe {
        core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
    }
    ticks
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_counter_goes_on_with_the_clock() {
        let first = super::moment();
        let second = super::moment();
        assert!(second.counter > first.counter && second.monotonic_ns > first.monotonic_ns);
        assert!(first.boottime_ns >= first.monotonic_ns);
    }

    #[test]
    fn it_goes_on() {
        let first = super::monotonic_ns();
        assert!(first > 0 && super::monotonic_ns() >= first);
    }
}
