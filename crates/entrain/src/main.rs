//! The `entrain` command line.
mod part;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use entrain_cli::log::{self, Level};
use entrain_cli::{exit, generate, pipe};
use entrain_config::ConfigError;
use entrain_guest::error::GuestError;
use entrain_host::error::HostError;

/// Lets the scheduler of a KVM host and the schedulers of its guests work together.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// In a guest: tells the host about it, and shows what the host says
    Guest(entrain_guest::cli::GuestArgs),
    /// Isolated and real-time CPUs: who interrupts them, and their set-up
    Isolate(entrain_isolate::cli::IsolateArgs),
    /// The nested lab: stock KVM hosts with real guests, on any machine
    Lab(part::PartArgs),
    /// The schedulers of host and guest in a simulated kernel, on many CPUs
    Sim(part::PartArgs),
    /// On a KVM host: finds its VMs, pairs with their guests, publishes to them
    Host(entrain_host::cli::HostArgs),
    /// On a KVM host: a live table of its VMs and vCPUs
    Top(entrain_host::top::TopArgs),
    /// On a KVM host: records what the scheduler does with its VMs, for `report`
    Record(entrain_record::cli::RecordArgs),
    /// Where the VMs' time went, from a recording: text, HTML, JSON, Perfetto
    Report(entrain_record::cli::ReportArgs),
    /// On a KVM host: compares it with and without Entrain's scheduler, in turns
    Trial(entrain_trial::cli::TrialArgs),
    /// What this host or guest can do, what it or a VM lacks, and the line to add
    Doctor(entrain_doctor::cli::DoctorArgs),
    /// Man pages and shell completions, for packages
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Daemons tell what they do, commands only what is wrong.
    log::start(match command {
        Command::Guest(_) | Command::Host(_) => Level::INFO,
        Command::Isolate(_) | Command::Lab(_) | Command::Sim(_) | Command::Top(_) | Command::Doctor(_) => Level::WARN,
        Command::Record(_) | Command::Report(_) | Command::Trial(_) | Command::Generate(_) => Level::WARN,
    });
    pipe::until_closed(|| exit::status(run(command), lasting))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Guest(args) => entrain_guest::cli::run(args),
        Command::Isolate(args) => entrain_isolate::cli::run(args),
        Command::Lab(args) => part::run(&part::LAB, &args),
        Command::Sim(args) => part::run(&part::SIM, &args),
        Command::Host(args) => entrain_host::cli::run(args),
        Command::Top(args) => entrain_host::top::run(args),
        Command::Record(args) => entrain_record::cli::record(args),
        Command::Report(args) => entrain_record::cli::report(args),
        Command::Trial(args) => entrain_trial::cli::run(args),
        Command::Doctor(args) => entrain_doctor::cli::run(args),
        Command::Generate(args) => generate::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    }
}

/// The status of an error that another start would not cure.
fn lasting(error: &anyhow::Error) -> Option<u8> {
    let host = || error.downcast_ref::<HostError>()?.exit_status();
    let guest = || error.downcast_ref::<GuestError>()?.exit_status();
    host().or_else(guest).or_else(|| error.is::<ConfigError>().then_some(exit::CONFIGURATION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parts_get_their_options_untouched() {
        for words in [&["run", "smoke", "--json", "f"][..], &["--help"], &["shell", "--", "ls", "-l"], &[]] {
            for part in ["lab", "sim"] {
                let parsed = Cli::try_parse_from(["entrain", part].iter().chain(words)).unwrap();
                let (Command::Lab(args) | Command::Sim(args)) = parsed.command else { panic!("not a part") };
                assert_eq!(args.arguments, words);
            }
        }
    }
}
