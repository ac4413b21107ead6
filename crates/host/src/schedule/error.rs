//! Why the scheduler did not start, or ended.

/// Why the scheduler did not start, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// No sched_ext.
    #[error("this kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT): use --mode observe, or a kernel from 7.3 on")]
    NoSchedExt,
    /// A sched_ext without functions that the scheduler calls.
    #[error("this kernel's sched_ext is too old for this scheduler (written for Linux 7.3): use --mode observe")]
    OldSchedExt,
    /// Somebody else's scheduler.
    #[error("another scheduler is loaded ('{name}', {state}): stop it first, or use --mode observe")]
    Loaded {
        /// As it calls itself.
        name: String,
        /// The kernel's word for it.
        state: String,
    },
    /// A tunable that does not exist, or a value that is none.
    #[error("tunable '{name}': {why}")]
    Tunable {
        /// As given.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The topology could not be read.
    #[error("can't read which CPUs there are: {0}")]
    Topology(#[from] entrain_system::SystemError),
    /// The thread that loads it panicked.
    #[error("the thread that loads the scheduler has ended")]
    LoaderDied,
    /// It was loaded, and ended by itself.
    #[error("the scheduler ended (kind {}): {}", .0.kind, .0.why)]
    Ended(Ended),
    /// The kernel refused the programs.
    #[error("the kernel refused the scheduler while {doing}: {error}")]
    Kernel {
        /// At which step.
        doing: &'static str,
        /// As libbpf says it.
        error: libbpf_rs::Error,
    },
}

/// For `map_err`: what the kernel was asked to do.
pub(super) fn kernel(doing: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ScheduleError {
    move |error| ScheduleError::Kernel { doing, error }
}

/// How the scheduler ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The kernel's kind: 64 and above is an orderly exit, 1024 and above an error.
    pub kind: i32,
    /// The reason and the message, as the kernel and the scheduler put it.
    pub why: String,
}
