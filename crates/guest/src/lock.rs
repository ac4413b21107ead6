//! One agent in a guest: a locked file with the agent's process number. The lock goes with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::{GuestError, Result};

/// How long an agent is given to end: more than it waits for its host.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The right to be the agent.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; fails if an agent runs.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join("guest.lock");
        let failed = |source| GuestError::File { path: path.clone(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        // Somebody who only looks whether an agent runs holds it for a moment.
        let mut tries = 0;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            tries += 1;
            if tries > 5 {
                return Err(GuestError::Running { pid: read_pid(&path, &mut file)? });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }

    /// The agent that runs, if one does.
    pub fn holder(folder: &Path) -> Result<Option<u32>> {
        let path = folder.join("guest.lock");
        let Ok(mut file) = File::open(&path) else { return Ok(None) };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(_) => read_pid(&path, &mut file).map(Some),
        }
    }

    /// Takes the lock, after asking the agent that holds it to end.
    pub fn take_over(folder: &Path) -> Result<Self> {
        let deadline = Instant::now() + END_PATIENCE;
        let mut asked = false;
        loop {
            let pid = match Self::take(folder) {
                Err(GuestError::Running { pid }) => pid,
                other => return other,
            };
            if !asked {
                asked = true;
                let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
                // It may just have ended: then the lock is free at the next look.
                let _ = process.map(|process| kill_process(process, Signal::TERM));
            }
            if Instant::now() > deadline {
                return Err(GuestError::DoesNotEnd { pid, seconds: END_PATIENCE.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn read_pid(path: &Path, file: &mut File) -> Result<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|source| GuestError::File { path: path.into(), source })?;
    text.trim().parse().map_err(|_| GuestError::Unexpected { path: path.into(), found: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(Lock::holder(dir.path()).expect("no lock"), None);
        let lock = Lock::take(dir.path()).expect("free");
        let Err(GuestError::Running { pid }) = Lock::take(dir.path()) else { panic!("taken twice") };
        assert_eq!(pid, std::process::id());
        assert_eq!(Lock::holder(dir.path()).expect("held"), Some(pid));
        drop(lock);
        assert_eq!(Lock::holder(dir.path()).expect("free again"), None);
        Lock::take(dir.path()).expect("free again");
    }
}
