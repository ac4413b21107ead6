//! The text of an experiment file, and errors that point into it.

use std::ops::Range;
use std::path::PathBuf;

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
    /// The file can't be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file says something that can't be.
    #[error("{file}:{line}: {key}: {message}")]
    Wrong {
        /// The file, as the user knows it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key with its table, as `load.metric.better`.
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
    pub(super) fn error(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ExperimentError {
        let mut at = span.map_or(0, |span| span.start).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let (line, key) = self.locate(at);
        // The parser's own messages may span lines; an error here is one line.
        let message = message.into().trim().replace('\n', "; ");
        ExperimentError::Wrong { file: self.file.to_owned(), line, key, message }
    }

    /// Line number and key of an offset. The key is the table's name of the last header before it and the key of the
    /// line it stands in; for a value that goes on over lines, the key that it began with.
    fn locate(&self, offset: usize) -> (usize, String) {
        let line = self.text[..offset].matches('\n').count() + 1;
        let (mut table, mut key) = (String::new(), String::new());
        for text in self.text.lines().take(line) {
            let text = text.trim();
            if let Some(header) = text.strip_prefix('[').filter(|_| text.ends_with(']') && !text.contains([',', '"'])) {
                table = header.trim_matches(['[', ']']).trim().to_owned();
                key.clear();
            } else if let Some((left, _)) = text.split_once('=').filter(|(left, _)| is_key(left.trim())) {
                key = left.trim().to_owned();
            }
        }
        let path = [table, key].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        (line, if path.is_empty() { "(top level)".to_owned() } else { path })
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
