//! What the daemon tells about itself and its VMs: a JSON line for a JSON line, on a socket that only root can open.

mod client;
mod schema;
mod server;

pub use client::{ask, ask_with};
#[cfg(test)]
pub(crate) use schema::tests;
pub use schema::{Answer, PcpuStatus, Request, SCHEMA, Status, VcpuStatus, VmStatus, WaitCause, WaitStatus, Work};
pub(crate) use server::{Asker, Question, serve};
