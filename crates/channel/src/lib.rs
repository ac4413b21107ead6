//! The page that host and guest share, and the protocol between the two sides.
//!
//! `include/entrain.h` is the definition for BPF programs, [`page`] its mirror in Rust (`tests/layout.rs` compares the two
//! field by field), and `docs/abi.md` says what every field means. Both sides run the state machine of [`protocol`], and
//! the host trusts nothing of a page that has not passed [`validate`].

mod mirror;
#[cfg(test)]
mod model;
pub mod page;
pub mod protocol;
pub mod validate;
pub mod word;

pub use mirror::Field;
