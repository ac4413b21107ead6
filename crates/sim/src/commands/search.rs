//! `entrain-sim search`.

use std::time::Duration;

use anyhow::Result;
use entrain_sim::search;

#[derive(clap::Args)]
pub(crate) struct Args {
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
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let found = if args.replay {
        let run = search::run(args.seed);
        println!("{}", run.text());
        run.broken()
    } else {
        let time = Duration::from_secs(args.seconds);
        search::search(args.seed, time, args.threads.max(1), |run| println!("{}", run.text()))
    };
    Ok(!found)
}
