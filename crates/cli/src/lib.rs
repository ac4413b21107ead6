//! What Entrain's command lines have in common.
pub mod exit;
#[cfg(feature = "generate")]
pub mod generate;
pub mod log;
pub mod pipe;
