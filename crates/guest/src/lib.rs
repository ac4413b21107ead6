//! entrain guest: the agent and the scheduler inside a virtual machine.
//!
//! [`agent`] offers a page of the channel per vCPU and answers for it until the end; [`kernel`] finds the guest kernel's
//! own variables that the registration names. A scheduler in the guest runs as the agent's [`agent::Companion`].

mod affinity;
pub mod agent;
pub mod cli;
pub mod doorbell;
pub mod error;
pub mod forge;
pub mod kernel;
pub mod kicks;
pub mod loads;
pub mod lock;
pub mod pages;
mod program;
pub mod schedule;
pub mod selftest;
pub mod status;
pub mod system;
pub mod vcpud;
