//! What every BPF program of Entrain needs: kernel declarations (`include/kernel.h`), libbpf's messages in the log,
//! errors that say what to do, and the running kernel's features, probed once.

mod btf;
mod error;
mod features;
mod log;
mod shared;
mod view;

pub use btf::BtfNames;
pub use error::{Error, Step};
pub use features::{Features, Lockdown};
pub use log::quiet;
pub use shared::copy_of;
pub use view::ArrayView;
