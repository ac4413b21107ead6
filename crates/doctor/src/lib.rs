//! entrain doctor: what this machine can do for Entrain, what it lacks, and the remedy.
//!
//! Every reading goes through a root folder ([`Machine`]), so that tests examine prepared trees. Nothing is changed, and
//! nothing is loaded into the kernel: what BPF can do is told by the kernel's type information.

pub mod cli;
mod finding;
mod guest;
mod host;
mod kernel;
mod machine;
mod purpose;
mod remedy;
mod running;
mod vm;
mod vmm;

pub use cli::{Role, examine};
pub use finding::{Finding, Report, Status};
pub use machine::Machine;
pub use purpose::Purpose;
pub use running::{Backing, Ram, RunningVm};
pub use vmm::Vmm;
