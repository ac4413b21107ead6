//! entrain record and entrain report: where the time of virtual machines went, and because of whom.
//!
//! [`cli::record`] follows the vCPU threads of chosen VMs by BPF (`capture`, `recorder`, `programs`, `bpf/record.bpf.c`) and writes
//! a bounded file ([`file`]). [`cli::report`] reads it back, works out what each vCPU did at every moment
//! ([`analysis`]) and shows it as text, HTML, JSON or a trace for the Perfetto UI (`report`). A recording made in a guest
//! (`guest`) goes into the same trace.

pub mod analysis;
mod capture;
pub mod cli;
pub mod event;
pub mod file;
mod guest;
mod programs;
mod recorder;
mod report;
#[doc(hidden)]
pub mod untrusted;

/// The skeleton that the build script makes of the BPF programs.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/record.skel.rs"));
}
