//! Changes of the running system that can be taken back.

use std::io;

use entrain_system::{CpuSet, Root};
use rustix::process::Pid;
use rustix::thread::{CpuSet as KernelSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// One change: what it was and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Change {
    /// The text of a file below `/proc` or `/sys` (`path` without leading slash).
    Write { path: String, old: String, new: String },
    /// The CPUs that a thread may run on. `started` (field 22 of its stat file) tells it from a later one of its number.
    Affinity { tid: i32, started: u64, comm: String, old: String, new: String },
    /// A thread's scheduling policy (SCHED_*) and real-time priority (0 to 99).
    Policy { tid: i32, started: u64, comm: String, old: (i32, i32), new: (i32, i32) },
}

impl Change {
    /// A write of `new` over what the file holds now; `None` when it cannot be read.
    pub(crate) fn write(root: &Root, path: &str, new: impl Into<String>) -> Option<Self> {
        Some(Self::Write { path: path.to_owned(), old: root.trimmed(path)?, new: new.into() })
    }

    /// The command that does it.
    pub(crate) fn command(&self) -> String {
        match self {
            Self::Write { path, new, .. } => format!("echo {new} > /{path}"),
            Self::Affinity { tid, new, .. } => format!("taskset -pc {new} {tid}"),
            Self::Policy { tid, new, .. } => format!("chrt {} -p {} {tid}", policy_option(new.0), new.1),
        }
    }

    /// The change back.
    pub(crate) fn reverse(&self) -> Self {
        let mut back = self.clone();
        match &mut back {
            Self::Write { old, new, .. } | Self::Affinity { old, new, .. } => std::mem::swap(old, new),
            Self::Policy { old, new, .. } => std::mem::swap(old, new),
        }
        back
    }

    /// Whether both change the same thing.
    pub(crate) fn same_thing(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Write { path: a, .. }, Self::Write { path: b, .. }) => a == b,
            (Self::Affinity { tid: a, started: x, .. }, Self::Affinity { tid: b, started: y, .. })
            | (Self::Policy { tid: a, started: x, .. }, Self::Policy { tid: b, started: y, .. }) => (a, x) == (b, y),
            _ => false,
        }
    }

    /// Does it. A thread that has ended meanwhile is no error.
    ///
    /// # Errors
    /// What the kernel says: some interrupts and kernel threads may not be moved.
    pub(crate) fn apply(&self, root: &Root) -> io::Result<()> {
        match self {
            Self::Write { path, new, .. } => root.write(path, new),
            Self::Affinity { tid, started, .. } | Self::Policy { tid, started, .. }
                if !root.is_live() || start_time(root, *tid) != Some(*started) =>
            {
                Ok(())
            }
            Self::Affinity { tid, new, .. } => {
                let cpus: CpuSet = new.parse().map_err(io::Error::other)?;
                let mut set = KernelSet::new();
                cpus.iter().filter(|cpu| (*cpu as usize) < KernelSet::MAX_CPU).for_each(|cpu| set.set(cpu as usize));
                Ok(sched_setaffinity(Pid::from_raw(*tid), &set)?)
            }
            Self::Policy { tid, new, .. } => {
                // SAFETY: all zeroes is a value of this struct of numbers (musl's has more fields than glibc's).
                let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
                param.sched_priority = new.1;
                // SAFETY: the struct outlives the call.
                match unsafe { libc::sched_setscheduler(*tid, new.0, &param) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            }
        }
    }
}

/// When a thread started, in ticks since boot. A thread's number finds its folder although `/proc` does not list it.
pub(crate) fn start_time(root: &Root, tid: i32) -> Option<u64> {
    stat_field(&root.trimmed(format!("proc/{tid}/stat"))?, 22)?.parse().ok()
}

/// Field `number` (from 3 on, as proc(5) counts) of a stat file's text; the name may hold spaces and parentheses.
pub(crate) fn stat_field(text: &str, number: usize) -> Option<&str> {
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

fn policy_option(policy: i32) -> &'static str {
    match policy {
        libc::SCHED_FIFO => "-f",
        libc::SCHED_RR => "-r",
        libc::SCHED_BATCH => "-b",
        libc::SCHED_IDLE => "-i",
        _ => "-o",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn a_write_can_be_taken_back() {
        let (_dir, root) = tree(&[("proc/sys/kernel/numa_balancing", "1\n")]);
        let change = Change::write(&root, "proc/sys/kernel/numa_balancing", "0").unwrap();
        assert_eq!(change.command(), "echo 0 > /proc/sys/kernel/numa_balancing");
        change.apply(&root).unwrap();
        assert_eq!(root.trimmed("proc/sys/kernel/numa_balancing").unwrap(), "0");
        assert_eq!(change.reverse().command(), "echo 1 > /proc/sys/kernel/numa_balancing");
        change.reverse().apply(&root).unwrap();
        assert_eq!(root.trimmed("proc/sys/kernel/numa_balancing").unwrap(), "1");
        assert!(change.same_thing(&change.reverse()));
        assert!(Change::write(&root, "proc/absent", "0").is_none());
    }

    #[test]
    fn commands_of_threads() {
        let change =
            Change::Policy { tid: 7, started: 1, comm: "CPU 0/KVM".into(), old: (0, 0), new: (libc::SCHED_FIFO, 1) };
        assert_eq!(change.command(), "chrt -f -p 1 7");
        assert_eq!(change.reverse().command(), "chrt -o -p 0 7");
    }

    #[test]
    fn names_with_parentheses_do_not_shift_fields() {
        let text = "7 (a) b) c) S 1 7 7 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        assert_eq!(
            (stat_field(text, 3), stat_field(text, 9), stat_field(text, 22)),
            (Some("S"), Some("2129984"), Some("4711"))
        );
    }
}
