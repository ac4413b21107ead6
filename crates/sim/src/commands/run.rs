//! `entrain-sim run`.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use entrain_results::output;
use entrain_sim::jobs;
use entrain_sim::page::{self, Shown};
use entrain_sim::report::Outcome;
use entrain_sim::scenario::{Arm, Setup};

use super::Which;
use super::progress::Progress;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Who schedules: `stock`, `host` (Entrain on the host alone), `guest`, `both`, `registered`
    /// (on the host alone, with agents in the guests), or `simple` or `bpfland` (scx_simple, scx_bpfland on the host).
    /// The first four if not given.
    #[arg(long)]
    arm: Option<String>,
    /// Runs at a time [default: all cores]
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// Also prints what the schedulers' code does for each kind of event: helpers, look-ups, atomics.
    #[arg(long)]
    counts: bool,
    /// Writes the outcome to a file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes a page (one file, no network) with a window of each run as a picture.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Where the picture's window begins, ms [default: amid the run]
    #[arg(long, requires = "html")]
    from: Option<f64>,
    /// How long it is, ms.
    #[arg(long = "for", default_value_t = 10.0, requires = "html")]
    length: f64,
}

/// One run: its figures, what it took, and its window as a picture where there is to be a page.
struct Ran {
    outcome: Outcome,
    seconds: f64,
    picture: String,
}

fn ran(args: &Args, arm: Arm) -> Result<Ran> {
    let began = Instant::now();
    let Setup { mut world, end, measured } = args.which.build(arm)?;
    let from = args.from.map_or(end / 2, super::ns).min(end);
    let until = (from + super::ns(args.length)).min(end);
    if args.html.is_some() {
        world.record(from, until);
    }
    world.run(end);
    let outcome = Outcome::read(args.which.name(), arm, args.which.seed, &world, &measured);
    let picture = if args.html.is_some() { page::drawn(&world, from, until) } else { String::new() };
    Ok(Ran { outcome, seconds: began.elapsed().as_secs_f64(), picture })
}

pub(crate) fn run(args: Args) -> Result<bool> {
    let names: Vec<&str> = args.arm.as_deref().map_or(Arm::NAMES.to_vec(), |name| vec![name]);
    let arms = names.iter().map(|name| Ok((*name, args.which.arm(name)?))).collect::<Result<Vec<_>>>()?;
    let progress = Progress::new(arms.len());
    let told = |(name, _): &(&str, Arm), _: &Result<Ran>| {
        progress.done(name);
        true
    };
    let threads = args.threads.unwrap_or_else(jobs::all_cores);
    let results = jobs::run(&arms, threads, |(_, arm)| ran(&args, *arm), told);
    drop(progress);
    let mut shown = Vec::new();
    for (name, result) in names.iter().zip(results.expect("nobody ends it early")) {
        let Ran { outcome, seconds, picture } = result?;
        let (scenario, seed) = (args.which.name(), args.which.seed);
        println!("{scenario} with seed {seed}, {name}; {seconds:.2} s\n{}\n", outcome.table());
        if args.counts {
            println!("{}\n", outcome.counts_table());
        }
        shown.push(Shown { name: (*name).to_owned(), outcome, picture });
    }
    println!("peak memory {} MiB", super::peak_memory() >> 20);
    if let Some(path) = &args.json {
        let outcomes: Vec<_> = shown.iter().map(|one| &one.outcome).collect();
        let text = serde_json::to_string_pretty(&outcomes)?;
        output::write(path, text.as_bytes())?;
    }
    if let Some(path) = &args.html {
        output::write(path, page::page(&args.which.about(), &shown).as_bytes())?;
    }
    Ok(shown.iter().all(|one| !one.outcome.broken.contains_key("failed")))
}
