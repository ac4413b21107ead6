//! entrain lab: nested KVM machines on any computer, experiments on them, and their report.
pub use self::{
    cache::Cache,
    error::{LabError, Result},
    fault::{Fault, FaultClass},
    progress::Progress,
};

pub mod agent;
pub mod archive;
pub mod cache;
pub mod cancel;
pub mod cli;
pub mod error;
pub mod experiment;
pub mod fault;
pub mod image;
pub mod load;
pub mod machine;
pub mod output;
pub mod probe;
pub mod progress;
pub mod report;
pub mod run_cli;
pub mod runner;
pub mod scenario;
pub mod selftest;
pub mod stats;
