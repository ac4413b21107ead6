//! Entrain's scheduling decisions as pure functions, in C headers shared by BPF and native code.
//!
//! The headers under `include/` are the product; this crate compiles them natively so that property tests, fuzzing and
//! micro-benchmarks reach the very text that runs in the kernel.

pub mod balance;
pub mod bandwidth;
pub mod energy;
pub mod entitle;
pub mod entitle_tree;
pub mod guest;
pub mod host;
pub mod perf;
