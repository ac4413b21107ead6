//! The page that host and guest share, and the protocol between the two sides.
//!
//! `include/entrain.h` is the definition for BPF programs, [`page`] its mirror in Rust (`tests/layout.rs` compares the two
//! field by field), and `docs/abi.md` says what every field means. The guest runs the state machine of [`protocol`], the
//! host `include/entrain_host.h` in BPF and [`hosting`] in its daemon, and trusts nothing of a page that has not passed
//! [`validate`].

pub mod hosting;
mod mirror;
pub mod page;
pub mod protocol;
pub mod validate;
pub mod word;

pub use mirror::Field;
