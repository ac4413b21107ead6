//! One QEMU process: the same on the development machine (the host machine's) and in the host machine (its guests').
//!
//! Console, agent's port and QMP are socket pairs that QEMU inherits, so nothing lies in the file system, and all of them
//! end with the process.
use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, kill_process, set_parent_process_death_signal},
};

/// How QEMU is called.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The program and what must come before QEMU's own arguments (a loader and its library path, `-L …`).
    pub argv: Vec<OsString>,
    /// Variables beside the lab's own.
    pub env: Vec<(&'static str, String)>,
    /// Descriptors that it inherits under their numbers; they must stay open until [`Qemu::start`] has returned.
    pub inherit: Vec<RawFd>,
}

/// Our ends of the sockets.
#[derive(Debug)]
pub struct Ports {
    /// The console.
    pub console: UnixStream,
    /// The agent's port.
    pub agent: UnixStream,
    /// QMP.
    pub qmp: Monitor,
}

/// A running QEMU. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Qemu {
    pid: Pid,
    done: Arc<Done>,
}

#[derive(Debug, Default)]
struct Done {
    flag: AtomicBool,
    status: Mutex<Option<ExitStatus>>,
}

impl Qemu {
    /// Starts QEMU with `args`; they name the sockets as the character devices `console`, `agent` and `qmp`.
    pub fn start(program: &Program, args: Vec<String>) -> io::Result<(Self, Ports)> {
        let mut theirs = Vec::new();
        let mut pair = || -> io::Result<UnixStream> {
            let (ours, qemus) = UnixStream::pair()?;
            theirs.push(OwnedFd::from(qemus));
            Ok(ours)
        };
        let ports = Ports { console: pair()?, agent: pair()?, qmp: Monitor::new(pair()?) };
        let mut command = Command::new(&program.argv[0]);
        command.args(&program.argv[1..]).envs(program.env.iter().map(|(name, value)| (name, value)));
        for (id, fd) in ["console", "agent", "qmp"].iter().zip(&theirs) {
            command.arg("-chardev").arg(format!("socket,id={id},fd={}", fd.as_raw_fd()));
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let inherited: Vec<RawFd> =
            theirs.iter().map(AsRawFd::as_raw_fd).chain(program.inherit.iter().copied()).collect();
        // SAFETY: between fork and exec only two system calls are made, which are async-signal-safe; the descriptors are
        // open until the spawn has returned.
        unsafe {
            command.pre_exec(move || {
                // A lab that is killed takes its QEMU along.
                set_parent_process_death_signal(Some(Signal::KILL))?;
                for fd in &inherited {
                    fcntl_setfd(std::os::fd::BorrowedFd::borrow_raw(*fd), FdFlags::empty())?;
                }
                Ok(())
            });
        }
        // The death signal belongs to the thread that forks: this one lives as long as QEMU does.
        let done = Arc::new(Done::default());
        let (send, receive) = crossbeam_channel::bounded(1);
        let keeper = Arc::clone(&done);
        thread::Builder::new().name("qemu".into()).spawn(move || {
            let spawned = command.spawn();
            drop(theirs);
            match spawned {
                Ok(child) => {
                    let _ = send.send(Ok(Pid::from_child(&child)));
                    keep(child, &keeper);
                }
                Err(e) => drop(send.send(Err(e))),
            }
        })?;
        let pid = receive.recv().map_err(io::Error::other)??;
        Ok((Self { pid, done }, ports))
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.done.flag.load(Ordering::Acquire).then(|| *self.done.status.lock().expect("no panic under it")).flatten()
    }

    /// Waits for its end for at most `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.done.flag.load(Ordering::Acquire) {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Kills it. Its end may take a moment: see [`Self::wait`].
    pub fn kill(&self) {
        // Once reaped, the number may belong to another process.
        let status = self.done.status.lock().expect("no panic under it");
        if !self.done.flag.load(Ordering::Acquire) {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        drop(status);
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        self.wait(Duration::from_secs(5));
    }
}

/// Waits for QEMU, and hands on what it says.
fn keep(mut child: Child, done: &Done) {
    if let Some(stderr) = child.stderr.take() {
        // Ends with QEMU: nobody else holds the other end.
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains("warning:") {
                tracing::debug!("QEMU: {line}");
            } else {
                tracing::warn!("QEMU: {line}");
            }
        }
    }
    let status = loop {
        let mut slot = done.status.lock().expect("no panic under it");
        match child.try_wait() {
            Ok(Some(status)) => {
                *slot = Some(status);
                done.flag.store(true, Ordering::Release);
                break status;
            }
            Ok(None) => {
                drop(slot);
                thread::sleep(Duration::from_millis(5));
            }
            Err(e) => {
                tracing::error!("QEMU's end is unknown: {e}");
                done.flag.store(true, Ordering::Release);
                return;
            }
        }
    };
    tracing::debug!("QEMU ended: {status}");
}

/// QEMU's monitor (QMP).
#[derive(Debug)]
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Gives it commands one after the other and returns the last answer.
    pub fn run(&mut self, commands: &[impl AsRef<str>], limit: Duration) -> io::Result<String> {
        self.0.get_ref().set_read_timeout(Some(limit))?;
        let mut answer = String::new();
        for command in commands {
            writeln!(self.0.get_mut(), "{}", command.as_ref())?;
            answer = loop {
                let line = self.line()?;
                // The greeting and events come in between.
                if line.contains("\"return\"") {
                    break line;
                }
                if line.contains("\"error\"") {
                    return Err(io::Error::other(line));
                }
            };
        }
        Ok(answer)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let silent = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "QEMU's monitor does not answer"),
            _ => e,
        };
        self.0.read_until(b'\n', &mut line).map_err(silent)?;
        if line.pop() != Some(b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU ended"));
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(script: &str) -> Program {
        // QEMU's arguments come after the script and are ignored by it.
        Program { argv: ["sh", "-c", script].map(OsString::from).to_vec(), ..Program::default() }
    }

    #[test]
    fn dropping_it_kills_the_process() {
        let (qemu, _ports) = Qemu::start(&shell("exec sleep 1000"), vec![]).unwrap();
        let pid = qemu.pid();
        assert!(qemu.ended().is_none());
        drop(qemu);
        assert_eq!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }

    #[test]
    fn its_end_is_seen_and_closes_the_ports() {
        let (qemu, mut ports) = Qemu::start(&shell("exit 3"), vec![]).unwrap();
        assert!(qemu.wait(Duration::from_secs(10)));
        assert_eq!(qemu.ended().unwrap().code(), Some(3));
        assert_eq!(ports.agent.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn the_monitor_answers_between_events_refuses_and_ends() {
        let (ours, mut qemus) = UnixStream::pair().unwrap();
        qemus.write_all(b"{\"QMP\": {}}\n{\"event\": \"X\"}\n{\"return\": 1}\n{\"error\": 2}\n{\"ret").unwrap();
        let mut monitor = Monitor::new(ours);
        let mut run = || monitor.run(&["{}"], Duration::from_millis(50));
        assert_eq!(run().unwrap(), "{\"return\": 1}");
        assert_eq!(run().unwrap_err().to_string(), "{\"error\": 2}");
        assert_eq!(run().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(qemus);
        assert!(run().is_err(), "QEMU has ended");
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let program = Program { argv: vec!["/nowhere/qemu".into()], ..Program::default() };
        assert_eq!(Qemu::start(&program, vec![]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
