//! Text: files that a user writes, and JSON from a socket.

use entrain_lab::experiment;

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// `entrain host --config`.
pub(crate) fn classes(data: &[u8]) {
    if let Some(text) = text(data) {
        entrain_host::untrusted::classes(text, "db-1", r"/machine.slice/machine-qemu\x2d1.scope", 4711);
    }
}

/// `entrain lab run ./FILE.toml`.
pub(crate) fn experiment(data: &[u8]) {
    if let Some(text) = text(data)
        && let Err(error) = experiment::parse("./fuzz.toml", text)
    {
        assert_eq!(error.to_string().lines().count(), 1, "file, line and key in one line");
    }
}

/// The daemon's socket: a request and two answers, one a line.
pub(crate) fn status(data: &[u8]) {
    if let Some(text) = text(data) {
        let mut lines = text.split('\n');
        let mut line = || lines.next().unwrap_or_default();
        entrain_host::untrusted::status(line(), line(), line());
    }
}
