//! `entrain-sim`: the schedulers of host and guest in a simulated kernel.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use entrain_sim::report::Outcome;
use entrain_sim::scenario::{self, Arm};
use entrain_sim::search;
use entrain_sim::world::Tunable;

/// Runs the schedulers of host and guest, as they ship, in a simulated kernel.
#[derive(Parser)]
#[command(name = "entrain-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a scenario and prints what it has shown.
    Run {
        /// One of those that `list` names.
        scenario: String,
        /// What chance is drawn from; the same seed gives the same trace.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Who schedules: `stock`, `host` (Entrain on the host alone) or `both`. All three if not given.
        #[arg(long)]
        arm: Option<String>,
        /// Sets a tunable of Entrain's scheduler on the host: NAME=NUMBER in ns, NAME=true, NAME=false.
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = tunable)]
        tunables: Vec<(String, Tunable)>,
        /// Writes the outcome to a file.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Names the scenarios.
    List,
    /// Draws machines and loads, and looks for what must not be.
    Search {
        /// How long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Where to begin; each next world has the next seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Runs that one seed alone, as a failure asks for.
        #[arg(long)]
        replay: bool,
        /// Runs at a time.
        #[arg(long, default_value_t = 1)]
        threads: usize,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("entrain-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tunable(text: &str) -> Result<(String, Tunable)> {
    let (name, value) = text.split_once('=').context("it is NAME=VALUE")?;
    let value = match value {
        "true" | "false" => Tunable::Switch(value == "true"),
        _ => Tunable::Number(value.parse()?),
    };
    Ok((name.to_owned(), value))
}

/// Whether nothing was found that must not be.
fn run(cli: Cli) -> Result<bool> {
    match cli.command {
        Command::List => {
            for scenario in scenario::SCENARIOS {
                println!("{:<10} {}", scenario.name, scenario.about);
            }
            Ok(true)
        }
        Command::Run { scenario, seed, arm, tunables, json } => {
            let Some(scenario) = scenario::named(&scenario) else {
                bail!("no scenario is called {scenario}; `entrain-sim list` names them")
            };
            let arms = match &arm {
                Some(name) => vec![(
                    name.as_str(),
                    Arm::named(name).with_context(|| format!("{name} is none of stock, host, both"))?,
                )],
                None => vec![("stock", Arm::STOCK), ("host", Arm::HOST), ("both", Arm::BOTH)],
            };
            // Names live as long as the program: scenarios hold them as constants.
            let tunables: Vec<_> = tunables.into_iter().map(|(name, value)| (&*name.leak(), value)).collect();
            let tunables: &'static [_] = tunables.leak();
            let mut outcomes = Vec::new();
            for (name, arm) in arms {
                let arm = Arm { tunables, ..arm };
                let began = Instant::now();
                let outcome = Outcome::of(scenario.name, arm, seed, (scenario.build)(seed, arm));
                println!(
                    "{} with seed {seed}, {name}; {:.2} s\n{}\n",
                    scenario.name,
                    began.elapsed().as_secs_f64(),
                    outcome.table()
                );
                outcomes.push(outcome);
            }
            if let Some(path) = json {
                let text = serde_json::to_string_pretty(&outcomes)?;
                std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            }
            Ok(outcomes.iter().all(|outcome| !outcome.broken.contains_key("failed")))
        }
        Command::Search { seconds, seed, replay, threads } => {
            let found = if replay {
                let run = search::run(seed);
                println!("{}", run.text());
                run.broken()
            } else {
                search::search(seed, Duration::from_secs(seconds), threads.max(1), |run| println!("{}", run.text()))
            };
            Ok(!found)
        }
    }
}
