//! `entrain lab shell`: a host machine with guests up, and a terminal on it; or one command in it; or a script.
use std::{
    io::{self, IsTerminal, Read, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use rustix::termios::{self, OptionalActions, Termios};

use super::{machine_args::MachineArgs, script};
use crate::{
    Cache, cancel,
    machine::{Command, Machine, Target},
    progress::Spinner,
};

/// Ctrl-]: leaves the terminal, as telnet and virsh do.
const LEAVE: u8 = 0x1d;
/// A terminal may stay open for as long as its user likes.
const FOREVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Options of `entrain lab shell`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = script::HELP)]
pub(super) struct ShellArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Open the shell (or run the command) in that guest instead of the host machine
    #[arg(long = "in", value_name = "GUEST")]
    guest: Option<usize>,
    /// Deadline of the command, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    deadline: u64,
    /// A command to run instead of a shell; its exit status becomes this program's
    #[arg(last = true)]
    command: Vec<String>,
}

pub(super) fn run(args: ShellArgs) -> anyhow::Result<ExitCode> {
    let target = args.guest.map_or(Target::Host, Target::Guest);
    let cache = Cache::open()?;
    let machine = {
        let spinner = Spinner::new();
        Machine::boot(&cache, &args.machine.spec(), &spinner)?
    };
    let deadline = Duration::from_secs(args.deadline);
    let status = if !args.command.is_empty() {
        script::stream(machine.start(target, Command::new(args.command).within(deadline))?)?
    } else if io::stdin().is_terminal() {
        terminal(&machine, target)?
    } else {
        script::run(&machine, target, deadline)?
    };
    machine.shutdown()?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// Connects this terminal with a shell in the machine.
fn terminal(machine: &Machine, target: Target) -> anyhow::Result<i32> {
    eprintln!(
        "{target} ({}, Linux {}), up after {:.0} s with {} guests. 'exit' or Ctrl-] leaves.",
        machine.spec().arch,
        machine.release(target),
        machine.boot_time().as_secs_f32(),
        machine.spec().guests.len(),
    );
    let command = Command {
        env: vec![
            ("TERM".into(), std::env::var("TERM").unwrap_or("linux".into())),
            ("PS1".into(), format!("{target}# ")),
        ],
        ..Command::new(["sh", "-i"]).within(FOREVER)
    };
    let mut running = machine.start_on_terminal(target, command, size())?;
    let resized = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGWINCH, Arc::clone(&resized)).context("SIGWINCH")?;
    let (keys, pressed) = crossbeam_channel::unbounded::<Vec<u8>>();
    let raw = Raw::enter()?;
    // Ends with the process: a read from a terminal cannot be called off.
    thread::spawn(move || {
        let mut piece = [0; 1024];
        while let Ok(n @ 1..) = io::stdin().read(&mut piece) {
            if keys.send(piece[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    loop {
        while let Ok(bytes) = pressed.try_recv() {
            if let Some(end) = bytes.iter().position(|b| *b == LEAVE) {
                running.input(&bytes[..end])?;
                drop(raw);
                eprintln!();
                return Ok(0);
            }
            running.input(&bytes)?;
        }
        if resized.swap(false, Ordering::Relaxed) {
            running.resize(size())?;
        }
        cancel::check()?;
        let Some((_, bytes)) = running.piece(Duration::from_millis(15))? else {
            drop(raw);
            return Ok(running.status());
        };
        io::stdout().write_all(&bytes)?;
        io::stdout().flush()?;
    }
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
