//! The cache folder.
use std::path::PathBuf;

/// The lab's part of the user's cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The folder itself.
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }
}
