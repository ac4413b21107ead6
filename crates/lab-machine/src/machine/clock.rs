//! CPU time of the emulator's vCPU threads, from /proc.
use std::{fs, path::Path};

use rustix::process::Pid;

use super::CpuClock;

/// Reads the clock of process `pid` below `proc`. What vanishes meanwhile counts nothing.
pub(super) fn read(proc: &Path, pid: Pid) -> CpuClock {
    let mut clock = CpuClock { steal_ns: steal_ns(proc), capacity_ns: capacity_ns(), ..CpuClock::default() };
    let Ok(tasks) = fs::read_dir(proc.join(pid.as_raw_pid().to_string()).join("task")) else { return clock };
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        // QEMU names them "CPU 0/TCG", "CPU 0/KVM".
        if !read("comm").starts_with("CPU ") {
            continue;
        }
        let schedstat = read("schedstat");
        let mut fields = schedstat.split_whitespace().map(|f| f.parse::<u64>().unwrap_or(0));
        clock.ran_ns += fields.next().unwrap_or(0);
        clock.waited_ns += fields.next().unwrap_or(0);
    }
    clock
}

/// What the CPUs that this process may use could have given since some moment.
fn capacity_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    cpus * (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Steal time of the development machine itself: the eighth value of /proc/stat's line "cpu".
fn steal_ns(proc: &Path) -> u64 {
    let text = fs::read_to_string(proc.join("stat")).unwrap_or_default();
    let ticks: u64 = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8))
        .and_then(|field| field.parse().ok())
        .unwrap_or(0);
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_threads_are_summed_and_others_left_out() {
        let proc = tempfile::tempdir().unwrap();
        fs::write(proc.path().join("stat"), "cpu  1 2 3 4 5 6 7 50 0 0\ncpu0 …\n").unwrap();
        for (tid, comm, stat) in [(7, "qemu", "900 900 1"), (8, "CPU 0/TCG", "100 10 3"), (9, "CPU 1/TCG", "200 20 3")]
        {
            let task = proc.path().join(format!("7/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), comm).unwrap();
            fs::write(task.join("schedstat"), stat).unwrap();
        }
        let clock = read(proc.path(), Pid::from_raw(7).unwrap());
        assert_eq!((clock.ran_ns, clock.waited_ns), (300, 30));
        assert_eq!(clock.steal_ns, 50 * (1_000_000_000 / rustix::param::clock_ticks_per_second()));
        let later = CpuClock { ran_ns: 1200, waited_ns: 130, ..clock };
        assert!((later.share_since(&clock) - 0.9).abs() < 1e-9);
    }

    #[test]
    fn emulated_cpus_that_wait_for_one_another_are_not_disturbed() {
        let before = CpuClock { capacity_ns: 1_000, ..CpuClock::default() };
        // Eight threads on two CPUs for 1,000 ns of time, alone: each ran a quarter and waited the rest.
        let alone = CpuClock { ran_ns: 2_000, waited_ns: 6_000, steal_ns: 0, capacity_ns: 3_000 };
        assert_eq!(alone.share_since(&before), 1.0);
        let beside = CpuClock { ran_ns: 1_000, waited_ns: 7_000, ..alone };
        assert_eq!(beside.share_since(&before), 0.5);
        let stolen = CpuClock { steal_ns: 500, ..alone };
        assert_eq!(stolen.share_since(&before), 0.8);
    }
}
