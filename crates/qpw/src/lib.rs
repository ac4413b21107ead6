//! `entrain isolate qpw`: drains of per-CPU caches that do not disturb isolated CPUs, on stock PREEMPT_RT kernels.
//!
//! The module's source (`module/`) is part of the program. It is built on the user's machine, for one kernel, and only
//! where that kernel is known to be what the module was written for: see [`check`] and `docs/qpw.md`.

pub mod check;
pub mod cli;
pub mod kernel;
pub mod known;
pub mod live;
pub mod make;
pub mod shape;
pub mod source;
pub mod symbols;
pub mod wait;

mod status;
