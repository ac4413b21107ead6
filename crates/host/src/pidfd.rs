//! File descriptors of single threads.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A file descriptor of one thread, which need not lead its process.
pub(crate) fn of_thread(tid: i32) -> io::Result<OwnedFd> {
    /// `PIDFD_THREAD` of linux/pidfd.h.
    const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
    // SAFETY: pidfd_open touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_descriptor_of_its_own() {
        let tid = std::thread::spawn(|| {
            // SAFETY: gettid touches no memory.
            let tid = unsafe { libc::gettid() };
            of_thread(tid).map(|_| tid).unwrap()
        })
        .join()
        .unwrap();
        assert!(tid > 0);
        assert!(of_thread(i32::MAX).is_err());
    }
}
