//! Clocks: the system's monotonic one, and the CPU's own counter (TSC, CNTVCT) that no host can delay.

pub(crate) use entrain_system::monotonic_ns as now_ns;

/// The CPU's counter, read in program order.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cycles() -> u64 {
    // SAFETY: both instructions are part of the x86-64 baseline; the lfence keeps the read from moving up.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

/// The CPU's counter, read in program order.
#[cfg(target_arch = "aarch64")]
pub(crate) fn cycles() -> u64 {
    let value: u64;
    // SAFETY: Linux lets user mode read the virtual counter; the isb keeps the read from moving up.
    unsafe { std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}

/// The counter and the monotonic clock at the same moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// The counter.
    pub(crate) cycles: u64,
    /// The monotonic clock in nanoseconds.
    pub(crate) ns: u64,
}

impl Pair {
    /// Reads both; of several tries it keeps the one in which the two readings lay closest together, since a
    /// preemption between them would falsify the pair.
    pub(crate) fn read() -> Self {
        (0..16)
            .map(|_| {
                let before = now_ns();
                let cycles = cycles();
                let after = now_ns();
                (after - before, Self { cycles, ns: before + (after - before) / 2 })
            })
            .min_by_key(|(width, _)| *width)
            .expect("the range is not empty")
            .1
    }

    /// Counter steps per nanosecond between two pairs, at best some milliseconds apart.
    pub(crate) fn cycles_per_ns(self, later: Self) -> f64 {
        (later.cycles - self.cycles) as f64 / (later.ns - self.ns) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_keeps_step_with_the_clock() {
        let a = Pair::read();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let b = Pair::read();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let c = Pair::read();
        let (first, second) = (a.cycles_per_ns(b), b.cycles_per_ns(c));
        assert!(first > 0.0);
        // 2 %: enough to catch a wrong counter or unit on a machine that is busy with other things.
        assert!((first / second - 1.0).abs() < 0.02, "{first} and {second} counter steps per ns");
    }
}
