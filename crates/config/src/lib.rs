//! TOML files that users write: reading them, and errors that name the file, the line and the key.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It says something that can't be.
    #[error("{file}:{line}: {key}: {message}")]
    Wrong {
        /// The file, as the user knows it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key with its table, as `class.critical.weight`.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// Reads a file as text.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// A file's name and text.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// As the user knows it.
    pub file: &'a str,
    /// All of it.
    pub text: &'a str,
}

impl Source<'_> {
    /// The file as a structure; what serde says of it becomes an error with line and key.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|error| self.error(error.span(), error.message()))
    }

    /// An error at a place in the text (bytes), or of the whole file.
    pub fn error(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let mut at = span.map_or(0, |span| span.start).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let (line, key) = self.locate(at);
        // The parser's own messages, and names that a user chose, may span lines; an error here is one line.
        let message = message.into().trim().lines().collect::<Vec<_>>().join("; ");
        ConfigError::Wrong { file: self.file.to_owned(), line, key, message }
    }

    /// Line and key of an offset. The key is the table's name of the last header before it and the key of the line it
    /// stands in; for a value that goes on over lines, the key that it began with.
    fn locate(&self, offset: usize) -> (usize, String) {
        let line = self.text[..offset].matches('\n').count() + 1;
        let (mut table, mut key) = (String::new(), String::new());
        for text in self.text.lines().take(line) {
            if let Some(header) = header(text) {
                table = header;
                key.clear();
            } else if let Some((left, _)) = text.split_once('=').filter(|(left, _)| is_key(left.trim())) {
                key = left.trim().to_owned();
            }
        }
        let path = [table, key].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        (line, if path.is_empty() { "(top level)".to_owned() } else { path })
    }
}

/// The name in a line that begins a table; a line of an array's values may look much like one.
fn header(line: &str) -> Option<String> {
    let inside = line.trim().strip_prefix('[')?;
    let inside = inside.strip_prefix('[').unwrap_or(inside);
    let (name, rest) = inside.split_once(']')?;
    let (name, rest) = (name.trim(), rest.trim_start_matches(']').trim_start());
    let table = !name.is_empty() && !name.starts_with(['"', '\'']) && !name.contains(',');
    (table && (rest.is_empty() || rest.starts_with('#'))).then(|| name.to_owned())
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str, place: &str) -> String {
        let offset = text.find(place).expect("it is there");
        Source { file: "f.toml", text }.error(Some(offset..offset), "wrong").to_string()
    }

    #[test]
    fn errors_name_line_table_and_key() {
        let text =
            "top = 1\n[a.b] # a comment\nx = 2\n[[vm]]\nlist = [\n  [1, 2],\n  [\"z\"],\n]\n[class.\"c d\"]\nw = 3\n";
        assert_eq!(at(text, "1"), "f.toml:1: top: wrong");
        assert_eq!(at(text, "2"), "f.toml:3: a.b.x: wrong");
        assert_eq!(at(text, "\"z\""), "f.toml:7: vm.list: wrong");
        assert_eq!(at(text, "3"), "f.toml:10: class.\"c d\".w: wrong");
        assert_eq!(at("# x = 1\n", "1"), "f.toml:1: (top level): wrong");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("/nonexistent/f.toml")).expect_err("missing").to_string();
        assert!(error.starts_with("/nonexistent/f.toml: "), "{error}");
    }

    proptest! {
        #[test]
        fn any_place_in_any_text_gives_one_line(text in "[\\PC\n\r\\[\\]=\"]{0,80}", offset in 0usize..120, message in "[\\PC\n]{0,20}") {
            let error = Source { file: "f", text: &text }.error(Some(offset..offset), message).to_string();
            prop_assert!(error.starts_with("f:"));
            prop_assert!(!error.contains('\n'));
        }
    }
}
