//! Interrupts to each CPU that runs this process, by membarrier(2), private expedited.

use std::io;

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Says that the process will interrupt; must come before [`interrupt`].
///
/// # Errors
/// As membarrier(2).
pub(crate) fn register() -> io::Result<()> {
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// Interrupts the other CPUs that run the process, and returns when all have answered.
///
/// # Errors
/// As membarrier(2).
pub(crate) fn interrupt() -> io::Result<()> {
    membarrier(PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes plain numbers and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("membarrier failed: {}", io::Error::last_os_error()))),
    }
}
