//! The daemon's end of the socket, in a thread of its own.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::schema::{Answer, PATIENCE, Request, Status};
use crate::privilege;
use crate::seccomp::{Part, confine_or_say};

/// What a client wants of the main loop.
#[derive(Debug)]
pub(crate) struct Question {
    /// Also who runs while vCPUs wait.
    pub(crate) waits: bool,
    /// For the metrics: for whom VMs waited is counted from now on.
    pub(crate) metrics: bool,
    /// Takes the answer.
    pub(crate) reply: Sender<Answer>,
}

/// Asks the main loop.
pub(crate) struct Asker {
    put: Box<dyn Fn(Question) -> bool + Send + Sync>,
}

impl Asker {
    /// `put` brings a question before the main loop; false: nobody is there any more.
    pub(crate) fn new(put: impl Fn(Question) -> bool + Send + Sync + 'static) -> Self {
        Self { put: Box::new(put) }
    }

    fn ask(&self, waits: bool, metrics: bool) -> Option<Answer> {
        let (reply, answer) = bounded(1);
        let asked = (self.put)(Question { waits, metrics, reply });
        asked.then(|| answer.recv_timeout(PATIENCE).ok()).flatten()
    }

    /// The status, unless the daemon is ending or busy.
    pub(crate) fn status(&self) -> Option<Box<Status>> {
        Self::of(self.ask(false, false)?)
    }

    /// The status for a scrape of the metrics, unless the daemon is ending or busy.
    pub(crate) fn scrape(&self) -> Option<Box<Status>> {
        Self::of(self.ask(false, true)?)
    }

    fn of(answer: Answer) -> Option<Box<Status>> {
        match answer {
            Answer::Status(status) => Some(status),
            Answer::Error { .. } => None,
        }
    }
}

/// Pause after a client that could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves status requests until the process ends.
pub(crate) fn serve(path: &Path, asker: Asker) -> io::Result<()> {
    // The lock is ours, so a socket that is there belongs to a daemon that died.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    std::thread::Builder::new().name("status".into()).spawn(move || {
        if let Err(error) = privilege::drop_all() {
            tracing::warn!("the status socket's thread cannot give up its capabilities: {error}");
        }
        confine_or_say(Part::Status);
        for client in listener.incoming() {
            let Ok(client) = client else {
                // No file descriptor is left, say: the client waits, and asking at once would find the same.
                std::thread::sleep(ACCEPT_AGAIN);
                continue;
            };
            // One client at a time, each bounded in time and length: nobody can make the daemon grow or wait.
            if let Err(error) = answer(client, &asker) {
                tracing::debug!("a status client went away: {error}");
            }
        }
    })?;
    Ok(())
}

fn answer(client: UnixStream, asker: &Asker) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(&client).take(4096).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(Request::Status { waits }) => asker
            .ask(waits, false)
            .unwrap_or_else(|| Answer::Error { error: "the daemon is ending or busy; ask again".into() }),
        Err(error) => Answer::Error { error: format!("not a request: {error}; try {{\"request\":\"status\"}}") },
    };
    let mut text = serde_json::to_vec(&reply).map_err(io::Error::other)?;
    text.push(b'\n');
    (&client).write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::client::ask;
    use crate::status::tests::empty;

    #[test]
    fn answers_requests_and_says_what_is_wrong_with_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.sock");
        let (sender, receiver) = bounded::<Question>(1);
        serve(&path, Asker::new(move |question| sender.send(question).is_ok())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let main_loop = std::thread::spawn(move || {
            receiver.recv().unwrap().reply.send(Answer::Status(Box::new(empty()))).unwrap();
        });
        assert_eq!(ask(&path).unwrap().now_ns, 5);
        main_loop.join().unwrap();
        let client = UnixStream::connect(&path).unwrap();
        (&client).write_all(b"{\"request\":\"reboot\"}\n").unwrap();
        let mut text = String::new();
        BufReader::new(client).read_line(&mut text).unwrap();
        assert!(text.contains("not a request"), "{text}");
    }
}
