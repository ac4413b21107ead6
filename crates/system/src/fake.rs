//! A folder that passes for a machine.

use std::fs;
use std::path::Path;

use crate::Root;

/// A machine with these files, and its folder as readers take it. The machine must be kept as long as that is used.
pub fn tree(files: &[(&str, &str)]) -> (Machine, Root) {
    let machine = Machine::new(files.iter().copied());
    let root = machine.root();
    (machine, root)
}

/// Files of a machine in a temporary folder, which goes when this value does.
///
/// Everything panics that does not work: this is for tests.
#[derive(Debug)]
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Default for Machine {
    /// A machine without files.
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }
}

impl Machine {
    /// A machine with these files; paths have no leading slash.
    pub fn new<P: AsRef<str>, T: AsRef<[u8]>>(files: impl IntoIterator<Item = (P, T)>) -> Self {
        let machine = Self::default();
        for (path, text) in files {
            machine.put(path.as_ref(), text);
        }
        machine
    }

    /// Writes a file and makes the folders that it needs.
    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// What a file holds now.
    pub fn get(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).expect("a file")
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder as readers take it.
    pub fn root(&self) -> Root {
        Root::at(self.path())
    }
}
