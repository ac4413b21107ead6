//! Why an experiment can't be had.

use entrain_config::ConfigError;

/// Why an experiment can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// No built-in experiment and no file of that name.
    #[error("no experiment '{name}'; there are: {known}. A file of your own is given by its path, as ./my.toml")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file can't be read, or says something that can't be.
    #[error(transparent)]
    File(#[from] ConfigError),
}
