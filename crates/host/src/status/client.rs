//! Whoever asks the daemon.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::schema::{Answer, PATIENCE, Request, Status};

/// Asks the daemon behind the socket at `path`.
pub fn ask(path: &Path) -> io::Result<Status> {
    ask_with(path, false)
}

/// The same; `waits`: also who runs while vCPUs wait.
pub fn ask_with(path: &Path, waits: bool) -> io::Result<Status> {
    let client = UnixStream::connect(path)?;
    client.set_read_timeout(Some(PATIENCE * 2))?;
    let mut line = serde_json::to_vec(&Request::Status { waits }).map_err(io::Error::other)?;
    line.push(b'\n');
    (&client).write_all(&line)?;
    let mut text = String::new();
    BufReader::new(client).read_line(&mut text)?;
    match serde_json::from_str(&text).map_err(io::Error::other)? {
        Answer::Status(status) => Ok(*status),
        Answer::Error { error } => Err(io::Error::other(error)),
    }
}
