//! What a long run says at its end, and where its text is kept when its file cannot be written.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use entrain_lab_machine::{Cache, cache::KEPT};
use entrain_results::output::Output;

/// Writes to stdout or stderr. That a terminal was closed must cost nothing of what was measured, and `print!` would panic.
pub fn tell(mut to: impl Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

/// Keeps a text that could not be written where it should go: in the cache, else in the folder for temporary files.
/// `None` if neither takes it. The file's name ends in `extension`.
pub fn keep(text: &[u8], name: &str, extension: &str) -> Option<PathBuf> {
    let cache = Cache::open().ok().map(|cache| cache.root().join(KEPT));
    keep_in(cache.into_iter().chain([std::env::temp_dir()]), text, name, extension)
}

fn keep_in(folders: impl IntoIterator<Item = PathBuf>, text: &[u8], name: &str, extension: &str) -> Option<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    folders.into_iter().find_map(|folder| {
        fs::create_dir_all(&folder).ok()?;
        let path = folder.join(format!("{name}-{now}-{}.{extension}", std::process::id()));
        Output::new(&path).ok()?.write(text).ok().map(|()| path)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_terminal_that_is_gone_is_no_end() {
        tell(File::options().write(true).open("/dev/full").unwrap(), "text");
        let mut text = Vec::new();
        tell(&mut text, "text");
        assert_eq!(text, b"text");
    }

    #[test]
    fn a_text_is_kept_in_the_first_place_that_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        // The first place does not take it either.
        let kept = keep_in([PathBuf::from("/dev/null/kept"), dir.path().to_owned()], b"text", "smoke", "json").unwrap();
        assert_eq!(fs::read(kept).unwrap(), b"text");
        assert!(keep_in([PathBuf::from("/dev/null/kept")], b"text", "smoke", "json").is_none());
    }
}
