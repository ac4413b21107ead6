//! What `/proc` and `/sys` tell about a machine, for every part of Entrain.
//!
//! Each reader takes a [`Root`], so that a test gives it a folder of its own instead of the running system. What every
//! machine must have fails with a [`SystemError`] that names the file; what may be missing or vanish while it is read is
//! `None`, by the rule of [`Root::text`].
//!
//! # Why this is not a crate from outside
//! `procfs` is the well-kept one. It reads `/proc` only: CPU lists and caches are in `/sys`, and kallsyms it does not
//! have. Of it, `/proc/PID/maps` alone would be used here, one function of thirty lines; and there it gives up a whole
//! file for one line that it does not know, where a VMM's user chooses the names in these lines. The guest's agent,
//! whose size counts in every guest, would carry it for nothing.
//!
//! `entrain-percpu` keeps a parser of its own: it is a library for other people's programs and depends on nothing here.

mod clock;
mod cpu_set;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod kallsyms;
pub mod maps;
mod plain;
mod private;
mod root;
mod topology;

pub use clock::{Moment, moment, monotonic_ns};
pub use cpu_set::{CpuSet, MAX_CPUS, ParseError};
pub use error::{Result, SystemError};
pub use plain::is_plain;
pub use private::private_folder;
pub use root::Root;
pub use topology::{Cpu, Topology};
