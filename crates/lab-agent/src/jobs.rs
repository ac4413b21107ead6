//! Programs that the agent runs for the lab.
//!
//! Every thread here blocks until there is something to do: an agent that polls would disturb what is measured.
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, Sender};
use rustix::{
    process::{Pid, Signal, kill_process_group},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{frame::PIECE, message::Event, outbox::Outbox};

/// How long output is waited for after the program itself has ended: a child that it left behind may hold the pipe.
const REST: Duration = Duration::from_millis(300);

/// The running programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jobs(Arc<Mutex<HashMap<u32, Job>>>);

#[derive(Debug)]
struct Job {
    group: Pid,
    input: Sender<Vec<u8>>,
    terminal: Option<OwnedFd>,
}

impl Jobs {
    /// Starts a program.
    pub(crate) fn spawn(
        &self,
        id: u32,
        argv: &[String],
        env: &[(String, String)],
        deadline: Duration,
        terminal: Option<(u16, u16)>,
        out: &Outbox,
    ) -> io::Result<()> {
        let (program, args) = argv.split_first().ok_or_else(|| io::Error::other("no program given"))?;
        let mut command = Command::new(program);
        command.args(args).envs(env.iter().map(|(k, v)| (k, v))).current_dir("/root");
        let spawned = match terminal {
            None => with_pipes(&mut command),
            Some(size) => with_terminal(&mut command, size),
        };
        let Streams { child, input, outputs, terminal } =
            spawned.map_err(|e| io::Error::other(format!("{program}: {e}")))?;
        let group = Pid::from_child(&child);
        let (feed, food) = crossbeam_channel::unbounded::<Vec<u8>>();
        thread::spawn(move || {
            let mut input = input;
            // An empty piece ends the input; a program that does not read it is no fault.
            for piece in food.iter().take_while(|p| !p.is_empty()) {
                if input.write_all(&piece).is_err() {
                    break;
                }
            }
        });
        self.0.lock().expect("no panic under it").insert(id, Job { group, input: feed, terminal });
        let readers: Vec<_> = outputs.into_iter().map(|(err, from)| forward(id, err, from, out.clone())).collect();
        let (jobs, out) = (self.clone(), out.clone());
        thread::spawn(move || {
            let (status, late) = wait(child, group, deadline);
            finish(readers);
            jobs.0.lock().expect("no panic under it").remove(&id);
            out.send(&Event::Exited { id, status, late });
        });
        Ok(())
    }

    /// Hands a piece of input on; empty ends it.
    pub(crate) fn input(&self, id: u32, bytes: Vec<u8>) {
        if let Some(job) = self.0.lock().expect("no panic under it").get(&id) {
            let _ = job.input.send(bytes);
        }
    }

    /// Sets the size of its terminal.
    pub(crate) fn resize(&self, id: u32, size: (u16, u16)) {
        if let Some(Job { terminal: Some(terminal), .. }) = self.0.lock().expect("no panic under it").get(&id) {
            let _ = tcsetwinsize(terminal, winsize(size));
        }
    }

    /// Signals its process group. A program that has ended is no error: the lab could not know.
    pub(crate) fn signal(&self, id: u32, signal: i32) {
        if let (Some(job), Some(signal)) =
            (self.0.lock().expect("no panic under it").get(&id), Signal::from_named_raw(signal))
        {
            let _ = kill_process_group(job.group, signal);
        }
    }
}

struct Streams {
    child: Child,
    input: Box<dyn Write + Send>,
    outputs: Vec<(bool, Box<dyn Read + Send>)>,
    terminal: Option<OwnedFd>,
}

fn with_pipes(command: &mut Command) -> io::Result<Streams> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let input = child.stdin.take().expect("piped");
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    Ok(Streams {
        child,
        input: Box::new(input),
        outputs: vec![(false, Box::new(out)), (true, Box::new(err))],
        terminal: None,
    })
}

fn with_terminal(command: &mut Command, size: (u16, u16)) -> io::Result<Streams> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    tcsetwinsize(&ours, winsize(size))?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = File::options().read(true).write(true).open(name.to_string_lossy().as_ref())?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    // SAFETY: between fork and exec two system calls only; stdin is the terminal by then.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(BorrowedFd::borrow_raw(0))?;
            Ok(())
        });
    }
    let child = command.spawn()?;
    // The command keeps its copies of the terminal; without them dropped its end would never be seen.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Streams {
        child,
        input: Box::new(File::from(ours.try_clone()?)),
        outputs: vec![(false, Box::new(File::from(ours.try_clone()?)))],
        terminal: Some(ours.as_fd().try_clone_to_owned()?),
    })
}

fn winsize((rows, columns): (u16, u16)) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn forward(id: u32, err: bool, mut from: Box<dyn Read + Send>, out: Outbox) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        // A terminal's end is an error (EIO), a pipe's is 0.
        while let Ok(n @ 1..) = from.read(&mut piece) {
            out.send(&Event::Output { id, err, bytes: piece[..n].to_vec() });
        }
    })
}

/// Waits for the program; kills its process group at the deadline.
fn wait(mut child: Child, group: Pid, deadline: Duration) -> (i32, bool) {
    let (ended, end) = crossbeam_channel::bounded::<()>(0);
    let guard = thread::spawn(move || {
        let late = end.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout);
        if late {
            let _ = kill_process_group(group, Signal::KILL);
        }
        late
    });
    let status = child.wait();
    drop(ended);
    let late = guard.join().unwrap_or(false);
    (status.map_or(-1, code), late)
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Waits for the readers, but not for ever.
fn finish(readers: Vec<JoinHandle<()>>) {
    let (done, all) = crossbeam_channel::bounded::<()>(0);
    thread::spawn(move || {
        for reader in readers {
            let _ = reader.join();
        }
        drop(done);
    });
    let _ = all.recv_timeout(REST);
}
