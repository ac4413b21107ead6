//! Why there are no clamps.

use std::io;

/// Why there are no clamps.
#[derive(Debug, thiserror::Error)]
pub enum UclampError {
    /// Not built in.
    #[error(
        "this kernel has no utilisation clamps (CONFIG_UCLAMP_TASK): leave --uclamp away, or use --mode schedule, which \
         needs none"
    )]
    Missing,
    /// Anything else.
    #[error("cannot try utilisation clamps on this process: {0}")]
    Try(io::Error),
}
