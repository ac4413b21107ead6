//! entrain host: finds virtual machines, pairs with their guests, publishes to them and schedules them.
//!
//! The daemon ([`daemon`]) discovers VMs by KVM's own list of them (`finder`), keeps them in a table
//! (`fleet`), finds the agents in their guests (doorbell, or `scan`), verifies and pairs (`register`, `pair`), and leaves
//! all that happens at a context switch to `bpf/observe.bpf.c`. What it does beside that is a `mode`; the host's scheduler is
//! one ([`schedule`]). `status` is what others can ask it.

mod affinity;
mod allowance;
mod cgroup;
mod cgroup_namespace;
mod channel;
pub mod classes;
pub mod cli;
pub mod complexity;
mod counters;
mod cpus;
mod culprits;
pub mod daemon;
mod discover;
mod entitlement;
pub mod error;
mod eyes;
mod figures;
pub mod finder;
mod fleet;
mod groups;
mod identity;
mod interface;
mod left_behind;
mod memory;
mod metrics;
mod mode;
mod pair;
mod pcpus;
mod pidfd;
mod pod;
mod privilege;
mod program_info;
mod programs;
mod register;
mod rivals;
mod said;
mod scan;
pub mod schedule;
mod seccomp;
mod silence;
mod skeleton;
mod slots;
mod snapshot;
pub mod status;
mod ticker;
pub mod top;
pub mod uclamp;
#[doc(hidden)]
pub mod untrusted;
mod vm;
mod vm_list;
mod waits;

pub use channel::Channel;
pub use identity::{Identity, Manager};
