//! `entrain-sim run`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use entrain_sim::report::Outcome;
use entrain_sim::scenario::Arm;

use super::Which;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Who schedules: `stock`, `host` (Entrain on the host alone) or `both`. All three if not given.
    #[arg(long)]
    arm: Option<String>,
    /// Also prints what the schedulers' code does for each kind of event: helpers, look-ups, atomics.
    #[arg(long)]
    counts: bool,
    /// Writes the outcome to a file.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<bool> {
    let names: Vec<&str> = args.arm.as_deref().map_or(Arm::NAMES.to_vec(), |name| vec![name]);
    let mut outcomes = Vec::new();
    for name in names {
        let (arm, seed) = (args.which.arm(name)?, args.which.seed);
        let began = Instant::now();
        let outcome = Outcome::of(args.which.name(), arm, seed, args.which.build(arm)?);
        println!(
            "{} with seed {seed}, {name}; {:.2} s\n{}\n",
            args.which.name(),
            began.elapsed().as_secs_f64(),
            outcome.table()
        );
        if args.counts {
            println!("{}\n", outcome.counts_table());
        }
        outcomes.push(outcome);
    }
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&outcomes)?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(outcomes.iter().all(|outcome| !outcome.broken.contains_key("failed")))
}
