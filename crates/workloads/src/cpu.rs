//! CPUs: how many are online for us, pinning, and where we run.

use std::io;

/// The CPUs that this process may run on, in rising order.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: cpu_set_t is plain data, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size given is that of the set.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: CPU_ISSET only reads the set, and the index is below its size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: as in `allowed`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET checks its index against the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the size given is that of the set.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The CPU that the thread ran on a moment ago.
pub(crate) fn current() -> usize {
    // SAFETY: takes no arguments and touches no memory of ours.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_stays() {
        let cpus = super::allowed().unwrap();
        let last = *cpus.last().unwrap();
        std::thread::spawn(move || {
            super::pin(last).unwrap();
            assert_eq!(super::current(), last);
            assert_eq!(super::allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert_eq!(super::allowed().unwrap(), cpus, "pinning a thread must not pin the others");
    }
}
