//! One CPU of the development machine for each emulated one.
//!
//! Left to itself, a development machine puts two emulated CPUs onto one of its own: for ten milliseconds at a time when
//! it is busy, and for as long as they like when it is a VM itself, whose kernel takes a CPU that its own host has put to
//! sleep for one that was preempted, and wakes nobody there. The host machine then sees a CPU that stands still with a
//! task on it, which no real one does, and its waits are those of the development machine.
use std::{fs, path::Path};

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tracing::{debug, warn};

/// Gives each of the `pcpus` emulated CPUs of process `pid` a CPU of its own, where there are enough. The first one
/// depends on the process, so that small machines side by side do not meet on CPU 0. QEMU makes the threads some time
/// after it has started: a machine that is up has them all.
pub(super) fn spread(proc: &Path, pid: Pid, pcpus: u32) {
    let Ok(allowed) = own() else { return };
    let threads = emulated(proc, pid);
    if threads.len() != pcpus as usize {
        warn!("QEMU has {} threads named as emulated CPUs, not {pcpus}: none is pinned", threads.len());
        return;
    }
    if threads.len() > allowed.len() {
        return;
    }
    let first = pid.as_raw_pid().unsigned_abs() as usize;
    for (cpu, thread) in threads {
        let mut set = CpuSet::new();
        set.set(allowed[(first + cpu) % allowed.len()]);
        // Without it the machine runs all the same.
        if let Err(error) = sched_setaffinity(Some(thread), &set) {
            debug!("emulated CPU {cpu} stays unpinned: {error}");
        }
    }
}

/// The CPUs that this thread may use.
fn own() -> rustix::io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Number and thread of each emulated CPU: QEMU names the threads "CPU 0/TCG".
fn emulated(proc: &Path, pid: Pid) -> Vec<(usize, Pid)> {
    let tasks = fs::read_dir(proc.join(pid.as_raw_pid().to_string()).join("task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let cpu = comm.trim().strip_prefix("CPU ")?.strip_suffix("/TCG")?.parse().ok()?;
        Some((cpu, Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?))
    });
    threads.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_cpu_of_its_own() {
        if own().unwrap().len() < 2 {
            return;
        }
        let (up, end) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
        let pinned = std::thread::scope(|scope| {
            let threads = [0, 1].map(|cpu| {
                let (up, end) = (&up, &end);
                let thread = std::thread::Builder::new().name(format!("CPU {cpu}/TCG"));
                let body = move || {
                    up.wait();
                    end.wait();
                    own().unwrap()
                };
                thread.spawn_scoped(scope, body).unwrap()
            });
            up.wait();
            spread(Path::new("/proc"), rustix::process::getpid(), 2);
            end.wait();
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(pinned.each_ref().map(Vec::len), [1, 1], "{pinned:?}");
        assert_ne!(pinned[0], pinned[1]);
    }

    #[test]
    fn only_emulated_cpus_are_found() {
        let proc = tempfile::tempdir().unwrap();
        for (tid, comm) in [(7, "qemu"), (8, "CPU 0/TCG\n"), (9, "CPU 1/TCG\n"), (10, "CPU 2/KVM\n"), (11, "CPU x/TCG")]
        {
            let task = proc.path().join(format!("7/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), comm).unwrap();
        }
        let mut found = emulated(proc.path(), Pid::from_raw(7).unwrap());
        found.sort_by_key(|(cpu, _)| *cpu);
        assert_eq!(found, [(0, Pid::from_raw(8).unwrap()), (1, Pid::from_raw(9).unwrap())]);
    }
}
