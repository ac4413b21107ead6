//! entrain isolate: isolated and real-time CPUs that stay undisturbed.
//!
//! [`watch`] attributes every interruption of such a CPU to its cause by BPF; [`check`] compares the set-up of a host or
//! guest with what is known to matter, and can set what can be set at run time.

pub mod check;
pub mod cli;
mod stack;
pub mod watch;
