//! A thread's scheduling attributes, as far as clamps go: sched_getattr(2) and sched_setattr(2).

use std::io;

use serde::{Deserialize, Serialize};

/// `SCHED_FLAG_RESET_ON_FORK`.
const RESET_ON_FORK: u64 = 0x01;
/// `SCHED_FLAG_KEEP_PARAMS`: nice, priority and deadline stay as they are.
const KEEP_PARAMS: u64 = 0x10;
/// `SCHED_FLAG_UTIL_CLAMP_MIN`.
const UTIL_CLAMP_MIN: u64 = 0x20;
/// The value that puts a clamp back to the policy's own.
const RESET: u32 = u32::MAX;

/// The kernel's `struct sched_attr` up to the clamps (`SCHED_ATTR_SIZE_VER1`), which libc's ends before.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attr {
    pub(super) size: u32,
    pub(super) policy: u32,
    pub(super) flags: u64,
    pub(super) nice: i32,
    pub(super) priority: u32,
    pub(super) runtime: u64,
    pub(super) deadline: u64,
    pub(super) period: u64,
    /// 0..=1024.
    pub(super) util_min: u32,
    /// 0..=1024.
    pub(super) util_max: u32,
}

const SIZE: u32 = size_of::<Attr>() as u32;

impl Attr {
    /// The same, but threads that this one forks have none of it. The kernel has one flag for that: such a thread also
    /// begins without a negative nice value or a real-time policy.
    pub(super) fn without_inheritance(&self) -> Self {
        Self { flags: self.flags | RESET_ON_FORK, ..*self }
    }

    /// What to set so that the minimum is as it was: no clamp at all, where it was 0.
    pub(super) fn reset_min(&self) -> u32 {
        if self.util_min == 0 { RESET } else { self.util_min }
    }
}

/// A thread's attributes; 0 = the calling thread.
pub(super) fn get(tid: i32) -> io::Result<Attr> {
    let mut attr = Attr { size: SIZE, ..Attr::default() };
    // SAFETY: the kernel writes at most SIZE bytes to `attr`, which is plain data of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0) };
    if result == 0 { Ok(attr) } else { Err(io::Error::last_os_error()) }
}

/// Sets a thread's minimum. Of `like` counts whether forks inherit, and the policy, which must be the thread's own: with
/// `SCHED_FLAG_KEEP_POLICY` the kernel would ignore the flag for forks.
pub(super) fn set(tid: i32, like: &Attr, util_min: u32) -> io::Result<()> {
    let flags = (like.flags & RESET_ON_FORK) | KEEP_PARAMS | UTIL_CLAMP_MIN;
    let attr = Attr { size: SIZE, flags, util_min, ..*like };
    // SAFETY: the kernel reads SIZE bytes of `attr`.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_kernel_s_structure() {
        assert_eq!(SIZE, 56);
        let own = get(0).expect("own thread");
        assert!(own.util_min <= 1024 && own.size >= 48, "{own:?}");
        assert_eq!(own.without_inheritance().flags & RESET_ON_FORK, RESET_ON_FORK);
    }

    #[test]
    fn no_clamp_is_put_back_as_none() {
        assert_eq!(Attr::default().reset_min(), RESET);
        assert_eq!(Attr { util_min: 7, ..Attr::default() }.reset_min(), 7);
    }
}
