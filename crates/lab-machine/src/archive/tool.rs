//! Programs of the development machine that the lab calls.
use std::{
    ffi::OsStr,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use crate::{LabError, Result, cancel};

/// How long a program may take to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command that speaks plain English and reads nothing, in a process group of its own so that Ctrl-C reaches the
/// lab first.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").stdin(Stdio::null()).process_group(0);
    // SAFETY: one async-signal-safe system call between fork and exec. A lab that is killed takes the program along.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
    command
}

/// Runs a command to its end and returns its stdout; ends it when the user wants to stop.
///
/// `place` is the folder that it writes to: a full disk is reported with that folder.
pub fn run(command: &mut Command, place: &Path) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    drive(command.stdout(Stdio::piped()), name, place, &mut |_| {})
}

/// The same for a long task: `tell` gets every line of its stderr as it comes.
pub fn run_telling(command: &mut Command, place: &Path, tell: &mut dyn FnMut(&str)) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    drive(command.stdout(Stdio::piped()), name, place, tell)
}

/// The same with stdout written to a file.
pub fn run_to(command: &mut Command, file: File, place: &Path) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    drive(command.stdout(file), name, place, &mut |_| {}).map(drop)
}

fn drive(command: &mut Command, name: String, place: &Path, tell: &mut dyn FnMut(&str)) -> Result<String> {
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => LabError::Missing {
            what: format!("the program {name} is missing"),
            advice: "the lab needs Debian 12 or 13; run 'make setup' as root".into(),
        },
        _ => LabError::io(&name, e),
    })?;
    let out = child.stdout.take().map(|mut out| {
        thread::spawn(move || {
            let mut all = Vec::new();
            // A pipe that breaks ends the text; the exit status tells the rest.
            let _ = out.read_to_end(&mut all);
            String::from_utf8_lossy(&all).into_owned()
        })
    });
    let (sender, lines) = mpsc::channel();
    let from = child.stderr.take().expect("piped");
    let err = thread::spawn(move || read_lines(from, &sender));
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| LabError::io(&name, e))? {
            break status;
        }
        lines.try_iter().for_each(|line: String| tell(&line));
        if cancel::cancelled() {
            end(&mut child);
            return Err(LabError::Cancelled);
        }
        thread::sleep(Duration::from_millis(20));
    };
    let (out, err) =
        (out.map_or_else(String::new, |out| out.join().unwrap_or_default()), err.join().unwrap_or_default());
    if status.success() {
        return Ok(out);
    }
    if err.contains("No space left on device") || err.contains("don't have enough free space") {
        return Err(LabError::DiskFull { path: place.to_owned() });
    }
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    let tail: Vec<&str> = err.lines().rev().take(12).collect();
    Err(LabError::Program {
        program: format!("{name} {}", args.join(" ")),
        output: tail.into_iter().rev().collect::<Vec<_>>().join("\n"),
    })
}

/// Everything that comes, and each line of it at once to `lines`. A pipe that breaks ends the text.
fn read_lines(from: ChildStderr, lines: &mpsc::Sender<String>) -> String {
    let (mut from, mut all, mut line) = (BufReader::new(from), String::new(), Vec::new());
    while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let text = String::from_utf8_lossy(&line);
        all.push_str(&text);
        // The other end is gone once the program has ended.
        let _ = lines.send(text.trim_end().to_owned());
        line.clear();
    }
    all
}

/// Ends a program and what it started: asked first, since apt and dpkg tidy up, then made to.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let until = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

/// A short name for a list of words, the same from run to run.
pub fn digest<T: Hash>(words: impl IntoIterator<Item = T>) -> String {
    // DefaultHasher::new() has fixed keys. Not cryptographic: the names that it tells apart are our own.
    let mut hasher = DefaultHasher::new();
    for word in words {
        word.hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Is there such a program?
pub fn on_path(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
