//! The `entrain` command line.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

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
    /// The nested lab: stock KVM hosts with real guests, on any machine
    Lab(entrain_lab::cli::LabArgs),
    /// On a KVM host: finds its VMs, pairs with their guests, publishes to them
    Host(entrain_host::cli::HostArgs),
    /// On a KVM host: a live table of its VMs and vCPUs
    Top(entrain_host::top::TopArgs),
    /// Drains of per-CPU caches that do not disturb isolated CPUs (moves below `isolate`)
    #[command(hide = true)]
    IsolateQpw(entrain_qpw::cli::QpwArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    let command = Cli::parse().command;
    // RUST_LOG overrides; stdout belongs to results. Daemons tell what they do, commands only what is wrong.
    let level = match command {
        Command::Guest(_) | Command::Host(_) => "info",
        Command::Lab(_) | Command::Top(_) | Command::IsolateQpw(_) => "warn",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match command {
        Command::Guest(args) => entrain_guest::cli::run(args),
        Command::Lab(args) => entrain_lab::cli::run(args),
        Command::Host(args) => entrain_host::cli::run(args),
        Command::Top(args) => entrain_host::top::run(args),
        Command::IsolateQpw(args) => entrain_qpw::cli::run(args),
    }
}
