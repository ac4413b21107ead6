//! `entrain-sim replay`.

use std::num::NonZero;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use entrain_record::file;
use entrain_results::output;
use entrain_sim::jobs;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::replay::demand::Shares;
use entrain_sim::replay::{Order, Replay};
use entrain_sim::report::Outcome;
use entrain_sim::scenario::Arm;

use super::progress::Progress;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file of `entrain record`.
    file: PathBuf,
    /// Who schedules: `stock`, `host` (Entrain on the host alone), `guest` or `both`. All four if not given.
    #[arg(long)]
    arm: Option<String>,
    /// What the host is like: NODESxCACHESxCORESxTHREADS, of each in the next larger. A recording does not tell
    /// [default: one cache, no SMT]
    #[arg(long, value_parser = shape)]
    shape: Option<Shape>,
    /// Draws the bursts from those that were recorded, instead of repeating their sequence.
    #[arg(long)]
    drawn: bool,
    /// What chance is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at a time [default: all cores]
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// Writes the shares and the outcomes to a file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn shape(text: &str) -> Result<Shape> {
    let parts: Vec<u32> = text.split('x').map(str::parse).collect::<Result<_, _>>()?;
    match parts[..] {
        [nodes, llcs, cores, threads] if parts.iter().all(|part| (1..=4096).contains(part)) => {
            Ok(Shape { nodes, llcs, cores, threads })
        }
        _ => anyhow::bail!("it is four numbers, as 2x1x20x2"),
    }
}

/// What is written.
#[derive(serde::Serialize)]
struct Written {
    vms: Vec<String>,
    recorded: Vec<Shares>,
    arms: Vec<(String, Vec<Shares>, Outcome)>,
    untold: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let recording = file::parse(&bytes).with_context(|| format!("{name}"))?;
    drop(bytes);
    let replay = Replay::of(&recording, args.shape).with_context(|| format!("{name}"))?;
    let names: Vec<&str> = args.arm.as_deref().map_or(Arm::NAMES.to_vec(), |name| vec![name]);
    let arms = names.iter().map(|name| Ok((*name, super::arm(name)?))).collect::<Result<Vec<_>>>()?;
    let order = if args.drawn { Order::Drawn } else { Order::Recorded };
    let vcpus: usize = replay.vms.iter().map(|vm| vm.vcpus.len()).sum();
    println!(
        "{name}: {} VMs, {vcpus} vCPUs on {} pCPUs, {:.1} s; {} threads of the host disturbed them",
        replay.vms.len(),
        replay.shape.cpus(),
        replay.span as f64 / 1e9,
        replay.disturbers.len()
    );
    let progress = Progress::new(arms.len());
    let one = |(_, arm): &(&str, Arm)| {
        let mut setup = replay.build(args.seed, *arm, order);
        setup.world.run(setup.end);
        let outcome = Outcome::read("replay", *arm, args.seed, &setup.world, &setup.measured);
        (replay.shares(&setup), outcome)
    };
    let told = |(name, _): &(&str, Arm), _: &(Vec<Shares>, Outcome)| {
        progress.done(name);
        true
    };
    let results = jobs::run(&arms, args.threads.unwrap_or_else(jobs::all_cores), one, told);
    drop(progress);
    let results = results.expect("nobody ends it early");
    let written = Written {
        vms: replay.vms.iter().map(|vm| vm.name.clone()).collect(),
        recorded: replay.vms.iter().map(|vm| vm.shares).collect(),
        arms: names.iter().zip(results).map(|(name, (shares, run))| ((*name).to_owned(), shares, run)).collect(),
        untold: replay.untold,
    };
    println!("{}", table(&written));
    for (name, _, run) in &written.arms {
        println!("{name}: {:.0} switches of the host/s, {:.0} yields/s, trace {}", run.switches, run.yields, run.trace);
        run.notes.iter().for_each(|note| println!("  note: {note}"));
        run.broken.iter().for_each(|(rule, count)| println!("  broken: {rule}, {count} times"));
    }
    println!("What the recording does not tell, and how it is filled in:");
    written.untold.iter().for_each(|what| println!("  - {what}"));
    if let Some(path) = &args.json {
        output::write(path, serde_json::to_string_pretty(&written)?.as_bytes())?;
    }
    Ok(written.arms.iter().all(|(.., run)| !run.broken.contains_key("failed")))
}

/// Each VM: as recorded, and under each arm.
fn table(written: &Written) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["VM", "", "runs", "waits", "halted", "vCPU's wake-up p50, µs", "p99", "max"]);
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let row = |vm: &str, name: &str, shares: &Shares, wake: [String; 3]| {
        let [p50, p99, max] = wake;
        let shares = [shares.ran, shares.waited, shares.halted].map(percent);
        let [ran, waited, halted] = shares;
        [vm.to_owned(), name.to_owned(), ran, waited, halted, p50, p99, max]
    };
    for (at, vm) in written.vms.iter().enumerate() {
        table.add_row(row(vm, "recorded", &written.recorded[at], Default::default()));
        for (name, shares, run) in &written.arms {
            let wake = run.rows[at].wake_us.map_or_else(Default::default, |wake| wake.map(|us| format!("{us:.0}")));
            table.add_row(row("", name, &shares[at], wake));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
