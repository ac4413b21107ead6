//! This terminal, connected with shells in the host machine and its guests: one at a time, the others go on.
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use crossbeam_channel::{Receiver, unbounded};
use entrain_lab_machine::{
    cancel,
    machine::{Command, Machine, Running, Target},
};
use rustix::termios::{self, OptionalActions, Termios};

/// Ctrl-], the key before an order to the lab itself, as in telnet and virsh.
const ESCAPE: u8 = 0x1d;
/// A terminal may stay open for as long as its user likes.
const FOREVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the screen may be behind the keys.
const GLANCE: Duration = Duration::from_millis(15);

/// What a key after [`ESCAPE`] asks for.
#[derive(Debug, Eq, PartialEq)]
enum Order {
    Leave,
    Enter(Target),
    /// The escape key itself, for a program that wants it.
    Pass,
    Help,
}

fn order(key: u8) -> Order {
    match key {
        ESCAPE | b'q' | b'.' => Order::Leave,
        b'h' => Order::Enter(Target::Host),
        b'0'..=b'9' => Order::Enter(Target::Guest(usize::from(key - b'0'))),
        b']' => Order::Pass,
        _ => Order::Help,
    }
}

/// Opens a shell in `first`; ends with it, or when the user leaves. The status is that of this shell.
pub(super) fn run(machine: &Machine, first: Target) -> anyhow::Result<i32> {
    eprintln!(
        "{first} ({}, Linux {}), up after {:.0} s with {} guests. 'exit' ends; Ctrl-] and 0…9 enters that guest, \
         h the host machine; Ctrl-] twice leaves.",
        machine.spec().arch,
        machine.release(first),
        machine.boot_time().as_secs_f32(),
        machine.guests(),
    );
    let resized = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGWINCH, Arc::clone(&resized)).context("SIGWINCH")?;
    let raw = Raw::enter()?;
    let mut screen = Screen { machine, first, now: first, shells: BTreeMap::new(), escaped: false, told: false };
    screen.enter(first)?;
    let keys = keys();
    let status = loop {
        while let Ok(bytes) = keys.try_recv() {
            if !screen.keys(&bytes)? {
                drop(raw);
                eprintln!();
                return Ok(0);
            }
        }
        if resized.swap(false, Ordering::Relaxed) {
            screen.resize()?;
        }
        cancel::check()?;
        if let Some(status) = screen.output()? {
            break status;
        }
    };
    drop(raw);
    Ok(status)
}

/// What is typed. The thread ends with the process: a read from a terminal cannot be called off.
fn keys() -> Receiver<Vec<u8>> {
    let (keys, pressed) = unbounded();
    thread::spawn(move || {
        let mut piece = [0; 1024];
        while let Ok(n @ 1..) = io::stdin().read(&mut piece) {
            if keys.send(piece[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    pressed
}

struct Screen<'a> {
    machine: &'a Machine,
    first: Target,
    /// Whose shell is shown.
    now: Target,
    shells: BTreeMap<Target, Running>,
    /// The escape key was the last one.
    escaped: bool,
    /// A broken guest was told of.
    told: bool,
}

impl Screen<'_> {
    /// Shows a machine's shell, which is opened if there is none.
    fn enter(&mut self, target: Target) -> anyhow::Result<()> {
        if !self.shells.contains_key(&target) {
            let command = Command {
                env: vec![
                    ("TERM".into(), std::env::var("TERM").unwrap_or("linux".into())),
                    ("PS1".into(), format!("{target}# ")),
                ],
                ..Command::new(["sh", "-i"]).within(FOREVER)
            };
            let shell = self.machine.start_on_terminal(target, command, size())?;
            self.shells.insert(target, shell);
        }
        self.now = target;
        self.resize()
    }

    /// Enters on the user's order: one that can't be entered is told, and the terminal stays where it was.
    fn switch(&mut self, target: Target) -> anyhow::Result<()> {
        let again = self.shells.contains_key(&target);
        let guests = self.machine.guests();
        match target {
            Target::Guest(n) if n >= guests => return say(&format!("there is no guest {n}: {guests} were started")),
            _ => say(&format!("{target}{}", if again { " (Enter shows its prompt)" } else { "" }))?,
        }
        match self.enter(target) {
            Err(error) if self.machine_lives() => say(&format!("{error:#}")),
            other => other,
        }
    }

    /// Does the host machine, at least, still live? With it all shells end.
    fn machine_lives(&self) -> bool {
        self.machine.check_host().is_ok()
    }

    fn resize(&mut self) -> anyhow::Result<()> {
        if let Some(shell) = self.shells.get(&self.now) {
            shell.resize(size())?;
        }
        Ok(())
    }

    /// Takes what was typed; false if the user leaves.
    fn keys(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        let mut plain = Vec::new();
        for &key in bytes {
            if !std::mem::take(&mut self.escaped) {
                if key == ESCAPE {
                    self.escaped = true;
                } else {
                    plain.push(key);
                }
                continue;
            }
            match order(key) {
                Order::Pass => plain.push(ESCAPE),
                Order::Leave => return Ok(false),
                Order::Help => say("Ctrl-] then: 0…9 that guest, h the host machine, ] sends Ctrl-], q leaves")?,
                Order::Enter(target) => {
                    self.input(&std::mem::take(&mut plain))?;
                    self.switch(target)?;
                }
            }
        }
        self.input(&plain)?;
        Ok(true)
    }

    fn input(&self, bytes: &[u8]) -> anyhow::Result<()> {
        match self.shells.get(&self.now) {
            // An empty piece would end the shell's input.
            Some(shell) if !bytes.is_empty() => Ok(shell.input(bytes)?),
            _ => Ok(()),
        }
    }

    /// Shows what the present shell wrote; the status of the first one once that has ended.
    fn output(&mut self) -> anyhow::Result<Option<i32>> {
        if !self.told
            && self.machine_lives()
            && let Err(error) = self.machine.check()
        {
            self.told = true;
            say(&format!("{error:#}"))?;
        }
        let machine = self.machine;
        let Some(shell) = self.shells.get_mut(&self.now) else { return Ok(None) };
        let piece = match shell.piece(GLANCE) {
            // A guest that broke down takes its own shell along, not the terminal.
            Err(error) if self.now != self.first && machine.check_host().is_ok() => {
                tracing::debug!("{error}");
                None
            }
            other => other?,
        };
        if let Some((_, bytes)) = piece {
            io::stdout().write_all(&bytes)?;
            io::stdout().flush()?;
            return Ok(None);
        }
        let status = shell.status();
        self.shells.remove(&self.now);
        if self.now == self.first {
            return Ok(Some(status));
        }
        let first = self.first;
        self.switch(first)?;
        Ok(None)
    }
}

/// A word of the lab's own between the shells' output, on a terminal that is raw.
fn say(text: &str) -> anyhow::Result<()> {
    let mut err = io::stderr().lock();
    write!(err, "\r\n-- {} --\r\n", text.replace('\n', "\r\n"))?;
    Ok(())
}

fn size() -> (u16, u16) {
    termios::tcgetwinsize(io::stdout()).map_or((24, 80), |w| (w.ws_row, w.ws_col))
}

/// The terminal without line editing and signals; as it was before once this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> anyhow::Result<Self> {
        let before = termios::tcgetattr(io::stdin()).context("this terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).context("this terminal's settings")?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_after_the_escape() {
        assert_eq!(order(b'0'), Order::Enter(Target::Guest(0)));
        assert_eq!(order(b'h'), Order::Enter(Target::Host));
        assert_eq!(order(ESCAPE), Order::Leave);
        assert_eq!(order(b']'), Order::Pass);
        assert_eq!(order(b'x'), Order::Help);
    }
}
