//! Which pCPUs a thread may use.

use std::io;

use entrain_system::CpuSet;

/// CPUs that a kernel can have at most, in the words of its masks.
const WORDS: usize = 8192 / 64;

/// Those that a thread may use, affinity and cpuset taken together.
pub(crate) fn of(tid: i32) -> io::Result<CpuSet> {
    let mut mask = [0u64; WORDS];
    // SAFETY: the kernel writes at most the length that is given to the array of that length.
    let length = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&mask), mask.as_mut_ptr()) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let bits = |(word, bits): (usize, u64)| {
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (word * 64 + bit) as u32)
    };
    Ok(mask.into_iter().enumerate().flat_map(bits).collect())
}

/// Those that one or another of these threads may use; `None`: it is not known.
pub(crate) fn of_any(tids: impl Iterator<Item = i32>) -> Option<CpuSet> {
    tids.map(|tid| of(tid).ok())
        .try_fold(CpuSet::default(), |all, own| Some(all.union(&own?)))
        .filter(|all| !all.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_bound_says_so() {
        std::thread::spawn(|| {
            let all = of(0).expect("of this thread");
            let one = all.first().expect("a CPU");
            let mask = [1u64 << one; 1];
            // SAFETY: the kernel reads the length that is given from an array of that length.
            let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask), mask.as_ptr()) };
            assert_eq!(result, 0);
            assert_eq!(of(0).expect("of this thread"), std::iter::once(one).collect());
            // SAFETY: a call without arguments.
            let own = unsafe { libc::gettid() };
            assert_eq!(of_any([own].into_iter()), Some(std::iter::once(one).collect()));
        })
        .join()
        .expect("no panic");
        assert_eq!(of_any([i32::MAX].into_iter()), None);
    }
}
