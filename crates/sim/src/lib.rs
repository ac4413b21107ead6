//! Entrain's schedulers, as they ship, in a simulated kernel.
//!
//! `native` loads the schedulers' own code, compiled natively; [`kernel`] is the kernel that they run in; [`world`] lets
//! time pass for a host and its guests; [`program`] is what their tasks do; [`scenario`] names worlds, [`search`] draws
//! them.

pub mod accuracy;
pub mod costs;
pub mod fleet;
pub mod jobs;
pub mod kernel;
pub mod lab;
mod native;
pub mod page;
pub mod program;
pub mod references;
pub mod replay;
pub mod report;
pub mod rng;
pub mod scenario;
pub mod search;
pub mod stored;
pub mod trace;
pub mod world;
