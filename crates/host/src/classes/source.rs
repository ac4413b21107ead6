//! Errors that point into the configuration file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file says something that can't be.
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

/// A file's name and text.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// An error at a place in the text.
    pub(super) fn error(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let mut at = span.map_or(0, |span| span.start).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.text[..at].matches('\n').count() + 1;
        // The parser's own messages may span lines; an error here is one line.
        let message = message.into().trim().replace('\n', "; ");
        ConfigError::Wrong { file: self.file.to_owned(), line, key: self.key(line), message }
    }

    /// The key in a line, below the last table's header before it.
    fn key(&self, line: usize) -> String {
        let mut path = (String::new(), String::new());
        for text in self.text.lines().take(line).map(str::trim) {
            if text.starts_with('[') && text.ends_with(']') {
                path = (text.trim_matches(['[', ']']).trim().to_owned(), String::new());
            } else if let Some((key, _)) = text.split_once('=').filter(|_| !text.starts_with('#')) {
                path.1 = key.trim().to_owned();
            }
        }
        match path {
            (table, key) if table.is_empty() && key.is_empty() => "(top level)".to_owned(),
            (table, key) if table.is_empty() => key,
            (table, key) if key.is_empty() => table,
            (table, key) => format!("{table}.{key}"),
        }
    }
}
