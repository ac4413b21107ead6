//! `/proc/stat`: CPU time by kind, and context switches.

use super::ProbeError;
use entrain_system::Root;
use serde::{Deserialize, Serialize};

/// CPU time of all CPUs since boot in nanoseconds. The kernel counts it in steps of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// User mode, nice included.
    pub user_ns: u64,
    /// Kernel mode, interrupts included.
    pub system_ns: u64,
    /// Idle, waiting for I/O included.
    pub idle_ns: u64,
    /// Runnable, but the hypervisor ran something else.
    pub steal_ns: u64,
    /// Running guests (part of `user_ns` too).
    pub guest_ns: u64,
}

/// The kernel reports in USER_HZ, which is 100 on every architecture that we run on.
const TICK_NS: u64 = 10_000_000;

pub(super) fn read(root: &Root) -> Result<(CpuTimes, u64), ProbeError> {
    let text = root.read("proc/stat")?;
    let form = |wanted| ProbeError::Form { path: root.path("proc/stat"), wanted };
    let numbers = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().map(|word| word.parse::<u64>().ok()).collect::<Option<Vec<u64>>>()
    };
    let cpu = numbers("cpu ").ok_or_else(|| form("line `cpu`"))?;
    let ticks = |index: usize| cpu.get(index).copied().unwrap_or(0) * TICK_NS;
    let times = CpuTimes {
        user_ns: ticks(0) + ticks(1),
        system_ns: ticks(2) + ticks(5) + ticks(6),
        idle_ns: ticks(3) + ticks(4),
        steal_ns: ticks(7),
        guest_ns: ticks(8) + ticks(9),
    };
    match numbers("ctxt ").as_deref() {
        Some([switches]) => Ok((times, *switches)),
        _ => Err(form("line `ctxt`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn kinds_of_time_are_told_apart() {
        let (_machine, root) = tree(&[(
            "proc/stat",
            "cpu  100 1 20 3000 4 5 6 70 8 9\ncpu0 100 1 20 3000 4 5 6 70 8 9\nintr 5 1\nctxt 4711\nbtime 1\n",
        )]);
        let (times, switches) = read(&root).unwrap();
        let ticks = |n: u64| n * TICK_NS;
        assert_eq!(switches, 4711);
        assert_eq!(
            times,
            CpuTimes {
                user_ns: ticks(101),
                system_ns: ticks(31),
                idle_ns: ticks(3004),
                steal_ns: ticks(70),
                guest_ns: ticks(17)
            }
        );
    }
}
