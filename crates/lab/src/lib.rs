//! The lab: experiments on nested KVM machines, and their report.
pub mod cli;
pub mod experiment;
pub mod load;
pub mod output;
pub mod probe;
pub mod proving;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod stats;
