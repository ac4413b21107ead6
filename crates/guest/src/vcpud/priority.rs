//! The controller's own turn. It has to run when its guest has more work than CPUs, on the few that are in use: as an
//! ordinary thread it would wait for the load that it is to give room to.

use std::io;

/// `struct sched_attr` up to its first version's end (`SCHED_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The least that EEVDF takes for a thread's slice, ns: whoever asks for short turns gets them soon.
const SLICE_NS: u64 = 100_000;

/// Gives the calling thread short turns that come soon: nice -20, and the shortest slice where the kernel
/// knows such (Linux 6.12; an older one ignores it). Not a real-time policy: it walks all threads of the machine now and
/// then.
pub(super) fn raise() -> io::Result<()> {
    let attr = Attr { size: size_of::<Attr>() as u32, nice: -20, runtime: SLICE_NS, ..Attr::default() };
    // SAFETY: the kernel reads `size` bytes of `attr`, which is plain data of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_thread_has_a_high_priority_or_is_told_why_not() {
        std::thread::spawn(|| match super::raise() {
            // SAFETY: a call without pointers.
            Ok(()) => assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }, -20),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        })
        .join()
        .expect("no panic");
    }
}
