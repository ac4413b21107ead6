//! Runs a program to its end, to a signal, or to a deadline; nothing of it stays behind.

use crate::clock::now_ns;
use crate::session::Session;
use anyhow::{Context, Result, anyhow, bail, ensure};
use entrain_workloads::wire::Reason;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// How long a program may take to end after it was asked to.
const PATIENCE_NS: u64 = 10_000_000_000;

/// What a program left.
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) reason: Reason,
    /// How long it ran.
    pub(crate) seconds: f64,
}

/// What to do when the deadline passes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Late {
    /// The program does not keep its time: an error.
    Fail,
    /// It has no time limit of its own: it is ended and what it printed until then is returned as None.
    End,
}

/// Runs `command` for at most `seconds`. A signal to us is handed on as SIGINT, on which all these programs print
/// what they have; one that does not end then is killed.
pub(crate) fn run(
    session: &Session,
    command: &mut Command,
    package: &str,
    seconds: f64,
    late: Late,
) -> Result<Option<Finished>> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let own_group = !leads_group();
    if own_group {
        command.process_group(0);
    }
    // SAFETY: all of `prepare`'s calls are async-signal-safe and use no memory but its own.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!(
            "{name} is missing here: install Debian's package {package}, or in the lab name it among the machine's programs"
        ),
        _ => anyhow!(error).context(format!("cannot start {name}")),
    })?;
    let mut group = Group { session, child, name, own_group };
    let stdout = reader(group.child.stdout.take().expect("it is piped"));
    let stderr = reader(group.child.stderr.take().expect("it is piped"));
    let start = now_ns();
    let ended = group.wait(start + (seconds * 1e9) as u64)?;
    let ran = (now_ns() - start) as f64 / 1e9;
    let (reason, status) = match ended {
        Ended::Itself(status) => (Reason::Time, status),
        Ended::Signal(status) => (Reason::Signal, status),
        Ended::Late if late == Late::End => return Ok(None),
        Ended::Late => bail!("{} did not end within {seconds:.0} s and was killed", group.name),
    };
    let collect = |thread: JoinHandle<io::Result<String>>| thread.join().expect("the reader does not panic");
    let (stdout, stderr) = (collect(stdout)?, collect(stderr)?);
    ensure!(
        status.success() || reason == Reason::Signal,
        "{} failed ({}): {}",
        group.name,
        status.signal().map_or(format!("exit status {}", status.code().unwrap_or(-1)), |s| format!("signal {s}")),
        last_words(&stderr, &stdout)
    );
    Ok(Some(Finished { stdout, reason, seconds: ran }))
}

/// In the child: it must not outlive us even if we are killed, and it must hear the signals that we block.
fn prepare() -> io::Result<()> {
    // SAFETY: prctl and signal take plain numbers; the set is ours and sigemptyset fills it.
    let done = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
            && libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn last_words(stderr: &str, stdout: &str) -> String {
    let text = if stderr.trim().is_empty() { stdout } else { stderr };
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<io::Result<String>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    })
}

enum Ended {
    Itself(std::process::ExitStatus),
    Signal(std::process::ExitStatus),
    Late,
}

/// Are we the leader of our process group, as under the lab's agent or an interactive shell? Then the program stays
/// in it, so that whoever kills the group kills the program's children too. Else a group of its own is needed: ours
/// may hold the script that called us.
fn leads_group() -> bool {
    // SAFETY: both calls take no arguments and cannot fail.
    unsafe { libc::getpgrp() == libc::getpid() }
}

/// The program and its children.
struct Group<'a> {
    session: &'a Session,
    child: Child,
    name: String,
    /// They have a process group of their own.
    own_group: bool,
}

impl Group<'_> {
    fn wait(&mut self, deadline: u64) -> Result<Ended> {
        let pidfd = pidfd(&self.child).with_context(|| format!("cannot watch {}", self.name))?;
        if self.session.wait_for(pidfd.as_raw_fd(), deadline)?.is_some() {
            return Ok(Ended::Itself(self.child.wait()?));
        }
        if now_ns() >= deadline {
            return Ok(Ended::Late);
        }
        self.signal(libc::SIGINT);
        // A second signal while we wait ends our patience.
        match self.session.wait_for(pidfd.as_raw_fd(), now_ns() + PATIENCE_NS)? {
            Some(()) => Ok(Ended::Signal(self.child.wait()?)),
            None => bail!("{} did not end when it was interrupted and was killed", self.name),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let group = if self.own_group { self.child.id() as libc::pid_t } else { 0 };
        // SAFETY: kill takes plain numbers. In our own group the signal is one that we block and read ourselves. A group
        // of the child's own keeps its number while the child is not reaped or members of it live.
        unsafe { libc::kill(-group, signal) };
        if !self.own_group {
            self.session.forget_signals();
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // The leader is perhaps reaped; what it left behind in its group must go with it.
        if self.own_group {
            self.signal(libc::SIGKILL);
        } else {
            self.signal(libc::SIGTERM);
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers; the descriptor is new and owned by nobody else.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, child.id(), 0) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
