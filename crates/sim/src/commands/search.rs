//! `entrain-sim search`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use entrain_results::output;
use entrain_sim::kernel::Planted;
use entrain_sim::search::{self, Hunt, Plan};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where to begin; each next world has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Searches for races: operations of different CPUs run at once, and chance decides where one is left for another.
    #[arg(long)]
    races: bool,
    /// Puts a known fault into the simulated kernels, as a test of the search.
    #[arg(long, requires = "races", value_name = "FAULT")]
    planted: Option<Planted>,
    /// Runs that one seed alone, as a failure asks for.
    #[arg(long)]
    replay: bool,
    /// Runs at a time.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Makes each failure smaller by at most so many runs, and keeps what is left in a file; 0: does not.
    #[arg(long, default_value_t = 200)]
    shrink: usize,
    /// Where these files go.
    #[arg(long, default_value = "target/sim")]
    into: PathBuf,
    /// Runs the plan of such a file.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Of a single run (`--replay`, `--plan`): prints what happened from so many µs before the begin of what broke a rule
    /// first until so many after it, on that machine.
    #[arg(long, value_name = "US")]
    told: Option<u64>,
    /// Tells of these rules alone: `idle`, `behind`, `wait`, `watchdog`, `failed`, `share`, `queue`, `budget`. All if not given.
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
}

impl Args {
    /// The first of the rules asked for that a run breaks.
    fn broken(&self, run: &search::Run) -> Option<&'static str> {
        let mut rules = run.broken.iter().map(|(rule, ..)| *rule);
        rules.find(|rule| self.rules.is_empty() || self.rules.iter().any(|asked| asked == rule))
    }
}

/// Prints a single run, and how it came to what it broke. Whether it broke nothing.
fn print_one(run: &search::Run, args: &Args) -> bool {
    println!("{}", run.text());
    let broken = args.broken(run);
    if let (Some(rule), Some(around)) = (broken, args.told) {
        print!("{}", search::told(run, rule, around * 1000).unwrap_or_default());
    }
    broken.is_none()
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.plan {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let plan: Plan = serde_json::from_str(&text)
            .with_context(|| format!("{} is no plan that search has kept", path.display()))?;
        let run = search::run_plan(args.seed, &plan);
        return Ok(print_one(&run, args));
    }
    let hunt = match (args.races, args.planted) {
        (_, Some(planted)) => Hunt::Planted(planted),
        (true, None) => Hunt::Races,
        (false, None) => Hunt::Worlds,
    };
    if args.replay {
        let run = hunt.run(args.seed);
        return Ok(print_one(&run, args));
    }
    let mut failed = Ok(());
    let mut rules: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut found = 0_u64;
    let runs = search::search(hunt, args.seed, Duration::from_secs(args.seconds), args.threads.max(1), |run| {
        if args.broken(run).is_none() {
            return;
        }
        found += 1;
        println!("{}", run.text());
        for (rule, ..) in &run.broken {
            // The first of each rule is made smaller: the others are likely the same.
            if args.shrink > 0 && *rules.entry(rule).and_modify(|n| *n += 1).or_insert(1) == 1 && failed.is_ok() {
                failed = keep_smallest(run, rule, args);
            }
        }
    });
    failed?;
    let of_rules: Vec<_> = rules.iter().map(|(rule, n)| format!("{rule} in {n}")).collect();
    println!("{runs} worlds, {found} of them broke a rule{}{}", if found > 0 { ": " } else { "" }, of_rules.join(", "));
    Ok(found == 0)
}

/// Makes a failure smaller, keeps it, and says how to run it.
fn keep_smallest(run: &search::Run, rule: &str, args: &Args) -> Result<()> {
    let least = search::smallest(run, rule, args.shrink);
    std::fs::create_dir_all(&args.into).with_context(|| args.into.display().to_string())?;
    let path = args.into.join(format!("{rule}-{}.json", run.seed));
    output::write(&path, serde_json::to_string_pretty(&least.plan)?.as_bytes())?;
    println!(
        "  smallest, of size {} instead of {}: {}\n  again: entrain-sim search --plan {}",
        least.plan.size(),
        run.plan.size(),
        least.plan.words(),
        path.display()
    );
    Ok(())
}
