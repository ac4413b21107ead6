//! Entrain's own measured loads (`entrain-load`): what they report, in which form, and the counters taken around them.
//!
//! The loads themselves live in the binary. This library is the part that the lab shares with it: the catalogue of
//! loads and metrics, the JSON lines that a load prints, and the readers of `entrain-load probe`.

pub mod catalog;
pub mod probe;
pub mod wire;
