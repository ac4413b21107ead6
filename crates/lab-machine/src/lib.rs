//! The lab's machines: a KVM host in QEMU with real guests inside, on any computer; what they boot, and how to talk to them.
pub use self::{
    cache::Cache,
    error::{LabError, Result},
    fault::{Fault, FaultClass},
    progress::Progress,
};

pub mod archive;
pub mod cache;
pub mod cancel;
pub mod error;
pub mod fault;
pub mod image;
pub mod machine;
pub mod progress;
