//! The agent: what the lab talks to inside the host machine and its guests; and QEMU as a process, which lab and agent
//! start alike.
mod cgroups;
mod guests;
mod jobs;
mod outbox;

pub mod frame;
pub mod message;
pub mod qemu;
pub mod serve;
