//! `entrain lab shell` without a terminal: lines from stdin, each run in the host machine or a guest.
use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use anyhow::{Context, bail};
use crossbeam_channel::RecvTimeoutError;
use entrain_lab_machine::machine::{Command, GuestSpec, Machine, Running, Target, pace::Pace};

/// What a line of a script asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Shell(Target, &'a str),
    Put { target: Target, file: &'a str, path: &'a str },
    Get { target: Target, path: &'a str, file: &'a str },
    Start { vcpus: u32, memory_mib: u32 },
    Stop(usize),
    Reset(usize),
    Pause(usize),
    Resume(usize),
    Profile { seconds: f64, file: &'a str },
    Pace(Pace),
}

/// Help on scripts, for the command's long help.
pub(super) const HELP: &str = "\
Without a terminal, lines are read from stdin and run one after the other:
  COMMAND…                   runs in the host machine (or where --in says)
  @N COMMAND…                runs in guest N; @host in the host machine
  … >FILE 2>&1 &             goes on behind the next lines; what keeps its output ends with its line
  %put FILE PATH             copies a file into the machine; '@N %put …' into guest N
  %get PATH FILE             copies a file out of it
  %start VCPUS MIB           starts one more guest
  %stop N, %reset N, %pause N, %resume N
  %profile SECONDS FILE      samples what the host machine's CPUs run while the next lines go on
  %pace N                    its time passes N times slower from now on, as where `run` comes to an arm's loads
A line '# …' is a comment. The exit status is that of the last line that failed.";

fn parse(text: &str, default: Target) -> anyhow::Result<Line<'_>> {
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(Line::Nothing);
    }
    let (target, text) = match text.strip_prefix('@') {
        None => (default, text),
        Some(rest) => {
            let (who, line) = rest.split_once(' ').context("a target without a command")?;
            (who.parse().map_err(anyhow::Error::msg)?, line.trim())
        }
    };
    let Some(order) = text.strip_prefix('%') else { return Ok(Line::Shell(target, text)) };
    let words: Vec<&str> = order.split_whitespace().collect();
    let guest = |n: &str| n.parse::<usize>().with_context(|| format!("'{n}' is no guest's number"));
    let span = |text: &str| {
        let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=600.0).contains(s));
        seconds.with_context(|| format!("'{text}' is no number of seconds from 0 to 600"))
    };
    Ok(match words[..] {
        ["put", file, path] => Line::Put { target, file, path },
        ["get", path, file] => Line::Get { target, path, file },
        ["start", vcpus, mib] => Line::Start { vcpus: vcpus.parse()?, memory_mib: mib.parse()? },
        ["stop", n] => Line::Stop(guest(n)?),
        ["reset", n] => Line::Reset(guest(n)?),
        ["pause", n] => Line::Pause(guest(n)?),
        ["resume", n] => Line::Resume(guest(n)?),
        ["profile", seconds, file] => Line::Profile { seconds: span(seconds)?, file },
        ["pace", n] => Line::Pace(n.parse().map_err(anyhow::Error::msg)?),
        _ => bail!("unknown order '%{order}' (see entrain lab shell --help)"),
    })
}

/// Runs the lines of stdin; returns the exit status of the last that failed, or 0.
pub(super) fn run(machine: &Machine, default: Target, deadline: Duration) -> anyhow::Result<i32> {
    std::thread::scope(|scope| lines(machine, default, deadline, scope))
}

fn lines<'a>(
    machine: &'a Machine,
    default: Target,
    deadline: Duration,
    scope: &'a std::thread::Scope<'a, '_>,
) -> anyhow::Result<i32> {
    let (mut status, mut number) = (0, 0);
    let (lines, script) = crossbeam_channel::bounded(0);
    // Ends with the process: a read cannot be called off.
    std::thread::spawn(move || io::stdin().lock().lines().try_for_each(|line| lines.send(line)));
    loop {
        let text = loop {
            entrain_lab_machine::cancel::check()?;
            match script.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => break line.context("reading the script")?,
                Err(RecvTimeoutError::Timeout) => machine.check()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(status),
            }
        };
        number += 1;
        let outcome = parse(&text, default).and_then(|line| one(machine, &line, deadline, scope));
        match outcome {
            Ok(0) => {}
            Ok(other) => {
                eprintln!("line {number}: status {other}");
                status = other;
            }
            Err(error) => {
                // A machine that died takes the script with it; a mistyped line does not.
                machine.check()?;
                eprintln!("line {number}: {error:#}");
                status = 1;
            }
        }
    }
}

/// Beside the script, which has gone on: what fails is said, and is no line's status.
fn profile(machine: &Machine, span: Duration, file: &str) {
    let written = machine
        .profile(span)
        .map_err(anyhow::Error::from)
        .and_then(|table| std::fs::write(file, table).with_context(|| format!("writing {file}")));
    if let Err(error) = written {
        eprintln!("%profile: {error:#}");
    }
}

/// Runs one line; what goes on beside the next ones, in `scope`.
fn one<'a>(
    machine: &'a Machine,
    line: &Line<'_>,
    deadline: Duration,
    scope: &'a std::thread::Scope<'a, '_>,
) -> anyhow::Result<i32> {
    match *line {
        Line::Nothing => {}
        Line::Shell(target, text) => {
            return stream(machine, machine.start(target, Command::shell(text).within(deadline))?);
        }
        Line::Put { target, file, path } => {
            let bytes = std::fs::read(file).with_context(|| format!("reading {file}"))?;
            machine.put(target, path, &bytes, 0o755)?;
        }
        Line::Get { target, path, file } => {
            let bytes = machine.get(target, path)?;
            std::fs::write(file, bytes).with_context(|| format!("writing {file}"))?;
        }
        Line::Start { vcpus, memory_mib } => {
            let name = format!("guest{}", machine.guests());
            let guest = machine.start_guest(&GuestSpec { memory_mib, ..GuestSpec::new(name, vcpus) })?;
            println!("guest {guest} is up");
        }
        Line::Stop(n) => machine.stop_guest(n)?,
        Line::Reset(n) => machine.reset_guest(n)?,
        Line::Pause(n) => machine.pause_guest(n)?,
        Line::Resume(n) => machine.resume_guest(n)?,
        Line::Profile { seconds, file } => {
            let (span, file) = (Duration::from_secs_f64(seconds), file.to_owned());
            scope.spawn(move || profile(machine, span, &file));
        }
        Line::Pace(pace) => machine.set_pace(machine.factor_of(pace)?)?,
    }
    Ok(0)
}

/// Hands a command's output on as it comes; returns its exit status. Ends also when another machine than the one that it
/// runs in breaks down: whoever waits for a command in the host machine wants to know of a guest's end.
pub(super) fn stream(machine: &Machine, mut running: Running) -> anyhow::Result<i32> {
    while let Some((err, bytes)) = running.piece(Duration::from_secs(1))? {
        machine.check()?;
        if err {
            io::stderr().write_all(&bytes)?;
        } else {
            io::stdout().write_all(&bytes)?;
            io::stdout().flush()?;
        }
    }
    Ok(running.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_their_target() {
        let parse = |text| parse(text, Target::Host).unwrap();
        assert_eq!(parse("  # nothing"), Line::Nothing);
        assert_eq!(parse("ls -l"), Line::Shell(Target::Host, "ls -l"));
        assert_eq!(parse("@1 ls"), Line::Shell(Target::Guest(1), "ls"));
        assert_eq!(parse("@host nproc"), Line::Shell(Target::Host, "nproc"));
        assert_eq!(parse("@0 %put a /b"), Line::Put { target: Target::Guest(0), file: "a", path: "/b" });
        assert_eq!(parse("%start 4 384"), Line::Start { vcpus: 4, memory_mib: 384 });
        assert_eq!(parse("%reset 1"), Line::Reset(1));
        assert_eq!(parse("%profile 0.5 a.txt"), Line::Profile { seconds: 0.5, file: "a.txt" });
        assert_eq!(parse("%pace 16"), Line::Pace(Pace::Times(16.0)));
    }

    #[test]
    fn mistakes_are_told() {
        for text in ["@x ls", "@1", "%reset", "%reset x", "%boil 3", "%profile -1 a", "%profile nan a", "%pace 0"] {
            assert!(parse(text, Target::Host).is_err(), "{text}");
        }
    }
}
