//! `entrain-load`: the loads that the lab runs in guests, and the counters that it takes around them.

mod besiege;
mod burst;
mod clock;
mod costs;
mod cpu;
mod critical;
mod frames;
mod hand;
mod inference;
mod isolated;
mod kvm;
mod lock;
mod membarrier;
mod memcheck;
mod office;
mod output;
mod pages;
mod programs;
mod roles;
mod session;
mod shootdown;
mod snapshot;
mod spin;
mod spinning;
mod sync;
mod tick;
mod tmp;
mod touch;
mod vms;
mod wake;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measured loads for virtual machines: each prints what it measured, as text or as JSON lines (--json)
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    Wake(wake::Args),
    Lock(lock::Args),
    Shootdown(shootdown::Args),
    Tick(tick::Args),
    Spin(spin::Args),
    Spinning(spinning::Args),
    Critical(critical::Args),
    Frames(frames::Args),
    Burst(burst::Args),
    Inference(inference::Args),
    Office(office::Args),
    Roles(roles::Args),
    Memcheck(memcheck::Args),
    Vms(vms::Args),
    Besiege(besiege::Args),
    Costs(costs::Args),
    Run(programs::Args),
    Probe(snapshot::Args),
    Touch(touch::Args),
    Isolated(isolated::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().load {
        Load::Wake(args) => wake::run(&args),
        Load::Lock(args) => lock::run(&args),
        Load::Shootdown(args) => shootdown::run(&args),
        Load::Tick(args) => tick::run(&args),
        Load::Spin(args) => spin::run(&args),
        Load::Spinning(args) => spinning::run(&args),
        Load::Critical(args) => critical::run(&args),
        Load::Frames(args) => frames::run(&args),
        Load::Burst(args) => burst::run(&args),
        Load::Inference(args) => inference::run(&args),
        Load::Office(args) => office::run(&args),
        Load::Roles(args) => roles::run(&args),
        Load::Touch(args) => touch::run(&args),
        Load::Memcheck(args) => memcheck::run(&args),
        Load::Vms(args) => vms::run(&args),
        Load::Besiege(args) => besiege::run(&args),
        Load::Costs(args) => costs::run(&args),
        Load::Run(args) => programs::run(&args),
        Load::Probe(args) => snapshot::run(&args),
        Load::Isolated(args) => isolated::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("entrain-load: {error:#}");
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }
}
