//! What /proc says about the load, the steal time and the pinned tasks of this guest. Every reader takes a root.

use std::collections::{BTreeMap, BTreeSet};

use entrain_system::{CpuSet, Root};

use crate::error::Result;

/// Nanoseconds in one tick of /proc/stat (USER_HZ is 100 on every architecture that Linux has kept).
const TICK_NS: u64 = 10_000_000;

/// CPU time since boot, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Work of any kind.
    pub ran: u64,
    /// Withheld by the host.
    pub stolen: u64,
}

/// The CPU time of every CPU that is online, by number.
fn cpu_times(root: &Root) -> Result<Vec<(u32, CpuTime)>> {
    Ok(root.read("proc/stat")?.lines().filter_map(cpu_line).collect())
}

/// `cpu3 user nice system idle iowait irq softirq steal …`
fn cpu_line(line: &str) -> Option<(u32, CpuTime)> {
    let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
    let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    let ran = at(0) + at(1) + at(2) + at(5) + at(6);
    Some((cpu, CpuTime { ran: ran * TICK_NS, stolen: at(7) * TICK_NS }))
}

/// Measures CPU time between two looks.
#[derive(Debug, Default)]
pub struct Meter {
    last: BTreeMap<u32, CpuTime>,
}

impl Meter {
    /// Of all CPUs since the last call; nothing at the first.
    pub fn read(&mut self, root: &Root) -> Result<CpuTime> {
        let mut spent = CpuTime::default();
        for (cpu, time) in cpu_times(root)? {
            // A CPU that was offline starts anew.
            let last = self.last.insert(cpu, time).unwrap_or(time);
            spent.ran += time.ran.saturating_sub(last.ran);
            spent.stolen += time.stolen.saturating_sub(last.stolen);
        }
        Ok(spent)
    }
}

/// Runnable tasks, this reader not counted.
pub fn runnable(root: &Root) -> Result<u32> {
    let text = root.read("proc/loadavg")?;
    let count = text.split_ascii_whitespace().nth(3).and_then(|field| field.split('/').next()?.parse::<u32>().ok());
    let count = count.ok_or_else(|| root.unexpected("proc/loadavg", &text))?;
    Ok(count.saturating_sub(1))
}

/// CPUs to which somebody has bound a thread of a program (not of the kernel): these are not parked.
///
/// Walks all threads; threads that end meanwhile are left out.
pub fn pinned_cpus(root: &Root) -> BTreeSet<u32> {
    let numbers =
        |path: &str| root.list(path).into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let tasks = numbers("proc").map(|pid| format!("proc/{pid}/task"));
    let threads = tasks.flat_map(|tasks| root.list(&tasks).into_iter().map(move |tid| format!("{tasks}/{tid}")));
    threads.filter_map(|thread| pinned(&root.text(format!("{thread}/status"))?)).collect()
}

/// The one CPU of a thread that may use no other.
fn pinned(status: &str) -> Option<u32> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // Threads of the kernel have no memory of their own; per-CPU ones stay on a parked CPU, and cost nothing idle.
    field("VmSize:")?;
    let allowed: CpuSet = field("Cpus_allowed_list:")?.parse().ok()?;
    allowed.first().filter(|_| allowed.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn steal_and_work_are_read_per_cpu() {
        let (_machine, root) =
            tree(&[("proc/stat", "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 10 1 2 500 9 3 4 70 0 0\ncpu2 1 0 0\nintr 5\n")]);
        let times = cpu_times(&root).expect("a stat file");
        assert_eq!(times[0], (0, CpuTime { ran: 20 * TICK_NS, stolen: 70 * TICK_NS }));
        assert_eq!(times[1], (2, CpuTime { ran: TICK_NS, stolen: 0 }));
        assert_eq!(times.len(), 2);
    }

    #[test]
    fn the_reader_itself_is_not_counted_as_runnable() {
        let (_machine, root) = tree(&[("proc/loadavg", "0.5 0.4 0.3 5/120 4711\n")]);
        assert_eq!(runnable(&root).expect("a loadavg file"), 4);
        let (_machine, broken) = tree(&[("proc/loadavg", "nonsense\n")]);
        assert!(runnable(&broken).is_err());
    }

    #[test]
    fn only_threads_of_programs_bound_to_one_cpu_count() {
        let status = |size: &str, cpus: &str| format!("Name:\tx\n{size}Cpus_allowed_list:\t{cpus}\n");
        let (_machine, root) = tree(&[
            ("proc/10/task/10/status", &status("VmSize:\t1 kB\n", "3")),
            ("proc/10/task/11/status", &status("VmSize:\t1 kB\n", "0-3")),
            ("proc/2/task/2/status", &status("", "1")),
            ("proc/self/task/9/status", &status("VmSize:\t1 kB\n", "2")),
        ]);
        assert_eq!(pinned_cpus(&root), BTreeSet::from([3]));
    }
}
