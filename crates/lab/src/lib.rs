//! The lab: experiments on nested KVM machines, and their report.
pub mod bar;
pub mod cli;
pub mod experiment;
pub mod kernels;
pub mod load;
pub mod metric;
pub mod output;
pub mod placeholder;
pub mod probe;
pub mod proving;
pub mod reading;
pub mod report;
pub mod rig;
pub mod runner;
mod sameness;
pub mod scenario;
mod speed;
