//! `entrain lab shell`: a host machine with guests up, and a terminal on it; or one command in it; or a script.
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use entrain_lab_machine::{
    Cache,
    machine::{Command, Machine, Target},
    progress::Spinner,
};

use super::{machine_args::MachineArgs, script, terminal};

/// Options of `entrain lab shell`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = script::HELP)]
pub struct ShellArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Open the shell (or run the command) in that guest (guest0, or 0) instead of the host machine
    #[arg(long = "in", value_name = "GUEST", default_value = "host", hide_default_value = true)]
    target: Target,
    /// Deadline of the command, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    deadline: u64,
    /// A command to run instead of a shell; its exit status becomes this program's
    #[arg(last = true)]
    command: Vec<String>,
}

pub(super) fn run(args: ShellArgs) -> anyhow::Result<ExitCode> {
    let target = args.target;
    // Before the boot, which takes half a minute. A script may start more guests, but here none has.
    if let Target::Guest(n) = target
        && n as u64 >= u64::from(args.machine.guests)
    {
        bail!("there is no guest {n}: --guests starts {}, and they count from 0", args.machine.guests);
    }
    let cache = Cache::open()?;
    let machine = {
        let spinner = Spinner::new();
        let machine = Machine::boot(&cache, &args.machine.spec(), &spinner)?;
        machine.set_pace(machine.factor_of(args.machine.dilation)?)?;
        machine
    };
    let deadline = Duration::from_secs(args.deadline);
    let status = if !args.command.is_empty() {
        script::stream(&machine, machine.start(target, Command::new(args.command).within(deadline))?)?
    } else if io::stdin().is_terminal() {
        terminal::run(&machine, target)?
    } else {
        script::run(&machine, target, deadline)?
    };
    machine.shutdown()?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
