//! What system calls each part of the daemon may make once it has started: what a fault in it could not do either.
//!
//! A part is a thread, or the process of the metrics. Whatever is not on its list fails as if it were not allowed
//! (EPERM), which ends no part and shows in the log. Filters are inherited by threads that are started later and never
//! taken off; the main thread's is made last, when all other parts run, but those that it starts itself.
//!
//! The lists are what the parts, the C library and the runtime call. Files are opened by the parts that look into
//! `/proc`; nobody but the supervisor of the metrics starts a program.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// A part of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Beats for the host; calls one BPF program.
    Heart,
    /// Answers at the status socket.
    Status,
    /// The process that serves metrics over HTTP.
    Metrics,
    /// Looks into VMMs' processes.
    Eyes,
    /// The main loop: finds VMs, pairs, sets weights, answers.
    Main,
}

/// Memory, waiting, clocks, the thread's own affairs, a line in the log.
const EVERYBODY: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Sockets that are there, and clients that come; none is made.
const CLIENTS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_fcntl,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// tokio's waiting.
const RUNTIME: &[c_long] =
    &[libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_eventfd2, libc::SYS_ioctl];

/// Looks at files and processes; a file of memory of one's own tells what device such files have.
const LOOKS: &[c_long] = &[
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_process_vm_readv,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
];

/// What the main loop does beside looking: it calls BPF programs and pins pages, writes weights, clamps and its record of
/// them, starts threads, tells the service manager.
const MAIN: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_connect,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_geteuid,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_mkdirat,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_prlimit64,
    libc::SYS_pwrite64,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_seccomp,
    libc::SYS_socket,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Calls by older names, which x86_64 alone has.
#[cfg(target_arch = "x86_64")]
fn older(part: Part) -> &'static [c_long] {
    match part {
        Part::Heart => &[],
        Part::Status | Part::Metrics => &[libc::SYS_poll, libc::SYS_epoll_wait],
        Part::Eyes => &[libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink, libc::SYS_poll],
        Part::Main => &[
            libc::SYS_access,
            libc::SYS_chmod,
            libc::SYS_dup2,
            libc::SYS_epoll_wait,
            libc::SYS_lstat,
            libc::SYS_mkdir,
            libc::SYS_open,
            libc::SYS_poll,
            libc::SYS_readlink,
            libc::SYS_rename,
            libc::SYS_rmdir,
            libc::SYS_stat,
            libc::SYS_unlink,
        ],
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: Part) -> &'static [c_long] {
    &[]
}

/// BPF_PROG_TEST_RUN, which is how a program of kind syscall is called.
const RUN_PROGRAM: u64 = 10;

fn filter(part: Part) -> Result<BpfProgram, seccompiler::BackendError> {
    let lists: &[&[c_long]] = match part {
        Part::Heart => &[&[libc::SYS_sendto]],
        Part::Status => &[CLIENTS],
        Part::Metrics => &[CLIENTS, RUNTIME],
        Part::Eyes => &[LOOKS],
        Part::Main => &[CLIENTS, LOOKS, MAIN],
    };
    let calls = [EVERYBODY, older(part)].into_iter().chain(lists.iter().copied()).flatten();
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = calls.map(|call| (*call, Vec::new())).collect();
    if part == Part::Heart {
        let runs = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, RUN_PROGRAM)?;
        rules.insert(libc::SYS_bpf, vec![SeccompRule::new(vec![runs])?]);
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// From now on the calling thread, and those that it starts, make the calls of `part` alone.
///
/// # Errors
/// A kernel without seccomp, or a manager that refuses it: the part goes on without.
pub(crate) fn confine(part: Part) -> io::Result<()> {
    let program = filter(part).map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

/// The same; where it cannot be had that is said, and the part goes on without.
pub(crate) fn confine_or_say(part: Part) {
    if let Err(error) = confine(part) {
        tracing::warn!("no filter of system calls for {part:?}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// What a thread of that part gets for an open, for a thread of its own, and for a program of the shell's.
    fn tries(part: Part) -> (bool, bool, bool) {
        let thread = std::thread::spawn(move || {
            confine(part).expect("this kernel has seccomp");
            let opens = File::open("/proc/self/status").is_ok();
            let starts = std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join()).is_ok();
            let runs = std::process::Command::new("true").status().is_ok();
            (opens, starts, runs)
        });
        thread.join().expect("it lives on")
    }

    #[test]
    fn each_part_can_do_its_own_and_no_more() {
        assert_eq!(tries(Part::Heart), (false, false, false));
        assert_eq!(tries(Part::Status), (false, false, false));
        assert_eq!(tries(Part::Metrics), (false, false, false));
        assert_eq!(tries(Part::Eyes), (true, false, false));
        assert_eq!(tries(Part::Main), (true, true, false), "threads, and no programs");
    }

    #[test]
    fn the_heart_calls_programs_and_nothing_else_of_bpf() {
        let call = |command: c_long| {
            // SAFETY: no attributes: the kernel answers with an error.
            let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::null::<u8>(), 0) };
            (result, io::Error::last_os_error().raw_os_error())
        };
        let thread = std::thread::spawn(move || {
            confine(Part::Heart).expect("this kernel has seccomp");
            [call(RUN_PROGRAM as c_long), call(0)]
        });
        let [runs, makes] = thread.join().expect("it lives on");
        assert_ne!(runs.1, Some(libc::EPERM), "the kernel itself answers");
        assert_eq!(makes, (-1, Some(libc::EPERM)));
    }
}
